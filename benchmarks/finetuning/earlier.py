"""``python -m benchmarks.finetuning.earlier``: takes a ``mini`` of an earlier commit out of git's history."""

import argparse
import io
import subprocess
import sys
import tarfile
from pathlib import Path

from benchmarks.measure import ROOT
from minibert.errors import UserError
from minibert.files import atomic_folder

FIRST = "8d38a53"  # the commit that brought the first of them
FOLDER = "minibert/assets/mini"


def main() -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.finetuning.earlier", description=__doc__.split(": ")[1]
    )
    parser.add_argument("--output", type=Path, required=True, metavar="FOLDER", help="where it goes")
    parser.add_argument("--commit", default=FIRST, help="one that has the model (default: %(default)s)")
    options = parser.parse_args()
    try:
        extract(options.commit, options.output)
    except UserError as error:
        print(f"earlier: error: {error}", file=sys.stderr)
        return 2
    return 0


def extract(commit: str, output: Path) -> None:
    """Write the files of a commit's model. Raises UserError where the history is missing."""
    done = subprocess.run(["git", "-C", ROOT, "archive", f"{commit}:{FOLDER}"], capture_output=True)
    if done.returncode:
        raise UserError(f"git has no {FOLDER} of {commit}; this needs a clone with all of the history")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive, atomic_folder(output) as folder:
        archive.extractall(folder, filter="data")


if __name__ == "__main__":
    sys.exit(main())
