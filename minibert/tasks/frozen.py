"""Cached features of a frozen encoder, computed once for all epochs and restarts."""

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from minibert.arrays import to_numpy
from minibert.data.tasks import Feature
from minibert.files import explain_write_errors
from minibert.heads.task_models import TaskModel
from minibert.ranks import Ranks
from minibert.tasks.task import outputs


class FrozenEncoder:
    """Adds "features" to rows: the hidden states of the frozen encoder of ``model`` (``feature_layers``).

    Each different row is encoded once. The features are in a file without a name in ``folder``, which
    disappears when the process ends; the system keeps as much of it in memory as there is room for. Several
    ``ranks`` share the work, and each has such a file.
    """

    def __init__(
        self, model: TaskModel, pad_id: int, batch_size: int, folder: Path, ranks: Ranks | None = None
    ):
        self.model, self.pad_id, self.batch_size, self.folder = model, pad_id, batch_size, folder
        self.ranks = ranks or Ranks()
        self._known: dict[tuple[bytes, bytes], np.ndarray] = {}

    def __call__(self, rows: Sequence[Feature]) -> list[Feature]:
        """The same rows with features: (S, head size), or (head size,) for whole texts."""
        new = {_key(row): row for row in rows if _key(row) not in self._known}
        if new:
            with explain_write_errors(self.folder):
                self.folder.mkdir(parents=True, exist_ok=True)
                self._known |= zip(new, self._encode(list(new.values())), strict=True)
        return [replace(row, inputs=row.inputs | {"features": self._known[_key(row)]}) for row in rows]

    def _encode(self, rows: Sequence[Feature]) -> list[np.ndarray]:
        """The features of rows, as read-only views of a file."""
        places: list[tuple[int, tuple[int, ...]]] = [(0, ())] * len(rows)  # where each begins, and its shape
        with tempfile.TemporaryFile(dir=self.folder) as file:
            size = 0  # numbers written
            for indices, output in outputs(self.model, rows, self.batch_size, self.pad_id, self.ranks):
                for index, found in zip(indices, to_numpy(output.features), strict=True):
                    found = found[: len(rows[index])] if found.ndim == 2 else found  # without padding
                    places[index] = size, found.shape
                    size += found.size
                    file.write(found.tobytes())
            file.flush()
            numbers = np.memmap(file, self.model.dtype, mode="r")
        return [numbers[start : start + np.prod(shape)].reshape(shape) for start, shape in places]


def _key(row: Feature) -> tuple[bytes, bytes]:
    """What the encoder reads of a row."""
    return row.inputs["input_ids"].tobytes(), row.inputs["token_type_ids"].tobytes()
