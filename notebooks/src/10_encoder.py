# %% [markdown]
r"""
# 10 · The encoder

A layer of BERT is attention and a small feed-forward network, each followed by a sum and a norm. A stack of 12 or 24 such
layers is nearly all of BERT. You know the parts from the notebooks before. What is new is how they are *wired*, and the wiring decides
whether a deep stack learns at all.

**You will** wire half a layer, forward and backward, with the norm after it and before it · see what happens without residuals · decide between post-LN and pre-LN
by experiment · check the gradient of a whole model, and let the check lead you to a bug · account for all 110 million
parameters.

**Before this:** [04 · GELU](04_gelu_dropout.ipynb), [05 · LayerNorm](05_layer_norm.ipynb), [09 · Many heads](09_many_heads.ipynb).
**Time:** 100 minutes with the exercises; it runs in seconds.

| letter | in this notebook |
|---|---|
| `B`, `S` | sequences in a batch, tokens in a sequence |
| `H`, `F` | hidden size, feed-forward size (`F` = 4`H` in BERT) |
| `L` | layers |
| `V` | words in the vocabulary |
"""

# %%
import inspect

import matplotlib.pyplot as plt
import numpy as np

from minibert import BertConfig, BertForPreTraining, check, plots
from minibert.bert.encoder import BertEncoder, BertLayer, BertResidualOutput
from minibert.course import read_log
from minibert.course.exercises.n10_encoder import feed_forward_block
from minibert.devices import resolve_device
from minibert.gradcheck import Draws, function_case, model_case, module_case
from minibert.gradcheck import check as compare_with_numeric
from minibert.nn import LayerNorm, Linear
from minibert.ops import Cache
from minibert.ops.attention import attention_bias
from minibert.ops.composites import linear_activation, linear_activation_backward
from minibert.ops.cross_entropy_loss import cross_entropy, cross_entropy_backward
from minibert.ops.layer_normalisation import layer_norm, layer_norm_backward
from minibert.ops.linear_map import linear, linear_backward
from minibert.proofs.small_bert import BATCH, CONFIG, LABELS, NEXT_SENTENCE_LABEL
from minibert.tasks.info import parameter_table
from minibert.train.optimiser import AdamW

plots.notebook_style()
np.set_printoptions(precision=3, suppress=True)
rng = np.random.default_rng(10)

# %% [markdown]
r"""
## 1. A layer has two halves

Attention gathers from other tokens. The feed-forward network then works on each token by itself: up to `F` features, GELU, down
to `H` again. Each half has such a *branch*: what goes in is kept, the branch's result is added to it, and the sum is
normalised. In papers, a half is called a *sublayer*.
"""

# %% tags=["figure"]
# Caption: One layer: two branches, each added to what went in, and each followed by LayerNorm.
figure, axes = plt.subplots(figsize=(7.5, 2.2))
for left, (start, branch, end) in {
    0.0: ("x", "attention", "h"),
    4.4: ("h", "feed-forward", "y"),
}.items():
    places = {start: (0, 0), branch: (1.3, 1), "+": (2.6, 0), "LN": (3.5, 0), end: (4.4, 0)}
    places = {text: (x + left, y) for text, (x, y) in places.items()}
    wires = [(start, "+"), (start, branch), (branch, "+"), ("+", "LN"), ("LN", end)]
    plots.graph(axes, places, [(*wire, "") for wire in wires])
axes.set_xlim(-0.4, 9.2)
figure.set_label(
    "One layer as a graph: attention's result is added to x and normalised to h, then the "
    "feed-forward network's result is added to h and normalised to y"
)
plt.show()

# %%
print(inspect.getsource(BertLayer.forward))
print(inspect.getsource(BertResidualOutput.forward))

# %% [markdown]
r"""
`BertResidualOutput` ends both halves: a linear map, then "dropout, add, normalise" in one operation. `context`
([04](04_gelu_dropout.ipynb#9.-In-BERT)) brings the keys for dropout, and `observe` shows a value to anyone who wants to see it. `Cache(self, …)`
holds the caches of the parts, and knows which layer made it. `context.places` says which tokens are computed after the attention: all of
them, except in the last layer of a model in training, where most tokens are read by no head
([places.py](../minibert/nn/places.py)). `put_back` then fills the other places with zeros.

Which half lets tokens see each other? Let us change token 2 and see which tokens move.
"""

# %%
TINY = BertConfig(
    hidden_size=12,
    num_attention_heads=3,
    intermediate_size=48,
    num_hidden_layers=1,
)
layer = BertLayer(TINY)
layer.allocate("cpu", "float64")
layer.initialise(seed=0, std=0.3)
layer.eval()

x = rng.standard_normal((1, 5, 12))  # (B, S, H)
changed = x.copy()
changed[0, 2] += 1.0
bias = attention_bias(np.ones((1, 5)), "float64")


def attention_half(x):
    return layer.attention.forward(x, bias)[0]


def feed_forward_half(x):
    return layer.output.forward(layer.intermediate.forward(x)[0], x)[0]


for half in (attention_half, feed_forward_half):
    moved = np.abs(half(changed) - half(x))[0].max(axis=-1) > 0  # (S,)
    print(f"{half.__name__:<18} tokens that move: {np.flatnonzero(moved)}")
assert np.allclose(layer.forward(x, bias)[0], feed_forward_half(attention_half(x)))

# %% [markdown]
r"""
Two thirds of a layer's weights are in the half that sees one token at a time. Without the GELU they would be wasted: two linear
maps in a row are one, $W_2 (W_1 x) = (W_2 W_1) x$, an `H` × `H` matrix.
"""

# %%
up_weight, down_weight = rng.standard_normal((48, 12)), rng.standard_normal((12, 48))
assert np.allclose(x @ up_weight.T @ down_weight.T, x @ (down_weight @ up_weight).T)
print(f"{up_weight.size + down_weight.size} numbers, worth {12 * 12}")

# %% [markdown]
r"""
## 2. The backward pass of a sum

Let us take a half without its norm and without biases, $s = x + f(x)$:
"""


# %%
def with_residual(x, up_weight, down_weight):
    """s = x + f(x): x (…, H), up_weight (F, H), down_weight (H, F) → s (…, H), (up_cache, down_weight)."""
    no_bias = np.zeros(len(up_weight))
    wide, up_cache = linear_activation(x, up_weight, no_bias, "gelu")  # (…, F)
    return x + wide @ down_weight.T, (up_cache, down_weight)


# %% [markdown]
r"""
### Your turn: step by step

@exercise 10.residual_in_steps

Go back from $s$ to $x$, and return what you find on the way: the gradient of `wide`, what the branch sends back to $x$, and $dx$.
($dx$ means $\partial L / \partial x$.) `linear_activation_backward(dwide, up_cache)` returns the gradient of its input first, then those
of its weight and bias. At the end, ask how often $x$ was used.
"""

# %% [markdown] tags=["derivation"]
r"""
The first two steps are known from [02](02_linear.ipynb) and [04](04_gelu_dropout.ipynb): $d\text{wide} = ds \, W_2$, and then GELU and
the first map, backwards. For the last step, note that $x_j$ reaches every $s_i$ through $f$, and $s_j$ directly as well:

$$
dx_j = \sum_i ds_i \, \frac{\partial s_i}{\partial x_j}
= \sum_i ds_i \Big( \delta_{ij} + \frac{\partial f_i}{\partial x_j} \Big)
= ds_j + \sum_i ds_i \, \frac{\partial f_i}{\partial x_j} .
$$

The last term is what the branch's own backward pass returns.
"""


# %% tags=["solution"]
def my_residual_in_steps(dout, cache):
    """The gradients of with_residual: dwide (…, F), dbranch (…, H), dx (…, H).

    dout ds (…, H); cache = (up_cache, down_weight), with down_weight W₂ (H, F). dbranch is what comes back
    through f alone.
    """
    up_cache, down_weight = cache
    dwide = dout @ down_weight  # (…, F)
    dbranch, _, _ = linear_activation_backward(dwide, up_cache)  # (…, H)
    return dwide, dbranch, dout + dbranch


# %%
check("10.residual_in_steps", my_residual_in_steps)

# %% [markdown] tags=["answer"]
r"""
So **the sum hands its gradient to both terms unchanged, and where the two paths began, the gradients are added**:

$$ dx = ds + f'(ds) . $$

Here $f'(ds)$ is what the branch's backward pass makes of $ds$. Now and then one reads $1 + f'(ds)$ instead, but that is wrong:
$\partial x / \partial x$ is 1, but a backward pass multiplies it by what comes in.
"""


# %% tags=["answer"]
def with_one(ds, cache):
    _, dbranch, _ = my_residual_in_steps(ds, cache)
    return 1.0 + dbranch


for name, backward in (
    ("ds + f'(ds)", lambda ds, cache: my_residual_in_steps(ds, cache)[-1]),
    ("1 + f'(ds)", with_one),
):
    case = function_case(
        name, lambda x: with_residual(x, up_weight, down_weight), backward, {"x": x}
    )
    [row] = compare_with_numeric(case)
    print(f"{name:<13} error {row.error:.0e}   {'right' if row.ok else 'wrong'}")
    assert row.ok == (backward is not with_one)

# %% [markdown]
r"""
## 3. Your turn: half a layer

@exercise 10.block_forward

Now we add the norm: $y = \operatorname{LN}(x + f(x))$ with $f(x) = \operatorname{gelu}(x W_1^\top + b_1) \, W_2^\top + b_2$.
Every function returns its result and a cache; here you need only the results. `up`, `down` and `norm` are pairs of weight and
bias, and `linear_activation(x, weight, bias, "gelu")` does the linear map and GELU at once.
"""


# %% tags=["solution"]
def my_block_forward(x, up, down, norm, eps):
    """y = layer_norm(x + f(x)), f(x) = gelu(x W₁ᵀ + b₁) W₂ᵀ + b₂. x and y (B, S, H).

    up = (W₁ (F, H), b₁ (F,)), down = (W₂ (H, F), b₂ (H,)), norm = (γ, β), (H,) each.
    """
    wide, _ = linear_activation(x, *up, "gelu")  # (B, S, F)
    narrow, _ = linear(wide, *down)  # (B, S, H)
    y, _ = layer_norm(x + narrow, *norm, eps)
    return y


# %%
check("10.block_forward", my_block_forward)

# %% [markdown]
r"""
### And backwards

@exercise 10.block_backward

This forward pass keeps the three caches:
"""

# %%
print(inspect.getsource(feed_forward_block))

# %% [markdown]
r"""
You have `layer_norm_backward`, `linear_backward` and `linear_activation_backward`. Each takes the gradient of its output and its
cache, and returns the gradient of its input first, then those of weight and bias.
"""


# %% tags=["solution"]
def my_block_backward(dout, cache):
    """The gradients of the block: dx, then those of W₁, b₁, W₂, b₂, γ, β, seven arrays.

    dout (B, S, H); cache = (up_cache, down_cache, norm_cache).
    """
    up_cache, down_cache, norm_cache = cache
    dsum, *dnorm = layer_norm_backward(dout, norm_cache)  # (B, S, H), dγ, dβ
    dwide, *ddown = linear_backward(dsum, down_cache)  # (B, S, F), dW₂, db₂
    dbranch, *dup = linear_activation_backward(dwide, up_cache)  # (B, S, H), dW₁, db₁
    return dsum + dbranch, *dup, *ddown, *dnorm


# %%
check("10.block_backward", my_block_backward)

# %% [markdown] tags=["answer"]
r"""
In the library the sum is made in `BertLayer.backward`, by `ops.add_derivative`, which is `+=`. (`cache.pop` takes the last part off the
cache, and `observed_backward` changes nothing unless there is an observer. `leave_out` is the backward pass of `put_back`.)
"""

# %% tags=["answer"]
print(inspect.getsource(BertLayer.backward))

# %% [markdown]
r"""
## 4. Why residuals?

To find out, we need stacks that are wired in other ways: BERT's ("post"), one without residuals ("none"), and, for section 5,
one that normalises *before* the branch ("pre"). All of them use the library's modules. Here is one half, in all three wirings:
"""


# %%
def half_forward(wiring, modules, norm, x):
    """y, the sum before any norm after it, the caches."""
    caches = []

    def run(module, x, *others):
        y, cache = module.forward(x, *others)
        caches.append(cache)
        return y

    inner = run(norm, x) if wiring == "pre" else x
    for module, others in modules:
        inner = run(module, inner, *others)
    total = inner if wiring == "none" else x + inner
    return (total if wiring == "pre" else run(norm, total)), total, caches


def half_backward(wiring, modules, norm, dy, caches):
    dtotal = dy if wiring == "pre" else norm.backward(dy, caches.pop())
    dinner = dtotal
    for module, _ in reversed(modules):
        dinner = module.backward(dinner, caches.pop())
    if wiring == "pre":
        dinner = norm.backward(dinner, caches.pop())
    return dinner if wiring == "none" else dtotal + dinner


# %% [markdown]
r"""
A stack of `L` layers is 2`L` such halves. `watch` is there to look inside. A linear map at the end, the readout, turns the
states into answers, and "pre" needs one more norm before it, as nothing else normalises its sum.
"""


# %%
class Stack(BertEncoder):
    """BERT's layers in another wiring, and a linear readout."""

    def __init__(self, config, wiring, outputs):
        super().__init__(config)
        self.wiring = wiring
        self.last = (
            LayerNorm(config.hidden_size, config.layer_norm_eps) if wiring == "pre" else None
        )
        self.readout = Linear(config.hidden_size, outputs)

    def halves(self, bias=None):
        for layer in self.layer:
            attention, output = layer.attention, layer.attention.output
            yield [(attention.self, (bias,)), (output.dense, ())], output.LayerNorm
            yield [(layer.intermediate, ()), (layer.output.dense, ())], layer.output.LayerNorm

    def forward(self, x, bias, watch=lambda total: None):
        parts = []
        for modules, norm in self.halves(bias):
            x, total, caches = half_forward(self.wiring, modules, norm, x)
            watch(total)
            parts.append(caches)
        if self.last:
            x, last_cache = self.last.forward(x)
            parts.append(last_cache)
        y, readout_cache = self.readout.forward(x)
        return y, Cache(self, *parts, readout_cache)

    def backward(self, dy, cache, watch=lambda dx: None):
        dx = self.readout.backward(dy, cache.pop(self))
        if self.last:
            dx = self.last.backward(dx, cache.pop(self))
        for modules, norm in reversed(list(self.halves())):
            watch(dx)
            dx = half_backward(self.wiring, modules, norm, dx, cache.pop(self))
        return dx


# %% [markdown]
r"""
Before any experiment: is "post" what the library runs, and are all three gradients right?
"""

# %%
x = rng.standard_normal((2, 4, 12))
bias = attention_bias(np.array([[1, 1, 1, 1], [1, 1, 1, 0]]), "float64")
for wiring in ("post", "pre", "none"):
    stack = Stack(TINY, wiring, outputs=3)
    stack.allocate("cpu", "float64")
    stack.eval()
    Draws(resolve_device("cpu"), 1).randomise(stack)
    zeros = [name for name, _ in stack.named_parameters() if "key.bias" in name]
    rows = compare_with_numeric(module_case(wiring, stack, {"x": x}, [bias], zeros))
    assert all(row.ok for row in rows)
    print(f"{wiring:<5} {len(rows)} gradients, largest error {max(row.error for row in rows):.0e}")
    if wiring == "post":
        encoded, _ = BertEncoder.forward(stack, x, bias)
        assert np.allclose(stack.forward(x, bias)[0], stack.readout.forward(encoded)[0])

# %% [markdown]
r"""
Now let us stack 24 fresh layers. How alike do the tokens of a sequence become on the way up? We measure the correlation of
two tokens' features, and take the mean over all pairs.
"""

# %%
DEEP = {
    "hidden_size": 48,
    "num_attention_heads": 4,
    "intermediate_size": 192,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}


def alike(states):
    """Mean correlation between the tokens of a sequence. states (B, S, H)."""
    centred = states - states.mean(axis=-1, keepdims=True)
    unit = centred / np.linalg.norm(centred, axis=-1, keepdims=True)
    S = states.shape[1]
    return float((((unit @ unit.transpose(0, 2, 1)).sum(axis=(1, 2)) - S) / (S * (S - 1))).mean())


x = rng.standard_normal((8, 10, 48))
bias = np.zeros((8, 1, 1, 10))
likeness = {}
for wiring in ("post", "none"):
    stack = Stack(BertConfig(num_hidden_layers=24, **DEEP), wiring, outputs=1)
    stack.allocate("cpu", "float64")
    stack.initialise(seed=0, std=0.08)
    totals = []
    stack.forward(x, bias, watch=totals.append)
    likeness[wiring] = [alike(x), *(alike(total) for total in totals[1::2])]
print(f"without residuals, after the first layer: {likeness['none'][1]:.2f}")

# %% tags=["figure"]
# Caption: Without residual connections, all tokens become the same after a few layers.
figure, axes = plt.subplots(figsize=(6.5, 2.9))
for (wiring, label), colour in zip(
    {"none": "without residuals", "post": "with residuals"}.items(),
    (plots.VERMILION, plots.BLUE),
    strict=True,
):
    axes.plot(likeness[wiring], "o-", color=colour, label=label, markersize=4)
axes.set(
    title="how alike the tokens are",
    xlabel="layers passed",
    ylabel="correlation",
    ylim=(-0.05, 1.05),
)
axes.legend(loc="center right")
plt.show()

# %% [markdown]
r"""
A fresh attention head looks everywhere about equally ([08](08_attention.ipynb)), so what it returns is nearly the same mean for
every token. Without the residual connection, that mean is all that is left: **after two layers the tokens cannot be told apart**,
and no later layer can bring back what has been lost. With it, each token stays itself, and a layer only *adds* something.
(What is added up in this way, from layer to layer, is called the **residual stream**.)
The gradient benefits in the same way: $ds$ reaches $x$ whatever the branch does.

## 5. Post-LN or pre-LN?

$$
\text{post (BERT): } \; y = \operatorname{LN}\big(x + f(x)\big) \qquad\qquad
\text{pre: } \; y = x + f\big(\operatorname{LN}(x)\big)
$$

Let us follow the gradient along the residual connections only. In "pre" the sum is the last thing that happens:
$dx = dy + \dots$, undiminished through any number of layers. In "post" the gradient passes the norm, and
[05](05_layer_norm.ipynb) showed what the norm does: it divides by σ, the deviation of the sum. Through 2`L` halves, we get

$$
\text{share of the gradient that comes down the residuals} \;\approx\; \prod_{n=1}^{2L} \frac{1}{\sigma_n},
$$

$$
\sigma_n^2 = \operatorname{Var}\big(x + f(x)\big) \approx 1 + \operatorname{Var} f .
$$

While the branches are small, as in a fresh model, little is lost. When they grow, much is lost: with
$\operatorname{Var} f = 1$ and 12 layers, the share is $2^{-12}$. So let the stacks learn. The task is the toy of
[09](09_many_heads.ipynb) (which symbol is to the left, to the right, at the start?). There are 12 layers, and each
wiring gets three seeds. The optimiser is Adam, whose steps move every weight by about the learning rate, here 0.003. With **warm-up**,
the learning rate rises to that value over the first 100 steps. ([13](13_optimiser.ipynb) explains both.) The runs are in a log; `RERUN`
makes them again, in a minute or two.
"""

# %%
RERUN = False
SYMBOLS, STEPS, PEAK, SEEDS = 6, 300, 0.003, (0, 1, 2)
RUNS = (("none", 0), ("post", 0), ("post", 100), ("pre", 0))  # wiring, steps of warm-up
LOOK_AT = (0, 10, 299)


def toy(rng, table, positions, batch=32):
    symbols = rng.integers(SYMBOLS, size=(batch, len(positions)))
    left, right = np.roll(symbols, 1, axis=1), np.roll(symbols, -1, axis=1)
    labels = np.stack([left, right, np.broadcast_to(symbols[:, :1], symbols.shape)], axis=-1)
    return ((table[symbols] + positions) / np.sqrt(2)).astype("float32"), labels.ravel()


# %%
def learn(wiring, warmup, seed, peak=PEAK, steps=STEPS):
    """Train a stack: losses, and at some steps what is seen on the way up and down, half by half."""
    rng = np.random.default_rng(seed)
    table, positions = rng.standard_normal((SYMBOLS, 48)), rng.standard_normal((10, 48))
    stack = Stack(BertConfig(num_hidden_layers=12, **DEEP), wiring, outputs=3 * SYMBOLS)
    stack.allocate("cpu", "float32")
    stack.initialise(seed, std=0.08)
    optimiser = AdamW(stack, weight_decay=0.0, bias_correction=True)
    run = {"wiring": wiring, "warmup": warmup, "seed": seed, "losses": []}
    ones, bias = np.ones(32 * 10 * 3, "float32"), np.zeros((32, 1, 1, 10), "float32")
    for step in range(steps):
        x, labels = toy(rng, table, positions)
        totals, flow = [], []
        y, cache = stack.forward(x, bias, watch=totals.append)
        logits = y.reshape(-1, SYMBOLS)
        loss, loss_cache = cross_entropy(logits, labels, ones, np.float32(ones.size))
        stack.zero_grad()
        dlogits = cross_entropy_backward(np.float32(1.0), loss_cache)
        stack.backward(dlogits.reshape(y.shape), cache, watch=flow.append)
        optimiser.step(peak * min(1.0, (step + 1) / max(1, warmup)), step)
        run["losses"].append(round(float(loss), 3))
        if step in LOOK_AT:
            run[f"step {step}"] = {
                "alike": [round(alike(total), 3) for total in totals],
                "sigma": [round(float(total.std(axis=-1).mean()), 3) for total in totals],
                "flow": [float(f"{np.linalg.norm(dx):.3g}") for dx in reversed(flow)],
            }
    return run


# %%
if RERUN:
    runs = [learn(*run, seed) for run in RUNS for seed in SEEDS]
else:
    runs = read_log("10_wirings.jsonl")
LABELS_OF = {
    ("none", 0): "no residuals",
    ("post", 0): "post-LN, no warm-up",
    ("post", 100): "post-LN, warm-up",
    ("pre", 0): "pre-LN, no warm-up",
}
for key, label in LABELS_OF.items():
    ends = [np.mean(run["losses"][-20:]) for run in runs if (run["wiring"], run["warmup"]) == key]
    print(f"{label:<20} loss at the end, seed by seed:", *(f"{end:.3f}" for end in ends))

# %% tags=["figure"]
# Caption: At this learning rate post-LN needs the warm-up. Pre-LN does not.
STYLE = {
    ("none", 0): plots.GREY,
    ("post", 0): plots.VERMILION,
    ("post", 100): plots.BLUE,
    ("pre", 0): plots.GREEN,
}
figure, axes = plt.subplots(figsize=(7.5, 3.2))
for run in runs:
    key = run["wiring"], run["warmup"]
    label = LABELS_OF[key] if run["seed"] == 0 else None
    axes.plot(run["losses"], color=STYLE[key], linewidth=1.2, label=label)
axes.axhline(np.log(SYMBOLS), color="black", linestyle="--", linewidth=1)
axes.text(303, np.log(SYMBOLS), "ln 6:\nguessing", fontsize=9, va="center", backgroundcolor="white")
axes.set(
    title="12 layers, three seeds each",
    xlabel="step",
    ylabel="loss (nats)",
    ylim=(0, 2.3),
    xlim=(-8, 345),
)
axes.legend(fontsize=9, loc="lower left")
plt.show()

# %% [markdown]
r"""
- **Without residuals**, the stack never gets better than guessing.
- **Post-LN** learns with warm-up, and breaks without it.
- **Pre-LN** learns without warm-up.

Does post-LN always need warm-up, then? Let us take a third of the learning rate, and twice as many steps:
"""

# %%
if RERUN:
    gentle = [learn("post", warmup, seed, 0.001, 600) for warmup in (0, 100) for seed in SEEDS]
else:
    gentle = read_log("10_gentle.jsonl")
for warmup in (0, 100):
    ends = [np.mean(run["losses"][-20:]) for run in gentle if run["warmup"] == warmup]
    told = " ".join(f"{end:.3f}" for end in ends)
    print(f"post-LN at 0.001, {warmup:3} steps of warm-up: loss at the end {told}")

# %% [markdown]
r"""
It does not. What warm-up does for post-LN is to **raise the largest learning rate** at which it learns. That is worth having: a
high rate needs fewer steps.

Back to 0.003. Did learning break down as the product of $1 / \sigma_n$ predicted? And when did it begin? The loss does not show that.
For sixty steps, it does not tell the runs that will fail from the others: all with residuals fall to about ⅔ ln 6 = 1.19, where one
of the three questions is answered. Those that fail never get clearly below it. But look at the tokens after ten steps:
"""

# %%
print("                       share along the residuals   tokens alike at the top")
for key in (("post", 0), ("post", 100)):
    for run in runs:
        if (run["wiring"], run["warmup"]) == key:
            shares = [np.prod(1 / np.array(run[f"step {step}"]["sigma"])) for step in (0, 299)]
            likes = [run[f"step {step}"]["alike"][-1] for step in (0, 10)]
            print(f"{LABELS_OF[key]:<20} step 0: {shares[0]:.1f}, 299: {shares[1]:7.0e}", end="")
            print(f"   step 0: {likes[0]:.2f}, 10: {likes[1]:.2f}")

# %% tags=["figure"]
# Caption: The length of the gradient in each layer, relative to the top one, before and after
#   training. Three lines of a colour are three seeds.
figure, axes = plt.subplots(1, 2, figsize=(7.5, 3.2), sharey=True)
for panel, step in zip(axes, (0, 299), strict=True):
    for run in runs:
        key = run["wiring"], run["warmup"]
        flow = np.array(run[f"step {step}"]["flow"])[1::2]  # (L,): above each layer
        label = LABELS_OF[key] if run["seed"] == 0 else None
        panel.semilogy(np.arange(12), flow / flow[-1], color=STYLE[key], linewidth=1.2, label=label)
    panel.set(title=f"step {step}", xlabel="layer", xticks=range(12), ylim=(1e-6, 30))
axes[0].set_ylabel("‖dx‖, relative to the top")
axes[0].legend(fontsize=9, loc="lower left")
plt.show()

# %% [markdown]
r"""
At step 0 all four look alike: read from right to left, the gradient keeps its length on the way down. At the end it has
vanished in the stack without residuals. In post-LN without warm-up, it is between a twentieth and a ten-thousandth of its length at the
top: it has shrunk, as predicted, but less than the product says, since some gradient also comes down through the branches. In "pre" it
is nowhere shorter than at the top. (Adam makes up for a gradient's
length, but not for information that it has lost: in the failed stacks all tokens have become nearly equal.)

Why does warm-up help at a high rate? Adam's first steps move every weight by the full learning rate, however small the gradient. In a
fresh stack, that lets all branches grow at once. In post-LN nothing protects the tokens' own part from being divided away:
see how alike the tokens are after ten steps. Small first steps let the stack find a direction first.

So is pre-LN better? It is easier to train. GPT-2 and most models since then use it. Its price is that nothing ever makes the
sum smaller: it grows from half to half, what late layers add weighs less and less, and a last norm is needed.
"""

# %%
for run in runs:
    if run["wiring"] == "pre":
        sigma = run["step 299"]["sigma"]
        print(f"pre-LN, deviation of the sum: first half {sigma[0]:.1f}, last half {sigma[-1]:.1f}")

# %% [markdown]
r"""
**BERT is post-LN**, with a warm-up of 10,000 steps and weights that start small (0.02). Its trained weights only make sense in
that wiring. (minibert has pre-LN as an option, for those who train from scratch.)

### Open: the same half, pre-LN

@exercise 10.pre_norm_backward

The three functions are the same as before, in another order:
"""


# %%
def pre_norm_block(x, up, down, norm, eps):
    """y = x + f(layer_norm(x)): x and y (B, S, H), (norm_cache, up_cache, down_cache)."""
    normalised, norm_cache = layer_norm(x, *norm, eps)
    wide, up_cache = linear_activation(normalised, *up, "gelu")  # (B, S, F)
    narrow, down_cache = linear(wide, *down)
    return x + narrow, (norm_cache, up_cache, down_cache)


# %% [markdown]
r"""
Draw the graph before you write. Where do the two paths of $x$ part now, and where do they meet? On the way back, what comes down the
residual connection, and what has it passed through?
"""

# %% [markdown] tags=["derivation"]
r"""
The paths part at $x$ itself, before the norm, and meet in the last step. So `dout` goes down the residual connection as it is. The other path leads
back through the second map, GELU and the first map, and then through the norm:

$$ dx = dy + \operatorname{LN}'\big(f'(dy)\big) . $$

In post-LN the norm comes after the sum, and both paths pass through it: $dx = ds + f'(ds)$ with $ds = \operatorname{LN}'(dy)$.
"""


# %% tags=["solution"]
def my_pre_norm_backward(dout, cache):
    """The gradients of pre_norm_block: dx, then those of W₁, b₁, W₂, b₂, γ, β, seven arrays.

    dout (B, S, H); cache = (norm_cache, up_cache, down_cache).
    """
    norm_cache, up_cache, down_cache = cache
    dwide, *ddown = linear_backward(dout, down_cache)  # (B, S, F), dW₂, db₂
    dnormalised, *dup = linear_activation_backward(dwide, up_cache)  # (B, S, H), dW₁, db₁
    dbranch, *dnorm = layer_norm_backward(dnormalised, norm_cache)  # (B, S, H), dγ, dβ
    return dout + dbranch, *dup, *ddown, *dnorm


# %%
check("10.pre_norm_backward", my_pre_norm_backward)

# %% [markdown]
r"""

## 6. Is the whole model right?

Every part has been checked by itself, but wiring mistakes show only in the whole. The library's own check takes a BERT of 2
layers with both pre-training heads, padded sequences, dropout on, and all parameters random. It moves **each of its numbers**
up and down a little:
"""

# %%
model = BertForPreTraining(CONFIG, dtype="float64")
Draws(resolve_device("cpu"), 10).randomise(model)
model.train()  # dropout on; the check starts its random bits anew before every forward pass
batch = BATCH | {"labels": LABELS, "next_sentence_label": NEXT_SENTENCE_LABEL}
names = [name for name, _ in model.named_parameters()][::-1]  # from the loss down
zeros = [name for name in names if "key.bias" in name]  # their derivative is 0: notebook 08
case = model_case("BERT", model, batch, zeros)

right = {row.parameter: row for row in compare_with_numeric(case)}
count = sum(parameter.size for _, parameter in model.named_parameters())
errors = [row.error for name, row in right.items() if name not in zeros]
print(f"{count:,} numbers in {len(right)} parameters, largest relative error {max(errors):.0e}")
assert all(row.ok for row in right.values())

# %% [markdown]
r"""
Now we put in a mistake, in layer 1 only: its attention half forgets to add the residual's
gradient. The check gives a result for every parameter, and that is worth more than one verdict for all:
"""

# %%
attention = model.bert.encoder.layer[1].attention


def forgets_the_residual(dout, cache):
    places, output_cache, self_cache = (cache.pop(attention) for _ in range(3))
    dcontext, _ = attention.output.backward(dout, output_cache)
    return attention.self.backward(places.put_back(dcontext), self_cache)


attention.backward = forgets_the_residual  # on this one object
wrong = {row.parameter: row for row in compare_with_numeric(case)}
del attention.backward
PARTS = ["cls", "pooler", "layer.1", "layer.0", "embeddings"]  # in the order of the backward pass
by_part = {
    part: [name for name in names if f"{part}." in name and name not in zeros] for part in PARTS
}
for part, members in by_part.items():
    print(f"{part:<11} {sum(not wrong[name].ok for name in members):2} of {len(members):2} wrong")
assert all(wrong[name].ok for part in PARTS[:3] for name in by_part[part])

# %% tags=["figure"]
# Caption: The error of each parameter's gradient, from the loss (left) to the embeddings (right).
#   The dashed line is the tolerance. The mistake shows only below the layer that makes it.
figure, axes = plt.subplots(figsize=(7.5, 3.0))
order = [name for members in by_part.values() for name in members]
for rows, colour, marker, label in (
    (right, plots.BLUE, "o", "the library"),
    (wrong, plots.VERMILION, "x", "residual forgotten"),
):
    heights = [max(rows[name].error, 1e-13) for name in order]
    axes.semilogy(heights, marker, color=colour, label=label, markersize=5)
axes.axhline(1e-7, color="black", linestyle="--", linewidth=1)
edges = np.cumsum([0, *(len(members) for members in by_part.values())]) - 0.5
for start, stop, part in zip(edges[:-1], edges[1:], PARTS, strict=True):
    axes.axvline(stop, color=plots.GREY, linewidth=0.6)
    axes.text((start + stop) / 2, 20, part, ha="center", fontsize=9)
axes.set(
    title="error of each parameter's gradient\n",
    xlabel="parameter, from the loss down",
    ylabel="error",
)
axes.set(xticks=[], ylim=(1e-13, 10), xlim=(edges[0], edges[-1]))
axes.legend(fontsize=9, loc="center left", bbox_to_anchor=(0.22, 0.6))
plt.show()

# %% [markdown]
r"""
Everything from the loss down to layer 1 is right, and everything below is wrong. **Read the table from the loss downwards, and
look just below the last part that is right**: at what layer 1 hands down to layer 0. (The word embeddings, last in the picture, get part of their
gradient at the top, as the decoder; so their error is smaller.)

### BERT on one page

Every step of pre-training, from the text to the loss, is on this page: its equation, the shape of its result, what its cache
keeps, and the gradient that comes back. ([Open it alone](../docs/images/poster.svg) to read it, or to print it.)

![BERT on one page: the forward pass from the text to the loss, and the backward pass beside it](../docs/images/poster.svg)

## 7. How do 110M and 340M parameters add up, matrix by matrix?

A layer with $F = 4H$ has this number of parameters:

$$
\underbrace{4 \, (H^2 + H)}_{q, k, v, \text{ output}}
+ \underbrace{(4H^2 + 4H)}_{\text{up}} + \underbrace{(4H^2 + H)}_{\text{down}}
+ \underbrace{4H}_{\text{two norms}} = 12 H^2 + 13 H .
$$

The heads do not appear ([09](09_many_heads.ipynb)). Around the layers there are $V + 512 + 2$ rows of embeddings with a norm, and the
pooler's $H^2 + H$. In all, this makes

$$ N = (V + 516) \, H + L \, (12 H^2 + 13 H) + H^2 + H . $$
"""

# %%
base, large = BertConfig.preset("base"), BertConfig.preset("large")


def account(config):
    """The numbers of each kind of matrix, with its bias, in all layers together."""
    sizes = {}
    for matrix in parameter_table(config):
        if matrix.part != "heads":
            kind = matrix.name.rpartition(".")[0].removeprefix("bert.")
            kind = kind.removeprefix(f"encoder.{matrix.part.replace(' ', '.')}.")
            sizes[kind] = sizes.get(kind, 0) + matrix.count
    return sizes


def formula(config):
    H, L = config.hidden_size, config.num_hidden_layers
    return (config.vocab_size + 516) * H + L * (12 * H**2 + 13 * H) + H**2 + H


of_base, of_large = account(base), account(large)
print(f"{'':<34}{'base':>12}{'':8}{'large':>12}")
for kind, size in of_base.items():
    print(f"{kind:<34}{size:12,} {size / formula(base):6.1%} {of_large[kind]:12,}")
print(f"{'sum':<34}{sum(of_base.values()):12,} {'':6} {sum(of_large.values()):12,}")
assert sum(of_base.values()) == formula(base) == 109_482_240
assert sum(of_large.values()) == formula(large) == 335_141_888

# %% [markdown]
r"""
That is where the **110 million** come from; the 335 million of "large" are what the paper rounds to **340 million**. The heads for pre-training
add little, as the decoder of masked words *is* the table of word embeddings ([11](11_heads_losses.ipynb)).
The table is not only theory. We can compare it with the model of section 6:
"""

# %%
counted = sum(matrix.count for matrix in parameter_table(CONFIG))
assert counted == sum(parameter.size for _, parameter in model.named_parameters())
print(f"the small model: {counted:,} by the table, {count:,} in its buffer")
for name, config in (("base", base), ("large", large)):
    print(f"{name} with its heads: {sum(matrix.count for matrix in parameter_table(config)):,}")


# %% tags=["figure"]
# Caption: The number of parameters is drawn as an area, to the same scale for both sizes. Each
#   column is a layer.
def draw(axes, config, left, ratio=1.6):
    """A rectangle whose area is the number of parameters, in millions, from ``left`` on."""
    height = np.sqrt(formula(config) / 1e6 / ratio)
    H2, position = config.hidden_size**2 / 1e6, left

    def column(parts):
        nonlocal position
        width, y = sum(size for size, _ in parts) / height, 0.0
        for size, colour in parts:
            block = plt.Rectangle((position, y), width, size / width, facecolor=colour)
            block.set(edgecolor="white", linewidth=0.6)
            axes.add_patch(block)
            y += size / width
        position += width

    column(
        [
            (
                sum(size for kind, size in account(config).items() if "embed" in kind) / 1e6,
                plots.ORANGE,
            )
        ]
    )
    for _ in range(config.num_hidden_layers):
        column([(H2, plots.BLUE)] * 4 + [(4 * H2, plots.GREEN)] * 2)
    column([(H2, plots.GREY)])
    return position, height


figure, axes = plt.subplots(figsize=(7.5, 3.4))
right_edge, height = draw(axes, base, 0.0)
axes.text(0, height + 0.4, "base: 109 million")
right_edge, height = draw(axes, large, right_edge + 1.5)
axes.text(right_edge, height + 0.4, "large: 335 million", ha="right")
names = "embeddings", "q, k, v, output: one block each", "feed-forward: up, down", "pooler"
handles = [
    plt.Rectangle((0, 0), 1, 1, color=c)
    for c in (plots.ORANGE, plots.BLUE, plots.GREEN, plots.GREY)
]
axes.legend(handles, names, fontsize=9, loc="upper left", bbox_to_anchor=(-0.02, 1.0))
axes.set(xlim=(0, right_edge), ylim=(0, height + 1.2), aspect="equal")
axes.axis("off")
plt.show()

# %% [markdown]
r"""
The feed-forward networks hold half of BERT-base, attention a quarter. The word
embeddings are a fifth of "base" and a tenth of "large": in "base", twice as many words would cost 23 million more, and
twice as many *positions* only 0.4 million. (The limit of 512 is not a matter of parameters, but of [$S^2$](08_attention.ipynb).)

## Recap

- A layer has two halves, each $\operatorname{LN}(x + f(x))$: attention, where tokens meet, and a network for each token alone.
- A sum hands its gradient to both terms; where the paths parted, the gradients are added: $dx = ds + f'(ds)$.
- Without residuals, tokens are alike after two layers, and nothing is learned.
- Post-LN divides what comes down the residuals by σ in every half; small branches or a warm-up keep that harmless. Pre-LN
  hands it down undiminished.
- $12H^2 + 13H$ per layer, two thirds of it feed-forward.

## What usually goes wrong

- **One gradient of two.** With only the residual's or only the branch's, the model still trains, but badly.
- **The residual's gradient taken for 1, or taken at the wrong place.** It is $ds$, not 1. In post-LN it is what comes *out* of the
  norm's backward pass, not `dout`.
- **Pre and post mixed up.** Trained weights then give nonsense, with no error.
- **One norm too few.** Post-LN has one after *each* half, and one after the embeddings; pre-LN one at the very end.
- **A high learning rate without warm-up.** Post-LN is damaged in the first ten steps, although the loss shows it only later. None of our
  three runs recovered.

## Three questions

Answer before you unfold.
"""

# %% [markdown]
r"""
<details>
<summary><b>1.</b> All weights and biases of a layer are 0, but γ = 1. What does it compute, in post-LN and in pre-LN?</summary>

Both branches return 0. Pre-LN: $y = x$. Post-LN: $y = \operatorname{LN}(x)$, which is $x$ again if $x$ came out of such a norm.
A stack with small weights begins by doing almost nothing, and that is a good place to start from.

</details>
"""

# %% [markdown]
r"""
<details>
<summary><b>2.</b> A gradient check of 12 layers says: the heads and layers 8 to 11 are right; in layer 7, the feed-forward half is right and
the attention half wrong; all below is wrong. Where do you look?</summary>

In layer 7, where the feed-forward half hands its gradient to the attention half: at the sum of the branch's gradient and the
residual's. If the backward pass of attention or of its norm were wrong, the parameters that come before the mistake on the way down,
such as the norm's γ and β, would still be right.

</details>
"""

# %% [markdown]
r"""
<details>
<summary><b>3.</b> MiniLM has 6 layers, H = 384, F = 1536, and BERT's vocabulary. How many parameters?</summary>

$(30522 + 516) \cdot 384 + 6 \, (12 \cdot 384^2 + 13 \cdot 384) + 384^2 + 384 = 22{,}713{,}216$. More than half are embeddings.

</details>
"""

# %% [markdown]
r"""
## Further reading

- Devlin and others, [BERT](https://arxiv.org/abs/1810.04805), 2018: the sizes of base and large are in section 3.
- He and others, [Deep residual learning for image recognition](https://arxiv.org/abs/1512.03385), 2015: the residual connection, and the problem that it solved.
- Xiong and others, [On layer normalization in the transformer architecture](https://arxiv.org/abs/2002.04745), 2020: why post-LN needs a warm-up and pre-LN does not.
- Liu and others, [Understanding the difficulty of training transformers](https://arxiv.org/abs/2004.08249), 2020: another explanation of the same difficulty.
- Elhage and others, [A mathematical framework for transformer circuits](https://transformer-circuits.pub/2021/framework/index.html), 2021: the residual stream as a channel that all layers read and write.

**Next:** [11 · Heads and losses](11_heads_losses.ipynb): what comes on top of the encoder.
The code of this notebook: [encoder.py](../minibert/bert/encoder.py), [info.py](../minibert/tasks/info.py),
[gradcheck](../minibert/gradcheck/__init__.py).
"""
