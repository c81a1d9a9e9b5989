"""22 What mattered: is a difference between two arms of an ablation larger than the noise?"""

import itertools
import math

import numpy as np

from minibert.course.exercise import Trial, exercise
from minibert.gradcheck import Draws

# -- Two arms that share their seeds ----------------------------------------------------------------------


def _arms(draw: Draws) -> list[Trial]:
    """Seeds that move both arms alike, and independent noise for each run."""
    trials = []
    for label, seeds, effect in (("6 seeds", 6, -0.2), ("8 seeds", 8, 0.3)):
        shared = 2 * draw.normal(seeds)
        a = shared + 0.3 * draw.normal(seeds)
        b = shared + effect + 0.6 * draw.normal(seeds)
        trials.append(Trial({"a": a, "b": b}, label, _by_scipy(b - a)))
    return trials


def _by_scipy(differences: np.ndarray) -> dict[str, np.ndarray]:
    """The mean and its standard error, as scipy has them."""
    from scipy import stats  # imported only here, since it takes half a second

    return {"difference": stats.describe(differences).mean, "error": stats.sem(differences)}


@exercise(
    "22",
    outputs="difference error",
    trials=_arms,
    independent="scipy",
    level=1,
    minutes=8,
    needs="mean, standard deviation, and section 3 so far",
    hints=(
        "Pair first: one number for each seed. All that follows is about these n numbers, and no longer "
        "about a and b.",
        "The standard error of a mean of n numbers is their standard deviation over √n. The standard "
        "deviation is estimated from the same numbers, so its sum of squares is divided by n − 1.",
        "d = b − a; d.mean(), d.std(ddof=1) / √n.",
    ),
    hints_for={
        "error": (
            "The difference is right. Its error is that of a mean of n numbers: which ones?",
            "It is the standard deviation of the n differences, with n − 1, divided by √n.",
            "(b − a).std(ddof=1) / np.sqrt(len(a)).",
        )
    },
)
def paired_difference(a, b):
    d = b - a
    return d.mean(), d.std(ddof=1) / math.sqrt(len(d))


@paired_difference.mistake(
    "This is the error of an unpaired comparison: the variances of the arms are added. What a seed does to "
    "both arms alike is still in there; take the differences first."
)
def unpaired_error(a, b):
    return (b - a).mean(), math.sqrt(a.var(ddof=1) / len(a) + b.var(ddof=1) / len(b))


@paired_difference.mistake(
    "The sum of squares is divided by n. The mean was estimated from the same numbers, which costs one "
    "degree of freedom: ddof=1. (NumPy's default is 0.)"
)
def divided_by_n(a, b):
    return (b - a).mean(), (b - a).std() / math.sqrt(len(a))


@paired_difference.mistake(
    "This is the standard deviation of the differences: it says how far one more seed would be from the "
    "mean. The error of the mean is smaller by a factor of √n."
)
def deviation_for_error(a, b):
    return (b - a).mean(), (b - a).std(ddof=1)


@paired_difference.mistake(
    "The standard deviation is divided by n. Variances of a mean fall like 1/n, but deviations like 1/√n."
)
def root_forgotten(a, b):
    return (b - a).mean(), (b - a).std(ddof=1) / len(a)


@paired_difference.mistake("This is the variance of the mean. Its square root is the standard error.")
def variance_for_error(a, b):
    return (b - a).mean(), (b - a).var(ddof=1) / len(a)


@paired_difference.mistake(
    "Corrected twice: n − 1 in the standard deviation is right, but the mean is one of n numbers: √n."
)
def corrected_twice(a, b):
    return (b - a).mean(), (b - a).std(ddof=1) / math.sqrt(len(a) - 1)


@paired_difference.mistake("The sign is wrong: the difference is the new arm minus the baseline, b − a.")
def baseline_minus_new(a, b):
    return (a - b).mean(), (b - a).std(ddof=1) / math.sqrt(len(a))


@paired_difference.mistake(
    "The absolute values of the differences are averaged. Then noise alone makes an effect: keep the signs."
)
def signs_dropped(a, b):
    d = np.abs(b - a)
    return d.mean(), d.std(ddof=1) / math.sqrt(len(d))


# -- Bootstrap --------------------------------------------------------------------------------------------


def _samples(draw: Draws) -> list[Trial]:
    """Differences of 8 and of 5 seeds, the indices of those that are drawn, and a level."""
    trials = []
    for seeds, level in ((8, 0.95), (5, 0.8)):
        differences = np.exp(draw.normal(seeds)) - 0.7  # lopsided, as losses are
        drawn = draw.ids(seeds, 400, seeds)
        trials.append(Trial({"differences": differences, "drawn": drawn, "level": level}, f"level {level}"))
    return trials


@exercise(
    "22",
    outputs="low high",
    trials=_samples,
    level=2,
    minutes=15,
    needs="quantiles, and indexing with an array of indices",
    hints=(
        "Each row of drawn is one experiment that might have been: which differences does it have, and what "
        "is its result?",
        "A result is a mean, one for each row. The interval holds the middle share, `level`, of these means: "
        "the same share is cut off on both sides.",
        "means = differences[drawn].mean(axis=1); np.quantile(means, [(1 − level) / 2, (1 + level) / 2]).",
    ),
)
def bootstrap_interval(differences, drawn, level):
    means = differences[drawn].mean(axis=1)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return low, high


@bootstrap_interval.mistake(
    "These are quantiles of the differences themselves: where a single seed falls. The question is where "
    "their mean falls, so take the mean of each row first."
)
def quantiles_of_single_seeds(differences, drawn, level):
    low, high = np.quantile(differences, [(1 - level) / 2, (1 + level) / 2])
    return low, high


@bootstrap_interval.mistake(
    "1 − level is cut off on each side, and the interval holds too little: cut off half of it on each side."
)
def whole_tail_on_each_side(differences, drawn, level):
    low, high = np.quantile(differences[drawn].mean(axis=1), [1 - level, level])
    return low, high


@bootstrap_interval.mistake(
    "The mean is taken over the wrong axis: each row, (n,), is an experiment, and gives one mean: axis=1."
)
def mean_over_the_experiments(differences, drawn, level):
    low, high = np.quantile(differences[drawn].mean(axis=0), [(1 - level) / 2, (1 + level) / 2])
    return low, high


@bootstrap_interval.mistake(
    "np.percentile wants percent, from 0 to 100; np.quantile wants shares, from 0 to 1. Here both ends are "
    "cut off near the smallest mean."
)
def shares_taken_for_percent(differences, drawn, level):
    low, high = np.percentile(differences[drawn].mean(axis=1), [(1 - level) / 2, (1 + level) / 2])
    return low, high


@bootstrap_interval.mistake(
    "This is mean ± 1.96 deviations of the resampled means: it assumes that they are normal, and that "
    "level is 0.95. Take their quantiles."
)
def normal_interval(differences, drawn, level):
    means = differences[drawn].mean(axis=1)
    return means.mean() - 1.96 * means.std(), means.mean() + 1.96 * means.std()


@bootstrap_interval.mistake(
    "The spread of the resampled means is divided by √n once more. They are means of n already, and scatter "
    "as such means do."
)
def divided_by_root_n_again(differences, drawn, level):
    low, high = bootstrap_interval.solution(differences, drawn, level)
    mean, root = differences.mean(), math.sqrt(len(differences))
    return mean + (low - mean) / root, mean + (high - mean) / root


@bootstrap_interval.mistake("The median of each row is taken. Here the result of an experiment is its mean.")
def median_for_mean(differences, drawn, level):
    low, high = np.quantile(np.median(differences[drawn], axis=1), [(1 - level) / 2, (1 + level) / 2])
    return low, high


@bootstrap_interval.mistake(
    "This is the basic bootstrap interval, 2 · mean − quantile: another method, which mirrors the quantiles "
    "at the mean. The percentile interval has the quantiles themselves."
)
def mirrored(differences, drawn, level):
    low, high = bootstrap_interval.solution(differences, drawn, level)
    return 2 * differences.mean() - high, 2 * differences.mean() - low


# -- Permutation test -------------------------------------------------------------------------------------


def _signed(draw: Draws) -> list[Trial]:
    """Differences in 64ths, so that all sums of them are exact; the last trial has ties."""
    trials = []
    for label, seeds, effect in (("6 seeds", 6, 0.5), ("9 seeds", 9, -0.4)):
        differences = np.round(64 * (effect + draw.normal(seeds))) / 64
        trials.append(_with_scipy(differences, label))
    return [*trials, _with_scipy(np.array([0.5, -0.25, 0.5, 0.75, -0.25]), "with ties")]


def _with_scipy(differences: np.ndarray, label: str) -> Trial:
    from scipy import stats  # as above

    result = stats.permutation_test((differences,), np.mean, permutation_type="samples", n_resamples=np.inf)
    return Trial({"differences": differences}, label, {"p": result.pvalue})


def all_signs(n: int) -> np.ndarray:
    """Every pattern of n signs, one per row: (2ⁿ, n) of ±1."""
    return np.array(list(itertools.product((-1.0, 1.0), repeat=n)))


@exercise(
    "22",
    outputs="p",
    trials=_signed,
    independent="scipy",
    level=3,
    minutes=25,
    needs="what a p-value is, from section 4",
    hints=(
        "If the change does nothing, the two runs of a pair could have been labelled the other way around. "
        "What would that have done to their difference?",
        "Each of the n signs is as likely + as −: 2ⁿ data sets, all equally likely. How many of them have a "
        "mean at least as far from 0, in either direction, as the one that was observed?",
        "signs = all rows of itertools.product((−1, 1), repeat=n); means = (signs · d).mean(axis=1); p is "
        "the share of |means| ≥ |d.mean()|, including ties (up to rounding) and the observed pattern.",
    ),
)
def permutation_test(differences):
    sums = np.abs(all_signs(len(differences)) @ differences)
    observed = abs(differences.sum())
    return (sums >= observed - 1e-9 * np.abs(differences).sum()).mean()


@permutation_test.mistake(
    "This counts one side only: patterns whose mean is at least as large as the observed one. An effect in "
    "the other direction would have impressed you as much: compare absolute values."
)
def one_sided(differences):
    return (all_signs(len(differences)) @ differences >= differences.sum()).mean()


@permutation_test.mistake(
    "Patterns that are exactly as far from 0 as the observed one are left out, and the observed one with "
    "them. So p can be 0, which no experiment of n seeds can show: ≥, not >."
)
def ties_left_out(differences):
    return (np.abs(all_signs(len(differences)) @ differences) > abs(differences.sum())).mean()


@permutation_test.mistake(
    "(count + 1) / (patterns + 1) is for a random sample of the patterns. Here all of them are counted, and "
    "the observed one is among them already."
)
def corrected_as_if_sampled(differences):
    hits = np.abs(all_signs(len(differences)) @ differences) >= abs(differences.sum())
    return (hits.sum() + 1) / (len(hits) + 1)


@permutation_test.mistake(
    "This is half of it. Either only one side is counted: a mean that is as far below 0 counts, too. Or the "
    "factors are 0 and 1, which leaves differences out. What changes is their sign: −1 and 1."
)
def left_out_instead_of_flipped(differences):
    factors = (all_signs(len(differences)) + 1) / 2
    return (np.abs(factors @ differences) >= abs(differences.sum())).mean()


@permutation_test.mistake(
    "The order of the differences is permuted. That leaves their mean as it is, so every pattern counts. "
    "What can be exchanged is the two runs of a pair."
)
def order_permuted(differences):
    return 1.0


@permutation_test.mistake(
    "Only the signs are counted, not the sizes: that is the sign test. Compare means of the flipped "
    "differences."
)
def sign_test(differences):
    signs = np.sign(differences).sum()
    return (np.abs(all_signs(len(differences)).sum(axis=1)) >= abs(signs)).mean()


@permutation_test.mistake(
    "This is the p-value of the t-test, which assumes normal differences. Count sign patterns instead."
)
def t_test(differences):
    from scipy import stats

    return stats.ttest_1samp(differences, 0.0).pvalue


@permutation_test.mistake("This is 1 − p, or nearly: count what is at least as extreme as the observed mean.")
def less_extreme_counted(differences):
    return (np.abs(all_signs(len(differences)) @ differences) < abs(differences.sum())).mean()
