"""Compares the hand-written gradients of a case with those that a numeric method finds."""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from minibert import ops
from minibert.arrays import Array, get_array_module, to_numpy
from minibert.gradcheck.case import Case, Variables
from minibert.gradcheck.central import central_differences
from minibert.gradcheck.difference import describe_difference
from minibert.gradcheck.imaginary import complex_step


@dataclass(frozen=True)
class Method:
    """A way to find derivatives numerically, and how close to them a correct gradient has to be.

    The relative bound is on ‖a − n‖ / (‖a‖ + ‖n‖). The absolute bound is for derivatives that are declared
    to be zero.
    """

    name: str
    gradients: Callable[[Case], dict[str, np.ndarray]]
    relative_bound: float
    absolute_bound: float


OVERWRITTEN = "the forward or backward overwrote it"
DIFFERS = "two forward passes of the same numbers differ: random bits without a key, or no context passed on?"
CENTRAL_DIFFERENCES = Method("central", central_differences, 1e-7, 1e-9)
COMPLEX_STEP = Method("complex", complex_step, 1e-13, 1e-13)


@dataclass(frozen=True)
class Row:
    """The verdict on one gradient: of what, with respect to what, its error, and the bound on the error.

    ``note`` says why a gradient could not be compared at all (its error is then infinite), where it differs
    the most, that two forward passes of the same numbers differ, or that the error is absolute.
    """

    what: str
    parameter: str
    error: float
    bound: float
    note: str = ""

    @property
    def ok(self) -> bool:
        """Whether the gradient is right. It is not if the error is NaN."""
        return self.error <= self.bound

    def __str__(self) -> str:
        verdict = "ok" if self.ok else "WRONG"
        return f"{self.what:<30} {self.parameter:<54} {self.error:7.1e}  {verdict}  {self.note}".rstrip()


def relative_error(a: np.ndarray, n: np.ndarray) -> float:
    """‖a − n‖ / (‖a‖ + ‖n‖), or infinity if both are zero."""
    size = float(np.linalg.norm(a) + np.linalg.norm(n))
    return float(np.linalg.norm(a - n)) / size if size else math.inf


def numeric_gradients(case: Case, method: Method) -> dict[str, np.ndarray]:
    """The gradient that the method finds for each variable, computed once for the same values of them.

    Operations use their reference implementations here (see ``ops.table``).
    """
    at, found = case.numeric.get(method.name, ({}, {}))
    if not at or any(not np.array_equal(to_numpy(x), at[name]) for name, x in case.variables.items()):
        at = {name: to_numpy(x).copy() for name, x in case.variables.items()}
        with ops.reference_only():
            found = method.gradients(case)
        case.numeric[method.name] = at, found
    return found


def check(case: Case, method: Method = CENTRAL_DIFFERENCES, on_host: Case | None = None) -> list[Row]:
    """Compare the hand-written gradients with those that ``method`` finds: a row for each variable.

    A gradient that is None, is not an array, or has another shape, library or dtype is wrong, whatever its
    values. So is one whose computation overwrites a variable. Operations use their reference implementations
    here. For a case on a GPU, ``on_host`` can be the same case on the CPU, to which the method is then
    applied. Raises ValueError if the gradients are not those of the variables.
    """
    before = {name: x.copy() for name, x in case.variables.items()}  # before any forward runs
    numeric = numeric_gradients(on_host or case, method)
    xp = get_array_module(next(iter(before.values())))
    with ops.reference_only():
        gradients = case.backward([xp.array(dout) for dout in case.douts])  # copies: they may be overwritten
    if set(gradients) != set(numeric):
        raise ValueError(f"{case.what}: gradients of {sorted(gradients)}, expected of {sorted(numeric)}")
    repeats = functools.cache(lambda: _repeats(case, before))  # only asked for what is wrong
    rows = []
    for name, x in case.variables.items():
        note = _reason_not_to_compare(gradients[name], x)
        if not bool((x == before[name]).all()):
            note = OVERWRITTEN
            x[...] = before[name]
        if note:
            rows.append(Row(case.what, name, math.inf, method.relative_bound, note))
        else:
            row = _compare(case, name, to_numpy(gradients[name]), numeric[name], method)
            rows.append(row if row.ok or repeats() else replace(row, note=DIFFERS))
    return rows


def _repeats(case: Case, variables: Variables) -> bool:
    """Whether two forward passes at these values have the same outputs, bit for bit."""
    with ops.reference_only():
        first, second = (
            [to_numpy(y).copy() for y in case.forward({name: x.copy() for name, x in variables.items()})]
            for _ in range(2)
        )
    return all(np.array_equal(a, b, equal_nan=True) for a, b in zip(first, second, strict=True))


def _reason_not_to_compare(gradient: Any, x: Array) -> str:
    """Why ``gradient`` cannot be a gradient of x, or an empty text."""
    xp = get_array_module(x)
    if not isinstance(gradient, (xp.ndarray, np.generic) if xp is np else xp.ndarray):
        return f"the gradient is of type {type(gradient).__name__}"
    if gradient.shape != x.shape:
        return f"the gradient has shape {gradient.shape}, expected {x.shape}"
    return "" if gradient.dtype == x.dtype else f"the gradient is {gradient.dtype}, expected {x.dtype}"


def _compare(case: Case, name: str, gradient: np.ndarray, numeric: np.ndarray, method: Method) -> Row:
    if name in case.zeros:
        error = float(np.maximum(np.abs(gradient).max(), np.abs(numeric).max()))  # NaN if one is
        return Row(case.what, name, error, method.absolute_bound, "absolute: it is zero")
    error, note = relative_error(gradient, numeric), ""
    if error == math.inf:
        note = "nothing to compare: the derivative is zero"
    elif not np.isfinite(gradient).all():
        note = "some of its numbers are NaN or infinite"
    elif not np.isfinite(numeric).all():
        note = "the numeric derivative is NaN or infinite: so is the output near these values"
    elif error > method.relative_bound:
        note = describe_difference("it", gradient, numeric, method.relative_bound)
    return Row(case.what, name, error, method.relative_bound, note)
