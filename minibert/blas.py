"""Libraries of matrix products: how they are found, and how they see a matrix in memory."""

import ctypes
import ctypes.util
import functools
import importlib.metadata
from collections.abc import Callable

import numpy as np
import threadpoolctl

from minibert.errors import UserError

# out = a b. Says whether it was computed: a library may not take arrays that lie in memory in some way.
Product = Callable[[np.ndarray, np.ndarray, np.ndarray], bool]

DTYPES = "float32", "bfloat16"
opened: set[str] = set()  # the files of libraries that were opened here, perhaps only to be timed
KEPT = 512  # kinds of arrays, or products of such, whose description is kept


def open_library(title: str, package: str, file: str, name: str, needed: tuple[str, ...]) -> ctypes.CDLL:
    """The ``file`` of an installed package, or else the system's library of this ``name``.

    Raises UserError if it is missing, or if it lacks one of the ``needed`` functions.
    """
    try:
        files = importlib.metadata.files(package) or []
        path = next((str(each.locate()) for each in files if each.name.startswith(file)), None)
    except importlib.metadata.PackageNotFoundError:
        path = None
    path = path or ctypes.util.find_library(name)
    if path is None:
        raise UserError(f'{title} is not installed; install it with  pip install "{package}"')
    try:
        library = ctypes.CDLL(path)
        for function in needed:
            getattr(library, function)
        loaded = threadpoolctl.ThreadpoolController().lib_controllers  # their paths are real ones
        opened.update(each.filepath for each in loaded if each.dynlib._handle == library._handle)
        return library
    except (OSError, AttributeError) as error:
        raise UserError(f"{title} cannot be used ({error})") from None


def kind(x: np.ndarray) -> tuple[np.dtype, tuple, tuple]:
    """All that decides how a product is computed. The strides are in bytes."""
    return x.dtype, x.shape, x.strides


def is_matrix(dtype: np.dtype, shape: tuple, strides: tuple) -> bool:
    """Whether this is a matrix with elements of a known dtype that lie at whole multiples of their size.

    (A field of an array of records may lie otherwise.)
    """
    whole = all(stride >= 0 and stride % dtype.itemsize == 0 for stride in strides)
    return len(shape) == 2 and 0 not in shape and dtype.name in DTYPES and whole


@functools.lru_cache(KEPT)
def layout(dtype: np.dtype, shape: tuple, strides: tuple) -> tuple[bytes, int] | None:
    """How BLAS would say that a matrix lies in memory: whether transposed, and its leading dimension.

    None if it could not, or if the array has another dtype than float32 or no elements.
    """
    if dtype != np.float32 or not is_matrix(dtype, shape, strides):
        return None
    down, right = (stride // dtype.itemsize for stride in strides)
    if right == 1 and down >= shape[1]:
        return b"N", down
    if down == 1 and right >= shape[0]:
        return b"T", right
    return None


def by_sgemm(sgemm: Callable[..., object]) -> Product:
    """out = a b in float32 by this function of BLAS, for matrices that lie row by row or are transposed.

    Its arguments are whether a and b are transposed (b"N", b"T"), M, N, K, and then 1, a, b and 0, out, where
    each matrix is a pointer and its leading dimension. ``out`` must lie row by row.
    """

    def multiply(a: np.ndarray, b: np.ndarray, out: np.ndarray) -> bool:
        layouts = [layout(*kind(x)) for x in (a, b, out)]
        if None in layouts or layouts[2][0] == b"T":  # type: ignore[index]
            return False
        (a_trans, lda), (b_trans, ldb), (_, ldout) = layouts  # type: ignore[misc]
        sgemm(
            *(a_trans, b_trans, len(a), b.shape[1], len(b)),
            *(1.0, a.ctypes.data, lda, b.ctypes.data, ldb, 0.0, out.ctypes.data, ldout),
        )
        return True

    return multiply
