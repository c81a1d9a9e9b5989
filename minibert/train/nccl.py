"""NCCL, through CuPy: how the GPUs of several ranks add up gradients without passing them to their hosts.

None of it has been run on several GPUs yet: tests call it on stand-ins that take what CuPy 14 takes.
"""

import platform
from collections.abc import Sequence
from typing import Any

from minibert.arrays import Array
from minibert.devices import Device
from minibert.errors import UserError
from minibert.ranks import Ranks


class Gpus:
    """The GPUs of all ranks, one each.

    All methods have to be called on every rank, in the same order. They work in place and on the current
    stream, wait for nothing, and can be recorded in a CUDA graph.
    """

    def __init__(self, nccl: Any, communicator: Any, device: Device):
        self._nccl, self._communicator, self._cuda = nccl, communicator, device.xp.cuda
        self._types = {"float32": nccl.NCCL_FLOAT32, "float64": nccl.NCCL_FLOAT64}

    def sum(self, array: Array) -> None:
        """Replace a contiguous array by the sum over all ranks, in an order that NCCL chooses."""
        place, count, kind, stream = self._describe(array)
        self._communicator.allReduce(place, place, count, kind, self._nccl.NCCL_SUM, stream)

    def sum_parts(self, array: Array, parts: Sequence[slice]) -> None:
        """The same, but rank r gets only part r of the 1-D array. What is elsewhere has no meaning then."""
        self._nccl.groupStart()
        for rank, part in enumerate(parts):
            if part.stop > part.start:
                place, count, kind, stream = self._describe(array[part])
                self._communicator.reduce(place, place, count, kind, self._nccl.NCCL_SUM, rank, stream)
        self._nccl.groupEnd()

    def share_parts(self, array: Array, parts: Sequence[slice]) -> None:
        """Complete a 1-D array of which rank r has part r."""
        self._nccl.groupStart()
        for rank, part in enumerate(parts):
            if part.stop > part.start:
                place, count, kind, stream = self._describe(array[part])
                self._communicator.broadcast(place, place, count, kind, rank, stream)
        self._nccl.groupEnd()

    def _describe(self, array: Array) -> tuple[int, int, int, int]:
        """Address, number of elements, their type, and the stream."""
        stream = self._cuda.get_current_stream().ptr
        return array.data.ptr, array.size, self._types[array.dtype.name], stream


def connect(ranks: Ranks, device: Device) -> None:
    """Set ``ranks.gpus``, if there are several ranks and they compute on GPUs.

    Raises UserError if two of them have the same GPU, or if NCCL cannot be used.
    """
    if ranks.size == 1 or device.name == "cpu":
        return
    _check_one_each(ranks, device)
    ranks.gpus = new_gpus(ranks, device)


def new_gpus(ranks: Ranks, device: Device) -> Gpus:
    """Connect the GPUs of all ranks. Raises UserError if NCCL cannot be used."""
    from cupy.cuda import nccl  # not an attribute of cupy.cuda before it is imported

    if not nccl.available:
        version = device.xp.cuda.runtime.runtimeGetVersion() // 1000
        raise UserError(
            f"CuPy does not find NCCL, which several GPUs need; run  pip install nvidia-nccl-cu{version}"
        )
    own = nccl.get_unique_id() if ranks.first else b""
    kind, numbers = ranks.broadcast([type(own).__name__, list(own)])
    identity = bytes(numbers) if kind == "bytes" else tuple(numbers)  # it depends on CuPy's version
    try:
        communicator = nccl.NcclCommunicator(ranks.size, identity, ranks.rank)
    except nccl.NcclError as error:
        raise UserError(f"NCCL cannot connect the GPUs ({error}); NCCL_DEBUG=INFO says more") from None
    return Gpus(nccl, communicator, device)


def _check_one_each(ranks: Ranks, device: Device) -> None:
    """Raise UserError if two ranks have the same GPU, with which NCCL cannot work."""
    places = ranks.gather([platform.node(), device.xp.cuda.Device().pci_bus_id])
    for rank, place in enumerate(places):
        other = places.index(place)
        if other < rank:
            raise UserError(
                f"ranks {other} and {rank} have the same GPU ({place[1]} of {place[0]}); start as many ranks "
                "on a machine as it has GPUs, with --device cuda"
            )
