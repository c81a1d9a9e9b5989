"""Rounding to bfloat16 by a compiled loop, beside ml_dtypes' conversion and every number's two neighbours."""

import numpy as np
import pytest

pytest.importorskip("ml_dtypes")
pytest.importorskip("minibert.kernels.cpu.compiled", reason="Numba is not installed")

import ml_dtypes  # (which also tells NumPy what "bfloat16" is)

from minibert import products
from minibert.kernels.cpu.factors import empty_rows_factor, factor, fill_factor, rows_factor


@pytest.fixture(autouse=True)
def bfloat16(monkeypatch):
    """As if the processor had such products; nothing is multiplied here."""
    monkeypatch.setattr(products, "_name", products.BFLOAT16)


def any_floats(count: int) -> np.ndarray:
    bits = np.random.default_rng(0).integers(0, 1 << 32, count, dtype=np.uint32)
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 3.4e38, -3.4e38, 1e-45, 1.00390625], np.float32)
    return np.concatenate([bits.view(np.float32), special])


def test_each_number_becomes_the_nearest():
    x = any_floats(100_000)
    found = factor(x)
    assert found.dtype == ml_dtypes.bfloat16
    finite = np.isfinite(x) & np.isfinite(found.astype(np.float32))
    upper = (found[finite].view(np.uint16).astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    error = np.abs(upper - x[finite])
    exponent = np.frexp(x[finite].astype(np.float64))[1]
    assert (error <= np.ldexp(0.5, np.maximum(exponent - 8, -133))).all()  # half a unit in the last place
    with np.errstate(all="ignore"):
        expected = x.astype(ml_dtypes.bfloat16)
    numbers = ~np.isnan(x)
    assert np.array_equal(found[numbers].view(np.uint16), expected[numbers].view(np.uint16))
    assert np.isnan(found[~numbers].astype(np.float32)).all()


def test_halves_go_to_the_even_neighbour():
    x = np.array([1 + 2**-8, 1 + 3 * 2**-8, -(1 + 2**-8)], np.float32)
    assert factor(x).astype(np.float32).tolist() == [1.0, 1 + 2**-6, -1.0]


@pytest.mark.parametrize("view", [np.s_[:], np.s_[2:5], np.s_[:, 1:4], np.s_[::-1]])
def test_parts_of_an_array(view):
    x = any_floats(6 * 11 - 9).reshape(6, 11)
    out = empty_rows_factor(x)[:6]
    fill_factor(x[view], out[view])
    with np.errstate(all="ignore"):
        expected = x[view].astype(ml_dtypes.bfloat16)
    assert np.array_equal(out[view].astype(np.float32), expected.astype(np.float32), equal_nan=True)


@pytest.mark.parametrize(("count", "rows"), [(0, 0), (1, 32), (31, 32), (32, 32), (33, 64)])
def test_rows_of_zero_at_the_end(count, rows):
    x = np.random.default_rng(0).standard_normal((count, 5), dtype=np.float32)
    found = rows_factor(x)
    assert found.shape == (rows, 5) and found.dtype == ml_dtypes.bfloat16
    assert np.array_equal(found[:count], x.astype(ml_dtypes.bfloat16))
    assert not found[count:].astype(np.float32).any()


def test_in_single_precision_a_factor_is_the_array_itself(monkeypatch):
    monkeypatch.setattr(products, "_name", products.ONEDNN)
    x = any_floats(50)
    assert factor(x) is x
    rows = x[:50].reshape(10, 5)
    assert rows_factor(rows) is rows and empty_rows_factor(rows) is rows
    fill_factor(x, x)
