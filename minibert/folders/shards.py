"""Writing weights as Hugging Face does: in 16, 32 or 64 bits, in one safetensors file or in shards.

``weights.py`` reads them; the layout of the files is explained there.
"""

import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from minibert.errors import UserError
from minibert.files import atomic_file
from minibert.folders.stored import DTYPES, STORAGE
from minibert.folders.weights import FILE_NAME, INDEX_NAME

_ENTRY = 128  # bytes that a header takes per tensor, at most, besides the tensor's name
_SHARD = re.compile(r"model-\d{5}-of-\d{5}\.safetensors")


@contextmanager
def replacing_weights(
    folder: Path, tensors: Mapping[str, np.ndarray], dtype: str, max_shard_size: int | str | None = None
) -> Iterator[None]:
    """Write the tensors, rounded to ``dtype``, as ``model.safetensors`` or, if necessary, as several shards.

    Shards have an index. No file takes more than ``max_shard_size`` (see ``parse_size``). All files are
    complete on the disk before the ``with`` block begins, and get their names when it has ended without an
    error. Weights that the folder held in other files are then removed.

    Raises UserError, and changes nothing, for an unknown type or size, for a number that the type cannot
    hold, and for a tensor that is too large for a file.
    """
    if dtype not in DTYPES:
        raise UserError(f"unknown dtype {dtype!r}; expected one of {', '.join(DTYPES)}")
    sizes = {name: array.size * _itemsize(dtype) for name, array in tensors.items()}
    shards = _plan_shards(sizes, math.inf if max_shard_size is None else parse_size(max_shard_size))
    names = [FILE_NAME]
    if len(shards) > 1:
        names = [f"model-{i:05}-of-{len(shards):05}.safetensors" for i in range(1, len(shards) + 1)]
    with ExitStack() as files:  # they get their names in reverse order, the index last
        if len(shards) > 1:
            places = {tensor: name for name, shard in zip(names, shards, strict=True) for tensor in shard}
            index = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": places}
            file = files.enter_context(atomic_file(folder / INDEX_NAME))
            _write(file, json.dumps(index, indent=2).encode())
        for name, shard in zip(names, shards, strict=True):
            file = files.enter_context(atomic_file(folder / name))
            _write(file, *_serialise({tensor: tensors[tensor] for tensor in shard}, dtype))
        yield
    for path in folder.iterdir():
        if path.name not in names and (path.name == FILE_NAME or _SHARD.fullmatch(path.name)):
            path.unlink()
    if len(shards) == 1:
        (folder / INDEX_NAME).unlink(missing_ok=True)


def parse_size(size: int | str) -> int:
    """A number of bytes, from a number or a text: "1000", "5GB" (1 GB = 10⁹), "16MiB" (1 MiB = 2²⁰).

    Raises UserError for anything else.
    """
    found = re.fullmatch(r"(\d{1,18}(?:\.\d+)?) ?(?:([kmg]?)b|([kmg])ib)?", str(size).lower(), re.ASCII)
    if not found:
        raise UserError(f"expected a size like 16MiB, 5GB or a number of bytes, got {size!r}")
    number, decimal, binary = found.groups()
    return int(float(number) * (1024 if binary else 1000) ** " kmg".index(binary or decimal or " "))


def _plan_shards(sizes: Mapping[str, int], limit: float) -> list[list[str]]:
    """The names of the tensors, in order, shard by shard, each shard as full as ``limit`` bytes allow."""
    shards: list[list[str]] = [[]]
    whole = room = limit - _ENTRY  # the rest is for what does not belong to any tensor
    sizes = {name: size + len(json.dumps(name)) + _ENTRY for name, size in sizes.items()}
    largest = max(sizes, key=sizes.__getitem__, default="")
    if sizes.get(largest, 0) > whole:
        raise UserError(
            f"{largest} takes {sizes[largest]:,} bytes, which is too large for a file, and tensors are never "
            f"split; allow at least {sizes[largest] + _ENTRY:,} bytes"
        )
    for name, size in sizes.items():
        if size > room:
            shards.append([])
            room = whole
        shards[-1].append(name)
        room -= size
    return shards


def _serialise(tensors: Mapping[str, np.ndarray], dtype: str) -> Iterator[bytes]:
    """The pieces of a safetensors file: the length of the header, the header, and all tensors in order."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    stop = 0
    for name, array in tensors.items():
        start, stop = stop, stop + array.size * _itemsize(dtype)
        header[name] = {"dtype": DTYPES[dtype], "shape": array.shape, "data_offsets": (start, stop)}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # so that the numbers are aligned
    yield len(text).to_bytes(8, "little") + text
    for name, array in tensors.items():
        yield _encode(array, dtype, name).tobytes()


def _encode(numbers: np.ndarray, dtype: str, name: str) -> np.ndarray:
    """Numbers as they are stored, rounded to the nearest: float64 to bfloat16 in two steps, as in torch.

    The first step rounds to float32. Raises UserError if a number becomes infinite.
    """
    with np.errstate(over="ignore"):
        if dtype == "bfloat16":
            bits = numbers.astype("<f4").view("<u4")
            rounded = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000  # ties to even
            rounded = np.where(np.isnan(numbers), 0x7FC00000, rounded).astype("<u4")
            stored, value = (rounded >> 16).astype("<u2"), rounded.view("<f4")
        else:
            stored = value = numbers.astype(STORAGE[DTYPES[dtype]], copy=False)
    if (np.isinf(value) & np.isfinite(numbers)).any():
        raise UserError(f"{name} has numbers too large for {dtype}; choose another dtype")
    return stored


def _itemsize(dtype: str) -> int:
    return np.dtype(STORAGE[DTYPES[dtype]]).itemsize


def _write(file: BinaryIO, *pieces: bytes) -> None:
    """Write everything through to the disk, so that a full disk raises its error here."""
    for piece in pieces:
        file.write(piece)
    file.flush()
    os.fsync(file.fileno())
