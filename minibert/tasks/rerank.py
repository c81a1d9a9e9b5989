"""A second look at what a search has found, by a model that reads the query and the passage together.

A cross-encoder: a classifier of pairs (fine-tuned by ``minibert finetune --task classify``, on what
`training_pairs` gives) that says whether the passage answers the query. It compares every token of one with
every token of the other, so it judges better than two vectors do. It has to read every pair, so it only sees
the best few passages.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from minibert.data.randomness import generator
from minibert.data.tasks import Place, Query, TextExample
from minibert.errors import UserError
from minibert.heads import BertForSequenceClassification
from minibert.tasks.classify import Classify, Regress
from minibert.tasks.embed import TextEncoder
from minibert.tasks.registry import open_task
from minibert.tasks.search import Hit, PassageIndex

WRONG, RIGHT = "0", "1"  # the labels of training pairs
DEPTH = 20  # how many passages are re-ranked


@dataclass(frozen=True)
class Reranker:
    """A classifier of pairs with two labels, of which ``right`` says that they match, or a regression."""

    task: Classify | Regress
    model: BertForSequenceClassification
    right: str = RIGHT

    @classmethod
    def open(cls, folder: str | Path, right: str | None = None, **options: Any) -> "Reranker":
        """The model in a fine-tuned folder.

        ``right`` is the label of passages that answer the query. It need not be given for the labels of
        training pairs, "0" and "1". Raises UserError for another kind of model, and for a label that it has
        not.
        """
        task, model = open_task(folder, **options)
        if (
            not isinstance(task, Classify | Regress)
            or not isinstance(model, task.Model)
            or (task.has_labels and len(task.labels) != 2)
            or task.several
            or task.pairs is False
        ):
            raise UserError(
                f"{folder}: cannot re-rank with this model of the task {task.name}; expected a classifier of "
                "pairs with two labels (make its data with  minibert search pairs)"
            )
        if right is None and task.has_labels and sorted(task.labels) != [WRONG, RIGHT]:
            raise UserError(
                f"{folder}: its labels are {' and '.join(task.labels)}; say which one means that the passage "
                "answers the query (--right-label)"
            )
        if right is not None and right not in task.labels:
            known = f"its labels are {' and '.join(task.labels)}" if task.has_labels else "it gives a number"
            raise UserError(f"{folder}: has no label {right!r}; {known}")
        return cls(task, model, right or RIGHT)

    def scores(self, pairs: Sequence[tuple[str, str]], batch_size: int = 32) -> np.ndarray:
        """How well each passage answers its query, (N,): ln p(right)/p(wrong), or the regression's number."""
        examples = [TextExample(*pair, None, Place("the pairs", i)) for i, pair in enumerate(pairs, start=1)]
        if isinstance(self.task, Regress):
            return np.array(self.task.predict(self.model, examples, batch_size))
        predictions = self.task.predict(self.model, examples, batch_size)
        probabilities = np.stack([prediction.probabilities for prediction in predictions])  # (N, 2)
        logs = np.log(np.maximum(probabilities, np.finfo(probabilities.dtype).tiny))
        right = self.task.labels.index(self.right)
        return logs[:, right] - logs[:, 1 - right]

    def rerank(
        self, queries: Sequence[str], found: Sequence[Sequence[Hit]], batch_size: int = 32
    ) -> list[list[Hit]]:
        """The passages found for each query in a new order, best first, with their new scores."""
        pairs = [
            (query, hit.passage.text) for query, hits in zip(queries, found, strict=True) for hit in hits
        ]
        scores = iter(self.scores(pairs, batch_size).tolist() if pairs else [])
        judged = [[replace(hit, score=next(scores)) for hit in hits] for hits in found]
        return [sorted(hits, key=lambda hit: -hit.score) for hits in judged]


def training_pairs(
    index: PassageIndex,
    encoder: TextEncoder,
    queries: Sequence[Query],
    *,
    negatives: int = 3,
    depth: int = DEPTH,
    exact: bool = False,
    seed: int = 0,
    batch_size: int = 32,
    progress: bool = False,
) -> list[TextExample]:
    """Pairs to fine-tune a re-ranker on: each query with its right passage, and with some wrong ones.

    The wrong ones are chosen at random, ``negatives`` per query, from the best ``depth`` that the index
    finds: a re-ranker will have to tell these from the right one. (A query that occurs with several right
    passages has none of them among its wrong ones.) Labels are "1" and "0".

    Raises UserError if the index was made with another encoder, for a query whose passage is not in it, and
    if no wrong passage is found.
    """
    if negatives < 1:
        raise UserError(f"at least 1 wrong passage for each query is needed, got {negatives}")
    index.check(encoder)
    texts = {passage.id: passage.text for passage in index.passages()}
    for query in queries:
        if query.passage not in texts:
            raise UserError(f"the passage {query.passage!r} of the query {query.text!r} is not in the index")
    vectors = encoder.embed([query.text for query in queries], batch_size, progress)
    found = index.search(vectors, depth, exact=exact)
    answers = defaultdict(set)
    for query in queries:
        answers[query.text].add(texts[query.passage])
    pairs = []
    for number, (query, hits) in enumerate(zip(queries, found, strict=True)):
        place = Place("training pairs", number + 1)
        wrong = [hit.passage.text for hit in hits if hit.passage.text not in answers[query.text]]
        chosen = generator("hard negatives", seed, number).permutation(len(wrong))[:negatives]
        pairs.append(TextExample(query.text, texts[query.passage], RIGHT, place))
        pairs += [TextExample(query.text, wrong[i], WRONG, place) for i in chosen]
    if len(pairs) == len(queries):
        raise UserError(f"no wrong passage is among the best {depth}; take more of them (--depth)")
    return pairs
