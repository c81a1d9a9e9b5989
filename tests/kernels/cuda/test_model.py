"""A training step of the whole model on the CUDA kernels is the step of the reference."""

import numpy as np
import pytest

from minibert import BertConfig, BertForPreTraining, ops
from minibert.arrays import map_arrays, to_numpy
from minibert.dropout_bits import dropout_stream
from minibert.kernels.cuda import launch
from minibert.nn import Context
from minibert.train.optimiser import AdamW


@pytest.fixture
def device(xp, monkeypatch):
    """The device that the model is made on; the CPU's kernels are those for CuPy, emulated."""
    if xp is not np:
        return "cuda"
    for entry in ops.TABLE.values():
        for (library, dtype), kernel in list(entry.kernels.items()):
            if library == "cupy":
                monkeypatch.setitem(entry.kernels, ("numpy", dtype), kernel)
    return "cpu"


def train(device, dtype, prepared):
    """Losses, gradients and parameters of two steps, with dropout, padding and two micro-batches each.

    The last layer of a prepared batch is computed only where a head reads it.
    """
    rng = np.random.default_rng(0)
    config = BertConfig(
        vocab_size=300,
        hidden_size=20,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=36,
        max_position_embeddings=40,
    )
    model = BertForPreTraining(config, device=device, dtype=dtype, seed=1)
    optimiser = AdamW(model)
    results = []
    for step in range(2):
        model.zero_grad()
        for micro_batch in range(2):
            ids = rng.integers(5, 300, (3, 21))
            mask = (np.arange(21) < [[21], [9], [14]]).astype(np.int64)
            labels = np.where((rng.random(ids.shape) < 0.2) & (mask == 1), ids, -100)
            stream = model.device.asarray(dropout_stream(seed=3, step=step, micro_batch=micro_batch))
            batch = dict(
                input_ids=ids,
                token_type_ids=rng.integers(0, 2, ids.shape),
                attention_mask=mask,
                labels=labels,
                next_sentence_label=rng.integers(0, 2, 3),
                mlm_denominator=20.0,
                nsp_denominator=6.0,
            )
            if prepared:
                inputs = model.prepare(**batch, predictions=25)
                batch = dict(input_ids=map_arrays(model.device.asarray, inputs))
            context = Context(training=True, stream=stream, padding=True)  # which a GPU computes
            outputs, cache = model.forward(**batch, context=context, return_logits=False)
            assert (outputs.last_hidden_state is None) == prepared
            model.backward(cache)
            results.append(outputs.loss)
        results += [model.buffers.grad.copy(), optimiser.step(1e-3, step), model.buffers.value.copy()]
    return [to_numpy(result).astype(np.float64) for result in results]


@pytest.mark.parametrize("prepared", [False, True])
def test_two_training_steps(device, prepared):
    launched = getattr(launch.launcher, "launched", set())
    launched.clear()
    with ops.reference_only():
        expected = train("cpu", "float64", prepared)
    for got, right in zip(train(device, "float32", prepared), expected, strict=True):
        assert got.shape == right.shape
        assert np.linalg.norm(got - right) <= 1e-5 * np.linalg.norm(right)
    if device == "cpu":  # where launches are noted: all kernels have had their part
        assert set(launch.launcher.kernels()) == launched
