"""The complex step: right to the last digits where the code is analytic, and not silently wrong elsewhere."""

import math

import numpy as np
import pytest
from matrix_product import inputs, product, product_backward

from minibert.arrays import erf, get_array_module, to_numpy
from minibert.gradcheck import COMPLEX_STEP, check, complex_step, derivative_along, function_case

# Function and derivative, both of an array.
ANALYTIC = {
    "cube": (lambda xp, x: x * x * x, lambda x: 3.0 * x * x),
    "quotient": (lambda xp, x: 1.0 / x, lambda x: -1.0 / (x * x)),
    "root": (lambda xp, x: xp.sqrt(x * x + 1.0), lambda x: x / np.sqrt(x * x + 1.0)),
    "exp": (lambda xp, x: xp.exp(x), np.exp),
    "log": (lambda xp, x: xp.log(x * x), lambda x: 2.0 / x),
    "tanh": (lambda xp, x: xp.tanh(x), lambda x: 1.0 / np.cosh(x) ** 2),
    "erf": (lambda xp, x: erf(x), lambda x: 2.0 / math.sqrt(math.pi) * np.exp(-x * x)),
    "maximum": (lambda xp, x: xp.maximum(x, 0), lambda x: 1.0 * (x > 0)),
    "max": (lambda xp, x: x - x.max(), lambda x: 1.0 - (x == x.max()) * x.size),
    "where": (lambda xp, x: xp.where(x > 0, x * x, x), lambda x: np.where(x > 0, 2.0 * x, 1.0)),
}


@pytest.mark.parametrize("name", ANALYTIC)
def test_is_right_to_the_last_digits(device, name):
    if name == "erf" and device.xp.__name__ == "cupy":
        pytest.skip("CuPy has erf for real numbers only; the proofs take their complex steps on the host")
    function, derivative = ANALYTIC[name]
    x = np.random.default_rng(0).standard_normal(50)
    case = function_case(
        name, lambda x: (function(get_array_module(x), x), None), None, {"x": device.asarray(x)}
    )
    case.douts = [np.ones(50)]
    np.testing.assert_allclose(complex_step(case)["x"], derivative(x), rtol=1e-14)


def test_leaves_the_variables_alone(device):
    variables = inputs(device)
    before = {name: to_numpy(x).copy() for name, x in variables.items()}
    complex_step(function_case("it", product, product_backward, variables))
    for name, x in variables.items():
        np.testing.assert_array_equal(to_numpy(x), before[name])


def test_what_drops_all_imaginary_parts_is_refused(device):
    case = function_case("it", lambda x: (abs(x), x), lambda dout, x: dout * x, {"x": inputs(device)["x"]})
    with pytest.raises(ValueError, match="it: an output is real although the variables are complex"):
        check(case, COMPLEX_STEP)


def test_what_drops_some_imaginary_parts_is_wrong(device):
    case = function_case(
        "x·|x|", lambda x: (x * abs(x), x), lambda dout, x: dout * 2.0 * abs(x), {"x": inputs(device)["x"]}
    )
    [central] = check(case)
    [exact] = check(case, COMPLEX_STEP)
    assert central.ok  # the backward is right, and this forward cannot be checked by the complex step
    assert not exact.ok


def test_derivative_along_a_direction_moves_all_variables_at_once(device):
    variables = inputs(device)
    case = function_case("it", product, product_backward, variables)
    [rise] = derivative_along(case, {"x": variables["x"], "w": 2.0 * variables["w"]})
    expected = 3.0 * to_numpy(variables["x"] @ variables["w"])  # (dx) w + x (dw)
    np.testing.assert_allclose(to_numpy(rise), expected, rtol=1e-14)
