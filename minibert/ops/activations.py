"""The activation functions: GELU in its two forms, ReLU, tanh.

GELU is from Hendrycks and Gimpel, "Gaussian Error Linear Units" (2016): x times the probability that
a standard normal variable is below x. The original BERT computes the tanh form, Hugging Face's "gelu"
the exact form with erf; the two differ by less than 4.74e-4.
"""

import math

from minibert.arrays import Array, erf, get_array_module

Cache = tuple


def gelu(x: Array) -> tuple[Array, Cache]:
    """y = x Φ(x), where Φ(x) = ½ (1 + erf(x / √2)) is the normal distribution function. Any shape."""
    return x * (0.5 * (1.0 + erf(x * math.sqrt(0.5)))), (x,)


def gelu_backward(dout: Array, cache: Cache) -> Array:
    """Derivative of :func:`gelu`.

    forward: y = x Φ(x), so by the product rule dy/dx = Φ(x) + x φ(x), where φ(x) = exp(−x²/2) / √(2π)
    is the normal density, the derivative of Φ.
    """
    (x,) = cache
    xp = get_array_module(x)
    cdf = 0.5 * (1.0 + erf(x * math.sqrt(0.5)))
    pdf = xp.exp(-0.5 * x * x) * (1.0 / math.sqrt(2.0 * math.pi))
    return dout * (cdf + x * pdf)


def gelu_tanh(x: Array) -> tuple[Array, Cache]:
    """y = ½ x (1 + tanh(√(2/π) (x + 0.044715 x³))): the approximation in google-research/bert. Any shape."""
    xp = get_array_module(x)
    t = xp.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x))
    return 0.5 * x * (1.0 + t), (x, t)


def gelu_tanh_backward(dout: Array, cache: Cache) -> Array:
    """Derivative of :func:`gelu_tanh`.

    forward: y = ½ x (1 + t) with t = tanh(u), u = √(2/π) (x + 0.044715 x³). Since dt/du = 1 − t²,

        dy/dx = ½ (1 + t) + ½ x (1 − t²) √(2/π) (1 + 3 · 0.044715 x²)
    """
    x, t = cache
    du = math.sqrt(2.0 / math.pi) * (1.0 + 3.0 * 0.044715 * x * x)
    return dout * (0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * du)


def relu(x: Array) -> tuple[Array, Cache]:
    """y = max(x, 0). Any shape."""
    xp = get_array_module(x)
    return xp.maximum(x, 0), (x,)


def relu_backward(dout: Array, cache: Cache) -> Array:
    """Derivative of :func:`relu`: dout where x > 0, else 0 (also at x = 0, as in PyTorch)."""
    (x,) = cache
    return dout * (x > 0)


def tanh(x: Array) -> tuple[Array, Cache]:
    """y = tanh(x). Any shape."""
    xp = get_array_module(x)
    y = xp.tanh(x)
    return y, (y,)


def tanh_backward(dout: Array, cache: Cache) -> Array:
    """Derivative of :func:`tanh`: forward y = tanh(x), so dy/dx = 1 − y²."""
    (y,) = cache
    return dout * (1.0 - y * y)


# The keys are the values of ``hidden_act`` in a configuration.
ACTIVATIONS = {
    "gelu": (gelu, gelu_backward),
    "gelu_new": (gelu_tanh, gelu_tanh_backward),
    "gelu_pytorch_tanh": (gelu_tanh, gelu_tanh_backward),
    "relu": (relu, relu_backward),
    "tanh": (tanh, tanh_backward),
}
