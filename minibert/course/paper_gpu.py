"""A GPU made of paper, for notebook 17: NumPy computes, and what a GPU would have to do is written down.

It shows what no other stand-in for a GPU does: how many launches, bytes and copies a piece of code costs. It
cannot show how long they take, since it has no clock, and it takes functions of NumPy's that CuPy lacks.
"""

from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import scipy.special
from numpy.lib.mixins import NDArrayOperatorsMixin

from minibert.devices import Device


class Launch(NamedTuple):
    """One piece of work for the GPU: bytes that it reads and writes, and arithmetic operations."""

    name: str
    read: int
    written: int
    operations: int


class PaperArray(NDArrayOperatorsMixin):
    """An array of a :class:`PaperGPU`. Like CuPy's it refuses to be mixed with NumPy's."""

    def __init__(self, values: np.ndarray, gpu: "PaperGPU"):
        self.values, self.gpu = values, gpu

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *operands: Any, **keywords: Any) -> Any:
        """Every operator, and np.exp(x), which NumPy passes on to the array's own library."""
        if "out" in keywords:
            (keywords["out"],) = keywords["out"]
        return self.gpu.run(ufunc, *operands, **keywords) if method == "__call__" else NotImplemented

    def __array_namespace__(self, api_version: str | None = None) -> "PaperGPU":
        return self.gpu

    def __array__(self, *arguments: Any, **keywords: Any) -> np.ndarray:
        raise TypeError("implicit conversion to a NumPy array is not allowed; say .get()")

    def __getattr__(self, name: str) -> Any:
        """A method or an attribute of NumPy's arrays, as this library has it."""
        if name.startswith("__"):  # ways in for NumPy
            raise AttributeError(name)
        found = getattr(self.values, name)
        if callable(found):
            method = getattr(np.ndarray, name)
            return lambda *arguments, **keywords: self.gpu.run(method, self, *arguments, **keywords)
        return PaperArray(found, self.gpu) if isinstance(found, np.ndarray) else found

    def __getitem__(self, index: Any) -> "PaperArray":
        return self.gpu.run(np.ndarray.__getitem__, self, index)

    def __setitem__(self, index: Any, value: Any) -> None:
        operands: list[np.ndarray] = []
        index, value = _unwrap((index, value), operands)
        self.values[index] = value
        self.gpu.note("setitem", operands, self.values[index])

    def get(self) -> np.ndarray:
        """A copy on the host, which has to wait until everything launched so far is done."""
        self.gpu.waits += 1
        return self.values.copy()

    def item(self) -> Any:
        """The Python number of an array with one element; the host waits for it."""
        return self.get().item()

    def __len__(self) -> int:
        return len(self.values)

    def __bool__(self) -> bool:
        return bool(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __float__(self) -> float:
        return float(self.item())


class PaperGPU(ModuleType):
    """The array library, CuPy's part in ``xp``, and the notes about what was asked of it.

    ``launches`` holds a :class:`Launch` for every operation that computes or copies something on the
    device (a view or an allocation does not), ``uploads`` and ``waits`` count copies from the host and
    to the host. ``device`` is what models take. With the name "cupy" the table of ``ops`` chooses the CUDA
    kernels for its arrays; that makes sense only where these are noted (``kernels.cuda.on_paper``).
    """

    ndarray = PaperArray

    def __init__(self, name: str = "paper"):
        super().__init__(name)
        self.device = Device("paper", self)
        self.special = SimpleNamespace(erf=lambda x: self.run(scipy.special.erf, x))
        self.clear()

    def clear(self) -> None:
        """Begin the notes anew."""
        self.launches: list[Launch] = []
        self.uploads = self.waits = 0

    def asarray(self, array: Any, dtype: Any = None) -> PaperArray:
        """The way in: an array of the device, copied from the host if it is not there yet."""
        if isinstance(array, PaperArray):
            return array if dtype in (None, array.dtype) else array.astype(dtype)
        self.uploads += 1
        return PaperArray(np.array(array, dtype=dtype), self)

    array = asarray

    def __getattr__(self, name: str) -> Any:
        """A function or a constant of NumPy's, as this library has it."""
        found = getattr(np, name)
        if isinstance(found, type) or not callable(found):
            return found
        return lambda *arguments, **keywords: self.run(found, *arguments, **keywords)

    def run(self, function: Callable, *arguments: Any, out: PaperArray | None = None, **keywords: Any) -> Any:
        """Call NumPy's ``function`` on the values of the arrays, and note what a GPU would do for it.

        Raises TypeError, as CuPy does, for an array of the host among the arguments.
        """
        operands: list[np.ndarray] = []
        arguments = _unwrap(arguments, operands)
        keywords = {key: _unwrap(value, operands) for key, value in keywords.items()}
        if out is not None:
            self.note(function.__name__, operands, function(*arguments, out=_unwrap(out, []), **keywords))
            return out
        result = function(*arguments, **keywords)
        if not isinstance(result, np.ndarray | np.generic):
            return result
        result = np.asarray(result)
        if not any(np.may_share_memory(result, operand) for operand in operands):  # no view
            self.note(function.__name__, operands, result)
        return PaperArray(result, self)

    def note(self, name: str, operands: list[np.ndarray], result: np.ndarray) -> None:
        """Note a launch that reads the operands, each once, and writes the result."""
        if name.startswith("empty"):
            return
        read = sum(operand.nbytes for operand in {id(operand): operand for operand in operands}.values())
        operations = max(array.size for array in (*operands, result))
        if name == "matmul":
            operations = 2 * result.size * operands[0].shape[-1]
        self.launches.append(Launch(name.strip("_"), read, result.nbytes, operations))


def _unwrap(tree: Any, found: list[np.ndarray]) -> Any:
    """The same arguments with NumPy's arrays in the place of ours; they are also added to ``found``."""
    if isinstance(tree, PaperArray):
        found.append(tree.values)
        return tree.values
    if isinstance(tree, np.ndarray):
        raise TypeError(f"unsupported type {type(tree)}")
    return type(tree)(_unwrap(branch, found) for branch in tree) if isinstance(tree, tuple | list) else tree
