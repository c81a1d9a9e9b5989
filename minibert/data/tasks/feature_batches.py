"""Batches of features: rows of similar length together, padded to the longest of them."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from minibert.data.batches import Batch
from minibert.data.masking import IGNORED
from minibert.data.randomness import generator
from minibert.data.tasks.features import Feature
from minibert.errors import UserError


def collate(features: Sequence[Feature], pad_id: int) -> Batch:
    """One batch of B rows, padded to its longest row, S.

    (B, S) int32: input_ids, token_type_ids, attention_mask (0 on padding), labels of words (−100 on padding).
    (B,) int32: labels of texts (scores: float32), start_positions, end_positions.
    Of pairs, ``first`` and ``second`` are a batch each.
    """
    lengths = np.array([len(feature) for feature in features])
    padding = {"input_ids": pad_id, "token_type_ids": 0, "labels": IGNORED}
    batch = {}
    if "input_ids" in features[0].inputs:
        batch["attention_mask"] = (np.arange(lengths.max()) < lengths[:, None]).astype(np.int32)
    for name, first in features[0].inputs.items():
        column = [feature.inputs[name] for feature in features]
        if isinstance(first, Feature):
            batch[name] = collate(column, pad_id)
        elif isinstance(first, np.ndarray):
            batch[name] = np.full((len(column), lengths.max()), padding[name], np.int32)
            for row, values in zip(batch[name], column, strict=True):
                row[: len(values)] = values
        else:
            batch[name] = np.array(column, np.float32 if isinstance(first, float) else np.int32)
    return batch


def ordered_batches(
    features: Sequence[Feature], batch_size: int, pad_id: int
) -> Iterator[tuple[np.ndarray, Batch]]:
    """Every feature once, as (rows, batch): ``rows`` (B,) tells which feature each row of the batch is.

    The longest come first, so that memory that suffices for the first batch suffices for all. Raises
    UserError for a batch size below 1.
    """
    if batch_size < 1:
        raise UserError(f"batch size must be at least 1, got {batch_size}")
    order = np.argsort([-len(feature) for feature in features], kind="stable")
    for start in range(0, len(order), batch_size):
        rows = order[start : start + batch_size]
        yield rows, collate([features[row] for row in rows], pad_id)


class FeatureStream:
    """An endless stream of training batches: every epoch all features once, in a new order.

    The features are shuffled, sorted by length among ``bucket`` batches of them at a time, and cut into
    batches, which are shuffled in turn; with ``bucket=1`` lengths do not matter. One batch of an epoch may be
    smaller than the others. The order is a pure function of (seed, epoch).
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
        """How many batches hold all features."""
        return -(-len(self.features) // self.batch_size)

    def state(self) -> dict[str, int]:
        """Where the stream stands: the epoch, and the batch in it (JSON can hold it)."""
        return {"epoch": self._epoch, "batch": self._batch}

    def restore(self, state: dict[str, Any]) -> None:
        """Go to where a stream with the same arguments stood; the batches from there are bit-identical.

        Raises UserError if the features have no such place.
        """
        self._epoch, self._batch = state["epoch"], state["batch"]
        if self._batch >= self.batches_per_epoch:
            raise UserError(f"the saved place {state} lies beyond these examples: the data has changed")
        self._plan = self._plan_epoch()

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        batch = collate([self.features[row] for row in self._plan[self._batch]], self.pad_id)
        self._batch += 1
        if self._batch == len(self._plan):
            self._epoch, self._batch = self._epoch + 1, 0
            self._plan = self._plan_epoch()
        return batch

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
