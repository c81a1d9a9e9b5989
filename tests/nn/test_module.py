"""The tree of modules: names, order in the buffer, modes, dropout's sites."""

import numpy as np
import pytest

from minibert.arrays import to_numpy
from minibert.errors import UserError
from minibert.nn import Dropout, LayerNorm, Linear, Module, Packed, Parameter


class Pair(Module):
    """Two linear maps whose parameters are packed, kind by kind."""

    def __init__(self):
        super().__init__()
        self.one, self.two = Linear(6, 5), Linear(6, 5)
        self.weights = Packed([self.one.weight, self.two.weight])
        self.biases = Packed([self.one.bias, self.two.bias])


class Half(Module):
    """A block in the wrong order: vectors, then a matrix, then what is packed, and a dropout."""

    is_block = True

    def __init__(self):
        super().__init__()
        self.norm = LayerNorm(6, 1e-12)
        self.dense = Linear(5, 6)
        self.pair = Pair()
        self.dropout = Dropout(0.1)


class Whole(Module):
    """Two blocks in a list, and a parameter that belongs to the first of them as well."""

    def __init__(self):
        super().__init__()
        self.scale = Parameter((3,), init="ones", decay=False)
        self.half = [Half(), Half()]
        self.tied = self.half[0].dense.weight
        self.nothing = None


@pytest.fixture
def model(device):
    whole = Whole()
    whole.allocate(device, "float64")
    return whole


def test_names_follow_the_attributes_and_tied_parameters_come_once(model):
    layers = ("norm", "dense", "pair.one", "pair.two")
    one_half = [f"{name}.{kind}" for name in layers for kind in ("weight", "bias")]
    expected = ["scale", "tied", *(f"half.{i}.{name}" for i in range(2) for name in one_half)]
    expected.remove("half.0.dense.weight")  # met first as "tied"
    assert [name for name, _ in model.named_parameters()] == expected
    assert all(parameter.name == name for name, parameter in model.named_parameters())


def test_a_block_lies_together_matrices_first(model):
    """Packed matrices, the other matrices, packed vectors, the rest; what is tied keeps its first place."""
    block = [
        *("pair.one.weight", "pair.two.weight", "dense.weight", "pair.one.bias", "pair.two.bias"),
        *("norm.weight", "norm.bias", "dense.bias"),
    ]
    expected = ["scale", "tied", *(f"half.{i}.{name}" for i in range(2) for name in block)]
    expected.remove("half.0.dense.weight")
    assert [parameter.name for parameter in model.buffers] == expected


def test_every_parameter_has_storage_of_its_own(model):
    parameters = [parameter for _, parameter in model.named_parameters()]
    for i, parameter in enumerate(parameters):
        parameter.value[...] = float(i + 1)
    assert all((to_numpy(parameter.value) == i + 1).all() for i, parameter in enumerate(parameters))
    used = np.count_nonzero(to_numpy(model.buffers.value))
    assert used == sum(parameter.size for parameter in parameters)


def test_segments_follow_the_blocks(model):
    decayed = [segment.decay for segment in model.buffers.segments]
    assert decayed == [False, True, False, True, False], "one run of each kind a block"


def test_a_module_can_be_allocated_anew(model, device):
    """With another dtype, or inside a larger tree: the values come along."""
    for i, (_, parameter) in enumerate(model.named_parameters()):
        parameter.value[...] = i + 0.5

    class Larger(Module):
        def __init__(self):
            super().__init__()
            self.head = Linear(4, 4)
            self.inner = model

    larger = Larger()
    larger.allocate(device, "float32")
    assert larger.dtype == larger.buffers.value.dtype == "float32"
    values = {name: to_numpy(parameter.value) for name, parameter in larger.named_parameters()}
    assert not values.pop("head.weight").any() and not values.pop("head.bias").any()
    for i, (name, value) in enumerate(values.items()):
        assert name.startswith("inner.") and (value == i + 0.5).all()


def test_a_module_can_move_to_another_library(device):
    """As from the CPU to a GPU, and back."""
    whole = Whole()
    for place in ("cpu", device, "cpu"):
        whole.allocate(place, "float32")
        assert isinstance(whole.scale.value, whole.device.xp.ndarray)
        if place == "cpu":
            whole.scale.value += 1.0
    assert to_numpy(whole.scale.value).tolist() == [2.0] * 3


def test_dtypes_that_are_not_known():
    with pytest.raises(UserError, match="unknown dtype 'float16'"):
        Whole().allocate("cpu", "float16")


def test_modes_reach_every_module(model):
    model.eval()
    assert not any(module.training for module in model.modules())
    assert all(half.dropout.key() is None for half in model.half)
    model.train()
    assert all(module.training for module in model.modules())
    assert all(half.dropout.key() is not None for half in model.half)


def test_zero_grad_makes_the_next_gradient_the_only_one(model, device):
    for _, parameter in model.named_parameters():
        parameter.add_grad(device.asarray(np.ones(parameter.shape)))
    model.zero_grad()
    for _, parameter in model.named_parameters():
        parameter.add_grad(device.asarray(np.full(parameter.shape, 3.0)))
    assert all((to_numpy(parameter.grad) == 3).all() for _, parameter in model.named_parameters())


def keys(model):
    return [half.dropout.key() for half in model.half]


def test_every_dropout_has_its_own_bits(model):
    """From the start: two layers that dropped the same elements would not be independent."""
    start = keys(model)
    assert len(set(start)) == 2
    model.set_dropout_stream(seed=0, step=0)
    assert keys(model) == start
    place = {"seed": 1, "step": 2, "micro_batch": 3, "replica": 4}
    model.set_dropout_stream(**place)
    chosen = keys(model)
    for name in place:
        model.set_dropout_stream(**(place | {name: place[name] + 1}))
        assert not set(keys(model)) & set(chosen), name
    model.set_dropout_stream(**place)
    assert keys(model) == chosen


def test_a_module_is_frozen_when_all_of_it_is(model):
    first = model.half[0]
    for _, parameter in first.named_parameters():
        assert not first.frozen
        parameter.frozen = True
    assert first.frozen and first.norm.frozen and not model.frozen and not model.half[1].frozen
