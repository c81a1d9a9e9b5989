"""A student learns from a teacher, with another vocabulary and its labels in another order."""

import contextlib
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from minibert.bert import BertConfig, BertModel
from minibert.cli import main
from minibert.data.tasks import Place, TextExample
from minibert.errors import UserError
from minibert.heads import Distillation
from minibert.tasks import evaluate, finetune, finetuning, open_task
from minibert.tasks.classify import Classify, Regress
from minibert.tasks.distillation import ask_teacher
from minibert.tasks.finetuning_settings import FinetuneSettings
from minibert.tasks.tag import Tag
from minibert.text import BertTokenizer
from minibert.threads import get_threads, set_threads
from minibert.train.metrics import read_metrics

WORDS = "good fine bad poor film book it was really a the of and".split()
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
TOKENIZER, OTHER = BertTokenizer([*SPECIAL, *WORDS]), BertTokenizer([*SPECIAL, *reversed(WORDS), "more"])
SIZES = {"num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16, "initializer_range": 0.3}


def encoder(folder, tokenizer, hidden):
    config = BertConfig(vocab_size=len(tokenizer), hidden_size=hidden, max_position_embeddings=32, **SIZES)
    BertModel(config, seed=1).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def films(name, count, seed=0, known=True):
    """A table of texts with a good word or a bad one, which is the label (or, not ``known``, is not)."""
    rng = np.random.default_rng(seed)
    rows = ["text\tlabel"]
    for _ in range(count):
        kind = rng.integers(2)
        words = [*rng.choice(WORDS[4:], rng.integers(2, 7)), WORDS[2 * kind + rng.integers(2)]]
        label = kind if known else rng.integers(2)
        rows.append(f"{' '.join(rng.permutation(words))}\t{('pos', 'neg')[label]}")
    Path(name).write_text("\n".join(rows) + "\n", encoding="utf-8")
    return name


def settings(**changes):
    values = {"task": "classify", "device": "cpu", "threads": 1, "learning_rate": 0.01, "batch_size": 4}
    values |= {"max_length": 32, "dev": films("dev.tsv", 40, seed=1)}
    return values | changes


@pytest.fixture(scope="module")
def taught_folder(tmp_path_factory):
    """A folder with a teacher that knows good films from bad ones, and an encoder for the student."""
    threads = get_threads()
    folder = tmp_path_factory.mktemp("distillation")
    with contextlib.chdir(folder):
        encoder("large", TOKENIZER, 16)
        encoder("small", OTHER, 8)
        teacher = settings(train=films("train.tsv", 160), model="large", name="teacher", epochs=6.0)
        assert finetune(**teacher)["best"]["scores"]["accuracy"] > 0.95
    yield folder
    set_threads(threads)


@pytest.fixture(autouse=True)
def workplace(taught_folder, tmp_path, monkeypatch):
    """A copy of that folder, which is where the test runs."""
    shutil.copytree(taught_folder, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(finetuning, "plot_finetuning", lambda *_: None)
    monkeypatch.setattr(os, "fsync", lambda _: None)


TEACHER = "runs/teacher/best"


def test_a_student_learns_from_its_teacher_what_the_labels_do_not_tell(capsys):
    """The labels are drawn at random, the teacher's scores are right."""
    train = films("noise.tsv", 60, seed=2, known=False)
    student = settings(train=train, model="small", epochs=12.0)
    alone = finetune(**student, name="alone")["best"]["scores"]["accuracy"]
    taught = finetune(**student, name="taught", teacher=TEACHER, teacher_weight=0.95)
    assert taught["best"]["scores"]["accuracy"] > max(0.9, alone)
    assert f"asking the teacher {TEACHER}\n" in capsys.readouterr().out
    reports = [r for r in read_metrics(Path("runs/taught/seed-0/metrics.jsonl")) if "loss" in r]
    for report in reports:
        assert report["loss"] == pytest.approx(
            0.05 * report["hard_loss"] + 0.95 * report["soft_loss"], rel=1e-4
        )
    assert np.mean([r["soft_loss"] for r in reports[-10:]]) < 0.5 * np.mean(
        [r["soft_loss"] for r in reports[:10]]
    )
    assert (
        evaluate("runs/taught/best", "dev.tsv").scores == taught["best"]["scores"]
    )  # a model like any other


def test_the_temperature_softens_what_the_teacher_says():
    first = {}
    for temperature in (1.0, 4.0):
        student = settings(
            train="train.tsv", model="small", epochs=0.1, teacher=TEACHER, name=f"{temperature}"
        )
        finetune(**student, temperature=temperature)
        reports = read_metrics(Path(f"runs/{temperature}/seed-0/metrics.jsonl"))
        first[temperature] = next(report for report in reports if "loss" in report)
    assert first[1.0]["hard_loss"] == first[4.0]["hard_loss"]
    assert first[1.0]["soft_loss"] != first[4.0]["soft_loss"]


def interrupt(steps, monkeypatch, **student):
    """A run that somebody interrupts after so many steps."""
    take = finetuning.Trainer.run

    def stop(trainer, *_):
        take(trainer, steps)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(finetuning.Trainer, "run", stop)
        with pytest.raises(KeyboardInterrupt):
            finetune(**student)


def test_a_run_with_a_teacher_goes_on_to_the_same_bits(monkeypatch):
    student = settings(
        train="train.tsv", model="small", teacher=TEACHER, epochs=2.0, save_every=10, eval_every=30
    )
    whole = finetune(**student, name="whole")
    interrupt(20, monkeypatch, **student, name="killed")
    resumed = finetune(**student, name="killed", resume=True)
    assert resumed["best"]["scores"] == whole["best"]["scores"]
    assert finetune(**student, name="whole", resume=True)["runs"] == whole["runs"]  # which had ended
    models = [Path("runs", name, "best/model.safetensors").read_bytes() for name in ("whole", "killed")]
    assert models[0] == models[1]
    with pytest.raises(UserError, match="teacher"):
        finetune(**student | {"teacher": None}, name="killed", resume=True)


def test_a_run_does_not_go_on_with_other_weights_of_its_teacher(tmp_path, monkeypatch):
    teacher = str(shutil.copytree(TEACHER, tmp_path / "teacher"))
    student = settings(train="train.tsv", model="small", teacher=teacher, epochs=1.0, save_every=5)
    interrupt(5, monkeypatch, **student, name="other-teacher")
    task, model = open_task(teacher)
    model.buffers.value *= 1.5
    task.save(model, teacher)
    with pytest.raises(UserError, match="or the teacher changed since this run began"):
        finetune(**student, name="other-teacher", resume=True)


def test_the_teachers_scores_are_in_the_order_of_the_students_labels():
    teacher_task, teacher = open_task(TEACHER)
    examples = teacher_task.read("dev.tsv")
    asked = []
    for labels in (["neg", "pos"], ["pos", "neg"]):
        task = Classify(OTHER, labels=labels)
        task.pairs = False
        features = task.features(examples, training=True)
        asked.append(ask_teacher(TEACHER, task, examples, features, teacher.device, "float32")[0])
    logits = teacher_task.logits(teacher, examples, 8)
    for one, other, row in zip(*asked, logits, strict=True):
        by_label = dict(zip(teacher_task.labels, row, strict=True))
        assert one.inputs["teacher_logits"] == pytest.approx([by_label["neg"], by_label["pos"]], rel=1e-5)
        np.testing.assert_array_equal(other.inputs["teacher_logits"], one.inputs["teacher_logits"][::-1])
        assert one.inputs["input_ids"].tolist() == other.inputs["input_ids"].tolist()


def test_numbers_can_be_taught():
    rows = [row.split("\t") for row in Path("train.tsv").read_text().splitlines()[1:]]
    scores = "\n".join(["text\tlabel", *(f"{text}\t{5.0 * (label == 'pos')}" for text, label in rows)])
    Path("scores.tsv").write_text(scores + "\n")
    numbers = settings(task="regress", train="scores.tsv", dev="scores.tsv", epochs=6.0)
    finetune(**numbers, model="large", name="numbers")
    taught = finetune(
        **numbers, model="small", name="taught", teacher="runs/numbers/best", teacher_weight=1.0
    )
    assert taught["best"]["scores"]["pearson"] > 0.7


# -- Texts without labels ----------------------------------------------------------------------------


def test_unlabelled_texts_are_learned_with_the_teachers_labels(capsys):
    """A few labels are not enough; with the teacher's guesses about many more texts they are."""
    Path("few.tsv").write_text("\n".join(Path("train.tsv").read_text().splitlines()[:7]) + "\n")
    rows = Path(films("more.tsv", 120, seed=3, known=False)).read_text().splitlines()[1:]
    texts = [row.split("\t")[0] for row in rows]
    Path("more.txt").write_text("\n".join(texts) + "\n")
    student = settings(train="few.tsv", model="small", teacher=TEACHER, max_length=16)
    alone = finetune(**student, name="few", epochs=60.0)["best"]["scores"]["accuracy"]
    more = finetune(**student, name="more", unlabelled="more.txt", epochs=6.0)
    assert more["best"]["scores"]["accuracy"] > max(0.9, alone)
    known = {
        row.split("\t")[0] for name in ("few.tsv", "dev.tsv") for row in Path(name).read_text().splitlines()
    }
    new = sum(text not in known for text in texts)
    assert more["examples"] == {"train": 6, "unlabelled": new, "dev": 40, "left_out": 0}
    assert (
        f"6 examples (6 rows) to train on, {new} without labels, 40 to evaluate on" in capsys.readouterr().out
    )
    assert f"| unlabelled | more.txt: {new} examples |" in Path("runs/more/best/README.md").read_text()
    # The wrong labels of a table are not read.
    table = finetune(**student, name="table", unlabelled="more.tsv", epochs=6.0)
    assert [run["scores"] for run in table["runs"]] == [run["scores"] for run in more["runs"]]


def test_the_teacher_labels_each_unlabelled_text():
    teacher_task, teacher = open_task(TEACHER)
    examples = teacher_task.read("dev.tsv")
    task = Classify(OTHER, labels=["pos", "neg"])
    task.pairs = False
    given, rest = examples[:10], [replace(example, label=None) for example in examples[10:]]
    features = task.features(given, training=True)
    told, _ = ask_teacher(TEACHER, task, given, features, teacher.device, "float32", unlabelled=rest)
    assert [feature.example for feature in told] == [*range(len(examples))]
    guesses = teacher_task.predict(teacher, rest)
    assert [task.labels[f.inputs["labels"]] for f in told[10:]] == [guess.label for guess in guesses]
    assert [f.inputs["labels"] for f in told[:10]] == [f.inputs["labels"] for f in features]
    for feature in told[10:]:
        assert feature.inputs["teacher_logits"].argmax() == feature.inputs["labels"]


def test_numbers_are_guessed_too():
    rows = [row.split("\t")[0] for row in Path("train.tsv").read_text().splitlines()[1:]]
    Path("scores.tsv").write_text("\n".join(["text\tlabel", *(f"{t}\t{len(t)}" for t in rows)]) + "\n")
    numbers = settings(task="regress", train="scores.tsv", dev="scores.tsv", epochs=1.0, model="large")
    finetune(**numbers, name="numbers")
    teacher_task, teacher = open_task("runs/numbers/best")
    examples = teacher_task.read("dev.tsv", labelled=False)
    task = Regress(TOKENIZER)
    task.pairs = False
    told, _ = ask_teacher("runs/numbers/best", task, [], [], teacher.device, "float32", unlabelled=examples)
    np.testing.assert_allclose(
        [f.inputs["labels"] for f in told], teacher_task.predict(teacher, examples), rtol=1e-6
    )


def test_no_text_to_evaluate_on_is_learned_from():
    """Not even one that --dev-limit leaves out, or one with other white space."""
    dev = [row.split("\t")[0] for row in Path("dev.tsv").read_text().splitlines()[1:]]
    Path("more.txt").write_text(
        "\n".join([*(f" {text} " for text in dev), "it was a good film of it"]) + "\n"
    )
    student = settings(train="train.tsv", model="small", teacher=TEACHER, dev_limit=5, epochs=0.1)
    assert finetune(**student, unlabelled="more.txt", name="new")["examples"]["unlabelled"] == 1


def test_a_text_file_beside_one_to_train_on_has_its_columns():
    Path("train.txt").write_text(Path("train.tsv").read_text())
    Path(films("more.tsv", 20, seed=5)).rename("more.txt")
    student = settings(train="train.txt", format="tsv", model="small", teacher=TEACHER, epochs=0.1)
    more = finetune(**student, unlabelled="more.txt", name="columns")["examples"]["unlabelled"]
    assert 0 < more <= 20


def test_unlabelled_texts_that_cannot_be_used_are_refused():
    with pytest.raises(UserError, match="unlabelled needs a teacher; give one"):
        FinetuneSettings(task="classify", train="x", unlabelled="more.txt")
    student = settings(train="train.tsv", model="small", teacher=TEACHER)
    with pytest.raises(UserError, match=r"train\.tsv: all its texts have labels already, in train\.tsv"):
        finetune(**student, unlabelled="train.tsv")
    Path("pairs.txt").write_text("a good film\ta bad film\n")
    with pytest.raises(UserError, match=r"pairs\.txt: line 1: two texts"):
        finetune(**student, unlabelled="pairs.txt")


# -- The command -------------------------------------------------------------------------------------


def test_distill_takes_task_and_format_from_the_teacher(monkeypatch):
    seen = []
    monkeypatch.setattr("minibert.cli.distill.finetune", lambda source, **values: seen.append(values))
    assert main(f"distill --teacher {TEACHER} --model small --train train.tsv --temperature 4".split()) == 0
    assert main(f"distill --teacher {TEACHER} --recipe mrpc --train train.tsv --name mine".split()) == 0
    other = "--train more.csv --text-column review"
    assert main(f"distill --teacher {TEACHER} {other}".split()) == 0
    own, recipe, columns = seen
    given = {"teacher": TEACHER, "model": "small", "train": "train.tsv", "temperature": 4.0}
    assert given.items() <= own.items()
    assert (own["task"], "max_length" in own) == ("classify", False)
    assert recipe == {"teacher": TEACHER, "recipe": "mrpc", "train": "train.tsv", "name": "mine"}
    assert (columns["task"], columns["text_column"], "recipe" in columns) == ("classify", "review", False)
    Path("mine.json").write_text(json.dumps({"teacher": 1}))
    assert main("distill --config mine.json --train train.tsv".split()) == 2


def test_distill_leaves_a_model(capsys):
    line = f"distill --teacher {TEACHER} --model small --train train.tsv --dev dev.tsv --epochs 1 --threads 1"
    assert main([*line.split(), "--device", "cpu"]) == 0
    (run,) = Path("runs").glob("20??-??-??-distilled")
    config = json.loads((run / "config.json").read_text())
    assert (config["teacher"], config["task"], config["max_length"]) == (TEACHER, "classify", 32)
    assert evaluate(str(run / "best"), "dev.tsv").examples == 40


def test_layers_are_imitated():
    """A student of another size comes closer to what happens in the teacher's layers."""
    encoder("same-words", TOKENIZER, 8)
    student = settings(train="train.tsv", model="same-words", teacher=TEACHER, epochs=4.0)
    finetune(**student, name="both", hidden_weight=1.0, attention_weight=10.0)
    reports = [r for r in read_metrics(Path("runs/both/seed-0/metrics.jsonl")) if "loss" in r]
    for report in reports:
        parts = 0.5 * report["hard_loss"] + 0.5 * report["soft_loss"]
        parts += report["hidden_loss"] + 10.0 * report["attention_loss"]
        assert report["loss"] == pytest.approx(parts, rel=1e-4)
    for name in ("hidden_loss", "attention_loss"):
        first, last = (np.mean([r[name] for r in some]) for some in (reports[:10], reports[-10:]))
        assert last < 0.7 * first


# -- Mistakes ----------------------------------------------------------------------------------------


def test_a_teacher_of_something_else_is_refused(capsys):
    texts = [TextExample("a film", None, "pos", Place(Path("x"), 1))]
    _, teacher = open_task(TEACHER)

    def ask(task):
        task.pairs = False
        ask_teacher(TEACHER, task, texts, [], teacher.device, "float32")

    with pytest.raises(UserError, match="was fine-tuned for classify, but the student learns regress"):
        ask(Regress(TOKENIZER))
    with pytest.raises(UserError, match="knows the labels neg, pos; the training data has bad, good"):
        ask(Classify(TOKENIZER, labels=["bad", "good"]))
    with pytest.raises(UserError, match=r"the training data has 0, 1, 2, 3, 4, 5, 6, 7, … \(60 in all\)"):
        ask(Classify(TOKENIZER, labels=list(map(str, range(60)))))
    pairs = Classify(TOKENIZER, labels=["neg", "pos"])
    pairs.pairs = True
    with pytest.raises(UserError, match="trained on single texts, but the training data are pairs of texts"):
        ask_teacher(TEACHER, pairs, texts, [], teacher.device, "float32")
    with pytest.raises(UserError, match="has another vocabulary than the student"):
        finetune(**settings(train="train.tsv", model="small", teacher=TEACHER, hidden_weight=1.0))
    for alone in ({"attention_weight": 1.0}, {"teacher_weight": 0.9}, {"temperature": 4.0}):
        with pytest.raises(UserError, match=f"{next(iter(alone))} needs a teacher; give one"):
            FinetuneSettings(task="classify", train="x", **alone)
    for frozen in ({"freeze": "all"}, {"features": (-1,)}):
        with pytest.raises(UserError, match="teach the encoder, which does not learn here"):
            FinetuneSettings(task="classify", train="x", teacher=TEACHER, hidden_weight=1.0, **frozen)
    with pytest.raises(UserError, match=r"temperature is 3.0, but a number has no probabilities to soften"):
        FinetuneSettings(task="regress", train="x", teacher=TEACHER, temperature=3.0)
    with pytest.raises(UserError, match="a teacher is for classify and regress, not for tag"):
        FinetuneSettings(task="tag", train="x", teacher=TEACHER)
    with pytest.raises(
        UserError, match="the model runs/teacher/best is in runs/teacher, which would be replaced"
    ):
        finetune(
            **settings(train="train.tsv", model="small", teacher=TEACHER, name="teacher", overwrite=True)
        )
    task = Tag(TOKENIZER, Tag.Options(max_length=32), labels=["O", "B-x"])
    task.save(task.new_model("large", seed=1), "tagger")
    with pytest.raises(UserError, match="a teacher is for classify and regress, not for tag"):
        finetune(**settings(task="tag", train="train.tsv", teacher="tagger"))
    assert main(["distill", "--train", "train.tsv"]) == 2
    assert "teacher is missing: give the folder of a fine-tuned model" in capsys.readouterr().err
    assert main(["distill", "--teacher", "small", "--train", "train.tsv"]) == 2
    assert "small: not a model fine-tuned for one of classify" in capsys.readouterr().err


def test_scores_that_do_not_fit_are_refused():
    _, student = open_task(TEACHER)
    batch = {"input_ids": [[2, 5, 3], [2, 6, 3]], "labels": [0, 1]}
    with pytest.raises(UserError, match=r"teacher_logits has shape \(2, 3\); expected \(2, 2\)"):
        Distillation(student).forward(**batch, teacher_logits=np.zeros((2, 3)))
