"""Folders of older formats, as torch and TensorFlow wrote them, open like any other."""

import json
import warnings

import numpy as np
import pytest
from old_folders import LAYOUTS, fill, golden_numbers

from minibert import BertForMaskedLM, BertForPreTraining, BertTokenizer
from minibert.cli import main
from minibert.errors import UserError
from minibert.folders.torch_file import read_torch_file
from minibert.folders.weights import open_weights
from minibert.heads.sentence import SentenceEncoder
from minibert.heads.task_models import BertForSequenceClassification
from minibert.tasks.exporting import export
from minibert.variants import open_config, open_model


@pytest.fixture(params=LAYOUTS)
def folder(request, tmp_path):
    return fill(tmp_path / "model", request.param)


@pytest.mark.filterwarnings("error")
def test_every_number_is_read(folder):
    model = BertForPreTraining.from_pretrained(folder)
    expected = golden_numbers()
    assert {name for name, _ in model.named_parameters()} == expected.keys()
    for name, parameter in model.named_parameters():
        np.testing.assert_array_equal(parameter.value, expected[name], err_msg=name)


@pytest.mark.parametrize("kind", [BertForMaskedLM, BertForSequenceClassification, SentenceEncoder])
def test_every_class_opens_it(folder, kind, capsys):
    with warnings.catch_warnings(action="ignore"):  # some do not use all heads
        model = open_model(kind, folder)
    words = dict(model.named_parameters())
    name = next(name for name in words if name.endswith("word_embeddings.weight"))
    np.testing.assert_array_equal(
        words[name].value, golden_numbers()["bert.embeddings.word_embeddings.weight"]
    )


@pytest.mark.filterwarnings("ignore:.*does not use")
def test_a_command_reads_it(folder, capsys):
    assert main(["fill-mask", "--model", str(folder), "a [MASK]"]) == 0
    assert "[MASK]" in capsys.readouterr().out


@pytest.mark.filterwarnings("error")
def test_it_can_be_exported(folder, tmp_path):
    """What comes out needs neither of the two libraries, and no second reader."""
    export(folder, tmp_path / "new")
    names = {path.name for path in (tmp_path / "new").iterdir()}
    assert names == {"config.json", "model.safetensors", "vocab.txt"}
    assert json.loads((tmp_path / "new" / "config.json").read_text())["model_type"] == "bert"
    model = BertForPreTraining.from_pretrained(tmp_path / "new")
    for name, parameter in model.named_parameters():
        np.testing.assert_array_equal(parameter.value, golden_numbers()[name], err_msg=name)
    assert len(BertTokenizer.from_pretrained(tmp_path / "new")) == 7


def test_safetensors_come_first(folder):
    """Many folders on the Hub have the same weights twice."""
    other = BertForPreTraining(open_config(folder), seed=3)
    other.save_pretrained(folder)
    assert {tensor.file.name for tensor in open_weights(folder).values()} == {"model.safetensors"}


def test_of_two_configurations_the_newer_counts(tmp_path):
    folder = fill(tmp_path / "model", "checkpoint")
    assert not open_config(folder).is_decoder
    config = json.loads((folder / "bert_config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"is_decoder": True}))
    assert open_config(folder).is_decoder


# -- Shards of torch's ------------------------------------------------------------------------------


SHARD = "pytorch_model-00001-of-00001.bin"


@pytest.fixture
def shards(tmp_path):
    """An index of one file."""
    folder = fill(tmp_path / "model", "zip")
    (folder / "pytorch_model.bin").rename(folder / SHARD)
    write_index(folder, dict.fromkeys(read_torch_file(folder / SHARD), SHARD))
    return folder


def write_index(folder, places):
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": places}))


def test_shards(shards):
    model = BertForPreTraining.from_pretrained(shards)
    for name, parameter in model.named_parameters():
        np.testing.assert_array_equal(parameter.value, golden_numbers()[name], err_msg=name)


def test_shards_must_agree_with_the_index(shards):
    write_index(shards, {"cls.predictions.bias": SHARD})
    with pytest.raises(UserError, match=r"the index and .* do not agree about"):
        BertForPreTraining.from_pretrained(shards)


@pytest.mark.parametrize("name", ["../x.bin", "x.safetensors", "/etc/passwd", "xbin"])
def test_an_index_leads_to_files_beside_it_only(shards, name):
    write_index(shards, {"cls.predictions.bias": name})
    with pytest.raises(UserError, match=r"names the file .*; only \.bin files beside it are read"):
        BertForPreTraining.from_pretrained(shards)


# -- Which checkpoint -------------------------------------------------------------------------------


@pytest.fixture
def several(tmp_path):
    """What a program of Google's leaves behind: the checkpoints of two steps."""
    folder = fill(tmp_path / "model", "checkpoint")
    for path in sorted(folder.glob("bert_model.ckpt.*")):
        for step in (1000, 2000):
            (folder / path.name.replace("bert_model.ckpt", f"model.ckpt-{step}")).write_bytes(
                path.read_bytes()
            )
        path.unlink()
    return folder


def test_of_several_checkpoints_the_latest(several):
    with pytest.raises(
        UserError, match=r"has several TensorFlow checkpoints, 'model\.ckpt-1000\.index', '.*leave"
    ):
        open_weights(several)
    for latest in ("model.ckpt-2000", "/home/somebody/model.ckpt-2000"):
        (several / "checkpoint").write_text(
            f'model_checkpoint_path: "{latest}"\nall_model_checkpoint_paths: "model.ckpt-1000"\n'
        )
        assert {tensor.file.name[:15] for tensor in open_weights(several).values()} == {"model.ckpt-2000"}
    (several / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-3000"\n')
    with pytest.raises(UserError, match="several"):
        open_weights(several)


@pytest.mark.parametrize("name", ["bert_model.ckpt", "bert_model.ckpt.data-00000-of-00001"])
def test_a_checkpoint_without_an_index(tmp_path, name):
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(UserError, match=rf"has '{name}', but no \.index.*is not read") as caught:
        open_weights(tmp_path)
    assert "\n" not in str(caught.value)
