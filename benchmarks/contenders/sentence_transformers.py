"""sentence-transformers, with its default settings."""

from collections.abc import Sequence

import numpy as np
from sentence_transformers import SentenceTransformer

from benchmarks.worker import Contender


def embedding(folder: str, pieces: Sequence[Sequence[str]]) -> Contender:
    """``embed`` one of the ``pieces`` of sentences; ``save`` the last one's vectors."""
    model = SentenceTransformer(folder, device="cpu")
    return {
        "embed": lambda number: model.encode(pieces[number]),
        "save": lambda path: np.save(path, model.encode(pieces[-1])),
    }
