"""Docstrings, read from source code that is never run: what they document, and which parameters."""

import ast
import gc
import inspect
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TypeGuard


@dataclass(frozen=True)
class Docstring:
    """The documentation of a class or function, with its parameters, or of a module, whose name is empty."""

    text: str
    name: str  # within the module: Path.exists
    line: int  # where the object is defined
    parameters: tuple[str, ...] = ()


@contextmanager
def garbage_collection_paused() -> Iterator[None]:
    """Pause it while many files are read: syntax trees have no cycles, and searching for them takes time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def parse_source(path: Path) -> ast.Module | None:
    """The syntax tree of a file; None for the few files that are examples of bad syntax."""
    try:
        with warnings.catch_warnings(action="ignore"):  # about escapes like "\\d" in other people's strings
            return ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, OSError):
        return None


def read_docstrings(path: Path) -> list[Docstring]:
    """The docstrings of a module and of all it defines, in their order in the source."""
    tree = parse_source(path)
    return list(_docstrings_below(tree)) if tree else []


_DEFINITIONS = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_BLOCKS = ("body", "handlers", "orelse", "finalbody")  # where a statement holds others


def _docstrings_below(node: ast.AST, outer: str = "") -> Iterator[Docstring]:
    """``outer`` is the name of the class or function that the node is in."""
    if isinstance(node, ast.Module):
        yield Docstring(ast.get_docstring(node, clean=False) or "", "", 1)
    elif isinstance(node, _DEFINITIONS):
        outer = f"{outer}.{node.name}".lstrip(".")
        text = ast.get_docstring(node, clean=False) or ""
        yield Docstring(text, outer, node.lineno, _parameters(node))
    elif _adds_documentation(node):
        leaves = (leaf.value for leaf in ast.walk(node) if isinstance(leaf, ast.Constant))
        strings = [leaf for leaf in leaves if isinstance(leaf, str)]
        # Each may be documentation: then the string before it is the name. The names do no harm as texts.
        yield from (Docstring(text, name, node.lineno) for name, text in pairwise(["", *strings]))
    for block in _BLOCKS:
        for child in getattr(node, block, ()):
            yield from _docstrings_below(child, outer)


def _parameters(node: ast.AST) -> tuple[str, ...]:
    """The names of a function's parameters; of a class, those of its ``__init__``."""
    if isinstance(node, ast.ClassDef):
        node = next((child for child in node.body if getattr(child, "name", "") == "__init__"), node)
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return ()
    args = node.args
    every = [*args.posonlyargs, *args.args, args.vararg, *args.kwonlyargs, args.kwarg]
    return tuple(arg.arg for arg in every if arg and arg.arg not in ("self", "cls"))


def _adds_documentation(node: ast.AST) -> TypeGuard[ast.Expr]:
    """Whether this is a call ``add_newdoc("name", "documentation")``, for an object written in C."""
    call = node.value if isinstance(node, ast.Expr) else None
    return isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "add_newdoc"


# -- Sections in the style of NumPy -------------------------------------------------------------------


@dataclass(frozen=True)
class ParameterText:
    """What a docstring says about one or several parameters: their names, their type, the rest."""

    names: tuple[str, ...]
    type: str
    text: str


_UNDERLINE = re.compile(r"-{3,}")
_TERM = re.compile(r"(\*{0,2}\w+(?:, *\*{0,2}\w+)*)(?: *: *(.*))?")  # "x, y : array_like"


def documented_parameters(text: str) -> list[ParameterText]:
    """What is under "Parameters" and "Other Parameters" in a docstring.

    Source: the style guide of numpydoc: a heading is underlined; each entry is a line "x : type" and, below
    it and indented, what it means.
    """
    found: list[tuple[re.Match, list[str]]] = []
    lines = inspect.cleandoc(text).expandtabs().split("\n")
    inside = False  # whether in such a section
    below: list[str] | None = None  # the lines below the newest term
    for line, next_line in pairwise([*lines, ""]):
        if line and _UNDERLINE.fullmatch(next_line.strip()):
            inside, below = line.strip() in ("Parameters", "Other Parameters"), None
        elif not line or line[0] == " ":
            if below is not None:
                below.append(line)
        elif inside:
            term, below = _TERM.fullmatch(line), []
            if term:
                found.append((term, below))
    return [
        ParameterText(tuple(re.findall(r"\w+", term[1])), term[2] or "", "\n".join(below))
        for term, below in found
    ]
