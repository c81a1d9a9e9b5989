"""``minibert gradcheck``."""

import argparse
from typing import Any

from minibert.bert.cases import all_cases
from minibert.cli.flags import add_machine_flags, chosen_device
from minibert.cli.parser import add_command
from minibert.gradcheck import report


def add(commands: Any) -> None:
    """Add the command and its flags."""
    parser = add_command(
        commands,
        "gradcheck",
        _run,
        "compare every hand-written derivative with a numeric one",
        "minibert gradcheck",
    )
    add_machine_flags(parser)


def _run(flags: argparse.Namespace) -> int:
    return 0 if report(all_cases(chosen_device(flags))) else 1
