# %% [markdown]
r"""
# 22 · What mattered: ablations, and when to believe them

Papers do not only say that a model works. They also say *why*: this part helps, that one is not needed. The evidence
is usually a table in which one thing is left out at a time, and a column of numbers that differ in the last digit. This notebook is about
reading such a table, and about making one.

**You will** run a small ablation with a BERT that trains in half a second · measure how much of a difference is noise ·
compare runs in pairs, and write the interval and the test that go with it · count how often *nothing* looks like a success ·
compare our own pre-training ablations with tables 5, 6 and 8 of the BERT paper · find what else differed.

**Before this:** [12 · Pre-training data](12_pretraining_data.ipynb), [14 · Pre-training](14_pretraining.ipynb). Means, standard
deviations and quantiles are all the statistics that you need. **Time:** 90 minutes with the exercises; it runs in under a minute.

| letter | in this notebook |
|---|---|
| $a$, $b$ | scores of the baseline and of another version (arm), one for each seed |
| $d$ | their differences, $b - a$ |
| $n$ | seeds |
| $m$ | comparisons that were made |
| $\sigma$, $s$ | a standard deviation, and its estimate from $n$ numbers |
| $p$ | a p-value (section 4) |
"""

# %%
import functools
from pydoc_data.topics import topics

import matplotlib.pyplot as plt
import numpy as np
from scipy import stats

from minibert import BertConfig, BertForMaskedLM, BertTokenizer, check, plots
from minibert.course import read_results
from minibert.data.masking import mask_tokens
from minibert.data.prose import prose_sentences
from minibert.train import AdamW
from minibert.train.schedule import triangle

plots.notebook_style()
np.set_printoptions(precision=3, suppress=True)

# %% [markdown]
r"""
## 1. What is an ablation?

The word is from surgery: something is removed, to see what no longer works. In machine learning, an **ablation** trains
the same model again with one decision changed. Each version is called an **arm**, and the version that the others are compared with is the **baseline**.

What an ablation can tell you is narrow: *with everything else as it was, this change moved this score by this much.* It cannot tell you four things:

- **Why.** Removing next-sentence prediction changes the loss, but in most implementations it also changes how sequences are packed.
- **What happens elsewhere.** The result holds at this size, for this text, after this many steps.
- **What two changes do together.** Two parts can replace each other. Then removing either costs nothing, and removing both costs
  everything.
- **That there is no effect.** A difference that disappears in the noise may be zero, or merely smaller than the noise.

The last point comes first: we need to know how large the noise is.

## 2. A toy ablation

We need a task that a tiny BERT learns in half a second, and that has something to ablate. So we invent a language of 16 words.
Each word has its own probabilities for the next one, and that is all the grammar there is. Masked words can then be guessed from
their two neighbours, if the model can tell which tokens *are* the neighbours.
"""

# %%
MASK, SPECIAL, WORDS, S = 4, 5, 16, 12
V = SPECIAL + WORDS


def language(seed):
    """The probabilities of the next word, with a row for each word: (WORDS, WORDS)."""
    return np.random.default_rng([seed, 0]).dirichlet(np.full(WORDS, 0.08), size=WORDS)


def write(grammar, count, rng):
    """Sequences of the language, as ids (count, S)."""
    ids = np.empty((count, S), np.int32)
    ids[:, 0] = rng.integers(WORDS, size=count)
    ends = grammar.cumsum(axis=1)
    for s in range(1, S):
        drawn = (rng.random(count)[:, None] > ends[ids[:, s - 1]]).sum(axis=1)
        ids[:, s] = np.minimum(drawn, WORDS - 1)
    return ids + SPECIAL


text = write(language(0), 4, np.random.default_rng(0)) - SPECIAL
for row in text:
    print(" ".join("abcdefghijklmnop"[word] for word in row))

# %% [markdown]
r"""
A score means something only next to a simple baseline, and next to the best score that is possible. Both can be computed here. The unigram line of
[14](14_pretraining.ipynb) ignores the neighbours. The best guess from the two neighbours $u$ and $w$ is Bayes' rule with the grammar $T$ itself,
$p(v \mid u, w) \propto T_{uv} \, T_{vw}$. (Sometimes a neighbour is masked as well. Then even the best guess is a little worse than that.)
"""


# %%
def lines(seed, count=2000):
    """The losses of guessing by frequency, and of guessing from both neighbours with the true grammar."""
    grammar = language(seed)
    words = write(grammar, count, np.random.default_rng([seed, 5])) - SPECIAL
    left, middle, right = words[:, :-2], words[:, 1:-1], words[:, 2:]
    frequency = np.bincount(middle.ravel(), minlength=WORDS) / middle.size
    both = grammar[left] * grammar[:, right].transpose(1, 2, 0)  # (count, S − 2, WORDS)
    both /= both.sum(axis=-1, keepdims=True)
    p = np.take_along_axis(both, middle[..., None], axis=-1)
    return -np.log(frequency[middle]).mean(), -np.log(p).mean()


print("language  unigram line  best from two neighbours")
for seed in range(6):
    print("{:8}{:14.2f}{:26.2f}".format(seed, *lines(seed)))

# %% [markdown]
r"""
A run is a function of its settings and its seeds. We keep three seeds apart: one for the language with its held-out text, one for the initial weights, and
one for the batches and what is masked in them. `run` returns two held-out losses. One is for words that were replaced by `[MASK]`. The other is for words that
are visible, as they are in a fine-tuning task, where nothing is masked.
"""

# %%
STEPS, BATCH, RATE = 160, 48, 0.008


@functools.cache
def run(
    seed, weights=None, batches=None, *, layers=1, positions=True, shares=(80, 10, 10), rate=RATE
):
    """Train one tiny BERT; held-out losses of masked words and of visible ones, (2,).

    ``seed`` is that of the language, and of the weights and batches unless they are given.
    """
    weights, batches = (seed if given is None else given for given in (weights, batches))
    config = BertConfig.preset(
        "tiny",
        vocab_size=V,
        hidden_size=48,
        num_hidden_layers=layers,
        num_attention_heads=2,
        intermediate_size=192,
        max_position_embeddings=S,
        initializer_range=0.1,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    model = BertForMaskedLM(config, seed=weights)
    place = dict(model.named_parameters())["bert.embeddings.position_embeddings.weight"]
    if not positions:
        place.value[...] = 0.0
    grammar, rng = language(seed), np.random.default_rng([batches, 2])
    optimiser = AdamW(model, beta2=0.98)
    for step in range(STEPS):
        ids = write(grammar, BATCH, rng)
        masked, labels = mask_tokens(ids, rng.random(ids.shape) < 0.15, MASK, V, rng, shares)
        model.zero_grad()
        _, cache = model.forward(masked, labels=labels, return_logits=False)
        model.backward(cache)
        if not positions:
            place.grad[...] = 0.0
        optimiser.step(triangle(step, STEPS, 20, rate), step)

    held_out = write(grammar, 256, np.random.default_rng([seed, 1]))
    rng = np.random.default_rng([seed, 3])
    chosen = rng.random(held_out.shape) < 0.15
    losses = []
    for what in ((100, 0, 0), (0, 100, 0)):  # all masked; all visible
        ids, labels = mask_tokens(held_out, chosen, MASK, V, rng, what)
        outputs, _ = model.forward(ids, labels=labels, return_logits=False)
        losses.append(float(outputs.loss))
    return np.array(losses)


# %% [markdown]
r"""
There are four arms. Every seed from 0 to 5 gives its own language, initial weights and batches, and all four arms share them.
"""

# %%
ARMS = {
    "baseline": {},
    "no positions": {"positions": False},
    "always [MASK]": {"shares": (100, 0, 0)},
    "80/20/0": {"shares": (80, 20, 0)},
}
SEEDS = range(6)
toy = {name: np.array([run(seed, **change) for seed in SEEDS]) for name, change in ARMS.items()}

print("held-out loss of masked words, seeds 0 to 5              mean")
for name, losses in toy.items():
    print(
        f"{name:<15}",
        " ".join(f"{loss:.3f}" for loss in losses[:, 0]),
        f"  {losses[:, 0].mean():.3f}",
    )

# %% tags=["figure"]
# Caption: The loss of four arms on six seeds, scored in two ways. Grey lines join the runs of a
#   seed; bars are means.
figure, axes = plt.subplots(1, 2, figsize=(7.5, 3.6), sharey=True)
for panel, column, title in zip(
    axes, (0, 1), ("scored on masked words", "scored on visible words"), strict=True
):
    values = np.array([losses[:, column] for losses in toy.values()])  # (arms, seeds)
    panel.plot(values, "-", color=plots.GREY, linewidth=0.7, alpha=0.6)
    panel.plot(values, "o", color=plots.BLUE, markersize=4.5, alpha=0.8)
    panel.plot(values.mean(axis=1), "_", color=plots.VERMILION, markersize=26, markeredgewidth=2.5)
    panel.set(title=title, ylim=(0, None), xlim=(-0.5, 3.5))
    panel.set_xticks(range(4), toy, rotation=20)
axes[0].set_ylabel("held-out loss (nats)")
plt.show()

# %% [markdown]
r"""
Each dot is a run, each grey line joins the runs of one seed, and the bars are means. We can see three things.

**One effect is beyond discussion.** Without positions the model sees a bag of words and cannot say which tokens are the neighbours. The loss is higher in all six
seeds, by 0.4 nats or more. Effects of this size need no statistics.

**The score decides who wins.** On visible words, "no positions" looks harmless, and "always [MASK]" is by far the worst arm: it was never asked about a
word that it could see. The best is 80/20/0, near 0, but for a cheap reason: in its training a visible word was always the right one, so it copies. The baseline has
seen random words as well, and has learned to doubt. On masked words the order is different. The result of an ablation is incomplete without the words "measured on".

**The rest is unclear.** Is "always [MASK]" really worse than the baseline on masked words? Is 80/20/0 better? The clouds overlap.

## 3. How large is the noise?

### Where it comes from

We have three seeds that we can vary. We vary one at a time:
"""

# %%
turned = {
    "weights": [run(0, seed, 0)[0] for seed in SEEDS],
    "batches": [run(0, 0, seed)[0] for seed in SEEDS],
    "language": [run(seed, 0, 0)[0] for seed in SEEDS],
    "all three": toy["baseline"][:, 0],
}
for name, losses in turned.items():
    print(f"{name:<10} standard deviation {np.std(losses, ddof=1):.3f}   ", np.array(losses))

# %% [markdown]
r"""
None of the three can be neglected, and no single one is "the" noise. With six values each, these deviations are rough themselves. If you vary only the seed of the weights, you miss what another
text or another order would have changed. Bouthillier and others ([2021](https://arxiv.org/abs/2103.03098)) measured this on several benchmarks, and advise varying as many sources as
possible. For BERT there are measurements at full size. Sellam and others ([2021](https://arxiv.org/abs/2106.16163)) pre-trained BERT-base 25 times with different seeds, because a single
checkpoint cannot say what is due to the method and what is due to the run. Dodge and others ([2020](https://arxiv.org/abs/2002.06305)) fine-tuned one BERT
hundreds of times, and found that the head's initial weights and the order of the data contribute about equally.

### Why pairs help

In our toy a seed moves **all** arms: a hard language is hard for every arm. Write the score of a run as the mean of its arm, plus what its seed does to every arm, plus what remains:

$$ a_i = \mu_a + u_i + \varepsilon_i, \qquad b_i = \mu_b + u_i + \varepsilon'_i . $$

In the difference $d_i = b_i - a_i$ the shared part $u_i$ is gone:

$$ \operatorname{Var}(b - a) = \operatorname{Var}(a) + \operatorname{Var}(b) - 2 \operatorname{Cov}(a, b) . $$

If the arms have seeds of their own, the covariance is 0 and the two variances are added. With shared seeds the covariance is subtracted twice. So pairing costs no run, only some degrees of freedom (question 1), and the more the arms are correlated,
the more it helps.
"""

# %% tags=["figure"]
# Caption: Each dot is a seed. On the grey line both arms would be equal.
figure, axes = plt.subplots(1, 3, figsize=(7.5, 2.9), sharey=True)
baseline = toy["baseline"][:, 0]
for panel, name in zip(axes, list(toy)[1:], strict=True):
    other = toy[name][:, 0]
    ends = [min(baseline.min(), other.min()) - 0.1, max(baseline.max(), other.max()) + 0.1]
    panel.plot(ends, ends, color=plots.GREY, linewidth=0.8)
    panel.plot(baseline, other, "o", color=plots.BLUE)
    panel.set(
        title=f"{name}\ncorrelation {np.corrcoef(baseline, other)[0, 1]:.2f}", xlabel="baseline"
    )
axes[0].set_ylabel("the other arm")
plt.show()

# %% [markdown]
r"""
Each dot is a seed, with the loss of the baseline on the horizontal axis and that of the other arm on the vertical axis. On the grey line both are equal. A paired comparison looks only at the distances from the line. How far the
dots spread *along* the line does not matter.

### Your turn: a difference and its error

@exercise 22.paired_difference

Given the scores of two arms that share their seeds: by how much does $b$ differ from $a$ on average, and what is the standard error of this number, estimated
from the runs themselves?
"""

# %% [markdown] tags=["derivation"]
r"""
The $n$ differences are independent, and have a common variance $\sigma^2$. Their mean has the variance $\frac{1}{n^2} \cdot n \sigma^2 = \sigma^2 / n$, so the
standard error is $\sigma / \sqrt n$. We estimate $\sigma$ by $s$, with

$$ s^2 = \frac{1}{n - 1} \sum_i (d_i - \bar d)^2 . $$

Why $n - 1$: the mean $\bar d$ is the number that makes the sum smallest. Around the true mean it would be larger, by $\sigma^2$ on average. So the sum is
$(n - 1) \, \sigma^2$ on average.
"""


# %% tags=["solution"]
def my_paired_difference(a, b):
    """The mean of b − a and its standard error: two numbers. a, b (n,): a score for each seed."""
    d = b - a
    return d.mean(), d.std(ddof=1) / np.sqrt(len(d))


# %%
check("22.paired_difference", my_paired_difference)

# %%
print(f"{'':<15} difference   error, paired   error, unpaired")
for name in list(toy)[1:]:
    other = toy[name][:, 0]
    d = other - baseline
    unpaired = np.sqrt((baseline.var(ddof=1) + other.var(ddof=1)) / len(d))
    print(f"{name:<15} {d.mean():+10.3f} {stats.sem(d):15.3f} {unpaired:17.3f}")

# %% [markdown]
r"""
The same 24 runs give smaller errors through bookkeeping alone. To reach these errors without pairs, we would need more seeds. The error falls like $1 / \sqrt n$, so half the error takes four times as many runs.

### The t interval

How far can the true difference be from $\bar d$? If $\sigma$ were known, 95 % of the means would lie within 1.96 standard errors. With an estimate $s$ from a few runs,
the ratio of $\bar d - \mu$ to its error has longer tails: **Student's t distribution** with $n - 1$ degrees of freedom. (This assumes that the differences are roughly normal.) The interval is

$$ \bar d \pm t_{0.975, \, n - 1} \cdot \frac{s}{\sqrt n} . $$
"""

# %%
print("seeds      ", "".join(f"{n:8}" for n in (2, 3, 4, 6, 10, 30)))
print("t quantile ", "".join(f"{stats.t.ppf(0.975, n - 1):8.2f}" for n in (2, 3, 4, 6, 10, 30)))


def t_interval(d, level=0.95):
    """The ends of the t interval for the mean of the differences d (n,)."""
    reach = stats.t.ppf((1 + level) / 2, len(d) - 1) * stats.sem(d)
    return d.mean() - reach, d.mean() + reach


for name in list(toy)[1:]:
    d = toy[name][:, 0] - baseline
    low, high = t_interval(d)
    by_scipy = stats.ttest_rel(toy[name][:, 0], baseline).confidence_interval(0.95)
    assert np.allclose((low, high), by_scipy)
    print(f"{name:<15} {d.mean():+.3f}, from {low:+.3f} to {high:+.3f}")

# %% [markdown]
r"""
SciPy's paired test has the same intervals. Look at the first table: with two seeds the quantile is 12.7, with three 4.3. "Mean ± standard deviation of three
seeds", as in many tables, looks much more certain than it is.

### The bootstrap interval

The t interval assumes a distribution. The **bootstrap** (Efron, 1979) assumes less: what we have measured stands in for what could have been measured. Draw $n$ differences from ours, with replacement, and take their mean. Do that
many times. The spread of these means shows how the result could have varied.

### Your turn: the percentile interval

@exercise 22.bootstrap_interval

The draws have already been made: each row of `drawn` holds the indices of $n$ differences, and is one resampled experiment. Return the ends of the interval that holds the middle share `level` of the means of these experiments.
"""

# %% [markdown] tags=["derivation"]
r"""
`differences[drawn]` has the shape of `drawn`, (R, n): the differences of each resampled experiment. Its row means, (R,), are the results. To keep a share of 0.95 in the middle, 0.025 is cut off on either
side: the quantiles 0.025 and 0.975, or $(1 - \text{level}) / 2$ and $(1 + \text{level}) / 2$.
"""


# %% tags=["solution"]
def my_bootstrap_interval(differences, drawn, level):
    """The percentile interval of the mean: low, high.

    differences (n,); drawn (R, n): indices of differences, a row for each resampled experiment; level, e.g. 0.95.
    """
    means = differences[drawn].mean(axis=1)  # (R,)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return low, high


# %%
check("22.bootstrap_interval", my_bootstrap_interval)

# %%
rng = np.random.default_rng(22)
print(f"{'':<15} {'t interval':>18}  {'bootstrap, SciPy':>20}")
for name in list(toy)[1:]:
    d = toy[name][:, 0] - baseline
    booted = stats.bootstrap((d,), np.mean, method="percentile", rng=rng).confidence_interval
    print("{:<15} {:+9.3f} {:+9.3f} {:+10.3f} {:+9.3f}".format(name, *t_interval(d), *booted))

# %% [markdown] tags=["answer"]
r"""
Here is our interval next to SciPy's. The two differ only by the random draws.
"""

# %% tags=["answer"]
d = toy["always [MASK]"][:, 0] - baseline
drawn = rng.integers(len(d), size=(9999, len(d)))
booted = stats.bootstrap((d,), np.mean, method="percentile", rng=rng).confidence_interval
print(
    f"ours  {my_bootstrap_interval(d, drawn, 0.95)[0]:+.3f} "
    f"{my_bootstrap_interval(d, drawn, 0.95)[1]:+.3f}"
)
print(f"SciPy {booted.low:+.3f} {booted.high:+.3f}")
assert np.allclose(my_bootstrap_interval(d, drawn, 0.95), booted, atol=0.03)

# %% [markdown]
r"""
The bootstrap's intervals are shorter. Are they better? A 95 % interval should contain the truth in 95 % of all experiments. We can test that: draw experiments whose
truth is known, and count.
"""


# %%
def coverage(n, experiments=2000, resamples=400):
    """How often the t interval and the percentile interval of n normal differences contain the truth, 0."""
    rng = np.random.default_rng(n)
    d = rng.standard_normal((experiments, n))
    reach = stats.t.ppf(0.975, n - 1) * stats.sem(d, axis=1)
    by_t = np.abs(d.mean(axis=1)) < reach
    means = d[:, rng.integers(n, size=(resamples, n))].mean(axis=-1)  # (experiments, resamples)
    low, high = np.quantile(means, [0.025, 0.975], axis=1)
    return by_t.mean(), ((low < 0) & (high > 0)).mean()


SIZES = (3, 4, 6, 10, 20)
covered = np.array([coverage(n) for n in SIZES])
print("seeds     ", "".join(f"{n:8}" for n in SIZES))
for name, column in zip(("t", "bootstrap"), covered.T, strict=True):
    print(f"{name:<10}", "".join(f"{share:8.1%}" for share in column))
assert covered[0, 1] < 0.85 and abs(covered[:, 0] - 0.95).max() < 0.02

# %% [markdown]
r"""
With three seeds the bootstrap's "95 %" interval is nowhere near 95 %. It cannot imagine a value that it has not seen. The bootstrap is made for many observations, such as
the thousand sentences of a test set. For a few seeds, use t, or the test of the next section.

## 4. Could it be chance?

An interval says how large the effect may be. A **p-value** answers another question. Suppose that the change does nothing (the **null hypothesis**). How likely would a difference at least as large as ours be? That is p. A small p means that
either the change does something, or something unlikely has happened.

It is *not* the probability that the change does nothing. Nor does a large p show that it does nothing.

### Open: an exact test

@exercise 22.permutation_test

Find the two-sided p-value of $n$ paired differences, without any distribution and without random numbers. Assume only one thing: if the change does nothing, then nobody could tell the two runs of a
pair apart. What follows for the differences? This idea is Fisher's, from *The Design of Experiments* (1935).
"""

# %% [markdown] tags=["derivation"]
r"""
If the change does nothing, the two runs of a pair are exchangeable. If we exchange them, their difference changes its sign. So, given the sizes $|d_i|$, all $2^n$ patterns of signs are equally
likely. The p-value is the share of patterns whose mean is at least as far from 0 as the observed one:

$$ p = \frac{1}{2^n} \, \# \Bigl\{ \epsilon \in \{-1, 1\}^n : \Bigl| \sum_i \epsilon_i d_i \Bigr| \ge \Bigl| \sum_i d_i \Bigr| \Bigr\} . $$

The observed pattern counts, and so does its opposite. So $p \ge 2 / 2^n$, whatever the data. (In floating-point arithmetic, equal sums may differ in the last bit. A small tolerance makes sure that ties count.)
"""


# %% tags=["solution"]
def my_permutation_test(differences):
    """The exact two-sided p-value of a mean of paired differences (n,), a number."""
    n = len(differences)
    bits = np.arange(2**n)[:, None] >> np.arange(n) & 1  # (2ⁿ, n): all patterns of 0 and 1
    sums = np.abs((2 * bits - 1) @ differences)  # (2ⁿ,)
    return (sums >= abs(differences.sum()) - 1e-9 * np.abs(differences).sum()).mean()


# %%
check("22.permutation_test", my_permutation_test)

# %%
print(f"{'':<15} {'p, sign flips':>14} {'p, t-test':>11}")
for name in list(toy)[1:]:
    d = toy[name][:, 0] - baseline
    exact = stats.permutation_test((d,), np.mean, permutation_type="samples", n_resamples=np.inf)
    print(f"{name:<15} {exact.pvalue:14.4f} {stats.ttest_1samp(d, 0).pvalue:11.4f}")
print("\nseeds               ", "".join(f"{n:8}" for n in (2, 3, 4, 5, 6, 8)))
print("smallest possible p ", "".join(f"{2 / 2**n:8.3f}" for n in (2, 3, 4, 5, 6, 8)))

# %% tags=["figure"]
# Caption: The means of all patterns of signs (blue), and the observed mean (vermilion).
figure, axes = plt.subplots(1, 3, figsize=(7.5, 2.7))
signs = 2 * (np.arange(2**6)[:, None] >> np.arange(6) & 1) - 1
for panel, name in zip(axes, list(toy)[1:], strict=True):
    d = toy[name][:, 0] - baseline
    panel.hist((signs * d).mean(axis=1), bins=17, color=plots.SKY)
    panel.axvline(d.mean(), color=plots.VERMILION)
    panel.set(title=name, xlabel="mean difference")
axes[0].set_ylabel("patterns of signs")
plt.show()

# %% [markdown]
r"""
For "no positions", no mean lies further out than the observed one and its mirror image.

The second table is a warning. **With three seeds this test can never show anything**: three differences with the same sign happen by chance in a quarter of all cases. The t-test can, since it also uses how close the three are to each other. For that it has to
assume that they are normal, which three numbers cannot confirm.

## 5. How often does nothing win?

So far we asked about one change. But nobody tries only one. Suppose that twenty ideas are tested and that **none** of them does anything. How many look good? We simulate it: one baseline and $m$ arms with the same true mean,
$n$ seeds each, a shared part for each seed, and independent noise for each run.
"""

# %%
M, N = 20, 3


def null_ablations(experiments, m=M, n=N, seed=0):
    """Differences in loss (experiments, m, n) of m arms that do nothing from one baseline; σ = 1 for each run."""
    rng = np.random.default_rng(seed)
    noise = rng.standard_normal((experiments, m + 1, n))  # what all arms share cancels
    return noise[:, 1:] - noise[:, :1]


def t_test(d):
    """Two-sided p-values of means over the last axis."""
    return stats.ttest_1samp(d, 0.0, axis=-1).pvalue


nothing = null_ablations(4000)
means, p_values = nothing.mean(axis=-1), t_test(nothing)  # (experiments, m)
wins = means < 0
below = p_values < 0.05
print(f"arms better than the baseline               {wins.mean():.0%}")
print(f"arms better in all {N} seeds                   {(nothing < 0).all(axis=-1).mean():.0%}")
print(f"arms with p < 0.05                          {below.mean():.1%}")
print(f"experiments with at least one p < 0.05      {below.any(axis=1).mean():.0%}")
print(f"the best of {M} arms gains, on average        {-means.min(axis=1).mean():.2f} σ")

# %% tags=["figure"]
# Caption: Twenty arms that differ by nothing. The best of them looks like a discovery.
figure, axes = plt.subplots(1, 2, figsize=(7.5, 3.0))
one = null_ablations(1, seed=12)[0]
order = np.argsort(one.mean(axis=-1))
for place, arm in enumerate(order):
    colour = plots.VERMILION if t_test(one[arm]) < 0.05 else plots.BLUE
    axes[0].plot(one[arm], [place] * N, "o", color=colour, markersize=2.5, alpha=0.5)
    axes[0].plot(one[arm].mean(), place, "|", color=colour, markersize=8, markeredgewidth=2)
axes[0].axvline(0, color=plots.GREY, linewidth=1)
axes[0].set(title="one experiment: nothing does anything", xlabel="difference in loss (σ)")
axes[0].set(ylabel="20 arms, sorted", yticks=[])
counts = np.arange(1, 41)
for n, colour in ((3, plots.BLUE), (6, plots.GREEN)):
    p40 = t_test(null_ablations(2000, m=40, n=n, seed=n)) < 0.05
    share = [p40[:, :m].any(axis=1).mean() for m in counts]
    axes[1].plot(counts, share, color=colour, label=f"measured, {n} seeds")
axes[1].plot(counts, 1 - 0.95**counts, "--", color=plots.GREY, label="1 − 0.95ᵐ: independent tests")
axes[1].set(title="at least one p < 0.05", xlabel="m, arms that do nothing", ylim=(0, 1))
axes[1].legend(fontsize=9)
plt.show()

# %% [markdown]
r"""
On the left is one such experiment. Bars are means, and dots are seeds. It was picked from the half of the experiments in which some p is below 0.05 (vermilion). Once it is sorted, it reads like a ranking, and somebody will explain why the ideas at the bottom are so good. On the right is the chance that at
least one of $m$ comparisons passes. All arms share one baseline, so the tests are not independent: a lucky or unlucky baseline moves all of them. The curves therefore rise more slowly than $1 - 0.95^m$.

### What to do about it

**Bonferroni.** Ask for $p < 0.05 / m$, or multiply each p by $m$. The chance of any false alarm is then at most the sum of $m$ chances of $0.05 / m$.

**Holm** ([1979](https://www.jstor.org/stable/4615733)) gives the same guarantee and finds more. Sort the p-values. Multiply the smallest by $m$, the next by $m - 1$, and so on. No result may be smaller than the one before it; if it is, raise it to that one.
"""


# %%
def holm(p):
    """Holm's adjusted p-values, (m,) → (m,)."""
    m, order = len(p), np.argsort(p)
    steps = np.maximum.accumulate(p[order] * np.arange(m, 0, -1))
    adjusted = np.empty(m)
    adjusted[order] = np.minimum(steps, 1.0)
    return adjusted


print("p           ", np.array([0.004, 0.030, 0.012, 0.6]))
print("Bonferroni  ", np.minimum(4 * np.array([0.004, 0.030, 0.012, 0.6]), 1))
print("Holm        ", holm(np.array([0.004, 0.030, 0.012, 0.6])))

real = null_ablations(4000, n=6, seed=1)
real[:, :5] -= 2.0  # five of the twenty do something: two σ
p_real = t_test(real)
found = {
    "p < 0.05": p_real < 0.05,
    "Bonferroni": p_real * M < 0.05,
    "Holm": np.array([holm(p) for p in p_real]) < 0.05,
}
print("\n6 seeds, five real effects     real ones found    any false alarm")
for name, passed in found.items():
    alarm = passed[:, 5:].any(axis=1).mean()
    print(f"{name:<30} {passed[:, :5].mean():15.0%} {alarm:18.1%}")
    assert name == "p < 0.05" or alarm < 0.06

# %% [markdown]
r"""
Both corrections keep their promise about false alarms. The price is in the other column: with six seeds, most *real* effects of two standard deviations are no longer found. That is not the correction's fault. It
says that twenty comparisons with six seeds each are too little evidence for what we would like to claim. Card and others ([2020](https://arxiv.org/abs/2010.06595)) found the same for many
experiments in language processing: they were too small to detect the effects that they were looking for.

The cheapest remedy is to ask fewer questions, and to write them down beforehand.

There is another common rule, which our [own report on ablations](../benchmarks/results/ablations.md) uses: three seeds "tell apart what is further apart than about two standard deviations". How good is it?
"""

# %%
rng = np.random.default_rng(5)
left, right = rng.standard_normal((2, 20000, 3))
pooled = np.sqrt((left.var(axis=1, ddof=1) + right.var(axis=1, ddof=1)) / 2)
apart = np.abs(left.mean(axis=1) - right.mean(axis=1)) > 2 * pooled
print(f"two arms without a difference, 3 seeds each: more than 2 s apart in {apart.mean():.1%}")
assert 0.05 < apart.mean() < 0.10

# %% [markdown]
r"""
For one comparison that was decided on beforehand, this is not far from the usual 5 %. For a whole table, the rule is far too generous.

## 6. Our ablations next to the paper's

Devlin and others ([2019](https://arxiv.org/abs/1810.04805)) have three ablations: the objectives (table 5), the size (table 6), and what is done to the chosen words (table 8). We asked the same questions with minibert. A two-layer model of
width 128 (1.5 million parameters) is trained on about 2 million tokens of Wikipedia and novels, three times with different seeds, and is then fine-tuned on a few tasks, most of them from [15](15_fine_tuning.ipynb) (STS-B: how similar two sentences are; docs-questions: answers from the documentation). All use the fast recipe that minibert had at that time: 30 % of the words are chosen (except in the group "rate"), the optimiser is Muon (Jordan and others, 2024), which makes all directions of a weight matrix's step about equally large, half of the heads begin by looking at a neighbour, and there is no NSP (except in the arm "BERT"). The results
are in a file of the repository, which we read here.
"""

# %%
committed = read_results("ablations")

ablations = {}  # group → arm → a record for each seed, in order
for group in ("objective", "masking", "rate", "size"):
    for case, record in committed[group].items():
        arm, _, seed = case.rpartition(", seed ")
        ablations.setdefault(group, {}).setdefault(arm, {})[int(seed)] = record
ablations = {
    group: {arm: [records[seed] for seed in sorted(records)] for arm, records in arms.items()}
    for group, arms in ablations.items()
}
for group, arms in ablations.items():
    print(
        f"{group:<10} {len(arms)} arms × {len(next(iter(arms.values())))} seeds:  "
        + " · ".join(arms)
    )
spent = [
    record["seconds"]
    for arms in ablations.values()
    for records in arms.values()
    for record in records
]
print(
    f"{len(spent)} records of pre-training, {sum(spent) / 3600:.1f} hours on one thread of a "
    "processor"
)
print("a record has:", ", ".join(ablations["rate"]["15 %"][0]))


# %%
def scores(group, arm, what):
    """The result of an arm for each seed: the held-out loss in nats, or a task's score in percent."""
    if what == "loss":
        return np.array([record["held_out_mlm_loss"] for record in ablations[group][arm]])
    return 100 * np.array([record["tasks"][what] for record in ablations[group][arm]])


# Do the arms have the same number of tokens for the same seed? Then they have read the same text.
for group, arms in ablations.items():
    tokens = {arm: [record["tokens"] for record in records] for arm, records in arms.items()}
    print(
        f"{group:<10} tokens for each seed (arms with the same numbers share a line):",
        *{str(t) for t in tokens.values()},
        sep="\n   ",
    )

# %% [markdown]
r"""
In three groups all arms have read exactly the same text for each seed, so their runs are pairs. In "objective", the model with next-sentence prediction packs its sequences in another way and reads 0.5 to 1.6 % fewer tokens. There a pair shares
less.

**Before any comparison: what range do the scores have?** We make two checks, both from the file alone. First, a score may be stuck at its *floor*, which is what an empty answer gets. In the test part of MRPC, 1,147 of 1,725 pairs are paraphrases (Dolan and
Brockett, [2005](https://aclanthology.org/I05-5002/)). A model that says "paraphrase" every time has a precision of 66.5 %, a recall of 1, and an F1, which is the harmonic mean of both, of 79.9.
"""

# %%
always = 2 * 1147 / (1147 + 1725)
for group in ("objective", "size"):
    f1 = np.array([scores(group, arm, "mrpc") for arm in ablations[group]])
    print(
        f"{group:<10} MRPC, F1: {f1.min():.1f} to {f1.max():.1f}, mean {f1.mean():.1f}   ('yes' "
        f"every time: {100 * always:.1f})"
    )

# %% [markdown]
r"""
All 33 models are within 1.3 points of this empty answer. So MRPC does not say "these arms are equal". It says nothing: a score at its floor cannot show an effect. (The same holds for WNUT-17 below 5 %, and for BLiMP near 50 %. BLiMP shows a model two sentences, of which one is grammatical, and asks which is likelier.)

Second, the test set is itself a sample. Our SST-2 scores are multiples of 1/1,821, which is the number of sentences in that test set:
"""

# %%
sst2 = np.concatenate(
    [scores(group, arm, "sst2") for group in ablations for arm in ablations[group]]
)
steps = sst2 / 100 * 1821
assert np.allclose(steps, np.rint(steps))
accuracy = sst2.mean() / 100
print(
    f"standard error of {accuracy:.1%} over 1,821 sentences: "
    f"{100 * np.sqrt(accuracy * (1 - accuracy) / 1821):.2f} points"
)

# %% [markdown]
r"""
That is about one point from the choice of sentences alone, before any seed is drawn. When two models answer the *same* sentences, part of it cancels, as in section 3 (McNemar's test is made for this). But a difference of half a point
on SST-2 means little, in our table and in others.

### Objectives (table 5)

The paper asks what next-sentence prediction is worth, and what seeing both sides is worth. Its figures are for the development sets, with one run for each row as far as the paper says. The last row here, "left to right, no NSP", differs
from BERT in *two* decisions. But from "no NSP", each of the other two rows differs in only one. So "no NSP" is our baseline.
"""

# %%
TABLE_5 = {  # Devlin and others (2019), table 5, BERT-base: accuracy, and F1 for SQuAD
    "tasks": ("MNLI", "QNLI", "MRPC", "SST-2", "SQuAD"),
    "BERT": (84.4, 88.4, 86.7, 92.7, 88.5),
    "no NSP": (83.9, 84.9, 86.5, 92.6, 87.9),
    "left to right, no NSP": (82.1, 84.3, 77.5, 92.1, 77.8),
}


def report(group, baseline, tasks):
    """Print each paired difference from the baseline with its t interval; return the p-value of each."""
    p = {}
    print(f"{group}: difference from {baseline}, and its 95 % t interval (three seeds)")
    for task in tasks:
        for arm in ablations[group]:
            if arm != baseline:
                d = scores(group, arm, task) - scores(group, baseline, task)
                low, high = t_interval(d)
                sign = "" if low * high > 0 else "  undecided"
                print(
                    f"   {task:<15} {arm:<22} {d.mean():+7.2f}   {low:+8.2f} to {high:+7.2f}{sign}"
                )
                p[group, task, arm] = float(t_test(d))
    return p


p_objective = report("objective", "no NSP", ("sst2", "stsb", "docs-questions"))


# %% tags=["figure"]
# Caption: The paper's ablation of the tasks and ours, in points compared with “no NSP”. The scales
#   differ.
def intervals(axes, group, baseline, task, colour, marker, shift, label):
    """Differences from the baseline with their t intervals, one row per arm."""
    for place, arm in enumerate(arm for arm in ablations[group] if arm != baseline):
        d = scores(group, arm, task) - scores(group, baseline, task)
        low, high = t_interval(d)
        axes.plot(
            [low, high],
            [place + shift] * 2,
            color=colour,
            linewidth=1.4,
            label=label if place == 0 else None,
        )
        axes.plot(d, [place + shift] * 3, marker, color=colour, markersize=4.5)


figure, axes = plt.subplots(1, 2, figsize=(7.5, 3.1))
OTHERS = [arm for arm in ablations["objective"] if arm != "no NSP"]
LABELS = {"left to right, no NSP": "the left\nside only", "BERT": "NSP\nadded"}
for number, (task, mark) in enumerate(zip(TABLE_5["tasks"], "osD^v", strict=True)):
    gains = [TABLE_5[arm][number] - TABLE_5["no NSP"][number] for arm in OTHERS]
    axes[0].plot(gains, [0, 1], mark, label=task, markersize=6, alpha=0.8)
axes[0].set(title="the paper: BERT-base, one run", ylim=(-0.4, 1.9))
axes[0].set_yticks([0, 1], [LABELS[arm] for arm in OTHERS])
axes[0].legend(fontsize=8.5, ncols=3, loc="upper left", handletextpad=0.1, columnspacing=0.8)
intervals(axes[1], "objective", "no NSP", "sst2", plots.BLUE, "o", 0.1, "SST-2")
intervals(axes[1], "objective", "no NSP", "stsb", plots.VERMILION, "s", -0.1, "STS-B")
axes[1].set(title="ours: 2 layers, three seeds", ylim=(-0.4, 1.9))
axes[1].set_yticks([0, 1], ["", ""])
axes[1].legend(fontsize=8.5, loc="upper left", ncols=2)
for panel in axes:
    panel.set_xlabel("points compared with: no NSP")
for panel in axes:
    panel.axvline(0, color=plots.GREY, linewidth=1)
plt.show()

# %% [markdown]
r"""
On the left a mark is a run of the paper; on the right it is a seed, and the line is the t interval. The scales differ.

- **Seeing the left side only** costs 10 points on SQuAD and 9 on MRPC in the paper. That needs no seeds. In ours every interval contains 0, so our ablation *cannot confirm* this result. It does not contradict it either: the
  tasks that need both sides are at their floor here, or drown in noise.
- **Next-sentence prediction** helps in the paper: by 3.5 points on QNLI, by 0.1 on SST-2. In ours it costs eight points on SST-2, in all seeds, far outside the noise.

Who is right about NSP? Perhaps both: the tables answer different questions. Our models have read 2 million tokens once, and from the first step on, the second loss takes its share of each step. And as section 1 said, switching NSP off also changes what a sequence looks
like. RoBERTa (Liu and others, [2019](https://arxiv.org/abs/1907.11692), table 2) separated the two. With pairs of single sentences, which are short, the results are worst. With full sequences and *without* NSP they are slightly better than with
BERT's format and NSP on MNLI (84.7 against 84.0) and RACE (64.8 against 64.2), and slightly worse on SST-2 (92.5 against 92.9). The authors suspect that the original ablation removed NSP's loss but kept its format.
So one ablation of "NSP" had been two.

### What is done to the chosen words (table 8)
"""

# %%
TABLE_8 = {  # Devlin and others (2019), table 8: MNLI accuracy; NER F1, fine-tuned and from fixed features
    "80/10/10": (84.2, 95.4, 94.9),
    "100/0/0": (84.3, 94.9, 94.0),
    "80/0/20": (84.1, 95.2, 94.6),
    "80/20/0": (84.4, 95.2, 94.7),
    "0/20/80": (83.7, 94.8, 94.6),
    "0/0/100": (83.6, 94.9, 94.6),
}  # percent [MASK], as it was, any word
assert set(TABLE_8) == set(ablations["masking"])
p_masking = report("masking", "80/10/10", ("loss", "sst2"))

# %% tags=["figure"]
# Caption: The paper's ablation of the masks and ours, in points compared with 80/10/10. The scales
#   differ.
figure, axes = plt.subplots(1, 2, figsize=(7.5, 3.6), sharey=True)
others = [arm for arm in ablations["masking"] if arm != "80/10/10"]
for column, (task, mark) in enumerate(
    zip(("MNLI", "NER, fine-tuned", "NER, fixed features"), "osD", strict=True)
):
    gains = [TABLE_8[arm][column] - TABLE_8["80/10/10"][column] for arm in others]
    axes[0].plot(gains, range(5), mark, label=task, markersize=6)
axes[0].set(title="the paper: BERT-base", xlabel="points compared with 80/10/10", ylim=(-0.6, 6.4))
axes[0].set_yticks(range(5), others)
axes[0].legend(fontsize=8.5, loc="upper left")
intervals(axes[1], "masking", "80/10/10", "sst2", plots.BLUE, "o", 0, "SST-2")
axes[1].set(title="ours: 2 layers, three seeds", xlabel="points compared with 80/10/10")
axes[1].legend(fontsize=8.5, loc="upper left")
for panel in axes:
    panel.axvline(0, color=plots.GREY, linewidth=1)
plt.show()

# %% [markdown]
r"""
Look at the scale on the left: all differences on MNLI are between +0.2 and −0.6. How much of that is noise? The paper gives no spread here, but there is a hint: the same model, BERT-base with 80/10/10, has 84.4 on MNLI in table 5 and 84.2 in table 8. Two tenths is
also the lead of 80/20/0. (The column is called MNLI-m in table 5 and MNLI in table 8; the paper does not say whether they differ.) The largest effect is the drop of 0.9 for fixed features without any visible word. There is a reason for it that was given before the experiment: such a model never sees the words that it is used
on. That is what our toy showed on visible words.

On the right is SST-2: 80/0/20 lies below the baseline, 0/0/100 just barely does, and the others are undecided. 80/20/0 has the highest mean, as on MNLI in the paper (but not on NER). It would be easy to write that we reproduce the paper's ranking. The intervals say that we do not know.

And the **held-out loss**, where everything seems decided in favour of 80/10/10? In the held-out text, the chosen words are treated by 80/10/10 for all arms. So one arm is tested on what it was trained for, and five are not. No number of seeds
repairs a difference of this kind: see section 7.

### How many words, and how large a model (table 6)

The group "rate" changes how many words are chosen. The paper has only 15 %; Wettig and others ([2022](https://arxiv.org/abs/2202.08005)) found 40 % to be better for large models.
The held-out text has 15 % of its words chosen for all arms. If that favours one of them, it is the baseline.
"""

# %%
p_rate = report("rate", "15 %", ("loss", "sst2", "blimp"))

every = p_objective | p_masking | p_rate
adjusted = dict(zip(every, holm(np.array(list(every.values()))), strict=True))
print(
    f"\n{len(every)} comparisons in the three groups: {sum(p < 0.05 for p in every.values())} "
    "with p < 0.05; after Holm:"
)
for comparison, p in sorted(adjusted.items(), key=lambda item: item[1]):
    if p < 0.05:
        print("  ", *comparison, f"{p:.3f}")

# %% [markdown]
r"""
What remains after Holm is hardly chance. But that does not make it what its name says: several lines are the held-out loss of "masking", and we have just seen what favours one arm there. (There is one more trap in this list. The arm "80/10/10" of "masking" and the arm "30 %" of "rate" are the same three runs. Two
tables that share an arm share its luck.)

Now we come to the sizes.
"""

# %%
TABLE_6 = {  # Devlin and others (2019), table 6: layers, width, heads → perplexity; MNLI, MRPC, SST-2 (mean of 5 restarts)
    (3, 768, 12): (5.84, 77.9, 79.8, 88.4),
    (6, 768, 3): (5.24, 80.6, 82.2, 90.7),
    (6, 768, 12): (4.68, 81.9, 84.8, 91.3),
    (12, 768, 12): (3.99, 84.4, 86.7, 92.9),
    (12, 1024, 16): (3.54, 85.7, 86.9, 93.3),
    (24, 1024, 16): (3.23, 86.6, 87.8, 93.7),
}
for arm, records in ablations["size"].items():
    perplexity = np.exp(scores("size", arm, "loss"))
    sst2 = scores("size", arm, "sst2")
    print(
        f"{arm:<8} {records[0]['parameters'] / 1e6:4.1f} M parameters   perplexity "
        f"{perplexity.mean():6.1f} ± {perplexity.std(ddof=1):4.1f}"
        f"   SST-2 {sst2.mean():.1f} ± {sst2.std(ddof=1):.1f}"
    )

# %% tags=["figure"]
# Caption: Held-out perplexity by depth and width, in the paper and in ours. Lower is better.
figure, axes = plt.subplots(1, 2, figsize=(7.5, 3.3))
for width, colour, mark in ((768, plots.BLUE, "o"), (1024, plots.VERMILION, "s")):
    points = [
        (layers, row[0])
        for (layers, wide, heads), row in TABLE_6.items()
        if wide == width and heads >= 12
    ]
    axes[0].plot(*zip(*points, strict=True), marker=mark, color=colour, label=f"width {width:,}")
axes[0].set(
    title="the paper, table 6",
    xlabel="layers",
    ylabel="held-out perplexity",
    xticks=[3, 6, 12, 24],
    ylim=(0, 6.5),
)
for width, colour, mark in (
    (64, plots.GREEN, "^"),
    (128, plots.BLUE, "o"),
    (256, plots.VERMILION, "s"),
):
    arms = [arm for arm in ablations["size"] if arm.endswith(f"H{width}")]
    layers = [int(arm[1]) for arm in arms]
    points = np.exp([scores("size", arm, "loss") for arm in arms])  # (arms, seeds)
    axes[1].plot(layers, points.mean(axis=1), color=colour, label=f"width {width}")
    axes[1].plot(layers, points, mark, color=colour, markersize=4)
axes[1].set(title="ours, three seeds", xlabel="layers", xticks=[1, 2, 4, 6], ylim=(0, None))
for panel in axes:
    panel.legend(fontsize=9)
plt.show()

# %% [markdown]
r"""
In the paper every larger model is better. In ours a larger *width* is better, but at width 256 each added pair of layers makes the loss **worse**, in all seeds, by much more than the noise, and at width 128 so does the step from two layers to four. Is depth harmful? Nothing in the numbers so far speaks against that. But the next section does.

## 7. What else was different?

Noise can be measured by repeating an experiment. A **confounder** is repeated with it: it is something else that differs between the arms, always in the same direction.

### A learning rate that was tuned for one side

All our sizes were trained with a learning rate of 0.001. The arm "30 %" of the group "rate" is the size L2 H128 with a learning rate of 0.002 and nothing else changed:
"""

# %%
other_rate = scores("rate", "30 %", "loss") - scores("size", "L2 H128", "loss")
deeper = scores("size", "L4 H128", "loss") - scores("size", "L2 H128", "loss")
flags = [
    ablations[group][arm][0]["settings"] for group, arm in (("size", "L2 H128"), ("rate", "30 %"))
]
print("only in 'size':", [flag for flag in flags[0] if flag not in flags[1]])
print(f"rate 0.002 instead of 0.001   {other_rate.mean():+.3f} nats, seeds {other_rate}")
print(f"4 layers instead of 2         {deeper.mean():+.3f} nats, seeds {deeper}")

# %% [markdown]
r"""
(The flags for layers and width only spell out the default.) Doubling the learning rate moves the loss by more than half of what the two added layers did. So the learning rate is not a detail, and we do not know whether 4 layers would do better with another one.
Here the toy can help, since its runs are cheap. Its rate, 0.008, was chosen for *one* layer. We train one layer and two layers, with this rate and with smaller ones:
"""

# %%
RATES = (0.002, 0.004, 0.008)
swept = {
    layers: np.array(
        [[run(seed, layers=layers, rate=rate)[0] for seed in range(3)] for rate in RATES]
    )
    for layers in (1, 2)
}
print("rate    ", "".join(f"{rate:10}" for rate in RATES))
for layers, losses in swept.items():
    print(f"L = {layers}   ", "".join(f"{loss:10.3f}" for loss in losses.mean(axis=1)))
same_rate = swept[2][2] - swept[1][2]
each_best = swept[2].mean(axis=1).min() - swept[1].mean(axis=1).min()
print(
    f"\n2 layers instead of 1: {same_rate.mean():+.3f} at the rate chosen for 1, "
    f"{each_best:+.3f} at the best rate of each"
)
assert same_rate.mean() > 0.2 > abs(each_best)

# %% tags=["figure"]
# Caption: At 0.002 and 0.004 one layer and two are alike; at 0.008 two are far behind. The dots are
#   seeds.
figure, axes = plt.subplots(figsize=(7.5, 2.9))
for (layers, losses), colour, mark in zip(
    swept.items(), (plots.BLUE, plots.VERMILION), "os", strict=True
):
    axes.semilogx(RATES, losses, mark, color=colour, markersize=4, alpha=0.5)
    axes.semilogx(
        RATES, losses.mean(axis=1), color=colour, label=f"{layers} layer{'s' * (layers > 1)}"
    )
axes.set_xticks(RATES, RATES)
axes.minorticks_off()
axes.set(
    title="the toy: the damage depends on the rate",
    xlabel="learning rate",
    ylabel="held-out loss (nats)",
)
axes.legend()
plt.show()

# %% [markdown]
r"""
Dots are seeds, lines are means. At 0.008 a second layer seems to do great damage, in all three seeds. With a rate of its own it does about as well as one layer. The experiment at 0.008 was not about depth. It was about *a rate that suits one layer*.
In published comparisons the baseline is often the side that nobody tuned. Melis and others ([2018](https://arxiv.org/abs/1707.05589)) tuned an old LSTM with the same care as newer architectures, and it
came out ahead of them.

### Equal steps, equal tokens, or equal time?

"After the same training" has several meanings, and the order of the arms depends on which one you choose. Our sizes took equally many steps, and therefore equally many tokens. We redraw their curves against the clock:
"""

# %% tags=["figure"]
# Caption: The same runs against the tokens that they read, and against the minutes that they took.
figure, axes = plt.subplots(1, 2, figsize=(7.5, 3.4), sharey=True)
DRAWN = {
    "L1 H64": plots.GREEN,
    "L1 H128": plots.SKY,
    "L2 H128": plots.BLUE,
    "L2 H256": plots.VERMILION,
    "L6 H256": plots.PURPLE,
}
for panel, unit, scale in ((axes[0], "tokens", 1e6), (axes[1], "seconds", 60)):
    for arm, colour in DRAWN.items():
        for number, record in enumerate(ablations["size"][arm]):
            x = np.array([point[unit] for point in record["evaluations"]]) / scale
            y = [point["mlm_loss"] for point in record["evaluations"]]
            panel.plot(
                x,
                y,
                "o-",
                color=colour,
                linewidth=1.1,
                markersize=2.5,
                label=arm if number == 0 else None,
            )
axes[0].set(
    title="against what was read", xlabel="tokens (millions)", ylabel="held-out loss (nats)"
)
axes[1].set(title="against the clock", xlabel="minutes")
axes[1].legend(fontsize=9)
plt.show()

# %%
BUDGET = 146  # seconds: what L2 H128 takes
print(
    f"held-out loss at the end of all tokens, and the last one measured within {BUDGET} seconds "
    "(seed 0)"
)
for arm in DRAWN:
    record = ablations["size"][arm][0]
    points = record["evaluations"]
    in_time = [point for point in points if point["seconds"] <= BUDGET]
    print(
        f"{arm:<8} {points[-1]['mlm_loss']:.2f} after {points[-1]['seconds']:5.0f} s   "
        f"{in_time[-1]['mlm_loss']:.2f} after {in_time[-1]['seconds']:4.0f} s"
    )
seconds = [record["seconds"] for record in ablations["size"]["L4 H256"]]
print("\nL4 H256, the same work three times, seconds:", np.round(seconds))

# %% [markdown]
r"""
On the left, L2 H256 is best. But in the time that L2 H128 takes, it has done only about a third of its steps. If you have two and a half minutes, do not train it; if you have a fixed text, do. Both answers are right, and neither says "which model is better".

Two details matter in such comparisons. A run that is cut off is not a run that was *planned* to be this short: its learning rate has not come down yet, so the last columns flatter the small models. And time depends on
the machine's other work: three runs of L4 H256, with the same work, took between 665 and 1,057 seconds. Tokens and multiplications can be counted exactly. Time has to be measured on an idle machine.

### Perplexity with another vocabulary

Perplexity counts per *token*. A vocabulary of short pieces makes many tokens that are easy to guess. We take the plainest model of all, word frequencies, with two vocabularies on the same text:
"""

# %%
sentences = [sentence for topic in topics.values() for sentence in prose_sentences(topic)][:3000]
characters = sum(map(len, sentences))
print("V       tokens   perplexity   bits per character")
for size in (300, 2000):
    tokenizer = BertTokenizer.train(sentences, size)
    tokens = np.concatenate([np.array(ids) for ids in tokenizer.token_ids_batch(sentences)])
    frequency = np.bincount(tokens, minlength=tokenizer.vocab_size) / len(tokens)
    loss = -np.log(frequency[tokens]).mean()
    print(
        f"{tokenizer.vocab_size:<7,}{len(tokens):7,} {np.exp(loss):12.1f} "
        f"{loss * len(tokens) / np.log(2) / characters:20.2f}"
    )

# %% [markdown]
r"""
By perplexity, the small vocabulary wins easily. By bits per character of the same text, it loses. So a loss per token may be compared only between arms with the same vocabulary; otherwise use bits per character, or tasks. The same goes for the objective: the
loss of a left-to-right model and that of a masked one answer different questions. (For this reason the table above does not compare losses in "objective", although the file has them.)

### The winner on the development set

If you train ten versions, choose the best one, and report its score on the same data, you also report luck. Here are ten models that all have a true accuracy of 73 %, with a development set of 872 sentences and a test set of the same size:
"""

# %%
rng = np.random.default_rng(7)
dev, test = rng.binomial(872, 0.73, size=(2, 5000, 10)) / 872
best = dev.argmax(axis=1)[:, None]
on_dev = np.take_along_axis(dev, best, axis=1).mean()
on_test = np.take_along_axis(test, best, axis=1).mean()
print(f"all ten are at 73.0 %. The best on dev: {on_dev:.1%} there, {on_test:.1%} on test")

# %% [markdown]
r"""
More than two points come out of nothing, and the more versions there are, the more points. It is also unfair if one arm had more tries than another. Choose on the development set, report on another set, and give every arm the same number of tries. (Dodge and others,
[2019](https://arxiv.org/abs/1909.03004), propose to report the expected best score as a function of the number of tries.)

## 8. How to write an ablation down

A checklist, in the order of the work.

**Before**

1. Write the question in one sentence, with the score that will answer it, and the arms. Everything else is exploration, and should be called that.
2. Change one thing. List what changes with it: packing, parameters, time, tokens.
3. Say what is held equal: steps, tokens or time. Count it.
4. Tune every arm with the same effort. If you cannot, say which arm the settings were made for.
5. Choose the number of seeds by the effect that you want to find, not by what is left of the budget.

**During**

6. Share seeds, text and order between the arms. Keep the score of every run, not only the means.
7. Keep runs that failed. A run that diverged is a result.

**After**

8. Show every run, or the interval of the *paired difference*. Say what ± is: a deviation or an error, of what, and from how many runs.
9. Say how many comparisons you made, and correct for them, or mark the table as exploratory.
10. Compare each score with its floor. A task on which nothing works cannot tell arms apart.
11. Write "undecided" where it is. "No significant difference" is not "no difference".
12. Say where the result holds: size, text, length of training. Publish settings and code.

Measured by this list, the ablations of section 6 are fair and no more: text, seeds and code are there, every run is kept, and the steps are equal. But there are only three seeds, rates that were not tuned for each arm, and tasks at their
floor. Little can be said firmly: at this scale NSP costs accuracy on SST-2, a wider model of the same depth has a lower loss, and a higher masking rate gives a lower loss, too.

## Recap

- An ablation says: with everything else equal, this change moved this score by this much. The score and the "everything else" are part of the result.
- Differences of paired runs have smaller errors, because what a seed does to both arms cancels.
- With few seeds, t intervals are honest and long; percentile bootstrap intervals are too short. Three seeds cannot pass an exact test at all.
- Among twenty arms that do nothing, there is often a "winner". Correct for the number of comparisons (Holm), or make fewer.
- Confounders do not average out: rates tuned for one side, time against tokens, vocabularies, development sets.
- A score at its floor says nothing about any arm.

## What usually goes wrong

- **One seed per arm**, and a story for each difference in the last digit.
- **± without a word.** A standard deviation is √n times as large as the standard error of a mean.
- **Pairs thrown away.** Different seeds for each arm, or means reported without the runs.
- **"Not significant" read as "equal".**
- **The best seed** of the new arm against the mean of the old one.
- **The baseline from another paper**, with other data, other steps and another tokenizer.

## Three questions

Answer before you unfold.
"""

# %% [markdown]
r"""
<details>
<summary><b>1.</b> Two arms were trained with seeds 0–4 and 5–9. May you pair seed 0 with seed 5, 1 with 6, and so on?</summary>

You may, but it gains nothing. The runs of such a pair have nothing in common, so the covariance is 0 on average, and the error is as large as the unpaired one. You even lose a little: the t
quantile has 4 degrees of freedom instead of about 8. The runs of a pair have to share what makes runs differ.

</details>
"""

# %% [markdown]
r"""
<details>
<summary><b>2.</b> A new arm is better in five of five seeds. What is the p-value of the exact test, and what if you had tried eight arms?</summary>

All five differences have the same sign, so only the observed pattern and its opposite reach the mean: p = 2/32 = 0.0625, whatever their sizes. With eight arms, Holm multiplies the smallest p by 8, which gives 0.5. To pass at 0.05 after this correction, you would
need $2 / 2^n \le 0.05 / 8$, so at least nine seeds.

</details>
"""

# %% [markdown]
r"""
<details>
<summary><b>3.</b> You remove dropout and get a better held-out loss after 1,000 steps, in ten of ten seeds. What can you write?</summary>

"After 1,000 steps, with these settings, the held-out loss is lower without dropout", with the interval. Not "dropout is harmful". Dropout slows learning and protects from overfitting, and after 1,000 steps there is little to protect from.
The length of training is one of the things that were held equal, and with another length the result may be the opposite.

</details>
"""

# %% [markdown]
r"""
## Further reading

- Devlin and others: [BERT](https://arxiv.org/abs/1810.04805) (2019), section 5 and appendix C.
- Liu and others: [RoBERTa](https://arxiv.org/abs/1907.11692) (2019). An ablation of BERT's training, one decision after the other.
- Bouthillier and others: [Accounting for variance in machine learning benchmarks](https://arxiv.org/abs/2103.03098) (2021).
- Dodge and others: [Fine-tuning pretrained language models: weight initializations, data orders, and early stopping](https://arxiv.org/abs/2002.06305) (2020).
- Sellam and others: [The MultiBERTs](https://arxiv.org/abs/2106.16163) (2021). 25 seeds, and a bootstrap over seeds *and* test examples.
- Dror and others: [The hitchhiker's guide to testing statistical significance in natural language processing](https://aclanthology.org/P18-1128/) (2018).
- Card and others: [With little power comes great responsibility](https://arxiv.org/abs/2010.06595) (2020).
- Narang and others: [Do transformer modifications transfer across implementations and applications?](https://arxiv.org/abs/2102.11972) (2021). Most do not.

## Next

[23 · After BERT](23_after_bert.ipynb), or back to the [overview of the course](README.md). Our ablations: [the report](../benchmarks/results/ablations.md), and
[the runs and their settings](../benchmarks/ablations/experiments.toml). To add an arm, put a line there, and see [how to run it](../benchmarks/README.md).
"""
