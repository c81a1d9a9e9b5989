"""linear + GELU, in one go over each block of rows: the product, then the GELU while it is in the cache.

For x = −a ≤ 0 the normal distribution function is Φ(−a) = exp(−a²/2) · g(a) with g(a) = ½ erfcx(a/√2), a
smooth function without a zero. With t = 1 / (1 + 0.3 a), a polynomial of degree 8 in t meets g with a
relative error below 2e-7 for every a from 0 to 14; beyond, Φ(−a) < 1e-44 is negligible. With q = Φ(−|x|):

    Φ(x)  = 1 − q  for x > 0,  else q
    y     = x Φ(x)
    dy/dx = Φ(x) + x φ(x) = Φ(x) + x exp(−x²/2) / √(2π)

so one exponential serves both. For x < 0 this keeps the relative precision that ½ (1 + erf) loses.
The derivative is computed in the forward and cached in place of the GELU's input.

The coefficients are a least-squares fit, reweighted until the error is level, of g(a) over t; see
``tests/kernels/test_registered.py`` for the bounds that they meet.
"""

import math

import numpy as np

from minibert.kernels.cpu.compiled import compiled, exp, float32
from minibert.kernels.cpu.factors import empty_rows_factor, factor, fill_factor
from minibert.kernels.cpu.linear import linear, linear_backward, linear_gradients, row_block
from minibert.kernels.cpu.memory import as_rows, empty, empty_like
from minibert.ops.activations import ACTIVATIONS, gelu
from minibert.products import multiply
from minibert.threads import run_blocks

POLE = float32(0.3)
# Of t⁸, t⁷, …, t¹.
COEFFICIENTS = (
    float32(0.03567488),
    float32(-0.1572035),
    float32(0.2063542),
    float32(-0.05368425),
    float32(0.12856193),
    float32(0.09991341),
    float32(0.12075397),
    float32(0.1196293),
)
DENSITY = float32(1.0 / math.sqrt(2.0 * math.pi))
HALF, ONE = float32(0.5), float32(1.0)


@compiled
def _upper_tail(a, exponential):
    """Φ(−a) for a ≥ 0, given exp(−a²/2)."""
    t = ONE / (ONE + POLE * a)
    c = COEFFICIENTS
    g = t * (c[4] + t * (c[3] + t * (c[2] + t * (c[1] + t * c[0]))))
    return exponential * t * (c[7] + t * (c[6] + t * (c[5] + g)))


@compiled
def _gelu_rows(x, bias, y):
    """y = gelu(x + bias), and gelu'(x + bias) in place of x."""
    for r in range(len(x)):
        for c in range(len(bias)):
            z = x[r, c] + bias[c]
            exponential = exp(-HALF * z * z)
            q = _upper_tail(abs(z), exponential)
            below = ONE - q if z > 0 else q
            y[r, c] = z * below
            x[r, c] = below + z * exponential * DENSITY


def linear_activation(
    x: np.ndarray, weight: np.ndarray, bias: np.ndarray, activation: str
) -> tuple[np.ndarray, tuple]:
    """See ``composites.linear_activation``; activations other than the erf GELU use the reference."""
    forward, backward = ACTIVATIONS[activation]
    if forward is not gelu:
        projected, linear_cache = linear(x, weight, bias)
        y, activation_cache = forward(projected)
        return y, (backward, activation_cache, linear_cache)
    rows, bias = as_rows(x, x.shape[-1]), np.ascontiguousarray(bias)
    x_factor, weight_factor = empty_rows_factor(rows), factor(weight).T
    derivative = empty((len(x_factor), len(weight)))  # first x Wᵀ, in the end dy/dx
    y = empty_like(derivative)

    def block(s: slice) -> None:
        fill_factor(rows[s], x_factor[s])
        multiply(x_factor[s], weight_factor, derivative[s])
        _gelu_rows(derivative[s], bias, y[s])

    run_blocks(block, len(y), row_block(len(y)))
    return y[: len(rows)].reshape(*x.shape[:-1], len(weight)), (None, derivative, (x_factor, weight))


def linear_activation_backward(dout: np.ndarray, cache: tuple) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """See ``composites.linear_activation_backward``."""
    backward, of_activation, linear_cache = cache
    if backward is not None:
        return linear_backward(backward(dout, of_activation), linear_cache)
    rows, (x_factor, weight) = as_rows(dout, dout.shape[-1]), linear_cache
    derivative, dprojected = of_activation[: len(rows)], empty_like(rows)

    def fill(s: slice) -> None:
        np.multiply(rows[s], derivative[s], out=dprojected[s])

    dx, dweight, dbias = linear_gradients(dprojected, x_factor, weight, fill)
    return dx.reshape(*dout.shape[:-1], dx.shape[1]), dweight, dbias
