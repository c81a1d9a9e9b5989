"""A GPU for ``minibert.replay`` that is none: the strict library, with streams, events, a pool and graphs.

It alone proves that a captured step can be captured and replayed: that it passes no value between host and
device, that every number which changes from step to step lies in an array that stays in place, and that the
two streams wait for each other where they have to. A capture notes operations instead of doing them; a launch
does them with the Python numbers and at the addresses that they were noted with. It cannot prove that CUDA
accepts the capture, nor show a race: work on a stream is done at once.
"""

from contextlib import contextmanager
from types import ModuleType, SimpleNamespace

import numpy as np
import strict

from minibert.devices import Device


class Stream:
    """A stream; ``Cuda.log`` notes what waits for what."""

    def __init__(self, cuda, name):
        self.cuda, self.name, self.ptr = cuda, name, id(self)

    def __enter__(self):
        self.before, self.cuda.current = self.cuda.current, self

    def __exit__(self, *_):
        self.cuda.current = self.before

    def record(self, event=None):
        event = event or Event(self.cuda)
        event.record(self)
        return event

    def wait_event(self, event):
        assert not strict.capturing()
        self.cuda.log.append((self.name, "waits for", event.of))

    def synchronize(self):
        assert not strict.capturing()

    def begin_capture(self):
        assert self.cuda.current is self and self is not self.cuda.null
        assert self.cuda.in_pool, "memory that the graph uses could be given to others"
        self._capture = strict.capture()
        self._operations = self._capture.__enter__()

    def end_capture(self):
        self._capture.__exit__(None, None, None)
        self.cuda.graphs.append(Graph(self.cuda, self._operations))
        return self.cuda.graphs[-1]


class Event:
    """What was recorded last, as the stream and the number of it."""

    def __init__(self, cuda, disable_timing=False):
        self.cuda, self.of = cuda, None

    def record(self, stream):
        assert not strict.capturing()
        self.cuda.recorded += 1
        self.of = stream.name, self.cuda.recorded
        self.cuda.log.append((stream.name, "records", self.of))

    def synchronize(self):
        self.cuda.log.append(("host", "waits for", self.of))


class Graph:
    """Operations that were captured."""

    def __init__(self, cuda, operations):
        self.cuda, self.operations, self.launches = cuda, operations, 0

    def launch(self, stream):
        assert stream is self.cuda.current
        self.launches += 1
        for operation in self.operations:
            operation()


class MemoryPool:
    """A pool that is asked for no memory, since the strict library has its own."""

    def malloc(self, size):
        raise NotImplementedError

    def free_all_blocks(self):
        assert not strict.capturing()

    def total_bytes(self):
        return 0


class Cuda:
    """What ``cupy.cuda`` is to CuPy."""

    def __init__(self, device):
        self.device = device
        self.log, self.graphs, self.recorded, self.in_pool = [], [], 0, False
        self.null = self.current = Stream(self, "null")
        self._names = iter(["computing", "copying"])

    def Stream(self, non_blocking):
        assert non_blocking, "it would wait for whatever is done on the default stream"
        return Stream(self, next(self._names))

    def Event(self, disable_timing=False):
        return Event(self)

    def MemoryPool(self):
        return MemoryPool()

    @contextmanager
    def using_allocator(self, allocator):
        self.in_pool = True
        yield
        self.in_pool = False

    def Device(self, number=None):
        number = self.device if number is None else number
        return SimpleNamespace(compute_capability="90", pci_bus_id=f"0000:{number:02x}:00.0")

    def get_current_stream(self):
        return self.current

    def alloc_pinned_memory(self, size):
        return np.full(size, 0x7B, np.uint8)


def recording_device(number: int = 0) -> Device:
    """A new recorder, as GPU of this number; its ``xp.cuda`` is a :class:`Cuda`."""
    library = ModuleType("recorder")
    vars(library).update({name: value for name, value in vars(strict.xp).items() if name != "__name__"})
    library.cuda = Cuda(number)
    return Device(f"cuda:{number}", library)
