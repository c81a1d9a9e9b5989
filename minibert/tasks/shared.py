"""Predictions shared out among ranks: each computes some of the batches, and all get the outputs of all."""

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from minibert.arrays import to_numpy
from minibert.ranks import Ranks

PREDICTED = ("logits", "start_logits", "end_logits", "features", "embeddings")  # what others get to see


def share_out(
    batches: Iterable[tuple[np.ndarray, Any]], forward: Callable[[Any], Any], ranks: Ranks
) -> Iterator[tuple[np.ndarray, Any]]:
    """The rows and outputs of all batches in their order, on every rank; ``forward(batch)`` gives outputs.

    With one rank they are as ``forward`` returned them, and otherwise only the fields ``PREDICTED`` of them,
    on the host.
    """
    if ranks.size == 1:
        yield from ((rows, forward(batch)) for rows, batch in batches)
        return
    batches = iter(batches)
    while group := list(itertools.islice(batches, ranks.size)):
        mine = min(ranks.rank, len(group) - 1)  # at the end some ranks may compute the last one again
        output = forward(group[mine][1])
        found = {name: getattr(output, name, None) for name in PREDICTED}
        arrays = {name: to_numpy(array) for name, array in found.items() if array is not None}
        for (rows, _), predicted in zip(group, ranks.gather_arrays(arrays), strict=False):
            yield rows, type(output)(**predicted)
