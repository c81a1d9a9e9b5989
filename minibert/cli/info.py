"""``minibert info``."""

import argparse
import json
from typing import Any

from minibert.bert import PRESETS, BertConfig
from minibert.cli.parser import add_command
from minibert.errors import UserError
from minibert.precision import PRECISIONS
from minibert.tasks.info import (
    NO_DISCRIMINATOR,
    describe_parameters,
    describe_step,
    info_record,
    pretraining_kind,
)
from minibert.tasks.scaling import Machine, describe_scaling, scaling
from minibert.variants import open_config
from minibert.variants.electra import ElectraForPreTraining


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
        "minibert info --preset base --ranks 64 --tflops 300 --link 50 --latency 5",
    )
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "folder", nargs="?", metavar="FOLDER", help="a pretrained folder, instead of --preset"
    )
    source.add_argument("--preset", metavar="NAME", help=f"{', '.join(PRESETS)} (default: base)")
    parser.add_argument(
        "--batch-size", type=int, default=32, metavar="N", help="sequences per step (default: %(default)s)"
    )
    parser.add_argument(
        "--max-predictions",
        type=int,
        metavar="N",
        help="tokens to predict per sequence (default: 20, or as many as it has)",
    )
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
    parser.add_argument("--json", action="store_true", help="print it all as one JSON object")
    _add_scaling_flags(parser)


def _add_scaling_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "several ranks",
        "What the step costs on several processes with a device each (docs/scaling.md).\n"
        "No speed is assumed: for times, give what your devices and links achieve.",
    )
    group.add_argument("--ranks", type=int, metavar="N", help="ranks, each with --batch-size sequences")
    group.add_argument(
        "--tflops",
        type=float,
        metavar="X",
        help="10¹² FLOP/s of a rank over a whole training step, as measured: the step's FLOPs / its seconds",
    )
    group.add_argument(
        "--link", type=float, metavar="X", help="GB/s (10⁹ bytes) that a rank sends over the slowest link"
    )
    group.add_argument(
        "--latency", type=float, default=0.0, metavar="X", help="microseconds per message (default: 0)"
    )
    group.add_argument(
        "--shard-optimiser", action="store_true", help="each rank keeps its part of the optimiser's moments"
    )


def _run(flags: argparse.Namespace) -> None:
    preset = "base" if flags.preset is None else flags.preset
    config = open_config(flags.folder) if flags.folder else BertConfig.preset(preset)
    length = min(128, config.longest_sequence) if flags.max_seq_length is None else flags.max_seq_length
    most = max(1, length)  # a length below 1 is told later
    predictions = min(20, most) if flags.max_predictions is None else flags.max_predictions
    if predictions > most:
        raise UserError(f"{predictions} tokens to predict in sequences of {length}; lower --max-predictions")
    sizes = flags.batch_size, length, predictions
    kind = pretraining_kind(flags.folder) if flags.folder else None
    discriminator = kind is ElectraForPreTraining
    how = flags.precision, flags.recompute
    machine, found = _machine(flags), None
    if flags.ranks is not None:
        if discriminator:
            raise UserError(NO_DISCRIMINATOR)
        found = scaling(config, flags.ranks, machine, sizes, *how, flags.shard_optimiser, kind)
    if flags.json:
        shown = info_record(config, *sizes, *how, kind)
        print(json.dumps({"model": flags.folder or preset, **shown, "scaling": found}, indent=2))
        return
    parts = [flags.folder or preset, describe_parameters(config, kind)]
    parts.append(NO_DISCRIMINATOR if discriminator else describe_step(config, *sizes, *how, kind))
    print(*parts, *([describe_scaling(found)] if found else []), sep="\n\n")


def _machine(flags: argparse.Namespace) -> Machine | None:
    """The speeds that were given, if any."""
    given = {f"--{name}" for name in ("tflops", "link") if getattr(flags, name) is not None}
    if flags.ranks is None and (given or flags.latency or flags.shard_optimiser):
        raise UserError(
            "--tflops, --link, --latency and --shard-optimiser are about several ranks; give --ranks"
        )
    if flags.latency and not given:
        raise UserError("--latency alone gives no times; give --tflops and --link, too")
    if len(given) == 1:
        raise UserError(
            f"{given.pop()} alone gives no times; give --tflops and --link, as measured, or neither"
        )
    return Machine(flags.tflops * 1e12, flags.link * 1e9, flags.latency * 1e-6) if given else None
