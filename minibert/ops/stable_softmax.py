"""Softmax and its logarithm, over the last axis."""

from minibert.arrays import Array, get_array_module

Cache = tuple


def softmax(x: Array) -> tuple[Array, Cache]:
    """y[i] = exp(x[i]) / Σⱼ exp(x[j]) over the last axis. x (…, N) → y (…, N), each row summing to 1.

    A constant added to a row cancels in the quotient; we subtract the row's maximum, so that exp
    never overflows.
    """
    xp = get_array_module(x)
    e = xp.exp(x - x.max(axis=-1, keepdims=True))
    y = e / e.sum(axis=-1, keepdims=True)
    return y, (y,)


def softmax_backward(dout: Array, cache: Cache) -> Array:
    """Derivative of :func:`softmax`.

    forward: the Jacobian of a row is ∂y[i]/∂x[j] = y[i] (δᵢⱼ − y[j]), so

        dx[j] = Σᵢ dout[i] y[i] (δᵢⱼ − y[j]) = y[j] (dout[j] − Σᵢ dout[i] y[i])
    """
    (y,) = cache
    return y * (dout - (dout * y).sum(axis=-1, keepdims=True))


def log_softmax(x: Array) -> tuple[Array, Cache]:
    """y[i] = x[i] − log Σⱼ exp(x[j]) over the last axis. x (…, N) → y (…, N).

    The logarithm of :func:`softmax`, without ever taking the logarithm of a probability that has
    already been rounded to 0.
    """
    xp = get_array_module(x)
    shifted = x - x.max(axis=-1, keepdims=True)
    y = shifted - xp.log(xp.exp(shifted).sum(axis=-1, keepdims=True))
    return y, (y,)


def log_softmax_backward(dout: Array, cache: Cache) -> Array:
    """Derivative of :func:`log_softmax`.

    forward: ∂y[i]/∂x[j] = δᵢⱼ − p[j] with p = exp(y), so dx[j] = dout[j] − p[j] Σᵢ dout[i].
    """
    (y,) = cache
    xp = get_array_module(y)
    return dout - xp.exp(y) * dout.sum(axis=-1, keepdims=True)


def log_sum_exp(x: Array, axis: int) -> Array:
    """log Σⱼ exp(x[j]) over one axis, without overflow. Its derivative is the softmax."""
    xp = get_array_module(x)
    largest = x.max(axis=axis, keepdims=True)
    return xp.log(xp.exp(x - largest).sum(axis=axis)) + largest.squeeze(axis)
