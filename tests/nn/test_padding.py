"""Padding that is left out of the encoder: which rows are computed, when, and how they are put back."""

import numpy as np
import pytest

from minibert import ops
from minibert.arrays import to_numpy
from minibert.nn import Context, padding_to_leave_out
from minibert.nn.padding import rows_to_encode
from minibert.nn.places import Places

MASK = np.array([[1, 1, 1, 1], [1, 0, 0, 0], [1, 1, 0, 1], [1, 0, 0, 0]])
OUT = Context(padding=False)


def test_the_rows_are_the_real_tokens_text_by_text_from_the_shortest(device):
    rows, starts = rows_to_encode(device.asarray(MASK))
    assert to_numpy(rows).tolist() == [4, 12, 8, 9, 11, 0, 1, 2, 3]
    assert to_numpy(starts).tolist() == [0, 1, 2, 5, 9]


def test_what_is_left_out_comes_back_as_zeros(device):
    x = device.asarray(np.random.default_rng(0).standard_normal((4, 4, 3)))
    padding = padding_to_leave_out(device.asarray(MASK), x, OUT)
    tokens = padding.leave_out(x)
    assert tokens.shape == (9, 3)
    np.testing.assert_array_equal(to_numpy(padding.put_back(tokens)), to_numpy(x) * MASK[..., None])
    assert padding.starts_or("bias") is padding.starts


def stays(padding: Places) -> bool:
    x = object()
    return padding.rows is None and {padding.leave_out(x), padding.put_back(x), padding.starts_or(x)} == {x}


@pytest.mark.parametrize(
    ("mask", "context", "needed"),
    [
        (np.ones((2, 3)), OUT, False),  # there is none
        ([[0, 1, 1], [1, 1, 1]], OUT, False),  # a head may read the first place
        ([[1, 1, 1], [0, 0, 0]], OUT, False),  # a text without a token
        (MASK, OUT, True),
        (MASK, Context(), False),  # there is no kernel for float64
        (MASK, Context(padding=True), False),
        (MASK, OUT.with_padding(), False),
        (MASK, OUT.with_observer(lambda name, value: None), False),
    ],
)
def test_where_padding_stays(device, mask, context, needed):
    hidden = device.asarray(np.zeros((1, 1, 1)))
    assert stays(padding_to_leave_out(device.asarray(np.asarray(mask, dtype=int)), hidden, context, needed))


def test_it_is_left_out_by_default_where_there_is_a_kernel():
    hidden = np.zeros((1, 1, 1), "float32")
    there_is_one = ("numpy", "float32") in ops.TABLE["unpadded_attention"].kernels
    assert stays(padding_to_leave_out(MASK, hidden, Context())) != there_is_one
    assert stays(padding_to_leave_out(MASK, hidden, Context(padding=True)))
    with ops.reference_only():
        assert stays(padding_to_leave_out(MASK, hidden, Context()))


def test_every_context_of_a_pass_says_the_same():
    context = Context(padding=False).with_observer(lambda name, value: None)
    assert context.inside("encoder").padding is context.copy().padding is False
    assert context.with_padding().without_dropout().padding is True
