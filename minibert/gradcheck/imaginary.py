"""The complex step: ∂L/∂x = Im L(x + ih) / h (Squire and Trapp, 1998).

If f has a Taylor series with real coefficients, that series says for a step along the imaginary axis

    f(x + ih) = f(x) + ih f′(x) − h²/2 f″(x) − …        so        Im f(x + ih) / h = f′(x) − h²/6 f‴(x) + …

Nothing is subtracted, so no digits cancel, and h may be so small that h² is zero in float64: 1e-200. Then
the right-hand side is f′(x) alone. The imaginary part of every intermediate result is h times its
derivative, and is rounded like any other number, to 16 digits.

In return, the forward has to be *analytic*, made of sums, products, quotients, roots, exp, log, tanh and
erf, which NumPy and SciPy also compute for complex numbers. The following are not analytic, and give a wrong
derivative: ``abs`` and ``numpy.linalg.norm`` (write sqrt((x * x).sum()) instead), ``.real``, a conjugate, a
conversion to float.

A choice between numbers is harmless. NumPy orders complex numbers by their real parts first, so ``max``,
``maximum``, ``argmax`` and comparisons choose what they would choose on the real axis, and the chosen number
keeps its imaginary part. So the reference operations need no change.
"""

from collections.abc import Sequence

import numpy as np

from minibert.arrays import Array, get_array_module
from minibert.gradcheck.case import Case, Variables

STEP = 1e-200


def complex_step(case: Case) -> dict[str, np.ndarray]:
    """The gradient of L = Σ dout · y for each variable, to the last digits of float64, on the host.

    It takes one complex forward pass per number.
    """
    variables = {name: x.astype("complex128") for name, x in case.variables.items()}
    xp = get_array_module(next(iter(variables.values())))
    douts = [xp.asarray(dout) for dout in case.douts]
    return {name: _gradient(case, variables, z, douts) for name, z in variables.items()}


def _gradient(case: Case, variables: Variables, z: Array, douts: Sequence[Array]) -> np.ndarray:
    flat = z.reshape(-1)  # a view: z is one of the variables, and contiguous
    gradient = np.empty(z.size)
    for i in range(z.size):
        value = flat[i].item()
        flat[i] = value + STEP * 1j
        rises = _rises(case, variables)
        flat[i] = value
        gradient[i] = sum(float((dy * dout).sum()) for dy, dout in zip(rises, douts, strict=True))
    return gradient.reshape(z.shape)


def derivative_along(case: Case, directions: Variables) -> list[Array]:
    """J u: how each output moves when every variable moves along its direction u, all at once.

    It takes one complex forward pass.
    """
    moved = {name: x + (STEP * 1j) * directions[name] for name, x in case.variables.items()}
    return _rises(case, moved)


def _rises(case: Case, variables: Variables) -> list[Array]:
    """Im y / h of each output."""
    outputs = case.forward(variables)
    if not all(y.dtype == "complex128" for y in outputs):
        raise ValueError(f"{case.what}: an output is real although the variables are complex")
    return [y.imag / STEP for y in outputs]
