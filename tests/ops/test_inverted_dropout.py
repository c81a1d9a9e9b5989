import numpy as np
import pytest

from minibert.arrays import to_numpy
from minibert.dropout_bits import dropout_key, random_bits
from minibert.ops.inverted_dropout import dropout, dropout_backward, dropout_mask

KEY = dropout_key(seed=1, step=2, micro_batch=0, replica=0, site=3)


def test_off_without_a_key_or_at_probability_zero(draw):
    x, dout = draw(3, 4), draw(3, 4)
    for probability, key in ((0.5, None), (0.0, KEY)):
        y, cache = dropout(x, probability, key)
        assert y is x
        assert dropout_backward(dout, cache) is dout


@pytest.mark.parametrize("probability", [0.1, 0.5, 0.9])
def test_share_of_dropped_elements_and_scale(device, probability):
    """Within six deviations √(p(1 − p)/n) of p; what stays is scaled so that the mean stays."""
    count = 2**20
    y, _ = dropout(device.asarray(np.ones(count)), probability, KEY)
    y = to_numpy(y)
    deviation = np.sqrt(probability * (1 - probability) / count)
    assert abs((y == 0).mean() - probability) < 6 * deviation
    scale = 2**16 / (2**16 - round(probability * 2**16))
    assert set(np.unique(y)) == {0.0, scale}
    assert abs(scale - 1 / (1 - probability)) < 1e-4 / (1 - probability)
    assert abs(y.mean() - 1) < 6 * deviation / (1 - probability)


def test_an_element_is_dropped_where_its_bits_are_below_the_threshold(device):
    """One that is at it stays, so that p = k/2¹⁶ drops k of the 2¹⁶ values."""
    bits = random_bits(np, KEY, (5, 7))
    for probability in (0.25, int(bits[2, 3]) / 2**16):
        mask = to_numpy(dropout_mask(device.xp, (5, 7), "float64", probability, KEY))
        expected = np.where(bits < probability * 2**16, 0.0, 1 / (1 - probability))
        np.testing.assert_allclose(mask, expected, rtol=1e-15)


def test_backward_has_the_mask_of_the_forward(draw):
    x, dout = draw(6, 5), draw(6, 5)
    y, cache = dropout(x, 0.3, KEY)
    mask = to_numpy(y) / to_numpy(x)
    np.testing.assert_allclose(to_numpy(dropout_backward(dout, cache)), to_numpy(dout) * mask, rtol=1e-14)


def test_a_function_of_the_key_alone(draw):
    x = draw(50, 50)
    first = to_numpy(dropout(x, 0.5, KEY)[0])
    dropout(x, 0.5, dropout_key(9, 9, 9, 9, 9))
    np.testing.assert_array_equal(to_numpy(dropout(x, 0.5, KEY)[0]), first)
    other = to_numpy(dropout(x, 0.5, dropout_key(1, 3, 0, 0, 3))[0])
    assert ((first == 0) != (other == 0)).mean() == pytest.approx(0.5, abs=6 * 0.5 / 50)


@pytest.mark.parametrize("probability", [1e-9, 0.99999, 1 - 1e-12])
def test_probabilities_that_round_to_never_and_to_always(draw, probability):
    """Below 2⁻¹⁷ nothing is dropped; near 1 one element in 2¹⁶ stays, for its scale to exist."""
    y, _ = dropout(draw(1000), probability, KEY)
    y = to_numpy(y)
    assert np.isfinite(y).all()
    assert (y == 0).any() == (probability > 0.5)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_dtype_and_shape_are_kept(draw, dtype):
    y, cache = dropout(draw(2, 3, 4, dtype=dtype), 0.5, KEY)
    dx = dropout_backward(y, cache)
    assert y.shape == dx.shape == (2, 3, 4)
    assert y.dtype == dx.dtype == dtype
