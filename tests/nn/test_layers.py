"""The layers: their parameters, and that they hand them to the right operation."""

import numpy as np
import pytest

from minibert.arrays import to_numpy
from minibert.dropout_bits import dropout_stream
from minibert.nn import Context, Dropout, Embedding, LayerNorm, Linear, LinearActivation


@pytest.fixture
def build(device):
    """Allocate a layer in float64 with random parameters."""

    def build(layer):
        layer.allocate(device, "float64")
        rng = np.random.default_rng(0)
        for _, parameter in layer.named_parameters():
            parameter.value[...] = device.asarray(rng.normal(size=parameter.shape))
        return layer

    return build


def parameters(layer):
    return {
        name: (parameter.shape, parameter.init, parameter.decay)
        for name, parameter in layer.named_parameters()
    }


def test_what_the_layers_are_made_of():
    """LayerNorm and biases are not decayed."""
    assert parameters(Linear(3, 4)) == {"weight": ((4, 3), "normal", True), "bias": ((4,), "zeros", False)}
    assert parameters(LinearActivation(3, 4, "gelu")) == parameters(Linear(3, 4))
    assert parameters(LayerNorm(3, 0.1)) == {"weight": ((3,), "ones", False), "bias": ((3,), "zeros", False)}
    assert parameters(Embedding(5, 3)) == {"weight": ((5, 3), "normal", True)}
    assert parameters(Dropout(0.1)) == {}


def test_linear(device, build):
    layer = build(Linear(3, 4))
    x, dout = np.random.default_rng(1).normal(size=(2, 5, 3)), np.random.default_rng(2).normal(size=(2, 5, 4))
    y, cache = layer.forward(device.asarray(x))
    weight, bias = to_numpy(layer.weight.value), to_numpy(layer.bias.value)
    np.testing.assert_allclose(to_numpy(y), x @ weight.T + bias, rtol=1e-13)
    dx = layer.backward(device.asarray(dout), cache)
    np.testing.assert_allclose(to_numpy(dx), dout @ weight, rtol=1e-13)
    expected = np.einsum("bsn,bsk->nk", dout, x)
    np.testing.assert_allclose(to_numpy(layer.weight.grad), expected, rtol=1e-12)
    np.testing.assert_allclose(to_numpy(layer.bias.grad), dout.sum(axis=(0, 1)), rtol=1e-12)


def test_linear_activation(device, build):
    layer, plain = build(LinearActivation(3, 4, "tanh")), build(Linear(3, 4))
    x, dout = (device.asarray(np.random.default_rng(seed).normal(size=(2, 5, seed))) for seed in (3, 4))
    (y, cache), (z, plain_cache) = layer.forward(x), plain.forward(x)
    np.testing.assert_allclose(to_numpy(y), np.tanh(to_numpy(z)), rtol=1e-13)
    dx, plain_dx = layer.backward(dout, cache), plain.backward(dout * (1.0 - y * y), plain_cache)
    np.testing.assert_allclose(to_numpy(dx), to_numpy(plain_dx), rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(
        to_numpy(layer.weight.grad), to_numpy(plain.weight.grad), rtol=1e-12, atol=1e-13
    )
    np.testing.assert_allclose(to_numpy(layer.bias.grad), to_numpy(plain.bias.grad), rtol=1e-12, atol=1e-13)


def test_layer_norm(device, build):
    layer = build(LayerNorm(6, 0.1))
    x, dout = np.random.default_rng(1).normal(size=(2, 5, 6)), np.random.default_rng(2).normal(size=(2, 5, 6))
    y, cache = layer.forward(device.asarray(x))
    xhat = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 0.1)
    weight, bias = to_numpy(layer.weight.value), to_numpy(layer.bias.value)
    np.testing.assert_allclose(to_numpy(y), weight * xhat + bias, rtol=1e-12, atol=1e-14)
    assert layer.backward(device.asarray(dout), cache).shape == x.shape
    np.testing.assert_allclose(to_numpy(layer.weight.grad), (dout * xhat).sum(axis=(0, 1)), rtol=1e-12)
    np.testing.assert_allclose(to_numpy(layer.bias.grad), dout.sum(axis=(0, 1)), rtol=1e-12)


def test_embedding(device, build):
    layer = build(Embedding(5, 3))
    ids = np.array([[4, 1], [1, 1]])
    y, cache = layer.forward(device.asarray(ids))
    np.testing.assert_array_equal(to_numpy(y), to_numpy(layer.weight.value)[ids])
    assert layer.backward(y * 0.0 + 2.0, cache) is None
    assert to_numpy(layer.weight.grad).tolist() == [[0] * 3, [6] * 3, [0] * 3, [0] * 3, [2] * 3]


@pytest.mark.parametrize("make", [lambda: Linear(6, 6), lambda: LayerNorm(6, 0.1)])
def test_a_layer_used_twice_sums_both_gradients(device, build, make):
    """Two forwards, then their backwards in reverse: h = f(f(x)). A cache kept on self would fail here."""
    layer, twin = build(make()), build(make())
    x, dout = (device.asarray(np.random.default_rng(seed).normal(size=(4, 6))) for seed in (1, 2))
    middle, first = layer.forward(x)
    _, second = layer.forward(middle)
    dx = layer.backward(layer.backward(dout, second), first)

    # The same with two layers of equal parameters, of which each is used once.
    middle, first = layer.forward(x)
    _, second = twin.forward(middle)
    grads = {name: to_numpy(parameter.grad).copy() for name, parameter in layer.named_parameters()}
    layer.zero_grad()
    np.testing.assert_allclose(to_numpy(layer.backward(twin.backward(dout, second), first)), to_numpy(dx))
    for (name, a), (_, b) in zip(layer.named_parameters(), twin.named_parameters(), strict=True):
        np.testing.assert_allclose(grads[name], to_numpy(a.grad) + to_numpy(b.grad), rtol=1e-12, atol=1e-14)


def test_dropout_is_on_while_training_only(device):
    layer, x = Dropout(0.5), device.asarray(np.ones((4, 50)))
    layer.allocate(device, "float64")
    y, cache = layer.forward(x, Context(training=True, stream=device.asarray(dropout_stream(1, 2))))
    assert set(to_numpy(y).reshape(-1).tolist()) == {0.0, 2.0}
    np.testing.assert_array_equal(to_numpy(layer.backward(x, cache)), to_numpy(y))
    np.testing.assert_array_equal(to_numpy(layer.forward(x, Context())[0]), to_numpy(x))
    layer.eval()
    np.testing.assert_array_equal(to_numpy(layer.forward(x)[0]), to_numpy(x))
    layer.train()
    assert (to_numpy(layer.forward(x)[0]) == 0).any()


def test_a_layer_made_alone_computes():
    layer = Linear(3, 4)
    x = np.ones((2, 3), "float32")
    y, cache = layer.forward(x)
    assert y.dtype == "float32" and y.std() > 0
    np.testing.assert_allclose(layer.backward(y, cache), y @ layer.weight.value, rtol=1e-6)
    assert layer.weight.grad.any() and layer.bias.grad.any()


def test_looking_at_a_layer_keeps_its_gradient():
    layer = Linear(3, 4)
    y, cache = layer.forward(np.ones((2, 3), "float32"))
    layer.backward(y, cache)
    before = layer.weight.grad.copy()
    assert layer.dtype == "float32"  # for which all of its parameters get memory together
    np.testing.assert_array_equal(layer.weight.grad, before)
    assert before.any()


@pytest.mark.parametrize("probability", [-0.5, 1.0, 50, float("nan")])
def test_a_probability_of_dropout_is_below_1(probability):
    with pytest.raises(ValueError, match="probability must be at least 0 and below 1, got"):
        Dropout(probability)
