"""What every model is given: the same numbers, wherever it runs.

Nothing of minibert is imported here: it would count as memory of its rivals.
"""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np

MASKED = 0.15  # share of the positions that are predicted
IGNORED = -100  # the label of the others


def read_config(folder: str) -> SimpleNamespace:
    """What ``config.json`` in a pretrained folder says, as attributes."""
    return SimpleNamespace(**json.loads((Path(folder) / "config.json").read_text()))


def count_masked(batch_size: int, length: int) -> int:
    """How many positions of a batch are predicted."""
    return round(MASKED * batch_size * length)


def pretraining_batch(vocab_size: int, batch_size: int, length: int) -> dict[str, np.ndarray]:
    """B random sequence pairs of S tokens without padding, 15 % of the B·S positions masked.

    int64, as PyTorch wants them: input_ids, token_type_ids, attention_mask, labels (B, S),
    next_sentence_label (B,).
    """
    rng = np.random.default_rng(0)
    shape = (batch_size, length)
    labels = np.full(batch_size * length, IGNORED)
    masked = rng.choice(labels.size, count_masked(*shape), replace=False)
    labels[masked] = rng.integers(5, vocab_size, masked.size)
    return {
        "input_ids": rng.integers(5, vocab_size, shape),
        "token_type_ids": np.tile((np.arange(length) >= length // 2).astype(np.int64), (batch_size, 1)),
        "attention_mask": np.ones(shape, dtype=np.int64),
        "labels": labels.reshape(shape),
        "next_sentence_label": rng.integers(0, 2, batch_size),
    }
