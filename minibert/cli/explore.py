"""``minibert explore``."""

import argparse
import warnings
import webbrowser
from pathlib import Path
from typing import Any

from minibert.bert import BertForMaskedLM, BertForPreTraining
from minibert.cli.flags import DEFAULT_MODEL, add_machine_flags, chosen_device
from minibert.cli.parser import add_command
from minibert.errors import UserError
from minibert.explore.page import about, write_page
from minibert.explore.session import Session
from minibert.files import check_writable
from minibert.text import PretrainedTokenizer, open_tokenizer
from minibert.variants import open_model

EXAMPLE = "the capital of france is {mask} ."


def add(commands: Any) -> None:
    """Add the command and its flags."""
    parser = add_command(
        commands,
        "explore",
        _run,
        "look into a model: every value of a sentence, and the gradient back to its words",
        'minibert explore "the capital of france is [MASK] ."',
        'minibert explore "she opened the [MASK] ." "the keys [MASK] on the table ." --output keys.html',
    )
    parser.add_argument(
        "texts",
        nargs="*",
        metavar="TEXT",
        help="a sentence with a [MASK]; several only with --output (default: one about france)",
    )
    parser.add_argument(
        "--model",
        default=DEFAULT_MODEL,
        metavar="FOLDER",
        help="a pretrained model (default: %(default)s, which comes with minibert)",
    )
    parser.add_argument(
        "--output",
        metavar="FILE",
        help="write one page for any browser, without a model behind it (default: open a page that asks it)",
    )
    parser.add_argument(
        "--answer",
        metavar="TOKEN",
        help="with --output, the token whose −ln p is the loss (default: each sentence's best guess)",
    )
    parser.add_argument("--no-browser", action="store_true", help="print the address, but do not open it")
    parser.add_argument(
        "--dtype",
        choices=("float32", "float64"),
        default="float64",
        help="of all numbers (default: %(default)s, in which numeric derivatives have eight digits)",
    )
    add_machine_flags(parser)


def _run(flags: argparse.Namespace) -> None:
    if flags.output:
        check_writable(flags.output)
    elif len(flags.texts) > 1:
        raise UserError(f"{len(flags.texts)} texts; without --output there is one, in quotes")
    elif flags.answer:
        raise UserError("--answer is for --output; the page that opens lets you choose")
    tokenizer = open_tokenizer(flags.model)
    warnings.filterwarnings("ignore", ".* does not use")  # an unused pooler is nothing to warn about
    model = open_model(
        BertForMaskedLM, flags.model, device=chosen_device(flags), dtype=flags.dtype, complete=True
    )
    texts = flags.texts or [EXAMPLE.format(mask=tokenizer.special_tokens["mask_token"])]
    if flags.output:
        write_page(flags.output, model, tokenizer, flags.model, texts, flags.answer)
        size = Path(flags.output).stat().st_size / 1e6
        print(f"written to {flags.output} ({size:.1f} MB): open it in a browser; it needs no network")
    else:
        _serve(model, tokenizer, texts[0], flags)


def _serve(
    model: BertForPreTraining, tokenizer: PretrainedTokenizer, text: str, flags: argparse.Namespace
) -> None:
    try:
        from minibert.explore.server import Server
    except ImportError:
        raise UserError(
            'a page that asks the model needs Tornado; install it with  pip install "tornado>=6.4"  or write '
            "one that does not, with --output page.html"
        ) from None
    session = Session(model, tokenizer)
    session.look(text)  # what is wrong with it is said here
    server = Server(session, about(model, flags.model), text)
    print(f"open {server.address}\nCtrl-C ends it", flush=True)
    if not flags.no_browser:
        webbrowser.open(server.address)
    server.run()
