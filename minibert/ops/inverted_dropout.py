"""Inverted dropout (Srivastava et al., 2014) whose random choice is a pure function of a key."""

from types import ModuleType

from minibert.arrays import Array, get_array_module
from minibert.dropout_bits import BITS, DropoutKey, random_bits

Cache = tuple


def dropout_threshold(probability: float) -> tuple[int, float]:
    """Threshold and factor: elements with bits below the first become 0, others are multiplied by the second.

    The probability is rounded to a multiple of 2⁻¹⁶ below 1. The factor belongs to the rounded probability,
    so that the expected value of the mask is exactly 1.
    """
    threshold = min(round(probability * 2**BITS), 2**BITS - 1)
    return threshold, 2**BITS / (2**BITS - threshold)


def dropout_mask(
    xp: ModuleType, shape: tuple[int, ...], dtype: str, probability: float, key: DropoutKey
) -> Array:
    """The array that dropout multiplies by: 0 with the given probability, else 1 / (1 − probability)."""
    threshold, factor = dropout_threshold(probability)
    return (random_bits(xp, key, shape) >= threshold).astype(dtype) * factor


def dropout(x: Array, probability: float, key: DropoutKey | None) -> tuple[Array, Cache]:
    """y = x · m, where each element of m is 0 with the given probability and 1 / (1 − probability) otherwise.

    x and y have the same, arbitrary shape. The factor preserves the expected value, so inference needs
    no correction; ``key=None`` turns dropout off. m is a pure function of the key, so the backward
    computes it again instead of storing it.
    """
    if key is None or probability == 0.0:
        return x, (0.0, None)
    mask = dropout_mask(get_array_module(x), x.shape, x.dtype, probability, key)
    return x * mask, (probability, key)


def dropout_backward(dout: Array, cache: Cache) -> Array:
    """Derivative of :func:`dropout`: forward y = x · m with m constant, so dx = dout · m."""
    probability, key = cache
    if key is None:
        return dout
    return dout * dropout_mask(get_array_module(dout), dout.shape, dout.dtype, probability, key)
