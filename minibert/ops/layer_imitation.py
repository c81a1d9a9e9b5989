"""Imitation of another model's layers, whose hidden size and number of heads may be others."""

from minibert.arrays import Array
from minibert.ops.similarity import unit_length, unit_length_backward

Cache = tuple


def relation_loss(hidden: Array, teacher_hidden: Array, weights: Array) -> tuple[Array, Cache]:
    """How differently two models relate the tokens of a text to each other.

        r[b, i, j] = cos(h[b, i], h[b, j])          likewise t, of the teacher
        loss = Σ weights[b, i, j] (r[b, i, j] − t[b, i, j])²

    hidden h (B, S, H), teacher_hidden (B, S, H′), weights (B, S, S), 0 for padding → loss, a 0-d array. The
    vectors themselves cannot be compared, since the two models number their features differently and may have
    more or fewer of them. The teacher has no derivative.

    Source: Tung and Mori 2019, "Similarity-Preserving Knowledge Distillation", there for the examples of a
    batch instead of the tokens of a text.
    """
    h, unit_cache = unit_length(hidden)
    t, _ = unit_length(teacher_hidden)
    difference = h @ h.transpose(0, 2, 1) - t @ t.transpose(0, 2, 1)  # (B, S, S)
    return (weights * difference * difference).sum(), (h, unit_cache, weights, difference)


def relation_loss_backward(dout: Array | float, cache: Cache) -> Array:
    """Derivative of :func:`relation_loss` with respect to hidden: dhidden (B, S, H). dout is a scalar.

    forward: r = ĥ ĥᵀ with ĥ = h/‖h‖, and dr = dout · 2 · weights (r − t). ĥ stands on both sides of the
    product, so dĥ = dr ĥ + drᵀ ĥ.
    """
    h, unit_cache, weights, difference = cache
    drelations = weights * difference * (2.0 * dout)  # (B, S, S)
    return unit_length_backward((drelations + drelations.transpose(0, 2, 1)) @ h, unit_cache)


def attention_loss(probabilities: Array, teacher_probabilities: Array, weights: Array) -> tuple[Array, Cache]:
    """How differently two models attend, in the mean over their heads.

        m[b, i, j] = Σₐ p[b, a, i, j] / A          likewise t, of the teacher
        loss = Σ weights[b, i, j] (m[b, i, j] − t[b, i, j])²

    probabilities p (B, A, S, S), teacher_probabilities (B, A′, S, S), weights (B, S, S) or of a shape that is
    broadcast to it, 0 for padding → loss, a 0-d array. The teacher has no derivative.

    Related: Jiao et al. 2020, "TinyBERT", which compares the scores of each head, and so needs the same
    number of heads in both models.
    """
    difference = probabilities.mean(axis=1) - teacher_probabilities.mean(axis=1)  # (B, S, S)
    return (weights * difference * difference).sum(), (weights, difference, probabilities.shape[1])


def attention_loss_backward(dout: Array | float, cache: Cache) -> Array:
    """Derivative of :func:`attention_loss` with respect to the probabilities: (B, A, S, S). dout is a scalar.

    forward: each of the A heads adds p/A to m, and dm = dout · 2 · weights (m − t).
    """
    weights, difference, heads = cache
    dhead = weights * difference * (2.0 * dout / heads)  # (B, S, S), the same for each head
    return dhead[:, None].repeat(heads, axis=1)
