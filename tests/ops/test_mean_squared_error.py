import numpy as np
import pytest

from minibert.arrays import to_numpy
from minibert.ops.mean_squared_error import squared_error, squared_error_backward


def test_by_hand(device):
    predictions, targets = device.asarray([[1.0], [4.0], [-2.0]]), device.asarray([[0.0], [4.0], [1.0]])
    loss, cache = squared_error(predictions, targets, 5.0)
    assert loss.shape == ()
    assert float(loss) == (1.0 + 0.0 + 9.0) / 5.0
    np.testing.assert_allclose(to_numpy(squared_error_backward(10.0, cache)), [[4.0], [0.0], [-12.0]])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_dtype_is_kept(draw, dtype):
    loss, cache = squared_error(draw(4, 2, dtype=dtype), draw(4, 2, dtype=dtype), 3.0)
    assert loss.dtype == squared_error_backward(1.0, cache).dtype == dtype
    assert squared_error_backward(loss, cache).dtype == dtype
