"""Measuring a fine-tuned model on a labelled file, or a pretrained one on minimal pairs."""

import warnings
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from minibert.bert import BertForMaskedLM
from minibert.data.tasks import RECIPES, Faults, MinimalPair
from minibert.errors import UserError, check_count
from minibert.tasks.likelihood import SCORINGS, blimp_scores
from minibert.tasks.registry import open_task
from minibert.tasks.task import check_layout
from minibert.text import open_tokenizer
from minibert.train.metrics import without_nan
from minibert.variants import open_model

# Sequences per batch where nothing else is said. Minimal pairs are short sentences: only large batches of
# them keep several threads busy.
BATCH_SIZES = {"tasks": 32, "blimp": 512}


@dataclass(frozen=True)
class Evaluation:
    """How good a model is on a file: its task's scores, as fractions, overall and for parts of the data."""

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
        """The same, as JSON can hold it: a score that is not a number, as some correlations are, is None."""
        details = {part: without_nan(scores) for part, scores in self.details.items()}
        return asdict(self) | {"scores": without_nan(self.scores), "details": details}


def evaluate(
    folder: str | Path,
    path: str | Path,
    *,
    layout: Mapping[str, Any] | None = None,
    limit: int | None = None,
    batch_size: int | None = None,
    scoring: str | None = None,
    faults: Faults | None = None,
    **options: Any,
) -> Evaluation:
    """Measure the model in a fine-tuned folder on a file.

    ``layout`` says how the file is read, if its format is not that of the training data: {"recipe": "mrpc"} …
    ``options`` are those of ``from_pretrained``: device, precision … With ``limit``, only the first so many
    examples are used. ``batch_size`` defaults to `BATCH_SIZES`.

    The recipe "blimp" is for models that predict masked words, as they do after pre-training. Its score is
    the share of minimal pairs whose good sentence they find likelier, by a ``scoring`` of
    `pseudo_log_likelihoods`; the limit is per paradigm.

    Raises UserError for a folder without such a model, and for a file that its task cannot read or whose
    labels it does not know.
    """
    if limit is not None:
        check_count("limit", limit)
    faults = Faults() if faults is None else faults
    layout = layout or {}
    minimal_pairs = layout.get("recipe") == "blimp"
    if batch_size is None:
        batch_size = BATCH_SIZES["blimp" if minimal_pairs else "tasks"]
    if minimal_pairs:
        check_layout("blimp", layout)
        pairs = _first_pairs(RECIPES["blimp"].read(path, faults=faults), limit)
        how = {"scoring": scoring or SCORINGS[0], "batch_size": batch_size}
        scores, details = _minimal_pair_scores(folder, pairs, how, options)
        return Evaluation(str(folder), "minimal pairs", str(path), len(pairs), scores, details)
    if scoring is not None:
        raise UserError("scoring says how minimal pairs are compared; give it only with the recipe blimp")
    task, model = open_task(folder, **options)
    task.set_layout(layout)
    examples = task.check(task.read(path, faults=faults), faults)[:limit]
    predictions = task.predict(model, examples, batch_size)
    scores, details = task.scores(examples, predictions), task.details(examples, predictions)
    return Evaluation(str(folder), task.name, str(path), len(examples), scores, details)


def _first_pairs(pairs: Sequence[MinimalPair], limit: int | None) -> list[MinimalPair]:
    """The first ``limit`` pairs of each paradigm, or all of them."""
    of_paradigm = defaultdict(list)
    for pair in pairs:
        of_paradigm[pair.paradigm].append(pair)
    return [pair for group in of_paradigm.values() for pair in group[:limit]]


def _minimal_pair_scores(
    folder: str | Path, pairs: Sequence[MinimalPair], how: Mapping[str, Any], options: Mapping[str, Any]
) -> tuple[dict[str, float], dict[str, dict[str, float]]]:
    """Accuracy over all pairs, and that of each phenomenon with the number of its pairs."""
    tokenizer = open_tokenizer(folder)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".* does not use")  # an unused pooler is nothing to warn about
        model = open_model(BertForMaskedLM, folder, complete=True, **options)
    shares = blimp_scores(model, tokenizer, pairs, progress=True, **how)
    overall, counts = shares.pop("overall"), Counter(pair.phenomenon for pair in pairs)
    return {"accuracy": overall}, {
        phenomenon: {"accuracy": share, "pairs": counts[phenomenon]} for phenomenon, share in shares.items()
    }


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
