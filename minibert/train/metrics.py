"""What is counted and measured in training, and the file for it."""

import json
import math
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from minibert.arrays import Array, to_numpy
from minibert.devices import Device
from minibert.errors import UserError
from minibert.files import read_text, write_text
from minibert.ranks import ALONE, Ranks

Batch = Mapping[str, np.ndarray]


def count_targets(model: Any, batches: Iterable[Batch], ranks: Ranks = ALONE) -> dict[str, Any]:
    """The denominators with which the losses of several batches add up to the loss of all of them.

    They are the numbers of predictions in all batches together, by the names of the ``…_denominator``
    arguments of the model's forward pass, on all ranks. They are counted on the host, before anything is
    computed.
    """
    own: dict[str, Any] = {}
    for batch in batches:
        add_up(own, model.count_targets(batch))
    totals: dict[str, Any] = {}
    for counts in ranks.gather({name: np.asarray(count).tolist() for name, count in own.items()}):
        # Starts and ends of answers are counted separately, so their count is a list of two.
        add_up(totals, {name: np.array(n) if isinstance(n, list) else n for name, n in counts.items()})
    return totals


def add_up(totals: dict[str, Any], terms: Mapping[str, Any]) -> None:
    """Add each term that is not None to the total of its name."""
    for name, term in terms.items():
        if term is not None:
            totals[name] = totals[name] + term if name in totals else term


def as_float(scalar: Array) -> float:
    """The value of a 0-d array. The host waits here for the device."""
    return float(to_numpy(scalar))


def peak_memory(device: Device, of_graphs: int = 0) -> int | None:
    """The most memory this process has held on the device so far, in bytes; None where it is not counted.

    On the CPU this is the resident set, which includes the preparation of the corpus. On a GPU it is what
    CuPy's pool has taken from the driver, plus ``of_graphs``, the graphs' own pools
    (``Repetition.pool_bytes``).
    """
    if device.name.startswith("cuda"):
        return device.xp.get_default_memory_pool().total_bytes() + of_graphs
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # bytes there, KiB elsewhere


def without_nan(record: Mapping[str, Any]) -> dict[str, Any]:
    """The record as JSON can hold it: Python's numbers for NumPy's, None for NaN and for infinities."""
    plain = {
        name: value.item() if isinstance(value, np.generic | np.ndarray) and value.size == 1 else value
        for name, value in record.items()
    }
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in plain.items()
    }


class MetricsLog:
    """The file ``metrics.jsonl``: one JSON object per line, each with the ``step`` it was measured after."""

    def __init__(self, path: Path):
        self.path = path

    def truncate(self, step: int) -> None:
        """Drop what was measured after ``step``, and an incomplete last line."""
        kept = [record for record in read_metrics(self.path) if record["step"] <= step]
        write_text(self.path, "".join(map(_line, kept)))

    def write(self, record: Mapping[str, Any]) -> None:
        """Add a line. Raises UserError if the file cannot be written, for instance on a full disk."""
        try:
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(_line(without_nan(record)))
        except OSError as error:
            raise UserError(
                f"{self.path}: cannot be written ({error.strerror}); free some space, then use --resume"
            ) from error


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of a ``metrics.jsonl``, except an incomplete last one; none if there is no file.

    Raises UserError, naming the line, if another line is damaged.
    """
    if not path.exists():
        return []
    *lines, _ = read_text(path, "file of metrics").split("\n")
    return [_read_line(line, f"{path}: line {number}") for number, line in enumerate(lines, start=1)]


def _read_line(line: str, place: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        record = None
    if not isinstance(record, dict) or type(record.get("step")) is not int:
        raise UserError(f"{place} is damaged; delete that line, which loses only this measurement")
    return record


def _line(record: Mapping[str, Any]) -> str:
    return json.dumps(record) + "\n"
