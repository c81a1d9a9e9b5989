"""The similarity of two vectors, and the losses that learn it from pairs of texts."""

from minibert.arrays import Array, get_array_module
from minibert.ops.cross_entropy_loss import cross_entropy, cross_entropy_backward
from minibert.ops.mean_squared_error import squared_error, squared_error_backward

Cache = tuple

EPS = 1e-12  # a shorter vector is divided by this, as in torch.nn.functional.normalize


def unit_length(x: Array, eps: float = EPS) -> tuple[Array, Cache]:
    """y = x / max(‖x‖, ε) over the last axis: only the direction of x. x (…, H) → y (…, H)."""
    xp = get_array_module(x)
    norm = xp.sqrt((x * x).sum(axis=-1, keepdims=True))  # (…, 1)
    length = xp.maximum(norm, eps)
    y = x / length
    return y, (y, length, norm > eps)


def unit_length_backward(dout: Array, cache: Cache) -> Array:
    """Derivative of :func:`unit_length`.

    forward: y = x/‖x‖ with ∂‖x‖/∂x = x/‖x‖ = y, so dx = (dout − y (y·dout)) / ‖x‖: the component along
    x is removed, since it would only change the length. Where x is divided by the constant ε, dx = dout / ε.
    """
    y, length, longer = cache
    along = (dout * y).sum(axis=-1, keepdims=True) * longer  # (…, 1)
    return (dout - y * along) / length


def cosine_similarity(x: Array, y: Array) -> tuple[Array, Cache]:
    """cos[n] = x[n]·y[n] / (‖x[n]‖ ‖y[n]‖), from −1 to 1. x, y (N, H) → (N,)."""
    x, x_cache = unit_length(x)
    y, y_cache = unit_length(y)
    return (x * y).sum(axis=-1), (x, y, x_cache, y_cache)


def cosine_similarity_backward(dout: Array, cache: Cache) -> tuple[Array, Array]:
    """Derivatives of :func:`cosine_similarity`: dx, dy (N, H).

    forward: the product of two unit vectors, so each one's gradient is the other, times dout.
    """
    x, y, x_cache, y_cache = cache
    dout = dout[:, None]  # (N, 1)
    return unit_length_backward(dout * y, x_cache), unit_length_backward(dout * x, y_cache)


def cosine_loss(x: Array, y: Array, targets: Array, denominator: float) -> tuple[Array, Cache]:
    """loss = Σ (cos(x[n], y[n]) − target[n])² / denominator (Reimers and Gurevych, 2019).

    x, y (N, H), targets (N,), the similarity that people assigned to each pair → loss, a 0-d array.
    """
    similarity, similarity_cache = cosine_similarity(x, y)  # (N,)
    loss, loss_cache = squared_error(similarity, targets, denominator)
    return loss, (similarity_cache, loss_cache)


def cosine_loss_backward(dout: Array | float, cache: Cache) -> tuple[Array, Array]:
    """Derivatives of :func:`cosine_loss`: dx, dy (N, H). dout is a scalar."""
    similarity_cache, loss_cache = cache
    return cosine_similarity_backward(squared_error_backward(dout, loss_cache), similarity_cache)


def in_batch_softmax_loss(
    x: Array, y: Array, scale: float, symmetric: bool, denominator: float
) -> tuple[Array, Cache]:
    """Each x has to find its y among those of the whole batch: loss = Σₙ −log p[n, n] / denominator.

    x, y (N, H), where rows n of both belong together → loss, a 0-d array, in nats. p = softmax(scale · C)
    over each row of C[n, m] = cos(x[n], y[m]). The partners of the other rows serve as negatives at no extra
    cost (Henderson et al., 2017; with cosines and a scale of 20, Reimers and Gurevych's "multiple negatives
    ranking loss"). With ``symmetric`` each y has to find its x too, and the loss is the mean of both
    directions (as in CLIP, Radford et al., 2021).

    If the same text is in two rows, it counts as a wrong answer in one of them, so such pairs should not be
    in one batch.
    """
    xp = get_array_module(x)
    x, x_cache = unit_length(x)
    y, y_cache = unit_length(y)
    scores = (x @ y.T) * scale  # (N, N)
    right, weights = xp.arange(len(x)), xp.ones(len(x), dtype=x.dtype)
    loss, loss_cache = cross_entropy(scores, right, weights, denominator)
    transposed_cache = None
    if symmetric:
        transposed_loss, transposed_cache = cross_entropy(scores.T, right, weights, denominator)
        loss = 0.5 * (loss + transposed_loss)
    return loss, (x, y, x_cache, y_cache, scale, loss_cache, transposed_cache)


def in_batch_softmax_loss_backward(dout: Array | float, cache: Cache) -> tuple[Array, Array]:
    """Derivatives of :func:`in_batch_softmax_loss`: dx, dy (N, H). dout is a scalar.

    forward: scores = scale · x̂ ŷᵀ went into one cross-entropy or, with ``symmetric``, also transposed into a
    second one, with weight ½ each. The gradients of the matrix product are dx̂ = dscores ŷ · scale and
    dŷ = dscoresᵀ x̂ · scale.
    """
    x, y, x_cache, y_cache, scale, loss_cache, transposed_cache = cache
    dscores = cross_entropy_backward(dout, loss_cache)  # (N, N)
    if transposed_cache is not None:
        dscores = 0.5 * (dscores + cross_entropy_backward(dout, transposed_cache).T)
    dscores = dscores * scale
    return unit_length_backward(dscores @ y, x_cache), unit_length_backward(dscores.T @ x, y_cache)
