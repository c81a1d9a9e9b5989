"""What XLNet's two streams computed, from either side's outputs, under the same names.

Where nothing is predicted (a row of zeros in ``target_mapping``), either side may compute what it likes.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from parity.cases import numbered


def their_streams(
    hidden_states: Sequence[np.ndarray], attentions: Sequence[Any], batch: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """From transformers' lists: content and query in turn; pairs of maps, with a row for each token."""
    real = batch["target_mapping"].any(axis=2)  # (B, P)
    texts, rows = np.nonzero(real)
    tokens = batch["target_mapping"].argmax(axis=2)[texts, rows]
    content, query = hidden_states[::2], hidden_states[1::2]
    named = numbered("hidden_states", content) | numbered("query_states", [h[real] for h in query])
    named |= numbered("attentions", [pair[0] for pair in attentions])
    return named | numbered("query_attentions", [pair[1][texts, :, tokens] for pair in attentions])


def our_streams(
    hidden_states: Sequence[np.ndarray], attentions: Sequence[np.ndarray], batch: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """From ours: rows of content, then those of the queries."""
    real, length = batch["target_mapping"].any(axis=2), batch["target_mapping"].shape[2]
    texts, rows = np.nonzero(real)
    named = numbered("hidden_states", [h[:, :length] for h in hidden_states])
    named |= numbered("query_states", [h[:, length:][real] for h in hidden_states])
    named |= numbered("attentions", [a[:, :, :length] for a in attentions])
    return named | numbered("query_attentions", [a[:, :, length:][texts, :, rows] for a in attentions])
