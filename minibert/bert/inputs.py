"""Batches: checked on the host, where a mistake can still be explained, before they go to the device."""

from collections.abc import Mapping
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
class NumberTargets:
    """The right ``numbers``, and what the sum of their squared errors is divided by, a 0-d array."""

    numbers: Array
    denominator: Array


@dataclass(frozen=True)
class SpanTargets:
    """Where answers begin and end, and what each counts for: positions and weights (2, B)."""

    positions: Array
    weights: Array


@dataclass(frozen=True)
class PretrainingInputs(EncoderInputs):
    """A checked batch for pre-training; a head without labels has None for its targets."""

    masked_lm: Targets | None = None
    next_sentence: Targets | None = None


@dataclass(frozen=True)
class TaskInputs(EncoderInputs):
    """A checked batch for a fine-tuned model; without labels there are no targets.

    ``features`` are the encoder's hidden states for this batch, if they have been computed before.
    """

    targets: Targets | NumberTargets | SpanTargets | None = None
    features: Array | None = None


@dataclass(frozen=True)
class PairInputs:
    """The first and the second text of each pair, and how alike they should be (N,), if that is known."""

    first: EncoderInputs
    second: EncoderInputs
    labels: Array | None
    denominator: Array  # of the loss, a 0-d array


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
        ids = _integers("input_ids", input_ids)
        shape = _sequence_shape("input_ids", ids.shape, ids.shape, config)
        _check_range("input_ids", ids, config.vocab_size, "vocab_size")
        ids = ids.astype(np.int32)
    else:
        ids, inputs_embeds = None, _embeddings(inputs_embeds, config, dtype)
        shape = _sequence_shape("inputs_embeds", inputs_embeds.shape, inputs_embeds.shape[:-1], config)
    types = np.zeros(shape) if token_type_ids is None else _integers("token_type_ids", token_type_ids)
    mask = np.ones(shape) if attention_mask is None else _integers("attention_mask", attention_mask)
    for name, array in (("token_type_ids", types), ("attention_mask", mask)):
        if array.shape != shape:
            raise UserError(f"{name} has shape {array.shape}; expected that of input_ids, {shape}")
    _check_range("token_type_ids", types, config.type_vocab_size, "type_vocab_size")
    _check_range("attention_mask", mask, 2, "the two values 0 and 1")
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


def text_inputs(config: BertConfig, **batch: Any) -> EncoderInputs:
    """A checked batch of texts that each get a vector: a row that is nothing but padding is a UserError."""
    inputs = encoder_inputs(config, **batch)
    check_no_empty_row(inputs.attention_mask)
    return inputs


def check_no_empty_row(attention_mask: np.ndarray) -> None:
    """Raise UserError if a row of the mask is all padding: the mean of its vectors would be 0/0."""
    empty = np.flatnonzero(attention_mask.sum(axis=1) == 0)
    if len(empty):
        raise UserError(f"attention_mask is 0 all along row {empty[0]}; an empty text has no vector")


def pair_inputs(
    config: BertConfig,
    first: Mapping[str, Any],
    second: Mapping[str, Any],
    labels: Any,
    denominator: float | None,
    dtype: str,
) -> PairInputs:
    """Two batches of texts that make N pairs, perhaps with labels (N,); the denominator defaults to N.

    Raises UserError as `text_inputs`, and if they are no pairs.
    """
    first, second = (text_inputs(config, **side, dtype=dtype) for side in (first, second))
    count = len(first.input_ids)
    if len(second.input_ids) != count:
        raise UserError(f"{count} first and {len(second.input_ids)} second texts; expected pairs")
    if labels is not None:
        labels = number_targets(labels, (count,), None, dtype).numbers
    return PairInputs(first, second, labels, np.asarray(denominator or count, dtype))


def masked_lm_targets(
    config: BertConfig, dtype: str, labels: Any, shape: tuple[int, int], rows: int | None = None
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
    return _targets(dtype, positions, np.where(real, labels.reshape(-1)[positions], 0), real)


def class_targets(name: str, labels: Any, shape: tuple[int, ...], num_classes: int, dtype: str) -> Targets:
    """Labels of a shape, each a class or −100 for ignored, as one row each. One a sequence may be a column.

    Raises UserError if the shape is another or a label is no class.
    """
    labels = _class_labels(name, labels, shape, num_classes).reshape(-1)
    counted = labels != IGNORED
    return _targets(dtype, np.arange(len(labels)), np.where(counted, labels, 0), counted)


def tag_targets(labels: Any, shape: tuple[int, int], num_tags: int, dtype: str) -> Targets:
    """The tags of a batch for a CRF, which sees the labelled tokens only, as if they stood side by side.

    labels (B, S) holds −100 at all other tokens. Positions, labels and weights are (B, W), W the largest
    number of labelled tokens in a sequence, with weight 0 behind the last one; the denominator is the number
    of sequences with any. Raises UserError as ``class_targets``.
    """
    labels = _class_labels("labels", labels, shape, num_tags)
    positions, inside = words_first(labels != IGNORED)
    tags = np.where(inside, labels.reshape(-1)[positions], 0)
    return _targets(dtype, positions, tags, inside).divided_by(inside[:, 0].sum())


def given_features(features: Any, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """What an encoder has made of a batch before. Raises UserError if it is not of this shape."""
    features = np.asarray(to_numpy(features) if hasattr(features, "dtype") else features)
    if features.shape != shape:
        raise UserError(f"features has shape {features.shape}; expected {shape}")
    return features.astype(dtype, copy=False)


def count_labels(labels: np.ndarray) -> int:
    """How many labels of a batch count."""
    return int((labels != IGNORED).sum())


def count_spans(starts: np.ndarray, ends: np.ndarray, length: int) -> np.ndarray:
    """How many starts and how many ends of a batch count: (2,)."""
    return np.array([(starts < length).sum(), (ends < length).sum()])


def words_first(chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where the chosen tokens of each sequence are, and which of these places are really theirs.

    chosen (B, S) of truth values → flat positions b·S + s and truth values, both (B, W), W at least 1.
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
    """Which tokens are meant, (B, S) of truth values. Raises UserError for another shape or type."""
    chosen = _integers("chosen", chosen)
    if chosen.shape != shape:
        raise UserError(f"chosen has shape {chosen.shape}; expected that of the tokens, {shape}")
    return chosen.astype(bool)


def span_targets(
    starts: Any, ends: Any, shape: tuple[int, int], denominators: Any, dtype: str
) -> SpanTargets:
    """Where answers begin and end, as ``ops.span_loss`` wants it.

    A position behind the last token is ignored; transformers does so too. A weight is 1/denominator, which
    defaults to the number of starts (of ends) that count; given are one for both, or one for each. Raises
    UserError if there is not one position a sequence, or if one is negative (transformers would take it for
    the first token).
    """
    batch_size, length = shape
    positions = []
    for name, given in (("start_positions", starts), ("end_positions", ends)):
        given = _column(_integers(name, given), (batch_size,))
        if given.shape != (batch_size,):
            raise UserError(f"{name} has shape {given.shape}; expected ({batch_size},)")
        if given.min() < 0:
            raise UserError(f"{name} contains {given.min()}; expected 0 or more ({length} or more: ignored)")
        positions.append(given)
    positions = np.stack(positions)  # (2, B)
    counted = positions < length
    counts = counted.sum(axis=1) if denominators is None else np.asarray(denominators)
    weights = counted / np.where(counts == 0, 1, counts).reshape(-1, 1)
    return SpanTargets(np.where(counted, positions, 0), weights.astype(dtype))


def number_targets(
    labels: Any, shape: tuple[int, ...], denominator: float | None, dtype: str
) -> NumberTargets:
    """The numbers of this shape that a regression has to give; for (B, 1) they may be (B,).

    The denominator defaults to how many there are. Raises UserError if the shape is another or something is
    not a finite number.
    """
    try:
        labels = np.asarray(to_numpy(labels) if hasattr(labels, "dtype") else labels, dtype=np.float64)
    except (TypeError, ValueError):
        raise UserError("labels of a regression must be numbers") from None
    if (*labels.shape, 1) == shape:
        labels = labels[:, None]
    if labels.shape != shape:
        raise UserError(f"labels has shape {labels.shape}; expected {shape}, a number for each output")
    if not np.isfinite(labels).all():
        raise UserError("labels of a regression contains a number that is not finite")
    return NumberTargets(labels.astype(dtype), np.asarray(denominator or labels.size, dtype))


def _class_labels(name: str, labels: Any, shape: tuple[int, ...], num_classes: int) -> np.ndarray:
    labels = _column(_integers(name, labels), shape)
    if labels.shape != shape:
        raise UserError(f"{name} has shape {labels.shape}; expected {shape}")
    _check_range(name, labels[labels != IGNORED], num_classes, "the classes, or −100 for ignored")
    return labels


def _column(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """A column (B, 1) as (B,) where that is the shape that is wanted; anything else as it is."""
    return array[:, 0] if array.shape == (*shape, 1) else array


def _targets(dtype: str, positions: np.ndarray, labels: np.ndarray, real: np.ndarray) -> Targets:
    return Targets(
        positions=positions.astype(np.int32),
        labels=labels.astype(np.int32),
        weights=real.astype(dtype),
        denominator=np.asarray(real.sum() or 1, dtype),
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
