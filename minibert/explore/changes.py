"""What if? Observers that change a value on the way, and give the right derivative all the same.

Each replaces one value y of the forward pass by another, y′. Its backward turns the derivative with respect
to y′ into that with respect to y, as for any operation: 0 where y′ is a constant.
"""

from minibert.arrays import Array, get_array_module
from minibert.nn import Observer


class Change(Observer):
    """A change of one value, which is named as for observers."""

    def __init__(self, name: str):
        self.name = name

    def wants(self, name: str) -> bool:
        """Only the value that it changes."""
        return name == self.name


class HeadOff(Change):
    """A head of attention writes nothing: its D features of the context, (B, S, H), are 0."""

    def __init__(self, name: str, head: int, size: int):
        super().__init__(name)
        self._features = slice(head * size, (head + 1) * size)

    def forward(self, name: str, value: Array) -> Array:
        """context (B, S, H) → y with the head's features 0."""
        y = value.copy()
        y[..., self._features] = 0.0
        return y

    def backward(self, name: str, dvalue: Array) -> Array:
        """dy (B, S, H) → dcontext. forward: y = context, or 0 in the head's features."""
        return self.forward(name, dvalue)


class PinnedWeight(Change):
    """A query gives a key this weight of attention, and shares out the rest as before.

        y[k] = w,   y[j] = p[j] · r   for j ≠ k,   r = (1 − w)/Σ p[i] over i ≠ k

    where p is the query's row of a head's probabilities. (The sum is 1 − p[k], but that difference would
    cancel where p[k] is nearly 1.) If all others are 0 there is no rest to share out, and the row stays as it
    is. An instance serves one pass at a time.
    """

    def __init__(self, name: str, head: int, query: int, key: int, weight: float):
        super().__init__(name)
        self._row, self._key, self._weight = (slice(None), head, query), key, weight

    def forward(self, name: str, value: Array) -> Array:
        """probabilities (B, A, S, S) → y."""
        self._p, y = value[self._row].copy(), value.copy()  # (B, S)
        row = self._p * self._share()
        row[:, self._key] = get_array_module(y).where(self._rest() > 0, self._weight, 1.0)[:, 0]
        y[self._row] = row
        return y

    def backward(self, name: str, dvalue: Array) -> Array:
        """dy (B, A, S, S) → dprobabilities.

        forward: y[j] = p[j] r, and every p[j] is in the sum below r, so

            dp[j] = r (dy[j] − Σ p[i] dy[i]/Σ p[i]),   sums over i ≠ k,   dp[k] = 0
        """
        xp, dy = get_array_module(dvalue), dvalue[self._row].copy()  # (B, S)
        dy[:, self._key] = 0.0  # y[k] is a constant
        share, rest = self._share(), self._rest()
        mean = (self._p * dy).sum(axis=1, keepdims=True) / xp.where(rest > 0, rest, 1.0)  # (B, 1)
        drow = xp.where(rest > 0, share * (dy - mean), dy)
        drow[:, self._key] = 0.0
        dprobabilities = dvalue.copy()
        dprobabilities[self._row] = drow
        return dprobabilities

    def _rest(self) -> Array:
        """The sum of the other weights: (B, 1)."""
        others = self._p.copy()
        others[:, self._key] = 0.0
        return others.sum(axis=1, keepdims=True)

    def _share(self) -> Array:
        """r, or 1 where there is no rest: (B, 1)."""
        xp, rest = get_array_module(self._p), self._rest()
        return xp.where(rest > 0, (1.0 - self._weight) / xp.where(rest > 0, rest, 1.0), 1.0)


class Patch(Change):
    """Some elements of a value are those of another pass, or any others: constants, with the derivative 0.

    ``place`` is an index of the value without the axis of the batch, for instance a token's number.
    """

    def __init__(self, name: str, place: tuple, patch: Array):
        super().__init__(name)
        self._place, self._patch = (slice(None), *place), patch

    def forward(self, name: str, value: Array) -> Array:
        """A value → y, with the patch in its place."""
        y = value.copy()
        y[self._place] = self._patch
        return y

    def backward(self, name: str, dvalue: Array) -> Array:
        """dy → dvalue. forward: y = value, or a constant."""
        d = dvalue.copy()
        d[self._place] = 0.0
        return d


class Added(Change):
    """Something is added to a value, for instance a small step to one of its elements."""

    def __init__(self, name: str, step: Array):
        super().__init__(name)
        self._step = step

    def forward(self, name: str, value: Array) -> Array:
        """A value → value + step. The derivative with respect to both is the same."""
        return value + self._step

    def backward(self, name: str, dvalue: Array) -> Array:
        """dy → dvalue = dy."""
        return dvalue
