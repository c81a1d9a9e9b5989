"""What BERT's descendants have in common: their folders, and which class opens one."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from minibert.arrays import to_numpy
from minibert.bert import BertForMaskedLM, BertForNextSentencePrediction, BertForPreTraining, BertModel
from minibert.errors import UserError
from minibert.folders.names import name_in_file, name_in_model
from minibert.heads import (
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    SentenceEncoder,
)
from minibert.tasks.exporting import export
from minibert.variants import FAMILIES, architectures, family, model_class, open_config, open_model
from minibert.variants.electra import ElectraConfig, ElectraForPreTraining

SIZES = {
    "vocab_size": 40,
    "hidden_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 16,
    "max_position_embeddings": 16,
    "initializer_range": 0.3,
}
CLASSES = [(name, kind) for name, members in FAMILIES.items() for kind in members.models]
BATCH = {
    "input_ids": [[2, 9, 30, 9, 3], [2, 7, 3, 0, 0]],
    "attention_mask": [[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]],
}


def build(name, kind, **settings):
    members = FAMILIES[name]
    model = members.models[kind](members.config.from_dict(SIZES | settings), seed=3)
    model.eval()
    return model


def named(cases):
    return [f"{name}-{kind.__name__}" for name, kind in cases]


@pytest.mark.parametrize(("name", "kind"), CLASSES, ids=named(CLASSES))
def test_every_parameter_has_a_name_of_its_own_in_files(name, kind):
    model = build(name, kind)
    names = [parameter_name for parameter_name, _ in model.named_parameters()]
    in_files = [name_in_file(parameter_name, model.tensor_names) for parameter_name in names]
    assert len(set(in_files)) == len(names)
    assert [name_in_model(file_name, model.tensor_names) for file_name in in_files] == names


@pytest.mark.parametrize(("name", "kind"), CLASSES, ids=named(CLASSES))
def test_a_folder_is_opened_by_the_class_of_its_family(name, kind, tmp_path, recwarn):
    model = build(name, kind)
    model.save_pretrained(tmp_path)
    again = open_model(kind, tmp_path, complete=True)
    assert type(again) is type(model) and again.config == model.config
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == name
    for (_, one), (_, other) in zip(model.named_parameters(), again.named_parameters(), strict=True):
        np.testing.assert_array_equal(to_numpy(one.value), to_numpy(other.value))
    ours, theirs = (to_numpy(m.forward(**BATCH)[0].last_hidden_state) for m in (model, again))
    np.testing.assert_array_equal(ours, theirs)
    assert not recwarn.list


@pytest.mark.parametrize("name", FAMILIES)
def test_features_of_a_frozen_encoder_are_classified_and_saved(name, tmp_path):
    model = build(name, BertForSequenceClassification, feature_layers=[-1, 1], num_labels=3)
    logits = to_numpy(model.forward(**BATCH)[0].logits)
    assert logits.shape == (2, 3)
    model.save_pretrained(tmp_path)
    again = open_model(BertForSequenceClassification, tmp_path, complete=True)
    np.testing.assert_array_equal(to_numpy(again.forward(**BATCH)[0].logits), logits)


def test_the_head_that_finds_replaced_tokens_may_read_several_layers():
    config = ElectraConfig.from_dict(SIZES | {"embedding_size": 6, "feature_layers": [-1, 1]})
    model = ElectraForPreTraining(config, dtype="float64", seed=3)
    model.eval()
    batch = BATCH | {"labels": [[0, 1, 0, 1, 0], [1, 0, 0, -100, -100]]}
    outputs, cache = model.forward(**batch)
    assert outputs.logits.shape == (2, 5)
    model.backward(cache)
    weight = dict(model.named_parameters())["discriminator_predictions.dense.weight"]
    assert weight.shape == (12, 24)
    direction = np.random.default_rng(0).normal(size=weight.shape)
    expected, losses = float((weight.grad * direction).sum()), []
    for step in (1e-6, -2e-6):
        weight.value += step * direction
        losses.append(float(model.forward(**batch)[0].loss))
    assert expected == pytest.approx((losses[0] - losses[1]) / 2e-6, rel=1e-6)


@pytest.mark.parametrize("name", FAMILIES)
def test_an_encoder_goes_on_in_a_classifier(name, tmp_path, capsys):
    encoder = build(name, BertModel)
    encoder.save_pretrained(tmp_path)
    model = open_model(BertForSequenceClassification, tmp_path)
    assert "begins with a new" in capsys.readouterr().err
    same = to_numpy(model.bert.encoder.layer[1].output.dense.weight.value)
    np.testing.assert_array_equal(same, to_numpy(encoder.encoder.layer[1].output.dense.weight.value))


def test_a_missing_tensor_is_called_as_files_call_it(tmp_path):
    build("distilbert", BertForMaskedLM).save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    del tensors["distilbert.transformer.layer.1.ffn.lin2.bias"]
    save_file(tensors, path)
    with pytest.raises(UserError, match=r"missing: 'distilbert\.transformer\.layer\.1\.ffn\.lin2\.bias'; is"):
        open_model(BertForMaskedLM, tmp_path)


def test_a_new_head_is_called_as_files_call_it(tmp_path):
    build("roberta", BertModel).save_pretrained(tmp_path)
    with pytest.warns(UserWarning, match="newly initialised: 'lm_head.bias'"):
        open_model(BertForMaskedLM, tmp_path)


def test_other_heads_are_nothing_to_warn_of_in_fine_tuning(tmp_path, recwarn, capsys):
    config = ElectraConfig.from_dict(SIZES)
    ElectraForPreTraining(config).save_pretrained(tmp_path / "electra")
    build("distilbert", BertForSequenceClassification).save_pretrained(tmp_path / "distilbert")
    open_model(BertForSequenceClassification, tmp_path / "electra")
    open_model(BertForTokenClassification, tmp_path / "distilbert", new_head=True)
    assert not recwarn.list and capsys.readouterr().err.count("begins with a new classifier") == 2


@pytest.mark.parametrize("name", FAMILIES)
def test_an_export_leaves_out_what_is_no_parameter_and_keeps_the_vocabulary(name, tmp_path):
    model = build(name, BertForMaskedLM)
    model.save_pretrained(tmp_path / "model")
    path = tmp_path / "model" / "model.safetensors"
    prefix = name_in_file("bert.embeddings.", model.tensor_names)
    save_file(load_file(path) | {f"{prefix}position_ids": np.arange(16)[None]}, path)
    (tmp_path / "model" / "spiece.model").write_bytes(b"pieces")
    export(tmp_path / "model", tmp_path / "copy", dtype="float16")
    assert not any("position_ids" in tensor for tensor in load_file(tmp_path / "copy" / "model.safetensors"))
    assert (tmp_path / "copy" / "spiece.model").read_bytes() == b"pieces"
    open_model(BertForMaskedLM, tmp_path / "copy", complete=True)


@pytest.mark.parametrize(
    ("values", "heads"),
    [
        ({"model_type": "distilbert", "dim": 48, "num_attention_heads": 4}, 4),
        ({"model_type": "distilbert", "hidden_size": 48, "n_heads": 2}, 2),
        ({"model_type": "distilbert", "dim": 48, "n_heads": 2, "num_attention_heads": 4}, 4),
        ({"model_type": "xlnet", "hidden_size": 48, "n_head": 2}, 2),
        ({"model_type": "xlnet", "d_model": 48}, 16),  # what transformers takes for a missing one
        ({"model_type": "albert", "hidden_size": 128}, 64),
        ({"model_type": "roberta", "hidden_size": 48}, 12),
    ],
)
def test_a_file_may_have_the_common_names_and_lack_what_transformers_knows(values, heads, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(values))
    config = open_config(tmp_path)
    assert (config.hidden_size, config.num_attention_heads) == (
        values.get("hidden_size", values.get("dim", values.get("d_model"))),
        heads,
    )
    assert config.layer_norm_eps == 1e-12
    assert FAMILIES["roberta"].config().layer_norm_eps == 1e-5


def test_the_layer_norms_of_a_distilbert_cannot_be_changed():
    with pytest.raises(UserError, match=r"layer_norm_eps of a DistilBERT must be 1e-12, got 0\.001"):
        FAMILIES["distilbert"].config(layer_norm_eps=1e-3)


def test_the_positions_of_a_roberta_cannot_be_changed(tmp_path):
    build("roberta", BertForMaskedLM).save_pretrained(tmp_path / "model")
    with pytest.raises(UserError, match="the positions of a roberta cannot be changed"):
        export(tmp_path / "model", tmp_path / "longer", positions=64)
    assert not (tmp_path / "longer").exists()


def test_the_most_tokens_of_an_xlnet_are_a_number_in_its_configuration(tmp_path):
    build("xlnet", BertForMaskedLM).save_pretrained(tmp_path / "model")
    export(tmp_path / "model", tmp_path / "longer", positions=64)
    assert open_config(tmp_path / "longer").longest_sequence == 64
    longer = open_model(BertForMaskedLM, tmp_path / "longer", complete=True)
    assert longer.forward([[7] * 64])[0].last_hidden_state.shape == (1, 64, 12)
    config = json.loads((tmp_path / "longer" / "config.json").read_text())
    assert "max_position_embeddings" not in config  # which transformers refuses


def test_what_a_family_does_not_have_is_told(tmp_path):
    build("roberta", BertForMaskedLM).save_pretrained(tmp_path)
    with pytest.raises(UserError, match="'roberta' cannot be opened as BertForNextSentencePrediction; there"):
        open_model(BertForNextSentencePrediction, tmp_path)
    with pytest.raises(UserError, match="not the configuration of a model of type 'bert'"):
        BertForMaskedLM.from_pretrained(tmp_path)


def test_a_folder_opens_as_a_class_of_its_family(tmp_path):
    build("roberta", BertForMaskedLM).save_pretrained(tmp_path)
    Model = FAMILIES["roberta"].models[BertForMaskedLM]
    assert type(open_model(Model, tmp_path)) is Model


@pytest.mark.parametrize("values", [{"model_type": "gpt2"}, {"model_type": 3}, ["roberta"]])
def test_an_unknown_type_is_refused(values, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(values))
    with pytest.raises(UserError, match="expected one of bert, roberta, distilbert, albert, electra, xlnet"):
        family(tmp_path)


def test_a_folder_that_does_not_say_is_a_bert(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(SIZES))
    assert model_class(SentenceEncoder, tmp_path) is SentenceEncoder
    assert open_config(tmp_path).hidden_size == 12


@pytest.mark.parametrize("named", ["BertModel", [["BertModel"]], {"a": 1}, 3])
def test_architectures_that_are_no_list_of_names(tmp_path, named):
    (tmp_path / "config.json").write_text(json.dumps({"architectures": named}))
    with pytest.raises(UserError, match=r"config\.json: architectures should be a list of names, found"):
        architectures(tmp_path)


TWO_SCORES = [
    (name, kind)
    for name, kind in CLASSES
    if kind is BertForQuestionAnswering or (name, kind) == ("albert", BertForPreTraining)
]


@pytest.mark.parametrize(("name", "kind"), TWO_SCORES)
def test_a_head_of_two_scores_has_two_labels(name, kind, tmp_path):
    """In transformers it has as many scores as there are labels: another number there would not fit."""
    assert len(TWO_SCORES) > 5
    settings = {} if name == "xlnet" else {"max_position_embeddings": 16}
    sizes = {key: value for key, value in SIZES.items() if key != "max_position_embeddings"} | settings
    members = FAMILIES[name]
    config = members.config.from_dict(sizes | {"id2label": {i: f"L{i}" for i in range(5)}})
    members.models[kind](config).save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    assert saved["num_labels"] == 2 and not saved.get("id2label")
