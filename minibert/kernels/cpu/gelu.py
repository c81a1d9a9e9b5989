"""linear + GELU. ``scipy.special.erf`` takes ten times as long as the rest, so Φ gets a formula of our own.

For x = −a ≤ 0 the normal distribution function is Φ(−a) = exp(−a²/2) · g(a) with g(a) = ½ erfcx(a/√2), a
smooth function without a zero. With t = 1 / (1 + 0.3 a), a polynomial of degree 8 in t meets g with a
relative error below 1.5e-7 for every a from 0 to 14; beyond, Φ(−a) < 1e-44 is nothing. With q = Φ(−|x|):

    y     = x Φ(x)        = max(x, 0) − |x| q          (as Φ(x) = 1 − q for x > 0)
    dy/dx = Φ(x) + x φ(x) = ½ + copysign(½ − q, x) + x exp(−x²/2) / √(2π)

so one exponential serves both. For x < 0 this keeps the relative precision that ½ (1 + erf) loses.
The derivative is computed in the forward and cached in place of what went into the GELU.

The coefficients are a least-squares fit, reweighted until the error is level, of g(a) over t; see
``tests/kernels/test_registered.py`` for the bounds that they meet.
"""

import math

import numpy as np

from minibert.arrays import run_blocks
from minibert.ops import composites
from minibert.ops.linear import linear_backward

BLOCK = 1 << 15  # elements of work at a time: a few such arrays of float32 fit the second-level cache
POLE = 0.3
# Of t⁸, t⁷, …, t¹.
COEFFICIENTS = (
    0.03567488,
    -0.1572035,
    0.2063542,
    -0.05368425,
    0.12856193,
    0.09991341,
    0.12075397,
    0.1196293,
)


def linear_activation(
    x: np.ndarray, weight: np.ndarray, bias: np.ndarray, activation: str
) -> tuple[np.ndarray, tuple]:
    """See ``composites.linear_activation``; only the erf GELU differs from it."""
    if activation != "gelu":
        y, cache = composites.linear_activation(x, weight, bias, activation)
        return y, (None, cache)
    derivative = x.reshape(-1, x.shape[-1]) @ weight.T  # (R, N): first x Wᵀ, in the end dy/dx
    y = np.empty_like(derivative)

    def block(rows: slice) -> None:
        z = derivative[rows]
        z += bias
        _gelu(z, y[rows])

    run_blocks(block, len(y), max(BLOCK // y.shape[1], 1))
    return y.reshape(*x.shape[:-1], -1), (derivative, (x, weight))


def _gelu(x: np.ndarray, y: np.ndarray) -> None:
    """Set y to gelu(x), and x to gelu'(x)."""
    a = np.abs(x)
    t = a * np.float32(POLE)
    t += 1
    np.reciprocal(t, out=t)
    exponential = np.square(a)
    exponential *= -0.5
    np.exp(exponential, out=exponential)
    q = t * COEFFICIENTS[0]
    for coefficient in COEFFICIENTS[1:]:
        q += coefficient
        q *= t
    q *= exponential
    np.maximum(x, 0, out=y)
    a *= q
    y -= a
    np.subtract(0.5, q, out=q)
    np.copysign(q, x, out=q)
    q += 0.5
    exponential *= 1.0 / math.sqrt(2.0 * math.pi)
    x *= exponential
    x += q


def linear_activation_backward(dout: np.ndarray, cache: tuple) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """See ``composites.linear_activation_backward``."""
    derivative, inner = cache
    if derivative is None:
        return composites.linear_activation_backward(dout, inner)
    return linear_backward(dout * derivative.reshape(dout.shape), inner)
