"""Files of tensors and tables that no library writes, for the tests of those who read them.

A pickle is made from its instructions, so that it can be any program; a zip archive and a table are made with
right lengths and checksums, so that only what a test is about is wrong.
"""

import io
import math
import struct
import zipfile
from collections.abc import Sequence
from typing import Any

import numpy as np

from minibert.folders.crc32c import masked_crc32c


class Named:
    """A class or a function, by "module name"."""

    def __init__(self, name: str):
        self.name = name


class Called:
    """A function called with arguments, and perhaps the state that is then set (BUILD)."""

    def __init__(self, function: Any, *arguments: Any, state: Any = None):
        self.function, self.arguments, self.state = function, arguments, state


class Elsewhere:
    """What a persistent id stands for."""

    def __init__(self, *description: Any):
        self.description = description


def instructions(value: Any) -> bytes:
    """The instructions that put a value on the stack."""
    match value:
        case None | True | False:
            return {None: b"N", True: b"\x88", False: b"\x89"}[value]
        case int() if abs(value) < 2**31:
            return b"J" + struct.pack("<i", value)
        case int():
            digits = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
            return b"\x8a" + bytes([len(digits)]) + digits
        case str():
            text = value.encode("utf-8", "surrogatepass")
            return b"X" + struct.pack("<I", len(text)) + text
        case tuple():
            return b"(" + b"".join(map(instructions, value)) + b"t"
        case list():
            return b"](" + b"".join(map(instructions, value)) + b"e"
        case dict():
            return b"}(" + b"".join(instructions(item) for pair in value.items() for item in pair) + b"u"
        case Named():
            return b"c" + value.name.replace(" ", "\n").encode() + b"\n"
        case Called():
            made = instructions(value.function) + instructions(value.arguments) + b"R"
            return made if value.state is None else made + instructions(value.state) + b"b"
        case Elsewhere():
            return instructions(value.description) + b"Q"
    raise TypeError(type(value))


def pickled(value: Any) -> bytes:
    """A whole pickle, in the version that torch writes."""
    return b"\x80\x02" + instructions(value) + b"."


def tensor(key: str, shape: Sequence[int], strides: Sequence[int] | None = None, **other: Any) -> Called:
    """A tensor as torch describes it. ``other``: what a test makes different."""
    about = {"type": Named("torch FloatStorage"), "offset": 0} | other
    if "count" not in about:
        about["count"] = math.prod(shape)
    strides = strides or [math.prod(shape[i + 1 :]) for i in range(len(shape))]
    storage = Elsewhere("storage", about["type"], key, "cpu", about["count"])
    function, hooks = Named("torch._utils _rebuild_tensor_v2"), Called(Named("collections OrderedDict"))
    return Called(function, storage, about["offset"], tuple(shape), tuple(strides), False, hooks)


def zip_file(pickle: bytes, storages: dict[str, bytes], compression: int = 0, **others: bytes) -> bytes:
    """A zip archive as torch writes it."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        archive.writestr("archive/data.pkl", pickle)
        for key, numbers in storages.items():
            archive.writestr(f"archive/data/{key}", numbers)
        for name, content in others.items():
            archive.writestr(f"archive/{name}", content)
    return buffer.getvalue()


def sequence_file(pickle: bytes, storages: dict[str, tuple[int, bytes]], **machine: Any) -> bytes:
    """The format before torch 1.6. ``storages``: how many numbers a file claims, and their bytes."""
    begin = [0x1950A86A20F9469CFC6C, 1001, {"protocol_version": 1001, "little_endian": True} | machine]
    rows = (struct.pack("<q", count) + numbers for count, numbers in storages.values())
    return b"".join([*map(pickled, begin), pickle, pickled(list(storages)), *rows])


# -- Tables -----------------------------------------------------------------------------------------


def varint(number: int) -> bytes:
    """7 bits a byte, the lowest first."""
    return bytes([number & 127 | 128]) + varint(number >> 7) if number > 127 else bytes([number])


def message(*fields: tuple[int, int | bytes]) -> bytes:
    """A message of protocol buffers; field 6 is written in 32 bits, as the checksum of a bundle is."""
    written = b""
    for number, value in fields:
        if isinstance(value, bytes):
            written += varint(number << 3 | 2) + varint(len(value)) + value
        elif number == 6:
            written += varint(number << 3 | 5) + value.to_bytes(4, "little")
        else:
            written += varint(number << 3) + varint(value)
    return written


def entry(shape: Sequence[int], offset: int, numbers: bytes, dtype: int = 1, **other: int) -> bytes:
    """A BundleEntryProto."""
    dims = b"".join(message((2, message((1, size)))) for size in shape)
    checksum = masked_crc32c(np.frombuffer(numbers, "u1"))
    about = {"shard": 0, "size": len(numbers), "checksum": checksum} | other
    fields = [
        (1, dtype),
        (2, dims),
        (3, about["shard"]),
        (4, offset),
        (5, about["size"]),
        (6, about["checksum"]),
    ]
    return message(*fields)


def block(entries: Sequence[tuple[bytes, bytes]], compression: int = 0) -> bytes:
    """Entries, a place to begin at, and the trailer."""
    body = b"".join(varint(0) + varint(len(key)) + varint(len(value)) + key + value for key, value in entries)
    body += struct.pack("<2I", 0, 1) + bytes([compression])
    return body + masked_crc32c(np.frombuffer(body, "u1")).to_bytes(4, "little")


def table(entries: dict[str, bytes], compression: int = 0, places: Sequence[int] = (0,)) -> bytes:
    """A table of one block of entries, which is there as often as ``places`` has entries."""
    header = entries if "" in entries else {"": message((1, 1))} | entries
    data = block([(name.encode(), value) for name, value in sorted(header.items())], compression)
    handle = varint(0) + varint(len(data) - 5)
    index = block([(b"~%d" % number, handle) for number in places])
    footer = handle + varint(len(data)) + varint(len(index) - 5)
    return data + index + footer.ljust(40, b"\0") + (0xDB4775248B80FB57).to_bytes(8, "little")
