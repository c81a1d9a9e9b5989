"""Attention before an observer: the numbers of packed attention, and derivatives through what is changed."""

import numpy as np
import pytest

from minibert import ops
from minibert.arrays import to_numpy
from minibert.dropout_bits import dropout_key
from minibert.ops.attention import attention_bias, attention_scores
from minibert.ops.composites import packed_attention, packed_attention_backward, split_qkv
from minibert.ops.observed import observed_attention, observed_attention_backward
from minibert.ops.stable_softmax import softmax

KEY = dropout_key(seed=1, step=2, micro_batch=0, replica=0, site=3)
MASK = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])  # (B, S)
HEADS, SHAPE = 2, (2, 2, 5, 4)  # (B, A, S, D)
SHAPES = {
    **dict.fromkeys(("q", "k", "v"), SHAPE),
    **dict.fromkeys(("scores", "probabilities"), (2, 2, 5, 5)),
    "context": (2, 5, 8),
}


class Gone:
    """Takes a derivative through a change with ``function``, and notes that it did."""

    def __init__(self, name, function, order):
        self.name, self.function, self.order = name, function, order

    def backward(self, dvalue):
        self.order.append((self.name, dvalue.shape))
        return self.function(dvalue)


@pytest.fixture
def arguments(device, draw):
    bias = attention_bias(device.asarray(MASK), "float64", causal=True)
    return draw(2, 5, 24), bias, HEADS, 0.3, KEY


@pytest.mark.parametrize("cached", [False, True])
def test_an_observer_that_changes_nothing_changes_nothing(arguments, draw, cached):
    """Every bit is packed attention's, forward and backward."""
    seen, order = {}, []

    def observe(name, value):
        seen[name] = value
        return value, Gone(name, lambda dvalue: dvalue, order) if cached else None

    dout = draw(2, 5, 8)
    y, cache = observed_attention(*arguments, observe)
    expected, expected_cache = packed_attention(*arguments)
    np.testing.assert_array_equal(to_numpy(y), to_numpy(expected))
    np.testing.assert_array_equal(
        to_numpy(observed_attention_backward(dout, cache)),
        to_numpy(packed_attention_backward(dout, expected_cache)),
    )
    assert {name: value.shape for name, value in seen.items()} == SHAPES and list(seen) == list(SHAPES)
    assert order == ([*reversed(SHAPES.items())] if cached else [])
    qkv, bias, *_ = arguments
    q, k, _ = split_qkv(qkv, HEADS)
    np.testing.assert_array_equal(
        to_numpy(seen["probabilities"]), to_numpy(softmax(attention_scores(q, k, bias))[0]), "before dropout"
    )
    np.testing.assert_array_equal(to_numpy(seen["context"]), to_numpy(y))


def changed(name, function):
    """An observer that changes one value, by a function that has a constant derivative of 1."""
    return lambda seen, value: (function(value) if seen == name else value, None)


@pytest.mark.parametrize("name", SHAPES)
def test_the_gradient_with_a_constant_added(arguments, draw, name):
    """Added to one value, in the middle of everything: the slope of Σ y · dout is what dqkv says."""
    qkv, *rest = arguments
    dout, constant, step = draw(2, 5, 8), draw(*SHAPES[name]), draw(2, 5, 24)

    def forward(x):
        return observed_attention(x, *rest, changed(name, lambda value: value + constant))

    def loss(x):
        return float((forward(x)[0] * dout).sum())

    y, cache = forward(qkv)
    assert not np.allclose(to_numpy(y), to_numpy(packed_attention(*arguments)[0]))
    slope = (loss(qkv + step * 1e-6) - loss(qkv - step * 1e-6)) / 2e-6
    dqkv = observed_attention_backward(dout, cache)
    np.testing.assert_allclose(float((dqkv * step).sum()), slope, rtol=1e-7)


@pytest.mark.parametrize("name", SHAPES)
def test_the_gradient_stops_where_a_value_is_replaced(arguments, draw, name):
    """The replacement is a constant, so what led to it alone has no derivative, and all else still has."""
    qkv, *rest = arguments
    dout, replacement, step, order = draw(2, 5, 8), draw(*SHAPES[name]), draw(2, 5, 24), []

    def forward(x):
        def observe(seen, value):
            return (
                (replacement, Gone(seen, lambda dvalue: dvalue * 0.0, order))
                if seen == name
                else (value, None)
            )

        return observed_attention(x, *rest, observe)

    def loss(x):
        return float((forward(x)[0] * dout).sum())

    _, cache = forward(qkv)
    dqkv = observed_attention_backward(dout, cache)
    assert order == [(name, SHAPES[name])]
    thirds = [to_numpy(dqkv[..., 8 * i : 8 * i + 8]).any() for i in range(3)]
    expected = {"q": (False, True, True), "k": (True, False, True), "v": (True, True, False)}
    stopped_before_v = {"scores": (False, False, True), "probabilities": (False, False, True)}
    assert tuple(thirds) == (expected | stopped_before_v).get(name, (False, False, False))
    slope = (loss(qkv + step * 1e-6) - loss(qkv - step * 1e-6)) / 2e-6
    np.testing.assert_allclose(float((dqkv * step).sum()), slope, rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_as_ops_has_it(dtype):
    """In 16 bits everything between is computed, and observed, in float32."""
    rng = np.random.default_rng(0)
    qkv, bias = rng.standard_normal((2, 5, 24)).astype(dtype), attention_bias(MASK, "float32")
    dtypes = set()

    def observe(name, value):
        dtypes.add(value.dtype.name)
        return value, None

    y, cache = ops.observed_attention(qkv, bias, HEADS, 0.3, KEY, observe)
    dqkv = ops.observed_attention_backward(y, cache)
    assert (y.dtype, dqkv.dtype, dtypes) == (dtype, dtype, {"float32"})
    expected, _ = ops.packed_attention(qkv, bias, HEADS, 0.3, KEY)
    np.testing.assert_allclose(y, expected, rtol={"float16": 1e-3, "float32": 2e-6}[dtype], atol=2e-6)
    with pytest.raises(ValueError, match="made by observed_attention, so packed_attention cannot"):
        ops.packed_attention_backward(y, cache)
