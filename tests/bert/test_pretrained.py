"""Models on disk."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from minibert.arrays import to_numpy
from minibert.bert import BertForMaskedLM, BertForNextSentencePrediction, BertForPreTraining, BertModel
from minibert.bert.pretrained import load_parameters
from minibert.errors import UserError

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


def test_a_model_with_fewer_heads_leaves_the_other_tensors(folder, batch):
    both = BertForPreTraining.from_pretrained(folder)
    words = BertForMaskedLM.from_pretrained(folder)
    np.testing.assert_array_equal(
        outputs(words, batch)["prediction_logits"], outputs(both, batch)["prediction_logits"]
    )


def test_saving_over_a_model_replaces_it(folder, build):
    build(BertForMaskedLM, hidden_size=6).save_pretrained(folder)
    model = BertForMaskedLM.from_pretrained(folder)
    assert model.config.hidden_size == 6
    assert load_file(folder / "model.safetensors").keys() == dict(model.named_parameters()).keys()


# -- What is wrong with a folder --------------------------------------------------------------------


def test_no_folder(tmp_path):
    with pytest.raises(UserError, match=r"nowhere/config\.json: no such model configuration"):
        BertModel.from_pretrained(tmp_path / "nowhere")


def test_no_model_file(folder):
    (folder / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"model\.safetensors: no such model file"):
        BertForPreTraining.from_pretrained(folder)


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda data: b"", id="empty"),
        pytest.param(lambda data: data[: len(data) // 2], id="half"),
        pytest.param(lambda data: data[:-1], id="all but the last byte"),
        pytest.param(lambda data: data + b"x", id="a byte too many"),
        pytest.param(lambda data: b"not a model at all", id="text"),
        pytest.param(lambda data: b"\xff" * 8 + data[8:], id="a header of 16 exabytes"),
        pytest.param(lambda data: data[:8] + b"[" + data[9:], id="a header that is not JSON"),
    ],
)
def test_a_damaged_model_file(folder, damage):
    path = folder / "model.safetensors"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(UserError, match=r"model\.safetensors: damaged or not a safetensors file") as caught:
        BertForPreTraining.from_pretrained(folder)
    assert "\n" not in str(caught.value)


def edit(folder, change):
    """Change the dictionary of tensors in the model file."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


def test_a_missing_tensor(folder):
    edit(folder, lambda tensors: [tensors.pop(name) for name in list(tensors) if "query" in name])
    with pytest.raises(UserError, match=r"4 tensors are missing, the first is 'bert\.encoder\.layer\.0\."):
        BertForPreTraining.from_pretrained(folder)


def test_a_tensor_of_another_shape(folder):
    name = "bert.pooler.dense.weight"
    edit(folder, lambda tensors: tensors.update({name: tensors[name][:, :5].copy()}))
    message = (
        r"tensor 'bert\.pooler\.dense\.weight' has shape \(12, 5\), the configuration expects \(12, 12\)"
    )
    with pytest.raises(UserError, match=message):
        BertForPreTraining.from_pretrained(folder)


def test_a_configuration_of_another_size(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": 51}))
    with pytest.raises(UserError, match=r"word_embeddings\.weight' has shape \(50, 12\).*expects \(51, 12\)"):
        BertForPreTraining.from_pretrained(folder)


def test_after_an_error_no_parameter_has_changed(folder, build):
    """The last tensor is the wrong one, so the others could have been loaded before it."""
    model = build()
    last = list(dict(model.named_parameters()))[-1]
    edit(folder, lambda tensors: tensors.update({last: np.zeros(3)}))
    model.buffers.value[...] = 7.0
    with pytest.raises(UserError, match=last):
        load_parameters(model, folder)
    assert (to_numpy(model.buffers.value) == 7).all()


def test_a_folder_that_cannot_be_written(build, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UserError, match=r"file/model\.safetensors: cannot write here"):
        build().save_pretrained(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "in the way"
