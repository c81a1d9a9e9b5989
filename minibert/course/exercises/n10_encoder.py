"""10 The encoder: wiring the feed-forward half of a layer, forward and backward.

forward: y = layer_norm(x + f(x)) with f(x) = gelu(x W₁ᵀ + b₁) W₂ᵀ + b₂, "post-LN"; and x + f(layer_norm(x)),
"pre-LN".
"""

from dataclasses import replace

import numpy as np

from minibert.arrays import Array
from minibert.course.exercise import Trial, exercise, gradient_trial
from minibert.gradcheck import Draws
from minibert.ops.composites import dropout_residual_norm, linear_activation, linear_activation_backward
from minibert.ops.layer_normalisation import layer_norm, layer_norm_backward
from minibert.ops.linear_map import linear, linear_backward

EPS = 0.5

Affine = tuple[Array, Array]  # a weight and a bias


def feed_forward_block(x: Array, up: Affine, down: Affine, norm: Affine) -> tuple[Array, tuple]:
    """The forward pass, with caches. x, y (B, S, H); up: W₁ (F, H), b₁; down: W₂ (H, F), b₂; norm: γ, β."""
    wide, up_cache = linear_activation(x, *up, "gelu")  # (B, S, F)
    narrow, down_cache = linear(wide, *down)  # (B, S, H)
    y, norm_cache = layer_norm(x + narrow, *norm, EPS)
    return y, (up_cache, down_cache, norm_cache)


def _inputs(draw: Draws) -> dict[str, Array]:
    """B = 3, S = 4, H = 6, F = 8."""
    parameters = {
        "up_weight": draw.matrix(8, 6),
        "up_bias": draw.normal(8),
        "down_weight": draw.matrix(6, 8),
        "down_bias": draw.normal(6),
        "norm_weight": draw.normal(6),
        "norm_bias": draw.normal(6),
    }
    return {"x": draw.normal(3, 4, 6), **parameters}


def _forward(x, up_weight, up_bias, down_weight, down_bias, norm_weight, norm_bias):
    return feed_forward_block(x, (up_weight, up_bias), (down_weight, down_bias), (norm_weight, norm_bias))


def _forward_trials(draw: Draws) -> list[Trial]:
    x, *parameters = _inputs(draw).values()
    up, down, norm = (tuple(parameters[i : i + 2]) for i in (0, 2, 4))
    return [Trial({"x": x, "up": up, "down": down, "norm": norm, "eps": EPS})]


def _library_forward(x: Array, up: Affine, down: Affine, norm: Affine, eps: float) -> Array:
    wide, _ = linear_activation(x, *up, "gelu")
    narrow, _ = linear(wide, *down)
    return dropout_residual_norm(narrow, x, *norm, eps, 0.0, None)[0]


@exercise(
    "10",
    outputs="y",
    trials=_forward_trials,
    reference=_library_forward,
    level=1,
    minutes=10,
    needs="the three functions: linear map with GELU, linear map, LayerNorm",
    hints=(
        "x takes two paths: through the two linear maps, and past them. Where do the paths meet?",
        "Up to F features with GELU, down to H without; add x; normalise the sum. That is “post-LN”.",
        "layer_norm(x + linear(linear_activation(x, *up, 'gelu'), *down), *norm, eps), each function's "
        "first output. See `BertLayer` in minibert/bert/encoder.py.",
    ),
)
def block_forward(x: Array, up: Affine, down: Affine, norm: Affine, eps: float) -> Array:
    wide, _ = linear_activation(x, *up, "gelu")  # (B, S, F)
    narrow, _ = linear(wide, *down)  # (B, S, H)
    y, _ = layer_norm(x + narrow, *norm, eps)
    return y


def _f(x: Array, up: Affine, down: Affine) -> Array:
    return linear(linear_activation(x, *up, "gelu")[0], *down)[0]


@block_forward.mistake("The residual is missing: the sum x + f(x) is normalised, not f(x) alone.")
def without_the_residual(x: Array, up: Affine, down: Affine, norm: Affine, eps: float) -> Array:
    return layer_norm(_f(x, up, down), *norm, eps)[0]


@block_forward.mistake(
    "This is pre-LN, x + f(layer_norm(x)), as in GPT-2 and after. BERT normalises the sum: layer_norm(x + "
    "f(x))."
)
def normalised_before_instead_of_after(x: Array, up: Affine, down: Affine, norm: Affine, eps: float) -> Array:
    return x + _f(layer_norm(x, *norm, eps)[0], up, down)


@block_forward.mistake(
    "x is added after the norm. In BERT the sum is what is normalised: layer_norm(x + f(x))."
)
def residual_behind_the_norm(x: Array, up: Affine, down: Affine, norm: Affine, eps: float) -> Array:
    return x + layer_norm(_f(x, up, down), *norm, eps)[0]


@block_forward.mistake(
    "The GELU is missing. Without it two linear maps are one: W₂ (W₁ x + b₁) + b₂ is linear in x."
)
def without_the_activation(x: Array, up: Affine, down: Affine, norm: Affine, eps: float) -> Array:
    return layer_norm(x + linear(linear(x, *up)[0], *down)[0], *norm, eps)[0]


@block_forward.mistake("The GELU comes after the second map; it belongs between the two, on the F features.")
def activation_after_the_second_map(x: Array, up: Affine, down: Affine, norm: Affine, eps: float) -> Array:
    wide, _ = linear(x, *up)
    return layer_norm(x + linear_activation(wide, *down, "gelu")[0], *norm, eps)[0]


@block_forward.mistake("The norm is missing: this is the sum x + f(x) itself.")
def without_the_norm(x: Array, up: Affine, down: Affine, norm: Affine, eps: float) -> Array:
    return x + _f(x, up, down)


@block_forward.mistake("The norm uses another ε than `eps`: give it the one that comes in.")
def another_epsilon(x: Array, up: Affine, down: Affine, norm: Affine, eps: float) -> Array:
    return layer_norm(x + _f(x, up, down), *norm, 1e-12)[0]


# -- The residual, in steps ---------------------------------------------------------------------------


def with_residual(x: Array, up_weight: Array, down_weight: Array) -> tuple[Array, tuple]:
    """s = x + f(x), without biases: x (…, H), W₁ (F, H), W₂ (H, F) → s (…, H), (up_cache, down_weight)."""
    wide, up_cache = linear_activation(x, up_weight, np.zeros(len(up_weight)), "gelu")  # (…, F)
    return x + wide @ down_weight.T, (up_cache, down_weight)


def _residual_trials(draw: Draws) -> list[Trial]:
    """The numeric gradients of the whole, of the branch, and of what comes after the first map."""
    x, up_weight, down_weight = draw.normal(3, 4, 6), draw.matrix(8, 6), draw.matrix(6, 8)
    wide, _ = linear_activation(x, up_weight, np.zeros(8), "gelu")

    def branch(branch: Array) -> tuple[Array, tuple]:
        s, cache = with_residual(branch, up_weight, down_weight)
        return s - branch, cache

    whole = gradient_trial(lambda x: with_residual(x, up_weight, down_weight), {"x": x})
    parts = [
        gradient_trial(branch, {"branch": x}),
        gradient_trial(lambda wide: (wide @ down_weight.T, ()), {"wide": wide}),
    ]
    independent = parts[1].independent | parts[0].independent | whole.independent
    return [replace(whole, independent=independent)]


@exercise(
    "10",
    outputs="dwide dbranch dx",
    trials=_residual_trials,
    in_order=True,
    level=1,
    minutes=10,
    needs="the backward pass of a linear map of [02](02_linear.ipynb)",
    hints=(
        "Begin at the end, with the product wide W₂ᵀ: what does wide get? Then go on to x, through the "
        "branch.",
        "wide gets ds W₂. linear_activation_backward leads from there to x. And x was used a second time.",
        "dwide = dout @ down_weight; dbranch, _, _ = linear_activation_backward(dwide, up_cache); "
        "dx = dout + dbranch.",
    ),
    hints_for={
        "dx": (
            "The branch is right. x was used in two places: what comes back from the other one?",
            "The sum s = x + f(x) hands ds to both of its terms. The first of them is x itself.",
            "dx = dout + dbranch.",
        )
    },
)
def residual_in_steps(dout, cache):
    up_cache, down_weight = cache
    dwide = dout @ down_weight  # (…, F)
    dbranch, _, _ = linear_activation_backward(dwide, up_cache)  # (…, H)
    return dwide, dbranch, dout + dbranch


@residual_in_steps.mistake("dx lacks what came along the residual: x is a term of the sum, so add dout.")
def the_direct_way_forgotten(dout, cache):
    dwide, dbranch, _ = residual_in_steps.solution(dout, cache)
    return dwide, dbranch, dbranch.copy()


@residual_in_steps.mistake("dx lacks what came back through the branch: add dbranch.")
def the_branch_forgotten(dout, cache):
    dwide, dbranch, _ = residual_in_steps.solution(dout, cache)
    return dwide, dbranch, dout.copy()


@residual_in_steps.mistake(
    "For the residual you add 1. ∂x/∂x is 1, but a backward pass multiplies it by what comes in: add dout."
)
def one_added(dout, cache):
    dwide, dbranch, _ = residual_in_steps.solution(dout, cache)
    return dwide, dbranch, 1 + dbranch


@residual_in_steps.mistake("dx is a product of both paths. Where paths meet, gradients are added.")
def ways_multiplied(dout, cache):
    dwide, dbranch, _ = residual_in_steps.solution(dout, cache)
    return dwide, dbranch, dout * dbranch


@residual_in_steps.mistake(
    "The GELU is skipped in dbranch: linear_activation_backward includes it, dwide @ W₁ does not."
)
def gelu_skipped(dout, cache):
    (linear_cache, _, _), down_weight = cache
    dwide = dout @ down_weight
    dbranch, _, _ = linear_backward(dwide, linear_cache)
    return dwide, dbranch, dout + dbranch


@residual_in_steps.mistake("dbranch holds both paths already. It is what comes back through f alone.")
def both_ways_in_the_branch(dout, cache):
    dwide, _, dx = residual_in_steps.solution(dout, cache)
    return dwide, dx, dx.copy()


# -- The backward -----------------------------------------------------------------------------------


@exercise(
    "10",
    outputs="dx dup_weight dup_bias ddown_weight ddown_bias dnorm_weight dnorm_bias",
    trials=lambda draw: [gradient_trial(_forward, _inputs(draw))],
    level=2,
    minutes=15,
    needs="section 2: what a sum does with its gradient",
    hints=(
        "Every function of the forward pass has a backward function; call these in the opposite order. One "
        "gradient has two parts: x was used in two places.",
        "The sum x + f(x) hands its gradient to both terms unchanged. What comes back through f is then "
        "added to what came along the residual.",
        "dsum, … = layer_norm_backward(dout, norm_cache); dwide, … = linear_backward(dsum, down_cache); "
        "dbranch, … = linear_activation_backward(dwide, up_cache); dx = dsum + dbranch.",
    ),
    hints_for={
        "dx": (
            "All parameters have the right gradients. x was used in two places: are both of them in dx?",
            "x goes into the branch, and into the sum after it. What comes back along both is added.",
            "dx = dsum + dbranch; dbranch is the first array that linear_activation_backward returns.",
        ),
        "dx dup_weight dup_bias": (
            "The norm and the second linear map are right. What does the first one get from them?",
            "linear_backward returns the gradient of its input first: the dout of what came before.",
            "dwide, … = linear_backward(dsum, down_cache); dbranch, … = linear_activation_backward(dwide, "
            "up_cache); dx = dsum + dbranch.",
        ),
        "dx dup_weight dup_bias ddown_weight ddown_bias": (
            "The norm's own gradients are right. Which of its outputs goes on to the linear maps?",
            "layer_norm_backward returns the gradient of its input first; that input was the sum x + f(x).",
            "dsum, … = layer_norm_backward(dout, norm_cache); dwide, … = linear_backward(dsum, down_cache).",
        ),
    },
)
def block_backward(dout, cache):
    up_cache, down_cache, norm_cache = cache
    dsum, *dnorm = layer_norm_backward(dout, norm_cache)  # (B, S, H), dγ, dβ
    dwide, *ddown = linear_backward(dsum, down_cache)  # (B, S, F), dW₂, db₂
    dbranch, *dup = linear_activation_backward(dwide, up_cache)  # (B, S, H), dW₁, db₁
    return dsum + dbranch, *dup, *ddown, *dnorm


def _dsum_and_dbranch(dout, cache):
    up_cache, down_cache, norm_cache = cache
    dsum, _, _ = layer_norm_backward(dout, norm_cache)
    return dsum, linear_activation_backward(linear_backward(dsum, down_cache)[0], up_cache)[0]


@block_backward.mistake(
    "What came along the residual is missing in dx. x was used twice, so two gradients add up: dsum + "
    "dbranch."
)
def residual_forgotten(dout, cache):
    return _dsum_and_dbranch(dout, cache)[1], *block_backward.solution(dout, cache)[1:]


@block_backward.mistake(
    "What came back through the two linear maps is missing in dx: it has to be added to the residual's "
    "gradient."
)
def branch_forgotten(dout, cache):
    return _dsum_and_dbranch(dout, cache)[0], *block_backward.solution(dout, cache)[1:]


@block_backward.mistake(
    "For the residual you add 1. dy/dx of y = x is 1, but a backward pass multiplies it by what comes in: "
    "add dsum."
)
def one_added_for_the_residual(dout, cache):
    return _dsum_and_dbranch(dout, cache)[1] + 1, *block_backward.solution(dout, cache)[1:]


@block_backward.mistake(
    "For the residual you add dout, as would be right with the norm inside the branch (pre-LN). Here the sum "
    "is normalised, so the residual's gradient comes through the norm, too: dsum."
)
def residual_past_the_norm(dout, cache):
    return dout + _dsum_and_dbranch(dout, cache)[1], *block_backward.solution(dout, cache)[1:]


@block_backward.mistake(
    "The gradients of γ and β are right, but what goes on to the linear maps is dout; it has to be what "
    "comes out of layer_norm_backward."
)
def norm_skipped(dout, cache):
    up_cache, down_cache, norm_cache = cache
    _, *dnorm = layer_norm_backward(dout, norm_cache)
    dwide, *ddown = linear_backward(dout, down_cache)
    dbranch, *dup = linear_activation_backward(dwide, up_cache)
    return dout + dbranch, *dup, *ddown, *dnorm


@block_backward.mistake(
    "The GELU was skipped on the way back: linear_activation_backward, not linear_backward."
)
def activation_skipped(dout, cache):
    up_cache, down_cache, norm_cache = cache
    dsum, *dnorm = layer_norm_backward(dout, norm_cache)
    dwide, *ddown = linear_backward(dsum, down_cache)
    linear_cache, _, _ = up_cache
    dbranch, *dup = linear_backward(dwide, linear_cache)
    return dsum + dbranch, *dup, *ddown, *dnorm


# -- Pre-LN -----------------------------------------------------------------------------------------


def pre_norm_block(x: Array, up: Affine, down: Affine, norm: Affine, eps: float) -> tuple[Array, tuple]:
    """y = x + f(layer_norm(x)) and its caches, in the order of the forward pass. x and y (B, S, H)."""
    normalised, norm_cache = layer_norm(x, *norm, eps)
    wide, up_cache = linear_activation(normalised, *up, "gelu")  # (B, S, F)
    narrow, down_cache = linear(wide, *down)  # (B, S, H)
    return x + narrow, (norm_cache, up_cache, down_cache)


def _pre_norm(x, up_weight, up_bias, down_weight, down_bias, norm_weight, norm_bias):
    return pre_norm_block(x, (up_weight, up_bias), (down_weight, down_bias), (norm_weight, norm_bias), EPS)


@exercise(
    "10",
    outputs="dx dup_weight dup_bias ddown_weight ddown_bias dnorm_weight dnorm_bias",
    trials=lambda draw: [gradient_trial(_pre_norm, _inputs(draw))],
    level=3,
    minutes=20,
    needs="sections 2 and 3, and a graph on paper",
    hints=(
        "The last step is the sum. It hands dout to both of its terms: to x as it is, and to the branch.",
        "Through the branch: the second map, GELU with the first map, then the norm, in this order. Only "
        "then do you have a gradient of x.",
        "dwide, … = linear_backward(dout, down_cache); dnormalised, … = linear_activation_backward(dwide, "
        "up_cache); dbranch, … = layer_norm_backward(dnormalised, norm_cache); dx = dout + dbranch.",
    ),
    hints_for={
        "dx": (
            "All parameters have the right gradients. Something is wrong only where the two paths meet.",
            "x was a term of the last sum, and the input of the norm. Both send something back.",
            "dx = dout + what layer_norm_backward returns first.",
        )
    },
)
def pre_norm_backward(dout, cache):
    norm_cache, up_cache, down_cache = cache
    dwide, *ddown = linear_backward(dout, down_cache)  # (B, S, F), dW₂, db₂
    dnormalised, *dup = linear_activation_backward(dwide, up_cache)  # (B, S, H), dW₁, db₁
    dbranch, *dnorm = layer_norm_backward(dnormalised, norm_cache)  # (B, S, H), dγ, dβ
    return dout + dbranch, *dup, *ddown, *dnorm


def _dnormalised(dout, cache):
    """What comes back through f, before the norm."""
    _, up_cache, down_cache = cache
    return linear_activation_backward(linear_backward(dout, down_cache)[0], up_cache)[0]


@pre_norm_backward.mistake("What came along the residual is missing in dx: the sum hands dout to x as it is.")
def pre_norm_residual_forgotten(dout, cache):
    dx, *parameters = pre_norm_backward.solution(dout, cache)
    return dx - dout, *parameters


@pre_norm_backward.mistake("What came back through the branch is missing in dx: add what the norm returns.")
def pre_norm_branch_forgotten(dout, cache):
    _, *parameters = pre_norm_backward.solution(dout, cache)
    return dout.copy(), *parameters


@pre_norm_backward.mistake(
    "What comes back through the two maps is added to dout before it has passed the norm. The branch began "
    "with the norm, so its backward pass ends with it."
)
def norm_left_out(dout, cache):
    _, *parameters = pre_norm_backward.solution(dout, cache)
    return dout + _dnormalised(dout, cache), *parameters


@pre_norm_backward.mistake(
    "The residual goes through the norm, too, as in post-LN. Here x is added as it is, and its gradient is "
    "dout."
)
def the_sum_through_the_norm(dout, cache):
    _, *parameters = pre_norm_backward.solution(dout, cache)
    return layer_norm_backward(dout + _dnormalised(dout, cache), cache[0])[0], *parameters


@pre_norm_backward.mistake(
    "For the residual you add 1. A backward pass multiplies by what comes in: add dout."
)
def pre_norm_with_one(dout, cache):
    dx, *parameters = pre_norm_backward.solution(dout, cache)
    return dx - dout + 1, *parameters


@pre_norm_backward.mistake(
    "The norm comes first on your way back, as in post-LN. In the forward pass it came first, so in the "
    "backward pass it comes last."
)
def norm_first(dout, cache):
    norm_cache, up_cache, down_cache = cache
    dsum, *dnorm = layer_norm_backward(dout, norm_cache)
    dwide, *ddown = linear_backward(dsum, down_cache)
    dbranch, *dup = linear_activation_backward(dwide, up_cache)
    return dsum + dbranch, *dup, *ddown, *dnorm
