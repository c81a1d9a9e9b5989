# %% [markdown]
r"""
# 23 · After BERT

BERT was a list of decisions: how long to train, on what, with how many parameters, on which task, with which positions, with which
subwords. The paper compared a few of them with an alternative; most were not compared. In the years that followed, each of BERT's successors took one
decision and asked: is this the best that we can do?

This notebook follows eight of these questions. For each one you see the change as an equation, a few lines of code that show it at work,
one property that we measure here, and what the paper reports.

**You will** train three tokenizers and compare them · number positions as RoBERTa does · write the backward pass of ALBERT's shared layer ·
distil a whole BERT into half a BERT · draw the masks of XLNet's random orders · see four ways to tell a model where a word is, and
differentiate one of them · count ModernBERT's parameters.

**Before this:** [11 · Heads and losses](11_heads_losses.ipynb), [12 · Pre-training data](12_pretraining_data.ipynb);
for the exercises also [08 · Attention](08_attention.ipynb) and [10 · The encoder](10_encoder.ipynb).
**Time:** 150 minutes with the exercises; it runs in less than a minute.

| letter | in this notebook |
|---|---|
| `B`, `S` | sequences in a batch, tokens in a sequence |
| `H`, `L`, `V` | hidden size, layers, words in the vocabulary |
| `D` | features of one attention head |
| `E` | features of a word's embedding, where these are fewer than `H` |
| `K` | the distance from which on DeBERTa treats all distances alike |

As always, $dx$ is short for the derivative of the loss with respect to $x$.
"""

# %%
import inspect
import itertools
import textwrap

import matplotlib.pyplot as plt
import numpy as np

from minibert import BertConfig, BertForPreTraining, BertModel, BertTokenizer, check, ops, plots
from minibert.course import EXERCISES, read_log, write_log
from minibert.course.exercises.n23_after_bert import (
    disentangled_attention,
    distance_rows,
    shared_layers,
)
from minibert.data import open_corpus
from minibert.data.masking import choose_positions
from minibert.ops.stable_softmax import softmax
from minibert.text import AlbertTokenizer, RobertaTokenizer
from minibert.train import AdamW
from minibert.variants import albert, distilbert, electra, modern, roberta, xlnet
from minibert.variants.distilbert_training import MaskedWordDistillation, take_layers
from minibert.variants.electra_training import ElectraGeneratorAndDiscriminator, generator_config

plots.notebook_style()
np.set_printoptions(precision=3, suppress=True)
rng = np.random.default_rng(23)

# %% [markdown]
r"""
## 1. What did BERT decide, and who asked?

| BERT decided | the question | asked by |
|---|---|---|
| a million steps, 13 GB of text, pairs of sentences | Was it trained long enough, and on the right thing? | RoBERTa |
| WordPiece with [UNK] | Which subwords? Must any text be unknown? | RoBERTa, XLNet, ALBERT |
| twelve different layers, and `H` numbers for each word | Do we need all these parameters? | ALBERT |
| twelve layers | Can a small model learn from a large one? | DistilBERT |
| a loss on 15 % of the tokens | Can every token teach? | ELECTRA |
| [MASK], and all hidden words guessed independently | Can we predict without a mask, and still see both sides? | XLNet |
| a vector for each position, added at the bottom | Should a model know the place of a word, or its distance from the others? | XLNet, DeBERTa |
| all of it, in 2018 | What would we decide today? | ModernBERT |

Here they are on a timeline. The colours show what kind of decision each one changed.
"""

# %% tags=["figure"]
# Caption: The successors by the date of their first version. The colour shows which decision was
#   changed.
TIMELINE = [  # year with the month of the first version on arXiv, name, what it changed, height
    (2018 + 9.5 / 12, "BERT", plots.GREY, 0.0),
    (2019 + 5.5 / 12, "XLNet", plots.VERMILION, 3.0),
    (2019 + 6.5 / 12, "RoBERTa", plots.BLUE, -1.2),
    (2019 + 8.5 / 12, "ALBERT", plots.GREEN, 2.1),
    (2019 + 9.5 / 12, "DistilBERT", plots.GREEN, -2.1),
    (2020 + 2.5 / 12, "ELECTRA", plots.VERMILION, 1.2),
    (2020 + 5.5 / 12, "DeBERTa", plots.ORANGE, -1.2),
    (2021 + 3.5 / 12, "RoFormer (RoPE)", plots.ORANGE, 2.1),
    (2021 + 10.5 / 12, "DeBERTaV3", plots.VERMILION, -1.2),
    (2024 + 11.5 / 12, "ModernBERT", plots.PURPLE, 1.2),
]
KINDS = {
    "the training": plots.BLUE,
    "the size": plots.GREEN,
    "the task": plots.VERMILION,
    "the positions": plots.ORANGE,
    "all of it": plots.PURPLE,
}
figure, axes = plt.subplots(figsize=(7.5, 3.0))
axes.axhline(0, color=plots.GREY, linewidth=1.2)
for when, name, colour, height in TIMELINE:
    axes.plot([when, when], [0, height], color=colour, linewidth=1.2)
    axes.plot(when, 0, "o", color=colour, markersize=6)
    box = {"boxstyle": "round,pad=0.25", "facecolor": "white", "edgecolor": colour}
    axes.text(when, height or 0.9, name, ha="center", va="center", fontsize=9.5, bbox=box)
for name, colour in KINDS.items():
    axes.plot([], [], "o", color=colour, label=name)
axes.set(title="which decision was changed, and when", ylim=(-3.6, 3.7), xlim=(2018.4, 2025.4))
axes.set(yticks=[], xticks=range(2019, 2026))
axes.grid(False)
axes.spines["left"].set_visible(False)
axes.legend(fontsize=9, loc="lower right", ncols=2)
plt.show()

# %% [markdown]
r"""
The library has most of these models in `minibert.variants`: they are BERT's classes with one decision
changed. How large are they? A model that is made with `device=None` has names and shapes but no numbers, so counting its parameters costs nothing.
"""

# %%
ELECTRA_BASE = {
    "hidden_size": 768,
    "embedding_size": 768,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
}
BASE = {
    "BERT": BertModel(BertConfig.preset("base"), device=None),
    "RoBERTa": roberta.RobertaModel(roberta.RobertaConfig(), device=None),
    "XLNet": xlnet.XLNetModel(xlnet.XLNetConfig(), device=None),
    "ALBERT": albert.AlbertModel(albert.AlbertConfig(), device=None),
    "DistilBERT": distilbert.DistilBertModel(distilbert.DistilBertConfig(), device=None),
    "ELECTRA": electra.ElectraModel(electra.ElectraConfig(**ELECTRA_BASE), device=None),
}


def count(model):
    return sum(parameter.size for _, parameter in model.named_parameters())


print("the base models                      of these in")
print(f"{'':<12}{'parameters':>12}   embeddings   layers   vocabulary   different layers")
for name, model in BASE.items():
    parts = {name: parameter.size for name, parameter in model.named_parameters()}
    embeddings = sum(size for part, size in parts.items() if part.startswith("embeddings"))
    layers = sum(size for part, size in parts.items() if part.startswith("encoder"))
    own = getattr(model.config, "different_layers", model.config.num_hidden_layers)
    print(f"{name:<12}{count(model):12,}{embeddings / 1e6:9.1f} M{layers / 1e6:8.1f} M", end="")
    print(f"{model.config.vocab_size:13,}{own:9}")

# %% [markdown]
r"""
## 2. RoBERTa: was BERT trained long enough?

Liu and others ([2019](https://arxiv.org/abs/1907.11692)) left the model almost as it was, and went through its training, one decision after
another. Their answer to the question is no.

**Masks.** The original program hid the words when it wrote the data, ten times for each text. The model then passed over the result 40 times, so
it saw each of the ten copies four times. RoBERTa draws a new mask in every pass. With $n$ draws, the probability that a token is hidden at least once is

$$ 1 - (1 - 0.15)^n . $$
"""

# %%
passes, tokens = 40, 400
copies = rng.random((10, tokens)) < 0.15
static, dynamic = copies[np.arange(passes) % 10], rng.random((passes, tokens)) < 0.15
for name, masks, draws in (("ten copies", static, 10), ("each pass anew", dynamic, 40)):
    print(f"{name:<15} hidden at least once: {masks.any(axis=0).mean():6.1%}", end="")
    print(f"   expected: 1 − 0.85^{draws} = {1 - 0.85**draws:.1%}")

# %% tags=["figure"]
# Caption: Which tokens of one text are hidden (black) in forty passes: with ten fixed masks, and
#   with a new one each time.
figure, axes = plt.subplots(1, 2, figsize=(7.5, 2.8), sharey=True)
for panel, masks, title in ((axes[0], static, "ten copies"), (axes[1], dynamic, "each pass anew")):
    panel.imshow(masks[:, :60], cmap="Greys", aspect="auto", interpolation="nearest")
    panel.set(title=title, xlabel="token")
    panel.grid(False)
axes[0].set_ylabel("pass")
plt.show()

# %% [markdown]
r"""
A black square is a hidden token. On the left the pattern repeats every ten passes, and some columns stay white: the model never has to predict these
tokens. On the right there is no pattern. How much does it matter? In the paper's Table 1, surprisingly little: MNLI is 84.3 with fixed masks and 84.0 with new ones,
and SST-2 is 92.5 and 92.9.

**Sentence pairs.** Without next-sentence prediction, and with full sequences of running text, the scores went up a little: MNLI from 84.0
to 84.7 (Table 2). Notebook 12 shows [what may have been wrong with that task](12_pretraining_data.ipynb#3.-Why-was-NSP-dropped-later?).

**More of everything.** This is where most of the gain comes from (Table 4; large models, where each row adds to the one above it):

| | text | batch | steps | MNLI | SST-2 | SQuAD 2.0, F1 |
|---|---|---|---|---|---|---|
| BERT-large | 13 GB | 256 | 1,000,000 | 86.6 | 93.7 | 81.8 |
| RoBERTa, the same books and Wikipedia | 16 GB | 8,000 | 100,000 | 89.0 | 95.3 | 87.3 |
| with additional text | 160 GB | 8,000 | 100,000 | 89.3 | 95.6 | 87.7 |
| longer | 160 GB | 8,000 | 300,000 | 90.0 | 96.1 | 88.7 |
| longer still | 160 GB | 8,000 | 500,000 | 90.2 | 96.4 | 89.4 |

How much text is that? (For BERT, see appendix A.2 of its paper: the first 90 % of the steps had 128 tokens, the rest 512.)
"""

# %%
bert_tokens = 900_000 * 256 * 128 + 100_000 * 256 * 512
for name, steps in (("first row", 100_000), ("last row", 500_000)):
    roberta_tokens = steps * 8_000 * 512
    print(f"RoBERTa, {name:<10}{roberta_tokens / 1e9:6,.0f} billion tokens", end="")
    print(f"   {roberta_tokens / bert_tokens:4.0f} times BERT's {bert_tokens / 1e9:.0f}")

# %% [markdown]
r"""
So even in its first row, with nearly the same text, RoBERTa has read about ten times as much as BERT. This is the most important thing to keep in mind
about all the tables below: **a model that is better and has read more may be better because it has read more.**

### Positions that count from the padding

The model has three small changes: no segments, a vocabulary made from bytes (section 3), and positions that are counted in another way. In BERT, column $s$ of the batch takes
row $s$ of the table of positions. In RoBERTa's table, the rows up to the id of the padding token belong to padding, and each text starts at the row after them. This is why `config.json` has
514 positions for 512 tokens: the padding id is 1.

### Your turn: positions from the mask

@exercise 23.positions_from_padding

The first real token of a text has position `padding` + 1, the next one `padding` + 2, and so on. All padding has position `padding`. The padding can be on
the right or on the left of a text.
"""


# %% tags=["solution"]
def my_positions_from_padding(mask, padding):
    """The row of RoBERTa's table of positions for each token: (B, S), integers.

    mask (B, S): 1 at tokens, 0 at padding. padding: the id of the padding token.
    """
    return np.cumsum(mask, axis=1) * mask + padding


# %%
check("23.positions_from_padding", my_positions_from_padding)

# %% [markdown]
r"""
What is this good for? Put padding on the left of a text, and look at the vectors of its tokens. They should not change.
"""

# %%
TINY = {
    "vocab_size": 60,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 40,
}
sentence = rng.integers(5, 60, size=8)  # (S,)


def vectors(model, before=(), words=sentence):
    """The last hidden states of the words (8, H), which come after other tokens that are masked."""
    ids = np.array([[*before, *words]])
    mask = np.array([[0] * len(before) + [1] * len(words)])
    outputs, _ = model.forward(ids, attention_mask=mask)
    return outputs.last_hidden_state[0, len(before) :]


def tiny(model_class, config_class, **settings):
    model = model_class(config_class(**TINY | settings), dtype="float64", seed=1)
    return model.eval() or model


for name, model in {
    "BERT": tiny(BertModel, BertConfig),
    "RoBERTa": tiny(roberta.RobertaModel, roberta.RobertaConfig),
}.items():
    padded = vectors(model, [model.config.pad_token_id] * 3)
    apart = np.linalg.norm(padded - vectors(model)) / np.linalg.norm(padded)
    print(
        f"{name:<8} with three padding tokens on its left, the sentence's vectors change by {apart:.1e}"
    )
    assert (apart < 1e-12) == (name == "RoBERTa")

# %% [markdown]
r"""
## 3. Must any text be unknown?

BERT's WordPiece ([07](07_wordpiece.ipynb)) removes accents and capitals, and a word with a character that it has never seen becomes [UNK].
BERT's successors use two other kinds of subwords:

| | begins with | learns | how it cuts a word | marks |
|---|---|---|---|---|
| **WordPiece** (BERT, DistilBERT, ELECTRA) | characters | which pairs to merge | takes the longest piece that fits, from the left | `##` inside a word |
| **byte-level BPE** (RoBERTa, DeBERTa, ModernBERT) | the 256 bytes | which pairs to merge, in which order | applies the merges in the order in which they were learned | `Ġ`, a space before the piece |
| **unigram** (XLNet, ALBERT; SentencePiece) | far too many pieces | a probability for each, and drops the least useful | takes the most probable way | `▁`, a space before the piece |

The library has all three, and can also learn them. Our text is the documentation that is installed with Python and the packages; every tenth document is held
out. All three get the same text and the same size of vocabulary.
"""

# %%
documents = list(itertools.islice(open_corpus(), 300))
held_out = [sentence for document in documents[::10] for sentence in document]
training = [sentence for i, document in enumerate(documents) for sentence in document if i % 10]
KINDS_OF_PIECES = {
    "WordPiece": BertTokenizer,
    "byte-level BPE": RobertaTokenizer,
    "unigram": AlbertTokenizer,
}
learned = {
    (name, size): kind.train(training, size)
    for name, kind in KINDS_OF_PIECES.items()
    for size in (1000, 2000, 4000, 8000)
}
print(f"{sum(map(len, training)):,} characters to learn from, {len(held_out):,} sentences held out")
for text in ("Tokenizers re-encode unhappily.", "naïve 🙂 ꙮ"):
    for name in KINDS_OF_PIECES:
        print(f"{name:<15}", *learned[name, 4000].tokenize(text))

# %% [markdown]
r"""
The strange letters of byte-level BPE are bytes: each of the 256 is written as a printable character, so `Ġ` is the space and `Ã¯` are the two bytes of ï in UTF-8.
Whatever can be written has bytes, so nothing can be unknown. (A unigram model could have the bytes as a last resort, too; ALBERT's does not.)

We measure three things on the held-out text: how many tokens a word needs, how many tokens are unknown, and whether decoding gives back the text.
"""

# %%
words = sum(len(text.split()) for text in held_out)
print("8,000 tokens      tokens per word   unknown   sentences decoded exactly")
for name in KINDS_OF_PIECES:
    tokenizer = learned[name, 8000]
    ids = [tokenizer.token_ids(text) for text in held_out]
    unknown = sum(row.count(tokenizer.unk_id) for row in ids)
    exact = np.mean(
        [tokenizer.decode(row) == text for row, text in zip(ids, held_out, strict=True)]
    )
    print(f"{name:<15}{sum(map(len, ids)) / words:12.2f}{unknown:16,}{exact:18.0%}")
    assert (exact == 1) == (name == "byte-level BPE")

# %% tags=["figure"]
# Caption: How many tokens a word becomes, for three tokenizers and four sizes of the vocabulary.
figure, axes = plt.subplots(figsize=(7.5, 3.0))
STYLES = {"WordPiece": (plots.BLUE, "o"), "byte-level BPE": (plots.VERMILION, "s")}
STYLES["unigram"] = (plots.GREEN, "^")
for name, (colour, marker) in STYLES.items():
    sizes = [size for kind, size in learned if kind == name]
    per_word = [
        sum(len(learned[name, size].token_ids(text)) for text in held_out) / words for size in sizes
    ]
    axes.semilogx(sizes, per_word, marker=marker, color=colour, label=name)
axes.set_xticks([1000, 2000, 4000, 8000], ["1,000", "2,000", "4,000", "8,000"])
axes.minorticks_off()
axes.set(
    title="held-out documentation", xlabel="tokens in the vocabulary", ylabel="tokens per word"
)
axes.legend()
plt.show()

# %% [markdown]
r"""
With a larger vocabulary, fewer tokens are needed in all three cases. The comparison between the three is not quite fair: byte-level BPE keeps capitals and accents, so it
needs separate tokens for "The" and "the". In return, its sentences come back exactly. The other two remove capitals and accents before they begin.

### The most probable way to cut a word

WordPiece takes the longest piece from the left, and never goes back. The unigram model (Kudo, [2018](https://arxiv.org/abs/1804.10959)) gives each piece
$t$ a probability. Of all ways to cut a word into pieces $t_1 \dots t_m$, it takes the one with the largest product of probabilities:

$$ \hat t = \operatorname*{arg\,max}_{t_1 t_2 \cdots t_m = \text{word}} \; \sum_{i=1}^{m} \log p(t_i) . $$

For a short word we can try them all.
"""

# %%
unigram = learned["unigram", 4000]
score = dict(zip(unigram.tokens, unigram.scores, strict=True))


def ways(word):
    """Every way to cut a word into pieces of the vocabulary."""
    if not word:
        yield []
    for end in range(1, len(word) + 1):
        if word[:end] in score:
            yield from ([word[:end], *rest] for rest in ways(word[end:]))


WORD = "▁reinserted"
ranked = sorted(ways(WORD), key=lambda pieces: -sum(score[piece] for piece in pieces))
print(f"{len(ranked)} ways to cut {WORD}; the best, and the worst:")
for pieces in (*ranked[:4], ranked[-1]):
    print(f"{sum(score[piece] for piece in pieces):8.2f}  {' '.join(pieces)}")
assert unigram.tokenize("reinserted") == ranked[0]
print("WordPiece, the longest first:", *learned["WordPiece", 4000].tokenize("reinserted"))

# %% tags=["figure"]
# Caption: The pieces that fit into one word. The thick path is the most probable one.
figure, axes = plt.subplots(figsize=(7.5, 3.2))
starts = np.cumsum([0, *map(len, ranked[0])])
best = set(itertools.pairwise(starts.tolist()))
for start, end in itertools.combinations(range(len(WORD) + 1), 2):
    piece = WORD[start:end]
    if piece not in score:
        continue
    taken = (start, end) in best
    height = 0.42 * (end - start)
    x = np.linspace(0, 1, 40)
    axes.plot(
        start + x * (end - start),
        height * 4 * x * (1 - x),
        color=plots.VERMILION if taken else plots.SKY,
        linewidth=2.4 if taken else 0.9,
        zorder=3 if taken else 1,
    )
    if taken:
        text = f"{piece}\n{score[piece]:.1f}".replace("-", "−")
        axes.text((start + end) / 2, height + 0.12, text, ha="center", fontsize=9.5)
for place, letter in enumerate(WORD):
    axes.text(place + 0.5, -0.32, letter, ha="center", fontsize=11)
axes.plot(range(len(WORD) + 1), np.zeros(len(WORD) + 1), "o", color="black", markersize=4)
axes.set(title=f"each arc is a piece; {WORD} is a path from left to right", ylim=(-0.55, 3.2))
axes.axis("off")
plt.show()

# %% [markdown]
r"""
The figure shows all pieces that fit somewhere in the word. The path that the model takes is thick, with the log-probabilities of its pieces. The number of ways grows exponentially with the length of the word. The library finds the best one with
dynamic programming (the Viterbi algorithm): the best way up to a letter ends with some piece, and what comes before this piece is the best way up to its beginning.

A larger vocabulary is not free. RoBERTa's 50,265 entries take $50{,}265 \times 768$ = 38.6 million parameters, and that is what makes it larger than BERT (section 1).
"""

# %% [markdown]
r"""
## 4. ALBERT: do we need all these parameters?

Lan and others ([2019](https://arxiv.org/abs/1909.11942)) changed three things (section 3.1 of the paper):

1. **Factorised embeddings.** A word by itself needs fewer numbers than a word in context. So the table has only `E` = 128 columns, and a linear map leads from `E` to `H`:

$$ V \cdot H \;\longrightarrow\; V \cdot E + E \cdot H . $$

2. **One layer for all.** The same weights are used `L` times: $h_n = f_\theta(h_{n-1})$ with one $\theta$ for all $n$.
3. **Sentence order** instead of the next sentence: the model gets two consecutive passages, or the same two exchanged, and has to say which. Their topic is no help here.

How much does each of the first two save? We count the parameters of BERT and ALBERT, and of the two models in between.
"""


# %%
def size(layers, hidden, embedding=None, shared=False, vocabulary=30_000):
    """Parameters of the embeddings, the layers and the pooler."""
    width = embedding or hidden
    table = (vocabulary + 512 + 2 + 2) * width  # words, positions, segments, LayerNorm
    mapped = embedding * hidden + hidden if embedding else 0
    one_layer = 12 * hidden**2 + 13 * hidden
    return np.array([table + mapped, (1 if shared else layers) * one_layer, hidden**2 + hidden])


STEPS = {
    "BERT": {},
    "factorised": {"embedding": 128},
    "shared": {"shared": True},
    "ALBERT: both": {"embedding": 128, "shared": True},
}
print(f"{'':<14}{'base: L 12, H 768':>20}{'large: L 24, H 1024':>22}")
counts = {name: size(12, 768, **step) for name, step in STEPS.items()}
for name, step in STEPS.items():
    print(f"{name:<14}{counts[name].sum():20,}{size(24, 1024, **step).sum():22,}")
assert counts["ALBERT: both"].sum() == count(BASE["ALBERT"])

# %% tags=["figure"]
# Caption: The parameters of BERT-base, with ALBERT's two ideas one at a time, and with both.
figure, axes = plt.subplots(figsize=(7.5, 2.5))
left = np.zeros(len(STEPS))
for i, (part, colour) in enumerate(
    {"embeddings": plots.ORANGE, "layers": plots.BLUE, "pooler": plots.GREY}.items()
):
    widths = np.array([parts[i] / 1e6 for parts in counts.values()])
    axes.barh(list(counts), widths, left=left, color=colour, label=part)
    left += widths
axes.invert_yaxis()
axes.set(title="base: where the parameters are", xlabel="millions of parameters")
axes.grid(False, axis="y")
axes.legend(fontsize=9, loc="lower right")
plt.show()

# %% [markdown]
r"""
(The paper's Table 1 says 108 and 334 million for BERT, and 12 and 18 million for ALBERT.) ALBERT-base has a tenth of the parameters, but **not a tenth of the work**: each token still passes through twelve layers. And what happens to the gradient of a weight that is
used twelve times? Notebook 11 has answered that for a matrix with [two uses](11_heads_losses.ipynb#4.-The-tied-decoder:-why-two-gradients-add). Here the
uses are stacked on top of each other.

### Your turn: one layer, three times

@exercise 23.shared_layer_backward

A small layer with a residual connection, $x \leftarrow x + \tanh(x W^\top + b)$, is used three times with the same $W$ and $b$:
"""

# %%
print(inspect.getsource(shared_layers))

# %% [markdown] tags=["derivation"]
r"""
Pretend that the three uses have their own weights $W_1, W_2, W_3$. Then this is a stack of three layers, and its backward pass goes from the
last one to the first. With $t_n = \tanh(z_n)$, $z_n = x_n W_n^\top + b_n$, and $g$ for the gradient of the output of use $n$:

$$
dz_n = g \odot (1 - t_n^2), \qquad
dW_n = dz_n^\top x_n, \qquad
db_n = \textstyle\sum_{b,s} dz_n, \qquad
g \leftarrow g + dz_n W_n ,
$$

where the first $g$ on the right of the last formula comes through the residual connection. Now set all three equal to $W$. By the chain rule $dW = dW_1 + dW_2 + dW_3$, and the same for $b$.
"""


# %% tags=["solution"]
def my_shared_layer_backward(dout, cache):
    """The gradients of shared_layers: dx (B, S, H), dweight (H, H), dbias (H,).

    dout (B, S, H); cache = (inputs, tanhs, weight): two lists with a (B, S, H) for each use, the first use
    first, and W (H, H).
    """
    inputs, tanhs, weight = cache
    dweight, dbias = np.zeros_like(weight), np.zeros(len(weight))
    for x, t in zip(inputs[::-1], tanhs[::-1], strict=True):
        dz = dout * (1 - t**2)  # (B, S, H)
        dweight += dz.reshape(-1, dz.shape[-1]).T @ x.reshape(-1, x.shape[-1])
        dbias += dz.sum(axis=(0, 1))
        dout = dout + dz @ weight  # past the layer, and through it
    return dout, dweight, dbias


# %%
check("23.shared_layer_backward", my_shared_layer_backward)

# %% [markdown]
r"""
In the library this needs no new code. A cache is returned by the forward pass and never kept in the layer, so the list of layers can simply contain
the same layer four times. Let us check this. Four separate layers that happen to have equal weights must compute the same as one layer that is used four times, and their four gradients
must add up to that of the one layer.
"""

# %%
sizes = TINY | {"vocab_size": 50}
separate = BertModel(BertConfig(**sizes | {"num_hidden_layers": 4}), dtype="float64", seed=1)
shared = BertModel(BertConfig(**sizes | {"num_hidden_layers": 1}), dtype="float64", seed=1)
shared.encoder.layer = shared.encoder.layer * 4  # one layer, four times
one = dict(shared.named_parameters())
for name, parameter in separate.named_parameters():  # four layers, all with the weights of that one
    first = name if "layer." not in name else f"encoder.layer.0.{name.split('.', 3)[3]}"
    parameter.value[...] = one[first].value

text = rng.integers(0, 50, (2, 7))
dhidden = rng.standard_normal((2, 7, 32))
for bert in (separate, shared):
    bert.eval()
    outputs, cache = bert.forward(text)
    bert.zero_grad()
    bert.backward(cache, dlast_hidden_state=dhidden)
WEIGHT = "output.dense.weight"
four = dict(separate.named_parameters())
parts = [four[f"encoder.layer.{n}.{WEIGHT}"].grad for n in range(4)]
assert np.allclose(one[f"encoder.layer.0.{WEIGHT}"].grad, sum(parts))
print("norms of the four gradients: ", *(f"{np.linalg.norm(part):.2f}" for part in parts))
print(f"of the shared layer's gradient, their sum: {np.linalg.norm(sum(parts)):.2f}")

# %% [markdown]
r"""
**What the paper reports.** The price of sharing is in Table 4, for a base model with `E` = 128 and the mean of five tasks: 81.6 with separate layers, 81.7 with shared attention,
80.2 with shared feed-forward networks, and 80.1 with everything shared. So nearly all that is lost is lost by sharing the feed-forward networks. ALBERT makes up for it with size. Its largest model has `H` = 4096 and
reaches 88.7 where BERT-large has 85.2. It has 235 million parameters where BERT-large has 334 million, but trains at 0.3 times its speed (Table 2).

The task has a table of its own (Table 5). A model that was trained on the next sentence gets 52.0 % on sentence order, which is about chance. A model that was trained on sentence order
gets 78.9 % on the next sentence, although it was never trained on that. The mean of the tasks is 79.0 without either, 79.2 with the next sentence, and 80.1 with sentence order.

## 5. DistilBERT: can a small model learn from a large one?

Sanh and others ([2019](https://arxiv.org/abs/1910.01108)) take BERT as a teacher. A label says which word was hidden. The teacher's distribution says more: which other words
would have fitted as well. Let `mini`, which comes with the library, be the teacher.
"""

# %%
mini = BertForPreTraining.from_pretrained("mini", dtype="float64")
pieces = BertTokenizer.from_pretrained("mini")


def scores_at_mask(text):
    ids = np.array([pieces(text)["input_ids"]])
    outputs, _ = mini.forward(ids)
    return outputs.prediction_logits[0, np.flatnonzero(ids[0] == pieces.mask_id)[0]]  # (V,)


logits = scores_at_mask("every morning he walked to the [MASK] .")
top = np.argsort(-logits)[:8]
print(f"{'':<6}", *(f"{pieces.tokens[i]:>9}" for i in top), "   the others")
softened = {}
for temperature in (1, 2, 4):
    softened[temperature] = softmax(logits[None] / temperature)[0][0]
    shown = softened[temperature][top]
    print(f"T = {temperature} ", *(f"{p:9.3f}" for p in shown), f"{1 - shown.sum():13.3f}")

# %% tags=["figure"]
# Caption: The teacher's probabilities for one gap, by rank, at three temperatures. Both axes are
#   logarithmic.
figure, axes = plt.subplots(figsize=(7.5, 2.8))
for (temperature, p), colour in zip(
    softened.items(), (plots.BLUE, plots.ORANGE, plots.GREEN), strict=True
):
    axes.loglog(
        np.arange(1, len(p) + 1), np.sort(p)[::-1], color=colour, label=f"T = {temperature}"
    )
axes.set(
    title="every morning he walked to the [MASK] .",
    xlabel="word, by rank",
    ylabel="the teacher's p",
)
axes.legend()
plt.show()

# %% [markdown]
r"""
The logits $z$ are divided by a **temperature** $T$ before the softmax. The larger $T$ is, the flatter the distribution: at $T = 2$ the eight likeliest words keep only a small part of the probability, and the thousands of others have most of it. The *soft* loss asks the student to come close to this distribution, at the same temperature.
It is added to the usual loss of masked words and to a third one: for each token, the cosine between the student's last hidden state $h$ and the teacher's $h'$. The weights are those of the published training program:

$$
L = 5 \cdot T^2 \, \mathrm{KL}\bigl( \operatorname{softmax}(z' / T) \,\Vert\, \operatorname{softmax}(z / T) \bigr)
+ 2 \cdot L_{\text{MLM}} + 1 \cdot \bigl( 1 - \cos(h, h') \bigr) .
$$

Here $\mathrm{KL}(q \,\Vert\, p) = \sum_i q_i (\log q_i - \log p_i)$ says how far $p$ is from $q$; it is 0 only if they are equal. Without the $T^2$ the gradients would shrink with $1/T^2$: a factor $1/T$ from $z/T$, and another one because both distributions become flat. With it they approach a limit:
"""

# %%
student_scores = logits + rng.standard_normal(len(logits))
for temperature in (1.0, 2.0, 8.0, 32.0):
    loss, cache = ops.soft_cross_entropy(student_scores[None], logits[None], temperature, 1.0)
    gradient = ops.soft_cross_entropy_backward(1.0, cache)[0]
    goal, own = (softmax(z[None] / temperature)[0][0] for z in (logits, student_scores))
    assert np.allclose(gradient, temperature * (own - goal))
    print(f"T = {temperature:<5} loss {loss:.4f}   ‖gradient‖ {np.linalg.norm(gradient):.4f}")

# %% [markdown]
r"""
The student has half as many layers, and it **begins** with every second layer of the teacher's. `take_layers` copies them. Everything else, the embeddings and the head, is copied whole.

Which of these four things matters: the layers at the start, the soft targets, the masked words, or the cosine? Our experiment is small. `mini` is first trained on the installed documentation for 400 steps, since it
knows only Wikipedia and novels. Then students with two of its four layers learn from it for 160 steps. Most of them lack one of the four things, two lack more, and each is trained with three seeds. We measure the masked-word loss on
documents that no model has read. This takes some fifteen minutes, so the results are read from a log; `RERUN` repeats the experiment on the documentation that *you* have.
"""

# %%
RERUN = False  # True: train here, and write logs/23_distillation.jsonl
LENGTH, RATE = 32, 5e-4
STUDENTS = {  # does it begin with layers of the teacher? The weights of soft loss, words, cosine
    "all of it": (True, 5, 2, 1),
    "without the soft targets": (True, 0, 2, 1),
    "without the cosine": (True, 5, 2, 0),
    "without the masked words": (True, 5, 0, 1),
    "random at the start": (False, 5, 2, 1),
    "layers, but no lessons": (True, 0, 2, 0),
    "nothing from the teacher": (False, 0, 2, 0),
}


def chunks(documents):
    """The tokens of the documents, 30 at a time between [CLS] and [SEP]: (N, 32)."""
    rows = []
    for document in documents:
        ids = [i for row in pieces.token_ids_batch(document) for i in row]
        for start in range(0, len(ids) - LENGTH + 2, LENGTH - 2):
            rows.append([pieces.cls_id, *ids[start : start + LENGTH - 2], pieces.sep_id])
    return np.array(rows)


def hidden_words(rows, rng):
    """A batch in which 15 % of the tokens are [MASK]. rows (B, S)."""
    candidates = np.isin(rows, [pieces.cls_id, pieces.sep_id], invert=True)
    lengths = np.full(len(rows), rows.shape[1])
    chosen = choose_positions(candidates, lengths, candidates, 0.15, 20, rng)  # (B, S)
    return {
        "input_ids": np.where(chosen, pieces.mask_id, rows),
        "labels": np.where(chosen, rows, -100),
        "attention_mask": np.ones_like(rows),
    }


def learn(model, lesson, training, test, steps, seed):
    """Train the model on the loss of the lesson; returns its masked-word loss on the test, measured 5 times."""
    optimiser, rng, losses = AdamW(model, bias_correction=True), np.random.default_rng(seed), []
    for step in range(steps + 1):
        if step % (steps // 4) == 0:
            model.eval()
            losses.append(float(model.forward(**test)[0].mlm_loss))
            model.train()
        chosen = training[rng.integers(len(training), size=32)]
        _, cache = lesson.forward(**hidden_words(chosen, rng))
        model.zero_grad()
        lesson.backward(cache)
        optimiser.step(RATE * min((step + 1) / 20, 1 - step / (steps + 1)), step)
    model.eval()
    return losses


# %%
def distil():
    """The teacher is trained on the text for a while, then each student learns: a line of the log for each."""
    documents = list(itertools.islice(open_corpus(), 400))
    training, unread = chunks(documents[40:]), chunks(documents[:40])[:300]
    test = hidden_words(unread, np.random.default_rng(0))
    teacher = BertForPreTraining.from_pretrained("mini")
    yield {"student": "the teacher", "loss": learn(teacher, teacher, training, test, 400, 99)}
    for (name, (layers, *weights)), seed in itertools.product(STUDENTS.items(), range(3)):
        student = BertForPreTraining(teacher.config.replace(num_hidden_layers=2), seed=seed)
        if layers:
            take_layers(student, teacher)
        names = "soft_weight", "mlm_weight", "cosine_weight"
        both = MaskedWordDistillation(student, teacher, **dict(zip(names, weights, strict=True)))
        losses = learn(student, both, training, test, 160, seed)
        yield {"student": name, "seed": seed, "loss": losses}


log = write_log("23_distillation.jsonl", distil()) if RERUN else read_log("23_distillation.jsonl")
results = {}  # student → losses (seeds, 5)
for row in log:
    results.setdefault(row["student"], []).append(row["loss"])
print("masked-word loss on unread documents       before    after   (each of three seeds)")
for name, losses in results.items():
    first, last = np.array(losses)[:, 0], np.array(losses)[:, -1]
    print(f"{name:<42}{first.mean():7.2f}{last.mean():9.2f}   ", *(f"{x:.2f}" for x in last))
unread = chunks(documents[:40])[:300, 1:-1].ravel()
counts_of = np.bincount(chunks(documents[40:])[:, 1:-1].ravel(), minlength=len(pieces)) + 1
by_frequency = -np.log(counts_of[unread] / counts_of.sum()).mean()
print(f"guessing by frequency, today's documentation{by_frequency:15.2f}")

# %% tags=["figure"]
# Caption: All of these students begin with the teacher's layers. The labels say what was left out of
#   the training.
figure, axes = plt.subplots(figsize=(7.5, 3.0))
names = [name for name in STUDENTS if STUDENTS[name][0]]  # those that begin with layers
for place, name in enumerate(names):
    last = np.array(results[name])[:, -1]
    axes.plot(last, [place] * len(last), "o", color=plots.BLUE, alpha=0.8)
[teacher_losses] = results["the teacher"]
axes.axvline(teacher_losses[-1], color=plots.VERMILION, linestyle="--", label="the teacher")
axes.set_yticks(range(len(names)), names)
axes.invert_yaxis()
axes.set(
    title="students that begin with the teacher's layers, three seeds each",
    xlabel="masked-word loss (nats)",
)
axes.legend(fontsize=9)
plt.show()

# %% [markdown]
r"""
Seeds differ by up to 0.03, so only what is clearly larger counts as a difference.

- **The layers at the start** are worth more than all the rest together. Students that begin at random are still at 6.3 nats after 160 steps. Guessing by frequency is no worse (the last line of the table): these students have not left the plateau of [14](14_pretraining.ipynb).
- **The soft targets** are worth 0.12 nats: without them a student ends at 3.40 instead of 3.28. It then learns hardly more than from the words alone (3.41).
- **The masked words** are worth 0.06 nats in addition to the soft targets.
- **The cosine** is worth nothing that we could measure here. Our students are trained only briefly, and are judged only by the masked-word loss. The paper judges by tasks, and finds more.

No student reaches its teacher (2.60 nats) in this time. All of these numbers belong to a small model and few steps: with longer training, the start should matter less.

**What the paper reports.** DistilBERT has 66 million parameters instead of 110, and 97 % of BERT's score: 77.0 instead of 79.5, the mean of nine GLUE tasks (Table 1). One pass
over the task STS-B takes it 410 seconds on a CPU, instead of 668 (Table 3). The paper's own ablation (Table 4) agrees with ours on what matters most. A random start costs 3.69 points, no soft targets 2.96, no cosine 1.46,
and no masked words only 0.31.

## 6. ELECTRA: can every token teach?

BERT learns from 15 % of the tokens that it reads. ELECTRA (Clark and others, [2020](https://arxiv.org/abs/2003.10555)) has two models. A small one, the **generator**, is a BERT that fills the gaps: for each, it draws a word from its own distribution.
The other one, the **discriminator**, says of *every* token whether it is the original. With $z_s$ for the score of token $s$, and $y_s = 1$ where it was replaced, the loss is

$$
L = L_{\text{MLM}}(\text{generator}) + 50 \cdot \frac{1}{S} \sum_{s=1}^{S} \bigl( \log(1 + e^{z_s}) - y_s z_s \bigr) .
$$

Let `mini` be the generator. It gets a text of four sentences 24 times, each time with other gaps.
"""

# %%
STORY = (
    "the old man lived in a small house near the river . every morning he walked to the village "
    "to buy bread . in the winter the road was covered with snow , and he stayed at home . "
    "his daughter came to see him once a year , and brought him books and letters ."
)
story = np.array(pieces(STORY)["input_ids"])
rows = np.tile(story, (24, 1))  # (B, S)
batch = hidden_words(rows, rng)
chosen = batch["labels"] != -100  # (B, S)
outputs, _ = mini.forward(batch["input_ids"], return_logits=False)
logits, _ = mini.cls.predictions.forward(outputs.last_hidden_state, np.flatnonzero(chosen))
p, _ = softmax(logits)  # (N, V)
drawn = (p.cumsum(axis=1) < rng.random((len(p), 1))).sum(axis=1).clip(max=len(pieces) - 1)
corrupted = rows.copy()
corrupted[chosen] = drawn
replaced = corrupted != rows

line = zip(rows[0], corrupted[0], strict=True)
words = [pieces.tokens[a] + (f"→{pieces.tokens[b].upper()}" if a != b else "") for a, b in line]
print(textwrap.fill(" ".join(words[1:-1]), 100))
print(f"\ntokens with a loss: BERT {chosen.mean():.0%}, ELECTRA 100%")
print(
    f"{(drawn == rows[chosen]).mean():.0%} of the drawn words are the original, and labelled as such; ",
    end="",
)
print(f"{replaced.mean():.0%} of all tokens are replaced")
assert not replaced[~chosen].any()

# %% [markdown]
r"""
Why a generator, and not random words? Because random words would give themselves away. Here is how surprising `mini` finds the original words, its own guesses, and random words
in the same places.
"""

# %%
anything = rng.integers(5, len(pieces), len(p))
surprise = {
    "original": -np.log(p[range(len(p)), rows[chosen]]),
    "generator's guess": -np.log(p[range(len(p)), drawn]),
    "any word": -np.log(p[range(len(p)), anything]),
}
for name, nats in surprise.items():
    print(f"{name:<18} {np.median(nats):5.1f} nats (median)")
assert np.median(surprise["any word"]) > np.median(surprise["generator's guess"])

# %% tags=["figure"]
# Caption: How surprising `mini` finds three kinds of words in their places. The generator's guesses
#   are about as surprising as the originals.
figure, axes = plt.subplots(figsize=(7.5, 2.8))
for (name, nats), colour in zip(
    surprise.items(), (plots.BLUE, plots.ORANGE, plots.VERMILION), strict=True
):
    axes.hist(nats, np.arange(0, 31), histtype="step", linewidth=2, color=colour, label=name)
axes.set(title="how surprising a word is in its place", xlabel="−log p (nats)", ylabel="words")
axes.legend(fontsize=9)
plt.show()

# %% [markdown]
r"""
Most random words are far to the right, where hardly any original word is, so a rule as simple as "more than 10 nats" would find them. The generator's guesses are about as surprising as the originals.

### What flows back, and what does not

A GAN would train the generator to deceive the discriminator. ELECTRA does not, since no gradient passes through a drawn word. The two models meet only in the embeddings, which they share. We can see this in the
library's joint model: set the discriminator's weight of 50 to 0, and compare the gradients.
"""

# %%
config = electra.ElectraConfig(**TINY | {"num_attention_heads": 4, "embedding_size": 16})
joint = ElectraGeneratorAndDiscriminator(config, generator_config(config, 0.25), dtype="float64")
joint.eval()
ids = rng.integers(5, 60, (4, 20))
labels = np.where(rng.random(ids.shape) < 0.15, ids, -100)
batch = {"input_ids": np.where(labels == -100, ids, 4), "labels": labels}
batch["attention_mask"] = np.ones_like(ids)
gradients = {}
for weight in (50.0, 0.0):
    joint.replaced_weight = weight
    outputs, cache = joint.forward(**batch)
    joint.zero_grad()
    joint.backward(cache)
    gradients[weight] = {name: p.grad.copy() for name, p in joint.named_parameters()}
for part in (
    "generator.bert.encoder",
    "generator.cls",
    "word_embeddings",
    "discriminator.bert.encoder",
):
    names = [name for name in gradients[0.0] if part in name]
    same = all(np.array_equal(gradients[50.0][name], gradients[0.0][name]) for name in names)
    print(
        f"{part:<28} gradient {'the same without' if same else 'changes with'} the discriminator's loss"
    )
    assert same == part.startswith("generator")
every = (1 / (1 + np.exp(-outputs.rtd_logits)) - outputs.replaced) / ids.size  # (B, S)
print(f"tokens with a gradient: {(every != 0).mean():.0%}")

# %% [markdown]
r"""
**What the paper reports.** Table 5 says where the gain comes from, with the same compute, as the mean of the GLUE tasks: BERT has 82.2, ELECTRA with a loss on only the 15 % has 82.4, BERT with drawn words in the place of
[MASK] has 82.4, and ELECTRA has 85.0. So the gain comes from the loss on all tokens. The generator should be small, between a quarter and a half of the discriminator's size (section 3.2), since one that is too
good makes the task too hard. DeBERTaV3 ([2021](https://arxiv.org/abs/2111.09543)) uses the same task.
"""

# %% [markdown]
r"""
## 7. XLNet: both sides without a mask?

BERT guesses all hidden words at once, each as if it knew nothing of the other guesses. Yang and others ([2019](https://arxiv.org/abs/1906.08237)) give "New York" as an example:
if both words are hidden, "new" cannot help to guess "york".
"""

# %%
TRIP = "in the summer of 1998 she moved to new york with her family ."
trip = np.array(pieces(TRIP)["input_ids"])
[york] = pieces.token_ids("york")
at = int(np.flatnonzero(trip == york)[0])


def probability_of_york(hidden):
    ids = trip.copy()
    ids[hidden] = pieces.mask_id
    outputs, _ = mini.forward(ids[None])
    return softmax(outputs.prediction_logits[0, at])[0][york]


both, alone = probability_of_york([at - 1, at]), probability_of_york([at])
print(f"p(york), both hidden: {both:.5f}     p(york | new): {alone:.3f}")
assert both < alone

# %% [markdown]
r"""
A left-to-right model has no such problem, since it predicts one word after another, and knows those before it each time. But it sees only one side. XLNet keeps the first property and drops the second: it draws
a random **order** $o_1, o_2, \dots, o_S$ of the tokens, and predicts them in this order:

$$
\log p(x) = \sum_{t=1}^{S} \log p\bigl( x_{o_t} \mid x_{o_1}, \dots, x_{o_{t-1}} \bigr) .
$$

Left to right is one of the $S!$ orders. In others, words on the right come first. **The words themselves do not move**: each keeps its place, and its position. Only the attention mask says who may see whom.

There is a catch. Let token $i$ be at some place of the order.

- To **predict** token $i$, its vector may know its *position*, but not the *word*.
- The tokens **after** it in the order need to read the word from it.

One vector cannot do both. So XLNet has two vectors for each token, the **two streams** (section 2.3): the *content* $h_i$ knows the word, and the *query* $g_i$ knows only the position. Both go through the same layers with the same weights. Keys and values are computed from
the content alone:

$$
\begin{aligned}
h_i &\leftarrow \operatorname{layer}(h_i;\ \text{keys and values: } h_j \text{ that the content of } i \text{ sees}) , \\
g_i &\leftarrow \operatorname{layer}(g_i;\ \text{keys and values: } h_j \text{ that the query of } i \text{ sees}) .
\end{aligned}
$$
"""

# %% tags=["figure"]
# Caption: What the two vectors of “she” read in one layer. The dashed arrow is the residual
#   connection of the query.
figure, panels = plt.subplots(1, 2, figsize=(7.5, 3.5), sharey=True)
WORDS = ["she", "moved", "to", "york"]
PLACES = {3: 0, 1: 1, 0: 2, 2: 3}  # token → its place in the order: york, moved, she, to
for axes, stream in zip(panels, ("content", "query"), strict=True):
    target = 0
    for token, word in enumerate(WORDS):
        for level in (0, 1):
            for kind, shift, colour in (("h", -0.2, plots.BLUE), ("g", 0.2, plots.VERMILION)):
                active = level == 0 or (
                    token == target and kind == {"content": "h"}.get(stream, "g")
                )
                box = {"boxstyle": "round,pad=0.25", "facecolor": "white"}
                box["edgecolor"] = colour if active else "#d0d0d0"
                axes.text(
                    token + shift,
                    1.6 * level,
                    f"${kind}_{token + 1}$",
                    ha="center",
                    va="center",
                    color=colour if active else "#d0d0d0",
                    bbox=box,
                )
        axes.text(token, -0.6, word, ha="center")
        axes.text(
            token,
            -0.95,
            ("1st", "2nd", "3rd", "4th")[PLACES[token]],
            ha="center",
            fontsize=9,
            color=plots.GREY,
        )
    goal = target + (-0.2 if stream == "content" else 0.2)
    colour = plots.BLUE if stream == "content" else plots.VERMILION
    sources = [
        token - 0.2
        for token in range(4)
        if PLACES[token] < PLACES[target] or (token == target and stream == "content")
    ]
    sources += [goal] * (
        stream == "query"
    )  # the query's own state, through the residual connection
    for source in sources:
        arrow = {
            "arrowstyle": "-|>",
            "color": colour,
            "shrinkA": 13,
            "shrinkB": 13,
            "linewidth": 1.4,
        }
        own = stream == "query" and source == goal
        axes.annotate(
            "", (goal, 1.6), (source, 0), arrowprops=arrow | {"linestyle": "--" if own else "-"}
        )
    title = f"the {stream} of “she”: " + (
        "position, and word" if stream == "content" else "position only"
    )
    axes.set(title=title, xlim=(-0.6, 3.6), ylim=(-1.15, 2.0))
    axes.axis("off")
plt.show()

# %% [markdown]
r"""
The order here is "york", "moved", "she", "to" (1st to 4th below the words), and the figure shows what the two vectors of "she" read in one layer. Both read the content of what comes earlier in the order, "york" and "moved", on whichever side it is. Only
the content reads its own word. (The query's residual connection brings the position, but no word.) At the bottom, the contents begin as the embeddings of their words, while all queries begin as one and the same learned vector.

### Your turn: two masks from an order

@exercise 23.permutation_masks

Each of the two streams has a mask. True in row $i$ and column $j$ means that token $i$ sees the content of token $j$. Rows and columns are tokens in the order of the text.
"""


# %% tags=["solution"]
def my_permutation_masks(order):
    """Who sees whom: content (S, S), query (S, S), both of bool.

    order (S,): a permutation; order[0] is the token that comes first, then order[1], …
    """
    rank = np.argsort(order)  # (S,): the place of each token, the inverse permutation
    return rank[None, :] <= rank[:, None], rank[None, :] < rank[:, None]


# %%
check("23.permutation_masks", my_permutation_masks)

# %% [markdown]
r"""
Do the library's streams keep this promise through several layers? We change one word at a time, and look at which states move. If a
layer leaked, a state would move that should not.
"""

# %%
order = np.array([3, 0, 5, 1, 4, 2])  # token 3 first, then token 0, …
S = len(order)
masks = EXERCISES["23.permutation_masks"].reference(order)  # content and query, (S, S) each
targets = np.sort(order[1:])  # the first has nothing to be predicted from
net = xlnet.XLNetModel(
    xlnet.XLNetConfig(**TINY | {"num_hidden_layers": 3, "initializer_range": 0.3}),
    dtype="float64",
    seed=2,
)
net.eval()
ids = rng.integers(5, 50, (1, S))
orders = {"perm_mask": ~masks[1][None], "target_mapping": np.eye(S)[None, targets]}


def states(ids):
    """The states on top: the content of all tokens, then the queries of the targets, (S + P, H)."""
    outputs, _ = net.forward(ids, **orders, return_hidden_states=True)
    return outputs.hidden_states[-1][0]


before = states(ids)
moved = np.zeros((2, S, S), bool)  # stream, state i, changed word j
for j in range(S):
    changed = ids.copy()
    changed[0, j] += 1
    change = np.abs(states(changed) - before).max(axis=-1) > 1e-9
    moved[0, :, j], moved[1, targets, j] = change[:S], change[S:]
assert np.array_equal(moved, masks)
print("after three layers, exactly those states move that the masks allow")

# %% tags=["figure"]
# Caption: Which states (rows) move when a word (column) changes. The two panels on the right are
#   measured.
figure, axes = plt.subplots(1, 3, figsize=(7.5, 2.9))
for panel, seen, title in (
    (axes[0], np.tri(S), "left to right"),
    (axes[1], moved[0], "content, order 3 0 5 1 4 2"),
    (axes[2], moved[1], "query, the same order"),
):
    panel.imshow(seen, cmap="Blues", vmax=1.4)
    panel.set_xticks(np.arange(S - 1) + 0.5, minor=True)
    panel.set_yticks(np.arange(S - 1) + 0.5, minor=True)
    panel.set(xlabel="changed word", xticks=range(S), yticks=range(S))
    panel.set_title(title, fontsize=10.5)
    panel.grid(False)
    panel.grid(True, which="minor", color="white", linewidth=1.5)
    panel.tick_params(which="minor", length=0)
axes[0].set_ylabel("state that moves")
plt.show()

# %% [markdown]
r"""
A blue square means that the state of this row moves when the word of this column changes. The two panels on the right differ only in the diagonal. So row 3 of the queries is empty: the first token of an
order would have to be predicted from nothing, and the library refuses to do that.

The next few tokens have little more to go by. That is why only the last sixth of each order is predicted (section 2.3; $K = 6$ in the paper). This share is close to BERT's 15 %, so XLNet does not learn from many more tokens than BERT does. The library's `factorisation_orders` draws such orders
for its own pre-training.

**What the paper reports.** Table 6 has base models that were trained on the same text. On MNLI, BERT has 84.3, BERT's task with XLNet's architecture (that of Transformer-XL, with
relative positions and a memory) has 84.9, and XLNet has 85.8 (with $K = 7$; 85.6 with $K = 6$). So one part of the gain is due to the architecture, and another part to the task. RoBERTa appeared a month later, and reached XLNet's scores with BERT's
task and more training.

## 8. Where is a word?

To each word, BERT adds a learned vector that says "you are number 17". Is this what a model needs to know? Mostly it matters that the adjective is *one to the left* of the noun, wherever both are. If we multiply out BERT's scores,
with $w$ for words and $p$ for positions, there are four kinds of products:

$$
(w_i + p_i)^\top M (w_j + p_j) = w_i^\top M w_j + w_i^\top M p_j + p_i^\top M w_j + p_i^\top M p_j , \qquad M = W_q^\top W_k .
$$

All of them have to share the same $M$, and nothing says that $p_3$ and $p_4$ are related as $p_{13}$ and $p_{14}$ are. In the three successors of this section, positions enter a score only as a distance: two of them replace the last three terms, and the third turns the vectors of the first.

**Transformer-XL and XLNet.** There is a vector $r_{i-j}$ for each distance, made of sines and cosines and never learned, with a matrix of its own. Two learned vectors $u$ and $v$ for each head stand in for the query's position. (The last exercise of
[08](08_attention.ipynb) has a simpler form, one number per distance.)

$$ s_{ij} = (q_i + u)^\top k_j + (q_i + v)^\top W_r \, r_{i-j} . $$

**DeBERTa.** Content and position are kept apart ("disentangled", He and others, [2020](https://arxiv.org/abs/2006.03654)). Each layer computes keys $k^r$ and queries $q^r$ for distances from *one* learned table:

$$
s_{ij} = \frac{1}{\sqrt{3D}} \Bigl( \underbrace{q_i^\top k_j}_{\text{content to content}}
+ \underbrace{q_i^\top k^r_{\delta(i,j)}}_{\text{content to position}}
+ \underbrace{k_j^\top q^r_{\delta(j,i)}}_{\text{position to content}} \Bigr),
\qquad \delta(i, j) = \operatorname{clip}(i - j + K,\ 0,\ 2K - 1) .
$$

The second term says: *I am a noun, I look for what is one to my left*. The third says: *I am an adjective, I have something to say to what is one to my right*. There is no term for position to position, since with distances it would say nothing about
the words. The three terms have about the same size, so the root has a 3 in it.
"""

# %%
S, D, K = 10, 16, 4
rows = distance_rows(S, K)  # δ(i, j), (S, S)
q, k = rng.standard_normal((2, 1, S, D))
key_table, query_table = rng.standard_normal((2, 2 * K, D))
terms = {
    "content to content": q[0] @ k[0].T,
    "content to position": np.take_along_axis(q[0] @ key_table.T, rows, axis=1),
    "position to content": np.take_along_axis(k[0] @ query_table.T, rows, axis=1).T,
}
scores = sum(terms.values()) / np.sqrt(3 * D)
y, cache = disentangled_attention(
    q, k, np.eye(S)[None], key_table, query_table, np.zeros((1, 1, S)), rows
)
assert np.allclose(y[0], softmax(scores)[0])  # with these values, y is the weights
for name, term in terms.items():
    print(f"{name:<20} standard deviation {term.std():.2f}")
print(f"{'their sum / √(3 D)':<20} standard deviation {scores.std():.2f}")

# %% tags=["figure"]
# Caption: The row of the tables that each pair of tokens uses, and the three parts of its score.
figure, axes = plt.subplots(1, 4, figsize=(7.5, 2.5))
axes[0].imshow(rows, cmap="cividis")
for (i, j), row in np.ndenumerate(rows):
    axes[0].text(
        j, i, row, ha="center", va="center", fontsize=6.5, color="white" if row < 5 else "black"
    )
axes[0].set_title("δ(i, j)", fontsize=10.5)
for panel, (name, term) in zip(axes[1:], terms.items(), strict=True):
    plots.heatmap(panel, term, limit=10)
    panel.set_title(name.replace(" to ", " to\n"), fontsize=10.5)
for panel in axes:
    panel.grid(False)
    panel.set(xticks=[0, 9], yticks=[0, 9], xlabel="key j")
axes[0].set_ylabel("query i")
plt.show()

# %% [markdown]
r"""
On the left is the row of the tables that each pair uses. All keys that are $K$ or more to the right share row 0, and all that are $K - 1$ or more to the left share row $2K - 1$. The first term has no pattern. In the second, all far keys of a query have the same score (the constant pieces of a row). In the third, all far queries of a key do (the constant pieces
of a column).

### Open: the backward pass of disentangled attention

@exercise 23.disentangled_backward

One head, with its two tables given, and a bias for padding:
"""

# %%
print(inspect.getsource(disentangled_attention))

# %% [markdown]
r"""
Find the gradients of q, k, v and of both tables. This notebook has given no formula for them so far. Where was each of the five used?
"""

# %% [markdown] tags=["derivation"]
r"""
The end is as in any attention ([08](08_attention.ipynb)): $dv = p^\top dy$, $dp = dy \, v^\top$, and the softmax's backward pass gives $ds$. Let $d = ds / \sqrt{3D}$. The three terms were added, so each of them receives this $d$. Then for each pair

$$
\begin{aligned}
q_i^\top k_j &: & dq_i &\mathrel{+}= d_{ij} \, k_j, & dk_j &\mathrel{+}= d_{ij} \, q_i \\
q_i^\top k^r_{\delta(i,j)} &: & dq_i &\mathrel{+}= d_{ij} \, k^r_{\delta(i,j)}, & dk^r_{\delta(i,j)} &\mathrel{+}= d_{ij} \, q_i \\
k_j^\top q^r_{\delta(j,i)} &: & dk_j &\mathrel{+}= d_{ij} \, q^r_{\delta(j,i)}, & dq^r_{\delta(j,i)} &\mathrel{+}= d_{ij} \, k_j
\end{aligned}
$$

The sums for $q$ and $k$ run over the other index. Those for the tables run over all pairs with this distance, and over all sequences. This is a scatter-add with $\delta$ for the ids. In the last line the ids are transposed.
"""


# %% tags=["solution"]
def my_disentangled_backward(dout, cache):
    """The gradients of disentangled_attention: dq, dk, dv (B, S, D), dkey_table, dquery_table (2K, D).

    dout (B, S, D); cache = (q, k, v, p, key_table, query_table, rows), with p (B, S, S) and rows (S, S).
    """
    q, k, v, p, key_table, query_table, rows = cache
    dp = dout @ v.transpose(0, 2, 1)  # (B, S, S)
    ds = p * (dp - (dp * p).sum(axis=-1, keepdims=True))
    d = ds / np.sqrt(3 * q.shape[-1])
    dq = d @ k + np.einsum("bij,ijd->bid", d, key_table[rows])
    dk = d.transpose(0, 2, 1) @ q + np.einsum("bij,ijd->bjd", d, query_table[rows.T])
    dkey_table, dquery_table = np.zeros_like(key_table), np.zeros_like(query_table)
    np.add.at(dkey_table, rows, np.einsum("bij,bid->ijd", d, q))
    np.add.at(dquery_table, rows.T, np.einsum("bij,bjd->ijd", d, k))
    return dq, dk, p.transpose(0, 2, 1) @ dout, dkey_table, dquery_table


# %%
check("23.disentangled_backward", my_disentangled_backward)

# %% [markdown]
r"""
(Distances alone are not enough for some sentences: in "a new *store* opened beside the new *mall*", the example in the paper, both hidden words come right after "new". So DeBERTa adds the absolute positions again at the very end, before the words are predicted. The paper calls this the enhanced mask decoder.)

**What the paper reports.** On MNLI, DeBERTa-base has 88.8 where RoBERTa-base has 87.6, with half of RoBERTa's text (80 GB). In an ablation with less training (Table 4), the whole model has 86.3. It has 85.9 without content to position, 86.0 without position to content,
and 86.1 without the enhanced mask decoder.

### Turning instead of adding

RoPE (Su and others, [2021](https://arxiv.org/abs/2104.09864)) adds nothing at all. It takes the features of each query and key in pairs. Each pair is a point in a plane, and at position $s$ this point is turned by an angle $s \, \omega_n$:

$$
R(s) = \begin{pmatrix} \cos s\omega_n & -\sin s\omega_n \\ \sin s\omega_n & \cos s\omega_n \end{pmatrix},
\qquad \omega_n = 10000^{-2n/D},
$$

$$
\bigl(R(i)\,q\bigr)^\top \bigl(R(j)\,k\bigr) = q^\top R(i)^\top R(j) \, k = q^\top R(j - i) \, k .
$$

The product depends on the distance, not on the places. Each pair has a frequency of its own: $n = 0$ turns by one radian per token, and the last pair hardly turns at all.
"""

# %%
D, S = 8, 48
query, key = rng.standard_normal((2, D))
everywhere = np.zeros((1, S, 3 * D))  # the same query and key at each position, and no values
everywhere[..., :D], everywhere[..., D : 2 * D] = query, key
turned, _ = ops.rotary_embedding(everywhere, 1)
q, k = turned[0, :, :D], turned[0, :, D : 2 * D]
by_place = q @ k.T  # (S, S)
for distance in (0, 1, 7):
    diagonal = np.diagonal(by_place, distance)
    print(
        f"key {distance} to the right: {len(diagonal)} pairs, all with the score {diagonal[0]:.3f}"
    )
    assert np.ptp(diagonal) < 1e-12
print(
    f"norms: {np.linalg.norm(query):.3f} before, {np.ptp(np.linalg.norm(q, axis=1)):.0e} apart after"
)

# %% tags=["figure"]
# Caption: Rotary positions: two pairs of features as hands of a clock, the scores that follow from
#   them, and four speeds.
figure, axes = plt.subplots(1, 3, figsize=(7.5, 2.8), width_ratios=[1, 1.15, 1.5])
circle = plt.Circle((0, 0), 1, fill=False, color=plots.GREY, linewidth=0.8)
axes[0].add_patch(circle)
for place in range(6):
    for pair, colour in ((0, plots.BLUE), (1, plots.ORANGE)):
        angle = 0.3 + place * 10000 ** (-2 * pair / D)
        end = np.cos(angle), np.sin(angle)
        arrow = {"arrowstyle": "-|>", "color": colour, "alpha": 0.3 + 0.14 * place}
        axes[0].annotate("", end, (0, 0), arrowprops=arrow | {"shrinkA": 0, "shrinkB": 0})
        if pair == 0 or place in (0, 5):
            axes[0].text(
                1.18 * end[0], 1.18 * end[1], place, color=colour, ha="center", va="center"
            )
axes[0].set(xlim=(-1.4, 1.4), ylim=(-1.4, 1.4), aspect="equal", title="two pairs, six places")
axes[0].axis("off")
plots.heatmap(axes[1], by_place[:16, :16])
axes[1].set(
    title="same q, same k", xlabel="key at", ylabel="query at", xticks=[0, 15], yticks=[0, 15]
)
for pair, colour in enumerate((plots.BLUE, plots.ORANGE, plots.GREEN, plots.PURPLE)):
    axes[2].plot(np.cos(np.arange(S) * 10000 ** (-2 * pair / D)), color=colour, label=f"n = {pair}")
axes[2].set(title="cos of the angle", xlabel="distance", ylim=(-1.2, 1.75))
axes[2].legend(fontsize=8.5, ncols=2, loc="upper right")
plt.show()

# %% [markdown]
r"""
On the left, the first pair of features (blue) turns by one radian per token, and the second (orange) ten times more slowly. In the middle are the scores of one query and one key at all places; they are equal along
the diagonals. On the right, fast pairs tell short distances apart, and slow pairs long ones.

What do the different kinds of positions do to a whole model? We put more and more tokens before the same eight words. Nobody can see these tokens, because their mask is 0. A model that knows only distances should not notice them.
"""

# %%
MODELS = {
    "BERT (a table)": tiny(BertModel, BertConfig),
    "mini, trained (a table)": mini.bert,
    "XLNet (distances)": tiny(xlnet.XLNetModel, xlnet.XLNetConfig),
    "RoPE (distances)": tiny(modern.ModernModel, modern.ModernConfig),
}
shifts = range(0, 25, 2)
curves = {}
eight = np.array(pieces("he walked to the village .")["input_ids"])
for name, model in MODELS.items():
    words = eight if model is mini.bert else sentence
    alone = vectors(model, words=words)
    later = [vectors(model, [7] * shift, words) for shift in shifts]
    curves[name] = [np.linalg.norm(x - alone) / np.linalg.norm(alone) for x in later]
    print(f"{name:<24} moved by 2: {curves[name][1]:.0e}   moved by 24: {curves[name][-1]:.0e}")
    assert (curves[name][-1] < 1e-12) == ("distances" in name)

# %% tags=["figure"]
# Caption: How much the vectors of eight words change when the words are moved to the right.
figure, axes = plt.subplots(figsize=(7.5, 2.8))
LINES = (
    (plots.BLUE, "s-", 5),
    (plots.GREEN, "^-", 5),
    (plots.VERMILION, "o-", 10),
    (plots.ORANGE, "x", 5),
)
for (name, curve), (colour, line, size_of_marker) in zip(curves.items(), LINES, strict=True):
    hollow = {"markerfacecolor": "none", "markersize": size_of_marker}
    axes.plot(shifts, curve, line, color=colour, label=name, **hollow)
axes.set(title="the same words, further to the right", xlabel="moved by", ylim=(-0.08, 1.3))
axes.set(ylabel="relative change")
axes.legend(fontsize=9, ncols=2)
plt.show()

# %% [markdown]
r"""
All models except `mini` are untrained. The untrained BERT's vectors change most, since each position has a random vector. `mini` has been trained, and its vectors change less, but still by more than a third (about 0.4): for it, the same sentence means something else at another place.
The two models with distances are at 0 (circles and crosses). Neither of them needs a table, so the shapes of their weights do not limit the length of a text.

## 9. ModernBERT: what would we decide today?

Warner and others ([2024](https://arxiv.org/abs/2412.13663)) collected what had been learned in six years, a good part of it from models that generate text. Section 2 of the paper has their list:

| | BERT | ModernBERT |
|---|---|---|
| LayerNorm | after each sublayer | before it (pre-LN, [10](10_encoder.ipynb)) |
| positions | a table of 512 | RoPE, 8,192 tokens |
| feed-forward | $W_2 \operatorname{gelu}(W_1 x)$ | gated (GeGLU, see [04](04_gelu_dropout.ipynb#Open:-a-gate-of-its-own)): $W_2 \bigl( \operatorname{gelu}(W_1 x) \odot W_3 x \bigr)$ |
| biases | everywhere | none, except in the decoder |
| attention | all to all | all to all in every third layer, 64 tokens to each side in the others |
| padding | computed, then ignored | removed before the first layer |
| task | 15 % masked, next sentence | 30 % masked |
| text | 3.3 billion words | 2,000 billion tokens, including code |

The library has two of these decisions, each as an option of BERT: `ModernConfig(normalisation=…, positions=…)`. With "post" and "learned" it *is* BERT, up to rounding. It does not have the whole of ModernBERT. But with the list we can count its parameters.
"""

# %%
settings = {"normalisation": "post", "positions": "learned"}
as_bert, bert = tiny(modern.ModernModel, modern.ModernConfig, **settings), MODELS["BERT (a table)"]
values = dict(bert.named_parameters())
for name, parameter in as_bert.named_parameters():
    parameter.value[...] = values[name].value
difference = np.abs(vectors(as_bert) - vectors(bert)).max()
print(f"post-LN and learned positions: the largest difference from BERT is {difference:.0e}")
assert difference < 1e-12


def modernbert(vocabulary=50_368, hidden=768, layers=22, wide=1152):
    """Parameters of the encoder: no biases, three matrices in the feed-forward network."""
    attention, feed_forward = 4 * hidden**2, 3 * hidden * wide
    norms = 1 + (2 * layers - 1) + 1  # embeddings; two in each layer but the first; the last one
    return vocabulary * hidden + layers * (attention + feed_forward) + norms * hidden


def deberta(vocabulary=50_265, hidden=768, layers=12, reach=512):
    """Parameters of the encoder: BERT's layers, with two more matrices for the distances."""
    layer = 12 * hidden**2 + 13 * hidden - hidden  # keys have no bias
    distances = 2 * hidden**2 + hidden  # keys and queries, the latter with a bias
    return (vocabulary + 2 + 2 * reach) * hidden + layers * (layer + distances)


print(f"ModernBERT-base {modernbert():,}   DeBERTa-base {deberta():,}")
layer = 4 * 768**2 + 3 * 768 * 1152
print(f"a layer of ModernBERT {layer:,}, of BERT {12 * 768**2 + 13 * 768:,}")

# %% [markdown]
r"""
The paper says 149 million. ModernBERT is deeper than BERT-base: it has 22 layers instead of 12, each with less than three quarters of the parameters.

### Local attention

What does a layer that sees only its neighbours cost, and what does it miss? We count pairs of tokens, and follow how far one changed token reaches. For the picture we take a text of 64 tokens and a window of 8 to each side.
"""

# %%
for length in (512, 8192):
    window = sum(min(length, i + 65) - max(0, i - 64) for i in range(length))
    mixed = (8 * length**2 + 14 * window) / 22  # of 22 layers, 8 see everything
    print(f"S = {length:<5} pairs per layer: all {length**2:,}, window {window:,}; ", end="")
    print(f"22 layers of ModernBERT {mixed / length**2:.0%} of all")

LENGTH_SHOWN, REACH = 64, 8
encoder = tiny(BertModel, BertConfig, num_hidden_layers=6, initializer_range=0.2).encoder
apart = np.abs(np.subtract.outer(np.arange(LENGTH_SHOWN), np.arange(LENGTH_SHOWN)))
local = np.where(apart <= REACH, 0.0, ops.MASKED)[None, None]  # (1, 1, S, S)
PLANS = {
    "window only": [local] * 6,
    "every third sees all": [local, local, np.zeros_like(local)] * 2,
}
x = rng.standard_normal((1, LENGTH_SHOWN, 32))
changed = x.copy()
changed[0, 32] += 1.0
reached = {}
for name, plan in PLANS.items():
    states, others, reached[name] = x, changed, []
    for layer, bias in zip(encoder.layer, plan, strict=True):
        states, others = layer.forward(states, bias)[0], layer.forward(others, bias)[0]
        reached[name].append(np.abs(others - states)[0].max(axis=-1))
    widths = [int((moved > 1e-12).sum()) for moved in reached[name]]
    print(f"{name:<21} tokens that a change has reached, layer by layer: {widths}")

# %% tags=["figure"]
# Caption: A window of 8 tokens to each side, and how far a change in the middle reaches after each
#   layer.
figure, axes = plt.subplots(1, 3, figsize=(7.5, 2.7), width_ratios=[1, 1.3, 1.3])
axes[0].imshow(local[0, 0] == 0, cmap="Blues", vmax=1.4)
axes[0].set(title="the window", xlabel="key", ylabel="query")
for panel, (name, moved) in zip(axes[1:], reached.items(), strict=True):
    picture = np.log10(np.maximum(np.array(moved), 1e-8))
    image = panel.imshow(
        picture,
        aspect="auto",
        cmap="Blues",
        origin="lower",
        vmin=-8,
        vmax=0,
        interpolation="nearest",
    )
    panel.set(title=name, xlabel="token", yticks=range(6), yticklabels=range(1, 7))
for panel in axes:
    panel.grid(False)
axes[1].set_ylabel("after layer")
figure.colorbar(image, ax=axes[2], label="log₁₀ change")
plt.show()

# %% [markdown]
r"""
With windows only, a change reaches at most 8 tokens further in each layer. One layer that sees everything carries it to both ends of the text.

### Without padding

Texts in a batch have different lengths, and BERT computes vectors for the padding, too. ModernBERT puts all tokens of a batch in one row, and tells attention where the texts begin. How much does that save? We try it with the sentences of our held-out documents:
"""

# %%
lengths = np.array([len(row) for row in pieces(held_out)["input_ids"]])
for name, arranged in (("as they come", lengths), ("sorted by length", np.sort(lengths))):
    groups = arranged[: len(arranged) // 32 * 32].reshape(-1, 32)
    wasted = 1 - groups.sum() / (groups.max(axis=1) * 32).sum()
    print(f"batches of 32, {name:<17} {wasted:.0%} of the places are padding")

# %% [markdown]
r"""
**What the paper reports** (Table 1, base models, GLUE): BERT 84.7, RoBERTa 86.4, DeBERTaV3 88.1, ModernBERT 88.4. ModernBERT also reads 8,192 tokens instead of 512. But the four
models differ in everything at once, in size, in text and in steps, so these numbers do not say how much any single decision is worth.

## 10. The family in a table

| | year | its question | what it changed | base size | task | positions | tokenizer, entries |
|---|---|---|---|---|---|---|---|
| BERT | 2018 | – | – | 109 M | masked words, next sentence | learned, absolute | WordPiece, 30,522 |
| XLNet | 2019 | both sides without a mask? | random orders, two streams | 117 M | permutation language model | distances, sines | unigram, 32,000 |
| RoBERTa | 2019 | trained long enough? | more text, larger batches, new masks | 125 M | masked words | learned, absolute | byte-level BPE, 50,265 |
| ALBERT | 2019 | all these parameters? | one layer for all, `E` < `H` | 12 M | masked words, sentence order | learned, absolute | unigram, 30,000 |
| DistilBERT | 2019 | learn from a large one? | half of the layers, a teacher | 66 M | teacher's p, masked words, cosine | learned, absolute | WordPiece, 30,522 |
| ELECTRA | 2020 | can every token teach? | a generator and a discriminator | 109 M | replaced tokens | learned, absolute | WordPiece, 30,522 |
| DeBERTa | 2020 | where is a word? | content and position apart | 139 M | masked words (V3: replaced tokens) | distances, learned | byte-level BPE, 50,265 |
| ModernBERT | 2024 | what would we decide today? | RoPE, pre-LN, GeGLU, windows | 149 M | masked words, 30 % | RoPE | BPE, 50,368 |

The parameters are those of the encoders, with a pooler where there is one, as we counted them above.

Do the papers say which model is the best? Read them with care. Most models had more text or more steps than the ones before, and different papers report different tasks. The comparisons that hold are those *within* a paper, where everything else was the same. These are the ablation tables that are cited above.

## Recap

- **RoBERTa**: the model was good enough, but the training was too short. Compare models only if they have read equally much.
- **Tokenizers**: WordPiece takes the longest piece, BPE repeats its merges, unigram looks for the most probable path. With bytes, nothing is unknown.
- **ALBERT**: a weight that is used `L` times collects `L` gradients. Fewer parameters do not mean less work.
- **DistilBERT**: a teacher's distribution says more than a label, and its layers are a good place to begin.
- **ELECTRA**: there is a loss on every token, plausible fakes come from a generator, and no gradient passes through the drawn words.
- **XLNet**: the order of prediction is random, but the words stay in place. One stream knows the word, the other only the position.
- **Positions**: distances replace places. DeBERTa adds two products with learned tables; RoPE turns queries and keys.
- **ModernBERT**: all of it together, for long texts.

## What usually goes wrong

- **RoBERTa's positions from 0.** Every word is two rows off. The model still answers, but a little worse.
- **A space in front.** In byte-level BPE, "word" and " word" are different tokens. A text without a space in front may begin with a rare token.
- **A small file taken for a fast model.** ALBERT-base is as slow as BERT-base.
- **Fine-tuning ELECTRA's generator.** The discriminator is the model to use.
- **`perm_mask` the wrong way around.** In the library, and in transformers, 1 means *hidden*.
- **RoPE applied to the values**, or applied before the heads are split, so that it pairs other features than in training. Nothing raises an error.

## Questions

Answer before you unfold.
"""

# %% [markdown]
r"""
<details>
<summary><b>1.</b> ALBERT-base has a tenth of BERT-base's parameters. How much faster is its forward pass?</summary>

It is hardly faster: it computes the same products in as many layers. (Only the embeddings are a little cheaper.) What is smaller is the file, the optimiser's moments, and what machines have to exchange
when they train together. With many machines, that counts: ALBERT-large trained 1.7 times as fast as BERT-large, according to the paper's Table 2.

</details>
"""

# %% [markdown]
r"""
<details>
<summary><b>2.</b> Why should ELECTRA's generator not be as good as a perfect language model?</summary>

A perfect generator draws from the true distribution of words. Then a drawn word is as plausible as the original, and nobody could tell them apart: the best discriminator would answer with the share of replaced tokens everywhere, and learn nothing about
the text. If the generator is too weak, the fakes are too easy. Section 3.2 of the paper finds the best sizes in between.

</details>
"""

# %% [markdown]
r"""
<details>
<summary><b>3.</b> A model with RoPE was trained on 512 tokens. None of its arrays has a size that depends on the length. Can it read 4,096?</summary>

It computes something without an error. But the slow pairs then have angles that they never had in training, and the model never learned what to do with them. In practice the scores get worse with the length. ModernBERT was trained on 1,024 tokens first. Then it was trained on 8,192, with a larger base
in the place of 10,000 for the layers that see everything (section 2 of the paper).

</details>
"""

# %% [markdown]
r"""
## Further reading

- Liu and others, [RoBERTa](https://arxiv.org/abs/1907.11692), 2019: the most useful paper on how to train BERT.
- Lan and others, [ALBERT](https://arxiv.org/abs/1909.11942), 2019.
- Sanh and others, [DistilBERT](https://arxiv.org/abs/1910.01108), 2019; Hinton and others, [Distilling the knowledge in a neural network](https://arxiv.org/abs/1503.02531), 2015.
- Clark and others, [ELECTRA](https://arxiv.org/abs/2003.10555), 2020.
- Yang and others, [XLNet](https://arxiv.org/abs/1906.08237), 2019; Dai and others, [Transformer-XL](https://arxiv.org/abs/1901.02860), 2019.
- He and others, [DeBERTa](https://arxiv.org/abs/2006.03654), 2020, and [DeBERTaV3](https://arxiv.org/abs/2111.09543), 2021.
- Su and others, [RoFormer](https://arxiv.org/abs/2104.09864), 2021.
- Warner and others, [ModernBERT](https://arxiv.org/abs/2412.13663), 2024.
- Sennrich and others, [byte-pair encoding for words](https://arxiv.org/abs/1508.07909), 2016; Kudo and Richardson, [SentencePiece](https://arxiv.org/abs/1808.06226), 2018.

## Next

You have seen BERT, and what became of it. Take one decision that nobody in the table above has changed, and change it.

**Next:** [24 · Distillation](24_distillation.ipynb), where a small model learns from a large one. The code of this notebook: [minibert/variants](../minibert/variants/__init__.py); [variants.md](../docs/variants.md) on how to use them;
[relative_positions.py](../minibert/ops/relative_positions.py) · [rotary.py](../minibert/ops/rotary.py) ·
[unigram.py](../minibert/text/unigram.py) · [byte_level.py](../minibert/text/byte_level.py).
"""
