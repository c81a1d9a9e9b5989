"""NCCL for tests without GPUs: what ``cupy.cuda.nccl`` offers, done by MPI on the memory of the host.

It takes what CuPy 14 takes (its signatures were read from an installed CuPy) and refuses the rest. Within a
capture it notes what to do, as NCCL does. It cannot prove that NCCL connects GPUs, nor how fast.
"""

import ctypes
import sys
from types import ModuleType

import numpy as np
import strict

NCCL_FLOAT32, NCCL_FLOAT64, NCCL_SUM = 7, 8, 0
TYPES = {NCCL_FLOAT32: ctypes.c_float, NCCL_FLOAT64: ctypes.c_double}

available = True
calls: list[tuple[str, int]] = []  # what was asked for, and of how many elements
_group: list | None = None


class NcclError(RuntimeError):
    pass


def get_unique_id() -> bytes:
    return bytes(range(128))


def groupStart() -> None:
    global _group
    assert _group is None
    _group = []


def groupEnd() -> None:
    global _group
    operations, _group = _group, None
    for operation in operations:
        strict.enqueue(operation)


def _do(operation) -> None:
    if _group is None:
        strict.enqueue(operation)
    else:
        _group.append(operation)


def _array(address: int, count: int, kind: int) -> np.ndarray:
    assert type(address) is int and type(count) is int and count > 0
    return np.ctypeslib.as_array((TYPES[kind] * count).from_address(address))


class NcclCommunicator:
    def __init__(self, ndev: int, commId: bytes, rank: int):
        if not isinstance(commId, bytes):
            raise TypeError(f"Argument 'commId' has incorrect type (expected bytes, got {type(commId)})")
        from mpi4py import MPI

        assert commId == get_unique_id() and (ndev, rank) == (MPI.COMM_WORLD.size, MPI.COMM_WORLD.rank)
        self._comm = MPI.COMM_WORLD

    def allReduce(self, sendbuf, recvbuf, count, datatype, op, stream):
        sent, received = (_array(place, count, datatype) for place in (sendbuf, recvbuf))
        assert op == NCCL_SUM and type(stream) is int
        calls.append(("allReduce", count))
        _do(lambda: self._comm.Allreduce(sent.copy(), received))

    def reduce(self, sendbuf, recvbuf, count, datatype, op, root, stream):
        sent, received = (_array(place, count, datatype) for place in (sendbuf, recvbuf))
        assert op == NCCL_SUM and type(stream) is int
        calls.append(("reduce", count))
        _do(lambda: self._comm.Reduce(sent.copy(), received, root=root))

    def broadcast(self, sendbuff, recvbuff, count, datatype, root, stream):
        received = _array(recvbuff, count, datatype)
        assert sendbuff == recvbuff and type(stream) is int
        calls.append(("broadcast", count))
        _do(lambda: self._comm.Bcast(received, root=root))


def modules() -> dict[str, ModuleType]:
    """What ``sys.modules`` needs, for ``from cupy.cuda import nccl`` to find this module."""
    cupy, cuda = ModuleType("cupy"), ModuleType("cupy.cuda")
    cupy.cuda, cuda.nccl = cuda, sys.modules[__name__]
    return {"cupy": cupy, "cupy.cuda": cuda, "cupy.cuda.nccl": cuda.nccl}
