"""Pre-training instances: pairs of segments, as in the original's create_pretraining_data.py.

A segment is a run of consecutive tokens, even after truncation, which shortens it only at its ends. So
an instance is five integers: (a_start, a_stop, b_start, b_stop, label), the first four of them indices into
the token array. The label of a pair is 0 if B follows A, and 1 if B is random (or A and B are swapped).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

import numpy as np

from minibert.data.prepared import Documents
from minibert.errors import UserError

MASKING = ("dynamic", "fixed")
OBJECTIVES = ("masked", "left-to-right", "permuted")


@dataclass(frozen=True)
class InstanceSettings:
    """How instances are made. The defaults are the original's, except for dynamic masking.

    objective: what is predicted: "masked" tokens; "left-to-right", the token after each; or "permuted", the
        last tokens of a random order, for XLNet.
    max_seq_length: tokens per instance, with [CLS] and [SEP]s; every batch is padded to it (S).
    max_predictions: masked positions per instance, at most (P).
    masked_lm_prob: share of the tokens that are predicted.
    mask_shares: percent of these that become [MASK], stay as they are, and become any token.
    short_seq_prob: share of the documents, in each pass, whose instances aim at a random shorter length.
    whole_word_masking: mask all subwords of a word or none.
    next_sentence: pairs [CLS] A [SEP] B [SEP]; otherwise one segment, [CLS] A [SEP].
    sentence_order: in half of the pairs A and B are swapped (Lan et al. 2020, ALBERT), where otherwise B is
        random.
    whole_sentences: segments begin and end with sentences; otherwise, which is only for single segments,
        documents are cut anywhere, so that sequences are full.
    masking: "dynamic" draws new pairs and masks in every pass over the documents (usual since RoBERTa);
        "fixed" repeats them after ``dupe_factor`` passes (the original).
    """

    objective: str = "masked"
    max_seq_length: int = 128
    max_predictions: int = 20
    masked_lm_prob: float = 0.15
    mask_shares: tuple[int, ...] = (80, 10, 10)
    short_seq_prob: float = 0.1
    whole_word_masking: bool = False
    next_sentence: bool = True
    sentence_order: bool = False
    whole_sentences: bool = True
    masking: str = "dynamic"
    dupe_factor: int = 10

    def __post_init__(self):
        if self.max_num_tokens < 2:
            raise UserError(
                f"max_seq_length {self.max_seq_length} leaves no room for text beside "
                f"{self.specials} special tokens; give at least {self.specials + 2}"
            )
        if self.next_sentence and self.objective == "permuted":
            raise UserError("pairs are not made for permuted text; set next_sentence to false")
        if self.next_sentence and not self.whole_sentences:
            raise UserError(
                "next-sentence prediction needs whole sentences; give --whole-sentences or --no-nsp"
            )
        if self.max_predictions < 1 or self.dupe_factor < 1:
            raise UserError("max_predictions and dupe_factor must be at least 1")
        if not 0 < self.masked_lm_prob <= 1 or not 0 <= self.short_seq_prob <= 1:
            raise UserError("masked_lm_prob must lie in (0, 1], short_seq_prob in [0, 1]")
        if len(self.mask_shares) != 3 or min(self.mask_shares) < 0 or sum(self.mask_shares) != 100:
            raise UserError(
                f"mask_shares is {' '.join(map(str, self.mask_shares))}; expected three percentages that add "
                "up to 100: of [MASK], unchanged and random tokens"
            )
        for name, value, known in (
            ("masking", self.masking, MASKING),
            ("objective", self.objective, OBJECTIVES),
        ):
            if value not in known:
                raise UserError(f"unknown {name} {value!r}; expected one of {', '.join(known)}")

    @property
    def most_predictions(self) -> int:
        """Predicted positions in an instance, at most: as many as one of full length has."""
        if self.objective == "left-to-right":
            return self.max_seq_length - 1
        if self.objective == "permuted":
            return max(1, int(self.max_num_tokens // (1 / self.masked_lm_prob)))  # as the orders round
        return min(self.max_predictions, max(1, round(self.masked_lm_prob * self.max_seq_length)))

    @property
    def specials(self) -> int:
        """Special tokens in an instance: [CLS] and a [SEP] after each segment."""
        return 3 if self.next_sentence else 2

    @property
    def max_num_tokens(self) -> int:
        """The tokens of text that an instance has room for."""
        return self.max_seq_length - self.specials


def make_instances(
    documents: Documents, chosen: np.ndarray, settings: InstanceSettings, rng: Random
) -> np.ndarray:
    """The instances of the ``chosen`` documents (indices), in the documents' order: (n, 5) int64.

    Source: create_instances_from_document in google-research/bert. As there, the target length is drawn once
    per document. With ``sentence_order``, pairs are those of create_pretraining_data.py in
    google-research/albert: a chunk of one sentence has no second text, so it still gets a random one, with
    the label of swapped texts. Without pairs, a segment is a run of whole sentences of one document, so
    no instance crosses documents ("DOC-SENTENCES" in Liu et al. 2019, RoBERTa). Without whole sentences, a
    document is cut every ``max_num_tokens`` tokens. The first cut is at random, so that each pass over the
    corpus has other sequences.
    """
    of_document = _pairs_of_document if settings.next_sentence else _segments_of_document
    if not settings.whole_sentences:
        of_document = _runs_of_document
    rows = [row for index in chosen.tolist() for row in of_document(documents, index, settings, rng)]
    return np.array(rows, dtype=np.int64).reshape(-1, 5)


def _pairs_of_document(
    documents: Documents, index: int, settings: InstanceSettings, rng: Random
) -> Iterator[tuple[int, ...]]:
    bounds = documents.sentence_bounds(index)  # sentence i is tokens[bounds[i] : bounds[i + 1]]
    sentences = len(bounds) - 1
    target = _target_length(settings, rng)
    first = 0
    while first < sentences:
        last = _chunk_end(bounds, first, target)
        a_end = first + (rng.randint(1, last - first - 1) if last - first >= 2 else 1)
        a_start, a_stop = bounds[first], bounds[a_end]
        alone = last - first == 1
        is_other = alone or rng.random() < 0.5
        if is_other and (alone or not settings.sentence_order):
            b_start, b_stop = _random_segment(documents, index, target - (a_stop - a_start), rng)
            first = a_end  # the sentences that B would have taken are put back
        else:
            b_start, b_stop = bounds[a_end], bounds[last]
            first = last
            if is_other:
                a_start, a_stop, b_start, b_stop = b_start, b_stop, a_start, a_stop
        a, b = _truncate_pair(a_start, a_stop, b_start, b_stop, settings.max_num_tokens, rng)
        yield *a, *b, int(is_other)


def _segments_of_document(
    documents: Documents, index: int, settings: InstanceSettings, rng: Random
) -> Iterator[tuple[int, ...]]:
    bounds = documents.sentence_bounds(index)
    target = _target_length(settings, rng)
    first = 0
    while first < len(bounds) - 1:
        last = _chunk_end(bounds, first, target)
        start, stop = bounds[first], bounds[last]
        yield *_shorten(start, stop, max(0, stop - start - settings.max_num_tokens), rng), stop, stop, 0
        first = last


def _runs_of_document(
    documents: Documents, index: int, settings: InstanceSettings, rng: Random
) -> Iterator[tuple[int, ...]]:
    bounds, size = documents.sentence_bounds(index), settings.max_num_tokens
    start, end = bounds[0], bounds[-1]
    stop = start + rng.randint(1, size)
    if end - start <= size:
        stop = end  # a short document stays whole
    while start < end:
        stop = min(stop, end)
        yield start, stop, stop, stop, 0
        start, stop = stop, stop + size


def _target_length(settings: InstanceSettings, rng: Random) -> int:
    if rng.random() < settings.short_seq_prob:
        return rng.randint(2, settings.max_num_tokens)
    return settings.max_num_tokens


def _chunk_end(bounds: list[int], first: int, target: int) -> int:
    """The sentence before which a chunk from ``first`` ends: at the target length, or with the document."""
    last = first + 1
    while last < len(bounds) - 1 and bounds[last] - bounds[first] < target:
        last += 1
    return last


def _random_segment(documents: Documents, index: int, target: int, rng: Random) -> tuple[int, int]:
    """The tokens from a random sentence of another document up to the target length or the document's end.

    There are ten tries for another document; after them, as in the original, the last one drawn is taken.
    """
    for _ in range(10):
        other = rng.randrange(len(documents))
        if other != index:
            break
    bounds = documents.sentence_bounds(other)
    start = rng.randrange(len(bounds) - 1)
    return bounds[start], bounds[_chunk_end(bounds, start, target)]


def _truncate_pair(
    a_start: int, a_stop: int, b_start: int, b_stop: int, room: int, rng: Random
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Shorten the longer segment (B, if they are equal), token by token, until both fit into ``room``."""
    a, b = a_stop - a_start, b_stop - b_start
    excess = max(0, a + b - room)
    uneven = min(excess, abs(a - b))  # taken from the longer one, until they are equal
    from_a = (uneven if a > b else 0) + (excess - uneven) // 2  # then from B and A in turn
    return _shorten(a_start, a_stop, from_a, rng), _shorten(b_start, b_stop, excess - from_a, rng)


def _shorten(start: int, stop: int, count: int, rng: Random) -> tuple[int, int]:
    """Drop ``count`` tokens, each at the front or at the back with probability ½."""
    front = rng.getrandbits(count).bit_count() if count else 0  # Binomial(count, ½)
    return start + front, stop - (count - front)
