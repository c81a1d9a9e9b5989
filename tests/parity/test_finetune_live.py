"""Whole fine-tuning runs against transformers, live: the same start, files, batches and schedule; no dropout.

The sentences are new in every run; the report at its end tells the seed (PARITY_SEED repeats it).
"""

import json
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from minibert.bert import BertConfig, BertModel
from minibert.tasks.finetuning import finetune
from minibert.tasks.finetuning_settings import FinetuneSettings
from minibert.tasks.registry import TASKS
from minibert.tasks.task import Task
from minibert.text import BertTokenizer
from minibert.train.metrics import read_metrics

pytest.importorskip("torch", reason="compares with torch, which is not installed")
pytest.importorskip("transformers", reason="compares with transformers, which is not installed")
import torch
import transformers
from parity.reference import forward, train

WORDS = [f"w{i}" for i in range(30)]
RARE = WORDS[:10]  # what labels, scores, tags and answers depend on
TOKENIZER = BertTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS])
STEPS = 20
LOGITS = ("logits", "start_logits", "end_logits")


def sentence(rng: random.Random) -> list[str]:
    """Words, more or less of them rare."""
    share = rng.random()
    return [rng.choice(RARE if rng.random() < share else WORDS) for _ in range(rng.randint(4, 12))]


def row(rng: random.Random, label) -> str:
    words = sentence(rng)
    rare = sum(word in RARE for word in words) / len(words)
    return f"{' '.join(words)}\t{label(rare)}\n"


def tagged(rng: random.Random) -> str:
    tags = {word: "B-rare" if word in RARE else "O" for word in WORDS}
    return "".join(f"{word}\t{tags[word]}\n" for word in sentence(rng)) + "\n"


def asked(rng: random.Random, number: int) -> dict:
    """The answer is one rare word and what follows it; the passage is longer than a window."""
    words = rng.choices(WORDS[10:], k=rng.randint(10, 40))
    place = rng.randrange(len(words) - 1)
    words[place] = rng.choice(RARE)
    answer, start = " ".join(words[place : place + 2]), len("".join(f"{word} " for word in words[:place]))
    answers = [{"text": answer, "answer_start": start}]
    question = {"id": str(number), "question": "w29 w28", "answers": answers}
    return {"title": str(number), "paragraphs": [{"context": " ".join(words), "qas": [question]}]}


def write_examples(task: str, path: Path, rng: random.Random, count: int) -> Path:
    """A file of examples for a task."""
    if task == "classify":
        text = "text\tlabel\n" + "".join(row(rng, lambda rare: rare > 0.5) for _ in range(count))
    elif task == "regress":
        text = "text\tlabel\n" + "".join(row(rng, lambda rare: rare) for _ in range(count))
    elif task == "tag":
        text = "".join(tagged(rng) for _ in range(count))
    else:
        text = json.dumps({"data": [asked(rng, number) for number in range(count)]})
    path.write_text(text, encoding="utf-8")
    return path


def write_start(task: Task, folder: Path, seed: int) -> Path:
    """A folder to begin from, head and all, so that both sides have the same head."""
    config = BertConfig(
        vocab_size=len(TOKENIZER),
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=32,
        max_position_embeddings=24,
        initializer_range=0.2,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    BertModel(config, dtype="float64", seed=seed).save_pretrained(folder / "encoder")
    task.save(task.new_model(folder / "encoder", dtype="float64", seed=seed), folder / "start")
    return folder / "start"


def train_theirs(
    task: Task, settings: FinetuneSettings, features: list, steps: int
) -> tuple[Any, list[float]]:
    """Transformers' model after so many steps from the same start, and the loss of each."""
    stream = task.batches(features, settings.batch_size, settings.seed)
    batches = [
        {name: a.astype(np.int64) if a.dtype == np.int32 else a for name, a in next(stream).items()}
        for _ in range(steps)
    ]
    model = getattr(transformers, task.Model.__name__).from_pretrained(settings.model, dtype=torch.float64)
    model.get_input_embeddings().padding_idx = (
        None  # it would drop what [PAD] learns as a token to choose from
    )
    losses = train(
        model,
        batches,
        settings.schedule,
        warmup=round(settings.warmup * steps),
        peak=settings.learning_rate,
        bias_correction=settings.bias_correction,
        betas=(settings.beta1, settings.beta2),
        eps=settings.adam_eps,
        weight_decay=settings.weight_decay,
        clip_norm=settings.clip_norm,
    )
    return model, losses


def score_theirs(task: Task, settings: FinetuneSettings, theirs: Any, examples: list) -> float:
    """Our way of scoring, on their logits."""

    def forward_theirs(context, **texts):
        outputs = forward(theirs, texts)
        return SimpleNamespace(
            **{name: outputs[name].detach().numpy() for name in LOGITS if name in outputs}
        ), None

    model = task.new_model(settings.model, dtype="float64")
    model.forward = forward_theirs
    return task.scores(examples, task.predict(model, examples))[task.metric]


@pytest.mark.parametrize("name", ["classify", "regress", "tag", "qa"])
def test_a_fine_tuning_run(name, parity, tmp_path):
    rng = random.Random(f"{parity.seed} {name}")
    ending = {"tag": "conll", "qa": "json"}.get(name, "tsv")
    files = {
        part: write_examples(name, tmp_path / f"{part}.{ending}", rng, count)
        for part, count in (("train", 64), ("dev", 40))
    }
    options = TASKS[name].Options(max_length=24, **({"stride": 8} if name == "qa" else {}))
    task = TASKS[name](TOKENIZER, options)
    examples = {part: task.read(path) for part, path in files.items()}
    task.learn_labels(examples["train"])
    settings = FinetuneSettings(
        name="run",
        task=name,
        model=str(write_start(task, tmp_path, rng.getrandbits(31))),
        train=str(files["train"]),
        dev=str(files["dev"]),
        out=str(tmp_path),
        epochs=3,
        batch_size=8,
        learning_rate=1e-2,
        seed=rng.getrandbits(31),
        precision="float64",
        device="cpu",
        threads=1,
    )
    finetune(**settings.to_dict(), **options.to_dict())
    told = read_metrics(settings.folder / f"seed-{settings.seed}" / "metrics.jsonl")
    our_losses = [record["loss"] for record in told if "loss" in record]
    scores = [record[f"held_out_{task.metric}"] for record in told if f"held_out_{task.metric}" in record]

    features = task.features(examples["train"], training=True)
    theirs, their_losses = train_theirs(task, settings, features, len(our_losses))
    where = f"live, fine-tuning: {name}"
    assert len(our_losses) >= STEPS
    largest = np.max(np.abs(np.divide(our_losses, their_losses) - 1)[:STEPS])
    parity.hold(where, f"losses of {STEPS} steps", largest, 1e-9)
    apart = abs(scores[-1] - score_theirs(task, settings, theirs, examples["dev"]))
    parity.hold(where, f"final {task.metric}, in points", 100 * apart, 1)
