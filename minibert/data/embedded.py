"""The corpus that every machine already has: the English of the installed documentation.

It is read from the sources of Python's standard library (with the language reference that ``help()``
shows, in pydoc_data.topics) and of the packages that this one depends on: nothing is imported, and
nothing is stored here. It changes with their versions, so its size and hash are always shown.
"""

import ast
import importlib.metadata
import importlib.util
import os
import platform
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from minibert.data.docstrings import garbage_collection_paused, parse_source, read_docstrings
from minibert.data.prose import prose_sentences, sentence_key

# Our own dependencies and no others, so that equal versions give an equal corpus.
PACKAGES = ("matplotlib", "numpy", "safetensors", "scipy", "threadpoolctl", "tqdm")

MIN_SENTENCES = 4  # a shorter document is left out
_LEFT_OUT = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}


@dataclass(frozen=True)
class Module:
    """A Python source file: its package ("python": the standard library), its name in there, and its path."""

    package: str
    name: str
    path: Path


def embedded_sources() -> list[str]:
    """What the embedded corpus is made from, with versions."""
    versions = [f"{package} {importlib.metadata.version(package)}" for package in _installed()]
    return [f"Python {platform.python_version()}", *versions]


def embedded_documents() -> list[list[str]]:
    """The documents of the embedded corpus, each a list of sentences. This takes a few seconds.

    A module's docstrings are a document, and so is each topic of the language reference. A sentence that
    has occurred before, except for case, numbers and punctuation, is left out: documentation repeats
    itself, and what is held out must not occur word for word in the training text.
    """
    documents, seen = [], set()
    with garbage_collection_paused():
        for strings in _documentation():
            document = []
            for sentence in (sentence for string in strings for sentence in prose_sentences(string)):
                key = sentence_key(sentence)
                if key not in seen:
                    seen.add(key)
                    document.append(sentence)
            if len(document) >= MIN_SENTENCES:
                documents.append(document)
    return documents


def _installed() -> dict[str, Path]:
    """The packages that are installed, each with the file that importing it runs first.

    A folder that an uninstalled package has left behind has no such file.
    """
    specs = {package: importlib.util.find_spec(package) for package in PACKAGES}
    return {package: Path(spec.origin) for package, spec in specs.items() if spec and spec.origin}


def _documentation() -> Iterator[list[str]]:
    """The documentation strings of each document, in a fixed order."""
    yield from _topics(_library() / "pydoc_data" / "topics.py")
    for module in installed_modules():
        yield [docstring.text for docstring in read_docstrings(module.path)]


def installed_modules() -> Iterator[Module]:
    """The Python sources that are read, in a fixed order: the standard library, then the packages."""
    yield from _modules("python", _library())
    for package, origin in _installed().items():
        if origin.name == "__init__.py":
            yield from _modules(package, origin.parent)
        else:
            yield Module(package, origin.name, origin)


def _library() -> Path:
    return Path(sysconfig.get_path("stdlib"))


def _modules(package: str, folder: Path) -> list[Module]:
    """The Python sources below a folder, without tests and without packages installed beside it."""
    modules = []
    for place, folders, files in os.walk(folder):
        folders[:] = set(folders) - _LEFT_OUT  # those that remain are walked into
        for path in (Path(place, file) for file in files if file.endswith(".py")):
            modules.append(Module(package, path.relative_to(folder).as_posix(), path))
    return sorted(modules, key=lambda module: module.name)


def _topics(module: Path) -> Iterator[list[str]]:
    """The texts of ``topics = {"assert": "...", ...}``."""
    tree = parse_source(module)
    tables = [node for node in ast.walk(tree) if isinstance(node, ast.Dict)] if tree else []
    for value in (value for table in tables for value in table.values):
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield [value.value]
