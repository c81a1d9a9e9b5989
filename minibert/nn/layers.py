"""The layers: parameters and an operation, nothing else."""

from minibert import ops
from minibert.arrays import Array, DropoutKey, dropout_key
from minibert.nn.module import Module
from minibert.nn.parameter import Parameter


class Linear(Module):
    """y = x Wᵀ + b. weight (out_features, in_features), bias (out_features,)."""

    def __init__(self, in_features: int, out_features: int):
        super().__init__()
        self.weight = Parameter((out_features, in_features))
        self.bias = Parameter((out_features,), init="zeros", decay=False)

    def forward(self, x: Array) -> tuple[Array, tuple]:
        """x (…, in_features) → y (…, out_features)."""
        return ops.linear(x, self.weight.operand, self.bias.value)

    def backward(self, dout: Array, cache: tuple) -> Array:
        """dout (…, out_features) → dx (…, in_features); adds to the gradients of weight and bias."""
        dx, dweight, dbias = ops.linear_backward(dout, cache)
        self.weight.add_grad(dweight)
        self.bias.add_grad(dbias)
        return dx


class LayerNorm(Module):
    """y = γ (x − μ)/σ + β over the last axis. weight γ and bias β (size,), neither decayed."""

    def __init__(self, size: int, eps: float):
        super().__init__()
        self.weight = Parameter((size,), init="ones", decay=False)
        self.bias = Parameter((size,), init="zeros", decay=False)
        self.eps = eps

    def forward(self, x: Array) -> tuple[Array, tuple]:
        """x (…, size) → y (…, size)."""
        return ops.layer_norm(x, self.weight.value, self.bias.value, self.eps)

    def backward(self, dout: Array, cache: tuple) -> Array:
        """dout (…, size) → dx (…, size); adds to the gradients of weight and bias."""
        dx, dweight, dbias = ops.layer_norm_backward(dout, cache)
        self.weight.add_grad(dweight)
        self.bias.add_grad(dbias)
        return dx


class Embedding(Module):
    """A table of ``count`` rows of ``size`` numbers, one for each id. ``init``: see ``initialise``."""

    def __init__(self, count: int, size: int, init: str = "normal"):
        super().__init__()
        self.weight = Parameter((count, size), init)

    def forward(self, ids: Array) -> tuple[Array, tuple]:
        """ids (…) integers in [0, count) → y (…, size)."""
        return ops.embedding(self.weight.value, ids)

    def backward(self, dout: Array, cache: tuple) -> None:
        """dout (…, size); adds to the gradient of weight. Integers have no derivative to return."""
        self.weight.add_grad(ops.embedding_backward(dout, cache))


class Dropout(Module):
    """Where dropout is applied: its probability, and the key that its random bits come from.

    It computes nothing itself: the operation around it takes ``probability`` and ``key()``.
    """

    def __init__(self, probability: float):
        super().__init__()
        self.probability = probability
        self._key: DropoutKey | Array = dropout_key(0, 0, 0, 0, 0)

    def set_key(self, key: DropoutKey | Array) -> None:
        """Choose the random bits (see ``Module.set_dropout_stream``)."""
        self._key = key

    def key(self) -> DropoutKey | Array | None:
        """The key for ``ops.dropout``, or None while dropout is off."""
        return self._key if self.training and self.probability > 0.0 else None
