# %% [markdown]
r"""
# 00 · Start here

**BERT**, *Bidirectional Encoder Representations from Transformers* ([21](21_where_bert_comes_from.ipynb) explains each word), reads a
text and turns every word into a vector that depends on the words around it. It learned that mainly from one game: guess the hidden
word. This page plays the game with a small BERT that comes with the package. It shows what goes on inside, what BERT is good for, and
what it cannot do.

**You will** let it fill gaps, and teach it a fact · follow one sentence from text to probabilities · see that it reads both sides, and
what it cannot do for that reason · predict which changes of a sentence change its answer · find your way
through the course.

**Before this:** Python, and what a matrix product is. Nothing about BERT.
**Time:** 15 minutes; it runs in seconds. (Each grey cell is code: Shift+Enter runs it.)

| letter | in the whole course |
|---|---|
| `B`, `S` | how many texts at once (a *batch*), how many tokens in each |
| `H` | hidden size: how many numbers describe a token |
| `V` | how many tokens the vocabulary has |
| `L`, `A` | how many layers, how many attention heads in each |
"""

# %%
import matplotlib.pyplot as plt
import numpy as np

from minibert import BertConfig, BertForPreTraining, BertTokenizer, check, ops, plots
from minibert.course import read_results
from minibert.course.exercises.n00_start_here import CHANGES, SENTENCE, probabilities_at_mask
from minibert.tasks import fill_mask
from minibert.tasks.info import parameter_table

plots.notebook_style()
np.set_printoptions(precision=3, suppress=True)

# %% [markdown]
r"""
## 1. Ask it, look inside, teach it

`[MASK]` is a gap. Run the next cell, and a BERT says what belongs there. It is on your own machine, and you can read every line of its
code.
"""

# %%
model = BertForPreTraining.from_pretrained("mini")  # a folder of this package: no download
tokenizer = BertTokenizer.from_pretrained("mini")

QUESTION = "she opened the [MASK] and looked out into the garden ."
[guesses] = fill_mask(model, tokenizer, QUESTION, top_k=7)
for word, probability in guesses:
    print(f"{word:<8} {probability:6.1%}")

# %% [markdown]
r"""
Where did it look? Every layer has heads, which let the gap look at the other words, and we can read off how much each head looks at
each word. And BERT can be *taught*. This one does not know the capital of France. The next cell shows it the answer a few times, and
computes how the loss changes with every one of its 5.4 million numbers, the *gradient*. In this project, all of these derivatives are written by hand, so they had
better be right. If they are, they predict how much the loss, a number that says how bad the guess is
([section 4](#4.-It-reads-both-sides)), falls for a small step. Do they?
"""

# %%
question = np.array([tokenizer(QUESTION)["input_ids"]])  # (1, S)
gap = question[0].tolist().index(tokenizer.mask_id)
attentions = model.forward(question, return_attentions=True)[0].attentions  # L of (1, A, S, S)
looks_at = np.mean([layer[0, :, gap] for layer in attentions], axis=(0, 1))  # (S,)

pupil = BertForPreTraining.from_pretrained("mini")
lesson = np.array([tokenizer("the capital of france is [MASK] .")["input_ids"]])
answer = np.where(lesson == tokenizer.mask_id, tokenizer.token_ids("paris")[0], -100)
weights = pupil.buffers.value  # all its numbers, one after another


def loss_and_gradient():
    pupil.zero_grad()
    outputs, cache = pupil.forward(lesson, labels=answer)
    pupil.backward(cache)
    return float(outputs.mlm_loss), pupil.buffers.grad.copy()


loss, gradient = loss_and_gradient()
length = np.linalg.norm(gradient)
start, steps, fallen = weights.copy(), np.linspace(0, 0.02, 9), []
for step in steps:
    weights[...] = start - step * gradient / length
    fallen.append(loss - loss_and_gradient()[0])
weights[...] = start
print(f"a step of {steps[1]}: predicted {steps[1] * length:.4f}, measured {fallen[1]:.4f}")

knows = [np.exp(-loss)]
for _ in range(4):
    weights -= 0.05 * gradient / np.linalg.norm(gradient)
    loss, gradient = loss_and_gradient()
    knows.append(np.exp(-loss))
print("paris:", " → ".join(f"{p:.1%}" for p in knows))
assert abs(fallen[1] / (steps[1] * length) - 1) < 0.1 and knows[-1] > 0.9


# %% tags=["figure"]
def bars(axes, guesses, title):
    """The likeliest words, as bars."""
    words, heights = zip(*guesses, strict=True)
    axes.barh(range(len(words)), heights, color=plots.BLUE)
    axes.set_yticks(range(len(words)), words)
    axes.set_title(title, fontsize=10)
    axes.invert_yaxis()
    axes.grid(False, axis="y")
    axes.set_xlabel("probability")


figure, axes = plt.subplots(2, 2, figsize=(8.6, 6.0), height_ratios=(1.25, 1))
figure.get_layout_engine().set(hspace=0.08)
bars(axes[0, 0], guesses, "what belongs in the gap?")
words = [tokenizer.tokens[i] for i in question[0]]
panel = axes[0, 1]
panel.barh(range(len(words)), looks_at, color=plots.ORANGE)
panel.set_yticks(range(len(words)), words, fontsize=9)
panel.invert_yaxis()
panel.grid(False, axis="y")
panel.set_title("where does the gap look?", fontsize=10)
panel.set_xlabel("mean attention")
panel.locator_params(axis="x", nbins=5)
panel = axes[1, 0]
panel.plot(steps, steps * length, color=plots.GREY, label="predicted by the gradient")
panel.plot(steps, fallen, "o", color=plots.VERMILION, label="measured")
panel.set_title("are 5.4 million derivatives right?", fontsize=10)
panel.set(xlabel="length of the step", ylabel="fall of the loss (nats)")
panel.legend(fontsize=9)
panel = axes[1, 1]
panel.plot(knows, "o-", color=plots.GREEN)
panel.set_title("the capital of france is paris", fontsize=10)
panel.set(
    xlabel="times that it was told", ylabel="probability", ylim=(-0.03, 1.05), xticks=range(5)
)
figure.set_label(
    "Four panels. The likeliest words for the gap: door, far ahead of all others. How much the gap looks at each word. "
    "The fall of the loss predicted by the gradient, a line, and measured, dots that begin on it. The probability of "
    "paris, which rises from under 1 % to over 99 % in four steps"
)
plt.show()

# %% [markdown]
r"""
*Top: a guess, and where the gap looked for it. Bottom: the gradient predicts what a small step does (the dots leave the line when the step gets long), and four steps teach a fact.*

The dots begin on the line: along this step the derivatives are right, all of them together. [01](01_gradients.ipynb) makes a strict
test of this idea. And has the model understood what a capital is? Ask it for another one:
"""

# %%
for name, asked in (("before", model), ("after", pupil)):
    [found] = fill_mask(asked, tokenizer, "the capital of italy is [MASK] .", top_k=3)
    print(f"{name:<7}", *(f"{word} {probability:.1%}" for word, probability in found), sep="   ")

# %% [markdown]
r"""
It learned one sentence by heart, and forgot other things. Learning from *much* text, in small steps, is another matter. Here is what
it had learned in that way before our lesson:
"""

# %%
[guesses] = fill_mask(model, tokenizer, "my [MASK] is john .", top_k=8)
print(*(f"{word} {probability:.0%}" for word, probability in guesses), sep="   ")

# %% [markdown]
r"""
Nobody told it what a family is, or what a noun is. It has read a little of Wikipedia and some old novels
([its card](../minibert/assets/mini/README.md) says which, and for how long). The BERT of 2018 is twenty times as large and has
read far more. So expect grammar and a feeling for topics, but few facts:
"""

# %%
[guesses] = fill_mask(model, tokenizer, "the capital of france is [MASK] .", top_k=5)
print(*(f"{word} {probability:.0%}" for word, probability in guesses), sep="   ")

# %% [markdown]
r"""
A probability says what is *usual in such a place*, in the texts that the model has read. It says nothing about the world, not
even with the largest BERT.

Are the few facts the fault of the code, or of the size? The same code runs encoders that others have trained for a long time. With
all-MiniLM-L6-v2, which is four times as large, and a head of a few hundred numbers, it tells praise from blame in film reviews, and
finds answers in paragraphs ([15](15_fine_tuning.ipynb#11.-The-same-heads-on-a-real-encoder) has the details and more tasks):
"""

# %%
results = read_results("finetuning")
for what, run, score in (
    ("film reviews, right", "sst2", "accuracy"),
    ("answers in Wikipedia, F1", "squad", "f1"),
    ("do two texts say the same, F1", "mrpc", "f1"),
):
    print(f"{what:<30} {results[run]['figures']['test']['scores'][score]:.1%}")

# %% [markdown]
r"""

## 2. From text to probabilities

What happened between the sentence and the bars? There were four steps.

**Text → tokens.** The tokenizer lower-cases the text, splits it at spaces and punctuation, and cuts words that it does not
know into pieces that it knows; `##` means "goes on" ([07](07_wordpiece.ipynb)). Two tokens are added: `[CLS]` in
front, and `[SEP]` at the end.

**Tokens → ids.** Each token is a row number in the vocabulary.
"""

# %%
text = "My [MASK] is John, says Melville."
ids = tokenizer(text)["input_ids"]
print("text  ", text)
print("tokens", [tokenizer.tokens[i] for i in ids])
print("ids   ", ids)

# %% [markdown]
r"""
**Ids → vectors.** Each id picks a row of `H` numbers from a table ([06](06_embeddings.ipynb)). Then the `S` rows go through `L` layers.
In each of them, every token looks at every other token and takes over what is of use to it
([08](08_attention.ipynb)). The shape stays the same: `S` rows of `H` numbers, for each text of the batch.
"""

# %%
ids = tokenizer("my [MASK] is john .")["input_ids"]
outputs, _ = model.forward([ids], return_hidden_states=True)  # a batch of one
for number, states in enumerate(outputs.hidden_states):
    name = f"after layer {number}" if number else "at the start"
    print(f"{name:<14} {states.shape} = (B, S, H)")
hidden = outputs.last_hidden_state[0]  # (S, H)

# %% tags=["figure"]
# Caption: Each row is a token's vector after the last layer. The guess is made from the framed row
#   alone.
tokens = [tokenizer.tokens[i] for i in ids]
gap = ids.index(tokenizer.mask_id)
figure, axes = plt.subplots(figsize=(7.5, 2.2))
image = plots.heatmap(axes, hidden[:, :64], limit=2.5)
axes.add_patch(plt.Rectangle((-0.5, gap - 0.5), 64, 1, fill=False, linewidth=2))
axes.set_aspect("auto")
axes.set_yticks(range(len(tokens)), tokens)
axes.set_xticks(range(0, 64, 16))
axes.set(title="what comes out: a row for each token", xlabel="the first 64 of its H numbers")
figure.colorbar(image)
figure.set_label(
    "A heat map: seven rows, one for each token, of the first 64 numbers of its vector "
    "after the last layer; the row of [MASK] is framed"
)
plt.show()

# %% [markdown]
r"""
No single number in there means anything by itself. But the framed row, that of `[MASK]`, now has to hold everything that is
needed for the guess, since the last step reads nothing else.

**Vector → probabilities.** A last small network turns that row into a vector $z$ ([11](11_heads_losses.ipynb)). It is
compared with *every* token $v$ of the vocabulary. The score is the dot product with that token's row $w_v$ in the table that was
used at the start, plus a number $b_v$ for how common the token is. These `V` scores become positive numbers that sum to 1:

$$
s_v = w_v \cdot z + b_v, \qquad p_v = \frac{e^{s_v}}{\sum_u e^{s_u}} .
$$
"""

# %%
head = model.cls.predictions
z, _ = head.transform.forward(hidden[gap : gap + 1])  # (1, H)
table = model.bert.embeddings.word_embeddings.weight.value  # (V, H)
scores = (z @ table.T)[0] + head.bias.value  # (V,)
p = np.exp(scores - scores.max())  # the same for all: it cancels
p /= p.sum()  # (V,)

print(*(tokenizer.tokens[v] for v in np.argsort(-p)[:8]))
print(f"{len(p):,} probabilities, sum {p.sum():.3f}")
by_library = probabilities_at_mask(model, tokenizer, ["my [MASK] is john ."])  # all steps in one
assert np.allclose(p, by_library, atol=1e-6)


# %% tags=["figure"]
# Caption: The way from text to probabilities. Each box shows what is passed on, and its shape.
def box(axes, x, y, text, colour):
    style = {
        "boxstyle": "round,pad=0.4",
        "facecolor": "white",
        "edgecolor": colour,
        "linewidth": 1.4,
    }
    axes.text(x, y, text, ha="center", va="center", fontsize=9.5, bbox=style)


def arrow(axes, start, end, colour):
    style = {"arrowstyle": "-|>", "color": colour, "linewidth": 1.4, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", end, start, arrowprops=style)


STEPS = "tokenizer", "vocabulary", "table", "L layers", "head"
THINGS = (
    "text",
    "tokens\nS strings",
    "ids\nS",
    "vectors\nS × H",
    "vectors\nS × H",
    "probabilities\nV",
)
figure, axes = plt.subplots(figsize=(7.5, 1.2))
for i, thing in enumerate(THINGS):
    box(axes, i + (i == 5) * 0.15, 0, thing, "black")
for i, step in enumerate(STEPS):
    arrow(axes, (i + 0.36, 0), (i + 0.6, 0), plots.BLUE)
    axes.text(i + 0.48, 0.55, step, ha="center", fontsize=9.5, color=plots.BLUE)
axes.set(xlim=(-0.4, 5.7), ylim=(-0.6, 0.9))
axes.axis("off")
figure.set_label(
    "Six boxes in a row joined by arrows: text, tokens, ids, vectors S × H, vectors S × "
    "H, probabilities V; the arrows are the tokenizer, the vocabulary, the table, L "
    "layers and the head"
)
plt.show()

# %% [markdown]
r"""
All numbers in the table and in the layers were found by training. The course takes each box and each arrow apart.

All of it fits on [one page](../docs/images/poster.svg): the forward pass with the shape of every value, and the backward pass
next to it. You need not understand it now. In notebook 20, you will put it together from functions of your own.

## 3. The context decides

The gap is always the same token, `[MASK]`, and its row in the table is always the same. So all differences between the guesses
come from the words around it, and from its place.
"""

# %%
SENTENCES = [
    "she opened the [MASK] .",
    "her [MASK] were blue .",
    "the band released an [MASK] .",
]
answers = [fill_mask(model, tokenizer, sentence, top_k=6)[0] for sentence in SENTENCES]

# %% tags=["figure"]
# Caption: The six best guesses for a gap in three sentences. The gap is the same token each time;
#   the words around it decide.
figure, axes = plt.subplots(1, 3, figsize=(7.5, 2.7))
for panel, sentence, guesses in zip(axes, SENTENCES, answers, strict=True):
    bars(panel, guesses, sentence)
plt.show()

# %% [markdown]
r"""
The same holds for words that can be seen. English has two words "may", the month and the verb. They start from the same row
of the table. What has become of it after the last layer? Compare the vectors of six of them by the cosine of their angle:
1 means the same direction, and 0 a right angle.
"""

# %%
WITH_MAY = [
    "she was born in may 1912 .",
    "the war ended in may of that year .",
    "on 3 may he left london .",
    "you may go now .",
    "it may be too late .",
    "the answer may surprise you .",
]
[may] = tokenizer.token_ids("may")


def vectors_of(ids, model=model):
    """What the last layer makes of one text: (S, H)."""
    return model.forward([ids])[0].last_hidden_state[0]


texts = [tokenizer(sentence)["input_ids"] for sentence in WITH_MAY]
vectors = np.array([vectors_of(ids)[ids.index(may)] for ids in texts])  # (6, H)
vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
cosines = vectors @ vectors.T  # (6, 6)

same_kind = np.kron(np.eye(2), np.ones((3, 3))).astype(bool)  # two blocks
within = cosines[same_kind & ~np.eye(6, dtype=bool)].mean()
across = cosines[~same_kind].mean()
print(f"two of the same kind: {within:.2f} on average; a month and a verb: {across:.2f}")
assert within > across

# %% tags=["figure"]
# Caption: Cosines between the vectors of “may” in six sentences. On average, months are similar to
#   months, and verbs to verbs.
figure, axes = plt.subplots(figsize=(6.2, 3.2))
image = plots.heatmap(axes, cosines, digits=2)
axes.set_yticks(range(6), WITH_MAY)
axes.set(title="one word, two meanings", xticks=[])
figure.set_label(
    "A table of cosines between the vectors of the word may in six sentences: three "
    "months in the upper left block and three verbs in the lower right block are more "
    "alike than a month and a verb"
)
plt.show()

# %% [markdown]
r"""
Two blocks are brighter on average: months with months, and verbs with verbs. Nobody labelled them. This is why BERT is worth having: the
vectors are useful for other tasks than guessing words.

## 4. It reads both sides

Up to the gap, these two sentences are the same, word for word. A model that reads from left to right has to give the
same answer twice.
"""

# %%
PAIR = ["she wrote a [MASK] to her mother .", "she wrote a [MASK] about the war ."]
for sentence in PAIR:
    [guesses] = fill_mask(model, tokenizer, sentence, top_k=5)
    print(f"{sentence:<36}", *(f"{word} {probability:.0%}" for word, probability in guesses))

first, second = (probabilities_at_mask(model, tokenizer, [sentence]) for sentence in PAIR)
print(f"\n{np.abs(first - second).sum() / 2:.0%} of the probability went to other words")
assert np.abs(first - second).max() > 1e-3

# %% [markdown]
r"""
How much is each side worth? Take a dozen sentences, hide every word once, and let the model see both sides, one
side, or only the gap. We look at the **loss**, the average of $-\log p$ of the true word, in *nats* (the logarithm is the natural one). A model that is sure and right
has a loss of 0. A model that knows nothing and spreads the probability evenly has $\ln V$.
"""

# %%
TEXT = """the old man sat by the fire and told the children a story .
in the summer of 1914 the war began , and many young men left the village .
she closed the door behind her and went down the stairs .
the river rises in the mountains and flows north to the sea .
he was the second son of a doctor and studied law at the university .
the church was built in the middle of the town by the king .
i do not think that you have ever seen my brother .
the team won every game of the season but the last one .
after the death of her father she returned to england with her mother .
the train was late , so we walked to the next station .
they played their first concert in london and their last one in paris .
it was a long time before any of us spoke again .""".splitlines()


def losses(hide, visible):
    """−log p of every word of TEXT. Row i of the matrix ``visible(S)`` says what is seen when word i is asked for."""
    found = []
    for sentence in TEXT:
        ids = np.array(tokenizer(sentence)["input_ids"])  # (S,)
        S = len(ids)
        copies = np.tile(ids, (S, 1))  # (S, S): copy i asks for word i
        if hide:
            np.fill_diagonal(copies, tokenizer.mask_id)
        labels = np.where(np.eye(S) == 1, ids, -100)  # −100: not asked for
        outputs, _ = model.forward(copies, attention_mask=visible(S), labels=labels)
        p, _ = ops.softmax(outputs.prediction_logits)  # (S, V)
        found += list(-np.log(p[np.arange(S), ids])[1:-2])  # no [CLS], full stop, [SEP]
    return np.array(found)


def all_visible(S):
    return np.ones((S, S), int)


loss = {
    "nothing but the gap": losses(True, lambda S: np.eye(S, dtype=int)),
    "the gap and before": losses(True, lambda S: np.tri(S, dtype=int)),
    "the gap and after": losses(True, lambda S: np.tri(S, dtype=int).T),
    "both sides": losses(True, all_visible),
}
for name, values in loss.items():
    print(f"{name:<20} {values.mean():5.2f}")
print(f"{'(ln V)':<20} {np.log(tokenizer.vocab_size):5.2f}     {len(values)} hidden words")
one_side = min(loss["the gap and before"].mean(), loss["the gap and after"].mean())
assert loss["both sides"].mean() < one_side

# %% tags=["figure"]
# Caption: The loss on a dozen sentences, every word hidden once. The dashed line is the loss of a
#   model that knows nothing.
figure, axes = plt.subplots(figsize=(6.5, 2.3))
heights = [values.mean() for values in loss.values()]
axes.barh(list(loss), heights, color=[plots.GREY, plots.ORANGE, plots.ORANGE, plots.BLUE])
axes.axvline(np.log(tokenizer.vocab_size), color="black", linestyle="--", linewidth=1)
axes.text(np.log(tokenizer.vocab_size), -0.75, "ln V", ha="center", fontsize=9.5)
axes.set(
    title="what the model may see, and how well it guesses",
    xlabel="loss in nats (shorter is better)",
)
axes.grid(False, axis="y")
axes.invert_yaxis()
plt.show()

# %% [markdown]
r"""
Both sides together are worth much more than one of them. (To be fair, this model is not used to seeing only one side. A model
made for reading from left to right does better at that.)

## 5. Why is bidirectional attention incompatible with next-word prediction?

Language models such as GPT learn by predicting the next word at every place of a text. Could BERT not do the same? Place $i$ would be
asked for word $i + 1$. But it reads both sides, so it *sees* word $i + 1$. What a
model does with an answer that it can see shows already if we ask each place for its *own* word, and hide nothing:
"""

# %%
loss_visible = losses(False, all_visible)
print(f"the word is hidden:  loss {loss['both sides'].mean():5.2f}")
print(f"the word is visible: loss {loss_visible.mean():5.2f}")
assert loss_visible.mean() < 0.5 * loss["both sides"].mean()

# %% [markdown]
r"""
It copies. (It has practised that: of the words that its training asked for, one in ten was
[left visible](12_pretraining_data.ipynb#7.-Why-80/10/10?).) It would copy word $i + 1$ just as well. If that were the whole task, the
model would learn only to copy. So there are two ways:

- **Close one eye** (GPT). No place sees what comes later, so every word can be asked for.
- **Hide the answer** (BERT). Both eyes are open, but a word has to be taken away before it can be asked for.

BERT's way has its price. Most tokens teach it nothing, and there is more that it cannot do:

## 6. What can BERT not do?

### Learn from every token

If too much is hidden, there is nothing left to read. BERT hides 15 % ([12](12_pretraining_data.ipynb)), so
of 100 tokens that it reads, only 15 teach it something. A left-to-right model learns from all of them.

### Generate

BERT has never written a text from beginning to end. Make it try: append `[MASK]`, take the best guess, and repeat.
"""


# %%
SPECIAL = [tokenizer.vocab[name] for name in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")]


def write_on(text, words, end):
    """Append the likeliest token, ``words`` times. Meanwhile, ``end`` is after the gap."""
    ids = [tokenizer.cls_id, *tokenizer.token_ids(text)]
    for _ in range(words):
        asked = [*ids, tokenizer.mask_id, *tokenizer.token_ids(end), tokenizer.sep_id]
        scores = model.forward([asked])[0].prediction_logits[0, len(ids)]  # (V,)
        scores[SPECIAL] = -np.inf
        ids.append(int(scores.argmax()))
    return tokenizer.decode(ids[1:])


for beginning in ("the old man sat by the fire and", "she closed the door"):
    print("nothing after the gap: ", write_on(beginning, 10, end=""))
    print("a full stop after it:  ", write_on(beginning, 10, end="."), end="\n\n")

# %% [markdown]
r"""
With nothing after the gap, the model is asked for the last token of a text, and that is usually punctuation. With a full
stop after it, the model is asked for the last *word*, again and again. A larger BERT has not learned to write, either: it was always
asked for words of finished texts, and never how to go on.

There is a deeper reason. To write, a model needs *the* probability of a text. If two gaps are filled one after the other, their
probabilities are multiplied, and it should make no difference which gap comes first.
"""


# %%
def at_the_gaps(text):
    """The probabilities at each [MASK] of a text: (N, V)."""
    ids = np.array(tokenizer(text)["input_ids"])  # (S,)
    logits = model.forward(ids[None])[0].prediction_logits[0]  # (S, V)
    return ops.softmax(logits[ids == tokenizer.mask_id])[0]


letter, father = (tokenizer.token_ids(word)[0] for word in ("letter", "father"))
both_gaps = at_the_gaps("she wrote a [MASK] to her [MASK] .")  # (2, V)
left_first = both_gaps[0, letter] * at_the_gaps("she wrote a letter to her [MASK] .")[0, father]
right_first = both_gaps[1, father] * at_the_gaps("she wrote a [MASK] to her father .")[0, letter]
print(f"p(letter, father), left gap first:  {left_first:.2e}")
print(f"p(letter, father), right gap first: {right_first:.2e}")
assert not np.isclose(left_first, right_first, rtol=1e-3)

# %% [markdown]
r"""
But it does make a difference. BERT's answers about single words do not belong to one distribution over whole texts, so there is
nothing from which a text could be drawn. For a left-to-right model there is only one order, and the product *is* the probability.

### Stream

Suppose a text arrives word by word, and you want the vectors as it grows. Add one token to what has been read, and see how
far each of the old vectors moves, relative to its length:
"""

# %%
stream = tokenizer("the band played a song , and the people went home .")["input_ids"]
old = vectors_of(stream[:-2])  # (S, H), without the full stop and [SEP]
new = vectors_of(stream[:-1])  # (S + 1, H)
moved = np.linalg.norm(new[:-1] - old, axis=1) / np.linalg.norm(old, axis=1)  # (S,)
assert (moved > 1e-3).all()

# %% tags=["figure"]
# Caption: How far each token's vector moves when a full stop is added at the end, relative to its
#   length. All of them move.
figure, axes = plt.subplots(figsize=(7.5, 2.4))
axes.bar(range(len(moved)), moved, color=plots.BLUE)
axes.set_xticks(range(len(moved)), [tokenizer.tokens[i] for i in stream[:-2]], rotation=30)
axes.set(title="a full stop is added at the end", ylabel="moved by")
axes.grid(False, axis="x")
plt.show()

# %% [markdown]
r"""
All of them move, even the first. Nothing can be kept, so reading $n$ tokens as they come means computing $1 + 2 + \dots + n$
vectors. In a left-to-right model, the old vectors stay the same ([12](12_pretraining_data.ipynb) shows this), and each token costs
only one new vector.

So BERT is not made for writing, chatting or live captions. But if the whole text is there, and is to be *understood*, two open
eyes see more: for sorting, finding, marking, comparing, and answering from a page.

## 7. Your turn: change the sentence

@exercise 00.predictions

Here is a sentence, and six changes that can be made to it. **Will the probabilities at the gap be the same as before, or other
ones?** Decide before you run anything; you have seen all that you need.
"""

# %%
print("  ", SENTENCE)
for letter, (what, texts) in CHANGES.items():
    print(f"{letter}  {texts[0]:<40} {what}")

# %% [markdown]
r"""
Write `"same"` or `"other"` six times, in the order A to F.
"""

# %% tags=["solution"]
predictions = ("same", "same", "other", "other", "other", "same")

# %%
check("00.predictions", predictions)

# %% [markdown]
r"""
Now ask the model: how much of the probability goes to other words?
"""

# %%
unchanged = probabilities_at_mask(model, tokenizer, [SENTENCE])
for letter, (what, texts) in CHANGES.items():
    changed = probabilities_at_mask(model, tokenizer, texts)
    print(f"{letter}  {np.abs(changed - unchanged).sum() / 2:6.1%}   {what}")

# %% [markdown]
r"""
Now try **your own sentence**. Change a word far from the gap, move the gap, or put in two gaps. Which single word changes the answer
most?
(In a terminal: `minibert fill-mask "…"`.)
"""

# %%
mine = "the old [MASK] sailed across the sea to the island ."
for guesses in fill_mask(model, tokenizer, mine, top_k=6):
    print(*(f"{word} {probability:.0%}" for word, probability in guesses), sep="   ")

# %% [markdown]
r"""
## 8. Two stages

Nobody wants to guess words for its own sake. It is the first of two stages:

1. **Pre-training**: the model guesses hidden words in a lot of plain text (and whether two pieces belong together,
   [11](11_heads_losses.ipynb)). That takes long, needs no labels, and is done *once*.
2. **Fine-tuning**: you put a small new head on the encoder, and show the model some labelled examples of *your* task.
"""

# %% tags=["figure"]
# Caption: The encoder is pre-trained once, on plain text. For each task, it gets a new head and is
#   trained further.
figure, axes = plt.subplots(figsize=(7.5, 2.9))
for x, what, colour in (
    (0, "plain text,\nwords hidden", plots.GREY),
    (1.5, "encoder", plots.BLUE),
    (3, "head:\nwhich word?", plots.ORANGE),
):
    box(axes, x, 1, what, colour)
arrow(axes, (0.5, 1), (1.15, 1), plots.GREY)
arrow(axes, (1.85, 1), (2.55, 1), plots.GREY)
axes.text(-0.45, 1.6, "1. pre-training: once")
axes.text(-0.45, -1.85, "2. fine-tuning: a new head for each task")
HEADS = (
    "a label\nfor a text",
    "a label for\neach token",
    "where the\nanswer is",
    "how similar\ntwo texts are",
)
for i, what in enumerate(HEADS):
    box(axes, 1.5 * i, -1, what, plots.GREEN)
    arrow(axes, (1.5, 0.7), (1.5 * i, -0.6), plots.BLUE)
axes.set(xlim=(-0.5, 5.2), ylim=(-1.95, 1.8))
axes.axis("off")
figure.set_label(
    "Two rows of boxes. Pre-training, once: plain text, words hidden, encoder, a head "
    "that asks which word. Fine-tuning: the same encoder with a new head for each task, a "
    "label for a text, a label for each token, where an answer is, how similar two "
    "texts are"
)
plt.show()

# %% [markdown]
r"""
Does the first stage help the second? Here is a task: is a sentence about **music** or about **geography**? There are twelve labelled
sentences to learn from and sixteen for the test, and the words that give the topic away are different ones. (All sentences are in the
past tense: an "is" with one topic and a "was" with the other would give it away, too.) The vector of a sentence is the mean of its
tokens' vectors. The head is one weight for each of the `H` numbers, found by least squares.
"""

# %%
MUSIC = """the band recorded a new album .
she sang the song with her brother .
he played the guitar and the drums .
the film music was written in 1985 .
they released two singles last year .
the third track was a slow dance .""".splitlines()
GEOGRAPHY = """the river was eighty miles long .
a small island lay near the coast .
the lake was surrounded by mountains .
the road ran south to the sea .
there was a bridge over the stream .
the northern district had two villages .""".splitlines()
MUSIC_TEST = """the concert was a great success .
a young singer joined the group .
her piano teacher liked jazz .
this opera was first heard in vienna .
the chorus was repeated four times .
their tour began in june .
rock and blues were popular then .
the lyrics were by a friend .""".splitlines()
GEOGRAPHY_TEST = """the valley was wide and green .
a forest covered the hills .
ships could enter the harbour .
the border was west of the town .
this county had many farms .
the peninsula had a dry climate .
snow stayed on the peaks .
the highway crossed a desert .""".splitlines()


# %%
def sentence_vectors(encoder, sentences):
    """The mean of the tokens' vectors, without [CLS] and [SEP], for each of N sentences: (N, H)."""
    ids = [tokenizer(sentence)["input_ids"] for sentence in sentences]
    return np.array([vectors_of(row, encoder)[1:-1].mean(axis=0) for row in ids])


def test_of_head(encoder):
    """The share of right answers in the test, after learning a head on top of ``encoder``."""
    x = sentence_vectors(encoder, MUSIC + GEOGRAPHY)  # (12, H)
    label = np.repeat([1.0, -1.0], [len(MUSIC), len(GEOGRAPHY)])
    middle = x.mean(axis=0)
    weight, *_ = np.linalg.lstsq(x - middle, label, rcond=None)  # (H,)

    score = (sentence_vectors(encoder, MUSIC_TEST + GEOGRAPHY_TEST) - middle) @ weight  # (16,)
    return (np.sign(score) == np.repeat([1, -1], [len(MUSIC_TEST), len(GEOGRAPHY_TEST)])).mean()


pretrained = test_of_head(model)
untrained = []
for seed in range(5):
    beginner = BertForPreTraining(model.config, seed=seed)  # the same sizes, random numbers
    beginner.eval()  # no dropout
    untrained.append(test_of_head(beginner))
print(f"encoder after pre-training:         {pretrained:.0%} right")
print(f"encoder that has never read a word: {np.mean(untrained):.0%} right (mean of five)")
assert pretrained > np.mean(untrained) + 0.1

# %% [markdown]
r"""
Twelve examples are enough, since the encoder already knew which words go together. (In real fine-tuning, the encoder is trained, too,
and the test is larger than sixteen sentences: see [15 · Fine-tuning](15_fine_tuning.ipynb).)

## 9. How large?

The same architecture comes in sizes. This model is "mini"; the published ones are "base" and "large".
"""

# %%
print(f"{'':<7}{'L':>4}{'H':>6}{'A':>4}{'V':>8}   parameters")
sizes = {"here": model.config} | {name: BertConfig.preset(name) for name in ("base", "large")}
for name, config in sizes.items():
    count = sum(matrix.count for matrix in parameter_table(config) if matrix.part != "heads")
    numbers = f"{config.num_hidden_layers:4}{config.hidden_size:6}{config.num_attention_heads:4}"
    print(f"{name:<7}{numbers}{config.vocab_size:8,} {count:12,}")

# %% [markdown]
r"""
Where each of the 110 million comes from, matrix by matrix, is counted in
[10 · The encoder](10_encoder.ipynb#7.-How-do-110M-and-340M-parameters-add-up,-matrix-by-matrix?).

## 10. The map of the course

Each box has the number of its notebook. Blue is what computes. Vermilion is how it learns, in a loop. Green is what you can do
with a trained model. Purple looks at the whole: you build it, and see where it came from and what followed.
"""

# %% tags=["figure"]
# Caption: The map of the course, with the numbers of the notebooks.
ROWS = {  # height: colour, title, and what there is in which notebook
    3: (
        plots.SKY,
        "inside a layer",
        ["linear 02", "GELU 04", "LayerNorm 05", "attention 08", "many heads 09"],
    ),
    2: (plots.BLUE, "", ["text", "tokens 07", "vectors 06", "L layers 10", "guess 11", "loss 03"]),
    1: (
        plots.VERMILION,
        "",
        ["hide words 12", "pre-training 14,26", "optimiser 13", "gradients 01"],
    ),
    0: (
        plots.GREEN,
        "what one does with it",
        [
            "fine-tuning 15",
            "looking inside 16",
            "on a GPU 17",
            "real weights 18,27",
            "search 19,28",
        ],
    ),
    -1: (
        plots.PURPLE,
        "the whole, and what is around it",
        [
            "your BERT 20",
            "its origins 21",
            "what mattered 22",
            "after BERT 23",
            "distillation 24",
            "many devices 25",
        ],
    ),
}
PLACES = {"pre-training 14,26": 1.5, "optimiser 13": 3}
figure, axes = plt.subplots(figsize=(7.5, 5.2))
for y, (colour, title, names) in ROWS.items():
    axes.text(-0.45, y + 0.42, title)
    for i, name in enumerate(names):
        what, _, number = name.rpartition(" ") if name[-1].isdigit() else (name, "", "")
        text = f"{what}\n" + rf"$\bf{{{number}}}$" if number else what
        box(axes, PLACES.get(name, i * 5 / (len(names) - 1)), y, text, colour)
for i in range(5):
    arrow(axes, (i + 0.34, 2), (i + 0.66, 2), plots.BLUE)
    axes.plot([1.25 * i, 3], [2.7, 2.32], color=plots.SKY, linewidth=1.2, zorder=0)
for start, end in (
    ((5, 1.7), (5, 1.32)),  # from the loss to the gradients …
    ((4.55, 1), (3.45, 1)),
    ((3, 1.32), (3, 1.68)),  # … to the weights of the layers …
    ((2.55, 1), (2.0, 1)),
    ((1.0, 1), (0.48, 1)),
    ((0, 1.32), (0, 1.75)),  # … and to the next batch
):
    arrow(axes, start, end, plots.VERMILION)
axes.set(xlim=(-0.5, 5.5), ylim=(-1.4, 3.6))
axes.axis("off")
figure.set_label(
    "A map of the course on BERT's parts: text, tokens, vectors, L layers, heads; beside "
    "it what is inside a layer; each part with the number of its notebook"
)
plt.show()

# %% [markdown]
r"""
Read the notebooks in order, or follow your curiosity. Each says what it builds on and how long it takes: some forty-five
hours in all, if you do every exercise. If you only have an afternoon, read [08](08_attention.ipynb), [10](10_encoder.ipynb),
[12](12_pretraining_data.ipynb) and [15](15_fine_tuning.ipynb).

| | | the exercise |
|---|---|---|
| **the parts** | [01 · Gradients and checks](01_gradients.ipynb) | undo a broadcast; a numeric gradient |
| | [02 · Linear](02_linear.ipynb) | the backward pass |
| | [03 · Softmax and cross-entropy](03_softmax_cross_entropy.ipynb) | in two stages, then in one |
| | [04 · GELU and dropout](04_gelu_dropout.ipynb) | both backward passes |
| | [05 · LayerNorm](05_layer_norm.ipynb) | the fused backward pass |
| **the model** | [06 · Embeddings](06_embeddings.ipynb) | repeated ids |
| | [07 · WordPiece](07_wordpiece.ipynb) | a tokenizer |
| | [08 · Attention](08_attention.ipynb) | one head's backward pass |
| | [09 · Many heads](09_many_heads.ipynb) | split, merge, and back |
| | [10 · The encoder](10_encoder.ipynb) | wire half a layer |
| | [11 · Heads and losses](11_heads_losses.ipynb) | a matrix with two uses |
| **the training** | [12 · Pre-training data](12_pretraining_data.ipynb) | hide words; find the bug |
| | [13 · The optimiser](13_optimiser.ipynb) | one step |
| | [14 · Pre-training](14_pretraining.ipynb) | two lines that need no training |
| | [26 · When training fails](26_when_training_fails.ipynb) | diagnose three broken runs |
| **what one does with it** | [15 · Fine-tuning](15_fine_tuning.ipynb) | a head's backward pass |
| | [16 · Looking inside](16_looking_inside.ipynb) | find a head that looks at its neighbour |
| | [17 · NumPy to CuPy](17_numpy_to_cupy.ipynb) | port a kernel |
| | [18 · Real weights](18_real_weights.ipynb) | read a file; rename the tensors |
| | [27 · Parity](27_parity.ipynb) | find the first difference |
| | [19 · Applications](19_applications.ipynb) | measure a search |
| | [28 · Learning to search](28_learning_to_search.ipynb) | the gradient of a dual encoder |
| **the whole** | [20 · Your BERT](20_your_bert.ipynb) | all of it, from the pieces that you wrote |
| | [21 · Where BERT comes from](21_where_bert_comes_from.ipynb) | perplexity; word vectors; a step of an LSTM |
| | [22 · What mattered](22_what_mattered.ipynb) | a difference, its interval, its test |
| | [23 · After BERT](23_after_bert.ipynb) | what RoBERTa, ALBERT, XLNet and DeBERTa changed |
| | [24 · Distillation](24_distillation.ipynb) | learn from a teacher |
| | [25 · Many devices](25_many_devices.ipynb) | a ring that adds gradients |

In most exercises you write a function. `check` says what is wrong with it, and recognises mistakes that many people make.

## Recap

- The way is: text → tokens → ids → a vector for each token → probabilities for a hidden one.
- A vector describes a word *in its context*. The same word gets different vectors in different texts.
- BERT reads both sides. Hence the game with hidden words. Hence, too, it cannot write or stream, and learns from only 15 % of the
  tokens.
- Pre-train once on plain text, then fine-tune for each task with few labels.

## What usually goes wrong

- **No full stop after a gap at the end.** The model then guesses punctuation.
- **A probability taken for a fact.** It only says what is usual there, in the texts that the model has read.
- **Several gaps at once.** Each is guessed without knowing what the others will be.
- **The wrong vocabulary.** Ids are row numbers, so with another tokenizer every word is a different word. The library refuses if the
  sizes differ.
- **Dropout left on.** A model in training mode answers differently each time; `from_pretrained` and `fill_mask` turn dropout off.

## Three questions

Answer before you unfold.
"""

# %% [markdown]
r"""
<details>
<summary><b>1.</b> The vector of <code>[MASK]</code> at the start is the same in every sentence. How can the guesses differ?</summary>

In each layer, it takes over something from the tokens around it. After the last layer, it holds what the context says
about the gap. (Besides, it is not quite the same at the start, because its position is added. See [06](06_embeddings.ipynb).)

</details>
"""

# %% [markdown]
r"""
<details>
<summary><b>2.</b> You want to sort mails as they arrive, and to complete the sentence that somebody is typing. For which of the two
would you take BERT?</summary>

For sorting: the whole mail is there, and there is one answer for all of it. Completing a sentence means generating
from left to right, and that is a task for models such as GPT.

</details>
"""

# %% [markdown]
r"""
<details>
<summary><b>3.</b> Why does pre-training not need labels written by people?</summary>

The text is its own label, since we know what was hidden. Any text can be used, and nobody has to read it first.

</details>
"""

# %% [markdown]
r"""
## Further reading

- Devlin and others, [BERT: pre-training of deep bidirectional transformers for language understanding](https://arxiv.org/abs/1810.04805), 2018: the paper.
- Vaswani and others, [Attention is all you need](https://arxiv.org/abs/1706.03762), 2017: the Transformer, whose left half BERT is.
- Alammar, [The illustrated BERT](https://jalammar.github.io/illustrated-bert/), 2018: the same story in pictures.
- Rogers, Kovaleva and Rumshisky, [A primer in BERTology](https://arxiv.org/abs/2002.12327), 2020: what is known about how BERT works.

**Next:** [01 · Gradients and checks](01_gradients.ipynb), how a number in this model learns. The code of this page:
[models.py](../minibert/bert/models.py) · [masked_words.py](../minibert/tasks/masked_words.py).
"""
