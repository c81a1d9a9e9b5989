"""The factors of matrix products: as they are, or rounded to bfloat16 by a compiled loop.

Which of the two is up to the library that multiplies (``minibert.products``). On one thread of an Intel Xeon,
the loop took 0.3 ns per number, and ml_dtypes' conversion 0.9 ns.
"""

import numpy as np

from minibert.kernels.cpu.compiled import compiled, uint32
from minibert.kernels.cpu.memory import empty
from minibert.products import BFLOAT16, products_library

ROWS = 32  # of a batch in bfloat16: a multiple of this


def factor(x: np.ndarray) -> np.ndarray:
    """x as the chosen library multiplies it: x itself, or x rounded to bfloat16."""
    if not _rounds(x):
        return x
    rounded = empty(x.shape, "bfloat16")
    fill_factor(x, rounded)
    return rounded


def rows_factor(x: np.ndarray) -> np.ndarray:
    """The same for rows x (R, K) of a batch, with rows of 0 at the end: see :func:`empty_rows_factor`."""
    rounded = empty_rows_factor(x)
    fill_factor(x, rounded)
    return rounded


def empty_rows_factor(x: np.ndarray) -> np.ndarray:
    """For :func:`fill_factor`: rows x (R, K) themselves, or (R', K) for x in bfloat16, 0 from row R on.

    R' is the next multiple of 32. oneDNN takes milliseconds to make the code for a product of new shapes, and
    R often differs between batches: it may be the number of tokens, or of masked words. Of the
    products' results, the first R rows are of use; to sums over the rows, those of 0 add nothing.
    """
    if not _rounds(x):
        return x
    rounded = empty((-(-len(x) // ROWS) * ROWS, x.shape[1]), "bfloat16")
    rounded[len(x) :] = 0
    return rounded


def _rounds(x: np.ndarray) -> bool:
    return products_library() == BFLOAT16 and x.dtype == np.float32


def fill_factor(x: np.ndarray, out: np.ndarray) -> None:
    """Let the first rows of ``out``, a part of a factor, be what :func:`factor` makes of x, the same part."""
    if out.dtype == x.dtype:
        return
    out = out[: len(x)]
    if x.flags.c_contiguous and out.flags.c_contiguous:
        _round(x.reshape(-1).view(np.uint32), out.reshape(-1).view(np.uint16))
    else:
        out[...] = x


@compiled
def _round(bits, out):
    """The upper half of each float32's bits: the nearest bfloat16, of two equally near ones the even one.

    Adding half of the lower half, less one, carries into the upper half where that is nearer. In a NaN this
    could end at infinity, so the bit that makes it a quiet NaN is set instead.
    """
    for i in range(len(bits)):
        word = bits[i]
        odd = uint32(word >> uint32(16)) & uint32(1)
        nearest = uint32(uint32(word + uint32(0x7FFF) + odd) >> uint32(16))
        quiet = uint32(word >> uint32(16)) | uint32(0x40)
        is_nan = (word & uint32(0x7FFFFFFF)) > uint32(0x7F800000)
        out[i] = quiet if is_nan else nearest
