"""``minibert pretrain``."""

import argparse
from typing import Any

from minibert.cli.parser import add_command
from minibert.cli.setting_flags import add_recipe_flag, add_setting_flags, check_effects, pretrain_settings
from minibert.tasks import pretrain
from minibert.tasks.pretraining_settings import PretrainSettings


def add(commands: Any) -> None:
    """Add the command and its flags."""
    parser = add_command(
        commands,
        "pretrain",
        _run,
        "pre-train a BERT on real text, from scratch or from another model",
        "minibert pretrain --recipe fast",
        "minibert pretrain --corpus books/*.txt --name books --steps 20000",
        "minibert pretrain --config runs/books/config.json --resume",
        "minibert pretrain --model bert-base-uncased --corpus mine/ --learning-rate 5e-5 --name mine",
    )
    add_recipe_flag(parser)
    add_setting_flags(parser, PretrainSettings)


def _run(flags: argparse.Namespace) -> None:
    settings = pretrain_settings(flags)
    check_effects(flags, settings)
    pretrain(settings)
