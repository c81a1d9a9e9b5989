"""What ``check`` found, and how it reads."""

import textwrap
from dataclasses import dataclass
from enum import StrEnum

WIDTH = 100  # of printed lines


class Verdict(StrEnum):
    """What can be said of one output."""

    PASS = "pass"
    FAIL = "fail"
    NOT_ATTEMPTED = "not attempted"
    RAISES = "raises"
    STOPPED = "stopped"
    WRONG_COUNT = "wrong number of outputs"
    WRONG_FORM = "wrong form"
    WRONG_TYPE = "wrong type"
    WRONG_SHAPE = "wrong shape"
    WRONG_DTYPE = "wrong dtype"
    IMPRECISE = "imprecise"
    NOT_A_NUMBER = "not a number"
    OVERWRITES = "overwrites an input"
    IS_VIEW = "view of an input"


@dataclass(frozen=True)
class Row:
    """The verdict on one output, and how far it is off.

    ``largest_error`` is absolute and, like ``relative_error`` (see ``gradcheck``), from the library's
    function; ``independent_error`` is relative, from the numeric gradient or whatever else speaks for itself.
    None where there is none.
    """

    name: str
    verdict: Verdict
    shape: str = ""
    dtype: str = ""
    largest_error: float | None = None
    relative_error: float | None = None
    independent_error: float | None = None
    note: str = ""

    def cells(self) -> list[str]:
        """What stands in the table."""
        errors = self.largest_error, self.relative_error, self.independent_error
        return [
            *(self.name, self.shape, self.dtype),
            *("" if error is None else f"{error:.1e}" for error in errors),
            self.verdict,
        ]


HEADING = ["output", "shape", "dtype", "largest error", "relative", "independent", "verdict"]
RIGHT_ALIGNED = range(3, 6)


@dataclass(frozen=True, repr=False)
class Result:
    """What ``check`` found: a row for each output, the recognised mistakes, and what to tell the learner."""

    exercise: str
    rows: list[Row]
    mistakes: list[str]
    hints: list[str]
    independent: str = "numeric"  # what the column of independent errors is headed with

    @property
    def passed(self) -> bool:
        """Whether every output is right."""
        return all(row.verdict is Verdict.PASS for row in self.rows)

    def __repr__(self) -> str:
        return f"<{self._summary()}>"

    def _ipython_display_(self) -> None:
        """Nothing at the end of a cell: ``check`` has printed it."""

    def _summary(self) -> str:
        if self.passed:
            return f"{self.exercise}: passed"
        if all(row.verdict is Verdict.NOT_ATTEMPTED for row in self.rows):
            return f"{self.exercise}: not attempted"
        right = sum(row.verdict is Verdict.PASS for row in self.rows)
        return f"{self.exercise}: {right} of {len(self.rows)} right"

    def __str__(self) -> str:
        notes = dict.fromkeys(row.note for row in self.rows if row.note)  # each once
        parts = [self._summary()], self._table(), map(_wrapped, notes), map(_wrapped, self.hints)
        return "\n\n".join(text for part in parts if (text := "\n".join(part)))

    def _table(self) -> list[str]:
        lines = [HEADING, *(row.cells() for row in self.rows)]
        columns = []
        for i, column in enumerate(zip(*lines, strict=True)):
            if any(column[1:]):  # a column without an entry is left out
                title = f"from {self.independent}" if column[0] == "independent" else column[0]
                align = str.rjust if i in RIGHT_ALIGNED else str.ljust
                width = max(map(len, (title, *column[1:])))
                columns.append([align(cell, width) for cell in (title, *column[1:])])
        return ["  ".join(line).rstrip() for line in zip(*columns, strict=True)]


def _wrapped(text: str) -> str:
    return textwrap.fill(text, WIDTH, subsequent_indent="  ")
