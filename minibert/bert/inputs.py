"""Batches: checked on the host, where a mistake can still be explained, before they go to the device."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from minibert.arrays import Array, to_numpy
from minibert.bert.config import BertConfig
from minibert.errors import UserError

IGNORED = -100  # a label that does not count


@dataclass(frozen=True)
class EncoderInputs:
    """What the encoder reads: three (B, S) arrays of int32.

    ``inputs_embeds`` (B, S, H) takes the place of the words' embeddings; ``input_ids`` is then None.
    """

    input_ids: Array | None
    token_type_ids: Array
    attention_mask: Array
    inputs_embeds: Array | None = None


@dataclass(frozen=True)
class Targets:
    """Which rows are predicted and what is right there; positions, labels and weights (N,), for a CRF (B, W).

    ``positions`` are flat row numbers. A row with weight 0 counts for nothing. The sum of the others is
    divided by the ``denominator``, a 0-d array; it starts as their number, or 1 if there is none.
    """

    positions: Array
    labels: Array
    weights: Array
    denominator: Array

    def divided_by(self, denominator: float | None) -> "Targets":
        """These targets with another denominator, if one is given (0 means: there are no targets)."""
        if denominator is None:
            return self
        return replace(self, denominator=np.asarray(denominator or 1, self.denominator.dtype))


@dataclass(frozen=True)
class PretrainingInputs(EncoderInputs):
    """A checked batch for pre-training; a head without labels has None for its targets."""

    masked_lm: Targets | None = None
    next_sentence: Targets | None = None


def encoder_inputs(
    config: BertConfig,
    input_ids: Any = None,
    token_type_ids: Any = None,
    attention_mask: Any = None,
    inputs_embeds: Any = None,
    dtype: str = "float32",
) -> EncoderInputs:
    """Check a batch; no token types means 0, no mask means 1 everywhere.

    ``inputs_embeds`` may be given instead of ``input_ids``: a vector for each token, in ``dtype``. Raises
    UserError if shapes differ, an array is not of integers, a sequence is longer than the model's positions,
    or an id is outside its table.
    """
    if (input_ids is None) == (inputs_embeds is None):
        raise UserError("give either input_ids or inputs_embeds")
    if inputs_embeds is None:
        ids = as_integers("input_ids", input_ids)
        shape = _sequence_shape("input_ids", ids.shape, ids.shape, config)
        check_range("input_ids", ids, config.vocab_size, "vocab_size")
        ids = ids.astype(np.int32)
    else:
        ids, inputs_embeds = None, _embeddings(inputs_embeds, config, dtype)
        shape = _sequence_shape("inputs_embeds", inputs_embeds.shape, inputs_embeds.shape[:-1], config)
    types = np.zeros(shape) if token_type_ids is None else as_integers("token_type_ids", token_type_ids)
    mask = np.ones(shape) if attention_mask is None else as_integers("attention_mask", attention_mask)
    for name, array in (("token_type_ids", types), ("attention_mask", mask)):
        if array.shape != shape:
            raise UserError(f"{name} has shape {array.shape}; expected that of input_ids, {shape}")
    check_range("token_type_ids", types, config.type_vocab_size, "type_vocab_size")
    check_range("attention_mask", mask, 2, "the two values 0 and 1")
    return EncoderInputs(ids, types.astype(np.int32), mask.astype(np.int32), inputs_embeds)


def _sequence_shape(
    name: str, whole: tuple[int, ...], shape: tuple[int, ...], config: BertConfig
) -> tuple[int, int]:
    """The shape (B, S) of a batch. Raises UserError for any other, and for a sequence that is too long."""
    if len(shape) != 2 or 0 in shape:
        raise UserError(f"{name} has shape {whole}; expected (batch, sequence length), neither of them 0")
    if shape[1] > config.max_position_embeddings:
        raise UserError(
            f"the sequence is {shape[1]} tokens long but the model has only "
            f"{config.max_position_embeddings} positions; shorten the input or use a model with more"
        )
    return shape


def _embeddings(array: Any, config: BertConfig, dtype: str) -> np.ndarray:
    array = np.asarray(to_numpy(array) if hasattr(array, "dtype") else array)
    if array.ndim != 3 or array.shape[2] != config.hidden_size:
        raise UserError(
            f"inputs_embeds has shape {array.shape}; expected (batch, sequence length, {config.hidden_size})"
        )
    return array.astype(dtype, copy=False)


def masked_lm_targets(
    config: BertConfig, dtype: str, labels: Any, shape: tuple[int, int], rows: int | None = None
) -> Targets:
    """The N labelled positions of a batch, as flat arrays.

    labels (B, S) holds −100 wherever nothing is predicted. N is their number, but at least 1; or always
    ``rows``: a captured step cannot change its shapes. Position 0 with weight 0 stands in for what is
    missing. Raises UserError if the shape is not that of the input, a label is outside the vocabulary, or
    there are more than ``rows``.
    """
    labels = as_integers("labels", labels)
    if labels.shape != shape:
        raise UserError(f"labels has shape {labels.shape}; expected that of input_ids, {shape}")
    chosen = labels != IGNORED  # (B, S)
    check_range("labels", labels[chosen], config.vocab_size, "vocab_size, or −100 for ignored")
    count = int(chosen.sum())
    if rows is not None and count > rows:
        raise UserError(f"labels has {count} positions to predict; expected at most {rows}")
    missing = max(count, 1) - count if rows is None else rows - count
    positions = np.pad(np.flatnonzero(chosen), (0, missing))  # b·S + s
    real = np.arange(len(positions)) < count
    return flat_targets(dtype, positions, np.where(real, labels.reshape(-1)[positions], 0), real)


def class_targets(name: str, labels: Any, shape: tuple[int, ...], num_classes: int, dtype: str) -> Targets:
    """Labels of a shape, each a class or −100 for ignored, as one row each. One a sequence may be a column.

    Raises UserError if the shape is another or a label is no class.
    """
    labels = class_labels(name, labels, shape, num_classes).reshape(-1)
    counted = labels != IGNORED
    return flat_targets(dtype, np.arange(len(labels)), np.where(counted, labels, 0), counted)


def count_labels(labels: np.ndarray) -> int:
    """How many labels of a batch count."""
    return int((labels != IGNORED).sum())


def class_labels(name: str, labels: Any, shape: tuple[int, ...], num_classes: int) -> np.ndarray:
    """Integer labels of a shape, each a class or −100. Raises UserError for anything else."""
    labels = as_column(as_integers(name, labels), shape)
    if labels.shape != shape:
        raise UserError(f"{name} has shape {labels.shape}; expected {shape}")
    check_range(name, labels[labels != IGNORED], num_classes, "the classes, or −100 for ignored")
    return labels


def as_column(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """A column (B, 1) as (B,) where that is the shape that is wanted; anything else as it is."""
    return array[:, 0] if array.shape == (*shape, 1) else array


def flat_targets(dtype: str, positions: np.ndarray, labels: np.ndarray, real: np.ndarray) -> Targets:
    """Targets that count where ``real``; their denominator is the number of these, or 1."""
    return Targets(
        positions=positions.astype(np.int32),
        labels=labels.astype(np.int32),
        weights=real.astype(dtype),
        denominator=np.asarray(real.sum() or 1, dtype),
    )


def as_integers(name: str, array: Any) -> np.ndarray:
    """An array or nested list as int64 on the host. Raises UserError if it is not of integers."""
    try:
        array = to_numpy(array) if hasattr(array, "dtype") else np.asarray(array)
    except ValueError:
        raise UserError(f"{name} is a list of lists of unequal length; pad them to one length") from None
    if array.size and array.dtype.kind not in "iub":  # an empty list has no dtype of its own
        raise UserError(f"{name} has dtype {array.dtype}; expected integers")
    return array.astype(np.int64)


def check_range(name: str, array: np.ndarray, stop: int, what: str) -> None:
    """Raise UserError if a number is not from 0 to ``stop`` − 1; ``what`` says where that limit is from."""
    if array.size and not 0 <= int(array.min()) <= int(array.max()) < stop:
        worst = array.min() if array.min() < 0 else array.max()
        raise UserError(f"{name} contains {worst}; expected 0 to {stop - 1} ({what})")
