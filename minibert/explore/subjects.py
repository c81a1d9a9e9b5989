"""What can be looked into: a model with its tokenizer, what it is asked, and what its answers are called.

For another kind of head add a class, and an entry in ``SUBJECTS``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from minibert.assets import model_folder
from minibert.bert import BertForMaskedLM, BertForPreTraining
from minibert.errors import UserError
from minibert.explore.passes import Pass, Sentence, encode, last_text, run
from minibert.explore.questions import (
    Cosine,
    Explored,
    HiddenWord,
    Label,
    NextSentence,
    Question,
    Score,
    Span,
)
from minibert.folders.names import name_in_file
from minibert.folders.weights import open_weights
from minibert.heads import (
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    SentenceEncoder,
)
from minibert.nn import Observer
from minibert.tasks.classify import TextTask
from minibert.tasks.masked_words import masked_word_head
from minibert.tasks.registry import TASKS, open_task
from minibert.tasks.task import TASK_FILE
from minibert.text import PretrainedTokenizer, open_tokenizer
from minibert.variants import FAMILIES, family, model_class

LONGEST_SPAN = 30  # tokens
NEXT_SENTENCE = "cls.seq_relationship.weight"


class Subject:
    """A model, its tokenizer, and the way from a sentence to a question about it."""

    def __init__(self, model: Any, tokenizer: PretrainedTokenizer):
        tokenizer.check_size(model.config.vocab_size)
        self.model: Explored = model
        self.tokenizer = tokenizer

    def encode(self, text: str, second: str | None = None) -> Sentence:
        """A text or a pair in the model's special tokens."""
        return encode(self.tokenizer, text, second)

    def ask(
        self,
        sentence: Sentence,
        place: int | None,
        answer: str | None,
        changes: Sequence[Observer] = (),
    ) -> Question:
        """The question about a place and an answer; by default the usual place, and the likeliest answer.

        Raises UserError for a place or an answer that does not exist.
        """
        place = self.usual_place(sentence) if place is None else place
        if answer is not None:
            return self.question(place, self.number_of(answer))
        blank = self.question(place, 0)
        best = run(self.model, sentence, blank, changes=changes, names=[], backward=False).probabilities
        return self.question(place, int(best[: len(self.names)].argmax()))

    def about(self, sentence: Sentence, place: int | None) -> "Subject":
        """Which head a sentence is for: this one, unless the model has another."""
        return self

    def usual_place(self, sentence: Sentence) -> int | None:
        """The token that is asked about if none is named; None if the question is about the whole."""
        return None

    @property
    def names(self) -> Sequence[str]:
        """What the answers are called, in the order of their probabilities."""
        raise NotImplementedError

    def number_of(self, answer: str) -> int:
        """The number of an answer. Raises UserError if there is none of this name."""
        if answer not in self.names:
            raise UserError(f"there is no answer {answer!r}; the model knows {', '.join(self.names)}")
        return list(self.names).index(answer)

    def question(self, place: int | None, number: int) -> Question:
        """The question to which the answer of this number is one."""
        raise NotImplementedError

    def told(self, found: Pass) -> str:
        """What the loss of a pass is, in words."""
        return f"−ln p({self.names[found.question.answer]})"  # type: ignore[attr-defined]

    def best(self, found: Pass, count: int) -> list[dict[str, Any]]:
        """The likeliest answers, best first, each with its ``number`` and its probability ``p``."""
        known = found.probabilities[: len(self.names)]
        order = np.argsort(-known, kind="stable")[:count]
        return [{"token": self.names[i], "number": int(i), "p": float(known[i])} for i in order]


class Words(Subject):
    """A model for masked words: which token stands at a place?

    Two texts in which no word is hidden are for its head for the next sentence, if it has one.
    """

    def __init__(self, model: BertForPreTraining, tokenizer: PretrainedTokenizer):
        masked_word_head(model)
        super().__init__(model, tokenizer)
        self._names = [tokenizer.token_text(i) for i in range(len(tokenizer))]
        self._pairs = None if model.cls.seq_relationship is None else Pairs(model, tokenizer)

    def about(self, sentence: Sentence, place: int | None) -> Subject:
        """This, or the head for the next sentence."""
        whole = place is None and self.tokenizer.mask_id not in sentence.input_ids
        return self._pairs if self._pairs and whole and sentence.token_type_ids.any() else self

    def usual_place(self, sentence: Sentence) -> int:
        """The first [MASK]. Raises UserError if there is none."""
        hidden = np.flatnonzero(sentence.input_ids == self.tokenizer.mask_id)
        if not len(hidden):
            mask = self.tokenizer.special_tokens["mask_token"]
            text = self.tokenizer.decode(sentence.input_ids.tolist(), skip_special_tokens=True)
            raise UserError(
                f"no word is hidden in {text!r}; write {mask} in place of one (the text in quotes)"
            )
        return int(hidden[0])

    @property
    def names(self) -> Sequence[str]:
        """The tokens of the vocabulary, as text."""
        return self._names

    def number_of(self, answer: str) -> int:
        """A token's number, by its text, or as the vocabulary writes it. Most places begin a word."""
        for name in (f" {answer}", answer):
            if name in self._names:
                return self._names.index(name)
        if answer in self.tokenizer.vocab:
            return self.tokenizer.vocab[answer]
        raise UserError(f"{answer!r} is not a token of the vocabulary; longer words are cut into pieces")

    def question(self, place: int | None, number: int) -> Question:
        """Which token stands there?"""
        assert place is not None
        return HiddenWord(place, number, self.tokenizer.mask_id)


class Pairs(Subject):
    """A model that was trained to say whether the second text follows the first one.

    An ALBERT says whether the two are in order: its second text always belongs to the first.
    """

    @property
    def names(self) -> Sequence[str]:
        """What was learned of pairs."""
        in_order = FAMILIES[self.model.config.model_type].sentence_order
        return ("they are in order", "they are swapped") if in_order else ("it follows", "it does not")

    def question(self, place: int | None, number: int) -> Question:
        """Does it?"""
        return NextSentence(number)


class Labels(Subject):
    """A model that gives a text one of K labels."""

    def __init__(self, model: BertForSequenceClassification, tokenizer: PretrainedTokenizer):
        super().__init__(model, tokenizer)
        names: Mapping[int, str] = model.config.id2label or {}
        self._names = [names.get(i, f"label {i}") for i in range(model.config.num_labels)]

    @property
    def names(self) -> Sequence[str]:
        """Those in the configuration."""
        return self._names

    def question(self, place: int | None, number: int) -> Question:
        """Which label has the text?"""
        return Label(number)


class Numbers(Subject):
    """A model that gives a text, or a pair, a number. The loss is that number itself."""

    names: Sequence[str] = ()

    def ask(self, sentence: Sentence, place: int | None, answer: str | None, *_: Any, **__: Any) -> Question:
        """There is only one question. Raises UserError for an answer, which cannot be chosen."""
        refuse_answer(answer)
        return Score()

    def told(self, found: Pass) -> str:
        """The loss is what the model answers."""
        return "the number that it gives"


class Tags(Labels):
    """A model that gives each token one of K tags."""

    def usual_place(self, sentence: Sentence) -> int:
        """The first word."""
        return self.tokenizer.special_counts(1)[0] if len(sentence) > 2 else 0

    def question(self, place: int | None, number: int) -> Question:
        """Which tag has the token there?"""
        return Label(number, place)


class Spans(Subject):
    """A model that finds the answer to a question, the first text, in a passage, the second."""

    names: Sequence[str] = ()

    def encode(self, text: str, second: str | None = None) -> Sentence:
        """The question and the passage. Raises UserError without a passage, or with an empty one."""
        if second is None or not self.tokenizer.tokenize(second):
            raise UserError("a question is answered from a passage; give it as the second text")
        return encode(self.tokenizer, text, second)

    def ask(
        self, sentence: Sentence, place: int | None, answer: str | None, changes: Sequence[Observer] = ()
    ) -> Question:
        """Where does the best answer start and end? Raises UserError for an ``answer``: none can be named."""
        refuse_answer(answer)
        found = run(self.model, sentence, Span(0, 0), changes=changes, names=[], backward=False)
        return Span(*self._spans(found)[0][:2])

    def told(self, found: Pass) -> str:
        """The loss is that of both ends."""
        assert isinstance(found.question, Span)
        return f"−ln p({self._text(found, found.question.start, found.question.end)})"

    def best(self, found: Pass, count: int) -> list[dict[str, Any]]:
        """The likeliest spans."""
        best = enumerate(self._spans(found)[:count])
        return [{"token": self._text(found, a, b), "number": i, "p": p} for i, (a, b, p) in best]

    def _text(self, found: Pass, start: int, end: int) -> str:
        return " ".join(found.sentence.tokens[start : end + 1])

    def _spans(self, found: Pass) -> list[tuple[int, int, float]]:
        """Spans of at most ``LONGEST_SPAN`` tokens of the passage, by both ends' probability, best first."""
        first, stop = last_text(found.sentence, self.tokenizer)
        start, end = found.probabilities[:, first:stop]  # (P,) each
        both = np.triu(start[:, None] * end) * np.tri(len(end), k=LONGEST_SPAN - 1)
        order = np.argsort(-both, axis=None, kind="stable")[:100]
        return [
            (first + int(a), first + int(b), float(both[a, b]))
            for a, b in zip(*np.unravel_index(order, both.shape), strict=True)
        ]


class Similar(Subject):
    """A sentence encoder: how near is a text's vector to that of a second one, which is a constant here?"""

    names: Sequence[str] = ()

    def encode(self, text: str, second: str | None = None) -> Sentence:
        """The first text. Raises UserError without a second."""
        if second is None:
            raise UserError("a sentence encoder compares two texts; give a second one")
        return replace(encode(self.tokenizer, text), other=second)

    def ask(self, sentence: Sentence, place: int | None, answer: str | None, *_: Any, **__: Any) -> Question:
        """There is only one question. Raises UserError for an answer, which cannot be chosen."""
        refuse_answer(answer)
        assert isinstance(self.model, SentenceEncoder) and sentence.other is not None
        self.model.eval()
        return Cosine(self.model.forward(**self.tokenizer([sentence.other]))[0].embeddings)

    def told(self, found: Pass) -> str:
        """The loss is smallest for the same direction."""
        return "1 − cosine to the second text"


def refuse_answer(answer: str | None) -> None:
    """Raise UserError if somebody names an answer where there are none to choose from."""
    if answer is not None:
        raise UserError(f"this model's answer cannot be chosen, but {answer!r} was given; leave it out")


SUBJECTS: dict[type, type[Subject]] = {
    BertForSequenceClassification: Labels,
    BertForTokenClassification: Tags,
    BertForQuestionAnswering: Spans,
    SentenceEncoder: Similar,
}


def open_subject(folder: str | Path, **options: Any) -> Subject:
    """A model that was fine-tuned, with its head, or one for masked words; ``options`` as for a model.

    Raises UserError for a folder with neither.
    """
    path = model_folder(folder)
    if (path / TASK_FILE).is_file() or any(task.recognises(path) for task in TASKS.values()):
        task, model = open_task(folder, **options)
        if isinstance(task, TextTask) and task.several:
            raise UserError(f"{folder}: a model that gives several labels or numbers cannot be looked into")
        if isinstance(model, BertForSequenceClassification) and model.config.is_regression:
            return Numbers(model, task.tokenizer)
        return next(made(model, task.tokenizer) for kind, made in SUBJECTS.items() if isinstance(model, kind))
    model = _class_for_words(path).from_pretrained(path, complete=True, **options)
    return Words(model, open_tokenizer(path))


def _class_for_words(folder: Path) -> type[BertForPreTraining]:
    """With the head for the next sentence, if the folder has one."""
    models = family(folder).models
    both = models.get(BertForPreTraining)
    if both and name_in_file(NEXT_SENTENCE, both.tensor_names) in open_weights(folder):
        return both  # type: ignore[return-value]  # each is a subclass of its kind
    return model_class(BertForMaskedLM, folder)
