"""The last layer where a head reads it: the same losses and gradients as everywhere, from fewer tokens."""

from dataclasses import replace

import numpy as np
import pytest

from minibert.arrays import map_arrays, to_numpy
from minibert.bert import BertConfig, BertForMaskedLM, BertForPreTraining
from minibert.bert.encoder import BertLayer
from minibert.heads import BertForSequenceClassification
from minibert.nn import Context
from minibert.nn.places import EVERYWHERE, Places, places_read
from minibert.variants.albert import AlbertConfig, AlbertForPreTraining
from minibert.variants.modern import ModernConfig, ModernForPreTraining
from minibert.variants.roberta import RobertaConfig, RobertaForSequenceClassification

B, S, V = 3, 12, 50
LAST_LAYER = "bert.encoder.layer.2"
SIZES = {
    "vocab_size": V,
    "hidden_size": 8,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 20,
    "max_position_embeddings": S,
}
MODELS = [
    (BertForPreTraining, BertConfig(**SIZES)),
    (BertForMaskedLM, BertConfig(**SIZES)),
    (AlbertForPreTraining, AlbertConfig(**SIZES, embedding_size=6)),
    (ModernForPreTraining, ModernConfig(**SIZES, normalisation="pre")),
]


def batch_of(rng, next_sentence=True):
    ids = rng.integers(V, size=(B, S))
    mask = np.ones((B, S), int)
    mask[2, 9:] = 0
    labels = np.where((rng.random((B, S)) < 0.2) & (mask > 0), ids, -100)
    labels[1, 3] = 7
    pairs = {"next_sentence_label": [0, 1, 0]} if next_sentence else {}
    return {"input_ids": ids, "attention_mask": mask, "labels": labels, **pairs}


def spread(model, rng):
    """Weights that are no longer those of a new model: γ and β, too, are random."""
    for _, parameter in model.named_parameters():
        parameter.value[...] += model.device.asarray(0.3 * rng.standard_normal(parameter.shape))
    model.eval()
    return model


def results(model, inputs, context=None):
    """The losses and all gradients of one pass, and its outputs."""
    model.zero_grad()
    outputs, cache = model.forward(inputs, context=context)
    model.backward(cache)
    gradients = {name: to_numpy(parameter.grad).copy() for name, parameter in model.named_parameters()}
    losses = {
        name: to_numpy(getattr(outputs, name)) for name in model.losses if getattr(outputs, name) is not None
    }
    return losses | gradients, outputs


def apart(some, others):
    """The largest relative difference. (The gradient of a key's bias is zero but for rounding.)"""
    assert some.keys() == others.keys()
    return max(
        np.linalg.norm(some[name] - others[name]) / np.linalg.norm(others[name])
        for name in others
        if not name.endswith("key.bias") and np.any(others[name])
    )


@pytest.mark.parametrize("padding", [True, False])
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("predictions", [None, 20])
@pytest.mark.parametrize(("kind", "config"), MODELS, ids=lambda value: getattr(value, "__name__", ""))
def test_losses_and_gradients_are_those_of_the_whole_last_layer(
    kind, config, predictions, recompute, padding, device
):
    rng = np.random.default_rng(1)
    model = spread(kind(config, dtype="float64", device=device), rng)
    model.bert.encoder.recompute = recompute
    prepared = model.prepare(**batch_of(rng, kind.next_sentence), predictions=predictions)
    inputs = map_arrays(model.device.asarray, prepared)
    few, outputs = results(model, inputs, Context(padding=padding))
    seen = {}
    whole, _ = results(model, inputs, Context(observer=lambda name, value: seen.update({name: value})))
    assert outputs.last_hidden_state is None and np.abs(to_numpy(seen[LAST_LAYER])).min(axis=2).all()
    assert apart(few, whole) < 1e-12


def test_a_label_at_padding_that_is_left_out_is_read_from_zeros(device):
    rng = np.random.default_rng(6)
    model = spread(BertForMaskedLM(BertConfig(**SIZES), dtype="float64", device=device), rng)
    batch = batch_of(rng, next_sentence=False)
    batch["labels"][2, [0, 10]] = 3, 7
    inputs = map_arrays(model.device.asarray, model.prepare(**batch))
    few, _ = results(model, inputs, Context(padding=False))
    whole, outputs = results(model, replace(inputs, read=None), Context(padding=False))
    assert not to_numpy(outputs.last_hidden_state)[2, 10].any()
    assert apart(few, whole) < 1e-12


def test_a_batch_that_was_not_prepared_is_computed_everywhere():
    rng = np.random.default_rng(2)
    model = spread(BertForPreTraining(BertConfig(**SIZES), dtype="float64"), rng)
    batch = batch_of(rng)
    outputs, _ = model.forward(**batch)
    assert np.abs(outputs.last_hidden_state).min(axis=2).all()
    inputs = model.prepare(**batch)
    again, _ = model.forward(inputs, return_hidden_states=True)
    assert again.last_hidden_state is None
    np.testing.assert_array_equal(again.hidden_states[-1], outputs.last_hidden_state)


CLASSIFIERS = [
    (BertForSequenceClassification, BertConfig(**SIZES, num_labels=3)),
    (BertForSequenceClassification, BertConfig(**SIZES, num_labels=1)),
    (
        RobertaForSequenceClassification,
        RobertaConfig(**SIZES | {"max_position_embeddings": S + 2}, num_labels=3),
    ),
]


@pytest.mark.parametrize("padding", [True, False])
@pytest.mark.parametrize(("kind", "config"), CLASSIFIERS, ids=lambda value: getattr(value, "__name__", ""))
def test_a_classifier_reads_the_first_tokens(kind, config, padding, device):
    rng = np.random.default_rng(5)
    model = spread(kind(config, dtype="float64", device=device), rng)
    batch = batch_of(rng) | {"labels": rng.integers(config.num_labels, size=B)}
    del batch["next_sentence_label"]
    inputs = map_arrays(model.device.asarray, model.prepare(**batch))
    few, outputs = results(model, inputs, Context(padding=padding))
    whole, _ = results(model, inputs, Context(padding=padding, observer=lambda name, value: None))
    assert outputs.last_hidden_state is None
    assert apart(few, whole) < 1e-12
    plain, _ = model.forward(**batch)
    np.testing.assert_allclose(to_numpy(plain.logits), to_numpy(outputs.logits), rtol=1e-12)


def test_places_among_others(device):
    """Place 5 is not among the others: what is put back has no row for it."""
    places = Places((2, 3), device.asarray(np.array([0, 3, 5])))
    others = Places((2, 3), device.asarray(np.array([3, 4, 0, 1, 2])))
    among = places.among(others)
    assert among.shape == (5,) and to_numpy(among.rows).tolist() == [0, 2]
    x = device.asarray(np.random.default_rng(0).standard_normal((2, 3, 4)))
    few = among.leave_out(others.leave_out(x))
    np.testing.assert_array_equal(to_numpy(few), to_numpy(x)[[1, 0], 0])
    assert among.put_back(few).shape == (5, 4)
    assert places.among(EVERYWHERE) is places and EVERYWHERE.among(others) is EVERYWHERE


@pytest.mark.parametrize("change", [{"is_decoder": True}, {"classifier_pooling": "lasttoken"}])
def test_where_a_head_reads_other_tokens_all_are_computed(change):
    rng = np.random.default_rng(3)
    model = spread(BertForPreTraining(BertConfig(**SIZES, **change), dtype="float64"), rng)
    inputs = model.prepare(**batch_of(rng))
    assert inputs.read is None
    few, outputs = results(model, inputs)
    whole, _ = results(model, inputs, Context(observer=lambda name, value: None))
    assert outputs.last_hidden_state is not None and apart(few, whole) < 1e-12


def test_only_the_last_layer_leaves_places_out(monkeypatch, device):
    rng = np.random.default_rng(4)
    seen, forward = [], BertLayer.forward

    def noted(layer, hidden, bias, context):
        seen.append(context.places)
        return forward(layer, hidden, bias, context)

    monkeypatch.setattr(BertLayer, "forward", noted)
    model = BertForPreTraining(BertConfig(**SIZES), dtype="float64", device=device)
    model.forward(map_arrays(model.device.asarray, model.prepare(**batch_of(rng))))
    *others, last = seen
    assert len(others) == 2 and all(places is EVERYWHERE for places in others)
    assert last.shape == (B, S) and 0 < len(last.rows) < B * S


def test_the_places_that_are_read():
    positions = np.array([3, 5, 6, 0, 0])  # the last two only fill up the targets
    assert places_read((2, 5), positions[:3]).tolist() == [0, 3, 5, 6]
    assert places_read((2, 5), positions[:1]).tolist() == [0, 3, 5]
    assert places_read((2, 5), positions, fixed=True).tolist() == [0, 3, 5, 6, 1, 2, 4]
    assert places_read((2, 5), np.arange(10), fixed=True).tolist() == list(range(10))
    assert places_read((2, 5), positions).dtype == np.int32


def test_places_put_back_what_they_leave_in(device):
    x = device.asarray(np.random.default_rng(0).standard_normal((2, 3, 4)))
    places = Places((2, 3), device.asarray(np.array([4, 0, 5], np.int32)))
    few = places.leave_out(x)
    np.testing.assert_array_equal(to_numpy(few), to_numpy(x).reshape(6, 4)[[4, 0, 5]])
    back = to_numpy(places.put_back(few)).reshape(6, 4)
    np.testing.assert_array_equal(back[[4, 0, 5]], to_numpy(few))
    assert not back[[1, 2, 3]].any()
    assert EVERYWHERE.leave_out(x) is x and EVERYWHERE.put_back(x) is x
