import math

import numpy as np
import pytest
import scipy.special
import scipy.stats

from minibert.arrays import to_numpy
from minibert.ops.activations import ACTIVATIONS, gelu, gelu_tanh

X = np.concatenate([np.linspace(-12, 12, 241), [-1e4, -40.0, -1e-300, 0.0, 1e-300, 40.0, 1e4]])


def tanh_form(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


EXPECTED = {
    "gelu": lambda x: x * scipy.stats.norm.cdf(x),
    "gelu_new": tanh_form,
    "gelu_pytorch_tanh": tanh_form,
    "relu": lambda x: np.where(x > 0, x, 0),
    "tanh": np.tanh,
}


def test_every_activation_is_tested():
    assert ACTIVATIONS.keys() == EXPECTED.keys()


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_forward(device, name):
    """Absolute, in units of 1: where Φ(x) is nearly 0, ½ (1 + erf) keeps its absolute precision only."""
    forward, _ = ACTIVATIONS[name]
    y, _ = forward(device.asarray(X))
    np.testing.assert_allclose(to_numpy(y), EXPECTED[name](X), rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_dtype_shape_and_finite_far_out(device, name, dtype):
    forward, backward = ACTIVATIONS[name]
    x = device.asarray(X.reshape(2, -1), dtype=dtype)
    y, cache = forward(x)
    dx = backward(y, cache)
    assert x.shape == y.shape == dx.shape
    assert y.dtype == dx.dtype == dtype
    assert np.isfinite(to_numpy(y)).all() and np.isfinite(to_numpy(dx)).all()


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_slopes_where_they_are_known(device, name):
    """At 0 and far out: GELU ½, 0, 1; ReLU 0 (by convention), 0, 1; tanh 1, 0, 0."""
    forward, backward = ACTIVATIONS[name]
    x = device.asarray([0.0, -30.0, 30.0], dtype="float64")
    _, cache = forward(x)
    slopes = {"relu": [0.0, 0.0, 1.0], "tanh": [1.0, 0.0, 0.0]}.get(name, [0.5, 0.0, 1.0])
    dout = device.asarray([2.0, 3.0, 5.0], dtype="float64")
    expected = np.array(slopes) * [2.0, 3.0, 5.0]
    np.testing.assert_allclose(to_numpy(backward(dout, cache)), expected, rtol=0, atol=1e-15)


def test_the_two_forms_of_gelu_differ_as_the_docstring_says(device):
    x = device.asarray(np.linspace(-6, 6, 100_001))
    difference = np.abs(to_numpy(gelu(x)[0]) - to_numpy(gelu_tanh(x)[0])).max()
    assert 4.6e-4 < difference <= 4.8e-4
