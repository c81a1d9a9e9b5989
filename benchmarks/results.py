"""The file of all that was measured, such as ``cpu.json``, and the report made of it, ``….md``."""

import platform
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.measure import Spread
from minibert.devices import describe_processor, resolve_device
from minibert.files import folder_locked, read_json, write_json, write_text
from minibert.threads import usable_cores

PACKAGES = "numpy scipy numba torch transformers accelerate tokenizers sentence-transformers".split()
PACKAGES += "onnxruntime onednn-cpu-gomp mkl cupy-cuda12x cupy-cuda13x".split()


class Results:
    """What was measured so far, in ``folder``: part → case → its record.

    Every case is written, atomically, as soon as it has been measured, and replaces only the earlier
    record of the same case. ``machine`` ("cpu", "gpu") is the name of the file, for other programs than
    ``python -m benchmarks`` ("ablations") their own.
    """

    def __init__(self, folder: Path, machine: str = "cpu", program: str = "benchmarks"):
        self.folder, self.machine, self.program = folder, machine, program
        self.path = folder / f"{machine}.json"
        self.parts = self._read()

    def _read(self) -> dict[str, dict[str, dict[str, Any]]]:
        return read_json(self.path, "file of results") if self.path.exists() else {}

    @property
    def processor(self) -> str:
        """What the last record was measured on."""
        records = [record for cases in self.parts.values() for record in cases.values()]
        return max((record["origin"] for record in records), key=lambda o: o["when"])["machine"]["processor"]

    @property
    def days(self) -> str:
        """The first and the last day of measuring."""
        days = {record["origin"]["when"][:10] for cases in self.parts.values() for record in cases.values()}
        return " to ".join(sorted({min(days), max(days)}))

    def save(self, part: str, case: str, record: Mapping[str, Any], threads: int) -> None:
        """Add a record to those in the file, and with it when, where and by which command it came about."""
        origin = {
            "when": datetime.now().astimezone().isoformat(timespec="seconds"),
            "command": shlex.join(["python", "-m", self.program, *sys.argv[1:]]),
            "threads": threads,
            "machine": describe_machine(),
            "versions": versions(),
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        with folder_locked(self.folder):  # another process may have measured something meanwhile
            self.parts = self._read()
            self.parts.setdefault(part, {})[case] = {**record, "origin": origin}
            write_json(self.path, self.parts)

    def write_report(self, title: str, sections: Sequence[str]) -> Path:
        """Write the report."""
        path = self.path.with_suffix(".md")
        write_text(path, "\n\n".join([f"# {title}", *sections]) + "\n")
        return path


def describe_machine() -> dict[str, Any]:
    """The processor, its cores that we may use, and the system."""
    return {
        "processor": describe_processor(resolve_device("cpu")),
        "cores": usable_cores(),
        "system": f"{platform.system()} {platform.release().split('-')[0]}",
        "python": platform.python_version(),
    }


def folder_name(device: str = "cpu") -> str:
    """The processor of a device, as the name of a folder. Raises UserError if there is no such device."""
    told = describe_processor(resolve_device(device)).lower()
    return re.sub("[^a-z0-9]+", "-", told.replace("(r)", "").replace("(tm)", "")).strip("-")


def versions() -> dict[str, str]:
    """Of the packages that take part and are installed."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


# -- As text ----------------------------------------------------------------------------------------


def paragraph(text: str) -> str:
    """A text that was written in several lines, as one."""
    return " ".join(text.split())


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown; the first column on the left, numbers on the right."""
    rule = ["---", *["---:"] * (len(header) - 1)]
    return "\n".join("| " + " | ".join(row) + " |" for row in [header, rule, *rows])


def milliseconds(times: Spread) -> str:
    """Seconds as milliseconds: the median, and the quartiles in brackets."""
    digits = 0 if times.median >= 1 else 1
    low, median, high = (f"{1e3 * value:,.{digits}f}" for value in (times.low, times.median, times.high))
    return f"{median} ({low}–{high})"


def ratio(ratios: Spread) -> str:
    """The median, and the quartiles in brackets."""
    return f"{ratios.median:.2f} ({ratios.low:.2f}–{ratios.high:.2f})"


def share(shares: Spread) -> str:
    """The same in percent."""
    return f"{shares.median:.0%} ({shares.low:.0%}–{shares.high:.0%})"


def describe_origin(record: Mapping[str, Any]) -> str:
    """When, where and by which command a record came about, in one line."""
    origin = record["origin"]
    machine = origin["machine"]
    packages = ", ".join(f"{name} {version}" for name, version in origin["versions"].items())
    return (
        f"{origin['when']}, `{origin['command']}`, {_counted(origin['threads'], 'thread')} "
        f"of {_counted(machine['cores'], 'core')}, "
        f"{machine['processor']}, {machine['system']}, Python {machine['python']}, {packages}"
    )


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"


def describe_origins(cases: Mapping[str, Mapping[str, Any]]) -> str:
    """A line for every case, those measured alike (but for the time) in one."""
    lines: dict[str, list[str]] = {}
    for case, record in cases.items():
        when, what = describe_origin(record).split(", ", 1)
        lines.setdefault(what, []).append(f"{case} {when}")
    return "\n".join(f"<sub>Measured: {'; '.join(whens)}; {what}.</sub>\n" for what, whens in lines.items())
