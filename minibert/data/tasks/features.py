"""Examples encoded as what the models read: texts, pairs of texts, tagged words."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from minibert.data.masking import IGNORED
from minibert.data.tasks.conll import TaggedSentence
from minibert.data.tasks.tables import TextExample
from minibert.errors import UserError
from minibert.text import PretrainedTokenizer
from minibert.text.tokenizer import truncate


class TextsCut(UserWarning):
    """Says how many texts were too long for a max_length. Only the commands show it."""


warnings.simplefilter("ignore", TextsCut)  # whoever gives a max_length in Python knows what it does


@dataclass(frozen=True, eq=False)
class Feature:
    """One row of a batch, before padding. ``inputs`` are by the names of the models' arguments.

    input_ids and token_type_ids are (S,) int32; what else there is depends on the task: numbers, or arrays
    (S,) too. ``example`` is the index of the example that the row is made from.
    """

    inputs: dict[str, Any]
    example: int

    def __len__(self) -> int:
        """Tokens, special ones included: S."""
        return len(self.inputs["input_ids"])


class PairFeature(Feature):
    """Two texts, each a row of its own: ``inputs`` holds them as ``first`` and ``second``."""

    def __len__(self) -> int:
        """Tokens of both."""
        return len(self.inputs["first"]) + len(self.inputs["second"])


@dataclass(frozen=True, eq=False)
class TaggedFeature(Feature):
    """A run of words of a sentence: ``positions`` (n,) are those of their first subwords."""

    first_word: int  # of the run, in its sentence
    positions: np.ndarray


def text_features(
    examples: Sequence[TextExample],
    tokenizer: PretrainedTokenizer,
    max_length: int,
    label_ids: Mapping[str, int] | None = None,
) -> list[Feature]:
    """[CLS] text [SEP] or [CLS] text [SEP] text_pair [SEP], a row per example, cut to ``max_length`` tokens.

    Of a pair, the longer text is cut at its end until both fit. If they are equally long, the first is cut
    first, as in transformers (google-bert: the second). A warning, `TextsCut`, says how many were cut.
    ``labels``, if there are any, are the labels' ids or the scores.
    """
    rows = _rows(tokenizer, [(example.text, example.text_pair) for example in examples], max_length)
    features = []
    for index, (example, inputs) in enumerate(zip(examples, rows, strict=True)):
        if isinstance(example.label, float):
            inputs["labels"] = example.label
        elif example.label is not None and label_ids is not None:
            inputs["labels"] = label_ids[example.label]
        features.append(Feature(inputs, index))
    return features


def single_features(texts: Sequence[str], tokenizer: PretrainedTokenizer, max_length: int) -> list[Feature]:
    """[CLS] text [SEP], one row per text, cut to ``max_length`` tokens, of which `TextsCut` warns."""
    rows = _rows(tokenizer, [(text, None) for text in texts], max_length)
    return [Feature(inputs, index) for index, inputs in enumerate(rows)]


def pair_features(
    examples: Sequence[TextExample], tokenizer: PretrainedTokenizer, max_length: int
) -> list[PairFeature]:
    """Two rows per example, ``first`` and ``second``, each [CLS] text [SEP], cut to ``max_length`` tokens.

    A warning, `TextsCut`, says how many were cut. ``labels``, if there are any, are the scores.
    """
    rows = iter(_rows(tokenizer, [(text, None) for example in examples for text in example.pair], max_length))
    features = []
    for index, example in enumerate(examples):
        scored = {} if example.label is None else {"labels": example.label}
        pair = {"first": Feature(next(rows), index), "second": Feature(next(rows), index)}
        features.append(PairFeature(pair | scored, index))
    return features


def _rows(
    tokenizer: PretrainedTokenizer, texts: Sequence[tuple[str, str | None]], max_length: int
) -> list[dict[str, Any]]:
    """The inputs of each text or pair, cut to ``max_length`` tokens."""
    rows, cut = [], 0
    for text, text_pair in texts:
        whole = tokenizer.token_ids_batch([text, text_pair] if text_pair else [text])
        kept = truncate(whole, tokenizer.room(max_length, len(whole)), "longest_first")
        cut += sum(map(len, kept)) < sum(map(len, whole))
        ids, types = tokenizer.with_special_tokens(*kept)
        rows.append({"input_ids": np.array(ids, np.int32), "token_type_ids": np.array(types, np.int32)})
    warn_of_cut(cut, len(rows), max_length)
    return rows


def warn_of_cut(cut: int, count: int, max_length: int) -> None:
    """Warn (`TextsCut`), if any of ``count`` texts or pairs were cut, how many."""
    if cut:
        warnings.warn(
            f"{cut:,} of {count:,} texts have more than {max_length} tokens (max_length); "
            "their ends are not read",
            TextsCut,
            stacklevel=4,
        )


def tagged_features(
    sentences: Sequence[TaggedSentence],
    tokenizer: PretrainedTokenizer,
    max_length: int,
    label_ids: Mapping[str, int] | None = None,
) -> list[TaggedFeature]:
    """[CLS] words [SEP]; a sentence that is too long gives several rows, cut between words.

    A word's label is at its first subword; elsewhere ``labels`` (S,) is −100. No word is lost: one without
    subwords (of control characters, say) is [UNK], and one that does not fit into a row of its own is cut.
    Raises UserError for a ``max_length`` below 3.
    """
    before, after = tokenizer.special_counts(1)
    room = max_length - before - after
    if room < 1:
        raise UserError(f"max_length {max_length} leaves no room for words; give at least 3")
    features = []
    for index, sentence in enumerate(sentences):
        pieces = [(tokenizer.word_token_ids(word) or [tokenizer.unk_id])[:room] for word in sentence.words]
        for start, stop in _runs([len(word) for word in pieces], room):
            ids, types = tokenizer.with_special_tokens([i for word in pieces[start:stop] for i in word])
            positions = before + np.cumsum([0, *(len(word) for word in pieces[start : stop - 1])])
            inputs = {"input_ids": np.array(ids, np.int32), "token_type_ids": np.array(types, np.int32)}
            if sentence.tags is not None and label_ids is not None:
                inputs["labels"] = np.full(len(ids), IGNORED, np.int32)
                inputs["labels"][positions] = [label_ids[tag] for tag in sentence.tags[start:stop]]
            features.append(TaggedFeature(inputs, index, start, positions))
    return features


def _runs(lengths: Sequence[int], room: int) -> list[tuple[int, int]]:
    """Cut words of these ``lengths`` into runs (start, stop), each of as many words as fit into ``room``."""
    runs, start, used = [], 0, 0
    for word, length in enumerate(lengths):
        if used + length > room:
            runs.append((start, word))
            start, used = word, 0
        used += length
    return [*runs, (start, len(lengths))]
