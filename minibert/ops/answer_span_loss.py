"""The loss for the start and the end of an answer: two softmaxes over the tokens.

Source: Devlin et al., 2019, section 4.2.
"""

from minibert.arrays import Array
from minibert.ops.cross_entropy_loss import cross_entropy, cross_entropy_backward

Cache = tuple


def span_loss(logits: Array, positions: Array, weights: Array) -> tuple[Array, Cache]:
    """loss = ½ (Σ_b w[0, b] · (−log p_start[b, positions[0, b]]) + the same for the ends, with p_end).

    logits (B, S, 2): at each token, one score for the start and one for the end of the answer. p_start and
    p_end are their softmaxes over the S tokens. positions (2, B): the correct starts, then the correct ends,
    integers in [0, S). weights (2, B): the weight of each position, 1 / their number for a mean, 0 to ignore
    one. → loss, a 0-d array, in nats.
    """
    batch, length, _ = logits.shape
    rows = logits.transpose(2, 0, 1).reshape(2 * batch, length)  # all starts, then all ends
    loss, cache = cross_entropy(rows, positions.reshape(-1), weights.reshape(-1), 2.0)
    return loss, (cache, batch)


def span_loss_backward(dout: Array | float, cache: Cache) -> Array:
    """Derivative of :func:`span_loss`: dlogits (B, S, 2). dout is a scalar.

    forward: cross-entropy of the logits, rearranged into 2B rows; the gradient is rearranged back.
    """
    cache, batch = cache
    drows = cross_entropy_backward(dout, cache)  # (2B, S)
    return drows.reshape(2, batch, -1).transpose(1, 2, 0)
