"""The library's operations, put together from the pieces of a BERT: what is fused there is a chain here.

Each pair below has the signature and the result of the operation of the same name in ``ops.composites`` or
one of the primitives. Dropout is not among the pieces, so the library computes where there is any.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from minibert.ops.activations import ACTIVATIONS
from minibert.ops.table import TABLE, Implementation

if TYPE_CHECKING:
    from minibert.course.mine import Mine


@contextmanager
def in_the_library(mine: "Mine") -> Iterator[None]:
    """Within this block the library computes with these pieces, on NumPy arrays of float32 and float64."""
    before = {name: dict(TABLE[name].kernels) for name in TABLE}
    try:
        for name, implementation in operations(mine).items():
            for dtype in ("float32", "float64"):
                TABLE[name].kernels["numpy", dtype] = implementation
        yield
    finally:
        for name, kernels in before.items():
            TABLE[name].kernels = kernels


def operations(mine: "Mine") -> dict[str, Implementation]:
    """The operations of the library that can be made of the pieces."""
    pairs = ("linear", "layer_norm", "embedding", "cross_entropy")
    primitives = {
        name: Implementation(getattr(mine, name), getattr(mine, f"{name}_backward")) for name in pairs
    }
    return primitives | {
        "embed": _embed(mine),
        "linear_activation": _linear_activation(mine),
        "dropout_residual_norm": _residual_norm(mine),
        "packed_attention": _packed_attention(mine),
        "masked_lm_loss": _masked_lm_loss(mine),
    }


def _without_dropout(*arguments: Any) -> bool:
    """The last two arguments are the probability and the key of a dropout that is off."""
    return arguments[-1] is None or arguments[-2] == 0.0


def _embed(mine: "Mine") -> Implementation:
    def forward(word, position, token_type, weight, bias, input_ids, token_type_ids, eps, *dropout):
        words, word_cache = mine.embedding(word, input_ids)
        types, type_cache = mine.embedding(token_type, token_type_ids)
        total = words + types + position[: input_ids.shape[1]]
        y, norm_cache = mine.layer_norm(total, weight, bias, eps)
        return y, (word_cache, type_cache, position.shape, norm_cache)

    def backward(dout, cache):
        word_cache, type_cache, position_shape, norm_cache = cache
        dtotal, dweight, dbias = mine.layer_norm_backward(dout, norm_cache)
        dposition = np.zeros(position_shape, dtype=dout.dtype)
        dposition[: dout.shape[1]] = dtotal.sum(axis=0)
        dword, dtype = (mine.embedding_backward(dtotal, part) for part in (word_cache, type_cache))
        return dword, dposition, dtype, dweight, dbias

    return Implementation(forward, backward, _without_dropout)


def _linear_activation(mine: "Mine") -> Implementation:
    """GELU is a piece; the other activations are the library's."""

    def pair(activation: str) -> tuple[Callable, Callable]:
        return (mine.gelu, mine.gelu_backward) if activation == "gelu" else ACTIVATIONS[activation]

    def forward(x, weight, bias, activation):
        projected, linear_cache = mine.linear(x, weight, bias)
        y, activation_cache = pair(activation)[0](projected)
        return y, (linear_cache, activation_cache, activation)

    def backward(dout, cache):
        linear_cache, activation_cache, activation = cache
        return mine.linear_backward(pair(activation)[1](dout, activation_cache), linear_cache)

    return Implementation(forward, backward)


def _residual_norm(mine: "Mine") -> Implementation:
    def forward(x, residual, weight, bias, eps, *dropout):
        return mine.layer_norm(x + residual, weight, bias, eps)

    def backward(dout, cache):
        dsum, dweight, dbias = mine.layer_norm_backward(dout, cache)
        return dsum, dsum, dweight, dbias

    return Implementation(forward, backward, _without_dropout)


def _packed_attention(mine: "Mine") -> Implementation:
    """The heads of a sequence become sequences of their own for the attention of one head."""

    def forward(qkv, bias, num_heads, *dropout):
        size = qkv.shape[-1] // 3
        parts = [qkv[..., i * size : (i + 1) * size] for i in range(3)]
        q, k, v = (mine.split_heads(part, num_heads) for part in parts)  # (B, A, S, D)
        shape = q.shape
        biases = np.broadcast_to(bias, (*shape[:2], *bias.shape[2:]))
        biases = biases.reshape(-1, *bias.shape[2:])  # (B·A, 1 or S, S)
        y, cache = mine.attention(*(part.reshape(-1, *shape[2:]) for part in (q, k, v)), biases)
        return mine.merge_heads(y.reshape(shape)), (cache, shape)

    def backward(dout, cache):
        inner, shape = cache
        dy = mine.split_heads(dout, shape[1]).reshape(-1, *shape[2:])
        gradients = mine.attention_backward(dy, inner)
        merged = [mine.merge_heads(gradient.reshape(shape)) for gradient in gradients]
        return np.concatenate(merged, axis=-1)

    return Implementation(forward, backward, _without_dropout)


def _masked_lm_loss(mine: "Mine") -> Implementation:
    def forward(hidden, weight, bias, labels, label_weights, denominator):
        logits, linear_cache = mine.linear(hidden, weight, bias)
        loss, loss_cache = mine.cross_entropy(logits, labels, label_weights, denominator)
        return loss, (linear_cache, loss_cache)

    def backward(dout, cache):
        linear_cache, loss_cache = cache
        return mine.linear_backward(mine.cross_entropy_backward(dout, loss_cache), linear_cache)

    return Implementation(forward, backward)
