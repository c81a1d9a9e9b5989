"""Which part of a model's flat buffers each rank owns, to add up the gradient there and perhaps to update.

The buffer is cut into pieces, so that they can be sent one after the other, and each piece into one part for
every rank. Parts consist of whole blocks (``ops.optimise.BLOCK``), so that a rank can compute sums of squares
over its own parts, and these are the sums that one process would compute.
"""

import itertools
from collections.abc import Iterator

import numpy as np

from minibert import ops
from minibert.arrays import Array, get_array_module
from minibert.ops import optimise
from minibert.ranks import ALONE, Ranks

PIECE = 1 << 20  # elements, about, that are sent together


class Shards:
    """The parts of a flat buffer of ``size`` elements. For one process, there is one part: all of it.

    ``pieces`` has the parts of each piece, as slices of the buffer, one per rank. ``own`` are those of this
    rank. An array of ``length`` elements holds them one after the other. Methods that exchange something have
    to be called on all ranks.
    """

    def __init__(self, size: int, ranks: Ranks = ALONE):
        self.size, self.ranks = size, ranks
        self.pieces = _cut(size, ranks.size) if ranks.size > 1 else [[slice(0, size)]]
        self.own = [parts[ranks.rank] for parts in self.pieces]
        self.length = sum(map(length, self.own))

    def overlaps(self, start: int, stop: int) -> Iterator[tuple[slice, slice]]:
        """What this rank owns of these elements: where it is in the buffer, and where in our array."""
        offset = 0
        for own in self.own:
            both = overlap(own, slice(start, stop))
            if length(both):
                yield both, moved(both, offset - own.start)
            offset += length(own)

    def global_norm(self, grad: Array) -> Array:
        """``ops.global_norm`` of a gradient of which each rank has its parts: the same bits on all.

        On CPUs these are the bits of one process.
        """
        if self.ranks.size == 1:
            return ops.global_norm(grad)
        if self.ranks.gpus is not None:
            # Not stacked: of more than eight arrays CuPy copies the addresses from the host, which no
            # recorded step may do.
            norms = get_array_module(grad).empty(len(self.own), dtype=grad.dtype)
            for i, own in enumerate(self.own):
                norms[i] = ops.global_norm(grad[own])
            square = (norms * norms).sum()
            self.ranks.gpus.sum(square)
            return get_array_module(grad).sqrt(square)
        own_sums = [ops.sums_of_squares(grad[own]) for own in self.own]
        sums = np.zeros(-(-self.size // optimise.BLOCK), own_sums[0].dtype)
        for own, found in zip(self.own, own_sums, strict=True):
            first = own.start // optimise.BLOCK
            sums[first : first + len(found)] = found
        return ops.norm_from_sums(self.ranks.sum(sums), grad.dtype.name)  # one rank has each, the others 0

    def share(self, values: Array) -> None:
        """Complete a buffer of which each rank has updated its parts."""
        if self.ranks.gpus is not None:
            for parts in self.pieces:
                self.ranks.gpus.share_parts(values, parts)
            return
        # All at once: ranks that wait for each other after every piece are as slow as the slowest each time.
        exchanges = [
            self.ranks.start_share(values[whole(parts)], [length(part) for part in parts])
            for parts in self.pieces
        ]
        for exchange in exchanges:
            exchange.wait()

    def collect(self, array: np.ndarray) -> np.ndarray | None:
        """On rank 0 the buffer whose parts are in the ranks' arrays, on the others None."""
        if self.ranks.size == 1:
            return array
        together = np.empty(self.size, array.dtype) if self.ranks.first else None
        start = 0
        for parts, own in zip(self.pieces, self.own, strict=True):
            place = None if together is None else together[whole(parts)]
            stop = start + length(own)
            self.ranks.collect(array[start:stop], [length(part) for part in parts], place)
            start = stop
        return together


def _cut(size: int, ranks: int) -> list[list[slice]]:
    """The parts of each piece. A piece has equally many blocks for each rank, and the last one the rest."""
    blocks = -(-size // optimise.BLOCK)
    each = ranks * max(1, PIECE // (ranks * optimise.BLOCK))
    pieces = []
    for first in range(0, blocks, each):
        count = min(each, blocks - first)
        limits = [first + count * rank // ranks for rank in range(ranks + 1)]
        ends = [min(limit * optimise.BLOCK, size) for limit in limits]
        pieces.append([slice(*pair) for pair in itertools.pairwise(ends)])
    return pieces


# -- Slices ----------------------------------------------------------------------------------------------


def length(part: slice) -> int:
    """The number of elements."""
    return part.stop - part.start


def whole(parts: list[slice]) -> slice:
    """Neighbouring slices as one."""
    return slice(parts[0].start, parts[-1].stop)


def moved(part: slice, by: int) -> slice:
    """The same slice of an array that begins ``by`` elements earlier."""
    return slice(part.start + by, part.stop + by)


def overlap(one: slice, other: slice) -> slice:
    """The part that two slices have in common; an empty one, somewhere in ``other``, if there is none."""
    start = min(max(one.start, other.start), other.stop)
    return slice(start, max(start, min(one.stop, other.stop)))
