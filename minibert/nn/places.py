"""Places of a batch: the encoder need not compute all of them in every layer."""

import math
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from minibert.arrays import Array, get_array_module
from minibert.ops.unpadded import put_rows


@dataclass(frozen=True)
class Places:
    """Some of the B · S places of a batch, in some order; all of them, if ``rows`` is None.

    rows (T,): the number b·S + s of each place. starts (B + 1,): where each text begins among them, if they
    are all of its tokens. The backward of ``leave_out`` is ``put_back``, and that of ``put_back`` is
    ``leave_out``.
    """

    shape: tuple[int, ...]
    rows: Array | None = None
    starts: Array | None = None

    def leave_out(self, x: Array) -> Array:
        """x (B, S, H) → (T, H), these places only; x itself, if they are all."""
        return x if self.rows is None else x.reshape(-1, x.shape[-1])[self.rows]

    def starts_or(self, bias: Any) -> Any:
        """What tells attention which tokens see each other: ``starts`` or, if there are none, ``bias``."""
        return bias if self.starts is None else self.starts

    def put_back(self, y: Array) -> Array:
        """y (T, H) → (B, S, H), 0 at all other places; y itself, if there are none."""
        return y if self.rows is None else put_rows(y, self.rows, self.shape)

    def among(self, others: Self) -> "Places":
        """Those of these places that are among T ``others``, numbered there; these, if either are all."""
        if self.rows is None or others.rows is None:
            return self
        xp, count = get_array_module(others.rows), len(others.rows)
        number = xp.full(math.prod(self.shape), -1)
        number[others.rows] = xp.arange(count)
        found = xp.sort(number[self.rows])
        return Places((count,), found[int((found < 0).sum()) :])


EVERYWHERE = Places((0, 0))


def first_places(attention_mask: Array) -> Places:
    """The first token of each text: mask (B, S)."""
    batch_size, length = attention_mask.shape
    return Places((batch_size, length), get_array_module(attention_mask).arange(batch_size) * length)


def places_read(shape: tuple[int, int], positions: np.ndarray, fixed: bool = False) -> np.ndarray:
    """The places of a batch (B, S) that the pre-training heads read, on the host: (R,), each of them once.

    These are the N ``positions`` b·S + s to predict and the first token of each text. With ``fixed``, R is
    B + N whatever the positions are (but at most B · S): places that nobody reads come last and fill them up.
    """
    read = np.zeros(shape, bool)
    read[:, 0] = True
    read.reshape(-1)[positions] = True
    rows = np.flatnonzero(read)
    if fixed:
        more = len(read) + len(positions) - len(rows)
        rows = np.concatenate([rows, np.flatnonzero(~read)[:more]])
    return rows.astype(np.int32)
