import numpy as np
import pytest

from minibert.arrays import to_numpy
from minibert.ops.pooling import POOLING

MASK = np.array([[1, 1, 1, 1], [1, 1, 0, 0], [0, 1, 1, 0], [0, 1, 0, 1]])  # whole, padded, with holes
DEFINITION = {
    "cls": lambda hidden, mask: hidden[0],
    "mean": lambda hidden, mask: hidden[mask == 1].mean(axis=0),
    "max": lambda hidden, mask: hidden[mask == 1].max(axis=0),
    "lasttoken": lambda hidden, mask: hidden[mask == 1][-1],
}


@pytest.fixture
def mask(device):
    return device.asarray(MASK, dtype="float64")


def test_every_pooling_has_a_definition():
    assert DEFINITION.keys() == POOLING.keys()


@pytest.mark.parametrize("name", POOLING)
def test_forward(draw, mask, name):
    hidden = draw(4, 4, 5) - 2.0  # mostly negative, so that a maximum of 0 would be padding's
    y, _ = POOLING[name][0](hidden, mask)
    expected = [DEFINITION[name](*row) for row in zip(to_numpy(hidden), MASK, strict=True)]
    np.testing.assert_allclose(to_numpy(y), expected, rtol=1e-14)


@pytest.mark.parametrize("name", ["mean", "max", "lasttoken"])
def test_padding_has_neither_influence_nor_gradient(device, draw, mask, name):
    forward, backward = POOLING[name]
    hidden = draw(4, 4, 5)
    y, cache = forward(hidden, mask)
    noise = device.asarray(1e3 * (1 - MASK)[:, :, None], dtype="float64")
    np.testing.assert_array_equal(to_numpy(forward(hidden + noise, mask)[0]), to_numpy(y))
    assert not to_numpy(backward(y, cache))[MASK == 0].any()


def test_without_a_mask_the_last_token_is_that_of_the_row(draw):
    hidden = draw(4, 4, 5)
    np.testing.assert_array_equal(to_numpy(POOLING["lasttoken"][0](hidden)[0]), to_numpy(hidden)[:, -1])


def test_the_gradient_of_a_maximum_goes_to_one_token(device):
    """To the first of equals."""
    forward, backward = POOLING["max"]
    hidden = device.asarray([[[1.0, 5.0], [3.0, 5.0], [3.0, 9.0]]])
    y, cache = forward(hidden, device.asarray([[1.0, 1.0, 0.0]]))
    assert to_numpy(y).tolist() == [[3.0, 5.0]]
    dhidden = backward(device.asarray([[7.0, 8.0]]), cache)
    assert to_numpy(dhidden).tolist() == [[[0.0, 8.0], [7.0, 0.0], [0.0, 0.0]]]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", POOLING)
def test_dtype_is_kept(device, draw, name, dtype):
    forward, backward = POOLING[name]
    y, cache = forward(draw(4, 4, 5, dtype=dtype), device.asarray(MASK, dtype=dtype))
    assert y.dtype == backward(y, cache).dtype == dtype
