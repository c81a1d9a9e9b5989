"""``minibert explain``."""

import argparse
import json
import os
import sys
import warnings
from collections.abc import Iterator
from typing import Any

from minibert.cli.flags import add_machine_flags, add_model_flag, check_written, chosen_device
from minibert.cli.parser import add_command
from minibert.data.lines import read_lines
from minibert.errors import UserError
from minibert.explore.explain import (
    BASELINES,
    LEAVE_OUT,
    STEPS,
    Explanation,
    Settings,
    explain,
    turns,
)
from minibert.explore.report import LARGE, as_page, as_text
from minibert.explore.subjects import open_subject
from minibert.files import write_text


def add(commands: Any) -> None:
    """Add the command and its flags."""
    parser = add_command(
        commands,
        "explain",
        _run,
        "show which words led to a model's answer",
        'minibert explain --model runs/sst2/best "a fine film"',
        'minibert explain --model runs/wnut17/best "he went to london" --word 4 --target O',
        'minibert explain "the capital of france is [MASK] ." --html capital.html',
    )
    parser.usage = f"{parser.prog} [--model FOLDER] [TEXT ...] [flags]"
    parser.add_argument("texts", nargs="*", metavar="TEXT", help="texts, each in quotes")
    parser.add_argument(
        "--pair",
        metavar="TEXT",
        help="second text of a pair; for questions, the passage; for similarity, what is compared with",
    )
    parser.add_argument(
        "--file", metavar="FILE", help="read the texts from FILE: one per line, or two with a tab between"
    )
    add_model_flag(parser, "a model that is fine-tuned, or for masked words")
    parser.add_argument(
        "--target", metavar="LABEL", help="the answer to explain (default: the one that the model gives)"
    )
    parser.add_argument(
        "--word",
        type=int,
        metavar="N",
        help="the word to ask about, from 1 (default: the first [MASK], or the most certain entity)",
    )
    parser.add_argument("--pieces", action="store_true", help="weigh the tokens that words are cut into")
    parser.add_argument(
        "--baseline",
        choices=BASELINES,
        default="mask",
        help="what integrated gradients compare words with: the embedding of [MASK] or [PAD], or 0 "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--steps",
        type=int,
        default=STEPS,
        metavar="N",
        help="steps of integrated gradients: more make the gap smaller (default: %(default)s)",
    )
    parser.add_argument(
        "--leave-out",
        choices=LEAVE_OUT,
        default="mask",
        help="how a word is left out: hidden by [MASK], or removed (default: %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object per text")
    parser.add_argument("--html", metavar="FILE", help="write a page for any browser, which needs no network")
    parser.add_argument(
        "--dtype",
        choices=("float32", "float64"),
        default="float32",
        help="of all numbers (default: %(default)s)",
    )
    add_machine_flags(parser)


def _run(flags: argparse.Namespace) -> None:
    check_written(flags.html, flags.file)
    settings = Settings(flags.baseline, flags.steps, flags.leave_out, flags.pieces)
    asked = _texts(flags)
    warnings.filterwarnings("ignore", ".* does not use")  # an unused pooler is nothing to warn about
    subject = open_subject(flags.model, device=chosen_device(flags), dtype=flags.dtype)
    texts = [turn for pair in asked for turn in turns(subject, *pair)]
    explanations = []
    for number, (text, second) in enumerate(texts):
        told = explain(subject, text, second, word=flags.word, target=flags.target, settings=settings)
        explanations.append(told)
        if flags.json and told.has_large_gap:
            print(f"minibert: warning: text {number + 1}: {LARGE}", file=sys.stderr)
        if flags.json or not flags.html:
            print("\n" * (number > 0 and not flags.json) + _shown(told, flags.json), end="", flush=True)
    if flags.html:
        write_text(flags.html, as_page(explanations, flags.model))
        print(f"written to {flags.html}: open it in a browser; it needs no network", file=sys.stderr)


def _shown(told: Explanation, as_json: bool) -> str:
    if as_json:
        return json.dumps(told.to_dict(), ensure_ascii=False) + "\n"
    return as_text(told, colours=sys.stdout.isatty() and not os.environ.get("NO_COLOR"))


def _texts(flags: argparse.Namespace) -> list[tuple[str, str | None]]:
    """The texts on the command line or in a file. Raises UserError for none, and for both."""
    if bool(flags.texts) == bool(flags.file):
        but = ", not both" if flags.file else ""
        raise UserError(f"give texts, in quotes, or --file FILE with one text per line{but}")
    if not flags.file:
        seconds = [] if flags.pair is None else [flags.pair]
        if not all(map(str.strip, [*flags.texts, *seconds])):
            raise UserError("an empty text cannot be explained; give some words")
        return [(text, flags.pair) for text in flags.texts]
    if flags.pair is not None:
        raise UserError("--pair is for texts on the command line; in a file, put a tab between the two")
    texts = list(_pairs(flags.file))
    if not texts:
        raise UserError(f"{flags.file}: there is no text to read; give another file")
    return texts


def _pairs(path: str) -> Iterator[tuple[str, str | None]]:
    for number, line in enumerate(read_lines(path), start=1):
        text, tab, second = line.partition("\t")
        if tab and not (text.strip() and second.strip()):
            raise UserError(f"{path}: line {number}: an empty text cannot be explained; correct or remove it")
        if text.strip():
            yield text, second if tab else None
