"""Bad examples in a person's files: refused, naming file and line, or left out and counted."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from minibert.errors import UserError


class Place(NamedTuple):
    """A line of a file, counted from 1."""

    path: str | Path
    line: int

    def __str__(self) -> str:
        return f"{self.path}: line {self.line}"

    def below(self, lines: int) -> "Place":
        """The place this many lines further down."""
        return Place(self.path, self.line + lines)


class Problem(Exception):
    """Why an example cannot be used; ``line`` counts from 0 within an example of several lines."""

    def __init__(self, message: str, line: int = 0) -> None:
        super().__init__(message)
        self.line = line


class Faults:
    """Refuses the first bad example or, with ``skip_bad``, leaves bad ones out and counts them.

    One object may serve all files of a run. ``skipped`` holds a line for every example left out, ``notes``
    one for everything else that is worth reporting (an answer not found in its passage, for instance).
    """

    def __init__(self, skip_bad: bool = False) -> None:
        self.skip_bad = skip_bad
        self.skipped: list[str] = []
        self.notes: list[str] = []

    @contextmanager
    def leave_out(self, place: Place | str) -> Iterator[None]:
        """Wrap the making of one example. A `Problem` with it refuses the file, or leaves the example out.

        Raises UserError, naming the place, unless bad examples are skipped.
        """
        try:
            yield
        except Problem as problem:
            where = place.below(problem.line) if isinstance(place, Place) else place
            if not self.skip_bad:
                raise UserError(
                    f"{where}: {problem}; correct it, or leave bad rows out (--skip-bad)"
                ) from None
            self.skipped.append(f"{where}: {problem}")

    def note(self, place: Place | str | Path, remark: str) -> None:
        """Remember a remark."""
        self.notes.append(f"{place}: {remark}")

    def nothing_left(self, source: str | Path, what: str, advice: str = "give another file") -> UserError:
        """The error for a file (or another source) without any usable example, whatever the reason."""
        skipped = [told for told in self.skipped if told.startswith(f"{source}: ")]
        reason = f" but {len(skipped):,} bad row(s), the first: {skipped[0]}" if skipped else ""
        return UserError(f"{source}: there is no {what} to read{reason}; {advice}")

    def describe(self) -> list[str]:
        """What to tell the person: how many examples were left out, and how many remarks there are.

        Each is one line, which quotes the first of them.
        """
        return [
            f"{len(found):,} {what}, the first: {found[0]}"
            for found, what in ((self.skipped, "bad row(s) left out"), (self.notes, "remark(s) on the data"))
            if found
        ]
