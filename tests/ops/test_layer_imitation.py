"""The losses that compare the layers of two models."""

import numpy as np
import pytest

from minibert import ops
from minibert.arrays import to_numpy


def test_relations_by_hand(device):
    """Two tokens at a right angle, where the teacher's point the same way: only their pair differs, by 1."""
    hidden = device.asarray(np.array([[[2.0, 0.0], [0.0, 3.0]]]))
    teacher = device.asarray(np.array([[[1.0, 1.0, 0.0], [5.0, 5.0, 0.0]]]))
    weights = device.asarray(np.array([[[10.0, 0.25], [0.5, 10.0]]]))
    loss, _ = ops.relation_loss(hidden, teacher, weights)
    assert float(to_numpy(loss)) == pytest.approx(0.75)


def test_attention_by_hand(device):
    """The mean of a head that looks left and one that looks right, against one that looks left."""
    left, right = np.array([[1.0, 0.0], [1.0, 0.0]]), np.array([[0.0, 1.0], [0.0, 1.0]])
    heads, teacher = device.asarray(np.array([[left, right]])), device.asarray(np.array([[left]]))
    weights = device.asarray(np.array([[[1.0], [3.0]]]))  # of queries; each differs by ½ at both keys
    loss, cache = ops.attention_loss(heads, teacher, weights)
    assert float(to_numpy(loss)) == pytest.approx(4 * (0.25 + 0.25))
    assert ops.attention_loss_backward(1.0, cache).shape == heads.shape


def test_a_larger_copy_of_the_teacher_has_no_loss(draw, device):
    """Vectors that are turned and scaled relate to each other as before; so do heads that are repeated."""
    hidden, turn = draw(2, 5, 4), np.linalg.qr(to_numpy(draw(6, 4)))[0]  # (6, 4) with orthonormal columns
    larger, weights = hidden @ device.asarray(3.0 * turn.T), abs(draw(2, 5, 5))
    assert float(to_numpy(ops.relation_loss(hidden, larger, weights)[0])) == pytest.approx(0.0, abs=1e-12)
    probabilities = draw(2, 3, 5, 5)
    loss, _ = ops.attention_loss(probabilities, probabilities.repeat(2, axis=1), weights)
    assert float(to_numpy(loss)) == pytest.approx(0.0, abs=1e-12)


def test_what_weighs_nothing_does_not_count(draw):
    hidden, other, teacher = draw(2, 5, 4), draw(2, 5, 4), draw(2, 5, 3)
    other[:, :4] = hidden[:, :4]
    weights = abs(draw(2, 5, 5))
    weights[:, 4] = weights[:, :, 4] = 0.0
    losses = [float(to_numpy(ops.relation_loss(h, teacher, weights)[0])) for h in (hidden, other)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-12)


def test_single_precision_stays(draw):
    hidden, teacher, weights = (draw(2, 3, 3, dtype="float32") for _ in range(3))
    loss, cache = ops.relation_loss(hidden, teacher, weights)
    assert loss.dtype == ops.relation_loss_backward(1.0, cache).dtype == np.float32
    loss, cache = ops.attention_loss(hidden[:, None], teacher[:, None], weights)
    assert loss.dtype == ops.attention_loss_backward(1.0, cache).dtype == np.float32
