"""How many threads compute, and what they share."""

import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import threadpoolctl

from minibert import threads
from minibert.errors import UserError
from minibert.threads import get_threads, run_all, run_blocks, set_threads


def test_threads(restore_threads):
    def of_blas():
        return {pool["num_threads"] for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas"}

    for count in (1, 2):
        set_threads(count)
        assert get_threads() == count
        assert of_blas() == {count}
    with pytest.raises(UserError, match=r"a whole number of at least 1, got 1\.5"):
        set_threads(1.5)
    with pytest.raises(UserError, match="at least 1, got 0"):
        set_threads(0)
    assert get_threads() == 2


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize(("rows", "block"), [(0, 4), (1, 4), (4, 4), (5, 4), (103, 10)])
def test_blocks_cover_all_rows_once(restore_threads, count, rows, block):
    set_threads(count)
    done = []
    run_blocks(done.append, rows, block)
    done.sort(key=lambda piece: piece.start)
    assert [row for piece in done for row in range(piece.start, piece.stop)] == list(range(rows))
    assert all(piece.start % block == 0 and piece.stop - piece.start <= block for piece in done)


def blas_threads():
    pools = threadpoolctl.threadpool_info()
    return {pool["num_threads"] for pool in pools if pool["user_api"] == "blas"}


@pytest.mark.parametrize("tasks", [1, 5])
def test_blas_has_one_thread_inside_and_all_of_them_afterwards(restore_threads, tasks):
    """Also when there is a single task: a resumed run computes its first step like all others."""
    set_threads(2)
    inside = []
    run_all([lambda: inside.append(blas_threads())] * tasks)
    assert inside == [{1}] * tasks
    assert blas_threads() == {2} and get_threads() == 2
    with pytest.raises(ZeroDivisionError):
        run_all([lambda: 1 / 0])
    assert blas_threads() == {2}, "also after an error"
    with threadpoolctl.threadpool_limits(1, user_api="blas"):
        run_all([lambda: None])
        assert blas_threads() == {1}, "what somebody else has set is put back too"


def test_a_task_may_share_tasks_too(restore_threads):
    """The pool's threads are all taken, so nobody may wait for one."""
    set_threads(2)
    done: list[int] = []

    def task():
        run_all([lambda: done.append(1)] * 3)

    caller = threading.Thread(target=run_all, args=([task] * 4,), daemon=True)
    caller.start()
    caller.join(20)
    assert not caller.is_alive() and len(done) == 12
    both = threading.Barrier(2)
    run_all([lambda: both.wait(20)] * 2)  # afterwards tasks are shared again; alone, one would wait in vain


def test_nobody_waits_for_a_thread_that_others_keep_busy(restore_threads):
    """The caller computes all tasks, and does not wait until the other thread could have helped."""
    set_threads(2)
    both, leave, done = threading.Barrier(3), threading.Event(), []

    def busy():
        both.wait(20)
        leave.wait(20)

    others = threading.Thread(target=run_all, args=([busy] * 2,))
    others.start()
    both.wait(20)  # now both tasks have begun
    caller = threading.Thread(target=run_all, args=([lambda: done.append(1)] * 3,), daemon=True)
    caller.start()
    caller.join(10)
    assert done == [1, 1, 1] and not caller.is_alive()
    leave.set()
    others.join(20)


def test_threads_end_when_another_number_is_set(restore_threads):
    def helpers():
        return [thread for thread in threading.enumerate() if thread.name.startswith("minibert")]

    set_threads(4)
    run_all([lambda: None] * 4)
    before = helpers()
    assert len(before) >= 3
    set_threads(2)
    run_all([lambda: None] * 2)
    for thread in before:
        thread.join(10)
    assert len(helpers()) == 1


def test_a_number_that_is_set_meanwhile_holds_afterwards(restore_threads):
    set_threads(2)
    inside = []
    run_all([lambda: set_threads(3), lambda: inside.append(blas_threads())])
    assert inside == [{1}] and blas_threads() == {3} and get_threads() == 3


def test_the_number_may_be_set_while_others_share_tasks(restore_threads):
    stop, errors = threading.Event(), []

    def share():
        while not stop.is_set():
            try:
                run_all([lambda: None] * 4)
            except Exception as error:
                errors.append(error)

    sharing = threading.Thread(target=share)
    sharing.start()
    for _ in range(200):
        set_threads(1)
        set_threads(2)
    stop.set()
    sharing.join(20)
    assert errors == []


def test_blas_gets_its_threads_back_after_the_last_of_several_calls(restore_threads):
    """One call inside another, and two threads that call at once: whoever began first may be done first."""
    set_threads(2)
    inner = []

    def task():
        run_all([lambda: None])
        inner.append(blas_threads())

    run_all([task, task])
    assert inner == [{1}, {1}] and blas_threads() == {2}

    started, leave = threading.Event(), threading.Event()

    def first():
        started.wait(20)

    def second():
        started.set()
        leave.wait(20)

    callers = [threading.Thread(target=run_all, args=([task],)) for task in (first, second)]
    for caller in callers:
        caller.start()
    callers[0].join(20)
    assert blas_threads() == {1}
    leave.set()
    callers[1].join(20)
    assert blas_threads() == {2}


FORK = """
import multiprocessing, threading
import numpy as np
from minibert.threads import run_all, set_threads, _blas_libraries

def child():
    done = []
    run_all([lambda: done.append(1)] * 4)
    return len(done), [library.num_threads for library in _blas_libraries()]

set_threads(2)
run_all([lambda: None] * 4)  # now there is a pool, of threads that a child does not inherit
fork = multiprocessing.get_context("fork")
with fork.Pool(2) as pool:
    print(pool.apply(child), end=" ")
entered, leave = threading.Event(), threading.Event()
other = threading.Thread(target=run_all, args=([lambda: (entered.set(), leave.wait())],))
other.start()
entered.wait()
with fork.Pool(1) as pool:  # in the middle of another thread's call
    print(pool.apply(child))
leave.set()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_process_has_threads_of_its_own():
    process = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORK], capture_output=True, text=True, timeout=60
    )
    assert process.stdout == "(4, [2]) (4, [2])\n", process.stderr


def test_an_error_in_a_block_is_raised(restore_threads):
    def fail(piece):
        if piece.start == 20:
            raise ZeroDivisionError

    for count in (1, 2):
        set_threads(count)
        with pytest.raises(ZeroDivisionError):
            run_blocks(fail, 100, 10)


def test_an_error_in_another_thread_is_raised(restore_threads):
    set_threads(2)
    caller, both, others = threading.get_ident(), threading.Barrier(2), []

    def task():
        both.wait(20)
        if threading.get_ident() != caller:
            others.append(1)
            raise ZeroDivisionError("in the other thread")

    with pytest.raises(ZeroDivisionError, match="in the other thread"):
        run_all([task] * 2)
    assert others == [1]


def test_blocks_use_as_many_threads_as_were_set(restore_threads):
    """Also when it were more before. Every block waits for the others, so each thread gets one."""
    for count in (4, 2):
        set_threads(count)
        barrier, seen = threading.Barrier(count, timeout=20), set()

        def work(piece, barrier=barrier, seen=seen):
            seen.add(threading.get_ident())
            barrier.wait()

        run_blocks(work, 12, 1)
        assert len(seen) == count


@pytest.mark.parametrize("count", [2.0, np.int64(2), np.float32(2)])
def test_the_number_of_threads_may_be_any_whole_number(restore_threads, count):
    set_threads(count)
    assert get_threads() == 2 and type(get_threads()) is int
    run_all([lambda: None] * 4)


def test_numpys_settings_for_errors_hold_in_every_thread(restore_threads):
    set_threads(2)
    both, seen = threading.Barrier(2), []

    def task():
        both.wait(20)
        seen.append(np.geterr()["over"])

    with np.errstate(over="ignore"):
        run_all([task] * 2)
    assert seen == ["ignore"] * 2


@pytest.mark.parametrize("at", ["get", "set", "put back"])
def test_blas_gets_its_threads_back_after_ctrl_c(restore_threads, monkeypatch, at):
    """Also if it comes between the tasks."""
    set_threads(2)
    run_all([lambda: None])
    library, setter = threads._blas_libraries()[0], threads._blas_setters()[0]
    pressed = [0]

    def press():
        pressed[0] += 1
        if pressed[0] == 1:
            raise KeyboardInterrupt

    class Library:
        def get_num_threads(self):
            number = library.get_num_threads()
            if at == "get":
                press()
            return number

    def set_number(count):
        if (count == 1) == (at == "set") and at != "get":
            press()
        setter(count)

    with monkeypatch.context() as patch:
        patch.setattr(threads, "_blas_libraries", lambda: [Library()])
        patch.setattr(threads, "_blas_setters", lambda: [set_number])
        with pytest.raises(KeyboardInterrupt):
            run_all([lambda: None])
    assert library.get_num_threads() == 2
    inside = []
    run_all([lambda: inside.append(library.get_num_threads())])
    assert inside == [1] and library.get_num_threads() == 2


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="needs Linux")
def test_all_cores_compute_beside_a_blas_that_is_not_known(monkeypatch):
    monkeypatch.setattr(threads, "_threads", None)
    monkeypatch.setattr(threads, "_blas_libraries", list)
    assert get_threads() == len(os.sched_getaffinity(0))


def test_after_an_interrupt_no_task_still_runs(restore_threads):
    set_threads(2)
    caller, both, finished = threading.get_ident(), threading.Barrier(2), []

    def task():
        both.wait(20)
        if threading.get_ident() != caller:
            time.sleep(0.2)  # the caller waits for this by now
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.2)
            finished.append(1)

    with pytest.raises(KeyboardInterrupt):
        run_all([task] * 2)
    assert finished == [1]
