import copy

import numpy as np
import pytest

from minibert.arrays import to_numpy
from minibert.bert import BertForPreTraining
from minibert.errors import UserError
from minibert.ops.optimise import orthogonalise
from minibert.ranks import Ranks
from minibert.threads import set_threads
from minibert.train import AdamW, Muon

BETA1, BETA2, EPS, DECAY = 0.9, 0.999, 1e-6, 0.01


def set_random_gradients(model, seed, scale):
    rng = np.random.default_rng(seed)
    for _, parameter in model.named_parameters():
        parameter.grad[...] = model.device.asarray(scale * rng.standard_normal(parameter.shape))


def written_out(values, gradients, clip_norm, bias_correction, rates):
    """The update rule for each parameter by itself, over several steps."""
    mean = {name: np.zeros_like(value) for name, value in values.items()}
    variance = {name: np.zeros_like(value) for name, value in values.items()}
    for t, (rate, step_gradients) in enumerate(zip(rates, gradients, strict=True), start=1):
        norm = np.sqrt(sum((g**2).sum() for g in step_gradients.values()))
        for name, value in values.items():
            g = step_gradients[name] * min(1.0, clip_norm / norm)
            mean[name] = BETA1 * mean[name] + (1 - BETA1) * g
            variance[name] = BETA2 * variance[name] + (1 - BETA2) * g**2
            c1, c2 = (1 - BETA1**t, 1 - BETA2**t) if bias_correction else (1, 1)
            decayed = not (name.endswith("bias") or "LayerNorm" in name)
            update = mean[name] / c1 / (np.sqrt(variance[name] / c2) + EPS) + DECAY * decayed * value
            values[name] = value - rate * update
    return values


@pytest.mark.parametrize("bias_correction", [False, True])
@pytest.mark.parametrize("scale", [1e-3, 1.0], ids=["short gradient", "clipped gradient"])
def test_steps_equal_the_rule_written_out_by_parameter(device, config, bias_correction, scale):
    model = BertForPreTraining(config, device=device, dtype="float64", seed=1)
    values = {name: to_numpy(p.value).copy() for name, p in model.named_parameters()}
    optimiser = AdamW(model, bias_correction=bias_correction)
    rates, gradients = [0.0, 0.1, 0.05], []
    for step, rate in enumerate(rates):
        set_random_gradients(model, seed=step, scale=scale)
        gradients.append({name: to_numpy(p.grad).copy() for name, p in model.named_parameters()})
        norm = optimiser.step(rate, step)
        assert float(to_numpy(norm)) == pytest.approx(
            np.sqrt(sum((g**2).sum() for g in gradients[-1].values())), rel=1e-12
        )
    expected = written_out(values, gradients, 1.0, bias_correction, rates)
    for name, parameter in model.named_parameters():
        np.testing.assert_allclose(to_numpy(parameter.value), expected[name], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    "wrong",
    [
        {"beta1": 1.0},
        {"beta2": -0.1},
        {"eps": -1e-6},
        {"weight_decay": float("nan")},
        {"clip_norm": 0.0},
        {"matrix_momentum": 1.0},
    ],
)
def test_a_wrong_number_is_refused(config, wrong):
    [(name, number)] = wrong.items()
    with pytest.raises(ValueError, match=rf"{name}.* got .*{number}"):
        Muon(BertForPreTraining(config), **wrong)


def test_muon_does_not_share_out_its_means(config):
    class Two(Ranks):
        size = 2

    with pytest.raises(ValueError, match="shared out"):
        Muon(BertForPreTraining(config), ranks=Two())


def test_a_step_stays_in_single_precision(device, config):
    model = BertForPreTraining(config, device=device, dtype="float32")
    optimiser = AdamW(model, bias_correction=True)
    set_random_gradients(model, seed=0, scale=1.0)
    norm = optimiser.step(0.1, 0)
    assert {norm.dtype, optimiser.mean.dtype, model.buffers.value.dtype} == {np.dtype("float32")}


def test_without_a_gradient_only_the_decay_moves_anything(model):
    before = {name: p.value.copy() for name, p in model.named_parameters()}
    set_random_gradients(model, seed=0, scale=0.0)
    AdamW(model).step(0.5, 0)
    for name, parameter in model.named_parameters():
        factor = 1.0 if name.endswith("bias") or "LayerNorm" in name else 1 - 0.5 * DECAY
        np.testing.assert_allclose(parameter.value, factor * before[name], rtol=1e-15)


def test_frozen_parameters_stay_and_do_not_count_in_the_norm(model):
    frozen = dict(model.named_parameters())["bert.embeddings.word_embeddings.weight"]
    frozen.frozen = True
    before = model.buffers.value.copy(), frozen.value.copy()
    set_random_gradients(model, seed=0, scale=1.0)
    others = sum((p.grad**2).sum() for _, p in model.named_parameters() if p is not frozen)
    assert AdamW(model).step(0.1, 0) == pytest.approx(np.sqrt(others))
    np.testing.assert_array_equal(frozen.value, before[1])
    assert not np.array_equal(model.buffers.value, before[0])


def test_the_learning_rate_of_a_parameter_can_be_scaled(model):
    parameter = dict(model.named_parameters())["cls.seq_relationship.bias"]
    set_random_gradients(model, seed=0, scale=1.0)
    AdamW(model).step(0.1, 0)
    moved = parameter.value.copy()
    parameter.value[...] = 0.0
    parameter.lr_scale = 0.5
    AdamW(model).step(0.1, 0)
    np.testing.assert_allclose(parameter.value, 0.5 * moved, rtol=1e-12)


def test_the_state_goes_from_one_optimiser_to_another(model):
    optimiser, other = AdamW(model), AdamW(model)
    set_random_gradients(model, seed=0, scale=1.0)
    optimiser.step(0.1, 0)
    other.load_state_arrays(optimiser.state_arrays(), "here")
    np.testing.assert_array_equal(other.mean, optimiser.mean)
    np.testing.assert_array_equal(other.variance, optimiser.variance)
    assert other.mean.any()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda arrays, name: arrays.pop(name), "is missing"),
        (lambda arrays, name: arrays.update({name: arrays[name][:-1]}), r"of shape \(39, 8\), expected"),
        (lambda arrays, name: arrays.update({name: arrays[name].astype("float32")}), "is float32 of shape"),
    ],
    ids=["missing", "shape", "dtype"],
)
def test_a_state_that_does_not_fit_is_refused(model, damage, message):
    optimiser = AdamW(model)
    arrays = optimiser.state_arrays()
    damage(arrays, "variance.bert.embeddings.word_embeddings.weight")
    with pytest.raises(UserError, match=f"^file: variance.*{message}"):
        optimiser.load_state_arrays(arrays, "file")


# -- Muon --------------------------------------------------------------------------------------------


def is_linear_map(name):
    return name.endswith(
        (".query.weight", ".key.weight", ".value.weight", ".dense.weight", "_relationship.weight")
    )


def test_muon_moves_the_linear_maps_and_adam_the_rest(device, config):
    model, twin = (BertForPreTraining(config, device=device, dtype="float64", seed=1) for _ in range(2))
    values = {name: to_numpy(p.value).copy() for name, p in model.named_parameters()}
    optimiser, adamw = Muon(model, matrix_rate=3.0, matrix_momentum=0.8), AdamW(twin)
    means = {name: np.zeros_like(value) for name, value in values.items()}
    for step, rate in enumerate((0.1, 0.05)):
        for one in (model, twin):
            set_random_gradients(one, seed=step, scale=1.0)
        norm = float(to_numpy(optimiser.step(rate, step)))
        assert norm == float(to_numpy(adamw.step(rate, step)))
        for name, parameter in model.named_parameters():
            g = to_numpy(parameter.grad) / norm
            means[name] = 0.8 * means[name] + 0.2 * g
            if is_linear_map(name):
                direction = to_numpy(orthogonalise(device.asarray(0.8 * means[name] + 0.2 * g)))
                rows, columns = parameter.shape
                direction *= np.sqrt(max(1.0, rows / columns))
                values[name] -= rate * 3.0 * (direction + DECAY * values[name])
    others = {name: to_numpy(p.value) for name, p in twin.named_parameters()}
    assert sum(map(is_linear_map, values)) == 6 * config.num_hidden_layers + 3
    for name, parameter in model.named_parameters():
        expected = values if is_linear_map(name) else others
        np.testing.assert_allclose(to_numpy(parameter.value), expected[name], rtol=1e-11, atol=1e-13)


def test_muon_scales_the_rate_of_a_matrix_and_leaves_a_frozen_one(device, config):
    """Though there are others of their shape, with which a GPU updates a matrix where it can."""
    model = BertForPreTraining(config, device=device, dtype="float64", seed=3)
    matrices = dict(model.named_parameters())
    slow = matrices["bert.encoder.layer.0.attention.output.dense.weight"]
    frozen = matrices["bert.pooler.dense.weight"]
    before = slow.value.copy(), to_numpy(frozen.value).copy()
    frozen.frozen = True
    moved = []
    for scale in (1.0, 0.5):
        slow.value[...], slow.lr_scale = before[0], scale
        set_random_gradients(model, seed=0, scale=1.0)
        Muon(model, weight_decay=0.0).step(0.1, 0)
        moved.append(to_numpy(slow.value - before[0]))
    np.testing.assert_allclose(moved[1], 0.5 * moved[0], rtol=1e-9)
    np.testing.assert_array_equal(to_numpy(frozen.value), before[1])


def test_a_step_of_muon_stays_in_single_precision(device, config):
    model = BertForPreTraining(config, device=device, dtype="float32")
    optimiser = Muon(model)
    set_random_gradients(model, seed=0, scale=1.0)
    norm = optimiser.step(0.1, 0)
    assert {norm.dtype, optimiser.mean.dtype, model.buffers.value.dtype} == {np.dtype("float32")}


def test_the_copy_in_16_bits_follows_matrices_too(device, config):
    model = BertForPreTraining(config, device=device, precision="float16", seed=1)
    before = to_numpy(model.buffers.operand).copy()
    set_random_gradients(model, seed=0, scale=1.0)
    Muon(model).step(0.1, 0)
    after = to_numpy(model.buffers.operand)
    assert not np.array_equal(after, before)
    np.testing.assert_array_equal(after, to_numpy(model.buffers.value).astype("float16"))


def test_muon_gives_the_same_bits_on_any_number_of_threads(config, restore_threads):
    values = []
    for threads in (1, 2):
        set_threads(threads)
        model = BertForPreTraining(config, dtype="float32", seed=1)
        set_random_gradients(model, seed=0, scale=1.0)
        Muon(model).step(0.1, 0)
        values.append(model.buffers.value)
    np.testing.assert_array_equal(*values)


@pytest.mark.parametrize("precision", ["float32", "float16"])
@pytest.mark.parametrize("clip_norm", [1e33, 1e39, np.inf])
def test_a_clip_norm_beyond_all_gradients_clips_nothing(config, precision, clip_norm):
    changes = []
    for bound in (clip_norm, 1e20):
        model = BertForPreTraining(config, precision=precision, seed=1)
        before = to_numpy(model.buffers.value).copy()
        set_random_gradients(model, seed=0, scale=1.0)
        AdamW(model, clip_norm=bound).step(0.1, 0)
        changes.append(to_numpy(model.buffers.value) - before)
    np.testing.assert_allclose(*changes, rtol=1e-5, atol=1e-7)
    assert np.abs(changes[0]).max() > 0.1


def test_an_optimiser_of_buffers_that_the_model_has_left(config):
    """Its steps would change numbers that nobody reads any more."""
    model = BertForPreTraining(config)
    optimiser = AdamW(model)
    optimiser.step(1e-3, 0)
    model.allocate(dtype="float64")
    with pytest.raises(ValueError, match="allocated anew since; make a new optimiser"):
        optimiser.step(1e-3, 1)


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_a_deep_copy_of_both_goes_on_alike(config, precision):
    model = BertForPreTraining(config, precision=precision, seed=1)
    optimiser = AdamW(model)
    set_random_gradients(model, seed=0, scale=1.0)
    optimiser.step(0.1, 0)
    twin, its_optimiser = copy.deepcopy((model, optimiser))
    before = model.buffers.value.copy()
    for one, updates in ((model, optimiser), (twin, its_optimiser)):
        set_random_gradients(one, seed=1, scale=1.0)
        updates.step(0.1, 1)
    np.testing.assert_array_equal(twin.buffers.value, model.buffers.value)
    assert (model.buffers.value != before).any()
