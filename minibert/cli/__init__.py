"""The commands: ``minibert pretrain | fill-mask | predict | evaluate | embed | search | tokenizer | …``.

Each command has a file of the same name, whose ``add`` declares its flags. It calls one function of the
package with them and prints what is returned. A person's mistake (``UserError``) gives one line on stderr
and exit code 2, without a traceback. Ctrl-C, and SIGTERM during training, give exit code 130.
"""

import argparse
import io
import os
import sys
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

from minibert import __version__, interrupts
from minibert.cli import (
    distill,
    embed,
    evaluate,
    explain,
    explore,
    export,
    fill_mask,
    finetune,
    gradcheck,
    info,
    predict,
    prepare,
    pretrain,
    search,
    tokenizer,
    view,
)
from minibert.cli.parser import Parser, for_example
from minibert.errors import UserError

# As --help lists them.
COMMANDS = {
    "train a model": (pretrain, finetune, distill),
    "ask a model": (fill_mask, predict, embed, search),
    "judge a model, and look into it": (evaluate, explain, explore, view, info, gradcheck),
    "prepare text, and write models": (tokenizer, prepare, export),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line (default: the process's own); return the exit code."""
    interrupts.end_loading()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a notebook's is not one
            stream.reconfigure(errors="replace")  # a terminal without × or 東 shows ?
    try:
        flags = parse(arguments)
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            code = flags.run(flags) or 0
        sys.stdout.flush()
    except UserError as error:
        print(f"minibert: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("minibert: interrupted", file=sys.stderr)
        return interrupts.EXIT_CODE
    except BrokenPipeError:  # whoever read our output, head for instance, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    return code


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    print(f"minibert: warning: {message}", file=sys.stderr)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The values of a command line; ``run`` is the function of the command.

    Raises UserError for a wrong flag.
    """
    return make_parser().parse_args(arguments)


def make_parser() -> Parser:
    """The parser of all commands, from which ``shtab`` also makes completions for a shell."""
    parser = Parser(
        prog="minibert",
        epilog=for_example(
            "minibert pretrain",
            'minibert fill-mask "the capital of france is [MASK] ."',
            "minibert info --preset base",
        ),
    )
    parser.add_argument("--version", action="version", version=f"minibert {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    parser._action_groups.pop()  # argparse lists commands without groups; here the description lists them
    about = "BERT from scratch in NumPy and CuPy. Every command explains itself with --help."
    parser.description = "\n".join([about, *_add_commands(commands)])
    return parser


def _add_commands(commands: Any) -> Iterator[str]:
    """Add all commands; the lines that list them, group by group."""
    for title, members in COMMANDS.items():
        yield f"\n{title}:"
        for command in members:
            command.add(commands)
            name, parser = list(commands.choices.items())[-1]
            lines = textwrap.wrap(parser.description, width=67)
            yield f"  {name:<9}  {lines[0]}"
            yield from (f"{'':<13}{line}" for line in lines[1:])
