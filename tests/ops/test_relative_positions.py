"""Attention to distances, compared with the definition, written out query by query and key by key."""

import numpy as np
import pytest

from minibert import ops
from minibert.arrays import to_numpy
from minibert.ops.attention import MASKED
from minibert.ops.relative_positions import relative_shift

PLACES = np.array([[0, 1, 2, 3, 1], [0, 1, 2, 3, 3]])  # of T = 5 queries among S = 4 keys
SEGMENTS = np.array([[0, 0, 1, 2], [4, 4, 4, 0]])
HIDDEN = np.array([[0, 0, 0, 1], [1, 0, 0, 0]])  # keys that nobody may see
ELSEWHERE = np.take_along_axis(SEGMENTS, PLACES, axis=1)[:, :, None] != SEGMENTS[:, None]  # (B, T, S)


@pytest.fixture
def arguments(device, draw):
    """B = 2, T = 5, S = 4, A = 2, D = 3."""
    inputs = draw(2, 5, 6), draw(2, 4, 6), draw(2, 4, 6), draw(7, 6)
    learned = draw(2, 3), draw(2, 3), draw(2, 3), draw(2, 2, 3)
    bias = device.asarray(MASKED * HIDDEN[:, None, None], dtype="float64")
    places = device.asarray(3 - PLACES), device.asarray(ELSEWHERE[:, None], dtype="float64"), bias
    return *inputs, *learned, *places, 0.0, None, lambda name, value: (value, None)


def test_relative_shift_takes_a_window_of_each_row(device, draw):
    x = draw(2, 3, 5, 7)
    y, _ = relative_shift(x, device.asarray(3 - PLACES), 4)
    for b, a, t, j in np.ndindex(2, 3, 5, 4):
        distance = PLACES[b, t] - j  # and the first column is that of the distance 3
        assert to_numpy(y)[b, a, t, j] == to_numpy(x)[b, a, t, 3 - distance]


def test_relative_attention_is_its_definition(arguments):
    y, _ = ops.relative_attention(*arguments)
    q, k, v, r, u, w, t, e = (to_numpy(array) for array in arguments[:8])
    q, k, v = (x.reshape(2, -1, 2, 3) for x in (q, k, v))  # (B, T or S, A, D)
    r = r.reshape(7, 2, 3)
    expected = np.zeros((2, 5, 2, 3))
    for b, i, a in np.ndindex(2, 5, 2):
        scores = np.empty(4)
        for j in range(4):
            distance = PLACES[b, i] - j
            content = (q[b, i, a] + u[a]) @ k[b, j, a]
            position = (q[b, i, a] + w[a]) @ r[3 - distance, a]
            segment = (q[b, i, a] + t[a]) @ e[int(ELSEWHERE[b, i, j]), a]
            scores[j] = (content + position + segment) / np.sqrt(3) - 1e30 * HIDDEN[b, j]
        p = np.exp(scores - scores.max())
        expected[b, i, a] = p @ v[b, :, a] / p.sum()
    np.testing.assert_allclose(to_numpy(y), expected.reshape(2, 5, 6), rtol=1e-11, atol=1e-13)


def test_every_step_is_shown_and_what_is_returned_is_used(arguments):
    seen = {}

    def observe(name, value):
        seen[name] = value.shape
        return (value * 0.0 if name == "context" else value), None

    y, _ = ops.relative_attention(*arguments[:-1], observe)
    assert seen == {
        "q": (2, 2, 5, 3),
        "k": (2, 2, 4, 3),
        "v": (2, 2, 4, 3),
        "scores": (2, 2, 5, 4),
        "probabilities": (2, 2, 5, 4),
        "context": (2, 5, 6),
    }
    assert not to_numpy(y).any()


def test_product(draw):
    x, weight = draw(2, 3, 4), draw(4, 5)
    expected = np.einsum("bsk,kn->bsn", to_numpy(x), to_numpy(weight))
    np.testing.assert_allclose(to_numpy(ops.product(x, weight)[0]), expected, rtol=1e-12, atol=1e-14)
