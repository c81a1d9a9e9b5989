"""Fine-tuned, or a head on fixed features: which layers it should read."""

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.ablations.fine_tuned import make_once
from benchmarks.finetuning.__main__ import find_encoder
from benchmarks.finetuning.figures import dev_scores, read_run, spread
from benchmarks.finetuning.runs import finetune
from benchmarks.parts.common import BLUE, GREY, RED, named, new_axes, save_figure
from benchmarks.results import paragraph, table
from benchmarks.speedrun.tracks import SHARED
from minibert.variants import open_config

REAL = "all-MiniLM-L6-v2"
LEARNED = "--epochs 5 --dropout 0.1 --learning-rate"
FIXED = "--epochs 10 --learning-rate 1e-3 --features"
CONCATENATED = {"the last two": (-2, -1), "the last four": (-4, -3, -2, -1)}
LINES = ("-", ":", "--")  # fine-tuned, the last two, the last four
FOUND = paragraph("""
    *Here.* As in the paper, fine-tuning is best, the last four layers side by side come next, and the last
    layer by itself is not the one to read: in MiniLM the fourth of six layers has twice its score. Its last
    layer was trained to make vectors of whole sentences. In the second mini, fixed features are
    far behind fine-tuning.""")
PAPER = paragraph("""
    *Elsewhere.* Devlin et al. 2019, table 7 (base, CoNLL-2003, F1 on dev data): fine-tuned 96.4; features of
    the embeddings 91.0, of the second-to-last layer 95.6, of the last 94.9, of the last four side by side
    96.1. There a BiLSTM of two layers reads the features, here a linear map.""")


def add_options(parser: argparse.ArgumentParser) -> None:
    """The models, and where their runs are kept."""
    parser.add_argument(
        "--models", nargs="+", metavar="NAME=FOLDER", help=f"each a case (default: mini, and {REAL})"
    )
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="how many (default: %(default)s)")
    parser.add_argument("--data", type=Path, default=SHARED, metavar="FOLDER", help="data of WNUT-17")
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path("runs/ablations/layers"),
        help="of all runs (default: %(default)s)",
    )


def measure(options: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    """A case for each model. A run that has ended is not repeated."""
    models = dict(map(named, options.models or []))
    models = models or {"mini": "mini", REAL: str(find_encoder("--models NAME=FOLDER"))}
    for name, folder in models.items():
        layers = open_config(folder).num_hidden_layers
        scores = {
            what: take(f"wnut17-{name}-{number}", flags, folder, options)
            for number, (what, flags) in enumerate(choices(layers).items())
        }
        yield name, {"layers": layers, "f1": scores}


def choices(layers: int) -> dict[str, str]:
    """What a head reads, and what learns: titles, and the flags of the command."""
    states = {f"layer {layer}": str(layer) for layer in range(1, layers + 1)}
    together = {
        title: " ".join(map(str, places)) for title, places in CONCATENATED.items() if len(places) <= layers
    }
    fixed = {"embeddings": "0"} | states | together
    return {
        "fine-tuned, rate 1e-4": f"{LEARNED} 1e-4",
        "fine-tuned, rate 2e-4": f"{LEARNED} 2e-4",
    } | {title: f"{FIXED} {places}" for title, places in fixed.items()}


def take(name: str, flags: str, model: str, options: argparse.Namespace) -> list[float]:
    """F1 on the dev data for each seed. Raises UserError if a command fails."""
    run = finetune(name, "", f"{flags} --restarts {options.seeds}", 1, model=model)
    folder = options.folder / "quick" if options.quick else options.folder
    make_once(run, options.data, folder, options.quick)
    return dev_scores(read_run(folder / name)["figures"]["results"], "f1")


# -- As text -----------------------------------------------------------------------------------------


def section(cases: Mapping[str, Mapping[str, Any]], folder: Path) -> str:
    """A row for each choice, a column for each model, and a picture of the layers."""
    plot(cases, folder / "ablation-layers.png")
    titles = choices(max(record["layers"] for record in cases.values()))
    rows = [
        [title, *(spread(record["f1"][title]) if title in record["f1"] else "–" for record in cases.values())]
        for title in titles
    ]
    told = paragraph("""
        WNUT-17, F1 on dev data: mean ± standard deviation over seeds. *Fine-tuned*: all learns. In all other
        rows the encoder stays as it is, and a linear head reads its hidden states after one layer, or after
        several side by side.""")
    picture = "![F1 against the layer whose hidden states a head reads](ablation-layers.png)"
    return "\n\n".join([told, table(["", *cases], rows), picture, FOUND, PAPER])


def plot(cases: Mapping[str, Mapping[str, Any]], path: Path) -> None:
    """F1 against the layer, a panel for each model; lines for what reads more than one layer."""
    figure, ((*axes,),) = new_axes(4.5 * len(cases), 3.6, ncols=len(cases), sharey=True, squeeze=False)
    for panel, (name, record) in zip(axes, cases.items(), strict=True):
        f1 = {title: 100 * np.array(scores) for title, scores in record["f1"].items()}
        single = [f1["embeddings"], *(f1[f"layer {layer}"] for layer in range(1, record["layers"] + 1))]
        deviations = [np.std(scores, ddof=min(1, len(scores) - 1)) for scores in single]
        panel.errorbar(
            range(len(single)), np.mean(single, axis=1), deviations, marker="o", capsize=3, color=BLUE
        )
        lines = {"fine-tuned, better rate": max(f1[t].mean() for t in f1 if t.startswith("fine-tuned"))}
        lines |= {title: f1[title].mean() for title in CONCATENATED if title in f1}
        for (title, height), colour, style in zip(lines.items(), (RED, GREY, GREY), LINES, strict=False):
            panel.axhline(height, color=colour, linewidth=1, linestyle=style, label=title)
        panel.set_title(name, fontsize=10)
        panel.set_xlabel("layer (0: embeddings)")
        panel.set_xticks(range(len(single)))
    axes[0].set_ylabel("F1, points")
    figure.legend(
        *axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=3, frameon=False, fontsize=8
    )
    save_figure(figure, path)
