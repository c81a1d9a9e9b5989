"""``minibert distill``."""

import argparse
from typing import Any

from minibert.cli.finetune import add_finetuning_flags
from minibert.cli.parser import add_command
from minibert.cli.setting_flags import check_effects, given_settings
from minibert.errors import UserError
from minibert.tasks import finetune
from minibert.tasks.finetuning_settings import split_settings
from minibert.tasks.registry import read_task


def add(commands: Any) -> None:
    """Add the command and its flags."""
    parser = add_command(
        commands,
        "distill",
        _run,
        "fine-tune a small model to do what a larger one has been fine-tuned for",
        "minibert distill --teacher runs/sst2/best --model mini --train train.tsv --dev dev.tsv --name small",
        "minibert distill --teacher runs/sst2/best --train train.tsv --teacher-weight 0.9 --temperature 4",
        "minibert distill --teacher runs/reviews/best --train reviews.tsv --unlabelled more-reviews.txt",
    )
    add_finetuning_flags(parser)
    parser.usage = f"{parser.prog} --teacher FOLDER [--config FILE] [flags]"


def _run(flags: argparse.Namespace) -> None:
    """Fine-tune with the task and the data format of the teacher, unless the flags say otherwise."""
    values = given_settings(flags)
    if not isinstance(values.get("teacher"), str):
        raise UserError("teacher is missing: give the folder of a fine-tuned model (--teacher)")
    if values.get("recipe") is None and values.get("task") is None:
        task, _, options = read_task(values["teacher"])
        options.pop("max_length", None)  # the student may read less
        layout = task.Options.usual_layout()
        if layout.keys() & values.keys():  # these files are others than the teacher's
            options = {name: value for name, value in options.items() if name not in layout}
        values = {"task": task.name, **options, **values}
    source = flags.config or "settings"
    check_effects(flags, split_settings(values, source)[0])
    finetune(source, **values)
