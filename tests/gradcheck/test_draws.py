"""The random arrays of the gradient checks."""

import pytest

from minibert.gradcheck import Draws


def test_draws_repeat_an_id_and_scale_matrices(device):
    draw = Draws(device, 3)
    ids = draw.ids(1000, 3, 4).reshape(-1)
    assert int(ids[0]) == int(ids[-1])
    assert float((draw.matrix(200, 50) ** 2).mean()) == pytest.approx(1 / 50, rel=0.1)
