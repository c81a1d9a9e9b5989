"""Which arguments the kernels accept; for all others the reference computes (``ops.register``).

There is a function for each operation, with the parameters of its forward. The kernels accept what the
operation's docstring says and nothing broader: the shapes given there, integer indices, arrays of one
library, and no dtype wider than the one they compute in, since the reference would then return it too.
"""

from collections.abc import Collection
from typing import Any

import numpy as np

from minibert.arrays import Array, get_array_module
from minibert.dropout_bits import DropoutKey
from minibert.ops import ACTIVATIONS
from minibert.precision import HALF

FLOAT32 = np.dtype("float32")


def linear(x: Array, weight: Array, bias: Array) -> bool:
    """x (…, K), weight (N, K), bias (N,)."""
    return (
        _floats(x, weight, bias)
        and x.ndim >= 1
        and weight.ndim == 2
        and weight.size > 0
        and weight.shape[1] == x.shape[-1]
        and bias.shape == weight.shape[:1]
    )


def linear_activation(
    x: Array, weight: Array, bias: Array, activation: str, *, known: Collection[Any] | None = None
) -> bool:
    """As for ``linear``, and the kernel knows the activation; with ``known`` None it knows all of them."""
    forward, _ = ACTIVATIONS.get(activation, (None, None))
    return forward is not None and (known is None or forward in known) and linear(x, weight, bias)


def layer_norm(x: Array, weight: Array, bias: Array, eps: float) -> bool:
    """x (…, H), weight and bias (H,)."""
    return (
        _floats(x, weight, bias)
        and _numbers(eps)
        and x.ndim >= 1
        and weight.size > 0
        and weight.shape == bias.shape == x.shape[-1:]
    )


def dropout_residual_norm(
    x: Array,
    residual: Array,
    weight: Array,
    bias: Array,
    eps: float,
    probability: float,
    key: DropoutKey | Array | None,
) -> bool:
    """x and residual of one shape (…, H), weight and bias (H,)."""
    return layer_norm(x, weight, bias, eps) and _floats(x, residual) and residual.shape == x.shape


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
    key: DropoutKey | Array | None,
) -> bool:
    """Tables (…, H), the one of positions with at least S rows; ids and types (B, S)."""
    tables = word_weight, position_weight, token_type_weight
    return (
        layer_norm(word_weight, norm_weight, norm_bias, eps)
        and _floats(*tables)
        and _integers(word_weight, input_ids, token_type_ids)
        and all(table.ndim == 2 and table.shape[1:] == norm_weight.shape for table in tables)
        and input_ids.ndim == 2
        and input_ids.shape == token_type_ids.shape
        and len(position_weight) >= input_ids.shape[1]
    )


def embedding(weight: Array, ids: Array) -> bool:
    """weight (V, H), ids of any shape."""
    return _floats(weight) and _integers(weight, ids) and weight.ndim == 2


def packed_attention(
    qkv: Array, bias: Array, num_heads: int, probability: float, key: DropoutKey | Array | None
) -> bool:
    """qkv (B, S, 3H) with S > 0 and H a multiple of the heads, bias broadcast to (B, A, S, S)."""
    if not (_floats(qkv, bias) and qkv.ndim == 3):
        return False
    batch, length, width = qkv.shape
    if not (length and width and width % (3 * num_heads) == 0):
        return False
    scores = (batch, num_heads, length, length)[4 - bias.ndim :]
    return bias.ndim <= 4 and all(n in (1, of) for n, of in zip(bias.shape, scores, strict=True))


def unpadded_attention(
    qkv: Array, starts: Array, num_heads: int, probability: float, key: DropoutKey | Array | None
) -> bool:
    """qkv (T, 3H) with H a multiple of the heads, starts (B + 1,) from 0 to T."""
    return (
        _floats(qkv)
        and _integers(qkv, starts)
        and qkv.ndim == 2
        and qkv.shape[1] > 0
        and qkv.shape[1] % (3 * num_heads) == 0
        and starts.ndim == 1
        and len(starts) > 1
        and 0 == starts[0] < starts[-1] == len(qkv)
    )


def cross_entropy(logits: Array, labels: Array, weights: Array, denominator: Array | float) -> bool:
    """logits (N, V), labels and weights (N,)."""
    return (
        _floats(logits, weights)
        and _integers(logits, labels)
        and _numbers(denominator)
        and logits.ndim == 2
        and logits.shape[1] > 0
        and labels.shape == weights.shape == logits.shape[:1]
    )


def masked_lm_loss(
    hidden: Array,
    weight: Array,
    bias: Array,
    labels: Array,
    label_weights: Array,
    denominator: Array | float,
) -> bool:
    """hidden (N, H), weight (V, H), bias (V,), labels and label_weights (N,)."""
    return (
        linear(hidden, weight, bias)
        and hidden.ndim == 2
        and _floats(hidden, label_weights)
        and _integers(hidden, labels)
        and _numbers(denominator)
        and labels.shape == label_weights.shape == hidden.shape[:1]
    )


def dropout_keys(stream: Array, sites: int) -> bool:
    """stream (5,)."""
    return stream.shape == (5,)


def global_norm(grad: Array) -> bool:
    """grad 1-D and contiguous; also for ``sums_of_squares``."""
    return _floats(grad) and _flat(grad)


def adamw_update(
    value: Array,
    grad: Array,
    mean: Array,
    variance: Array,
    lr: Array | float,
    clip: Array | float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    mean_correction: Array | float = 1.0,
    variance_correction: Array | float = 1.0,
    *,
    copy: Array | None = None,
    norm: Array | None = None,
) -> bool:
    """value, grad, mean, variance and copy 1-D, equally long and contiguous; all else numbers."""
    buffers = value, grad, mean, variance
    numbers = lr, clip, beta1, beta2, eps, weight_decay, mean_correction, variance_correction
    return (
        _floats(*buffers)
        and all(_flat(array) and array.shape == value.shape for array in buffers)
        and _numbers(*numbers)
        and (copy is None or (_is_copy(copy) and _flat(copy) and copy.shape == value.shape))
        and (norm is None or _numbers(norm))
    )


def add_derivative(total: Array, part: Array) -> bool:
    """total and part (…) of one shape and dtype, total without gaps."""
    return (
        _floats(total, part)
        and total.dtype == part.dtype
        and total.shape == part.shape
        and total.flags.c_contiguous
    )


def orthogonalise(matrix: Array, steps: int = 5) -> bool:
    """matrix (…, m, n)."""
    return _floats(matrix) and matrix.ndim >= 2


def _floats(x: Array, *others: Array) -> bool:
    """Whether these are arrays of x's library and dtype; if x has 16 bits, others may be float32."""
    ndarray = get_array_module(x).ndarray
    return (
        isinstance(x, ndarray)
        and x.dtype.isnative
        and all(
            isinstance(array, ndarray)
            and (array.dtype == x.dtype or (array.dtype == FLOAT32 and x.dtype.name in HALF))
            for array in others
        )
    )


def _integers(x: Array, *indices: Array) -> bool:
    """Whether these are arrays of integers of x's library."""
    ndarray = get_array_module(x).ndarray
    return all(isinstance(index, ndarray) and index.dtype.kind in "iu" for index in indices)


def _numbers(*values: Any) -> bool:
    """Whether these are Python numbers or float32; NumPy's float64 and integers would widen a result."""
    return all(
        value.ndim == 0 and value.dtype == FLOAT32
        if hasattr(value, "dtype")
        else isinstance(value, int | float)
        for value in values
    )


def _flat(array: Array) -> bool:
    return array.ndim == 1 and array.flags.c_contiguous


def _is_copy(array: Array) -> bool:
    return array.dtype == FLOAT32 or array.dtype.name in HALF
