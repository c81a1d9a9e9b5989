"""What several commands have in common: flags, and what is done with their values."""

import argparse
import os
import sys
import typing
from dataclasses import Field, fields
from typing import Any

from minibert.cli.setting_flags import flag_options
from minibert.data.tasks import USUAL_BATCH, USUAL_PLACES, Faults
from minibert.devices import Device, resolve_device
from minibert.errors import UserError
from minibert.files import check_writable
from minibert.ops import POOLING, require_kernels
from minibert.products import LIBRARIES, use_products
from minibert.tasks.registry import TASKS
from minibert.threads import set_threads

DEFAULT_MODEL = "mini"  # of those in minibert.assets
BY_LENGTH = f"{USUAL_BATCH}, or of short texts as many as have {USUAL_PLACES:,} tokens"


def add_model_flag(parser: argparse.ArgumentParser, about: str, default: str | None = DEFAULT_MODEL) -> None:
    """Add the flag that names a model's folder, which has to be given if there is no ``default``."""
    told = f" (default: {default}, which comes with minibert)" if default else ""
    parser.add_argument(
        "--model",
        required=default is None,
        default=default,
        metavar="FOLDER",
        help=f"{about}{told}; its weights may be safetensors, pytorch_model.bin or a TensorFlow checkpoint",
    )


def add_machine_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that say what to compute on."""
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N (default: %(default)s)")
    parser.add_argument("--threads", type=int, metavar="N", help="CPU threads to compute with")
    parser.add_argument(
        "--products",
        default="numpy",
        choices=tuple(LIBRARIES),
        help="who multiplies matrices on the CPU: NumPy, or oneDNN or MKL (extras onednn, mkl) "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--strict-kernels",
        action="store_true",
        help="fail if a GPU kernel cannot be used",
    )


def chosen_device(flags: argparse.Namespace) -> Device:
    """Apply the flags for threads, products and kernels, and return the device that was chosen."""
    if flags.threads is not None:
        set_threads(flags.threads)
    use_products(flags.products)
    require_kernels(flags.strict_kernels)
    return resolve_device(flags.device)


def add_skip_flag(parser: argparse.ArgumentParser) -> None:
    """Add the flag that says what to do with rows that cannot be read."""
    parser.add_argument("--skip-bad", action="store_true", help="skip and count rows that cannot be read")


def add_batch_flags(
    parser: argparse.ArgumentParser, default: int | None = 32, told: str = "%(default)s"
) -> None:
    """Add the flags that say how much to compute at a time, and on what; ``told`` explains the default."""
    parser.add_argument(
        "--batch-size",
        type=int,
        default=default,
        metavar="N",
        help=f"sequences per batch (default: {told})",
    )
    add_machine_flags(parser)


def add_layout_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that say how a file is read, if its format is not that of the training data."""
    layout = parser.add_argument_group(
        "files in another format than the training data (give all of these flags that apply, or none)"
    )
    for name, (f, annotation) in _layout_options().items():
        flag = "--" + name.replace("_", "-")
        layout.add_argument(flag, default=argparse.SUPPRESS, **flag_options(f, annotation))


def _layout_options() -> dict[str, tuple[Field, Any]]:
    """The settings of all tasks that say how files are read, with their types."""
    return {
        f.name: (f, typing.get_type_hints(task.Options)[f.name])
        for task in TASKS.values()
        for f in fields(task.Options)
        if f.metadata["group"] == "Data"
    }


def layout_of(flags: argparse.Namespace) -> dict[str, Any]:
    """The layout flags that were given, for `Task.set_layout`."""
    return {name: getattr(flags, name) for name in _layout_options() if hasattr(flags, name)}


def add_encoder_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that say how a sentence encoder makes vectors."""
    parser.add_argument(
        "--pooling",
        choices=tuple(POOLING),
        default=argparse.SUPPRESS,
        help="how hidden states become a vector (default: as the folder says, else mean)",
    )
    parser.add_argument(
        "--max-length",
        type=int,
        default=argparse.SUPPRESS,
        metavar="N",
        help="cut texts to N tokens (default: as the folder says, else what the model can read)",
    )


def encoder_options(flags: argparse.Namespace) -> dict[str, Any]:
    """The encoder's flags that were given; its folder says the rest."""
    names = ("pooling", "max_length", "normalise")
    return {name: getattr(flags, name) for name in names if hasattr(flags, name)}


def check_written(output: str | None, read: str | None) -> None:
    """Raise UserError if results cannot be written to ``output``. To be called before they are computed."""
    if output is None:
        return
    if read is not None and os.path.realpath(read) == os.path.realpath(output):
        raise UserError(f"{output}: the results would overwrite the input; write them to another file")
    check_writable(output)


def tell(faults: Faults) -> None:
    """Say on stderr what was left out."""
    for line in faults.describe():
        print(f"minibert: {line}", file=sys.stderr)
