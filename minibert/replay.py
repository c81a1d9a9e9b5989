"""The same computation, many times: fed from the host, and on a GPU recorded once and then replayed.

A training step on a GPU is hundreds of small kernels, and launching each from Python takes longer than
running it. CUDA can record all launches of a step as one *graph* and replay it with a single call. The
price is that a replay does exactly what was recorded, at the same addresses, with the same Python numbers. So
everything that differs from one call to the next has to lie in arrays that stay where they are.

:class:`Repetition` takes care of these arrays and of the recording. On the CPU it simply calls the function.
"""

import math
import warnings
from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import Any

import numpy as np

from minibert.arrays import Array, map_arrays
from minibert.devices import Device
from minibert.errors import UserError

ALIGNMENT = 256  # bytes: every array begins at a multiple of this, as CUDA's own allocations do
WARM_UP = 3  # calls before the recording: kernels are compiled, libraries loaded, memory allocated


class Repetition:
    """Calls ``function(inputs)`` again and again, with new inputs each time.

    The inputs are a tree (see ``arrays.map_arrays``) of NumPy arrays; the function gets the same tree with
    arrays on the device. It returns nothing: its results have to go to arrays that exist already. After a
    call, they are ready for any work on the caller's stream.

    On a GPU (unless ``graph`` is False) the function is called a few times, and recorded in the next call.
    From then on the function is no longer called: the recording is replayed. So the function must not look at
    a value on the device, copy an array from the host to the device, or depend on anything in Python that
    differs between calls. If recording fails, the function goes on being called, with a warning. Inputs of
    another layout (form of the tree, shapes or dtypes) start all over again.
    """

    def __init__(self, device: Device, function: Callable[[Any], None], *, graph: bool = True):
        self._function = function
        self._engine = _Streams(device, graph) if hasattr(device.xp, "cuda") else _Calls(device)
        self._form: Any = None  # the tree with the shape and dtype of each array in its place
        self._places: list[np.ndarray] = []  # of each array, in the engine's memory on the host
        self._inputs: Any = None  # the tree that the function is given

    @property
    def fixed_shapes(self) -> bool:
        """Whether inputs should always have the same shapes."""
        return isinstance(self._engine, _Streams)

    @property
    def replaying(self) -> bool:
        """Whether the last call was a replay."""
        return self._engine.replaying

    @property
    def pool_bytes(self) -> int:
        """The most bytes on the device that the function's own arrays have taken outside the default pool."""
        return self._engine.pool_bytes

    def __call__(self, inputs: Any) -> None:
        """Make one call. It does not wait for a GPU, except to stay at most two calls ahead of it."""
        arrays: list[np.ndarray] = []
        map_arrays(arrays.append, inputs)
        form = map_arrays(lambda array: (array.shape, array.dtype), inputs)  # the tree, too
        if form != self._form:
            self._lay_out([(array.shape, array.dtype) for array in arrays], inputs)
            self._form = form
        self._engine.wait_for_host_memory()
        for place, array in zip(self._places, arrays, strict=True):
            place[...] = array
        self._engine.run(lambda: self._function(self._inputs))

    def _lay_out(self, layout: list[tuple[tuple[int, ...], np.dtype]], inputs: Any) -> None:
        """Give every array its place in one piece of memory, the same on the host and on the device."""
        places, size = [], 0
        for shape, dtype in layout:
            places.append(slice(size, size + math.prod(shape) * dtype.itemsize))
            size = -(-places[-1].stop // ALIGNMENT) * ALIGNMENT
        host, static = self._engine.allocate(size)

        def views(memory: Array) -> list[Array]:
            pairs = zip(places, layout, strict=True)
            return [memory[place].view(dtype).reshape(shape) for place, (shape, dtype) in pairs]

        self._places = views(host)
        on_device = iter(views(static))
        self._inputs = map_arrays(lambda _: next(on_device), inputs)


class _Calls:
    """Without streams: the inputs are copied and the function is called."""

    replaying = False
    pool_bytes = 0

    def __init__(self, device: Device):
        self._device = device

    def allocate(self, size: int) -> tuple[np.ndarray, Array]:
        self._host = np.zeros(size, dtype=np.uint8)
        self._static = self._device.asarray(self._host)
        return self._host, self._static

    def wait_for_host_memory(self) -> None:
        pass

    def run(self, function: Callable[[], None]) -> None:
        self._static[...] = self._device.asarray(self._host)
        function()


class _Streams:
    """On a GPU: two streams, memory on the way, and the graph.

        host      pinned memory, filled by the caller
        staging   copied from host on the copying stream, while the previous call is still computing
        static    copied from staging on the computing stream, when that call is done; the function reads it

    Two events keep the order: ``copied`` (the host may write its memory again, and the computing stream may
    read staging) and ``consumed`` (staging may be written again). If a graph is wanted, memory that the
    function allocates comes from a pool of its own, so that nobody else is ever given the addresses that the
    graph works at.
    """

    def __init__(self, device: Device, graph: bool):
        self._xp, self._cuda = device.xp, device.xp.cuda
        self._wanted = graph
        self._stream = self._cuda.Stream(non_blocking=True)
        self._copying = self._cuda.Stream(non_blocking=True)
        self._pool = self._cuda.MemoryPool() if graph else None
        self._most_bytes = 0  # that the pool held before the layout last changed
        self._copied, self._consumed = (self._cuda.Event(disable_timing=True) for _ in range(2))
        self._graph, self._calls = None, 0

    @property
    def replaying(self) -> bool:
        return self._graph is not None

    @property
    def pool_bytes(self) -> int:
        return max(self._most_bytes, self._pool.total_bytes()) if self._pool else 0

    def allocate(self, size: int) -> tuple[np.ndarray, Array]:
        self._stream.synchronize()  # it may still use the memory that is given up now
        self._graph, self._calls = None, 0
        if self._pool:  # arrays of other shapes will be wanted now
            self._most_bytes = self.pool_bytes
            self._pool.free_all_blocks()
        self._host = np.frombuffer(self._cuda.alloc_pinned_memory(size), np.uint8, size)
        self._staging, self._static = (self._xp.zeros(size, dtype="uint8") for _ in range(2))
        self._cuda.get_current_stream().synchronize()  # the zeros, which the two streams would not wait for
        return self._host, self._static

    def wait_for_host_memory(self) -> None:
        self._copied.synchronize()

    def run(self, function: Callable[[], None]) -> None:
        self._copying.wait_event(self._consumed)
        self._staging.set(self._host, self._copying)
        self._copied.record(self._copying)

        caller = self._cuda.get_current_stream()
        self._stream.wait_event(caller.record())
        self._stream.wait_event(self._copied)
        with self._stream, self._cuda.using_allocator(self._pool.malloc) if self._pool else nullcontext():
            self._static[...] = self._staging
            self._consumed.record(self._stream)
            if self._graph is None and self._wanted and self._calls >= WARM_UP:
                self._record(function)
            if self._graph is None:
                function()
            else:
                self._graph.launch(self._stream)
        self._calls += 1
        caller.wait_event(self._stream.record())

    def _record(self, function: Callable[[], None]) -> None:
        """Record the graph, or warn why there is none and never try again. Nothing is computed here."""
        self._stream.begin_capture()
        try:
            function()
        except Exception as error:  # CuPy, cuBLAS and CUDA each refuse in their own way
            with suppress(Exception):  # a recording that has failed ends with an error as well
                self._stream.end_capture()
            if isinstance(error, UserError):
                raise
            self._wanted = False
            reason = (str(error) or type(error).__name__).splitlines()[0]
            warnings.warn(f"not recorded as a CUDA graph, so slower: {reason}", stacklevel=2)
        else:
            self._graph = self._stream.end_capture()
