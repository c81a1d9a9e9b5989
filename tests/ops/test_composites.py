"""Each composite is its few primitives in a row: compared with formulas that use none of them."""

import numpy as np
import pytest
import scipy.special
import scipy.stats

from minibert.arrays import to_numpy
from minibert.dropout_bits import dropout_key, random_bits
from minibert.ops import composites
from minibert.ops.attention import attention_bias
from minibert.ops.observed import observed_attention

KEY = dropout_key(seed=1, step=2, micro_batch=0, replica=0, site=3)
MASK = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])  # (B, S)
IDS = np.array([[4, 1, 4, 0, 2], [3, 3, 3, 0, 0]])
TYPES = np.array([[0, 0, 1, 1, 1], [0, 1, 0, 0, 0]])


def norm(x, weight, bias, eps):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps) * weight + bias


def half_dropped(x):
    return np.where(random_bits(np, KEY, x.shape) < 2**15, 0.0, 2.0 * x)


def host(arrays):
    return [to_numpy(array) for array in arrays]


@pytest.fixture
def embed_arguments(device, draw):
    tables = [draw(6, 8), draw(9, 8), draw(2, 8), draw(8), draw(8)]  # V = 6, 9 positions, H = 8
    return [*tables, device.asarray(IDS), device.asarray(TYPES)]


def test_embed(embed_arguments):
    y, _ = composites.embed(*embed_arguments, 0.1, 0.5, KEY)
    words, positions, types, weight, bias = host(embed_arguments[:5])
    total = np.zeros((2, 5, 8))
    for b, s in np.ndindex(2, 5):
        total[b, s] = words[IDS[b, s]] + positions[s] + types[TYPES[b, s]]
    expected = half_dropped(norm(total, weight, bias, 0.1))
    np.testing.assert_allclose(to_numpy(y), expected, rtol=1e-12, atol=1e-13)


def test_embed_backward_sends_the_same_gradient_to_all_three_tables(embed_arguments, draw):
    """With dtotal (B, S, H) that of the sum, word v gets Σ over its places, position s Σ over the batch."""
    _, cache = composites.embed(*embed_arguments, 0.1, 0.0, None)
    dword, dposition, dtype_table, _, dbias = host(composites.embed_backward(dout := draw(2, 5, 8), cache))
    np.testing.assert_allclose(dbias, to_numpy(dout).sum(axis=(0, 1)), rtol=1e-13)
    assert dword.shape == (6, 8) and dposition.shape == (9, 8) and dtype_table.shape == (2, 8)
    assert not dposition[5:].any() and not dword[5].any(), "rows that were not looked up"
    for table in (dposition, dtype_table):
        np.testing.assert_allclose(table.sum(axis=0), dword.sum(axis=0), atol=1e-13)
    # Position 1 was taken by word 1, which stood nowhere else, and in the other sequence by a word 3.
    np.testing.assert_allclose(dposition[1], dword[1] + to_numpy(dword_at(embed_arguments, dout, 1, 1)))


def dword_at(arguments, dout, b, s):
    """What the place (b, s) alone adds to its word's gradient."""
    *tables, ids, types = arguments
    one_id, one_type = ids[b : b + 1, : s + 1], types[b : b + 1, : s + 1]
    _, cache = composites.embed(*tables, one_id, one_type, 0.1, 0.0, None)
    only = dout[b : b + 1, : s + 1] * 1.0
    only[:, :s] = 0.0
    dword, *_ = composites.embed_backward(only, cache)
    return dword[int(to_numpy(ids)[b, s])]


@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "relu", "tanh"])
def test_linear_activation(draw, activation):
    x, weight, bias = draw(2, 3, 8), draw(5, 8), draw(5)
    y, _ = composites.linear_activation(x, weight, bias, activation)
    z = np.einsum("bsk,nk->bsn", to_numpy(x), to_numpy(weight)) + to_numpy(bias)
    expected = {
        "gelu": z * scipy.stats.norm.cdf(z),
        "gelu_new": z * scipy.special.expit(2 * np.sqrt(2 / np.pi) * (z + 0.044715 * z**3)),
        "relu": np.where(z > 0, z, 0),
        "tanh": np.tanh(z),
    }[activation]
    np.testing.assert_allclose(to_numpy(y), expected, rtol=1e-11, atol=1e-13)


def test_dropout_residual_norm(draw):
    x, residual, weight, bias = draw(2, 3, 8), draw(2, 3, 8), draw(8), draw(8)
    y, _ = composites.dropout_residual_norm(x, residual, weight, bias, 0.1, 0.5, KEY)
    x, residual, weight, bias = host((x, residual, weight, bias))
    expected = norm(residual + half_dropped(x), weight, bias, 0.1)
    np.testing.assert_allclose(to_numpy(y), expected, rtol=1e-12, atol=1e-13)


def test_dropout_residual_norm_backward_parts_ways(draw):
    """The residual gets the sum's gradient whole, x the same through the dropout's mask."""
    x, residual, weight, bias, dout = draw(2, 3, 8), draw(2, 3, 8), draw(8), draw(8), draw(2, 3, 8)
    _, cache = composites.dropout_residual_norm(x, residual, weight, bias, 0.1, 0.5, KEY)
    dx, dresidual, *_ = host(composites.dropout_residual_norm_backward(dout, cache))
    np.testing.assert_allclose(dx, half_dropped(dresidual), rtol=1e-14)


@pytest.mark.parametrize("causal", [False, True])
def test_packed_attention_and_its_map(device, draw, causal):
    """Head a's query, key and value are the features a·D to (a+1)·D of each third."""
    qkv = draw(2, 5, 3 * 8)
    bias = attention_bias(device.asarray(MASK), "float64", causal)
    y, _ = composites.packed_attention(qkv, bias, 2, 0.0, None)
    seen = {}
    observed_attention(qkv, bias, 2, 0.0, None, lambda name, value: (seen.setdefault(name, value), None))
    weights = to_numpy(seen["probabilities"])
    q, k, v = np.split(to_numpy(qkv), 3, axis=-1)
    assert weights.shape == (2, 2, 5, 5)
    for b, a, i in np.ndindex(2, 2, 5):
        d = slice(4 * a, 4 * a + 4)
        allowed = (MASK[b] == 1) & ((np.arange(5) <= i) | (not causal))
        scores = np.where(allowed, k[b, :, d] @ q[b, i, d] / 2.0, -np.inf)
        p = scipy.special.softmax(scores)
        np.testing.assert_allclose(weights[b, a, i], p, rtol=1e-12, atol=0)
        np.testing.assert_allclose(to_numpy(y)[b, i, d], p @ v[b, :, d], rtol=1e-12, atol=1e-14)


def test_packed_attention_backward_is_packed_like_the_forward(device, draw):
    """The loss Σ y · dout moves with each third of qkv by what that third of dqkv says."""
    qkv, dout, step = draw(2, 5, 24), draw(2, 5, 8), draw(2, 5, 24)
    bias = attention_bias(device.asarray(MASK), "float64")

    def loss(x):
        return float((composites.packed_attention(x, bias, 2, 0.5, KEY)[0] * dout).sum())

    _, cache = composites.packed_attention(qkv, bias, 2, 0.5, KEY)
    dqkv = composites.packed_attention_backward(dout, cache)
    assert dqkv.shape == qkv.shape
    for third in range(3):
        part = step * 0.0
        part[..., 8 * third : 8 * third + 8] = step[..., 8 * third : 8 * third + 8]
        slope = (loss(qkv + part * 1e-6) - loss(qkv - part * 1e-6)) / 2e-6
        np.testing.assert_allclose(float((dqkv * part).sum()), slope, rtol=1e-7)


def test_masked_lm_loss(device, draw):
    hidden, weight, bias = draw(4, 8), draw(6, 8), draw(6)
    labels, label_weights = device.asarray([5, 0, 5, 1]), device.asarray([1.0, 1.0, 0.0, 1.0])
    loss, cache = composites.masked_lm_loss(hidden, weight, bias, labels, label_weights, 7.0)
    log_p = scipy.special.log_softmax(to_numpy(hidden) @ to_numpy(weight).T + to_numpy(bias), axis=-1)
    assert loss.shape == ()
    np.testing.assert_allclose(float(loss), -(log_p[0, 5] + log_p[1, 0] + log_p[3, 1]) / 7.0, rtol=1e-13)

    dhidden, dweight, dbias = host(composites.masked_lm_loss_backward(2.0, cache))
    error = np.exp(log_p) - np.eye(6)[[5, 0, 5, 1]]  # prediction minus truth
    error *= np.array([1.0, 1.0, 0.0, 1.0])[:, None] * 2.0 / 7.0
    np.testing.assert_allclose(dhidden, error @ to_numpy(weight), rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(dweight, error.T @ to_numpy(hidden), rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(dbias, error.sum(axis=0), rtol=1e-12, atol=1e-15)


def test_dtypes_are_kept_in_float32(device, draw):
    def single(*shape):
        return draw(*shape, dtype="float32")

    ids, types = device.asarray(IDS), device.asarray(TYPES)
    bias = attention_bias(device.asarray(MASK), "float32")
    labels, weights = device.asarray([1, 2]), device.asarray([1.0, 0.0], dtype="float32")
    tables = (single(6, 8), single(9, 8), single(2, 8), single(8), single(8))
    calls = {
        "embed": (*tables, ids, types, 1e-12, 0.1, KEY),
        "linear_activation": (single(2, 8), single(5, 8), single(5), "gelu"),
        "dropout_residual_norm": (single(3, 8), single(3, 8), single(8), single(8), 1e-12, 0.1, KEY),
        "packed_attention": (single(2, 5, 24), bias, 2, 0.1, KEY),
        "masked_lm_loss": (single(2, 8), single(6, 8), single(6), labels, weights, 3),
    }
    for name, arguments in calls.items():
        y, cache = getattr(composites, name)(*arguments)
        gradients = getattr(composites, f"{name}_backward")(y, cache)
        gradients = gradients if isinstance(gradients, tuple) else (gradients,)
        assert {array.dtype.name for array in (y, *gradients)} == {"float32"}, name
