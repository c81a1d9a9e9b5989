"""Where words stand in sentences, and the vectors that a pretrained encoder gives them there."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from examples.elmo import BidirectionalLM
from minibert.arrays import to_numpy
from minibert.data import open_corpus
from minibert.data.randomness import scalar_generator
from minibert.data.tasks.feature_batches import ordered_batches
from minibert.data.tasks.features import Feature
from minibert.errors import UserError
from minibert.tasks.embed import TextEncoder
from minibert.text import PretrainedTokenizer
from minibert.text.normalise import Normaliser

BATCH_SIZE = 64


@dataclass(frozen=True)
class Use:
    """A word in a sentence: text[start:stop]."""

    text: str
    start: int
    stop: int

    @classmethod
    def of(cls, word: int, sentence: str, normaliser: Normaliser) -> "Use":
        """The use of the word of this number, as the normaliser counts the words of a sentence."""
        _, sources = normaliser.words_with_sources(sentence)[word]
        return cls(sentence, sources[0], sources[-1] + 1)

    @classmethod
    def alone(cls, word: str) -> "Use":
        """The word without a sentence."""
        return cls(word, 0, len(word))


def sample_uses(
    paths: Sequence[str | Path], words: Iterable[str], count: int, most_words: int | None, seed: int = 0
) -> dict[str, list[Use]]:
    """Up to ``count`` random uses of each word in the sentences of a corpus.

    Every use has the same chance (Vitter 1985, algorithm R). Words are in lower case. Only about the first
    ``most_words`` words of the text are read.
    """
    normaliser, rng = Normaliser(), scalar_generator("uses of words", seed)
    chosen: dict[str, list[tuple[str, int]]] = {word: [] for word in words}  # sentence, number of the word
    seen = dict.fromkeys(chosen, 0)
    for sentence, found in _sentences(paths, normaliser, most_words):
        for number, word in enumerate(found):
            if word not in seen:
                continue
            seen[word] += 1
            if len(chosen[word]) < count:
                chosen[word].append((sentence, number))
            elif (place := rng.randrange(seen[word])) < count:
                chosen[word][place] = sentence, number
    return {
        word: [Use.of(number, sentence, normaliser) for sentence, number in places]
        for word, places in chosen.items()
    }


def _sentences(
    paths: Sequence[str | Path], normaliser: Normaliser, most_words: int | None
) -> Iterator[tuple[str, list[str]]]:
    """The sentences of a corpus, and their words and marks, until there are so many words."""
    read = 0
    for document in open_corpus(paths):
        for sentence in document:
            if most_words is not None and read >= most_words:
                return
            found = normaliser.words(sentence)
            read += sum(word[0].isalnum() for word in found)
            yield sentence, found


class Contextual:
    """Vectors of words in sentences: the mean hidden state of a word's tokens, from ``_states``."""

    def __init__(self, tokenizer: PretrainedTokenizer, max_length: int):
        self.tokenizer, self.max_length = tokenizer, max_length

    def _states(self, batch: Mapping[str, np.ndarray]) -> np.ndarray:
        """A batch of sentences (B, S) → hidden states (B, S, H)."""
        raise NotImplementedError

    def knows(self, word: str) -> bool:
        """Whether the vocabulary can spell the word."""
        ids = self.tokenizer.word_token_ids(word)
        return bool(ids) and self.tokenizer.unk_id not in ids

    def contextual(self, uses: Sequence[Use]) -> np.ndarray:
        """The hidden states of the words in their sentences, of several subwords the mean: (N, H)."""
        rows = [self._row(use) for use in uses]
        features = [Feature(inputs, index) for index, (inputs, _) in enumerate(rows)]
        found: dict[int, np.ndarray] = {}
        for indices, batch in ordered_batches(features, BATCH_SIZE, self.tokenizer.pad_id):
            for index, states in zip(indices, self._states(batch), strict=True):
                found[index] = states[rows[index][1]].mean(axis=0)
        return np.stack([found[index] for index in range(len(uses))])

    def mean_contextual(self, uses: Mapping[str, Sequence[Use]]) -> np.ndarray:
        """The mean over the uses of each word, of which there must be some: (N, H)."""
        vectors = self.contextual([use for each in uses.values() for use in each])
        ends = np.cumsum([len(each) for each in uses.values()])
        return np.stack([part.mean(axis=0) for part in np.split(vectors, ends[:-1])])

    def _row(self, use: Use) -> tuple[dict[str, np.ndarray], slice]:
        """[CLS] sentence [SEP], and the positions of the word, at whose end a sentence is cut if too long."""
        ids, spans = self.tokenizer.token_ids_with_spans(use.text)
        inside = [i for i, (start, stop) in enumerate(spans) if start < use.stop and stop > use.start]
        first, after = inside[0], inside[-1] + 1
        cut = max(0, after - (self.max_length - 2))
        kept = ids[cut : cut + self.max_length - 2]
        input_ids, types = self.tokenizer.with_special_tokens(kept)
        inputs = {"input_ids": np.array(input_ids, np.int32), "token_type_ids": np.array(types, np.int32)}
        return inputs, slice(1 + max(first - cut, 0), 1 + after - cut)


class Encoder(Contextual):
    """A pretrained encoder; its contextual vectors are the hidden states after ``layer`` (default: the last).

    Raises UserError if there is no such layer.
    """

    def __init__(self, folder: str | Path, layer: int | None = None):
        text_encoder = TextEncoder.open(folder)
        super().__init__(text_encoder.tokenizer, text_encoder.max_length)
        self.model = text_encoder.model
        self.layers = self.model.config.num_hidden_layers
        self.layer = self.layers if layer is None else layer
        if not 0 <= self.layer <= self.layers:
            raise UserError(f"{folder}: there is no layer {layer}; expected 0 (embeddings) to {self.layers}")

    def input_embeddings(self, words: Sequence[str]) -> np.ndarray:
        """Rows of the table of word embeddings, of several subwords the mean: (N, H)."""
        table = to_numpy(self.model.embeddings.word_embeddings.weight.value)
        return np.stack([table[self.tokenizer.word_token_ids(word)].mean(axis=0) for word in words])

    def _states(self, batch: Mapping[str, np.ndarray]) -> np.ndarray:
        outputs, _ = self.model.forward(**batch, return_hidden_states=True)
        return to_numpy(outputs.hidden_states[self.layer])


class LstmEncoder(Contextual):
    """LSTMs that read from both sides (``examples/elmo.py``): the states of their last layer."""

    def __init__(self, model: BidirectionalLM, tokenizer: PretrainedTokenizer, max_length: int):
        super().__init__(tokenizer, max_length)
        self.model = model

    def _states(self, batch: Mapping[str, np.ndarray]) -> np.ndarray:
        return self.model.hidden_states(batch["input_ids"], batch["attention_mask"])[-1]
