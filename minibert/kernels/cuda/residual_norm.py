"""LayerNorm, alone and as the end of a sublayer: dropout + residual + LayerNorm (residual_norm.cu)."""

from minibert.arrays import Array, get_array_module
from minibert.dropout_bits import DropoutKey
from minibert.kernels.cuda.columns import add_sums
from minibert.kernels.cuda.dropout import dropout_arguments
from minibert.kernels.cuda.launch import contiguous, launch, row_block, row_grid

# Blocks of few rows keep a GPU busy. In the backward pass each block leaves sums, which have to be added up.
FORWARD_ROWS, BACKWARD_ROWS = 8, 64


def _forward(
    x: Array, residual: Array | None, weight: Array, bias: Array, eps: float, dropout: tuple
) -> tuple[Array, tuple]:
    """y = layer_norm(residual + dropout(x)); x and residual (…, H), weight and bias (H,)."""
    xp, dtype, size = get_array_module(x), x.dtype.name, x.shape[-1]
    x, weight, bias = contiguous(x), contiguous(weight, "float32"), contiguous(bias, "float32")
    residual = None if residual is None else contiguous(residual, x.dtype)
    rows = x.size // size
    y, normalised = xp.empty_like(x), xp.empty_like(x)
    inverse_std = xp.empty(rows, dtype="float32")
    block = row_block(size, dtype)
    grid, per_block = row_grid(rows, block, FORWARD_ROWS)
    arrays = x, residual, weight, bias, y, normalised, inverse_std
    numbers = rows, per_block, size, eps
    launch("residual_norm", "residual_norm", dtype, grid, block, *arrays, *numbers, *dropout)
    return y, (normalised, inverse_std, weight, dropout)


def _backward(dout: Array, cache: tuple) -> tuple[Array, Array, Array]:
    """dx, dresidual (…, H), and the sums dweight and dbias as one array (2, H)."""
    normalised, inverse_std, weight, dropout = cache
    xp, dtype, size = get_array_module(normalised), normalised.dtype.name, normalised.shape[-1]
    rows = normalised.size // size
    dresidual = xp.empty_like(normalised)
    dx = None if dropout[0] is None else xp.empty_like(normalised)
    block = row_block(size, dtype)
    grid, per_block = row_grid(rows, block, BACKWARD_ROWS)
    sums = xp.empty((grid[0], 2, size), dtype="float32")
    arrays = contiguous(dout, normalised.dtype), normalised, inverse_std, weight, dresidual, dx, sums
    numbers = rows, per_block, size
    launch("residual_norm", "residual_norm_backward", dtype, grid, block, *arrays, *numbers, *dropout)
    return dresidual if dx is None else dx, dresidual, add_sums(sums)


def layer_norm(x: Array, weight: Array, bias: Array, eps: float) -> tuple[Array, tuple]:
    """See ``ops.layer_norm``."""
    return _forward(x, None, weight, bias, eps, dropout_arguments(x, 0.0, None))


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
    return _forward(x, residual, weight, bias, eps, dropout_arguments(x, probability, key))


def dropout_residual_norm_backward(dout: Array, cache: tuple) -> tuple[Array, Array, Array, Array]:
    """See ``composites.dropout_residual_norm_backward``. The gradients of the parameters are float32."""
    dx, dresidual, (dweight, dbias) = _backward(dout, cache)
    return dx, dresidual, dweight, dbias
