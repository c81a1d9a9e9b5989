"""Folders of descendants that do not fit are refused as BERT's are: in a line that names what is wrong."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from minibert.bert import BertForMaskedLM, BertModel
from minibert.cli import main
from minibert.errors import UserError
from minibert.folders.names import name_in_file
from minibert.heads import BertForSequenceClassification
from minibert.text import XLNetTokenizer, open_tokenizer
from minibert.variants import FAMILIES, open_config, open_model

SIZES = {"vocab_size": 40, "hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3}
SIZES |= {"intermediate_size": 16, "max_position_embeddings": 16}
PART = {"bert": "layer.1.output.dense.bias", "xlnet": "layer.1.ff.layer_2.bias"}
FOLDERS = pytest.mark.parametrize("name", PART)


@pytest.fixture
def folder(name, tmp_path):
    members = FAMILIES[name]
    members.models[BertForMaskedLM](members.config.from_dict(SIZES)).save_pretrained(tmp_path)
    return tmp_path


def change(folder, **values):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def rewrite(folder, edit):
    path = folder / "model.safetensors"
    tensors = load_file(path)
    edit(tensors)
    save_file(tensors, path)


def refused(folder, message, kind=BertModel):
    with pytest.raises(UserError, match=message) as error:
        open_model(kind, folder)
    assert "\n" not in str(error.value)


@FOLDERS
def test_a_tensor_is_missing_or_has_another_shape_or_type(name, folder):
    (whole,) = (tensor for tensor in load_file(folder / "model.safetensors") if tensor.endswith(PART[name]))
    rewrite(folder, lambda tensors: tensors.update({whole: np.zeros(5, np.float32)}))
    refused(folder, rf"tensor '{whole}' has shape \(5,\), the configuration expects \(12,\)")
    rewrite(folder, lambda tensors: tensors.update({whole: np.zeros(12, np.int32)}))
    refused(folder, f"tensor '{whole}' has type I32")
    rewrite(folder, lambda tensors: tensors.pop(whole))
    refused(
        folder, rf"1 tensor is missing: '.*{PART[name]}'; is (num_hidden_layers correct|config.json that)"
    )


def test_settings_are_called_as_the_file_calls_them(tmp_path):
    members = FAMILIES["distilbert"]
    sizes = {"vocab_size": 9, "hidden_size": 4, "num_attention_heads": 2}
    members.models[BertModel](members.config(**sizes)).save_pretrained(tmp_path)
    change(tmp_path, dim=None)
    refused(tmp_path, r"hidden_size must be a whole number .*; hidden_size is 'dim' there$")


@FOLDERS
def test_sizes_that_are_not_those_of_the_tensors(name, folder):
    names = FAMILIES[name].config.names_in_file
    for field, value, message in (
        ("hidden_size", 24, "has shape"),
        ("num_hidden_layers", 3, "are missing"),
        ("num_attention_heads", 5, "hidden_size 12 is not divisible by num_attention_heads 5"),
        ("intermediate_size", 10**9, "intermediate_size must be at most"),
        ("hidden_size", "12", "hidden_size must be a whole number"),
        ("hidden_act", "swish", "unknown hidden_act"),
    ):
        before = (folder / "config.json").read_text()
        change(folder, **{names.get(field, field): value})
        refused(folder, message)
        (folder / "config.json").write_text(before)


@FOLDERS
def test_half_a_head(name, folder):
    bias = name_in_file("cls.predictions.bias", FAMILIES[name].models[BertForMaskedLM].tensor_names)
    model = FAMILIES[name].models[BertForSequenceClassification](FAMILIES[name].config.from_dict(SIZES))
    model.save_pretrained(folder)
    heads = [tensor for tensor in load_file(folder / "model.safetensors") if "encoder" not in tensor]
    (weight,) = (tensor for tensor in heads if tensor.endswith(("classifier.weight", "logits_proj.weight")))
    rewrite(folder, lambda tensors: tensors.pop(weight))
    refused(folder, "1 tensor is missing", BertForSequenceClassification)
    assert bias not in heads


@FOLDERS
def test_a_file_that_was_cut_off_and_no_file(name, folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    refused(folder, "model.safetensors")
    path.unlink()
    refused(folder, "safetensors")


def test_what_no_released_xlnet_has(tmp_path):
    FAMILIES["xlnet"].models[BertModel](FAMILIES["xlnet"].config.from_dict(SIZES)).save_pretrained(tmp_path)
    change(tmp_path, attn_type="uni")
    with pytest.raises(UserError, match=r"config\.json: attn_type is 'uni'; only XLNets with 'bi'"):
        open_config(tmp_path)


def test_a_tokenizer_of_another_model(tmp_path, capsys):
    members = FAMILIES["xlnet"]
    few = members.config.from_dict(SIZES | {"vocab_size": 20})
    members.models[BertForMaskedLM](few).save_pretrained(tmp_path)
    XLNetTokenizer.train(["a fine film in rome and another one"] * 3, 60).save_pretrained(tmp_path)
    assert len(open_tokenizer(tmp_path)) > 20
    assert main(["fill-mask", "--model", str(tmp_path), "a <mask>", "--device", "cpu"]) == 2
    error = capsys.readouterr().err
    assert "but the model knows only 20" in error and error.count("\n") == 1
    (tmp_path / "tokenizer.json").write_text('{"model": {"type": "BPE"}}')
    assert main(["fill-mask", "--model", str(tmp_path), "a <mask>", "--device", "cpu"]) == 2
    assert "tokenizer.json" in capsys.readouterr().err
