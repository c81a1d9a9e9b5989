"""From a source to the two files, and the check of them."""

import re
import shutil

import nbformat
import pytest

from minibert.course import EXERCISES
from notebooks.make import __main__ as make
from notebooks.make import execute, rules
from notebooks.make.listing import exercise_list

SOURCE = '''# %% [markdown]
r"""
# 05 · A title
"""

# %%
import matplotlib.pyplot as plt
import numpy as np
from minibert import check, plots

plots.notebook_style()

# %% tags=["solution"]
def solution(dout, cache):
    """All three."""
    from minibert.ops.layer_normalisation import layer_norm_backward
    return layer_norm_backward(dout, cache)

# %%
check("05.layer_norm_backward", solution)

# %% tags=["figure"]
# Caption: It rises.
plt.plot([1, 2])
plt.title("a line")
plt.show()
'''


@pytest.fixture
def course(tmp_path, monkeypatch):
    """A course of one source, in a folder of its own."""
    monkeypatch.setattr(make, "FOLDER", tmp_path)
    monkeypatch.setattr(make, "EXERCISES", tmp_path / "exercises")
    monkeypatch.setattr(rules, "CELLS", range(1, 10))
    monkeypatch.setattr(rules, "LEAST_WORDS", 1)
    (tmp_path / "src").mkdir()
    source = tmp_path / "src" / "05_title.py"
    source.write_text(SOURCE, encoding="utf-8")
    return source


def test_what_is_made_is_in_order(course):
    report, problems = make.process(course, write=True)
    assert report.startswith("05_title") and problems == []
    folder = course.parents[1]
    complete = nbformat.read(folder / "05_title.ipynb", as_version=4)
    exercise = nbformat.read(folder / "exercises" / "05_title.ipynb", as_version=4)
    *_, drawing, caption = complete.cells
    assert "image/png" in drawing.outputs[0].data and caption.source == "*It rises.*"
    assert [cell.execution_count for cell in exercise.cells if cell.cell_type == "code"] == [None] * 4
    first = (folder / "05_title.ipynb").read_bytes()

    assert make.process(course, write=False)[1] == []
    make.process(course, write=True)
    assert (folder / "05_title.ipynb").read_bytes() == first  # the same file again

    shutil.copy(folder / "05_title.ipynb", folder / "06_lost.ipynb")
    assert make.strays() == ["06_lost.ipynb has no source"]
    course.write_text(SOURCE.replace("[1, 2]", "[1, 3]"), encoding="utf-8")
    stale = "is not what its source makes; run make course"
    assert make.process(course, write=False)[1] == [
        f"05_title.ipynb {stale}",
        f"exercises/05_title.ipynb {stale}",
    ]


def test_the_list_of_exercises(course):
    assert make.stale_list() == ["EXERCISES.md: run make course"]
    page = exercise_list(make.stems())
    (course.parents[1] / "EXERCISES.md").write_text(page, encoding="utf-8")
    assert make.stale_list() == []
    listed = re.findall(r"^\| \[(.+?)\]\(exercises/05_title.ipynb\) \| (\d+) \|", page, re.MULTILINE)
    known = {name: exercise for name, exercise in EXERCISES.items() if name.startswith("05.")}
    assert dict(listed) == {name: str(exercise.minutes) for name, exercise in known.items()}
    open_ones = [name for name, exercise in known.items() if exercise.level == 3]
    assert re.findall(r"\[(05\.\w+)\]", page.partition("## Level 3")[2]) == open_ones != []


def test_nothing_is_written_of_a_notebook_that_breaks_off(course):
    course.write_text(
        SOURCE.replace("plt.show()", "solution(np.ones((2, 3)), (np.ones((2, 3)), 1.0, 1.0))"),
        encoding="utf-8",
    )
    _, [problem] = make.process(course, write=True)
    assert problem.startswith("exercises: ") and "NotImplementedError" in problem and "\x1b" not in problem
    assert not (course.parents[1] / "05_title.ipynb").exists()


def test_a_cell_that_hangs_is_a_problem_like_any_other(course, monkeypatch):
    monkeypatch.setattr(execute, "CELL_SECONDS", 1)
    course.write_text(SOURCE.replace("import numpy as np", "import time; time.sleep(60)"), encoding="utf-8")
    _, [problem] = make.process(course, write=True)
    assert "timed out" in problem and "time.sleep(60)" in problem
    assert not (course.parents[1] / "05_title.ipynb").exists()
