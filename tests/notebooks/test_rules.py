"""Each rule notices what it is there to notice."""

import copy

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from notebooks.make import rules


def stdout(text):
    return new_output("stream", name="stdout", text=text)


def code(source, count, *outputs):
    return new_code_cell(source, execution_count=count, outputs=list(outputs))


@pytest.fixture
def notebook():
    """As it should be, with the fewest cells and words."""
    words = [new_markdown_cell(f"# Title {i}\n\n" + "word " * 29) for i in range(38)]
    cells = [code("1 + 1", 1, stdout("2\n")), code('check("05.f", f)', 2, stdout("05.f: passed\n\ntable"))]
    return new_notebook(cells=words + cells)


def test_nothing_is_found_where_nothing_is_wrong(notebook):
    assert rules.finished(notebook) == []


@pytest.mark.parametrize(
    ("output", "problem"),
    [
        (new_output("error", ename="E", evalue="", traceback=[]), "raises an error"),
        (new_output("stream", name="stderr", text="RuntimeWarning: division"), "RuntimeWarning: division"),
        (stdout("saved in /home/ada/run"), "a path or an address of this machine: /home/"),
        (stdout(r"saved in C:\Users"), "a path or an address of this machine: C:"),
        (
            new_output("execute_result", {"text/plain": "<f at 0x7f49bf00ec50>"}),
            "address of this machine: at 0x",
        ),
    ],
)
def test_outputs_that_do_not_belong_there(notebook, output, problem):
    notebook.cells[38].outputs.append(output)
    [found] = rules.finished(notebook)
    assert problem in found


def test_addresses_on_the_web_and_fractions_are_no_paths(notebook):
    notebook.cells[38].outputs = [stdout("https://example.org/home/a, ../tmp/x, 1/H, a/work/b")]
    assert rules.finished(notebook) == []


@pytest.mark.parametrize("counts", [(2, 1), (None, None), (1, 3)])
def test_cells_that_did_not_run_in_order(notebook, counts):
    for cell, count in zip(notebook.cells[38:], counts, strict=True):
        cell.execution_count = count
    assert rules.finished(notebook) == ["did not run in order, every cell once"]


def test_pictures_without_caption_description_or_fold(notebook):
    picture = new_output(
        "display_data", {"image/png": ""}, metadata={"image/png": {"alt": "a line that falls"}}
    )
    drawing = code("plt.show()", 1, picture)
    drawing.metadata["tags"] = ["figure"]
    notebook.cells[30], notebook.cells[38] = drawing, notebook.cells[30]
    notebook.cells[31].source = f"*It falls.*\n\n{notebook.cells[31].source}"
    assert rules.finished(notebook) == []
    uncaptioned, undescribed, open_code = (copy.deepcopy(notebook) for _ in range(3))
    uncaptioned.cells[31].source = f"**It falls.**\n\n{uncaptioned.cells[31].source}"
    undescribed.cells[30].outputs[0].metadata["image/png"]["alt"] = ""
    open_code.cells[30].metadata["tags"] = []
    for wrong, problem in (
        (uncaptioned, "no caption"),
        (undescribed, "no description"),
        (open_code, "not tagged figure"),
    ):
        [found] = rules.finished(wrong)
        assert problem in found


def test_a_check_that_did_not_come_out_as_it_should(notebook):
    [found] = rules.ran_well(notebook, "not attempted")
    assert found.endswith("the check of 05.f should say: not attempted")
    notebook.cells[39].outputs = [stdout("05.f: 2 of 3 right\n\n05.f: passed, said the note")]
    [found] = rules.finished(notebook)
    assert found.endswith("the check of 05.f should say: passed")


def test_too_long_too_short_too_large(notebook):
    few, many = copy.deepcopy(notebook), copy.deepcopy(notebook)
    del few.cells[:6]
    many.cells += [new_markdown_cell("word " * 50) for _ in range(61)]
    large = copy.deepcopy(notebook)
    large.cells[38].outputs = [stdout("9" * rules.MAX_BYTES)]
    assert rules.finished(few) == [
        "has 34 cells; they should be 40 to 100",
        "has 960 words; they should be at least 1,000",
    ]
    assert rules.finished(many) == ["has 101 cells; they should be 40 to 100"]
    assert "bytes; they should be at most 1,000,000" in rules.finished(large)[0]


def test_latex_whose_backslashes_were_taken_for_escapes(notebook):
    damaged = "\n$$\n\bigl( L_{\text{MLM}} \bigr)\n$$"  # not a raw string
    notebook.cells[3].source += damaged
    [found] = rules.finished(notebook)
    assert found.endswith(r"line 5 has '\x08'; was a backslash of LaTeX taken for an escape?")


def test_only_prose_counts_as_words():
    text = "Two **words**: $a + b$ [the norm's link](../a.md) `code` <b>x̂</b>\n$$\nx y\n$$\n```\ncode\n```"
    assert rules.count_words(text) == 6  # x̂ is one


def test_the_committed_notebook_is_what_its_source_makes(notebook, tmp_path):
    path = tmp_path / "05.ipynb"
    assert rules.committed(path, notebook) == ["is missing; run make course"]
    nbformat.write(notebook, path)
    assert rules.committed(path, notebook) == []

    changed = copy.deepcopy(notebook)
    changed.cells[38].source += "  # another"
    assert rules.committed(path, changed) == ["is not what its source makes; run make course"]

    changed = copy.deepcopy(notebook)
    for it, code in ((notebook, "x + 1"), (changed, "x + 2")):
        it.cells[38].source = "print(inspect.getsource(f))"
        it.cells[38].outputs = [stdout(f"def f(x): return {code}")]
    nbformat.write(notebook, path)
    name = notebook.cells[38].id
    assert rules.committed(path, notebook) == []
    assert rules.committed(path, changed) == [f"{name}: prints code that has changed since; run make course"]

    notebook.cells[38].execution_count = 7
    nbformat.write(notebook, path)
    assert rules.committed(path, notebook) == ["did not run in order, every cell once"]

    exercise = copy.deepcopy(notebook)
    for cell in exercise.cells[38:]:
        cell.outputs = []
    assert rules.committed(path, exercise) == ["has outputs; run make course"]


@pytest.mark.parametrize(
    ("link", "problem"),
    [
        ("other.md#the-code-x-y", ""),
        ("other.md#The-code", "links to other.md#The-code: no such heading"),
        ("there.ipynb#Where-does-it-come-from?", ""),
        (
            "there.ipynb#where-does-it-come-from",
            "links to there.ipynb#where-does-it-come-from: no such heading",
        ),
        ("#Here", ""),
        ("#There", "links to #There: no such heading"),
        ("folder", ""),
        ("../nowhere.py", "links to ../nowhere.py: no such file"),
        ("https://example.org", ""),
    ],
)
def test_links_lead_somewhere(tmp_path, link, problem):
    (tmp_path / "folder").mkdir()
    (tmp_path / "other.md").write_text(
        "# Other\n\n## The `code`: x/y\n".replace("x/y", "x y"), encoding="utf-8"
    )
    there = new_notebook(cells=[new_markdown_cell("# There\n\n## Where does it come from?")])
    nbformat.write(there, tmp_path / "there.ipynb")
    here = new_notebook(cells=[new_markdown_cell("# Here"), new_markdown_cell(f"A [link]({link}).")])
    nbformat.write(here, tmp_path / "here.ipynb")
    assert rules.dead_links(tmp_path / "here.ipynb") == ([problem] if problem else [])


def test_a_comment_in_code_is_no_heading(tmp_path):
    (tmp_path / "a.md").write_text("# A\n\n```sh\n# not one\n```\n[x](#not-one)", encoding="utf-8")
    assert rules.dead_links(tmp_path / "a.md") == ["links to #not-one: no such heading"]
