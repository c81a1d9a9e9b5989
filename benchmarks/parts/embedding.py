"""Vectors of real sentences with MiniLM: ours, and sentence-transformers."""

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import Race, Spread, paired_ratio, take_turns
from benchmarks.minilm import encoder_folder
from benchmarks.parts.common import (
    DOCUMENTATION,
    OURS,
    PRODUCTS,
    add_data,
    against_ours,
    case_name,
    check_agreement,
    describe_texts,
    missing_lines,
    outputs,
    pinned,
    rows_beside_ours,
    sentence_files,
)
from benchmarks.results import paragraph, ratio, table
from benchmarks.texts import sentence_pieces
from minibert.products import BFLOAT16, is_available

COUNT = 768  # sentences of a turn
THEIRS = "sentence-transformers"
AIM = 2.5  # their time / ours
ROUNDED = "minibert, bfloat16"  # whose factors of products are rounded
WAYS = PRODUCTS | {ROUNDED: BFLOAT16}


def add_options(parser: argparse.ArgumentParser) -> None:
    """The sentences."""
    add_data(parser)


def measure(options: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    """One case. Every round has sentences of its own, so that no tokenizer can remember them."""
    source, file = next(sentence_files(options, ["STS-B", "SST-2", DOCUMENTATION]))
    count = 64 if options.quick else COUNT
    pieces = sentence_pieces(file, options.rounds + 1, count)  # the last is for warming up
    with encoder_folder() as (folder, weights), Race(options.threads, pinned(options)) as race:
        given = {"folder": folder, "pieces": pieces}
        for name, products in WAYS.items():
            if is_available(products):
                race.enter(name, "ours_from_text:embedding", products=products, **given)
        race.enter(THEIRS, "sentence_transformers:embedding", **given)
        found = outputs(race)
        differences = {name: distance(vectors, found[OURS]) for name, vectors in found.items()}
        for name, difference in differences.items():
            both = {OURS: differences[OURS], name: difference}
            check_agreement(both, tolerance=1e-3 if name == ROUNDED else 1e-5)
        race.warm_up("embed", calls=1)
        seconds = take_turns(race.turns("embed"), rounds=options.rounds, seconds=0.0)
        lengths = race.workers[OURS].call("lengths")
    about = {"weights": weights, "count": count, "differences": differences, "missing": race.missing}
    yield case_name(source, options), about | lengths | {"seconds": seconds}


def distance(vectors: np.ndarray, others: np.ndarray) -> float:
    """The largest 1 − cosine of a row of ``vectors`` (N, H) and the same row of ``others``."""
    a, b = (x.astype(np.float64) for x in (vectors, others))
    cosines = (a * b).sum(axis=1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    return float(1 - cosines.min())


# -- Report -----------------------------------------------------------------------------------------


def section(cases: Mapping[str, Mapping[str, Any]], folder: Path) -> str:
    """A table per case."""
    parts = [
        paragraph("""
            Texts in, vectors out: ours as `minibert embed` makes them, against
            `SentenceTransformer.encode`, both with their defaults (theirs in batches of 32, ours of at
            least 32; texts of similar length together; pooling and maximum length as the model's folder
            says). With bfloat16, the factors of our products are rounded to it. Each round has sentences
            of its own. The last column is the largest 1 − cosine between a vector and ours.""")
    ]
    for case, record in cases.items():
        rows = [[*row, f"{record['differences'][row[0]]:.0e}"] for row in rows_beside_ours(record["seconds"])]
        parts += [
            describe_texts(case, record),
            table(
                [
                    "",
                    f"ms per {record['count']} sentences (quartiles)",
                    "times ours (quartiles)",
                    "differs by",
                ],
                rows,
            ),
            missing_lines(record),
        ]
    return "\n\n".join(filter(None, parts))


def aims(cases: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str, str]]:
    """Against ours by default, and with other products."""
    return [
        (
            f"sentence vectors, {case}: {THEIRS} / {ours}",
            f"{AIM:.1f}" if ours == OURS else "",
            ratio(paired_ratio(record["seconds"][THEIRS], record["seconds"][ours])),
        )
        for case, record in cases.items()
        for ours in WAYS
        if {ours, THEIRS} <= record["seconds"].keys()
    ]


def compared(cases: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, Spread]]:
    """What every processor is compared by: their time over ours."""
    found = {case: against_ours(record["seconds"], [THEIRS]) for case, record in cases.items()}
    return [(f"sentence vectors, {case}: {THEIRS} / ours", each[-1]) for case, each in found.items() if each]
