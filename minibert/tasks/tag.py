"""A tag for each word of a sentence: entities in BIO, or tags that mark no entities."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from minibert.data.tasks import (
    SCHEMES,
    Faults,
    Place,
    TaggedFeature,
    TaggedSentence,
    check_labels,
    label_names,
    read_conll,
    tagged_features,
)
from minibert.data.tasks.conll import to_bio
from minibert.data.tasks.faults import Problem
from minibert.errors import UserError
from minibert.heads import BertForTokenClassification
from minibert.settings import setting
from minibert.tasks.metrics import accuracy, entities, entity_scores
from minibert.tasks.task import Task, TaskOptions


@dataclass(frozen=True)
class TagOptions(TaskOptions):
    """Where words and tags are in a CoNLL file, and what chooses the tags."""

    word_column: int = setting(
        1, "Data", "column of the words in a CoNLL file, counted from 1, or backwards from the last, -1"
    )
    tag_column: int = setting(-1, "Data", "column of the tags in a CoNLL file, counted in the same way")
    scheme: str = setting(
        "bio",
        "Data",
        "how tags mark entities; plain tags mark none (parts of speech, for instance)",
        choices=SCHEMES,
    )
    crf: bool = setting(
        False, "Task", "choose the tags of a sentence jointly, with a CRF, not each by itself"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if 0 in (self.word_column, self.tag_column):
            raise UserError("columns count from 1, or backwards from -1; there is no column 0")


class Tag(Task[BertForTokenClassification, TagOptions, TaggedSentence, TaggedFeature, list[str]]):
    """A softmax for each word, at its first piece, or one CRF over the words of a sentence.

    A sentence that is too long for the model is read in several rows, which do not see each other. A
    prediction is the list of a sentence's tags. Those of entities are always BIO: an I-x that continues
    nothing begins an entity, as scorers read it, so it becomes B-x.
    """

    name = "tag"
    Model = BertForTokenClassification
    Options = TagOptions
    score_names = ("f1", "precision", "recall", "accuracy")
    has_labels = True
    own_ending = ".conll"

    def _read(self, path: str | Path, labelled: bool, faults: Faults | None) -> list[TaggedSentence]:
        return read_conll(
            path,
            word_column=self.options.word_column,
            tag_column=self.options.tag_column,
            scheme=self.options.scheme,
            labelled=labelled,
            faults=faults,
        )

    def example(self, text: str, pair: str | None, place: Place) -> TaggedSentence:
        """A sentence whose words are what is between the spaces of a text."""
        if pair is not None:
            raise Problem("words are tagged in one text, not in two with a tab between; give one")
        return TaggedSentence(text.split(), None, place)

    def learn_labels(self, examples: Sequence[TaggedSentence]) -> None:
        """Take the names of the tags. Raises UserError if there are fewer than 2.

        Of each kind of entity there are B-x and I-x, even if all that were read are of one word.
        """
        self.labels = label_names(examples)
        if self.marks_entities:
            kinds = {label[2:] for label in self.labels if label != "O"}
            self.labels = sorted({*self.labels, *(f"{part}-{kind}" for kind in kinds for part in "BI")})

    def check(self, examples: Sequence[TaggedSentence], faults: Faults | None = None) -> list[TaggedSentence]:
        """The sentences all of whose tags are known; see `data.tasks.check_labels`."""
        return check_labels(examples, self.labels, faults)

    def features(self, examples: Sequence[TaggedSentence], *, training: bool) -> list[TaggedFeature]:
        """One or several rows per sentence; see `data.tasks.tagged_features`."""
        return tagged_features(
            examples, self.tokenizer, self.options.max_length, self.label_ids if training else None
        )

    def _model_settings(self) -> dict[str, Any]:
        return super()._model_settings() | {"crf": self.options.crf}

    @property
    def marks_entities(self) -> bool:
        """Whether tags mark entities: all labels are BIO tags, and the options do not deny it."""
        if self.options.scheme == "plain":
            return False
        return all(label == "O" or (label[:2] in ("B-", "I-") and label[2:]) for label in self.labels)

    @property
    def metric(self) -> str:
        """F1 of entities or, if tags mark none, the share of the words whose tag is right."""
        return "f1" if self.marks_entities else "accuracy"

    def predict(
        self, model: BertForTokenClassification, examples: Sequence[TaggedSentence], batch_size: int = 32
    ) -> list[list[str]]:
        """The tags of each sentence, one per word."""
        features = self.features(examples, training=False)
        names = np.array(self.labels, dtype=object)
        predictions = [[""] * len(sentence.words) for sentence in examples]
        for rows, output in self.outputs(model, features, batch_size):
            runs = [features[row] for row in rows]
            chosen = np.zeros(output.logits.shape[:2], bool)  # (B, S)
            for row, run in zip(chosen, runs, strict=True):
                row[run.positions] = True
            for tags, run in zip(model.best_tags(output.logits, chosen), runs, strict=True):
                words = slice(run.first_word, run.first_word + len(run.positions))
                predictions[run.example][words] = names[tags[run.positions]]
        return [to_bio(tags, "iob1") for tags in predictions] if self.marks_entities else predictions

    def scores(
        self, examples: Sequence[TaggedSentence], predictions: Sequence[list[str]]
    ) -> dict[str, float]:
        """F1, precision and recall of entities, if tags mark any, and the share of tags that are right."""
        labels = _tags(examples)
        right = {"accuracy": accuracy([*chain(*predictions)], [*chain(*labels)])}
        if not self.marks_entities:
            return right
        overall = entity_scores(predictions, labels)["overall"]
        return {name: overall[name] for name in ("f1", "precision", "recall")} | right

    def scores_for(self, examples: Sequence[TaggedSentence]) -> tuple[str, ...]:
        """The scores; accuracy alone if tags mark no entities."""
        return self.score_names if self.marks_entities else ("accuracy",)

    def details(
        self, examples: Sequence[TaggedSentence], predictions: Sequence[list[str]]
    ) -> dict[str, dict[str, float]]:
        """The scores of each kind of entity, and how many there are ("support")."""
        if not self.marks_entities:
            return {}
        kinds = entity_scores(predictions, _tags(examples))
        return {kind: scores for kind, scores in kinds.items() if kind != "overall"}

    def record(self, example: TaggedSentence, prediction: list[str]) -> dict[str, Any]:
        """The words, their tags if they are known, the predicted tags, and the entities that those mark."""
        told: dict[str, Any] = {"words": example.words, "labels": example.tags, "prediction": prediction}
        if self.marks_entities:
            told["entities"] = [
                {"kind": kind, "start": start, "stop": stop, "text": " ".join(example.words[start:stop])}
                for kind, start, stop in entities(prediction)
            ]
        return {name: value for name, value in told.items() if value is not None}

    def own_format(self, examples: Sequence[TaggedSentence], predictions: Sequence[list[str]]) -> str:
        """A CoNLL file: word and predicted tag, one word per line, an empty line between sentences."""
        sentences = (
            "".join(f"{word}\t{tag}\n" for word, tag in zip(sentence.words, tags, strict=True))
            for sentence, tags in zip(examples, predictions, strict=True)
        )
        return "\n".join(sentences)


def _tags(sentences: Sequence[TaggedSentence]) -> list[list[str]]:
    """The right tags; a sentence that is not labelled has none."""
    return [sentence.tags or [] for sentence in sentences]
