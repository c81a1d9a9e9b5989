"""Mistakes that were found in other people's transformers, made again on purpose: the checker catches each.

Where a weaker check would have let the mistake pass (γ = 1, B = 1, one use of each id), that is shown too.
"""

import math

import numpy as np
import pytest

from minibert.devices import resolve_device
from minibert.dropout_bits import dropout_key
from minibert.gradcheck import RELATIVE_BOUND, Draws, Row, check, function_case, module_case
from minibert.ops.cross_entropy_loss import cross_entropy, cross_entropy_backward
from minibert.ops.embedding_lookup import embedding
from minibert.ops.inverted_dropout import dropout_mask
from minibert.ops.layer_normalisation import layer_norm, layer_norm_backward
from minibert.ops.linear_map import linear, linear_backward
from minibert.ops.stable_softmax import softmax, softmax_backward


@pytest.fixture
def draw() -> Draws:
    return Draws(resolve_device("cpu"), 1)


def rows_of(forward, backward, inputs, **options) -> dict[str, Row]:
    return {row.parameter: row for row in check(function_case("it", forward, backward, inputs, **options))}


def test_product_rule_writes_the_other_factors_gradient_into_itself(draw):
    def product(x, w):
        return x * w, (x, w)

    def backward(dout, cache):
        x, w = cache
        dx, dw = np.zeros_like(x), np.zeros_like(w)
        dx += dw * w  # meant: dout * w
        dw += dx * x  # meant: dout * x
        return dx, dw

    rows = rows_of(product, backward, {"x": draw.normal(3, 4), "w": draw.normal(3, 4)})
    assert [row.error for row in rows.values()] == [1.0, 1.0]


def test_residual_adds_one_instead_of_the_gradient(draw):
    def block(x, weight, bias):
        y, cache = linear(x, weight, bias)
        return x + y, cache

    def backward(dout, cache):
        dx, dweight, dbias = linear_backward(dout, cache)
        return dx + 1.0, dweight, dbias  # meant: dx + dout

    rows = rows_of(
        block, backward, {"x": draw.normal(3, 4), "weight": draw.matrix(4, 4), "bias": draw.normal(4)}
    )
    assert rows["x"].error > 0.1
    assert rows["weight"].ok  # a check of the weights alone would have passed


def test_layer_norm_over_the_whole_sequence_without_its_mean_term(draw):
    def norm(x, weight, bias):
        centred = x - x.mean(axis=(1, 2), keepdims=True)
        inverse_std = 1.0 / np.sqrt((centred * centred).mean(axis=(1, 2), keepdims=True) + 1e-12)
        return centred * inverse_std * weight + bias, (centred * inverse_std, inverse_std, weight)

    def backward(dout, cache):
        normalised, inverse_std, weight = cache
        dnormalised = dout * weight
        projection = (dnormalised * normalised).mean(axis=(1, 2), keepdims=True)
        dx = (dnormalised - normalised * projection) * inverse_std  # meant: − mean(dnormalised) too
        return dx, (dout * normalised).sum(axis=(0, 1)), dout.sum(axis=(0, 1))

    inputs = {"x": draw.normal(3, 4, 6), "weight": draw.normal(6), "bias": draw.normal(6)}
    rows = rows_of(norm, backward, inputs)
    assert rows["x"].error > 0.01
    assert rows["weight"].ok
    assert rows["bias"].ok


def gamma_outside_backward(dout, cache):
    normalised, inverse_std, weight = cache
    dx, dweight, dbias = layer_norm_backward(dout, (normalised, inverse_std, np.ones_like(weight)))
    return dx * weight, dweight, dbias  # meant: γ inside the two means


def test_layer_norm_with_gamma_outside_the_sums(draw):
    x, bias = draw.normal(3, 4, 6), draw.normal(6)

    def error_with(weight):
        inputs = {"x": x, "weight": weight, "bias": bias}
        return rows_of(lambda *a: layer_norm(*a, 1e-12), gamma_outside_backward, inputs)["x"]

    assert error_with(draw.normal(6)).error > 0.1
    assert error_with(np.ones(6)).ok  # how it stayed hidden


def test_softmax_backward_divides_by_the_batch_size(draw):
    def backward(dout, cache):
        return softmax_backward(dout, cache) / dout.shape[0]

    assert rows_of(softmax, backward, {"x": draw.normal(3, 6)})["x"].error > 0.1
    assert rows_of(softmax, backward, {"x": draw.normal(1, 6)})["x"].ok  # how it stayed hidden


class SharedDropout:
    """Two sub-layers, tanh between them, and one dropout object that remembers only its last mask."""

    def __init__(self, probability: float):
        self.probability = probability

    def _drop(self, x, site):
        key = dropout_key(1, 2, 0, 0, site)
        self.mask = dropout_mask(np, x.shape, x.dtype, self.probability, key)
        return x * self.mask

    def forward(self, x):
        y = np.tanh(self._drop(x, site=0))
        return self._drop(y, site=1), y

    def backward(self, dout, y):
        return dout * self.mask * (1.0 - y * y) * self.mask

    def named_parameters(self):
        return []

    def zero_grad(self):
        pass


def test_one_dropout_object_serves_two_sub_layers(draw):
    x = {"x": draw.normal(3, 4, 6)}
    assert all(row.error > 0.01 for row in check(module_case("dropout on", SharedDropout(0.3), x)))
    assert all(row.ok for row in check(module_case("dropout off", SharedDropout(0.0), x)))  # how it hid


def scores(q, k):
    return q @ k.transpose(0, 2, 1) / math.sqrt(q.shape[-1]), (q, k)


def transposed_scores_backward(dout, cache):
    q, k = cache
    scale = 1.0 / math.sqrt(q.shape[-1])
    dk = q.transpose(0, 2, 1) @ dout * scale  # (B, D, S); meant: doutᵀ q, (B, S, D)
    return dout @ k * scale, dk.reshape(k.shape)


def test_key_gradient_transposed_and_silently_reshaped(draw):
    inputs = {"q": draw.normal(3, 5, 4), "k": draw.normal(3, 5, 4)}
    rows = rows_of(scores, transposed_scores_backward, inputs)
    assert rows["q"].ok
    assert rows["k"].error > 0.5


def test_one_loss_that_ignores_label_zero_for_both_heads(draw):
    labels, weights = np.array([0, 1, 0]), np.ones(3)
    logits = {"logits": draw.normal(3, 2)}

    def right(logits):
        return cross_entropy(logits, labels, weights, 3.0)

    def backward(dout, cache):
        log_p, labels, weights, denominator = cache
        return cross_entropy_backward(dout, (log_p, labels, weights * (labels != 0), denominator))

    assert rows_of(right, backward, logits)["logits"].error > 0.1

    # The forward ignores label 0 as well: then the two agree, and only a batch of that class alone tells.
    def ignoring(logits):
        return cross_entropy(logits, labels, weights * (labels != 0), 3.0)

    assert rows_of(ignoring, cross_entropy_backward, logits)["logits"].ok
    labels = np.zeros(3, dtype=int)
    assert "the derivative is zero" in rows_of(ignoring, cross_entropy_backward, logits)["logits"].note


def test_mean_loss_times_the_mask(draw):
    labels, mask = np.array([3, 1, 4, 0]), np.array([1.0, 1.0, 0.0, 0.0])
    inputs = {"counted": draw.normal(2, 5), "ignored": draw.normal(2, 5)}

    def by_parts(loss):
        return lambda counted, ignored: loss(np.concatenate([counted, ignored]))

    def masked(logits):
        return cross_entropy(logits, labels, mask, 2.0)

    def mean_times_mask(logits):  # each of the "masked losses" is the same mean over all rows
        mean, (log_p, *_) = cross_entropy(logits, labels, np.ones(4), 4.0)
        return (mean * mask).sum() / mask.sum(), (log_p, labels, np.ones(4), 4.0)

    def backward(dout, cache):
        dlogits = cross_entropy_backward(dout, cache)
        return dlogits[:2], dlogits[2:]

    right = rows_of(by_parts(masked), backward, inputs, zeros=["ignored"])
    assert all(row.ok for row in right.values())
    wrong = rows_of(by_parts(mean_times_mask), backward, inputs, zeros=["ignored"])
    assert not wrong["ignored"].ok  # padding has a gradient
    assert wrong["counted"].ok  # agrees with its own forward: what is zero has to be declared


def test_embedding_gradient_assigned_instead_of_scattered(draw):
    def backward(dout, cache):
        ids, shape = cache
        dweight = np.zeros(shape)
        dweight[ids] += dout  # an id that occurs twice keeps one of its gradients
        return dweight

    def row_with(ids):
        return rows_of(lambda weight: embedding(weight, ids), backward, {"weight": weight})["weight"]

    weight = draw.normal(7, 6)
    assert row_with(draw.ids(7, 2, 3)).error > 0.1
    assert row_with(np.array([[1, 0, 5], [2, 6, 3]])).ok  # how it stayed hidden


def test_float32_cannot_tell_right_from_wrong(draw):
    """Why the checker refuses float32: so computed, a right LayerNorm gradient misses the bound by far."""
    x, weight, bias = (a.astype("float32") for a in (draw.normal(3, 6), draw.normal(6), draw.normal(6)))
    dout = draw.normal(3, 6).astype("float32")
    _, cache = layer_norm(x, weight, bias, 1e-12)
    dx = layer_norm_backward(dout, cache)[0]
    numeric = np.zeros_like(x)
    for index in np.ndindex(*x.shape):
        step = np.zeros_like(x)
        step[index] = 1e-5
        above, below = (layer_norm(x + s, weight, bias, 1e-12)[0] for s in (step, -step))
        numeric[index] = ((above * dout).sum() - (below * dout).sum()) / np.float32(2e-5)
    error = np.linalg.norm(dx - numeric) / (np.linalg.norm(dx) + np.linalg.norm(numeric))
    assert error > 1e4 * RELATIVE_BOUND
