"""What the models compute, held against a BERT written out in plain NumPy from the paper's formulas."""

import math

import numpy as np
import pytest
import scipy.special
import scipy.stats

from minibert.arrays import to_numpy
from minibert.bert import BertForMaskedLM, BertForNextSentencePrediction, BertForPreTraining, BertModel

ACTIVATIONS = {
    "gelu": lambda x: x * scipy.stats.norm.cdf(x),
    "gelu_new": lambda x: x * scipy.special.expit(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)),
    "relu": lambda x: x * (x > 0),
    "tanh": np.tanh,
}


class PlainBert:
    """A BERT made of a dictionary of arrays, one sequence at a time, without heads packed or padding."""

    def __init__(self, model, prefix="bert."):
        self.config, self.prefix = model.config, prefix
        self.weights = {name: to_numpy(parameter.value) for name, parameter in model.named_parameters()}
        self.activation = ACTIVATIONS[model.config.hidden_act]

    def linear(self, name, x):
        return np.einsum("...k,nk->...n", x, self.weights[f"{name}.weight"]) + self.weights[f"{name}.bias"]

    def norm(self, name, x):
        centred = x - x.mean(-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + self.config.layer_norm_eps)
        return scaled * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]

    def encode(self, ids, types, mask):
        """One sequence → its hidden states (L + 1 of (S, H)) and attention maps (L of (A, S, S))."""
        name = f"{self.prefix}embeddings"
        tables = [
            self.weights[f"{name}.{kind}_embeddings.weight"] for kind in ("word", "position", "token_type")
        ]
        x = np.stack([tables[0][ids[s]] + tables[1][s] + tables[2][types[s]] for s in range(len(ids))])
        states, maps = [self.norm(f"{name}.LayerNorm", x)], []
        for i in range(self.config.num_hidden_layers):
            name, x = f"{self.prefix}encoder.layer.{i}", states[-1]
            context, weights = self.attend(f"{name}.attention.self", x, mask)
            x = self.norm(
                f"{name}.attention.output.LayerNorm",
                x + self.linear(f"{name}.attention.output.dense", context),
            )
            wide = self.activation(self.linear(f"{name}.intermediate.dense", x))
            states.append(
                self.norm(f"{name}.output.LayerNorm", x + self.linear(f"{name}.output.dense", wide))
            )
            maps.append(weights)
        return states, maps

    def attend(self, name, x, mask):
        q, k, v = (self.linear(f"{name}.{kind}", x) for kind in ("query", "key", "value"))
        heads, size = self.config.num_attention_heads, x.shape[-1] // self.config.num_attention_heads
        context, weights = np.zeros_like(x), np.zeros((heads, len(x), len(x)))
        for a, i in np.ndindex(heads, len(x)):
            d = slice(a * size, (a + 1) * size)
            seen = [j for j in range(len(x)) if mask[j] and (j <= i or not self.config.is_decoder)]
            weights[a, i, seen] = scipy.special.softmax([q[i, d] @ k[j, d] / math.sqrt(size) for j in seen])
            context[i, d] = weights[a, i] @ v[:, d]
        return context, weights

    def pooled(self, states):
        return np.tanh(self.linear(f"{self.prefix}pooler.dense", states[-1][0]))

    def words(self, states):
        """Log-probabilities (S, V) of all words at all places."""
        x = self.activation(self.linear("cls.predictions.transform.dense", states[-1]))
        x = self.norm("cls.predictions.transform.LayerNorm", x)
        decoder = self.weights["bert.embeddings.word_embeddings.weight"]
        return scipy.special.log_softmax(x @ decoder.T + self.weights["cls.predictions.bias"], axis=-1)

    def next_sentence(self, states):
        return scipy.special.log_softmax(self.linear("cls.seq_relationship", self.pooled(states)))


def close(actual, expected, tolerance=1e-11):
    np.testing.assert_allclose(to_numpy(actual), expected, rtol=tolerance, atol=tolerance)


def log_softmax(logits):
    return scipy.special.log_softmax(to_numpy(logits), axis=-1)


VARIANTS = [
    {},
    {"hidden_act": "gelu_new"},
    {"hidden_act": "relu", "num_attention_heads": 1, "layer_norm_eps": 0.1},
    {"hidden_act": "tanh", "num_hidden_layers": 3, "num_attention_heads": 6, "type_vocab_size": 3},
    {"is_decoder": True},
]


@pytest.mark.parametrize("overrides", VARIANTS, ids=lambda overrides: ",".join(overrides) or "default")
def test_encoder(build, batch, overrides):
    model = build(BertModel, **overrides)
    plain = PlainBert(model, prefix="")
    output, _ = model.forward(**batch.encoder, return_hidden_states=True, return_attentions=True)
    for b, inputs in enumerate(zip(*batch.encoder.values(), strict=True)):
        states, maps = plain.encode(*inputs)
        assert len(output.hidden_states) == len(states) and len(output.attentions) == len(maps)
        for actual, expected in zip(output.hidden_states, states, strict=True):
            close(actual[b], expected)
        for actual, expected in zip(output.attentions, maps, strict=True):
            close(actual[b], expected)
        close(output.last_hidden_state[b], states[-1])
        close(output.pooler_output[b], plain.pooled(states))


@pytest.mark.parametrize("epsilon", [0.0, 0.5])
def test_losses(build, batch, epsilon):
    """MLM: Σ nll / (number of labels + ε). NSP: mean over the sequences. Their sum is the loss."""
    model = build(loss_denominator_epsilon=epsilon)
    plain = PlainBert(model)
    output, _ = model.forward(**batch.all)
    words, pairs = [], []
    for b, inputs in enumerate(zip(*batch.encoder.values(), strict=True)):
        states, _ = plain.encode(*inputs)
        labels = batch.all["labels"][b]
        words += [-plain.words(states)[s, labels[s]] for s in range(7) if labels[s] != -100]
        pairs.append(-plain.next_sentence(states)[batch.all["next_sentence_label"][b]])
        close(log_softmax(output.seq_relationship_logits[b]), plain.next_sentence(states))
    assert len(words) == 6
    close(output.mlm_loss, sum(words) / (6 + epsilon))
    close(output.nsp_loss, sum(pairs) / 4)
    close(output.loss, sum(words) / (6 + epsilon) + sum(pairs) / 4)
    assert output.loss.shape == output.mlm_loss.shape == output.nsp_loss.shape == ()


def test_logits_are_those_of_the_labelled_places_in_order(build, batch):
    model = build()
    plain = PlainBert(model)
    labelled, _ = model.forward(**batch.all)
    everywhere, _ = model.forward(**batch.encoder)
    assert everywhere.prediction_logits.shape == (4, 7, 50)
    assert labelled.prediction_logits.shape == (6, 50)
    places = np.argwhere(batch.all["labels"] != -100)  # row-major
    for row, (b, s) in zip(to_numpy(labelled.prediction_logits), places, strict=True):
        close(row, to_numpy(everywhere.prediction_logits)[b, s])
    for b, inputs in enumerate(zip(*batch.encoder.values(), strict=True)):
        close(log_softmax(everywhere.prediction_logits[b]), plain.words(plain.encode(*inputs)[0]))


def test_each_model_has_what_its_heads_can_tell(build, batch):
    shared = {"last_hidden_state"}
    expected = {
        BertModel: shared | {"pooler_output"},
        BertForMaskedLM: shared | {"prediction_logits"},
        BertForNextSentencePrediction: shared | {"pooler_output", "seq_relationship_logits"},
        BertForPreTraining: shared | {"pooler_output", "prediction_logits", "seq_relationship_logits"},
    }
    for model_class, names in expected.items():
        output, _ = build(model_class).forward(**batch.encoder)
        assert {name for name, value in vars(output).items() if value is not None} == names


def test_heads_agree_between_the_models(build, batch):
    """The same parameters in a model with one head give the numbers of the model with both."""
    both = build()
    values = dict(both.named_parameters())
    output, _ = both.forward(**batch.all)
    for model_class, label, loss in (
        (BertForMaskedLM, "labels", "mlm_loss"),
        (BertForNextSentencePrediction, "next_sentence_label", "nsp_loss"),
    ):
        model = build(model_class)
        for name, parameter in model.named_parameters():
            parameter.value[...] = values[name].value
        single, _ = model.forward(**batch.encoder, **{label: batch.labels[label]})
        assert float(single.loss) == float(getattr(single, loss)) == float(getattr(output, loss))


def test_logits_are_left_out_on_request(build, batch):
    model = build()
    with_logits, _ = model.forward(**batch.all)
    without, _ = model.forward(**batch.all, return_logits=False)
    assert without.prediction_logits is None
    assert float(without.loss) == float(with_logits.loss)
    assert model.forward(**batch.encoder, return_logits=False)[0].prediction_logits is None


def test_lists_and_arrays_give_the_same(build, batch):
    model = build()
    lists = {name: array.tolist() for name, array in batch.all.items()}
    assert float(model.forward(**lists)[0].loss) == float(model.forward(**batch.all)[0].loss)


def test_the_future_is_hidden_from_a_decoder(build, batch):
    """Changing token 4 changes nothing before it and all from there on; an encoder sees it everywhere."""
    ids = batch.encoder["input_ids"]
    changed = ids.copy()
    changed[:, 4] = (ids[:, 4] + 1) % 50
    for is_decoder in (True, False):
        model = build(BertModel, is_decoder=is_decoder)
        before, after = (to_numpy(model.forward(x)[0].last_hidden_state) for x in (ids, changed))
        moved = np.abs(after - before).max(axis=(0, 2)) > 1e-6
        assert moved.tolist() == ([False] * 4 + [True] * 3 if is_decoder else [True] * 7)
        if is_decoder:
            np.testing.assert_allclose(after[:, :4], before[:, :4], rtol=0, atol=1e-12)


def test_padding_has_no_influence(build, batch):
    """Not what it holds, not how long it is, not whether it is there."""
    model = build()
    real = batch.encoder["attention_mask"] == 1
    reference = to_numpy(model.forward(**batch.encoder)[0].last_hidden_state)

    other = batch.encoder | {"input_ids": np.where(real, batch.encoder["input_ids"], 49)}
    other["token_type_ids"] = np.where(real, batch.encoder["token_type_ids"], 1)
    longer = {name: np.pad(array, ((0, 0), (0, 5))) for name, array in batch.encoder.items()}
    for padded in (other, longer):
        actual = to_numpy(model.forward(**padded)[0].last_hidden_state)[:, :7]
        np.testing.assert_allclose(actual[real], reference[real], rtol=0, atol=1e-12)
    for b in range(4):
        alone = {name: array[b : b + 1, real[b]] for name, array in batch.encoder.items()}
        actual = to_numpy(model.forward(**alone)[0].last_hidden_state)[0]
        np.testing.assert_allclose(actual, reference[b, real[b]], rtol=0, atol=1e-12)


def test_a_sequence_of_padding_only_stays_finite(build, batch):
    mask = batch.encoder["attention_mask"] * [[1], [0], [1], [1]]
    model = build(dtype="float32")
    output, cache = model.forward(**(batch.all | {"attention_mask": mask}))
    model.backward(cache)
    assert np.isfinite(to_numpy(output.last_hidden_state)).all()
    assert np.isfinite(to_numpy(model.buffers.grad)).all()


def test_float32_agrees_with_float64(build, batch):
    double, _ = build().forward(**batch.all)
    single, _ = build(dtype="float32").forward(**batch.all)
    assert float(single.loss) == pytest.approx(float(double.loss), rel=1e-5)
    for name, value in vars(single).items():
        assert value is None or value.dtype == "float32", name
