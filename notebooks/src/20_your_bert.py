# %% [markdown]
r"""
# 20 · Your BERT

In every notebook before this one you wrote small functions, `check` compared them with the library's, and then they were
put away. Here the pieces come together. You write what connects them: the embeddings, a layer, both heads and the loop
over the layers, each with its forward and its backward pass, and then the training loop. This takes some 200 lines.
In the end you have a BERT whose forward pass, backward pass and optimiser are yours.

**You will** load real pretrained weights into your own model · find that it equals the library's number by number ·
put your functions in the place of the library's, and let the library run on them · train a BERT from scratch on real
text, with your own forward and backward pass and your own optimiser, and watch it learn.

**Before this:** everything up to [13 · The optimiser](13_optimiser.ipynb). If you skipped an exercise, the library's function
takes its place.
**Time:** three hours, if you write it all; it runs in two minutes.

| letter | in this notebook |
|---|---|
| `B`, `S` | sequences in a batch, tokens in a sequence |
| `H`, `F` | hidden size, feed-forward size |
| `A`, `D` | heads, and the size of each, `H / A` |
| `V`, `P` | words in the vocabulary, positions to predict |
"""

# %%
import contextlib
import io
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from pydoc_data.topics import topics

import matplotlib.pyplot as plt
import numpy as np

from minibert import BertConfig, BertForPreTraining, BertTokenizer, check, plots
from minibert.course import Mine, both
from minibert.course.exercises.n20_your_bert import library_values
from minibert.data import BatchStream, Documents, InstanceSettings, unigram_plateau
from minibert.data.batches import held_out_batches
from minibert.data.prose import prose_sentences
from minibert.explore.page import page
from minibert.explore.subjects import open_subject
from minibert.ops.stable_softmax import softmax

plots.notebook_style()
np.set_printoptions(precision=3, suppress=True)

# %% [markdown]
r"""
## 1. What you have

The pieces are functions from earlier notebooks. In [exercises/](exercises/20_your_bert.ipynb), `keep` has written those
that passed their check into the folder `my_bert`, one file each. They are Python modules like any others: open them and read
what you wrote. `kept` imports them, checks each once more, and takes the library's function wherever there is none of yours.
"""

# %% [markdown] tags=["answer"]
r"""
This is the complete notebook, in which nobody has written anything: all pieces are the library's.
"""

# %% tags=["answer"]
mine = Mine({})
print(mine)

# %% tags=["yours"]
from minibert.course import kept

mine = kept()
print(mine)

# %% [markdown]
r"""
Every piece has the form that you know: the forward pass returns its output and a cache, and the backward pass takes the gradient of the
output and this cache. `mine.linear(x, weight, bias)` returns `y, cache`, and `mine.linear_backward(dout, cache)` returns
`dx, dweight, dbias`.

## 2. A model is a dictionary

A file of weights is a dictionary of arrays with long names. So is the model in this notebook: no classes, no modules, only
functions that look up their parameters by name. Here are those of `mini`, the model that comes with minibert, in float64.
"""

# %%
with contextlib.redirect_stderr(io.StringIO()):  # it says how long loading took
    library = BertForPreTraining.from_pretrained("mini", dtype="float64")
tokenizer = BertTokenizer.from_pretrained("mini")
parameters = {name: parameter.value.copy() for name, parameter in library.named_parameters()}

print(f"{len(parameters)} arrays, {sum(value.size for value in parameters.values()):,} numbers")
for name, value in parameters.items():
    if "layer." not in name or "layer.0." in name:
        print(f"{name:<62} {value.shape}")

# %% [markdown]
r"""
Sixteen names repeat for each of the four layers. A helper takes the parameters of one part, and shortens their names by the prefix:
"""


# %%
def inside(parameters, prefix):
    """The parameters whose names begin with the prefix; it is removed from their names."""
    return {
        name.removeprefix(prefix): value
        for name, value in parameters.items()
        if name.startswith(prefix)
    }


print(*inside(parameters, "bert.encoder.layer.3."), sep="\n")

# %% [markdown]
r"""
A linear map has a weight and a bias, and so has a LayerNorm. Four short functions look up both, and give their gradients
the same names. All that follows is written with them.

Gradients are returned as **dictionaries with the names of the parameters**. That is all the book-keeping that is needed: a backward
pass merges the dictionaries of its parts.
"""

# %%
EPS = 1e-12  # of all LayerNorms in BERT
IGNORED = -100  # the label of a position that is not predicted


def dense(x, p, name):
    """The linear map of this name: x (…, K) → y (…, N), cache."""
    return mine.linear(x, p[f"{name}.weight"], p[f"{name}.bias"])


def dense_backward(dout, cache, name):
    """dx (…, K), and the two gradients under their names."""
    dx, dweight, dbias = mine.linear_backward(dout, cache)
    return dx, {f"{name}.weight": dweight, f"{name}.bias": dbias}


def norm(x, p, name):
    """The LayerNorm of this name: x (…, H) → y (…, H), cache."""
    return mine.layer_norm(x, p[f"{name}.weight"], p[f"{name}.bias"], EPS)


def norm_backward(dout, cache, name):
    """dx (…, H), and the two gradients under their names."""
    dx, dweight, dbias = mine.layer_norm_backward(dout, cache)
    return dx, {f"{name}.weight": dweight, f"{name}.bias": dbias}


# %% [markdown]
r"""
## 3. The embeddings

@exercise 20.embed_gradients

The embedding of a token is the sum of three rows, normalised. `p` has `word_embeddings.weight` (V, H), `position_embeddings.weight` (at least S, H),
`token_type_embeddings.weight` (2, H), and the two parameters of `LayerNorm`. Use `mine.embedding` for what is
looked up by an id. Positions need no ids: token number s takes row s.

What goes into the cache is up to you: whatever your backward pass needs. `both` combines the two functions into one for `check`.
"""


# %% tags=["solution"]
def embed(p, input_ids, token_type_ids):
    """The three tables added and normalised: ids (B, S) → y (B, S, H), cache."""
    words, word_cache = mine.embedding(p["word_embeddings.weight"], input_ids)
    types, type_cache = mine.embedding(p["token_type_embeddings.weight"], token_type_ids)
    positions = p["position_embeddings.weight"]
    y, norm_cache = norm(words + types + positions[: input_ids.shape[1]], p, "LayerNorm")
    return y, (word_cache, type_cache, positions, norm_cache)


def embed_backward(dout, cache):
    """The gradients of the three tables and of the LayerNorm, a dictionary by their names."""
    word_cache, type_cache, positions, norm_cache = cache
    dtotal, gradients = norm_backward(dout, norm_cache, "LayerNorm")
    dpositions = np.zeros_like(positions)
    dpositions[: dout.shape[1]] = dtotal.sum(axis=0)  # every sequence used row s once
    gradients["word_embeddings.weight"] = mine.embedding_backward(dtotal, word_cache)
    gradients["token_type_embeddings.weight"] = mine.embedding_backward(dtotal, type_cache)
    gradients["position_embeddings.weight"] = dpositions
    return gradients


# %%
check("20.embed_gradients", both(embed, embed_backward))

# %% [markdown]
r"""
## 4. Attention with all heads

@exercise 20.self_attention_gradients

Your attention of [08](08_attention.ipynb) takes one head and any number of sequences: q, k and v are (B, S, D), and the bias is (B, 1, S). BERT
has A heads. You could write it anew with one more axis, as the library does. But nothing new is needed if you
look at a head in the right way. (`p` has `query.weight`, `query.bias` and so on.)

`check` does not compare the gradient of `key.bias`. Why is there nothing to compare? One of the questions at the end asks
for the reason.
"""

# %% [markdown] tags=["derivation"]
r"""
The heads do not interact. For attention, a head is *one more sequence*: (B, A, S, D) is reshaped to (B·A, S, D). The
bias of a sequence serves all of its heads, so it is repeated A times, with the copies next to each other.

In the backward pass, a reshape undoes a reshape, and `split_heads` undoes `merge_heads`
([09](09_many_heads.ipynb)). The hidden states went through three linear maps, so three gradients come back and add up.
"""


# %% tags=["solution"]
def self_attention(hidden, p, bias, num_heads):
    """Attention of all heads: hidden (B, S, H), bias (B, 1, S) → y (B, S, H), cache."""
    heads, caches = [], []
    for name in ("query", "key", "value"):
        projected, cache = dense(hidden, p, name)
        split = mine.split_heads(projected, num_heads)  # (B, A, S, D)
        heads.append(split.reshape(-1, *split.shape[2:]))  # (B·A, S, D)
        caches.append(cache)
    y, cache = mine.attention(*heads, bias.repeat(num_heads, axis=0))
    return mine.merge_heads(y.reshape(split.shape)), (caches, cache, split.shape)


def self_attention_backward(dout, cache):
    """dhidden (B, S, H), and the gradients of the three linear maps by their names."""
    caches, attention_cache, shape = cache
    dy = mine.split_heads(dout, shape[1]).reshape(-1, *shape[2:])  # (B·A, S, D)
    dheads = mine.attention_backward(dy, attention_cache)
    dhidden, gradients = np.zeros_like(dout), {}
    for name, dhead, linear_cache in zip(("query", "key", "value"), dheads, caches, strict=True):
        dprojected = mine.merge_heads(dhead.reshape(shape))
        dx, more = dense_backward(dprojected, linear_cache, name)
        dhidden = dhidden + dx
        gradients |= more
    return dhidden, gradients


# %%
check("20.self_attention_gradients", both(self_attention, self_attention_backward))

# %% [markdown]
r"""
## 5. A layer

@exercise 20.layer_gradients

A layer has two halves, and both end in the same way: add the input of the half, then normalise. The names in `p` are
`attention.self.…` (three maps), `attention.output.dense`, `attention.output.LayerNorm`, `intermediate.dense`, `output.dense` and
`output.LayerNorm`.

Write each half as a pair of functions of its own. Then the layer takes only four calls: two forward passes and two backward passes.
"""


# %% tags=["solution"]
def attention_half(hidden, p, bias, num_heads):
    """norm(hidden + attention's output): hidden (B, S, H) → y (B, S, H), cache."""
    attended, attention_cache = self_attention(
        hidden, inside(p, "attention.self."), bias, num_heads
    )
    projected, dense_cache = dense(attended, p, "attention.output.dense")
    y, norm_cache = norm(hidden + projected, p, "attention.output.LayerNorm")
    return y, (attention_cache, dense_cache, norm_cache)


def attention_half_backward(dout, cache):
    """dhidden (B, S, H), and the gradients by their names."""
    attention_cache, dense_cache, norm_cache = cache
    dsum, gradients = norm_backward(dout, norm_cache, "attention.output.LayerNorm")
    dattended, more = dense_backward(dsum, dense_cache, "attention.output.dense")
    dhidden, inner = self_attention_backward(dattended, attention_cache)
    inner = {f"attention.self.{name}": gradient for name, gradient in inner.items()}
    return dhidden + dsum, gradients | more | inner  # a sum passes its gradient to both terms


def feed_forward_half(hidden, p):
    """norm(hidden + the feed-forward network's output): hidden (B, S, H) → y (B, S, H), cache."""
    wide, up_cache = dense(hidden, p, "intermediate.dense")  # (B, S, F)
    active, gelu_cache = mine.gelu(wide)
    narrow, down_cache = dense(active, p, "output.dense")  # (B, S, H)
    y, norm_cache = norm(hidden + narrow, p, "output.LayerNorm")
    return y, (up_cache, gelu_cache, down_cache, norm_cache)


def feed_forward_half_backward(dout, cache):
    """dhidden (B, S, H), and the gradients by their names."""
    up_cache, gelu_cache, down_cache, norm_cache = cache
    dsum, gradients = norm_backward(dout, norm_cache, "output.LayerNorm")
    dactive, down = dense_backward(dsum, down_cache, "output.dense")
    dwide = mine.gelu_backward(dactive, gelu_cache)
    dhidden, up = dense_backward(dwide, up_cache, "intermediate.dense")
    return dhidden + dsum, gradients | down | up


def layer(hidden, p, bias, num_heads):
    """One layer of the encoder: hidden (B, S, H) → y (B, S, H), cache."""
    middle, first_cache = attention_half(hidden, p, bias, num_heads)
    y, second_cache = feed_forward_half(middle, p)
    return y, (first_cache, second_cache)


def layer_backward(dout, cache):
    """dhidden (B, S, H), and the gradients of the layer by their names."""
    first_cache, second_cache = cache
    dmiddle, second = feed_forward_half_backward(dout, second_cache)
    dhidden, first = attention_half_backward(dmiddle, first_cache)
    return dhidden, first | second


# %%
check("20.layer_gradients", both(layer, layer_backward))

# %% [markdown]
r"""
## 6. The two heads

@exercise 20.masked_words_gradients

The first head guesses the masked words. It takes the hidden states of the P positions whose label is not −100, and sends
them through `cls.predictions.transform.dense`, GELU, and `cls.predictions.transform.LayerNorm`. Then it compares each with
every word, by a linear map whose weight is the **table of word embeddings**, with a bias of its own, `cls.predictions.bias`. The
loss is the mean cross-entropy of the P guesses.
"""

# %%
WORDS = "bert.embeddings.word_embeddings.weight"


# %% tags=["solution"]
def masked_words(hidden, p, labels):
    """The mean loss of the masked words, and a cache: hidden (B, S, H), labels (B, S), −100 for no label."""
    chosen = labels != IGNORED
    rows = hidden[chosen]  # (P, H): only these positions are scored
    active, dense_cache = dense(rows, p, "cls.predictions.transform.dense")
    active, gelu_cache = mine.gelu(active)
    active, norm_cache = norm(active, p, "cls.predictions.transform.LayerNorm")
    logits, decoder_cache = mine.linear(active, p[WORDS], p["cls.predictions.bias"])  # (P, V)
    count = chosen.sum()
    weights = np.ones(count, dtype=hidden.dtype)
    loss, loss_cache = mine.cross_entropy(logits, labels[chosen], weights, count)
    caches = dense_cache, gelu_cache, norm_cache, decoder_cache, loss_cache
    return loss, (hidden.shape, chosen, caches)


def masked_words_backward(dloss, cache):
    """dhidden (B, S, H), zero where nothing was predicted, and the gradients by their names."""
    shape, chosen, (dense_cache, gelu_cache, norm_cache, decoder_cache, loss_cache) = cache
    dlogits = mine.cross_entropy_backward(dloss, loss_cache)
    dactive, dwords, dbias = mine.linear_backward(dlogits, decoder_cache)
    gradients = {WORDS: dwords, "cls.predictions.bias": dbias}
    dactive, inner = norm_backward(dactive, norm_cache, "cls.predictions.transform.LayerNorm")
    dactive = mine.gelu_backward(dactive, gelu_cache)
    drows, outer = dense_backward(dactive, dense_cache, "cls.predictions.transform.dense")
    dhidden = np.zeros(shape, dtype=drows.dtype)
    dhidden[chosen] = drows
    return dhidden, gradients | inner | outer


# %%
check("20.masked_words_gradients", both(masked_words, masked_words_backward))

# %% [markdown]
r"""
@exercise 20.next_sentence_gradients

The second head looks at `[CLS]` alone, and says whether the second text follows the first: `bert.pooler.dense`, tanh, and
`cls.seq_relationship` with two outputs. The tanh is the only function in this notebook that you have not written yet.
"""


# %% tags=["solution"]
def next_sentence(hidden, p, labels):
    """The mean loss of the sentence pairs, and a cache: hidden (B, S, H), labels (B,), 0 or 1."""
    projected, pooler_cache = dense(hidden[:, 0], p, "bert.pooler.dense")  # (B, H)
    pooled = np.tanh(projected)
    logits, head_cache = dense(pooled, p, "cls.seq_relationship")  # (B, 2)
    weights = np.ones(len(labels), dtype=hidden.dtype)
    loss, loss_cache = mine.cross_entropy(logits, labels, weights, len(labels))
    return loss, (hidden.shape, pooled, pooler_cache, head_cache, loss_cache)


def next_sentence_backward(dloss, cache):
    """dhidden (B, S, H), zero but for the first tokens, and the gradients by their names."""
    shape, pooled, pooler_cache, head_cache, loss_cache = cache
    dlogits = mine.cross_entropy_backward(dloss, loss_cache)
    dpooled, head = dense_backward(dlogits, head_cache, "cls.seq_relationship")
    dfirst, pooler = dense_backward(dpooled * (1 - pooled**2), pooler_cache, "bert.pooler.dense")
    dhidden = np.zeros(shape, dtype=dfirst.dtype)
    dhidden[:, 0] = dfirst
    return dhidden, head | pooler


# %%
check("20.next_sentence_gradients", both(next_sentence, next_sentence_backward))

# %% [markdown]
r"""
## 7. All of it

@exercise 20.bert_gradients

Now you only have to call the parts in order. In the forward pass these are the embeddings, all layers, and both heads. In the backward pass they come in the
opposite order, until every parameter has its gradient. Two things were used twice on the way. Their gradients add up.

`batch` has `input_ids`, `token_type_ids` and `attention_mask` (B, S), `labels` (B, S) and `next_sentence_label` (B,). The bias of attention is 0 where the mask is 1 and −10000 where it is 0, as in [08](08_attention.ipynb). Return
two dictionaries. The first holds the values of the forward pass in their order: `"embeddings"`, `"encoder.layer.0"` and so on,
`"mlm_loss"`, `"nsp_loss"`. The second holds the gradients of the sum of both losses. The rows of `check` are in the order of
the computation, so look at the first one that fails.
"""


# %% tags=["solution"]
def loss_and_gradients(parameters, batch, num_heads):
    """The values of the forward pass in order, and the gradients of the loss, both by name."""
    embeddings = inside(parameters, "bert.embeddings.")
    hidden, embed_cache = embed(embeddings, batch["input_ids"], batch["token_type_ids"])
    values = {"embeddings": hidden}
    bias = ((1 - batch["attention_mask"]) * -10000.0)[:, None, :].astype(hidden.dtype)  # (B, 1, S)
    caches = []
    while p := inside(parameters, f"bert.encoder.layer.{len(caches)}."):
        hidden, cache = layer(hidden, p, bias, num_heads)
        values[f"encoder.layer.{len(caches)}"] = hidden
        caches.append(cache)
    mlm_loss, mlm_cache = masked_words(hidden, parameters, batch["labels"])
    nsp_loss, nsp_cache = next_sentence(hidden, parameters, batch["next_sentence_label"])
    values |= {"mlm_loss": mlm_loss, "nsp_loss": nsp_loss}

    dhidden, gradients = next_sentence_backward(1.0, nsp_cache)
    dmasked, more = masked_words_backward(1.0, mlm_cache)
    dhidden, gradients = dhidden + dmasked, gradients | more  # both heads read the same states
    for i in reversed(range(len(caches))):
        dhidden, more = layer_backward(dhidden, caches[i])
        gradients |= {f"bert.encoder.layer.{i}.{name}": gradient for name, gradient in more.items()}
    more = embed_backward(dhidden, embed_cache)
    more["word_embeddings.weight"] = more["word_embeddings.weight"] + gradients[WORDS]  # tied
    return values, gradients | {
        f"bert.embeddings.{name}": gradient for name, gradient in more.items()
    }


# %%
check("20.bert_gradients", loss_and_gradients)

# %% [markdown]
r"""
## 8. Real weights, number by number

That was a model of random numbers with two layers and six features. Now comes `mini`, with four layers, 256 features and more than five million
parameters. The text is Python's own documentation, on which `mini` was not
trained. Your model and the library's process the same batch in float64, and we compare each of their values and gradients.
"""

# %%
texts = [prose_sentences(text) for text in topics.values()]
texts = [text for text in texts if len(text) >= 4]


def documents(texts, tokenizer):
    """The texts as the library stores them: all tokens in one array, and where sentences and texts begin."""
    ids = [tokenizer.token_ids_batch(text) for text in texts]
    lengths = [len(sentence) for text in ids for sentence in text]
    return Documents(
        tokens=np.array([token for text in ids for sentence in text for token in sentence]),
        sentence_starts=np.cumsum([0, *lengths]),
        document_starts=np.cumsum([0, *map(len, ids)]),
        chosen=np.arange(len(ids)),
    )


INSTANCES = InstanceSettings(max_seq_length=64)
batch = next(BatchStream(documents(texts, tokenizer), tokenizer, INSTANCES, batch_size=8))
print({name: array.shape for name, array in batch.items()})
print(" ".join(tokenizer.tokens[i] for i in batch["input_ids"][0, :24]))


# %%
def relative_error(a, b):
    """‖a − b‖ / (‖a‖ + ‖b‖), and 0 for two zeros."""
    size = np.linalg.norm(a) + np.linalg.norm(b)
    return np.linalg.norm(a - b) / size if size else 0.0


def differences(yours, theirs):
    """The relative error of each value, in order; without the gradients of key.bias, which are 0."""
    return {
        name: relative_error(np.asarray(value), np.asarray(theirs[name]))
        for name, value in yours.items()
        if not name.endswith("key.bias")
    }


# %% tags=["answer"]
values, gradients = loss_and_gradients(parameters, batch, num_heads=4)
expected_values, expected_gradients = library_values(library, batch)
of_values = differences(values, expected_values)
of_gradients = differences(gradients, expected_gradients)
for name, error in of_values.items():
    print(f"{name:<18} {error:.1e}")
print(f"{len(of_gradients)} gradients, the largest relative error {max(of_gradients.values()):.1e}")
assert max(of_values.values()) < 1e-12 and max(of_gradients.values()) < 1e-10

# %% [markdown] tags=["yours"]
r"""
If you have not finished the exercises above, this cell says what is missing and goes on.
"""

# %% tags=["yours"]
try:
    values, gradients = loss_and_gradients(parameters, batch, num_heads=4)
    expected_values, expected_gradients = library_values(library, batch)
    of_values = differences(values, expected_values)
    of_gradients = differences(gradients, expected_gradients)
    for name, error in (of_values | of_gradients).items():
        if error > 1e-10:
            print(f"the first difference: {name}, relative error {error:.1e}")
            break
    else:
        print(
            f"equal: the largest relative error is {max((of_values | of_gradients).values()):.1e}"
        )
except NotImplementedError:
    print("something above is not written yet")

# %% tags=["answer", "figure"]
# Caption: How far each value of this BERT is from the library's: the forward pass, then the
#   gradients. The dashed line is the rounding error of a float64.
errors = {**of_values, **of_gradients}
figure, axes = plt.subplots(figsize=(7.5, 3.2))
steps = np.arange(len(errors))
forward = len(of_values)
axes.semilogy(steps[:forward], [max(e, 1e-17) for e in of_values.values()], "o", color=plots.BLUE)
axes.semilogy(
    steps[forward:], [max(e, 1e-17) for e in of_gradients.values()], ".", color=plots.VERMILION
)
axes.axhline(2.2e-16, color=plots.GREY, linestyle="--", linewidth=1.2)
axes.text(len(errors) - 1, 6e-16, "rounding of one float64", ha="right", fontsize=9.5)
axes.text(0, 1e-12, "forward", color=plots.BLUE, fontsize=9.5)
axes.text(14, 1.5e-17, "equal in every bit (drawn at 1e-17)", fontsize=9.5)
axes.text(
    forward + 8,
    1e-12,
    "backward, from the heads to the embeddings",
    color=plots.VERMILION,
    fontsize=9.5,
)
axes.set(
    title="this notebook's BERT against the library's",
    xlabel="value, in the order of the computation",
    ylabel="relative error",
    ylim=(5e-18, 1e-11),
)
plt.show()

# %% [markdown] tags=["answer"]
r"""
The forward pass is equal to the last bit, because here all pieces are the library's. In the backward pass a few sums are taken in
another order, so the last digit differs. With functions of your own, the forward pass differs in the last digits, too. Anything above
$10^{-12}$ in a value, or $10^{-10}$ in a gradient, would be a mistake. The library itself agrees with `transformers` to the same precision
([27](27_parity.ipynb#3.-Is-it-the-same-model?)), so this BERT does, too.

## 9. In the library's place
"""

# %% [markdown] tags=["yours"]
r"""
## 9. In the library's place
"""

# %% [markdown]
r"""
There is a second way to use the pieces. The library has a table with one entry per operation, and for each a faster implementation can be
registered. So can yours. Within `mine.in_the_library()`, the library's classes, its trainer and its explorer call
your pieces: `BertLayer` does not know whose matrix product it calls. What the library fuses into one operation, such as a linear map
with its GELU, is put together from two pieces
([course/assembly.py](../minibert/course/assembly.py)).
"""

# %%
calls = []
linear, linear_backward = mine.linear, mine.linear_backward


def counted_linear(x, weight, bias):
    """The piece, which also notes that it was called."""
    calls.append("forward")
    return linear(x, weight, bias)


def counted_linear_backward(dout, cache):
    """The piece, which also notes that it was called."""
    calls.append("backward")
    return linear_backward(dout, cache)


counted = Mine(mine.yours | {"linear": counted_linear, "linear_backward": counted_linear_backward})
with counted.in_the_library():
    there_values, there_gradients = library_values(library, batch)
plain_values, plain_gradients = library_values(library, batch)
error = max(differences(there_gradients, plain_gradients).values())
print(f"{calls.count('forward')} calls of linear, {calls.count('backward')} of linear_backward")
print(f"largest relative error of a gradient: {error:.1e}")
assert error < 1e-10 and calls.count("forward") == calls.count("backward") > 0

# %% [markdown]
r"""
So the explorer can show a sentence as *your* functions see it. The next cell writes the page of one sentence into a file that needs no
server. Open it in a browser: every number on it was computed with the pieces, in the forward and in the backward pass. (Only the view inside
attention uses the library's own functions, because it has to stop after each step.)
"""

# %%
SENTENCE = "the capital of france is [MASK] ."
with contextlib.redirect_stderr(io.StringIO()), mine.in_the_library():
    html = page(open_subject("mini"), "mini", [(SENTENCE, None)])
folder = Path("my_bert") if Path("my_bert").exists() else Path(tempfile.mkdtemp())
(folder / "page.html").write_text(html, encoding="utf-8")
print(f"page.html: {len(html.encode()) / 1e6:.1f} MB")

# %% [markdown]
r"""
## 10. The training loop

@exercise 20.train_bert

A BERT that somebody else has trained is not yet your own. A training step is short. Compute the loss and the gradients. Compute the norm of all
gradients together, and divide them by it if it is above 1. Compute the learning rate of this step. Then take Adam's step for every
parameter. Matrices have a weight decay of 0.01, vectors have none. β₁ = 0.9, β₂ = 0.999, ε = 10⁻⁶.

`batches` may be endless: take `steps` of them.
"""


# %% tags=["solution"]
def train(parameters, batches, num_heads, steps, peak, warmup):
    """Train for this many steps, with a batch for each → the losses (steps,), and the new parameters by name."""
    means = {name: np.zeros_like(value) for name, value in parameters.items()}
    variances = {name: np.zeros_like(value) for name, value in parameters.items()}
    parameters, losses = dict(parameters), []
    for step, batch in zip(range(steps), batches, strict=False):
        values, gradients = loss_and_gradients(parameters, batch, num_heads)
        losses.append(values["mlm_loss"] + values["nsp_loss"])
        length = np.sqrt(sum((gradient**2).sum() for gradient in gradients.values()))
        clip = 1.0 / max(length, 1.0)
        rate = mine.learning_rate(step, steps, warmup, peak)
        for name, value in parameters.items():
            decay = 0.01 if value.ndim > 1 else 0.0
            state = value, clip * gradients[name], means[name], variances[name]
            new = mine.adamw_step(*state, step, rate, 0.9, 0.999, 1e-6, decay)
            parameters[name], means[name], variances[name] = new
    return np.array(losses), parameters


# %%
check("20.train_bert", train)

# %% [markdown]
r"""
## 11. A minute of training

We train a tiny BERT, with two layers of 64 features, on Python's language reference, 32 tokens at a time. One topic in eight is held
out. The vocabulary is learned from the text. The weights begin at random, with two exceptions: the positions begin as sine waves
([06](06_embeddings.ipynb)), and the bias of the decoder begins as the logarithm of each word's frequency. So the model starts near the line of guessing by
frequency ([14](14_pretraining.ipynb#4.-The-line-of-guessing-by-frequency)), and a minute is enough to get well below it.
"""

# %%
tiny_tokenizer = BertTokenizer.train((sentence for text in texts for sentence in text), 1024)
everything = documents(texts, tiny_tokenizer)
is_held_out = everything.chosen % 8 == 7
training = replace(everything, chosen=everything.chosen[~is_held_out])
held_out = replace(everything, chosen=everything.chosen[is_held_out])

V = tiny_tokenizer.vocab_size
CONFIG = BertConfig(
    vocab_size=V,
    hidden_size=64,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=256,
    max_position_embeddings=32,
    initializer_range=0.05,
    position_initializer="sinusoidal",
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)
random_model = BertForPreTraining(CONFIG, seed=1)  # only to draw the first weights, in float32
begin = {name: parameter.value.copy() for name, parameter in random_model.named_parameters()}
counts = training.token_counts(V)
frequency = (counts + 1) / (counts.sum() + V)
begin["cls.predictions.bias"] = np.log(frequency).astype(np.float32)
print(f"V = {V:,}; {sum(value.size for value in begin.values()):,} parameters")

# %%
STEPS = 1000
RATE = 1.5e-3
SHORT = InstanceSettings(max_seq_length=32)
stream = BatchStream(training, tiny_tokenizer, SHORT, batch_size=16)
test_batches = list(held_out_batches(held_out, tiny_tokenizer, SHORT, batch_size=16))[:16]
test_labels = np.concatenate([batch["labels"].ravel() for batch in test_batches])
baseline, _ = unigram_plateau(counts, test_labels[test_labels != IGNORED])
print(f"guessing by frequency costs {baseline:.2f} nats per masked word")


def held_out_loss(parameters):
    """The mean loss of the masked words on the topics that were held out."""
    losses = [loss_and_gradients(parameters, batch, 2)[0]["mlm_loss"] for batch in test_batches]
    return float(np.mean(losses))


# %% tags=["answer"]
losses, trained = train(begin, stream, 2, STEPS, RATE, warmup=100)
before, after = held_out_loss(begin), held_out_loss(trained)
print(f"held out: {before:.2f} before, {after:.2f} after {STEPS} steps; frequency {baseline:.2f}")
assert after < baseline - 0.4

# %% tags=["yours"]
try:
    start = time.perf_counter()
    losses, trained = train(begin, stream, 2, STEPS, RATE, warmup=100)
    print(f"{STEPS} steps in {time.perf_counter() - start:.0f} s")
    print(f"held out: {held_out_loss(begin):.2f} before, {held_out_loss(trained):.2f} after")
except NotImplementedError:
    losses, trained = np.full(STEPS, np.nan), begin
    print("something above is not written yet, so the weights stay as they began")

# %% tags=["figure"]
# Caption: Your functions learn: the loss over a minute of training, next to a baseline that needs no
#   model.
figure, axes = plt.subplots(figsize=(7.5, 3.1))
axes.plot(losses, color=plots.SKY, linewidth=0.8)
if np.isfinite(losses).all():
    smooth = np.convolve(losses, np.ones(25) / 25, mode="valid")
    axes.plot(np.arange(len(smooth)) + 12, smooth, color=plots.BLUE)
# Both heads guessing by frequency, on the topics that the curve is of: those to train on.
line = np.log(2) - (counts / counts.sum() * np.log(frequency)).sum()
axes.axhline(line, color="black", linestyle="--", linewidth=1.2)
axes.text(STEPS, line + 0.06, "frequency of words + ln 2", ha="right", fontsize=9.5)
axes.set(
    title="a BERT from scratch", xlabel="step", ylabel="loss (nats), both heads", xlim=(0, STEPS)
)
plt.show()


# %% [markdown]
r"""
What does the model say now? The hidden states of the last layer are among the values. The head turns those at `[MASK]` into guesses.
"""


# %%
def guesses(parameters, sentence, tokenizer, num_heads, count=5):
    """The most probable words at [MASK], with their probabilities."""
    encoded = tokenizer(sentence)
    batch = {name: np.array([encoded[name]]) for name in ("input_ids", "token_type_ids")}
    batch["attention_mask"] = np.ones_like(batch["input_ids"])
    at_mask = batch["input_ids"] == tokenizer.mask_id
    batch["labels"] = np.where(at_mask, 0, IGNORED)
    batch["next_sentence_label"] = np.array([0])
    values, _ = loss_and_gradients(parameters, batch, num_heads)
    last = list(values)[-3]  # the last layer; the two losses come after it
    rows, p = values[last][at_mask], parameters
    active = mine.gelu(dense(rows, p, "cls.predictions.transform.dense")[0])[0]
    active = norm(active, p, "cls.predictions.transform.LayerNorm")[0]
    logits = mine.linear(active, p[WORDS], p["cls.predictions.bias"])[0]
    probabilities = softmax(logits)[0][0]
    best = np.argsort(-probabilities)[:count]
    return "  ".join(f"{tokenizer.tokens[i]} {probabilities[i]:.0%}" for i in best)


QUESTIONS = (
    "the value of the expression [MASK] evaluated first .",
    "if the class does not [MASK] the method , an exception is raised .",
)

# %% tags=["answer"]
for question in QUESTIONS:
    print(question)
    print("   at the beginning:", guesses(begin, question, tiny_tokenizer, 2))
    print("   after training:  ", guesses(trained, question, tiny_tokenizer, 2))
    print("   mini:            ", guesses(parameters, question, tokenizer, 4))

# %% tags=["yours"]
try:
    for question in QUESTIONS:
        print(question)
        print("   at the beginning:", guesses(begin, question, tiny_tokenizer, 2))
        print("   after training:  ", guesses(trained, question, tiny_tokenizer, 2))
        print("   mini:            ", guesses(parameters, question, tokenizer, 4))
except NotImplementedError:
    print("something above is not written yet")

# %% [markdown]
r"""
It took a minute or less on one core, with 177,410 parameters, and the loss is well below that of guessing by frequency. But look at the guesses: at a gap the model
still says little more than "a frequent word". What it has learned first is to read what is visible at a chosen position, and to use its neighbours
a little ([14](14_pretraining.ipynb) takes this apart). The third line shows what the same functions say with thirty times as many
parameters. These were trained on far more text and by another optimiser, for three minutes on a large GPU and a quarter of an hour on two cores.

## What you have built

- The **forward and backward pass** of a BERT as functions on dictionaries, equal to the library's in every value and gradient.
- A **training loop** with the original schedule, clipping and AdamW without bias correction.
- Pieces that **run in the library**: its models, its trainer, its explorer.

The library has three things that your BERT does not: dropout, other heads, and speed. Its kernels compute several pieces in one pass over memory, on
several threads or on a GPU ([17](17_numpy_to_cupy.ipynb)). Each is tested against the plain functions that you have written.

## What usually goes wrong

- **A gradient is overwritten instead of added.** Whatever was used more than once gets more than one gradient: the hidden states at every residual
  connection and below both heads, the table of words, and the common input of q, k and v.
- **The merge of two dictionaries hides it.** `a | b` takes the second value where a name is in both. The tied table has such
  a name.
- **Caches of another layer.** The backward pass of layer 3 with the cache of layer 2 has the right shapes and the wrong numbers.
- **float64 slips in.** `np.zeros(shape)` is float64, and so are an array made from a list of Python floats, and an attention mask of integers times
  −10000.0. One such array makes everything after it twice as slow.

## Three questions

Answer before you unfold.
"""

# %% [markdown]
r"""
<details>
<summary><b>1.</b> Why is the gradient of <code>key.bias</code> always zero?</summary>

The bias $b$ of the keys adds $q_i \cdot b$ to *all* scores of query $i$. The softmax does not change if the same number is added to
a whole row, so the loss does not depend on $b$. What you see there, some $10^{-17}$, is rounding. (BERT checkpoints have this
bias all the same. Adam divides a gradient by its own size plus ε = $10^{-6}$, so these numbers move nothing. With fewer
digits, rounding errors are as large as ε, and then they do: the biases of `mini`'s keys are not 0.)

</details>
"""

# %% [markdown]
r"""
<details>
<summary><b>2.</b> Which of your functions would change for a model with the norm before each sublayer?</summary>

The two halves and their backward passes: they become $y = x + f(\mathrm{norm}(x))$. The gradient of the sum then goes past the norm unchanged. There is also one
more norm, after the last layer. All pieces stay as they are.

</details>
"""

# %% [markdown]
r"""
<details>
<summary><b>3.</b> <code>loss_and_gradients</code> keeps every cache until the backward pass has used it. Which are the largest, and what could you
do about them?</summary>

For long texts, they are the attention probabilities, B·A·S·S numbers per layer. For short ones, they are the (B, S, F) arrays of the feed-forward
half, which are kept twice: before and after the GELU. They can be computed again in the backward pass: `BertEncoder.recompute`
keeps only the input of each layer, for a third more work.

</details>
"""

# %% [markdown]
r"""
## Further reading

- Devlin and others, [BERT](https://arxiv.org/abs/1810.04805), 2018: you can now read every sentence of it; appendix A has the details of pre-training.
- Google Research, [the original code of BERT](https://github.com/google-research/bert), 2018: compare `modeling.py` with your functions.
- Rogers, Kovaleva and Rumshisky, [A primer in BERTology](https://arxiv.org/abs/2002.12327), 2020: what is known about how BERT works.
- Liu and others, [RoBERTa](https://arxiv.org/abs/1907.11692), 2019: the same model, trained with more care.
- Izsak, Berchansky and Levy, [How to train BERT with an academic budget](https://arxiv.org/abs/2104.07705), 2021: a day on one machine with eight GPUs.
- Geiping and Goldstein, [Cramming](https://arxiv.org/abs/2212.14034), 2022: how far a BERT gets in one day on one GPU.

**You have a BERT of your own.** From here: [the documentation](../docs/README.md), [the explorer](../docs/explore.md), and
the code itself, which you have now written once.

**Next:** [21 · Where BERT comes from](21_where_bert_comes_from.ipynb), the first of five notebooks about its history, its evidence and
its successors.
"""
