"""06 Embeddings: the gradient of a table. forward: y = weight[ids]."""

import numpy as np

from minibert.course.exercise import exercise, gradient_trial
from minibert.ops.embedding_lookup import embedding
from minibert.ops.embedding_lookup import embedding_backward as library_backward

# B = 3, S = 4, V = 8: id 5 three times, two of them in one sequence; 0 is padding; 1, 4 and the last id, 7,
# do not occur.
IDS = np.array([[5, 2, 5, 0], [3, 6, 0, 0], [2, 5, 3, 0]])


@exercise(
    "06",
    outputs="dweight",
    trials=lambda draw: [
        gradient_trial(
            lambda weight, ids=ids: embedding(weight, ids),
            {"weight": draw.normal(8, 6)},
            f"dweight, ids {ids.shape}",
        )
        for ids in (IDS, np.array([4, 1, 4]))
    ],
    reference=library_backward,
    hints=(
        "Which rows of the table have an effect on the loss, and how often was each looked up?",
        "dweight[v] is the sum of dout over all places where id v stood; rows that were not looked up stay "
        "0. What does dweight[ids] += dout do where an id occurs twice?",
        "np.add.at(dweight, ids, dout) adds once for every place; dweight[ids] += dout only once for every "
        "id. See `embedding_backward` in minibert/ops/embedding_lookup.py.",
    ),
)
def embedding_backward(dout, cache):
    ids, shape = cache  # (B, S), (V, H)
    dweight = np.zeros(shape, dtype=dout.dtype)
    np.add.at(dweight, ids, dout)
    return dweight


@embedding_backward.mistake(
    "An id that occurs several times keeps only one of its gradients. dweight[ids] += dout reads all rows, "
    "adds, and writes all rows: the last one wins, just as in dweight[ids] = dout. np.add.at adds every time."
)
def repeated_ids_count_once(dout, cache):
    ids, shape = cache
    dweight = np.zeros(shape, dtype=dout.dtype)
    dweight[ids] += dout
    return dweight


@embedding_backward.mistake(
    "Rows of repeated ids hold the mean of their gradients. Every place that looked the row up contributes "
    "to the loss in full: a sum."
)
def mean_over_repeated_ids(dout, cache):
    ids, shape = cache
    counts = np.maximum(np.bincount(ids.reshape(-1), minlength=shape[0]), 1)
    return embedding_backward.solution(dout, cache) / counts[:, None]


@embedding_backward.mistake(
    "The rows that occur are there, packed together. dweight has the table's shape, with each gradient in "
    "the row of its id and 0 where an id does not occur."
)
def only_the_rows_that_occur(dout, cache):
    return embedding_backward.solution(dout, cache)[np.unique(cache[0])]


@embedding_backward.mistake(
    "The row of id 0 has no gradient. That is what PyTorch's padding_idx does; a table by itself does not "
    "know that 0 means padding, and where no loss looks at padding its gradient is 0 anyway."
)
def padding_left_out(dout, cache):
    dweight = embedding_backward.solution(dout, cache)
    dweight[0] = 0
    return dweight


@embedding_backward.mistake(
    "The gradients lie in the rows of their positions, not of their ids: this is how the table of positions "
    "gets its gradient."
)
def added_to_the_positions(dout, cache):
    dweight = np.zeros(cache[1], dtype=dout.dtype)
    length, hidden = dout.shape[-2:]
    dweight[:length] = dout.reshape(-1, length, hidden).sum(axis=0)
    return dweight


@embedding_backward.mistake(
    "The table ends with the largest id that occurred. The cache has its shape: rows behind that are there, "
    "with a gradient of 0."
)
def cut_off_behind_the_largest_id(dout, cache):
    return embedding_backward.solution(dout, cache)[: cache[0].max() + 1].copy()
