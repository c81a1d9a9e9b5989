"""A strict array library: NumPy behind a fence that stands where CuPy's stands.

It alone proves that all the array code keeps to what CuPy has and accepts: the ``device`` fixture runs the
suite on it. And its :func:`record` proves which dtype every single result of a step has. It cannot prove that
CuPy's functions compute the same numbers as NumPy's, and no CUDA kernel runs on it (the emulator in
``kernels/cuda`` does that).

It refuses what CuPy refuses:

- every function, method and parameter that CuPy lacks (``cupy_api.txt`` says which it has);
- lists, tuples and NumPy arrays as operands;
- being turned into a NumPy array, except by ``.get()``, CuPy's explicit transfer to the host.

It also refuses what CuPy accepts but leaves undefined, gets wrong silently or makes slow:

- assigning an array through repeated indices (``a[i] = v``: undefined which value wins), and indices out
  of range (CuPy wraps them around);
- results whose shape depends on values (``a[mask]``, ``nonzero``, ``unique``): each waits for the GPU;
- indexing with a list or a NumPy array: each is a hidden copy to the GPU;
- being an operand or argument of NumPy, whose functions CuPy replaces by its own, where it has them;
- ``add.at``: CuPy adds with atomics, in another order and to other bits every time.

As in CuPy every result is an array (reductions give 0-d ones), a Python number takes the array's dtype
(NEP 50), and a NumPy number keeps its own.

``xp`` is the library, ``StrictArray`` its array type. :func:`capture` is for ``recorder.py``.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import scipy.special

SHAPE_DEPENDS_ON_VALUES = frozenset(
    "argwhere compress delete extract flatnonzero intersect1d nonzero setdiff1d setxor1d trim_zeros union1d "
    "unique unique_all unique_counts unique_inverse unique_values".split()
)
# Parameters that stand for one array, and for several, in CuPy's signatures.
ARRAY_PARAMETERS = frozenset("a a1 a2 arr array ary b condition m prototype val values x y".split())
ARRAYS_PARAMETERS = frozenset("tup arrays arys operands args".split())
# A bool in NumPy, an array in CuPy.
COMPARE_WHOLE_ARRAYS = frozenset("allclose array_equal array_equiv".split())

_recording: list[tuple[str, np.dtype]] | None = None
_captured: list[Callable[[], Any]] | None = None


@contextmanager
def record() -> Iterator[list[tuple[str, np.dtype]]]:
    """Collect (function, dtype) of every array that is made while the context is open."""
    global _recording
    _recording = made = []
    try:
        yield made
    finally:
        _recording = None


@contextmanager
def capture() -> Iterator[list[Callable[[], Any]]]:
    """Collect what has to be called in order to repeat every operation, at the same addresses.

    As while a CUDA graph is captured, nothing is really computed: floating-point results are NaN, and what
    would be written in place stays as it was. Whatever passes a value from the host to the device or
    back is an error.
    """
    global _captured
    _captured = operations = []
    try:
        with np.errstate(all="ignore"):
            yield operations
    finally:
        _captured = None


def capturing() -> bool:
    """Whether a ``capture`` is open."""
    return _captured is not None


def enqueue(operation: Callable[[], Any]) -> None:
    """What a library beside CuPy does to arrays in place: at once, or when a capture is replayed."""
    _in_place(operation)


def _pass_host(what: str) -> None:
    """Refuse to pass a value between host and device in the midst of a capture."""
    if _captured is not None:
        raise RuntimeError(f"the stream is capturing, so {what} is disallowed")


def _in_place(operation: Callable[[], Any]) -> None:
    """Do what writes to an array that exists already; in a capture only note it."""
    if _captured is None:
        operation()
    else:
        _captured.append(operation)


def _computed(operation: Callable[[], Any], operands: Iterable[Any], name: str) -> Any:
    """The result of an operation as a strict array, or several; a capture notes how to compute it anew."""
    result = operation()
    if _captured is None or not isinstance(result, np.ndarray | np.generic):
        return _wrap(result, name)
    result = np.asarray(result)
    if not any(isinstance(a, np.ndarray) and np.may_share_memory(a, result) for a in operands):  # no view
        if result.dtype.kind == "f":
            result[...] = np.nan
        _captured.append(lambda: np.copyto(result, operation()))
    return _wrap(result, name)


def _wrap(result: Any, function: str) -> Any:
    """A NumPy result as a strict one: arrays and NumPy scalars become strict arrays."""
    if isinstance(result, np.ndarray | np.generic):
        if _recording is not None:
            _recording.append((function, result.dtype))
        return StrictArray(np.asarray(result))
    if isinstance(result, tuple | list):
        return type(result)(_wrap(item, function) for item in result)
    return result


def _operand(value: Any, function: str) -> Any:
    """The NumPy value of an operand: a strict array, a Python number or a NumPy scalar."""
    if isinstance(value, StrictArray):
        return value._data
    if isinstance(value, bool | int | float | complex | np.generic):
        return value
    raise TypeError(f"{function}: unsupported operand of type {type(value).__name__}")


def _argument(value: Any, parameter: str, function: str) -> Any:
    """The NumPy value of a function's argument; ``parameter`` tells whether it has to be an array."""
    if value is None or isinstance(value, str):
        return value
    if parameter in ARRAY_PARAMETERS:
        return _operand(value, function)
    if parameter in ARRAYS_PARAMETERS and isinstance(value, tuple | list):
        return [_operand(item, function) for item in value]
    if isinstance(value, StrictArray):
        return value._data
    if isinstance(value, np.ndarray):
        raise TypeError(f"{function}: parameter {parameter} got a NumPy array")
    return value


def _call(function: Callable, name: str, parameters: list[str], args: tuple, kwargs: dict) -> Any:
    """Call NumPy's ``function`` on strict arguments, if CuPy's takes the same parameters."""
    unknown = sorted(set(kwargs) - set(parameters))
    if unknown and not any(parameter.startswith("**") for parameter in parameters):
        raise TypeError(f"CuPy's {name} has no parameter {', '.join(unknown)}")
    starred = [parameter for parameter in parameters if parameter.startswith("*")][:1]
    names = [*itertools.takewhile(lambda parameter: parameter not in starred, parameters)]
    names += starred * (len(args) - len(names))
    if len(args) > len(names):
        raise TypeError(f"CuPy's {name} takes at most {len(names)} arguments, {len(args)} were given")
    arguments = [_argument(value, key.lstrip("*"), name) for key, value in zip(names, args, strict=False)]
    keywords = {key: _argument(value, key, name) for key, value in kwargs.items()}

    def operation() -> Any:
        return function(*arguments, **keywords)

    if kwargs.get("out") is not None:
        _in_place(operation)
        return kwargs["out"]
    owner = getattr(function, "__self__", None)  # of a method
    flat = (item for value in arguments for item in (value if isinstance(value, list) else [value]))
    return _computed(operation, [owner, *flat, *keywords.values()], name)


class StrictUfunc:
    """An elementwise function (or matmul), with CuPy's keywords."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._ufunc = getattr(np, name)

    def __call__(self, *args: Any, out: "StrictArray | None" = None, **kwargs: Any) -> "StrictArray":
        unknown = sorted(set(kwargs) - {"dtype", "casting"})
        if unknown:
            raise TypeError(f"CuPy's {self.name} has no parameter {', '.join(unknown)}")
        operands = [_operand(value, self.name) for value in args]
        if out is None:
            return _computed(lambda: self._ufunc(*operands, **kwargs), operands, self.name)
        _in_place(lambda: self._ufunc(*operands, out=_operand(out, self.name), **kwargs))
        return out


class StrictArray:
    """An array that lets nobody near its values except by the doors that CuPy's arrays have.

    Methods and operators are attached below the class from the list of CuPy's.
    """

    __array_ufunc__ = None  # NumPy's operators and functions raise TypeError, or leave it to __radd__ etc.

    def __init__(self, data: np.ndarray) -> None:
        self._data = data

    # -- Refusals -----------------------------------------------------------------------------------

    def __array__(self, *args: Any, **kwargs: Any) -> np.ndarray:
        raise TypeError("implicit conversion to a NumPy array; use .get() to say that a copy is meant")

    def __array_function__(self, function: Callable, *args: Any) -> None:
        raise TypeError(f"numpy.{function.__name__} got a strict array; call the array's own library")

    # -- What Python asks of an array -----------------------------------------------------------------

    def __array_namespace__(self, api_version: str | None = None) -> ModuleType:
        return xp

    def __bool__(self) -> bool:
        return bool(self.item())

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __len__(self) -> int:
        return len(self._data)

    def __iter__(self) -> Iterator["StrictArray"]:
        return (self[i] for i in range(len(self)))

    @property
    def data(self) -> SimpleNamespace:
        """Where the array begins in memory, as ``ptr``."""
        return SimpleNamespace(ptr=self._data.ctypes.data)

    def __repr__(self) -> str:
        return f"strict.{self._data!r}"

    def item(self) -> Any:
        """The Python number of a 0-d array: a wait for the GPU, so it has to be asked for."""
        _pass_host("reading a number")
        if self.ndim:
            raise ValueError(f"one number was asked for, the array has shape {self.shape}")
        return self._data.item()

    def get(self) -> np.ndarray:
        """A copy on the host."""
        _pass_host("a copy to the host")
        return self._data.copy()

    def set(self, array: np.ndarray, stream: Any = None) -> None:
        """Copy a host array of the same shape and dtype into this one."""
        _pass_host("a copy from the host")
        if not isinstance(array, np.ndarray) or (array.shape, array.dtype) != (self.shape, self.dtype):
            raise TypeError(f"set: a NumPy array of shape {self.shape} and dtype {self.dtype} is needed")
        self._data[...] = array

    # -- Indexing -------------------------------------------------------------------------------------

    def _index(self, key: Any) -> tuple:
        """The NumPy index for ``key``; it ends in an ellipsis, so that a single element is a 0-d view."""
        parts = key if isinstance(key, tuple) else (key,)
        for part in parts:
            if isinstance(part, list | tuple | np.ndarray):
                raise TypeError(
                    f"an index of type {type(part).__name__} would be copied to the GPU each time"
                )
        parts = tuple(part._data if isinstance(part, StrictArray) else part for part in parts)
        return parts if any(part is Ellipsis for part in parts) else (*parts, Ellipsis)

    def __getitem__(self, key: Any) -> "StrictArray":
        index = self._index(key)
        if any(isinstance(part, np.ndarray) and part.dtype == bool for part in index):
            raise TypeError("a[mask] has a shape that depends on values, which waits for the GPU; use where")
        operands = [self._data, *index]
        return _computed(lambda: self._data[index], operands, "getitem")

    def __setitem__(self, key: Any, value: Any) -> None:
        index, value = self._index(key), _operand(value, "setitem")
        if np.ndim(value) and self._repeats(index):
            raise ValueError("a[i] = values with repeated indices: undefined which value wins")
        _in_place(lambda: self._data.__setitem__(index, value))

    def _repeats(self, index: tuple) -> bool:
        """Whether an index names the same place twice."""
        if not any(isinstance(part, np.ndarray) and part.dtype != bool for part in index):
            return False
        named = np.arange(self.size).reshape(self.shape)[index]
        return np.unique(named).size < named.size


def _attach_operators() -> None:
    """Give StrictArray Python's operators, each by way of its ufunc."""
    binary = dict(
        add="add", sub="subtract", mul="multiply", truediv="divide", floordiv="floor_divide", mod="remainder",
        pow="power", matmul="matmul", lshift="left_shift", rshift="right_shift", xor="bitwise_xor"
    ) | {"and": "bitwise_and", "or": "bitwise_or"}  # fmt: skip
    comparisons = dict(
        eq="equal", ne="not_equal", lt="less", le="less_equal", gt="greater", ge="greater_equal"
    )
    unary = dict(neg="negative", pos="positive", abs="absolute", invert="invert")
    for operator, name in (binary | comparisons | unary).items():
        _attach_operator(operator, getattr(xp, name), also_reflected=operator in binary)


def _attach_operator(operator: str, ufunc: StrictUfunc, also_reflected: bool) -> None:
    setattr(StrictArray, f"__{operator}__", lambda *operands: ufunc(*operands))
    if also_reflected:
        setattr(StrictArray, f"__r{operator}__", lambda a, b: ufunc(b, a))
        setattr(StrictArray, f"__i{operator}__", lambda a, b: ufunc(a, b, out=a))


def _attach_method(name: str, parameters: list[str]) -> None:
    """Give StrictArray NumPy's method ``name``, with the parameters that CuPy's has."""

    def method(self: StrictArray, *args: Any, **kwargs: Any) -> Any:
        return _call(getattr(self._data, name), name, parameters, args, kwargs)

    setattr(StrictArray, name, method)


def _attach_attribute(name: str) -> None:
    """Give StrictArray NumPy's read-only attribute ``name``."""
    setattr(StrictArray, name, property(lambda self: _wrap(getattr(self._data, name), name)))


def _function(name: str, parameters: list[str]) -> Callable:
    """NumPy's function ``name`` over strict arrays, with the parameters that CuPy's has."""

    def function(*args: Any, **kwargs: Any) -> Any:
        if name == "where" and len(args) + len(kwargs) == 1:
            raise TypeError("where(condition) has a shape that depends on values, which waits for the GPU")
        result = _call(getattr(np, name), name, parameters, args, kwargs)
        return _wrap(np.asarray(result), name) if name in COMPARE_WHOLE_ARRAYS else result

    return function


def _transfer(name: str) -> Callable:
    """``array`` or ``asarray``: the explicit way in. Host memory is copied, never shared."""

    def transfer(a: Any, dtype: Any = None, copy: bool | None = name == "array" or None) -> StrictArray:
        if isinstance(a, StrictArray):
            return _computed(lambda: np.array(a._data, dtype=dtype, copy=copy), [a._data], name)
        _pass_host("a copy from the host")
        return _wrap(np.array(a, dtype=dtype), name)

    return transfer


def _build_library() -> ModuleType:
    """The module ``strict``: what stands in cupy_api.txt, computed by NumPy."""
    library = ModuleType("strict", __doc__)
    for line in Path(__file__).with_name("cupy_api.txt").read_text(encoding="utf-8").splitlines()[1:]:
        kind, name, *parameters = line.split()
        if name in SHAPE_DEPENDS_ON_VALUES or name in ("base", "data", "device", "flat"):
            continue
        if kind == "ufunc":
            setattr(library, name, StrictUfunc(name))
        elif kind == "constant":
            setattr(library, name, getattr(np, name))
        elif kind == "function":
            setattr(library, name, _function(name, parameters))
        elif kind == "attribute":
            _attach_attribute(name)
        elif name not in vars(StrictArray):
            _attach_method(name, parameters[1:])
    for name in ("array", "asarray"):
        setattr(library, name, _transfer(name))
    library.ndarray = StrictArray
    library.special = ModuleType("strict.special")  # where CuPy has cupyx.scipy.special
    library.special.erf = lambda x: _computed(lambda: scipy.special.erf(_operand(x, "erf")), [], "erf")
    return library


xp = _build_library()
_attach_operators()
