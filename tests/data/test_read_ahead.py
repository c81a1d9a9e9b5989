"""Batches made in advance are those of the stream, wherever it begins."""

import gc
import time

import numpy as np
import pytest

from minibert.data import BatchStream, InstanceSettings, ReadAhead
from minibert.errors import UserError

SETTINGS = InstanceSettings(max_seq_length=32, max_predictions=5)
BATCHES = 40  # several passes over the documents


@pytest.fixture
def stream(make_documents, numbered_vocabulary):
    rng = np.random.default_rng(0)
    documents = make_documents([rng.integers(1, 12, size=rng.integers(1, 20)).tolist() for _ in range(60)])
    return lambda: BatchStream(documents, numbered_vocabulary, SETTINGS, batch_size=8)


def same(one, other):
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("most", [1, 7, 128])
def test_batches_and_positions_are_the_streams(stream, most):
    plain, ahead = stream(), ReadAhead(stream(), most)
    assert ahead.state() == plain.state()
    for _ in range(BATCHES):
        assert same(next(ahead), next(plain))
        assert ahead.state() == plain.state()
    assert plain.state()["pass"] > 0
    ahead.skip()
    plain.skip()
    assert same(next(ahead), next(plain))


def test_batches_are_made_before_they_are_taken(stream):
    source = stream()
    ahead = ReadAhead(source, most=5)
    next(ahead)
    ahead._thread.shutdown()  # which waits for all that has been asked for
    assert len(ahead._made) == 4 and all(future.done() for future in ahead._made)


def test_no_batches_are_made_for_an_object_that_is_gone(stream):
    class Slow:
        """A stream of whose batches each takes a moment."""

        made = 0

        def __next__(self):
            time.sleep(0.01)
            Slow.made += 1

        def state(self):
            return {}

    ahead = ReadAhead(Slow(), most=128)
    next(ahead)
    thread = ahead._thread
    del ahead
    gc.collect()
    thread.shutdown()  # which waits for the batch that was being made
    assert Slow.made < 10


def test_it_goes_back_to_a_position(stream):
    ahead = ReadAhead(stream(), most=9)
    batches = [(ahead.state(), next(ahead)) for _ in range(BATCHES)]
    for number in (25, 3, 39):
        place, batch = batches[number]
        ahead.restore(place)
        assert ahead.state() == place
        assert same(next(ahead), batch)
        if number + 1 < BATCHES:
            assert same(next(ahead), batches[number + 1][1])


def test_errors_are_raised_where_the_batch_is_taken(stream):
    source = stream()
    ahead = ReadAhead(source, most=3)
    with pytest.raises(UserError, match="lies beyond these documents"):
        ahead.restore({"pass": 0, "block": 99, "row": 0})

    class Broken:
        def state(self):
            return {}

        def __next__(self):
            raise UserError("no more text")

    with pytest.raises(UserError, match="no more text"):
        next(ReadAhead(Broken()))
