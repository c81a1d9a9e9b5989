"""The sum of the derivatives of two paths."""

import numpy as np
import pytest

from minibert import ops
from minibert.arrays import to_numpy


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_the_sum_is_in_the_first_array_and_keeps_its_dtype(device, dtype):
    rng = np.random.default_rng(0)
    first, second = (rng.standard_normal((2, 3, 5)).astype(dtype) for _ in range(2))
    total = device.asarray(first.copy())
    with ops.reference_only():
        assert ops.add_derivative(total, device.asarray(second)) is total
    assert total.dtype == dtype
    np.testing.assert_array_equal(to_numpy(total), first + second)
