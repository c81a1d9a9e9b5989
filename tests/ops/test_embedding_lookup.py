import numpy as np
import pytest

from minibert.arrays import to_numpy
from minibert.ops.embedding_lookup import embedding, embedding_backward


@pytest.mark.parametrize("shape", [(), (4,), (2, 3), (0,)])
def test_forward_looks_rows_up(device, draw, shape):
    weight = draw(10, 5)
    ids = np.random.default_rng(1).integers(0, 10, shape)
    y, _ = embedding(weight, device.asarray(ids))
    assert y.shape == (*shape, 5)
    for place in np.ndindex(shape):
        np.testing.assert_array_equal(to_numpy(y)[place], to_numpy(weight)[ids[place]])


def test_backward_adds_up_what_repeated_ids_get(device, draw):
    ids = np.array([[3, 3, 0], [9, 3, 0]])
    dout = draw(2, 3, 5)
    _, cache = embedding(draw(10, 5), device.asarray(ids))
    dweight = to_numpy(embedding_backward(dout, cache))
    expected = np.zeros((10, 5))
    for place in np.ndindex(ids.shape):
        expected[ids[place]] += to_numpy(dout)[place]
    np.testing.assert_allclose(dweight, expected, rtol=1e-14, atol=0)
    assert not dweight[[1, 2, 4, 5, 6, 7, 8]].any()


def test_a_step_of_many_equal_ids(device):
    """Ten thousand times the same id: each of its gradients counts."""
    ids = device.asarray(np.full(10_000, 2))
    _, cache = embedding(device.asarray(np.zeros((4, 3)), "float32"), ids)
    dweight = to_numpy(embedding_backward(device.asarray(np.ones((10_000, 3)), "float32"), cache))
    assert dweight.tolist() == [[0.0] * 3, [0.0] * 3, [10_000.0] * 3, [0.0] * 3]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_dtype_is_kept(device, draw, dtype):
    y, cache = embedding(draw(4, 3, dtype=dtype), device.asarray([1, 1, 0]))
    assert y.dtype == embedding_backward(y, cache).dtype == dtype
