"""``minibert evaluate``."""

import argparse
from typing import Any

from minibert.cli.flags import (
    add_batch_flags,
    add_layout_flags,
    add_model_flag,
    add_skip_flag,
    check_written,
    chosen_device,
    layout_of,
    tell,
)
from minibert.cli.parser import add_command
from minibert.data.tasks import Faults
from minibert.files import write_json
from minibert.tasks import evaluate
from minibert.tasks.evaluation import BATCH_SIZES
from minibert.tasks.likelihood import SCORINGS


def add(commands: Any) -> None:
    """Add the command and its flags."""
    parser = add_command(
        commands,
        "evaluate",
        _run,
        "measure a fine-tuned model on a labelled file, or a pretrained one on minimal pairs",
        "minibert evaluate --model runs/wnut17/best --data emerging.test.annotated",
        "minibert evaluate --model runs/mrpc/best --recipe mrpc --data test.txt --json scores.json",
        "minibert evaluate --model runs/tiny/final --recipe blimp --data BLiMP.zip --limit 100",
    )
    parser.usage = f"{parser.prog} --model FOLDER --data FILE [flags]"
    add_model_flag(parser, "a fine-tuned model; for --recipe blimp, a pretrained one", default=None)
    parser.add_argument(
        "--data", required=True, metavar="FILE", help="a labelled file; of a docs-… recipe: train or dev"
    )
    parser.add_argument(
        "--limit", type=int, metavar="N", help="use only the first N examples (blimp: N per paradigm)"
    )
    parser.add_argument(
        "--scoring",
        choices=SCORINGS,
        help="blimp: while a piece of a word is scored, hide the later pieces, too (within_word_l2r, the "
        "default), or only that piece (original)",
    )
    parser.add_argument("--json", metavar="FILE", help="also write the scores to FILE, as JSON")
    add_skip_flag(parser)
    add_batch_flags(parser, None, f"{BATCH_SIZES['tasks']}; blimp: {BATCH_SIZES['blimp']}")
    add_layout_flags(parser)


def _run(flags: argparse.Namespace) -> None:
    check_written(flags.json, flags.data)
    faults = Faults(flags.skip_bad)
    result = evaluate(
        flags.model,
        flags.data,
        layout=layout_of(flags),
        limit=flags.limit,
        batch_size=flags.batch_size,
        scoring=flags.scoring,
        faults=faults,
        device=chosen_device(flags),
    )
    print(result.describe())
    tell(faults)
    if flags.json:
        write_json(flags.json, result.to_dict())
