"""The table of replaceable operations, by a pair of operations made up for the purpose."""

import inspect
import sys

import ml_dtypes  # noqa: F401  (so that NumPy knows the name "bfloat16")
import numpy as np
import pytest
import strict

from minibert import ops
from minibert.ops import table
from minibert.ops.attention import attention
from minibert.ops.table import TABLE, pair, reference_only, register, replaceable, replaceable_pair
from minibert.precision import HALF


def double(x, times=1):
    """y = 2ᵗx."""
    return x * 2.0**times, ("reference", times)


def double_backward(dout, cache):
    maker, times = cache
    assert maker == "reference"
    return dout * 2.0**times


def fast_double(x, times=1):
    return x * 2.0**times, ("fast", times)


def fast_double_backward(dout, cache):
    maker, times = cache
    assert maker == "fast"
    return dout * 2.0**times


@pytest.fixture
def operation(monkeypatch):
    """The pair (forward, backward), entered in a table of its own with a kernel for NumPy's float32."""
    monkeypatch.setattr(table, "TABLE", {})
    pair = replaceable_pair(double, double_backward)
    register("double", "numpy", "float32", fast_double, fast_double_backward)
    return pair


def maker(y_and_cache):
    """Who made a cache: to callers it is opaque, to this test it is the backward and the plain cache."""
    _, (who, *_) = y_and_cache[1].parts("double")
    return who


def test_a_kernel_is_used_for_its_library_and_dtype_only(operation):
    forward, _ = operation
    assert maker(forward(np.ones(3, "float32"))) == "fast"
    assert maker(forward(np.ones(3, "float64"))) == "reference"
    assert maker(forward(strict.xp.ones(3, dtype="float32"))) == "reference"


def test_a_kernel_is_used_for_the_arguments_that_it_accepts(monkeypatch):
    """It is asked with the very arguments of the forward, by name or not, and only where it would be used."""
    monkeypatch.setattr(table, "TABLE", {})
    forward, backward = replaceable_pair(double, double_backward)
    asked = []

    def accepts(x, times=1):
        asked.append(times)
        return times < 3

    register("double", "numpy", "float32", fast_double, fast_double_backward, accepts=accepts)
    x = np.ones(3, "float32")
    assert maker(forward(x, 2)) == maker(forward(x, times=1)) == maker(forward(times=2, x=x)) == "fast"
    y, cache = forward(x, times=4)
    assert maker((y, cache)) == "reference"
    np.testing.assert_array_equal(backward(x, cache), [16.0] * 3)
    assert asked == [2, 1, 2, 4]
    with reference_only():
        assert maker(forward(x, 1)) == maker(forward(x.astype("float64"), 1)) == "reference"
    assert asked == [2, 1, 2, 4]


def test_backward_goes_to_the_maker_of_the_cache(operation):
    """Also when the switch has been turned, or the kernel replaced, in between."""
    forward, backward = operation
    x = np.ones(3, "float32")
    _, fast = forward(x)
    with reference_only():
        _, slow = forward(x)
        np.testing.assert_array_equal(backward(x, fast), [2.0] * 3)
    np.testing.assert_array_equal(backward(x, slow), [2.0] * 3)
    register("double", "numpy", "float32", double, double_backward)
    np.testing.assert_array_equal(backward(x, fast), [2.0] * 3)


def test_reference_only_and_back(operation):
    forward, _ = operation
    x = np.ones(3, "float32")
    with reference_only():
        assert maker(forward(x)) == "reference"
        with reference_only():
            assert maker(forward(x)) == "reference"
        assert maker(forward(x)) == "reference", "the inner block does not end the outer one"
    assert maker(forward(x)) == "fast"
    with pytest.raises(ZeroDivisionError), reference_only():
        raise ZeroDivisionError
    assert maker(forward(x)) == "fast", "also after an error"


def test_blocks_of_reference_only_may_overlap(operation):
    """As in two threads: the one that began first may end first."""
    forward, _ = operation
    x, first, second = np.ones(3, "float32"), reference_only(), reference_only()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert maker(forward(x)) == "reference"
    second.__exit__(None, None, None)
    assert maker(forward(x)) == "fast"


def halve(x):
    return x / 2.0, ("half",)


def halve_backward(dout, cache):
    return dout / 2.0


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_a_backward_refuses_what_its_forward_did_not_make(operation, dtype):
    forward, backward = operation
    forward_of_half, backward_of_half = pair(halve, halve_backward)
    y, cache = forward(np.ones(3, dtype))
    half, half_cache = forward_of_half(y)
    np.testing.assert_array_equal(backward_of_half(half, half_cache), [0.5] * 3)
    with pytest.raises(
        ValueError, match="this cache was made by halve, so double cannot use it in its backward"
    ):
        backward(y, half_cache)
    with pytest.raises(
        ValueError, match="this cache was made by double, so halve cannot use it in its backward"
    ):
        backward_of_half(half, cache)
    for thing in (("reference", 1), None, [cache]):
        with pytest.raises(
            TypeError, match="double_backward needs the cache that double has returned, got a"
        ):
            backward(y, thing)
    for _ in range(3):
        np.testing.assert_array_equal(backward(y, cache), [4.0] * 3, "a cache may be used again")


def test_every_pair_of_ops_says_whose_cache_it_is():
    """Whatever ``ops`` exports with a backward beside it."""
    x = np.random.default_rng(0).random((2, 3))
    pairs = [
        (getattr(ops, name.removesuffix("_backward")), getattr(ops, name))
        for name in ops.__all__
        if name.endswith("_backward")
    ]
    pairs += ops.POOLING.values()
    assert len(pairs) > 20
    _, cache = pair(halve, halve_backward)[0](x)
    for forward, backward in pairs:
        assert backward.__name__ == f"{forward.__name__}_backward"
        with pytest.raises(
            ValueError, match=f"made by halve, so {forward.__name__} cannot use it in its backward"
        ):
            backward(x, cache)
    mask = np.ones((2, 3))
    for y, cache in (
        ops.softmax(x),
        ops.tanh(x),
        ops.unit_length(x),
        ops.POOLING["mean"][0](x[..., None], mask),
    ):
        assert isinstance(cache, ops.Cache) and y.shape[0] == 2


def frames_between(caller, function):
    """How many functions stand between a caller and the innermost one that runs ``function``'s code."""
    depths = []

    def look(frame, event, _):
        if event == "call" and frame.f_code is function.__code__:
            depth = 0
            while frame.f_back.f_code is not caller.__code__:
                frame, depth = frame.f_back, depth + 1
            depths.append(depth)

    sys.setprofile(look)
    try:
        caller()
    finally:
        sys.setprofile(None)
    return depths


def test_one_frame_of_ours_stands_before_the_plain_function():
    """And two plain functions, one above the other, compute q @ kᵀ."""
    x, bias = np.ones((1, 2, 6)), np.zeros((1, 1, 1, 2))

    def caller():
        ops.tanh(x)
        ops.packed_attention(x, bias, 1, 0.0, None)

    assert frames_between(caller, ops.tanh.__wrapped__) == [1]
    assert frames_between(caller, ops.packed_attention.__wrapped__) == [1]
    assert frames_between(caller, attention) == [2]


def test_arguments_by_name(operation):
    forward, backward = operation
    for dtype in ("float32", "float64"):
        y, cache = forward(np.ones(3, dtype), times=3)
        np.testing.assert_array_equal(y, [8.0] * 3)
        np.testing.assert_array_equal(backward(y, cache), [64.0] * 3)


def test_a_missing_first_argument_is_named():
    with pytest.raises(TypeError, match=r"linear\(\) is missing its argument 'x'"):
        ops.linear(weight=np.ones((2, 2)), bias=np.ones(2))


def test_an_operation_without_backward(monkeypatch):
    monkeypatch.setattr(table, "TABLE", {})

    def total(x, scale=1.0):
        return "reference", x.sum() * scale

    choose = replaceable(total)
    register("total", "numpy", "float32", lambda x, scale=1.0: ("fast", x.sum() * scale))
    assert choose(np.ones(3, "float32"), scale=2.0) == ("fast", 6.0)
    assert choose(np.ones(3, "float64"), 2.0) == ("reference", 6.0)
    with reference_only():
        assert choose(np.ones(3, "float32")) == ("reference", 3.0)


# -- 16 bits -----------------------------------------------------------------------------------------


def scaled_sum(x, weight, times):
    """y = weight · x and the dtypes of what came in, as the cache."""
    return weight * x * times, (x, weight)


def scaled_sum_backward(dout, cache):
    x, weight = cache
    assert {dout.dtype, x.dtype, weight.dtype} == {np.dtype("float32")}
    return dout * weight, (dout * x).sum(axis=0)


@pytest.mark.parametrize("dtype", HALF)
def test_in_16_bits_the_reference_computes_in_float32(monkeypatch, dtype):
    monkeypatch.setattr(table, "TABLE", {})
    forward, backward = replaceable_pair(scaled_sum, scaled_sum_backward)
    x, weight = np.full((4000, 1), 1.01).astype(dtype), np.full(1, 3.0).astype(dtype)
    y, cache = forward(x, weight=weight, times=2.0)
    assert y.dtype == dtype
    np.testing.assert_array_equal(y, (weight.astype("float32") * x.astype("float32") * 2.0).astype(dtype))
    dx, dweight = backward(np.ones_like(x), cache)
    assert dx.dtype == dtype, "the derivative of an activation is rounded"
    assert dweight.dtype == "float32", "that of a parameter is not"
    assert dweight[0] == pytest.approx(4000 * float(x[0, 0]), rel=1e-5), (
        "nor were its terms added up in 16 bits"
    )


def test_a_loss_is_not_rounded(monkeypatch):
    monkeypatch.setattr(table, "TABLE", {})
    forward, backward = replaceable_pair(
        lambda x: (x.sum(), x.shape), lambda dout, cache: dout + np.zeros(cache)
    )
    x = np.full(3, 1 / 3, dtype="float16")
    loss, cache = forward(x)
    assert loss.dtype == "float32" and loss == 3 * np.float32(x[0])
    assert backward(np.float32(1.0), cache).dtype == "float16"


@pytest.mark.parametrize("dtype", HALF)
def test_a_kernel_for_16_bits_comes_before_the_reference(operation, dtype):
    forward, _ = operation
    assert maker(forward(np.ones(3, dtype))) == "reference"
    register("double", "numpy", dtype, fast_double, fast_double_backward)
    assert maker(forward(np.ones(3, dtype))) == "fast"
    with reference_only():
        assert maker(forward(np.ones(3, dtype))) == "reference"


def test_only_known_operations_take_kernels():
    with pytest.raises(KeyError):
        register("no_such_operation", "numpy", "float32", double)


def test_a_replaceable_operation_shows_its_own_documentation(operation):
    forward, backward = operation
    assert forward.__doc__ == double.__doc__ and backward.__name__ == "double_backward"
    assert inspect.signature(ops.linear) == inspect.signature(TABLE["linear"].reference.forward)


def test_the_table_lists_what_models_call():
    """Every entry is reachable under its name in ``ops``, with its backward beside it where it has one."""
    for name, entry in TABLE.items():
        assert getattr(ops, name).__wrapped__ is entry.reference.forward
        if entry.reference.backward is not None:
            assert getattr(ops, f"{name}_backward").__wrapped__ is entry.reference.backward
    assert {"linear", "embed", "packed_attention", "masked_lm_loss", "adamw_update"} <= TABLE.keys()
