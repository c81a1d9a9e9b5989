"""The exception that says what is wrong with the input, and what to do about it."""

import difflib
from collections.abc import Iterable
from numbers import Real
from typing import Any


class UserError(ValueError):
    """A user's mistake, with a one-line message: what was given, what was expected, what to do.

    The commands print the message without a traceback and exit with code 2. Any other exception is a
    bug of ours and keeps its traceback.
    """

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows instead of a traceback (IPython asks for it)."""
        return [f"UserError: {self}"]


def check_count(name: str, value: Any) -> None:
    """Raise UserError unless the value is a whole number of at least 1."""
    if not isinstance(value, Real) or not float(value).is_integer() or float(value) < 1:
        raise UserError(f"{name} must be a whole number of at least 1, got {value!r}")


def did_you_mean(name: str, known: Iterable[str], otherwise: str = "", cutoff: float = 0.6) -> str:
    """The end of a message about an unknown name: a question with the known name most similar to it.

    If no known name is at least ``cutoff`` similar (0 to 1), it is ``otherwise`` or, without one, a list of
    all known names.
    """
    known = list(known)
    nearest = difflib.get_close_matches(name, known, n=1, cutoff=cutoff)
    if nearest:
        return f"did you mean {nearest[0]!r}?"
    return otherwise or f"expected one of {', '.join(known)}"
