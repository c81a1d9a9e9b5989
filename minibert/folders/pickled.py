"""torch's pickles, read as descriptions of tensors. Nothing in a pickle is ever run.

A pickle is a program for a small machine with a stack and a memo. Three instructions make it dangerous:
GLOBAL puts any function of any module on the stack, and REDUCE and BUILD call functions. The machine here
has them only in name. Its GLOBAL puts down a name and imports nothing. Its REDUCE knows what four names mean,
those that torch writes for tensors and their dictionary, and refuses all others. Its BUILD does nothing.
Python's ``pickletools`` takes the bytes apart into instructions, and does not run them either.
"""

import math
import pickletools
from dataclasses import dataclass
from typing import Any, BinaryIO

from minibert.folders.stored import check_shape, extent

DTYPES = {
    "torch.DoubleStorage": "F64",
    "torch.FloatStorage": "F32",
    "torch.HalfStorage": "F16",
    "torch.BFloat16Storage": "BF16",
    "torch.LongStorage": "I64",
    "torch.IntStorage": "I32",
    "torch.ShortStorage": "I16",
    "torch.CharStorage": "I8",
    "torch.ByteStorage": "U8",
    "torch.BoolStorage": "BOOL",
}

_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_VALUES = {"BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE", "SHORT_BINSTRING"}
_TAKES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3, "APPEND": 1, "SETITEM": 2}
_TAKES |= {"REDUCE": 2, "BUILD": 1, "BINPERSID": 1, "STOP": 1}
_TO_MARK = {"TUPLE", "APPENDS", "SETITEMS"}


@dataclass(frozen=True)
class Global:
    """The name of a class or a function, and no more than the name."""

    name: str


@dataclass(frozen=True)
class Storage:
    """A row of numbers somewhere else in the file, under a key."""

    key: str
    dtype: str
    count: int


@dataclass(frozen=True)
class View:
    """A tensor: from which number of its storage on, of which shape, and how many numbers apart."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def count(self) -> int:
        """How many numbers it has."""
        return math.prod(self.shape)


def read_pickle(file: BinaryIO) -> Any:
    """What the next pickle in a file describes: None, numbers, texts, tuples, lists, dictionaries, `View`.

    Raises ValueError, IndexError or KeyError for anything that torch does not write for tensors.
    """
    stack: list[Any] = []
    marks: list[int] = []  # how high the stack was
    memo: dict[Any, Any] = {}
    argument: Any
    for opcode, argument, _ in pickletools.genops(file):
        name = opcode.name
        items = _pop_items(name, stack, marks)
        match name:
            case "PROTO" if argument == 2:
                pass
            case "MARK":
                marks.append(len(stack))
            case _ if name in _CONSTANTS:
                stack.append(_CONSTANTS[name])
            case _ if name in _VALUES:
                stack.append(argument)
            case "EMPTY_LIST":
                stack.append([])
            case "EMPTY_DICT":
                stack.append({})
            case "TUPLE" | "TUPLE1" | "TUPLE2" | "TUPLE3":
                stack.append(tuple(items))
            case "APPEND" | "APPENDS":
                _append(stack[-1], items)
            case "SETITEM" | "SETITEMS":
                _set_items(stack[-1], items)
            case "BINPUT" | "LONG_BINPUT":
                memo[argument] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                stack.append(memo[argument])
            case "GLOBAL":
                stack.append(Global(argument.replace(" ", ".")))
            case "REDUCE":
                stack.append(_call(*items))
            case "BUILD":  # attributes of a dictionary: versions of modules, which no tensor needs
                if not isinstance(stack[-1], dict) or not isinstance(items[0], dict):
                    raise ValueError("it sets attributes of more than a dictionary")
            case "BINPERSID":
                stack.append(_storage(items[0]))
            case "STOP":
                return items[0]
            case _:
                raise ValueError(f"it has the instruction {name}, which torch does not write for tensors")
    raise ValueError("it has no end")


def _pop_items(name: str, stack: list[Any], marks: list[int]) -> list[Any]:
    """What an instruction takes from the stack: a fixed number of things, or all from the last mark on."""
    height = marks.pop() if name in _TO_MARK else len(stack) - _TAKES.get(name, 0)
    if not 0 <= height <= len(stack):
        raise ValueError("it takes more from its stack than there is")
    items = stack[height:]
    del stack[height:]
    return items


def _append(items: Any, more: list[Any]) -> None:
    if not isinstance(items, list):
        raise ValueError("it appends to more than a list")
    items += more


def _set_items(items: Any, more: list[Any]) -> None:
    keys, values = more[::2], more[1::2]
    # A key that is a text can be hashed at once; a tuple of tuples of tuples … can take for ever.
    if not isinstance(items, dict) or not all(isinstance(key, str) for key in keys):
        raise ValueError("it has a dictionary of more than names")
    items.update(zip(keys, values, strict=True))


def _call(function: Any, arguments: Any) -> Any:
    """What one of the four functions would make of its arguments; all others are refused by name."""
    name = function.name if isinstance(function, Global) else "what is no function"
    match name, arguments:
        case "collections.OrderedDict", ():
            return {}
        case "torch._utils._rebuild_parameter", (View() as view, bool(), dict()):
            return view
        case "torch._utils._rebuild_tensor_v2", (
            Storage() as storage,
            int() as offset,
            tuple() as shape,
            tuple() as strides,
            bool(),
            dict(),
        ):
            return _view(storage, offset, shape, strides)
        case "torch._utils._rebuild_tensor", (Storage() as storage, int(), tuple(), tuple()):  # before 0.4
            return _view(storage, *arguments[1:])
    raise ValueError(f"it calls {name}, which is refused; only tensors are read")


def _storage(description: Any) -> Storage:
    """A storage from what torch writes instead of it. Before torch 1.6 a sixth entry said it was a part."""
    match description:
        case ("storage", Global() as kind, str() as key, str(), int() as count, *rest):
            if kind.name in DTYPES and 0 <= count < 2**48 and rest in ([], [None]):
                return Storage(key, DTYPES[kind.name], count)
            raise ValueError(f"it has a storage of type {kind.name}, which is not read")
    raise ValueError("it refers to something that is no storage of a tensor")


def _view(storage: Storage, offset: int, shape: tuple[Any, ...], strides: tuple[Any, ...]) -> View:
    """A tensor. It must lie in its storage, and have no more numbers than that."""
    if not all(type(number) is int for number in (*shape, *strides)) or len(shape) != len(strides):
        raise ValueError("it has a tensor whose shape is none")
    check_shape(storage.key, shape)
    if offset < 0 or any(not 0 <= stride < 2**48 for stride in strides):
        raise ValueError("it has a tensor that begins before its storage")
    view = View(storage, offset, shape, strides)
    if max(extent(shape, strides), view.count) > storage.count - offset:
        raise ValueError("it has a tensor that is larger than its storage")
    return view
