# %% [markdown]
r"""
# 13 · The optimiser

The backward pass says in which direction each of 110 million numbers should move. It does not say how far. BERT's
optimiser answers with five ideas, each of which fits on one line. To leave one of them out is a common reason why a
run fails.

**You will** see why one step size cannot serve all parameters · unroll Adam's two running means · say what the missing
bias correction does, and when warm-up hides it · tell weight decay from L2 regularisation · write the schedule,
the clipping and the whole step yourself, and compare the step with PyTorch's · find out what twenty steps
without a gradient do, without taking them.

**Before this:** [01 · Gradients](01_gradients.ipynb).
**Time:** 100 minutes with the exercises; it runs in seconds.

| symbol | in this notebook | BERT's value |
|---|---|---|
| $p$, $g$ | a parameter, and the derivative $\partial L / \partial p$ of the loss | |
| $m$, $v$ | running means of $g$ and of $g^2$ | begin at 0 |
| $\beta_1$, $\beta_2$ | how much of the old means is kept | 0.9, 0.999 |
| $\eta$ | learning rate (`lr` in code) | at most $10^{-4}$ |
| $\varepsilon$ | keeps the division finite | $10^{-6}$ |
| $\lambda$ | weight decay | 0.01 |
| $t$, $T$, $w$ | step, steps in all, steps of warm-up | $T = 10^6$, $w = 10^4$ |
"""

# %%
import inspect

import matplotlib.pyplot as plt
import numpy as np

from minibert import BertConfig, BertForMaskedLM, BertModel, check, ops, plots
from minibert.ops.optimise import adamw_update, global_norm
from minibert.train.optimiser import AdamW
from minibert.train.schedule import original, triangle

plots.notebook_style()
np.set_printoptions(precision=3, suppress=True)
rng = np.random.default_rng(13)

BETA1, BETA2, EPS = 0.9, 0.999, 1e-6

# %% [markdown]
r"""
## 1. Why one step size does not fit all

Gradient descent subtracts the gradient times a number: $p \leftarrow p - \eta \, g$. Let us try it on the smallest landscape
that shows the problem: a valley that is a hundred times as steep across as along:

$$
L(x, y) = \tfrac12 \left( x^2 + 100 \, y^2 \right), \qquad g = (x, \; 100 \, y) .
$$

One step multiplies $x$ by $1 - \eta$ and $y$ by $1 - 100 \eta$. If $y$ is not to grow, we need $\lvert 1 - 100 \eta \rvert
\le 1$, so $\eta \le 0.02$: the steep direction dictates the step. And then $x$ shrinks by only 2 % per step.
"""


# %%
def descend(lr, steps=40):
    path = [np.array([-4.0, 0.4])]
    for _ in range(steps):
        path.append(path[-1] - lr * np.array([1.0, 100.0]) * path[-1])
    return np.array(path)


def adam(lr, steps=40):
    p = np.array([-4.0, 0.4])
    path, mean, variance = [p.copy()], np.zeros(2), np.zeros(2)
    for t in range(steps):
        gradient = np.array([1.0, 100.0]) * p
        corrections = 1 - BETA1 ** (t + 1), 1 - BETA2 ** (t + 1)
        adamw_update(p, gradient, mean, variance, lr, 1.0, BETA1, BETA2, EPS, 0.0, *corrections)
        path.append(p.copy())
    return np.array(path)


PATHS = {
    "gradient descent, η = 0.019": descend(0.019),
    "Adam, η = 0.15": adam(0.15),
}
for name, path in PATHS.items():
    print(f"{name:<28} after 40 steps: x = {path[-1, 0]:6.3f}, y = {path[-1, 1]:6.3f}")
print(f"gradient descent, η = 0.021: after 40 steps: y = {descend(0.021)[-1, 1]:.1f}")

# %% tags=["figure"]
# Caption: A valley that is steep one way and flat the other. Adam gives each direction its own
#   step.
figure, axes = plt.subplots(figsize=(7.5, 3.2))
x, y = np.meshgrid(np.linspace(-4.5, 1.5, 120), np.linspace(-0.75, 0.75, 80))
axes.contour(x, y, 0.5 * (x**2 + 100 * y**2), levels=12, colors="#c8c8c8", linewidths=0.8)
for (name, path), colour in zip(PATHS.items(), (plots.VERMILION, plots.BLUE), strict=True):
    axes.plot(*path.T, "o-", color=colour, markersize=3, linewidth=1.2, label=name)
axes.plot(0, 0, "k*", markersize=11)
axes.set(title="40 steps towards the star", xlabel="x (flat)", ylabel="y (steep)")
axes.grid(False)
axes.legend(fontsize=9, loc="lower left", ncols=2, frameon=True, edgecolor="white")
plt.show()

# %% [markdown]
r"""
Gradient descent leaps from wall to wall, and only creeps along the valley. Adam's first steps go 0.15 in $x$ and 0.15 in $y$ (mind the
axes' scales), although the gradient in $y$ is ten times that in $x$: it **divides each parameter's gradient by that gradient's
own usual size**. (Then it overshoots a little; its running mean works like momentum.)

A BERT is a valley like this in many dimensions. The gradient of a LayerNorm's γ and that of a rare word's embedding
differ by orders of magnitude, and both have to learn at one $\eta$.

## 2. Adam's two running means

Adam keeps, for each parameter, a running mean of the gradient and one of its square:

$$
m_t = \beta_1 m_{t-1} + (1 - \beta_1) \, g_t , \qquad
v_t = \beta_2 v_{t-1} + (1 - \beta_2) \, g_t^2 , \qquad
p \leftarrow p - \eta \, \frac{m_t}{\sqrt{v_t} + \varepsilon} .
$$

What is in $m_t$? We substitute the recursion into itself, starting from $m_0 = 0$:

$$
\begin{aligned}
m_t &= (1 - \beta_1) \, g_t + \beta_1 m_{t-1} \\
&= (1 - \beta_1) \, g_t + (1 - \beta_1) \, \beta_1 \, g_{t-1} + \beta_1^2 \, m_{t-2} \\
&= (1 - \beta_1) \sum_{i=1}^{t} \beta_1^{\,t-i} \, g_i .
\end{aligned}
$$

So $m_t$ contains all gradients so far, and each step further into the past counts β₁ times as much. The weights of the last
$1/(1-\beta)$ steps make up about 63 %: Adam remembers directions for about 10 steps, and sizes for about 1000.
"""

# %%
gradients = 0.3 + rng.standard_normal(400)  # a small constant hidden in noise
mean = variance = 0.0
means, variances = [], []
for g in gradients:
    mean = BETA1 * mean + (1 - BETA1) * g
    variance = BETA2 * variance + (1 - BETA2) * g * g
    means.append(mean)
    variances.append(variance)

weights = (1 - BETA1) * BETA1 ** np.arange(len(gradients))[::-1]  # of g₁ … g₄₀₀
print(f"recursion {means[-1]:.12f}\nsum       {(weights * gradients).sum():.12f}")
print(f"weight of the last 10:   {1 - BETA1**10:.2f} of m")
print(f"weight of the last 1000: {1 - BETA2**1000:.2f} of v")
assert np.isclose(means[-1], (weights * gradients).sum(), rtol=1e-12)

# %% tags=["figure"]
# Caption: Dots are gradients, a small constant hidden in noise. The mean m finds it; √v is on its
#   way to the dotted line.
figure, axes = plt.subplots(figsize=(7.5, 3.0))
axes.scatter(np.arange(1, 401), gradients, s=8, color="#c8c8c8", label="gradient g")
axes.plot(np.arange(1, 401), means, color=plots.BLUE, label="m")
axes.plot(np.arange(1, 401), np.sqrt(variances), color=plots.VERMILION, label="√v")
axes.axhline(np.sqrt(1.09), color=plots.VERMILION, linestyle=":", linewidth=1.2)
axes.text(
    *(3, 1.3, "true √(mean of g²)"),
    color=plots.VERMILION,
    fontsize=9,
    bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.5},
)
axes.set(title="what Adam remembers of a noisy gradient", xlabel="step", ylabel="value")
axes.set_ylim(-4.2, 3.6)
axes.legend(loc="lower right", ncols=3, fontsize=9, frameon=True, edgecolor="white")
plt.show()

# %% [markdown]
r"""
There are two things to see. The ratio $m / \sqrt v$ is small where the gradient is mostly noise, and close to ±1 where it points the same way
all the time. So, once $v$ has settled, the step is about $\eta$ at most, and shrinks by itself where the evidence is thin. And $\sqrt v$ is
far **too small at first**: after 400 steps it has not reached the dotted line. That is the bias of section 3.

Since $m$ and $\sqrt v$ both scale with the gradient, **the size of the loss does not matter** (apart from ε): a gradient
that is a thousand times as large gives the same step.
"""


# %%
def walk(gradients, eps):
    p, mean, variance = np.zeros(1), np.zeros(1), np.zeros(1)
    for g in gradients:
        adamw_update(p, np.array([g]), mean, variance, 1e-3, 1.0, BETA1, BETA2, eps, 0.0)
    return p[0]


for factor in (1.0, 1e3, 1e-3, 1e-6):
    moved = [walk(factor * gradients, eps) for eps in (1e-6, 1e-12)]
    print(f"g × {factor:<7}  ε = 1e-6: p moves {moved[0]:.4f}   ε = 1e-12: {moved[1]:.4f}")

# %% [markdown]
r"""
The last line shows ε at work: once gradients are as small as ε, it is no longer a guard against 0/0 but a brake.
BERT's $10^{-6}$ (Adam's authors use $10^{-8}$) is part of the recipe.

## 3. Why has BERT's Adam no bias correction?

Both means begin at 0, and remember it. Suppose that the gradients have the same expectation at each step; then

$$
\mathbb E[m_t] = (1 - \beta_1) \sum_{i=1}^{t} \beta_1^{\,t-i} \; \mathbb E[g]
= (1 - \beta_1) \, \frac{1 - \beta_1^{\,t}}{1 - \beta_1} \; \mathbb E[g]
= (1 - \beta_1^{\,t}) \; \mathbb E[g] ,
$$

and likewise $\mathbb E[v_t] = (1 - \beta_2^{\,t}) \, \mathbb E[g^2]$. Both are too small, by known factors. Adam as published
divides them out: $\hat m = m / (1 - \beta_1^t)$, $\hat v = v / (1 - \beta_2^t)$. The code that trained BERT does not;
its author has called that mostly an oversight. But the published weights were made this way, so minibert
does the same unless you ask for `bias_correction=True`.

What does leaving it out do? Apart from ε, exactly this:

$$
\frac{m}{\sqrt v} = \underbrace{\frac{1 - \beta_1^{\,t}}{\sqrt{1 - \beta_2^{\,t}}}}_{f(t)} \cdot \frac{\hat m}{\sqrt{\hat v}} .
$$

The step is the corrected one times a factor that depends on $t$ alone. **A missing correction is nothing but another
learning-rate schedule.**
"""

# %%
t = np.arange(1, 100_001)
factor = (1 - BETA1**t) / np.sqrt(1 - BETA2**t)
for step in (1, t[factor.argmax()], 100, 1000, 10_000):
    print(f"t = {step:>6}   f = {factor[step - 1]:.3f}")

g = np.full(4, 0.3)  # the first step, with and without
moves = []
for corrections in ((1.0, 1.0), (1 - BETA1, 1 - BETA2)):
    p = np.zeros(4)
    adamw_update(p, g, np.zeros(4), np.zeros(4), 1.0, 1.0, BETA1, BETA2, 1e-12, 0.0, *corrections)
    moves.append(abs(p[0]))
print(f"first step: {moves[0]:.3f} η uncorrected, {moves[1]:.3f} η corrected")
assert np.isclose(moves[0] / moves[1], factor[0])

# %% [markdown]
r"""
Uncorrected, the first steps are three to six and a half times too long, at the very moment when $v$ has seen next to
nothing. After a thousand steps they are still a quarter too long. Warm-up keeps $\eta$ small meanwhile, and in a run of a
million steps that hides the excess. In a short run it does not:
"""

# %%
effective = {}
for name, steps, warmup in (("pre-training", 1_000_000, 10_000), ("fine-tuning", 300, 30)):
    at = np.unique(np.linspace(0, steps - 1, 2000).astype(int))
    rate = np.array([original(step, steps, warmup, 1.0) for step in at])  # share of the peak
    f = (1 - BETA1 ** (at + 1)) / np.sqrt(1 - BETA2 ** (at + 1))
    effective[name] = (at, rate, rate * f)
    print(f"{name:<13} asked for at most 1.00 of the peak, gets {(rate * f).max():.2f}")

# %% tags=["figure"]
# Caption: Left: by what factor an uncorrected step is too long. Right: what that makes of the
#   learning rate in a run of 300 steps.
figure, axes = plt.subplots(1, 2, figsize=(7.5, 3.1))
axes[0].semilogx(t, factor, color=plots.VERMILION)
axes[0].axhline(1, color=plots.GREY, linestyle="--", linewidth=1)
axes[0].set(title="the missing correction, f(t)", xlabel="step t", ylabel="factor", ylim=(0, 7))
at, rate, uncorrected = effective["fine-tuning"]
axes[1].plot(at, rate, color=plots.BLUE, label="corrected")
axes[1].plot(at, uncorrected, color=plots.VERMILION, label="uncorrected")
axes[1].set(title="a run of 300 steps", xlabel="step", ylabel="rate / peak")
axes[1].legend()
plt.show()

# %% [markdown]
r"""
So **why is there none?** By accident. In long runs with warm-up, it makes no difference. In fine-tuning on little data, it
means learning rates several times as large as you asked for. (Zhang et al., *Revisiting Few-sample BERT Fine-tuning*, 2021,
found it to be one cause of fine-tuning runs that fail, and turned the correction back on.)

## 4. Weight decay is not L2 regularisation

Weight decay pulls every weight a little towards zero, so that it stays large only if the data keep asking for it. There seem to be
two ways to write that down: add $\frac{\lambda}{2} \lVert p \rVert^2$ to the loss (**L2**), whose gradient is
$\lambda p$; or shrink the weight directly (**decay**):

$$
\text{L2:} \quad g \leftarrow g + \lambda p , \qquad\qquad
\text{decay:} \quad p \leftarrow p - \eta \left( \frac{m}{\sqrt v + \varepsilon} + \lambda p \right) .
$$

For gradient descent they are the same thing: $p - \eta (g + \lambda p)$. For Adam they are not. The L2 term goes
through the means and is **divided by √v like everything else**, so that its pull is $\eta \lambda p / \sqrt v$: weights with
large gradients are hardly decayed at all. Keeping the decay outside is the W of AdamW. In the next cell, the
gradients are pure noise, so that only the decay moves the weights' average:
"""

# %%
NOISE = (0.1, 1.0, 10.0)  # sizes of the gradient, for three groups of 2000 weights
DECAY, LR, STEPS = 0.1, 5e-3, 2000


def shrink(inside):
    rng = np.random.default_rng(4)
    p = np.ones((len(NOISE), 2000))
    flat, mean, variance = p.reshape(-1), np.zeros(p.size), np.zeros(p.size)
    averages = []
    for step in range(STEPS):
        gradient = (np.array(NOISE)[:, None] * rng.standard_normal(p.shape)).reshape(-1)
        if inside:
            gradient = gradient + DECAY * flat
        decay = 0.0 if inside else DECAY
        corrections = 1 - BETA1 ** (step + 1), 1 - BETA2 ** (step + 1)
        adamw_update(
            flat, gradient, mean, variance, LR, 1.0, BETA1, BETA2, EPS, decay, *corrections
        )
        averages.append(p.mean(axis=1))
    return np.array(averages)  # (STEPS, 3)


shrunk = {"L2, through Adam": shrink(inside=True), "decay, beside Adam": shrink(inside=False)}
print(f"(1 − ηλ)^{STEPS} = {(1 - LR * DECAY) ** STEPS:.2f}")
for name, averages in shrunk.items():
    print(f"{name:<20} average weight at the end: {averages[-1]}")
assert np.allclose(shrunk["decay, beside Adam"][-1], (1 - LR * DECAY) ** STEPS, atol=0.03)

# %% tags=["figure"]
# Caption: The mean of many weights whose gradients are noise. As part of the gradient (left), the
#   decay depends on the noise; applied separately (right), it does not.
figure, axes = plt.subplots(1, 2, figsize=(7.5, 3.0), sharey=True)
for panel, (name, averages) in zip(axes, shrunk.items(), strict=True):
    for size, line, style in zip(NOISE, averages.T, ("-", "--", ":"), strict=True):
        panel.plot(line, style, label=f"gradients of size {size:g}")
    panel.set(title=name, xlabel="step")
axes[0].set_ylabel("average weight")
axes[1].legend(fontsize=9, loc="lower left")
plt.show()

# %% [markdown]
r"""
On the right all three groups shrink alike, as $(1 - \eta \lambda)^t$ says. On the left the decay depends on the
size of the gradient, which has nothing to do with whether a weight is needed.

## 5. Why no weight decay on biases and LayerNorm?

In BERT, biases, γ and β are not decayed. What would the decay do to them? First, some arithmetic. A
parameter that gets no gradient is multiplied by $1 - \eta_t \lambda$ at each step. Over BERT's whole pre-training:
"""

# %%
rates = np.array([original(step, 1_000_000, 10_000, 1e-4) for step in range(1_000_000)])
print(f"sum of all learning rates {rates.sum():.1f}")
print(f"what is left of a weight without gradient: {np.prod(1 - 0.01 * rates):.2f}")

# %% [markdown]
r"""
For a matrix entry, which begins near 0, a pull towards 0 says "stay small unless needed". For γ, which begins at **1**, it
says "silence this feature" (0.61 of it would be left), and there is no reason to do so. Overfitting is not a reason,
either: a bias or a γ is one number per feature, and cannot memorise.

A pull that serves no purpose still costs accuracy. Here, four biases have to learn the mean of noisy data, with $L = \frac12
(b - y)^2$ and $y$ around 1, 5, 10 and 20:
"""

# %%
targets = np.array([1.0, 5.0, 10.0, 20.0])
learned = {}
for decay in (0.0, 0.01):
    rng = np.random.default_rng(5)
    b, mean, variance = np.zeros((3, 1000))  # 250 runs of the four, whose average we take
    for step in range(6000):
        gradient = b - (np.tile(targets, 250) + rng.standard_normal(1000))
        rate = triangle(step, 6000, 100, 0.02)
        adamw_update(b, gradient, mean, variance, rate, 1.0, BETA1, BETA2, EPS, decay)
    learned[decay] = b.reshape(250, 4).mean(axis=0)

print("mean of y  ", targets)
for decay, b in learned.items():
    print(f"decay {decay:<5} b =", b, " misses by", np.abs(targets - b))
assert (targets - learned[0.01])[-1] > 0.1 > np.abs(targets - learned[0.0]).max()

# %% [markdown]
r"""
With the decay, $b$ comes to rest where the two pulls cancel. That is short of the mean, and the larger the mean is, the
further it falls short. In an estimate of a mean, you would call that a bug. So the biases, γ and β are exempt. The library
marks them when it creates them, and stores all exempt parameters side by side. They are few:
"""

# %%
model = BertModel(BertConfig.preset("mini"))
exempt = [p for _, p in model.named_parameters() if not p.decay]
decayed = [p for _, p in model.named_parameters() if p.decay]
for name, group in (("decayed", decayed), ("exempt", exempt)):
    kinds = sorted({p.name.rsplit(".", 2)[-2] + "." + p.name.rsplit(".", 1)[-1] for p in group})
    print(f"{name}: {sum(p.size for p in group):,} numbers in {len(group)} parameters")
    print("  ", *kinds[:5], "…" if len(kinds) > 5 else "")
assert all(p.name.endswith("bias") or "LayerNorm" in p.name for p in exempt)

# %% [markdown]
r"""
That is fewer than one number in five hundred, so whether you decay them will rarely show in a loss.

## 6. Warm-up, then decay

At the start, gradients are large and contradictory, and $v$ has seen little, so steps should be short. At the end the
weights should settle, so steps should be short again. In between, they should be as long as is safe. BERT's schedule is two straight lines. The first rises from 0
at step 0 towards $\eta_{\max}$ at step $w$. The second falls to 0 at step $T$, and it takes over at step $w$.

The falling line starts from $\eta_{\max}$ at step **0**, as if there had been no warm-up. So at $t = w$ the rate leaps down. With $w/T = 1\,\%$
nobody sees it; with 10 % it does show. Most other code starts the falling line at the peak; in minibert that is
the option `triangle`.
"""

# %%
T, W = 1000, 100
steps = np.arange(T)
lines = {
    f.__name__: np.array([f(step, T, W, 1e-4) for step in steps]) for f in (original, triangle)
}
for step in (0, 50, 99, 100, 550, 999):
    print(f"t = {step:>3}  " + "  ".join(f"{name} {r[step]:.2e}" for name, r in lines.items()))

# %% tags=["figure"]
# Caption: Warm-up over a tenth of the steps, then decay. The original's rate leaps down where the
#   two lines meet.
figure, axes = plt.subplots(figsize=(7.5, 2.8))
for (name, rate), style in zip(lines.items(), ("-", "--"), strict=True):
    axes.plot(steps, 1e4 * rate, style, label=name)
axes.set(title="learning rate", xlabel="step", ylabel="η (10⁻⁴)")
axes.legend()
plt.show()

# %% [markdown]
r"""
Steps count from 0, so the very first step has rate 0: it fills $m$ and $v$ and moves nothing.

## 7. Your turn: the schedule

@exercise 13.learning_rate

Write the original's schedule. `step` is $t$ and runs from 0 to `steps` − 1; `steps` is $T$, `warmup` is $w$, and `peak` is
$\eta_{\max}$. Step $w$ itself already belongs to the falling line.
"""

# %% [markdown] tags=["derivation"]
r"""
One line goes through 0 at step 0 and $\eta_{\max}$ at step $w$. The other goes through $\eta_{\max}$ at step 0 and 0 at step $T$:

$$
\eta_t = \begin{cases} \eta_{\max} \cdot t / w & t < w , \\ \eta_{\max} \cdot (1 - t / T) & t \ge w . \end{cases}
$$
"""


# %% tags=["solution"]
def my_learning_rate(step, steps, warmup, peak):
    """The learning rate of a step: up in a line from 0, then on the line from peak (step 0) to 0."""
    if step < warmup:
        return peak * step / warmup
    return peak * (1 - step / steps)


# %%
check("13.learning_rate", my_learning_rate)

# %% [markdown] tags=["yours"]
r"""
What passes its check can become a part of your own BERT, which [20](20_your_bert.ipynb) puts together. `keep` writes it into the folder
`my_bert`.
"""

# %% tags=["yours"]
from minibert.course import keep

keep("13.learning_rate", my_learning_rate)

# %% [markdown]
r"""
## 8. Clipping

Now and then a batch has a gradient a hundred times longer than usual. Take all gradients of the model as one
vector $g$. If it is longer than $c$, scale it to length $c$; if not, leave it alone. BERT uses $c = 1$.

The direction stays the same. (Cutting off each number at ±c would turn it.) But isn't Adam indifferent to the gradient's
size? Only to a *constant* factor. One outlier enters $v$, squared, and $v$ remembers it for a thousand steps. Here a gradient of
about 1 has one spike of 100, at step 1000:
"""

# %%
gradients = 1 + 0.5 * np.random.default_rng(8).standard_normal(3000)
gradients[1000] = 100.0


def step_sizes(clip_norm):
    p, mean, variance = np.zeros(1), np.zeros(1), np.zeros(1)
    sizes = []
    for t, g in enumerate(gradients):
        g = np.array([g])
        clip = min(1.0, clip_norm / global_norm(g))
        corrections = 1 - BETA1 ** (t + 1), 1 - BETA2 ** (t + 1)
        before = p.copy()
        adamw_update(p, g, mean, variance, 1.0, clip, BETA1, BETA2, EPS, 0.0, *corrections)
        sizes.append((before - p)[0])
    return np.array(sizes)  # in units of the learning rate


free, clipped = step_sizes(np.inf), step_sizes(2.0)
for name, sizes in (("not clipped", free), ("clipped at 2", clipped)):
    before, at, after = sizes[900:1000].mean(), sizes[1000], sizes[1100:2000].mean()
    print(
        f"{name:<13} before {before:.2f}   at the spike {at:.2f}   steps 1100 to 2000 {after:.2f}"
    )
assert free[1100:2000].mean() < 0.5 * clipped[1100:2000].mean()

# %% tags=["figure"]
# Caption: One gradient that is far too long makes about a dozen long steps, and then hundreds of
#   short ones. Clipping prevents both.
figure, axes = plt.subplots(figsize=(7.5, 3.0))
axes.plot(free, color=plots.VERMILION, linewidth=1.2, label="not clipped")
axes.plot(clipped, color=plots.BLUE, linewidth=1.2, label="clipped at 2")
axes.set(title="length of a step after one bad batch", xlabel="step", ylabel="step / η")
axes.set(xlim=(800, 3000), ylim=(0, 3.5))
axes.legend()
plt.show()

# %% [markdown]
r"""
One bad batch makes the next dozen steps too long, the first of them by a factor of three, since $m$ remembers a direction for
about ten steps. Then $v$, which remembers sizes for a thousand, keeps the steps at less than half their usual length, as if
somebody had turned down the learning rate. With clipping, there is hardly a trace.

## 9. Your turn: clipping

@exercise 13.clip_gradients

A model has two parameters, a `weight` and a `bias`. Return both gradients, clipped together to the length `clip_norm`.
"""

# %% [markdown] tags=["derivation"]
r"""
The squares of all numbers add up to the square of the length. One factor then serves both branches: where $g$ is
shorter than $c$, it is 1.

$$
g \leftarrow g \cdot \frac{c}{\max(\lVert g \rVert, c)}, \qquad
\lVert g \rVert = \sqrt{\textstyle\sum g_i^2} \;\; \text{over all parameters together.}
$$
"""


# %% tags=["solution"]
def my_clip_gradients(dweight, dbias, clip_norm):
    """Both gradients, times clip_norm / length if their common length is more than clip_norm."""
    norm = np.sqrt((dweight**2).sum() + (dbias**2).sum())
    factor = clip_norm / max(norm, clip_norm)
    return dweight * factor, dbias * factor


# %%
check("13.clip_gradients", my_clip_gradients)

# %% [markdown]
r"""
## 10. Your turn: one whole step

@exercise 13.adamw_step

Put the pieces together as BERT does: both means, the direction, and the decay beside it. There is no bias correction, so `step` goes
unused. `check` compares the result with the library's, and with a step that PyTorch's AdamW took. (PyTorch always corrects;
its count of steps was set to 10⁶, where the correction is 1.)
"""


# %% tags=["solution"]
def my_adamw_step(value, grad, mean, variance, step, lr, beta1, beta2, eps, weight_decay):
    """One step of BERT's Adam: the new value, mean and variance. All arrays have one shape."""
    mean = beta1 * mean + (1 - beta1) * grad
    variance = beta2 * variance + (1 - beta2) * grad**2
    direction = mean / (np.sqrt(variance) + eps)
    return value - lr * (direction + weight_decay * value), mean, variance


# %%
check("13.adamw_step", my_adamw_step)

# %% tags=["yours"]
keep("13.adamw_step", my_adamw_step)

# %% [markdown] tags=["answer"]
r"""
Here is the library's own. It works in place on **one flat array of all parameters**, so the whole update of a BERT is a
handful of operations. If the gradient norm is not finite, it changes nothing.
"""

# %% tags=["answer"]
source = inspect.getsource(adamw_update)
print(source[source.index("    xp = ") :])

# %% [markdown]
r"""
### Open: a row that waits

@exercise 13.catch_up

A rare word's row of the embedding table may get no gradient for many steps. (Take a model without the tied decoder.) It is a
waste to take Adam's step on a table of 30,000 rows each time, just to serve the few that occur. A *lazy* optimiser leaves a row alone until
its word comes again, and then makes up at once for all the steps that it has missed.

Write this catch-up. The row has had a gradient of 0 for `steps` steps in a row, at a constant learning rate, with weight decay, and with
$\varepsilon = 0$. Return its value and its two means as BERT's Adam would have left them. A loop of single steps would pass, but it is
what we want to avoid: `steps` may appear only as an exponent.
"""

# %% [markdown] tags=["derivation"]
r"""
With $g = 0$ a step multiplies $m$ by $\beta_1$ and $v$ by $\beta_2$. So the direction $u = m / \sqrt v$ is multiplied by
$r = \beta_1 / \sqrt{\beta_2}$, and the value takes the step

$$
p_j = p_{j-1} - \eta \left( r^j u + \lambda \, p_{j-1} \right) = d \, p_{j-1} - \eta \, r^j u , \qquad d = 1 - \eta \lambda .
$$

Substitute this into itself $k$ times. The move of step $j$ is decayed by the $k - j$ steps after it:

$$
p_k = d^k p_0 - \eta \, u \sum_{j=1}^{k} d^{\,k-j} \, r^j = d^k p_0 - \eta \, u \; r \, \frac{d^k - r^k}{d - r} .
$$

The last equality is the geometric series in $r / d$, times $d^k$. (If $d = r$, the sum is $k \, r^k$.) With BERT's numbers,
$r = 0.9005$: the row moves on by about nine times its last direction before it comes to rest. That is not negligible, which
is why lazy optimisers that simply skip these steps train differently.
"""


# %% tags=["solution"]
def my_catch_up(value, mean, variance, steps, lr, beta1, beta2, weight_decay):
    """The new value, mean and variance after `steps` steps with a gradient of 0 and ε = 0: all (N,)."""
    d, r = 1 - lr * weight_decay, beta1 / np.sqrt(beta2)
    moves = r * (d**steps - r**steps) / (d - r)  # r dᵏ⁻¹ + r² dᵏ⁻² + … + rᵏ
    value = value * d**steps - lr * mean / np.sqrt(variance) * moves
    return value, mean * beta1**steps, variance * beta2**steps


# %%
check("13.catch_up", my_catch_up)

# %% [markdown]
r"""
## 11. The optimiser at work

A very small BERT learns one batch by heart. At each step we note how far every group of parameters moves **in
relation to its own length**, $\lVert \Delta p \rVert / \lVert p \rVert$. That is the number to look at if you
wonder whether a learning rate is sensible.
"""

# %%
GROUPS = {
    "word embeddings": "word_embeddings.weight",
    "feed-forward matrix": "layer.0.output.dense.weight",
    "LayerNorm γ": "layer.0.output.LayerNorm.weight",
}
STEPS, WARMUP = 60, 15


def train(peak=1e-3, warmup=WARMUP, bias_correction=False):
    config = BertConfig.preset(
        "tiny",
        hidden_size=64,
        vocab_size=100,
        hidden_dropout_prob=0,
        attention_probs_dropout_prob=0,
    )
    model = BertForMaskedLM(config, seed=1)
    optimiser = AdamW(model, bias_correction=bias_correction)
    rng = np.random.default_rng(1)
    ids = rng.integers(5, 100, size=(4, 16))  # (B, S)
    labels = np.where(rng.random(ids.shape) < 0.3, ids, -100)
    input_ids = np.where(labels == -100, ids, 4)
    groups = {
        group: next(p for name, p in model.named_parameters() if name.endswith(end))
        for group, end in GROUPS.items()
    }
    history = []
    for step in range(STEPS):
        model.zero_grad()
        output, cache = model.forward(input_ids, labels=labels, return_logits=False)
        model.backward(cache)
        before = {group: p.value.copy() for group, p in groups.items()}
        length = optimiser.step(original(step, STEPS, warmup, peak), step)
        ratios = [
            np.linalg.norm(p.value - before[group]) / np.linalg.norm(before[group])
            for group, p in groups.items()
        ]
        history.append([float(output.loss), float(length), *ratios])
    return np.array(history).T  # loss, length of the gradient, a ratio for each group


with ops.reference_only():
    loss, length, *ratios = train()
print(f"loss {loss[0]:.2f} → {loss[-1]:.2f};  ln 100 = {np.log(100):.2f}")
print(f"gradient longer than 1, and so clipped, in {(length > 1).sum()} of {STEPS} steps")
assert loss[-1] < 0.7 * loss[0]

# %% tags=["figure"]
# Caption: Left: the learning rate. Right: how far a step moves each group, relative to its length.
figure, axes = plt.subplots(1, 2, figsize=(7.5, 3.1))
axes[0].plot([1e3 * original(step, STEPS, WARMUP, 1e-3) for step in range(STEPS)])
axes[0].set(title="learning rate", xlabel="step", ylabel="η (10⁻³)")
for (group, line), style in zip(zip(GROUPS, ratios, strict=True), ("-", "--", "-."), strict=True):
    axes[1].semilogy(np.arange(1, STEPS), line[1:], style, label=group)
axes[1].set(title="update ratio ‖Δp‖ / ‖p‖", xlabel="step", ylim=(2e-5, 2))
axes[1].legend(fontsize=9, loc="upper right")
plt.show()

# %% [markdown]
r"""
All groups rise and fall with the learning rate, because Adam has taken out how much their gradients differ in size. They
fall faster than the rate, though. The batch is soon known by heart, so the gradients shrink, while $\sqrt v$ still remembers
the large ones. The levels differ because the *weights* differ in size. The numbers of a matrix begin at about 0.02, so that a step of $\eta$ is $50 \, \eta$ of their
size; a γ begins at 1. A rule of thumb asks for ratios around $10^{-3}$ in matrices. Here, where 60 steps have to be enough,
they are far larger.

Now the same with a peak five times as high, with and without warm-up, with and without bias correction.
"""

# %%
PEAK = 5e-3
with ops.reference_only():
    runs = {
        "warm-up, uncorrected (BERT)": train(PEAK, WARMUP, False),
        "warm-up, corrected": train(PEAK, WARMUP, True),
        "no warm-up, corrected": train(PEAK, 0, True),
        "no warm-up, uncorrected": train(PEAK, 0, False),
    }
for name, (loss, _, _, ratio, _) in runs.items():
    print(f"{name:<28} loss at most {loss.max():.1f}   largest update ratio {ratio.max():.2f}")
assert runs["no warm-up, uncorrected"][0].max() > 5 > runs["warm-up, corrected"][0].max()

# %% tags=["figure"]
# Caption: Four runs at a rate five times as high. Either of the two remedies is enough.
figure, axes = plt.subplots(figsize=(7.5, 3.2))
colours = (plots.BLUE, plots.SKY, plots.GREEN, plots.VERMILION)
for (name, (loss, *_)), colour, style in zip(
    runs.items(), colours, ("-", "--", ":", "-"), strict=True
):
    axes.plot(loss, style, color=colour, label=name)
axes.set(title="a peak of 0.005", xlabel="step", ylabel="loss on the batch (nats)")
axes.legend(fontsize=9)
plt.show()

# %% [markdown]
r"""
With neither warm-up nor correction, one of the first steps changes the matrix by more than half its length, the loss
jumps, and the model does not recover. Either remedy is enough here. BERT's loss goes up and down for a while, since
its real rate is several times what the schedule says.

### What it costs

Each parameter needs room for its gradient, $m$ and $v$ as well. So training takes four times the memory of the weights
alone, before a single activation is stored.
"""

# %%
size = sum(p.size for _, p in BertModel(BertConfig.preset("base"), device=None).named_parameters())
print(f"BERT-base: {size:,} parameters × 4 bytes × 4 = {size * 16 / 2**30:.2f} GiB")

# %% [markdown]
r"""
## Recap

- Adam divides a running mean of the gradient by the root of a running mean of its square: steps of about $\eta$ at most once $v$ has settled,
  whatever the scale of the loss.
- Leaving out the bias correction multiplies the step by $f(t)$, up to 6.6 at $t = 12$. A long warm-up hides it;
  a short run does not.
- Decay is applied beside Adam's step, never inside the gradient. Biases, γ and β are exempt.
- The learning rate rises for $w$ steps and falls to 0. Step 0 has rate 0.
- Clipping shortens the one long vector of all gradients, and protects $v$ from outliers.

## What usually goes wrong

- **Forgotten `zero_grad`.** Gradients of earlier batches add up; Adam's indifference to size hides it.
- **L2 instead of decay.** `Adam(weight_decay=…)` in some libraries is L2. AdamW is not.
- **Clipping gradients that still contain a [loss scale](17_numpy_to_cupy.ipynb#What-is-loss-scaling-for?), or clipping array by array.** The length that counts is that of all gradients together, in true units.
- **ε inside the root.** $\sqrt{v + 10^{-6}}$ is $10^{-3}$ for small $v$: a thousand times the ε that was meant.
- **Means not saved with the weights.** A run resumed with $m = v = 0$ goes through $f(t)$ once more, now at full rate: its
  steps are too long, and the older the run, the more. The loss may hide it, as
  [26](26_when_training_fails.ipynb#6.-Stopping,-and-going-on-as-if-nothing-had-happened) measures.

## Three questions

Answer before you unfold.
"""

# %% [markdown]
r"""
<details>
<summary><b>1.</b> A word does not occur for 100 steps. What happens to its row of the embedding table?</summary>

Its gradient from the look-up is 0, but the row keeps moving for some 10 steps, since $m$ fades slowly, and it is
decayed at each step. (In a masked language model the decoder uses the table, too, so that every row always
gets a small gradient: see [11 · Heads and losses](11_heads_losses.ipynb).)

</details>
"""

# %% [markdown]
r"""
<details>
<summary><b>2.</b> You multiply the loss by 1000, to "make it learn faster". What changes with clipping at 1, and what
changes without it?</summary>

Without clipping, only the influence of ε changes: it becomes smaller in comparison. With clipping, nothing changes if every
gradient was longer than 1 before, as the clipped vectors are the same. If some were shorter, all of them are now cut to
length 1, so that the steps lose their differences in size.

</details>
"""

# %% [markdown]
r"""
<details>
<summary><b>3.</b> The gradient of a parameter is +1 at every step. How long is the step, uncorrected, at t = 1 and after
very many steps? And if it alternates, +1, −1, +1, …?</summary>

Constant: $m = 1 - 0.9^t$ and $v = 1 - 0.999^t$, so the step is $f(t) \, \eta$: 3.16 η at first, η in the end.
Alternating: $v$ is the same, but $m$ goes to $\pm (1 - \beta_1) / (1 + \beta_1) = \pm 0.053$, so the step becomes $0.053 \, \eta$: nearly
twenty times shorter, for a gradient of the same size that cannot make up its mind.

</details>
"""

# %% [markdown]
r"""
## Further reading

- Kingma and Ba, [Adam: a method for stochastic optimization](https://arxiv.org/abs/1412.6980), 2014: the original, with bias correction.
- Loshchilov and Hutter, [Decoupled weight decay regularization](https://arxiv.org/abs/1711.05101), 2017: AdamW.
- Mosbach, Andriushchenko and Klakow, [On the stability of fine-tuning BERT](https://arxiv.org/abs/2006.04884), 2020: what the missing correction does to small tasks.
- Zhang and others, [Revisiting few-sample BERT fine-tuning](https://arxiv.org/abs/2006.05987), 2021: the same question, and other remedies.
- You and others, [Large batch optimization for deep learning: training BERT in 76 minutes](https://arxiv.org/abs/1904.00962), 2019: LAMB.

**Next:** [14 · Pre-training](14_pretraining.ipynb), where all of it runs for real.
The code of this notebook: [ops/optimise.py](../minibert/ops/optimise.py) ·
[train/optimiser.py](../minibert/train/optimiser.py) · [train/schedule.py](../minibert/train/schedule.py).
"""
