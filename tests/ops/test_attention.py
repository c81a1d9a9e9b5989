import math

import numpy as np
import pytest
import scipy.special

from minibert.arrays import to_numpy
from minibert.dropout_bits import dropout_key
from minibert.ops.attention import (
    attention,
    attention_backward,
    attention_bias,
    attention_scores,
    merge_heads,
    split_heads,
)

KEY = dropout_key(seed=1, step=2, micro_batch=0, replica=0, site=3)
MASK = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])  # (B, S)


@pytest.fixture
def qkv(draw):
    return [draw(2, 3, 5, 4) for _ in range(3)]  # (B, A, S, D)


def expected_weights(q, k, allowed):
    """Query by query: the softmax over the allowed keys alone, 0 for the others. allowed (B, S, S)."""
    weights = np.zeros((*q.shape[:3], k.shape[2]))
    for b, a, i in np.ndindex(q.shape[:3]):
        keys = np.flatnonzero(allowed[b, i])
        scores = [sum(q[b, a, i] * k[b, a, j]) / math.sqrt(q.shape[-1]) for j in keys]
        weights[b, a, i, keys] = scipy.special.softmax(scores)
    return weights


@pytest.mark.parametrize("causal", [False, True])
def test_forward_by_explicit_loops(device, qkv, causal):
    bias = attention_bias(device.asarray(MASK), "float64", causal)
    y, _ = attention(*qkv, bias, 0.0, None)
    q, k, v = (to_numpy(x) for x in qkv)
    allowed = np.repeat(MASK[:, None, :] == 1, 5, axis=1)
    if causal:
        allowed &= np.tril(np.ones((5, 5), bool))
    weights = expected_weights(q, k, allowed)
    expected = np.zeros_like(v)
    for b, a, i, j in np.ndindex(2, 3, 5, 5):
        expected[b, a, i] += weights[b, a, i, j] * v[b, a, j]
    np.testing.assert_allclose(to_numpy(y), expected, rtol=1e-12, atol=1e-14)


def test_dropout_acts_on_the_weights(device, qkv):
    """With v = 1 in one place, the output shows one column of the dropped weights: 0 or p/(1 − ½)."""
    q, k, v = qkv
    v = v * 0.0 + 1.0
    bias = attention_bias(device.asarray(MASK), "float64")
    for j in range(3):
        one = np.zeros(v.shape)
        one[:, :, j] = 1.0
        plain = to_numpy(attention(q, k, device.asarray(one), bias, 0.0, None)[0])
        dropped = to_numpy(attention(q, k, device.asarray(one), bias, 0.5, KEY)[0])
        ratio = dropped / plain
        assert np.isclose(ratio, 0).any() and np.isclose(ratio, 2).any()
        assert (np.isclose(ratio, 0) | np.isclose(ratio, 2)).all()


def test_bias_is_zero_or_minus_ten_thousand(device):
    mask = device.asarray(MASK)
    bias = to_numpy(attention_bias(mask, "float64"))
    assert bias.shape == (2, 1, 1, 5)
    np.testing.assert_array_equal(bias[:, 0, 0], np.where(MASK == 1, 0.0, -10000.0))
    causal = to_numpy(attention_bias(mask, "float64", causal=True))
    assert causal.shape == (2, 1, 5, 5)
    for b, i, j in np.ndindex(2, 5, 5):
        assert (causal[b, 0, i, j] == 0) == (MASK[b, j] == 1 and j <= i)
        assert causal[b, 0, i, j] == 0 or causal[b, 0, i, j] <= -10000


def test_padding_gets_no_weight_and_has_no_influence(device, qkv):
    q, k, v = qkv
    bias = attention_bias(device.asarray(MASK), "float64")
    y, cache = attention(q, k, v, bias, 0.0, None)
    padding = device.asarray((1 - MASK)[:, None, :, None] * 1e3, dtype="float64")
    other, _ = attention(q, k + padding, v + padding, bias, 0.0, None)
    np.testing.assert_allclose(to_numpy(other), to_numpy(y), rtol=1e-13)
    _, dk, dv = (to_numpy(gradient) for gradient in attention_backward(y, cache))
    assert not dk[1, :, 3:].any() and not dv[1, :, 3:].any()
    assert dk[1, :, :3].all() and dv[1, :, :3].all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_row_without_any_key_stays_finite(device, draw, dtype):
    """All padding: the constant cancels, so the weights are those without a mask, and not 0/0."""
    q, k, v = (draw(1, 2, 3, 4, dtype=dtype) for _ in range(3))
    nothing = attention_bias(device.asarray([[0, 0, 0]]), dtype)
    everything = attention_bias(device.asarray([[1, 1, 1]]), dtype)
    y, cache = attention(q, k, v, nothing, 0.0, None)
    expected, _ = attention(q, k, v, everything, 0.0, None)
    # −10000 + score keeps the score to 10000 times the precision.
    tolerance = {"float32": 5e-3, "float64": 1e-11}[dtype]
    np.testing.assert_allclose(to_numpy(y), to_numpy(expected), rtol=tolerance, atol=tolerance)
    assert all(np.isfinite(to_numpy(gradient)).all() for gradient in attention_backward(y, cache))


def test_huge_scores_pick_one_key(device, draw):
    """Scores of ±10⁶ saturate the softmax; it neither overflows nor loses a gradient to NaN."""
    q, k, v = draw(1, 1, 4, 8) * 1e3, draw(1, 1, 4, 8) * 1e3, draw(1, 1, 4, 8)
    bias = attention_bias(device.asarray([[1, 1, 1, 1]]), "float64")
    y, cache = attention(q, k, v, bias, 0.0, None)
    best = to_numpy(attention_scores(q, k, bias)).argmax(axis=-1)[0, 0]
    np.testing.assert_allclose(to_numpy(y)[0, 0], to_numpy(v)[0, 0, best], rtol=1e-12)
    assert all(np.isfinite(to_numpy(gradient)).all() for gradient in attention_backward(y, cache))


def test_heads(draw):
    x = draw(2, 5, 12)
    heads = split_heads(x, 3)
    assert heads.shape == (2, 3, 5, 4)
    for a in range(3):
        np.testing.assert_array_equal(to_numpy(heads)[:, a], to_numpy(x)[:, :, 4 * a : 4 * a + 4])
    np.testing.assert_array_equal(to_numpy(merge_heads(heads)), to_numpy(x))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_dtype_is_kept(device, draw, dtype):
    q, k, v = (draw(2, 3, 5, 4, dtype=dtype) for _ in range(3))
    for causal in (False, True):
        bias = attention_bias(device.asarray(MASK), dtype, causal)
        y, cache = attention(q, k, v, bias, 0.5, KEY)
        assert {a.dtype.name for a in (bias, y, *attention_backward(y, cache))} == {dtype}
