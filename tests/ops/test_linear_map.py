import numpy as np
import pytest

from minibert.arrays import to_numpy
from minibert.ops.linear_map import linear, linear_backward


@pytest.mark.parametrize("rows", [(), (3,), (2, 3), (2, 3, 4)])
def test_forward_is_the_sum_over_inputs(draw, rows):
    x, weight, bias = draw(*rows, 5), draw(4, 5), draw(4)
    y, _ = linear(x, weight, bias)
    expected = np.einsum("...k,nk->...n", to_numpy(x), to_numpy(weight)) + to_numpy(bias)
    np.testing.assert_allclose(to_numpy(y), expected, rtol=1e-13, atol=1e-14)
    assert y.shape == (*rows, 4)


def test_backward_by_explicit_loops(draw):
    x, weight, bias, dout = draw(2, 3, 5), draw(4, 5), draw(4), draw(2, 3, 4)
    _, cache = linear(x, weight, bias)
    gradients = [to_numpy(gradient) for gradient in linear_backward(dout, cache)]
    x, weight, dout = to_numpy(x), to_numpy(weight), to_numpy(dout)
    dx, dweight, dbias = np.zeros((2, 3, 5)), np.zeros((4, 5)), np.zeros(4)
    for b, s, n in np.ndindex(2, 3, 4):
        dbias[n] += dout[b, s, n]
        for k in range(5):
            dx[b, s, k] += dout[b, s, n] * weight[n, k]
            dweight[n, k] += dout[b, s, n] * x[b, s, k]
    for gradient, expected in zip(gradients, (dx, dweight, dbias), strict=True):
        np.testing.assert_allclose(gradient, expected, rtol=1e-12, atol=1e-14)


def test_no_rows(draw):
    """A batch in which nothing is predicted has no rows; its weights then get a zero gradient."""
    y, cache = linear(draw(0, 5), draw(4, 5), draw(4))
    assert y.shape == (0, 4)
    dx, dweight, dbias = linear_backward(y, cache)
    assert dx.shape == (0, 5)
    assert not to_numpy(dweight).any() and not to_numpy(dbias).any()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_dtype_is_kept(draw, dtype):
    y, cache = linear(draw(2, 5, dtype=dtype), draw(4, 5, dtype=dtype), draw(4, dtype=dtype))
    assert {a.dtype.name for a in (y, *linear_backward(y, cache))} == {dtype}
