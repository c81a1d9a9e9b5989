"""Fingerprints: a run knows the models again that it began with."""

import hashlib
import json
from pathlib import Path

from minibert.assets import model_folder
from minibert.folders.weights import open_weights
from minibert.text import open_tokenizer
from minibert.variants import open_config


def fingerprint(folder: str | Path) -> str:
    """SHA-256 of a model's configuration, its tokenizer and its files of weights.

    Raises UserError if they cannot be read.
    """
    told = open_config(folder).to_dict(), open_tokenizer(folder).definition()
    digest = hashlib.sha256(json.dumps(told).encode())
    for path in sorted({tensor.file for tensor in open_weights(model_folder(folder)).values()}):
        with open(path, "rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()
