"""21 Where BERT comes from: perplexity, and the backward passes of skip-gram and of one LSTM step."""

import numpy as np

from minibert.arrays import Array
from minibert.course.exercise import Trial, exercise, gradient_trial
from minibert.gradcheck import Case, Draws, central_differences

# -- Perplexity -------------------------------------------------------------------------------------------

IGNORED = -100
REAL_TARGETS = (
    ("rows of different length", np.array([[1, 1, 1, 1, 1, 0], [1, 1, 0, 0, 0, 0], [1, 1, 1, 0, 0, 0]])),
    ("gaps", np.array([[0, 1, 0, 0, 1], [1, 0, 1, 1, 0]])),
)


def _losses(draw: Draws) -> list[Trial]:
    """Losses of about 1 nat everywhere, and labels of which some are ignored."""
    trials = []
    for label, real in REAL_TARGETS:
        losses = np.abs(1 + draw.normal(*real.shape))
        labels = np.where(real, draw.ids(50, *real.shape), IGNORED)
        probabilities = np.exp(-losses[real > 0])
        by_product = (1 / probabilities).prod() ** (1 / probabilities.size)  # a geometric mean
        trials.append(Trial({"losses": losses, "labels": labels}, label, {"perplexity": by_product}))
    return trials


def _real(losses, labels):
    return losses[labels != IGNORED]


@exercise(
    "21",
    outputs="perplexity",
    trials=_losses,
    independent="a product of probabilities",
    level=1,
    minutes=8,
    needs="ignored positions, from [03](03_softmax_cross_entropy.ipynb)",
    hints=(
        "Perplexity belongs to one number, the mean loss of all targets. Which positions are targets?",
        "Choose the losses whose label is not −100, from all rows together. Take their mean first, and "
        "undo the logarithm afterwards.",
        "real = losses[labels != −100]; np.exp(real.mean()).",
    ),
)
def perplexity(losses, labels):
    return np.exp(_real(losses, labels).mean())


@perplexity.mistake(
    "The ignored positions are counted, too. Their label is −100, and their loss means nothing: leave them "
    "out of the mean."
)
def all_positions(losses, labels):
    return np.exp(losses.mean())


@perplexity.mistake(
    "The sum leaves the ignored positions out, but the denominator counts them. Divide by the number of "
    "targets."
)
def divided_by_all_positions(losses, labels):
    return np.exp(_real(losses, labels).sum() / losses.size)


@perplexity.mistake(
    "You take the mean of exp(loss). One token with a tiny probability then decides everything. Take the "
    "mean of the losses; exp comes last."
)
def mean_of_exponentials(losses, labels):
    return np.exp(_real(losses, labels)).mean()


@perplexity.mistake(
    "You take the mean of each row first, and then the mean of the rows. So a token of a short row counts "
    "for more. All targets have the same weight."
)
def mean_of_the_rows(losses, labels):
    real = labels != IGNORED
    return np.exp(((losses * real).sum(axis=1) / real.sum(axis=1)).mean())


@perplexity.mistake(
    "The base is 2, but the losses are in nats (natural logarithms): np.exp. 2 belongs to losses in bits."
)
def base_two(losses, labels):
    return 2 ** _real(losses, labels).mean()


@perplexity.mistake(
    "This is exp(−loss), the geometric mean of the probabilities. Perplexity is one over it, and at least 1."
)
def one_over_it(losses, labels):
    return np.exp(-_real(losses, labels).mean())


@perplexity.mistake("This is the mean loss, in nats. Its exponential is the perplexity.")
def exponential_forgotten(losses, labels):
    return _real(losses, labels).mean()


@perplexity.mistake(
    "This is one over the probability of all targets together, which grows with the length of the text. Take "
    "the mean of the losses instead of their sum."
)
def sum_for_mean(losses, labels):
    return np.exp(_real(losses, labels).sum())


# -- Skip-gram with negative sampling ---------------------------------------------------------------------


def _sigmoid(x):
    return 1 / (1 + np.exp(-x))


def skip_gram(words: Array, contexts: Array, centres: Array, targets: Array) -> tuple[Array, tuple]:
    """The summed loss of B pairs: words and contexts (V, D), centres (B,), targets (B, 1 + K).

    Column 0 of the targets is the true neighbour, the others are K negatives. The cache is
    (words, contexts, centres, targets, scores).
    """
    scores = np.einsum("bd,bkd->bk", words[centres], contexts[targets])  # (B, 1 + K)
    signs = np.ones_like(scores)
    signs[:, 0] = -1
    losses = np.logaddexp(0, signs * scores)  # −log σ(s) for the neighbour, −log σ(−s) for a negative
    return losses.sum(), (words, contexts, centres, targets, scores)


PAIRS = (
    ("B = 3, K = 2", 6, 4, np.array([0, 3, 3]), np.array([[1, 2, 5], [4, 1, 1], [2, 0, 4]])),
    (
        "K = 4",
        5,
        3,
        np.array([2, 4, 2, 1]),
        np.array([[0, 1, 4, 3, 1], [3, 3, 0, 2, 1], [1, 0, 0, 4, 2], [0, 3, 2, 4, 4]]),
    ),
)


@exercise(
    "21",
    outputs="dwords dcontexts",
    trials=lambda draw: [
        gradient_trial(
            lambda words, contexts, c=centres, t=targets: skip_gram(words, contexts, c, t),
            {"words": draw.normal(vocab, size), "contexts": draw.normal(vocab, size)},
            label,
        )
        for label, vocab, size, centres, targets in PAIRS
    ],
    level=2,
    minutes=20,
    needs="σ and its derivative, and the scatter-add of [06](06_embeddings.ipynb)",
    hints=(
        "First the derivative of the loss with respect to one score. The formula is the same for the "
        "neighbour and for a negative, if you give each score a label: 1 or 0.",
        "dscores = σ(scores) − labels, (B, 1 + K), times dout. A score is a product of two vectors, so each "
        "gets the other one, times dscores. Then both go back to the rows where they came from.",
        "np.add.at(dwords, centres, einsum('bk,bkd->bd', dscores, contexts[targets])); np.add.at(dcontexts, "
        "targets, dscores[..., None] * words[centres][:, None]).",
    ),
    hints_for={
        "dcontexts": (
            "dwords is right, so dscores is. What does each target of a pair get?",
            "The vector of the pair's centre, times dscores of this target: (B, 1 + K, D), added to the rows "
            "of targets.",
            "np.add.at(dcontexts, targets, dscores[..., None] * words[centres][:, None]).",
        ),
        "dwords": (
            "dcontexts is right, so dscores is. How many targets does each centre have?",
            "1 + K of them, and their shares add up: the sum of dscores times contexts[targets] over the "
            "targets, (B, D), added to the rows of centres.",
            "np.add.at(dwords, centres, np.einsum('bk,bkd->bd', dscores, contexts[targets])).",
        ),
    },
)
def skip_gram_backward(dout, cache):
    return _skip_gram_backward(dout, cache)


def _skip_gram_backward(dout, cache, change=lambda difference, scores: difference, add=np.add.at, first=None):
    """Both gradients, with one thing done in another way."""
    words, contexts, centres, targets, scores = cache
    labels = np.zeros_like(scores)
    labels[:, 0] = 1
    dscores = dout * change(_sigmoid(scores) - labels, scores)  # (B, 1 + K)
    dwords, dcontexts = np.zeros_like(words), np.zeros_like(contexts)
    add(dwords, centres, np.einsum("bk,bkd->bd", dscores[:, :first], contexts[targets[:, :first]]))
    add(dcontexts, targets, dscores[..., None] * words[centres][:, None])
    return dwords, dcontexts


def _overwrite(table, rows, values):
    table[rows] += values  # NumPy reads, adds, and writes: of a repeated row, the last one is left


@skip_gram_backward.mistake(
    "table[rows] += … adds a repeated row once. A word that occurs several times in the batch, as a centre "
    "or as a target, collects the sum of its gradients: np.add.at."
)
def repeated_rows_overwritten(dout, cache):
    return _skip_gram_backward(dout, cache, add=_overwrite)


@skip_gram_backward.mistake(
    "The sign is turned around: label minus probability is the direction in which the loss falls. The "
    "gradient is probability minus label."
)
def the_direction_of_descent(dout, cache):
    return _skip_gram_backward(dout, cache, lambda difference, scores: -difference)


@skip_gram_backward.mistake(
    "The label of the true neighbour is missing: its dscore is σ(s) − 1, which is negative. With σ(s) alone "
    "all words are pushed apart."
)
def every_target_a_negative(dout, cache):
    return _skip_gram_backward(dout, cache, lambda difference, scores: _sigmoid(scores))


@skip_gram_backward.mistake(
    "All targets have the label 1, even the negatives. Then all words are pulled together, and one vector "
    "for all of them is the best."
)
def every_target_a_neighbour(dout, cache):
    return _skip_gram_backward(dout, cache, lambda difference, scores: _sigmoid(scores) - 1)


@skip_gram_backward.mistake(
    "There is a factor σ (1 − σ) too many. It cancels against the derivative of the logarithm; σ − label is "
    "all that is left."
)
def slope_of_sigma_once_more(dout, cache):
    return _skip_gram_backward(
        dout, cache, lambda difference, scores: difference * _sigmoid(scores) * _sigmoid(-scores)
    )


@skip_gram_backward.mistake(
    "dwords has only the share of the true neighbour. The centre's vector is in the scores of the negatives, "
    "too: sum over all 1 + K targets."
)
def negatives_forgotten_in_dwords(dout, cache):
    return _skip_gram_backward(dout, cache, first=1)


@skip_gram_backward.mistake("dout is missing: it multiplies every gradient.")
def skip_gram_dout_forgotten(dout, cache):
    return _skip_gram_backward(1.0, cache)


@skip_gram_backward.mistake(
    "You divide by the number of pairs. But the forward pass takes the sum of the losses, not their mean."
)
def mean_over_the_pairs(dout, cache):
    return _skip_gram_backward(dout / len(cache[2]), cache)


# -- One step of an LSTM ----------------------------------------------------------------------------------


def lstm_step(
    x: Array, state: Array, cell: Array, weight: Array, state_weight: Array, bias: Array
) -> tuple[Array, Array, tuple]:
    """One token: x (B, E), state and cell (B, H) → the new state, the new cell, and the cache.

    weight (4H, E), state_weight (4H, H) and bias (4H,) hold the gates i, f, o and then the candidate g.
    The cache is (x, state, cell, weight, state_weight, i, f, o, g, tanh_cell), where state and cell are those
    before the step.
    """
    sums = x @ weight.T + state @ state_weight.T + bias  # (B, 4H)
    i, f, o, g = np.split(sums, 4, axis=1)
    i, f, o = (1 / (1 + np.exp(-gate)) for gate in (i, f, o))
    g = np.tanh(g)
    new_cell = f * cell + i * g
    tanh_cell = np.tanh(new_cell)
    return o * tanh_cell, new_cell, (x, state, cell, weight, state_weight, i, f, o, g, tanh_cell)


def _steps(draw: Draws) -> list[Trial]:
    """One step with numeric gradients of both of its results."""
    size, width = 3, 4
    inputs = {
        "x": draw.normal(2, width),
        "state": draw.normal(2, size),
        "cell": draw.normal(2, size),
        "weight": draw.normal(4 * size, width),
        "state_weight": draw.normal(4 * size, size),
        "bias": draw.normal(4 * size),
    }
    case = Case("", inputs, lambda variables: list(lstm_step(*variables.values())[:2]), lambda douts: {})
    numeric = {f"d{name}": gradient for name, gradient in central_differences(case).items()}
    dstate, dcell = case.douts
    *_, cache = lstm_step(*inputs.values())
    return [Trial({"dstate": dstate, "dcell": dcell, "cache": cache}, independent=numeric)]


@exercise(
    "21",
    outputs="dx dstate dcell dweight dstate_weight dbias",
    trials=_steps,
    level=3,
    minutes=35,
    needs="the chain rule where a path forks ([01](01_gradients.ipynb)), and [02](02_linear.ipynb)",
    hints=(
        "Draw the graph of one step. The new cell leads to two places: to the next step, and through tanh to "
        "the new state. What reaches it on the way back?",
        "With the whole derivative of the new cell you can write those of i, f, g and of the old cell: each "
        "is a factor in a product. Then go through σ and tanh to the four sums, put them in the order i, f, "
        "o, g, and treat them as one linear map of x and the old state.",
        "d = dcell + dstate * o * (1 − tanh_cell²); dsums = concatenate of d g i (1 − i), d cell f (1 − f), "
        "dstate tanh_cell o (1 − o) and d i (1 − g²) along axis 1. The old cell gets d f.",
    ),
    hints_for={
        "dcell": (
            "All the others are right. What was the old cell multiplied by?",
            "The old cell is in one product only: f · cell.",
            "The derivative of the whole new cell, times f.",
        ),
        "dx dstate dweight dstate_weight dbias": (
            "dcell is right, so what reaches the new cell is. Look at the gates, and at the linear map.",
            "Each gate's derivative is its partner in the product, times the slope: σ (1 − σ), or 1 − g².",
            "Check first that the order is i, f, o, g, and that f's partner is the cell before the step.",
        ),
    },
)
def lstm_step_backward(dstate, dcell, cache):
    return _through_the_step(dstate, dcell, cache)


def _slope(gate):
    return gate * (1 - gate)


def _through_the_step(
    dstate,
    dcell,
    cache,
    own=1,
    through=1,
    curve=lambda t: 1 - t**2,
    slope=_slope,
    slope_of_g=lambda g: 1 - g**2,
    partner_of_f=lambda cell, new: cell,
    kept=lambda i, f: f,
    order=(0, 1, 2, 3),
):
    """All six gradients, with one thing done in another way."""
    x, state, cell, weight, state_weight, i, f, o, g, tanh_cell = cache
    d = own * dcell + through * dstate * o * curve(tanh_cell)  # (B, H), of the new cell
    parts = (
        d * g * slope(i),
        d * partner_of_f(cell, f * cell + i * g) * slope(f),
        dstate * tanh_cell * slope(o),
        d * i * slope_of_g(g),
    )
    dsums = np.concatenate([parts[k] for k in order], axis=1)  # (B, 4H)
    return (
        dsums @ weight,
        dsums @ state_weight,
        d * kept(i, f),
        dsums.T @ x,
        dsums.T @ state,
        dsums.sum(axis=0),
    )


@lstm_step_backward.mistake(
    "dcell is not used. The new cell goes on to the next step as well, and what comes back from there is "
    "added to what comes back through the new state."
)
def next_steps_cell_forgotten(dstate, dcell, cache):
    return _through_the_step(dstate, dcell, cache, own=0)


@lstm_step_backward.mistake(
    "The path from the new state to the new cell is missing: state = o tanh(cell), so the cell also gets "
    "dstate · o · (1 − tanh²)."
)
def path_through_the_state_forgotten(dstate, dcell, cache):
    return _through_the_step(dstate, dcell, cache, through=0)


@lstm_step_backward.mistake(
    "The tanh between cell and state is skipped: its slope, 1 − tanh_cell², is a factor of what reaches the "
    "cell."
)
def slope_of_the_cells_tanh_skipped(dstate, dcell, cache):
    return _through_the_step(dstate, dcell, cache, curve=np.ones_like)


@lstm_step_backward.mistake("The slope of σ is missing for the gates: i (1 − i), f (1 − f), o (1 − o).")
def slopes_of_the_gates_skipped(dstate, dcell, cache):
    return _through_the_step(dstate, dcell, cache, slope=np.ones_like)


@lstm_step_backward.mistake("g comes from a tanh, not from σ: its slope is 1 − g², not g (1 − g).")
def candidate_taken_for_a_gate(dstate, dcell, cache):
    return _through_the_step(dstate, dcell, cache, slope_of_g=_slope)


@lstm_step_backward.mistake(
    "The forget gate is multiplied by the new cell. In f · cell, cell is the one *before* the step, which "
    "the cache keeps for this reason."
)
def new_cell_for_the_old_one(dstate, dcell, cache):
    return _through_the_step(dstate, dcell, cache, partner_of_f=lambda cell, new: new)


@lstm_step_backward.mistake(
    "The old cell gets the whole derivative of the new one. But it was multiplied by f on its way: what was "
    "forgotten has no influence."
)
def forget_gate_skipped(dstate, dcell, cache):
    return _through_the_step(dstate, dcell, cache, kept=lambda i, f: 1)


@lstm_step_backward.mistake(
    "The four parts are in another order than the rows of the weights: i, f, o, and then g."
)
def candidate_before_the_output_gate(dstate, dcell, cache):
    return _through_the_step(dstate, dcell, cache, order=(0, 1, 3, 2))
