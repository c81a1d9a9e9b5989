"""The CUDA kernels on the CPU: compiled by g++ (see emulator.h), launched on NumPy arrays.

It alone proves, without a GPU, that the CUDA sources compute what the references compute, and checks what
a GPU would not: that every argument has the type which the kernel expects, that nothing outside the arrays is
written or has an influence, that all threads come to a barrier, and that the order in which they run makes no
difference. It cannot prove that NVIDIA's compilers accept the sources (``minibert.kernels.cuda.compile`` does
that), nor that CuPy and cuBLAS do what ``Emulator`` and ``HostBlas`` do in their place.
"""

import ctypes
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np

from minibert.kernels.cuda import launch, products

HEADER = Path(__file__).with_name("emulator.h")
TYPES = {number: name for name, number in products.REAL.items()}
GUARD = 8192  # bytes before and behind an array
GUARD_BYTE = 0x7B  # repeated, a huge but finite number in every type: whoever reads it shows it


class Emulator(launch.Launcher):
    """Launches kernels as host code: the .cu files in ``sources``, compiled into the folder ``build``."""

    def __init__(self, build: Path, sources: Path = launch.FOLDER):
        self.build, self.sources = build, sources
        self.libraries: dict[str, ctypes.CDLL] = {}
        self.launched: set[str] = set()

    @staticmethod
    def missing() -> str:
        """Why there can be no emulator here, or nothing."""
        return "" if shutil.which("g++") else "needs g++ to compile the CUDA sources as host code"

    def kernels(self) -> dict[str, str]:
        """Every kernel and its source."""
        found = {}
        for path in sorted(self.sources.glob("*.cu")):
            for kernel in re.findall(r"__global__ void (\w+)\(", path.read_text(encoding="utf-8")):
                found[kernel] = path.stem
        return found

    def library(self, dtype: str) -> ctypes.CDLL:
        """All sources, compiled for activations of ``dtype``: in one piece, which takes the least time."""
        if dtype not in self.libraries:
            text = f'#include "{HEADER}"\n'
            text += "".join(f'#include "{name}.cu"\n' for name in sorted(set(self.kernels().values())))
            text += "".join(f"KERNEL({name})\n" for name in self.kernels())
            source, library = self.build / f"{dtype}.cpp", self.build / f"{dtype}.so"
            source.write_text(text, encoding="utf-8")
            command = ["g++", "-shared", "-fPIC", "-O1", "-w", *launch.options(dtype), f"-I{self.sources}"]
            done = subprocess.run([*command, source, "-o", library], capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            self.libraries[dtype] = ctypes.CDLL(library)
        return self.libraries[dtype]

    def require(self, sources, dtype):
        assert set(sources) <= set(self.kernels().values())
        self.library(dtype)

    def run(self, source, kernel, dtype, grid, block, arguments):
        assert self.kernels()[kernel] == source
        library = self.library(dtype)
        self.launched.add(kernel)
        signature = getattr(library, f"signature_{kernel}")
        signature.restype = ctypes.c_char_p
        self._check_types(kernel, signature().decode().split(), arguments)
        (grid_x, grid_y), (block_x, block_y) = ((*pair, 1)[:2] for pair in (grid, block))
        assert block_x * block_y <= 1024 and block_x * block_y % 32 == 0
        assert 0 < grid_x < 2**31 and 0 < grid_y < 2**16
        sizes = [(ctypes.c_uint * 2)(*pair) for pair in ((grid_x, grid_y), (block_x, block_y))]

        results = []
        for backwards in (0, 1):
            memory = Memory(arguments)
            status = getattr(library, f"launch_{kernel}")(*sizes, memory.pointers(arguments), backwards)
            assert status == 0, f"{kernel}: a barrier that not all threads came to"
            memory.check_guards(kernel)
            results.append(memory)
        for once, again in zip(results[0].copies.values(), results[1].copies.values(), strict=True):
            assert np.array_equal(once, again), f"{kernel}: the order of the threads changes the result"
        results[0].write_back()

    @staticmethod
    def _check_types(kernel, types, arguments):
        given = [
            "*" if a is None else f"*{a.dtype.name}" if isinstance(a, np.ndarray) else a.dtype.name
            for a in arguments
        ]
        assert len(types) == len(given), f"{kernel} has {len(types)} parameters, was given {len(given)}"
        for number, (expected, got) in enumerate(zip(types, given, strict=True)):
            null = got == "*" and expected.startswith("*")
            assert got == expected or null, f"{kernel}, argument {number}: expected {expected}, got {got}"


class Memory:
    """Copies of the arrays in a launch, one for each address, between two guards."""

    def __init__(self, arguments):
        self.arrays = {}
        for array in arguments:
            if isinstance(array, np.ndarray) and array.size:
                self.arrays[array.ctypes.data] = array
        self.copies = {}
        for address, array in self.arrays.items():
            raw = np.full(_extent(array) + 3 * GUARD, GUARD_BYTE, np.uint8)
            # As far from a multiple of 16 bytes as the original: that decides how it is loaded.
            start = GUARD + (address - raw.ctypes.data - GUARD) % 64
            copy = raw[start - GUARD : start + _extent(array) + GUARD]
            copy[GUARD:-GUARD] = _bytes_of(array)
            self.copies[address] = copy

    def pointers(self, arguments):
        self.values = []
        for argument in arguments:
            if argument is None or (isinstance(argument, np.ndarray) and not argument.size):
                self.values.append(ctypes.c_void_p(None))
            elif isinstance(argument, np.ndarray):
                self.values.append(ctypes.c_void_p(self.copies[argument.ctypes.data].ctypes.data + GUARD))
            else:
                self.values.append({"i": ctypes.c_int, "f": ctypes.c_float}[argument.dtype.kind](argument))
        return (ctypes.c_void_p * len(self.values))(*(ctypes.addressof(value) for value in self.values))

    def check_guards(self, kernel):
        for copy in self.copies.values():
            for guard in (copy[:GUARD], copy[-GUARD:]):
                assert (guard == GUARD_BYTE).all(), f"{kernel} writes outside of an array"

    def write_back(self):
        for address, array in self.arrays.items():
            _bytes_of(array)[:] = self.copies[address][GUARD:-GUARD]


def _extent(array):
    """The bytes from an array's first element to its last."""
    return array.itemsize + sum((n - 1) * s for n, s in zip(array.shape, array.strides, strict=True))


def _bytes_of(array):
    """The memory of an array, gaps between its rows included, as bytes that can be written."""
    return np.ctypeslib.as_array((ctypes.c_uint8 * _extent(array)).from_address(array.ctypes.data))


class HostBlas:
    """What ``products.Cublas`` asks of cuBLAS, on the host: matrices stored column after column."""

    def __init__(self):
        self.calls = 0

    def gemm(self, sizes, alpha, a, b, beta, c, batch, compute):
        """C = alpha · op(A) op(B) + beta · C, with cuBLAS's own demands on the leading dimensions."""
        self.calls += 1
        a_flag, b_flag, m, n, k = sizes
        for i in range(batch):
            left = self._matrix(a, i, *((k, m) if a_flag else (m, k)))
            right = self._matrix(b, i, *((n, k) if b_flag else (k, n)))
            left, right = left.T if a_flag else left, right.T if b_flag else right
            product = alpha * (left.astype(np.float32) @ right.astype(np.float32))
            into = self._matrix(c, i, m, n)
            into[...] = product + beta * into if beta else product

    def _matrix(self, operand, index, rows, columns):
        address, kind, step, stride = operand
        assert step >= max(rows, 1)
        if TYPES[kind] == "bfloat16":
            import ml_dtypes

            dtype = np.dtype(ml_dtypes.bfloat16)
        else:
            dtype = np.dtype(TYPES[kind])
        size = (columns - 1) * step + rows
        memory = (ctypes.c_uint8 * (size * dtype.itemsize)).from_address(
            address + index * stride * dtype.itemsize
        )
        flat = np.frombuffer(memory, dtype)
        strides = (dtype.itemsize, step * dtype.itemsize)
        return np.lib.stride_tricks.as_strided(flat, (rows, columns), strides)
