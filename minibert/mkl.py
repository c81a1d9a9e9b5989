"""Intel's MKL (the extra ``mkl``) through ctypes: one product in single precision.

The thread that calls it computes it: MKL is asked for its layer without threads. The kernels have their own.
"""

import ctypes
import functools

from minibert.blas import Product, by_sgemm, open_library

# MKL's numbers, of its headers mkl_cblas.h and mkl_service.h.
ROW_MAJOR, TRANSPOSE = 101, {b"N": 111, b"T": 112}
INTEGERS_OF_32_BITS, SEQUENTIAL = 0, 1


@functools.cache
def load() -> ctypes.CDLL:
    """The library. Raises UserError if it is missing or of another kind."""
    needed = "cblas_sgemm", "MKL_Set_Interface_Layer", "MKL_Set_Threading_Layer"
    library = open_library("MKL", "mkl", "libmkl_rt.so", "mkl_rt", needed)
    library.MKL_Set_Interface_Layer(INTEGERS_OF_32_BITS)
    library.MKL_Set_Threading_Layer(SEQUENTIAL)
    return library


def single_precision() -> Product:
    """out = a b in float32; it says whether it could take the arrays. Raises UserError without MKL."""
    function, size, number, pointer = load().cblas_sgemm, ctypes.c_int, ctypes.c_float, ctypes.c_void_p
    function.argtypes = [*[size] * 6, number, pointer, size, pointer, size, number, pointer, size]

    def sgemm(a_trans: bytes, b_trans: bytes, *others: float) -> None:
        function(ROW_MAJOR, TRANSPOSE[a_trans], TRANSPOSE[b_trans], *others)

    return by_sgemm(sgemm)
