"""Matrix products on a CPU, for the kernels: by NumPy's BLAS, or by oneDNN where that is installed.

NumPy brings OpenBLAS. Intel's oneDNN (the extra ``onednn``; Apache-2.0) has code of its own for many
processors, and is faster on most. Every product here is computed by one thread: the kernels share the rows
among their threads (``minibert.threads``). Libraries add in different orders, so their last bits differ.

Some processors multiply bfloat16 numbers twice as fast as float32, or faster. "bfloat16" is oneDNN's product
of factors that are rounded to bfloat16, which has float32's range and 8 bits of mantissa. Sums, results and
all that is stored stay in float32: this is what bfloat16 means on a CPU.
"""

import ctypes
import ctypes.util
import functools
import importlib.metadata
import time
from collections.abc import Callable, Iterable

import numpy as np

from minibert.devices import Device, processor_facts
from minibert.errors import UserError
from minibert.precision import PRECISIONS, check_precision

Multiply = Callable[[np.ndarray, np.ndarray, np.ndarray], object]

NUMPY, ONEDNN, BFLOAT16 = "numpy", "onednn", "bfloat16"
ROWS = 512  # of the products that are timed: as many as the kernels compute at a time
ROUNDS = 5
FASTER = 0.97  # another library than NumPy's must take at most this share of its time


def multiply(a: np.ndarray, b: np.ndarray, out: np.ndarray) -> None:
    """out = a b for a (M, K), b (K, N) and out (M, N), by the library that was chosen."""
    _multiply(a, b, out)


def factor(x: np.ndarray) -> np.ndarray:
    """x as the chosen library multiplies it, for a matrix that is a factor of several products.

    It is x itself, or x rounded to bfloat16.
    """
    return _rounded(x) if _name == BFLOAT16 else x


def empty_factor(x: np.ndarray) -> np.ndarray:
    """An array for :func:`fill_factor`: x itself, or an empty one of its shape for x rounded to bfloat16."""
    return np.empty(x.shape, dtype="bfloat16") if _name == BFLOAT16 else x


def fill_factor(x: np.ndarray, out: np.ndarray) -> None:
    """Let ``out``, a part of :func:`empty_factor`, be what :func:`factor` makes of x, the same part."""
    if out.dtype != x.dtype:
        out[...] = x


def _by_numpy(a: np.ndarray, b: np.ndarray, out: np.ndarray) -> None:
    np.matmul(a, b, out=out)


_name: str = NUMPY
_multiply: Multiply = _by_numpy


def products_library() -> str:
    """The name of the library that was chosen: "numpy", "onednn" or "bfloat16"."""
    return _name


def use_products(name: str) -> None:
    """Compute products with the library of this name from now on.

    Raises UserError if there is none, or if it cannot be loaded here.
    """
    global _name, _multiply
    if name not in LIBRARIES:
        raise UserError(f"there is no library {name!r} for products; choose {', '.join(LIBRARIES)}")
    _multiply = LIBRARIES[name]()
    _name = name


def is_available(name: str) -> bool:
    """Whether :func:`use_products` can choose this library."""
    try:
        LIBRARIES[name]()
    except (KeyError, UserError):
        return False
    return True


def fastest_library(shapes: Iterable[tuple[int, int]]) -> str:
    """The library that is fastest at y = x Wᵀ, dx = dy W and dW = dyᵀ x, for matrices W of these shapes.

    Those that multiply float32 numbers as they are take turns, and the best round of each counts. NumPy's
    wins if the difference is small.
    """
    usable = [name for name in LIBRARIES if name != BFLOAT16 and is_available(name)]
    if len(usable) == 1:
        return usable[0]
    seconds = dict.fromkeys(usable, 0.0)
    for shape in set(shapes):
        for name, best in _best_times(shape, usable).items():
            seconds[name] += best
    fastest = min(usable, key=lambda name: seconds[name])
    return fastest if seconds[fastest] < FASTER * seconds[NUMPY] else NUMPY


def _best_times(shape: tuple[int, int], names: Iterable[str]) -> dict[str, float]:
    """The seconds that each library takes for the three products of one matrix."""
    rng = np.random.default_rng(0)
    sizes = ((ROWS, shape[1]), shape, (ROWS, shape[0]))
    x, weight, y = (rng.standard_normal(size, dtype=np.float32) for size in sizes)
    dx, dweight = np.empty_like(x), np.empty_like(weight)
    best = dict.fromkeys(names, float("inf"))
    for _ in range(ROUNDS):
        for name in best:
            product = LIBRARIES[name]()
            start = time.perf_counter()
            product(x, weight.T, y)
            product(y, weight, dx)
            product(y.T, x, dweight)
            best[name] = min(best[name], time.perf_counter() - start)
    return best


@functools.cache
def _onednn() -> Multiply:
    """oneDNN's single-precision product, for whatever arrays it takes. Raises UserError if it is missing."""
    gemm = _gemm("dnnl_sgemm", np.dtype("float32"))

    def by_onednn(a: np.ndarray, b: np.ndarray, out: np.ndarray) -> None:
        if not gemm(a, b, out):
            np.matmul(a, b, out=out)

    return by_onednn


@functools.cache
def _bfloat16() -> Multiply:
    """oneDNN's product of factors rounded to bfloat16.

    Raises UserError if oneDNN or the package ml_dtypes is missing, or if the processor has no such products.
    """
    check_precision(PRECISIONS["bfloat16"], Device("cpu", np))
    if not _processor_features() & {"avx512_bf16", "amx_bf16"}:
        raise UserError(
            "this processor has no bfloat16 products (AVX512-BF16 or AMX, as Linux names them); use float32"
        )
    gemm = _gemm("dnnl_gemm_bf16bf16f32", np.dtype("bfloat16"))

    def by_bfloat16(a: np.ndarray, b: np.ndarray, out: np.ndarray) -> None:
        a, b = _rounded(a), _rounded(b)
        if not gemm(a, b, out):
            np.matmul(a.astype(np.float32), b.astype(np.float32), out=out)

    return by_bfloat16


def _rounded(x: np.ndarray) -> np.ndarray:
    """x in bfloat16, in the same layout; x itself, if it is."""
    return x.astype("bfloat16", order="K", copy=False)


def _processor_features() -> set[str]:
    """What the processor can do, in Linux's words; nothing is known on other systems."""
    return set(processor_facts().get("flags", "").split())


def _gemm(name: str, dtype: np.dtype) -> Callable[[np.ndarray, np.ndarray, np.ndarray], bool]:
    """oneDNN's product of this name, for factors of this dtype; it says whether it could take the arrays."""
    library = _load_onednn()
    function, size, pointer = getattr(library, name), ctypes.c_int64, ctypes.c_void_p
    function.argtypes = [
        *(ctypes.c_char, ctypes.c_char, size, size, size),
        *(ctypes.c_float, pointer, size, pointer, size, ctypes.c_float, pointer, size),
    ]

    def gemm(a: np.ndarray, b: np.ndarray, out: np.ndarray) -> bool:
        layouts = _layout(a, dtype), _layout(b, dtype), _layout(out, np.dtype("float32"))
        if None in layouts or layouts[2][0] == b"T":  # type: ignore[index]
            return False
        (a_turned, a_step), (b_turned, b_step), (_, out_step) = layouts  # type: ignore[misc]
        threads = library.omp_get_max_threads()
        library.omp_set_num_threads(1)  # of this thread only; the kernels have their own
        status = function(
            *(a_turned, b_turned, len(a), b.shape[1], len(b)),
            *(1.0, a.ctypes.data, a_step, b.ctypes.data, b_step, 0.0, out.ctypes.data, out_step),
        )
        library.omp_set_num_threads(threads)
        if status != 0:
            raise RuntimeError(f"oneDNN's product of {a.shape} and {b.shape} failed with status {status}")
        return True

    return gemm


def _load_onednn() -> ctypes.CDLL:
    try:
        files = importlib.metadata.files("onednn-cpu-gomp") or []
        path = next((str(file.locate()) for file in files if file.name == "libdnnl.so"), None)
    except importlib.metadata.PackageNotFoundError:
        path = None
    path = path or ctypes.util.find_library("dnnl")
    if path is None:
        raise UserError('oneDNN is not installed; install it with  pip install "onednn-cpu-gomp>=2023.2"')
    try:
        library = ctypes.CDLL(path)
        for name in ("dnnl_sgemm", "dnnl_gemm_bf16bf16f32", "omp_get_max_threads", "omp_set_num_threads"):
            getattr(library, name)
        return library
    except (OSError, AttributeError) as error:
        raise UserError(f"oneDNN cannot be used ({error})") from None


def _layout(x: np.ndarray, dtype: np.dtype) -> tuple[bytes, int] | None:
    """How BLAS would say that x (rows, columns) lies in memory: whether transposed, and the longer stride.

    None if it could not, or if x has another dtype or no elements.
    """
    if x.dtype != dtype or x.ndim != 2 or x.size == 0:
        return None
    down, right = (stride // dtype.itemsize for stride in x.strides)
    if right == 1 and down >= x.shape[1]:
        return b"N", down
    if down == 1 and right >= x.shape[0]:
        return b"T", right
    return None


LIBRARIES: dict[str, Callable[[], Multiply]] = {
    NUMPY: lambda: _by_numpy,
    ONEDNN: _onednn,
    BFLOAT16: _bfloat16,
}
