"""The adjoint test: a backward is the transpose of its forward's derivative.

Let J be the matrix of all ∂y/∂x, which is never formed. If the inputs move along u, the outputs move along
J u; and a backward turns a derivative v of the outputs into Jᵀ v. For any u and v,

    ⟨v, J u⟩ = vᵀ J u = ⟨Jᵀ v, u⟩

The left side comes from the complex step, the right side from the hand-written backward. One forward and one
backward pass check all variables and outputs at once.
"""

import math

import numpy as np

from minibert import ops
from minibert.arrays import get_array_module, to_numpy
from minibert.gradcheck.case import Case
from minibert.gradcheck.compare import COMPLEX_STEP, OVERWRITTEN, Row, relative_error
from minibert.gradcheck.imaginary import derivative_along

PAIRS = 4
WHAT = "⟨v, J u⟩ = ⟨Jᵀ v, u⟩"


def check_adjoint(case: Case, on_host: Case | None = None) -> Row:
    """Compare ⟨v, J u⟩ with ⟨Jᵀ v, u⟩ for a few random u and v; the error is over all these pairs.

    Overwriting a variable is wrong, too. For a case on a GPU, ``on_host`` can be the same case on the CPU,
    where J u is then computed.
    """
    before = {name: x.copy() for name, x in case.variables.items()}
    rng = np.random.default_rng(1)
    left, right = np.empty(PAIRS), np.empty(PAIRS)
    with ops.reference_only():
        for pair in range(PAIRS):
            u = {name: rng.standard_normal(x.shape) for name, x in case.variables.items()}
            v = case.draw_douts(rng)
            left[pair] = _forward_side(on_host or case, u, v)
            right[pair] = _backward_side(case, u, v)
    if not all(bool((x == before[name]).all()) for name, x in case.variables.items()):
        return Row(case.what, WHAT, math.inf, COMPLEX_STEP.relative_bound, OVERWRITTEN)
    return Row(case.what, WHAT, relative_error(left, right), COMPLEX_STEP.relative_bound)


def _forward_side(case: Case, u: dict[str, np.ndarray], v: list[np.ndarray]) -> float:
    """⟨v, J u⟩."""
    xp = get_array_module(next(iter(case.variables.values())))
    moved = derivative_along(case, {name: xp.asarray(direction) for name, direction in u.items()})
    return math.fsum(float((to_numpy(dy) * dout).sum()) for dy, dout in zip(moved, v, strict=True))


def _backward_side(case: Case, u: dict[str, np.ndarray], v: list[np.ndarray]) -> float:
    """⟨Jᵀ v, u⟩."""
    xp = get_array_module(next(iter(case.variables.values())))
    gradients = case.backward([xp.array(dout) for dout in v])
    return math.fsum(float((to_numpy(gradients[name]) * direction).sum()) for name, direction in u.items())
