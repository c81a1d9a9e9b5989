"""One source text becomes two notebooks: the complete one, and the one with the exercises still to do.

A source is Python in jupytext's percent format. Tags tell what is special about a cell:

    # %% tags=["solution"]    in the exercises, what its functions do, and what it assigns, is left to do
    # %% tags=["answer"]      the cell, of code or Markdown, is not in the exercises
    # %% tags=["yours"]       the cell is in the exercises only
    # %% [markdown] tags=["derivation"]    in the exercises, folded below the check that comes next
    # %% tags=["figure"]      its code only draws: JupyterLab shows the figure, and the code on a click

A figure's cell may begin with ``# Caption: …``, a sentence or two. They stand below the figure, in italics.

A line of Markdown that begins with ``@exercise``, such as ``@exercise 05.layer_norm_backward``, becomes what
the course knows about this exercise: its level, how long it takes, and what one needs for it.
"""

import ast
import re
from collections.abc import Iterator
from typing import Any

import jupytext
from nbformat import NotebookNode
from nbformat.v4 import new_markdown_cell

from minibert.course import EXERCISES

SOLUTION, ANSWER, YOURS, DERIVATION, FIGURE = "solution", "answer", "yours", "derivation", "figure"
CAPTION = re.compile(r"# Caption: (?P<text>.+(?:\n#   .+)*)\n")  # goes on in lines that are indented by three
METADATA = {
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {"file_extension": ".py", "mimetype": "text/x-python", "name": "python"},
}
# [text](target) and ![text](target); $…$ and `…` come first, so that nothing inside of them counts
LINK = re.compile(r"\$\$.*?\$\$|\$[^$\n]+\$|```.*?```|`[^`\n]+`|(?<=\])\((?P<target>[^()\s]+)\)", re.DOTALL)


def complete_notebook(source: str, name: str) -> NotebookNode:
    """The notebook with every solution, not yet run. ``name`` is that of the source, without .py."""
    notebook = jupytext.reads(source, fmt="py:percent")
    notebook.cells = [cell for cell in _caption(notebook.cells) if YOURS not in tags(cell)]
    notebook.cells[
        0
    ].source += f"\n\n*To do the exercises yourself, open [exercises/{name}](exercises/{name}.ipynb).*"
    return _tidy(notebook)


def exercise_notebook(source: str, name: str) -> NotebookNode:
    """The notebook without the solutions, for the folder below that of the complete one."""
    notebook = jupytext.reads(source, fmt="py:percent")
    notebook.cells = _fold([cell for cell in _caption(notebook.cells) if ANSWER not in tags(cell)])
    for cell in notebook.cells:
        if SOLUTION in tags(cell):
            cell.source = stub(cell.source)
        elif cell.cell_type == "markdown":
            cell.source = _from_the_folder_below(cell.source)
    notebook.cells[
        0
    ].source += f"\n\n*The exercises are yours to do. Their solutions are in [{name}](../{name}.ipynb).*"
    return _tidy(notebook)


def _caption(cells: list[NotebookNode]) -> list[NotebookNode]:
    """The same cells; a caption is taken out of its figure's code and put above the text that follows."""
    captioned: list[NotebookNode] = []
    waiting = ""
    for cell in [*cells, None]:
        if waiting:
            where = [tag for tag in tags(captioned[-1]) if tag != FIGURE]
            if cell and cell.cell_type == "markdown" and tags(cell) == where:
                cell = NotebookNode(cell, source=f"{waiting}\n\n{cell.source}")
            else:
                captioned.append(new_markdown_cell(waiting, metadata={"tags": where}))
            waiting = ""
        if cell and FIGURE in tags(cell) and (found := CAPTION.match(cell.source)):
            words = re.sub(r"\n# *", " ", found["text"])
            waiting, cell = f"*{words}*", NotebookNode(cell, source=cell.source[found.end() :])
        if cell:
            captioned.append(cell)
    return captioned


def _fold(cells: list[NotebookNode]) -> list[NotebookNode]:
    """The same cells; each derivation comes, folded, after the check that follows it.

    Raises ValueError for a derivation that is no Markdown, or has no check after it.
    """
    folded, waiting = [], []
    for cell in cells:
        if DERIVATION not in tags(cell):
            folded.append(cell)
        elif cell.cell_type == "markdown":
            text = f"<details>\n<summary>The derivation, folded</summary>\n\n{cell.source}\n\n</details>"
            waiting.append(NotebookNode(cell, source=text))
        else:
            raise ValueError(f"a cell tagged {DERIVATION} is Markdown; this is not:\n{cell.source}")
        if cell.source.startswith("check("):
            folded += waiting
            waiting = []
    if waiting:
        raise ValueError(f"no check comes after this derivation:\n{waiting[0].source}")
    return folded


def tags(cell: NotebookNode) -> list[str]:
    """The tags of a cell."""
    return cell.metadata.get("tags", [])


def links(markdown: str) -> list[str]:
    """The targets of all links and pictures in a text."""
    return [match["target"] for match in LINK.finditer(markdown) if match["target"]]


def stub(code: str) -> str:
    """The code of a solution without the solution.

    Functions and methods keep signature and docstring, and raise NotImplementedError; what is assigned at
    the top becomes ``...``. Raises ValueError where there is neither, or a function has no docstring to say
    what to do.
    """
    tree = ast.parse(code)
    gaps = [_gap(node) for node in _to_do(tree.body)]
    if not gaps:
        raise ValueError(
            f"a cell tagged {SOLUTION} defines a function or assigns a name; this does neither:\n{code}"
        )
    lines = code.splitlines()
    for start, end, instead in sorted(gaps, reverse=True):
        lines[start:end] = [instead]
    return "\n".join(lines)


def _to_do(body: list[ast.stmt]) -> Iterator[ast.FunctionDef | ast.Assign]:
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield from (method for method in node.body if isinstance(method, ast.FunctionDef))
        elif isinstance(node, ast.FunctionDef | ast.Assign):
            yield node


def _gap(node: ast.FunctionDef | ast.Assign) -> tuple[int, int, str]:
    """lines[start:end], which are the solution, and the line that stands there instead."""
    if isinstance(node, ast.Assign):
        names = " = ".join(ast.unparse(target) for target in node.targets)
        return node.lineno - 1, _last_line(node), f"{names} = ..."
    if ast.get_docstring(node) is None:
        raise ValueError(f"the solution {node.name} has no docstring to say what is to be done")
    docstring = node.body[0]
    return _last_line(docstring), _last_line(node), " " * docstring.col_offset + "raise NotImplementedError"


def _last_line(node: ast.stmt) -> int:
    return node.end_lineno or node.lineno  # the parser always tells the end


def _about(match: re.Match) -> str:
    if (name := match[1]) not in EXERCISES:
        raise ValueError(f"@exercise {name}: there is no such exercise")
    return EXERCISES[name].about()


def _from_the_folder_below(markdown: str) -> str:
    """The same text with its links as they are from one folder further down; exercises link to exercises."""

    def moved(match: re.Match) -> str:
        target = match["target"]
        if target is None or re.match(r"#|https?:|\d\d_\w+\.ipynb", target):
            return match[0]
        return f"(../{target})"

    return LINK.sub(moved, markdown)


def _tidy(notebook: NotebookNode) -> NotebookNode:
    """Let nothing stand in the notebook that differs from one conversion to the next."""
    notebook.metadata = NotebookNode(METADATA)
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    for number, cell in enumerate(notebook.cells, 1):
        cell.id = f"cell-{number}"
        if cell.cell_type == "markdown":
            cell.source = re.sub(r"^@exercise (\S+)$", _about, cell.source, flags=re.MULTILINE)
        metadata: dict[str, Any] = {"tags": tags(cell)} if tags(cell) else {}
        if FIGURE in tags(cell):
            metadata["jupyter"] = {"source_hidden": True}
        cell.metadata = NotebookNode(metadata)
    return notebook
