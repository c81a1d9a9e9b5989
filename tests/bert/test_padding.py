"""Models that leave padding out compute the same as with it, forwards and backwards, but for rounding."""

import numpy as np
import pytest

from minibert import ops
from minibert.arrays import to_numpy
from minibert.bert import BertForPreTraining, BertModel
from minibert.dropout_bits import dropout_stream
from minibert.heads import (
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    SentenceEncoder,
)
from minibert.nn import Context
from minibert.variants.albert import AlbertModel
from minibert.variants.distilbert import DistilBertModel
from minibert.variants.modern import ModernModel
from minibert.variants.roberta import RobertaForSequenceClassification

HOLES = np.array([[1] * 7, [1, 0, 1, 0, 1, 1, 0], [1] + [0] * 6, [1, 1, 1, 1, 0, 0, 0]])
PREFIX = HOLES.cumprod(axis=1)  # the same, padded on the right only
TAGS = np.where(PREFIX, np.arange(28).reshape(4, 7) % 3, -100)
MODELS = [
    (BertModel, {}, {}),
    (BertForPreTraining, {}, {"labels": TAGS, "next_sentence_label": [0, 1, 1, 0]}),
    (SentenceEncoder, {}, {}),
    (BertForSequenceClassification, {"num_labels": 3}, {"labels": [0, 2, 1, 1]}),
    (BertForTokenClassification, {"num_labels": 3, "crf": True}, {"labels": TAGS}),
    (
        RobertaForSequenceClassification,
        {"num_labels": 3, "pad_token_id": 0, "type_vocab_size": 2},
        {"labels": [0, 2, 1, 1]},
    ),
    (DistilBertModel, {}, {}),
    (AlbertModel, {"embedding_size": 5}, {}),
    (ModernModel, {"positions": "learned"}, {}),
]


def results(model, batch, padding, targets):
    """Outputs at real tokens, and gradients, by name."""
    outputs, cache = model.forward(**batch, **targets, context=Context(padding=padding))
    mask = np.asarray(batch["attention_mask"])
    found = {name: to_numpy(y) for name, y in vars(outputs).items() if y is not None}
    found = {name: y[mask > 0] if y.shape[:2] == mask.shape else y for name, y in found.items()}
    rng, derivatives = np.random.default_rng(2), {}
    for name, y in vars(outputs).items():
        if y is not None:
            dout = rng.standard_normal(y.shape)
            real = mask[..., None] if y.shape[:2] == mask.shape else 1
            derivatives[f"d{name}"] = float(dout) if y.ndim == 0 else dout * real
    model.zero_grad()
    dembeds = model.backward(cache, **derivatives)
    if dembeds is not None:
        found["dinputs_embeds"] = to_numpy(dembeds)
    return found | {name: to_numpy(parameter.grad) for name, parameter in model.named_parameters()}


def assert_equal(ours, theirs, bound):
    assert ours.keys() == theirs.keys()
    for name, array in ours.items():
        # the gradient of a key's bias is 0 but for rounding
        scale = 1.0 if "key.bias" in name else np.linalg.norm(theirs[name])
        assert np.linalg.norm(array - theirs[name]) <= bound * max(scale, 1e-30), name


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("holes", [False, True])
@pytest.mark.parametrize(("kind", "overrides", "targets"), MODELS)
def test_same_numbers_with_and_without(build, batch, kind, overrides, targets, holes, recompute):
    model = build(kind, **overrides)
    getattr(model, "bert", model).encoder.recompute = recompute
    inputs = batch.encoder | {"attention_mask": HOLES if holes else PREFIX}
    with_padding, without = (results(model, inputs, padding, targets) for padding in (True, False))
    assert_equal(without, with_padding, 1e-12)


def test_given_vectors_have_a_derivative_at_their_tokens(build, batch):
    model = build(BertModel)
    vectors = np.random.default_rng(0).standard_normal((4, 7, 12))
    inputs = {"inputs_embeds": vectors, "attention_mask": HOLES}
    with_padding, without = (results(model, inputs, padding, {}) for padding in (True, False))
    assert_equal(without, with_padding, 1e-12)
    assert "dinputs_embeds" in without and not without["dinputs_embeds"][HOLES == 0].any()


def test_padding_is_zero_in_the_last_hidden_state(build, batch):
    inputs = batch.encoder | {"attention_mask": HOLES}
    hidden = to_numpy(build(BertModel).forward(**inputs, context=Context(padding=False))[0].last_hidden_state)
    assert not hidden[HOLES == 0].any() and hidden[HOLES > 0].all()


def test_what_does_not_fit_is_refused_without_padding_too(build, batch):
    """An observed pass shows every place; a batch that begins with padding is computed with it."""
    model, seen = build(BertModel), {}
    context = Context(padding=False, observer=lambda name, value: seen.setdefault(name, value.shape) and None)
    outputs, _ = model.forward(**batch.encoder | {"attention_mask": HOLES}, context=context)
    assert seen["encoder.layer.0"] == (4, 7, 12) == outputs.last_hidden_state.shape
    assert seen["encoder.layer.1.attention.self.scores"] == (4, 3, 7, 7)


@pytest.mark.parametrize(("kind", "overrides"), [(BertModel, {"is_decoder": True}), (ModernModel, {})])
def test_models_that_need_padding_keep_it(build, batch, kind, overrides):
    model = build(kind, **overrides)
    inputs = batch.encoder | {"attention_mask": HOLES}
    same = [model.forward(**inputs, context=Context(padding=padding))[0] for padding in (True, False)]
    np.testing.assert_array_equal(*(to_numpy(outputs.last_hidden_state) for outputs in same))


def test_answers_are_looked_for_in_padding_too(build, batch):
    """As in transformers: the softmax is over all S places of a row."""
    model, inputs = build(BertForQuestionAnswering), batch.encoder | {"attention_mask": HOLES}
    same = [model.forward(**inputs, context=Context(padding=padding))[0] for padding in (True, False)]
    np.testing.assert_array_equal(*(to_numpy(outputs.start_logits) for outputs in same))


# -- The kernels, float32 ---------------------------------------------------------------------------


needs_kernel = pytest.mark.skipif(
    ("numpy", "float32") not in ops.TABLE["unpadded_attention"].kernels, reason="Numba is not installed"
)


@needs_kernel
@pytest.mark.parametrize(("kind", "overrides", "targets"), MODELS)
def test_kernels_leave_padding_out(build, batch, kind, overrides, targets, device):
    if device.name != "cpu":
        pytest.skip("kernels for NumPy")
    inputs = batch.encoder | {"attention_mask": HOLES}
    exact = results(build(kind, **overrides), inputs, True, targets)
    model = build(kind, dtype="float32", **overrides)
    assert_equal(results(model, inputs, None, targets), exact, 1e-4)
    outputs, _ = model.forward(**inputs, context=Context())
    assert not outputs.last_hidden_state[HOLES == 0].any()


@needs_kernel
def test_kernel_and_reference_draw_the_same_dropout(build, batch, device):
    """Bits are a function of the place among the real tokens, in every implementation."""
    inputs = batch.encoder | {"attention_mask": HOLES}

    def hidden(dtype):
        stream = device.asarray(dropout_stream(3, 1))
        context = Context(training=True, stream=stream, padding=False)
        model = build(BertModel, dtype=dtype, hidden_dropout_prob=0.3, attention_probs_dropout_prob=0.3)
        return to_numpy(model.forward(**inputs, context=context)[0].last_hidden_state)

    np.testing.assert_allclose(hidden("float32"), hidden("float64"), atol=1e-4)
