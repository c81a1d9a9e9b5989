"""Every CUDA kernel computes what its reference does: outputs and gradients, all dtypes, odd shapes."""

import numpy as np
import pytest

from minibert import ops
from minibert.arrays import to_numpy
from minibert.dropout_bits import dropout_key, random_bits
from minibert.kernels.cuda import (
    DTYPES,
    PAIRS,
    activation,
    attention,
    cross_entropy,
    embed,
    optimise,
    paths,
    residual_norm,
    scatter,
)
from minibert.kernels.cuda.dropout import dropout_arguments, dropout_keys
from minibert.kernels.cuda.launch import KernelError
from minibert.ops import composites
from minibert.ops.attention import attention_bias

# Relative error by norm against the reference in float64.
BOUND = {"float32": 2e-6, "float16": 2e-3, "bfloat16": 1.6e-2}
KEY = dropout_key(7, 1, 0, 0, 3)
EPS = 1e-2  # large enough to be seen


def normal(rng, *shape):
    return rng.standard_normal(shape)


def case_linear(rng, rows, inputs, outputs):
    weight = normal(rng, outputs, inputs) / np.sqrt(inputs)
    return normal(rng, *rows, inputs), weight, normal(rng, outputs)


def case_layer_norm(rng, rows, size):
    return normal(rng, *rows, size), normal(rng, size), normal(rng, size), EPS


def case_residual(rng, rows, size, probability):
    x, residual = normal(rng, 2, *rows, size)
    return x, residual, normal(rng, size), normal(rng, size), EPS, probability, KEY


def case_embed(rng, batch, length, size, vocabulary, probability):
    tables = normal(rng, vocabulary, size), normal(rng, length + 3, size), normal(rng, 2, size)
    ids = rng.integers(0, vocabulary, (batch, length))
    ids[:, length // 2 :] = 0  # padding: one id that many sums cross several chunks for
    types = rng.integers(0, 2, (batch, length))
    return *tables, normal(rng, size), normal(rng, size), ids, types, EPS, probability, KEY


def case_embedding(rng, shape, size, count):
    ids = rng.integers(0, count, shape)
    ids[: len(ids) // 2] = 1  # one id that many sums cross several chunks for
    return normal(rng, count, size), ids


def case_attention(rng, batch, length, heads, size, probability, causal=False):
    mask = (np.arange(length) < rng.integers(1, length + 1, (batch, 1))).astype(np.int64)
    bias = attention_bias(mask, "float64", causal)
    return normal(rng, batch, length, 3 * heads * size), bias, heads, probability, KEY


def case_labels(rng, rows, classes):
    weights = (rng.random(rows) < 0.8) * rng.random(rows)
    weights[0] = 1.0
    return rng.integers(0, classes, rows), weights, float(weights.sum())


def case_masked_lm(rng, rows, size, vocabulary):
    matrices = normal(rng, rows, size), normal(rng, vocabulary, size) / np.sqrt(size)
    return *matrices, normal(rng, vocabulary), *case_labels(rng, rows, vocabulary)


# Sizes with every fate: divisible by 8, by 4 and by neither; less than a warp and several; one row.
CASES = {
    "linear": [
        lambda rng: case_linear(rng, (2, 37), 24, 72),
        lambda rng: case_linear(rng, (1,), 5, 3),
        lambda rng: case_linear(rng, (70, 3), 7, 301),
    ],
    "linear_activation": [
        lambda rng: (*case_linear(rng, (2, 37), 24, 72), "gelu"),
        lambda rng: (*case_linear(rng, (70, 3), 7, 301), "gelu"),
        lambda rng: (*case_linear(rng, (1, 1), 7, 13), "gelu"),
        lambda rng: (*case_linear(rng, (3, 11), 24, 42), "gelu_new"),
        lambda rng: (*case_linear(rng, (3, 11), 24, 42), "relu"),
        lambda rng: (*case_linear(rng, (33,), 24, 42), "tanh"),
    ],
    "layer_norm": [
        lambda rng: case_layer_norm(rng, (5, 13), 128),
        lambda rng: case_layer_norm(rng, (1,), 30),
        lambda rng: case_layer_norm(rng, (3,), 1030),
    ],
    "dropout_residual_norm": [
        lambda rng: case_residual(rng, (5, 31), 128, 0.1),
        lambda rng: case_residual(rng, (2, 9), 37, 0.1),
        lambda rng: case_residual(rng, (3, 5), 772, 0.3),
        lambda rng: case_residual(rng, (1, 1), 24, 0.5),
        lambda rng: case_residual(rng, (3, 30), 5, 0.0),
    ],
    "embed": [
        lambda rng: case_embed(rng, 9, 23, 64, 700, 0.1),
        lambda rng: case_embed(rng, 40, 31, 12, 300, 0.0),
        lambda rng: case_embed(rng, 2, 5, 37, 11, 0.2),
        lambda rng: case_embed(rng, 1, 1, 130, 5, 0.1),
    ],
    "packed_attention": [
        lambda rng: case_attention(rng, 3, 24, 2, 8, 0.1),
        lambda rng: case_attention(rng, 2, 37, 5, 3, 0.1),
        lambda rng: case_attention(rng, 2, 37, 2, 4, 0.0),
        lambda rng: case_attention(rng, 2, 19, 2, 6, 0.3, causal=True),
        lambda rng: case_attention(rng, 1, 150, 3, 4, 0.1),
        lambda rng: case_attention(rng, 2, 1, 2, 4, 0.1),
    ],
    "embedding": [
        lambda rng: case_embedding(rng, (5, 31), 24, 300),
        lambda rng: case_embedding(rng, (700,), 7, 1000),
        lambda rng: case_embedding(rng, (1,), 9, 2),
    ],
    "cross_entropy": [
        lambda rng: (normal(rng, 300, 2), *case_labels(rng, 300, 2)),
        lambda rng: (5 * normal(rng, 3, 700), *case_labels(rng, 3, 700)),
    ],
    "masked_lm_loss": [
        lambda rng: case_masked_lm(rng, 5, 24, 9001),
        lambda rng: case_masked_lm(rng, 1, 7, 30),
        lambda rng: case_masked_lm(rng, 70, 16, 96),
    ],
}


def cast(arguments, dtype):
    """Matrices in the dtype of activations; vectors, which are parameters and weights of rows, in float32."""
    return [
        a.astype("float32" if a.ndim == 1 else dtype)
        if isinstance(a, np.ndarray) and a.dtype.kind == "f"
        else a
        for a in arguments
    ]


def on_device(xp, arguments):
    return [xp.asarray(a) if isinstance(a, np.ndarray) else a for a in arguments]


def in_float64(arguments):
    return [
        a.astype(np.float64) if isinstance(a, np.ndarray) and a.dtype.kind not in "iu" else a
        for a in arguments
    ]


def storage(dtype):
    """The NumPy dtype of that name; bfloat16 comes from a package of its own."""
    if dtype == "bfloat16":
        return np.dtype(pytest.importorskip("ml_dtypes").bfloat16)
    return np.dtype(dtype)


def close(got, expected, dtype):
    got = to_numpy(got).astype(np.float64)
    assert got.shape == expected.shape
    error = np.linalg.norm(got - expected)
    assert error <= BOUND[dtype] * np.linalg.norm(expected) + 1e-12, error / np.linalg.norm(expected)


def as_tuple(value):
    return value if isinstance(value, tuple) else (value,)


def check(xp, forward, backward, reference, arguments, dtype):
    """Compare a pair with its reference in float64, on the same rounded arguments."""
    rng = np.random.default_rng(1)
    arguments = cast(arguments, storage(dtype))
    inputs = on_device(xp, arguments)
    before = [a.copy() if hasattr(a, "copy") else a for a in inputs]
    y, cache = forward(*inputs)
    expected, expected_cache = reference.forward(*in_float64(arguments))
    assert y.dtype == (storage(dtype) if y.ndim else np.float32)
    close(y, expected, dtype)

    dout = rng.standard_normal(y.shape).astype(y.dtype) if y.ndim else 1.7
    gradients = as_tuple(backward(xp.asarray(dout) if y.ndim else dout, cache))
    references = as_tuple(reference.backward(dout.astype(np.float64) if y.ndim else dout, expected_cache))
    assert len(gradients) == len(references)
    for gradient, right in zip(gradients, references, strict=True):
        close(gradient, right, dtype)
    for array, original in zip(inputs, before, strict=True):
        if hasattr(array, "dtype"):
            assert (array == original).all(), "an argument was overwritten"
    return gradients


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("name", "case"), [(name, case) for name, cases in CASES.items() for case in range(len(cases))]
)
def test_kernel_equals_reference(xp, name, case, dtype):
    module = {name: module for name, module, _ in PAIRS}[name]
    arguments = CASES[name][case](np.random.default_rng(case))
    pair = getattr(module, name), getattr(module, f"{name}_backward")
    gradients = check(xp, *pair, ops.TABLE[name].reference, arguments, dtype)
    # Gradients of activations in their own dtype, those of parameters in float32.
    of_activations = ops.TABLE[name].activations
    for number, gradient in enumerate(gradients):
        assert gradient.dtype == (storage(dtype) if number < of_activations else np.float32)


def test_every_pair_has_a_case():
    assert set(CASES) == {name for name, _, _ in PAIRS}


def test_every_activation_that_cuda_knows_has_a_case():
    cases = {arguments(np.random.default_rng(0))[-1] for arguments in CASES["linear_activation"]}
    assert {ops.ACTIVATIONS[name][0] for name in cases} == set(activation.KNOWN)


def test_a_row_of_the_lowest_number_is_like_any_other_constant(xp):
    """Such as a row whose keys are all masked in transformers' way, with the lowest float32."""
    lowest = np.finfo("float32").min
    qkv, _, *rest = case_attention(np.random.default_rng(0), 2, 11, 2, 4, 0.0)
    qkv, bias = cast((qkv, np.full((2, 1, 1, 11), lowest)), "float32")
    y, _ = attention.packed_attention(*on_device(xp, (qkv, bias)), *rest)
    close(y, composites.packed_attention(qkv, bias, *rest)[0], "float32")
    logits, weights = np.full((3, 7), lowest), np.ones(3, "float32")
    loss, _ = cross_entropy.cross_entropy(*on_device(xp, (logits, np.arange(3), weights)), 3.0)
    assert float(loss) == pytest.approx(np.log(7), rel=1e-6)


def test_a_row_of_attention_in_which_all_keys_are_masked_is_finite(xp):
    qkv, bias, *rest = case_attention(np.random.default_rng(0), 2, 11, 2, 4, 0.0)
    bias[0] = -10000.0
    y, _ = attention.packed_attention(*on_device(xp, cast((qkv, bias, *rest), "float32")))
    expected, _ = composites.packed_attention(qkv, bias, *rest)
    # float32 keeps a score's thousandths beside −10000.
    assert np.abs(to_numpy(y) - expected).max() < 5e-3


@pytest.mark.parametrize("name", ["gelu", "gelu_new", "relu", "tanh"])
def test_an_activation_passes_on_what_is_not_a_number(xp, name):
    x, weight, bias = on_device(xp, cast((np.full((3, 8), np.nan), np.eye(8), np.zeros(8)), "float32"))
    y, _ = activation.linear_activation(x, weight, bias, name)
    assert np.isnan(to_numpy(y)).all()


def test_more_positions_than_a_grid_has_tiles_for(xp):
    tables = [np.zeros((rows, 2**15), "float32") for rows in (5, 300, 2)]
    norm, ids = np.ones((2, 2**15), "float32"), np.zeros((1, 300), "int64")
    with pytest.raises(KernelError, match="300 positions of 32768 numbers"):
        embed.embed(*on_device(xp, (*tables, *norm, ids, ids)), EPS, 0.0, None)


def test_a_label_out_of_range_may_stand_in_a_row_that_does_not_count(xp):
    rng = np.random.default_rng(0)
    hidden, weight, bias, labels, weights, denominator = case_masked_lm(rng, 9, 8, 50)
    weights[3] = 0.0
    references = composites.masked_lm_loss(hidden, weight, bias, labels, weights, denominator)
    labels = np.where(np.arange(9) == 3, -(10**9), labels)
    arguments = on_device(xp, cast((hidden, weight, bias, labels, weights), "float32"))
    loss, cache = cross_entropy.masked_lm_loss(*arguments, denominator)
    close(loss, np.asarray(references[0]), "float32")
    got = cross_entropy.masked_lm_loss_backward(1.0, cache)
    for gradient, expected in zip(got, composites.masked_lm_loss_backward(1.0, references[1]), strict=True):
        close(gradient, expected, "float32")


def test_the_gradient_of_a_loss_scaled_for_float16_is_scaled(xp):
    arguments = case_masked_lm(np.random.default_rng(0), 40, 8, 300)
    *arrays, denominator = on_device(xp, cast(arguments, "float16"))
    denominator *= 1000.0  # as if a thousand such batches were one: without the scale the gradient vanishes
    _, cache = cross_entropy.masked_lm_loss(*arrays, xp.asarray(denominator, dtype="float32"))
    got = cross_entropy.masked_lm_loss_backward(xp.asarray(2.0**16, dtype="float32"), cache)
    _, cache = composites.masked_lm_loss(*in_float64(cast(arguments, "float16"))[:-1], denominator)
    for gradient, expected in zip(got, composites.masked_lm_loss_backward(2.0**16, cache), strict=True):
        close(gradient, expected, "float16")


@pytest.mark.parametrize(("n", "count"), [(1, 1), (31, 2), (33, 300), (700, 70_000), (2000, 4), (64, 1)])
def test_scatter_adds_equal_ids_up(xp, n, count):
    rng = np.random.default_rng(n)
    ids, d = rng.integers(0, count, n), rng.standard_normal((n, 20)).astype(np.float32)
    ids[n // 3 : n // 2] = count - 1
    expected = np.zeros((count, 20))
    np.add.at(expected, ids, d.astype(np.float64))
    close(scatter.scatter_rows(xp.asarray(ids), xp.asarray(d), count), expected, "float32")


@pytest.mark.parametrize(("n", "count"), [(5, 3), (1025, 255), (1500, 257), (513, 2**24 + 7)])
def test_sorting_ids_is_stable(xp, n, count):
    ids = np.random.default_rng(n).integers(0, min(count, 400), n).astype(np.int32) * (count // 400 or 1)
    ids[0] = count - 1
    sorted_ids, order = scatter.sort_ids(xp.asarray(ids), count, "float32")
    expected = np.argsort(ids, kind="stable")
    assert np.array_equal(to_numpy(order), expected)
    assert np.array_equal(to_numpy(sorted_ids), ids[expected])


@pytest.mark.parametrize("size", [1, 1023, 100_000, 1_100_000])
def test_global_norm(xp, size):
    grad = np.random.default_rng(0).standard_normal(size).astype(np.float32)
    norm = optimise.global_norm(xp.asarray(grad))
    close(norm, np.asarray(np.linalg.norm(grad.astype(np.float64))), "float32")


def adamw_arguments(size):
    rng = np.random.default_rng(size)
    value, grad, mean = rng.standard_normal((3, size)).astype(np.float32)
    variance = rng.random(size).astype(np.float32)
    scalars = [np.asarray(s, dtype=np.float32) for s in (3e-2, 0.7)]
    return value, grad, mean, variance, *scalars, 0.9, 0.999, 1e-6, 0.01, 0.5, 0.25


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [3, 64, 5001])
def test_adamw(xp, size, dtype):
    arguments = adamw_arguments(size)
    given, expected = on_device(xp, arguments), in_float64(arguments)
    copy = xp.zeros(size, dtype=storage(dtype))
    optimise.adamw_update(*given, copy=copy, norm=xp.asarray(3.0, dtype="float32"))
    ops.TABLE["adamw_update"].reference.forward(*expected)
    for got, right in zip(given[:4], expected[:4], strict=True):
        close(got, right, "float32")
    assert (copy == given[0].astype(copy.dtype)).all()
    again = on_device(xp, adamw_arguments(size))
    optimise.adamw_update(*again)
    assert (again[0] == given[0]).all()


@pytest.mark.parametrize("norm", [np.inf, np.nan])
def test_adamw_leaves_a_step_out_whose_gradient_is_not_finite(xp, norm):
    given = on_device(xp, adamw_arguments(100))
    before = [array.copy() for array in given[:4]]
    copy = xp.zeros(100, dtype="float16")
    optimise.adamw_update(*given, copy=copy, norm=xp.asarray(norm, dtype="float32"))
    for array, original in zip(given[:4], before, strict=True):
        assert (array == original).all()
    assert (copy == 0).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1,), (3, 5), (64,), (7, 333)])
def test_adding_a_derivative(xp, shape, dtype):
    rng = np.random.default_rng(0)
    total, part = (xp.asarray(rng.standard_normal(shape).astype(storage(dtype))) for _ in range(2))
    expected = (to_numpy(total).astype("float32") + to_numpy(part).astype("float32")).astype(storage(dtype))
    assert paths.add_derivative(total, part) is total
    assert np.array_equal(to_numpy(total), expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(7, 12), (12, 7), (3, 9, 9), (4, 5, 16), (2, 16, 5)])
def test_muon(xp, shape, dtype):
    rng = np.random.default_rng(0)
    matrices = rng.standard_normal((3, *shape)).astype(np.float32)
    arguments = (*matrices, *(np.asarray(s, dtype=np.float32) for s in (3e-2, 0.7)), 0.9, 0.01)
    given, expected = on_device(xp, arguments), in_float64(arguments)
    copy = xp.zeros(shape, dtype=storage(dtype))
    norm = xp.asarray(3.0, dtype="float32")
    ops.muon_update(*given, copy=copy, norm=norm, orthogonalise=optimise.orthogonalise)
    ops.muon_update(*expected)
    close(given[0], expected[0], "float32")
    close(given[2], expected[2], "float32")
    assert (copy == given[0].astype(copy.dtype)).all()


def test_dropout_keys_are_those_of_the_host(xp):
    seed, step, micro_batch, replica = 2**40 + 12345, 678, 2, 1
    stream = xp.asarray(np.array([seed % 2**32, seed >> 32, step, micro_batch, replica], dtype=np.uint32))
    keys = dropout_keys(stream, 70)
    expected = [dropout_key(seed, step, micro_batch, replica, site) for site in range(70)]
    assert np.array_equal(to_numpy(keys), np.array(expected, dtype=np.uint32))


def test_a_key_on_the_device_drops_the_same_elements(xp):
    arguments = on_device(xp, cast(case_residual(np.random.default_rng(0), (5, 31), 37, 0.1), "float32"))
    *rest, key = arguments
    y, _ = residual_norm.dropout_residual_norm(*rest, key)
    again, _ = residual_norm.dropout_residual_norm(*rest, xp.asarray(np.array(key, dtype=np.uint32)))
    assert (y == again).all()


@pytest.mark.parametrize("size", [37, 64])
def test_exactly_those_elements_are_dropped_that_the_reference_drops(xp, size):
    """By way of dx, which is 0 there and nowhere else."""
    x, residual, weight, bias, *rest = case_residual(np.random.default_rng(0), (7, 9), size, 0.25)
    y, cache = residual_norm.dropout_residual_norm(
        *on_device(xp, cast((x, residual, weight, bias, *rest), "float32"))
    )
    dx, *_ = residual_norm.dropout_residual_norm_backward(y, cache)
    _, threshold, _ = dropout_arguments(xp.zeros(1), 0.25, KEY)
    assert np.array_equal(to_numpy(dx) != 0, random_bits(np, KEY, x.shape) >= threshold)
