import numpy as np
import pytest
import scipy.special

from minibert.arrays import to_numpy
from minibert.ops.stable_softmax import (
    log_softmax,
    log_softmax_backward,
    log_sum_exp,
    softmax,
    softmax_backward,
)

PAIRS = [
    pytest.param(softmax, softmax_backward, scipy.special.softmax, id="softmax"),
    pytest.param(log_softmax, log_softmax_backward, scipy.special.log_softmax, id="log_softmax"),
]


@pytest.mark.parametrize(("forward", "backward", "expected"), PAIRS)
@pytest.mark.parametrize("shape", [(1,), (7,), (3, 7), (2, 3, 5, 7)])
def test_forward(draw, forward, backward, expected, shape):
    x = draw(*shape) * 5.0
    y, _ = forward(x)
    np.testing.assert_allclose(to_numpy(y), expected(to_numpy(x), axis=-1), rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize(("forward", "backward", "expected"), PAIRS)
def test_backward_is_the_transposed_jacobian(draw, forward, backward, expected):
    """Written out: ∂y[i]/∂x[j] = p[i] (δᵢⱼ − p[j]) for the softmax, δᵢⱼ − p[j] for its logarithm."""
    x, dout = draw(4, 6), draw(4, 6)
    _, cache = forward(x)
    dx = to_numpy(backward(dout, cache))
    for row, z, d in zip(dx, to_numpy(x), to_numpy(dout), strict=True):
        p = scipy.special.softmax(z)
        jacobian = np.eye(6) - p
        if forward is softmax:
            jacobian *= p[:, None]
        np.testing.assert_allclose(row, d @ jacobian, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("forward", "backward", "expected"), PAIRS)
def test_huge_scores_stay_finite_and_dtypes_are_kept(device, forward, backward, expected, dtype):
    host = np.array([[1e4, -1e4, 0.0], [-3e38, 3e37, -3e38], [-1e4, -1e4, -1e4], [88.0, 89.0, 90.0]])
    y, cache = forward(device.asarray(host, dtype=dtype))
    dx = backward(device.asarray(np.ones_like(host), dtype=dtype), cache)
    assert y.dtype == dx.dtype == dtype
    assert np.isfinite(to_numpy(dx)).all()
    tolerance = {"float32": 1e-6, "float64": 1e-13}[dtype]
    np.testing.assert_allclose(to_numpy(y), expected(host, axis=-1), rtol=tolerance, atol=1e-30)


def test_rows_sum_to_one_and_a_constant_cancels(draw):
    x = draw(5, 9) * 10.0
    y = to_numpy(softmax(x)[0])
    np.testing.assert_allclose(y.sum(axis=-1), 1.0, rtol=1e-14)
    np.testing.assert_allclose(to_numpy(softmax(x + 1000.0)[0]), y, rtol=1e-11)


def test_log_softmax_of_a_hopeless_class_is_exact(device):
    """The probability exp(−2000) is 0 in float64; its logarithm must still be −2000."""
    y, _ = log_softmax(device.asarray([0.0, -2000.0], dtype="float64"))
    assert to_numpy(y).tolist() == [0.0, -2000.0]


@pytest.mark.parametrize("axis", [1, 2])
def test_log_sum_exp(draw, axis):
    x = draw(2, 3, 4) * 500.0
    y = to_numpy(log_sum_exp(x, axis))
    np.testing.assert_allclose(y, scipy.special.logsumexp(to_numpy(x), axis=axis), rtol=1e-14)
