import json

import pytest

from minibert.bert import BertConfig, BertModel
from minibert.data.tasks import Faults
from minibert.errors import UserError
from minibert.tasks import evaluate, open_task
from minibert.tasks.classify import Regress
from minibert.tasks.evaluate import Evaluation
from minibert.tasks.tag import Tag
from minibert.text import BertTokenizer

TOKENIZER = BertTokenizer("[PAD] [UNK] [CLS] [SEP] [MASK] ann lee sings in rome .".split())
SIZES = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
SIZES |= {"initializer_range": 0.5}


@pytest.fixture
def tuned(tmp_path):
    """tuned(Task, labels): the folder of a random model for a task."""

    def write(task_class, labels=None):
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
        UserError, match=r"test.conll: line 3: label 'B-place' is none of the training data's"
    ):
        evaluate(folder, path)
    faults = Faults(skip_bad=True)
    assert evaluate(folder, path, faults=faults).examples == 1
    assert len(faults.skipped) == 1
    with pytest.raises(UserError, match="recipe mrpc is for the task classify, not tag"):
        evaluate(folder, path, layout={"recipe": "mrpc"})


def test_a_correlation_that_is_none_is_no_number(tuned, tmp_path):
    folder = tuned(Regress)
    (tmp_path / "test.tsv").write_text("text\tscore\nAnn\t1.0\nLee\t1.0\n")
    with pytest.raises(UserError, match="expected the columns"):
        evaluate(folder, tmp_path / "test.tsv")
    result = evaluate(folder, tmp_path / "test.tsv", layout={"label_column": "score"})
    assert "spearman  nan" in result.describe()
    assert json.loads(json.dumps(result.to_dict(), allow_nan=False))["scores"]["spearman"] is None


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
