"""The sum of all ranks' gradients, in the order in which one process would add them.

Numbers that a computer adds in another order give another sum. So it is not enough that every rank adds up
the gradients of its micro-batches, and then all ranks add up those: with a₀ + a₁ + a₂ + a₃, of which rank 0
has a₀ and a₂, that would be (a₀ + a₂) + (a₁ + a₃). Instead, the ranks work in *rounds*. In each of them every
rank has one micro-batch, and its gradients are added at once, in the order of the ranks:

    round 0: total = a₀, total += a₁     round 1: total += a₂, total += a₃

Adding is shared out as well. Each rank owns an N-th part of the gradient: it gets that part from all others,
adds, and after the last round gives the sum to everybody. In a step of k rounds each rank sends
(k + 1) (N − 1)/N of the gradient, where 2 (N − 1)/N would be the least. If the optimiser is sharded
(`shards.py`), everybody keeps its part of the sum, updates that part of the parameters, and gives away these.

A parameter that is used several times in a pass, such as the word embeddings that are also the decoder, has a
gradient from each of these uses, and one process adds them to the total one by one. So do we: those after the
first travel by themselves.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import numpy as np

from minibert.arrays import Array, get_array_module
from minibert.nn.parameter import Parameter, ParameterBuffers
from minibert.ranks import Exchange, Ranks
from minibert.train.shards import Shards, length, moved, overlap, whole


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


class GpuSum(GradientSum):
    """NCCL adds up the gradients of all ranks' GPUs, in an order of its own. No host waits for it."""

    def __init__(self, buffers: ParameterBuffers, shards: Shards, own_only: bool):
        self._buffers, self._shards, self._own_only = buffers, shards, own_only

    def gather(self, losses: Mapping[str, Array]) -> list[Mapping[str, Array]]:
        """The sums of the losses over all ranks' micro-batches."""
        own = {name: value for name, value in losses.items() if value is not None}
        sums = get_array_module(self._buffers.value).stack(list(own.values()))
        self._shards.ranks.gpus.sum(sums)
        return [{name: sums[number] for number, name in enumerate(own)}]

    def finish(self) -> None:
        """Add up what the ranks have."""
        gpus = self._shards.ranks.gpus
        if not self._own_only:
            gpus.sum(self._buffers.grad)
            return
        for parts in self._shards.pieces:
            gpus.sum_parts(self._buffers.grad, parts)


class FastSum(GradientSum):
    """Every rank adds up the gradients of its micro-batches; then MPI adds up those, in any order."""

    def __init__(self, buffers: ParameterBuffers, shards: Shards, own_only: bool):
        self._buffers, self._ranks, self._shards, self._own_only = buffers, shards.ranks, shards, own_only

    def gather(self, losses: Mapping[str, Array]) -> list[Mapping[str, Array]]:
        """The losses of all ranks' micro-batches."""
        own = {name: value for name, value in losses.items() if value is not None}
        rows = self._ranks.gather_array(np.stack(list(own.values())))  # (N, losses)
        return [dict(zip(own, row, strict=True)) for row in rows]

    def finish(self) -> None:
        """Add up what the ranks have."""
        if not self._own_only:
            self._ranks.sum_fast(self._buffers.grad)
            return
        for parts in self._shards.pieces:
            self._ranks.sum_share_fast(self._buffers.grad[whole(parts)], [length(part) for part in parts])


class ExactSum(FastSum):
    """Adds up the gradients in the order of the micro-batches (see above). It hears of each gradient.

    A piece of the gradient is on its way as soon as a round has written all of it, while the backward pass
    goes on with the layers below. All ranks have to send the pieces in one order, whatever their
    micro-batches hold: in the first round from the last piece to the first, and from then on in the order in
    which rank 0 completed them in that round.
    """

    def __init__(self, buffers: ParameterBuffers, shards: Shards, own_only: bool):
        super().__init__(buffers, shards, own_only)
        self._pieces = [_Piece(buffers, parts, self._ranks) for parts in reversed(shards.pieces)]
        self._completed: list[int] | None = []  # numbers of pieces; None after the first round
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
        for number, piece in enumerate(self._pieces):
            if parameter in piece.missing:
                piece.missing.remove(parameter)
                if not piece.missing and self._completed is not None:
                    self._completed.append(number)
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
            piece.start_later(self._later, uses)
        for piece in self._pieces:
            piece.add(into_zeros=self._rounds == 0)
        self._rounds += 1
        if self._completed is not None:
            self._sort_pieces(self._completed)
            self._completed = None

    def _sort_pieces(self, completed: list[int]) -> None:
        """From now on, send the pieces as rank 0 has completed them. Some parameters may get no gradient."""
        others = [number for number in range(len(self._pieces)) if number not in completed]
        self._pieces = [self._pieces[number] for number in self._ranks.broadcast(completed + others)]

    def finish(self) -> None:
        """Give the sum to all ranks, or to each rank its own parts of it."""
        for piece in self._pieces:
            piece.finish()
        if not self._own_only:
            self._shards.share(self._buffers.grad)
        self._rounds = 0


class _Piece:
    """A piece of the gradient that is sent together. Every rank adds up its own of the ``parts``.

    The gaps between parameters are zeros, and go with the parameter before.
    """

    def __init__(self, buffers: ParameterBuffers, parts: list[slice], ranks: Ranks):
        self._ranks, self._parts, self._own = ranks, parts, parts[ranks.rank]
        self._gradient = buffers.grad
        self._total = np.zeros(length(self._own), self._gradient.dtype)
        self._exchange: Exchange | None = None
        self._places: dict[Parameter, tuple[slice, int]] = {}  # in the buffer; where the parameter begins
        start = 0
        for parameter, end in zip(buffers.parameters, buffers.ends, strict=True):
            if length(overlap(whole(parts), slice(start, end))):
                inside = overlap(whole(parts), slice(start, start + parameter.size))
                self._places[parameter] = inside, start
            start = end
        self.missing: set[Parameter] = set()  # those that this round has not written yet

    @property
    def parameters(self) -> Iterable[Parameter]:
        """Those that lie in this piece, at least in part."""
        return self._places

    def start(self) -> None:
        """Send everybody their part, and get our own from all."""
        sizes = [length(part) for part in self._parts]
        self._exchange, self._received = self._send(self._gradient[whole(self._parts)], sizes)

    def advance(self) -> None:
        """Let MPI go on."""
        if self._exchange is not None:
            self._exchange.advance()

    def start_later(self, later: Mapping[Parameter, list[Array]], uses: Mapping[Parameter, int]) -> None:
        """Send the gradients after the first. ``uses``: the most gradients of a parameter on any rank."""
        most = max(uses[parameter] for parameter in self.parameters)
        self._more = [self._send_later(later, uses, number) for number in range(most)]

    def add(self, *, into_zeros: bool) -> None:
        """Add this round to our part of the sum: from each rank the first gradients, then the others."""
        assert self._exchange is not None
        self._exchange.wait()
        self._exchange = None
        for rank, first in enumerate(self._received):
            if into_zeros and rank == 0:
                self._total[...] = first
            else:
                self._total += first
            for exchange, received, places in self._more:
                exchange.wait()
                start = 0
                for place in places:
                    stop = start + length(place)
                    self._total[place] += received[rank, start:stop]
                    start = stop

    def _send_later(
        self, later: Mapping[Parameter, list[Array]], uses: Mapping[Parameter, int], number: int
    ) -> tuple[Exchange, np.ndarray, list[slice]]:
        """Send gradient ``number`` of every parameter that has one; also return where to add it."""
        sent, sizes, own = [], [0] * len(self._parts), []
        for parameter, (place, begin) in self._places.items():
            if uses[parameter] <= number:
                continue
            gradient = np.zeros(length(place), self._gradient.dtype)
            if number < len(later[parameter]):
                gradient[...] = later[parameter][number].ravel()[moved(place, -begin)]
            sent.append(gradient)
            for rank, part in enumerate(self._parts):
                sizes[rank] += length(overlap(place, part))
            own.append(moved(overlap(place, self._own), -self._own.start))
        exchange, received = self._send(np.concatenate(sent), sizes)
        return exchange, received, own

    def _send(self, sent: np.ndarray, sizes: list[int]) -> tuple[Exchange, np.ndarray]:
        received = np.empty((self._ranks.size, sizes[self._ranks.rank]), sent.dtype)
        return self._ranks.start_exchange(sent, sizes, received), received

    def finish(self) -> None:
        """Put our part of the sum into the gradient."""
        self._gradient[self._own] = self._total


def make_sum(buffers: ParameterBuffers, shards: Shards, *, fast: bool, own_only: bool) -> GradientSum:
    """How these ranks add up; on GPUs it is always fast. With ``own_only`` each rank gets its own parts."""
    if shards.ranks.size == 1:
        return GradientSum()
    if shards.ranks.gpus is not None:
        return GpuSum(buffers, shards, own_only)
    return (FastSum if fast else ExactSum)(buffers, shards, own_only)
