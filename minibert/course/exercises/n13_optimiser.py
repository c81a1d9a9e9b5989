"""13 The optimiser: learning rate, clipping, one step of Adam as BERT takes it, and many steps at once."""

import numpy as np

from minibert.course.exercise import Trial, exercise
from minibert.gradcheck import Draws
from minibert.ops.optimise import adamw_update, global_norm
from minibert.train import schedule

# -- Warm-up and decay ------------------------------------------------------------------------------

STEPS, WARMUP, PEAK = 1000, 100, 1e-4


@exercise(
    "13",
    outputs="rate",
    trials=lambda draw: [
        Trial({"step": step, "steps": STEPS, "warmup": WARMUP, "peak": PEAK}, f"step {step}")
        for step in (0, 25, 99, 100, 500, 999)
    ],
    reference=schedule.original,
    level=1,
    minutes=5,
    needs="section 6",
    hints=(
        "There are two straight lines: one rises from 0, and one falls to 0. Which holds for which steps?",
        "During the warm-up: peak · step / warmup. From then on: the line that falls from the peak at step 0 "
        "to 0 at step `steps`, as if there had been no warm-up.",
        "peak * step / warmup if step < warmup else peak * (1 − step / steps). See "
        "minibert/train/schedule.py.",
    ),
)
def learning_rate(step, steps, warmup, peak):
    if step < warmup:
        return peak * step / warmup
    return peak * (1 - step / steps)


@learning_rate.mistake(
    "The warm-up is missing: in the first `warmup` steps the rate rises from 0 to the peak."
)
def without_a_warm_up(step, steps, warmup, peak):
    return peak * (1 - step / steps)


@learning_rate.mistake(
    "The line falls from the peak at the end of the warm-up. That is the schedule of transformers, and the "
    "option `triangle` here; the original's line starts at step 0, so that the rate leaps down once."
)
def falls_from_the_end_of_the_warm_up(step, steps, warmup, peak):
    return schedule.triangle(step, steps, warmup, peak)


@learning_rate.mistake(
    "Your first step is step 1: (step + 1) / warmup. Steps count from 0, and the first rate is 0."
)
def counted_from_one(step, steps, warmup, peak):
    return learning_rate.solution(step + 1, steps, warmup, peak)


@learning_rate.mistake("This is the share of the peak, from 0 to 1. Multiply it by `peak`.")
def the_peak_forgotten(step, steps, warmup, peak):
    return learning_rate.solution(step, steps, warmup, 1.0)


@learning_rate.mistake("After the warm-up the rate stays at its peak; it has to fall to 0.")
def constant_after_the_warm_up(step, steps, warmup, peak):
    return peak * min(1.0, step / warmup)


@learning_rate.mistake(
    "During the warm-up your first step is step 1: (step + 1) / warmup. Steps count from 0, and the first "
    "rate is 0."
)
def warm_up_counted_from_one(step, steps, warmup, peak):
    return learning_rate.solution(step + (step < warmup), steps, warmup, peak)


@learning_rate.mistake(
    "The falling line begins at the end of the warm-up but is as long as the whole run, so that it does not "
    "reach 0. The original's counts from step 0: 1 − step / steps."
)
def falls_too_slowly(step, steps, warmup, peak):
    if step < warmup:
        return peak * step / warmup
    return peak * (1 - (step - warmup) / steps)


@learning_rate.mistake(
    "You take the lower of the two lines, so that the rate never leaps. The original's rises to the very end "
    "of the warm-up and only then falls back to the other line."
)
def the_lower_of_both_lines(step, steps, warmup, peak):
    return peak * min(step / warmup, 1 - step / steps)


@learning_rate.mistake(
    "At step = warmup the warm-up is over: that step belongs to the falling line (step < warmup, not ≤)."
)
def one_step_too_long_a_warm_up(step, steps, warmup, peak):
    return peak if step == warmup else learning_rate.solution(step, steps, warmup, peak)


# -- Clipping ---------------------------------------------------------------------------------------


def _gradients(draw: Draws) -> list[Trial]:
    """A length above clip_norm and one between it and 1; clip_norm is not 1, so that forgetting it shows."""
    weight, bias = draw.normal(4, 3), draw.normal(4)
    return [
        Trial({"dweight": scale * weight, "dbias": scale * bias, "clip_norm": 1.2}, label)
        for label, scale in (("long", 1.5), ("short", 0.45))
    ]


def _library_clip(dweight, dbias, clip_norm):
    flat = np.concatenate([dweight.reshape(-1), dbias])
    factor = clip_norm / np.maximum(global_norm(flat), clip_norm)
    return dweight * factor, dbias * factor


@exercise(
    "13",
    outputs="dweight dbias",
    trials=_gradients,
    reference=_library_clip,
    level=1,
    minutes=8,
    needs="section 8: what stays the same when a vector is clipped",
    views=True,
    hints=(
        "Clipping changes the length of the gradient, never its direction. Which length? That of each array?",
        "All gradients of a model are one long vector. If it is longer than clip_norm, everything is "
        "multiplied by clip_norm / length; if not, nothing is.",
        "norm = np.sqrt((dweight**2).sum() + (dbias**2).sum()); factor = clip_norm / max(norm, clip_norm).",
    ),
)
def clip_gradients(dweight, dbias, clip_norm):
    norm = np.sqrt((dweight**2).sum() + (dbias**2).sum())
    factor = clip_norm / max(norm, clip_norm)
    return dweight * factor, dbias * factor


@clip_gradients.mistake(
    "Each array is clipped by itself, which turns the direction: small gradients are favoured. The length "
    "is that of all of them together."
)
def each_array_by_itself(dweight, dbias, clip_norm):
    return tuple(g * clip_norm / max(np.linalg.norm(g), clip_norm) for g in (dweight, dbias))


@clip_gradients.mistake(
    "Each number is cut off at ±clip_norm. That is clipping by value; BERT clips by the length of the whole."
)
def each_number_by_itself(dweight, dbias, clip_norm):
    return np.clip(dweight, -clip_norm, clip_norm), np.clip(dbias, -clip_norm, clip_norm)


@clip_gradients.mistake(
    "A short gradient is stretched to clip_norm. Clipping only shortens: divide by max(norm, clip_norm)."
)
def short_gradients_stretched(dweight, dbias, clip_norm):
    norm = np.sqrt((dweight**2).sum() + (dbias**2).sum())
    return dweight * clip_norm / norm, dbias * clip_norm / norm


@clip_gradients.mistake("The root is missing: the length is √Σ g², not Σ g².")
def length_without_its_root(dweight, dbias, clip_norm):
    norm = (dweight**2).sum() + (dbias**2).sum()
    return dweight * clip_norm / max(norm, clip_norm), dbias * clip_norm / max(norm, clip_norm)


@clip_gradients.mistake(
    "You add 1e-6 to the length, as PyTorch's clip_grad_norm_ does. That is nearly the same, but the "
    "original divides by the length itself."
)
def a_little_added_to_the_length(dweight, dbias, clip_norm):
    norm = np.sqrt((dweight**2).sum() + (dbias**2).sum())
    factor = min(1.0, clip_norm / (norm + 1e-6))
    return dweight * factor, dbias * factor


@clip_gradients.mistake(
    "The gradient gets length 1. It should get length clip_norm, which is not 1 here: clip_norm / length."
)
def to_length_one(dweight, dbias, clip_norm):
    norm = np.sqrt((dweight**2).sum() + (dbias**2).sum())
    factor = 1 / norm if norm > clip_norm else 1.0
    return dweight * factor, dbias * factor


@clip_gradients.mistake(
    "It is the other way round: a short gradient is stretched, and a long one left as it is. Divide by "
    "max(norm, clip_norm), not by the smaller of them."
)
def the_other_way_round(dweight, dbias, clip_norm):
    norm = np.sqrt((dweight**2).sum() + (dbias**2).sum())
    factor = clip_norm / min(norm, clip_norm)
    return dweight * factor, dbias * factor


@clip_gradients.mistake(
    "The lengths of the two arrays are added. Lengths do not add, their squares do: √(‖dweight‖² + ‖dbias‖²)."
)
def lengths_added(dweight, dbias, clip_norm):
    norm = np.linalg.norm(dweight) + np.linalg.norm(dbias)
    factor = clip_norm / max(norm, clip_norm)
    return dweight * factor, dbias * factor


# -- One step of Adam -------------------------------------------------------------------------------

# ε and λ are of order one, like all else, so that leaving them out or putting them elsewhere shows.
HYPERPARAMETERS = {"lr": 0.01, "beta1": 0.9, "beta2": 0.99, "eps": 0.1, "weight_decay": 0.1}

# A step of torch.optim.AdamW (PyTorch 2.13) with these numbers. Its own count of steps was set to 10⁶, where
# the bias correction that it always makes has become 1 (tests/parity/test_course_live.py does it again).
STORED_BEFORE = {
    "value": [0.5, -1.25, 2.0, -0.03125],
    "grad": [0.25, -3.0, 0.0, 1.5],
    "mean": [0.1, 0.2, -0.4, 0.0],
    "variance": [0.04, 0.5, 0.09, 0.0],
}
STORED_AFTER = {
    "value": [0.49567383067389537, -1.247362480847919, 2.0070339624788263, -0.037218749999999995],
    "mean": [0.115, -0.12, -0.36, 0.15],
    "variance": [0.040225, 0.585, 0.0891, 0.0225],
}


def _updates(draw: Draws) -> list[Trial]:
    stored = {name: np.array(numbers) for name, numbers in STORED_BEFORE.items()}
    after = {name: np.array(numbers) for name, numbers in STORED_AFTER.items()}
    drawn = {name: draw.normal(6) for name in STORED_BEFORE}
    drawn["variance"] = drawn["variance"] ** 2
    return [
        Trial(stored | {"step": 1} | HYPERPARAMETERS, "stored", after),
        Trial(drawn | {"step": 3} | HYPERPARAMETERS | {"weight_decay": 0.3}, "random"),  # λ is not ε
    ]


def _library_step(value, grad, mean, variance, step, lr, beta1, beta2, eps, weight_decay):
    value, mean, variance = value.copy(), mean.copy(), variance.copy()  # the library's works in place
    adamw_update(value, grad, mean, variance, lr, 1.0, beta1, beta2, eps, weight_decay)
    return value, mean, variance


@exercise(
    "13",
    outputs="value mean variance",
    trials=_updates,
    reference=_library_step,
    level=2,
    minutes=12,
    needs="the running means of section 2, the decay of section 4, and what section 3 says about BERT",
    independent="PyTorch",
    hints=(
        "First both running means, from the old ones and the gradient; then the value, from the new means.",
        "mean: β₁ of the old, 1 − β₁ of the gradient; variance: the same with β₂ and the gradient squared. "
        "The direction is mean / (√variance + ε). BERT leaves the bias correction out.",
        "value − lr · (direction + weight_decay · value): the decay stands beside the direction and never "
        "goes through the means. See `adamw_update` in minibert/ops/optimise.py.",
    ),
    hints_for={
        "value": (
            "Both running means are right. The value moves against their quotient, and decays.",
            "The direction is mean / (√variance + ε), with the new means and without bias correction.",
            "value − lr · (direction + weight_decay · value): both in one bracket.",
        ),
        "value variance": (
            "The mean is right. The variance is a running mean, too: of what, and with which β?",
            "It is a running mean of the gradient's square: β₂ of the old, 1 − β₂ of the new.",
            "variance = beta2 · variance + (1 − beta2) · grad²; the value is made with the new one.",
        ),
        "value mean": (
            "The variance is right. The mean is a running mean, too: of what, and with which β?",
            "It is a running mean of the gradient: β₁ of the old, 1 − β₁ of the new.",
            "mean = beta1 · mean + (1 − beta1) · grad; the value is made with the new one.",
        ),
    },
)
def adamw_step(value, grad, mean, variance, step, lr, beta1, beta2, eps, weight_decay):
    mean = beta1 * mean + (1 - beta1) * grad
    variance = beta2 * variance + (1 - beta2) * grad**2
    direction = mean / (np.sqrt(variance) + eps)
    return value - lr * (direction + weight_decay * value), mean, variance


@adamw_step.mistake(
    "You apply the bias correction. Adam has it, and so has PyTorch; the original BERT leaves it out, "
    "and so do we unless told otherwise. Here `step` plays no part."
)
def bias_corrected(value, grad, mean, variance, step, lr, beta1, beta2, eps, weight_decay):
    _, mean, variance = adamw_step.solution(
        value, grad, mean, variance, step, lr, beta1, beta2, eps, weight_decay
    )
    corrected_mean, corrected_variance = mean / (1 - beta1**step), variance / (1 - beta2**step)
    direction = corrected_mean / (np.sqrt(corrected_variance) + eps)
    return value - lr * (direction + weight_decay * value), mean, variance


@adamw_step.mistake(
    "The decay is added to the gradient: Adam with L2 regularisation. Then it is divided by √variance like "
    "all else, and large gradients are decayed less. AdamW keeps it apart: lr · weight_decay · value."
)
def decay_inside_the_gradient(value, grad, mean, variance, step, lr, beta1, beta2, eps, weight_decay):
    grad = grad + weight_decay * value
    return adamw_step.solution(value, grad, mean, variance, step, lr, beta1, beta2, eps, 0.0)


@adamw_step.mistake(
    "The decay is not multiplied by the learning rate: value − lr · (… + weight_decay · value)."
)
def decay_without_the_learning_rate(value, grad, mean, variance, step, lr, beta1, beta2, eps, weight_decay):
    new_value, mean, variance = adamw_step.solution(
        value, grad, mean, variance, step, lr, beta1, beta2, eps, 0.0
    )
    return new_value - weight_decay * value, mean, variance


@adamw_step.mistake("The weight decay is missing.")
def without_decay(value, grad, mean, variance, step, lr, beta1, beta2, eps, weight_decay):
    return adamw_step.solution(value, grad, mean, variance, step, lr, beta1, beta2, eps, 0.0)


@adamw_step.mistake("ε is inside the root. It is added to the root, √variance + ε.")
def epsilon_inside_the_root(value, grad, mean, variance, step, lr, beta1, beta2, eps, weight_decay):
    _, mean, variance = adamw_step.solution(
        value, grad, mean, variance, step, lr, beta1, beta2, eps, weight_decay
    )
    direction = mean / np.sqrt(variance + eps)
    return value - lr * (direction + weight_decay * value), mean, variance


@adamw_step.mistake("The step is made with the old means. First bring them up to date, then use them.")
def old_means_used(value, grad, mean, variance, step, lr, beta1, beta2, eps, weight_decay):
    direction = mean / (np.sqrt(variance) + eps)
    _, mean, variance = adamw_step.solution(
        value, grad, mean, variance, step, lr, beta1, beta2, eps, weight_decay
    )
    return value - lr * (direction + weight_decay * value), mean, variance


@adamw_step.mistake(
    "The gradient goes into the means in full. A running mean takes β of the old and 1 − β of the new."
)
def means_without_their_share(value, grad, mean, variance, step, lr, beta1, beta2, eps, weight_decay):
    mean = beta1 * mean + grad
    variance = beta2 * variance + grad**2
    direction = mean / (np.sqrt(variance) + eps)
    return value - lr * (direction + weight_decay * value), mean, variance


@adamw_step.mistake(
    "The step goes uphill: value − lr · (…), since the gradient points to where the loss grows."
)
def uphill(value, grad, mean, variance, step, lr, beta1, beta2, eps, weight_decay):
    new_value, mean, variance = adamw_step.solution(
        value, grad, mean, variance, step, lr, beta1, beta2, eps, weight_decay
    )
    return 2 * value - new_value, mean, variance


@adamw_step.mistake(
    "The root is missing: variance is the mean of g², so that mean / variance does not have the size of 1. "
    "Divide by √variance + ε."
)
def without_the_root(value, grad, mean, variance, step, lr, beta1, beta2, eps, weight_decay):
    _, mean, variance = adamw_step.solution(
        value, grad, mean, variance, step, lr, beta1, beta2, eps, weight_decay
    )
    direction = mean / (variance + eps)
    return value - lr * (direction + weight_decay * value), mean, variance


@adamw_step.mistake("ε is missing: mean / (√variance + ε).")
def without_epsilon(value, grad, mean, variance, step, lr, beta1, beta2, eps, weight_decay):
    return adamw_step.solution(value, grad, mean, variance, step, lr, beta1, beta2, 0.0, weight_decay)


@adamw_step.mistake("β₁ and β₂ have changed places: β₁ is the mean's, β₂ the variance's.")
def betas_swapped(value, grad, mean, variance, step, lr, beta1, beta2, eps, weight_decay):
    return adamw_step.solution(value, grad, mean, variance, step, lr, beta2, beta1, eps, weight_decay)


@adamw_step.mistake("The variance is a running mean of the gradient's square: (1 − β₂) · grad².")
def gradient_not_squared(value, grad, mean, variance, step, lr, beta1, beta2, eps, weight_decay):
    mean = beta1 * mean + (1 - beta1) * grad
    variance = beta2 * variance + (1 - beta2) * grad
    with np.errstate(invalid="ignore"):  # roots of negative numbers
        direction = mean / (np.sqrt(variance) + eps)
    return value - lr * (direction + weight_decay * value), mean, variance


@adamw_step.mistake(
    "You decay the value after the step. That is nearly the same, but BERT decays the value before it: both "
    "stand in one bracket, lr · (direction + weight_decay · value)."
)
def decay_after_the_step(value, grad, mean, variance, step, lr, beta1, beta2, eps, weight_decay):
    moved, mean, variance = adamw_step.solution(value, grad, mean, variance, step, lr, beta1, beta2, eps, 0.0)
    return moved - lr * weight_decay * moved, mean, variance


@adamw_step.mistake(
    "ε stands outside the fraction, mean / √variance + ε. It is a part of the denominator, which it keeps "
    "away from 0: mean / (√variance + ε)."
)
def epsilon_outside_the_fraction(value, grad, mean, variance, step, lr, beta1, beta2, eps, weight_decay):
    _, mean, variance = adamw_step.solution(
        value, grad, mean, variance, step, lr, beta1, beta2, eps, weight_decay
    )
    direction = mean / np.sqrt(variance) + eps
    return value - lr * (direction + weight_decay * value), mean, variance


@adamw_step.mistake(
    "You update the variance with the square of the mean. It is a running mean of the gradient's square: "
    "(1 − β₂) · grad²."
)
def variance_of_the_mean(value, grad, mean, variance, step, lr, beta1, beta2, eps, weight_decay):
    mean = beta1 * mean + (1 - beta1) * grad
    variance = beta2 * variance + (1 - beta2) * mean**2
    direction = mean / (np.sqrt(variance) + eps)
    return value - lr * (direction + weight_decay * value), mean, variance


# -- Open: many steps without a gradient, at once ------------------------------------------------------------

QUIET = {"lr": 0.05, "beta1": 0.8, "beta2": 0.95, "weight_decay": 0.6}


def _quiet_trials(draw: Draws) -> list[Trial]:
    """Some steps, none, and many; the decay is strong enough for its order to show."""
    trials = []
    for steps in (1, 7, 0, 20):
        arrays = {"value": draw.normal(6), "mean": draw.normal(6), "variance": draw.normal(6) ** 2 + 0.1}
        value, mean, variance = (array.copy() for array in arrays.values())
        for _ in range(steps):
            adamw_update(
                value,
                np.zeros(6),
                mean,
                variance,
                QUIET["lr"],
                1.0,
                QUIET["beta1"],
                QUIET["beta2"],
                0.0,
                QUIET["weight_decay"],
            )
        after = {"value": value, "mean": mean, "variance": variance}
        trials.append(Trial(arrays | {"steps": steps} | QUIET, f"steps = {steps}", after))
    return trials


@exercise(
    "13",
    outputs="value mean variance",
    trials=_quiet_trials,
    independent="single steps",
    level=3,
    minutes=25,
    needs="section 2, and the sum of a geometric series",
    hints=(
        "Write down two steps with a gradient of 0. What happens to the mean, to the variance, and to their "
        "quotient?",
        "From step to step m is multiplied by β₁, v by β₂, so the direction m/√v by r = β₁/√β₂. The value is "
        "multiplied by d = 1 − lr · weight_decay, and so is every move that it has made before.",
        "value · dᵏ − lr · m/√v · (r dᵏ⁻¹ + r² dᵏ⁻² + … + rᵏ). The sum is r (dᵏ − rᵏ)/(d − r).",
    ),
    hints_for={
        "value": (
            "Both means are right. By which factor does the direction m/√v change from step to step?",
            "By r = β₁/√β₂. Each step multiplies the value by d = 1 − lr · weight_decay and "
            "subtracts lr times the new direction. Write down two steps.",
            "value · dᵏ − lr · m/√v · (r dᵏ⁻¹ + r² dᵏ⁻² + … + rᵏ). The sum is r (dᵏ − rᵏ)/(d − r).",
        ),
        "mean variance": (
            "The value is right. Without a gradient, what does a step do to a running mean?",
            "It keeps β of the old mean and adds nothing.",
            "mean · β₁ᵏ and variance · β₂ᵏ.",
        ),
    },
)
def catch_up(value, mean, variance, steps, lr, beta1, beta2, weight_decay):
    d, r = 1 - lr * weight_decay, beta1 / np.sqrt(beta2)
    moves = r * (d**steps - r**steps) / (d - r)  # r dᵏ⁻¹ + r² dᵏ⁻² + … + rᵏ
    value = value * d**steps - lr * mean / np.sqrt(variance) * moves
    return value, mean * beta1**steps, variance * beta2**steps


def _caught_up(value, mean, variance, steps, lr, beta1, beta2, weight_decay, moves):
    """The right answer, but with this sum of moves."""
    d = 1 - lr * weight_decay
    value = value * d**steps - lr * mean / np.sqrt(variance) * moves
    return value, mean * beta1**steps, variance * beta2**steps


def _geometric(ratio, steps):
    return ratio * (1 - ratio**steps) / (1 - ratio)


@catch_up.mistake(
    "The value only decays. The mean does not become 0 when the gradient does: it fades over about "
    "1/(1 − β₁) steps and keeps moving the value."
)
def only_the_decay(value, mean, variance, steps, lr, beta1, beta2, weight_decay):
    return _caught_up(value, mean, variance, steps, lr, beta1, beta2, weight_decay, 0.0)


@catch_up.mistake(
    "The decay is missing. It does not need a gradient: each step multiplies the value by "
    "1 − lr · weight_decay."
)
def no_decay_while_waiting(value, mean, variance, steps, lr, beta1, beta2, weight_decay):
    return catch_up.solution(value, mean, variance, steps, lr, beta1, beta2, 0.0)


@catch_up.mistake(
    "Your direction shrinks by β₁ per step. The variance shrinks as well, and its root is below the line: "
    "m/√v shrinks by β₁/√β₂."
)
def variance_stands_still(value, mean, variance, steps, lr, beta1, beta2, weight_decay):
    moved, new_mean, _ = catch_up.solution(value, mean, variance, steps, lr, beta1, 1.0, weight_decay)
    return moved, new_mean, variance * beta2**steps


@catch_up.mistake(
    "Your direction shrinks by β₁/β₂ per step. It is divided by the *root* of the variance: β₁/√β₂."
)
def root_of_beta2_left_out(value, mean, variance, steps, lr, beta1, beta2, weight_decay):
    moved, new_mean, _ = catch_up.solution(value, mean, variance, steps, lr, beta1, beta2**2, weight_decay)
    return moved, new_mean, variance * beta2**steps


@catch_up.mistake(
    "Your sum begins one step too early, with the direction as it was given. A step first brings both means "
    "up to date, so that even the first move is shorter by r = β₁/√β₂."
)
def first_move_too_long(value, mean, variance, steps, lr, beta1, beta2, weight_decay):
    d, r = 1 - lr * weight_decay, beta1 / np.sqrt(beta2)
    moves = (d**steps - r**steps) / (d - r)
    return _caught_up(value, mean, variance, steps, lr, beta1, beta2, weight_decay, moves)


@catch_up.mistake(
    "The moves do not decay. A move that was made at the first step is a part of the value from then on, so "
    "the later steps decay it, too."
)
def moves_that_do_not_decay(value, mean, variance, steps, lr, beta1, beta2, weight_decay):
    moves = _geometric(beta1 / np.sqrt(beta2), steps)
    return _caught_up(value, mean, variance, steps, lr, beta1, beta2, weight_decay, moves)


@catch_up.mistake(
    "You add up all moves first and then decay the sum for all steps. Each move is decayed only by the steps "
    "that come after it; the last is not decayed at all."
)
def all_moves_before_the_decay(value, mean, variance, steps, lr, beta1, beta2, weight_decay):
    moves = _geometric(beta1 / np.sqrt(beta2), steps) * (1 - lr * weight_decay) ** steps
    return _caught_up(value, mean, variance, steps, lr, beta1, beta2, weight_decay, moves)


@catch_up.mistake(
    "All moves are as long as the first. The direction shrinks by r = β₁/√β₂ at each step: it is a geometric "
    "series."
)
def moves_all_alike(value, mean, variance, steps, lr, beta1, beta2, weight_decay):
    d, r = 1 - lr * weight_decay, beta1 / np.sqrt(beta2)
    moves = r * (1 - d**steps) / (1 - d)
    return _caught_up(value, mean, variance, steps, lr, beta1, beta2, weight_decay, moves)


@catch_up.mistake(
    "The value is right, but the means are returned as they were. They fade without a gradient: by β₁ and β₂ "
    "per step."
)
def means_left_alone(value, mean, variance, steps, lr, beta1, beta2, weight_decay):
    moved, _, _ = catch_up.solution(value, mean, variance, steps, lr, beta1, beta2, weight_decay)
    return moved, mean.copy(), variance.copy()
