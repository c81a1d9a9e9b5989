"""24 Distillation: soft probabilities, their gradient, and the imitation of a wider teacher."""

import numpy as np

from minibert.arrays import Array
from minibert.course.exercise import Trial, exercise, gradient_trial
from minibert.gradcheck import Draws
from minibert.ops.stable_softmax import log_softmax, softmax

# -- Probabilities at a temperature ---------------------------------------------------------------------


def _scores(draw: Draws) -> list[Trial]:
    from scipy import special  # imported only here, since it takes a while

    trials = []
    for label, scale, temperature in (
        ("T = 3", 4.0, 3.0),
        ("T = 0.5", 1.0, 0.5),
        ("large logits", 900.0, 2.0),
    ):
        logits = scale * draw.normal(3, 5)
        expected = special.softmax(logits / temperature, axis=-1)
        trials.append(Trial({"logits": logits, "temperature": temperature}, label, {"p": expected}))
    return trials


def _softmax(z):
    return softmax(z)[0]  # without its cache


@exercise(
    "24",
    outputs="p",
    trials=_scores,
    independent="scipy",
    level=1,
    minutes=5,
    needs="the stable softmax of [03](03_softmax_cross_entropy.ipynb)",
    hints=(
        "A temperature of 1 changes nothing. A high one makes the logits more alike before the softmax.",
        "Divide first, then make the softmax stable: subtract the largest logit of each row.",
        "z = logits / temperature; e = exp(z − z.max(axis=−1, keepdims=True)); divide e by its sum.",
    ),
)
def soften(logits, temperature):
    return _softmax(logits / temperature)


@soften.mistake("The logits are multiplied by T. A high temperature makes them more alike: divide.")
def multiplied_by_the_temperature(logits, temperature):
    return _softmax(logits * temperature)


@soften.mistake("The temperature has no effect here: divide the logits by it before the softmax.")
def temperature_forgotten(logits, temperature):
    return _softmax(logits)


@soften.mistake("The probabilities are divided by T, so they no longer add up to 1. Divide the logits.")
def probabilities_divided(logits, temperature):
    return _softmax(logits) / temperature


@soften.mistake("The softmax runs over the examples. Each row is a distribution over the classes: axis=-1.")
def softmax_over_the_examples(logits, temperature):
    return _softmax(logits.T / temperature).T


@soften.mistake("exp overflows for large logits: subtract the largest of each row first.")
def without_the_maximum(logits, temperature):
    with np.errstate(over="ignore", invalid="ignore"):
        e = np.exp(logits / temperature)
        return e / e.sum(axis=-1, keepdims=True)


@soften.mistake("These are log-probabilities. Take their exp.")
def logarithms(logits, temperature):
    return log_softmax(logits / temperature)[0]


# -- The gradient of the soft loss ------------------------------------------------------------------------


def _soft_loss(teacher: np.ndarray, temperature: float):
    """T² · KL(q ‖ p), mean over the batch, as a function of the student's logits."""
    q = _softmax(teacher / temperature)

    def forward(logits):
        p = _softmax(logits / temperature)
        loss = temperature**2 * (q * (np.log(q) - np.log(p))).sum() / len(p)
        return np.asarray(loss), (p, q, temperature)

    return forward


def _two_models(draw: Draws) -> list[Trial]:
    return [
        gradient_trial(_soft_loss(2 * draw.normal(4, 5), T), {"logits": draw.normal(4, 5)}, f"T = {T}")
        for T in (3.0, 1.5)
    ]


@exercise(
    "24",
    outputs="dlogits",
    trials=_two_models,
    level=2,
    minutes=15,
    needs="the gradient of cross-entropy from [03](03_softmax_cross_entropy.ipynb), and the chain rule",
    hints=(
        "The teacher's part of the loss has no student in it. What remains is a cross-entropy with q in the "
        "place of the label.",
        "Differentiate with respect to z/T first, as in notebook 03. Then z/T with respect to z. Then the "
        "factor in front of the sum.",
        "dlogits = dout · T / B · (p − q): of T², one factor is used up by the chain rule.",
    ),
)
def soft_target_backward(dout, cache):
    p, q, temperature = cache
    return dout * temperature / len(p) * (p - q)


@soft_target_backward.mistake(
    "One T too many: the logits are divided by T in the forward pass, so there is a factor 1/T, too."
)
def inner_derivative_forgotten(dout, cache):
    p, q, temperature = cache
    return dout * temperature**2 / len(p) * (p - q)


@soft_target_backward.mistake("This is the gradient without the factor T² that stands in front of the loss.")
def factor_forgotten(dout, cache):
    p, q, temperature = cache
    return dout / temperature / len(p) * (p - q)


@soft_target_backward.mistake("Both T² and 1/T are missing: this is the gradient at T = 1.")
def no_temperature(dout, cache):
    p, q, _ = cache
    return dout / len(p) * (p - q)


@soft_target_backward.mistake("The loss is the mean over the batch, so divide by the number of examples, B.")
def sum_over_the_batch(dout, cache):
    p, q, temperature = cache
    return dout * temperature * (p - q)


@soft_target_backward.mistake("The loss is divided by B, not by B · K: over the classes it is a sum.")
def mean_over_the_classes(dout, cache):
    p, q, temperature = cache
    return dout * temperature / p.size * (p - q)


@soft_target_backward.mistake("The sign is wrong: if p is too large, its logit has to fall, so p − q.")
def sign_turned(dout, cache):
    p, q, temperature = cache
    return dout * temperature / len(p) * (q - p)


@soft_target_backward.mistake("dout is missing: it is the gradient of what follows with respect to the loss.")
def dout_forgotten(dout, cache):
    p, q, temperature = cache
    return temperature / len(p) * (p - q)


@soft_target_backward.mistake("This stops at p: its gradient −q/p still has to go back through the softmax.")
def gradient_of_the_probabilities(dout, cache):
    p, q, temperature = cache
    return -dout * temperature**2 / len(p) * q / p


# -- Imitation of a wider teacher -------------------------------------------------------------------------


def hidden_imitation(hidden: Array, weight: Array, teacher: Array, mask: Array) -> tuple[Array, tuple]:
    """Mean squared error of projected hidden states over real tokens; the loss and its cache.

    hidden (B, S, H), weight (H′, H), teacher (B, S, H′), mask (B, S) of 0 and 1.
    """
    difference = hidden @ weight.T - teacher  # (B, S, H′)
    count = mask.sum() * teacher.shape[-1]
    loss = (mask[:, :, None] * difference**2).sum() / count
    return np.asarray(loss), (hidden, weight, difference, mask)


def _wider_teacher(draw: Draws) -> list[Trial]:
    trials = []
    for label, H, wide in (("wider teacher", 3, 5), ("same width", 4, 4)):
        teacher, mask = draw.normal(3, 4, wide), np.array([[1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 1, 0]])
        inputs = {"hidden": draw.normal(3, 4, H), "weight": draw.normal(wide, H)}
        trials.append(
            gradient_trial(lambda h, w, t=teacher, m=mask: hidden_imitation(h, w, t, m), inputs, label)
        )
    return trials


@exercise(
    "24",
    outputs="dhidden dweight",
    trials=_wider_teacher,
    level=3,
    minutes=25,
    needs="the linear layer's backward pass from [02](02_linear.ipynb), and padding",
    hints=(
        "Name the steps of the forward pass: project, subtract, square, mask, average. Go back through them.",
        "The gradient of the projection's output, (B, S, H′), has the mask in it. After that it is a linear "
        "layer with B · S rows.",
        "dy = 2 · dout · mask[:, :, None] · difference / (mask.sum() · H′); dhidden = dy @ weight; "
        "dweight = Σ over b and s of the outer products of dy and hidden.",
    ),
    hints_for={
        "dweight": (
            "dhidden is right. The weight is used for every token of every text.",
            "So its gradient is a sum over both axes, b and s.",
            "np.einsum('bsk,bsh->kh', dy, hidden).",
        )
    },
)
def imitation_backward(dout, cache):
    return _imitation(dout, cache)


def _imitation(dout, cache, factor=2.0, masked=True, count=None):
    hidden, weight, difference, mask = cache
    count = mask.sum() * difference.shape[-1] if count is None else count
    dy = factor * dout * difference / count
    if masked:
        dy = dy * mask[:, :, None]
    return dy @ weight, np.einsum("bsk,bsh->kh", dy, hidden)


@imitation_backward.mistake(
    "Padding has a gradient here. It is masked in the loss, so it is 0: apply the mask."
)
def padding_learns(dout, cache):
    return _imitation(dout, cache, masked=False)


@imitation_backward.mistake("The factor 2 of the square is missing.")
def two_forgotten(dout, cache):
    return _imitation(dout, cache, factor=1.0)


@imitation_backward.mistake("The loss is the mean over real tokens, but here padding is counted: mask.sum().")
def padding_counted(dout, cache):
    return _imitation(dout, cache, count=cache[2].size)


@imitation_backward.mistake("The loss is a mean over the teacher's H′ features as well: divide by H′.")
def features_not_counted(dout, cache):
    return _imitation(dout, cache, count=cache[3].sum())


@imitation_backward.mistake("The sign is wrong: the difference is the projection minus the teacher.")
def teacher_minus_student(dout, cache):
    return _imitation(dout, cache, factor=-2.0)


@imitation_backward.mistake("dout is missing.")
def dout_left_out(dout, cache):
    return _imitation(1.0, cache)


@imitation_backward.mistake("The mean divides by the student's H. It runs over the teacher's H′ features.")
def divided_by_the_students_width(dout, cache):
    return _imitation(dout, cache, count=cache[3].sum() * cache[0].shape[-1])
