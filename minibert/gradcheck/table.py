"""The table that ``minibert gradcheck`` prints."""

from collections.abc import Iterable, Sequence

from minibert.gradcheck.adjoint import check_adjoint
from minibert.gradcheck.case import Case
from minibert.gradcheck.compare import CENTRAL_DIFFERENCES, COMPLEX_STEP, Row, check

HEADING = f"{'what':<40} {'parameter':<54} {'central':<7}  {'complex':<7}  verdict"


def report(cases: Iterable[Case], on_host: Iterable[Case] | None = None) -> bool:
    """Check the cases by all methods, printing a table row by row; return whether every gradient is right.

    For cases on a GPU, ``on_host`` can be the same cases on the CPU, where the numeric gradients are then
    found.
    """
    print(HEADING)
    count = wrong = 0
    central: list[Row] = []
    exact: list[Row] = []
    cases = list(cases)
    for case, host in zip(cases, on_host or cases, strict=True):
        pairs = zip(check(case, CENTRAL_DIFFERENCES, host), check(case, COMPLEX_STEP, host), strict=True)
        for row, sharper in pairs:
            print(_line([row, sharper]), flush=True)
            count, wrong = count + 1, wrong + (not (row.ok and sharper.ok))
            central.append(row)
            exact.append(sharper)
        adjoint = check_adjoint(case, host)
        print(_line([adjoint]), flush=True)
        wrong += not adjoint.ok
        exact.append(adjoint)
    print(
        f"{count} gradients and {len(cases)} adjoint tests, {wrong} wrong; largest relative error "
        f"{_worst(central)} by central differences, {_worst(exact)} by the complex step"
    )
    return wrong == 0


def _line(rows: Sequence[Row]) -> str:
    """One line of the table: the errors of central differences, if there are any, and of the complex step."""
    errors = "  ".join(f"{row.error:7.1e}" for row in rows).rjust(16)
    verdict = "ok" if all(row.ok for row in rows) else "WRONG"
    note = next((row.note for row in rows if row.note), "")
    return f"{rows[0].what:<40} {rows[0].parameter:<54} {errors}  {verdict}  {note}".rstrip()


def _worst(rows: Sequence[Row]) -> str:
    """The largest error of the rows where it is relative, with its bound."""
    relative = [row for row in rows if not row.note]
    return f"{max((row.error for row in relative), default=0.0):.1e} (bound {rows[0].bound:.0e})"
