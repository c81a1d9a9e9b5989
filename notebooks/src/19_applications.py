# %% [markdown]
r"""
# 19 · Applications

"Which function does this?" A search for what a text *means* needs a number that tells how well two texts fit. BERT can give it
in two ways: a vector for each text, made once and compared quickly, or one reading of both together, slower and more
attentive. Here is a search made of both, beside what needs no network: counting words.

**You will** pool token vectors · write recall@k · see why vectors of a masked language model search badly · derive the loss
of a dual encoder · search exactly and approximately · re-rank · decide when to count words instead.

**Before this:** [03 · Softmax and cross-entropy](03_softmax_cross_entropy.ipynb), [15 · Fine-tuning](15_fine_tuning.ipynb).
**Time:** 65 minutes with the exercise; it runs in under 20 seconds, over a third of them to read the documentation installed with Python.

| letter | in this notebook |
|---|---|
| `B`, `S`, `H` | texts in a batch, tokens in a text, hidden size |
| `Q`, `N` | queries; passages (in the loss: pairs in a batch) |
| `V` | different words of the passages |
"""

# %%
import inspect
import re
import tempfile
import textwrap
from collections import Counter
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from minibert import check, ops, plots
from minibert.course import read_log, read_results, write_log
from minibert.data.tasks import RECIPES, documentation
from minibert.errors import UserError
from minibert.gradcheck import check as compare_with_numeric
from minibert.gradcheck import function_case
from minibert.ops.pooling import first_token, max_pooling, mean_pooling
from minibert.ops.similarity import in_batch_softmax_loss, in_batch_softmax_loss_backward
from minibert.tasks import metrics
from minibert.tasks.embed import TextEncoder
from minibert.tasks.search import PassageIndex, exact_search
from minibert.tasks.similarity import partner_ranks

plots.notebook_style()
np.set_printoptions(precision=3, suppress=True)
rng = np.random.default_rng(19)

# %% [markdown]
r"""
## 1. One vector for a text

The encoder gives `H` numbers for every token. To compare texts of different lengths they are **pooled**: the vector of [CLS],
the mean of all, or the maximum of each feature. With the mask $m_s$, 1 for a token and 0 for padding:

$$
y^{\text{cls}} = h_1, \qquad
y^{\text{mean}} = \frac{\sum_s m_s \, h_s}{\sum_s m_s}, \qquad
y^{\text{max}}_i = \max_{s:\, m_s = 1} h_{s,i} .
$$

Without the mask a text's vector depends on the padding that its neighbours in the batch made necessary:
"""

# %%
print(inspect.getsource(mean_pooling))

encoder = TextEncoder.open("mini", max_length=64)  # the shipped model; longer texts are cut
short, long = "Compute the sine.", "Compute the sine of every element of an array, in radians."
vector_of = {}
for texts in ([short], [short, long]):
    batch = encoder.tokenizer(texts, padding=True)
    hidden = encoder.model.forward(**batch)[0].last_hidden_state  # (B, S, H)
    mask = np.array(batch["attention_mask"], np.float32)  # (B, S)
    vector_of[len(texts)] = mean_pooling(hidden, mask)[0][0], hidden[0].mean(axis=0)

with_mask, without_mask = (np.abs(a - b).max() for a, b in zip(*vector_of.values(), strict=True))
print(f"the short text alone or beside the long one: differs by {with_mask:.0e} with the mask,")
print(f"and by {without_mask:.1f} without")
assert with_mask < 1e-4 < without_mask

# %% [markdown]
r"""
The **cosine** of their angle says how similar two vectors are, $\cos(x, y) = x \cdot y \, / \, (\lVert x \rVert
\lVert y \rVert)$: 1 for the same direction, whatever the lengths. Of vectors of length 1 it is the product, so all cosines
of many texts with many others are **one matrix product**.
"""

# %%
SENTENCES = [
    "Return the largest value of an array.",
    "Find the maximum of all elements.",
    "Draw a circle in the given colour.",
    "Plot a ring with a coloured edge.",
    "Open a file for reading.",
    "Close the connection to the server.",
]


def unit(vectors):
    """(…, H) → the same directions, each of length 1."""
    return ops.unit_length(vectors)[0]


six = unit(encoder.embed(SENTENCES))  # (6, H); the library pools by the mean if nothing is said
cosines = six @ six.T  # (6, 6)

# %% tags=["figure"]
figure, axes = plt.subplots(figsize=(7.5, 3.2))
plots.heatmap(axes, cosines, digits=2, limit=1.0)
axes.set(title="cosines before any fine-tuning", xticks=[])
axes.set_yticks(range(6), SENTENCES)
plt.show()

# %% [markdown]
r"""
Each of the first two pairs says nearly the same; the last two sentences do not. What strikes more is that *everything* looks
like everything.

## 2. A search, and how it is measured

The documentation on your machine gives a task with known answers. The first line of a docstring is the **query**, the
sentences that follow are the **passage** to be found by it. (Not those where the function's name stands in both.)
"""

# %%
passages = documentation.search_passages("dev")  # from other files than the training pairs
queries = documentation.search_queries("dev")
row_of = {passage.id: row for row, passage in enumerate(passages)}
right = np.array([row_of[query.passage] for query in queries])  # (Q,): the row of the right passage
passage_texts = [passage.text for passage in passages]
query_texts = [query.text for query in queries]
N = len(passages)

print(f"{len(queries):,} queries, {N:,} passages\n")
print("query:   ", query_texts[0])
print("passage: ", textwrap.shorten(passage_texts[right[0]], 90))
print("function:", passages[right[0]].title)

# %% [markdown]
r"""
A search gives every passage $n$ a score $s_{qn}$ and puts the best on top. The **rank** of a query is the place of its
right passage $a_q$, from 1:

$$ \text{rank}_q = \big\lvert \{ n : s_{qn} \ge s_{q a_q} \} \big\rvert . $$

Two numbers sum up the ranks. **Recall@$k$** is the share of users who see the answer among $k$ results. The **mean reciprocal rank**, MRR, is the mean of
$1 / \text{rank}_q$; it also asks *where* the answer stands.

### What about ties?

The $\ge$ counts the right passage and everything **as good as** it. With $1 + \lvert \{ n : s_{qn} > s_{q a_q} \} \rvert$
ties would count in your favour, and the worst encoder imaginable, the same vector for every text, would look perfect:
"""

# %%
same_for_all = np.ones((len(queries), N))
of_right = same_for_all[np.arange(len(right)), right][:, None]  # (Q, 1)
hopeful = 1 + (same_for_all > of_right).sum(axis=1)  # (Q,)
strict = (same_for_all >= of_right).sum(axis=1)
for name, ranks in (("ties in favour", hopeful), ("ties against (minibert)", strict)):
    print(f"{name:<24} recall@10 {metrics.recall_at(ranks, 10):.3f}")
assert metrics.recall_at(hopeful, 1) == 1 and metrics.recall_at(strict, 10) == 0

# %% [markdown]
r"""
A sort breaks ties by position: then the order of the files matters. Without ties all three agree.

### What would chance give?

A random order makes every rank from 1 to $N$ equally likely. So
$\text{recall@}k = \frac kN$, and the mean of $1/\text{rank}$ is $\frac1N \left( 1 + \frac12 + \dots + \frac1N \right)$:
"""

# %%
chance_recall, chance_mrr = 10 / N, (1 / np.arange(1, N + 1)).mean()
drawn = rng.integers(1, N + 1, 300_000)
print(f"recall@10  {chance_recall:.4f}   drawn {metrics.recall_at(drawn, 10):.4f}")
print(f"MRR        {chance_mrr:.4f}   drawn {metrics.mean_reciprocal_rank(drawn):.4f}")
assert np.isclose(metrics.mean_reciprocal_rank(drawn), chance_mrr, rtol=0.05)

# %% [markdown]
r"""
## 3. Your turn: recall@k

@exercise 19.recall_at_k

`scores` (Q, N) has a score for every query and passage, `right` (Q,) the number of each query's right passage. Return the one number recall@`k`.
There are no ties in the trials, so you may sort or count. No loop is needed.
"""

# %% [markdown] tags=["derivation"]
r"""
$[\dots]$ is 1 where the statement is true and 0 where it is not:

$$ \text{recall@}k = \frac1Q \sum_q [\, \text{rank}_q \le k \,] . $$

Either count the scores that are at least as high as the right passage's, and compare with $k$. Or sort $-s$, so that the best come first, and look whether
the right passage is among the first $k$.
"""


# %% tags=["solution"]
def my_recall_at_k(scores, right, k):
    """The share of queries whose right passage is among the k passages of the highest score.

    scores (Q, N): of each query with each passage; right (Q,): the column of the right one.
    """
    best = np.argsort(-scores, axis=1)[:, :k]  # (Q, k)
    return (best == right[:, None]).any(axis=1).mean()


# %%
check("19.recall_at_k", my_recall_at_k)

# %% [markdown] tags=["answer"]
r"""
Sorting all is more than needed: `argpartition` finds the best `k` and leaves the rest in disorder, as the library's search does.
"""

# %% [markdown]
r"""
## 4. Do raw vectors search?

First the rival. **tf-idf** describes a text by `V` numbers, one for each word: large if the word is in this text (tf, term
frequency), larger if few texts have it (idf, inverse document frequency):

$$
t_w = \ln(1 + \text{count of } w) \cdot \left( 1 + \ln \frac{1 + N}{1 + N_w} \right), \qquad N_w = \text{passages with } w .
$$

Texts are compared by the cosine again. (**BM25**, which search engines use, damps counts and lengths a bit differently.)
"""


# %%
def count_words(texts, column_of):
    """How often each known word occurs in each text: (N, V)."""
    counts = np.zeros((len(texts), len(column_of)), np.float32)
    for row, text in zip(counts, texts, strict=True):
        for word, count in Counter(re.findall(r"\w+", text.lower())).items():
            if word in column_of:
                row[column_of[word]] = count
    return counts


words = sorted({word for text in passage_texts for word in re.findall(r"\w+", text.lower())})
column_of = {word: column for column, word in enumerate(words)}
passage_counts = count_words(passage_texts, column_of)  # (N, V)
idf = 1 + np.log((1 + N) / (1 + (passage_counts > 0).sum(axis=0)))  # (V,)
passage_words = unit(np.log1p(passage_counts) * idf)  # (N, V)


def word_scores(texts):
    """The cosines of texts with all passages, by tf-idf: (Q, N)."""
    return unit(np.log1p(count_words(texts, column_of)) * idf) @ passage_words.T


by_words = word_scores(query_texts)
print(f"{len(words):,} different words; {(passage_counts > 0).mean():.1%} of the table is not 0")

# %% [markdown]
r"""
Now the encoder. LanceDB is a vector database that runs inside our process and keeps its data in a folder. (If it is not
installed, brute force does.)
"""

# %%
folder = tempfile.TemporaryDirectory()
try:
    index = PassageIndex.create(Path(folder.name) / "dev.index", encoder, passages)
    ids, vectors = index.vectors()  # (N, H), of length 1
    vectors = vectors[np.argsort([row_of[id] for id in ids])]
    print(f"{len(index):,} passages in the index, {index.info.dimension} numbers each")
except UserError as error:
    index, vectors = None, unit(encoder.embed(passage_texts))
    print(f"going on by brute force: {error}")

query_vectors = unit(encoder.embed(query_texts))  # (Q, H)
by_vectors = query_vectors @ vectors.T  # (Q, N)


# %%
def ranks_of(scores):
    """The rank of each query's right passage, ties against it: (Q,)."""
    return (scores >= scores[np.arange(len(scores)), right][:, None]).sum(axis=1)


ranks = {"tf-idf": ranks_of(by_words), "mean": ranks_of(by_vectors)}
library = partner_ranks(query_vectors, vectors[right], [passages[row].id for row in right])
assert np.mean(ranks["mean"] == library) > 0.99  # but for rounding the library's evaluation


def tell(name, ranks):
    recall, mrr = metrics.recall_at(ranks, 10), metrics.mean_reciprocal_rank(ranks)
    print(f"{name:<22} recall@10 {recall:.3f}   MRR {mrr:.3f}")


print(f"{'chance':<22} recall@10 {chance_recall:.3f}   MRR {chance_mrr:.3f}")
for name, found in ranks.items():
    tell(name, found)
assert metrics.recall_at(ranks["mean"], 10) > 3 * chance_recall

# %% [markdown]
r"""
Far better than chance, so the vectors hold some meaning. And far behind counting words. Was it the pooling? All three, on a
part of the data:
"""

# %%
few = slice(0, N // 8)
part_texts = [passages[row].text for row in right[few]]
pooled = {"cls": first_token, "mean": mean_pooling, "max": max_pooling}
sides = []
for texts in (query_texts[few], part_texts):
    parts = {name: [] for name in pooled}
    for start in range(0, len(texts), 32):
        batch = encoder.tokenizer(
            texts[start : start + 32], padding=True, truncation=True, max_length=64
        )
        hidden = encoder.model.forward(**batch)[0].last_hidden_state  # (B, S, H)
        mask = np.array(batch["attention_mask"], np.float32)
        for name, pool in pooled.items():
            parts[name].append(unit(pool(hidden, mask)[0]))
    sides.append({name: np.concatenate(blocks) for name, blocks in parts.items()})

part = {name: partner_ranks(sides[0][name], sides[1][name], part_texts) for name in pooled}
words_here = by_words[few][:, right[few]]  # the same queries and passages
part["tf-idf"] = (words_here >= np.diag(words_here)[:, None]).sum(axis=1)
for name, found in part.items():
    tell(name, found)
recalls = [metrics.recall_at(found, 10) for found in part.values()]
assert max(recalls[:3]) < recalls[3]

# %% [markdown]
r"""
(Fewer passages are less competition.) No pooling reaches tf-idf.

## 5. Why do they search badly?

Nobody asked for this. The masked-word loss wants a token's vector to predict *that token*; whether the mean of many is near
that of a text with the same meaning never entered any loss. The cosines of queries with their right passages, and with others:
"""

# %%
wrong = rng.integers(0, N, len(right))
wrong = np.where(wrong == right, (wrong + 1) % N, wrong)  # (Q,): for each query another passage
rows = np.arange(len(right))
right_cosines, wrong_cosines = by_vectors[rows, right], by_vectors[rows, wrong]

# %% tags=["figure"]
figure, axes = plt.subplots(figsize=(7.5, 2.8))
bins = np.linspace(-0.2, 1, 61)
for values, colour, label in (
    (wrong_cosines, plots.GREY, "another passage"),
    (right_cosines, plots.BLUE, "the right passage"),
):
    axes.hist(values, bins, histtype="step", linewidth=2, color=colour, label=label)
axes.set(title="everything is like everything", xlabel="cosine with the query", ylabel="queries")
axes.legend(loc="upper left")
plt.show()

# %% [markdown]
r"""
Two unrelated directions in a space of 256 dimensions have a cosine near 0. Here all vectors crowd into a narrow cone: they
are **anisotropic**. What tells two texts apart is a small remainder.

If that is the trouble, a remedy without any learning should help: **whitening**. Subtract the mean μ of the passages'
vectors, turn the axes along the directions of their spread, and scale each to variance 1. With the covariance matrix
$\Sigma = U \Lambda U^\top$ ($U$ orthogonal, $\Lambda$ diagonal):

$$
z = (x - \mu) \, W, \quad W = U \Lambda^{-1/2} \;\Rightarrow\;
\operatorname{cov}(z) = W^\top \Sigma \, W
= \Lambda^{-1/2} \, U^\top U \, \Lambda \, U^\top U \, \Lambda^{-1/2} = I .
$$

(A direction with next to no spread is left out: the last [LayerNorm](05_layer_norm.ipynb) fixes the sum of all $\hat x_i$.)
"""

# %%
centre = vectors.mean(axis=0)  # (H,)
covariance = np.cov((vectors - centre).T.astype(np.float64), bias=True)  # (H, H)
spread, directions = np.linalg.eigh(covariance)  # (H,), (H, H)
some = spread > 1e-3 * np.median(spread)  # directions in which the texts differ at all
whitening = directions[:, some] * spread[some] ** -0.5  # (H, their number)


def whiten(x):
    return unit((x - centre) @ whitening)


white = (vectors - centre) @ whitening
error = np.abs(white.T @ white / N - np.eye(some.sum())).max()
print(f"the largest 26 directions hold {spread[-26:].sum() / spread.sum():.0%} of the variance")
print(
    f"{(~some).sum()} of 256 with next to none; of the others, cov(z) differs from I by {error:.0e}"
)
assert error < 1e-3

white_vectors = whiten(vectors)
by_white = whiten(query_vectors) @ white_vectors.T
ranks["mean, whitened"] = ranks_of(by_white)
for name, found in ranks.items():
    tell(name, found)
before, after = (metrics.recall_at(ranks[name], 10) for name in ("mean", "mean, whitened"))
assert before < after < metrics.recall_at(ranks["tf-idf"], 10)

# %% [markdown]
r"""
Not one label, and the search is better. So meaning was there, in directions that the cosine had no reason to heed. Which
ones matter is what pairs can teach.

## 6. The loss of a dual encoder

Take a batch of `N` pairs: queries $x_n$, passages $y_n$, from the same encoder. **Each query has to find its partner among
all `N`.** The others' partners are the wrong answers, which cost nothing extra. Scores are cosines times a factor τ, and the
rest is a classification with `N` classes:

$$
\hat x_n = \frac{x_n}{\lVert x_n \rVert}, \quad
z_{nm} = \tau \; \hat x_n \cdot \hat y_m, \quad
p_{nm} = \frac{e^{z_{nm}}}{\sum_j e^{z_{nj}}}, \quad
L_{\rightarrow} = - \frac1N \sum_n \ln p_{nn} .
$$

With $L_{\leftarrow}$, where each passage has to find its query (a softmax $p'$ down the *columns*), the loss is
$L = \frac12 (L_{\rightarrow} + L_{\leftarrow})$. An encoder that tells nothing apart has $L = \ln N$.

**Why a factor?** Suppose a perfect encoder: cosine 1 for the partner, 0 for all others. Then
$L = \ln(1 + (N - 1) \, e^{-\tau})$:
"""

# %%
for scale in (1.0, 5.0, 20.0):
    perfect, _ = in_batch_softmax_loss(np.eye(32, 256), np.eye(32, 256), scale, True, 32.0)
    assert np.isclose(perfect, np.log(1 + 31 * np.exp(-scale)))
    print(f"τ = {scale:4.0f}   perfect encoder: {perfect:.4f}   knows nothing: {np.log(32):.4f}")

# %% [markdown]
r"""
With τ = 1 even perfection is punished. 20 is usual. (1/τ is also called the *temperature*.)

### Its gradient, step by step

$dx$ means $\partial L / \partial x$. We go back through three steps.

**Softmax and cross-entropy.** [03](03_softmax_cross_entropy.ipynb) derived $p - y$. The right class of row $n$ is $n$, so $y$ is
the unit matrix $\delta$. The other direction is the same on $z^\top$, and each counts half:

$$ dz_{nm} = \frac{1}{2N} \big( p_{nm} - \delta_{nm} \big) + \frac{1}{2N} \big( p'_{nm} - \delta_{nm} \big) . $$

**The matrix product** $z = \tau \, \hat x \, \hat y^\top$ ([02](02_linear.ipynb)): every $\hat x_n$ took part in a row, every $\hat y_m$ in a column:

$$ d\hat x_n = \tau \sum_m dz_{nm} \, \hat y_m, \qquad d\hat y_m = \tau \sum_n dz_{nm} \, \hat x_n . $$

**Unit length**, $\hat x = x / r$ with $r = \lVert x \rVert$. Every $x_j$ acts on its own $\hat x_j$, and through $r$ on all.
From $r^2 = \sum_i x_i^2$ follows $\partial r / \partial x_j = x_j / r = \hat x_j$, so

$$
dx_j = \frac{d\hat x_j}{r} + \sum_i d\hat x_i \cdot \left( - \frac{x_i}{r^2} \right) \hat x_j
= \frac1r \Big( d\hat x_j - \hat x_j \sum_i \hat x_i \, d\hat x_i \Big) .
$$

What points along $x$ is taken out: only the direction counts.
"""


# %%
def softmax(z):
    e = np.exp(z - z.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def loss_in_steps(x, y, scale=20.0):
    r_x, r_y = (np.linalg.norm(side, axis=1, keepdims=True) for side in (x, y))  # (N, 1)
    x, y = x / r_x, y / r_y  # (N, H)
    z = scale * x @ y.T  # (N, N)
    p, p_columns = softmax(z), softmax(z.T).T
    loss = -0.5 * (np.log(np.diag(p)) + np.log(np.diag(p_columns))).mean()
    return loss, (x, y, r_x, r_y, scale, p, p_columns)


def backward_in_steps(dout, cache):
    x, y, r_x, r_y, scale, p, p_columns = cache
    right = np.eye(len(p))
    dz = dout * (p - right + p_columns - right) / (2 * len(p))  # (N, N)
    dx, dy = scale * dz @ y, scale * dz.T @ x  # of the unit vectors
    dx = (dx - x * (x * dx).sum(axis=1, keepdims=True)) / r_x
    dy = (dy - y * (y * dy).sum(axis=1, keepdims=True)) / r_y
    return dx, dy


x, y = rng.standard_normal((2, 5, 7))  # N = 5 pairs, H = 7
case = function_case("in steps", loss_in_steps, backward_in_steps, {"x": x, "y": y})
for row in compare_with_numeric(case):
    print(row)
    assert row.ok

# %%
loss, cache = in_batch_softmax_loss(x, y, 20.0, True, 5.0)  # the library's
dx, dy = in_batch_softmax_loss_backward(1.0, cache)
loss_here, cache_here = loss_in_steps(x, y)
for ours, theirs in zip(
    (loss_here, *backward_in_steps(1.0, cache_here)), (loss, dx, dy), strict=True
):
    assert np.allclose(ours, theirs, rtol=1e-10, atol=1e-12)
print(
    f"the library's loss and gradients agree; dx · x is at most {np.abs((dx * x).sum(1)).max():.0e}"
)

# %% [markdown]
r"""
Read the first two steps together: $-d\hat x_n \propto (1 - p_{nn}) \, \hat y_n - \sum_{m \ne n} p_{nm} \, \hat y_m$ (in one direction). A query is
pulled to its partner, and pushed away from the others, from each as hard as it is mistaken for the partner. Here are $p$ and $dz$ for
six real pairs:
"""

# %%
_, cache = loss_in_steps(query_vectors[:6], vectors[right[:6]])
p, p_columns = cache[-2:]
pull = (p + p_columns - 2 * np.eye(6)) / 12  # (6, 6): dz

# %% tags=["figure"]
figure, axes = plt.subplots(1, 2, figsize=(7.5, 3.4))
for panel, values, digits, limit, title in (
    (axes[0], p, 2, 1.0, "p: whom does a query choose?"),
    (axes[1], 12 * pull, 2, 2.0, "2N dz: pulled (−), pushed away (+)"),
):
    plots.heatmap(panel, values, digits=digits, limit=limit)
    panel.set(title=title, xlabel="passage", ylabel="query")
plt.show()

# %% [markdown]
r"""
**A trap:** if a batch holds the same passage twice, a right answer counts as wrong. `DistinctPairs` deals the pairs to batches
so that none has a text twice.

### A few seconds of learning

Let us use that gradient on one matrix $M$ (`H × H`) behind it, the unit matrix at first. From $xM$
and $yM$ follows $dM = x^\top d(xM) + y^\top d(yM)$. 300 pairs, 100 steps of plain gradient descent:
"""

# %%
pairs = RECIPES["docs-search"].read("train")[:300]
train_x = unit(encoder.embed([pair.text for pair in pairs]))  # (300, H)
train_y = unit(encoder.embed([pair.text_pair for pair in pairs]))
matrix = np.eye(256, dtype=np.float32)
curve = []
for step in range(101):
    moved_x, moved_y = train_x @ matrix, train_y @ matrix
    loss, cache = in_batch_softmax_loss(moved_x, moved_y, 20.0, True, 300.0)
    if step % 20 == 0:
        on_train = partner_ranks(unit(moved_x), unit(moved_y), [pair.text_pair for pair in pairs])
        on_dev = ranks_of(unit(query_vectors @ matrix) @ unit(vectors @ matrix).T)
        curve.append((step, float(loss), *(metrics.recall_at(r, 10) for r in (on_train, on_dev))))
    dx, dy = in_batch_softmax_loss_backward(1.0, cache)
    matrix -= 0.3 * (train_x.T @ dx + train_y.T @ dy)

steps, losses, train_recall, dev_recall = np.array(curve).T
print(f"loss {losses[0]:.2f} → {losses[-1]:.2f}  (ln 300 = {np.log(300):.2f})")
print(
    f"recall@10 of the 300 pairs {train_recall[0]:.2f} → {train_recall[-1]:.2f} (of 300 passages)"
)
print(f"recall@10 of the dev queries {dev_recall[0]:.2f} → {dev_recall[-1]:.2f} (of {N:,})")
assert losses[-1] < 0.6 * losses[0] and train_recall[-1] > 0.9 > dev_recall[-1] + 0.2

# %% tags=["figure"]
figure, axes = plt.subplots(figsize=(7.5, 2.8))
axes.plot(steps, train_recall, "o-", color=plots.ORANGE, label="the 300 pairs learned from")
axes.plot(steps, dev_recall, "o-", color=plots.BLUE, label="new queries and passages")
axes.set(title="learned by heart", xlabel="step", ylabel="recall@10", ylim=(0, 1.03))
axes.legend(loc="center right")
plt.show()

# %% [markdown]
r"""
The loss does what it should: the training queries find their partners. On new texts next to nothing is gained: 65,536 free
numbers tell 300 pairs apart by heart. It takes more pairs, and the entire encoder.

## 7. What fine-tuning brings

Eight minutes on one core, so it is in a log: the shipped model, all training pairs (some 4,000), four epochs,
batches of 64. On a command line it is `minibert finetune --recipe docs-search --model mini` with the settings below (folded). `RERUN`
repeats it, and the re-ranker of section 9.
"""

# %%
RERUN = False  # True: writes the log anew, in a quarter of an hour on one core; needs LanceDB


def standardise(scores):
    """Of each query, scores with mean 0 and deviation 1: (Q, N)."""
    return (scores - scores.mean(axis=1, keepdims=True)) / scores.std(axis=1, keepdims=True)


def best_first(scores, k):
    """The rows of the k best passages of each query: (Q, k)."""
    return np.argsort(-scores, axis=1, kind="stable")[:, :k]


# %% tags=["figure"]
def fine_tune(out):
    """Train the dual encoder and the cross-encoder in the folder ``out``."""
    from minibert.files import write_text
    from minibert.tasks import finetune
    from minibert.tasks.predict import json_lines
    from minibert.tasks.rerank import training_pairs

    shared = dict(model="mini", out=str(out), learning_rate=2e-4, dropout=0.1, threads=1)
    finetune(
        recipe="docs-search",
        name="dual",
        epochs=4.0,
        batch_size=64,
        max_length=96,
        eval_every=32,
        **shared,
    )

    dual = TextEncoder.open(out / "dual" / "best")
    for part in ("train", "dev"):  # each query with its passage and two of the best wrong ones
        found_in = PassageIndex.create(
            out / f"{part}.index", dual, documentation.search_passages(part)
        )
        asked = documentation.search_queries(part)
        examples = training_pairs(found_in, dual, asked, negatives=2)
        write_text(out / f"{part}.jsonl", json_lines(example.to_dict() for example in examples))
    columns = dict(text_column="text", pair_column="text_pair", label_column="label")
    data = dict(train=str(out / "train.jsonl"), dev=str(out / "dev.jsonl"), dev_limit=600)
    cross = dict(task="classify", name="cross", epochs=1.0, max_length=112)
    finetune(**cross, **columns, **data, **shared)


def history(out):
    """What the dual encoder in the folder ``out`` wrote down while it learned, short."""
    from minibert.train.metrics import read_metrics

    for record in read_metrics(out / "dual" / "seed-0" / "metrics.jsonl"):
        kept = {name.removeprefix("held_out_"): value for name, value in record.items()}
        kept = {name: round(kept[name], 4) for name in ("loss", "mrr", "recall@10") if name in kept}
        yield {"step": record["step"], **kept}


def compare(out):
    """The ranks of all ways to search, with the models in the folder ``out``; yields the lines of the log."""
    from minibert.tasks.rerank import Reranker

    dual = TextEncoder.open(out / "dual" / "best")
    tuned = unit(dual.embed(query_texts)) @ unit(dual.embed(passage_texts)).T  # (Q, N)
    both = standardise(by_words) + standardise(tuned)
    best = best_first(both, 20)  # (Q, 20)
    asked = [(query_texts[q], passage_texts[n]) for q, row in enumerate(best) for n in row]
    judged = Reranker.open(out / "cross" / "best").scores(asked).reshape(best.shape)

    def in_new_order(new):
        """The ranks, if the best 20 are sorted by other scores (Q, 20)."""
        ranks, is_right = ranks_of(both), best == right[:, None]
        there = is_right.any(axis=1)
        ranks[there] = (new[there] >= new[is_right][:, None]).sum(axis=1)
        return ranks

    ways = {
        "tf-idf": ranks_of(by_words),
        "raw vectors": ranks_of(by_vectors),
        "fine-tuned vectors": ranks_of(tuned),
        "both": ranks_of(both),
        "both, re-ranked": in_new_order(judged),
        "all three": in_new_order(
            standardise(np.take_along_axis(both, best, axis=1)) + standardise(judged)
        ),
    }
    for way, found in ways.items():
        yield {"way": way, "ranks": found.tolist()}


def measure():
    with tempfile.TemporaryDirectory() as out:
        fine_tune(Path(out))
        yield from history(Path(out))
        yield from compare(Path(out))


# %%
name = "19_applications.jsonl"
log = write_log(name, measure()) if RERUN else read_log(name)
losses = np.array([(line["step"], line["loss"]) for line in log if "loss" in line])
evaluations = [line for line in log if "recall@10" in line]
ways = {line["way"]: np.array(line["ranks"]) for line in log if "way" in line}

at = [line["step"] for line in evaluations]
recall = [line["recall@10"] for line in evaluations]
plain = metrics.recall_at(ways["tf-idf"], 10)
kept = max(evaluations, key=lambda line: line["mrr"])
print(f"recall@10 {recall[0]:.3f} → {recall[-1]:.3f} in {at[-1]} steps; tf-idf {plain:.3f}")
print(f"kept: the weights of step {kept['step']}, recall@10 {kept['recall@10']:.3f}")
assert recall[0] + 0.1 < recall[-1] < plain

# %% tags=["figure"]
figure, axes = plt.subplots(1, 2, figsize=(7.5, 3.0))
axes[0].plot(*losses.T, color=plots.GREY, linewidth=1)
axes[0].axhline(np.log(64), color=plots.VERMILION, linestyle="--", linewidth=1.4)
axes[0].text(losses[-1, 0], np.log(64) + 0.12, "ln 64", color=plots.VERMILION, ha="right")
axes[0].set(title="each among 64 pairs", xlabel="step", ylabel="loss in nats", ylim=(0, 4.8))
axes[1].plot(at, recall, "o-", color=plots.BLUE)
axes[1].axhline(plain, color=plots.GREEN, linestyle="--", linewidth=1.4)
axes[1].text(0, plain + 0.015, "tf-idf", color=plots.GREEN)
axes[1].set(title="among all dev passages", xlabel="step", ylabel="recall@10", ylim=(0, 0.8))
plt.show()

# %% [markdown]
r"""
The encoder learns to search, among functions that it never saw. And it remains behind tf-idf: a small model, little data.
(The card of all-MiniLM-L6-v2, made for search, counts 1.17 *billion* pairs.)

**A choice that flatters:** kept are the weights with the best MRR *on these queries*, and on them they are scored, here and in
section 9. Compare the last ones, which nobody chose. Cleaner: a third set of queries to choose on.

## 8. Exact and approximate search

**Exact** search computes all $Q \cdot N$ cosines, then the `k` best of each row. Nothing is missed.
"""

# %%
nearest, cosines = exact_search(query_vectors, vectors, top_k=10)  # (Q, 10) each
print(
    f"{len(query_vectors):,} × {N:,} × 256 = {query_vectors.size * N / 1e6:,.0f} million multiplications"
)
assert np.allclose(cosines[:, 0], by_vectors.max(axis=1), atol=1e-5)

# %% [markdown]
r"""
A thousand passages take next to no time; tens of millions would not do, so one accepts to *miss* a few. The
simplest idea is an **inverted file**: group the vectors into cells by their nearest centre (k-means), and compare only those in the
cells whose centres are nearest to the query. A true neighbour is found exactly if its cell is looked into.
"""

# %%
centres = vectors[rng.permutation(N)[:32]]  # (32, H)
for _ in range(10):
    home = (vectors @ centres.T).argmax(axis=1)  # (N,): the cell of each passage
    for cell in np.unique(home):
        centres[cell] = unit(vectors[home == cell].sum(axis=0))
home = (vectors @ centres.T).argmax(axis=1)

cells_by_distance = best_first(query_vectors @ centres.T, 32)  # (Q, 32)
tradeoff = []
for probes in (1, 2, 4, 8, 16, 32):
    visited = np.zeros((len(query_vectors), 32), bool)
    np.put_along_axis(visited, cells_by_distance[:, :probes], True, axis=1)
    compared = visited[:, home]  # (Q, N)
    found = np.take_along_axis(compared, nearest, axis=1)  # (Q, 10)
    tradeoff.append((probes, compared.mean(), found.mean()))
assert tradeoff[-1][1:] == (1.0, 1.0)

# %% tags=["figure"]
figure, axes = plt.subplots(figsize=(7.5, 2.9))
probes, shares, agreement = zip(*tradeoff, strict=True)
axes.plot(shares, agreement, "o-", color=plots.BLUE)
axes.plot([0, 1], [0, 1], "--", color=plots.GREY, linewidth=1)
axes.text(0.62, 0.5, "random vectors compared", color=plots.GREY)
for number, share, value in tradeoff[:-1]:
    axes.annotate(f"{number}", (share, value), xytext=(5, -13), textcoords="offset points")
axes.set(title="cells looked into, of 32", xlabel="share of vectors compared")
axes.set(ylabel="share of true 10 found", ylim=(0, 1.05))
plt.show()

# %% [markdown]
r"""
The knob is the number of cells. Mind the vertical axis: agreement with *exact search*, not with the right answer.

Many databases use **HNSW**, a graph in which each vector is linked to near ones, and a search walks along the links. LanceDB
has it, and filters by what else is known of a passage:
"""

# %%
if index is None:
    print("no LanceDB here")
else:
    index.make_approximate()
    some = query_vectors[:200]
    found = [{hit.passage.id for hit in hits} for hits in index.search(some, 10)]
    true = [{passages[row].id for row in rows} for rows in nearest[:200]]
    agreement = np.mean([len(a & b) / 10 for a, b in zip(found, true, strict=True)])
    print(f"agreement of HNSW with exact search: {agreement:.1%}\n")
    [hits] = index.search(query_vectors[:1], 3, where="title LIKE 'scipy.%'")
    for hit in hits:
        print(f"{hit.score:.2f}  {hit.passage.title}")

# %% [markdown]
r"""
## 9. A second look: re-ranking

A dual encoder presses a passage into `H` numbers before it knows the question. A **cross-encoder** reads both at once,
`[CLS] query [SEP] passage [SEP]`: every token attends to every other, and a classifier says whether they match. Nothing can be
computed in advance. So one **retrieves** cheaply, then **re-ranks** the best 20, say. Recall@20 is the ceiling for what follows.

Its training data come from the search: right passages, and wrong ones *that were found*; random ones would be too easy. The
score is $\ln \frac{p(\text{match})}{p(\text{no match})}$.

The log has the ranks. "Both" adds tf-idf and fine-tuned cosines, each standardised per query, with equal weights; "all three" adds
the cross-encoder's scores likewise.
"""

# %%
for way, found in ways.items():
    recalls = "".join(f"{metrics.recall_at(found, k):8.3f}" for k in (1, 5, 10, 20))
    mrr = metrics.mean_reciprocal_rank(found)
    print(f"{way:<20} recall@1, 5, 10, 20 {recalls}   MRR {mrr:.3f}")
assert metrics.recall_at(ways["both, re-ranked"], 20) == metrics.recall_at(ways["both"], 20)
first = {way: metrics.recall_at(found, 1) for way, found in ways.items()}
chance_first = metrics.recall_at(ways["both"], 20) / 20  # if the 20 came in a random order
assert 2 * chance_first < first["both, re-ranked"] < min(first["both"], first["all three"])

# %% tags=["figure"]
figure, axes = plt.subplots(figsize=(7.5, 3.6))
k = np.arange(1, 51)
colours = {
    "both": plots.VERMILION,
    "tf-idf": plots.GREEN,
    "fine-tuned vectors": plots.BLUE,
    "raw vectors": plots.SKY,
}
for way, colour in colours.items():
    axes.plot(k, [metrics.recall_at(ways[way], n) for n in k], color=colour, label=way)
count = len(ways["both"])
axes.plot(k, k / count, color=plots.GREY, linestyle="--", label="chance")
axes.set(title="how far down must one look?", xlabel="k", ylabel="recall@k", ylim=(0, 1))
axes.legend(loc="upper left", ncols=3, fontsize=9)
plt.show()

# %% [markdown]
r"""
The cross-encoder **alone** puts more right passages first than a random order of the 20 would (recall@20 / 20), but fewer than
the order that it was given: a small model, that saw some 12,000 pairs. Do not throw away a good order for a cleverer
model. As a *third voice*, does it help?

## 10. Words or vectors?

They fail on different queries. For either side, one that it answers at once and the other does not:
"""

# %%
word_ranks, vector_ranks = ranks["tf-idf"], ranks["mean, whitened"]
for winner, good, bad in (
    ("words", word_ranks, vector_ranks),
    ("vectors", vector_ranks, word_ranks),
):
    row = int(np.where(good == 1, bad, 0).argmax())
    print(f"{winner} win: rank 1, the other's {bad[row]}   ({passages[right[row]].title})")
    print(f"   query    {textwrap.shorten(query_texts[row], 90)}")
    print(f"   passage  {textwrap.shorten(passage_texts[right[row]], 90)}")
    assert good[row] == 1 < bad[row]

# %% [markdown]
r"""
- **Count words** if queries use the texts' own words: names, error codes, rare terms. It needs no training and tells why it
  found something. Start with it.
- **Use vectors** if people ask in other words than the texts use, *and* the encoder was fine-tuned for search on something like your texts.
- **Combine** them: their mistakes differ.

Did adding really help, or was it luck? Count the queries whose right passage came into the first `k`, and those where it fell
out:
"""

# %%
beyond_luck = {}
for old, new in (("tf-idf", "both"), ("both", "all three")):
    for k in (1, 10):
        before, after = ways[old] <= k, ways[new] <= k
        gained, lost = int((after & ~before).sum()), int((before & ~after).sum())
        coin = np.sqrt(gained + lost)
        beyond_luck[new, k] = gained - lost > 2 * coin
        told = f"{gained} gained, {lost} lost: {gained - lost:+}; coins would give 0 ± {coin:.0f}"
        print(f"{old:>6} → {new:<9}  first {k:<2}  {told}")
assert beyond_luck["both", 10] and beyond_luck["all three", 10]
assert not beyond_luck["all three", 1]

# %% [markdown]
r"""
If both were equally good, each query that changes sides would be a coin's toss, and the difference after $n$ tosses has a
standard deviation of $\sqrt n$. Celebrate two of these, not less. Vectors bring more right passages
into the first ten, and so does the cross-encoder's voice. That it puts more of them first may be luck.

## 11. A search to type into

Change the question and run both cells: tf-idf plus whitened vectors of the raw model search the passages above.
"""

# %%
QUESTION = "wait until a thread has finished"

parts = {
    "words": standardise(word_scores([QUESTION]))[0],
    "vectors": standardise(whiten(unit(encoder.embed([QUESTION]))) @ white_vectors.T)[0],
}  # (N,) each
results = best_first(sum(parts.values())[None], 8)[0]  # (8,)
for row in results[:3]:
    print(passages[row].title)
    print(textwrap.indent(textwrap.shorten(passages[row].text, 100), "    "))

# %% tags=["figure"]
figure, axes = plt.subplots(figsize=(7.5, 3.4))
places = np.arange(len(results))
for offset, (name, scores), colour in zip(
    (-0.2, 0.2), parts.items(), (plots.GREEN, plots.BLUE), strict=True
):
    axes.barh(places + offset, scores[results], height=0.38, color=colour, label=name)
labels = []
for row in results:
    library, _, name = passages[row].title.partition(".")
    last = name.rpartition(".")[2]
    labels.append(f"{library}.{name}" if len(name) < 34 else f"{library} … {last}")
axes.set_yticks(places, labels, fontsize=9)
axes.axvline(0, color="black", linewidth=0.8)
axes.invert_yaxis()
axes.set(title=f"“{QUESTION}”", xlabel="standardised score (deviations above the mean passage)")
axes.legend(loc="lower right")
plt.show()

# %% [markdown]
r"""
## 12. The same search with a real encoder

All of this was done with `mini`, which had 5 million parameters and few pairs to learn from. With all-MiniLM-L6-v2, which was trained for search, minibert searches SQuAD's paragraphs by
its questions. The commands are `minibert search index` and `minibert search evaluate`; the figures are those of the
[repository's report](../benchmarks/results/finetuning.md):
"""

# %%
found = read_results("finetuning")
for name, run, part in (
    ("as it is", "search-untouched", "brute_force"),
    ("fine-tuned on SQuAD", "search-tuned", "brute_force"),
    ("… fewer questions", "search-reranked", "brute_force"),
    ("… re-ranked", "search-reranked", "reranked"),
):
    search = found[run]["figures"]["search"]
    recalls = "  ".join(f"recall@{k} {search[part][f'recall@{k}']:.3f}" for k in (1, 10))
    print(
        f"{name:<20} {search['queries']:5,} questions, {search['passages']:,} passages   {recalls}"
    )

# %% [markdown]
r"""
The right paragraph is among the first ten of 2,067 for nine questions out of ten, with no training of our own. Fine-tuning raises recall@1 by a point and a half and does nothing for recall@10. The cross-encoder, which lowered
recall@1 in section 9, now raises it from 0.648 to 0.664. By the rule of section 10 that is no proof: 500 questions have a standard
error of two points.

These questions were written by people who had the paragraph before their eyes, so they share many words with it. The numbers above say
what a good encoder does on its own. They do not say that it beats tf-idf here; nobody has measured that in this report.

## Recap

- Pooling makes one vector of a text; the mask belongs to it. Cosines of unit vectors are one matrix product.
- recall@k: the share of queries with rank ≤ k. MRR: the mean of 1/rank. Ties count against you.
- Vectors of a masked language model were never trained to be compared. Whitening helps without labels, pairs help more.
- The in-batch softmax: $p - I$, through a matrix product and two projections.
- Retrieve cheaply, re-rank a few, and measure against counting words.

## What usually goes wrong

- **No baseline.** A recall of one half is celebrated, and nobody looked what tf-idf gives.
- **The mean over padding.** Vectors then depend on the batch.
- **Two models**, one for passages, one for queries. The cosines are noise; `PassageIndex` refuses.

## Three questions

Answer before you unfold.
"""

# %% [markdown]
r"""
<details>
<summary><b>1.</b> You double the batch of the in-batch softmax from 64 to 128 pairs and the loss goes up. Is the encoder worse?</summary>

Not necessarily. The task is harder: an encoder that knows nothing goes from ln 64 = 4.16 to ln 128 = 4.85. Losses of different
batch sizes cannot be compared; recall can.

</details>
"""

# %% [markdown]
r"""
<details>
<summary><b>2.</b> Accumulating the gradients of four micro-batches of 16 pairs: is that the same as one batch of 64?</summary>

Not for this loss. Each query then chooses among 16 passages, not 64: an easier task, with fewer wrong answers to learn from.

</details>
"""

# %% [markdown]
r"""
<details>
<summary><b>3.</b> recall@20 of the retrieval is 0.75. A perfect re-ranker looks at these 20. What are recall@1 and recall@50 after it?</summary>

Recall@1 becomes 0.75: wherever the right passage is among the 20, it is put first. Recall@50 stays as it was, since nothing beyond place 20 moves.

</details>
"""

# %% [markdown]
r"""
**Next:** [20 · Your BERT](20_your_bert.ipynb), where all that you have written becomes one model. The code of this notebook:
[similarity.py](../minibert/ops/similarity.py) (the loss), [sentence.py](../minibert/heads/sentence.py) (the encoder),
[search.py](../minibert/tasks/search.py), [rerank.py](../minibert/tasks/rerank.py), [retrieval.py](../minibert/tasks/retrieval.py).
"""
