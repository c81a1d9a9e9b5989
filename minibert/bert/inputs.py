"""Batches: checked on the host, where a mistake can still be explained, then sent to the device."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from minibert.arrays import Array, Device, to_numpy
from minibert.bert.config import BertConfig
from minibert.errors import UserError

IGNORED = -100  # a label that does not count


@dataclass(frozen=True)
class EncoderInputs:
    """What the encoder reads: three (B, S) arrays of int32."""

    input_ids: Array
    token_type_ids: Array
    attention_mask: Array


@dataclass(frozen=True)
class Targets:
    """Which rows are predicted and what is right there; positions, labels and weights (N,).

    ``positions`` are flat row numbers. A row with weight 0 counts for nothing. The sum of the others is
    divided by the ``denominator``, a 0-d array; it starts as their number, or 1 if there is none.
    """

    positions: Array
    labels: Array
    weights: Array
    denominator: Array


@dataclass(frozen=True)
class PretrainingInputs:
    """A whole batch that has been checked; a head without labels has None for its targets."""

    encoder: EncoderInputs
    masked_lm: Targets | None
    next_sentence: Targets | None


def encoder_inputs(
    config: BertConfig, device: Device, input_ids: Any, token_type_ids: Any = None, attention_mask: Any = None
) -> EncoderInputs:
    """Check a batch and move it to the device; no token types means 0, no mask means 1 everywhere.

    Raises UserError if shapes differ, an array is not of integers, a sequence is longer than the
    model's positions, or an id is outside its table.
    """
    ids = _integers("input_ids", input_ids)
    if ids.ndim != 2 or 0 in ids.shape:
        raise UserError(
            f"input_ids has shape {ids.shape}; expected (batch, sequence length), neither of them 0"
        )
    if ids.shape[1] > config.max_position_embeddings:
        raise UserError(
            f"the sequence is {ids.shape[1]} tokens long but the model has only "
            f"{config.max_position_embeddings} positions; shorten the input or use a model with more"
        )
    types = np.zeros_like(ids) if token_type_ids is None else _integers("token_type_ids", token_type_ids)
    mask = np.ones_like(ids) if attention_mask is None else _integers("attention_mask", attention_mask)
    for name, array in (("token_type_ids", types), ("attention_mask", mask)):
        if array.shape != ids.shape:
            raise UserError(f"{name} has shape {array.shape}; expected that of input_ids, {ids.shape}")
    _check_range("input_ids", ids, config.vocab_size, "vocab_size")
    _check_range("token_type_ids", types, config.type_vocab_size, "type_vocab_size")
    _check_range("attention_mask", mask, 2, "the two values 0 and 1")
    return EncoderInputs(*(device.asarray(array, dtype="int32") for array in (ids, types, mask)))


def masked_lm_targets(
    config: BertConfig,
    device: Device,
    dtype: str,
    labels: Any,
    shape: tuple[int, int],
    rows: int | None = None,
) -> Targets:
    """The N labelled positions of a batch, as flat arrays.

    labels (B, S) holds −100 wherever nothing is predicted. N is their number, but at least 1; or always
    ``rows``: a captured step cannot change its shapes. Position 0 with weight 0 stands in for what is
    missing. Raises UserError if the shape is not that of the input, a label is outside the vocabulary, or
    there are more than ``rows``.
    """
    labels = _integers("labels", labels)
    if labels.shape != shape:
        raise UserError(f"labels has shape {labels.shape}; expected that of input_ids, {shape}")
    chosen = labels != IGNORED  # (B, S)
    _check_range("labels", labels[chosen], config.vocab_size, "vocab_size, or −100 for ignored")
    count = int(chosen.sum())
    if rows is not None and count > rows:
        raise UserError(f"labels has {count} positions to predict; expected at most {rows}")
    missing = max(count, 1) - count if rows is None else rows - count
    positions = np.pad(np.flatnonzero(chosen), (0, missing))  # b·S + s
    real = np.arange(len(positions)) < count
    return _targets(device, dtype, positions, np.where(real, labels.reshape(-1)[positions], 0), real)


def next_sentence_targets(device: Device, dtype: str, labels: Any, batch_size: int) -> Targets:
    """The next-sentence labels (B,) as targets: one a sequence, 0 = really next, 1 = random, −100 = ignored.

    Raises UserError if there is not one label a sequence, or a label is something else.
    """
    labels = _integers("next_sentence_label", labels)
    if labels.size != batch_size:
        raise UserError(f"next_sentence_label has shape {labels.shape}; expected ({batch_size},)")
    labels = labels.reshape(-1)
    counted = labels != IGNORED
    _check_range("next_sentence_label", labels[counted], 2, "the two classes 0 and 1, or −100 for ignored")
    return _targets(device, dtype, np.arange(batch_size), np.where(counted, labels, 0), counted)


def _targets(
    device: Device, dtype: str, positions: np.ndarray, labels: np.ndarray, real: np.ndarray
) -> Targets:
    return Targets(
        positions=device.asarray(positions, dtype="int32"),
        labels=device.asarray(labels, dtype="int32"),
        weights=device.asarray(real, dtype=dtype),
        denominator=device.asarray(real.sum() or 1, dtype=dtype),
    )


def _integers(name: str, array: Any) -> np.ndarray:
    try:
        array = to_numpy(array) if hasattr(array, "dtype") else np.asarray(array)
    except ValueError:
        raise UserError(f"{name} is a list of lists of unequal length; pad them to one length") from None
    if array.size and array.dtype.kind not in "iub":  # an empty list has no dtype of its own
        raise UserError(f"{name} has dtype {array.dtype}; expected integers")
    return array.astype(np.int64)


def _check_range(name: str, array: np.ndarray, stop: int, what: str) -> None:
    if array.size and not 0 <= int(array.min()) <= int(array.max()) < stop:
        worst = array.min() if array.min() < 0 else array.max()
        raise UserError(f"{name} contains {worst}; expected 0 to {stop - 1} ({what})")
