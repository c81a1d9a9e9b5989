"""``python -m benchmarks.finetuning.earlier``: takes the first ``mini`` out of git's history."""

import argparse
import io
import subprocess
import sys
import tarfile
from pathlib import Path

from benchmarks.measure import ROOT
from minibert.errors import UserError
from minibert.files import atomic_folder

COMMIT = "8d38a53"  # which brought that model
FOLDER = "minibert/assets/mini"


def main() -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.finetuning.earlier", description=__doc__.split(": ")[1]
    )
    parser.add_argument("--output", type=Path, required=True, metavar="FOLDER", help="where it goes")
    try:
        extract(parser.parse_args().output)
    except UserError as error:
        print(f"earlier: error: {error}", file=sys.stderr)
        return 2
    return 0


def extract(output: Path) -> None:
    """Write the files of that model. Raises UserError where the history is missing."""
    done = subprocess.run(["git", "-C", ROOT, "archive", f"{COMMIT}:{FOLDER}"], capture_output=True)
    if done.returncode:
        raise UserError(f"git has no {FOLDER} of {COMMIT}; this needs a clone with all of the history")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive, atomic_folder(output) as folder:
        archive.extractall(folder, filter="data")


if __name__ == "__main__":
    sys.exit(main())
