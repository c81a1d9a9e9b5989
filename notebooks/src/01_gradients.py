# %% [markdown]
r"""
# 01 · Gradients and checks

To train BERT is to ask one question, over and over, about every one of its millions of numbers: if this one were a
little larger, would the loss rise or fall, and how fast? The answers are the gradient. In this project every line that
computes them is written by hand. So you have to know how to derive such a line, and how to find out whether it is wrong.

**You will** walk the chain rule backwards through a small graph · see where gradients add up · write the backward pass of
broadcasting · write a numeric gradient · choose its step and its tolerance with good reason · catch wrong gradients, and
see which tests cannot catch them.

**Before this:** [00 · Start here](00_start_here.ipynb); derivatives at school level, and NumPy.
**Time:** 75 minutes with the exercises; it runs in seconds.

| letter | in this notebook |
|---|---|
| `B`, `S` | sequences in a batch, tokens in a sequence |
| `H` | hidden size: how many numbers describe a token |
| *row* | the `H` numbers of one token |
"""

# %%
import inspect

import matplotlib.pyplot as plt
import numpy as np

from minibert import BertConfig, BertForPreTraining, check, plots
from minibert.course.exercise import EXERCISES
from minibert.devices import resolve_device
from minibert.gradcheck import CENTRAL_DIFFERENCES, COMPLEX_STEP, function_case, report
from minibert.gradcheck import check as compare_with_numeric
from minibert.ops.activations import gelu, gelu_backward, tanh, tanh_backward
from minibert.ops.composites import embed_backward
from minibert.ops.layer_normalisation import layer_norm, layer_norm_backward
from minibert.ops.linear_map import linear, linear_backward
from minibert.ops.stable_softmax import softmax, softmax_backward
from minibert.proofs import operation_cases

plots.notebook_style()
np.set_printoptions(precision=3, suppress=True)
rng = np.random.default_rng(1)

# %% [markdown]
r"""
## 1. One number of a BERT

Here is a small BERT that has learned nothing yet. Its task is to guess the hidden word in *hello [MASK] !*, and its loss
says how bad the guess is. Move **one** of its 4.4 million numbers, and watch the loss.
"""

# %%
model = BertForPreTraining(BertConfig.preset("tiny"), dtype="float64", seed=0)
model.eval()
batch = {
    "input_ids": [[101, 7592, 103, 999, 102]],  # [CLS] hello [MASK] ! [SEP]
    "labels": [[-100, -100, 2088, -100, -100]],  # the hidden word is "world"
}
parameters = dict(model.named_parameters())
count = sum(parameter.size for parameter in parameters.values())
bias = parameters["cls.predictions.transform.dense.bias"]

moves = np.linspace(-2, 2, 41)
losses = []
for move in moves:
    bias.value[0] = move  # it was 0
    losses.append(float(model.forward(**batch)[0].loss))
bias.value[0] = 0.0
print(f"{count:,} numbers")

# %% [markdown]
r"""
How steep is that curve at 0? There are two ways to find out: move the number a little and divide, or call `backward`.
"""

# %%
bias.value[0] = 1e-5
above = model.forward(**batch)[0].loss
bias.value[0] = -1e-5
below = model.forward(**batch)[0].loss
bias.value[0] = 0.0

outputs, cache = model.forward(**batch)
model.backward(cache)
print(f"moved:    {(above - below) / 2e-5:.8f}")
print(f"backward: {bias.grad[0]:.8f}")
assert np.isclose((above - below) / 2e-5, bias.grad[0])

# %% tags=["figure"]
# Caption: Near the number's own value, the loss follows the slope that was computed by hand.
figure, axes = plt.subplots(figsize=(7.0, 3.1))
axes.plot(moves, losses, label="the loss")
near = np.array([-0.9, 0.9])
slope, here = bias.grad[0], float(outputs.loss)
axes.plot(
    near, here + slope * near, "--", color=plots.VERMILION, label=f"slope {slope:.4f}, by hand"
)
axes.plot(0, here, "o", color=plots.VERMILION)
axes.set(title="one number of BERT moves", xlabel="its value", ylabel="loss (nats)")
axes.legend()
plt.show()

# %% [markdown]
r"""
Both find the same slope. The first way costs two forward passes per number, 8.9 million for this small model.
The second way, `backward`, has answered for **all of them at once**, with about the work of two forward passes
([02](02_linear.ipynb) counts it). So we train with the second and *check* with the first.

From here on, $dx$ is short for $\partial L / \partial x$: how the loss $L$ moves when $x$ does.

## 2. The chain rule, walked backwards

Here is a graph with four steps, in plain numbers. It has an input $x$, a weight $w$, and a target $t$ that the result $c$
should come close to. (Step 3 adds $x$ to something computed from $x$. That is a **residual connection**; BERT has two of
them in each layer.)

| | forward | derivative of the step |
|---|---|---|
| 1 | $a = w x$ | $\partial a / \partial w = x, \quad \partial a / \partial x = w$ |
| 2 | $b = \tanh a$ | $\partial b / \partial a = 1 - b^2$ |
| 3 | $c = b + x$ | $\partial c / \partial b = 1, \quad \partial c / \partial x = 1$ |
| 4 | $L = \tfrac12 (c - t)^2$ | $\partial L / \partial c = c - t$ |
"""

# %%
w, x, t = 1.5, 0.8, 0.5
a = w * x
b = np.tanh(a)
c = b + x
L = 0.5 * (c - t) ** 2
print(f"a = {a:.3f}   b = {b:.3f}   c = {c:.3f}   L = {L:.3f}")

# %% tags=["figure"]
# Caption: The forward pass. Each box holds a value, and each arrow says what is done with it.
NODES = {"w": (0, 1), "x": (0, 0), "a": (1.5, 1), "b": (3, 1), "c": (4.4, 0), "L": (6, 0)}
VALUES = {"w": w, "x": x, "a": a, "b": b, "c": c, "L": L}


def labelled(names, values):
    """The same names, each with its value below."""
    return {
        name: f"{label}\n{value:.3f}"
        for name, label, value in zip(NODES, names, values, strict=True)
    }


FORWARD = [
    ("w", "a", "× x"),
    ("x", "a", "× w"),
    ("a", "b", "tanh"),
    ("b", "c", "+"),
    ("x", "c", "+"),
]
FORWARD += [("c", "L", "½ (c − t)²")]
label = labelled(VALUES, VALUES.values())
figure, axes = plt.subplots(figsize=(7.5, 2.3))
nodes = {label[name]: place for name, place in NODES.items()}
plots.graph(axes, nodes, [(label[start], label[end], text) for start, end, text in FORWARD])
figure.set_label(
    "A computation graph forwards: w 1.5 and x 0.8 are multiplied and give a 1.2, tanh gives b "
    "0.834, which is added to x to give c 1.634, and half of (c − t) squared is the loss "
    "0.643"
)
plt.show()

# %% [markdown]
r"""
Now we go from the end to the beginning. Each step is handed the gradient of *its output*, multiplies it by its own
derivative, and passes the product on to *its inputs*. It need not know what comes after it.

$$
\begin{aligned}
dL &= 1 && \text{how } L \text{ moves with itself} \\
dc &= dL \, (c - t) && \text{step 4} \\
db &= dc \cdot 1, \qquad dx \mathrel{+}= dc \cdot 1 && \text{step 3} \\
da &= db \, (1 - b^2) && \text{step 2} \\
dw &= da \; x, \qquad dx \mathrel{+}= da \; w && \text{step 1}
\end{aligned}
$$

**Why the `+=`?** $x$ was used twice, so it moves $L$ in two ways. For a small move $\delta$ of $x$,
step 1 contributes $da \; w \, \delta$ and step 3 contributes $dc \, \delta$.
*Where two arrows leave a node, their gradients are added.* Forgetting that is a classic mistake.
"""

# %%
dL = 1.0
dc = dL * (c - t)
db, dx = dc, dc
da = db * (1 - b * b)
dw = da * x
dx += da * w
print(f"dw = {dw:.6f}   dx = {dx:.6f}")

# %% tags=["figure"]
# Caption: The backward pass of the same graph. Two arrows arrive at dx, and what they bring is added.
BACKWARD = [("L", "c", "c − t"), ("c", "b", "× 1"), ("c", "x", "× 1"), ("b", "a", "× (1 − b²)")]
BACKWARD += [("a", "w", "× x"), ("a", "x", "× w")]
label = labelled(["dw", "dx", "da", "db", "dc", "dL"], [dw, dx, da, db, dc, dL])
figure, axes = plt.subplots(figsize=(7.5, 2.3))
nodes = {label[name]: place for name, place in NODES.items()}
arrows = [(label[start], label[end], text) for start, end, text in BACKWARD]
plots.graph(axes, nodes, arrows, colour=plots.VERMILION)
figure.set_label(
    "The same graph backwards: dL 1 becomes dc 1.134 and db 1.134, da 0.346, dw 0.277, "
    "and dx 1.652, in which two paths are added"
)
plt.show()

# %% [markdown]
r"""
This is the same graph with its arrows turned around, and two of them arrive at $dx$. Check both results by moving $w$ and $x$:
"""


# %%
def loss_of(w, x):
    return 0.5 * (np.tanh(w * x) + x - t) ** 2


numeric_dw = (loss_of(w + 1e-5, x) - loss_of(w - 1e-5, x)) / 2e-5
numeric_dx = (loss_of(w, x + 1e-5) - loss_of(w, x - 1e-5)) / 2e-5
print(f"dw = {numeric_dw:.6f}   dx = {numeric_dx:.6f}   (moved)")
assert np.isclose(dw, numeric_dw) and np.isclose(dx, numeric_dx)

# %% [markdown]
r"""
## 3. Forward and backward, a pair

In the library, a step of such a graph is a pair of functions. The forward pass returns its result and a **cache**, which holds
what the backward pass will need. The backward pass gets `dout`, the gradient of that result, and returns the gradient of each
input. Here is step 2.
"""

# %%
print(inspect.getsource(tanh))
print(inspect.getsource(tanh_backward))

# %% [markdown]
r"""
Both functions work on arrays, for which the chain rule says the following. If $y_i$ are the outputs of a step and $x_j$ its
inputs,

$$ dx_j = \sum_i dy_i \, \frac{\partial y_i}{\partial x_j} . $$

This is the `+=` again. The matrix of all $\partial y_i / \partial x_j$ is called the **Jacobian** $J$, and the formula reads
$dx = J^\top dy$. Nobody stores this matrix (for a million inputs and a million outputs, it would have $10^{12}$ numbers). A
backward pass is a short way to compute $J^\top dy$.

Here are three steps on four numbers, and their Jacobians:
"""

# %%
four, one = rng.standard_normal(4), np.ones(1)
STEPS = {
    "tanh of each": (np.tanh, four),
    "sum of four": (lambda x: x.sum(keepdims=True), four),
    "four copies of one": (lambda x: np.broadcast_to(x, 4), one),
}


def jacobian(f, x):
    columns = [(f(x + step) - f(x - step)) / 2e-5 for step in 1e-5 * np.eye(x.size)]
    return np.stack(columns, axis=1)  # (outputs, inputs)


jacobians = {name: jacobian(f, x) for name, (f, x) in STEPS.items()}
for name, matrix in jacobians.items():
    print(f"{name:<20} {matrix.shape}")
copies, total = jacobians["four copies of one"], jacobians["sum of four"]
assert np.allclose(copies, total.T) and np.allclose(copies, 1)

# %% tags=["figure"]
# Caption: Three Jacobians: row i is an output, column j an input. The second is the transpose of
#   the third.
figure, panels = plt.subplots(1, 3, figsize=(7.5, 2.6))
for panel, (name, matrix) in zip(panels, jacobians.items(), strict=True):
    plots.heatmap(panel, matrix, digits=2, limit=1.5)
    panel.set(title=name, xlabel="input j", ylabel="output i")
plt.show()

# %% [markdown]
r"""
A function that acts on each element by itself has a diagonal Jacobian, so its backward pass is an elementwise multiplication.
The other two Jacobians are **each other's transpose**, so each step is the backward pass of the other: *what was copied is
summed on the way back, and what was summed is copied.*

## 4. Why does a bias gradient sum over the batch?

A bias $\beta$ of shape `(H,)` is added to every row of $x$, of shape `(B, S, H)`. That works because NumPy **broadcasts**:
it acts as if there were $B \cdot S$ copies of $\beta$. With the indices written out,

$$
y_{bsh} = x_{bsh} + \beta_h
\quad\Longrightarrow\quad
\frac{\partial y_{bsh}}{\partial \beta_k} = \delta_{hk}
\quad\Longrightarrow\quad
d\beta_k = \sum_{b,s,h} dy_{bsh} \, \delta_{hk} = \sum_{b,s} dy_{bsk} .
$$

($\delta_{hk}$ is 1 if $h = k$, else 0.) To see it, move $\beta_1$ and look at what moves in $y$.
"""

# %%
B, S, H = 2, 3, 5
x, beta = rng.standard_normal((B, S, H)), rng.standard_normal(H)
dout = rng.standard_normal((B, S, H))

step = np.zeros(H)
step[1] = 1e-5
moved = ((x + (beta + step)) - (x + (beta - step))) / 2e-5  # (B, S, H): ∂y/∂β₁
numeric = (moved * dout).sum()
dbeta = dout.sum(axis=(0, 1))  # (H,)

print(f"numeric {numeric:.6f}   sum {dbeta[1]:.6f}   mean {dout.mean(axis=(0, 1))[1]:.6f}")
assert np.isclose(numeric, dbeta[1])

# %% tags=["figure"]
# Caption: Left: the numbers of y that move with β₁. Right: its gradient is the sum of the same
#   column of dout.
figure, panels = plt.subplots(1, 2, figsize=(7.5, 3.4), width_ratios=[1, 1])
plots.heatmap(panels[0], moved.reshape(-1, H), digits=0, limit=2.5)
panels[0].set_title("β₁ moves: what moves in y")
plots.heatmap(panels[1], np.vstack([dout.reshape(-1, H), dbeta]), digits=1, limit=4.0)
panels[1].set_title("dout, and below it the sums: dβ")
panels[1].axhline(B * S - 0.5, color="black", linewidth=2)
ROWS = [f"sequence {b}, token {s}" for b in range(B) for s in range(S)]
panels[0].set_yticks(range(B * S), ROWS, fontsize=9)
panels[1].set_yticks(range(B * S + 1), [*range(B * S), "dβ"], fontsize=9)
for panel in panels:
    panel.set_xlabel("feature h")
plt.show()

# %% [markdown]
r"""
The whole column moves. So $d\beta_1$ is the sum of column 1 of `dout`, over **all** sequences and tokens.

Why not the mean? Because every copy moves the loss in full. If the *loss* is a mean over $n$ tokens, its $1/n$ is
already in `dout`, and to divide again would be to divide twice.

### The general rule

NumPy lines up the two shapes at their **ends**, and copies in two cases:

| shape of $x$ | into | what NumPy does |
|---|---|---|
| `(5,)` | `(3, 4, 5)` | puts axes in front |
| `(3, 1, 5)` | `(3, 4, 5)` | stretches an axis of size 1 |
| `(4, 1)` | `(3, 4, 5)` | both |

## 5. Your turn: take a broadcast back

@exercise 01.unbroadcast

The bias was the first row of this table. Write the gradient for all rows: given the gradient of the broadcast array and the shape
that $x$ had, what is the gradient of $x$? Note that $dx$ always has the shape of $x$. That is half of the solution.

`check` compares each of your results with the library's and with a numeric gradient (section 6). It prints the largest
error of a single number, and the error of the whole array relative to its size (section 8). If something is wrong, it names the
mistake or gives a hint.
"""

# %% [markdown] tags=["derivation"]
r"""
Each number of $x$ was copied, and its gradient is the sum over its copies:

- **Axes put in front** hold copies of all of $x$. Sum over them; they vanish, since $x$ did not have them.
- **A stretched axis** holds copies of one entry. Sum over it with `keepdims=True`; it stays, with size 1, since $x$ had it.

Counted from the end, the axes of both shapes correspond. So there are `dout.ndim - len(shape)` axes in front. Once they are gone,
axis $i$ of what is left is axis $i$ of $x$.
"""


# %% tags=["solution"]
def my_unbroadcast(dout, shape):
    """The gradient of x, when y = np.broadcast_to(x, dout.shape) and x has this shape.

    dout: the gradient of y. Returns an array of the given shape; that may be (), a single number.
    """
    in_front = tuple(range(dout.ndim - len(shape)))
    dx = dout.sum(axis=in_front)
    stretched = tuple(axis for axis, size in enumerate(shape) if size == 1)
    return dx.sum(axis=stretched, keepdims=True)


# %%
check("01.unbroadcast", my_unbroadcast)

# %% [markdown]
r"""
The library's functions know which axes were broadcast, and sum over just those. Here are the lines for a linear layer's bias
and for the position vectors, which all sequences share:
"""

# %%
for backward in (linear_backward, embed_backward):
    for line in inspect.getsource(backward).splitlines():
        if ".sum(axis=0)" in line:
            print(f"{backward.__name__}: {line.strip()}")

# %% [markdown]
r"""
## 6. The numeric gradient

You have used it all along: move a number to both sides, and divide.

$$ \frac{\partial L}{\partial x} \approx \frac{L(x + h) - L(x - h)}{2h} $$

**Why to both sides?** Write down the Taylor series for both:

$$
L(x \pm h) = L \pm h L' + \tfrac{h^2}{2} L'' \pm \tfrac{h^3}{6} L''' + \dots
$$

With a step to one side, $L$ cancels and $L''$ remains. With steps to both sides, all even terms cancel:

$$
\frac{L(x + h) - L(x)}{h} = L' + \tfrac{h}{2} L'' + \dots
\qquad\qquad
\frac{L(x + h) - L(x - h)}{2h} = L' + \tfrac{h^2}{6} L''' + \dots
$$

Should $h$ be tiny, then? No: a computer rounds. In float64 each value of $L$ is off by up to $\tfrac12 \epsilon \lvert L \rvert$,
with $\epsilon = 2.2 \cdot 10^{-16}$. So the difference of two values is off by up to $\epsilon \lvert L \rvert$, however small the
difference itself is, and this error is divided by $2h$. Altogether, with steps to both sides:

$$ E(h) \approx \tfrac{h^2}{6} \lvert L''' \rvert + \frac{\epsilon \lvert L \rvert}{2h} . $$

The first term wants a small step, the second a large one. The best step is where $E'(h) = 0$:

$$
\tfrac{h}{3} \lvert L''' \rvert = \frac{\epsilon \lvert L \rvert}{2h^2}
\quad\Longrightarrow\quad
h = \sqrt[3]{\tfrac32 \, \epsilon \, \lvert L \rvert / \lvert L''' \rvert} .
$$

Take $e^x$, which is its own derivative, so that $L = L' = L'' = L'''$ and the relative error is $h^2/6 + \epsilon/2h$.
"""


# %%
def error_of(difference, dtype, h):
    x = np.linspace(0, 1, 200).astype(dtype)
    numeric, right = difference(x, dtype(h)), np.exp(x.astype(np.float64))
    return np.linalg.norm(numeric - right) / np.linalg.norm(right)


def to_one_side(x, h):
    return (np.exp(x + h) - np.exp(x)) / h


def to_both_sides(x, h):
    return (np.exp(x + h) - np.exp(x - h)) / (2 * h)


steps = 10.0 ** np.arange(-12, 0.01, 0.25)
CURVES = {
    "float64, to one side": (to_one_side, np.float64, plots.ORANGE),
    "float64, to both sides": (to_both_sides, np.float64, plots.BLUE),
    "float32, to both sides": (to_both_sides, np.float32, plots.VERMILION),
}
curves = {
    name: np.array([error_of(difference, dtype, h) for h in steps])
    for name, (difference, dtype, _) in CURVES.items()
}
for dtype in (np.float64, np.float32):
    best = (1.5 * np.finfo(dtype).eps) ** (1 / 3)
    measured = steps[curves[f"{dtype.__name__}, to both sides"].argmin()]
    error = best**2 / 6 + np.finfo(dtype).eps / (2 * best)
    print(f"{dtype.__name__}: best step {best:.0e} by the formula, error {error:.0e};", end=" ")
    print(f"measured best near {measured:.0e}")
    assert best / 4 < measured < best * 4

# %% tags=["figure"]
# Caption: Two errors pull in opposite directions. Over a large step the function bends; a small
#   step loses digits. The best step lies in between.
figure, axes = plt.subplots(figsize=(7.5, 3.8))
for name, (_, _, colour) in CURVES.items():
    axes.loglog(steps, curves[name], color=colour, label=name)
for dtype in (np.float64, np.float32):
    axes.loglog(
        steps, steps**2 / 6 + np.finfo(dtype).eps / (2 * steps), ":", color="black", linewidth=1.2
    )
axes.plot([], [], ":", color="black", label="h²/6 + ε/2h")
axes.axvline(1e-5, color=plots.GREY, linestyle="--", linewidth=1)
axes.text(1.2e-5, 4, "h = 10⁻⁵", color=plots.GREY, fontsize=9.5)
axes.set(title="the numeric gradient of eˣ", xlabel="step h", ylabel="relative error")
axes.set_ylim(3e-12, 30)
axes.legend(loc="lower left", fontsize=9.5, bbox_to_anchor=(0.0, 0.0))
plt.show()

# %% [markdown]
r"""
Each curve is a valley, with rounding on its left and Taylor's remainder on its right. The formula (dotted) tells where the
bottom is. With steps to both sides in float64, $h = 10^{-5}$ lies at the bottom and gives ten correct digits. A step to one
side never gives more than eight. Float32 never gives more than five, and at $h = 10^{-5}$ it gives two, because $\epsilon / 2h$
is $6 \cdot 10^{-3}$ there.

## 7. Your turn: a numeric gradient

@exercise 01.numeric_grad

Now do it for an array: `f` gets all of `x` and returns one number. Find the derivative with respect to each number of `x`, with a
step of `h` to both sides. Move one number at a time and leave the others as they are.
"""


# %% tags=["solution"]
def my_numeric_grad(f, x, h):
    """The numeric gradient of f at x, to both sides: an array of the shape of x.

    f: a function of an array that returns a single number. x: float64, any shape; not to be changed.
    """
    gradient = np.empty_like(x)
    for index in np.ndindex(*x.shape):
        above, below = x.copy(), x.copy()
        above[index] += h
        below[index] -= h
        gradient[index] = (f(above) - f(below)) / (2 * h)
    return gradient


# %%
check("01.numeric_grad", my_numeric_grad)

# %% [markdown]
r"""
(With $h = 0.1$ even the right answer *is* off: by $h^2$ for cubes.)

What if the result is an array, too? Then there is no loss to watch, so we make one: draw a **random** $dy$ and take
$L = \sum_i dy_i \, y_i$. It is the simplest loss whose gradient with respect to $y$ is $dy$. A backward pass learns nothing
about the loss except `dout`, so it cannot tell this loss from any other with the same gradient. The library's own checker works
like this:
"""

# %%
rows = rng.standard_normal((2, 3))
[verdict] = compare_with_numeric(function_case("tanh", tanh, tanh_backward, {"x": rows}))
print(verdict)
assert verdict.ok

# %% [markdown]
r"""
## 8. What tolerance should a gradient check use, and why does float32 fail?

First, tolerance of *what*? The meaning of an absolute bound ("no element is off by more than $10^{-4}$") depends on how large
the gradients happen to be. Here is a gradient that is 30 % too large, for `dout` of several sizes.
"""

# %%
print("size of dout   largest difference   ‖a − n‖ / (‖a‖ + ‖n‖)")
for size in (1.0, 1e-2, 1e-4):
    right = tanh_backward(size * dout, (np.tanh(x),))
    wrong = 1.3 * right
    relative = np.linalg.norm(wrong - right) / (np.linalg.norm(wrong) + np.linalg.norm(right))
    print(f"{size:<15.0e}{np.abs(wrong - right).max():<21.0e}{relative:.2f}")
assert np.abs(wrong - right).max() < 1e-4 < relative

# %% [markdown]
r"""
In the last row, the absolute bound lets the mistake through. So the difference has to be measured against the gradient itself,
over *all* elements of an array together:

$$ \frac{\lVert a - n \rVert}{\lVert a \rVert + \lVert n \rVert} $$

where $a$ is the gradient by hand and $n$ the numeric one. This is 0 if they are equal, and 1 if one of them is zero or they
point in opposite directions.

**Next, which bound?** That depends on how far off *right* gradients are, and how far off *wrong* ones are. We take as right ones
those of every operation in the library and of the solutions in this course, and as wrong ones every mistake that the course's
exercises recognise.
"""


# %%
def relative_error(a, n):
    size = np.linalg.norm(a) + np.linalg.norm(n)
    return np.linalg.norm(a - n) / size if size else 0.0


def errors_of(exercise, answers):
    """How far answers to an exercise are from the numeric gradient; 1 if the shape is wrong."""
    for trial, answer in zip(exercise.trials, answers, strict=True):
        for name, gradient in zip(exercise.outputs, answer, strict=True):
            if name in trial.independent:
                numeric = trial.independent[name]
                same_shape = np.shape(gradient) == numeric.shape
                yield relative_error(gradient, numeric) if same_shape else 1.0


cpu = resolve_device("cpu")
verdicts = [row for case in operation_cases(cpu) for row in compare_with_numeric(case)]
right_ones, wrong_ones = [row.error for row in verdicts if not row.note], []
for exercise in EXERCISES.values():
    if exercise.independent != "numeric":
        continue  # it is not about a gradient
    right_ones += errors_of(exercise, exercise.expected)
    for _, answers in exercise.mistaken:  # what somebody who makes this mistake returns
        if errors := list(errors_of(exercise, answers)):
            wrong_ones.append(max(errors))

print(f"the worst of the right ones: {max(right_ones):.0e}")
print(f"the best of the wrong ones:  {min(wrong_ones):.0e}")
assert max(right_ones) < 1e-7 < 1e-4 < min(wrong_ones)

# %% [markdown]
r"""
And in float32? Take some of the same correct functions, computed in float32 from input to output, with $h = 10^{-5}$ and with
$h = 5 \cdot 10^{-3}$, which was about the best step for $e^x$. One of the inputs is small: it is what the new BERT above feeds to
its first LayerNorm.
"""

# %%
B, S, H = 2, 3, 6
x, vector = rng.standard_normal((B, S, H)), rng.standard_normal(H)
weight, bias = rng.standard_normal((5, H)), rng.standard_normal(5)

names = (f"bert.embeddings.{kind}_embeddings.weight" for kind in ("word", "position", "token_type"))
words, positions, types = (parameters[name].value for name in names)
small = (words[batch["input_ids"]] + positions[:5] + types[0])[..., :H]  # (1, 5, H)
print(f"standard deviation of the small input: {small.std():.3f}")


def norm(x, gamma, beta):
    return layer_norm(x, gamma, beta, 1e-12)


PAIRS = [
    (linear, linear_backward, [x, weight, bias]),
    (softmax, softmax_backward, [x]),
    (gelu, gelu_backward, [x]),
    (norm, layer_norm_backward, [x, vector, vector]),
    (norm, layer_norm_backward, [small, vector, vector]),
]


def errors_in(dtype, h, forward, backward, inputs):
    inputs = [array.astype(dtype) for array in inputs]
    y, cache = forward(*inputs)
    dout = rng.standard_normal(y.shape).astype(dtype)
    gradients = backward(dout, cache)
    gradients = gradients if isinstance(gradients, tuple) else (gradients,)
    for array, gradient in zip(inputs, gradients, strict=True):
        numeric = np.empty_like(array)
        for index, value in np.ndenumerate(array):
            losses = []
            for move in (dtype(h), dtype(-h)):
                array[index] = value + move
                losses.append((forward(*inputs)[0] * dout).sum())
            array[index] = value
            numeric[index] = (losses[0] - losses[1]) / dtype(2 * h)
        yield relative_error(gradient, numeric)


found = {}
for dtype, h in ((np.float64, 1e-5), (np.float32, 5e-3), (np.float32, 1e-5)):
    errors = [error for pair in PAIRS for error in errors_in(dtype, h, *pair)]
    found[dtype, h] = errors
    print(f"{dtype.__name__}, h = {h:.0e}: right gradients are off by up to {max(errors):.0e}")
assert max(found[np.float64, 1e-5]) < 1e-7 < min(wrong_ones) < max(found[np.float32, 5e-3])

# %% tags=["figure"]
# Caption: Each dot is a gradient check. In float64, right gradients lie far below wrong ones; in
#   float32, the two overlap.
KINDS = {
    "right, float64": (right_ones + found[np.float64, 1e-5], plots.BLUE),
    "right, float32, h = 5·10⁻³": (found[np.float32, 5e-3], plots.SKY),
    "right, float32, h = 10⁻⁵": (found[np.float32, 1e-5], plots.SKY),
    "wrong": (wrong_ones, plots.VERMILION),
}
figure, axes = plt.subplots(figsize=(7.5, 2.9))
for y, (errors, colour) in enumerate(KINDS.values()):
    heights = y + 0.22 * np.sin(
        7.0 * np.arange(len(errors))
    )  # side by side, not on top of each other
    axes.scatter(errors, heights, s=16, color=colour)
axes.axvline(1e-7, color="black", linestyle="--", linewidth=1.2)
axes.text(1.3e-7, -0.5, "the bound, 10⁻⁷", fontsize=9.5, va="center")
axes.set_xscale("log")
axes.set_yticks(range(len(KINDS)), KINDS)
axes.invert_yaxis()
axes.grid(False, axis="y")
axes.set(title="how far off gradients are", xlabel="‖a − n‖ / (‖a‖ + ‖n‖)")
plt.show()

# %% [markdown]
r"""
In float64, right and wrong gradients lie far apart. Any bound between $2 \cdot 10^{-8}$ and $2 \cdot 10^{-4}$ would do; the
library takes $10^{-7}$. In float32 they **overlap**: no bound lets the right ones pass and keeps the wrong ones out. A
larger step helps only as long as the function does not bend within that step: the dot at $2 \cdot 10^{-3}$ is the LayerNorm
with small inputs. A check in float32 needs a bound so wide that wrong gradients pass, too.

So: **float64, $h = 10^{-5}$, relative error by norm, $10^{-7}$.**

## 9. When does a check pass although the gradient is wrong?

The other way to fool yourself is to check at a point where the mistake does not show. Take a toy with four parts, each
of which has its own notebook later: look up a row for each token, scale it by γ, apply dropout (multiply by a random mask of zeros and twos),
then take the softmax. Here is its backward pass, with four mistakes that can be switched on.
"""


# %%
def toy(table, gamma, ids, keep):
    embedded = table[ids]  # (B, S, H)
    y, _ = softmax(embedded * gamma * keep)  # (B, S, H)
    return y, (y, table, embedded, gamma, ids, keep)


def toy_backward(dout, cache, mistake=""):
    y, table, embedded, gamma, ids, keep = cache
    d = softmax_backward(dout, (y,))  # (B, S, H)
    if mistake != "no dropout on the way back":
        d = d * keep
    dgamma = (d * embedded).sum(axis=(0, 1))  # (H,)
    if mistake == "mean over the sequences":
        dgamma = dgamma / len(dout)
    if mistake != "γ forgotten":
        d = d * gamma
    dtable = np.zeros_like(table)  # (V, H)
    if mistake == "repeated token, = for +=":
        dtable[ids] = d
    else:
        np.add.at(dtable, ids, d)
    return dtable, dgamma


MISTAKES = [
    "repeated token, = for +=",
    "γ forgotten",
    "mean over the sequences",
    "no dropout on the way back",
]

# %% [markdown]
r"""
Each test sets up the toy in its own way. The last is the proper one: everything random, two sequences, a token twice,
dropout on.
"""


# %%
def toy_error(mistake, ids=((3, 1, 3), (0, 1, 5)), sequences=2, gamma=None, keep=None, dout=None):
    rng = np.random.default_rng(9)
    ids = np.array(ids)[:sequences]  # (B, S)
    shape = (*ids.shape, 4)
    table = rng.standard_normal((7, 4))
    gamma = rng.standard_normal(4) if gamma is None else np.full(4, gamma)
    keep = 2.0 * rng.integers(2, size=shape) if keep is None else np.full(shape, keep)
    dout = rng.standard_normal(shape) if dout is None else np.full(shape, dout)
    _, cache = toy(table, gamma, ids, keep)
    pair = toy_backward(dout, cache, mistake), toy_backward(dout, cache)
    wrong, right = (
        np.concatenate([gradient.ravel() for gradient in gradients]) for gradients in pair
    )
    return relative_error(wrong, right) if np.linalg.norm(right) > 1e-12 else 0.0


TESTS = {
    "no token\ntwice": {"ids": ((3, 1, 2), (0, 4, 5))},
    "γ = 1": {"gamma": 1.0},
    "B = 1": {"sequences": 1},
    "dropout\noff": {"keep": 1.0},
    "dout = 1": {"dout": 1.0},
    "proper": {},
}
errors = np.array([[toy_error(mistake, **test) for test in TESTS.values()] for mistake in MISTAKES])
assert (errors[:, -1] > 0.01).all()  # the proper test sees every mistake …
assert (errors[:, :-1].min(axis=0) == 0).all()  # … and each of the others misses at least one

# %% tags=["figure"]
# Caption: How far each wrong gradient (rows) is from the right one, as each test (columns) sees it.
#   At 0.00 the test calls it right.
figure, axes = plt.subplots(figsize=(7.2, 2.9))
plots.heatmap(axes, errors, digits=2)
axes.set_aspect("auto")
axes.set_xticks(range(len(TESTS)), TESTS)
axes.set_yticks(range(len(MISTAKES)), MISTAKES)
axes.xaxis.tick_top()
plt.show()

# %% [markdown]
r"""
Every 0.00 is a wrong gradient that a test has called right. If all tokens are different, `=` is as good as `+=`. If γ = 1,
leaving it out changes nothing. With one sequence, a mean is a sum.

And a `dout` of ones ("just sum the output") misses **everything**. The rows of a softmax always sum to 1, so the true gradient
is 0. Multiplied by anything it stays 0, and the test cannot fail.
[05 · LayerNorm](05_layer_norm.ipynb#7.-When-does-a-check-pass-although-the-gradient-is-wrong?) meets the same traps.

## 10. Beyond ten digits: the complex step

Central differences stop at ten digits, because they subtract:
"""


# %%
def f(x):
    return np.exp(x) * np.sin(x)


x, h = 2.0, 1e-5
exact = np.exp(x) * (np.sin(x) + np.cos(x))
print(f"f(x + h) = {f(x + h):.15f}")
print(f"f(x − h) = {f(x - h):.15f}")
print(f"found: {(f(x + h) - f(x - h)) / (2 * h):.15f}")
print(f"exact: {exact:.15f}")

# %% [markdown]
r"""
The leading digits are equal and cancel. So take the step where nothing has to be subtracted, along the imaginary axis:

$$ (x + ih)^3 = \underbrace{x^3 - 3 x h^2}_{\approx\, f(x)} + i h \, \underbrace{(3 x^2 - h^2)}_{\approx\, f'(x)}
\qquad\text{and in general}\qquad
f'(x) = \frac{\operatorname{Im} f(x + ih)}{h} + \tfrac{h^2}{6} f'''(x) - \dots $$

The value is in the real part and the derivative in the imaginary part. They never meet, and $h$ may be as small as we like.
"""

# %%
print("h         to both sides   complex step")
for h in (1e-2, 1e-5, 1e-8, 1e-11, 1e-200):
    both_sides = (f(x + h) - f(x - h)) / (2 * h)
    complex_step = f(x + h * 1j).imag / h
    errors = [abs(found / exact - 1) for found in (both_sides, complex_step)]
    print(f"{h:<10.0e}{errors[0]:<16.0e}{errors[1]:.0e}")
assert errors[1] < 1e-15

# %% [markdown]
r"""
At $h = 10^{-200}$, the computer rounds $x + h$ to $x$, but the imaginary part still has all its digits. The method works for
a whole BERT, if its parameters are complex. Here is the slope of section 1 once more:
"""

# %%
twin = BertForPreTraining(BertConfig.preset("tiny"), dtype="complex128", seed=0)
twin.eval()
name = "cls.predictions.transform.dense.bias"
dict(twin.named_parameters())[name].value[0] += 1e-200j
by_complex_step = twin.forward(**batch)[0].loss.imag / 1e-200
by_backward = parameters[name].grad[0]
print(f"complex step: {by_complex_step:.16f}")
print(f"backward:     {by_backward:.16f}")
assert abs(by_complex_step / by_backward - 1) < 1e-13

# %% [markdown]
r"""
So the bound can be $10^{-13}$, and much smaller mistakes show:
"""


# %%
def nearly_right(dout, cache):
    return tanh_backward(dout, cache) * (1 + 1e-11)


case = function_case("tanh", tanh, nearly_right, {"x": rows})
for method in (CENTRAL_DIFFERENCES, COMPLEX_STEP):
    [verdict] = compare_with_numeric(case, method)
    print(f"{method.name}: {verdict.error:.0e}", "passes" if verdict.ok else "is caught")
assert not verdict.ok

# %% [markdown]
r"""
The forward pass has to be *analytic*: sums, products, quotients, roots, `exp`, `log` and `tanh` are. An absolute value is not,
and loses the derivative:
"""

# %%
z = rows.astype("complex128")
z[0, 0] += 1e-200j
print(f"right:              {rows[0, 0] / np.sqrt((rows * rows).sum()):.6f}")
print(f"sqrt((z * z).sum()) {np.sqrt((z * z).sum()).imag / 1e-200:.6f}")
print(f"np.linalg.norm(z)   {np.linalg.norm(z).imag / 1e-200:.6f}")
assert z.argmax() == rows.argmax()

# %% [markdown]
r"""
Choosing a number is harmless: NumPy orders complex numbers by their real parts first, so `max` and `where` choose as always.

## 11. The library's checker

`function_case` and `check` draw a random `dout`, compare the gradient of every input, and refuse float32. You supply random
inputs with more than one sequence. `report` uses both methods:
"""

# %%
all_right = report(operation_cases(cpu)[:6])
assert all_right
# %% [markdown]
r"""
Each case ends with one more test. If $J$ is the Jacobian and $u$ and $v$ are random, the complex step finds $J u$, the backward
pass returns $J^\top v$, and $v^\top (J u)$ has to equal $(J^\top v)^\top u$.

And who checks the checker? Give it something wrong. Here the cache holds $y = \tanh x$, and somebody took it for $x$.
"""


# %%
def cache_misread(dout, cache):
    (x,) = cache  # it is y
    return dout * (1 - np.tanh(x) ** 2)


[verdict] = compare_with_numeric(function_case("tanh", tanh, cache_misread, {"x": rows}))
print(verdict)
assert not verdict.ok

# %% [markdown]
r"""
## Recap

- A backward pass gets the gradient of its output, multiplies by its own derivative, and hands on the gradient of its inputs:
  $dx_j = \sum_i dy_i \, \partial y_i / \partial x_j$, always of $x$'s shape.
- What is used several times collects its gradients in a sum. Broadcasting is such a use, so its backward pass is a sum
  over the copies.
- The numeric gradient needs no derivation. With steps of $h = 10^{-5}$ to both sides, in float64, it has about ten correct
  digits.
- Compare by relative error over the whole array: $10^{-7}$ lies between right and wrong.
- The complex step subtracts nothing. It is right to the last digit, if the forward pass is analytic.
- Check where mistakes show: random parameters and `dout`, $B > 1$, a token twice, dropout on, every input.

## What usually goes wrong

- **`=` instead of `+=`.** The second use of a variable overwrites the gradient of the first.
- **A mean instead of a sum.** A layer divides by the batch size, although the loss has done so already.
- **A gradient of another shape.** NumPy silently broadcasts it when it is added to something.
- **The checker's steps on a copy.** `x.flatten()[i] += h` moves nothing, so every derivative is 0.
- **A kink in between.** ReLU's slope jumps at 0, and a step across the kink measures neither side.
- **Zero against zero.** Where the true gradient is 0, a relative error compares rounding with rounding.

## Three questions

Answer before you unfold.
"""

# %% [markdown]
r"""
<details>
<summary><b>1.</b> You double the step. What happens to the error at h = 10⁻³, and what at h = 10⁻⁸ (float64, both sides)?</summary>

At $10^{-3}$ the term $h^2/6$ dominates, so the error becomes four times as large. At $10^{-8}$ rounding dominates, which is
$\epsilon / 2h$, so the error is halved.

</details>
"""

# %% [markdown]
r"""
<details>
<summary><b>2.</b> Forward: y = x.mean(axis=0), with x of shape (n, H). What is dx?</summary>

Each of the $n$ rows enters the sum with a factor of $1/n$, and what was summed is copied on the way back. So every row of $dx$ is
`dout / n`. In code, that is `np.broadcast_to(dout / n, x.shape)`.

</details>
"""

# %% [markdown]
r"""
<details>
<summary><b>3.</b> In a residual connection y = x + f(x), the backward pass of f is right. Somebody writes
<code>dx = f_backward(dout) + 1</code>. For which <code>dout</code> does that pass?</summary>

The right gradient is `f_backward(dout) + dout`, so theirs passes if `dout` is all ones. That is just what "just sum the output"
feeds in.

</details>
"""

# %% [markdown]
r"""
## Further reading

- Rumelhart, Hinton and Williams, [Learning representations by back-propagating errors](https://www.nature.com/articles/323533a0), 1986: the chain rule as the way to train a network.
- Baydin and others, [Automatic differentiation in machine learning: a survey](https://arxiv.org/abs/1502.05767), 2018: forward mode, backward mode, and numeric differences compared.
- Martins, Sturdza and Alonso, [The complex-step derivative approximation](https://dl.acm.org/doi/10.1145/838250.838251), 2003: a numeric derivative without cancellation.
- Karpathy, [micrograd](https://github.com/karpathy/micrograd), 2020: the chain rule in a hundred lines of Python.

**Next:** [02 · Linear](02_linear.ipynb), three matrix products.
The code of this notebook: [gradcheck](../minibert/gradcheck/__init__.py), [activations.py](../minibert/ops/activations.py),
[linear_map.py](../minibert/ops/linear_map.py).
"""
