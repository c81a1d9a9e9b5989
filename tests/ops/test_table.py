"""The table of replaceable operations, by a pair of operations made up for the purpose."""

import inspect

import ml_dtypes  # noqa: F401  (so that NumPy knows the name "bfloat16")
import numpy as np
import pytest
import strict

from minibert import ops
from minibert.arrays import HALF
from minibert.ops import table
from minibert.ops.table import TABLE, reference_only, register, replaceable, replaceable_pair


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
    """Who made a cache: to callers it is opaque, to this test it is (implementation, cache)."""
    return y_and_cache[1][1][0]


def test_a_kernel_is_used_for_its_library_and_dtype_only(operation):
    forward, _ = operation
    assert maker(forward(np.ones(3, "float32"))) == "fast"
    assert maker(forward(np.ones(3, "float64"))) == "reference"
    assert maker(forward(strict.xp.ones(3, dtype="float32"))) == "reference"


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


def test_arguments_by_name(operation):
    forward, backward = operation
    for dtype in ("float32", "float64"):
        y, cache = forward(np.ones(3, dtype), times=3)
        np.testing.assert_array_equal(y, [8.0] * 3)
        np.testing.assert_array_equal(backward(y, cache), [64.0] * 3)


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
    assert maker(forward(np.ones(3, dtype)))[0] == "reference"
    register("double", "numpy", dtype, fast_double, fast_double_backward)
    assert maker(forward(np.ones(3, dtype))) == "fast"
    with reference_only():
        assert maker(forward(np.ones(3, dtype)))[0] == "reference"


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
