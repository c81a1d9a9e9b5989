"""Weights on disk: which tensors a pretrained folder holds, and where the bytes of each lie.

Only the headers of the files are read here. A tensor's numbers are read when they are asked for, so that
a folder can be checked against a configuration before any memory is allocated.

A safetensors file is the length N of the header (8 bytes, little-endian), the header (N bytes of JSON:
name → dtype, shape, and where the bytes begin and end), and the bytes of all tensors without gaps.
"""

import json
import math
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from minibert.assets import model_names
from minibert.errors import UserError
from minibert.files import read_json

FILE_NAME = "model.safetensors"
INDEX_NAME = f"{FILE_NAME}.index.json"  # for a model in several files: which tensor is in which

# The NumPy type that the numbers are read as. bfloat16, which NumPy lacks, is the upper half of a float32.
STORAGE = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}

# The names by which users choose these types.
DTYPES = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16"}

HEADER_LIMIT = 2**24  # bytes; the header of BERT-large takes 50,000


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a safetensors file: its name, type and shape there, and the byte at which it begins."""

    file: Path
    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int

    def read(self) -> np.ndarray:
        """Its numbers, in the type that they are stored in; bfloat16 as the float32 of the same value."""
        count = math.prod(self.shape)
        numbers = np.fromfile(self.file, STORAGE[self.dtype], count, offset=self.start)
        if self.dtype == "BF16":
            numbers = (numbers.astype("<u4") << 16).view("<f4")
        return numbers.reshape(self.shape)


def open_weights(folder: Path, model_name: str) -> dict[str, StoredTensor]:
    """All tensors of a pretrained folder by name, from ``model.safetensors`` or from an index and its shards.

    Raises UserError if there is no such folder, if it has no such file (the message says how to convert what
    it has, to the class ``model_name``), or if a file is damaged or is not what the index says.
    """
    check_folder(folder)
    if (folder / FILE_NAME).is_file():
        return read_header(folder / FILE_NAME)
    if (folder / INDEX_NAME).is_file():
        return _open_shards(folder)
    raise _no_weights(folder, model_name)


def check_folder(folder: Path) -> None:
    """Raise UserError if there is no such folder."""
    if os.path.isfile(folder):
        raise UserError(f"{folder}: a model is a folder with config.json and {FILE_NAME}; this is a file")
    if not os.path.isdir(folder):
        raise UserError(
            f"{folder}: no such folder, nor a model that comes with minibert ({', '.join(model_names())}); "
            "models are read from local folders only, so download it first"
        )


def read_header(path: Path) -> dict[str, StoredTensor]:
    """The tensors of a safetensors file by name.

    Raises UserError if the file cannot be read or is not exactly a header and the tensors it describes.
    """
    try:
        with open(path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > HEADER_LIMIT:
                raise ValueError(f"a header of {length:,} bytes")
            header = file.read(length).decode("utf-8")
        # The library checks the rest: that types and sizes are right, and that the tensors fill the file
        # without gaps or overlaps. But it accepts two tensors of the same name, and lists as descriptions.
        with safe_open(path, framework="numpy"):
            pass
        entries = json.loads(header, object_pairs_hook=_unique)
        entries.pop("__metadata__", None)
        return {name: _stored_tensor(path, name, entry, 8 + length) for name, entry in entries.items()}
    except (SafetensorError, ValueError) as error:  # UnicodeDecodeError and JSONDecodeError are ValueErrors
        told = repr(str(error)[:200])[1:-1]  # it may quote the file, which can hold anything
        raise UserError(
            f"{path}: damaged or not a safetensors file ({told}); fetch or save it again"
        ) from None
    except OSError as error:
        raise UserError(f"{path}: cannot read this model file ({error.strerror})") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) < len(pairs):
        raise ValueError("a name occurs twice in the header")
    return entries


def _stored_tensor(path: Path, name: str, entry: Any, data_start: int) -> StoredTensor:
    if not isinstance(entry, dict):
        raise ValueError(f"no description of tensor {name!r}")
    return StoredTensor(
        path, name, entry["dtype"], tuple(entry["shape"]), data_start + entry["data_offsets"][0]
    )


def _open_shards(folder: Path) -> dict[str, StoredTensor]:
    """The tensors of all files that the index names. Index and files must agree about every tensor."""
    path = folder / INDEX_NAME
    index = read_json(path, "index of model files")
    places = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(places, dict) or not all(isinstance(shard, str) for shard in places.values()):
        raise UserError(f"{path}: damaged, expected a 'weight_map' from tensor names to file names")
    files = {shard: _shard_path(path, shard) for shard in sorted(set(places.values()))}
    tensors: dict[str, StoredTensor] = {}
    for shard, file in files.items():
        found = read_header(file)
        listed = {name for name, its_shard in places.items() if its_shard == shard}
        if differing := listed ^ found.keys():
            raise UserError(
                f"{path}: the index and {shard} do not agree about {list_names(differing)}; "
                "fetch or save them again"
            )
        tensors |= found
    return tensors


def _shard_path(index: Path, shard: str) -> Path:
    """The file that an index names, in the same folder. It may be a link, as in the caches of the Hub.

    Raises UserError for a name that leads out of the folder, and for a missing file.
    """
    path = index.parent / shard
    if not re.fullmatch(r"[\w.-]{1,200}\.safetensors", shard, re.ASCII):
        raise UserError(
            f"{index}: names the file {shard[:200]!r}; only .safetensors files beside it are read"
        )
    if not path.is_file():
        raise UserError(f"{index}: the file {shard!r} that it names is missing; fetch it into {index.parent}")
    return path


def list_names(names: Any, limit: int = 10) -> str:
    """Names for a message: in order, quoted, only the first few if there are many."""
    shown = [repr(name[:100]) for name in sorted(names)]
    more = f" and {len(shown) - limit:,} more" if len(shown) > limit else ""
    return ", ".join(shown[:limit]) + more


# -- Other formats ----------------------------------------------------------------------------------


def _no_weights(folder: Path, model_name: str) -> UserError:
    """The error for a folder without safetensors files; it says what to do with what is there."""
    if any(folder.glob("*.ckpt*.index")):
        return UserError(
            f"{folder}: an original TensorFlow checkpoint; the README, under 'Pretrained weights', has the "
            "script that converts it"
        )
    if pickles := {path.name for path in folder.glob("pytorch_model*.bin*")}:
        return UserError(
            f"{folder}: {list_names(pickles, 1)} is not read, since a pickle can run any program; convert it "
            f'once, where torch and transformers are installed:  python -c "from transformers import '
            f"{model_name} as M; M.from_pretrained({str(folder)!r}).save_pretrained({str(folder)!r}, "
            'safe_serialization=True)"'
        )
    return UserError(
        f"{folder / FILE_NAME}: no such model file; give a folder with config.json and {FILE_NAME}"
    )
