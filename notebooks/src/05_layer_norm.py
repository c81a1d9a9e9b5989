# %% [markdown]
r"""
# 05 · LayerNorm

BERT rescales every token's vector 25 times on its way from the words to the output (twice in each of its 12 layers, and
once before them). The forward pass is a few short lines. The backward pass is the first one in this course that nobody can guess,
and mistakes in it tend to stay unnoticed.

**You will** write LayerNorm, and see along which axis it works · derive its gradient in five small steps, each checked by itself ·
collapse them into the one line that the library runs · find the gradient of a layer that is not in this notebook · see which
tests would let a wrong one through.

**Before this:** [01 · Gradients](01_gradients.ipynb) (un-broadcasting, numeric gradients).
**Time:** 100 minutes with the exercises; it runs in seconds.

| letter | in this notebook |
|---|---|
| `B`, `S` | sequences in a batch, tokens in a sequence |
| `H` | hidden size: how many numbers describe a token |
| *row* | the `H` numbers of one token: LayerNorm works on each row by itself |
"""

# %%
import inspect

import matplotlib.pyplot as plt
import numpy as np

from minibert import BertConfig, BertModel, check, plots
from minibert.gradcheck import check as compare_with_numeric
from minibert.gradcheck import function_case
from minibert.ops.layer_normalisation import layer_norm, layer_norm_backward

plots.notebook_style()
np.set_printoptions(precision=3, suppress=True)
rng = np.random.default_rng(5)

# %% [markdown]
r"""
## 1. What it does

Take one row $x = (x_1, \dots, x_H)$. Subtract its mean and divide by its standard deviation. Then give every feature a
scale $\gamma_i$ and a shift $\beta_i$ of its own, which are learned:

$$
\mu = \frac1H \sum_i x_i, \qquad
\sigma = \sqrt{\frac1H \sum_i (x_i - \mu)^2 + \varepsilon}, \qquad
\hat x_i = \frac{x_i - \mu}{\sigma}, \qquad
y_i = \gamma_i \, \hat x_i + \beta_i .
$$

Here is a batch whose rows have very different means and spreads, as the sums that flow through a deep network do.
"""

# %%
B, S, H = 2, 4, 64
spread = np.array([0.1, 1.0, 3.0, 10.0, 0.3, 5.0, 2.0, 0.5]).reshape(B, S, 1)
middle = np.array([0.0, 4.0, -9.0, 12.0, 1.0, -3.0, 15.0, -6.0]).reshape(B, S, 1)
x = middle + spread * rng.standard_normal((B, S, H))  # (B, S, H)

gamma, beta, eps = np.ones(H), np.zeros(H), 1e-12  # what BERT starts with
y, cache = layer_norm(x, gamma, beta, eps)  # (B, S, H)

print("row      mean  after   deviation  after")
for row, (before, after) in enumerate(zip(x.reshape(-1, H), y.reshape(-1, H), strict=True)):
    means = f"{before.mean():9.3f} {abs(after.mean()):6.3f}"
    print(f"{row:3} {means} {before.std():11.3f} {after.std():6.3f}")

# %% tags=["figure"]
# Caption: Eight rows before and after. Each dot is a feature, and each bar is the mean of a row.
figure, axes = plt.subplots(1, 2, figsize=(7.5, 3.0))
for panel, rows, title in ((axes[0], x, "before: x"), (axes[1], y, "after: x̂")):
    for number, row in enumerate(rows.reshape(-1, H)):
        at = np.full(H, number)
        panel.scatter(row, at, s=14, alpha=0.35, linewidths=0, color=plots.BLUE)
        panel.scatter(row.mean(), number, s=160, marker="|", linewidths=2.5, color=plots.VERMILION)
    panel.set(title=title, xlabel="value of a feature", yticks=range(B * S))
    panel.invert_yaxis()
axes[0].set_ylabel("row (token)")
plt.show()

# %% [markdown]
r"""
Before LayerNorm, the next layer would have to cope with numbers from −17 to 40. Afterwards every row has mean 0 and
standard deviation 1, whatever it was before.

### Along which axis?

Along the last one, and no other. A token's result does not depend on its neighbours in the sequence or on the other
sequences in the batch. (BatchNorm is the opposite. It takes statistics *across* the batch, so it needs a large batch, and
it has to compute differently in training and in inference. LayerNorm always does the same.)
"""

# %%
changed = x.copy()
changed[0, 1] += 100.0 * rng.standard_normal(H)  # another token, somewhere else
y_changed, _ = layer_norm(changed, gamma, beta, eps)

differs = np.abs(y_changed - y).max(axis=-1) > 0  # (B, S)
print(differs.astype(int))
assert differs.sum() == 1

# %% [markdown]
r"""
### What it cannot see

Add a constant to a row, or multiply the row by a positive number, and $\hat x$ stays the same: the constant vanishes
with the mean, and the factor with the standard deviation. Remember these **two blind directions**. If the output does not move,
the derivative is zero, so we will meet them again in the gradient.
"""

# %%
shifted, _ = layer_norm(x + 7.0, gamma, beta, eps)
scaled, _ = layer_norm(3.0 * x, gamma, beta, eps)
print(f"shifted by 7:    y changes by at most {np.abs(shifted - y).max():.0e}")
print(f"multiplied by 3: y changes by at most {np.abs(scaled - y).max():.0e}")
assert np.allclose(shifted, y) and np.allclose(scaled, y)

# %% [markdown]
r"""
### What ε is for

It is there for just one case: a row whose features are all equal has variance 0, and 0/0 is not a number. With $\varepsilon =
10^{-12}$, as in BERT, such a row becomes $\hat x = 0$, so $y = \beta$. Note that ε is *inside* the root, and that the variance is
divided by $H$, not by $H - 1$. Libraries differ in these two details, and then their numbers differ, too.
"""

# %%
constant = np.full((1, H), 4.0)
with np.errstate(invalid="ignore", divide="ignore"):
    for epsilon in (1e-12, 0.0):
        y_constant, _ = layer_norm(constant, gamma, beta, epsilon)
        print(f"ε = {epsilon:<6}  y = {y_constant[0, :4]} …")

# %% [markdown]
r"""
### Your turn: the forward pass

@exercise 05.layer_norm

Write the formulas above as code, for rows of `H` numbers with any number of leading axes. Besides `y`, return a **cache** of what the
backward pass will need: $\hat x$, $1/\sigma$ and $\gamma$, in this order. $x$ is not among them: the gradient can be written without
it, as you will find out. ($1/\sigma$ is one number per row. Keep its last axis, of length 1, so that it broadcasts.)
"""


# %% tags=["solution"]
def my_layer_norm(x, weight, bias, eps):
    """LayerNorm over the last axis: y (…, H), (normalised, inverse_std, weight).

    x (…, H), weight γ and bias β (H,), eps a number. The cache is a tuple of x̂ (…, H), 1/σ (…, 1) and γ (H,).
    """
    centred = x - x.mean(axis=-1, keepdims=True)  # (…, H)
    variance = (centred * centred).mean(axis=-1, keepdims=True)  # (…, 1)
    inverse_std = 1.0 / np.sqrt(variance + eps)  # (…, 1)
    normalised = centred * inverse_std  # (…, H)
    return normalised * weight + bias, (normalised, inverse_std, weight)


# %%
check("05.layer_norm", my_layer_norm)

# %% [markdown] tags=["yours"]
r"""
What passes its check can become a part of your own BERT, which [20](20_your_bert.ipynb) puts together. `keep` writes it into the folder
`my_bert`.
"""

# %% tags=["yours"]
from minibert.course import keep

# %% tags=["yours"]
keep("05.layer_norm", my_layer_norm)

# %% [markdown] tags=["answer"]
r"""
### The library's forward pass

This code was not written for the lesson. It is what minibert runs wherever no faster version (a *kernel*) takes its place.
"""

# %% tags=["answer"]
print(inspect.getsource(layer_norm))

# %% [markdown]
r"""
These are the three parts of the cache, for the batch above:
"""

# %%
for name, part in zip(("normalised", "inverse_std", "weight"), cache, strict=True):
    print(f"{name:<12} {part.shape}")

# %% [markdown]
r"""
## 2. The easy part: γ and β

From here on, $dx$ is short for $\partial L / \partial x$: how the loss moves when $x$ does. It always has the shape of
$x$ itself. We are given $dy$ (`dout` in the code) and want $d\gamma$, $d\beta$ and $dx$.

### The scale and the shift

@exercise 05.scale_and_shift_backward

The last step of the forward pass was $y_i = \gamma_i \hat x_i + \beta_i$, with the *same* $\gamma_i$ and $\beta_i$ in every row. Take
$\hat x$ as given, and write $d\hat x$, $d\gamma$ and $d\beta$ for a batch of shape `(B, S, H)`. Each of them takes one line.
"""

# %% [markdown] tags=["derivation"]
r"""
What is used many times collects its gradient from all its uses:

$$
d\beta_i = \sum_{\text{rows}} dy_i, \qquad
d\gamma_i = \sum_{\text{rows}} dy_i \, \hat x_i, \qquad
d\hat x_i = \gamma_i \, dy_i .
$$

The sums run over both leading axes, `B` and `S`. $d\hat x$ has no sum, as each $\hat x_i$ was used only once.
"""


# %% tags=["solution"]
def my_scale_and_shift_backward(dout, cache):
    """The gradients of y = γ x̂ + β: dnormalised (B, S, H), dweight (H,), dbias (H,).

    dout (B, S, H); cache = (normalised, weight): x̂ (B, S, H) and γ (H,).
    """
    normalised, weight = cache
    dnormalised = dout * weight  # (B, S, H)
    dweight = (dout * normalised).sum(axis=(0, 1))  # (H,)
    dbias = dout.sum(axis=(0, 1))  # (H,)
    return dnormalised, dweight, dbias


# %%
check("05.scale_and_shift_backward", my_scale_and_shift_backward)

# %% [markdown]
r"""
From now on γ, β and the incoming gradient are **random**. [Section 7](#7.-When-does-a-check-pass-although-the-gradient-is-wrong?) shows why that matters.
"""

# %%
B, S, H = 2, 3, 6  # small, so that numeric gradients are quick
x = rng.standard_normal((B, S, H))
gamma, beta = rng.standard_normal(H), rng.standard_normal(H)
dout = rng.standard_normal((B, S, H))

y, cache = layer_norm(x, gamma, beta, eps)
normalised, inverse_std, _ = cache  # x̂ (B, S, H), 1/σ (B, S, 1)
dnormalised = dout * gamma  # dx̂ (B, S, H)

# %% [markdown] tags=["answer"]
r"""
Is it right? Try one number: move $\gamma_0$ a little to both sides and watch $L = \sum dy \cdot y$.
"""

# %% tags=["answer"]
_, dgamma, dbeta = my_scale_and_shift_backward(dout, (normalised, gamma))
step = np.zeros(H)
step[0] = 1e-5
above = (layer_norm(x, gamma + step, beta, eps)[0] * dout).sum()
below = (layer_norm(x, gamma - step, beta, eps)[0] * dout).sum()
print(f"numeric {(above - below) / 2e-5:.9f}\nby hand {dgamma[0]:.9f}")
assert np.isclose((above - below) / 2e-5, dgamma[0])

# %% [markdown]
r"""
## 3. Where does LayerNorm's dx come from?

The trouble is that every $x_j$ moves *every* $\hat x_i$ of its row, since it takes part in μ and σ. The way
out is always the same: cut the forward pass into steps so small that each derivative is obvious, then walk back through
them. For one row, the steps are:

| | forward | |
|---|---|---|
| 1 | $\mu = \frac1H \sum_i x_i$ | the mean |
| 2 | $c_i = x_i - \mu$ | centred |
| 3 | $v = \frac1H \sum_i c_i^2$ | the variance |
| 4 | $s = (v + \varepsilon)^{-1/2}$ | one over the standard deviation: $s = 1/\sigma$ |
| 5 | $\hat x_i = c_i \, s$ | normalised |
"""

# %% tags=["figure"]
# Caption: LayerNorm in five steps. x reaches x̂ on three paths.
NODES = {"x": (0, 0), "μ": (1, 1), "c": (2, 0), "v": (3.1, 1), "s": (4.6, 1), "x̂": (5.7, 0)}
FORWARD = [
    ("x", "μ", "mean"),
    ("x", "c", "x"),
    ("μ", "c", "− μ"),
    ("c", "v", "mean of c²"),
    ("v", "s", r"$(v + \varepsilon)^{-1/2}$"),
    ("c", "x̂", "c"),
    ("s", "x̂", "× s"),
]
figure, axes = plt.subplots(figsize=(7.5, 2.0))
plots.graph(axes, NODES, FORWARD)
figure.set_label(
    "LayerNorm as a graph of five steps: the mean μ of x, the centred c, the variance v, "
    "its inverse root s, and x̂, the product of c and s"
)
plt.show()

# %% [markdown]
r"""
$x$ reaches $\hat x$ on three paths: straight through $c$, through the mean, and through the variance. Where two arrows
*leave* a node, their gradients will be **added**. Here are the five steps as code:
"""


# %%
def forward_in_steps(x, eps):
    mu = x.mean(axis=-1, keepdims=True)  # 1  (B, S, 1)
    c = x - mu  # 2  (B, S, H)
    v = (c * c).mean(axis=-1, keepdims=True)  # 3  (B, S, 1)
    s = (v + eps) ** -0.5  # 4  (B, S, 1)
    return c * s, (c, s)  # 5  (B, S, H)


assert np.allclose(forward_in_steps(x, eps)[0], normalised)

# %% [markdown]
r"""
### Your turn: back through the steps

@exercise 05.backward_in_steps

$d\hat x$ comes in. Walk back from step 5 to step 1, and return what you find on the way: $ds$, $dv$, $dc$, $d\mu$ and $dx$. Each has
the shape of its namesake, and for $dc$ and $dx$ return the final values, with all their terms. The cache has no $v$, but you do not
need it: $(v + \varepsilon)^{-1/2}$ is $s$. `check` has a row for each of the five, so it can tell you how far you have come.
"""

# %% [markdown] tags=["derivation"]
r"""
From the last step to the first:

**Step 5**, $\hat x_i = c_i s$. Use the product rule. $s$ was used by all $H$ features, so it collects a sum:

$$ ds = \sum_i d\hat x_i \, c_i , \qquad dc_i \mathrel{+}= d\hat x_i \, s . $$

**Step 4**, $s = (v + \varepsilon)^{-1/2}$. The derivative is $-\frac12 (v + \varepsilon)^{-3/2}$, which is $-\frac12
s^3$. So no root has to be computed again.

$$ dv = -\tfrac12 \, s^3 \, ds . $$

**Step 3**, $v = \frac1H \sum_i c_i^2$. Each $c_i$ has its own term, with derivative $\frac2H c_i$. This is the second
arrow that leaves $c$, hence the `+=`:

$$ dc_i \mathrel{+}= \tfrac2H \, c_i \, dv . $$

**Step 2**, $c_i = x_i - \mu$. $x_i$ gets the gradient as it is. μ was subtracted from every feature, so it collects
the gradients of all, with a minus sign:

$$ dx_i \mathrel{+}= dc_i , \qquad d\mu = - \sum_i dc_i . $$

**Step 1**, $\mu = \frac1H \sum_i x_i$. Every $x_i$ has a share of $1/H$:

$$ dx_i \mathrel{+}= \tfrac1H \, d\mu . $$
"""

# %% [markdown] tags=["answer"]
r"""
The same graph with its arrows turned around shows what we have done. Every arrow that came in now goes out, and where
two arrive, their gradients are added.
"""

# %% tags=["figure", "answer"]
# Caption: The same graph backwards. What an arrow carries is written beside it. Where two arrive,
#   what they carry is added.
BACKWARD = [
    ("x̂", "s", "Σ dx̂ c"),
    ("x̂", "c", "s dx̂"),
    ("s", "v", "−½ s³ ds"),
    ("v", "c", "2/H c dv"),
    ("c", "μ", "−Σ dc"),
    ("c", "x", "dc"),
    ("μ", "x", "dμ/H"),
]
figure, axes = plt.subplots(figsize=(7.5, 2.0))
plots.graph(axes, NODES, BACKWARD, colour=plots.VERMILION)
figure.set_label(
    "The same graph backwards: dx̂ reaches c directly and through s and the variance, and "
    "dc reaches x directly and through the mean"
)
plt.show()


# %% tags=["solution"]
def my_backward_in_steps(dnormalised, cache):
    """The gradients of forward_in_steps: ds (…, 1), dv (…, 1), dc (…, H), dmu (…, 1), dx (…, H).

    dnormalised dx̂ (…, H); cache = (c, s): c = x − μ (…, H) and s = 1/σ (…, 1).
    """
    c, s = cache
    H = c.shape[-1]
    ds = (dnormalised * c).sum(axis=-1, keepdims=True)  # 5: x̂ = c s
    dc = dnormalised * s
    dv = -0.5 * s**3 * ds  # 4: s = (v + ε)^−½
    dc += 2.0 / H * c * dv  # 3: v = mean(c²)
    dmu = -dc.sum(axis=-1, keepdims=True)  # 2: c = x − μ
    dx = dc + dmu / H  # 2, and 1: μ = mean(x)
    return ds, dv, dc, dmu, dx


# %%
check("05.backward_in_steps", my_backward_in_steps)

# %% [markdown] tags=["answer"]
r"""
`check` has compared each of them with a numeric gradient. You can do that yourself for any function. `function_case` takes a forward
pass and its backward pass. The check draws a random `dout`, moves each number of `x` by $\pm 10^{-5}$, and reports
$\lVert a - n \rVert / (\lVert a \rVert + \lVert n \rVert)$. The bound is $10^{-7}$.
"""

# %% tags=["answer"]
in_steps = function_case(
    "in steps",
    lambda x: forward_in_steps(x, eps),
    lambda dx_hat, cache: my_backward_in_steps(dx_hat, cache)[-1],
    {"x": x},
)
[row] = compare_with_numeric(in_steps)
print(row)
assert row.ok

# %% [markdown]
r"""
## 4. Five steps become one line

The five steps are right, and you could stop here. But if you substitute each step into the next, something simple appears: $ds$,
$dv$ and $d\mu$ vanish, and with them $c$ and the power of $s$. What is left is written with $d\hat x$, $\hat x$ and $1/\sigma$ alone,
all of which are at hand.

Do it on paper before you read on. Write $\overline{a} = \frac1H \sum_i a_i$ for a mean over the row. You will need two facts:
$c_i = \hat x_i / s$ (step 5, read backwards), and $\sum_i \hat x_i = 0$ (the row was centred). First find $dc$, then $d\mu$.
"""

# %% [markdown] tags=["derivation"]
r"""
**First, $dc$.** Insert step 4 into step 3, then step 5 into that, then $c = \hat x / s$:

$$
\begin{aligned}
dc_i &= s \, d\hat x_i + \tfrac2H \, c_i \, dv \\
&= s \, d\hat x_i + \tfrac2H \, c_i \left( -\tfrac12 s^3 \, ds \right) \\
&= s \, d\hat x_i - \tfrac1H \, s^3 \, c_i \sum_j d\hat x_j \, c_j \\
&= s \, d\hat x_i - \tfrac1H \, s^3 \, \frac{\hat x_i}{s} \sum_j d\hat x_j \, \frac{\hat x_j}{s} \\
&= s \left( d\hat x_i - \hat x_i \, \overline{d\hat x \, \hat x} \right) .
\end{aligned}
$$

**Then, $d\mu$.** The second term vanishes, because $\sum_i \hat x_i = 0$:

$$
d\mu = - \sum_i dc_i
= - s \Big( \sum_i d\hat x_i - \overline{d\hat x \, \hat x} \, \underbrace{\sum_i \hat x_i}_{0} \Big)
= - s \, H \, \overline{d\hat x} .
$$

**Together**, $dx_i = dc_i + \frac1H d\mu$:

$$
\boxed{ \; dx_i = \frac1\sigma \left( d\hat x_i \;-\; \overline{d\hat x} \;-\; \hat x_i \; \overline{d\hat x \, \hat x} \right),
\qquad d\hat x = \gamma \, dy \; }
$$

In words: the incoming gradient, minus its mean, minus its share along $\hat x$, all divided by σ. And indeed, there is no $x$ in it.
"""

# %% tags=["answer"]
of_library, _, _ = layer_norm_backward(dout, cache)  # computes that formula
*_, in_five_steps = my_backward_in_steps(dnormalised, forward_in_steps(x, eps)[1])
print(f"largest difference: {np.abs(of_library - in_five_steps).max():.0e}")
assert np.allclose(of_library, in_five_steps, rtol=0, atol=1e-13)

# %% [markdown]
r"""
## 5. Your turn: the fused backward pass

@exercise 05.layer_norm_backward

Write the function as the library has it: all three gradients, from `dout` and the cache of the forward pass. `dout` may have any
number of leading axes, not only two: the head that predicts masked words normalises only the P rows that were chosen,
`(P, H)`. The function needs no loop and no $x$. It takes about seven lines.

`check` calls it with random γ, β and `dout`, in float64, and compares the result with the numeric gradient *and* with the
library. If it recognises a mistake that people often make, it tells you which one.
"""


# %% tags=["solution"]
def my_layer_norm_backward(dout, cache):
    """The gradients of LayerNorm: dx (…, H), dweight (H,), dbias (H,).

    dout (…, H); cache = (normalised, inverse_std, weight): x̂ (…, H), 1/σ (…, 1) and γ (H,).
    """
    normalised, inverse_std, weight = cache
    rows = tuple(range(dout.ndim - 1))  # all axes but the last
    dweight = (dout * normalised).sum(axis=rows)  # (H,)
    dbias = dout.sum(axis=rows)  # (H,)
    dnormalised = dout * weight  # (…, H)
    mean = dnormalised.mean(axis=-1, keepdims=True)  # (…, 1)
    projection = (dnormalised * normalised).mean(axis=-1, keepdims=True)  # (…, 1)
    return (dnormalised - mean - normalised * projection) * inverse_std, dweight, dbias


# %%
check("05.layer_norm_backward", my_layer_norm_backward)

# %% tags=["yours"]
keep("05.layer_norm_backward", my_layer_norm_backward)

# %% [markdown] tags=["answer"]
r"""
Here is the library's own function. The derivation is where it belongs: next to the code.
"""

# %% tags=["answer"]
print(inspect.getsource(layer_norm_backward))

# %% [markdown]
r"""
## 6. What the line does

### The Jacobian of a row

Read off the factor of $d\hat x_i$ in $dx_j$, and you have the whole matrix of partial derivatives of one row:

$$
\frac{\partial \hat x_i}{\partial x_j}
= \frac1\sigma \left( \delta_{ij} - \frac1H - \frac{\hat x_i \hat x_j}{H} \right) .
$$

There is one term for each path through the graph: straight, through the mean, and through the variance. Nobody ever stores this
matrix (`H × H` for every token), but for one small row we can. Measure it column by column, and compare.
"""

# %%
one_line, _, _ = layer_norm_backward(dout, cache)  # the library's dx, (B, S, H)
row = x[0, 0]  # (H,)
x_hat, s = normalised[0, 0], inverse_std[0, 0, 0]

measured = np.empty((H, H))
for j, step in enumerate(1e-5 * np.eye(H)):
    above, below = forward_in_steps(row + step, eps)[0], forward_in_steps(row - step, eps)[0]
    measured[:, j] = (above - below) / 2e-5

straight = np.eye(H)
through_mean = -np.ones((H, H)) / H
through_variance = -np.outer(x_hat, x_hat) / H
derived = s * (straight + through_mean + through_variance)
print(f"largest difference: {np.abs(measured - derived).max():.0e}")
assert np.allclose(measured, derived, atol=1e-8)

# %% tags=["figure"]
# Caption: The Jacobian of one row of six features: its three terms, and their sum.
figure, axes = plt.subplots(1, 4, figsize=(7.5, 2.5))
parts = {
    "straight": straight,
    "through the mean": through_mean,
    "through the variance": through_variance,
    "sum = σ ∂x̂/∂x": straight + through_mean + through_variance,
}
for panel, (title, part) in zip(axes, parts.items(), strict=True):
    image = plots.heatmap(panel, part, limit=1.0)
    panel.set_title(title, fontsize=9.5)
    panel.set_xlabel("j")
axes[0].set_ylabel("i", rotation=0)
figure.colorbar(image, ax=axes, shrink=0.8)
plt.show()

# %% [markdown]
r"""
This matrix is (up to $1/\sigma$) a **projection**: it keeps all of a gradient except for two directions, $(1, \dots, 1)$ and
$\hat x$. Those are the two blind directions of section 1: a shift of the row and a scaling of it. What the output does
not see, the gradient does not ask for. So you can test any $dx$ without knowing the right answer: each row of it sums
to 0, and so does each row of $dx \cdot \hat x$.

(The second statement is exact only for $\varepsilon = 0$; with an ε, scaling is not *quite* invisible.)
"""

# %%
eigenvalues = np.linalg.eigvalsh(straight + through_mean + through_variance)
print("eigenvalues:", np.abs(eigenvalues))
print(f"row sums of dx:     at most {np.abs(one_line.sum(axis=-1)).max():.0e}")
print(f"row sums of dx · x̂: at most {np.abs((one_line * normalised).sum(axis=-1)).max():.0e}")
assert np.allclose(np.sort(np.abs(eigenvalues)), [0, 0, 1, 1, 1, 1])

# %% tags=["figure"]
# Caption: LayerNorm's backward pass takes two things out of a gradient: its mean, and what points
#   along x̂.
figure, axes = plt.subplots(figsize=(7.5, 3.0))
incoming = dnormalised[0, 0]  # (H,)
bars = {
    "dx̂, what comes in": (incoming, plots.GREY),
    "its mean": (np.full(H, incoming.mean()), plots.ORANGE),
    "its share along x̂": (x_hat * (incoming * x_hat).mean(), plots.SKY),
    "σ dx, what is left": (one_line[0, 0] / s, plots.BLUE),
}
for i, (label, (heights, colour)) in enumerate(bars.items()):
    axes.bar(np.arange(H) + 0.2 * (i - 1.5), heights, width=0.19, color=colour, label=label)
axes.axhline(0, color="black", linewidth=0.8)
axes.set(title="one row of the gradient, before and after", xlabel="feature", xticks=range(H))
axes.grid(False, axis="x")
axes.legend(ncols=2, fontsize=9)
plt.show()

# %% [markdown]
r"""
The last factor, $1/\sigma$, inverts the scale of the gradient: a row with numbers ten times as large gets a
gradient a tenth as large. Measured against the size of its row, the gradient is always the same (last column). In
absolute numbers it is not: a row that hardly varies gets a large gradient.
"""

# %%
for factor in (0.1, 1.0, 10.0, 100.0):
    _, scaled_cache = layer_norm(factor * x, gamma, beta, eps)
    dx, _, _ = layer_norm_backward(dout, scaled_cache)
    size = np.linalg.norm(dx)
    print(f"x × {factor:<5}  ‖dx‖ = {size:8.4f}   ‖dx‖ × factor = {size * factor:.4f}")

# %% [markdown]
r"""
### Open: a norm that subtracts nothing

@exercise 05.rms_norm_backward

T5, Llama and many other models have a simpler layer, **RMSNorm**. It subtracts no mean and adds no β. It only divides by
the root mean square of the row, and scales the result:

$$
r = \sqrt{\frac1H \sum_i x_i^2 + \varepsilon}, \qquad
\hat x_i = \frac{x_i}{r}, \qquad
y_i = \gamma_i \, \hat x_i .
$$
"""


# %%
def rms_norm(x, weight, eps):
    inverse_rms = 1.0 / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps)  # 1/r (…, 1)
    normalised = x * inverse_rms  # x̂ (…, H)
    return normalised * weight, (normalised, inverse_rms, weight)


# %% [markdown]
r"""
Its gradient is not in this notebook, but you know the way to it. Begin with a question: which of the two blind
directions does this layer still have? The answer tells you how to test your $dx$ before `check` does.
"""

# %% [markdown] tags=["derivation"]
r"""
There are three steps, $v = \frac1H \sum_i x_i^2$, then $s = (v + \varepsilon)^{-1/2} = 1/r$, then $\hat x_i = x_i \, s$. $x$ is used
in two of them:

$$
ds = \sum_i d\hat x_i \, x_i, \qquad dv = -\tfrac12 s^3 \, ds, \qquad
dx_i = s \, d\hat x_i + \tfrac2H \, x_i \, dv .
$$

That is exactly the $dc$ of LayerNorm, with $x$ in the place of $c$. So it collapses in the same way, with $x_i = \hat x_i / s$:

$$ dx_i = \frac1r \left( d\hat x_i - \hat x_i \; \overline{d\hat x \, \hat x} \right), \qquad d\hat x = \gamma \, dy . $$

Scaling a row is still invisible, so the row sums of $dx \cdot \hat x$ are 0 (exactly, if $\varepsilon = 0$). A shift is visible:
nothing takes the mean away, so the rows of $dx$ need not sum to 0.
"""


# %% tags=["solution"]
def my_rms_norm_backward(dout, cache):
    """The gradients of rms_norm: dx (…, H), dweight (H,).

    dout (…, H); cache = (normalised, inverse_rms, weight): x̂ (…, H), 1/r (…, 1) and γ (H,).
    """
    normalised, inverse_rms, weight = cache
    dweight = (dout * normalised).sum(axis=tuple(range(dout.ndim - 1)))  # (H,)
    dnormalised = dout * weight  # (…, H)
    projection = (dnormalised * normalised).mean(axis=-1, keepdims=True)  # (…, 1)
    return (dnormalised - normalised * projection) * inverse_rms, dweight


# %%
check("05.rms_norm_backward", my_rms_norm_backward)

# %% [markdown]
r"""
## 7. When does a check pass although the gradient is wrong?

Here are four mistakes that people make.
"""


# %%
def gamma_outside(dout, cache):
    normalised, inverse_std, weight = cache
    dx, dweight, dbias = layer_norm_backward(dout, (normalised, inverse_std, np.ones_like(weight)))
    return dx * weight, dweight, dbias  # γ multiplies the result instead of dout


def no_way_through_variance(dout, cache):
    _, inverse_std, weight = cache
    dnormalised = dout * weight
    dx = (dnormalised - dnormalised.mean(axis=-1, keepdims=True)) * inverse_std
    return dx, *layer_norm_backward(dout, cache)[1:]


def no_way_through_mean(dout, cache):
    normalised, inverse_std, weight = cache
    dnormalised = dout * weight
    projection = (dnormalised * normalised).mean(axis=-1, keepdims=True)
    dx = (dnormalised - normalised * projection) * inverse_std
    return dx, *layer_norm_backward(dout, cache)[1:]


def mean_over_batch(dout, cache):
    dx, dweight, dbias = layer_norm_backward(dout, cache)
    return dx, dweight / len(dout), dbias / len(dout)  # the "average gradient"


MISTAKES = {
    "γ outside the means": gamma_outside,
    "no term through σ": no_way_through_variance,
    "no term through μ": no_way_through_mean,
    "mean over the batch": mean_over_batch,
}

# %% [markdown]
r"""
Now test each in four ways: with γ = 1; with γ = 1 and a `dout` of ones (that is $L = \sum y$, "just sum the output"); with a single
sequence; and properly. The number says how far the wrong gradient is from the right one, over all three gradients together.
"""


# %%
def relative_error(mistake, sequences=2, random_gamma=True, random_dout=True):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((sequences, 3, 6))
    gamma = rng.standard_normal(6) if random_gamma else np.ones(6)
    dout = rng.standard_normal(x.shape) if random_dout else np.ones(x.shape)
    _, cache = layer_norm(x, gamma, np.zeros(6), eps)
    wrong = np.concatenate([part.ravel() for part in mistake(dout, cache)])
    right = np.concatenate([part.ravel() for part in layer_norm_backward(dout, cache)])
    return np.linalg.norm(wrong - right) / (np.linalg.norm(wrong) + np.linalg.norm(right))


TESTS = {
    "γ = 1": {"random_gamma": False},
    "γ = 1,\ndout = 1": {"random_gamma": False, "random_dout": False},
    "B = 1": {"sequences": 1},
    "all random,\nB = 2": {},
}
tests = TESTS.values()
errors = np.array([[relative_error(f, **test) for test in tests] for f in MISTAKES.values()])
assert (errors[:, -1] > 0.01).all()  # the proper test sees every mistake …
assert (errors[:, :-1].min(axis=0) < 1e-12).all()  # … and each of the others misses one

# %% tags=["figure"]
# Caption: How far each wrong gradient (rows) is from the right one in each test (columns). At 0.00
#   the test calls it right.
figure, axes = plt.subplots(figsize=(6.5, 2.9))
plots.heatmap(axes, errors, digits=2)
axes.set_aspect("auto")
axes.set_xticks(range(len(TESTS)), TESTS)
axes.set_yticks(range(len(MISTAKES)), MISTAKES)
axes.xaxis.tick_top()
plt.show()

# %% [markdown]
r"""
Every 0.00 is a wrong gradient that a test would have passed, and **each of the first three tests misses at least
one**. A test that starts from a fresh model has γ = 1. A test that sums the output has a `dout` of ones. If γ = 1, its
$dx$ is 0, because a sum of centred numbers cannot move. Only the last column is a real test.

There is one more way to fool yourself, in the other direction. In float32 the *right* gradient looks wrong, since the
rounding of the losses is divided by the step.
"""


# %%
def numeric_dx(dtype, h=1e-5):
    row, weight, bias, drow = (array.astype(dtype) for array in (x[0, 0], gamma, beta, dout[0, 0]))
    numeric = []
    for step in h * np.eye(H, dtype=dtype):
        above, _ = layer_norm(row + step, weight, bias, eps)
        below, _ = layer_norm(row - step, weight, bias, eps)
        numeric.append(((above - below) * drow).sum() / (2 * h))
    return np.array(numeric)


right = one_line[0, 0]
for dtype in ("float32", "float64"):
    numeric = numeric_dx(dtype)
    error = np.linalg.norm(numeric - right) / (np.linalg.norm(numeric) + np.linalg.norm(right))
    print(f"numeric gradient in {dtype}: a right dx is off by {error:.0e}")

# %% [markdown]
r"""
## 8. In BERT

The published model has one LayerNorm after the embeddings and two in each layer: after attention and after
the feed-forward network. Each time it normalises the *sum* of the sublayer's input and output ("post-LN").
[10 · The encoder](10_encoder.ipynb) explains why it is there, and what happens if it is put elsewhere. The head that predicts masked
words adds one more.
"""

# %%
model = BertModel(BertConfig.preset("mini"))
weights = [name for name, _ in model.named_parameters() if name.endswith("LayerNorm.weight")]
print(*weights, sep="\n")
print(f"\n{len(weights)} = 2 × {model.config.num_hidden_layers} + 1")

# %% [markdown]
r"""
There are many of them, but they are light, with only 2`H` numbers each.
"""

# %%
base = BertConfig.preset("base")
norms = 2 * base.num_hidden_layers + 1
print(f"BERT-base: {norms} LayerNorms, {norms * 2 * base.hidden_size:,} of 110 million parameters")

# %% [markdown]
r"""
### The tempting shortcut

The variance is also $\overline{x^2} - \mu^2$, and that needs only one pass over the row. In float32 this is a trap. If the
mean is large compared with the spread, two almost equal numbers are subtracted, and only their rounding is
left. The result can even be negative, and then its root is NaN. The library subtracts the mean *first*.
"""

# %%
offsets = 10.0 ** np.arange(0, 5)
noise = rng.standard_normal((1000, 256))  # (rows, H)
true = noise.var(axis=-1)
errors_of = {"mean of (x − μ)²": [], "mean of x², − μ²": []}
for offset in offsets:
    row = (noise + offset).astype(np.float32)
    mu = row.mean(axis=-1, keepdims=True)
    two_pass = ((row - mu) ** 2).mean(axis=-1)
    one_pass = (row * row).mean(axis=-1) - mu[:, 0] ** 2
    for name, variance in zip(errors_of, (two_pass, one_pass), strict=True):
        errors_of[name].append(np.abs(variance / true - 1).max())
assert one_pass.min() < 0 < two_pass.min()

# %% tags=["figure"]
# Caption: Subtracting two large numbers loses all digits. Subtracting the mean first loses only what float32 has already rounded off x.
figure, axes = plt.subplots(figsize=(6.5, 3.0))
for (name, values), colour in zip(errors_of.items(), (plots.BLUE, plots.VERMILION), strict=True):
    axes.loglog(offsets, values, "o-", color=colour, label=name)
axes.axhline(1, color=plots.GREY, linestyle="--", linewidth=1)
axes.text(1, 1.4, "nothing is right any more", color=plots.GREY, fontsize=9)
axes.set(
    title="variance in float32",
    xlabel="mean of the row (its deviation is 1)",
    ylabel="relative error",
)
axes.set_ylim(2e-9, 200)
axes.legend(loc="lower right")
plt.show()

# %% [markdown]
r"""
## Recap

- LayerNorm gives every row mean 0 and standard deviation 1, then a learned scale γ and shift β per feature. Rows do not
  see each other.
- $d\gamma$ and $d\beta$ sum over all rows, since all rows used γ and β. $d\hat x = \gamma \, dy$.
- $x$ reaches $\hat x$ on three paths, so $dx$ has three terms:
  $dx = (d\hat x - \overline{d\hat x} - \hat x \, \overline{d\hat x \hat x}) / \sigma$.
- It is a projection: nothing is left along $(1, \dots, 1)$ and along $\hat x$, the two directions in which the output does not
  change.

## What usually goes wrong

- **γ outside the means.** Both means are of $d\hat x = \gamma \, dy$, not of $dy$. The mistake is invisible while γ = 1.
- **A path forgotten.** μ or σ is treated as a constant. With γ = 1, a `dout` of ones hides the latter.
- **The wrong axis.** Means over `(S, H)` instead of `H`, or $d\gamma$ summed over `B` and not over `S`.
- **A missing `keepdims=True`.** NumPy complains, unless there happen to be as many rows as features.
- **Other conventions.** With ε outside the root, or `H − 1` in the variance, a model trains well enough, but published weights
  then give other numbers.

## Three questions

Answer before you unfold.
"""

# %% [markdown]
r"""
<details>
<summary><b>1.</b> All features of a row get the same <code>dout</code>, and γ = 1. What is dx, and how can you know without
computing anything?</summary>

It is zero. The loss is then a multiple of $\sum_i \hat x_i$, which is 0 whatever $x$ is. In the formula, $d\hat x$ equals its
own mean, and $\overline{d\hat x \, \hat x} = d\hat x \cdot \overline{\hat x} = 0$.

</details>
"""

# %% [markdown]
r"""
<details>
<summary><b>2.</b> The layer in front of a LayerNorm has a bias, with one number for each feature. Is it of any
use? And would a single number be, the same for all features?</summary>

A bias vector is of use: it shifts features relative to each other, which $\hat x$ shows. But its mean over the
features is lost, as a constant that is added to the whole row vanishes with μ. A single number for all
features would be of no use. Its gradient, the sum of all of $dx$, would always be 0.

</details>
"""

# %% [markdown]
r"""
<details>
<summary><b>3.</b> You multiply all weights of the linear layer in front of a LayerNorm (no bias, no residual) by 10. What
happens to the output, and to the gradient of those weights?</summary>

Nothing happens to the output. The rows $x$ are ten times as large, and so is σ, so $dx$ is a tenth of what it was. The gradient of
the weights is $dx$ times the layer's input, so it is a tenth, too: the larger such weights have grown, the more slowly they
turn. (That is one reason why the size of a step is best judged in relation to the size of the weights; see
[13 · The optimiser](13_optimiser.ipynb).)

</details>
"""

# %% [markdown]
r"""
## Further reading

- Ba, Kiros and Hinton, [Layer normalization](https://arxiv.org/abs/1607.06450), 2016: the original, and which changes of its input it cannot see.
- Ioffe and Szegedy, [Batch normalization](https://arxiv.org/abs/1502.03167), 2015: the forerunner, which normalises along the other axis.
- Zhang and Sennrich, [Root mean square layer normalization](https://arxiv.org/abs/1910.07467), 2019: the norm that subtracts nothing.
- Xu and others, [Understanding and improving layer normalization](https://arxiv.org/abs/1911.07013), 2019: evidence that its backward pass matters more than its forward pass.

**Next:** [06 · Embeddings](06_embeddings.ipynb), where the forward pass is a look-up and the trap is in the backward pass.
The code of this notebook: [layer_normalisation.py](../minibert/ops/layer_normalisation.py).
"""
