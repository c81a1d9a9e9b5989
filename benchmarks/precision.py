"""``python -m benchmarks.precision``: the loss curves of all precisions, from the same weights and batches.

Trains from the same first weights in each precision and draws the losses into one picture, with their
distance from float32's below. On a CPU the 16-bit precisions are the reference operations with every result
rounded, so a small model proves the rounding there; on a GPU they are what a run is.
"""

import argparse
import sys
from pathlib import Path

import numpy as np

from benchmarks.measure import ROOT
from benchmarks.parts.common import new_axes, save_figure
from benchmarks.results import table
from minibert.bert import BertForPreTraining
from minibert.data import BatchStream
from minibert.devices import resolve_device
from minibert.errors import UserError
from minibert.files import write_json
from minibert.precision import PRECISIONS, check_precision
from minibert.tasks import prepare
from minibert.tasks.pretraining_settings import PretrainSettings
from minibert.train import AdamW
from minibert.train.schedule import SCHEDULES
from minibert.train.step import TrainingStep

REFERENCE = "float32"


def main() -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.precision", description=__doc__.split(": ")[1]
    )
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N (default: %(default)s)")
    parser.add_argument("--precisions", nargs="+", default=list(PRECISIONS), choices=PRECISIONS)
    parser.add_argument("--preset", default="tiny", help="size of the model (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=1000, help="(default: %(default)s)")
    parser.add_argument("--batch-size", type=int, default=32, help="(default: %(default)s)")
    parser.add_argument("--corpus", nargs="+", default=(), help="(default: the text that comes with Python)")
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results", metavar="FOLDER")
    options = parser.parse_args()
    try:
        run(options)
    except UserError as error:
        print(f"benchmarks.precision: error: {error}", file=sys.stderr)
        return 2
    return 0


def run(options: argparse.Namespace) -> None:
    """Train in every precision; write ``precision.json`` and ``precision.png``, print a table."""
    settings = PretrainSettings(
        corpus=tuple(options.corpus),
        preset=options.preset,
        steps=options.steps,
        batch_size=options.batch_size,
    )
    device = resolve_device(options.device)
    for name in options.precisions:
        check_precision(PRECISIONS[name], device)
    tokenizer, prepared = prepare(settings)
    curves = {}
    for name in dict.fromkeys([REFERENCE, *options.precisions]):
        model = BertForPreTraining(
            settings.model_config(len(tokenizer)), device=device, precision=name, seed=0
        )
        batches = BatchStream(
            prepared.train, tokenizer, settings.instance_settings(), settings.batch_size, settings.seed
        )
        curves[name] = loss_curve(model, batches, settings)
        print(f"{name}: loss of the last tenth {tail(curves[name]):.4f}", flush=True)
    options.results.mkdir(parents=True, exist_ok=True)
    record = {"device": device.name, "steps": settings.steps, "preset": settings.preset, "losses": curves}
    write_json(options.results / "precision.json", record)
    plot(curves, settings.steps, options.results / "precision.png")
    rows = [
        [name, f"{tail(curve):.4f}", f"{distance(curve, curves[REFERENCE]):.4f}"]
        for name, curve in curves.items()
    ]
    print(table(["", "loss of the last tenth, nats", f"at most from {REFERENCE}'s curve"], rows))


def loss_curve(model: BertForPreTraining, batches: BatchStream, settings: PretrainSettings) -> list[float]:
    """The mean losses of some 50 stretches of a run with these settings, all equally long."""
    optimiser = AdamW(model, beta2=settings.beta2, weight_decay=settings.weight_decay)
    most = settings.batch_size * settings.instance_settings().most_predictions
    training = TrainingStep(model, optimiser, predictions=most)
    stretch = max(settings.steps // 50, 1)
    means = []
    for step in range(settings.steps // stretch * stretch):
        warmup = round(settings.warmup * settings.steps)
        rate = SCHEDULES[settings.schedule](step, settings.steps, warmup, settings.learning_rate)
        training.take([next(batches)], rate, step)
        if (step + 1) % stretch == 0:
            means.append(training.read()["loss"])
    return means


def tail(curve: list[float]) -> float:
    """The mean of the last tenth."""
    return float(np.mean(curve[-max(len(curve) // 10, 1) :]))


def distance(curve: list[float], other: list[float]) -> float:
    """The largest between the two, wherever it is."""
    return float(np.abs(np.subtract(curve, other)).max())


def plot(curves: dict[str, list[float]], steps: int, path: Path) -> None:
    """The curves, and below them their distances from the reference's."""
    figure, (above, below) = new_axes(8, 6, nrows=2, sharex=True, height_ratios=(2, 1))
    for name, curve in curves.items():
        at = (np.arange(len(curve)) + 0.5) * (steps / len(curve))
        above.plot(at, curve, linewidth=1.4, label=name)
        below.plot(at, np.subtract(curve, curves[REFERENCE]), linewidth=1.4)
    above.set_ylabel("training loss, nats")
    above.legend(frameon=False)
    below.set_ylabel(f"minus {REFERENCE}'s")
    below.set_xlabel("step")
    save_figure(figure, path)


if __name__ == "__main__":
    sys.exit(main())
