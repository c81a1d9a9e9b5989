"""The transformer encoder: L layers of attention and feed-forward (Devlin et al., 2019, section 3).

    attention.self      every token gathers information from all tokens
    attention.output    project, dropout, add the residual, normalise
    intermediate        project to F features, GELU
    output              project back to H, dropout, add the residual, normalise

The attributes are named so that the parameters get Hugging Face's names.
Where a batch is computed without its padding (``nn.padding``), hidden is (T, H), and bias is starts (B + 1,).
Where heads read a few tokens only (``nn.places``), the last layer computes these alone after its attention.
"""

from minibert import ops
from minibert.arrays import Array
from minibert.bert.config import BertConfig
from minibert.nn import Context, Dropout, LayerNorm, Linear, LinearActivation, Module, Packed
from minibert.nn.places import EVERYWHERE
from minibert.ops import Cache
from minibert.ops.observed import observed_backward

INSIDE_ATTENTION = ("q", "k", "v", "scores", "probabilities", "context")  # what an observer can see


class BertSelfAttention(Module):
    """softmax(Q Kᵀ/√D + bias) V for A heads, where Q, K and V are linear maps of the same hidden states.

    The three weights are adjacent in memory: ``project`` is one product with ``qkv_weight`` (3H, H).
    """

    project, project_backward = staticmethod(ops.linear), staticmethod(ops.linear_backward)

    def __init__(self, config: BertConfig):
        super().__init__()
        self.num_heads = config.num_attention_heads
        self.query = Linear(config.hidden_size, config.hidden_size)
        self.key = Linear(config.hidden_size, config.hidden_size)
        self.value = Linear(config.hidden_size, config.hidden_size)
        self.qkv_weight = Packed([self.query.weight, self.key.weight, self.value.weight])
        self.qkv_bias = Packed([self.query.bias, self.key.bias, self.value.bias])
        self.dropout = Dropout(config.attention_probs_dropout_prob)

    def forward(self, hidden: Array, bias: Array, context: Context | None = None) -> tuple[Array, Cache]:
        """hidden (B, S, H), bias (B, 1, 1 or S, S) → y (B, S, H)."""
        context = context or self.new_context()
        qkv, qkv_cache = self.project(hidden, self.qkv_weight.operand, self.qkv_bias.value)  # (B, S, 3H)
        probability, key = self.dropout.probability, context.dropout_key(self.dropout.probability)
        how = self.num_heads, probability, key
        if context.wants(*INSIDE_ATTENTION):
            y, attention_cache = ops.observed_attention(qkv, bias, *how, context.observe)
            return y, Cache(self, qkv_cache, ops.observed_attention_backward, attention_cache)
        if hidden.ndim == 2:  # without padding (``nn.padding``): qkv is (T, 3H), and bias is starts (B + 1,)
            y, attention_cache = ops.unpadded_attention(qkv, bias, *how)
            return y, Cache(self, qkv_cache, ops.unpadded_attention_backward, attention_cache)
        y, attention_cache = ops.packed_attention(qkv, bias, *how)
        return y, Cache(self, qkv_cache, ops.packed_attention_backward, attention_cache)

    def backward(self, dout: Array, cache: Cache) -> Array:
        """dout (B, S, H) → dhidden (B, S, H)."""
        attention_cache, attention_backward = cache.pop(self), cache.pop(self)
        dqkv = attention_backward(dout, attention_cache)
        dhidden, dweight, dbias = self.project_backward(dqkv, cache.pop(self))
        self.qkv_weight.add_grad(dweight)
        self.qkv_bias.add_grad(dbias)
        return dhidden


class BertResidualOutput(Module):
    """LayerNorm(residual + dropout(x Wᵀ + b)): the end of both sublayers of a layer ("post-LN")."""

    def __init__(self, in_features: int, config: BertConfig):
        super().__init__()
        self.dense = Linear(in_features, config.hidden_size)
        self.LayerNorm = LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(self, x: Array, residual: Array, context: Context | None = None) -> tuple[Array, Cache]:
        """x (B, S, in_features), residual (B, S, H) → y (B, S, H)."""
        context = context or self.new_context()
        projected, dense_cache = self.dense.forward(x)  # (B, S, H)
        y, norm_cache = ops.dropout_residual_norm(
            projected,
            residual,
            self.LayerNorm.weight.value,
            self.LayerNorm.bias.value,
            self.LayerNorm.eps,
            self.dropout.probability,
            context.dropout_key(self.dropout.probability),
        )
        return y, Cache(self, dense_cache, norm_cache)

    def backward(self, dout: Array, cache: Cache) -> tuple[Array, Array]:
        """dout (B, S, H) → dx (B, S, in_features), dresidual (B, S, H)."""
        dprojected, dresidual, dweight, dbias = ops.dropout_residual_norm_backward(dout, cache.pop(self))
        self.LayerNorm.weight.add_grad(dweight)
        self.LayerNorm.bias.add_grad(dbias)
        return self.dense.backward(dprojected, cache.pop(self)), dresidual


class BertAttention(Module):
    """Self-attention, then its residual output."""

    def __init__(self, config: BertConfig):
        super().__init__()
        self.self = BertSelfAttention(config)
        self.output = BertResidualOutput(config.hidden_size, config)

    def forward(self, hidden: Array, bias: Array, context: Context | None = None) -> tuple[Array, Cache]:
        """hidden (B, S, H), bias (B, 1, 1 or S, S) → y (B, S, H), or (R, H) at ``context.places``."""
        context = context or self.new_context()
        attended, self_cache = self.self.forward(hidden, bias, context.inside("self"))
        attended, residual = map(context.places.leave_out, (attended, hidden))
        y, output_cache = self.output.forward(attended, residual, context)
        return y, Cache(self, self_cache, output_cache, context.places)

    def backward(self, dout: Array, cache: Cache) -> Array:
        """dout (B, S, H) → dhidden (B, S, H).

        forward: hidden went along two paths, through the attention and along the residual connection; the
        two derivatives add up.
        """
        places = cache.pop(self)
        dattended, dresidual = map(places.put_back, self.output.backward(dout, cache.pop(self)))
        dhidden = self.self.backward(dattended, cache.pop(self))
        return ops.add_derivative(dhidden, dresidual)


class BertIntermediate(Module):
    """f(x Wᵀ + b) with F outputs and f the configuration's ``hidden_act``."""

    def __init__(self, config: BertConfig):
        super().__init__()
        self.dense = LinearActivation(config.hidden_size, config.intermediate_size, config.hidden_act)

    def forward(self, hidden: Array) -> tuple[Array, Cache]:
        """hidden (B, S, H) → y (B, S, F)."""
        return self.dense.forward(hidden)

    def backward(self, dout: Array, cache: Cache) -> Array:
        """dout (B, S, F) → dhidden (B, S, H)."""
        return self.dense.backward(dout, cache)


class BertLayer(Module):
    """One layer: attention, then the feed-forward network on each token separately."""

    is_block = True

    def __init__(self, config: BertConfig):
        super().__init__()
        self.attention = BertAttention(config)
        self.intermediate = BertIntermediate(config)
        self.output = BertResidualOutput(config.intermediate_size, config)

    def forward(self, hidden: Array, bias: Array, context: Context | None = None) -> tuple[Array, Cache]:
        """hidden (B, S, H), bias (B, 1, 1 or S, S) → y (B, S, H)."""
        context = context or self.new_context()
        attended, attention_cache = self.attention.forward(hidden, bias, context.inside("attention"))
        attended, attended_seen = context.observe("attention", attended)
        wide, intermediate_cache = self.intermediate.forward(attended)  # (B, S, F)
        wide, wide_seen = context.observe("intermediate", wide)
        y, output_cache = self.output.forward(wide, attended, context)
        caches = attention_cache, attended_seen, intermediate_cache, wide_seen, output_cache, context.places
        return context.places.put_back(y), Cache(self, *caches)

    def backward(self, dout: Array, cache: Cache) -> Array:
        """dout (B, S, H) → dhidden (B, S, H)."""
        dout = cache.pop(self).leave_out(dout)
        dwide, dresidual = self.output.backward(dout, cache.pop(self))
        dwide = observed_backward(dwide, cache.pop(self))
        dattended = self.intermediate.backward(dwide, cache.pop(self))
        dattended = ops.add_derivative(dattended, dresidual)
        dattended = observed_backward(dattended, cache.pop(self))
        return self.attention.backward(dattended, cache.pop(self))


class BertEncoder(Module):
    """L layers, one after the other.

    With ``recompute`` only the input of each layer is kept for the backward pass, which runs each layer's
    forward again before its backward: a third more work for much less memory. The results are bit-identical:
    each layer's context is kept too, so that its dropout draws the same bits again.
    """

    recompute = False

    def __init__(self, config: BertConfig):
        super().__init__()
        self.layer = [BertLayer(config) for _ in range(config.num_hidden_layers)]

    def forward(
        self, hidden: Array, bias: Array, context: Context | None = None, needs_dhidden: bool = True
    ) -> tuple[Array, Cache]:
        """hidden (B, S, H), bias (B, 1, 1 or S, S) → y (B, S, H).

        Without ``needs_dhidden``, no cache is kept below the lowest layer that learns.
        """
        context = context or self.new_context()
        caches = []
        learning = needs_dhidden
        for i, layer in enumerate(self.layer):
            last = i + 1 == len(self.layer)
            inside = context.inside(f"layer.{i}").only_at(context.places if last else EVERYWHERE)
            start = (hidden, bias, inside.copy()) if self.recompute else None
            hidden, cache = layer.forward(hidden, bias, inside)
            hidden, seen = context.observe(f"layer.{i}", hidden)
            learning = learning or not layer.frozen
            if context.backward:
                caches.append((start or cache, seen) if learning else None)
            del cache  # what is not kept is freed before the next layer
        return hidden, Cache(self, *caches)

    def backward(self, dout: Array, cache: Cache) -> Array | None:
        """dout (B, S, H) → dhidden (B, S, H), or None if the forward kept no cache for the lowest layers."""
        for layer in reversed(self.layer):
            kept = cache.pop(self)
            if kept is None:
                return None
            layer_cache, seen = kept
            dout = observed_backward(dout, seen)
            if self.recompute:
                hidden, bias, context = layer_cache
                _, layer_cache = layer.forward(hidden, bias, context)
            dout = layer.backward(dout, layer_cache)
        return dout


class BertPooler(Module):
    """tanh(h[CLS] Wᵀ + b): one vector for the whole input, from its first token (``classifier_pooling``)."""

    is_block = True

    def __init__(self, config: BertConfig):
        super().__init__()
        self.dense = LinearActivation(config.hidden_size, config.hidden_size, "tanh")
        self.pool, self.pool_backward = ops.POOLING[config.classifier_pooling]

    def forward(self, hidden: Array, mask: Array | None = None) -> tuple[Array, Cache]:
        """hidden (B, S, H) → pooled (B, H). mask (B, S), 0 for padding, matters where the last token does."""
        token, token_cache = self.pool(hidden, mask)  # (B, H)
        pooled, dense_cache = self.dense.forward(token)
        return pooled, Cache(self, token_cache, dense_cache)

    def backward(self, dout: Array, cache: Cache) -> Array:
        """dout (B, H) → dhidden (B, S, H), zero except at the token that was read."""
        dtoken = self.dense.backward(dout, cache.pop(self))
        return self.pool_backward(dtoken, cache.pop(self))
