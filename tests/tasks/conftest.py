"""A small text, and the settings of a run on it; a small encoder, and what searches with it."""

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from small_encoder import PASSAGES, TOKENIZER, write_encoder
from small_pretraining import config, make_batch, model  # noqa: F401  (fixtures)

from minibert.tasks.classify import Classify
from minibert.tasks.embed import TextEncoder
from minibert.tasks.pretraining_settings import PretrainSettings
from minibert.tasks.rerank import Reranker
from minibert.tasks.search import PassageIndex
from minibert.threads import get_threads, set_threads

WORDS = "river stone window garden winter summer teacher letter silver bridge music paper shadow".split()


def write_corpus(path: Path, documents: int = 12, seed: int = 0) -> None:
    """Sentences of random words, one a line, with a blank line between documents."""
    rng = random.Random(seed)
    sentences = [
        [f"the {' '.join(rng.choices(WORDS, k=rng.randint(7, 12)))} ." for _ in range(6)]
        for _ in range(documents)
    ]
    path.write_text("\n\n".join("\n".join(document) for document in sentences) + "\n", encoding="utf-8")


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Callable[..., PretrainSettings]]:
    """Settings of a run that takes a second, in a folder of its own."""
    write_corpus(tmp_path / "corpus.txt")
    threads = get_threads()

    def settings(**changes: object) -> PretrainSettings:
        return PretrainSettings(
            **{
                "name": "small",
                "out": str(tmp_path / "runs"),
                "prepared": str(tmp_path / "prepared"),
                "corpus": (str(tmp_path / "corpus.txt"),),
                "held_out": 0.25,
                "vocab_size": 80,
                "hidden_size": 16,
                "num_attention_heads": 2,
                "num_hidden_layers": 1,
                "max_position_embeddings": 32,
                "max_seq_length": 32,
                "batch_size": 4,
                "steps": 6,
                "save_every": 3,
                "eval_every": 3,
                "processes": 1,
                "device": "cpu",
                "products": "numpy",  # of several libraries, two runs may find different ones the fastest
                "threads": 1,
                **changes,
            }
        )

    yield settings
    set_threads(threads)


@pytest.fixture
def encoder_folder(tmp_path: Path) -> Path:
    """The folder of a random sentence encoder."""
    return write_encoder(tmp_path / "encoder")


@pytest.fixture
def encoder(encoder_folder: Path) -> TextEncoder:
    """What is in that folder."""
    return TextEncoder.open(encoder_folder)


@pytest.fixture
def index(encoder: TextEncoder, tmp_path: Path) -> PassageIndex:
    """An index of PASSAGES made with it."""
    pytest.importorskip("lancedb", reason="needs the vector database LanceDB, which is not installed")
    return PassageIndex.create(tmp_path / "index", encoder, PASSAGES)


@pytest.fixture
def reranker(encoder_folder: Path, tmp_path: Path) -> Callable[..., Reranker]:
    """reranker(Task, labels, pairs): opened from the folder of a random model."""

    def make(
        task_class: type = Classify, labels: Sequence[str] = ("0", "1"), pairs: bool | None = None
    ) -> Reranker:
        task = task_class(TOKENIZER, labels=labels)
        task.pairs = pairs
        task.save(task.new_model(encoder_folder, seed=1), tmp_path / "reranker")
        return Reranker.open(tmp_path / "reranker")

    return make
