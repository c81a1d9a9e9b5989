"""A notebook as a page of Markdown: its outputs as they are in the file, its plotting code folded."""

import base64
import html
import re
from collections.abc import Container

from nbformat import NotebookNode

from notebooks.make.convert import DERIVATION, FIGURE, SOLUTION, tags
from website.links import rewrite, site

# What stands on a folded cell, by its tag. A derivation is open; the reader can close it.
FOLDED = {FIGURE: "The code of this figure", SOLUTION: "The solution"}
# A formula within a line, after what else may hold a $.
FORMULA = re.compile(r"```.*?```|`[^`]+`|\$\$.*?\$\$|(?<!\\)\$(?P<formula>[^$]+)\$", re.DOTALL)
SUMMARY = re.compile(r"<summary>([^\n]*\$[^\n]*)</summary>")
EXERCISE = re.compile(r"^> \*\*Exercise\*\* `([\w.]+)`.*$", re.MULTILINE)
FRAME = re.compile(r'<iframe title="([^"]*)" srcdoc="([^"]*)"')


def to_markdown(
    notebook: NotebookNode, page: str, pages: Container[str]
) -> tuple[str, dict[str, bytes], set[str]]:
    """The page; the files that it shows, by their names beside it; the files of the checkout it links to.

    ``page`` is the path of the notebook in the checkout. In notebooks/exercises nothing is folded but the
    code of figures, and each exercise leads to its solution; elsewhere it leads to the exercise.
    """
    name = page.rpartition("/")[2].removesuffix(".ipynb")
    twin = page.replace("/exercises/", "/") if "/exercises/" in page else f"notebooks/exercises/{name}.ipynb"
    parts: list[str] = []
    shown: dict[str, bytes] = {}
    linked: set[str] = set()
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            text, files = rewrite(_formulas(cell.source), page, pages)
            linked |= files
            parts.append(_derivation(_exercises(text, page, twin), tags(cell)))
        elif cell.cell_type == "code":
            parts.append(_code(cell, is_exercise=twin != page and "/exercises/" in page))
            for output in cell.get("outputs", []):
                text, files_shown = _output(output, f"{name}-{cell.id}-{len(shown)}")
                parts.append(text)
                shown |= files_shown
    return "\n\n".join(part for part in parts if part) + "\n", shown, linked


def _formulas(markdown: str) -> str:
    """The same formulas where Markdown sees them as such, as MathJax does in a notebook.

    A + at the beginning of a line would begin a list, and what stands in a line of HTML is not read at all.
    """

    def joined(match: re.Match) -> str:
        return match[0].replace("\n", " ") if match["formula"] else match[0]

    return SUMMARY.sub("<summary>\n\n\\1\n\n</summary>", FORMULA.sub(joined, markdown))


def _exercises(markdown: str, page: str, twin: str) -> str:
    """Each exercise can be linked to, and has a link to the same one in the other notebook."""
    what = "its solution" if "/exercises/" in page else "open the exercise"

    def led(match: re.Match) -> str:
        anchor = f"exercise-{match[1]}"
        goal = site(f"{twin.removesuffix('.ipynb')}.html", page)
        return f'> <a id="{anchor}"></a>{match[0][2:]} · [{what}]({goal}#{anchor})'

    return EXERCISE.sub(led, markdown)


def _derivation(markdown: str, tagged: list[str]) -> str:
    """The text, in what the reader can close if it is a derivation, and not yet folded."""
    if DERIVATION not in tagged or markdown.startswith("<details>"):
        return markdown
    return f'<details class="derivation" open>\n<summary>The derivation</summary>\n\n{markdown}\n\n</details>'


def _code(cell: NotebookNode, is_exercise: bool) -> str:
    """The code of a cell, folded if its tag says so."""
    block = _fence(cell.source, "python", "cell-input")
    tagged = [tag for tag in tags(cell) if tag in FOLDED]
    if not tagged or (is_exercise and tagged == [SOLUTION]):
        return block
    return f'<details class="folded">\n<summary>{FOLDED[tagged[0]]}</summary>\n\n{block}\n\n</details>'


def _fence(text: str, language: str, kind: str) -> str:
    """A block of code, of a class of its own, in more backticks than it contains."""
    ticks = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{{.{kind}}}\n{ticks}{language}\n{text.rstrip()}\n{ticks}"


def _output(output: NotebookNode, name: str) -> tuple[str, dict[str, bytes]]:
    """An output as Markdown, and the file that it shows, if there is one."""
    if output.output_type == "stream":
        return _fence(output.text, "text", "cell-output"), {}
    if "image/png" in output.data:
        about = output.metadata.get("image/png", {})
        alt, width = html.escape(about.get("alt", "")), about.get("width", 600)
        file = f"images/{name}.png"
        picture = f'<img class="figure" id="{name}" src="{file}" alt="{alt}" width="{width}" loading="lazy">'
        return picture, {file: base64.b64decode(output.data["image/png"])}
    if "text/html" in output.data:
        if not (frame := FRAME.search(output.data["text/html"])):
            raise ValueError(f"{name}: an output in HTML that is no frame")
        file = f"images/{name}.html"
        shown = f'<iframe class="shown" src="{file}" title="{frame[1]}" loading="lazy"></iframe>'
        return shown, {file: html.unescape(frame[2]).encode()}
    return _fence(output.data["text/plain"], "text", "cell-output"), {}
