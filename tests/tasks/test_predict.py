import json

import numpy as np
import pytest

from minibert.bert import BertConfig, BertModel
from minibert.data.tasks import Faults
from minibert.errors import UserError
from minibert.heads import BertForTokenClassification
from minibert.tasks import open_task, predict_texts
from minibert.tasks.classify import Classify
from minibert.tasks.predict import examples_of, examples_of_lines, records, write_predictions
from minibert.tasks.tag import Tag
from minibert.tasks.task import TableOptions
from minibert.text import BertTokenizer

TOKENIZER = BertTokenizer("[PAD] [UNK] [CLS] [SEP] [MASK] good bad film it was really a".split())
SIZES = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
SIZES |= {"initializer_range": 0.5}  # so that different texts get different scores


@pytest.fixture
def tuned(tmp_path):
    """tuned(Task, labels, …): the folder of a random model for a task."""

    def write(task_class, labels, **options):
        BertModel(BertConfig(vocab_size=len(TOKENIZER), **SIZES), seed=1).save_pretrained(
            tmp_path / "encoder"
        )
        task = task_class(TOKENIZER, task_class.Options(**options), labels)
        task.save(task.new_model(tmp_path / "encoder", seed=1), tmp_path / "tuned")
        return tmp_path / "tuned"

    return write


def test_texts_and_pairs(tuned):
    folder = tuned(Classify, ["bad", "good"])
    alone = predict_texts(folder, ["a good film", "it was bad"])
    assert [record["text"] for record in alone] == ["a good film", "it was bad"]
    assert all(sum(record["probabilities"].values()) == pytest.approx(1) for record in alone)
    pairs = predict_texts(folder, ["a good film", "it was bad"], ["it", "really"], batch_size=1)
    assert [record["text_pair"] for record in pairs] == ["it", "really"]
    assert pairs[0]["probabilities"] != pytest.approx(alone[0]["probabilities"])
    with pytest.raises(UserError, match="expected a list of texts, got a single one"):
        predict_texts(folder, "a good film")
    with pytest.raises(UserError, match="expected a list of texts, got a single one"):
        predict_texts(folder, ["a", "b"], "ab")
    with pytest.raises(UserError, match="device"):
        predict_texts(folder, ["a"], device="abacus")
    with pytest.raises(UserError, match="2 texts and 1 partners"):
        predict_texts(folder, ["a", "b"], ["c"])
    with pytest.raises(UserError, match="the texts: line 2: an empty text"):
        predict_texts(folder, ["a", " "])
    with pytest.raises(UserError, match="the texts: there is no text to read"):
        predict_texts(folder, [])
    for other, kind in ((("a", "b"), "tuple"), (3, "int"), (float("nan"), "float"), (None, "NoneType")):
        with pytest.raises(UserError, match=f"the texts: line 2: expected a text, found a {kind}"):
            predict_texts(folder, ["a", other])
    assert len(predict_texts(folder, iter(["a", "b"]), iter(["c", "d"]))) == 2


def test_scores_that_are_no_numbers_are_not_written_as_json(tuned, tmp_path):
    folder = tuned(Classify, ["bad", "good"])
    task, model = open_task(folder)
    model.classifier.weight.value[...] = np.nan
    examples = examples_of(task, [("a film", None)], "here")
    with pytest.raises(UserError, match="the model's scores are NaN or infinite: its weights are unusable"):
        write_predictions(task, examples, task.predict(model, examples, 1), tmp_path / "out.jsonl")
    assert not (tmp_path / "out.jsonl").exists()


@pytest.mark.parametrize("task_class", [Classify, Tag])
def test_scores_that_are_no_numbers_predict_nothing(tuned, task_class):
    task, model = open_task(tuned(task_class, ["O", "B-x"]))
    model.classifier.weight.value[...] = np.nan
    with pytest.raises(UserError, match="the model's scores are NaN or infinite: its weights are unusable"):
        task.predict(model, examples_of(task, [("a film", None)], "here"))


def test_lines_are_texts_or_two_with_a_tab(tuned):
    task, _ = open_task(tuned(Classify, ["bad", "good"]))
    examples = examples_of_lines(task, ["it was", "a\tfilm"], "lines.txt")
    assert [(e.text, e.text_pair, e.label, e.place.line) for e in examples] == [
        ("it was", None, None, 1),
        ("a", "film", None, 2),
    ]
    faults = Faults(skip_bad=True)
    assert len(examples_of_lines(task, ["it was", "", "a\t ", "film"], "lines.txt", faults)) == 2
    assert faults.skipped == ["lines.txt: line 2: an empty text", "lines.txt: line 3: an empty text"]
    tagger = Tag(TOKENIZER, labels=["B-x", "O"])
    assert examples_of_lines(tagger, ["it  was\u00a0bad "], "x")[0].words == ["it", "was", "bad"]
    with pytest.raises(UserError, match="x: line 1: words are tagged in one text"):
        examples_of_lines(tagger, ["it\twas"], "x")


def test_predictions_are_written_as_json_or_in_the_tasks_own_format(tuned, tmp_path):
    task, model = open_task(tuned(Tag, ["B-x", "O"]))
    examples = examples_of_lines(task, ["good film", "été"], "lines")
    predictions = task.predict(model, examples)
    write_predictions(task, examples, predictions, tmp_path / "a.jsonl")
    lines = (tmp_path / "a.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in lines] == records(task, examples, predictions)
    assert "été" in lines[1]
    write_predictions(task, examples, predictions, tmp_path / "a.conll")
    (first, second), (third,) = predictions
    written = (tmp_path / "a.conll").read_text(encoding="utf-8")
    assert written == f"good\t{first}\nfilm\t{second}\n\nété\t{third}\n"


def test_a_task_without_a_format_of_its_own_writes_json(tuned, tmp_path):
    task, model = open_task(tuned(Classify, ["bad", "good"]))
    examples = examples_of_lines(task, ["good"], "lines")
    write_predictions(task, examples, task.predict(model, examples), tmp_path / "a.conll")
    assert json.loads((tmp_path / "a.conll").read_text())["text"] == "good"


def test_files_are_read_as_in_training_or_as_is_said(tuned, tmp_path):
    task, _ = open_task(tuned(Classify, ["bad", "good"], recipe="mrpc", max_length=20))
    (tmp_path / "a.tsv").write_text("b\ta\nfilm\tit\n")
    with pytest.raises(UserError, match="expected the columns"):
        task.read(tmp_path / "a.tsv", labelled=False)
    task.set_layout({})
    assert task.options.recipe == "mrpc"
    task.set_layout({"text_column": "a", "pair_column": "b"})
    (example,) = task.read(tmp_path / "a.tsv", labelled=False)
    assert (example.text, example.text_pair) == ("it", "film")
    assert task.options == TableOptions(text_column="a", pair_column="b", max_length=20)
    with pytest.raises(UserError, match="task classify: unknown setting 'scheme'"):
        task.set_layout({"scheme": "bio"})


def test_a_model_without_its_head_is_refused(tuned):
    folder = tuned(Tag, ["B-x", "O"])
    BertModel(BertConfig(vocab_size=len(TOKENIZER), **SIZES)).save_pretrained(folder)
    with pytest.raises(UserError, match="tuned has no classifier, which BertForTokenClassification needs"):
        open_task(folder)


def test_a_tagger_of_another_program_reads_as_much_as_it_can(tmp_path):
    config = BertConfig(vocab_size=len(TOKENIZER), id2label={0: "O", 1: "B-PER"}, **SIZES)
    BertForTokenClassification(config.replace(max_position_embeddings=16)).save_pretrained(tmp_path)
    TOKENIZER.save_pretrained(tmp_path)
    task, _ = open_task(tmp_path)
    assert (type(task), task.labels, task.options.max_length) == (Tag, ["O", "B-PER"], 16)
    (record,) = predict_texts(tmp_path, ["good film"])
    assert set(record["prediction"]) <= {"O", "B-PER"}
