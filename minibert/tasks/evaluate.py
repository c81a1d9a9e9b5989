"""Measuring a fine-tuned model on a labelled file."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from minibert.data.tasks import Faults
from minibert.tasks.registry import open_task


@dataclass(frozen=True)
class Evaluation:
    """How good a model is on a file: the scores of its task, as fractions, and those of parts of the data."""

    model: str
    task: str
    data: str
    examples: int
    scores: dict[str, float]
    details: dict[str, dict[str, float]]  # by the part, such as a kind of entity, then by the score

    def describe(self) -> str:
        """The scores as text, in columns."""
        told = f"{self.model} ({self.task}) on {self.data}: {self.examples:,} examples"
        tables = [{name: {"": value} for name, value in self.scores.items()}, self.details]
        return "\n\n".join([told, *(_columns(table) for table in tables if table)])

    def to_dict(self) -> dict[str, Any]:
        """The same as JSON can hold it: a score that is not a number, such as some correlations, is None."""
        details = {part: _without_nan(scores) for part, scores in self.details.items()}
        return asdict(self) | {"scores": _without_nan(self.scores), "details": details}


def evaluate(
    folder: str | Path,
    path: str | Path,
    *,
    layout: Mapping[str, Any] | None = None,
    batch_size: int = 32,
    faults: Faults | None = None,
    **options: Any,
) -> Evaluation:
    """Measure the model in a fine-tuned folder on a file.

    ``layout`` says how the file is read if not like those of the training: {"recipe": "mrpc"} …; options are
    those of ``from_pretrained``: device, precision … Raises UserError for a folder without such a model, and
    for a file that its task cannot read or whose labels it does not know.
    """
    faults = Faults() if faults is None else faults
    task, model = open_task(folder, **options)
    task.set_layout(layout or {})
    examples = task.check(task.read(path, faults=faults), faults)
    predictions = task.predict(model, examples, batch_size)
    scores, details = task.scores(examples, predictions), task.details(examples, predictions)
    return Evaluation(str(folder), task.name, str(path), len(examples), scores, details)


def _columns(table: Mapping[str, Mapping[str, float]]) -> str:
    """Rows of numbers under the names of their columns, which are the same in every row."""
    names = list(next(iter(table.values())))
    cells = [["", *names], *([part, *map(_shown, row.values())] for part, row in table.items())]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = (
        "  ".join([f"{first:<{widths[0]}}", *map(str.rjust, rest, widths[1:])]) for first, *rest in cells
    )
    return "\n".join(line for line in lines if line.strip())


def _shown(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.4f}"


def _without_nan(scores: Mapping[str, float]) -> dict[str, float | None]:
    return {name: None if math.isnan(value) else value for name, value in scores.items()}
