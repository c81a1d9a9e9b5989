"""``python -m benchmarks PART …``: measure, and write the report. See ``--help``."""

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import NoReturn

from benchmarks.measure import ROOT, ContenderError
from benchmarks.results import (
    Results,
    describe_origins,
    folder_name,
    paragraph,
    ratio,
    table,
    usable_cores,
)
from minibert.errors import UserError
from minibert.files import write_text

PARTS = "train_step bfloat16 memory inference padding fine_tuning embedding tokenizer vocabulary".split()
PARTS += "scaling profile held_out gpu_step".split()
HELD_TO_AVX2 = "train_step inference padding fine_tuning embedding".split()  # that --avx2 is for
RESULTS = ROOT / "benchmarks" / "results"


class Parser(argparse.ArgumentParser):
    """argparse, but a wrong flag is a UserError like every other mistake."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see {self.prog} --help")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line; return the exit code."""
    parts = {name: importlib.import_module(f"benchmarks.parts.{name}") for name in PARTS}
    try:
        options = parse(parts, arguments)
        if options.part not in ("all", "report"):
            parts = {options.part: parts[options.part]}
        if options.avx2 and options.part != "report":
            parts = {name: part for name, part in parts.items() if name in HELD_TO_AVX2}
            if not parts:
                raise UserError(f"{options.part} cannot be held to AVX2; only {', '.join(HELD_TO_AVX2)} can")
        if options.part == "report":
            write_reports(options.results)
            return 0
        for name, part in parts.items():
            machine = machine_of(part)
            if not (options.part == "all" and machine == "gpu"):
                measure(name, part, Results(folder_of(options, machine), machine), options)
        write_reports(options.results)
    except (UserError, ContenderError) as error:
        print(f"benchmarks: error: {error}", file=sys.stderr)
        return 2 if isinstance(error, UserError) else 1
    except KeyboardInterrupt:
        print("benchmarks: interrupted; what was measured before is kept", file=sys.stderr)
        return 130
    return 0


def parse(parts: dict[str, ModuleType], arguments: Sequence[str] | None) -> argparse.Namespace:
    """The flags. Those of all parts go with ``all``."""
    common = Parser(add_help=False)
    common.add_argument("--quick", action="store_true", help="see that it works: tiny and inaccurate")
    common.add_argument("--rounds", type=positive, help="rounds of turns (default: 11; 3 with --quick)")
    common.add_argument("--seconds", type=_seconds, help="length of a turn (default: 1; 0.1 with --quick)")
    common.add_argument(
        "--threads", type=positive, default=usable_cores(), help="of each contender (default: cores)"
    )
    common.add_argument(
        "--avx2", action="store_true", help="hold everybody to AVX2 (default: each chooses by itself)"
    )
    common.add_argument(
        "--results", type=Path, metavar="FOLDER", help="where to write (default: benchmarks/results)"
    )
    parser = Parser(prog="python -m benchmarks", description="minibert against what else there is")
    commands = parser.add_subparsers(dest="part", required=True, metavar="PART")
    all_of_them = commands.add_parser(
        "all", parents=[common], help="all of these that need no GPU", conflict_handler="resolve"
    )
    for name, part in parts.items():
        text = part.__doc__.strip()
        part.add_options(commands.add_parser(name, parents=[common], help=text, description=text))
        part.add_options(all_of_them)
    commands.add_parser("report", parents=[common], help="write the report anew from what was measured")
    options = parser.parse_args(arguments)
    options.rounds = options.rounds or (3 if options.quick else 11)
    options.seconds = options.seconds or (0.1 if options.quick else 1.0)
    options.results = options.results or (RESULTS / "quick" if options.quick else RESULTS)
    return options


def folder_of(options: argparse.Namespace, machine: str) -> Path:
    """Where the results of this machine are: every processor has a folder of its own, and every GPU."""
    return options.results / folder_name(options.device if machine == "gpu" else "cpu")


def positive(text: str) -> int:
    """What a flag for a number of at least 1 gives."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected a number of at least 1, got {text}")
    return number


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds <= 3600:
        raise argparse.ArgumentTypeError(f"expected seconds above 0, got {text}")
    return seconds


def measure(name: str, part: ModuleType, results: Results, options: argparse.Namespace) -> None:
    """Measure one part, and keep each of its cases as soon as it is there."""
    print(f"== {part.__doc__.strip()}", flush=True)
    for case, record in part.measure(options):
        results.save(name, case, record, getattr(part, "THREADS", options.threads))
        for what, least, measured in part.aims({case: record}):
            print(f"{what}: {measured}" + (f"   (aim: {least})" if least else ""), flush=True)


def machine_of(part: ModuleType) -> str:
    """What it is measured on: "cpu" or "gpu"."""
    return getattr(part, "MACHINE", "cpu")


def write_reports(folder: Path) -> None:
    """The pages of all processors and GPUs that were ever measured, and the page that compares processors."""
    for path in (*sorted(folder.glob("*/cpu.json")), *sorted(folder.glob("*/gpu.json"))):
        print(f"written: {write_report(Results(path.parent, path.stem))}")
    if comparison := compare_processors([Results(path.parent) for path in sorted(folder.glob("*/cpu.json"))]):
        write_text(folder / "processors.md", comparison)
        print(f"written: {folder / 'processors.md'}")


def compare_processors(measured: Sequence[Results]) -> str:
    """A page with a column for each processor, and what was measured there; "" if there is none."""
    parts = {name: importlib.import_module(f"benchmarks.parts.{name}") for name in PARTS}
    columns, days = {}, []
    for results in measured:
        rows = [
            row
            for name, cases in results.parts.items()
            if hasattr(parts.get(name), "compared")
            for row in parts[name].compared(cases)
        ]
        columns[f"[{results.processor}]({results.folder.name}/cpu.md)"] = dict(rows)
        days.append(results.days)
    if not columns:
        return ""
    whats = list(dict.fromkeys(what for column in columns.values() for what in column))
    rows = [
        [what, *(ratio(column[what]) if what in column else "" for column in columns.values())]
        for what in whats
    ]
    about = paragraph("""
        Someone else's time divided by ours, so that a figure above 1 means that minibert is faster: medians
        of paired rounds, with quartiles in brackets. "Ours" is with the products of NumPy, oneDNN or MKL,
        whichever is the fastest of those that were measured. A column may be of an older state of minibert:
        the last row has the days. The heading of each column links to a page with everything that was
        measured on that processor, on how many cores, when and how.""")
    rows.append(["measured", *days])
    return "\n\n".join(["# Processors side by side", about, table(["", *columns], rows)]) + "\n"


def write_report(results: Results) -> Path:
    """The report of everything that was ever measured on this machine: the aims, then the parts."""
    parts = {name: importlib.import_module(f"benchmarks.parts.{name}") for name in PARTS}
    measured = {name: cases for name, cases in results.parts.items() if name in parts}
    aims = [row for name, cases in measured.items() for row in parts[name].aims(cases)]
    sections = [
        paragraph(f"""
            Medians, with quartiles in brackets. Contenders run in processes of their own and take turns
            of about a second (or of --seconds); a ratio is taken between times of the same round. In the
            tables of the parts, "times ours" divides by the first row, ours with NumPy's products. The
            table below divides by the fastest of ours, and takes the contender that is the fastest beside
            it. All raw times are in `{results.path.name}`. `make bench` measures everything anew that needs
            no GPU, `python -m benchmarks gpu_step` what needs one."""),
        table(["what", "aim: at least", "measured"], aims),
    ]
    for name, cases in measured.items():
        part = parts[name]
        title = f"## {part.__doc__.strip().removesuffix('.')}"
        sections += [title, part.section(cases, results.folder), describe_origins(cases)]
    return results.write_report(f"Measured on a {results.machine.upper()}", sections)


if __name__ == "__main__":
    sys.exit(main())
