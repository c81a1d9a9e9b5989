"""Labels, checked on the host, and the targets that a loss reads."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from minibert.arrays import Array, is_array, to_numpy
from minibert.errors import UserError

IGNORED = -100  # a label that does not count


@dataclass(frozen=True)
class Targets:
    """The rows to predict and their correct labels; positions, labels and weights (N,), for a CRF (B, W).

    ``positions`` are flat row numbers. A row with weight 0 does not count. The loss is a sum over the rows,
    divided by ``denominator``, a 0-d array. By default that is the number of rows that count, but at least 1.
    """

    positions: Array
    labels: Array
    weights: Array
    denominator: Array

    def divided_by(self, denominator: float | None, epsilon: float = 0.0) -> "Targets":
        """The same targets with this denominator, if one is given (1 instead of 0), plus ``epsilon``."""
        chosen = self.denominator if denominator is None else denominator or 1
        return replace(self, denominator=np.asarray(chosen + epsilon, self.denominator.dtype))


def class_targets(name: str, labels: Any, shape: tuple[int, ...], num_classes: int, dtype: str) -> Targets:
    """Targets with one row per label. Each label is a class, or −100 to be ignored.

    One label per sequence may also be given as a column. Raises UserError if the labels do not have this
    shape, or one is not a class.
    """
    labels = class_labels(name, labels, shape, num_classes).reshape(-1)
    counted = labels != IGNORED
    return flat_targets(dtype, np.arange(len(labels)), np.where(counted, labels, 0), counted)


def masked_lm_targets(
    labels: Any, shape: tuple[int, int], vocab_size: int, dtype: str, rows: int | None = None
) -> Targets:
    """The N labelled positions of a batch, as flat arrays.

    labels (B, S) is −100 wherever nothing is predicted. N is the number of other labels, but at least 1. If
    ``rows`` is given, N is ``rows``, since a captured step cannot change its shapes. The rows that are then
    missing have position 0 and weight 0. Raises UserError if the shape is not that of the input, a label is
    outside the vocabulary, or there are more labels than ``rows``.
    """
    labels = as_integers("labels", labels)
    if labels.shape != shape:
        raise UserError(f"labels has shape {labels.shape}; expected that of the input, {shape}")
    chosen = labels != IGNORED  # (B, S)
    check_range("labels", labels[chosen], vocab_size, "vocab_size, or −100 for ignored")
    count = int(chosen.sum())
    if rows is not None and count > rows:
        raise UserError(f"labels has {count} positions to predict; expected at most {rows}")
    missing = max(count, 1) - count if rows is None else rows - count
    positions = np.pad(np.flatnonzero(chosen), (0, missing))  # b·S + s
    real = np.arange(len(positions)) < count
    return flat_targets(dtype, positions, np.where(real, labels.reshape(-1)[positions], 0), real)


def count_labels(labels: Any) -> int:
    """How many labels of a batch count."""
    return int((on_host("labels", labels) != IGNORED).sum())


def count_tokens(batch: Mapping[str, Any]) -> int:
    """The number of tokens in a batch and in the batches inside it; padding does not count.

    A batch without an ``attention_mask`` has no padding.
    """
    inner = sum(count_tokens(part) for part in batch.values() if isinstance(part, Mapping))
    if batch.get("attention_mask") is not None:
        return inner + int(np.sum(batch["attention_mask"]))
    return inner + (np.size(batch["input_ids"]) if "input_ids" in batch else 0)


def class_labels(name: str, labels: Any, shape: tuple[int, ...], num_classes: int) -> np.ndarray:
    """Integer labels of this shape, each a class or −100. Raises UserError for anything else."""
    labels = as_column(as_integers(name, labels), shape)
    if labels.shape != shape:
        raise UserError(f"{name} has shape {labels.shape}; expected {shape}")
    check_range(name, labels[labels != IGNORED], num_classes, "the classes, or −100 for ignored")
    return labels


def as_column(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """A column (B, 1) as (B,) if ``shape`` is (B,); anything else unchanged."""
    return array[:, 0] if len(shape) == 1 and array.shape == (*shape, 1) else array


def flat_targets(dtype: str, positions: np.ndarray, labels: np.ndarray, real: np.ndarray) -> Targets:
    """Targets that count where ``real``; the denominator is the number of those, but at least 1."""
    return Targets(
        positions=positions.astype(np.int32),
        labels=labels.astype(np.int32),
        weights=real.astype(dtype),
        denominator=np.asarray(real.sum() or 1, dtype),
    )


def as_integers(name: str, array: Any) -> np.ndarray:
    """An array or nested list as int64 on the host. Raises UserError if it does not hold integers."""
    array = on_host(name, array)
    if array.size and array.dtype.kind not in "iub":  # an empty list has no dtype of its own
        raise UserError(f"{name} has dtype {array.dtype}; expected integers")
    return array.astype(np.int64)


def as_numbers(name: str, array: Any, dtype: str) -> np.ndarray:
    """An array or nested list in this type on the host. Raises UserError if it does not hold numbers."""
    array = on_host(name, array)
    try:
        return array.astype(dtype, copy=False)
    except (TypeError, ValueError):
        raise UserError(f"{name} has dtype {array.dtype}; expected numbers") from None


def on_host(name: str, array: Any) -> np.ndarray:
    """An array, a nested list or what else NumPy reads (a pandas column), as an array on the host.

    Raises UserError for lists of unequal length.
    """
    try:
        return to_numpy(array) if is_array(array) else np.asarray(array)
    except ValueError:
        raise UserError(f"{name} is a list of lists of unequal length; pad them to one length") from None


def check_range(name: str, array: np.ndarray, stop: int, what: str) -> None:
    """Raise UserError if a number is not in [0, stop); ``what`` says where that limit comes from."""
    if array.size and not 0 <= int(array.min()) <= int(array.max()) < stop:
        worst = array.min() if array.min() < 0 else array.max()
        raise UserError(f"{name} contains {worst}; expected 0 to {stop - 1} ({what})")
