"""Counts are exact, however little memory there is and however the texts are shared among ranks."""

import random
import threading
from collections import Counter
from typing import Any

import pytest

from minibert.ranks import ALONE, Ranks
from minibert.text import word_counts
from minibert.text.word_counts import WordCounts


class ThreadRanks(Ranks):
    """Ranks that are threads of this process, and can only gather."""

    def __init__(self, rank: int, size: int, values: list[Any], barrier: threading.Barrier):
        self.rank, self.size, self.values, self.meet = rank, size, values, barrier

    def gather(self, value: Any) -> list[Any]:
        self.values[self.rank] = value
        self.meet.wait()
        values = list(self.values)
        self.meet.wait()
        return values


def counted_on_ranks(shares: list[list[str]], max_words: int) -> list[Counter[str]]:
    """What each of several ranks finds if each counts one of the shares."""
    size = len(shares)
    values, barrier = [None] * size, threading.Barrier(size, timeout=10)
    found: list[Any] = [None] * size

    def count(rank: int) -> None:
        counts = WordCounts(max_words)
        for word in shares[rank]:
            counts.add(word, 1)
            counts.bound_memory()
        found[rank] = counts.most_frequent(ThreadRanks(rank, size, values, barrier))

    threads = [threading.Thread(target=count, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def some_words(count: int) -> list[str]:
    """Words that are as unevenly frequent as real ones, among them unusual characters."""
    rng = random.Random(0)
    return [f"é\u2028{int(rng.paretovariate(0.7))}" for _ in range(count)]


def most_frequent(words: list[str], limit: int) -> Counter[str]:
    """Those that occur more than t times, for the least t that leaves at most ``limit``."""
    counts = Counter(words)
    least = next(t for t in range(len(words)) if sum(c > t for c in counts.values()) <= limit)
    return Counter({word: count for word, count in counts.items() if count > least})


@pytest.mark.parametrize("limit", [7, 40, 10_000])
def test_counts_are_exact_in_bounded_memory(limit):
    words, counts = some_words(3000), WordCounts(limit)
    for word in words:
        counts.add(word, 1)
        counts.bound_memory()
        assert len(counts._held) <= limit
    assert counts.most_frequent(ALONE) == most_frequent(words, limit)


@pytest.mark.parametrize("block", [1, 5, 10_000])
@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("limit", [40, 10_000])
def test_ranks_find_together_what_one_would(monkeypatch, limit, size, block):
    monkeypatch.setattr(word_counts, "BLOCK", block)
    words = some_words(1500)
    shares = [words[rank * 400 : (rank + 1) * 400] for rank in range(size - 1)]
    shares.append(words[(size - 1) * 400 :])
    assert counted_on_ranks(shares, limit) == [most_frequent(words, limit)] * size


def test_a_rank_without_any_words_takes_part():
    assert counted_on_ranks([[], ["a", "b", "a"], []], 10) == [{"a": 2, "b": 1}] * 3
