"""TensorFlow's checkpoints (``NAME.index``, ``NAME.data-00000-of-00001``), read without TensorFlow.

The data files are the bytes of all variables, and the index says where each variable is. The index is a
*table* of LevelDB: pairs of a key and a value, sorted by key. Here a key is the name of a variable, and its
value is a message in the format of protocol buffers:

    table     blocks of entries; a block that says where these are; a footer that says where that one is
    block     entries, a list of entries to begin at (not needed here), a byte for compression, a CRC-32C
    entry     how many bytes the key shares with the one before, how many are new, and how many the value has;
              the new bytes of the key; the value
    message   fields: the number of the field and how it is written; its value

Most numbers are *varints*: 7 bits per byte, the lowest first. The highest bit says whether more bytes follow.

Sources: LevelDB's doc/table_format.md; TensorFlow's tensor_bundle.proto, types.proto and tensor_bundle.h.
"""

from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from minibert.errors import UserError
from minibert.folders.crc32c import masked_crc32c
from minibert.folders.stored import StoredTensor, check_shape, contiguous, damaged
from minibert.folders.variables import tensor_names

_DTYPES = {1: "F32", 2: "F64", 14: "BF16", 19: "F16"}  # TensorFlow's numbers for types

_MAGIC = (0xDB4775248B80FB57).to_bytes(8, "little")
_FOOTER = 48  # bytes
_LONGEST_INDEX = 2**21  # bytes; that of BERT-large takes 60,000, with the state of its optimiser
_LONGEST_KEY = 1000

Fields = dict[int, int | bytes]  # of a message by their numbers; only the last of those with the same number


def read_checkpoint(index: Path) -> dict[str, StoredTensor]:
    """The parameters in a checkpoint of Google's BERT, ALBERT or ELECTRA, under Hugging Face's names.

    The state of the optimiser is left out. Raises UserError if a file is missing, damaged or cannot be read,
    and if the variables are those of another program.
    """
    try:
        with open(index, "rb") as file:
            data = file.read(_LONGEST_INDEX + 1)
        entries = {key.decode(): dict(_fields(value)) for key, value in _table(data)}
        header = entries.pop("")
        if _number(header, 2) != 0:
            raise ValueError("saved on a big-endian machine, which is not supported")
        shards = _number(header, 1)
        named = tensor_names(entries).items()
        tensors = {name: _stored_tensor(index, path, name, entries[path], shards) for path, name in named}
    except OSError as error:
        raise UserError(f"{index}: cannot read this model file ({error.strerror})") from None
    except (ValueError, LookupError) as error:
        raise damaged(index, "index of a TensorFlow checkpoint", error) from None
    if not tensors:
        raise UserError(
            f"{index}: has no variables of Google's BERT, ALBERT or ELECTRA, which are called "
            "'bert/embeddings/word_embeddings' and so on; convert it with the program that it is from"
        )
    _check_files(tensors.values())
    return tensors


def _stored_tensor(index: Path, path: str, name: str, entry: Fields, shards: int) -> StoredTensor:
    """A variable, by its BundleEntryProto. A kernel is stored as (inputs, outputs), and read transposed."""
    dtype = _DTYPES.get(_number(entry, 1))
    if dtype is None or 7 in entry:
        raise ValueError(f"{path[:100]!r} has another type, or is in slices")
    shape = tuple(_number(dim, 1) for dim in _messages(entry.get(2, b""), 2))
    check_shape(path, shape)
    file = index.with_name(f"{index.stem}.data-{_number(entry, 3):05}-of-{shards:05}")
    step = -1 if path.endswith("/kernel") else 1
    tensor = StoredTensor(
        *(file, name, dtype, shape[::step], _number(entry, 4), contiguous(shape)[::step]),
        checksum=_number(entry, 6),
    )
    if tensor.nbytes != _number(entry, 5):
        raise ValueError(f"{path[:100]!r} has another size than it should")
    return tensor


def _check_files(tensors: Collection[StoredTensor]) -> None:
    """Raise UserError if a data file is missing, or too short for its tensors."""
    needed = Counter[Path]()
    for tensor in tensors:
        needed[tensor.file] += tensor.nbytes
    for file, size in needed.items():
        if not file.is_file():
            raise UserError(f"{file}: no such model file, but the index beside it names it; fetch it too")
        last = max(tensor.start + tensor.nbytes for tensor in tensors if tensor.file == file)
        if max(last, size) > file.stat().st_size:
            raise damaged(file, "part of this TensorFlow checkpoint", "cut off")


# -- Tables -----------------------------------------------------------------------------------------


def _table(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The keys and values of a table, all blocks after one another."""
    footer = data[-_FOOTER:]
    if len(data) > _LONGEST_INDEX or footer[-8:] != _MAGIC:
        raise ValueError("too long, or without its end")
    _, at = _handle(footer, 0)  # of a block that LevelDB keeps for filters
    place, _ = _handle(footer, at)
    stop = 0
    for _, value in _entries(_block(data, *place)):
        (start, size), _ = _handle(value, 0)
        if start < stop:
            raise ValueError("two blocks overlap")
        stop = start + size
        yield from _entries(_block(data, start, size))


def _handle(data: bytes, at: int) -> tuple[tuple[int, int], int]:
    """Where a block begins and how long it is, and where in the data the next thing begins."""
    start, at = _varint(data, at)
    size, at = _varint(data, at)
    return (start, size), at


def _block(data: bytes, start: int, size: int) -> bytes:
    """A block without what follows it: a byte for the compression, and the checksum of both."""
    stop = start + size
    checksum = int.from_bytes(data[stop + 1 : stop + 5], "little")
    if stop + 5 > len(data) or checksum != masked_crc32c(np.frombuffer(data[start : stop + 1], np.uint8)):
        raise ValueError("the checksum of a block is wrong")
    if data[stop] != 0:
        raise ValueError("compressed, which TensorFlow's checkpoints never are")
    return data[start:stop]


def _entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The keys and values of a block, checking that they are in order."""
    count = int.from_bytes(block[-4:], "little")  # of the places to begin at, 4 bytes each
    stop = len(block) - 4 - 4 * count
    key, at = None, 0
    while at < stop:
        shared, at = _varint(block, at)
        unshared, at = _varint(block, at)
        length, at = _varint(block, at)
        before, middle, after = key or b"", at + unshared, at + unshared + length
        new = before[:shared] + block[at:middle]
        if shared > len(before) or after > stop or len(new) > _LONGEST_KEY:
            raise ValueError("an entry of a block is cut off")
        if key is not None and new <= key:
            raise ValueError("the keys are not in order")
        key, at = new, after
        yield key, block[middle:after]


# -- Messages ---------------------------------------------------------------------------------------


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a message in order: their numbers and values."""
    at = 0
    value: int | bytes
    while at < len(message):
        tag, at = _varint(message, at)
        kind = tag & 7
        if kind == 0:
            value, at = _varint(message, at)
        elif kind == 2:
            length, at = _varint(message, at)
            value, at = message[at : at + length], at + length
        elif kind == 5:
            value, at = int.from_bytes(message[at : at + 4], "little"), at + 4
        else:
            raise ValueError(f"a field of type {kind}")
        if at > len(message):
            raise ValueError("a message is cut off")
        yield tag >> 3, value


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number, and where in the data the next thing begins. Raises IndexError at the end of the data."""
    number = 0
    for shift in range(0, 70, 7):
        number |= (data[at] & 127) << shift
        at += 1
        if data[at - 1] < 128:
            return number, at
    raise ValueError("a number of more than 64 bits")


def _messages(message: Any, field: int) -> Iterator[Fields]:
    """The messages in a field of a message that may occur several times."""
    for number, value in _fields(message if isinstance(message, bytes) else b""):
        if number == field and isinstance(value, bytes):
            yield dict(_fields(value))


def _number(fields: Fields, field: int) -> int:
    """A field that is a number: 0 if it was left out."""
    value = fields.get(field, 0)
    if not isinstance(value, int):
        raise ValueError(f"field {field} is no number")
    return value
