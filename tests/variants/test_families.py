"""What each of BERT's descendants does otherwise."""

import json

import numpy as np
import pytest

from minibert.arrays import to_numpy
from minibert.bert import BertConfig, BertModel
from minibert.errors import UserError
from minibert.heads import freeze, layerwise_lr
from minibert.variants.albert import AlbertConfig, AlbertForMaskedLM, AlbertModel
from minibert.variants.distilbert import DistilBertConfig, DistilBertModel
from minibert.variants.electra import (
    ElectraConfig,
    ElectraForPreTraining,
    ElectraForSequenceClassification,
    ElectraModel,
)
from minibert.variants.roberta import RobertaConfig, RobertaForSequenceClassification, RobertaModel

SIZES = {
    "vocab_size": 40,
    "hidden_size": 12,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "intermediate_size": 16,
    "max_position_embeddings": 10,
    "initializer_range": 0.3,
}
IDS = np.array([[2, 9, 30, 9, 3], [2, 7, 3, 1, 1]])


def states(model, **batch):
    model.eval()
    return to_numpy(model.forward(**batch)[0].last_hidden_state)


# -- RoBERTa ----------------------------------------------------------------------------------------


def roberta(**settings):
    return RobertaModel(RobertaConfig(**SIZES | settings), dtype="float64", seed=3)


def test_roberta_counts_positions_from_the_padding_id():
    rows = to_numpy(roberta().embeddings.position_ids(IDS, IDS))
    np.testing.assert_array_equal(rows, [[2, 3, 4, 5, 6], [2, 3, 4, 1, 1]])
    np.testing.assert_array_equal(to_numpy(roberta().embeddings.position_ids(None, IDS))[1], [2, 3, 4, 5, 6])


def test_roberta_computes_the_same_with_padding_on_the_left():
    model = roberta()
    right = states(model, input_ids=IDS[1:], attention_mask=[[1, 1, 1, 0, 0]])
    left = states(model, input_ids=[[1, 1, 2, 7, 3]], attention_mask=[[0, 0, 1, 1, 1]])
    np.testing.assert_allclose(left[0, 2:], right[0, :3], rtol=1e-12)


def test_roberta_reads_two_tokens_less_than_it_has_positions():
    model = roberta()
    assert model.config.longest_sequence == 8
    states(model, input_ids=[[5] * 8])
    with pytest.raises(UserError, match="9 tokens long but the model has only 8 positions"):
        model.forward([[5] * 9])


@pytest.mark.parametrize(("padding", "positions"), [(1, 2), (9, 10)])
def test_roberta_needs_positions_beside_those_of_padding(padding, positions):
    with pytest.raises(UserError, match=f"pad_token_id {padding} needs more than"):
        RobertaConfig(**SIZES | {"pad_token_id": padding, "max_position_embeddings": positions})


def test_roberta_needs_the_id_of_padding():
    with pytest.raises(UserError, match="counts its positions from pad_token_id, which must not be null"):
        RobertaConfig(**SIZES | {"pad_token_id": None})


def test_a_new_roberta_classifier_has_no_pooler():
    model = RobertaForSequenceClassification(RobertaConfig(**SIZES))
    names = [name for name, _ in model.named_parameters()]
    assert not any("pooler" in name for name in names)
    assert {"classifier.dense.weight", "classifier.out_proj.bias"} <= set(names)


# -- DistilBERT -------------------------------------------------------------------------------------


def test_distilbert_does_not_read_token_types():
    model = DistilBertModel(DistilBertConfig(**SIZES), seed=3)
    alone = states(model, input_ids=IDS)
    np.testing.assert_array_equal(states(model, input_ids=IDS, token_type_ids=[[0, 0, 1, 1, 1]] * 2), alone)
    assert not any("token_type" in name or "pooler" in name for name, _ in model.named_parameters())


def test_distilbert_drops_nothing_out_after_attention():
    """Its only dropouts follow the embeddings, the attention weights and the feed-forward network."""
    for layer in DistilBertModel(DistilBertConfig(**SIZES)).encoder.layer:
        dropouts = layer.attention.self.dropout, layer.attention.output.dropout, layer.output.dropout
        assert [dropout.probability for dropout in dropouts] == [0.1, 0.0, 0.1]


def test_distilbert_has_its_own_names_for_settings(tmp_path):
    config = DistilBertConfig(**SIZES)
    config.save_pretrained(tmp_path)
    values = json.loads((tmp_path / "config.json").read_text())
    assert (values["dim"], values["n_layers"], values["n_heads"], values["hidden_dim"]) == (12, 3, 3, 16)
    assert "hidden_size" not in values
    assert DistilBertConfig.from_pretrained(tmp_path) == config


# -- ALBERT -----------------------------------------------------------------------------------------


def test_albert_is_a_bert_whose_layers_are_equal():
    """The same states, and the shared layer's gradient is the sum of those of the equal layers."""
    albert = AlbertModel(AlbertConfig(**SIZES, embedding_size=12), dtype="float64", seed=3)
    plain = BertModel(BertConfig(**SIZES, hidden_act="gelu_new"), dtype="float64")
    values = {name: parameter.value for name, parameter in albert.named_parameters()}
    values["embeddings.project.weight"][...] = np.eye(12)  # BERT has no such map
    for name, parameter in plain.named_parameters():
        shared = name.replace("layer.1.", "layer.0.").replace("layer.2.", "layer.0.")
        parameter.value[...] = values[shared]
    dout = np.random.default_rng(5).normal(size=(2, 5, 12))
    results = []
    for model in (albert, plain):
        model.eval()
        outputs, cache = model.forward(IDS)
        model.zero_grad()
        model.backward(cache, dlast_hidden_state=dout)
        results.append(outputs.last_hidden_state)
    np.testing.assert_allclose(*results, rtol=1e-12)
    sums: dict = {}
    for name, parameter in plain.named_parameters():
        shared = name.replace("layer.1.", "layer.0.").replace("layer.2.", "layer.0.")
        sums[shared] = sums.get(shared, 0) + parameter.grad
    for name, parameter in albert.named_parameters():
        if "project" not in name and "pooler" not in name:
            scale = np.abs(sums[name]).max()
            np.testing.assert_allclose(parameter.grad, sums[name], rtol=1e-9, atol=1e-12 * scale + 1e-12)


def test_albert_has_one_layer_however_many_it_uses():
    one, twelve = (
        AlbertForMaskedLM(AlbertConfig(**SIZES | {"num_hidden_layers": count, "embedding_size": 6}))
        for count in (1, 12)
    )
    assert [name for name, _ in one.named_parameters()] == [name for name, _ in twelve.named_parameters()]
    words = twelve.bert.embeddings.word_embeddings.weight
    assert words.shape == (40, 6)


def test_the_shared_layer_of_albert_learns_as_one():
    model = AlbertForMaskedLM(AlbertConfig(**SIZES, embedding_size=6))
    layerwise_lr(model, 0.5)
    scales = {name: parameter.lr_scale for name, parameter in model.named_parameters()}
    assert scales["bert.encoder.layer.0.output.dense.weight"] == 0.5
    assert scales["bert.embeddings.word_embeddings.weight"] == 0.25 and scales["cls.predictions.bias"] == 1.0
    freeze(model, 0)
    assert model.bert.embeddings.frozen and not model.bert.encoder.frozen
    freeze(model, 3)
    assert model.bert.encoder.frozen
    with pytest.raises(UserError, match="cannot freeze 1 layers: all 3 are the same one; give 0 or 3"):
        freeze(model, 1)


@pytest.mark.parametrize("name", ["num_hidden_groups", "inner_group_num"])
def test_an_albert_of_several_layers_is_refused(name):
    with pytest.raises(UserError, match=f"{name} is 2; only ALBERTs with one shared layer"):
        AlbertConfig(**SIZES | {name: 2})


# -- ELECTRA ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "mapped"), [(6, True), (12, False)])
def test_electra_maps_its_word_vectors_only_if_they_have_another_size(size, mapped):
    model = ElectraModel(ElectraConfig(**SIZES, embedding_size=size))
    assert any("project" in name for name, _ in model.named_parameters()) == mapped
    assert states(model, input_ids=IDS).shape == (2, 5, 12)


def test_the_discriminators_loss_is_that_of_a_coin_for_each_token():
    model = ElectraForPreTraining(ElectraConfig(**SIZES, embedding_size=6), dtype="float64", seed=3)
    model.eval()
    labels = np.array([[0, 1, 0, -100, 1], [1, 0, 0, 1, 0]])
    mask = np.array([[1] * 5, [1, 1, 1, 0, 0]])
    outputs, _ = model.forward(IDS, attention_mask=mask, labels=labels)
    odds = to_numpy(outputs.logits)
    counted = (mask > 0) & (labels >= 0)
    replaced = 1 / (1 + np.exp(-odds))
    expected = -np.log(np.where(labels == 1, replaced, 1 - replaced))[counted].mean()
    np.testing.assert_allclose(float(outputs.loss), expected, rtol=1e-12)
    assert model.count_targets({"labels": labels, "attention_mask": mask}) == {"denominator": counted.sum()}


def test_micro_batches_of_the_discriminator_add_up():
    model = ElectraForPreTraining(ElectraConfig(**SIZES, embedding_size=6), dtype="float64", seed=3)
    model.eval()
    batch = {"input_ids": IDS, "attention_mask": [[1] * 5, [1, 1, 1, 0, 0]], "labels": IDS % 2}
    batch = {name: np.array(array) for name, array in batch.items()}
    whole = model.count_targets(batch)
    loss = float(model.forward(**batch)[0].loss)
    parts = [{name: array[row : row + 1] for name, array in batch.items()} for row in (0, 1)]
    assert sum(float(model.forward(**part, **whole)[0].loss) for part in parts) == pytest.approx(
        loss, rel=1e-12
    )


@pytest.mark.parametrize("labels", [[[0, 1]], [[0] * 5, [0, 2, 0, 0, 0]]])
def test_wrong_labels_for_the_discriminator_are_refused(labels):
    model = ElectraForPreTraining(ElectraConfig(**SIZES, embedding_size=6))
    with pytest.raises(UserError, match="labels"):
        model.forward(IDS, attention_mask=np.ones_like(IDS), labels=labels)


def test_an_electra_classifier_reads_the_first_token_only():
    model = ElectraForSequenceClassification(ElectraConfig(**SIZES, embedding_size=6), seed=3)
    hidden = np.random.default_rng(0).normal(size=(2, 5, 12)).astype("float32")
    model.eval()
    scores = to_numpy(model.classifier.forward(hidden)[0])
    hidden[:, 1:] = 0
    np.testing.assert_array_equal(to_numpy(model.classifier.forward(hidden)[0]), scores)
