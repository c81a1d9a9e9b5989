# %% [markdown]
r"""
# 28 · Learning to search

The vectors of a masked language model search badly ([19](19_applications.ipynb)): they were never trained to be near each other when two texts
mean the same. Here they are. A **dual encoder** learns from pairs of texts that belong together. A **cross-encoder** reads
both texts at once and sorts the best results again.

**You will** derive the loss of a dual encoder · write its gradient, from the unit vectors up · teach a matrix to search, and see it learn by heart ·
see what fine-tuning brings · re-rank · tell luck from progress · compare with a real encoder.

**Before this:** [19 · Applications](19_applications.ipynb), whose second half this is, and
[03 · Softmax and cross-entropy](03_softmax_cross_entropy.ipynb). **Time:** 75 minutes with the exercises; it runs in half a minute.

| letter | in this notebook |
|---|---|
| `H` | hidden size |
| `Q`, `N` | queries; passages (in the loss: pairs in a batch) |
| $x_n$, $y_n$ | the vectors of query $n$ and of its passage |
| $\hat x$, $r$ | a vector of length 1, and the length that it had |
| τ | the factor by which the cosines are multiplied |
"""

# %%
import re
import tempfile
from collections import Counter
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from minibert import check, ops, plots
from minibert.course import EXERCISES, read_log, read_results, write_log
from minibert.course.exercises.n28_learning_to_search import in_batch_loss, unit_length
from minibert.data.tasks import RECIPES, documentation
from minibert.ops.similarity import in_batch_softmax_loss, in_batch_softmax_loss_backward
from minibert.tasks import metrics
from minibert.tasks.embed import TextEncoder
from minibert.tasks.search import PassageIndex
from minibert.tasks.similarity import partner_ranks

plots.notebook_style()
np.set_printoptions(precision=3, suppress=True)
rng = np.random.default_rng(28)

# %% [markdown]
r"""
## 1. Where we stand

The task is that of [19](19_applications.ipynb#2.-A-search,-and-how-it-is-measured): the first line of a docstring is the query, and the sentences after it are
the passage to be found among all. Recall@10 is the share of queries whose passage is among the ten best.
"""

# %%
encoder = TextEncoder.open("mini", max_length=64)  # the shipped model; longer texts are cut
passages = documentation.search_passages("dev")  # from other files than the training pairs
queries = documentation.search_queries("dev")
row_of = {passage.id: row for row, passage in enumerate(passages)}
right = np.array([row_of[query.passage] for query in queries])  # (Q,): the row of the right passage
passage_texts = [passage.text for passage in passages]
query_texts = [query.text for query in queries]
N = len(passages)


def unit(vectors):
    """(…, H) → the same directions, each of length 1."""
    return ops.unit_length(vectors)[0]


def ranks_of(scores):
    """The rank of each query's right passage, ties against it: (Q,)."""
    return (scores >= scores[np.arange(len(scores)), right][:, None]).sum(axis=1)


vectors, query_vectors = unit(encoder.embed(passage_texts)), unit(encoder.embed(query_texts))
by_vectors = query_vectors @ vectors.T  # (Q, N)
raw_recall = metrics.recall_at(ranks_of(by_vectors), 10)
print(f"{len(queries):,} queries, {N:,} passages, recall@10 of the raw vectors {raw_recall:.3f}")
print(f"a random order would give {10 / N:.3f}")

# %% [markdown]
r"""
## 2. The loss of a dual encoder

Take a batch of `N` pairs: queries $x_n$, passages $y_n$, from the same encoder. **Each query has to find its partner among
all `N`.** The partners of the other queries serve as wrong answers, at no extra cost. The scores are cosines times a factor τ, and the
rest is a classification with `N` classes:

$$
\hat x_n = \frac{x_n}{\lVert x_n \rVert}, \quad
z_{nm} = \tau \; \hat x_n \cdot \hat y_m, \quad
p_{nm} = \frac{e^{z_{nm}}}{\sum_j e^{z_{nj}}}, \quad
L_{\rightarrow} = - \frac1N \sum_n \ln p_{nn} .
$$

In $L_{\leftarrow}$, each passage has to find its query (by a softmax $p'$ down the *columns*). The loss is the mean of both,
$L = \frac12 (L_{\rightarrow} + L_{\leftarrow})$. An encoder that cannot tell any texts apart has $L = \ln N$.

**Why a factor?** Take a perfect encoder, with a cosine of 1 for the partner and 0 for all others. Then
$L = \ln(1 + (N - 1) \, e^{-\tau})$:
"""

# %%
for scale in (1.0, 5.0, 20.0):
    perfect, _ = in_batch_softmax_loss(np.eye(32, 256), np.eye(32, 256), scale, True, 32.0)
    assert np.isclose(perfect, np.log(1 + 31 * np.exp(-scale)))
    print(f"τ = {scale:4.0f}   perfect encoder: {perfect:.4f}   knows nothing: {np.log(32):.4f}")

# %% [markdown]
r"""
With τ = 1 even a perfect encoder has a large loss. A usual value is 20. (1/τ is also called the *temperature*, and many papers write τ for that.)

## 3. Its gradient

$dx$ means $\partial L / \partial x$. Three steps lead back from the loss to the vectors. We begin with the last of them, since it is the new one.

### Your turn: a vector of length 1

@exercise 28.unit_length_backward

The forward pass is $\hat x = x / r$ with $r = \lVert x \rVert$, row by row. The cache holds $\hat x$ (N, H) and $r$ (N, 1).
"""

# %% [markdown] tags=["derivation"]
r"""
Every $x_j$ affects its own $\hat x_j$, and through $r$ it affects all of them.
From $r^2 = \sum_i x_i^2$ it follows that $\partial r / \partial x_j = x_j / r = \hat x_j$, so

$$
dx_j = \frac{d\hat x_j}{r} + \sum_i d\hat x_i \cdot \left( - \frac{x_i}{r^2} \right) \hat x_j
= \frac1r \Big( d\hat x_j - \hat x_j \sum_i \hat x_i \, d\hat x_i \Big) .
$$

The part that points along $x$ is removed: only the direction of $x$ counts.
"""


# %% tags=["solution"]
def my_unit_length_backward(dout, cache):
    """dx of x̂ = x / r. dout (N, H); cache: x̂ (N, H), r (N, 1)."""
    unit, r = cache
    return (dout - unit * (unit * dout).sum(axis=1, keepdims=True)) / r


# %%
check("28.unit_length_backward", my_unit_length_backward)

# %% [markdown]
r"""
In a picture: a gradient that went through the unit length never points along the vector. Here are twelve random vectors in the plane, each with a random $d\hat x$ and the $dx$ that results from it:
"""

# %% tags=["figure"]
# Caption: Twelve vectors x. The gradient that arrives (light) loses its part along x and is divided
#   by the length of x; the gradient that goes on (vermilion) is at a right angle to x.
backward_of_unit = EXERCISES["28.unit_length_backward"].solution
points = rng.uniform(0.5, 1.5, (12, 1)) * np.stack(
    [np.cos(np.arange(12) * np.pi / 6), np.sin(np.arange(12) * np.pi / 6)], axis=1
)
incoming = 0.5 * rng.standard_normal(points.shape)
outgoing = backward_of_unit(incoming, unit_length(points)[1])
figure, axes = plt.subplots(figsize=(7.5, 4.4))
axes.add_patch(plt.Circle((0, 0), 1, fill=False, color=plots.GREY, linestyle="--"))
for point in points:
    axes.plot([0, point[0]], [0, point[1]], color=plots.GREY, linewidth=0.7)
for arrows, colour, label in (
    (incoming, plots.SKY, "what arrives, $d\\hat x$"),
    (outgoing, plots.VERMILION, "what goes on, $dx$"),
):
    axes.quiver(
        *points.T,
        *arrows.T,
        color=colour,
        label=label,
        angles="xy",
        scale_units="xy",
        scale=1,
        width=0.005,
    )
axes.plot(*points.T, "o", color=plots.BLUE, label="$x$")
axes.set(title="only the direction counts", xlim=(-3.2, 3.2), ylim=(-1.9, 1.9), aspect="equal")
axes.legend(loc="upper left", fontsize=9)
axes.set_axis_off()
figure.set_label(
    "Twelve vectors around the unit circle, each with the gradient that arrives and the gradient that is passed "
    "on: the second always stands at a right angle to the vector, and is shorter for longer vectors"
)
plt.show()
assert np.abs((outgoing * points).sum(axis=1)).max() < 1e-12

# %% [markdown]
r"""
### Your turn: the whole loss

@exercise 28.in_batch_backward

The cache holds $\hat x$, $\hat y$, their lengths $r_x$, $r_y$, τ, and the two softmaxes: $p$ along the rows, $p'$ down the columns. Return $dx$ and $dy$, both
(N, H). You can use the function that you just wrote.
"""

# %% [markdown] tags=["derivation"]
r"""
**Softmax and cross-entropy.** [03](03_softmax_cross_entropy.ipynb) derived $p - y$. The right class of row $n$ is $n$, so $y$ is
the identity matrix $\delta$. The other direction is the same with $z^\top$, and each counts half:

$$ dz_{nm} = \frac{1}{2N} \big( p_{nm} - \delta_{nm} \big) + \frac{1}{2N} \big( p'_{nm} - \delta_{nm} \big) . $$

**The matrix product** $z = \tau \, \hat x \, \hat y^\top$ ([02](02_linear.ipynb)): every $\hat x_n$ took part in a row, every $\hat y_m$ in a column:

$$ d\hat x_n = \tau \sum_m dz_{nm} \, \hat y_m, \qquad d\hat y_m = \tau \sum_n dz_{nm} \, \hat x_n . $$

**Unit length** is the exercise above.
"""


# %% tags=["solution"]
def my_in_batch_backward(dout, cache):
    """dx and dy (N, H) of the loss. dout is a number; the cache: x̂, ŷ, r_x, r_y, τ, p, p′."""
    x, y, r_x, r_y, scale, p, p_columns = cache
    right = np.eye(len(p))
    dz = dout * (p - right + p_columns - right) / (2 * len(p))  # (N, N)
    dx = my_unit_length_backward(scale * dz @ y, (x, r_x))
    dy = my_unit_length_backward(scale * dz.T @ x, (y, r_y))
    return dx, dy


# %%
check("28.in_batch_backward", my_in_batch_backward)

# %% [markdown]
r"""
Does the library compute the same loss, and the same gradients?
"""

# %%
x, y = rng.standard_normal((2, 5, 7))  # N = 5 pairs, H = 7
loss, cache = in_batch_softmax_loss(x, y, 20.0, True, 5.0)  # the library's
dx, dy = in_batch_softmax_loss_backward(1.0, cache)
loss_here, cache_here = in_batch_loss(x, y, 20.0)
in_steps = EXERCISES["28.in_batch_backward"].solution
for ours, theirs in zip((loss_here, *in_steps(1.0, cache_here)), (loss, dx, dy), strict=True):
    assert np.allclose(ours, theirs, rtol=1e-10, atol=1e-12)
print(
    f"the library's loss and gradients agree; dx · x is at most {np.abs((dx * x).sum(1)).max():.0e}"
)

# %% [markdown]
r"""
Read the first two steps of the backward pass together: $-d\hat x_n \propto (1 - p_{nn}) \, \hat y_n - \sum_{m \ne n} p_{nm} \, \hat y_m$ (for one direction of the loss). A query is
pulled towards its partner, and pushed away from the other passages. The more a passage is mistaken for the partner, the harder the push. Here are $p$ and $dz$ for
six real pairs:
"""

# %%
_, cache = in_batch_loss(query_vectors[:6], vectors[right[:6]], 20.0)
p, p_columns = cache[-2:]
pull = (p + p_columns - 2 * np.eye(6)) / 12  # (6, 6): dz

# %% tags=["figure"]
# Caption: Six real pairs. On the right: the right passages (the diagonal) are pulled closer, and
#   those that are mistaken for them are pushed away.
figure, axes = plt.subplots(1, 2, figsize=(7.5, 3.4))
for panel, values, digits, limit, title in (
    (axes[0], p, 2, 1.0, "p: whom does a query choose?"),
    (axes[1], 12 * pull, 2, 2.0, "2N dz: pulled (−), pushed away (+)"),
):
    plots.heatmap(panel, values, digits=digits, limit=limit)
    panel.set(title=title, xlabel="passage", ylabel="query")
figure.set_label(
    "Two tables of six queries against six passages. Left, the probabilities of the "
    "choice. Right, the gradients: negative on the diagonal, positive where a wrong "
    "passage was likely"
)
plt.show()

# %% [markdown]
r"""
**A trap:** if a batch holds the same passage twice, a right answer counts as wrong. `DistinctPairs` divides the pairs into batches
so that no batch has the same text twice.

## 4. A few seconds of learning

We put one matrix $M$ (`H × H`) after the encoder. It starts as the identity matrix, and nothing else is trained. Since it is used twice, in $xM$
and in $yM$, its gradient is $dM = x^\top d(xM) + y^\top d(yM)$. Here are 100 steps of plain gradient descent on 300 pairs:
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
    matrix -= 0.1 * (train_x.T @ dx + train_y.T @ dy)

steps, losses, train_recall, dev_recall = np.array(curve).T
print(f"loss {losses[0]:.2f} → {losses[-1]:.2f}  (ln 300 = {np.log(300):.2f})")
print(
    f"recall@10 of the 300 pairs {train_recall[0]:.2f} → {train_recall[-1]:.2f} (of 300 passages)"
)
print(f"recall@10 of the dev queries {dev_recall[0]:.2f} → {dev_recall[-1]:.2f} (of {N:,})")
assert losses[-1] < 0.6 * losses[0] and train_recall[-1] > 0.9 > dev_recall[-1] + 0.2

# %% tags=["figure"]
# Caption: The 300 pairs are learned almost completely. With new ones that helps a little.
figure, axes = plt.subplots(figsize=(7.5, 2.8))
axes.plot(steps, train_recall, "o-", color=plots.ORANGE, label="the 300 pairs learned from")
axes.plot(steps, dev_recall, "o-", color=plots.BLUE, label="new queries and passages")
axes.set(title="learned by heart", xlabel="step", ylabel="recall@10", ylim=(0, 1.03))
axes.legend(loc="lower right")
plt.show()

# %% [markdown]
r"""
The loss does what it should: the training queries find their partners. On new texts far less is gained, and after step 60 a little is lost again: with 65,536 free
numbers, the matrix learns 300 pairs by heart. For more, we have to train the entire encoder, on more pairs.

## 5. What fine-tuning brings

Now we fine-tune the shipped model on all training pairs (some 4,000), for four epochs with
batches of 64. This takes eight minutes on one core, so the results are read from a log. On the command line it is `minibert finetune --recipe docs-search --model mini` with the settings below (folded). `RERUN`
repeats it, together with the training of section 6's re-ranker.
"""

# %%
RERUN = False  # True: writes the log anew, in a quarter of an hour on one core; needs LanceDB


def standardise(scores):
    """Each query's scores, with mean 0 and deviation 1: (Q, N)."""
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
    """The log of the dual encoder's training in the folder ``out``, shortened."""
    from minibert.train.metrics import read_metrics

    for record in read_metrics(out / "dual" / "seed-0" / "metrics.jsonl"):
        kept = {name.removeprefix("held_out_"): value for name, value in record.items()}
        kept = {name: round(kept[name], 4) for name in ("loss", "mrr", "recall@10") if name in kept}
        yield {"step": record["step"], **kept}


def word_scores():
    """The cosines of the queries with the passages by tf-idf, as in 19: (Q, N)."""
    words = sorted({word for text in passage_texts for word in re.findall(r"\w+", text.lower())})
    column_of = {word: column for column, word in enumerate(words)}
    counts = [np.zeros((len(texts), len(words))) for texts in (query_texts, passage_texts)]
    for table, texts in zip(counts, (query_texts, passage_texts), strict=True):
        for row, text in zip(table, texts, strict=True):
            for word, count in Counter(re.findall(r"\w+", text.lower())).items():
                if word in column_of:
                    row[column_of[word]] = count
    idf = 1 + np.log((1 + N) / (1 + (counts[1] > 0).sum(axis=0)))
    asked, there = (unit(np.log1p(table) * idf) for table in counts)
    return asked @ there.T


def compare(out):
    """The ranks of all ways to search, with the models in the folder ``out``; yields the lines of the log."""
    from minibert.tasks.rerank import Reranker

    by_words = word_scores()
    dual = TextEncoder.open(out / "dual" / "best")
    tuned = unit(dual.embed(query_texts)) @ unit(dual.embed(passage_texts)).T  # (Q, N)
    both = standardise(by_words) + standardise(tuned)
    best = best_first(both, 20)  # (Q, 20)
    asked = [(query_texts[q], passage_texts[n]) for q, row in enumerate(best) for n in row]
    judged = Reranker.open(out / "cross" / "best").scores(asked).reshape(best.shape)

    def in_new_order(new):
        """The ranks after the best 20 were sorted by other scores (Q, 20)."""
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
name = "28_search.jsonl"
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
# Caption: The training loss, and the share of queries whose passage is among the first ten. The
#   green line is counting words.
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
The encoder learns to search among functions that it never saw. (At step 0 it is the raw model, with 0.355 instead of 0.360: up to 96
tokens of a text are read here, and 64 in section 1.) But it stays just behind tf-idf: the model is small, and so are its training data.
(The model card of all-MiniLM-L6-v2, which was made for search, counts 1.17 *billion* pairs.)

**A choice that flatters:** the weights that are kept have the best MRR *on these queries*, and they are scored on the same queries, here and in
section 6. In this run they are also the last ones, so nothing was gained by choosing. In general, a third set of queries to choose on is cleaner.

## 6. A second look: re-ranking

A dual encoder compresses a passage into `H` numbers before it knows the query. A **cross-encoder** reads both at once,
`[CLS] query [SEP] passage [SEP]`. Every token attends to every other, and a classifier says whether the two texts match. But nothing can be
computed in advance. So we first **retrieve** cheaply, and then **re-rank** only the best results, say 20. Recall@20 is then the ceiling for the recall after re-ranking.

The training data of the cross-encoder come from the search: right passages, and wrong ones *that were found*, since random ones would be too easy. Its
score is $\ln \frac{p(\text{match})}{p(\text{no match})}$.

The log has the ranks. "Both" adds tf-idf and the fine-tuned cosines, each standardised per query, with equal weights. "All three" adds
the cross-encoder's scores in the same way.
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
# Caption: Of these, words and fine-tuned vectors together ("both") are the best at every k.
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
the order that it was given. It is a small model that saw some 12,000 pairs. Do not throw away a good order for a cleverer
model. But does it help as a *third voice*?

## 7. Did it help, or was it luck?

Count the queries whose right passage moved into the first `k` ("gained"), and those where it fell
out ("lost"):
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
assert beyond_luck["both", 1] and beyond_luck["both", 10]
assert not (beyond_luck["all three", 1] or beyond_luck["all three", 10])

# %% [markdown]
r"""
If both ways were equally good, each query that changes sides would be a coin toss. The difference between heads and tails after $n$ tosses has a
standard deviation of $\sqrt n$. Do not celebrate less than two of these. Vectors bring more right passages into first place and
into the first ten. The cross-encoder's voice brings a few more, but coins might do the same.

## 8. The same search with a real encoder

All of this was done with `mini`, which has 5 million parameters and had few pairs to learn from. With all-MiniLM-L6-v2, which was trained for search, minibert searches the paragraphs of SQuAD with
its questions. The commands are `minibert search index` and `minibert search evaluate`; the figures are from the
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
Without any training of our own, the right paragraph is among the first ten of 2,067 for nine questions out of ten. Fine-tuning raises recall@1 by a point and a half, which may be luck (one such score of 1,702 questions has a standard error of 1.2 points), and recall@10 does not rise. The cross-encoder, which lowered
recall@1 in section 6, now raises it from 0.648 to 0.664. That is no proof: it is eight questions of 500, and such a score has a standard
error of two points.

These questions were written by people who were looking at the paragraph, so they share many words with it. The numbers above say
how well a good encoder does on its own. They do not say that it beats tf-idf here: the report did not measure that.

## Recap

- A dual encoder learns from pairs: each query has to find its partner among those of the batch.
- Its gradient is $p - I$, taken back through a matrix product and through the unit length of both sides.
- A cosine's gradient is at a right angle to the vector: only the direction can learn.
- Retrieve cheaply, re-rank a few results, compare with counting words, and count the queries that changed sides.

## What usually goes wrong

- **The same text twice in a batch.** A right answer then counts as wrong.
- **No factor τ.** With plain cosines, even a perfect encoder cannot reach a small loss.
- **Negatives that are too easy.** Random passages teach a re-ranker nothing: take wrong ones that were found.
- **Chosen and scored on the same queries.** The best of many checkpoints looks better than it is.
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
<summary><b>2.</b> Accumulating the gradients of four micro-batches (parts of a batch) of 16 pairs: is that the same as one batch of 64?</summary>

Not for this loss. Each query then chooses among 16 passages instead of 64. That is an easier task, with fewer wrong answers to learn from.

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
## Further reading

- Henderson and others, [Efficient natural language response suggestion for Smart Reply](https://arxiv.org/abs/1705.00652), 2017: the other pairs of the batch as wrong answers.
- Reimers and Gurevych, [Sentence-BERT](https://arxiv.org/abs/1908.10084), 2019: dual encoders made of BERT.
- Nogueira and Cho, [Passage re-ranking with BERT](https://arxiv.org/abs/1901.04085), 2019: the cross-encoder of section 6.
- Karpukhin and others, [Dense passage retrieval for open-domain question answering](https://arxiv.org/abs/2004.04906), 2020: where trained vectors first beat BM25 clearly, and where not.
- Khattab and Zaharia, [ColBERT](https://arxiv.org/abs/2004.12832), 2020: between dual encoder and cross-encoder, with a vector for every token.

**Next:** [20 · Your BERT](20_your_bert.ipynb), where all that you have written becomes one model. The code of this notebook:
[similarity.py](../minibert/ops/similarity.py) (the loss), [sentence.py](../minibert/heads/sentence.py) (the encoder),
[rerank.py](../minibert/tasks/rerank.py).
"""
