# %% [markdown]
r"""
# 21 · Where BERT comes from

Very little in BERT was new in 2018. Guessing deleted words dates from 1953, learning vectors by predicting words from 2003, and pre-training a language model
to adapt it afterwards from 2015. The encoder is half of a model for translation. BERT put these together, and set records on
eleven tasks at once. This notebook follows each idea to its source, and runs those that are small enough.

**You will** spell out the name · give a model a cloze test · compute a perplexity · train word vectors in NumPy, and see which mistake they cannot avoid ·
take one step back through an LSTM · draw who sees whom in ELMo, GPT and BERT · count what BERT cost.

**Before this:** [06 · Embeddings](06_embeddings.ipynb), [08 · Attention](08_attention.ipynb), [12 · Pre-training data](12_pretraining_data.ipynb).
**Time:** 120 minutes with the exercises; it runs in less than a minute.

| letter | in this notebook |
|---|---|
| `B`, `S` | sequences (or pairs of words) in a batch, tokens in a sequence |
| `V`, `D` | words in the vocabulary, numbers in a word vector |
| `K` | negatives for each pair of words |
| `E`, `H` | numbers in the input and in the state of an LSTM; in sections 6 and 10, `H` is the width of a Transformer |
| `L` | layers |

As always, $dx$ is short for the derivative of the loss with respect to $x$.
"""

# %%
import inspect
import itertools
import re
import time
from collections import Counter
from pydoc_data.topics import topics

import matplotlib.pyplot as plt
import numpy as np

from minibert import BertConfig, BertForPreTraining, BertTokenizer, check, plots
from minibert.course import EXERCISES
from minibert.course.exercises.n21_where_bert_comes_from import lstm_step, skip_gram
from minibert.data.prose import prose_sentences

plots.notebook_style()
np.set_printoptions(precision=3, suppress=True)

# %% [markdown]
r"""
## 1. What does the name say?

**Bidirectional Encoder Representations from Transformers.** Read it backwards:

- **Transformers.** The architecture: layers of self-attention and feed-forward networks, published in June 2017 for machine translation. (Sections 6 and 7.)
- **Representations.** The output is not a translation or an answer, but a vector for each token. What you do with the vectors is decided later. (Sections 3 and 4.)
- **Encoder.** A Transformer for translation has an encoder, which reads the source, and a decoder, which writes the target. BERT is the first half only.
- **Bidirectional.** Each vector depends on the words to the left *and* to the right, in every layer. This word stands
for what was new, and the title of the paper is more exact (ELMo had called itself bidirectional, too; section 7
explains "deep"): "Pre-training of Deep Bidirectional Transformers for Language Understanding"
  ([Devlin and others, 2018](https://arxiv.org/abs/1810.04805); NAACL 2019).

The name is also a reply to that of an earlier model, ELMo. Both are characters of *Sesame Street*.

Here is a timeline of the ideas. The colours show what each work contributed.
"""

# %% tags=["figure"]
# Caption: What came before BERT. Each colour is an idea that BERT took over.
LINE = [  # year with the month, or the place in the figure, name, what it is about, height
    (2003.0, "neural language\nmodel", plots.BLUE, 1.3),
    (2013.05, "Word2Vec", plots.GREEN, 1.0),
    (2014.75, "GloVe", plots.GREEN, -1.0),
    (2014.67, "attention", plots.VERMILION, 2.5),
    (2015.85, "semi-supervised\nsequence learning", plots.ORANGE, -2.6),
    (2017.45, "Transformer", plots.VERMILION, 1.1),
    (2018.05, "ULMFiT", plots.ORANGE, -1.0),
    (2018.13, "ELMo", plots.GREEN, 2.6),
    (2018.45, "GPT", plots.ORANGE, -2.2),
    (2018.78, "BERT", plots.PURPLE, 1.8),
]
SHIFTED = {"ULMFiT": -0.35, "Transformer": -0.15}
KINDS = {
    "predicting words": plots.BLUE,
    "word vectors": plots.GREEN,
    "attention": plots.VERMILION,
    "pre-train, then fine-tune": plots.ORANGE,
    "BERT": plots.PURPLE,
}
figure, panels = plt.subplots(1, 2, figsize=(7.5, 3.6), width_ratios=[1, 3], sharey=True)
early = [(1953, "cloze procedure", 1.2), (1957, "“the company\nit keeps”", -1.2)]
for when, name, height in early:
    panels[0].plot([when, when], [0, height], color=plots.GREY, linewidth=1.2)
    panels[0].plot(when, 0, "o", color=plots.GREY)
    panels[0].text(
        when,
        height,
        name,
        ha="center",
        va="center",
        fontsize=8.5,
        bbox={"facecolor": "white", "edgecolor": plots.GREY, "boxstyle": "round,pad=0.25"},
    )
panels[0].set(xlim=(1949, 1961), xticks=[1953, 1957])
for when, name, colour, height in LINE:
    place = when if when > 2012 else 2011.6
    panels[1].plot([place, place], [0, height], color=colour, linewidth=1.2)
    panels[1].plot(place, 0, "o", color=colour)
    panels[1].text(
        place + SHIFTED.get(name, 0),
        height,
        name,
        ha="center",
        va="center",
        fontsize=8.5,
        bbox={"facecolor": "white", "edgecolor": colour, "boxstyle": "round,pad=0.25"},
    )
panels[1].set(xlim=(2010.7, 2019.6))
panels[1].set_xticks([2011.6, *range(2013, 2020)], ["2003", *range(2013, 2020)])
for name, colour in KINDS.items():
    panels[1].plot([], [], "o", color=colour, label=name)
panels[1].legend(fontsize=8, loc="lower left")
for panel in panels:
    panel.axhline(0, color=plots.GREY, linewidth=1)
    panel.set(yticks=[], ylim=(-3.3, 3.3))
    panel.grid(False)
    panel.spines["left"].set_visible(False)
figure.set_label(
    "A timeline from the cloze procedure, 1953, over a neural language model, 2003, "
    "Word2Vec, 2013, attention, GloVe, semi-supervised learning, the Transformer, 2017, "
    "and ELMo, ULMFiT and GPT, to BERT, 2018"
)
plt.show()

# %% [markdown]
r"""
(The axis is broken twice, between 1957 and 2003, and between 2003 and 2013.) These are the sources:

| year | work | what BERT has from it |
|---|---|---|
| 1953 | Taylor, ["Cloze procedure"](https://doi.org/10.1177/107769905303000401) | the task: fill in what was deleted |
| 1957 | Firth, "A synopsis of linguistic theory 1930–1955" (and Harris, ["Distributional structure"](https://doi.org/10.1080/00437956.1954.11659520), 1954) | the reason why the task teaches meaning |
| 2003 | Bengio and others, ["A neural probabilistic language model"](https://www.jmlr.org/papers/v3/bengio03a.html) | a table of word vectors, learned by predicting words |
| 2013 | Mikolov and others, [Word2Vec](https://arxiv.org/abs/1301.3781), and [negative sampling](https://arxiv.org/abs/1310.4546) | vectors that are trained once and used for many tasks |
| 2014 | Pennington and others, [GloVe](https://aclanthology.org/D14-1162/) | such vectors, from counts of neighbours |
| 2014 | Bahdanau and others, [attention](https://arxiv.org/abs/1409.0473) | weights that say which words to look at |
| 2015 | Dai and Le, ["Semi-supervised sequence learning"](https://arxiv.org/abs/1511.01432) | pre-train a language model, then train on the task |
| 2017 | Vaswani and others, ["Attention is all you need"](https://arxiv.org/abs/1706.03762) | the encoder |
| 2018 | Howard and Ruder, [ULMFiT](https://arxiv.org/abs/1801.06146) | careful fine-tuning of the whole model on little data |
| 2018 | Peters and others, [ELMo](https://arxiv.org/abs/1802.05365) | a vector for each word *in its sentence* |
| 2018 | Radford and others, [GPT](https://openai.com/index/language-unsupervised/) | a Transformer, pre-trained and fine-tuned whole |

## 2. From deleted words to perplexity

### The cloze procedure

In 1953 Wilson Taylor wanted to measure how readable a text is. He deleted every $n$-th word and asked people to fill in the gaps. The more gaps they filled with the original
word, the more readable the text. He derived the name from "closure", a term of Gestalt psychology: the mind completes a broken pattern.

BERT's paper cites Taylor for its "masked language model". The roles have changed: Taylor's readers knew the language, and measured the text. For BERT the text is
given, and it measures (and teaches) the reader. So let us give Taylor's test to *mini*, the BERT that comes with minibert. The text is the documentation inside Python. Of the words that are single tokens in mini's vocabulary, every fifth is deleted.
"""

# %%
documentation = [sentence for topic in topics.values() for sentence in prose_sentences(topic)]
model = BertForPreTraining.from_pretrained("mini")
tokenizer = BertTokenizer.from_pretrained("mini")

rng = np.random.default_rng(21)
chosen = [documentation[i] for i in rng.choice(len(documentation), 200, replace=False)]
batch = tokenizer(chosen, padding=True, truncation=True, max_length=64)
ids, mask = np.array(batch["input_ids"]), np.array(batch["attention_mask"])  # (B, S)
spelled = list(tokenizer.vocab)
whole = np.array([token.isalpha() for token in spelled])  # (V,) words, not pieces or signs
deleted = np.zeros(ids.shape, bool)
for b in range(len(ids)):
    words = np.flatnonzero(whole[ids[b]])
    words = words[[not spelled[i].startswith("##") for i in ids[b, words + 1]]]  # in one piece
    deleted[b, words[4::5]] = True  # every fifth of them
cloze = np.where(deleted, tokenizer.vocab["[MASK]"], ids)
outputs, _ = model.forward(cloze, attention_mask=mask)
guesses = outputs.prediction_logits.argmax(axis=-1)  # (B, S)
right = (guesses == ids)[deleted].mean()
commonest = (ids[deleted] == np.bincount(ids[deleted]).argmax()).mean()
print(
    f"{deleted.sum()} deleted words; mini guesses {right:.0%} of them, and always taking the commonest "
    f"word {commonest:.0%}\n"
)
for b in range(3):
    print(
        " ".join(
            f"[{spelled[i]} → {spelled[g]}]" if d else spelled[i]
            for i, g, d, m in zip(
                ids[b, 1:], guesses[b, 1:], deleted[b, 1:], mask[b, 1:], strict=True
            )
            if m and i != tokenizer.vocab["[SEP]"]
        )
    )

# %% [markdown]
r"""
The brackets contain the deleted word and mini's guess. mini was trained on novels and encyclopedia articles, but not on Python's manual, so these texts are unfamiliar to it.

### Language models

A **language model** gives each text a probability. By the chain rule of probability it can do so one word at a time:

$$ p(w_1 \dots w_N) = \prod_{t} p(w_t \mid w_1 \dots w_{t-1}) . $$

For decades only the last one or two words of the condition were kept, and $p$ was estimated from counts. Counts have a problem: most sequences of five words never occurred before. Bengio and others (2003) replaced the table of counts with a network.
Each word is looked up in a table of vectors, the vectors go through a hidden layer with tanh, and a softmax over the vocabulary gives the probabilities. Words that occur in similar places get similar vectors, so what is learned about one helps the others.
Word vectors began as a by-product of this.

### How are they scored?

The loss of a language model is the mean of $-\log p$ over the words. Its exponential has a name:

$$ \text{perplexity} = \exp\Big( -\frac{1}{N} \sum_t \log p(w_t \mid \dots) \Big) . $$

A model that hesitates evenly between $k$ words has a perplexity of $k$. So perplexity is the number of equally likely choices that would be as hard. Let us measure three models: one that knows only the number of words, one that counts
words, and one that counts pairs of words (mixed with the counts of single words, because a pair may be new).
"""

# %%
sentences = [re.findall(r"[a-z]+", sentence.lower()) for sentence in documentation]
common = [word for word, n in Counter(w for s in sentences for w in s).most_common() if n >= 8]
number = {word: i for i, word in enumerate(common)}
V = len(common)
texts = [np.array([number[w] for w in s if w in number]) for s in sentences]
texts = [text for text in texts if len(text) > 1]
rng.shuffle(texts)
train, held_out = texts[: len(texts) * 9 // 10], texts[len(texts) * 9 // 10 :]

single = np.bincount(np.concatenate(train), minlength=V) + 1.0  # add one: no word is impossible
single /= single.sum()  # (V,)
pairs = np.zeros((V, V))
for text in train:
    np.add.at(pairs, (text[:-1], text[1:]), 1)
after = (pairs + 20 * single) / (
    pairs.sum(axis=1, keepdims=True) + 20
)  # (V, V), a row for each preceding word

print(f"{len(texts):,} sentences, {sum(map(len, texts)):,} words, V = {V}")
losses = {
    "all words alike": np.full(sum(len(text) - 1 for text in held_out), np.log(V)),
    "single words": np.concatenate([-np.log(single[text[1:]]) for text in held_out]),
    "pairs of words": np.concatenate([-np.log(after[text[:-1], text[1:]]) for text in held_out]),
}
for name, loss in losses.items():
    print(f"{name:<16} loss {loss.mean():.3f} nats   perplexity {np.exp(loss.mean()):6.1f}")
assert losses["pairs of words"].mean() < losses["single words"].mean() < np.log(V)

# %% [markdown]
r"""
A model that knows nothing has a perplexity equal to the number of words in the vocabulary. One word of context makes the choice several times smaller.

One warning: BERT is not a language model in this sense. It predicts each masked word from both sides, and the product of these conditional probabilities is not the probability of the text. The exponential of its loss is often called
perplexity as well (in table 6 of BERT's paper, for instance), but it should not be compared with that of a left-to-right model, which has less to go by.

### Your turn: perplexity

@exercise 21.perplexity

In a batch the sequences have different lengths, and only some positions have a masked word to predict. Given the losses of all positions (B, S) in nats, and the labels (B, S), which are −100 where there is nothing to predict: what is the perplexity of the
batch?
"""

# %% [markdown] tags=["derivation"]
r"""
Let $n$ be the number of targets. The probability of all of them is $P = \prod_t p_t$. The geometric mean $P^{1/n}$ is the probability of a target "on average", and perplexity is one over it:

$$ P^{-1/n} = \exp\Big( -\frac{1}{n} \log \prod_t p_t \Big) = \exp\Big( \frac{1}{n} \sum_t (-\log p_t) \Big) . $$

The product is over all targets of all sequences, so each target has the same weight. After a few hundred words, the product itself is too small for a float. The sum of logarithms is not.
"""


# %% tags=["solution"]
def my_perplexity(losses, labels):
    """The perplexity, a number. losses (B, S) in nats, labels (B, S): −100 where there is no target."""
    return np.exp(losses[labels != -100].mean())


# %%
check("21.perplexity", my_perplexity)

# %% [markdown]
r"""
## 3. A word is known by the company it keeps

J. R. Firth wrote in 1957: "You shall know a word by the company it keeps". Words that occur among the same neighbours tend to have similar meanings. This is the **distributional hypothesis**, and it turns meaning into something
that can be counted in plain text. It is also why a cloze test teaches: to fill in "the ___ barked", you have to know what dogs do.

### Skip-gram

Word2Vec (2013) left out what was slow in Bengio's model: the hidden layer, and the full softmax over the vocabulary. Its **skip-gram** variant goes through a text. For each word, the *centre* $w$, it predicts the words $c$ nearby. Their vectors
come from two tables: `words`, and `contexts` for words in their role as neighbours. With **negative sampling**, the task becomes to tell the true neighbour from $K$ words that are drawn at random, the negatives $n_k$:

$$ \text{loss} = -\log \sigma(w \cdot c) - \sum_{k=1}^{K} \log \sigma(-w \cdot n_k), \qquad \sigma(s) = \frac{1}{1 + e^{-s}} . $$

These are $K + 1$ logistic regressions, without a sum over the vocabulary. Here is the forward pass for a batch:
"""

# %%
print(inspect.getsource(skip_gram))

# %% [markdown]
r"""
### Your turn: its backward pass

@exercise 21.skip_gram_backward

Return the gradients of both whole tables: (V, D) each, with zeros for words that are not in the batch. A word may occur several times in a batch, as a centre and as a target.
"""

# %% [markdown] tags=["derivation"]
r"""
Give each score a label $t$: 1 for the neighbour, 0 for a negative. As $\sigma(-s) = 1 - \sigma(s)$, both kinds of terms in the loss have one form, the binary cross-entropy

$$ \ell(s) = -t \log \sigma(s) - (1 - t) \log (1 - \sigma(s)) . $$

With $\sigma' = \sigma (1 - \sigma)$,

$$ \ell'(s) = -t \, (1 - \sigma(s)) + (1 - t) \, \sigma(s) = \sigma(s) - t , $$

which is $p - y$ once more, as in [03](03_softmax_cross_entropy.ipynb). A score is $s_k = w \cdot c_k$, so with $g_k = \sigma(s_k) - t_k$

$$ dw = \sum_k g_k \, c_k, \qquad dc_k = g_k \, w . $$

Rows that were looked up several times collect the sum.
"""


# %% tags=["solution"]
def my_skip_gram_backward(dout, cache):
    """dwords and dcontexts, (V, D) each. dout is a number: the gradient that arrives at the loss."""
    words, contexts, centres, targets, scores = cache
    labels = np.zeros_like(scores)  # (B, 1 + K)
    labels[:, 0] = 1
    dscores = dout * (1 / (1 + np.exp(-scores)) - labels)
    dwords, dcontexts = np.zeros_like(words), np.zeros_like(contexts)
    np.add.at(dwords, centres, np.einsum("bk,bkd->bd", dscores, contexts[targets]))
    np.add.at(dcontexts, targets, dscores[..., None] * words[centres][:, None])
    return dwords, dcontexts


# %%
check("21.skip_gram_backward", my_skip_gram_backward)

# %% [markdown]
r"""
### Train it

The next cell uses two more ideas from the papers. Very frequent words are left out at random (**subsampling**), because "the" says little about its neighbours. And negatives are drawn in proportion to count$^{0.75}$, a power that the authors found to work best.

The text is Python's built-in help, as above: about 43,000 words without the rare ones. (Word2Vec's authors used a billion and more.)
"""

# %%
D, K, WINDOW, BATCH, EPOCHS, RATE = 48, 5, 4, 64, 10, 0.05
backward = EXERCISES["21.skip_gram_backward"].solution


def make_pairs(texts, counts, rng):
    """Centres and neighbours, (pairs,) each, in random order; frequent words are thinned out."""
    stays = np.sqrt(
        1e-3 * counts.sum() / np.maximum(counts, 1)
    )  # (V,) a probability; more than 1 for rare words
    centres, neighbours = [], []
    for text in texts:
        text = text[rng.random(len(text)) < stays[text]]
        for distance in range(1, min(WINDOW, len(text) - 1) + 1):
            centres += [text[distance:], text[:-distance]]
            neighbours += [text[:-distance], text[distance:]]
    order = rng.permutation(sum(map(len, centres)))
    return np.concatenate(centres)[order], np.concatenate(neighbours)[order]


def word_vectors(texts, vocab_size, seed):
    """Train skip-gram; the table of words (V, D), and the mean loss per pair of each epoch."""
    rng = np.random.default_rng(seed)
    counts = np.bincount(np.concatenate(texts), minlength=vocab_size)
    share = counts**0.75 / (counts**0.75).sum()
    words, contexts = (rng.random((vocab_size, D)) - 0.5) / D, np.zeros((vocab_size, D))
    curve = []
    for epoch in range(EPOCHS):
        centres, neighbours = make_pairs(texts, counts, rng)
        negatives = rng.choice(vocab_size, (len(centres), K), p=share)
        targets = np.column_stack([neighbours, negatives])  # (pairs, 1 + K)
        rate, total = RATE * (1 - epoch / EPOCHS), 0.0
        for first in range(0, len(centres), BATCH):
            part = slice(first, first + BATCH)
            loss, cache = skip_gram(words, contexts, centres[part], targets[part])
            dwords, dcontexts = backward(1.0, cache)
            words -= rate * dwords
            contexts -= rate * dcontexts
            total += loss
        curve.append(total / len(centres))
    return words, curve


began = time.perf_counter()
vectors, curve = word_vectors(texts, V, seed=21)
print(
    f"loss per pair {curve[0]:.2f} → {curve[-1]:.2f}; guessing would be (K + 1) ln 2 = "
    f"{(K + 1) * np.log(2):.2f}"
)
print(f"{time.perf_counter() - began:.0f} seconds")
assert curve[-1] < curve[0] < (K + 1) * np.log(2)


# %%
def nearest(vectors, names, word, count=6):
    """The words with the highest cosines, the most similar first."""
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    order = np.argsort(-unit @ unit[names.index(word)], kind="stable")
    return [names[i] for i in order if names[i] != word][:count]


for word in ("true", "left", "string", "float", "class", "import", "list", "exception"):
    print(f"{word:<10}", ", ".join(nearest(vectors, common, word)))

# %% [markdown]
r"""
Nobody told the model what the opposite of "true" is, or that a string is made of characters. All it has seen is which words stand within four words of each other, not counting those that were left out. Notice that *opposites* are near each other: "left" and "right" keep the
same company, and so do "true" and "false". Similar vectors mean similar use. That is not the same as similar meaning.

The same program, with more options, is [examples/word2vec.py](../examples/word2vec.py).
"""

# %% tags=["figure"]
# Caption: The vectors of some words, projected onto a plane. Colours are groups that we chose; the
#   places were learned.
GROUPS = {
    "numbers": (plots.BLUE, "integer float floating complex"),
    "text": (plots.VERMILION, "string strings characters character ascii"),
    "modules": (plots.GREEN, "module import imported package"),
    "sides": (plots.PURPLE, "left right operands hand"),
    "errors": (plots.ORANGE, "exception exceptions raised except caught"),
}
shown = [word for _, words in GROUPS.values() for word in words.split() if word in number]
points = vectors[[number[word] for word in shown]]
points = points / np.linalg.norm(points, axis=1, keepdims=True)
_, _, axes_of = np.linalg.svd(points - points.mean(axis=0), full_matrices=False)
flat = (points - points.mean(axis=0)) @ axes_of[:2].T
figure, axes = plt.subplots(figsize=(7.5, 4.6))
axes.set(title="word vectors, projected onto two directions", xticks=[], yticks=[])
axes.plot(*flat.T, ".", alpha=0)  # sets the limits
axes.margins(0.12)
figure.canvas.draw()
taken = [
    axes.transData.transform(point)[None] + [[-4, -4], [4, 4]] for point in flat
]  # boxes, in pixels


def overlap(box):
    """How much of a box, two corners (2, 2), others have taken."""
    sides = [np.minimum(box[1], other[1]) - np.maximum(box[0], other[0]) for other in taken]
    return sum(side.clip(min=0).prod() for side in sides)


for (x, y), word in zip(flat, shown, strict=True):
    colour = next(colour for colour, words in GROUPS.values() if word in words.split())
    axes.plot(x, y, "o", color=colour, markersize=5)
    options = []
    for dx, dy, side in ((6, -3, "left"), (-6, -3, "right"), (0, 6, "center"), (0, -13, "center")):
        text = axes.annotate(
            word, (x, y), xytext=(dx, dy), textcoords="offset points", fontsize=8.5, ha=side
        )
        box = text.get_window_extent().get_points()
        options.append((overlap(box), len(options), text, box))
    best = min(options, key=lambda option: option[:2])
    for _, _, text, _ in options:
        if text is not best[2]:
            text.remove()
    taken.append(best[3])
for name, (colour, _) in GROUPS.items():
    axes.plot([], [], "o", color=colour, label=name)
axes.legend(fontsize=9, loc="best")
plt.show()

# %% [markdown]
r"""
## 4. Why is one vector per word not enough?

Word2Vec and GloVe have one row per spelling. So the bank of a river and the bank with money share one row. What does training do with such a row? We can find out with a **pseudo-word**: take two words that have nothing in common, replace
both by the same made-up word in the whole text, and train again.
"""

# %%
PAIRS = [("true", "module"), ("string", "exception"), ("left", "import")]
names, merged = list(common), texts
for one, two in PAIRS:
    names[number[one]] = f"{one}/{two}"
    merged = [np.where(text == number[two], number[one], text) for text in merged]
both, _ = word_vectors(merged, V, seed=21)
for one, two in PAIRS:
    print(f"{one}/{two:<12}", ", ".join(nearest(both, names, f"{one}/{two}", 9)))

# %% [markdown]
r"""
Vectors from two training runs cannot be compared number by number: the directions of the axes are arbitrary. But each vector has a *profile*, its cosines with all other words, and profiles can be compared. How well does the pseudo-word's profile correlate with the old profile of
each of its two parts, and with those of all other words?
"""


# %%
def profiles(vectors, columns):
    """The cosines of each word with those of the columns: (V, columns)."""
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return unit @ unit[columns].T


merged_away = {number[word] for pair in PAIRS for word in pair}
columns = [i for i in range(V) if i not in merged_away]
old, new = profiles(vectors, columns), profiles(both, columns)
counts = np.bincount(np.concatenate(texts), minlength=V)
print("pseudo-word         part        count  correlation  rank among all words")
for one, two in PAIRS:
    r = np.array([np.corrcoef(new[number[one]], row)[0, 1] for row in old])  # (V,)
    for word in (one, two):
        i = number[word]
        print(
            f"{one + '/' + two:<19} {word:<10} {counts[i]:6} {r[i]:12.2f} {(r > r[i]).sum() + 1:12}"
        )
    assert min(r[number[one]], r[number[two]]) > np.median(r) + 0.1
    print(f"{'':<19} the others {'':<5} {np.median(r):12.2f}  (median)")

# %% [markdown]
r"""
Each pseudo-word resembles both of its parts more than it resembles most words, but neither of them fully. In all three, the part that occurs more often is the stronger one: it is at the top of the list, or second. The rarer part is well above the median, but other words come before
it, and in two of the three cases few of its neighbours are left among the nearest ones. ("string/exception" is the exception: most of its nearest words are those of "string", the rarer part.) Nobody can undo the mixture from this vector alone, because the same numbers stand for both words. (For real words, Arora and others, [2018](https://arxiv.org/abs/1601.03764), found that the vector of a word with several meanings is about a
weighted sum of what its meanings would have.)

### The same word in several sentences

A **contextual** model gives a word a different vector in each sentence. Here are eight words with two meanings, and four sentences for each meaning. For each sentence we ask mini: in which of the other seven sentences is the vector of this word nearest? If it is
one with the same meaning, we count a hit. (Three of the seven have the same meaning.)
"""

# %%
MEANINGS = """
bank: he sat on the bank of the river / the boat was tied to the bank / trees grew along the bank of the stream / they walked along the bank of the lake
bank: she put the money in the bank / the bank lent him a large sum / he owed the bank a great deal of money / the bank paid him every month
spring: in spring the trees are green / he came back in the spring of that year / the birds return every spring / the spring was cold and wet
spring: the water of the spring was clear / they drank from a spring in the rock / a spring of fresh water rose from the ground / the horses drank at the spring
light: the light of the lamp fell on her face / he turned off the light / the room was full of light / there was a light in the window
light: the box was light and easy to carry / she wore a light summer dress / a light rain was falling / he had a light breakfast
match: they won the match by two goals / the match was played in london / he scored in his first match for the club / the final match ended in a draw
match: he struck a match and lit the lamp / she held a match to the paper / the match burned his fingers / he lit the fire with a match
train: the train arrived at the station / he took the train to london / they missed the last train / the train was late again
train: they train young men for the army / he began to train horses / you must train hard to win / she will train the new teachers
party: the party won the election / he was a member of the communist party / the party lost ten seats in parliament / he left the party to form a government
party: she wore a new dress at the party / they gave a party for his birthday / he danced with her at the party / we were invited to a dinner party
kind: she was kind to the poor / he was a kind old man / it is very kind of you to come / be kind to the child
kind: this kind of stone is rare / it was a kind of music / what kind of man is he / another kind of animal lives here
well: he knows the city well / she sings very well / they were well paid / it was well done
well: they drew water from the well / the well in the garden was dry / he fell into a deep well / the old well had no water
"""
lines = [line.split(": ") for line in MEANINGS.strip().splitlines()]
uses = [
    (word, i % 2, text + " .")
    for i, (word, all_texts) in enumerate(lines)
    for text in all_texts.split(" / ")
]
spelling = np.array([word for word, _, _ in uses])  # (B,)
meaning = np.array([which for _, which, _ in uses])  # (B,) 0 or 1

batch = tokenizer([text for _, _, text in uses], padding=True)
ids, mask = np.array(batch["input_ids"]), np.array(batch["attention_mask"])
spot = np.argmax(ids == np.array([tokenizer.vocab[word] for word in spelling])[:, None], axis=1)
outputs, _ = model.forward(ids, attention_mask=mask, return_logits=False, return_hidden_states=True)
table = dict(model.named_parameters())["bert.embeddings.word_embeddings.weight"].value
static = table[ids[np.arange(len(ids)), spot]]  # (B, H): what the word's row says, alone
layers = [static] + [states[np.arange(len(ids)), spot] for states in outputs.hidden_states]


def cosines(x):
    unit = x / np.linalg.norm(x, axis=-1, keepdims=True)
    return unit @ unit.T


others = (spelling[:, None] == spelling) & ~np.eye(len(ids), dtype=bool)  # (B, B)
alike = others & (meaning[:, None] == meaning)
hits = []
print("                        hits    cosine, same meaning   other meaning")
for name, x in zip(
    ["row of the table", "embeddings", *(f"layer {i + 1}" for i in range(len(layers) - 2))],
    layers,
    strict=True,
):
    c = cosines(x)
    near = np.where(others, c, -2).argmax(axis=1)
    hits.append(meaning[near] == meaning)
    hit = "   –  " if name.startswith("row") else f"{hits[-1].sum():2} / {len(ids)}"
    print(f"{name:<20} {hit:>9} {c[alike].mean():17.2f} {c[others & ~alike].mean():19.2f}")
print(f"\nby chance: {len(ids) * 3 / 7:.0f} / {len(ids)}")
assert hits[-1].mean() > hits[1].mean() + 0.2

# %% tags=["figure"]
# Caption: For most of these words the vectors of the last layer tell the meanings apart. Those of
#   the embeddings do not.
figure, axes = plt.subplots(figsize=(7.5, 3.0))
order = list(dict.fromkeys(spelling))
for shift, layer, colour, label in (
    (-0.2, 1, plots.SKY, "embeddings (word + position)"),
    (0.2, -1, plots.BLUE, "last layer"),
):
    axes.bar(
        np.arange(len(order)) + shift,
        [hits[layer][spelling == word].sum() for word in order],
        0.38,
        color=colour,
        label=label,
    )
axes.axhline(8 * 3 / 7, color=plots.VERMILION, linestyle="--", linewidth=1.3, label="by chance")
axes.set_xticks(range(len(order)), order)
axes.set(title="how often the nearest has the same meaning", ylabel="of 8 sentences", ylim=(0, 8.3))
axes.grid(axis="x", visible=False)
figure.legend(*axes.get_legend_handles_labels(), fontsize=9, loc="outside lower center", ncols=3)
plt.show()

# %% [markdown]
r"""
In the embedding table all eight vectors of a word are the same, so there is no nearest one. The embeddings add only the position, and are at chance. The meanings move apart layer by layer, most of all in the first two. In the last one, the nearest vector has the same meaning in most cases, but not in all: for "spring", this small model does not
tell the season from the water. With only 64 sentences that we wrote ourselves, this is an illustration and not a benchmark. Notebook [16](16_looking_inside.ipynb#6.-Neighbours-in-context) takes it further.

## 5. ELMo: vectors in context, from LSTMs

ELMo ("Embeddings from Language Models", February 2018) was the first widely used answer to this problem. It has two language models. One reads from left to right and predicts the next word; the other reads from right to left. Each is a stack of two
**LSTM** layers. In each layer the states of both directions are concatenated, and the vector of a word is a weighted sum of the layers. The weights of the sum are learned for each task.

Before the Transformer, reading meant recurrence: a network takes one token at a time and passes its state on to the next step. The LSTM ([Hochreiter and Schmidhuber, 1997](https://doi.org/10.1162/neco.1997.9.8.1735); the forget gate is due to
[Gers and others, 2000](https://doi.org/10.1162/089976600300015015)) keeps a **cell** next to its state. Three gates, numbers from 0 to 1, say how much of the new candidate is written ($i$), how much of the old cell is kept ($f$), and how much is shown ($o$):
"""

# %%
print(inspect.getsource(lstm_step))

# %% [markdown]
r"""
Why a cell? In an ordinary recurrent network, every step back multiplies the gradient by a matrix and a slope, so after many steps it vanishes or explodes. From cell to cell there is only a product with $f$. As long as the gate is open, the gradient passes
almost unchanged. A residual connection in a Transformer does the same between layers.

### Your turn: one step back

@exercise 21.lstm_step_backward

Write the backward pass of one step. Two derivatives come in, as the later steps return them: that of the new state and that of the new cell. Six go out. This exercise is open: draw the graph yourself, and find every path. The cache has what the forward pass used.
"""

# %% [markdown] tags=["derivation"]
r"""
Write $c' = f c + i g$ for the new cell and $h' = o \tanh c'$ for the new state. The cell $c'$ is used twice, by the next step and by $h'$, so its derivatives add up:

$$ d = dc' + dh' \cdot o \, (1 - \tanh^2 c') . $$

The factors of the two products follow,

$$ di = d \, g, \quad dg = d \, i, \quad df = d \, c, \quad dc = d \, f, \quad do = dh' \tanh c' , $$

then the slopes of σ and tanh, for the four sums $z$ before them:

$$ dz_i = di \; i (1 - i), \quad dz_f = df \; f (1 - f), \quad dz_o = do \; o (1 - o), \quad dz_g = dg \, (1 - g^2) . $$

Side by side they are $dz$, (B, 4H). As $z = x W^\top + h U^\top + b$ is a linear map of both inputs:

$$ dx = dz \, W, \quad dh = dz \, U, \quad dW = dz^\top x, \quad dU = dz^\top h, \quad db = \textstyle\sum_B dz . $$
"""


# %% tags=["solution"]
def my_lstm_step_backward(dstate, dcell, cache):
    """Gradients of the state and cell after the step (B, H) → dx, dstate, dcell, dweight, dstate_weight, dbias."""
    x, state, cell, weight, state_weight, i, f, o, g, tanh_cell = cache
    d = dcell + dstate * o * (1 - tanh_cell**2)  # (B, H)
    dsums = np.concatenate(
        [
            d * g * i * (1 - i),
            d * cell * f * (1 - f),
            dstate * tanh_cell * o * (1 - o),
            d * i * (1 - g**2),
        ],
        axis=1,
    )  # (B, 4H)
    return (
        dsums @ weight,
        dsums @ state_weight,
        d * f,
        dsums.T @ x,
        dsums.T @ state,
        dsums.sum(axis=0),
    )


# %%
check("21.lstm_step_backward", my_lstm_step_backward)

# %% [markdown]
r"""
Does the cell keep a gradient alive? We take an LSTM with small random weights, run it for 40 steps, and measure how much of a gradient at the end arrives at the first cell, for three biases of the forget gate:
"""

# %%
step_backward = EXERCISES["21.lstm_step_backward"].solution
STEPS, H = 40, 16
arrived = {}
for open_by in (0.0, 2.0, 4.0):
    rng = np.random.default_rng(5)
    weight, state_weight = 0.2 * rng.normal(size=(4 * H, H)), 0.2 * rng.normal(size=(4 * H, H))
    bias = np.zeros(4 * H)
    bias[H : 2 * H] = open_by
    state = cell = np.zeros((1, H))
    caches = []
    for x in rng.normal(size=(STEPS, 1, H)):
        state, cell, cache = lstm_step(x, state, cell, weight, state_weight, bias)
        caches.append(cache)
    dstate, dcell = np.zeros((1, H)), np.ones((1, H))
    norms = [np.linalg.norm(dcell)]
    for cache in reversed(caches):
        _, dstate, dcell, *_ = step_backward(dstate, dcell, cache)
        norms.append(np.linalg.norm(dcell))
    arrived[open_by] = np.array(norms) / norms[0]
    print(
        f"bias {open_by:.0f}: σ(bias) = {1 / (1 + np.exp(-open_by)):.3f}, after {STEPS} steps "
        f"{arrived[open_by][-1]:.1e} of the gradient is left"
    )
assert arrived[0.0][-1] < arrived[2.0][-1] < arrived[4.0][-1]

# %% tags=["figure"]
# Caption: An open forget gate lets the gradient through many steps.
figure, axes = plt.subplots(figsize=(7.5, 2.8))
for (open_by, norms), colour in zip(
    arrived.items(), (plots.VERMILION, plots.ORANGE, plots.BLUE), strict=True
):
    axes.semilogy(norms, color=colour, label=f"forget bias {open_by:.0f}")
axes.set(
    title="how much of the gradient is left",
    xlabel="steps back",
    ylabel="share of the norm",
)
axes.legend(fontsize=9)
plt.show()

# %% [markdown]
r"""
With half-open gates about two fifths is lost in every step. With open gates most of it arrives. (More than $\sigma(\text{bias})^{40}$ arrives, because gates also depend on the input, and because there are also paths through the states.) But even so, 40 steps have to be computed one *after* the other. The state of a token cannot be computed before that of its neighbour, however many processors there are. The Transformer removed this restriction:
attention computes all positions of a layer at once.

A complete model like ELMo, trained with hand-written backward passes, is in [examples/elmo.py](../examples/elmo.py).

## 6. What was cut from the Transformer?

The model of "Attention is all you need" translates. Its encoder reads the source sentence. Its decoder writes the target, word by word, with **causal** self-attention (no word sees those after it) and **cross-attention**, whose queries come from the decoder and whose keys and values come from the
encoder. BERT keeps only the encoder.
"""


# %% tags=["figure"]
# Caption: The Transformer, and what BERT took from it.
def box(axes, x, y, text, colour, kept):
    style = {
        "boxstyle": "round,pad=0.35",
        "facecolor": "white",
        "edgecolor": colour,
        "linewidth": 1.6,
        "linestyle": "-" if kept else "--",
    }
    axes.text(
        x,
        y,
        text,
        ha="center",
        va="center",
        fontsize=9,
        color="black" if kept else plots.GREY,
        bbox=style,
    )


def arrow(axes, start, end, colour, style="-"):
    axes.annotate(
        "",
        xy=end,
        xytext=start,
        arrowprops={"arrowstyle": "-|>", "color": colour, "linewidth": 1.3, "linestyle": style},
    )


figure, axes = plt.subplots(figsize=(7.5, 4.2))
ENCODER = ["token embeddings", "+ sinusoidal positions", "self-attention", "feed-forward"]
DECODER = [
    "token embeddings",
    "+ sinusoidal positions",
    "causal self-attention",
    "cross-attention",
    "feed-forward",
    "softmax: next word",
]
for x, column, kept in ((0, ENCODER, True), (2.2, DECODER, False)):
    for y, text in enumerate(column):
        keep = kept and "sinus" not in text
        box(axes, x, y, text, plots.BLUE if keep else plots.GREY, keep)
        if y:
            colour = plots.BLUE if kept else plots.GREY
            arrow(axes, (x, y - 0.68), (x, y - 0.3), colour, "-" if kept else "--")
arrow(axes, (0.6, 3), (1.55, 3), plots.GREY, "--")
axes.text(
    0,
    3.75,
    "× 6 layers, each sublayer with\nresidual and LayerNorm",
    ha="center",
    fontsize=8.5,
    color=plots.BLUE,
)
axes.text(0, -0.75, "encoder: kept", ha="center", color=plots.BLUE, weight="bold")
axes.text(2.2, -0.75, "decoder: cut", ha="center", color=plots.GREY, weight="bold")
box(axes, 4.3, 0, "token embeddings\n(WordPiece)", plots.BLUE, True)
box(axes, 4.3, 1, "+ learned positions\n+ segments", plots.PURPLE, True)
box(axes, 4.3, 2, "self-attention", plots.BLUE, True)
box(axes, 4.3, 3, "feed-forward (GELU)", plots.BLUE, True)
box(axes, 4.3, 4.2, "masked words,\nnext sentence", plots.PURPLE, True)
for y in (1, 2, 3):
    arrow(axes, (4.3, y - 0.68), (4.3, y - 0.36), plots.BLUE)
arrow(axes, (4.3, 3.3), (4.3, 3.8), plots.BLUE)
axes.text(4.3, -0.75, "BERT (12 or 24 layers)", ha="center", color=plots.PURPLE, weight="bold")
axes.set(xlim=(-1, 5.4), ylim=(-1.0, 5.4))
axes.axis("off")
figure.set_label(
    "Three columns of boxes: the Transformer's encoder, which is kept, its decoder, which "
    "is cut, and BERT, which is the encoder with learned positions and segments, GELU, "
    "and heads for masked words and the next sentence"
)
plt.show()

# %% [markdown]
r"""
What is solid blue was kept, what is dashed grey was cut, and what is purple was added.

| the Transformer of 2017 | BERT | why |
|---|---|---|
| decoder, cross-attention | none | nothing is to be generated |
| causal mask in the decoder | only padding is masked | each token should see both sides |
| sinusoidal positions | a learned vector for each of 512 positions | the Transformer's paper found both about equally good; BERT learns them, so it cannot go beyond 512 |
| ReLU | GELU | as in GPT |
| one sentence as input | two, with segment embeddings, [CLS] and [SEP] | tasks on pairs of sentences are common |
| trained on translated pairs | trained on plain text | there is far more of it |
| 6 layers, 512 wide, 8 heads (base) | 12 layers, 768 wide, 12 heads (base) | it has the size of GPT, so that they can be compared |

How much of the model was cut? We count the parameters of the base model of 2017: width 512, feed-forward 2,048, six layers on each side, and one table of about 37,000 subwords for both languages and for the output.
"""

# %%
H, FEED = 512, 2048
attention = 4 * (H * H + H)  # queries, keys, values and output, each with a bias
feed_forward = H * FEED + FEED + FEED * H + H
norm = 2 * H
encoder = 6 * (attention + feed_forward + 2 * norm)
decoder = 6 * (2 * attention + feed_forward + 3 * norm)  # cross-attention is the second one
table_size = 37_000 * H
for name, count in (
    ("encoder", encoder),
    ("decoder", decoder),
    ("table", table_size),
    ("all", encoder + decoder + table_size),
):
    print(f"{name:<8} {count / 1e6:5.1f} million")

# %% [markdown]
r"""
The paper says 65 million. (Biases and the exact size of the vocabulary differ between implementations.) The decoder is larger than the encoder, because each of its layers has a second attention sublayer.

## 7. Who sees whom?

GPT made the other choice: it kept the decoder (without cross-attention, as there is no encoder to look at), and with it the causal mask. ELMo has two one-way models. Figure 3 of BERT's paper compares these three. Here it is again, drawn from masks. Row $i$ of a mask says what
token $i$ sees:
"""

# %%
S = 5
MASKS = {
    "BERT: all": np.ones((S, S), int),
    "GPT: causal": np.tril(np.ones((S, S), int)),
    "ELMo: forward": np.tril(np.ones((S, S), int)),
    "ELMo: backward": np.triu(np.ones((S, S), int)),
}
for name in ("BERT: all", "GPT: causal"):
    print(name, MASKS[name], sep="\n")

# %% tags=["figure"]
# Caption: Which tokens j the state of token i may depend on.
figure, panels = plt.subplots(1, 4, figsize=(7.5, 2.3), sharey=True)
for panel, (name, seen) in zip(panels, MASKS.items(), strict=True):
    panel.imshow(seen, cmap="Blues", vmin=0, vmax=1.5)
    panel.grid(False)
    panel.set(xticks=range(S), yticks=range(S), xlabel="sees token j")
    panel.set_title(name, fontsize=10)
    panel.set_xticks(np.arange(S + 1) - 0.5, minor=True)
    panel.set_yticks(np.arange(S + 1) - 0.5, minor=True)
    panel.grid(True, which="minor", color="white", linewidth=1.5)
    panel.tick_params(which="both", length=0)
    panel.spines[:].set_visible(False)
panels[0].set_ylabel("token i")
plt.show()


# %% tags=["figure"]
# Caption: The same as arrows, from the words below to the outputs above.
def draw_layers(axes, x0, mask, colour, rows=(0, 1, 2), label=""):
    """Nodes in two layers above the inputs; an arrow for each 1 of the mask."""
    n = len(mask)
    for low, high in itertools.pairwise(rows):
        for i, j in zip(*np.nonzero(mask), strict=True):
            axes.annotate(
                "",
                xy=(x0 + i, high - 0.17),
                xytext=(x0 + j, low + 0.17),
                arrowprops={
                    "arrowstyle": "-|>",
                    "color": colour,
                    "linewidth": 0.9,
                    "mutation_scale": 7,
                },
            )
    for y in rows[1:]:
        axes.scatter(
            x0 + np.arange(n),
            np.full(n, y),
            s=150,
            facecolor="white",
            edgecolor=colour,
            linewidth=1.5,
            zorder=3,
        )
        if label:
            for i in range(n):
                axes.text(x0 + i, y, label, ha="center", va="center", fontsize=7.5, zorder=4)


def chain(axes, x0, rows, colour, step):
    """A one-way recurrent stack: up to the next layer, and sideways to the next token."""
    draw_layers(axes, x0, np.eye(4, dtype=int), colour, rows)
    for y in rows[1:]:
        for i in range(3):
            a, b = (i, i + 1) if step > 0 else (i + 1, i)
            axes.annotate(
                "",
                xy=(x0 + b - step * 0.17, y),
                xytext=(x0 + a + step * 0.17, y),
                arrowprops={
                    "arrowstyle": "-|>",
                    "color": colour,
                    "linewidth": 1.2,
                    "mutation_scale": 8,
                },
            )


figure, panels = plt.subplots(1, 3, figsize=(7.5, 3.3), width_ratios=[1, 1, 1.9])
draw_layers(panels[0], 0, np.ones((4, 4), int), plots.PURPLE)
draw_layers(panels[1], 0, np.tril(np.ones((4, 4), int)), plots.ORANGE)
chain(panels[2], 0, (0, 1, 2), plots.GREEN, 1)
chain(panels[2], 4.6, (0, 1, 2), plots.BLUE, -1)
for panel, title, starts in (
    (panels[0], "BERT", [0]),
    (panels[1], "GPT", [0]),
    (panels[2], "ELMo", [0, 4.6]),
):
    for x0 in starts:
        for i in range(4):
            panel.text(x0 + i, 0, f"$w_{i + 1}$", ha="center", va="center", fontsize=9)
    panel.set(title=title, xlim=(-0.5, starts[-1] + 3.5), ylim=(-0.4, 2.9))
    panel.axis("off")
for panel in panels[:2]:
    for i in range(4):
        arrow(panel, (i, 2.17), (i, 2.5), plots.GREY)
        panel.text(i, 2.65, f"$t_{i + 1}$", ha="center", va="center", fontsize=9)
for x0 in (0, 4.6):
    panels[2].plot([x0, x0 + 3], [2.4, 2.4], color=plots.GREY, linewidth=1)
    for i in range(4):
        panels[2].plot([x0 + i, x0 + i], [2.17, 2.4], color=plots.GREY, linewidth=1)
panels[2].text(3.8, 2.62, "both, side by side: $t_1 \\ldots t_4$", ha="center", fontsize=9)
figure.set_label(
    "Three networks of arrows from four words to four outputs: BERT's go from every word "
    "to every output, GPT's only to the right, and ELMo has one chain in each direction, "
    "side by side"
)
plt.show()

# %% [markdown]
r"""
In BERT every state sees every state of the layer below. In GPT the arrows go only up and to the right. In ELMo the two halves are separate networks. They meet only in the output, where their states are concatenated, layer by layer. So ELMo is *two-sided*, but no state inside it has ever seen both sides. This is what BERT's title
means by **deep** bidirectional.

### Why not simply predict the next word with arrows in both directions?

Because the word to predict is in the input. Could we forbid each token to look at *itself* instead of masking it? To see what reaches what, multiply the masks of two layers:
"""

# %%
without_itself = 1 - np.eye(S, dtype=int)
print("one layer: token i sees itself?  ", np.diag(without_itself))
print("two layers: on how many paths?   ", np.diag(without_itself @ without_itself))
causal = np.tril(np.ones((S, S), int))
print("causal, ten layers: later tokens?", np.triu(np.linalg.matrix_power(causal, 10), k=1).sum())

# %% [markdown]
r"""
After one layer, a token knows nothing about itself. After two it does, through each of its $S - 1$ neighbours, which have seen it. So in a deep two-way network a word has to be hidden at the *input*. This is what the `[MASK]` of [12](12_pretraining_data.ipynb) does. A causal mask needs no such thing. However many layers there are, no path
leads from a later token to an earlier one, so every position can be a target. Seeing both sides has its price: BERT learns from 15 % of its tokens, GPT from all.

We can measure who sees whom. If we change the last word of a sentence, which states of mini move?
"""

# %%
first, second = (
    np.array(tokenizer(text)["input_ids"])[None]
    for text in ("the old man went to the sea", "the old man went to the king")
)
assert first.shape == second.shape
states = [
    model.forward(ids, return_logits=False, return_hidden_states=True)[0].hidden_states
    for ids in (first, second)
]
moved = np.array(
    [
        np.linalg.norm(b - a, axis=-1)[0] / np.linalg.norm(a, axis=-1)[0]
        for a, b in zip(*states, strict=True)
    ]
)
print("          ", " ".join(f"{spelled[i]:>6}" for i in first[0]))
for i, row in enumerate(moved):
    print(f"{'embeddings' if i == 0 else f'layer {i}':<10}", " ".join(f"{x:6.2f}" for x in row))
assert (moved[0][:-2] == 0).all() and (moved[1:] > 0).all()

# %% [markdown]
r"""
From the first layer on, the change has reached every token, including those before the changed word. In a causal model all columns to the left of that word would be zero.

## 8. Transfer learning: features, or fine-tuning?

**Transfer learning** means learning on one task where data is plentiful, and using what was learned on another where it is not. With language models there are two ways.

| | feature-based | fine-tuning |
|---|---|---|
| what is done | freeze the pre-trained model, and use its vectors as the input of a model for the task | add one small layer on top, and train everything |
| what is trained | the task's model, often large | all weights, for a few epochs |
| before BERT | Word2Vec, GloVe, ELMo | Dai and Le, ULMFiT, GPT |
| good for | many tasks that share one expensive forward pass; vectors can be stored | the best score on one task |

**ULMFiT** (January 2018) showed how to fine-tune a language model without destroying it: with smaller learning rates for lower layers, with layers that are unfrozen one by one, and with a learning rate that first rises and then falls. Its model was an LSTM. **GPT** (June 2018) did it with a Transformer, and turned each task into one sequence with
delimiters, so that nothing but a linear layer and the vectors of the delimiters had to be added. BERT took this over: the [SEP] between two sentences, and one layer on top.

BERT can do both, and its paper compared them on named entities (CoNLL-2003, table 7, F1 on the development set, BERT-base): fine-tuning 96.4, the last four layers concatenated as features 96.1, the embeddings alone 91.0. So most of what is needed is already in the frozen vectors. You can repeat the comparison yourself in
[15 · Fine-tuning](15_fine_tuning.ipynb).

## 9. How was it measured? GLUE and SQuAD

BERT became famous through its tables of scores. Two names in them are worth knowing.

**GLUE** ([Wang and others, 2018](https://arxiv.org/abs/1804.07461)) is a collection of nine tasks on single sentences and on pairs. One number, the mean of the scores, sums them up.

| task | question | training examples | score |
|---|---|---|---|
| CoLA | is the sentence grammatical? | 8.5k | Matthews correlation |
| SST-2 | is the review positive? | 67k | accuracy |
| MRPC | do two sentences say the same thing? | 3.7k | accuracy and F1 |
| STS-B | how similar are they, from 0 to 5? | 7k | Pearson and Spearman correlation |
| QQP | do two questions ask the same thing? | 364k | accuracy and F1 |
| MNLI | does the second sentence follow from the first, contradict it, or neither? | 393k | accuracy, on matched and mismatched genres |
| QNLI | does the sentence contain the answer to the question? | 105k | accuracy |
| RTE | does the second sentence follow? | 2.5k | accuracy |
| WNLI | what does the pronoun refer to? | 634 | accuracy |

(The numbers are those of GLUE's paper. BERT's authors left WNLI out: no system submitted until then was better than always naming the more frequent answer.) In BERT's table 1 the mean of the other eight is 75.1 for GPT, 79.6 for BERT-base, and 82.1 for BERT-large.

**SQuAD** ([Rajpurkar and others, 2016](https://arxiv.org/abs/1606.05250)) asks more than 100,000 questions about paragraphs of Wikipedia. The answer is a span of the paragraph. Version 2.0 ([2018](https://arxiv.org/abs/1806.03822)) adds over 50,000 questions that have no answer there. There are two scores: **exact match** (EM), and the **F1** of the answer's words.

Why so many kinds of scores? Because accuracy flatters a model that always gives the same answer. Let us compute two of them, Matthews correlation and F1:
"""

# %%
rng = np.random.default_rng(9)
labels = rng.random(1000) < 0.7  # 70 % of the sentences are grammatical


def matthews(labels, guesses):
    """The correlation of labels and guesses, yes or no; 0 if one of the two never changes."""
    if labels.std() == 0 or guesses.std() == 0:
        return 0.0
    return np.corrcoef(labels, guesses)[0, 1]


noisy = np.where(rng.random(1000) < 0.3, ~labels, labels)
for name, guesses in (("always yes", np.ones(1000, bool)), ("right in about 70 %", noisy)):
    print(
        f"{name:<20} accuracy {(guesses == labels).mean():.2f}   Matthews "
        f"{matthews(labels, guesses):.2f}"
    )


def word_f1(answer, truth):
    """F1 of the words of two answers, as in SQuAD (which also drops articles and punctuation)."""
    shared = sum((Counter(answer.split()) & Counter(truth.split())).values())
    return 2 * shared / (len(answer.split()) + len(truth.split()))


print()
for answer in ("in the spring of 1953", "1953", "spring"):
    print(
        f"{answer!r:<25} for 'spring of 1953': EM {float(answer == 'spring of 1953'):.0f}, F1 "
        f"{word_f1(answer, 'spring of 1953'):.2f}"
    )

# %% [markdown]
r"""
The two models have about the same accuracy, but their correlations differ: the first knows nothing, the second something.

## 10. What did it cost?

According to appendix A.2 of BERT's paper, pre-training took a million steps with 256 sequences each. Nine tenths of the steps had 128 tokens per sequence, and one tenth had 512. BERT-base was trained on 4 Cloud TPUs (16 chips), BERT-large on 16 Cloud TPUs (64 chips), each for 4 days. How many operations is that? We count for one token:

- A weight in a matrix is used by one multiplication and one addition: 2 FLOPs (floating-point operations) in the forward pass. The backward pass has two products of the same size (for the input and for the weight), so there are 6 in all.
- Attention scores and the weighted sum are products as well, though without weights: $2 \cdot 2 S H$ per layer in the forward pass, and three times that in all.
- The output over the vocabulary is computed only for the masked words, which are about 15 %.
"""


# %%
def flops_per_token(config, length, masked=0.15):
    """The FLOPs of a training step, forward and backward, per token, without LayerNorm, softmax and GELU."""
    h, layers = config.hidden_size, config.num_hidden_layers
    weights = layers * (4 * h * h + 2 * h * config.intermediate_size)
    attention = layers * 3 * 2 * 2 * length * h
    output = masked * 6 * (h * config.vocab_size + h * h)
    return 6 * weights + attention + output


STEPS, SEQUENCES, SECONDS = 1_000_000, 256, 4 * 24 * 3600
SCHEDULE = ((0.9, 128), (0.1, 512))
tokens = sum(share * STEPS * SEQUENCES * length for share, length in SCHEDULE)
print(f"tokens: {tokens:.2e}; the corpus has 3.3e9 words")
cost = {}
for size, chips in (("base", 16), ("large", 64)):
    config = BertConfig.preset(size)
    cost[size] = sum(
        share * STEPS * SEQUENCES * length * flops_per_token(config, length)
        for share, length in SCHEDULE
    )
    rule = 6 * 12 * config.num_hidden_layers * config.hidden_size**2 * tokens
    print(
        f"{size:<6} {cost[size]:.2e} FLOPs (6 × weights of the layers × tokens: {rule:.2e}); "
        f"{cost[size] / chips / SECONDS / 1e12:.1f} TFLOP/s on each chip"
    )

# %%
size = 1024
a, b = np.random.default_rng(0).random((2, size, size), np.float32)
a @ b  # the first one warms up
began = time.perf_counter()
for _ in range(10):
    a @ b
speed = 10 * 2 * size**3 / (time.perf_counter() - began)
print(f"NumPy here: {speed / 1e9:.0f} GFLOP/s in matrix products")
for name, count in cost.items():
    print(
        f"BERT-{name} at this speed, if nothing else took time: "
        f"{count / speed / 3600 / 24 / 365:.0f} years"
    )

# %% [markdown]
r"""
The rule of thumb of six FLOPs per weight and token is close: attention itself adds little at these lengths. Alone, the processor that ran this notebook would need years for what took four days. It does not follow that nothing can be done without such machines. *mini* has a twentieth of BERT-base's parameters, and its training took less than 20 minutes: three on a single GPU, and the rest on two CPU cores ([its card](../minibert/assets/mini/README.md) has the details). Notebook
[18](18_real_weights.ipynb) loads real weights. BERT's paper says that each of its results can be reproduced from the published model in at most an hour on one Cloud TPU, or a few hours on a GPU. That is the point of transfer learning: the large cost is paid once.

## Recap

- BERT = the encoder of the Transformer + a cloze test + fine-tuning. What was new is to be bidirectional in every layer.
- Words that keep the same company get similar vectors. Skip-gram learns them by logistic regression; the gradient is $\sigma(s) - t$.
- Perplexity is the exponential of the mean loss: the number of equally likely choices.
- One vector per spelling mixes meanings. Contextual vectors separate them, and higher layers do it better than the lowest.
- ELMo is two one-way readers. GPT is one. In BERT every layer sees both sides, so the target has to be hidden at the input.
- The decoder of the Transformer was cut, with cross-attention and the causal mask, and so were the sinusoidal positions.
- BERT-base took about $2 \cdot 10^{19}$ FLOPs.

## What usually goes wrong

- **"BERT is a language model"**, so its perplexity is compared with GPT's. But the two condition on different things.
- **Perplexities with different vocabularies** are compared. They count per token ([22](22_what_mattered.ipynb#Perplexity-with-another-vocabulary)).
- **Similar vectors are taken for synonyms.** Opposites keep the same company, too.
- **`table[rows] += …`** with repeated rows: all but one of the additions are lost.
- **The cell's two uses.** In an LSTM's backward pass, one of the two derivatives is forgotten.
- **Accuracy on unbalanced labels** is read without a baseline.

## Three questions

Answer before you unfold.
"""

# %% [markdown]
r"""
<details>
<summary><b>1.</b> Why does skip-gram need negatives? What would be learned from true neighbours alone?</summary>

Without negatives the loss is $-\log \sigma(w \cdot c)$ for pairs of words that occur. It falls to 0 if all vectors are long and point in the same direction, whatever the text is. The negatives stand for pairs that do *not* occur, and so keep the words apart.

</details>
"""

# %% [markdown]
r"""
<details>
<summary><b>2.</b> A model has a perplexity of 20 on one half of a text and of 80 on the other. Both halves have equally many tokens. What is its perplexity on the whole text?</summary>

The losses are averaged, not the perplexities: $\exp\big(\tfrac12 (\ln 20 + \ln 80)\big) = \sqrt{20 \cdot 80} = 40$, the geometric mean. The arithmetic mean would be 50.

</details>
"""

# %% [markdown]
r"""
<details>
<summary><b>3.</b> ELMo's vector for a word depends on the words on both sides. Why is it called "shallowly" bidirectional?</summary>

The state from the left was computed without any knowledge of the right side, and the other way around. They are only concatenated at the end. No layer can combine what both sides say and pass the result to a layer above, where other words could use it. In BERT every layer does this.

</details>
"""

# %% [markdown]
r"""
## Further reading

- Devlin and others: [BERT](https://arxiv.org/abs/1810.04805) (2019). Section 2 is the history as its authors see it.
- Vaswani and others: [Attention is all you need](https://arxiv.org/abs/1706.03762) (2017).
- Bengio and others: [A neural probabilistic language model](https://www.jmlr.org/papers/v3/bengio03a.html) (2003).
- Mikolov and others: [Distributed representations of words and phrases and their compositionality](https://arxiv.org/abs/1310.4546) (2013). Negative sampling and subsampling.
- Levy and Goldberg: [Neural word embedding as implicit matrix factorization](https://papers.nips.cc/paper/5477-neural-word-embedding-as-implicit-matrix-factorization) (2014). What skip-gram with negative sampling computes.
- Arora and others: [Linear algebraic structure of word senses, with applications to polysemy](https://arxiv.org/abs/1601.03764) (2018). What a vector of several meanings is made of.
- Peters and others: [Deep contextualized word representations](https://arxiv.org/abs/1802.05365) (2018).
- Howard and Ruder: [Universal language model fine-tuning for text classification](https://arxiv.org/abs/1801.06146) (2018).
- Clark and others: [ELECTRA](https://arxiv.org/abs/2003.10555) (2020). Its appendix counts the FLOPs of several of these models.

## Next

[22 · What mattered](22_what_mattered.ipynb) asks which of BERT's decisions were needed; [23 · After BERT](23_after_bert.ipynb) is about models that decided otherwise. Back to the [overview of the course](README.md).
"""
