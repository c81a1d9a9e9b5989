"""A GPU made of paper, for notebook 17: NumPy computes, and what a GPU would have to do is written down.

It stands in for CuPy as an array library of its own. What it counts (launches, bytes, copies between host
and device) follows from the code that runs on it and from nothing else. It has no clock.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import scipy.special

from minibert.devices import Device


class Launch(NamedTuple):
    """One piece of work for the GPU: bytes that it reads and writes, and arithmetic operations."""

    name: str
    read: int = 0
    written: int = 0
    operations: int = 0


class PaperArray:
    """An array of a :class:`PaperGPU`. Like CuPy's it refuses to be mixed with NumPy's."""

    def __init__(self, values: np.ndarray, gpu: "PaperGPU"):
        self.values, self.gpu = values, gpu

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *operands: Any, **keywords: Any) -> Any:
        """NumPy passes on what it is asked: np.exp(x) is the device's exp, np.exp(x, out=…) is refused."""
        return NotImplemented if method != "__call__" or keywords else self.gpu.run(ufunc, *operands)

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
            return lambda *arguments, **keywords: self.gpu.run(
                getattr(np.ndarray, name), self, *arguments, **keywords
            )
        return PaperArray(found, self.gpu) if isinstance(found, np.ndarray) else found

    def get(self) -> np.ndarray:
        """A copy on the host, which has to wait until everything launched so far is done."""
        self.gpu.wait()
        return self.values.copy()

    def item(self) -> Any:
        """The Python number of an array with one element; the host waits for it."""
        return self.get().item()

    def __len__(self) -> int:
        return len(self.values)

    def __bool__(self) -> bool:
        return bool(self.get())

    def __int__(self) -> int:
        return int(self.get())

    def __float__(self) -> float:
        return float(self.get())


class PaperGPU(ModuleType):
    """The array library, CuPy's part in ``xp``, and the notes about what was asked of it.

    ``launches`` holds a :class:`Launch` for every operation that computes or copies something on the
    device (a view or an allocation does not), ``uploads`` and ``waits`` count copies from the host and
    to the host. ``device`` is what models take. With the name "cupy" the table of ``ops`` chooses the CUDA
    kernels for its arrays; that makes sense only where launches are noted (``kernels.cuda.on_paper``).
    """

    ndarray = PaperArray

    def __init__(self, name: str = "paper"):
        super().__init__(name)
        self.device = Device("paper", self)
        self.special = _Special(self)
        self._recording: list[Callable[[], Any]] | None = None
        self.clear()

    def clear(self) -> None:
        """Begin the notes anew."""
        self.launches: list[Launch] = []
        self.uploads = self.waits = 0

    def wait(self) -> None:
        """Note that the host reads what the device has computed. Raises RuntimeError while recording."""
        if self._recording is not None:
            raise RuntimeError("the stream is recording: no value can be read now")
        self.waits += 1

    def asarray(self, array: Any, dtype: Any = None) -> PaperArray:
        """The way in: an array of the device, copied from the host if it is not there yet.

        Raises RuntimeError for a copy while recording.
        """
        if isinstance(array, PaperArray):
            return array if dtype in (None, array.dtype) else array.astype(dtype)
        if self._recording is not None:
            raise RuntimeError("the stream is recording: nothing can be copied from the host now")
        self.uploads += 1
        return PaperArray(np.array(array, dtype=dtype), self)

    array = asarray

    def __getattr__(self, name: str) -> Any:
        """A function or a constant of NumPy's, as this library has it."""
        found = getattr(np, name)
        if isinstance(found, type) or not callable(found):
            return found
        return lambda *arguments, **keywords: self.run(found, *arguments, **keywords)

    def run(self, function: Callable, *arguments: Any, **keywords: Any) -> Any:
        """Call NumPy's ``function`` on the values of the arrays, and note what a GPU would do for it.

        Raises TypeError, as CuPy does, for an array of the host among the arguments.
        """
        operands: list[np.ndarray] = []

        def values(argument: Any) -> Any:
            if isinstance(argument, PaperArray):
                operands.append(argument.values)
                return argument.values
            if isinstance(argument, np.ndarray):
                raise TypeError(f"{function.__name__}: unsupported type {type(argument)}")
            return type(argument)(map(values, argument)) if isinstance(argument, tuple | list) else argument

        arguments = tuple(map(values, arguments))
        out = keywords.pop("out", None)
        keywords = {name: values(keyword) for name, keyword in keywords.items()}

        def compute() -> Any:
            return function(*arguments, **keywords)

        if function is np.ndarray.__setitem__:
            self._note("setitem", operands[1:], arguments[0][arguments[1]])
            self._do(compute)
            return None
        if out is not None:
            self._note(function.__name__, operands, out.values)
            self._do(lambda: function(*arguments, out=out.values, **keywords))
            return out
        result = compute()
        if not isinstance(result, np.ndarray | np.generic):
            return result
        result = np.asarray(result)
        if not any(np.may_share_memory(result, operand) for operand in operands):  # no view
            self._note(function.__name__, operands, result)
            if self._recording is not None:
                self._recording.append(lambda: np.copyto(result, compute()))
        return PaperArray(result, self)

    def _note(self, name: str, operands: list[np.ndarray], result: np.ndarray) -> None:
        name = name.strip("_")
        if name.startswith("empty"):
            return
        count = max(array.size for array in (*operands, result))
        if name == "matmul":
            count = 2 * result.size * operands[0].shape[-1]
        read = sum(operand.nbytes for operand in {id(operand): operand for operand in operands}.values())
        self.launches.append(Launch(name, read, result.nbytes, count))

    def _do(self, operation: Callable[[], Any]) -> None:
        """What writes in place is done at once, or only noted while a recording is made."""
        if self._recording is None:
            operation()
        else:
            self._recording.append(operation)

    @contextmanager
    def record(self) -> Iterator[list[Callable[[], Any]]]:
        """Within this block operations are recorded, as in a CUDA graph; calling all in turn replays them."""
        recording: list[Callable[[], Any]] = []
        self._recording = recording
        try:
            yield recording
        finally:
            self._recording = None


class _Special:
    """What lies beside the library: the error function."""

    def __init__(self, gpu: PaperGPU):
        self._gpu = gpu

    def erf(self, x: PaperArray) -> PaperArray:
        """erf(x) = 2/√π ∫₀ˣ exp(−t²) dt, for each number."""
        return self._gpu.run(scipy.special.erf, x)


def _attach_operators() -> None:
    """Python's operators, each by way of NumPy's function that computes it."""
    binary = {
        "add": np.add,
        "sub": np.subtract,
        "mul": np.multiply,
        "truediv": np.divide,
        "floordiv": np.floor_divide,
        "mod": np.remainder,
        "pow": np.power,
        "matmul": np.matmul,
        "and": np.bitwise_and,
        "or": np.bitwise_or,
        "xor": np.bitwise_xor,
        "lshift": np.left_shift,
        "rshift": np.right_shift,
    }
    for name, ufunc in binary.items():
        _attach(name, lambda a, b, ufunc=ufunc: a.gpu.run(ufunc, a, b))
        _attach(f"r{name}", lambda a, b, ufunc=ufunc: a.gpu.run(ufunc, b, a))
        _attach(f"i{name}", lambda a, b, ufunc=ufunc: a.gpu.run(ufunc, a, b, out=a))
    for name in ("neg", "abs", "invert", "eq", "ne", "lt", "le", "gt", "ge", "getitem", "setitem"):
        method = getattr(np.ndarray, f"__{name}__")
        _attach(name, lambda *operands, method=method: operands[0].gpu.run(method, *operands))


def _attach(name: str, operator: Callable) -> None:
    setattr(PaperArray, f"__{name}__", operator)


_attach_operators()
