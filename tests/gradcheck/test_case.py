"""The cases of a module and of a model: what has to be on the cache, added up, and complex."""

import numpy as np
import pytest

from minibert.bert import BertConfig, BertForPreTraining
from minibert.gradcheck import (
    CENTRAL_DIFFERENCES,
    COMPLEX_STEP,
    Draws,
    check,
    function_case,
    model_case,
    module_case,
)
from minibert.nn.layers import Linear


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


def linear(device, dtype) -> Linear:
    module = Linear(3, 2)
    module.allocate(device, dtype)
    return module


def test_the_twin_of_a_module_gets_its_values(device):
    draw = Draws(device, 3)
    module, twin = linear(device, "float64"), linear(device, "complex128")
    draw.randomise(module)
    case = module_case("it", module, {"x": draw.normal(4, 3)}, twin=twin)
    for method in (CENTRAL_DIFFERENCES, COMPLEX_STEP):
        rows = check(case, method)
        assert {row.parameter for row in rows} == {"x", "x, second use", "weight", "bias"}
        assert all(row.ok for row in rows)


def test_the_complex_step_of_a_module_needs_a_twin(device):
    draw = Draws(device, 3)
    case = module_case("it", linear(device, "float64"), {"x": draw.normal(4, 3)})
    with pytest.raises(ValueError, match="a copy of the module in complex128; pass it as twin"):
        check(case, COMPLEX_STEP)


def test_there_must_be_an_input():
    with pytest.raises(ValueError, match="nothing: no inputs; give at least one to differentiate"):
        function_case("nothing", lambda: (None, ()), lambda dout, cache: (), {})


def test_the_derivative_of_a_single_number():
    """NumPy makes scalars of its arrays without axes."""
    for factor, right in ((2, True), (3, False)):

        def backward(dout, x, factor=factor):
            return factor * x * dout

        [row] = check(function_case("square", lambda x: (x * x, x), backward, {"x": np.array(3.0)}))
        assert row.ok == right and row.error < 1


def test_a_model_without_a_loss():
    model = BertForPreTraining(BertConfig.preset("tiny", vocab_size=20), dtype="float64")
    with pytest.raises(ValueError, match="it: the model gives no loss; put labels into the batch"):
        check(model_case("it", model, {"input_ids": [[5, 6, 7]]}))
