import math

import numpy as np
import pytest

from minibert.arrays import to_numpy
from minibert.bert import BertForPreTraining
from minibert.train import AdamW
from minibert.train.loss_scale import LEAST, MOST, LossScale
from minibert.train.step import TrainingStep


def after(scale, device, norms):
    """The scale after steps with gradients of these lengths."""
    for norm in norms:
        scale.update(device.asarray(np.array(norm), dtype="float32"))
    assert scale.value.shape == () and scale.value.dtype == "float32"
    return float(to_numpy(scale.value))


def test_it_doubles_after_good_steps_in_a_row_and_halves_at_each_bad_one(device):
    scale = LossScale(device, start=8.0, patience=3)
    assert after(scale, device, [1.0, 1.0]) == 8.0
    assert after(scale, device, [1.0]) == 16.0
    assert after(scale, device, [1.0, 1.0, math.inf]) == 8.0
    assert after(scale, device, [1.0, 1.0]) == 8.0, "the count began anew"
    assert after(scale, device, [1.0]) == 16.0
    assert after(scale, device, [math.nan, math.inf]) == 4.0


def test_it_stays_within_its_limits(device):
    assert after(LossScale(device, start=MOST, patience=1), device, [1.0] * 3) == MOST
    assert after(LossScale(device, start=2.0), device, [math.inf] * 3) == LEAST


@pytest.fixture
def half(config, device):
    return BertForPreTraining(config, device=device, precision="float16", seed=3)


def test_only_float16_is_scaled(config, half):
    assert AdamW(half).loss_scale is not None
    for precision in ("float32", "bfloat16", "float64"):
        assert AdamW(BertForPreTraining(config, precision=precision)).loss_scale is None


def test_the_scale_drops_out_of_the_update(config, device, make_batch):
    """Powers of two change no digit: a step is the same whatever the scale, clipped or not.

    Only of gradients that are too small for 16 bits without a scale, some digits are lost.
    """
    for clip_norm in (1e-2, 1e6):
        results = {}
        for start in (1.0, 2.0**8, 2.0**14):
            model = BertForPreTraining(config, device=device, precision="float16", seed=3)
            before = to_numpy(model.buffers.value).copy()
            optimiser = AdamW(model, clip_norm=clip_norm)
            optimiser.loss_scale = LossScale(device, start)
            training = TrainingStep(model, optimiser)
            training.take([make_batch(4, 1)], 0.01, 0)
            results[start] = training.read()["grad_norm"], to_numpy(model.buffers.value) - before
        norm, update = results[2.0**14]
        for start, of_norm, of_update in ((1.0, 5e-5, 0.03), (2.0**8, 1e-6, 1e-4)):
            assert results[start][0] == pytest.approx(norm, rel=of_norm)
            change = results[start][1] - update
            assert np.linalg.norm(change) <= of_update * np.linalg.norm(update)
            assert np.abs(change).max() <= 0.005, "half of the size of an update"


def test_a_step_that_overflows_is_left_out(half, make_batch):
    optimiser = AdamW(half)
    optimiser.loss_scale.value[...] = 2.0**24
    before = to_numpy(half.buffers.value).copy(), to_numpy(half.buffers.operand).copy()
    with np.errstate(over="ignore", invalid="ignore"):
        training = TrainingStep(half, optimiser)
        training.take([make_batch(4, 1)], 0.01, 0)
    assert not np.isfinite(training.read()["grad_norm"])
    np.testing.assert_array_equal(to_numpy(half.buffers.value), before[0])
    np.testing.assert_array_equal(to_numpy(half.buffers.operand), before[1])
    assert not to_numpy(optimiser.mean).any()
    assert float(to_numpy(optimiser.loss_scale.value)) == 2.0**23


@pytest.mark.parametrize("skipped", [0, 1, 5])
def test_steps_that_were_left_out_do_not_count_for_the_bias_correction(half, make_batch, skipped):
    """So the first step that is taken moves the parameters as far as if it were the first of all."""
    optimiser = AdamW(half, bias_correction=True)
    gradient = np.random.default_rng(0).standard_normal(half.buffers.grad.size)
    before = to_numpy(half.buffers.value).copy()
    for step in range(skipped):
        half.buffers.grad[...] = np.inf
        optimiser.step(0.01, step)
    half.buffers.grad[...] = half.device.asarray(gradient.astype("float32"))
    optimiser.step(0.01, skipped)
    moved = to_numpy(half.buffers.value) - before
    assert np.abs(moved).max() == pytest.approx(0.01, rel=0.05)  # Adam's first step: the rate, but for decay


def test_the_copy_follows_the_parameters(half, make_batch):
    before = to_numpy(half.buffers.operand).copy()
    TrainingStep(half, AdamW(half)).take([make_batch(4, 1)], 0.01, 0)
    after_it = to_numpy(half.buffers.operand)
    assert not np.array_equal(after_it, before)
    np.testing.assert_array_equal(after_it, to_numpy(half.buffers.value).astype("float16"))


def test_the_state_has_the_scale(half):
    optimiser, other = AdamW(half), AdamW(half)
    scale = optimiser.loss_scale
    scale.value[...], scale.good_steps[...], scale.updates[...] = 32.0, 7.0, 9.0
    other.load_state_arrays(optimiser.state_arrays(), "here")
    assert float(to_numpy(other.loss_scale.value)) == 32.0
    assert float(to_numpy(other.loss_scale.good_steps)) == 7.0
    assert float(to_numpy(other.loss_scale.updates)) == 9.0
