# %% [markdown]
r"""
# 14 · Pre-training

All parts are built: the model, the text, the optimiser. Now they run, and nobody will tell you
whether it works: wrong code trains, too, only worse. But there are a few numbers that a run *must* show. If you know them,
you find most mistakes in the first minute.

**You will** predict the loss of an untrained model · fit one batch, as the first test of any training code · write
two lines that show what a model has learned so far · say why pre-training seems to stand still · know what to expect
after how many steps. [26 · When training fails](26_when_training_fails.ipynb) shows what a *broken* run looks like, and how
to resume a run that was stopped.

**Before this:** [11 · Heads and losses](11_heads_losses.ipynb), [12 · Pre-training data](12_pretraining_data.ipynb),
[13 · The optimiser](13_optimiser.ipynb). **Time:** 75 minutes with the exercises; it runs in seconds (the long runs are in a log).

| letter | in this notebook |
|---|---|
| `B`, `S` | sequences in a batch, tokens in a sequence |
| `V`, `H` | tokens in the vocabulary, hidden size |
| `P` | predicted positions in a batch |
| $f_v$ | frequency of token $v$ in the training text |

Losses are in nats (natural logarithms), means over predicted positions.
"""

# %%
from dataclasses import replace
from pydoc_data.topics import topics

import matplotlib.pyplot as plt
import numpy as np

from minibert import BertConfig, BertForPreTraining, BertTokenizer, check, plots
from minibert.course import EXERCISES, read_log
from minibert.data import BatchStream, Documents, InstanceSettings, unigram_plateau
from minibert.data.batches import held_out_batches
from minibert.data.prose import prose_sentences
from minibert.ops.composites import masked_lm_loss, masked_lm_loss_backward
from minibert.ops.cross_entropy_loss import cross_entropy_backward
from minibert.ops.stable_softmax import log_softmax
from minibert.train import AdamW

plots.notebook_style()
np.set_printoptions(precision=3, suppress=True)

# %% [markdown]
r"""
## 1. A text, and batches of it

A small text is enough for what runs on this page: Python's language reference, which `help()` shows. One topic in eight
is **held out**: the model never trains on it. The three arrays and the stream are those of [12](12_pretraining_data.ipynb).
"""

# %%
texts = [prose_sentences(text) for text in topics.values()]
texts = [text for text in texts if len(text) >= 4]
tokenizer = BertTokenizer.train((sentence for text in texts for sentence in text), 2048)
ids = [tokenizer.token_ids_batch(text) for text in texts]

lengths = [len(sentence) for text in ids for sentence in text]
everything = Documents(
    tokens=np.array([token for text in ids for sentence in text for token in sentence]),
    sentence_starts=np.cumsum([0, *lengths]),
    document_starts=np.cumsum([0, *map(len, ids)]),
    chosen=np.arange(len(ids)),
)
is_held_out = everything.chosen % 8 == 7
training = replace(everything, chosen=everything.chosen[~is_held_out])
held_out = replace(everything, chosen=everything.chosen[is_held_out])

V = tokenizer.vocab_size
INSTANCES = InstanceSettings(max_seq_length=64)
stream = BatchStream(training, tokenizer, INSTANCES, batch_size=8)
batch = next(stream)
for name, array in batch.items():
    print(f"{name:<20} {array.shape}")
P = (batch["labels"] != -100).sum()
print(f"V = {V:,}, P = {P}, {training.lengths().sum():,} tokens to train on")

# %% [markdown]
r"""
## 2. What should the first loss be?

A model that knows nothing gives each word $1/V$: the masked words cost $\ln V$, the pair of sentences $\ln 2$. A fresh BERT
comes close, but is a little **above**. We can compute how much. The logit of word $v$ is $z_v = h \cdot w_v$.
The head's LayerNorm has just given $h$ the length $\sqrt H$; the row $w_v$ of the table is random with deviation $\sigma$ (0.88 times the number in the first column below, since numbers beyond two deviations are drawn again). So
$z_v$ is a sum of $H$ random terms, normal with variance $s^2 = H \sigma^2$. For the right word $t$, which is a word like
any other, the expected logit is 0, and

$$
L_0 = \mathrm{E}\Bigl[ \ln \sum_v e^{z_v} - z_t \Bigr] \approx \ln \bigl( V \, \mathrm{E}[e^{z}] \bigr) - 0
= \ln V + \frac{s^2}{2},
\qquad \mathrm{E}[e^z] = \int \! \frac{e^{-z^2 / 2 s^2}}{\sqrt{2 \pi}\, s} \, e^z \, dz = e^{s^2 / 2} .
$$

(For the integral, note that $-\frac{z^2}{2 s^2} + z = -\frac{(z - s^2)^2}{2 s^2} + \frac{s^2}{2}$; what is left integrates to 1.)
The model is *sure of nonsense*, and pays for it.
"""

# %%
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
CONFIG = BertConfig.preset(
    "tiny", vocab_size=V, max_position_embeddings=64, initializer_range=0.05, **NO_DROPOUT
)
H = CONFIG.hidden_size

DEVIATIONS = (0.01, 0.02, 0.05, 0.1, 0.2)  # BERT's is 0.02
first, predicted = [], []
print(
    f"deviation     MLM  ln V + s²/2      NSP      (ln V = {np.log(V):.3f}, ln 2 = {np.log(2):.3f})"
)
for deviation in DEVIATIONS:
    model = BertForPreTraining(CONFIG.replace(initializer_range=deviation), seed=1)
    outputs, _ = model.forward(**batch)
    table = dict(model.named_parameters())["bert.embeddings.word_embeddings.weight"].value
    first.append(float(outputs.mlm_loss))
    predicted.append(np.log(V) + H * table.var() / 2)
    print(f"{deviation:9} {first[-1]:7.3f} {predicted[-1]:13.3f} {float(outputs.nsp_loss):8.3f}")
assert np.allclose(first[:3], predicted[:3], atol=0.15)

# %% tags=["figure"]
# Caption: The formula holds as long as the weights begin small.
figure, axes = plt.subplots(figsize=(7.5, 3.0))
axes.semilogx(DEVIATIONS, predicted, color=plots.GREY, label="ln V + s²/2")
axes.semilogx(DEVIATIONS, first, "o", color=plots.BLUE, label="measured")
axes.axhline(np.log(V), color="black", linestyle="--", linewidth=1.2)
axes.text(0.105, np.log(V) - 0.08, "ln V", va="top", fontsize=9.5)
axes.set_xticks(DEVIATIONS, DEVIATIONS)
axes.minorticks_off()
axes.set(
    title="the loss before the first step",
    xlabel="deviation of the first weights",
    ylabel="MLM loss (nats)",
    ylim=(np.log(V) - 0.5, None),
)
axes.legend()
plt.show()

# %% [markdown]
r"""
So the first number that a training run prints is a test. If it is far above $\ln V + \ln 2$, the weights begin too large. If
it is **below**, by more than chance, the model cannot be untrained: either its weights were trained already, or the loss is
divided by the wrong number.

## 3. Overfit one batch first

Before hours of training, spend seconds: train on *one* batch again and again. With thousands of parameters for each word to
guess, the loss must go to 0. If it does not, something between the loss and the weights is broken.

Here are four versions. Three of them are wrong. What do you expect of each?
"""


# %%
def fit(batch, steps=60, zero_grad=True, learns=""):
    """Train on one batch: the MLM loss of each step. Only parameters whose names begin with `learns` learn."""
    model = BertForPreTraining(CONFIG, seed=1)
    optimiser = AdamW(model, beta2=0.98)
    losses = []
    for step in range(steps):
        if zero_grad or step == 0:
            model.zero_grad()
        outputs, cache = model.forward(**batch, return_logits=False)
        model.backward(cache)
        for name, parameter in model.named_parameters():
            if not name.startswith(learns):
                parameter.grad[...] = 0.0
        optimiser.step(3e-3 * min(1.0, (step + 1) / 20), step)
        losses.append(float(outputs.mlm_loss))
    return losses


rolled = np.roll(batch["labels"], 1, axis=0)  # each row has the labels of the row before
fits = {
    "right": fit(batch),
    "zero_grad forgotten": fit(batch, zero_grad=False),
    "no gradient below the heads": fit(batch, learns="cls"),
    "labels of other sequences": fit(batch | {"labels": rolled}),
}
for name, losses in fits.items():
    print(f"{name:<28} {losses[0]:.2f} → {losses[-1]:.2f}")
assert fits["right"][-1] < 0.1 < 0.5 < fits["no gradient below the heads"][-1]

# %% tags=["figure"]
# Caption: Two of three mistakes are found in sixty steps. Labels of other sequences are not.
figure, axes = plt.subplots(figsize=(7.5, 3.1))
colours = (plots.BLUE, plots.VERMILION, plots.ORANGE, plots.SKY)
for (name, losses), colour, style in zip(
    fits.items(), colours, ("-", "-.", ":", "--"), strict=True
):
    axes.plot(losses, style, color=colour, label=name)
axes.set(
    title="one batch, again and again", xlabel="step", ylabel="MLM loss (nats)", ylim=(-0.4, 10.5)
)
axes.legend(fontsize=9, loc="upper right", ncols=2)
plt.show()

# %% [markdown]
r"""
The test finds the forgotten `zero_grad` and the lost gradient. It does **not** find the shuffled labels: the model learns any
labels by heart. Overfitting a batch tests the *code*, not the *data*. To test the data, we need to know what a loss means.

## 4. The line of guessing by frequency

Suppose a model ignores its input and always answers with the same probabilities $p$. Which $p$ is best? Its mean loss on
text with frequencies $f$ is $-\sum_v f_v \ln p_v$. Since $\ln x \le x - 1$,

$$
\sum_v f_v \ln p_v - \sum_v f_v \ln f_v = \sum_v f_v \ln \frac{p_v}{f_v}
\le \sum_v f_v \Bigl( \frac{p_v}{f_v} - 1 \Bigr) = 1 - 1 = 0 ,
$$

with equality only for $p = f$. The best constant guess is the frequencies, and its loss is their entropy: the **unigram
line**. It needs no training, only counting.

### Your turn: the unigram line

@exercise 14.unigram_line

`counts` (V,) says how often each token occurs in the training text. `labels`, of any shape, says which tokens are to be
guessed in held-out text; it is −100 where nothing is asked. Return the mean loss of always guessing by the frequencies of the training text, in nats. Add one to every count, so that no token is impossible.
"""


# %% tags=["solution"]
def my_unigram_line(counts, labels):
    """The loss of guessing by frequency: −mean ln f(label), where f is (count + 1) / (sum + V)."""
    f = (counts + 1) / (counts.sum() + len(counts))  # (V,)
    return -np.log(f[labels[labels != -100]]).mean()


# %%
check("14.unigram_line", my_unigram_line)

# %%
batches = list(held_out_batches(held_out, tokenizer, INSTANCES, batch_size=8))
labels = np.concatenate([batch["labels"] for batch in batches])
labels = labels[labels != -100]  # (P,)

counts = training.token_counts(V)  # (V,)
f = (counts + 1) / (counts.sum() + V)
line = -np.log(f[labels]).mean()
print(
    f"ln V {np.log(V):.3f}   unigram line {line:.3f}   by the library {unigram_plateau(counts, labels)[0]:.3f}"
)
assert np.isclose(line, unigram_plateau(counts, labels)[0])

powers = np.linspace(0, 1.6, 33)
constant_guesses = [-log_softmax(power * np.log(f))[0][labels].mean() for power in powers]

# %% tags=["figure"]
# Caption: The loss of guessing by frequency, for frequencies that are flattened (left of 1) or
#   sharpened (right of 1). The true frequencies are best.
figure, axes = plt.subplots(figsize=(7.5, 2.9))
axes.plot(powers, constant_guesses, color=plots.BLUE)
axes.plot([0, 1], [np.log(V), line], "o", color=plots.VERMILION)
axes.text(0.03, np.log(V) + 0.03, "ln V: all alike", fontsize=9.5, va="bottom")
axes.text(1.0, line - 0.1, "unigram line: p = f", fontsize=9.5, va="top", ha="center")
axes.set(
    title="guesses that ignore the input",
    xlabel="t, where p is proportional to fᵗ",
    ylabel="held-out loss (nats)",
    ylim=(line - 0.45, np.log(V) + 0.3),
)
plt.show()

# %% [markdown]
r"""
## 5. The second line: reading the word itself

There is one more thing that can be gained without any context. A fifth of the chosen positions do not show `[MASK]`: 10 % show the
true word, 10 % a random one ([12](12_pretraining_data.ipynb#5.-What-becomes-of-a-chosen-token)). Let token $u$ be visible at a
chosen position. What does it say about the word $y$ that was there?

### Your turn: the rule

@exercise 14.copying_rule

For each chosen position, `seen` (P,) is the token in the input, and `right` (P,) is the one that was there before; `f` (V,)
are the frequencies. Return the probability (P,) that the best guess without neighbours gives to the right word. Mind the two
cases: the position shows `mask_id`, or some other token.
"""

# %% [markdown] tags=["derivation"]
r"""
Two things lead to a visible $u$. Either $u$ was there and was kept, which has probability $0.1 \, f_u$. Or $u$ was drawn at
random, with probability $0.1 / V$, in place of a word $y$, which has probability $f_y$. By Bayes' theorem,

$$
p(y \mid \text{visible } u) = \frac{f_u \, [y = u] + f_y / V}{f_u + 1 / V} ,
\qquad p(y \mid \texttt{[MASK]}) = f_y .
$$
"""


# %% tags=["solution"]
def my_copying_rule(f, seen, right, mask_id):
    """The probability of each right word, (P,), given only what stands at its own position."""
    V = len(f)
    visible = (f[seen] * (seen == right) + f[right] / V) / (f[seen] + 1 / V)
    return np.where(seen == mask_id, f[right], visible)


# %%
check("14.copying_rule", my_copying_rule)

# %% [markdown]
r"""
A model that uses this rule, and still looks at no neighbour, is on the **copying line**:
"""


# %%
def context_free_losses(counts, batches, mask_id):
    """Held-out losses (P,) of the two guesses that look at no neighbour, and the fate of each token."""
    f = (counts + 1) / (counts.sum() + len(counts))
    seen, right = (
        np.concatenate([batch[name].ravel() for batch in batches])
        for name in ("input_ids", "labels")
    )
    chosen = right != -100
    seen, right = seen[chosen], right[chosen]  # (P,)
    p = EXERCISES["14.copying_rule"].solution(f, seen, right, mask_id)
    fate = np.where(seen == mask_id, "[MASK]", np.where(seen == right, "kept", "random"))
    return -np.log(f[right]), -np.log(p), fate


by_frequency, by_copying, fate = context_free_losses(counts, batches, tokenizer.mask_id)
print("               share  by frequency  by copying")
for kind in ("[MASK]", "kept", "random"):
    at = fate == kind
    print(
        f"{kind:<13} {at.mean():6.1%} {by_frequency[at].mean():13.2f} {by_copying[at].mean():11.2f}"
    )
print(f"all           100.0% {by_frequency.mean():13.2f} {by_copying.mean():11.2f}")
assert by_copying.mean() < by_frequency.mean() - 0.3

# %% [markdown]
r"""
The rule gains about half a nat, and needs only a single token. A model finds it soon: the word's own embedding runs along the
residual stream to the head, which compares it with the *same* table ([11](11_heads_losses.ipynb)).

## 6. "My MLM loss is stuck at about 7"

Now we look at a real run: `minibert pretrain` with the tiny model (2 layers, `H` = 128), on all the documentation that is
installed with Python. It took four minutes on one core, so the page reads a log. ([26](26_when_training_fails.ipynb) has the
code that made it, together with runs in which something is wrong.)
"""

# %%
logged = {run["run"]: run for run in read_log("14_runs.jsonl")}
healthy = logged["healthy"]


def column(run, name, stop=None):
    """(2, N): steps, and what was measured after them."""
    pairs = [
        (r["step"], r[name]) for r in run["metrics"] if name in r and r["step"] <= (stop or 1e9)
    ]
    return np.array(pairs).T


LINES = {
    "ln V": np.log(healthy["V"]),
    "unigram line": healthy["unigram_line"],
    "copying line": healthy["copying_line"],
}
print("  ".join(f"{name} {value:.2f}" for name, value in LINES.items()))
steps, losses = column(healthy, "held_out_mlm_loss")
for name in ("unigram line", "copying line"):
    below = steps[losses < LINES[name] - 0.05][0]
    print(f"held-out loss clearly below the {name} after {below:.0f} steps")
for start, stop in ((0, 300), (300, 900), (900, 1500)):
    fallen = losses[steps == start][0] - losses[steps == stop][0]
    print(f"from step {start:>3} to {stop:>4} it falls by {fallen:.2f}")


# %% tags=["figure"]
# Caption: A run in three stretches: past the unigram line, along the copying line, and on.
def draw_lines(axes, values, stop, texts=True, below=("copying line",)):
    """Horizontal lines, named at their right ends."""
    for (name, value), style in zip(values.items(), (":", "--", "-."), strict=True):
        axes.axhline(value, color=plots.GREY, linestyle=style, linewidth=1.2)
        if texts:
            offset, va = (-4, "top") if name in below else (2, "bottom")
            how = {"color": plots.GREY, "fontsize": 9, "ha": "right", "va": va}
            axes.annotate(name, (stop, value), (0, offset), textcoords="offset points", **how)


def draw_losses(axes, run, stop=None):
    axes.plot(*column(run, "mlm_loss", stop), color=plots.SKY, linewidth=1.1, label="training")
    held_out_losses = column(run, "held_out_mlm_loss", stop)
    axes.plot(*held_out_losses, "o-", color=plots.BLUE, markersize=3, label="held-out text")


figure, axes = plt.subplots(figsize=(7.5, 3.6))
draw_lines(axes, LINES, 3000)
draw_losses(axes, healthy)
axes.set(title="a healthy run", xlabel="step", ylabel="MLM loss (nats)")
axes.legend(fontsize=9, loc="lower left")
plt.show()

# %% [markdown]
r"""
The run has three stretches. First, the loss falls below the unigram line within two hundred steps. Then comes the
**plateau**: a shelf around the copying line, where the loss only creeps for hundreds of steps. Then context begins to count,
and the loss falls faster again, for as long as you can pay.

Where does the 7 come from? From BERT's vocabulary on English Wikipedia. A log says how many of its 30,522
tokens occur how often in 1,260 articles. The unigram line is the entropy of these frequencies:
"""

# %%
[articles] = read_log("14_bert_vocabulary.jsonl")
times, how_many = np.array([pair for pair in articles["times"] if pair[0] > 0]).T
total = (times * how_many).sum()
f_bert = times / total  # the frequency of each of `how_many` tokens
bert_line = -(how_many * f_bert * np.log(f_bert)).sum()
print(f"counted: {total:,} tokens; unigram line with BERT's vocabulary: {bert_line:.2f}")
assert 7.2 < bert_line < 7.3

# %% [markdown]
r"""
The shelf lies half a nat below this line. (For your own text, `minibert pretrain` prints the line before its first step.)
"Stuck at about 7" means: **the model knows the frequencies, and nothing of the context yet.** That is not a bug if it passes.
How soon it passes depends on the text, the size, the recipe and the learning rate. Here are two runs of a larger model
(4 layers, `H` = 256, `V` = 8,192) on Wikipedia and novels. Both use BERT's optimiser and schedule, but with β₂ = 0.98,
larger initial weights, positions that begin as waves ([06](06_embeddings.ipynb)) and no dropout, as suits short runs. They
differ only in the peak rate. The second was given up:
"""

# %%
wikipedia = read_log("14_wikipedia.jsonl")
WIKIPEDIA_LINES = {
    "ln V": np.log(wikipedia[0]["V"]),
    "unigram line": wikipedia[0]["unigram_line"],
    "copying line": wikipedia[0]["copying_line"],
}


def held_out_column(run, name):
    return [record[name] for record in run["held_out"]]


for run in wikipedia:
    step, loss = (held_out_column(run, name) for name in ("step", "mlm_loss"))
    rate = run["settings"]["learning_rate"]
    print(f"peak {rate:.4f}: after 2,000 steps {loss[4]:.2f}, after {step[-1]:,} {loss[-1]:.2f}")

# %% tags=["figure"]
# Caption: Two runs on Wikipedia. At the higher rate the model was still on the copying line when its
#   run ended.
figure, axes = plt.subplots(figsize=(7.5, 3.4))
draw_lines(axes, WIKIPEDIA_LINES, 17)
for run, colour, marker in zip(wikipedia, (plots.BLUE, plots.VERMILION), "os", strict=True):
    step = np.array(held_out_column(run, "step")) / 1000
    label = f"peak of the rate {run['settings']['learning_rate']:.4f}"
    axes.plot(
        step,
        held_out_column(run, "mlm_loss"),
        marker + "-",
        color=colour,
        markersize=3.5,
        label=label,
    )
axes.set(
    title="the same model at two learning rates, Wikipedia",
    xlabel="thousand steps (of about 2,000 tokens)",
    ylabel="held-out MLM loss (nats)",
)
axes.legend(fontsize=9, loc="upper right", bbox_to_anchor=(1, 0.9))
plt.show()

# %% [markdown]
r"""
So draw both lines, and ask these questions in this order. **Is it too early?** The blue run was clearly below
the copying line only after 2,500 steps, and its steep fall began after about 4,500 (9 million tokens). **Is it the rate?** A larger one need not be faster: at 0.001 the run stayed on the copying line.
**Does the input arrive?** A model whose loss does not even pass the *unigram* line makes no use of its input.

## 7. Why are frequencies learned first?

Because all positions agree about them. The decoder's scores are $z_n = W h_n + b$, so $dW = \sum_n dz_n h_n^\top$. Split each factor into its
mean over the `P` positions and the rest, $dz_n = \overline{dz} + \widetilde{dz}_n$ and $h_n = \bar h + \tilde h_n$. The rests sum to 0, so the mixed products cancel:

$$
dW = \sum_n \bigl( \overline{dz} + \widetilde{dz}_n \bigr) \bigl( \bar h + \tilde h_n \bigr)^\top
= \underbrace{P \; \overline{dz} \, \bar h^\top}_{\text{what is the same everywhere}}
+ \underbrace{\sum_n \widetilde{dz}_n \, \tilde h_n^\top}_{\text{which word in which context}} .
$$

Here $P \, \overline{dz} = \bar p - f$ is the guessed share minus the true share. Let us take an untrained model and eight
batches. How well does each part agree from batch to batch? We measure it by the mean cosine of two batches:
"""


# %%
def decoder_gradient(model, batch):
    """The decoder's dW (V, H) and its two parts."""
    outputs, _ = model.forward(**batch)
    chosen = batch["labels"] != -100  # (B, S)
    h = model.cls.predictions.transform.forward(outputs.last_hidden_state[chosen])[0]  # (P, H)
    weight = model.cls.predictions._decoder_weight.value  # (V, H), the word embeddings
    bias = model.cls.predictions.bias.value
    ones = np.ones(len(h), dtype=h.dtype)
    _, cache = masked_lm_loss(h, weight, bias, batch["labels"][chosen], ones, len(h))
    _, dweight, _ = masked_lm_loss_backward(1.0, cache)
    dz = cross_entropy_backward(1.0, cache[1])  # (P, V)
    same = len(h) * np.outer(dz.mean(axis=0), h.mean(axis=0))
    context = (dz - dz.mean(axis=0)).T @ (h - h.mean(axis=0))
    return dweight, same, context


def agreement(gradients):
    flat = np.stack([gradient.ravel() / np.linalg.norm(gradient) for gradient in gradients])
    cosines = flat @ flat.T
    return cosines[np.triu_indices(len(flat), 1)].mean()


model = BertForPreTraining(CONFIG, seed=1)
parts = [decoder_gradient(model, next(stream)) for _ in range(8)]
for dweight, same, context in parts:
    assert np.allclose(dweight, same + context, atol=1e-6)
agreements = [agreement(part) for part in zip(*parts, strict=True)]
for name, cosine in zip(("dW", "the same everywhere", "context"), agreements, strict=True):
    print(f"{name:<20} agrees between batches: {cosine:5.2f}")
assert agreements[1] > 2 * agreements[2]

# %% [markdown]
r"""
The first part points much the same way in every batch, and adds up. The second is mostly chance. For it to become more than
that, attention would have to look at the right words. But the gradient of attention passes through embeddings that mean
nothing yet. Each waits for the other, which is a likely reason for the plateau.

Is it the output's *bias* that learns the frequencies, as it could ([11](11_heads_losses.ipynb))? Not in this run. The log has
the held-out loss of the bias alone, $\operatorname{softmax}(b)$, and that of everything that is constant,
$\operatorname{softmax}(W \bar h + b)$:
"""

# %% tags=["figure"]
# Caption: The gap between green and blue is what the input adds: at first the token at the position itself
#   (down to the copying line), then the words around it.
figure, axes = plt.subplots(figsize=(7.5, 3.3))
draw_lines(axes, LINES, 3000, below=("unigram line", "copying line"))
CURVES = {
    "held_out_bias_loss": ("the bias alone", plots.ORANGE, "-."),
    "held_out_mean_logits_loss": ("all that is constant", plots.GREEN, "--"),
    "held_out_mlm_loss": ("the model", plots.BLUE, "-"),
}
for name, (label, colour, style) in CURVES.items():
    axes.plot(*column(healthy, name), style, color=colour, label=label)
axes.set(title="what the input adds", xlabel="step", ylabel="held-out MLM loss (nats)")
axes.legend(fontsize=9, loc="lower left")
plt.show()

# %% [markdown]
r"""
Once $v$ has settled, Adam moves each number by at most about the learning rate in each step, whatever its gradient ([13](13_optimiser.ipynb)). A bias has to
move by several units, which takes thousands of steps. But each entry of $W \bar h$ is a sum of `H` = 128 products that move
together. So here it is the tied table that learns the frequencies first. The gap between green and blue is what the input
adds.

## 8. Is my pre-training loss right? What should I expect after how many steps?

**At step 0**, expect $\ln V + \ln 2$ and a little more. **When the warm-up ends**, the MLM loss is at the unigram line or
below. **Then** comes the shelf around the copying line, half a nat lower. There, accuracy is about 15 %: the tenth that was
kept, and the commonest words. **Then** the loss leaves the shelf.
"""

# %%
REPORT = "{:>7,} {:>11,} {:7.2f} {:10.2f} {:9.1%} {:9.2f}".format
print("  steps      tokens    loss  from line  accuracy  NSP loss")


def rows_of(records, line, chosen):
    for record in records:
        if record["step"] in chosen:
            names = ("mlm_loss", "mlm_accuracy", "nsp_loss")
            loss, accuracy, nsp = (record[name] for name in names)
            print(REPORT(record["step"], record["tokens"], loss, loss - line, accuracy, nsp))


tokens_after = {0: 0} | {r["step"]: r["tokens"] for r in healthy["metrics"] if "tokens" in r}
documentation = [
    {name.removeprefix("held_out_"): value for name, value in record.items()}
    | {"tokens": tokens_after[record["step"]]}
    for record in healthy["metrics"]
    if "held_out_mlm_loss" in record
]
print(f"documentation, {healthy['text_tokens']:,} tokens, V = {healthy['V']:,}, H = 128, L = 2")
rows_of(documentation, healthy["unigram_line"], (0, 200, 500, 1000, 2000, 3000))
print("Wikipedia and novels, 67,890,337 tokens, V = 8,192, H = 256, L = 4")
rows_of(
    wikipedia[0]["held_out"],
    wikipedia[0]["unigram_line"],
    (0, 500, 2000, 4000, 6000, 8000, 12000, 17000),
)

# %% tags=["figure"]
# Caption: Two runs of very different size, each measured from its own unigram line.
figure, axes = plt.subplots(figsize=(7.5, 3.4))
CURVES = {
    "documentation": (documentation, healthy["unigram_line"], plots.GREEN, "^"),
    "Wikipedia and novels": (
        wikipedia[0]["held_out"],
        wikipedia[0]["unigram_line"],
        plots.BLUE,
        "o",
    ),
}
for label, (records, line, colour, marker) in CURVES.items():
    millions = [record["tokens"] / 1e6 for record in records[1:]]
    below = [record["mlm_loss"] - line for record in records[1:]]
    axes.semilogx(millions, below, marker + "-", color=colour, markersize=3.5, label=label)
axes.axhline(0, color=plots.GREY, linestyle="--", linewidth=1.2)
axes.text(40, 0.04, "unigram line", color=plots.GREY, fontsize=9, ha="right", va="bottom")
axes.set(
    title="what is gained over guessing by frequency",
    xlabel="million tokens read",
    ylabel="held-out loss − line (nats)",
)
ticks = (0.2, 0.5, 1, 2, 5, 10, 20, 40)
axes.set_xticks(ticks, ticks)
axes.minorticks_off()
axes.legend(fontsize=9)
plt.show()

# %% [markdown]
r"""
**Compare distances from the unigram line, not losses.** With a larger vocabulary, tokens are longer, a text has fewer of
them, and each is harder to guess.

**Count tokens rather than steps.** A step can be any number of tokens. BERT took $10^6$ steps of up to 256 × 512 tokens.

**The NSP loss** may stay near $\ln 2$ for a long time; in the small run, it does so to the end. That is no alarm. An MLM loss
that stays *on* the unigram line is.
"""

# %%
bert_tokens, ours = 1e6 * 256 * 512, wikipedia[0]["held_out"][-1]["tokens"]
print(f"BERT read at most {bert_tokens:.1e} tokens: {bert_tokens / ours:,.0f} times {ours:.1e}")

# %% [markdown]
r"""
## Recap

- The first loss is $\ln V + \ln 2$, plus $H \sigma^2 / 2$ for an untrained model's random opinions.
- One batch must be learned by heart within seconds. That tests the code, not the data.
- The unigram line is the entropy of the frequencies, the loss of the best guess without input. The copying line also uses
  what the token at the position itself gives away. Both come from counting.
- Frequencies are learned first because all positions and batches ask for them; context comes after a plateau.
- Compare distances from the line, and tokens rather than steps.

## What usually goes wrong

- **Given up on the plateau.** Draw the lines, then wait, or lower the rate.
- **Labels that do not belong to the inputs.** The loss stays on the unigram line.
- **Only a training loss.** With a small text and many passes, it becomes as low as you like.
- **Losses compared across vocabularies**, or one in bits with one in nats, or a sum of MLM and NSP with MLM alone.

## Three questions

Answer before you unfold.
"""

# %% [markdown]
r"""
<details>
<summary><b>1.</b> The first loss of your new model is 1.55, with <code>V</code> = 30,522. What do you conclude?</summary>

It should be about $\ln 30522 = 10.33$; no model gets below that without knowing something. 1.55 is 15 % of it. So the sum over
the predicted positions was divided by the number of *all* positions.

</details>
"""

# %% [markdown]
r"""
<details>
<summary><b>2.</b> A model is trained with masking 100/0/0: every chosen token becomes <code>[MASK]</code>. Where is its plateau?</summary>

On the unigram line: no chosen position shows a token, so there is nothing to copy.

</details>
"""

# %% [markdown]
r"""
<details>
<summary><b>3.</b> Two runs on the same text, with vocabularies of 8,000 and 30,000 tokens, end at 4.9 and 5.6. Which is better?</summary>

The losses do not say. Subtract each from its own unigram line. If the lines are at 6.4 and 7.3, say, the first has gained 1.5
nats, and the second 1.7, on longer tokens.

</details>
"""

# %% [markdown]
r"""
## Further reading

- Devlin and others, [BERT](https://arxiv.org/abs/1810.04805), 2018: appendix A.2 has the recipe, with batch, steps and rate.
- Liu and others, [RoBERTa](https://arxiv.org/abs/1907.11692), 2019: the same model, trained longer and on more text.
- Izsak, Berchansky and Levy, [How to train BERT with an academic budget](https://arxiv.org/abs/2104.07705), 2021: a day on eight GPUs.
- Geiping and Goldstein, [Cramming](https://arxiv.org/abs/2212.14034), 2022: what a single GPU reaches in a day, and which changes helped.
- Karpathy, [A recipe for training neural networks](https://karpathy.github.io/2019/04/25/recipe/), 2019: where overfitting one batch stands in a whole list of habits.

**Next:** [26 · When training fails](26_when_training_fails.ipynb), where something is wrong; or [15 · Fine-tuning](15_fine_tuning.ipynb), where a trained model learns a task from few examples.
The code of this notebook: [tasks/pretraining.py](../minibert/tasks/pretraining.py) · [train/trainer.py](../minibert/train/trainer.py) ·
[data/plateau.py](../minibert/data/plateau.py).
"""
