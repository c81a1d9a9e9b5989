"""What a pre-trained model is worth on tasks, by the commands that everybody has."""

import argparse
from dataclasses import dataclass
from pathlib import Path

from benchmarks.finetuning.__main__ import make, shown_commands
from benchmarks.finetuning.figures import MEASURED, dev_scores, read_run
from benchmarks.finetuning.runs import Run, finetune, quick
from benchmarks.measure import ContenderError
from minibert.errors import UserError
from minibert.files import read_json
from minibert.tasks.pretraining_settings import PretrainSettings

ALIKE = "--learning-rate 2e-4 --dropout 0.1 --restarts 1"


@dataclass(frozen=True)
class Task:
    """A column of the table: its title, its metric, and what is added to the command."""

    title: str
    metric: str
    flags: str


TASKS = {
    "sst2": Task("SST-2, accuracy", "accuracy", f"--limit 8000 --epochs 3 {ALIKE}"),
    "mrpc": Task("MRPC, F1", "f1", f"--epochs 3 {ALIKE}"),
    "stsb": Task("STS-B, Spearman", "spearman", f"--epochs 3 {ALIKE}"),
    "wnut17": Task("WNUT-17, F1", "f1", f"--epochs 5 {ALIKE}"),
    "wnut17-features": Task(
        "WNUT-17, F1, fixed features",
        "f1",
        "--features -2 -1 --epochs 10 --learning-rate 1e-3 --restarts 1",
    ),
    "docs-questions": Task(
        "documentation, answers, F1",
        "f1",
        "--limit 400 --max-length 128 --stride 48 --epochs 3 --learning-rate 3e-4 --restarts 1",
    ),
    "blimp": Task("BLiMP", "accuracy", "--limit 50"),
}


def score(task: str, settings: PretrainSettings, options: argparse.Namespace) -> float | None:
    """The score of a finished pre-training run on a task, measured once; None where there is no such score.

    Raises UserError if a command fails.
    """
    model = settings.folder / "final"
    if task == "blimp":
        if settings.predicts == "left-to-right":
            return None  # a word is scored by both sides
        if (model / "generator").is_dir():
            model /= "generator"
    folder = settings.folder.parent / "tasks"
    run = _run(task, f"{task}-{settings.name}", str(model), settings.seed)
    make_once(run, options.data, folder, options.quick)
    return _read(folder / run.name, TASKS[task].metric)


def make_once(run: Run, data: Path, folder: Path, make_quick: bool) -> None:
    """Run the commands of a run, unless a run with the same ones has ended. Raises UserError if one fails."""
    run, measured = quick(run) if make_quick else run, folder / run.name / MEASURED
    if measured.exists() and read_json(measured, "file of a run")["commands"] == shown_commands(run):
        return
    try:
        make(run, {"data": data, "runs": folder})
    except ContenderError as error:
        raise UserError(str(error)) from error


def _run(task: str, name: str, model: str, seed: int) -> Run:
    flags = TASKS[task].flags
    if task == "blimp":
        data = "--recipe blimp --data $data/blimp/BLiMP.zip --json $run/test.json"
        return Run(name, "minimal pairs", (f"minibert evaluate --model {model} {data} {flags}",), 1)
    if task.startswith("docs-"):  # comes with the package, and has no third part to test on
        learn = f"minibert finetune --recipe {task} --model {model} {flags} --seed {seed}"
        return Run(name, "", (f"{learn} --out $runs --name {name}",), 1)
    return finetune(name, "", f"{flags} --seed {seed}", 1, model=model)


def _read(folder: Path, metric: str) -> float | None:
    """The score; None where it is not defined, as a correlation with equal predictions is not."""
    if not (folder / "test.json").exists():
        return dev_scores(read_run(folder)["figures"]["results"], metric)[0]
    figures = read_json(folder / "test.json", "file of scores")
    scores = figures.get("scores", figures)
    return scores[metric] if metric in scores else scores["overall"]
