"""The memory that ``minibert info`` predicts for a step is what a step on the CUDA kernels takes.

Measured without a GPU: the kernels' own Python code runs on NumPy arrays, which it makes, keeps and drops
as it would CuPy's, but launches and products do nothing. What CuPy's pool adds (sizes rounded up to 512
bytes, gaps between blocks) and cuBLAS's workspace of 32 MiB do not show here.
"""

import gc
import tracemalloc

import numpy as np
import pytest

from minibert import BertConfig, BertForPreTraining, ops
from minibert.kernels.cuda import DTYPES, cross_entropy
from minibert.kernels.cuda.on_paper import noted
from minibert.tasks import info
from minibert.tasks.info import step_cost
from minibert.train import AdamW
from minibert.train.step import TrainingStep


@pytest.fixture
def idle(monkeypatch):
    """Nothing is launched: results are whatever the memory held."""
    for entry in ops.TABLE.values():
        for dtype in DTYPES:
            if ("cupy", dtype) in entry.kernels:
                monkeypatch.setitem(entry.kernels, ("numpy", dtype), entry.kernels["cupy", dtype])
    with noted(lambda kernel: None):
        yield


def measured_peak(config, batch_size, length, predictions, precision, recompute):
    """Bytes at the most during the second of two steps, all of the model and the optimiser included."""
    rng = np.random.default_rng(0)
    ids = rng.integers(0, config.vocab_size, (batch_size, length))
    labels = np.where(np.arange(length) < predictions, ids, -100)
    pairs = rng.integers(0, 2, batch_size)
    batch = {"input_ids": ids, "attention_mask": ids * 0 + 1, "labels": labels, "next_sentence_label": pairs}
    gc.collect()
    tracemalloc.start()
    try:
        model = BertForPreTraining(config, precision=precision)
        model.bert.encoder.recompute = recompute
        training = TrainingStep(model, AdamW(model))
        for step in range(2):
            tracemalloc.reset_peak()
            training.take([batch], 1e-3, step)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


SHAPES = {  # batch size, length, predictions, and what is unlike BERT-mini with a vocabulary of 4,000
    "short": (16, 64, 10, {}),
    "long": (2, 512, 77, {}),
    "no dropout": (16, 64, 10, {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}),
    "many words": (16, 32, 20, {"vocab_size": 20_000, "num_hidden_layers": 2}),
    "few words": (16, 64, 2, {"vocab_size": 500}),
    "few words, long": (4, 512, 2, {"vocab_size": 500}),
}


def test_the_vocabulary_is_filled_up_as_predicted():
    assert info.FILLED_UP == cross_entropy.ALIGNMENT


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_peak_of_a_step(idle, shape, precision, recompute):
    *sizes, changes = SHAPES[shape]
    config = BertConfig.preset("mini", **{"vocab_size": 4000, "num_hidden_layers": 6, **changes})
    predicted = step_cost(config, *sizes, precision, recompute).peak_bytes
    measured = measured_peak(config, *sizes, precision, recompute)

    assert predicted == pytest.approx(measured, rel=0.05)
