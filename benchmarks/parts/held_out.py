"""How far below the frequency plateau a run of `minibert pretrain` came, from its own files."""

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.results import table
from minibert.data import unigram_plateau
from minibert.errors import UserError
from minibert.files import read_json
from minibert.tasks.pretraining import evaluation_batches, prepare
from minibert.tasks.pretraining_settings import PretrainSettings
from minibert.train.metrics import read_metrics

RUN = Path("runs/tiny")


def add_options(parser: argparse.ArgumentParser) -> None:
    """The run."""
    parser.add_argument(
        "--run", type=Path, metavar="FOLDER", help=f"a finished run (default: {RUN}, if it is there)"
    )


def measure(options: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    """One case, nothing of it timed here."""
    run = options.run or RUN
    metrics = read_metrics(run / "metrics.jsonl")
    if not metrics and options.run is None:
        print(
            f"skipped: {RUN} is not there; run make train first, or give a run with --run FOLDER", flush=True
        )
        return
    evaluations = [record for record in metrics if "held_out_mlm_loss" in record]
    if not (run / "final").is_dir() or not evaluations:
        raise UserError(f"{run}: not a finished run of minibert pretrain; give the folder of one")
    values = read_json(run / "config.json", "settings of the run")
    settings = PretrainSettings.from_dict(values, str(run / "config.json"))
    training = [record for record in metrics if "seconds" in record][-1]
    plateau, accuracy = _plateau(settings)
    yield (
        run.name,
        {
            "plateau": {"loss": plateau, "accuracy": accuracy},
            "held_out": evaluations[-1],
            **{name: training[name] for name in ("step", "tokens", "seconds")},
        },
    )


def _plateau(settings: PretrainSettings) -> tuple[float, float]:
    """What guessing by frequency reaches on the run's held-out batches, as the run itself has printed."""
    tokenizer, prepared = prepare(settings)
    batches = evaluation_batches(settings, tokenizer, prepared)
    labels = np.concatenate([batch["labels"] for batch in batches])
    return unigram_plateau(prepared.train.token_counts(len(tokenizer)), labels)


def section(cases: Mapping[str, Mapping[str, Any]], folder: Path) -> str:
    """A table."""
    rows = []
    for run, record in cases.items():
        plateau, held_out = record["plateau"], record["held_out"]
        rows.append(
            [
                f"`{run}`",
                f"{record['step']:,}",
                f"{record['seconds']:.0f}",
                f"{record['tokens'] / record['seconds']:,.0f}",
                f"{plateau['loss']:.3f}",
                f"{held_out['held_out_mlm_loss']:.3f}",
                f"{held_out['held_out_mlm_accuracy']:.2%}",
            ]
        )
    header = ["run", "steps", "s of training", "tokens/s", "plateau, nats", "held out, nats", "accuracy"]
    return table(header, rows)


def aims(cases: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str, str]]:
    """Nats below the plateau."""
    return [
        (
            f"held-out words, run {run}, {record['seconds']:.0f} s of training: nats below the plateau",
            "1.0",
            f"{record['plateau']['loss'] - record['held_out']['held_out_mlm_loss']:.3f}",
        )
        for run, record in cases.items()
    ]
