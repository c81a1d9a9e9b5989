"""masked-LM loss. The (N, V) scores are the largest array of a step: one array, its rows worked on in place.

The forward turns the scores into their own derivative: with p = softmax(scores) and
s = weight / denominator, dscores = s (p − [j = label]). Only the factor dout is left for the backward.
"""

import math

import numpy as np

from minibert.arrays import run_blocks
from minibert.kernels.cpu.compiled import compiled, exp, float32, int32, ordered, unordered
from minibert.kernels.cpu.linear import linear_backward, row_block

ROWS = 256  # rows of scores at a time, at most


@compiled
def _cross_entropy_rows(scores, bias, labels, scale, loss):
    """loss = scale · (−log p[label]), and scores ← its derivative, with p = softmax(scores + bias)."""
    for r in range(len(scores)):
        row = scores[r]
        largest = int32(-0x80000000)
        for j in range(len(row)):
            row[j] += bias[j]
            largest = max(largest, ordered(row[j]))
        shift = unordered(largest)
        right = row[labels[r]] - shift
        total = float32(0.0)
        for j in range(len(row)):
            row[j] = exp(row[j] - shift)
            total += row[j]
        loss[r] = scale[r] * (math.log(total) - right)
        share = scale[r] / total
        for j in range(len(row)):
            row[j] *= share
        row[labels[r]] -= scale[r]


def masked_lm_loss(
    hidden: np.ndarray,
    weight: np.ndarray,
    bias: np.ndarray,
    labels: np.ndarray,
    label_weights: np.ndarray,
    denominator: float,
) -> tuple[np.ndarray, tuple]:
    """See ``composites.masked_lm_loss``."""
    scores = np.empty((len(hidden), len(weight)), dtype=hidden.dtype)  # (N, V), in the end dscores
    loss = np.empty(len(hidden), dtype=hidden.dtype)
    scale = label_weights / float32(denominator)

    def block(s: slice) -> None:
        np.matmul(hidden[s], weight.T, out=scores[s])
        _cross_entropy_rows(scores[s], bias, labels[s], scale[s], loss[s])

    run_blocks(block, len(hidden), row_block(len(hidden), ROWS))
    return loss.sum(), (scores, (hidden, weight))


def masked_lm_loss_backward(
    dout: np.ndarray | float, cache: tuple
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """See ``composites.masked_lm_loss_backward``."""
    dscores, inner = cache
    return linear_backward(dscores if dout == 1.0 else dscores * dout, inner)
