"""Predictions shared out among the threads of a CPU, or among ranks: each computes some of the batches."""

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from minibert.arrays import to_numpy
from minibert.devices import Device
from minibert.errors import UserError
from minibert.ranks import Ranks
from minibert.text.tokenizer import refuse_single_text
from minibert.threads import get_threads, run_all

PREDICTED = ("logits", "start_logits", "end_logits", "features", "embeddings")  # what others get to see
NO_NUMBERS = (
    "the model's scores are NaN or infinite: its weights are unusable, as after a training run that "
    "diverged; train it again with a lower learning rate"
)
FEW_THREADS = 8  # of more, all compute the same batch: every batch at work needs memory of its own


def check_numbers(scores: np.ndarray) -> None:
    """Raise UserError if a model's score is NaN, which no comparison would notice."""
    if np.isnan(scores).any():
        raise UserError(NO_NUMBERS)


def check_texts(texts: Any) -> None:
    """Raise UserError unless these are several texts, which can be read more than once."""
    refuse_single_text(texts)
    if not hasattr(texts, "__len__"):
        raise UserError(f"expected a list of texts, got {type(texts).__name__}")
    if others := {type(text).__name__ for text in texts if not isinstance(text, str)}:
        raise UserError(f"expected texts, got others among them, of type {', '.join(sorted(others))}")


def share_out(
    batches: Iterable[tuple[np.ndarray, Any]], forward: Callable[[Any], Any], ranks: Ranks, device: Device
) -> Iterator[tuple[np.ndarray, Any]]:
    """The rows and outputs of all batches in their order, on every rank; ``forward(batch)`` gives outputs.

    A CPU computes as many batches at a time as it has threads, if these are few. A thread that computes a
    whole batch does not wait for the others at the end of every product. Batches should come in the order of
    their sizes, lest threads wait for the largest.

    With one rank outputs are as ``forward`` returned them, and otherwise only the fields ``PREDICTED`` of
    them, on the host.
    """
    batches = iter(batches)
    if ranks.size == 1:
        at_once = get_threads() if device.name == "cpu" and get_threads() <= FEW_THREADS else 1
        while group := list(itertools.islice(batches, at_once)):
            if 1 < len(group) == at_once:
                outputs = _by_thread([functools.partial(forward, batch) for _, batch in group])
            else:  # all threads compute the same batch
                outputs = [forward(batch) for _, batch in group]
            yield from zip([rows for rows, _ in group], outputs, strict=True)
        return
    while group := list(itertools.islice(batches, ranks.size)):
        mine = min(ranks.rank, len(group) - 1)  # at the end some ranks may compute the last one again
        output = forward(group[mine][1])
        found = {name: getattr(output, name, None) for name in PREDICTED}
        arrays = {name: to_numpy(array) for name, array in found.items() if array is not None}
        for (rows, _), predicted in zip(group, ranks.gather_arrays(arrays), strict=False):
            yield rows, type(output)(**predicted)


def _by_thread(calls: Sequence[Callable[[], Any]]) -> list[Any]:
    """The results of calls, which threads share out among themselves."""
    results = [None] * len(calls)

    def call(number: int) -> None:
        results[number] = calls[number]()

    run_all(functools.partial(call, number) for number in range(len(calls)))
    return results
