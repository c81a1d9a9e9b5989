"""all-MiniLM-L6-v2 for the parts that begin with text: its encoder, and a classifier on top of it."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.finetuning.__main__ import find_encoder
from benchmarks.parts.common import MINILM, pretrained_folder
from minibert import SentenceEncoder, open_tokenizer
from minibert.errors import UserError
from minibert.tasks.classify import Classify


@contextmanager
def encoder_folder() -> Iterator[tuple[str, str]]:
    """The sentence encoder's folder, and whether its weights are "real" or "random".

    If the real weights are not installed, they are random ones of the same size, with the vocabulary of mini.
    """
    try:
        found = str(find_encoder())
    except UserError:
        print("all-MiniLM-L6-v2 is not installed: random weights of the same size", flush=True)
    else:
        yield found, "real"
        return
    with pretrained_folder(MINILM, SentenceEncoder) as folder:
        open_tokenizer("mini").save_pretrained(folder)
        yield folder, "random"


@contextmanager
def classifier_folder(encoder: str) -> Iterator[str]:
    """A temporary folder with a classifier of two labels, "0" and "1": the encoder with a new head."""
    task = Classify(open_tokenizer(encoder), labels=("0", "1"))
    with tempfile.TemporaryDirectory(prefix="minibert-benchmarks-") as folder:
        task.save(task.new_model(encoder, seed=0), folder)
        yield folder
