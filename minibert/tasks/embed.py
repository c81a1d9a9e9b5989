"""Turning texts into vectors that can be compared by their cosine."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from minibert.arrays import to_numpy
from minibert.assets import model_folder
from minibert.data.tasks import USUAL_BATCH, Feature, ordered_batches, single_features
from minibert.errors import UserError
from minibert.files import read_json
from minibert.folders.config import HEAD_FIELDS
from minibert.heads import SentenceEncoder
from minibert.heads.outputs import SentenceOutput
from minibert.nn import Context
from minibert.ranks import Ranks
from minibert.tasks.shared import check_texts, share_out
from minibert.text import PretrainedTokenizer, open_tokenizer
from minibert.text.words import Pieces, pieces_of
from minibert.variants import open_model

# Where the sentence-transformers library finds the length that texts are cut to: {"max_seq_length": tokens}.
LENGTH_FILE = "sentence_bert_config.json"
COMBINE = ("mean", "concat", "none")  # several layers
WORD_POOLING = ("mean", "first")  # several tokens of a word
BATCHES_HELD = 4  # whose word vectors are in memory at a time


@dataclass(frozen=True)
class WordChoice:
    """Which vectors of words are wanted.

    ``layers`` are numbers of hidden states: 0 is the output of the embeddings, L the last layer, −1 the last
    too. Several are averaged ("mean"), put one after the other ("concat"), or kept apart ("none"), as
    ``combine`` says. A word of several tokens has their mean, or the vector of its first one, as ``pooling``
    says (Devlin et al. 2019, section 5.4, take the first); with ``pieces``, every token has its own vector.
    Raises UserError for what is none of these.
    """

    layers: tuple[int, ...] = (-1,)
    combine: str = "mean"
    pooling: str = "mean"
    pieces: bool = False

    def __post_init__(self) -> None:
        for name, known in (("combine", COMBINE), ("pooling", WORD_POOLING)):
            if getattr(self, name) not in known:
                raise UserError(f"{name} is {getattr(self, name)!r}; expected one of {', '.join(known)}")
        if not isinstance(self.layers, Sequence) or any(type(layer) is not int for layer in self.layers):
            raise UserError(f"layers is {self.layers!r}; expected whole numbers, for instance (-1,)")
        if not self.layers:
            raise UserError("no layers; give at least one, for instance -1")

    def numbers(self, count: int) -> tuple[int, ...]:
        """The layers, from 0, of a model with ``count``.

        Raises UserError for one that it does not have, and for one that is given twice.
        """
        for layer in self.layers:
            if not -count - 1 <= layer <= count:
                raise UserError(
                    f"there is no layer {layer}; expected 0 (the embeddings) to {count} (the last layer), or "
                    f"-1 to -{count + 1}, the same from the end"
                )
        numbers = tuple(layer % (count + 1) for layer in self.layers)
        if len(set(numbers)) < len(numbers):
            given = ", ".join(map(str, self.layers))
            raise UserError(f"of the layers {given} some are the same one; give each once")
        return numbers

    def shape(self, hidden: int) -> tuple[int, ...]:
        """The shape of a vector made of K states of the size H: (H,), (K·H,) or (K, H)."""
        count = len(self.layers)
        return {"mean": (hidden,), "concat": (count * hidden,), "none": (count, hidden)}[self.combine]

    def combined(self, states: Sequence[np.ndarray]) -> np.ndarray:
        """K states (…, H) → vectors (…, *shape)."""
        if self.combine == "concat":
            return np.concatenate(states, axis=-1)
        return np.mean(states, axis=0) if self.combine == "mean" else np.stack(states, axis=-2)


@dataclass(frozen=True, eq=False)
class WordVectors:
    """The N words of some texts, with their vectors, in their order.

    ``texts`` (N,) are the numbers of the texts, from 0; ``spans`` (N, 2) the characters text[start:stop] of
    each word; ``vectors`` (N, H) float32, (N, K·H) of concatenated layers, (N, K, H) of layers kept apart.
    ``layers`` are the numbers of these layers. Of ``cut`` texts the end was not read.
    """

    texts: np.ndarray
    words: list[str]
    spans: np.ndarray
    vectors: np.ndarray
    layers: tuple[int, ...]
    cut: int


@dataclass(frozen=True)
class TextEncoder:
    """A sentence encoder with its tokenizer, and the number of tokens that texts are cut to.

    ``folder`` is where it was read from, "" if it was not. Several ``ranks`` share the texts out.
    """

    model: SentenceEncoder
    tokenizer: PretrainedTokenizer
    max_length: int
    folder: str = ""
    ranks: Ranks = field(default_factory=Ranks)

    @classmethod
    def open(cls, folder: str | Path, *, max_length: int | None = None, **options: Any) -> "TextEncoder":
        """The encoder in a folder: any BERT, or one of the sentence-transformers library.

        ``options`` go to ``SentenceEncoder.from_pretrained``: pooling and normalise, by default as the folder
        says (mean and no, if it does not), and device. ``max_length`` is by default what the folder says in
        ``sentence_bert_config.json``, else as many tokens as the tokenizer's ``model_max_length`` and the
        model's positions allow.

        Raises UserError if the folder's parts do not fit together, and for a max_length that does not fit.
        """
        folder = model_folder(folder)
        model = open_model(SentenceEncoder, folder, **options)
        tokenizer = open_tokenizer(folder)
        positions = model.config.longest_sequence
        tokenizer.check_size(model.config.vocab_size)
        if not tokenizer.lowercase and _stated(folder).get("do_lower_case") is True:
            raise UserError(
                f"{folder / LENGTH_FILE}: do_lower_case is not supported with a cased vocabulary; use "
                "another model"
            )
        limit = min(positions, tokenizer.model_max_length or positions)
        length = (stated_length(folder) or limit) if max_length is None else max_length
        if not 3 <= length <= positions:
            raise UserError(
                f"{folder}: max_length is {length}; expected 3 to {positions}, the model's positions"
            )
        return cls(model, tokenizer, length, str(folder.resolve()))

    @property
    def dimension(self) -> int:
        """H, the length of a vector."""
        return self.model.config.hidden_size

    def embed(
        self, texts: Sequence[str], batch_size: int | None = None, progress: bool = False
    ) -> np.ndarray:
        """The vectors of texts, in their order: (N, H) float32 on the host.

        Equal texts are computed once, texts of similar length together, of short ones more at a time unless
        there is a ``batch_size`` (see `ordered_batches`). Leaves the model in evaluation mode.

        Raises UserError for a single text, and for anything else that is no list of texts.
        """
        check_texts(texts)
        self.model.eval()
        rows_of = {text: row for row, text in enumerate(dict.fromkeys(texts))}
        features = single_features(list(rows_of), self.tokenizer, self.max_length)
        vectors = np.empty((len(features), self.dimension), np.float32)
        with tqdm(total=len(features), unit=" texts", disable=None if progress else True) as bar:
            batches = ordered_batches(features, batch_size, self.tokenizer.pad_id)
            for rows, output in share_out(batches, self._forward, self.ranks, self.model.device):
                vectors[rows] = to_numpy(output.embeddings)
                bar.update(len(rows))
        return vectors[[rows_of[text] for text in texts]]

    def _forward(self, batch: Mapping[str, Any], **asked: bool) -> SentenceOutput:
        return self.model.forward(**batch, **asked, context=Context(backward=False))[0]

    def word_vectors(
        self,
        texts: Sequence[str],
        choice: WordChoice | None = None,
        batch_size: int | None = None,
        progress: bool = False,
    ) -> Iterator[WordVectors]:
        """The vectors of all words of texts, some texts at a time, so that few are in memory.

        Special tokens have none. What is beyond ``max_length`` tokens of a text is left out. Leaves the model
        in evaluation mode. Raises UserError for what is no list of texts, for layers that the model does not
        have, and for a batch size below 1.
        """
        check_texts(texts)
        if batch_size is not None and batch_size < 1:
            raise UserError(f"batch size must be at least 1, got {batch_size}")
        choice = choice or WordChoice()
        layers = choice.numbers(self.model.config.num_hidden_layers)
        self.model.eval()
        size = (batch_size or USUAL_BATCH) * BATCHES_HELD
        with tqdm(total=len(texts), unit=" texts", disable=None if progress else True) as bar:
            for start in range(0, len(texts), size):
                yield self._word_vectors(texts[start : start + size], start, choice, layers, batch_size)
                bar.update(min(size, len(texts) - start))

    def _word_vectors(
        self,
        texts: Sequence[str],
        first: int,
        choice: WordChoice,
        layers: tuple[int, ...],
        batch_size: int | None,
    ) -> WordVectors:
        """Those of a few texts, of which the first has the number ``first``."""
        found = [pieces_of(self.tokenizer, text) for text in texts]
        room = self.max_length - sum(self.tokenizer.special_counts(1))
        kept = [pieces.part(0, room) for pieces in found]
        states = self._piece_vectors(kept, choice, layers, batch_size)
        starts = [_starts(pieces, choice) for pieces in kept]
        spans = np.concatenate([_word_spans(*both) for both in zip(kept, starts, strict=True)])
        owners = np.repeat(np.arange(len(texts)), [len(own) for own in starts])
        vectors = np.concatenate([pooled(*each, choice) for each in zip(states, kept, strict=True)])
        places = zip(owners.tolist(), spans.tolist(), strict=True)
        words = [texts[owner][start:stop] for owner, (start, stop) in places]
        # RoBERTa has tokens of blanks, which are no words.
        real = [number for number, word in enumerate(words) if choice.pieces or word.strip()]
        return WordVectors(
            texts=first + owners[real],
            words=[words[number] for number in real],
            spans=spans[real],
            vectors=vectors[real],
            layers=layers,
            cut=sum(len(pieces.ids) > room for pieces in found),
        )

    def _piece_vectors(
        self, texts: Sequence[Pieces], choice: WordChoice, layers: tuple[int, ...], batch_size: int | None
    ) -> list[np.ndarray]:
        """The vectors of all tokens of each text, special ones left out: (T, …) each."""
        features = []
        for number, pieces in enumerate(texts):
            ids, types = self.tokenizer.with_special_tokens(pieces.ids)
            inputs = {"input_ids": np.array(ids, np.int32), "token_type_ids": np.array(types, np.int32)}
            features.append(Feature(inputs, number))
        before, vectors = self.tokenizer.special_counts(1)[0], [np.empty(0)] * len(texts)
        for rows, batch in ordered_batches(features, batch_size, self.tokenizer.pad_id):
            hidden = self._forward(batch, return_hidden_states=True).hidden_states
            assert hidden is not None  # it was asked for
            states = choice.combined([to_numpy(hidden[layer]).astype(np.float32) for layer in layers])
            for row, state in zip(rows, states, strict=True):  # (S, …)
                vectors[row] = state[before : before + len(texts[row].ids)].copy()  # lets go of the padding
        return vectors

    @cached_property
    def digest(self) -> str:
        """A fingerprint of all that a vector's direction depends on: encoders with the same one agree.

        It is made from the parameters, the configuration, the vocabulary and its options, pooling and
        max_length. What the configuration says of other heads does not count, nor do names of folders or
        ``normalise``, which only changes a vector's length.
        """
        digest = hashlib.sha256()
        for name, parameter in sorted(self.model.named_parameters()):
            digest.update(name.encode())
            digest.update(np.ascontiguousarray(to_numpy(parameter.value), "<f4").data)
        config = self.model.config
        encoder = {name: value for name, value in config.to_dict().items() if name not in HEAD_FIELDS}
        told = [encoder, self.model.pooling, self.max_length, *self.tokenizer.definition()]
        digest.update(json.dumps(told).encode())
        return digest.hexdigest()


def check_finite(vectors: np.ndarray) -> None:
    """Raise UserError if a vector has numbers that cannot be compared."""
    if not np.isfinite(vectors).all():
        raise UserError(
            "the model gives vectors with NaN or infinity, as after training that diverged; take another one"
        )


def stated_length(folder: Path) -> int | None:
    """The length in a folder's ``sentence_bert_config.json``, if there is one."""
    length = _stated(folder).get("max_seq_length")
    if length is not None and type(length) is not int:
        raise UserError(
            f"{folder / LENGTH_FILE}: max_seq_length should be a number of tokens, found {length!r}"
        )
    return length


def _stated(folder: Path) -> dict[str, Any]:
    """What a folder's ``sentence_bert_config.json`` says, if there is one."""
    path = folder / LENGTH_FILE
    values = read_json(path, "configuration of a sentence encoder") if path.is_file() else {}
    return values if isinstance(values, dict) else {}


def pooled(states: np.ndarray, pieces: Pieces, choice: WordChoice) -> np.ndarray:
    """The vectors of a text's T tokens, (T, …), as those of its W words, (W, …): their mean, or the first."""
    starts = _starts(pieces, choice)
    if choice.pieces or choice.pooling == "first" or not len(starts):
        return states[starts]
    counts = np.diff([*starts, len(states)]).astype(states.dtype)
    return np.add.reduceat(states, starts, axis=0) / counts.reshape(-1, *[1] * (states.ndim - 1))


def _starts(pieces: Pieces, choice: WordChoice) -> np.ndarray:
    """The first token of each word: (W,)."""
    owners = np.arange(len(pieces.ids)) if choice.pieces else pieces.words
    return np.flatnonzero(np.diff(owners, prepend=-1))


def _word_spans(pieces: Pieces, starts: np.ndarray) -> np.ndarray:
    """The characters of each word: (W, 2)."""
    last = np.append(starts[1:], len(pieces.ids)) - 1 if len(starts) else starts
    return np.stack([pieces.spans[starts, 0], pieces.spans[last, 1]], axis=1)
