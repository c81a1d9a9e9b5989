"""Bias + dropout + residual + LayerNorm, in part or as a whole (residual_norm.cu)."""

from minibert.arrays import Array, get_array_module
from minibert.dropout_bits import DropoutKey
from minibert.kernels.cuda.columns import add_sums
from minibert.kernels.cuda.dropout import dropout_arguments
from minibert.kernels.cuda.launch import contiguous, launch, row_block, row_grid
from minibert.kernels.cuda.products import multiply_rows, product_gradients


def _forward(
    x: Array,
    x_bias: Array | None,
    residual: Array | None,
    weight: Array,
    bias: Array,
    eps: float,
    dropout: tuple,
) -> tuple[Array, tuple]:
    """y = layer_norm(residual + dropout(x + x_bias)); x and residual (…, H), the others (H,)."""
    xp, dtype, size = get_array_module(x), x.dtype.name, x.shape[-1]
    x, weight, bias = contiguous(x), contiguous(weight, "float32"), contiguous(bias, "float32")
    x_bias = None if x_bias is None else contiguous(x_bias, "float32")
    residual = None if residual is None else contiguous(residual, x.dtype)
    rows = x.size // size
    y, normalised = xp.empty_like(x), xp.empty_like(x)
    inverse_std = xp.empty(rows, dtype="float32")
    block = row_block(size, dtype)
    grid, per_block = row_grid(rows, block)
    arrays = x, x_bias, residual, weight, bias, y, normalised, inverse_std
    numbers = rows, per_block, size, eps
    launch("residual_norm", "residual_norm", dtype, grid, block, *arrays, *numbers, *dropout)
    return y, (normalised, inverse_std, weight, dropout)


def _backward(dout: Array, cache: tuple, with_bias: bool = False) -> tuple[Array, Array, Array]:
    """dx, dresidual (…, H), and the sums dweight, dbias and perhaps dx_bias as one array (2 or 3, H)."""
    normalised, inverse_std, weight, dropout = cache
    xp, dtype, size = get_array_module(normalised), normalised.dtype.name, normalised.shape[-1]
    rows = normalised.size // size
    dresidual = xp.empty_like(normalised)
    dx = None if dropout[0] is None else xp.empty_like(normalised)
    block = row_block(size, dtype)
    grid, per_block = row_grid(rows, block)
    sums = xp.empty((grid[0], 2 + with_bias, size), dtype="float32")
    arrays = contiguous(dout, normalised.dtype), normalised, inverse_std, weight, dresidual, dx, sums
    numbers = rows, per_block, size, with_bias
    launch("residual_norm", "residual_norm_backward", dtype, grid, block, *arrays, *numbers, *dropout)
    return dresidual if dx is None else dx, dresidual, add_sums(sums)


def layer_norm(x: Array, weight: Array, bias: Array, eps: float) -> tuple[Array, tuple]:
    """See ``ops.layer_norm``."""
    return _forward(x, None, None, weight, bias, eps, dropout_arguments(x, 0.0, None))


def layer_norm_backward(dout: Array, cache: tuple) -> tuple[Array, Array, Array]:
    """See ``ops.layer_norm_backward``. The gradients of the parameters are float32."""
    dx, _, (dweight, dbias) = _backward(dout, cache)
    return dx, dweight, dbias


def dropout_residual_norm(
    x: Array,
    residual: Array,
    weight: Array,
    bias: Array,
    eps: float,
    probability: float,
    key: DropoutKey | Array | None,
) -> tuple[Array, tuple]:
    """See ``composites.dropout_residual_norm``."""
    return _forward(x, None, residual, weight, bias, eps, dropout_arguments(x, probability, key))


def dropout_residual_norm_backward(dout: Array, cache: tuple) -> tuple[Array, Array, Array, Array]:
    """See ``composites.dropout_residual_norm_backward``. The gradients of the parameters are float32."""
    dx, dresidual, (dweight, dbias) = _backward(dout, cache)
    return dx, dresidual, dweight, dbias


def linear_dropout_residual_norm(
    x: Array,
    weight: Array,
    bias: Array,
    residual: Array,
    norm_weight: Array,
    norm_bias: Array,
    eps: float,
    probability: float,
    key: DropoutKey | Array | None,
) -> tuple[Array, tuple]:
    """y = layer_norm(residual + dropout(x Wᵀ + b)): both halves of a layer of BERT end so.

    x (…, K), weight (H, K), bias, norm_weight and norm_bias (H,), residual and y (…, H).
    """
    projected = multiply_rows(x, weight)  # (…, H)
    dropout = dropout_arguments(x, probability, key)
    y, cache = _forward(projected, bias, residual, norm_weight, norm_bias, eps, dropout)
    return y, (x, weight, cache)


def linear_dropout_residual_norm_backward(dout: Array, cache: tuple) -> tuple[Array, ...]:
    """Derivatives of :func:`linear_dropout_residual_norm`.

    dx, dweight, dbias, dresidual, dnorm_weight, dnorm_bias; those of the parameters are float32.
    """
    x, weight, cache = cache
    dprojected, dresidual, (dnorm_weight, dnorm_bias, dbias) = _backward(dout, cache, with_bias=True)
    dx, dweight = product_gradients(dprojected, x, weight)
    return dx, dweight, dbias, dresidual, dnorm_weight, dnorm_bias
