"""The one kind of exception that means: the input is at fault, and here is what to do about it."""

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """A person's mistake, told in one line: what came, what was expected, what to do.

    The commands print the message without a traceback and exit with code 2. Everything else that
    is raised is a defect of ours and keeps its traceback.
    """

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows instead of a traceback (IPython asks for it)."""
        return [f"UserError: {self}"]


def did_you_mean(name: str, known: Iterable[str], otherwise: str = "", cutoff: float = 0.6) -> str:
    """The end of a message about an unknown name: the known one that looks most like it.

    If none is alike, to the degree ``cutoff`` from 0 to 1, it is ``otherwise``, or else a list of them all.
    """
    known = list(known)
    nearest = difflib.get_close_matches(name, known, n=1, cutoff=cutoff)
    if nearest:
        return f"did you mean {nearest[0]!r}?"
    return otherwise or f"known are: {', '.join(known)}"
