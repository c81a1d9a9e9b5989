"""Large arrays in memory that was used before: never two at once in the same place, never too much held."""

import os
import threading

import numpy as np
import pytest

memory = pytest.importorskip("minibert.kernels.cpu.memory")

SHAPE = (600, 1000)  # 2.4 MB


@pytest.fixture
def stock(monkeypatch):
    """A stock of its own, empty."""
    stock = memory._Stock()
    monkeypatch.setattr(memory, "_stock", stock)
    return stock


def _address(array):
    return array.__array_interface__["data"][0]


def test_an_array_of_float32(stock):
    for shape in (SHAPE, (3,), (0, 4), (700, 30, 40)):
        array = memory.empty(shape)
        assert (array.shape, array.dtype) == (shape, np.float32)
        assert array.flags.c_contiguous and array.flags.writeable
        assert memory.empty_like(array).shape == shape


def test_freed_memory_is_used_again(stock):
    array = memory.empty(SHAPE)
    address = _address(array)
    del array
    again = memory.empty((599, 1001))  # a little smaller: the same size of buffer
    assert _address(again) == address
    assert _address(memory.empty(SHAPE)) != address


def test_a_view_keeps_its_memory(stock):
    array = memory.empty(SHAPE)
    view = array[3:5].T.reshape(-1)[::2].view(np.int32)
    inner = array.reshape(-1)[17:]
    del array
    other = memory.empty(SHAPE)
    other[...] = 1
    view[...], inner[...] = 2, 3
    assert (other == 1).all()
    del view, inner
    assert stock.free_bytes > 0


def test_small_arrays_are_left_to_numpy(stock):
    array = memory.empty((10, 10))
    del array
    assert stock.most_used == stock.free_bytes == 0


def test_never_much_more_is_held_than_was_needed_at_once(stock):
    for rows in range(300, 3000, 100):
        array = memory.empty((rows, 1000))
        del array
        assert stock.used_bytes == 0
        assert stock.free_bytes <= 1.25 * stock.most_used
        array = memory.empty((rows + 300, 1000))
        assert stock.used_bytes + stock.free_bytes <= 1.25 * stock.most_used
        del array
    held = [memory.empty(SHAPE) for _ in range(5)]
    assert stock.used_bytes >= 5 * 4 * 600_000
    del held
    assert stock.used_bytes == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_process_does_not_wait_for_a_thread_of_its_parent(stock):
    held, leave = threading.Event(), threading.Event()

    def hold():
        with stock.lock:
            held.set()
            leave.wait(20)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait(20)
    child = os.fork()
    if not child:
        os._exit(0 if stock.lock.acquire(timeout=5) else 1)
    _, status = os.waitpid(child, 0)
    leave.set()
    holder.join()
    assert status == 0


def test_an_array_for_which_there_is_no_memory_is_not_counted(stock):
    with pytest.raises(MemoryError):
        memory.empty((1 << 50,))
    assert stock.used_bytes == stock.most_used == 0
