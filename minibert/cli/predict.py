"""``minibert predict``."""

import argparse
import sys
from pathlib import Path
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
from minibert.data.lines import decoded_lines, read_lines
from minibert.data.tasks import Faults
from minibert.errors import UserError
from minibert.tasks import open_task
from minibert.tasks.predict import (
    check_output,
    examples_of,
    examples_of_lines,
    json_lines,
    records,
    write_predictions,
)
from minibert.tasks.registry import TASKS
from minibert.tasks.task import Task


def add(commands: Any) -> None:
    """Add the command and its flags."""
    parser = add_command(
        commands,
        "predict",
        _run,
        "get the predictions of a fine-tuned model",
        'minibert predict --model runs/sst2/best "a fine film"',
        "minibert predict --model runs/wnut17/best --input tweets.conll --output tagged.conll",
        "minibert predict --model runs/mrpc/best --input pairs.txt --lines --output answers.jsonl",
    )
    parser.usage = f"{parser.prog} --model FOLDER [TEXT ...] [flags]"
    parser.add_argument(
        "text",
        nargs="*",
        metavar="TEXT",
        help="texts; if none are given and there is no --input, lines are read from stdin",
    )
    parser.add_argument("--pair", metavar="TEXT", help="second text of a pair; for questions, the passage")
    add_model_flag(parser, "a fine-tuned model", default=None)
    parser.add_argument(
        "--input", metavar="FILE", help="file in the format of the training data; labels are not needed"
    )
    parser.add_argument(
        "--lines", action="store_true", help="FILE has one text per line, or two separated by a tab"
    )
    endings = ", ".join(f"{task.own_ending} ({task.name})" for task in TASKS.values() if task.own_ending)
    parser.add_argument(
        "--output",
        metavar="FILE",
        help=f"file to write: one JSON object per line, or the usual format of the task for {endings}",
    )
    add_skip_flag(parser)
    add_batch_flags(parser)
    add_layout_flags(parser)


def _run(flags: argparse.Namespace) -> None:
    _check_inputs(flags)
    faults = Faults(flags.skip_bad)
    task, model = open_task(flags.model, device=chosen_device(flags))
    layout = layout_of(flags)
    task.set_layout(layout)
    if layout and (flags.lines or not flags.input):
        flag = "--" + next(iter(layout)).replace("_", "-")
        raise UserError(f"{flag} says how --input FILE is read; leave it out, for these are plain texts")
    examples = _examples_to_predict(flags, task, faults)
    if flags.output:
        check_output(task, examples, flags.output)
    predictions = task.predict(model, examples, flags.batch_size)
    if flags.output:
        write_predictions(task, examples, predictions, flags.output)
        print(f"{len(predictions):,} prediction(s) written to {flags.output}")
    else:
        print(json_lines(records(task, examples, predictions)), end="")
    tell(faults)


def _check_inputs(flags: argparse.Namespace) -> None:
    """Raise UserError unless a command line names one source of texts and another file for predictions."""
    if flags.text and flags.input:
        raise UserError("both texts and --input FILE; give only one of them")
    if flags.pair is not None and not flags.text:
        raise UserError(
            "--pair needs a text on the command line; in a file of lines, put a tab between the two texts"
        )
    if flags.lines and not flags.input:
        raise UserError("--lines needs --input FILE; stdin is always read line by line")
    if not flags.text and not flags.input and sys.stdin.isatty():
        raise UserError("nothing to read; give a text, --input FILE, or lines on stdin")
    check_written(flags.output, flags.input)


def _examples_to_predict(flags: argparse.Namespace, task: Task, faults: Faults) -> list[Any]:
    """The examples on the command line, in a file, in the lines of a file, or in those of stdin."""
    if flags.text:
        return examples_of(task, ((text, flags.pair) for text in flags.text), "the texts given", faults)
    if flags.input and not flags.lines:
        return task.read(flags.input, labelled=False, faults=faults)
    if flags.input:
        return examples_of_lines(task, read_lines(flags.input), flags.input, faults)
    return examples_of_lines(task, decoded_lines(sys.stdin.buffer, Path("stdin")), "stdin", faults)
