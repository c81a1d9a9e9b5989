import json

import numpy as np
import pytest

from minibert.data.tasks import DistinctPairs, Faults, FeatureStream, Place, TextExample
from minibert.data.tasks.faults import Problem
from minibert.errors import UserError
from minibert.heads import SentenceEncoder, SentencePairs
from minibert.tasks.embed import TextEncoder
from minibert.tasks.metrics import pearson, spearman
from minibert.tasks.registry import open_task
from minibert.tasks.similarity import PairPrediction, Similarity, SimilarityOptions, partner_ranks
from minibert.text import BertTokenizer
from minibert.train.optimiser import AdamW
from minibert.train.step import TrainingStep

SCORED = "sentence1\tsentence2\tscore\nann sings\tbob dances\t2\nann\tann\t5\nwho ?\tthe river\t1\n"
MATCHING = (
    "text\ttext_pair\nwho sings ?\tann sings\nwho dances ?\tbob dances\nwhat ?\tann sings\na\tthe river\n"
)


@pytest.fixture
def read(encoder_folder, tmp_path):
    """read(text, option=…): a task, and the examples of a table with that text."""

    def make(text, name="pairs.tsv", **options):
        (tmp_path / name).write_text(text, encoding="utf-8")
        task = Similarity(BertTokenizer.from_pretrained(encoder_folder), SimilarityOptions(**options))
        return task, task.read(tmp_path / name)

    return make


# -- Data -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "targets"),
    [
        ({}, [0.25, 1, 0]),
        ({"opposites": True}, [-0.5, 1, -1]),
        ({"lowest_score": 0.0}, [0.4, 1, 0.2]),
        ({"lowest_score": 1.0, "highest_score": 9.0}, [0.125, 0.5, 0]),
    ],
)
def test_scores_become_cosines(read, options, targets):
    task, examples = read(SCORED, **options)
    task.learn_labels(examples)
    features = task.features(examples, training=True)
    assert [feature.inputs["labels"] for feature in features] == pytest.approx(targets)
    assert not any("labels" in feature.inputs for feature in task.features(examples, training=False))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loss": "softmax", "opposites": True}, "opposites is for the loss cosine, not softmax; leave"),
        ({"highest_score": 1.0, "loss": "softmax"}, "highest_score is for the loss cosine, not softmax"),
        ({"scale": 2.0}, "scale is for the loss softmax, not cosine; leave it out"),
        ({"highest_score": 4.0}, r"line 3: the score 5\.0 is not between lowest_score, 1\.0, and highest_"),
        ({"lowest_score": 1.5}, r"line 4: the score 1\.0 is not between lowest_score, 1\.5, and"),
    ],
)
def test_options_that_do_not_fit(read, options, message):
    with pytest.raises(UserError, match=message):
        task, examples = read(SCORED, **options)
        task.learn_labels(examples)


def test_the_range_of_the_scores_is_that_of_the_training_data_ever_after(read, encoder_folder, tmp_path):
    task, examples = read(SCORED)
    task.learn_labels(examples)
    task.save(task.new_model(encoder_folder), tmp_path / "tuned")
    again, _ = open_task(tmp_path / "tuned")
    assert (again.options.lowest_score, again.options.highest_score) == (1.0, 5.0)
    length = json.loads((tmp_path / "tuned" / "sentence_bert_config.json").read_text())
    assert length == {"max_seq_length": 128, "do_lower_case": False}


def test_scores_without_a_range(read):
    task, examples = read("sentence1\tsentence2\tscore\na\tb\t3\nc\td\t3\n")
    with pytest.raises(UserError, match=r"pairs.tsv: scores from 3.0 to 3.0 are not a range"):
        task.learn_labels(examples)


def test_matching_pairs_are_never_twice_in_a_batch(read):
    task, examples = read(MATCHING, loss="softmax")
    assert all(example.label is None for example in examples)
    stream = task.batches(task.features(examples, training=True), 3, seed=0)
    assert isinstance(stream, DistinctPairs) and stream.batches_per_epoch == 2
    scored, examples = read(SCORED)
    scored.learn_labels(examples)
    stream = scored.batches(scored.features(examples, training=True), 2, seed=7)
    assert isinstance(stream, FeatureStream) and not isinstance(stream, DistinctPairs)
    assert (stream.seed, stream.batch_size) == (7, 2)


def test_what_is_held_out_has_passages_of_its_own(read):
    rows = "".join(f"who {i} ?\tann {i // 4}\n" for i in range(40))
    task, examples = read("text\ttext_pair\n" + rows, loss="softmax")
    train, dev = task.hold_out(examples, 0.2, seed=0)
    assert (len(train), len(dev)) == (32, 8) and not {e.text for e in train} & {e.text for e in dev}
    assert not {e.text_pair for e in train} & {e.text_pair for e in dev}


def test_passages_that_differ_in_white_space_are_one(read):
    rows = "".join(f"who {i} ?\tann{' ' * (1 + i % 3)}sings {i // 6}\n" for i in range(60))
    task, examples = read("text\ttext_pair\n" + rows, loss="softmax")
    train, dev = task.hold_out(examples, 0.2, seed=0)
    assert dev and not {e.content[1] for e in train} & {e.content[1] for e in dev}
    vectors = np.eye(10, 8)[[i // 6 % 8 for i in range(60)]]
    first = [PairPrediction(vector, vector) for vector in vectors[:48]]
    assert task.scores(examples[:48], first)["mrr"] == 1


def squad(*asked):
    """A SQuAD file of questions, each (text, its answers), on one passage."""
    questions = [
        {
            "id": text,
            "question": text,
            "answers": [{"text": answer, "answer_start": 0} for answer in answers],
            "is_impossible": not answers,
        }
        for text, answers in asked
    ]
    paragraphs = [{"context": "ann sings", "qas": questions}]
    return json.dumps({"data": [{"title": "T", "paragraphs": paragraphs}]})


def test_questions_of_squad_and_their_passages_are_pairs(read, tmp_path):
    options = {"loss": "softmax", "recipe": "squad"}
    text = squad(("who sings ?", ["ann"]), ("who dances ?", []))
    task, examples = read(text, "a.json", **options)
    path = tmp_path / "a.json"
    assert examples == [TextExample("who sings ?", "ann sings", None, Place(path, 1))]
    every = [TextExample(text, "ann sings", None, Place(path, 1)) for text in ("who sings ?", "who dances ?")]
    assert task.read(path, labelled=False) == every, "to predict, nobody has to know an answer"
    with pytest.raises(UserError, match=r"b.json: no question in this file has an answer; give another file"):
        read(squad(("who dances ?", [])), "b.json", **options)
    (tmp_path / "c.json").write_text(squad(("who sings ?", ["ann"]), (" ", ["ann"])))
    faults = Faults(skip_bad=True)
    assert len(task.read(tmp_path / "c.json", faults=faults)) == len(faults.skipped) == 1


def test_scored_pairs_of_a_recipe_with_their_scores_and_without(read, tmp_path):
    task, examples = read("ann,bob,2.5\na,the,1\n", "a.csv", recipe="stsb")
    assert [(e.text, e.text_pair, e.label) for e in examples] == [("ann", "bob", 2.5), ("a", "the", 1.0)]
    (tmp_path / "b.csv").write_text("ann,bob\n")
    (example,) = task.read(tmp_path / "b.csv", labelled=False)
    assert (example.text_pair, example.label) == ("bob", None)
    (tmp_path / "c.tsv").write_text("sentence1\tsentence2\nann\tbob\n")
    (example,) = read(SCORED)[0].read(tmp_path / "c.tsv", labelled=False)
    assert (example.text_pair, example.label) == ("bob", None)


def test_what_cannot_be_read(read):
    with pytest.raises(UserError, match=r"pairs.tsv: line 2: one text; say which column holds the second"):
        read("text\nann\n", loss="softmax")
    with pytest.raises(UserError, match="recipe sst2 gives no pairs for the loss cosine"):
        read(SCORED, recipe="sst2")
    with pytest.raises(UserError, match="recipe stsb gives no pairs for the loss softmax"):
        read(SCORED, recipe="stsb", loss="softmax")


# -- Models -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "loss"), [(SCORED, "cosine"), (MATCHING, "softmax")], ids=["scored", "matching"]
)
def test_training_makes_the_scores_perfect_on_what_it_sees(read, encoder_folder, text, loss):
    task, examples = read(text, loss=loss)
    examples = [e for e in examples if e.text != "what ?"]  # cannot be told from the others' passage
    task.learn_labels(examples)
    model = task.new_model(encoder_folder, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    trainee = task.trainee(model)
    assert isinstance(trainee, SentencePairs) and trainee.encoder is model
    stream = task.batches(task.features(examples, training=True), 3, seed=0)
    step = TrainingStep(trainee, AdamW(trainee), graph=False)
    losses = []
    for number in range(60):
        step.take([next(stream)], 3e-3, number)
        losses.append(step.read()["loss"])
    assert losses[-1] < 0.1 * losses[0]
    scores = task.scores(examples, task.predict(model, examples, batch_size=2))
    assert scores[task.metric] == pytest.approx(1)


def test_the_loss_is_as_the_options_say(read, encoder_folder):
    task, _ = read(MATCHING, loss="softmax", scale=7.0, symmetric=False)
    trainee = task.trainee(task.open_model(encoder_folder))
    assert (trainee.scale, trainee.symmetric) == (7.0, False)


def test_pooling_may_be_chosen(read, encoder_folder):
    assert read(SCORED)[0].new_model(encoder_folder).pooling == "mean"
    assert read(SCORED, pooling="max")[0].new_model(encoder_folder).pooling == "max"


def test_a_folder_of_sentence_transformers_is_recognised(encoder_folder):
    task, model = open_task(encoder_folder)
    assert isinstance(task, Similarity) and isinstance(model, SentenceEncoder)


# -- Predictions ------------------------------------------------------------------------------------


def test_predictions_are_cosines(read, encoder_folder):
    task, examples = read(SCORED)
    model = task.open_model(encoder_folder)
    predictions = task.predict(model, examples)
    encoder = TextEncoder.open(encoder_folder, normalise=True)
    first, second = encoder.embed(["ann sings", "bob dances"])
    assert predictions[0].cosine == pytest.approx(float(first @ second), abs=1e-6)
    assert predictions[1].cosine == pytest.approx(1)
    record = task.record(examples[0], predictions[0])
    assert record == {
        "text": "ann sings",
        "text_pair": "bob dances",
        "label": 2.0,
        "cosine": predictions[0].cosine,
    }
    cosines, labels = [prediction.cosine for prediction in predictions], [2.0, 5.0, 1.0]
    scores = task.scores(examples, predictions)
    assert scores == {"spearman": spearman(cosines, labels), "pearson": pearson(cosines, labels)}
    assert scores["spearman"] != pytest.approx(scores["pearson"])
    assert set(task.scores_for(examples)) == set(scores)


def test_ranks_are_among_all_second_texts_that_differ():
    first = np.array([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]])
    second = np.array([[1.0, 0.0], [0.6, 0.8], [0.6, 0.8]])
    assert partner_ranks(first, second, ["a", "b", "b"]) == [1, 1, 1]
    assert partner_ranks(first[::-1], second, ["a", "b", "b"]) == [2, 1, 2]
    assert partner_ranks(first, second, ["a", "b", "b"], block=1) == [1, 1, 1]
    assert partner_ranks(np.ones((3, 2)), np.ones((3, 2)), ["a", "b", "c"]) == [3, 3, 3], (
        "nothing is told apart"
    )


def test_first_texts_have_to_find_their_second_ones(read):
    """All first texts point the same way, and each second one a bit further away from there."""
    task, _ = read(MATCHING, loss="softmax")
    angles = 0.1 * np.arange(12)
    first, second = np.array([1.0, 0.0]), np.stack([np.cos(angles), np.sin(angles)], axis=1)
    examples = [TextExample("who ?", f"{i}", None, Place("a", i)) for i in range(12)]
    scores = task.scores(examples, [PairPrediction(first, vector) for vector in second])
    assert scores == pytest.approx(
        {"mrr": np.mean(1 / np.arange(1, 13)), "recall@1": 1 / 12, "recall@10": 10 / 12}
    )
    assert set(task.scores_for(examples)) == set(scores)


def test_a_single_text_has_no_partner(read):
    task, _ = read(SCORED)
    with pytest.raises(Problem, match="one text; a comparison needs two"):
        task.example("ann", None, None)
    assert task.example("ann", "bob", Place("stdin", 2)) == TextExample("ann", "bob", None, Place("stdin", 2))


def test_the_score_that_counts_goes_with_the_loss(read):
    assert read(SCORED)[0].metric == "spearman"
    assert read(MATCHING, loss="softmax")[0].metric == "mrr"
