# %% [markdown]
r"""
# 16 · Looking inside

A trained BERT is a few million numbers, and none of them has a name. This notebook opens one, the model that comes with
minibert, and asks what its heads look at, what each layer knows, and which words a prediction depends on. Every answer
is then **tested by changing something**, because pictures of a network convince too easily.

**You will** draw the attention of every head · find positional heads and flatten them · read a prediction off every
layer · see a word split into two meanings · follow a gradient down to the words · measure how well attention tells what matters.

**Before this:** [05 · LayerNorm](05_layer_norm.ipynb), [08 · Attention](08_attention.ipynb), [10 · The encoder](10_encoder.ipynb).
**Time:** 70 minutes with the exercise; it runs in seconds.

| letter | in this notebook |
|---|---|
| `B`, `S` | sequences in a batch, tokens in a sequence |
| `H`, `A`, `D` | hidden size, heads, and `D` = `H`/`A` |
| `L`, `V` | layers, words in the vocabulary |
| $x^{(l)}$ | the state of every token that goes into layer $l$; $x^{(0)}$ are the embeddings, $x^{(L)}$ is what the heads on top read |
"""

# %%
from itertools import islice

import matplotlib.pyplot as plt
import numpy as np

from minibert import BertForPreTraining, BertTokenizer, check, plots
from minibert.course.exercises.n16_looking_inside import offset_score
from minibert.data.docstrings import read_docstrings
from minibert.data.embedded import installed_modules
from minibert.data.prose import prose_sentences
from minibert.explore import view
from minibert.nn import Context, Observer
from minibert.ops.attention import attention_bias, attention_scores
from minibert.ops.layer_normalisation import layer_norm, layer_norm_backward
from minibert.ops.stable_softmax import softmax

plots.notebook_style()
np.set_printoptions(precision=2, suppress=True)
rng = np.random.default_rng(16)

# %% [markdown]
r"""
## 1. What comes out of each layer

Our material is 64 sentences. Each contains one of eight words with two meanings (for section 6).
"""

# %%
TEXT = """
rose 1: she picked a red rose in the garden / a white rose stood in a glass on the table
rose 1: he gave her a rose for her birthday / the smell of the rose filled the room
rose 2: the old man rose and left the room / the sun rose over the hills
rose 2: he rose early and went to work / prices rose again in the autumn
left 1: turn left at the church / he raised his left hand
left 1: the house on the left is ours / his left leg was broken in the fall
left 2: she left the house at noon / they left before the rain came
left 2: he left his country in 1920 / the train left without us
may 1: the war ended in may 1945 / she was born on 4 may 1890
may 1: in may the garden is full of flowers / the game was played in may
may 2: you may go home now / it may rain before the night
may 2: this may be the last time / he may have lost his way
mine 1: the men went down into the mine / a coal mine was opened near the town
mine 1: he worked in the mine for ten years / gold was found in the old mine
mine 2: that book is mine / a friend of mine lives there
mine 2: his hand touched mine / your house is larger than mine
bank 1: he sat on the bank of the river / the boat was tied to the bank
bank 1: trees grew along the bank / they camped on the left bank of the river
bank 2: she put the money in the bank / the bank lent him a large sum
bank 2: he worked as a clerk in a bank / the bank was closed in the crisis
match 1: they won the match by two goals / the match was played in london
match 1: he scored in his first match for the club / the final match ended in a draw
match 2: he struck a match and lit the lamp / she held a match to the paper
match 2: the match burned his fingers / a match flared in the dark
light 1: the light of the lamp fell on her face / he turned off the light
light 1: the room was full of light / there was a light in the window
light 2: the box was light and easy to carry / she wore a light summer dress
light 2: a light rain was falling / he had a light breakfast
saw 1: he cut the wood with a saw / the saw is too old to cut well
saw 1: she bought a saw and a hammer / a saw lay on the table
saw 2: i saw him in the street / he saw a light in the window
saw 2: they saw that it was too late / she saw her brother again in 1920
"""
lines = [line.split(": ") for line in TEXT.strip().splitlines()]
pairs = [(name, sentence) for name, both in lines for sentence in both.split(" / ")]
sentences = [sentence + " ." for _, sentence in pairs]
ambiguous = np.array([name.split()[0] for name, _ in pairs])  # (B,) the word with two meanings
meaning = np.array([name.split()[1] for name, _ in pairs])  # (B,) "1" or "2"

# %% [markdown]
r"""
The model returns the states and attention maps of all layers, if it is asked to. An **observer** sees more: it is a function
that the forward pass calls with the name and the value of each step. From the queries and keys we can compute the maps again:
"""

# %%
model = BertForPreTraining.from_pretrained("mini", dtype="float64")  # so the references run
tokenizer = BertTokenizer.from_pretrained("mini")
layers, head = model.bert.encoder.layer, model.cls.predictions
L, A = len(layers), model.config.num_attention_heads

batch = tokenizer(sentences, padding=True)
ids, mask = np.array(batch["input_ids"]), np.array(batch["attention_mask"])  # (B, S)
B, S = ids.shape
outputs, _ = model.forward(
    ids,
    attention_mask=mask,
    return_logits=False,
    return_hidden_states=True,
    return_attentions=True,
)
states = np.stack(outputs.hidden_states)
maps = np.stack(outputs.attentions)
print(f"states {states.shape} = (L + 1, B, S, H)\nmaps   {maps.shape} = (L, B, A, S, S)")

# %%
values = {}


def keep(name, value):
    values[name] = value


model.forward(ids, attention_mask=mask, return_logits=False, context=Context(observer=keep))
for name, value in values.items():
    if "layer.0" in name:
        print(f"{name:<50} {value.shape}")

bias = attention_bias(mask, "float64")  # (B, 1, 1, S)
for i, layer in enumerate(layers):
    q, k = (values[f"bert.encoder.layer.{i}.attention.self.{part}"] for part in "qk")
    assert np.allclose(softmax(attention_scores(q, k, bias))[0], maps[i])
    assert np.allclose(layer.forward(states[i], bias)[0], states[i + 1])
assert np.allclose(maps.sum(axis=-1), 1)
print("maps and states are those of the layers; every row of a map sums to 1")

# %% [markdown]
r"""
## 2. Where do the heads look?

Here are all attention maps of one sentence. A row is the token that asks (the query), a column the one that is looked at (the
key). Look for **lines beside the diagonal** (a token looks at its neighbour), the **diagonal** (it looks at itself), and
**columns** (all look at the same token).
"""

# %%
shown = sentences.index("the sun rose over the hills .")
n = mask[shown].sum()
tokens = [tokenizer.tokens[i] for i in ids[shown, :n]]

# %% tags=["figure"]
# Caption: All attention maps of one sentence. A row is the token that looks, a column the one it looks
#   at; bright means a large weight. Titles in vermilion mark heads that give more than half of their
#   weight to the token before or after.
figure, axes = plt.subplots(L, A, figsize=(7.5, 7.6), sharex=True, sharey=True)
for i, row in enumerate(axes):
    for a, panel in enumerate(row):
        weights = maps[i, shown, a, :n, :n]
        plots.heatmap(panel, weights).set_clim(0, 1)
        panel.set_title(f"layer {i}, head {a}", fontsize=9.5)
        beside = {
            "before": np.diagonal(weights, -1).mean(),
            "after": np.diagonal(weights, 1).mean(),
        }
        if (side := max(beside, key=beside.get)) and beside[side] > 0.5:
            panel.set_title(f"layer {i}, head {a}: {side}", fontsize=9.5, color=plots.VERMILION)
        panel.set_xticks(range(n), tokens, rotation=90, fontsize=9)
        panel.set_yticks(range(n), tokens, fontsize=9)
figure.set_label(
    f"The attention maps of {L} layers of {A} heads for one sentence. A few heads in the lower layers have a bright "
    "line beside the diagonal: they look at the token before or after. A few above have a bright column at [CLS] or "
    "[SEP]. The others spread their weight"
)
plt.show()

# %% [markdown]
r"""
Here are the same maps as lines. Choose a layer, and point at a word on the left. (If nothing is shown, run the cell.)
"""

# %%
view(model.bert, "the sun rose over the hills .", tokenizer=tokenizer)

# %% [markdown]
r"""
One number says how widely a head looks: the exponential of the entropy of its row, the **effective number of tokens**. It is 1 if all
weight is on one token, and $n$ if $n$ tokens get the same weight.

$$ n_{\text{eff}} = \exp\Bigl( - \sum_j p_{ij} \ln p_{ij} \Bigr) $$
"""

# %%
entropy = -(maps * np.log(maps + 1e-300)).sum(axis=-1)  # (L, B, A, S)
mean_entropy = (entropy * mask[:, None]).sum(axis=(1, 3)) / mask.sum()  # (L, A), real queries only
width = np.exp(mean_entropy)
print(f"effective tokens (a sentence has {mask.sum() / B:.1f} on average), a row per layer")
print(width)
assert (width >= 1).all() and (width <= S).all()

# %% [markdown]
r"""
## 3. Your turn: find a positional head

@exercise 16.offset_score

A picture of one sentence is an anecdote. A head that looks at the token before must do so everywhere. Write its score: the mean weight
that a query $i$ gives to the key at $i + \text{offset}$, over all pairs of the batch in which **both tokens exist and are real**. `offset` −1 is the token
before, +1 the one after. Every pair counts equally, so a long sentence counts more than a short one. The result has one number per head.
"""

# %% [markdown] tags=["derivation"]
r"""
Let $m$ be 1 for real tokens and 0 for padding, and $o$ the offset. A pair counts if both of its tokens are real, so it has the weight
$m_{b,i} \, m_{b,i+o}$. Here $i$ runs over the queries for which $i + o$ is a position at all.

$$
\text{score}_a = \frac{\sum_{b, i} m_{b,i} \, m_{b,i+o} \; p_{b,a,i,i+o}}{\sum_{b, i} m_{b,i} \, m_{b,i+o}}
$$
"""


# %% tags=["solution"]
def my_offset_score(probabilities, mask, offset):
    """How much each head looks at the token that is ``offset`` places away: (A,).

    probabilities (B, A, S, S), rows are queries; mask (B, S), 1 for real tokens.
    """
    length = mask.shape[1]
    queries = np.arange(max(0, -offset), min(length, length - offset))  # with such a neighbour
    weights = probabilities[:, :, queries, queries + offset]  # (B, A, n)
    real = mask[:, queries] * mask[:, queries + offset]  # (B, n)
    return (weights * real[:, None]).sum(axis=(0, 2)) / real.sum()


# %%
check("16.offset_score", my_offset_score)

# %% [markdown]
r"""
## 4. Is it the position, and does the model need it?

The first question: does a head look at the *position*, or at words that often occur side by side? To find out, we measure its
score on other text, and on **random words**. The other text is Python's documentation.
"""

# %%
texts = [
    sentence
    for module in islice(installed_modules(), 40)
    for docstring in read_docstrings(module.path)
    for sentence in prose_sentences(docstring.text)
]
encoded = [row for row in tokenizer(texts)["input_ids"] if 10 <= len(row) <= 24]
chosen = [encoded[i] for i in rng.choice(len(encoded), 150, replace=False)]
doc_mask = np.array([[1] * len(row) + [0] * (24 - len(row)) for row in chosen])
doc_ids = np.array([row + [tokenizer.pad_id] * (24 - len(row)) for row in chosen])  # (B, S)

special = [tokenizer.cls_id, tokenizer.sep_id, tokenizer.pad_id]
words = ~np.isin(doc_ids, special)
random_ids = np.where(words, rng.integers(5, len(tokenizer), doc_ids.shape), doc_ids)
print(len(encoded), "sentences, for instance:", tokenizer.decode(doc_ids[0], True))
print("at random:", tokenizer.decode(random_ids[0], True)[:70], "…")

# %%
masked_docs = np.where(words & (rng.random(words.shape) < 0.15), tokenizer.mask_id, doc_ids)
on_docs, _ = model.forward(
    masked_docs,
    attention_mask=doc_mask,
    return_logits=False,
    return_hidden_states=True,
    return_attentions=True,
)
on_random, _ = model.forward(
    random_ids[:60], attention_mask=doc_mask[:60], return_logits=False, return_attentions=True
)
texts_of = {
    "our sentences": (maps, mask),
    "documentation": (on_docs.attentions, doc_mask),
    "random words": (on_random.attentions, doc_mask[:60]),
}
scores = {}  # (text, offset): (L, A)
for text, (maps_of, mask_of) in texts_of.items():
    for offset in (-1, 1):
        scores[text, offset] = np.array(
            [offset_score.solution(p, mask_of, offset) for p in maps_of]
        )

# %%
for offset in (-1, 1):
    i, a = np.unravel_index(scores["documentation", offset].argmax(), (L, A))
    print(f"offset {offset:+d}: layer {i}, head {a}.  ", end="")
    print(", ".join(f"{text} {scores[text, offset][i, a]:.2f}" for text in texts_of))
    assert scores["random words", offset][i, a] > 3 / 24  # far above equal weights
print(
    f"equal weights everywhere: {(doc_mask / doc_mask.sum(axis=1, keepdims=True)).max():.2f} at most"
)

sides = np.maximum(scores["documentation", -1], scores["documentation", 1])  # (L, A)
positional = [(i, a) for i, a in np.ndindex(L, A) if sides[i, a] > 0.5]
nonsense = np.maximum(scores["random words", -1], scores["random words", 1])
print("(layer, head) above one half on documentation, and their scores there and on random words:")
for i, a in positional:
    print(f"{(i, a)}  {sides[i, a]:.2f}  {nonsense[i, a]:.2f}")

# %% [markdown]
r"""
A high number on nonsense means that the head goes by position: it finds the neighbour by the position embeddings, whatever the
words are. (Clark et al., 2019, found such heads in the published BERT.) The last lines list all heads that give a neighbour more
than half of their weight. There are more of them than are marked in the picture of one sentence, and not all are in the lower layers.

The second question: **does the model need it?** We take the pattern away and measure. A score is $q \cdot k / \sqrt D$ plus the
bias of the padding. With $q = 0$, all $n$ real keys have the same score, and the softmax gives each $1/n$: the head still mixes
values, but it no longer chooses. No weight has to be changed for that: what an observer returns takes the value's place.
"""


# %%
class Flattened(Observer):
    """These heads, (layer, head) each, give all real tokens the same weight: their queries are 0."""

    def __init__(self, *heads):
        self.heads = {}
        for i, a in heads:
            self.heads.setdefault(f"bert.encoder.layer.{i}.attention.self.q", []).append(a)

    def wants(self, name):
        return name in self.heads

    def forward(self, name, q):
        changed = q.copy()  # (B, A, S, D)
        changed[:, self.heads[name]] = 0.0
        return changed

    backward = forward  # what was replaced has no effect: its derivative is 0, too


flat, _ = model.forward(
    ids,
    attention_mask=mask,
    return_logits=False,
    return_attentions=True,
    context=Context(observer=Flattened((0, 0))),
)
assert np.allclose(flat.attentions[0][shown, 0, :n, :n], 1 / n)
assert np.allclose(flat.attentions[0][:, 1:], maps[0][:, 1:])  # the other heads are as they were

# %% [markdown]
r"""
We measure the loss of hidden words. There are five copies of our sentences. Each hides every fifth word, and each begins at
another word, so every word is hidden once.
"""


# %%
def upward(hidden, bias, start=0, observer=None):
    """From the input of layer ``start`` to the last state: (B, S, H) → (B, S, H)."""
    context = Context(observer=observer)
    for i in range(start, L):
        hidden, _ = layers[i].forward(hidden, bias, context.inside(f"bert.encoder.layer.{i}"))
    return hidden


def log_p(hidden, places, targets):
    """ln p of the word ``targets[n]`` at the flat place b·S + s, read off these states: (N,)."""
    probabilities, _ = softmax(head.forward(hidden, places)[0])  # (N, V)
    return np.log(probabilities[np.arange(len(targets)), targets])


ordinary = ~np.isin(ids, [*special, tokenizer.vocab["."]])  # (B, S)
turn = np.cumsum(ordinary, axis=1) % 5
masked_ids = np.concatenate(
    [np.where(ordinary & (turn == k), tokenizer.mask_id, ids) for k in range(5)]
)
masked_bias = attention_bias(np.tile(mask, (5, 1)), "float64")
places = np.flatnonzero(masked_ids == tokenizer.mask_id)  # (N,) = b·S + s
targets = np.tile(ids, (5, 1)).reshape(-1)[places]

outputs, _ = model.forward(
    masked_ids,
    attention_mask=np.tile(mask, (5, 1)),
    return_logits=False,
    return_hidden_states=True,
)
masked_states = outputs.hidden_states  # L + 1 of (5B, S, H)
print(
    f"{len(places)} hidden words, loss {-log_p(masked_states[L], places, targets).mean():.2f} nats"
)

# %%
some = 2 * B  # sequences: two of the five copies are enough
inside = places < some * S
where = places[inside], targets[inside]
loss = -log_p(masked_states[L][:some], *where).mean()
rise = np.empty((L, A))  # below layer i nothing changes
for i, a in np.ndindex(L, A):
    last = upward(masked_states[i][:some], masked_bias[:some], i, Flattened((i, a)))
    rise[i, a] = -log_p(last, *where).mean() - loss

# %% tags=["figure"]
# Caption: Four measures of each head. A positional head looks at the token before or after, and the
#   loss rises when it is flattened.
figure, axes = plt.subplots(1, 4, figsize=(7.5, 2.5), sharey=True)
for panel, values, digits, title in (
    (axes[0], scores["documentation", -1], 2, "token before"),
    (axes[1], scores["documentation", 1], 2, "token after"),
    (axes[2], width, 1, "effective tokens"),
    (axes[3], rise, 2, "loss rises by"),
):
    plots.heatmap(
        panel, values, digits=digits, limit=np.abs(rise).max() if values is rise else None
    )
    panel.set_title(title, fontsize=9.5)
    panel.set_xlabel("head")
axes[0].set_ylabel("layer")
plt.show()


# %%
def about(place):
    i, a = np.unravel_index(place, (L, A))
    kind = "; positional" if (i, a) in positional else ""
    print(f"layer {i}, head {a}: the loss rises by {rise[i, a]:.2f} nats", end="")
    print(f"; {width[i, a]:.1f} tokens{kind}")


print("the largest rises:")
for place in np.argsort(-rise, axis=None)[:6]:
    about(place)
print(f"the median head: {np.median(rise):.2f}")
print("the sharpest map of those below the median:")
about(np.where(rise < np.median(rise), width, np.inf).argmin())

# %% [markdown]
r"""
The first two squares show *what* a head does, and the last shows what the model loses when the head is flat. The positional heads
are at the top of the list. Four of the five sharpest maps (few effective tokens) are in this list, too. But sharpness
alone proves nothing: the fifth belongs to the head in the last line, with a bright column in section 2, and yet the
loss hardly rises: the striking picture shows something that hardly matters. A small
rise does not prove that a head is useless, either: others may stand in for it, as in
[09](09_many_heads.ipynb#7.-Heads-divide-the-work).

## 5. What does each layer predict?

Every state has the same shape, so the head that predicts words from $x^{(L)}$ can be put on any $x^{(l)}$ (the
*logit lens*). Here are two sentences that are masked at the same place:
"""

# %%
TWO = ["she was born on 4 [MASK] 1890 .", "it was built on the [MASK] of the river ."]
two = tokenizer(TWO, padding=True)
outputs, _ = model.forward(
    two["input_ids"],
    attention_mask=two["attention_mask"],
    return_logits=False,
    return_hidden_states=True,
)
gaps = np.flatnonzero(np.array(two["input_ids"]) == tokenizer.mask_id)
guesses = np.array(
    [softmax(head.forward(x, gaps)[0])[0] for x in outputs.hidden_states]
)  # (L + 1, 2, V)

for number, text in enumerate(TWO):
    print(text)
    for i, p in enumerate(guesses[:, number]):
        best = np.argsort(-p, kind="stable")[:4]
        names = [tokenizer.tokens[t] if tokenizer.tokens[t].isascii() else "(sign)" for t in best]
        shares = [f"{name:>13} {p[t]:4.0%}" for name, t in zip(names, best, strict=True)]
        print(f"  x({i})", *shares, sep="")
assert np.allclose(guesses[0, 0], guesses[0, 1])  # x(0): the same for both sentences
assert not np.allclose(guesses[1, 0], guesses[1, 1], atol=1e-3)

# %% [markdown]
r"""
$x^{(0)}$ *cannot* know anything: at a [MASK] it is "[MASK]" plus the position, and so the same in both sentences. Everything
that the last line knows was carried there by attention. Now we take all hidden words:
"""

# %%
plain = np.array([-log_p(x, places, targets).mean() for x in masked_states])  # (L + 1,)
print("loss, read off x(0) … x(L):", plain)
assert plain[-1] < plain[1] < plain[0]

# %% [markdown]
r"""
### Does the lens show what a layer knows?

It shows what the *last layer's head* makes of it. In lower layers, the same knowledge may lie in other directions. So for each
layer we learn a translator, the linear map that best turns $x^{(l)}$ into $x^{(L)}$:

$$
\min_{W, b} \sum_{\text{tokens}} \bigl\lVert x^{(l)} W + b - x^{(L)} \bigr\rVert^2 .
$$

Then we apply the head after the translation. (This is the "tuned lens" of Belrose et al., 2023, who train it in another way.) The
translator is learned on the documentation and tested on our sentences.
"""

# %%
real = doc_mask == 1
last = on_docs.hidden_states[L][real]  # (tokens, H)
tuned = []
for i in range(L):
    with_one = np.concatenate([on_docs.hidden_states[i][real], np.ones((real.sum(), 1))], axis=1)
    W, *_ = np.linalg.lstsq(with_one, last)  # (H + 1, H): the last row is b
    tuned.append(-log_p(masked_states[i] @ W[:-1] + W[-1], places, targets).mean())
tuned = np.array([*tuned, plain[-1]])
print(f"{real.sum():,} tokens to learn {W.size:,} numbers from")
print("plain:", plain, "\ntuned:", tuned)
assert (tuned[1:-1] < plain[1:-1]).all()

# %% tags=["figure"]
# Caption: Each layer predicts the hidden words better than the one before.
figure, axes = plt.subplots(figsize=(7.5, 3.0))
axes.plot(plain, "o-", label="the last layer's head, as it is")
axes.plot(tuned, "s--", label="after a linear translation")
axes.axhline(np.log(len(tokenizer)), color=plots.GREY, linewidth=1, linestyle=":")
axes.text(
    L, np.log(len(tokenizer)) + 0.15, "ln V: guessing", ha="right", fontsize=9, color=plots.GREY
)
axes.set(title="what can be read off each layer", ylabel="loss of hidden words (nats)")
axes.set_xticks(range(L + 1), [f"x({i})" for i in range(L + 1)])
axes.legend(fontsize=9)
plt.show()

# %% [markdown]
r"""
The gap between the lines is not a lack of knowledge: the question was asked in the wrong language. Even the lower line is
only a bound: what a linear map does not find may still be there. At $x^{(0)}$ both must fail, as there is nothing to translate.

## 6. Neighbours in context

The vector of "saw" is one row of a table, both for the tool and for the past of "see". Where do the two go separate ways? For
each ambiguous word, we ask which of the *other* seven occurrences is nearest, by the cosine of their states:
"""

# %%
spot = np.argmax(
    ids == np.array([tokenizer.vocab[word] for word in ambiguous])[:, None], axis=1
)  # (B,)
same_word = (ambiguous[:, None] == ambiguous) & ~np.eye(B, dtype=bool)  # (B, B)
same_meaning = same_word & (meaning[:, None] == meaning)


def cosines(x):
    unit = x / np.linalg.norm(x, axis=-1, keepdims=True)
    return unit @ unit.T


nearest = np.array(
    [
        np.where(same_word, cosines(x[np.arange(B), spot]), -2).argmax(axis=1) for x in states
    ]  # (L + 1, B)
)
right = (meaning[nearest] == meaning).mean(axis=1)
for i, share in enumerate(right):
    print(f"x({i}): the nearest has the same meaning in {share:.0%} of cases")
print(f"by chance: {3 / 7:.0%} (of 7 others, 3 have the same meaning)")
assert right[1:].min() > right[0]

for text in (
    "he cut the wood with a saw .",
    "you may go home now .",
    "he sat on the bank of the river .",
):
    b = sentences.index(text)
    print(text)
    for i in (0, L):
        print(f"    x({i}) nearest: {sentences[nearest[i, b]]}")

# %% [markdown]
r"""
At $x^{(0)}$ there is only the word and its position. An occurrence at the same place has the same vector, whatever it means, and is
the nearest one. Then context comes in.
Here are the cosines among the eight occurrences of one word:
"""

# %% tags=["figure"]
# Caption: Cosines between eight uses of one word, from the input x(0) to the last layer. The two
#   meanings grow apart.
figure, axes = plt.subplots(1, L + 1, figsize=(7.5, 2.2), sharey=True)
eight = np.flatnonzero(ambiguous == "saw")
for i, panel in enumerate(axes):
    image = plots.heatmap(panel, cosines(states[i][eight, spot[eight]]))
    image.set_clim(0, 1)
    panel.set(title=f"x({i})", xticks=(1.5, 5.5), yticks=(1.5, 5.5))
    panel.set_xticklabels(["tool", "see"])
    panel.set_yticklabels(["tool", "see"], rotation=90, va="center")
figure.colorbar(image, ax=axes, shrink=0.7, label="cosine")
figure.set_label(
    "Five tables of cosines between the vectors of one word, as a tool and as seeing, "
    "from the input to the last layer: the uses in one meaning stay alike, and grow apart from "
    "those in the other"
)
plt.show()

# %% [markdown]
r"""
### Is a cosine of 0.7 much?

That depends on the cosine of strangers, pairs of *different* words. Their mean cosine would be 0 if states pointed equally in all
directions. But the states have a part in common, their mean. We subtract it and look again:
"""

# %%
token = ids[ordinary]  # (N,)
stranger = token[:, None] != token
print("      strangers  same word   centred: strangers  same word")
for i, x in enumerate(states):
    line = []
    for centre in (0.0, x[ordinary].mean(axis=0)):
        all_pairs = cosines(x[ordinary] - centre)
        of_word = cosines(x[np.arange(B), spot] - centre)
        line += [all_pairs[stranger].mean(), of_word[same_word].mean()]
    print(f"x({i}) {line[0]:10.2f} {line[1]:10.2f} {line[2]:19.2f} {line[3]:10.2f}")
    assert abs(line[2]) < min(abs(line[0]), 0.1)

# %% [markdown]
r"""
Strangers have a cosine above 0 ("anisotropy"; Ethayarajh, 2019, found about 0.6 in GPT-2's middle layers, and nearly 1 in its last). So a cosine means something
only next to that of strangers, or after the mean of a large sample has been subtracted.

## 7. How does the gradient flow back?

Now we go downwards. We hide the ambiguous word of each sentence and take $f = \ln p(\text{hidden word})$. From $g^{(l + 1)} =
\partial f / \partial x^{(l+1)}$ to $g^{(l)}$ it takes one call of a layer's hand-written backward pass:
"""


# %%
def flow(hidden, bias, places, targets, observer=None):
    """∂ ln p / ∂ x(i) for i = 0 … L: (L + 1, B, S, H). Sequences do not see each other."""
    context, caches = Context(observer=observer), []
    for i, layer in enumerate(layers):
        hidden, cache = layer.forward(hidden, bias, context.inside(f"bert.encoder.layer.{i}"))
        caches.append(cache)
    logits, head_cache = head.forward(hidden, places)  # (N, V)
    dlogits = -softmax(logits)[0]  # of ln p: one-hot − p
    dlogits[np.arange(len(targets)), targets] += 1.0
    gradients = [head.backward(dlogits, head_cache)]
    for layer in reversed(layers):
        gradients.append(layer.backward(gradients[-1], caches.pop()))
    return np.array(gradients[::-1])


hidden_word = ids[np.arange(B), spot]  # (B,)
asked = ids.copy()
asked[np.arange(B), spot] = tokenizer.mask_id
at = np.arange(B) * S + spot  # flat places
outputs, _ = model.forward(
    asked,
    attention_mask=mask,
    return_logits=False,
    return_hidden_states=True,
    return_attentions=True,
)
x = np.stack(outputs.hidden_states)  # (L + 1, B, S, H)
asked_maps = np.stack(outputs.attentions)  # (L, B, A, S, S)
g = flow(x[0], bias, at, hidden_word)  # (L + 1, B, S, H)

# %% [markdown]
r"""
Is it right? We move $x^{(l)}$ a little in a random direction $u$, and compute the layers above it again. The slope must be
$\sum g^{(l)} u$.
"""

# %%
for i in range(L + 1):
    u = rng.standard_normal(x[i].shape)
    above, below = (
        log_p(upward(x[i] + step * u, bias, i), at, hidden_word).sum() for step in (1e-5, -1e-5)
    )
    numeric, by_hand = (above - below) / 2e-5, (g[i] * u).sum()
    print(f"x({i})  numeric {numeric:10.5f}   by hand {by_hand:10.5f}")
    assert np.isclose(numeric, by_hand, rtol=1e-6, atol=1e-6)

# %% [markdown]
r"""
Where does it go? $f$ reads one state only, so $g^{(L)}$ is 0 everywhere but at the [MASK], $m$. One layer
down, other tokens get a share, and only attention can bring it to them. From [08](08_attention.ipynb#6.-The-backward-pass,-step-by-step): with the
gradient arriving at $y_m$ alone, a key $j \ne m$ receives, in each head,

$$
dv_j = p_{mj} \, dy_m , \qquad
dk_j = \frac{q_m}{\sqrt D} \, p_{mj} \Bigl( dp_{mj} - \sum_k p_{mk} \, dp_{mk} \Bigr) .
$$

**Both carry the factor $p_{mj}$.** Within one layer, nothing flows where there is no attention. That much a map proves.
"""

# %%
norm = np.linalg.norm(g, axis=-1)  # (L + 1, B, S)
others = np.arange(S) != spot[:, None]  # (B, S)
assert (norm[L][others] == 0).all() and (norm[L - 1][others & (mask == 1)] > 0).all()

hide = 1  # a token that nobody may look at gets no gradient, in no layer
blind = mask.copy()
blind[:, hide] = 0
blind_flow = flow(x[0], attention_bias(blind, "float64"), at, hidden_word)
affected = spot != hide
print("gradient at a token that is masked out:", np.abs(blind_flow[:, affected, hide]).max())
assert (blind_flow[:, affected, hide] == 0).all()

# %% tags=["figure"]
# Caption: The length of the gradient of one prediction, layer by layer. It begins at [MASK], in the
#   top row, and spreads downwards.
example = sentences.index("she was born on 4 may 1890 .")
m = mask[example].sum()
tokens = [tokenizer.tokens[i] for i in asked[example, :m]]
figure, axes = plt.subplots(figsize=(7.5, 3.0))
image = plots.heatmap(axes, norm[::-1, example, :m], digits=2)
axes.set_yticks(range(L + 1), [f"g({i})" for i in range(L, -1, -1)])
axes.set_xticks(range(m), tokens)
axes.set(
    title="length of the gradient at each token, from the loss (top) to the words", aspect="auto"
)
figure.colorbar(image, ax=axes)
plt.show()

# %% [markdown]
r"""
Read it from the top down: everything begins at [MASK], and spreads layer by layer. Now we take all sentences, by layer and by
distance:
"""

# %%
at_mask = np.sqrt((norm**2 * ~others).sum(axis=2)).mean(axis=1)  # (L + 1,)
elsewhere = np.sqrt((norm**2 * others).sum(axis=2)).mean(axis=1)
together = np.sqrt((norm**2).sum(axis=2)).mean(axis=1)
assert together.max() < 10 * together.min()

flat_flow = flow(x[0], bias, at, hidden_word, Flattened(*positional))
without = np.linalg.norm(flat_flow[0], axis=-1)  # (B, S)
distance = np.arange(S) - spot[:, None]  # (B, S)
near = np.arange(-4, 5)
by_distance = [
    [lengths[(distance == d) & (mask == 1)].mean() for d in near] for lengths in (norm[0], without)
]

# %% tags=["figure"]
# Caption: The same over all sentences. Left: by layer. Right: at the input, by the distance from
#   [MASK], with the positional heads as they are and flat.
figure, axes = plt.subplots(1, 2, figsize=(7.5, 3.2))
for values, label, style in (
    (together, "all tokens", "o-"),
    (at_mask, "[MASK]", "s--"),
    (elsewhere, "the others", "^:"),
):
    axes[0].plot(values, style, label=label)
axes[0].set(title="by layer", ylabel="‖g‖, mean over sentences", ylim=(0, None))
axes[0].set_xticks(range(L + 1), [f"g({i})" for i in range(L + 1)])
axes[0].legend(fontsize=9)
axes[1].plot(near, by_distance[0], "o-", label="the model")
axes[1].plot(near, by_distance[1], "s--", label="positional heads flattened")
axes[1].set(
    title="at the words, by distance",
    xlabel="tokens from [MASK]",
    ylim=(0, 1.4 * np.max(by_distance)),
)
axes[1].legend(fontsize=9, loc="upper left")
plt.show()

# %% [markdown]
r"""
In the left picture, read from right to left, the gradient moves from [MASK] to the other tokens and keeps its length within a
small factor, as in a healthy stack ([10](10_encoder.ipynb)). The right picture shows where it arrives. When all positional heads
(section 4) are flat, the values at ±1 sink, and the others rise. So those heads were a road to the neighbours. They were not the only
road: much still arrives there.

## 8. Which words does the prediction depend on?

The length of $g$ says where a small change *could* matter, not what effect the word there has. And an effect compared with
what? Let us say **with [MASK] in its place.** Let $x_i$ be a token's embedding and $b_i$ that of a [MASK] at the same place.
Taylor's expansion to first order gives

$$
f(x) - f(x \text{ with } b_i) \;\approx\; g_i \cdot (x_i - b_i) .
$$

One backward pass gives the answer for all words at once. The usual **gradient × input**, $g_i \cdot x_i$, is the same with
$b = 0$, an embedding that the model never sees. And its value depends on *which* input we take:

### Take the wrong input, and the answer is zero

The sum of the three embeddings goes through a LayerNorm. Scaling a row by $c$ does not change its result
([05](05_layer_norm.ipynb#What-it-cannot-see)), so (for ε = 0)

$$
0 = \frac{d}{dc} f(c \, s) \Big|_{c = 1} = \sum_h \frac{\partial f}{\partial s_h} \, s_h = \nabla f \cdot s .
$$

Before the norm, gradient × input is 0 for every word of every sentence.
"""

# %%
embeddings = model.bert.embeddings
total = (
    embeddings.word_embeddings.weight.value[asked]
    + embeddings.position_embeddings.weight.value[:S]
    + embeddings.token_type_embeddings.weight.value[0]
)  # (B, S, H)
norm_layer = embeddings.LayerNorm
out, cache = layer_norm(total, norm_layer.weight.value, norm_layer.bias.value, norm_layer.eps)
dtotal, *_ = layer_norm_backward(g[0], cache)
assert np.allclose(out, x[0])
before, after = (dtotal * total).sum(axis=-1), (g[0] * x[0]).sum(axis=-1)  # (B, S)
print(f"gradient × input before the norm: {np.abs(before).max():.0e} at most")
print(f"                 after it:        {np.abs(after).max():.2f} at most")
assert np.abs(before).max() < 1e-6 * np.abs(after).max()  # not quite 0: ε

# %% [markdown]
r"""
### A straight line is not enough

$f$ is not a straight line. So we take the gradient all along the way from $b$ (every word masked) to $x$. Let
$\varphi(t) = f(b + t (x - b))$; then $\varphi'(t) = \sum_i g_i(t) \cdot (x_i - b_i)$, and the fundamental theorem of calculus
divides the whole difference among the words:

$$
f(x) - f(b) = \int_0^1 \varphi'(t) \, dt
= \sum_i \underbrace{(x_i - b_i) \cdot \int_0^1 g_i(t) \, dt}_{\text{the share of word } i} .
$$

These are **integrated gradients** (Sundararajan et al., 2017). Six gradients, at the nodes of Gaussian quadrature, come close to the integral.
"""

# %%
rubbed_out = np.where(np.isin(asked, special), asked, tokenizer.mask_id)
b, _ = embeddings.forward(rubbed_out, np.zeros_like(ids))  # (B, S, H): every word is [MASK]
nodes, weights = np.polynomial.legendre.leggauss(6)  # on [−1, 1]
mean_gradient = sum(
    weight / 2 * flow(b + (node + 1) / 2 * (x[0] - b), bias, at, hidden_word)[0]
    for node, weight in zip(nodes, weights, strict=True)
)
one_gradient = (g[0] * (x[0] - b)).sum(axis=-1)  # (B, S)
integrated = (mean_gradient * (x[0] - b)).sum(axis=-1)  # (B, S)

difference = log_p(x[L], at, hidden_word) - log_p(upward(b, bias), at, hidden_word)  # (B,)
print("              f(x) − f(b)   integrated   one gradient")
for i in (example, shown):
    print(f"{ambiguous[i]:>6} {difference[i]:14.3f}", end="")
    print(f" {integrated[i].sum():12.3f} {one_gradient[i].sum():12.3f}")
error, plain_error = (np.abs(s.sum(axis=1) - difference) for s in (integrated, one_gradient))
print(f"mean error    {error.mean():.3f}, with one gradient {plain_error.mean():.3f}")
assert error.mean() < 0.1 * plain_error.mean()

# %% [markdown]
r"""
### And what really happens without the word?

To find out, we need no theory, only more forward passes: we put [MASK] in the place of each other word in turn.
"""

# %%
sequence, column = np.nonzero(
    (mask == 1) & others & (ids != tokenizer.cls_id) & (ids != tokenizer.sep_id)
)
cut = asked[sequence]  # (N, S): a copy of its sentence for each word
cut[np.arange(len(cut)), column] = tokenizer.mask_id
outputs, _ = model.forward(cut, attention_mask=mask[sequence], return_logits=False)
without_word = log_p(
    outputs.last_hidden_state, np.arange(len(cut)) * S + spot[sequence], hidden_word[sequence]
)
effect = log_p(x[L], at, hidden_word)[sequence] - without_word  # (N,) > 0: the word helped
print(
    f"{len(effect)} words: {np.mean(effect > 0):.0%} raise the probability of the right word, the others lower it"
)

# %% tags=["figure"]
# Caption: Three measures of how much each word contributes to “may”. They do not agree, because they
#   answer different questions.
rows = np.flatnonzero(sequence == example)
figure, axes = plt.subplots(figsize=(7.5, 3.2))
for i, (label, values, colour) in enumerate(
    (
        ("[MASK] in its place", effect[rows], plots.GREY),
        ("integrated gradients", integrated[example, column[rows]], plots.BLUE),
        ("one gradient × (x − b)", one_gradient[example, column[rows]], plots.ORANGE),
    )
):
    axes.bar(np.arange(len(rows)) + 0.27 * (i - 1), values, width=0.25, label=label, color=colour)
axes.axhline(0, color="black", linewidth=0.8)
axes.set_xticks(range(len(rows)), [tokenizer.tokens[i] for i in ids[example, column[rows]]])
axes.set(title="she was born on 4 [MASK] 1890: what makes it “may”?", ylabel="ln p(may), nats")
axes.grid(False, axis="x")
axes.legend(fontsize=9)
plt.show()

# %% [markdown]
r"""
Grey takes out one word while the others stay, so two words that say the same thing cover for each other. Blue divides among
the words what all of them contribute together.

## 9. What do attention maps prove?

Does "looks at" mean "depends on"? We test it on all words: does the attention that [MASK] pays to a word
predict how much $f$ changes when that word is masked? The measure is the rank correlation, which is 1 for the same order and 0
for no relation. We compare it with the gradients, and with a rival that knows nothing of the model: **how near the word is**.
"""


# %%
def ranks(values):
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - counts / 2)[place]  # equal values share a rank


def agreement(values):
    return np.corrcoef(ranks(values), ranks(np.abs(effect)))[0, 1]


from_mask = asked_maps[:, np.arange(B), :, spot]  # (B, L, A, S)
attention = from_mask[sequence, :, :, column]  # (N, L, A)
heads = np.array([[agreement(attention[:, i, a]) for a in range(A)] for i in range(L)])
measures = {
    "nearness": -np.abs(column - spot[sequence]),
    "attention, last layer": attention[:, -1].mean(axis=1),
    "attention, all layers": attention.mean(axis=(1, 2)),
    "gradient × input": np.abs(after[sequence, column]),
    "one gradient × (x − b)": np.abs(one_gradient[sequence, column]),
    "length of the gradient": norm[0][sequence, column],
    "integrated gradients": np.abs(integrated[sequence, column]),
}
agreements = {name: agreement(values) for name, values in measures.items()}
print(f"single heads: from {heads.min():.2f} to {heads.max():.2f}")
assert max(agreements.values()) < 0.95  # none of them is the effect

# %% tags=["figure"]
# Caption: How well seven measures rank the words by what happens when a word is really hidden.
figure, axes = plt.subplots(figsize=(7.5, 3.0))
colours = [plots.GREY] + 2 * [plots.VERMILION] + 4 * [plots.BLUE]
axes.barh(list(agreements), list(agreements.values()), color=colours)
for place, value in enumerate(agreements.values()):
    axes.text(value + 0.01, place, f"{value:.2f}", va="center", fontsize=9.5)
axes.set(title="do they tell the size of a word's effect?", xlabel="rank correlation")
axes.set_xlim(min(0, *agreements.values()), 1)
axes.invert_yaxis()
axes.grid(False, axis="y")
plt.show()

# %% tags=["figure"]
# Caption: Each dot is a word: the attention that [MASK] pays to it, and what the prediction loses
#   when it is hidden.
figure, axes = plt.subplots(figsize=(7.5, 3.2))
axes.scatter(measures["attention, all layers"], effect, s=16, alpha=0.5, linewidths=0)
axes.axhline(0, color="black", linewidth=0.8)
axes.set(
    title="each dot a word: attention against effect",
    xlabel="attention from [MASK], mean of all layers and heads",
    ylabel="ln p lost without it (nats)",
)
plt.show()

# %% [markdown]
r"""
Compare the bars with the grey one: attention is worth what it knows *beyond* nearness. And look at the dots below zero. They
are words that make the right answer *less* likely. Attention weights are never negative, so they cannot tell. Here is one
sentence in numbers:
"""

# %%
i = sentences.index("they camped on the left bank of the river .")
print(tokenizer.decode(asked[i, 1 : mask[i].sum() - 1]))
print(f"{'':<8}{'attention, last layer':>22}{'all layers':>12}{'effect':>9}")
for n in np.flatnonzero(sequence == i):
    name, weight = tokenizer.tokens[ids[i, column[n]]], attention[n]
    print(f"{name:<8}{weight[-1].mean():22.2f}{weight.mean():12.2f}{effect[n]:9.2f}")

same = []
for i in range(B):
    rows = np.flatnonzero(sequence == i)
    same.append(attention[rows].mean(axis=(1, 2)).argmax() == np.abs(effect[rows]).argmax())
chance = np.mean([1 / (sequence == i).sum() for i in range(B)])
print(
    f"\nmost attention = largest effect in {np.mean(same):.0%} of sentences, by chance {chance:.0%}"
)

# %% [markdown]
r"""
Of these words, "of" gets the most attention in the last layer and hardly matters. "River" gets a third of that and matters most.

So what do attention maps prove?

- **They prove** in what proportions a head mixes *values*, and that nothing passes in that head where the weight is 0.
- **They do not prove** that it matters. They do not show what is in a value (maybe next to nothing), which way it pushes, or whether
  anything above uses it (section 4).
- Above the first layer, a "token" is a mixture. In the last layer, weight on the *place* of "river" is not weight on the *word*:
  by then, other places carry its content, too.

A map is a good source of **guesses**. An intervention tests them: change something, and measure. (For the debate, see Jain and Wallace, 2019,
"Attention is not explanation"; Wiegreffe and Pinter, 2019, "Attention is not not explanation".)

[`minibert explore`](../docs/explore.md) shows attention, guesses of each layer, the gradient and what each word contributes for a sentence of your own, on a web page.

## Recap

- Maps and states are outputs of the forward pass: $L$ maps of (B, A, S, S), $L + 1$ states of (B, S, H).
- A positional head keeps its score on random words. With $q = 0$ a head is flat, and the loss tells whether it was needed.
- The prediction head on every layer shows when a prediction forms; a linear translation shows that the layer knew more than that.
- Context separates meanings; a cosine has to be compared with that of strangers.
- The gradient starts at one token and reaches others by attention only: $dv_j$ and $dk_j$ carry the factor $p_{mj}$.
- Gradient × (input − baseline) is a first-order guess of an effect; integrated along the way it adds up exactly.

## What usually goes wrong

- **Rows and columns exchanged.** Rows are the queries; only rows sum to 1.
- **Padding in the mean.** Padded queries have maps too, and they mean nothing.
- **One pretty example.** Score it over many texts, and on a control: random words, strangers, nearness.
- **Gradient × input at the wrong place.** Before a LayerNorm it is zero whatever the model does.
- **Sharp = important.** Flatten the head before you say so.
- **A baseline that is not named.** "Depends on" always means: compared with something.

## Three questions

Answer before you unfold.
"""

# %% [markdown]
r"""
<details>
<summary><b>1.</b> In one head every query gives [SEP] a weight of 0.9. Does the model need [SEP] there?</summary>

We cannot tell. All queries get nearly the same: 0.9 times one value. If that value is small, or hardly varies with the text, the
head is merely switched off, and [SEP] is where it puts its weight. Flatten it and measure.

</details>
"""

# %% [markdown]
r"""
<details>
<summary><b>2.</b> The loss read off $x^{(0)}$ can lie above $\ln V$. How can a model do worse than guess?</summary>

Giving every word $1/V$ costs exactly $\ln V$. The head gives some words much more, and so the others less, and it reads a
language that $x^{(0)}$ does not speak. Being confident and wrong costs more than being modest.

</details>
"""

# %% [markdown]
r"""
<details>
<summary><b>3.</b> The integrated gradients of a sentence add up to 3 nats, but masking any single word costs at most 0.2. Is there
a mistake?</summary>

Not necessarily. If several words say the same thing, none of them is missed alone. The path of the integral goes through inputs in which *all*
words are faint, so it sees what they do together. (A mistake would be a sum other than $f(x) - f(b)$.)

</details>
"""

# %% [markdown]
r"""
## Further reading

- Clark and others, [What does BERT look at?](https://arxiv.org/abs/1906.04341), 2019: positional heads, syntactic heads, and attention to [SEP].
- Tenney, Das and Pavlick, [BERT rediscovers the classical NLP pipeline](https://arxiv.org/abs/1905.05950), 2019: what each layer knows.
- Jain and Wallace, [Attention is not explanation](https://arxiv.org/abs/1902.10186), and Wiegreffe and Pinter, [Attention is not not explanation](https://arxiv.org/abs/1908.04626), 2019: a dispute about what attention maps prove.
- Hewitt and Liang, [Designing and interpreting probes with control tasks](https://arxiv.org/abs/1909.03368), 2019: controls for probes.
- Rogers, Kovaleva and Rumshisky, [A primer in BERTology](https://arxiv.org/abs/2002.12327), 2020: over 150 such studies, summed up.

**Next:** [17 · NumPy to CuPy](17_numpy_to_cupy.ipynb), the same code on a GPU.
The code of this notebook: [encoder.py](../minibert/bert/encoder.py), [models.py](../minibert/bert/models.py),
[heads.py](../minibert/bert/heads.py).
"""
