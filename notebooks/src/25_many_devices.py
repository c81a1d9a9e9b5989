# %% [markdown]
r"""
# 25 · Many devices

BERT-base took 16 TPU chips four days ([2018](https://arxiv.org/abs/1810.04805)). How do many devices train *one* model? Each computes the gradient of its own examples; then they add up what they
have. This notebook is about the word "then".

**You will** derive why denominators have to be sums · write a **ring all-reduce** in twenty lines, and count what it sends · run the same over MPI · predict when communication takes longer than
computation · see what else can be cut besides the batch: optimiser, matrices, layers.

**Before this:** [03 · Softmax and cross-entropy](03_softmax_cross_entropy.ipynb), [11 · Heads and losses](11_heads_losses.ipynb), [13 · The optimiser](13_optimiser.ipynb).
**Time:** 80 minutes with the exercises; it runs in about a minute.

| letter | in this notebook |
|---|---|
| $N$ | ranks: processes with a device each, numbered 0 … $N-1$ |
| $n$ | numbers in the gradient |
| $c_r$ | tokens to predict on rank $r$ |
| $\alpha$ | latency: seconds that a message takes, however short it is |
| $\beta$ | bandwidth: bytes per second that a rank sends |
"""

# %%
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
from importlib.util import find_spec
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from minibert import BertConfig, BertForMaskedLM, check, plots
from minibert.course.ring import in_threads
from minibert.tasks.info import step_cost
from minibert.tasks.scaling import Machine, ring_bytes, ring_seconds, scaled_step

plots.notebook_style()
np.set_printoptions(precision=4, suppress=True)

# %% [markdown]
r"""
## 1. Why can a batch be cut?

A loss is a mean over the tokens to predict, and a gradient is linear. Let $\ell_t$ be the loss of token $t$, and let there be $C$ tokens in all. Then

$$ \nabla L = \frac1C \sum_{t} \nabla \ell_t = \frac{1}{C} \sum_{r=0}^{N-1} \; \sum_{t \text{ on rank } r} \nabla \ell_t . $$

So each rank can add up the gradients of its own tokens without a word from the others. Two sums over the ranks remain: that of the gradients, and $C = \sum_r c_r$. This is **data parallelism**: every rank has the whole
model and a part of the batch.

Nothing here is an approximation. The mean of the ranks' means, $\frac1N \sum_r \frac1{c_r} \sum_t \nabla \ell_t$, would be one. It gives the same gradient only if all $c_r$ are equal. In masked language modelling they hardly ever are: short texts have
fewer hidden words.

### Your turn: the mean over all ranks

@exercise 25.mean_gradient
"""


# %% tags=["solution"]
def my_mean_gradient(sums, counts):
    """The gradient of the mean over all tokens. sums (N, n) of the ranks' tokens, counts (N,) → (n,)."""
    return sums.sum(axis=0) / counts.sum()


# %%
check("25.mean_gradient", my_mean_gradient)

# %% [markdown]
r"""
Now with a BERT. Four ranks have two sequences each, and 1, 2, 6 and 11 words to predict. The library's loss is the mean over the tokens of one call, so each rank passes `dloss` $= c_r / C$ to its backward pass.
"""

# %%
config = BertConfig.preset(
    "tiny",
    vocab_size=300,
    hidden_size=32,
    intermediate_size=64,
    max_position_embeddings=16,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)
model = BertForMaskedLM(config, seed=25)
rng = np.random.default_rng(25)
ids = rng.integers(5, 300, size=(8, 16))
labels = np.full((8, 16), -100)
COUNTS = np.array([1, 2, 6, 11])
for rank, count in enumerate(COUNTS):
    places = rng.choice(32, count, replace=False)
    labels[2 * rank : 2 * rank + 2].flat[places] = rng.integers(5, 300, size=count)


# %%
def gradient(rows, dloss):
    """The flat gradient of dloss · (mean loss over these rows)."""
    model.zero_grad()
    _, cache = model.forward(input_ids=ids[rows], labels=labels[rows])
    model.backward(cache, dloss=dloss)
    return model.buffers.grad.copy()


SHARES = [slice(2 * rank, 2 * rank + 2) for rank in range(4)]
together = gradient(slice(None), 1.0)
sums = sum(gradient(rows, c / COUNTS.sum()) for rows, c in zip(SHARES, COUNTS, strict=True))
means = sum(gradient(rows, 1 / 4) for rows in SHARES)


def distance(g):
    return np.linalg.norm(g - together) / np.linalg.norm(together)


print(f"denominators are sums   relative distance from one rank {distance(sums):.1e}")
print(f"mean of means           relative distance from one rank {distance(means):.1e}")

# %% [markdown]
r"""
The first distance is rounding. The second belongs to another gradient, and nothing would tell you so: no shape is wrong, and the loss falls. But a word on a rank with few of them counts for more than a word on a rank with many.

## 2. How would everybody get the sum?

An operation in which all ranks take part is called collective. One that leaves the sum on every rank is an **all-reduce**. Here are three ways to do it, for $n$ numbers on each of $N$ ranks:

1. **Everybody to one.** Rank 0 receives $(N-1)\,n$ numbers, adds them up, and sends as many back. Its link carries $2(N-1)\,n$ numbers, while the other links are mostly idle.
2. **Everybody to everybody.** Each rank sends $(N-1)\,n$ numbers. All links are busy, but the same sum is computed $N$ times.
3. **A ring.** Cut the gradient into $N$ parts. Each rank sends only to its neighbour, and all links are busy all the time.

## 3. The ring

Take $N = 4$ ranks. Each rank $r$ has parts 0, 1, 2, 3 of its own gradient.

**Reduce-scatter.** In each round, a rank sends a part to the next rank, which *adds* it to its own. In the first round, rank $r$ sends part $r$. In each later round it sends on the part that it has just added to. A partial sum thus travels
around the ring and grows. After $N - 1$ rounds it has visited every rank.

**All-gather.** Now each rank has one finished part. In $N - 1$ more rounds the finished parts go around the ring, and each rank *replaces* its own part by the one that it receives.
"""


# %%
def held(N):
    """How many ranks are summed in each part of each rank, before and after every round: (2 (N − 1) + 1, N, N)."""
    has = np.ones((N, N), int)
    states = [has.copy()]
    for s in range(2 * (N - 1)):
        gathering = s >= N - 1
        shift = s - N + 1 - 1 if gathering else s
        before = has.copy()
        for r in range(N):
            part = (r - shift) % N
            has[(r + 1) % N, part] = before[r, part] + (0 if gathering else 1)
        states.append(has.copy())
    return np.array(states)


print(held(4)[[0, 3, 6]])

# %% tags=["figure"]
# Caption: A ring of four ranks. Each square is a part of a rank's gradient; its number says how
#   many ranks are summed in it.
states = held(4)
figure, axes = plt.subplots(1, 7, figsize=(7.5, 1.9), sharey=True)
for s, (panel, state) in enumerate(zip(axes, states, strict=True)):
    panel.imshow(state, cmap="Blues", vmin=0, vmax=5)
    for r in range(4):
        for part in range(4):
            colour = "white" if state[r, part] == 4 else "black"
            panel.text(part, r, state[r, part], ha="center", va="center", fontsize=8, color=colour)
    panel.set_title("start" if s == 0 else f"round {s}", fontsize=9)
    panel.set(xticks=range(4), yticks=range(4))
    panel.grid(False)
axes[0].set_ylabel("rank")
axes[3].set_xlabel("part of the gradient; the number says how many ranks are in it")
figure.set_label(
    "A ring all-reduce of four ranks in seven tables of four ranks and four parts. At the start every number "
    "is 1; in three rounds one part of each rank grows to 4; in three more the fours spread to all"
)
plt.show()

# %% [markdown]
r"""
Follow one column: in each round, a partial sum moves down and grows by one. After round 3, each rank has exactly one 4. The last three rounds spread the 4s.

### How much does each rank send?

One part has $n/N$ numbers, and there are $2(N-1)$ rounds. So each rank sends

$$ \frac{2 (N - 1)}{N} \, n . $$

For two ranks that is $n$; for a thousand it is nearly $2n$. **It stays below $2n$, however many ranks there are.** It cannot be much less, either: every rank has to give away its numbers once, and has to receive the sums once. (Patarasuk and Yuan
[2009](https://doi.org/10.1016/j.jpdc.2008.09.002) prove that it is the least possible.)

### Your turn: a ring all-reduce

Write what *one* rank does. The ranks are threads. `send(array)` gives an array to rank $r + 1$; `receive()` waits for the next one from rank $r - 1$. $n$ is a multiple of $N$. The check also counts what you send.

@exercise 25.ring_all_reduce
"""


# %% tags=["solution"]
def my_ring(x, rank, N, send, receive):
    """The sum of all ranks' x (n,). send(array) goes to the next rank, receive() is from the one before."""
    parts = [part.copy() for part in np.split(x, N)]
    for s in range(N - 1):  # reduce-scatter
        send(parts[(rank - s) % N])
        parts[(rank - s - 1) % N] += receive()
    for s in range(N - 1):  # all-gather
        send(parts[(rank + 1 - s) % N])
        parts[(rank - s) % N] = receive()
    return np.concatenate(parts)


# %%
check("25.ring_all_reduce", in_threads(my_ring))

# %% [markdown]
r"""
Let us count what larger and larger rings send. The cells below use a ring of their own, so that they run without yours.
"""


# %%
def ring(x, rank, N, send, receive):
    parts = np.split(x.copy(), N)
    for s in range(2 * (N - 1)):
        shift, first_half = s % (N - 1), s < N - 1
        send(parts[(rank - shift + (not first_half)) % N])
        target = parts[(rank - shift - first_half) % N]
        target[:] = receive() + (target if first_half else 0)
    return np.concatenate(parts)


print(" N   sent by each rank / n   2 (N − 1)/N")
for N in (2, 3, 4, 6, 12):
    xs = rng.standard_normal((N, 120))
    results, sent = in_threads(ring)(xs)
    assert np.allclose(results, xs.sum(axis=0))
    print(f"{N:>2} {sent[0] / 120:>18.3f} {2 * (N - 1) / N:>18.3f}")

# %% tags=["figure"]
# Caption: How long the busiest link is at work, in multiples of the time that one gradient takes.
#   (A link sends and receives at once; rank 0 has to receive everything before it can send.) In a
#   ring it is less than twice that time, however many ranks there are.
ranks = np.arange(2, 65)
figure, axes = plt.subplots(figsize=(5.5, 3))
axes.loglog(ranks, 2 * (ranks - 1), color=plots.VERMILION, label="everybody to one: its link")
axes.loglog(ranks, ranks - 1, color=plots.GREY, label="everybody to everybody")
axes.loglog(ranks, 2 * (ranks - 1) / ranks, color=plots.BLUE, label="ring")
axes.set(xlabel="ranks", ylabel="time on the busiest link, in n / β")
axes.set_xticks(2 ** np.arange(1, 7), 2 ** np.arange(1, 7))
axes.minorticks_off()
axes.legend()
figure.set_label(
    "What the busiest link carries, from 2 to 64 ranks: it grows with the number of ranks if everybody sends "
    "to one or to everybody, and stays below twice the gradient in a ring"
)
plt.show()

# %% [markdown]
r"""
Now the four ranks' gradients of section 1 go through the ring.
"""

# %%
gradients = np.stack(
    [gradient(rows, c / COUNTS.sum()) for rows, c in zip(SHARES, COUNTS, strict=True)]
)
padded = np.pad(gradients, ((0, 0), (0, -gradients.shape[1] % 4)))
results, _ = in_threads(ring)(padded)
through_ring = results[:, : gradients.shape[1]]
print(
    f"{gradients.shape[1]:,} numbers; relative distance from one rank {distance(through_ring[0]):.1e}"
)
print("the same bits on all ranks:", bool((through_ring == through_ring[0]).all()))

# %% [markdown]
r"""
## 4. The same bits?

All ranks have the same bits, because each part was added up only once and then copied. Otherwise the copies of the model would drift apart. But are these the bits of *one* process that adds the four gradients in order? Addition of floating-point numbers is not associative, and in the ring the sum of each part begins with another rank.
"""

# %%
in_order = ((gradients[0] + gradients[1]) + gradients[2]) + gradients[3]
different = in_order != through_ring[0]
print(f"{different.mean():.0%} of the numbers have other bits than ((a + b) + c) + d")
a, b, c = np.float32(1e8), np.float32(-1e8), np.float32(1)
print("(a + b) + c =", (a + b) + c, "   a + (b + c) =", a + (b + c))

# %% [markdown]
r"""
The difference is rounding, and harmless for learning. But it is a nuisance when you look for a mistake: you cannot tell rounding from a bug. So minibert adds in a fixed order: each rank gets its part from *all* others, adds these in the order of the ranks, and gives the sum to everybody. With one batch per rank, each rank then
sends about $2(N-1)/N \cdot n$ numbers, too. And $N$ ranks give what one process gives, bit for bit.

## 5. Over MPI

Threads share memory; machines do not. **MPI**, the Message Passing Interface (1994), is the standard for programs on many machines: `mpiexec -n 4` starts the same program four times, and each copy asks for its rank. Here is the ring as a
script. `Sendrecv` sends and receives at the same time. If all ranks called `Send` first, each could wait for the next one to receive: a deadlock.
"""

# %%
SCRIPT = textwrap.dedent("""
    import numpy as np
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    rank, N = world.rank, world.size
    right, left = (rank + 1) % N, (rank - 1) % N


    def ring(x):
        parts, got = [part.copy() for part in np.split(x, N)], np.empty(len(x) // N)
        for s in range(N - 1):
            world.Sendrecv(parts[(rank - s) % N], right, 0, got, left, 0)
            parts[(rank - s - 1) % N] += got
        for s in range(N - 1):
            world.Sendrecv(parts[(rank + 1 - s) % N], right, 0, got, left, 0)
            parts[(rank - s) % N][:] = got
        return np.concatenate(parts)


    x = np.random.default_rng(rank).standard_normal(1200)
    ours, library = ring(x), np.empty_like(x)
    world.Allreduce(x, library)
    line = f"rank {rank} of {N}: ring {ours.sum():.6f}, MPI's own {library.sum():.6f}"
    for text in world.gather(line) or []:
        print(text)
""")


def mpiexec(ranks, script):
    """What the script prints when it runs on this many ranks; None without mpi4py or mpiexec."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    launcher = shutil.which("mpiexec", path=path)
    if launcher is None or find_spec("mpi4py") is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "ring.py"
        file.write_text(script, encoding="utf-8")
        command = [launcher, "-n", str(ranks), sys.executable, str(file)]
        return subprocess.run(command, capture_output=True, text=True, timeout=120).stdout


print(mpiexec(4, SCRIPT) or "Skipped: install mpi4py and an MPI to run this.")

# %% [markdown]
r"""
In one line, `Allreduce` does what your function does. MPI chooses the algorithm, such as a ring or a tree, by the size of the message. On GPUs, NVIDIA's library NCCL does the same over NVLink, the fast connection between the GPUs of one machine.

With minibert there is nothing to write:

```sh
mpirun -n 4 minibert pretrain --preset tiny --accumulation 4
```

`--accumulation` counts the micro-batches of a step on all ranks together.

## 6. Latency and bandwidth

A message of $m$ bytes takes about $\alpha + m / \beta$ seconds. In a ring, $2(N-1)$ messages follow each other. With $n$ counted in bytes from here on, each has $n/N$ of them:

$$ t_\text{ring} = 2 (N - 1) \left( \alpha + \frac{n}{N \beta} \right) . $$

For large messages, bandwidth matters most; for many ranks, latency. Hence many small arrays are bad: the parameters of BERT-base are about 200 arrays, and 200 rings have 200 times the latency of one. With all gradients in one flat buffer, there is only one array to send.
"""

# %%
base = BertConfig.preset("base")
size = step_cost(base, 32, 128, 20).gradient_bytes
NETWORK = Machine(flops=400e12, bandwidth=50e9, latency=5e-6)  # assumed, not measured
print(f"base: {size / 1e6:.0f} MB of gradients")
print("ranks    sent     bandwidth   latency")
for N in (2, 8, 64, 512):
    sent = ring_bytes(size, N) / 1e6
    late = 2 * (N - 1) * NETWORK.latency
    sending = ring_seconds(size, N, NETWORK) - late
    print(f"{N:>5} {sent:>6.0f} MB {1e3 * sending:>8.2f} ms {1e3 * late:>7.2f} ms")

# %% [markdown]
r"""
### When does communication take longer than computation?

Keep the total batch of all ranks fixed, and add ranks. With $T_1$ for the time of one rank alone, computation takes $T_1 / N$; communication stays near $2n/\beta$. The curves must cross. The numbers are those of base with 256 sequences of 128 tokens. The machine is **assumed**: 400 TFLOP/s over a whole step, and links of 50 or 450 GB/s.
"""

# %%
LINKS = {"50 GB/s (network)": 50e9, "450 GB/s (NVLink)": 450e9}
SEQUENCES = 256
one = step_cost(base, 1, 128, 20)
alone = SEQUENCES * (one.forward_flops + one.backward_flops) / 400e12
print(f"one rank: {1e3 * alone:.0f} ms per step")
for name, bandwidth in LINKS.items():
    machine = Machine(400e12, bandwidth, 5e-6)
    crossing = next(N for N in range(2, 257) if ring_seconds(size, N, machine) > alone / N)
    print(f"{name}: communication takes longer from {crossing} ranks on")

# %% tags=["figure"]
# Caption: The time to compute a step, and to add up its gradient, as more ranks share 256
#   sequences. Both axes are logarithmic.
ranks = 2 ** np.arange(0, 9)
figure, axes = plt.subplots(figsize=(6, 3.4))
axes.loglog(ranks, 1e3 * alone / ranks, color=plots.BLUE, label="computation")
for (name, bandwidth), colour in zip(LINKS.items(), (plots.VERMILION, plots.GREY), strict=True):
    times = [1e3 * ring_seconds(size, N, Machine(400e12, bandwidth, 5e-6)) for N in ranks[1:]]
    axes.loglog(ranks[1:], times, "o-", color=colour, markersize=3, label=f"ring, {name}")
axes.set(xlabel="ranks that share 256 sequences", ylabel="milliseconds per step")
axes.set_xticks(ranks, ranks)
axes.minorticks_off()
axes.legend()
figure.set_label(
    "Milliseconds per step from 1 to 256 ranks: computation falls with the number of ranks, the ring's time "
    "does not. They cross at about 4 ranks over a network, and at about 21 over NVLink"
)
plt.show()

# %% [markdown]
r"""
To the left of the crossing, more ranks help. To the right of it, they mostly wait. A faster link moves the crossing to the right. So does more work per rank: longer sequences or larger batches. That is why so much work went into training with large batches (LAMB, You and others [2019](https://arxiv.org/abs/1904.00962): BERT with batches of 32,768).

### What the backward pass hides

A backward pass produces gradients from the last layer to the first. The gradient of the heads is **final** long before that of the embeddings. Why wait? A piece can be sent while the layers below are still computing theirs. Piece $i$ is final at time $f_i$, and takes $t_i$ seconds on the link. It has been sent at

$$ d_i = \max(f_i, \; d_{i-1}) + t_i, \qquad d_{-1} = 0 . $$

The backward pass ends at time $b$. Whatever has not been sent by then has to be waited for.

### Your turn: what is left to wait for

@exercise 25.waiting
"""


# %% tags=["solution"]
def my_waiting(final, seconds, backward):
    """Seconds after the backward pass until all pieces are sent. final, seconds (pieces,) → a number."""
    done = 0.0
    for begin, takes in zip(final, seconds, strict=True):
        done = max(begin, done) + takes
    return max(0.0, done - backward)


# %%
check("25.waiting", my_waiting)

# %% [markdown]
r"""
Here is base on 8 ranks with 32 sequences each. There are fourteen pieces, the heads first and the embeddings last. They are sent over a network or over NVLink.
"""

# %%
cost = step_cost(base, 32, 128, 20)
heads, layer = (2 * cost.heads_flops / 400e12, 2 * cost.encoder_flops / 12 / 400e12)
final = np.concatenate([heads + layer * np.arange(13), [heads + layer * 12]])[:14]
LAYER, EMBEDDINGS = 7_087_872 * 4, 23_837_184 * 4  # bytes; notebook 10 counts them
sizes = np.array([1_214_780 * 4, *[LAYER] * 12, EMBEDDINGS])


def timeline(bandwidth, N=8):
    """When each piece starts and ends on the link: (pieces,), (pieces,)."""
    starts, ends, done = [], [], 0.0
    for begin, size in zip(final, sizes, strict=True):
        starts.append(max(begin, done))
        done = starts[-1] + ring_seconds(size, N, Machine(400e12, bandwidth, 5e-6))
        ends.append(done)
    return np.array(starts), np.array(ends)


backward = heads + 12 * layer
for name, bandwidth in LINKS.items():
    starts, ends = timeline(bandwidth)
    busy, late = (ends - starts).sum(), ends[-1] - backward
    print(f"{name}: link busy {1e3 * busy:.2f} ms, waited for {1e3 * late:.2f} ms")

# %% tags=["figure"]
# Caption: The backward pass (blue) and the messages of its fourteen pieces (grey; the embeddings
#   are orange).
figure, axes = plt.subplots(2, 1, figsize=(7.5, 3.2), sharex=True)
for panel, (name, bandwidth) in zip(axes, LINKS.items(), strict=True):
    starts, ends = timeline(bandwidth)
    edges = 1e3 * np.concatenate([[0, heads], heads + layer * np.arange(1, 13)])
    panel.barh(1, np.diff(edges), left=edges[:-1], color=plots.BLUE, edgecolor="white")
    colours = [plots.GREY] * 13 + [plots.VERMILION]
    panel.barh(0, 1e3 * (ends - starts), left=1e3 * starts, color=colours, edgecolor="white")
    panel.axvline(1e3 * backward, color="black", linewidth=0.8)
    panel.set(yticks=[0, 1], yticklabels=["link", "backward"], title=name)
    panel.grid(False)
axes[1].set_xlabel("milliseconds; the line is the end of the backward pass, orange: embeddings")
figure.set_label(
    "Two time lines of the backward pass and of the messages of its fourteen pieces. Over a network the "
    "messages end long after the backward pass; over NVLink only the last two pieces do"
)
plt.show()

# %% [markdown]
r"""
Over NVLink, everything is hidden but the end: the piece of the lowest layer, and the embeddings. The embeddings can never be hidden, since their gradient is final only when the backward pass ends, and in base they are a fifth of all parameters. Over the network, the link falls behind from the second layer's piece on.

The library has these formulas for every model and every number of ranks. It counts the pieces one by one, as in the last figure (fifteen, since the pooler is a piece of its own there), and each of them has the latency of a whole ring. So it finds that communication takes longer from 13 ranks on, where the single ring above gave 21:

```sh
minibert info --preset base --ranks 8 --tflops 400 --link 450 --latency 5
```

It assumes no speeds: you give those that you measured. [Many devices, on paper](../docs/scaling.md) has tables for 8 and 64 GPUs.
"""

# %%
for ranks_, batch_size in ((8, 32), (64, 4), (64, 256)):
    bandwidth = LINKS["450 GB/s (NVLink)"] if ranks_ == 8 else LINKS["50 GB/s (network)"]
    step = scaled_step(base, ranks_, Machine(400e12, bandwidth, 5e-6), batch_size, 128, 20)
    shape = f"{ranks_:>3} ranks × {batch_size:>3} sequences"
    print(f"{shape}: {1e3 * step.seconds:>6.1f} ms per step, efficiency {step.efficiency:.0%}")

# %% [markdown]
r"""
## 7. What else can be cut?

Data parallelism copies everything but the batch. For float32 with Adam, that is 16 bytes per parameter on each rank: 4 for the value, 4 for its gradient, 8 for the two moments. Rajbhandari and others ([2020](https://arxiv.org/abs/1910.02054), **ZeRO**) observed that a rank needs the moments only for its update, and that each rank can update its own part:

- **ZeRO-1** cuts the optimiser's state. After the reduce-scatter, each rank has the sum of one part. It updates this part of the parameters, and the all-gather passes on *parameters* instead of gradients. Just as many bytes are sent!
- **ZeRO-2** also cuts the gradient: each rank keeps only its part.
- **ZeRO-3** also cuts the parameters, and fetches those of a layer when they are needed. That takes half as much communication again.
"""


# %%
def bytes_per_parameter(stage, N):
    """Parameters, gradients and moments in float32, on each of N ranks."""
    cut = [1 / N if stage >= least else 1 for least in (3, 2, 1)]
    return np.array([4, 4, 8]) * cut


for stage in range(4):
    held_bytes = bytes_per_parameter(stage, 8).sum()
    base_gb = held_bytes * size / 4e9  # size / 4: the parameters of base
    print(
        f"stage {stage} on 8 ranks: {held_bytes:>5.2f} bytes per parameter, {base_gb:.2f} GB for base"
    )

# %% tags=["figure"]
# Caption: What a rank holds per parameter, as eight ranks divide up more and more of the state.
figure, axes = plt.subplots(figsize=(6, 2.6))
left = np.zeros(4)
names = ("parameters", "gradients", "moments")
for i, (name, colour) in enumerate(
    zip(names, (plots.BLUE, plots.VERMILION, plots.GREY), strict=True)
):
    width = np.array([bytes_per_parameter(stage, 8)[i] for stage in range(4)])
    axes.barh(range(4), width, left=left, color=colour, label=name)
    left += width
axes.set_yticks(range(4), ["none", "ZeRO-1", "ZeRO-2", "ZeRO-3"])
axes.invert_yaxis()
axes.set(xlabel="bytes per parameter on each of 8 ranks")
axes.legend(loc="lower right")
figure.set_label(
    "Bars of the bytes per parameter on each of 8 ranks: 16 without ZeRO, 9 with its first stage, 5.5 with "
    "the second, 2 with the third"
)
plt.show()

# %% [markdown]
r"""
Two more ways cut the *model*. BERT does not need them; models that are too large for a single device do.

- **Tensor parallelism** (Megatron-LM, Shoeybi and others [2019](https://arxiv.org/abs/1909.08053)) cuts matrices. Two ranks have half of the heads each, and half of the feed-forward network's $F$ columns. Each layer then needs two all-reduces of activations in the forward pass and two in the backward pass, so the link has to be very fast.
- **Pipeline parallelism** (GPipe, Huang and others [2018](https://arxiv.org/abs/1811.06965)) cuts between layers. Only the activations between two stages are sent. But a stage has to wait until the one before has something for it. With $N$ stages and $M$ micro-batches (parts of the batch), a share of $(N-1)/(M+N-1)$ of the time is spent waiting, in the **bubble**.
"""

# %% tags=["figure"]
# Caption: Three ways to divide one model of four layers between two ranks (blue and orange).
figure, axes = plt.subplots(1, 3, figsize=(7.5, 2.5))
COLOURS = [plots.BLUE, plots.VERMILION]
for panel, title in zip(axes, ("data", "tensor", "pipeline"), strict=True):
    for row in range(4):  # layers, from below
        for column in range(4):  # columns of the layer's matrices
            owner = {"tensor": column // 2, "pipeline": row // 2}.get(title)
            if owner is None:
                for rank in range(2):
                    panel.add_patch(
                        plt.Rectangle((column + 5 * rank, row), 0.9, 0.9, color=COLOURS[rank])
                    )
            else:
                panel.add_patch(plt.Rectangle((column, row), 0.9, 0.9, color=COLOURS[owner]))
    panel.set(xlim=(-0.3, 9.3 if title == "data" else 4.3), ylim=(-0.3, 4.3), title=title)
    panel.set(xticks=[], yticks=[0.45, 3.45], yticklabels=["layer 1", "layer 4"])
    panel.grid(False)
axes[0].set_xlabel("two whole copies")
axes[1].set_xlabel("columns of every layer")
axes[2].set_xlabel("two layers each")
figure.set_label(
    "Three grids of four layers and four columns. Data: two whole copies, one for each rank. Tensor: each "
    "rank has half of the columns of every layer. Pipeline: each rank has two layers"
)
plt.show()


# %%
def two_halves(x, W1, W2):
    """A feed-forward network cut over two ranks: columns of W1, rows of W2. x (B, H) → (B, H)."""
    F = W1.shape[1] // 2
    partial = [np.maximum(x @ W1[:, part], 0) @ W2[part] for part in (slice(0, F), slice(F, None))]
    return partial[0] + partial[1]  # one all-reduce


x, W1, W2 = rng.standard_normal((3, 8)), rng.standard_normal((8, 32)), rng.standard_normal((32, 8))
print("the same as uncut:", np.allclose(two_halves(x, W1, W2), np.maximum(x @ W1, 0) @ W2))
for M in (1, 4, 16, 64):
    print(f"4 stages, {M:>2} micro-batches: bubble {3 / (M + 3):.0%}")

# %% [markdown]
r"""
The first matrix is cut by columns, so that the activation needs no communication. The second is cut by rows, so that the two halves only have to be added.

## Recap

- A gradient is a sum over tokens, so ranks can add up their own. Numerators *and* denominators are sums.
- In a ring, each rank sends $2(N-1)/N$ times the size of the gradient: less than twice, however many ranks there are.
- Its latency does grow with $N$. One flat buffer keeps the number of messages small.
- Communication takes longer than computation when a rank has too little to compute. Until then the backward pass hides most of it, but never the embeddings.
- ZeRO-1 divides the moments among the ranks without sending a single byte more.

## What usually goes wrong

- **A mean of means.** It passes every test in which all ranks have equally many tokens to predict.
- **The same batch, or the same dropout, on all ranks.** With the same batch, $N$ ranks do the work of one; with the same dropout masks, their examples are less independent than they should be. In minibert, the rank's number is part of every dropout key.
- **Different initial values.** Each rank must start from the same parameters: use the same seed, or a broadcast.
- **Clipping before the sum.** The norm is that of the *summed* gradient.
- **One rank takes another branch**: it skips a step, or evaluates. The others wait for it forever.
- **The learning rate of the small batch.** With $N$ ranks the batch is $N$ times as large, and may need another rate.
"""

# %% [markdown]
r"""
## Three questions

Answer before you unfold.
"""

# %% [markdown]
r"""
<details>
<summary><b>1.</b> Why does rank <i>r</i> end the first half with part <i>r</i> + 1, and not with part <i>r</i>?</summary>

A part begins its journey on the rank of its own number, and makes $N - 1$ hops forward. It ends one hop short of a full circle: on the rank before the one where it began. So rank $r$ ends up with part $r + 1$.

</details>
"""

# %% [markdown]
r"""
<details>
<summary><b>2.</b> A ring has eight ranks. One of its links is ten times slower than the others. How fast is the ring?</summary>

As fast as the slow link. Every rank sends in every round, and the next round needs what was received in this one. So a ring over several machines is laid out so that it crosses from one machine to another as rarely as possible.

</details>
"""

# %% [markdown]
r"""
<details>
<summary><b>3.</b> Does accumulating $k$ micro-batches before the all-reduce help?</summary>

Yes, if one all-reduce at the end is enough: then there is $k$ times the computation for the same communication. But the batch is $k$ times as large as well, which is not always wanted.

</details>
"""

# %% [markdown]
r"""
## Further reading

- Patarasuk and Yuan: [Bandwidth optimal all-reduce algorithms for clusters of workstations](https://doi.org/10.1016/j.jpdc.2008.09.002) (2009).
- Li and others: [PyTorch Distributed](https://arxiv.org/abs/2006.15704) (2020): how pieces of the gradient are sent while the backward pass runs.
- Rajbhandari and others: [ZeRO](https://arxiv.org/abs/1910.02054) (2020).
- Shoeybi and others: [Megatron-LM](https://arxiv.org/abs/1909.08053) (2019), with a BERT of 3.9 billion parameters.
- You and others: [Large batch optimization for deep learning: training BERT in 76 minutes](https://arxiv.org/abs/1904.00962) (2019).

## Next

Back to the [overview of the course](README.md).
"""
