"""Each trial does what it says, while it lasts."""

import copy

import numpy as np
import pytest

from benchmarks.speedrun import __main__ as speedrun
from benchmarks.speedrun.trials import DECAY, TRIALS, Z_WEIGHT, fewer_masks_later, growing_batch
from minibert.bert import BertConfig, BertForMaskedLM
from minibert.ops import reference_only
from minibert.ops.stable_softmax import log_sum_exp
from minibert.tasks import pretraining
from minibert.tasks.pretraining_settings import PretrainSettings
from minibert.train.step import TrainingStep

CONFIG = BertConfig(
    vocab_size=11,
    hidden_size=8,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=8,
    max_position_embeddings=6,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)
BATCH = {
    "input_ids": np.array([[1, 4, 5, 2, 7], [3, 3, 9, 0, 0]]),
    "attention_mask": np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]),
    "labels": np.array([[-100, 6, -100, -100, 8], [-100, 4, -100, -100, -100]]),
}


def make_model():
    model = BertForMaskedLM(CONFIG, dtype="float64", seed=1)
    rng = np.random.default_rng(2)
    model.buffers.value[...] = rng.normal(size=model.buffers.value.shape)
    return model


def test_every_trial_of_a_record_exists():
    named = {record["trial"] for _, record in speedrun.read_records() if "trial" in record}
    assert named == set(TRIALS)


def test_the_derivative_of_the_z_loss(monkeypatch):
    monkeypatch.setattr("benchmarks.speedrun.trials.Z_WEIGHT", 1000 * Z_WEIGHT)  # so that it can be seen

    def penalised():
        outputs, _ = model.forward(**BATCH)
        log_z = log_sum_exp(outputs.prediction_logits, axis=-1)
        return outputs.loss + 1000 * Z_WEIGHT * np.mean(log_z**2)

    with reference_only():
        model = make_model()
        plain, _ = model.forward(**BATCH)
        with TRIALS["z-loss"]():
            outputs, cache = model.forward(**BATCH)
            model.zero_grad()
            model.backward(cache)
        assert outputs.loss == pytest.approx(float(plain.loss), rel=1e-13)
        value, grad = model.buffers.value, model.buffers.grad
        direction = np.random.default_rng(3).normal(size=value.shape)
        slopes, kept = [], value.copy()
        for sign in (1, -1):
            value[...] = kept + sign * 1e-6 * direction
            slopes.append(sign * penalised() / 2e-6)
        assert sum(slopes) == pytest.approx(float((grad * direction).sum()), rel=1e-6)


class Ones:
    """An optimiser that adds 1 to all weights."""

    loss_scale, sharded = None, False

    def __init__(self, model):
        self.model = model

    def rates(self, learning_rate, step):
        return np.array([learning_rate])

    def update(self, rates):
        self.model.buffers.value[...] += 1
        return np.float64(0)


def test_the_mean_of_the_weights_is_measured_and_the_weights_are_left_as_they_were():
    model, seen = make_model(), []
    before = model.buffers.value.copy()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(pretraining, "evaluate", lambda model: seen.append(model.buffers.value.copy()))
        with TRIALS["averaged"]():
            pretraining.evaluate(model)
            training = TrainingStep(model, Ones(model))
            for step in range(3):
                training.take([BATCH], 0.1, step)
            pretraining.evaluate(model)
    mean = 1.0
    for value in (1.0, 2.0, 3.0):
        mean += (1 - DECAY) * (value - mean)
    np.testing.assert_array_equal(seen[0], before)
    np.testing.assert_allclose(seen[1], before + mean, rtol=1e-12)
    np.testing.assert_allclose(model.buffers.value, before + 3, rtol=1e-14)


def test_an_untied_decoder_begins_as_the_word_embeddings_and_learns_by_itself(monkeypatch):
    monkeypatch.setattr(pretraining, "set_first_values", lambda model: None)
    tied = make_model()
    with TRIALS["untied"]():
        model = make_model()
        pretraining.set_first_values(model)
    words, decoder = model.bert.embeddings.word_embeddings.weight, model.cls.predictions.decoder_weight
    np.testing.assert_array_equal(words.value, decoder.value)
    assert model.buffers.value.size >= tied.buffers.value.size + words.size
    _, cache = model.forward(**BATCH)
    model.zero_grad()
    model.backward(cache)
    assert not words.grad[10].any() and decoder.grad[10].any()  # word 10 is not read, but it is scored


@pytest.mark.parametrize("name", ["zero-last", "large-words"])
def test_first_values_are_changed_after_all_others(name, monkeypatch):
    monkeypatch.setattr(pretraining, "set_first_values", lambda model: None)
    model = make_model()
    before = {name: value.value.copy() for name, value in model.named_parameters()}
    with TRIALS[name]():
        pretraining.set_first_values(model)
    changed = {name for name, value in model.named_parameters() if (value.value != before[name]).any()}
    assert changed == {
        {
            "zero-last": "bert.encoder.layer.0.output.dense.weight",
            "large-words": "bert.embeddings.word_embeddings.weight",
        }[name]
    }
    (one,) = changed
    value, factor = dict(model.named_parameters())[one].value, 0 if name == "zero-last" else 2
    np.testing.assert_array_equal(value, factor * before[one])


def test_phases_read_as_much_as_the_only_one():
    settings = PretrainSettings(nsp=False, masked_lm_prob=0.3, max_predictions=1000, steps=800)
    (phase,) = settings.phases()
    early, late = fewer_masks_later(copy.copy(phase))
    assert (early.start, early.stop, late.start, late.stop) == (0, 480, 480, 800)
    assert (early.instances.masked_lm_prob, late.instances.masked_lm_prob) == (0.3, 0.15)
    small, large = growing_batch(phase)
    sequences = sum((one.stop - one.start) * one.batch_size for one in (small, large))
    assert sequences == 800 * phase.batch_size and small.batch_size * 3 == large.batch_size
    with TRIALS["growing-batch"]():
        assert settings.phases() == [small, large]
    assert settings.phases() == [phase]


def test_a_trial_lasts_as_long_as_its_run(monkeypatch, tmp_path):
    """And one that was killed begins anew."""
    lasting = []
    monkeypatch.setattr(speedrun, "RESULTS", tmp_path)

    def stop(settings, held_out, text):
        lasting.append((len(settings.phases()), settings.overwrite, settings.resume))
        raise KeyboardInterrupt

    monkeypatch.setattr(speedrun, "pretrain", stop)
    monkeypatch.setattr(speedrun, "with_track", lambda values, track: PretrainSettings.from_dict(values))
    (tmp_path / "runs" / "docs-a-0" / "checkpoint-1").mkdir(parents=True)

    class NoTrack:
        held_out = tokenizer = prepared = None

    for trial in ("growing-batch", None):
        with pytest.raises(KeyboardInterrupt):
            speedrun.run(NoTrack, "docs/a", {"steps": 8}, 0, tmp_path, trial)
    assert lasting == [(2, True, False), (1, False, True)]
