"""The CUDA kernels over all forms of arguments: attention's bias above all, and what they have to decline."""

import numpy as np
import pytest

pytest.importorskip("hypothesis")

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from minibert import ops
from minibert.arrays import to_numpy
from minibert.dropout_bits import dropout_key
from minibert.kernels.cuda import DTYPES, PAIRS, attention
from minibert.ops import composites

BOUND = 2e-6  # relative error by norm against the reference in float64
KEY = dropout_key(7, 1, 0, 0, 3)


@st.composite
def attentions(draw):
    """qkv, a bias that is broadcast to (B, A, S, S) in any way, heads, probability, key."""
    batch, heads, size = draw(st.tuples(*[st.sampled_from([2, 1, 3])] * 3))
    length = draw(st.sampled_from([5, 1, 4, 8, 37]))
    shape = [draw(st.sampled_from([n, 1])) for n in (batch, heads, length, length)]
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    bias = rng.standard_normal(shape[draw(st.integers(0, 4)) :]).astype("float32")
    if draw(st.booleans()) and bias.ndim:
        bias = np.broadcast_to(bias[..., ::-1], bias.shape)  # with strides of its own
    qkv = rng.standard_normal((batch, length, 3 * heads * size)).astype("float32")
    return qkv, bias, heads, draw(st.sampled_from([0.0, 0.1])), KEY


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(attentions())
def test_attention_with_any_bias(xp, arguments):
    kernel = ops.TABLE["packed_attention"].kernels["cupy", "float32"]
    qkv, bias, *rest = arguments
    given_arrays = xp.asarray(qkv), xp.asarray(bias)
    assert kernel.accepts(*given_arrays, *rest)
    y, cache = attention.packed_attention(*given_arrays, *rest)
    dout = np.random.default_rng(0).standard_normal(y.shape).astype("float32")
    dqkv = attention.packed_attention_backward(xp.asarray(dout), cache)
    expected, cache = composites.packed_attention(qkv.astype("float64"), bias.astype("float64"), *rest)
    expected_dqkv = composites.packed_attention_backward(dout.astype("float64"), cache)
    for got, right in ((y, expected), (dqkv, expected_dqkv)):
        error = np.linalg.norm(to_numpy(got) - right)
        # With one key all digits of dq and dk cancel: they are 0, and what is left is the rounding of dp.
        assert error <= BOUND * (np.linalg.norm(right) + np.linalg.norm(dout))


def ordinary():
    """For each pair, arguments that its kernel takes."""
    rng = np.random.default_rng(0)
    x, weight, ids = (
        rng.standard_normal((2, 3, 4)),
        rng.standard_normal((5, 4)),
        np.array([[0, 1, 2], [2, 1, 0]]),
    )
    rows, labels, weights = rng.standard_normal((6, 4)), np.arange(6) % 4, np.ones(6)
    norm = weight[0], weight[1], 0.1
    dropped = 0.1, KEY
    return {
        "linear": (x, weight, weight[:, 0]),
        "linear_activation": (x, weight, weight[:, 0], "gelu"),
        "layer_norm": (x, *norm),
        "dropout_residual_norm": (x, x + 1, *norm, *dropped),
        "embedding": (weight, ids),
        "embed": (weight, weight + 1, weight + 2, *norm[:2], ids, ids, 0.1, *dropped),
        "packed_attention": (rng.standard_normal((2, 3, 12)), np.zeros((2, 1, 1, 3)), 2, *dropped),
        "cross_entropy": (rows, labels, weights, 6.0),
        "masked_lm_loss": (rows, weight, weight[:, 0], labels, weights, 6.0),
    }


def cast(arguments, dtype):
    return [a.astype(dtype) if isinstance(a, np.ndarray) and a.dtype.kind == "f" else a for a in arguments]


@pytest.mark.parametrize("name", ordinary())
def test_ordinary_arguments_are_accepted_and_others_are_not(name):
    pytest.importorskip("ml_dtypes")
    arguments = ordinary()[name]
    for dtype in DTYPES:
        accepts = ops.TABLE[name].kernels["cupy", dtype].accepts
        first, *rest = cast(arguments, dtype)
        assert accepts(first, *rest)
        in_float32 = cast(rest, "float32")
        assert accepts(first, *in_float32), "the parameters are float32 also beside 16 bits"
        empty = first[:0] if name != "embed" else first
        if name == "embed":
            rest = [a[:, :0] if isinstance(a, np.ndarray) and a.dtype.kind == "i" else a for a in rest]
        assert not accepts(empty, *rest), "a GPU cannot launch for no rows"
        if len(in_float32) > 1:
            for place, argument in enumerate(in_float32):
                if isinstance(argument, np.ndarray) and argument.dtype.kind == "f":
                    wide = [*in_float32[:place], argument.astype("float64"), *in_float32[place + 1 :]]
                    assert not accepts(first, *wide), "the reference would return float64"


def test_every_pair_has_ordinary_arguments():
    assert set(ordinary()) == {name for name, *_ in PAIRS}
