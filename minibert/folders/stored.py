"""A tensor that lies in a file: its name, type and shape, and where its bytes are.

The readers of all formats (safetensors, torch's, TensorFlow's) say in these terms what a file holds.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from minibert.errors import UserError
from minibert.folders.crc32c import masked_crc32c

# The NumPy type that the numbers are read as. bfloat16, which NumPy lacks, is the upper half of a float32.
STORAGE = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}

# The names by which users choose these types.
DTYPES = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16"}

# Bytes per number, also of the types that no parameter has, but that a file may hold beside the parameters.
ITEMSIZE = {code: np.dtype(storage).itemsize for code, storage in STORAGE.items()}
ITEMSIZE |= {"I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file: its name, type and shape there, and the byte at which its first number begins.

    ``strides`` are how many numbers apart two neighbours along each axis are, if they do not lie as in C.
    ``checksum`` is the masked CRC-32C of its bytes, if the file has one.
    """

    file: Path
    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    strides: tuple[int, ...] | None = None
    checksum: int | None = None

    def read(self) -> np.ndarray:
        """Its numbers, in the type that they are stored in; bfloat16 as the float32 of the same value.

        Raises UserError if the checksum is wrong, or the file has become shorter since it was opened.
        """
        strides = contiguous(self.shape) if self.strides is None else self.strides
        count = extent(self.shape, strides)
        numbers = np.fromfile(self.file, STORAGE[self.dtype], count, offset=self.start)
        if numbers.size < count:
            raise damaged(self.file, "model file", f"the tensor {self.name!r} is cut off")
        if self.checksum not in (None, masked_crc32c(numbers)):
            raise damaged(self.file, "model file", f"the checksum of {self.name!r} is wrong")
        if self.dtype == "BF16":
            numbers = (numbers.astype("<u4") << 16).view("<f4")
        return as_strided(numbers, self.shape, [stride * numbers.itemsize for stride in strides])

    @property
    def nbytes(self) -> int:
        """The size of its numbers as they are stored."""
        return math.prod(self.shape) * ITEMSIZE[self.dtype]


def contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides, in numbers, of an array that lies as in C: the last axis is the densest."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def extent(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """How many numbers lie from the first one of an array to its last."""
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))


def check_shape(name: str, shape: tuple[int, ...]) -> None:
    """Raise ValueError for a shape that no parameter has, before anything is computed with it."""
    if len(shape) > 8 or not all(0 <= size < 2**32 for size in shape):
        raise ValueError(f"the shape of {name[:100]!r}")


def damaged(path: Path, what: str, reason: Any) -> UserError:
    """The error for a file that is no ``what``. The reason may quote the file, which can hold anything."""
    quoted = repr(str(reason)[:200])[1:-1]
    return UserError(f"{path}: damaged or not a {what} ({quoted}); fetch or save it again")


def list_names(names: Any) -> str:
    """Names for a message: in order, quoted, only the first ten if there are more."""
    shown = [repr(name[:100]) for name in sorted(names)]
    more = f" and {len(shown) - 10:,} more" if len(shown) > 10 else ""
    return ", ".join(shown[:10]) + more
