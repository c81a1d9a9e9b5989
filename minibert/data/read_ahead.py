"""Batches made in advance, while a GPU is computing."""

import weakref
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from minibert.data.batches import Batch, BatchStream


class ReadAhead:
    """The batches of a stream, up to ``most`` of them made in advance by a thread of its own.

    A host that makes each batch between two steps keeps a GPU waiting. A batch of 65,536 tokens takes about 5
    milliseconds, and 10 with pairs; BERT-mini learns from it in 10. When the stream comes to its next block,
    it takes a second. The batches and the positions are those of the stream, bit for bit.
    """

    def __init__(self, stream: BatchStream, most: int = 128):
        self._stream, self._most = stream, most
        self._place = stream.state()
        self._thread = ThreadPoolExecutor(1)  # it ends with this object, of which it knows only the stream
        weakref.finalize(self, self._thread.shutdown, wait=False, cancel_futures=True)
        self._made: deque[Future] = deque()

    def __next__(self) -> Batch:
        """The next batch. An error in making it is raised here."""
        while len(self._made) < self._most:
            self._made.append(self._thread.submit(_make, self._stream))
        batch, self._place = self._made.popleft().result()
        return batch

    def skip(self) -> None:
        """Go on to the batch after the next, as if that had been taken."""
        next(self)

    def state(self) -> dict[str, Any]:
        """The position after the last batch that was taken."""
        return self._place

    def restore(self, state: dict[str, Any]) -> None:
        """Go to a position that ``state`` gave. What was made in advance is dropped."""
        for future in self._made:
            future.cancel()
        self._made.clear()
        self._thread.submit(self._stream.restore, state).result()  # after the batch that is being made
        self._place = state


def _make(stream: BatchStream) -> tuple[Batch, dict[str, Any]]:
    batch = next(stream)
    return batch, stream.state()
