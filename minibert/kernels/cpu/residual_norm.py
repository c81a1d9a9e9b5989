"""dropout + residual + LayerNorm, in one pass over blocks of rows instead of a dozen over the whole array."""

import numpy as np

from minibert.arrays import DropoutKey, run_blocks
from minibert.ops.dropout import dropout_mask

BLOCK = 1 << 15  # elements of work at a time


def dropout_residual_norm(
    x: np.ndarray,
    residual: np.ndarray,
    weight: np.ndarray,
    bias: np.ndarray,
    eps: float,
    probability: float,
    key: DropoutKey | None,
) -> tuple[np.ndarray, tuple]:
    """See ``composites.dropout_residual_norm``."""
    size = x.shape[-1]
    x_rows, residual_rows = x.reshape(-1, size), residual.reshape(-1, size)
    normalised, y = np.empty_like(x_rows), np.empty_like(x_rows)
    inverse_std = np.empty((len(x_rows), 1), dtype=x.dtype)

    def block(rows: slice) -> None:
        z = normalised[rows]
        _drop(x_rows, rows, probability, key, out=z)
        z += residual_rows[rows]
        z -= z.mean(axis=1, keepdims=True)
        variance = np.square(z).mean(axis=1, keepdims=True)
        inverse_std[rows] = 1 / np.sqrt(variance + eps)
        z *= inverse_std[rows]
        np.multiply(z, weight, out=y[rows])
        y[rows] += bias

    run_blocks(block, len(x_rows), _rows_per_block(size))
    return y.reshape(x.shape), (normalised, inverse_std, weight, probability, key)


def dropout_residual_norm_backward(
    dout: np.ndarray, cache: tuple
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """See ``composites.dropout_residual_norm_backward``."""
    normalised, inverse_std, weight, probability, key = cache
    shape, dout = dout.shape, dout.reshape(normalised.shape)
    count, size = dout.shape
    step = _rows_per_block(size)
    dresidual, dx = np.empty_like(dout), np.empty_like(dout)
    # Every block has its own row of partial sums, added up in order at the end: the same bits always.
    dweight = np.empty((-(-count // step), size), dtype=dout.dtype)
    dbias = np.empty_like(dweight)

    def block(rows: slice) -> None:
        d, z, dz = dout[rows], normalised[rows], dresidual[rows]
        number = rows.start // step
        product = d * z
        product.sum(axis=0, out=dweight[number])
        d.sum(axis=0, out=dbias[number])
        product *= weight
        projection = product.mean(axis=1, keepdims=True)
        np.multiply(d, weight, out=dz)
        dz -= dz.mean(axis=1, keepdims=True)
        np.multiply(z, projection, out=product)
        dz -= product
        dz *= inverse_std[rows]
        _drop(dresidual, rows, probability, key, out=dx[rows])

    run_blocks(block, count, step)
    return dx.reshape(shape), dresidual.reshape(shape), dweight.sum(axis=0), dbias.sum(axis=0)


def _rows_per_block(size: int) -> int:
    return max(BLOCK // size // 2 * 2, 2)  # even, as ``dropout_mask`` needs


def _drop(x: np.ndarray, rows: slice, probability: float, key: DropoutKey | None, out: np.ndarray) -> None:
    """Set ``out`` to the dropped-out rows of x."""
    if key is None or probability == 0.0:
        out[...] = x[rows]
        return
    mask = dropout_mask(np, out.shape, x.dtype, probability, key, first=rows.start * x.shape[1])
    np.multiply(x[rows], mask, out=out)
