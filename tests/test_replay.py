"""The same computation again and again: on the CPU called, on a GPU (a recorder stands for it) replayed."""

import warnings
from dataclasses import dataclass

import numpy as np
import pytest
import strict
from recorder import MemoryPool, recording_device

from minibert.arrays import Array, to_numpy
from minibert.devices import Device
from minibert.errors import UserError
from minibert.replay import WARM_UP, Repetition

CALLS = WARM_UP + 4


@dataclass(frozen=True)
class Inputs:
    rows: list[Array]
    rate: Array
    nothing: None = None


def inputs(number, length=3):
    rows = [np.arange(length, dtype=dtype) + number for dtype in (np.int32, np.float64)]
    return Inputs(rows, np.array(0.5 * number))


def accumulator(device):
    """A total, and a function that adds something to it that every input has a part in."""
    total = device.xp.zeros((), dtype="float64")

    def function(given):
        nonlocal total
        assert given.nothing is None
        total += (given.rows[0] * given.rows[1]).sum() * given.rate

    return total, function


def expected(calls):
    return sum((np.arange(3) + n) @ (np.arange(3) + n) * 0.5 * n for n in range(calls))


DEVICES = {
    "numpy": lambda: Device("cpu", np),
    "recorder": recording_device,
}


@pytest.mark.parametrize("graph", [True, False])
@pytest.mark.parametrize("kind", DEVICES)
def test_every_call_computes_with_its_own_inputs(kind, graph):
    device = DEVICES[kind]()
    total, function = accumulator(device)
    repetition = Repetition(device, function, graph=graph)
    for number in range(CALLS):
        repetition(inputs(number))
        assert float(to_numpy(total)) == expected(number + 1)
    assert repetition.replaying == (kind == "recorder" and graph)
    assert repetition.fixed_shapes == (kind == "recorder")
    if repetition.replaying:
        (graph,) = device.xp.cuda.graphs
        assert graph.launches == CALLS - WARM_UP


def test_a_real_gpu_does_the_same():
    from minibert.devices import resolve_device

    try:
        device = resolve_device("cuda")
    except UserError as error:
        pytest.skip(str(error))
    total, function = accumulator(device)
    repetition = Repetition(device, function)
    for number in range(CALLS):
        repetition(inputs(number))
    assert float(to_numpy(total)) == expected(CALLS)
    assert repetition.replaying


def test_arrays_stay_where_they_are_and_begin_at_aligned_places():
    device, seen = Device("cpu", np), []
    repetition = Repetition(device, lambda given: seen.append(given))
    repetition(inputs(0))
    repetition(inputs(1))
    assert seen[0].rows[0] is seen[1].rows[0]
    base = seen[0].rows[0].ctypes.data
    assert [(a.ctypes.data - base) % 256 for a in (*seen[0].rows, seen[0].rate)] == [0, 0, 0]
    assert [a.dtype for a in seen[0].rows] == [np.int32, np.float64] and seen[0].rate.shape == ()


def test_inputs_of_another_layout_are_recorded_anew(monkeypatch):
    freed = []
    monkeypatch.setattr(MemoryPool, "free_all_blocks", lambda pool: freed.append(pool))
    device = recording_device()
    seen = []
    repetition = Repetition(device, lambda given: seen.append(given.rows[0].shape))
    for length in (3, 5):
        for number in range(CALLS):
            repetition(inputs(number, length))
    assert seen == [(3,)] * (WARM_UP + 1) + [(5,)] * (WARM_UP + 1)
    assert len(device.xp.cuda.graphs) == 2
    assert len(freed) == 2 and freed[0] is freed[1], "memory for the old shapes would stay in the pool"


def test_it_says_how_much_memory_its_pool_has_held(monkeypatch):
    held = [0]
    monkeypatch.setattr(MemoryPool, "total_bytes", lambda pool: held[-1])
    device = recording_device()
    repetition = Repetition(device, lambda given: None)
    for length, holds, most in ((3, 123, 123), (5, 45, 123), (3, 200, 200)):
        held.append(holds)
        repetition(inputs(0, length))
        assert repetition.pool_bytes == most
    assert Repetition(Device("cpu", np), lambda given: None).pool_bytes == 0


def test_without_a_graph_there_is_no_other_pool(monkeypatch):
    """Every layout would give all memory back, only to ask for it again; and nobody would count it."""
    monkeypatch.setattr(MemoryPool, "free_all_blocks", lambda pool: pytest.fail("memory is given back"))
    monkeypatch.setattr(MemoryPool, "total_bytes", lambda pool: 123)
    device = recording_device()
    repetition = Repetition(device, lambda given: seen.append(device.xp.cuda.in_pool), graph=False)
    seen = []
    for length in (3, 5, 3):
        repetition(inputs(0, length))
    assert seen == [False] * 3 and repetition.pool_bytes == 0


def test_the_order_of_the_two_streams():
    """Nothing is overwritten before it has been read, or read before it has been written."""
    device = recording_device()
    cuda = device.xp.cuda
    repetition = Repetition(device, lambda given: None)
    repetition(inputs(0))
    (consumed,) = [of for who, what, of in cuda.log if (who, what) == ("computing", "records")][:1]
    cuda.log.clear()
    repetition(inputs(1))
    names = [(who, what, of and of[0]) for who, what, of in cuda.log]
    assert names == [
        ("host", "waits for", "copying"),  # the last copy has left the host's memory
        ("copying", "waits for", "computing"),  # the last call has read staging
        ("copying", "records", "copying"),
        ("null", "records", "null"),
        ("computing", "waits for", "null"),  # whatever the caller did before
        ("computing", "waits for", "copying"),  # the inputs have arrived in staging
        ("computing", "records", "computing"),
        ("computing", "records", "computing"),
        ("null", "waits for", "computing"),  # the caller sees the results
    ]
    assert cuda.log[1][2] == consumed


def refused(device, how):
    """A function that does what no graph can hold, and a total that it adds to."""
    total, function = accumulator(device)

    def function_with_a_fault(given):
        function(given)
        how(device, given)

    return total, function_with_a_fault


FAULTS = {
    "reads a value": lambda device, given: float(given.rate),
    "branches on one": lambda device, given: bool(given.rate > 1.0),
    "copies to the host": lambda device, given: to_numpy(given.rate),
    "copies from the host": lambda device, given: device.asarray(np.zeros(2)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_cannot_be_recorded_is_called_with_one_warning(fault):
    device = recording_device()
    total, function = refused(device, FAULTS[fault])
    repetition = Repetition(device, function)
    for number in range(WARM_UP):
        repetition(inputs(number))
    with pytest.warns(UserWarning, match="not recorded as a CUDA graph, so slower: the stream is capturing"):
        repetition(inputs(WARM_UP))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        repetition(inputs(WARM_UP + 1))
    assert not repetition.replaying
    assert float(to_numpy(total)) == expected(WARM_UP + 2)


def test_a_number_that_python_changes_is_seen_in_the_recorder():
    """So that the tests with the recorder can fail: a graph goes on with the number of its recording."""
    device = recording_device()
    total, numbers = device.xp.zeros((), dtype="float64"), iter(range(100))

    def function(given):
        nonlocal total
        total += given.rate * 0.0 + next(numbers)

    repetition = Repetition(device, function)
    for number in range(CALLS):
        repetition(inputs(number))
    assert float(to_numpy(total)) == sum(range(WARM_UP)) + WARM_UP * (CALLS - WARM_UP)


def test_a_persons_mistake_is_no_reason_to_go_on():
    device = recording_device()

    def function(given):
        if strict.capturing():
            raise UserError("no such file")

    repetition = Repetition(device, function)
    with pytest.raises(UserError, match="no such file"):
        for number in range(CALLS):
            repetition(inputs(number))


@pytest.mark.parametrize("device", [Device("cpu", np), recording_device()], ids=["cpu", "recorder"])
def test_another_argument_of_the_same_shape(device):
    @dataclass
    class Either:
        first: Array | None = None
        second: Array | None = None

    seen = []
    repetition = Repetition(device, lambda given: seen.append((given.first is None, given.second is None)))
    for name in ("first", "second", "first"):
        repetition(Either(**{name: np.zeros(3)}))
    assert seen == [(False, True), (True, False), (False, True)]
