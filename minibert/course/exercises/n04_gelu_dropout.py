"""04 GELU forward and back, in its two forms; a unit with a learned gate; dropout."""

import math
from dataclasses import replace

import numpy as np

from minibert.arrays import Array, erf
from minibert.course.exercise import Trial, exercise, gradient_trial
from minibert.dropout_bits import dropout_key
from minibert.gradcheck import Draws
from minibert.ops.activations import gelu as library_gelu
from minibert.ops.activations import gelu_backward as library_gelu_backward
from minibert.ops.activations import gelu_tanh
from minibert.ops.activations import gelu_tanh_backward as library_gelu_tanh_backward
from minibert.ops.inverted_dropout import dropout, dropout_mask
from minibert.ops.inverted_dropout import dropout_backward as library_dropout_backward

PROBABILITY = 0.25
KEY = dropout_key(seed=1, step=2, micro_batch=0, replica=0, site=3)


def _density(x):
    return np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)


# -- GELU -----------------------------------------------------------------------------------------------


@exercise(
    "04",
    outputs="y cached_x",
    trials=lambda draw: [Trial({"x": draw.normal(3, 4, 6)})],
    reference=library_gelu,
    views=True,
    level=1,
    minutes=5,
    needs="the formula above, and `erf` from `minibert.arrays`, which takes arrays",
    hints=(
        "y is a product of two things: x, and the share of the normal distribution that lies below x.",
        "Φ(x) = ½ (1 + erf(x/√2)), number by number. `math.erf` takes only single numbers, but `erf` takes "
        "arrays.",
        "y = x * 0.5 * (1 + erf(x / math.sqrt(2))); return y, (x,). See `gelu` in "
        "minibert/ops/activations.py.",
    ),
    hints_for={
        "cached_x": (
            "y is right. What is wrong is the second thing that you return, the cache.",
            "The cache is a tuple that holds one array, x as it came in.",
            "The last line is: return y, (x,). The comma makes it a tuple.",
        ),
    },
)
def gelu(x):
    return x * 0.5 * (1 + erf(x / math.sqrt(2))), (x,)


@gelu.mistake(
    "erf(x) instead of erf(x/√2): the error function belongs to a normal variable of variance ½. Dividing "
    "by √2 makes the variance 1."
)
def erf_of_x_itself(x):
    return x * 0.5 * (1 + erf(x)), (x,)


@gelu.mistake("The ½ is missing. Φ(x) is a share, between 0 and 1; yours goes up to 2.")
def half_missing(x):
    return x * (1 + erf(x / math.sqrt(2))), (x,)


@gelu.mistake("This is Φ(x), the share that passes. The output is that share of x: y = x Φ(x).")
def the_share_alone(x):
    return 0.5 * (1 + erf(x / math.sqrt(2))), (x,)


@gelu.mistake("This is ReLU. GELU is the softer gate, x Φ(x).")
def relu_instead(x):
    return np.maximum(x, 0), (x,)


@gelu.mistake("This is x φ(x), with the density in the place of the area below it: Φ(x) = ½ (1 + erf(x/√2)).")
def density_for_the_area(x):
    return x * _density(x), (x,)


@gelu.mistake(
    "This is the other GELU, the approximation with tanh from section 4. The two differ by up to 4.7e-4. "
    "This exercise asks for the exact one, with erf."
)
def the_tanh_form(x):
    return gelu_tanh(x)[0], (x,)


@gelu.mistake("The cache holds y. The backward pass has to know where on the curve it is: keep x.")
def output_in_the_cache(x):
    y, _ = gelu.solution(x)
    return y, (y,)


# -- Back through GELU, in steps ------------------------------------------------------------------------


def gelu_in_steps(x: Array) -> tuple[Array, tuple]:
    """GELU in three steps: y, (x, u, gate). Any shape."""
    u = x / math.sqrt(2)
    gate = 0.5 * (1 + erf(u))
    return x * gate, (x, u, gate)


def _trials_in_steps(draw: Draws) -> list[Trial]:
    """The numeric gradient of the whole, and those that begin after the first step and after the second."""
    x = draw.normal(3, 4, 6)
    _, (_, u, gate) = gelu_in_steps(x)
    whole = gradient_trial(gelu_in_steps, {"x": x})
    after_one = gradient_trial(lambda u: (x * 0.5 * (1 + erf(u)), ()), {"u": u})
    after_two = gradient_trial(lambda gate: (x * gate, ()), {"gate": gate})
    return [replace(whole, independent=after_two.independent | after_one.independent | whole.independent)]


@exercise(
    "04",
    outputs="dgate du dx",
    trials=_trials_in_steps,
    in_order=True,
    level=1,
    minutes=15,
    needs="the product rule and the chain rule from [01](01_gradients.ipynb)",
    hints=(
        "Begin with the last step, y = x · gate: what does gate get? Then go on to u, and from u to x.",
        "A product gives each factor dout times the other one. d erf(u)/du = 2/√π · exp(−u²), and gate has "
        "a ½ in front of it.",
        "dgate = dout · x; du = dgate · exp(−u²)/√π; dx = dout · gate + du/√2, as x was used in the last "
        "step and in the first.",
    ),
    hints_for={
        "dx": (
            "dgate and du are right. In how many of the three steps does x occur?",
            "In two: y = x · gate, and u = x/√2. The gradients from both are added.",
            "dx = dout * gate + du / math.sqrt(2).",
        ),
        "du dx": (
            "dgate is right. Next is gate = ½ (1 + erf(u)): what is its derivative with respect to u?",
            "½ · 2/√π · exp(−u²) = exp(−u²)/√π.",
            "du = dgate * np.exp(-u * u) / math.sqrt(math.pi); then dx has two terms, dout · gate and du/√2.",
        ),
    },
)
def gelu_backward_in_steps(dout, cache):
    x, u, gate = cache
    return _steps_back(dout, x, u, gate)


def _steps_back(dout, x, u, gate, *, slope_of_erf=1.0, direct=1.0, through=1.0):
    """The three gradients; factors other than 1 are mistakes."""
    dgate = dout * x
    du = slope_of_erf * dgate * np.exp(-u * u) / math.sqrt(math.pi)
    return dgate, du, direct * dout * gate + through * du / math.sqrt(2)


@gelu_backward_in_steps.mistake(
    "dgate contains gate itself. In y = x · gate the derivative with respect to gate is the *other* factor, "
    "x."
)
def its_own_factor(dout, cache):
    _, u, gate = cache
    return _steps_back(dout, gate, u, gate)


@gelu_backward_in_steps.mistake(
    "The ½ is missing in du: gate is ½ (1 + erf(u)), so it moves half as fast as erf."
)
def half_lost(dout, cache):
    return _steps_back(dout, *cache, slope_of_erf=2)


@gelu_backward_in_steps.mistake("The constant 2/√π of erf′ is missing in du: erf′(u) = 2/√π · exp(−u²).")
def constant_of_erf_lost(dout, cache):
    return _steps_back(dout, *cache, slope_of_erf=math.sqrt(math.pi) / 2)


@gelu_backward_in_steps.mistake(
    "The exponent of erf′ has x in the place of u: erf′(u) = 2/√π · exp(−u²), and u² is x²/2."
)
def exponent_of_x(dout, cache):
    x, u, gate = cache
    return _steps_back(dout, x, u, gate, slope_of_erf=np.exp(u * u - x * x))


@gelu_backward_in_steps.mistake(
    "The exponent is halved twice. u = x/√2 already has the ½ of the normal density in it: erf′(u) = 2/√π · "
    "exp(−u²)."
)
def exponent_halved_twice(dout, cache):
    x, u, gate = cache
    return _steps_back(dout, x, u, gate, slope_of_erf=np.exp(u * u / 2))


@gelu_backward_in_steps.mistake(
    "dx has only the way through the gate. x is also a factor of the last step, and gets dout · gate there."
)
def through_the_gate_only(dout, cache):
    return _steps_back(dout, *cache, direct=0)


@gelu_backward_in_steps.mistake(
    "dx has only the direct way, where x is a factor of the last step. The gate was made of x, too: add "
    "du/√2."
)
def the_direct_way_only(dout, cache):
    return _steps_back(dout, *cache, through=0)


@gelu_backward_in_steps.mistake("u = x/√2, so du is divided by √2 on its way to x, not left as it is.")
def du_not_divided(dout, cache):
    return _steps_back(dout, *cache, through=math.sqrt(2))  # which undoes the division


# -- In one line --------------------------------------------------------------------------------------


@exercise(
    "04",
    outputs="dx",
    trials=lambda draw: [gradient_trial(library_gelu, {"x": draw.normal(3, 4, 6)})],
    reference=library_gelu_backward,
    level=2,
    minutes=10,
    needs="the three steps of section 2",
    hints=(
        "y = x Φ(x) is a product of two functions of x.",
        "The product rule gives Φ(x) + x Φ′(x), and Φ′ is the normal density, φ(x) = exp(−x²/2) / √(2π).",
        "dx = dout (Φ(x) + x φ(x)) with Φ(x) = ½ (1 + erf(x / √2)). See `gelu_backward` in "
        "minibert/ops/activations.py.",
    ),
)
def gelu_backward(dout, cache):
    (x,) = cache
    cdf = 0.5 * (1 + erf(x / math.sqrt(2)))
    density = np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
    return dout * (cdf + x * density)


@gelu_backward.mistake(
    "This is Φ(x) alone, as if Φ were a constant. It depends on x, too: the product rule adds x φ(x)."
)
def the_second_factor_taken_for_a_constant(dout, cache):
    (x,) = cache
    return dout * 0.5 * (1 + erf(x / math.sqrt(2)))


@gelu_backward.mistake(
    "This is x φ(x) alone: the product rule also has the term Φ(x), where x is differentiated and Φ stays."
)
def the_first_factor_taken_for_a_constant(dout, cache):
    (x,) = cache
    return dout * x * _density(x)


@gelu_backward.mistake(
    "The density lacks its 1/√(2π): φ(x) = exp(−x²/2) / √(2π), so that it integrates to 1."
)
def density_without_its_constant(dout, cache):
    (x,) = cache
    return dout * (0.5 * (1 + erf(x / math.sqrt(2))) + x * np.exp(-0.5 * x * x))


@gelu_backward.mistake(
    "erf(x) instead of erf(x/√2): the error function belongs to a normal variable of variance ½. Dividing "
    "by √2 makes the variance 1."
)
def root_two_missing_in_erf(dout, cache):
    (x,) = cache
    return dout * (0.5 * (1 + erf(x)) + x * _density(x))


@gelu_backward.mistake(
    "This is Φ − x φ; it has to be a plus. The product rule adds its two terms, and Φ′ = φ has no minus. "
    "(The minus in the exponent would come out only if φ were differentiated again.)"
)
def terms_subtracted(dout, cache):
    (x,) = cache
    return dout * (0.5 * (1 + erf(x / math.sqrt(2))) - x * _density(x))


@gelu_backward.mistake("The density is exp(−x²/2) / √(2π). The ½ in your exponent is missing.")
def half_missing_in_the_exponent(dout, cache):
    (x,) = cache
    return dout * (0.5 * (1 + erf(x / math.sqrt(2))) + x * np.exp(-x * x) / math.sqrt(2 * math.pi))


@gelu_backward.mistake(
    "This is Φ + φ. The product rule keeps the other factor: where Φ is differentiated, x stays, which gives "
    "x φ(x)."
)
def density_without_x(dout, cache):
    (x,) = cache
    return dout * (0.5 * (1 + erf(x / math.sqrt(2))) + _density(x))


@gelu_backward.mistake(
    "This is the derivative of GELU alone. A backward pass multiplies it by what came from above: dout."
)
def dout_forgotten(dout, cache):
    return gelu_backward.solution(1.0, cache)


@gelu_backward.mistake(
    "This is the derivative of the other GELU, the one with tanh. The values of the two differ by up to "
    "4.7e-4. That is hard to see, but forward and backward passes that do not belong together are wrong all "
    "the same."
)
def derivative_of_the_tanh_form(dout, cache):
    (x,) = cache
    return library_gelu_tanh_backward(dout, gelu_tanh(x)[1])


@exercise(
    "04",
    outputs="dx",
    trials=lambda draw: [gradient_trial(gelu_tanh, {"x": draw.normal(3, 4, 6)})],
    reference=library_gelu_tanh_backward,
    level=2,
    minutes=15,
    needs="the product rule and the chain rule, and tanh′ = 1 − tanh²",
    hints=(
        "It is a product again, ½ x (1 + t). And t = tanh(u), where u itself depends on x, so the chain rule "
        "comes in.",
        "dt/du = 1 − t², and u = √(2/π) (x + 0.044715 x³), so du/dx = √(2/π) (1 + 3 · 0.044715 x²).",
        "dx = dout (½ (1 + t) + ½ x (1 − t²) du/dx). The cache has x and t. See `gelu_tanh_backward` in "
        "minibert/ops/activations.py.",
    ),
)
def gelu_tanh_backward(dout, cache):
    x, t = cache
    du = math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x**2)
    return dout * (0.5 * (1 + t) + 0.5 * x * (1 - t**2) * du)


@gelu_tanh_backward.mistake(
    "du/dx is 1 here. u is not x: it is √(2/π) (x + 0.044715 x³), and the chain rule needs its derivative."
)
def inner_derivative_missing(dout, cache):
    x, t = cache
    return dout * (0.5 * (1 + t) + 0.5 * x * (1 - t**2))


@gelu_tanh_backward.mistake("The derivative of 0.044715 x³ is 3 · 0.044715 x²; the 3 is missing.")
def three_missing(dout, cache):
    x, t = cache
    du = math.sqrt(2 / math.pi) * (1 + 0.044715 * x**2)
    return dout * (0.5 * (1 + t) + 0.5 * x * (1 - t**2) * du)


@gelu_tanh_backward.mistake("The derivative of tanh(u) is 1 − t², not 1 − t.")
def square_missing(dout, cache):
    x, t = cache
    du = math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x**2)
    return dout * (0.5 * (1 + t) + 0.5 * x * (1 - t) * du)


@gelu_tanh_backward.mistake("The derivative of tanh(u) is 1 − t², not (1 − t)²: only t is squared.")
def all_of_it_squared(dout, cache):
    x, t = cache
    du = math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x**2)
    return dout * (0.5 * (1 + t) + 0.5 * x * (1 - t) ** 2 * du)


@gelu_tanh_backward.mistake("√(2/π) is missing: u = √(2/π) (x + 0.044715 x³), so du/dx has that factor, too.")
def root_missing(dout, cache):
    x, t = cache
    return dout * (0.5 * (1 + t) + 0.5 * x * (1 - t**2) * (1 + 3 * 0.044715 * x**2))


@gelu_tanh_backward.mistake(
    "This is ½ (1 + t) alone, as if t were a constant. It depends on x, too: the product rule adds ½ x dt/dx."
)
def tanh_taken_for_a_constant(dout, cache):
    _, t = cache
    return dout * 0.5 * (1 + t)


@gelu_tanh_backward.mistake(
    "This is ½ x dt/dx alone: the product rule also has the term ½ (1 + t), where x is differentiated and t "
    "stays."
)
def factor_x_taken_for_a_constant(dout, cache):
    return gelu_tanh_backward.solution(dout, cache) - tanh_taken_for_a_constant.function(dout, cache)


@gelu_tanh_backward.mistake(
    "This is the derivative of GELU alone. A backward pass multiplies it by what came from above: dout."
)
def dout_left_out(dout, cache):
    return gelu_tanh_backward.solution(1.0, cache)


@gelu_tanh_backward.mistake(
    "This is the derivative of the exact GELU, the one with erf. It agrees to three digits, but it is the "
    "gradient of another function."
)
def derivative_of_the_exact_form(dout, cache):
    x, _ = cache
    return gelu_backward.solution(dout, (x,))


# -- Open: a learned gate -------------------------------------------------------------------------------


def gated(x: Array) -> tuple[Array, tuple]:
    """One half of the numbers, times a gate made of the other half: x (…, 2H) → y (…, H)."""
    values, scores = np.split(x, 2, axis=-1)  # (…, H) each
    sigmoid = 1 / (1 + np.exp(-scores))
    return values * scores * sigmoid, (values, scores, sigmoid)


@exercise(
    "04",
    outputs="dx",
    trials=lambda draw: [gradient_trial(gated, {"x": draw.normal(3, 4, 10)})],
    level=3,
    minutes=25,
    needs="sections 2 and 3 of this notebook, and the derivative of 1/t",
    hints=(
        "y has three factors, and two of them are made of the same scores. Do the values first, which is "
        "easy; then the scores, with the product rule.",
        "With s = 1/(1 + exp(−a)), ds/da = s (1 − s). The gate a·s has the derivative s + a s (1 − s).",
        "dvalues = dout · a s; dscores = dout · values · (s + a s (1 − s)); dx is both of them side by side: "
        "np.concatenate([dvalues, dscores], axis=-1).",
    ),
)
def gated_backward(dout, cache):
    return _gate_back(dout, cache, lambda a, s: s + a * s * (1 - s))


def _gate_back(dout, cache, slope):
    """dx, if the gate a·s had this slope."""
    values, scores, sigmoid = cache
    dvalues = dout * scores * sigmoid
    dscores = dout * values * slope(scores, sigmoid)
    return np.concatenate([dvalues, dscores], axis=-1)


@gated_backward.mistake(
    "The sigmoid is taken for a constant: the gate a·s has only the slope s here. s is made of a, too, and "
    "adds a s (1 − s)."
)
def sigmoid_taken_for_a_constant(dout, cache):
    return _gate_back(dout, cache, lambda a, s: s)


@gated_backward.mistake(
    "Only the sigmoid is differentiated here, a s (1 − s). The factor a in front of it has to be "
    "differentiated as well: the term s is missing."
)
def scores_taken_for_a_constant(dout, cache):
    return _gate_back(dout, cache, lambda a, s: a * s * (1 - s))


@gated_backward.mistake(
    "The slope of the sigmoid is s (1 − s), and the factor a in front of it stays: s + a s (1 − s)."
)
def slope_without_the_scores(dout, cache):
    return _gate_back(dout, cache, lambda a, s: s + s * (1 - s))


@gated_backward.mistake("The two terms of the product rule are subtracted; they add: s + a s (1 − s).")
def terms_taken_from_each_other(dout, cache):
    return _gate_back(dout, cache, lambda a, s: s - a * s * (1 - s))


@gated_backward.mistake("The slope of the sigmoid is s (1 − s), not 1 − s².")
def slope_of_tanh(dout, cache):
    return _gate_back(dout, cache, lambda a, s: s + a * (1 - s * s))


@gated_backward.mistake("Both halves are right, but in the wrong order: the values are the first half of x.")
def halves_exchanged(dout, cache):
    dvalues, dscores = np.split(gated_backward.solution(dout, cache), 2, axis=-1)
    return np.concatenate([dscores, dvalues], axis=-1)


@gated_backward.mistake(
    "The second half lacks the values. y = values · gate, so what comes back to the gate is dout · values."
)
def values_forgotten(dout, cache):
    values, scores, sigmoid = cache
    return gated_backward.solution(dout, (np.ones_like(values), scores, sigmoid))


@gated_backward.mistake(
    "dout is missing: every backward pass begins with what came from above, and both halves get it."
)
def dout_missing(dout, cache):
    return gated_backward.solution(np.ones_like(dout), cache)


# -- Dropout ----------------------------------------------------------------------------------------


@exercise(
    "04",
    outputs="dx",
    trials=lambda draw: [gradient_trial(lambda x: dropout(x, PROBABILITY, KEY), {"x": draw.normal(3, 4, 6)})],
    reference=library_dropout_backward,
    level=1,
    minutes=5,
    needs="sections 6 and 7: what the mask holds, and how it is made again",
    hints=(
        "y = x · m, and m does not depend on x. What is dy/dx?",
        "The backward pass needs the same m as the forward pass: `dropout_mask` makes it again from "
        "probability and key.",
        "dx = dout · dropout_mask(np, dout.shape, dout.dtype, probability, key); the mask holds 0 and "
        "1/(1 − p). See `dropout_backward` in minibert/ops/inverted_dropout.py.",
    ),
)
def dropout_backward(dout, cache):
    probability, key = cache
    return dout * dropout_mask(np, dout.shape, dout.dtype, probability, key)


def _kept(dout, cache):
    """1 where the forward pass kept the number, else 0."""
    return (dropout_mask(np, dout.shape, dout.dtype, *cache) > 0).astype(dout.dtype)


@dropout_backward.mistake(
    "The factor 1/(1 − p) is missing. The forward pass multiplied what it kept by this factor, so the "
    "backward pass does, too."
)
def without_the_factor(dout, cache):
    return dout * _kept(dout, cache)


@dropout_backward.mistake(
    "You multiply by 1 − p. That belongs to the old dropout, which scales in inference. Inverted dropout "
    "divides by 1 − p in training, in the forward and in the backward pass."
)
def multiplied_instead_of_divided(dout, cache):
    probability, _ = cache
    return dout * _kept(dout, cache) * (1 - probability)


@dropout_backward.mistake("You divide by p, the share that is dropped. The share that is kept is 1 − p.")
def divided_by_the_share_dropped(dout, cache):
    probability, _ = cache
    return dout * _kept(dout, cache) / probability


@dropout_backward.mistake(
    "The factor is in twice. `dropout_mask` returns 0 or 1/(1 − p), so the division has been done already."
)
def factor_twice(dout, cache):
    probability, _ = cache
    return dropout_backward.solution(dout, cache) / (1 - probability)


@dropout_backward.mistake(
    "dout goes through unchanged. A number that was dropped had no effect on the loss, so its derivative is "
    "0."
)
def passed_through(dout, cache):
    return dout.copy()


@dropout_backward.mistake(
    "The mask is missing: numbers that were dropped get a gradient, although they had no effect."
)
def scaled_but_not_masked(dout, cache):
    probability, _ = cache
    return dout / (1 - probability)


@dropout_backward.mistake("This is the mask. The gradient is the mask times what came from above: dout · m.")
def the_mask_alone(dout, cache):
    return dropout_mask(np, dout.shape, dout.dtype, *cache)
