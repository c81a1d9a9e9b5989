"""Attention that knows how far apart two tokens are, not where they stand (Dai et al., 2019).

A score has three terms. Each compares the query, plus a learned bias of the head, with something else:

    what the key says           (q + u) · k[j]
    how far away it is          (q + w) · r[distance from j to the query]
    is it in another segment?   (q + t) · (e₁ − e₀)    if it is, else 0

XLNet writes the last one as (q + t) · e₁ in another segment and (q + t) · e₀ in the same. The softmax ignores
what is added to all scores of a query, such as (q + t) · e₀, so only the difference matters.
"""

import math

from minibert.arrays import Array, get_array_module
from minibert.dropout_bits import DropoutKey
from minibert.ops.attention import merge_heads, split_heads
from minibert.ops.inverted_dropout import dropout, dropout_backward
from minibert.ops.observed import Observe, observed_backward
from minibert.ops.stable_softmax import softmax, softmax_backward

Cache = tuple


def product(x: Array, weight: Array) -> tuple[Array, Cache]:
    """y = x W: a linear map without a bias. x (…, K), weight (K, N) → y (…, N)."""
    return x @ weight, (x, weight)


def product_backward(dout: Array, cache: Cache) -> tuple[Array, Array]:
    """Derivatives of :func:`product`: dx, dweight.

    forward: y[r, n] = Σₖ x[r, k] W[k, n] for every row r, so dx = dout Wᵀ and dW = xᵀ dout.
    """
    x, weight = cache
    rows = x.reshape(-1, x.shape[-1])  # (R, K)
    return dout @ weight.T, rows.T @ dout.reshape(len(rows), -1)


def relative_shift(x: Array, first: Array, length: int) -> tuple[Array, Cache]:
    """y[b, a, t, j] = x[b, a, t, first[b, t] + j]: of each row, the ``length`` numbers from ``first`` on.

    x (B, A, T, C) has a number for each distance, from the farthest key on the left to the farthest on the
    right; first (B, T) is where the row's first key is among them. → y (B, A, T, length).
    """
    xp = get_array_module(x)
    columns = first[:, None, :, None] + xp.arange(length)  # (B, 1, T, length)
    return xp.take_along_axis(x, columns, -1), (first, x.shape[-1])


def relative_shift_backward(dout: Array, cache: Cache) -> Array:
    """Derivative of :func:`relative_shift`: dx (B, A, T, C).

    forward: number c of row t went to place j = c − first[t], if there is such a place, so dx[c] = dout[j]
    there, and 0 elsewhere.
    """
    first, columns = cache
    xp = get_array_module(dout)
    places = xp.arange(columns) - first[:, None, :, None]  # (B, 1, T, C)
    nearest = places.clip(0, dout.shape[-1] - 1)
    return xp.take_along_axis(dout, nearest, -1) * (places == nearest)


def relative_attention(
    q: Array,
    k: Array,
    v: Array,
    r: Array,
    content_bias: Array,
    position_bias: Array,
    segment_bias: Array,
    segments: Array,
    first: Array,
    elsewhere: Array,
    bias: Array,
    probability: float,
    key: DropoutKey | None,
    observe: Observe,
) -> tuple[Array, Cache]:
    """For each of T queries, the mean of S values, weighted by the three terms above:

        scores = ((q + u) kᵀ + shift((q + w) rᵀ) + elsewhere · (q + t)(e₁ − e₀)) / √D + bias
        y = dropout(softmax(scores)) v

    q (B, T, H), k and v (B, S, H), r (2S − 1, H): the keys of the distances S − 1, …, −(S − 1).
    content_bias u, position_bias w and segment_bias t (A, D), segments e (2, A, D). first (B, T) is where a
    query's distances begin in r, elsewhere (B, 1, T, S) is 1 for keys of another segment, else 0, and bias is
    (B, 1, T, S). → y (B, T, H). ``observe`` sees the steps that ``ops.observed_attention`` shows.
    """
    num_heads, size = content_bias.shape
    scale = 1.0 / math.sqrt(size)
    q, q_observed = observe("q", split_heads(q, num_heads))  # (B, A, T, D)
    k, k_observed = observe("k", split_heads(k, num_heads))  # (B, A, S, D)
    v, v_observed = observe("v", split_heads(v, num_heads))  # (B, A, S, D)
    r = split_heads(r[None], num_heads)[0]  # (A, 2S − 1, D)
    contrast = (segments[1] - segments[0])[:, :, None]  # (A, D, 1)
    scores = (q + content_bias[:, None]) @ k.mT  # (B, A, T, S)
    distances = (q + position_bias[:, None]) @ r.mT  # (B, A, T, 2S − 1)
    shifted, shift_cache = relative_shift(distances, first, k.shape[2])
    scores = scores + shifted + elsewhere * ((q + segment_bias[:, None]) @ contrast)
    scores = scores * scale + bias
    scores, scores_observed = observe("scores", scores)
    p, softmax_cache = softmax(scores)
    p, p_observed = observe("probabilities", p)
    dropped, dropout_cache = dropout(p, probability, key)
    y, y_observed = observe("context", merge_heads(dropped @ v))  # (B, T, H)
    observed = q_observed, k_observed, v_observed, scores_observed, p_observed, y_observed
    operands = q, k, v, r, content_bias, position_bias, segment_bias, contrast, elsewhere
    return y, (operands, num_heads, scale, shift_cache, softmax_cache, dropped, dropout_cache, observed)


def relative_attention_backward(dout: Array, cache: Cache) -> tuple[Array, ...]:
    """Derivatives of :func:`relative_attention`: dq, dk, dv, dr, du, dw, dt, de.

    forward, with c = (q + t)·(e₁ − e₀), one number per query: s = (… + … + elsewhere · c)/√D + bias and
    y = p̃ v. So dv, dp̃ and ds are those of ``attention_backward``; with d = ds/√D, the three terms give

        content     d(q + u) = d k               dk = dᵀ (q + u)
        distance    x = shift_backward(d)        d(q + w) = x r      dr = Σ_b xᵀ (q + w)
        segment     dc = Σⱼ elsewhere · d        d(q + t) = dc (e₁ − e₀),   de₁ = −de₀ = Σ dc (q + t)

    q is in all three, so dq is the sum. u, w and t were broadcast over texts and queries, r over texts.
    """
    operands, num_heads, scale, shift_cache, softmax_cache, dropped, dropout_cache, observed = cache
    q, k, v, r, content_bias, position_bias, segment_bias, contrast, elsewhere = operands
    q_observed, k_observed, v_observed, scores_observed, p_observed, y_observed = observed
    xp = get_array_module(dout)
    dy = split_heads(observed_backward(dout, y_observed), num_heads)  # (B, A, T, D)
    dp = observed_backward(dropout_backward(dy @ v.mT, dropout_cache), p_observed)  # (B, A, T, S)
    dscores = observed_backward(softmax_backward(dp, softmax_cache), scores_observed) * scale
    dv = observed_backward(dropped.mT @ dy, v_observed)
    dk = observed_backward(dscores.mT @ (q + content_bias[:, None]), k_observed)
    from_content = dscores @ k  # (B, A, T, D)
    ddistances = relative_shift_backward(dscores, shift_cache)  # (B, A, T, 2S − 1)
    from_position = ddistances @ r  # (B, A, T, D)
    dr = (ddistances.mT @ (q + position_bias[:, None])).sum(axis=0)  # (A, 2S − 1, D)
    delsewhere = (dscores * elsewhere).sum(axis=-1, keepdims=True)  # (B, A, T, 1)
    from_segment = delsewhere @ contrast.mT  # (B, A, T, D)
    dcontrast = (delsewhere * (q + segment_bias[:, None])).sum(axis=2).sum(axis=0)  # (A, D)
    dq = observed_backward(from_content + from_position + from_segment, q_observed)
    terms = from_content, from_position, from_segment
    dbiases = [term.sum(axis=2).sum(axis=0) for term in terms]  # (A, D) each
    inputs = merge_heads(dq), merge_heads(dk), merge_heads(dv), merge_heads(dr[None])[0]
    return *inputs, *dbiases, xp.stack([-dcontrast, dcontrast])
