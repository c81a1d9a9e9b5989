"""Batches: checked on the host, where a mistake can still be explained, before they go to the device."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from minibert.arrays import Array
from minibert.bert.config import BertConfig
from minibert.errors import UserError
from minibert.nn.targets import Targets, as_integers, as_numbers, check_range


@dataclass(frozen=True)
class EncoderInputs:
    """What the encoder reads: three (B, S) arrays of int32.

    ``inputs_embeds`` (B, S, H) replaces the word embeddings; ``input_ids`` is then None.
    """

    input_ids: Array | None
    token_type_ids: Array
    attention_mask: Array
    inputs_embeds: Array | None = None


@dataclass(frozen=True)
class PretrainingInputs(EncoderInputs):
    """A checked batch for pre-training; a head without labels has None for its targets.

    read (R,): the places b·S + s that the heads read, if that is all they need (``nn.places_read``).
    """

    masked_lm: Targets | None = None
    next_sentence: Targets | None = None
    read: Array | None = None


def encoder_inputs(
    config: BertConfig,
    input_ids: Any = None,
    token_type_ids: Any = None,
    attention_mask: Any = None,
    inputs_embeds: Any = None,
    dtype: str = "float32",
) -> EncoderInputs:
    """Check a batch. The token types default to 0 everywhere, the mask to 1.

    ``inputs_embeds`` may be given instead of ``input_ids``: a vector for each token, in ``dtype``. Raises
    UserError if shapes differ, an array does not hold integers, a sequence is longer than the model's
    positions, or an id is outside its table.
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
            raise UserError(f"{name} has shape {array.shape}; expected that of the input, {shape}")
    check_range("token_type_ids", types, config.type_vocab_size, "type_vocab_size")
    check_range("attention_mask", mask, 2, "the two values 0 and 1")
    return EncoderInputs(ids, types.astype(np.int32), mask.astype(np.int32), inputs_embeds)


def _sequence_shape(
    name: str, whole: tuple[int, ...], shape: tuple[int, ...], config: BertConfig
) -> tuple[int, int]:
    """The shape (B, S) of a batch. Raises UserError for any other, and for a sequence that is too long."""
    if len(shape) != 2 or 0 in shape:
        raise UserError(f"{name} has shape {whole}; expected (batch, sequence length), neither of them 0")
    if shape[1] > config.longest_sequence:
        raise UserError(
            f"the sequence is {shape[1]} tokens long but the model has only "
            f"{config.longest_sequence} positions; shorten the input or use a model with more"
        )
    return shape


def _embeddings(array: Any, config: BertConfig, dtype: str) -> np.ndarray:
    array, size = as_numbers("inputs_embeds", array, dtype), config.embedding_size
    if array.ndim != 3 or array.shape[2] != size:
        raise UserError(f"inputs_embeds has shape {array.shape}; expected (batch, sequence length, {size})")
    return array
