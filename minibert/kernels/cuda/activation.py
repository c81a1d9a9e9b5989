"""Linear maps, also with an activation: cuBLAS's product, then the rest in one pass (activation.cu)."""

import re

from minibert.arrays import Array, get_array_module
from minibert.kernels.cuda.columns import add_sums, column_sums, sum_grid
from minibert.kernels.cuda.launch import TILE, contiguous, launch, read_source, tile_grid
from minibert.kernels.cuda.products import multiply_rows, product_gradients
from minibert.ops import activations

ROWS_PER_BLOCK = 32

# The table in activation.cu: the number of each activation, by its name in ``ops.activations``.
NUMBERS = {name: int(number) for number, name in re.findall(r"ROW\((\d+), (\w+),", read_source("activation"))}
IDENTITY = NUMBERS.pop("identity")
KNOWN = {getattr(activations, name): number for name, number in NUMBERS.items()}  # by the reference itself


def linear(x: Array, weight: Array, bias: Array) -> tuple[Array, tuple]:
    """See ``ops.linear``. In 16 bits the product is summed up in float32."""
    y = multiply_rows(x, weight)  # (…, N)
    _add_bias_and_activate(y, contiguous(bias, "float32"), y, IDENTITY)
    return y, (x, weight)


def linear_backward(dout: Array, cache: tuple) -> tuple[Array, Array, Array]:
    """See ``ops.linear_backward``. The gradients of weight and bias are float32."""
    x, weight = cache
    dout = contiguous(dout, x.dtype)
    return *product_gradients(dout, x, weight), column_sums(dout.reshape(-1, dout.shape[-1]))


def linear_activation(x: Array, weight: Array, bias: Array, activation: str) -> tuple[Array, tuple]:
    """See ``composites.linear_activation``; the activation is one of ``KNOWN``."""
    number = KNOWN[activations.ACTIVATIONS[activation][0]]
    z = multiply_rows(x, weight)  # (…, N), without the bias
    y = get_array_module(x).empty_like(z)
    bias = contiguous(bias, "float32")
    _add_bias_and_activate(z, bias, y, number)
    return y, (x, weight, bias, z, number)


def linear_activation_backward(dout: Array, cache: tuple) -> tuple[Array, Array, Array]:
    """See ``composites.linear_activation_backward``. The gradients of weight and bias are float32."""
    x, weight, bias, z, activation = cache
    xp, dtype, columns = get_array_module(z), z.dtype.name, z.shape[-1]
    dz = xp.empty_like(z)
    rows = z.size // columns
    grid, per_block = sum_grid(rows, columns, dtype, blocks=2048)
    sums = xp.empty((grid[0], columns), dtype="float32")
    arrays = contiguous(dout, z.dtype), z, bias, dz, sums
    numbers = rows, per_block, columns, activation
    launch("activation", "bias_activation_backward", dtype, grid, TILE, *arrays, *numbers)
    return *product_gradients(dz, x, weight), add_sums(sums)


def _add_bias_and_activate(z: Array, bias: Array, y: Array, activation: int) -> None:
    """y = f(z + bias); z and y (…, N) may be one array, bias (N,)."""
    columns, dtype = z.shape[-1], z.dtype.name
    rows = z.size // columns
    grid = -(-rows // ROWS_PER_BLOCK), tile_grid(columns, dtype)
    arrays, numbers = (z, bias, y), (rows, ROWS_PER_BLOCK, columns, activation)
    launch("activation", "bias_activation", dtype, grid, TILE, *arrays, *numbers)
