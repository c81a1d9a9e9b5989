"""Batches of features: rows of similar length together, padded to the longest of them."""

import heapq
import warnings
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from minibert.data.masking import IGNORED
from minibert.data.randomness import generator
from minibert.data.tasks.features import Feature, PairFeature
from minibert.errors import UserError

USUAL_BATCH, USUAL_PLACES = 32, 2048  # see `ordered_batches`

FeatureBatch = dict[str, Any]  # arrays by the names of the models' arguments; of pairs, two such batches


def collate(features: Sequence[Feature], pad_id: int) -> FeatureBatch:
    """One batch of B rows, padded to its longest row, S.

    (B, S) int32: input_ids, token_type_ids, attention_mask (0 on padding), labels of words (−100 on padding).
    (B,) int32: labels of texts (scores: float32), start_positions, end_positions.
    Features of a frozen encoder, if there are any: (B, S, …) with zeros on padding, or of whole texts (B, …).
    For pairs of texts, ``first`` and ``second`` are such batches themselves.
    """
    batch: FeatureBatch = {}
    for name, value in features[0].inputs.items():
        column = [feature.inputs[name] for feature in features]
        if isinstance(value, Feature):
            batch[name] = collate(column, pad_id)
        elif isinstance(value, np.ndarray):
            batch[name] = _padded(column, {"input_ids": pad_id, "labels": IGNORED}.get(name, 0))
        else:
            batch[name] = np.array(column, np.float32 if isinstance(value, float) else np.int32)
    if "input_ids" in batch:
        batch["attention_mask"] = _padded([np.ones(len(feature), np.int32) for feature in features], 0)
    return batch


def _padded(rows: Sequence[np.ndarray], value: int) -> np.ndarray:
    """(B, S, …): rows (S, …) of different lengths, filled up with ``value``."""
    first = rows[0]
    padded = np.full((len(rows), max(map(len, rows)), *first.shape[1:]), value, first.dtype)
    for row, values in zip(padded, rows, strict=True):
        row[: len(values)] = values
    return padded


def ordered_batches(
    features: Sequence[Feature], batch_size: int | None, pad_id: int
) -> Iterator[tuple[np.ndarray, FeatureBatch]]:
    """Every feature once, as (rows, batch): ``rows`` (B,) says which feature each row of the batch is.

    The longest come first, so if there is enough memory for the first batch, there is enough for all. Without
    a ``batch_size``, a batch has `USUAL_BATCH` features, or as many as have `USUAL_PLACES` tokens, if these
    are more: products of few rows are slow. Raises UserError for a batch size below 1.
    """
    if batch_size is not None and batch_size < 1:
        raise UserError(f"batch size must be at least 1, got {batch_size}")
    order = np.argsort([-len(feature) for feature in features], kind="stable")
    start = 0
    while start < len(order):
        size = batch_size or max(USUAL_BATCH, USUAL_PLACES // max(len(features[order[start]]), 1))
        rows = order[start : start + size]
        yield rows, collate([features[row] for row in rows], pad_id)
        start += size


class FeatureStream:
    """An endless stream of training batches: in every epoch all features once, in a new order.

    The features are shuffled, sorted by length within groups of ``bucket`` batches, and cut into batches,
    which are shuffled in turn; with ``bucket=1`` lengths do not matter. One batch of an epoch may be smaller
    than the others. The order is a pure function of (seed, epoch).
    """

    def __init__(
        self, features: Sequence[Feature], batch_size: int, pad_id: int, *, seed: int = 0, bucket: int = 50
    ) -> None:
        if not features:
            raise UserError("there is no example to train on; give more data")
        if batch_size < 1 or bucket < 1:
            raise UserError(f"batch size and bucket must be at least 1, got {batch_size} and {bucket}")
        self.features, self.batch_size, self.pad_id = features, batch_size, pad_id
        self.seed, self.bucket = seed, bucket
        self._lengths = np.array([len(feature) for feature in features])
        self.restore({"epoch": 0, "batch": 0})

    @property
    def batches_per_epoch(self) -> int:
        """How many batches it takes to hold all features."""
        return -(-len(self.features) // self.batch_size)

    def state(self) -> dict[str, int]:
        """The position of the stream, as JSON: the epoch, and the batch in it."""
        return {"epoch": self._epoch, "batch": self._batch}

    def restore(self, state: dict[str, Any]) -> None:
        """Go to the position of a stream with the same arguments; the batches from there are bit-identical.

        Raises UserError if the features have no such position.
        """
        self._epoch, self._batch = state["epoch"], state["batch"]
        self._plan = self._plan_epoch()
        if self._batch >= len(self._plan):
            raise UserError(f"the saved position {state} lies beyond these examples: the data has changed")

    def __iter__(self) -> Iterator[FeatureBatch]:
        return self

    def __next__(self) -> FeatureBatch:
        batch = collate([self.features[row] for row in self._plan[self._batch]], self.pad_id)
        self.skip()
        return batch

    def skip(self) -> None:
        """Go on to the batch after the next, as if that had been taken."""
        self._batch += 1
        if self._batch == len(self._plan):
            self._epoch, self._batch = self._epoch + 1, 0
            self._plan = self._plan_epoch()

    def _plan_epoch(self) -> list[np.ndarray]:
        """The features (indices) of each batch."""
        rng = generator("task examples", self.seed, self._epoch)
        order = rng.permutation(len(self.features))
        size = self.bucket * self.batch_size
        if self.bucket > 1:
            buckets = (order[start : start + size] for start in range(0, len(order), size))
            order = np.concatenate(
                [bucket[np.argsort(self._lengths[bucket], kind="stable")] for bucket in buckets]
            )
        batches = np.split(order, range(self.batch_size, len(order), self.batch_size))
        return [batches[i] for i in rng.permutation(len(batches))]


class DistinctPairs(FeatureStream):
    """A stream of pairs in which no two pairs of a batch have a text in common.

    Where each text has to find its partner in the batch, a second pair with the same passage would count as
    a wrong answer. Only pairs that share a text themselves are kept apart. In every epoch they are dealt out
    one by one, in random order: each goes to the smallest batch that holds neither of its texts. Those with
    the most frequent texts go first, because they have the least choice. There are at least as many batches
    as there are pairs with the most frequent text; all are about equally large. Lengths do not matter.

    Raises UserError if no batch can hold two pairs. Warns if the batches are less than half as large as they
    were meant to be.
    """

    features: Sequence[PairFeature]

    def __init__(
        self, features: Sequence[PairFeature], batch_size: int, pad_id: int, *, seed: int = 0
    ) -> None:
        super().__init__(features, batch_size, pad_id, seed=seed)
        self._first_epoch = len(self._plan)
        if self._first_epoch == len(features):
            raise UserError(
                f"no batch of {batch_size} can hold two of these {len(features)} pairs, because it is too "
                "small or because they have texts in common; so there are no wrong answers to learn from"
            )
        mean, wanted = len(features) / self._first_epoch, min(batch_size, len(features))
        if mean < wanted / 2:
            warnings.warn(
                f"a batch holds {mean:.1f} pairs on average instead of {wanted}, because pairs with the same "
                f"text are kept apart and one text occurs in {self._frequency.max():,} of the "
                f"{len(features):,} pairs; leave some of these out, or ask for a smaller batch size",
                stacklevel=2,
            )

    @property
    def batches_per_epoch(self) -> int:
        """How many batches hold all pairs in the first epoch; later ones may need a few more or fewer."""
        return self._first_epoch

    @cached_property
    def _texts(self) -> np.ndarray:
        """The numbers of the two texts of each pair, (N, 2): equal texts have equal numbers."""
        names = [
            pair.inputs[side].inputs["input_ids"].tobytes()
            for pair in self.features
            for side in ("first", "second")
        ]
        numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
        return np.array([numbers[name] for name in names]).reshape(-1, 2)

    @cached_property
    def _frequency(self) -> np.ndarray:
        """In how many pairs each text occurs, (texts,)."""
        first, second = self._texts.T
        return np.bincount(np.concatenate([first, second[second != first]]), minlength=self._texts.max() + 1)

    def _plan_epoch(self) -> list[np.ndarray]:
        rng = generator("task examples", self.seed, self._epoch)
        more_frequent = self._frequency[self._texts].argmax(axis=1)
        text = np.take_along_axis(self._texts, more_frequent[:, None], axis=1)[:, 0]  # (N,)
        order, rank = rng.permutation(len(text)), rng.permutation(len(self._frequency))
        text = text[order]
        order = order[np.lexsort((rank[text], -self._frequency[text]))]  # pairs with one text come together
        least = max(-(-len(order) // self.batch_size), self._frequency.max())
        batches = _deal(self._texts, order, least, self.batch_size)
        return [batches[i] for i in rng.permutation(len(batches))]


def _deal(texts: np.ndarray, order: np.ndarray, count: int, batch_size: int) -> list[np.ndarray]:
    """Deal out pairs (N, 2) in an ``order`` (N,), each to the smallest batch that holds neither of its texts.

    There are ``count`` batches, and more if a pair fits into none of them. Returns the pairs of each batch.
    """
    batches: list[list[int]] = [[] for _ in range(count)]
    held: list[set[int]] = [set() for _ in range(count)]  # the texts of each batch
    queue = [(0, 0, batch) for batch in range(count)]  # a heap: size, turn of the last look, number
    for turn, (pair, both) in enumerate(zip(order.tolist(), texts[order].tolist(), strict=True), start=1):
        looked_at = []
        while queue and not held[queue[0][-1]].isdisjoint(both):
            looked_at.append(heapq.heappop(queue)[-1])
        if queue:
            batch = heapq.heappop(queue)[-1]
        else:
            batch = len(batches)
            batches.append([])
            held.append(set())
        batches[batch].append(pair)
        held[batch].update(both)
        looked_at.append(batch)
        for number in looked_at:  # after others of their size, so that the next pair finds those first
            if len(batches[number]) < batch_size:
                heapq.heappush(queue, (len(batches[number]), turn, number))
    return [np.array(batch) for batch in batches]
