"""Ranks: the processes that work together, started by ``mpirun``, and what they tell each other.

Every process runs the same program. MPI numbers them; a process's number is its *rank*. Without ``mpirun``
there is one rank, which talks to nobody, and nothing of MPI is imported.

Values go from rank to rank as JSON or as arrays, never as pickles.
"""

import atexit
import functools
import json
import math
import os
import platform
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from typing import Any

import numpy as np

from minibert.errors import UserError

# What tells a process its rank: MPICH and its relatives (also under Slurm), Open MPI, and PMIx launchers.
_RANK = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK")
_SIZE = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS")
_LOCAL_RANK = ("MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID")

MEET_SECONDS = 1.0  # how long a rank that ends with an error waits for others that may have the same


class Ranks:
    """The processes that work together; here, only this one. Whatever they exchange is then what they have.

    ``rank`` is the number of this process, ``size`` how many there are; ``local_rank`` and ``local_size``
    count only those on the same machine. All methods that exchange something have to be called by every
    rank, in the same order.
    """

    rank = local_rank = 0
    size = local_size = 1
    gpus: Any = None  # how they exchange arrays on GPUs, if they do: a ``minibert.train.nccl.Gpus``

    @property
    def first(self) -> bool:
        """Whether this is rank 0, the only one that writes files and prints."""
        return self.rank == 0

    # -- Values, as JSON ------------------------------------------------------------------------

    def gather(self, value: Any) -> list[Any]:
        """The values of all ranks, in the order of the ranks, on every rank."""
        return [value]

    def broadcast(self, value: Any) -> Any:
        """The value of rank 0, on every rank."""
        return self.gather(value if self.first else None)[0]

    def barrier(self) -> None:
        """Wait until every rank has come this far."""
        self.gather(None)

    def any(self, flag: bool) -> bool:
        """Whether the flag is set on any rank."""
        return any(self.gather(bool(flag)))

    def agree(self, values: Mapping[str, Any]) -> None:
        """Raise UserError on every rank, naming what differs, unless all ranks have the same values."""
        everybody = self.gather(dict(values))
        for rank, others in enumerate(everybody):
            for name in everybody[0] | others:
                ours, theirs = everybody[0].get(name), others.get(name)
                if ours != theirs:
                    raise UserError(
                        f"{name} is {ours!r} on rank 0, but {theirs!r} on rank {rank}; all ranks must have "
                        "the same"
                    )

    # -- Arrays on the host ---------------------------------------------------------------------

    def gather_array(self, array: np.ndarray) -> np.ndarray:
        """The arrays of all ranks, in the order of the ranks: (size, …). All must have the same shape."""
        return array[None].copy()

    def gather_arrays(self, arrays: Mapping[str, np.ndarray]) -> list[dict[str, np.ndarray]]:
        """The arrays of all ranks by name, in the order of the ranks; each may have its own shapes."""
        return [dict(arrays)]

    def sum(self, array: np.ndarray) -> np.ndarray:
        """The sum of all ranks' arrays: ((a₀ + a₁) + a₂) + …, the same bits on every rank."""
        total, *others = self.gather_array(array)
        for other in others:
            total += other
        return total

    def sum_fast(self, array: np.ndarray) -> None:
        """Replace the array by the sum over all ranks, in whatever order MPI finds fastest."""

    def sum_share_fast(self, array: np.ndarray, sizes: Sequence[int]) -> None:
        """The same for this rank's share alone, cut as in ``start_exchange``; the rest is left as it is."""

    def start_exchange(self, sent: np.ndarray, sizes: Sequence[int], received: np.ndarray) -> "Exchange":
        """Begin to give each rank its share of an array; return at once.

        The first ``sizes[0]`` elements of ``sent`` go to rank 0, and so on. ``received`` (size, n) takes what
        the ranks have for this one, n = ``sizes[rank]``. Neither may be touched until the exchange has ended.
        """
        received[0] = sent
        return Exchange()

    def start_share(self, array: np.ndarray, sizes: Sequence[int]) -> "Exchange":
        """Begin to complete an array of which each rank has its share, cut as in ``start_exchange``."""
        return Exchange()

    def collect(self, share: np.ndarray, sizes: Sequence[int], whole: np.ndarray | None) -> None:
        """Put the shares of all ranks one after the other into ``whole``, which only rank 0 gives."""
        assert whole is not None
        whole[...] = share

    # -- The end --------------------------------------------------------------------------------

    def end_with_error(self, code: int, message: str) -> int:
        """Print an error on stderr; return the exit code. Ends all other ranks, too.

        If every rank comes here with the same error, it is printed once.
        """
        _print_error(message)
        return code


ALONE = Ranks()  # one process, whatever started it


class Exchange:
    """An exchange of arrays under way; here, one that has ended."""

    def advance(self) -> None:
        """Let it go on. MPI moves data only while it is called, so call this now and then."""

    def wait(self) -> None:
        """Wait until it has ended."""


class _MPIRanks(Ranks):
    """The processes that ``mpirun`` has started."""

    def __init__(self, mpi: Any):
        self._mpi, self._comm = mpi, mpi.COMM_WORLD
        self._ending = self._comm.Dup()  # for ranks with an error, which nobody else is waiting for
        self.rank, self.size = self._comm.rank, self._comm.size
        here = self._comm.Split_type(mpi.COMM_TYPE_SHARED)
        self.local_rank, self.local_size = here.rank, here.size
        self._watch = _Watch(here, self.rank) if hasattr(select, "epoll") else None

    def gather(self, value: Any) -> list[Any]:
        return [json.loads(text) for text in self._gather_bytes(json.dumps(value).encode())]

    def _gather_bytes(self, data: bytes) -> list[bytes]:
        sizes = np.empty(self.size, np.int64)
        _wait(self._comm.Iallgather(np.array([len(data)]), sizes))
        together = np.empty(sizes.sum(), np.uint8)
        _wait(self._comm.Iallgatherv(np.frombuffer(data, np.uint8), [together, sizes]))
        return [part.tobytes() for part in np.split(together, np.cumsum(sizes)[:-1])]

    def gather_arrays(self, arrays: Mapping[str, np.ndarray]) -> list[dict[str, np.ndarray]]:
        told = [(name, array.dtype.str, array.shape) for name, array in arrays.items()]
        data = self._gather_bytes(b"".join(array.tobytes() for array in arrays.values()))
        return [_unpack(*each) for each in zip(self.gather(told), data, strict=True)]

    def gather_array(self, array: np.ndarray) -> np.ndarray:
        everybody = np.empty((self.size, *array.shape), array.dtype)
        self._comm.Allgather(np.ascontiguousarray(array), everybody)
        return everybody

    def sum_fast(self, array: np.ndarray) -> None:
        self._comm.Allreduce(self._mpi.IN_PLACE, array)

    def sum_share_fast(self, array: np.ndarray, sizes: Sequence[int]) -> None:
        start = sum(sizes[: self.rank])
        summed = np.empty(sizes[self.rank], array.dtype)
        self._comm.Reduce_scatter(array, summed, sizes)
        array[start : start + len(summed)] = summed

    def start_exchange(self, sent: np.ndarray, sizes: Sequence[int], received: np.ndarray) -> Exchange:
        own = [sizes[self.rank]] * self.size
        return _MPIExchange(self._comm.Ialltoallv([sent, sizes], [received, own]), sent, received)

    def start_share(self, array: np.ndarray, sizes: Sequence[int]) -> Exchange:
        return _MPIExchange(self._comm.Iallgatherv(self._mpi.IN_PLACE, [array, sizes]), array)

    def collect(self, share: np.ndarray, sizes: Sequence[int], whole: np.ndarray | None) -> None:
        self._comm.Gatherv(share, None if whole is None else [whole, sizes])

    def end_with_error(self, code: int, message: str) -> int:
        if self._watch:
            self._watch.dismiss()
        if self.first:
            _print_error(message)
        together = self._meets_others()
        if not together and not self.first:
            _print_error(f"{message} (rank {self.rank})")
        time.sleep(0.2)  # until the launcher has passed the message on
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # MPI would add its own
        if not together:
            self._comm.Abort(code)
        return code

    def _meets_others(self) -> bool:
        """Whether all ranks end with an error."""
        request, deadline = self._ending.Ibarrier(), time.monotonic() + MEET_SECONDS
        while not request.Test():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        return True


# The program of a process with a pipe for every rank. One that is closed without a word was the pipe of a
# rank that has been killed or has crashed; epoll tells of the first one first.
_WATCHER = """
import os, select, sys
names = sys.argv[1:]
pipes = [os.pipe() for _ in names]
print(*(write for _, write in pipes), flush=True)
sys.stdin.read()  # until all ranks have opened their pipes, or the first is gone
epoll = select.epoll()
for read, write in pipes:
    os.close(write)
    epoll.register(read, select.EPOLLIN)
os.close(1)  # ready
((place, _),) = epoll.poll(maxevents=1)
if os.read(place, 1) == b"":
    name = dict(zip((read for read, _ in pipes), names))[place]
    print("minibert: error:", name, "was killed or crashed", file=sys.stderr, flush=True)
"""


class _Watch:
    """A process beside the ranks of this machine that says which of them has been killed (on Linux).

    MPI ends all others at once, and cannot be relied on to say which one was first. Whoever ends by itself,
    with or without an error, dismisses the watcher before.
    """

    def __init__(self, here: Any, rank: int):
        everybody = np.empty((here.size, 2), np.int64)
        here.Allgather(np.array([rank, os.getpid()]), everybody)
        watcher = np.empty(1 + here.size, np.int64)  # its process, and in it the pipe of each rank
        if here.rank == 0:
            machine = platform.node()
            names = [f"rank {number} (process {pid} on {machine})" for number, pid in everybody.tolist()]
            self._process: Any = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _WATCHER, *names],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,  # so that neither Ctrl-C nor MPI ends it
            )
            assert self._process.stdout is not None
            watcher[:] = self._process.pid, *map(int, self._process.stdout.readline().split())
        here.Bcast(watcher)
        self._pipe = _open_high(f"/proc/{watcher[0]}/fd/{watcher[1 + here.rank]}")
        here.Barrier()
        if here.rank == 0:
            self._process.stdin.close()
            self._process.stdout.read()  # until it is ready
        here.Barrier()
        atexit.register(self.dismiss)

    def dismiss(self) -> None:
        """End the watcher."""
        with suppress(OSError):  # another rank has done it, or this is a child without the pipe
            os.write(self._pipe, b".")


def _open_high(path: str) -> int:
    """A descriptor to write to a pipe with, higher than those of MPI.

    When a process dies, Linux closes the highest descriptor first, MPI's connections later. So MPI cannot
    kill another rank before the watcher has heard of this one.
    """
    import fcntl  # Windows has none

    low = os.open(path, os.O_WRONLY)
    high = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, min(os.sysconf("SC_OPEN_MAX"), 1024) - 1)
    os.close(low)
    os.register_at_fork(after_in_child=functools.partial(os.close, high))  # a child may live longer
    return high


class _MPIExchange(Exchange):
    def __init__(self, request: Any, *arrays: np.ndarray):
        self._request = request
        self._arrays = arrays  # kept until they have been read and written

    def advance(self) -> None:
        self._request.Test()

    def wait(self) -> None:
        self._request.Wait()


def _unpack(told: list[tuple[str, str, list[int]]], data: bytes) -> dict[str, np.ndarray]:
    """Arrays by name, of which we are told the dtypes and shapes, from their bytes one after the other."""
    arrays, start = {}, 0
    for name, dtype, shape in told:
        arrays[name] = np.frombuffer(data, dtype, math.prod(shape), start).reshape(shape).copy()
        start += arrays[name].nbytes
    return arrays


def _wait(request: Any) -> None:
    """Wait for what may take long. Meanwhile the processor is free, and Ctrl-C is heard."""
    pause = 0.0
    while not request.Test():
        time.sleep(pause)
        pause = min(pause + 1e-4, 0.01)


def _print_error(message: str) -> None:
    try:
        print(message, file=sys.stderr, flush=True)
    except OSError:  # nobody reads it, or the disk is full; the exit code still tells
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # lest Python tries it again when it exits


# -- Which ranks there are ---------------------------------------------------------------------------


def launched_rank() -> int | None:
    """The rank that ``mpirun`` gave this process; None without ``mpirun``, or if it started only one."""
    rank, size = _number(_RANK), _number(_SIZE)
    return None if size == 1 else rank


def _number(names: Sequence[str]) -> int | None:
    return next((int(os.environ[name]) for name in names if name in os.environ), None)


@functools.cache
def world() -> Ranks:
    """All ranks of this program; MPI starts at the first call.

    Raises UserError if there are several and MPI cannot be used.
    """
    if launched_rank() is None:
        return Ranks()
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:  # there is no mpi4py, or it finds no MPI
        reason = str(error).splitlines()[0]
        raise UserError(
            f"started by mpirun, but MPI cannot be used ({reason}); install mpi4py and an MPI: from the "
            "checkout run  pip install -e '.[mpi]'"
        ) from None
    expected = _number(_SIZE)
    if expected is not None and expected != MPI.COMM_WORLD.size:
        raise UserError(
            f"mpirun started {expected} processes, but mpi4py sees {MPI.COMM_WORLD.size}: they belong to "
            f"different MPIs; use the mpirun of {MPI.Get_library_version().split(',')[0].split()[0]}"
        )
    return _MPIRanks(MPI)


def end_with_error(code: int, message: str) -> int:
    """``Ranks.end_with_error``, also where MPI could not be started."""
    if world.cache_info().currsize:
        return world().end_with_error(code, message)
    if not _number(_LOCAL_RANK):  # all processes of a machine lack the same
        _print_error(message)
    return code


@contextmanager
def silence() -> Iterator[None]:
    """Within this block nothing is printed, neither on stdout nor on stderr."""
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        yield
