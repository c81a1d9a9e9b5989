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
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any

from minibert import __version__, interrupts, ranks
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
from minibert.data.tasks import TextsCut
from minibert.errors import UserError
from minibert.files import DISK_FULL, UNREACHABLE

# As --help lists them.
COMMANDS = {
    "train a model": (pretrain, finetune, distill),
    "ask a model": (fill_mask, predict, embed, search),
    "judge a model, and look into it": (evaluate, explain, explore, view, info, gradcheck),
    "prepare text, and write models": (tokenizer, prepare, export),
}

WORK_TOGETHER = ("pretrain", "prepare", "finetune", "distill")  # the commands that mpirun can start


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line (default: the process's own); return the exit code."""
    interrupts.end_loading()
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by whoever started us
            setattr(sys, name, open(os.devnull, "r+"))  # noqa: SIM115  (for the rest of the process)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a notebook's is not one
            stream.reconfigure(errors="replace")  # a terminal without × or 東 shows ?
    try:
        flags = _parse_together(arguments)
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            warnings.simplefilter("default", TextsCut)
            code = flags.run(flags) or 0
        sys.stdout.flush()
    except UserError as error:
        return ranks.end_with_error(2, f"minibert: error: {error}")
    except KeyboardInterrupt:
        return ranks.end_with_error(interrupts.EXIT_CODE, "minibert: interrupted")
    except BrokenPipeError:  # whoever read our output, head for instance, has seen enough
        _drop_output()
        return 141
    except Exception as error:
        if isinstance(error, OSError) and error.errno in DISK_FULL:  # all but stdout was explained before
            _drop_output()
            return ranks.end_with_error(2, f"minibert: error: cannot write the output ({error.strerror})")
        if isinstance(error, OSError) and error.errno in UNREACHABLE and error.filename:
            told = f"{os.fsdecode(error.filename)}: {error.strerror}; check the path and its permissions"
            return ranks.end_with_error(2, f"minibert: error: {told}")
        if ranks.launched_rank() is None:
            raise
        return ranks.end_with_error(1, traceback.format_exc().rstrip())  # the others would wait forever
    return code


def _drop_output() -> None:
    """Let what is still to be written to stdout go nowhere, lest Python tries it again when it exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _parse_together(arguments: Sequence[str] | None) -> argparse.Namespace:
    """``parse`` on every rank; the first prints help.

    Raises UserError for a command that does not work on several.
    """
    if ranks.launched_rank() is None:
        return parse(arguments)
    with nullcontext() if ranks.world().first else ranks.silence():
        flags = parse(arguments)
    if flags.run.__module__.rpartition(".")[2] not in WORK_TOGETHER:
        raise UserError(
            f"only {', '.join(WORK_TOGETHER)} work on several processes; start this command without mpirun"
        )
    return flags


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
