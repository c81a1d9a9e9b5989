# %% [markdown]
r"""
# 19 · Applications

"Which function does this?" To search by what a text *means*, we need a number that says how similar two texts are. BERT turns each
text into a vector, which is computed once and compared quickly. Here we build a search from such vectors, and compare it with one that needs no network: counting words.
How a model *learns* to search is the subject of [28 · Learning to search](28_learning_to_search.ipynb).

**You will** pool token vectors · write recall@k · see why vectors of a masked language model search badly, and what whitening
does about it · search exactly and approximately · decide when to count words instead · type a question.

**Before this:** [10 · The encoder](10_encoder.ipynb), [14 · Pre-training](14_pretraining.ipynb).
**Time:** 50 minutes with the exercise; it runs in under 20 seconds. Over a third of that goes into reading the documentation installed with Python.

| letter | in this notebook |
|---|---|
| `B`, `S`, `H` | texts in a batch, tokens in a text, hidden size |
| `Q`, `N` | queries; passages |
| `V` | different words in the passages |
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
from minibert.data.tasks import documentation
from minibert.errors import UserError
from minibert.ops.pooling import first_token, max_pooling, mean_pooling
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

The encoder gives `H` numbers for every token. To compare texts of different lengths, we **pool** the tokens' vectors into one: we take the vector of [CLS],
the mean of all tokens, or the maximum of each feature. With the mask $m_s$, which is 1 for a token and 0 for padding:

$$
y^{\text{cls}} = h_0, \qquad
y^{\text{mean}} = \frac{\sum_s m_s \, h_s}{\sum_s m_s}, \qquad
y^{\text{max}}_i = \max_{s:\, m_s = 1} h_{s,i} .
$$

Without the mask, a text's vector depends on how much padding its neighbours in the batch make necessary:
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
The **cosine** of the angle between two vectors says how similar they are, $\cos(x, y) = x \cdot y \, / \, (\lVert x \rVert
\lVert y \rVert)$. It is 1 for the same direction, whatever the lengths. For vectors of length 1 it is their dot product, so all cosines
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


six = unit(encoder.embed(SENTENCES))  # (6, H); by default the library pools by the mean
cosines = six @ six.T  # (6, 6)

# %% tags=["figure"]
# Caption: All six are alike. The pairs that mean the same stand out only a little.
figure, axes = plt.subplots(figsize=(7.5, 3.2))
plots.heatmap(axes, cosines, digits=2, limit=1.0)
axes.set(title="cosines before any fine-tuning", xticks=[])
axes.set_yticks(range(6), SENTENCES)
figure.set_label(
    "A table of the cosines of six sentences with each other before any fine-tuning: all "
    "are high, and the two pairs that mean the same are only a little higher"
)
plt.show()

# %% [markdown]
r"""
The first two sentences mean nearly the same, and so do the next two. Their cosines are the highest. The last two sentences mean different
things, and theirs is not much lower. What is more striking: *everything* looks like everything.

## 2. A search, and how it is measured

The documentation on your machine gives a task with known answers. The first line of a docstring is the **query**, the
sentences that follow are the **passage** to be found by it. (Functions whose name stands in both are left out.)
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
right passage $a_q$, counted from 1:

$$ \text{rank}_q = \big\lvert \{ n : s_{qn} \ge s_{q a_q} \} \big\rvert . $$

Two numbers sum up the ranks. **Recall@$k$** is the share of queries whose answer is among the first $k$ results. The **mean reciprocal rank**, MRR, is the mean of
$1 / \text{rank}_q$; it also depends on *where* among them the answer stands.

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
Sorting breaks ties by position, so that the order of the files matters. Without ties, all three ways of counting agree.

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

`scores` (Q, N) has a score for every query and passage; `right` (Q,) has the index of each query's right passage. Return the one number recall@`k`.
There are no ties in the trials, so you may sort or count. No loop is needed.
"""

# %% [markdown] tags=["derivation"]
r"""
$[\dots]$ is 1 where the statement is true and 0 where it is not:

$$ \text{recall@}k = \frac1Q \sum_q [\, \text{rank}_q \le k \,] . $$

Either count the scores that are at least as high as the right passage's, and compare with $k$. Or sort $-s$, so that the best come first, and see whether
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
Sorting all scores is more than we need: `argpartition` finds the best `k` without sorting the rest. The library's search uses it.
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
installed, all vectors are compared by brute force.)
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
assert np.mean(ranks["mean"] == library) > 0.99  # up to rounding, the library's evaluation


def tell(name, ranks):
    recall, mrr = metrics.recall_at(ranks, 10), metrics.mean_reciprocal_rank(ranks)
    print(f"{name:<22} recall@10 {recall:.3f}   MRR {mrr:.3f}")


print(f"{'chance':<22} recall@10 {chance_recall:.3f}   MRR {chance_mrr:.3f}")
for name, found in ranks.items():
    tell(name, found)
assert metrics.recall_at(ranks["mean"], 10) > 3 * chance_recall

# %% [markdown]
r"""
The vectors do far better than chance, so they hold some meaning. But they do far worse than counting words. Is the pooling to blame? Here are all three kinds, on a
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
(With fewer passages there is less competition, so all numbers are higher.) No pooling reaches tf-idf.

## 5. Why do they search badly?

Nobody trained them for it. The masked-word loss wants a token's vector to predict *that token*. No loss ever asked whether the mean of
a text's vectors is near that of a text with the same meaning. Here are the cosines of queries with their right passages, and with others:
"""

# %%
wrong = rng.integers(0, N, len(right))
wrong = np.where(wrong == right, (wrong + 1) % N, wrong)  # (Q,): for each query another passage
rows = np.arange(len(right))
right_cosines, wrong_cosines = by_vectors[rows, right], by_vectors[rows, wrong]

# %% tags=["figure"]
# Caption: Right passages are only a little nearer than others: what tells them apart is small.
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
vectors, rotate the axes to the directions of their spread, and scale each to variance 1. With the covariance matrix
$\Sigma = U \Lambda U^\top$ ($U$ orthogonal, $\Lambda$ diagonal):

$$
z = (x - \mu) \, W, \quad W = U \Lambda^{-1/2} \;\Rightarrow\;
\operatorname{cov}(z) = W^\top \Sigma \, W
= \Lambda^{-1/2} \, U^\top U \, \Lambda \, U^\top U \, \Lambda^{-1/2} = I .
$$

(A direction with next to no spread is left out. There is one, because the last [LayerNorm](05_layer_norm.ipynb) fixes the sum of all $\hat x_i$.)
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
    f"{(~some).sum()} of 256 has next to none; for the others, cov(z) differs from I by {error:.0e}"
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
Without a single label, the search is better. So the meaning was there, in directions that count for little in the cosine. Which
directions matter can be learned from pairs ([28](28_learning_to_search.ipynb)).

## 6. Exact and approximate search

**Exact** search computes all $Q \cdot N$ cosines, then takes the `k` best of each row. Nothing is missed.
"""


# %%
def best_first(scores, k):
    """The rows of the k best passages of each query: (Q, k)."""
    return np.argsort(-scores, axis=1, kind="stable")[:, :k]


nearest, cosines = exact_search(query_vectors, vectors, top_k=10)  # (Q, 10) each
print(
    f"{len(query_vectors):,} × {N:,} × 256 = {query_vectors.size * N / 1e6:,.0f} million multiplications"
)
assert np.allclose(cosines[:, 0], by_vectors.max(axis=1), atol=1e-5)

# %% [markdown]
r"""
A thousand passages take next to no time. Tens of millions would take too long, so we accept missing a few. The
simplest idea is an **inverted file**: group the vectors into cells by their nearest centre (k-means), and compare only those in the
cells whose centres are nearest to the query. A true neighbour is found if, and only if, its cell is looked into.
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
# Caption: With less than a third of the comparisons, more than nine in ten of the true neighbours
#   are found.
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
The knob is the number of cells looked into. Mind the vertical axis: it shows agreement with *exact search*, not with the right answer.

Many databases use **HNSW**, a graph in which each vector is linked to near ones, and a search walks along the links. LanceDB
offers it. (Among a thousand passages it finds them all; what it saves and what it misses shows only with many more.) It can also filter by other facts about a passage, such as its title:
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
## 7. Words or vectors?

They fail on different queries. For each of the two, here is a query that it answers at once and the other does not:
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
(The last rank of all means that query and passage have no word in common: the score is 0, and ties count against the passage.)

- **Count words** if queries use the texts' own words: names, error codes, rare terms. It needs no training, and you can see why it
  found something. Start with it.
- **Use vectors** if people ask in words other than those of the texts, *and* the encoder was fine-tuned for search on something like your texts.
- **Combine** them: their mistakes differ. For each query, both sets of scores are brought to mean 0 and deviation 1, and then added:
"""


# %%
def standardise(scores):
    """Each query's scores, with mean 0 and deviation 1: (Q, N)."""
    return (scores - scores.mean(axis=1, keepdims=True)) / scores.std(axis=1, keepdims=True)


ranks["tf-idf + whitened"] = ranks_of(standardise(by_words) + standardise(by_white))
for name, found in ranks.items():
    tell(name, found)
alone, together = (metrics.recall_at(ranks[name], 10) for name in ("tf-idf", "tf-idf + whitened"))
assert abs(together - alone) < 0.05

# %% [markdown]
r"""
With vectors of the raw model, even whitened, the sum is about as good as tf-idf alone: recall@10 is the same, and MRR differs by 0.002. With a
fine-tuned encoder, the sum is better. [28](28_learning_to_search.ipynb#7.-Did-it-help,-or-was-it-luck?) measures that, and shows how to tell
whether such a difference is more than luck.

## 8. A search to type into

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
# Caption: Eight passages for one question, with their scores by words and by vectors. The sum of
#   the two decides. Few passages share rare words with the question, so theirs are far above the
#   mean, and the words weigh more in this sum.
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

## Recap

- Pooling turns a text into one vector; it needs the mask. Cosines of unit vectors are one matrix product.
- recall@k: the share of queries with rank ≤ k. MRR: the mean of 1/rank. Ties count against you.
- Vectors of a masked language model were never trained to be compared. Whitening helps without labels.
- Approximate search trades a few of the true neighbours for time.
- Measure against counting words, and combine both if the encoder was trained for search.

## What usually goes wrong

- **No baseline.** A recall of one half is celebrated, and nobody looked at what tf-idf gives.
- **The mean over padding.** Vectors then depend on the batch.
- **Two models that were not trained together**, one for passages, one for queries. The cosines are noise; `PassageIndex` refuses.

## Three questions

Answer before you unfold.
"""

# %% [markdown]
r"""
<details>
<summary><b>1.</b> A colleague's search has a recall@10 of 1.0 for every encoder that you try, even for an untrained one. What do you look at?</summary>

At the ties. If all vectors are alike, or the scores are rounded, and ties count in your favour, every rank is 1. Count ties against you, and the recall falls. If
ties are broken by a sort, shuffle the passages: an honest recall stays the same.

</details>
"""

# %% [markdown]
r"""
<details>
<summary><b>2.</b> You add ten times as many passages. The queries and their right passages stay. What happens to recall@10, and is the encoder worse?</summary>

It falls, since there are more wrong passages that can come before the right one. The encoder is the same. Recalls on collections of different sizes cannot be
compared; the chance level k / N says how hard each task is.

</details>
"""

# %% [markdown]
r"""
<details>
<summary><b>3.</b> Whitening is computed from the passages' vectors. Is that cheating?</summary>

No label is used, and no query: the mean and the covariance of the collection are known before the first question is asked. It would be cheating to
choose the directions by how well the test queries do with them.

</details>
"""

# %% [markdown]
r"""
## Further reading

- Manning, Raghavan and Schütze, [Introduction to information retrieval](https://nlp.stanford.edu/IR-book/), 2008: tf-idf, BM25, recall and MRR, free to read.
- Ethayarajh, [How contextual are contextualized word representations?](https://arxiv.org/abs/1909.00512), 2019: the narrow cone of section 5, measured in BERT, ELMo and GPT-2.
- Su and others, [Whitening sentence representations for better semantics and faster retrieval](https://arxiv.org/abs/2103.15316), 2021: the remedy of section 5.
- Malkov and Yashunin, [Efficient and robust approximate nearest neighbor search using hierarchical navigable small world graphs](https://arxiv.org/abs/1603.09320), 2016: HNSW.
- Thakur and others, [BEIR](https://arxiv.org/abs/2104.08663), 2021: eighteen search tasks on which BM25 is hard to beat.

**Next:** [28 · Learning to search](28_learning_to_search.ipynb), where the encoder is trained for this; or [20 · Your BERT](20_your_bert.ipynb), where all that you have written becomes one model.
The code of this notebook: [pooling.py](../minibert/ops/pooling.py), [embed.py](../minibert/tasks/embed.py), [search.py](../minibert/tasks/search.py),
[retrieval.py](../minibert/tasks/retrieval.py).
"""
