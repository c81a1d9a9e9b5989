"""``python -m benchmarks.speedrun RECORD …``: how long it takes to reach a loss, improvement by improvement.

Runs the records named (see ``records.toml``) with several seeds, and adds what they reached to
``results/speedrun.json``. Without a name, only writes ``speedrun.md`` and ``speedrun.png`` anew.
"""

import argparse
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.measure import ROOT
from benchmarks.pretraining import evaluations
from benchmarks.speedrun.page import write_page
from benchmarks.speedrun.tracks import Track, open_track, with_track
from minibert.errors import UserError
from minibert.files import read_json, write_json
from minibert.settings import read_settings
from minibert.tasks import pretrain
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
    parser.add_argument("--threads", type=int, metavar="N", help="CPU threads")
    parser.add_argument("--folder", type=Path, default=Path("runs/speedrun"), help="texts and runs go here")
    options = parser.parse_args()
    try:
        records = {f"{track}/{record['name']}": record for track, record in read_records()}
        for name in options.records:
            if name not in records:
                raise UserError(f"unknown record {name}; expected one of {', '.join(records)}")
        for name in options.records:
            track = open_track(name.partition("/")[0], options.folder)
            for seed in options.seeds:
                run(track, name, records[name]["settings"], seed, options.threads, options.folder)
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
            so_far = so_far if record.get("failed") else settings


def read_results() -> dict[str, Any]:
    """What all runs reached so far, by record and seed."""
    path = RESULTS / "speedrun.json"
    return read_json(path, "file of results") if path.exists() else {}


def run(
    track: Track, name: str, settings: Mapping[str, Any], seed: int, threads: int | None, folder: Path
) -> None:
    """Take one run of a record, and keep what it reached. One that was killed is resumed."""
    own = {"seed": seed, "name": f"{name.replace('/', '-')}-{seed}", "out": str(folder / "runs")}
    report = {"threads": threads, "device": "cpu", "log_every": 10, "eval_every": 100, "keep_checkpoints": 1}
    chosen = with_track(report | dict(settings) | own, track)
    chosen = chosen.replace(resume=any(chosen.folder.glob("checkpoint-*")))
    summary = pretrain(chosen, track.held_out)
    found = read_json(chosen.folder / "results.json", "file that a finished run leaves")
    if found["tokens"] > track.passes * track.training_tokens:
        raise UserError(f"{name} reads more than {track.passes} times the text of the track {track.name}")
    results = read_results()
    results.setdefault(name, {})[str(seed)] = {
        "loss": summary["held_out_mlm_loss"],
        "plateau_loss": summary["plateau_loss"],
        "seconds": summary["seconds"],
        "steps": chosen.steps,
        "tokens": found["tokens"],
        "parameters": found["parameters"],
        "environment": found["environment"],
        "evaluations": evaluations(read_metrics(chosen.folder / "metrics.jsonl")),
    }
    write_json(RESULTS / "speedrun.json", results)


if __name__ == "__main__":
    sys.exit(main())
