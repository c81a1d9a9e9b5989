"""``minibert explore``."""

import argparse
import warnings
from pathlib import Path
from typing import Any

from minibert.bert import BertForMaskedLM
from minibert.cli.flags import DEFAULT_MODEL, add_machine_flags, chosen_device
from minibert.cli.parser import add_command
from minibert.explore.page import write_page
from minibert.files import check_writable
from minibert.text import open_tokenizer
from minibert.variants import open_model


def add(commands: Any) -> None:
    """Add the command and its flags."""
    parser = add_command(
        commands,
        "explore",
        _run,
        "look into a model on a page: every value of a sentence, and the gradient back to its words",
        'minibert explore "the capital of france is [MASK] ."',
        'minibert explore "she opened the [MASK] ." "the keys [MASK] on the table ." --output keys.html',
    )
    parser.add_argument(
        "texts", nargs="+", metavar="TEXT", help="a sentence with a [MASK]; one page shows all"
    )
    parser.add_argument(
        "--model",
        default=DEFAULT_MODEL,
        metavar="FOLDER",
        help="a pretrained model (default: %(default)s, which comes with minibert)",
    )
    parser.add_argument(
        "--answer",
        metavar="TOKEN",
        help="the token whose −ln p is the loss (default: each sentence's best guess)",
    )
    parser.add_argument(
        "--output", default="explore.html", metavar="FILE", help="page to write (default: %(default)s)"
    )
    add_machine_flags(parser)


def _run(flags: argparse.Namespace) -> None:
    check_writable(flags.output)
    tokenizer = open_tokenizer(flags.model)
    warnings.filterwarnings("ignore", ".* does not use")  # an unused pooler is nothing to warn about
    model = open_model(BertForMaskedLM, flags.model, device=chosen_device(flags), complete=True)
    write_page(flags.output, model, tokenizer, flags.model, flags.texts, flags.answer)
    size = Path(flags.output).stat().st_size / 1e6
    print(f"written to {flags.output} ({size:.1f} MB): open it in a browser; it needs no network")
