"""Batches for fine-tuning: their targets, checked on the host like the inputs of the encoder."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from minibert.arrays import Array, is_array, to_numpy
from minibert.bert.config import BertConfig
from minibert.bert.inputs import EncoderInputs, encoder_inputs
from minibert.errors import UserError
from minibert.nn.targets import (
    IGNORED,
    Targets,
    as_column,
    as_integers,
    as_numbers,
    class_labels,
    flat_targets,
)


@dataclass(frozen=True)
class NumberTargets:
    """The correct ``numbers``, and the denominator of the sum of their squared errors, a 0-d array."""

    numbers: Array
    denominator: Array


@dataclass(frozen=True)
class SpanTargets:
    """Where answers start and end, and the weight of each position: both arrays are (2, B)."""

    positions: Array
    weights: Array


@dataclass(frozen=True)
class TaskInputs(EncoderInputs):
    """A checked batch for a fine-tuned model; without labels there are no targets.

    ``features`` are the encoder's hidden states for this batch, if they have been computed before.
    """

    targets: Targets | NumberTargets | SpanTargets | None = None
    features: Array | None = None


@dataclass(frozen=True)
class PairInputs:
    """The first and the second text of each pair, and how similar they should be (N,), if that is known."""

    first: EncoderInputs
    second: EncoderInputs
    labels: Array | None
    denominator: Array  # of the loss, a 0-d array


def text_inputs(config: BertConfig, **batch: Any) -> EncoderInputs:
    """A checked batch of texts that each get a vector. Raises UserError for a row that is only padding."""
    inputs = encoder_inputs(config, **batch)
    check_no_empty_row(inputs.attention_mask)
    return inputs


def check_no_empty_row(attention_mask: np.ndarray) -> None:
    """Raise UserError if a row of the mask is all padding: the mean of its vectors would be 0/0."""
    empty = np.flatnonzero(attention_mask.sum(axis=1) == 0)
    if len(empty):
        raise UserError(f"attention_mask is 0 throughout row {empty[0]}; an empty text has no vector")


def pair_inputs(
    config: BertConfig,
    first: Mapping[str, Any],
    second: Mapping[str, Any],
    labels: Any,
    denominator: float | None,
    dtype: str,
) -> PairInputs:
    """Two batches of texts that form N pairs, optionally with labels (N,); the denominator defaults to N.

    Raises UserError as `text_inputs` does, if the two batches have different sizes, and for labels that are
    no cosines.
    """
    one, other = (text_inputs(config, **side, dtype=dtype) for side in (first, second))
    count = len(one.attention_mask)
    if len(other.attention_mask) != count:
        raise UserError(f"{count} first texts but {len(other.attention_mask)} second texts; expected pairs")
    if labels is not None:
        labels = number_targets(labels, (count,), None, dtype).numbers
        beyond = labels[np.abs(labels) > 1.0]
        if len(beyond):
            raise UserError(f"labels of pairs are cosines, from −1 to 1; got {beyond[0]}")
    return PairInputs(one, other, labels, np.asarray(denominator or count, dtype))


def tag_targets(labels: Any, shape: tuple[int, int], num_tags: int, dtype: str) -> Targets:
    """The tags of a batch for a CRF, which sees only the labelled tokens, as if they were adjacent.

    labels (B, S) is −100 at all other tokens. Positions, labels and weights are (B, W), with W the largest
    number of labelled tokens in a sequence; the weight is 0 after a sequence's last one. The denominator is
    the number of sequences with labelled tokens. Raises UserError as ``class_targets`` does.
    """
    labels = class_labels("labels", labels, shape, num_tags)
    positions, inside = words_first(labels != IGNORED)
    tags = np.where(inside, labels.reshape(-1)[positions], 0)
    return flat_targets(dtype, positions, tags, inside).divided_by(inside[:, 0].sum())


def computed_earlier(name: str, values: Any, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """What a model computed earlier, such as features. Raises UserError if it does not have this shape."""
    values = as_numbers(name, values, dtype)
    if values.shape != shape:
        raise UserError(f"{name} has shape {values.shape}; expected {shape}")
    return values


def count_spans(starts: np.ndarray, ends: np.ndarray, length: int) -> np.ndarray:
    """How many starts and how many ends of a batch count: (2,)."""
    return np.array([(starts < length).sum(), (ends < length).sum()])


def words_first(chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where the chosen tokens of each sequence are, and which of these positions are real, not filling.

    chosen (B, S), booleans → flat positions b·S + s and booleans, both (B, W), with W at least 1.
    """
    width = max(1, int(chosen.sum(axis=1).max()))
    columns = np.argsort(~chosen, axis=1, kind="stable")[:, :width]  # the chosen ones first, in their order
    positions = np.arange(len(chosen))[:, None] * chosen.shape[1] + columns
    return positions, np.take_along_axis(chosen, columns, axis=1)


def words_back(
    values: np.ndarray, positions: np.ndarray, inside: np.ndarray, shape: tuple[int, int]
) -> np.ndarray:
    """The inverse of ``words_first``: values (B, W) back at their tokens (B, S), −100 at all others."""
    tokens = np.full(shape, IGNORED)
    tokens.reshape(-1)[positions[inside]] = values[inside]
    return tokens


def tokens_chosen(chosen: Any, shape: tuple[int, int]) -> np.ndarray:
    """Which tokens are chosen, as booleans (B, S). Raises UserError for another shape or type."""
    chosen = as_integers("chosen", chosen)
    if chosen.shape != shape:
        raise UserError(f"chosen has shape {chosen.shape}; expected that of the tokens, {shape}")
    return chosen.astype(bool)


def span_targets(
    starts: Any, ends: Any, shape: tuple[int, int], denominators: Any, dtype: str
) -> SpanTargets:
    """Where answers start and end, as ``ops.span_loss`` takes it.

    A position after the last token is ignored, as in transformers. A weight is 1/denominator. The denominator
    defaults to the number of starts (or ends) that count; ``denominators`` may be one number for both, or one
    for each. Raises UserError if there is not one position per sequence, or if one is negative (transformers
    would take it as the first token).
    """
    batch_size, length = shape
    both = []
    for name, given in (("start_positions", starts), ("end_positions", ends)):
        given = as_column(as_integers(name, given), (batch_size,))
        if given.shape != (batch_size,):
            raise UserError(f"{name} has shape {given.shape}; expected ({batch_size},)")
        if given.min() < 0:
            raise UserError(f"{name} contains {given.min()}; expected 0 or more ({length} or more: ignored)")
        both.append(given)
    positions = np.stack(both)  # (2, B)
    counted = positions < length
    counts = counted.sum(axis=1) if denominators is None else np.asarray(denominators)
    weights = counted / np.where(counts == 0, 1, counts).reshape(-1, 1)
    return SpanTargets(np.where(counted, positions, 0), weights.astype(dtype))


def number_targets(
    labels: Any, shape: tuple[int, ...], denominator: float | None, dtype: str
) -> NumberTargets:
    """The numbers, of this shape, that a regression has to predict; for (B, 1) they may be (B,).

    The denominator defaults to how many there are. Raises UserError for another shape, and for anything that
    is not a finite number.
    """
    try:
        labels = np.asarray(to_numpy(labels) if is_array(labels) else labels, dtype=np.float64)
    except (TypeError, ValueError):
        raise UserError("labels of a regression must be numbers") from None
    if (*labels.shape, 1) == shape:
        labels = labels[:, None]
    if labels.shape != shape:
        raise UserError(f"labels has shape {labels.shape}; expected {shape}, a number for each output")
    with np.errstate(over="ignore"):
        numbers = labels.astype(dtype)
    if not np.isfinite(numbers).all():
        raise UserError(f"labels of a regression must be finite numbers of type {dtype}")
    return NumberTargets(numbers, np.asarray(denominator or labels.size, dtype))
