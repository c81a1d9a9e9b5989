"""Central differences: ∂L/∂x ≈ (L(x + h) − L(x − h)) / 2h."""

from collections.abc import Sequence

import numpy as np

from minibert.arrays import Array, get_array_module
from minibert.gradcheck.case import Case

STEP = 1e-5


def central_differences(case: Case) -> dict[str, np.ndarray]:
    """The gradient of L = Σ dout · y for each variable, right to about ten digits, on the host.

    It takes two forward passes per number.
    """
    xp = get_array_module(next(iter(case.variables.values())))
    douts = [xp.asarray(dout) for dout in case.douts]
    return {name: _gradient(case, x, douts) for name, x in case.variables.items()}


def _gradient(case: Case, x: Array, douts: Sequence[Array]) -> np.ndarray:
    flat = x.reshape(-1)  # a view, as the variables are contiguous
    gradient = np.empty(x.size)
    for i in range(x.size):
        value = float(flat[i])
        flat[i] = value + STEP
        above = [y.copy() for y in case.forward(case.variables)]  # a copy, as an output may be a view of x
        flat[i] = value - STEP
        below = [y.copy() for y in case.forward(case.variables)]
        flat[i] = value
        # The outputs are subtracted before they are summed: that rounds less than L(x + h) − L(x − h).
        rises = (((a - b) * dout).sum() for a, b, dout in zip(above, below, douts, strict=True))
        gradient[i] = sum(float(rise) for rise in rises) / (2.0 * STEP)
    return gradient.reshape(x.shape)
