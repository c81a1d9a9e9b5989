"""Pre-training runs that differ in one decision, in groups (``experiments.toml``), and what each is worth."""

import argparse
import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.ablations.fine_tuned import TASKS, score
from benchmarks.parts.common import BLUE, GREY, ORANGE, RED, new_axes, save_figure
from benchmarks.pretraining import evaluations
from benchmarks.results import Results, paragraph, table
from benchmarks.speedrun.tracks import SHARED, Track, open_track, with_track
from minibert.files import read_json
from minibert.settings import read_settings
from minibert.tasks import pretrain
from minibert.tasks.pretraining_settings import PretrainSettings
from minibert.train.metrics import read_metrics

FILE = Path(__file__).with_name("experiments.toml")
VOCABULARY = ("vocab_size", "alphabet_limit")  # what a vocabulary is learned with
COLORS = BLUE, RED, ORANGE, GREY, "#009e73", "#cc79a7"
STYLES = "-", "--", ":"
TIMED = 40  # steps that are taken to see how long one is
QUICK = {
    "steps": 4,
    "batch_size": 2,
    "eval_batches": 1,
    "hidden_size": 16,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "intermediate_size": 16,
    "max_seq_length": 32,
}


class Group:
    """One group as a part of the page: see ``benchmarks.ablations``."""

    def __init__(self, name: str, about: Mapping[str, Any]):
        self.name, self.about = name, about
        self.__doc__ = f"{about['title']}."

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Which runs, on which text."""
        names = [run["name"] for run in self.about["runs"]]
        parser.add_argument(
            "--only", nargs="+", choices=names, metavar="RUN", help=", ".join(names).replace("%", "%%")
        )
        parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], metavar="N")
        parser.add_argument("--again", action="store_true", help="also measure what the page has already")
        parser.add_argument("--track", choices=("docs", "10m"), default="10m", help="default: %(default)s")
        parser.add_argument("--data", type=Path, default=SHARED, metavar="FOLDER", help="data of the tasks")
        parser.add_argument(
            "--folder", type=Path, default=Path("runs/ablations"), help="of all runs (default: %(default)s)"
        )
        parser.add_argument(
            "--texts",
            type=Path,
            default=Path("runs/speedrun"),
            metavar="FOLDER",
            help="where the track's text is, or is made (default: %(default)s)",
        )

    def measure(self, options: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
        """A case for each run and seed that the page does not have yet.

        A run that has ended is not repeated, one that was killed resumes.
        """
        track, measured = open_track(options.track, options.texts), self._measured(options)
        for seed, run in itertools.product(options.seeds, self.about["runs"]):
            case = f"{run['name']}, seed {seed}"
            if (options.only is None or run["name"] in options.only) and case not in measured:
                settings = self._settings(run["settings"], track, options, seed, run["name"])
                if "seconds" in self.about and not options.quick:
                    settings = settings.replace(steps=self._steps(settings, measured))
                yield case, self._take(settings, track, options, seed)

    def _measured(self, options: argparse.Namespace) -> Mapping[str, Any]:
        """The cases that are not measured again."""
        cases = Results(options.results, "ablations").parts.get(self.name, {})
        return {} if options.again else cases

    def _settings(
        self, own: Mapping[str, Any], track: Track, options: argparse.Namespace, seed: int, name: str
    ) -> PretrainSettings:
        slug = "".join(char if char.isalnum() else "-" for char in name).strip("-").lower()
        out = options.folder / (f"{options.track}-quick" if options.quick else options.track)
        places = {"name": f"{self.name}-{slug}-{seed}", "out": str(out), "seed": seed}
        report = {"device": "cpu", "log_every": 10, "keep_checkpoints": 1, "threads": options.threads}
        values = self.about["common"] | dict(own) | places | report
        return with_track(values | (QUICK if options.quick else {}), track)

    def _take(
        self, settings: PretrainSettings, track: Track, options: argparse.Namespace, seed: int
    ) -> dict[str, Any]:
        if not (settings.folder / "final").is_dir():
            resume = any(settings.folder.glob("checkpoint-*"))
            fits = _fits(settings, track)
            held_out = track.held_out_of(settings.max_seq_length) if fits else None
            pretrain(settings.replace(resume=resume), held_out)
        made = read_json(settings.folder / "config.json", "file of settings")
        settings.with_sizes().replace(resume=True, precision=made["precision"]).check_resumes(made)
        results = read_json(settings.folder / "results.json", "file that a finished run leaves")
        kept = "held_out_mlm_loss held_out_mlm_accuracy tokens seconds parameters".split()
        return {
            "run": settings.name.removesuffix(f"-{seed}"),
            "seed": seed,
            "settings": settings.flags(without=("Run", "Report", "Machine")),
            **{name: results[name] for name in kept},
            "steps": settings.steps,
            "evaluations": evaluations(read_metrics(settings.folder / "metrics.jsonl")),
            "tasks": {task: score(task, settings, options) for task in self.about["tasks"]},
        }

    def _steps(self, settings: PretrainSettings, measured: Mapping[str, Any]) -> int:
        """How many steps fit into the seconds of the group, by a few that are timed; once for all seeds.

        So if another seed was measured, perhaps on another machine, it takes as many steps as that.
        """
        run = settings.name.rpartition("-")[0]
        if known := [record["steps"] for record in measured.values() if record["run"] == run]:
            return known[0]
        timed = settings.replace(
            name=f"{run}-timed", steps=TIMED, log_every=1, eval_batches=1, overwrite=True
        )
        if not (timed.folder / "final").is_dir():
            pretrain(timed)
        lines = read_metrics(timed.folder / "metrics.jsonl")
        first, *_, last = (line["seconds"] for line in lines if "lr" in line)  # the first has the counting
        return max(1, int((self.about["seconds"] - first) * (TIMED - 1) / (last - first)))

    # -- As text ----------------------------------------------------------------------------------------

    def section(self, cases: Mapping[str, Mapping[str, Any]], folder: Path) -> str:
        """The question, what others found, a row for each run, and a picture of the losses."""
        by_run: dict[str, list[Mapping[str, Any]]] = {}
        for case, record in cases.items():
            by_run.setdefault(case.rpartition(", seed ")[0], []).append(record)
        tasks = self.about["tasks"]
        rows = [
            [
                name,
                _told([record["held_out_mlm_loss"] for record in records], 3),
                _told([np.exp(record["held_out_mlm_loss"]) for record in records], 1),
                *(_told([record["tasks"][task] for record in records], 1, 100) for task in tasks),
                f"{np.mean([record['tokens'] for record in records]) / 1e6:,.1f} M",
                self._cost(records),
                f"{len(records)}",
            ]
            for name, records in by_run.items()
        ]
        header = [
            "",
            "held-out loss",
            "perplexity",
            *(TASKS[task].title for task in tasks),
            "tokens",
            "steps" if "seconds" in self.about else "minutes",
            "seeds",
        ]
        picture = f"ablation-{self.name}.png"
        plot(by_run, folder / picture)
        alike = "equally many steps"
        if seconds := self.about.get("seconds"):
            alike = f"as many steps as take {seconds} s of an idle core, by a few that were timed before"
        parts = [
            self.about["question"],
            f"Pre-trained with {alike}: mean ± standard deviation over seeds. The loss is in nats, of "
            "held-out sequences as long as those learned from; the perplexity is its exponential.",
            table(header, rows),
            f"![Held-out loss against tokens read, a line for each row (the mean of its seeds)]({picture})",
            *([f"*Here.* {self.about['found']}"] if "found" in self.about else []),
            f"*Elsewhere.* {self.about['paper']}",
        ]
        return "\n\n".join(map(paragraph, parts[:2])) + "\n\n" + "\n\n".join(parts[2:])

    def _cost(self, records: list[Mapping[str, Any]]) -> str:
        """Steps where they were chosen by the time, else minutes."""
        if "seconds" in self.about:
            return f"{np.mean([record['steps'] for record in records]):,.0f}"
        return f"{np.mean([record['seconds'] for record in records]) / 60:,.1f}"


def _fits(settings: PretrainSettings, track: Track) -> bool:
    """Whether the held-out batches of the track are for this run: masked words, in the track's vocabulary."""
    same = all(getattr(settings, name) == getattr(track.settings, name) for name in VOCABULARY)
    return same and settings.predicts == "masked" and settings.variant in ("bert", "minibert-modern")


def groups() -> dict[str, Group]:
    """All groups of the file, by name, each with the settings that all have in common."""
    found = read_settings(FILE)
    shared = found.pop("all")
    return {name: Group(name, about | {"common": shared | about["common"]}) for name, about in found.items()}


def _told(values: list[float | None], digits: int, factor: float = 1.0) -> str:
    """Mean ± standard deviation, or the only value; a dash where nothing was measured."""
    known = [factor * value for value in values if value is not None]
    if not known:
        return "–"
    mean = f"{np.mean(known):.{digits}f}"
    return mean if len(known) == 1 else f"{mean} ± {np.std(known, ddof=1):.{digits}f}"


def plot(by_run: Mapping[str, list[Mapping[str, Any]]], path: Path) -> None:
    """Loss against tokens: a line for each run, the mean over its seeds."""
    figure, axes = new_axes(8, 4.5)
    ends = []
    for number, (name, records) in enumerate(by_run.items()):
        points = [[(one["tokens"], one["mlm_loss"]) for one in record["evaluations"]] for record in records]
        shortest = min(map(len, points))
        tokens, losses = np.mean([one[:shortest] for one in points], axis=0).T
        color, style = COLORS[number % len(COLORS)], STYLES[number // len(COLORS)]
        axes.plot(tokens / 1e6, losses, color=color, linestyle=style)
        ends.append((losses[-1], tokens[-1] / 1e6, name, color))
    axes.margins(x=0.12)  # room for the names
    bottom, top = axes.get_ylim()
    free = bottom
    for end, at, name, color in sorted(ends):
        height = max(end, free)  # not on the name below
        place = {"xytext": (3, 0), "textcoords": "offset points", "va": "center"}
        axes.annotate(name, (at, height), fontsize=7, color=color, **place)
        free = height + 0.03 * (top - bottom)
    axes.set_xlabel("tokens read, millions")
    axes.set_ylabel("held-out loss, nats")
    save_figure(figure, path)
