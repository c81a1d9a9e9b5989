import numpy as np
import pytest

from minibert import ops
from minibert.arrays import to_numpy

B, S, A, D = 2, 7, 3, 8  # H = 24
THETA = 10000.0


def by_complex_numbers(x, position):
    """One head's features (D,) at a position, as D/2 complex numbers times e^(i φ)."""
    half = x.shape[-1] // 2
    angles = position * THETA ** (-2.0 * np.arange(half) / x.shape[-1])
    turned = (x[:half] + 1j * x[half:]) * np.exp(1j * angles)
    return np.concatenate([turned.real, turned.imag])


def test_forward_turns_the_points_of_each_head(draw):
    qkv = draw(B, S, 3 * A * D)
    y, _ = ops.rotary_embedding(qkv, A)
    before, after = (to_numpy(array).reshape(B, S, 3, A, D) for array in (qkv, y))
    np.testing.assert_array_equal(after[:, :, 2], before[:, :, 2])  # values
    for b, s, part, head in np.ndindex(B, S, 2, A):
        expected = by_complex_numbers(before[b, s, part, head], s)
        np.testing.assert_allclose(after[b, s, part, head], expected, rtol=0, atol=1e-14)


def test_the_first_position_stays(draw):
    qkv = draw(B, S, 3 * A * D)
    np.testing.assert_array_equal(to_numpy(ops.rotary_embedding(qkv, A)[0])[:, 0], to_numpy(qkv)[:, 0])


def test_scores_depend_on_the_distance_alone(device):
    """The same query and key at every position: q·k is constant along each diagonal, and not over them."""
    one = np.random.default_rng(0).normal(size=(1, 1, 3 * D))
    y, _ = ops.rotary_embedding(device.asarray(np.repeat(one, S, axis=1)), 1)
    q, k, _ = np.split(to_numpy(y)[0], 3, axis=1)
    scores = q @ k.T  # (S, S)
    for distance in range(-S + 1, S):
        diagonal = np.diagonal(scores, distance)
        np.testing.assert_allclose(diagonal, diagonal[0], rtol=1e-13, atol=1e-13)
    assert np.ptp(scores[0]) > 0.1
    assert abs(scores[0, 1] - scores[1, 0]) > 0.1  # left is not right


def test_the_backward_turns_back(draw):
    qkv = draw(B, S, 3 * A * D)
    y, cache = ops.rotary_embedding(qkv, A)
    np.testing.assert_allclose(
        to_numpy(ops.rotary_embedding_backward(y, cache)), to_numpy(qkv), rtol=0, atol=1e-14
    )


def test_the_input_is_not_changed(draw):
    qkv = draw(B, S, 3 * A * D)
    before = to_numpy(qkv).copy()
    _, cache = ops.rotary_embedding(qkv, A)
    dout = draw(B, S, 3 * A * D)
    dout_before = to_numpy(dout).copy()
    ops.rotary_embedding_backward(dout, cache)
    np.testing.assert_array_equal(to_numpy(qkv), before)
    np.testing.assert_array_equal(to_numpy(dout), dout_before)


def test_views_are_turned_like_copies(draw):
    wide = draw(S, B, 3 * A * D + 5)
    view = wide.transpose(1, 0, 2)[..., 5:]
    np.testing.assert_array_equal(
        to_numpy(ops.rotary_embedding(view, A)[0]), to_numpy(ops.rotary_embedding(view.copy(), A)[0])
    )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_dtype_is_kept(draw, dtype):
    y, cache = ops.rotary_embedding(draw(B, S, 3 * A * D, dtype=dtype), A)
    assert y.dtype == ops.rotary_embedding_backward(y, cache).dtype == dtype


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_16_bits_are_turned_in_float32(draw, dtype):
    pytest.importorskip("ml_dtypes")
    qkv = draw(B, S, 3 * A * D, dtype="float32").astype(dtype)
    y, cache = ops.rotary_embedding(qkv, A)
    wide, wide_cache = ops.rotary_embedding(qkv.astype("float32"), A)
    np.testing.assert_array_equal(to_numpy(y), to_numpy(wide.astype(dtype)))
    dqkv = ops.rotary_embedding_backward(y, cache)
    expected = ops.rotary_embedding_backward(y.astype("float32"), wide_cache)
    assert dqkv.dtype.name == dtype
    np.testing.assert_array_equal(to_numpy(dqkv), to_numpy(expected.astype(dtype)))


def test_float32_is_near_float64_at_far_positions(draw):
    """The angles are computed in float32, as in transformers. The largest difference here is 5e-5."""
    qkv = draw(1, 512, 3 * A * D)
    exact = to_numpy(ops.rotary_embedding(qkv, A)[0])
    rounded = to_numpy(ops.rotary_embedding(qkv.astype("float32"), A)[0])
    np.testing.assert_allclose(rounded, exact, rtol=0, atol=2e-4)
