"""Fingerprints: a run knows the models again that it began with, and an index the encoder of its vectors."""

import hashlib
import json
from pathlib import Path
from typing import Any

from minibert.assets import model_folder
from minibert.folders.weights import open_weights
from minibert.text import PretrainedTokenizer, open_tokenizer


def fingerprint(folder: str | Path) -> str:
    """SHA-256 of a model's files of weights and of its tokenizer. Raises UserError if they cannot be read."""
    digest = hashlib.sha256(json.dumps(describe_tokenizer(open_tokenizer(folder))).encode())
    for path in sorted({tensor.file for tensor in open_weights(model_folder(folder)).values()}):
        with open(path, "rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def describe_tokenizer(tokenizer: PretrainedTokenizer) -> list[Any]:
    """All that a text's ids depend on, as values that JSON can hold. The longest input is not among them."""
    options = [getattr(tokenizer, name) for name in tokenizer.config_keys if name != "model_max_length"]
    return [tokenizer.tokens, options, *tokenizer.rules()]
