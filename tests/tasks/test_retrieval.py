import numpy as np
import pytest
from small_encoder import PASSAGES, QUERIES

from minibert.data.tasks import Passage, Query
from minibert.errors import UserError
from minibert.tasks.embed import TextEncoder
from minibert.tasks.rerank import training_pairs
from minibert.tasks.retrieval import evaluate_search
from minibert.tasks.search import Hit


def test_scores_of_a_search_are_those_of_its_ranks(index, encoder):
    result = evaluate_search(index, encoder, QUERIES, top_k=5)
    found = index.search(encoder.embed([query.text for query in QUERIES]), 5)
    ranks = []
    for query, hits in zip(QUERIES, found, strict=True):
        ids = [hit.passage.id for hit in hits]
        ranks.append(ids.index(query.passage) + 1 if query.passage in ids else np.inf)
    assert (result.queries, result.passages) == (3, 6)
    expected = {f"recall@{k}": np.mean([rank <= k for rank in ranks]) for k in (1, 5)}
    expected["mrr@5"] = np.mean([1 / rank for rank in ranks])
    assert result.database == result.brute_force == pytest.approx(expected)
    assert result.agreement == 1 and result.reranked is None
    header, row = result.describe().splitlines()[1:3]
    assert header.split() == list(expected)
    assert row.split() == ["database", *(f"{value:.4f}" for value in expected.values())]


def test_a_reranker_changes_the_order_and_not_what_was_found(index, encoder, reranker):
    model, texts = reranker(), [query.text for query in QUERIES]
    result = evaluate_search(index, encoder, QUERIES, top_k=6, reranker=model)
    ranks = []
    for query, hits in zip(QUERIES, model.rerank(texts, index.search(encoder.embed(texts), 6)), strict=True):
        ranks.append([hit.passage.id for hit in hits].index(query.passage) + 1)
    expected = {f"recall@{k}": np.mean([rank <= k for rank in ranks]) for k in (1, 5)}
    assert result.reranked == pytest.approx(expected | {"mrr@6": np.mean([1 / rank for rank in ranks])})
    assert result.database["mrr@6"] != result.reranked["mrr@6"], "a random model has another order"
    assert "re-ranked" in result.describe()


def test_agreement_is_the_share_of_the_nearest_that_were_found(index, encoder, monkeypatch):
    search = index.search

    def forgetful(vectors, top_k, exact=False):
        """Finds one passage less."""
        return [hits[:-1] for hits in search(vectors, top_k)]

    monkeypatch.setattr(index, "search", forgetful)
    assert evaluate_search(index, encoder, QUERIES, top_k=4).agreement == pytest.approx(3 / 4)


def test_of_equally_near_passages_any_will_do(index, encoder, monkeypatch):
    index.add(encoder, [Passage(f"copy {i}", PASSAGES[0].text) for i in range(4)])
    monkeypatch.setattr(index, "search", lambda *_, **__: [[Hit(Passage("copy 3", ""), 1.0)]])
    (query,) = [Query(PASSAGES[0].text, "0")]
    assert evaluate_search(index, encoder, [query], top_k=1).agreement == 1


def test_a_passage_with_the_text_of_the_right_one_is_right(index, encoder, reranker):
    index.add(encoder, [Passage("a copy", PASSAGES[0].text)])
    for right in (PASSAGES[0].id, "a copy"):
        result = evaluate_search(index, encoder, [Query(PASSAGES[0].text, right)], top_k=5)
        assert result.database["recall@1"] == result.brute_force["recall@1"] == 1


def test_another_encoder_is_refused(index, encoder_folder):
    other = TextEncoder.open(encoder_folder, pooling="cls")
    for act in (evaluate_search, training_pairs):
        with pytest.raises(UserError, match="made with another model"):
            act(index, other, QUERIES)
