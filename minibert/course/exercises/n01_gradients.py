"""01 Gradients and checks: taking a broadcast back, and the numeric gradient."""

from collections.abc import Callable

import numpy as np

from minibert.course.exercise import Trial, exercise, gradient_trial
from minibert.gradcheck import RELATIVE_BOUND, Draws

# Shapes, and what they are broadcast to. In the last one a size occurs twice.
BROADCASTS = [(shape, (3, 4, 5)) for shape in ((5,), (1, 5), (4, 1), (3, 1, 5), ())] + [((4,), (4, 4))]


@exercise(
    "01",
    outputs="dx",
    trials=lambda draw: [
        gradient_trial(
            lambda x, target=target: (np.broadcast_to(x, target), x.shape),
            {"x": draw.normal(*shape)},
            label=f"{target} to {shape}",
        )
        for shape, target in BROADCASTS
    ],
    level=2,
    minutes=12,
    needs="section 4: a value that is used many times collects the gradients of all its uses",
    hints=(
        "Broadcasting makes copies. A number that was used several times collects the gradients of all uses.",
        "NumPy aligns shapes at their ends. It adds axes in front, and it stretches axes of size 1: two "
        "cases.",
        "Sum over the first dout.ndim − len(shape) axes; then over every axis i with shape[i] == 1, with "
        "keepdims=True.",
    ),
)
def unbroadcast(dout, shape):
    new = dout.ndim - len(shape)
    dx = dout.sum(axis=tuple(range(new)))
    stretched = tuple(i for i, size in enumerate(shape) if size == 1)
    return dx.sum(axis=stretched, keepdims=True)


@unbroadcast.mistake(
    "You sum over the axes that broadcasting put in front, but not over those of size 1 that it stretched. "
    "For example, x of shape (4, 1) was copied along its second axis, too."
)
def only_the_new_axes(dout, shape):
    return dout.sum(axis=tuple(range(dout.ndim - len(shape))))


@unbroadcast.mistake(
    "You take the mean over the copies. Each copy contributes to the loss in full, so the gradients add up: "
    "a sum. (A mean is right only where the loss itself is one, and then the 1/n is in dout already.)"
)
def mean_for_sum(dout, shape):
    copies = dout.size / np.prod(shape)
    return unbroadcast.solution(dout, shape) / copies


@unbroadcast.mistake(
    "A stretched axis is summed away. dx must have the shape of x, in which that axis has size 1, so use "
    "keepdims=True."
)
def stretched_axes_lost(dout, shape):
    return np.squeeze(unbroadcast.solution(dout, shape))


@unbroadcast.mistake(
    "You keep the gradient of one copy and drop the others. All of them are x: their gradients add up."
)
def one_copy_only(dout, shape):
    aligned = (1,) * (dout.ndim - len(shape)) + shape
    first = tuple(slice(0, 1) if size == 1 else slice(None) for size in aligned)
    return dout[first].reshape(shape).copy()


# -- The numeric gradient ---------------------------------------------------------------------------


def sum_of_cubes(x: np.ndarray) -> np.ndarray:
    """Σ x³: its gradient is 3 x²."""
    return (x**3).sum()


def products_of_rows(x: np.ndarray) -> np.ndarray:
    """Σ tanh(x) tanh(x)ᵀ: here every number of x acts together with the others."""
    return (np.tanh(x) @ np.tanh(x).T).sum()


def complex_step(f: Callable[[np.ndarray], np.ndarray], x: np.ndarray, h: float) -> np.ndarray:
    """∂f/∂x = Im f(x + i·10⁻³⁰) / 10⁻³⁰, right to the last digit: nothing is subtracted, so nothing cancels.

    (Squire and Trapp, 1998.) Only for functions that NumPy can also compute with complex numbers. The
    step of a central difference plays no part.
    """
    gradient = np.empty_like(x)
    for index in np.ndindex(*x.shape):
        step = np.zeros(x.shape, dtype=complex)
        step[index] = 1e-30j
        gradient[index] = f(x + step).imag / 1e-30
    return gradient


def _numeric_trials(draw: Draws) -> list[Trial]:
    """Two functions of a matrix; and a wide step, with which the answer has to be off, by h² for cubes."""
    trials = []
    for f in (sum_of_cubes, products_of_rows):
        arguments = {"f": f, "x": draw.normal(3, 4), "h": 1e-5}
        trials.append(Trial(arguments, f.__name__, {"dx": complex_step(*arguments.values())}))
    wide = Trial({"f": sum_of_cubes, "x": draw.normal(5), "h": 0.1}, "sum_of_cubes, shape (5,), h = 0.1")
    return [*trials, wide]


@exercise(
    "01",
    outputs="dx",
    trials=_numeric_trials,
    independent="complex step",
    level=1,
    minutes=10,
    needs="the step to both sides of section 6",
    bound=RELATIVE_BOUND,
    hints=(
        "One number of x at a time: how does f(x) change if only that one moves a little?",
        "∂f/∂x ≈ (f(x + h) − f(x − h)) / 2h, where h is added to one element and the others stay.",
        "for index in np.ndindex(*x.shape): copy x, add h at index, call f; copy x, subtract h, call f; the "
        "difference over 2h is gradient[index]. minibert/gradcheck/central.py does the same.",
    ),
)
def numeric_grad(f, x, h):
    gradient = np.empty_like(x)
    for index in np.ndindex(*x.shape):
        above, below = x.copy(), x.copy()
        above[index] += h
        below[index] -= h
        gradient[index] = (f(above) - f(below)) / (2 * h)
    return gradient


@numeric_grad.mistake(
    "This is the difference to one side, (f(x + h) − f(x)) / h. It is off by h/2 · f″. With steps to both "
    "sides these terms cancel, and what is left is of the order of h²."
)
def to_one_side_only(f, x, h):
    gradient = np.empty_like(x)
    for index in np.ndindex(*x.shape):
        above = x.copy()
        above[index] += h
        gradient[index] = (f(above) - f(x)) / h
    return gradient


@numeric_grad.mistake(
    "This is the difference to the other side, (f(x) − f(x − h)) / h. It is off by −h/2 · f″. With steps to "
    "both sides these terms cancel, and what is left is of the order of h²."
)
def to_the_other_side_only(f, x, h):
    return to_one_side_only.function(f, x, -h)


@numeric_grad.mistake("Exactly twice what it should be: the way from x − h to x + h is 2h, not h.")
def divided_by_one_step(f, x, h):
    return 2 * numeric_grad.solution(f, x, h)


@numeric_grad.mistake(
    "You move all numbers of x at once, so that every element gets the same number, the sum of all "
    "derivatives. Move one at a time."
)
def all_elements_at_once(f, x, h):
    return np.full_like(x, (f(x + h) - f(x - h)) / (2 * h))


@numeric_grad.mistake(
    "This moves a whole row of x at once: for i in range(len(x)) counts rows. Go through all places with "
    "for index in np.ndindex(*x.shape)."
)
def a_row_at_once(f, x, h):
    gradient = np.empty_like(x)
    for i in range(len(x)):
        above, below = x.copy(), x.copy()
        above[i] += h
        below[i] -= h
        gradient[i] = (f(above) - f(below)) / (2 * h)
    return gradient


@numeric_grad.mistake(
    "With h = 0.1 your gradient is nearer to the true one than (f(x + h) − f(x − h)) / 2h can be. Either the "
    "step is not the h that comes in, or this is a formula of higher order, a better one than was asked for."
)
def a_step_of_its_own(f, x, h):
    return numeric_grad.solution(f, x, 1e-5)


@numeric_grad.mistake(
    "All zeros: f gets the same numbers twice. Either the steps do not reach it (x.flatten() is a copy, and "
    "so is what x[rows] gives), or both went into the same array (above = x and below = x are one)."
)
def steps_on_a_copy(f, x, h):
    return np.zeros_like(x)


@numeric_grad.mistake(
    "This was computed in float32. With 7 digits, f(x + h) and f(x − h) agree in nearly all of them, and the "
    "difference is rounding: that is why gradients are checked in float64."
)
def in_float32(f, x, h):
    return numeric_grad.solution(f, x.astype(np.float32), h).astype(np.float64)
