import numpy as np
import pytest
from small_encoder import PASSAGES, QUERIES

from minibert.data.tasks import Passage, Query
from minibert.errors import UserError
from minibert.tasks.classify import Classify, Regress
from minibert.tasks.rerank import Reranker, training_pairs
from minibert.tasks.search import Hit
from minibert.tasks.tag import Tag

# -- Scores -----------------------------------------------------------------------------------------


def test_scores_are_the_log_odds_of_the_second_label(reranker):
    model = reranker()
    pairs = [("who sings ?", passage.text) for passage in PASSAGES]
    examples = [model.task.example(*pair, None) for pair in pairs]
    probabilities = np.array([p.probabilities for p in model.task.predict(model.model, examples)])
    scores = model.scores(pairs, batch_size=2)
    np.testing.assert_allclose(scores, np.log(probabilities[:, 1] / probabilities[:, 0]), rtol=0, atol=2e-6)
    assert len(set(scores)) == len(pairs)


@pytest.mark.parametrize("right", ["entailment", "not_entailment"])
def test_the_right_label_is_asked_for_unless_it_is_that_of_training_pairs(reranker, tmp_path, right):
    labels = ("entailment", "not_entailment")
    with pytest.raises(UserError, match="its labels are entailment and not_entailment; say which one means"):
        reranker(labels=labels)
    model = Reranker.open(tmp_path / "reranker", right)
    (score,) = model.scores([("who sings ?", "ann sings")])
    (told,) = model.task.predict(model.model, [model.task.example("who sings ?", "ann sings", None)])
    p = dict(zip(labels, told.probabilities.tolist(), strict=True))
    assert score == pytest.approx(np.log(p[right] / (1 - p[right])), abs=1e-5)


def test_a_right_label_that_the_model_has_not(reranker, tmp_path):
    reranker()
    with pytest.raises(UserError, match="has no label 'yes'; its labels are 0 and 1"):
        Reranker.open(tmp_path / "reranker", "yes")
    reranker(Regress, ())
    with pytest.raises(UserError, match="has no label '1'; it gives a number"):
        Reranker.open(tmp_path / "reranker", "1")


def test_a_regression_judges_by_its_number(reranker):
    model = reranker(Regress, ())
    pairs = [("who sings ?", passage.text) for passage in PASSAGES]
    examples = [model.task.example(*pair, None) for pair in pairs]
    np.testing.assert_allclose(model.scores(pairs), model.task.predict(model.model, examples), rtol=1e-4)


def test_what_was_found_comes_in_the_order_of_the_scores(reranker):
    model = reranker()
    found = [[Hit(passage, 0.5) for passage in PASSAGES], [], [Hit(PASSAGES[2], 0.1)]]
    first, second, third = model.rerank(["who sings ?", "a", "what ?"], found)
    scores = model.scores([("who sings ?", hit.passage.text) for hit in first])
    assert list(scores) == sorted(scores, reverse=True)
    assert [hit.score for hit in first] == pytest.approx(scores.tolist(), abs=1e-5)
    assert {hit.passage for hit in first} == set(PASSAGES)
    assert second == [] and [hit.passage.id for hit in third] == ["2"]
    assert model.rerank(["a"], [[]]) == [[]]


@pytest.mark.parametrize(
    "model",
    [
        (Classify, ("a", "b", "c")),
        (Tag, ("B-x", "O")),
        (Classify, ("0", "1"), False),  # of single texts
        (Regress, (), False),
    ],
)
def test_other_models_are_refused(reranker, model):
    with pytest.raises(
        UserError, match=r"reranker: cannot re-rank with this model of the task \w+; expected"
    ):
        reranker(*model)


# -- Training pairs ---------------------------------------------------------------------------------


def test_a_query_for_a_passage_that_is_not_there_has_no_training_pairs(index, encoder):
    with pytest.raises(UserError, match="the passage 'nowhere' of the query 'who' is not in the index"):
        training_pairs(index, encoder, [*QUERIES, Query("who", "nowhere")])


def test_training_pairs_are_the_right_passage_and_wrong_ones_that_were_found(index, encoder):
    pairs = training_pairs(index, encoder, QUERIES, negatives=2, depth=4)
    right = {query.text: PASSAGES[int(query.passage)].text for query in QUERIES}
    found = index.search(encoder.embed([query.text for query in QUERIES]), 4)
    near = {q.text: {hit.passage.text for hit in hits} for q, hits in zip(QUERIES, found, strict=True)}
    assert [pair.label for pair in pairs] == ["1", "0", "0"] * 3
    for pair in pairs:
        if pair.label == "1":
            assert pair.text_pair == right[pair.text]
        else:
            assert pair.text_pair in near[pair.text] - {right[pair.text]}
    assert len({(pair.text, pair.text_pair) for pair in pairs}) == 9
    assert pairs == training_pairs(index, encoder, QUERIES, negatives=2, depth=4)
    assert pairs != training_pairs(index, encoder, QUERIES, negatives=2, depth=4, seed=1)
    with pytest.raises(UserError, match="at least 1 wrong passage for each query is needed, got 0"):
        training_pairs(index, encoder, QUERIES, negatives=0)
    itself = [Query(PASSAGES[0].text, PASSAGES[0].id)]
    with pytest.raises(
        UserError, match=r"no wrong passage is among the best 1; take more of them \(--depth\)"
    ):
        training_pairs(index, encoder, itself, depth=1)


def test_what_answers_a_query_elsewhere_is_no_wrong_passage(index, encoder):
    pairs = training_pairs(index, encoder, [Query("who ?", "0"), Query("who ?", "1")], negatives=6)
    told = [{pair.text_pair for pair in pairs if pair.label == label} for label in "10"]
    assert told == [{p.text for p in PASSAGES[:2]}, {p.text for p in PASSAGES[2:]}]


def test_a_copy_of_the_right_passage_is_no_wrong_one(index, encoder):
    index.add(encoder, [Passage("copy", PASSAGES[0].text)])
    pairs = training_pairs(index, encoder, QUERIES[:1], negatives=6, depth=7)
    assert [pair.label for pair in pairs if pair.text_pair == PASSAGES[0].text] == ["1"]
