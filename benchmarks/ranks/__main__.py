"""``python -m benchmarks.ranks CASE …``: several ranks on this machine. Writes ``results/ranks.md``.

The cases: ``cores`` (the sum on 2 ranks, and 2 ranks beside 2 threads), ``links`` (4 ranks over slow links;
needs root and iproute2), ``memory`` (with and without a sharded optimiser), ``report`` (only write the page).
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.measure import ROOT, environment_of_worker, paired_ratio, spread
from benchmarks.ranks.links import ONLY_TCP, command, slow_links
from benchmarks.results import Results, describe_origins, milliseconds, paragraph, ratio, table
from minibert.errors import UserError

MODULE = "benchmarks.ranks.steps"
TOGETHER = ("exact", "exact, after", "all-reduce", "sharded")
# of 4 ranks: the model, Mbit/s, the delay of a packet in ms
LINKS = (
    ("tiny", 1000.0, 0.0),
    ("tiny", 100.0, 0.0),
    ("mini", 100.0, 0.0),
    ("tiny", 100.0, 5.0),
    ("mini", 100.0, 5.0),
)
LINK_RANKS = 4
Record = Mapping[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ranks", description=__doc__)
    parser.add_argument("cases", nargs="+", choices=(*CASES, "report"), metavar="CASE")
    parser.add_argument("--rounds", type=int, default=9, help="turns of each way (default: 9)")
    parser.add_argument("--busy", metavar="WORDS", help="what else the machine did, for the page")
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results")
    options = parser.parse_args(arguments)
    results = Results(options.results, "ranks", "benchmarks.ranks")
    try:
        for case in options.cases:
            for name, record in CASES[case](options) if case in CASES else ():
                print(f"measured: {name}", flush=True)
                told = {"load": os.getloadavg()[0], "busy": options.busy}
                results.save(case, name, {**record, **told}, threads=1)
        print(f"written: {report(results)}")
    except UserError as error:
        print(f"benchmarks.ranks: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("benchmarks.ranks: interrupted; what was measured before is kept", file=sys.stderr)
        return 130
    return 0


def measured(prefixes: list[list[str]], variables: Mapping[str, str], **flags: Any) -> dict[str, Any]:
    """What ``steps.py`` prints, run on one rank per prefix."""
    words = []
    for name, value in flags.items():
        words += [f"--{name.replace('_', '-')}", *map(str, value if isinstance(value, tuple) else (value,))]
    done = subprocess.run(
        command(prefixes, MODULE, *words),
        env=environment_of_worker(1) | dict(variables),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    if done.returncode:
        raise UserError(f"the ranks ended with code {done.returncode}")
    return json.loads(done.stdout)


def cores(options: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    """Two ranks with one thread each."""
    for preset, rounds in (("tiny", options.rounds), ("mini", max(3, options.rounds // 2))):
        ways = ("alone", *TOGETHER, "one process")
        yield preset, measured([[], []], {}, preset=preset, ways=ways, rounds=rounds)


def links(options: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    """Four ranks, each in a network namespace, over links of so many Mbit/s."""
    for preset, megabits, delay in LINKS:
        with slow_links(LINK_RANKS, megabits, delay) as prefixes:
            found = measured(
                prefixes, ONLY_TCP, preset=preset, ways=("alone", *TOGETHER), rounds=options.rounds, steps=1
            )
        name = f"{preset}, {megabits:,.0f} Mbit/s" + (f", {delay:g} ms" if delay else "")
        yield name, {**found, "ranks": LINK_RANKS, "megabits": megabits}


def memory(options: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    """What each rank holds, in one way after the other."""
    for ranks, name in ((1, "alone"), (2, "exact"), (2, "sharded"), (4, "exact"), (4, "sharded")):
        found = measured([[]] * ranks, {}, preset="small", ways=(name,), rounds=2, batch_size=2, length=32)
        yield f"{name} on {ranks}", {**found, "ranks": ranks, "way": name}


CASES = {"cores": cores, "links": links, "memory": memory}


# -- The page ------------------------------------------------------------------------------------------


def report(results: Results) -> Path:
    """Write the page from everything that was measured."""
    sections = [
        paragraph("""
            Each rank has one thread and one micro-batch of 16 × 128 tokens per step, V 8,192. Medians, with
            quartiles in brackets; the ways take turns, and a ratio is taken between times of one round.
            The ways: *alone* is a step without any sum; *exact* adds up in the order of one process, and
            sends during the backward pass; *exact, after* sends the same after it; *all-reduce* is MPI's
            own sum; *sharded* is as exact, with the optimiser shared out; *one process* computes all
            micro-batches with two threads.""")
    ]
    for case, (title, section) in SECTIONS.items():
        if case in results.parts:
            cases = results.parts[case]
            sections += [f"## {title}", section(cases), circumstances(cases), describe_origins(cases)]
    return results.write_report("Several ranks on one machine", sections)


def circumstances(cases: Mapping[str, Record]) -> str:
    """What else the machine did."""
    loads = [record["load"] for record in cases.values()]
    busy = sorted({record["busy"] or "nothing else is known to have run" for record in cases.values()})
    return f"<sub>Meanwhile: {'; '.join(busy)} (load average {min(loads):.1f} to {max(loads):.1f}).</sub>\n"


def section_of_cores(cases: Mapping[str, Record]) -> str:
    """The ways on two ranks, and one process with two threads."""
    parts = []
    for name, record in cases.items():
        seconds = record["seconds"]
        rows = [
            [way, milliseconds(spread(times)), ratio(paired_ratio(times, seconds["alone"]))]
            for way, times in seconds.items()
        ]
        exact = ratio(paired_ratio(seconds["exact"], seconds["all-reduce"]))
        scaling = ratio(paired_ratio(seconds["one process"], seconds["exact"]))
        parts += [
            f"### {name}: a gradient of {_mebibytes(record['gradient_bytes'])} MiB",
            table(["2 ranks × 1 thread", "ms per step", "÷ alone"], rows),
            paragraph(f"""
                The exact sum's step takes {exact} times that of MPI's all-reduce. One process with two
                threads takes {scaling} times as long for the same two micro-batches as two ranks with one
                each."""),
        ]
    return "\n\n".join(parts)


def section_of_links(cases: Mapping[str, Record]) -> str:
    """The ways on four ranks, and the bytes that they send."""
    parts = [
        paragraph("""
            Four ranks, each in a network namespace of its own ([how](../ranks/links.py)). All of them
            compute on the cores of one machine, which are fewer. Sent: what each rank's interface counted
            per step, with TCP's headers and acknowledgements, and what theory says.""")
    ]
    for name, record in cases.items():
        seconds, theory = record["seconds"], theory_bytes(record)
        rows = []
        for way, times in seconds.items():
            sent = spread([value for rank in record["sent"][way] for value in rank]).median
            link = 8 * theory[way] / (1e6 * record["megabits"])
            rows.append(
                [
                    way,
                    milliseconds(spread(times)),
                    milliseconds(spread([a - b for a, b in zip(times, seconds["alone"], strict=True)])),
                    f"{1e3 * link:,.0f}",
                    f"{_mebibytes(sent)}",
                    f"{_mebibytes(theory[way])}",
                ]
            )
        hidden = spread([a - b for a, b in zip(seconds["exact, after"], seconds["exact"], strict=True)])
        header = ["", "ms per step", "longer than alone", "the link, ms", "sent, MiB", "theory, MiB"]
        parts += [
            f"### {name}",
            table(header, rows),
            f"Sending during the backward pass saves {milliseconds(hidden)} ms of the exact sum.",
        ]
    return "\n\n".join(parts)


def theory_bytes(record: Record) -> dict[str, float]:
    """What each way sends per rank and step: a ring's bytes, and of the exact sums the embeddings' twice."""
    share = (record["ranks"] - 1) / record["ranks"]
    ring = 2 * share * record["gradient_bytes"]
    exact = ring + share * record["words_bytes"]
    return {"alone": 0.0, "exact": exact, "exact, after": exact, "all-reduce": ring, "sharded": exact}


def section_of_memory(cases: Mapping[str, Record]) -> str:
    """The peak of each way, above what the imports take."""
    rows = []
    for name, record in cases.items():
        low, high = min(record["memory"]), max(record["memory"])
        share = record["ranks"] if record["way"] == "sharded" else 1
        moments = 2 * record["gradient_bytes"] / share
        rows.append([name, _mebibytes(low), _mebibytes(high), _mebibytes(moments)])
    header = ["", "the rank with least, MiB", "with most, MiB", "of which Adam's means, MiB"]
    told = paragraph("""
        Resident memory of small in steps of 2 × 32 tokens, at its peak and above what it was after the
        imports. On several ranks the exact sum needs memory, too: what comes from the others is as large as
        the gradient.""")
    return f"{told}\n\n{table(header, rows)}"


def _mebibytes(count: float) -> str:
    return f"{count / 2**20:,.1f}"


SECTIONS = {
    "cores": ("Two ranks on two cores", section_of_cores),
    "links": ("Over slow links", section_of_links),
    "memory": ("The optimiser's memory", section_of_memory),
}


if __name__ == "__main__":
    sys.exit(main())
