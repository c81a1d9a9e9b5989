"""A model and batches small enough to run in milliseconds."""

from collections.abc import Callable

import numpy as np
import pytest

from minibert.bert import BertConfig, BertForPreTraining

VOCAB_SIZE, LENGTH = 40, 12


@pytest.fixture
def config() -> BertConfig:
    return BertConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=LENGTH,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )


@pytest.fixture
def model(config: BertConfig) -> BertForPreTraining:
    return BertForPreTraining(config, dtype="float64", seed=3)


def masked_batch(
    rows: int, seed: int, length: int = LENGTH, vocab_size: int = VOCAB_SIZE
) -> dict[str, np.ndarray]:
    """A random batch whose rows have different lengths and numbers of masked words, at least one each."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(5, vocab_size, (rows, length))
    real = np.arange(length) < rng.integers(6, length + 1, (rows, 1))
    chosen = real & (np.arange(length) > 0) & (rng.random((rows, length)) < 0.4)
    chosen[:, 1] = True
    return {
        "input_ids": np.where(chosen, 4, np.where(real, ids, 0)),
        "attention_mask": real.astype(np.int32),
        "labels": np.where(chosen, ids, -100),
    }


@pytest.fixture
def make_batch() -> Callable[..., dict[str, np.ndarray]]:
    """A maker of such batches with pairs of segments, half of each row, and labels of the next sentence."""

    def make(rows: int, seed: int) -> dict[str, np.ndarray]:
        batch = masked_batch(rows, seed)
        real = batch["attention_mask"] > 0
        return batch | {
            "token_type_ids": (np.arange(LENGTH) >= real.sum(axis=1, keepdims=True) // 2) & real,
            "next_sentence_label": np.random.default_rng((seed, 1)).integers(0, 2, rows),
        }

    return make
