"""Plots: the curves of training runs, and figures for the notebooks."""

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.rcsetup import cycler

from minibert.files import atomic_file

BATCH, TRAINING, HELD_OUT, PLATEAU = "#b9cbdb", "#2c5d8a", "#c0392b", "#4d4d4d"
EXPECTED = "#009e73"


def plot_loss(
    metrics: Sequence[Mapping[str, Any]],
    plateau: float,
    path: str | Path,
    expected: np.ndarray | None = None,
) -> None:
    """Plot the masked-LM loss of a run against its steps, and write it to ``path`` as PNG.

    ``metrics`` are the lines of ``metrics.jsonl``. Shown are the loss of each training batch, the same
    averaged over neighbouring steps, the loss on held-out text, and ``plateau``, the loss in nats of
    guessing by frequency. ``expected`` (N, 2) are points of tokens read and the held-out loss that a run
    should have after them.
    """
    training = np.array([(r["step"], r["mlm_loss"]) for r in metrics if "mlm_loss" in r]).reshape(-1, 2)
    held_out = np.array([(r["step"], r["held_out_mlm_loss"]) for r in metrics if "held_out_mlm_loss" in r])
    figure = Figure(figsize=(8, 4.8), layout="constrained")
    axes = figure.add_subplot()
    axes.plot(*training.T, color=BATCH, linewidth=0.7, label="training, each report")
    axes.plot(*_smooth(training).T, color=TRAINING, linewidth=1.6, label="training, averaged")
    axes.plot(*held_out.T, color=HELD_OUT, marker="o", markersize=4, linewidth=1.6, label="held-out text")
    if expected is not None:
        axes.plot(*_by_steps(expected, metrics).T, color=EXPECTED, linewidth=4, alpha=0.45, label="expected")
    axes.axhline(
        plateau, color=PLATEAU, linestyle="--", linewidth=1.2, label=f"guessing by frequency: {plateau:.2f}"
    )
    axes.set_title("Masked-word prediction")
    _against_steps(axes, "masked-LM loss (nats per predicted token)")
    # Losses fall from left to right: that corner is free of all but the line of frequencies.
    legend = axes.legend(loc="upper right", frameon=True, framealpha=1, edgecolor="none")
    for line in legend.get_lines():
        line.set_linewidth(1.6)
    _save(figure, path)


def plot_finetuning(curves: Mapping[int, Sequence[Mapping[str, Any]]], metric: str, path: str | Path) -> None:
    """Plot each restart's loss, and its score on the dev data, against its steps; write a PNG to ``path``.

    ``curves`` are the lines of each restart's ``metrics.jsonl``, by its seed. An evaluation whose score is
    not a number leaves a gap.
    """
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    losses, scores = figure.subplots(1, 2)
    for seed, metrics in curves.items():
        training = np.array([(r["step"], r["loss"]) for r in metrics if "loss" in r]).reshape(-1, 2)
        dev = np.array(
            [(r["step"], r[f"held_out_{metric}"]) for r in metrics if f"held_out_{metric}" in r], float
        )
        losses.plot(*_smooth(training).T, linewidth=1.6)
        scores.plot(*dev.T, marker="o", markersize=4, linewidth=1.6, label=f"seed {seed}")
    _against_steps(losses, "loss in training, averaged")
    _against_steps(scores, f"{metric} on the dev data")
    if len(curves) > 1:
        scores.legend(frameon=False)
    _save(figure, path)


def _by_steps(points: np.ndarray, metrics: Sequence[Mapping[str, Any]]) -> np.ndarray:
    """Points (tokens, loss) as (step, loss), up to the last step of the run."""
    steps, tokens = np.array([(0, 0), *((r["step"], r["tokens"]) for r in metrics if "tokens" in r)]).T
    inside = np.unique([*points[points[:, 0] < tokens[-1], 0], min(tokens[-1], points[-1, 0])])
    return np.stack([np.interp(inside, tokens, steps), np.interp(inside, *points.T)], axis=1)


def _against_steps(axes: Axes, what: str) -> None:
    axes.set_xlabel("step")
    axes.set_ylabel(what)
    axes.set_xlim(left=0)
    axes.grid(color="#e6e6e6", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def _save(figure: Figure, path: str | Path) -> None:
    with atomic_file(path) as file:
        figure.savefig(file, format="png", dpi=150)


def _smooth(points: np.ndarray) -> np.ndarray:
    """(N, 2) points → the means of about 60 runs of consecutive points."""
    run = max(1, len(points) // 60)
    whole = len(points) // run * run
    return points[:whole].reshape(-1, run, 2).mean(axis=1)


# -- For the notebooks --------------------------------------------------------------------------------

# Eight colours that people with any colour vision can tell apart (Okabe and Ito, 2008).
BLUE, ORANGE, GREEN, VERMILION = "#0072b2", "#e69f00", "#009e73", "#d55e00"
PURPLE, SKY, YELLOW, GREY = "#cc79a7", "#56b4e9", "#f0e442", "#5f5f5f"


def notebook_style() -> None:
    """Make pyplot draw for a notebook's page: its width, legible letters, and these colours.

    In a notebook, pictures are also sharp on a high-density screen and have a description for those who
    cannot see them (``notebook_picture``).
    """
    matplotlib.rcParams.update(
        {
            "figure.figsize": (7.5, 3.2),
            "figure.dpi": 110,
            "figure.constrained_layout.use": True,
            "font.size": 10.5,
            "axes.titlesize": 11.5,
            "axes.titlelocation": "left",
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "axes.axisbelow": True,
            "grid.color": "#e6e6e6",
            "grid.linewidth": 0.6,
            "axes.prop_cycle": cycler(color=[BLUE, VERMILION, GREEN, ORANGE, PURPLE, SKY, GREY]),
            "lines.linewidth": 1.8,
            "legend.frameon": False,
            "image.cmap": "cividis",
        }
    )
    if "IPython" in sys.modules and (shell := sys.modules["IPython"].get_ipython()):
        import matplotlib_inline.backend_inline  # noqa: F401  (it sets a format of its own when it is imported)

        shell.display_formatter.formatters["image/png"].for_type(Figure, notebook_picture)


def notebook_picture(figure: Figure) -> tuple[bytes, dict[str, Any]] | None:
    """A figure as a PNG of twice the density, and its size on the page (pixels) and description, ``alt``.

    At most 256 colours are kept. So the picture takes less room than one of half the density in all colours.
    None for a figure with nothing in it.
    """
    from PIL import Image

    if not figure.axes and not figure.texts:
        return None
    drawn, packed = BytesIO(), BytesIO()
    figure.savefig(drawn, format="png", dpi=2 * figure.dpi, bbox_inches="tight")
    picture = Image.open(drawn).convert("RGB")
    picture.quantize(256).save(packed, "png", optimize=True)
    width, height = (size // 2 for size in picture.size)
    return packed.getvalue(), {"width": width, "height": height, "alt": description(figure)}


def description(figure: Figure) -> str:
    """What a figure shows, in words: its label if it has one; else its panels' titles, axes and legends.

    >>> figure.set_label("A line that falls")   # to say it better than that
    """
    if figure.get_label():
        return str(figure.get_label())
    panels = [words for axes in figure.axes if (words := _panel(axes))]
    above = [figure.get_suptitle()] if figure.get_suptitle() else []
    return ". ".join([*above, *panels]) or "A picture without words"


def _panel(axes: Axes) -> str:
    """A panel in words: title, axes, legend; without the last two, what is written at its ticks or in it."""
    title = next((title for where in ("left", "center", "right") if (title := axes.get_title(where))), "")
    x, y = axes.get_xlabel(), axes.get_ylabel()
    between = f"{y} against {x}" if x and y else x or y
    _, names = axes.get_legend_handles_labels()
    written = [text.get_text() for text in axes.texts if text.get_text().strip()]
    parts = [title, between, ", ".join(names)]
    if not any(parts[1:]):
        ticks = [*axes.get_yticklabels(), *axes.get_xticklabels()] if axes.axison else []
        named = [name for tick in ticks if re.search(r"[^\W\d_]", name := tick.get_text())]
        parts.append(", ".join(dict.fromkeys(named or written)))
    return "; ".join(" ".join(part.split()) for part in parts if part)


def heatmap(axes: Axes, values: np.ndarray, digits: int | None = None, limit: float | None = None) -> Any:
    """Draw a matrix, row 0 on top; return the image, for a colour bar.

    With ``digits`` the numbers are written into it. Values of either sign take colours from -limit (violet)
    through 0 (white) to limit (orange), others from dark to bright between their extremes.
    """
    values = np.asarray(values)
    if (values < 0).any() or limit is not None:
        limit = limit or float(np.abs(values).max())
        image = axes.imshow(values, cmap="PuOr_r", vmin=-limit, vmax=limit)
    else:
        image = axes.imshow(values)
    axes.grid(False)
    axes.set(xticks=range(values.shape[1]), yticks=range(values.shape[0]))
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    if digits is not None:
        for (row, column), value in np.ndenumerate(values):
            red, green, blue, _ = image.cmap(image.norm(value))
            dark = 0.299 * red + 0.587 * green + 0.114 * blue < 0.5
            colour = "white" if dark else "black"
            text = f"{value:z.{digits}f}".replace("-", "−")
            axes.text(column, row, text, ha="center", va="center", color=colour)
    return image


def graph(
    axes: Axes,
    nodes: Mapping[str, tuple[float, float]],
    arrows: Iterable[tuple[str, str, str]],
    colour: str = BLUE,
) -> None:
    """Draw a computation graph: ``nodes`` are their places by their text, ``arrows`` are (from, to, text)."""
    for start, end, text in arrows:
        arrow = {"arrowstyle": "-|>", "color": colour, "shrinkA": 20, "shrinkB": 20, "linewidth": 1.4}
        axes.annotate("", xy=nodes[end], xytext=nodes[start], arrowprops=arrow)
        (x0, y0), (x1, y1) = nodes[start], nodes[end]
        background = {"boxstyle": "round,pad=0.1", "facecolor": "white", "edgecolor": "none"}
        axes.text((x0 + x1) / 2, (y0 + y1) / 2, text, color=colour, ha="center", va="center", bbox=background)
    for text, (x, y) in nodes.items():
        axes.text(
            x, y, text, ha="center", va="center", bbox={"boxstyle": "round,pad=0.45", "facecolor": "white"}
        )
    xs, ys = zip(*nodes.values(), strict=True)
    axes.set(xlim=(min(xs) - 0.4, max(xs) + 0.4), ylim=(min(ys) - 0.4, max(ys) + 0.4))
    axes.axis("off")
