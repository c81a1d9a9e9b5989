import numpy as np
import pytest
import scipy.special

from minibert.arrays import to_numpy
from minibert.ops.answer_span_loss import span_loss, span_loss_backward

POSITIONS = np.array([[1, 0, 4], [3, 0, 4]])  # starts, ends
WEIGHTS = np.array([[0.5, 0.0, 0.5], [0.25, 0.25, 0.0]])


def test_forward_and_backward_by_the_definition(device, draw):
    logits = draw(3, 5, 2)
    loss, cache = span_loss(logits, device.asarray(POSITIONS), device.asarray(WEIGHTS))
    log_p = scipy.special.log_softmax(to_numpy(logits), axis=1)  # over the tokens
    expected, dexpected = 0.0, np.zeros((3, 5, 2))
    for side, b in np.ndindex(2, 3):
        weight, position = 0.5 * WEIGHTS[side, b], POSITIONS[side, b]
        expected -= weight * log_p[b, position, side]
        dexpected[b, :, side] = weight * (np.exp(log_p[b, :, side]) - (np.arange(5) == position))
    np.testing.assert_allclose(to_numpy(loss), expected, rtol=1e-14)
    np.testing.assert_allclose(to_numpy(span_loss_backward(3.0, cache)), 3.0 * dexpected, rtol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_dtype_is_kept(device, draw, dtype):
    weights = device.asarray(WEIGHTS, dtype=dtype)
    loss, cache = span_loss(draw(3, 5, 2, dtype=dtype), device.asarray(POSITIONS), weights)
    assert loss.dtype == span_loss_backward(1.0, cache).dtype == dtype
