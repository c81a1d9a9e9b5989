"""Formulas become MathML while the site is built: no script, no picture, nothing from a network.

KaTeX reads the formulas. It is a program in JavaScript that sphinxcontrib-katex brings along, and runs in V8,
which mini-racer brings along. Browsers lay MathML out themselves, in a font with the tables for it:
STIX Two Math, which ziamath brings along.
"""

from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from docutils import nodes
from fontTools import subset
from py_mini_racer import MiniRacer

from website.mathml import kept_together, mended

FONT = "stix-two-math.ttf"
# Latin, Greek, marks, arrows, operators, and the italic, bold and script letters of mathematics.
CHARACTERS = "U+20-17F,U+2B0-36F,U+370-3FF,U+2000-23FF,U+25A0-27FF,U+2900-2AFF,U+1D400-1D7FF"


@cache
def _katex() -> MiniRacer:
    context = MiniRacer()
    context.eval((files("sphinxcontrib") / "katex.min.js").read_text(encoding="utf-8"))
    return context


@cache
def mathml(formula: str, display: bool) -> str:
    """A formula in LaTeX as MathML. Raises an error of KaTeX's for one that it cannot read."""
    options = {"displayMode": display, "output": "mathml", "throwOnError": True, "strict": False}
    return mended(_katex().call("katex.renderToString", formula, options))


def write_font(folder: Path) -> None:
    """Write the part of the font that formulas need."""
    source = str(files("ziamath") / "fonts" / "STIXTwoMath-Regular.ttf")
    options = [
        f"--unicodes={CHARACTERS}",
        "--layout-features=*",
        "--no-hinting",
        f"--output-file={folder / FONT}",
    ]
    subset.main([source, *options])


def _inline(translator: Any, node: nodes.math) -> None:
    translator.body.append(mathml(node.astext(), False))
    raise nodes.SkipNode


def _block(translator: Any, node: nodes.math_block) -> None:
    translator.body.append(f'<div class="math-block">{mathml(node.astext(), True)}</div>')
    raise nodes.SkipNode


def _keep_together(app: Any, pagename: str, templatename: str, context: dict[str, Any], doctree: Any) -> None:
    if "body" in context:
        context["body"] = kept_together(context["body"])


def setup(app: Any) -> dict[str, bool]:
    """Make this a renderer of formulas, for html_math_renderer."""
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    app.connect("html-page-context", _keep_together)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
