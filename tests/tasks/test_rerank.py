import numpy as np
import pytest
from small_encoder import PASSAGES, QUERIES

from minibert.data.tasks import Passage
from minibert.errors import UserError
from minibert.tasks.classify import Classify, Regress
from minibert.tasks.rerank import training_pairs
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


def test_a_copy_of_the_right_passage_is_no_wrong_one(index, encoder):
    index.add(encoder, [Passage("copy", PASSAGES[0].text)])
    pairs = training_pairs(index, encoder, QUERIES[:1], negatives=6, depth=7)
    assert [pair.label for pair in pairs if pair.text_pair == PASSAGES[0].text] == ["1"]
