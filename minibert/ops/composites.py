"""Short sequences of primitives, which a fast implementation would fuse.

``nn`` and ``bert`` call these. Each does what its few lines say, and nothing more. A kernel may replace
any of them as a whole (see ``table.py``).
"""

from minibert.arrays import Array, get_array_module
from minibert.dropout_bits import DropoutKey
from minibert.ops.activations import ACTIVATIONS
from minibert.ops.attention import attention, attention_backward, merge_heads, split_heads
from minibert.ops.cross_entropy_loss import cross_entropy, cross_entropy_backward
from minibert.ops.embedding_lookup import embedding, embedding_backward
from minibert.ops.inverted_dropout import dropout, dropout_backward
from minibert.ops.layer_normalisation import layer_norm, layer_norm_backward
from minibert.ops.linear_map import linear, linear_backward

Cache = tuple


def embed(
    word_weight: Array,
    position_weight: Array,
    token_type_weight: Array,
    norm_weight: Array,
    norm_bias: Array,
    input_ids: Array,
    token_type_ids: Array,
    eps: float,
    probability: float,
    key: DropoutKey | None,
) -> tuple[Array, Cache]:
    """y = dropout(layer_norm(word[input_ids] + position[0 … S−1] + token_type[token_type_ids])).

    word_weight (V, H), position_weight (at least S, H), token_type_weight (T, H), norm_weight and
    norm_bias (H,), input_ids and token_type_ids (B, S) → y (B, S, H).
    """
    length = input_ids.shape[1]
    words, word_cache = embedding(word_weight, input_ids)  # (B, S, H)
    types, type_cache = embedding(token_type_weight, token_type_ids)  # (B, S, H)
    total = words + types + position_weight[:length]  # (B, S, H)
    normalised, norm_cache = layer_norm(total, norm_weight, norm_bias, eps)
    y, dropout_cache = dropout(normalised, probability, key)
    return y, (word_cache, type_cache, position_weight.shape, norm_cache, dropout_cache)


def embed_backward(dout: Array, cache: Cache) -> tuple[Array, Array, Array, Array, Array]:
    """Derivatives of :func:`embed`: dword, dposition, dtoken_type, dnorm_weight, dnorm_bias.

    forward: rows of the three tables were added, so each table gets the same gradient, scattered to the
    rows that were looked up. Position s was used once in every sequence, so its gradient is a sum over
    the batch.
    """
    word_cache, type_cache, position_shape, norm_cache, dropout_cache = cache
    xp = get_array_module(dout)
    dnormalised = dropout_backward(dout, dropout_cache)
    dtotal, dnorm_weight, dnorm_bias = layer_norm_backward(dnormalised, norm_cache)  # (B, S, H)
    dposition = xp.zeros(position_shape, dtype=dout.dtype)
    dposition[: dout.shape[1]] = dtotal.sum(axis=0)
    dword = embedding_backward(dtotal, word_cache)
    dtoken_type = embedding_backward(dtotal, type_cache)
    return dword, dposition, dtoken_type, dnorm_weight, dnorm_bias


def linear_activation(x: Array, weight: Array, bias: Array, activation: str) -> tuple[Array, Cache]:
    """y = f(x Wᵀ + b), where ``activation`` is the name of f in ``ACTIVATIONS``.

    x (…, K), weight (N, K), bias (N,) → y (…, N).
    """
    forward, _ = ACTIVATIONS[activation]
    projected, linear_cache = linear(x, weight, bias)  # (…, N)
    y, activation_cache = forward(projected)
    return y, (linear_cache, activation_cache, activation)


def linear_activation_backward(dout: Array, cache: Cache) -> tuple[Array, Array, Array]:
    """Derivatives of :func:`linear_activation`: dx, dweight, dbias. The two backwards in reverse order."""
    linear_cache, activation_cache, activation = cache
    _, backward = ACTIVATIONS[activation]
    return linear_backward(backward(dout, activation_cache), linear_cache)


def dropout_residual_norm(
    x: Array,
    residual: Array,
    weight: Array,
    bias: Array,
    eps: float,
    probability: float,
    key: DropoutKey | None,
) -> tuple[Array, Cache]:
    """y = layer_norm(residual + dropout(x)): how every sublayer of BERT ends ("post-LN").

    x, residual and y (B, S, H), weight and bias (H,).
    """
    dropped, dropout_cache = dropout(x, probability, key)
    y, norm_cache = layer_norm(residual + dropped, weight, bias, eps)
    return y, (dropout_cache, norm_cache)


def dropout_residual_norm_backward(dout: Array, cache: Cache) -> tuple[Array, Array, Array, Array]:
    """Derivatives of :func:`dropout_residual_norm`: dx, dresidual, dweight, dbias.

    forward: the sum passes its gradient unchanged to both of its terms. The one for x then goes back
    through the dropout.
    """
    dropout_cache, norm_cache = cache
    dresidual, dweight, dbias = layer_norm_backward(dout, norm_cache)
    return dropout_backward(dresidual, dropout_cache), dresidual, dweight, dbias


def packed_attention(
    qkv: Array, bias: Array, num_heads: int, probability: float, key: DropoutKey | None
) -> tuple[Array, Cache]:
    """Attention of all heads at once, on queries, keys and values that are stored side by side.

    qkv (B, S, 3H), bias broadcast to (B, A, S, S) → y (B, S, H). The bias is that of ``attention_bias``, or
    has different numbers for different heads.
    """
    q, k, v = split_qkv(qkv, num_heads)
    y, cache = attention(q, k, v, bias, probability, key)
    return merge_heads(y), (cache, num_heads)


def packed_attention_backward(dout: Array, cache: Cache) -> Array:
    """Derivative of :func:`packed_attention`: dqkv (B, S, 3H)."""
    attention_cache, num_heads = cache
    xp = get_array_module(dout)
    gradients = attention_backward(split_heads(dout, num_heads), attention_cache)
    return xp.concatenate([merge_heads(gradient) for gradient in gradients], axis=-1)


def split_qkv(qkv: Array, num_heads: int) -> list[Array]:
    """(B, S, 3H) → q, k, v, each (B, A, S, D)."""
    hidden = qkv.shape[-1] // 3
    return [split_heads(qkv[..., i * hidden : (i + 1) * hidden], num_heads) for i in range(3)]


def masked_lm_loss(
    hidden: Array, weight: Array, bias: Array, labels: Array, label_weights: Array, denominator: float
) -> tuple[Array, Cache]:
    """loss = cross_entropy(hidden Wᵀ + b, labels), with scores for all words of the vocabulary.

    hidden (N, H) at the N predicted positions, weight (V, H) (tied to the word embeddings), bias (V,),
    labels and label_weights (N,) → loss, a 0-d array, in nats.
    """
    logits, linear_cache = linear(hidden, weight, bias)  # (N, V)
    loss, loss_cache = cross_entropy(logits, labels, label_weights, denominator)
    return loss, (linear_cache, loss_cache)


def masked_lm_loss_backward(dout: Array | float, cache: Cache) -> tuple[Array, Array, Array]:
    """Derivatives of :func:`masked_lm_loss`: dhidden (N, H), dweight (V, H), dbias (V,). dout is a scalar."""
    linear_cache, loss_cache = cache
    return linear_backward(cross_entropy_backward(dout, loss_cache), linear_cache)
