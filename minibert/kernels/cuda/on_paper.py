"""Launches that are only noted: what a step launches and holds, on a machine without a GPU.

Notebook 17 counts the launches, and tests/kernels/cuda/test_memory.py measures the memory of a step.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np

from minibert.kernels.cuda import launch, products


class _Notes(launch.Launcher):
    """In the place of CuPy's compiler and of cuBLAS: nothing is compiled, launched or multiplied."""

    def __init__(self, note: Callable[[str], object]):
        self._note = note

    def require(self, *sources: Any) -> None:
        pass

    def run(self, source: str, kernel: str, *launch: Any) -> None:
        self._note(kernel)

    def gemm(self, *product: Any) -> None:
        self._note("cuBLAS")


@contextmanager
def noted(note: Callable[[str], object]) -> Iterator[None]:
    """Within this block ``note`` gets the name of every kernel, or "cuBLAS", and nothing is launched.

    Nobody computes, so no number that comes out means anything.
    """
    notes = _Notes(note)
    with (
        patch.object(launch, "launcher", notes),
        patch.object(products, "find_cublas", lambda: notes),
        np.errstate(all="ignore"),  # for what is computed from numbers that nobody has set
    ):
        yield
