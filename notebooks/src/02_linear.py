# %% [markdown]
r"""
# 02 · Linear

Most of BERT's time goes into one operation, and in BERT-base nearly four of five parameters belong to it: $y = x W^\top
+ b$. Its backward pass is three lines, two of them matrix products. They are short enough to learn by heart, and that is
how they go wrong. Derive them once, and you will not have to remember them.

**You will** write the layer, and see what its cache keeps · derive its three gradients from one loop, step by step · write them
as matrix products · tell a reshape from a transpose · derive the gradient of a weight that is used in both directions · train your first
layer, three times, and find that a falling loss proves nothing · count what all this costs in BERT.

**Before this:** [01 · Gradients](01_gradients.ipynb) (sums where something is used twice, numeric gradients).
**Time:** 90 minutes with the exercises; it runs in seconds.

| letter | in this notebook |
|---|---|
| `B`, `S` | sequences in a batch, tokens in a sequence |
| `R` | rows: all tokens of the batch, $R = B \cdot S$ |
| `K`, `N` | numbers that go into the layer and come out of it, for one row |
| `H`, `F` | BERT's hidden size and feed-forward size |
"""

# %%
import inspect

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.patches import Rectangle

from minibert import BertConfig, BertForPreTraining, check, plots
from minibert.gradcheck import check as compare_with_numeric
from minibert.gradcheck import function_case
from minibert.nn import Linear
from minibert.ops.linear_map import linear, linear_backward

plots.notebook_style()
np.set_printoptions(precision=3, suppress=True)
rng = np.random.default_rng(2)

# %% [markdown]
r"""
## 1. What it does

Each output is a weighted sum of all inputs, plus a constant. Here are two outputs from three inputs, small enough to compute in
your head:
"""

# %%
x = np.array([[1.0, 2.0, 0.0]])  # (R, K): one row
weight = np.array([[1.0, 1.0, 1.0], [3.0, -1.0, 5.0]])  # (N, K)
bias = np.array([10.0, 20.0])  # (N,)

y, _ = linear(x, weight, bias)
print(y)
assert y[0, 0] == 1 * 1 + 2 * 1 + 0 * 1 + 10
assert y[0, 1] == 1 * 3 + 2 * -1 + 0 * 5 + 20

# %% [markdown]
r"""
The weight is stored as *(outputs, inputs)*, as PyTorch stores it: row $n$ of $W$ holds the numbers by which output $n$
multiplies its inputs. Hence the transpose in $x W^\top$:

$$ y_{rn} = \sum_k x_{rk} \, W_{nk} + b_n . $$
"""

# %% tags=["figure"]
# Caption: The forward pass as rectangles. The length of each side is written next to it.
SIZES = {"R": 6, "K": 4, "N": 2.5, "1": 0.8}


def draw_product(panel, terms, title):
    """Matrices as rectangles to scale, each a (name, rows, columns, colour), with signs between them."""
    at = 0.0
    for term in terms:
        if isinstance(term, str):
            panel.text(at + 0.75, 0, term, ha="center", va="center", fontsize=14)
            at += 1.8
            continue
        name, rows, columns, colour = term
        height, width = SIZES[rows], SIZES[columns]
        box = Rectangle((at + 0.5, -height / 2), width, height, facecolor=colour, edgecolor="black")
        panel.add_patch(box)
        panel.text(at + 0.5 + width / 2, 0, name, ha="center", va="center", fontsize=12)
        panel.text(at + 0.35, 0, rows, ha="right", va="center", fontsize=9.5, color=plots.GREY)
        panel.text(at + 0.5 + width / 2, height / 2 + 0.15, columns, ha="center", va="bottom")
        panel.texts[-1].set(fontsize=9.5, color=plots.GREY)
        at += width + 0.5
    panel.set(xlim=(-0.3, at + 0.3), ylim=(-3.3, 4.0), aspect="equal", title=title)
    panel.axis("off")


DATA, LEARNED, BACK = "#cfe3f1", "#f8e0b0", "#f6cdb3"
figure, axes = plt.subplots(figsize=(7.5, 2.9))
terms = [("x", "R", "K", DATA), "·", ("Wᵀ", "K", "N", LEARNED)]
terms += ["+", ("b", "1", "N", LEARNED), "=", ("y", "R", "N", DATA)]
draw_product(axes, terms, "forward")
plt.show()

# %% [markdown]
r"""
In a product, the inner letters meet and vanish (`K`), and the outer ones remain (`R`, `N`). Every product below could be
guessed from that rule alone. We will derive them instead, but the rule is a good second opinion.

### One matrix for every token

BERT's tensors have shape `(B, S, H)`. For this layer, the leading axes are just *more rows*. Every token of every
sequence meets the same $W$, and no token sees another:
"""

# %%
B, S, K, N = 2, 3, 4, 5
x = rng.standard_normal((B, S, K))
weight, bias = rng.standard_normal((N, K)) / np.sqrt(K), rng.standard_normal(N)
y, _ = linear(x, weight, bias)

changed = x.copy()
changed[1, 2] += 1.0  # one token
y_changed, _ = linear(changed, weight, bias)
print((y_changed != y).any(axis=-1).astype(int))  # (B, S)
assert (y_changed != y).any(axis=-1).sum() == 1

# %% [markdown]
r"""
(Where, then, do tokens exchange information? Only in attention, in [08](08_attention.ipynb).)

## 2. The forward pass, and what it keeps

@exercise 02.linear

In this course, a forward function returns two things: its output, and a **cache**, which holds what the backward pass will
need. Here the cache is `(x, weight)`. Write the function for any number of leading axes.
"""


# %% tags=["solution"]
def my_linear(x, weight, bias):
    """Each output is a weighted sum of all inputs, plus a constant: y (…, N), (x, weight).

    x (…, K), weight (N, K), bias (N,). The cache is a tuple of x and weight, both as they came in.
    """
    y = x @ weight.T + bias  # (…, N): `@` takes leading axes as they are
    return y, (x, weight)


# %%
check("02.linear", my_linear)

# %% [markdown] tags=["yours"]
r"""
What passes its check can become a part of your own BERT, which [20](20_your_bert.ipynb) puts together. `keep` writes it into the folder
`my_bert`.
"""

# %% tags=["yours"]
from minibert.course import keep

# %% tags=["yours"]
keep("02.linear", my_linear)

# %% [markdown] tags=["answer"]
r"""
The library's version makes one long list of rows first. It then needs a single large matrix product, instead of one per
sequence:
"""

# %% tags=["answer"]
print(inspect.getsource(linear))

# %% [markdown]
r"""
The cache has neither `y` nor `bias`, because no gradient contains them, as you will see. It holds no copies but the *arrays
themselves*, so it costs no memory. In return, nobody may write into `x` before the backward pass has run:
"""

# %%
dout = rng.standard_normal((B, S, N))
_, cache = linear(x, weight, bias)
_, dweight, _ = linear_backward(dout, cache)

overwritten = x.copy()
_, cache = linear(overwritten, weight, bias)
overwritten *= 2.0  # "it is not needed any more"
_, dweight_later, _ = linear_backward(dout, cache)
print("dW is", dweight_later[0, 0] / dweight[0, 0], "times what it should be")

# %% [markdown]
r"""
There is no error and no warning, only a wrong number. When a gradient is wrong although its formula is right, look for an `*=`
or `+=` on an array that is in a cache.

## 3. Where do the three products come from?

$dy$ comes in (`dout` in the code), and $dx$, $dW$ and $db$ go out, each with the shape of its namesake. Write the forward pass as
the loop that it is:

```
for each r, n:       y[r, n] = b[n]
for each r, n, k:    y[r, n] += x[r, k] · W[n, k]
```

What is used several times collects a sum over its uses ([01](01_gradients.ipynb)). So ask of each number: **in which iterations
of the loop was it used?**

### One step at a time

@exercise 02.backward_in_steps

Here is the same loop in two lines, for `x` of shape `(R, K)`. First come all $R \cdot N \cdot K$ products, then their sums.
"""


# %%
def linear_in_steps(x, weight, bias):
    products = x[:, None, :] * weight  # (R, N, K)
    y = products.sum(axis=-1) + bias  # (R, N)
    return y, (x, weight)


rows = x.reshape(B * S, K)  # (R, K)
assert np.allclose(linear_in_steps(rows, weight, bias)[0], y.reshape(B * S, N))

# %% [markdown]
r"""
Walk back through it: from $y$ to the bias and to the products, and from the products to $x$ and $W$. Each of the four
gradients takes one line.
"""

# %% [markdown] tags=["derivation"]
r"""
$y_{rn}$ is a plain sum. If one of its products rises by 1, so does $y_{rn}$. Therefore every product gets $dy_{rn}$ as it is. So
does $b_n$, but it was used in every row $r$, so its gradients are added up over the rows.

Each product has two factors, and its derivative with respect to one of them is *the other factor*. So product $(r, n, k)$
contributes $dy_{rn} W_{nk}$ to $dx_{rk}$, and $dy_{rn} x_{rk}$ to $dW_{nk}$. These contributions are added up: $x_{rk}$ was used
for every output $n$, and $W_{nk}$ for every row $r$.
"""


# %% tags=["solution"]
def my_backward_in_steps(dout, cache):
    """The gradients of linear_in_steps: dbias (N,), dproducts (R, N, K), dx (R, K), dweight (N, K).

    dout (R, N); cache = (x, weight): x (R, K) and W (N, K).
    """
    x, weight = cache
    dbias = dout.sum(axis=0)  # (N,)
    dproducts = np.repeat(dout[:, :, None], x.shape[1], axis=2)  # (R, N, K)
    dx = (dproducts * weight).sum(axis=1)  # (R, K): over the outputs n
    dweight = (dproducts * x[:, None, :]).sum(axis=0)  # (N, K): over the rows r
    return dbias, dproducts, dx, dweight


# %%
check("02.backward_in_steps", my_backward_in_steps)

# %% [markdown] tags=["answer"]
r"""
Here is the same backward pass as a loop: the loop above, reversed line by line. It is slow, but leaves no doubt:
"""


# %% tags=["answer"]
def backward_as_a_loop(dout, cache):
    x, weight = cache  # (R, K), (N, K)
    dx, dweight, dbias = np.zeros_like(x), np.zeros_like(weight), np.zeros(len(weight))
    for r, n, k in np.ndindex(len(x), *weight.shape):
        dx[r, k] += dout[r, n] * weight[n, k]
        dweight[n, k] += dout[r, n] * x[r, k]
    for r, n in np.ndindex(dout.shape):
        dbias[n] += dout[r, n]
    return dx, dweight, dbias


inputs = {"x": rows, "weight": weight, "bias": bias}
for row in compare_with_numeric(function_case("loop", linear, backward_as_a_loop, inputs)):
    print(row)
    assert row.ok

# %% [markdown]
r"""
## 4. Your turn: the backward pass

@exercise 02.linear_backward

The array of all products is out of the question in a real model. For 4,096 tokens and the largest matrix of a
BERT-base layer, it would have almost ten billion numbers. But a sum of products *is* a matrix product. Write $dx$, $dW$ and $db$ with two
matrix products and a sum.

`dout` and `x` may have any number of leading axes. So make rows of them first, and give $dx$ the shape of `x` at the end.
"""

# %% [markdown] tags=["derivation"]
r"""
For each of the three, ask where it was used. That gives a sum, and then the same as a matrix product:

$$
\begin{aligned}
x_{rk} &\text{ for every output } n: & dx_{rk} &= \sum_n dy_{rn} \, W_{nk} & \Rightarrow \quad dx &= dy \; W \\
W_{nk} &\text{ for every row } r: & dW_{nk} &= \sum_r dy_{rn} \, x_{rk} & \Rightarrow \quad dW &= dy^\top x \\
b_n &\text{ for every row } r: & db_n &= \sum_r dy_{rn} & \Rightarrow \quad db &= dy^\top \mathbf 1
\end{aligned}
$$

The letter that is summed over has to stand inside. In $\sum_r dy_{rn} x_{rk}$ that is $r$, the *first* index of $dy$, hence the
transpose. ($\mathbf 1$ is a column of ones; in code, a sum over the rows.)
"""

# %% tags=["figure", "answer"]
# Caption: The two products of the backward pass. The letter that is summed over stands inside: N on
#   the left, R on the right.
figure, panels = plt.subplots(1, 2, figsize=(7.5, 2.2), width_ratios=[16.2, 19.7])
terms = [("dy", "R", "N", BACK), "·", ("W", "N", "K", LEARNED), "=", ("dx", "R", "K", BACK)]
draw_product(panels[0], terms, "backward: dx")
terms = [("dyᵀ", "N", "R", BACK), "·", ("x", "R", "K", DATA), "=", ("dW", "N", "K", BACK)]
draw_product(panels[1], terms, "backward: dW")
figure.set_label(
    "Two matrix products as rectangles: dy, R by N, times W, N by K, gives dx, R by K; dy "
    "transposed, N by R, times x, R by K, gives dW, N by K"
)
plt.show()


# %% tags=["solution"]
def my_linear_backward(dout, cache):
    """The gradients of y = x Wᵀ + b: dx (…, K), dweight (N, K), dbias (N,).

    dout (…, N); cache = (x, weight): x (…, K) and W (N, K).
    """
    x, weight = cache
    rows = x.reshape(-1, x.shape[-1])  # (R, K)
    drows = dout.reshape(-1, dout.shape[-1])  # (R, N)
    dx = (drows @ weight).reshape(x.shape)  # (…, K)
    dweight = drows.T @ rows  # (N, K)
    dbias = drows.sum(axis=0)  # (N,)
    return dx, dweight, dbias


# %%
check("02.linear_backward", my_linear_backward)

# %% tags=["yours"]
keep("02.linear_backward", my_linear_backward)

# %% [markdown] tags=["answer"]
r"""
The library's version:
"""

# %% tags=["answer"]
print(inspect.getsource(linear_backward))

# %% [markdown]
r"""
## 5. What dW looks like

Read $dW_{nk} = \sum_r dy_{rn} x_{rk}$ row by row. Each token $r$ contributes the matrix of all products of *what came
back* to it and *what went in*. This is an **outer product**, and $dW$ is the sum of these. Here they are for three tokens:
"""

# %%
rows, drows = x[0], dout[0]  # (R, K), (R, N) with R = 3
contributions = [np.outer(drow, row) for drow, row in zip(drows, rows, strict=True)]  # (N, K) each
_, dweight, _ = linear_backward(drows, (rows, weight))
assert np.allclose(sum(contributions), dweight)
print("ranks:", [int(np.linalg.matrix_rank(m)) for m in [*contributions, dweight]])

# %% tags=["figure"]
# Caption: What each of three tokens adds to the weight's gradient, and the sum. Violet is negative,
#   orange positive.
figure, panels = plt.subplots(1, 4, figsize=(7.5, 2.5))
matrices = {f"token {r}": contribution for r, contribution in enumerate(contributions)}
matrices["their sum, dW"] = dweight
limit = max(np.abs(matrix).max() for matrix in matrices.values())
for panel, (title, matrix) in zip(panels, matrices.items(), strict=True):
    image = plots.heatmap(panel, matrix, limit=limit)
    panel.set_title(title, fontsize=10)
    panel.set_xlabel("input k")
panels[0].set_ylabel("output n")
figure.colorbar(image, ax=panels, shrink=0.8)
plt.show()

# %% [markdown]
r"""
In each of the first three matrices, all rows are multiples of one another (rank 1). So a weight moves only if *both* its ends are
active: an input that is 0 teaches its column nothing, and an output whose gradient is 0 teaches its row nothing.

The sum has another consequence. The gradient of a batch is the sum of the gradients of its parts, so a batch that is too
large for the memory can be processed in pieces:
"""

# %%
pieces = [linear_backward(dout[b], (x[b], weight)) for b in range(B)]  # a sequence at a time
_, dweight, dbias = linear_backward(dout, (x, weight))  # all at once
assert np.allclose(sum(piece[1] for piece in pieces), dweight)
assert np.allclose(sum(piece[2] for piece in pieces), dbias)

# %% [markdown]
r"""
## 6. Why is a reshape not a transpose?

Suppose you computed $x^\top dy$. It holds the right numbers, but it is $dW^\top$, of shape `(K, N)`, and NumPy complains as soon
as it meets $W$. The tempting fix is `.reshape(N, K)`. It makes the complaint go away:
"""

# %%
other = x.reshape(-1, K).T @ dout.reshape(-1, N)  # (K, N)
MATRICES = {"dW": dweight, "transposed": other.T, "reshaped": other.reshape(N, K)}
for name, matrix in MATRICES.items():
    print(f"{name:<11} {matrix.shape}  right: {np.allclose(matrix, dweight)}")

# %% tags=["figure"]
# Caption: The gradient; the transpose of the other product, which is the same; and its reshape,
#   which has the same numbers in other places.
figure, panels = plt.subplots(1, 3, figsize=(7.0, 2.9))
for panel, (title, matrix) in zip(panels, MATRICES.items(), strict=True):
    plots.heatmap(panel, matrix, digits=1)
    panel.set_title({"dW": "dW", "transposed": "(xᵀ dy)ᵀ"}.get(title, "(xᵀ dy).reshape(N, K)"))
    panel.set(xlabel="input k", ylabel="output n")
plt.show()

# %% [markdown]
r"""
A transpose exchanges rows and columns. A reshape reads the numbers in the old order and breaks the lines elsewhere. The
first row on the right is the first row of $x^\top dy$, as far as it fits, and from there on everything is in another
place. It has the same shape, the same twenty numbers and the same norm.

Where $K = N$, nobody complains in the first place, as $W$ and $W^\top$ have the same shape. In BERT, the weights of query, key,
value and attention's output are all square. That is why tests of such layers use sizes that are all different.

## 7. One layer, used twice

The library's layers keep nothing between calls. `forward` returns the cache, and `backward` takes it as an argument. Many projects
store it on `self` instead, which looks tidier:
"""


# %%
class Forgetful:
    def __init__(self, weight, bias):
        self.weight, self.bias = weight, bias
        self.dweight = np.zeros_like(weight)

    def forward(self, x):
        y, self.cache = linear(x, self.weight, self.bias)
        return y

    def backward(self, dout):
        dx, dweight, _ = linear_backward(dout, self.cache)
        self.dweight += dweight
        return dx


# %% [markdown]
r"""
Now use one layer for two things. BERT does so with its word embeddings, at the input *and* at the output, and so does a model that
uses one encoder for two sentences that are to be compared. There are two forward passes, then two backward passes:
"""

# %%
first, second = rng.standard_normal((2, S, K))
dfirst, dsecond = rng.standard_normal((2, S, N))

forgetful = Forgetful(weight, bias)
forgetful.forward(first)
forgetful.forward(second)  # overwrites what it remembered of the first
forgetful.backward(dsecond)
forgetful.backward(dfirst)

layer = Linear(K, N)  # the library's
layer.allocate(dtype="float64")
layer.weight.value[...], layer.bias.value[...] = weight, bias
_, cache_of_first = layer.forward(first)
_, cache_of_second = layer.forward(second)
layer.zero_grad()
layer.backward(dsecond, cache_of_second)
layer.backward(dfirst, cache_of_first)

step = np.zeros_like(weight)
step[0, 0] = 1e-5
rise = 0.0
for rows, drows in ((first, dfirst), (second, dsecond)):
    above, below = (linear(rows, weight + sign * step, bias)[0] for sign in (1, -1))
    rise += ((above - below) * drows).sum()
print(f"numeric   {rise / 2e-5:.6f}")
print(f"library   {layer.weight.grad[0, 0]:.6f}")
print(f"forgetful {forgetful.dweight[0, 0]:.6f}")
assert np.isclose(rise / 2e-5, layer.weight.grad[0, 0])
assert not np.isclose(rise / 2e-5, forgetful.dweight[0, 0])

# %% [markdown]
r"""
The forgetful layer has paired the gradient of the first use with the input of the second.

The library's layer is little more than two parameters. Its backward pass **adds** to their gradients, so that the gradients of
two uses are summed; `zero_grad` sets them back to 0 before the next sum. (A layer's `Cache` holds the tuple of section 2 and knows
which operation made it, so that no other operation can take it by mistake.)
"""

# %%
print(inspect.getsource(Linear.backward))

# %% [markdown]
r"""
### Open: one weight, there and back

@exercise 02.there_and_back_backward

A weight can even be used twice on the way to a *single* output. This network squeezes each row of $K$ numbers into $N$ numbers, and
expands them again with the same matrix. It is an autoencoder with tied weights:

$$ h = x \, W^\top, \qquad y = h \, W . $$
"""


# %%
def there_and_back(x, weight):
    hidden = x @ weight.T  # (…, N)
    return hidden @ weight, (x, hidden, weight)  # (…, K)


# %% [markdown]
r"""
No section above derives its gradients, but together the sections contain all that you need.
"""

# %% [markdown] tags=["derivation"]
r"""
Take the two products one after the other, the last one first, each as a layer without a bias. $y = h W$ uses $W$ as it is
stored. So $dh = dy \, W^\top$, and $W$ gets $h^\top dy$. Then $h = x W^\top$ is the layer of section 4, with $dh$ in the place of
$dy$. So $dx = dh \, W$, and $W$ gets $dh^\top x$. $W$ was used twice, so its two shares add up:

$$ dW = h^\top dy + dh^\top x . $$
"""


# %% tags=["solution"]
def my_there_and_back_backward(dout, cache):
    """The gradients of y = (x Wᵀ) W: dx (…, K), dweight (N, K).

    dout (…, K); cache = (x, hidden, weight): x (…, K), hidden (…, N) and W (N, K).
    """
    x, hidden, weight = cache
    rows, drows = x.reshape(-1, x.shape[-1]), dout.reshape(-1, dout.shape[-1])  # (R, K)
    dhidden = drows @ weight.T  # (R, N)
    dx = (dhidden @ weight).reshape(x.shape)  # (…, K)
    used_last = hidden.reshape(-1, hidden.shape[-1]).T @ drows  # (N, K)
    used_first = dhidden.T @ rows  # (N, K)
    return dx, used_last + used_first


# %%
check("02.there_and_back_backward", my_there_and_back_backward)

# %% [markdown]
r"""
## 8. Does a falling loss prove that the gradient is right?

Now a layer can learn. Suppose that there is a hidden matrix. We see inputs, and outputs with a little noise, and look for the
matrix by walking downhill. The loss is the mean squared error over all $R \cdot N$ outputs, hence $dy = 2 (y - t) / (R N)$.

Besides the right gradient, we try two popular mistakes: $dW$ or $db$ is divided by the number of rows ("the *average*
gradient"), although the loss is already a mean.
"""

# %%
R, K, N = 64, 6, 4
x = rng.standard_normal((R, K))
hidden_weight, hidden_bias = rng.standard_normal((N, K)), rng.standard_normal(N)
target = linear(x, hidden_weight, hidden_bias)[0] + 0.1 * rng.standard_normal((R, N))


def train(shrink_weight=1.0, shrink_bias=1.0, steps=100, learning_rate=0.5):
    weight, bias, losses = np.zeros((N, K)), np.zeros(N), []
    for _ in range(steps):
        y, cache = linear(x, weight, bias)
        losses.append(((y - target) ** 2).mean())
        _, dweight, dbias = linear_backward(2 * (y - target) / y.size, cache)
        weight -= learning_rate * shrink_weight * dweight
        bias -= learning_rate * shrink_bias * dbias
    return losses


RUNS = {
    "right": train(),
    "db divided by R": train(shrink_bias=1 / R),
    "dW divided by R": train(shrink_weight=1 / R),
}
for name, losses in RUNS.items():
    print(f"{name:<16} first {losses[0]:.3f}   last {losses[-1]:.3f}")
assert all((np.diff(losses[:50]) < 0).all() for losses in RUNS.values())

# %% tags=["figure"]
# Caption: A gradient that is too small by a constant factor still learns, only far more slowly.
figure, axes = plt.subplots(figsize=(7.0, 3.2))
for name, losses in RUNS.items():
    axes.semilogy(losses, label=name)
axes.axhline(0.01, color=plots.GREY, linestyle="--", linewidth=1)
axes.text(99, 0.0115, "the noise: 0.1²", color=plots.GREY, fontsize=9.5, ha="right")
axes.set(title="a layer learns", xlabel="step", ylabel="mean squared error")
axes.legend(loc="upper right", bbox_to_anchor=(1.0, 0.86))
plt.show()

# %% [markdown]
r"""
With the right gradient, the loss gets down to the noise. But **all three fall**, at every one of the first fifty steps. Had we seen
only one of the others, we would have called it slow, and looked for a better learning rate. For a loss to fall, it is enough to
walk roughly downhill. So training cannot tell you whether a gradient is right. Only a check can.

## 9. What it costs

Every iteration of the inner loop in section 3 is one multiplication and one addition. The forward pass has $R \cdot K \cdot N$ of
them. $dx$ takes as many, and so does $dW$. So **a backward pass is the work of two forward passes**.

How much is that in BERT-base, for one sequence of 128 tokens? These are the matrices of one layer:
"""

# %%
base = BertForPreTraining(BertConfig.preset("base"), device=None)  # no memory, only shapes
prefix, tokens, total = "bert.encoder.layer.0.", 128, 0
for name, parameter in base.named_parameters():
    if name.startswith(prefix) and len(parameter.shape) == 2:
        total += parameter.size
        short = name.removeprefix(prefix).removesuffix(".weight")
        print(f"{short:<26} {parameter.shape!s:<13} {tokens * parameter.size:>13,} multiply-adds")
print(f"{'one layer':<26} {'':<13} {tokens * total:>13,}")
H, F = 768, 3072
assert total == 4 * H * H + 2 * H * F == 12 * H * H

attention = 2 * tokens**2 * H  # its two products, of 08; they have no weights
print(f"{'(attention itself)':<26} {'':<13} {attention:>13,}")
assert round(12 * 3 * tokens * total / 1e9) == 33 and round(100 * attention / (tokens * total)) == 3

# %% [markdown]
r"""
A layer has four matrices of `H × H` and two of `H × F`. With $F = 4H$, that makes $12 H^2$ weights, and each costs one multiply-add
per token. Twelve layers, forward and backward, take $12 \cdot 3$ times the sum above: 33 billion multiply-adds for one sequence.
Attention's own two products add 3 % at this length. The rest of a layer (softmax, LayerNorm, GELU) takes a few operations per
number; it costs memory traffic rather than arithmetic.

And what is the share of the parameters?
"""


# %%
def count(preset):
    counts = {"linear layers": 0, "embeddings": 0, "biases and LayerNorm": 0}
    model = BertForPreTraining(BertConfig.preset(preset), device=None)
    for name, parameter in model.named_parameters():
        if "_embeddings." in name:
            counts["embeddings"] += parameter.size
        else:
            kind = "linear layers" if len(parameter.shape) == 2 else "biases and LayerNorm"
            counts[kind] += parameter.size
    return counts


counts = {preset: count(preset) for preset in ("tiny", "small", "base", "large")}
for preset, parts in counts.items():
    share = parts["linear layers"] / sum(parts.values())
    print(f"{preset:<6} {sum(parts.values()):>12,} parameters, {share:.0%} in linear layers")

# %% tags=["figure"]
# Caption: Shares of the parameters in four sizes of BERT. The larger the model, the more of it is
#   linear layers.
figure, axes = plt.subplots(figsize=(7.5, 2.5))
left = np.zeros(len(counts))
colours = (plots.BLUE, plots.ORANGE, plots.GREEN)
for kind, colour in zip(counts["tiny"], colours, strict=True):
    shares = np.array([100 * parts[kind] / sum(parts.values()) for parts in counts.values()])
    axes.barh(range(len(counts)), shares, left=left, color=colour, label=kind)
    left += shares
axes.set_yticks(range(len(counts)), counts)
axes.invert_yaxis()
axes.grid(False, axis="y")
axes.set(xlabel="share of the parameters (%)", xlim=(0, 100))
axes.set_title("where BERT keeps its parameters", pad=24)
axes.legend(ncols=3, fontsize=9.5, loc="lower left", bbox_to_anchor=(-0.01, 0.97))
plt.show()

# %% [markdown]
r"""
The tiny BERT is a big dictionary with a little network after it; in a large one, nine of ten parameters are in linear layers. (The
third part is the thin strip on the right.)

## Recap

- $y = x W^\top + b$ holds for every row by itself; leading axes are just more rows. $W$ is *(outputs, inputs)*.
- $dx = dy \, W$ (sum over outputs), $dW = dy^\top x$ and $db = \sum_r dy$ (sums over rows). Each follows from what was used
  where.
- $dW$ is a sum of outer products, one per row, so the gradients of pieces of a batch add up.
- The cache holds the arrays themselves and is returned, so a layer can be used twice, and its gradients are added. A weight that
  is used twice collects two shares.
- A backward pass costs as much as two forward passes. A falling loss is no gradient check.

## What usually goes wrong

- **Reshape instead of transpose.** The shape fits, but the numbers are in the wrong places. Square matrices hide the mistake.
- **The batch axis only.** $db$ is summed over `B` and not over `S`, or $dW$ still has a leading `B`.
- **An average in the layer.** The mean belongs to the loss and comes in with `dout`.
- **A cache on self.** This is right until the layer is used a second time before its backward pass.
- **In-place operations.** `x *= …` between the forward and the backward pass changes the cache.
- **zero_grad forgotten.** The gradients of the last step are still in the sum.

## Three questions

Answer before you unfold.
"""

# %% [markdown]
r"""
<details>
<summary><b>1.</b> Two linear layers follow one another with nothing in between. What can they compute that one cannot?</summary>

Nothing. $(x W_1^\top + b_1) W_2^\top + b_2 = x (W_2 W_1)^\top + (W_2 b_1 + b_2)$ is one linear layer. Therefore a function that
bends stands between them. In BERT it is [GELU](04_gelu_dropout.ipynb).

</details>
"""

# %% [markdown]
r"""
<details>
<summary><b>2.</b> BERT computes query, key and value from the same x with three weights of shape (H, H). How can one product do it, and
what is dx then?</summary>

Put the three weights on top of each other. That gives one weight of shape (3H, H), whose output holds query, key and value side
by side. (The library does that.) Now $dx = dy \, W$ sums over all $3H$ outputs, which is the sum of the three $dx$: $x$ was
used three times.

</details>
"""

# %% [markdown]
r"""
<details>
<summary><b>3.</b> All weights of a layer start at 0, and so does its bias. Does it learn? And do two such layers in a row?</summary>

One does: $dW = dy^\top x$ does not contain $W$. (Ours in section 8 did start at 0.) Two do not. The input of the second layer is
0, so its $dW$ is 0; and the first layer gets $dy \, W = 0$ from the second. Only the last bias moves. That is why weights start at
random values.

</details>
"""

# %% [markdown]
r"""
## Further reading

- Rumelhart, Hinton and Williams, [Learning representations by back-propagating errors](https://www.nature.com/articles/323533a0), 1986: the short paper that made backpropagation known.
- Parr and Howard, [The matrix calculus you need for deep learning](https://arxiv.org/abs/1802.01528), 2018: derivatives of vectors and matrices, from the beginning.
- Baydin and others, [Automatic differentiation in machine learning: a survey](https://arxiv.org/abs/1502.05767), 2018: how libraries derive the backward pass that you wrote by hand.
- Glorot and Bengio, [Understanding the difficulty of training deep feedforward neural networks](https://proceedings.mlr.press/v9/glorot10a.html), 2010: how large the random weights of a linear layer should be at the start.

**Next:** [03 · Softmax and cross-entropy](03_softmax_cross_entropy.ipynb), where the gradient begins.
The code of this notebook: [linear_map.py](../minibert/ops/linear_map.py), [layers.py](../minibert/nn/layers.py).
"""
