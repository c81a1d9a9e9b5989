"""What guessing by frequency reaches."""

import numpy as np
import pytest

from minibert.data import unigram_plateau


def test_loss_and_accuracy_by_hand():
    counts = np.array([5, 2, 0])  # smoothed: 6/10, 3/10, 1/10
    labels = np.array([[0, -100, 1], [2, 0, -100]])
    loss, accuracy = unigram_plateau(counts, labels)
    assert loss == pytest.approx(-np.log([0.6, 0.3, 0.1, 0.6]).mean())
    assert accuracy == 0.5
