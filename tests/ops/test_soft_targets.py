"""The loss of distillation."""

import numpy as np
import pytest

from minibert import ops
from minibert.arrays import to_numpy


def test_the_divergence_by_hand(device):
    """Of (1/2, 1/2) from (3/4, 1/4), at temperature 1, and the same scores at temperature 2."""
    logits, teacher = device.asarray(np.zeros((1, 2))), device.asarray(np.log([[0.75, 0.25]]))
    loss, _ = ops.soft_cross_entropy(logits, teacher, 1.0, 1.0)
    assert float(to_numpy(loss)) == pytest.approx(0.75 * np.log(1.5) + 0.25 * np.log(0.5))
    q = np.sqrt([0.75, 0.25]) / np.sqrt([0.75, 0.25]).sum()
    loss, _ = ops.soft_cross_entropy(logits, teacher, 2.0, 3.0)
    assert float(to_numpy(loss)) == pytest.approx(4 / 3 * (q * np.log(2 * q)).sum())


def test_who_agrees_with_the_teacher_has_no_loss_and_no_gradient(draw):
    logits = draw(4, 5)
    loss, cache = ops.soft_cross_entropy(logits, logits + 3.0, 2.5, 4.0)  # a constant changes nothing
    assert float(to_numpy(loss)) == pytest.approx(0.0, abs=1e-12)
    np.testing.assert_allclose(to_numpy(ops.soft_cross_entropy_backward(1.0, cache)), 0.0, atol=1e-12)


def test_a_teacher_who_is_certain_is_a_label(draw, device):
    """With scores far apart and temperature 1 it is the cross-entropy, and so is its gradient."""
    logits, labels = draw(3, 4), device.asarray(np.array([1, 3, 0]))
    certain = np.zeros((3, 4))
    certain[[0, 1, 2], [1, 3, 0]] = 1000.0
    loss, cache = ops.soft_cross_entropy(logits, device.asarray(certain), 1.0, 3.0)
    expected, expected_cache = ops.cross_entropy(logits, labels, device.asarray(np.ones(3)), 3.0)
    assert float(to_numpy(loss)) == pytest.approx(float(to_numpy(expected)))
    np.testing.assert_allclose(
        to_numpy(ops.soft_cross_entropy_backward(2.0, cache)),
        to_numpy(ops.cross_entropy_backward(2.0, expected_cache)),
        atol=1e-12,
    )


def test_single_precision_stays(draw):
    loss, cache = ops.soft_cross_entropy(draw(3, 4, dtype="float32"), draw(3, 4, dtype="float32"), 2.0, 3.0)
    assert loss.dtype == ops.soft_cross_entropy_backward(1.0, cache).dtype == np.float32
