# %% [markdown]
r"""
# 08 · Attention

Linear maps, GELU and LayerNorm treat every token by itself. Attention is the only place in BERT where one token
learns anything from another: everything that a token knows of its context passes through the few lines below.

**You will** compute attention for a sentence, query by query, and then write it for a whole batch · say where √D comes from, and
watch what happens without it · mask padding, and see what goes wrong with other ways of doing it · derive the gradient of one
query, step by step, and then of all · train a head with it · see what long texts cost.

**Before this:** [02 · Linear](02_linear.ipynb), [03 · Softmax](03_softmax_cross_entropy.ipynb),
[06 · Embeddings](06_embeddings.ipynb).
**Time:** 120 minutes with the exercises; it runs in seconds.

| letter | in this notebook |
|---|---|
| `B`, `S` | sequences in a batch, tokens in a sequence |
| `H` | hidden size: how many numbers describe a token |
| `D` | how many numbers a query or a key has |
| `A` | heads; always 1 here, more in [09](09_many_heads.ipynb) |
"""

# %%
import inspect
import time

import matplotlib.pyplot as plt
import numpy as np

from minibert import check, plots
from minibert.course import read_log
from minibert.course.exercises.n08_attention import one_head
from minibert.gradcheck import check as compare_with_numeric
from minibert.gradcheck import function_case
from minibert.ops.attention import attention, attention_backward, attention_bias
from minibert.ops.cross_entropy_loss import cross_entropy, cross_entropy_backward
from minibert.ops.linear_map import linear, linear_backward
from minibert.ops.stable_softmax import softmax, softmax_backward

plots.notebook_style()
np.set_printoptions(precision=3, suppress=True)
rng = np.random.default_rng(8)

# %% [markdown]
r"""
## 1. A dictionary that mixes its answers

In Python, `d[query]` returns the value whose key equals the query. Attention is a dictionary in which keys match *more or less*, and
the answer is the mean of all values, weighted by how well their keys match.

Take a sentence, and numbers that I made up. Two features say what a word **is** (its key): a thing, or an event. The same two
say what it **looks for** (its query): "it" looks for a thing to stand for, "sat" for a thing that sits, "cat" for what
happens to it, and "the" for nothing. What a word **gives** (its value) is described by three other features: animal, posture, mood.
"""

# %%
words = "the cat sat because it was tired".split()
#                    the     cat     sat   because    it      was    tired
is_a = np.array([[0, 0], [4, 0], [0, 3], [0, 0], [1, 0], [0, 1], [0, 2]], float)  # keys (S, D)
seeks = np.array([[0, 0], [0, 2], [2, 0], [0, 0], [2, 0], [0, 1], [1, 0]], float)  # queries (S, D)
gives = np.zeros((7, 3))  # values: animal, posture, mood
gives[words.index("cat"), 0] = gives[words.index("sat"), 1] = gives[words.index("tired"), 2] = 1


def match(query):
    """(S,): how well each key matches this query."""
    return np.array([sum(query * key) for key in is_a]) / np.sqrt(2)


weights = np.array([softmax(match(query))[0] for query in seeks])  # (S, S): each row sums to 1
gets = np.array(
    [sum(weight * value for weight, value in zip(row, gives, strict=True)) for row in weights]
)  # (S, 3): what each word learns

print("          animal posture mood")
for word, row in zip(words, gets, strict=True):
    print(f"{word:<9} {row[0]:6.2f} {row[1]:7.2f} {row[2]:4.2f}")

# %% tags=["figure"]
# Caption: Each row is a query, and shows how it distributes its attention over the keys.
figure, axes = plt.subplots(figsize=(6.2, 4.3))
image = plots.heatmap(axes, weights, digits=2)
axes.set_xticks(range(7), words)
axes.set_yticks(range(7), words)
axes.set(
    title="who looks at whom", xlabel="key: the word looked at", ylabel="query: the word that looks"
)
figure.colorbar(image, shrink=0.8)
plt.show()

# %% [markdown]
r"""
Read the figure by rows. "it" puts 0.97 of its weight on "cat", and so learns that it is an animal. "cat" looks at "sat" and
"tired", and learns of a posture and a mood. "the", which looks for nothing, gets the mean of all values.

With $q_i$, $k_j$, $v_j$ for the rows of queries, keys and values:

$$
s_{ij} = \frac{1}{\sqrt D} \sum_d q_{id} \, k_{jd}, \qquad
p_{ij} = \frac{e^{s_{ij}}}{\sum_l e^{s_{il}}}, \qquad
y_i = \sum_j p_{ij} \, v_j .
$$

How sharp is the choice? Multiply the query of "it" by a factor. With 0, every word matches equally, and the answer is the plain
mean. With 5, attention behaves like a dictionary.
"""

# %%
it = words.index("it")
print("factor ", *(f"{word:>8}" for word in words))
for factor in (0.0, 0.3, 1.0, 5.0):
    sharpened, _ = softmax(factor * match(seeks[it]))
    print(f"{factor:<7}", *(f"{weight:8.3f}" for weight in sharpened))

# %% [markdown]
r"""
### In BERT, the numbers are learned

In BERT, nobody makes the numbers up. Queries, keys and values are three linear maps of the same hidden states $x$, with weights
that are learned: $q = x W_q^\top + b_q$, and so on. Hence the name *self*-attention.

### Your turn: one head

@exercise 08.attention

Above, the queries took turns. Write the same for all queries of a batch at once, without a loop. The function takes $q$, $k$
and $v$ as they come out of the three maps. It also takes a `bias`, which is added to the scores, and will be the mask of section 3.
`softmax(scores)` returns the weights and a cache, which you do not need here. The backward pass will need $q$, $k$, $v$ and the
weights $p$.
"""


# %% tags=["solution"]
def my_attention(q, k, v, bias):
    """One head of attention: y (B, S, D), (q, k, v, p).

    q, k, v (B, S, D), bias (B, 1, S) or (B, S, S). The cache is a tuple of q, k and v as they came in, and the weights
    p (B, S, S), with one row per query.
    """
    scores = q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[-1]) + bias  # (B, S, S)
    p, _ = softmax(scores)  # (B, S, S)
    return p @ v, (q, k, v, p)


# %%
check("08.attention", my_attention)

# %% [markdown] tags=["yours"]
r"""
What passes its check can become a part of your own BERT, which [20](20_your_bert.ipynb) puts together. `keep` writes it into the folder
`my_bert`.
"""

# %% tags=["yours"]
from minibert.course import keep

# %% tags=["yours"]
keep("08.attention", my_attention)

# %% [markdown] tags=["answer"]
r"""
Here is the library's version, which also drops single weights in training ([04](04_gelu_dropout.ipynb)):
"""

# %% tags=["answer"]
print(inspect.getsource(attention))

# %% [markdown]
r"""
The library's function computes `A` heads at once. In this notebook there is only one head, without dropout, so we drop that axis.
`one_head` is what you have just written, and it agrees with the library:
"""

# %%
B, S, D = 3, 4, 5
q, k, v = rng.standard_normal((3, B, S, D))
no_bias = np.zeros((B, 1, S))
y, (_, _, _, p) = one_head(q, k, v, no_bias)  # (B, S, D), p (B, S, S)

of_library, _ = attention(q[:, None], k[:, None], v[:, None], no_bias[:, None], 0.0, None)
assert np.allclose(y, of_library[:, 0], rtol=0, atol=1e-15)

# %% [markdown]
r"""
### The shapes

All of attention is two matrix products with a softmax between them. Here they are for one sequence, drawn to scale for S = 6 and D = 3:
"""

# %% tags=["figure"]
# Caption: Attention for one sequence, to scale. The vermilion row shows what becomes of one query.
SIDE = {"S": 6, "D": 3}
DATA, CHOICE = "#cfe3f1", "#f8e0b0"
figure, axes = plt.subplots(figsize=(7.5, 2.6))
at = 0.0
for term in (
    ("q", "S", "D", DATA),
    "·",
    ("kᵀ", "D", "S", DATA),
    "→",
    ("p", "S", "S", CHOICE),
    "·",
    ("v", "S", "D", DATA),
    "=",
    ("y", "S", "D", DATA),
):
    if isinstance(term, str):
        middle = at + (1.6 if term == "→" else 1.2)
        axes.text(middle, 0, term, ha="center", va="center", fontsize=15)
        if term == "→":
            axes.text(middle, 1.0, "/ √D\n+ bias", ha="center", va="bottom", fontsize=9)
            axes.text(middle, -1.0, "softmax\nof rows", ha="center", va="top", fontsize=9)
            at += 0.9
        at += 2.0
        continue
    name, rows, columns, colour = term
    height, width = SIDE[rows], SIDE[columns]
    at += 0.4
    axes.add_patch(plt.Rectangle((at, -height / 2), width, height, facecolor=colour, ec="black"))
    if name == "kᵀ":  # a key is a column
        axes.vlines(at + np.arange(1, width), -height / 2, height / 2, color="white", linewidth=1)
    else:
        axes.hlines(np.arange(1, height) - height / 2, at, at + width, color="white", linewidth=1)
    if name in "qpy":  # row 1, which one query fills
        row = plt.Rectangle((at, height / 2 - 2), width, 1, facecolor=plots.VERMILION, alpha=0.35)
        axes.add_patch(row)
    axes.text(at + width / 2, -0.5, name, ha="center", va="center", fontsize=13)
    axes.text(at - 0.1, 0, rows, ha="right", va="center", fontsize=9, color=plots.GREY)
    axes.text(at + width / 2, height / 2 + 0.1, columns, ha="center", va="bottom", fontsize=9)
    axes.texts[-1].set_color(plots.GREY)
    at += width
axes.set(xlim=(-0.5, at + 0.5), ylim=(-3.4, 3.9), aspect="equal")
axes.axis("off")
figure.set_label(
    "Attention as matrices: q (S, D) times k transposed (D, S) gives scores (S, S); divided by the root of D, with "
    "the bias added and softmax applied to each row they are p (S, S); p times v (S, D) is y (S, D)."
)
plt.show()

# %% [markdown]
r"""
Follow the vermilion row. One query meets all keys, so it fills one row of p, and this row mixes the rows of v into one row of y. The
length of the text appears twice in the shape of p. Section 9 is about what that costs.

### It does not know the order

Nothing in the formula depends on where a token is. Shuffle the tokens, and you get the same results, shuffled. To
attention, a sentence is a *set*, and "dog bites man" is the same as "man bites dog". That is why
[positions are added](06_embeddings.ipynb) to the embeddings.
"""

# %%
order = np.array([2, 0, 3, 1])
shuffled, _ = one_head(q[:, order], k[:, order], v[:, order], no_bias)
assert np.allclose(shuffled, y[:, order])
print(f"largest difference: {np.abs(shuffled - y[:, order]).max():.0e}")

# %% [markdown]
r"""
## 2. Why divide by √D?

Let the numbers in $q$ and $k$ be independent, with mean 0 and variance 1. What is the variance of a score? One product has
mean $\mathbb E[q_d k_d] = \mathbb E[q_d] \, \mathbb E[k_d] = 0$, so

$$
\operatorname{Var}(q_d k_d) = \mathbb E[q_d^2 k_d^2] = \mathbb E[q_d^2] \, \mathbb E[k_d^2] = 1 ,
$$

and the variances of independent terms add up:

$$
\operatorname{Var}(q \cdot k) = \sum_{d=1}^{D} \operatorname{Var}(q_d k_d) = D .
$$

A typical score is about as large as √D: with 64 features, that is 8. After the division by √D, its variance is 1, whatever `D` is.
Measure this, and see what the softmax makes of such scores:
"""

# %%
SIZES = 2 ** np.arange(11)  # D from 1 to 1024
KEYS = 64


def look(D, scale):
    """1,000 random queries, 64 keys each: variance of the scores, effective number of keys, share of a gradient."""
    q, k = rng.standard_normal((1000, 1, D)), rng.standard_normal((1000, KEYS, D))
    scores = (q @ k.transpose(0, 2, 1))[:, 0]  # (1000, KEYS)
    p, cache = softmax(scores * scale)
    entropy = -(p * np.log(np.maximum(p, 1e-300))).sum(axis=-1)  # (1000,)
    dp = rng.standard_normal(p.shape)
    through = np.linalg.norm(softmax_backward(dp, cache), axis=-1) / np.linalg.norm(dp, axis=-1)
    return scores.var(), np.exp(entropy).mean(), np.median(through)


raw = np.array([look(size, 1.0) for size in SIZES])  # (11, 3)
divided = np.array([look(size, 1 / np.sqrt(size)) for size in SIZES])
for size, variance in zip(SIZES[::2], raw[::2, 0], strict=True):
    print(f"D = {size:4}   variance of q·k = {variance:7.1f}")
assert np.allclose(raw[:, 0] / SIZES, 1, atol=0.1)

# %% tags=["figure"]
# Caption: Without the division by √D, a query looks at a single key as soon as D is large, and
#   almost no gradient gets through.
figure, axes = plt.subplots(1, 2, figsize=(7.5, 3.1))
for values, label, colour in (
    (divided, "divided by √D", plots.BLUE),
    (raw, "not", plots.VERMILION),
):
    axes[0].semilogx(SIZES, values[:, 1], "o-", base=2, color=colour, label=label)
    axes[1].loglog(SIZES, values[:, 2], "o-", color=colour, label=label)
axes[1].set_xscale("log", base=2)
axes[0].set(
    title="keys that a query looks at", xlabel="D", ylabel="effective number, of 64", ylim=0
)
axes[1].set(title="what gets through the softmax", xlabel="D", ylabel="‖ds‖ / ‖dp‖, typical row")
axes[0].legend()
plt.show()

# %% [markdown]
r"""
On the left is the effective number of keys that a query looks at. It is
$e^{\text{entropy}}$, where the entropy of the weights is $-\sum_j p_j \ln p_j$. If $n$ keys share the weight equally, it is $n$. Without the division, a query
of 1,024 features chooses a single key before anything has been learned. The right panel shows what that means for the gradient. The
softmax's derivative, $p_{ij}(\delta_{jl} - p_{il})$, is nearly 0 wherever $p$ is nearly 0 or 1. So for large $D$ a wrong choice is hard to
unlearn: almost no gradient comes back. (For $D = 64$, about half as much as with the division.) [Section 8](#8.-A-head-learns) shows it at work.

BERT-base starts with smaller numbers than this argument assumes: its weights are drawn with a standard deviation of 0.02, so
queries and keys made from 768 normalised features have a standard deviation below 1.
"""

# %%
x = rng.standard_normal((KEYS, 768))  # 64 tokens, as LayerNorm leaves them
start_q, start_k = x @ (0.02 * rng.standard_normal((2, 768, 64)))  # (64, D) each
for name, scale in (("divided by √D", 1 / 8), ("not", 1.0)):
    first, _ = softmax(start_q @ start_k.T * scale)
    effective = np.exp(-(first * np.log(first)).sum(axis=-1)).mean()
    print(f"{name:<14} a fresh head looks at {effective:.0f} of 64 tokens")

# %% [markdown]
r"""
So attention begins almost uniform, and learns where to look.

## 3. Why add −10000 instead of multiplying by 0?

The texts of a batch are filled up with `[PAD]` to equal length. No token should look at the padding, but the obvious ideas fail. Here
are one query and five keys, of which the last two are padding:
"""

# %%
scores = np.array([1.0, -0.5, -2.0, 0.3, 0.3])
real = np.array([1.0, 1.0, 1.0, 0.0, 0.0])
ways = {
    "only the real ones": np.append(softmax(scores[:3])[0], [0, 0]),
    "no mask": softmax(scores)[0],
    "score × 0": softmax(scores * real)[0],
    "weight × 0": softmax(scores)[0] * real,
    "score − 10000": softmax(scores - 10000 * (1 - real))[0],
}
for name, row in ways.items():
    print(f"{name:<19}", *(f"{weight:6.3f}" for weight in row), f"  sum {row.sum():.3f}")
assert np.array_equal(ways["score − 10000"], ways["only the real ones"])

# %% [markdown]
r"""
- **A score of 0 is not a weight of 0.** It counts $e^0 = 1$ before the normalisation, so each padding key gets 0.18, more than two of
  the real words.
- **Multiplying the weight by 0** comes too late. The padding has already taken its share, and the row no longer sums to 1.
- **Subtracting 10000** gives exactly what the real keys alone would give: $e^{-10000}$ is 0 in float16, float32 and float64.

The number has to be low enough for exp to give 0, but not so low that the format cannot hold it:
"""

# %%
with np.errstate(over="ignore", under="ignore"):
    for dtype in (np.float16, np.float32, np.float64):
        lowest, vanishes = np.finfo(dtype).min, np.log(float(np.finfo(dtype).smallest_subnormal))
        print(
            f"{dtype.__name__}: exp(x) is 0 below x = {vanishes:4.0f}, lowest number {lowest:8.1e},"
            f" −10000 is {dtype(-1e4):.0f}, −10⁹ is {dtype(-1e9):.0e}"
        )

# %% [markdown]
r"""
In float16, −10⁹ is −∞; section 4 shows what that does. The library's function makes the bias from a mask of ones
and zeros, once for all layers:
"""

# %%
mask = np.array([[1, 1, 1, 1], [1, 1, 1, 0], [1, 1, 0, 0]])  # (B, S): 1 real, 0 padding
bias = attention_bias(mask, "float64")[:, 0]  # (B, 1, S): the same for every query
print(bias[:, 0].astype(int))

# %% [markdown]
r"""
**The test of any mask:** the real tokens must not notice what is in the padding, and they must get what they
would get without any padding.
"""

# %%
y, _ = one_head(q, k, v, bias)
other_k, other_v = k.copy(), v.copy()
other_k[mask == 0], other_v[mask == 0] = 77.0, -1234.0
y_other, _ = one_head(q, other_k, other_v, bias)
y_short, _ = one_head(q[2:, :2], k[2:, :2], v[2:, :2], np.zeros((1, 1, 2)))  # sequence 2, cut
assert np.array_equal(y_other[mask == 1], y[mask == 1])
assert np.allclose(y_short[0], y[2, :2])

# %% [markdown]
r"""
The mask is only on *keys*. Padding tokens still have queries of their own and get an answer, but nobody reads it: other tokens do
not look there, and the loss does not count it.

## 4. NaN on fully masked rows

Why not −∞, then, which is "forbidden" in its purest form? Because in some rows all keys may be forbidden. This happens with an empty
text in a batch, or with padding in front of a text that is read from left to right. The softmax subtracts the row's largest score, and
−∞ − (−∞) is not a number.
"""

# %%
empty = np.array([[1, 1, 1, 0], [0, 0, 0, 0]])  # the second text is empty
finite = attention_bias(empty, "float64")[:, 0]  # (2, 1, S)
infinite = np.where(empty == 1, 0.0, -np.inf)[:, None]

with np.errstate(invalid="ignore"):
    for name, term in (("−10000", finite), ("−∞", infinite)):
        _, (_, _, _, weights) = one_head(q[:2], k[:2], v[:2], term)
        print(f"{name:<7} weights of the empty text, first query: {weights[1, 0]}")

# %% [markdown]
r"""
With −10000, all scores are equally low. The softmax subtracts that again, and some weights result. They mean nothing, and
nobody reads the answer. Could a NaN not be ignored, too? Let the loss count only the first text, so that
`dout` is 0 for the second. Then go back to the queries, and to the weight $W_q$ that made them:
"""

# %%
x = rng.standard_normal((2, S, D))
dout = rng.standard_normal((2, S, D))
dout[1] = 0.0  # the empty text does not count
with np.errstate(invalid="ignore"):
    for name, term in (("−10000", finite), ("−∞", infinite)):
        _, cache = attention(q[:2, None], k[:2, None], v[:2, None], term[:, None], 0.0, None)
        dq, _, _ = attention_backward(dout[:, None], cache)  # (2, 1, S, D)
        dweight = np.einsum("bsd,bsh->dh", dq[:, 0], x)  # (D, D), summed over the batch
        print(f"{name:<7} NaN in dq, by text: {np.isnan(dq).sum(axis=(1, 2, 3))}", end="")
        print(f"   in dW: {np.isnan(dweight).sum()} of {dweight.size}")

# %% [markdown]
r"""
$0 \cdot \text{NaN}$ is NaN, and the gradient of a weight is a sum over the batch. **With one empty text, the whole model is NaN
after a single step**, although its loss had been a number until then.
"""

# %% [markdown]
r"""
## 5. Left to right, or both directions

The same bias makes attention one-directional: forbid each query all keys to its right. That is how GPT reads, and what
`BertConfig(is_decoder=True)` does. BERT reads in both directions.
"""

# %%
padded = np.array([[1, 1, 1, 1, 1, 0]])
kinds = {
    "BERT: both directions": attention_bias(padded, "float64"),  # (1, 1, 1, S)
    "left to right": attention_bias(np.ones_like(padded), "float64", causal=True),  # (1, 1, S, S)
    "left to right, padded": attention_bias(padded, "float64", causal=True),
}
allowed = {name: np.broadcast_to(term[0, 0] == 0, (6, 6)) for name, term in kinds.items()}

# %% tags=["figure"]
# Caption: Who may look at whom: bright is allowed. In the first and the last panel, the last key is
#   padding.
figure, axes = plt.subplots(1, 3, figsize=(7.5, 2.7))
for panel, (name, may_look) in zip(axes, allowed.items(), strict=True):
    plots.heatmap(panel, may_look.astype(float))
    for line in np.arange(0.5, 5):
        panel.axhline(line, color="white", linewidth=0.8)
        panel.axvline(line, color="white", linewidth=0.8)
    panel.set_title(name, fontsize=10)
    panel.set_xlabel("key")
axes[0].set_ylabel("query")
plt.show()

# %% [markdown]
r"""
Does a token then depend on exactly those tokens that it may look at? Change one token at a time, and see which results change. (A
token's own result always changes, because the query is its own.)
"""


# %%
def who_notices(term):
    """(S, S): whether the result at i changes when the token at j does."""
    maps = np.random.default_rng(0).standard_normal((3, 4, 4))  # Wq, Wk, Wv
    x = np.random.default_rng(1).standard_normal((1, 6, 4))

    def answer(x):
        return one_head(*(x @ weight.T for weight in maps), term[:, 0])[0][0]

    changes = [answer(x + np.eye(6)[j][None, :, None]) - answer(x) for j in range(6)]
    return np.stack([np.abs(change).max(axis=-1) > 0 for change in changes], axis=1)


for name, term in kinds.items():
    assert np.array_equal(who_notices(term), allowed[name] | np.eye(6, dtype=bool))
    print(f"{name:<22} token 2 depends on {np.flatnonzero(who_notices(term)[2])}")

# %% [markdown]
r"""
This decides how a model can be trained. GPT predicts the next word at every position. BERT cannot do that: token 2 looks at
token 3, which would *be* the answer. So BERT [hides words](12_pretraining_data.ipynb) and guesses them from both sides. What
does it gain by that? Some words are decided by what comes *after* them, for example "a" or "an". Section 8 tries this out.
"""

# %% [markdown]
r"""
## 6. The backward pass, step by step

$dx$ means $\partial L / \partial x$ and has the shape of $x$; `dout` is the $dy$ that comes in. The forward pass has three steps:
"""

# %% tags=["figure"]
# Caption: The forward pass of attention in three steps.
NODES = {
    "q": (0, 1),
    "k": (0, 0),
    "s": (1.9, 0.5),
    "p": (3.8, 0.5),
    "v": (3.8, -0.6),
    "y": (5.7, 0.5),
}
FORWARD = [
    ("q", "s", "q kᵀ / √D"),
    ("k", "s", ""),
    ("s", "p", "softmax"),
    ("p", "y", "p v"),
    ("v", "y", ""),
]
figure, axes = plt.subplots(figsize=(7.5, 2.1))
plots.graph(axes, NODES, FORWARD)
figure.set_label(
    "A graph of attention: q and k give the scores s, the softmax makes p of them, and p "
    "with v gives y"
)
plt.show()

# %% [markdown]
r"""
### One query

@exercise 08.one_query_backward

Begin with a single query. $q$ has `D` numbers, there are `S` keys and values, and $s$ and $p$ are rows of `S` numbers.

$$
s_j = \frac{1}{\sqrt D} \sum_d q_d \, k_{jd} + \text{bias}_j, \qquad p = \operatorname{softmax}(s), \qquad y_d = \sum_j p_j \, v_{jd} .
$$
"""


# %%
def one_query(q, k, v, bias):
    p, _ = softmax(k @ q / np.sqrt(len(q)) + bias)  # (S,)
    return p @ v, (q, k, v, p)  # (D,)


q, k, v, dout = rng.standard_normal((4, B, S, D))
y, (_, _, _, p) = one_head(q, k, v, bias)  # all queries; below, query 3 of sequence 1
assert np.allclose(one_query(q[1, 3], k[1], v[1], bias[1, 0])[0], y[1, 3])

# %% [markdown]
r"""
Walk back through the three steps. Return the gradients of everything on the way, where $ds$ is the gradient of the scores as the
softmax gets them. The softmax's own backward pass is from [03](03_softmax_cross_entropy.ipynb), `softmax_backward(dp, (p,))`. The
others take a line each.
"""

# %% [markdown] tags=["derivation"]
r"""
**Step 3**, $y_d = \sum_j p_j v_{jd}$. Ask of each factor where it was used. $p_j$ was used in all features $d$, so it collects a sum
over them. $v_{jd}$ was used in only one feature.

$$ dp_j = \sum_d dy_d \, v_{jd}, \qquad dv_{jd} = p_j \, dy_d . $$

**Step 2**, the softmax:

$$ ds_j = p_j \Big( dp_j - \sum_l p_l \, dp_l \Big) . $$

**Step 1**, $s_j = \frac{1}{\sqrt D} \sum_d q_d k_{jd} + \text{bias}_j$. The bias is a constant. $q_d$ was used with all keys $j$, and
$k_{jd}$ only once. The factor $1 / \sqrt D$ stays:

$$
dq_d = \frac{1}{\sqrt D} \sum_j ds_j \, k_{jd}, \qquad
dk_{jd} = \frac{1}{\sqrt D} \, ds_j \, q_d .
$$
"""


# %% tags=["solution"]
def my_one_query_backward(dout, cache):
    """The gradients of one_query: dv (S, D), dp (S,), ds (S,), dq (D,), dk (S, D).

    dout (D,); cache = (q, k, v, p): q (D,), k and v (S, D), p (S,).
    """
    q, k, v, p = cache
    dv = p[:, None] * dout  # 3: y = Σ p v
    dp = v @ dout
    ds = softmax_backward(dp, (p,))  # 2
    dq = ds @ k / np.sqrt(len(q))  # 1: s = k q / √D + bias
    dk = ds[:, None] * q / np.sqrt(len(q))
    return dv, dp, ds, dq, dk


# %%
check("08.one_query_backward", my_one_query_backward)

# %% [markdown]
r"""
## 7. Your turn: one head's backward pass

@exercise 08.attention_backward

Now do it for all queries of a batch: compute $dq$, $dk$ and $dv$ from `dout` and the cache of `one_head`. A query has its own row of
$p$ and $ds$, but all queries of a sequence share the keys and values. So ask again: what was used by how many?

Every step is one line, without a loop. `array.transpose(0, 2, 1)` swaps the last two axes of each sequence. Note that $p$ and $ds$
are square matrices, `(S, S)`. So if you forget a transpose, the shapes fit all the same.
"""

# %% [markdown] tags=["derivation"]
r"""
Write $i$ for the query. $p_{ij}$ and $q_{id}$ belong to query $i$ alone, so nothing changes for them. Key and value $j$ were used by
**all** queries that looked at token $j$, and collect a sum over $i$:

$$
\begin{aligned}
dp_{ij} &= \sum_d dy_{id} \, v_{jd} & \Rightarrow \quad dp &= dy \, v^\top \\
dv_{jd} &= \sum_i p_{ij} \, dy_{id} & \Rightarrow \quad dv &= p^\top dy \\
dq_{id} &= \tfrac{1}{\sqrt D} \sum_j ds_{ij} \, k_{jd} & \Rightarrow \quad dq &= ds \, k / \sqrt D \\
dk_{jd} &= \tfrac{1}{\sqrt D} \sum_i ds_{ij} \, q_{id} & \Rightarrow \quad dk &= ds^\top q / \sqrt D
\end{aligned}
$$

Watch the index that is summed over. For $dq$ it is the *second* index of $ds_{ij}$, as in an ordinary product. For $dk$ and $dv$ it is
the *first*, so a transpose is needed there.
"""

# %% tags=["figure", "answer"]
# Caption: The same graph backwards. What is computed on an arrow is written beside it.
BACKWARD = [
    ("s", "q", "ds k / √D"),
    ("s", "k", "dsᵀ q / √D"),
    ("p", "s", "softmax′"),
    ("y", "p", "dy vᵀ"),
    ("y", "v", "pᵀ dy"),
]
figure, axes = plt.subplots(figsize=(7.5, 2.1))
plots.graph(axes, NODES, BACKWARD, colour=plots.VERMILION)
figure.set_label(
    "The same graph backwards: dy gives dp and dv, the softmax gives ds, and ds gives dq and dk"
)
plt.show()

# %% [markdown] tags=["answer"]
r"""
Here is one number of each, computed as the plain sums above, compared with the numeric derivative:
"""


# %% tags=["answer"]
def numeric(array, index, h=1e-5):
    """∂L/∂array[index] of L = Σ dout · y, by moving that number."""
    value = array[index]
    losses = []
    for array[index] in (value + h, value - h):
        losses.append((one_head(q, k, v, bias)[0] * dout).sum())
    array[index] = value
    return (losses[0] - losses[1]) / (2 * h)


def ds_row(b, i):
    dp_row = np.array([sum(dout[b, i, d] * v[b, j, d] for d in range(D)) for j in range(S)])
    return p[b, i] * (dp_row - (p[b, i] * dp_row).sum())


b, i, j, d = 1, 3, 2, 4
by_hand = {
    "dv": sum(p[b, n, j] * dout[b, n, d] for n in range(S)),
    "dq": sum(ds_row(b, i)[n] * k[b, n, d] for n in range(S)) / np.sqrt(D),
    "dk": sum(ds_row(b, n)[j] * q[b, n, d] for n in range(S)) / np.sqrt(D),
}
tried = {"dv": numeric(v, (b, j, d)), "dq": numeric(q, (b, i, d)), "dk": numeric(k, (b, j, d))}
for name, number in by_hand.items():
    print(f"{name}  by hand {number:12.9f}   numeric {tried[name]:12.9f}")
    assert np.isclose(number, tried[name])


# %% tags=["solution"]
def my_attention_backward(dout, cache):
    """The gradients of one head: dq, dk, dv, each (B, S, D).

    dout (B, S, D); cache = (q, k, v, p): q, k and v (B, S, D), p (B, S, S).
    """
    q, k, v, p = cache
    dv = p.transpose(0, 2, 1) @ dout  # (B, S, D)
    dp = dout @ v.transpose(0, 2, 1)  # (B, S, S)
    ds = softmax_backward(dp, (p,)) / np.sqrt(q.shape[-1])  # (B, S, S)
    return ds @ k, ds.transpose(0, 2, 1) @ q, dv


# %%
check("08.attention_backward", my_attention_backward)

# %% tags=["yours"]
keep("08.attention_backward", my_attention_backward)

# %% [markdown] tags=["answer"]
r"""
Here is the library's version, for all heads at once and with dropout between $p$ and $v$:
"""

# %% tags=["answer"]
print(inspect.getsource(attention_backward))

# %% [markdown]
r"""
### A parameter that never learns

The numeric gradient agrees with all of it, including the padding:
"""

# %%
term = bias[:, None]  # (B, 1, 1, S)
inputs = {name: array[:, None] for name, array in zip("qkv", (q, k, v), strict=True)}
case = function_case(
    "attention", lambda *qkv: attention(*qkv, term, 0.0, None), attention_backward, inputs
)
for row in compare_with_numeric(case):
    print(row)
    assert row.ok

# %% [markdown]
r"""
Now sum $dk$ over the tokens. That gives $\sum_j dk_j = \frac{1}{\sqrt D} \sum_i \big( \sum_j ds_{ij} \big) q_i$, and every row of
$ds$ sums to 0, because a softmax does not notice a constant added to all scores of its row. But this sum is the gradient of the
**key's bias** $b_k$, which is added to all keys. So `key.bias`, 768 numbers in each layer of BERT-base, learns nothing but
rounding errors, and gradient checks have to take that into account.
"""

# %%
_, cache = attention(*inputs.values(), term, 0.0, None)
dq, dk, dv = attention_backward(dout[:, None], cache)  # (B, 1, S, D)
for name, gradient in (("query", dq), ("key", dk), ("value", dv)):
    print(
        f"gradient of {name + '.bias':<11} largest number {np.abs(gradient.sum((0, 1, 2))).max():.0e}"
    )
assert np.abs(dk.sum((0, 1, 2))).max() < 1e-12

# %% [markdown]
r"""
### Open: a number for each distance

@exercise 08.distances_backward

Not every Transformer adds positions to its embeddings. T5, for example, tells attention itself how far apart two tokens are. A table
has a learned number for each of the $2S - 1$ distances $j - i$ from a query to a key, and that number is added to the score (T5
groups large distances together):

$$ s_{ij} = \frac{1}{\sqrt D} \sum_d q_{id} \, k_{jd} + \text{bias}_j + t_{j - i} . $$
"""


# %%
def attention_with_distances(q, k, v, bias, table):
    S = q.shape[1]
    rows = np.arange(S)[None, :] - np.arange(S)[:, None] + S - 1  # (S, S): j − i, from 0 on
    y, cache = one_head(q, k, v, bias + table[rows])
    return y, (*cache, rows)


_, (*_, rows) = attention_with_distances(q, k, v, bias, np.zeros(2 * S - 1))
print(rows)

# %% [markdown]
r"""
Find the gradient of the table. None of the formulas above contains it, but the question is the same as ever: where was each number
used? When you have a result, add up its numbers before you `check` it. What must the sum of $dt$ be, and why?
"""

# %% [markdown] tags=["derivation"]
r"""
$t_{j-i}$ is added to $s_{ij}$ after the division by √D, so it receives $ds_{ij}$ as it is. It was used by every pair of tokens at
this distance, in every sequence $b$:

$$ dt_n = \sum_b \; \sum_{i, j \,:\; j - i = n} ds_{bij} . $$

These are the sums along the diagonals of $ds$. That is a scatter-add ([06](06_embeddings.ipynb)), with `rows` as the ids. And
$\sum_n dt_n$ contains every $ds_{bij}$ once. Each row of $ds$ sums to 0, so this sum must be 0, too: a number added to the whole table
is one more thing that a softmax does not notice.
"""


# %% tags=["solution"]
def my_distances_backward(dout, cache):
    """The gradient of attention_with_distances with respect to the table: dtable (2 S − 1,).

    dout (B, S, D); cache = (q, k, v, p, rows): q, k and v (B, S, D), p (B, S, S), and rows (S, S), integers
    that say which number of the table was added to which score.
    """
    _, _, v, p, rows = cache
    dp = dout @ v.transpose(0, 2, 1)  # (B, S, S)
    ds = softmax_backward(dp, (p,))  # (B, S, S)
    dtable = np.zeros(2 * len(rows) - 1)  # (2 S − 1,)
    np.add.at(dtable, rows, ds.sum(axis=0))
    return dtable


# %%
check("08.distances_backward", my_distances_backward)

# %% [markdown]
r"""
## 8. A head learns

Here is a toy version of "a or an". Each of 12 positions holds a word that begins with a vowel or a consonant, at random. At every
position, the head is to say which of the two follows. No one tells it that the answer is *one to the right*.
A token is its word's vector plus its position's vector ([06](06_embeddings.ipynb)). All weights start at random values, and learn by
plain gradient descent, through the backward pass that you just wrote.
"""

# %% tags=["answer"]
head_backward = my_attention_backward

# %% tags=["yours"]
from minibert.course import kept

mine = kept()  # what you have kept so far, and the library's for the rest
head_backward = mine.attention_backward
whose = "yours" if "attention_backward" in mine.yours else "the library's, until you keep yours"
print(f"The backward pass of this head is {whose}.")

# %%
S, H, D, BATCH = 12, 32, 64, 32
STEPS, SHOWN = 300, (0, 100, 150, 299)
COUNTED = np.tile(np.arange(S) < S - 1, BATCH).astype(float)  # nothing follows the last word


def batch_of(rng, table, positions):
    starts = rng.integers(2, size=(BATCH, S))  # 0 consonant, 1 vowel
    x = (table[starts] + positions) / np.sqrt(2)  # (BATCH, S, H)
    return x, np.roll(starts, -1, axis=1).ravel()  # labels: what follows


def step(W, x, labels, term, factor):
    """Forward and backward pass of the head: loss, the gradients by name, the weights p (BATCH, S, S)."""
    maps = {name: linear(x, W[name], np.zeros(D)) for name in "qkv"}
    q, k, v = (y for y, _ in maps.values())  # (BATCH, S, D)
    y, cache = one_head(q * factor, k, v, term)
    logits, out_cache = linear(y.reshape(-1, D), W["out"], np.zeros(2))
    loss, loss_cache = cross_entropy(logits, labels, COUNTED, COUNTED.sum())

    dy, dout_weight, _ = linear_backward(cross_entropy_backward(1.0, loss_cache), out_cache)
    dq, dk, dv = head_backward(dy.reshape(y.shape), cache)
    gradients = {"out": dout_weight}
    for name, dmap in zip("qkv", (dq * factor, dk, dv), strict=True):
        _, gradients[name], _ = linear_backward(dmap, maps[name][1])
    return loss, gradients, cache[3]


# %%
def train(causal=False, factor=1.0, learning_rate=0.1):
    """The losses of a run, and the head's attention map of the first sequence at some steps."""
    rng = np.random.default_rng(0)
    table, positions = rng.standard_normal((2, H)), rng.standard_normal((S, H))
    W = {name: rng.standard_normal((D, H)) / np.sqrt(H) for name in "qkv"}
    W["out"] = rng.standard_normal((2, D)) / np.sqrt(D)
    term = attention_bias(np.ones((BATCH, S)), "float64", causal)[:, 0]  # (BATCH, 1 or S, S)
    losses, maps = [], {}
    for number in range(STEPS):
        x, labels = batch_of(rng, table, positions)
        loss, gradients, p = step(W, x, labels, term, factor)
        for name, gradient in gradients.items():
            W[name] -= learning_rate * gradient
        losses.append(float(loss))
        if number in SHOWN:
            maps[number] = p[0]
    return np.array(losses), maps


runs = {
    "both directions": train(),
    "left to right": train(causal=True),
    "without √D": train(factor=np.sqrt(D)),  # undoes the division
}
for name, (losses, maps) in runs.items():
    neighbour = maps[STEPS - 1].argmax(axis=-1)[:-1] == np.arange(1, S)
    print(f"{name:<16} loss at the end {losses[-20:].mean():.3f}", end="")
    print(f"   queries that look one to the right: {neighbour.sum():2} of {S - 1}")

# %% tags=["figure"]
# Caption: Attention maps while the toy learns. The head finds the right neighbour (top); without √D,
#   it jumps from key to key (bottom).
figure, axes = plt.subplots(2, 4, figsize=(7.5, 4.3), sharex=True, sharey=True)
for panels, name in zip(axes, ("both directions", "without √D"), strict=True):
    for panel, (number, p) in zip(panels, runs[name][1].items(), strict=True):
        plots.heatmap(panel, p).set_clim(0, 1)
        panel.set(xticks=(0, 5, 11), yticks=(0, 5, 11))
        panel.set_title(f"step {number}", fontsize=10)
    panels[0].set_ylabel(f"{name}\nquery")
for panel in axes[1]:
    panel.set_xlabel("key")
plt.show()

# %% [markdown]
r"""
In the top row, the head looks anywhere at first. Then a stripe appears beside the diagonal: each token looks at its right neighbour.
(The last row has no answer to learn.) Nobody programmed that; it came out of $dq$ and $dk$. In the bottom row, most queries have chosen
a single key at step 0, and from then on they jump from one to another.
"""

# %% tags=["figure"]
# Caption: The loss of the three runs. Only the run that sees both sides, and divides by √D, solves the
#   task in 300 steps.
figure, axes = plt.subplots(figsize=(7.5, 3.0))
colours = (plots.BLUE, plots.VERMILION, plots.ORANGE)
heights = (0.06, 0.76, 0.46)
for (name, (losses, _)), colour, height in zip(runs.items(), colours, heights, strict=True):
    axes.plot(losses, color=colour, linewidth=1.4)
    axes.text(220, height, name, color=colour)
axes.axhline(np.log(2), color=plots.GREY, linestyle="--", linewidth=1)
axes.text(302, np.log(2), "ln 2: tossing\na coin", color=plots.GREY, fontsize=9, va="center")
axes.set(title="what follows, a vowel or a consonant?", xlabel="step", ylabel="loss (nats)")
axes.set(ylim=0, xlim=(0, 345))
plt.show()

# %% [markdown]
r"""
Reading **left to right**, the loss stays at that of a tossed coin, as it must: what decides the answer is out of sight. That is what
reading in both directions is good for.

**Without √D**, the run is far behind. Its scores have a standard deviation of 8 from the start. A query that has chosen one key learns
almost nothing from the others, and when it moves, it jumps. No learning rate repairs that
(at 0.01, neither run has got far):
"""

# %%
print("rate    divided   not")
for rate in (0.01, 0.03, 0.1, 0.3):
    ends = [train(factor=f, learning_rate=rate)[0][-20:].mean() for f in (1.0, np.sqrt(D))]
    print(f"{rate:<6} {ends[0]:8.3f} {ends[1]:6.3f}")

# %% [markdown]
r"""
## 9. What does a long text cost?

Every token looks at every other. That makes $S^2$ scores for each head in each layer, while the cost of the linear maps grows only
with $S$. Counted in multiplications, for one layer and one sequence, it is

$$
\underbrace{12 \, S H^2}_{\text{linear maps}} \quad\text{against}\quad
\underbrace{2 \, S^2 H}_{q k^\top \text{ and } p v} .
$$

The two are equal at $S = 6H$, which is 4,608 tokens for BERT-base. But $p$ also has to be made, kept for the backward pass, read and
written. The log has processor times of the library's reference attention. Set `RERUN` to measure on your machine.
"""

# %%
RERUN = False


def milliseconds(compute, repetitions=15):
    times = []
    for _ in range(repetitions):
        start = time.process_time()
        compute()
        times.append(time.process_time() - start)
    return 1000 * min(times)


def measure(S, A=4, D=64):
    """One layer of BERT-mini (H = 256), one sequence, float32: all linear maps, and attention."""
    rng, H = np.random.default_rng(0), A * D
    x, weight = rng.standard_normal((S, H), "float32"), rng.standard_normal((12 * H, H), "float32")
    q, k, v = rng.standard_normal((3, 1, A, S, D), "float32")
    term, zeros = np.zeros((1, 1, 1, S), "float32"), np.zeros(12 * H, "float32")
    of_maps = milliseconds(lambda: linear(x, weight, zeros))
    of_attention = milliseconds(lambda: attention(q, k, v, term, 0.0, None))
    return {"S": S, "maps": of_maps, "attention": of_attention}


if RERUN:
    log = [measure(S) for S in (64, 128, 256, 512, 1024, 2048)]
else:
    log = read_log("08_attention_cost.jsonl")
print("    S   linear maps   attention     p of BERT-base, all layers")
for row in log:
    print(f"{row['S']:5} {row['maps']:10.2f} ms {row['attention']:8.2f} ms", end="")
    print(f"{12 * 12 * row['S'] ** 2 * 4 / 2**20:14,.0f} MiB per sequence")

# %% tags=["figure"]
# Caption: The time for the linear maps grows with the length, that for attention with its square.
#   Up to 512 tokens, the linear maps still take longer.
figure, axes = plt.subplots(figsize=(6.5, 3.2))
lengths = np.array([row["S"] for row in log])
for part, label, colour, marker in (
    ("maps", "all linear maps", plots.BLUE, "o-"),
    ("attention", "attention", plots.VERMILION, "s-"),
):
    axes.loglog(lengths, [row[part] for row in log], marker, color=colour, label=label)
for power, start in ((1, "maps"), (2, "attention")):
    guide = log[0][start] * (lengths / lengths[0]) ** power
    axes.loglog(lengths, guide, color=plots.GREY, linestyle=":", linewidth=1.2)
    axes.text(lengths[-1] * 1.1, guide[-1], "∝ S" if power == 1 else "∝ S²", color=plots.GREY)
axes.set_xscale("log", base=2)
axes.set(title="one layer of BERT-mini, forward", xlabel="tokens S", ylabel="milliseconds")
axes.legend()
plt.show()

# %% [markdown]
r"""
Twice the text means four times the work in attention, but only twice the work in the linear maps, which take most of a layer's time at
the lengths that BERT reads. The weights $p$ also have to be kept for the backward pass. So BERT stops at 512 tokens, and the original
was trained on 128 tokens for nine tenths of its steps. (The library's kernels take only a few heads at a time, so that their scores
stay in the processor's cache. But the work still grows with $S^2$.)

## Recap

- Attention is a weighted mean of values. The weights are a softmax over how well the keys match a query.
- $\operatorname{Var}(q \cdot k) = D$. Divided by √D, scores have variance 1, so the softmax neither chooses too early nor
  blocks the gradient.
- A mask is added to the scores, as −10000. That is low enough for exp to give 0, and finite, so that no row becomes NaN.
- $dv = p^\top dy$ and $dp = dy \, v^\top$; then the backward pass of softmax; then $dq = ds \, k / \sqrt D$ and
  $dk = ds^\top q / \sqrt D$.
- A model that reads in both directions sees what comes after a word. The price is that words must be hidden, to have something to
  predict.

## What usually goes wrong

- **A missing transpose.** $p$ and $ds$ are square, so `p @ dout` runs, and is wrong.
- **Softmax over the wrong axis.** If it runs over queries instead of keys, columns sum to 1, and rows do not.
- **√D forgotten on the way back.** $dq$ and $dk$ are then √D times too large.
- **A mask with 0 and 1 exchanged.** The model then runs, and reads only padding. Use the test of section 3.
- **The mask on queries.** The bias has to have the shape `(B, 1, S)`: one row, for the keys.
- **−∞ as a mask.** A row with nothing but forbidden keys becomes NaN.

## Three questions

Answer before you unfold.
"""

# %% [markdown]
r"""
<details>
<summary><b>1.</b> All keys of a sequence are equal. What does attention return, and what is dq?</summary>

All scores of a row are equal, so every weight is $1/S$ and $y$ is the mean of the values. Then $dq_i = \frac{1}{\sqrt D} \sum_j
ds_{ij} k_j = \frac{1}{\sqrt D} \big( \sum_j ds_{ij} \big) k = 0$. No query could tell such keys apart, so none is asked to
change.

</details>
"""

# %% [markdown]
r"""
<details>
<summary><b>2.</b> Somebody divides by <code>D</code> and not by √D. What happens at the beginning of training?</summary>

The scores then have a standard deviation of $1/\sqrt D$. So for large `D` all weights are about $1/S$, and attention is a plain mean.
The softmax blocks no gradient, but $dq$ and $dk$ are √D times smaller, so the first preferences are learned more slowly.

</details>
"""

# %% [markdown]
r"""
<details>
<summary><b>3.</b> A model has two layers of left-to-right attention, and then a third without a mask. Can it be trained to predict
the next word?</summary>

No. In the third layer, token $i$ looks at token $i+1$, whose state contains the word that is to be predicted. One layer
without a mask is enough to give the answer away.

</details>
"""

# %% [markdown]
r"""
## Further reading

- Bahdanau, Cho and Bengio, [Neural machine translation by jointly learning to align and translate](https://arxiv.org/abs/1409.0473), 2014: attention before the transformer.
- Vaswani and others, [Attention is all you need](https://arxiv.org/abs/1706.03762), 2017: section 3.2 defines the attention of this notebook, and gives the reason for √D.
- Shaw, Uszkoreit and Vaswani, [Self-attention with relative position representations](https://arxiv.org/abs/1803.02155), 2018: what attention can learn about distances.
- Dao and others, [FlashAttention](https://arxiv.org/abs/2205.14135), 2022: exact attention that never stores the S × S matrix.
- Tay and others, [Efficient transformers: a survey](https://arxiv.org/abs/2009.06732), 2020: the many attempts to avoid the quadratic cost.

**Next:** [09 · Many heads](09_many_heads.ipynb), since one weighted mean is not enough.
The code of this notebook: [attention.py](../minibert/ops/attention.py), [stable_softmax.py](../minibert/ops/stable_softmax.py).
"""
