"""Pre-LN and rotary positions: what changes, what does not, and that all else works with them."""

import json

import numpy as np
import pytest

from minibert.arrays import to_numpy
from minibert.bert import BertConfig, BertForPreTraining, BertModel
from minibert.errors import UserError
from minibert.heads import extract_features, freeze, layerwise_lr
from minibert.nn import Context
from minibert.ops import reference_only
from minibert.tasks.exporting import export
from minibert.tasks.first_values import look_at_neighbours
from minibert.tasks.info import describe_parameters, parameter_table
from minibert.tasks.likelihood import _states_at
from minibert.variants import open_config, open_model
from minibert.variants.modern import (
    NORMALISATIONS,
    POSITIONS,
    ModernConfig,
    ModernForMaskedLM,
    ModernForPreTraining,
    ModernModel,
)

SIZES = {
    "vocab_size": 40,
    "hidden_size": 12,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "intermediate_size": 16,
    "max_position_embeddings": 10,
    "initializer_range": 0.3,
}
IDS = np.array([[2, 9, 30, 9, 3], [2, 7, 3, 1, 1]])
MASK = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
OPTIONS = [(one, other) for one in NORMALISATIONS for other in POSITIONS]
ALL = pytest.mark.parametrize(("normalisation", "positions"), OPTIONS)


def config(normalisation="pre", positions="rotary", **settings):
    return ModernConfig(**SIZES | settings, normalisation=normalisation, positions=positions)


def encoder(*options, **settings):
    model = ModernModel(config(*options, **settings), dtype="float64", seed=3)
    model.eval()
    rng = np.random.default_rng(5)
    for name, parameter in model.named_parameters():
        if "LayerNorm" in name or name.endswith("bias"):  # which begin as 1 and 0
            parameter.value += rng.normal(size=parameter.shape)
    return model


def states(model, **batch):
    return to_numpy(model.forward(**batch)[0].last_hidden_state)


# -- The two options ----------------------------------------------------------------------------------


def test_with_neither_it_is_bert():
    ours = ModernForPreTraining(config("post", "learned"), dtype="float64", seed=3)
    bert = BertForPreTraining(BertConfig(**SIZES), dtype="float64", seed=3)
    batch = {"input_ids": IDS, "attention_mask": MASK, "labels": IDS, "next_sentence_label": [0, 1]}
    losses, gradients = [], []
    for model in (ours, bert):  # in training: dropout draws the same bits
        outputs, cache = model.forward(**batch)
        model.backward(cache)
        losses.append(float(outputs.loss))
        gradients.append({name: parameter.grad for name, parameter in model.named_parameters()})
    assert losses[0] == pytest.approx(losses[1], rel=1e-13)
    assert gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[1].items():
        np.testing.assert_allclose(gradients[0][name], gradient, rtol=1e-10, atol=1e-13)


def test_the_parameters_of_each_option():
    """Rotary positions have no table. Pre-LN has BERT's LayerNorms in other places, and one more."""
    names = {options: {name for name, _ in encoder(*options).named_parameters()} for options in OPTIONS}
    bert = {name for name, _ in BertModel(BertConfig(**SIZES)).named_parameters()}
    table = {"embeddings.position_embeddings.weight"}
    assert names["post", "learned"] == bert and names["post", "rotary"] == bert - table
    assert names["pre", "rotary"] == names["pre", "learned"] - table
    norms = {name.removesuffix(".weight") for name in names["pre", "rotary"] if "LayerNorm.weight" in name}
    assert norms == {
        "embeddings.LayerNorm",
        *(
            f"encoder.layer.{i}.{part}.LayerNorm"
            for i in range(3)
            for part in ("attention.self", "intermediate")
        ),
        "encoder.layer.2.output.LayerNorm",
    }


@ALL
def test_left_padding_changes_nothing_where_only_distances_count(normalisation, positions):
    model = encoder(normalisation, positions)
    right = states(model, input_ids=[[2, 7, 3, 1, 1]], attention_mask=[[1, 1, 1, 0, 0]])[0, :3]
    left = states(model, input_ids=[[1, 1, 2, 7, 3]], attention_mask=[[0, 0, 1, 1, 1]])[0, 2:]
    apart = np.abs(left - right).max()
    assert apart < 1e-12 if positions == "rotary" else apart > 0.1


@ALL
def test_the_order_of_words_counts(normalisation, positions):
    model = encoder(normalisation, positions)
    one, other = (states(model, input_ids=[ids])[0] for ids in ([2, 7, 9, 3], [2, 9, 7, 3]))
    assert np.abs(one[0] - other[0]).max() > 0.01


@pytest.mark.parametrize("positions", POSITIONS)
def test_the_first_and_the_last_hidden_state_are_normalised_in_pre_ln(positions):
    model = ModernModel(config("pre", positions), dtype="float64", seed=3)  # γ = 1, β = 0
    model.eval()
    outputs, _ = model.forward(IDS, return_hidden_states=True)
    spread = [to_numpy(hidden).std(axis=-1) for hidden in outputs.hidden_states]
    np.testing.assert_allclose(spread[0], 1.0, rtol=1e-6)
    np.testing.assert_allclose(spread[-1], 1.0, rtol=1e-6)
    assert all(np.abs(inside - 1.0).max() > 0.05 for inside in spread[1:-1])
    np.testing.assert_array_equal(outputs.hidden_states[-1], outputs.last_hidden_state)


def test_a_layer_of_pre_ln_that_computes_nothing_leaves_the_residual_stream_alone():
    model = encoder("pre", "rotary")
    for part in (model.encoder.layer[1].attention.output.dense, model.encoder.layer[1].output.dense):
        part.weight.value[...] = 0.0
        part.bias.value[...] = 0.0
    hidden = model.forward(IDS, return_hidden_states=True)[0].hidden_states
    np.testing.assert_array_equal(hidden[2], hidden[1])


# -- Configuration and folders ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "expected"), [("normalisation", "pre, post"), ("positions", "rotary, learned")]
)
def test_an_unknown_option_is_refused(name, expected):
    with pytest.raises(UserError, match=f"unknown {name} 'none'; expected one of {expected}"):
        ModernConfig(**SIZES, **{name: "none"})


def test_rotary_positions_need_pairs_of_features():
    with pytest.raises(
        UserError, match="each head has 3: hidden_size 12 / num_attention_heads 4; make it even"
    ):
        ModernConfig(**SIZES | {"num_attention_heads": 4})
    ModernConfig(**SIZES | {"num_attention_heads": 4}, positions="learned")


@ALL
def test_it_reads_as_many_tokens_as_it_has_positions(normalisation, positions):
    model = encoder(normalisation, positions)
    assert model.config.longest_sequence == 10
    states(model, input_ids=[[5] * 10])
    with pytest.raises(UserError, match="11 tokens long but the model has only 10 positions"):
        model.forward([[5] * 11])


@ALL
def test_the_options_are_in_the_folder(normalisation, positions, tmp_path):
    model = encoder(normalisation, positions)
    model.save_pretrained(tmp_path)
    values = json.loads((tmp_path / "config.json").read_text())
    assert (values["normalisation"], values["positions"]) == (normalisation, positions)
    assert values["model_type"] == "minibert-modern"
    again = open_model(BertModel, tmp_path, dtype="float64", complete=True)
    np.testing.assert_array_equal(states(again, input_ids=IDS), states(model, input_ids=IDS))


@pytest.mark.parametrize("positions", POSITIONS)
def test_an_export_may_have_more_positions(positions, tmp_path):
    model = encoder("pre", positions)
    model.save_pretrained(tmp_path / "short")
    export(tmp_path / "short", tmp_path / "long", positions=20)
    assert open_config(tmp_path / "long").longest_sequence == 20
    longer = open_model(BertModel, tmp_path / "long", dtype="float64", complete=True)
    np.testing.assert_array_equal(states(longer, input_ids=IDS), states(model, input_ids=IDS))
    states(longer, input_ids=[[5] * 20])


# -- The rest of the package --------------------------------------------------------------------------


@ALL
def test_recomputed_layers_give_the_same_gradients(normalisation, positions):
    gradients = []
    for recompute in (False, True):
        model = ModernForMaskedLM(config(normalisation, positions), seed=3)
        model.bert.encoder.recompute = recompute
        _, cache = model.forward(IDS, attention_mask=MASK, labels=IDS)
        model.backward(cache)
        gradients.append(model.buffers.grad.copy())
    np.testing.assert_array_equal(*gradients)
    assert np.abs(gradients[0]).max() > 0


@ALL
@pytest.mark.parametrize("padding", [True, False])
def test_the_kernels_compute_what_the_references_do(normalisation, positions, padding):
    """With dropout only where there is no padding: the kernels would leave it out, and draw other bits."""
    results, mask = [], MASK if padding else np.ones_like(MASK)
    for dtype in ("float32", "float64"):
        model = ModernForMaskedLM(config(normalisation, positions), dtype=dtype, seed=3)
        (model.eval if padding else model.train)()
        with reference_only() if dtype == "float64" else np.errstate():
            labels = np.where(mask, IDS, -100)
            outputs, cache = model.forward(IDS, attention_mask=mask, labels=labels)
            model.backward(cache)
        results.append((outputs.last_hidden_state[mask > 0], model.buffers.grad))
    for ours, exact in zip(*results, strict=True):
        assert np.linalg.norm(ours - exact) < 2e-6 * np.linalg.norm(exact)


@ALL
def test_the_states_of_chosen_tokens_are_those_of_the_whole_pass(normalisation, positions):
    """What scores sentences takes the last layer apart."""
    model = encoder(normalisation, positions)
    batch, rows = {"input_ids": IDS, "attention_mask": MASK}, np.array([1, 4, 5, 7])
    some, whole = _states_at(model, batch, rows), states(model, **batch)
    np.testing.assert_allclose(some, whole.reshape(-1, 12)[rows], rtol=1e-12)


def test_an_observer_sees_queries_and_keys_as_they_are_used():
    model, seen = encoder("post", "rotary"), {}

    def observe(name, value):
        seen[name.removeprefix("encoder.layer.0.attention.self.")] = to_numpy(value).copy()

    model.forward(IDS, context=Context(observer=observe))
    layer = model.encoder.layer[0].attention.self
    for part, linear in (("q", layer.query), ("k", layer.key), ("v", layer.value)):
        plain = seen["embeddings"] @ to_numpy(linear.weight.value).T + to_numpy(linear.bias.value)
        plain = plain.reshape(2, 5, 3, 4).swapaxes(1, 2)  # (B, A, S, D)
        np.testing.assert_allclose(seen[part][:, :, 0], plain[:, :, 0], rtol=1e-12)
        assert (np.abs(seen[part] - plain)[:, :, 1:].max() > 0.1) == (part != "v")
    np.testing.assert_allclose(seen["scores"], seen["q"] @ seen["k"].swapaxes(2, 3) / 2.0, rtol=1e-12)


def test_the_last_layer_norm_is_frozen_with_the_last_layer():
    model = ModernForMaskedLM(config())
    last = dict(model.named_parameters())["bert.encoder.layer.2.output.LayerNorm.weight"]
    freeze(model, 2)
    assert not last.frozen
    freeze(model)
    assert last.frozen and model.bert.frozen
    layerwise_lr(model, 0.5)
    assert last.lr_scale == 0.5


def test_features_of_inner_layers():
    assert extract_features(encoder(), IDS, layers=[0, 2, -1]).shape == (2, 5, 36)


def test_the_list_of_parameters_adds_up():
    shown = describe_parameters(config())
    table = parameter_table(config())
    in_layers = sum(matrix.count for matrix in table if matrix.part.startswith("layer"))
    in_first = sum(matrix.count for matrix in table if matrix.part == "layer 0")
    assert in_layers == 3 * in_first + 2 * 12
    (line,) = (line for line in shown.split("\n") if line.startswith("= layers"))
    assert line.split() == f"= layers: 3 like layer 0, and 24 {in_layers:,}".split() + line.split()[-1:]
    assert "= layers: 3 like layer 0  " in describe_parameters(config("post"))


def test_heads_cannot_look_for_positions_that_are_not_learned():
    look_at_neighbours(ModernForPreTraining(config("pre", "learned")))
    with pytest.raises(UserError, match="have no table of positions"):
        look_at_neighbours(ModernForPreTraining(config("pre", "rotary")))
