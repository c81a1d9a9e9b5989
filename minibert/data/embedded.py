"""The corpus that every machine already has: the English of the installed documentation.

It is read from the sources of Python's standard library (with the language reference that ``help()``
shows, in pydoc_data.topics) and of the packages that this one depends on: nothing is imported, and
nothing is stored here. It changes with their versions, so its size and hash are always told.
"""

import ast
import gc
import importlib.metadata
import importlib.util
import platform
import re
import sysconfig
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from minibert.data.prose import prose_sentences

# Our own dependencies and no others, so that equal versions give an equal corpus.
PACKAGES = ("matplotlib", "numpy", "safetensors", "scipy", "threadpoolctl", "tqdm")

MIN_SENTENCES = 4  # a shorter document is left out
_LEFT_OUT = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}


def embedded_sources() -> list[str]:
    """What the embedded corpus is made from, with versions."""
    versions = [f"{package} {importlib.metadata.version(package)}" for package in _installed()]
    return [f"Python {platform.python_version()}", *versions]


def embedded_documents() -> list[list[str]]:
    """The documents of the embedded corpus, each a list of sentences; a few seconds' work.

    A module's docstrings are a document, and so is each topic of the language reference. A sentence
    that has stood before, but for case, numbers and punctuation, is left out: documentation repeats
    itself, and what is held out must not stand word for word in training.
    """
    documents, seen = [], set()
    with _garbage_collection_paused():
        for strings in _documentation():
            document = []
            for sentence in (sentence for string in strings for sentence in prose_sentences(string)):
                key = " ".join(re.findall(r"[^\W\d_]+", sentence.lower()))
                if key not in seen:
                    seen.add(key)
                    document.append(sentence)
            if len(document) >= MIN_SENTENCES:
                documents.append(document)
    return documents


@contextmanager
def _garbage_collection_paused() -> Iterator[None]:
    """Syntax trees have no cycles; searching them for some takes a third of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _installed() -> list[str]:
    return [package for package in PACKAGES if importlib.util.find_spec(package)]


def _documentation() -> Iterator[list[str]]:
    """The documentation strings of each document, in a fixed order."""
    library = Path(sysconfig.get_path("stdlib"))
    yield from _topics(library / "pydoc_data" / "topics.py")
    for module in _modules(library):
        yield _docstrings(module)
    for package in _installed():
        origin = Path(importlib.util.find_spec(package).origin)
        for module in _modules(origin.parent) if origin.name == "__init__.py" else [origin]:
            yield _docstrings(module)


def _modules(folder: Path) -> list[Path]:
    """The Python sources below a folder, without tests and without packages installed beside it."""
    files = (file for file in folder.rglob("*.py") if not _LEFT_OUT & set(file.relative_to(folder).parts))
    return sorted(files, key=lambda file: file.relative_to(folder).as_posix())


def _parse(module: Path) -> ast.Module | None:
    """The module's syntax tree; None for the few files that are examples of bad syntax."""
    try:
        with warnings.catch_warnings(action="ignore"):  # about escapes like "\\d" in other people's strings
            return ast.parse(module.read_bytes())
    except (SyntaxError, ValueError, OSError):
        return None


def _topics(module: Path) -> Iterator[list[str]]:
    """The texts of ``topics = {"assert": "...", ...}``."""
    tree = _parse(module)
    tables = [node for node in ast.walk(tree) if isinstance(node, ast.Dict)] if tree else []
    for value in (value for table in tables for value in table.values):
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield [value.value]


def _docstrings(module: Path) -> list[str]:
    """The docstrings of a module and of all it defines, in their order in the source."""
    tree = _parse(module)
    return list(_docstrings_below(tree)) if tree else []


def _docstrings_below(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        yield ast.get_docstring(node, clean=False) or ""
    elif _adds_documentation(node):
        leaves = (leaf.value for leaf in ast.walk(node) if isinstance(leaf, ast.Constant))
        yield from (leaf for leaf in leaves if isinstance(leaf, str))
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt | ast.ExceptHandler):
            yield from _docstrings_below(child)


def _adds_documentation(node: ast.AST) -> bool:
    """Whether this is a call ``add_newdoc("name", "documentation")``, for an object written in C."""
    call = node.value if isinstance(node, ast.Expr) else None
    return isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "add_newdoc"
