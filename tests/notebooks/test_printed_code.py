"""What notebooks print of the library's code is what it is today."""

from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


@pytest.fixture(scope="module")
def lines():
    """Every line of code that there is."""
    folders = (ROOT / "minibert", ROOT / "notebooks")
    files = [path for folder in folders for path in folder.rglob("*.py")]
    return {line.strip() for path in files for line in path.read_text(encoding="utf-8").splitlines()}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_printed_code_is_todays(path, lines):
    old = []
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "code" and "getsource" in cell.source:
            printed = "".join(output.get("text", "") for output in cell.outputs).splitlines()
            code = [line for line in printed if line.startswith(("    ", "def "))]
            old += [line for line in code if line.strip() not in lines]
    assert old == [], f"python -m notebooks.make {path.stem[:2]} prints it anew"
