"""``minibert export``."""

import argparse
from pathlib import Path
from typing import Any

from minibert.cli.parser import add_command
from minibert.errors import UserError
from minibert.folders.stored import DTYPES
from minibert.tasks import export
from minibert.tasks.onnx_exporting import export_onnx


def add(commands: Any) -> None:
    """Add the command and its flags."""
    parser = add_command(
        commands,
        "export",
        _run,
        "write a model to a new folder, also in 16 bits, in several files or for longer texts, or to ONNX",
        "minibert export runs/tiny/final --output tiny --dtype float16",
        "minibert export runs/small/final --output small --dtype bfloat16 --max-shard-size 16MiB",
        "minibert export runs/sst2/best --onnx sst2/model.onnx",
    )
    parser.add_argument("folder", metavar="FOLDER", help="a pretrained or fine-tuned model")
    target = parser.add_mutually_exclusive_group(required=True)
    target.add_argument("--output", metavar="FOLDER", help="new folder to write to")
    target.add_argument(
        "--onnx",
        metavar="FILE",
        help="new ONNX file to write, for other languages and runtimes; configuration and tokenizer come "
        "beside it. If ONNX Runtime is installed, it is compared with the model",
    )
    parser.add_argument("--dtype", choices=tuple(DTYPES), help="type of the weights (default: unchanged)")
    parser.add_argument("--max-shard-size", metavar="SIZE", help="largest size of a weight file, e.g. 16MiB")
    parser.add_argument("--encoder-only", action="store_true", help="leave out the heads")
    parser.add_argument(
        "--positions", type=int, metavar="N", help="keep the first N positions, or repeat them to get N"
    )


def _run(flags: argparse.Namespace) -> None:
    if flags.onnx is not None:
        _to_onnx(flags)
        return
    sizes = flags.dtype, flags.max_shard_size
    export(flags.folder, flags.output, *sizes, flags.encoder_only, flags.positions)
    for path in sorted(Path(flags.output).glob("*.safetensors")):
        print(f"{path.stat().st_size:>13,} bytes  {path}")


def _to_onnx(flags: argparse.Namespace) -> None:
    for name in ("dtype", "max_shard_size", "encoder_only", "positions"):
        if getattr(flags, name) is not None and getattr(flags, name) is not False:
            flag = "--" + name.replace("_", "-")
            raise UserError(f"{flag} is for --output; first export to a folder, and that folder to ONNX")
    differences = export_onnx(flags.folder, flags.onnx)
    print(f"{Path(flags.onnx).stat().st_size:>13,} bytes  {flags.onnx}")
    if differences is None:
        print("not compared with the model: ONNX Runtime is missing (pip install onnxruntime)")
    else:
        for name, apart in differences.items():
            print(f"{name}: relative difference from the model {apart:.1e}, in ONNX Runtime")
