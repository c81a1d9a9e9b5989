"""Matrix products by cuBLAS, summed up in float32, also of many heads at once, also in a captured graph.

CuPy's own matmul widens stacks of float16, refuses stacks of bfloat16, and refuses everything while a
graph is captured. So cuBLAS is called here, through a handle of our own; where its library is not found,
CuPy does the products after all.
"""

import ctypes
import functools
import warnings
from typing import Any

from minibert.arrays import Array, get_array_module
from minibert.kernels.cuda.launch import contiguous
from minibert.precision import tf32_allowed

# From cublas_api.h and library_types.h.
NORMAL, TRANSPOSED = 0, 1
REAL = {"float32": 0, "float16": 2, "bfloat16": 14}
COMPUTE_FLOAT32, COMPUTE_TF32 = 68, 77
DEFAULT_ALGORITHM = -1

WORKSPACE = 32 << 20  # bytes, what cuBLAS recommends for Hopper


# -- cuBLAS -------------------------------------------------------------------------------------------


class Cublas:
    """The two functions of cuBLAS that are needed, each on CuPy's current device and stream."""

    def __init__(self, library: ctypes.CDLL):
        pointer, number, stride = ctypes.c_void_p, ctypes.c_int, ctypes.c_longlong
        matrix = pointer, number, number  # where it is, its type, its leading dimension
        flags, sizes = (number, number), (number, number, number)
        start = pointer, *flags, *sizes, pointer  # the first is the handle, the last alpha
        self._library = library
        self._single = library.cublasGemmEx
        self._single.argtypes = [*start, *matrix, *matrix, pointer, *matrix, number, number]
        self._strided = library.cublasGemmStridedBatchedEx
        self._strided.argtypes = [
            *(*start, *matrix, stride, *matrix, stride, pointer, *matrix, stride),
            *(number, number, number),
        ]
        library.cublasCreate_v2.argtypes = [pointer]
        library.cublasSetStream_v2.argtypes = [pointer, pointer]
        library.cublasSetWorkspace_v2.argtypes = [pointer, pointer, ctypes.c_size_t]
        self._handle = functools.cache(self._make_handle)

    def _make_handle(self, device: int, stream: int) -> tuple[ctypes.c_void_p, Any]:
        """A handle for this device and stream, and its workspace, which has to live as long.

        A workspace of our own for every stream: cuBLAS then allocates nothing, as a capture demands,
        and gives the same bits every time.
        """
        import cupy

        handle = ctypes.c_void_p()
        _check("cublasCreate", self._library.cublasCreate_v2(ctypes.byref(handle)))
        workspace = cupy.cuda.Memory(WORKSPACE)
        _check("cublasSetStream", self._library.cublasSetStream_v2(handle, stream))
        _check("cublasSetWorkspace", self._library.cublasSetWorkspace_v2(handle, workspace.ptr, WORKSPACE))
        return handle, workspace

    def _current_handle(self) -> ctypes.c_void_p:
        import cupy

        return self._handle(cupy.cuda.runtime.getDevice(), cupy.cuda.get_current_stream().ptr)[0]

    def gemm(
        self, sizes: tuple, alpha: float, a: tuple, b: tuple, beta: float, c: tuple, batch: int, compute: int
    ) -> None:
        """C = alpha · op(A) op(B) + beta · C for ``batch`` triples of matrices, column after column.

        sizes (op of A, op of B, m, n, k); A, B, C: (address, type, leading dimension, and from one
        matrix of the batch to the next how many elements).
        """
        factor, kept = ctypes.c_float(alpha), ctypes.c_float(beta)
        start = (self._current_handle(), *sizes, ctypes.addressof(factor))
        end = compute, DEFAULT_ALGORITHM
        if batch == 1:
            status = self._single(*start, *a[:3], *b[:3], ctypes.addressof(kept), *c[:3], *end)
        else:
            status = self._strided(*start, *a, *b, ctypes.addressof(kept), *c, batch, *end)
        _check("cublasGemm", status)


def _check(function: str, status: int) -> None:
    if status != 0:
        raise RuntimeError(f"{function} failed with status {status} (see cublasStatus_t in cuBLAS's manual)")


@functools.cache
def find_cublas() -> Cublas | None:
    """cuBLAS, or None, with a warning, where it cannot be loaded."""
    try:
        from cuda import pathfinder  # CuPy's own way of finding it, so that there is only one cuBLAS

        return Cublas(ctypes.CDLL(pathfinder.load_nvidia_dynamic_lib("cublas").abs_path))
    except Exception as error:  # pathfinder missing, the library missing, or without a function: many kinds
        warnings.warn(
            f"cuBLAS cannot be called directly ({error}); CuPy multiplies instead: slower in 16 bits, "
            "and a step cannot be captured",
            stacklevel=2,
        )
        return None


# -- Products of arrays -------------------------------------------------------------------------------


def multiply(a: Array, b: Array, out: Array, scale: float = 1.0, keep: float = 0.0) -> Array:
    """out = scale · a b + keep · out, for matrices or stacks of them with two leading axes; returns ``out``.

    a (…, M, K) and b (…, K, N) of one dtype; out (…, M, N) of that dtype or float32. All may be views,
    such as ``x.T``, with any step from matrix to matrix, if either rows or columns lie without gaps; a
    row of ``out`` must.
    """
    blas = find_cublas()
    if blas is None:
        return _multiply_by_library(a, b, out, scale, keep)
    (a_flag, a_step), (b_flag, b_step), (_, out_step) = _layout(a), _layout(b), _layout(out)
    # cuBLAS reads columns where our arrays have rows, so it is given outᵀ = bᵀ aᵀ.
    sizes = b_flag, a_flag, b.shape[-1], a.shape[-2], a.shape[-1]
    compute = COMPUTE_TF32 if a.dtype.name == "float32" and tf32_allowed() else COMPUTE_FLOAT32
    # It takes a stack with one leading axis: the longer of the two, while we loop over the shorter.
    leading = out.shape[:-2] or (1, 1)
    loop, batch = (0, 1) if leading[0] <= leading[1] else (1, 0)

    def operand(x: Array, step: int, index: int) -> tuple[int, int, int, int]:
        strides = x.strides[:-2] or (0, 0)
        address = _address(x) + index * strides[loop]
        return address, REAL[x.dtype.name], step, strides[batch] // x.itemsize

    for i in range(leading[loop]):
        factors = operand(b, b_step, i), operand(a, a_step, i)
        blas.gemm(sizes, scale, *factors, keep, operand(out, out_step, i), leading[batch], compute)
    return out


def _layout(x: Array) -> tuple[int, int]:
    """Whether cuBLAS has to transpose x, and the elements from one of its rows (columns) to the next."""
    (rows, columns), (row_step, column_step) = x.shape[-2:], (s // x.itemsize for s in x.strides[-2:])
    if column_step == 1 or columns == 1:
        return NORMAL, max(row_step, columns)
    if row_step == 1 or rows == 1:
        return TRANSPOSED, max(column_step, rows)
    raise ValueError(f"neither rows nor columns are without gaps: shape {x.shape}, strides {x.strides}")


def _address(x: Array) -> int:
    """Where x begins in the device's memory (or the host's, for tests with NumPy)."""
    return x.ctypes.data if hasattr(x, "ctypes") else x.data.ptr


def _multiply_by_library(a: Array, b: Array, out: Array, scale: float, keep: float) -> Array:
    product = (a.astype("float32") @ b.astype("float32")) * scale
    out[...] = product + keep * out if keep else product
    return out


def multiply_rows(x: Array, weight: Array) -> Array:
    """x Wᵀ: x (…, K), weight (N, K) → (…, N), in the dtype of x."""
    rows, weight = contiguous(x).reshape(-1, x.shape[-1]), contiguous(weight, x.dtype)
    y = get_array_module(x).empty((rows.shape[0], weight.shape[0]), dtype=x.dtype)
    return multiply(rows, weight.T, y).reshape(*x.shape[:-1], -1)


def product_gradients(dout: Array, x: Array, weight: Array) -> tuple[Array, Array]:
    """Derivatives of :func:`multiply_rows`: dx (…, K) in the dtype of x, dweight (N, K) float32."""
    xp, rows = get_array_module(x), contiguous(x).reshape(-1, x.shape[-1])
    dout = dout.reshape(-1, dout.shape[-1])  # (R, N)
    dx, dweight = xp.empty_like(rows), xp.empty(weight.shape, dtype="float32")
    multiply(dout, contiguous(weight, x.dtype), dx)
    multiply(dout.T, rows, dweight)
    return dx.reshape(x.shape), dweight
