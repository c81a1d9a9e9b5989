"""The gradient checker: it passes what is right, and is not fooled by what is wrong."""

import doctest

import numpy as np
import pytest
import strict

from minibert import gradcheck
from minibert.arrays import Device
from minibert.gradcheck import (
    ABSOLUTE_BOUND,
    RELATIVE_BOUND,
    Case,
    Draws,
    Row,
    check,
    function_case,
    module_case,
    report,
)


def product(x, w):
    """y = x w for a matrix product of (B, K) and (K, N)."""
    return x @ w, (x, w)


def product_backward(dout, cache):
    x, w = cache
    return dout @ w.T, x.T @ dout


def inputs(device: Device, square: bool = False) -> dict:
    draw = Draws(device, 1)
    return {"x": draw.normal(4, 4) if square else draw.normal(3, 4), "w": draw.matrix(4, 4 if square else 2)}


def verdicts(forward, backward, variables, **options) -> dict[str, Row]:
    return {row.parameter: row for row in check(function_case("it", forward, backward, variables, **options))}


def test_passes_a_right_gradient(device):
    rows = verdicts(product, product_backward, inputs(device))
    assert list(rows) == ["x", "w"]
    assert all(row.ok and 0.0 < row.error < 1e-9 and row.bound == RELATIVE_BOUND for row in rows.values())


@pytest.mark.parametrize("factor", [1.0 + 1e-6, 1.0 - 1e-6])
def test_catches_a_gradient_wrong_by_a_millionth(device, factor):
    def backward(dout, cache):
        dx, dw = product_backward(dout, cache)
        return dx * factor, dw

    rows = verdicts(product, backward, inputs(device))
    assert not rows["x"].ok
    assert rows["x"].error == pytest.approx(5e-7, rel=1e-2)  # half of it: both norms are in the denominator
    assert rows["w"].ok


def test_catches_one_wrong_element(device):
    def backward(dout, cache):
        dx, dw = product_backward(dout, cache)
        dx[0, 0] *= 1.00001
        return dx, dw

    assert not verdicts(product, backward, inputs(device))["x"].ok


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


def test_catches_a_transposed_gradient_of_a_square_matrix(device):
    rows = verdicts(product, lambda *a: tuple(d.T for d in product_backward(*a)), inputs(device, square=True))
    assert not rows["x"].ok
    assert not rows["w"].ok


def test_catches_a_silent_reshape(device):
    def backward(dout, cache):
        dx, dw = product_backward(dout, cache)
        return dx.T.copy().reshape(dx.shape), dw  # the right shape, the wrong order

    assert not verdicts(product, backward, inputs(device))["x"].ok


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_catches_a_gradient_that_is_not_a_number(device, wrong):
    rows = verdicts(product, lambda *a: tuple(d * wrong for d in product_backward(*a)), inputs(device))
    with np.errstate(invalid="ignore"):
        assert not any(row.ok for row in rows.values())


def test_catches_a_backward_that_overwrites_a_variable(device):
    def backward(dout, cache):
        gradients = product_backward(dout, cache)
        cache[0][0] += 1.0
        return gradients

    variables = inputs(device)
    before = variables["x"].copy()
    rows = verdicts(product, backward, variables)
    assert "overwrote" in rows["x"].note
    assert not rows["x"].ok
    assert bool((variables["x"] == before).all())  # put back


def test_a_backward_may_overwrite_its_dout(device):
    def backward(dout, cache):
        gradients = product_backward(dout, cache)
        dout *= 0.0
        return gradients

    case = function_case("it", product, backward, inputs(device))
    assert all(row.ok for row in check(case) + check(case))


def test_a_zero_derivative_must_be_declared_and_be_zero(device):
    def ignoring(x, w):
        return x * 2.0, (x, w)

    def backward(dout, cache):
        return dout * 2.0, cache[1] * 0.0

    variables = inputs(device)
    undeclared = verdicts(ignoring, backward, variables)["w"]
    assert not undeclared.ok
    assert "the derivative is zero" in undeclared.note
    declared = verdicts(ignoring, backward, variables, zeros=["w"])["w"]
    assert declared.ok
    assert declared.bound == ABSOLUTE_BOUND
    wrong = verdicts(ignoring, lambda *a: (backward(*a)[0], a[1][1] * 1e-8), variables, zeros=["w"])["w"]
    assert not wrong.ok
    not_zero = verdicts(product, product_backward, variables, zeros=["w"])["w"]
    assert not not_zero.ok


def test_refuses_float32_and_unknown_names(device):
    variables = inputs(device)
    with pytest.raises(ValueError, match="x is float32; numeric derivatives need float64"):
        function_case("it", product, product_backward, variables | {"x": variables["x"].astype("float32")})
    with pytest.raises(ValueError, match=r"declared zero but not among the variables: \['v'\]"):
        function_case("it", product, product_backward, variables, zeros=["v"])


def test_refuses_another_number_of_gradients_than_of_inputs(device):
    with pytest.raises(ValueError, match="backward returned 1 gradients for the inputs x, w"):
        verdicts(product, lambda dout, cache: dout, inputs(device))
    case = Case("it", inputs(device), list, lambda douts: {"x": None})
    with pytest.raises(ValueError, match=r"gradients of \['x'\], expected of \['w', 'x'\]"):
        check(case)


def test_an_output_that_is_the_input_itself(device):
    assert verdicts(lambda x: (x, None), lambda dout, cache: dout, {"x": inputs(device)["x"]})["x"].ok


class Parameter:
    def __init__(self, value):
        self.value, self.grad = value, value * 0.0


class Scale:
    """y = x w, as a layer: the least that module_case needs."""

    def __init__(self, w):
        self.w = Parameter(w)

    def named_parameters(self):
        yield "w", self.w

    def zero_grad(self):
        self.w.grad[...] = 0.0

    def forward(self, x):
        return x * self.w.value, x

    def backward(self, dout, cache):
        self.w.grad += (dout * cache).sum(axis=0)
        return dout * self.w.value


def module_verdicts(module_class, device) -> dict[str, bool]:
    draw = Draws(device, 2)
    return {
        r.parameter: r.ok
        for r in check(module_case("it", module_class(draw.normal(4)), {"x": draw.normal(3, 4)}))
    }


def test_module_used_twice(device):
    assert module_verdicts(Scale, device) == {"x": True, "x, second use": True, "w": True}


def test_catches_a_module_that_remembers_on_itself(device):
    class Forgetful(Scale):
        def forward(self, x):
            self.x = x
            return super().forward(x)

        def backward(self, dout, cache):
            return super().backward(dout, self.x)

    assert module_verdicts(Forgetful, device) == {"x": True, "x, second use": True, "w": False}


def test_catches_a_gradient_that_is_stored_and_not_added(device):
    class Storing(Scale):
        def backward(self, dout, cache):
            self.w.grad[...] = (dout * cache).sum(axis=0)
            return dout * self.w.value

    assert not module_verdicts(Storing, device)["w"]


def test_catches_a_gradient_that_is_never_forgotten_or_never_written(device):
    class Hoarding(Scale):
        def zero_grad(self):
            pass

    class Lazy(Scale):
        def zero_grad(self):
            pass

        def backward(self, dout, cache):
            return dout * self.w.value

    assert not module_verdicts(Hoarding, device)["w"]
    assert not module_verdicts(Lazy, device)["w"]


def test_report_prints_a_row_for_each_gradient_and_tells_if_one_is_wrong(device, capsys):
    right = function_case("right", product, product_backward, inputs(device))
    wrong = function_case("wrong", product, lambda *a: product_backward(*a)[::-1], inputs(device))
    assert report([right]) is True
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["what", "right", "right", "2"]
    assert all(line.endswith("ok") for line in lines[1:3])
    assert report([right, wrong]) is False
    lines = capsys.readouterr().out.splitlines()
    assert sum("WRONG" in line for line in lines) == 2
    assert lines[-1].startswith("4 gradients, 2 wrong")


def test_draws_repeat_an_id_and_scale_matrices(device):
    draw = Draws(device, 3)
    ids = draw.ids(1000, 3, 4).reshape(-1)
    assert int(ids[0]) == int(ids[-1])
    assert float((draw.matrix(200, 50) ** 2).mean()) == pytest.approx(1 / 50, rel=0.1)


def test_docstring_example():
    assert doctest.testmod(gradcheck).attempted >= 4
    assert doctest.testmod(gradcheck).failed == 0
