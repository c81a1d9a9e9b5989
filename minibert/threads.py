"""Threads: how many the CPU computes with, and how tasks are shared among them."""

import contextvars
import functools
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from queue import SimpleQueue
from typing import TypeVar

import threadpoolctl

from minibert.errors import UserError, check_count

MOST_THREADS = 1024  # no system starts any number of them

Item = TypeVar("Item")
Jobs = SimpleQueue[Callable[[], object] | None]  # None: there are no more

_threads: int | None = None
_helpers: "_Helpers | None" = None


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
    global _threads, _helpers
    check_count("threads", count)
    if count > MOST_THREADS:
        raise UserError(f"threads must be at most {MOST_THREADS:,}, got {count!r}")
    count = int(count)  # which may be a NumPy number or 2.0
    _one_blas_thread.set_afterwards(count)
    _threads, _helpers = count, None


def get_threads() -> int:
    """How many threads the CPU computes with: the number that was set, else the one that BLAS chose.

    They are as many as there are cores beside a BLAS that threadpoolctl does not know, as Apple's Accelerate.
    """
    global _threads
    if _threads is None:
        _threads = max((library.num_threads for library in _blas_libraries()), default=usable_cores())
    return _threads


def usable_cores() -> int:
    """The cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _OneBlasThread:
    """Within this block BLAS computes with one thread.

    Blocks may overlap: when the last one ends, BLAS gets back the threads it had before the first.
    """

    def __init__(self) -> None:
        self._before: list[int] = []
        self._start()

    def _start(self) -> None:
        self._lock = threading.Lock()
        self._blocks: set[object] = set()

    def enter(self, block: object) -> None:
        """Begin a block, which ``leave`` ends."""
        with self._lock:
            if not self._blocks:
                self._before = [library.get_num_threads() for library in _blas_libraries()]
            self._blocks.add(block)
            for set_number, before in zip(_blas_setters(), self._before, strict=True):
                if before != 1 and len(self._blocks) == 1:
                    set_number(1)

    def set_afterwards(self, count: int) -> None:
        """Let BLAS compute with ``count`` threads: from now on or, within a block, from its end on."""
        with self._lock:
            if self._blocks:
                self._before = [count] * len(self._before)
            else:
                for set_number in _blas_setters():
                    set_number(count)

    def leave(self, block: object) -> None:
        """End a block; nothing happens if it has ended, or has never begun."""
        with self._lock:
            if self._blocks == {block}:
                self._put_back()
            self._blocks.discard(block)

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
    """A forked process has none of its parent's threads: tasks would wait for them forever."""
    global _helpers
    _helpers = None
    _one_blas_thread.forget()


if hasattr(os, "register_at_fork"):  # not on Windows, where there is no fork
    os.register_at_fork(after_in_child=_after_fork)


class _Helpers:
    """Threads beside the one that computes. They wait for jobs, and end when nobody refers to this any more.

    A ThreadPoolExecutor does the same, but takes 90 µs longer to start a job and to see that it is over. A
    step of a small model shares tasks 60 times.
    """

    def __init__(self, count: int):
        self.jobs: Jobs = SimpleQueue()
        for number in range(count):
            name = f"minibert_{number}"
            threading.Thread(target=_do_jobs, args=(self.jobs,), name=name, daemon=True).start()
        weakref.finalize(self, _end_jobs, self.jobs, count).atexit = False


def _do_jobs(jobs: Jobs) -> None:
    while (job := jobs.get()) is not None:
        job()
        del job  # what it refers to is freed before the next one comes


def _end_jobs(jobs: Jobs, count: int) -> None:
    for _ in range(count):
        jobs.put(None)


def run_all(tasks: Iterable[Callable[[], object]]) -> None:
    """Call every task, sharing them among ``get_threads()`` threads, including this one.

    NumPy, its BLAS and compiled loops release the interpreter's lock, so the tasks really run in parallel.
    Meanwhile BLAS itself computes with one thread, for three reasons. Two tasks with one product each are as
    fast as two products in sequence, each on two threads. What a task does next with its product finds it in
    the cache. And BLAS's own threads, which stay busy while they wait for more work, would be in the way.

    A task that calls this function computes its own tasks one after the other: all threads are taken.
    """
    waiting = deque(tasks)
    seats = deque(range(0 if _here.in_task else min(get_threads(), len(waiting)) - 1))  # of helpers

    def work() -> None:
        _here.in_task = True
        try:
            while (task := _next(waiting)) is not None:
                task()
        finally:
            _here.in_task = False

    block = object()
    try:
        _one_blas_thread.enter(block)
        if seats:
            _work_together(work, seats)
        else:
            for task in waiting:
                task()
    finally:
        try:
            _one_blas_thread.leave(block)
        except BaseException:  # Ctrl-C has come in between
            _one_blas_thread.leave(block)
            raise


def _work_together(work: Callable[[], object], seats: deque[int]) -> None:
    """Call ``work`` in this thread and in a helper for each of the ``seats``; raise the error of any.

    A helper that finds its seat taken has come too late, and is not waited for.
    """
    helpers, ended, bell = len(seats), list[BaseException | None](), SimpleQueue[None]()
    all_helpers = _threads_beside_this()  # they stay as long as this refers to them

    def assist() -> None:
        if _next(seats) is None:
            return
        try:
            work()
            ended.append(None)
        except BaseException as error:
            ended.append(error)
        bell.put(None)

    try:
        for _ in range(helpers):
            all_helpers.jobs.put(functools.partial(contextvars.copy_context().run, assist))
        work()
    finally:
        late = 0
        while _next(seats) is not None:
            late += 1
        interrupt = None
        while len(ended) < helpers - late:
            try:
                bell.get()
            except KeyboardInterrupt as pressed:  # raised below: until then a task still writes to arrays
                interrupt = pressed
        if interrupt:
            raise interrupt
    for error in ended:
        if error is not None:
            raise error


def _next(items: deque[Item]) -> Item | None:
    """The first item, which is taken away; None if others have taken all."""
    try:
        return items.popleft()
    except IndexError:
        return None


def _threads_beside_this() -> _Helpers:
    global _helpers
    helpers = _helpers  # another thread may set the number, and with it this, at any time
    if helpers is None:
        helpers = _helpers = _Helpers(max(get_threads() - 1, 1))
    return helpers


def run_blocks(function: Callable[[slice], object], rows: int, block: int) -> None:
    """Call ``function(slice)`` for consecutive blocks of rows with :func:`run_all`.

    The blocks depend only on ``rows`` and ``block``, never on the number of threads. So the results are
    bit-identical for any number of threads, as long as no two blocks write to the same place.
    """
    run_all(functools.partial(function, each) for each in blocks(rows, block))


def blocks(rows: int, block: int) -> Iterator[slice]:
    """Consecutive slices of ``block`` rows; the last one has what is left."""
    return (slice(start, min(start + block, rows)) for start in range(0, rows, block))
