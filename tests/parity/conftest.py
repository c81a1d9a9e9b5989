"""The parity report: every comparison enters its largest difference, and the table stands at the end."""

import os
import secrets
from collections.abc import Iterator, Mapping

import numpy as np
import pytest
from parity.cases import difference, kind


class Parity:
    """Largest difference seen and allowed, by what was compared and where."""

    def __init__(self) -> None:
        self.seed = int(os.environ.get("PARITY_SEED") or secrets.randbelow(2**31))
        self.rows: dict[str, dict[str, tuple[float, float]]] = {}  # where: what: largest, bound
        self.notes: list[str] = []

    def compare(
        self, where: str, ours: Mapping[str, np.ndarray], theirs: Mapping[str, np.ndarray], bound: float
    ) -> None:
        """Hold each of our results to theirs: the same names, shapes, and numbers."""
        assert set(ours) == set(theirs)
        apart = {name: difference(name, ours[name], theirs[name]) for name in theirs}
        for name, number in apart.items():
            self.hold(where, kind(name), number, bound, check=False)
        beyond = {name: number for name, number in apart.items() if not number <= bound}
        assert not beyond, f"{where}, beyond {bound:.0e}: {beyond}"

    def hold(self, where: str, what: str, number: float, bound: float, check: bool = True) -> None:
        """Enter one number and hold it to its bound; without ``check`` the caller does that."""
        rows = self.rows.setdefault(where, {})
        largest, _ = rows.get(what, (0.0, bound))
        rows[what] = float(np.maximum(largest, number)), bound  # NaN if either is
        assert not check or number <= bound, f"{where}: {what} {number:.2e} beyond {bound:.0e}"

    def lines(self) -> Iterator[str]:
        """The table."""
        yield f"largest differences from transformers (PARITY_SEED={self.seed})"
        yield "relative, by the norm of each array, unless it says otherwise"
        for where, rows in self.rows.items():
            for what, (largest, bound) in rows.items():
                yield f"{where:38} {what:34} {largest:9.1e}   bound {bound:.0e}"
        yield from self.notes


@pytest.fixture(scope="session")
def parity(at_the_end: list[str]) -> Iterator[Parity]:
    """Where comparisons are held to their bounds."""
    report = Parity()
    yield report
    if report.rows:
        at_the_end.extend(report.lines())
