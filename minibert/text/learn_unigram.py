"""Learning the pieces of a unigram model: from many candidates, the least useful ones go, again and again.

Source: Kudo 2018, "Subword Regularization", section 3.2, in the form of SentencePiece's unigram trainer, with
the digamma function in the M-step (Liang and Klein 2007, "Structured Bayesian Nonparametric Models with
Variational Inference"), which takes more from rare pieces than from frequent ones.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import digamma
from tqdm import tqdm

from minibert.errors import UserError
from minibert.text.learn import USUAL_ALPHABET, frequent_characters, refuse_no_words, spelled_words

NUL = "\0"  # NumPy's strings lose it at their end
LONGEST_PIECE = 16  # characters, with the ▁
SEEDS_PER_PIECE = 20  # candidates, for each piece that is asked for
_KEEP, _SPARE = 0.75, 1.1  # pieces that a round of pruning leaves; those that it stops at, of those asked for
_EM_STEPS = 2  # in each round
_LEAST_EXPECTED = 0.5  # occurrences, below which a piece goes


def learn_unigram(
    word_counts: Mapping[str, int],
    vocab_size: int,
    special_tokens: Sequence[str],
    *,
    alphabet_limit: int = USUAL_ALPHABET,
    progress: bool = False,
) -> list[tuple[str, float]]:
    """Learn up to ``vocab_size`` tokens with their log probabilities: the special ones (0), then the pieces.

    1. Candidates are all characters of the alphabet, and the substrings that make up most of the text.
    2. Two steps of expectation maximisation: how often each is expected to occur, over all segmentations of
       all words; new probabilities from that. What is expected less than half a time goes.
    3. As long as there are more than 1.1 ``vocab_size``: the quarter goes without which the text loses least
       likelihood, if its next best segmentation stands in for each piece; then 2 again.
    4. The most probable ``vocab_size`` remain, most probable first, and with them the whole alphabet.

    The alphabet is the ``alphabet_limit`` most frequent characters; words with others, or with NUL, are
    skipped. The same counts always give the same tokens.

    Raises UserError if there are no words, or if special tokens and alphabet alone exceed ``vocab_size``.
    """
    word_counts = {word: count for word, count in word_counts.items() if NUL not in word}
    refuse_no_words(word_counts)
    alphabet = frequent_characters(word_counts, alphabet_limit)
    room = vocab_size - len(special_tokens)
    if len(alphabet) > room:
        raise UserError(
            f"vocab_size {vocab_size} is too small: the special tokens and the alphabet alone take "
            f"{len(special_tokens) + len(alphabet)}; ask for more tokens or set a lower alphabet_limit"
        )
    words = sorted(spelled_words(word_counts, alphabet))
    counts = np.array([word_counts[word] for word in words], dtype=np.float64)
    with tqdm(desc="learning pieces", unit=" rounds", disable=not progress) as bar:
        learner = _Learner(words, counts, SEEDS_PER_PIECE * vocab_size)
        while True:
            for _ in range(_EM_STEPS):
                learner.maximise()
            bar.set_postfix(pieces=len(learner.pieces))
            bar.update()
            if len(learner.pieces) <= _SPARE * room:
                break
            learner.prune(int(max(_KEEP * len(learner.pieces), _SPARE * room)))
    found = [pair for pair in learner.result() if pair[0] not in special_tokens]
    characters = sum(len(piece) == 1 for piece, _ in found)
    longer = [piece for piece, _ in found if len(piece) > 1][: room - characters]
    kept = alphabet.union(longer)
    return [*((token, 0.0) for token in special_tokens), *(pair for pair in found if pair[0] in kept)]


class _Text:
    """The different words as one row of characters (N,), and the substrings that repeat in them.

    ``chars`` are indices into ``alphabet``; ``end`` (N,) is where the word of each character ends.
    """

    def __init__(self, words: Sequence[str], counts: np.ndarray) -> None:
        self.text = "".join(words)
        codes = np.frombuffer(self.text.encode("utf-32-le"), dtype=np.uint32)
        self.alphabet, chars = np.unique(codes, return_inverse=True)
        self.chars = chars.astype(np.int64)
        self.lengths = np.array([len(word) for word in words])
        self.ends = np.cumsum(self.lengths)
        self.end = np.repeat(self.ends, self.lengths)
        self.count = np.repeat(counts, self.lengths)

    def substrings(self) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
        """For each length: places, the number of the substring at each, and the substrings' counts and use.

        A substring that occurs once is left out. Not of use is one that nearly always goes on with the same
        character: its continuation would be the better piece.
        """
        places, groups = np.arange(len(self.chars)), self.chars
        totals = np.bincount(groups, self.count)
        for length in range(1, LONGEST_PIECE + 1):
            on = places + length < self.end[places]  # those that go on
            keys = groups[on] * len(self.alphabet) + self.chars[places[on] + length]
            longer, numbers = np.unique(keys, return_inverse=True)
            next_totals = np.bincount(numbers, self.count[places[on]], minlength=len(longer))
            most = np.zeros(len(totals))
            np.maximum.at(most, longer // len(self.alphabet), next_totals)
            yield places, groups, totals, most < totals

            repeats = next_totals >= 2
            renumbered = np.cumsum(repeats) - 1
            stays = repeats[numbers]
            places, groups = places[on][stays], renumbered[numbers[stays]]
            totals = next_totals[repeats]
            if len(places) == 0:
                return


@dataclass
class _Lattice:
    """All ways to put words together of pieces: each arc is a piece at a place in a word.

    A word of n characters has n + 1 nodes, before, between and after them. Arcs are in the order of the
    position of their end in the word, and of their end: so the arcs into a node stand together, and those
    of one position, of all words at once, depend only on those before.
    """

    start: np.ndarray  # of each arc: its nodes
    end: np.ndarray
    piece: np.ndarray
    bounds: np.ndarray  # where the arcs of each position begin
    first: np.ndarray  # of each word: its outer nodes
    last: np.ndarray
    nodes: int

    @classmethod
    def of(cls, start: np.ndarray, end: np.ndarray, piece: np.ndarray, lengths: np.ndarray) -> "_Lattice":
        """Of arcs in any order, in words of these lengths."""
        last = np.cumsum(lengths + 1) - 1
        first = last - lengths
        position = np.arange(last[-1] + 1) - np.repeat(first, lengths + 1)
        order = np.lexsort((end, position[end]))
        start, end, piece = start[order], end[order], piece[order]
        return cls(start, end, piece, _bounds(position[end]), first, last, len(position))

    def keeping(self, pieces: np.ndarray, words: np.ndarray | None = None) -> "_Lattice":
        """With these pieces (a mask), numbered anew, and these words only."""
        stays = pieces[self.piece]
        if words is not None:
            of_word = np.zeros(self.nodes + 1, dtype=np.int64)
            np.add.at(of_word, self.first, np.where(words, 1, 0))
            np.add.at(of_word, self.last + 1, np.where(words, -1, 0))
            stays &= np.cumsum(of_word)[self.end] > 0
        before = np.concatenate([[0], np.cumsum(stays)])
        numbers = (np.cumsum(pieces) - 1).astype(np.int32)
        chosen = slice(None) if words is None else words
        return _Lattice(
            self.start[stays],
            self.end[stays],
            numbers[self.piece[stays]],
            before[self.bounds],
            self.first[chosen],
            self.last[chosen],
            self.nodes,
        )

    def _steps(self) -> list[tuple[slice, np.ndarray]]:
        """The arcs of each position, and where among them those into each node begin."""
        steps = []
        for begin, stop in zip(self.bounds[:-1], self.bounds[1:], strict=True):
            if begin < stop:
                arcs = slice(begin, stop)
                steps.append((arcs, np.flatnonzero(np.diff(self.end[arcs], prepend=-1))))
        return steps

    def expected(self, scores: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """How often each piece occurs, over all segmentations of words that occur ``counts`` times.

        Forward: the log probability of all ways from a word's beginning to a node is the log of a sum over
        the arcs into it. Expected counts are the derivatives of the words' log probabilities with respect to
        the scores, so this is backpropagation: each node hands on what it receives to the arcs into it, in
        proportion to their probabilities.
        """
        total = np.zeros(self.nodes)
        steps = self._steps()
        for arcs, heads in steps:
            ways = total[self.start[arcs]] + scores[self.piece[arcs]]
            most = np.maximum.reduceat(ways, heads)
            sizes = np.diff(heads, append=len(ways))
            sums = np.add.reduceat(np.exp(ways - np.repeat(most, sizes)), heads)
            total[self.end[arcs][heads]] = most + np.log(sums)
        received = np.zeros(self.nodes)
        received[self.last] = counts
        expected = np.zeros(len(scores))
        for arcs, _ in reversed(steps):
            start, end, piece = self.start[arcs], self.end[arcs], self.piece[arcs]
            share = received[end] * np.exp(total[start] + scores[piece] - total[end])
            np.add.at(received, start, share)
            np.add.at(expected, piece, share)
        return expected

    def best(self, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The score of each word's most probable segmentation, and the arc by which it reaches each node."""
        total = np.zeros(self.nodes)
        last_arc = np.full(self.nodes, -1)
        for arcs, heads in self._steps():
            ways = total[self.start[arcs]] + scores[self.piece[arcs]]
            most = np.maximum.reduceat(ways, heads)
            total[self.end[arcs][heads]] = most
            winners = np.flatnonzero(ways == np.repeat(most, np.diff(heads, append=len(ways))))[::-1]
            last_arc[self.end[arcs][winners]] = arcs.start + winners  # of equal ones the first, written last
        return total[self.last], last_arc

    def walk(self, last_arc: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Go back along the most probable segmentations: words, and the next piece in each."""
        words, nodes = np.arange(len(self.last)), self.last
        while len(words):
            arcs = last_arc[nodes]
            yield words, self.piece[arcs]
            nodes = self.start[arcs]
            on = nodes != self.first[words]
            words, nodes = words[on], nodes[on]


def _bounds(positions: np.ndarray) -> np.ndarray:
    """Where each number begins in the sorted ``positions``, and where the last one ends."""
    return np.searchsorted(positions, np.arange(positions[-1] + 2) if len(positions) else np.arange(1))


class _Learner:
    """The pieces, their scores, and the lattices of the words and of the pieces themselves.

    The lattice of a piece lacks the arc of the whole piece: its best segmentation is what stands in for the
    piece if it goes. Pieces of one character, which are never pruned, are not in it.
    """

    def __init__(self, words: Sequence[str], counts: np.ndarray, seeds: int) -> None:
        self.counts = counts
        text = _Text(words, counts)
        places, lengths, piece, totals, examples = _seeds(text, seeds)
        self.pieces = np.array([text.text[i : i + n] for i, n in examples])
        self.characters = examples[:, 1] == 1
        self.scores = np.log(totals / totals.sum())
        word_of = np.repeat(np.arange(len(words)), text.lengths)
        nodes = places + word_of[places]
        self.words = _Lattice.of(nodes, nodes + lengths, piece, text.lengths)
        self.parts = _parts(places, lengths, piece, examples)

    def maximise(self) -> None:
        """One step of expectation maximisation."""
        expected = self.words.expected(self.scores, self.counts)
        kept = (expected >= _LEAST_EXPECTED) | self.characters
        self._keep(kept)
        expected = np.maximum(expected[kept], _LEAST_EXPECTED)
        self.scores = digamma(expected) - digamma(expected.sum())

    def prune(self, size: int) -> None:
        """Keep the ``size`` pieces whose loss would cost most, all characters among them."""
        _, last_arc = self.words.best(self.scores)
        used = np.zeros(len(self.pieces))
        for words, piece in self.words.walk(last_arc):
            np.add.at(used, piece, self.counts[words])

        longer = np.flatnonzero(~self.characters)
        apart, last_arc = self.parts.best(self.scores)
        own, total = used[longer], used.sum()
        stands_in, parts = np.zeros(len(longer)), np.zeros(len(longer))
        for words, piece in self.parts.walk(last_arc):
            stands_in[words] += np.log(np.maximum(used[piece] + own[words], 1e-300))
            parts[words] += 1
        # Without a piece, its occurrences become occurrences of its parts; so all probabilities change a bit.
        instead = stands_in - parts * np.log(total + own * (parts - 1))
        loss = own * (np.log(np.maximum(own, 1e-300) / total) - instead)
        loss[(own == 0) | (apart >= self.scores[longer])] = -np.inf  # never used: its parts are as good

        order = np.argsort(-loss, kind="stable")[: max(size - self.characters.sum(), 0)]
        kept = self.characters.copy()
        kept[longer[order[loss[order] > -np.inf]]] = True
        self._keep(kept)

    def result(self) -> list[tuple[str, float]]:
        """The pieces with their scores, most probable first.

        The scores have 6 decimals, since not every reader of JSON gets the last of 17 digits right (serde in
        Rust does not). One that is off decides otherwise between segmentations of the same probability.
        """
        scores = self.scores.round(6)
        order = np.lexsort((self.pieces, -scores))
        return [(str(self.pieces[i]), float(scores[i])) for i in order]

    def _keep(self, kept: np.ndarray) -> None:
        if not kept.all():
            self.words = self.words.keeping(kept)
            self.parts = self.parts.keeping(kept, kept[~self.characters])
            self.pieces, self.scores = self.pieces[kept], self.scores[kept]
            self.characters = self.characters[kept]


def _seeds(text: _Text, limit: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The candidates: all characters, and up to ``limit`` substrings that cover most of the text.

    Returns the arcs (places, lengths, pieces), and of each piece what it covers and one (place, length).
    """
    found = list(text.substrings())
    covers = [
        np.where(useful, totals * length, 0.0) if length > 1 else totals
        for length, (_, _, totals, useful) in enumerate(found, start=1)
    ]
    longer = np.concatenate([*covers[1:], np.zeros(1)])
    least = np.sort(longer)[::-1][limit - 1] if len(longer) > limit else 0.0
    places, lengths, pieces, totals, examples = [], [], [], [], []
    number = 0
    for length, ((where, groups, _, _), cover) in enumerate(zip(found, covers, strict=True), start=1):
        chosen = (cover > least) if length > 1 else np.ones(len(cover), dtype=bool)
        numbers = number + np.cumsum(chosen) - 1
        here = chosen[groups]
        places.append(where[here].astype(np.int32))
        pieces.append(numbers[groups[here]].astype(np.int32))
        lengths.append(np.full(here.sum(), length, dtype=np.int32))
        example = np.zeros((chosen.sum(), 2), dtype=np.int64)
        example[pieces[-1] - number] = np.stack([places[-1], lengths[-1]], axis=1)
        examples.append(example)
        totals.append(cover[chosen])
        number += chosen.sum()
    join = np.concatenate
    return join(places), join(lengths), join(pieces), join(totals), join(examples)


def _parts(places: np.ndarray, lengths: np.ndarray, piece: np.ndarray, examples: np.ndarray) -> _Lattice:
    """The lattice of the pieces of several characters, each without itself, by the arcs where it occurs."""
    order = np.argsort(places, kind="stable")
    begins = np.searchsorted(places[order], np.arange(places.max() + 2))
    at, size = examples[examples[:, 1] > 1].T
    first = np.cumsum(size + 1) - (size + 1)
    starts, ends, pieces = [], [], []
    for offset in range(LONGEST_PIECE):
        inside = np.flatnonzero(size > offset)
        begin = begins[at[inside] + offset]
        many = begins[at[inside] + offset + 1] - begin
        owner = np.repeat(inside, many)
        arcs = order[np.repeat(begin - np.cumsum(many) + many, many) + np.arange(many.sum())]
        stop = offset + lengths[arcs]
        fits = (stop <= size[owner]) & (stop - offset < size[owner])
        starts.append((first[owner] + offset)[fits].astype(np.int32))
        ends.append((first[owner] + stop)[fits].astype(np.int32))
        pieces.append(piece[arcs[fits]])
    if len(size) == 0:
        empty = np.zeros(0, dtype=np.int32)
        return _Lattice(empty, empty, empty, np.zeros(1, dtype=np.int64), empty, empty, 0)
    return _Lattice.of(np.concatenate(starts), np.concatenate(ends), np.concatenate(pieces), size)
