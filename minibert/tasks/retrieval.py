"""How well a search works: recall and ranks, compared with brute force, and after re-ranking."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from minibert import ops
from minibert.data.tasks import Query
from minibert.errors import check_count
from minibert.tasks import metrics
from minibert.tasks.embed import TextEncoder
from minibert.tasks.rerank import DEPTH, Reranker
from minibert.tasks.search import PassageIndex, exact_search

RECALLS = (1, 5, 10, 20)
EQUAL = 1e-6  # cosines that differ by less, which only rounding does, are equal


@dataclass(frozen=True)
class SearchEvaluation:
    """How well a number of queries found their passages. Scores by name: recall@k, and mrr@K of the first K.

    ``agreement``: the share of the K passages found that are as near as the true K nearest (brute force).
    """

    queries: int
    passages: int
    database: dict[str, float]
    brute_force: dict[str, float]
    agreement: float
    reranked: dict[str, float] | None

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return asdict(self)

    def describe(self) -> str:
        """The scores as a table, one row per way of searching."""
        ways = {"database": self.database, "brute force": self.brute_force, "re-ranked": self.reranked}
        lines = [f"{self.queries:,} queries, {self.passages:,} passages"]
        lines.append(" " * 11 + "".join(f"{name:>11}" for name in self.database))
        for way, scores in ways.items():
            if scores:
                lines.append(f"{way:<11}" + "".join(f"{value:11.4f}" for value in scores.values()))
        lines.append(f"{self.agreement:.2%} of what brute force finds is found by the database")
        return "\n".join(lines)


def evaluate_search(
    index: PassageIndex,
    encoder: TextEncoder,
    queries: Sequence[Query],
    *,
    top_k: int = DEPTH,
    exact: bool = False,
    reranker: Reranker | None = None,
    batch_size: int = 32,
    progress: bool = False,
) -> SearchEvaluation:
    """Search for queries whose right passage is known, in the index and by brute force.

    Only the first ``top_k`` passages count; a re-ranker puts them in another order. A passage with the same
    text as the right one is right, too. Raises UserError if the index was made with another encoder, and for
    a ``top_k`` below 1.
    """
    check_count("top_k", top_k)
    index.check(encoder)
    texts = [query.text for query in queries]
    vectors, _ = ops.unit_length(encoder.embed(texts, batch_size, progress))  # (Q, H)
    ids, passage_vectors = index.vectors()
    rows, cosines = exact_search(vectors, passage_vectors, top_k)
    nearest = [[ids[row] for row in best] for best in rows]
    found = index.search(vectors, top_k, exact=exact)
    reranked = reranker.rerank(texts, found, batch_size) if reranker else None
    text_of = {passage.id: passage.text for passage in index.passages()}

    def scores(results: Sequence[Sequence[str]]) -> dict[str, float]:
        ranks = [
            _rank(text_of.get(query.passage), [text_of[id] for id in ids])
            for query, ids in zip(queries, results, strict=True)
        ]
        recalls = {f"recall@{k}": metrics.recall_at(ranks, k) for k in RECALLS if k <= top_k}
        return recalls | {f"mrr@{top_k}": metrics.mean_reciprocal_rank(ranks)}

    in_database = [[hit.passage.id for hit in hits] for hits in found]
    row_of = {id: row for row, id in enumerate(ids)}
    found_cosines = [
        passage_vectors[[row_of[id] for id in best]] @ vector
        for best, vector in zip(in_database, vectors, strict=True)
    ]
    return SearchEvaluation(
        queries=len(queries),
        passages=len(ids),
        database=scores(in_database),
        brute_force=scores(nearest),
        agreement=_agreement(found_cosines, cosines),
        reranked=scores([[hit.passage.id for hit in hits] for hits in reranked]) if reranked else None,
    )


def _rank(right: str | None, found: Sequence[str]) -> int | None:
    """The place of the right passage's text, from 1; None if it was not found."""
    return found.index(right) + 1 if right in found else None


def _agreement(found: Sequence[np.ndarray], nearest: np.ndarray) -> float:
    """The share of the nearest passages' cosines (Q, K) that those found reach; equal ones may be others."""
    reached = [(cosines >= best[-1] - EQUAL).sum() for cosines, best in zip(found, nearest, strict=True)]
    return float(np.mean(reached) / nearest.shape[1])
