"""Matrix products on a CPU, for the kernels: by NumPy's BLAS, or by oneDNN where that is installed.

NumPy brings OpenBLAS. Intel's oneDNN (the extra ``onednn``; Apache-2.0) has code of its own for many
processors, and is faster on most. Every product here is computed by one thread: the kernels share the rows
among their threads (``minibert.threads``). Libraries add in different orders, so their last bits differ.
"""

import ctypes
import ctypes.util
import functools
import importlib.metadata
import time
from collections.abc import Callable, Iterable

import numpy as np

from minibert.errors import UserError

Multiply = Callable[[np.ndarray, np.ndarray, np.ndarray], object]

NUMPY, ONEDNN = "numpy", "onednn"
ROWS = 512  # of the products that are timed: as many as the kernels compute at a time
ROUNDS = 5
FASTER = 0.97  # another library than NumPy's must take at most this share of its time


def multiply(a: np.ndarray, b: np.ndarray, out: np.ndarray) -> None:
    """out = a b for a (M, K), b (K, N) and out (M, N), by the library that was chosen."""
    _multiply(a, b, out)


def _by_numpy(a: np.ndarray, b: np.ndarray, out: np.ndarray) -> None:
    np.matmul(a, b, out=out)


_name: str = NUMPY
_multiply: Multiply = _by_numpy


def products_library() -> str:
    """The name of the library that was chosen: "numpy" or "onednn"."""
    return _name


def use_products(name: str) -> None:
    """Compute products with the library of this name from now on.

    Raises UserError if there is none, or if it cannot be loaded here.
    """
    global _name, _multiply
    if name not in LIBRARIES:
        raise UserError(f"there is no library {name!r} for products; choose {' or '.join(LIBRARIES)}")
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

    All libraries take turns, and the best round of each counts. NumPy's wins if the difference is small.
    """
    usable = [name for name in LIBRARIES if is_available(name)]
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
    library = _load_onednn()
    sgemm, size, pointer = library.dnnl_sgemm, ctypes.c_int64, ctypes.c_void_p
    sgemm.argtypes = [
        *(ctypes.c_char, ctypes.c_char, size, size, size),
        *(ctypes.c_float, pointer, size, pointer, size, ctypes.c_float, pointer, size),
    ]

    def by_onednn(a: np.ndarray, b: np.ndarray, out: np.ndarray) -> None:
        layouts = _layout(a), _layout(b), _layout(out)
        if None in layouts or layouts[2][0] == b"T":  # type: ignore[index]
            np.matmul(a, b, out=out)
            return
        (a_turned, a_step), (b_turned, b_step), (_, out_step) = layouts  # type: ignore[misc]
        threads = library.omp_get_max_threads()
        library.omp_set_num_threads(1)  # of this thread only; the kernels have their own
        status = sgemm(
            *(a_turned, b_turned, len(a), b.shape[1], len(b)),
            *(1.0, a.ctypes.data, a_step, b.ctypes.data, b_step, 0.0, out.ctypes.data, out_step),
        )
        library.omp_set_num_threads(threads)
        if status != 0:
            raise RuntimeError(f"oneDNN's product of {a.shape} and {b.shape} failed with status {status}")

    return by_onednn


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
        for name in ("dnnl_sgemm", "omp_get_max_threads", "omp_set_num_threads"):
            getattr(library, name)
        return library
    except (OSError, AttributeError) as error:
        raise UserError(f"oneDNN cannot be used ({error})") from None


def _layout(x: np.ndarray) -> tuple[bytes, int] | None:
    """How BLAS would say that x (rows, columns) lies in memory: whether transposed, and the longer stride.

    None if it could not, or if x is not float32 or has no elements.
    """
    if x.dtype != np.float32 or x.ndim != 2 or x.size == 0:
        return None
    down, right = (stride // 4 for stride in x.strides)
    if right == 1 and down >= x.shape[1]:
        return b"N", down
    if down == 1 and right >= x.shape[0]:
        return b"T", right
    return None


LIBRARIES: dict[str, Callable[[], Multiply]] = {NUMPY: lambda: _by_numpy, ONEDNN: _onednn}
