"""``python -m benchmarks.speedrun RECORD …``: how long it takes to reach a loss, improvement by improvement.

Runs the records named (see ``records.toml``) with several seeds, and adds what they reached to
``results/speedrun.json``. With --time, measures instead how long their steps take, in turn, which needs an
idle machine. Without a name, only writes ``speedrun.md`` and ``speedrun.png`` anew.
"""

import argparse
import contextlib
import itertools
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.measure import ROOT
from benchmarks.pretraining import evaluations
from benchmarks.results import describe_machine
from benchmarks.speedrun.page import write_page
from benchmarks.speedrun.timing import measure
from benchmarks.speedrun.tracks import Track, open_track, with_track
from benchmarks.speedrun.trials import TRIALS
from minibert.errors import UserError
from minibert.files import folder_locked, read_json, write_json
from minibert.settings import read_settings
from minibert.tasks import pretrain
from minibert.threads import get_threads, set_threads
from minibert.train.metrics import read_metrics

RECORDS_FILE = Path(__file__).with_name("records.toml")
RESULTS = ROOT / "benchmarks" / "results"


def main() -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.speedrun", description=(__doc__ or "").split(": ", 1)[1]
    )
    parser.add_argument("records", nargs="*", metavar="RECORD", help="track/name, such as docs/start")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], metavar="N")
    parser.add_argument("--time", action="store_true", help="only measure how long a step takes")
    parser.add_argument("--threads", type=int, metavar="N", help="CPU threads")
    parser.add_argument("--device", default="cpu", metavar="NAME", help="where runs compute: cpu or cuda")
    parser.add_argument("--folder", type=Path, default=Path("runs/speedrun"), help="texts and runs go here")
    options = parser.parse_args()
    try:
        if options.threads is not None:
            set_threads(options.threads)
        records = {f"{track}/{record['name']}": record for track, record in read_records()}
        for name in options.records:
            if name not in records:
                raise UserError(f"unknown record {name}; expected one of {', '.join(records)}")
        settings = {name: records[name]["settings"] for name in options.records}
        for track in {name.partition("/")[0] for name in options.records}:
            opened = open_track(track, options.folder)
            chosen = {name: one for name, one in settings.items() if name.startswith(f"{track}/")}
            if options.time:
                time_steps(opened, chosen)
            else:
                for name, seed in itertools.product(chosen, options.seeds):
                    trial = records[name].get("trial")
                    run(opened, name, chosen[name], seed, options.folder, trial, options.device)
        write_page(read_records(), read_results(), RESULTS)
    except UserError as error:
        print(f"benchmarks.speedrun: error: {error}", file=sys.stderr)
        return 2
    return 0


def read_records() -> Iterator[tuple[str, dict[str, Any]]]:
    """The track and the record of each entry, with the settings of all records before it on its track."""
    for track, records in read_settings(RECORDS_FILE).items():
        so_far: dict[str, Any] = {}
        for record in records:
            settings = so_far | record["settings"]
            yield track, record | {"settings": settings}
            so_far = so_far if record.get("tried") else settings


def time_steps(track: Track, settings: Mapping[str, Mapping[str, Any]]) -> None:
    """Measure how long the steps of some records take, and keep that."""
    machine, measured = describe_machine() | {"threads": get_threads()}, measure(track, settings)
    with changed_results() as results:
        for name, times in measured.items():
            results.setdefault(name, {"runs": {}})["time"] = times | {"machine": machine}


def read_results() -> dict[str, Any]:
    """What was measured so far, by record: its ``runs`` by seed, and the ``time`` of its steps."""
    path = RESULTS / "speedrun.json"
    return read_json(path, "file of results") if path.exists() else {}


@contextlib.contextmanager
def changed_results() -> Iterator[dict[str, Any]]:
    """What was measured so far, to be changed in this block, while no other process changes it."""
    with folder_locked(RESULTS):
        results = read_results()
        yield results
        write_json(RESULTS / "speedrun.json", results)


def run(
    track: Track,
    name: str,
    settings: Mapping[str, Any],
    seed: int,
    folder: Path,
    trial: str | None = None,
    device: str = "cpu",
) -> None:
    """Take one run of a record, and keep what it reached. One that was killed is resumed, a trial anew.

    It computes in float32 on any device, so losses from a GPU differ from a CPU's by rounding only.
    """
    own = {"seed": seed, "name": f"{name.replace('/', '-')}-{seed}", "out": str(folder / "runs")}
    machine = {"device": device, "precision": "float32", "threads": get_threads()}
    report = {"log_every": 10, "eval_every": 100, "keep_checkpoints": 1}
    chosen = with_track(report | dict(settings) | own | machine, track)
    begun = any(chosen.folder.glob("checkpoint-*"))
    chosen = chosen.replace(overwrite=begun) if trial else chosen.replace(resume=begun)
    with TRIALS[trial]() if trial else contextlib.nullcontext():
        summary = pretrain(chosen, track.held_out, (track.tokenizer, track.prepared))
    found = read_json(chosen.folder / "results.json", "file that a finished run leaves")
    if found["tokens"] > track.passes * found["training_text"]["tokens"]:
        raise UserError(f"{name} reads more than {track.passes} times the text of the track {track.name}")
    reached = {
        "loss": summary["held_out_mlm_loss"],
        "plateau_loss": summary["plateau_loss"],
        "seconds": summary["seconds"],  # also of runs that shared the machine with others
        "steps": chosen.steps,
        "tokens": found["tokens"],
        "parameters": found["parameters"],
        "environment": found["environment"],
        "evaluations": evaluations(read_metrics(chosen.folder / "metrics.jsonl")),
    }
    with changed_results() as results:
        results.setdefault(name, {"runs": {}})["runs"][str(seed)] = reached


if __name__ == "__main__":
    sys.exit(main())
