"""The names of labels: collected from the training data, and checked against all other data."""

import re
from collections.abc import Iterator, Sequence
from typing import TypeVar

from minibert.data.tasks.conll import TaggedSentence
from minibert.data.tasks.faults import Faults, Problem
from minibert.data.tasks.tables import TextExample
from minibert.errors import UserError

Labelled = TextExample | TaggedSentence
LabelledT = TypeVar("LabelledT", bound=Labelled)


def label_names(examples: Sequence[Labelled]) -> list[str]:
    """All labels, or tags, that occur, sorted as numbers if all are, else by name. A label's id is its index.

    Raises UserError if there is only one, from which nothing can be learned.
    """
    names = {name for example in examples for _, name in _labels_of(example)}
    if len(names) < 2:
        told = f"the only label is {names.pop()!r}" if names else "there are no labels"
        raise UserError(f"{examples[0].place.path}: {told}; at least two are needed to learn from")
    numbers = all(re.fullmatch(r"-?\d{1,99}", name) for name in names)  # Python refuses very long ones
    return sorted(names, key=lambda name: (int(name), name) if numbers else (0, name))


def check_labels(
    examples: Sequence[LabelledT], names: Sequence[str], faults: Faults | None = None
) -> list[LabelledT]:
    """The examples whose labels are all among ``names``, those of the training data.

    Labels of the training data that do not occur here are noted in ``faults``. Raises UserError, naming file
    and line, for a label that the training data lacks. If ``faults`` skips bad examples, these are left out
    and counted.
    """
    faults = Faults() if faults is None else faults
    known, kept = set(names), []
    for example in examples:
        with faults.leave_out(example.place):
            for line, name in _labels_of(example):
                if name not in known:
                    raise Problem(f"label {name!r} is not one of the training data's ({listed(names)})", line)
            kept.append(example)
    if not kept:
        raise UserError(f"{examples[0].place.path}: no example has a label of the training data")
    seen = {name for example in kept for _, name in _labels_of(example)}
    absent = [name for name in names if name not in seen]
    if absent:
        path = examples[0].place.path
        faults.note(path, f"{len(absent)} of the training data's labels never occur here: {listed(absent)}")
    return kept


def _labels_of(example: Labelled) -> Iterator[tuple[int, str]]:
    """Each label, and the line of the example that it is on."""
    if isinstance(example, TaggedSentence):
        yield from enumerate(example.tags or ())
    elif example.label is not None:
        yield 0, str(example.label)


def listed(names: Sequence[str]) -> str:
    """The first eight, and how many there are if there are more."""
    more = f", … ({len(names)} in all)" if len(names) > 8 else ""
    return ", ".join(map(str, names[:8])) + more
