"""What heads and halves of layers add to the tokens."""

import numpy as np
import pytest

from minibert.explore.layers import residuals
from minibert.explore.look import look
from minibert.explore.subjects import open_subject

TEXT = "the capital of france is [MASK] ."


@pytest.fixture(scope="module")
def subject():
    return open_subject("mini", dtype="float64")


def test_what_the_heads_write_adds_up(subject):
    """With one head that has all features, it is the whole product."""
    shown, found = look(subject, subject.encode(TEXT))
    layer = subject.model.bert.encoder.layer[2]
    weight, context = (
        layer.attention.output.dense.weight.value,
        found.values["bert.encoder.layer.2.attention.self.context"],
    )
    parts = [context[:, i : i + 64] @ weight[:, i : i + 64].T for i in range(0, 256, 64)]
    np.testing.assert_allclose(sum(parts), context @ weight.T, atol=1e-12)
    np.testing.assert_allclose(shown["written"][2], np.linalg.norm(parts, axis=2), rtol=1e-12)


def test_what_a_token_takes_from_another(subject):
    """p ‖v W‖ is the length of what one weight brings; all of them together are what the head writes."""
    shown, found = look(subject, subject.encode(TEXT))
    inside = "bert.encoder.layer.1.attention.self."
    weight = subject.model.bert.encoder.layer[1].attention.output.dense.weight.value
    p, v = found.values[inside + "probabilities"], found.values[inside + "v"]
    for head in range(4):
        brought = p[head, 6][:, None] * (v[head] @ weight[:, 64 * head : 64 * (head + 1)].T)  # (S, H)
        lengths = p[head, 6] * shown["offered"][1][head]
        np.testing.assert_allclose(lengths, np.linalg.norm(brought, axis=1), rtol=1e-12)
        written = np.linalg.norm(brought.sum(axis=0))
        assert shown["written"][1][head][6] == pytest.approx(written, rel=1e-12)


def test_before_and_added_normalised_is_after(subject, monkeypatch):
    """after = γ (before + added − mean)/σ + β, for both halves of each layer, σ² = variance + ε."""
    monkeypatch.setattr(subject.model.bert.encoder.layer[1].output.LayerNorm, "eps", 0.1)
    _, found = look(subject, subject.encode(TEXT))
    before = "bert.embeddings"
    for i, halves in enumerate(residuals(subject, found)):
        layer = subject.model.bert.encoder.layer[i]
        for half, output in zip(halves, (layer.attention.output, layer.output), strict=True):
            assert half.before == before
            total = found.values[before] + half.added
            centred = total - total.mean(axis=1, keepdims=True)
            norm = output.LayerNorm
            after = norm.weight.value * centred / half.deviation[:, None] + norm.bias.value
            np.testing.assert_allclose(after, found.values[half.after], atol=1e-12)
            for token in (0, 6):
                x, y = found.values[before][token], half.added[token]
                assert half.cosine[token] == pytest.approx(x @ y / np.linalg.norm(x) / np.linalg.norm(y))
            before = half.after
    assert before == "bert.encoder.layer.3"


def test_what_adds_nothing_points_nowhere(subject, monkeypatch):
    dense = subject.model.bert.encoder.layer[1].output.dense
    for parameter in (dense.weight, dense.bias):
        monkeypatch.setattr(parameter, "value", np.zeros_like(parameter.value))
    _, found = look(subject, subject.encode(TEXT))
    feed_forward = residuals(subject, found)[1][1]
    assert not feed_forward.added.any() and not feed_forward.cosine.any()


def test_without_a_layer_of_bert_there_is_none(subject, monkeypatch):
    _, found = look(subject, subject.encode(TEXT))
    layer = subject.model.bert.encoder.layer[1]
    monkeypatch.setattr(layer, "__class__", type("OtherLayer", (type(layer),), {}))
    assert residuals(subject, found) == []
