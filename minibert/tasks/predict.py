"""Predictions of a fine-tuned model: texts, lines or a file in, a prediction for each example out."""

import json
from collections.abc import Iterable, Sequence
from itertools import repeat
from pathlib import Path
from typing import Any

from minibert.data.tasks import Faults, Place
from minibert.data.tasks.faults import Problem
from minibert.errors import UserError
from minibert.files import write_text
from minibert.tasks.registry import open_task
from minibert.tasks.shared import NO_NUMBERS
from minibert.tasks.task import Task
from minibert.text.tokenizer import refuse_single_text


def predict_texts(
    folder: str | Path,
    texts: Sequence[str],
    pairs: Sequence[str] | None = None,
    *,
    batch_size: int = 32,
    **options: Any,
) -> list[dict[str, Any]]:
    """The predictions of the model in a fine-tuned folder for texts, or texts and partners, as dictionaries.

    The partner of a question is its passage. These are the objects that ``minibert predict`` writes.
    ``options`` are those of ``from_pretrained``: device, precision … Raises UserError for a folder without
    such a model, and for texts that its task cannot read.
    """
    refuse_single_text(texts)
    refuse_single_text(pairs)
    texts, pairs = list(texts), None if pairs is None else list(pairs)
    if pairs is not None and len(pairs) != len(texts):
        raise UserError(f"{len(texts)} texts and {len(pairs)} partners; give one for each")
    task, model = open_task(folder, **options)
    examples = examples_of(task, zip(texts, pairs or repeat(None), strict=False), "the texts")
    return records(task, examples, task.predict(model, examples, batch_size))


def examples_of(
    task: Task, texts: Iterable[tuple[str, str | None]], source: str, faults: Faults | None = None
) -> list[Any]:
    """Examples of texts and partners, from ``source``. Raises UserError for one that the task cannot read."""
    faults = Faults() if faults is None else faults
    examples = []
    for number, (text, pair) in enumerate(texts, start=1):
        place = Place(source, number)
        with faults.leave_out(place):
            parts = [text] if pair is None else [text, pair]
            if others := [type(part).__name__ for part in parts if not isinstance(part, str)]:
                raise Problem(f"expected a text, found a {others[0]}; partners are a list of their own")
            if not all(part.strip() for part in parts):
                raise Problem("an empty text")
            examples.append(task.example(text, pair, place))
    if not examples:
        raise faults.nothing_left(source, "text", "give one")
    return examples


def examples_of_lines(
    task: Task, lines: Iterable[str], source: str, faults: Faults | None = None
) -> list[Any]:
    """Examples of lines, each a text, or a text and its partner with a tab between them."""
    parts = (line.partition("\t") for line in lines)
    return examples_of(task, ((text, pair if tab else None) for text, tab, pair in parts), source, faults)


def records(task: Task, examples: Sequence[Any], predictions: Sequence[Any]) -> list[dict[str, Any]]:
    """Each example and its prediction as a dictionary that JSON can hold."""
    return [task.record(*both) for both in zip(examples, predictions, strict=True)]


def write_predictions(
    task: Task, examples: Sequence[Any], predictions: Sequence[Any], path: str | Path
) -> None:
    """Write one JSON object per line, or the task's own format if the file has the suffix of that."""
    if _in_own_format(task, path):
        write_text(path, task.own_format(examples, predictions))
    else:
        write_text(path, json_lines(records(task, examples, predictions)))


def check_output(task: Task, examples: Sequence[Any], path: str | Path) -> None:
    """Raise UserError if `write_predictions` could not write those for these examples."""
    if _in_own_format(task, path):
        task.check_own_format(examples)


def _in_own_format(task: Task, path: str | Path) -> bool:
    return task.own_ending is not None and str(path).endswith(task.own_ending)


def json_lines(values: Iterable[dict[str, Any]]) -> str:
    """One JSON object per line. Raises UserError for a number that is NaN or infinite, which JSON lacks."""
    return "".join(f"{_as_json(value)}\n" for value in values)


def _as_json(value: dict[str, Any]) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except ValueError:
        raise UserError(NO_NUMBERS) from None
