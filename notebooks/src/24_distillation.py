# %% [markdown]
r"""
# 24 · Distillation

A large model has learned a task. A small one should do the same work, but faster. In **distillation**, the small model, the **student**, learns from what the
large one, the **teacher**, says about each example.

**You will** soften probabilities with a temperature · derive the gradient of soft targets · measure why the loss has a factor T² ·
teach a small model with and without a teacher, over five seeds · let a teacher label text for free · imitate hidden states.

**Before this:** [03 · Softmax and cross-entropy](03_softmax_cross_entropy.ipynb), [15 · Fine-tuning](15_fine_tuning.ipynb),
[22 · What mattered](22_what_mattered.ipynb). **Time:** 90 minutes with the exercises; it runs in about two minutes.

| letter | in this notebook |
|---|---|
| `B`, `K` | examples in a batch, classes |
| $z$, $u$ | logits of the student and of the teacher |
| $p$, $q$ | their probabilities at temperature $T$ |
| $T$ | the temperature |
| $w$ | the weight of the teacher in the loss |
| `H`, $H'$ | hidden sizes of the student and of the teacher |
"""

# %%
import matplotlib.pyplot as plt
import numpy as np
from scipy import stats

from minibert import BertConfig, BertForSequenceClassification, check, ops, plots
from minibert.train import AdamW
from minibert.train.schedule import triangle

plots.notebook_style()
np.set_printoptions(precision=3, suppress=True)

# %% [markdown]
r"""
## 1. What does a teacher say that a label does not?

A label names one class. A teacher's probabilities say more: which other classes are likely, and how sure the teacher is. Hinton, Vinyals and Dean
([2015](https://arxiv.org/abs/1503.02531)) train small models on them; in talks, Hinton called what they hold the *dark knowledge* of a model. Before that, Buciluă, Caruana and Niculescu-Mizil
([2006](https://doi.org/10.1145/1150402.1150464)) had trained a small network to imitate a large ensemble, on examples that the ensemble had labelled.

Here are a teacher's logits for one example with five classes.
"""

# %%
u = np.array([9.0, 5.0, 4.0, 0.0, -2.0])
q, _ = ops.softmax(u[None])
print("probabilities", q[0])

# %% [markdown]
r"""
The probabilities also contain the order of the other four classes, but they are so small that a loss hardly sees them.

## 2. Temperature

Divide the logits by a number $T$ before the softmax. A large $T$ makes the distribution flat. $T = 1$ changes nothing.

### Your turn: probabilities at a temperature

@exercise 24.soften
"""


# %% tags=["solution"]
def my_soften(logits, temperature):
    """Probabilities at a temperature, without overflow. logits (B, K) → (B, K)."""
    z = logits / temperature
    e = np.exp(z - z.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


# %%
check("24.soften", my_soften)

# %%
TEMPERATURES = (1, 2, 4, 10)
softened = {T: ops.softmax(u[None] / T)[0][0] for T in TEMPERATURES}
for T, q in softened.items():
    print(f"T = {T:<3}", q)

# %% tags=["figure"]
# Caption: The same five logits at four temperatures.
figure, axes = plt.subplots(1, 4, figsize=(7.5, 2.2), sharey=True)
for panel, (T, q) in zip(axes, softened.items(), strict=True):
    panel.bar(range(5), q, color=plots.BLUE)
    panel.set(title=f"T = {T}", xlabel="class")
axes[0].set_ylabel("probability")
plt.show()

# %% [markdown]
r"""
At $T = 1$ only one class is visible. At $T = 4$ the second and the third class stand out from the last two. At $T = 10$ even the least likely class has a third of the largest probability. The entropy grows accordingly:
"""

# %%
for T, q in softened.items():
    print(f"T = {T:<3} entropy {-(q * np.log(q)).sum():.2f} of at most {np.log(5):.2f} nats")

# %% [markdown]
r"""
## 3. The loss and its gradient

The student's probabilities should match the teacher's. The loss is their Kullback–Leibler divergence, with the same temperature on both sides:

$$ L = \frac{T^2}{B} \sum_b \sum_k q_{bk} \, (\log q_{bk} - \log p_{bk}), \qquad p = \operatorname{softmax}(z / T), \quad q = \operatorname{softmax}(u / T) . $$

The part $\sum q \log q$ does not depend on the student. What is left is a cross-entropy with soft targets.

### Your turn: the gradient of soft targets

The cache is $(p, q, T)$, and `dout` is a number.

@exercise 24.soft_target_backward
"""

# %% [markdown] tags=["derivation"]
r"""
Let $v = z / T$. For one example, $\partial (-\sum_k q_k \log p_k) / \partial v_j = p_j \sum_k q_k - q_j = p_j - q_j$, as the $q_k$ add up to 1. The chain rule adds a factor $\partial v_j / \partial z_j = 1/T$,
and the loss has the factor $T^2 / B$. Together they give $dz = \frac{T}{B} (p - q)$.
"""


# %% tags=["solution"]
def my_soft_target_backward(dout, cache):
    """dlogits (B, K) of T²·KL(q ‖ p), the mean over the batch. cache = (p, q, T)."""
    p, q, temperature = cache
    return dout * temperature / len(p) * (p - q)


# %%
check("24.soft_target_backward", my_soft_target_backward)

# %% [markdown]
r"""
## 4. Why T²?

We measure the gradient norm for random logits, with the factor and without it.
"""

# %%
rng = np.random.default_rng(24)
z, u = 2 * rng.standard_normal((2, 64, 5))
RANGE = np.array([1, 2, 4, 8, 16, 32])
norms = []
for T in RANGE:
    _, cache = ops.soft_cross_entropy(z, u, float(T), len(z))
    norms.append(np.linalg.norm(ops.soft_cross_entropy_backward(1.0, cache)))
norms = np.array(norms)
for T, norm in zip(RANGE, norms, strict=True):
    print(f"T = {T:<3} with T²: {norm:.4f}   without: {norm / T**2:.6f}")

# %% tags=["figure"]
# Caption: The gradient norm of the soft loss as the temperature grows. Both axes are logarithmic.
figure, axes = plt.subplots(figsize=(5, 3))
axes.loglog(RANGE, norms, "o-", color=plots.BLUE, label="with T²")
axes.loglog(RANGE, norms / RANGE**2, "s-", color=plots.VERMILION, label="without")
axes.set(xlabel="temperature T", ylabel="gradient norm")
axes.legend()
plt.show()

# %% [markdown]
r"""
Without the factor, the gradient falls like $1/T^2$, and the loss with the labels, which is often added to it, would drown it. With the factor, the two losses keep their proportion when $T$ is changed.

The reason lies in the expansion for large $T$: $\operatorname{softmax}(z / T)_k \approx \frac1K (1 + (z_k - \bar z)/T)$. So $p - q$ is about
$\frac{1}{KT} \left( (z_k - \bar z) - (u_k - \bar u) \right)$, and with the factor $T$ in front the gradient no longer depends on $T$. In this limit the student matches the **centred logits**.
"""

# %%
centred = (z - z.mean(axis=1, keepdims=True)) - (u - u.mean(axis=1, keepdims=True))
limit = centred / (5 * len(z))
for T in (1.0, 10.0, 100.0):
    _, cache = ops.soft_cross_entropy(z, u, T, len(z))
    d = ops.soft_cross_entropy_backward(1.0, cache)
    print(
        f"T = {T:<6} distance from the limit {np.linalg.norm(d - limit) / np.linalg.norm(limit):.3f}"
    )

# %% [markdown]
r"""
## 5. A teacher and a student

There are four random languages with the same 16 words. In each, every word has its own probabilities for the next word. A text is written in one of the four, and the question is which. The teacher draws its batches from 20,000 labelled
texts. The student has half the width, and only 128 labels.
"""

# %%
SPECIAL, WORDS, S, K = 5, 16, 12, 4
V = SPECIAL + WORDS


def write(grammars, count, rng):
    """Texts as ids (count, S), and the language of each (count,)."""
    labels = rng.integers(K, size=count)
    ids = np.empty((count, S), np.int32)
    ids[:, 0] = rng.integers(WORDS, size=count)
    ends = grammars.cumsum(axis=-1)
    for s in range(1, S):
        drawn = (rng.random(count)[:, None] > ends[labels, ids[:, s - 1]]).sum(axis=1)
        ids[:, s] = np.minimum(drawn, WORDS - 1)
    return ids + SPECIAL, labels


# %%
def new_model(seed, H, layers=1):
    config = BertConfig.preset(
        "tiny",
        vocab_size=V,
        hidden_size=H,
        num_hidden_layers=layers,
        num_attention_heads=2,
        intermediate_size=4 * H,
        max_position_embeddings=S,
        num_labels=K,
        initializer_range=0.1,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return BertForSequenceClassification(config, seed=seed)


def logits_of(model, ids):
    return np.concatenate(
        [model.forward(input_ids=part)[0].logits for part in np.array_split(ids, 8)]
    )


# %%
def train(model, ids, steps, rate, seed, labels=None, teacher=None, w=1.0, T=2.0):
    """Learn from the teacher's logits (N, K), from labels (N,), or from both, weighted by w and 1 − w."""
    rng = np.random.default_rng([seed, 7])
    optimiser = AdamW(model, beta2=0.98)
    for step in range(steps):
        rows = rng.integers(len(ids), size=32)
        given = {} if labels is None else {"labels": labels[rows]}
        outputs, cache = model.forward(input_ids=ids[rows], **given)
        derivatives = {} if labels is None else {"dloss": 1.0 if teacher is None else 1.0 - w}
        if teacher is not None:
            _, soft = ops.soft_cross_entropy(outputs.logits, teacher[rows], T, len(rows))
            derivatives["dlogits"] = ops.soft_cross_entropy_backward(w, soft)
        model.zero_grad()
        model.backward(cache, **derivatives)
        optimiser.step(triangle(step, steps, 20, rate), step)
    return model


# %% [markdown]
r"""
For each seed, the arms of the experiment share the languages, the initial weights of the student and the seed of the batches. Each arm is a student of width 16 that takes 200 steps. A pilot with seeds 0 and 1 came first. After it, the number of steps was cut to save time, and two arms were added: the one with both labels and teacher, and the one with 4,096 labels. No arm was tuned.
"""

# %%
ARMS = {  # texts, weight of the teacher (None: labels only)
    "128 labels": (128, None),
    "128, both": (128, 0.5),
    "128, teacher": (128, 1.0),
    "512, teacher": (512, 1.0),
    "4096, teacher": (4096, 1.0),
    "4096 labels": (4096, None),
}
by_heart = []  # accuracy of "128 labels" on its own 128 texts
scores = {name: [] for name in ("teacher", *ARMS)}
worlds = []  # what the next experiment needs for each seed
for seed in range(5):
    grammars = np.random.default_rng([seed, 0]).dirichlet(np.full(WORDS, 0.5), size=(K, WORDS))
    ids, labels = write(grammars, 20_000, np.random.default_rng([seed, 1]))
    test, truth = write(grammars, 2000, np.random.default_rng([seed, 2]))
    teacher = train(new_model(seed, 32), ids, 400, 0.006, seed, labels)
    scores["teacher"].append((logits_of(teacher, test).argmax(axis=1) == truth).mean())
    said = logits_of(teacher, ids[:4096])
    worlds.append((ids, labels, said[:512], test, truth))
    for name, (n, w) in ARMS.items():
        told = {} if w is None else {"teacher": said[:n], "w": w}
        if w != 1.0:
            told["labels"] = labels[:n]
        student = train(new_model(seed + 50, 16), ids[:n], 200, 0.01, seed, **told)
        scores[name].append((logits_of(student, test).argmax(axis=1) == truth).mean())
        if name == "128 labels":
            by_heart.append((logits_of(student, ids[:n]).argmax(axis=1) == labels[:n]).mean())
scores = {name: np.array(values) for name, values in scores.items()}
for name, values in scores.items():
    print(f"{name:<14}", values, f"  mean {values.mean():.3f}")
print(f"\n128 labels, on the texts that it learned from: mean {np.mean(by_heart):.3f}")

# %% tags=["figure"]
# Caption: Each dot is one model, each bar the mean of five. A teacher adds most where there are few
#   examples.
figure, axes = plt.subplots(figsize=(7.5, 3.4))
values = np.array(list(scores.values()))
axes.plot(values, "o", color=plots.BLUE, alpha=0.7)
axes.plot(values.mean(axis=1), "_", color=plots.VERMILION, markersize=24, markeredgewidth=2.5)
axes.axhline(1 / K, color=plots.GREY, linewidth=0.8)
axes.set_xticks(range(len(scores)), scores, rotation=20)
axes.set(ylabel="accuracy", title="five seeds, and their means; the line is guessing")
plt.show()

# %% [markdown]
r"""
Now we compare in pairs, as in [22](22_what_mattered.ipynb). For each arm, here is the mean difference from the student that has only 128 labels, with its 95 % t interval.
"""

# %%
for name in list(ARMS)[1:]:
    d = scores[name] - scores["128 labels"]
    half = stats.t.ppf(0.975, len(d) - 1) * stats.sem(d)
    print(f"{name:<14} {d.mean():+.3f} ± {half:.3f}")

# %% [markdown]
r"""
With 128 labels the student reaches 34 %, where guessing gives 25 %. On its own 128 texts it is right 97 % of the time: it has learned them by heart. With the same 128 texts and the
teacher's scores in place of the labels, it gains 18 points. All five seeds agree. The student ends up three points below its teacher.

Four results are less simple:

- **The teacher's scores are worth more than labels.** Their gain is larger than that of 4,096 labels (of which 200 steps see some 3,200), which is 10 points. A text of 12 words is often ambiguous. Then its label is like the toss of a loaded coin, and the teacher's
  scores say how the coin is loaded.
- **Labels did not help next to the teacher.** With half the weight on each, the gain is 9 points, half as much as with the teacher alone.
- **More text helped little.** From 128 to 512 texts the gain is two points; from 512 to 4,096 there is none. The student takes only 200 steps of 32 texts, and the teacher's own score is not far away.
- **The comparison with "128 labels" is not a fair one.** The teacher drew 12,800 examples from 20,000 labelled texts, these 128 among them. Distillation does not create knowledge. It moves knowledge to where it is cheaper to use.

### Temperature, depth and wrong labels

Four more questions, with the same teachers, languages and seeds, and 512 texts each. Does the temperature matter? Would a student of two layers be better? What if three labels in ten are wrong, drawn at random? And how does a student do
if its *teacher* learned from such labels? The arms were fixed before the first run, and none was tuned.
"""


# %%
def spoilt(labels, rng, share=0.3):
    """The labels, with this share of them replaced by labels drawn at random from the other classes."""
    wrong = rng.random(len(labels)) < share
    return np.where(wrong, (labels + rng.integers(1, K, len(labels))) % K, labels)


MORE = "T = 1", "T = 2", "T = 8", "two layers", "labels", "30 % wrong", "wrongly taught"
choices = {name: [] for name in MORE}
for seed, (ids, labels, said, test, truth) in enumerate(worlds):
    wrong = spoilt(labels, np.random.default_rng([seed, 3]))
    misled = train(new_model(seed, 32), ids, 400, 0.006, seed, wrong)
    LESSONS = {
        "T = 1": {"teacher": said, "T": 1.0},
        "T = 2": {"teacher": said},
        "T = 8": {"teacher": said, "T": 8.0},
        "two layers": {"teacher": said},
        "labels": {"labels": labels[:512]},
        "30 % wrong": {"labels": wrong[:512]},
        "wrongly taught": {"teacher": logits_of(misled, ids[:512])},
    }
    for name, told in LESSONS.items():
        student = new_model(seed + 50, 16, layers=2 if name == "two layers" else 1)
        train(student, ids[:512], 200, 0.01, seed, **told)
        choices[name].append((logits_of(student, test).argmax(axis=1) == truth).mean())
choices = {name: np.array(values) for name, values in choices.items()}
for name, values in choices.items():
    print(f"{name:<15}", values, f"  mean {values.mean():.3f}")
print()
for name, other in (
    ("T = 1", "T = 2"),
    ("T = 8", "T = 2"),
    ("two layers", "T = 2"),
    ("30 % wrong", "labels"),
    ("wrongly taught", "T = 2"),
    ("wrongly taught", "labels"),
):
    d = choices[name] - choices[other]
    half = stats.t.ppf(0.975, len(d) - 1) * stats.sem(d)
    print(f"{name:<15} − {other:<8} {d.mean():+.3f} ± {half:.3f}")

# %% tags=["figure"]
# Caption: Seven students for each of five seeds, with 512 texts each. The first four have the
#   teacher's scores, the next two have only labels, and the last has a teacher that learned from
#   wrong labels.
figure, axes = plt.subplots(figsize=(7.5, 3.2))
values = np.array(list(choices.values()))
axes.plot(values, "o", color=plots.BLUE, alpha=0.7)
axes.plot(values.mean(axis=1), "_", color=plots.VERMILION, markersize=24, markeredgewidth=2.5)
axes.axhline(1 / K, color=plots.GREY, linewidth=0.8)
axes.set_xticks(range(len(choices)), choices, rotation=20)
axes.set(ylabel="accuracy", title="which choices matter?")
figure.set_label(
    "Accuracies of seven kinds of students, five seeds each, with their means: three temperatures, two layers, "
    "labels, labels of which 30 % are wrong, and a teacher that learned from wrong labels"
)
plt.show()

# %% [markdown]
r"""
- **The temperature made no difference** here: the intervals of T = 1 and T = 8 are within a point of T = 2. This task has only four classes, and the teacher is unsure anyway. Where a teacher is nearly always sure, there is more for a temperature to bring out.
- **A second layer** did not help in 200 steps: −1 ± 3 points may be nothing at all.
- **Wrong labels** cost 8 points of accuracy if the student learns from them.
- **A teacher that learned from wrong labels** costs its student 9 points. This student's mean is still 4 points above that of a student with right labels, but the interval is ± 9, so five seeds do not show that it is better.

## 6. Imitating layers

A teacher has more to show than its final scores. Three methods differ in what the student imitates:

| | what is imitated | what if the widths differ? |
|---|---|---|
| DistilBERT ([2019](https://arxiv.org/abs/1910.01108)) | scores, and the direction of the last hidden states (cosine) | they do not: the student is as wide as the teacher |
| TinyBERT ([2019](https://arxiv.org/abs/1909.10351)) | embeddings, hidden states and attention of chosen layers, then scores | a learned projection |
| MiniLM ([2020](https://arxiv.org/abs/2002.10957)) | attention, and the relations between the values, in the last layer | nothing is needed: relations are `(S, S)` |

[Notebook 23](23_after_bert.ipynb) trains a DistilBERT.

### Your turn: a wider teacher

Project the student's hidden states with $W$, `(H′, H)`, and compare them with the teacher's $t$, `(B, S, H′)`. Only real tokens count:

$$ y_{bs} = W h_{bs}, \qquad L = \frac{1}{H' \sum m} \sum_{b, s} m_{bs} \, \lVert y_{bs} - t_{bs} \rVert^2 . $$

The cache is (hidden, weight, difference, mask), with difference $y - t$.

@exercise 24.imitation_backward
"""

# %% [markdown] tags=["derivation"]
r"""
Each $y_{bsk}$ enters one square, so $dy_{bsk} = 2 \, m_{bs} (y_{bsk} - t_{bsk}) / (H' \sum m)$. The rest is the backward pass of a linear layer: $dh_{bs} = W^\top dy_{bs}$, and
$dW = \sum_{b, s} dy_{bs} h_{bs}^\top$.
"""


# %% tags=["solution"]
def my_imitation_backward(dout, cache):
    """dhidden (B, S, H), dweight (H′, H). cache = (hidden, weight, difference, mask)."""
    hidden, weight, difference, mask = cache
    count = mask.sum() * difference.shape[-1]
    dy = 2 * dout * mask[:, :, None] * difference / count  # (B, S, H′)
    return dy @ weight, np.einsum("bsk,bsh->kh", dy, hidden)


# %%
check("24.imitation_backward", my_imitation_backward)

# %% [markdown]
r"""
The projection is thrown away after training. The library needs none. For each pair of tokens it takes the cosine of their two hidden states, which gives an `(S, S)` table, and compares the student's table with the teacher's. (MiniLM does something similar with a softmax of the dot products of the values.)
"""

# %%
hidden, wider = rng.standard_normal((2, 6, 8)), rng.standard_normal((2, 6, 20))
weights = np.full((2, 6, 6), 1 / 72)
loss, cache = ops.relation_loss(hidden, wider, weights)
print(f"loss {loss:.3f}, gradient {ops.relation_loss_backward(1.0, cache).shape}")

# %% [markdown]
r"""
## 7. With the library

```sh
minibert distill --teacher runs/sst2/best --model mini --train train.tsv --dev dev.tsv \
    --name small --temperature 4 --teacher-weight 0.9
```

The teacher is run once on every training text. The flags `--hidden-weight` and `--attention-weight` add the imitation of layers. See [the manual](../docs/finetuning.md).
"""

# %% [markdown]
r"""
## 8. What the papers report

- DistilBERT keeps 97 % of BERT's score on GLUE with 40 % fewer parameters, and is 60 % faster ([2019](https://arxiv.org/abs/1910.01108)).
- Turc and others ([2019](https://arxiv.org/abs/1908.08962)): pre-training the student before distillation matters, even for very small students.
- Beyer and others ([2021](https://arxiv.org/abs/2106.05237)): for images, a teacher should see the same crop as the student, and training should be long.
"""

# %% [markdown]
r"""
## Recap

- Soft targets carry the order of the wrong classes, and how sure the teacher is.
- The gradient is that of cross-entropy with a label, but with $q$ in the label's place. The factor T² keeps it at about the same size when $T$ changes.
- A teacher turns unlabelled text into training data.
- To imitate hidden states of another width, use a projection, or compare relations.

## What usually goes wrong

- **T on one side only.** Teacher and student need the same temperature.
- **T² forgotten**, so that a higher T quietly turns the teacher off.
- **The teacher in training mode**: its dropout makes the targets noisy.
- **Temperature left on in inference.** There the student runs at $T = 1$.
- **No baseline:** a student trained without a teacher, to compare with.
"""

# %% [markdown]
r"""
## Three questions

Answer before you unfold.
"""

# %% [markdown]
r"""
<details>
<summary><b>1.</b> Why may the loss be KL or cross-entropy?</summary>

They differ by the entropy of the teacher, which does not depend on the student. The gradients are equal.

</details>
"""

# %% [markdown]
r"""
<details>
<summary><b>2.</b> Can a student be better than its teacher?</summary>

Yes. The teacher's errors are partly noise, and a student that cannot follow them may average them out. But do not expect it.

</details>
"""

# %% [markdown]
r"""
<details>
<summary><b>3.</b> Does the transfer set need labels?</summary>

No. With $w = 1$ only the teacher's scores are used. But the texts should resemble those that the student will meet in use.

</details>
"""

# %% [markdown]
r"""
## Further reading

- Hinton, Vinyals and Dean: [Distilling the knowledge in a neural network](https://arxiv.org/abs/1503.02531) (2015).
- Sanh and others: [DistilBERT](https://arxiv.org/abs/1910.01108) (2019).
- Jiao and others: [TinyBERT](https://arxiv.org/abs/1909.10351) (2019).
- Turc and others: [Well-read students learn better](https://arxiv.org/abs/1908.08962) (2019).

## Next

**Next:** [25 · Many devices](25_many_devices.ipynb), where several processors train one model.
"""
