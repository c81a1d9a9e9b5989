import numpy as np
import pytest
import scipy.special

from minibert.arrays import to_numpy
from minibert.ops.cross_entropy_loss import cross_entropy, cross_entropy_backward

LABELS = np.array([3, 0, 6, 3, 2])
WEIGHTS = np.array([1.0, 1.0, 0.0, 1.0, 0.0])


@pytest.fixture
def arguments(device, draw):
    return draw(5, 7) * 3.0, device.asarray(LABELS), device.asarray(WEIGHTS)


def test_forward(arguments):
    loss, _ = cross_entropy(*arguments, 3.0)
    log_p = scipy.special.log_softmax(to_numpy(arguments[0]), axis=-1)
    expected = -(log_p[0, 3] + log_p[1, 0] + log_p[3, 3]) / 3
    assert loss.shape == ()
    np.testing.assert_allclose(to_numpy(loss), expected, rtol=1e-14)


def test_backward_is_prediction_minus_truth(arguments):
    _, cache = cross_entropy(*arguments, 3.0)
    dlogits = to_numpy(cross_entropy_backward(2.5, cache))
    p = scipy.special.softmax(to_numpy(arguments[0]), axis=-1)
    for r, j in np.ndindex(5, 7):
        expected = 2.5 / 3 * WEIGHTS[r] * (p[r, j] - (j == LABELS[r]))
        np.testing.assert_allclose(dlogits[r, j], expected, rtol=1e-12, atol=1e-16)


def test_ignored_rows_have_no_say(device, arguments):
    logits, labels, weights = arguments
    loss, _ = cross_entropy(logits, labels, weights, 3.0)
    ignored = device.asarray((1 - WEIGHTS)[:, None] * np.linspace(-900, 900, 7))
    others = device.asarray(np.where(WEIGHTS == 0, 1, LABELS))
    same, cache = cross_entropy(logits + ignored, others, weights, 3.0)
    np.testing.assert_allclose(to_numpy(same), to_numpy(loss), rtol=1e-14)
    assert not to_numpy(cross_entropy_backward(1.0, cache))[WEIGHTS == 0].any()


def test_parts_add_up_with_the_denominator_of_the_whole(device, arguments):
    """Rows 0–1 hold two labels, rows 2–4 one: a mean of means would be another number."""
    logits, labels, weights = arguments
    whole, cache = cross_entropy(logits, labels, weights, 3.0)
    parts = [cross_entropy(logits[s], labels[s], weights[s], 3.0) for s in (slice(0, 2), slice(2, 5))]
    np.testing.assert_allclose(sum(float(loss) for loss, _ in parts), float(whole), rtol=1e-14)
    dparts = [to_numpy(cross_entropy_backward(1.0, part)) for _, part in parts]
    np.testing.assert_allclose(np.vstack(dparts), to_numpy(cross_entropy_backward(1.0, cache)), rtol=1e-14)


def test_a_hopeless_and_a_certain_prediction(device):
    """−log p of 2000 nats is told exactly, where log(exp(−2000)) would be infinite."""
    logits = device.asarray([[0.0, 2000.0], [2000.0, 0.0]], dtype="float64")
    labels, weights = device.asarray([0, 0]), device.asarray([1.0, 1.0], dtype="float64")
    loss, cache = cross_entropy(logits, labels, weights, 1.0)
    assert float(loss) == 2000.0
    assert to_numpy(cross_entropy_backward(1.0, cache)).tolist() == [[-1.0, 1.0], [0.0, 0.0]]


def test_nothing_to_predict(device, draw):
    loss, cache = cross_entropy(draw(2, 7), device.asarray([0, 0]), device.asarray(np.zeros(2)), 1.0)
    assert float(loss) == 0.0
    assert not to_numpy(cross_entropy_backward(1.0, cache)).any()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_dtype_is_kept(device, draw, dtype):
    logits, weights = draw(5, 7, dtype=dtype), device.asarray(WEIGHTS, dtype=dtype)
    loss, cache = cross_entropy(logits, device.asarray(LABELS), weights, 3.0)
    assert loss.dtype == cross_entropy_backward(1.0, cache).dtype == dtype
    assert cross_entropy_backward(loss, cache).dtype == dtype, "dout may be a 0-d array"
