"""Cross-entropy of predicted scores, with one correct class per row; some rows may not count."""

from minibert.arrays import Array, get_array_module
from minibert.ops.stable_softmax import log_softmax

Cache = tuple


def cross_entropy(logits: Array, labels: Array, weights: Array, denominator: float) -> tuple[Array, Cache]:
    """loss = Σᵣ w[r] · (−log p[r, labels[r]]) / denominator,   p = softmax(logits).

    logits (N, V), labels (N,) integers in [0, V), weights (N,) → loss, a 0-d array, in nats. A row
    with weight 0 is ignored, whatever its label. The denominator is usually Σ w (a mean);
    it is an argument because several micro-batches that make up one batch must all divide by the sum
    over all of them: a mean of means would weigh a micro-batch with few labels too heavily.
    """
    xp = get_array_module(logits)
    log_p, _ = log_softmax(logits)  # (N, V)
    rows = xp.arange(logits.shape[0])
    nll = -log_p[rows, labels]  # (N,)
    loss = (weights * nll).sum() / denominator
    return loss, (log_p, labels, weights, denominator)


def cross_entropy_backward(dout: Array | float, cache: Cache) -> Array:
    """Derivative of :func:`cross_entropy` with respect to the logits: dlogits (N, V). dout is a scalar.

    forward: row r adds w/denominator · (log Σⱼ exp(z[j]) − z[label]), and the derivative of that with
    respect to z[j] is p[j] − [j = label]. The softmax's Jacobian cancels, and what remains is
    "prediction minus truth":

        dlogits[r, j] = dout · w[r] / denominator · (p[r, j] − [j = labels[r]])
    """
    log_p, labels, weights, denominator = cache
    xp = get_array_module(log_p)
    row_scale = weights * (dout / denominator)  # (N,)
    dlogits = xp.exp(log_p) * row_scale[:, None]  # (N, V)
    rows = xp.arange(labels.shape[0])
    dlogits[rows, labels] -= row_scale  # one column per row: no index occurs twice
    return dlogits
