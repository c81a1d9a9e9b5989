"""One vector for a whole text, pooled from the vectors of its tokens.

Each function takes hidden (B, S, H) and a mask (B, S) of the same dtype, 1 for tokens and 0 for padding.
Every text must have at least one token. Source: Reimers and Gurevych, 2019, section 3.
"""

from minibert.arrays import Array, get_array_module

Cache = tuple

LOWEST = -1e9  # below every hidden state: padding is never the maximum


def first_token(hidden: Array, mask: Array | None = None) -> tuple[Array, Cache]:
    """y[b] = hidden[b, 0]: the vector of [CLS]. hidden (B, S, H) → y (B, H). No mask is needed."""
    return hidden[:, 0], (hidden.shape,)


def first_token_backward(dout: Array, cache: Cache) -> Array:
    """Derivative of :func:`first_token`: dhidden (B, S, H), zero except at the first token."""
    (shape,) = cache
    dhidden = get_array_module(dout).zeros(shape, dtype=dout.dtype)
    dhidden[:, 0] = dout
    return dhidden


def last_token(hidden: Array, mask: Array | None = None) -> tuple[Array, Cache]:
    """y[b] = hidden[b, s] for the last token s of the text, wherever its padding is. → y (B, H).

    Without a mask no row has padding.
    """
    xp = get_array_module(hidden)
    size, length, _ = hidden.shape
    padding = xp.zeros(size, dtype=int) if mask is None else mask[:, ::-1].argmax(axis=1)  # (B,)
    last = length - 1 - padding
    return xp.take_along_axis(hidden, last[:, None, None], axis=1)[:, 0], (last, length)


def last_token_backward(dout: Array, cache: Cache) -> Array:
    """Derivative of :func:`last_token`: dhidden (B, S, H), zero except at the last token of each text."""
    last, length = cache
    tokens = get_array_module(dout).arange(length)  # (S,)
    return (tokens == last[:, None])[:, :, None] * dout[:, None, :]


def mean_pooling(hidden: Array, mask: Array) -> tuple[Array, Cache]:
    """y[b] = Σₛ mask[b, s] hidden[b, s] / Σₛ mask[b, s]: the mean over the tokens. → y (B, H)."""
    share = mask / mask.sum(axis=1, keepdims=True)  # (B, S): what each token counts for
    return (hidden * share[:, :, None]).sum(axis=1), (share,)


def mean_pooling_backward(dout: Array, cache: Cache) -> Array:
    """Derivative of :func:`mean_pooling`: dhidden (B, S, H).

    forward: y[b] = Σₛ share[b, s] hidden[b, s], so dhidden[b, s] = share[b, s] dout[b].
    """
    (share,) = cache
    return share[:, :, None] * dout[:, None, :]


def max_pooling(hidden: Array, mask: Array) -> tuple[Array, Cache]:
    """y[b, h] = max of hidden[b, s, h] over the tokens s. → y (B, H)."""
    xp = get_array_module(hidden)
    tokens_only = xp.where(mask[:, :, None] > 0, hidden, LOWEST)  # (B, S, H)
    return tokens_only.max(axis=1), (tokens_only.argmax(axis=1), hidden.shape[1])


def max_pooling_backward(dout: Array, cache: Cache) -> Array:
    """Derivative of :func:`max_pooling`: dhidden (B, S, H).

    forward: y[b, h] is the largest of the hidden[b, s, h] and depends on that one alone. So the gradient
    goes to the token with the maximum; ties go to the first.
    """
    best, length = cache  # (B, H)
    xp = get_array_module(dout)
    tokens = xp.arange(length)[None, :, None]
    return (tokens == best[:, None, :]) * dout[:, None, :]


# The keys are the names that sentence encoders use.
POOLING = {
    "cls": (first_token, first_token_backward),
    "mean": (mean_pooling, mean_pooling_backward),
    "max": (max_pooling, max_pooling_backward),
    "lasttoken": (last_token, last_token_backward),
}
