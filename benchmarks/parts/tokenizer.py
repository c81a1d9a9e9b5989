"""Turning text into token ids on one thread: ours, and Hugging Face's tokenizers in Rust."""

import argparse
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.measure import ContenderError, Race, Spread, paired_ratio, spread, take_turns
from benchmarks.parts.common import OURS, RUST, add_text, find_text, missing_lines
from benchmarks.results import paragraph, ratio, table
from benchmarks.texts import documents, text_pieces
from minibert import UserError
from minibert.text import AlbertTokenizer, BertTokenizer, RobertaTokenizer

VOCAB_SIZE = 8192
AIM = 5.0  # Rust's time / ours
KINDS: dict[str, tuple[str, type[BertTokenizer | RobertaTokenizer | AlbertTokenizer]]] = {  # by case
    "tokenizer": ("WordPiece", BertTokenizer),
    "byte-level BPE": ("byte-level BPE", RobertaTokenizer),
    "unigram": ("unigram", AlbertTokenizer),
}
THREADS = 1  # whatever --threads says


def add_options(parser: argparse.ArgumentParser) -> None:
    """The text."""
    add_text(parser)


def measure(options: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    """A case per kind. Every round has a piece of the text of its own, so that nobody can remember it."""
    text = find_text(options)
    if text is None:
        return
    pieces = 40 if options.quick else options.rounds
    characters = [sum(map(len, piece)) for piece in text_pieces(str(text), pieces)]
    if 0 in characters:
        raise UserError(f"{text}: not {pieces} documents, one a round; give a longer text or fewer --rounds")
    for case, (_, kind) in KINDS.items():
        with tempfile.TemporaryDirectory(prefix="minibert-benchmarks-") as folder, Race(THREADS) as race:
            kind.train(documents(str(text))[:500], VOCAB_SIZE).save_pretrained(folder)
            task = {"kind": kind.__name__, "vocabulary": folder, "text": str(text), "pieces": pieces}
            for name, module in ((OURS, "ours"), (RUST, "rust")):
                race.enter(name, f"{module}:tokenizer", **task)
            seconds = take_turns(race.turns("encode"), rounds=options.rounds, seconds=0.0)
            if len(set(race.ask("digest").values())) > 1:
                raise ContenderError(f"{text}: the token ids are not the same")
        record = {"text": text.name, "characters": characters[: options.rounds], "seconds": seconds}
        yield case, record | {"missing": race.missing}


def section(cases: Mapping[str, Mapping[str, Any]], folder: Path) -> str:
    """A table per kind."""
    return "\n\n".join(f"### {KINDS[case][0]}\n\n{_section(record)}" for case, record in cases.items())


def _section(record: Mapping[str, Any]) -> str:
    seconds, characters = record["seconds"], record["characters"]
    rows = []
    for name, times in seconds.items():
        speed = spread([count / time / 1e6 for count, time in zip(characters, times, strict=True)])
        together = sum(times) / sum(seconds[OURS])
        rows.append(
            [name, f"{speed.median:.2f}", ratio(paired_ratio(times, seconds[OURS])), f"{together:.2f}"]
        )
    parts = [
        paragraph(f"""
            `{record["text"]}`, {sum(characters) / 1e6:.1f} million characters in {len(characters)}
            pieces of whole documents, one a round, none twice; a vocabulary of {VOCAB_SIZE:,}. Nobody
            was warmed up: in the first round our memory of words is still empty. The ids are the same."""),
        table(["", "million characters per second", "times ours (quartiles)", "all rounds together"], rows),
        missing_lines(record),
    ]
    return "\n\n".join(filter(None, parts))


def aims(cases: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str, str]]:
    """Against Rust."""
    return [(what, f"{AIM:.1f}", ratio(times)) for what, times in compared(cases)]


def compared(cases: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, Spread]]:
    """What every processor is compared by: Rust's time over ours."""
    return [
        (
            f"tokenizing ({KINDS[case][0]}), one thread: Rust / ours",
            paired_ratio(record["seconds"][RUST], record["seconds"][OURS]),
        )
        for case, record in cases.items()
        if RUST in record["seconds"]
    ]
