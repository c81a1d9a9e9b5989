"""The training loop: steps, and between them reports, evaluations, checkpoints, and an orderly stop."""

import functools
import math
import signal
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from minibert.arrays import to_numpy
from minibert.errors import UserError
from minibert.nn.targets import count_tokens
from minibert.ranks import Ranks
from minibert.train.loss_scale import LEAST
from minibert.train.metrics import Batch, MetricsLog, as_float
from minibert.train.optimiser import AdamW
from minibert.train.progress import Progress
from minibert.train.step import TrainingStep


class BatchSource(Protocol):
    """What training data must offer: an endless stream of batches, whose position can be saved."""

    def __next__(self) -> Batch:
        """The next batch: the arguments of the model's forward pass, on the host."""

    def skip(self) -> None:
        """Skip the next batch, as if it had been taken."""

    def state(self) -> dict[str, Any]:
        """The position that has been reached, as JSON."""

    def restore(self, state: dict[str, Any]) -> None:
        """Go to a position that ``state`` gave: the same batches follow, bit for bit."""


@dataclass
class Trainer:
    """Trains ``model`` for ``steps`` steps. Three things recur, every so many steps and when ``run`` ends:

    a report   read the losses and write a line of ``metrics``
    evaluate   measure on held-out text and write another line (also before the first step)
    save       write a checkpoint with ``state()``

    The losses stay on the device until a report reads them. It gives their mean, and that of the gradient
    norm, over the steps since the last report. A loss or a gradient that is not finite ends the run before
    anything is saved from it. (In float16 a gradient may overflow: its step is skipped, and ``grad_norm`` is
    null in the metrics.) Ctrl-C lets the step end and saves a checkpoint; a second one stops at once.

    Several ``ranks`` share the ``accumulation`` micro-batches of every step, whose number they divide; all
    are at the same step always. Only the first writes: ``save`` is called there alone.
    """

    model: Any
    optimiser: AdamW
    batches: BatchSource
    learning_rate: Callable[[int], float]  # of the step, counted from 0
    evaluate: Callable[[], dict[str, float]]
    save: Callable[[dict[str, Any]], Path]  # of state(); returns the checkpoint's folder
    metrics: MetricsLog
    steps: int
    accumulation: int = 1
    seed: int = 0
    predictions: int | None = None  # these two, and fast_reduce: see TrainingStep
    graph: bool = True
    ranks: Ranks = field(default_factory=Ranks)
    fast_reduce: bool = False
    log_every: int = 1
    print_every: int = 100
    eval_every: int = 250
    save_every: int = 500

    step: int = 0  # steps taken
    tokens: int = 0  # tokens read, padding not counted
    seconds: float = 0.0  # spent in steps, without evaluations and checkpoints (and before the first step)
    checkpoint: Path | None = None  # the last one

    _stop: int = 0  # where ``run`` ends
    _earlier: tuple[int, int, float] = (0, 0, 0.0)  # step, tokens and seconds when ``run`` began
    _since: tuple[int, int, float] = (0, 0, 0.0)  # step, tokens and the clock at the last report
    _place: dict[str, Any] = field(default_factory=dict)  # position in the data at the last report

    def state(self) -> dict[str, Any]:
        """How far the run has got, as JSON."""
        return {
            "step": self.step,
            "tokens": self.tokens,
            "seconds": self.seconds,
            "data": self.batches.state(),
        }

    @functools.cached_property
    def _training(self) -> TrainingStep:
        return TrainingStep(
            self.model,
            self.optimiser,
            seed=self.seed,
            predictions=self.predictions,
            graph=self.graph,
            ranks=self.ranks,
            fast_reduce=self.fast_reduce,
        )

    @property
    def pool_bytes(self) -> int:
        """The most bytes on the GPU that the steps of ``run`` have had to themselves."""
        return self._training.repetition.pool_bytes

    def restore(self, checkpoint: Path, state: Mapping[str, Any]) -> None:
        """Go on from the ``state()`` in a checkpoint. This does not restore parameters and moments."""
        self.checkpoint = checkpoint
        self.step, self.tokens, self.seconds = state["step"], state["tokens"], state["seconds"]
        self.batches.restore(state["data"])
        if self.ranks.first:
            self.metrics.truncate(self.step)

    def run(self, stop: int | None = None) -> None:
        """Train until ``stop`` steps have been taken (default: to the end).

        Raises KeyboardInterrupt after Ctrl-C, once a checkpoint is saved, and UserError if a loss, a gradient
        or a weight is not finite.
        """
        self._stop = self.steps if stop is None else stop
        self._earlier = (self.step, self.tokens, self.seconds)
        with _Interrupt() as interrupt, Progress(self.step, self.steps, self.print_every) as progress:
            if self.step == 0:
                self._evaluate(progress)
            self._begin_report()
            while self.step < self._stop:
                self._take_step()
                stopping = self.ranks.any(interrupt.requested)
                evaluating, saving = self._due(self.eval_every), self._due(self.save_every) or stopping
                if self._due(self.log_every) or evaluating or saving:
                    self._report(progress)
                    if evaluating or saving:
                        self._check_finite_weights()
                    if evaluating:
                        self._evaluate(progress)
                    if saving:
                        self._save()
                    self._begin_report()
                if stopping:
                    raise KeyboardInterrupt
            if self.ranks.any(interrupt.requested):  # in the last evaluation, say: all is saved
                raise KeyboardInterrupt

    def _due(self, every: int) -> bool:
        return self.step % every == 0 or self.step == self._stop

    def _take_step(self) -> None:
        """Update the parameters once."""
        micro_batches = list(self._own_batches())
        self._training.take(micro_batches, self.learning_rate(self.step), self.step)
        self.step += 1
        self.tokens += sum(self.ranks.gather(sum(map(count_tokens, micro_batches))))

    def _own_batches(self) -> Iterator[Batch]:
        """Those of the next ``accumulation`` micro-batches that this rank computes."""
        for number in range(self.accumulation):
            if number % self.ranks.size == self.ranks.rank:
                yield next(self.batches)
            else:
                self.batches.skip()

    def check_weights(self) -> None:
        """Raise UserError if the ranks do not have the same weights, bit for bit."""
        if self.ranks.size > 1:
            values = to_numpy(self.optimiser.buffers.value)
            self.ranks.agree({"the checksum of the weights": zlib.crc32(values.data)})

    def _save(self) -> None:
        """Write a checkpoint. No rank goes on before it is there."""
        self.check_weights()
        folder = None
        if self.ranks.first:
            folder = str(self.save(self.state()))
        elif self.optimiser.sharded:
            self.optimiser.state_arrays()  # which the first collects for the checkpoint
        self.checkpoint = Path(self.ranks.broadcast(folder))

    def _begin_report(self) -> None:
        self._since = (self.step, self.tokens, time.perf_counter())
        self._place = self.batches.state()

    def _report(self, progress: Progress) -> None:
        """Read the losses since the last report, for which the host waits here, and log them."""
        _, tokens, clock = self._since
        losses = self._training.read()
        grad_norm = losses.pop("grad_norm")
        scaling = self.optimiser.loss_scale
        scale = {"loss_scale": as_float(scaling.value)} if scaling else {}
        # In float16 a gradient may overflow now and then, as long as there is a smaller scale to try.
        overflowed = not math.isfinite(grad_norm) and scale.get("loss_scale", LEAST) > LEAST
        self._check_finite(losses["loss"], 0.0 if overflowed else grad_norm)
        seconds = time.perf_counter() - clock
        self.seconds += seconds
        self._write(
            {
                "step": self.step,
                **losses,
                "lr": self.learning_rate(self.step - 1),
                "grad_norm": None if overflowed else grad_norm,
                **scale,
                "tokens": self.tokens,
                "tokens_per_second": round((self.tokens - tokens) / seconds, 1),
                "seconds": round(self.seconds, 3),
            }
        )
        self._show(progress, losses["loss"])

    def _show(self, progress: Progress, loss: float) -> None:
        """Show the speed since ``run`` began, and the time left at this speed.

        Another machine may have taken the steps before, and they may have been shorter ones.
        """
        step, tokens, seconds = self._earlier
        seconds = self.seconds - seconds
        left = seconds / (self.step - step) * (self.steps - self.step)
        progress.update(self.step, loss, (self.tokens - tokens) / seconds, left)

    def _write(self, record: Mapping[str, Any]) -> None:
        if self.ranks.first:
            self.metrics.write(record)

    def _check_finite(self, loss: float, grad_norm: float) -> None:
        if not math.isfinite(loss) or not math.isfinite(grad_norm):
            raise self._diverged(f"the loss is {loss} and the gradient norm {grad_norm}")

    def _check_finite_weights(self) -> None:
        """Raise UserError if some weights are not finite. No loss has been computed since the last update."""
        if not bool(self.model.device.xp.isfinite(self.optimiser.buffers.value).all()):
            raise self._diverged("some weights are not finite")

    def _diverged(self, what: str) -> UserError:
        first = self._since[0] + 1
        steps = f"step {self.step}" if first == self.step else f"steps {first} to {self.step}"
        place = ", ".join(f"{name} {value}" for name, value in self._place.items())
        good = f"the last good checkpoint is {self.checkpoint}" if self.checkpoint else "no checkpoint yet"
        return UserError(
            f"{what} at {steps}, in the batch that begins at "
            f"{place} of the training data; {good}; start again with a lower learning_rate or a longer warmup"
        )

    def _evaluate(self, progress: Progress) -> None:
        results = {f"held_out_{name}": value for name, value in self.evaluate().items()}
        self._write({"step": self.step, **results})
        told = "  ".join(f"{name.replace('_', ' ')} {value:.3f}" for name, value in results.items())
        progress.note(f"step {self.step}: {told}")


class _Interrupt:
    """Turns the first Ctrl-C into a request, granted after the step; the second interrupts as usual."""

    requested = False

    def __enter__(self) -> "_Interrupt":
        # only the main thread may catch signals; elsewhere Ctrl-C is somebody else's business
        self._in_charge = threading.current_thread() is threading.main_thread()
        if self._in_charge:
            self._before = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        if self._in_charge:
            signal.signal(signal.SIGINT, self._before)

    def _handle(self, *_: object) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
