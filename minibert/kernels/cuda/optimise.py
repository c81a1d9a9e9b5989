"""The gradient's norm and AdamW over the flat buffers (global_norm.cu, adamw.cu), and Muon by cuBLAS."""

from minibert.arrays import Array, get_array_module
from minibert.kernels.cuda.launch import contiguous, launch, pack
from minibert.kernels.cuda.products import multiply
from minibert.ops.optimise import NEWTON_SCHULZ

THREADS = 256


def global_norm(grad: Array) -> Array:
    """See ``ops.global_norm``."""
    xp, grad = get_array_module(grad), contiguous(grad)
    blocks = min(-(-grad.size // (THREADS * pack("float32"))), 1024)
    sums, norm = xp.empty(blocks, dtype="float32"), xp.empty((), dtype="float32")
    launch("global_norm", "sum_of_squares", "float32", (blocks,), (THREADS,), grad, sums, grad.size)
    launch("global_norm", "root_of_sum", "float32", (1,), (THREADS,), sums, norm, blocks)
    return norm


def adamw_update(
    value: Array,
    grad: Array,
    mean: Array,
    variance: Array,
    lr: Array | float,
    clip: Array | float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    mean_correction: Array | float = 1.0,
    variance_correction: Array | float = 1.0,
    *,
    copy: Array | None = None,
    norm: Array | None = None,
) -> None:
    """See ``ops.adamw_update``. All buffers are float32, 1-D and without gaps.

    ``copy`` gets the new values too, in its own dtype (the 16-bit parameters that the products read).
    ``norm`` is the gradient's: where it is not a finite number, nothing is updated.
    """
    xp = get_array_module(value)
    dtype = "float32" if copy is None else copy.dtype.name
    scalars = [xp.asarray(s, dtype="float32") for s in (lr, clip, mean_correction, variance_correction)]
    blocks = -(-value.size // (THREADS * pack(dtype)))
    norm = None if norm is None else xp.asarray(norm, dtype="float32")
    arrays = value, grad, mean, variance, copy, *scalars, norm
    numbers = value.size, beta1, 1.0 - beta1, beta2, 1.0 - beta2, eps, weight_decay
    launch("adamw", "adamw", dtype, (blocks,), (THREADS,), *arrays, *numbers)


def orthogonalise(matrix: Array, steps: int = 5) -> Array:
    """See ``ops.orthogonalise``: sums and products in one, matrix (…, m, n) float32."""
    xp, (a, b, c) = get_array_module(matrix), NEWTON_SCHULZ
    tall = matrix.shape[-2] > matrix.shape[-1]
    x = contiguous(matrix.swapaxes(-1, -2) if tall else matrix).reshape(1, -1, *sorted(matrix.shape[-2:]))
    x = x / (xp.sqrt((x * x).sum(axis=(-2, -1), keepdims=True)) + 1e-20)
    square = xp.empty((*x.shape[:-1], x.shape[-2]), dtype=x.dtype)
    for _ in range(steps):
        multiply(x, x.swapaxes(-1, -2), square)
        factor = multiply(square, square, square.copy(), c, keep=b)  # b X Xᵀ + c (X Xᵀ)²
        x = multiply(factor, x, x.copy(), keep=a)
    return (x.swapaxes(-1, -2) if tall else x).reshape(matrix.shape)
