"""The squared error, for predicting numbers instead of classes."""

from minibert.arrays import Array

Cache = tuple


def squared_error(predictions: Array, targets: Array, denominator: float) -> tuple[Array, Cache]:
    """loss = Σ (prediction − target)² / denominator. Both have the same shape → loss, a 0-d array.

    The denominator is usually the number of predictions (a mean); see ``cross_entropy`` for why it is
    an argument.
    """
    difference = predictions - targets
    return (difference * difference).sum() / denominator, (difference, denominator)


def squared_error_backward(dout: Array | float, cache: Cache) -> Array:
    """Derivative of :func:`squared_error` with respect to the predictions. dout is a scalar.

    forward: each prediction adds (p − t)²/denominator, so dp = dout · 2 (p − t) / denominator.
    """
    difference, denominator = cache
    return difference * (2.0 * dout / denominator)
