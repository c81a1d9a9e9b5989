"""What can be looked into: a model with its tokenizer, what it is asked, and what its answers are called.

For another kind of head add a class, and an entry in ``SUBJECTS``.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from minibert import ops
from minibert.arrays import to_numpy
from minibert.assets import model_folder
from minibert.bert import BertForMaskedLM, BertForPreTraining
from minibert.data.tasks import Place
from minibert.data.tasks.faults import Problem
from minibert.data.tasks.windows import window_places
from minibert.errors import UserError
from minibert.explore.passes import Pass, Sentence, context_with, encode, encode_pieces, run
from minibert.explore.questions import (
    Cosine,
    Explored,
    HiddenWord,
    Label,
    NextSentence,
    OwnLabel,
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
from minibert.tasks.classify import MULTI_LABEL
from minibert.tasks.masked_words import masked_word_head
from minibert.tasks.question_answering import AnswerQuestions
from minibert.tasks.registry import TASKS, open_task
from minibert.tasks.task import TASK_FILE, Task
from minibert.text import PretrainedTokenizer, open_tokenizer
from minibert.text.words import Pieces, pieces_of, pieces_of_words
from minibert.variants import FAMILIES, family, model_class

LONGEST_SPAN = 30  # tokens
NEXT_SENTENCE = "cls.seq_relationship.weight"


class Subject:
    """A model, its tokenizer, and the way from a sentence to a question about it.

    With the ``task`` that it was fine-tuned for, it reads texts as that does. ``by_word`` says whether it has
    an answer for each word, and ``in_turn`` whether the second of two texts is a constant in the question
    about the first. What speaks for an answer is ``offset`` + ``sign`` · loss: ln p, but for a few kinds of
    heads.
    """

    by_word = False
    in_turn = False
    sign = -1.0
    offset = 0.0

    def __init__(self, model: Any, tokenizer: PretrainedTokenizer, task: Task | None = None):
        tokenizer.check_size(model.config.vocab_size)
        self.model: Explored = model
        self.tokenizer = tokenizer
        self.task = task

    def encode(self, text: str, second: str | None = None) -> Sentence:
        """A text or a pair in the model's special tokens, cut to what its task reads.

        Raises UserError for what the task does not read: one text instead of a pair, for instance.
        """
        self.check(text, second)
        return encode(self.tokenizer, text, second, self.max_length)

    @property
    def max_length(self) -> int | None:
        """How many tokens the task reads, if there is one."""
        return None if self.task is None else self.task.options.max_length

    def check(self, text: str, second: str | None) -> None:
        """Raise UserError for texts that the task does not read."""
        try:
            if self.task is not None:
                self.task.example(text, second, Place("the text", 1))
        except Problem as problem:
            raise UserError(str(problem)) from None

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

    def telling_place(self, sentence: Sentence) -> int | None:
        """The token that says most about a sentence: the usual one, if there is no better."""
        return self.usual_place(sentence)

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
        return f"−{self.measure(found)}"

    def measure(self, found: Pass) -> str:
        """What speaks for the answer of a pass, in words: its logarithmic probability."""
        return f"ln p({(self.answer(found) or '').strip()})"

    def answer(self, found: Pass) -> str | None:
        """What the answer of a pass is called, if there are several."""
        return self.names[found.question.answer]  # type: ignore[attr-defined]

    def p(self, found: Pass) -> float | None:
        """The probability of the answer of a pass, if there are several."""
        return float(found.probabilities[found.question.answer])  # type: ignore[attr-defined]

    def best(self, found: Pass, count: int) -> list[dict[str, Any]]:
        """The likeliest answers, best first, each with its ``number`` and its probability ``p``."""
        known = found.probabilities[: len(self.names)]
        order = np.argsort(-known, kind="stable")[:count]
        return [{"token": self.names[i], "number": int(i), "p": float(known[i])} for i in order]


class Words(Subject):
    """A model for masked words: which token stands at a place?

    Two texts in which no word is hidden are for its head for the next sentence, if it has one.
    """

    by_word = True

    def __init__(self, model: BertForPreTraining, tokenizer: PretrainedTokenizer):
        masked_word_head(model)
        super().__init__(model, tokenizer)
        texts = map(tokenizer.token_text, range(len(tokenizer)))
        self._names = [text if text.strip() else tokenizer.tokens[i] for i, text in enumerate(texts)]
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

    def __init__(
        self, model: BertForSequenceClassification, tokenizer: PretrainedTokenizer, task: Task | None = None
    ):
        super().__init__(model, tokenizer, task)
        self._names = label_names(model)

    @property
    def names(self) -> Sequence[str]:
        """Those in the configuration."""
        return self._names

    def question(self, place: int | None, number: int) -> Question:
        """Which label has the text?"""
        return Label(number)


class OwnLabels(Labels):
    """A model that gives a text any of K labels, which do not exclude each other."""

    def question(self, place: int | None, number: int) -> Question:
        """Has the text this label?"""
        return OwnLabel(number)


class Numbers(Subject):
    """A model that gives a text, or a pair, a number, or several. The loss is that number itself.

    ``names`` are those of the numbers, if there are several.
    """

    sign = 1.0

    def __init__(
        self, model: Any, tokenizer: PretrainedTokenizer, task: Task | None = None, names: Sequence[str] = ()
    ):
        super().__init__(model, tokenizer, task)
        self._names = names

    @property
    def names(self) -> Sequence[str]:
        """Those of the numbers; none, if there is only one."""
        return self._names

    def ask(self, sentence: Sentence, place: int | None, answer: str | None, *_: Any, **__: Any) -> Question:
        """The number of this name, by default the first. Raises UserError if there is none."""
        if not self.names:
            refuse_answer(answer)
        return Score(0 if answer is None else self.number_of(answer))

    def told(self, found: Pass) -> str:
        """The loss is what the model answers."""
        return self.measure(found)

    def measure(self, found: Pass) -> str:
        """What the model answers."""
        name = self.answer(found)
        return "the number that it gives" if name is None else f"the number {name!r}"

    def answer(self, found: Pass) -> str | None:
        """Which number it is, if there are several."""
        return super().answer(found) if self.names else None

    def p(self, found: Pass) -> None:
        """A number is not one of several answers."""


class Tags(Labels):
    """A model that gives each word one of K tags, at its first token.

    All probabilities are those of the word by itself. With a CRF, the tags that are asked about are those of
    the likeliest sequence.
    """

    by_word = True

    def encode(self, text: str, second: str | None = None) -> Sentence:
        """A text whose words are what is between its spaces, as the task reads it."""
        if second is not None:
            raise UserError("words are tagged in one text, not in two; give one")
        return encode_pieces(self.tokenizer, [text], [pieces_of_words(self.tokenizer, text)], self.max_length)

    def ask(
        self, sentence: Sentence, place: int | None, answer: str | None, changes: Sequence[Observer] = ()
    ) -> Question:
        """As ``Subject.ask``; with a CRF, the tag that it gives the word."""
        question = super().ask(sentence, place, answer, changes)
        assert isinstance(question, Label) and question.place is not None
        places = [word.places[0] for word in sentence.words]
        if answer is not None or not self.model.config.crf or question.place not in places:
            return question
        return replace(question, answer=int(self._tags(sentence, changes)[0][question.place]))

    def usual_place(self, sentence: Sentence) -> int:
        """The first word."""
        return self.tokenizer.special_counts(1)[0] if len(sentence) > 2 else 0

    def telling_place(self, sentence: Sentence) -> int:
        """The word whose tag is most certain among those with another tag than O, if there are any."""
        if not sentence.words:
            return self.usual_place(sentence)
        places = [word.places[0] for word in sentence.words]
        tags, p = (x[places] for x in self._tags(sentence))  # (W,), (W, K)
        certain = np.take_along_axis(p, tags[:, None], axis=1)[:, 0]
        named = np.array([self.names[tag] != "O" for tag in tags])
        return places[int(np.where(named, certain, certain * (not named.any())).argmax())]

    def _tags(self, sentence: Sentence, changes: Sequence[Observer] = ()) -> tuple[np.ndarray, np.ndarray]:
        """The tag of each word, at its first token, (S,); the probabilities of all at each token, (S, K)."""
        assert isinstance(self.model, BertForTokenClassification)
        logits = self.model.forward(**sentence.batch, context=context_with(*changes))[0].logits  # (1, S, K)
        chosen = np.zeros((1, len(sentence)), bool)
        chosen[0, [word.places[0] for word in sentence.words]] = True
        return self.model.best_tags(logits, chosen)[0], to_numpy(ops.softmax(logits)[0])[0]

    def question(self, place: int | None, number: int) -> Question:
        """Which tag has the token there?"""
        return Label(number, place)


class Spans(Subject):
    """A model that finds the answer to a question, the first text, in a passage, the second."""

    names: Sequence[str] = ()

    def encode(self, text: str, second: str | None = None) -> Sentence:
        """The question and the passage. Raises UserError without a passage, or with an empty one.

        Of a passage that needs several windows, it is the window with the best answer.
        """
        if second is None or not self.tokenizer.tokenize(second):
            raise UserError("a question is answered from a passage; give it as the second text")
        texts, pieces = [text, second], [pieces_of(self.tokenizer, each) for each in (text, second)]
        starts = None
        if isinstance(self.task, AnswerQuestions):
            pieces, starts = self._window(self.task, text, second, *pieces)
        return replace(encode_pieces(self.tokenizer, texts, pieces), starts=starts)

    def _window(
        self, task: AnswerQuestions, text: str, second: str, asked: Pieces, passage: Pieces
    ) -> tuple[list[Pieces], np.ndarray]:
        """The question and the part of the passage that the task answers it from; where answers may begin."""
        assert isinstance(self.model, BertForQuestionAnswering)
        options, asked = task.options, asked.part(0, task.options.max_question)
        windows = task.features([task.example(text, second, Place("the text", 1))], training=False)
        scored = task.window_scores(self.model, windows, 1)
        best = int(np.argmax([scores.span_scores(options.max_answer).max() for scores in scored]))
        room = options.max_length - len(asked.ids) - sum(self.tokenizer.special_counts(2))
        part = passage.part(*window_places(len(passage.ids), room, options.stride)[best])
        return [asked, part], windows[best].max_context

    def ask(
        self, sentence: Sentence, place: int | None, answer: str | None, changes: Sequence[Observer] = ()
    ) -> Question:
        """Where does the best answer start and end? Raises UserError for an ``answer``: none can be named."""
        refuse_answer(answer)
        found = run(self.model, sentence, Span(0, 0), changes=changes, names=[], backward=False)
        return Span(*self._spans(found)[0][:2])

    def answer(self, found: Pass) -> str:
        """The text of the span; p is the product for both ends."""
        assert isinstance(found.question, Span)
        return self._text(found, found.question.start, found.question.end)

    def p(self, found: Pass) -> float:
        """The product for both ends."""
        return float(np.exp(-found.loss))

    def best(self, found: Pass, count: int) -> list[dict[str, Any]]:
        """The likeliest spans."""
        best = enumerate(self._spans(found)[:count])
        return [{"token": self._text(found, a, b), "number": i, "p": p} for i, (a, b, p) in best]

    def _text(self, found: Pass, start: int, end: int) -> str:
        """What the tokens stand for, with one space where the passage has any."""
        text, end_of_last = "", None
        for piece in found.sentence.pieces:
            if start <= piece.places[0] <= end:
                text += " " * (end_of_last is not None and piece.start > end_of_last) + piece.text
                end_of_last = piece.stop
        return text

    def _spans(self, found: Pass) -> list[tuple[int, int, float]]:
        """Spans of the passage that the task takes for answers, by both ends' probability, best first."""
        pieces = found.sentence.pieces
        passage = [piece.places[0] for piece in pieces if piece.source == pieces[-1].source]
        first, stop = passage[0], passage[-1] + 1
        start, end = found.probabilities[:, first:stop]  # (P,) each
        longest = self.task.options.max_answer if isinstance(self.task, AnswerQuestions) else LONGEST_SPAN
        allowed = np.triu(np.tri(len(end), k=longest - 1))  # pairs (from, to), to ≥ from
        if found.sentence.starts is not None:
            allowed *= found.sentence.starts[first:stop, None]
        spans = np.argwhere(allowed)
        p = start[spans[:, 0]] * end[spans[:, 1]]
        order = np.argsort(-p, kind="stable")[:100]
        return [
            (first + int(a), first + int(b), float(p[i]))
            for i, (a, b) in zip(order, spans[order], strict=True)
        ]


class Similar(Subject):
    """A sentence encoder: how near is a text's vector to that of a second one, which is a constant here?"""

    names: Sequence[str] = ()
    offset = 1.0
    in_turn = True

    def encode(self, text: str, second: str | None = None) -> Sentence:
        """The first text. Raises UserError without a second."""
        if second is None:
            raise UserError("a sentence encoder compares two texts; give a second one")
        return replace(encode(self.tokenizer, text, max_length=self.max_length), other=second)

    def ask(self, sentence: Sentence, place: int | None, answer: str | None, *_: Any, **__: Any) -> Question:
        """There is only one question. Raises UserError for an answer, which cannot be chosen."""
        refuse_answer(answer)
        assert isinstance(self.model, SentenceEncoder) and sentence.other is not None
        self.model.eval()
        other = encode(self.tokenizer, sentence.other, max_length=self.max_length)
        return Cosine(self.model.forward(**other.batch)[0].embeddings)

    def told(self, found: Pass) -> str:
        """The loss is smallest for the same direction."""
        return f"1 − {self.measure(found)}"

    def measure(self, found: Pass) -> str:
        """How near the texts are."""
        return "cosine to the other text"

    def answer(self, found: Pass) -> None:
        """There is only one."""

    def p(self, found: Pass) -> None:
        """There is only one."""


def label_names(model: BertForSequenceClassification | BertForTokenClassification) -> list[str]:
    """What the labels, or the numbers, of a model are called."""
    return model.config.labels


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

    Raises UserError for a folder with neither, and for a head on features that were computed once.
    """
    path = model_folder(folder)
    if (path / TASK_FILE).is_file() or any(task.recognises(path) for task in TASKS.values()):
        task, model = open_task(folder, **options)
        if model.config.feature_layers:
            raise UserError(
                f"{folder} was trained with --features: only its head has learned, and no derivative reaches "
                "the words; to look into it, fine-tune a model without --features"
            )
        if isinstance(model, BertForSequenceClassification) and model.config.is_regression:
            names = label_names(model) if model.config.num_labels > 1 else ()
            return Numbers(model, task.tokenizer, task, names)
        if isinstance(model, BertForSequenceClassification) and model.config.problem_type == MULTI_LABEL:
            return OwnLabels(model, task.tokenizer, task)
        made = next(made for kind, made in SUBJECTS.items() if isinstance(model, kind))
        return made(model, task.tokenizer, task)
    model = _class_for_words(path).from_pretrained(path, complete=True, **options)
    return Words(model, open_tokenizer(path))


def _class_for_words(folder: Path) -> type[BertForPreTraining]:
    """With the head for the next sentence, if the folder has one."""
    models = family(folder).models
    both = models.get(BertForPreTraining)
    if both and name_in_file(NEXT_SENTENCE, both.tensor_names) in open_weights(folder):
        return both  # type: ignore[return-value]  # each is a subclass of its kind
    return model_class(BertForMaskedLM, folder)
