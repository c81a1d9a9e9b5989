import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from minibert.bert import BertConfig, BertModel
from minibert.bert.encoder import BertLayer
from minibert.cli import main
from minibert.errors import UserError
from minibert.heads import BertForSequenceClassification
from minibert.plots import plot_finetuning
from minibert.products import LIBRARIES, products_library, use_products
from minibert.settings import read_settings
from minibert.tasks import evaluate, finetune, finetuning, open_task
from minibert.tasks import run as run_module
from minibert.tasks.classify import Classify
from minibert.tasks.finetuning import read_data
from minibert.tasks.finetuning_settings import FinetuneSettings, split_settings
from minibert.tasks.frozen import FrozenEncoder
from minibert.text import BertTokenizer
from minibert.threads import get_threads, set_threads
from minibert.train.metrics import read_metrics
from minibert.train.step import TrainingStep
from minibert.variants.distilbert import DistilBertConfig, DistilBertModel

WORDS = "good fine bad poor film book it was really a the of and".split()
TOKENIZER = BertTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS])
SIZES = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}


@pytest.fixture(autouse=True)
def workplace(tmp_path, monkeypatch):
    """A folder with an encoder in it, which is where the test runs; one thread."""
    monkeypatch.chdir(tmp_path)
    config = BertConfig(vocab_size=len(TOKENIZER), max_position_embeddings=32, initializer_range=0.3, **SIZES)
    BertModel(config, seed=1).save_pretrained("encoder")
    TOKENIZER.save_pretrained("encoder")
    monkeypatch.setattr(finetuning, "plot_finetuning", lambda *_: None)  # these two take most of the time
    monkeypatch.setattr(os, "fsync", lambda _: None)
    threads = get_threads()
    yield
    set_threads(threads)


def write(name, *lines):
    Path(name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return name


def films(name, count, seed=0):
    """A table of texts: with a good word or a bad one, which is the label."""
    rng = np.random.default_rng(seed)
    rows = ["text\tlabel"]
    for _ in range(count):
        label = rng.integers(2)
        words = [*rng.choice(WORDS[4:], rng.integers(2, 7)), WORDS[2 * label + rng.integers(2)]]
        rows.append(f"{' '.join(rng.permutation(words))}\t{('pos', 'neg')[label]}")
    return write(name, *rows)


def settings_for(**changes):
    """A run that takes a fraction of a second."""
    values = {"task": "classify", "model": "encoder", "device": "cpu", "threads": 1, "learning_rate": 0.01}
    values |= {"batch_size": 4, "epochs": 2.0, "max_length": 32, "name": "run", **changes}
    if "train" not in values:
        values |= {"train": films("train.tsv", 24), "dev": films("dev.tsv", 12, seed=1)}
    return values


def weights(name="run"):
    return Path("runs", name, "best/model.safetensors").read_bytes()


def curve(name="run", seed=0):
    """What was measured, but for the time it took."""
    records = read_metrics(Path("runs", name, f"seed-{seed}", "metrics.jsonl"))
    return [{k: v for k, v in r.items() if k not in ("seconds", "tokens_per_second")} for r in records]


# -- A whole run -------------------------------------------------------------------------------------


def test_a_run_learns_and_leaves_its_files(capsys, monkeypatch):
    monkeypatch.setattr(finetuning, "plot_finetuning", plot_finetuning)
    results = finetune(**settings_for(epochs=12.0, train=films("train.tsv", 60), dev=films("dev.tsv", 20, 1)))
    losses = [record["loss"] for record in curve() if "loss" in record]
    assert np.mean(losses[-10:]) < 0.3 * np.mean(losses[:10])
    assert results["best"]["scores"]["accuracy"] >= 0.95
    names = {str(path.relative_to("runs/run")) for path in Path("runs/run").rglob("*") if path.is_file()}
    assert names == {
        *("config.json", "results.json", "training.png", "seed-0/metrics.jsonl"),
        *(f"best/{name}" for name in ("config.json", "model.safetensors", "task.json", "README.md")),
        *(f"best/{name}" for name in ("vocab.txt", "tokenizer_config.json", "special_tokens_map.json")),
    }
    assert json.loads(Path("runs/run/results.json").read_text()) == results
    printed = capsys.readouterr().out
    for told in ("task=classify", "60 examples (60 rows) to train on, 20 to evaluate on", "runs/run: best/"):
        assert told in printed


def test_a_head_that_has_learned_nothing_is_kept_only_if_it_is_better():
    """Two examples with one text and two labels: whatever the model says, one is wrong."""
    dev = write("dev.tsv", "text\tlabel", "it was the film\tpos", "it was the film\tneg")
    results = finetune(**settings_for(train=films("train.tsv", 24), dev=dev, eval_every=4))
    scores = [record["held_out_accuracy"] for record in curve() if "held_out_accuracy" in record]
    assert scores == [0.5] * 4
    assert results["best"]["step"] == 4


@pytest.mark.parametrize(("step", "told"), [(0, True), (3, False)])
def test_a_run_in_which_nothing_was_learned_says_so(step, told):
    lines = finetuning._describe({"best": {"scores": {"accuracy": 0.5}, "seed": 0, "step": step}})
    assert lines[0].endswith(f"(seed 0, step {step})")
    said = [line.startswith("no evaluation was better than the one before training") for line in lines]
    assert any(said) == told


def test_what_is_kept_is_the_best_evaluation():
    """Not the last one, which a high learning rate makes worse."""
    results = finetune(**settings_for(epochs=6.0, learning_rate=0.02, eval_every=2))
    accuracies = {record["step"]: record.get("held_out_accuracy") for record in curve()}
    steps = [record["step"] for record in curve() if "held_out_accuracy" in record]
    assert steps == [*range(0, 37, 2)]
    best = results["best"]
    scores = [record["held_out_accuracy"] for record in curve() if "held_out_accuracy" in record]
    assert best["scores"]["accuracy"] == max(scores) > scores[-1]
    learned = [step for step, score in zip(steps, scores, strict=True) if step and score == max(scores)]
    # the first of the best, but the one before training only if it is alone
    assert best["step"] == learned[0]
    assert evaluate("runs/run/best", "dev.tsv").scores == pytest.approx(best["scores"], rel=1e-6)
    assert len(accuracies) == 37


@pytest.mark.parametrize(
    ("metric", "seed", "step"), [(None, 0, 0), ("accuracy", 0, 0), ("f1", 1, 6), ("macro_f1", 0, 4)]
)
def test_the_metric_that_was_chosen_chooses_among_evaluations_and_restarts(monkeypatch, metric, seed, step):
    """Four evaluations a restart: accuracy only falls, F1 only rises, the mean F1 is best at the third."""
    numbers = iter(range(8))

    def scores(*_):
        n = next(numbers)
        return {"accuracy": 1 - n / 10, "f1": n / 10, "macro_f1": float(n == 2), "matthews": 0.0}

    monkeypatch.setattr(Classify, "scores", scores)
    results = finetune(**settings_for(metric=metric, restarts=2, epochs=1.0, eval_every=2))
    assert results["metric"] == (metric or "accuracy")
    assert (results["best"]["seed"], results["best"]["step"]) == (seed, step)


def test_a_score_that_is_not_a_number_is_worse_than_all_others(monkeypatch):
    """A correlation, say, with a model that always answers the same."""
    nan = float("nan")
    numbers = iter([nan, nan, nan, nan, -0.5, nan, -0.25, -0.5])
    scores = dict.fromkeys(("accuracy", "f1", "macro_f1"), 0.0)
    monkeypatch.setattr(Classify, "scores", lambda *_: scores | {"matthews": next(numbers)})
    results = finetune(**settings_for(metric="matthews", restarts=2, epochs=1.0, eval_every=2))
    assert [run["scores"]["matthews"] for run in results["runs"]] == [None, -0.25]
    assert (results["best"]["seed"], results["best"]["step"]) == (1, 4)
    assert "accuracy" in results["mean"] and "matthews" not in results["mean"]
    assert "matthews |" not in Path("runs/run/best/README.md").read_text()


@pytest.mark.parametrize(
    ("changes", "batches", "expected"),
    [
        ({"epochs": 3.0}, 10, (30, 10, 10)),
        ({"epochs": 3.0, "accumulation": 2}, 10, (15, 5, 5)),
        ({"epochs": 0.5, "accumulation": 4}, 10, (1, 2, 2)),
        ({"epochs": 0.01}, 10, (1, 10, 10)),
        ({"accumulation": 4}, 1, (1, 1, 1)),
        ({"eval_every": 4}, 10, (30, 4, 4)),
        ({"eval_every": 4, "save_every": 7}, 10, (30, 4, 7)),
    ],
)
def test_an_epoch_is_as_many_steps_as_take_all_batches(changes, batches, expected):
    assert FinetuneSettings(task="classify", train="t", **changes).intervals(batches) == expected


def test_the_card_tells_data_settings_scores_and_command():
    results = finetune(**settings_for(restarts=2, freeze="1"))
    card = Path("runs/run/best/README.md").read_text()
    for told in (
        "train.tsv: 24 examples",
        "dev.tsv: 12 examples",
        "| epochs | 2.0 |",
        "began from | encoder",
    ):
        assert told in card
    assert f"{results['best']['scores']['accuracy']:.4f}" in card
    (command,) = re.findall(r"minibert finetune (.*)", card)
    assert (
        "--restarts 2 --task classify --train train.tsv --dev dev.tsv --model encoder --freeze 1" in command
    )


def test_the_card_tells_what_was_held_out_and_that_texts_are_pairs():
    rows = [f"good{' film' * i}\tfilm\tyes\nbad{' book' * i}\tbook\tno" for i in range(10)]
    train = write("pairs.tsv", "text\ttext_pair\tlabel", *rows)
    finetune(**settings_for(train=train, dev_share=0.2, epochs=0.1))
    card = Path("runs/run/best/README.md").read_text()
    for told in (
        "pairs.tsv: 16 examples",
        "pairs.tsv, a random part that was held out: 4 examples",
        "Measured on the dev data, by which this model was chosen.",
        "gives a label or a number to a pair of texts",
    ):
        assert told in card


TASKS = {
    "classify": (
        "train.tsv",
        ["sentence1\tsentence2\tlabel", "good\tfilm\tyes", "bad\tbook\tno"] + ["a\tthe\tno"] * 5,
    ),
    "regress": (
        "train.csv",
        ["text,label", *(f"good{' film' * i},{i / 2}" for i in range(8))],
    ),
    "tag": ("train.conll", ["the O", "good B-x", "film I-x", "", "bad B-y", "book O", "", "it O", "was O"]),
    "similarity": (
        "train.jsonl",
        [json.dumps({"text": "good", "text_pair": "fine" + " it" * i, "label": i}) for i in range(8)],
    ),
}


@pytest.mark.parametrize("task", TASKS)
def test_every_task(task):
    name, lines = TASKS[task]
    results = finetune(**settings_for(task=task, train=write(name, *lines), dev=name))
    opened, model = open_task("runs/run/best")
    assert opened.name == task == results["task"]
    examples = opened.read(name)
    scores = opened.scores(examples, opened.predict(model, examples))
    assert scores == pytest.approx(results["best"]["scores"], rel=1e-4)
    assert results["metric"] in scores
    assert set(scores) == set(opened.scores_for(examples)) <= set(opened.score_names)


def test_examples_that_occur_more_than_once_are_held_out_together():
    rows = [f"good{' film' * (i % 10)}{' ' * (i // 10)}\tyes" for i in range(50)]
    train = write("many.tsv", "text\tlabel", *rows, "bad\tno", "a\tno", "it\tno")
    data = read_data(*split_settings(settings_for(train=train, dev=None, dev_share=0.25), "settings"))
    train, dev = ({" ".join(example.text.split()) for example in part} for part in (data.train, data.dev))
    assert len(dev) == 3 and len(train) == 10 and not train & dev
    assert len(data.train) + len(data.dev) == 53


def test_examples_to_evaluate_on_that_are_also_trained_on_are_told(capsys):
    train = write("known.tsv", "text\tlabel", "good  film\tyes", "bad book\tno", "it\tno")
    dev = write("some.tsv", "text\tlabel", "good film\tyes", "a film\tno", "bad book\tyes")
    read_data(*split_settings(settings_for(train=train, dev=dev), "settings"))
    assert "2 of 3 examples to evaluate on are also in the training data" in capsys.readouterr().out
    read_data(
        *split_settings(settings_for(train=train, dev=write("b.tsv", "text\tlabel", "a\tno")), "settings")
    )
    assert "also in the training data" not in capsys.readouterr().out


def articles(count):
    """Articles of one passage and two questions each, as SQuAD has them."""

    def article(n):
        question = {"id": str(n), "question": "the book", "answers": [{"text": "a book", "answer_start": 7}]}
        return {"title": f"{n}", "paragraphs": [{"context": "it was a book of films", "qas": [question] * 2}]}

    return json.dumps({"data": [article(n) for n in range(count)]})


def test_questions_are_held_out_by_the_article():
    write("train.json", articles(4))
    results = finetune(**settings_for(task="qa", train="train.json", dev_share=0.5, max_length=24))
    assert results["examples"] == {"train": 4, "dev": 4, "left_out": 0}
    task, _ = open_task("runs/run/best")
    assert set(results["best"]["scores"]) == {"exact_match", "f1"}
    assert task.scores_for(task.read("train.json")) == ("exact_match", "f1")


def test_where_questions_have_no_answer_the_run_chooses_a_threshold():
    data = json.loads(articles(4))
    for article in data["data"]:
        (passage,) = article["paragraphs"]
        passage["qas"][1] = passage["qas"][1] | {"answers": [], "is_impossible": True}
    write("train.json", json.dumps(data))
    best = finetune(**settings_for(task="qa", train="train.json", dev="train.json", max_length=24))["best"]
    task, _ = open_task("runs/run/best")
    assert task.options.null_threshold is not None
    assert evaluate("runs/run/best", "train.json").scores == pytest.approx(best["scores"], rel=1e-6)


def test_layers_can_be_recomputed(monkeypatch):
    """With the same bits, though each of the 2 layers is run once more in each of the 6 steps."""
    forward, calls = BertLayer.forward, []
    monkeypatch.setattr(
        BertLayer, "forward", lambda *given, **more: calls.append(1) or forward(*given, **more)
    )
    finetune(**settings_for(epochs=1.0))
    kept = len(calls)
    finetune(**settings_for(epochs=1.0, recompute=True, name="again"))
    assert len(calls) - kept == kept + 6 * 2
    assert weights("again") == weights()


def test_settings_of_a_recipe():
    settings, options = split_settings({"recipe": "cola", "train": "t", "model": "m"})
    assert (settings.task, settings.name, settings.metric) == ("classify", None, "matthews")
    assert (options.recipe, options.max_length) == ("cola", 64)
    settings, options = split_settings(
        {"recipe": "cola", "train": "t", "model": "m", "metric": "accuracy", "name": "mine", "max_length": 9}
    )
    assert (settings.name, settings.metric, options.max_length) == ("mine", "accuracy", 9)


@pytest.mark.parametrize(("positions", "max_length"), [(32, 32), (200, 128)])
def test_sequences_are_no_longer_than_the_model_can_read(positions, max_length):
    config = BertConfig.from_pretrained("encoder").replace(max_position_embeddings=positions)
    BertModel(config).save_pretrained("encoder")
    values = settings_for(epochs=1.0)
    del values["max_length"]
    finetune(**values)
    assert json.loads(Path("runs/run/config.json").read_text())["max_length"] == max_length


# -- Restarts ----------------------------------------------------------------------------------------


def test_restarts_are_the_runs_of_their_seeds_and_the_best_is_kept():
    together = finetune(**settings_for(restarts=3, seed=4, name="three"))
    alone = [finetune(**settings_for(seed=seed, name=f"alone{seed}")) for seed in (4, 5, 6)]
    for one, run in zip(alone, together["runs"], strict=True):
        assert (run["seed"], run["scores"]) == (one["best"]["seed"], one["best"]["scores"])
        assert curve("three", run["seed"]) == curve(f"alone{run['seed']}", run["seed"])
    accuracies = [run["scores"]["accuracy"] for run in together["runs"]]
    assert len(set(accuracies)) > 1
    assert together["mean"]["accuracy"] == pytest.approx(np.mean(accuracies))
    assert together["deviation"]["accuracy"] == pytest.approx(np.std(accuracies, ddof=1))
    assert together["best"]["seed"] == 4 + int(np.argmax(accuracies))
    assert weights("three") == weights(f"alone{together['best']['seed']}")
    assert "mean" not in alone[0]


def test_a_spread_is_that_of_several_numbers():
    """A single run has none, nor has a score that a restart could not compute."""
    assert finetuning._spread({"f1": [0.5]}) == {}
    spread = finetuning._spread({"f1": [0.25, 0.75], "spearman": [None, 0.5]})
    assert spread == {"mean": {"f1": 0.5}, "deviation": {"f1": pytest.approx(0.125**0.5)}}


def test_more_restarts_can_be_added():
    finetune(**settings_for(restarts=1))
    added = finetune(**settings_for(restarts=3, resume=True))
    with pytest.raises(UserError, match="has 3 restarts already; give --restarts 3 or more"):
        finetune(**settings_for(restarts=2, resume=True))
    whole = finetune(**settings_for(restarts=3, name="whole"))
    assert [run["scores"] for run in added["runs"]] == [run["scores"] for run in whole["runs"]]
    assert weights() == weights("whole")


# -- Stopping and going on ---------------------------------------------------------------------------


class Killed(Exception):
    """Stands for a kill: nothing of ours runs after it."""


PARTLY = {"layerwise_lr": 0.9, "freeze": "1"}


@pytest.mark.parametrize(
    ("moment", "strategy"),
    [*((moment, PARTLY) for moment in (1, 4, 7, 9, 17, 24)), (8, {"features": (-1, 1)})],
)
def test_a_killed_run_goes_on_to_the_same_bits(monkeypatch, moment, strategy):
    """Before the first checkpoint, on and between checkpoints, in the first restart and in the second."""
    changes = {"restarts": 2, "epochs": 4.0, "accumulation": 2, "save_every": 2, "dropout": 0.2, "seed": 3}
    changes |= {"eval_every": 4, **strategy}
    whole = finetune(**settings_for(name="whole", **changes))
    take, taken = TrainingStep.take, []

    def take_or_die(*arguments):
        taken.append(1)
        if len(taken) == moment:
            raise Killed
        take(*arguments)

    monkeypatch.setattr(TrainingStep, "take", take_or_die)
    with pytest.raises(Killed):
        finetune(**settings_for(**changes))
    resumed = finetune(**settings_for(**changes, resume=True))
    assert weights() == weights("whole")
    assert [run["scores"] for run in resumed["runs"]] == [run["scores"] for run in whole["runs"]]
    for seed in (3, 4):
        assert curve(seed=seed) == curve("whole", seed=seed)


@pytest.mark.parametrize("moment", [7, 10])
def test_a_resumed_run_multiplies_with_the_library_that_it_began_with(monkeypatch, moment):
    """It is looked for once in a run. Where the settings name one, that counts.

    The run is killed in the second restart, before its first checkpoint and after it.
    """
    monkeypatch.setitem(LIBRARIES, "other", lambda: lambda a, b, out: np.matmul(a, b, out=out))
    asked = []

    def fastest(shapes):
        asked.append(shapes)
        return "other"

    take, taken = TrainingStep.take, []

    def take_or_die(*arguments):
        taken.append(1)
        if len(taken) == moment:
            raise Killed
        take(*arguments)

    settings = settings_for(restarts=2, epochs=1.0, save_every=2)
    monkeypatch.setattr(run_module, "fastest_library", fastest)
    try:
        with monkeypatch.context() as patched:
            patched.setattr(TrainingStep, "take", take_or_die)
            with pytest.raises(Killed):
                finetune(**settings)
        assert products_library() == "other"
        (shapes,) = asked
        assert (16, 8) in shapes and (len(TOKENIZER), 8) not in shapes
        use_products("numpy")
        monkeypatch.setattr(run_module, "fastest_library", lambda shapes: "numpy")
        finetune(**settings | {"resume": True})
        assert products_library() == "other"
        use_products("numpy")
        again = finetune(**settings | {"resume": True})  # takes no step
        assert again["environment"]["products"] == "other"
        finetune(**settings | {"resume": True, "restarts": 3})
        assert products_library() == "other"
        finetune(**settings | {"products": "numpy", "name": "named"})
        assert products_library() == "numpy"
    finally:
        use_products("numpy")


def test_until_a_library_is_chosen_numpy_multiplies(monkeypatch):
    """And not what an earlier run of this process has chosen."""
    monkeypatch.setitem(LIBRARIES, "other", lambda: lambda a, b, out: np.matmul(a, b, out=out))
    read, used = finetuning.read_data, []
    monkeypatch.setattr(finetuning, "read_data", lambda *data: used.append(products_library()) or read(*data))
    try:
        use_products("other")
        finetune(**settings_for(features=[-1], epochs=1.0))
        assert used == ["numpy"]
    finally:
        use_products("numpy")


KILLED = """
import os, signal
from minibert.cli import main
from minibert.train import checkpoint

written = []

def digest(path, digest=checkpoint._digest):
    written.append(path.name)
    if written.count("model.safetensors") == 4:  # in the middle of the second restart's first checkpoint
        os.kill(os.getpid(), signal.SIGKILL)
    return digest(path)

checkpoint._digest = digest
main("finetune --config settings.json".split())
"""


def test_a_really_killed_run_goes_on_to_the_same_bits():
    changes = {"restarts": 2, "epochs": 1.0, "save_every": 2, "threads": 1}
    write("settings.json", json.dumps(settings_for(**changes)))
    process = subprocess.run([sys.executable, "-c", KILLED], capture_output=True, text=True)
    assert process.returncode == -signal.SIGKILL, process.stderr
    assert list(Path("runs/run/seed-1").glob(".checkpoint-2.*.part"))
    finetune(**settings_for(**changes, resume=True))
    finetune(**settings_for(**changes, name="whole"))
    assert weights() == weights("whole")
    assert curve(seed=1) == curve("whole", seed=1)


def test_an_overwritten_run_of_another_kind_leaves_nothing():
    """Its model would be taken for that of the new run, and its checkpoints resumed."""
    for folder in ("final", "checkpoint-2"):
        Path("runs/run", folder).mkdir(parents=True)
    for name in ("config.json", "metrics.jsonl", "loss.png", "results.json"):
        write(f"runs/run/{name}", "{}")
    write("runs/run/notes.txt", "mine")
    finetune(**settings_for(epochs=1.0, overwrite=True))
    left = {path.name for path in Path("runs/run").iterdir()} - {".lock", "training.png"}
    assert left == {"best", "config.json", "results.json", "seed-0", "notes.txt"}


def test_a_killed_run_keeps_the_best_model_that_its_checkpoint_knows(monkeypatch):
    """A better one, which was found after the checkpoint, is not found again: the bits have changed, say."""

    def evaluations(*accuracies):
        others, left = dict.fromkeys(("f1", "macro_f1", "matthews"), 0.0), iter(accuracies)

        def scores(*_):
            accuracy = next(left, 0.4)
            if accuracy is None:
                raise Killed
            return {"accuracy": accuracy, **others}

        monkeypatch.setattr(Classify, "scores", scores)

    changes = {"epochs": 2.0, "eval_every": 2, "save_every": 4}
    evaluations(0.1, 0.2, 0.5)
    finetune(**settings_for(name="whole", **changes))
    evaluations(0.1, 0.2, 0.5, 0.9, None)  # after the checkpoint of step 4
    with pytest.raises(Killed):
        finetune(**settings_for(**changes))
    evaluations()
    best = finetune(**settings_for(**changes, resume=True))["best"]
    assert (best["step"], best["scores"]["accuracy"]) == (4, 0.5)
    assert weights() == weights("whole")


@pytest.mark.parametrize("function", ["write_json", "copytree", "rmtree"])
def test_a_run_that_is_killed_between_restarts(monkeypatch, function):
    """While the best model is taken over from the restart that has just ended."""
    changes = {"restarts": 2, "epochs": 1.0}
    whole = finetune(**settings_for(name="whole", **changes))
    place = finetuning if function == "write_json" else finetuning.shutil
    real = getattr(place, function)

    def call_or_die(path, *arguments, **options):
        if Path(path).name.startswith(("results.json", "best")) and (
            function == "write_json" or Path(path).exists()
        ):
            raise Killed
        return real(path, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(place, function, call_or_die)
        with pytest.raises(Killed):
            finetune(**settings_for(**changes))
    resumed = finetune(**settings_for(**changes, resume=True))
    assert weights() == weights("whole")
    assert [run["scores"] for run in resumed["runs"]] == [run["scores"] for run in whole["runs"]]
    assert sorted(path.name for path in Path("runs/run").glob("seed-*/*")) == ["metrics.jsonl"] * 2


def test_ctrl_c_saves_and_says_how_to_go_on(monkeypatch, capsys):
    take, taken = TrainingStep.take, []

    def take_and_interrupt(*arguments):
        taken.append(1)
        if len(taken) == 8:
            os.kill(os.getpid(), signal.SIGINT)
        take(*arguments)

    monkeypatch.setattr(TrainingStep, "take", take_and_interrupt)
    with pytest.raises(KeyboardInterrupt):
        finetune(**settings_for(restarts=2, epochs=1.0))
    assert [path.name for path in Path("runs/run/seed-1").glob("checkpoint-*")] == ["checkpoint-2"]
    assert "minibert finetune --config runs/run/config.json --resume" in capsys.readouterr().out
    assert main("finetune --config runs/run/config.json --resume".split()) == 0
    finetune(**settings_for(restarts=2, epochs=1.0, name="whole"))
    assert weights() == weights("whole")


def test_sigterm_is_treated_like_ctrl_c(monkeypatch):
    take, taken = TrainingStep.take, []

    def take_and_terminate(*arguments):
        taken.append(1)
        if len(taken) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        take(*arguments)

    write("settings.json", json.dumps(settings_for(epochs=1.0)))
    monkeypatch.setattr(TrainingStep, "take", take_and_terminate)
    assert main("finetune --config settings.json".split()) == 130
    assert [path.name for path in Path("runs/run/seed-0").glob("checkpoint-*")] == ["checkpoint-2"]
    assert main("finetune --config runs/run/config.json --resume".split()) == 0


def test_a_second_run_in_the_folder_is_refused_and_touches_nothing(monkeypatch):
    take, taken, refused = TrainingStep.take, [], []
    write("settings.json", json.dumps(settings_for(epochs=1.0, save_every=1)))

    def contents():
        return {path: path.read_bytes() for path in Path("runs/run").rglob("*") if path.is_file()}

    def take_and_start_others(*arguments):
        taken.append(1)
        if len(taken) == 3:
            before = contents()
            for way in ([], ["--overwrite"], ["--resume"]):
                command = [sys.executable, "-m", "minibert", "finetune", "--config", "settings.json", *way]
                process = subprocess.run(command, capture_output=True, text=True)
                refused.append((process.stderr, process.returncode))
            assert contents() == before
        take(*arguments)

    monkeypatch.setattr(TrainingStep, "take", take_and_start_others)
    assert main("finetune --config settings.json".split()) == 0
    line = (
        "minibert: error: another run is at work in runs/run; wait for it to end, or choose another --name\n"
    )
    assert refused == [(line, 2)] * 3
    assert not Path("runs/run/.lock").exists()


@pytest.mark.parametrize("way", ["resume", "overwrite"])
def test_what_a_killed_run_was_writing_is_removed(way):
    finetune(**settings_for(epochs=0.5))
    Path("runs/run/.training.png.123.part").write_text("half a picture")
    Path("runs/run/.best.x.part/new").mkdir(parents=True)
    Path("runs/run/seed-0/.metrics.jsonl.123.part").write_text("half a file")
    Path("runs/run/.notes").write_text("mine")
    finetune(**settings_for(epochs=0.5, **{way: True}))
    assert sorted(path.name for path in Path("runs/run").rglob(".*")) == [".notes"]


def test_a_finished_run_can_be_resumed_to_the_same_end():
    first = finetune(**settings_for())
    assert finetune(**settings_for(resume=True))["runs"] == first["runs"]


def test_a_finished_run_that_is_resumed_keeps_its_peak_of_memory(monkeypatch):
    monkeypatch.setattr("minibert.tasks.run.peak_memory", lambda *_: 1000)
    finetune(**settings_for())
    monkeypatch.setattr("minibert.tasks.run.peak_memory", lambda *_: 10)
    assert finetune(**settings_for(resume=True))["peak_memory"] == 1000


def test_a_run_is_resumed_with_what_it_began_with():
    finetune(**settings_for(save_every=1))
    with pytest.raises(UserError, match=r"runs/run was started with epochs = 2.0, not 3.0; .* --resume"):
        finetune(**settings_for(resume=True, epochs=3.0))
    with pytest.raises(UserError, match=r"runs/run was started with max_length = 32, not 16"):
        finetune(**settings_for(resume=True, max_length=16))


def stop_after(steps, monkeypatch, **changes):
    """A run that is killed after so many steps."""
    take, taken = TrainingStep.take, []

    def take_or_die(*arguments):
        if len(taken) == steps:
            raise Killed
        taken.append(1)
        take(*arguments)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(TrainingStep, "take", take_or_die)
        finetune(**settings_for(**changes))


@pytest.mark.parametrize("steps", [3, 6])  # in the first restart; after it, before the second's checkpoint
@pytest.mark.parametrize("change", ["weights", "vocabulary"])
def test_a_run_is_not_resumed_from_another_model(monkeypatch, steps, change):
    stop_after(steps, monkeypatch, restarts=2, epochs=1.0, save_every=2)
    if change == "weights":
        BertModel(BertConfig.from_pretrained("encoder"), seed=2).save_pretrained("encoder")
    else:
        BertTokenizer([*TOKENIZER.tokens[:5], *reversed(WORDS)]).save_pretrained("encoder")
    with pytest.raises(
        UserError, match="the data files, the model to begin from or the teacher changed since"
    ):
        finetune(**settings_for(restarts=2, epochs=1.0, save_every=2, resume=True))


@pytest.mark.parametrize("steps", [3, 6, 8])  # in the first restart, before the second's checkpoint, after it
def test_settings_that_were_edited_in_the_runs_own_file_are_noticed(monkeypatch, capsys, steps):
    stop_after(steps, monkeypatch, restarts=2, epochs=1.0, save_every=2)
    values = read_settings("runs/run/config.json")
    for name, before, value in (("learning_rate", 0.01, 0.5), ("max_length", 32, 16)):
        write("runs/run/config.json", json.dumps(values | {name: value}))
        capsys.readouterr()
        assert main("finetune --config runs/run/config.json --resume".split()) == 2
        error = capsys.readouterr().err
        assert error.startswith(
            f"minibert: error: runs/run was started with {name} = {before}, not {value}; resume"
        )
    write("runs/run/config.json", json.dumps(values | {"keep_checkpoints": 1, "print_every": 1}))
    assert main("finetune --config runs/run/config.json --resume".split()) == 0


def test_a_best_model_that_was_removed_is_missed_before_any_step():
    finetune(**settings_for(epochs=0.5))
    shutil.rmtree("runs/run/best")
    with pytest.raises(UserError, match=r"^runs/run/best: the best model so far is not here any more"):
        finetune(**settings_for(epochs=0.5, restarts=2, resume=True))


INTACT = {"seed": 0, "step": 1, "steps": 1, "tokens": 1, "seconds": 1.0}


@pytest.mark.parametrize(
    "content",
    [
        "[]",
        "{}",
        '{"runs": []}',
        '{"runs": 1, "settings": {}}',
        '{"runs": [{"seed": 0}], "settings": {}}',
        *(
            json.dumps({"runs": [dict(INTACT, scores=scores)], "settings": {}, "environment": environment})
            for scores, environment in (({}, {}), ({"accuracy": "x"}, {}), ({"accuracy": 1.0}, 5))
        ),
    ],
)
def test_damaged_results_are_told_in_one_line(content):
    finetune(**settings_for(epochs=0.5))
    write("runs/run/results.json", content)
    with pytest.raises(
        UserError, match=r"^runs/run/results\.json: not the results of a run; restore the file"
    ):
        finetune(**settings_for(epochs=0.5, resume=True))


def test_changed_data_is_refused(monkeypatch):
    monkeypatch.setattr(finetuning, "_keep_best", lambda *_: (_ for _ in ()).throw(Killed))
    settings = settings_for()
    with pytest.raises(Killed):
        finetune(**settings)
    films("train.tsv", 24, seed=9)
    with pytest.raises(
        UserError, match="checkpoint-12: the data files, the model to begin from or the teacher changed since"
    ):
        finetune(**settings, resume=True)


# -- Models and strategies ---------------------------------------------------------------------------


def learn_by_heart(**changes):
    """A run that surely gets better than at its start, whose model it would keep otherwise."""
    train = films("train.tsv", 24)
    assert finetune(**settings_for(train=train, dev=train, epochs=8.0, **changes))["best"]["step"] > 0


def tensors(folder):
    return load_file(Path(folder) / "model.safetensors")


@pytest.mark.parametrize(("freeze", "learning"), [("0", {"0", "1"}), ("1", {"1"}), ("all", set())])
def test_frozen_layers_stay_as_they_are(freeze, learning):
    learn_by_heart(freeze=freeze, learning_rate=0.1 if freeze == "all" else 0.01)
    before, after = tensors("encoder"), tensors("runs/run/best")
    moved = {name for name in before if not np.array_equal(before[name], after[f"bert.{name}"])}
    assert {name.split(".")[2] for name in moved if name.startswith("encoder.")} == learning
    assert not any(name.startswith("embeddings.") for name in moved)
    assert any(name.startswith("pooler.") for name in moved) == (freeze != "all")
    assert np.abs(after["classifier.weight"]).max() > 0


@pytest.mark.parametrize("task", ["classify", "regress", "tag", "qa"])
def test_a_head_learns_from_features_that_are_computed_once(task, monkeypatch):
    """Two restarts: the same results as when every epoch encodes every text again, and the encoder stays."""
    name, lines = (TASKS | {"qa": ("train.json", [articles(4)])})[task]
    encoded, encode = [], BertModel.forward
    monkeypatch.setattr(
        BertModel, "forward", lambda *given, **more: encoded.append(1) or encode(*given, **more)
    )
    changes = {"task": task, "train": write(name, *lines), "dev": name, "features": (-1, 0), "epochs": 3.0}
    changes |= {"restarts": 2, "max_length": 24, "dropout": 0.2, "batch_size": 64}
    once = finetune(**settings_for(**changes))
    calls, before = len(encoded), tensors("encoder")
    monkeypatch.setattr(FrozenEncoder, "__call__", lambda _, rows: rows)
    always = finetune(**settings_for(**changes, name="always"))
    assert calls <= 2 < len(encoded) - calls
    for one, other in zip(once["runs"], always["runs"], strict=True):
        assert one["scores"] == pytest.approx(other["scores"], rel=1e-4)
    losses = [[r["loss"] for r in curve(name) if "loss" in r] for name in ("run", "always")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    after = tensors("runs/run/best")
    assert all(np.array_equal(before[name], after[f"bert.{name}"]) for name in before if "pooler" not in name)
    opened, model = open_task("runs/run/best")  # without what was computed before
    examples = opened.read(name)
    scores = opened.scores(examples, opened.predict(model, examples))
    assert scores == pytest.approx(once["best"]["scores"], rel=1e-4)


def test_lower_layers_learn_more_slowly():
    far = {}
    for decay in (1.0, 0.01):
        learn_by_heart(layerwise_lr=decay, name=f"run{decay}")
        before, after = tensors("encoder"), tensors(f"runs/run{decay}/best")
        name = "embeddings.word_embeddings.weight"
        far[decay] = np.abs(after[f"bert.{name}"] - before[name]).max()
    assert 0 < far[0.01] < 1e-3 * far[1.0]


def test_dropout_is_that_of_the_model_or_as_told():
    finetune(**settings_for(epochs=0.2))
    assert BertConfig.from_pretrained("runs/run/best").hidden_dropout_prob == 0.1
    finetune(**settings_for(epochs=0.2, dropout=0.0, name="none"))
    config = BertConfig.from_pretrained("runs/none/best")
    assert config.hidden_dropout_prob == config.attention_probs_dropout_prob == 0.0
    assert config.classifier_dropout is None, "that of hidden states"


def test_a_head_with_a_dropout_of_its_own_gets_the_one_that_was_told():
    sizes = dict(vocab_size=len(TOKENIZER), hidden_size=8, num_hidden_layers=1, num_attention_heads=2)
    config = DistilBertConfig(**sizes, intermediate_size=8, max_position_embeddings=32)
    DistilBertModel(config).save_pretrained("distilled")
    TOKENIZER.save_pretrained("distilled")
    finetune(**settings_for(model="distilled", epochs=0.2, dropout=0.0))
    assert DistilBertConfig.from_pretrained("runs/run/best").seq_classif_dropout == 0.0


def test_a_head_for_the_same_labels_goes_on_and_another_is_left_aside(capsys):
    first = finetune(**settings_for(epochs=12.0))
    again = finetune(**settings_for(model="runs/run/best", name="again", epochs=0.2, learning_rate=1e-9))
    assert again["best"]["scores"] == first["best"]["scores"]
    assert "runs/run/best: " not in capsys.readouterr().err
    three = write("three.tsv", "text\tlabel", "good\tx", "bad\ty", "film\tz")
    finetune(**settings_for(model="runs/run/best", name="three", train=three, dev=three, epochs=1.0))
    assert BertConfig.from_pretrained("runs/three/best").labels == ["x", "y", "z"]
    assert (
        "runs/run/best: BertForSequenceClassification begins with a new classifier" in capsys.readouterr().err
    )


# -- What people get wrong ---------------------------------------------------------------------------


def test_bad_rows_are_named_or_left_out(capsys):
    lines = Path(films("train.tsv", 24)).read_text().splitlines()
    write("train.tsv", *lines[:3], "only one column", *lines[3:-1], " \t ", lines[-1])
    with pytest.raises(
        UserError, match=r"^train.tsv: line 4: 1 column\(s\), but the first row has 2; correct"
    ):
        finetune(**settings_for(train="train.tsv", dev=films("dev.tsv", 8)))
    assert not Path("runs").exists()
    results = finetune(**settings_for(train="train.tsv", dev="dev.tsv", skip_bad=True))
    assert results["examples"] == {"train": 24, "dev": 8, "left_out": 2}
    assert "2 bad row(s) left out, the first: train.tsv: line 4: 1 column(s)" in capsys.readouterr().out


def test_labels_that_the_training_data_lacks(capsys):
    dev = write("dev.tsv", "text\tlabel", "good\tpos", "bad\tmaybe")
    train = films("train.tsv", 24)
    with pytest.raises(UserError, match=r"^dev.tsv: line 3: label 'maybe' is not one of the training data's"):
        finetune(**settings_for(train=train, dev=dev))
    results = finetune(**settings_for(train=train, dev=dev, skip_bad=True))
    assert results["examples"]["dev"] == 1
    assert "1 of the training data's labels never occur here: neg" in capsys.readouterr().out


def test_shares_and_limits():
    train = films("train.tsv", 40)
    results = finetune(**settings_for(train=train, dev_share=0.25, limit=7, dev_limit=6))
    assert results["examples"] == {"train": 7, "dev": 6, "left_out": 0}
    assert results["runs"][0]["steps"] == 4  # two epochs of two batches
    drawn = finetuning._some(range(50), 10, seed=1)
    assert len(set(drawn)) == 10 and drawn == sorted(drawn) != [*range(10)]
    assert drawn == finetuning._some(range(50), 10, seed=1) != finetuning._some(range(50), 10, seed=2)
    assert finetuning._some(range(5), None, 0) == finetuning._some(range(5), 9, 0) == [*range(5)]
    with pytest.raises(
        UserError, match=r"cannot hold out 1 of 1 different example\(s\); give a dev file or more data"
    ):
        finetune(**settings_for(task="regress", train=write("one.tsv", "text\tlabel", "good\t1"), name="one"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task": "clasify"}, "task must be one of classify, regress, .*, got 'clasify'"),
        ({"task": None}, "task is missing: give one of classify, .*, or a recipe"),
        ({"model": None}, "model must be of type str, got None"),
        ({"train": None}, "train is missing: give the training file"),
        ({"crf": True}, "settings: crf is for the task tag, not classify"),
        ({"epocs": 1}, "settings: unknown setting 'epocs'; did you mean 'epochs'"),
        ({"recipe": ["sst2"]}, r"recipe must be of type str, got \['sst2'\]"),
        ({"recipe": "sst"}, "recipe must be one of sst2, .*, got 'sst'"),
        (
            {"recipe": "blimp"},
            "recipe blimp is for minimal pairs, which cannot be learned; choose another",
        ),
        ({"recipe": "stsb"}, "recipe stsb is for the task regress, not classify"),
        (
            {"recipe": "sst2", "text_column": "review", "header": True},
            "recipe sst2 says how the files are read; leave out text_column, header",
        ),
        ({"task": ["classify"]}, r"task must be of type str, got \['classify'\]"),
        (
            {"task": "regress", "train": "scores.tsv", "dev": "scores.tsv", "dev_limit": 1},
            "1 example to evaluate on; the scores of this task need 2 or more; give",
        ),
        (
            {"task": "regress", "train": "scores.tsv", "dev": "same.tsv"},
            "all 2 examples to evaluate on have the score 1.0, with which nothing correlates; give",
        ),
        ({"freeze": "none"}, "freeze must be a number of layers or all, got 'none'"),
        ({"freeze": "3"}, "cannot freeze 3 layers: the encoder has 2; give 0 to 2"),
        ({"features": (-1, 2)}, "features names a layer twice: -1 2"),
        ({"features": (-1, 5)}, r"no layer 5; there are 0 \(the embeddings\) to 2, and −1 to −3"),
        ({"features": ("-1",)}, r"features must be a list of whole numbers, got \('-1',\)"),
        (
            {"features": (-1,), "freeze": "1"},
            "with features no layer of the encoder learns; leave out freeze",
        ),
        (
            {"freeze": "all", "layerwise_lr": 0.5},
            r"layerwise_lr is 0\.5, but with freeze all no layer of the encoder learns; leave it out",
        ),
        (
            {"features": (-1,), "task": "similarity"},
            "features are what a head is trained on, but similarity has",
        ),
        ({"epochs": 0}, "epochs must be at least 1e-06, got 0.0"),
        ({"batch_size": 10**14}, "batch_size must be at most 100000, got 100000000000000"),
        ({"restarts": 0}, "restarts must be at least 1, got 0"),
        (
            {"metric": "f2", "train": "nowhere.tsv"},  # told before anything is read
            "metric must be one of accuracy, macro_f1, matthews, f1 for the task classify, got 'f2'",
        ),
        ({"max_length": 600}, "max_length is 600, but the model has only 32 positions; give a smaller one"),
        ({"model": "nowhere"}, "nowhere: no such folder"),
        ({"train": "nowhere.tsv"}, "nowhere.tsv: no such file; check the path"),
        ({"precision": "float16"}, "precision float16 needs a GPU"),
        ({"resume": True}, "runs/run/config.json: no such settings file"),
        ({"resume": True, "overwrite": True}, "resume and overwrite contradict each other"),
    ],
)
def test_what_is_refused(changes, message):
    films("train.tsv", 8), write("scores.tsv", "text\tlabel", "good\t1", "bad\t0")
    write("same.tsv", "text\tlabel", "good\t1", "bad\t1")
    with pytest.raises(UserError, match=f"^{message}") as caught:
        finetune(**settings_for(**{"train": "train.tsv", "dev": "train.tsv", **changes}))
    assert "\n" not in str(caught.value)
    assert not Path("runs/run/best").exists() and not Path("runs/run/results.json").exists()


@pytest.mark.parametrize("changes", [{"max_length": 33}, {"freeze": "3"}, {"features": (-4,)}])
def test_a_model_that_is_too_small_is_told_before_the_data_are_read(changes):
    """There is no such file; that would be the next thing to be told."""
    with pytest.raises(UserError, match=r"32 positions|the encoder has 2|no layer -4"):
        finetune(**settings_for(train="nowhere.tsv", **changes))


def test_a_model_without_weights_is_told_before_the_data_are_read():
    Path("encoder/model.safetensors").unlink()
    with pytest.raises(UserError, match=r"^encoder/model\.safetensors: no such model file"):
        finetune(**settings_for(train="nowhere.tsv"))


def test_a_length_that_nobody_asked_for_is_one_that_the_model_can_read():
    """32 tokens; questions are given 384 by default."""
    values = settings_for(task="qa", train=write("squad.json", articles(4)), dev="squad.json", epochs=0.5)
    del values["max_length"]
    finetune(**values)
    assert read_settings("runs/run/config.json")["max_length"] == 32
    assert open_task("runs/run/best")[0].options.max_length == 32


def test_a_run_in_the_way(capsys):
    finetune(**settings_for(epochs=0.5))
    with pytest.raises(UserError, match=r"^runs/run is not empty; resume the run in it \(--resume\)"):
        finetune(**settings_for())
    settings = settings_for(model="runs/run/best", overwrite=True)
    with pytest.raises(UserError, match=r"^the model runs/run/best is in runs/run, which would be replaced"):
        finetune(**settings)
    Path("runs/run/notes.txt").write_text("mine")
    finetune(**settings_for(overwrite=True, restarts=2))
    assert Path("runs/run/notes.txt").exists() and Path("runs/run/seed-1").exists()
    finetune(**settings_for(overwrite=True))
    assert not Path("runs/run/seed-1").exists()


def test_a_score_that_the_data_does_not_have_leaves_the_earlier_run_alone():
    finetune(**settings_for(epochs=0.5))
    before = weights()
    train = write("three.tsv", "text\tlabel", "good\tpos", "bad\tneg", "film\tso-so")
    message = "there is no score 'f1' for this data; choose one of accuracy, macro_f1, matthews"
    with pytest.raises(UserError, match=f"^{message}$"):
        finetune(**settings_for(train=train, dev=train, metric="f1", overwrite=True))
    assert weights() == before


def test_a_damaged_model_leaves_the_earlier_run_alone():
    finetune(**settings_for(epochs=0.5))
    before = weights()
    BertForSequenceClassification(BertConfig(vocab_size=9, **SIZES)).save_pretrained("other")
    TOKENIZER.save_pretrained("other")
    with pytest.raises(UserError, match="the vocabulary has 18 tokens but the model knows only 9"):
        finetune(**settings_for(model="other", overwrite=True))
    assert weights() == before


def test_the_command(capsys):
    films("train.tsv", 16), films("dev.tsv", 8, 1)
    write("mine.toml", 'model = "encoder"', 'task = "classify"', "batch_size = 4", "epochs = 5.0")
    given = "--train train.tsv --dev dev.tsv --epochs 1 --max-length 16 --device cpu --threads 1 --name cli"
    given += " --features -2 -1"
    assert main(["finetune", "--config", "mine.toml", *given.split()]) == 0
    kept = read_settings("runs/cli/config.json")
    assert (kept["epochs"], kept["batch_size"], kept["max_length"]) == (1.0, 4, 16)
    assert kept["features"] == [-2, -1]
    assert "written to runs/cli: best/ (the model)" in capsys.readouterr().out
    assert main("finetune --task tag --crf --stride 3 --train t --model m".split()) == 2
    error = capsys.readouterr().err
    assert error == "minibert: error: settings: stride is for the task qa, not tag\n"
    assert main("finetune --tsak tag".split()) == 2
    assert "unknown argument '--tsak'; did you mean '--task'?" in capsys.readouterr().err


def test_what_was_typed_comes_back_from_its_settings():
    settings, options = split_settings(
        settings_for(train="my file.tsv", header=True, text_column="2", bias_correction=False)
    )
    line = settings.command_line(options)
    assert "--train 'my file.tsv'" in line and "--header" in line and "--no-bias-correction" in line
    assert "epochs 2.0" in line and "warmup" not in line
    assert FinetuneSettings(task="tag", train="t", model="m").seeds == range(1)
    line = split_settings({"recipe": "cola", "train": "t", "epochs": 3.0, "max_length": 64})
    assert "epochs 3.0" in line[0].command_line(line[1]), "which is not what the recipe says"
    assert not {"max-length", "metric"} & set(line[0].command_line(line[1]).split()), "which it does"
