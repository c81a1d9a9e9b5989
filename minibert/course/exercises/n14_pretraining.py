"""14 Pre-training: the losses of two guesses that look at no neighbour."""

import numpy as np

from minibert.course.exercise import Trial, exercise
from minibert.data.masking import IGNORED
from minibert.data.plateau import unigram_plateau
from minibert.gradcheck import Draws

# -- Guessing by frequency ------------------------------------------------------------------------------


def _counts(draw: Draws, V: int) -> np.ndarray:
    """How often each of V tokens occurs: some never, some often."""
    return (10 * np.exp(2 * draw.normal(V))).astype(np.int64) * (np.arange(V) % 4 > 0)


def _texts(draw: Draws) -> list[Trial]:
    trials = []
    for label, V, size in (("one row", 8, (1, 12)), ("a batch", 20, (4, 10))):
        labels = draw.ids(V, *size)
        labels[..., ::3] = IGNORED
        labels[0, 1] = 0  # a token that never occurs in the training text
        trials.append(Trial({"counts": _counts(draw, V), "labels": labels}, label))
    return trials


def _loss(counts, labels, log=np.log, smooth=1, total=None, average=np.mean):
    share = (counts + smooth) / (counts.sum() + smooth * len(counts) if total is None else total)
    return -average(log(share[labels[labels != IGNORED]]))


@exercise(
    "14",
    outputs="loss",
    trials=_texts,
    reference=lambda counts, labels: np.float64(unigram_plateau(counts, labels)[0]),
    level=1,
    minutes=8,
    needs="section 4 up to here",
    hints=(
        "First the frequencies f, one number for each token of the vocabulary. Then each label's own f.",
        "Add 1 to every count, so that f adds up to 1 when you divide by the sum of the counts plus V. Which "
        "labels count?",
        "f = (counts + 1) / (counts.sum() + V); −np.log(f[labels[labels != −100]]).mean().",
    ),
)
def unigram_line(counts, labels):
    return _loss(counts, labels)


@unigram_line.mistake(
    "Labels of −100 are counted, too. NumPy counts −100 from the end, or fails: leave them out."
)
def unpredicted_positions_counted(counts, labels):
    f = (counts + 1) / (counts.sum() + len(counts))
    return -np.log(f[labels % len(counts)]).mean()


@unigram_line.mistake("One was not added to the counts: a token that was never seen costs infinitely much.")
def nothing_added(counts, labels):
    with np.errstate(divide="ignore"):
        return _loss(counts, labels, smooth=0)


@unigram_line.mistake("f does not add up to 1: if every count grows by 1, their sum grows by V.")
def sum_left_as_it_was(counts, labels):
    return _loss(counts, labels, total=counts.sum())


@unigram_line.mistake(
    "This is the entropy of the training text's frequencies. What is asked for is the loss on these labels: "
    "take f at each."
)
def entropy_of_the_training_text(counts, labels):
    f = (counts + 1) / (counts.sum() + len(counts))
    return -(f * np.log(f)).sum()


@unigram_line.mistake("This is in bits. Losses here are in nats: np.log, not np.log2.")
def in_bits(counts, labels):
    return _loss(counts, labels, log=np.log2)


@unigram_line.mistake("This is a sum: take the mean over the predicted positions.")
def not_averaged(counts, labels):
    return _loss(counts, labels, average=np.sum)


@unigram_line.mistake("The mean is taken over all positions. Divide by the number of predicted ones.")
def averaged_over_all_positions(counts, labels):
    return _loss(counts, labels, average=np.sum) / labels.size


@unigram_line.mistake(
    "The logarithm of a mean is not the mean of the logarithms: take the log of each f first."
)
def logarithm_of_the_mean(counts, labels):
    return -np.log(np.exp(-_loss(counts, labels, log=lambda f: f, average=lambda f: -np.log(f.mean()))))


# -- Reading the word itself ----------------------------------------------------------------------------

MASK_ID = 1


def _visible(draw: Draws) -> list[Trial]:
    """P chosen positions: what stands in the input, and the right word."""
    trials = []
    for label, V, P in (("V = 6", 6, 12), ("V = 30", 30, 40)):
        f = _counts(draw, V) + 1.0
        f /= f.sum()
        right = draw.ids(V, P)
        seen = draw.ids(V, P)
        seen[::3] = right[::3]
        seen[1::3] = MASK_ID
        right[right == MASK_ID] = 2
        seen[2] = right[3] + 1 if right[3] + 1 < V else 3
        trials.append(Trial({"f": f, "seen": seen, "right": right, "mask_id": MASK_ID}, label))
    return trials


def _bayes(draw_kept, draw_random, f, seen, right):
    """Kept with probability draw_kept · f, or drawn at random with draw_random / V in place of a word."""
    V = len(f)
    kept = draw_kept * f[seen] * (seen == right)
    return (kept + draw_random * f[right] / V) / (draw_kept * f[seen] + draw_random / V)


@exercise(
    "14",
    outputs="p",
    trials=_visible,
    level=2,
    minutes=15,
    needs="80/10/10 of [12](12_pretraining_data.ipynb), and Bayes' rule",
    hints=(
        "There are two cases: the position shows [MASK], or it shows some token u.",
        "[MASK] says nothing, so p is f of the right word. A visible u was kept (0.1 f_u) or drawn at random "
        "in place of a word y (0.1 f_y / V).",
        "visible: (f[seen] · (seen == right) + f[right] / V) / (f[seen] + 1 / V); then "
        "np.where(seen == mask_id, f[right], visible).",
    ),
)
def copying_rule(f, seen, right, mask_id):
    return np.where(seen == mask_id, f[right], _bayes(1, 1, f, seen, right))


@copying_rule.mistake(
    "This ignores what stands at the position. A visible token says a lot: it may be the right one."
)
def frequency_only(f, seen, right, mask_id):
    return f[right]


@copying_rule.mistake(
    "[MASK] is treated like any visible token. It replaces all words with equal probability, so p = f."
)
def mask_taken_for_a_word(f, seen, right, mask_id):
    return _bayes(1, 1, f, seen, right)


@copying_rule.mistake(
    "A visible token is always believed. It may have been drawn at random: then the loss would be infinite."
)
def always_believed(f, seen, right, mask_id):
    return np.where(seen == mask_id, f[right], (seen == right).astype(float))


@copying_rule.mistake(
    "Kept and random are given one half each. How likely u is to be there differs: f_u if it was kept, 1/V "
    "if it was drawn."
)
def one_half_each(f, seen, right, mask_id):
    return np.where(seen == mask_id, f[right], 0.5 * (seen == right) + 0.5 * f[right])


@copying_rule.mistake(
    "You do not divide by the probability of what is seen, f_u + 1/V: p does not add up to 1."
)
def not_normalised(f, seen, right, mask_id):
    return np.where(seen == mask_id, f[right], f[seen] * (seen == right) + f[right] / len(f))


@copying_rule.mistake(
    "The 80 % are in the wrong place: they are [MASK]'s. Kept and random tokens have 10 % each, so the "
    "factors cancel."
)
def eighty_percent_kept(f, seen, right, mask_id):
    return np.where(seen == mask_id, f[right], _bayes(8, 1, f, seen, right))


@copying_rule.mistake(
    "The denominator has the frequency of the right word. It should be f of the token that was seen, u."
)
def frequency_of_the_right_word_below(f, seen, right, mask_id):
    kept = f[seen] * (seen == right)
    visible = (kept + f[right] / len(f)) / (f[right] + 1 / len(f))
    return np.where(seen == mask_id, f[right], visible)
