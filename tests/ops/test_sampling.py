"""Words drawn from a distribution."""

import numpy as np
import pytest

from minibert import ops

KEY = (17, 4)


def test_classes_are_drawn_as_often_as_their_probabilities_say(xp):
    logits = np.array([0.0, 1.0, -2.0, 3.0, -np.inf, 2.0])
    p = np.exp(logits) / np.exp(logits).sum()
    rows = 200_000
    drawn = ops.sample_classes(xp.asarray(np.tile(logits, (rows, 1)).astype(np.float32)), KEY)
    counts = np.bincount(np.asarray(drawn.get() if hasattr(drawn, "get") else drawn), minlength=6)
    assert len(counts) == 6 and counts[4] == 0 and str(drawn.dtype) == "int32"
    assert (abs(counts - rows * p) <= 4.5 * np.sqrt(rows * p * (1 - p))).all()


def test_the_draw_is_a_function_of_the_key_and_the_row():
    logits = np.random.default_rng(0).standard_normal((500, 9))
    drawn = ops.sample_classes(logits, KEY)
    assert (ops.sample_classes(logits + 100.0, KEY) == drawn).all()  # softmax does not see a constant
    assert (ops.sample_classes(logits[:100], KEY) == drawn[:100]).all()
    assert (ops.sample_classes(logits, (17, 5)) != drawn).mean() > 0.5
    assert len(set(ops.sample_classes(np.zeros((500, 9)), KEY).tolist())) == 9


@pytest.mark.parametrize("sure", [0, 4, 8])
def test_a_certain_class_is_always_drawn(sure):
    logits = np.zeros((1000, 9), dtype=np.float32)
    logits[:, sure] = 200
    assert (ops.sample_classes(logits, KEY) == sure).all()


def test_rounding_never_leads_beyond_the_last_class():
    """In float32 the sum of 100,000 equal probabilities is not 1."""
    drawn = ops.sample_classes(np.zeros((300, 100_000), dtype=np.float32), KEY)
    assert drawn.min() >= 0 and drawn.max() < 100_000
    assert abs(drawn.mean() / 50_000 - 1) < 4.5 / np.sqrt(3 * 300)
