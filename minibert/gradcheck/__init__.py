"""Is a hand-written derivative right? Compare it with one that needs no mathematics.

There are two such derivatives. Both are of L = Σ dout · y, with a random ``dout`` of y's shape.

**Central differences** (``central.py``) move one number x of the input by a small step h to either side, and
measure how the output changes:

    ∂L/∂x ≈ (L(x + h) − L(x − h)) / 2h

This works for any code, but is right to only about ten digits. In float64 with h = 1e-5, the error of the
formula is h²/6 · L‴, and the rounding of L adds about 1e-16/h.

**The complex step** (``imaginary.py``) moves x in the imaginary direction instead:

    ∂L/∂x = Im L(x + ih) / h

Nothing is subtracted, so nothing cancels, and h may be 1e-200: the derivative is right to the last digits of
float64. In return, all code in the forward has to work with complex numbers.

The error of a hand-written gradient a against such a derivative n, over all elements of one array, is

    ‖a − n‖ / (‖a‖ + ‖n‖)         0 if equal, 1 if one of them is zero or they are opposite

and must be at most 1e-7 against central differences and 1e-13 against the complex step. Where the true
derivative is zero (attention ignores what is added to all keys) there is nothing to divide by. Such an array
has to be declared as zero, and a and n both have to be below 1e-9 or 1e-13.

Both methods check one number at a time, with one ``dout``. **The adjoint test** (``adjoint.py``) moves all
variables at once along random directions u, with several random douts v: ⟨v, J u⟩ from the complex step has
to equal ⟨Jᵀ v, u⟩ from the backward.

What is checked matters as much as how. Each of these hides mistakes that were found in real projects:

- float32: its rounding error, divided by h, is larger than the derivative; a correct gradient looks wrong, so
  the bound gets widened until a wrong one passes;
- γ = 1 and β = 0: a γ in the wrong place multiplies by one;
- ``dout`` of ones: LayerNorm's and softmax's dx is then zero, whatever the code says;
- B = 1: a sum, a mean and a division by the batch size are all the same;
- tiny weights, absolute bounds: everything is within 1e-4 of zero;
- comparing only dx, switching dropout off, repeating no token, using each layer only once.

So the cases in ``minibert.proofs`` draw matrices from N(0, 1/fan-in), vectors (γ, β, biases) from N(0, 1),
have more than one sequence, padding, repeated ids and dropout on (a pure function here), and compare every
input and parameter. To check a gradient of your own:

    >>> import numpy as np
    >>> from minibert.gradcheck import COMPLEX_STEP, check, function_case
    >>> square = lambda x: (x * x, x)
    >>> square_backward = lambda dout, x: 2.0 * x * dout
    >>> case = function_case("square", square, square_backward, {"x": np.array([0.5, -3.0])})
    >>> [row] = check(case)
    >>> row.ok, row.error < 1e-9
    (True, True)
    >>> [row] = check(case, COMPLEX_STEP)
    >>> row.ok, row.error < 1e-15
    (True, True)
"""

from minibert.gradcheck.adjoint import check_adjoint
from minibert.gradcheck.case import Case, bearing, forget_gradients, function_case, model_case, module_case
from minibert.gradcheck.central import central_differences
from minibert.gradcheck.compare import (
    CENTRAL_DIFFERENCES,
    COMPLEX_STEP,
    Method,
    Row,
    check,
    numeric_gradients,
    relative_error,
)
from minibert.gradcheck.difference import describe_difference, relative_distance
from minibert.gradcheck.draws import MASK, Draws
from minibert.gradcheck.imaginary import complex_step, derivative_along
from minibert.gradcheck.table import print_table, report

RELATIVE_BOUND = CENTRAL_DIFFERENCES.relative_bound

__all__ = [
    "CENTRAL_DIFFERENCES",
    "COMPLEX_STEP",
    "MASK",
    "RELATIVE_BOUND",
    "Case",
    "Draws",
    "Method",
    "Row",
    "bearing",
    "central_differences",
    "check",
    "check_adjoint",
    "complex_step",
    "derivative_along",
    "describe_difference",
    "forget_gradients",
    "function_case",
    "model_case",
    "module_case",
    "numeric_gradients",
    "print_table",
    "relative_distance",
    "relative_error",
    "report",
]
