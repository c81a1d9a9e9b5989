"""The page of the records: a table of each track, and a picture of all their runs."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps

from benchmarks.parts.common import new_axes, save_figure
from benchmarks.results import paragraph, table
from minibert.files import write_text
from minibert.train.progress import format_seconds

TITLES = {
    "docs": "The documentation that comes with Python",
    "10m": "Ten million words, read at most ten times",
}
COLUMNS = ["record", "loss, nats", "steps", "million tokens", "ms per step", "time", "times faster", "seeds"]


def write_page(
    records: Iterable[tuple[str, Mapping[str, Any]]], results: Mapping[str, Any], folder: Path
) -> None:
    """Write ``speedrun.md`` and ``speedrun.png`` from the records and what their runs reached."""
    measured: dict[str, list[tuple[Mapping[str, Any], Mapping[str, Any]]]] = {}
    for track, group in itertools.groupby(records, key=lambda one: one[0]):
        rows = [(record, _runs(record, results.get(f"{track}/{record['name']}", {}))) for _, record in group]
        if rows[0][1]["runs"]:  # all others are compared with the first
            measured[track] = [
                (record, found) for record, found in rows if found["runs"] or not record.get("tried")
            ]
    parts = [
        "# Records: time to a loss",
        paragraph("""
            Written by `python -m benchmarks.speedrun`. Each record changes one thing about the one before it
            in `records.toml`, and takes about as few steps as bring its loss to that of the first, unless its
            line below says otherwise. (A record with 0 seeds has not been run.) The loss is that of masked
            words on held-out batches, the same for all runs of a track: mean and standard deviation over the
            seeds. In the figure, the dotted line is the loss of the first record. Steps were timed in turn
            in one process, with the library for matrix products that a run would choose; time is that of
            all steps, and of what comes before the first."""),
    ]
    for track, rows in measured.items():
        parts += [f"## {TITLES[track]}", *_section(rows)]
    if measured:
        plot(measured, folder / "speedrun.png")
        parts.insert(2, "![Loss on held-out text against minutes of training](speedrun.png)")
    write_text(folder / "speedrun.md", "\n\n".join(parts) + "\n")


def _runs(record: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
    """What was found of a record, but only the runs with as many steps as it has now."""
    steps = record["settings"]["steps"]
    runs = {seed: run for seed, run in found.get("runs", {}).items() if run["steps"] == steps}
    return {**found, "runs": runs}


def _section(rows: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> list[str]:
    first, target = _seconds(*rows[0]), _mean_loss(rows[0][1])
    cells, machines = [], set()
    records = [(record, found) for record, found in rows if not record.get("tried")]
    for record, found in records:
        seconds = _seconds(record, found)
        times = ["–"] * 3
        if seconds:
            step = f"{found['time']['step_seconds'] * 1e3:.0f}"
            faster = f"{first / seconds:.2f}" if first else "–"
            times = [step, format_seconds(seconds), faster if _mean_loss(found) <= target else "not reached"]
            machine = found["time"]["machine"]
            products = f"products by {found['time']['products']}"
            machines.add(f"{machine['processor']}, {machine['threads']} threads, {products}")
        loss, steps, tokens, seeds = _reached(record, found)
        cells.append([record["name"], loss, steps, tokens, *times, seeds])
    parts = [table(COLUMNS, cells), _whys(records), f"<sub>Timed on: {'; '.join(sorted(machines))}.</sub>"]
    return parts + _tried(rows)


def _tried(rows: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> list[str]:
    """A table for each record beside which something was tried."""
    parts, base = [], rows[0]
    for is_tried, some in itertools.groupby(rows, key=lambda row: bool(row[0].get("tried"))):
        group = list(some)
        if is_tried:
            told = f"Tried beside {base[0]['name']} ({_reached(*base)[0]} nats), with its other settings:"
            cells = [[record["name"], *_reached(record, found)] for record, found in group]
            parts += [told, table([*COLUMNS[:4], COLUMNS[-1]], cells), _whys(group)]
        base = group[-1]
    return parts


def _reached(record: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    """Loss, steps, million tokens and seeds of the runs."""
    runs, steps = list(found["runs"].values()), f"{record['settings']['steps']:,}"
    if not runs:
        return ["–", steps, "–", "0"]
    tokens = f"{np.mean([run['tokens'] for run in runs]) / 1e6:.1f}"
    return [_spread([run["loss"] for run in runs], 3), steps, tokens, str(len(runs))]


def _whys(rows: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> str:
    return "\n".join(f"- **{record['name']}**: {record['why']}" for record, _ in rows)


def _seconds(record: Mapping[str, Any], found: Mapping[str, Any]) -> float | None:
    """How long a run takes on an idle machine, if its steps have been timed and its loss is known."""
    if "time" not in found or not found["runs"]:
        return None
    return found["time"]["start_seconds"] + record["settings"]["steps"] * found["time"]["step_seconds"]


def _mean_loss(found: Mapping[str, Any]) -> float:
    """The mean of all seeds, in nats."""
    return float(np.mean([run["loss"] for run in found["runs"].values()]))


def _spread(values: list[float], digits: int) -> str:
    """Mean ± standard deviation."""
    mean = f"{np.mean(values):.{digits}f}"
    return mean if len(values) == 1 else f"{mean} ± {np.std(values, ddof=1):.{digits}f}"


def curve(found: Mapping[str, Any]) -> tuple[list[float], list[float]]:
    """The minutes until each evaluation of a record that has been timed, and the mean loss of its seeds."""
    before, each = found["time"]["start_seconds"], found["time"]["step_seconds"]
    evaluations = list(zip(*(run["evaluations"] for run in found["runs"].values()), strict=True))
    minutes = [(before + seeds[0]["step"] * each) / 60 for seeds in evaluations]
    return minutes, [float(np.mean([seed["mlm_loss"] for seed in seeds])) for seeds in evaluations]


def plot(measured: Mapping[str, Any], path: Path) -> None:
    """Loss against minutes of training, a line for each record that has been timed: the mean of its seeds."""
    figure, axes = new_axes(5.5 * len(measured), 4, ncols=len(measured), squeeze=False)
    for one, (track, rows) in zip(axes[0], measured.items(), strict=True):
        timed = [(record, found) for record, found in rows if "time" in found and found["runs"]]
        colours = colormaps["viridis_r"](np.linspace(0.1, 1, len(timed)))  # the later a record, the darker
        for (record, found), colour in zip(timed, colours, strict=True):
            one.plot(*curve(found), linewidth=1.4, label=record["name"], color=colour)
        if timed:
            one.legend(frameon=False)
        one.axhline(_mean_loss(rows[0][1]), color="#888888", linestyle=":", linewidth=1)
        one.set_title(TITLES[track], fontsize=10)
        one.set_xlabel("minutes of training")
    axes[0][0].set_ylabel("masked-LM loss on held-out text, nats")
    save_figure(figure, path)
