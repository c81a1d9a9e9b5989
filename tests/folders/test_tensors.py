"""Models on disk."""

import errno
import json
import os
import re
import tracemalloc
import warnings

import numpy as np
import pytest
from model_files import split_model, write_raw
from safetensors.numpy import load_file, save_file

from minibert.arrays import to_numpy
from minibert.bert import BertForMaskedLM, BertForNextSentencePrediction, BertForPreTraining, BertModel
from minibert.errors import UserError
from minibert.nn import initialise

MODELS = [BertModel, BertForPreTraining, BertForMaskedLM, BertForNextSentencePrediction]


@pytest.fixture
def folder(build, tmp_path):
    """A saved BertForPreTraining."""
    build().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def outputs(model, batch):
    output, _ = model.forward(**batch.encoder)
    return {name: to_numpy(value) for name, value in vars(output).items() if value is not None}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("model_class", MODELS)
def test_round_trip_gives_the_same_bits(build, batch, device, tmp_path, model_class, dtype):
    model = build(model_class, dtype=dtype, hidden_act="gelu_new")
    model.save_pretrained(tmp_path)
    again = model_class.from_pretrained(tmp_path, device=device, dtype=dtype)
    assert again.config == model.config
    for (name, a), (same_name, b) in zip(model.named_parameters(), again.named_parameters(), strict=True):
        assert name == same_name
        np.testing.assert_array_equal(to_numpy(a.value), to_numpy(b.value))
    expected = outputs(model, batch)
    actual = outputs(again, batch)
    assert actual.keys() == expected.keys()
    for name in expected:
        np.testing.assert_array_equal(actual[name], expected[name])


def test_a_loaded_model_evaluates_and_can_train(folder, batch):
    model = BertForPreTraining.from_pretrained(folder)
    assert not any(module.training for module in model.modules())
    assert model.dtype == "float32" and model.device.name == "cpu"
    output, cache = model.forward(**batch.all)
    model.backward(cache)
    assert np.abs(model.buffers.grad).max() > 0
    again = BertForPreTraining.from_pretrained(folder)
    assert float(again.forward(**batch.all)[0].loss) == float(output.loss), "no dropout"


def test_the_file_holds_each_parameter_once_under_its_name(folder, build):
    tensors = load_file(folder / "model.safetensors")
    parameters = dict(build().named_parameters())
    assert tensors.keys() == parameters.keys()
    for name, parameter in parameters.items():
        np.testing.assert_array_equal(tensors[name], to_numpy(parameter.value))
        assert tensors[name].dtype == "float64"
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]


def test_precision_is_converted_on_loading(folder):
    """Float64 on disk, as float32 in memory: each number rounded once."""
    double = BertForPreTraining.from_pretrained(folder, dtype="float64")
    single = BertForPreTraining.from_pretrained(folder, dtype="float32")
    assert single.buffers.value.dtype == "float32"
    np.testing.assert_array_equal(single.buffers.value, double.buffers.value.astype("float32"))


# -- Layouts ----------------------------------------------------------------------------------------


def rewrite(folder, change):
    """Replace the tensors of the model file by ``change`` of them (or by them, changed in place)."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    save_file(change(tensors) or tensors, path)


def rename(folder, change):
    """Give every tensor of the model file the name ``change`` of its own."""
    rewrite(folder, lambda tensors: {change(name): tensor for name, tensor in tensors.items()})


def load_quietly(model_class, folder, **options):
    """The model of a folder from which nothing is missing and in which nothing is too much."""
    with warnings.catch_warnings(action="error"):
        return model_class.from_pretrained(folder, **options)


def load_warned(model_class, folder):
    """The model of a folder, and the warnings, a line each."""
    with pytest.warns(UserWarning) as caught:
        model = model_class.from_pretrained(folder, dtype="float64")
    told = [str(warning.message) for warning in caught]
    assert not any("\n" in line for line in told)
    assert all(warning.filename == __file__ for warning in caught), "the warning is about the caller's line"
    return model, told


def same_parameters(model, other):
    """Every parameter of the model is that of the other, bit for bit."""
    others = dict(other.named_parameters())
    for name, parameter in model.named_parameters():
        np.testing.assert_array_equal(to_numpy(parameter.value), to_numpy(others[name].value))
    return True


def test_old_names_of_layer_norm(folder, build):
    olden = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    rename(folder, lambda name: re.sub("LayerNorm.*", lambda found: olden[found[0]], name))
    assert "cls.predictions.transform.LayerNorm.gamma" in load_file(folder / "model.safetensors")
    assert same_parameters(load_quietly(BertForPreTraining, folder, dtype="float64"), build())


def test_no_prefix(folder, build):
    rename(folder, lambda name: name.removeprefix("bert."))
    assert same_parameters(load_quietly(BertForPreTraining, folder, dtype="float64"), build())


def test_an_encoder_opened_with_heads(build, tmp_path):
    encoder = build(BertModel)
    encoder.save_pretrained(tmp_path)
    model, told = load_warned(BertForPreTraining, tmp_path)
    assert same_parameters(encoder, model.bert)
    assert (
        len(told) == 1 and "newly initialised: 'cls.predictions.bias', 'cls.predictions.transform." in told[0]
    )
    assert told[0].count("'cls.") == 7 and told[0].startswith(f"{tmp_path} has no tensors for")
    transform = to_numpy(model.cls.predictions.transform.dense.weight.value)
    assert 0 < np.abs(transform).max() < 0.04 and transform.std() > 0.01, "drawn as config.initializer says"
    assert (to_numpy(model.cls.predictions.transform.LayerNorm.weight.value) == 1).all()
    assert not to_numpy(model.cls.predictions.bias.value).any()
    again, _ = load_warned(BertForPreTraining, tmp_path)
    assert same_parameters(model, again)


def test_heads_opened_as_an_encoder(folder, build):
    model, told = load_warned(BertModel, folder)
    assert same_parameters(model, build().bert)
    assert len(told) == 1 and "has tensors that BertModel does not use: 'cls.predictions.bias', " in told[0]
    assert told[0].count("'cls.") == 7


def test_no_pooler(build, tmp_path):
    words = build(BertForMaskedLM)
    words.save_pretrained(tmp_path)
    model, told = load_warned(BertModel, tmp_path)
    assert "newly initialised: 'pooler.dense.bias', 'pooler.dense.weight'" in told[0] and len(told) == 2
    assert not to_numpy(model.pooler.dense.bias.value).any()
    assert to_numpy(model.pooler.dense.weight.value).any()


def test_tensors_of_nobody(folder):
    rewrite(folder, lambda tensors: tensors.update({"classifier.weight": np.zeros((3, 4), "int64")}))
    _, told = load_warned(BertForPreTraining, folder)
    assert told == [f"{folder} has tensors that BertForPreTraining does not use: 'classifier.weight'"]


@pytest.mark.parametrize("prefix", ["bert.", ""])
def test_constants_of_old_files_are_nothing_to_tell(folder, prefix):
    constants = {f"{prefix}embeddings.position_ids": np.arange(16)[None]}
    rewrite(folder, lambda tensors: tensors.update(constants))
    load_quietly(BertForPreTraining, folder)


WORDS = "bert.embeddings.word_embeddings.weight"
DECODER = {"cls.predictions.decoder.weight": WORDS, "cls.predictions.decoder.bias": "cls.predictions.bias"}


def test_the_decoder_again(folder, build):
    rewrite(folder, lambda tensors: tensors.update({new: tensors[old] for new, old in DECODER.items()}))
    assert same_parameters(load_quietly(BertForPreTraining, folder, dtype="float64"), build())


def test_the_decoder_in_place_of_its_twins(folder, build):
    rewrite(folder, lambda tensors: tensors.update({new: tensors.pop(old) for new, old in DECODER.items()}))
    assert same_parameters(load_quietly(BertForPreTraining, folder, dtype="float64"), build())


@pytest.mark.parametrize("name", DECODER)
@pytest.mark.parametrize(
    "change",
    [
        lambda x: x + 1e-9,
        lambda x: x[1:],
        lambda x: x[None],
        lambda x: x.astype("float32"),
        lambda x: x.astype("int64"),
    ],
)
def test_a_decoder_of_its_own(folder, name, change):
    rewrite(folder, lambda tensors: tensors.update({name: change(tensors[DECODER[name]])}))
    with pytest.raises(UserError, match=f"'{name}' differs from '{DECODER[name]}'.*tie_word_embeddings"):
        BertForPreTraining.from_pretrained(folder)
    load_warned(BertModel, folder)  # without the head there is no question


def test_a_decoder_of_its_own_that_is_not_there(folder, build):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}))
    with pytest.raises(UserError, match=r"config\.json: tie_word_embeddings is false, but there is"):
        BertForPreTraining.from_pretrained(folder)
    load_warned(BertModel, folder)  # without the head there is no question
    rewrite(folder, lambda tensors: tensors.update({new: tensors[old] for new, old in DECODER.items()}))
    assert same_parameters(load_quietly(BertForPreTraining, folder, dtype="float64"), build())


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("asked", ["float32", "float64"])
def test_storage_types(folder, dtype, asked):
    rewrite(folder, lambda tensors: {name: tensor.astype(dtype) for name, tensor in tensors.items()})
    model = BertForPreTraining.from_pretrained(folder, dtype=asked)
    for name, tensor in load_file(folder / "model.safetensors").items():
        value = dict(model.named_parameters())[name].value
        assert tensor.dtype == dtype and value.dtype == asked
        np.testing.assert_array_equal(value, tensor.astype(asked))


@pytest.mark.parametrize("asked", ["float32", "float64"])
def test_bfloat16_is_the_upper_half_of_a_float32(folder, asked):
    tensors = load_file(folder / "model.safetensors")
    tensors = {name: tensor.astype("float32").view("uint32") for name, tensor in tensors.items()}
    halves = {name: ("BF16", (tensor >> 16).astype("uint16")) for name, tensor in tensors.items()}
    write_raw(folder / "model.safetensors", halves)
    model = load_quietly(BertForPreTraining, folder, dtype=asked)
    for name, tensor in tensors.items():
        expected = (tensor & 0xFFFF0000).view("float32")
        np.testing.assert_array_equal(dict(model.named_parameters())[name].value, expected.astype(asked))


def test_numbers_beyond_the_asked_type(folder):
    rewrite(folder, lambda tensors: tensors.update({"cls.predictions.bias": np.full(50, 1e300)}))
    with pytest.raises(
        UserError, match=r"'cls\.predictions\.bias' has numbers too large for float32; .*float64"
    ):
        BertForPreTraining.from_pretrained(folder)
    model = BertForPreTraining.from_pretrained(folder, dtype="float64")
    assert (model.cls.predictions.bias.value == 1e300).all()


@pytest.mark.parametrize("number", [np.nan, -np.inf])
def test_a_model_that_diverged_is_told(folder, number):
    rewrite(folder, lambda tensors: tensors.update({"cls.predictions.bias": np.full(50, number)}))
    told = r"model.safetensors has numbers that are NaN or infinite, .* diverged: 'cls.predictions.bias'$"
    with pytest.warns(UserWarning, match=told):
        BertForPreTraining.from_pretrained(folder)


@pytest.fixture
def shards(folder):
    """The saved model in three files with an index."""
    split_model(folder, 3)
    return folder


def test_shards(shards, build):
    assert not (shards / "model.safetensors").exists()
    assert same_parameters(load_quietly(BertForPreTraining, shards, dtype="float64"), build())


def test_no_random_numbers_are_drawn_for_what_is_in_the_file(folder, monkeypatch):
    monkeypatch.setattr(initialise, "_standard_normal", None)
    load_quietly(BertForPreTraining, folder)


# -- Saving -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("model_class", MODELS)
def test_the_configuration_says_what_transformers_asks(build, tmp_path, model_class):
    build(model_class, dtype="float32").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    expected = {"model_type": "bert", "architectures": [model_class.__name__], "dtype": "float32"}
    assert {name: config[name] for name in expected} == expected


def test_saving_over_a_model_replaces_it(folder, build):
    build(BertForMaskedLM, hidden_size=6).save_pretrained(folder)
    model = BertForMaskedLM.from_pretrained(folder)
    assert model.config.hidden_size == 6
    assert load_file(folder / "model.safetensors").keys() == dict(model.named_parameters()).keys()


@pytest.mark.parametrize("broken", ["model.safetensors", "config.json"])
def test_a_save_that_fails_changes_nothing(folder, build, monkeypatch, broken):
    """The disk is full when one of the two files is written: both stay what they were."""
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    fsync = os.fsync

    def full(descriptor):
        if broken in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match="no space left"):
        build(hidden_size=6).save_pretrained(folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_other_files_of_the_folder_stay(folder, build):
    (folder / "vocab.txt").write_text("[PAD]\n")
    build().save_pretrained(folder)
    assert (folder / "vocab.txt").read_text() == "[PAD]\n"


# -- What does not fit ------------------------------------------------------------------------------


def refused(folder, message, model_class=BertForPreTraining):
    with pytest.raises(UserError, match=message) as caught:
        model_class.from_pretrained(folder)
    assert "\n" not in str(caught.value)


def test_missing_tensors_of_the_encoder(folder):
    rewrite(folder, lambda tensors: [tensors.pop(name) for name in list(tensors) if "query" in name] and None)
    refused(folder, r"4 tensors are missing: 'bert\.encoder\.layer\.0\.attention\.self\.query\.bias', '")


def test_many_missing_tensors(folder):
    change_config(folder, num_hidden_layers=4)
    refused(folder, r"32 tensors are missing: .* and 22 more; is num_hidden_layers correct")


def test_half_a_head(folder):
    rewrite(folder, lambda tensors: tensors.pop("cls.predictions.transform.dense.weight") is None)
    refused(folder, r"1 tensor is missing: 'cls\.predictions\.transform\.dense\.weight'")


def test_a_tensor_of_another_shape(folder):
    name = "bert.pooler.dense.weight"
    rewrite(folder, lambda tensors: tensors.update({name: tensors[name][:, :5].copy()}))
    refused(
        folder, r"'bert\.pooler\.dense\.weight' has shape \(12, 5\), the configuration expects \(12, 12\)"
    )


@pytest.mark.parametrize("dtype", ["int64", "uint8", "bool"])
def test_a_tensor_of_another_type(folder, dtype):
    rewrite(folder, lambda tensors: tensors.update({WORDS: tensors[WORDS].astype(dtype)}))
    told = {"int64": "I64", "uint8": "U8", "bool": "BOOL"}[dtype]
    refused(folder, f"'{WORDS}' has type {told}, expected F64, F32, F16, BF16")


@pytest.mark.parametrize(("name", "twin"), [(WORDS, WORDS[5:]), ("bert.embeddings.LayerNorm.bias",) * 2])
def test_two_tensors_for_one_parameter(folder, name, twin):
    twin = twin.replace(".bias", ".beta")
    rewrite(folder, lambda tensors: tensors.update({twin: tensors[name]}))
    refused(folder, "the tensors '(bert.)?embeddings.*', '(bert.)?embeddings.*' are for the same parameter")


def change_config(folder, **values):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | values))


def test_a_vocabulary_of_another_size(folder):
    change_config(folder, vocab_size=51)
    refused(folder, r"word_embeddings\.weight' has shape \(50, 12\).*expects \(51, 12\)")


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"vocab_size": 10**15}, r"config\.json: vocab_size must be at most 10,000,000, got 1000000000"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers must be at most 1,000, got 1000000000"),
        ({"hidden_size": 3 * 10**7}, "hidden_size must be at most 100,000, got 30000000"),
        ({"hidden_size": 99_999, "vocab_size": 10**7}, r"expects \((10000000, )?99999"),  # 4 TB
        ({"intermediate_size": 10**6}, r"expects \((12, )?1000000"),
        ({"max_position_embeddings": 10**7}, r"position_embeddings.* expects \(10000000, 12\)"),
        ({"num_hidden_layers": 1000}, "15968 tensors are missing"),
    ],
)
def test_absurd_sizes_take_no_memory(folder, values, told):
    change_config(folder, **values)
    tracemalloc.start()
    try:
        refused(folder, told)
        assert tracemalloc.get_traced_memory()[1] < 50e6
    finally:
        tracemalloc.stop()


def test_not_enough_memory(folder, monkeypatch):
    def allocate(*_, **__):
        raise MemoryError

    monkeypatch.setattr(BertForPreTraining, "allocate", allocate)
    refused(folder, "not enough memory for 3,620 parameters in float32")


def test_no_parameter_is_set_before_all_is_checked(folder, monkeypatch):
    """The last tensor is the wrong one, so the others could have been loaded before it."""
    last = list(load_file(folder / "model.safetensors"))[-1]
    rewrite(folder, lambda tensors: tensors.update({last: np.zeros(3)}))
    monkeypatch.setattr(BertForPreTraining, "allocate", None)
    refused(folder, last)


def test_a_folder_that_cannot_be_written(build, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UserError, match=r"file/model\.safetensors: cannot write here"):
        build().save_pretrained(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "in the way"
