"""Weights on disk: which tensors a pretrained folder holds, and where the bytes of each lie.

This file knows the folder and the format that everybody writes today, safetensors. ``torch_file.py`` and
``bundle.py`` know two older ones. Only the headers of the files are read here. A tensor's numbers are read
when they are asked for, so that a folder can be checked against a configuration before memory is allocated.

A safetensors file is the length N of the header (8 bytes, little-endian), the header (N bytes of JSON:
name → dtype, shape, and where the bytes begin and end), and the bytes of all tensors without gaps.
"""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from minibert.assets import model_names
from minibert.errors import UserError
from minibert.files import read_json, read_text
from minibert.folders.bundle import read_checkpoint
from minibert.folders.stored import StoredTensor, damaged, list_names
from minibert.folders.torch_file import read_torch_file

FILE_NAME = "model.safetensors"
INDEX_NAME = f"{FILE_NAME}.index.json"  # for a model in several files: which tensor is in which
TORCH_NAME = "pytorch_model.bin"
FINAL, BEST = "final", "best"  # where a run of pretrain, or of finetune, keeps its model

HEADER_LIMIT = 2**24  # bytes; the header of BERT-large takes 50,000

Reader = Callable[[Path], dict[str, StoredTensor]]


def open_weights(folder: Path) -> dict[str, StoredTensor]:
    """All tensors of a pretrained folder by name.

    They are in ``model.safetensors`` or an index and its shards; or else in ``pytorch_model.bin`` or an index
    and its shards; or else in a TensorFlow checkpoint of Google's.

    Raises UserError if there is no such folder, if it has no such file, or if a file is damaged or is not
    what the index says.
    """
    check_folder(folder)
    reader: Reader
    for name, reader in ((FILE_NAME, read_header), (TORCH_NAME, read_torch_file)):
        if (folder / name).is_file():
            return reader(folder / name)
        if (folder / f"{name}.index.json").is_file():
            return _open_shards(folder / f"{name}.index.json", reader)
    return read_checkpoint(_find_checkpoint(folder))


def check_folder(folder: Path) -> None:
    """Raise UserError if there is no such folder, or if it is the folder of a run, whose model is inside."""
    if os.path.isfile(folder):
        raise UserError(f"{folder}: a model is a folder with config.json and {FILE_NAME}; this is a file")
    if not os.path.isdir(folder):
        raise UserError(
            f"{folder}: no such folder, nor a model that comes with minibert ({', '.join(model_names())}); "
            "models are read from local folders only, so download it first"
        )
    if not any(os.path.exists(folder / name) for name in (FILE_NAME, INDEX_NAME, TORCH_NAME)):
        for inside in (folder / FINAL, folder / BEST):
            if os.path.isfile(inside / "config.json"):
                raise UserError(f"{folder}: this is the folder of a run; its model is in {inside}")


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
        raise damaged(path, "safetensors file", error) from None
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


def _open_shards(path: Path, reader: Reader) -> dict[str, StoredTensor]:
    """The tensors of all files that the index names. Index and files must agree about every tensor."""
    index = read_json(path, "index of model files")
    places = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(places, dict) or not all(isinstance(shard, str) for shard in places.values()):
        raise UserError(f"{path}: damaged, expected a 'weight_map' from tensor names to file names")
    files = {shard: _shard_path(path, shard) for shard in sorted(set(places.values()))}
    tensors: dict[str, StoredTensor] = {}
    for shard, file in files.items():
        found = reader(file)
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
    ending = Path(index.name.removesuffix(".index.json")).suffix  # .safetensors or .bin
    if not re.fullmatch(rf"[\w.-]{{1,200}}\{ending}", shard, re.ASCII):
        raise UserError(f"{index}: names the file {shard[:200]!r}; only {ending} files beside it are read")
    if not path.is_file():
        raise UserError(f"{index}: the file {shard!r} that it names is missing; fetch it into {index.parent}")
    return path


def _find_checkpoint(folder: Path) -> Path:
    """The index of the TensorFlow checkpoint in a folder; of several, the one that ``checkpoint`` names.

    Raises UserError if there is none, or if the one to be read is not clear.
    """
    found = sorted(path.name for path in folder.glob("*.index"))
    if len(found) > 1:
        named = re.search(r'^model_checkpoint_path: ".*?([^/\\"]+)"$', _latest(folder), re.MULTILINE)
        found = [f"{named[1]}.index"] if named and f"{named[1]}.index" in found else found
    if len(found) == 1:
        return folder / found[0]
    if found:
        raise UserError(f"{folder}: has several TensorFlow checkpoints, {list_names(found)}; leave only one")
    if old := list_names(path.name for path in folder.glob("*.ckpt*")):
        raise UserError(
            f"{folder}: has {old}, but no .index; if the index is missing, fetch it too; a checkpoint in one "
            "file is of a format that TensorFlow has not written since 2016, and is not read"
        )
    raise UserError(
        f"{folder / FILE_NAME}: no such model file; give a folder with config.json and {FILE_NAME}"
    )


def _latest(folder: Path) -> str:
    path = folder / "checkpoint"
    return read_text(path, "list of checkpoints") if path.is_file() else ""
