"""``python -m benchmarks.expected``: the losses that a run should have, from the runs in ``results``.

Writes ``minibert/assets/expected_losses.json``, which ``minibert pretrain --expect`` draws, and the figure of
``docs/expected.md``. Seeds of one run are averaged. Nothing is measured here.
"""

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import ROOT
from benchmarks.parts.common import new_axes, save_figure
from minibert.bert import PRESETS
from minibert.files import read_json, write_json
from minibert.tasks.expectation import CURVES

RESULTS = ROOT / "benchmarks" / "results"
FIGURE = ROOT / "docs" / "images" / "expected.png"
DOCS, BOOKS = "docs", "ten million words"
TINY = PRESETS["tiny"]
WHOLE_RUNS = (  # of pretraining.json: the text, the recipe, and whether it learns from pairs (NSP)
    ("tiny", DOCS, "fast", False),
    ("tiny-1", DOCS, "fast", False),
    ("tiny-2", DOCS, "fast", False),
    ("first-mini-begun", BOOKS, "original", True),
    ("second-mini-begun", BOOKS, "fast", True),
)


def main() -> int:
    """Write both files."""
    argparse.ArgumentParser(prog="python -m benchmarks.expected", description=__doc__).parse_args()
    curves = sorted(
        averaged(RESULTS), key=lambda c: (c["text"], c["recipe"], c["nsp"], c["hidden_size"], c["layers"])
    )
    write_json(CURVES, curves)
    plot(curves, FIGURE)
    print(f"{len(curves)} curves written to {CURVES.name}")
    return 0


def averaged(folder: Path) -> Iterator[dict[str, Any]]:
    """One curve for each kind of run: points of (tokens, loss), each the mean over seeds."""
    groups = defaultdict(list)
    for key, evaluations in all_runs(folder):
        groups[key].append([(point["tokens"], point["mlm_loss"]) for point in evaluations])
    for (text, recipe, nsp, layers, hidden, plateau, source), runs in groups.items():
        yield {
            "text": text,
            "recipe": recipe,
            "nsp": nsp,
            "layers": layers,
            "hidden_size": hidden,
            "plateau_loss": round(plateau, 4),
            "seeds": len(runs),
            "source": source,
            "points": [[round(tokens), round(loss, 4)] for tokens, loss in np.mean(runs, axis=0).tolist()],
        }


def all_runs(folder: Path) -> Iterator[tuple[tuple, list[Mapping[str, float]]]]:
    """What makes each run what it is, and its evaluations on held-out text."""
    for run in read_json(folder / "speedrun.json")["docs/start"]["runs"].values():
        yield (DOCS, "original", True, *TINY, run["plateau_loss"], "speedrun"), run["evaluations"]
    long = read_json(folder / "pretraining.json")
    for name, text, recipe, nsp in WHOLE_RUNS:
        run, shape = long[name], PRESETS[long[name]["settings"]["preset"]]
        key = (text, recipe, nsp, *shape, run["results"]["plateau_loss"], "pretraining")
        yield key, run["evaluations"]
    # This group has the same text, but has not recorded its plateau: that of frequencies hardly depends on
    # which held-out sentences are taken (6.957 to 6.981 in the runs on this text).
    plateau = long["second-mini-begun"]["results"]["plateau_loss"]
    for run in read_json(folder / "ablations.json")["size"].values():
        flags = run["settings"]
        shape = (int(flags[flags.index(flag) + 1]) for flag in ("--layers", "--hidden"))
        yield (BOOKS, "fast", False, *shape, plateau, "ablations"), run["evaluations"]


def plot(curves: list[dict[str, Any]], path: Path) -> None:
    """Loss against tokens, a line for each curve."""
    figure, axes = new_axes(8.5, 5.2)
    colours = {64: "#56b4e9", 128: "#0072b2", 256: "#d55e00"}
    dashes = {1: ":", 2: "-", 4: "--", 6: "-."}
    for curve in sorted(curves, key=lambda c: (c["source"] == "ablations", c["layers"], c["hidden_size"])):
        points = np.array([point for point in curve["points"] if point[0]])
        own = curve["source"] != "ablations"
        told = f", {curve['recipe']}{' with NSP' if curve['nsp'] else ''}, {curve['text']}" if own else ""
        axes.plot(
            points[:, 0] / 1e6,
            points[:, 1],
            color={DOCS: "#009e73"}.get(curve["text"], colours[curve["hidden_size"]]),
            linestyle=dashes[curve["layers"]] if not own or curve["recipe"] == "fast" else (0, (1, 1)),
            linewidth=1.1 if own else 1.8,
            label=f"L{curve['layers']} H{curve['hidden_size']}{told}",
        )
    for text in (DOCS, BOOKS):
        plateau = next(c["plateau_loss"] for c in curves if c["text"] == text)
        axes.axhline(plateau, color="#4d4d4d", linewidth=0.9, linestyle=(0, (6, 3)))
        axes.text(44, plateau + 0.03, f"guessing by frequency, {text}", fontsize=8.5, ha="right")
    axes.set_xscale("log")
    axes.set_xticks([0.2, 0.5, 1, 2, 5, 10, 20, 40], ["0.2", "0.5", "1", "2", "5", "10", "20", "40"])
    axes.minorticks_off()
    axes.set_xlim(0.18, 45)
    axes.set_xlabel("million tokens read")
    axes.set_ylabel("held-out masked-LM loss (nats per token)")
    title = "thick: fast recipe, ten million words"
    place = {"loc": "center left", "bbox_to_anchor": (1.0, 0.5)}
    axes.legend(frameon=False, fontsize=8, title=title, title_fontsize=8, alignment="left", **place)
    save_figure(figure, path)


if __name__ == "__main__":
    sys.exit(main())
