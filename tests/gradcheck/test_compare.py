"""The gradient checker: it passes what is right, and is not fooled by what is wrong."""

import doctest

import numpy as np
import pytest
import strict
from matrix_product import inputs, product, product_backward

from minibert import gradcheck
from minibert.devices import Device, resolve_device
from minibert.gradcheck import (
    CENTRAL_DIFFERENCES,
    COMPLEX_STEP,
    Case,
    Method,
    Row,
    check,
    check_adjoint,
    compare,
    function_case,
    relative_error,
)

METHODS = pytest.mark.parametrize(
    "method", [CENTRAL_DIFFERENCES, COMPLEX_STEP], ids=lambda method: method.name
)


def verdicts(forward, backward, variables, method: Method = CENTRAL_DIFFERENCES, **options) -> dict[str, Row]:
    case = function_case("it", forward, backward, variables, **options)
    return {row.parameter: row for row in check(case, method)}


def scaled_backward(factor: float):
    """The backward of the product with a wrong dx."""

    def backward(dout, cache):
        dx, dw = product_backward(dout, cache)
        return dx * factor, dw

    return backward


@METHODS
def test_passes_a_right_gradient(device, method):
    rows = verdicts(product, product_backward, inputs(device), method)
    assert list(rows) == ["x", "w"]
    assert all(row.ok and row.bound == method.relative_bound for row in rows.values())


def test_how_right_a_right_gradient_is(device):
    central = verdicts(product, product_backward, inputs(device))
    assert all(1e-14 < row.error < 1e-9 for row in central.values())
    exact = verdicts(product, product_backward, inputs(device), COMPLEX_STEP)
    assert all(row.error < 1e-15 for row in exact.values())


@METHODS
@pytest.mark.parametrize("factor", [1.0 + 1e-6, 1.0 - 1e-6])
def test_catches_a_gradient_wrong_by_a_millionth(device, factor, method):
    rows = verdicts(product, scaled_backward(factor), inputs(device), method)
    assert not rows["x"].ok
    assert rows["x"].error == pytest.approx(5e-7, rel=1e-2)  # half of it: both norms are in the denominator
    assert rows["w"].ok


@pytest.mark.parametrize("factor", [1.0 + 1e-11, 1.0 - 1e-11])
def test_the_complex_step_catches_an_error_that_central_differences_miss(device, factor):
    assert verdicts(product, scaled_backward(factor), inputs(device), CENTRAL_DIFFERENCES)["x"].ok
    sharp = verdicts(product, scaled_backward(factor), inputs(device), COMPLEX_STEP)
    assert not sharp["x"].ok
    assert sharp["x"].error == pytest.approx(5e-12, rel=1e-2)
    assert sharp["w"].ok


@METHODS
def test_catches_one_wrong_element(device, method):
    def backward(dout, cache):
        dx, dw = product_backward(dout, cache)
        dx[0, 0] *= 1.00001
        return dx, dw

    assert not verdicts(product, backward, inputs(device), method)["x"].ok


@pytest.mark.parametrize(
    ("spoil", "note"),
    [
        (lambda dx: dx.T, "shape (4, 3), expected (3, 4)"),
        (lambda dx: dx.reshape(-1), "shape (12,), expected (3, 4)"),
        (lambda dx: dx.sum(axis=0, keepdims=True), "shape (1, 4), expected (3, 4)"),
        (lambda dx: None, "of type NoneType"),
        (lambda dx: 0.0, "of type float"),
        (lambda dx: dx.astype("float32"), "float32, expected float64"),
    ],
)
def test_catches_what_is_no_gradient_at_all(device, spoil, note):
    def backward(dout, cache):
        dx, dw = product_backward(dout, cache)
        return spoil(dx), dw

    row = verdicts(product, backward, inputs(device))["x"]
    assert not row.ok
    assert note in row.note


def test_catches_an_array_of_another_library():
    variables = inputs(Device("strict", strict.xp))
    rows = verdicts(
        product, lambda dout, cache: (np.ones((3, 4)), product_backward(dout, cache)[1]), variables
    )
    assert "of type ndarray" in rows["x"].note


@METHODS
def test_catches_a_transposed_gradient_of_a_square_matrix(device, method):
    def backward(dout, cache):
        return tuple(gradient.T for gradient in product_backward(dout, cache))

    rows = verdicts(product, backward, inputs(device, square=True), method)
    assert not rows["x"].ok
    assert not rows["w"].ok


def test_catches_a_silent_reshape(device):
    def backward(dout, cache):
        dx, dw = product_backward(dout, cache)
        return dx.T.copy().reshape(dx.shape), dw  # the right shape, the wrong order

    assert not verdicts(product, backward, inputs(device))["x"].ok


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
@METHODS
def test_catches_a_gradient_that_is_not_a_number(device, wrong, method):
    def backward(dout, cache):
        return tuple(gradient * wrong for gradient in product_backward(dout, cache))

    rows = verdicts(product, backward, inputs(device), method)
    with np.errstate(invalid="ignore"):
        assert not any(row.ok for row in rows.values())


@METHODS
def test_catches_a_backward_that_overwrites_a_variable(device, method):
    def backward(dout, cache):
        gradients = product_backward(dout, cache)
        cache[0][0] += 1.0
        return gradients

    variables = inputs(device)
    before = variables["x"].copy()
    rows = verdicts(product, backward, variables, method)
    assert "overwrote" in rows["x"].note
    assert not rows["x"].ok
    assert bool((variables["x"] == before).all())  # put back


@METHODS
def test_catches_a_forward_that_overwrites_a_variable_again_and_again(device, method):
    """The second time, nothing changes any more: the absolute value, in place."""

    def forward(x):
        x[...] = x * ((x.real > 0) * 2 - 1)
        return x * x * x, x

    def backward(dout, cache):
        return 3 * cache * cache * dout

    variables = {"x": device.asarray(np.array([0.5, -3.0, 2.0, -1.0]))}
    row = verdicts(forward, backward, variables, method)["x"]
    assert not row.ok and "overwrote" in row.note
    case = function_case("it", forward, backward, {"x": device.asarray(np.array([0.5, -3.0]))})
    assert not check_adjoint(case).ok


@METHODS
def test_not_a_number_is_not_zero(device, method):
    def backward(dout, cache):
        return dout * 0.0

    variables = {"x": device.asarray(np.array([0.5, -3.0]))}
    with np.errstate(invalid="ignore"):
        row = verdicts(lambda x: (x * np.nan, None), backward, variables, method, zeros=["x"])["x"]
    assert not row.ok


def test_a_backward_may_overwrite_its_dout(device):
    def backward(dout, cache):
        gradients = product_backward(dout, cache)
        dout *= 0.0
        return gradients

    case = function_case("it", product, backward, inputs(device))
    assert all(row.ok for row in check(case) + check(case))


@METHODS
def test_a_numeric_derivative_that_is_no_number_is_told(device, method):
    def broken(x):
        return x * float("nan"), None

    row = verdicts(broken, lambda dout, cache: dout, {"x": device.asarray([1.0, 2.0])}, method)["x"]
    assert not row.ok and "the numeric derivative is NaN or infinite" in row.note


@METHODS
def test_a_zero_derivative_must_be_declared_and_be_zero(device, method):
    def ignoring(x, w):
        return x * 2.0, (x, w)

    def backward(dout, cache):
        return dout * 2.0, cache[1] * 0.0

    variables = inputs(device)
    undeclared = verdicts(ignoring, backward, variables, method)["w"]
    assert not undeclared.ok
    assert "the derivative is zero" in undeclared.note
    declared = verdicts(ignoring, backward, variables, method, zeros=["w"])["w"]
    assert declared.ok
    assert declared.bound == method.absolute_bound

    def nearly(dout, cache):
        return dout * 2.0, cache[1] * (10.0 * method.absolute_bound)

    wrong = verdicts(ignoring, nearly, variables, method, zeros=["w"])["w"]
    assert not wrong.ok
    not_zero = verdicts(product, product_backward, variables, method, zeros=["w"])["w"]
    assert not not_zero.ok


def test_refuses_float32_and_unknown_names(device):
    variables = inputs(device)
    with pytest.raises(ValueError, match="x is float32; numeric derivatives need float64"):
        function_case("it", product, product_backward, variables | {"x": variables["x"].astype("float32")})
    with pytest.raises(ValueError, match=r"x is not contiguous; give a copy, x\.copy\(\)"):
        function_case("it", product, product_backward, variables | {"x": variables["x"].T})
    with pytest.raises(ValueError, match=r"declared zero but not among the variables: \['v'\]"):
        function_case("it", product, product_backward, variables, zeros=["v"])


def test_refuses_another_number_of_gradients_than_of_inputs(device):
    with pytest.raises(ValueError, match="backward returned 1 gradients for the inputs x, w"):
        verdicts(product, lambda dout, cache: dout, inputs(device))
    case = Case("it", inputs(device), lambda variables: list(variables.values()), lambda douts: {"x": None})
    with pytest.raises(ValueError, match=r"gradients of \['x'\], expected of \['w', 'x'\]"):
        check(case)


@METHODS
def test_an_output_that_is_the_input_itself(device, method):
    variables = {"x": inputs(device)["x"]}
    assert verdicts(lambda x: (x, None), lambda dout, cache: dout, variables, method)["x"].ok


def test_a_forward_that_draws_anew_is_named_and_not_taken_for_a_wrong_backward():
    rng = np.random.default_rng(0)

    def noisy(x, w):
        return x @ w * rng.random(), (x, w)

    rows = verdicts(noisy, product_backward, inputs(resolve_device("cpu"))).values()
    assert not any(row.ok for row in rows)
    assert {row.note for row in rows} == {compare.DIFFERS}


def test_a_wrong_gradient_says_where_and_by_which_factor(device):
    rows = verdicts(product, scaled_backward(0.5), inputs(device))
    assert "it is off the most at [" in str(rows["x"])
    assert str(rows["x"]).endswith("All its numbers are 0.5 times what they should be.")
    assert rows["w"].ok and not rows["w"].note


@pytest.mark.parametrize(
    ("forward", "what"),
    [(lambda x: x * x, "ndarray"), (lambda x: (x, x, x), "tuple"), (lambda x: (2.0, x), "tuple")],
)
def test_a_forward_without_a_cache_is_told_apart(forward, what):
    with pytest.raises(ValueError, match=rf"it: forward returned {what}, expected \(y, cache\), y an array"):
        verdicts(forward, lambda dout, x: dout, {"x": np.ones((2, 3))})


def test_an_input_that_is_no_array():
    with pytest.raises(ValueError, match="it: x is of type list; expected an array"):
        verdicts(lambda x: (x, x), lambda dout, x: dout, {"x": [1.0]})


def test_gradients_may_stand_in_a_list(device):
    listed = lambda dout, cache: list(product_backward(dout, cache))  # noqa: E731
    assert all(row.ok for row in verdicts(product, listed, inputs(device)).values())


def test_a_method_is_applied_once_and_on_the_host_where_that_is_given(device):
    on_host, case = (
        function_case("it", product, product_backward, inputs(each))
        for each in (resolve_device("cpu"), device)
    )
    assert all(row.ok for row in check(case, COMPLEX_STEP, on_host))
    assert not case.numeric
    found = on_host.numeric["complex"]
    assert all(row.ok for row in check(case, COMPLEX_STEP, on_host))
    assert on_host.numeric["complex"] is found


def test_the_numeric_gradient_is_that_of_the_values_of_now():
    """A variable of a model is a live array: a step of training changes it."""
    x = np.array([0.5, -3.0])
    case = function_case("square", lambda x: (x * x, x), lambda dout, x: 2.0 * x * dout, {"x": x})
    for values in ([0.5, -3.0], [1.0, 2.0]):
        x[...] = values
        (row,) = check(case)
        assert row.ok, row


def test_relative_error():
    assert relative_error(np.array([3.0, 4.0]), np.array([3.0, 4.0])) == 0.0
    assert relative_error(np.array([3.0, 4.0]), np.array([-3.0, -4.0])) == 1.0
    assert relative_error(np.array([3.0, 4.0]), np.zeros(2)) == 1.0
    assert relative_error(np.zeros(2), np.zeros(2)) == float("inf")


def test_the_bounds_are_those_of_the_design():
    assert (CENTRAL_DIFFERENCES.relative_bound, COMPLEX_STEP.relative_bound) == (1e-7, 1e-13)


def test_docstring_example():
    assert doctest.testmod(gradcheck).attempted >= 4
    assert doctest.testmod(gradcheck).failed == 0
