"""Frozen parts, learning rates by layer, features."""

import numpy as np
import pytest

from minibert.arrays import to_numpy
from minibert.bert import BertModel
from minibert.bert.embeddings import BertEmbeddings
from minibert.bert.encoder import BertLayer
from minibert.errors import UserError
from minibert.heads import (
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    SentenceEncoder,
    extract_features,
    freeze,
    layerwise_lr,
    unfreeze,
)
from minibert.train.optimiser import AdamW

LABELS = {"labels": [0, 1, 1, 0]}


def frozen_names(model):
    return {name for name, parameter in model.named_parameters() if parameter.frozen}


def test_freeze_takes_the_embeddings_and_the_lowest_layers(build):
    model = build(BertForSequenceClassification, num_hidden_layers=3)
    names = [name for name, _ in model.named_parameters()]
    for layers, prefixes in (
        (0, ("bert.embeddings.",)),
        (2, ("bert.embeddings.", "bert.encoder.layer.0.", "bert.encoder.layer.1.")),
        (3, ("bert.embeddings.", "bert.encoder.")),
        (None, ("bert.",)),
        (1, ("bert.embeddings.", "bert.encoder.layer.0.")),  # fewer again
    ):
        freeze(model, layers)
        assert frozen_names(model) == {name for name in names if name.startswith(prefixes)}
    unfreeze(model)
    assert not frozen_names(model)
    for layers in (-1, 4):
        with pytest.raises(UserError, match=f"cannot freeze {layers} layers: the encoder has 3; give 0 to 3"):
            freeze(model, layers)


def test_every_kind_of_model_has_an_encoder_to_freeze(build):
    for model_class in (BertModel, SentenceEncoder, BertForTokenClassification):
        model = build(model_class)
        freeze(model)
        assert {name for name, _ in model.named_parameters() if "classifier" not in name} == frozen_names(
            model
        )


def parts_of(cache):
    return cache.parts(cache.maker)


@pytest.mark.parametrize("layers", [0, 1, 2, 3, None])
def test_the_backward_stops_where_nothing_below_learns(build, batch, monkeypatch, layers):
    """No layer below is gone through, no cache of it is kept, and the gradients above are what they were."""
    model = build(BertForSequenceClassification, num_hidden_layers=3)
    model.zero_grad()
    model.backward(model.forward(**batch.encoder, **LABELS)[1])
    expected = {name: to_numpy(parameter.grad).copy() for name, parameter in model.named_parameters()}
    freeze(model, layers)

    visited = []
    for part in (BertLayer, BertEmbeddings):

        def spy(self, *arguments, backward=part.backward):
            visited.append(self)
            return backward(self, *arguments)

        monkeypatch.setattr(part, "backward", spy)
    model.zero_grad()
    _, cache = model.forward(**batch.encoder, **LABELS)
    embeddings_cache, _, encoder_cache, *_ = parts_of(parts_of(cache)[0])
    layer_caches = parts_of(encoder_cache)
    frozen = 3 if layers is None else layers
    assert embeddings_cache is None
    assert [layer_cache is None for layer_cache in layer_caches] == [i < frozen for i in range(3)]
    model.backward(cache)
    assert visited == model.bert.encoder.layer[frozen:][::-1]
    for name, parameter in model.named_parameters():
        right = 0.0 * expected[name] if parameter.frozen else expected[name]
        np.testing.assert_array_equal(to_numpy(parameter.grad), right, err_msg=name)


def test_a_frozen_layer_between_learning_ones_passes_the_gradient_on(build, batch):
    model = build(BertForSequenceClassification, num_hidden_layers=3)
    for _, parameter in model.bert.encoder.layer[1].named_parameters():
        parameter.frozen = True
    model.zero_grad()
    model.backward(model.forward(**batch.encoder, **LABELS)[1])
    assert to_numpy(model.bert.embeddings.word_embeddings.weight.grad).any()


def test_a_step_moves_what_learns_and_nothing_else(build, batch):
    model = build(BertForSequenceClassification)
    freeze(model, 1)
    before = {name: to_numpy(parameter.value).copy() for name, parameter in model.named_parameters()}
    model.zero_grad()
    model.backward(model.forward(**batch.encoder, **LABELS)[1])
    AdamW(model).step(1e-3, 0)
    for name, parameter in model.named_parameters():
        moved = (to_numpy(parameter.value) != before[name]).any()
        assert moved != parameter.frozen, name


def test_a_frozen_encoder_keeps_no_caches(build, batch):
    model = build(BertForTokenClassification)
    freeze(model)
    for options in ({}, {"return_hidden_states": True}):
        _, cache = model.forward(**batch.encoder, **options)
        embeddings_cache, _, encoder_cache, pooler_cache, *_ = parts_of(parts_of(cache)[0])
        assert embeddings_cache is pooler_cache is None and parts_of(encoder_cache) == (None, None)


def test_learning_rates_fall_from_layer_to_layer(build):
    model = build(BertForSequenceClassification, num_hidden_layers=3)
    layerwise_lr(model, 0.5)
    expected = {"classifier": 1.0, "bert.pooler": 1.0, "bert.embeddings": 0.5**4}
    expected |= {f"bert.encoder.layer.{i}": 0.5 ** (3 - i) for i in range(3)}
    for name, parameter in model.named_parameters():
        [scale] = [scale for part, scale in expected.items() if name.startswith(part + ".")]
        assert parameter.lr_scale == scale, name
    assert {segment.lr_scale for segment in model.buffers.segments} == set(expected.values())
    model.classifier.bias.lr_scale = 3.0
    layerwise_lr(model, 1.0)
    assert {segment.lr_scale for segment in model.buffers.segments} == {1.0}
    for decay in (0.0, -0.5, 1.5, float("nan")):
        with pytest.raises(UserError, match="decay must be above 0 and at most 1"):
            layerwise_lr(model, decay)


# -- Features ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("model_class", [BertModel, BertForTokenClassification, SentenceEncoder])
def test_features_are_the_hidden_states_side_by_side(build, batch, model_class):
    model = build(model_class, num_hidden_layers=4)
    encoder = build(BertModel, num_hidden_layers=4)
    for name, parameter in encoder.named_parameters():
        own = dict(model.named_parameters())
        parameter.value[...] = own.get(name, own.get(f"bert.{name}", parameter)).value
    states = encoder.forward(**batch.encoder, return_hidden_states=True)[0].hidden_states
    for layers, expected in (((0, 3), [0, 3]), ((-1,), [4]), (None, [1, 2, 3, 4])):
        given = {} if layers is None else {"layers": layers}
        features = extract_features(model, **batch.encoder, **given)
        assert isinstance(features, np.ndarray)
        whole = np.concatenate([to_numpy(states[i]) for i in expected], axis=-1)
        np.testing.assert_array_equal(features, whole)


def test_features_that_are_refused(build, batch):
    model = build(BertModel)
    for layers in ((3,), (0, -4)):
        with pytest.raises(UserError, match=rf"no layer {layers[-1]}; there are 0 .* to 2, and −1 to −3"):
            extract_features(model, **batch.encoder, layers=layers)


def test_features_are_without_dropout(build, batch):
    model = build(BertModel, num_hidden_layers=4, hidden_dropout_prob=0.5)
    expected = extract_features(model, **batch.encoder)
    model.train()
    np.testing.assert_array_equal(extract_features(model, **batch.encoder), expected)


# -- Heads on features ------------------------------------------------------------------------------

TAGS = np.array([[-100, 2, 0, -100, 1, 1, -100], [-100, 0, -100, 2, -100, -100, -100], [-100] * 7, [2] * 7])
ON_FEATURES = [
    (BertForSequenceClassification, {"labels": np.array([0, 1, 1, 0])}),
    (BertForTokenClassification, {"labels": TAGS}),
    (
        BertForQuestionAnswering,
        {"start_positions": np.array([1, 0, 2, 3]), "end_positions": np.array([3] * 4)},
    ),
]


@pytest.mark.parametrize(("model_class", "labels"), ON_FEATURES)
def test_a_head_reads_chosen_layers_and_alone_learns(build, batch, model_class, labels):
    model = build(model_class, feature_layers=[-2, 0], num_labels=3, hidden_dropout_prob=0.3)
    encoder = {name for name, _ in model.named_parameters() if name.startswith("bert.")}
    assert frozen_names(model) == encoder and not any("pooler" in name for name in encoder)
    states = extract_features(model, **batch.encoder, layers=[-2, 0])  # (B, S, 2H)
    if model_class is BertForSequenceClassification:
        mask = batch.encoder["attention_mask"][:, :, None]
        states = (states * mask).sum(axis=1) / mask.sum(axis=1)
    model.train()
    output, cache = model.forward(**batch.encoder, **labels)
    np.testing.assert_allclose(to_numpy(output.features), states, rtol=1e-12)  # without dropout
    model.backward(cache)
    for name, parameter in model.named_parameters():
        assert to_numpy(parameter.grad).any() != parameter.frozen, name


@pytest.mark.parametrize(("model_class", "labels"), ON_FEATURES)
def test_features_that_are_given_back_are_not_computed_again(build, batch, monkeypatch, model_class, labels):
    model = build(model_class, feature_layers=[1], num_labels=3, classifier_dropout=0.3)
    model.train()
    results = []
    features = None
    for _ in range(2):
        model.zero_grad()
        model.seed_dropout(0)
        output, cache = model.forward(**batch.encoder, **labels, features=features)
        model.backward(cache)
        results.append((float(output.loss), to_numpy(model.buffers.grad).copy()))
        features = to_numpy(output.features)
        monkeypatch.setattr(BertModel, "forward", None)  # from now on a call would raise
    assert results[0][0] == results[1][0]
    np.testing.assert_array_equal(results[0][1], results[1][1])
    with pytest.raises(UserError, match=r"features has shape \(3, .*\); expected \(4, "):
        model.forward(**batch.encoder, features=features[:3])


def test_a_head_on_features_comes_back_from_its_folder(build, batch, tmp_path):
    model = build(BertForTokenClassification, feature_layers=[-1, -2], num_labels=3, dtype="float32")
    model.save_pretrained(tmp_path)
    again = BertForTokenClassification.from_pretrained(tmp_path, complete=True)
    assert again.config.feature_layers == [-1, -2] and again.bert.frozen
    logits = [to_numpy(m.forward(**batch.encoder)[0].logits) for m in (model, again)]
    np.testing.assert_allclose(*logits, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([], "layers must be a list of at least one number, got \\[\\]"),
        ("all", "layers must be a list of at least one number, got 'all'"),
        ([1, 4], r"no layer 4; there are 0 \(the embeddings\) to 2, and −1 to −3"),
        ([True], "no layer True"),
    ],
)
def test_layers_that_are_not_there(config, layers, message):
    with pytest.raises(UserError, match=message):
        config(feature_layers=layers)
