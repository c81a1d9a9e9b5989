"""Orders of the tokens of a text, in which XLNet learns to predict its words.

Source: Yang et al., 2019, sections 2.2 to 2.4.
"""

from collections.abc import Collection
from typing import Any, NamedTuple

import numpy as np

from minibert.data.masking import IGNORED
from minibert.errors import UserError


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
    ids, real = np.asarray(input_ids), np.asarray(attention_mask) > 0
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
    ids, real = np.asarray(input_ids), np.asarray(attention_mask) > 0
    chosen = np.asarray(predicted) > 0
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
    labels = np.full((len(ids), width), IGNORED, ids.dtype)
    labels[texts, rows[texts, tokens]] = ids[texts, tokens]
    return Orders(perm_mask.astype(np.int8), mapping, labels)


def _places(numbers: np.ndarray) -> np.ndarray:
    """The place of each number among those of its row, 0 for the smallest: (B, S)."""
    return numbers.argsort(axis=1, kind="stable").argsort(axis=1)
