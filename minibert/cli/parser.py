"""Parsing command lines, and reporting wrong ones."""

import argparse
import functools
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from minibert.errors import UserError, did_you_mean

TYPES = {"int": "a whole number", "float": "a number"}  # what argparse calls them, and what people do


class Parser(argparse.ArgumentParser):
    """argparse, except that a wrong flag is a UserError like any other mistake, naming the nearest flag."""

    def __init__(self, **options: Any):
        layout = functools.partial(argparse.RawDescriptionHelpFormatter, max_help_position=30)
        super().__init__(**options, allow_abbrev=False, formatter_class=layout)
        self._taken_for_flags: list[str] = []

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Parse as argparse does. Raises UserError for arguments that are left over."""
        args = _with_lists_joined(sys.argv[1:] if args is None else args)
        self._taken_for_flags = [
            arg for arg in args if arg[:1] == "-" and arg.split("=")[0] not in self._option_string_actions
        ]
        namespace, unknown = super().parse_known_args(args, namespace)
        if unknown and not unknown[0].startswith("-"):
            takes_text = any(not action.option_strings for action in self._actions)
            hint = "put a text with spaces in quotes" if takes_text else "is it the value of a flag?"
            raise UserError(f"{unknown[0]!r} is one word too many; {hint}; see  {self.prog} --help")
        if unknown:
            known = [flag for action in self._actions for flag in action.option_strings]
            name = unknown[0].split("=")[0]
            hint = did_you_mean(name, known, f"see  {self.prog} --help", cutoff=0.75)
            raise UserError(f"unknown argument {name!r}; {hint}")
        return namespace, unknown

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Raise UserError for an empty path, and for a value not among the choices, with the nearest."""
        if value == "" and action.metavar in ("FILE", "FOLDER"):  # an empty variable of a script
            what = action.option_strings[0] if action.option_strings else action.metavar
            kind = action.metavar.lower()
            raise UserError(f"{what} is empty; give a {kind}, or leave it out; see  {self.prog} --help")
        if action.choices is not None and value not in action.choices:
            what = action.option_strings[0] if action.option_strings else str(action.metavar).lower()
            hint = did_you_mean(str(value), map(str, action.choices))
            raise UserError(f"unknown {what} {value!r}; {hint}; see  {self.prog} --help")

    def error(self, message: str) -> NoReturn:
        """Raise UserError with the message of argparse."""
        if wrong := re.fullmatch("(.+): invalid (.+) value: (.+)", message, re.DOTALL):
            message = f"{wrong[1]}: expected {TYPES.get(wrong[2], wrong[2])}, got {wrong[3]}"
        if "are required" in message and self._taken_for_flags:
            given = self._taken_for_flags[0]
            otherwise = f"if {given!r} is one, put -- before it"
            hint = did_you_mean(given.split("=")[0], self._option_string_actions, otherwise, cutoff=0.75)
            message += f"; {otherwise}" if hint == otherwise else f"; {given!r} is unknown: {hint}"
        raise UserError(f"{message.removeprefix('argument ')}; see  {self.prog} --help")


def _with_lists_joined(args: Sequence[str]) -> list[str]:
    """``--layers -1,-2`` as ``--layers=-1,-2``: argparse takes a negative number for a value, but no list."""
    joined: list[str] = []
    for arg in args:
        if re.fullmatch(r"-\d+(,-?\d+)+", arg) and joined and re.fullmatch(r"--[a-z-]+", joined[-1]):
            joined[-1] += f"={arg}"
        else:
            joined.append(arg)
    return joined


def add_command(
    commands: Any, name: str, run: Callable[[argparse.Namespace], int | None], about: str, *examples: str
) -> Parser:
    """Add a command, with what it is about and example command lines; ``run`` is called with its flags."""
    parser = commands.add_parser(name, help=about, description=about[0].upper() + about[1:] + ".")
    parser.epilog = for_example(*examples)
    parser.set_defaults(run=run)
    return parser


def add_group(commands: Any, name: str, about: str) -> Any:
    """Add a command that consists of several actions; these are added to the result, like commands."""
    parser = commands.add_parser(name, help=about, description=about[0].upper() + about[1:] + ".")
    return parser.add_subparsers(title="actions", metavar="ACTION", required=True)


def for_example(*lines: str) -> str:
    """Example command lines, as they are shown below a help text."""
    return "\n".join(["for example:", *(f"  {line}" for line in lines)])
