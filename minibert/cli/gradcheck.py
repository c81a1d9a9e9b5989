"""``minibert gradcheck``."""

import argparse
import time
from typing import Any

from minibert.cli.flags import add_machine_flags, chosen_device
from minibert.cli.parser import add_command
from minibert.devices import resolve_device
from minibert.errors import UserError
from minibert.gradcheck import print_table, report
from minibert.proofs import all_cases
from minibert.proofs.presets import preset_rows
from minibert.train.metrics import peak_memory


def add(commands: Any) -> None:
    """Add the command and its flags."""
    parser = add_command(
        commands,
        "gradcheck",
        _run,
        "compare every hand-written derivative with numeric ones",
        "minibert gradcheck",
        "minibert gradcheck --preset tiny --every-parameter",
        "minibert gradcheck --preset base",
    )
    parser.add_argument(
        "--preset",
        metavar="NAME",
        help="check a BERT of this size instead, along one random direction of all its parameters: "
        "tiny, mini, small, medium, base, large, or L2-H128 and the like",
    )
    parser.add_argument(
        "--every-parameter", action="store_true", help="with --preset: also check each parameter by itself"
    )
    add_machine_flags(parser)


def _run(flags: argparse.Namespace) -> int:
    if flags.every_parameter and flags.preset is None:
        raise UserError("--every-parameter needs --preset; without it, every parameter is checked anyway")
    device, host = chosen_device(flags), resolve_device("cpu")
    start = time.perf_counter()
    if flags.preset is not None:
        right = print_table((None, row) for row in preset_rows(flags.preset, device, flags.every_parameter))
    else:
        right = report(all_cases(device), all_cases(host))
    print(
        f"{time.perf_counter() - start:.0f} s, at most {(peak_memory(host) or 0) / 2**30:.1f} GiB of memory"
    )
    return 0 if right else 1
