"""Learning a vocabulary of 8,192 on one thread: ours, and Hugging Face's WordPiece trainer in Rust."""

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.measure import Race, paired_ratio, spread, take_turns
from benchmarks.parts.common import OURS, RUST, add_text, find_text, missing_lines
from benchmarks.results import paragraph, ratio, table

VOCAB_SIZE = 8192
MOST_ROUNDS = 5  # each takes seconds
THREADS = 1  # whatever --threads says


def add_options(parser: argparse.ArgumentParser) -> None:
    """The text."""
    add_text(parser)


def measure(options: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    """One case."""
    text = find_text(options)
    if text is None:
        return
    arguments = {"text": str(text), "vocab_size": VOCAB_SIZE, "limit": 200 if options.quick else None}
    with Race(THREADS) as race:
        race.enter(OURS, "ours:learning", **arguments)
        race.enter(RUST, "rust:learning", **arguments)
        seconds = take_turns(race.turns("learn"), rounds=min(options.rounds, MOST_ROUNDS), seconds=0.0)
        tokens = {name: set(learned) for name, learned in race.ask("tokens").items()}
    record = {
        "text": text.name,
        "seconds": seconds,
        "tokens": {name: len(learned) for name, learned in tokens.items()},
        "in_all": len(set.intersection(*tokens.values())),
        "missing": race.missing,
    }
    yield "vocabulary", record


def section(cases: Mapping[str, Mapping[str, Any]], folder: Path) -> str:
    """A table."""
    (record,) = cases.values()
    seconds = record["seconds"]
    rows = [
        [
            name,
            f"{spread(times).median:.2f}",
            ratio(paired_ratio(times, seconds[OURS])),
            f"{record['tokens'][name]:,}",
        ]
        for name, times in seconds.items()
    ]
    parts = [
        paragraph(f"""
            `{record["text"]}`, from memory; at most 1,000 characters in the alphabet, no pair that
            occurs only once. {record["in_all"]:,} tokens were learned by all."""),
        table(["", "seconds", "times ours (quartiles)", "tokens"], rows),
        missing_lines(record),
    ]
    return "\n\n".join(filter(None, parts))


def aims(cases: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str, str]]:
    """Ours against Rust, the other way round than elsewhere."""
    (record,) = cases.values()
    seconds = record["seconds"]
    if RUST not in seconds:
        return []
    return [
        (
            "learning a vocabulary: ours / Rust",
            "at most 3.0",
            ratio(paired_ratio(seconds[OURS], seconds[RUST])),
        )
    ]
