# %% [markdown]
r"""
# 09 · Many heads

One attention head takes *one* weighted mean. In each layer, BERT-base takes twelve of them from the same tokens. Each head has
a twelfth of the width, so together they need as many multiplications as one head of full width. The price is a reshape that looks
harmless and deceives nearly everybody once.

**You will** see what one head cannot do · split and merge heads, and see what the wrong reshape does · see which tests it
passes · write the backward pass of all heads at once · watch heads divide work among themselves, take them out one by one, and let
them share keys and values.

**Before this:** [08 · Attention](08_attention.ipynb).
**Time:** 75 minutes with the exercises; it runs in seconds.

| letter | in this notebook |
|---|---|
| `B`, `S` | sequences in a batch, tokens in a sequence |
| `H` | hidden size: how many numbers describe a token |
| `A` | heads |
| `D` | features of a head: `D` = `H` / `A` |
"""

# %%
import inspect

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import ListedColormap

from minibert import BertConfig, check, plots
from minibert.course.exercises.n08_attention import one_head
from minibert.gradcheck import check as compare_with_numeric
from minibert.gradcheck import function_case
from minibert.ops.attention import (
    attention,
    attention_backward,
    attention_bias,
    attention_scores,
    merge_heads,
    split_heads,
)
from minibert.ops.composites import packed_attention, packed_attention_backward, split_qkv
from minibert.ops.cross_entropy_loss import cross_entropy, cross_entropy_backward
from minibert.ops.linear_map import linear, linear_backward
from minibert.ops.stable_softmax import softmax

plots.notebook_style()
np.set_printoptions(precision=3, suppress=True)
rng = np.random.default_rng(9)

# %% [markdown]
r"""
## 1. What one head cannot do

A verb needs to know its subject *and* its object. Let one head look at both with equal weight, and swap them:
"dog bites man", "man bites dog".
"""

# %%
dog, man = rng.standard_normal((2, 8))  # values


def one_mean(before, after):
    return 0.5 * before + 0.5 * after  # one head, half of its weight on each


def two_means(before, after):
    return np.concatenate([before[:4], after[4:]])  # two heads of 4 features, one neighbour each


for name, look in (("one head", one_mean), ("two heads", two_means)):
    same = np.allclose(look(dog, man), look(man, dog))
    print(f"{name:<9} tells {'the same' if same else 'different things'} in the two sentences")

# %% [markdown]
r"""
A mean forgets who gave what. With unequal weights, the two can be told apart, but not reliably;
[section 7](#7.-Heads-divide-the-work) measures how well. Two heads keep them apart: the first fills one half of the result, the
second the other half. Each has only half as many features to say it with, so the result is as long as before.

## 2. Cutting a token into heads

A token has `H` features, and there are `A` heads. Each head gets `D` = `H` / `A` neighbouring features *of every token*. Attention
needs the heads as an axis of their own, (B, A, S, D). Here are 3 tokens (0, 1, 2) of 4 features (a, b, c, d), for 2 heads. Next to
the right split is the result of a single `reshape` to the very same shape.
"""

# %%
S, H, A = 3, 4, 2
x = np.arange(S * H).reshape(1, S, H)  # (1, S, H): token = number // H, feature = number % H
right = split_heads(x, A)  # (1, A, S, D)
wrong = x.reshape(1, A, S, H // A)
print("shapes:", right.shape, wrong.shape)


# %% tags=["figure"]
# Caption: Three tokens (colours) of four features (letters), split into two heads, and what a mere
#   reshape makes of them.
def tiles(panel, numbers, title):
    tokens = ListedColormap([plots.SKY, plots.YELLOW, "#d0d0d0"])
    panel.imshow(numbers // H, cmap=tokens, vmin=0, vmax=2)
    for (row, column), number in np.ndenumerate(numbers):
        panel.text(column, row, f"{number // H}{'abcd'[number % H]}", ha="center", va="center")
    panel.set_title(title, fontsize=10)
    panel.set(xticks=np.arange(-0.5, numbers.shape[1]), yticks=np.arange(-0.5, numbers.shape[0]))
    panel.set(xticklabels=[], yticklabels=[])
    panel.tick_params(length=0)
    panel.grid(color="white", linewidth=1.5)
    panel.set_axisbelow(False)
    panel.spines[:].set_visible(False)


figure, axes = plt.subplots(1, 5, figsize=(7.5, 2.3), width_ratios=(4, 2, 2, 2, 2))
tiles(axes[0], x[0], "tokens (S, H)")
for a in range(A):
    tiles(axes[1 + a], right[0, a], f"split: head {a}")
    tiles(axes[3 + a], wrong[0, a], f"reshape: head {a}")
plt.show()

# %% [markdown]
r"""
Each colour is a token. After the split, every head has a part of each token, in a row of its own. After the reshape, head 0 has both
halves of token 0, then half of token 1, and knows nothing of token 2. There is no error and no warning, and the shape is right.

**Why?** The numbers lie in memory one after the other: 0a 0b 0c 0d 1a 1b … `reshape` never moves them. It only draws new
borders, and the last axis runs fastest. What we want has another *order* (0a 0b 1a 1b 2a 2b …), and only a transpose changes the
order.
"""

# %%
for name, heads in (("one reshape", wrong), ("split", right)):
    print(f"{name:<12} as it is read: {heads.ravel()}")

# %% [markdown]
r"""
Even the transpose moves nothing at first. It tells NumPy to step differently through the same memory. Here are the steps from one
entry to the next along each axis, counted in numbers (not bytes):
"""

# %%
for name, array in (("tokens", x), ("split", right), ("one reshape", wrong)):
    steps = tuple(step // x.itemsize for step in array.strides)
    print(f"{name:<12} {array.shape!s:<14} steps {steps}")
assert np.shares_memory(right, x)  # the split is a view: nothing was copied
computed = right.copy()  # heads as attention returns them, one after the other in memory:
assert not np.shares_memory(merge_heads(computed), computed)  # merging these has to copy

# %% [markdown]
r"""
## 3. Your turn: split and merge

@exercise 09.split_heads

@exercise 09.merge_heads

Write two functions of one line each (and a line that unpacks the shape). Which steps does it take to get the right order of the
numbers? The second function undoes the first.
"""


# %% tags=["solution"]
def my_split_heads(x, num_heads):
    """(B, S, H) → (B, A, S, D): head a gets the features a·D to (a+1)·D of every token."""
    B, S, H = x.shape
    return x.reshape(B, S, num_heads, H // num_heads).transpose(0, 2, 1, 3)


# %%
check("09.split_heads", my_split_heads)

# %% [markdown] tags=["yours"]
r"""
What passes its check can become a part of your own BERT, which [20](20_your_bert.ipynb) puts together. `keep` writes it into the folder
`my_bert`.
"""

# %% tags=["yours"]
from minibert.course import keep

# %% tags=["yours"]
keep("09.split_heads", my_split_heads)


# %% tags=["solution"]
def my_merge_heads(heads):
    """(B, A, S, D) → (B, S, H): undoes the split."""
    B, A, S, D = heads.shape
    return heads.transpose(0, 2, 1, 3).reshape(B, S, A * D)


# %%
check("09.merge_heads", my_merge_heads)

# %% tags=["yours"]
keep("09.merge_heads", my_merge_heads)

# %% [markdown] tags=["answer"]
r"""
The library has the same two lines:
"""

# %% tags=["answer"]
print(inspect.getsource(split_heads))
print(inspect.getsource(merge_heads))

# %% [markdown]
r"""
## 4. Twelve heads for the price of one

Where do the parts of a head come from? The linear map that makes $q$ has a weight of shape (H, H), and its output $n$ comes
from row $n$ ([02](02_linear.ipynb)). Head $a$ gets the outputs $aD$ to $(a+1)D$. So it owns these *rows* of $W_q$, and the same rows
of $W_k$ and $W_v$. Splitting the result is the same as having $A$ small maps of shape (D, H), one for each head.

The library goes one step further and puts $W_q$, $W_k$ and $W_v$ below each other: one product with a weight of shape (3H, H) makes
everything that all heads need.
"""

# %%
print(inspect.getsource(packed_attention))

# %% [markdown]
r"""
`split_qkv` cuts the last axis into three parts and splits each of them. Compare it with a loop in which every head is alone with
its own rows, and uses `one_head` from notebook 08:
"""

# %%
B, S, H, A = 3, 5, 12, 4
D = H // A
x = rng.standard_normal((B, S, H))
qkv_weight = rng.standard_normal((3 * H, H)) / np.sqrt(H)
mask = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 1, 0], [1, 1, 0, 0, 0]])
bias = attention_bias(mask, "float64")  # (B, 1, 1, S)

qkv, _ = linear(x, qkv_weight, np.zeros(3 * H))  # (B, S, 3H)
y, _ = packed_attention(qkv, bias, A, 0.0, None)  # (B, S, H)


def loop_over_heads(x):
    outputs = []
    for a in range(A):
        of_head = slice(a * D, (a + 1) * D)
        q, k, v = (x @ weight[of_head].T for weight in np.split(qkv_weight, 3))  # (B, S, D) each
        outputs.append(one_head(q, k, v, bias[:, 0])[0])
    return np.concatenate(outputs, axis=-1)  # side by side: (B, S, H)


assert np.allclose(loop_over_heads(x), y)
print(f"largest difference: {np.abs(loop_over_heads(x) - y).max():.0e}")

# %% [markdown]
r"""
What do more heads cost? Let us count for one layer of BERT-base and one sequence of 128 tokens. The scores of a head are $S^2$ dot
products of length $D$. With $A$ heads, that makes $A \cdot S^2 \cdot D = S^2 H$ multiplications, whatever $A$ is.
"""

# %%
print("heads    D   weights of q, k, v   multiplications for scores   numbers in p")
for heads in (1, 4, 12, 48):
    size = 768 // heads
    print(
        f"{heads:5} {size:4} {3 * 768 * 768:20,} {heads * 128**2 * size:28,} {heads * 128**2:14,}"
    )

# %% [markdown]
r"""
Only $p$ grows. What you pay with is $D$. A head's scores are a product of (S, D) and (D, S), so they are a matrix of rank `D` at
most. A head with few features can only make simple patterns. BERT keeps $D = 64$ in every size, and larger models have more heads.
"""

# %%
for a in (1, 2, 4, 12):
    q, k, _ = np.split(qkv, 3, axis=-1)
    q, k = split_heads(q, a), split_heads(k, a)
    rank = np.linalg.matrix_rank(q[0, 0] @ k[0, 0].T)
    print(f"A = {a:2}, D = {H // a:2}: rank of the {S} × {S} scores of a head: {rank}")

for name in ("tiny", "mini", "base", "large"):
    size, heads = BertConfig.preset(name).hidden_size, BertConfig.preset(name).num_attention_heads
    print(f"BERT-{name:<6} H = {size:4} = {heads:2} heads × {size // heads}")

# %% [markdown]
r"""
## 5. The backward pass of moving numbers around

$dx$ means $\partial L / \partial x$. All heads of a layer together are a chain of four steps, and only one of these computes anything:
"""

# %% tags=["figure"]
# Caption: The steps of all heads. Only attention computes; the other steps move numbers.
CHAIN = {"qkv": (0, 0), "q k v": (1.6, 0), "heads": (3.2, 0), "results": (5.1, 0), "y": (6.7, 0)}
STEPS = [("qkv", "q k v", "cut"), ("q k v", "heads", "split")]
STEPS += [("heads", "results", "attention"), ("results", "y", "merge")]
figure, axes = plt.subplots(figsize=(7.5, 1.0))
plots.graph(axes, CHAIN, STEPS)
figure.set_label(
    "Boxes in a row: qkv is cut into q, k and v, these are split into heads, attention "
    "runs in each, and the results are merged into y"
)
plt.show()

# %% [markdown]
r"""
The split computes nothing: every number of its output *is* a number of its input, in another place. Write both as long
vectors and number the places, so that $y_{\pi(n)} = x_n$.

### Your turn: all heads, backwards

@exercise 09.packed_attention_backward

What is $dx_n$, then, and which of your functions computes that? Once you know, ask the same about merging, and about cutting into
three parts.

`cache` is `(attention_cache, num_heads)`, and `attention_backward(dheads, attention_cache)` from notebook 08 returns $dq$, $dk$ and
$dv$ of all heads, (B, A, S, D) each. You have `split_heads`, `merge_heads` and `np.concatenate`.
"""

# %% [markdown] tags=["derivation"]
r"""
Each $x_n$ was used once, in $y_{\pi(n)}$, so

$$ dx_n = dy_{\pi(n)} : $$

every gradient goes back to where its number came from. That is what merging does. **The backward pass of splitting is merging, and
the backward pass of merging is splitting.** The three parts of $qkv$ have no number in common, so their gradients are put side by
side again, in the same order. The whole backward pass is the forward pass read from the end: split, attention's backward pass, merge,
concatenate.
"""


# %% tags=["solution"]
def my_packed_attention_backward(dout, cache):
    """The gradient of packed attention: dqkv (B, S, 3H).

    dout (B, S, H); cache = (attention_cache, num_heads).
    """
    attention_cache, num_heads = cache
    gradients = attention_backward(split_heads(dout, num_heads), attention_cache)
    return np.concatenate([merge_heads(gradient) for gradient in gradients], axis=-1)


# %%
check("09.packed_attention_backward", my_packed_attention_backward)

# %% [markdown]
r"""
As a matrix, the split is a permutation $P$, with one 1 in each row and column. The backward pass of $y = Px$ is
$dx = P^\top dy$, as for every matrix, and for a permutation $P^\top = P^{-1}$: the transpose undoes it.
"""

# %%
small = (1, 3, 4)  # B, S, H
N = 3 * 4
units = np.eye(N).reshape(N, *small[1:])  # N inputs, each with a single 1
P = split_heads(units, 2).reshape(N, N).T  # its columns are what becomes of them
dy = rng.standard_normal((1, 2, 3, 2))  # (B, A, S, D)
assert np.array_equal(P.T @ P, np.eye(N))
assert np.array_equal(P.T @ dy.ravel(), merge_heads(dy).ravel())

# %% tags=["figure"]
# Caption: The split as a matrix with a single 1 in each row, and its transpose, which undoes it.
figure, axes = plt.subplots(1, 2, figsize=(6.5, 3.3))
for panel, title, matrix in zip(axes, ("splitting, P", "merging, Pᵀ"), (P, P.T), strict=True):
    plots.heatmap(panel, matrix)
    panel.set(title=title, xticks=(0, 4, 8), yticks=(0, 4, 8))
axes[0].set(xlabel="place in x", ylabel="place in y")
axes[1].set(xlabel="place in dy", ylabel="place in dx")
plt.show()

# %% [markdown]
r"""
Here is the library's backward pass, compared with numeric gradients, with two padded sequences:
"""

# %%
case = function_case(
    "packed attention",
    lambda qkv: packed_attention(qkv, bias, A, 0.0, None),
    packed_attention_backward,
    {"qkv": qkv},
)
[row] = compare_with_numeric(case)
print(row)
assert row.ok

# %% [markdown]
r"""
## 6. Which tests does a wrong split pass?

Here are three wrong ones that people write, each with the merge that undoes it:
"""


# %%
def one_reshape(x, A):
    return x.reshape(B, A, S, H // A)


def dealt_out(x, A):  # the features in turn: 0, A, 2A, … to the first head
    return x.reshape(B, S, H // A, A).transpose(0, 3, 1, 2)


def heads_first(x, A):  # as if the heads came before the batch in memory
    return x.reshape(A, B, S, H // A).transpose(1, 0, 2, 3)


SPLITS = {
    "right": (split_heads, merge_heads),
    "one reshape": (one_reshape, lambda heads: heads.reshape(B, S, H)),
    "features dealt out": (dealt_out, lambda heads: heads.transpose(0, 2, 3, 1).reshape(B, S, H)),
    "heads first": (heads_first, lambda heads: heads.transpose(1, 0, 2, 3).reshape(B, S, H)),
}

# %% [markdown]
r"""
And here are six tests. The gradient check takes the whole of packed attention, with the wrong split and its merge in both the forward
and the backward pass, as a person with that mistake would write it.
"""


# %%
def with_split(split, merge, A):
    """Packed attention, forward and backward pass, with this way of splitting."""

    def forward(qkv):
        q, k, v = (split(third, A) for third in np.split(qkv, 3, axis=-1))
        y, cache = attention(q, k, v, bias, 0.0, None)
        return merge(y), cache

    def backward(dout, cache):
        gradients = attention_backward(split(dout, A), cache)
        return np.concatenate([merge(gradient) for gradient in gradients], axis=-1)

    return forward, backward


def verdicts(split, merge):
    """Which of the tests this way of splitting passes, by their names."""
    heads = split(x, A)
    pair = with_split(split, merge, A)
    of_one_head, _ = with_split(split, merge, 1)[0](qkv)
    changed = x.copy()
    changed[1, 2] += 1.0  # one token …
    moved = (split(changed, A) != heads).any(axis=(1, 3))  # (B, S): … moves which rows?
    gradients = compare_with_numeric(function_case("", *pair, {"qkv": qkv}))
    return {
        "shape": heads.shape == (B, A, S, D),
        "merge\nundoes it": np.array_equal(merge(heads), x),
        "one\nhead": np.allclose(of_one_head, packed_attention(qkv, bias, 1, 0.0, None)[0]),
        "gradient\ncheck": all(row.ok for row in gradients),
        "change\na token": moved[1, 2] and moved.sum() == 1,
        "loop over\nheads": np.allclose(pair[0](qkv)[0], loop_over_heads(x)),
    }


results = {name: verdicts(*pair) for name, pair in SPLITS.items()}
passed = np.array([list(result.values()) for result in results.values()])  # (ways, tests)
assert passed[0].all() and not passed[1:].all(axis=1).any()
assert passed[:, :4].all()

# %% tags=["figure"]
# Caption: Which test (columns) catches which wrong split (rows).
figure, axes = plt.subplots(figsize=(7.0, 2.9))
axes.imshow(passed, cmap=ListedColormap([plots.BLUE, "#f2f2f2"]), vmin=0, vmax=1, aspect="auto")
for (row, column), ok in np.ndenumerate(passed):
    text, colour = ("passes", "black") if ok else ("caught", "white")
    axes.text(column, row, text, ha="center", va="center", color=colour, fontsize=9.5)
axes.set_xticks(range(6), results["right"], fontsize=9.5)
axes.set_yticks(range(len(SPLITS)), SPLITS)
axes.xaxis.tick_top()
axes.tick_params(length=0)
axes.grid(False)
axes.spines[:].set_visible(False)
plt.show()

# %% [markdown]
r"""
Four of the six tests catch nothing, and above all **the gradient check** does not. It compares a backward pass with *its own forward
pass*, and if both mix the tokens in the same way, they agree to the last digit. It proves that you differentiated what you wrote, not
that you wrote what you wanted. For that, test a property (a change of a token stays in its row), and compare with something slow and
plain.

Is "dealt out" even wrong? It mixes nothing, and only names the features differently. A model that learns with it from
scratch is just as good. A model that gets trained weights from elsewhere is broken:
"""

# %%
renamed = np.arange(H).reshape(D, A).T.ravel()  # 0, A, 2A, …, 1, A + 1, …
assert np.array_equal(dealt_out(x, A), split_heads(x[..., renamed], A))
print("dealt out = right, with the features in this order:", renamed)

# %% [markdown]
r"""
## 7. Heads divide the work

Here is another toy. Ten tokens form a ring, and each is one of six symbols. Every token should tell us three things: the symbol on its
**left**, the one on its **right**, and the **first** one of the sequence. The model is one layer of attention and a linear map of what
it returns. All weights start at random values and learn together, by gradient descent. Nobody says which head should do what.

Only the number of heads changes; all runs have equally many weights.
"""

# %%
S, H, SYMBOLS, BATCH = 10, 48, 6, 32
QUESTIONS = ("left", "right", "first")


def answers(symbols):
    """(BATCH, S, 3): the symbols to the left and to the right of each token, and the first one."""
    first = np.broadcast_to(symbols[:, :1], symbols.shape)
    return np.stack([np.roll(symbols, 1, axis=1), np.roll(symbols, -1, axis=1), first], axis=-1)


def predict(context, weight):
    logits, cache = linear(context, weight, np.zeros(3 * SYMBOLS))  # (BATCH, S, 3 · SYMBOLS)
    return logits.reshape(-1, SYMBOLS), cache


def correct(context, weight, labels):
    """(3,): the share of right answers to each question."""
    guesses = predict(context, weight)[0].argmax(axis=-1).reshape(labels.shape)
    return (guesses == labels).mean(axis=(0, 1))


# %%
def train(A, steps=600, learning_rate=0.2):
    """Train with A heads; the last batch's context, readout, labels and attention maps."""
    rng = np.random.default_rng(0)
    table, positions = rng.standard_normal((SYMBOLS, H)), rng.standard_normal((S, H))
    qkv_weight = rng.standard_normal((3 * H, H)) / np.sqrt(H)
    readout = rng.standard_normal((3 * SYMBOLS, H)) / np.sqrt(H)
    nothing_masked, ones = np.zeros((BATCH, 1, 1, S)), np.ones(BATCH * S * 3)
    for _ in range(steps):
        symbols = rng.integers(SYMBOLS, size=(BATCH, S))
        x, labels = (table[symbols] + positions) / np.sqrt(2), answers(symbols)
        qkv, qkv_cache = linear(x, qkv_weight, np.zeros(3 * H))
        context, attention_cache = packed_attention(qkv, nothing_masked, A, 0.0, None)
        logits, readout_cache = predict(context, readout)
        _, loss_cache = cross_entropy(logits, labels.ravel(), ones, BATCH * S)

        dlogits = cross_entropy_backward(1.0, loss_cache).reshape(BATCH, S, -1)
        dcontext, dreadout, _ = linear_backward(dlogits, readout_cache)
        dqkv = packed_attention_backward(dcontext, attention_cache)
        qkv_weight -= learning_rate * linear_backward(dqkv, qkv_cache)[1]
        readout -= learning_rate * dreadout
    q, k, _ = split_qkv(qkv, A)
    attention_map, _ = softmax(attention_scores(q, k, nothing_masked))
    return context, readout, labels, attention_map


HEADS = (1, 2, 3, 4, 6)
trained = {A: train(A) for A in HEADS}
shares = np.array([correct(*trained[A][:3]) for A in HEADS])  # (5, 3)
assert (shares[2:] > 0.99).all() and (shares[:2].min(axis=1) < 0.7).all()

# %% tags=["figure"]
# Caption: The share of right answers to each of the three questions, with one to six heads.
figure, axes = plt.subplots(figsize=(4.6, 3.4))
image = plots.heatmap(axes, shares, digits=2)
image.set_clim(0, 1)
axes.set_xticks(range(3), QUESTIONS)
axes.set_yticks(range(len(HEADS)), [f"{A} head{'s' * (A > 1)}" for A in HEADS])
axes.set(title="share of right answers", aspect="auto")
plt.show()

# %% [markdown]
r"""
One head answers no question reliably: it divides its attention, and gets 0.39, 0.75 and 0.69 of the answers right. (Guessing gives
0.17, so unequal weights do help.) Two heads answer two questions, and three or more answer all. Here is where the heads look when there
are four:
"""

# %%
maps = trained[4][3].mean(axis=0)  # (A, S, S), mean over the batch

# %% tags=["figure"]
# Caption: Attention maps of the four heads, averaged over a batch of rings: the right neighbour, the
#   left one, the right one again, and the first token.
figure, axes = plt.subplots(1, 4, figsize=(7.5, 2.4), sharey=True)
for a, panel in enumerate(axes):
    plots.heatmap(panel, maps[a]).set_clim(0, 1)
    panel.set(title=f"head {a}", xlabel="key", xticks=(0, 3, 6, 9), yticks=(0, 3, 6, 9))
axes[0].set_ylabel("query")
plt.show()

# %% [markdown]
r"""
A stripe beside the diagonal is a neighbour, and a bright column is the first token. To be sure, take heads out. What they return
lies side by side, and the linear map that follows (in BERT, `attention.output.dense`) adds up what it makes of each:

$$
y \, W^\top = \sum_a y_a \, W_a^\top, \qquad W_a = \text{columns } aD \text{ to } (a+1)D \text{ of } W .
$$

So each head *adds* to the result independently, and we remove one by overwriting its part with zeros.
"""

# %%
context, readout, labels, _ = trained[4]
D = H // 4
parts = [slice(a * D, (a + 1) * D) for a in range(4)]
added = sum(context[..., part] @ readout[:, part].T for part in parts)
assert np.allclose(added, linear(context, readout, np.zeros(3 * SYMBOLS))[0])

without = []
for part in parts:
    cut = context.copy()
    cut[..., part] = 0.0
    without.append(correct(cut, readout, labels))
without = np.array(without)  # (A, 3)

# %% tags=["figure"]
# Caption: The share of right answers when one head is taken out. What falls was that head's job.
figure, axes = plt.subplots(figsize=(4.6, 2.9))
plots.heatmap(axes, without, digits=2).set_clim(0, 1)
axes.set_xticks(range(3), QUESTIONS)
axes.set_yticks(range(4), [f"without head {a}" for a in range(4)])
axes.set(title="share of right answers", aspect="auto")
plt.show()

# %% [markdown]
r"""
Only head 1 knows the left neighbour, and only head 3 the first token. Heads 0 and 2 share the right neighbour: without head 0 the
answers get worse, and without head 2 nothing happens. There were three jobs for four heads. Michel, Levy and Neubig (2019) found
something similar in a trained BERT: most heads can be taken out, one at a time, with hardly any loss of quality. What BERT's heads
look at is the subject of [16](16_looking_inside.ipynb).

### Open: keys and values for all heads together

@exercise 09.multi_query_backward

A model that writes text keeps the keys and values of everything that it has written, for every head. Shazeer
([2019](https://arxiv.org/abs/1911.02150)) kept only one set of them. In **multi-query attention**, each head has queries of its own,
and all heads share the same keys and values. The linear map in front then makes only H + 2D numbers per token.
"""


# %%
def multi_query(qkv, bias, num_heads):
    """qkv (B, S, H + 2D), bias (B, 1, 1, S) → y (B, S, H), (attention_cache, num_heads)."""
    D = qkv.shape[-1] // (num_heads + 2)
    q = split_heads(qkv[..., : -2 * D], num_heads)  # (B, A, S, D)
    k = np.broadcast_to(qkv[:, None, :, -2 * D : -D], q.shape)  # the same for every head
    v = np.broadcast_to(qkv[:, None, :, -D:], q.shape)
    y, attention_cache = attention(q, k, v, bias, 0.0, None)
    return merge_heads(y), (attention_cache, num_heads)


qkv = rng.standard_normal((2, 5, 4 * 3 + 2 * 3))  # A = 4, D = 3
print(multi_query(qkv, np.zeros((2, 1, 1, 5)), 4)[0].shape)

# %% [markdown]
r"""
Find $dqkv$. Everything that you need is in section 5, except for one question: how often was each key used?
"""

# %% [markdown] tags=["derivation"]
r"""
The queries are as before. A key was used by all `A` heads, and each of them sends a gradient back. `attention_backward` returns
the gradients from each head, (B, A, S, D). The key gets their **sum over the heads**, and so does the value:

$$ dk = \sum_a dk_a, \qquad dv = \sum_a dv_a . $$

That is un-broadcasting, the rule of [01](01_gradients.ipynb): what the forward pass repeated along an axis is summed along it on
the way back.
"""


# %% tags=["solution"]
def my_multi_query_backward(dout, cache):
    """The gradient of multi_query: dqkv (B, S, H + 2D).

    dout (B, S, H); cache = (attention_cache, num_heads).
    """
    attention_cache, num_heads = cache
    dq, dk, dv = attention_backward(
        split_heads(dout, num_heads), attention_cache
    )  # (B, A, S, D) each
    return np.concatenate([merge_heads(dq), dk.sum(axis=1), dv.sum(axis=1)], axis=-1)


# %%
check("09.multi_query_backward", my_multi_query_backward)

# %% [markdown]
r"""
## Recap

- One head returns one mean, which forgets who gave what. Several heads keep several means apart, side by side.
- Splitting gives each head `D` neighbouring features of every token. It is a reshape of the last axis, *then* a transpose.
- Head `a` owns rows $aD$ to $(a+1)D$ of $W_q$, $W_k$, $W_v$. The numbers of weights and multiplications are the same for any `A`.
- Splitting is a permutation, so its backward pass is its inverse, merging, and the other way round.
- Keys that all heads share collect the gradients of all heads.
- The next linear map adds up what the heads contribute, so any head can be taken out by itself.

## What usually goes wrong

- **One reshape to (B, A, S, D).** It mixes tokens, although the shape is right and the gradient check passes.
- **Merging without the transpose.** `heads.reshape(B, S, H)` joins neighbouring *tokens* of one head.
- **Features dealt out.** (D, A) instead of (A, D) is harmless until real weights are loaded.
- **√H instead of √D.** A score of one head has `D` terms.
- **q, k and v within each head.** $qkv$ holds all of $q$, then all of $k$, then all of $v$.

## Three questions

Answer before you unfold.
"""

# %% [markdown]
r"""
<details>
<summary><b>1.</b> You swap heads 3 and 7 of a trained layer: their rows of all three weights and biases, and nothing else. Is the
model the same? What else would have to be swapped?</summary>

No. What the heads return is now in other places, and the linear map after them reads the wrong features. If you swap its columns
of heads 3 and 7 as well, nothing has changed. Heads have no order of their own.

</details>
"""

# %% [markdown]
r"""
<details>
<summary><b>2.</b> What does the padding mask do to a model with "one reshape"?</summary>

Row $j$ of a head is then not token $j$, but usually a piece of some other token. The mask hides rows by their number, so it hides
pieces of real tokens and shows pieces of padding.

</details>
"""

# %% [markdown]
r"""
<details>
<summary><b>3.</b> Why not 768 heads of one feature each?</summary>

A score would be the product of two numbers. So the scores would have rank 1, and all queries of a head would prefer the same keys,
or the opposite ones. Even "look at your left neighbour" cannot be expressed in that way. And $p$ would be 64 times as large
as with 12 heads.

</details>
"""

# %% [markdown]
r"""
## Further reading

- Vaswani and others, [Attention is all you need](https://arxiv.org/abs/1706.03762), 2017: table 3 compares different numbers of heads.
- Michel, Levy and Neubig, [Are sixteen heads really better than one?](https://arxiv.org/abs/1905.10650), 2019: many heads can be removed after training.
- Voita and others, [Analyzing multi-head self-attention](https://arxiv.org/abs/1905.09418), 2019: which heads specialise, and which of them can be pruned.
- Clark and others, [What does BERT look at?](https://arxiv.org/abs/1906.04341), 2019: what the 144 heads of BERT-base attend to.
- Shazeer, [Fast transformer decoding: one write-head is all you need](https://arxiv.org/abs/1911.02150), 2019: multi-query attention.
- Ainslie and others, [GQA](https://arxiv.org/abs/2305.13245), 2023: the middle way, in which groups of heads share keys and values.

**Next:** [10 · The encoder](10_encoder.ipynb), where attention becomes half of a layer.
The code of this notebook: [attention.py](../minibert/ops/attention.py), [composites.py](../minibert/ops/composites.py).
"""
