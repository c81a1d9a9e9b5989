"""The factors of matrix products: as they are, or rounded to bfloat16 by a compiled loop.

Which of the two is up to the library that multiplies (``minibert.products``). On one thread of an Intel Xeon,
the loop took 0.3 ns a number, and ml_dtypes' conversion 0.9 ns.
"""

import numpy as np

from minibert.kernels.cpu.compiled import compiled, uint32
from minibert.kernels.cpu.memory import empty
from minibert.products import BFLOAT16, products_library


def factor(x: np.ndarray) -> np.ndarray:
    """x as the chosen library multiplies it: x itself, or x rounded to bfloat16."""
    rounded = empty_factor(x)
    fill_factor(x, rounded)
    return rounded


def empty_factor(x: np.ndarray) -> np.ndarray:
    """An array for :func:`fill_factor`: x itself, or an empty one of its shape for x rounded to bfloat16."""
    rounds = products_library() == BFLOAT16 and x.dtype == np.float32
    return empty(x.shape, "bfloat16") if rounds else x


def fill_factor(x: np.ndarray, out: np.ndarray) -> None:
    """Let ``out``, a part of :func:`empty_factor`, be what :func:`factor` makes of x, the same part."""
    if out.dtype == x.dtype:
        return
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
