"""One training step: from batches on the host to changed parameters, with nothing to wait for in between."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from minibert.arrays import Array, to_numpy
from minibert.dropout_bits import dropout_stream
from minibert.nn import Context
from minibert.replay import Repetition
from minibert.train.metrics import Batch, add_up, count_targets
from minibert.train.optimiser import AdamW, Rates


@dataclass(frozen=True)
class StepInputs:
    """All that differs from one step to the next. ``batches`` and ``streams`` have an item a micro-batch."""

    batches: list[Any]  # as the model has checked them
    streams: list[Array]  # of dropout, each (5,): see dropout_bits.dropout_stream
    rates: Rates


class TrainingStep:
    """Takes steps, on a GPU as one CUDA graph (unless ``graph`` is False), and adds up their losses there.

    Of a model it asks for ``prepare(**batch)`` on the host, for ``forward(prepared, context=…)`` and
    ``backward(cache, dloss)`` on the device, for ``count_targets(batch)``, the denominators, and for the
    names of its ``losses``.

    ``predictions`` is the largest number of masked words in a micro-batch of pre-training. A GPU always
    computes with so many, some of weight 0, so that the shapes stay the same; the CPU with as many as there
    are. A graph is for batches that are all of one shape.
    """

    def __init__(
        self,
        model: Any,
        optimiser: AdamW,
        *,
        seed: int = 0,
        predictions: int | None = None,
        graph: bool = True,
    ):
        self.model, self.optimiser, self.seed = model, optimiser, seed
        self.repetition = Repetition(model.device, self._compute, graph=graph)
        fixed = self.repetition.fixed_shapes and predictions is not None
        self._shapes = {"predictions": predictions} if fixed else {}
        self._names: list[str] = []  # of what is added up
        self._sums = model.device.xp.zeros(len(model.losses) + 1, dtype=model.buffers.value.dtype)
        self._steps = 0  # that are in the sums

    def take(self, micro_batches: Sequence[Batch], learning_rate: float, step: int) -> None:
        """One update of the parameters. A GPU has not computed it yet when this returns.

        Raises UserError for a batch that does not fit the model.
        """
        denominators = count_targets(self.model, micro_batches)
        batches = [self.model.prepare(**batch, **denominators, **self._shapes) for batch in micro_batches]
        streams = [dropout_stream(self.seed, step, index, 0) for index in range(len(batches))]
        self.repetition(StepInputs(batches, streams, self.optimiser.rates(learning_rate, step)))
        self._steps += 1

    def read(self) -> dict[str, float]:
        """The means, over the steps since the last call, of the losses and of the gradient's norm.

        The host waits here for the device. Raises ValueError if there was no step.
        """
        if not self._steps:
            raise ValueError("no step has been taken since the losses were last read")
        means = to_numpy(self._sums) / self._steps
        self._sums[...] = 0
        self._steps = 0
        return dict(zip(self._names, means.tolist(), strict=False))

    def _compute(self, inputs: StepInputs) -> None:
        scaling = self.optimiser.loss_scale
        scale = scaling.value if scaling else 1.0
        results = accumulate_gradients(self.model, inputs.batches, inputs.streams, scale)
        results["grad_norm"] = self.optimiser.update(inputs.rates)
        self._names = list(results)
        self._sums[: len(results)] += self.model.device.xp.stack(list(results.values()))


def accumulate_gradients(
    model: Any, batches: Sequence[Any], streams: Sequence[Array], scale: Array | float = 1.0
) -> dict[str, Array]:
    """The gradients of one batch, computed in pieces that are added up; returns its losses, 0-d arrays.

    The gradients are those of ``scale`` times the loss. Batches and dropout streams are on the device.
    Every piece divides its losses by the number of predictions in all of them, so the sum is what the one
    large batch would give, although the pieces may hold different numbers of them.
    """
    model.zero_grad()
    losses: dict[str, Array] = {}
    for batch, stream in zip(batches, streams, strict=True):
        outputs, cache = model.forward(batch, context=Context(training=True, stream=stream))
        model.backward(cache, scale)
        add_up(losses, {name: getattr(outputs, name) for name in model.losses})
    return losses
