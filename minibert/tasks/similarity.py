"""How similar two texts are, by the cosine of their vectors; learned from scores or from matching pairs."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from minibert import ops
from minibert.data.tasks import (
    RECIPES,
    DistinctPairs,
    Faults,
    FeatureStream,
    PairFeature,
    Place,
    Question,
    TextExample,
    pair_features,
)
from minibert.data.tasks.faults import Problem
from minibert.errors import UserError
from minibert.files import write_json
from minibert.heads import SentenceEncoder, SentencePairs
from minibert.heads.sentence import MODULES_FILE
from minibert.settings import setting
from minibert.tasks import metrics
from minibert.tasks.embed import LENGTH_FILE, TextEncoder, check_finite
from minibert.tasks.task import TableOptions, TableTask, hold_out

# The tasks whose recipes can be used with each loss.
RECIPE_TASKS = {"cosine": ("regress",), "softmax": ("qa", "similarity")}
# The options that only one loss has.
OF_LOSS = {"cosine": ("lowest_score", "highest_score", "opposites"), "softmax": ("scale", "symmetric")}


@dataclass(frozen=True)
class SimilarityOptions(TableOptions):
    """A table of pairs, and what is learned from them.

    If the lowest and the highest score are not given, `Similarity.learn_labels` sets them to those of the
    training data.
    """

    loss: str = setting(
        "cosine",
        "Task",
        "cosine: pairs have scores, to which their cosines are fitted; softmax: pairs match (a question and "
        "its passage, say), and each text has to find its partner in the batch",
        choices=tuple(RECIPE_TASKS),
    )
    pooling: str | None = setting(
        None, "Task", "how a text's vector is made (default: as the model says)", choices=tuple(ops.POOLING)
    )
    lowest_score: float | None = setting(
        None, "Task", "score of texts with nothing in common (default: the lowest in the training data)"
    )
    highest_score: float | None = setting(
        None, "Task", "score of texts that say the same (default: the highest in the training data)"
    )
    opposites: bool = setting(
        False, "Task", "map the lowest score to the cosine −1, as for opposites, instead of 0"
    )
    scale: float = setting(20.0, "Task", "factor of the cosines in the softmax", least=0.0)
    symmetric: bool = setting(True, "Task", "second texts also have to find the first ones")

    def __post_init__(self) -> None:
        super().__post_init__()
        for f in fields(self):
            loss = next((loss for loss, names in OF_LOSS.items() if f.name in names), self.loss)
            if loss != self.loss and getattr(self, f.name) != f.default:
                raise UserError(f"{f.name} is for the loss {loss}, not {self.loss}; leave it out")


@dataclass(frozen=True, eq=False)
class PairPrediction:
    """The vectors of two texts, each (H,) and of length 1."""

    first: np.ndarray
    second: np.ndarray

    @property
    def cosine(self) -> float:
        """How similar the two are, from −1 to 1."""
        return float(self.first @ self.second)


class Similarity(TableTask[SentenceEncoder, SimilarityOptions, PairFeature, PairPrediction]):
    """The cosine of two texts' vectors."""

    name = "similarity"
    Model = SentenceEncoder
    Options = SimilarityOptions
    score_names = ("spearman", "pearson", "mrr", "recall@1", "recall@10")
    has_scores = True

    @property
    def scored(self) -> bool:
        """Whether pairs have scores; if not, they are pairs of texts that belong together."""
        return self.options.loss == "cosine"

    # -- Data -----------------------------------------------------------------------------------

    def read(
        self, path: str | Path, *, labelled: bool = True, faults: Faults | None = None
    ) -> list[TextExample]:
        """The pairs in a file; in SQuAD's, the passage of each question that has an answer, or of every
        question if they are not ``labelled``.

        Raises UserError as `Task.read` does, for a recipe without pairs for the loss, and for single texts.
        """
        name = self.options.recipe
        if name is None:
            examples = self._read(path, labelled and self.scored, faults)
        else:
            recipe = RECIPES[name]
            if recipe.task not in RECIPE_TASKS[self.options.loss]:
                raise UserError(
                    f"recipe {name} gives no pairs for the loss {self.options.loss}; choose another"
                )
            found = recipe.read(path, labelled=labelled, faults=faults)
            examples = _with_passages(found, path, labelled) if recipe.task == "qa" else found
        if examples[0].text_pair is None:
            raise UserError(f"{examples[0].place}: one text; say which column holds the second (pair_column)")
        return examples

    def example(self, text: str, pair: str | None, place: Place) -> TextExample:
        """A pair without a score."""
        if pair is None:
            raise Problem("one text; a comparison needs two")
        return super().example(text, pair, place)

    def learn_labels(self, examples: Sequence[TextExample]) -> None:
        """Find the range of the scores. Raises UserError if it is empty."""
        if not self.scored:
            return
        scores = _scores(examples)
        lowest, highest = self._score_range(scores)
        if not lowest < highest:
            raise UserError(
                f"{examples[0].place.path}: scores from {lowest} to {highest} are not a range to learn from"
            )
        for example, score in zip(examples, scores, strict=True):
            if not lowest <= score <= highest:
                raise UserError(
                    f"{example.place}: the score {score} is not between lowest_score, {lowest}, and "
                    f"highest_score, {highest}"
                )
        self.options = self.options.replace(lowest_score=lowest, highest_score=highest)

    def _score_range(self, scores: np.ndarray) -> tuple[float, float]:
        """The lowest and the highest score: those of the options or, if not given, those of ``scores``."""
        lowest, highest = self.options.lowest_score, self.options.highest_score
        return (
            float(scores.min()) if lowest is None else lowest,
            float(scores.max()) if highest is None else highest,
        )

    def hold_out(
        self, examples: Sequence[TextExample], share: float, seed: int
    ) -> tuple[list[TextExample], list[TextExample]]:
        """As `Task.hold_out`, but no second text (a passage, say) is on both sides."""
        return hold_out(examples, [example.content[1] for example in examples], share, seed)

    def features(self, examples: Sequence[TextExample], *, training: bool) -> list[PairFeature]:
        """Both texts of each pair as rows of their own, in training with the cosine that they should have.

        The highest score becomes the cosine 1, the lowest 0, or −1 with ``opposites``.
        """
        if training and self.scored:
            scores = _scores(examples)
            low, high = self._score_range(scores)
            least = -1.0 if self.options.opposites else 0.0
            labels = (least + (1.0 - least) * (scores - low) / (high - low)).tolist()
        else:
            labels = [None] * len(examples)
        examples = [replace(example, label=label) for example, label in zip(examples, labels, strict=True)]
        return pair_features(examples, self.tokenizer, self.options.max_length)

    def batches(self, features: Sequence[PairFeature], batch_size: int, seed: int) -> FeatureStream:
        """Batches of pairs; if partners have to be found, no text occurs twice in a batch."""
        kind = FeatureStream if self.scored else DistinctPairs
        return kind(features, batch_size, self.tokenizer.pad_id, seed=seed)

    # -- Models ---------------------------------------------------------------------------------

    def trainee(self, model: SentenceEncoder) -> SentencePairs:
        """The encoder with its loss over pairs."""
        return SentencePairs(model, scale=self.options.scale, symmetric=self.options.symmetric)

    def _model_settings(self) -> dict[str, Any]:
        return {"pooling": self.options.pooling} if self.options.pooling else {}

    def save(self, model: SentenceEncoder, folder: str | Path) -> None:
        """Write a folder that both `open_task` and sentence-transformers can open."""
        super().save(model, folder)
        length = {"max_seq_length": self.options.max_length, "do_lower_case": False}
        write_json(Path(folder) / LENGTH_FILE, length)

    @classmethod
    def recognises(cls, folder: Path) -> bool:
        """Whether this is a folder of the sentence-transformers library."""
        return (folder / MODULES_FILE).is_file()

    # -- Predictions ----------------------------------------------------------------------------

    @property
    def metric(self) -> str:
        """The score that chooses the best checkpoint by default."""
        return "spearman" if self.scored else "mrr"

    def predict(
        self, model: SentenceEncoder, examples: Sequence[TextExample], batch_size: int = 32
    ) -> list[PairPrediction]:
        """The vectors of each pair."""
        encoder = TextEncoder(model, self.tokenizer, self.options.max_length, ranks=self.ranks)
        texts = [example.text for example in examples] + [example.pair[1] for example in examples]
        vectors, _ = ops.unit_length(encoder.embed(texts, batch_size))
        check_finite(vectors)
        return [PairPrediction(*pair) for pair in zip(*np.split(vectors, 2), strict=True)]

    @property
    def fewest_scored(self) -> int:
        """A correlation needs two pairs."""
        return 2 if self.scored else 1

    def scores(
        self, examples: Sequence[TextExample], predictions: Sequence[PairPrediction]
    ) -> dict[str, float]:
        """The correlations of the cosines with the scores, or how high the right second texts rank."""
        if self.scored:
            pair = [prediction.cosine for prediction in predictions], _scores(examples)
            return {name: getattr(metrics, name)(*pair) for name in ("spearman", "pearson")}
        first, second = (np.stack([getattr(p, side) for p in predictions]) for side in ("first", "second"))
        ranks = partner_ranks(first, second, [example.content[1] for example in examples])
        recalls = {f"recall@{k}": metrics.recall_at(ranks, k) for k in (1, 10)}
        return {"mrr": metrics.mean_reciprocal_rank(ranks), **recalls}

    def scores_for(self, examples: Sequence[TextExample]) -> tuple[str, ...]:
        """The scores that belong to the loss."""
        return self.score_names[:2] if self.scored else self.score_names[2:]

    def record(self, example: TextExample, prediction: PairPrediction) -> dict[str, Any]:
        """The two texts, the score if it is known, and their cosine."""
        return example.to_dict() | {"cosine": prediction.cosine}


def _with_passages(questions: Sequence[Question], path: str | Path, answered: bool) -> list[TextExample]:
    """Each question with its passage, or only those that are ``answered``. Raises UserError if none is."""
    place = Place(path, 1)
    if answered:
        questions = [question for question in questions if question.answers]
    if not questions:
        raise UserError(f"{path}: no question in this file has an answer; give another file")
    return [TextExample(question.text, question.passage, None, place) for question in questions]


def _scores(examples: Sequence[TextExample]) -> np.ndarray:
    """The score of each pair, (N,)."""
    return np.array([example.label for example in examples], float)


def partner_ranks(
    first: np.ndarray, second: np.ndarray, texts: Sequence[str], block: int = 1024
) -> list[int]:
    """For each first text the rank of its partner, from 1, among all different second texts.

    first, second (N, H) of length 1; ``texts`` are the N second texts. A text that is as near as the partner
    counts as nearer: a model that cannot tell texts apart should not look good.
    """
    rows = {text: row for row, text in enumerate(texts)}  # of each different text, one
    columns = {text: column for column, text in enumerate(rows)}
    candidates = second[list(rows.values())]  # (M, H)
    right = np.array([columns[text] for text in texts])[:, None]  # (N, 1)
    ranks: list[int] = []
    for start in range(0, len(first), block):
        cosines = first[start : start + block] @ candidates.T  # (block, M)
        partner = np.take_along_axis(cosines, right[start : start + block], axis=1)
        ranks += (cosines >= partner).sum(axis=1).tolist()
    return ranks
