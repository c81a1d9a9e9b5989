"""Which library an array belongs to."""

import numpy as np
import pytest
import scipy.special
import scipy.stats

from minibert.arrays import add_rows, erf, get_array_module, to_numpy


def test_module_of_an_array(xp):
    assert get_array_module(xp.zeros(3)) is xp
    assert get_array_module(xp.zeros(3).sum()) is xp, "also of a 0-d array"
    assert get_array_module(np.float32(1)) is np


@pytest.mark.parametrize("thing", [[1.0], 1.0, 1, None, "x", (1,)])
def test_what_is_no_array(thing):
    name = type(thing).__name__
    with pytest.raises(TypeError, match=f"expected a NumPy or CuPy array, got {name}"):
        get_array_module(thing)
    with pytest.raises(TypeError, match=f"expected a NumPy or CuPy array, got {name}"):
        to_numpy(thing)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
def test_to_the_device_and_back(device, dtype):
    host = np.arange(6).reshape(2, 3).astype(dtype)
    there = device.asarray(host)
    assert isinstance(there, device.xp.ndarray)
    back = to_numpy(there)
    assert type(back) is np.ndarray and back.dtype == dtype
    np.testing.assert_array_equal(back, host)
    assert to_numpy(device.asarray([[1, 2]], dtype=dtype)).dtype == dtype, "from a list"
    assert device.asarray(there, dtype="float32").dtype == "float32", "from an array that is there already"


def test_erf(device):
    x = np.linspace(-6, 6, 101)
    np.testing.assert_allclose(to_numpy(erf(device.asarray(x))), scipy.special.erf(x), rtol=1e-14, atol=0)
    assert erf(device.asarray(x, dtype="float32")).dtype == "float32"


@pytest.mark.parametrize("count", [0, 1, 2, 300])
def test_rows_are_added_up_in_the_same_order_every_time(device, count):
    rng = np.random.default_rng(count)
    table, rows = rng.standard_normal((9, 4)), rng.integers(0, 9, count)
    values = rng.standard_normal((count, 4))
    values[:1] = np.inf  # stays with the row that it is added to
    expected = table.copy()
    np.add.at(expected, rows, values)
    results = []
    for _ in range(2):
        there = device.asarray(table.copy())
        add_rows(there, device.asarray(rows), device.asarray(values))
        results.append(to_numpy(there))
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_allclose(results[0], expected, rtol=1e-12, atol=1e-13)
