# %% [markdown]
r"""
# 15 · Fine-tuning

Pre-training leaves an encoder that knows something about words in context, but answers no question that anybody has.
Fine-tuning puts one small layer on top and shows it some labelled examples. This notebook shows the
four layers that BERT's authors used, their gradients, and what is gained.

**You will** see four heads and their backward passes · write one of these, and that of a head that BERT does not have · fine-tune in seconds, next to a baseline that knows
no English · look into [CLS] before and after fine-tuning · read runs from several seeds.

**Before this:** [03 · Softmax and cross-entropy](03_softmax_cross_entropy.ipynb), [11 · Heads and losses](11_heads_losses.ipynb) (the pooler, NSP).
**Time:** 90 minutes with the exercises; it runs in seconds.

| letter | in this notebook |
|---|---|
| `B`, `S`, `H` | texts in a batch, tokens in a text, hidden size |
| `K` | labels of a task |
| `N` | labels in a batch that count; a loss is divided by it |
"""

# %%
import collections
import contextlib
import inspect
import io
import re
import tempfile
from dataclasses import replace
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.patches import FancyBboxPatch

from minibert import (
    BertConfig,
    BertForPreTraining,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertTokenizer,
    check,
    ops,
    plots,
)
from minibert.bert.encoder import BertPooler
from minibert.course import read_log, read_results, write_log
from minibert.course.exercises.n15_fine_tuning import attention_pooling, classification_head
from minibert.data.tasks import (
    RECIPES,
    FeatureStream,
    ordered_batches,
    question_windows,
    tagged_features,
    text_features,
)
from minibert.devices import resolve_device
from minibert.gradcheck import Draws, function_case, model_case
from minibert.gradcheck import check as compare_with_numeric
from minibert.ops.answer_span_loss import span_loss, span_loss_backward
from minibert.ops.cross_entropy_loss import cross_entropy, cross_entropy_backward
from minibert.train import AdamW
from minibert.train.schedule import original

plots.notebook_style()
np.set_printoptions(precision=3, suppress=True)
rng = np.random.default_rng(15)

# %% [markdown]
r"""
## 1. One encoder, four heads

The encoder turns `B` texts into `hidden`, `(B, S, H)`. A head is a linear layer, and two things tell heads apart: which
rows of `hidden` it reads, and **along which axis the softmax runs**. ($h_s$ is the row of token $s$.)

| task | scores | shape | softmax over |
|---|---|---|---|
| a label for a **single text** | $W p + b$, with $p = \tanh(W_p h_0 + b_p)$ | `(B, K)` | the `K` labels |
| a label for a **pair** | the same; the input is `[CLS] A [SEP] B [SEP]` | `(B, K)` | the `K` labels |
| **tagging**: a label for each word | $W h_s + b$ | `(B, S, K)` | the `K` labels, at each token |
| **question answering**: where in a passage | $w_{\text{start}} \cdot h_s$, $\;w_{\text{end}} \cdot h_s$ | `(B, S, 2)` | the `S` **tokens**, twice |

The loss is cross-entropy in all of them. The pooler $W_p$ came with the encoder; everything else in this table is new and random.
"""

# %% tags=["figure"]
# Caption: Four tasks, one encoder (after figure 4 of BERT's paper). Each head reads the coloured
#   outputs. Grey tokens belong to the second segment.
# For each task: segment A, segment B, which outputs its head reads, what the head is, its scores, and the
# answers with the places where they stand.
TASKS = {
    "a single text": (
        "[CLS] a great film [SEP]",
        "",
        [0],
        "pooler, then W (K, H)",
        "(B, K)   softmax over the labels",
        {0: "positive"},
    ),
    "a pair of texts": (
        "[CLS] it rains [SEP]",
        "it is dry [SEP]",
        [0],
        "pooler, then W (K, H)",
        "(B, K)   softmax over the labels",
        {0: "contradiction"},
    ),
    "tagging": (
        "[CLS] ada was born in paris [SEP]",
        "",
        [1, 2, 3, 4, 5],
        "W (K, H), the same at every token",
        "(B, S, K)   softmax over the labels",
        {1: "PER", 2: "O", 3: "O", 4: "O", 5: "LOC"},
    ),
    "question answering": (
        "[CLS] where ? [SEP]",
        "she lived in paris [SEP]",
        list(range(9)),
        "W (2, H), the same at every token",
        "(B, S, 2)   softmax over the tokens, twice",
        {6: "start", 7: "end"},
    ),
}
ENCODER, TRUNK = "#dbe9f4", plots.BLUE


def draw_task(axes, title, first, second, reads, head, scores, answers, colour):
    """Inputs at the bottom, the encoder, its outputs, the head on those that it reads, the answer on top."""
    tokens = [*first.split(), *second.split()]
    A = len(first.split())
    pitch = 8 / len(tokens)  # all panels are equally wide
    at = [pitch * (s + 0.5) for s in range(len(tokens))]
    thin = {"arrowstyle": "-|>", "shrinkA": 0, "shrinkB": 0, "linewidth": 1.0, "mutation_scale": 7}

    def arrow(x, start, x_end, end, colour):
        axes.annotate("", (x_end, end), (x, start), arrowprops=thin | {"color": colour})

    def box(left, bottom, width, height, face, edge):
        shape = {"boxstyle": "round,pad=0,rounding_size=0.12", "facecolor": face, "edgecolor": edge}
        axes.add_patch(FancyBboxPatch((left, bottom), width, height, linewidth=1.1, **shape))

    box(0.05, 1.0, 7.9, 0.9, ENCODER, TRUNK)
    axes.text(4, 1.45, "pre-trained encoder, L layers", ha="center", va="center", color=TRUNK)
    left, right = at[reads[0]], at[reads[-1]]
    middle = (left + right) / 2 if len(reads) > 1 else 2.6
    half = max((right - left) / 2 + 0.35 * pitch, 2.55)
    box(middle - half, 3.15, 2 * half, 0.6, "white", colour)
    axes.text(middle, 3.45, head, ha="center", va="center", color=colour, fontsize=8.5)
    for s, (x, token) in enumerate(zip(at, tokens, strict=True)):
        face = "#ffffff" if s < A else "#eeeeee"  # the second segment is grey
        box(x - 0.46 * pitch, -0.02, 0.92 * pitch, 0.5, face, plots.GREY)
        axes.text(x, 0.23, token, ha="center", va="center", fontsize=7.5)
        arrow(x, 0.5, x, 0.98, plots.GREY)
        arrow(x, 1.92, x, 2.28, plots.GREY)
        read = s in reads
        box(x - 0.13, 2.3, 0.26, 0.48, colour if read else "white", colour if read else "#bbbbbb")
        if read:
            arrow(x, 2.8, x, 3.13, colour)
    for s, answer in answers.items():
        x = at[s] if len(reads) > 1 else middle
        arrow(x, 3.77, x, 4.1, colour)
        axes.text(
            x, 4.18, answer, ha="center", va="bottom", color=colour, fontsize=9, weight="bold"
        )
    axes.text(0.05, 4.8, scores, fontsize=8.5, color=colour)
    for height, shape in ((0.23, "(B, S)"), (2.54, "(B, S, H)")):
        axes.text(8.15, height, shape, va="center", fontsize=8, color=plots.GREY)
    axes.set_title(title, color=colour, weight="bold")
    axes.set(xlim=(-0.05, 9.6), ylim=(-0.1, 5.1))
    axes.axis("off")


figure, axes = plt.subplots(2, 2, figsize=(9.2, 7.2))
figure.get_layout_engine().set(hspace=0.1)
colours = (plots.VERMILION, "#a5527f", "#007f5f", "#8f6200")
for panel, (title, task), colour in zip(axes.flat, TASKS.items(), colours, strict=True):
    draw_task(panel, title, *task, colour)
figure.set_label(
    "Four panels with the same pre-trained encoder: token ids (B, S) go in at the bottom, hidden states (B, S, H) "
    "come out. For a single text and for a pair only the output of [CLS] is read, by the pooler and a matrix (K, H). "
    "For tagging every word's output is read by one matrix (K, H). For question answering all outputs are read by a "
    "matrix (2, H), and the softmax runs over the tokens: where does the answer start, where does it end?"
)
plt.show()

# %% [markdown]
r"""
How many parameters are new? Only a few:
"""

# %%
mini = BertConfig.from_pretrained("mini", num_labels=4)
for Model in (
    BertForSequenceClassification,
    BertForTokenClassification,
    BertForQuestionAnswering,
):
    sizes = {
        name: parameter.size for name, parameter in Model(mini, device=None).named_parameters()
    }
    head = sum(size for name, size in sizes.items() if not name.startswith("bert."))
    print(f"{Model.__name__:<30} {sum(sizes.values()):,} numbers, {head:,} of them new")

# %% [markdown]
r"""
## 2. What the heads are given

The data is documentation that is installed with Python and three libraries: it carries labels that nobody had to write.
Which library is a text from? Does this summary belong to that description? Which words are names of parameters? What
type does this parameter have? (No text contains the name of its library, and whole files go either to training or to *dev*, the
validation data.)
"""

# %%
tokenizer = BertTokenizer.from_pretrained("mini")
NAMES = ("docs-library", "docs-summary", "docs-parameters", "docs-questions")
train = {name: RECIPES[name].read("train") for name in NAMES}
dev = {name: RECIPES[name].read("dev") for name in NAMES}
for name in NAMES:
    print(f"{name:<16} {len(train[name]):,} to learn from, {len(dev[name]):,} to be measured on")

labels = {
    name: {label: i for i, label in enumerate(sorted({example.label for example in train[name]}))}
    for name in ("docs-library", "docs-summary")
}
print(labels)


# %%
def words_of(row, size=62):
    text = " ".join(tokenizer.tokens[i] for i in row.inputs["input_ids"])
    return text if len(text) <= size else text[:size] + " …"


def shortest(name, text):
    return min(train[name][:200], key=lambda example: len(text(example)))


single = shortest("docs-library", lambda example: example.text)
[row] = text_features([single], tokenizer, 64, labels["docs-library"])
print(f"single  {words_of(row)}\n        label {row.inputs['labels']} = {single.label}")

pair = shortest("docs-summary", lambda example: example.text + example.text_pair)
[row] = text_features([pair], tokenizer, 64, labels["docs-summary"])
print(f"pair    {words_of(row)}\n        label {row.inputs['labels']} = {pair.label}")
print("        token_type_ids", *row.inputs["token_type_ids"][:22], "…")

# %% [markdown]
r"""
**A word in pieces has one tag.** It belongs to the first piece; the other pieces, [CLS] and [SEP] get −100 and do not count.
**An answer is two numbers**: the first and the last token. A passage that is too long is cut into overlapping windows. In a
window that does not contain the answer, both numbers are 0, which points at [CLS].
"""

# %%
tagged = next(
    sentence
    for sentence in train["docs-parameters"]
    if "B-parameter" in sentence.tags
    and len(sentence.words) < 13
    and any(len(tokenizer.token_ids(word)) > 1 for word in sentence.words)
)
[row] = tagged_features([tagged], tokenizer, 64, {"O": 0, "B-parameter": 1})
pieces = [tokenizer.tokens[i] for i in row.inputs["input_ids"]]
print("tokens:", *pieces)
print("labels:", *row.inputs["labels"])

question = shortest("docs-questions", lambda question: question.passage)
[row] = question_windows([question], tokenizer, max_length=128, training=True)[:1]
start, end = row.inputs["start_positions"], row.inputs["end_positions"]
print(f"\n{words_of(row, 100)}")
print(f"tokens {start} to {end}: {tokenizer.decode(row.inputs['input_ids'][start : end + 1])!r}")

# %% [markdown]
r"""
## 3. The backward pass of each head

We begin with a single text or a pair, and take one text with label $k$. $u$ is the argument of tanh, and $e_k$ is the vector
with a 1 at place $k$:

$$
u = W_p h_0 + b_p, \qquad p = \tanh u, \qquad z = W p + b, \qquad
L = -\tfrac1N \log \operatorname{softmax}(z)_k .
$$

The first step back is that of [03](03_softmax_cross_entropy.ipynb) ($dz$ means $\partial L / \partial z$):

$$
dz = \tfrac1N \left( \operatorname{softmax}(z) - e_k \right) .
$$

All the other steps are yours. You have met each of them before: two linear maps, a tanh, and the choice of one token.

## 4. Your turn: the backward pass of a classification head

@exercise 15.classifier_backward

`dout` is $dz$ for all texts, `(B, K)`. Find the gradients of both matrices and both biases, and that of the whole of `hidden`, `(B, S, H)`. This is the forward pass, without the loss:
"""

# %%
print(inspect.getsource(classification_head))

# %% [markdown] tags=["derivation"]
r"""
For one text, one step per line:

$$
\begin{aligned}
dW &= dz \, p^\top, \qquad db = dz, \qquad dp = W^\top dz \\
du &= dp \odot (1 - p^2) \\
dW_p &= du \, h_0^\top, \qquad db_p = du \\
dh_0 &= W_p^\top du, \qquad dh_s = 0 \;\text{ for } s > 0 .
\end{aligned}
$$

In a batch $dW$, $db$, $dW_p$ and $db_p$ are summed over the texts.
"""


# %% tags=["solution"]
def my_classifier_backward(dout, cache):
    """Gradients of the head: dhidden (B, S, H), dpool_weight (H, H), dpool_bias (H,), dweight (K, H), dbias (K,).

    dout (B, K); cache = (hidden.shape, first, pooled, pool_weight, weight): the first tokens (B, H), what
    the pooler made of them (B, H), and both matrices.
    """
    shape, first, pooled, pool_weight, weight = cache
    dprojected = (dout @ weight) * (1 - pooled**2)  # (B, H)
    dhidden = np.zeros(shape)
    dhidden[:, 0] = dprojected @ pool_weight
    return dhidden, dprojected.T @ first, dprojected.sum(axis=0), dout.T @ pooled, dout.sum(axis=0)


# %%
check("15.classifier_backward", my_classifier_backward)

# %% [markdown] tags=["answer"]
r"""
The last line of the derivation is the one to remember: **all that a text's label can say enters the encoder at one token**, [CLS].

In the library, the two halves are in two places, since the pooler is part of the encoder. `_head_backward` also
names the output that its derivative belongs to:
"""

# %% tags=["answer"]
print(inspect.getsource(BertForSequenceClassification._head_backward))
print(inspect.getsource(BertPooler.backward))

# %% [markdown]
r"""
### Open: a pooling that learns

@exercise 15.attention_pooling_backward

Why should [CLS] speak for the whole text? Another head lets every token speak, and learns which ones to listen to. A
vector `query` of `H` numbers gives each token a score, a softmax over the real tokens turns the scores into weights, and the
text's vector is the weighted mean.
"""

# %%
print(inspect.getsource(attention_pooling))

# %% [markdown]
r"""
Find the gradients of `hidden` and of `query`. The cache has the weights $a$, which are 0 at padding. `check` compares yours with numeric gradients.
"""

# %% [markdown] tags=["derivation"]
r"""
For one text, $s_t = h_t \cdot q$, $a = \operatorname{softmax}(s)$ and $y = \sum_t a_t h_t$. Each $h_t$ is used twice: in its score and in the sum.

$$
\begin{aligned}
da_t &= dy \cdot h_t , & dh_t &\mathrel{+}= a_t \, dy & &\text{(the sum)} \\
ds_t &= a_t \Bigl( da_t - \sum_r a_r \, da_r \Bigr) & & & &\text{(softmax)} \\
dq &= \sum_t ds_t \, h_t , & dh_t &\mathrel{+}= ds_t \, q & &\text{(the scores)}
\end{aligned}
$$

All texts share $q$, so $dq$ also sums over the batch. At padding $a_t = 0$, so that $ds_t$ and $dh_t$ are 0 without any mask. Unlike with [CLS], a text's label now
reaches the encoder at every token.
"""


# %% tags=["solution"]
def my_attention_pooling_backward(dout, cache):
    """Gradients of the pooling: dhidden (B, S, H), dquery (H,).

    dout (B, H); cache = (hidden, query, weights): (B, S, H), (H,), and a (B, S), 0 at padding.
    """
    hidden, query, weights = cache
    dweights = (hidden * dout[:, None]).sum(axis=-1)  # (B, S)
    mean = (weights * dweights).sum(axis=1, keepdims=True)  # (B, 1)
    dscores = weights * (dweights - mean)  # (B, S)
    dhidden = weights[:, :, None] * dout[:, None] + dscores[:, :, None] * query
    return dhidden, (dscores[:, :, None] * hidden).sum(axis=(0, 1))


# %%
check("15.attention_pooling_backward", my_attention_pooling_backward)

# %% [markdown]
r"""
## 5. Tags and answers

**Tagging** is the same without a pooler, at every token: $dz_{b,s} = \frac1N (\operatorname{softmax}(z_{b,s}) - e_{k})$ where
there is a label, and 0 where it is −100. `N` counts the labels of the whole batch. Then $dh_{b,s} = W^\top dz_{b,s}$.

**Question answering** has the softmax along the tokens. Let $q_s = \operatorname{softmax}_s(w_{\text{start}} \cdot h_s)$ be the probability that the
answer begins at $s$, and $r_s$ the probability that it ends there; the truth is $(i, j)$. The loss is the mean of both, $-\frac12 (\log q_i + \log r_j)$, so

$$
dz^{\text{start}}_s = \tfrac12 (q_s - [s = i]), \qquad
dz^{\text{end}}_s = \tfrac12 (r_s - [s = j]), \qquad
dh_s = dz^{\text{start}}_s \, w_{\text{start}} + dz^{\text{end}}_s \, w_{\text{end}} .
$$

Every token gets a gradient. Here are both heads in code, and their checks:
"""

# %%
B, S, H, K = 3, 8, 6, 4
tags = rng.integers(K, size=(B, S))
tags[:, [0, 3, -1]] = -100  # [CLS], a second piece, [SEP]
counts = (tags != -100).astype(float).reshape(-1)  # (B·S,)
spans = np.array([[2, 5, 0], [4, 5, 0]])  # starts, ends: (2, B); no answer in the last


def tagging(hidden, weight, bias):
    rows = hidden.reshape(-1, H)  # (B·S, H)
    safe = np.maximum(tags, 0).reshape(-1)
    loss, loss_cache = cross_entropy(rows @ weight.T + bias, safe, counts, counts.sum())
    return loss, (rows, weight, loss_cache)


def tagging_backward(dout, cache):
    rows, weight, loss_cache = cache
    dlogits = cross_entropy_backward(dout, loss_cache)  # (B·S, K)
    return (dlogits @ weight).reshape(B, S, H), dlogits.T @ rows, dlogits.sum(axis=0)


def answering(hidden, weight, bias):
    loss, loss_cache = span_loss(hidden @ weight.T + bias, spans, np.full((2, B), 1 / B))
    return loss, (hidden, weight, loss_cache)


def answering_backward(dout, cache):
    hidden, weight, loss_cache = cache
    dlogits = span_loss_backward(dout, loss_cache)  # (B, S, 2)
    dweight = np.einsum("bsk,bsh->kh", dlogits, hidden)
    return dlogits @ weight, dweight, dlogits.sum(axis=(0, 1))


# %%
hidden = rng.standard_normal((B, S, H))
heads = {
    "tagging": (tagging, tagging_backward, K, []),
    "answers": (answering, answering_backward, 2, ["bias"]),
}
for name, (forward, backward, scores, zeros) in heads.items():
    inputs = {
        "hidden": hidden,
        "weight": rng.standard_normal((scores, H)) / H**0.5,
        "bias": rng.standard_normal(scores),
    }
    for row in compare_with_numeric(function_case(name, forward, backward, inputs, zeros)):
        print(row)
        assert row.ok

# %% [markdown]
r"""
One gradient had to be declared to be zero: the **bias of question answering**. A number that is added to the score of
every token does not change a softmax over the tokens. So this bias has nothing to learn from, in any BERT. (A tagger's bias does:
its softmax compares labels.)

Now we check the library's three models, each with an encoder of one layer, against the numeric gradients of every parameter:
"""

# %%
tiny = BertConfig.preset(
    "tiny",
    vocab_size=12,
    hidden_size=4,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=6,
    max_position_embeddings=5,
    num_labels=3,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)
ids = np.array([[2, 7, 8, 3, 0], [2, 9, 10, 11, 3], [2, 7, 3, 0, 0]])
batch = {"input_ids": ids, "attention_mask": (ids > 0).astype(int)}
tasks = {
    BertForSequenceClassification: {"labels": [0, 2, 1]},
    BertForTokenClassification: {"labels": np.where(ids > 3, ids % 3, -100)},
    BertForQuestionAnswering: {"start_positions": [1, 2, 0], "end_positions": [2, 3, 0]},
}
shift_of_all = ("key.bias", "qa_outputs.bias")  # added to all keys, or to all tokens: no effect
for Model, targets in tasks.items():
    model = Model(tiny, dtype="float64")
    Draws(resolve_device("cpu"), 0).randomise(model)
    zeros = [name for name, _ in model.named_parameters() if name.endswith(shift_of_all)]
    if Model is BertForQuestionAnswering:
        zeros.append("bert.encoder.layer.0.output.LayerNorm.bias")  # the same, one step below
    rows = compare_with_numeric(model_case(Model.__name__, model, batch | targets, zeros))
    worst = max(row.error for row in rows)
    print(f"{Model.__name__:<30} {len(rows)} gradients, largest error {worst:.0e}")
    assert all(row.ok for row in rows)

# %% [markdown]
r"""
### Where the gradient enters

The length of each row of `dhidden` shows what the encoder's last layer receives from each head:
"""

# %%
pool_weight, weight = rng.standard_normal((2, H, H)) / H**0.5
first = hidden[:, 0]
pooled = np.tanh(first @ pool_weight.T)
dpooled = rng.standard_normal((B, H)) / B
from_label = np.zeros((B, S, H))
from_label[:, 0] = (dpooled * (1 - pooled**2)) @ pool_weight

entering = {"single text, pair": from_label}
for name, (forward, backward, scores, _) in heads.items():
    weight = rng.standard_normal((scores, H)) / H**0.5
    entering[name] = backward(1.0, forward(hidden, weight, np.zeros(scores))[1])[0]
lengths = {name: np.linalg.norm(dhidden, axis=-1) for name, dhidden in entering.items()}
assert not lengths["single text, pair"][:, 1:].any() and (lengths["answers"] > 0).all()
assert ((lengths["tagging"] > 0) == (tags != -100)).all()

# %% tags=["figure"]
# Caption: The length of the gradient at each token of three texts, for three kinds of head. In the
#   first two, dark means none. In the third, every token has some, and dark means little.
figure, axes = plt.subplots(1, 3, figsize=(7.5, 1.9), sharey=True)
for panel, (name, values) in zip(axes, lengths.items(), strict=True):
    plots.heatmap(panel, values).set_clim(0, values.max())
    panel.set(title=name, xlabel="token")
    panel.set_aspect("auto")
axes[0].set_ylabel("text")
figure.suptitle("‖dhidden‖ (bright: long)", fontsize=10.5)
plt.show()

# %% [markdown]
r"""
The gradient enters in one column; at the first piece of every word; at every token. In the layers below, attention spreads it:
after one layer, a label's gradient has reached every token of the text, since [CLS] looked at all of them.
"""

# %%
model = BertForSequenceClassification(tiny, dtype="float64")
_, cache = model.forward(**batch, labels=[0, 2, 1])
model.zero_grad()
model.backward(cache)
dwords = model.bert.embeddings.word_embeddings.weight.grad  # (V, H)
reached = np.flatnonzero(np.abs(dwords).sum(axis=1))
print("token ids in the batch: ", np.unique(ids))
print("rows with a gradient:   ", reached, "  ([PAD] has none)")
assert set(reached) == set(np.unique(ids)) - {0}

# %% [markdown]
r"""
## 6. A fine-tuning in seconds

In the quickest kind of fine-tuning, the encoder is *frozen*. Its output for a text is then always the same and is computed
**once**; only the head learns. We keep several vectors of each text: that of [CLS], the pooled one, the mean over all tokens, and the means
of the last four layers side by side (at each token, BERT's authors found these four the best features without fine-tuning). The encoder is `mini`, which comes with the package.
"""

# %%
pretrained = BertForPreTraining.from_pretrained("mini")


def vectors(model, rows):
    """Vectors of each text, by name: (N, H), or (N, 4H) for four layers."""
    found = {}
    options = {"return_logits": False} if isinstance(model, BertForPreTraining) else {}
    for at, batch in ordered_batches(rows, 32, tokenizer.pad_id):
        batch.pop("labels")
        output, _ = model.forward(**batch, **options, return_hidden_states=True)
        mask = batch["attention_mask"][:, :, None]  # (B, S, 1)
        means = [(h * mask).sum(axis=1) / mask.sum(axis=1) for h in output.hidden_states[-4:]]
        here = {
            "[CLS]": output.last_hidden_state[:, 0],
            "pooled": output.pooler_output,
            "mean": means[-1],
            "four layers": np.concatenate(means, axis=1),
        }
        for name, values in here.items():
            found.setdefault(name, np.zeros((len(rows), values.shape[1]), np.float32))[at] = values
    return found


def some(name, part, count, max_length):
    """Rows and labels of the first examples (their order is random)."""
    rows = text_features(part[name][:count], tokenizer, max_length, labels[name])
    return rows, np.array([row.inputs["labels"] for row in rows])


train_rows, train_labels = some("docs-library", train, 400, 48)
dev_rows, dev_labels = some("docs-library", dev, 300, 48)
train_vectors, dev_vectors = vectors(pretrained, train_rows), vectors(pretrained, dev_rows)
print({name: values.shape for name, values in train_vectors.items()})

# %% [markdown]
r"""
First come the **baselines**: how well can one do without reading? One baseline always gives the same answer. The other is a
*bag of words*: naive Bayes, which counts how often each library uses each word and knows nothing of the words' order.
"""


# %%
def bag_of_words(rows, labels, K):
    """Naive Bayes: log p(token | label), (K, V), counts beginning at 0.3."""
    counts = np.full((K, len(tokenizer.tokens)), 0.3)
    for row, label in zip(rows, labels, strict=True):
        np.add.at(counts[label], row.inputs["input_ids"], 1)
    return np.log(counts / counts.sum(axis=1, keepdims=True))


log_p = bag_of_words(train_rows, train_labels, K=4)
guesses = np.array([log_p[:, row.inputs["input_ids"]].sum(axis=1).argmax() for row in dev_rows])
floors = {
    "always the same": (dev_labels == np.bincount(train_labels).argmax()).mean(),
    "bag of words": (guesses == dev_labels).mean(),
}
for name, share in floors.items():
    print(f"{name:<16} {share:.1%} right")
assert floors["bag of words"] > 0.5

# %% [markdown]
r"""
Then comes the head. It is the library's classifier, which reads the four layers and is given their vectors ready-made. These
lines are all there is to fine-tuning: a forward pass, a backward pass, a step.
"""

# %%
with contextlib.redirect_stderr(io.StringIO()):  # the warning that its head is new
    head = BertForSequenceClassification.from_pretrained(
        "mini", num_labels=4, feature_layers=(-4, -3, -2, -1)
    )
mean, deviation = (f(train_vectors["four layers"], axis=0) for f in (np.mean, np.std))
x_train, x_dev = ((v["four layers"] - mean) / deviation for v in (train_vectors, dev_vectors))
nothing = np.zeros((400, 1), np.int32)  # token ids, which are not read when features are given


def accuracy(x, y):
    logits = head.forward(nothing[: len(x)], features=x)[0].logits  # (N, K)
    return (logits.argmax(axis=1) == y).mean()


optimiser = AdamW(head, bias_correction=True)
curve, steps = [], 160
for step in range(steps):
    if step % 16 == 0:
        curve.append((step, accuracy(x_train, train_labels), accuracy(x_dev, dev_labels)))
    chosen = rng.choice(len(x_train), 32, replace=False)
    head.zero_grad()
    _, cache = head.forward(nothing[:32], labels=train_labels[chosen], features=x_train[chosen])
    head.backward(cache)
    optimiser.step(original(step, steps, steps // 10, 1e-3), step)
curve.append((steps, accuracy(x_train, train_labels), accuracy(x_dev, dev_labels)))
print(f"after {steps} steps: training {curve[-1][1]:.1%}, dev {curve[-1][2]:.1%}")
assert curve[-1][2] > floors["always the same"] + 0.1

# %% tags=["figure"]
# Caption: A head on a frozen encoder, on the texts that it learns from (dashed) and on others.
#   Counting words does as well.
at, on_training, on_dev = np.array(curve).T
figure, axes = plt.subplots(figsize=(7.5, 3.0))
axes.plot(at, on_training, "--", color=plots.GREY, label="head, on its 400 training texts")
axes.plot(at, on_dev, color=plots.BLUE, label="head, on 300 others")
for (name, share), style in zip(floors.items(), (":", "-"), strict=True):
    axes.axhline(share, color=plots.VERMILION, linestyle=style, linewidth=1.2, label=name)
axes.set(title="which library? a head on a frozen encoder", xlabel="step", ylabel="share right")
axes.set(ylim=(0.0, 1.0))
axes.legend(ncols=2, fontsize=9, loc="upper left")
plt.show()

# %% [markdown]
r"""
The head learns, but it is no triumph: a bag of words does as well. Which library a text is from is a matter of its *words*,
and `mini` has read an encyclopaedia and old novels. (300 texts leave an uncertainty of about ±3 points: too much to rank the two.) **Without the baseline you
would have reported a success.** An encoder pays off where context matters, and more so when it learns, too
([section 9](#9.-What-pre-training-gains)).

## 7. Is [CLS] meaningful before fine-tuning, and why is it first?

It is often said that [CLS] "summarises the text". We put two questions to a probe, a linear classifier
(fitted with one formula): *which library* is a text from, and *does B belong to A*?
"""

# %%
pair_rows, pair_labels = some("docs-summary", train, 200, 64)
dev_pair_rows, dev_pair_labels = some("docs-summary", dev, 200, 64)
pair_vectors = vectors(pretrained, pair_rows)
dev_pair_vectors = vectors(pretrained, dev_pair_rows)


def probe(x, y, x_dev, y_dev, ridge=600.0):
    """Accuracy of the least-squares linear map from vectors to labels, its weights kept small."""
    mean, deviation = x.mean(axis=0), x.std(axis=0) + 1e-6
    x, x_dev = (x - mean) / deviation, (x_dev - mean) / deviation
    targets = np.eye(y.max() + 1)[y] - 1 / (y.max() + 1)  # (N, K)
    weight = x.T @ np.linalg.solve(x @ x.T + ridge * np.eye(len(x)), targets)  # (H, K)
    return ((x_dev @ weight).argmax(axis=1) == y_dev).mean()


VECTORS = ("[CLS]", "pooled", "mean")
probes = {
    "which of four libraries?": [
        probe(train_vectors[v], train_labels, dev_vectors[v], dev_labels) for v in VECTORS
    ],
    "does B belong to A?": [
        probe(pair_vectors[v], pair_labels, dev_pair_vectors[v], dev_pair_labels) for v in VECTORS
    ],
}
for name, shares in probes.items():
    told = "   ".join(
        f"{vector} {share:.1%}" for vector, share in zip(VECTORS, shares, strict=True)
    )
    print(f"{name:<25} {told}")
assert min(probes["does B belong to A?"][:2]) > 0.6

# %% tags=["figure"]
# Caption: A linear probe on three vectors of each text, before any fine-tuning. [CLS] knows what it
#   was asked in pre-training.
figure, axes = plt.subplots(1, 2, figsize=(7.5, 2.7), sharey=True)
for panel, (name, shares), chance in zip(axes, probes.items(), (0.25, 0.5), strict=True):
    panel.bar(VECTORS, shares, color=[plots.BLUE, plots.SKY, plots.ORANGE], width=0.6)
    panel.axhline(chance, color=plots.GREY, linestyle="--", linewidth=1.2, label="chance")
    panel.set(title=name)
    panel.grid(False, axis="x")
axes[0].set(ylabel="share right", ylim=(0, 1))
axes[0].legend(fontsize=9)
plt.show()

# %% [markdown]
r"""
Before fine-tuning, [CLS] knows **what it was asked in pre-training: whether B belongs to A**, which NSP taught it
([11](11_heads_losses.ipynb#9.-Pooled-output-or-h[CLS]?)). There it is far better than the mean. For the topic of a single text, which nobody
ever asked it for, it has no such advantage. It is not a summary.

And cosines of such vectors hardly tell texts apart, since different texts have large ones, too:
"""

# %%
for name in ("[CLS]", "mean"):
    unit = dev_vectors[name] / np.linalg.norm(dev_vectors[name], axis=1, keepdims=True)
    cosines = (unit @ unit.T)[np.triu_indices(len(unit), k=1)]
    print(f"{name:<6} cosine of two different texts: {cosines.mean():.2f} ± {cosines.std():.2f}")

# %% [markdown]
r"""
### After fine-tuning, and at another place

Then [CLS] *becomes* what the task needs, as the label's gradient enters there. The log of
[section 9](#9.-What-pre-training-gains) says how many of the five nearest texts are from the same library.

And does it have to be [CLS]? In the last layer, every token has looked at all tokens. So let us put the head at
another place. That needs no new code: **classification is tagging with a single tag**, −100 at all places but one.
(600 texts, three epochs, that is, three passes over them; the loop is in section 9.)
"""

# %%
log = read_log("15_fine_tuning.jsonl")
for record in log:
    if "neighbours" in record:
        told = "   ".join(f"{name} {share:.0%}" for name, share in record["shares"].items())
        print(f"{record['neighbours']:<7} {told}")
print()
for place in dict.fromkeys(record["place"] for record in log if "place" in record):
    shares = [record["accuracy"] for record in log if record.get("place") == place]
    print(f"head at {place:<11} {np.mean(shares):.1%} right  (seeds: {shares})")

# %% [markdown]
r"""
So there is nothing magic about [CLS]. Two seeds cannot rank it, the last [SEP] (always the same token) and the first word (always the
same position): the two runs of [CLS] alone differ by nearly three points, about as much as the best and the worst of these
places. Only a word in the middle is clearly worse. Three things speak for [CLS]:

- It is **the same token at the same position**, without a meaning of its own, and so free to collect.
- It has **index 0**, whatever the length. The last [SEP] moves with length, padding and pairs.
- It has **practice**: NSP made it look at the whole input.

## 8. Why was NSP dropped later?

[12](12_pretraining_data.ipynb#3.-Why-was-NSP-dropped-later?) showed how far one gets by counting common words. What did the
*model* learn? We ask the head that NSP trained, without any fine-tuning, about three kinds of pairs: a summary and its
description; **the same two in the wrong order**; a summary and another function's description. The head reads the pooled vector.
"""

# %%
is_same = dev_pair_labels == labels["docs-summary"]["same"]  # (200,)
same = [pair for pair in dev["docs-summary"][:200] if pair.label == "same"]  # of section 7
turned = [replace(pair, text=pair.text_pair, text_pair=pair.text) for pair in same]
turned_rows = text_features(turned, tokenizer, 64, labels["docs-summary"])


def follows(pooled):
    """NSP's head: the probability that B follows A. (N, H) → (N,)."""
    logits, _ = pretrained.cls.seq_relationship.forward(pooled)  # (N, 2)
    return ops.softmax(logits)[0][:, 0]


believed = {
    "B follows A": follows(dev_pair_vectors["pooled"][is_same]),
    "B comes before A": follows(vectors(pretrained, turned_rows)["pooled"]),
    "B is another's": follows(dev_pair_vectors["pooled"][~is_same]),
}
said = {name: (p > 0.5).mean() for name, p in believed.items()}
less = {name: (p < believed["B follows A"][:, None]).mean() for name, p in believed.items()}
for name, share in said.items():
    print(f"{name:<17} NSP says 'B follows A' for {share:.0%} of them; ", end="")
    print(f"less likely than a right pair in {less[name]:.0%} of comparisons")
assert abs(less["B comes before A"] - 0.5) < 0.1
assert less["B is another's"] > 0.8 and said["B follows A"] > said["B is another's"]

# %% tags=["figure"]
# Caption: The share of pairs to which NSP gives at most this probability. The first two curves lie
#   together, so it does not know the order.
figure, axes = plt.subplots(figsize=(7.5, 2.8))
for (name, p), style in zip(believed.items(), ("-", "--", ":"), strict=True):
    axes.plot(np.sort(p), np.linspace(0, 1, len(p)), style, label=name)
axes.set(title="what NSP believes of three kinds of pairs", ylabel="share of pairs below")
axes.set(xlabel="probability that B follows A")
axes.legend(fontsize=9, loc="upper left")
plt.show()

# %% [markdown]
r"""
A head that had learned how sentences *continue* would reject the second pair, as its order is wrong. This
one gives both the same probability. It accepts fewer of the third kind, though still many: to a reader of novels, all documentation is one
topic. But compared with a right pair, it usually gives the unrelated pair the lower probability (the second number of the line). What the head knows is the
**topic**. That is useful for pairs, as section 7 has shown. But it is an easy lesson, and its price is that half of the inputs are
torn in two. So:

- **RoBERTa** (2019) left NSP out and did as well or better. Its [CLS] learns its role only in fine-tuning.
- **ALBERT** asked for the *order* of two neighbours instead, the question that fails here.

## 9. What pre-training gains

Now the whole model learns, on each of the four tasks. It starts once from `mini` and once from **random weights**, with the
same sizes, words, examples and steps. One run proves little, so each has three seeds, that is, a new head and another order of the
examples; `minibert finetune --restarts 3` does this. Tags and answers are scored by F1 (section 11). The scores are from a log; `RERUN` writes it anew.

First comes the loop that placed the head in section 7, then the library's own `finetune`:
"""

# %%
RERUN = False  # True: some 20 minutes on one core; writes the log, which section 7 reads, too
PLACES = {
    "[CLS]": lambda length: 0,
    "first word": lambda length: 1,
    "middle": lambda length: length // 2,
    "last [SEP]": lambda length: length - 1,
}


def asked_at(place, rows):
    """The rows with their label at one token, −100 at the others."""
    for row in rows:
        tags = np.full(len(row), -100, np.int32)
        tags[PLACES[place](len(row))] = row.inputs["labels"]
        row.inputs["labels"] = tags
    return rows


def learn_at(place, seed):
    """Accuracy on 400 texts, after three epochs with 600."""
    model = BertForTokenClassification.from_pretrained("mini", num_labels=4, seed=seed)
    rows = asked_at(place, some("docs-library", train, 600, 64)[0])
    batches = FeatureStream(rows, 16, tokenizer.pad_id, seed=seed)
    optimiser = AdamW(model, bias_correction=True)
    steps = 3 * batches.batches_per_epoch
    for step in range(steps):
        model.zero_grad()
        _, cache = model.forward(**next(batches))
        model.backward(cache)
        optimiser.step(original(step, steps, steps // 10, 3e-4), step)
    right = 0
    rows = asked_at(place, some("docs-library", dev, 400, 64)[0])
    for _, batch in ordered_batches(rows, 32, tokenizer.pad_id):
        truth = batch.pop("labels")
        asked = truth != -100
        logits = model.forward(**batch)[0].logits[asked]  # (B, K)
        right += int((logits.argmax(axis=-1) == truth[asked]).sum())
    return right / 400


# %%
DATA = {
    "docs-library": {"limit": 1000, "dev_limit": 400, "max_length": 64},
    "docs-summary": {"limit": 800, "dev_limit": 300, "max_length": 96},
    "docs-parameters": {"limit": 1500, "dev_limit": 400, "max_length": 64},
    "docs-questions": {"limit": 400, "dev_limit": 120, "max_length": 128, "stride": 48},
}
COMMON = {"epochs": 3.0, "learning_rate": 3e-4, "batch_size": 16, "restarts": 3, "device": "cpu"}
HEAD = {"features": (-4, -3, -2, -1), "epochs": 30.0, "learning_rate": 3e-3}
RUNS = [(name, start, "all") for name in DATA for start in ("mini", "random")]
RUNS += [(name, "mini", "head") for name in DATA if name != "docs-questions"]


def score_runs(folder):
    """All runs into a folder: a record for each seed, with its scores after each evaluation."""
    from minibert.tasks.finetuning import finetune
    from minibert.train.metrics import read_metrics

    BertForPreTraining(BertConfig.from_pretrained("mini"), seed=1).save_pretrained(
        folder / "random"
    )
    tokenizer.save_pretrained(folder / "random")
    for name, start, learns in RUNS:
        run = f"{name}-{start}-{learns}"
        settings = COMMON | DATA[name] | (HEAD if learns == "head" else {})
        model = "mini" if start == "mini" else str(folder / "random")
        results = finetune(recipe=name, model=model, name=run, out=str(folder), **settings)
        for seed in range(3):
            score = f"held_out_{results['metric']}"
            lines = read_metrics(folder / run / f"seed-{seed}" / "metrics.jsonl")
            curve = [[line["step"], round(line[score], 4)] for line in lines if score in line]
            yield {"recipe": name, "from": start, "learns": learns, "seed": seed, "curve": curve}


# %% [markdown]
r"""
Again we need baselines. For **library** it is the bag of words of section 6. For **summary** it says "same" if the texts share
at least a certain number of tokens. For **parameters** it is the tag that the word had most often in training, and for
**questions** always the meaning of the first parameter. (A regular expression that knows the pattern of these passages answers
nearly all questions, so this is a toy task. But nobody tells the model the pattern.)
"""


# %%
def measure_floors():
    """The scores of the baselines, from the very same examples."""
    from minibert.tasks.finetuning import read_data
    from minibert.tasks.finetuning_settings import split_settings
    from minibert.tasks.metrics import entity_scores, squad_scores

    data = {
        name: read_data(*split_settings(COMMON | DATA[name] | {"recipe": name})) for name in DATA
    }
    library, summary, parameters, questions = data.values()

    rows = [
        text_features(part, tokenizer, 64, labels["docs-library"])
        for part in (library.train, library.dev)
    ]
    truth = [np.array([row.inputs["labels"] for row in part]) for part in rows]
    log_p = bag_of_words(rows[0], truth[0], K=4)
    guesses = [log_p[:, row.inputs["input_ids"]].sum(axis=1).argmax() for row in rows[1]]
    yield {"floor": "docs-library", "score": float((guesses == truth[1]).mean())}

    def shared(examples):
        return np.array(
            [
                len(set(tokenizer.token_ids(e.text)) & set(tokenizer.token_ids(e.text_pair)))
                for e in examples
            ]
        )

    same = [np.array([e.label == "same" for e in part]) for part in (summary.train, summary.dev)]
    cut = max(range(20), key=lambda cut: ((shared(summary.train) >= cut) == same[0]).mean())
    right = (shared(summary.dev) >= cut) == same[1]
    yield {"floor": "docs-summary", "score": round(float(right.mean()), 4)}

    seen = collections.defaultdict(collections.Counter)
    for sentence in parameters.train:
        for word, tag in zip(sentence.words, sentence.tags, strict=True):
            seen[word][tag] += 1
    usual = {word: tags.most_common(1)[0][0] for word, tags in seen.items()}
    guesses = [[usual.get(word, "O") for word in sentence.words] for sentence in parameters.dev]
    f1 = entity_scores(guesses, [sentence.tags for sentence in parameters.dev])["overall"]["f1"]
    yield {"floor": "docs-parameters", "score": round(f1, 4)}

    first = {q.id: re.search(r"\): (.*?)(?: \w+ \(|$)", q.passage)[1] for q in questions.dev}
    answers = {q.id: [answer.text for answer in q.answers] for q in questions.dev}
    yield {"floor": "docs-questions", "score": round(squad_scores(first, answers)["f1"], 4)}


# %%
def neighbours(x, y, k=5):
    """How many of the k nearest texts (by the cosine) have the same label, as a share."""
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    cosines = unit @ unit.T
    np.fill_diagonal(cosines, -2)
    return float((y[np.argsort(-cosines, axis=1)[:, :k]] == y[:, None]).mean())


def measure():
    from minibert.tasks.registry import open_task

    with tempfile.TemporaryDirectory() as folder:
        yield from score_runs(Path(folder))
        _, tuned = open_task(Path(folder) / "docs-library-mini-all" / "best")
    rows, y = some("docs-library", dev, 400, 64)
    for when, model in (("before", pretrained), ("after", tuned)):
        found = vectors(model, rows)
        shares = {v: round(neighbours(found[v], y), 4) for v in ("[CLS]", "pooled", "mean")}
        yield {"neighbours": when, "shares": shares}
    for seed in range(2):
        for place in PLACES:
            yield {"place": place, "seed": seed, "accuracy": learn_at(place, seed)}
    yield from measure_floors()


name = "15_fine_tuning.jsonl"
log = write_log(name, measure()) if RERUN else read_log(name)
curves = {}  # by recipe, start and what learns: (seeds, evaluations, 2)
for record in log:
    if "recipe" in record:
        key = record["recipe"], record["from"], record["learns"]
        curves.setdefault(key, []).append(record["curve"])
curves = {key: np.array(found) for key, found in curves.items()}

# %%
BASELINES = {record["floor"]: record["score"] for record in log if "floor" in record}
METRIC = {"docs-library": "accuracy", "docs-summary": "accuracy"}  # the others: F1
print("last evaluation: mean ± deviation of the seeds")
for key, found in curves.items():
    last = found[:, -1, 1]
    name, start, learns = key
    told = f"{last.mean():.3f} ± {last.std(ddof=1):.3f}"
    print(
        f"{name:<16} from {start:<6} {learns:<4} learns   {told}   baseline {BASELINES[name]:.3f}"
    )

# %% tags=["figure"]
# Caption: Four tasks, trained from `mini` and from random weights. Bars are the deviation of three
#   seeds; the dashed line is the baseline.
figure, axes = plt.subplots(2, 2, figsize=(7.5, 5.2))
TITLES = ("single texts: which library?", "pairs: does it belong?", "tags: parameters", "answers")
for panel, name, title in zip(axes.flat, DATA, TITLES, strict=True):
    for start, colour in (("mini", plots.BLUE), ("random", plots.ORANGE)):
        steps, scores = curves[name, start, "all"].transpose(2, 0, 1)  # (seeds, evaluations) each
        mean, deviation = scores.mean(axis=0), scores.std(axis=0, ddof=1)
        label = f"from {'mini' if start == 'mini' else 'random weights'}"
        panel.errorbar(
            steps[0],
            mean,
            deviation,
            marker="o",
            markersize=4,
            capsize=3,
            color=colour,
            label=label,
        )
    panel.axhline(
        BASELINES[name], color=plots.VERMILION, linestyle="--", linewidth=1.2, label="baseline"
    )
    panel.set(title=title, ylim=(0, 1), ylabel=METRIC.get(name, "F1"))
for panel in axes[1]:
    panel.set_xlabel("step")
axes[0, 1].legend(fontsize=9, loc="lower right")
plt.show()

# %% [markdown]
r"""
In the log that comes with this notebook:

- **Pairs, tags, answers**: `mini` is clearly above random weights, and above the baseline, after a minute or two of training
  on 400 to 1,500 examples. Random weights have not begun to learn the pairs.
- **Library**: `mini` is ahead of random weights, and *behind a bag of words*. Where single words decide, counting them is hard to beat.
- **The bars** are deviations of three seeds. Where two overlap, there are too few seeds to tell.

## 10. Frozen, or not?

Compare "all" with "head" in the table. Training a head alone (on the last four layers, as in section 6, for 30 epochs) costs
one forward pass per text in total, and then seconds. One encoder can also serve many tasks. But its features are those that
*pre-training* asked for. Letting the whole model learn scored clearly higher on pairs and tags, and no higher on the library.
That costs about three forward passes for every text in every epoch, and a copy of the model for each task.

There are ways in between: `--freeze 2` keeps the embeddings and the two lowest layers (the backward pass stops there);
`--layerwise-lr 0.9` lets lower layers learn more slowly. A small learning rate is the mildest form: BERT's authors
tried $2$ to $5 \cdot 10^{-5}$, over 2 to 4 epochs, for their 110 million parameters. Here it was $3 \cdot 10^{-4}$, for 5 million.
"""

# %% [markdown]
r"""
## 11. The same heads on a real encoder

`mini` has 5 million parameters and has read forty million words. What do the same heads and the same loop
reach on an encoder that others trained for a long time? all-MiniLM-L6-v2 has 6 layers, H = 384 and 22.7 million parameters. It was distilled from a larger model, and then trained on more than a billion
pairs of sentences. minibert fine-tuned both on standard data sets. These runs take from 2 to 26 minutes each on two cores, so we read
the scores from the [report of the repository](../benchmarks/results/finetuning.md). **Precision** is the share of the positive answers that
are right, **recall** the share of the positive cases that are found, and **F1** the harmonic mean of both:

- **SST-2** (Socher and others, [2013](https://aclanthology.org/D13-1170/)): is a sentence of a film review positive? Score: accuracy.
- **CoLA** (Warstadt and others, [2019](https://arxiv.org/abs/1805.12471)): is a sentence grammatical? Score: Matthews correlation (that of labels and guesses, yes or no).
- **MRPC** (Dolan and Brockett, [2005](https://aclanthology.org/I05-5002/)): do two sentences say the same thing? Score: F1.
- **STS-B** (Cer and others, [2017](https://aclanthology.org/S17-2001/)): how similar are two sentences, from 0 to 5? Score: Spearman correlation (that of the ranks).
- **WNUT-17** (Derczynski and others, [2017](https://aclanthology.org/W17-4418/)): names in noisy text, most of them never seen before. Score: F1.
- **SQuAD** (Rajpurkar and others, [2016](https://arxiv.org/abs/1606.05250)): where in a paragraph is the answer? Score: F1 of its words.

The first four belong to GLUE (Wang and others, [2018](https://arxiv.org/abs/1804.07461)), the collection on which BERT was measured.
"""

# %%
results = read_results("finetuning")
RUNS = {  # task: its score, and the runs from random weights, from mini and from MiniLM
    "SST-2": ("accuracy", "sst2-random", "sst2-pretrained", "sst2"),
    "CoLA": ("matthews", None, "cola-pretrained", "cola"),
    "MRPC": ("f1", "mrpc-random", "mrpc-pretrained", "mrpc"),
    "STS-B": ("spearman", "stsb-random", "stsb-pretrained", "stsb-regression"),
    "WNUT-17": ("f1", "wnut17-random", "wnut17-pretrained", "wnut17"),
    "SQuAD": ("f1", None, None, "squad"),
}
on_test = {
    task: [run and 100 * results[run]["figures"]["test"]["scores"][score] for run in runs]
    for task, (score, *runs) in RUNS.items()
}
print(
    f"{'test data':<12} {'random':>8} {'mini':>8} {'MiniLM':>8}    examples to learn from, mini and MiniLM"
)
for task, scores in on_test.items():
    cells = " ".join(f"{'–' if score is None else f'{score:.1f}':>8}" for score in scores)
    learned = [
        f"{results[run]['figures']['results']['examples']['train']:,}" if run else "–"
        for run in RUNS[task][2:]
    ]
    print(f"{task:<12} {cells}    {', '.join(learned)}")

# %% tags=["figure"]
# Caption: The same heads on three encoders. (For SST-2, MiniLM had more examples to learn from.)
figure, axes = plt.subplots(figsize=(7.5, 3.2))
names = ("random weights", "mini, 5 M", "MiniLM, 22.7 M")
columns = zip(names, (plots.GREY, plots.BLUE, plots.VERMILION), "^os", strict=True)
for place, (name, colour, mark) in enumerate(columns):
    scores = [np.nan if row[place] is None else row[place] for row in on_test.values()]
    axes.plot(scores, range(len(scores)), mark, color=colour, label=name, markersize=7)
axes.set_yticks(range(len(on_test)), on_test)
axes.invert_yaxis()
axes.set(title="the same heads on three encoders", xlabel="score on test data", xlim=(0, 100))
axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.22), ncols=3)
plt.show()

# %% [markdown]
r"""
- **A better encoder raises every score that can be compared**: on WNUT-17 and on STS-B by fifteen points, on MRPC by five. On SST-2, only four of the
  ten points are due to the encoder: MiniLM learned from all examples, and `mini` from 8,000 of them. From all of them, `mini` gets
  85.9. The heads and the loop are the same. Learning rate, dropout, restarts and, on WNUT-17, the epochs were chosen for each
  encoder; the report has the commands.
- **`mini` shows the same effect on a small scale**: on STS-B it has 67, and random weights have 32. On MRPC its lead is one
  point, and random weights are exactly at 79.9, the score of always saying "paraphrase" ([22](22_what_mattered.ipynb)).
- **CoLA is hard for both.** BERT-base, five times as large as MiniLM, has twice its score in the paper: 52.1.
- For comparison, the paper's BERT-base has 93.5 on SST-2 and 88.9 on MRPC. These are on GLUE's own test data, which is not ours.

## Recap

- A head is one linear layer. What differs is which rows it reads, and the axis of its softmax: labels, or tokens.
- A text's label enters the encoder at [CLS] alone, tags at first pieces, answers everywhere.
- Before fine-tuning, [CLS] knows what NSP asked it. It is first because that place is always there; another constant place would do.
- NSP taught topic and not order, so it was dropped, or replaced by order.
- A score means something only next to a baseline, next to random weights, and over several seeds.

## What usually goes wrong

- **No baseline.** With four labels, 55 % right sounds fine until somebody counts words.
- **One seed.** Differences within the deviation may be luck. On small data, some runs fail entirely; Adam without bias correction
  ([13](13_optimiser.ipynb)) makes that more likely.
- **Too large a learning rate.** What pre-training had learned is gone in the first steps, and cannot be learned again from so few examples.
- **Tags on every piece**, or −100 forgotten for [CLS] and padding: then the loss is a mean over pieces, not over words.
- **Choosing by the dev set and reporting it.** The best of many evaluations flatters; here the *last* is reported. A separate test set is better.
- **Texts of the same source on both sides.** Then the model recognises the source. Split by file, author, article.

## Three questions

Answer before you unfold.
"""

# %% [markdown]
r"""
<details>
<summary><b>1.</b> A tagger with a single label at [CLS] and −100 elsewhere, and the classifier of single texts: what is the difference?</summary>

Only the pooler: the classifier has $\tanh(W_p h_0 + b_p)$ between $h_0$ and its linear layer. Section 7 used the tagger in place of the classifier.

</details>
"""

# %% [markdown]
r"""
<details>
<summary><b>2.</b> Why does the last LayerNorm's β get no gradient from question answering, though it does from tagging?</summary>

β is added to every $h_s$, so $w \cdot \beta$ is added to the score of every token, and a softmax over tokens does not notice. A tagger compares
labels, whose scores β moves differently.

</details>
"""

# %% [markdown]
r"""
<details>
<summary><b>3.</b> The encoder is frozen. Which parts of the backward pass still have to run?</summary>

Only the head's, and not even its $dh$. Nothing below learns, so $dh$ is not needed. For the same reason, the features could be
computed once.

</details>
"""

# %% [markdown]
r"""
## Further reading

- Devlin and others, [BERT](https://arxiv.org/abs/1810.04805), 2018: figure 4 is the picture of section 1, and section 5.3 compares frozen features with fine-tuning.
- Howard and Ruder, [Universal language model fine-tuning for text classification](https://arxiv.org/abs/1801.06146), 2018: pre-train, then fine-tune, before BERT.
- Peters, Ruder and Smith, [To tune or not to tune?](https://arxiv.org/abs/1903.05987), 2019: when features are enough.
- Dodge and others, [Fine-tuning pretrained language models](https://arxiv.org/abs/2002.06305), 2020: how much depends on the seed.
- Sun and others, [How to fine-tune BERT for text classification?](https://arxiv.org/abs/1905.05583), 2019: rates, layers and further pre-training.

**Next:** [16 · Looking inside](16_looking_inside.ipynb). The code of this notebook:
[task_models.py](../minibert/heads/task_models.py) · [freezing.py](../minibert/heads/freezing.py) ·
[answer_span_loss.py](../minibert/ops/answer_span_loss.py) · [finetuning.py](../minibert/tasks/finetuning.py) ·
[crf.py](../minibert/ops/crf.py), which lets a tagger choose all tags of a sentence together.
"""
