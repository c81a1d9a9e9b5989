"""What ``info`` works out from the configuration, held against real models and real caches."""

import dataclasses
import gc
import json
import tracemalloc
from typing import Any

import numpy as np
import pytest

from minibert.bert import BertConfig, BertForMaskedLM, BertForPreTraining, BertModel
from minibert.bert.encoder import BertEncoder
from minibert.cli import main
from minibert.nn import Packed
from minibert.ops import ACTIVATIONS, Cache, reference_only
from minibert.tasks.info import StepCost, parameter_table, step_cost
from minibert.train import AdamW
from minibert.train.step import TrainingStep
from minibert.variants.electra import ElectraConfig, ElectraForMaskedLM, ElectraForPreTraining
from minibert.variants.modern import ModernConfig, ModernForPreTraining
from minibert.variants.xlnet import XLNetConfig, XLNetLMHeadModel

SMALL = BertConfig(
    vocab_size=50,
    hidden_size=12,
    num_hidden_layers=3,
    num_attention_heads=2,
    intermediate_size=20,
    max_position_embeddings=16,
)
B, S, P = 3, 10, 4


def encoder_size(preset: str) -> int:
    return sum(m.count for m in parameter_table(BertConfig.preset(preset)) if m.part != "heads")


def test_the_released_sizes():
    assert encoder_size("base") == 109_482_240
    assert encoder_size("large") == 335_141_888
    assert sum(matrix.count for matrix in parameter_table(BertConfig.preset("base"))) == 110_106_428


def test_the_table_lists_the_parameters_of_the_model():
    model = BertForPreTraining(SMALL)
    expected = {name: parameter.shape for name, parameter in model.named_parameters()}
    assert {matrix.name: matrix.shape for matrix in parameter_table(SMALL)} == expected


def test_a_discriminator_is_not_shown_as_its_generator(tmp_path, capsys):
    sizes = {"vocab_size": 50, "embedding_size": 8, "hidden_size": 12, "num_attention_heads": 2}
    config = ElectraConfig(**sizes, num_hidden_layers=1, intermediate_size=20, max_position_embeddings=16)
    model, generator = ElectraForPreTraining(config), ElectraForMaskedLM(config)
    model.save_pretrained(tmp_path)
    generator.save_pretrained(tmp_path / "generator")

    def shown(folder):
        assert main(["info", str(folder)]) == 0
        return capsys.readouterr().out

    for folder, its, costs in ((tmp_path, model, False), (tmp_path / "generator", generator, True)):
        out, count = shown(folder), sum(p.size for _, p in its.named_parameters())
        (total,) = (line for line in out.splitlines() if line.startswith("= the pre-training model"))
        assert type(its).__name__ in total and total.endswith(f"{count:,}")
        assert ("GFLOP" in out, "decoder of masked words" in out) == (costs, costs)
    assert "discriminator_predictions.dense_prediction.weight" in shown(tmp_path)
    assert (
        sum(m.count for m in parameter_table(config, ElectraForPreTraining) if m.part == "heads")
        == 12 * 14 + 1
    )


def test_a_model_of_masked_words_is_shown_without_the_heads_that_it_lacks(tmp_path, capsys):
    """Neither a pooler nor a next-sentence head, in the table, the step and on several ranks."""
    for kind in (BertForMaskedLM, BertForPreTraining):
        model = kind(SMALL)
        model.save_pretrained(tmp_path / kind.__name__)
        assert main(["info", str(tmp_path / kind.__name__), "--json", "--ranks", "2"]) == 0
        shown, count = json.loads(capsys.readouterr().out), sum(p.size for _, p in model.named_parameters())
        assert [m["name"] for m in shown["matrices"]] == [name for name, _ in model.named_parameters()]
        assert (shown["parameters"], shown["step"]["gradient_bytes"]) == (count, 4 * count)
        assert shown["scaling"]["sent_bytes"] == 4 * count  # 2 (N − 1)/N of them
        assert main(["info", str(tmp_path / kind.__name__)]) == 0
        assert f"= the pre-training model ({kind.__name__})" in capsys.readouterr().out


def training_forward(config: BertConfig, kind=BertForPreTraining) -> tuple[BertForPreTraining, list]:
    """A model and the cache of one forward pass, with P labels in every sequence."""
    model = kind(config)
    with reference_only():
        _, cache = model.forward(model.prepare(**masked_batch(config, model.next_sentence)))
    return model, cache


class Counted(np.ndarray):
    """An array that adds up the multiply-adds of all products that it and its descendants take part in."""

    multiply_adds = 0

    def __array_ufunc__(self, ufunc, method, *inputs, out=(), **options):
        a, *others = (x.view(np.ndarray) if isinstance(x, Counted) else x for x in inputs)
        if out:
            options["out"] = tuple(x.view(np.ndarray) for x in out)
        y = getattr(ufunc, method)(a, *others, **options)
        if ufunc is np.matmul:
            Counted.multiply_adds += y.size * a.shape[-1]
        return y.view(Counted) if isinstance(y, np.ndarray) and y.ndim else y


@pytest.fixture
def count_products(monkeypatch):
    """Of a forward and of a backward pass, twice the multiply-adds: FLOPs."""
    monkeypatch.setattr(Counted, "multiply_adds", 0)

    def count(model, **batch):
        for _, parameter in model.named_parameters():
            parameter.bind(parameter.value.view(Counted), parameter.operand.view(Counted), parameter.grad)
        for packed in (item for module in model.modules() for item in vars(module).values()):
            if isinstance(packed, Packed):
                packed.bind(packed.value.view(Counted), packed.operand.view(Counted))
        with reference_only():
            _, cache = model.forward(model.prepare(**batch))
            forward = Counted.multiply_adds
            model.backward(cache)
        return 2 * forward, 2 * (Counted.multiply_adds - forward)

    return count


def masked_batch(config: BertConfig, next_sentence: bool = True) -> dict[str, Any]:
    """With P labels in every sequence."""
    rng = np.random.default_rng(0)
    ids, labels = rng.integers(config.vocab_size, size=(B, S)), np.full((B, S), -100)
    labels[:, 1 : 1 + P] = rng.integers(config.vocab_size, size=(B, P))
    pairs = {"next_sentence_label": [0, 1, 0]} if next_sentence else {}
    return {"input_ids": ids, "labels": labels, **pairs}


def permuted_batch(config: BertConfig, length: int = S, predictions: int = P) -> dict[str, Any]:
    """The first tokens are predicted, and seen by none."""
    rng, first = np.random.default_rng(0), np.arange(predictions)
    mapping, hidden = np.zeros((B, predictions, length), int), np.zeros((B, length, length), int)
    mapping[:, first, first] = hidden[:, :, :predictions] = 1
    ids = rng.integers(config.vocab_size, size=(B, length))
    return {"input_ids": ids, "perm_mask": hidden, "target_mapping": mapping, "labels": ids[:, :predictions]}


@pytest.mark.parametrize("kind", [BertForPreTraining, BertForMaskedLM])
def test_the_flops_are_those_of_the_products(kind, count_products):
    cost = step_cost(SMALL, B, S, P, kind=kind)
    assert count_products(kind(SMALL), **masked_batch(SMALL, kind.next_sentence)) == (
        cost.forward_flops,
        cost.backward_flops,
    )


def small_xlnet(**changes: Any) -> XLNetConfig:
    names = "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"
    return XLNetConfig(**{name: getattr(SMALL, name) for name in names} | changes)


def test_the_flops_of_an_xlnet(count_products):
    """One of its backward products, the derivative of e₁ − e₀, is written as a sum."""
    config = small_xlnet()
    cost, sums = step_cost(config, B, S, P), 2 * 3 * B * (S + P) * 12  # L layers, H = 12
    forward, backward = count_products(XLNetLMHeadModel(config), **permuted_batch(config))
    assert (forward, backward + sums) == (cost.forward_flops, cost.backward_flops)


@pytest.mark.parametrize("activation", ["gelu", "relu", "tanh"])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_the_activations_of_an_xlnet(activation, dropout):
    config = small_xlnet(hidden_act=activation, hidden_dropout_prob=dropout)
    model = XLNetLMHeadModel(config)
    with reference_only():
        _, cache = model.forward(**permuted_batch(config), return_logits=False)
    assert held_bytes(cache, model.buffers.value) == step_cost(config, B, S, P).activation_bytes


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize(("length", "predictions"), [(64, 10), (256, 40)])
def test_the_peak_of_an_xlnet(length, predictions, recompute):
    """Of the second of two steps, with the reference operations, all that the optimiser holds included."""
    config = small_xlnet(vocab_size=1000, hidden_size=64, intermediate_size=256)
    batch = permuted_batch(config, length, predictions)
    gc.collect()
    tracemalloc.start()
    try:
        with reference_only():
            model = XLNetLMHeadModel(config)
            model.bert.encoder.recompute = recompute
            training = TrainingStep(model, AdamW(model))
            for step in range(2):
                tracemalloc.reset_peak()
                training.take([batch], 1e-3, step)
        measured = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    predicted = step_cost(config, B, length, predictions, recompute=recompute).peak_bytes
    assert predicted == pytest.approx(measured, rel=0.05)


def test_the_table_of_an_xlnet():
    config = small_xlnet()
    parameters = XLNetLMHeadModel(config, device=None).named_parameters()
    assert sum(m.count for m in parameter_table(config)) == sum(p.size for _, p in parameters)


def held_bytes(cache: object, parameters: np.ndarray) -> int:
    """Bytes of all floating-point arrays in a nest of caches, each once, whatever views it has.

    Single numbers, such as a loss's denominator, do not count.
    """
    owners = {}

    def visit(item):
        if isinstance(item, list | tuple):
            for part in item:
                visit(part)
        elif isinstance(item, Cache):
            visit(item.parts(item.maker))
        elif dataclasses.is_dataclass(item):
            visit([getattr(item, field.name) for field in dataclasses.fields(item)])
        elif isinstance(item, np.ndarray) and item.dtype.kind == "f" and item.ndim:
            owner = item
            while owner.base is not None:
                owner = owner.base
            owners[id(owner)] = owner

    visit(cache)
    return sum(owner.nbytes for owner in owners.values() if owner is not parameters)


@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "relu", "tanh"])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_the_activations_are_those_that_the_caches_hold(activation, dropout):
    config = dataclasses.replace(
        SMALL, hidden_act=activation, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout
    )
    model, cache = training_forward(config)
    assert held_bytes(cache, model.buffers.value) == step_cost(config, B, S, P).activation_bytes


def test_a_model_of_masked_words_holds_nothing_for_pairs():
    """The last hidden state is kept by the outputs alone: there is no pooler whose cache would keep it."""
    model, cache = training_forward(SMALL, BertForMaskedLM)
    cost, last_hidden_state = step_cost(SMALL, B, S, P, kind=BertForMaskedLM), 4 * B * S * 12
    assert held_bytes(cache, model.buffers.value) + last_hidden_state == cost.activation_bytes


@pytest.mark.parametrize("normalisation", ["pre", "post"])
@pytest.mark.parametrize("positions", ["rotary", "learned"])
def test_what_pre_ln_and_rotary_positions_hold_besides(normalisation, positions):
    config = ModernConfig(**SMALL.to_dict(), normalisation=normalisation, positions=positions)
    model, cache = training_forward(config, ModernForPreTraining)
    more = B * S * (12 + 1) * (normalisation == "pre")
    more += 3 * S * 6 * (positions == "rotary")  # L layers, D = 6
    assert held_bytes(cache, model.buffers.value) == step_cost(config, B, S, P).activation_bytes + 4 * more


@pytest.mark.parametrize(("in_heads", "working"), [(50, 90), (95, 95)])
def test_the_peak_is_in_the_heads_or_in_a_layer_when_the_heads_have_let_go(in_heads, working):
    cost = StepCost(
        encoder_flops=0,
        heads_flops=0,
        parameter_bytes=1000,
        copy_bytes=500,
        gradient_bytes=1000,
        moment_bytes=2000,
        encoder_activation_bytes=30,
        heads_activation_bytes=10,
        encoder_working_bytes=100,
        heads_working_bytes=in_heads,
    )
    assert cost.working_bytes == working and cost.peak_bytes == 4500 + 40 + working


def test_a_new_activation_is_counted_without_being_told_of(monkeypatch):
    """This one keeps three arrays: its input, a factor, and its output too."""

    def forward(x):
        share = 1.0 / (1.0 + np.exp(-x))
        y = x * share
        return y, (x, share, y)

    def backward(dout, cache):
        _, share, y = cache
        return dout * (share + y * (1.0 - share))

    monkeypatch.setitem(ACTIVATIONS, "silu", (forward, backward))
    config = dataclasses.replace(SMALL, hidden_act="silu")
    model, cache = training_forward(config)
    assert held_bytes(cache, model.buffers.value) == step_cost(config, B, S, P).activation_bytes
    model.backward(cache)


def test_shared_layers_cost_products_each_time_and_memory_once(monkeypatch):
    """As in ALBERT: FLOPs count uses, parameters count once."""

    class SharedEncoder(BertEncoder):
        def __init__(self, config):
            super().__init__(config)
            self.layer = [self.layer[0]] * config.num_hidden_layers

    usual = step_cost(SMALL, B, S, P)
    monkeypatch.setattr(BertModel, "encoder_class", SharedEncoder)
    shared = step_cost(SMALL, B, S, P)
    layer = sum(m.count for m in parameter_table(SMALL) if m.part == "layer 0")
    assert shared.forward_flops == usual.forward_flops
    assert usual.parameter_bytes - shared.parameter_bytes == 4 * (SMALL.num_hidden_layers - 1) * layer
