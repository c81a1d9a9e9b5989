"""``minibert export``."""

import argparse
from pathlib import Path
from typing import Any

from minibert.cli.parser import add_command
from minibert.folders.stored import DTYPES
from minibert.tasks import export


def add(commands: Any) -> None:
    """Add the command and its flags."""
    parser = add_command(
        commands,
        "export",
        _run,
        "write a model to a new folder, optionally in 16 bits, in several files or for longer texts",
        "minibert export runs/tiny/final --output tiny --dtype float16",
        "minibert export runs/small/final --output small --dtype bfloat16 --max-shard-size 16MiB",
    )
    parser.add_argument("folder", metavar="FOLDER", help="a pretrained or fine-tuned model")
    parser.add_argument("--output", required=True, metavar="FOLDER", help="new folder to write to")
    parser.add_argument("--dtype", choices=tuple(DTYPES), help="type of the weights (default: unchanged)")
    parser.add_argument("--max-shard-size", metavar="SIZE", help="largest size of a weight file, e.g. 16MiB")
    parser.add_argument("--encoder-only", action="store_true", help="leave out the heads")
    parser.add_argument(
        "--positions", type=int, metavar="N", help="keep the first N positions, or repeat them to get N"
    )


def _run(flags: argparse.Namespace) -> None:
    sizes = flags.dtype, flags.max_shard_size
    export(flags.folder, flags.output, *sizes, flags.encoder_only, flags.positions)
    for path in sorted(Path(flags.output).glob("*.safetensors")):
        print(f"{path.stat().st_size:>13,} bytes  {path}")
