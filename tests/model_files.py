"""Model files that no library writes, for the tests of those who read them."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file


def raw_file(header: str | bytes, data: bytes = b"") -> bytes:
    """A safetensors file with any header at all."""
    header = header.encode() if isinstance(header, str) else header
    return len(header).to_bytes(8, "little") + header + data


def write_raw(path: Path, tensors: Mapping[str, tuple[str, np.ndarray]]) -> None:
    """Write arrays under type names of one's own, such as unsigned integers as the BF16 that they are."""
    header, data = {}, b""
    for name, (dtype, array) in tensors.items():
        offsets = [len(data), len(data) + array.nbytes]
        header[name] = {"dtype": dtype, "shape": array.shape, "data_offsets": offsets}
        data += array.tobytes()
    path.write_bytes(raw_file(json.dumps(header), data))


def split_model(folder: Path, count: int) -> None:
    """Replace ``model.safetensors`` by several files and their index, as transformers names them."""
    path = folder / "model.safetensors"
    tensors, places = load_file(path), {}
    names = sorted(tensors)
    for i in range(count):
        shard = f"model-{i + 1:05}-of-{count:05}.safetensors"
        save_file({name: tensors[name] for name in names[i::count]}, folder / shard)
        places |= dict.fromkeys(names[i::count], shard)
    size = sum(tensor.nbytes for tensor in tensors.values())
    index = {"metadata": {"total_size": size}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    path.unlink()
