"""Every kernel in the table computes what its reference does: outputs and gradients, over random shapes."""

import subprocess
import sys

import numpy as np
import pytest
import threadpoolctl
from scipy.special import ndtr

import minibert  # noqa: F401  (registers the kernels)
from minibert import ops
from minibert.dropout_bits import dropout_key
from minibert.ops import optimise
from minibert.ops.activations import gelu, gelu_backward
from minibert.threads import set_threads

BOUND = {"float32": 2e-6}  # relative error by norm against the reference in float64


def _sizes(rng):
    """A batch shape (B, S) and feature sizes K, N that are no powers of two; several blocks of work."""
    return (
        int(rng.integers(2, 5)),
        int(rng.integers(100, 700)),
        int(rng.integers(3, 90)),
        int(rng.integers(3, 200)),
    )


def _linear(rng):
    batch, length, inputs, outputs = _sizes(rng)
    x, weight = rng.standard_normal((batch, length, inputs)), rng.standard_normal((outputs, inputs))
    return x, weight / np.sqrt(inputs), rng.standard_normal(outputs)


def _linear_activation(rng, activation):
    return *_linear(rng), activation


def _layer_norm(rng):
    batch, length, size, _ = _sizes(rng)
    return rng.standard_normal((batch, length, size)), *rng.standard_normal((2, size)), 1e-12


def _dropout_residual_norm(rng, probability):
    batch, length, size, _ = _sizes(rng)
    x, residual = rng.standard_normal((2, batch, length, size))
    weight, bias = rng.standard_normal((2, size))
    return x, residual, weight, bias, 1e-12, probability, dropout_key(7, 1, 0, 0, 3)


def _embed(rng, probability, vocabulary=None):
    batch, length, size, few = _sizes(rng)
    vocabulary = vocabulary or few
    tables = (rng.standard_normal((count, size)) for count in (vocabulary, length + 5, 2))
    ids = rng.integers(0, vocabulary, (batch, length))  # every id occurs several times
    type_ids = rng.integers(0, 2, (batch, length))
    norm = rng.standard_normal((2, size))
    return *tables, *norm, ids, type_ids, 1e-12, probability, dropout_key(7, 1, 0, 0, 3)


def _packed_attention(rng, probability, causal=False, length=None):
    batch, size, num_heads = (int(rng.integers(low, high)) for low, high in ((2, 5), (3, 20), (1, 6)))
    length = length or int(rng.integers(5, 150))
    qkv = rng.standard_normal((batch, length, 3 * num_heads * size))
    attention_mask = (np.arange(length) < rng.integers(1, length + 1, batch)[:, None]).astype(np.int64)
    bias = ops.attention_bias(attention_mask, "float64", causal)
    return qkv, bias, num_heads, probability, dropout_key(7, 1, 0, 0, 3)


def _unpadded_attention(rng, probability, longest=60):
    size, num_heads = int(rng.integers(3, 20)), int(rng.integers(1, 6))
    lengths = np.sort(rng.integers(1, longest, 9))
    lengths[:3], lengths[-1] = lengths[4], 3  # of four there is but one block, and they need not be in order
    starts = np.concatenate([[0], np.cumsum(lengths)])
    qkv = rng.standard_normal((starts[-1], 3 * num_heads * size))
    return qkv, starts, num_heads, probability, dropout_key(7, 1, 0, 0, 3)


def _masked_lm_loss(rng):
    rows, vocabulary, size = _sizes(rng)[1], 1501, 48
    hidden, weight = rng.standard_normal((rows, size)), rng.standard_normal((vocabulary, size))
    labels = rng.integers(0, vocabulary, rows)
    label_weights = (rng.random(rows) < 0.9).astype(np.float64)
    return (
        *(hidden, weight / np.sqrt(size), rng.standard_normal(vocabulary)),
        *(labels, label_weights, float(label_weights.sum())),
    )


def _embedding(rng, rows=None):
    batch, length, size, few = _sizes(rng)
    rows = rows or few
    return rng.standard_normal((rows, size)), rng.integers(-rows, rows, (batch, length))


CASES = {
    "linear": [_linear],
    "linear_activation": [
        lambda rng: _linear_activation(rng, "gelu"),
        lambda rng: _linear_activation(rng, "gelu_new"),
        lambda rng: _linear_activation(rng, "relu"),
    ],
    "layer_norm": [_layer_norm],
    "dropout_residual_norm": [
        lambda rng: _dropout_residual_norm(rng, 0.1),
        lambda rng: _dropout_residual_norm(rng, 0.0),
    ],
    "embedding": [_embedding, lambda rng: _embedding(rng, rows=9000)],  # in one part, and in three
    "embed": [
        lambda rng: _embed(rng, 0.1),
        lambda rng: _embed(rng, 0.0),
        lambda rng: _embed(rng, 0.1, vocabulary=9000),  # its gradient is made in three parts
    ],
    "packed_attention": [
        lambda rng: _packed_attention(rng, 0.1),
        lambda rng: _packed_attention(rng, 0.0),
        lambda rng: _packed_attention(rng, 0.3, causal=True),
        lambda rng: _packed_attention(rng, 0.1, length=400),  # too long for all heads at once
    ],
    "unpadded_attention": [
        lambda rng: _unpadded_attention(rng, 0.1),
        lambda rng: _unpadded_attention(rng, 0.0),
        lambda rng: _unpadded_attention(rng, 0.1, longest=500),
    ],
    "masked_lm_loss": [_masked_lm_loss],
}


REGISTERED = [
    (name, library, dtype, case)
    for name, entry in ops.TABLE.items()
    for library, dtype in entry.kernels
    if library != "cupy"  # those are compared in tests/kernels/cuda
    for case in range(len(CASES.get(name, [None])))
    if entry.reference.backward is not None
]


def _cast(arguments, dtype):
    """Floating arrays to ``dtype``; everything else as it is."""
    return [a.astype(dtype) if isinstance(a, np.ndarray) and a.dtype.kind == "f" else a for a in arguments]


def _relative_error(got, expected):
    return np.linalg.norm(got.astype(np.float64) - expected) / np.linalg.norm(expected)


def _tuple(value):
    return value if isinstance(value, tuple) else (value,)


@pytest.mark.parametrize(("name", "library", "dtype", "case"), REGISTERED)
@pytest.mark.parametrize("seed", range(3))
def test_kernel_equals_reference(name, library, dtype, case, seed):
    assert name in CASES, f"add a case for the kernel of {name!r}"
    rng = np.random.default_rng(seed)
    arguments = _cast(CASES[name][case](rng), dtype)
    entry = ops.TABLE[name]
    kernel = entry.kernels[library, dtype]
    y, cache = kernel.forward(*arguments)
    expected, expected_cache = entry.reference.forward(*_cast(arguments, np.float64))
    assert y.dtype == dtype
    assert y.shape == expected.shape
    assert _relative_error(y, expected) < BOUND[dtype]

    dout = 1.7 if y.ndim == 0 else rng.standard_normal(y.shape).astype(dtype)
    dout64 = dout if y.ndim == 0 else dout.astype(np.float64)
    gradients = _tuple(kernel.backward(dout, cache))
    references = _tuple(entry.reference.backward(dout64, expected_cache))
    assert len(gradients) == len(references)
    for gradient, reference in zip(gradients, references, strict=True):
        assert gradient.dtype == dtype
        assert gradient.shape == reference.shape
        assert _relative_error(gradient, reference) < BOUND[dtype]


def test_there_are_kernels_to_test():
    assert {"linear", "packed_attention", "embed"} <= {name for name, *_ in REGISTERED}


def _optimiser_state(rng):
    size = int(rng.integers(200_000, 400_000))  # several blocks of work, and a rest
    value, grad, mean = rng.standard_normal((3, size)).astype(np.float32)
    return value, grad, mean, rng.random(size).astype(np.float32)


@pytest.mark.parametrize("seed", range(3))
def test_global_norm(seed):
    _, grad, *_ = _optimiser_state(np.random.default_rng(seed))
    entry = ops.TABLE["global_norm"]
    norm = entry.kernels["numpy", "float32"].forward(grad)
    assert norm.dtype == np.float32
    assert norm.ndim == 0
    assert norm == pytest.approx(float(entry.reference.forward(grad.astype(np.float64))), rel=1e-6)


def test_sums_of_squares():
    """One sum per block, whose bits do not depend on what other blocks there are."""
    _, grad, *_ = _optimiser_state(np.random.default_rng(0))
    entry = ops.TABLE["sums_of_squares"]
    kernel = entry.kernels["numpy", "float32"].forward
    sums, block = kernel(grad), optimise.BLOCK
    assert sums.tolist() == [*kernel(grad[:block]), *kernel(grad[block:])]
    assert sums == pytest.approx(entry.reference.forward(grad.astype(np.float64)), rel=1e-6)


@pytest.mark.parametrize("corrections", [(), (0.1, 0.02), (np.float32(0.1), np.float32(0.02))])
@pytest.mark.parametrize("seed", range(2))
def test_adamw_update(seed, corrections):
    state = _optimiser_state(np.random.default_rng(seed))
    exact = [array.astype(np.float64) for array in state]
    settings = 0.01, np.float32(0.5), 0.9, 0.999, 1e-6, 0.01, *corrections
    entry = ops.TABLE["adamw_update"]
    entry.kernels["numpy", "float32"].forward(*state, *settings)
    entry.reference.forward(*exact, *settings)
    for got, expected in zip(state, exact, strict=True):
        assert got.dtype == np.float32
        assert _relative_error(got, expected) < BOUND["float32"]


def test_the_gradient_of_embeddings_takes_ids_that_count_from_the_end():
    arguments = _cast(CASES["embed"][2](np.random.default_rng(0)), "float32")
    tables_and_norm, ids, others = arguments[:5], arguments[5], arguments[6:]
    kernel, vocabulary = ops.TABLE["embed"].kernels["numpy", "float32"], len(tables_and_norm[0])
    found = []
    for same in (ids, np.where(ids % 2, ids, ids - vocabulary)):
        y, cache = kernel.forward(*tables_and_norm, same, *others)
        found.append(kernel.backward(np.ones_like(y), cache)[0])
    assert found[0].any() and np.array_equal(*found)


@pytest.mark.parametrize("shape", [(48, 48), (48, 130), (130, 48), (1, 7), (3, 16, 40)])
def test_orthogonalise(shape):
    matrix = np.random.default_rng(sum(shape)).standard_normal(shape)
    entry = ops.TABLE["orthogonalise"]
    found = entry.kernels["numpy", "float32"].forward(matrix.astype(np.float32))
    assert found.dtype == np.float32
    exact = entry.reference.forward(matrix)
    assert _relative_error(found, exact) < 2e-5  # the smallest singular values, and errors, grow 480-fold


@pytest.mark.parametrize("name", [name for name in CASES if name != "linear_activation"])
def test_a_kernel_passes_on_what_is_not_a_number(name):
    """A loss or a gradient that is not finite must be seen, so no kernel may turn a NaN into a number."""
    for bad in (np.nan, np.inf):
        arguments = _cast(CASES[name][0](np.random.default_rng(3)), np.float32)
        arguments[0][(0,) * arguments[0].ndim] = bad
        kernel = ops.TABLE[name].kernels["numpy", "float32"]
        with np.errstate(invalid="ignore", over="ignore"):
            y, _ = kernel.forward(*arguments)
        assert not np.isfinite(y).all()


@pytest.mark.parametrize(
    "name",
    ["dropout_residual_norm", "layer_norm", "embedding", "embed", "packed_attention", "unpadded_attention"],
)
def test_same_bits_whatever_the_threads(name, restore_threads):
    arguments = _cast(CASES[name][0](np.random.default_rng(5)), np.float32)
    kernel = ops.TABLE[name].kernels["numpy", "float32"]
    results = []
    for threads in (1, 2):
        set_threads(threads)
        # The matrix products inside are BLAS's, whose bits may depend on its threads: leave them one.
        with threadpoolctl.threadpool_limits(1, user_api="blas"):
            y, cache = kernel.forward(*arguments)
            results.append((y, *kernel.backward(np.ones_like(y) if y.ndim else 1.0, cache)))
    for one, two in zip(*results, strict=True):
        assert np.array_equal(one, two)


def test_gelu_kernel_is_accurate_for_every_float():
    x = np.linspace(-15, 15, 200_001, dtype=np.float32)[:, None]
    kernel = ops.TABLE["linear_activation"].kernels["numpy", "float32"]
    identity, zero = np.ones((1, 1), np.float32), np.zeros(1, np.float32)
    y, cache = kernel.forward(x, identity, zero, "gelu")
    derivative = kernel.backward(np.ones_like(y), cache)[0]
    x64 = x.astype(np.float64)
    expected, expected_cache = gelu(x64)
    expected_derivative = gelu_backward(np.ones_like(x64), expected_cache)
    assert np.abs(y - expected).max() < 5e-7
    assert np.abs(derivative - expected_derivative).max() < 5e-7
    # Relative to the result too, where ½ (1 + erf) in float32 has no correct digit left.
    tail = np.abs(x) < 5
    exact = x64 * ndtr(x64)
    assert (np.abs(y - exact)[tail] <= 1.5e-6 * np.abs(exact)[tail]).all()


def test_the_update_writes_the_copy_unless_the_norm_is_not_finite():
    rng = np.random.default_rng(0)
    update = ops.TABLE["adamw_update"].kernels["numpy", "float32"].forward
    settings = 0.01, 1.0, 0.9, 0.999, 1e-6, 0.01
    start = rng.standard_normal((3, 300_000), dtype=np.float32)  # more than one block of work
    for norm in (np.float32(2.0), np.float32(np.inf), np.float32(np.nan)):
        value, grad, mean = start.copy()
        variance, copy = mean * mean, np.zeros(len(mean), dtype=np.float16)
        update(value, grad, mean, variance, *settings, copy=copy, norm=norm)
        assert (value != start[0]).any() == np.isfinite(norm)
        assert (mean != start[2]).any() == np.isfinite(norm)
        expected = value.astype(np.float16) if np.isfinite(norm) else 0 * copy
        np.testing.assert_array_equal(copy, expected)


def test_without_numba_the_reference_computes():
    code = """
import sys
sys.modules["numba"] = None  # as if it were not installed
from minibert import BertConfig, BertForPreTraining, ops
assert not any(library == "numpy" for entry in ops.TABLE.values() for library, _ in entry.kernels)
model = BertForPreTraining(BertConfig.preset("tiny", vocab_size=50))
outputs, cache = model.forward([[1, 2, 3]], labels=[[-100, 7, -100]], next_sentence_label=[1])
model.backward(cache)
print(outputs.loss.dtype)
"""
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (process.stdout, process.returncode) == ("float32\n", 0), process.stderr


def test_words_may_be_impossible_even_all_of_a_chunk():
    """Their bias is −∞; they have the probability 0, and the others' loss and gradients stay numbers."""
    rng = np.random.default_rng(0)
    hidden, weight = (rng.standard_normal((n, 8)).astype("float32") for n in (2100, 300))
    bias = np.repeat(np.array([0, -np.inf, 0], "float32"), [128, 128, 44])
    labels, weights = rng.integers(0, 128, 2100), np.ones(2100, "float32")
    loss, cache = ops.masked_lm_loss(hidden, weight, bias, labels, weights, 2100.0)
    got = [loss, *ops.masked_lm_loss_backward(1.0, cache)]
    with ops.reference_only():
        loss, cache = ops.masked_lm_loss(hidden, weight, bias, labels, weights, 2100.0)
        expected = [loss, *ops.masked_lm_loss_backward(1.0, cache)]
    for one, two in zip(got, expected, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-6)


def test_a_numba_that_cannot_be_imported_is_as_good_as_none(tmp_path):
    """As after an update of NumPy to a version that this Numba does not know."""
    (tmp_path / "numba").mkdir()
    (tmp_path / "numba" / "__init__.py").write_text("raise ImportError('Numba needs NumPy 2.2 or less')")
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import minibert, numpy; from minibert import ops; "
        "print(ops.global_norm(numpy.ones(16, numpy.float32)))"
    )
    process = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
    assert (process.stdout, process.returncode) == ("4.0\n", 0), process.stderr
    assert "Numba needs NumPy 2.2 or less" in process.stderr
