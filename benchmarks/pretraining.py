"""``python -m benchmarks.pretraining RUN …``: what pre-training runs reached, and how long it took them.

Reads the folders of finished runs of ``minibert pretrain`` and adds them to ``pretraining.json``, which keeps
those of earlier calls; ``pretraining.md`` and ``pretraining.png`` show all that are in it. Every number comes
from a run's own files, the name of the machine among them.
"""

import argparse
import bisect
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.measure import ROOT
from benchmarks.parts.common import new_axes, save_figure
from benchmarks.results import paragraph, table
from minibert.errors import UserError
from minibert.files import read_json, write_json, write_text
from minibert.settings import as_json, read_settings
from minibert.tasks.pretraining_settings import SIZES, PretrainSettings
from minibert.train.metrics import read_metrics
from minibert.train.progress import format_seconds

ROWS = 10  # of the table of a run's course, besides the start
ACCURACIES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6)  # when was each reached?
PLACES = ("out", "prepared", "device")  # of one machine
COLOURS = (*(f"C{number}" for number in range(10)), "black", "gold", "navy")
MEASURED = ("mlm_loss", "mlm_accuracy", "nsp_accuracy")


def main() -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.pretraining", description=__doc__.split(": ")[1]
    )
    parser.add_argument(
        "runs", nargs="*", type=Path, metavar="RUN", help="a run's folder, such as runs/small"
    )
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results", metavar="FOLDER")
    options = parser.parse_args()
    try:
        print(f"written to {write_page(options.runs, options.results)}")
    except UserError as error:
        print(f"benchmarks.pretraining: error: {error}", file=sys.stderr)
        return 2
    return 0


def write_page(runs: Sequence[Path], folder: Path) -> Path:
    """Add the runs to those in ``folder``, write text and picture anew; the path of the text."""
    kept = folder / "pretraining.json"
    records = read_json(kept, "file of runs") if kept.exists() else {}
    records |= {record["settings"]["name"]: record for record in map(read_run, runs)}
    if not records:
        raise UserError(f"{kept} has no runs; name the folder of one, such as runs/tiny")
    folder.mkdir(parents=True, exist_ok=True)
    write_json(kept, records)
    plot(records, folder / "pretraining.png")
    write_text(folder / "pretraining.md", "\n\n".join(page(records)) + "\n")
    return folder / "pretraining.md"


def read_run(run: Path) -> dict[str, Any]:
    """Settings, results and evaluations of a run. Raises UserError if it is none, or not finished."""
    settings = PretrainSettings.from_dict(read_settings(run / "config.json"), str(run / "config.json"))
    results = read_json(run / "results.json", "file that a finished run leaves")
    told = {name: value for name, value in settings.to_dict().items() if name not in PLACES}
    told["corpus"] = [Path(path).name for path in settings.corpus]
    if settings.model:  # which says all of this
        usual = PretrainSettings()
        told |= {name: as_json(getattr(usual, name)) for name in ("tokenizer", *SIZES)}
        if Path(settings.model).is_relative_to(settings.out):
            told["model"] = str("runs" / Path(settings.model).relative_to(settings.out))
    return {
        "settings": told,
        "results": results,
        "evaluations": evaluations(read_metrics(run / "metrics.jsonl")),
    }


def evaluations(metrics: Sequence[Mapping[str, Any]]) -> list[dict[str, float]]:
    """The evaluations in a run's metrics, each with the tokens read and the seconds trained until then."""
    found, so_far = [], {"tokens": 0, "seconds": 0.0}
    for record in metrics:
        if "held_out_mlm_loss" in record:
            held_out = {name: record[f"held_out_{name}"] for name in MEASURED if f"held_out_{name}" in record}
            found.append({"step": record["step"], **so_far, **held_out})
        else:
            so_far = {name: record[name] for name in so_far}
    return found


# -- As text ----------------------------------------------------------------------------------------


def page(records: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The paragraphs of the page."""
    parts = [
        "# Pre-training runs",
        paragraph("""
            Written by `python -m benchmarks.pretraining` from the files of the runs. Loss (nats) and accuracy
            of masked words and the accuracy of sentence pairs (NSP) are those on held-out documents; time is
            that of training steps, without evaluations and checkpoints. Losses cannot be compared if they are
            those of other text, of sequences of another length (32 tokens for `mini`, `second-mini` and
            `six`, 128 for `first-mini`, 64 for the others), or with another vocabulary (`second-ten` has one
            twice as large, `ten` and `fourth-ten` one three times as large)."""),
        "![Loss and accuracy of masked words against steps, tokens and minutes](pretraining.png)",
        paragraph("""
            A run that went on from another one's model begins where that one ended, dashed and in its colour.
            A dot shows where the sequences become long."""),
        table(["run", *SUMMARY], [[name, *summary(record)] for name, record in records.items()]),
    ]
    for name, record in records.items():
        parts += [f"## {name}", *describe(record), course(record), milestones(record)]
    return parts


SUMMARY = ["machine", "parameters", "steps", "tokens", "time", "tokens/s", "loss", "accuracy", "NSP"]
SUMMARY += ["guessing: loss", "accuracy"]


def summary(record: Mapping[str, Any]) -> list[str]:
    """A run in one row."""
    results = record["results"]
    environment = results["environment"]
    threads = f", {environment['threads']} threads" if environment["device"] == "cpu" else ""
    return [
        environment["processor"] + threads.replace(" 1 threads", " one thread"),
        f"{results['parameters']:,}",
        f"{record['settings']['steps']:,}",
        f"{results['tokens']:,}",
        format_seconds(results["seconds"]),
        f"{results['tokens_per_second']:,.0f}",
        f"{results['held_out_mlm_loss']:.3f}",
        f"{results['held_out_mlm_accuracy']:.2%}",
        _percent(results.get("held_out_nsp_accuracy")),
        f"{results['plateau_loss']:.3f}",
        f"{results['plateau_accuracy']:.2%}",
    ]


def describe(record: Mapping[str, Any]) -> list[str]:
    """What it was trained on, how, and where."""
    settings, results = PretrainSettings.from_dict(record["settings"]), record["results"]
    training, held_out = results["training_text"], results["held_out_text"]
    environment = results["environment"]
    usual = PretrainSettings().with_sizes()
    corpus = ", ".join(settings.corpus) or "documentation that comes with Python"
    changed = [
        f"`{name}={value}`"
        for name, value in record["settings"].items()
        if value not in (None, as_json(getattr(usual, name))) and name not in ("name", "corpus")
    ]
    libraries = ", ".join(f"{name} {environment[name]}" for name in LIBRARIES if name in environment)
    return [
        f"Text ({corpus}): {training['tokens']:,} tokens in {training['documents']:,} documents to train on, "
        f"{held_out['tokens']:,} in {held_out['documents']:,} held out. "
        + ". ".join(phase.describe().capitalize() for phase in settings.phases())
        + ".",
        f"Settings that are not the defaults: {', '.join(changed) or 'none'}.",
        f"<sub>{environment['processor']}, device {environment['device']}, {environment['threads']} threads, "
        f"{libraries}, {', '.join(environment['blas'])}.</sub>",
    ]


LIBRARIES = ("minibert", "python", "numpy", "cupy")


def course(record: Mapping[str, Any]) -> str:
    """Some evaluations, evenly spread, the first and the last among them."""
    found = record["evaluations"]
    stride = max(1, (len(found) - 1) // ROWS)
    chosen = found[::-stride][::-1]
    chosen = chosen if chosen[0] is found[0] else [found[0], *chosen]
    rows = [
        [
            f"{e['step']:,}",
            f"{e['tokens']:,}",
            f"{e['seconds'] / 60:,.1f}",
            f"{e['mlm_loss']:.3f}",
            f"{e['mlm_accuracy']:.2%}",
            _percent(e.get("nsp_accuracy")),
        ]
        for e in chosen
    ]
    return table(["step", "tokens", "minutes", "loss", "accuracy", "NSP"], rows)


def milestones(record: Mapping[str, Any]) -> str:
    """After how long the accuracy was first as high as this."""
    reached, evaluations = [], record["evaluations"]
    for accuracy in ACCURACIES:
        if evaluations[0]["mlm_accuracy"] >= accuracy:
            continue  # by the model that it began from
        first = next((e for e in evaluations if e["mlm_accuracy"] >= accuracy), None)
        if first is None and not reached:
            return f"The accuracy stayed below {accuracy:.0%}."
        if first:
            reached.append(
                f"{accuracy:.0%} after {first['seconds'] / 60:,.1f} minutes ({first['tokens']:,} tokens)"
            )
    return f"Accuracy first measured: {'; '.join(reached)}."


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.2%}"


# -- As a picture -----------------------------------------------------------------------------------


def plot(records: Mapping[str, Mapping[str, Any]], path: Path) -> None:
    """Loss and accuracy on held-out text, against steps, tokens and minutes, without the start."""
    scales = (("step", "steps", 1), ("tokens", "million tokens", 1e6), ("seconds", "minutes of training", 60))
    heights = (("mlm_loss", "masked-LM loss, nats"), ("mlm_accuracy", "accuracy"))
    figure, axes = new_axes(11, 6, nrows=2, ncols=3, sharex="col", sharey="row")
    for row, (height, label) in zip(axes, heights, strict=True):
        row[0].set_ylabel(label)
        for one, (name, _, unit) in zip(row, scales, strict=True):
            for number, chain in enumerate(chains(records)):
                _draw_chain(one, chain, name, height, unit, COLOURS[number % len(COLOURS)])
    for one, (_, label, _) in zip(axes[1], scales, strict=True):
        one.set(xlabel=label, xscale="log")
    figure.legend(*axes[0][0].get_legend_handles_labels(), ncols=5, frameon=False, loc="outside lower center")
    save_figure(figure, path)


def chains(records: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Mapping[str, Any]]]:
    """The runs by name, those that went on from each other together, in the order of ``records``."""
    found: list[dict[str, Mapping[str, Any]]] = []
    for run, record in records.items():
        model = Path(record["settings"]["model"] or "")  # as runs/NAME/final
        parent = next((chain for chain in found if list(chain)[-1] in model.parts[1:2]), None)
        if parent is None:
            found.append({run: record})
        else:
            parent[run] = record
    return found


def _draw_chain(
    one: Any, chain: Mapping[str, Mapping[str, Any]], name: str, height: str, unit: float, colour: str
) -> None:
    """The curves of runs that went on from each other, one after the other, as one line of the legend."""
    before = 0.0
    for record in chain.values():
        found = record["evaluations"]
        points = [((before + e[name]) / unit, e[height]) for e in found if e[name]]
        style = {"linestyle": "--"} if before else {"linestyle": "-", "label": list(chain)[-1]}
        one.plot(*zip(*points, strict=True), linewidth=1.4, color=colour, **style)
        for phase in PretrainSettings.from_dict(record["settings"]).phases()[1:]:
            border = found[bisect.bisect_left(found, phase.start, key=lambda e: e["step"])]
            one.plot((before + border[name]) / unit, border[height], color=colour, marker="o", markersize=4)
        before += found[-1][name]


if __name__ == "__main__":
    sys.exit(main())
