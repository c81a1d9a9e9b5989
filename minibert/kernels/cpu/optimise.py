"""The gradient norm and the optimiser's update, each in one pass over the flat buffers."""

import numpy as np

from minibert.kernels.cpu.compiled import compiled, float32
from minibert.kernels.cpu.factors import factor
from minibert.ops import optimise
from minibert.products import multiply
from minibert.threads import run_blocks

ELEMENTS = 1 << 17  # per unit of work


@compiled
def _sum_of_squares(x):
    total = float32(0.0)
    for i in range(len(x)):
        total += x[i] * x[i]
    return total


def sums_of_squares(grad: np.ndarray) -> np.ndarray:
    """See ``ops.sums_of_squares``."""
    sums = np.empty(-(-len(grad) // optimise.BLOCK), dtype=np.float64)

    def block(s: slice) -> None:
        sums[s.start // optimise.BLOCK] = _sum_of_squares(grad[s])

    run_blocks(block, len(grad), optimise.BLOCK)
    return sums


def global_norm(grad: np.ndarray) -> np.ndarray:
    """See ``ops.global_norm``."""
    return optimise.norm_from_sums(sums_of_squares(grad), "float32")


@compiled
def _adamw(value, grad, mean, variance, lr, clip, keep1, new1, keep2, new2, eps, decay, inverse1, inverse2):
    for i in range(len(value)):
        g = grad[i] * clip
        m = keep1 * mean[i] + new1 * g
        v = keep2 * variance[i] + new2 * g * g
        value[i] -= lr * (m * inverse1 / (np.sqrt(v * inverse2) + eps) + decay * value[i])
        mean[i], variance[i] = m, v


def adamw_update(
    value: np.ndarray,
    grad: np.ndarray,
    mean: np.ndarray,
    variance: np.ndarray,
    lr: np.ndarray | float,
    clip: np.ndarray | float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    mean_correction: np.ndarray | float = 1.0,
    variance_correction: np.ndarray | float = 1.0,
    *,
    copy: np.ndarray | None = None,
    norm: np.ndarray | None = None,
) -> None:
    """See ``ops.adamw_update``."""
    if norm is not None and not np.isfinite(norm):
        return
    rates = beta1, 1.0 - beta1, beta2, 1.0 - beta2, eps, weight_decay
    given = lr, clip, *rates, 1.0 / mean_correction, 1.0 / variance_correction
    numbers = [float32(number) for number in given]

    def block(s: slice) -> None:
        _adamw(value[s], grad[s], mean[s], variance[s], *numbers)
        if copy is not None:
            copy[s] = value[s]

    run_blocks(block, len(value), ELEMENTS)


@compiled
def _add_multiples(a, x, b, y):
    """y ← a x + b y."""
    for r in range(len(x)):
        for c in range(x.shape[1]):
            y[r, c] = a * x[r, c] + b * y[r, c]


def orthogonalise(matrix: np.ndarray, steps: int = 5) -> np.ndarray:
    """See ``ops.orthogonalise``. The products are those of the library that was chosen."""
    result = np.empty(matrix.shape, matrix.dtype)
    for index in np.ndindex(matrix.shape[:-2]):
        one = matrix[index]
        tall = one.shape[0] > one.shape[1]
        result[index] = _orthogonalise_wide(one.T, steps).T if tall else _orthogonalise_wide(one, steps)
    return result


def _orthogonalise_wide(matrix: np.ndarray, steps: int) -> np.ndarray:
    """The same for one matrix with at least as many columns as rows."""
    a, b, c = map(float32, optimise.NEWTON_SCHULZ)
    x = np.ascontiguousarray(matrix)
    x = x / (np.sqrt((x * x).sum()) + float32(1e-20))
    square, polynomial = np.empty((2, len(x), len(x)), x.dtype)
    product = np.empty_like(x)
    for _ in range(steps):
        x_factor = factor(x)
        multiply(x_factor, x_factor.T, square)
        square_factor = factor(square)
        multiply(square_factor, square_factor, polynomial)
        _add_multiples(b, square, c, polynomial)  # b X Xᵀ + c (X Xᵀ)²
        multiply(factor(polynomial), x_factor, product)
        _add_multiples(float32(1.0), product, a, x)
    return x
