"""One training step: from batches on the host to updated parameters, without waiting in between."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from minibert.arrays import Array, to_numpy
from minibert.dropout_bits import dropout_stream
from minibert.nn import Context
from minibert.ranks import Ranks
from minibert.replay import Repetition
from minibert.train.gradient_sum import GradientSum, make_sum
from minibert.train.metrics import Batch, add_up, count_targets
from minibert.train.optimiser import AdamW, Rates
from minibert.train.shards import Shards


@dataclass(frozen=True)
class StepInputs:
    """All that differs between steps. ``batches`` and ``streams`` have one item per micro-batch."""

    batches: list[Any]  # as the model has checked them
    streams: list[Array]  # of dropout, each (5,): see dropout_bits.dropout_stream
    rates: Rates


class TrainingStep:
    """Takes steps, and adds up their losses on the device. On a GPU, a step is replayed as one CUDA graph.

    A model has to offer ``prepare(**batch)`` on the host, ``forward(prepared, context=…)`` and
    ``backward(cache, dloss)`` on the device, ``count_targets(batch)``, which gives the denominators, and the
    names of its ``losses``.

    ``predictions`` is the largest number of masked words in a micro-batch of pre-training. A GPU always
    computes that many, some with weight 0, so that the shapes stay the same; the CPU computes only those that
    are there. With ``graph`` False no graph is used: a graph needs batches that all have the same shapes.

    Several ``ranks`` share the micro-batches of a step as cards are dealt: of N ranks, rank r has the micro-
    batches r, r + N, r + 2N, … All of them take the step that one process would take with all micro-batches,
    bit for bit; with ``fast_reduce``, and on GPUs, up to the order of addition. They may also share out the
    ``optimiser``.
    """

    def __init__(
        self,
        model: Any,
        optimiser: AdamW,
        *,
        seed: int = 0,
        predictions: int | None = None,
        graph: bool = True,
        ranks: Ranks | None = None,
        fast_reduce: bool = False,
    ):
        self.model, self.optimiser, self.seed = model, optimiser, seed
        self.ranks = ranks or Ranks()
        sharded = optimiser.sharded
        shards = optimiser.shards if sharded else Shards(model.buffers.value.size, self.ranks)
        self._sum = make_sum(model.buffers, shards, fast=fast_reduce, own_only=sharded)
        self.repetition = Repetition(model.device, self._compute, graph=graph)
        fixed = self.repetition.fixed_shapes and predictions is not None
        self._shapes = {"predictions": predictions} if fixed else {}
        self._names = (*model.losses, "grad_norm")  # of what is added up
        self._present: list[str] = []  # those that the last step had: a batch may lack labels for a loss
        self._sums = model.device.xp.zeros(len(self._names), dtype=model.buffers.value.dtype)
        self._steps = dict.fromkeys(self._names, 0)  # that are in each of the sums

    def take(self, micro_batches: Sequence[Batch], learning_rate: float, step: int) -> None:
        """Update the parameters once. A GPU has not computed it yet when this returns.

        ``micro_batches`` are those of this rank. Raises UserError for a batch that does not fit the model.
        """
        denominators = count_targets(self.model, micro_batches, self.ranks)
        batches = [self.model.prepare(**batch, **denominators, **self._shapes) for batch in micro_batches]
        numbers = range(self.ranks.rank, len(batches) * self.ranks.size, self.ranks.size)
        streams = [dropout_stream(self.seed, step, number) for number in numbers]
        self.repetition(StepInputs(batches, streams, self.optimiser.rates(learning_rate, step)))
        for name in self._present:
            self._steps[name] += 1

    def read(self) -> dict[str, float]:
        """The means, over the steps since the last call, of the losses and of the gradient norm, by name.

        The mean of a loss is that over the steps that had it. The host waits here for the device. Raises
        ValueError if there was no step.
        """
        steps = self._steps
        if not any(steps.values()):
            raise ValueError("no step has been taken since the losses were last read")
        sums = to_numpy(self._sums).copy()
        self._sums[...] = 0
        self._steps = dict.fromkeys(self._names, 0)
        return {name: float(x / steps[name]) for name, x in zip(steps, sums, strict=True) if steps[name]}

    def _compute(self, inputs: StepInputs) -> None:
        scaling = self.optimiser.loss_scale
        scale = scaling.value if scaling else 1.0
        results = accumulate_gradients(self.model, inputs.batches, inputs.streams, scale, self._sum)
        results["grad_norm"] = self.optimiser.update(inputs.rates)
        self._present = list(results)
        xp = self.model.device.xp
        absent = xp.zeros((), dtype=self._sums.dtype)
        self._sums += xp.stack([results.get(name, absent) for name in self._names])


def accumulate_gradients(
    model: Any,
    batches: Sequence[Any],
    streams: Sequence[Array],
    scale: Array | float = 1.0,
    gradient_sum: GradientSum | None = None,
) -> dict[str, Array]:
    """Compute the gradients of one batch in pieces, and add them up. Returns its losses, 0-d arrays by name.

    The gradients are those of ``scale`` times the loss. Batches and dropout streams are on the device.
    Every piece divides its losses by the number of predictions in all pieces, so the sum is what one large
    batch would give, even if the pieces hold different numbers of predictions. With ``gradient_sum`` there
    are pieces on other ranks, which are added, too.
    """
    gradient_sum = gradient_sum or GradientSum()
    losses: dict[str, Array] = {}
    model.zero_grad()
    for batch, stream in zip(batches, streams, strict=True):
        with gradient_sum.one_round():
            outputs, cache = model.forward(batch, context=Context(training=True, stream=stream))
            model.backward(cache, scale)
        terms = {name: getattr(outputs, name) for name in model.losses}
        for others in gradient_sum.gather(terms):
            add_up(losses, others)
    gradient_sum.finish()
    return losses
