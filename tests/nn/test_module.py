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


class Anyhow(Module):
    """Modules and parameters in all containers that there are."""

    def __init__(self):
        super().__init__()
        self.row = (Linear(2, 3), Dropout(0.1))
        self.named = {"up": Linear(3, 2), "other": 7}
        self.scales = [Parameter((2,)), Parameter((3,))]


def test_parts_in_tuples_and_dicts_are_parts_too(device):
    module = Anyhow()
    names = ["scales.0", "scales.1", "row.0.weight", "row.0.bias", "named.up.weight", "named.up.bias"]
    assert [name for name, _ in module.named_parameters()] == names
    module.allocate(device, "float64")
    assert sum(parameter.size for parameter in module.buffers.parameters) == 2 + 3 + 9 + 8
    module.eval()
    assert not module.row[1].training
    assert "scales.0 (2,), scales.1 (3,)" in repr(module) and "named.up: Linear" in repr(module)


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
    assert values.pop("head.weight").std() > 0 and not values.pop("head.bias").any(), "first values"
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
    assert to_numpy(whole.scale.value).tolist() == [3.0] * 3


def test_dtypes_that_are_not_known():
    with pytest.raises(UserError, match="unknown dtype 'float16'"):
        Whole().allocate("cpu", "float16")


def test_modes_reach_every_module(model):
    model.eval()
    assert not any(module.training for module in model.modules())
    assert not model.half[0].dropout.new_context().training
    model.train()
    assert all(module.training for module in model.modules())
    assert model.half[0].dropout.new_context().training


def test_zero_grad_makes_the_next_gradient_the_only_one(model, device):
    for _, parameter in model.named_parameters():
        parameter.add_grad(device.asarray(np.ones(parameter.shape)))
    model.zero_grad()
    for _, parameter in model.named_parameters():
        parameter.add_grad(device.asarray(np.full(parameter.shape, 3.0)))
    assert all((to_numpy(parameter.grad) == 3).all() for _, parameter in model.named_parameters())


def test_gradients_read_as_zero_after_zero_grad(model, device):
    for _, parameter in model.named_parameters():
        parameter.add_grad(device.asarray(np.ones(parameter.shape)))
    model.zero_grad()
    assert not to_numpy(model.buffers.grad).any()
    assert not any(to_numpy(parameter.grad).any() for _, parameter in model.named_parameters())


def test_zero_grad_of_a_part_leaves_the_others(model, device):
    for _, parameter in model.named_parameters():
        parameter.add_grad(device.asarray(np.ones(parameter.shape)))
    model.half[1].zero_grad()
    assert not to_numpy(model.half[1].norm.weight.grad).any()
    assert (to_numpy(model.half[0].norm.weight.grad) == 1).all()


# -- A module of its own ----------------------------------------------------------------------------


def test_a_module_that_nobody_allocated_has_memory_and_first_values():
    whole = Whole()
    assert whole.device.name == "cpu" and whole.dtype == "float32"
    values = {name: parameter.value for name, parameter in whole.named_parameters()}
    assert all(value.any() == ("bias" not in name) for name, value in values.items())


def test_parts_that_were_used_alone_keep_their_values(device):
    whole = Whole()
    pair = whole.half[1].pair
    packed, single = pair.weights.value.copy(), whole.scale.value.copy()
    assert packed.shape == (10, 6) and packed.std() > 0
    assert (pair.one.weight.value == packed[:5]).all() and pair.one.weight.value.base is not None
    whole.allocate(device, "float64")
    np.testing.assert_array_equal(to_numpy(pair.weights.value), packed.astype("float64"))
    np.testing.assert_array_equal(to_numpy(whole.scale.value), single)


def test_two_layers_of_one_shape_do_not_start_equal():
    assert (Linear(6, 5).weight.value != Linear(6, 5).weight.value).all()


def test_values_can_be_assigned_in_place(model):
    """As a loop of one's own does it: the parameter stays a view of the buffer."""
    model.scale.value -= 0.5
    model.scale.grad = np.ones(3) if model.device.name == "cpu" else model.device.asarray(np.ones(3))
    model.scale.grad *= 2.0
    assert to_numpy(model.buffers.value[:3]).tolist() == [0.5] * 3
    assert to_numpy(model.buffers.grad[:3]).tolist() == [2.0] * 3


# -- To look at -------------------------------------------------------------------------------------


def test_a_module_shows_its_tree(model):
    lines = [line.split() for line in repr(model).splitlines()]
    count = sum(parameter.size for _, parameter in model.named_parameters())
    assert lines[0] == ["Whole", str(count), "scale", "(3,),", "tied", "(6,", "5)"]
    assert lines[1] == ["half.0", "…", "1,", "each:", "Half", "118"], "layers that look alike are told once"
    assert ["one:", "Linear", "35", "weight", "(5,", "6),", "bias", "(5,)"] in lines
    assert len(lines) == 8


# -- Dropout ----------------------------------------------------------------------------------------


def masks(module, count):
    """What dropout leaves of ones, in so many forward passes that are given no context."""
    ones = module.device.asarray(np.ones(1000))
    return [tuple(to_numpy(module.forward(ones)[0]) == 0) for _ in range(count)]


def test_every_forward_without_a_context_draws_anew(device):
    dropout = Dropout(0.5)
    dropout.allocate(device)
    assert len(set(masks(dropout, 6))) == 6
    dropout.seed_dropout(3)
    first = masks(dropout, 3)
    dropout.seed_dropout(3)
    assert masks(dropout, 3) == first
    dropout.seed_dropout(4)
    assert not set(masks(dropout, 3)) & set(first)


def test_a_module_is_frozen_when_all_of_it_is(model):
    first = model.half[0]
    for _, parameter in first.named_parameters():
        assert not first.frozen
        parameter.frozen = True
    assert first.frozen and first.norm.frozen and not model.frozen and not model.half[1].frozen
