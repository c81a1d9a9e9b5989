"""Ranks that are threads: what they send arrives, and a wrong program ends."""

import numpy as np
import pytest

from minibert.course import ring
from minibert.course.ring import in_threads


def test_each_rank_gets_what_the_one_before_sends():
    def pass_on(x, rank, N, send, receive):
        send(x[: rank + 1])
        return receive().sum()

    results, sent = in_threads(pass_on)(np.arange(12.0).reshape(3, 4))
    assert results.tolist() == [8 + 9 + 10, 0, 4 + 5] and sent.tolist() == [1, 2, 3]


def test_what_was_sent_does_not_change_any_more():
    def change_after_sending(x, rank, N, send, receive):
        send(x)
        x += 100
        return receive()

    assert in_threads(change_after_sending)(np.zeros((2, 3)))[0].max() == 0


def test_errors_of_a_rank_are_raised(monkeypatch):
    monkeypatch.setattr(ring, "PATIENCE", 0.1)

    def waits(x, rank, N, send, receive):
        return receive()

    def stub(x, rank, N, send, receive):
        raise NotImplementedError

    with pytest.raises(RuntimeError, match="waits for a message that nobody sends"):
        in_threads(waits)(np.zeros((2, 3)))
    with pytest.raises(NotImplementedError):
        in_threads(stub)(np.zeros((2, 3)))
