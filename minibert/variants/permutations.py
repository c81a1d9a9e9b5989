"""Orders of the tokens of a text, in which XLNet learns to predict its words; and batches that hold them.

Source: Yang et al., 2019, sections 2.2 to 2.4. Everything here is on the host.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from minibert.arrays import Array, to_numpy
from minibert.bert.config import BertConfig
from minibert.bert.inputs import PretrainingInputs, encoder_inputs
from minibert.errors import UserError
from minibert.nn.targets import IGNORED, as_integers


class Orders(NamedTuple):
    """What a batch of texts and an order of each make of it; the names are those of ``forward``."""

    perm_mask: np.ndarray  # (B, S, S) int8: 1 where token i must not see token j
    target_mapping: np.ndarray  # (B, P, S) int8: a 1 in each row at the token to predict; zeros fill up
    labels: np.ndarray  # (B, P): its id, or −100


def last_of_an_order(
    input_ids: Any,
    attention_mask: Any,
    rng: np.random.Generator,
    *,
    special_ids: Collection[int] = (),
    one_in: float = 6.0,
) -> np.ndarray:
    """The tokens to predict: the last ones of a random order of each text, booleans (B, S).

    The first tokens of an order have little to be predicted from, so only the last sixth (``one_in``) are
    chosen. That is at least one token, unless it is the only one. Padding and ``special_ids`` are not chosen.
    """
    ids, real = as_integers("input_ids", input_ids), as_integers("attention_mask", attention_mask) > 0
    candidates = real & ~np.isin(ids, list(special_ids))  # (B, S)
    most = np.minimum(candidates.sum(axis=1), real.sum(axis=1) - 1)  # something must be left to see
    counts = np.minimum(np.maximum(candidates.sum(axis=1) // one_in, 1), most)  # (B,)
    from_the_end = _places(np.where(candidates, rng.random(ids.shape), 2.0))
    return candidates & (from_the_end < counts[:, None])


def factorisation_orders(
    input_ids: Any,
    attention_mask: Any,
    predicted: Any,
    rng: np.random.Generator,
    *,
    targets: int | None = None,
) -> Orders:
    """Put the ``predicted`` tokens (B, S) of each text into a random order, after all of its other tokens.

    Each of them is predicted from the tokens before it in that order. The other tokens see each other, but
    none of the predicted ones, as in the original code. (There, <sep> and <cls> are part of the order; here,
    everybody sees them.) P is the largest number of predicted tokens of a text, or ``targets``.

    Raises UserError if shapes differ, if padding is to be predicted, if nothing would be left of a text to
    predict from, or if there are more predicted tokens than ``targets``.
    """
    ids, real = as_integers("input_ids", input_ids), as_integers("attention_mask", attention_mask) > 0
    chosen = as_integers("predicted", predicted) > 0
    for name, array in (("attention_mask", real), ("predicted", chosen)):
        if array.shape != ids.shape or ids.ndim != 2:
            raise UserError(f"{name} has shape {array.shape}; expected that of input_ids, {ids.shape}")
    if (chosen & ~real).any():
        raise UserError("predicted contains padding; choose among tokens whose attention_mask is 1")
    if (nothing := np.flatnonzero(chosen.any(axis=1) & ~(real & ~chosen).any(axis=1))).size:
        raise UserError(f"all tokens of text {nothing[0]} are to be predicted; leave one to predict from")
    counts = chosen.sum(axis=1)  # (B,)
    width = max(1, counts.max(initial=0)) if targets is None else targets
    if counts.max(initial=0) > width:
        raise UserError(f"a text has {counts.max()} tokens to predict; expected at most {width}")
    place = np.where(chosen, _places(np.where(chosen, rng.random(ids.shape), 2.0)), -1)  # (B, S)
    perm_mask = chosen[:, None] & (place[:, :, None] <= place[:, None])  # j is not before i
    rows = np.cumsum(chosen, axis=1) - 1  # (B, S): which target a token is, from left to right
    texts, tokens = np.nonzero(chosen)
    mapping = np.zeros((len(ids), width, ids.shape[1]), np.int8)
    mapping[texts, rows[texts, tokens], tokens] = 1
    labels = np.full((len(ids), width), IGNORED)
    labels[texts, rows[texts, tokens]] = ids[texts, tokens]
    return Orders(perm_mask.astype(np.int8), mapping, labels)


def hidden_tokens(hidden: np.ndarray, positions: np.ndarray) -> dict[str, np.ndarray]:
    """The arguments of ``forward`` with which the tokens at ``positions`` (B, P) are predicted.

    hidden (B, S), booleans: the tokens that nobody sees. → perm_mask (B, S, S), target_mapping (B, P, S).
    """
    perm_mask = np.repeat(hidden[:, None].astype(np.int8), hidden.shape[1], axis=1)
    mapping = positions[:, :, None] == np.arange(hidden.shape[1])
    return {"perm_mask": perm_mask, "target_mapping": mapping.astype(np.int8)}


def _places(numbers: np.ndarray) -> np.ndarray:
    """The place of each number among those of its row, 0 for the smallest: (B, S)."""
    return numbers.argsort(axis=1, kind="stable").argsort(axis=1)


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
    try:
        array = to_numpy(array) if hasattr(array, "dtype") else np.asarray(array)
    except ValueError:
        raise UserError(f"{name} is a list of lists of unequal length; pad them to one length") from None
    if len(array.shape) != len(shape) or any(
        n not in (m, None) for m, n in zip(array.shape, shape, strict=True)
    ):
        wanted = ", ".join("targets" if n is None else str(n) for n in shape)
        raise UserError(f"{name} has shape {array.shape}; expected ({wanted})")
    if not np.isin(array, (0, 1)).all():
        raise UserError(f"{name} must hold nothing but 0 and 1")
    return array.astype(np.int8)
