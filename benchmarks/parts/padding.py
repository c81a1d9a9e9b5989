"""Texts of real lengths: computed with padding, sorted by length, and without any padding."""

import argparse
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.measure import Race, Turn, paired_ratio, spread, take_turns
from benchmarks.parts.common import (
    DOCUMENTATION,
    MINILM,
    OURS,
    SENTENCES,
    add_data,
    case_name,
    describe_texts,
    pinned,
    pretrained_folder,
    sentence_files,
)
from benchmarks.results import milliseconds, paragraph, ratio, table
from minibert import BertForSequenceClassification

CONFIG = replace(MINILM, vocab_size=8192)
BATCH_SIZE = 32
WAYS = {  # how the batches are made, and whether they are computed with padding
    "with padding": ("random", True),
    "sorted by length": ("sorted", True),
    "without padding": ("random", False),
    "sorted, without padding": ("sorted", False),
}
TASKS = {"encode": "inference", "learn": "fine-tuning"}
PRETRAIN = ["--preset", "mini"]  # all else as `minibert pretrain` does it by default
PRETRAIN_WAYS = {"with padding": True, "without padding": False}


def add_options(parser: argparse.ArgumentParser) -> None:
    """The sentences."""
    add_data(parser)


def measure(options: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    """A case per source of texts and task."""
    count = BATCH_SIZE * (2 if options.quick else 8)
    for source, file in sentence_files(options, [*SENTENCES, DOCUMENTATION]):
        with (
            pretrained_folder(CONFIG, BertForSequenceClassification) as folder,
            Race(options.threads, pinned(options)) as race,
        ):
            given = {"file": file, "count": count, "batch_size": BATCH_SIZE, "ways": WAYS}
            race.enter(OURS, "ours:real_lengths", folder=folder, **given)
            for task, what in TASKS.items():
                yield case_name(f"{source}, {what}", options), _compare(race, task, WAYS, options)
    with tempfile.TemporaryDirectory() as prepared, Race(options.threads, pinned(options)) as race:
        given = {"flags": PRETRAIN, "prepared": prepared, "count": count // BATCH_SIZE, "ways": PRETRAIN_WAYS}
        race.enter(OURS, "ours:pretraining_lengths", **given)
        name = case_name(f"{DOCUMENTATION}, pre-training", options)
        yield name, _compare(race, "learn", PRETRAIN_WAYS, options)


def _compare(race: Race, task: str, ways: Iterable[str], options: argparse.Namespace) -> dict[str, Any]:
    """The record of a case: the texts, and the seconds for all of them in each of the ways."""
    worker = race.workers[OURS]
    turns = [Turn(way, worker, f"{task}, {way}") for way in ways]
    for turn in turns:
        worker.time(turn.function, 0.0, -1)  # uncounted: loops are compiled, memory is fetched
    return worker.call("lengths") | {"seconds": take_turns(turns, rounds=options.rounds, seconds=0.0)}


def section(cases: Mapping[str, Mapping[str, Any]], folder: Path) -> str:
    """A table per case."""
    parts = [
        paragraph(f"""
            A classifier of MiniLM's size ({CONFIG.num_hidden_layers} layers of {CONFIG.hidden_size}) with
            random weights, batches of {BATCH_SIZE}, each padded to its longest text. In fine-tuning, a
            batch is a forward pass with dropout and a backward pass; sorted batches are here to compare,
            since training would not see the same texts together in every epoch. In pre-training, the
            batches and the model are those of `minibert pretrain {" ".join(PRETRAIN)}`: pairs of segments
            of 64 tokens, most of which are full.""")
    ]
    for case, record in cases.items():
        seconds = record["seconds"]
        rows = [
            [
                way,
                f"{record['computed'][way]:,}",
                milliseconds(spread(times)),
                ratio(paired_ratio(seconds["with padding"], times)),
            ]
            for way, times in seconds.items()
        ]
        parts += [
            describe_texts(case, record),
            table(["", "tokens computed", "ms for all (quartiles)", "times as fast (quartiles)"], rows),
        ]
    return "\n\n".join(parts)


def aims(cases: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str, str]]:
    """Against padding, and against sorting by length."""
    return [
        (
            f"{case}: {other} / without padding",
            "",
            ratio(paired_ratio(record["seconds"][other], record["seconds"]["without padding"])),
        )
        for case, record in cases.items()
        for other in ("with padding", "sorted by length")
        if other in record["seconds"]
    ]
