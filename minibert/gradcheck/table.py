"""The table that ``minibert gradcheck`` prints."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from minibert.gradcheck.adjoint import check_adjoint
from minibert.gradcheck.case import Case
from minibert.gradcheck.compare import CENTRAL_DIFFERENCES, COMPLEX_STEP, Row, check

HEADING = f"{'what':<40} {'parameter':<54} central  complex  verdict"

# What one line shows: the comparison by central differences, if there is one, and by the complex step.
Comparison = tuple[Row | None, Row]


def report(cases: Sequence[Case], on_host: Sequence[Case] | None = None) -> bool:
    """Check the cases with all methods, printing a table; return whether every gradient is right.

    For cases on a GPU, ``on_host`` can be the same cases on the CPU, where the numeric gradients are then
    found.
    """
    return print_table(_comparisons(cases, on_host or cases))


def _comparisons(cases: Sequence[Case], on_host: Sequence[Case]) -> Iterator[Comparison]:
    for case, host in zip(cases, on_host, strict=True):
        yield from zip(check(case, CENTRAL_DIFFERENCES, host), check(case, COMPLEX_STEP, host), strict=True)
        yield None, check_adjoint(case, host)


def print_table(comparisons: Iterable[Comparison]) -> bool:
    """Print a line for each comparison as soon as it is done; return whether everything is right."""
    central: list[Row] = []
    exact: list[Row] = []
    wrong = 0
    for rough, sharp in comparisons:
        if not exact:  # a mistake that is found on the way to the first line leaves nothing on the screen
            print(HEADING)
        rows = [row for row in (rough, sharp) if row is not None]
        print(_line(rows), flush=True)
        wrong += not all(row.ok for row in rows)
        exact.append(sharp)
        if rough is not None:
            central.append(rough)
    print(f"{len(exact)} comparisons, {wrong} wrong")
    for name, rows in (("central differences", central), ("complex step", exact)):
        relative = [row for row in rows if not row.note]
        if relative:
            worst = np.max([row.error for row in relative])  # NaN if one is
            print(f"{name}: largest relative error {worst:.1e} (bound {relative[0].bound:.0e})")
    return wrong == 0


def _line(rows: Sequence[Row]) -> str:
    errors = "  ".join(f"{row.error:7.1e}" for row in rows).rjust(16)
    verdict = "ok" if all(row.ok for row in rows) else "WRONG"
    note = next((row.note for row in rows if row.note), "")
    return f"{rows[0].what:<40} {rows[0].parameter:<54} {errors}  {verdict:<7}  {note}".rstrip()
