"""16 bits, proven without a GPU: the reference operations, with every result rounded, on small shapes."""

import numpy as np
import pytest

from minibert import ops
from minibert.arrays import to_numpy
from minibert.bert import BertForMaskedLM, BertForPreTraining
from minibert.devices import resolve_device
from minibert.dropout_bits import dropout_stream
from minibert.errors import UserError
from minibert.heads import (
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    SentenceEncoder,
    SentencePairs,
    extract_features,
    freeze,
)
from minibert.nn import Context, Observer
from minibert.precision import tf32_allowed
from minibert.proofs.small_bert import BATCH, CLASSES, CONFIG, SECOND_TEXTS, SPANS, TAGS

# Relative error of the loss, and by norm of the gradients of all parameters together and of the worst one.
# The unit of rounding is 2⁻¹¹ in float16, 2⁻⁸ in bfloat16.
BOUNDS = {"float16": (1e-3, 2e-3, 1e-2), "bfloat16": (8e-3, 1.6e-2, 8e-2)}
CPU = resolve_device("cpu")


@pytest.fixture(scope="module")
def of_one_step():
    """of_one_step(model, batch): the loss and the gradients of a training step with dropout."""

    def of_one_step(model, batch, scale=1.0):
        model.zero_grad()
        context = Context(training=True, stream=model.device.asarray(dropout_stream(seed=5, step=6)))
        output, cache = model.forward(**batch.all, context=context)
        model.backward(cache, scale)
        gradients = {name: to_numpy(p.grad).astype("float64") for name, p in model.named_parameters()}
        return float(to_numpy(output.loss)), gradients

    return of_one_step


@pytest.fixture
def models(config):
    """models(precision): the same weights, in that precision."""

    def models(precision, device=CPU, **changes):
        return BertForPreTraining(config(**changes), device=device, precision=precision, seed=4)

    return models


def test_the_model_that_computes_decides_on_tf32(models, batch):
    """Of two models side by side each has its own precision, whichever was made last."""
    seen = []

    class Watch(Observer):
        def forward(self, name, value):
            seen.append(tf32_allowed())

        def backward(self, name, dvalue):
            seen.append(tf32_allowed())

    pair = models("tf32"), models("float32")
    passes = [model.forward(**batch.all, context=Context(observer=Watch())) for model in pair]
    half = len(seen) // 2
    assert half
    for model, (_, cache) in zip(pair, passes, strict=True):
        model.backward(cache)
    assert seen == [*[True] * half, *[False] * half] * 2


@pytest.mark.parametrize("precision", BOUNDS)
@pytest.mark.parametrize("hidden_act", ["gelu", "gelu_new"])  # relu's kink makes much of a rounding
def test_loss_and_gradients_are_those_of_single_precision(
    models, batch, device, of_one_step, precision, hidden_act
):
    changes = {"hidden_act": hidden_act, "initializer_range": 0.3}
    loss, gradients = of_one_step(models("float64", **changes), batch)
    got_loss, got = of_one_step(models(precision, device, **changes), batch)
    of_loss, of_all, of_worst = BOUNDS[precision]
    assert got_loss == pytest.approx(loss, rel=of_loss)

    def length(arrays):
        return np.sqrt(sum((array**2).sum() for array in arrays))

    errors = {name: got[name] - right for name, right in gradients.items()}
    assert 1e-6 < length(errors.values()) / length(gradients.values()) <= of_all
    for name, right in gradients.items():
        if not name.endswith("key.bias"):  # whose gradient is 0
            assert length([errors[name]]) <= of_worst * length([right]), name


def task_gradient(model, **labels):
    """The loss and the flat gradient of a fine-tuning step; of a sentence encoder's on pairs."""
    learned, batch = model, BATCH | labels
    if isinstance(model, SentenceEncoder):
        learned, batch = SentencePairs(model), {"first": BATCH, "second": SECOND_TEXTS}
    output, cache = learned.forward(**batch)
    learned.backward(cache)
    return float(to_numpy(output.loss)), to_numpy(model.buffers.grad).astype("float64")


@pytest.mark.parametrize("precision", BOUNDS)
@pytest.mark.parametrize(
    ("model_class", "settings", "labels"),
    [
        (BertForSequenceClassification, {"num_labels": 3, "classifier_dropout": 0.2}, {"labels": CLASSES}),
        (BertForSequenceClassification, {"num_labels": 1}, {"labels": [0.5, -1.0, 2.0]}),
        (BertForTokenClassification, {"num_labels": 3}, {"labels": TAGS}),
        (BertForTokenClassification, {"num_labels": 3, "crf": True}, {"labels": TAGS}),
        (BertForQuestionAnswering, {}, SPANS),
        (SentenceEncoder, {}, {}),
    ],
)
def test_fine_tuning_is_that_of_single_precision(device, precision, model_class, settings, labels):
    config = CONFIG.replace(**settings)
    loss, gradient = task_gradient(model_class(config, device=device, dtype="float64"), **labels)
    got_loss, got = task_gradient(model_class(config, device=device, precision=precision), **labels)
    of_loss, of_all, _ = BOUNDS[precision]
    assert got_loss == pytest.approx(loss, rel=of_loss)
    assert 1e-6 < np.linalg.norm(got - gradient) / np.linalg.norm(gradient) <= of_all


@pytest.mark.parametrize("precision", BOUNDS)
def test_features_are_in_the_dtype_of_the_parameters(models, batch, device, precision):
    rounded, exact = models(precision, device), models("float32", device)
    rounded.eval()
    exact.eval()
    features = extract_features(rounded, **batch.encoder, layers=(-1,))
    assert features.dtype == "float32"
    np.testing.assert_allclose(features, extract_features(exact, **batch.encoder, layers=(-1,)), atol=4e-2)


@pytest.mark.parametrize("precision", BOUNDS)
def test_kernels_on_or_off_is_the_same_in_16_bits_where_there_are_none(models, batch, of_one_step, precision):
    loss, gradients = of_one_step(models(precision), batch)
    with ops.reference_only():
        again, others = of_one_step(models(precision), batch)
    assert loss == again
    assert all(np.array_equal(gradients[name], others[name]) for name in gradients)


def test_derivatives_too_small_for_float16_survive_scaled(models, batch, of_one_step):
    """As if the loss were that of a batch a million times as large."""
    tiny = 2.0**-22
    _, right = of_one_step(models("float64"), batch)
    _, lost = of_one_step(models("float16"), batch, scale=tiny)
    _, kept = of_one_step(models("float16"), batch, scale=np.asarray(tiny * 2.0**16, dtype="float32"))
    name = "bert.encoder.layer.0.intermediate.dense.weight"
    expected = tiny * right[name]
    assert np.linalg.norm(lost[name] - expected) > 0.2 * np.linalg.norm(expected)
    assert np.linalg.norm(kept[name] / 2.0**16 - expected) < 0.05 * np.linalg.norm(expected)


def test_a_model_is_read_in_16_bits_and_saved_in_32(models, batch, tmp_path):
    models("float32").save_pretrained(tmp_path / "single")
    model = BertForPreTraining.from_pretrained(tmp_path / "single", precision="bfloat16")
    np.testing.assert_array_equal(
        model.buffers.operand, model.buffers.value.astype(model.buffers.operand.dtype)
    )
    model.save_pretrained(tmp_path / "again")
    first, again = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("single", "again"))
    assert first == again
    output, _ = model.forward(**batch.encoder)
    assert output.prediction_logits.dtype == np.float32
    assert output.last_hidden_state.dtype.name == "bfloat16"


def test_attention_maps_are_computed_in_single_precision(models, batch):
    maps = []
    for precision in ("float32", "bfloat16"):
        model = models(precision, initializer_range=0.3)
        model.eval()
        maps.append(model.forward(**batch.encoder, return_attentions=True)[0].attentions)
    for exact, rounded in zip(*maps, strict=True):
        assert rounded.dtype == np.float32
        np.testing.assert_allclose(rounded.sum(axis=-1), 1.0, rtol=1e-6)
        np.testing.assert_allclose(rounded, exact, atol=2e-2)


def test_a_precision_that_does_not_fit_the_parameters(config):
    with pytest.raises(UserError, match="precision bfloat16 has parameters in float32, not float64"):
        BertForMaskedLM(config(), dtype="float64", precision="bfloat16")


# -- Recomputation -----------------------------------------------------------------------------------


def layer_caches(cache):
    """What the encoder inside a model for pre-training keeps of its layers."""
    encoder_cache = cache.parts(cache.maker)[0]
    of_the_layers = encoder_cache.parts(encoder_cache.maker)[2]
    return of_the_layers.parts(of_the_layers.maker)


@pytest.mark.parametrize("precision", ["float64", "float32", "bfloat16"])
def test_recomputed_layers_give_the_same_bits(models, batch, device, of_one_step, precision):
    model = models(precision, device)
    loss, gradients = of_one_step(model, batch)
    model.bert.encoder.recompute = True
    again, others = of_one_step(model, batch)
    assert loss == again
    assert all(np.array_equal(gradients[name], others[name]) for name in gradients)


def test_recomputed_layers_above_frozen_ones_give_the_same_bits(models, batch, device, of_one_step):
    model = models("float32", device)
    freeze(model, 1)
    loss, gradients = of_one_step(model, batch)
    model.bert.encoder.recompute = True
    lowest, *_ = layer_caches(model.forward(**batch.all)[1])
    assert lowest is None  # nothing is kept of the layer that does not learn
    again, others = of_one_step(model, batch)
    assert loss == again
    assert all(np.array_equal(gradients[name], others[name]) for name in gradients)


def test_with_recomputation_a_layer_keeps_nothing_but_its_input(models, batch):
    model = models("float64", num_hidden_layers=3)
    model.bert.encoder.recompute = True
    _, cache = model.forward(**batch.all)
    kept = layer_caches(cache)
    assert len(kept) == 3
    for (layer_input, bias, context), seen in kept:
        assert (layer_input.shape, bias.shape) == ((4, 7, 12), (4, 1, 1, 7))
        assert isinstance(context, Context) and seen is None
