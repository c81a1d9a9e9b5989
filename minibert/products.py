"""Matrix products on a CPU, for the kernels: by NumPy's BLAS, or by oneDNN or MKL where they are installed.

NumPy brings OpenBLAS. Intel's oneDNN (the extra ``onednn``; Apache-2.0) has code of its own for many
processors, and is faster on most. Intel's MKL (the extra ``mkl``; free of charge, but not open source) is
faster still on some of Intel's. Every product here is computed by one thread: the kernels share the rows
among their threads (``minibert.threads``). Libraries add in different orders, so their last bits differ.

Some processors multiply bfloat16 numbers twice as fast as float32, or faster. "bfloat16" is oneDNN's product
of factors that are rounded to bfloat16, which has float32's range and 8 bits of precision. Sums, results and
all that is stored stay in float32: this is what bfloat16 means on a CPU.
"""

import functools
import time
from collections.abc import Callable, Iterable

import numpy as np

from minibert import mkl, onednn
from minibert.blas import Product
from minibert.devices import Device, processor_facts
from minibert.errors import UserError
from minibert.precision import PRECISIONS, check_precision
from minibert.threads import run_all

Multiply = Callable[[np.ndarray, np.ndarray, np.ndarray], object]

NUMPY, ONEDNN, MKL, BFLOAT16 = "numpy", "onednn", "mkl", "bfloat16"
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
    """The name of the library that was chosen: "numpy", "onednn", "mkl" or "bfloat16"."""
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

    def measure() -> None:
        for _ in range(ROUNDS):
            for name in best:
                product = LIBRARIES[name]()
                start = time.perf_counter()
                product(x, weight.T, y)
                product(y, weight, dx)
                product(y.T, x, dweight)
                best[name] = min(best[name], time.perf_counter() - start)

    run_all([measure])  # each library on one thread, as in the kernels
    return best


@functools.cache
def _onednn() -> Multiply:
    """oneDNN's single-precision product. Raises UserError if it is missing."""
    return _or_numpy(onednn.single_precision())


@functools.cache
def _mkl() -> Multiply:
    """MKL's. Raises UserError if it is missing."""
    return _or_numpy(mkl.single_precision())


def _or_numpy(product: Product) -> Multiply:
    """This product for whatever arrays it takes, and NumPy's for others."""

    def multiply(a: np.ndarray, b: np.ndarray, out: np.ndarray) -> None:
        if not product(a, b, out):
            np.matmul(a, b, out=out)

    return multiply


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
    product = onednn.bfloat16()

    def by_bfloat16(a: np.ndarray, b: np.ndarray, out: np.ndarray) -> None:
        a, b = _rounded(a), _rounded(b)
        if not product(a, b, out):
            np.matmul(a.astype(np.float32), b.astype(np.float32), out=out)

    return by_bfloat16


def _rounded(x: np.ndarray) -> np.ndarray:
    """x in bfloat16, in the same layout; x itself, if it is."""
    return x.astype("bfloat16", order="K", copy=False)


def _processor_features() -> set[str]:
    """What the processor can do, in Linux's words; nothing is known on other systems."""
    return set(processor_facts().get("flags", "").split())


LIBRARIES: dict[str, Callable[[], Multiply]] = {
    NUMPY: lambda: _by_numpy,
    ONEDNN: _onednn,
    MKL: _mkl,
    BFLOAT16: _bfloat16,
}
