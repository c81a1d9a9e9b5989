import numpy as np
import pytest

from minibert.arrays import to_numpy
from minibert.ops.layer_normalisation import layer_norm, layer_norm_backward


@pytest.mark.parametrize("eps", [1e-12, 0.1])
@pytest.mark.parametrize("shape", [(6,), (4, 6), (2, 3, 6)])
def test_forward(draw, shape, eps):
    x, weight, bias = draw(*shape) * 3.0 + 5.0, draw(6), draw(6)
    y, _ = layer_norm(x, weight, bias, eps)
    x = to_numpy(x)
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)  # NumPy's var divides by H
    expected = (x - mean) / np.sqrt(variance + eps) * to_numpy(weight) + to_numpy(bias)
    np.testing.assert_allclose(to_numpy(y), expected, rtol=1e-12, atol=1e-13)


def test_backward_is_the_transposed_jacobian(draw):
    """The Jacobian of a row written out, from ∂x̂[i]/∂x[j] = (δᵢⱼ − 1/H − x̂[i] x̂[j]/H) / σ."""
    eps = 0.1
    x, weight, bias, dout = draw(4, 6), draw(6), draw(6), draw(4, 6)
    _, cache = layer_norm(x, weight, bias, eps)
    dx, dweight, dbias = (to_numpy(gradient) for gradient in layer_norm_backward(dout, cache))
    x, weight, dout = to_numpy(x), to_numpy(weight), to_numpy(dout)
    dweight_expected = np.zeros(6)
    for r in range(4):
        sigma = np.sqrt(x[r].var() + eps)
        xhat = (x[r] - x[r].mean()) / sigma
        jacobian = weight[:, None] * (np.eye(6) - 1 / 6 - np.outer(xhat, xhat) / 6) / sigma
        np.testing.assert_allclose(dx[r], dout[r] @ jacobian, rtol=1e-12, atol=1e-14)
        dweight_expected += dout[r] * xhat
    np.testing.assert_allclose(dweight, dweight_expected, rtol=1e-12)
    np.testing.assert_allclose(dbias, dout.sum(axis=0), rtol=1e-12)


def test_a_constant_row_stays_finite(device):
    """Its variance is 0: ε = 1e-12 alone is left under the root, and x̂ is 0, so y = β."""
    x = device.asarray(np.full((2, 8), 3.0), dtype="float32")
    weight, bias = device.asarray(np.ones(8), "float32"), device.asarray(np.arange(8), "float32")
    y, cache = layer_norm(x, weight, bias, 1e-12)
    np.testing.assert_array_equal(to_numpy(y), [np.arange(8.0)] * 2)
    assert all(np.isfinite(to_numpy(gradient)).all() for gradient in layer_norm_backward(y, cache))


def test_dx_has_no_part_along_the_ones_and_along_the_input(draw):
    """Shifting or (for ε = 0) scaling a row changes nothing, so the gradient is orthogonal to both."""
    x, weight, bias, dout = draw(5, 8), draw(8), draw(8), draw(5, 8)
    _, cache = layer_norm(x, weight, bias, 0.0)
    dx, _, _ = layer_norm_backward(dout, cache)
    dx, x = to_numpy(dx), to_numpy(x)
    np.testing.assert_allclose(dx.sum(axis=-1), 0.0, atol=1e-13)
    np.testing.assert_allclose((dx * x).sum(axis=-1), 0.0, atol=1e-13)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_dtype_is_kept(draw, dtype):
    y, cache = layer_norm(draw(2, 3, 6, dtype=dtype), draw(6, dtype=dtype), draw(6, dtype=dtype), 1e-12)
    assert {a.dtype.name for a in (y, *layer_norm_backward(y, cache))} == {dtype}
