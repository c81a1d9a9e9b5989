"""What notebooks print of the library's code is what it is today."""

from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def joined(lines):
    """The lines that are not blank, without their indentation."""
    return "".join(f"\n{line.strip()}" for line in lines if line.strip()) + "\n"


@pytest.fixture(scope="module")
def files():
    """All code that there is, file by file."""
    folders = (ROOT / "minibert", ROOT / "notebooks")
    paths = [path for folder in folders for path in folder.rglob("*.py")]
    return [joined(path.read_text(encoding="utf-8").splitlines()) for path in paths]


def functions_in(printed):
    """The functions among printed lines, each as a list of lines."""
    functions = []
    for line in printed:
        if line.startswith(("    ", "def ", ")")):
            if not functions or line.lstrip().startswith("def "):
                functions.append([])
            functions[-1].append(line)
    return functions


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_printed_code_is_todays(path, files):
    """The lines of a function stand like this, one after the other, in one of the files."""
    old = []
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "code" and "getsource" in cell.source:
            printed = "".join(output.get("text", "") for output in cell.outputs).splitlines()
            for lines in functions_in(printed):
                if not any(joined(lines) in file for file in files):
                    old.append(lines[0])
    assert old == [], f"python -m notebooks.make {path.stem[:2]} prints it anew"
