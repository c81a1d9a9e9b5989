"""masked-LM loss. The (N, V) scores are the largest array of a step: one array, one pass in, one out.

The forward turns the scores into their own derivative: with p = softmax(scores) and
s = weight / denominator, dscores = s (p − [j = label]). Only the factor dout is left for the backward.
"""

import numpy as np

from minibert.arrays import run_blocks
from minibert.ops.linear import linear_backward

BLOCK = 1 << 15  # elements of work at a time


def masked_lm_loss(
    hidden: np.ndarray,
    weight: np.ndarray,
    bias: np.ndarray,
    labels: np.ndarray,
    label_weights: np.ndarray,
    denominator: float,
) -> tuple[np.ndarray, tuple]:
    """See ``composites.masked_lm_loss``."""
    logits = hidden @ weight.T  # (N, V), in the end dlogits
    nll = np.empty(len(labels), dtype=hidden.dtype)  # (N,)
    scale = label_weights / hidden.dtype.type(denominator)  # (N,)

    def block(rows: slice) -> None:
        z = logits[rows]
        z += bias
        z -= z.max(axis=1, keepdims=True)
        picked = (np.arange(len(z)), labels[rows])
        label_scores = z[picked]
        np.exp(z, out=z)
        total = z.sum(axis=1)
        nll[rows] = np.log(total) - label_scores
        z *= (scale[rows] / total)[:, None]
        z[picked] -= scale[rows]

    run_blocks(block, len(logits), max(BLOCK // logits.shape[1], 1))
    return (scale * nll).sum(), (logits, (hidden, weight))


def masked_lm_loss_backward(
    dout: np.ndarray | float, cache: tuple
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """See ``composites.masked_lm_loss_backward``."""
    dlogits, inner = cache
    return linear_backward(dlogits if dout == 1.0 else dlogits * dout, inner)
