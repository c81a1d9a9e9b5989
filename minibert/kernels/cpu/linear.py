"""linear, its products shared among the threads: rows of the batch for y and dx, rows of W for dW."""

import numpy as np

from minibert.arrays import get_threads, in_blocks, run_all, run_blocks
from minibert.kernels.cpu.memory import empty, empty_like


def row_block(rows: int, at_most: int = 512) -> int:
    """How many rows of a product to compute at a time: a share of equal size for every thread, or several."""
    threads = get_threads()
    rounds = -(-rows // (threads * at_most))
    return max(-(-rows // (threads * rounds)), 1)


def linear(x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> tuple[np.ndarray, tuple]:
    """See ``ops.linear``."""
    rows = x.reshape(-1, x.shape[-1])
    y = empty((len(rows), len(weight)))

    def block(s: slice) -> None:
        np.matmul(rows[s], weight.T, out=y[s])
        y[s] += bias

    run_blocks(block, len(rows), row_block(len(rows)))
    return y.reshape(*x.shape[:-1], len(weight)), (x, weight)


def linear_backward(dout: np.ndarray, cache: tuple) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """See ``ops.linear_backward``."""
    x, weight = cache
    rows = x.reshape(-1, x.shape[-1])
    dout = dout.reshape(-1, dout.shape[-1])
    dx, dweight = empty_like(rows), empty_like(weight)
    step = row_block(len(rows))
    dbias = empty((-(-len(rows) // step), len(weight)))  # a row of sums for each block

    def input_gradient(s: slice) -> None:
        np.matmul(dout[s], weight, out=dx[s])
        dout[s].sum(axis=0, out=dbias[s.start // step])

    def weight_gradient(s: slice) -> None:
        np.matmul(dout.T[s], rows, out=dweight[s])

    share = -(-len(weight) // get_threads())  # each share reads all rows again, so the fewer the better
    run_all([*in_blocks(weight_gradient, len(weight), share), *in_blocks(input_gradient, len(rows), step)])
    return dx.reshape(x.shape), dweight, dbias.sum(axis=0)
