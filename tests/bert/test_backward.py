"""The contract of models: a derivative of any output goes in, gradients come out; and who may look."""

import sys
import tracemalloc

import numpy as np
import pytest

from minibert import ops
from minibert.arrays import to_numpy
from minibert.bert import BertConfig, BertForMaskedLM, BertForPreTraining, BertModel
from minibert.bert.outputs import PreTrainingOutput
from minibert.devices import resolve_device
from minibert.dropout_bits import dropout_stream
from minibert.errors import UserError
from minibert.gradcheck import Case, Draws, check
from minibert.heads import BertForSequenceClassification, SentenceEncoder, SentencePairs
from minibert.nn import Context, Observer
from minibert.nn.outputs import OutputKinds
from minibert.ops.stable_softmax import log_softmax, log_softmax_backward
from minibert.variants import FAMILIES

EVERYTHING = {"return_hidden_states": True, "return_attentions": True}
IDS = {"input_ids": [[2, 7, 5, 3], [2, 7, 7, 0]], "attention_mask": [[1, 1, 1, 1], [1, 1, 1, 0]]}

# That a backward can start from any output, each alone and all at once: minibert/proofs/models.py.


def test_derivatives_that_do_not_fit_are_refused(build, batch):
    model = build(BertForSequenceClassification)

    def backward(**derivatives):
        model.backward(model.forward(**batch.encoder, return_hidden_states=True)[1], **derivatives)

    with pytest.raises(
        ValueError, match=r"dlogits has shape \(4, 3\); expected that of the output, \(4, 2\)"
    ):
        backward(dlogits=np.ones((4, 3)))
    with pytest.raises(ValueError, match=r"dhidden_states has 2 items; expected 3"):
        backward(dhidden_states=[None, None])
    with pytest.raises(ValueError, match=r"dhidden_states\[1\] has shape \(1,\)"):
        backward(dhidden_states=[None, np.ones(1), None])
    with pytest.raises(TypeError, match=r"got dattentions, but .* dlast_hidden_state, dpooler_output"):
        backward(dattentions=[None, None])
    with pytest.raises(TypeError, match="got logits, but"):
        backward(logits=np.ones((4, 2)))


@pytest.mark.parametrize("activation", ops.ACTIVATIONS)
def test_the_scores_of_all_words_lead_back_through_every_activation(build, activation):
    """Without labels they are (B, S, V). In float32 there are kernels, for one of the activations."""
    gradients = []
    for dtype in ("float32", "float64"):
        model = build(BertForMaskedLM, dtype=dtype, hidden_act=activation)
        outputs, cache = model.forward(IDS["input_ids"])
        dlogits = np.random.default_rng(1).normal(size=outputs.prediction_logits.shape)
        model.backward(cache, dprediction_logits=dlogits)
        gradients.append(to_numpy(model.buffers.grad))
    actual, expected = gradients
    assert np.linalg.norm(actual - expected) < 1e-4 * np.linalg.norm(expected)


def test_a_backward_takes_nothing_but_a_cache(build, batch):
    model = build(BertForSequenceClassification)
    outputs, cache = model.forward(**batch.encoder, labels=[0, 1, 1, 0])
    for wrong in (outputs, outputs.loss, (outputs, cache)):
        with pytest.raises(TypeError, match="backward needs the cache that forward has returned, got a"):
            model.backward(wrong)


def test_a_backward_that_was_refused_can_be_repeated(build, batch):
    model = build(BertForSequenceClassification)
    output, cache = model.forward(**batch.encoder)
    with pytest.raises(ValueError, match="without a loss"):
        model.backward(cache)
    with pytest.raises(ValueError, match="dlogits has shape"):
        model.backward(cache, dlogits=np.ones((4, 3)))
    model.backward(cache, dlogits=np.ones_like(to_numpy(output.logits)))
    assert to_numpy(model.buffers.grad).any()


def test_the_derivative_of_a_loss_is_a_number(build, batch):
    model = build(BertForSequenceClassification)

    def backward(dloss):
        model.backward(model.forward(**batch.encoder, labels=[0, 1, 1, 0])[1], dloss=dloss)

    with pytest.raises(ValueError, match=r"dloss has shape \(4,\); expected that of the output, \(\)"):
        backward(np.ones(4))
    backward(np.array(2.0))
    expected = to_numpy(model.buffers.grad).copy()
    model.zero_grad()
    backward(2.0)
    np.testing.assert_array_equal(to_numpy(model.buffers.grad), expected)
    kinds = OutputKinds(PreTrainingOutput(loss=np.zeros((), "float32")))
    assert kinds.check({"dloss": np.array(2.0)}, resolve_device("cpu"))["loss"].dtype == "float32"


def test_the_loss_is_one_derivative_among_others(build, batch):
    """``dloss`` beside ``dlogits``: the sum of both; and ``dlogits`` alone leaves the loss out."""
    model = build(BertForSequenceClassification)
    dlogits = np.random.default_rng(3).normal(size=(4, 2))

    def gradient(**derivatives):
        model.zero_grad()
        model.backward(model.forward(**batch.encoder, labels=[0, 1, 1, 0])[1], **derivatives)
        return to_numpy(model.buffers.grad).copy()

    both = gradient(dloss=1.0, dlogits=dlogits)
    np.testing.assert_allclose(both, gradient() + gradient(dlogits=dlogits), rtol=1e-9, atol=1e-12)


# -- A loss of one's own ----------------------------------------------------------------------------


def smoothed(logits, labels, share):
    """Cross-entropy against labels of which a share is spread over all classes → loss, cache."""
    log_p, cache = log_softmax(logits)
    targets = np.full(logits.shape, share / logits.shape[-1])
    targets[np.arange(len(labels)), labels] += 1 - share
    return -(targets * log_p).sum() / len(labels), (targets / len(labels), cache)


def smoothed_backward(dout, cache):
    targets, cache = cache
    return log_softmax_backward(-dout * targets, cache)


def test_label_smoothing_from_outside(config, batch):
    model = BertForSequenceClassification(config(num_labels=3), dtype="float64")
    Draws(model.device, 1).randomise(model)
    model.train()

    def loss():
        model.seed_dropout(0)
        outputs, cache = model.forward(**batch.encoder)
        loss, loss_cache = smoothed(outputs.logits, [2, 0, 1, 1], 0.1)
        return loss, loss_cache, cache

    def backward(douts):
        model.zero_grad()
        _, loss_cache, cache = loss()
        model.backward(cache, dlogits=smoothed_backward(float(douts[0]), loss_cache))
        return {name: p.grad for name, p in model.named_parameters()}

    values = {name: p.value for name, p in model.named_parameters()}
    zeros = [name for name in values if "self.key.bias" in name]
    rows = check(Case("label smoothing", values, lambda _: [np.asarray(loss()[0])], backward, zeros))
    assert all(row.ok for row in rows), [str(row) for row in rows if not row.ok]


# -- Vectors in the place of words ------------------------------------------------------------------


def test_embeddings_of_ones_own_are_the_words_rows(build, batch):
    model = build(BertForMaskedLM)
    words = model.bert.embeddings.word_embeddings.weight.value
    rest = {name: array for name, array in batch.encoder.items() if name != "input_ids"}
    vectors = to_numpy(words)[batch.encoder["input_ids"]]
    given, cache = model.forward(inputs_embeds=vectors, **rest, labels=batch.all["labels"])
    looked_up, plain_cache = model.forward(**batch.encoder, labels=batch.all["labels"])
    np.testing.assert_array_equal(to_numpy(given.loss), to_numpy(looked_up.loss))
    model.zero_grad()
    dvectors = to_numpy(model.backward(cache))
    assert dvectors.shape == vectors.shape
    others = {n: to_numpy(p.grad).copy() for n, p in model.named_parameters() if "word" not in n}
    model.zero_grad()
    assert model.backward(plain_cache) is None
    for name, gradient in others.items():
        np.testing.assert_array_equal(gradient, to_numpy(dict(model.named_parameters())[name].grad))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_embeddings_of_ones_own_do_not_widen_the_pass(family, dtype):
    members = FAMILIES[family]
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 20}
    model = members.models[BertModel](members.config(**sizes), precision=dtype)
    model.eval()
    looked_up, _ = model.forward(np.ones((2, 3), int))
    vectors = np.ones((2, 3, model.config.embedding_size), "float32")
    given, _ = model.forward(inputs_embeds=vectors)
    assert given.last_hidden_state.dtype.name == looked_up.last_hidden_state.dtype.name == dtype


def test_the_gradient_of_embeddings_is_right(build, batch):
    model = build(BertForSequenceClassification)
    vectors = model.device.asarray(np.random.default_rng(0).normal(size=(4, 7, 12)))
    mask = {"attention_mask": batch.encoder["attention_mask"]}
    labels = {"labels": [0, 1, 1, 0]}

    def backward(douts):
        _, cache = model.forward(inputs_embeds=vectors, **mask, **labels)
        return {"inputs_embeds": model.backward(cache, float(douts[0]))}

    def forward(variables):
        return [model.forward(inputs_embeds=variables["inputs_embeds"], **mask, **labels)[0].loss]

    [row] = check(Case("embeddings", {"inputs_embeds": vectors}, forward, backward))
    assert row.ok, str(row)


def test_either_words_or_vectors(build):
    model = build(BertModel)
    for batch in ({}, {"input_ids": [[2]], "inputs_embeds": np.ones((1, 1, 12))}):
        with pytest.raises(UserError, match="give either input_ids or inputs_embeds"):
            model.forward(**batch)
    with pytest.raises(UserError, match=r"inputs_embeds has shape \(1, 2, 5\); expected .* 12\)"):
        model.forward(inputs_embeds=np.ones((1, 2, 5)))


# -- Who may look -----------------------------------------------------------------------------------


class Watching(Observer):
    """Keeps everything, on the way there and back."""

    def __init__(self):
        self.values, self.derivatives = {}, {}

    def forward(self, name, value):
        self.values[name] = value

    def backward(self, name, dvalue):
        self.derivatives[name] = dvalue


def test_an_observer_sees_everything_there_and_back(build, batch):
    model, watching = build(BertForPreTraining), Watching()
    plain, plain_cache = model.forward(**batch.all, **EVERYTHING)
    model.backward(plain_cache)
    expected = to_numpy(model.buffers.grad).copy()
    model.zero_grad()
    outputs, cache = model.forward(**batch.all, context=Context(observer=watching))
    model.backward(cache)
    np.testing.assert_allclose(to_numpy(model.buffers.grad), expected, rtol=1e-10, atol=1e-13)
    assert float(outputs.loss) == pytest.approx(float(plain.loss), rel=1e-13)
    inside = ("q", "k", "v", "scores", "probabilities", "context")
    names = ["bert.embeddings"]
    for layer in ("bert.encoder.layer.0", "bert.encoder.layer.1"):
        names += [f"{layer}.attention.self.{name}" for name in inside]
        names += [f"{layer}.attention", f"{layer}.intermediate", layer]
    assert list(watching.values) == names
    assert list(watching.derivatives) == names[::-1]
    for name, value in watching.values.items():
        assert watching.derivatives[name].shape == value.shape, name
    for i, state in enumerate(plain.hidden_states[1:]):
        np.testing.assert_array_equal(to_numpy(watching.values[f"bert.encoder.layer.{i}"]), to_numpy(state))
    maps = [watching.values[f"{layer}.attention.self.probabilities"] for layer in (names[9], names[18])]
    for given, seen in zip(plain.attentions, maps, strict=True):
        np.testing.assert_array_equal(to_numpy(given), to_numpy(seen))


def test_hidden_states_keep_the_kernels_and_every_bit(build, batch):
    model = build(BertModel, dtype="float32")
    plain, _ = model.forward(**batch.encoder, context=Context(padding=True))  # which those who see it, see
    with_states, _ = model.forward(**batch.encoder, return_hidden_states=True)
    np.testing.assert_array_equal(to_numpy(plain.last_hidden_state), to_numpy(with_states.last_hidden_state))


def test_a_derivative_that_is_seen_is_the_derivative(build, batch):
    """Of an attention probability, by moving it by ±h with another observer."""
    model, watching = build(BertForMaskedLM), Watching()
    _, cache = model.forward(**batch.encoder, labels=batch.all["labels"], context=Context(observer=watching))
    model.backward(cache)
    for name, place in (
        ("bert.encoder.layer.0.attention.self.probabilities", (0, 1, 2, 3)),
        ("bert.encoder.layer.1.attention.self.scores", (3, 0, 1, 0)),
        ("bert.encoder.layer.1.intermediate", (0, 2, 3)),
        ("bert.embeddings", (1, 2, 3)),
    ):

        def loss(h, name=name, place=place):
            def move(seen, value):
                if seen != name:
                    return None
                moved = value.copy()
                moved[place] += h
                return moved

            outputs, _ = model.forward(
                **batch.encoder, labels=batch.all["labels"], context=Context(observer=move)
            )
            return float(outputs.loss)

        numeric = (loss(1e-5) - loss(-1e-5)) / 2e-5
        assert float(watching.derivatives[name][place]) == pytest.approx(numeric, rel=1e-6, abs=1e-10), name


def test_a_state_from_another_sentence_can_be_put_in(build, batch):
    """Patching the whole output of a layer: above it the other sentence is read, and below nothing learns."""
    model = build(BertForSequenceClassification)
    name = "bert.encoder.layer.0"
    other = {key: array[::-1] for key, array in batch.encoder.items()}
    states, _ = model.forward(**other, return_hidden_states=True)
    patch = states.hidden_states[1]
    context = Context(observer=lambda seen, value: patch if seen == name else None)
    mask = {"attention_mask": other["attention_mask"]}
    outputs, cache = model.forward(batch.encoder["input_ids"], **mask, labels=[0, 1, 1, 0], context=context)
    np.testing.assert_allclose(to_numpy(outputs.logits), to_numpy(states.logits), rtol=1e-12)
    model.zero_grad()
    model.backward(cache)
    for name, parameter in model.named_parameters():
        below = "embeddings" in name or "layer.0" in name
        assert to_numpy(parameter.grad).any() != below, name


def test_recomputation_and_observers_go_together(build, batch):
    model, found = build(BertForPreTraining), []
    for recompute in (False, True):
        model.bert.encoder.recompute = recompute
        watching = Watching()
        context = Context(training=True, stream=model.device.asarray(dropout_stream(1, 2)), observer=watching)
        model.zero_grad()
        model.backward(model.forward(**batch.all, context=context)[1])
        found.append((to_numpy(model.buffers.grad).copy(), watching.derivatives))
    np.testing.assert_array_equal(found[0][0], found[1][0])
    assert found[0][1].keys() == found[1][1].keys()
    for name, derivative in found[0][1].items():
        np.testing.assert_array_equal(to_numpy(derivative), to_numpy(found[1][1][name]))


# -- Caches -----------------------------------------------------------------------------------------


def test_a_cache_is_for_the_model_that_made_it_and_for_one_backward(build, batch):
    model, other = build(BertForMaskedLM), build(BertForMaskedLM)
    labels = {"labels": batch.all["labels"]}
    _, cache = model.forward(**batch.encoder, **labels)
    with pytest.raises(ValueError, match="this cache was made by another BertForMaskedLM, so"):
        other.backward(cache)
    model.backward(cache)
    with pytest.raises(ValueError, match="this cache of BertForMaskedLM is spent"):
        model.backward(cache)
    layer, next_layer = model.bert.encoder.layer
    x, bias = (model.device.asarray(np.ones(shape)) for shape in ((2, 3, 12), (2, 1, 1, 3)))
    y, cache = layer.forward(x, bias)
    with pytest.raises(ValueError, match="this cache was made by another BertLayer"):
        next_layer.backward(y, cache)
    layer.backward(y, cache)
    with pytest.raises(ValueError, match="this cache of BertLayer is spent"):
        layer.backward(y, cache)


@pytest.mark.parametrize("recompute", [False, True])
def test_without_a_backward_nothing_is_kept(build, batch, recompute):
    """The numbers are the same. A backward all the same is refused, not half done."""
    model = build(BertForPreTraining)
    model.eval()
    model.bert.encoder.recompute = recompute
    usual, _ = model.forward(**batch.all)
    outputs, cache = model.forward(**batch.all, context=Context(backward=False))
    np.testing.assert_array_equal(to_numpy(outputs.loss), to_numpy(usual.loss))
    with pytest.raises(ValueError, match="this cache of BertEncoder is empty: its forward ran without"):
        model.backward(cache)


def test_without_a_backward_more_layers_need_no_more_memory():
    def peak(layers, **asked):
        sizes = {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 128, "vocab_size": 50}
        model = BertModel(BertConfig(num_hidden_layers=layers, **sizes))
        model.eval()
        ids = np.ones((8, 64), int)
        model.forward(ids, context=Context(**asked))
        tracemalloc.start()
        try:
            model.forward(ids, context=Context(**asked))
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert peak(9) > 3 * peak(1), "usually every layer's values are kept"
    assert peak(9, backward=False) < 1.2 * peak(1, backward=False)


# -- The way down -----------------------------------------------------------------------------------


def own_frames_to_the_scores(model, inputs, monkeypatch):
    """How many functions of ours are on the stack where q kᵀ is computed, from ``model.forward`` on."""
    counts = []

    class Counting(np.ndarray):
        def __matmul__(self, other):
            frame, count = sys._getframe(1), 0
            names = []
            while frame is not None:
                if frame.f_globals.get("__name__", "").startswith("minibert."):
                    count += 1
                    names.append(frame.f_code.co_name)
                frame = frame.f_back
            if self.ndim == 4 and "forward" in names and np.ndim(other) == 4:
                counts.append((count, names))
            return np.asarray(self) @ np.asarray(other)

    split_heads = ops.composites.split_qkv

    def counting(qkv, num_heads):
        return [part.view(Counting) for part in split_heads(qkv, num_heads)]

    monkeypatch.setattr(ops.composites, "split_qkv", counting)
    with ops.reference_only():
        model.forward(**inputs)
    return counts[0]


@pytest.mark.parametrize("model_class", [BertModel, BertForPreTraining, BertForSequenceClassification])
def test_at_most_nine_frames_lead_from_the_model_to_the_scores(config, batch, monkeypatch, model_class):
    count, names = own_frames_to_the_scores(model_class(config()), batch.encoder, monkeypatch)
    assert count <= 9, names


def test_pairs_have_a_backward_too(build):
    pairs = SentencePairs(build(SentenceEncoder))
    _, cache = pairs.forward(IDS, IDS, [0.5, 1.0])
    pairs.backward(cache)
    with pytest.raises(ValueError, match="this cache of SentencePairs is spent"):
        pairs.backward(cache)
