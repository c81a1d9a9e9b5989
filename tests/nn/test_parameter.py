"""Parameters, and the flat buffers that they are views of."""

import numpy as np
import pytest

from minibert import ops
from minibert.arrays import to_numpy
from minibert.nn import Packed, Parameter, ParameterBuffers, Segment
from minibert.nn.parameter import ALIGNMENT
from minibert.precision import PRECISIONS, check_precision


def pieces():
    """A packed triple of 15 + 15 + 15, a matrix that fills its 64 elements, a vector, and a last matrix."""
    packed = Packed([Parameter((5, 3)), Parameter((5, 3)), Parameter((5, 3))])
    return [packed, Parameter((8, 8)), Parameter((5,), init="zeros", decay=False), Parameter((7, 10))]


def flat(buffers, parameter):
    """Where a parameter begins in the buffer, found by writing to it."""
    buffers.value[...] = 0
    parameter.value[...] = 1
    places = np.flatnonzero(to_numpy(buffers.value))
    buffers.value[...] = 0
    assert places[-1] - places[0] + 1 == len(places) == parameter.size, "in one run"
    return int(places[0])


def test_layout(device):
    """Packed parameters adjoin although 15 is no multiple of 64; every piece begins at one."""
    all_pieces = pieces()
    buffers = ParameterBuffers(all_pieces, device, "float64")
    starts = [flat(buffers, parameter) for parameter in buffers.parameters]
    assert starts == [0, 15, 30, 64, 128, 192]
    assert buffers.value.shape == buffers.grad.shape == (192 + 128,)
    assert ALIGNMENT == 64
    assert list(buffers) == buffers.parameters


def test_values_and_gradients_are_views(device):
    all_pieces = pieces()
    buffers = ParameterBuffers(all_pieces, device, "float64")
    buffers.value[...] = device.asarray(np.arange(320.0))
    buffers.grad[...] = device.asarray(np.arange(320.0) + 1000)
    matrix = all_pieces[3]
    np.testing.assert_array_equal(to_numpy(matrix.value), np.arange(192.0, 262.0).reshape(7, 10))
    np.testing.assert_array_equal(to_numpy(matrix.grad), 1000 + np.arange(192.0, 262.0).reshape(7, 10))
    np.testing.assert_array_equal(to_numpy(all_pieces[0].value), np.arange(45.0).reshape(15, 3))


def test_packed_is_its_parameters_on_top_of_each_other(device):
    packed = pieces()[0]
    ParameterBuffers([packed], device, "float64")
    for i, parameter in enumerate(packed.parameters):
        parameter.value[...] = float(i)
    assert packed.shape == (15, 3)
    np.testing.assert_array_equal(to_numpy(packed.value), np.repeat([0.0, 1.0, 2.0], 5)[:, None] * np.ones(3))

    gradient = np.random.default_rng(0).normal(size=(15, 3))
    packed.add_grad(device.asarray(gradient))
    packed.add_grad(device.asarray(gradient))
    for i, parameter in enumerate(packed.parameters):
        np.testing.assert_allclose(to_numpy(parameter.grad), 2 * gradient[5 * i : 5 * i + 5])
    with pytest.raises(ValueError, match=r"packed gradient has shape \(14, 3\), expected \(15, 3\)"):
        packed.add_grad(device.asarray(gradient[1:]))


def test_first_gradient_is_stored_and_later_ones_are_added(device):
    parameter = Parameter((2, 3))
    buffers = ParameterBuffers([parameter], device, "float64")
    buffers.grad[...] = float("nan")  # what stood there before must not matter
    parameter.fresh = True
    gradient = device.asarray(np.arange(6.0).reshape(2, 3))
    parameter.add_grad(gradient)
    np.testing.assert_array_equal(to_numpy(parameter.grad), np.arange(6.0).reshape(2, 3))
    parameter.add_grad(gradient)
    np.testing.assert_array_equal(to_numpy(parameter.grad), 2 * np.arange(6.0).reshape(2, 3))
    parameter.fresh = True
    parameter.add_grad(gradient)
    np.testing.assert_array_equal(to_numpy(parameter.grad), np.arange(6.0).reshape(2, 3))


def test_a_stored_gradient_is_a_copy(device):
    """The array handed over may be a buffer that its maker uses again."""
    parameter = Parameter((3,))
    ParameterBuffers([parameter], device, "float64")
    gradient = device.asarray(np.ones(3))
    parameter.add_grad(gradient)
    gradient[...] = 7.0
    parameter.add_grad(gradient)
    assert to_numpy(parameter.grad).tolist() == [8.0] * 3
    assert to_numpy(gradient).tolist() == [7.0] * 3


@pytest.mark.parametrize("shape", [(3,), (1, 3), (2, 1), (2, 3, 1), (3, 2), ()])
def test_a_gradient_of_another_shape_is_refused(device, shape):
    """All but the last but one would broadcast, or fit by chance."""
    parameter = Parameter((2, 3))
    parameter.name = "some.weight"
    ParameterBuffers([parameter], device, "float64")
    with pytest.raises(ValueError, match=r"'some\.weight' has shape .*, expected \(2, 3\)"):
        parameter.add_grad(device.asarray(np.ones(shape)))


def test_settling_zeroes_what_no_backward_has_written(device):
    written, unwritten = Parameter((3,)), Parameter((4,))
    buffers = ParameterBuffers([written, unwritten], device, "float64")
    for parameter in (written, unwritten):
        parameter.add_grad(device.asarray(np.ones(parameter.shape)))
    written.fresh = unwritten.fresh = True
    written.add_grad(device.asarray(np.full(3, 5.0)))
    assert sorted(to_numpy(buffers.grad[:3]).tolist()) == [5.0] * 3
    assert not to_numpy(buffers.grad[3:]).any()
    assert to_numpy(written.grad).tolist() == [5.0] * 3
    assert to_numpy(unwritten.grad).tolist() == [0.0] * 4
    unwritten.add_grad(device.asarray(np.ones(4)))
    unwritten.add_grad(device.asarray(np.ones(4)))
    assert to_numpy(unwritten.grad).tolist() == [2.0] * 4, "a settled gradient is added to"


def test_a_second_allocation_keeps_the_values(device):
    all_pieces = pieces()
    first = ParameterBuffers(all_pieces, device, "float64")
    numbers = np.random.default_rng(0).normal(size=first.value.shape)
    first.value[...] = device.asarray(numbers)
    before = [to_numpy(parameter.value).copy() for parameter in first]

    second = ParameterBuffers([Parameter((9,)), *reversed(all_pieces)], device, "float64")
    first.value[...] = 0.0  # the old buffer has nothing to do with them any more
    after = {id(parameter): to_numpy(parameter.value) for parameter in second}
    for parameter, value in zip(first, before, strict=True):
        np.testing.assert_array_equal(after[id(parameter)], value)
    assert to_numpy(all_pieces[0].value).any(), "the packed view is bound anew as well"
    np.testing.assert_array_equal(to_numpy(all_pieces[0].value), np.vstack(before[:3]))


def test_segments_are_the_fewest_runs_that_cover_the_buffer(device):
    all_pieces = pieces()
    buffers = ParameterBuffers(all_pieces, device, "float64")
    assert buffers.segments == [
        Segment(0, 128, decay=True, lr_scale=1.0, frozen=False),
        Segment(128, 192, decay=False, lr_scale=1.0, frozen=False),
        Segment(192, 320, decay=True, lr_scale=1.0, frozen=False),
    ]
    all_pieces[1].lr_scale = 0.5
    all_pieces[0].parameters[1].frozen = True
    assert buffers.segments == [
        Segment(0, 15, decay=True, lr_scale=1.0, frozen=False),
        Segment(15, 30, decay=True, lr_scale=1.0, frozen=True),
        Segment(30, 64, decay=True, lr_scale=1.0, frozen=False),
        Segment(64, 128, decay=True, lr_scale=0.5, frozen=False),
        Segment(128, 192, decay=False, lr_scale=1.0, frozen=False),
        Segment(192, 320, decay=True, lr_scale=1.0, frozen=False),
    ]


def test_gaps_stay_zero_through_optimiser_steps(device):
    all_pieces = pieces()
    buffers = ParameterBuffers(all_pieces, device, "float32")
    gap = np.ones(320, bool)
    for start, size in ((0, 45), (64, 64), (128, 5), (192, 70)):
        gap[start : start + size] = False
    rng = np.random.default_rng(0)
    mean, variance = buffers.value * 0, buffers.value * 0
    for _ in range(3):
        for parameter in buffers:
            parameter.fresh = True
            parameter.add_grad(device.asarray(rng.normal(size=parameter.shape), dtype="float32"))
        ops.adamw_update(buffers.value, buffers.grad, mean, variance, 0.1, 1.0, 0.9, 0.999, 1e-6, 0.01)
    for array in (buffers.value, buffers.grad, mean, variance):
        assert ((to_numpy(array) == 0) == gap).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_products_read_a_copy_in_16_bits(device, dtype):
    check_precision(PRECISIONS[dtype], device)
    first, second = Parameter((2, 3)), Parameter((4, 3))
    packed = Packed([first, second])
    buffers = ParameterBuffers([packed], device, "float32", dtype)
    first.value[...], second.value[...] = 1 / 3, 2 / 3
    assert not to_numpy(packed.operand).any(), "not before it is told"
    buffers.round_operand()
    for piece in (first, second, packed):
        assert (piece.operand.dtype.name, piece.operand.shape) == (dtype, piece.shape)
        np.testing.assert_array_equal(to_numpy(piece.operand), to_numpy(piece.value).astype(dtype))
    assert {buffers.value.dtype.name, buffers.grad.dtype.name, first.value.dtype.name} == {"float32"}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_value_that_is_set_is_rounded_for_products_too(device, dtype):
    """A training loop of one's own, ``parameter.value -= …``, would otherwise change nothing."""
    check_precision(PRECISIONS[dtype], device)
    parameter = Parameter((2, 3))
    ParameterBuffers([parameter], device, "float32", dtype)
    parameter.value = device.asarray(np.full((2, 3), 1.5, "float32"))
    np.testing.assert_array_equal(to_numpy(parameter.operand), np.full((2, 3), 1.5))
    parameter.value -= 0.5
    np.testing.assert_array_equal(to_numpy(parameter.operand), np.full((2, 3), 1.0))


def test_without_a_copy_products_read_the_values(device):
    parameter = Parameter((2, 3))
    packed = Packed([parameter])
    buffers = ParameterBuffers([packed], device, "float32")
    assert buffers.operand is buffers.value
    assert (parameter.operand is parameter.value, packed.operand is packed.value) == (True, True)


def test_values_that_are_already_there_are_copied_too(device):
    parameter = Parameter((2, 3))
    ParameterBuffers([parameter], device, "float32")
    parameter.value[...] = 1.5
    ParameterBuffers([parameter], device, "float32", "float16")
    assert to_numpy(parameter.operand).tolist() == [[1.5] * 3] * 2
