"""Our training step's time against batch, layers, hidden size and sequence length, with theory's curve."""

import argparse
import dataclasses
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import nnls

from benchmarks.measure import Race, spread, take_turns
from benchmarks.parts.common import BLUE, RED, new_axes, pretrained_folder, save_figure
from benchmarks.results import paragraph, table
from minibert import BertConfig


@dataclass(frozen=True)
class Setting:
    """What a step's time depends on."""

    batch_size: int = 16
    layers: int = 4
    hidden: int = 256
    length: int = 128

    def config(self) -> BertConfig:
        """The model."""
        return BertConfig.preset(
            "mini",
            vocab_size=8192,
            num_hidden_layers=self.layers,
            hidden_size=self.hidden,
            num_attention_heads=self.hidden // 64,
            intermediate_size=4 * self.hidden,
            max_position_embeddings=512,
        )


@dataclass(frozen=True)
class Sweep:
    """One thing varied around the base. The time is a sum of its powers up to ``degree``, none negative."""

    field: str
    values: tuple[int, ...]
    degree: int
    letter: str
    theory: str
    because: str


SWEEPS = {
    "batch": Sweep(
        "batch_size", (2, 4, 8, 16, 24, 32, 48), 1, "B", "linear", "every sequence costs the same"
    ),
    "layers": Sweep("layers", (1, 2, 3, 4, 6, 8, 12), 1, "L", "linear", "every layer costs the same"),
    "hidden size": Sweep(
        "hidden", (64, 128, 192, 256, 384, 512, 640), 2, "H", "quadratic", "matrices of H × H and H × 4H"
    ),
    "sequence length": Sweep(
        "length",
        (32, 64, 96, 128, 192, 256, 384, 512),
        2,
        "S",
        "linear + quadratic",
        "every token, and every pair of tokens in the attention",
    ),
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """None of its own."""


def measure(options: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    """A case for each sweep; its points take turns."""
    base = Setting(batch_size=2, layers=1, hidden=64, length=32) if options.quick else Setting()
    for name, sweep in SWEEPS.items():
        values = sweep.values[:4] if options.quick else sweep.values
        with ExitStack() as folders, Race(options.threads) as race:
            for value in values:
                setting = dataclasses.replace(base, **{sweep.field: value})
                race.enter(
                    str(value),
                    "ours:training_step",
                    folder=folders.enter_context(pretrained_folder(setting.config())),
                    batch_size=setting.batch_size,
                    length=setting.length,
                )
            race.warm_up("step")
            seconds = take_turns(race.turns("step"), rounds=options.rounds, seconds=options.seconds / 2)
        yield name, {"base": dataclasses.asdict(base), "seconds": seconds}


# -- The curve --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fit:
    """seconds = Σ coefficients[i] · xⁱ, and the share of the variance that it explains."""

    coefficients: tuple[float, ...]
    r_squared: float

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """The seconds at x."""
        return np.polynomial.Polynomial(self.coefficients)(x)


def fit(x: Sequence[float], seconds: Sequence[float], degree: int) -> Fit:
    """Least squares with coefficients ≥ 0, as costs are; of the relative errors, so that all points count."""
    x, seconds = np.asarray(x, float), np.asarray(seconds, float)
    scale = x.max()  # powers of x / max(x) are of one size
    powers = (x[:, None] / scale) ** np.arange(degree + 1)
    scaled, _ = nnls(powers / seconds[:, None], np.ones_like(seconds))
    residual = seconds - powers @ scaled
    r_squared = 1.0 - np.sum(residual**2) / np.sum((seconds - seconds.mean()) ** 2)
    return Fit(tuple((scaled / scale ** np.arange(degree + 1)).tolist()), float(r_squared))


def _points(record: Mapping[str, Any]) -> tuple[list[int], list[float]]:
    """What was varied, and the median seconds."""
    return [int(value) for value in record["seconds"]], [
        statistics.median(t) for t in record["seconds"].values()
    ]


def _fits(cases: Mapping[str, Mapping[str, Any]]) -> dict[str, Fit]:
    return {name: fit(*_points(record), SWEEPS[name].degree) for name, record in cases.items()}


# -- Report -----------------------------------------------------------------------------------------


def section(cases: Mapping[str, Mapping[str, Any]], folder: Path) -> str:
    """A picture, and a table of the fits."""
    fits = _fits(cases)
    _plot(cases, fits, folder / "scaling.png")
    base = next(iter(cases.values()))["base"]
    rows = [
        [
            name,
            f"{SWEEPS[name].theory}: {SWEEPS[name].because}",
            _formula(found, SWEEPS[name].letter),
            f"{found.r_squared:.4f}",
        ]
        for name, found in fits.items()
    ]
    return "\n\n".join(
        [
            paragraph(f"""
                One at a time around batch {base["batch_size"]}, layers {base["layers"]}, H
                {base["hidden"]}, S {base["length"]}, with F = 4H, heads of 64, V 8,192. Least squares
                of the relative errors with coefficients ≥ 0; R² is of the milliseconds."""),
            "![A step's time against what it depends on](scaling.png)",
            table(["", "theory", "fit, ms", "R²"], rows),
        ]
    )


def _formula(found: Fit, letter: str) -> str:
    """Milliseconds as a polynomial in the letter."""
    names = ["", f" {letter}", f" {letter}²"]
    terms = zip(found.coefficients, names, strict=False)
    return " + ".join(f"{1e3 * coefficient:.3g}{name}" for coefficient, name in terms)


def aims(cases: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str, str]]:
    """How well theory's curve fits."""
    return [
        (f"cost against {name}", SWEEPS[name].theory, f"R² {found.r_squared:.4f}")
        for name, found in _fits(cases).items()
    ]


def _plot(cases: Mapping[str, Mapping[str, Any]], fits: Mapping[str, Fit], path: Path) -> None:
    """A picture for each sweep: the measured points with their quartiles, and the curve."""
    figure, _ = new_axes(9, 6.6, nrows=2, ncols=2, squeeze=False)
    for axes, (name, record) in zip(figure.axes, cases.items(), strict=False):
        spreads = [spread([1e3 * t for t in times]) for times in record["seconds"].values()]
        x, _ = _points(record)
        middle = np.array([s.median for s in spreads])
        errors = [middle - [s.low for s in spreads], np.array([s.high for s in spreads]) - middle]
        curve = np.linspace(0, max(x), 200)
        axes.plot(
            curve,
            1e3 * fits[name](curve),
            color=RED,
            linewidth=1.2,
            label=_formula(fits[name], SWEEPS[name].letter),
        )
        axes.errorbar(x, middle, errors, fmt="o", markersize=4, color=BLUE, label="measured")
        axes.set_title(f"{name}: {SWEEPS[name].theory}", fontsize=10)
        axes.set_xlabel(f"{name} {SWEEPS[name].letter}")
        axes.set_ylabel("ms per step")
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        axes.legend(
            loc="upper left",
            frameon=False,
            fontsize=8,
            title=f"R² {fits[name].r_squared:.4f}",
            title_fontsize=8,
        )
    save_figure(figure, path)
