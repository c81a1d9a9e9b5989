"""The pictures."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from minibert.files import atomic_file

BATCH, TRAINING, HELD_OUT, PLATEAU = "#b9cbdb", "#2c5d8a", "#c0392b", "#4d4d4d"


def plot_loss(metrics: Sequence[Mapping[str, Any]], plateau: float, path: str | Path) -> None:
    """Draw the masked-LM loss of a run against its steps, and write it to ``path`` as PNG.

    ``metrics`` are the lines of ``metrics.jsonl``. Shown are the loss of each training batch, the same
    averaged over neighbouring steps, the loss on held-out text, and ``plateau``, the loss in nats of
    guessing by frequency.
    """
    training = np.array([(r["step"], r["mlm_loss"]) for r in metrics if "mlm_loss" in r]).reshape(-1, 2)
    held_out = np.array([(r["step"], r["held_out_mlm_loss"]) for r in metrics if "held_out_mlm_loss" in r])
    figure = Figure(figsize=(8, 4.8), layout="constrained")
    axes = figure.add_subplot()
    axes.plot(*training.T, color=BATCH, linewidth=0.7, label="training, each report")
    axes.plot(*_smooth(training).T, color=TRAINING, linewidth=1.6, label="training, averaged")
    axes.plot(*held_out.T, color=HELD_OUT, marker="o", markersize=4, linewidth=1.6, label="held-out text")
    axes.axhline(
        plateau, color=PLATEAU, linestyle="--", linewidth=1.2, label=f"guessing by frequency: {plateau:.2f}"
    )
    axes.set_title("Masked-word prediction")
    axes.set_xlabel("step")
    axes.set_ylabel("masked-LM loss (nats per predicted token)")
    axes.set_xlim(left=0)
    axes.grid(color="#e6e6e6", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    legend = axes.legend(
        loc="upper right", frameon=False
    )  # losses fall from left to right: that corner is free
    for line in legend.get_lines():
        line.set_linewidth(1.6)
    with atomic_file(path) as file:
        figure.savefig(file, format="png", dpi=150)


def _smooth(points: np.ndarray) -> np.ndarray:
    """(N, 2) points → the means of runs of them, some 60 runs in all."""
    run = max(1, len(points) // 60)
    whole = len(points) // run * run
    return points[:whole].reshape(-1, run, 2).mean(axis=1)
