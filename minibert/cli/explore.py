"""``minibert explore``."""

import argparse
import threading
import warnings
import webbrowser
from pathlib import Path
from typing import Any

from minibert.cli.flags import add_machine_flags, add_model_flag, chosen_device
from minibert.cli.parser import add_command
from minibert.errors import UserError
from minibert.explore.page import about, page
from minibert.explore.session import Session
from minibert.explore.subjects import Subject, Words, open_subject
from minibert.files import check_writable, write_text


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
        help="a sentence with a [MASK] or, for a fine-tuned model, what it reads; several only with --output",
    )
    parser.add_argument(
        "--pair",
        metavar="TEXT",
        help="the second text, for a model that reads or compares two, or says whether it follows",
    )
    add_model_flag(parser, "a model for masked words, or fine-tuned")
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
    warnings.filterwarnings("ignore", ".* does not use")  # an unused pooler is nothing to warn about
    subject = open_subject(flags.model, device=chosen_device(flags), dtype=flags.dtype)
    texts = [(text, flags.pair) for text in flags.texts or [_example(subject)]]
    if flags.output:
        write_text(flags.output, page(subject, flags.model, texts, flags.answer))
        size = Path(flags.output).stat().st_size / 1e6
        print(f"written to {flags.output} ({size:.1f} MB): open it in a browser; it needs no network")
    else:
        _serve(subject, *texts[0], flags)


def _example(subject: Subject) -> str:
    """A text for whoever gives none."""
    if not isinstance(subject, Words):
        raise UserError("give a text, in quotes")
    return f"the capital of france is {subject.tokenizer.special_tokens['mask_token']} ."


def _serve(subject: Subject, text: str, second: str | None, flags: argparse.Namespace) -> None:
    try:
        from minibert.explore.server import Server
    except ImportError:
        raise UserError(
            'a page that asks the model needs Tornado; install it with  pip install "tornado>=6.4"  or write '
            "one that does not, with --output page.html"
        ) from None
    session = Session(subject)
    session.look(text, second)  # what is wrong with it is said here
    server = Server(session, about(subject, flags.model), text, second)
    print(f"open {server.address}\nCtrl-C ends it", flush=True)
    if not flags.no_browser:  # in a thread: some browsers are waited for, and they wait for the page
        threading.Thread(target=webbrowser.open, args=(server.address,), daemon=True).start()
    server.run()
