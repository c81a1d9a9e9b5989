"""Gradient checks of BERTs of real sizes: their parameters are moved along random directions.

Nobody can move 335 million numbers one by one. But if all of them move along a random direction v at once,
the loss changes at the rate ⟨∇L, v⟩ = Σ ∂L/∂w · v, and the complex step finds this number with a single
forward pass. A mistake in the gradient of one matrix or bias changes the sum by far more than 1e-13 of it.
"""

import math
from collections.abc import Collection, Iterator
from typing import Any

import numpy as np

from minibert import ops
from minibert.arrays import to_numpy
from minibert.bert.config import BertConfig
from minibert.bert.models import BertForPreTraining
from minibert.devices import Device
from minibert.gradcheck import COMPLEX_STEP, Draws, Row, relative_error
from minibert.gradcheck.imaginary import STEP
from minibert.nn import Parameter

BATCH_SIZE, LENGTH = 2, 16


def preset_rows(name: str, device: Device, every_parameter: bool = False) -> Iterator[Row]:
    """Check the gradient of a pre-training model of this size: one row for all parameters at once.

    With ``every_parameter`` each of them is also moved by itself, in a row of its own. Forward and backward
    run in float64 on the device, the forward passes in complex128 on the host. Dropout is on.
    """
    config = BertConfig.preset(name)
    batch = _random_batch(config)
    model, twin = _model(config, device, "float64"), _model(config, "cpu", "complex128")
    Draws(device, 0).randomise(model)
    pairs = {}
    for (parameter, own), (_, other) in zip(model.named_parameters(), twin.named_parameters(), strict=True):
        other.value[...] = to_numpy(own.value)
        pairs[parameter] = own, other
    with ops.reference_only():
        _, cache = model.forward(**batch, return_logits=False)
        model.backward(cache)
    yield _row(name, f"all {len(pairs)} parameters at once", pairs.values(), twin, batch)
    for parameter in pairs if every_parameter else ():
        yield _row(name, parameter, [pairs[parameter]], twin, batch)


def _model(config: BertConfig, device: Device | str, dtype: str) -> BertForPreTraining:
    model = BertForPreTraining(config, device=None)
    model.allocate(device, dtype)
    return model


def _row(
    what: str,
    which: str,
    moved: Collection[tuple[Parameter, Parameter]],
    twin: BertForPreTraining,
    batch: dict[str, Any],
) -> Row:
    """Compare ⟨∇L, v⟩ with the change of the loss when parameters move along a random direction v.

    ``moved`` has each parameter with its complex twin. The random numbers in v get the signs of those in ∇L,
    so that all terms of the sum are positive and no digits cancel.
    """
    rng = np.random.default_rng(3)
    products = []
    for parameter, other in moved:
        gradient = to_numpy(parameter.grad)
        v = np.copysign(rng.standard_normal(parameter.shape), gradient)
        products.append(float((gradient * v).sum()))
        other.value.imag[...] = STEP * v
    by_hand = math.fsum(products)
    twin.seed_dropout(0)  # the random bits that the hand-written gradient was computed with
    with ops.reference_only():
        outputs, _ = twin.forward(**batch, return_logits=False)
    numeric = float(outputs.loss.imag) / STEP
    for _, other in moved:
        other.value.imag[...] = 0.0
    if which.endswith("self.key.bias"):
        error = float(np.maximum(abs(by_hand), abs(numeric)))  # NaN if one is
        return Row(what, which, error, COMPLEX_STEP.absolute_bound, "absolute: it is zero")
    error = relative_error(np.array(by_hand), np.array(numeric))
    return Row(what, which, error, COMPLEX_STEP.relative_bound)


def _random_batch(config: BertConfig) -> dict[str, Any]:
    """Two sequences of 16 tokens, the second one padded, with four masked words and a sentence pair each."""
    rng = np.random.default_rng(4)
    shape = BATCH_SIZE, LENGTH
    positions = np.arange(LENGTH)
    labels = np.full(shape, -100)
    labels[:, [1, 4, 5, 8]] = rng.integers(config.vocab_size, size=(BATCH_SIZE, 4))
    return {
        "input_ids": rng.integers(config.vocab_size, size=shape),
        "token_type_ids": np.broadcast_to(positions >= LENGTH // 2, shape).astype(int),
        "attention_mask": np.stack([positions < LENGTH, positions < LENGTH - 5]).astype(int),
        "labels": labels,
        "next_sentence_label": np.array([0, 1]),
    }
