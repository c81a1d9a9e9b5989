"""Every kernel for NumPy, over all arguments that its operation takes.

It computes what the reference does, or leaves it to the reference. Drawn are shapes with empty axes and axes
of length one, broadcasting, dtypes, strides, masks of every form, and the numbers that NumPy tells apart.

How wrong may a result in float32 be? A few times as wrong as the reference's own is in float32, when each
argument is changed by up to a unit in its last place, several times over, so that no lucky rounding sets
the measure (``allowed_error``). So no digit is excused where the operation loses none, and where digits
cancel, as they do in LayerNorm's gradient, exactly those that cancel are.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

pytest.importorskip("hypothesis")

from hypothesis import given, settings
from hypothesis import strategies as st

from minibert import BertConfig, BertForPreTraining, ops
from minibert.dropout_bits import dropout_key
from minibert.ops.table import Implementation
from minibert.threads import get_threads, set_threads
from minibert.train.optimiser import AdamW

pytest.importorskip("minibert.kernels.cpu.compiled", reason="Numba is not installed")

from minibert.kernels.cpu import attention, embed, masked_lm_loss, norm, optimise

UNIT = 2.0**-23  # in the last place of float32
TIMES = 8
INTEGERS = ("int64", "int32", "int8", "uint8", "uint16", "uint64")


@pytest.fixture(scope="module", autouse=True)
def small_blocks():
    """Little work at a time, so that small arrays are several blocks, and more than one thread."""
    threads = get_threads()
    with pytest.MonkeyPatch.context() as patch:
        set_threads(2)
        for module, name, size in (
            (attention, "SCORES", 100),
            (masked_lm_loss, "SCORES", 256),  # but never less than 128 words
            (norm, "ROWS", 4),
            (embed, "ROWS", 4),
            (optimise, "ELEMENTS", 16),
        ):
            patch.setattr(module, name, size)
        yield
    set_threads(threads)


class Drawn:
    """Draws arguments, and remembers whether all of them are as the docstrings have them (``plain``).

    Then the kernel has to compute. Otherwise it may leave them to the reference.
    """

    def __init__(self, data: st.DataObject):
        self.data = data
        self.rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1), label="seed"))
        self.plain = True

    def one_of(self, *choices: Any) -> Any:
        return self.data.draw(st.sampled_from(choices))

    def unusual(self, *choices: Any) -> Any:
        """The first of the choices, or now and then another: then the kernel may decline."""
        choice = self.data.draw(st.sampled_from([0] * 12 + list(range(1, len(choices)))))
        self.plain &= choice == 0
        return choices[choice]

    def size(self, at_least: int = 0) -> int:
        return max(at_least, self.one_of(3, 1, 2, 0, 5, 9, 33))

    def features(self) -> int:
        """H for LayerNorm; not 2, where its gradient is 0 but for ε, so that there is no digit to compare."""
        return self.one_of(3, 1, 5, 9, 33)

    def shape(self) -> tuple[int, ...]:
        """All axes but the last."""
        return tuple(self.size() for _ in range(self.one_of(2, 1, 0, 3)))

    def floats(self, *shape: int, x: bool = False) -> np.ndarray:
        """Normal numbers in float32, but for x, which chooses the kernel, perhaps in another dtype."""
        dtype = "float32" if x else self.unusual("float32", "float64", "float16", ">f4")
        return self.laid_out(self.rng.standard_normal(shape).astype(dtype))

    def integers(self, high: int, *shape: int) -> np.ndarray:
        dtype = self.one_of(*INTEGERS)
        return self.laid_out(self.rng.integers(0, min(high, 128), shape).astype(dtype))

    def parameter(self, size: int) -> np.ndarray:
        """(N,), or something that is broadcast to it."""
        return self.floats(*self.unusual((size,), (1,), ()))

    def laid_out(self, array: np.ndarray) -> np.ndarray:
        """The same numbers with other strides; or numbers that repeat themselves, with strides of 0."""
        layout = self.one_of("plain", "gaps", "backwards", "columns first", "repeated", "read-only")
        if array.ndim == 0 or layout == "plain":
            return array
        if layout == "gaps":
            wide = np.zeros((*array.shape[:-1], 2 * array.shape[-1]), array.dtype)
            wide[..., ::2] = array
            return wide[..., ::2]
        if layout == "backwards":
            return array[::-1].copy()[::-1]
        if layout == "repeated" and array.shape[0] > 0:
            return np.broadcast_to(array[:1].copy(), array.shape)
        if layout == "read-only":
            array.flags.writeable = False
            return array
        return np.asfortranarray(array)

    def number(self, value: float) -> Any:
        """A number as Python has it, or as NumPy has it, which then decides about the result's dtype."""
        of_numpy = np.float32(value), np.asarray(value, "float32")
        return self.unusual(self.one_of(value, *of_numpy), np.float64(value), np.asarray(value, "float64"))

    def epsilon(self) -> Any:
        return self.number(self.one_of(1e-12, 1e-5, 0.1, 1))

    def dropout(self) -> tuple[float, Any]:
        key = dropout_key(7, 1, 0, 0, self.one_of(3, 4))
        return self.one_of(0.1, 0.0, 0.5, 1.0), self.one_of(key, None, np.array(key, "uint32"))


# -- The arguments of each operation ------------------------------------------------------------------


def linear(draw):
    outputs, inputs = draw.size(1), draw.size(1)
    x = draw.floats(*draw.shape(), inputs, x=True)
    return x, draw.floats(outputs, inputs), draw.parameter(outputs)


def linear_activation(draw):
    return *linear(draw), draw.one_of("gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "tanh")


def layer_norm(draw):
    size = draw.features()
    x = draw.floats(*draw.shape(), size, x=True)
    return x, draw.parameter(size), draw.parameter(size), draw.epsilon()


def dropout_residual_norm(draw):
    x, *rest = layer_norm(draw)
    residual = draw.floats(*draw.unusual(x.shape, x.shape[-1:], (1,) * x.ndim))
    return x, residual, *rest, *draw.dropout()


def embed_(draw):
    size, words, types = draw.features(), draw.size(1), draw.size(1)
    batch, length = draw.size(), draw.size()
    positions = draw.unusual(length + draw.one_of(0, 3), 1) or 1
    tables = draw.floats(words, size, x=True), draw.floats(positions, size), draw.floats(types, size)
    ids = draw.integers(words, batch, length)
    type_ids = draw.integers(types, *draw.unusual((batch, length), (1, length)))
    norm = draw.parameter(size), draw.parameter(size)
    return *tables, *norm, ids, type_ids, draw.epsilon(), *draw.dropout()


def embedding(draw):
    rows = draw.size(1)
    return draw.floats(rows, draw.features(), x=True), draw.integers(rows, *draw.shape())


def packed_attention(draw):
    batch, length, heads, size = draw.size(), draw.size(), draw.size(1), draw.one_of(4, 1, 2, 3)
    qkv = draw.floats(batch, length, 3 * heads * size, x=True)
    draw.plain &= length > 0  # there is no softmax over nothing
    return qkv, draw_bias(draw, batch, heads, length), heads, *draw.dropout()


def unpadded_attention(draw):
    heads, size = draw.size(1), draw.one_of(4, 1, 2, 3)
    lengths = [draw.one_of(3, 1, 0, 5, 33) for _ in range(draw.one_of(4, 1, 7))] + [draw.size(1)]
    starts = np.cumsum([0, *lengths]).astype(draw.one_of("int64", "int32"))
    qkv = draw.floats(sum(lengths), 3 * heads * size, x=True)
    return qkv, starts, heads, *draw.dropout()


def draw_bias(draw, batch, heads, length):
    """As ``attention_bias`` makes it of every kind of mask, per head (ALiBi), or anything else that fits."""
    if draw.one_of(True, False):
        real = draw.one_of(
            lambda: draw.rng.integers(0, 2, (batch, length)), lambda: np.ones((batch, length))
        )()
        attention_mask = draw.laid_out(real.astype(draw.one_of("bool", "float32", *INTEGERS)))
        causal = draw.one_of(False, True)
        return draw.laid_out(ops.attention_bias(attention_mask, draw.unusual("float32", "float64"), causal))
    scores = batch, heads, length, length
    shape = [n if draw.one_of(True, False) else 1 for n in scores]
    return draw.floats(*shape[draw.one_of(0, 1, 2, 3, 4) :])


def masked_lm_loss_(draw):
    words = draw.one_of(5, 1, 130, 300)
    hidden, weight, bias = linear_of(draw, draw.size(), draw.size(1), words)
    labels = draw.integers(words, len(hidden))
    weights = draw.floats(len(hidden))
    return hidden, weight, bias, labels, weights, draw.number(draw.one_of(2.5, 3))


def linear_of(draw, rows, inputs, outputs):
    return draw.floats(rows, inputs, x=True), draw.floats(outputs, inputs), draw.parameter(outputs)


def global_norm(draw):
    grad = draw.floats(draw.one_of(0, 1, 16, 50), x=True)
    draw.plain &= grad.flags.c_contiguous
    return (grad,)


def adamw_update(draw):
    size = draw.one_of(0, 1, 16, 50)
    value, mean, variance = (draw.rng.standard_normal(size).astype("float32") for _ in range(3))
    variance *= variance
    if draw.one_of(False, True):
        value, mean, variance = np.stack([value, mean, variance], axis=1).T  # with gaps: they may be declined
        draw.plain = False
    rates = *(draw.number(rate) for rate in (0.01, 0.5)), 0.9, 0.999, 1e-6, draw.one_of(0.01, 0)
    corrections = draw.one_of((), (draw.number(0.1), draw.number(0.02)))
    keywords = {
        "copy": draw.one_of(None, np.zeros(size, "float32"), np.zeros(size, "float16")),
        "norm": draw.one_of(None, np.float32(2.0), np.float32(np.inf), np.asarray(np.nan, "float32")),
    }
    grad = draw.floats(size)
    draw.plain &= grad.flags.c_contiguous
    return (value, grad, mean, variance, *rates, *corrections), keywords


def orthogonalise(draw):
    return (draw.floats(*draw.shape(), draw.size(1), draw.size(1), x=True),)


STRATEGIES = {
    "linear": linear,
    "linear_activation": linear_activation,
    "layer_norm": layer_norm,
    "dropout_residual_norm": dropout_residual_norm,
    "embedding": embedding,
    "embed": embed_,
    "packed_attention": packed_attention,
    "unpadded_attention": unpadded_attention,
    "masked_lm_loss": masked_lm_loss_,
    "sums_of_squares": global_norm,
    "global_norm": global_norm,
    "adamw_update": adamw_update,
    "orthogonalise": orthogonalise,
}

REGISTERED = [
    (name, dtype)
    for name, entry in ops.TABLE.items()
    for library, dtype in entry.kernels
    if library == "numpy"
]


# -- The comparison -----------------------------------------------------------------------------------


def results(implementation: Implementation, arguments: tuple, keywords: dict, dout: Any) -> list[Any]:
    """The output and the gradients; or the result; or what was changed in place."""
    with np.errstate(all="ignore"):
        if implementation.backward is None:
            result = implementation.forward(*arguments, **keywords)
            if result is not None:
                return [result]
            return [arguments[i] for i in (0, 2, 3)] + [a for a in [keywords["copy"]] if a is not None]
        y, cache = implementation.forward(*arguments, **keywords)
        gradients = implementation.backward(dout, cache)
        gradients = gradients if isinstance(gradients, tuple) else (gradients,)
        again = implementation.backward(dout, cache)
        again = again if isinstance(again, tuple) else (again,)
        for once, twice in zip(gradients, again, strict=True):
            assert np.array_equal(once, twice, equal_nan=True), "the backward has changed its cache"
        return [y, *gradients]


def map_floats(function, value: Any) -> Any:
    """The value with ``function(array)`` in place of an array of floats, or of a NumPy number."""
    is_float = isinstance(value, np.ndarray | np.generic) and value.dtype.kind == "f"
    return function(value) if is_float else value


def copied(values: Any, change=np.copy) -> Any:
    """The arguments, tuple or dict, with ``change(array)`` in place of every array of floats."""
    if isinstance(values, dict):
        return {name: map_floats(change, value) for name, value in values.items()}
    return tuple(map_floats(change, value) for value in values)


def widened(values: Any) -> Any:
    """The arguments with the floats in float64."""
    return copied(values, lambda array: array.astype(np.float64))


def allowed_error(reference, arguments, keywords, dout, exact, dtype) -> list[float]:
    """For each result how far from the exact one it may be: see the top.

    The reference, too, gets nothing wider than ``dtype``, that of the kernel if there is one. Otherwise, with
    a dout in float64, its sums over many rows would be more exact than those of any kernel.
    """
    rng = np.random.default_rng(0)

    def nearby(alike, array):
        narrowest = min(array.dtype, np.dtype(dtype), key=lambda one: one.itemsize)
        changed = (1, *array.shape[1:]) if alike and array.ndim else array.shape
        return (array * (1.0 + UNIT * rng.uniform(-1.0, 1.0, changed))).astype(narrowest)

    worst = [0.0] * len(exact)
    for alike in [False] * 8 + [True] * 8:  # equal rows stay equal, and their rounding errors add up
        change = partial(nearby, alike)
        near_arguments, near_keywords = copied(arguments, change), copied(keywords, change)
        near = results(reference, near_arguments, near_keywords, *copied((dout,), change))
        worst = [max(most, distance(a, b)) for most, a, b in zip(worst, near, exact, strict=True)]
    # The "exact" result has the errors of float64: 1 + erf(x) is 0 where x < −6. A kernel may know better.
    own = np.finfo("float64").eps
    return [
        TIMES * (most + UNIT * distance(0.0, right)) + own for most, right in zip(worst, exact, strict=True)
    ]


def distance(a: Any, b: Any) -> float:
    return float(np.linalg.norm(np.ravel(np.asarray(a, np.float64) - np.asarray(b, np.float64))))


def draw_dout(draw, y):
    """The derivative of the loss, of y's shape; of a loss a number of any kind."""
    if y.ndim == 0:
        return draw.one_of(1.7, 1, np.float32(1.7), np.float64(1.7), np.asarray(1.7, "float32"))
    return draw.laid_out(draw.rng.standard_normal(y.shape).astype(draw.one_of("float32", "float64")))


def test_there_are_kernels_to_test():
    assert {"linear", "packed_attention", "embed"} <= {name for name, _ in REGISTERED}


def test_the_bound_allows_for_words_that_are_all_alike():
    """Each has the same probability, rounded alike: the error of their sum is that of one, 300 times."""
    entry, alike = ops.TABLE["masked_lm_loss"], (300, 1)
    for seed in range(270, 280):  # 276 was 1.3 times the bound that took them for different
        rng = np.random.default_rng(seed)
        hidden = rng.standard_normal((1, 1)).astype("float32")
        weight = np.broadcast_to(rng.standard_normal(alike).astype("float32")[:1], alike)
        bias = np.broadcast_to(rng.standard_normal(300).astype("float32")[:1], 300)
        labels, weights = rng.integers(0, 128, 1), rng.standard_normal(1).astype("float32")
        arguments = hidden, weight, bias, labels, weights, 2.5
        got = results(entry.kernels["numpy", "float32"], copied(arguments), {}, 1.7)
        exact = results(entry.reference, widened(arguments), {}, 1.7)
        bounds = allowed_error(entry.reference, arguments, {}, 1.7, exact, "float32")
        assert all(distance(a, b) <= bound for a, b, bound in zip(got, exact, bounds, strict=True))


def test_the_bound_allows_for_a_sum_over_many_rows():
    """Equal rows are rounded alike, and a dout in float64 must not make the reference's sums more exact."""
    entry, shape = ops.TABLE["linear_activation"], (33, 33, 3, 3)
    for seed in range(4):
        rng = np.random.default_rng(seed)
        x, dout = (np.broadcast_to(rng.standard_normal(shape)[:1], shape) for _ in range(2))
        weight, bias = (rng.standard_normal(size).astype("float32") for size in ((3, 3), 3))
        arguments = x.astype("float32"), weight, bias, "gelu"
        got = results(entry.kernels["numpy", "float32"], arguments, {}, dout)
        exact = results(entry.reference, widened(arguments), {}, dout)
        bounds = allowed_error(entry.reference, arguments, {}, dout, exact, "float32")
        assert all(distance(a, b) <= bound for a, b, bound in zip(got, exact, bounds, strict=True))


@pytest.mark.parametrize(("name", "dtype"), REGISTERED)
@settings(max_examples=60)
@given(data=st.data())
def test_the_kernel_or_the_reference_computes_what_the_reference_does(name, dtype, data):
    assert name in STRATEGIES, f"draw arguments for the kernel of {name!r} here"
    entry, draw = ops.TABLE[name], Drawn(data)
    drawn = STRATEGIES[name](draw)
    arguments, keywords = drawn if isinstance(drawn[-1], dict) else (drawn, {})
    kernel, reference = entry.kernels["numpy", dtype], entry.reference
    accepted = kernel.accepts(*arguments, **keywords)
    assert accepted or not draw.plain, "these are as the docstring has them"
    before, keywords_before = copied(arguments), copied(keywords)

    dout = None
    try:
        if reference.backward is not None:
            dout = draw_dout(draw, reference.forward(*copied(before))[0])
        (dout_before,) = copied((dout,))
        same = results(reference, copied(before), copied(keywords_before), dout_before)
    except (ValueError, IndexError):
        assert not accepted, "the reference refuses them"
        return
    got = results(kernel if accepted else reference, arguments, keywords, dout)
    exact = results(reference, widened(before), widened(keywords_before), *widened((dout_before,)))
    bounds = allowed_error(
        reference, before, keywords_before, dout_before, exact, dtype if accepted else "float64"
    )
    for number, (result, right, bound) in enumerate(zip(got, exact, bounds, strict=True)):
        assert result.shape == right.shape
        error = distance(result, right)
        assert error <= bound or np.isnan(bound), f"result {number}: {error:.2g} of {bound:.2g} allowed"
    if accepted and reference.backward is not None:
        assert {result.dtype.name for result in got} == {dtype}
        assert same[0].dtype == dtype, "the reference has more digits for these"
        for array, original in zip((*arguments, dout), (*before, dout_before), strict=True):
            assert not isinstance(array, np.ndarray) or np.array_equal(array, original), "overwritten"


# -- One by one: what was wrong once, or would be seldom drawn ------------------------------------------


def kernel_of(name):
    return ops.TABLE[name].kernels["numpy", "float32"]


def relative_error(got, expected):
    return np.linalg.norm(got - expected) / np.linalg.norm(expected)


def biases(batch=3, heads=2, length=7):
    rng = np.random.default_rng(0)
    distance_to_key = -np.abs(np.arange(length)[:, None] - np.arange(length))
    slopes = 0.5 ** np.arange(heads)[:, None, None]
    return {
        "ALiBi": slopes * distance_to_key,  # (A, S, S)
        **{
            str(shape): rng.standard_normal(shape)
            for shape in (
                *((1, heads, length, length), (batch, heads, length, length), (1, 1, length, length)),
                *((batch, 1, 1, length), (batch, 1, length, length), (batch, heads, 1, length)),
                *((1, 1, 1, 1), (length, length), (length,), (), (batch, 1, length, 1)),
            )
        },
    }


@pytest.mark.parametrize(("word", "kind"), [(7, 0), (-8, 0), (0, 2), (0, -3)])
def test_ids_without_a_row_are_refused_like_the_reference_does(word, kind):
    words, positions, types = (np.ones((rows, 4), "float32") for rows in (7, 3, 2))
    ids, type_ids = np.zeros((2, 2, 3), "int64")
    arguments = words, positions, types, words[0], words[0], ids, type_ids, 1e-12, 0.0, None
    assert kernel_of("embed").accepts(*arguments)
    ops.embed(*arguments)
    ids[1, 2], type_ids[1, 2] = word, kind
    with pytest.raises(IndexError):
        ops.embed(*arguments)
    with ops.reference_only(), pytest.raises(IndexError):
        ops.embed(*arguments)


@pytest.mark.parametrize("form", biases())
def test_attention_with_every_form_of_bias(form):
    bias = biases()[form].astype("float32")
    qkv, dout = np.random.default_rng(1).standard_normal((2, 3, 7, 24)).astype("float32")
    arguments = qkv, bias, 2, 0.1, dropout_key(1, 0, 0, 0, 0)
    assert kernel_of("packed_attention").accepts(*arguments)
    y, cache = ops.packed_attention(*arguments)
    dqkv = ops.packed_attention_backward(dout[..., :8], cache)
    with ops.reference_only():
        expected, cache = ops.packed_attention(qkv.astype("float64"), *arguments[1:])
        expected_dqkv = ops.packed_attention_backward(dout[..., :8].astype("float64"), cache)
    assert relative_error(y, expected) < 1e-6 and relative_error(dqkv, expected_dqkv) < 1e-6


def silu(x):
    """y = x σ(x)."""
    share = 1.0 / (1.0 + np.exp(-x))
    return x * share, (x, share)


def silu_backward(dout, cache):
    x, share = cache
    return dout * share * (1.0 + x * (1.0 - share))


@pytest.mark.parametrize("name", ["silu", "gelu"])
def test_one_entry_makes_a_new_activation_and_no_kernel_computes_another(monkeypatch, name):
    """Also where the name is one that the kernels know."""
    monkeypatch.setitem(ops.ACTIVATIONS, name, (silu, silu_backward))
    x, weight, dout = np.random.default_rng(0).standard_normal((3, 4, 4)).astype("float32")
    on_a_gpu = ops.TABLE["linear_activation"].kernels["cupy", "float32"]
    assert not on_a_gpu.accepts(x, weight, weight[0], name)
    assert on_a_gpu.accepts(x, weight, weight[0], "gelu") == (name == "silu")
    y, cache = ops.linear_activation(x, weight, weight[0], name)
    z = x @ weight.T + weight[0]
    np.testing.assert_allclose(y, silu(z)[0], rtol=1e-5)
    dx, _, _ = ops.linear_activation_backward(dout, cache)
    np.testing.assert_allclose(dx, silu_backward(dout, silu(z)[1]) @ weight, rtol=1e-4, atol=1e-6)


def test_gelu_of_what_is_not_finite_is_that_of_the_reference():
    x = np.array([[np.inf], [-np.inf], [np.nan], [1e30], [-1e30], [3e38]], "float32")
    one, zero = np.ones((1, 1), "float32"), np.zeros(1, "float32")
    with np.errstate(all="ignore"):
        y, _ = kernel_of("linear_activation").forward(x, one, zero, "gelu")
        expected, _ = ops.ACTIVATIONS["gelu"][0](x)
    np.testing.assert_array_equal(y, expected)
    assert y[0, 0] == np.inf


@pytest.mark.parametrize("eps", [1e-12, 1e-5])
def test_layer_norm_of_a_single_feature_is_a_constant(eps):
    """x̂ = 0 whatever x is, so the gradient is exactly 0, however much 1/σ makes of a rounding error."""
    x, dout = np.random.default_rng(0).standard_normal((2, 1000, 1)).astype("float32")
    weight, bias = np.array([[1.7], [0.3]], "float32")
    y, cache = kernel_of("layer_norm").forward(x, weight, bias, eps)
    assert (y == bias).all()
    dx, dweight, _ = kernel_of("layer_norm").backward(dout, cache)
    assert not dx.any() and not dweight.any()


def test_a_label_out_of_range_may_stand_in_a_row_that_does_not_count():
    rng = np.random.default_rng(0)
    hidden, weight = rng.standard_normal((2, 9, 8)).astype("float32")
    labels, weights = rng.integers(0, 9, 9), np.ones(9, "float32")
    weights[3] = 0.0
    results_of = []
    for label in (0, -100, 10**9):
        labels[3] = label
        loss, cache = kernel_of("masked_lm_loss").forward(hidden, weight, weight[:, 0], labels, weights, 8.0)
        results_of.append([loss, *kernel_of("masked_lm_loss").backward(1.0, cache)])
    for other in results_of[1:]:
        for one, two in zip(results_of[0], other, strict=True):
            np.testing.assert_array_equal(one, two)


def test_scores_of_a_chunk_of_words_may_all_be_far_below_those_of_another():
    """A chunk's exponentials are relative to its own largest score, those of a softmax to that of all."""
    rng = np.random.default_rng(0)
    hidden, weight = (rng.standard_normal((n, 8)).astype("float32") for n in (5, 300))
    bias = np.repeat(np.array([-150, 150, -60], dtype="float32"), [128, 128, 44])
    labels = np.array([3, 130, 299, 255, 0])
    arguments = hidden, weight, bias, labels, np.ones(5, "float32"), 5.0
    loss, cache = kernel_of("masked_lm_loss").forward(*arguments)
    got = [loss, *kernel_of("masked_lm_loss").backward(1.0, cache)]
    exact = results(ops.TABLE["masked_lm_loss"].reference, widened(arguments), {}, 1.0)
    rounding = np.spacing(np.float32(150))  # of a score; exp makes it a relative error
    assert all(relative_error(one, two) < rounding for one, two in zip(got, exact, strict=True))


def test_a_batch_without_a_masked_word_has_a_loss_of_0():
    model = BertForPreTraining(BertConfig.preset("tiny", vocab_size=50))
    outputs, cache = model.forward([[1, 2, 3, 4]], labels=[[-100] * 4])
    model.backward(cache)
    assert outputs.loss == 0.0
    for dimensions in ((0, 8), (2, 0, 8)):
        x, weight = np.zeros(dimensions, "float32"), np.ones((5, 8), "float32")
        y, cache = ops.linear(x, weight, weight[:, 0])
        dx, dweight, _ = ops.linear_backward(y, cache)
        assert y.shape == (*dimensions[:-1], 5) and dx.shape == dimensions and not dweight.any()


def test_a_training_step_is_computed_by_the_kernels(monkeypatch):
    """In none of its calls does a kernel decline: a predicate that is too strict would only be slow."""
    declined = []
    for name, entry in ops.TABLE.items():
        for (library, dtype), kernel in list(entry.kernels.items()):
            if library == "numpy":

                def accepts(*arguments, name=name, asked=kernel.accepts, **keywords):
                    accepted = asked(*arguments, **keywords)
                    if not accepted:
                        declined.append(name)
                    return accepted

                monkeypatch.setitem(entry.kernels, (library, dtype), replace(kernel, accepts=accepts))
    model = BertForPreTraining(BertConfig.preset("tiny", vocab_size=50))
    ids = np.random.default_rng(0).integers(0, 50, (2, 9))
    _, cache = model.forward(ids, labels=np.where(ids < 20, ids, -100), next_sentence_label=[0, 1])
    model.backward(cache)
    AdamW(model).step(1e-3, 0)
    assert declined == []
