"""Turning texts into vectors that can be compared by their cosine."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from minibert.arrays import to_numpy
from minibert.assets import model_folder
from minibert.data.tasks import TextExample, ordered_batches, single_features
from minibert.errors import UserError
from minibert.files import atomic_file, read_json
from minibert.heads import SentenceEncoder
from minibert.ranks import Ranks
from minibert.tasks.shared import share_out
from minibert.text import PretrainedTokenizer, open_tokenizer
from minibert.variants import open_model

# Where the sentence-transformers library finds the length that texts are cut to: {"max_seq_length": tokens}.
LENGTH_FILE = "sentence_bert_config.json"
OUTPUTS = (".npy", ".npz", ".jsonl")


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
        tokenizer = open_tokenizer(folder)
        model = open_model(SentenceEncoder, folder, **options)
        positions = model.config.longest_sequence
        tokenizer.check_size(model.config.vocab_size)
        limit = min(positions, tokenizer.model_max_length or positions)
        length = (_stated_length(folder) or limit) if max_length is None else max_length
        if not 3 <= length <= positions:
            raise UserError(
                f"{folder}: max_length is {length}; expected 3 to {positions}, the model's positions"
            )
        return cls(model, tokenizer, length, str(folder.resolve()))

    @property
    def dimension(self) -> int:
        """H, the length of a vector."""
        return self.model.config.hidden_size

    def embed(self, texts: Sequence[str], batch_size: int = 32, progress: bool = False) -> np.ndarray:
        """The vectors of texts, in their order: (N, H) float32 on the host.

        Equal texts are computed once, texts of similar length together. Leaves the model in evaluation mode.
        """
        self.model.eval()
        rows_of = {text: row for row, text in enumerate(dict.fromkeys(texts))}
        features = single_features(list(rows_of), self.tokenizer, self.max_length)
        vectors = np.empty((len(features), self.dimension), np.float32)
        with tqdm(total=len(features), unit=" texts", disable=None if progress else True) as bar:
            batches = ordered_batches(features, batch_size, self.tokenizer.pad_id)
            for rows, output in share_out(batches, lambda batch: self.model.forward(**batch)[0], self.ranks):
                vectors[rows] = to_numpy(output.embeddings)
                bar.update(len(rows))
        return vectors[[rows_of[text] for text in texts]]

    @cached_property
    def digest(self) -> str:
        """A fingerprint of all that a vector's direction depends on: encoders with the same one agree.

        It is made from the parameters, the vocabulary and its options, pooling and max_length. Names of
        folders do not count, nor does ``normalise``, which only changes a vector's length.
        """
        digest = hashlib.sha256()
        for name, parameter in sorted(self.model.named_parameters()):
            digest.update(name.encode())
            digest.update(np.ascontiguousarray(to_numpy(parameter.value), "<f4").data)
        tokenizer = self.tokenizer
        options = [getattr(tokenizer, name) for name in tokenizer.config_keys if name != "model_max_length"]
        told = [self.model.pooling, self.max_length, tokenizer.tokens, options, *tokenizer.rules()]
        digest.update(json.dumps(told).encode())
        return digest.hexdigest()


def _stated_length(folder: Path) -> int | None:
    """The length in a folder's ``sentence_bert_config.json``, if there is one."""
    path = folder / LENGTH_FILE
    if not path.is_file():
        return None
    values = read_json(path, "configuration of a sentence encoder")
    length = values.get("max_seq_length") if isinstance(values, dict) else None
    if length is not None and type(length) is not int:
        raise UserError(f"{path}: max_seq_length should be a number of tokens, found {length!r}")
    return length


def write_vectors(path: str | Path, texts: Sequence[TextExample], vectors: np.ndarray) -> None:
    """Write vectors (N, H) to a file, in the format that its suffix tells.

    ``.npy``: the array. ``.npz``: the arrays ``vectors`` and ``lines`` (N,), the number of each text's line
    in its file. ``.jsonl``: an object per text, with line, text and vector. Raises UserError for another
    suffix.
    """
    path = Path(path)
    check_output(path)
    lines = [text.place.line for text in texts]
    with atomic_file(path) as file:
        if path.suffix == ".npy":
            np.save(file, vectors)
        elif path.suffix == ".npz":
            np.savez(file, vectors=vectors, lines=np.array(lines))
        else:
            for line, text, vector in zip(lines, texts, vectors, strict=True):
                numbers = [float(str(number)) for number in vector]  # as few digits as identify a float32
                row = {"line": line, "text": text.text, "vector": numbers}
                file.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")


def check_output(path: str | Path) -> None:
    """Raise UserError if ``write_vectors`` does not know how to write a file of this name."""
    if Path(path).suffix not in OUTPUTS:
        raise UserError(f"{path}: unknown format for vectors; the suffix must be one of {', '.join(OUTPUTS)}")
