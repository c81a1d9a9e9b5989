"""A label or a number for a text, or for a pair of texts."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import expit

from minibert import ops
from minibert.arrays import to_numpy
from minibert.data.tasks import (
    Faults,
    Feature,
    Place,
    TextExample,
    check_labels,
    label_names,
    text_features,
)
from minibert.data.tasks.faults import Problem
from minibert.data.tasks.tables import column_of
from minibert.errors import UserError
from minibert.heads import BertForSequenceClassification
from minibert.tasks import metrics
from minibert.tasks.task import PredictionT, TableOptions, TableTask
from minibert.variants import open_config

MULTI_LABEL = "multi_label_classification"  # as in the model's configuration

KINDS = {False: "single texts", True: "pairs of texts"}


@dataclass(frozen=True)
class ClassPrediction:
    """The likeliest label, and the probabilities (K,) of all labels."""

    label: str
    probabilities: np.ndarray


@dataclass(frozen=True)
class LabelsPrediction(ClassPrediction):
    """A prediction of labels that do not exclude each other; ``labels`` are those likelier than not."""

    labels: list[str]


class TextTask(TableTask[BertForSequenceClassification, TableOptions, Feature, PredictionT]):
    """Labels or numbers for a text or a pair of texts, made from its pooled vector.

    ``several`` says whether an opened model gives each text several of them, as some that were fine-tuned by
    other programs do: labels that do not exclude each other, or more than one number.
    """

    Model = BertForSequenceClassification
    Options = TableOptions
    several = False

    def open_model(self, folder: str | Path, **options: Any) -> BertForSequenceClassification:
        """As `Task.open_model`; also finds out whether the model gives several labels or numbers."""
        model = super().open_model(folder, **options)
        config = model.config
        self.several = config.num_labels > 1 if config.is_regression else config.problem_type == MULTI_LABEL
        return model

    def check(self, examples: Sequence[TextExample], faults: Faults | None = None) -> list[TextExample]:
        """As `Task.check`. Raises UserError for a model that gives several labels or numbers."""
        if self.several:
            raise UserError(
                "this model gives each text several labels or numbers, but a file holds one per text, so it "
                "cannot be scored; minibert predict shows what it gives"
            )
        return super().check(examples, faults)

    def read(
        self, path: str | Path, *, labelled: bool = True, faults: Faults | None = None
    ) -> list[TextExample]:
        """As `Task.read`. Raises UserError also for pairs if the model learned from texts, or vice versa."""
        examples = super().read(path, labelled=labelled, faults=faults)
        found = examples[0].text_pair is not None
        if self.pairs not in (None, found):
            raise UserError(
                f"{path}: found {KINDS[found]}, but this model was trained on {KINDS[self.pairs]}; say which "
                f"columns to read (text_column{', pair_column' * self.pairs})"
            )
        return examples

    def example(self, text: str, pair: str | None, place: Place) -> TextExample:
        """A text or a pair, without a label. Raises `Problem` if the model was trained on the other kind."""
        if self.pairs and pair is None:
            raise Problem(
                "one text, but this model was trained on pairs; add a second (--pair, or after a tab)"
            )
        if self.pairs is False and pair is not None:
            raise Problem(
                "two texts (--pair, or a tab), but this model was trained on single texts; give one"
            )
        return super().example(text, pair, place)

    def learn_labels(self, examples: Sequence[TextExample]) -> None:
        """Find out whether examples are pairs."""
        self.pairs = examples[0].text_pair is not None

    def features(self, examples: Sequence[TextExample], *, training: bool) -> list[Feature]:
        """One row per example; see `data.tasks.text_features`."""
        return text_features(
            examples, self.tokenizer, self.options.max_length, self.label_ids if training else None
        )

    def logits(
        self, model: BertForSequenceClassification, examples: Sequence[TextExample], batch_size: int
    ) -> np.ndarray:
        """The model's scores (N, K), in the order of the examples."""
        features = self.features(examples, training=False)
        logits = np.zeros((len(features), model.config.num_labels), model.dtype)
        for rows, output in self.outputs(model, features, batch_size):
            logits[rows] = to_numpy(output.logits)
        return logits


class Classify(TextTask[ClassPrediction]):
    """A label for a text, or for a pair of texts."""

    name = "classify"
    score_names = ("accuracy", "macro_f1", "matthews", "f1")
    metric = "accuracy"
    has_labels = True

    def learn_labels(self, examples: Sequence[TextExample]) -> None:
        """Take the names of the labels, and whether examples are pairs. Raises UserError for fewer than 2."""
        super().learn_labels(examples)
        self.labels = label_names(examples)
        first = examples[0]
        numbered = isinstance(column_of(self.options.text_column), int) and not self.options.header
        if numbered and first.place.line == 1 and [e.label for e in examples].count(first.label) == 1:
            warnings.warn(
                f"{first.place}: no other example has the label {first.label!r}; if this line holds the "
                "names of the columns, give header",
                stacklevel=2,
            )

    def check(self, examples: Sequence[TextExample], faults: Faults | None = None) -> list[TextExample]:
        """As `TextTask.check`, without those with unknown labels; see `data.tasks.check_labels`."""
        return check_labels(super().check(examples, faults), self.labels, faults)

    def _model_settings(self) -> dict[str, Any]:
        return super()._model_settings() | {"problem_type": "single_label_classification"}

    @classmethod
    def recognises(cls, folder: Path) -> bool:
        """Whether a folder holds a sequence classifier that is not a regression."""
        return super().recognises(folder) and not Regress.recognises(folder)

    def predict(
        self, model: BertForSequenceClassification, examples: Sequence[TextExample], batch_size: int = 32
    ) -> list[ClassPrediction]:
        """The likeliest label of each example and the probabilities of all, p = softmax(logits).

        For labels that do not exclude each other, p = 1 / (1 + exp(−logits)), and all with p > 1/2 are given.
        """
        logits = self.logits(model, examples, batch_size)  # (N, K)
        if model.config.problem_type == MULTI_LABEL:
            return [
                LabelsPrediction(
                    self.labels[row.argmax()], row, [self.labels[i] for i in np.flatnonzero(row > 0.5)]
                )
                for row in expit(logits)
            ]
        probabilities, _ = ops.softmax(logits)
        return [ClassPrediction(self.labels[row.argmax()], row) for row in probabilities]

    def scores(
        self, examples: Sequence[TextExample], predictions: Sequence[ClassPrediction]
    ) -> dict[str, float]:
        """Accuracy, the mean F1 of all labels, Matthews' correlation; if there are two, the second's F1."""
        pair = [prediction.label for prediction in predictions], [example.label for example in examples]
        scores = {name: getattr(metrics, name)(*pair) for name in ("accuracy", "macro_f1", "matthews")}
        if len(self.labels) == 2:
            scores["f1"] = metrics.f1(*pair, positive=self.labels[1])
        return scores

    def scores_for(self, examples: Sequence[TextExample]) -> tuple[str, ...]:
        """The scores; the F1 of one label only if there are two labels."""
        return tuple(name for name in self.score_names if name != "f1" or len(self.labels) == 2)

    def record(self, example: TextExample, prediction: ClassPrediction) -> dict[str, Any]:
        """The text or texts, the label if it is known, the predicted one or ones, and all probabilities."""
        predicted = prediction.labels if isinstance(prediction, LabelsPrediction) else prediction.label
        scores = dict(zip(self.labels, prediction.probabilities.tolist(), strict=True))
        return example.to_dict() | {"prediction": predicted, "probabilities": scores}


class Regress(TextTask[float | list[float]]):
    """A number for a text, or for a pair of texts."""

    name = "regress"
    score_names = ("spearman", "pearson")
    metric = "spearman"
    has_scores = True

    def _model_settings(self) -> dict[str, Any]:
        return {"num_labels": 1, "problem_type": "regression"}

    @classmethod
    def recognises(cls, folder: Path) -> bool:
        """Whether a folder holds a sequence classifier whose configuration says that it is a regression."""
        return super().recognises(folder) and open_config(folder).is_regression

    def predict(
        self, model: BertForSequenceClassification, examples: Sequence[TextExample], batch_size: int = 32
    ) -> list[float | list[float]]:
        """The number for each example, or the list of all K if the model gives several."""
        logits = self.logits(model, examples, batch_size)  # (N, K)
        return (logits if model.config.num_labels > 1 else logits[:, 0]).tolist()

    @property
    def fewest_scored(self) -> int:
        """A correlation needs two."""
        return 2

    def scores(
        self, examples: Sequence[TextExample], predictions: Sequence[float | list[float]]
    ) -> dict[str, float]:
        """Pearson's and Spearman's correlation."""
        labels = [example.label for example in examples]
        return {name: getattr(metrics, name)(predictions, labels) for name in self.score_names}

    def record(self, example: TextExample, prediction: float | list[float]) -> dict[str, Any]:
        """The text or texts, the score if it is known, and the predicted one or ones."""
        return example.to_dict() | {"prediction": prediction}
