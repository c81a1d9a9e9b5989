# %% [markdown]
r"""
# 18 · Real weights

A model is only worth something with the numbers that somebody trained. Loading them is easy to get nearly right, and
"nearly" shows no error: the shapes fit, the model runs, the answers are worse.

**You will** take a weights file apart by hand, and write one · round to sixteen bits · translate the names of the original
checkpoints · read what a loader reports · see which settings no shape gives away.

**Before this:** [10 · The encoder](10_encoder.ipynb), [11 · Heads and losses](11_heads_losses.ipynb).
**Time:** 90 minutes with the exercises; it runs in seconds. Whether the loaded model is *the same model* is the subject of
[27 · Parity](27_parity.ipynb).

| letter | in this notebook |
|---|---|
| `H`, `L`, `V` | hidden size, layers, words in the vocabulary |
| `N` | bytes of the header of a file |
"""

# %%
import contextlib
import io
import json
import shutil
import tempfile
import textwrap
import warnings
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from safetensors.numpy import load_file, save_file

from minibert import (
    BertForPreTraining,
    BertForSequenceClassification,
    BertModel,
    BertTokenizer,
    UserError,
    check,
    plots,
)
from minibert.assets import model_folder
from minibert.course import EXERCISES
from minibert.tasks import fill_mask

plots.notebook_style()
np.set_printoptions(precision=3, suppress=True)
rng = np.random.default_rng(18)

# %% [markdown]
r"""
## 1. A model is a folder

`mini` comes with minibert. Three of its files make up the model.
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
`vocab.txt` has one token per line, and the line number is its id. All three files belong together. The sizes can be read off
the tensors, but **heads, activation and ε leave no trace in any shape** ([09](09_many_heads.ipynb)): nothing complains
if they are wrong.

The model is small, and was trained on only forty million words. Some gaps leave it little doubt. At others it knows what kind of
word is missing, and not much more:
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

A file in the safetensors format has three parts. The first 8 bytes hold the length `N` of the header. The next `N` bytes are the
header, JSON that gives for each tensor its type, its shape, and where its bytes begin and end. Then come the bytes themselves.
(Older files, `.bin`, are pickles, and opening a pickle can run any program. minibert reads the tensors out of them and [runs nothing](../docs/weights.md#older-formats).)
"""

# %%
raw = (folder / "model.safetensors").read_bytes()
N = int.from_bytes(raw[:8], "little")
header = json.loads(raw[8 : 8 + N])
header.pop("__metadata__", None)
print(f"{len(raw):,} bytes = 8 + {N:,} of header + {len(raw) - 8 - N:,} of numbers")
for name, entry in list(header.items())[:4]:
    print(name, entry)

# %% [markdown]
r"""
### Your turn: read one tensor

@exercise 18.read_tensor

`raw` has all bytes of a file. Return the tensor with this `name`, in the type and the shape that the header gives. The bytes of
a number come with the least significant first (little-endian, `<` in NumPy's names of types).
"""


# %% tags=["solution"]
def my_read_tensor(raw, name):
    """The tensor with this name from the bytes of a safetensors file, as an array."""
    N = int.from_bytes(raw[:8], "little")
    entry = json.loads(raw[8 : 8 + N])[name]
    start, end = entry["data_offsets"]  # counted from the end of the header
    kind = {"F16": "<f2", "F32": "<f4", "F64": "<f8"}[entry["dtype"]]
    return np.frombuffer(raw[8 + N + start : 8 + N + end], kind).reshape(entry["shape"])


# %%
check("18.read_tensor", my_read_tensor)

# %% [markdown]
r"""
The library safetensors does the same, with more checks. Are these the numbers of the model that made the guesses above?
"""

# %%
tensors = load_file(folder / "model.safetensors")
parameters = {name: parameter.value for name, parameter in model.named_parameters()}
assert header.keys() == parameters.keys()
assert all(np.array_equal(tensors[name], value) for name, value in parameters.items())
print(f"{len(header)} tensors, {sum(value.size for value in parameters.values()):,} numbers")

# %% tags=["figure"]
# Caption: Where the bytes are: word embeddings first, then one layer after another, in dark and light blue by turns.
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
figure.set_label(
    "One bar of 10.9 megabytes divided into tensors: the word embeddings are the first "
    "4.2 megabytes, then four layers of equal size, with small pieces for positions, "
    "pooler and heads"
)
plt.show()

# %% [markdown]
r"""
Most of the file is word embeddings and layers. Writing such a file is as short as reading it. Does the library read what we write by hand?
"""

# %%
two = {"weight": np.arange(6, dtype="<f4").reshape(2, 3), "bias": np.ones(2, "<f4")}
entries, start = {}, 0
for name, tensor in two.items():
    end = start + tensor.nbytes
    entries[name] = {"dtype": "F32", "shape": tensor.shape, "data_offsets": (start, end)}
    start = end
head = json.dumps(entries).encode()
ours = (
    len(head).to_bytes(8, "little") + head + b"".join(tensor.tobytes() for tensor in two.values())
)
with tempfile.TemporaryDirectory() as place:
    file = Path(place) / "ours.safetensors"
    file.write_bytes(ours)
    found = load_file(file)
print(f"{len(ours)} bytes:", {name: tensor.tolist() for name, tensor in found.items()})
assert all(np.array_equal(found[name], tensor) for name, tensor in two.items())

# %% [markdown]
r"""
### Where is the decoder?

The head that predicts words multiplies by a `V` × `H` matrix, but no tensor is called `decoder`: the matrix *is* the word
embeddings ([11](11_heads_losses.ipynb)). A tied matrix is one parameter, and is **stored once**. Some files contain it twice;
then a loader must check that both are the same.
"""

# %%
V, H = parameters["bert.embeddings.word_embeddings.weight"].shape
print("tensors called decoder:", sum("decoder" in name for name in header))
print(f"stored twice, the file would have {V * H * 2 / 1e6:.1f} MB more")

# %% [markdown]
r"""
### Sixteen bits

`F16` keeps 10 bits after the leading one, and has 5 bits for the exponent. **bfloat16** is the upper half of a float32: 7 bits,
and 8 for the exponent. The first is finer, and the second has float32's range. For weights in files either is good enough; they
are converted to float32 when they are read.

@exercise 18.to_bfloat16

NumPy has no bfloat16. Round float32 numbers to the nearest number that a bfloat16 can hold, and return them as float32. Where two
are equally near, take the one whose last kept bit is 0.
"""

# %% [markdown] tags=["derivation"]
r"""
Take the 32 bits as a whole number $n$. For numbers of the same sign, a larger size means a larger $n$, and the next bfloat16 is
$2^{16}$ further on. So we have to round $n$ to a multiple of $2^{16}$:

$$ \Bigl\lfloor \frac{n + \text{half}}{2^{16}} \Bigr\rfloor \cdot 2^{16}. $$

With half = $2^{15}$ a tie goes up. With half = $2^{15} - 1$ it goes down. It should go up exactly if the last kept bit is 1, so we add
this bit to $2^{15} - 1$.
"""


# %% tags=["solution"]
def my_to_bfloat16(x):
    """float32 → the nearest numbers that use only the upper 16 bits, as float32."""
    bits = x.view(np.uint32)
    bits = bits + 0x7FFF + ((bits >> 16) & 1)  # to nearest, ties to even
    return (bits & 0xFFFF0000).view(np.float32)


# %%
check("18.to_bfloat16", my_to_bfloat16)

# %%
to_bfloat16 = EXERCISES["18.to_bfloat16"].solution
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
| `…/layer_3/…/query/kernel` | `….layer.3.….query.weight` | the same |
| `…/layer_3/output/LayerNorm/gamma`, `beta` | `….LayerNorm.gamma`, `beta` | `….LayerNorm.weight`, `bias` |
| `bert/embeddings/word_embeddings` | `….word_embeddings.weight` | the same |
| `cls/predictions/output_bias` | `cls.predictions.bias` | the same |
| `cls/seq_relationship/output_weights` | `cls.seq_relationship.weight` | the same |

There is one more difference, which is not a name. TensorFlow's dense layer computes $x K$, with a kernel $K$ of shape (inputs,
outputs). Ours computes $x W^\top$, with $W$ of shape (outputs, inputs). Not everything with two axes is a kernel: look-up tables
have a row per id in both, and `output_weights` is stored as (2, `H`).

## 4. Your turn: the rename map

@exercise 18.rename

Write one function for both kinds of old names. It takes one name and returns today's name, and whether the numbers must be transposed. Each name
is translated by itself, without looking at the array.
"""

# %% [markdown] tags=["derivation"]
r"""
Both layers have to compute the same:

$$ x K = x W^\top \quad\Rightarrow\quad W = K^\top . $$

So kernels must be transposed, and nothing else. In the early PyTorch files, they have been transposed already: the names of
their matrices end in `weight`, not in `kernel`.

For the names, first replace what is the same everywhere (`/` by `.`, `layer_3` by `layer.3`), then the ending. The tables have
no ending at all, so one is added.
"""


# %% tags=["solution"]
def my_rename(old):
    """A variable's old name → (today's name, whether its numbers must be transposed).

    "bert/pooler/dense/kernel" → ("bert.pooler.dense.weight", True). Names of early PyTorch files occur, too.
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
What would notice a forgotten transpose? A check of shapes would, if the matrix is not square:
"""

# %%
LAYER = "bert.encoder.layer.0."
in_layer = [v.shape for name, v in parameters.items() if name.startswith(LAYER) and v.ndim == 2]
square = sum(rows == columns for rows, columns in in_layer)
print(f"matrices in a layer: {len(in_layer)}, of these square: {square}")
assert (len(in_layer), square) == (6, 4)

# %% [markdown]
r"""
**Four of six pass any check of shapes.** Such a check would not notice, either, that γ and β are exchanged, or query and key.
[27](27_parity.ipynb) will.

## 5. What a loader reports

Real checkpoints often have an extra head, or lack one. Some come without `bert.` in their names, and some are broken. Here are
nine variants of `mini`:
"""

# %%
encoder = {name: tensor for name, tensor in tensors.items() if not name.startswith("cls.")}
old = {
    name.removeprefix("bert.")
    .replace("LayerNorm.weight", "LayerNorm.gamma")
    .replace("LayerNorm.bias", "LayerNorm.beta"): tensor
    for name, tensor in tensors.items()
}
QUERY, WORDS = "bert.encoder.layer.0.attention.self.query.weight", "word_embeddings.weight"
incomplete = {name: tensor for name, tensor in tensors.items() if name != QUERY}
DECODER = {"cls.predictions.decoder.weight": tensors[f"bert.embeddings.{WORDS}"]}
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
    """How minibert reacts to a folder with these tensors, and what it says."""
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
- A **whole head** may be missing: it begins with random weights. For pre-training that deserves a warning; for fine-tuning it is
  intended, and one line says so.
- **Unexpected** tensors are ignored, and the message names them.
- A tensor of the **encoder** that is missing, or has another shape, is an error.

## 6. What no shape gives away

The sizes fit, and the loader is content. Now we load the same file four more times, each time with one setting of `config.json`
changed. We ask each model the same: how likely is the word that belongs there?
"""

# %%
ASKED = [
    ("he was born in [MASK] , the son of a farmer .", "london"),
    ("she opened the [MASK] .", "door"),
    ("he [MASK] his head .", "shook"),
    ("the king and the [MASK] .", "queen"),
]


def answers(**settings):
    """For each question: the probability of its word, and the most probable word."""
    asked = BertForPreTraining.from_pretrained("mini", dtype="float64", **settings)
    for text, word in ASKED:
        [found] = fill_mask(asked, tokenizer, text, top_k=tokenizer.vocab_size)
        yield dict(found)[word], found[0][0]


SETTINGS = {
    "as it is (4 heads)": {},
    "8 heads": {"num_attention_heads": 8},
    "2 heads": {"num_attention_heads": 2},
    "ReLU, not GELU": {"hidden_act": "relu"},
    "ε = 0.1, not 1e-12": {"layer_norm_eps": 0.1},
}
found = {name: list(answers(**settings)) for name, settings in SETTINGS.items()}
print(f"{'':<20}" + "".join(f"{word:>9}" for _, word in ASKED) + "   its own guesses")
for name, guesses in found.items():
    print(f"{name:<20}" + "".join(f"{p:9.2%}" for p, _ in guesses), end="   ")
    print(", ".join(guess for _, guess in guesses))
mean = {name: np.mean([np.log(p) for p, _ in guesses]) for name, guesses in found.items()}
assert max(mean, key=mean.get) == "as it is (4 heads)"
of_file = found["as it is (4 heads)"]
assert [guess for _, guess in found["8 heads"]] == [guess for _, guess in of_file]
likelier = [p > q for (p, _), (q, _) in zip(found["ReLU, not GELU"], of_file, strict=True)]
assert sum(likelier) == 2

# %% tags=["figure"]
# Caption: The mean loss of four hidden words, for one weights file under five configurations. Only
#   the first one belongs to the file.
figure, axes = plt.subplots(figsize=(7.5, 2.6))
axes.barh(range(len(mean)), [-value for value in mean.values()], color=plots.BLUE)
axes.set_yticks(range(len(mean)), mean)
axes.invert_yaxis()
axes.set(title="one file, five configurations", xlabel="mean loss of the four words (nats)")
axes.grid(False, axis="y")
figure.set_label(
    "Bars of the mean loss of four words for one weights file under five configurations: the right one has "
    "the lowest; every changed setting raises the loss, and none is an error"
)
plt.show()

# %% [markdown]
r"""
None of them is refused, since no shape depends on these settings. All of them still answer. Their guesses are worse on average,
but some are hardly worse: with 8 heads the four guesses are the same words as before, and with ReLU two of the right words even
become more probable. To find such a mistake, one has to compare numbers with the reference. That is the subject of
[27 · Parity](27_parity.ipynb). [23 · After BERT](23_after_bert.ipynb) shows what BERT's successors did differently.

## Recap

- Kernels of the original have to be transposed; tables and `output_weights` do not. Four of a layer's six matrices are square, so shapes prove little.
- A loader may start a whole head with random weights, and says so. Nothing else may be missing.
- A safetensors file is a length, a header in JSON, and bytes. bfloat16 keeps float32's range, float16 more digits.
- Heads, activation, ε and the words of the vocabulary do not show in any shape. Files and settings belong together.

## What usually goes wrong

- **`strict=False`.** Missing tensors are ignored, and part of the model stays random.
- **Offsets counted from the beginning of the file.** They count from the end of the header.
- **Cutting off sixteen bits** rather than rounding: the weights shrink a little, and none grows.
- **The wrong vocabulary** with the right weights: every layer is right, and every answer is nonsense.

## Three questions

Answer before you unfold.
"""

# %% [markdown]
r"""
<details>
<summary><b>1.</b> A file has the names of BERT-base, and all shapes fit. It is loaded with 6 heads instead of 12. What happens?</summary>

There is no error: the number of heads does not show in any shape. The features are cut into other groups, so the scores are wrong
from the first layer on. The model still answers, only worse.

</details>
"""

# %% [markdown]
r"""
<details>
<summary><b>2.</b> You convert the original checkpoint and forget to transpose. Which matrices does a check of shapes find?</summary>

The two of each feed-forward network, which are not square: (`H`, 4`H`) and (4`H`, `H`). The matrices of query, key,
value, the attention's output, the pooler and the word head's transform are `H` × `H` and pass.

</details>
"""

# %% [markdown]
r"""
<details>
<summary><b>3.</b> Why may a loader leave a whole head random, but not a single tensor of the encoder?</summary>

A new head for a new task is intended: it is trained anyway. One random matrix inside a trained encoder ruins what all others have
learned, and nobody would want it.

</details>
"""

# %% [markdown]
r"""
## Further reading

- The [safetensors](https://github.com/huggingface/safetensors) format: its page describes the header in full, and why it was made.
- Wolf and others, [Transformers: state-of-the-art natural language processing](https://arxiv.org/abs/1910.03771), 2020: the library whose names and files are the standard today.
- Google's [bert](https://github.com/google-research/bert), 2018: the original code and checkpoints, with the names of section 3.
- Kalamkar and others, [A study of BFLOAT16 for deep learning training](https://arxiv.org/abs/1905.12322), 2019: how far one gets with 7 bits.

**Next:** [27 · Parity](27_parity.ipynb), where the loaded model is compared with the reference; or [19 · Applications](19_applications.ipynb), where such vectors are put to use.
The code of this notebook: [weights.py](../minibert/folders/weights.py), [tensors.py](../minibert/folders/tensors.py).
"""
