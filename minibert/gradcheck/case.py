"""What can be checked: a function, a layer or a model with a hand-written derivative."""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from minibert.arrays import Array

Variables = dict[str, Array]


@dataclass
class Case:
    """Something with a hand-written derivative.

    ``variables``: the float64 arrays to differentiate with respect to, by name.
    ``forward(variables)``: the outputs at these values. These are ``variables`` itself, which may have been
    written to, or complex128 arrays with the same names and shapes.
    ``backward(douts)``: the gradients by the same names, from one ``dout`` for each output.
    ``zeros``: the names of the variables whose derivative is zero for a mathematical reason.
    ``numeric``: by the name of the method, the values of the variables and the numeric gradients there.
    """

    what: str
    variables: Variables
    forward: Callable[[Variables], Sequence[Array]]
    backward: Callable[[Sequence[Array]], dict[str, Any]]
    zeros: Collection[str] = ()
    numeric: dict[str, tuple[dict[str, np.ndarray], dict[str, np.ndarray]]] = field(
        default_factory=dict, init=False
    )

    def __post_init__(self) -> None:
        for name, x in self.variables.items():
            if not hasattr(x, "dtype"):
                raise ValueError(f"{self.what}: {name} is of type {type(x).__name__}; expected an array")
            if x.dtype != "float64":
                raise ValueError(
                    f"{self.what}: {name} is {x.dtype}; numeric derivatives need float64 "
                    '(module.allocate(dtype="float64") gives it to the parameters of a module)'
                )
            if not x.flags.c_contiguous:
                raise ValueError(f"{self.what}: {name} is not contiguous; give a copy, {name}.copy()")
        if unknown := set(self.zeros) - set(self.variables):
            raise ValueError(f"{self.what}: declared zero but not among the variables: {sorted(unknown)}")

    @cached_property
    def douts(self) -> list[np.ndarray]:
        """The random derivatives of the loss with respect to each output, on the host."""
        return self.draw_douts(np.random.default_rng(0))

    def draw_douts(self, rng: np.random.Generator) -> list[np.ndarray]:
        """New random derivatives like ``douts``."""
        return [rng.standard_normal(y.shape) for y in self.forward(self.variables)]


def function_case(
    what: str, forward: Callable, backward: Callable, inputs: Variables, zeros: Collection[str] = ()
) -> Case:
    """A pair of functions: y, cache = forward(*inputs) and d(inputs) = backward(dout, cache).

    ``inputs`` are the arguments to differentiate with respect to, float64, by name and in order; close
    over any others. y is one array; the gradient of a single input may be returned without a tuple.

    Raises ValueError without inputs and, when it is checked, if the functions return something else.
    """
    if not inputs:
        raise ValueError(f"{what}: no inputs; give at least one to differentiate with respect to")

    def run(variables: Variables) -> tuple[Array, Any]:
        found = forward(*variables.values())
        if not (isinstance(found, tuple | list) and len(found) == 2 and hasattr(found[0], "dtype")):
            raise ValueError(
                f"{what}: forward returned {type(found).__name__}, expected (y, cache), y an array"
            )
        return found[0], found[1]

    def outputs(variables: Variables) -> list[Array]:
        return [run(variables)[0]]

    def gradients(douts: Sequence[Array]) -> dict[str, Any]:
        _, cache = run(inputs)
        return _by_name(inputs, backward(douts[0], cache))

    return Case(what, inputs, outputs, gradients, zeros)


def module_case(
    what: str,
    module: Any,
    inputs: Variables,
    constants: Sequence[Any] = (),
    zeros: Collection[str] = (),
    twin: Any = None,
) -> Case:
    """A layer: y, cache = module.forward(*inputs, *constants) and d(inputs) = module.backward(dout, cache).

    The layer is used twice, the second time on other inputs, before either backward runs: what it
    remembers must be in the cache and not on the layer, and the gradients of its parameters must add up.
    They are filled with NaN before ``zero_grad``, so that a gradient that was never written shows up.

    ``twin`` is a copy of the layer, allocated in complex128. The complex step needs it and sets its values.
    """
    again = {f"{name}, second use": _backwards(x) for name, x in inputs.items()}
    parameters = dict(module.named_parameters())
    variables = inputs | again | {name: parameter.value for name, parameter in parameters.items()}

    def both_forwards(variables: Variables) -> list[tuple[Array, Any]]:
        used = bearing(variables, module, twin)
        return [used.forward(*(variables[name] for name in use), *constants) for use in (inputs, again)]

    def gradients(douts: Sequence[Array]) -> dict[str, Any]:
        forget_gradients(module)
        caches = [cache for _, cache in both_forwards(variables)]
        found: dict[str, Any] = {}
        for use, dout, cache in zip((inputs, again), douts, caches, strict=True):
            found |= _by_name(use, module.backward(dout, cache))
        return found | {name: parameter.grad for name, parameter in parameters.items()}

    return Case(what, variables, lambda values: [y for y, _ in both_forwards(values)], gradients, zeros)


def model_case(
    what: str, model: Any, batch: dict[str, Any], zeros: Collection[str] = (), twin: Any = None
) -> Case:
    """A model with a loss: outputs, cache = model.forward(**batch) and model.backward(cache, dloss).

    The backward runs in two parts, one with ``dloss`` and one without, which must add up. Frozen parameters
    must have no gradient, and are not compared. ``twin`` is a copy of the model in complex128, as in
    :func:`module_case`.
    """
    parameters = {name: p for name, p in model.named_parameters() if not p.frozen}
    frozen = [p for _, p in model.named_parameters() if p.frozen]

    def outputs(variables: Variables) -> list[Array]:
        loss = bearing(variables, model, twin).forward(**batch)[0].loss
        if loss is None:
            raise ValueError(f"{what}: the model gives no loss; put labels into the batch")
        return [loss]

    def gradients(douts: Sequence[Array]) -> dict[str, Any]:
        forget_gradients(model)
        _, cache = bearing(variables, model, twin).forward(**batch)
        model.backward(cache)  # dloss is 1
        _, cache = bearing(variables, model, twin).forward(**batch)
        model.backward(cache, float(douts[0]) - 1.0)
        if not all(bool((parameter.grad == 0).all()) for parameter in frozen):
            raise ValueError(f"{what}: a frozen parameter has a gradient")
        return {name: parameter.grad for name, parameter in parameters.items()}

    variables = {name: parameter.value for name, parameter in parameters.items()}
    return Case(what, variables, outputs, gradients, zeros)


def bearing(variables: Variables, module: Any, twin: Any) -> Any:
    """The module, or its twin, with the values of ``variables`` as its parameters.

    Real values are already in the module; complex ones are written to its twin. The random bits of dropout
    restart, so that every forward pass of a case draws the same.
    """
    if not any(x.dtype == "complex128" for x in variables.values()):
        return _same_dropout(module)
    if twin is None:
        raise ValueError("the complex step needs a copy of the module in complex128; pass it as twin")
    for (name, parameter), (_, other) in zip(module.named_parameters(), twin.named_parameters(), strict=True):
        other.value[...] = variables.get(name, parameter.value)  # a frozen one is not a variable
    return _same_dropout(twin)


def _same_dropout(module: Any) -> Any:
    if hasattr(module, "seed_dropout"):
        module.seed_dropout(0)
    return module


def forget_gradients(module: Any) -> None:
    """Set every old gradient to NaN, so that none can be mistaken for new, then ``module.zero_grad()``."""
    for _, parameter in module.named_parameters():
        parameter.grad[...] = math.nan
    module.zero_grad()


def _by_name(inputs: Variables, gradients: Any) -> dict[str, Any]:
    """What a backward returned (nothing, one gradient or a tuple of them) by the names of the inputs."""
    if not isinstance(gradients, tuple | list):
        gradients = () if gradients is None and not inputs else (gradients,)
    if len(gradients) != len(inputs):
        raise ValueError(f"backward returned {len(gradients)} gradients for the inputs {', '.join(inputs)}")
    return dict(zip(inputs, gradients, strict=True))


def _backwards(x: Array) -> Array:
    """The same numbers in reverse order."""
    return x.reshape(-1)[::-1].reshape(x.shape).copy()
