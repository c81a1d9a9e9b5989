"""How alike two texts are: the cosine of their vectors, learned from scores or from pairs that belong together."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from minibert import ops
from minibert.bert import SentenceEncoder, SentencePairs
from minibert.bert.sentence import MODULES_FILE
from minibert.data.tasks import (
    RECIPES,
    DistinctPairs,
    Faults,
    FeatureStream,
    PairFeature,
    Place,
    TextExample,
    pair_features,
    read_squad,
)
from minibert.errors import UserError
from minibert.files import write_json
from minibert.settings import setting
from minibert.tasks import metrics
from minibert.tasks.embed import LENGTH_FILE, TextEncoder
from minibert.tasks.task import TableOptions, TableTask

METRICS = {"cosine": ("spearman", "pearson"), "softmax": ("mrr", "recall@1", "recall@10")}
RECIPE_TASKS = {"cosine": "regress", "softmax": "qa"}  # whose recipes are of use for a loss


@dataclass(frozen=True)
class SimilarityOptions(TableOptions):
    """A table of pairs, and what is learned from them.

    The lowest and the highest score of the training data, if they are not given, are written down here by
    `Similarity.learn_labels`.
    """

    loss: str = setting(
        "cosine",
        "Task",
        "cosine: pairs have scores, which their cosines are to be; softmax: each text has to find its partner "
        "among those of the batch (question and passage, say)",
        choices=tuple(METRICS),
    )
    metric: str | None = setting(
        None,
        "Task",
        "score that chooses the best checkpoint (default: spearman for the loss cosine, mrr for softmax)",
        choices=tuple(metric for names in METRICS.values() for metric in names),
    )
    pooling: str | None = setting(
        None, "Task", "how a text's vector is made (default: as the model says)", choices=tuple(ops.POOLING)
    )
    lowest_score: float | None = setting(
        None, "Task", "score of texts that are not alike at all (default: the training data's lowest)"
    )
    highest_score: float | None = setting(
        None, "Task", "score of texts that say the same (default: the training data's highest)"
    )
    opposites: bool = setting(
        False, "Task", "the lowest score is to be the cosine −1, as of opposites, and not 0"
    )
    scale: float = setting(20.0, "Task", "factor of the cosines in the softmax", least=0.0)
    symmetric: bool = setting(True, "Task", "the second texts have to find the first ones, too")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.metric is not None and self.metric not in METRICS[self.loss]:
            raise UserError(
                f"the loss {self.loss} goes with {', '.join(METRICS[self.loss])}, not {self.metric}"
            )


@dataclass(frozen=True)
class PairPrediction:
    """The cosine of two texts and, among all second texts, the rank of the right one (from 1)."""

    cosine: float
    rank: int | None = None


class Similarity(TableTask):
    """The cosine of two texts' vectors."""

    name = "similarity"
    Model = SentenceEncoder
    Options = SimilarityOptions
    has_scores = True

    @property
    def scored(self) -> bool:
        """Whether pairs have scores; if not, they are pairs of texts that belong together."""
        return self.options.loss == "cosine"

    # -- Data -----------------------------------------------------------------------------------

    def read(
        self, path: str | Path, *, labelled: bool = True, faults: Faults | None = None
    ) -> list[TextExample]:
        """The pairs in a file; of SQuAD, each question that has an answer and its passage."""
        recipe = self.options.recipe
        labelled = labelled and self.scored
        if recipe is None:
            examples = self._read(path, labelled, faults)
        elif RECIPES[recipe].task != RECIPE_TASKS[self.options.loss]:
            raise UserError(
                f"recipe {recipe} gives no pairs for the loss {self.options.loss}; choose another"
            )
        elif self.scored:
            examples = RECIPES[recipe].read(path, labelled=labelled, faults=faults)
        else:
            examples = [
                TextExample(question.text, question.passage, None, Place(path, 1))
                for question in read_squad(path, faults=faults)
                if question.answers
            ]
        if examples and examples[0].text_pair is None:
            raise UserError(f"{examples[0].place}: one text; say which column holds the second (pair_column)")
        return examples

    def learn_labels(self, examples: Sequence[TextExample]) -> None:
        """Find the range of the scores. Raises UserError if it is none."""
        if not self.scored:
            return
        scores = [example.label for example in examples]
        lowest, highest = self.options.lowest_score, self.options.highest_score
        lowest = min(scores) if lowest is None else lowest
        highest = max(scores) if highest is None else highest
        if not lowest < highest:
            raise UserError(
                f"{examples[0].place.path}: scores from {lowest} to {highest} are no range to learn from"
            )
        self.options = self.options.replace(lowest_score=lowest, highest_score=highest)

    def features(self, examples: Sequence[TextExample], *, training: bool) -> list[PairFeature]:
        """Both texts of a pair for themselves, in training with the cosine that they should have.

        The highest score is the cosine 1, the lowest 0, or with ``opposites`` −1.
        """
        if training and self.scored:
            low, high = self.options.lowest_score, self.options.highest_score
            least = -1.0 if self.options.opposites else 0.0
            examples = [
                replace(example, label=least + (1.0 - least) * (example.label - low) / (high - low))
                for example in examples
            ]
        else:
            examples = [replace(example, label=None) for example in examples]
        return pair_features(examples, self.tokenizer, self.options.max_length)

    def batches(self, features: Sequence[PairFeature], batch_size: int, seed: int) -> FeatureStream:
        """Batches of pairs; where partners have to be found, without a text twice."""
        kind = FeatureStream if self.scored else DistinctPairs
        return kind(features, batch_size, self.tokenizer.pad_id, seed=seed)

    # -- Models ---------------------------------------------------------------------------------

    def trainee(self, model: SentenceEncoder) -> SentencePairs:
        """The encoder with its loss over pairs."""
        return SentencePairs(model, scale=self.options.scale, symmetric=self.options.symmetric)

    def _model_settings(self) -> dict[str, Any]:
        return {"pooling": self.options.pooling} if self.options.pooling else {}

    def save(self, model: SentenceEncoder, folder: str | Path) -> None:
        """Write a folder that `open_task` opens, and sentence-transformers too."""
        super().save(model, folder)
        length = {"max_seq_length": self.options.max_length, "do_lower_case": False}
        write_json(Path(folder) / LENGTH_FILE, length)

    @classmethod
    def recognises(cls, folder: Path) -> bool:
        """A folder of the sentence-transformers library."""
        return (folder / MODULES_FILE).is_file()

    # -- Predictions ----------------------------------------------------------------------------

    @property
    def metric(self) -> str:
        """The score that chooses the best checkpoint; more is better."""
        return self.options.metric or METRICS[self.options.loss][0]

    def predict(
        self, model: SentenceEncoder, examples: Sequence[TextExample], batch_size: int = 32
    ) -> list[PairPrediction]:
        """The cosine of each pair, and for the loss softmax the rank of its second text among all."""
        encoder = TextEncoder(model, self.tokenizer, self.options.max_length)
        texts = [example.text for example in examples] + [example.text_pair for example in examples]
        vectors, _ = ops.unit_length(encoder.embed(texts, batch_size))
        first, second = np.split(vectors, 2)  # (N, H) each
        cosines = (first * second).sum(axis=1).tolist()
        if self.scored:
            return [PairPrediction(cosine) for cosine in cosines]
        columns = {text: column for column, text in enumerate(dict.fromkeys(texts[len(examples) :]))}
        ranks = _ranks(first, second, [columns[example.text_pair] for example in examples])
        return [PairPrediction(*values) for values in zip(cosines, ranks, strict=True)]

    def scores(
        self, examples: Sequence[TextExample], predictions: Sequence[PairPrediction]
    ) -> dict[str, float]:
        """The correlations of cosines with scores, or how far up the right second texts are."""
        if self.scored:
            pair = [prediction.cosine for prediction in predictions], [example.label for example in examples]
            return {name: getattr(metrics, name)(*pair) for name in METRICS["cosine"]}
        ranks = [prediction.rank for prediction in predictions]
        recalls = {f"recall@{k}": metrics.recall_at(ranks, k) for k in (1, 10)}
        return {"mrr": metrics.mean_reciprocal_rank(ranks), **recalls}

    def record(self, example: TextExample, prediction: PairPrediction) -> dict[str, Any]:
        """The two texts, the score if it is known, their cosine, and the rank if there is one."""
        told = {"text": example.text, "text_pair": example.text_pair, "label": example.label}
        told |= {"cosine": prediction.cosine, "rank": prediction.rank}
        return {name: value for name, value in told.items() if value is not None}


def _ranks(first: np.ndarray, second: np.ndarray, columns: Sequence[int], block: int = 1024) -> list[int]:
    """How far up each first text finds its partner among the different second texts.

    first, second (N, H); ``columns`` (N,) tells equal second texts by equal numbers, counted up from 0. One
    that is as near as the partner counts as nearer: a model that tells nothing apart shall not look good.
    """
    columns = np.asarray(columns)
    _, rows = np.unique(columns, return_index=True)
    candidates = second[rows]  # (M, H)
    ranks: list[int] = []
    for start in range(0, len(first), block):
        cosines = first[start : start + block] @ candidates.T  # (block, M)
        right = np.take_along_axis(cosines, columns[start : start + block, None], axis=1)
        ranks += (cosines >= right).sum(axis=1).tolist()
    return ranks
