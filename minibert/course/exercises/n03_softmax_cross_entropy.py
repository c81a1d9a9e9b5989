"""03 Softmax and cross-entropy: forward, back stage by stage, then in one line, and with smoothed labels."""

from dataclasses import replace

import numpy as np

from minibert.arrays import Array
from minibert.course.exercise import Trial, exercise, gradient_trial
from minibert.gradcheck import Draws
from minibert.ops.cross_entropy_loss import cross_entropy as library_cross_entropy
from minibert.ops.cross_entropy_loss import cross_entropy_backward as library_backward
from minibert.ops.stable_softmax import log_softmax
from minibert.ops.stable_softmax import softmax as library_softmax
from minibert.ops.stable_softmax import softmax_backward as library_softmax_backward

# N = 5 rows, V = 7 classes: one label occurs twice, and label 0 occurs; one row is ignored, one counts half.
# They are a piece of a batch, in which other rows count 2.5.
LABELS = np.array([2, 0, 6, 2, 4])
WEIGHTS = np.array([1.0, 1.0, 0.0, 0.5, 1.0])
DENOMINATOR = 6.0

# -- Softmax ------------------------------------------------------------------------------------------


def _scores(draw: Draws) -> list[Trial]:
    """Scores of order one; and rows far up, far down and far apart, where exponentials overflow or vanish."""
    far = np.repeat([[1000.0], [-1000.0], [0.0], [-1000.0], [1000.0]], 7, axis=1)
    far[2] = -1000.0, 1000.0, -1000.0, 0.0, 1000.0, -1000.0, 0.0  # only the maximum brings this row down
    return [
        Trial({"x": draw.normal(3, 4, 6)}, "x (3, 4, 6)"),
        Trial({"x": draw.normal(5, 7) + far}, "scores of ±1000"),
    ]


@exercise(
    "03",
    outputs="y cached_y",
    trials=_scores,
    reference=library_softmax,
    level=1,
    minutes=10,
    needs="section 1: what may be added to a row of scores without changing its probabilities",
    hints=(
        "Two things have to hold for every row by itself: no exponential may overflow, and the sum must not "
        "be 0.",
        "Subtract a number from each row before the exponential, so that its largest score becomes 0. The "
        "probabilities stay what they are.",
        "e = exp(x − the maximum of the row), y = e / the sum of the row, both over axis=-1 with "
        "keepdims=True; return y, (y,). See `softmax` in minibert/ops/stable_softmax.py.",
    ),
    hints_for={
        "cached_y": (
            "y is right. What is wrong is the second thing that you return, the cache.",
            "The cache is a tuple that holds one array, y.",
            "The last line is: return y, (y,). The comma makes it a tuple.",
        ),
    },
)
def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    y = e / e.sum(axis=-1, keepdims=True)
    return y, (y,)


def _with_cache(y):
    return y, (y,)


@softmax.mistake(
    "Large scores overflow: exp(1000) is infinite, and infinity divided by infinity is not a number. A "
    "constant may be subtracted from a row first; which one?"
)
def nothing_subtracted(x):
    with np.errstate(over="ignore", invalid="ignore"):
        e = np.exp(x)
        return _with_cache(e / e.sum(axis=-1, keepdims=True))


@softmax.mistake(
    "The maximum of the whole array is subtracted. The exponentials of a row that lies far below it are all "
    "0, and 0 is divided by 0: each row needs its own maximum."
)
def one_maximum_for_all_rows(x):
    e = np.exp(x - x.max())
    with np.errstate(invalid="ignore"):
        return _with_cache(e / e.sum(axis=-1, keepdims=True))


@softmax.mistake(
    "The sum runs over the whole array. Each row is a softmax of its own and sums to 1: use axis=-1, "
    "keepdims=True."
)
def divided_by_the_sum_of_all(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return _with_cache(e / e.sum())


@softmax.mistake(
    "The sum runs over axis 1. The classes are the last axis, however many come before: axis=-1."
)
def divided_by_the_sum_over_axis_1(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return _with_cache(e / e.sum(axis=1, keepdims=True))


@softmax.mistake(
    "The maximum is subtracted in the numerator only. The factor exp(−m) cancels only if it is in the sum, "
    "too."
)
def subtracted_above_only(x):
    with np.errstate(over="ignore", divide="ignore"):
        e = np.exp(x - x.max(axis=-1, keepdims=True))
        return _with_cache(e / np.exp(x).sum(axis=-1, keepdims=True))


@softmax.mistake(
    "These are the logarithms of the probabilities. They are what the loss needs; a softmax returns the "
    "probabilities."
)
def logarithms_returned(x):
    return _with_cache(log_softmax(x)[0])


@softmax.mistake(
    "The cache holds x. The backward pass needs the probabilities, so keep y; otherwise it would have to "
    "compute them again."
)
def scores_in_the_cache(x):
    return softmax.solution(x)[0], (x,)


# -- Its backward pass ----------------------------------------------------------------------------------


@exercise(
    "03",
    outputs="dx",
    trials=lambda draw: [
        gradient_trial(library_softmax, {"x": draw.normal(*shape)}, f"dx of {shape}")
        for shape in ((3, 4, 6), (5, 7))
    ],
    reference=library_softmax_backward,
    level=2,
    minutes=15,
    needs="the Jacobian of section 3, and that going back means multiplying by its transpose",
    hints=(
        "Every x[j] of a row is in the denominator of every y[i] of that row: each dx[j] has terms from all "
        "of them.",
        "∂y[i]/∂x[j] = y[i] (δᵢⱼ − y[j]), and dx[j] = Σᵢ dout[i] ∂y[i]/∂x[j]. Multiply that out.",
        "dx = y (dout − Σᵢ dout[i] y[i]), with the sum over the last axis and keepdims=True. See "
        "`softmax_backward` in minibert/ops/stable_softmax.py.",
    ),
)
def softmax_backward(dout, cache):
    (y,) = cache
    return y * (dout - (dout * y).sum(axis=-1, keepdims=True))


@softmax_backward.mistake(
    "The sum over the row is missing. If x[j] rises, y[j] rises and all others in its row fall. You have "
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
    "It is divided by the batch size. A softmax does not average over anything; if the loss is a mean, its "
    "1/B is in dout already. With B = 1 nobody would notice."
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
    "The sum is added. If x[j] rises, y[j] takes from the others in its row: the sum is subtracted."
)
def row_sum_added(dout, cache):
    (y,) = cache
    return y * (dout + (dout * y).sum(axis=-1, keepdims=True))


@softmax_backward.mistake("The bracket is right; the y in front of it is missing: y (dout − Σ dout y).")
def without_its_own_probability(dout, cache):
    (y,) = cache
    return dout - (dout * y).sum(axis=-1, keepdims=True)


@softmax_backward.mistake(
    "What is summed over the row is dout · y, not dout alone: it is a mean with the weights y."
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


# -- Cross-entropy ------------------------------------------------------------------------------------


@exercise(
    "03",
    outputs="loss cached_log_p cached_labels cached_weights cached_denominator",
    trials=lambda draw: [
        Trial(
            {
                "logits": scale * draw.normal(5, 7),
                "labels": LABELS,
                "weights": WEIGHTS,
                "denominator": DENOMINATOR,
            },
            label,
        )
        for scale, label in ((1, ""), (5000, "large scores"))
    ],
    reference=library_cross_entropy,
    views=True,
    level=2,
    minutes=15,
    needs="the logarithm of a softmax from section 2, and indexing with two arrays: `a[rows, columns]`",
    hints=(
        "First log p for all rows and classes, then in each row the one at its label, then the weighted sum.",
        "Take the logarithm on paper: (z − m) − log Σ exp(z − m), over each row. Then log_p[rows, labels] "
        "with rows = np.arange(len(labels)) is one number for each row.",
        "loss = (weights · −log_p[rows, labels]).sum() / denominator; return loss, (log_p, labels, weights, "
        "denominator). See `cross_entropy` in minibert/ops/cross_entropy_loss.py.",
    ),
    hints_for={
        "loss": (
            "The cache is right, and log_p with it. What does the loss make of log_p?",
            "From each row it takes the number at its label: log_p[rows, labels], with rows = "
            "np.arange(len(labels)).",
            "loss = (weights · −log_p[rows, labels]).sum() / denominator.",
        ),
        "cached_log_p cached_labels cached_weights cached_denominator": (
            "The loss is right. What is wrong is in the second thing that you return, the cache.",
            "The cache is a tuple of four: log_p for all rows and classes, then the last three arguments.",
            "The last line is: return loss, (log_p, labels, weights, denominator).",
        ),
    },
)
def cross_entropy(logits, labels, weights, denominator):
    shifted = logits - logits.max(axis=-1, keepdims=True)  # (N, V)
    log_p = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))  # (N, V)
    nll = -log_p[np.arange(len(labels)), labels]  # (N,)
    return (weights * nll).sum() / denominator, (log_p, labels, weights, denominator)


@cross_entropy.mistake(
    "The sign: the loss is *minus* the logarithm, so it is positive. The better the guess, the smaller it is."
)
def minus_forgotten(logits, labels, weights, denominator):
    loss, cache = cross_entropy.solution(logits, labels, weights, denominator)
    return -loss, cache


@cross_entropy.mistake(
    "The weights are missing: every row counts in full. A row of weight 0 should not count, whatever its "
    "label."
)
def every_row_counts(logits, labels, weights, denominator):
    loss, cache = cross_entropy.solution(logits, labels, np.ones_like(weights), denominator)
    return loss, (cache[0], labels, weights, denominator)


@cross_entropy.mistake(
    "You divide by the sum of these weights. The denominator is an argument: the rows may be a piece of a "
    "batch, and then it counts the rows of the other pieces, too."
)
def denominator_replaced_by_the_weights(logits, labels, weights, denominator):
    loss, cache = cross_entropy.solution(logits, labels, weights, denominator)
    return loss * denominator / weights.sum(), cache


@cross_entropy.mistake(
    "You divide by the number of rows, including ignored ones. Divide by `denominator`, which says how much "
    "counts."
)
def denominator_replaced_by_the_rows(logits, labels, weights, denominator):
    loss, cache = cross_entropy.solution(logits, labels, weights, denominator)
    return loss * denominator / len(labels), cache


@cross_entropy.mistake("The sum is not divided by the denominator, so a larger batch has a larger loss.")
def not_divided(logits, labels, weights, denominator):
    loss, cache = cross_entropy.solution(logits, labels, weights, denominator)
    return loss * denominator, cache


@cross_entropy.mistake(
    "Where scores are large, the logarithm is infinite or not a number: exp overflowed, or p was rounded to "
    "0 before its logarithm was taken. Take the logarithm on paper, as in section 2."
)
def logarithm_of_rounded_probabilities(logits, labels, weights, denominator):
    with np.errstate(divide="ignore", invalid="ignore"):
        log_p = np.log(library_softmax(logits)[0])
        nll = -log_p[np.arange(len(labels)), labels]
        return (weights * nll).sum() / denominator, (log_p, labels, weights, denominator)


@cross_entropy.mistake(
    "log_p[:, labels] gives the columns of all labels in every row. Each row has one label of its own: "
    "log_p[rows, labels] with rows = np.arange(len(labels))."
)
def all_labels_of_every_row(logits, labels, weights, denominator):
    _, cache = cross_entropy.solution(logits, labels, weights, denominator)
    return (weights * -cache[0][:, labels]).sum() / denominator, cache


@cross_entropy.mistake(
    "The cache holds the probabilities. Keep their logarithms instead: the library's "
    "`cross_entropy_backward` takes log_p, and very small probabilities survive in it."
)
def probabilities_in_the_cache(logits, labels, weights, denominator):
    loss, (log_p, *others) = cross_entropy.solution(logits, labels, weights, denominator)
    return loss, (np.exp(log_p), *others)


@cross_entropy.mistake(
    "The cache holds the logits. The backward pass needs log_p, and would have to compute it a second time."
)
def logits_in_the_cache(logits, labels, weights, denominator):
    loss, (_, *others) = cross_entropy.solution(logits, labels, weights, denominator)
    return loss, (logits, *others)


# -- Back in two stages ---------------------------------------------------------------------------------


def nll(p: Array, labels: Array, weights: Array, denominator: float) -> tuple[Array, tuple]:
    """loss = Σ w[r] · (−log p[r, labels[r]]) / denominator. p (N, V), labels and weights (N,)."""
    loss = (weights * -np.log(p[np.arange(len(p)), labels])).sum() / denominator
    return loss, (p, labels, weights, denominator)


def staged_cross_entropy(
    logits: Array, labels: Array, weights: Array, denominator: float
) -> tuple[Array, tuple]:
    """The same number as ``ops.cross_entropy``, in two stages: p = softmax(logits), then ``nll``."""
    p, _ = library_softmax(logits)
    return nll(p, labels, weights, denominator)


def _staged_trials(draw: Draws) -> list[Trial]:
    """The numeric gradient after each stage, and so of each by itself."""
    logits = draw.normal(5, 7)
    p, _ = library_softmax(logits)
    constants = LABELS, WEIGHTS, DENOMINATOR
    whole = gradient_trial(lambda logits: staged_cross_entropy(logits, *constants), {"logits": logits})
    last_stage = gradient_trial(lambda p: nll(p, *constants), {"p": p})
    return [replace(whole, independent=last_stage.independent | whole.independent)]


@exercise(
    "03",
    outputs="dp dlogits",
    trials=_staged_trials,
    in_order=True,
    level=1,
    minutes=15,
    needs="the derivative of the logarithm, and your softmax's backward pass",
    hints=(
        "Go back one stage at a time: from the loss to p, then from p to the logits with the backward pass "
        "of your softmax.",
        "In every row the loss looks at one number, p[r, labels[r]], so dp is 0 everywhere else. And the "
        "derivative of −log p is −1/p.",
        "dp = zeros; dp[rows, labels] = −dout · weights / denominator / p[rows, labels]; then dlogits = "
        "p (dp − Σ dp p), summed over the last axis.",
    ),
    hints_for={
        "dlogits": (
            "dp is right. What is left is the way back through the softmax, which you have written already.",
            "softmax_backward(dout, cache): here its dout is dp, and its cache is (p,).",
            "dlogits = p (dp − Σ dp p), with the sum over the last axis and keepdims=True.",
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
    "The sign: the loss is minus the logarithm, so dp is negative. A larger p at the label makes the loss "
    "smaller."
)
def sign_lost(dout, cache):
    return _after(-staged_backward.solution(dout, cache)[0], cache)


@staged_backward.mistake(
    "dp is −1/p in every column. The loss of a row depends on only one of its numbers, p[r, labels[r]]; the "
    "others have a derivative of 0."
)
def every_class_instead_of_the_label(dout, cache):
    p, _, weights, denominator = cache
    return _after(-dout * weights[:, None] / denominator / p, cache)


@staged_backward.mistake(
    "The weights are missing: a row of weight 0 must have no gradient, and a row of weight ½ half of it."
)
def weights_forgotten(dout, cache):
    p, labels, weights, denominator = cache
    dp, _ = staged_backward.solution(dout, (p, labels, np.ones_like(weights), denominator))
    return _after(dp, cache)


@staged_backward.mistake(
    "You divide by the sum of these weights. The forward pass divides by `denominator`: the rows may be a "
    "piece of a batch, and then it counts the rows of the other pieces, too."
)
def divided_by_its_own_weights(dout, cache):
    p, labels, weights, _ = cache
    return staged_backward.solution(dout, (p, labels, weights, weights.sum()))


@staged_backward.mistake(
    "dp[:, labels] selects the columns of all labels in every row. Each row has one label of its own: "
    "dp[rows, labels] with rows = np.arange(len(p))."
)
def every_row_gets_all_labels(dout, cache):
    p, labels, weights, denominator = cache
    dp = np.zeros_like(p)
    dp[:, labels] = -dout * weights / denominator / p[:, labels]
    return _after(dp, cache)


@staged_backward.mistake(
    "dout is missing. The loss may be one of several, or scaled: every backward pass begins with what came "
    "from above."
)
def dout_left_out(dout, cache):
    return staged_backward.solution(1.0, cache)


@staged_backward.mistake(
    "dp is right. On the way through the softmax, the sum over the row is missing: p (dp − Σ dp p)."
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
            lambda logits: library_cross_entropy(logits, LABELS, WEIGHTS, DENOMINATOR),
            {"logits": draw.normal(5, 7)},
        )
    ],
    reference=library_backward,
    level=2,
    minutes=15,
    needs="the two stages of section 6",
    hints=(
        "Put your two stages together on paper first: p at the label cancels.",
        "Prediction minus truth: for each row p − onehot(label), times how much that row counts.",
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
    "You scale p, and then subtract a whole 1 at the label. The whole difference p − onehot has to be "
    "scaled: subtract dout · weight / denominator at the label."
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
    "You divide by the number of rows, including ignored ones. The forward pass divides by `denominator`, "
    "which counts weights, and so must the backward pass."
)
def divided_by_the_number_of_rows(dout, cache):
    log_p, labels, weights, _ = cache
    return cross_entropy_backward.solution(dout, (log_p, labels, weights, len(labels)))


@cross_entropy_backward.mistake(
    "`denominator` is missing: the forward pass divides the sum of the rows by it, so each row counts its "
    "weight over the denominator."
)
def not_divided_backward(dout, cache):
    log_p, labels, weights, _ = cache
    return cross_entropy_backward.solution(dout, (log_p, labels, weights, 1.0))


@cross_entropy_backward.mistake(
    "Rows with label 0 get no gradient. 0 is a class like any other ([PAD] in one loss, “B follows A” in "
    "another). The weights say which rows do not count."
)
def label_zero_ignored(dout, cache):
    log_p, labels, weights, denominator = cache
    return cross_entropy_backward.solution(dout, (log_p, labels, weights * (labels != 0), denominator))


@cross_entropy_backward.mistake(
    "dout is missing. The loss may be one of several, or scaled: every backward pass begins with what came "
    "from above."
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
    "You divide by the sum of these weights. The forward pass divides by `denominator`: the rows may be a "
    "piece of a batch, and then it counts the rows of the other pieces, too."
)
def divided_by_the_weights_of_this_piece(dout, cache):
    log_p, labels, weights, _ = cache
    return cross_entropy_backward.solution(dout, (log_p, labels, weights, weights.sum()))


@cross_entropy_backward.mistake(
    "dlogits[:, labels] selects the columns of all labels in every row. Each row has one label of its own: "
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


# -- Open: smoothed labels ------------------------------------------------------------------------------

SMOOTHING = 0.3


def smoothed_cross_entropy(logits: Array, labels: Array, smoothing: float) -> tuple[Array, tuple]:
    """The mean loss of all rows, where a part of the truth is spread evenly over all classes."""
    log_p, _ = log_softmax(logits)  # (N, V)
    at_label = log_p[np.arange(len(labels)), labels]  # (N,)
    losses = -(1 - smoothing) * at_label - smoothing * log_p.mean(axis=-1)  # (N,)
    return losses.mean(), (log_p, labels, smoothing)


@exercise(
    "03",
    outputs="dlogits",
    trials=lambda draw: [
        gradient_trial(
            lambda logits: smoothed_cross_entropy(logits, LABELS, SMOOTHING), {"logits": draw.normal(5, 7)}
        )
    ],
    level=3,
    minutes=20,
    needs="sections 7 and 8 of this notebook",
    hints=(
        "The loss of a row is still −Σ q[i] log p[i], but the weights q are no longer a single 1. What are "
        "they?",
        "q is (1 − ε) · onehot + ε/V in every class, and sums to 1. Put log p[i] = z[i] − log Σ exp(z) into "
        "the loss and take the derivative again: what takes the place of p − onehot?",
        "dlogits = dout · (p − q) / N: prediction minus the smoothed truth, for the mean of N rows.",
    ),
)
def smoothed_backward(dout, cache):
    log_p, labels, smoothing = cache
    return dout * (np.exp(log_p) - _truth(log_p, labels, 1 - smoothing, smoothing)) / len(labels)


def _truth(log_p, labels, at_label, spread):
    """What a row should say: ``at_label`` there, and ``spread`` over all classes evenly."""
    count, classes = log_p.shape
    truth = np.full((count, classes), spread / classes)
    truth[np.arange(count), labels] += at_label
    return truth


@smoothed_backward.mistake(
    "This is p − onehot, the gradient without smoothing. The part ε of the truth is spread evenly over all "
    "classes."
)
def smoothing_forgotten(dout, cache):
    log_p, labels, _ = cache
    return smoothed_backward.solution(dout, (log_p, labels, 0.0))


@smoothed_backward.mistake(
    "ε is spread over the V − 1 wrong classes here. The mean in the forward pass runs over all V classes, "
    "including the right one."
)
def spread_over_the_wrong_classes(dout, cache):
    log_p, labels, smoothing = cache
    classes = log_p.shape[1]
    other = smoothing * classes / (classes - 1)
    truth = _truth(log_p, labels, 1 - smoothing - other / classes, other)
    return dout * (np.exp(log_p) - truth) / len(labels)


@smoothed_backward.mistake(
    "The right class lacks its share ε/V. It should have 1 − ε + ε/V, so that each row of the truth sums to "
    "1. A row of dlogits has to sum to 0; does yours?"
)
def label_without_its_share(dout, cache):
    log_p, labels, smoothing = cache
    truth = _truth(log_p, labels, 1 - smoothing - smoothing / log_p.shape[1], smoothing)
    return dout * (np.exp(log_p) - truth) / len(labels)


@smoothed_backward.mistake(
    "Every class gets ε instead of ε/V. The forward pass takes the mean of log p over the classes, not the "
    "sum."
)
def smoothing_not_divided(dout, cache):
    log_p, labels, smoothing = cache
    truth = _truth(log_p, labels, 1 - smoothing, smoothing * log_p.shape[1])
    return dout * (np.exp(log_p) - truth) / len(labels)


@smoothed_backward.mistake(
    "This is (1 − ε)(p − onehot), the gradient of the first term alone. The second, the mean over all "
    "classes, depends on the logits, too."
)
def the_first_term_only(dout, cache):
    return (1 - cache[2]) * smoothing_forgotten.function(dout, cache)


@smoothed_backward.mistake("The loss is a mean over the rows, so each row counts 1/N.")
def not_divided_by_the_rows(dout, cache):
    return smoothed_backward.solution(dout, cache) * len(cache[1])


@smoothed_backward.mistake(
    "The sign: it is prediction minus truth. Yours would raise the loss with every step."
)
def truth_minus_the_prediction(dout, cache):
    return -smoothed_backward.solution(dout, cache)


@smoothed_backward.mistake("dout is missing: every backward pass begins with what came from above.")
def without_dout(dout, cache):
    return smoothed_backward.solution(1.0, cache)
