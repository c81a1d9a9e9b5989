"""Launches that are only noted, so that they can be counted on a machine without a GPU (notebook 17)."""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from minibert.kernels.cuda import launch, products


@contextmanager
def noted(note: Callable[[str], object]) -> Iterator[None]:
    """Within this block ``note`` gets the name of every kernel, or "cuBLAS", and nothing is launched.

    Nobody computes, so no number that comes out means anything.
    """

    @functools.cache
    def find_cublas() -> products.Cublas:
        return _Cublas(note)

    before = launch.launcher, products.find_cublas
    launch.launcher, products.find_cublas = _Launcher(note), find_cublas
    try:
        with np.errstate(all="ignore"):  # for what is computed from numbers that nobody has set
            yield
    finally:
        launch.launcher, products.find_cublas = before


class _Launcher(launch.Launcher):
    def __init__(self, note: Callable[[str], object]):
        self._note = note

    def require(self, sources: Any, dtype: str) -> None:
        """Nothing is compiled, so nothing can fail."""

    def run(self, source: str, kernel: str, dtype: str, grid: Any, block: Any, arguments: Any) -> None:
        self._note(kernel)


class _Cublas(products.Cublas):
    def __init__(self, note: Callable[[str], object]):
        self._note = note

    def gemm(self, *arguments: Any, **keywords: Any) -> None:
        self._note("cuBLAS")
