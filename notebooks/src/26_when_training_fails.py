# %% [markdown]
r"""
# 26 · When training fails

A program with a mistake usually stops. A training run with a mistake goes on, and its loss may even fall. So you have to know what mistakes *look* like. This
notebook has broken runs to diagnose. It shows where NaN values come from. And it looks at runs that are stopped and resumed, which may go on wrongly without a sign of it.

**You will** read the gradient norm · find out what is wrong with three broken runs · break a training in five ways and watch ·
find the first NaN · see one bad step poison an optimiser · work out from the step number alone which examples come next ·
stop a run and resume it, bit for bit.

**Before this:** [14 · Pre-training](14_pretraining.ipynb), whose second half this is; [13 · The optimiser](13_optimiser.ipynb).
**Time:** 75 minutes with the exercises; it runs in a minute (the long runs are read from a log).

| letter | in this notebook |
|---|---|
| `B`, `S` | sequences in a batch, tokens in a sequence |
| `V`, `H` | tokens in the vocabulary, hidden size |
| $m$, $v$ | Adam's running means of a parameter's gradient and of its square |

Losses are in nats, and are means over the predicted positions.
"""

# %%
import contextlib
import io
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from pydoc_data.topics import topics

import matplotlib.pyplot as plt
import numpy as np

from minibert import BertConfig, BertForPreTraining, BertTokenizer, check, plots
from minibert.course import EXERCISES, read_log
from minibert.course.exercises.n26_when_training_fails import CAUSES
from minibert.data import BatchStream, Documents, InstanceSettings
from minibert.data.batches import held_out_batches
from minibert.data.prose import prose_sentences
from minibert.nn.context import Context
from minibert.ops.stable_softmax import log_softmax
from minibert.tasks.held_out import evaluate
from minibert.tasks.pretraining_settings import PretrainSettings
from minibert.train import AdamW, Trainer
from minibert.train.checkpoint import open_checkpoint, save_checkpoint
from minibert.train.metrics import MetricsLog, read_metrics
from minibert.train.schedule import original

plots.notebook_style()
np.set_printoptions(precision=3, suppress=True)

# %% [markdown]
r"""
## 1. What a healthy run looks like

To see what is wrong, you have to know what is right. [14](14_pretraining.ipynb) followed one healthy run: `minibert pretrain`'s tiny model (2 layers, `H` = 128) on the
documentation that is installed with Python. Here is its log again, with two baselines that need no training. The **unigram line** is the loss of guessing by frequency.
The **copying line** is the loss of a rule that also reads the word that stands at the place to be predicted. `RERUN` trains this run and the four broken ones anew, in a quarter of an hour on one core.
"""

# %%
RERUN = False  # True: make the runs anew, on the documentation installed here
SETTINGS = PretrainSettings(
    vocab_size=4096,
    position_initializer="sinusoidal",
    steps=3000,
    log_every=20,
    eval_every=100,
    eval_batches=16,
)


# %% tags=["figure"]
def lines_of(counts, batches, mask_id):
    """The unigram line and the copying line on these batches, as in 14."""
    seen, right = (
        np.concatenate([batch[name].ravel() for batch in batches])
        for name in ("input_ids", "labels")
    )
    chosen = right != -100
    f = (counts + 1) / (counts.sum() + len(counts))
    p = EXERCISES["14.copying_rule"].solution(f, seen[chosen], right[chosen], mask_id)
    return float(-np.log(f[right[chosen]]).mean()), float(-np.log(p).mean())


def constants(model, batches):
    """Held-out losses of predictions that do not depend on the input: the mean logits, and the bias alone."""
    logits = [model.forward(**batch)[0].prediction_logits for batch in batches]
    mean = np.concatenate(logits).mean(axis=0)  # (V,): h̄ Wᵀ + b, as every logit is h Wᵀ + b
    bias = dict(model.named_parameters())["cls.predictions.bias"].value  # (V,)
    labels = np.concatenate([batch["labels"].ravel() for batch in batches])
    labels = labels[labels != -100]  # (P,)
    return {
        name: float(-log_softmax(row)[0][labels].mean())
        for name, row in (("mean_logits_loss", mean), ("bias_loss", bias))
    }


def train(
    name, folder, settings=SETTINGS, documents=slice(None), wrap=lambda batches: batches, stop=None
):
    """Pre-train on the documentation installed here; returns the run as one line of the log.

    documents: which of them to train on; wrap: a function that changes the stream of batches.
    """
    from minibert.tasks.pretraining import evaluation_batches, prepare
    from minibert.tasks.run import learning_rates, make_optimiser

    settings = replace(settings, prepared=str(folder), processes=1)
    tokenizer, prepared = prepare(settings)
    batches = evaluation_batches(settings, tokenizer, prepared)
    counts = prepared.train.token_counts(len(tokenizer))
    unigram, copying = lines_of(counts, batches, tokenizer.mask_id)

    text = replace(prepared.train, chosen=prepared.train.chosen[documents])
    [phase] = settings.phases()
    stream = BatchStream(text, tokenizer, phase.instances, phase.batch_size, settings.seed)
    model = BertForPreTraining(settings.model_config(len(tokenizer)), seed=settings.seed)
    metrics = MetricsLog(Path(folder) / f"{name}.jsonl")
    trainer = Trainer(
        model,
        make_optimiser(settings, model),
        wrap(stream),
        learning_rates(settings, settings.steps),
        evaluate=lambda: evaluate(model, batches) | constants(model, batches),
        save=lambda state: metrics.path,  # no checkpoints
        metrics=metrics,
        steps=settings.steps,
        log_every=settings.log_every,
        eval_every=settings.eval_every,
        save_every=settings.steps,
    )
    trainer.run(stop)
    kept = [
        {
            key: float(f"{value:.4g}") if isinstance(value, float) else value
            for key, value in record.items()
            if "second" not in key
        }
        for record in read_metrics(metrics.path)
    ]
    return {
        "run": name,
        "V": len(tokenizer),
        "unigram_line": round(unigram, 3),
        "copying_line": round(copying, 3),
        "documents": len(text),
        "text_tokens": int(text.lengths().sum()),
        "metrics": kept,
    }


# %%
logged = {run["run"]: run for run in read_log("14_runs.jsonl")}
healthy = logged["healthy"]


def column(run, name, stop=None):
    """(2, N): the steps, and what was measured after each."""
    pairs = [
        (r["step"], r[name]) for r in run["metrics"] if name in r and r["step"] <= (stop or 1e9)
    ]
    return np.array(pairs).T


LINES = {
    "ln V": np.log(healthy["V"]),
    "unigram line": healthy["unigram_line"],
    "copying line": healthy["copying_line"],
}


# %% tags=["figure"]
# Caption: The healthy run of notebook 14, with the lines to compare it with.
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


figure, axes = plt.subplots(figsize=(7.5, 3.2))
draw_lines(axes, LINES, 3000)
draw_losses(axes, healthy)
axes.set(title="the healthy run", xlabel="step", ylabel="MLM loss (nats)")
axes.legend(fontsize=9, loc="lower left")
figure.set_label(
    "The loss of a healthy run over 3,000 steps: it falls below the unigram line within 200, rests around the "
    "copying line until about 900, and then falls again; held-out text follows the training text closely"
)
plt.show()

# %% [markdown]
r"""
## 2. The gradient norm

Besides the loss, a run reports one more number: the **gradient norm**, which is the length of the whole gradient before it is clipped to 1.
"""

# %% tags=["figure"]
# Caption: The gradient norm of the healthy run, before clipping. Everything above the dashed line is
#   clipped.
figure, axes = plt.subplots(figsize=(7.5, 2.6))
axes.plot(*column(healthy, "grad_norm"), color=plots.PURPLE)
axes.axhline(1, color=plots.GREY, linestyle="--", linewidth=1.2)
axes.text(3000, 1.05, "clipped above this", color=plots.GREY, fontsize=9, ha="right", va="bottom")
axes.set(title="the same run", xlabel="step", ylabel="gradient norm", ylim=(0, None))
figure.set_label(
    "The gradient norm of the healthy run over 3,000 steps: a peak at the start, about "
    "1.6 on the plateau, and nearly 3 at the end, always above the line at which it is "
    "clipped"
)
plt.show()

# %%
at, length = column(healthy, "grad_norm")
shelf, end = length[(at > 300) & (at < 700)].mean(), length[at > 2500].mean()
print(f"on the plateau {shelf:.1f}, in the last 500 steps {end:.1f}")
assert end > shelf

# %% [markdown]
r"""
The norm is small on the plateau, and grows when the model begins to use context.

## 3. Your turn: what is wrong with these three runs?

@exercise 26.diagnosis

One thing is wrong in each; all else is as in the healthy run. Say what it is from the curves alone. These are the causes to choose from:
"""

# %%
for letter, cause in CAUSES.items():
    print(f"{letter}  {cause}")

# %% tags=["figure"]
# Caption: The healthy run and three others. Above: the loss. Below: the gradient norm, before
#   clipping.
figure, axes = plt.subplots(
    2, 4, figsize=(7.5, 4.4), sharex=True, sharey="row", height_ratios=(2, 1)
)
for (upper, lower), name in zip(axes.T, ("healthy", "A", "B", "C"), strict=True):
    draw_lines(upper, LINES, 1500, texts=name == "C", below=("ln V", "copying line"))
    draw_losses(upper, logged[name], 1500)
    lower.semilogy(*column(logged[name], "grad_norm", 1500), color=plots.PURPLE, linewidth=1.2)
    upper.set(title=name, ylim=(1, 9.2))
    lower.set(xticks=(0, 500, 1000, 1500), xlabel="step")
    lower.tick_params(axis="x", labelsize=8.5)
axes[0, 0].set_ylabel("MLM loss (nats)")
axes[1, 0].set_ylabel("gradient")
axes[0, 1].legend(fontsize=8.5, loc="lower left")
plt.show()

# %%
print("           training  |         the last 200 steps")
print("steps      100–300   |  training  held-out  gradient")
for name in ("healthy", "A", "B", "C"):
    means = []
    for measured, first, last in (
        ("mlm_loss", 100, 300),
        ("mlm_loss", 1300, 1500),
        ("held_out_mlm_loss", 1300, 1500),
        ("grad_norm", 1300, 1500),
    ):
        at, values = column(logged[name], measured)
        means.append(values[(at > first) & (at <= last)].mean())
    print("{:<8} {:9.2f}   | {:9.2f} {:9.2f} {:9.1f}".format(name, *means))

# %% [markdown]
r"""
Answer with three letters, `("?", "?", "?")`, for A, B and C.
"""

# %% tags=["solution"]
diagnosis = ("d", "a", "e")

# %%
check("26.diagnosis", diagnosis)

# %% [markdown] tags=["answer"]
r"""
**A** reaches the unigram line about as fast as the healthy run, and stays there. It does not even reach the copying line, since its labels have nothing to
do with its input: each row had the labels of the row before. There is no error and no strange number, and the test with one batch ([14](14_pretraining.ipynb#3.-Overfit-one-batch-first)) is passed.
**B** has 100 times the learning rate. It never reaches the line, its loss rises again with the rate, and its gradient is long. **C** has 12 documents
instead of 965. It learns them by heart, and gets worse and worse on other text. Without the held-out curve it would look like the best of all.

This is how `train` above made them:
"""


# %% tags=["answer"]
class LabelsOfOthers:
    """A stream of batches in which every row's labels are those of the row before."""

    def __init__(self, stream):
        self.stream = stream

    def __next__(self):
        batch = next(self.stream)
        return batch | {"labels": np.roll(batch["labels"], 1, axis=0)}

    def state(self):
        return self.stream.state()


BROKEN = {
    "A": {"wrap": LabelsOfOthers},
    "B": {"settings": replace(SETTINGS, learning_rate=100 * SETTINGS.learning_rate)},
    "C": {"documents": slice(12)},
    "D": {"settings": replace(SETTINGS, learning_rate=10 * SETTINGS.learning_rate)},
}
if RERUN:
    with tempfile.TemporaryDirectory() as folder:
        logged["healthy"] = train("healthy", folder)
        for name, how in BROKEN.items():
            logged[name] = train(name, folder, stop=1500, **how)
print("    documents    tokens  held-out  gradient   NSP")
for name in BROKEN:
    ends = [column(logged[name], key)[1][-10:].mean() for key in ("grad_norm", "nsp_loss")]
    documents, text_tokens = logged[name]["documents"], logged[name]["text_tokens"]
    _, losses = column(logged[name], "held_out_mlm_loss")
    print(f"{name} {documents:11} {text_tokens:9,} {losses[-1]:9.2f} {ends[0]:9.1f} {ends[1]:6.2f}")

# %% [markdown] tags=["answer"]
r"""
**D** is one more run, with 10 times the learning rate. Its loss is almost indistinguishable from A's, but its gradient is more than twice as
long. When in doubt, lower the rate. If the loss then still stays on the line, suspect the data.
"""

# %% [markdown]
r"""
## 4. Break it yourself

Here are five more mistakes, in runs that are small enough to make here: a model of 64 numbers per token, and 150 steps on Python's language reference. What do you expect of each?
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
batches = list(held_out_batches(held_out, tokenizer, INSTANCES, batch_size=8))
CONFIG = BertConfig.preset("tiny", vocab_size=V, max_position_embeddings=64, initializer_range=0.05)
SMALL = CONFIG.replace(hidden_size=64, intermediate_size=256, num_attention_heads=2)
unigram, copying = lines_of(training.token_counts(V), batches, tokenizer.mask_id)
print(f"ln V {np.log(V):.2f}   unigram line {unigram:.2f}   copying line {copying:.2f}")


# %%
def unhidden(batch):
    """The same batch, with the true words in the places where they were hidden."""
    ids = np.where(batch["labels"] == -100, batch["input_ids"], batch["labels"])
    return batch | {"input_ids": ids}


def run_with(
    change=lambda batch: batch, steps=150, zero_grad=True, peak=3e-3, decay=0.01, clip=1.0
):
    """Train from the same start and on the same batches: training losses, gradient norms, held-out loss."""
    model = BertForPreTraining(SMALL, seed=1)
    optimiser = AdamW(model, weight_decay=decay, clip_norm=clip)
    stream = BatchStream(training, tokenizer, INSTANCES, batch_size=8, seed=1)
    losses, lengths = [], []
    for step in range(steps):
        if zero_grad or step == 0:
            model.zero_grad()
        outputs, cache = model.forward(**change(next(stream)), return_logits=False)
        model.backward(cache)
        rate = original(step, steps=steps, warmup=15, peak=peak)
        lengths.append(float(optimiser.step(rate, step)))
        losses.append(float(outputs.mlm_loss))
    return losses, lengths, evaluate(model, batches[:4])["mlm_loss"]


FAULTS = {
    "healthy": {},
    "the words are not hidden": {"change": unhidden},
    "zero_grad forgotten": {"zero_grad": False},
    "a rate 100 times too low": {"peak": 3e-5},
    "decay 1,000 times too high": {"decay": 10.0},
    "no clipping": {"clip": 1e9},
}
gallery = {name: run_with(**how) for name, how in FAULTS.items()}
print(f"{'':<28}training   held-out   gradient norm   (last 20 steps)")
for name, (losses, lengths, held_out_loss) in gallery.items():
    print(
        f"{name:<28}{np.mean(losses[-20:]):8.2f} {held_out_loss:10.2f} {np.mean(lengths[-20:]):15.2f}"
    )

# %% tags=["figure"]
# Caption: A healthy short run, and one with each of five mistakes. The dot is the loss on held-out
#   text at the end; the dashed line is the unigram line.
figure, axes = plt.subplots(2, 3, figsize=(7.5, 4.4), sharex=True, sharey=True)
for panel, (name, (losses, _, held_out_loss)) in zip(axes.flat, gallery.items(), strict=True):
    panel.axhline(unigram, color=plots.GREY, linestyle="--", linewidth=1.1)
    panel.plot(losses, color=plots.SKY, linewidth=1.1, label="training")
    panel.plot([149], [held_out_loss], "o", color=plots.BLUE, label="held-out, at the end")
    panel.set_title(name, fontsize=9.5)
for panel in axes[1]:
    panel.set_xlabel("step")
for panel in axes[:, 0]:
    panel.set_ylabel("MLM loss (nats)")
axes[0, 0].legend(fontsize=8.5)
figure.set_label(
    "Six panels of the training loss over 150 steps with the unigram line. Where the words are not hidden the "
    "training loss falls far below the line while held-out text stays above; the other runs stay near or above it"
)
plt.show()

# %% [markdown]
r"""
**Words that are not hidden** are the mistake that looks like a success: the training loss is under 1 after 150 steps. On held-out text, whose words are hidden, the model is worse than one that knows nothing (ln V). A loss *below* what is
possible is a sign of a mistake, too.

**A forgotten zero_grad** shows in the gradient: this is the sum of all gradients so far, and more than two hundred times as long as in the healthy run. **A rate that is too low** gives a curve that looks smooth and healthy, but is late. Its gradient has about the
usual length, which distinguishes it from a rate that is too high.

**Decay and clipping** cannot be seen in this loss at all. This early, the model only learns how frequent words are, and small weights are enough for that. Clipping scales the whole gradient. Adam divides
each gradient by its usual size, so it hardly notices. A short run finds only crude mistakes. For the others, compare with a reference, number by number ([27](27_parity.ipynb)).

## 5. Where did the NaN begin?

A `nan` spreads: whatever is computed from it is `nan`, too. By the time the loss is printed, everything is `nan`. The question is where it *began*. Such values come from
∞ − ∞, 0 / 0, 0 · ∞ and $\ln$ of a negative number. We make one row of weights in layer 1 far too large, as it may become when steps are too long, and look at
every value of the forward pass ([16](16_looking_inside.ipynb) uses the same observers):
"""

# %%
broken = BertForPreTraining(SMALL, seed=1)
wide = dict(broken.named_parameters())["bert.encoder.layer.1.intermediate.dense.weight"].value
wide[5, :] = 3e38  # one row; float32 ends at 3.4e38
seen = []


def look(name, value):
    seen.append((name, float(np.isfinite(value).mean()), float(np.abs(value).max())))


with np.errstate(over="ignore", invalid="ignore"):
    outputs, cache = broken.forward(**batch, context=Context(observer=look))
print(f"loss: {float(outputs.loss)}")
bad = next(i for i, (_, finite, _) in enumerate(seen) if finite < 1)
for name, finite, largest in seen[bad - 2 : bad + 3]:
    print(f"{name:<52} finite {finite:6.1%}   largest {largest:.1e}")

# %% [markdown]
r"""
The first value that is not finite shows the place; all later ones only pass it on. In a backward pass, look from the other end: the *last* layer whose gradient is bad is the one where it began, since the
backward pass computes it first.

**One bad step is enough.** Adam keeps running means of all gradients. A single `nan` in them stays for ever, since $0.9 \cdot$ `nan` is `nan`. Compare a plain Adam that takes a step with a bad gradient with
the library's, which looks at the norm first and then leaves the weights alone:
"""


# %%
def naive_adam(gradients, rate=0.1):
    """Adam on one number, for a list of gradients, which it does not check."""
    w, m, v, way = 1.0, 0.0, 0.0, []
    for gradient in gradients:
        m, v = 0.9 * m + 0.1 * gradient, 0.999 * v + 0.001 * gradient**2
        w -= rate * m / (np.sqrt(v) + 1e-6)
        way.append(w)
    return np.array(way)


print("Adam with one nan:   ", naive_adam([1.0, 1.0, np.nan, 1.0, 1.0]))

model = BertForPreTraining(SMALL, seed=1)
optimiser = AdamW(model)
start = model.buffers.value.copy()
model.zero_grad()
outputs, cache = model.forward(**batch)
model.backward(cache)
model.buffers.grad[123] = np.nan
length = float(optimiser.step(1e-3, 0))
print(
    f"the library: gradient norm {length}, weights that moved: {(model.buffers.value != start).sum()}"
)
assert np.isnan(length) and (model.buffers.value == start).all()

# %% [markdown]
r"""
The trainer then ends the run before anything is saved, and says in which step it happened. (In float16 a gradient may overflow without any mistake: then the step is skipped and the
loss scale is halved, [17](17_numpy_to_cupy.ipynb).)

## 6. Stopping, and going on as if nothing had happened

Weights alone are not a checkpoint. The state of a run also includes Adam's two means for every parameter, the place in
the data, and the step number. The step number fixes the learning rate, and also the dropout masks, which are a function of seed and step
([04](04_gelu_dropout.ipynb)). With all of this, a run that was stopped and resumed equals one that was not, **bit for bit**, dropout
included:
"""

# %%
STEPS, STOP = 60, 40


def new_trainer(run, model):
    optimiser = AdamW(model)
    return Trainer(
        model,
        optimiser,
        BatchStream(training, tokenizer, INSTANCES, batch_size=8, seed=3),
        partial(original, steps=STEPS, warmup=6, peak=2e-3),
        evaluate=partial(evaluate, model, batches[:2]),
        save=lambda state: save_checkpoint(run, state, model.save_pretrained, optimiser, keep=3),
        metrics=MetricsLog(run / "metrics.jsonl"),
        steps=STEPS,
    )


def quietly(function, *arguments):
    """Call a function without printing its lines about speed and time left, which differ from run to run."""
    with contextlib.redirect_stdout(io.StringIO()):
        return function(*arguments)


# %%
def resume(run, forget=None):
    """Go on from the checkpoint in a run's folder for 20 steps, as `minibert pretrain --resume` does."""
    checkpoint = open_checkpoint(run / f"checkpoint-{STOP}")
    model = BertForPreTraining.from_pretrained(checkpoint.folder)
    trainer = new_trainer(run, model)
    state = dict(checkpoint.state)
    if forget != "Adam's means":
        trainer.optimiser.load_state_arrays(*checkpoint.optimiser_arrays())
    if forget == "the place in the data":
        state["data"] = trainer.batches.state()  # that of a new stream: the beginning
    trainer.restore(checkpoint.folder, state)
    before, moved = model.buffers.value.copy(), []
    for stop in (STOP + 1, STOP + 20):
        quietly(trainer.run, stop)
        moved.append(np.linalg.norm(model.buffers.value - before))
    return model, losses_of(run), moved


def losses_of(run):
    return [r["mlm_loss"] for r in read_metrics(run / "metrics.jsonl") if "mlm_loss" in r]


with tempfile.TemporaryDirectory() as folder:
    run = Path(folder)
    (run / "in one go").mkdir()
    (run / "stopped").mkdir()
    in_one_go = BertForPreTraining(SMALL, seed=3)
    quietly(new_trainer(run / "in one go", in_one_go).run, STOP + 20)
    all_losses = losses_of(run / "in one go")

    quietly(new_trainer(run / "stopped", BertForPreTraining(SMALL, seed=3)).run, STOP)
    FORGOTTEN = ("nothing", "Adam's means", "the place in the data")
    resumed = {forgotten: resume(run / "stopped", forgotten) for forgotten in FORGOTTEN}

# %%
weights = in_one_go.buffers.value
print("                        parameters        distance moved")
print("forgotten              that differ    in 1 step    in 20")
for forgotten, (model, _, moved) in resumed.items():
    differ = (model.buffers.value != weights).mean()
    print("{:<22} {:11.0%} {:12.2f} {:8.2f}".format(forgotten, differ, *moved))
assert (resumed["nothing"][0].buffers.value == weights).all()
assert resumed["nothing"][1] == all_losses

for step in (1, STOP + 1):
    factor = (1 - 0.9**step) / np.sqrt(1 - 0.999**step)
    print(f"without bias correction step {step:>2} is {factor:.1f} times as long")

# %% tags=["figure"]
# Caption: With a complete checkpoint (blue) the difference is zero. Without Adam's means it
#   scatters around zero, and hardly stands out. Without the place in the data the loss is lower,
#   which looks like progress.
figure, axes = plt.subplots(figsize=(7.5, 3.2))
styles = (("o-", plots.BLUE), ("s-", plots.VERMILION), ("^:", plots.ORANGE))
for (forgotten, (_, losses, _)), (style, colour) in zip(resumed.items(), styles, strict=True):
    difference = np.array(losses) - all_losses
    at = np.arange(STOP, STOP + 20)
    axes.plot(at + 1, difference[at], style, color=colour, markersize=4, label=forgotten)
axes.set(
    title=f"resumed after step {STOP}",
    xlabel="step",
    ylabel="loss − loss in one go (nats)",
    xticks=range(STOP + 1, STOP + 21, 3),
)
axes.legend(
    title="forgotten", fontsize=9, title_fontsize=9, loc="upper left", bbox_to_anchor=(1, 1)
)
figure.set_label(
    "Differences of the loss from an uninterrupted run over twenty steps after a "
    "resumption: zero if nothing was forgotten, scattered around zero if Adam's means were, "
    "and mostly below zero if the place in the data was"
)
plt.show()

# %% [markdown]
r"""
With everything restored, not one bit differs. Without the place in the data, the run reads its first
batches again after every interruption. That even looks like progress, since it knows them.

Without Adam's means, the first loss is still right, because no weight has moved yet. Then the steps are too long. (The two
printed factors alone would make them shorter, 3.2 instead of 4.9. But from $m = 0.1 \, g$ and $v = 0.001 \, g^2$, *every*
parameter moves by the full 3.2 times the rate, while in an old $m$ much of the noise of successive gradients cancels.) Here 20 of them
go only two or three times as far: a run that is 40 steps old takes long steps anyway, as there is no bias correction for its $v$ ([13](13_optimiser.ipynb#3.-Why-has-BERT's-Adam-no-bias-correction?)).
The older the run, the further it leaps: with `STEPS, STOP = 4000, 2000` (which takes a minute) the first step is 8 times as long,
and 20 steps go 17 times as far. Yet the loss is only 0.03 higher on average: **it does not give the mistake away.**

"Bit for bit" holds on one machine with the same libraries; another BLAS adds in another order.

## 7. Your turn: which examples come next?

@exercise 26.batch_of_step

The place in the data can be stored, as above. It can also be *computed*, and then it cannot be forgotten. There are `examples` rows. Each epoch goes through them in an order of its own,
`np.random.default_rng((seed, epoch)).permutation(examples)`, which is cut into batches of `batch_size`. What is left over at the end of an epoch is dropped. Return the rows of the batch for the given
`step`, counted from 0, without going through the steps before it.
"""


# %% tags=["solution"]
def my_batch_of_step(step, examples, batch_size, seed):
    """The rows (batch_size,) of the batch of this step."""
    epoch, batch = divmod(step, examples // batch_size)
    order = np.random.default_rng((seed, epoch)).permutation(examples)
    return order[batch * batch_size : (batch + 1) * batch_size]


# %%
check("26.batch_of_step", my_batch_of_step)

# %% [markdown]
r"""
The same idea is behind the library's dropout: its masks are a function of seed and step ([04](04_gelu_dropout.ipynb)), so no state of a generator has to be saved.

## Recap

- Watch held-out text next to training text: without it, learning by heart looks like learning.
- The gradient norm distinguishes a rate that is too high from data that are wrong.
- Look for the *first* value that is not finite; the others only pass it on.
- Never let a bad gradient into Adam's means: look at its norm before the step.
- A checkpoint holds the weights, Adam's means, the place in the data and the step. Then a resumed run equals one that never stopped.

## What usually goes wrong

- **Only a training loss.** A small text and many passes bring it as low as you like, and so does a leak.
- **A `nan` that is filled with 0.** The mistake stays, and now it is silent.
- **Weights saved without the means.** After each resumption the steps are too long; the loss may hide it.
- **The data begin again** after each stop, and the first documents are learned by heart.

## Three questions

Answer before you unfold.
"""

# %% [markdown]
r"""
<details>
<summary><b>1.</b> In a run that is resumed, the loss of the first step agrees with the uninterrupted run, but that of the second does not. What was
forgotten?</summary>

Something that moves the weights: Adam's means, or the learning rate. The first loss was computed before anything moved, so the weights,
the batch and the dropout masks were right.

</details>
"""

# %% [markdown]
r"""
<details>
<summary><b>2.</b> The training loss falls to 0.3 in two hundred steps, far below the copying line. Do you celebrate?</summary>

No. Nobody gets there without seeing the answers. Either the words are not hidden, or the text is so small that it is known by heart. Held-out text, *with* its words hidden, shows it: its loss is bad in
both cases. To tell the two apart, train on more text: that helps against learning by heart, but not against a leak.

</details>
"""

# %% [markdown]
r"""
<details>
<summary><b>3.</b> In a table like that of section 5, the first bad value is a layer's output. All its inputs are finite. Where is the mistake?</summary>

In this layer. Its weights are far too large or not finite themselves, or its formula overflows, like a softmax without the maximum subtracted ([03](03_softmax_cross_entropy.ipynb)).

</details>
"""

# %% [markdown]
r"""
## Further reading

- Karpathy, [A recipe for training neural networks](https://karpathy.github.io/2019/04/25/recipe/), 2019: "neural net training fails silently".
- Zhang and others, [OPT: open pre-trained transformer language models](https://arxiv.org/abs/2205.01068), 2022: section 2.5 counts the restarts of a very long run.
- Micikevicius and others, [Mixed precision training](https://arxiv.org/abs/1710.03740), 2017: overflow in 16 bits, and the loss scale.
- Pascanu, Mikolov and Bengio, [On the difficulty of training recurrent neural networks](https://arxiv.org/abs/1211.5063), 2012: why gradients explode, and clipping.

**Next:** [15 · Fine-tuning](15_fine_tuning.ipynb), where a trained model learns a task from few examples.
The code of this notebook: [train/trainer.py](../minibert/train/trainer.py) · [train/checkpoint.py](../minibert/train/checkpoint.py) · [train/optimiser.py](../minibert/train/optimiser.py).
"""
