"""``minibert finetune``."""

import argparse
from dataclasses import fields
from typing import Any

from minibert.cli.parser import add_command
from minibert.cli.setting_flags import add_setting_flags, check_effects, given_settings
from minibert.tasks import finetune
from minibert.tasks.finetuning_settings import FinetuneSettings, split_settings
from minibert.tasks.registry import TASKS


def add(commands: Any) -> None:
    """Add the command and its flags."""
    parser = add_command(
        commands,
        "finetune",
        _run,
        "fine-tune a pretrained model for a task",
        "minibert finetune --recipe mrpc --train train.tsv --dev dev.tsv --model bert-base-uncased",
        "minibert finetune --task classify --train reviews.csv --model runs/books/final --name reviews",
        "minibert finetune --config runs/reviews/config.json --resume",
    )
    add_finetuning_flags(parser)


def add_finetuning_flags(parser: argparse.ArgumentParser) -> None:
    """Add a flag for every setting of a run and of its task."""
    options = [task.Options for task in TASKS.values()]
    add_setting_flags(parser, FinetuneSettings, *options, notes=_task_notes())


def _task_notes() -> dict[str, str]:
    """What to add to an option's help: the tasks that have it, if not all do, and defaults that differ."""
    defaults: dict[str, dict[str, Any]] = {}  # by option, then by task
    for task in TASKS.values():
        for f in fields(task.Options):
            defaults.setdefault(f.name, {})[task.name] = f.default
    notes: dict[str, str] = {}
    for name, values in defaults.items():
        usual = next(iter(values.values()))
        notes[name] = "".join(f" ({task}: {value})" for task, value in values.items() if value != usual)
        notes[name] += f" [{', '.join(values)}]" if len(values) < len(TASKS) else ""
    notes["recipe"] += "; it changes some defaults (blimp can only be evaluated)"
    return notes


def _run(flags: argparse.Namespace) -> None:
    values, source = given_settings(flags), flags.config or "settings"
    check_effects(flags, split_settings(values, source)[0])
    finetune(source, **values)
