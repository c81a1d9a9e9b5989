# %% [markdown]
r"""
# 04 · GELU and dropout

This notebook is about two operations that treat every number by itself and have no weights. Without the first, the two linear maps
of a feed-forward network could do no more than a single one. The second makes training random on purpose, and is a favourite place
for silent mistakes.

**You will** write GELU, and derive the gradients of both its forms · see what happens to ReLU units that stop learning · find the
gradient of a learned gate on your own · say why dropout divides by 1 − p, and check it · write its backward pass, which needs the
random numbers of the forward pass again.

**Before this:** [01 · Gradients](01_gradients.ipynb) (chain rule, numeric gradients), [02 · Linear](02_linear.ipynb).
**Time:** two hours with the exercises; it runs in seconds.

| letter | in this notebook |
|---|---|
| `B`, `S`, `H` | sequences in a batch, tokens in a sequence, numbers that describe a token |
| *p* | the probability with which dropout sets a number to 0 |
"""

# %%
import inspect
import math

import matplotlib.pyplot as plt
import numpy as np

from minibert import BertConfig, BertModel, check, plots
from minibert.arrays import erf
from minibert.dropout_bits import dropout_key, dropout_stream
from minibert.gradcheck import check as compare_with_numeric
from minibert.gradcheck import function_case
from minibert.nn import Context, Dropout
from minibert.ops.activations import (
    ACTIVATIONS,
    gelu,
    gelu_backward,
    gelu_tanh,
    gelu_tanh_backward,
    relu,
    relu_backward,
)
from minibert.ops.inverted_dropout import dropout, dropout_backward, dropout_mask, dropout_threshold
from minibert.ops.linear_map import linear, linear_backward

plots.notebook_style()
np.set_printoptions(precision=3, suppress=True)
rng = np.random.default_rng(4)

# %% [markdown]
r"""
## 1. What GELU does

Why have anything between two linear layers? Because without it they are one layer:
$(x A^\top) B^\top = x \, (BA)^\top$. Something has to bend. A function that bends each number by itself is called an
**activation**. ReLU, $\max(x, 0)$, bends in the hardest way: it lets a number pass, or it does not. GELU, the Gaussian error linear unit, is a softer gate:

$$ y = x \, \Phi(x), \qquad \Phi(x) = \tfrac12 \left( 1 + \operatorname{erf} \frac{x}{\sqrt2} \right) . $$

$\Phi(x)$ is the share of a standard normal distribution that lies below $x$: 0 far to the left, ½ at 0, 1 far to the
right. (Such an area has no formula in simpler functions. So the integral was given a name, the *error function*
$\operatorname{erf} t = \frac{2}{\sqrt\pi} \int_0^t e^{-s^2} \, ds$.) So large numbers pass whole, very negative numbers become 0,
and of those in between a part passes.

### Your turn: GELU

@exercise 04.gelu

Write GELU for arrays of any shape. The cache is a tuple with one array, `(x,)`.
"""


# %% tags=["solution"]
def my_gelu(x):
    """x times the share of a standard normal distribution below x: y, of the shape of x, and (x,).

    x, any shape. The cache is a tuple with one array, x as it came in.
    """
    share = 0.5 * (1 + erf(x / math.sqrt(2)))
    return x * share, (x,)


# %%
check("04.gelu", my_gelu)

# %% [markdown] tags=["yours"]
r"""
What passes its check can become a part of your own BERT, which [20](20_your_bert.ipynb) puts together. `keep` writes it into the folder
`my_bert`.
"""

# %% tags=["yours"]
from minibert.course import keep

# %% tags=["yours"]
keep("04.gelu", my_gelu)

# %% tags=["answer"]
print(inspect.getsource(gelu))

# %% [markdown]
r"""
What does it look like?
"""

# %%
x = np.linspace(-4, 4, 801)
y, _ = gelu(x)
print(f"lowest point: x = {x[y.argmin()]:.2f}, y = {y.min():.2f}")

# %% tags=["figure"]
# Caption: Left: the share of x that passes. Right: x times that share, which is GELU, with ReLU for
#   comparison.
figure, axes = plt.subplots(1, 2, figsize=(7.5, 3.0))
axes[0].plot(x, 0.5 * (1 + erf(x / math.sqrt(2))), color=plots.GREEN)
axes[0].set(title="Φ(x), the share that passes", xlabel="x", yticks=[0, 0.5, 1])
axes[1].plot(x, y, label="GELU")
axes[1].plot(x, relu(x)[0], color=plots.VERMILION, linestyle="--", label="ReLU")
axes[1].set(title="x Φ(x)", xlabel="x")
axes[1].legend()
plt.show()

# %% [markdown]
r"""
Unlike ReLU, it has no corner, and it is not monotonic: to the left of −0.75 it rises again towards 0.

Where does $x \Phi(x)$ come from? Imagine a random gate: draw a standard normal number $z$, and let $x$ pass if $z < x$;
otherwise return 0. The larger $x$ is, the more likely it is to pass. GELU is the **average** over all draws, so nothing random is
left. (In section 6 the dice come back.)
"""

# %%
z = rng.standard_normal(200_000)
for value in (-1.0, 0.5, 2.0):
    average = np.where(z < value, value, 0.0).mean()
    print(
        f"x = {value:4.1f}   random gate, on average {average:6.3f}   x Φ(x) = {gelu(np.array(value))[0]:6.3f}"
    )

# %% [markdown]
r"""
## 2. Its derivative

$dx$ is short for $\partial L / \partial x$, and `dout` is the $dy$ that comes in. Each $y$ depends only on its own $x$, so
there is no sum over other elements: $dx = dy \cdot y'(x)$. To find $y'$, take GELU apart.

### One step at a time

@exercise 04.gelu_backward_in_steps

Here is GELU in three steps. The cache has everything that you may need:
"""


# %%
def gelu_in_steps(x):
    u = x / math.sqrt(2)
    gate = 0.5 * (1 + erf(u))
    y = x * gate
    return y, (x, u, gate)


assert np.allclose(gelu_in_steps(x)[0], y)

# %% [markdown]
r"""
Walk back through the steps, the last one first. In how many of them is $x$ used? You will need the derivative of erf, which follows
from its integral: $\operatorname{erf}'(t) = \frac{2}{\sqrt\pi} \, e^{-t^2}$.
"""

# %% [markdown] tags=["derivation"]
r"""
The last step is a product, so each factor gets $dy$ times the other one: $dgate = dy \cdot x$, and $x$ gets $dy \cdot gate$.
In the middle step, $gate$ moves with half the slope of erf:

$$ du = dgate \cdot \tfrac12 \cdot \tfrac{2}{\sqrt\pi} \, e^{-u^2} = dgate \cdot \tfrac{1}{\sqrt\pi} \, e^{-u^2} . $$

In the first step, $x$ is used once more, and gets $du / \sqrt2$. Its two shares add up: $dx = dy \cdot gate + du / \sqrt2$.
"""


# %% tags=["solution"]
def my_gelu_backward_in_steps(dout, cache):
    """The gradients of gelu_in_steps: dgate, du, dx, each of the shape of x.

    dout, any shape; cache = (x, u, gate).
    """
    x, u, gate = cache
    dgate = dout * x
    du = dgate * np.exp(-u * u) / math.sqrt(math.pi)
    dx = dout * gate + du / math.sqrt(2)
    return dgate, du, dx


# %%
check("04.gelu_backward_in_steps", my_gelu_backward_in_steps)

# %% [markdown]
r"""
## 3. Your turn: GELU's backward pass

@exercise 04.gelu_backward

Now do the same without the intermediate steps. GELU is $x \, \Phi(x)$, so the product rule needs $\Phi'$. Φ is an area up to $x$.
What is the derivative of an area? Your steps contain it, too, in other letters.

The cache is `(x,)`. `erf` from `minibert.arrays` works on arrays.
"""

# %% [markdown] tags=["derivation"]
r"""
By the product rule,

$$ y' = \Phi(x) + x \, \Phi'(x) . $$

Φ is an area up to $x$, so its derivative is the height there: the normal density. From the formula,
with $\operatorname{erf}'(t) = \frac{2}{\sqrt\pi} e^{-t^2}$ and the chain rule:

$$
\Phi'(x) = \frac12 \cdot \frac{2}{\sqrt\pi} \, e^{-x^2/2} \cdot \frac{1}{\sqrt2}
= \frac{1}{\sqrt{2\pi}} \, e^{-x^2/2} =: \varphi(x),
\qquad
\boxed{ \; dx = dy \, \left( \Phi(x) + x \, \varphi(x) \right) \; }
$$
"""


# %% tags=["solution"]
def my_gelu_backward(dout, cache):
    """The gradient of y = x Φ(x): dx, of the shape of x.

    dout, any shape; cache = (x,).
    """
    (x,) = cache
    cdf = 0.5 * (1 + erf(x / math.sqrt(2)))
    density = np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
    return dout * (cdf + x * density)


# %%
check("04.gelu_backward", my_gelu_backward)

# %% tags=["yours"]
keep("04.gelu_backward", my_gelu_backward)

# %% tags=["answer"]
print(inspect.getsource(gelu_backward))

# %% [markdown]
r"""
### What it looks like

Here are a few points, compared with the numeric derivative:
"""

# %%
for value in (-2.0, -0.5, 0.0, 1.0, 3.0):
    cdf = 0.5 * (1 + math.erf(value / math.sqrt(2)))
    density = math.exp(-0.5 * value**2) / math.sqrt(2 * math.pi)
    derived = cdf + value * density
    (above, below), _ = gelu(np.array([value + 1e-5, value - 1e-5]))
    numeric = (above - below) / 2e-5
    print(
        f"x = {value:4.1f}   Φ {cdf:6.3f}  + x φ {value * density:6.3f}  = {derived:6.3f}   numeric {numeric:6.3f}"
    )
    assert abs(derived - numeric) < 1e-9

# %% tags=["figure"]
# Caption: GELU's derivative goes below 0 and above 1; ReLU's is always either 0 or 1.
cdf, density = 0.5 * (1 + erf(x / math.sqrt(2))), np.exp(-0.5 * x**2) / math.sqrt(2 * math.pi)
figure, axes = plt.subplots(figsize=(6.5, 3.0))
axes.plot(x, cdf + x * density, label="GELU′ = Φ + x φ")
axes.plot(x, cdf, color=plots.GREEN, linewidth=1.2, label="Φ alone")
axes.plot(x, x > 0, color=plots.VERMILION, linestyle="--", label="ReLU′")
for peak in (-math.sqrt(2), math.sqrt(2)):
    slope = 0.5 * (1 + math.erf(peak / math.sqrt(2))) + peak * math.exp(-1) / math.sqrt(2 * math.pi)
    axes.plot(peak, slope, "o", color=plots.BLUE, markersize=5)
    side = math.copysign(0.11, peak)
    text = f"{slope:.2f}".replace("-", "−")
    axes.text(peak, slope + side, text, ha="center", va="center", fontsize=9.5)
axes.set(title="derivatives", xlabel="x", ylim=(-0.33, 1.4))
axes.legend(loc="upper left")
plt.show()

# %% [markdown]
r"""
There are two things to see. First, the slope exceeds 1 and falls below 0. Its extremes are where its own derivative,
$\varphi (2 - x^2)$, is 0: at $\pm\sqrt2$. Second, ReLU's slope is 0 on the whole left side, and GELU's is not. That will matter in
section 5.
"""

# %% [markdown]
r"""
## 4. GELU: erf or tanh?

erf has no closed form. Where it is slow to compute, people use an approximation from the paper that introduced GELU, and so does
Google's code for BERT today (at first it had erf):

$$
y = \tfrac12 \, x \, (1 + \tanh u), \qquad
u = \sqrt{\tfrac2\pi} \, \left( x + 0.044715 \, x^3 \right) .
$$

Hugging Face's `"gelu"` is the erf form. The tanh form is called `"gelu_new"`, there and here. How far apart are the two?
"""

# %%
x = np.linspace(-6, 6, 120_001)
difference = gelu_tanh(x)[0] - gelu(x)[0]
largest = np.abs(difference).max()
print(f"largest difference {largest:.1e}, at x = ±{abs(x[np.abs(difference).argmax()]):.2f}")
assert 4.6e-4 < largest < 4.8e-4

# %% [markdown]
r"""
**Where do the constants come from?** Near 0, $\tanh u \approx u - u^3/3$. Put $u = a \, (x + c \, x^3)$ into this, and compare it
with the series of Φ:

$$
\tfrac12 (1 + \tanh u) \approx \tfrac12 + \tfrac{a}{2} \, x + \tfrac{a}{2} \left( c - \tfrac{a^2}{3} \right) x^3,
\qquad
\Phi(x) \approx \tfrac12 + \frac{1}{\sqrt{2\pi}} \left( x - \tfrac16 \, x^3 \right) .
$$

The terms in $x$ agree if $a = 2 / \sqrt{2\pi} = \sqrt{2/\pi}$, and there is the root. Those in $x^3$ agree if $c = a^2/3 - \frac16
= \frac{2}{3\pi} - \frac16 = 0.0455$. But a perfect fit at 0 is not the best fit everywhere. Try many values of $c$, and take the one
whose *largest* error is smallest:
"""

# %%
constants = np.linspace(0.0430, 0.0460, 601)
root = math.sqrt(2 / math.pi)
points = np.linspace(0, 6, 6001)  # the errors at −x are the same
phi = 0.5 * (1 + erf(points / math.sqrt(2)))
errors = np.array(
    [0.5 * (1 + np.tanh(root * (points + c * points**3))) - phi for c in constants]
)  # (constants, points)
of_phi, of_gelu = np.abs(errors).max(axis=1), np.abs(points * errors).max(axis=1)
series, best = 2 / (3 * math.pi) - 1 / 6, constants[of_phi.argmin()]
print(f"the series at 0: {series:.6f}")
print(f"best for Φ:      {best:.6f}")
print(f"best for x Φ:    {constants[of_gelu.argmin()]:.6f}, largest error {of_gelu.min():.1e}")
assert abs(best - 0.044715) < 1e-5

# %% tags=["figure"]
# Caption: Left: how far the tanh form is from the erf form. Right: the largest error for other
#   constants c; the published one is best for Φ.
figure, axes = plt.subplots(1, 2, figsize=(7.5, 3.0))
axes[0].plot(x, 1e4 * difference)
axes[0].set(title="tanh form − erf form", xlabel="x", ylabel="difference, in 10⁻⁴")
for values, text, colour in ((of_phi, "of Φ", plots.GREEN), (of_gelu, "of x Φ", plots.BLUE)):
    axes[1].plot(constants, 1e4 * values, color=colour, label=text)
for c, text, at in ((0.044715, "0.044715 ", 0.3), (series, "series ", 0.3)):
    axes[1].axvline(c, color=plots.GREY, linestyle="--", linewidth=1)
    axes[1].text(c, at, text, ha="right", fontsize=9, color=plots.GREY)
axes[1].set(title="largest error, in 10⁻⁴", xlabel="c", ylim=(0, 12))
axes[1].set_xticks([0.043, 0.044, 0.045, 0.046])
axes[1].legend()
plt.show()

# %% [markdown]
r"""
So the published constant is the one that is best for Φ. For $x \, \Phi(x)$, another would do a little better.

**Does it matter which form you take?** Both are good for training: Google's code has the tanh form today, Hugging Face's the erf
form. But to *use* trained weights, take the form that they were trained with. The difference shows in the output of a whole model. It is far
above rounding, and it grows with the weights:
"""

# %%
token_ids = np.arange(1000, 1032)[None]  # (B, S)


def hidden_with(activation, deviation):
    config = BertConfig.preset("tiny", hidden_act=activation, initializer_range=deviation)
    model = BertModel(config, dtype="float64", seed=4)
    model.eval()  # no dropout
    return model.forward(token_ids)[0].last_hidden_state  # (B, S, H)


for deviation in (0.02, 0.1):
    gap = np.abs(hidden_with("gelu", deviation) - hidden_with("gelu_new", deviation)).max()
    print(f"weights of size {deviation:<5} largest difference of the output {gap:.0e}")
    assert 1e-7 < gap < 1e-2

# %% [markdown]
r"""
### The gradient of the tanh form

@exercise 04.gelu_tanh_backward

There are three steps again: $u(x)$ as above, $t = \tanh u$, and $y = \frac12 x (1 + t)$. Walk back through them. Along how many
paths does $x$ reach $y$?

The forward pass has kept $t$, so no tanh has to be computed again. The cache is `(x, t)`.
"""

# %% [markdown] tags=["derivation"]
r"""
Take one step at a time, with $\tanh' = 1 - \tanh^2$:

$$
\frac{\partial y}{\partial t} = \tfrac12 x, \qquad
\frac{dt}{du} = 1 - t^2, \qquad
\frac{du}{dx} = \sqrt{\tfrac2\pi} \, (1 + 3 \cdot 0.044715 \, x^2) .
$$

$x$ reaches $y$ along two paths, as a factor and through $t$. The two shares add up:

$$ dx = dy \, \left( \tfrac12 (1 + t) + \tfrac12 x \, (1 - t^2) \, \frac{du}{dx} \right) . $$
"""


# %% tags=["solution"]
def my_gelu_tanh_backward(dout, cache):
    """The gradient of y = ½ x (1 + t), t = tanh(√(2/π) (x + 0.044715 x³)): dx, of the shape of x.

    dout, any shape; cache = (x, t).
    """
    x, t = cache
    du = math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x**2)
    return dout * (0.5 * (1 + t) + 0.5 * x * (1 - t**2) * du)


# %%
check("04.gelu_tanh_backward", my_gelu_tanh_backward)

# %% [markdown]
r"""
The *derivatives* of the two forms are close as well. Could you take the backward pass of the other form? No error would be raised. But
a gradient check with a bound of $10^{-7}$ tells them apart, and a bound wide enough to let this pass would let real mistakes pass,
too:
"""

# %%
x = rng.standard_normal((2, 3, 8))  # (B, S, H)
PAIRS = {
    "tanh form, its own backward pass": gelu_tanh_backward,
    "tanh form, erf's backward pass": lambda dout, cache: gelu_backward(dout, cache[:1]),
}
for what, backward in PAIRS.items():
    [row] = compare_with_numeric(function_case(what, gelu_tanh, backward, {"x": x}))
    print(f"{what:<33} error {row.error:.0e}  {'ok' if row.ok else 'WRONG'}")
    assert row.ok == (backward is gelu_tanh_backward)

# %% [markdown]
r"""
## 5. Why not ReLU? (Dying units)

A ReLU unit whose input is negative for *every* example always returns 0, and its gradient is always 0. So nothing changes the
weights in front of it. It is **dead**, and stays dead, unless a layer before it moves its inputs. A single step that is too large
can be enough for that to happen.

Let 32 hidden units learn a sine wave by plain gradient descent, with either activation, from six different starts and
with four learning rates. At the end, we count the units whose weights get a gradient of exactly 0.
"""


# %%
def train(activation, learning_rate, seed, steps=500, units=32):
    rng = np.random.default_rng(seed)
    inputs = np.linspace(-1, 1, 200)[:, None]  # (200, 1)
    target = np.sin(3 * inputs)
    w1, b1 = rng.standard_normal((units, 1)), rng.standard_normal(units)
    w2, b2 = rng.standard_normal((1, units)) / math.sqrt(units), np.zeros(1)
    forward, backward = ACTIVATIONS[activation]
    for _ in range(steps):
        before, cache1 = linear(inputs, w1, b1)
        after, cache = forward(before)
        output, cache2 = linear(after, w2, b2)
        error = output - target
        dafter, dw2, db2 = linear_backward(2 * error / len(error), cache2)
        _, dw1, db1 = linear_backward(backward(dafter, cache), cache1)
        for weight, gradient in ((w1, dw1), (b1, db1), (w2, dw2), (b2, db2)):
            weight -= learning_rate * gradient
    return (error**2).mean(), ((dw1[:, 0] == 0) & (db1 == 0)).sum()


RATES = (0.01, 0.03, 0.1, 0.15)
runs = {
    name: np.array([[train(name, rate, seed) for seed in range(6)] for rate in RATES])
    for name in ("relu", "gelu")
}  # (rates, seeds, 2)
born_dead = np.median([train("relu", 0.0, seed, steps=1)[1] for seed in range(6)])
print("rate    error ReLU   GELU      dead units ReLU   GELU    (medians)")
for i, rate in enumerate(RATES):
    (relu_error, relu_dead), (gelu_error, gelu_dead) = (
        np.median(runs[name][i], axis=0) for name in runs
    )
    print(f"{rate:<6} {relu_error:11.4f} {gelu_error:8.4f} {relu_dead:15.1f} {gelu_dead:8.1f}")
print(f"ReLU units that were dead at the start: {born_dead}")
assert runs["gelu"][:, :, 1].max() == 0 and np.median(runs["relu"][-1, :, 1]) > 16

# %% tags=["figure"]
# Caption: Units whose output is 0 for every input do not learn any more. GELU has none.
figure, axes = plt.subplots(figsize=(6.5, 3.0))
for name, label, colour, shift in (
    ("relu", "ReLU", plots.VERMILION, -0.1),
    ("gelu", "GELU", plots.BLUE, 0.1),
):
    dead = runs[name][:, :, 1]  # (rates, seeds)
    at = np.arange(len(RATES)) + shift
    axes.plot(at, np.median(dead, axis=1), color=colour, label=f"{label}, median")
    axes.scatter(np.repeat(at, dead.shape[1]), dead.ravel(), s=18, color=colour)
axes.set(
    title="dead units, of 32, after 500 steps (a dot per run)",
    xlabel="learning rate",
    ylabel="units",
)
axes.set_xticks(range(len(RATES)), RATES)
axes.set_ylim(-1, 33)
axes.axhline(born_dead, color=plots.GREY, linestyle="--", linewidth=1, zorder=0)
axes.text(3.15, born_dead + 0.5, "at the start", ha="right", color=plots.GREY, fontsize=9)
axes.legend(loc="upper left")
plt.show()

# %% [markdown]
r"""
With small steps, ReLU does well, here even better than GELU, and hardly any units die that were not dead at the start. Larger steps,
with which GELU learns *more*, cost ReLU one unit after another.

Do not conclude that a GELU unit cannot die. Its slope fades quickly to the left, and where it is $10^{-5}$, "learning again" takes
for ever:
"""

# %%
for value in (-1.0, -2.0, -3.0, -4.0, -5.0):
    at = np.array(value)
    slope, relu_slope = gelu_backward(1.0, (at,)), relu_backward(1.0, (at,))
    print(f"x = {value:4.1f}   slope of GELU {slope:9.6f}   of ReLU {relu_slope:.0f}")

# %% [markdown]
r"""
BERT took GELU over from GPT, and its paper does not compare GELU with ReLU. You can do so here: `BertConfig(hidden_act="relu")`.

### Open: a gate of its own

@exercise 04.gated_backward

In GELU, a number opens its own gate. In some later models, the gate is opened by another number. Of the $2H$ numbers that come in,
the first half are values $v$ and the second half are scores $a$. Each value goes through the gate of its score:

$$ y = v \cdot a \, \sigma(a), \qquad \sigma(a) = \frac{1}{1 + e^{-a}} . $$

Llama's feed-forward networks have this unit, under the name **SwiGLU**. (ModernBERT has a sibling of it, with GELU in the place of
$a \, \sigma(a)$.)
"""


# %%
def gated(x):
    values, scores = np.split(x, 2, axis=-1)  # (…, H) each
    sigmoid = 1 / (1 + np.exp(-scores))
    return values * scores * sigmoid, (values, scores, sigmoid)


# %% [markdown]
r"""
Derive its backward pass. First find $\sigma'$, and write it in terms of $\sigma$ alone.
"""

# %% [markdown] tags=["derivation"]
r"""
$\sigma = 1 / (1 + e^{-a})$ has the derivative $e^{-a} / (1 + e^{-a})^2$. One factor of this, $1 / (1 + e^{-a})$, is $\sigma$, and
the rest, $e^{-a} / (1 + e^{-a})$, is $1 - \sigma$. So $\sigma' = \sigma (1 - \sigma)$, and by the product rule the gate has the slope

$$ \big( a \, \sigma(a) \big)' = \sigma + a \, \sigma \, (1 - \sigma) . $$

This is GELU's pattern, $\Phi + x \, \varphi$. The value and the gate are multiplied, so $dv = dy \cdot a \, \sigma$ and
$da = dy \cdot v \cdot \big( \sigma + a \, \sigma \, (1 - \sigma) \big)$. Each number of $x$ was used in only one of the halves, so the
two gradients are put side by side.
"""


# %% tags=["solution"]
def my_gated_backward(dout, cache):
    """The gradient of gated: dx (…, 2H).

    dout (…, H); cache = (values, scores, sigmoid), each (…, H).
    """
    values, scores, sigmoid = cache
    dvalues = dout * scores * sigmoid  # (…, H)
    slope = sigmoid + scores * sigmoid * (1 - sigmoid)  # (…, H)
    return np.concatenate([dvalues, dout * values * slope], axis=-1)


# %%
check("04.gated_backward", my_gated_backward)

# %% [markdown]
r"""
## 6. Dropout: why 1/(1 − p)?

While it trains, BERT sets a tenth of the numbers to 0, at random, in 37 places. No unit can rely on another being there. So
the model has to know things in more than one way, and learns less by heart. In inference, nothing is dropped. With a mask $m$ that
has one random number per element:

$$
y = x \cdot m, \qquad
m = \begin{cases} 0 & \text{with probability } p \\ \frac{1}{1-p} & \text{otherwise.} \end{cases}
$$
"""

# %%
print(inspect.getsource(dropout))

# %%
B, S, H = 2, 6, 16
x = 1 + rng.random((B, S, H))  # (B, S, H)
key = dropout_key(seed=4, step=0, micro_batch=0, replica=0, site=0)
y, cache = dropout(x, 0.25, key)
mask = dropout_mask(np, x.shape, x.dtype, 0.25, key)
assert np.array_equal(y, x * mask)

# %% tags=["figure"]
# Caption: Dropout on 6 tokens of 16 features. Dropped numbers are 0 (dark); those that are kept are
#   multiplied by 1/(1 − p).
figure, axes = plt.subplots(3, 1, figsize=(7.0, 5.4))
for panel, values, title in (
    (axes[0], x, "x"),
    (axes[1], mask, "m: 0 (dark: dropped) or 1.33 (grey: kept)"),
    (axes[2], y, "y = x · m"),
):
    image = panel.imshow(values[0], vmin=0, vmax=2.7)
    panel.set_title(title)
    panel.grid(False)
    panel.set(yticks=range(S), xticks=[], ylabel="token")
axes[-1].set(xticks=range(0, H, 2), xlabel="feature")
figure.colorbar(image, ax=axes, shrink=0.8)
plt.show()

# %% [markdown]
r"""
Why the factor? In inference, nothing is dropped, and the next layer should meet numbers of the size that it was trained with. On
average over many masks,

$$ E[m] = p \cdot 0 + (1 - p) \cdot \frac{1}{1 - p} = 1, \qquad \text{so} \quad E[y] = x . $$

Without the factor, the average is $(1-p) \, x$. Then in inference, everything that follows would get numbers larger by a factor of
$1/(1-p)$ than in training. (The first dropout had no factor, and multiplied by $1 - p$ in inference instead. To divide in training is
"inverted dropout", and leaves the code for inference alone.) See what comes out of the next layer, on average over more and more
masks:
"""

# %%
weight, bias = rng.standard_normal((1, 64)), np.zeros(1)
token = 1 + rng.random((1, 64))  # (1, H)
inference = linear(token, weight, bias)[0].item()
keys = [dropout_key(4, step, 0, 0, 0) for step in range(2000)]
with_factor = np.array(
    [linear(dropout(token, 0.25, key)[0], weight, bias)[0].item() for key in keys]
)
running = with_factor.cumsum() / np.arange(1, len(keys) + 1)
without = 0.75 * running  # the layer is linear and its bias 0
print(f"inference                     {inference:.2f}")
print(f"average in training           {running[-1]:.2f}")
print(f"the same without the factor   {without[-1]:.2f}")

# %% tags=["figure"]
# Caption: The mean output over more and more masks. With the factor it approaches the output of
#   inference (dashed).
figure, axes = plt.subplots(figsize=(6.5, 3.0))
masks = np.arange(1, len(keys) + 1)
axes.semilogx(masks[9:], running[9:], label="with 1/(1 − p)")
axes.semilogx(masks[9:], without[9:], color=plots.VERMILION, label="without")
axes.axhline(
    inference, color="black", linestyle="--", linewidth=1.2, label="inference: nothing dropped"
)
axes.set(title="output of the next layer, averaged over masks", xlabel="masks", ylim=(0, None))
axes.set_xticks([10, 100, 1000], ["10", "100", "1,000"])
axes.legend(loc="lower right")
plt.show()

# %% [markdown]
r"""
Only the *average* is preserved. A single output is noisy: $E[m^2] = \frac{1}{1-p}$, so $m$ has the variance $\frac{1}{1-p} - 1 =
\frac{p}{1-p}$. The larger $p$ is, the more noise there is.

## 7. Dice that can be thrown again

The mask above came from a **key**, not from a generator with a state. `dropout_mask` is a pure function: the same key
gives the same mask. Another step, place or seed gives a mask that is independent of it.
"""

# %%
again = dropout_mask(np, x.shape, x.dtype, 0.25, key)
next_step = dropout_mask(np, x.shape, x.dtype, 0.25, dropout_key(4, 1, 0, 0, 0))
print("same key, same mask:        ", np.array_equal(mask, again))
print(
    f"next step, equal elements:   {(mask == next_step).mean():.2f}  (by chance {0.75**2 + 0.25**2:.2f})"
)
threshold, factor = dropout_threshold(0.1)
print(
    f"p = 0.1 in 16 random bits:   {threshold} / 65536 = {threshold / 65536:.5f}, factor {factor:.5f}"
)
assert np.array_equal(mask, again)

# %% [markdown]
r"""
Three things follow. No mask has to be *stored* for the backward pass, since it can be made again. A layer can be computed a second
time with the same result. And **a gradient check works with dropout on**, as the next section shows.
"""

# %% [markdown]
r"""
## 8. Dropout: what is its backward pass?

@exercise 04.dropout_backward

What gradient does a number get that was dropped, and what does one get that was kept? The cache is `(probability, key)`, and
`dropout_mask(np, shape, dtype, probability, key)` makes the mask again.
"""

# %% [markdown] tags=["derivation"]
r"""
$m$ does not depend on $x$. So $y = x \cdot m$ is a product with a constant, and

$$ dx = dy \cdot m , $$

with **the same mask**. A number that was dropped had no influence on the loss, and gets 0. The influence of a number that was
kept was multiplied by $\frac{1}{1-p}$, so its gradient gets that factor, once. `dropout_mask` returns the mask with the factor in it.
"""


# %% tags=["solution"]
def my_dropout_backward(dout, cache):
    """The gradient of y = x · m with m from dropout_mask: dx, of the shape of dout.

    dout, any shape; cache = (probability, key).
    """
    probability, key = cache
    return dout * dropout_mask(np, dout.shape, dout.dtype, probability, key)


# %%
check("04.dropout_backward", my_dropout_backward)

# %% [markdown]
r"""
### A gradient check with dropout on

The check calls the forward pass many times, and needs the same function each time. A key provides that. If the dice are thrown
afresh at each call, there is nothing to differentiate:
"""

# %%
fresh = np.random.default_rng(0)


def dropout_with_fresh_dice(x):
    mask = (fresh.random(x.shape) >= 0.25) / 0.75
    return x * mask, mask


small = rng.standard_normal((2, 3, 4))  # (B, S, H)
forward = {"from a key": lambda x: dropout(x, 0.25, key), "fresh dice": dropout_with_fresh_dice}
backward = {"from a key": dropout_backward, "fresh dice": lambda dout, mask: dout * mask}
for what in forward:
    [row] = compare_with_numeric(function_case(what, forward[what], backward[what], {"x": small}))
    print(f"{what:<12} error {row.error:.0e}  {'ok' if row.ok else 'WRONG'}")
    assert row.ok == (what == "from a key")

# %% [markdown]
r"""
### The mask of another place

In some code, the layer keeps the mask in `self.mask` for the backward pass. If one such object is used in two places, the
second use overwrites what the first has stored, and no error is raised.
"""


# %%
class DropoutThatRemembers:
    """Keeps its mask in itself. (The sites have masks of their own, as usual.)"""

    def forward(self, x, site):
        self.mask = dropout_mask(np, x.shape, x.dtype, 0.25, dropout_key(4, 0, 0, 0, site))
        return x * self.mask

    def backward(self, dout):
        return dout * self.mask


def two_places(first, second):
    """y = second(tanh(first(x))), forward and backward."""

    def forward(x):
        h = np.tanh(first.forward(x, site=0))
        return second.forward(h, site=1), h

    def backward(dout, h):
        return first.backward(second.backward(dout) * (1 - h * h))

    return forward, backward


# %%
one = DropoutThatRemembers()
for what, layers in (("one object", (one, one)), ("two objects", (one, DropoutThatRemembers()))):
    [row] = compare_with_numeric(function_case(what, *two_places(*layers), {"x": small}))
    print(f"{what:<12} error {row.error:.0e}  {'ok' if row.ok else 'WRONG'}")
    assert row.ok == (what == "two objects")

# %% [markdown]
r"""
That is why every forward function here *returns* what its backward pass will need, and nothing is kept in a layer.

## 9. In BERT

GELU occurs once in each layer, between the two matrices of its feed-forward network, and once in the head that predicts words.
Dropout occurs after the embeddings and three times in each layer: on the attention weights, and at the end of both sublayers.
"""

# %%
config = BertConfig.preset("base")
base = BertModel(config, device=None)  # its structure, without memory
sites = [module for module in base.modules() if isinstance(module, Dropout)]
print(f"{len(sites)} = 1 + 3 × {config.num_hidden_layers}, each with p = {sites[0].probability}")
assert len(sites) == 1 + 3 * config.num_hidden_layers

# %% [markdown]
r"""
Whatever a forward pass needs besides its input travels with it in one argument, the **context**. It says whether this is training,
and holds the *stream* of the step, from which each use of dropout makes its key. (`site` is the number of the use within the forward
pass.) The model itself keeps nothing of a forward pass.
"""

# %%
model = BertModel(BertConfig.preset("tiny"), dtype="float64", seed=4)


def output(context=None):
    return model.forward(token_ids, context=context)[0].last_hidden_state


def training(step):
    return Context(training=True, stream=dropout_stream(seed=4, step=step))


def same(first, second):
    return "equal" if np.array_equal(first, second) else "different"


print("training, the same step twice:", same(output(training(0)), output(training(0))))
print("training, two steps:          ", same(output(training(0)), output(training(1))))
print("inference, twice:             ", same(output(Context()), output(Context())))
model.train()
print("train(), without a context:   ", same(output(), output()))
model.eval()
print("eval(), without a context:    ", same(output(), output()))

# %% [markdown]
r"""
A forward pass that is given no context makes its own. After `model.train()` that is a context for training, with a new stream each
time, so a training loop written by hand has real dropout. After `model.eval()` nothing is dropped.
"""

# %% [markdown]
r"""
## Recap

- GELU is $x$ times the share of a normal distribution below $x$; its derivative is $\Phi(x) + x \, \varphi(x)$.
- The tanh form differs by less than 4.74e-4. Use the form that the weights were trained with, and the backward pass of that form.
- A gated unit is a product of two halves. The half that opens the gate has a derivative of the same form.
- A ReLU unit whose input is negative for every example gets no gradient, so it stays as it is. GELU's slope is 0 almost nowhere, but
  it fades.
- Dropout divides by $1 - p$ so that the average stays the same. Its backward pass multiplies by the same mask.
- Here the mask is a pure function of a key. It is made twice and never stored, and gradient checks work with it.

## What usually goes wrong

- **φ without its constant**, or erf(x) instead of erf(x/√2). The curves look right, but the numbers are not.
- **Half the product rule.** Φ alone looks plausible as a derivative: it rises from 0 to 1.
- **Forward and backward passes of different forms.** They are off by less than a thousandth, and a loose check lets that pass.
- **The factor 1/(1 − p)** is missing in the backward pass, or is there twice.
- **Different masks** in the forward and the backward pass: the dice were thrown again, or one object was used in two places.
- **Dropout left on in inference.** The same text then gives a different answer each time.

## Three questions

Answer before you unfold.
"""

# %% [markdown]
r"""
<details>
<summary><b>1.</b> What is GELU(x) − GELU(−x)? Work it out, then look at the curve.</summary>

$x \, \Phi(x) - (-x) \, \Phi(-x) = x \, (\Phi(x) + \Phi(-x)) = x$, since the share below $-x$ is as large as the share above $x$. The
same holds for ReLU: $\max(x, 0) - \max(-x, 0) = x$.

</details>
"""

# %% [markdown]
r"""
<details>
<summary><b>2.</b> Dropout preserves the average of its output. Does a network with dropout, averaged over all masks, give the same
output as without dropout?</summary>

Only if everything that follows is linear, as in section 6. The average of GELU(y) is not GELU of the average of y. A network
without dropout is only an approximation of the averaged network, though a good one.

</details>
"""

# %% [markdown]
r"""
<details>
<summary><b>3.</b> Dropout is applied to attention weights, which sum to 1 in each row. What is the sum afterwards, and is that a
mistake?</summary>

The sum is random. In a row of many small weights it is near 1. If one weight is nearly 1, the sum is near 0 or near
$\frac{1}{1-p}$. On average it is 1. It is no mistake, and the original does it, too: now and then, a token cannot see the one that it
attends to most.

</details>
"""

# %% [markdown]
r"""
## Further reading

- Hendrycks and Gimpel, [Gaussian error linear units (GELUs)](https://arxiv.org/abs/1606.08415), 2016: the original, with the tanh form.
- Glorot, Bordes and Bengio, [Deep sparse rectifier neural networks](https://proceedings.mlr.press/v15/glorot11a.html), 2011: the case for ReLU, and a discussion of its zero gradient.
- Srivastava and others, [Dropout: a simple way to prevent neural networks from overfitting](https://jmlr.org/papers/v15/srivastava14a.html), 2014: the full account of dropout, with many experiments.
- Shazeer, [GLU variants improve transformer](https://arxiv.org/abs/2002.05202), 2020: gated units in the feed-forward network, compared with GELU and ReLU.

**Next:** [05 · LayerNorm](05_layer_norm.ipynb), where numbers no longer stand by themselves. The code of this notebook:
[activations.py](../minibert/ops/activations.py), [inverted_dropout.py](../minibert/ops/inverted_dropout.py), and the random bits in
[dropout_bits.py](../minibert/dropout_bits.py).
"""
