# %% [markdown]
r"""
# 11 · Heads and losses

The encoder turns tokens into vectors and has no opinion on what they are for. Two small heads on top of it give
the whole model its error signal: one asks which word was hidden, the other whether two sentences belong together. The
first has a weight that is used at both ends of the model, and so two gradients for one matrix.

**You will** follow the masked-word head from hidden states to a loss · derive the gradient of a weight with two uses,
and write it, for one matrix and for two · see what the decoder's separate bias can learn · see where the pooler's gradient comes from, and what its tanh is
good for · check a model with both heads against numeric gradients.

**Before this:** [03 · Softmax and cross-entropy](03_softmax_cross_entropy.ipynb), [06 · Embeddings](06_embeddings.ipynb).
**Time:** 100 minutes with the exercises; it runs in seconds.

| letter | in this notebook |
|---|---|
| `B`, `S` | sequences in a batch, tokens in a sequence |
| `H` | hidden size |
| `V` | words in the vocabulary |
| `P` | predicted positions, here of the whole batch |

As always, $dx$ is short for $\partial L / \partial x$.
"""

# %%
import inspect

import matplotlib.pyplot as plt
import numpy as np

from minibert import BertConfig, BertForMaskedLM, BertForPreTraining, BertModel, check, ops, plots
from minibert.bert.heads import BertLMPredictionHead
from minibert.course.exercises.n11_heads_losses import tied_model
from minibert.gradcheck import Draws, function_case, model_case
from minibert.gradcheck import check as compare_with_numeric
from minibert.nn import Context, Observer
from minibert.ops.composites import masked_lm_loss, masked_lm_loss_backward

plots.notebook_style()
np.set_printoptions(precision=3, suppress=True)
rng = np.random.default_rng(11)

# %% [markdown]
r"""
## 1. Two heads on one encoder

The encoder gives `hidden`, (B, S, H). From there, two paths each lead to one number, and the loss is simply the sum of the two.
"""

# %% tags=["figure"]
# Caption: Two heads on one encoder: masked words above (MLM, masked language modelling), next sentence below
#   (NSP, next-sentence prediction). The loss is their sum.
figure, axes = plt.subplots(figsize=(7.5, 2.5))
NODES = {
    "hidden": (0, 0.5),
    "rows": (1.3, 1),
    "  z  ": (3.1, 1),
    "scores": (4.7, 1),
    "h[CLS]": (1.3, 0),
    "pooled": (3.1, 0),
    "scores ": (4.7, 0),
    "loss": (6.0, 0.5),
}
ARROWS = [
    ("hidden", "rows", "gather"),
    ("rows", "  z  ", "transform"),
    ("  z  ", "scores", "Eᵀ, b"),
    ("scores", "loss", "MLM"),
    ("hidden", "h[CLS]", "first"),
    ("h[CLS]", "pooled", "tanh"),
    ("pooled", "scores ", "linear"),
    ("scores ", "loss", "NSP"),
]
plots.graph(axes, NODES, ARROWS)
figure.set_label(
    "From the hidden states two paths: chosen rows are gathered, transformed and "
    "multiplied by the transposed table to scores of the words; the first row goes "
    "through tanh and a linear layer to the scores of the next sentence. Both end in the "
    "loss"
)
plt.show()

# %%
SIZES = {"vocab_size": 40, "hidden_size": 16, "max_position_embeddings": 12}
NO_DROPOUT = {"hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0}
# initial weights ten times as large as BERT's, so that the pictures of gradients show more
config = BertConfig.preset("tiny", **SIZES, **NO_DROPOUT, initializer_range=0.2)
model = BertForPreTraining(config, dtype="float64", seed=3)
for name, parameter in model.named_parameters():
    if name.startswith("cls.") or "pooler" in name:
        print(f"{name:<46} {parameter.shape}")

# %% [markdown]
r"""
One matrix is missing from the list: the decoder, (V, H), which scores every word. It is the table of word embeddings,
which already belongs to the encoder. Section 4 says more about it.

## 2. Gather first

Only 15 % of the positions are predicted ([12 · Pre-training data](12_pretraining_data.ipynb)). So the head first picks
their rows out of `hidden`, viewed as a matrix (B·S, H): position $s$ of sequence $b$ is row $b \cdot S + s$.
"""

# %%
B, S, V = 3, 12, config.vocab_size
ids = rng.integers(5, V, size=(B, S))  # (B, S)
ids[:, 0], ids[:, -1] = 2, 3  # [CLS], [SEP]
labels = np.full((B, S), -100)
for sequence, position in ((0, 4), (0, 9), (1, 2), (2, 5), (2, 6)):
    labels[sequence, position] = ids[sequence, position]
    ids[sequence, position] = 4  # [MASK]

positions = np.flatnonzero(labels != -100)  # (P,)
hidden = rng.standard_normal((B, S, config.hidden_size))  # stands in for the encoder's output
head = model.cls.predictions
gathered_first, _ = head.forward(hidden, positions)  # (P, V)
all_scores, _ = head.forward(hidden, np.arange(B * S))  # (B·S, V)
print("positions b·S + s ", positions)
print("scores            ", gathered_first.shape, "instead of", all_scores.shape)
assert np.allclose(gathered_first, all_scores[positions])

print("\nBERT-base, one sequence of 128")
base = BertConfig.preset("base")
for name, rows in (("all positions", 128), ("gathered, P = 19", 19)):
    products = rows * base.hidden_size * (base.hidden_size + base.vocab_size)
    print(f"{name:<18} {products / 1e9:.2f} G multiplications")

# %% [markdown]
r"""
### Your turn: back to their places

@exercise 11.gather_backward

`rows = hidden.reshape(-1, H)[positions]`. What is the gradient of the whole of `hidden`?
"""

# %% [markdown] tags=["derivation"]
r"""
Picking rows by number is a look-up, exactly like an embedding ([06](06_embeddings.ipynb)), and its backward pass is the same. The
gradients go back to where the rows came from. All other positions had no part in the loss: their gradient is 0.
"""


# %% tags=["solution"]
def my_gather_backward(drows, cache):
    """The gradient of rows = hidden.reshape(-1, H)[positions]: dhidden (B, S, H).

    drows (P, H); cache = (positions, shape): (P,), each at most once, and (B, S, H).
    """
    positions, shape = cache
    dhidden = np.zeros(shape)
    dhidden.reshape(-1, shape[-1])[positions] = drows  # a view: writing to it fills dhidden
    return dhidden


# %%
check("11.gather_backward", my_gather_backward)

# %% [markdown]
r"""
## 3. The transform

Between a hidden state and the scores there is one more dense layer, with GELU and a LayerNorm: $z =
\operatorname{LN}(\operatorname{gelu}(x W^\top + b))$. Hidden states are made for the encoder; $z$ is made to be
compared with words. Here is the head's forward pass, as it runs:
"""

# %%
print(inspect.getsource(BertLMPredictionHead._transform_rows))
print(inspect.getsource(BertLMPredictionHead.forward))

# %% [markdown]
r"""
Training needs only the loss. For this, the head has a method `loss`, which goes from $z$ to the cross-entropy in one
operation. So a fast implementation never has to hold all the scores at once.
"""

# %% [markdown]
r"""
## 4. The tied decoder: why two gradients add

The scores are $\text{logits} = z E^\top + b$, and $E$ is the table of word embeddings: the score of word $v$ is the dot product
of $z$ with the vector that stands for $v$ at the input. Each word has one vector, which serves both to read the word and to
predict it. For BERT-base, that saves a matrix of 30,522 × 768:
"""

# %%
size = sum(p.size for _, p in BertModel(base, device=None).named_parameters())
decoder = base.vocab_size * base.hidden_size
print(f"encoder {size:,}; a separate decoder would add {decoder:,} ({decoder / size:.0%})")

# %% [markdown]
r"""
What is the gradient of a matrix that is used twice?

### Your turn: the smallest case

@exercise 11.two_uses_in_steps

$y = w \tanh(w x)$ uses the number $w$ twice, once in front of the tanh and once inside. Pretend at first that these are two different numbers, $y = w_{\text{out}}
\tanh(w_{\text{in}} \, x)$, and find the gradient of each. Then: what is the gradient of $w$?
"""


# %%
def two_uses(w, x):
    """y = w tanh(w x), each number by itself: w and x (N,) → y (N,), (w, x, tanh(w x))."""
    t = np.tanh(w * x)
    return w * t, (w, x, t)


# %% [markdown] tags=["derivation"]
r"""
In front, $dw_{\text{out}} = dy \tanh(w x)$. Inside, through the derivative of tanh, which is $1 - \tanh^2$:
$dw_{\text{in}} = dy \, w \, (1 - \tanh^2(w x)) \, x$.

Both numbers happen to equal $w$. The chain rule for $L(w_{\text{in}}, w_{\text{out}})$ goes through both arguments:

$$
\frac{\partial L}{\partial w}
= \frac{\partial L}{\partial w_{\text{in}}} \underbrace{\frac{\partial w_{\text{in}}}{\partial w}}_{1}
+ \frac{\partial L}{\partial w_{\text{out}}} \underbrace{\frac{\partial w_{\text{out}}}{\partial w}}_{1}
= dw_{\text{in}} + dw_{\text{out}} .
$$
"""


# %% tags=["solution"]
def my_two_uses_in_steps(dout, cache):
    """The gradients of two_uses: dw_out (N,), dw_in (N,), dw (N,).

    dout (N,); cache = (w, x, t), with t = tanh(w x), (N,) each.
    """
    w, x, t = cache
    dw_out = dout * t
    dw_in = dout * w * (1 - t**2) * x
    return dw_out, dw_in, dw_out + dw_in


# %%
check("11.two_uses_in_steps", my_two_uses_in_steps)

# %% [markdown] tags=["answer"]
r"""
A **sum**, not a mean. It is the same for matrices: $dE = dE_{\text{in}} + dE_{\text{out}}$.
"""

# %% [markdown]
r"""
## 5. Your turn: the tied gradient

@exercise 11.tied_backward

Here is a tied model with no encoder between its two uses of $W$: $h = \tanh(W[\text{ids}])$, $\text{logits} = h W^\top$.
"""

# %%
print(inspect.getsource(tied_model))

# %% [markdown]
r"""
There is one weight; return its one gradient. (Be careful with repeated ids: [06 · Embeddings](06_embeddings.ipynb).)
"""

# %% [markdown] tags=["derivation"]
r"""
**As a decoder**, $W$ is the weight of a linear map. With all positions $n = (b, s)$ as rows:
$\; dW_{\text{out}} = d\text{logits}^\top h . \;$ Every word got a score at every position, so every row gets a gradient.

**As a table**: first back to $h$, then through tanh, whose derivative is $1 - h^2$, to the embeddings $e$,

$$ dh = d\text{logits} \; W , \qquad de = dh \odot (1 - h^2) , $$

and from there into the rows that were looked up. An id that occurs twice collects two gradients:
$\; dW_{\text{in}}[v] = \sum_{n : \, \text{id}_n = v} de_n .$
"""


# %% tags=["solution"]
def my_tied_backward(dlogits, cache):
    """The gradient of logits = h Wᵀ, h = tanh(W[ids]), with respect to W: dweight (V, H).

    dlogits (B, S, V); cache = (ids, hidden, weight): (B, S), h (B, S, H) and W (V, H).
    """
    ids, hidden, weight = cache
    V, H = weight.shape
    dweight = dlogits.reshape(-1, V).T @ hidden.reshape(-1, H)  # as the decoder
    dembedded = (dlogits @ weight) * (1 - hidden**2)  # (B, S, H)
    np.add.at(dweight, ids, dembedded)  # as the table
    return dweight


# %%
check("11.tied_backward", my_tied_backward)

# %% [markdown]
r"""
## 6. The two contributions in a BERT

The library needs no special case for this. The parameter has two users, and `add_grad` adds up what they contribute. The
head's backward pass runs first and leaves the decoder's share; the embeddings' backward pass comes last and adds the
table's. So we first run the head's backward pass alone, and then that of the whole model:
"""

# %%
word_table = model.bert.embeddings.word_embeddings.weight
prepared = model.prepare(input_ids=ids, labels=labels)  # the batch, with its targets for the head
output, cache = model.forward(ids, labels=labels)
_, head_cache = head.loss(output.last_hidden_state, prepared.masked_lm)

model.zero_grad()
head.loss_backward(1.0, head_cache)  # the MLM head alone
as_decoder = word_table.grad.copy()  # (V, H)

model.zero_grad()
model.backward(cache)  # all of it
total = word_table.grad.copy()
as_table = total - as_decoder

used = np.unique(ids)
rows_of_decoder = np.flatnonzero(np.abs(as_decoder).sum(axis=1))
rows_of_table = np.flatnonzero(np.abs(as_table).sum(axis=1) > 1e-12)
print(f"rows with a gradient, as decoder {len(rows_of_decoder)}, as table {len(rows_of_table)}")
print(f"different words in the batch     {len(used)}")
assert set(rows_of_table) == set(used)

# %% tags=["figure"]
# Caption: The two contributions to the gradient of the tied table, and their sum. The dark
#   horizontal stripes are words with a large error. The vertical ones are features that are large
#   at most of the predicted positions.
figure, axes = plt.subplots(1, 3, figsize=(7.5, 4.6), sharey=True)
parts = {"as decoder": as_decoder, "as table": as_table, "their sum": total}
limit = np.percentile(np.abs(as_table[used]), 95)  # larger values have the darkest colour, too
for panel, (title, part) in zip(axes, parts.items(), strict=True):
    image = plots.heatmap(panel, part, limit=limit)
    panel.set(title=title, xlabel="feature", xticks=[0, 5, 10, 15], yticks=range(0, V, 5))
    panel.set_aspect("auto")
axes[0].set_ylabel("word (row of E)")
figure.colorbar(image, ax=axes, shrink=0.7)
plt.show()

# %% [markdown]
r"""
The decoder's share is **dense**: every word of the vocabulary takes part in the softmax. The table's is **sparse**: only
words that occur in the batch have a gradient. (The rows that stay white are words that do not occur; the strong one, row
4, is [MASK].) With $p_{nv}$ the predicted probabilities and $y_n$ the right words, a row of the decoder's share is

$$
dE_{\text{out}}[v] = \frac1P \sum_{n} \bigl( p_{nv} - [v = y_n] \bigr) \, z_n .
$$

Gradient descent moves the right word's vector towards $z$, and every other vector away from it, in proportion to its
probability. A word that is never the right one is only pushed away, at every step. Let us check the formula with the
library's loss:
"""

# %%
z = rng.standard_normal((5, 6))  # (P, H)
table = rng.standard_normal((9, 6))  # (V, H)
bias = rng.standard_normal(9)  # (V,)
right = np.array([1, 4, 4, 0, 8])  # (P,)
_, cache = masked_lm_loss(z, table, bias, right, np.ones(5), 5.0)
_, dtable, dbias = masked_lm_loss_backward(1.0, cache)

scores = z @ table.T + bias
p = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)  # (P, V)
onehot = np.eye(9)[right]
by_formula = (p - onehot).T @ z / 5
print(f"largest difference {np.abs(dtable - by_formula).max():.0e}")
assert np.allclose(dtable, by_formula)

case = function_case(
    "masked-word loss",
    lambda *a: masked_lm_loss(*a, right, np.ones(5), 5.0),
    masked_lm_loss_backward,
    {"z": z, "table": table, "bias": bias},
)
for row in compare_with_numeric(case):
    print(f"{row.parameter:<6} agrees with the numeric gradient: {row.ok}")
    assert row.ok

# %% [markdown]
r"""
### Open: two matrices, each used twice

@exercise 11.factorised_backward

ALBERT (Lan and others, [2019](https://arxiv.org/abs/1909.11942)) makes the table smaller: each word has only
`E` numbers, fewer than `H`, and a second matrix, the projection, leads from `E` to `H`. Here both matrices are tied, with
no encoder in between:
"""


# %%
def factorised_model(table, projection, ids):
    """table (V, E), projection (H, E), ids (B, S) → logits (B, S, V), and the cache."""
    embedded = table[ids]  # (B, S, E)
    hidden = np.tanh(embedded @ projection.T)  # (B, S, H)
    back = hidden @ projection  # (B, S, E): the projection the other way round
    return back @ table.T, (ids, embedded, hidden, back, table, projection)


# %% [markdown]
r"""
Find both gradients. First draw the path from the ids to the logits, and mark each place where one of the matrices is used.
"""

# %% [markdown] tags=["derivation"]
r"""
There are four uses, and so four shares. We go back from the logits, with all positions as rows:

$$
\begin{aligned}
\text{logits} &= u \, T^\top: & dT &\mathrel{+}= d\text{logits}^\top u, & du &= d\text{logits} \; T \\
u &= h \, M: & dM &\mathrel{+}= h^\top du, & dh &= du \, M^\top \\
h &= \tanh(a), \; a = e M^\top: & dM &\mathrel{+}= da^\top e, & da &= dh \odot (1 - h^2), \quad de = da \, M \\
e &= T[\text{ids}]: & dT[v] &\mathrel{+}= \textstyle\sum_{n : \, \text{id}_n = v} de_n & &
\end{aligned}
$$

where $T$ is the table, $M$ the projection and $u$ what the cache calls `back`. Mind the second line: there, $M$ is used the other way round,
so $h$ and $du$ change places in its gradient.
"""


# %% tags=["solution"]
def my_factorised_backward(dlogits, cache):
    """The gradients of factorised_model: dtable (V, E), dprojection (H, E).

    dlogits (B, S, V); cache = (ids, embedded, hidden, back, table, projection), as factorised_model has them.
    """
    ids, embedded, hidden, back, table, projection = cache
    V, E = table.shape
    H = len(projection)
    dtable = dlogits.reshape(-1, V).T @ back.reshape(-1, E)
    dback = dlogits @ table  # (B, S, E)
    dprojection = hidden.reshape(-1, H).T @ dback.reshape(-1, E)
    dsum = (dback @ projection.T) * (1 - hidden**2)  # (B, S, H), before the tanh
    dprojection += dsum.reshape(-1, H).T @ embedded.reshape(-1, E)
    np.add.at(dtable, ids, dsum @ projection)
    return dtable, dprojection


# %%
check("11.factorised_backward", my_factorised_backward)

# %% [markdown]
r"""
## 7. What does the decoder's separate bias do?

The table of embeddings has no bias, but the decoder has one of its own, $b$, with one number per word. Its gradient is

$$
db_v = \frac1P \sum_n \bigl( p_{nv} - [v = y_n] \bigr)
= \underbrace{\overline{p_v}}_{\text{predicted share}} - \underbrace{f_v}_{\text{true share}} ,
$$

so the bias stops moving when every word is predicted **as often as it occurs**. It learns the frequencies of the words. If
the head knows nothing else ($z = 0$), then $p = \operatorname{softmax}(b)$, and $p_v = f_v$ means $b_v = \log f_v$ up to a constant. Let it learn:
"""

# %%
V_words = 60
frequency = 1.0 / np.arange(1, V_words + 1)
frequency /= frequency.sum()  # as with real words: the n-th is 1/n as frequent as the first
right = rng.choice(V_words, size=4000, p=frequency)
counted = np.bincount(right, minlength=V_words) / len(right)

bias = np.zeros(V_words)
nothing, unused = np.zeros((len(right), 1)), np.zeros((V_words, 1))
losses = []
for _ in range(400):
    loss, cache = masked_lm_loss(nothing, unused, bias, right, np.ones(len(right)), len(right))
    losses.append(float(loss))
    bias -= 5.0 * masked_lm_loss_backward(1.0, cache)[2]

entropy = -(counted[counted > 0] * np.log(counted[counted > 0])).sum()
print(f"loss {losses[0]:.3f} = ln V = {np.log(V_words):.3f}  →  {losses[-1]:.3f}")
print(f"entropy of the frequencies: {entropy:.3f}")
assert np.isclose(losses[-1], entropy, atol=2e-3)

# %% tags=["figure"]
# Caption: A bias by itself can learn one thing: how frequent each token is.
figure, axes = plt.subplots(1, 2, figsize=(7.5, 3.1))
axes[0].plot(losses)
axes[0].axhline(entropy, color=plots.GREY, linestyle="--", linewidth=1.2)
axes[0].text(400, entropy + 0.02, "entropy", color=plots.GREY, ha="right", va="bottom", fontsize=9)
axes[0].set(title="the bias alone", xlabel="step", ylabel="loss (nats)")
seen_words = counted > 0
log_f, b = np.log(counted[seen_words]), bias[seen_words]
axes[1].plot(log_f, log_f - log_f.mean() + b.mean(), color=plots.GREY, linewidth=1.2)
axes[1].plot(log_f, b, "o", markersize=4)
axes[1].set(title="it learns log frequency", xlabel="log f", ylabel="b")
plt.show()

# %% [markdown]
r"""
The bias alone is enough for guessing by frequency, and this is what it is for. Without it, the frequencies would have to be
written into the embeddings, which have other things to say, and are used at the input, too. But here nothing else *could*
learn, and the steps were large. In a real run the table learns faster. The part of the scores that is the same everywhere is
$E \bar z + b$ ($\bar z$ is the mean of all $z$). For each word, $E \bar z$ adds up `H` products that move together, while
$b$ has a single number. In the run of
[14 · Pre-training](14_pretraining.ipynb#7.-Why-are-frequencies-learned-first?) (which writes $W \bar h + b$) the model has
reached the loss of guessing by frequency after 100 steps; its bias alone is still far from it after 3,000.

## 8. Why a tanh pooler?

The other head sees one vector, the first token's, through a **pooler**: $y = \tanh(h_{\text{CLS}} W^\top + b)$. Its
two scores are a linear map of $y$. The paper gives no reason for the tanh; here is what it does.

Without it, two linear maps would follow each other, and two linear maps are one: $(h W_1^\top) W_2^\top = h (W_2 W_1)^\top$. The
`H × H` weights of the pooler would add nothing. With it, the head can draw boundaries that are not straight. Here are
two classes of two points each, which no straight line separates:
"""

# %%
points = np.array([[-1.0, -1], [1, 1], [-1, 1], [1, -1]])  # (4, 2)
which = np.array([0, 0, 1, 1])


def fit(activate, derivative, steps=2000):
    rng = np.random.default_rng(2)
    W1, b1, W2 = rng.standard_normal((4, 2)), rng.standard_normal(4), rng.standard_normal((2, 4))
    b2 = np.zeros(2)
    for _ in range(steps):
        y = activate(points @ W1.T + b1)  # the pooler, (4, 4)
        loss, cache = ops.cross_entropy(y @ W2.T + b2, which, np.ones(4), 4.0)
        dscores = ops.cross_entropy_backward(1.0, cache)
        dz = (dscores @ W2) * derivative(y)
        W2, b2 = W2 - 0.3 * dscores.T @ y, b2 - 0.3 * dscores.sum(0)
        W1, b1 = W1 - 0.3 * dz.T @ points, b1 - 0.3 * dz.sum(0)
    return float(loss)


linear = fit(lambda z: z, np.ones_like)
with_tanh = fit(np.tanh, lambda y: 1 - y**2)
print(f"loss without tanh {linear:.3f} (ln 2 = {np.log(2):.3f}), with tanh {with_tanh:.3f}")
assert linear > 0.69 and with_tanh < 0.05

# %% [markdown]
r"""
GELU could do that, too. Tanh also keeps every number in $(-1, 1)$, however large $h$ is. The price: where $\lvert y \rvert$ is
near 1, the derivative $1 - y^2$ is near 0, and little gradient gets through.

## 9. Pooled output or h[CLS]?

That depends on which loss taught them. How large is the gradient that each loss sends to each position of the encoder's
output? A model's backward pass takes the derivative of any of its outputs by name, so we can start from one loss alone. And an
**observer** in the [context](04_gelu_dropout.ipynb#9.-In-BERT) of a forward pass sees named values, and in the backward
pass their derivatives:
"""


# %%
class AtLastLayer(Observer):
    """Keeps the derivative that arrives at the output of the last layer."""

    def wants(self, name):
        return name == f"bert.encoder.layer.{config.num_hidden_layers - 1}"

    def backward(self, name, dvalue):
        self.length = np.linalg.norm(dvalue, axis=-1)  # (B, S)


arrives = {}
for name, start in (("from MLM", {"dmlm_loss": 1.0}), ("from NSP", {"dnsp_loss": 1.0})):
    watcher = AtLastLayer()
    _, cache = model.forward(
        ids, labels=labels, next_sentence_label=[0, 1, 1], context=Context(observer=watcher)
    )
    model.backward(cache, **start)
    arrives[name] = watcher.length
for name, lengths in arrives.items():
    print(name, "reaches (sequence, position)", *map(tuple, np.argwhere(lengths).tolist()))
assert not arrives["from MLM"][:, 0].any() and not arrives["from NSP"][:, 1:].any()

# %% tags=["figure"]
# Caption: Which positions each loss sends a gradient to, in the last layer. MLM: the masked words.
#   NSP: [CLS] alone.
figure, axes = plt.subplots(2, 1, figsize=(7.5, 3.2), sharex=True)
for panel, (name, lengths) in zip(axes, arrives.items(), strict=True):
    image = plots.heatmap(panel, lengths)
    panel.set(title=f"‖dhidden‖ {name}", ylabel="sequence")
    panel.set_aspect("auto")
    figure.colorbar(image, ax=panel)
axes[1].set_xlabel("position (0 is [CLS])")
plt.show()

# %% [markdown]
r"""
In the last layer **[CLS] hears from NSP alone, and only through the pooler**; masked words are never at position 0. So:

- The *pooled* output says what NSP needed to know. It is a good start for fine-tuning, in which its weights go on learning.
- $h_{\text{CLS}}$ comes one step earlier, and is made to be read by that pooler.
- In a model without NSP, nothing trains the pooler. `BertForMaskedLM` has none; a library that adds one fills it with random numbers.
- Before fine-tuning, neither of them is a good vector for a sentence ([15 · Fine-tuning](15_fine_tuning.ipynb)).
"""

# %%
print("pooler of BertForMaskedLM:", BertForMaskedLM(config, device=None).bert.pooler)

# %% [markdown]
r"""
## 10. One loss, one check

$L = L_{\text{MLM}} + L_{\text{NSP}}$, each a sum over its labels divided by their number. A fresh model knows nothing, so it
should begin near $\ln V + \ln 2$. (If yours does not, look at the initialisation before anything else.)
"""

# %%
as_published = BertConfig.preset("tiny", **SIZES, **NO_DROPOUT)  # N(0, 0.02²), cut off at 0.04
fresh = BertForPreTraining(as_published, dtype="float64", seed=7)
output, _ = fresh.forward(ids, labels=labels, next_sentence_label=[0, 1, 1])
print(f"MLM {output.mlm_loss:.3f}   ln V = {np.log(V):.3f}")
print(f"NSP {output.nsp_loss:.3f}   ln 2 = {np.log(2):.3f}")
assert abs(output.loss - np.log(2 * V)) < 0.2

# %% [markdown]
r"""
When a batch is computed in pieces, all pieces must divide by the number of labels of the *whole* batch. A mean of means is
something else as soon as the pieces have different numbers of labels.
"""

# %%
pieces = slice(0, 1), slice(1, 3)
naive = np.mean([fresh.forward(ids[i], labels=labels[i])[0].mlm_loss for i in pieces])
right_way = sum(
    fresh.forward(ids[i], labels=labels[i], mlm_denominator=5)[0].mlm_loss for i in pieces
)
print(f"whole batch    {output.mlm_loss:.6f}")
print(f"mean of means  {naive:.6f}")
print(f"sums / 5       {right_way:.6f}")
assert np.isclose(right_way, output.mlm_loss) and not np.isclose(naive, output.mlm_loss)

# %% [markdown]
r"""
Last, here is a model with both heads, with every parameter checked against the numeric gradient. The tied table is among
them, with both of its contributions. (The key's bias has no influence on anything, see [08 · Attention](08_attention.ipynb): its gradient is compared with 0.)
"""

# %%
SMALL = {"vocab_size": 9, "hidden_size": 4, "num_hidden_layers": 1, "intermediate_size": 6}
small = BertForPreTraining(
    BertConfig.preset("tiny", **SMALL, **NO_DROPOUT, max_position_embeddings=4), dtype="float64"
)
Draws(small.device, 1).randomise(small)
batch = {
    "input_ids": np.array([[2, 5, 4, 5], [2, 4, 7, 3]]),
    "labels": np.array([[-100, -100, 6, -100], [-100, 7, 7, -100]]),
    "next_sentence_label": np.array([0, 1]),
}
zeros = [name for name, _ in small.named_parameters() if name.endswith("key.bias")]
rows = compare_with_numeric(model_case("both heads", small, batch, zeros=zeros))
for row in rows:
    if (
        "word_embeddings" in row.parameter
        or row.parameter.startswith("cls")
        or "pooler" in row.parameter
    ):
        print(f"{row.parameter:<46} {'ok' if row.ok else 'WRONG'}")
print(f"all {len(rows)} parameters right: {all(row.ok for row in rows)}")
assert all(row.ok for row in rows)

# %% [markdown]
r"""
## Recap

- Two heads: masked words from the gathered rows, next sentence from [CLS] through the pooler. $L$ is their sum.
- The decoder is the table of word embeddings. One weight, two uses, and its gradient is the **sum** of both: dense from the
  decoder, sparse from the table.
- The decoder has a bias of its own, which is the place for log frequencies. In a real run the table learns them first.
- In the last layer [CLS] learns from NSP alone. The tanh makes the pooler more than a second linear map.
- A fresh model starts at $\ln V + \ln 2$.

## What usually goes wrong

- **A copy instead of a tie.** `decoder = table.copy()` makes two weights, which go separate ways at the first step.
- **The second contribution overwrites the first.** `grad = …` where `grad += …` belongs.
- **A mean of the two.** Each use moves the loss in full, so the gradients add.
- **A tie that does not survive loading.** When a file stores the matrix twice, a loader may fill only one of the two.
- **A transposed decoder.** The scores are $z E^\top$ with $E$ (V, H). There is no second matrix, only a second way to read the same one.
- **Trusting the pooler** of a model that had no NSP.

## Three questions

Answer before you unfold.
"""

# %% [markdown]
r"""
<details>
<summary><b>1.</b> A word is in the vocabulary but not in the batch. Does its embedding change in this step?</summary>

Yes. As a decoder row it took part in every softmax: it is pushed away from all $z_n$, by $p_{nv}$. (Besides, Adam's running mean and the
weight decay move it: [13 · The optimiser](13_optimiser.ipynb).) Without the tie, only these two would.

</details>
"""

# %% [markdown]
r"""
<details>
<summary><b>2.</b> You add the same number to all entries of the decoder's bias. What happens to the loss, and what
does that say about the sum of db?</summary>

Nothing happens: softmax ignores a constant. So $\sum_v db_v = 0$ always. The formula shows it, too: both the predicted and
the true shares sum to 1.

</details>
"""

# %% [markdown]
r"""
<details>
<summary><b>3.</b> Why does the MLM loss send no gradient to [CLS] in the last layer, but does send one to [CLS] in the layer
below?</summary>

In the last layer, only the gathered positions go on to the head. But those have read [CLS] by attention: its state in the
layer below gave one of the keys and values, and through these the gradient comes back.

</details>
"""

# %% [markdown]
r"""
## Further reading

- Devlin and others, [BERT](https://arxiv.org/abs/1810.04805), 2018: section 3.1 describes the two objectives.
- Press and Wolf, [Using the output embedding to improve language models](https://arxiv.org/abs/1608.05859), 2017: weight tying, and what each of the two matrices learns without it.
- Inan, Khosravi and Socher, [Tying word vectors and word classifiers](https://arxiv.org/abs/1611.01462), 2016: the same idea, derived from the loss.
- Lan and others, [ALBERT](https://arxiv.org/abs/1909.11942), 2019: the factorised table, and another objective for pairs.
- Reimers and Gurevych, [Sentence-BERT](https://arxiv.org/abs/1908.10084), 2019: how well [CLS] and the mean serve as the vector of a sentence.

**Next:** [12 · Pre-training data](12_pretraining_data.ipynb). The code of this notebook:
[heads.py](../minibert/bert/heads.py) · [encoder.py](../minibert/bert/encoder.py) (the pooler) ·
[composites.py](../minibert/ops/composites.py) (the loss) · [models.py](../minibert/bert/models.py).
"""
