"""Weights written in several types, and in several files."""

import errno
import itertools
import json
import os

import numpy as np
import pytest
from safetensors.numpy import load_file

from minibert.bert import BertForPreTraining
from minibert.errors import UserError
from minibert.folders.shards import parse_size, replacing_weights
from minibert.folders.weights import INDEX_NAME, open_weights, read_header
from minibert.heads import SentenceEncoder

LIMIT = 8000  # bytes: some of the tensors of the small model, but each of them


@pytest.fixture
def make(config):
    """make(seed): a small model with random weights."""
    return lambda seed=0: BertForPreTraining(config(initializer_range=0.5), seed=seed)


def write(folder, tensors, dtype="float32", max_shard_size=None):
    with replacing_weights(folder, tensors, dtype, max_shard_size):
        pass


def weight_files(folder):
    return sorted(path.name for path in folder.iterdir() if path.name.startswith("model"))


def values(model):
    return {name: parameter.value for name, parameter in model.named_parameters()}


# -- Types ------------------------------------------------------------------------------------------

NUMBERS = np.concatenate(
    [
        np.random.default_rng(0).standard_normal(1000) * 10.0 ** np.arange(-10, 0).repeat(100),
        [0.0, -0.0, 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20, 2.0**-133, -np.inf, np.nan],
        np.array([0x7FFFFFFF, 0xFFFFFFFF], "uint32").view("float32"),  # not a number, all bits set
    ]
).astype("float32")


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_numbers_are_rounded_as_numpy_does(tmp_path, dtype):
    write(tmp_path, {"x": NUMBERS}, dtype)
    stored = load_file(tmp_path / "model.safetensors")["x"]
    assert stored.dtype == dtype
    np.testing.assert_array_equal(stored, NUMBERS.astype(dtype))


def test_bfloat16_is_rounded_to_the_nearest_and_ties_to_even(tmp_path):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    write(tmp_path, {"x": NUMBERS}, "bfloat16")
    stored = read_header(tmp_path / "model.safetensors")["x"]
    assert stored.dtype == "BF16"
    np.testing.assert_array_equal(stored.read(), NUMBERS.astype(ml_dtypes.bfloat16).astype("float32"))


@pytest.mark.parametrize(("dtype", "number"), [("float16", 65520.0), ("bfloat16", 3.4e38), ("float32", 1e39)])
def test_a_number_that_is_too_large_is_refused(tmp_path, dtype, number):
    (tmp_path / "model.safetensors").write_bytes(b"before")
    with pytest.raises(UserError, match=f"^x has numbers too large for {dtype}"):
        write(tmp_path, {"x": np.array([1.0, number])}, dtype)
    assert (tmp_path / "model.safetensors").read_bytes() == b"before"


def test_an_unknown_type_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"^unknown dtype 'half'; expected one of float64, .*bfloat16"):
        write(tmp_path, {}, "half")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_a_model_saved_in_another_type(make, tmp_path, dtype):
    model = make()
    model.save_pretrained(tmp_path, dtype=dtype)
    assert json.loads((tmp_path / "config.json").read_text())["dtype"] == dtype
    again = values(BertForPreTraining.from_pretrained(tmp_path))
    for name, value in values(model).items():
        np.testing.assert_allclose(again[name], value, rtol={"bfloat16": 2**-8}.get(dtype, 2**-11), atol=1e-7)


# -- Shards -----------------------------------------------------------------------------------------


def test_no_file_is_larger_than_asked_and_all_together_are_the_model(make, tmp_path):
    model = make()
    model.save_pretrained(tmp_path, max_shard_size=LIMIT)
    files = [tmp_path / name for name in weight_files(tmp_path) if name != INDEX_NAME]
    count = len(files)
    assert [path.name for path in files] == [
        f"model-{i:05}-of-{count:05}.safetensors" for i in range(1, count + 1)
    ]
    sizes = [path.stat().st_size for path in files]
    assert max(sizes) <= LIMIT and all(a + b > LIMIT for a, b in itertools.pairwise(sizes))
    index = json.loads((tmp_path / INDEX_NAME).read_text())
    assert index["metadata"]["total_size"] == sum(value.nbytes for value in values(model).values())
    assert index["weight_map"] == {name: path.name for path in files for name in load_file(path)}
    again = values(BertForPreTraining.from_pretrained(tmp_path))
    assert list(again) == list(values(model))
    for name, value in values(model).items():
        np.testing.assert_array_equal(again[name], value)


def test_the_names_of_the_tensors_count(tmp_path):
    write(tmp_path, {f"{i}" + "x" * 500: np.ones(10) for i in range(20)}, max_shard_size=3000)
    sizes = [path.stat().st_size for path in tmp_path.glob("*.safetensors")]
    assert len(sizes) > 1 and max(sizes) <= 3000


@pytest.mark.parametrize("name", ["x" * length for length in range(1, 9)])
def test_numbers_are_aligned(tmp_path, name):
    write(tmp_path, {name: np.ones(3)})
    assert read_header(tmp_path / "model.safetensors")[name].start % 8 == 0


def test_what_fits_into_one_file_is_in_one(make, tmp_path):
    make().save_pretrained(tmp_path, max_shard_size="1MB")
    assert weight_files(tmp_path) == ["model.safetensors"]


@pytest.mark.parametrize("sizes", [(None, LIMIT), (LIMIT, None), (LIMIT, 2 * LIMIT), (2 * LIMIT, LIMIT)])
def test_old_files_are_gone_when_the_new_are_there(make, tmp_path, sizes):
    (tmp_path / "model_of_mine.safetensors").write_bytes(b"mine")
    models = [make(1), make(2)]
    for model, size in zip(models, sizes, strict=True):
        model.save_pretrained(tmp_path, max_shard_size=size)
    names = {stored.file.name for stored in open_weights(tmp_path).values()}
    names |= {INDEX_NAME} if sizes[1] else set()
    assert set(weight_files(tmp_path)) == {*names, "model_of_mine.safetensors"}
    again = BertForPreTraining.from_pretrained(tmp_path)
    np.testing.assert_array_equal(again.buffers.value, models[1].buffers.value)


@pytest.mark.parametrize("broken", [".model-00002", "index.json", "config.json"])
def test_a_save_that_fails_changes_nothing(make, tmp_path, monkeypatch, broken):
    make(1).save_pretrained(tmp_path, max_shard_size=2 * LIMIT)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    fsync = os.fsync

    def full(descriptor):
        if broken in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match="no space left"):
        make(2).save_pretrained(tmp_path, max_shard_size=LIMIT)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_tensor_that_is_too_large_names_the_size_that_fits(tmp_path):
    tensors = {"less": np.zeros(4000), "long": np.zeros(5000), "short": np.zeros(3)}
    tensors = {name: tensor.astype("float32") for name, tensor in tensors.items()}
    with pytest.raises(
        UserError, match=r"^long takes 20,\d+ bytes, .*; allow at least [\d,]+ bytes$"
    ) as raised:
        write(tmp_path, tensors, max_shard_size=LIMIT)
    assert list(tmp_path.iterdir()) == []
    fits = int(str(raised.value).split()[-2].replace(",", ""))
    write(tmp_path, tensors, max_shard_size=fits)
    with pytest.raises(UserError):
        write(tmp_path, tensors, max_shard_size=fits - 1)


def test_a_sentence_encoder_in_shards(tmp_path, config):
    SentenceEncoder(config(), pooling="max").save_pretrained(tmp_path, "bfloat16", LIMIT)
    assert (tmp_path / INDEX_NAME).exists()
    assert SentenceEncoder.from_pretrained(tmp_path).pooling == "max"


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("16MiB", 16 * 2**20),
        ("5GB", 5 * 10**9),
        ("1.5 kb", 1500),
        ("2KiB", 2048),
        ("7", 7),
        (7, 7),
        ("7B", 7),
    ],
)
def test_sizes(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "MB", "16 M", "-1MB", "1e6", "16Mi", "iB", "1ib", 1.5j, "9" * 400])
def test_what_is_no_size(text):
    with pytest.raises(UserError, match=r"^expected a size like 16MiB, 5GB or a number of bytes, got"):
        parse_size(text)
