# %% [markdown]
r"""
# 06 · Embeddings

A text reaches BERT as a row of whole numbers, but BERT computes with vectors. In between there are three tables: one
says what a token is, one where it is, and one to which of two texts it belongs. The forward pass looks rows up. The
backward pass has a trap that gives an *almost* right gradient.

**You will** write the look-up, and see the matrix product behind it · derive the gradient of the table, place by place · find out
what `dweight[ids] += dout` really does, and write it correctly · find the gradient of a mean over the pieces of a word · take
positions and token types away from a trained model · check all three tables at once.

**Before this:** [02 · Linear](02_linear.ipynb) (the products of a backward pass); [05 · LayerNorm](05_layer_norm.ipynb) comes
right after the tables.
**Time:** 75 minutes with the exercises; it runs in seconds.

| letter | in this notebook |
|---|---|
| `B`, `S` | sequences in a batch, tokens in a sequence |
| `H` | hidden size: how many numbers describe a token |
| `V` | vocabulary: how many different tokens there are, and so the number of rows of the first table |
"""

# %%
import inspect

import matplotlib.pyplot as plt
import numpy as np

from minibert import BertConfig, BertModel, BertTokenizer, UserError, check, plots
from minibert.course import read_log
from minibert.dropout_bits import dropout_key
from minibert.gradcheck import check as compare_with_numeric
from minibert.gradcheck import function_case
from minibert.nn.initialise import sinusoids
from minibert.ops.composites import embed, embed_backward
from minibert.ops.embedding_lookup import embedding, embedding_backward
from minibert.tasks.info import parameter_table, step_cost

plots.notebook_style()
np.set_printoptions(precision=3, suppress=True)
rng = np.random.default_rng(6)

# %% [markdown]
r"""
## What goes into BERT

Two texts become one row of tokens, with `[CLS]` in front and `[SEP]` after each. Every token gets three vectors, one
from each table. Their sum is what BERT reads:
"""

# %% tags=["figure"]
# Caption: The input of BERT: each token is the sum of three rows, one from each table.
PAIR = "[CLS] the dog sees the cat [SEP] it runs [SEP]".split()
TYPES = [0] * 7 + [1] * 3  # 0 up to the first [SEP], 1 after it
figure, axes = plt.subplots(figsize=(7.5, 3.0))
for s, (token, kind) in enumerate(zip(PAIR, TYPES, strict=True)):
    axes.text(s, 3.3, token, ha="center", va="center", fontsize=10)
    for row, name, colour in (
        (2, token, plots.SKY),
        (1, f"{s}", plots.ORANGE),
        (0, "AB"[kind], plots.GREEN if kind == 0 else plots.PURPLE),
    ):
        frame = {"facecolor": colour, "edgecolor": "none", "alpha": 0.35}
        axes.add_patch(plt.Rectangle((s - 0.46, row + 0.2), 0.92, 0.6, **frame))
        axes.text(s, row + 0.5, rf"$E_{{\mathrm{{{name.strip('[]')}}}}}$", ha="center", va="center")
    for row in (1, 2):
        axes.text(s, row, "+", ha="center", va="center", fontsize=10, color=plots.GREY)
for row, name in (
    (3.3, "input"),
    (2.5, "token\n(V, H)"),
    (1.5, "position\n(512, H)"),
    (0.5, "type\n(2, H)"),
):
    axes.text(-0.7, row, name, ha="right", va="center", color=plots.GREY)
axes.set(xlim=(-2.2, 9.6), ylim=(0.1, 3.6))
axes.axis("off")
figure.set_label(
    "A pair of texts as ten tokens. Under each token are the vectors of three tables, which are added: "
    "its token, its position from 0 to 9, and its type, A for the first text and B for the second."
)
plt.show()

# %% [markdown]
r"""
Each box is one vector of `H` numbers. The figure follows figure 2 of the BERT paper
([Devlin and others, 2018](https://arxiv.org/abs/1810.04805)), with our sentence. The first row depends only on the word, the second
only on its place, and the third only on which text it is in. We begin with the first table; the others work in the same way.

## 1. A look-up, and the product that it stands for

The table, `weight`, has a row of `H` numbers for every token of the vocabulary. A token's **id** is the number of its
row. The embedding of a batch of ids consists of these rows:
"""

# %%
B, S, V, H = 2, 3, 6, 4
weight = rng.standard_normal((V, H))  # (V, H)
ids = np.array([[2, 5, 2], [0, 3, 5]])  # (B, S)

y, cache = embedding(weight, ids)
print(y.shape)  # (B, S, H)
assert (y[0, 1] == weight[5]).all() and (y[0, 0] == y[0, 2]).all()

# %% [markdown]
r"""
### Your turn: the look-up

@exercise 06.embedding

Write the look-up, for ids of any shape. The cache holds the ids and the *shape* of the table. The numbers in the table will not be
needed: the gradient of a look-up does not depend on what was found.
"""


# %% tags=["solution"]
def my_embedding(weight, ids):
    """The rows of a table: y (…, H), (ids, shape).

    weight (V, H), ids (…) integers. The cache is a tuple of the ids as they came in, and the shape (V, H) of the table.
    """
    return weight[ids], (ids, weight.shape)


# %%
check("06.embedding", my_embedding)

# %% [markdown] tags=["yours"]
r"""
What passes its check can become a part of your own BERT, which [20](20_your_bert.ipynb) puts together. `keep` writes it into the folder
`my_bert`.
"""

# %% tags=["yours"]
from minibert.course import keep

# %% tags=["yours"]
keep("06.embedding", my_embedding)

# %% [markdown] tags=["answer"]
r"""
The library's version:
"""

# %% tags=["answer"]
print(inspect.getsource(embedding))

# %% [markdown]
r"""
### The product behind it

How do we take the derivative of an indexing operation? Write it as something that we know. Let $X$ have one row for each token of
the batch. The row is 0 everywhere except for a 1 in the column of the token's id (a **one-hot** row). Then

$$ y = X W , \qquad X_{rv} = \begin{cases} 1 & \text{if } \mathrm{ids}_r = v \\ 0 & \text{otherwise,} \end{cases} $$

because row $r$ of the product is $\sum_v X_{rv} W_v$, a sum in which only one term survives: the row of the id.
"""

# %%
one_hot = np.eye(V)[ids.reshape(-1)]  # (B·S, V)
assert np.array_equal(one_hot @ weight, y.reshape(-1, H))

# %% tags=["figure"]
# Caption: The look-up as a product: the 1 in each row of X picks a row of W.
figure, axes = plt.subplots(1, 3, figsize=(7.5, 3.0), width_ratios=[6, 4, 4])
for panel, values, title in (
    (axes[0], one_hot, "X, one-hot rows"),
    (axes[1], weight, "× W, the table"),
    (axes[2], one_hot @ weight, "= the rows looked up"),
):
    plots.heatmap(panel, values, limit=2.5)
    panel.set_title(title)
axes[0].set_yticks(range(B * S), [f"id {i}" for i in ids.reshape(-1)])
axes[0].set_xlabel("id")
axes[1].set(ylabel="id", xlabel="feature")
axes[2].set_yticks(range(B * S), [f"id {i}" for i in ids.reshape(-1)])
axes[2].set_xlabel("feature")
plt.show()

# %% [markdown]
r"""
Nobody computes that product. For one batch of BERT-base, $X$ would be 4,096 × 30,522 numbers, nearly all of them 0:
"""

# %%
base = BertConfig.preset("base")
tokens = 32 * 128  # B · S
copied = tokens * base.hidden_size
gigaflops = 2 * tokens * base.vocab_size * base.hidden_size / 1e9
print(
    f"product: X of {4 * tokens * base.vocab_size / 1e6:.0f} MB, and {gigaflops:.0f} billion operations"
)
print(f"look-up: {4 * copied / 1e6:.1f} MB copied, and nothing computed")

# %% [markdown]
r"""
## 2. What is the gradient of an embedding table?

$dW$ is short for $\partial L / \partial W$: how the loss moves when the table does. $dy$ (`dout`) comes in. (The ids get no gradient:
there is no "a little more" of token 5.)

### Place by place

@exercise 06.backward_in_steps

Put the tokens of a batch into one row of `R` places, $r = 0, \dots, R - 1$. Imagine that every place has **its own copy** of the table,
in which it looks up its row. These are the `copies`, of shape `(R, V, H)`, where copy $r$ is used only for $y_r$. Copies are easy,
since each is used exactly once.

Write the gradient of every copy, and then the gradient of the one table of which they are all copies. A loop is fine.
"""

# %% [markdown] tags=["derivation"]
r"""
$y_r$ is row $\mathrm{ids}_r$ of copy $r$. So this row gets $dy_r$ as it is. The other $V - 1$ rows of copy $r$ were not used, and
get 0. If the table moves, all copies move with it, so the table's gradient is the sum of the gradients of the copies.
"""


# %% tags=["solution"]
def my_backward_in_steps(dout, cache):
    """The gradients of y = weight[ids], place by place: dcopies (R, V, H), dweight (V, H).

    dout (R, H); cache = (ids, shape): ids (R,) integers, and the shape (V, H) of the table.
    """
    ids, shape = cache
    dcopies = np.zeros((len(ids), *shape))  # (R, V, H)
    for r, v in enumerate(ids):
        dcopies[r, v] = dout[r]
    return dcopies, dcopies.sum(axis=0)


# %%
check("06.backward_in_steps", my_backward_in_steps)

# %% [markdown] tags=["derivation"]
r"""
The product of section 1 gives the same result. For $y = XW$ the gradient is $dW = X^\top dy$ ([02](02_linear.ipynb)). Row by row,
with $X$ as above, that is

$$
dW_v = \sum_r X_{rv} \, dy_r
\qquad\Longrightarrow\qquad
\boxed{ \; dW_v = \sum_{r \,:\; \mathrm{ids}_r = v} dy_r \; }
$$

In words: **every place where a token occurs sends its gradient back to the token's row, and there the gradients are added.** A
row that was not looked up gets exactly 0. A row that was looked up once gets a copy of one row of $dy$, and a row that was
looked up three times gets the sum of three rows.
"""

# %% [markdown] tags=["answer"]
r"""
As a product, it is slow, but leaves no doubt. Compare it with the numeric gradient:
"""


# %% tags=["answer"]
def backward_by_product(dout, cache):
    ids, (V, H) = cache
    one_hot = np.eye(V)[ids.reshape(-1)]  # (B·S, V)
    return one_hot.T @ dout.reshape(-1, H)  # (V, H)


case = function_case(
    "as a product", lambda weight: embedding(weight, ids), backward_by_product, {"weight": weight}
)
[row] = compare_with_numeric(case)
print(row)
assert row.ok

# %% [markdown]
r"""
## 3. Repeated ids: += gives 1, scatter-add gives 2

Nobody can afford a copy of the table for each place, or a product with one-hot rows. Instead, we go through the places and add
each row of $dy$ to the row of its id. This is called **scatter-add**. In NumPy it seems to be one line, `dweight[ids] += dout`. Try
the smallest case: row 1 was looked up twice, and both places send a gradient of 1.
"""

# %%
twice = np.array([1, 1])
with_plus = np.zeros(3)
with_plus[twice] += 1.0
print("dweight[ids] += 1          ", with_plus)
assert with_plus[1] == 1  # it should be 2

# %% [markdown]
r"""
`a[ids] += b` is three operations, one after the other: it reads **all** of `a[ids]` into a new array (0 and 0), adds `b` (1 and 1),
and writes **all** of them back. Both results go to the same place, and the second overwrites the first.
"""

# %% [markdown] tags=["derivation"]
r"""
`np.add.at` reads, adds and writes for one id after another, so it adds every time:

```python
dweight = np.zeros(3)
np.add.at(dweight, [1, 1], 1.0)  # [0. 2. 0.]
```
"""

# %% [markdown]
r"""
Nothing warns you. The shape is right, and so are the rows of all tokens that occurred only once.
"""


# %%
def backward_with_plus(dout, cache):
    ids, shape = cache
    dweight = np.zeros(shape)
    dweight[ids] += dout
    return dweight


dout = rng.standard_normal((B, S, H))
right, wrong = embedding_backward(dout, cache), backward_with_plus(dout, cache)
print("row   right      with +=   (norm of the gradient)")
for v in range(V):
    count = int((ids == v).sum())
    lengths = f"{np.linalg.norm(right[v]):5.3f}      {np.linalg.norm(wrong[v]):5.3f}"
    print(f"{v:2}    {lengths}     looked up {count} ×")

# %% tags=["figure"]
# Caption: If an id is repeated, `+=` on an array keeps only one of the gradients. Ids 2 and 5
#   occurred twice.
figure, axes = plt.subplots(1, 3, figsize=(7.5, 2.9), sharey=True)
limit = np.abs(right).max()
for panel, values, title in (
    (axes[0], right, "right"),
    (axes[1], wrong, "dweight[ids] += dout"),
    (axes[2], right - wrong, "what was lost"),
):
    image = plots.heatmap(panel, values, limit=limit)
    panel.set(title=title, xlabel="feature")
axes[0].set_ylabel("id")
figure.colorbar(image, ax=axes, shrink=0.9)
plt.show()

# %% [markdown]
r"""
Rows 2 and 5 were looked up twice and kept only the gradient of the last place. The more frequent a word is, the more is lost.

Would a gradient check have noticed? Only if some id is repeated:
"""


# %%
def check_plus(ids):
    def forward(weight):
        return embedding(weight, ids)

    [row] = compare_with_numeric(
        function_case("+=", forward, backward_with_plus, {"weight": weight})
    )
    return row


for what, some_ids in (("all ids differ", [[0, 1, 2], [3, 4, 5]]), ("some repeat", ids)):
    row = check_plus(np.array(some_ids))
    print(f"{what:<16} error {row.error:.0e}  {'ok' if row.ok else 'WRONG'}")
    assert row.ok == (what == "all ids differ")

# %% [markdown]
r"""
## 4. Your turn: scatter-add

@exercise 06.embedding_backward

Write the backward pass, for ids of any shape. `shape` in the cache is the shape of the table: rows whose ids did not occur must be
there, as zeros. Copies or one-hot rows would give the right result, but take far too much memory. A loop over the places is right,
but slow. NumPy has a function for this: look for a method of `np.add`.
"""


# %% tags=["solution"]
def my_embedding_backward(dout, cache):
    """The gradient of y = weight[ids] with respect to the table: dweight (V, H).

    dout (…, H); cache = (ids, shape): ids (…) integers, and the shape (V, H) of the table.
    """
    ids, shape = cache
    dweight = np.zeros(shape, dtype=dout.dtype)  # (V, H)
    np.add.at(dweight, ids, dout)
    return dweight


# %%
check("06.embedding_backward", my_embedding_backward)

# %% tags=["yours"]
keep("06.embedding_backward", my_embedding_backward)

# %% [markdown] tags=["answer"]
r"""
The library's own function calls `add_rows`, which is `np.add.at` on a CPU. On a GPU, many threads would add at once, in a different
order each time, and so with different rounding. There it sorts the ids first and adds up neighbours, so that it always gives the
same bits.
"""

# %% tags=["answer"]
print(inspect.getsource(embedding_backward))

# %% [markdown]
r"""
### Open: the mean of a word's pieces

@exercise 06.word_means_backward

BERT cuts rare words into pieces ([07](07_wordpiece.ipynb)): "embeddings" becomes `em ##bed ##ding ##s`. To get one vector for each
*word*, we can take the mean of its pieces. For every token, `words` has the number of its word, counted through the whole batch, and
−1 for tokens that belong to no word, such as [CLS] and padding:
"""

# %%
words = np.array([[-1, 0, 0, 1, 2, -1], [-1, 3, 4, 4, 4, -1]])  # (B, S)


def word_means(x, words):
    used = words >= 0  # (B, S)
    counts = np.bincount(words[used])  # (words,): how many pieces each word has
    sums = np.zeros((len(counts), x.shape[-1]))
    np.add.at(sums, words[used], x[used])
    return sums / counts[:, None], (words, counts)  # (words, H)


means, (_, counts) = word_means(rng.standard_normal((*words.shape, H)), words)
print(f"{len(means)} words, of {counts} pieces")

# %% [markdown]
r"""
Here the scatter-add is in the *forward pass*. What is the gradient of $x$? Ask of a single token where it was used.
"""

# %% [markdown] tags=["derivation"]
r"""
Token $t$ is in only one result, the mean $y_w$ of its word $w$, and its share in it is $1/n_w$, where $n_w$ is the number of pieces.
So

$$ dx_t = \frac{1}{n_w} \, dy_w , \qquad dx_t = 0 \text{ if it belongs to no word.} $$

Every token *looks up* the gradient of its word. The backward pass of a look-up is a scatter-add, and the backward pass of a
scatter-add is a look-up. And $-1$ has to be excluded explicitly, because NumPy takes it for the last row.
"""


# %% tags=["solution"]
def my_word_means_backward(dout, cache):
    """The gradient of word_means with respect to x: dx (B, S, H).

    dout (words, H); cache = (words, counts): words (B, S), −1 for no word, counts (words,).
    """
    words, counts = cache
    dx = (dout / counts[:, None])[words]  # (B, S, H)
    dx[words < 0] = 0.0
    return dx


# %%
check("06.word_means_backward", my_word_means_backward)

# %% [markdown]
r"""
## 5. Which rows learn?

Take a vocabulary of words (pieces of words come in [07](07_wordpiece.ipynb)), two texts, and a small BERT around the tables.
The gradient comes from the model's output, at all tokens except the padding.
"""

# %%
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = "the dog cat man bites sees and then it sleeps runs .".split()
tokenizer = BertTokenizer(SPECIAL + WORDS)

config = BertConfig.preset("tiny", vocab_size=len(tokenizer), initializer_range=0.1)
model = BertModel(config, dtype="float64", seed=6)
model.eval()  # no dropout
tables = {name.split(".")[1]: p for name, p in model.named_parameters() if "_embeddings" in name}
for name, table in tables.items():
    print(f"{name:<24} {table.value.shape}")

# %%
batch = tokenizer(
    ["the dog bites the man and the cat sees it .", "then the dog runs"], padding=True
)
outputs, model_cache = model.forward(**batch)
real = np.array(batch["attention_mask"])[:, :, None]  # (B, S, 1)
dhidden = real * rng.standard_normal(outputs.last_hidden_state.shape)  # (B, S, H), 0 on padding
model.zero_grad()
model.backward(model_cache, dlast_hidden_state=dhidden)

lengths = np.linalg.norm(tables["word_embeddings"].grad, axis=1)  # (V,)
counts = np.bincount(np.ravel(batch["input_ids"]), minlength=len(tokenizer))
assert (lengths[counts == 0] == 0).all()
assert counts[0] == 7 and lengths[0] == 0  # [PAD]

# %% tags=["figure"]
# Caption: Only tokens that occur in the batch have a gradient, and padding has none.
figure, axes = plt.subplots(figsize=(7.5, 3.0))
axes.bar(range(len(tokenizer)), lengths, color=plots.BLUE)
for v, (length, count) in enumerate(zip(lengths, counts, strict=True)):
    axes.text(v, length + 0.05 * lengths.max(), f"{count}×", ha="center", fontsize=9.5)
axes.set(title="gradient of each row of the word table", ylabel="gradient norm")
axes.set_ylim(top=1.15 * lengths.max())
axes.set_xticks(range(len(tokenizer)), tokenizer.tokens, rotation=50, ha="right")
axes.grid(False, axis="x")
plt.show()

# %% [markdown]
r"""
The number above each bar says how often the token occurred. Tokens that did not occur have a gradient of exactly 0: in one step,
most rows of a real table learn nothing. (In pre-training they do learn, in another way: the same table is used once more at the
output, see [11](11_heads_losses.ipynb).)

[PAD] occurred seven times, and its gradient is 0, too, without any special case in the backward pass. Attention ignores padding and
the loss does not look at it, so what comes back to those places *is* 0.
"""

# %% [markdown]
r"""
## 6. Why does BERT need positions?

Attention is a sum over tokens, and a sum has no order. If you take the positions away, permuting the words only permutes the
output vectors, and not one of their numbers changes.
"""


# %%
def hidden_of(text):
    outputs, _ = model.forward(**tokenizer([text]))
    return outputs.last_hidden_state[0]  # (S, H)


turned = [0, 3, 2, 1, 4]  # [CLS] dog bites man [SEP] → [CLS] man bites dog [SEP]
positions = tables["position_embeddings"].value
kept = positions.copy()
for what in ("with positions", "without"):
    difference = hidden_of("man bites dog") - hidden_of("dog bites man")[turned]
    print(f"{what:<15} the vectors differ by up to {np.abs(difference).max():.0e}")
    positions[...] = 0.0
assert np.abs(difference).max() < 1e-12
positions[...] = kept

# %% [markdown]
r"""
So the model can no longer tell who bit whom. The second table repairs that: row 0 is added to the first token of every sequence, row 1 to the
second, and so on. "Dog" at place 1 and "dog" at place 3 are then different vectors.

Its gradient needs no scatter-add, since the places of a sequence are all different. Row $s$ was used once in each sequence, so its
gradient is a sum over the batch, and rows beyond the longest sequence get 0:

$$ dP_s = \sum_b dy_{bs} \quad (s < S), \qquad dP_s = 0 \quad (s \ge S) . $$
"""

# %%
dpositions = tables["position_embeddings"].grad
used = np.flatnonzero(np.abs(dpositions).sum(axis=1))
print(f"{len(dpositions)} rows; a gradient in rows {used.min()} to {used.max()}")

# %% [markdown]
r"""
## 7. Why learned positions, and why 512?

**Learned or computed?** The Transformer, from which BERT descends, computed its positions: waves of different lengths, a sine
and a cosine of each. Its authors also tried a learned table, and found nearly the same results. BERT took the table, at a price that
you are about to see. Below, 96 rows are compared, each with every other (by the cosine of their angle). On the left are the waves. On
the right are the positions of a BERT that was trained on **sequences of 64 tokens**, the model of `minibert pretrain`. Its numbers are
from a log; `RERUN` makes them anew.
"""

# %%
RERUN = False  # True: train that model first (five minutes on two free cores), and measure it


def changes(positions, types):
    """What is done to two tables of a trained model: yields a name, the first 64 positions, the types."""
    trained = positions[:64].copy()  # (64, H)
    shuffled = np.random.default_rng(0).permutation(trained)
    yield "as trained", trained, types
    yield "positions: all their mean", np.tile(trained.mean(axis=0), (64, 1)), types
    yield "positions: shuffled", shuffled, types
    yield "positions: rows 64 to 127", positions[64:128].copy(), types
    yield "types: all 0", trained, types[[0, 0]]
    yield "types: swapped", trained, types[[1, 0]]


# %% tags=["figure"]
def measure():
    """Train the model of `minibert pretrain` in a temporary folder; yields the lines of the log."""
    import tempfile

    from minibert import BertForPreTraining
    from minibert.tasks.held_out import evaluate, evaluation_batches
    from minibert.tasks.pretraining import prepare, pretrain
    from minibert.tasks.pretraining_settings import PretrainSettings

    def tables_of(model):
        named = dict(model.named_parameters())
        names = ("position_embeddings", "token_type_embeddings")
        return [named[f"bert.embeddings.{name}.weight"].value for name in names]

    with tempfile.TemporaryDirectory() as folder:
        settings = PretrainSettings(name="tables", out=folder, prepared=folder)
        summary = pretrain(settings)
        model = BertForPreTraining.from_pretrained(settings.folder / "final")
        batches = evaluation_batches(settings, *prepare(settings))

    positions, types = tables_of(model)  # (512, H), (2, H)
    start, _ = tables_of(BertForPreTraining(model.config, seed=settings.seed))
    lengths, start_lengths = (np.linalg.norm(table, axis=1) for table in (positions, start))
    unit, start_unit = positions / lengths[:, None], start / start_lengths[:, None]
    for first, last in ((0, 63), (64, 511)):
        rows = slice(first, last + 1)
        yield {
            "rows": f"{first} to {last}",
            "length at the start": round(float(start_lengths[rows].mean()), 3),
            "length": round(float(lengths[rows].mean()), 3),
            "cosine with the start": round(float((unit * start_unit).sum(axis=1)[rows].mean()), 3),
        }
    yield {"cosines, %": np.rint(100 * unit[:96] @ unit[:96].T).astype(int).tolist()}
    yield {"plateau_loss": round(summary["plateau_loss"], 4)}
    for name, new_positions, new_types in changes(positions, types.copy()):
        positions[:64], types[:] = new_positions, new_types
        scores = evaluate(model, batches)
        kept = {key: round(scores[key], 4) for key in ("mlm_loss", "nsp_accuracy")}
        yield {"change": name, **kept}


# %%
log = list(measure()) if RERUN else read_log("06_embeddings.jsonl")
scores = {record["change"]: record for record in log if "change" in record}
[learned] = [np.array(record["cosines, %"]) / 100 for record in log if "cosines, %" in record]
[plateau] = [record["plateau_loss"] for record in log if "plateau_loss" in record]

waves = sinusoids(96, 128)
waves /= np.linalg.norm(waves, axis=1, keepdims=True)

# %% tags=["figure"]
# Caption: Cosines between the vectors of positions. Left: the fixed waves of the Transformer.
#   Right: a learned table, which was trained on 64 positions (up to the dashed line).
figure, axes = plt.subplots(1, 2, figsize=(7.5, 3.6), sharey=True)
for panel, cosines, title in ((axes[0], waves @ waves.T, "waves"), (axes[1], learned, "learned")):
    image = plots.heatmap(panel, cosines, limit=1.0)
    panel.set(title=title, xticks=range(0, 97, 16), yticks=range(0, 97, 16), xlabel="position")
axes[0].set_ylabel("position")
for draw in (axes[1].axhline, axes[1].axvline):
    draw(63.5, color="black", linewidth=1, linestyle="--")
figure.colorbar(image, ax=axes, shrink=0.85, label="cosine")
plt.show()

# %% [markdown]
r"""
Both have a band along the diagonal: neighbours are similar. Nobody asked the learned table for that; it came with
the gradient. The band stops at the dashed line, since rows from 64 on never got a gradient. They still have the random directions
that they started with, and are only a little shorter. That is weight decay, which makes every weight a little smaller at each step
([13](13_optimiser.ipynb#4.-Weight-decay-is-not-L2-regularisation)), with or without a gradient:
"""

# %%
for record in log:
    if "rows" in record:
        lengths = f"length {record['length at the start']:.2f} → {record['length']:.2f}"
        print(
            f"rows {record['rows']:<10} {lengths}   cosine with the start {record['cosine with the start']:.3f}"
        )

# %% [markdown]
r"""
**And what does the model do with such rows?** Here is its loss on text that it has not seen, after a change to one table:
"""

# %% tags=["figure"]
# Caption: What the model loses if its positions are taken away or mixed up.
figure, axes = plt.subplots(figsize=(7.5, 2.6))
names = [name for name in scores if not name.startswith("types")]
losses = [scores[name]["mlm_loss"] for name in names]
axes.barh(names, losses, color=[plots.BLUE] + 3 * [plots.VERMILION], height=0.6)
for number, loss in enumerate(losses):
    axes.text(loss - 0.1, number, f"{loss:.2f}", ha="right", va="center", color="white")
axes.axvline(plateau, color=plots.GREY, linestyle="--", linewidth=1.2, zorder=0)
axes.text(
    plateau - 0.06,
    -0.75,
    "guessing by frequency",
    ha="right",
    color=plots.GREY,
    fontsize=9,
)
axes.set(title="loss on masked words (nats)", ylim=(3.6, -1.1), xlim=(0, 7.2))
axes.grid(False, axis="y")
plt.show()

# %% [markdown]
r"""
Without any order (all rows replaced by their mean), most of what the model had learned is gone. Rows that were never trained are no
better. A *wrong* order is worse than none, and worse than guessing each word by its frequency. (That is because the *finished* model
relies on positions. A model that never had any would have learned to do without.)

**Why 512**, then? A learned table has a fixed number of rows, decided on before training, and there is no row 512 to look up:
"""

# %%
try:
    model.forward(np.full((1, 513), 5))
except UserError as error:
    print(error)

# %% [markdown]
r"""
The rows are cheap. What grows is attention, which compares each token with every other: `S × S` numbers in every head of
every layer. For BERT-base and *one* sequence, that is:
"""

# %%
print("   S   numbers in the table   attention maps   FLOPs per token")
for S in (128, 256, 512, 1024, 2048, 4096):
    longer = BertConfig.preset("base", max_position_embeddings=S)
    maps = 4 * longer.num_hidden_layers * longer.num_attention_heads * S**2  # bytes, float32
    flops = step_cost(longer, 1, S, S).encoder_flops / S  # every token is predicted
    print(f"{S:4} {S * longer.hidden_size:22,} {maps / 2**20:12,.0f} MiB {flops / 1e6:11.0f} M")

# %% [markdown]
r"""
So 512 is a compromise: about a page of text, for attention maps 16 times as large as with 128. BERT's authors paid that price only
for the last tenth of the steps, in order to learn the positions; the first nine tenths used sequences of 128. (`minibert pretrain
--long-seq-length 512` does the same.)

## 8. What do token_type_ids do?

BERT reads one text or two. If there are two, the tokenizer makes a single row of them, and says for every token to which text it
belongs: 0 up to the first [SEP], 1 after it. The third table has a row for each of these two types.
"""

# %%
encoded = tokenizer("the dog sleeps", "it bites", max_length=9, padding="max_length")
print("token  ", *(f"{tokenizer.tokens[i]:>7}" for i in encoded["input_ids"]))
for name in ("input_ids", "token_type_ids", "attention_mask"):
    print(f"{name.removesuffix('_ids').removeprefix('attention_'):<11}", end="")
    print(*(f"{i:>7}" for i in encoded[name]))

# %% [markdown]
r"""
So one vector is added to all tokens of the first text, and another to all tokens of the second. [SEP] marks the border, too, but a
token in the middle would have to look for it. What is this information good for? Ask the trained model again. It has two tasks: to
guess masked words, and to say whether the second text really follows the first.
"""

# %%
print("                      masked words   does B follow A?")
for name in ("as trained", "types: all 0", "types: swapped"):
    row = scores[name]
    print(f"{name:<16} {row['mlm_loss']:12.2f} nats {row['nsp_accuracy']:14.1%} right")

# %% [markdown]
r"""
The prediction of words hardly changes. On the question about the *pair*, the model loses half of its lead over tossing a coin. That
is what types are for: tasks with two texts, such as a question and a paragraph. With a single text, all types are 0 (the model assumes
this if you leave them out), and the row is a constant.

The gradient is a scatter-add again, with the types as ids. As there are only two rows, nearly *every* look-up is a repeated one: `+=`
would keep two gradients of the whole batch.

## 9. One sum, three gradients

Here is all of it together, as the library runs it, followed by LayerNorm and dropout:
"""

# %%
source = inspect.getsource(embed)
print(source[source.index("    length =") :])

# %% [markdown]
r"""
The three are **added**, and a sum passes its gradient on to each of its terms as it is:

$$ t = w + p + k \qquad\Longrightarrow\qquad dw = dp = dk = dt . $$

Then every table collects $dt$ in its own way: by token, by place, or by type.
"""

# %%
source = inspect.getsource(embed_backward)
print(source[source.index("    dnormalised =") :])

# %% [markdown]
r"""
Check all of them at once, with everything random, repeated ids, more positions than are used, and dropout on:
"""

# %%
B, S, V, H = 2, 4, 7, 6
ids = np.array([[5, 2, 5, 0], [3, 5, 0, 0]])  # (B, S); rows 1, 4 and 6 do not occur
types = np.array([[0, 0, 1, 1], [0, 1, 0, 0]])  # (B, S)
inputs = {
    "word": rng.standard_normal((V, H)),
    "position": rng.standard_normal((5, H)),
    "token type": rng.standard_normal((2, H)),
    "γ": rng.standard_normal(H),
    "β": rng.standard_normal(H),
}
key = dropout_key(seed=6, step=0, micro_batch=0, replica=0, site=0)


def forward(*tables):
    return embed(*tables, ids, types, 1e-12, 0.1, key)


for row in compare_with_numeric(function_case("embed", forward, embed_backward, inputs)):
    print(f"{row.parameter:<12} error {row.error:.0e}  {'ok' if row.ok else 'WRONG'}")
    assert row.ok

# %% [markdown]
r"""
There is also a test that needs no numeric gradient. Every token sends the *same* $dt$ into all three tables, so the sum over all
rows is the same for all three. This reflects a fact about the forward pass: if you add a vector to every row of one table and subtract
it from every row of another, no output changes.
"""

# %%
y, cache = forward(*inputs.values())
dword, dposition, dtype, _, _ = embed_backward(rng.standard_normal(y.shape), cache)
for name, gradient in (("word", dword), ("position", dposition), ("token type", dtype)):
    print(f"{name:<12} sum of all rows: {gradient.sum(axis=0)}")
assert np.allclose(dword.sum(0), dposition.sum(0)) and np.allclose(dword.sum(0), dtype.sum(0))

c = rng.standard_normal(H)
moved = inputs | {"word": inputs["word"] + c, "position": inputs["position"] - c}
assert np.allclose(forward(*moved.values())[0], y)

# %% [markdown]
r"""
## 10. Does the sum not mix everything up?

How can the model tell the three apart again? Try it with random tables and 300 random tokens. From each sum, guess its three rows: in
each table, take the row that has the largest dot product with the sum.
"""

# %%
SIZES = (4, 8, 16, 32, 64, 128, 256)
COUNTS = {"token, of 8,192": 8192, "position, of 512": 512, "type, of 2": 2}
found = {name: [] for name in COUNTS}
for H in SIZES:
    random_tables = {name: rng.standard_normal((count, H)) for name, count in COUNTS.items()}
    chosen = {name: rng.integers(0, count, 300) for name, count in COUNTS.items()}
    total = sum(random_tables[name][chosen[name]] for name in COUNTS)  # (300, H)
    for name, table in random_tables.items():
        rows = table / np.linalg.norm(table, axis=1, keepdims=True)
        found[name].append(((total @ rows.T).argmax(axis=1) == chosen[name]).mean())
assert min(shares[-1] for shares in found.values()) > 0.99

# %% tags=["figure"]
# Caption: The share of rows of each table that are recognised in the sum. From H = 128 on, it is
#   practically all of them.
figure, axes = plt.subplots(figsize=(6.5, 3.0))
for (name, shares), marker in zip(found.items(), "osD", strict=True):
    axes.plot(SIZES, shares, marker=marker, label=name)
axes.set_xscale("log", base=2)
axes.set_xticks(SIZES, [str(H) for H in SIZES])
axes.set(title="rows recognised in the sum of three", xlabel="hidden size H", ylabel="share right")
axes.set_ylim(-0.03, 1.05)
axes.legend(loc="lower right")
plt.show()

# %% [markdown]
r"""
With few features, the sum is a muddle. With 128, as in the smallest BERT, practically every token is recognised: random
directions in many dimensions are almost at right angles. And these tables were not even trained to be told apart.

## 11. In BERT

Tables cost no arithmetic, but they cost memory. The smaller a BERT is, the larger the share of its vocabulary:
"""

# %%
PRESETS = ("tiny", "mini", "small", "medium", "base", "large")
shares = []
for preset in PRESETS:
    matrices = [m for m in parameter_table(BertConfig.preset(preset)) if m.part != "heads"]
    tables_count = sum(m.count for m in matrices if "_embeddings" in m.name)
    total = sum(m.count for m in matrices)
    shares.append(tables_count / total)
    print(f"{preset:<7} {tables_count:12,} of {total:12,} numbers in the three tables")

# %% tags=["figure"]
# Caption: In the smallest model, most parameters are word vectors. In the largest, they are a tenth.
figure, axes = plt.subplots(figsize=(6.5, 2.8))
axes.bar(PRESETS, shares, color=plots.BLUE, width=0.6)
for x, share in enumerate(shares):
    axes.text(x, share + 0.02, f"{share:.0%}", ha="center")
axes.set(title="share of the parameters in the three tables (V = 30,522)", ylim=(0, 1.05))
axes.yaxis.set_major_formatter("{x:.0%}")
axes.grid(False, axis="x")
plt.show()

# %% [markdown]
r"""
## Recap

- A look-up is a product with a one-hot matrix. So $dW = X^\top dy$: each row sums the gradients of all places where its
  token occurred.
- `dweight[ids] += dout` keeps only one of them. `np.add.at` adds them all.
- Without positions, BERT reads a bag of words. In a learned table, only the rows that were trained are of use.
- Token types tell two texts apart. With only one text, they are a constant.
- The three rows are added, so each table gets the same gradient and collects it by token, by place, or by type.

## What usually goes wrong

- **`+=` instead of a scatter-add.** It passes every test without a repeated id.
- **Ids out of range.** NumPy silently takes −1 for the last row, and CuPy wraps any id around. The library checks ids
  when a batch enters the model.
- **A gradient with only the rows that occurred.** It must have the table's shape, zeros included.
- **Longer texts than in training.** There are rows for them, so nothing fails, but these rows are noise.
- **Types forgotten.** The second text then looks like more of the first, and only tasks with pairs get worse.

## Three questions

Answer before you unfold.
"""

# %% [markdown]
r"""
<details>
<summary><b>1.</b> The batch has 32 sequences of 128 tokens; all of them begin with [CLS]. How many terms are summed in the
row of [CLS] in the word table? In row 0 of the positions? In row 0 of the types, if all texts are single?</summary>

32, 32, and 4,096 (including padding, though its terms are 0 if nothing looks at it). For [CLS] and position 0, they
are even the same 32 terms, as [CLS] is always there. So these two rows get the same gradient.

</details>
"""

# %% [markdown]
r"""
<details>
<summary><b>2.</b> Instead of adding, one could put the three vectors side by side (3H numbers), and let a linear layer
make H numbers of them. What would that gain?</summary>

Nothing; it would only take longer. $[w; p; k] \, U = w U_1 + p U_2 + k U_3$, where $U_1$, $U_2$ and $U_3$ are three blocks of $U$.
Multiply each table by its block once, and you have three tables whose rows are added. So every model of one kind is also one of the
other kind.

</details>
"""

# %% [markdown]
r"""
<details>
<summary><b>3.</b> A BERT was pre-trained on texts of 128 tokens, and you fine-tune it on texts of 300. Its table has 512 rows, so
nothing fails. What do you expect, and what could you do?</summary>

Rows 128 to 299 start as noise, and fine-tuning has little text to train them with. It is better to do some pre-training on long
sequences first, as the authors did, or to cut the texts into windows of 128 tokens, as is done with texts beyond 512.

</details>
"""

# %% [markdown]
r"""
## Further reading

- Mikolov and others, [Efficient estimation of word representations in vector space](https://arxiv.org/abs/1301.3781), 2013: Word2Vec, where tables of word vectors became popular.
- Vaswani and others, [Attention is all you need](https://arxiv.org/abs/1706.03762), 2017: section 3.5 has the sinusoids, and a comparison with learned positions.
- Wang and Chen, [What do position embeddings learn?](https://arxiv.org/abs/2010.04903), 2020: the learned positions of BERT, RoBERTa and GPT-2 side by side.
- Press, Smith and Lewis, [Train short, test long](https://arxiv.org/abs/2108.12409), 2021: positions that work beyond the length of the training texts.

**Next:** [07 · WordPiece](07_wordpiece.ipynb), where the ids come from. The code of this notebook:
[embedding_lookup.py](../minibert/ops/embedding_lookup.py), [embeddings.py](../minibert/bert/embeddings.py), and `embed` in
[composites.py](../minibert/ops/composites.py).
"""
