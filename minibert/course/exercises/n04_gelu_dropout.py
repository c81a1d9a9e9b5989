"""04 GELU in its two forms, and dropout."""

import math

import numpy as np

from minibert.arrays import erf
from minibert.course.exercise import exercise, gradient_trial
from minibert.dropout_bits import dropout_key
from minibert.ops.activations import gelu, gelu_tanh
from minibert.ops.activations import gelu_backward as library_gelu_backward
from minibert.ops.activations import gelu_tanh_backward as library_gelu_tanh_backward
from minibert.ops.inverted_dropout import dropout, dropout_mask
from minibert.ops.inverted_dropout import dropout_backward as library_dropout_backward

PROBABILITY = 0.25
KEY = dropout_key(seed=1, step=2, micro_batch=0, replica=0, site=3)


def _density(x):
    return np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)


@exercise(
    "04",
    outputs="dx",
    trials=lambda draw: [gradient_trial(gelu, {"x": draw.normal(3, 4, 6)})],
    reference=library_gelu_backward,
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
    "This is x φ(x) alone: the product rule also has the term Φ(x), where x is derived and Φ stays."
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
    "erf(x) for erf(x/√2): the error function belongs to a normal variable of variance ½; dividing by √2 "
    "makes it 1."
)
def root_two_missing_in_erf(dout, cache):
    (x,) = cache
    return dout * (0.5 * (1 + erf(x)) + x * _density(x))


@gelu_backward.mistake(
    "This is Φ − x φ; it has to be a plus. The product rule adds its two terms, and Φ′ = φ has no minus. "
    "(The one in the exponent would come out only if φ were derived again.)"
)
def terms_subtracted(dout, cache):
    (x,) = cache
    return dout * (0.5 * (1 + erf(x / math.sqrt(2))) - x * _density(x))


@gelu_backward.mistake("The density is exp(−x²/2) / √(2π); in its exponent the ½ is missing.")
def half_missing_in_the_exponent(dout, cache):
    (x,) = cache
    return dout * (0.5 * (1 + erf(x / math.sqrt(2))) + x * np.exp(-x * x) / math.sqrt(2 * math.pi))


@gelu_backward.mistake(
    "This is Φ + φ. The product rule keeps the other factor: where Φ is derived, x stays, and gives x φ(x)."
)
def density_without_x(dout, cache):
    (x,) = cache
    return dout * (0.5 * (1 + erf(x / math.sqrt(2))) + _density(x))


@gelu_backward.mistake(
    "This is the derivative of GELU alone. A backward multiplies it with what came from above: dout."
)
def dout_forgotten(dout, cache):
    return gelu_backward.solution(1.0, cache)


@gelu_backward.mistake(
    "This is the derivative of the other GELU, the one with tanh. The two differ by up to 4.7e-4 in value, "
    "little to the eye; a forward and a backward that do not belong together are wrong all the same."
)
def derivative_of_the_tanh_form(dout, cache):
    (x,) = cache
    return library_gelu_tanh_backward(dout, gelu_tanh(x)[1])


@exercise(
    "04",
    outputs="dx",
    trials=lambda draw: [gradient_trial(gelu_tanh, {"x": draw.normal(3, 4, 6)})],
    reference=library_gelu_tanh_backward,
    hints=(
        "A product again, ½ x (1 + t), and t = tanh(u) where u itself depends on x: the chain rule inside.",
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
    "This is ½ x dt/dx alone: the product rule also has the term ½ (1 + t), where x is derived and t stays."
)
def factor_x_taken_for_a_constant(dout, cache):
    return gelu_tanh_backward.solution(dout, cache) - tanh_taken_for_a_constant.function(dout, cache)


@gelu_tanh_backward.mistake(
    "This is the derivative of GELU alone. A backward multiplies it with what came from above: dout."
)
def dout_left_out(dout, cache):
    return gelu_tanh_backward.solution(1.0, cache)


@gelu_tanh_backward.mistake(
    "This is the derivative of the exact GELU, the one with erf. It fits to three digits, and it is the "
    "gradient of another function."
)
def derivative_of_the_exact_form(dout, cache):
    x, _ = cache
    return gelu_backward.solution(dout, (x,))


# -- Dropout ----------------------------------------------------------------------------------------


@exercise(
    "04",
    outputs="dx",
    trials=lambda draw: [gradient_trial(lambda x: dropout(x, PROBABILITY, KEY), {"x": draw.normal(3, 4, 6)})],
    reference=library_dropout_backward,
    hints=(
        "y = x · m, and m does not depend on x. What is dy/dx?",
        "The backward needs the same m as the forward: `dropout_mask` makes it again from probability and "
        "key.",
        "dx = dout · dropout_mask(np, dout.shape, dout.dtype, probability, key); the mask holds 0 and "
        "1/(1 − p). See `dropout_backward` in minibert/ops/inverted_dropout.py.",
    ),
)
def dropout_backward(dout, cache):
    probability, key = cache
    return dout * dropout_mask(np, dout.shape, dout.dtype, probability, key)


def _kept(dout, cache):
    """1 where the forward kept the number, else 0."""
    return (dropout_mask(np, dout.shape, dout.dtype, *cache) > 0).astype(dout.dtype)


@dropout_backward.mistake(
    "The factor 1/(1 − p) is missing. The forward multiplied what it kept by it, so the backward does, too."
)
def without_the_factor(dout, cache):
    return dout * _kept(dout, cache)


@dropout_backward.mistake(
    "You multiply by 1 − p. That belongs to the old dropout, which scales at evaluation; inverted dropout "
    "divides by it in training, forward and backward."
)
def multiplied_instead_of_divided(dout, cache):
    probability, _ = cache
    return dout * _kept(dout, cache) * (1 - probability)


@dropout_backward.mistake("You divide by p, the share that is dropped. What is kept is the share 1 − p.")
def divided_by_the_share_dropped(dout, cache):
    probability, _ = cache
    return dout * _kept(dout, cache) / probability


@dropout_backward.mistake(
    "The factor is in twice. What `dropout_mask` returns is 0 or 1/(1 − p): it has been divided already."
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
    "The factor without the mask: the numbers that were dropped get a gradient, though they had no effect."
)
def scaled_but_not_masked(dout, cache):
    probability, _ = cache
    return dout / (1 - probability)


@dropout_backward.mistake("This is the mask. The gradient is the mask times what came from above: dout · m.")
def the_mask_alone(dout, cache):
    return dropout_mask(np, dout.shape, dout.dtype, *cache)
