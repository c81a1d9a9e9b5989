"""The sum of all ranks' gradients, in the order in which one process would add them.

Numbers that a computer adds in another order give another sum. So it is not enough that every rank adds up
the gradients of its micro-batches, and then all ranks add up those: with a₀ + a₁ + a₂ + a₃, of which rank 0
has a₀ and a₂, that would be (a₀ + a₂) + (a₁ + a₃). Instead, the ranks work in *rounds*. In each of them every
rank has one micro-batch, and its gradients are added at once, in the order of the ranks:

    round 0: total = a₀, total += a₁     round 1: total += a₂, total += a₃

Adding is shared out as well. Each rank owns an N-th part of the gradient: it gets that part from all others,
adds, and after the last round gives the sum to everybody. In a step of k rounds each rank sends
(k + 1) (N − 1)/N of the gradient, where 2 (N − 1)/N would be the least.

A parameter that is used several times in a pass, such as the word embeddings that are also the decoder, has a
gradient from each of these uses, and one process adds them to the total one by one. So do we: those after the
first travel by themselves.
"""

import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np

from minibert.arrays import Array
from minibert.nn.parameter import Parameter, ParameterBuffers
from minibert.ranks import Exchange, Ranks

PIECE = 1 << 20  # elements, at least, that are sent together


class GradientSum:
    """What ``accumulate_gradients`` does besides one pass after the other; for one process, nothing."""

    @contextmanager
    def one_round(self) -> Iterator[None]:
        """Within this block, one micro-batch adds its gradients. At the end they are in the sum."""
        yield

    def gather(self, losses: Mapping[str, Array]) -> list[Mapping[str, Array]]:
        """The losses of all micro-batches of this round, in their order."""
        return [losses]

    def finish(self) -> None:
        """Put the sum of all rounds into ``buffers.grad``."""


class FastSum(GradientSum):
    """Every rank adds up the gradients of its micro-batches; then MPI adds up those, in any order."""

    def __init__(self, buffers: ParameterBuffers, ranks: Ranks):
        self._buffers, self._ranks = buffers, ranks

    def gather(self, losses: Mapping[str, Array]) -> list[Mapping[str, Array]]:
        """The losses of all ranks' micro-batches."""
        own = {name: value for name, value in losses.items() if value is not None}
        rows = self._ranks.gather_array(np.stack(list(own.values())))  # (N, losses)
        return [dict(zip(own, row, strict=True)) for row in rows]

    def finish(self) -> None:
        """Add up what the ranks have."""
        self._ranks.sum_fast(self._buffers.grad)


class ExactSum(FastSum):
    """Adds up the gradients in the order of the micro-batches (see above). It hears of each gradient.

    A piece of the gradient is on its way as soon as a round has written all of it, while the backward pass
    goes on with the layers below.
    """

    def __init__(self, buffers: ParameterBuffers, ranks: Ranks):
        super().__init__(buffers, ranks)
        self._pieces = _cut(buffers, ranks)
        self._later: dict[Parameter, list[Array]] = {}  # the gradients after the first, in this round
        self._rounds = 0

    @contextmanager
    def one_round(self) -> Iterator[None]:
        """A micro-batch on every rank."""
        for piece in self._pieces:
            piece.missing = set(piece.parameters)
        self._later = {parameter: [] for parameter in self._buffers.parameters}
        self._waiting = list(self._pieces)
        for parameter in self._buffers.parameters:
            parameter.fresh, parameter.listener = True, self
        try:
            yield
        finally:
            for parameter in self._buffers.parameters:
                parameter.listener = None
        self._add_round()

    def stored(self, parameter: Parameter) -> None:
        """The first gradient of a parameter has been written."""
        for piece in self._pieces:
            piece.missing.discard(parameter)
        # All ranks have to start the same exchanges in the same order, whatever their micro-batches hold.
        while self._waiting and not self._waiting[0].missing:
            self._waiting.pop(0).start()
        for piece in self._pieces:
            piece.advance()

    def added(self, parameter: Parameter, gradient: Array) -> None:
        """There is a gradient from another use of the parameter."""
        self._later[parameter].append(gradient.copy())

    def _add_round(self) -> None:
        for parameter in self._buffers.parameters:
            parameter.settle_grad()
        for piece in self._waiting:
            piece.start()
        counts = np.array([len(gradients) for gradients in self._later.values()])
        uses = dict(zip(self._later, self._ranks.gather_array(counts).max(axis=0).tolist(), strict=True))
        for piece in self._pieces:
            piece.add(self._later, uses, into_zeros=self._rounds == 0)
        self._rounds += 1

    def finish(self) -> None:
        """Give the sum to all ranks."""
        for piece in self._pieces:
            piece.share()
        self._rounds = 0


class _Piece:
    """Some neighbouring parameters, whose gradient is sent together: elements ``start`` to ``stop``.

    Every rank owns an equal part of it, where it adds; ``ends`` (N + 1,) are the limits of these parts.
    """

    def __init__(self, buffers: ParameterBuffers, places: Mapping[Parameter, slice], ranks: Ranks):
        self.parameters = list(places)
        self.missing: set[Parameter] = set()  # those that this round has not written yet
        self._ranks = ranks
        start, stop = next(iter(places.values())).start, list(places.values())[-1].stop
        self._gradient = buffers.grad[start:stop]
        starts = {parameter: place.start - start for parameter, place in places.items()}
        self._places = {parameter: slice(s, s + parameter.size) for parameter, s in starts.items()}
        ends = [(stop - start) * rank // ranks.size for rank in range(ranks.size + 1)]
        self._parts = [slice(*pair) for pair in itertools.pairwise(ends)]
        self._own = self._parts[ranks.rank]
        self._total = np.zeros(_length(self._own), self._gradient.dtype)
        self._exchange: Exchange | None = None

    def start(self) -> None:
        """Send everybody their part, and get our own from all."""
        self._exchange, self._received = self._send(self._gradient, [_length(part) for part in self._parts])

    def advance(self) -> None:
        """Let MPI go on."""
        if self._exchange is not None:
            self._exchange.advance()

    def add(
        self, later: Mapping[Parameter, list[Array]], uses: Mapping[Parameter, int], *, into_zeros: bool
    ) -> None:
        """Add this round to our part of the sum: from each rank the first gradients, then the others.

        ``uses`` says how many others there are of each parameter, on the rank that has most.
        """
        more = [self._send_later(later, uses, i) for i in range(max(uses[p] for p in self.parameters))]
        assert self._exchange is not None
        self._exchange.wait()
        self._exchange = None
        for rank, first in enumerate(self._received):
            if into_zeros and rank == 0:
                self._total[...] = first
            else:
                self._total += first
            for exchange, received, places in more:
                exchange.wait()
                start = 0
                for place in places:
                    stop = start + _length(place)
                    self._total[place] += received[rank, start:stop]
                    start = stop

    def _send_later(
        self, later: Mapping[Parameter, list[Array]], uses: Mapping[Parameter, int], number: int
    ) -> tuple[Exchange, np.ndarray, list[slice]]:
        """Send the gradient of this number of all parameters that have so many; where to add it, too."""
        chosen = [parameter for parameter in self.parameters if uses[parameter] > number]
        sent = np.zeros(sum(parameter.size for parameter in chosen), self._gradient.dtype)
        sizes, start = [0] * len(self._parts), 0
        for parameter in chosen:
            if number < len(later[parameter]):
                sent[start : start + parameter.size] = later[parameter][number].ravel()
            start += parameter.size
        own = []
        for rank, part in enumerate(self._parts):
            for parameter in chosen:
                both = _overlap(self._places[parameter], part)
                sizes[rank] += _length(both)
                if rank == self._ranks.rank:
                    own.append(slice(both.start - part.start, both.stop - part.start))
        exchange, received = self._send(sent, sizes)
        return exchange, received, own

    def _send(self, sent: np.ndarray, sizes: list[int]) -> tuple[Exchange, np.ndarray]:
        received = np.empty((self._ranks.size, sizes[self._ranks.rank]), sent.dtype)
        return self._ranks.start_exchange(sent, sizes, received), received

    def share(self) -> None:
        """Replace the gradient by the sum, on every rank."""
        self._gradient[self._own] = self._total
        self._ranks.share(self._gradient, [_length(part) for part in self._parts])


def _cut(buffers: ParameterBuffers, ranks: Ranks) -> list[_Piece]:
    """The gradient in pieces, in the order in which a backward pass usually completes them: the last first.

    The gaps between parameters are zeros, and go with the parameter before.
    """
    groups: list[dict[Parameter, slice]] = []
    start = size = 0
    for parameter, stop in zip(buffers.parameters, buffers.ends, strict=True):
        if not size:
            groups.append({})
        groups[-1][parameter] = slice(start, stop)
        size = size + stop - start if size + stop - start < PIECE else 0
        start = stop
    return [_Piece(buffers, places, ranks) for places in reversed(groups)]


def _length(part: slice) -> int:
    return part.stop - part.start


def _overlap(one: slice, other: slice) -> slice:
    """The part that two slices have in common; an empty one, somewhere in ``other``, if there is none."""
    start = min(max(one.start, other.start), other.stop)
    return slice(start, max(start, min(one.stop, other.stop)))
