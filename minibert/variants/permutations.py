"""Batches for XLNet, in which tokens do not see all others: checked, on the host.

``minibert.data.permutations`` draws the orders of tokens that such batches hold.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from minibert.arrays import Array
from minibert.bert.config import BertConfig
from minibert.bert.inputs import PretrainingInputs, encoder_inputs
from minibert.errors import UserError
from minibert.nn.targets import on_host


def hidden_tokens(hidden: np.ndarray, positions: np.ndarray) -> dict[str, np.ndarray]:
    """The arguments of ``forward`` with which the tokens at ``positions`` (B, P) are predicted.

    hidden (B, S), booleans: the tokens that nobody sees. → perm_mask (B, S, S), target_mapping (B, P, S).
    """
    perm_mask = np.repeat(hidden[:, None].astype(np.int8), hidden.shape[1], axis=1)
    mapping = positions[:, :, None] == np.arange(hidden.shape[1])
    return {"perm_mask": perm_mask, "target_mapping": mapping.astype(np.int8)}


@dataclass(frozen=True)
class PermutedInputs(PretrainingInputs):
    """A checked batch: ``perm_mask`` (B, S, S) and ``predicted`` (B, P), the position of each target."""

    perm_mask: Array | None = None
    predicted: Array | None = None


def permuted_inputs(
    config: BertConfig, perm_mask: Any = None, target_mapping: Any = None, **batch: Any
) -> PermutedInputs:
    """Check a batch. ``batch`` is what ``encoder_inputs`` takes; the other two are those of transformers.

    perm_mask (B, S, S) is 1 where token i must not see token j. The content of a token sees the token all the
    same. target_mapping (B, P, S) has a 1 in each row, at the token to predict; a row of zeros fills up, and
    what is computed for it means nothing. Raises UserError as ``encoder_inputs`` does, for other shapes or
    numbers, if a row or a token has more than one 1, and if a target is left with no token to see.
    """
    inputs = encoder_inputs(config, **batch)
    size, length = inputs.attention_mask.shape
    hidden = np.zeros((1, 1, length), np.int8)
    if perm_mask is not None:
        perm_mask = hidden = _zeros_and_ones("perm_mask", perm_mask, (size, length, length))
    predicted = None
    if target_mapping is not None:
        mapping = _zeros_and_ones("target_mapping", target_mapping, (size, None, length))
        if mapping.shape[1] == 0:
            raise UserError("target_mapping has no rows; leave it out if nothing is predicted")
        if max(mapping.sum(axis=axis).max() for axis in (1, 2)) > 1:
            raise UserError("target_mapping must have at most one 1 in each row, and at most one per token")
        predicted = mapping.argmax(axis=2).astype(np.int32)  # (B, P)
        seen = (inputs.attention_mask[:, None] == 1) & (hidden == 0)  # (B, S, S), or (B, 1, S)
        sees = np.broadcast_to(seen.any(axis=2), (size, length))
        blind = mapping.any(axis=2) & ~np.take_along_axis(sees, predicted, axis=1)
        if blind.any():
            text, target = np.argwhere(blind)[0]
            raise UserError(
                f"target {target} of text {text} may see no token at all; leave it one in perm_mask"
            )
    return PermutedInputs(**vars(inputs), perm_mask=perm_mask, predicted=predicted)


def _zeros_and_ones(name: str, array: Any, shape: Sequence[int | None]) -> np.ndarray:
    """An array of zeros and ones, of any type, as int8. Raises UserError for another shape, or number."""
    array = on_host(name, array)
    if len(array.shape) != len(shape) or any(
        n not in (m, None) for m, n in zip(array.shape, shape, strict=True)
    ):
        wanted = ", ".join("targets" if n is None else str(n) for n in shape)
        raise UserError(f"{name} has shape {array.shape}; expected ({wanted})")
    if not np.isin(array, (0, 1)).all():
        raise UserError(f"{name} must hold nothing but 0 and 1")
    return array.astype(np.int8)
