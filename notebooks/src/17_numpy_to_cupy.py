# %% [markdown]
r"""
# 17 · NumPy to CuPy

The same files that ran on NumPy train on a GPU, since CuPy offers NumPy's functions there. It takes one line to make them
*run*; it takes this notebook to make them run *fast*, and to *time* them right.

**You will** see one source serve two libraries · find out who waits for whom · count launches and bytes · read a CUDA
kernel line by line and port it to NumPy · lose numbers in 16 bits, and save them · know what a captured step repeats.

**Before this:** [05 · LayerNorm](05_layer_norm.ipynb), [13 · The optimiser](13_optimiser.ipynb). You need no CUDA.
**Time:** 100 minutes with the exercises; it runs in seconds.

> **Honesty first.** This notebook was made without a GPU: **none of the speeds below was measured on a GPU**. Cells that need one say
> what they skip. [GPU](../docs/gpu.md#speed) has the speeds that were measured on one.

| letter | in this notebook |
|---|---|
| `B`, `S` | sequences in a batch, tokens in a sequence; `B·S` rows |
| `H`, `V` | hidden size, the numbers of a row; words in the vocabulary |
| `P` | predicted positions |
"""

# %%
import inspect
import os
import queue
import textwrap
import threading
import time
from collections import Counter
from contextlib import nullcontext
from datetime import date
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec

import matplotlib.pyplot as plt
import numpy as np

from minibert import BertConfig, BertForPreTraining, BertTokenizer, UserError, check, ops, plots
from minibert.arrays import get_array_module, to_numpy
from minibert.course import read_log, write_log
from minibert.course.exercises.n17_numpy_to_cupy import butterfly
from minibert.course.paper_gpu import PaperGPU
from minibert.devices import resolve_device
from minibert.kernels.cuda import launch, residual_norm
from minibert.kernels.cuda.on_paper import noted
from minibert.ops.cross_entropy_loss import cross_entropy, cross_entropy_backward
from minibert.ops.layer_normalisation import layer_norm
from minibert.threads import set_threads
from minibert.train import AdamW
from minibert.train.checkpoint import describe_environment
from minibert.train.loss_scale import LossScale
from minibert.train.step import TrainingStep

plots.notebook_style()
np.set_printoptions(precision=3, suppress=True)
rng = np.random.default_rng(17)

device = resolve_device("auto")
ON_GPU = device.name.startswith("cuda")


def skipped(what):
    print(f"Skipped, because there is no GPU here: {what}.")


print("There is a GPU: all cells run." if ON_GPU else "No GPU here: its cells will be skipped.")

# %% [markdown]
r"""
## 1. One line decides: `xp`

An operation asks the array that it is given which library it belongs to, and calls that library's functions. By convention,
the answer is called `xp`. CuPy's arrays are in the GPU's memory, and its functions run there. So
[layer_norm](../minibert/ops/layer_normalisation.py), which says `xp.sqrt` and never `np`, needs no second version:
"""

# %%
print(inspect.getsource(get_array_module))

# %%
B, S, H = 32, 128, 256
x = rng.standard_normal((B, S, H), "float32")  # (B, S, H)
gamma, beta, eps = rng.standard_normal(H, "float32"), rng.standard_normal(H, "float32"), 1e-12
y, cache = layer_norm(x, gamma, beta, eps)  # (B, S, H), by NumPy

if ON_GPU:
    y_there, _ = layer_norm(*map(device.asarray, (x, gamma, beta)), eps)  # the same lines, by CuPy
    print(f"{type(y_there)}: largest difference {np.abs(y_there.get() - y).max():.0e}")
    assert np.allclose(y_there.get(), y, atol=1e-5)
else:
    skipped("layer_norm of CuPy arrays, and its difference from NumPy's")

# %% [markdown]
r"""
### A GPU made of paper

For readers without a GPU, there is a third library. [PaperGPU](../minibert/course/paper_gpu.py) lets NumPy compute, but its
arrays have a type of their own, as CuPy's have, and **it writes down what a GPU would have to do**. It has no clock, so it cannot
tell how fast anything is.
"""

# %%
gpu = PaperGPU()
x_there, gamma_there, beta_there = map(gpu.asarray, (x, gamma, beta))
y_there, _ = layer_norm(x_there, gamma_there, beta_there, eps)
print(type(y_there).__name__, y_there.shape, "xp =", get_array_module(y_there).__name__)
assert np.array_equal(y_there.get(), y)
print(f"copies to the device {gpu.uploads}, launches {len(gpu.launches)}, copies back {gpu.waits}")

# %% [markdown]
r"""
### What it refuses

Host and device memory are two places, and a copy between them has to be explicit: `asarray` on the way in, `.get()` on the way
out. Anything that would copy in secret is an error, as in CuPy:
"""

# %%
SECRETLY = {
    "x_there + np.ones(H)": lambda: x_there + np.ones(H),
    "np.ones(H) * x_there": lambda: np.ones(H) * x_there,
    "np.maximum(x_there, np.zeros(H))": lambda: np.maximum(x_there, np.zeros(H)),
    "np.asarray(x_there)": lambda: np.asarray(x_there),
}
for code, action in SECRETLY.items():
    try:
        action()
        raise AssertionError("it was not refused")
    except TypeError:
        print(f"{code:<34} TypeError")
print(f"{'np.exp(x_there)':<34} {type(np.exp(x_there)).__name__}")

# %% [markdown]
r"""
The last line raises no error: NumPy passes such a call on to the array's own library, and does so for CuPy, too. But `np.zeros`
and `np.arange` make arrays on the host, which are refused one line later. So operations say `xp`.

## 2. Who waits for whom?

A call of a GPU function does not compute. It *launches*: it puts a piece of work, a **kernel**, into a queue (a **stream**) and
returns at once. The GPU takes kernels from the queue in order. The host waits when it **synchronises** or reads a value.

A thread with a queue does the same, so it can show the most common mistake in timing a GPU. Here each "kernel" takes 50
milliseconds.
"""


# %%
class Stream:
    """A queue of work, with a thread in the GPU's place."""

    def __init__(self):
        self._queue = queue.Queue()
        threading.Thread(target=self._work, daemon=True).start()

    def _work(self):
        while True:
            kernel = self._queue.get()
            kernel()
            self._queue.task_done()

    def launch(self, kernel):
        self._queue.put(kernel)

    def synchronize(self):
        self._queue.join()


stream = Stream()
start = time.perf_counter()
for _ in range(10):
    stream.launch(lambda: time.sleep(0.05))
hurried = time.perf_counter() - start
stream.synchronize()
patient = time.perf_counter() - start
print(f"the clock stopped after launching: {hurried:.1f} s;  after synchronising: {patient:.1f} s")
assert hurried < 0.5 <= patient

# %%
if ON_GPU:
    here = device.xp.cuda.get_current_stream()
    matrix = device.xp.ones((4096, 4096), "float32")
    matrix @ matrix  # the first call loads libraries: never time it
    for waits in (False, True):
        here.synchronize()
        start = time.perf_counter()
        for _ in range(10):
            matrix @ matrix
        if waits:
            here.synchronize()
        milliseconds = 100 * (time.perf_counter() - start)
        print(f"synchronised {waits!s:<6} {milliseconds:8.3f} ms per product")
else:
    skipped("ten matrix products, timed without synchronising (wrong) and with it (right)")

# %% [markdown]
r"""
The first number is the time that it takes to *order* the work. (For the same reason, a kernel that fails is reported late.) And
waiting *needlessly* costs twice: a host that waits launches nothing, so afterwards the GPU has nothing to do. Look at the gaps:
"""


# %%
def schedule(launch_time, kernel_time, kernels=6, wait_each=False, graph=False):
    """When the host launches and when the device computes: two lists of (start, length)."""
    host, work, device_free, now = [], [], 0.0, 0.0
    for number in range(kernels):
        if not graph or number == 0:
            host.append((now, launch_time))
            now += launch_time
        begins = max(now, device_free)
        work.append((begins, kernel_time))
        device_free = begins + kernel_time
        if wait_each:
            now = device_free
    return host, work


def draw(title, cases):
    _, axes = plt.subplots(figsize=(7.5, 0.95 * len(cases) + 0.9))
    for number, (host, work) in enumerate(cases.values()):
        axes.broken_barh(host, (number - 0.38, 0.34), color=plots.ORANGE, edgecolor="white")
        axes.broken_barh(work, (number + 0.04, 0.34), color=plots.BLUE, edgecolor="white")
    axes.barh(0, 0, color=plots.ORANGE, label="host launches")
    axes.barh(0, 0, color=plots.BLUE, label="device computes")
    axes.set_yticks(range(len(cases)), cases)
    axes.set(xlabel="time (a drawing, not a measurement)", xlim=(0, 13.5))
    axes.invert_yaxis()
    axes.set_title(title)
    axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=2)
    plt.show()


waiting, running = schedule(1, 1, wait_each=True), schedule(1, 1)
print(f"done after {sum(waiting[1][-1])} and after {sum(running[1][-1])}")

# %% tags=["figure"]
# Caption: A host that waits after each kernel, and one that runs ahead. The second keeps the device
#   busy.
draw("six kernels", {"waits\nafter each": waiting, "runs ahead": running})

# %% [markdown]
r"""
### How does a training step avoid waiting?

The host must not *look* at a number. But with float16, every step has to ask whether the gradient is finite, and an `if` would
read it. The library computes both answers and lets the device choose, with `where`:
"""

# %%
print(inspect.getsource(LossScale.update))
norm = gpu.asarray(np.float32(np.inf))
scale = LossScale(gpu.device)
gpu.clear()
scale.update(norm)
print("with where: waits", gpu.waits)
if not gpu.isfinite(norm):
    pass  # halve it, skip the step, …
print("with if:    waits", gpu.waits)
assert gpu.waits == 1


# %%
def mini_step(device, B, S=128, P=20, V=8192, **options):
    """BERT-mini, and a function that takes one training step. P words of each sequence are hidden."""
    model = BertForPreTraining(BertConfig.preset("mini", vocab_size=V), device=device, seed=0)
    ids = np.random.default_rng(0).integers(5, V, (B, S))
    labels = np.where(np.arange(S) < P, ids, -100)
    batch = {"input_ids": ids, "labels": labels, "next_sentence_label": np.zeros(B, int)}
    step = TrainingStep(model, AdamW(model), predictions=B * P, **options)
    return step, lambda: step.take([batch], 1e-4, 0)


step, take = mini_step(gpu.device, B=4, S=16, P=3, V=512)
take()  # the first one sets up its memory
gpu.clear()
take()
reference = gpu.launches
print(f"copies to the device {gpu.uploads}, waits {gpu.waits}, launches {len(reference):,}")
assert (gpu.uploads, gpu.waits) == (1, 0)

# %% [markdown]
r"""
One copy to the device carries ids, labels, learning rate and dropout's seed; nothing is copied back. The losses are added up
on the device, and `TrainingStep.read()` fetches them every few dozen steps.

## 3. What can be counted

Nearly every operation of the reference is a kernel of its own: it reads its operands from the GPU's memory and writes its
result there. Here is LayerNorm on a batch of real size, compared with **one kernel** that keeps a row in registers, reads $x$, and
writes $y$ and $\hat x$:
"""

# %%
gpu.clear()
layer_norm(x_there, gamma_there, beta_there, eps)
unfused = gpu.launches
print("launch        read MB  written MB  operations")
for entry in unfused:
    print(f"{entry.name:<12} {entry.read / 1e6:8.2f} {entry.written / 1e6:11.2f}", end="")
    print(f"{entry.operations / 1e6:10.2f} M")

bytes_unfused = sum(entry.read + entry.written for entry in unfused)
operations = sum(entry.operations for entry in unfused)
bytes_fused = x.nbytes + y.nbytes + sum(part.nbytes for part in cache) + beta.nbytes
print(f"unfused {bytes_unfused / 1e6:.1f} MB, fused {bytes_fused / 1e6:.1f} MB", end="")
print(f": {bytes_unfused / bytes_fused:.1f} times as much")
assert bytes_unfused > 3.9 * bytes_fused

# %% tags=["figure"]
# Caption: One kernel reads and writes everything once. A chain of array operations does so again in
#   every operation.
figure, axes = plt.subplots(figsize=(7.5, 1.9))
one_kernel = [(x.nbytes, y.nbytes + cache[0].nbytes)]
for place, moves in enumerate(([(entry.read, entry.written) for entry in unfused], one_kernel)):
    left = 0.0
    for parts in moves:
        for part, colour in zip(parts, (plots.SKY, plots.VERMILION), strict=True):
            axes.barh(place, part / 1e6, left=left, color=colour, edgecolor="white")
            left += part / 1e6
axes.barh(0, 0, color=plots.SKY, label="read")
axes.barh(0, 0, color=plots.VERMILION, label="written")
axes.set_yticks((0, 1), ("ten launches", "one kernel"))
axes.invert_yaxis()
axes.set(title="LayerNorm of 4,096 rows", xlabel="megabytes moved")
axes.legend(loc="lower right")
plt.show()

# %% [markdown]
r"""
### Does it matter? Operations per byte

An operation's **arithmetic intensity** is the number of its arithmetic operations divided by the bytes that it moves. A processor
has such a number, too: operations per second, divided by bytes per second. If an operation's intensity is lower than that,
memory limits its speed; if it is higher, arithmetic does. These are from NVIDIA's data sheets and white papers:
"""

# %%
SHEETS = {"A100, 80 GB, SXM": (19.5, 312, 2.039), "H100, SXM": (66.9, 989.4, 3.35)}
print("                  float32   bfloat16 on tensor cores   (operations per byte)")
for name, (float32, bfloat16, bandwidth) in SHEETS.items():  # TFLOP/s, dense; TB/s
    print(f"{name:<16} {float32 / bandwidth:8.0f} {bfloat16 / bandwidth:10.0f}")
print()

gpu.clear()
x_there.reshape(B * S, H) @ gpu.zeros((H, 4 * H), dtype="float32")
product = gpu.launches[-1]
assert product.name == "matmul"
moved = {
    "LayerNorm, ten launches": (operations, bytes_unfused),
    "LayerNorm, one kernel": (operations, bytes_fused),
    "product with a weight (4H, H)": (product.operations, product.read + product.written),
}
intensity = {name: count / moves for name, (count, moves) in moved.items()}
for name, value in intensity.items():
    print(f"{name:<30} {value:6.2f} operations per byte")
assert intensity["LayerNorm, one kernel"] < 10 < intensity["product with a weight (4H, H)"]

# %% [markdown]
r"""
LayerNorm is limited by bytes. (We count what kernels ask for; the L2 cache saves some of it.) The product is limited by
arithmetic, at least in float32. In 16 bits it moves half the bytes, so its number doubles. NVIDIA's library cuBLAS does products better than we
would. So [kernels/cuda](../minibert/kernels/cuda/__init__.py) **leaves products to cuBLAS, and fuses what is between them.**

### How many launches does a step have?

A launch costs the host time, however small the array is: CuPy's guide (Performance Best Practices) shows 12 µs for one `a.sum()`.
The table in `ops` chooses CUDA kernels for CuPy's arrays. `noted` writes down their launches instead of making them, so nothing is
computed.
"""

# %%
on_paper = PaperGPU("cupy")  # this name makes the table of ops take the CUDA kernels
kernels = []
with noted(kernels.append):
    _, take = mini_step(on_paper.device, B=4, S=16, P=3, V=512)
    take()
    kernels.clear()
    on_paper.clear()
    take()
counts = Counter("cuBLAS" if name == "cuBLAS" else "kernels" for name in kernels)
counts["copies and the like"] = len(on_paper.launches)
print(f"reference: {len(reference):,} launches")
print(f"kernels:   {counts.total():,} launches:", dict(counts))
print("captured:  1 launch of a graph (section 7)")
assert counts.total() < len(reference) / 3

if ON_GPU:
    small = device.xp.ones(64, "float32")
    start = time.perf_counter()
    for _ in range(1000):
        small + 1.0  # we time the host here, so we do not synchronise inside
    microseconds = 1000 * (time.perf_counter() - start)
    device.xp.cuda.get_current_stream().synchronize()
    print(
        f"{microseconds:.1f} µs per launch: {len(reference) * microseconds / 1000:.1f} ms", end=""
    )
    print(f" for the reference's, {counts.total() * microseconds / 1000:.1f} ms for the kernels'")
else:
    skipped("the time of one launch, and of all launches of a step")

# %% [markdown]
r"""
## 4. A kernel, line by line

A kernel is a function that many threads run at once, each with numbers of its own, its **registers**. 32 threads are a **warp**:
they execute the same instruction together, unless an `if` separates them. Warps form a **block**: they share a little memory and
can wait for each other. Blocks form the **grid**. A thread asks who it is (`threadIdx`, `blockIdx`) and so finds its share.

Here `threadIdx.x` divides a row among the threads. A thread holds `PACK` neighbouring columns, the 16
bytes that it can load at once; beyond the row it holds zeros. This is a row with `H` = 11, 4 threads and a pack of 4:
"""

# %% tags=["figure"]
# Caption: A row of 11 numbers, read by four threads in packs of four. What is beyond the row counts
#   as 0.
size, threads, pack = 11, 4, 4
column = np.arange(threads * pack).reshape(threads, pack)  # (threads, pack)

figure, axes = plt.subplots(figsize=(7.5, 1.5))
for thread, colour in enumerate((plots.BLUE, plots.ORANGE, plots.GREEN, plots.PURPLE)):
    for number in column[thread]:
        there = number < size
        face = colour if there else "white"
        axes.barh(0, 0.94, left=number, height=0.8, color=face, edgecolor=colour, linewidth=1.5)
        text = f"x{number}" if there else "0"
        axes.text(
            number + 0.47, 0, text, ha="center", va="center", color="white" if there else "black"
        )
    axes.text(4 * thread + 1.97, -0.75, f"thread {thread}", ha="center", color=colour)
axes.set(title="who holds what", xlim=(-0.1, 16), ylim=(-1, 0.5))
axes.axis("off")
plt.show()

# %% [markdown]
r"""
Here is the arithmetic of a row, from [norm.cuh](../minibert/kernels/cuda/norm.cuh), and below it the same in NumPy:
"""


# %%
def show_cuda(file, start, lines):
    """Some lines of a source, from the one that begins with ``start``."""
    text = (launch.FOLDER / file).read_text(encoding="utf-8")
    print("\n".join(text[text.index("\n" + start) + 1 :].splitlines()[:lines]))


show_cuda("norm.cuh", "// x becomes", 14)

# %% [markdown]
r"""
| line | NumPy | what happens |
|---|---|---|
| `float (&x)[PACK]` | `x` | this thread's registers, not the row |
| `sum_pack(x)` | | adds up its own numbers |
| `sum_row(…) / size` | `x.mean(-1)` | adds up over threads; *every* thread gets the sum |
| `i < count ? x[i] - mean : 0` | `x - mean` | beyond the row, 0 would become −mean, so it is cleared |
| `squares += x[i] * x[i]` | `(c * c)`, where `c = x - mean` | nothing goes to memory: `c` is in registers |
| `1.0f / sqrtf(…)` | `1 / xp.sqrt(…)` | all compute the same number: that is cheaper than asking one of them |

### How do threads add up a row?

No thread sees another's registers, except by *shuffles*: `__shfl_xor_sync(…, value, distance)` gives thread $i$ what thread
$i \oplus \text{distance}$ has, where $\oplus$ is XOR of the binary numbers. Partners swap: $(i \oplus d) \oplus d = i$.
"""

# %%
show_cuda("common.cuh", "template <class Operation>\n__device__ inline float over_row", 17)

# %% [markdown]
r"""
The loop is a **butterfly** with distances $n/2, \dots, 2, 1$. Why is it right? We claim that after the round with distance $d$,
thread $i$ holds the sum over all $j \equiv i \pmod d$. Before the first round, $d = n$, and a thread holds only its own value. A
round with distance $d$ joins the class of $i$ modulo $2d$ with that of $i \oplus d$; modulo $d$ the two are one class. At $d = 1$,
after $\log_2 n$ rounds, the class is all threads. As $a + b$ and $b + a$ are the same bits, all threads agree to the last bit.
(*Atomic* additions would come in another order in every run, and give other bits. The library has none.)

A row wider than a warp needs a second stage, through shared memory. The second `__syncthreads` lets all threads see all sums;
the first protects what a slow thread still reads from the *previous* call.
"""

# %% tags=["figure"]
# Caption: The butterfly: in each round, every thread adds what its partner holds. After three
#   rounds all eight have the whole sum.
figure, axes = plt.subplots(figsize=(7.5, 3.4))
rounds = [{i: {i} for i in range(8)}]
for at, distance in enumerate((4, 2, 1)):
    rounds.append({i: rounds[-1][i] | rounds[-1][i ^ distance] for i in range(8)})
    for i in range(8):
        for source, colour in ((i, plots.GREY), (i ^ distance, plots.VERMILION)):
            axes.plot([at + 0.28, at + 0.72], [source, i], color=colour, linewidth=1.2)
    axes.text(at + 0.5, -0.9, f"distance {distance}", ha="center", color=plots.VERMILION)
for at, held in enumerate(rounds):
    for i, of in held.items():
        text = "all 8" if len(of) == 8 else " + ".join(map(str, sorted(of)))
        axes.text(at, i, text, ha="center", va="center", fontsize=9)
axes.set(xlim=(-0.35, 3.35), ylim=(7.6, -1.4), title="eight threads: whose numbers each one holds")
axes.axis("off")
figure.set_label(
    "Eight threads, one in each line, and three rounds from left to right: every thread adds what its "
    "partner at distance 4, then 2, then 1 holds, until each holds the sum of all eight"
)
plt.show()

# %% [markdown]
r"""
## 5. Your turn: the butterfly, then the kernel

@exercise 17.sum_row

Play the part of all threads at once: an array has a number for each thread, and what they do in one round is one line of NumPy.
Return what the threads hold after every round.
"""


# %% tags=["solution"]
def my_sum_row(values):
    """What every thread holds after each round: (threads,) → (log₂ threads, threads).

    values (threads,), a power of two of them. The distances are threads/2, …, 2, 1.
    """
    threads = np.arange(len(values))
    distance, rounds = len(values) // 2, []
    while distance > 0:
        values = values + values[threads ^ distance]
        rounds.append(values)
        distance //= 2
    return np.stack(rounds)


# %%
check("17.sum_row", my_sum_row)

# %% [markdown]
r"""
@exercise 17.layer_norm_row

Now the kernel: LayerNorm of one row of `H` numbers, as the threads compute it. `registers` is an array `(threads, pack)`, and thread $t$ has the
`pack` columns that begin at $t \cdot$ `pack`. `H` may be smaller than `threads · pack`; registers beyond the row hold 0 at the end. `butterfly(values)` is
given: from one number per thread it makes every thread's copy of their sum.
"""


# %% tags=["solution"]
def my_layer_norm_row(x, weight, bias, eps, threads, pack):
    """LayerNorm of one row x (H,), H ≤ threads · pack → registers (threads, pack) of x̂, y (H,).

    Thread t has the columns t·pack, …, t·pack + pack − 1; beyond the row a register holds 0.
    """
    size = len(x)
    registers = np.zeros(threads * pack)
    registers[:size] = x
    registers = registers.reshape(threads, pack)
    inside = np.arange(threads * pack).reshape(threads, pack) < size
    mean = butterfly(registers.sum(axis=1)) / size  # (threads,)
    registers = np.where(inside, registers - mean[:, None], 0.0)
    variance = butterfly((registers**2).sum(axis=1)) / size  # (threads,)
    registers = registers / np.sqrt(variance + eps)[:, None]
    return registers, registers.reshape(-1)[:size] * weight + bias


# %%
check("17.layer_norm_row", my_layer_norm_row)

# %% [markdown]
r"""
### From one row to the launch

The host decides how many threads and blocks a shape gets. Then the fused kernel runs, from
[residual_norm.cu](../minibert/kernels/cuda/residual_norm.cu): load, drop, add the residual, normalise, store. `here`
is 0 past the last row. Threads there load and store nothing, but they **stay**, since a shuffle or barrier that not all
threads reach has no defined result.
"""

# %%
for width, dtype in ((256, "float32"), (256, "float16"), (768, "float16")):
    block = launch.row_block(width, dtype)
    grid, rows_of_block = launch.row_grid(B * S, block, residual_norm.FORWARD_ROWS)
    print(
        f"H = {width}, {dtype}: a block is {block[0]} threads × {block[1]} rows at a time,", end=""
    )
    print(f" {rows_of_block} rows in all; {grid[0]} blocks")
    assert block[0] * launch.pack(dtype) >= width and grid[0] * rows_of_block >= B * S

show_cuda("residual_norm.cu", "    for (int first = blockIdx.x", 19)

if ON_GPU:
    there = [device.asarray(array) for array in (x, gamma, beta)]
    y_kernel, _ = ops.layer_norm(*there, eps)  # the table in ops finds the kernel
    print(f"kernel against NumPy: largest difference {np.abs(y_kernel.get() - y).max():.0e}")
    assert np.allclose(y_kernel.get(), y, atol=1e-5)
else:
    skipped("the kernel itself, compiled for the GPU and compared with NumPy's LayerNorm")

# %% [markdown]
r"""
## 6. Fewer digits

Half the bits are half the bytes, and tensor cores, the units of a GPU that multiply small matrices in short formats, multiply them
faster (section 3). What do we give up? A
floating-point number is $\pm\, 1.f \times 2^e$: the bits of $e$ give the range, those of $f$ the digits. TF32 is what
tensor cores read of float32: the first 10 bits of $f$. In memory it stays float32. Rounding is a short piece of integer arithmetic:
add nearly half of the last bit that stays, and cut off the rest.
"""


# %%
def rounded(x, fraction_bits):
    """float32 → the nearest number with this many bits of fraction (ties to even), as float32."""
    bits = np.asarray(x, "float32").view("uint32")
    drop = 23 - fraction_bits
    half = (1 << (drop - 1)) - 1 + ((bits >> drop) & 1)
    return ((bits + half) >> drop << drop).view("float32")


HALF = np.finfo("float16")
print("           bits of e, f   largest   smallest normal   from 1 to the next")
for name, e, f in (("float32", 8, 23), ("TF32", 8, 10), ("bfloat16", 8, 7), ("float16", 5, 10)):
    high = 2 ** (e - 1) - 1
    print(
        f"{name:<10} {e:6} {f:4} {(2 - 2.0**-f) * 2.0**high:12.1e} {2.0 ** (1 - high):12.1e}",
        end="",
    )
    print(f"{2.0**-f:18.1e}")
assert (HALF.max, HALF.tiny, HALF.eps) == (65504, 2.0**-14, 2.0**-10)

numbers = (rng.standard_normal(10_000) * 10.0 ** rng.integers(-30, 30, 10_000)).astype("float32")
try:
    import ml_dtypes

    assert np.array_equal(rounded(numbers, 7), numbers.astype(ml_dtypes.bfloat16).astype("float32"))
    print("rounded(x, 7) is bfloat16, in 10,000 numbers of every size")
except ImportError:
    print(
        "Skipped, because the package ml_dtypes is not installed: rounded(x, 7) against bfloat16."
    )
for name, close in (
    ("TF32", rounded(1 / 3, 10)),
    ("bfloat16", rounded(1 / 3, 7)),
    ("float16", np.float16(1 / 3)),
):
    print(f"1/3 in {name:<9} {float(close):.6f}")

# %% [markdown]
r"""
### Three ways to lose a number

**Beyond the range.** float16 ends at 65,504, and everything below $2^{-25}$ becomes 0. bfloat16 has float32's range.

**A sum that stops.** Above 256, bfloat16 numbers are 2 apart: adding 1 is a tie, which is rounded back to 256.

**An update that vanishes.** A step of less than half the distance to the next number is lost, every time.
"""

# %%
with np.errstate(over="ignore"):
    print("float16 of 70,000 and of 2e-8:", np.float16(70_000), np.float16(2e-8))
print("bfloat16 of the same:         ", *rounded(np.array([70_000, 2e-8]), 7))

total = np.float32(0)
for _ in range(4096):
    total = rounded(total + np.float32(1), 7)
print("1 + 1 + … (4,096 times) in bfloat16:", total)

weights = {
    "float32": [np.float32(0.02)],
    "bfloat16": [rounded(0.02, 7)],
    "float16": [np.float16(0.02)],
}
change = 1e-5
for _ in range(1000):
    weights["float32"].append(weights["float32"][-1] + np.float32(change))
    weights["bfloat16"].append(rounded(weights["bfloat16"][-1] + np.float32(change), 7))
    weights["float16"].append(weights["float16"][-1] + np.float16(change))
assert total == 256 and weights["bfloat16"][-1] == weights["bfloat16"][0]

# %% tags=["figure"]
# Caption: The same small update, 1,000 times, in three formats.
figure, axes = plt.subplots(figsize=(6.5, 3.0))
for (name, values), style in zip(weights.items(), ("-", "--", "-."), strict=True):
    axes.plot(values, style, linewidth=2, label=name)
axes.set(title="a weight of 0.02, plus 0.00001 each step", xlabel="step", ylabel="weight")
axes.legend()
plt.show()

# %% [markdown]
r"""
bfloat16 does not move. float16 moves too fast, since each step is rounded *up* to its grid, and it stops at 1/32, where the grid
becomes twice as wide. So 16 bits are for what is computed anew in every step, and nothing is added up in them.
"""

# %%
tiny = BertConfig.preset("tiny", vocab_size=512)
model = BertForPreTraining(tiny, precision="float16", seed=0)
hidden = model.forward(np.array([[2, 7, 3]]), return_hidden_states=True)[0].hidden_states[-1]
print("activations         ", hidden.dtype)
print("copy for the products", model.buffers.operand.dtype)
print("weights that learn  ", model.buffers.value.dtype)
print("gradients           ", model.buffers.grad.dtype)
assert hidden.dtype == "float16" and model.buffers.value.dtype == "float32"

# %% [markdown]
r"""
### What is loss scaling for?

The backward pass begins with $dz = (p - \text{one-hot}) / N$ ([03](03_softmax_cross_entropy.ipynb)). With thousands of words most of $p$
is tiny, and $N$, the number of hidden words, is 640 in a batch of 32. Here is the model that comes with minibert, on four sentences:
"""

# %%
tokenizer = BertTokenizer.from_pretrained("mini")
SENTENCES = [
    "The ship left the harbour early in the morning.",
    "He was born in a small town in the north of the country.",
    "She opened the letter and read it twice.",
    "The river is crossed by three bridges.",
]
texts = tokenizer(SENTENCES, padding=True)
ids, mask = np.array(texts["input_ids"]), np.array(texts["attention_mask"])  # (B, S)
labels = np.where((np.arange(ids.shape[1]) % 4 == 2) & (mask == 1), ids, -100)  # (B, S)
batch = {
    "input_ids": np.where(labels != -100, tokenizer.mask_id, ids),
    "attention_mask": mask,
    "labels": labels,
    "mlm_denominator": 640.0,
}
model = BertForPreTraining.from_pretrained("mini", device="cpu")
logits = model.forward(**batch)[0].prediction_logits  # (hidden words, V)
targets = labels[labels != -100]
_, cache = cross_entropy(logits, targets, np.ones(len(targets), "float32"), 640.0)
dlogits = cross_entropy_backward(1.0, cache)

STORED = {
    "(p − one-hot) / N": dlogits,
    "the same, loss × 65,536": dlogits * np.float32(65536),
    "p − one-hot": dlogits * np.float32(640),
}
lost = {name: (values.astype("float16") == 0).mean() for name, values in STORED.items()}
for name, share in lost.items():
    print(f"{name:<24} {100 * share:5.1f} % become 0 in float16")
assert lost["(p − one-hot) / N"] > max(list(lost.values())[1:])

# %% [markdown]
r"""
There are two remedies. First, [cross_entropy.cu](../minibert/kernels/cuda/cross_entropy.cu) stores the third line and divides
later. That still loses probabilities below $2^{-25}$, but 8,192 of them add up to less than 0.03 %. The second remedy is for
everything below: multiply the loss by $s$. Every derivative is linear in the loss, so all of them grow by $s$; the update divides
by $s$, in float32.

Here is the gradient of *all* weights, computed in 16 bits, against that of float32. (On a CPU the reference computes, and every
operation's result is rounded. So the digits are right, but nothing is faster. TF32 is not imitated.)
"""


# %%
def gradient(precision, scale=1.0):
    """The gradient of all parameters, computed in a precision, as float32 without the scale."""
    model = BertForPreTraining.from_pretrained("mini", device="cpu", precision=precision)
    model.zero_grad()
    model.backward(model.forward(**batch)[1], scale)
    return to_numpy(model.buffers.grad) / np.float32(scale)


exact = gradient("float32")
exponents = np.arange(-20, 31, 5)
errors = {}
for precision in ("float16", "bfloat16"):
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            off = [gradient(precision, 2.0**exponent) - exact for exponent in exponents]
    except UserError as problem:
        print(f"Skipped: {problem}")
        continue
    errors[precision] = np.linalg.norm(off, axis=1) / np.linalg.norm(exact)
    listed = zip(exponents, errors[precision], strict=True)
    print(
        f"{precision:<9}",
        *(f"2^{exponent}: {error:.1g}" for exponent, error in listed if exponent % 10 == 0),
    )
assert errors["float16"][0] > 0.1 > 0.01 > np.nanmin(errors["float16"])

# %% tags=["figure"]
# Caption: The error of the gradient for loss scales from 2⁻²⁰ to 2³⁰. float16 has a window;
#   bfloat16 needs none.
figure, axes = plt.subplots(figsize=(6.5, 3.0))
for (precision, values), style in zip(errors.items(), ("o-", "s--"), strict=False):
    axes.semilogy(exponents, values, style, label=precision)
over = exponents[~np.isfinite(errors["float16"])]
axes.plot(over, np.ones(len(over)), "x", color=plots.BLUE, markersize=9, label="float16, overflow")
axes.axvline(0, color=plots.GREY, linestyle=":")
axes.text(0.4, 0.25, "no scaling", color=plots.GREY)
axes.set(
    title="gradient of all weights, against float32",
    xlabel="loss scale, as a power of 2",
    ylabel="relative error",
)
axes.legend(loc="center right")
plt.show()

# %% [markdown]
r"""
float16 has a window. To the left of it, derivatives become 0. To the right, one of them overflows, and the gradient is inf or
NaN. Inside the window it is *more* exact than bfloat16, by three bits. bfloat16 needs no scale. Where "no scaling" lies in the
window depends on the model and the batch. So [LossScale](../minibert/train/loss_scale.py) goes as far to the right as it can: it
doubles the scale after a number of good steps, its patience. When the gradient has overflowed, it halves the scale, and that
step is left out.
"""

# %%
scale = LossScale(resolve_device("cpu"), start=2.0**16, patience=3)
history = []
for norm in (1.0, 1.0, 1.0, 1.0, np.inf, 1.0, 1.0, 1.0):
    scale.update(np.float32(norm))
    history.append(int(np.log2(scale.value)))
print("2 to the power of", *history)
assert history == [16, 16, 17, 17, 16, 16, 16, 17]

# %% [markdown]
r"""
## 7. The captured step

Even a few hundred launches can take longer than the kernels. Then the host never gets ahead, and the GPU waits for the *next
launch*. CUDA's remedy is a **graph**: record the launches of one step, and replay all of them with one call.
"""

# %% tags=["figure"]
# Caption: Six kernels that are shorter than their launch, launched one by one and replayed as one
#   graph.
launched = schedule(2, 0.7)
replayed = schedule(2, 0.7, graph=True)
print(f"done after {sum(launched[1][-1]):.1f} and after {sum(replayed[1][-1]):.1f}")
draw("six short kernels", {"launched\none by one": launched, "replayed\nas a graph": replayed})

# %% [markdown]
r"""
The price is that a replay does what was *recorded*: the same kernels, the same addresses, the same Python numbers. A list of
calls with their arguments behaves in the same way. Here the learning rate rises to 0.2 after recording, once as a Python number
and once as an array:
"""

# %%
gradient_here, change = np.ones(()), np.empty(())
by_number, by_array = np.ones(()), np.ones(())
rate, rate_array = 0.1, np.array(0.1)
graph = [  # recorded, not computed
    partial(np.multiply, rate, gradient_here, out=change),
    partial(np.subtract, by_number, change, out=by_number),
    partial(np.multiply, rate_array, gradient_here, out=change),
    partial(np.subtract, by_array, change, out=by_array),
]

rate = 0.2
rate_array[...] = 0.2
for launch_again in graph:
    launch_again()
print(f"Python number: 1 became {by_number:.1f};  array: 1 became {by_array:.1f}")
assert np.isclose(by_number, 0.9) and np.isclose(by_array, 0.8)

# %% [markdown]
r"""
So nothing may be read while recording, not even for an `if`. And whatever differs between steps has to be an *array*: batches,
dropout's streams, the learning rate (`StepInputs` in [step.py](../minibert/train/step.py)).
[Repetition](../minibert/replay.py) copies the inputs of every call to arrays that stay in place; on a GPU it records after three
calls, then replays. It also needs three more things: memory of its own, as nobody else may be given the recorded addresses; a
cuBLAS handle of our own, as CuPy refuses its own in a recording; and fixed shapes.
"""

# %%
if ON_GPU:
    ends = []
    for graph in (False, True):
        step, take = mini_step(device, B=32, graph=graph)
        for _ in range(10):
            take()
        step.read()  # waits
        start = time.perf_counter()
        for _ in range(50):
            take()
        step.read()
        milliseconds = 20 * (time.perf_counter() - start)
        print(f"replaying {step.repetition.replaying!s:<6} {milliseconds:8.2f} ms per step")
        ends.append(to_numpy(step.model.buffers.value))
    print("same bits:", np.array_equal(*ends))
else:
    skipped("a step of BERT-mini called and replayed: milliseconds, and whether the bits agree")

# %% [markdown]
r"""
## 8. How fast is it?

The next cell shows the speed of training steps of BERT-mini by batch size, in float32, with `S` = 128 and 20 hidden words per
sequence. It reads a log. `RERUN = True` measures what this machine has (a few minutes, if it is idle) and writes the log anew. The
variants take turns, so that a slow spell of the machine does not fall on one variant only.
"""

# %%
RERUN = False  # True: measure, and write logs/17_throughput.jsonl
ROUNDS = 5
CPU_WAYS = {"NumPy's functions": (True, False), "compiled kernels": (False, False)}
GPU_WAYS = {
    "CuPy's functions": (True, False),
    "CUDA kernels": (False, False),
    "CUDA kernels, replayed": (False, True),
}  # name: (reference only, as a graph)
if find_spec("numba") is None:
    del CPU_WAYS["compiled kernels"]  # there are none: it would be the reference again


def turn(step, take, reference, threads, count):
    """Seconds per training step, the mean of ``count`` steps."""
    set_threads(threads)  # for BLAS: compiled kernels leave it one
    with ops.reference_only() if reference else nullcontext():
        start = time.perf_counter()
        for _ in range(count):
            take()
        step.read()  # waits for a GPU
        return (time.perf_counter() - start) / count


def measure(device, ways, batch_sizes, threads):
    """Tokens per second in turns of about a second: a row for each way and batch size."""
    set_threads(threads)
    origin = describe_environment(device) | {"date": date.today().isoformat()}
    origin["numba"] = version("numba") if find_spec("numba") else "–"
    origin["blas"] = ", ".join(origin["blas"])
    origin["clock"] = "wall clock, means of turns of a second"
    for B in batch_sizes:
        turns = {
            how: partial(turn, *mini_step(device, B, graph=graph), reference, threads)
            for how, (reference, graph) in ways.items()
        }
        for take_turn in turns.values():
            take_turn(5)  # compiles, sets up memory, records
        counts = {how: max(1, round(1 / take_turn(2))) for how, take_turn in turns.items()}
        rounds = [[turns[how](counts[how]) for how in ways] for _ in range(ROUNDS)]
        for how, seconds in zip(ways, zip(*rounds, strict=True), strict=True):
            speeds = [round(B * 128 / second) for second in seconds]
            yield origin | {"how": how, "B": B, "tokens_a_second": speeds}


def measure_all():
    cores = os.cpu_count()
    yield from measure(resolve_device("cpu"), CPU_WAYS, (1, 2, 4, 8, 16, 32, 64), cores)
    if ON_GPU:
        yield from measure(device, GPU_WAYS, (1, 4, 16, 64, 256), cores)


# %%
name = "17_throughput.jsonl"
log = write_log(name, measure_all()) if RERUN else read_log(name)
ways = [how for how in (*CPU_WAYS, *GPU_WAYS) if any(row["how"] == how for row in log)]
batch_sizes = sorted({row["B"] for row in log})
speeds = {(row["how"], row["B"]): np.array(row["tokens_a_second"]) for row in log}
spread = max(np.ptp(turns) / np.median(turns) for turns in speeds.values())

print("tokens per second, B =", *(f"{B:9}" for B in batch_sizes))
for how in ways:
    medians = {B: f"{np.median(speeds[how, B]):,.0f}" for B in batch_sizes if (how, B) in speeds}
    print(f"{how:<22}", *(f"{medians.get(B, '–'):>9}" for B in batch_sizes))
print(
    f"medians of {len(log[0]['tokens_a_second'])} turns, which differ by at most {spread:.0%} of the median"
)
ORIGIN = "processor", "threads", "clock", "date", "python", "numpy", "numba", "blas", "cupy"
for row in {row["processor"]: row for row in log}.values():
    listed = (f"{key}: {row[key]}" for key in ORIGIN if key in row)
    print(textwrap.fill("; ".join(listed), 100))
if not set(ways) & set(GPU_WAYS):
    print("No rows of a GPU: these were measured without one.")

# %% tags=["figure"]
# Caption: Training speed for growing batches, with NumPy's functions and with compiled loops. Both
#   axes are logarithmic.
figure, axes = plt.subplots(figsize=(7.5, 3.2))
for how, marker in zip(ways, "os^Dv", strict=False):
    sizes = [B for B in batch_sizes if (how, B) in speeds]
    turns = [speeds[how, B] for B in sizes]
    medians = np.array([np.median(turn) for turn in turns])
    reach = [medians - np.min(turns, axis=1), np.max(turns, axis=1) - medians]
    axes.errorbar(sizes, medians, reach, marker=marker, capsize=3, label=how)
axes.set_xscale("log", base=2)
axes.set_yscale("log")
axes.set_xticks(batch_sizes, batch_sizes)
all_speeds = np.concatenate(list(speeds.values()))
ticks = [125 * 2**n for n in range(24)]
ticks = [tick for tick in ticks if all_speeds.min() / 2 < tick < 2 * all_speeds.max()]
axes.set_yticks(ticks, [f"{tick:,}" for tick in ticks])
axes.minorticks_off()
axes.set(title="BERT-mini, training", xlabel="sequences in a batch, B", ylabel="tokens per second")
axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
plt.show()

# %% [markdown]
r"""
(Whiskers reach from the slowest to the fastest turn. At B = 32, two of the five turns of NumPy's functions reached 5,100 tokens per second and three only 3,700, so the dip of the median there is not an effect of the batch size.) Both variants on the CPU multiply with the same BLAS. In the second, what is
between the products is fused into compiled loops. Some work of a step does not grow with `B`, above all the update of 5.5 million
weights, and small batches pay for it.

## Recap

- `xp = get_array_module(x)`: the array decides, so one source serves NumPy and CuPy.
- A launch returns at once; reading a value waits.
- Between the products a GPU is limited by bytes and launches. Fusing saves both; a graph saves the remaining launches.
- A butterfly of XOR partners gives every thread of a row the sum.
- 16 bits for what is computed anew, float32 for what is added up. float16 needs a loss scale, bfloat16 does not.

## What usually goes wrong

- **A clock without synchronising.** It times the launches, not the work.
- **A secret wait.** `if`, `float()`, `print` and `a[mask]` each read from the GPU.
- **`np.zeros` where `xp.zeros` belongs.** Nobody notices until the first GPU.
- **An early `return` before a shuffle or a barrier.** The other threads' result is undefined.
- **A Python number that changes, in a captured step.** It is frozen at its recorded value.
- **16-bit weights without a float32 master.** Small updates vanish.

## Three questions

Answer before you unfold.
"""

# %% [markdown]
r"""
<details>
<summary><b>1.</b> A profile without synchronising says that all of a step's time goes into <code>loss.get()</code>. What is wrong with the profile?</summary>

`loss.get()` is not slow. There, the host waits for everything that was launched before. To time the parts, synchronise before and
after each.

</details>
"""

# %% [markdown]
r"""
<details>
<summary><b>2.</b> A friend halves GELU's operations, in a fused kernel. How much faster does it become on a large GPU?</summary>

Hardly at all: it has only a few operations per byte, so memory limits it. Storing 16 bits would halve its bytes.

</details>
"""

# %% [markdown]
r"""
<details>
<summary><b>3.</b> Why is the loss scaled before the backward pass? Could we not multiply the gradient by s at the end?</summary>

What has become 0 stays 0, whatever it is multiplied by.

</details>
"""

# %% [markdown]
r"""
## Further reading

- Harris and others, [Array programming with NumPy](https://www.nature.com/articles/s41586-020-2649-2), 2020: arrays, broadcasting, and the protocols that CuPy shares.
- Micikevicius and others, [Mixed precision training](https://arxiv.org/abs/1710.03740), 2017: 16 bits, with weights in 32 and a loss scale.
- Ivanov and others, [Data movement is all you need](https://arxiv.org/abs/2007.00072), 2020: where the time of a Transformer goes on a GPU.
- Dao and others, [FlashAttention](https://arxiv.org/abs/2205.14135), 2022: exact attention that never writes its scores to memory.
- Karpathy, [llm.c](https://github.com/karpathy/llm.c), 2024: a Transformer in plain C and CUDA, kernel by kernel.

**Next:** [18 · Real weights](18_real_weights.ipynb). If you have a GPU for an hour, [gpu_session.sh](../benchmarks/gpu_session.sh)
checks and measures what this notebook had to skip.
"""
