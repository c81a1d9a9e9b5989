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


@pytest.fixture
def make_batch() -> Callable[..., dict[str, np.ndarray]]:
    """A random batch whose rows have different lengths and numbers of masked words."""

    def make(rows: int, seed: int) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(seed)
        ids = rng.integers(5, VOCAB_SIZE, (rows, LENGTH))
        lengths = rng.integers(6, LENGTH + 1, (rows, 1))
        real = np.arange(LENGTH) < lengths
        chosen = real & (np.arange(LENGTH) > 0) & (rng.random((rows, LENGTH)) < 0.4)
        chosen[:, 1] = True  # at least one a row
        return {
            "input_ids": np.where(chosen, 4, np.where(real, ids, 0)),
            "token_type_ids": (np.arange(LENGTH) >= lengths // 2) & real,
            "attention_mask": real.astype(np.int32),
            "labels": np.where(chosen, ids, -100),
            "next_sentence_label": rng.integers(0, 2, rows),
        }

    return make
