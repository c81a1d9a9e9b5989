"""The context of a forward pass: dropout's keys, observers, names."""

import numpy as np
import pytest

from minibert.arrays import to_numpy
from minibert.dropout_bits import dropout_key, dropout_stream
from minibert.nn import Context, Observer, Recorder, observed_backward
from minibert.nn.context import KEYS_AT_ONCE


def training(device, step=0):
    return Context(training=True, stream=device.asarray(dropout_stream(1, step, 2, 3)))


def words(key):
    return tuple(to_numpy(key).tolist())


# -- Dropout ----------------------------------------------------------------------------------------


def test_every_use_of_dropout_gets_the_key_of_its_number(device):
    """More of them than are made at once; a use with probability 0 counts and gets none."""
    context = training(device, step=7)
    keys = [context.dropout_key(0.0 if i == 2 else 0.1) for i in range(2 * KEYS_AT_ONCE + 3)]
    assert keys[2] is None
    for i, key in enumerate(keys):
        assert key is None or words(key) == dropout_key(1, 7, 2, 3, i), i


def test_the_contexts_of_one_pass_count_together_and_a_copy_by_itself(device):
    context = training(device).with_observer(Recorder([]))
    inside = context.inside("encoder")
    first = words(context.dropout_key(0.1))
    copy = inside.copy()
    second = words(inside.dropout_key(0.1))
    third = words(context.dropout_key(0.1))
    assert len({first, second, third}) == 3
    assert [words(copy.dropout_key(0.1)) for _ in range(2)] == [second, third]
    assert words(context.dropout_key(0.1)) == dropout_key(1, 0, 2, 3, 3)


def test_without_training_there_is_no_dropout(device):
    assert Context().dropout_key(0.5) is None
    context = training(device)
    assert context.without_dropout().dropout_key(0.5) is None
    assert context.dropout_key(0.5) is not None
    with pytest.raises(ValueError, match="a context for training needs a stream"):
        Context(training=True)


# -- Observers --------------------------------------------------------------------------------------


def test_nobody_watches_by_default():
    context, value = Context(), np.ones(3)
    assert not context.observed and not context.wants("anything")
    assert context.inside("layer") is context
    assert context.observe("anything", value) == (value, None)
    assert observed_backward(value, None) is value


def test_values_are_seen_by_their_full_names():
    seen = {}
    context = Context(observer=seen.__setitem__).inside("encoder").inside("layer.0")
    value, cache = context.observe("output", np.ones(3))
    assert list(seen) == ["encoder.layer.0.output"] and seen["encoder.layer.0.output"] is value
    assert context.name("x") == "encoder.layer.0.x"
    np.testing.assert_array_equal(observed_backward(2 * value, cache), 2 * value)


def test_what_takes_a_values_place_is_a_constant(device):
    zeros = device.asarray(np.zeros(3))
    context = Context(observer=lambda name, value: zeros if name == "a" else None)
    ones = device.asarray(np.ones(3))
    a, a_cache = context.observe("a", ones)
    b, b_cache = context.observe("b", ones)
    assert a is zeros and b is ones
    assert to_numpy(observed_backward(ones, a_cache)).tolist() == [0.0] * 3
    assert to_numpy(observed_backward(ones, b_cache)).tolist() == [1.0] * 3


def test_what_takes_a_values_place_has_its_dtype_and_shape(device):
    ones = device.asarray(np.ones((2, 3), "float32"))
    halves = device.asarray(np.array([0.5, 0.5, 1.0]))  # float64: so is the product

    class Scales(Observer):
        def forward(self, name, value):
            return value * halves

        backward = forward

    value, cache = Context(observer=Scales()).observe("a", ones)
    dvalue = observed_backward(ones, cache)
    assert value.dtype == dvalue.dtype == np.float32
    assert to_numpy(value).tolist() == to_numpy(dvalue).tolist() == [[0.5, 0.5, 1.0]] * 2
    with pytest.raises(ValueError, match=r"an observer answered \(2, 3\) with an array of shape \(3,\)"):
        Context(observer=lambda name, value: halves).observe("b", ones)


class Doubles(Observer):
    """Multiplies the values that it wants by two, and therefore their derivatives too."""

    def __init__(self, name):
        self.name, self.derivatives = name, []

    def wants(self, name):
        return name == self.name

    def forward(self, name, value):
        return 2 * value

    def backward(self, name, dvalue):
        self.derivatives.append(dvalue)
        return 2 * dvalue


def test_an_observer_may_compute_with_a_value_and_its_derivative():
    first, second, recorder = Doubles("x"), Doubles("x"), Recorder(["x", "y"])
    context = Context(observer=first).with_observer(second).with_observer(recorder)
    assert context.wants("y") and context.wants("z", "x") and not context.wants("z")
    x, cache = context.observe("x", np.ones(2))
    assert x.tolist() == [4.0] * 2 and recorder.values["x"] is x
    assert observed_backward(np.ones(2), cache).tolist() == [4.0] * 2
    assert second.derivatives[0].tolist() == [1.0] * 2 and first.derivatives[0].tolist() == [2.0] * 2
    assert context.observe("z", x)[1] is None


def test_a_recorder_adds_derivatives(device):
    recorder = Recorder(["a", "b"])
    context = Context(observer=recorder)
    ones = device.asarray(np.ones(2))
    caches = [context.observe(name, ones)[1] for name in "ab"]
    recorder.add([None, 3 * ones])
    assert [to_numpy(observed_backward(ones, cache)).tolist() for cache in caches] == [[1.0] * 2, [4.0] * 2]


def test_what_an_observer_keeps_is_not_overwritten_later():
    kept = Doubles("x")
    _, cache = Context(observer=kept).observe("x", np.ones(2))
    dvalue = np.ones(2)
    observed_backward(dvalue, cache)
    dvalue += 5.0
    assert kept.derivatives[0].tolist() == [1.0] * 2
