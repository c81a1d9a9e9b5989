"""28 Learning to search: the gradient of a unit vector, and of the loss that chooses among a batch."""

import numpy as np

from minibert.course.exercise import Trial, exercise, gradient_trial
from minibert.gradcheck import Draws
from minibert.ops import similarity
from minibert.ops.stable_softmax import softmax

# -- Length 1 -----------------------------------------------------------------------------------------


def unit_length(x: np.ndarray) -> tuple[np.ndarray, tuple]:
    """Rows of length 1, x̂ = x / r, and the cache (x̂, r). x (N, H), r (N, 1)."""
    unit, (_, r, _) = similarity.unit_length(x)
    return unit, (unit, r)


def _vectors(draw: Draws) -> list[Trial]:
    return [
        gradient_trial(unit_length, {"x": draw.normal(4, 5)}, "of order one"),
        gradient_trial(unit_length, {"x": 7.0 * draw.normal(3, 6)}, "long vectors"),
    ]


@exercise(
    "28",
    outputs="dx",
    trials=_vectors,
    level=1,
    minutes=12,
    needs="the chain rule, and that ∂r/∂x is x̂",
    hints=(
        "Every feature of x acts in two ways: on its own x̂, and on all of them through the length r.",
        "A change along x̂ changes only the length, which is divided out. So subtract that part of dout.",
        "dx = (dout − x̂ · (x̂ · dout).sum(axis=1, keepdims=True)) / r.",
    ),
)
def unit_length_backward(dout, cache):
    return _unit_length(dout, cache)


def _unit_length(dout, cache, sign=-1.0, axis=1, power=1):
    unit, r = cache
    return (dout + sign * unit * (unit * dout).sum(axis=axis, keepdims=True)) / r**power


@unit_length_backward.mistake("The length is taken for a constant. It changes with x, too: ∂r/∂x = x̂.")
def length_held_fixed(dout, cache):
    return _unit_length(dout, cache, sign=0.0)


@unit_length_backward.mistake("The division by the length r is missing.")
def not_divided_by_the_length(dout, cache):
    return _unit_length(dout, cache, power=0)


@unit_length_backward.mistake(
    "The part along x̂ is added. It should be subtracted: the derivative of 1/r is negative."
)
def part_along_x_added(dout, cache):
    return _unit_length(dout, cache, sign=1.0)


@unit_length_backward.mistake(
    "The sum runs over the vectors. It should run over the features of each: axis=1."
)
def summed_over_the_vectors(dout, cache):
    return _unit_length(dout, cache, axis=0)


@unit_length_backward.mistake("This is divided by r once too often: ∂x̂/∂x has r in its denominator once.")
def divided_twice(dout, cache):
    return _unit_length(dout, cache, power=2)


@unit_length_backward.mistake(
    "x stands where x̂ should: x = r x̂, so the second term is r² times too large. The cache has x̂."
)
def x_for_its_direction(dout, cache):
    unit, r = cache
    return (dout - r * unit * (r * unit * dout).sum(axis=1, keepdims=True)) / r


@unit_length_backward.mistake(
    "Only the part along x̂ is left, which is the one that must go: subtract it from dout."
)
def only_the_part_along_x(dout, cache):
    unit, r = cache
    return unit * (unit * dout).sum(axis=1, keepdims=True) / r


# -- The loss of a dual encoder ---------------------------------------------------------------------------


def in_batch_loss(x: np.ndarray, y: np.ndarray, scale: float) -> tuple[np.ndarray, tuple]:
    """The loss of N pairs in both directions, and the cache (x̂, ŷ, r_x, r_y, scale, p, p′).

    x, y (N, H); p (N, N) chooses a passage for each query, along the rows; p′ a query for each passage, down
    the columns.
    """
    (unit_x, r_x), (unit_y, r_y) = (unit_length(side)[1] for side in (x, y))
    z = scale * unit_x @ unit_y.T  # (N, N)
    p, p_columns = softmax(z)[0], softmax(z.T)[0].T
    loss = -0.5 * (np.log(np.diag(p)) + np.log(np.diag(p_columns))).mean()
    return np.asarray(loss), (unit_x, unit_y, r_x, r_y, scale, p, p_columns)


def _pairs(draw: Draws) -> list[Trial]:
    return [
        gradient_trial(
            lambda x, y, scale=scale: in_batch_loss(x, y, scale),
            {"x": draw.normal(N, 6), "y": 2.0 * draw.normal(N, 6)},
            f"τ = {scale:g}",
        )
        for N, scale in ((4, 2.0), (5, 6.0))
    ]


@exercise(
    "28",
    outputs="dx dy",
    trials=_pairs,
    level=2,
    minutes=25,
    needs="p − y of [03](03_softmax_cross_entropy.ipynb), the matrix product of [02](02_linear.ipynb), and "
    "`unit_length_backward`",
    hints=(
        "Three steps back: from the loss to the scores z, from the scores to the unit vectors, from these to "
        "x and y.",
        "The right class of row n is n, so dz of one direction is p − I; each direction counts half, and the "
        "loss is a mean over N. Then z = τ x̂ ŷᵀ is a matrix product.",
        "dz = dout · (p − I + p′ − I) / (2N); dx̂ = τ dz ŷ; dŷ = τ dzᵀ x̂; then unit_length_backward of each.",
    ),
    hints_for={
        "dx": (
            "dy is right, so dz is. What is different on the side of the queries?",
            "Every query took part in one row of z.",
            "dx̂ = τ dz ŷ, without a transpose.",
        ),
        "dy": (
            "dx is right, so dz is. What is different on the side of the passages?",
            "Every passage took part in one column of z.",
            "dŷ = τ dzᵀ x̂.",
        ),
    },
)
def in_batch_backward(dout, cache):
    return _in_batch(dout, cache)


def _in_batch(dout, cache, dz=None, count=None, scaled=True, back=unit_length_backward.solution):
    x, y, r_x, r_y, scale, p, p_columns = cache
    right = np.eye(len(p))
    if dz is None:
        dz = p - right + p_columns - right
    dz = dout * dz / (2 * len(p) if count is None else count)
    factor = scale if scaled else 1.0
    return back(factor * dz @ y, (x, r_x)), back(factor * dz.T @ x, (y, r_y))


@in_batch_backward.mistake("The factor τ is missing: z = τ x̂ ŷᵀ, so it belongs to dx̂ and dŷ.")
def scale_forgotten(dout, cache):
    return _in_batch(dout, cache, scaled=False)


@in_batch_backward.mistake(
    "Only the queries choose here. The loss has a second half, in which each passage chooses its query: "
    "p′ − I."
)
def one_direction_only(dout, cache):
    p = cache[5]
    return _in_batch(dout, cache, dz=p - np.eye(len(p)))


@in_batch_backward.mistake("Twice too large: each of the two directions counts half.")
def both_in_full(dout, cache):
    return _in_batch(dout, cache, count=len(cache[5]))


@in_batch_backward.mistake("The loss is the mean over the N pairs: divide by N.")
def sum_over_the_pairs(dout, cache):
    return _in_batch(dout, cache, count=2)


@in_batch_backward.mistake("Divided by N²: the mean runs over the N pairs, not over the N · N scores.")
def mean_over_all_scores(dout, cache):
    return _in_batch(dout, cache, count=2 * cache[5].size)


@in_batch_backward.mistake(
    "The right class is missing: the gradient of softmax and cross-entropy is p − y, and y is the identity "
    "matrix."
)
def right_class_forgotten(dout, cache):
    return _in_batch(dout, cache, dz=cache[5] + cache[6])


@in_batch_backward.mistake(
    "The sign is wrong: it is p − I. Where the right score is too low, it has to rise."
)
def sign_turned(dout, cache):
    return tuple(-side for side in _in_batch(dout, cache))


@in_batch_backward.mistake(
    "These are the gradients of the unit vectors. One step is left: back through x̂ = x / r."
)
def stopped_at_the_unit_vectors(dout, cache):
    return _in_batch(dout, cache, back=lambda dunit, cache: dunit)


@in_batch_backward.mistake("The lengths are taken for constants: dx is more than dx̂ / r.")
def lengths_held_fixed(dout, cache):
    return _in_batch(dout, cache, back=length_held_fixed.function)


@in_batch_backward.mistake(
    "dy has dz where it needs its transpose: each passage took part in a column of z, not in a row."
)
def columns_taken_for_rows(dout, cache):
    x, y, _, r_y, scale, p, p_columns = cache
    dz = dout * (p + p_columns - 2 * np.eye(len(p))) / (2 * len(p))
    return _in_batch(dout, cache)[0], unit_length_backward.solution(scale * dz @ x, (y, r_y))


@in_batch_backward.mistake("dout is missing: it is the gradient that arrives at the loss from what follows.")
def dout_forgotten(dout, cache):
    return _in_batch(1.0, cache)
