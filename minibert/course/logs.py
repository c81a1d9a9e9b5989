"""What long runs wrote down, for notebooks that show them without running them."""

import json
from pathlib import Path
from typing import Any

from minibert.errors import UserError
from minibert.files import read_text


def read_log(name: str) -> list[dict[str, Any]]:
    """The lines of ``notebooks/logs/NAME``, JSON each, wherever the notebook is that asks.

    Raises UserError if there is no such log.
    """
    for folder in (Path("logs"), Path("../logs")):
        if (folder / name).exists():
            return [json.loads(line) for line in read_text(folder / name, "log").splitlines()]
    raise UserError(f"{name}: not in logs/ or ../logs/; run this in the folder of a notebook of the course")
