# %% [markdown]
r"""
# 03 · Softmax and cross-entropy

For every hidden word, BERT gives a score to each of 30,522 candidates. Softmax turns the scores into probabilities, and
cross-entropy turns the probability of the right word into a loss. There the backward pass of the whole model begins. Its
first line is the simplest in this course, *prediction minus truth*, and the way to it is the most instructive.

**You will** write a softmax that survives any scores · derive its backward pass from the Jacobian · write the loss, and walk back
through the logarithm and the softmax in two stages · see the Jacobian cancel, and write the one line that is left · find the gradient of smoothed
labels on your own · leave out what is not to be predicted, and divide by the right number · find that line inside a real BERT.

**Before this:** [01 · Gradients](01_gradients.ipynb), [02 · Linear](02_linear.ipynb).
**Time:** two and a half hours with the exercises; it runs in seconds.

| letter | in this notebook |
|---|---|
| `B`, `S` | sequences in a batch, tokens in a sequence |
| `V` | vocabulary: the classes to choose from |
| `P` | rows: predicted positions, each with `V` scores (in the library, where rows may be anything, `N`) |
| $z$, $p$ | scores ("logits"), probabilities |
| $t$, $y$ | the right class of a row (its *label*), and the row that is 1 there and 0 elsewhere |
"""

# %%
import inspect

import matplotlib.pyplot as plt
import numpy as np

from minibert import BertConfig, BertForPreTraining, check, plots
from minibert.gradcheck import check as compare_with_numeric
from minibert.gradcheck import function_case
from minibert.ops.cross_entropy_loss import cross_entropy, cross_entropy_backward
from minibert.ops.stable_softmax import log_softmax, softmax, softmax_backward

plots.notebook_style()
np.set_printoptions(precision=3, suppress=True)
rng = np.random.default_rng(3)

# %% [markdown]
r"""
## 1. From scores to probabilities

*Paris is the [MASK] of France.* Say a model gives these scores to five words. Scores can be any real numbers. We want
positive numbers that sum to 1, in the same order. So make the scores positive with $e^z$, then divide by the sum:

$$ p_i = \frac{e^{z_i}}{\sum_j e^{z_j}} . $$
"""

# %%
words = ["capital", "heart", "centre", "city", "banana"]
z = np.array([4.0, 2.5, 2.0, 1.0, -3.0])  # (V,)
p, _ = softmax(z)
for word, score, probability in zip(words, z, p, strict=True):
    print(f"{word:<8} {score:5.1f}  {probability:.4f}")
print(f"sum             {p.sum():.4f}")

# %% tags=["figure"]
# Caption: Five scores, and the probabilities that softmax makes of them. The largest score gets most
#   of the probability.
figure, panels = plt.subplots(1, 2, figsize=(7.5, 2.5), sharey=True)
panels[0].barh(words, z, color=plots.GREY)
panels[0].axvline(0, color="black", linewidth=0.8)
panels[0].set(title="scores z", xlabel="any number")
panels[1].barh(words, p, color=plots.BLUE)
panels[1].set(title="probabilities p = softmax(z)", xlabel="positive, sum 1", xlim=(0, 1))
panels[0].invert_yaxis()
for panel in panels:
    panel.grid(False, axis="y")
plt.show()

# %% [markdown]
r"""
Only **differences** of scores count: $p_i / p_j = e^{z_i - z_j}$. A lead of 1 makes a word $e \approx 2.7$ times as
probable as another, whatever their scores are. So adding a constant to all scores of a row changes nothing. We will use this
twice.

## 2. Why is the maximum subtracted?

The formula as it stands breaks down for scores that a network may well produce:
"""


# %%
def naive_softmax(z):
    e = np.exp(z)
    return e / e.sum(axis=-1, keepdims=True)


large = z.astype(np.float32) + np.float32(100)
with np.errstate(over="ignore", invalid="ignore"):
    print("naive  ", naive_softmax(large))
print("library", softmax(large)[0])
assert np.allclose(softmax(large)[0], p, atol=1e-5)

# %% [markdown]
r"""
In float32, $e^z$ is infinite from $z \approx 88.7$ on, and infinity divided by infinity is not a number.

### Your turn: a softmax that survives

@exercise 03.softmax

Section 1 said what may be done to a row of scores without changing its probabilities. Use this, so that nothing overflows and
no row is divided by 0, whatever the scores are. The classes are the last axis, and any axes may come before it.

The cache is a tuple with one array, `(y,)`: the backward pass needs the result and nothing else.
"""

# %% [markdown] tags=["derivation"]
r"""
The solution is the constant that changes nothing. Subtract the row's maximum $m$:

$$
\frac{e^{z_i - m}}{\sum_j e^{z_j - m}} = \frac{e^{-m} \, e^{z_i}}{e^{-m} \sum_j e^{z_j}} = p_i .
$$

Now the largest exponent is 0, so nothing overflows. The sum is at least $e^0 = 1$, so nothing is divided by 0.
"""


# %% tags=["solution"]
def my_softmax(x):
    """Probabilities over the last axis: y (…, V), (y,).

    x (…, V), any scores. The cache is a tuple with one array, y.
    """
    e = np.exp(x - x.max(axis=-1, keepdims=True))  # (…, V)
    y = e / e.sum(axis=-1, keepdims=True)  # (…, V)
    return y, (y,)


# %%
check("03.softmax", my_softmax)

# %% tags=["answer"]
print(inspect.getsource(softmax))

# %% [markdown]
r"""
### The logarithm

The probabilities of words that are far behind are rounded to 0. That is harmless, unless a logarithm follows. The loss will be
$-\log p$ of the right word, and the logarithm of 0 is minus infinity. So we take the logarithm on paper, where it cancels the
exponential, and the library computes the result. With $m$ for the largest score of the row:

$$ \log p_i = \log \frac{e^{z_i - m}}{\sum_j e^{z_j - m}} = (z_i - m) - \log \sum_j e^{z_j - m} . $$

Here are two classes, with the right one further and further behind, all in float32:
"""

# %%
gaps = np.arange(0, 161, dtype=np.float32)
scores = np.stack([np.zeros_like(gaps), gaps], axis=1)  # (161, 2): class 0 is right
with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
    LOSSES = {
        "log_softmax": -log_softmax(scores)[0][:, 0],
        "log of softmax": -np.log(softmax(scores)[0][:, 0]),
        "log of naive softmax": -np.log(naive_softmax(scores)[:, 0]),
    }
for name, losses in LOSSES.items():
    print(f"{name:<21} the last finite loss is {losses[np.isfinite(losses)][-1]:.0f}")

# %% tags=["figure"]
# Caption: A dot marks where a way of computing the loss ends, because float32 cannot hold an
#   intermediate result. log_softmax goes on.
figure, axes = plt.subplots(figsize=(7.0, 3.1))
STYLES = {
    "log_softmax": (plots.SKY, 7),
    "log of softmax": (plots.VERMILION, 3.5),
    "log of naive softmax": (plots.BLUE, 1.5),
}
for name, (colour, width) in STYLES.items():
    finite = np.isfinite(LOSSES[name])
    axes.plot(gaps[finite], LOSSES[name][finite], color=colour, linewidth=width, label=name)
    if not finite.all():
        axes.plot(gaps[finite][-1], LOSSES[name][finite][-1], "o", color=colour, markersize=8)
axes.set(
    title="where each way of computing −log p ends", xlabel="how far the right class is behind"
)
axes.set(ylabel="loss (nats)")
axes.legend()
plt.show()

# %% [markdown]
r"""
From its dot on, a curve is infinite. Two of the three end in the middle of what should be a straight line.

## 3. The softmax's Jacobian

How does $p_i$ move if $z_j$ does? Write $p_i = e_i / s$ with $e_i = e^{z_i}$ and $s = \sum_k e_k$. $z_j$ always moves $s$,
with $\partial s / \partial z_j = e_j$. It moves the numerator only if $i = j$. Let $\delta_{ij}$ be 1 if $i = j$, else 0.
By the quotient rule,

$$
\frac{\partial p_i}{\partial z_j}
= \frac{\delta_{ij} \, e_i \, s - e_i \, e_j}{s^2}
= \delta_{ij} \, p_i - p_i \, p_j
= p_i \, (\delta_{ij} - p_j) .
$$

A higher $z_j$ raises $p_j$, at the rate $p_j (1 - p_j)$. All the others pay for it, in proportion to what they have. Let us
measure it:
"""

# %%
measured = np.empty((5, 5))
for j, step in enumerate(1e-5 * np.eye(5)):
    measured[:, j] = (softmax(z + step)[0] - softmax(z - step)[0]) / 2e-5
jacobian = np.diag(p) - np.outer(p, p)  # (V, V)
print(f"largest difference: {np.abs(measured - jacobian).max():.0e}")
assert np.allclose(measured, jacobian, rtol=0, atol=1e-9)

# %% tags=["figure"]
# Caption: The Jacobian of softmax: how each probability (row) moves with each score (column). Each
#   row and each column sums to 0.
figure, axes = plt.subplots(figsize=(5.6, 3.6))
image = plots.heatmap(axes, jacobian, digits=3)
axes.set_xticks(range(5), words)
axes.set_yticks(range(5), words)
axes.set(title="∂p/∂z", xlabel="the score that moves", ylabel="the probability that moves")
axes.grid(False)
plt.show()

# %% [markdown]
r"""
Every column sums to 0, since the probabilities still sum to 1 afterwards. Every row sums to 0, too: move all scores
together, and nothing happens.

The backward pass needs $dz = J^\top dp$. Here is the slow way first, with a matrix for each row, compared with the numeric
gradient:
"""


# %%
def softmax_backward_by_matrix(dout, cache):
    (y,) = cache  # (…, V)
    jacobians = y[..., :, None] * (np.eye(y.shape[-1]) - y[..., None, :])  # (…, V, V)
    return np.einsum("...ij,...i->...j", jacobians, dout)


scores = rng.standard_normal((2, 3, 5))
[row] = compare_with_numeric(
    function_case("softmax", softmax, softmax_backward_by_matrix, {"x": scores})
)
print(row)
assert row.ok

# %% [markdown]
r"""
## 4. Your turn: the backward pass of softmax

@exercise 03.softmax_backward

The matrix costs $V^2$ operations per row, which is 932 million for BERT's vocabulary. Without it, a few times $V$ are enough.
Write $dz_j$ as a sum over $i$, put in the Jacobian, and multiply out on paper until no $\delta_{ij}$ is left. Then write the code
for what remains.

In the code, the input is called `x` and the output `y`, and the cache holds only `y`. (The same function works inside attention,
in [08](08_attention.ipynb): in every layer, for each token and head.)
"""

# %% [markdown] tags=["derivation"]
r"""
Multiply it out, and the matrix is gone:

$$
dz_j = \sum_i dp_i \, p_i \, (\delta_{ij} - p_j)
= dp_j \, p_j - p_j \sum_i dp_i \, p_i
= p_j \Big( dp_j - \underbrace{\textstyle\sum_i p_i \, dp_i}_{\text{mean of } dp \text{, weighted with } p} \Big) .
$$
"""


# %% tags=["solution"]
def my_softmax_backward(dout, cache):
    """The gradient of y = softmax(x) over the last axis: dx (…, V).

    dout (…, V); cache = (y,): y (…, V).
    """
    (y,) = cache
    weighted_mean = (dout * y).sum(axis=-1, keepdims=True)  # (…, 1)
    return y * (dout - weighted_mean)


# %%
check("03.softmax_backward", my_softmax_backward)

# %% [markdown]
r"""
## 5. From probabilities to a loss

The model said $p$, and the right word is $t$. Then the loss is $-\log p_t$, in *nats*. It is 0 for certainty, and the less the
word was expected, the larger it is. The joint probability of several words is a product, and the logarithm makes a sum of it.
"""

# %% tags=["figure"]
# Caption: Being sure and wrong is what costs: the loss has no upper bound.
figure, axes = plt.subplots(figsize=(7.0, 3.0))
grid = np.logspace(-5.5, 0, 200)
axes.semilogx(grid, -np.log(grid))
MARKS = {1 / 30522: "any of 30,522", 0.01: "1 %", 0.1: "10 %", 0.5: "50 %"}
for probability, text in MARKS.items():
    loss = -np.log(probability)
    axes.plot(probability, loss, "o", color=plots.VERMILION)
    axes.text(1.2 * probability, loss + 0.4, f"{text}: {loss:.2f}", fontsize=9.5)
axes.set(
    title="the loss of one word", xlabel="probability of the right word", ylabel="−log p (nats)"
)
axes.set_xlim(right=4)
plt.show()

# %% [markdown]
r"""
A model that knows nothing gives every word the probability $1/V$, and has a loss of $\ln V = \ln 30522 = 10.33$. Remember that
number: if a training run starts far from it, something is wrong.

For a batch, we take a weighted mean over its rows:

$$ L = \frac1n \sum_r w_r \, (-\log p_{r, t_r}) . $$

A row with $w_r = 0$ is **ignored**. The denominator $n$ is usually $\sum_r w_r$, but it is an argument of its own. Section 9 shows
why.

### Your turn: the loss

@exercise 03.cross_entropy

Compute the loss from the scores. Take the logarithm as in section 2, so that no scores are too large. The cache holds what the
backward pass needs: $\log p$ for all rows and classes, and the other three arguments.
"""


# %% tags=["solution"]
def my_cross_entropy(logits, labels, weights, denominator):
    """The weighted mean of −log p at the labels: loss (a scalar), (log_p, labels, weights, denominator).

    logits (P, V), labels (P,) whole numbers in [0, V), weights (P,), denominator a number. In the cache
    log_p (P, V) is the logarithm of every probability; the other three are as they came in.
    """
    shifted = logits - logits.max(axis=-1, keepdims=True)  # (P, V)
    log_p = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))  # (P, V)
    nll = -log_p[np.arange(len(labels)), labels]  # (P,): in each row, the one at its label
    loss = (weights * nll).sum() / denominator
    return loss, (log_p, labels, weights, denominator)


# %%
check("03.cross_entropy", my_cross_entropy)

# %% [markdown] tags=["yours"]
r"""
What passes its check can become a part of your own BERT, which [20](20_your_bert.ipynb) puts together. `keep` writes it into the folder
`my_bert`.
"""

# %% tags=["yours"]
from minibert.course import keep

# %% tags=["yours"]
keep("03.cross_entropy", my_cross_entropy)

# %% tags=["answer"]
print(inspect.getsource(cross_entropy))

# %% [markdown]
r"""
### Back in two stages

We go back in two stages first, softmax and then the loss, each with its own backward pass:
"""


# %%
def staged_cross_entropy(logits, labels, weights, denominator):
    p, _ = softmax(logits)  # stage 1  (P, V)
    rows = np.arange(len(p))
    loss = (weights * -np.log(p[rows, labels])).sum() / denominator  # stage 2
    return loss, (p, labels, weights, denominator)


# %% [markdown]
r"""
## 6. Your turn: the two stages

@exercise 03.staged_backward

On the way back, the last stage comes first. Which numbers of `p` does the loss look at, and what does it make of them? For stage 1,
use the backward pass of softmax that you have written, or the library's `softmax_backward`.
"""

# %% [markdown] tags=["derivation"]
r"""
**Stage 2**, backwards: in each row, the loss looks at *one* probability. All others have no influence on it, so their
derivative is 0:

$$
dp_{ri} = dL \cdot \frac{w_r}{n} \cdot \begin{cases} -\dfrac{1}{p_{r,t_r}} & i = t_r \\ 0 & \text{otherwise.} \end{cases}
$$

**Stage 1**, backwards, is the backward pass of softmax. It gets $dp$, and its cache is `(p,)`.
"""


# %% tags=["solution"]
def my_staged_backward(dout, cache):
    """The gradients of staged_cross_entropy: dp (P, V) after stage 2, dlogits (P, V) after stage 1.

    dout: a scalar; cache = (p, labels, weights, denominator): p (P, V), labels and weights (P,).
    """
    p, labels, weights, denominator = cache
    rows = np.arange(len(p))
    dp = np.zeros_like(p)
    dp[rows, labels] = -dout * weights / denominator / p[rows, labels]
    return dp, softmax_backward(dp, (p,))


# %%
check("03.staged_backward", my_staged_backward)

# %% [markdown]
r"""
## 7. Why is softmax + cross-entropy's gradient p − y; where did the Jacobian go?

Put the two stages together on paper, for one row with weight 1 and $n = 1$. In the sum of the softmax's backward pass only a single
term is left, and then nearly everything cancels: what remains is $p - y$. Find out where the Jacobian went before you read
on. Then write it all in one line, below.
"""

# %% [markdown] tags=["derivation"]
r"""
$dp$ has a single entry that is not 0, so the sum in the softmax's backward pass has a single term:

$$ \sum_i p_i \, dp_i = p_t \cdot \left( - \frac1{p_t} \right) = -1 . $$

Therefore

$$
dz_j = p_j \Big( dp_j - (-1) \Big) = p_j \, dp_j + p_j =
\begin{cases} p_t \cdot \left( -\dfrac1{p_t} \right) + p_t = p_t - 1 & j = t \\[1ex] p_j & j \ne t \end{cases}
$$

that is,

$$ \boxed{\; dz = p - y . \;} $$

So the Jacobian did not vanish. The loss asks for *one row* of it, $p_t (\delta_{tj} - p_j)$, and multiplies that row by $-1/p_t$.
The logarithm's derivative cancels exactly the factor that the softmax has put there.
"""

# %% [markdown]
r"""
## 8. Your turn: all in one line

@exercise 03.cross_entropy_backward

Well, nearly one line. The cache holds `log_p`, as the forward pass has left it. Mind the weights, the denominator and `dout`.
"""


# %% tags=["solution"]
def my_cross_entropy_backward(dout, cache):
    """The gradient of cross_entropy with respect to the logits: dlogits (P, V).

    dout: a scalar; cache = (log_p, labels, weights, denominator): log_p (P, V), labels, weights (P,).
    """
    log_p, labels, weights, denominator = cache
    y = np.zeros_like(log_p)
    y[np.arange(len(labels)), labels] = 1.0
    return (np.exp(log_p) - y) * (dout * weights / denominator)[:, None]


# %%
check("03.cross_entropy_backward", my_cross_entropy_backward)

# %% tags=["yours"]
keep("03.cross_entropy_backward", my_cross_entropy_backward)

# %% [markdown] tags=["answer"]
r"""
The library's version does not build $y$, which would be another array with `V` numbers per row. Instead, it subtracts from one
number in each row:
"""

# %% tags=["answer"]
print(inspect.getsource(cross_entropy_backward))

# %% [markdown]
r"""
### The cancellation at work

Is it true? Here are the numeric derivative of the loss, with *heart* as the right word, and $p - y$:
"""

# %%
t = 1
rises = [-log_softmax(z + step)[0][t] + log_softmax(z - step)[0][t] for step in 1e-5 * np.eye(5)]
print("numeric", np.array(rises) / 2e-5)
print("p − y  ", p - np.eye(5)[t])
assert np.allclose(np.array(rises) / 2e-5, p - np.eye(5)[t], rtol=0, atol=1e-9)

# %% [markdown]
r"""
And here is what cancels, first when *capital* is right, and then when *banana* is, which the model thought nearly
impossible.
"""

# %%
PARTS = {}
for t in (0, 4):
    asked = jacobian[t]  # (V,): how p_t moves with each score
    PARTS[words[t]] = {
        f"row of ∂p/∂z; −1/p = −{1 / p[t]:.4g}": asked,
        "result, p − y": asked * (-1 / p[t]),
    }
    y = np.eye(5)[t]
    assert np.allclose(asked * (-1 / p[t]), p - y)
    print(f"{words[t]:<8} row of the Jacobian {asked.round(3) + 0.0}   p − y {p - y}")

assert round(1 / p[4]) == 1545

# %% tags=["figure"]
# Caption: At the top the right class is likely, at the bottom it is not. There, one of the two factors
#   on the left is tiny and the other huge. Their product, on the right, is p − y.
figure, panels = plt.subplots(2, 2, figsize=(7.5, 4.2), sharex=True, sharey="col")
for panel_row, (word, parts) in zip(panels, PARTS.items(), strict=True):
    colours = (plots.GREY, plots.VERMILION)
    for panel, (title, values), colour in zip(panel_row, parts.items(), colours, strict=True):
        panel.bar(words, values, color=colour)
        panel.axhline(0, color="black", linewidth=0.8)
        panel.set_title(title, fontsize=10)
        panel.grid(False, axis="x")
    panel_row[0].set_ylabel(f"right: {word}")
for panel in panels[1]:
    panel.tick_params(axis="x", labelrotation=30)
plt.show()

# %% [markdown]
r"""
At the bottom left there is nothing to see. For *banana* the softmax is flat: its probability hardly moves, whatever the
scores do. The logarithm's derivative multiplies this by −1,545, and a full-sized gradient comes out, which pulls *banana* up and
*capital* down.

There is a shorter way to the same result. The loss itself, with the logarithm taken on paper, is

$$
L = \log \sum_j e^{z_j} - z_t
\qquad\Longrightarrow\qquad
\frac{\partial L}{\partial z_j} = \frac{e^{z_j}}{\sum_k e^{z_k}} - [j = t] = p_j - y_j .
$$

($[j = t]$ is 1 if that is true, else 0, so it is $y_j$.) The logarithm on paper (the *log-sum-exp*) pays off twice: the loss is
finite, and so is its gradient. The staged way divides by $p_t$. Once that has been rounded to 0, zero times infinity gives NaN.
"""

# %%
behind = np.array([[0.0, 120.0]], dtype=np.float32)
q, _ = softmax(behind)
with np.errstate(divide="ignore", invalid="ignore"):
    dq = np.array([[-1 / q[0, 0], 0]], dtype=np.float32)
    print("staged:", softmax_backward(dq, (q,)))
label, weight = np.array([0]), np.ones(1, np.float32)
print("p − y: ", cross_entropy_backward(1.0, cross_entropy(behind, label, weight, 1.0)[1]))

# %% [markdown]
r"""
### Does it cancel with any loss?

No. Softmax and cross-entropy are a pair. Take the squared error $\frac12 \sum_i (p_i - y_i)^2$ instead. There $dp = p - y$, and the
backward pass of softmax still follows. Here are two classes, with the right one ahead or behind:
"""

# %%
lead = np.linspace(-8, 8, 161)
scores = np.stack([lead, np.zeros_like(lead)], axis=1)  # (161, 2): class 0 is right
q, cache = softmax(scores)
labels, weights = np.zeros(161, dtype=int), np.ones(161)
with_logarithm = cross_entropy_backward(1.0, cross_entropy(scores, labels, weights, 1.0)[1])
with_squares = softmax_backward(q - np.array([1.0, 0.0]), cache)
for at in (0, 80):
    pair = f"{-with_logarithm[at, 0]:.4f}, squared error {-with_squares[at, 0]:.4f}"
    print(f"lead {lead[at]:4.0f}: cross-entropy pulls with {pair}")

# %% tags=["figure"]
# Caption: Cross-entropy pulls hardest where the model is most wrong. Squared error gives up there.
figure, axes = plt.subplots(figsize=(7.0, 3.0))
axes.plot(lead, -with_logarithm[:, 0], label="cross-entropy: 1 − p")
axes.plot(lead, -with_squares[:, 0], label="squared error: 2 p (1 − p)²")
axes.set(title="how hard the right score is pulled up", xlabel="its lead over the other score")
axes.set(ylabel="−∂L/∂z")
axes.legend()
plt.show()

# %% [markdown]
r"""
On the left, the model is confident and wrong. There cross-entropy pulls with full force. The squared error hardly pulls at all,
since the flat softmax stands in the way: the rows that learn least are the ones that need it most.
"""

# %% [markdown]
r"""
### Open: a softer truth

@exercise 03.smoothed_backward

Sometimes a model should not be quite so sure. **Label smoothing**, with which the first Transformer was trained, gives the right class
$1 - \varepsilon$ of the truth, and spreads $\varepsilon$ evenly over all $V$ classes, including the right one. BERT does
without it.
"""


# %%
def smoothed_cross_entropy(logits, labels, smoothing):
    log_p, _ = log_softmax(logits)  # (P, V)
    at_label = log_p[np.arange(len(labels)), labels]  # (P,)
    everywhere = log_p.mean(axis=-1)  # (P,)
    losses = -(1 - smoothing) * at_label - smoothing * everywhere  # (P,)
    return losses.mean(), (log_p, labels, smoothing)


# %% [markdown]
r"""
Does the Jacobian cancel here, too? Write the gradient with respect to the logits.
"""

# %% [markdown] tags=["derivation"]
r"""
Collect the factors of each logarithm. The loss of a row is $-\sum_i q_i \log p_i$ with $q = (1 - \varepsilon) \, y +
\varepsilon / V$. This is a truth that is spread over all classes and still sums to 1. With the logarithm taken on paper,

$$
L = - \sum_i q_i \Big( z_i - \log \sum_j e^{z_j} \Big) = \log \sum_j e^{z_j} - \sum_i q_i \, z_i
\qquad\Longrightarrow\qquad dz = p - q .
$$

So it cancels with any truth that sums to 1. The mean over $P$ rows divides by $P$.
"""


# %% tags=["solution"]
def my_smoothed_backward(dout, cache):
    """The gradient of smoothed_cross_entropy with respect to the logits: dlogits (P, V).

    dout: a scalar; cache = (log_p, labels, smoothing): log_p (P, V), labels (P,), smoothing a number.
    """
    log_p, labels, smoothing = cache
    count, classes = log_p.shape
    truth = np.full(log_p.shape, smoothing / classes)  # (P, V)
    truth[np.arange(count), labels] += 1 - smoothing
    return dout * (np.exp(log_p) - truth) / count


# %%
check("03.smoothed_backward", my_smoothed_backward)

# %% [markdown]
r"""
## 9. Rows that do not count

In a sentence, BERT predicts only a few words. Everywhere else the label is −100, by convention, and the row gets the weight
0. (For masked words, the library saves the work and computes only the rows that count, see [11](11_heads_losses.ipynb).
For tagging, it computes all rows, as we do here.) Here are six tokens, and two of them are to be predicted:
"""

# %%
tokens = ["[CLS]", "the", "[MASK]", "sat", "[MASK]", "[SEP]"]
choices = ["[PAD]", "cat", "dog", "the", "down", "up", "sat", "here"]
labels = np.array([-100, -100, 1, -100, 4, -100])  # cat, down
logits = 1.5 * rng.standard_normal((6, 8))  # (P, V)

chosen = labels != -100
weights = chosen.astype(float)
classes = np.where(chosen, labels, 0)  # where the weight is 0, any class will do
loss, cache = cross_entropy(logits, classes, weights, weights.sum())
dlogits = cross_entropy_backward(1.0, cache)
print("loss:", loss.round(3), "  row sums:", np.abs(dlogits.sum(axis=1)).round(9))

# %% tags=["figure"]
# Caption: The gradient of the scores of six positions. Only the two chosen positions have one; each
#   of their rows sums to 0.
figure, axes = plt.subplots(figsize=(7.5, 3.5))
image = plots.heatmap(axes, dlogits, digits=2)
axes.set_xticks(range(8), choices)
axes.set_yticks(range(6), tokens)
axes.set_aspect("auto")
axes.set_title("dlogits: what is violet will be raised")
figure.colorbar(image)
plt.show()

# %% [markdown]
r"""
Each row that counts has one negative number, at the right word. All its other numbers are positive, and together just as large.
A step against the gradient raises the score of the right word and lowers the others. Rows that do not count are 0.

### What do people get wrong here?

**The label 0.** Above, ignored rows carry class 0, but it is their weight that makes them ignored. Some code ignores by class:
whatever is labelled 0 does not count, as 0 is `[PAD]`. If the same function then serves the next-sentence head,
whose class 0 means "B follows A", that class is never learned.

**The denominator.** A mean over the batch has to divide by what counts in *all* of it. If the batch is processed in two
pieces, the mean of the two means is another number:
"""

# %%
pieces = slice(0, 3), slice(3, 6)
unequal = np.array([1.0, 1.0, 1.0, 0.0, 1.0, 0.0])  # three rows count in the first, then one
whole, _ = cross_entropy(logits, classes, unequal, unequal.sum())
means, shares = [], []
for piece in pieces:
    arguments = logits[piece], classes[piece], unequal[piece]
    means.append(cross_entropy(*arguments, unequal[piece].sum())[0])
    shares.append(cross_entropy(*arguments, unequal.sum())[0])
print(f"whole batch   {whole:.4f}")
print(f"mean of means {np.mean(means):.4f}")
print(f"sum of shares {sum(shares):.4f}")
assert np.isclose(sum(shares), whole) and not np.isclose(np.mean(means), whole)

# %% [markdown]
r"""
The mean of means gives the lonely row three times the weight of each of the others. That is why the denominator is an
*argument*.

## 10. In a real BERT

The last thing that BERT's masked-word head does is to add a bias, with one number per word of the vocabulary:
$z = \dots + b$. So $db = \sum_r dz_r$, by [01](01_gradients.ipynb#4.-Why-does-a-bias-gradient-sum-over-the-batch?), and what
the whole model's backward pass leaves there must be the sum of our $p - y$, divided by the number of predicted words.
"""

# %%
model = BertForPreTraining(BertConfig.preset("tiny"), dtype="float64", seed=0)
model.eval()
ids = [[101, 7592, 103, 999, 102], [101, 103, 2003, 103, 102]]
labels = np.array([[-100, -100, 2088, -100, -100], [-100, 2023, -100, 2204, -100]])  # (B, S)

outputs, cache = model.forward(input_ids=ids, labels=labels.tolist())
model.backward(cache)
bias = dict(model.named_parameters())["cls.predictions.bias"]

scores = model.forward(input_ids=ids)[0].prediction_logits[labels != -100]  # (P, V)
y = np.zeros_like(scores)  # (P, V)
y[np.arange(len(y)), labels[labels != -100]] = 1.0
by_hand = (softmax(scores)[0] - y).sum(axis=0) / len(y)

print(f"loss {float(outputs.loss):.2f}, ln V {np.log(30522):.2f}")
for word in (2088, 2023, 2204, 7592):
    print(f"word {word}: backward {bias.grad[word]: .8f}   p − y {by_hand[word]: .8f}")
assert np.allclose(bias.grad, by_hand, rtol=0, atol=1e-12)

# %% [markdown]
r"""
The three hidden words get about $-\frac13$ each, and all 30,519 others get a little more than 0. Every other derivative in the
model is made from numbers like these, layer by layer, on the way back to the embeddings.

## Recap

- Softmax divides exponentials by their sum. Only differences of scores count, so the maximum may be subtracted. It has to be, or
  large scores overflow.
- The Jacobian is $\partial p_i / \partial z_j = p_i (\delta_{ij} - p_j)$, and the backward pass does without a matrix:
  $dz = p \, (dp - \sum p \, dp)$.
- Cross-entropy is $-\log p_t$; a model that knows nothing has a loss of $\ln V$.
- Together they have $dz = p - y$. The $1/p_t$ of the logarithm cancels the $p_t$ of the one Jacobian row that is asked for. With a
  truth that is spread out, $q$ takes the place of $y$.
- Rows are ignored by weight 0, and the denominator counts those that are not, over the whole batch.

## What usually goes wrong

- **Logarithm of a softmax.** It is right until a word is far behind. Then it is infinite, and NaN on the way back.
- **Half a Jacobian.** $p (1 - p) \, dp$ leaves out what a score does to the *other* probabilities.
- **The row sum over everything.** It should run over the last axis only; each row is a softmax of its own.
- **Divided twice.** By the batch size in the softmax, or by both the rows and the weights in the loss.
- **The mean, then the mask.** A loss that is averaged first and multiplied by a mask afterwards has ignored nothing.
- **Softmax before the loss function.** `cross_entropy` wants scores. Given probabilities, it takes
  them for scores that never lie further apart than 1.

## Three questions

Answer before you unfold.
"""

# %% [markdown]
r"""
<details>
<summary><b>1.</b> Each row of dlogits sums to 0. How could you have known, without any formula?</summary>

Adding the same constant to all scores of a row changes no probability, and so it does not change the loss. The derivative in the
direction $(1, \dots, 1)$ is therefore 0, and that derivative is the row's sum.

</details>
"""

# %% [markdown]
r"""
<details>
<summary><b>2.</b> With two classes, how does softmax become the logistic function?</summary>

$p_0 = e^{z_0} / (e^{z_0} + e^{z_1}) = 1 / (1 + e^{-(z_0 - z_1)})$: the logistic function of the difference. Only one number
counts, although the head computes two.

</details>
"""

# %% [markdown]
r"""
<details>
<summary><b>3.</b> A model can learn nothing but the output's bias b. Where does its training come to rest, and at which loss?</summary>

It comes to rest where $db = \sum_r (p - y_r)$ is 0. Then $p$ is the mean of the $y_r$, so the probability of each word is its
relative frequency. The loss is then $-\sum_v f_v \ln f_v$, the **entropy** of the word frequencies $f$. A BERT reaches it early in training. Its first plateau
lies half a nat lower, since some positions show a token that can be copied ([14 · Pre-training](14_pretraining.ipynb)).

</details>
"""

# %% [markdown]
r"""
## Further reading

- Szegedy and others, [Rethinking the Inception architecture for computer vision](https://arxiv.org/abs/1512.00567), 2015: section 7 introduces label smoothing.
- Müller, Kornblith and Hinton, [When does label smoothing help?](https://arxiv.org/abs/1906.02629), 2019: what smoothed labels do to the vectors before the softmax.
- Guo and others, [On calibration of modern neural networks](https://arxiv.org/abs/1706.04599), 2017: whether the probabilities of a softmax can be believed, and how one number repairs them.
- Milakov and Gimelshein, [Online normalizer calculation for softmax](https://arxiv.org/abs/1805.02867), 2018: the maximum and the sum of the exponentials in a single pass.

**Next:** [04 · GELU and dropout](04_gelu_dropout.ipynb), the two functions that act on each number by itself.
The code of this notebook: [stable_softmax.py](../minibert/ops/stable_softmax.py), [cross_entropy_loss.py](../minibert/ops/cross_entropy_loss.py).
"""
