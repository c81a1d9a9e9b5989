# %% [markdown]
r"""
# 12 · Pre-training data

BERT learned from plain text, without a single label written by a person. The labels are made by a procedure: glue two
pieces of text together, hide some words, ask for them. The model is no better than this procedure, and its mistakes do
not raise an error; they make a loss that looks fine.

**You will** turn documents into sentence pairs · choose 15 % of the tokens, as whole words, and say what it is 15 % of · write the
80/10/10 rule, and derive what it teaches · repair a loss whose mask does nothing · see why a model that looks both ways
cannot be trained to predict the next word.

**Before this:** [07 · WordPiece](07_wordpiece.ipynb), [03 · Softmax and cross-entropy](03_softmax_cross_entropy.ipynb).
**Time:** 90 minutes with the exercises; it runs in seconds.

| letter | in this notebook |
|---|---|
| `B`, `S` | sequences in a batch, tokens in a sequence (padding included) |
| `V` | tokens in the vocabulary |
| `P` | predicted positions of a sequence, at most |
| *instance* | one training example: `[CLS] A [SEP] B [SEP]` |
"""

# %%
import inspect
import textwrap
from itertools import islice
from random import Random

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import ListedColormap

from minibert import BertConfig, BertModel, BertTokenizer, check, ops, plots
from minibert.data import BatchStream, Documents, InstanceSettings, open_corpus
from minibert.data.batches import write_instances
from minibert.data.instances import make_instances
from minibert.data.masking import choose_positions, mask_tokens
from minibert.ops.cross_entropy_loss import cross_entropy

plots.notebook_style()
np.set_printoptions(precision=3, suppress=True)
rng = np.random.default_rng(12)

# %% [markdown]
r"""
## 1. From text to one long array

Pre-training text is a list of documents, each a list of sentences. Here are three, and a vocabulary that cuts
some words in two, as a learned one would do.
"""

# %%
TEXTS = [
    "the boat was leaking . we pulled it ashore . my brother was painting the planks . "
    "the paint dried in the sun . at night we went sailing . the wind was gentle .",
    "bread needs time . the dough was resting under a cloth . it had doubled by noon . "
    "the oven was heating . a crust was forming . we ate it with salt .",
    "owls hunt at night . they hear a mouse under the snow . their feathers make no sound . "
    "the young wait in the hollow tree . morning finds them sleeping .",
]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
words = sorted({word for text in TEXTS for word in text.split()})
stems = sorted({word.removesuffix("ing") for word in words if word.endswith("ing")} - set(words))
whole = [word for word in words if not word.endswith("ing") or word == "morning"]
tokenizer = BertTokenizer([*SPECIAL, "##ing", *stems, *whole])

sentences = [[sentence + " ." for sentence in text.split(" .")[:-1]] for text in TEXTS]
ids = [[tokenizer.token_ids(sentence) for sentence in document] for document in sentences]
print(f"V = {tokenizer.vocab_size}")
print(tokenizer.tokenize(sentences[0][0]))

# %% [markdown]
r"""
However large a corpus is, the library stores it as three flat arrays: all tokens one after the other, where each sentence
begins, and where each document begins. So an instance need not hold text. Five integers describe it: where its two segments
begin and end, and whether the second is random.
"""


# %%
def documents_of(ids):
    """Nested lists of token ids (document, sentence, token) as the library's three arrays."""
    lengths = [len(sentence) for document in ids for sentence in document]
    return Documents(
        tokens=np.array([token for document in ids for sentence in document for token in sentence]),
        sentence_starts=np.cumsum([0, *lengths]),
        document_starts=np.cumsum([0, *map(len, ids)]),
        chosen=np.arange(len(ids)),
    )


documents = documents_of(ids)
print("tokens         ", documents.tokens[:14], "…", documents.tokens.shape)
print("sentence_starts", documents.sentence_starts)
print("document_starts", documents.document_starts)

# %% [markdown]
r"""
## 2. Pairs

For next-sentence prediction (NSP), an instance needs two segments, A and B, where B either follows A or does not. This is
the original's procedure, document by document:

1. Collect sentences until they reach the target length (`S` − 3, to leave room for three special tokens).
2. Cut the chunk at a random sentence boundary. The front is **A**.
3. With probability ½, **B** is the rest of the chunk: label 0, "follows". Otherwise B comes from a random place in
   another document: label 1. The unused rest is **put back** and starts the next chunk.
4. If the chunk has only one sentence, there is no rest: B is random.
5. If the pair is too long, drop tokens from the longer segment. The toss of a coin decides whether from its front or its back.

For one document in ten, the target is a random shorter length, so that short inputs are no surprise later.
"""

# %%
settings = InstanceSettings(max_seq_length=32)
instances = make_instances(documents, np.arange(len(documents)), settings, Random(3))
rows = write_instances(instances, documents, tokenizer, settings)
print("a_start  a_stop  b_start  b_stop  is_random")
for row in instances:
    print("{:7}{:8}{:9}{:8}{:11}".format(*row))

# %%
for ids_of_row, label in list(zip(rows["input_ids"], rows["next_sentence_label"], strict=True))[:3]:
    text = " ".join(tokenizer.tokens[i] for i in ids_of_row if i != tokenizer.pad_id)
    print(label, textwrap.fill(text, 90, subsequent_indent="  "), end="\n\n")

# %% tags=["figure"]
# Caption: Five instances of up to 32 tokens. The labels on the left say whether B follows A.
position = np.arange(settings.max_seq_length)
kind = rows["token_type_ids"] + 1  # 1: A, 2: B
kind[rows["attention_mask"] == 0] = 0
kind[np.isin(rows["input_ids"], [tokenizer.cls_id, tokenizer.sep_id])] = 3
figure, axes = plt.subplots(figsize=(7.5, 2.6))
axes.imshow(
    kind, cmap=ListedColormap(["#e6e6e6", plots.BLUE, plots.ORANGE, "black"]), aspect="auto"
)
for shade, text in zip(
    ("#e6e6e6", plots.BLUE, plots.ORANGE, "black"), ("[PAD]", "A", "B", "[CLS], [SEP]"), strict=True
):
    axes.plot([], [], "s", color=shade, label=text, markersize=9)
labels = ["follows" if label == 0 else "random" for label in rows["next_sentence_label"]]
axes.set_yticks(range(len(kind)), labels)
axes.set(title="the instances of one pass", xlabel="position")
axes.grid(False)
axes.legend(ncols=4, loc="upper center", bbox_to_anchor=(0.5, -0.3), fontsize=9)
plt.show()

# %% [markdown]
r"""
Are half of the pairs random? For statistics we need more text. We take the first 300 documents of the documentation that
is installed with Python and its packages, cut into subwords by the tokenizer of `mini`.
"""

# %%
mini = BertTokenizer.from_pretrained("mini")
many = documents_of([mini.token_ids_batch(document) for document in islice(open_corpus(), 300)])
settings = InstanceSettings()  # the original's: S = 128, P = 20
pairs = make_instances(many, np.arange(len(many)), settings, Random(5))
a_start, a_stop, b_start, b_stop, is_random = pairs.T
full = (a_stop - a_start) + (b_stop - b_start) == settings.max_num_tokens
print(f"{len(many.tokens):,} tokens → {len(pairs):,} instances")
print(f"random B: {is_random.mean():.0%}   filled to the last place: {full.mean():.0%}")
assert 0.5 < is_random.mean() < 0.7

# %% [markdown]
r"""
A little more than half are, because of rule 4: what is left at a document's end is often a single sentence, and then B is
random without a coin toss. The original's labels are not quite balanced, and nobody minds.

## 3. Why was NSP dropped later?

Because it is too easy, and for the wrong reason. A random B comes from *another document*, so it is about something
else. To see this, it is enough to count which share of B's words occur in A:
"""


# %%
def overlap(a_start, a_stop, b_start, b_stop):
    a, b = many.tokens[a_start:a_stop], many.tokens[b_start:b_stop]
    return np.isin(b, a).mean()


shared = np.array(
    [overlap(*row[:4]) for row in pairs if min(row[1] - row[0], row[3] - row[2]) > 20]
)
label = np.array([row[4] for row in pairs if min(row[1] - row[0], row[3] - row[2]) > 20])
cuts = np.linspace(0, 1, 201)
accuracy = [((shared < cut) == label).mean() for cut in cuts]
print(f"next sentence, by word overlap:  {max(accuracy):.0%} right")
print(f"always 'random':                 {label.mean():.0%}")

# the other task: both segments in a row, but which of them came first?
follows = pairs[(is_random == 0)]
tossed = np.random.default_rng(6).random(len(follows)) < 0.5  # A and B change places
either = np.where(tossed[:, None], follows[:, [2, 3, 0, 1]], follows[:, :4])
shared_order = np.array([overlap(*sorted_row) for sorted_row in either])
order_accuracy = max(((shared_order < cut) == tossed).mean() for cut in cuts)
print(f"which came first, by word overlap: {order_accuracy:.0%} right")
assert max(accuracy) > 0.7 > 0.6 > order_accuracy

# %% tags=["figure"]
# Caption: In most cases, two texts that belong together share more words.
figure, axes = plt.subplots(figsize=(7.5, 2.9))
bins = np.linspace(0, 1, 41)
axes.hist(shared[label == 0], bins, histtype="step", linewidth=2, label="B follows A")
axes.hist(shared[label == 1], bins, histtype="step", linewidth=2, label="B is random")
axes.axvline(cuts[np.argmax(accuracy)], color=plots.GREY, linestyle="--", linewidth=1.2)
axes.set(
    title="the topic gives it away", xlabel="share of B's words that occur in A", ylabel="pairs"
)
axes.legend()
plt.show()

# %% [markdown]
r"""
One line of counting gets more than three quarters of the pairs right. There is hardly any need to understand
whether B *continues* A. Meanwhile the task has its cost: half of the instances join two unrelated texts, so contexts are
shorter. RoBERTa (2019) trained without it and did as well or better. ALBERT replaced it by the question of the last line
above, "which of the two came first?", where the topic is no help.

With minibert's `next_sentence=False`, an instance is one run of sentences.
[15 · Fine-tuning](15_fine_tuning.ipynb) shows what NSP does to the pooled vector.

## 4. Is it 15 % exactly, or in expectation?

In BERT: **exactly**, up to rounding. An instance of $\ell$ tokens, special ones counted, gets

$$ n = \min\bigl(P, \; \max(1, \operatorname{round}(0.15 \, \ell)) \bigr) $$

positions, drawn without repetition among the words ([CLS], [SEP] and padding are not candidates). RoBERTa's code
rounds up or down at random, and the package transformers tosses a coin for each token: both are 15 % in expectation.
"""

# %%
n, S = 4000, 128
attended = np.ones((n, S), dtype=bool)
candidates = attended.copy()
candidates[:, [0, 60, S - 1]] = False  # [CLS], [SEP], [SEP]
exact = choose_positions(candidates, attended.sum(1), candidates, 0.15, 20, rng).sum(axis=1)
coins = (candidates & (rng.random((n, S)) < 0.15)).sum(axis=1)
for name, counts in (("exact", exact), ("a coin each", coins)):
    print(
        f"{name:<12} {counts.mean():5.2f} ± {counts.std():.2f}, from {counts.min()} to {counts.max()}"
    )
assert set(exact) == {round(0.15 * S)}

print("\nlength      5    8   16   32   64  128")
lengths = np.array([5, 8, 16, 32, 64, 128])
counts = np.minimum(20, np.maximum(1, np.rint(0.15 * lengths))).astype(int)
print("positions", "".join(f"{count:5}" for count in counts))
print("of words ", "".join(f"{share:5.0%}" for share in counts / (lengths - 3)))

# %% tags=["figure"]
# Caption: How many of 128 tokens are predicted: always 19 in BERT, but a varying number with a coin
#   for each token.
figure, axes = plt.subplots(figsize=(7.5, 2.8))
bins = np.arange(4.5, 36)
axes.hist(coins, bins, color=plots.ORANGE, weights=np.full(n, 1 / n), label="a coin for each token")
axes.hist(exact, bins, color=plots.BLUE, weights=np.full(n, 1 / n), rwidth=0.5, label="BERT")
axes.set(title="predicted positions in 128 tokens", xlabel="positions", ylabel="share of sequences")
axes.legend()
plt.show()

# %% [markdown]
r"""
In short instances, rounding moves the share away from 15 %: an instance of five tokens has two words, and one of them
is always chosen. The exact number has a practical use as well: with at most `P` positions per sequence, the arrays
have a known size.

With **whole-word masking** words are drawn, and all pieces of a word are chosen together. Otherwise `sail` would often be
guessed from `##ing` alone:
"""

# %%
sentence = "at night we went sailing . my brother was painting the planks ."
tokens = np.array(tokenizer.token_ids(sentence))[None]  # (1, S)
everywhere = np.ones(tokens.shape, dtype=bool)
starts = ~tokenizer.continues_word[tokens]
for name, word_starts in (("single pieces", everywhere), ("whole words", starts)):
    print(name)
    for seed in range(3):
        chosen = choose_positions(
            everywhere, np.array([20]), word_starts, 0.15, 20, np.random.default_rng(seed)
        )
        line = np.where(chosen[0], "▁▁▁▁", [tokenizer.tokens[i] for i in tokens[0]])
        print("  ", " ".join(line))

# %% [markdown]
r"""
### Open: whole words

@exercise 12.choose_words

One instance of `S` subwords. `continues` says which of them continue a word, `order` has the numbers of its words in random order, and
`wanted` is how many positions are to be predicted. Go through the words in that order, and choose each one that still fits as a whole. A word that
is too long for what is left is skipped, so in the end there may be fewer positions than wanted, but never more. (To keep it short, there are no special tokens
and no padding.)
"""

# %% [markdown] tags=["derivation"]
r"""
The number of the word that a position belongs to rises by one wherever a word begins: that is a cumulative sum over
`~continues`, minus 1. From there, a loop over `order` is enough. The two ways of finishing the loop that suggest themselves are both wrong. Stopping at the first word that does not fit
leaves room unused. Cutting that word leaves a part of it visible.

Skipping has a price: long words are skipped more often than short ones, so they are predicted less often.
"""


# %% tags=["solution"]
def my_choose_words(continues, order, wanted):
    """The chosen positions, whole words in this order: (S,) bool.

    continues (S,) bool, False at 0; order (W,), a permutation of the W words; wanted, the largest number of positions.
    """
    word = np.cumsum(~continues) - 1  # (S,): the number of each position's word
    chosen = np.zeros(len(continues), dtype=bool)
    for number in order:
        pieces = word == number
        if chosen.sum() + pieces.sum() <= wanted:
            chosen |= pieces
    return chosen


# %%
check("12.choose_words", my_choose_words)

# %% [markdown]
r"""
## 5. What becomes of a chosen token

Of the chosen tokens, 80 % are replaced by [MASK], 10 % are left **as they are**, and 10 % are replaced by a random token of the
vocabulary. All of them are predicted. Two arrays come out: what the model sees, and `labels`, the true tokens at
chosen places and −100 everywhere else.

Let us follow one sentence. Here it is with every fate that its chosen tokens can have; the chosen places are the same in each row:
"""

# %% tags=["figure"]
# Caption: One sentence, two chosen words, three fates. The labels are the same in all of them.
SENTENCE = "the boat was leaking so we pulled it ashore .".split()
CHOSEN, RANDOM = {3: "leaking", 6: "pulled"}, {3: "oven", 6: "green"}
FATES = {  # what the model sees at a chosen place: how often, and in which colour
    "[MASK]\n80 %": (lambda s: "[MASK]", plots.BLUE),
    "as it was\n10 %": (lambda s: CHOSEN[s], plots.GREEN),
    "random\n10 %": (lambda s: RANDOM[s], plots.VERMILION),
}
figure, axes = plt.subplots(figsize=(7.5, 2.7))
for row, (name, (becomes, colour)) in enumerate(FATES.items()):
    axes.text(-0.8, -row, name, ha="right", va="center", color=colour, fontsize=9.5)
    for s, word in enumerate(SENTENCE):
        style = {"color": colour, "weight": "bold"} if s in CHOSEN else {"color": plots.GREY}
        seen = becomes(s) if s in CHOSEN else word
        axes.text(s, -row, seen, ha="center", va="center", fontsize=9.5, **style)
for row, label in ((1, "sentence"), (-3, "labels")):
    axes.text(-0.8, row, label, ha="right", va="center", fontsize=9.5)
for s, word in enumerate(SENTENCE):
    axes.text(s, 1, word, ha="center", va="center", fontsize=9.5)
    label = {"s": word, "weight": "bold"} if s in CHOSEN else {"s": "−100", "color": "#999999"}
    axes.text(s, -3, ha="center", va="center", fontsize=9.5, **label)
for line in (0.5, -2.5):
    axes.axhline(line, color="#cccccc", linewidth=0.8)
axes.set(xlim=(-2.2, 9.5), ylim=(-3.5, 1.5))
axes.axis("off")
figure.set_label(
    "One sentence of ten words; two of them were chosen, leaking and pulled. The model sees [MASK] in 80 % of "
    "cases, the word itself in 10 %, a random word in 10 %. The labels are the two words, and −100 elsewhere."
)
plt.show()

# %% [markdown]
r"""
Every chosen token draws its fate by itself, so one sentence usually mixes them. The labels do not depend on the fate: even where nothing
was changed, the model has to predict the token.

## 6. Your turn: masking

@exercise 12.mask_tokens

So that the result can be checked, all randomness is passed in: `fate` is uniform in $[0, 1)$ for each position, and `anything` is a random
token for each. At a chosen position, `fate` below 0.8 means [MASK], from 0.8 to 0.9 it means "as it is", and from 0.9 on it means `anything`. Return what the model sees and
the labels.
"""


# %% tags=["solution"]
def my_mask_tokens(input_ids, chosen, fate, anything, mask_id):
    """What the model sees, and the labels: both (B, S).

    input_ids (B, S); chosen (B, S) bool; fate (B, S) in [0, 1); anything (B, S) random ids.
    """
    new = np.where(fate < 0.8, mask_id, np.where(fate < 0.9, input_ids, anything))
    return np.where(chosen, new, input_ids), np.where(chosen, input_ids, -100)


# %%
check("12.mask_tokens", my_mask_tokens)

# %% [markdown] tags=["answer"]
r"""
The library's function takes the shares as an argument, and draws only for the chosen places. Otherwise it is the same:
"""

# %% tags=["answer"]
print(inspect.getsource(mask_tokens).split('"""')[-1])

# %%
n, S, V, MASK = 2000, 128, 2000, 4
input_ids = rng.integers(5, V, size=(n, S)).astype(np.int32)
candidates = np.ones((n, S), dtype=bool)
candidates[:, [0, 60, S - 1]] = False
chosen = choose_positions(candidates, np.full(n, S), candidates, 0.15, 20, rng)
seen, labels = mask_tokens(input_ids, chosen, MASK, V, rng)

shares = {
    "not chosen": (~chosen).mean(),
    "[MASK]": (chosen & (seen == MASK)).mean(),
    "as it was": (chosen & (seen == input_ids)).mean(),
    "random": (chosen & (seen != MASK) & (seen != input_ids)).mean(),
}
for name, share in shares.items():
    of_chosen = "" if name == "not chosen" else f"   {share / chosen.mean():6.1%} of the chosen"
    print(f"{name:<11} {share:6.2%} of all{of_chosen}")
assert ((labels != -100) == chosen).all()

# %% tags=["figure"]
# Caption: What becomes of all tokens of a text. Only the coloured 15 % are predicted.
figure, axes = plt.subplots(figsize=(7.5, 1.6))
left = 0.0
colours = ("#e6e6e6", plots.BLUE, plots.GREEN, plots.VERMILION)
for (name, share), colour in zip(shares.items(), colours, strict=True):
    axes.barh(0, share, left=left, color=colour, label=f"{name} {share:.1%}")
    left += share
axes.set(title="what the model is shown", xlabel="share of all tokens", yticks=[], xlim=(0, 1))
axes.legend(ncols=4, loc="upper center", bbox_to_anchor=(0.5, -0.65), fontsize=9)
plt.show()

# %% [markdown]
r"""
## 7. Why 80/10/10?

Always [MASK] would be simpler. But [MASK] never occurs in fine-tuning: the model would have learned to think only where it
sees that sign. So what do the two tenths teach? We can compute it, for masking is a **noisy channel**: a true word $x$ goes in,
and a token $s$ is shown. By Bayes' theorem, the best prediction at a chosen place is

$$
p(x \mid s, \text{context}) \;\propto\; p(x \mid \text{context}) \cdot p(s \mid x) .
$$

If a *word* $s$ is shown, it was either kept (share $k$, and then $x = s$) or drawn at random (share $r$, with
all `V` words equally likely): $p(s \mid x) = k \, [x = s] + r / V$. Let $q = p(s \mid \text{context})$ be how well the shown word fits. Then

$$
p(x = s \mid s, \text{context})
= \frac{q \, (k + r/V)}{q \, k + r/V} .
$$

Three recipes teach three lessons:
"""


# %%
def trust(q, kept, drawn, V=8192):
    """The best belief that the shown word is right, if it fits the context with probability q."""
    return q * (kept + drawn / V) / (q * kept + drawn / V)


for q in (0.5, 1e-2, 1e-4, 1e-6):
    print(
        f"q = {q:<7}  keep 20 %: {trust(q, 0.2, 0.0):.3f}   10/10: {trust(q, 0.1, 0.1):.3f}", end=""
    )
    print(f"   random 20 %: {trust(q, 0.0, 0.2):.1e}")

# does counting agree? A context in which word 0 has q = 0.02, others share the rest; V = 50
V, q = 50, 0.02
others = np.full(V, (1 - q) / (V - 1))
others[0] = q
x = rng.choice(V, size=500_000, p=others)
kept = rng.random(x.size) < 0.5  # of the two tenths
s = np.where(kept, x, rng.integers(V, size=x.size))
counted = (x[s == 0] == 0).mean()
print(f"\ncounted {counted:.3f}, computed {trust(q, 0.1, 0.1, V):.3f}")
assert abs(counted - trust(q, 0.1, 0.1, V)) < 0.01

# %% tags=["figure"]
# Caption: Only with kept and random words together is it worth asking whether the shown word fits.
q = np.logspace(-7, 0, 200)
figure, axes = plt.subplots(figsize=(7.5, 3.1))
axes.semilogx(q, trust(q, 0.2, 0.0), "--", label="80/20/0: kept only")
axes.semilogx(q, trust(q, 0.1, 0.1), label="80/10/10: both")
axes.semilogx(q, trust(q, 0.0, 0.2), ":", label="80/0/20: random only")
axes.axvline(1 / 8192, color=plots.GREY, linewidth=1)
axes.text(1.15 / 8192, 0.05, "1/V", color=plots.GREY)
axes.set(title="is the word that I see the right one?", ylabel="best belief")
axes.set_xlabel("q: how well the shown word fits its context")
axes.legend(fontsize=9, loc="center left")
plt.show()

# %% [markdown]
r"""
- **Kept only**: the shown word is always right. The lesson is to copy; the context need not be read.
- **Random only**: the shown word carries no information. The lesson is to ignore it.
- **Both**: believe it if it fits, doubt it if it fits worse than a random word would ($q < 1/V$). That is reading: compare
  each word with its context. And as the model cannot tell which visible words are asked for, it has to do so at **every** position.
- **Always [MASK]** says nothing at all about visible words.

BERT's authors tried other shares (their appendix C.2): after fine-tuning the differences are small; always-[MASK] is
worst where the encoder stays as it is and only a head on its vectors learns, as this argument would predict.

## 8. Why is the loss only on selected tokens?

Because the others can be copied. Take a "model" without any knowledge. It answers each visible word with that same
word, at 99 %, and [MASK] with a shrug:
"""

# %%
V = 2000
few = slice(0, 64)  # sequences are enough
visible, truth = seen[few].reshape(-1), input_ids[few].reshape(-1)  # (N,)
asked = (labels[few].reshape(-1) != -100).astype(np.float32)
belief = np.full((len(visible), V), 0.01 / (V - 1), dtype=np.float32)
belief[np.arange(len(visible)), visible] = 0.99
belief[visible == MASK] = 1 / V
logits = np.log(belief)  # softmax gives the beliefs back

everywhere, _ = cross_entropy(logits, truth, np.ones_like(asked), float(len(asked)))
selected, _ = cross_entropy(logits, truth, asked, float(asked.sum()))
print(f"loss over all tokens:      {everywhere:.2f}")
print(f"loss over selected tokens: {selected:.2f}     (knowing nothing: ln V = {np.log(V):.2f})")
assert everywhere < 1.5 < selected

# %% [markdown]
r"""
Over all tokens the copier looks brilliant, and nearly all of the gradient would go into copying. So the positions that are not chosen get
the label **−100**. That is a marker and not a token. 0 would be a token ([PAD]), and a position with label 0 would count.

It saves work, too. The library gathers the chosen positions *before* it scores the whole vocabulary
([11 · Heads and losses](11_heads_losses.ipynb)): 19 rows of `V` scores instead of 128.

## 9. Your turn: find the bug

@exercise 12.masked_loss

The loss should be the mean of $-\log p$ over the positions that have a label. This one runs without complaint, and is wrong.
"""


# %%
def masked_loss_with_a_bug(logits, labels):
    mask = labels != -100  # (B, S)
    shifted = logits - logits.max(axis=-1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))  # (B, S, V)
    safe = np.where(mask, labels, 0)[..., None]
    nll = -np.take_along_axis(log_p, safe, axis=-1)[..., 0]  # (B, S)
    return (nll.mean() * mask).sum() / mask.sum()


logits = rng.standard_normal((2, 6, 10))
labels = np.full((2, 6), -100)
labels[0, 2], labels[1, 4] = 7, 3
print(f"loss                               {masked_loss_with_a_bug(logits, labels):.4f}")
logits[0, 0] += 5 * rng.standard_normal(10)  # a position that nobody asks for
print(f"another answer at an ignored place {masked_loss_with_a_bug(logits, labels):.4f}")

# %% [markdown]
r"""
The second number should equal the first. Find out why it does not, and repair the loss. All labelled positions count equally, whatever sequence
they are in.
"""

# %% [markdown] tags=["derivation"]
r"""
`nll.mean()` is taken first, over all positions, the ignored ones included. What is left is one number. Multiplied by the mask,
summed, and divided by the mask's sum, it is the same number again: the mask does nothing. A mean that has been taken cannot
be taken apart. So multiply by the mask *before* anything is summed, and divide by the number of labels.
"""


# %% tags=["solution"]
def my_masked_loss(logits, labels):
    """Mean of −log p(label) over the positions whose label is not −100: logits (B, S, V), labels (B, S)."""
    mask = labels != -100  # (B, S)
    shifted = logits - logits.max(axis=-1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))  # (B, S, V)
    safe = np.where(mask, labels, 0)[..., None]
    nll = -np.take_along_axis(log_p, safe, axis=-1)[..., 0]  # (B, S)
    return (nll * mask).sum() / mask.sum()


# %%
check("12.masked_loss", my_masked_loss)

# %% [markdown]
r"""
## 10. Why is bidirectional attention incompatible with next-word prediction?

Why hide words at all, and not ask every position for the word that comes next? Ask an untrained BERT: does the output at
position $i$ change if the token at position $j$ does?
"""


# %%
def dependence(is_decoder, S=8):
    config = BertConfig.preset("tiny", vocab_size=50, hidden_size=64, is_decoder=is_decoder)
    model = BertModel(config, dtype="float64", add_pooling_layer=False)
    model.eval()
    ids = np.arange(10, 10 + S)[None]  # (1, S)
    base = model.forward(ids)[0].last_hidden_state
    moved = np.empty((S, S))
    for j in range(S):
        other = ids.copy()
        other[0, j] = 40
        changed = model.forward(other)[0].last_hidden_state
        moved[:, j] = np.linalg.norm(changed - base, axis=-1)[0]  # for each position i
    return moved


with ops.reference_only():
    both_ways, left_to_right = dependence(False), dependence(True)
S = len(both_ways)
above = np.triu_indices(S, k=1)
print(f"both ways:     {np.mean(both_ways[above] > 0):.0%} of the later tokens are visible")
print(f"left to right: {np.mean(left_to_right[above] > 0):.0%}")
assert (both_ways > 0).all() and (left_to_right[above] == 0).all()

# %% tags=["figure"]
# Caption: Blue: output i depends on token j. The stars are the answers that next-word prediction
#   asks for.
figure, axes = plt.subplots(1, 2, figsize=(7.5, 3.5))
for panel, matrix, title in zip(
    axes, (both_ways, left_to_right), ("BERT: both ways", "left to right"), strict=True
):
    panel.imshow(matrix > 0, cmap=ListedColormap(["white", plots.SKY]), vmin=0, vmax=1)
    next_word = np.arange(S - 1)
    panel.plot(next_word + 1, next_word, "*", color=plots.VERMILION, markersize=10)
    panel.set(title=title, xlabel="token j", ylabel="output i", xticks=range(S), yticks=range(S))
    panel.set_xticks(np.arange(S + 1) - 0.5, minor=True)
    panel.set_yticks(np.arange(S + 1) - 0.5, minor=True)
    panel.grid(False, which="major")
    panel.grid(True, which="minor", color="#b0b0b0", linewidth=0.6)
    panel.tick_params(which="minor", length=0)
plt.show()

# %% [markdown]
r"""
Blue: output $i$ depends on token $j$. A star is the answer that next-word prediction wants from output $i$. On the left every star is on blue:
the answer lies in plain sight, and the loss would fall to 0 by copying. Hence BERT's way out: remove the answer from the
*input*, with [MASK]. What follows from that:

- **It learns from 15 % of its tokens** only; a left-to-right model of the same text gets an error signal from every one.
- **It does not generate.** It knows $p(\text{word} \mid \text{both sides})$, not how a text goes on.
- **It does not stream.** A token that is added at the end changes all outputs before it (last column), so that
  nothing can be kept; on the right the last column touches only its own output.

## 11. New masks in every pass

The original wrote its instances to disk, ten copies of the text with ten different masks, and repeated those. minibert
draws anew in each pass (`masking="dynamic"`, as RoBERTa did); `"fixed"` is the original's. `BatchStream` does everything
in this notebook at once. It never ends, and the same seed gives the same batches.
"""

# %%
for masking in ("dynamic", "fixed"):
    settings = InstanceSettings(
        max_seq_length=64, masking=masking, dupe_factor=2, next_sentence=False
    )
    batches = BatchStream(documents, tokenizer, settings, batch_size=1, seed=4)
    by_pass = {}
    while len(by_pass) < 5:  # passes 0 … 4
        batch = next(batches)
        by_pass.setdefault(batches.state()["pass"], []).append(batch["input_ids"].tobytes())
    passes = [frozenset(by_pass[number]) for number in range(4)]
    same = [[int(bool(one & other)) for other in passes] for one in passes]
    print(f"{masking}: which of the first four passes share a masked instance?")
    print(np.array(same))

# %% [markdown]
r"""
## Recap

- An instance is `[CLS] A [SEP] B [SEP]`; B is random in a little more than half of the cases. The label 1 means *random*.
- $n = \min(P, \max(1, \operatorname{round}(0.15 \ell)))$ positions, exactly; special tokens never.
- Of these 80 % [MASK], 10 % kept, 10 % random: believe a word if it fits, doubt it if not, at every position.
- Labels are the true tokens at chosen positions, −100 elsewhere. The loss is one mean over the chosen positions of the
  whole batch.
- Looking both ways rules out next-word prediction; masking pays for it with 85 % of the signal.

## What usually goes wrong

- **80 % of all tokens.** The 80/10/10 divides the chosen 15 %.
- **Labels taken after masking.** They all say [MASK]; the loss falls to 0 at once.
- **Kept tokens without a label.** Then visible words are asked for only when they are wrong.
- **0 for ignored**, or one loss for both heads that ignores 0: NSP's class 0 is never learned.
- **[CLS] or padding masked.** Always pass the candidates, not the attention mask.
- **A mean of means.** A position in a sequence with few of them then counts for more.

## Three questions

Answer before you unfold.
"""

# %% [markdown]
r"""
<details>
<summary><b>1.</b> Of a hundred tokens, how many wrong words does the model see, and at how many visible words may it be asked?</summary>

About 1.5 are wrong words (10 % of 15 %). It is asked at 3 visible words, 1.5 right and 1.5 wrong, but does not know which, so all 88 visible words have to be
read with suspicion.

</details>
"""

# %% [markdown]
r"""
<details>
<summary><b>2.</b> A random replacement may happen to draw the true word. Does that matter?</summary>

Not at all. It happens once in V draws and is then a kept word. In the formula above it is the $r/V$ in $k + r/V$.

</details>
"""

# %% [markdown]
r"""
<details>
<summary><b>3.</b> Why not mask 50 % and learn from more tokens at once?</summary>

Each prediction would have half of its context missing, so it would be a harder and vaguer question. 15 % is a
compromise, and not a sharp one: Wettig and others (2022) found 40 % to be better for a model as large as BERT-large.

</details>
"""

# %% [markdown]
r"""
## Further reading

- Taylor, [“Cloze procedure”: a new tool for measuring readability](https://doi.org/10.1177/107769905303000401), 1953: hiding words, to measure readers.
- Devlin and others, [BERT](https://arxiv.org/abs/1810.04805), 2018: appendix C.2 compares 80/10/10 with other shares.
- Liu and others, [RoBERTa](https://arxiv.org/abs/1907.11692), 2019: masks drawn anew, and training without next sentences.
- Joshi and others, [SpanBERT](https://arxiv.org/abs/1907.10529), 2019: hiding neighbours together.
- Wettig and others, [Should you mask 15% in masked language modeling?](https://arxiv.org/abs/2202.08005), 2022: larger shares often do better.

**Next:** [13 · The optimiser](13_optimiser.ipynb). The code of this notebook:
[instances.py](../minibert/data/instances.py) · [masking.py](../minibert/data/masking.py) ·
[batches.py](../minibert/data/batches.py).
"""
