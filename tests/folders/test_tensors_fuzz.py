"""Pretrained folders with a fault in a file, by the thousand.

Each is refused with one clear line, or gives a model with exactly the numbers in the files, as another
reader finds them. FUZZ_CASES=100000 in the environment tries that many instead of the usual number.
"""

import json
import os
import random
import re
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
from model_files import raw_file, split_model, write_raw

from minibert.bert import BertConfig, BertForPreTraining
from minibert.errors import UserError

CASES = int(os.environ.get("FUZZ_CASES", "3000"))
SIZES = {"vocab_size": 7, "hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 2}
SIZES |= {"intermediate_size": 5, "max_position_embeddings": 3}

Files = dict[str, bytes]  # a folder, by the names of its files


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Files]:
    """A small model as a single file, as a file of bfloat16, and as two files with an index."""
    model = BertForPreTraining(BertConfig(**SIZES))
    paths = {layout: tmp_path_factory.mktemp(layout) for layout in ("float32", "bfloat16", "shards")}
    for path in paths.values():
        model.save_pretrained(path)
    halves = {name: p.value.view("uint32") >> 16 for name, p in model.named_parameters()}
    halves = {name: ("BF16", bits.astype("uint16")) for name, bits in halves.items()}
    write_raw(paths["bfloat16"] / "model.safetensors", halves)
    split_model(paths["shards"], 2)
    return {name: {file.name: file.read_bytes() for file in path.iterdir()} for name, path in paths.items()}


@pytest.mark.parametrize("layout", ["float32", "bfloat16", "shards"])
def test_a_fault_is_refused_or_does_no_harm(folders, tmp_path, layout):
    results = Counter()
    for case in range(CASES // 3):
        files = folders[layout] | {}
        rng = random.Random(f"{layout} {case}")
        name = rng.choice([name for name in files for _ in range(1 if name == "config.json" else 3)])
        files[name] = mutate_file(rng, name, files[name])
        for name, data in files.items():
            (tmp_path / name).write_bytes(data)
        results[result_of(tmp_path, case)] += 1
    assert results["read"] > 0.05 * CASES / 3 and results["refused"] > 0.3 * CASES / 3, "both are tried"


def result_of(folder: Path, case: int) -> str:
    """Read a folder and check what comes of it."""
    with warnings.catch_warnings(action="ignore"):
        try:
            model = BertForPreTraining.from_pretrained(folder)
        except UserError as error:
            assert str(error).isprintable() and len(str(error)) < 2500, case
            return "refused"
    numbers = numbers_in(folder)
    for name, parameter in model.named_parameters():
        key = name.removeprefix("bert.")
        # A head may be missing as a whole, and has then its first values.
        expected = numbers.get(key, parameter.value if re.match("pooler|cls", key) else None)
        np.testing.assert_array_equal(parameter.value, expected, err_msg=f"case {case}, {name}")
    return "read"


def numbers_in(folder: Path) -> dict[str, np.ndarray]:
    """All numbers in the model files of a folder, as the library reads them, under the encoder's names."""
    single = folder / "model.safetensors"
    numbers = {}
    for path in [single] if single.exists() else sorted(folder.glob("model-*.safetensors")):
        for name, tensor in safetensors.deserialize(path.read_bytes()):
            numbers[name.removeprefix("bert.")] = decode(**tensor)
    return numbers


def decode(dtype: str, shape: list[int], data: bytes) -> np.ndarray:
    """Bytes as float32; bfloat16 number by number, from sign, exponent and fraction."""
    types = {"F64": "<f8", "F32": "<f4", "F16": "<f2"}
    if dtype in types:
        return np.frombuffer(data, types[dtype]).reshape(shape).astype("float32")
    assert dtype == "BF16"
    bits = np.frombuffer(data, "<u2").astype(int).reshape(shape)
    sign, exponent, fraction = 1 - 2.0 * (bits >> 15), bits >> 7 & 255, (bits & 127) / 128
    finite = sign * np.where(exponent == 0, 2 * fraction, 1 + fraction) * 2.0 ** (exponent - 127)
    special = np.where(fraction == 0, sign * np.inf, np.nan)
    return np.where(exponent == 255, special, finite).astype("float32")


# -- Faults -----------------------------------------------------------------------------------------

NUMBERS = [-1, 0, 1, 2, 3, 5, 255, 2**16, 2**31, 2**32 - 1, 2**53, 2**63 - 1, 2**64, 10**30, 0.5, 1e308]
TEXTS = [
    "",
    "F16",
    "F32",
    "F64",
    "I32",
    "BF16",
    "../x",
    "bert.",
    "gelu_new",
    "\0",
    "\n",
    "\ud800",
    "é" * 3000,
]
VALUES = [*NUMBERS, *TEXTS, None, True, [], {}, [[]], [2**62, 4], 10**4000]


def mutate_file(rng: random.Random, name: str, data: bytes) -> bytes:
    """One fault in a file: among its bytes, or in the JSON that it is or begins with."""
    if rng.random() < 0.4:
        return mutate_bytes(rng, data)
    if name.endswith(".json"):
        return mutate_json(rng, data)
    header_end = 8 + int.from_bytes(data[:8], "little")
    mutate = rng.choice([mutate_bytes, mutate_json, mutate_json])
    return raw_file(mutate(rng, data[8:header_end]), data[header_end:])


def mutate_bytes(rng: random.Random, data: bytes) -> bytes:
    """A few bytes changed, cut out, doubled, put in or added, more often near the beginning."""
    data = bytearray(data)
    for _ in range(rng.choice([1, 1, 1, 2, 5])):
        start = rng.randrange(min(len(data), rng.choice([9, 300, 10**9])) or 1)
        stop = start + rng.choice([1, 2, 8, 100])
        fault = rng.randrange(6)
        if fault == 0 and start < len(data):
            data[start] ^= 1 << rng.randrange(8)
        elif fault == 1:
            data[start:stop] = rng.randbytes(len(data[start:stop]))
        elif fault == 2:
            del data[start : rng.choice([stop, len(data)])]
        elif fault == 3:
            data[start:start] = data[start:stop]
        elif fault == 4:
            data[start:start] = rng.choice([b'"', b"{", b"}", b",", b"0", b"\xff", b"\0", b"[" * 5000])
        else:
            data += rng.randbytes(rng.choice([1, 4, 1000]))
    return bytes(data)


def mutate_json(rng: random.Random, text: bytes) -> bytes:
    """One value somewhere inside changed, removed, renamed, doubled, or exchanged with its neighbour."""
    return json.dumps(_mutate(rng, json.loads(text)), ensure_ascii=rng.random() < 0.5).encode(
        errors="surrogatepass"
    )


def _mutate(rng: random.Random, value: Any) -> Any:
    if isinstance(value, dict | list) and value and rng.random() < 0.9:
        value = value.copy()
        keys = list(value) if isinstance(value, dict) else range(len(value))
        key, other = rng.choice(keys), rng.choice(keys)
        fault = rng.randrange(7)
        if fault == 0:
            del value[key]
        elif fault == 1:
            value[key], value[other] = value[other], value[key]
        elif fault == 2 and isinstance(value, dict):
            value[rng.choice([*TEXTS, "bert." + key, key.removeprefix("bert.")])] = value.pop(key)
        else:
            value[key] = _mutate(rng, value[key])
        return value
    if isinstance(value, int) and rng.random() < 0.5:
        return value + rng.choice([-4, -1, 1, 4])
    return rng.choice(VALUES)
