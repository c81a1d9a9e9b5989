"""The layers: parameters and an operation, nothing else."""

from minibert import ops
from minibert.arrays import Array, as_dtype
from minibert.nn.context import Context
from minibert.nn.module import Module
from minibert.nn.parameter import Parameter
from minibert.ops import Cache


class Linear(Module):
    """y = x Wᵀ + b. weight (out_features, in_features), bias (out_features,)."""

    def __init__(self, in_features: int, out_features: int):
        super().__init__()
        self.weight = Parameter((out_features, in_features))
        self.bias = Parameter((out_features,), init="zeros", decay=False)

    def forward(self, x: Array) -> tuple[Array, Cache]:
        """x (…, in_features) → y (…, out_features)."""
        return ops.linear(x, self.weight.operand, self.bias.value)

    def backward(self, dout: Array, cache: Cache) -> Array:
        """dout (…, out_features) → dx (…, in_features); adds to the gradients of weight and bias."""
        dx, dweight, dbias = ops.linear_backward(dout, cache)
        self.weight.add_grad(dweight)
        self.bias.add_grad(dbias)
        return dx


class LinearActivation(Linear):
    """y = f(x Wᵀ + b), where ``activation`` is the name of f in ``ops.ACTIVATIONS``."""

    def __init__(self, in_features: int, out_features: int, activation: str):
        super().__init__(in_features, out_features)
        self.activation = activation

    def forward(self, x: Array) -> tuple[Array, Cache]:
        """x (…, in_features) → y (…, out_features)."""
        return ops.linear_activation(x, self.weight.operand, self.bias.value, self.activation)

    def backward(self, dout: Array, cache: Cache) -> Array:
        """dout (…, out_features) → dx (…, in_features); adds to the gradients of weight and bias."""
        dx, dweight, dbias = ops.linear_activation_backward(dout, cache)
        self.weight.add_grad(dweight)
        self.bias.add_grad(dbias)
        return dx


class LayerNorm(Module):
    """y = γ (x − μ)/σ + β over the last axis. weight γ and bias β (size,), without weight decay."""

    def __init__(self, size: int, eps: float):
        super().__init__()
        self.weight = Parameter((size,), init="ones", decay=False)
        self.bias = Parameter((size,), init="zeros", decay=False)
        self.eps = eps

    def forward(self, x: Array) -> tuple[Array, Cache]:
        """x (…, size) → y (…, size)."""
        return ops.layer_norm(x, self.weight.value, self.bias.value, self.eps)

    def backward(self, dout: Array, cache: Cache) -> Array:
        """dout (…, size) → dx (…, size); adds to the gradients of weight and bias."""
        dx, dweight, dbias = ops.layer_norm_backward(dout, cache)
        self.weight.add_grad(dweight)
        self.bias.add_grad(dbias)
        return dx


class Embedding(Module):
    """A table (count, size): one row of ``size`` numbers per id. ``init``: see ``nn.initialise``."""

    def __init__(self, count: int, size: int, init: str = "normal"):
        super().__init__()
        self.weight = Parameter((count, size), init)

    def forward(self, ids: Array) -> tuple[Array, Cache]:
        """ids (…) integers in [0, count) → y (…, size)."""
        return ops.embedding(self.weight.value, ids)

    def backward(self, dout: Array, cache: Cache) -> None:
        """dout (…, size); adds to the gradient of weight. Returns nothing: ids have no derivative."""
        # In the dtype of the parameter, since rows are not added up in 16 bits.
        self.weight.add_grad(ops.embedding_backward(as_dtype(dout, self.weight.value.dtype), cache))


class Dropout(Module):
    """In training, each element becomes 0 with this probability; the others are scaled up to compensate.

    Fused operations do this themselves: they take ``probability`` from here and the next key of the context.

    Raises ValueError for a probability outside [0, 1).
    """

    def __init__(self, probability: float):
        super().__init__()
        if not 0 <= probability < 1:
            raise ValueError(f"probability must be at least 0 and below 1, got {probability}")
        self.probability = probability

    def forward(self, x: Array, context: Context | None = None) -> tuple[Array, Cache]:
        """x → y, both of the same, arbitrary shape."""
        context = context or self.new_context()
        return ops.dropout(x, self.probability, context.dropout_key(self.probability))

    def backward(self, dout: Array, cache: Cache) -> Array:
        """dout → dx, where the same elements are 0."""
        return ops.dropout_backward(dout, cache)
