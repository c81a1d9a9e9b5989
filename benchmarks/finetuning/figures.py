"""What a fine-tuning run has left in its folder, and how its figures are told."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.results import table
from minibert.files import read_json

MEASURED = "measured.json"  # of a run that has ended: its commands, their seconds, the machine
THEIRS = "transformers"  # what in_transformers.py leaves in the folder of a run

# Of the files of a run; the others tell of folders on the machine.
KEPT = (
    "metric examples runs best mean deviation scores details queries passages database brute_force agreement "
    "reranked seconds versions speeds sentences guesses"
).split()

Record = Mapping[str, Any]  # of a run: MEASURED, and under "figures" its other files by their names
NAMES = {"f1": "F1", "matthews": "Matthews", "spearman": "Spearman", "exact_match": "exact match"}


@dataclass(frozen=True)
class Aim:
    """What a score is to reach, in points."""

    least: float
    on: str = "test"


OF_OUR_OWN = {  # from each model that we pre-trained on ten million words or more
    ("mrpc", "f1"): Aim(82, on="dev"),
    ("stsb", "spearman"): Aim(75, on="dev"),
    ("stsb-cosine", "spearman"): Aim(75, on="dev"),
    ("blimp", "accuracy"): Aim(65),
}
AIMS = {
    (f"{recipe}-{start}", metric): aim
    for (recipe, metric), aim in OF_OUR_OWN.items()
    for start in ("second", "ten", "pretrained")
} | {
    ("sst2", "accuracy"): Aim(90, on="dev"),
    ("mrpc", "f1"): Aim(86),
    ("stsb-untouched", "spearman"): Aim(82.0),
    ("stsb-cosine", "spearman"): Aim(86),
    ("stsb-regression", "spearman"): Aim(86),
    ("wnut17", "f1"): Aim(38),
    ("wnut17-crf", "f1"): Aim(38),
    ("squad", "f1"): Aim(65),
    ("sst2-second-mini", "accuracy"): Aim(85, on="dev"),
    ("sst2-ten-mini", "accuracy"): Aim(85, on="dev"),
    ("sst2-mini", "accuracy"): Aim(85, on="dev"),
}


def read_run(folder: Path) -> Record:
    """What a run has left."""
    files = {path.stem: read_json(path) for path in sorted(folder.glob("*.json"))}
    record = files.pop(Path(MEASURED).stem)
    files.pop("config", None)
    figures = {
        name: {key: value for key, value in file.items() if key in KEPT} for name, file in files.items()
    }
    return {**record, "figures": figures}


def dev_scores(learned: Record, metric: str) -> list[float]:
    """The score on the dev data of each seed, at its best checkpoint."""
    return [score(run, metric) for run in learned["runs"]]


def score(measured: Record, metric: str) -> float:
    """One of the ``scores``; files have None for what is not a number, such as some correlations."""
    found = measured["scores"][metric]
    return math.nan if found is None else found


def spread(values: Sequence[float]) -> str:
    """The mean and, of several, the standard deviation of a sample and how many there are."""
    if len(values) == 1:
        return points(values[0])
    return f"{points(np.mean(values))} ± {points(np.std(values, ddof=1))} ({len(values)} seeds)"


def points(value: float) -> str:
    """A score in points: 100 times the fraction or correlation."""
    return f"{100 * value:.1f}"


def minutes(record: Record) -> str:
    """How long all commands of a run took, by the clock and of processor."""
    return " / ".join(f"{sum(record[kind]) / 60:.1f}" for kind in ("seconds", "processor_seconds"))


def describe_aim(name: str, metric: str, figures: Record) -> str:
    """What was aimed at, and whether it was reached."""
    aim = AIMS.get((name, metric))
    if aim is None:
        return "–"
    if aim.on == "test":
        value = score(figures["test"], metric)
    else:
        value = np.mean(dev_scores(figures["results"], metric))
    return f"{aim.least:g} on {aim.on}: {'reached' if round(100 * value, 1) >= aim.least else 'missed'}"


def filled(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table, or nothing if there are no rows."""
    return table(header, rows) if rows else ""


def by_phenomenon(details: Mapping[str, Mapping[str, float]]) -> dict[str, tuple[float, int]]:
    """Of each phenomenon of BLiMP the share of pairs judged correctly, and how many pairs there are.

    Selection of arguments belongs to argument structure, as in the paper.
    """
    groups: dict[str, list[Mapping[str, float]]] = {}
    for name, share in details.items():
        groups.setdefault("argument_structure" if name == "s-selection" else name, []).append(share)
    counts = {name: int(sum(share["pairs"] for share in group)) for name, group in groups.items()}
    return {
        name: (sum(share["accuracy"] * share["pairs"] for share in group) / counts[name], counts[name])
        for name, group in groups.items()
    }
