import numpy as np
import pytest
import scipy.special

from minibert.arrays import to_numpy
from minibert.ops.similarity import (
    cosine_loss,
    cosine_loss_backward,
    cosine_similarity,
    in_batch_softmax_loss,
    in_batch_softmax_loss_backward,
    unit_length,
    unit_length_backward,
)


def cosines(x, y):
    """Of every row with every row."""
    x, y = to_numpy(x), to_numpy(y)
    return np.array([[a @ b / np.linalg.norm(a) / np.linalg.norm(b) for b in y] for a in x])


def test_unit_length(draw):
    y = to_numpy(unit_length(draw(2, 3, 4) * 1e5)[0])
    np.testing.assert_allclose(np.linalg.norm(y, axis=-1), 1.0, rtol=1e-14)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_vector_of_zeros_stays_one(device, dtype):
    """And has a finite gradient, that of a division by ε."""
    y, cache = unit_length(device.asarray([[0.0, 0.0]], dtype=dtype))
    assert not to_numpy(y).any()
    dx = to_numpy(unit_length_backward(device.asarray([[3.0, -1.0]], dtype=dtype), cache))
    np.testing.assert_allclose(dx, [[3e12, -1e12]], rtol=1e-6)


def test_a_gradient_along_the_vector_is_taken_out(draw):
    x = draw(3, 4)
    _, cache = unit_length(x)
    np.testing.assert_allclose(to_numpy(unit_length_backward(x * 5.0, cache)), 0.0, atol=1e-14)


def test_cosine_similarity(draw):
    x, y = draw(5, 4), draw(5, 4)
    expected = np.diag(cosines(x, y))
    np.testing.assert_allclose(to_numpy(cosine_similarity(x, y)[0]), expected, rtol=1e-14)
    np.testing.assert_allclose(to_numpy(cosine_similarity(x, x * -3.0)[0]), -1.0, rtol=1e-14)


def test_cosine_loss(device, draw):
    x, y, targets = draw(5, 4), draw(5, 4), draw(5)
    expected = ((np.diag(cosines(x, y)) - to_numpy(targets)) ** 2).sum() / 2.5
    np.testing.assert_allclose(to_numpy(cosine_loss(x, y, targets, 2.5)[0]), expected, rtol=1e-13)


def test_in_batch_softmax_loss(draw):
    x, y = draw(5, 4), draw(5, 4)
    scores = 20.0 * cosines(x, y)
    forth = -np.diag(scipy.special.log_softmax(scores, axis=1)).sum() / 2.5
    back = -np.diag(scipy.special.log_softmax(scores, axis=0)).sum() / 2.5
    loss, _ = in_batch_softmax_loss(x, y, 20.0, False, 2.5)
    both, _ = in_batch_softmax_loss(x, y, 20.0, True, 2.5)
    swapped, _ = in_batch_softmax_loss(y, x, 20.0, False, 2.5)
    np.testing.assert_allclose(to_numpy(loss), forth, rtol=1e-12)
    np.testing.assert_allclose(to_numpy(swapped), back, rtol=1e-12)
    np.testing.assert_allclose(to_numpy(both), (forth + back) / 2, rtol=1e-12)
    assert abs(forth - back) > 1e-3


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_dtype_is_kept(draw, dtype):
    x, y, targets = draw(5, 4, dtype=dtype), draw(5, 4, dtype=dtype), draw(5, dtype=dtype)
    loss, cache = cosine_loss(x, y, targets, 5.0)
    assert {a.dtype.name for a in (loss, *cosine_loss_backward(1.0, cache))} == {dtype}
    for symmetric in (False, True):
        loss, cache = in_batch_softmax_loss(x, y, 20.0, symmetric, 5.0)
        assert {a.dtype.name for a in (loss, *in_batch_softmax_loss_backward(1.0, cache))} == {dtype}
