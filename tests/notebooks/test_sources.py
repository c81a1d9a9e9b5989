"""The committed notebooks are made from today's sources. (Whether they run, only `make course` can tell.)"""

from pathlib import Path

import nbformat
import pytest

from notebooks.make.convert import complete_notebook, exercise_notebook
from notebooks.make.rules import inputs

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
KINDS = {".": complete_notebook, "exercises": exercise_notebook}


@pytest.mark.parametrize("folder", KINDS)
@pytest.mark.parametrize("source", sorted((NOTEBOOKS / "src").glob("*.py")), ids=lambda path: path.stem)
def test_the_cells_are_those_of_the_source(source, folder):
    path = NOTEBOOKS / folder / f"{source.stem}.ipynb"
    made = KINDS[folder](source.read_text(encoding="utf-8"), source.stem)
    there = nbformat.read(path, as_version=4)
    assert inputs(there) == inputs(made), f"python -m notebooks.make {source.stem[:2]} makes it anew"
