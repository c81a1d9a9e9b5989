"""Compiling the .cu files on the GPU at hand, and launching their kernels."""

import functools
import operator
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from minibert.arrays import Array, get_array_module

FOLDER = Path(__file__).parent

# What activations can be stored in, and its name in the sources.
STORAGE = {"float32": "float", "float16": "float16", "bfloat16": "bfloat16"}

MAX_THREADS = 256  # of a block with several rows (common.cuh)
MAX_ROW_THREADS = 512  # of a block with one row: with up to 128 registers each they fit

MAX_TILES = 65535  # of a grid in its second direction


class KernelError(Exception):
    """A kernel cannot do what is asked: it does not compile here, or the case is beyond it."""


def read_source(name: str) -> str:
    """The text of ``name``.cu with its headers written out, each once.

    CuPy recognises a source that it has compiled before by its text, so a changed header must show there.
    """
    included: set[str] = set()

    def expand(file: str) -> str:
        text = (FOLDER / file).read_text(encoding="utf-8").replace("#pragma once\n", "")
        return re.sub(r'#include "(.+)"\n', lambda match: once(match[1]), text)

    def once(file: str) -> str:
        if file in included:
            return ""
        included.add(file)
        return expand(file)

    return expand(f"{name}.cu")


def options(dtype: str) -> tuple[str, ...]:
    """What the compiler is told, whichever it is, for activations stored as ``dtype``."""
    return "-std=c++17", f"-DSTORAGE={STORAGE[dtype]}"


@functools.cache
def _module(source: str, dtype: str, device: int) -> Any:
    """The compiled source, a ``cupy.RawModule``, or the KernelError that says why there is none."""
    import cupy

    module = cupy.RawModule(code=read_source(source), options=options(dtype), backend="nvrtc")
    try:
        module.compile()
    except Exception as error:  # NVRTC missing, too old, a GPU that lacks an instruction: CuPy has many kinds
        return KernelError(
            f"{source}.cu does not compile for {dtype} on GPU {device}: {_telling_line(error)}"
        )
    return module


def _telling_line(error: Exception) -> str:
    """Of a compiler's many lines the first that speaks of an error, else simply the first."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return next((line for line in lines if "error" in line), lines[0])


def _compiled(source: str, dtype: str) -> Any:
    import cupy

    module = _module(source, dtype, cupy.cuda.runtime.getDevice())
    if isinstance(module, KernelError):
        raise module
    return module


@functools.cache
def _kernel(source: str, name: str, dtype: str, device: int) -> Any:
    return _compiled(source, dtype).get_function(name)


class Launcher:
    """Compiles and launches through CuPy, on its current device and stream."""

    def require(self, sources: Iterable[str], dtype: str) -> None:
        """Compile the sources now. Raises KernelError if one fails."""
        for source in sources:
            _compiled(source, dtype)

    def run(
        self,
        source: str,
        kernel: str,
        dtype: str,
        grid: tuple[int, ...],
        block: tuple[int, ...],
        arguments: tuple[Any, ...],
    ) -> None:
        """Launch ``kernel`` of ``source``.cu. The arguments are arrays, np.int32, np.float32 or None."""
        import cupy

        function = _kernel(source, kernel, dtype, cupy.cuda.runtime.getDevice())
        null = np.uint64(0)
        function(grid, block, tuple(null if argument is None else argument for argument in arguments))


launcher = Launcher()


def launch(
    source: str, kernel: str, dtype: str, grid: tuple[int, ...], block: tuple[int, ...], *arguments: Any
) -> None:
    """Launch ``kernel`` of ``source``.cu, compiled for activations of ``dtype``.

    Arguments are given as the kernel lists them: an array for a pointer, None for a null pointer, a number
    for an int or a float. Raises KernelError if the source does not compile, TypeError for a fraction where
    the kernel has an int, OverflowError for an int beyond 32 bits.
    """
    kinds = parameters(source, kernel)
    given = tuple(_argument(kind, value) for kind, value in zip(kinds, arguments, strict=True))
    launcher.run(source, kernel, dtype, grid, block, given)


@functools.cache
def parameters(source: str, kernel: str) -> list[str]:
    """What a kernel lists as its parameters: "int", "float", or "*" for a pointer."""
    (listed,) = re.findall(rf"__global__ void {kernel}\(([^)]*)\)", read_source(source))
    return ["*" if "*" in one else one.split()[0] for one in listed.split(",")]


def _argument(kind: str, value: Any) -> Any:
    """The value as the kernel reads it: a float32 for a float, even if it was given as the int 1."""
    if kind == "*":
        return value
    return np.int32(operator.index(value)) if kind == "int" else np.float32(value)


def contiguous(array: Array, dtype: str | None = None) -> Array:
    """The array as kernels read it: row after row without gaps, of ``dtype``; copied only if it is not."""
    return get_array_module(array).ascontiguousarray(array, dtype=dtype)


# -- How the work is shared out (see common.cuh) ------------------------------------------------------


def pack(dtype: str) -> int:
    """How many numbers of ``dtype`` a thread loads at once: 16 bytes."""
    return 4 if dtype == "float32" else 8


def row_block(size: int, dtype: str) -> tuple[int, int]:
    """The block for kernels in which the threads of one threadIdx.y hold a whole row of ``size`` numbers.

    Raises KernelError if a row is too long for that.
    """
    threads = -(-size // pack(dtype))
    threads = 1 << (threads - 1).bit_length() if threads <= 32 else -(-threads // 32) * 32
    if threads > MAX_ROW_THREADS:
        longest = MAX_ROW_THREADS * pack(dtype)
        raise KernelError(f"rows of {size} numbers are too long; the kernels hold {longest}")
    return threads, max(MAX_THREADS // threads, 1)


def row_grid(rows: int, block: tuple[int, int], most: int) -> tuple[tuple[int], int]:
    """The grid that shares out ``rows`` and the rows of each block, a multiple of the block's height.

    A block has at most ``most`` rows, if its height allows it.
    """
    per_block = max(block[1], most // block[1] * block[1])
    return (-(-rows // per_block),), per_block


TILE = (32, 8)  # the block for kernels that work on every column by itself


def tile_grid(columns: int, dtype: str, width: int = TILE[0]) -> int:
    """How many blocks, ``width`` threads wide, stand side by side over the columns."""
    return -(-columns // (width * pack(dtype)))
