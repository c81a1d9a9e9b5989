"""In bfloat16 the kernels compute a few more rows than there are: products then have few different shapes."""

import numpy as np
import pytest

pytest.importorskip("ml_dtypes")
pytest.importorskip("minibert.kernels.cpu.compiled", reason="Numba is not installed")

import ml_dtypes  # noqa: F401  (it tells NumPy what "bfloat16" is)

from minibert import products
from minibert.kernels.cpu.gelu import linear_activation, linear_activation_backward
from minibert.kernels.cpu.linear import linear, linear_backward
from minibert.kernels.cpu.masked_lm_loss import masked_lm_loss, masked_lm_loss_backward
from minibert.products import use_products

COUNT, ROWS, WIDE, NARROW = 37, 64, 48, 24


@pytest.fixture
def multiplied(monkeypatch) -> list[tuple[int, ...]]:
    """The library "bfloat16", computed by NumPy on any processor, and the shapes that it multiplied."""
    shapes = []

    def multiply(a, b, out):
        shapes.append((*a.shape, b.shape[1]))
        np.matmul(a.astype(np.float32), b.astype(np.float32), out=out)

    monkeypatch.setitem(products.LIBRARIES, "bfloat16", lambda: multiply)
    use_products("bfloat16")
    yield shapes
    use_products("numpy")


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def by_linear(x, dout, weight, bias):
    y, cache = linear(x, weight, bias)
    return y, *linear_backward(dout, cache)


def by_linear_activation(x, dout, weight, bias):
    y, cache = linear_activation(x, weight, bias, "gelu")
    return y, *linear_activation_backward(dout, cache)


def by_loss(x, dout, weight, bias):
    """The loss of these rows; the labels and their weights follow from ``dout``, 0 where that is 0."""
    labels, weights = np.abs(dout[:, 0] * 10).astype(np.int64) % len(weight), np.abs(dout[:, 1])
    loss, cache = masked_lm_loss(x, weight, bias, labels, weights, 3.0)
    return loss, *masked_lm_loss_backward(1.5, cache)


@pytest.mark.parametrize("compute", [by_linear, by_linear_activation, by_loss])
def test_the_same_as_with_rows_of_zero(multiplied, compute):
    """What the kernels add to 37 rows changes nothing: y, dx (37, …), dW and db are those of 64 rows."""
    x, dout = np.zeros((ROWS, NARROW), np.float32), np.zeros((ROWS, WIDE), np.float32)
    x[:COUNT], dout[:COUNT] = draw(COUNT, NARROW, seed=1), draw(COUNT, WIDE, seed=2)
    weight, bias = draw(WIDE, NARROW, seed=3), draw(WIDE, seed=4)
    found = compute(x[:COUNT], dout[:COUNT], weight, bias)
    shapes = list(multiplied)
    multiplied.clear()
    expected = compute(x, dout, weight, bias)
    assert sorted(shapes) == sorted(multiplied)  # threads may begin in either order
    for got, right in zip(found, expected, strict=True):
        right = right[:COUNT] if got.shape != right.shape else right
        assert np.linalg.norm(got - right) <= 1e-6 * np.linalg.norm(right)
    use_products("numpy")
    for got, right in zip(found, compute(x[:COUNT], dout[:COUNT], weight, bias), strict=True):
        assert np.shape(got) == np.shape(right)
        assert np.linalg.norm(got - right) < 0.01 * np.linalg.norm(right)


def test_batches_of_similar_size_have_products_of_the_same_shapes(multiplied):
    weight, bias = draw(WIDE, NARROW), draw(WIDE)
    seen = set()
    for count in range(33, 65):
        for compute in (by_linear, by_linear_activation, by_loss):
            compute(draw(count, NARROW), draw(count, WIDE), weight, bias)
        seen.add(tuple(sorted(multiplied)))
        multiplied.clear()
    assert len(seen) == 1


@pytest.mark.parametrize("compute", [linear, lambda *a: linear_activation(*a, "gelu")])
def test_no_rows(multiplied, compute):
    y, _ = compute(draw(0, NARROW), draw(WIDE, NARROW), draw(WIDE))
    assert y.shape == (0, WIDE)
