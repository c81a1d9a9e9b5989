"""LayerNorm, row by row: alone, and as the end of a sublayer (dropout + residual + LayerNorm).

A row is read, summed, centred, scaled and written while it is in the first-level cache. The sums over
rows that the gradients of weight and bias need are made block by block and added up in order at the end.
"""

import numpy as np

from minibert.dropout_bits import DropoutKey
from minibert.kernels.cpu.compiled import (
    compiled,
    dropout_factor,
    dropout_numbers,
    float32,
    inlined,
    product,
    uint32,
)
from minibert.kernels.cpu.memory import as_rows, empty, empty_like
from minibert.threads import run_blocks

ROWS = 512  # per unit of work


@inlined
def normalise_row(x, weight, bias, eps, y):
    """y = γ x̂ + β, and x̂ in place of x; returns 1/σ."""
    size = float32(len(x))
    total = float32(0.0)
    for c in range(len(x)):
        total += x[c]
    mean = total / size
    squares = float32(0.0)
    for c in range(len(x)):
        centred = x[c] - mean
        squares += centred * centred
    inverse_std = float32(1.0) / np.sqrt(squares / size + eps)
    for c in range(len(x)):
        x[c] = (x[c] - mean) * inverse_std
        y[c] = x[c] * weight[c] + bias[c]
    return inverse_std


@inlined
def normalise_row_backward(dout, normalised, inverse_std, weight, dx, dweight, dbias):
    """dx = (dx̂ − mean(dx̂) − x̂ mean(dx̂ x̂)) / σ with dx̂ = γ dout; adds dout x̂ and dout to dweight and dbias."""
    size = float32(len(dout))
    mean = projection = float32(0.0)
    for c in range(len(dout)):
        dnormalised = product(dout[c], weight[c])
        mean += dnormalised
        projection += dnormalised * normalised[c]
    mean /= size
    projection /= size
    for c in range(len(dout)):
        dweight[c] += dout[c] * normalised[c]
        dbias[c] += dout[c]
        dx[c] = (product(dout[c], weight[c]) - mean - normalised[c] * projection) * inverse_std


# -- LayerNorm alone ------------------------------------------------------------------------------


@compiled
def _norm_rows(x, weight, bias, eps, normalised, inverse_std, y):
    for r in range(len(x)):
        normalised[r] = x[r]
        inverse_std[r] = normalise_row(normalised[r], weight, bias, eps, y[r])


@compiled
def _norm_rows_backward(dout, normalised, inverse_std, weight, dx, dweight, dbias):
    for r in range(len(dout)):
        normalise_row_backward(dout[r], normalised[r], inverse_std[r], weight, dx[r], dweight, dbias)


def layer_norm(x: np.ndarray, weight: np.ndarray, bias: np.ndarray, eps: float) -> tuple[np.ndarray, tuple]:
    """See ``ops.layer_norm``."""
    rows, weight, bias = as_rows(x, x.shape[-1]), np.ascontiguousarray(weight), np.ascontiguousarray(bias)
    normalised, y = empty_like(rows), empty_like(rows)
    inverse_std = empty((len(rows),))

    def block(s: slice) -> None:
        _norm_rows(rows[s], weight, bias, float32(eps), normalised[s], inverse_std[s], y[s])

    run_blocks(block, len(rows), ROWS)
    return y.reshape(x.shape), (normalised, inverse_std, weight)


def layer_norm_backward(dout: np.ndarray, cache: tuple) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """See ``ops.layer_norm_backward``."""
    normalised, inverse_std, weight = cache
    rows = as_rows(dout, len(weight))
    dx = empty_like(rows)
    sums = partial_sums(len(rows), len(weight))

    def block(s: slice) -> None:
        dweight, dbias = sums[s.start // ROWS]
        _norm_rows_backward(rows[s], normalised[s], inverse_std[s], weight, dx[s], dweight, dbias)

    run_blocks(block, len(rows), ROWS)
    dweight, dbias = sums.sum(axis=0)
    return dx.reshape(dout.shape), dweight, dbias


def partial_sums(rows: int, size: int) -> np.ndarray:
    """(blocks, 2, H) of zeros: where each block of rows adds up its shares of dweight and dbias."""
    return np.zeros((-(-rows // ROWS), 2, size), dtype=np.float32)


# -- dropout + residual + LayerNorm ---------------------------------------------------------------


@compiled
def _residual_norm_rows(x, residual, weight, bias, eps, drop, first, normalised, inverse_std, y):
    for r in range(len(x)):
        total = normalised[r]
        for c in range(len(total)):
            factor = dropout_factor(uint32(first + uint32(r * len(total) + c)), drop)
            total[c] = residual[r, c] + x[r, c] * factor
        inverse_std[r] = normalise_row(total, weight, bias, eps, y[r])


@compiled
def _residual_norm_rows_backward(
    dout, normalised, inverse_std, weight, drop, first, dx, dresidual, dweight, dbias
):
    for r in range(len(dout)):
        dtotal = dresidual[r]
        normalise_row_backward(dout[r], normalised[r], inverse_std[r], weight, dtotal, dweight, dbias)
        for c in range(len(dtotal)):
            dx[r, c] = dtotal[c] * dropout_factor(uint32(first + uint32(r * len(dtotal) + c)), drop)


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
    x_rows, residual_rows = as_rows(x, size), as_rows(residual, size)
    weight, bias = np.ascontiguousarray(weight), np.ascontiguousarray(bias)
    normalised, y = empty_like(x_rows), empty_like(x_rows)
    inverse_std = empty((len(x_rows),))
    drop = dropout_numbers(probability, key)

    def block(s: slice) -> None:
        first = uint32(s.start * size & 0xFFFFFFFF)
        _residual_norm_rows(
            *(x_rows[s], residual_rows[s], weight, bias, float32(eps), drop, first),
            *(normalised[s], inverse_std[s], y[s]),
        )

    run_blocks(block, len(x_rows), ROWS)
    return y.reshape(x.shape), (normalised, inverse_std, weight, drop)


def dropout_residual_norm_backward(
    dout: np.ndarray, cache: tuple
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """See ``composites.dropout_residual_norm_backward``."""
    normalised, inverse_std, weight, drop = cache
    rows = as_rows(dout, len(weight))
    count, size = rows.shape
    dx, dresidual = empty_like(rows), empty_like(rows)
    sums = partial_sums(count, size)

    def block(s: slice) -> None:
        first = uint32(s.start * size & 0xFFFFFFFF)
        _residual_norm_rows_backward(
            *(rows[s], normalised[s], inverse_std[s], weight, drop, first),
            *(dx[s], dresidual[s], *sums[s.start // ROWS]),
        )

    run_blocks(block, count, ROWS)
    dweight, dbias = sums.sum(axis=0)
    return dx.reshape(dout.shape), dresidual.reshape(dout.shape), dweight, dbias
