"""Threads: how many the CPU computes with, and how tasks are shared among them."""

import functools
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, wait

import threadpoolctl

from minibert.errors import UserError

_threads: int | None = None
_pool: ThreadPoolExecutor | None = None


class _Here(threading.local):
    """What this thread is doing."""

    in_task = False


_here = _Here()


@functools.cache
def _blas_libraries() -> list[threadpoolctl.LibController]:
    """The libraries that NumPy's matrix product may use, each with its own number of threads."""
    return threadpoolctl.ThreadpoolController().select(user_api="blas").lib_controllers


@functools.cache
def _blas_setters() -> list[Callable[[int], object]]:
    """For each of these libraries, the function that sets its number of threads.

    Where OpenBLAS manages its own threads, this is OpenBLAS's own function: threadpoolctl's takes thirty
    times as long, and does nothing if another thread has called it before.
    """
    return [_openblas_setter(library) or library.set_num_threads for library in _blas_libraries()]


def _openblas_setter(library: threadpoolctl.LibController) -> Callable[[int], object] | None:
    if getattr(library, "threading_layer", "") != "pthreads":
        return None
    names = (f"{p}openblas_set_num_threads{s}" for p in ("", "scipy_") for s in ("", "64_", "_64"))
    return next((getattr(library.dynlib, name) for name in names if hasattr(library.dynlib, name)), None)


def set_threads(count: int) -> None:
    """Let the CPU compute with ``count`` threads, from now on in this process.

    Raises UserError if ``count`` is no whole number of at least 1.
    """
    global _threads, _pool
    if count < 1 or count != int(count):
        raise UserError(f"threads must be a whole number of at least 1, got {count}")
    _one_blas_thread.set_afterwards(count)
    _threads, _pool = count, None


def get_threads() -> int:
    """How many threads the CPU computes with: the number that was set, else the one that BLAS chose."""
    global _threads
    if _threads is None:
        _threads = max((library.num_threads for library in _blas_libraries()), default=1)
    return _threads


class _OneBlasThread:
    """Within this block BLAS computes with one thread.

    Blocks may overlap: when the last one ends, BLAS gets back the threads it had before the first.
    """

    def __init__(self) -> None:
        self._before: list[int] = []
        self._start()

    def _start(self) -> None:
        self._lock = threading.Lock()
        self._blocks = 0

    def __enter__(self) -> None:
        with self._lock:
            self._blocks += 1
            if self._blocks == 1:
                self._before = [library.get_num_threads() for library in _blas_libraries()]
                for set_number, before in zip(_blas_setters(), self._before, strict=True):
                    if before != 1:
                        set_number(1)

    def set_afterwards(self, count: int) -> None:
        """Let BLAS compute with ``count`` threads: from now on or, within a block, from its end on."""
        with self._lock:
            if self._blocks:
                self._before = [count] * len(self._before)
            else:
                for set_number in _blas_setters():
                    set_number(count)

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._blocks -= 1
            if self._blocks == 0:
                self._put_back()

    def _put_back(self) -> None:
        for set_number, before in zip(_blas_setters(), self._before, strict=True):
            if before != 1:
                set_number(before)

    def forget(self) -> None:
        """Drop the blocks of the parent's threads after a fork: those threads do not exist here."""
        if self._blocks:
            self._put_back()
        self._start()


_one_blas_thread = _OneBlasThread()


def _after_fork() -> None:
    """A forked process has none of its parent's threads: the pool would wait for them forever."""
    global _pool
    _pool = None
    _one_blas_thread.forget()


if hasattr(os, "register_at_fork"):  # not on Windows, where there is no fork
    os.register_at_fork(after_in_child=_after_fork)


def run_all(tasks: Iterable[Callable[[], object]]) -> None:
    """Call every task, sharing them among ``get_threads()`` threads, including this one.

    NumPy, its BLAS and compiled loops release the interpreter's lock, so the tasks really run in parallel.
    Meanwhile BLAS itself computes with one thread, for three reasons. Two tasks with one product each are as
    fast as two products in sequence, each on two threads. What a task does next with its product finds it in
    the cache. And BLAS's own threads, which stay busy while they wait for more work, would be in the way.

    A task that calls this function computes its own tasks one after the other: all threads are taken.
    """
    waiting = deque(tasks)
    helpers = 0 if _here.in_task else min(get_threads(), len(waiting)) - 1

    def work() -> None:
        _here.in_task = True
        try:
            while True:
                try:
                    task = waiting.popleft()
                except IndexError:
                    return
                task()
        finally:
            _here.in_task = False

    with _one_blas_thread:
        if helpers < 1:
            for task in waiting:
                task()
            return
        futures = [_threads_beside_this().submit(work) for _ in range(helpers)]
        try:
            work()
        finally:
            wait(futures)
    for future in futures:
        future.result()


def _threads_beside_this() -> ThreadPoolExecutor:
    global _pool
    if _pool is None:
        # (Another thread may just have set the number to 1.)
        _pool = ThreadPoolExecutor(max(get_threads() - 1, 1), thread_name_prefix="minibert")
    return _pool


def run_blocks(function: Callable[[slice], object], rows: int, block: int) -> None:
    """Call ``function(slice)`` for consecutive blocks of rows with :func:`run_all`.

    The blocks depend only on ``rows`` and ``block``, never on the number of threads. So the results are
    bit-identical for any number of threads, as long as no two blocks write to the same place.
    """
    starts = range(0, rows, block)
    run_all(functools.partial(function, slice(start, min(start + block, rows))) for start in starts)
