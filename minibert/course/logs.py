"""What long runs wrote down, for notebooks that show them without running them."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from minibert.errors import UserError
from minibert.files import read_text, write_text

FOLDERS = (Path("logs"), Path("../logs"))  # as notebooks see them, and exercises
RESULTS = (Path("../benchmarks/results"), Path("../../benchmarks/results"))


def read_log(name: str) -> list[dict[str, Any]]:
    """The lines of ``notebooks/logs/NAME``, JSON each, wherever the notebook is that asks.

    Raises UserError if there is no such log.
    """
    for folder in FOLDERS:
        if (folder / name).exists():
            return [json.loads(line) for line in read_text(folder / name, "log").splitlines()]
    raise UserError(f"{name}: not in logs/ or ../logs/; run this in the folder of a notebook of the course")


def read_results(name: str) -> dict[str, Any]:
    """What the long measurements found: ``benchmarks/results/NAME.json``, wherever the notebook is that asks.

    Raises UserError if there is no such file, as where only the package is installed.
    """
    for folder in RESULTS:
        if (path := folder / f"{name}.json").exists():
            return json.loads(read_text(path, "results"))
    raise UserError(
        f"{name}: not in benchmarks/results; clone the repository, and run this in its folder notebooks"
    )


def write_log(name: str, rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Write a run's ``rows`` where :func:`read_log` finds them, all of them or, after an error, none.

    Returns them. Raises UserError before the run if there is no such place.
    """
    folder = next((folder for folder in FOLDERS if folder.is_dir()), None)
    if folder is None:
        raise UserError(
            f"{name}: no folder logs/ or ../logs/; run this in the folder of a notebook of the course"
        )
    rows = list(rows)
    write_text(folder / name, "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows))
    return rows
