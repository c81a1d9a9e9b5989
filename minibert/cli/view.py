"""``minibert view``."""

import argparse
from typing import Any

from minibert.cli.flags import add_model_flag
from minibert.cli.parser import add_command
from minibert.explore.attention import view
from minibert.files import check_writable, write_text


def add(commands: Any) -> None:
    """Add the command and its flags."""
    parser = add_command(
        commands,
        "view",
        _run,
        "draw what every head of a model looks at",
        'minibert view "the keys to the old house were on the table ."',
        'minibert view --model bert-base-uncased "a cat sat on the mat ." --pair "a cat lay on the rug ."',
    )
    parser.add_argument("text", help="a text, in quotes")
    parser.add_argument("--pair", metavar="TEXT", help="a second text, to be read with the first")
    add_model_flag(parser, "any model")
    parser.add_argument(
        "--output", default="attention.html", metavar="FILE", help="page to write (default: %(default)s)"
    )


def _run(flags: argparse.Namespace) -> None:
    check_writable(flags.output)
    write_text(flags.output, view(flags.model, flags.text, flags.pair).html)
    print(f"written to {flags.output}: open it in a browser; it needs no network")
