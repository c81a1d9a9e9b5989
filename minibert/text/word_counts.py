"""How often each word occurs: exact counts of any number of words in bounded memory, on all ranks."""

import heapq
import itertools
import json
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import IO

from minibert.ranks import Ranks

BLOCK = 50_000  # words that a rank tells the others at a time


class WordCounts:
    """Counts of words, of which at most about ``max_words`` different ones are held in memory.

    What is too much goes to a temporary file, sorted by word, and counting begins anew. In the end the files
    are merged. So the counts are exact, and do not depend on the order in which the words came.
    """

    def __init__(self, max_words: int) -> None:
        self.max_words = max_words
        self._held: Counter[str] = Counter()
        self._runs: list[IO[str]] = []

    def add(self, word: str, count: int) -> None:
        """Count a word."""
        self._held[word] += count

    def bound_memory(self) -> None:
        """Write what is held to a file if it is too much."""
        if len(self._held) > self.max_words:
            run = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115 (kept open)
            run.writelines(json.dumps(pair) + "\n" for pair in sorted(self._held.items()))
            self._runs.append(run)
            self._held.clear()

    def most_frequent(self, ranks: Ranks) -> Counter[str]:
        """The counts of all ranks together, without the rarest words if there are more than ``max_words``.

        Left out are all that occur at most t times, for the least t that leaves no more than ``max_words``.
        Every rank gets the same.
        """
        words: Counter[str] = Counter()
        rarest = 0
        for word, count in _of_all_ranks(self._in_order(), ranks):
            if count > rarest:
                words[word] = count
            while len(words) > self.max_words:
                rarest += 1
                words = Counter({word: count for word, count in words.items() if count > rarest})
        return words

    def _in_order(self) -> Iterator[tuple[str, int]]:
        """Each word once, sorted, with its count."""
        for run in self._runs:
            run.seek(0)
        runs = [map(tuple, map(json.loads, run)) for run in self._runs]
        return _summed(heapq.merge(*runs, sorted(self._held.items())))


def _summed(pairs: Iterable[tuple[str, int]]) -> Iterator[tuple[str, int]]:
    """Pairs in the order of their words, with equal words made one."""
    for word, group in itertools.groupby(pairs, key=lambda pair: pair[0]):
        yield word, sum(count for _, count in group)


def _of_all_ranks(pairs: Iterator[tuple[str, int]], ranks: Ranks) -> Iterator[tuple[str, int]]:
    """The sorted counts of all ranks, merged: again and again, each rank shows its next words to all.

    Words up to the least of the last words shown are complete, for whatever a rank has not shown comes later.
    """
    if ranks.size == 1:
        yield from pairs
        return
    waiting: list[tuple[str, int]] = []
    while True:
        waiting += itertools.islice(pairs, BLOCK - len(waiting))
        shown = ranks.gather(waiting)
        if not any(shown):
            return
        unfinished = [block[-1][0] for block in shown if len(block) == BLOCK]
        limit = min(unfinished, default=None)
        complete = [[pair for pair in block if limit is None or pair[0] <= limit] for block in shown]
        yield from _summed(heapq.merge(*complete))
        waiting = waiting[len(complete[ranks.rank]) :]
