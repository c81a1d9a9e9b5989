"""``minibert gradcheck``."""

import argparse
from typing import Any

from minibert.arrays import resolve_device
from minibert.cli.flags import add_machine_flags, chosen_device
from minibert.cli.parser import add_command
from minibert.gradcheck import report
from minibert.proofs import all_cases


def add(commands: Any) -> None:
    """Add the command and its flags."""
    parser = add_command(
        commands,
        "gradcheck",
        _run,
        "compare every hand-written derivative with numeric ones",
        "minibert gradcheck",
    )
    add_machine_flags(parser)


def _run(flags: argparse.Namespace) -> int:
    return 0 if report(all_cases(chosen_device(flags)), all_cases(resolve_device("cpu"))) else 1
