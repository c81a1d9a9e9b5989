"""``minibert info``."""

import argparse
from typing import Any

from minibert.bert import PRESETS, BertConfig
from minibert.cli.parser import add_command
from minibert.precision import PRECISIONS
from minibert.tasks.info import NO_DISCRIMINATOR, describe_parameters, describe_step, is_discriminator
from minibert.variants import open_config


def add(commands: Any) -> None:
    """Add the command and its flags."""
    parser = add_command(
        commands,
        "info",
        _run,
        "show a model's parameters matrix by matrix, and what a training step costs",
        "minibert info --preset base",
        "minibert info runs/tiny/final --batch-size 64",
        "minibert info --preset base --batch-size 256 --max-seq-length 512 --precision bfloat16 --recompute",
    )
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "folder", nargs="?", metavar="FOLDER", help="a pretrained folder, instead of --preset"
    )
    source.add_argument("--preset", metavar="NAME", help=f"{', '.join(PRESETS)} (default: base)")
    for flag, default, what in (
        ("--batch-size", 32, "sequences per step"),
        ("--max-predictions", 20, "tokens to predict per sequence"),
    ):
        parser.add_argument(flag, type=int, default=default, metavar="N", help=f"{what} (default: {default})")
    parser.add_argument(
        "--max-seq-length",
        type=int,
        metavar="N",
        help="tokens per sequence (default: 128, or as many as the model can read)",
    )
    parser.add_argument(
        "--precision", choices=PRECISIONS, default="float32", help="precision (default: %(default)s)"
    )
    parser.add_argument(
        "--recompute",
        action="store_true",
        help="recompute layers in the backward pass instead of storing them",
    )


def _run(flags: argparse.Namespace) -> None:
    preset = flags.preset or "base"
    config = open_config(flags.folder) if flags.folder else BertConfig.preset(preset)
    length = min(128, config.longest_sequence) if flags.max_seq_length is None else flags.max_seq_length
    sizes = flags.batch_size, length, flags.max_predictions
    discriminator = flags.folder is not None and is_discriminator(flags.folder)
    parameters = describe_parameters(config, discriminator)
    if discriminator:
        step = NO_DISCRIMINATOR
    else:
        step = describe_step(config, *sizes, flags.precision, flags.recompute)
    print(flags.folder or preset, parameters, step, sep="\n\n")
