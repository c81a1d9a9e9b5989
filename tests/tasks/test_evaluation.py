import json

import pytest

from minibert.bert import BertConfig, BertForPreTraining, BertModel
from minibert.data.tasks import Faults, read_blimp
from minibert.errors import UserError
from minibert.tasks import evaluate, open_task
from minibert.tasks.classify import Regress
from minibert.tasks.evaluation import Evaluation
from minibert.tasks.likelihood import blimp_scores
from minibert.tasks.tag import Tag
from minibert.text import BertTokenizer

TOKENIZER = BertTokenizer("[PAD] [UNK] [CLS] [SEP] [MASK] ann lee sings in rome .".split())
SIZES = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
SIZES |= {"initializer_range": 0.5}


@pytest.fixture
def tuned(tmp_path):
    """tuned(Task, labels): the folder of a random model for a task."""

    def write(task_class, labels=()):
        BertModel(BertConfig(vocab_size=len(TOKENIZER), **SIZES), seed=1).save_pretrained(
            tmp_path / "encoder"
        )
        task = task_class(TOKENIZER, labels=labels)
        task.save(task.new_model(tmp_path / "encoder", seed=1), tmp_path / "tuned")
        return tmp_path / "tuned"

    return write


def test_scores_are_those_of_the_predictions(tuned, tmp_path):
    folder, path = tuned(Tag, ["B-person", "B-place", "O"]), tmp_path / "test.conll"
    task, model = open_task(folder)
    path.write_text("Ann\tO\nsings\tO\n\nin\tO\nRome\tO\n")
    tags = task.predict(model, task.read(path))
    tags[0][0] = "B-place" if tags[0][0] != "B-place" else "B-person"  # so that one word is wrong
    words = [["Ann", "sings"], ["in", "Rome"]]
    blocks = ("\n".join(map("\t".join, zip(*each, strict=True))) for each in zip(words, tags, strict=True))
    path.write_text("\n\n".join(blocks) + "\n")
    result = evaluate(folder, path, batch_size=1)
    assert result.scores["accuracy"] == 0.75 and 0 <= result.scores["f1"] < 1
    assert (result.task, result.examples, result.data) == ("tag", 2, str(path))
    assert set(result.details) <= {"person", "place"} and result.details


def test_what_the_model_cannot_know_is_refused_or_left_out(tuned, tmp_path):
    folder, path = tuned(Tag, ["B-person", "O"]), tmp_path / "test.conll"
    path.write_text("Ann\tB-person\n\nRome\tB-place\n")
    with pytest.raises(
        UserError, match=r"test.conll: line 3: label 'B-place' is not one of the training data's"
    ):
        evaluate(folder, path)
    faults = Faults(skip_bad=True)
    assert evaluate(folder, path, faults=faults).examples == 1
    assert len(faults.skipped) == 1
    with pytest.raises(UserError, match="recipe mrpc is for the task classify, not tag"):
        evaluate(folder, path, layout={"recipe": "mrpc"})
    for recipe in ("wnut17", "blimp"):
        with pytest.raises(UserError, match=f"recipe {recipe} says how .* are read; leave out tag_column"):
            evaluate(folder, path, layout={"recipe": recipe, "tag_column": 2})


def test_a_correlation_that_is_none_is_no_number(tuned, tmp_path):
    folder = tuned(Regress)
    (tmp_path / "test.tsv").write_text("text\tscore\nAnn\t1.0\nLee\t1.0\n")
    with pytest.raises(UserError, match="expected the columns"):
        evaluate(folder, tmp_path / "test.tsv")
    result = evaluate(folder, tmp_path / "test.tsv", layout={"label_column": "score"})
    assert "spearman  nan" in result.describe()
    told = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert told == {
        "model": str(folder),
        "task": "regress",
        "data": str(tmp_path / "test.tsv"),
        "examples": 2,
        "scores": {"spearman": None, "pearson": None},
        "details": {},
    }


def test_tables_stand_in_columns():
    result = Evaluation("runs/x", "tag", "a.conll", 1200, {"f1": 0.5, "precision": 1.0}, {})
    assert (
        result.describe() == "runs/x (tag) on a.conll: 1,200 examples\n\nf1         0.5000\nprecision  1.0000"
    )
    parts = {"person": {"f1": 0.5, "support": 1234}, "creative-work": {"f1": 0.25, "support": 9}}
    table = Evaluation("runs/x", "tag", "a.conll", 1200, {"f1": 0.5}, parts).describe().split("\n\n")[2]
    assert table.splitlines() == [
        "                   f1  support",
        "person         0.5000    1,234",
        "creative-work  0.2500        9",
    ]


def test_only_the_first_examples_are_used_if_so_asked(tuned, tmp_path):
    folder, path = tuned(Tag, ["B-person", "O"]), tmp_path / "test.conll"
    path.write_text("Ann\tO\n\nLee\tO\n\nsings\tO\n")
    assert [evaluate(folder, path, limit=limit).examples for limit in (1, 2, 4)] == [1, 2, 3]
    for limit in (0, 2.5):
        with pytest.raises(UserError, match=f"limit must be a whole number of at least 1, got {limit}"):
            evaluate(folder, path, limit=limit)


def test_bad_rows_are_left_out_if_so_asked(tuned, tmp_path):
    path, faults = tmp_path / "test.conll", Faults(skip_bad=True)
    path.write_text("Ann\tO\n\nLee\n")
    assert evaluate(tuned(Tag, ["B-person", "O"]), path, faults=faults).examples == 1
    assert len(faults.skipped) == 1


def test_the_model_is_opened_as_is_said(tuned, tmp_path):
    (tmp_path / "test.conll").write_text("Ann\tO\n")
    with pytest.raises(UserError, match="device"):
        evaluate(tuned(Tag, ["B-person", "O"]), tmp_path / "test.conll", device="abacus")


PAIR = '{"sentence_good": "Ann", "sentence_bad": "Lee", "UID": "a", "linguistics_term": "b"}\n'


def test_a_pretrained_model_is_measured_on_minimal_pairs(tmp_path):
    words, path = TOKENIZER.tokens[5:], tmp_path / "blimp.jsonl"
    rows = [
        {"sentence_good": f"{a} {b}", "sentence_bad": f"{b} {a}", "UID": f"{a}s", "linguistics_term": term}
        for a, term in zip(words, ("binding", "binding", "ellipsis"), strict=False)
        for b in words
        if b != a
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    model = BertForPreTraining(BertConfig(vocab_size=len(TOKENIZER), **SIZES), seed=1)
    model.save_pretrained(tmp_path / "model")
    TOKENIZER.save_pretrained(tmp_path / "model")
    result = evaluate(tmp_path / "model", path, layout={"recipe": "blimp"}, limit=4)
    pairs = read_blimp(path)
    used = [pair for i in range(3) for pair in pairs[(len(words) - 1) * i :][:4]]
    scores = blimp_scores(model, TOKENIZER, used)
    assert (result.task, result.examples) == ("minimal pairs", 12)
    assert result.scores == {"accuracy": scores["overall"]}
    assert result.details == {
        "binding": {"accuracy": scores["binding"], "pairs": 8},
        "ellipsis": {"accuracy": scores["ellipsis"], "pairs": 4},
    }
    path.write_text(f"{PAIR}no pair\n")
    faults = Faults(skip_bad=True)
    assert evaluate(tmp_path / "model", path, layout={"recipe": "blimp"}, faults=faults).examples == 1
    assert len(faults.skipped) == 1
    for options, message in (
        ({"batch_size": 0}, "batch size must be at least 1"),
        ({"device": "abacus"}, "device"),
    ):
        with pytest.raises(UserError, match=message):
            evaluate(tmp_path / "model", path, layout={"recipe": "blimp"}, faults=faults, **options)


def test_minimal_pairs_are_compared_by_the_scoring_that_was_asked_for(tmp_path, monkeypatch):
    path, asked = tmp_path / "blimp.jsonl", []
    path.write_text(PAIR)
    BertForPreTraining(BertConfig(vocab_size=len(TOKENIZER), **SIZES), seed=1).save_pretrained(tmp_path)
    TOKENIZER.save_pretrained(tmp_path)

    def scores(*arguments, scoring, **options):
        asked.append((scoring, options["batch_size"]))
        return blimp_scores(*arguments, scoring=scoring, **options)

    monkeypatch.setattr("minibert.tasks.evaluation.blimp_scores", scores)
    for scoring, batch_size in ((None, None), ("original", 7)):
        evaluate(tmp_path, path, layout={"recipe": "blimp"}, scoring=scoring, batch_size=batch_size)
    assert asked == [("within_word_l2r", 512), ("original", 7)]
    with pytest.raises(UserError, match="unknown scoring 'best'; expected one of within_word_l2r, original"):
        evaluate(tmp_path, path, layout={"recipe": "blimp"}, scoring="best")
    with pytest.raises(UserError, match="give it only with the recipe blimp"):
        evaluate(tmp_path, path, scoring="original")


def test_minimal_pairs_need_a_head_for_masked_words(tuned, tmp_path):
    (tmp_path / "a.jsonl").write_text(PAIR)
    with pytest.raises(UserError, match=r"has no cls\.predictions, which BertForMaskedLM needs"):
        evaluate(tuned(Regress), tmp_path / "a.jsonl", layout={"recipe": "blimp"})
