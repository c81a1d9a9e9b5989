"""Your BERT: what you wrote in the exercises, kept in files, in the place of the library's functions.

    keep("05.layer_norm_backward", my_layer_norm_backward)    writes my_bert/05_layer_norm_backward.py
    mine = kept()                                             notebook 20 puts the pieces together
    mine.layer_norm_backward(dout, cache)                     yours, or the library's if you have none
    print(mine)                                               says which are yours
    with mine.in_the_library(): …                             the library computes with them

A kept file is a module like any other: it can be read, run and changed. What does not pass its ``check`` is
neither kept nor used.
"""

import importlib.util
import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import ModuleType
from typing import Any

from minibert.course.assembly import in_the_library
from minibert.course.exercise import EXERCISES
from minibert.course.judge import passes
from minibert.course.module_of import module_of
from minibert.errors import UserError
from minibert.files import write_text

FOLDER = "my_bert"
PIECES = {
    name.partition(".")[2]: name
    for name in (
        *("02.linear", "02.linear_backward"),
        *("03.cross_entropy", "03.cross_entropy_backward"),
        *("04.gelu", "04.gelu_backward"),
        *("05.layer_norm", "05.layer_norm_backward"),
        *("06.embedding", "06.embedding_backward"),
        *("08.attention", "08.attention_backward", "09.split_heads", "09.merge_heads"),
        *("13.learning_rate", "13.adamw_step"),
    )
}


def keep(name: str, function: Callable, folder: str | Path = FOLDER) -> None:
    """Keep what you wrote for the exercise ``name`` as a file of its own, if it passes its check.

    The file has the function, the functions of the notebook that it calls, and the imports that it needs. A
    function of the same exercise that was kept before is replaced.

    Raises UserError for an exercise that is no piece of BERT, and for a function that needs more of its
    notebook than a file can have.
    """
    if name not in PIECES.values():
        raise UserError(f"{name!r} is no piece of your BERT; the pieces are {', '.join(PIECES.values())}")
    if not passes(name, function):
        print(f"{name} does not pass its check yet, so it is not kept.")
        return
    path = Path(folder) / f"{name.replace('.', '_')}.py"
    write_text(path, module_of(function))
    there = sum(_file(piece, folder).exists() for piece in PIECES.values())
    print(f"Kept in {path}. You have {there} of the {len(PIECES)} pieces of your BERT.")


def kept(folder: str | Path = FOLDER) -> "Mine":
    """The pieces that are kept in ``folder`` and pass their checks; the library's for all others.

    Raises UserError for a file that Python cannot import, or in which the function is not.
    """
    kept = {
        piece: _import(_file(name, folder)) for piece, name in PIECES.items() if _file(name, folder).exists()
    }
    return Mine(
        {piece: function for piece, function in kept.items() if passes(PIECES[piece], function)}, set(kept)
    )


class Mine:
    """The pieces of a BERT, each an attribute: those given, and the library's for those that are not.

    ``yours`` are functions by the name of the piece. ``kept`` names all pieces that were looked at: those
    that are not among yours have failed their checks.
    """

    def __init__(self, yours: dict[str, Callable], kept: set[str] | None = None):
        self.yours, self.kept = yours, kept or set(yours)

    def __getattr__(self, piece: str) -> Callable:
        if piece in self.yours:
            return self.yours[piece]
        if piece in PIECES:
            return EXERCISES[PIECES[piece]].reference
        raise AttributeError(f"there is no piece {piece!r}; there are {', '.join(PIECES)}")

    def in_the_library(self) -> AbstractContextManager[None]:
        """Within this block the library computes with these pieces, wherever it can (see ``assembly``)."""
        return in_the_library(self)

    def __str__(self) -> str:
        """A line for each piece that can be yours: whose it is."""
        lines = [f"{len(self.yours)} of the {len(PIECES)} pieces are yours.", ""]
        for piece, exercise in PIECES.items():
            whose = "yours" if piece in self.yours else "the library's"
            if piece in self.kept - set(self.yours):
                whose += ": yours fails its check"
            lines.append(f"{exercise:<28} {whose}")
        return "\n".join(lines)


def _file(name: str, folder: str | Path) -> Path:
    return Path(folder) / f"{name.replace('.', '_')}.py"


def _import(path: Path) -> Any:
    """The function of a kept file: the last one in it."""
    spec = importlib.util.spec_from_file_location(f"{FOLDER}.{path.stem}", path)
    assert spec is not None and spec.loader is not None  # a file that ends in .py has both
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise UserError(
            f"{path} cannot be imported: {type(error).__name__}: {error}; mend it or remove it"
        ) from error
    functions = [value for value in vars(module).values() if _defined_in(value, module)]
    if not functions:
        raise UserError(f"{path} defines no function; keep the exercise again, or remove the file")
    return functions[-1]


def _defined_in(value: Any, module: ModuleType) -> bool:
    return inspect.isfunction(value) and value.__module__ == module.__name__
