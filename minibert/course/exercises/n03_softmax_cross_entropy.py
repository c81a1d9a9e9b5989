"""03 Softmax and cross-entropy: first stage by stage, then all of it in one line."""

from dataclasses import replace

import numpy as np

from minibert.arrays import Array
from minibert.course.exercise import Trial, exercise, gradient_trial
from minibert.gradcheck import Draws
from minibert.ops.cross_entropy_loss import cross_entropy
from minibert.ops.cross_entropy_loss import cross_entropy_backward as library_backward
from minibert.ops.stable_softmax import softmax
from minibert.ops.stable_softmax import softmax_backward as library_softmax_backward

# N = 5 rows, V = 7 classes: a label twice, and label 0; one row is ignored, one counts half. They are a
# piece of a batch, in which other rows count 2.5.
LABELS = np.array([2, 0, 6, 2, 4])
WEIGHTS = np.array([1.0, 1.0, 0.0, 0.5, 1.0])
DENOMINATOR = 6.0


@exercise(
    "03",
    outputs="dx",
    trials=lambda draw: [
        gradient_trial(softmax, {"x": draw.normal(*shape)}, f"dx of {shape}") for shape in ((3, 4, 6), (5, 7))
    ],
    reference=library_softmax_backward,
    hints=(
        "Every x[j] of a row is in the denominator of every y[i] of that row: each dx[j] has terms from all "
        "of them.",
        "∂y[i]/∂x[j] = y[i] (δᵢⱼ − y[j]), and dx[j] = Σᵢ dout[i] ∂y[i]/∂x[j]. Multiply that out.",
        "dx = y (dout − Σᵢ dout[i] y[i]), the sum over the last axis with keepdims=True. See "
        "`softmax_backward` in minibert/ops/stable_softmax.py.",
    ),
)
def softmax_backward(dout, cache):
    (y,) = cache
    return y * (dout - (dout * y).sum(axis=-1, keepdims=True))


@softmax_backward.mistake(
    "The sum over the row is missing. If x[j] rises, y[j] rises and all others of its row fall; you have "
    "only half of this."
)
def without_the_row_sum(dout, cache):
    (y,) = cache
    return y * dout


@softmax_backward.mistake(
    "y (1 − y) is only the diagonal of the Jacobian: how y[i] moves with its own x[i]. It also moves with "
    "every other x[j] of its row, by −y[i] y[j]."
)
def the_diagonal_only(dout, cache):
    (y,) = cache
    return y * (1 - y) * dout


@softmax_backward.mistake(
    "It is divided by the batch size. A softmax averages over nothing; if the loss is a mean, its 1/B is in "
    "dout already. With B = 1 nobody would notice."
)
def divided_by_the_batch_size(dout, cache):
    return softmax_backward.solution(dout, cache) / len(dout)


@softmax_backward.mistake(
    "The sum runs over the whole array. Each row is a softmax of its own: sum over the last axis, "
    "keepdims=True."
)
def summed_over_everything(dout, cache):
    (y,) = cache
    return y * (dout - (dout * y).sum())


@softmax_backward.mistake(
    "The sum runs over axis 1, the tokens; the softmax ran over the last axis, and so must the sum: axis=-1."
)
def summed_over_another_axis(dout, cache):
    (y,) = cache
    return y * (dout - (dout * y).sum(axis=1, keepdims=True))


@softmax_backward.mistake(
    "The sum is added. If x[j] rises, it takes from the others of its row: the sum is subtracted."
)
def row_sum_added(dout, cache):
    (y,) = cache
    return y * (dout + (dout * y).sum(axis=-1, keepdims=True))


@softmax_backward.mistake("The bracket is right; the y in front of it is missing: y (dout − Σ dout y).")
def without_its_own_probability(dout, cache):
    (y,) = cache
    return dout - (dout * y).sum(axis=-1, keepdims=True)


@softmax_backward.mistake(
    "What is summed over the row is dout · y, not dout alone: a mean with the weights y."
)
def dout_summed_without_y(dout, cache):
    (y,) = cache
    return y * (dout - dout.sum(axis=-1, keepdims=True))


@softmax_backward.mistake(
    "A sum over the row belongs there, not a mean: the weights y sum to 1, so Σ dout y is a mean already."
)
def mean_over_the_row(dout, cache):
    (y,) = cache
    return y * (dout - (dout * y).mean(axis=-1, keepdims=True))


# -- Cross-entropy in stages ------------------------------------------------------------------------


def nll(p: Array, labels: Array, weights: Array, denominator: float) -> tuple[Array, tuple]:
    """loss = Σ w[r] · (−log p[r, labels[r]]) / denominator. p (N, V), labels and weights (N,)."""
    loss = (weights * -np.log(p[np.arange(len(p)), labels])).sum() / denominator
    return loss, (p, labels, weights, denominator)


def staged_cross_entropy(
    logits: Array, labels: Array, weights: Array, denominator: float
) -> tuple[Array, tuple]:
    """The same number as ``ops.cross_entropy``, in two stages: p = softmax(logits), then ``nll``."""
    p, _ = softmax(logits)
    return nll(p, labels, weights, denominator)


def _staged_trials(draw: Draws) -> list[Trial]:
    """The numeric gradient after each stage, and so of each by itself."""
    logits = draw.normal(5, 7)
    p, _ = softmax(logits)
    constants = LABELS, WEIGHTS, DENOMINATOR
    whole = gradient_trial(lambda logits: staged_cross_entropy(logits, *constants), {"logits": logits})
    last_stage = gradient_trial(lambda p: nll(p, *constants), {"p": p})
    return [replace(whole, independent=last_stage.independent | whole.independent)]


@exercise(
    "03",
    outputs="dp dlogits",
    trials=_staged_trials,
    hints=(
        "Backwards, one stage at a time: from the loss to p, then from p to the logits with your softmax's "
        "backward.",
        "Of every row the loss looks at one number, p[r, labels[r]]: dp is 0 everywhere else. And d(−log p) "
        "is −dp/p.",
        "dp = zeros; dp[rows, labels] = −dout · weights / denominator / p[rows, labels]; then dlogits = "
        "p (dp − Σ dp p), summed over the last axis.",
    ),
    hints_for={
        "dlogits": (
            "dp is right. What is left is one way back through the softmax, which you have written already.",
            "softmax_backward(dout, cache): here its dout is dp, and its cache is (p,).",
            "dlogits = p (dp − Σ dp p), the sum over the last axis with keepdims=True.",
        ),
    },
)
def staged_backward(dout, cache):
    p, labels, weights, denominator = cache
    rows = np.arange(len(p))
    dp = np.zeros_like(p)
    dp[rows, labels] = -dout * weights / denominator / p[rows, labels]
    return dp, softmax_backward.solution(dp, (p,))


def _after(dp, cache):
    """What dp gives if the rest is right."""
    return dp, softmax_backward.solution(dp, cache[:1])


@staged_backward.mistake(
    "The sign: the loss is minus the logarithm, so dp is negative; a larger p at the label makes the loss "
    "smaller."
)
def sign_lost(dout, cache):
    return _after(-staged_backward.solution(dout, cache)[0], cache)


@staged_backward.mistake(
    "dp is −1/p in every column. The loss of a row depends on one of its numbers only, p[r, labels[r]]; the "
    "others have a derivative of 0."
)
def every_class_instead_of_the_label(dout, cache):
    p, _, weights, denominator = cache
    return _after(-dout * weights[:, None] / denominator / p, cache)


@staged_backward.mistake(
    "The weights are missing: a row with weight 0 must have no gradient, and one with weight ½ half of it."
)
def weights_forgotten(dout, cache):
    p, labels, weights, denominator = cache
    dp, _ = staged_backward.solution(dout, (p, labels, np.ones_like(weights), denominator))
    return _after(dp, cache)


@staged_backward.mistake(
    "You divide by the sum of these weights. The forward divides by `denominator`: the rows may be a piece "
    "of a batch, and then it counts what is in the other pieces, too."
)
def divided_by_its_own_weights(dout, cache):
    p, labels, weights, _ = cache
    return staged_backward.solution(dout, (p, labels, weights, weights.sum()))


@staged_backward.mistake(
    "dp[:, labels] is the columns of all labels in every row. Each row has one label of its own: "
    "dp[rows, labels] with rows = np.arange(len(p))."
)
def every_row_gets_all_labels(dout, cache):
    p, labels, weights, denominator = cache
    dp = np.zeros_like(p)
    dp[:, labels] = -dout * weights / denominator / p[:, labels]
    return _after(dp, cache)


@staged_backward.mistake(
    "dout is missing. The loss may be one of several, or scaled: every backward begins with what came from "
    "above."
)
def dout_left_out(dout, cache):
    return staged_backward.solution(1.0, cache)


@staged_backward.mistake(
    "dp is right; on the way through the softmax the sum over the row is missing: p (dp − Σ dp p)."
)
def softmax_without_the_row_sum(dout, cache):
    dp, _ = staged_backward.solution(dout, cache)
    return dp, cache[0] * dp


# -- All in one line --------------------------------------------------------------------------------


@exercise(
    "03",
    outputs="dlogits",
    trials=lambda draw: [
        gradient_trial(
            lambda logits: cross_entropy(logits, LABELS, WEIGHTS, DENOMINATOR), {"logits": draw.normal(5, 7)}
        )
    ],
    reference=library_backward,
    hints=(
        "Put your two stages together on paper first: p at the label cancels.",
        "Prediction minus truth: for each row p − onehot(label), times what that row counts for.",
        "dlogits = exp(log_p) · s[:, None], then dlogits[rows, labels] −= s, with s = dout · weights / "
        "denominator. See `cross_entropy_backward` in minibert/ops/cross_entropy_loss.py.",
    ),
)
def cross_entropy_backward(dout, cache):
    log_p, labels, weights, denominator = cache
    scale = dout * weights / denominator  # (N,)
    dlogits = np.exp(log_p) * scale[:, None]  # (N, V)
    dlogits[np.arange(len(labels)), labels] -= scale
    return dlogits


@cross_entropy_backward.mistake(
    "The sign: it is prediction minus truth, p − onehot. Yours would raise the loss with every step."
)
def truth_minus_prediction(dout, cache):
    return -cross_entropy_backward.solution(dout, cache)


@cross_entropy_backward.mistake(
    "You scale p, and then subtract a whole 1 at the label. The difference p − onehot is what is scaled: "
    "subtract dout · weight / denominator there."
)
def only_p_is_scaled(dout, cache):
    log_p, labels, weights, denominator = cache
    dlogits = np.exp(log_p) * (dout * weights / denominator)[:, None]
    dlogits[np.arange(len(labels)), labels] -= 1
    return dlogits


@cross_entropy_backward.mistake(
    "The weights are missing: ignored rows (padding, words that are not predicted) must have no gradient at "
    "all."
)
def ignored_rows_have_a_gradient(dout, cache):
    log_p, labels, weights, denominator = cache
    return cross_entropy_backward.solution(dout, (log_p, labels, np.ones_like(weights), denominator))


@cross_entropy_backward.mistake(
    "You divide by the number of rows, ignored ones among them. The forward divides by `denominator`, which "
    "counts weights; so must the backward."
)
def divided_by_the_number_of_rows(dout, cache):
    log_p, labels, weights, _ = cache
    return cross_entropy_backward.solution(dout, (log_p, labels, weights, len(labels)))


@cross_entropy_backward.mistake(
    "Rows with label 0 get no gradient. 0 is a class like any other ([PAD] in one loss, “B follows A” in "
    "another); which rows do not count is told by the weights."
)
def label_zero_ignored(dout, cache):
    log_p, labels, weights, denominator = cache
    return cross_entropy_backward.solution(dout, (log_p, labels, weights * (labels != 0), denominator))


@cross_entropy_backward.mistake(
    "dout is missing. The loss may be one of several, or scaled: every backward begins with what came from "
    "above."
)
def dout_forgotten(dout, cache):
    return cross_entropy_backward.solution(1.0, cache)


@cross_entropy_backward.mistake(
    "The cache holds log p, not p, and not the logits: the probabilities are exp(log_p)."
)
def log_p_taken_for_p(dout, cache):
    log_p, labels, weights, denominator = cache
    scale = dout * weights / denominator
    dlogits = log_p * scale[:, None]
    dlogits[np.arange(len(labels)), labels] -= scale
    return dlogits


@cross_entropy_backward.mistake(
    "You divide by the sum of these weights. The forward divides by `denominator`: the rows may be a piece "
    "of a batch, and then it counts what is in the other pieces, too."
)
def divided_by_the_weights_of_this_piece(dout, cache):
    log_p, labels, weights, _ = cache
    return cross_entropy_backward.solution(dout, (log_p, labels, weights, weights.sum()))


@cross_entropy_backward.mistake(
    "dlogits[:, labels] is the columns of all labels in every row. Each row has one label of its own: "
    "dlogits[rows, labels] with rows = np.arange(len(labels))."
)
def all_labels_in_every_row(dout, cache):
    log_p, labels, weights, denominator = cache
    scale = dout * weights / denominator
    dlogits = np.exp(log_p) * scale[:, None]
    dlogits[:, labels] -= scale
    return dlogits


@cross_entropy_backward.mistake(
    "onehot[:, labels] = 1 sets the columns of all labels in every row. Each row has one label of its own: "
    "onehot[rows, labels] = 1 with rows = np.arange(len(labels))."
)
def a_one_for_every_label(dout, cache):
    log_p, labels, weights, denominator = cache
    onehot = np.zeros_like(log_p)
    onehot[:, labels] = 1
    return (np.exp(log_p) - onehot) * (dout * weights / denominator)[:, None]
