"""The transformer encoder: L layers of attention and feed-forward (Devlin et al., 2019, section 3).

    attention.self      every token gathers from all others
    attention.output    project, dropout, add to what came in, normalise
    intermediate        to F features, GELU
    output              back to H, dropout, add, normalise

The attributes are named so that the parameters get Hugging Face's names.
"""

from collections.abc import Callable

from minibert import ops
from minibert.arrays import Array
from minibert.bert.config import BertConfig
from minibert.nn import Dropout, LayerNorm, Linear, Module, Packed


class BertSelfAttention(Module):
    """softmax(Q Kᵀ/√D + bias) V for A heads, with Q, K and V three linear maps of the same hidden states.

    The three weights are neighbours in memory: ``qkv_weight`` (3H, H) makes all of Q, K, V in one product.
    """

    def __init__(self, config: BertConfig):
        super().__init__()
        self.num_heads = config.num_attention_heads
        self.query = Linear(config.hidden_size, config.hidden_size)
        self.key = Linear(config.hidden_size, config.hidden_size)
        self.value = Linear(config.hidden_size, config.hidden_size)
        self.qkv_weight = Packed([self.query.weight, self.key.weight, self.value.weight])
        self.qkv_bias = Packed([self.query.bias, self.key.bias, self.value.bias])
        self.dropout = Dropout(config.attention_probs_dropout_prob)

    def forward(self, hidden: Array, bias: Array) -> tuple[Array, list]:
        """hidden (B, S, H), bias (B, 1, 1 or S, S) → context (B, S, H)."""
        qkv, projection_cache = ops.linear(hidden, self.qkv_weight.operand, self.qkv_bias.value)  # (B, S, 3H)
        context, attention_cache = ops.packed_attention(
            qkv, bias, self.num_heads, self.dropout.probability, self.dropout.key()
        )
        return context, [projection_cache, attention_cache]

    def backward(self, dout: Array, cache: list) -> Array:
        """dout (B, S, H) → dhidden (B, S, H)."""
        dqkv = ops.packed_attention_backward(dout, cache.pop())
        dhidden, dweight, dbias = ops.linear_backward(dqkv, cache.pop())
        self.qkv_weight.add_grad(dweight)
        self.qkv_bias.add_grad(dbias)
        return dhidden

    def probabilities(self, hidden: Array, bias: Array) -> Array:
        """The attention map softmax(Q Kᵀ/√D + bias), before dropout. hidden (B, S, H) → (B, A, S, S)."""
        qkv, _ = ops.linear(hidden, self.qkv_weight.operand, self.qkv_bias.value)
        return ops.attention_probabilities(qkv.astype(bias.dtype, copy=False), bias, self.num_heads)


class BertResidualOutput(Module):
    """LayerNorm(residual + dropout(x Wᵀ + b)): the end of both halves of a layer ("post-LN")."""

    def __init__(self, in_features: int, config: BertConfig):
        super().__init__()
        self.dense = Linear(in_features, config.hidden_size)
        self.LayerNorm = LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(self, x: Array, residual: Array) -> tuple[Array, list]:
        """x (B, S, in_features), residual (B, S, H) → y (B, S, H)."""
        projected, dense_cache = self.dense.forward(x)  # (B, S, H)
        y, norm_cache = ops.dropout_residual_norm(
            projected,
            residual,
            self.LayerNorm.weight.value,
            self.LayerNorm.bias.value,
            self.LayerNorm.eps,
            self.dropout.probability,
            self.dropout.key(),
        )
        return y, [dense_cache, norm_cache]

    def backward(self, dout: Array, cache: list) -> tuple[Array, Array]:
        """dout (B, S, H) → dx (B, S, in_features), dresidual (B, S, H)."""
        dprojected, dresidual, dweight, dbias = ops.dropout_residual_norm_backward(dout, cache.pop())
        self.LayerNorm.weight.add_grad(dweight)
        self.LayerNorm.bias.add_grad(dbias)
        return self.dense.backward(dprojected, cache.pop()), dresidual


class BertAttention(Module):
    """Self-attention, then its residual output."""

    def __init__(self, config: BertConfig):
        super().__init__()
        self.self = BertSelfAttention(config)
        self.output = BertResidualOutput(config.hidden_size, config)

    def forward(self, hidden: Array, bias: Array) -> tuple[Array, list]:
        """hidden (B, S, H), bias (B, 1, 1 or S, S) → y (B, S, H)."""
        context, self_cache = self.self.forward(hidden, bias)
        y, output_cache = self.output.forward(context, hidden)
        return y, [self_cache, output_cache]

    def backward(self, dout: Array, cache: list) -> Array:
        """dout (B, S, H) → dhidden (B, S, H).

        forward: hidden went two ways, through the attention and along the residual; the two
        derivatives add up.
        """
        dcontext, dresidual = self.output.backward(dout, cache.pop())
        dhidden = self.self.backward(dcontext, cache.pop())
        dhidden += dresidual
        return dhidden


class BertIntermediate(Module):
    """f(x Wᵀ + b) with F outputs and f the configuration's ``hidden_act``."""

    def __init__(self, config: BertConfig):
        super().__init__()
        self.dense = Linear(config.hidden_size, config.intermediate_size)
        self.activation = config.hidden_act

    def forward(self, hidden: Array) -> tuple[Array, tuple]:
        """hidden (B, S, H) → y (B, S, F)."""
        dense = self.dense
        return ops.linear_activation(hidden, dense.weight.operand, dense.bias.value, self.activation)

    def backward(self, dout: Array, cache: tuple) -> Array:
        """dout (B, S, F) → dhidden (B, S, H)."""
        dhidden, dweight, dbias = ops.linear_activation_backward(dout, cache)
        self.dense.weight.add_grad(dweight)
        self.dense.bias.add_grad(dbias)
        return dhidden


class BertLayer(Module):
    """One layer: attention, then the feed-forward network on every token by itself."""

    is_block = True

    def __init__(self, config: BertConfig):
        super().__init__()
        self.attention = BertAttention(config)
        self.intermediate = BertIntermediate(config)
        self.output = BertResidualOutput(config.intermediate_size, config)

    def forward(self, hidden: Array, bias: Array) -> tuple[Array, list]:
        """hidden (B, S, H), bias (B, 1, 1 or S, S) → y (B, S, H)."""
        attended, attention_cache = self.attention.forward(hidden, bias)
        wide, intermediate_cache = self.intermediate.forward(attended)  # (B, S, F)
        y, output_cache = self.output.forward(wide, attended)
        return y, [attention_cache, intermediate_cache, output_cache]

    def backward(self, dout: Array, cache: list) -> Array:
        """dout (B, S, H) → dhidden (B, S, H)."""
        dwide, dresidual = self.output.backward(dout, cache.pop())
        dattended = self.intermediate.backward(dwide, cache.pop())
        dattended += dresidual
        return self.attention.backward(dattended, cache.pop())


class BertEncoder(Module):
    """L layers, one after the other.

    With ``recompute`` only the input of each layer is kept for the backward, which computes the layer's
    forward once more before its backward: a third more work for much less memory. The numbers are the
    same, bit for bit, as long as mode and dropout stream are still those of the forward.
    """

    recompute = False

    def __init__(self, config: BertConfig):
        super().__init__()
        self.layer = [BertLayer(config) for _ in range(config.num_hidden_layers)]

    def forward(
        self,
        hidden: Array,
        bias: Array,
        watch: Callable[[BertLayer, Array], None] | None = None,
        needs_dhidden: bool = True,
    ) -> tuple[Array, list]:
        """hidden (B, S, H), bias (B, 1, 1 or S, S) → y (B, S, H).

        ``watch(layer, hidden)`` is called with each layer and what goes into it. Unless somebody
        ``needs_dhidden``, no cache is kept below the lowest layer that learns.
        """
        cache = []
        learning = needs_dhidden
        for layer in self.layer:
            if watch is not None:
                watch(layer, hidden)
            hidden, layer_cache = self._forward_layer(layer, hidden, bias)
            learning = learning or not layer.frozen
            cache.append(layer_cache if learning else None)
        return hidden, cache

    def _forward_layer(self, layer: BertLayer, hidden: Array, bias: Array) -> tuple[Array, tuple | list]:
        y, cache = layer.forward(hidden, bias)
        return y, (hidden, bias) if self.recompute else cache

    def backward(self, dout: Array, cache: list) -> Array | None:
        """dout (B, S, H) → dhidden (B, S, H), or None if the forward kept no cache for the lowest layers."""
        for layer in reversed(self.layer):
            layer_cache = cache.pop()
            dout = None if layer_cache is None else self._backward_layer(layer, dout, layer_cache)
        return dout

    def _backward_layer(self, layer: BertLayer, dout: Array, cache: tuple | list) -> Array:
        if self.recompute:
            _, cache = layer.forward(*cache)
        return layer.backward(dout, cache)


class BertPooler(Module):
    """tanh(h[CLS] Wᵀ + b): one vector for the whole input, made from its first token."""

    is_block = True

    def __init__(self, config: BertConfig):
        super().__init__()
        self.dense = Linear(config.hidden_size, config.hidden_size)

    def forward(self, hidden: Array) -> tuple[Array, list]:
        """hidden (B, S, H) → pooled (B, H)."""
        first, first_cache = ops.first_token(hidden)  # (B, H)
        pooled, dense_cache = ops.linear_activation(
            first, self.dense.weight.operand, self.dense.bias.value, "tanh"
        )
        return pooled, [first_cache, dense_cache]

    def backward(self, dout: Array, cache: list) -> Array:
        """dout (B, H) → dhidden (B, S, H), zero except at the first token."""
        dfirst, dweight, dbias = ops.linear_activation_backward(dout, cache.pop())
        self.dense.weight.add_grad(dweight)
        self.dense.bias.add_grad(dbias)
        return ops.first_token_backward(dfirst, cache.pop())
