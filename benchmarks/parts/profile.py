"""Where the time of a training step goes, with the reference operations and with the kernels."""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.measure import Race
from benchmarks.operations import REST
from benchmarks.parts.common import OURS, add_presets, batch_shape, new_axes, pretrained_folder, save_figure
from benchmarks.results import table
from minibert import BertConfig

MODES = {"reference": False, "kernels": True}
STEPS = 3  # a turn


def add_options(parser: argparse.ArgumentParser) -> None:
    """The sizes."""
    add_presets(parser)


def measure(options: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    """A case for each size, V 8,192: operation → seconds in every round, of both modes in turn."""
    for preset in options.presets or ["tiny"]:
        config = BertConfig.preset(preset, vocab_size=8192)
        with pretrained_folder(config) as folder, Race(options.threads) as race:
            race.enter(OURS, "ours:profile", folder=folder, **batch_shape(options))
            rounds: dict[str, list[dict[str, float]]] = {mode: [] for mode in MODES}
            for _ in range(options.rounds):
                for mode, kernels in MODES.items():
                    rounds[mode].append(race.workers[OURS].call("profile", kernels=kernels, steps=STEPS))
        yield preset, {"batch": batch_shape(options), "rounds": rounds}


def _medians(rounds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Operation → milliseconds a step; the longest first, the rest last."""
    names = {name for each in rounds for name in each}
    seconds = {name: median(each.get(name, 0.0) for each in rounds) for name in names}
    return {name: 1e3 * seconds[name] for name in sorted(names, key=lambda n: (n == REST, -seconds[n]))}


def section(cases: Mapping[str, Mapping[str, Any]], folder: Path) -> str:
    """For each size a table and a picture."""
    parts = [
        "Milliseconds per step of every operation of `ops`, forward and backward together (medians over the "
        "rounds); the rest is what lies between them."
    ]
    for preset, record in cases.items():
        modes = {mode: _medians(rounds) for mode, rounds in record["rounds"].items()}
        path = folder / f"profile_{preset}.png"
        _plot(preset, modes, path)
        reference, kernels = (modes[mode] for mode in MODES)
        rows = [
            [
                name,
                f"{reference[name]:.2f}",
                f"{kernels.get(name, 0.0):.2f}",
                _times(reference[name], kernels.get(name)),
            ]
            for name in reference
        ]
        before, after = sum(reference.values()), sum(kernels.values())
        rows.append(["**all**", f"{before:.2f}", f"{after:.2f}", _times(before, after)])
        parts += [
            f"### {preset}, batch {record['batch']['batch_size']} × {record['batch']['length']}, V 8,192",
            f"![Where the time of a step goes]({path.name})",
            table(["operation", "reference, ms", "kernels, ms", "times faster"], rows),
        ]
    return "\n\n".join(parts)


def _times(before: float, after: float | None) -> str:
    return f"{before / after:.1f}" if after else ""


def aims(cases: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str, str]]:
    """None: the profile explains the others."""
    return []


def _plot(preset: str, modes: Mapping[str, Mapping[str, float]], path: Path) -> None:
    """Two stacked bars, reference above kernels, with the names of what takes long."""
    import matplotlib

    figure, axes = new_axes(10, 3.6)
    order = list(modes["reference"])
    colors = dict(zip(order, matplotlib.color_sequences["tab20"], strict=False))
    whole = max(sum(milliseconds.values()) for milliseconds in modes.values())
    digits = 0 if whole >= 100 else 1
    for row, milliseconds in enumerate(modes.values()):
        left = 0.0
        for name in order:
            width = milliseconds.get(name, 0.0)
            label = name if row == 0 else None
            axes.barh(row, width, left=left, height=0.6, color=colors.get(name, "#999999"), label=label)
            if width > 0.03 * whole:
                axes.text(left + width / 2, row, f"{width:.{digits}f}", ha="center", va="center", fontsize=8)
            left += width
        axes.text(left, row, f" {left:.{digits}f} ms", va="center", fontsize=9, fontweight="bold")
    axes.set_yticks(range(len(modes)), list(modes))
    axes.grid(visible=False, axis="y")
    axes.invert_yaxis()
    axes.margins(x=0.1)
    axes.set_xlabel(f"milliseconds of a training step ({preset}), by operation")
    figure.legend(loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    save_figure(figure, path)
