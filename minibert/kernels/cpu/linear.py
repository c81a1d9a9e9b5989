"""linear, with its products split among the threads: rows of the batch for y and dx, rows of W for dW."""

from collections.abc import Callable

import numpy as np

from minibert.kernels.cpu.factors import empty_rows_factor, factor, fill_factor
from minibert.kernels.cpu.memory import as_rows, empty, empty_like
from minibert.products import BFLOAT16, multiply, products_library
from minibert.threads import get_threads, run_blocks

LEAST = 64  # rows of a block, if there are so many: sharing fewer takes longer than computing them


def row_block(rows: int) -> int:
    """How many rows of a product to compute at a time: one equal share per thread, or several.

    A small block is still in the cache when the loops after the product read it. But in bfloat16, a product
    begins by rearranging all of W, so there the blocks are larger and fewer. A short sentence is one block.
    """
    threads, at_most = get_threads(), 2048 if products_library() == BFLOAT16 else 512
    rounds = max(-(-rows // (threads * at_most)), 1)
    return max(-(-rows // (threads * rounds)), LEAST)


def linear(x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> tuple[np.ndarray, tuple]:
    """See ``ops.linear``."""
    rows = as_rows(x, x.shape[-1])
    x_factor, weight_factor = empty_rows_factor(rows), factor(weight).T
    y = empty((len(x_factor), len(weight)))

    def block(s: slice) -> None:
        fill_factor(rows[s], x_factor[s])
        multiply(x_factor[s], weight_factor, y[s])
        y[s] += bias

    run_blocks(block, len(y), row_block(len(y)))
    return y[: len(rows)].reshape(*x.shape[:-1], len(weight)), (x_factor, weight)


def linear_backward(dout: np.ndarray, cache: tuple) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """See ``ops.linear_backward``."""
    dx, dweight, dbias = linear_gradients(as_rows(dout, dout.shape[-1]), *cache)
    return dx.reshape(*dout.shape[:-1], dx.shape[1]), dweight, dbias


def linear_gradients(
    dy: np.ndarray, x_factor: np.ndarray, weight: np.ndarray, fill: Callable[[slice], object] | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """dx = dy W (R, K), dW = dyᵀ x and db = Σ dy, for dy (R, N) and what the forward made of x.

    ``fill`` is called with each block of rows of dy before they are used, to compute them.
    """
    dx, dweight = empty(x_factor.shape), empty_like(weight)
    dy_factor, weight_factor = empty_rows_factor(dy), factor(weight)
    step = row_block(len(dx))
    dbias = empty((-(-len(dx) // step), len(weight)))  # a row of sums for each block

    def input_gradient(s: slice) -> None:
        if fill:
            fill(s)
        fill_factor(dy[s], dy_factor[s])
        multiply(dy_factor[s], weight_factor, dx[s])
        dy[s].sum(axis=0, out=dbias[s.start // step])

    def weight_gradient(s: slice) -> None:
        multiply(dy_factor.T[s], x_factor, dweight[s])

    run_blocks(input_gradient, len(dx), step)
    # Each block reads all rows again, so the fewer blocks the better.
    run_blocks(weight_gradient, len(weight), -(-len(weight) // get_threads()))
    return dx[: len(dy)], dweight, dbias.sum(axis=0)
