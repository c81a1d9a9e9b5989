"""Pickles are read as descriptions: what is none is refused by name, and never run."""

import io
import os
import pickle
import time

import pytest
from pickle_files import Called, Elsewhere, Named, instructions, pickled, tensor

from minibert.folders.pickled import Storage, View, read_pickle

ORDERED = Named("collections OrderedDict")


def read(data):
    return read_pickle(io.BytesIO(data))


def test_what_torch_writes():
    storage = Storage("0", "F32", 6)
    view = View(storage, 0, (2, 3), (3, 1))
    assert read(pickled({"a": tensor("0", (2, 3))})) == {"a": view}
    assert read(pickled({"a": tensor("0", (2, 2), (1, 3), count=6, offset=1)})) == {
        "a": View(storage, 1, (2, 2), (1, 3))
    }
    parameter = Called(Named("torch._utils _rebuild_parameter"), tensor("0", (2, 3)), True, Called(ORDERED))
    assert read(pickled({"a": parameter})) == {"a": view}


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        0,
        255,
        70_000,
        -1,
        2**40,
        1.5,
        "é",
        (),
        (1,),
        (1, 2),
        (1, 2, 3),
        tuple(range(9)),
        [],
        [1],
        [1, 2],
    ],
)
def test_values_that_python_writes(value):
    assert read(pickle.dumps({"value": value, "twice": value}, protocol=2)) == {
        "value": value,
        "twice": value,
    }


def test_attributes_of_a_dictionary_are_left_out():
    """A state_dict has the versions of its modules as an attribute."""
    made = Called(ORDERED, state={"_metadata": {"": {"version": 1}}})
    assert read(b"\x80\x02" + instructions(made) + b".") == {}


# -- Hostile ones -----------------------------------------------------------------------------------


class Runs:
    """Python's own pickle of this calls a function."""

    def __init__(self, function, *arguments):
        self.function, self.arguments = function, arguments

    def __reduce__(self):
        return self.function, self.arguments


@pytest.fixture
def marker(tmp_path):
    """A file that is there after a test if anything was run."""
    path = tmp_path / "was-run"
    yield path
    assert not path.exists()


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("function", [os.system, eval, exec])
def test_a_call_is_refused(marker, protocol, function):
    code = f"touch {marker}" if function is os.system else f"open({str(marker)!r}, 'w')"
    hostile = pickle.dumps({"a": Runs(function, code)}, protocol)
    with pytest.raises(ValueError, match=r"it calls (posix\.system|__builtin__\.e)|the instruction"):
        read(hostile)
    assert not marker.exists()
    pickle.loads(hostile)  # it is hostile indeed
    assert marker.exists()
    marker.unlink()


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        ("posix system", ("true",)),
        ("os system", ("true",)),
        ("builtins eval", ("1",)),
        ("builtins getattr", ({}, "x")),
        ("torch load", ("x",)),
        ("torch._utils _rebuild_tensor_v3", ()),
        ("torch.storage _load_from_bytes", (b"x".decode(),)),
        ("torch._utils _rebuild_tensor_v2.__globals__", ()),
        ("torch FloatStorage", (3,)),
        ("collections OrderedDict", (((("a", 1),),),)),
        ("collections defaultdict", (Named("os system"),)),
        ("functools partial", (Named("os system"), "true")),
        ("torch._utils _rebuild_parameter", ("x", True, {})),
        ("torch._utils _rebuild_tensor_v2", ()),
    ],
)
def test_other_functions_are_refused_by_name(function, arguments):
    with pytest.raises(ValueError, match=f"it calls {function.replace(' ', '.')}, which is refused"):
        read(pickled({"a": Called(Named(function), *arguments)}))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"(S'x'\nios\nsystem\n.", "the instruction STRING"),
        (b"(ios\nsystem\n.", "the instruction INST"),
        (b"(cos\nsystem\nX\1\0\0\0xo.", "the instruction OBJ"),
        (b"cos\nsystem\n)\x81.", "the instruction NEWOBJ"),
        (b"\x80\4\x8c\2os\x8c\6system\x93.", "the instruction PROTO"),
        (b"\x82\1.", "the instruction EXT1"),
        (b"P0\n.", "the instruction PERSID"),
        (b"\x80\2cos\nsystem\n}b.", "attributes of more than a dictionary"),
        (b"\x80\2}X\1\0\0\0xb.", "attributes of more than a dictionary"),
        (b"\x80\2K\1)R.", "it calls what is no function"),
        (b"\x80\2}K\1K\2s.", "a dictionary of more than names"),
        (b"\x80\2}(X\1\0\0\0xu.", "zip"),
        (b"\x80\2)K\1a.", "appends to more than a list"),
        (b"\x80\2)Q.", "no storage"),
        (b"\x80\2R.", "more from its stack"),
        (b"\x80\2\x87.", "more from its stack"),
        (b"\x80\2N", "pickle exhausted"),
        (b"", "pickle exhausted"),
        (b"\xff", "unknown"),
    ],
)
def test_other_instructions(data, message):
    with pytest.raises(ValueError, match=message):
        read(data)


@pytest.mark.parametrize("data", [b"\x80\2t.", b"\x80\2u.", b"\x80\2h\0.", b"\x80\2q\0."])
def test_what_is_not_there(data):
    with pytest.raises((ValueError, LookupError)):
        read(data)


def test_a_tower_of_references_is_never_climbed():
    """60 pairs of the same pair: 2⁶⁰ things for anyone who compares, hashes or prints them."""
    tower = b")" + b"".join(b"q%ch%c\x86" % (i, i) for i in range(60))
    start = time.perf_counter()
    for use in (b"Q", b"b", b"R"):
        with pytest.raises(ValueError):
            read(b"\x80\2}" + tower + use + b".")
    with pytest.raises(ValueError, match="more than names"):
        read(b"\x80\2}" + tower + b"Ns.")
    assert time.perf_counter() - start < 10


def test_a_deep_nest_is_no_recursion():
    nest = read(b"\x80\2" + b")" + b"\x85" * 100_000 + b".")
    depth = 0
    while nest:
        (nest,), depth = nest, depth + 1
    assert depth == 100_000


def test_a_list_may_hold_itself():
    value = read(b"\x80\2]q\0h\0a.")
    assert value[0] is value


# -- Tensors ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        {"shape": (2, 3), "count": 5},
        {"shape": (2, 3), "count": 6, "offset": 1},
        {"shape": (2, 3), "offset": -1},
        {"shape": (2, 3), "strides": (-3, 1)},
        {"shape": (2, 3), "strides": (1,)},
        {"shape": (2, 3), "strides": (0, 0), "count": 1},  # a million numbers, of which one is stored
        {"shape": (2, 3), "strides": (2**60, 1)},
        {"shape": (-2, 3), "count": 6},
        {"shape": (2**31, 2**31), "strides": (0, 0), "count": 1},
        {"shape": (2**70, 0), "strides": (0, 0), "count": 0},
        {"shape": (1,) * 100},
        {"shape": (1,), "count": -1},
        {"shape": (1,), "count": 2**60},
        {"shape": ("1",), "count": 1, "strides": (1,)},
        {"shape": (True,), "count": 1, "strides": (1,)},
        {"shape": (1,), "type": Named("torch UntypedStorage")},
        {"shape": (1,), "type": Named("os system")},
        {"shape": (1,), "type": "FloatStorage"},
    ],
)
def test_a_tensor_that_is_none(wrong):
    with pytest.raises(ValueError, match=r"it (has|refers)|the shape of|could not|it calls"):
        read(pickled({"a": tensor("0", **wrong)}))


def test_a_storage_that_is_a_part_of_another():
    part = Elsewhere("storage", Named("torch FloatStorage"), "0", "cpu", 6, ("1", 0, 3))
    whole = Elsewhere("storage", Named("torch FloatStorage"), "0", "cpu", 6, None)
    with pytest.raises(ValueError, match=r"it has a storage of type torch\.FloatStorage, which is not read"):
        read(pickled(part))
    assert read(pickled(whole)) == Storage("0", "F32", 6)
