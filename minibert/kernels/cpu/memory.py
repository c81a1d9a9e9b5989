"""Arrays for the kernels; large ones reuse memory.

The operating system provides fresh memory page by page, clearing each page when it is first written to. For a
large array that costs more than computing the contents. A training step frees and allocates the same arrays
over and over, so freed ones are kept here. The total, used and free, never exceeds the most that was ever in
use at once by more than a quarter.
"""

import math
import os
import threading
import weakref
from collections import defaultdict

import numpy as np

LARGE = 1 << 20  # bytes; smaller arrays are NumPy's business


class _Stock:
    """Free buffers by their size in bytes. Sizes are rounded, so that nearly equal ones share buffers."""

    def __init__(self) -> None:
        self.free: dict[int, list[np.ndarray]] = defaultdict(list)
        self.free_bytes = self.used_bytes = self.most_used = 0
        # An array may be freed, and call `give_back`, in the middle of `take` in the same thread.
        self.lock = threading.RLock()

    def take(self, size: int) -> np.ndarray:
        with self.lock:
            used = self.used_bytes + size
            if self.free[size]:
                self.free_bytes -= size
                buffer = self.free[size].pop()
            else:
                if used + self.free_bytes > 1.25 * max(self.most_used, used):
                    self.free.clear()
                    self.free_bytes = 0
                buffer = np.empty(size, dtype=np.uint8)  # if there is no memory, nothing has been counted yet
            self.used_bytes += size
            self.most_used = max(self.most_used, self.used_bytes)
        return buffer

    def give_back(self, buffer: np.ndarray) -> None:
        with self.lock:
            self.used_bytes -= buffer.nbytes
            self.free_bytes += buffer.nbytes
            self.free[buffer.nbytes].append(buffer)


_stock = _Stock()


def _after_fork() -> None:
    """Another thread of the parent may have held the lock; it does not exist here and never releases it."""
    _stock.lock = threading.RLock()


if hasattr(os, "register_at_fork"):  # not on Windows, where there is no fork
    os.register_at_fork(after_in_child=_after_fork)


def empty(shape: tuple[int, ...], dtype: str = "float32") -> np.ndarray:
    """An array with any contents, like ``np.empty``."""
    size = np.dtype(dtype).itemsize * math.prod(shape)
    if size < LARGE:
        return np.empty(shape, dtype=dtype)
    eighth = 1 << (size.bit_length() - 4)  # sizes are whole eighths of a power of two
    buffer = _stock.take(-(-size // eighth) * eighth)
    # Views of an array over a memoryview refer to that array, not past it, so it lives as long as they do.
    array = np.frombuffer(buffer.data, dtype=dtype, count=math.prod(shape))
    weakref.finalize(array, _stock.give_back, buffer).atexit = False
    return array.reshape(shape)


def empty_like(array: np.ndarray) -> np.ndarray:
    """The same, with the shape of ``array``."""
    return empty(array.shape)


def as_rows(array: np.ndarray, size: int) -> np.ndarray:
    """An array as contiguous float32 rows (R, size), which the loops are compiled for; copied if needed."""
    return np.ascontiguousarray(array, dtype=np.float32).reshape(-1, size)
