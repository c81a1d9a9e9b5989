"""Model files: what is in them, and everything that can be wrong with them."""

import json
import os
import re
import shutil

import numpy as np
import pytest
import safetensors.numpy
from model_files import raw_file, split_model, write_raw

from minibert.bert import BertConfig, BertForPreTraining, BertModel
from minibert.devices import Device
from minibert.errors import UserError
from minibert.folders.weights import HEADER_LIMIT, read_header


@pytest.fixture(scope="module")
def device() -> Device:
    """Files are read on the host, whatever the device, so the CPU is enough."""
    return Device("cpu", np)


@pytest.fixture
def folder(build, tmp_path):
    """A saved BertForPreTraining."""
    build(dtype="float32").save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def refused(folder, message, model_class=BertForPreTraining):
    with pytest.raises(UserError, match=message) as caught:
        model_class.from_pretrained(folder)
    assert "\n" not in str(caught.value)


# -- The header -------------------------------------------------------------------------------------


def test_a_file_is_what_the_library_says(folder):
    path = folder / "model.safetensors"
    tensors = read_header(path)
    expected = safetensors.numpy.load_file(path)
    assert tensors.keys() == expected.keys()
    for name, array in expected.items():
        assert (tensors[name].shape, tensors[name].dtype) == (array.shape, "F32")
        np.testing.assert_array_equal(tensors[name].read(), array)


@pytest.mark.parametrize(
    ("dtype", "bits", "value"),
    [
        ("F64", np.array([0x400921FB54442D18], "uint64"), np.pi),
        ("F32", np.array([0x40490FDB], "uint32"), np.float32(np.pi)),
        ("F16", np.array([0x4248], "uint16"), 3.140625),
        ("BF16", np.array([0x4049], "uint16"), 3.140625),
        ("BF16", np.array([0xFF80], "uint16"), -np.inf),
        ("BF16", np.array([0x0001], "uint16"), 2.0**-133),  # the smallest
    ],
)
def test_storage_types(tmp_path, dtype, bits, value):
    write_raw(tmp_path / "x", {"odd": ("U8", np.zeros(3, "uint8")), "x": (dtype, bits)})  # not aligned
    numbers = read_header(tmp_path / "x")["x"].read()
    assert numbers.shape == (1,) and numbers.dtype.kind == "f" and numbers[0] == value


F32 = '{"dtype":"F32","shape":[1],"data_offsets":[0,4]}'


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\x02\0\0", id="less than a length"),
        pytest.param(b"not a model at all", id="text"),
        pytest.param(b"\xff" * 8, id="a header of 16 exabytes"),
        pytest.param((HEADER_LIMIT + 1).to_bytes(8, "little") + bytes(100), id="a header of 16 MiB"),
        pytest.param((100).to_bytes(8, "little") + b"{}", id="a header longer than the file"),
        pytest.param(raw_file("["), id="not JSON"),
        pytest.param(raw_file("[]"), id="a list"),
        pytest.param(raw_file("[" * 100_000), id="a deep list"),
        pytest.param(raw_file(b'{"\xff":' + F32.encode() + b"}", bytes(4)), id="a name that is not UTF-8"),
        pytest.param(raw_file('{"\\ud800":' + F32 + "}", bytes(4)), id="a name that is half a character"),
        pytest.param(raw_file('{"a":' + F32 + ',"a":' + F32 + "}", bytes(4)), id="a name twice"),
        pytest.param(raw_file('{"a":' + F32 + ',"b":' + F32 + "}", bytes(4)), id="the same bytes twice"),
        pytest.param(raw_file('{"a":["F32",[1],[0,4]]}', bytes(4)), id="a list for a description"),
        pytest.param(raw_file('{"a":' + F32 + "}", bytes(3)), id="a byte too few"),
        pytest.param(raw_file('{"a":' + F32 + "}", bytes(5)), id="a byte too many"),
        pytest.param(raw_file('{"a":' + F32.replace("[0,4]", "[1,5]") + "}", bytes(5)), id="a gap"),
        pytest.param(raw_file('{"a":' + F32.replace("[0,4]", "[4,0]") + "}", bytes(4)), id="backwards"),
        pytest.param(raw_file('{"a":' + F32.replace("0,4", "-4,0") + "}", bytes(4)), id="before the start"),
        pytest.param(raw_file('{"a":' + F32.replace("[1]", "[2]") + "}", bytes(4)), id="another size"),
        pytest.param(raw_file('{"a":' + F32.replace("[1]", "[-1]") + "}", bytes(4)), id="a negative size"),
        pytest.param(raw_file('{"a":' + F32.replace("[1]", f"[{2**62},4]") + "}", bytes(4)), id="overflow"),
        pytest.param(raw_file('{"a":' + F32.replace("F32", "F\\n7") + "}", bytes(4)), id="an unknown type"),
        pytest.param(raw_file('{"a":{"dtype":"F32"}}', bytes(4)), id="half a description"),
        pytest.param(raw_file('{"__metadata__":' + F32 + "}", bytes(4)), id="a tensor for metadata"),
    ],
)
def test_damaged_files(folder, data):
    (folder / "model.safetensors").write_bytes(data)
    refused(folder, r"model\.safetensors: damaged or not a safetensors file \(.+\); fetch or save it again")


@pytest.mark.parametrize("cut", [0.5, 1.0])
def test_a_file_that_was_cut_off(folder, cut):
    path = folder / "model.safetensors"
    data = path.read_bytes()
    path.write_bytes(data[: int(cut * len(data)) - 1])
    refused(folder, "damaged or not a safetensors file")


def test_a_file_that_became_shorter_after_it_was_opened(tmp_path):
    path = tmp_path / "model.safetensors"
    write_raw(path, {"x": ("F32", np.ones(1000, "float32"))})
    stored = read_header(path)["x"]
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(UserError, match=r"model\.safetensors: damaged .*the tensor 'x' is cut off"):
        stored.read()


def test_a_file_that_may_not_be_read(folder):
    path = folder / "model.safetensors"
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("this user may read everything")
    refused(folder, r"model\.safetensors: cannot read this model file \(Permission denied\)")


# -- Shards -----------------------------------------------------------------------------------------

INDEX = "model.safetensors.index.json"
WORDS = "bert.embeddings.word_embeddings.weight"


@pytest.fixture
def shards(folder):
    """The saved model in three files with an index."""
    split_model(folder, 3)
    return folder


def change_index(folder, change):
    index = json.loads((folder / INDEX).read_text())
    (folder / INDEX).write_text(json.dumps(change(index) or index))


@pytest.mark.parametrize(
    "name",
    [
        *("../model-00001-of-00003.safetensors", "./model-00001-of-00003.safetensors", "", ".", ".."),
        *("/etc/passwd", "..\\x.safetensors", "C:x.safetensors", "model.bin", "a\nb.safetensors"),
        *("a\0b.safetensors", "x" * 5000 + ".safetensors"),
    ],
)
def test_paths_that_lead_elsewhere(shards, name):
    outside = shards.parent / "model-00001-of-00003.safetensors"
    outside.write_bytes((shards / outside.name).read_bytes())  # it is there, and must not be read
    change_index(shards, lambda index: index["weight_map"].update({WORDS: name}))
    refused(shards, rf"{re.escape(INDEX)}: names the file .*; only \.safetensors files beside it are read")


@pytest.mark.parametrize("layout", ["folder", "shards"])
def test_the_cache_of_the_hub_holds_links(layout, request, tmp_path):
    """Its folders hold links to where the bytes are; such a model can be opened in place."""
    folder = request.getfixturevalue(layout)
    (tmp_path / "blobs").mkdir()
    for number, file in enumerate(sorted(folder.iterdir())):
        file.rename(tmp_path / "blobs" / str(number))
        file.symlink_to(tmp_path / "blobs" / str(number))
    BertForPreTraining.from_pretrained(folder)


@pytest.mark.parametrize("as_link", [False, True])
def test_a_missing_shard(shards, as_link):
    shard = shards / "model-00002-of-00003.safetensors"
    shard.unlink()
    if as_link:
        shard.symlink_to(shard)
    refused(shards, rf"{re.escape(INDEX)}: the file 'model-00002-of-00003.safetensors' .* is missing")


def test_a_damaged_shard(shards):
    (shards / "model-00003-of-00003.safetensors").write_bytes(b"")
    refused(shards, r"model-00003-of-00003\.safetensors: damaged")


@pytest.mark.parametrize(
    "change",
    [
        lambda places: places.pop(WORDS),
        lambda places: places.update({WORDS: places["cls.predictions.bias"]}),
        lambda places: places.update({"nobody": places[WORDS]}),
    ],
)
def test_an_index_that_does_not_agree_with_the_files(shards, change):
    change_index(shards, lambda index: change(index["weight_map"]) and None)
    refused(shards, r"the index and model-0000.-of-00003\.safetensors do not agree about '")


@pytest.mark.parametrize("index", [[], {}, {"weight_map": []}, {"weight_map": {WORDS: 1}}, 7])
def test_an_index_that_is_none(shards, index):
    change_index(shards, lambda _: index or {"weight_map": None})
    refused(shards, "damaged, expected a 'weight_map' from tensor names to file names")


def test_an_index_that_is_not_json(shards):
    (shards / INDEX).write_text("{" * 10)
    refused(shards, "this index of model files is not valid JSON")


# -- Folders that are something else ----------------------------------------------------------------


@pytest.mark.parametrize("name", ["google-bert/bert-base-uncased", "x" * 5000, "a\0b"])
@pytest.mark.parametrize("opener", [BertModel, BertConfig])
def test_a_name_that_is_no_folder(name, opener):
    with pytest.raises(
        UserError, match=r"no such folder, nor a model .*; models are read from local folders"
    ):
        opener.from_pretrained(name)


def test_a_file_is_no_folder(folder):
    refused(folder / "model.safetensors", "a model is a folder with config.json and model.safetensors")


@pytest.mark.parametrize("name", ["final", "best"])
@pytest.mark.parametrize("opener", [BertForPreTraining, BertConfig])
def test_the_folder_of_a_run(folder, tmp_path, name, opener):
    """Its config.json has the settings of the run; the model is one folder further down."""
    run = tmp_path / "run"
    shutil.copytree(folder, run / name)
    (run / "config.json").write_text('{"name": "run"}')
    with pytest.raises(UserError, match=rf"run: this is the folder of a run; its model is in .*run/{name}$"):
        opener.from_pretrained(run)


def test_a_model_with_another_one_inside(folder):
    """A folder that has weights of its own is no run, whatever is in it."""
    shutil.copytree(folder, folder.parent / "copy")
    (folder.parent / "copy").rename(folder / "final")
    BertForPreTraining.from_pretrained(folder)


def test_no_model_file(folder):
    (folder / "model.safetensors").unlink()
    refused(folder, r"model\.safetensors: no such model file; give a folder with config\.json and model\.saf")
