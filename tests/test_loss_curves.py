"""The loss curves of all precisions lie together: a very small model, 200 steps from the same weights."""

import numpy as np
import pytest

from minibert.bert import BertConfig, BertForPreTraining
from minibert.devices import Device
from minibert.train import AdamW
from minibert.train.step import TrainingStep

STEPS, LENGTH, WORDS = 200, 12, 30
CONFIG = BertConfig(
    vocab_size=5 + WORDS,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=LENGTH,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
    initializer_range=0.1,
)
# Nats between the curves, each the means of 20 steps. The losses fall from 4.1 to 0.7.
BOUNDS = {"float32": 1e-3, "tf32": 2e-2, "float16": 2e-2, "bfloat16": 3e-2}


def batch(step: int) -> dict[str, np.ndarray]:
    """Two segments, each of one word over and over; the pair's label says whether the words are the same."""
    rng = np.random.default_rng(step)
    first, second = rng.integers(5, 5 + WORDS, (2, 32, 1))
    second = np.where(rng.random((32, 1)) < 0.5, first, second)
    types = np.tile(np.arange(LENGTH) >= LENGTH // 2, (32, 1))
    ids = np.where(types, second, first)
    chosen = rng.random(ids.shape) < 0.2
    chosen[:, 1] = True
    return {
        "input_ids": np.where(chosen, 4, ids),
        "token_type_ids": types,
        "attention_mask": np.ones_like(ids),
        "labels": np.where(chosen, ids, -100),
        "next_sentence_label": first != second,
    }


def loss_curve(device: Device, precision: str) -> np.ndarray:
    """The mean loss of every 20 steps."""
    model = BertForPreTraining(CONFIG, device=device, precision=precision, seed=1)
    optimiser = AdamW(model, beta2=0.98, bias_correction=True)
    training = TrainingStep(model, optimiser, predictions=32 * LENGTH)
    means = []
    for step in range(STEPS):
        training.take([batch(step)], 1e-2 * (1 - step / STEPS), step)
        if step % 20 == 19:
            means.append(training.read()["loss"])
    return np.array(means)


@pytest.fixture(scope="module")
def exact(device):
    return loss_curve(device, "float64")


@pytest.mark.parametrize("precision", BOUNDS)
def test_the_loss_curves_lie_together(device, exact, precision):
    curve = loss_curve(device, precision)
    assert exact[0] > 4.0 and exact[-1] < 1.0
    assert np.abs(curve - exact).max() <= BOUNDS[precision]
