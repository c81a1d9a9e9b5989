import json

import numpy as np
import pytest

from minibert.bert import BertConfig, BertModel
from minibert.data.tasks import Faults, Place
from minibert.data.tasks.faults import Problem
from minibert.errors import UserError
from minibert.heads import BertForSequenceClassification
from minibert.tasks.classify import Classify, ClassPrediction, Regress
from minibert.tasks.evaluation import evaluate
from minibert.tasks.predict import predict_texts
from minibert.tasks.question_answering import AnswerQuestions
from minibert.tasks.registry import open_task
from minibert.tasks.rerank import Reranker
from minibert.tasks.tag import Tag, TagOptions
from minibert.tasks.task import TableOptions
from minibert.text import BertTokenizer

TOKENIZER = BertTokenizer("[PAD] [UNK] [CLS] [SEP] [MASK] good bad film it was really a".split())
SIZES = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
SIZES |= {"initializer_range": 0.5}  # so that different texts get different scores


@pytest.fixture
def encoder(tmp_path):
    """A pretrained folder without a head."""
    BertModel(BertConfig(vocab_size=len(TOKENIZER), **SIZES), seed=1).save_pretrained(tmp_path / "encoder")
    TOKENIZER.save_pretrained(tmp_path / "encoder")
    return tmp_path / "encoder"


@pytest.fixture
def table(tmp_path):
    def write(text, name="train.tsv"):
        (tmp_path / name).write_text(text.replace("|", "\t"), encoding="utf-8")
        return tmp_path / name

    return write


FILMS = "text|label\nit was good|pos\nbad film|neg\nreally a really good film|pos\nit|neutral\n"


def test_names_of_columns_that_became_an_example_are_noticed(table, recwarn):
    path = table("review|stars\ngood|1\nbad|2\nreally good|1\n")
    numbers = {"text_column": "1", "label_column": "2"}
    for options in (numbers | {"header": True}, {"text_column": "review", "label_column": "stars"}):
        task = Classify(TOKENIZER, TableOptions(**options))
        task.learn_labels(task.read(path))
        assert task.labels == ["1", "2"] and not recwarn.list
    task = Classify(TOKENIZER, TableOptions(**numbers))
    with pytest.warns(
        UserWarning, match=r"train.tsv: line 1: no other example has the label 'stars'; if this"
    ):
        task.learn_labels(task.read(path))


def test_labels_of_the_training_data_are_those_of_the_model(encoder, table, tmp_path):
    task = Classify(TOKENIZER)
    examples = task.read(table(FILMS))
    task.learn_labels(examples)
    assert task.labels == ["neg", "neutral", "pos"]
    assert [f.inputs["labels"] for f in task.features(examples, training=True)] == [2, 0, 2, 1]

    model = task.new_model(encoder, seed=3)
    assert model.config.labels == task.labels
    task.save(model, tmp_path / "tuned")
    again, opened = open_task(tmp_path / "tuned")
    assert (type(again), again.labels, again.options) == (Classify, task.labels, task.options)

    before = task.predict(model, examples, batch_size=3)
    after = again.predict(opened, examples, batch_size=1)  # other batches, other padding
    for one, other in zip(before, after, strict=True):
        assert one.label == other.label == task.labels[one.probabilities.argmax()]
        np.testing.assert_allclose(one.probabilities, other.probabilities, rtol=1e-4)


def test_predictions_stand_in_the_order_of_the_examples(encoder, table):
    task = Classify(TOKENIZER)
    examples = task.read(table(FILMS))
    task.learn_labels(examples)
    model = task.new_model(encoder)
    alone = [task.predict(model, [example])[0].probabilities for example in examples]
    together = [prediction.probabilities for prediction in task.predict(model, examples)]
    np.testing.assert_allclose(together, alone, rtol=1e-4)
    assert not np.allclose(alone[0], alone[2], rtol=1e-3)  # so that order matters


def test_scores_and_records(table):
    task = Classify(TOKENIZER)
    examples = task.read(table("text|label\ngood|1\nbad|0\nfilm|1\nit|0\n"))
    task.learn_labels(examples)
    predictions = [ClassPrediction(label, np.array([0.5, 0.5])) for label in "1101"]
    scores = task.scores(examples, predictions)
    assert scores == {"accuracy": 0.25, "f1": 0.4, "macro_f1": 0.2, "matthews": pytest.approx(-(1 / 3**0.5))}
    assert task.record(examples[0], predictions[0]) == {
        "text": "good",
        "label": "1",
        "prediction": "1",
        "probabilities": {"0": 0.5, "1": 0.5},
    }


def test_f1_is_that_of_the_second_of_two_labels(table):
    two, three = Classify(TOKENIZER, labels=["no", "yes"]), Classify(TOKENIZER, labels=["a", "b", "c"])
    predictions = [ClassPrediction(label, np.array([0.5, 0.5])) for label in ("yes", "yes", "no", "no")]
    examples = two.read(table("text|label\ngood|yes\nbad|no\nfilm|no\nit|no\n"))
    assert two.scores(examples, predictions)["f1"] == pytest.approx(2 / 3)
    assert set(two.scores_for(examples)) == set(two.scores(examples, predictions))
    examples = three.read(table("text|label\ngood|a\nbad|b\n", "three.tsv"))
    scores = three.scores(examples, [ClassPrediction("a", np.ones(3))] * 2)
    assert set(scores) == set(three.scores_for(examples)) == {"accuracy", "macro_f1", "matthews"}


def test_what_is_predicted_may_have_labels_that_the_model_does_not_know(encoder, table):
    task = Classify(TOKENIZER, labels=["neg", "pos"])
    (example,) = task.read(table("text|label\ngood|great\n"))
    assert "labels" not in task.features([example], training=False)[0].inputs
    assert task.predict(task.new_model(encoder), [example])[0].label in task.labels


def test_a_head_goes_on_learning_if_it_is_for_the_same_labels_and_features(encoder, tmp_path):
    task = Classify(TOKENIZER, labels=["neg", "pos"])
    model = task.new_model(encoder, seed=1)
    task.save(model, tmp_path / "tuned")

    def goes_on(task, **options):
        again = task.new_model(tmp_path / "tuned", seed=2, **options)
        return np.array_equal(again.classifier.weight.value, model.classifier.weight.value)

    assert goes_on(task)
    assert not goes_on(task, feature_layers=[-1])
    assert not goes_on(Classify(TOKENIZER, labels=["pos", "neg"]))


def test_files_of_a_recipe_without_labels_or_with_bad_rows(table):
    task = Classify(TOKENIZER, TableOptions(recipe="sst2"))
    (example,) = task.read(table("sentence\ngood\n"), labelled=False)
    assert (example.text, example.label) == ("good", None)
    faults = Faults(skip_bad=True)
    assert len(task.read(table("sentence|label\ngood|pos\nbad\n"), faults=faults)) == len(faults.skipped) == 1


def test_files_in_a_format_that_their_name_does_not_tell(table):
    task = Classify(TOKENIZER, TableOptions(format="csv"))
    (example,) = task.read(table("text,label\ngood,pos\n", "train.dat"))
    assert (example.text, example.label) == ("good", "pos")


def test_a_new_model_forgets_the_task_of_the_old_one(encoder, tmp_path):
    tags = Tag(TOKENIZER, TagOptions(crf=True), ["O", "B-x", "I-x"])
    tags.save(tags.new_model(encoder), tmp_path / "tagger")
    kept = Tag(TOKENIZER, TagOptions(crf=True), ["O", "B-x", "I-x"]).new_model(tmp_path / "tagger").config
    assert kept.crf and kept.labels == ["O", "B-x", "I-x"]
    classes = Classify(TOKENIZER, labels=["neg", "pos"]).new_model(tmp_path / "tagger").config
    assert not classes.crf and classes.labels == ["neg", "pos"]
    answers = AnswerQuestions(TOKENIZER).new_model(tmp_path / "tagger").config
    assert (answers.crf, answers.id2label, answers.num_labels) == (False, None, 2)


def test_a_regression_of_several_numbers_gets_a_new_head_for_one(encoder, tmp_path):
    config = BertConfig.from_pretrained(encoder, num_labels=3, problem_type="regression")
    BertForSequenceClassification(config).save_pretrained(tmp_path / "three")
    assert Regress(TOKENIZER).new_model(tmp_path / "three").config.num_labels == 1


def test_a_regression_can_be_taught_labels(encoder, tmp_path):
    task = Regress(TOKENIZER)
    task.save(task.new_model(encoder), tmp_path / "numbers")
    config = Classify(TOKENIZER, labels=["neg", "pos"]).new_model(tmp_path / "numbers").config
    assert (config.num_labels, config.is_regression) == (2, False)


@pytest.fixture
def foreign(tmp_path):
    """foreign(**settings): the folder of a random model of another program, and the model."""

    def make(**settings):
        config = BertConfig(vocab_size=len(TOKENIZER), **SIZES, **settings)
        model = BertForSequenceClassification(config, dtype="float64", seed=1)
        model.save_pretrained(tmp_path / "foreign")
        TOKENIZER.save_pretrained(tmp_path / "foreign")
        model.eval()
        return tmp_path / "foreign", model

    return make


def test_labels_that_do_not_exclude_each_other_have_a_sigmoid_each(foreign, table):
    folder, model = foreign(
        id2label={0: "funny", 1: "long", 2: "sad"}, problem_type="multi_label_classification"
    )
    texts = ["it was good", "bad film", "really a really good film", "it", "good good bad", "a film"]
    found, (task, _) = predict_texts(folder, texts, dtype="float64"), open_task(folder)
    kinds = set()
    for text, told in zip(texts, found, strict=True):
        logits = model.forward([TOKENIZER(text)["input_ids"]])[0].logits[0]
        expected = dict(zip(("funny", "long", "sad"), 1 / (1 + np.exp(-logits)), strict=True))
        assert told["probabilities"] == pytest.approx(expected)
        assert told["prediction"] == [label for label, p in expected.items() if p > 0.5]
        [one] = task.predict(model, [task.example(text, None, Place("a text", 1))])
        assert (one.label, one.labels) == (max(expected, key=expected.get), told["prediction"])
        kinds.add(len(told["prediction"]))
    assert len(kinds) > 1, "so that it is not by chance that each text has as many labels as it should"
    message = "gives each text several labels or numbers, but a file holds one per text"
    with pytest.raises(UserError, match=message):
        evaluate(folder, table("text|label\ngood|sad\n"))
    with pytest.raises(UserError, match="cannot re-rank"):
        Reranker.open(foreign(problem_type="multi_label_classification")[0])


def test_a_regression_may_give_several_numbers(foreign, table):
    folder, model = foreign(num_labels=3, problem_type="regression")
    (told,) = predict_texts(folder, ["it was good"], dtype="float64")
    logits = model.forward([TOKENIZER("it was good")["input_ids"]])[0].logits[0]
    assert told["prediction"] == pytest.approx(logits.tolist()) and len(logits) == 3
    with pytest.raises(UserError, match="several labels or numbers"):
        evaluate(folder, table("text|label\ngood|1.5\n"))
    with pytest.raises(UserError, match="cannot re-rank"):
        Reranker.open(folder)


def test_regression_from_one_file_to_one_number(encoder, table, tmp_path):
    task = Regress(TOKENIZER, TableOptions(max_length=9))
    examples = task.read(table("sentence1|sentence2|score\ngood|bad|0.5\nfilm|a film|4\nit|was|2\n"))
    task.learn_labels(examples)
    assert [f.inputs["labels"] for f in task.features(examples, training=True)] == [0.5, 4.0, 2.0]
    model = task.new_model(encoder)
    assert model.config.is_regression and model.config.num_labels == 1
    predictions = task.predict(model, examples)
    scores = task.scores(examples, predictions)
    assert scores["pearson"] == pytest.approx(np.corrcoef(predictions, [0.5, 4, 2])[0, 1])
    task.save(model, tmp_path / "tuned")
    again, _ = open_task(tmp_path / "tuned")
    assert (type(again), again.options.max_length, again.labels, task.labels) == (Regress, 9, [], [])
    record = again.record(examples[1], predictions[1])
    assert record == {"text": "film", "text_pair": "a film", "label": 4.0, "prediction": predictions[1]}


@pytest.mark.parametrize(("labels", "task"), [(1, Regress), (2, Classify)])
def test_a_folder_of_another_program_is_known_by_its_architecture(tmp_path, labels, task):
    config = BertConfig(vocab_size=len(TOKENIZER), num_labels=labels, **SIZES)
    BertForSequenceClassification(config).save_pretrained(tmp_path)
    TOKENIZER.save_pretrained(tmp_path)
    opened, _ = open_task(tmp_path)
    assert type(opened) is task and opened.options.max_length == 512


def test_a_folder_without_a_task_is_refused(encoder):
    for architectures in (["BertModel"], None):
        config = json.loads((encoder / "config.json").read_text()) | {"architectures": architectures}
        (encoder / "config.json").write_text(json.dumps(config))
        with pytest.raises(UserError, match=r"encoder: not a model fine-tuned for one of classify"):
            open_task(encoder)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"task": "classifi"}, "task.json: expected a task, one of classify, .*; found 'classifi'"),
        ([1], "task.json: expected a task"),
        (
            {"task": "classify", "max_lenth": 3},
            "task.json: unknown setting .*; did you mean 'max_length'",
        ),
        ({"task": "classify", "pairs": 1}, "task.json: pairs should be true or false, found 1"),
        ({"task": "classify", "max_length": 600}, "max_length is 600, but the model has only 512 positions"),
    ],
)
def test_a_damaged_task_file_is_refused(encoder, values, message):
    task = Classify(TOKENIZER, labels=["pos", "neg"])
    task.save(task.new_model(encoder), encoder)
    (encoder / "task.json").write_text(json.dumps(values))
    with pytest.raises(UserError, match=message):
        open_task(encoder)


def test_a_larger_vocabulary_is_refused(encoder):
    task = Classify(BertTokenizer([*TOKENIZER.tokens, "more"]), labels=["a", "b"])
    with pytest.raises(UserError, match="the vocabulary has 13 tokens but the model knows only 12"):
        task.new_model(encoder)


def test_a_model_may_have_more_rows_than_the_vocabulary_has_tokens(encoder, tmp_path):
    task = Classify(BertTokenizer(TOKENIZER.tokens[:-2]), labels=["a", "b"])
    task.save(task.new_model(encoder), tmp_path / "padded")
    _, model = open_task(tmp_path / "padded")
    assert model.config.vocab_size == len(TOKENIZER)


@pytest.fixture(params=[Classify, Regress])
def trained_on(request, encoder, table, tmp_path):
    """trained_on(content): the task of a folder whose model learned from such a table, opened again."""

    def train(content):
        task = request.param(TOKENIZER)
        task.learn_labels(task.read(table(content)))
        task.save(task.new_model(encoder), tmp_path / "tuned")
        return open_task(tmp_path / "tuned")[0]

    return train


SINGLE, PAIRS = "text|label\ngood|1\nbad|0\n", "sentence1|sentence2|label\ngood|bad|1\nfilm|it|0\n"
TYPED = Place("typed", 1)


def test_a_model_of_single_texts_refuses_pairs(trained_on, table):
    task = trained_on(SINGLE)
    assert task.read(table(SINGLE))[0].text == task.example("good", None, TYPED).text == "good"
    with pytest.raises(
        UserError, match=r"other.tsv: found pairs of texts, but .* on single texts; .*\(text_c"
    ):
        task.read(table(PAIRS, "other.tsv"))
    with pytest.raises(Problem, match=r"two texts .*, but this model was trained on single texts"):
        task.example("good", "bad", TYPED)
    task.set_layout({"text_column": "sentence2"})  # as the message says
    assert [example.text for example in task.read(table(PAIRS, "other.tsv"))] == ["bad", "it"]


def test_a_model_of_pairs_refuses_single_texts(trained_on, table):
    task = trained_on(PAIRS)
    assert task.read(table(PAIRS))[0].text_pair == task.example("good", "bad", TYPED).text_pair == "bad"
    with pytest.raises(
        UserError, match=r"other.tsv: found single texts, but .* on pairs of texts; .*pair_column"
    ):
        task.read(table(SINGLE, "other.tsv"), labelled=False)
    with pytest.raises(
        Problem, match=r"one text, but this model was trained on pairs; add a second \(--pair"
    ):
        task.example("good", None, TYPED)


def test_a_folder_that_does_not_tell_what_it_learned_from_takes_both(trained_on, table, tmp_path):
    trained_on(PAIRS)
    path = tmp_path / "tuned" / "task.json"
    told = json.loads(path.read_text())
    assert told.pop("pairs") is True
    path.write_text(json.dumps(told))  # as older versions wrote it
    task, _ = open_task(tmp_path / "tuned")
    assert task.pairs is None
    assert [task.read(table(content))[0].text for content in (SINGLE, PAIRS)] == ["good", "good"]
    assert [task.example("good", pair, TYPED).text_pair for pair in (None, "bad")] == [None, "bad"]


@pytest.mark.parametrize(
    ("options", "content"),
    [
        ({}, "text|label\ngood|pos\nbad|neg"),
        ({"label_column": "mood"}, "text|mood|label\ngood|pos|x\nbad|neg|y"),
        ({"text_column": "review"}, "label|review\npos|good\nneg|bad"),
        ({"text_column": "2", "label_column": "1"}, "pos|good\nneg|bad"),
        ({"text_column": "2", "label_column": "1", "header": True}, "a|b\npos|good\nneg|bad"),
        ({"recipe": "sst2"}, "sentence|label\ngood|pos\nbad|neg"),
    ],
)
def test_columns_are_found(table, options, content):
    examples = Classify(TOKENIZER, TableOptions(**options)).read(table(content))
    assert [(example.text, example.label) for example in examples] == [("good", "pos"), ("bad", "neg")]


def test_columns_that_contradict_are_refused(table):
    for options in ({"pair_column": "other"}, {"header": True}):
        with pytest.raises(UserError, match="which column holds the text"):
            TableOptions(**options)
    with pytest.raises(UserError, match=r"expected the columns \(1, 0\)"):
        Classify(TOKENIZER, TableOptions(text_column="1", label_column="0")).read(table("good|pos\nbad|neg"))
    with pytest.raises(UserError, match="name one column twice: review, review"):
        TableOptions(text_column="review", label_column="review")
    with pytest.raises(UserError, match="recipe stsb is for the task regress, not classify"):
        Classify(TOKENIZER, TableOptions(recipe="stsb")).read(table(FILMS))
