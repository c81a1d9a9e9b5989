"""Fine-tuning MiniLM on real sentences, tokenizer and batches included: ours, and Hugging Face's Trainer."""

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.measure import Race, Spread, paired_ratio, take_turns
from benchmarks.minilm import classifier_folder, encoder_folder
from benchmarks.parts.common import (
    DOCUMENTATION,
    OURS,
    add_data,
    case_name,
    check_agreement,
    describe_texts,
    missing_lines,
    pinned,
    rows_beside_ours,
    sentence_files,
)
from benchmarks.results import paragraph, ratio, table
from benchmarks.texts import sentence_pieces

BATCHES, BATCH_SIZE, MAX_LENGTH = 16, 32, 128
TRAINERS = {"Trainer": "random", "Trainer, group_by_length": "group_by_length"}  # how they choose batches
TOLERANCE = 1e-5  # of the loss, relative; with a new head it is about log(2), whatever the encoder does
AIM = 1.5  # Trainer's time / ours


def add_options(parser: argparse.ArgumentParser) -> None:
    """The sentences."""
    add_data(parser)


def measure(options: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    """One case. Every round has sentences of its own, so that no tokenizer can remember them."""
    source, file = next(sentence_files(options, ["SST-2", DOCUMENTATION]))
    count = BATCH_SIZE * (2 if options.quick else BATCHES)
    shape = {"batch_size": BATCH_SIZE, "max_length": MAX_LENGTH}
    given = shape | {"pieces": sentence_pieces(file, options.rounds + 1, count)}  # the last is for warming up
    with (
        encoder_folder() as (encoder, weights),
        classifier_folder(encoder) as folder,
        Race(options.threads, pinned(options)) as race,
    ):
        race.enter(OURS, "ours_from_text:fine_tuning", folder=folder, **given)
        for name, sampling in TRAINERS.items():
            race.enter(name, "trainer:fine_tuning", folder=folder, sampling=sampling, **given)
        losses = race.ask("loss")
        check_agreement(losses, tolerance=TOLERANCE * losses[OURS])
        race.warm_up("train", calls=1)
        seconds = take_turns(race.turns("train"), rounds=options.rounds, seconds=0.0)
        ours = race.workers[OURS]
        about = {"weights": weights, "products": ours.call("products")} | ours.call("lengths")
    about |= {"batch": shape, "count": count, "losses": losses, "missing": race.missing}
    yield case_name(source, options), about | {"seconds": seconds}


# -- Report -----------------------------------------------------------------------------------------


def section(cases: Mapping[str, Mapping[str, Any]], folder: Path) -> str:
    """A table per case."""
    parts = [
        paragraph("""
            A turn is one pass over some sentences, from the texts to the last update: tokenizer, batches,
            forward and backward pass with dropout 0.1, gradient clipping, AdamW. Ours is `minibert
            finetune` with its defaults, `Trainer` has its own for a CPU, with random batches or with
            batches of similar length (`group_by_length`). Nobody evaluates or writes checkpoints. All
            start from the same weights and, without dropout, have the same loss. Each round has sentences
            of its own. Given so few of them, `Trainer` sorts by length within groups of 4 batches; given
            many, within groups of 50, which leaves less padding.""")
    ]
    for case, record in cases.items():
        parts += [
            describe_texts(case, record),
            f"Batches of {record['batch']['batch_size']}; ours multiplied with {record['products']}.",
            table(
                ["", f"ms per {record['count']} sentences (quartiles)", "times ours (quartiles)"],
                rows_beside_ours(record["seconds"]),
            ),
            missing_lines(record),
        ]
    return "\n\n".join(filter(None, parts))


def aims(cases: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str, str]]:
    """Against both ways to choose batches."""
    return [(what, f"{AIM:.1f}", ratio(times)) for what, times in compared(cases)]


def compared(cases: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, Spread]]:
    """What every processor is compared by: Trainer's time over ours."""
    return [
        (
            f"fine-tuning from text, {case}: {name} / ours",
            paired_ratio(record["seconds"][name], record["seconds"][OURS]),
        )
        for case, record in cases.items()
        for name in TRAINERS
        if name in record["seconds"]
    ]
