"""What ``info`` works out from the configuration, held against real models and real caches."""

import dataclasses

import numpy as np
import pytest

from minibert.bert import BertConfig, BertForPreTraining, BertModel
from minibert.bert.encoder import BertEncoder
from minibert.cli import main
from minibert.errors import UserError
from minibert.ops import ACTIVATIONS, Cache, reference_only
from minibert.tasks.info import describe_step, parameter_table, step_cost
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


def test_no_cost_is_told_of_an_xlnet():
    """Whose layers compute more than what is counted here; but its parameters are known."""
    config = XLNetConfig(**{name: getattr(SMALL, name) for name in ("hidden_size", "num_attention_heads")})
    assert describe_step(config, B, S, P).startswith("the cost of a training step is not known")
    with pytest.raises(UserError, match="not known of an XLNet"):
        step_cost(config, B, S, P)
    parameters = XLNetLMHeadModel(config, device=None).named_parameters()
    assert sum(m.count for m in parameter_table(config)) == sum(p.size for _, p in parameters)


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
        sum(m.count for m in parameter_table(config, discriminator=True) if m.part == "heads") == 12 * 14 + 1
    )


def training_forward(config: BertConfig, kind=BertForPreTraining) -> tuple[BertForPreTraining, list]:
    """A model and the cache of one forward, with P labels in every sequence."""
    rng = np.random.default_rng(0)
    model = kind(config)
    labels = np.full((B, S), -100)
    labels[:, 1 : 1 + P] = rng.integers(config.vocab_size, size=(B, P))
    ids = rng.integers(config.vocab_size, size=(B, S))
    with reference_only():
        _, cache = model.forward(ids, labels=labels, next_sentence_label=[0, 1, 0], return_logits=False)
    return model, cache


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


@pytest.mark.parametrize("normalisation", ["pre", "post"])
@pytest.mark.parametrize("positions", ["rotary", "learned"])
def test_what_pre_ln_and_rotary_positions_hold_besides(normalisation, positions):
    config = ModernConfig(**SMALL.to_dict(), normalisation=normalisation, positions=positions)
    model, cache = training_forward(config, ModernForPreTraining)
    more = B * S * (12 + 1) * (normalisation == "pre")
    more += 3 * S * 6 * (positions == "rotary")  # L layers, D = 6
    assert held_bytes(cache, model.buffers.value) == step_cost(config, B, S, P).activation_bytes + 4 * more


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
