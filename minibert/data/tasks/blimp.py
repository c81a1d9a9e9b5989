"""Minimal pairs: two sentences that hardly differ, of which one is good English."""

import json
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from minibert.data.lines import LONE_SURROGATE, decoded_lines, read_lines
from minibert.data.tasks.faults import Faults, Place, Problem
from minibert.errors import UserError


@dataclass(frozen=True)
class MinimalPair:
    """Two sentences; ``paradigm`` (67 in BLiMP) says how they differ, ``phenomenon`` what that tests.

    The files name 13 phenomena; the paper counts 12, "s-selection" among "argument_structure".
    """

    good: str
    bad: str
    paradigm: str
    phenomenon: str


def read_blimp(path: str | Path, *, faults: Faults | None = None) -> list[MinimalPair]:
    """The pairs of BLiMP: a ``.jsonl`` file, a folder of them, or the ``.zip`` as it is distributed.

    Source: Warstadt et al. 2020, "BLiMP: The Benchmark of Linguistic Minimal Pairs for English".
    Raises UserError, naming file and line, for rows that are not such a pair. If ``faults`` skips bad
    examples, they are left out and counted.
    """
    faults = Faults() if faults is None else faults
    pairs = []
    for place, line in _lines(Path(path)):
        with faults.leave_out(place):
            pairs.append(_pair(line))
    if not pairs:
        raise UserError(
            f"{path}: no minimal pair found; give BLiMP's .zip, its folder, or one of its .jsonl files"
        )
    return pairs


def _lines(path: Path) -> Iterator[tuple[Place, str]]:
    if path.suffix == ".zip":
        yield from _zipped_lines(path)
        return
    for file in sorted(path.glob("*.jsonl")) if path.is_dir() else [path]:
        for number, line in enumerate(read_lines(file), start=1):
            yield Place(file, number), line


def _zipped_lines(path: Path) -> Iterator[tuple[Place, str]]:
    try:
        with zipfile.ZipFile(path) as archive:
            for name in sorted(archive.namelist()):
                if name.endswith(".jsonl") and not name.startswith("__MACOSX/"):
                    with archive.open(name) as stream:
                        for number, line in enumerate(decoded_lines(stream, path / name), start=1):
                            yield Place(path / name, number), line
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; check the path") from None
    except (OSError, zipfile.BadZipFile, RuntimeError) as error:  # the last: encrypted …
        raise UserError(f"{path}: cannot read this archive ({error}); fetch it again") from None


def _pair(line: str) -> MinimalPair:
    try:
        row = json.loads(line)
        found = [row[key] for key in ("sentence_good", "sentence_bad", "UID", "linguistics_term")]
    except (ValueError, RecursionError, KeyError, TypeError):
        found = []
    if not found or not all(isinstance(text, str) and text.strip() for text in found):
        raise Problem(
            'expected a JSON object with "sentence_good", "sentence_bad", "UID", "linguistics_term"'
        )
    if any(map(LONE_SURROGATE.search, found)):
        raise Problem("holds half a surrogate pair (\\ud800 … \\udfff)")
    return MinimalPair(*found)
