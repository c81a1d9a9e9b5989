"""``minibert prepare``."""

import argparse
from typing import Any

from minibert.cli.parser import add_command
from minibert.cli.setting_flags import add_setting_flags, check_effects, pretrain_settings
from minibert.ranks import world
from minibert.tasks import prepare
from minibert.tasks.pretraining_settings import PretrainSettings


def add(commands: Any) -> None:
    """Add the command and its flags."""
    parser = add_command(
        commands,
        "prepare",
        _run,
        "turn a corpus into token arrays on disk, ready for pretrain",
        "minibert prepare --corpus wikipedia/ --vocab-size 30000",
        "mpirun -n 8 minibert prepare --corpus wikipedia/ --vocab-size 30000",
    )
    names = (
        "corpus layout held_out held_out_seed tokenizer variant vocab_size alphabet_limit lowercase seed "
        "prepared processes"
    )
    add_setting_flags(parser, PretrainSettings, names=names.split())


def _run(flags: argparse.Namespace) -> None:
    settings = pretrain_settings(flags)
    check_effects(flags, settings)
    prepare(settings, world())
