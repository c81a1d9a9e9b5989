"""What must be true of every notebook. Each function returns the problems that it finds, a line each."""

import re
from itertools import pairwise
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_markdown_cell

from notebooks.make.convert import FIGURE, links, tags

MAX_BYTES = 1_000_000
CELLS = range(40, 101)
LEAST_WORDS = 1000
MACHINE_PATH = re.compile(r"(?<![\w.:/])/(?:home|Users|root|tmp|usr|opt|var|work|mnt|private)/|\b[A-Z]:\\")
SHOWS_CODE = re.compile(r"(?:print\(inspect\.getsource\([\w.]+\)\)\s*)+")
CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f]")  # all but the end of a line
CAPTION = re.compile(r"\*[^*\n]+\*(?:\n\n|$)")  # a paragraph in italics
ADDRESS = re.compile(r"\bat 0x[0-9a-f]{6,}")


def finished(notebook: NotebookNode) -> list[str]:
    """A complete notebook that was run is as it should be committed."""
    problems = [*readable(notebook), *ran_well(notebook, "passed"), *described(notebook)]
    if (size := len(nbformat.writes(notebook).encode())) > MAX_BYTES:
        problems.append(f"has {size:,} bytes; they should be at most {MAX_BYTES:,}")
    return problems


def readable(notebook: NotebookNode) -> list[str]:
    """It has as many cells as a reader takes in at a sitting, and enough words to explain them."""
    words = sum(count_words(cell.source) for cell in notebook.cells if cell.cell_type == "markdown")
    problems = []
    if (cells := len(notebook.cells)) not in CELLS:
        problems.append(f"has {cells} cells; they should be {CELLS.start} to {CELLS.stop - 1}")
    if words < LEAST_WORDS:
        problems.append(f"has {words} words; they should be at least {LEAST_WORDS:,}")
    for cell in notebook.cells:
        if found := CONTROL.search(cell.source):
            line = cell.source[: found.start()].count("\n") + 1
            problems.append(
                f"{cell.id}: line {line} has {found[0]!r}; was a backslash of LaTeX taken for an escape?"
            )
    return problems


def count_words(markdown: str) -> int:
    """Words of prose: code, formulas, addresses of links and HTML are none."""
    other = r"```.*?```|\$\$.*?\$\$|\$[^$\n]+\$|`[^`\n]+`|\]\([^)\s]+\)|<[^>]+>"
    prose = re.sub(other, " ", markdown, flags=re.DOTALL)
    return len(re.findall(r"[^\W\d_]+(?:[’'-][^\W\d_]+)*", prose))


def ran_well(notebook: NotebookNode, verdict: str) -> list[str]:
    """Every cell ran, in order, without an error or a warning; every ``check`` came to this verdict."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    problems = []
    if [cell.execution_count for cell in cells] != list(range(1, len(cells) + 1)):
        problems.append("did not run in order, every cell once")
    for cell in cells:
        text = printed(cell)
        if any(output.output_type == "error" for output in cell.outputs):
            problems.append(f"{cell.id}: raises an error")
        if any(output.get("name") == "stderr" for output in cell.outputs):
            problems.append(f"{cell.id}: prints warnings or other things to stderr: {text.strip()[:300]}")
        if found := MACHINE_PATH.search(text) or ADDRESS.search(text):
            problems.append(f"{cell.id}: shows a path or an address of this machine: {found[0]}")
        for exercise in re.findall(r"""^check\(["']([^"']+)""", cell.source, re.MULTILINE):
            if f"{exercise}: {verdict}" not in text.splitlines():
                problems.append(f"{cell.id}: the check of {exercise} should say: {verdict}")
    return problems


def described(notebook: NotebookNode) -> list[str]:
    """Every picture has a caption below it, and a description in words; the code that draws it is folded."""
    problems = []
    for cell, below in pairwise([*notebook.cells, new_markdown_cell()]):
        outputs = [output for output in cell.get("outputs", []) if "image/png" in output.get("data", {})]
        if outputs and FIGURE not in tags(cell):
            problems.append(f"{cell.id}: draws a picture, but is not tagged {FIGURE}")
        if outputs and not (below.cell_type == "markdown" and CAPTION.match(below.source)):
            problems.append(f"{cell.id}: its picture has no caption; begin the cell with # Caption: …")
        if not all(output.metadata.get("image/png", {}).get("alt") for output in outputs):
            problems.append(f"{cell.id}: its picture has no description; see minibert.plots.description")
    return problems


def printed(cell: NotebookNode) -> str:
    """The text of all outputs of a cell."""
    texts = (output.get("text") or output.get("data", {}).get("text/plain", "") for output in cell.outputs)
    return "\n".join(texts)


def committed(path: Path, made: NotebookNode) -> list[str]:
    """The notebook at ``path`` is what its source makes, and ran if this one did."""
    if not path.exists():
        return ["is missing; run make course"]
    there = nbformat.read(path, as_version=4)
    if inputs(there) != inputs(made):
        return ["is not what its source makes; run make course"]
    if not any(cell.get("outputs") for cell in made.cells):
        return ["has outputs; run make course"] if any(cell.get("outputs") for cell in there.cells) else []
    return [*stale(there, made), *finished(there)]


def stale(there: NotebookNode, made: NotebookNode) -> list[str]:
    """Cells that print code of the library, and nothing else, as it was before a change."""
    return [
        f"{new.id}: prints code that has changed since; run make course"
        for old, new in zip(there.cells, made.cells, strict=True)
        if SHOWS_CODE.fullmatch(new.source) and printed(old) != printed(new)
    ]


def inputs(notebook: NotebookNode) -> tuple:
    """What a notebook is apart from its outputs."""
    return notebook.metadata, [
        (cell.cell_type, cell.id, cell.source, cell.metadata) for cell in notebook.cells
    ]


def dead_links(path: Path) -> list[str]:
    """Links of a notebook or Markdown file to files and headings of the repository that are not there."""
    targets = dict.fromkeys(target for text in markdown_of(path) for target in links(text))
    return [f"links to {target}: no such {what}" for target in targets if (what := _missing(target, path))]


def _missing(target: str, path: Path) -> str:
    """What a link leads to in vain: a "file" or a "heading"; empty if it is there, or not ours."""
    if re.match(r"https?:|mailto:", target):
        return ""
    file, _, anchor = target.partition("#")
    goal = path.parent / file if file else path
    if not goal.exists():
        return "file"
    return "heading" if anchor and anchor not in anchors(goal) else ""


def anchors(path: Path) -> set[str]:
    """What links call the headings of a notebook or Markdown file."""
    without_code = (re.sub(r"```.*?```", "", text, flags=re.DOTALL) for text in markdown_of(path))
    headings = [
        heading.strip() for text in without_code for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    ]
    if path.suffix == ".ipynb":
        return {heading.replace(" ", "-") for heading in headings}
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def markdown_of(path: Path) -> list[str]:
    """The Markdown of a notebook, cell by cell, or of a Markdown file."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".ipynb":
        return [text]
    return [cell.source for cell in nbformat.reads(text, as_version=4).cells if cell.cell_type == "markdown"]
