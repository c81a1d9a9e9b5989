"""What ``torch.save`` writes: a description of tensors by name, and rows of numbers. torch is not needed.

Since torch 1.6 such a file is a zip archive without compression: ``FOLDER/data.pkl`` describes the tensors,
and ``FOLDER/data/KEY`` are the rows of numbers. Before, it was a sequence: three short pickles that say what
it is, the description, a list of keys, and for each key how many numbers there are, and the numbers.

The descriptions are pickles; ``pickled.py`` says why that does no harm here. As for the other formats, the
numbers are only read when they are asked for.
"""

import io
import os
import zipfile
from pathlib import Path
from typing import Any, BinaryIO

from minibert.errors import UserError
from minibert.folders.pickled import Storage, View, read_pickle
from minibert.folders.stored import ITEMSIZE, StoredTensor, damaged

_LONGEST_PICKLE = 2**20  # bytes; the description of BERT-large takes 60,000
_MAGIC = 0x1950A86A20F9469CFC6C  # what the format before 1.6 begins with
_VERSION = 1001
_MOST_USES = 4  # so often may a file use each byte, on average; a tied decoder is a second use


def read_torch_file(path: Path) -> dict[str, StoredTensor]:
    """The tensors of a file of ``torch.save`` by name, such as ``pytorch_model.bin``.

    Raises UserError if the file cannot be read, is damaged, or holds anything but a dictionary of tensors.
    """
    try:
        with open(path, "rb") as file:
            is_zip = file.read(4) == b"PK\x03\x04"
            size = os.fstat(file.fileno()).st_size
            views, starts = (_read_zip if is_zip else _read_sequence)(file, size)
        tensors = {name: _stored_tensor(path, name, view, starts) for name, view in views.items()}
        if sum(tensor.nbytes for tensor in tensors.values()) > _MOST_USES * size:
            raise ValueError("its tensors are much larger than the file")
        return tensors
    except OSError as error:
        raise UserError(f"{path}: cannot read this model file ({error.strerror})") from None
    except (ValueError, LookupError, zipfile.BadZipFile, NotImplementedError) as error:
        raise damaged(path, "file of tensors that torch saved", error) from None


def _stored_tensor(path: Path, name: str, view: View, starts: dict[str, int]) -> StoredTensor:
    dtype = view.storage.dtype
    start = starts[view.storage.key] + view.offset * ITEMSIZE[dtype]
    return StoredTensor(path, name, dtype, view.shape, start, view.strides)


def _views(state: Any) -> tuple[dict[str, View], dict[str, Storage]]:
    """The tensors of a description by name, and their storages by key."""
    if not isinstance(state, dict):
        raise ValueError("no dictionary of tensors")
    storages: dict[str, Storage] = {}
    for name, view in state.items():
        if isinstance(view, dict):
            raise ValueError(
                f"{name[:100]!r} holds others, as in a checkpoint of a training; save these alone"
            )
        if not isinstance(view, View):
            raise ValueError(f"{name[:100]!r} is no tensor")
        if storages.setdefault(view.storage.key, view.storage) != view.storage:
            raise ValueError(f"two sizes or types of storage {view.storage.key[:100]!r}")
    return state, storages


def _check_little_endian(is_little: bool) -> None:
    if not is_little:
        raise ValueError("saved on a big-endian machine, which is not supported")


# -- Since torch 1.6 --------------------------------------------------------------------------------


def _read_zip(file: BinaryIO, size: int) -> tuple[dict[str, View], dict[str, int]]:
    """The tensors by name, and where each storage begins."""
    with zipfile.ZipFile(file) as archive:
        records = {info.filename: info for info in archive.infolist()}
    (pickle,) = [name for name in records if name.count("/") == 1 and name.endswith("/data.pkl")]
    folder = pickle.removesuffix("data.pkl")
    if folder + "byteorder" in records:  # since torch 2.1
        _check_little_endian(_read_record(file, size, records[folder + "byteorder"]) == b"little")
    views, storages = _views(read_pickle(io.BytesIO(_read_record(file, size, records[pickle]))))
    starts = {}
    for key, storage in storages.items():
        record = records[f"{folder}data/{key}"]
        if record.file_size != storage.count * ITEMSIZE[storage.dtype]:
            raise ValueError(f"storage {key[:100]!r} has another size than it should")
        starts[key] = _start(file, size, record)
    return views, starts


def _read_record(file: BinaryIO, size: int, record: zipfile.ZipInfo) -> bytes:
    if record.file_size > _LONGEST_PICKLE:
        raise ValueError(f"a description of {record.file_size:,} bytes")
    file.seek(_start(file, size, record))
    return file.read(record.file_size)


def _start(file: BinaryIO, size: int, record: zipfile.ZipInfo) -> int:
    """Where the bytes of a record begin: after its header, its name, and more of a length that varies.

    (``zipfile`` can read a record, but does not say where it is.)
    """
    if record.compress_type != zipfile.ZIP_STORED or record.flag_bits & 1:
        raise ValueError("compressed or encrypted, which torch never does")
    file.seek(record.header_offset)
    header = file.read(30)
    lengths = int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
    start = record.header_offset + 30 + lengths
    if header[:4] != b"PK\x03\x04" or start + record.file_size > size:
        raise ValueError("a record is cut off")
    return start


# -- Before torch 1.6 -------------------------------------------------------------------------------


def _read_sequence(file: BinaryIO, size: int) -> tuple[dict[str, View], dict[str, int]]:
    """The tensors by name, and where each storage begins."""
    file.seek(0)
    pickles = io.BytesIO(file.read(_LONGEST_PICKLE))
    magic, version, machine = (read_pickle(pickles) for _ in range(3))
    if magic != _MAGIC or version != _VERSION or not isinstance(machine, dict):
        raise ValueError("it begins otherwise")
    _check_little_endian(machine.get("little_endian") is True)
    views, storages = _views(read_pickle(pickles))
    keys = read_pickle(pickles)
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise ValueError("no list of storages")
    starts, stop = {}, pickles.tell()
    for key in keys:
        storage = storages[key]
        file.seek(stop)
        if int.from_bytes(file.read(8), "little") != storage.count:
            raise ValueError(f"storage {key[:100]!r} has another size than it should")
        starts[key] = stop + 8
        stop = starts[key] + storage.count * ITEMSIZE[storage.dtype]
    if stop > size:
        raise ValueError("cut off")
    return views, starts
