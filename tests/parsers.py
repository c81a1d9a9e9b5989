"""The parsers of the command line, which tests walk through."""

import argparse
from collections.abc import Iterator


def subcommands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The parsers of a parser's commands or actions, by name; of one that has none, nothing."""
    return {
        name: command
        for action in parser._actions
        if isinstance(action, argparse._SubParsersAction)
        for name, command in action.choices.items()
    }


def every_parser(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """The parser, and those of all its commands and of their actions."""
    yield parser
    for command in subcommands(parser).values():
        yield from every_parser(command)
