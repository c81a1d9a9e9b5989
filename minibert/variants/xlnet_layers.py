"""The layers of XLNet: BERT's, with attention to distances, and with two streams of vectors.

Both streams are rows of one array: the content of all S tokens, then the queries of the P predicted ones,
together T = S + P rows, (B, T, H). All rows go through the same layers, but only the content has keys and
values. Who sees whom is worked out once for all layers (``Surroundings``).

Unlike the original, dropout drops the same elements of a distance's vector for all texts of a batch, as in
Transformer-XL. So the keys of the distances are computed once, not B times.
"""

from dataclasses import dataclass
from typing import Any

from minibert import ops
from minibert.arrays import Array, as_dtype, get_array_module
from minibert.bert.config import BertConfig
from minibert.bert.embeddings import BertEmbeddings
from minibert.bert.encoder import BertEncoder, BertLayer, BertResidualOutput
from minibert.bert.inputs import EncoderInputs
from minibert.nn import Context, Dropout, Module, Parameter
from minibert.ops import Cache
from minibert.variants.permutations import PermutedInputs

LONGEST_WAVE = 10000.0


@dataclass(frozen=True)
class Surroundings:
    """What attention reads in every layer besides the hidden states. T = S + P rows, S keys."""

    waves: Array  # (2S − 1, H): a vector for each distance S − 1, …, −(S − 1), after dropout
    first: Array  # (B, T): where the distances of a row begin among them
    elsewhere: Array  # (B, 1, T, S): 1 for a key in another segment, else 0
    bias: Array  # (B, 1, T, S): 0, or −10000 for a key that the row must not see


def surroundings(inputs: EncoderInputs, waves: Array, dtype: str) -> Surroundings:
    """Who sees whom: rows 0 … S − 1 are the content of the tokens, the others the queries of the targets."""
    mask, segments = inputs.attention_mask, inputs.token_type_ids
    permuted = inputs if isinstance(inputs, PermutedInputs) else PermutedInputs(None, segments, mask)
    xp, length = get_array_module(mask), mask.shape[1]
    positions = xp.zeros_like(mask) + xp.arange(length, dtype=mask.dtype)  # (B, S)
    row_segments, own = segments, xp.eye(length, dtype=bool)
    seen = (mask[:, None] > 0) & xp.ones_like(own)  # (B, S, S)
    if permuted.perm_mask is not None:
        seen = seen & (permuted.perm_mask == 0)
    rows = seen | own
    if permuted.predicted is not None:
        predicted = permuted.predicted
        rows = xp.concatenate([rows, xp.take_along_axis(seen, predicted[:, :, None], axis=1)], axis=1)
        row_segments = xp.concatenate([segments, xp.take_along_axis(segments, predicted, axis=1)], axis=1)
        positions = xp.concatenate([positions, predicted], axis=1)
    elsewhere = (row_segments[:, :, None] != segments[:, None]).astype(dtype)  # (B, T, S)
    bias = (1 - rows.astype(dtype)) * ops.MASKED  # (B, T, S)
    return Surroundings(waves, length - 1 - positions, elsewhere[:, None], bias[:, None])


def distance_waves(like: Array, length: int, size: int) -> Array:
    """sin(dω) and cos(dω) for the distances d = S − 1, …, −(S − 1), ω = 10000^(−2i/H): (2S − 1, H), float64.

    ``like`` is any array on the device.
    """
    xp = get_array_module(like)
    distances = xp.arange(length - 1, -length, -1, dtype="float64")[:, None]
    angles = distances / LONGEST_WAVE ** (xp.arange(0, size, 2, dtype="float64") / size)  # (2S − 1, H/2)
    return xp.concatenate([xp.sin(angles), xp.cos(angles)], axis=1)


class XLNetEmbeddings(BertEmbeddings):
    """dropout(word) for the content of all tokens, then dropout(one learned vector) for each query."""

    def __init__(self, config: BertConfig):
        super().__init__(config)
        del self.position_embeddings, self.token_type_embeddings, self.LayerNorm
        self.mask_emb = Parameter((1, 1, config.hidden_size))

    def forward(
        self,
        input_ids: Array,
        token_type_ids: Array,
        context: Context | None = None,
        inputs_embeds: Array | None = None,
        targets: int = 0,
    ) -> tuple[Array, Cache]:
        """input_ids (B, S), or inputs_embeds (B, S, H) → hidden (B, S + P, H) for P ``targets`` per text.

        token_type_ids is not read.
        """
        context = context or self.new_context()
        table, word_cache = self.word_embeddings.weight, None
        if inputs_embeds is None:
            words, word_cache = self.word_embeddings.forward(input_ids)
        else:
            words = inputs_embeds
        words, length = words.astype(table.operand.dtype, copy=False), words.shape[1]
        if targets:
            xp, shape = get_array_module(words), (len(words), targets, words.shape[2])
            words = xp.concatenate([words, xp.broadcast_to(self.mask_emb.operand, shape)], axis=1)
        hidden, dropout_cache = self.dropout.forward(words, context)
        return hidden, Cache(self, length, word_cache, dropout_cache)

    def backward(self, dout: Array, cache: Cache) -> Array | None:
        """dout (B, S + P, H) → dinputs_embeds (B, S, H), or None if there were none.

        forward: all queries began as the same vector, so its derivative is the sum of theirs.
        """
        dhidden = self.dropout.backward(dout, cache.pop(self))
        word_cache, length = cache.pop(self), cache.pop(self)
        dqueries = as_dtype(dhidden[:, length:], self.mask_emb.value.dtype)  # not added up in 16 bits
        dqueries = dqueries.sum(axis=1, keepdims=True)  # (B, 1, H)
        self.mask_emb.add_grad(dqueries.sum(axis=0, keepdims=True))
        if word_cache is None:
            return dhidden[:, :length]
        self.word_embeddings.backward(dhidden[:, :length], word_cache)
        return None


class HeadMap(Module):
    """y = x W without a bias, from hidden states to heads; or with ``back`` y = x Wᵀ. weight (H, A, D)."""

    def __init__(self, config: BertConfig, back: bool = False):
        super().__init__()
        heads = config.num_attention_heads
        self.weight = Parameter((config.hidden_size, heads, config.hidden_size // heads))
        self.back = back

    def forward(self, x: Array) -> tuple[Array, Cache]:
        """x (…, H) → y (…, H), where head a has the features a·D to (a + 1)·D on its side."""
        matrix = self.weight.operand.reshape(self.weight.shape[0], -1)
        return ops.product(x, matrix.T if self.back else matrix)

    def backward(self, dout: Array, cache: Cache) -> Array:
        """dout (…, H) → dx (…, H)."""
        dx, dmatrix = ops.product_backward(dout, cache)
        self.weight.add_grad((dmatrix.T if self.back else dmatrix).reshape(self.weight.shape))
        return dx


class XLNetSelfAttention(Module):
    """``ops.relative_attention`` of all rows to the content, with maps and biases to learn."""

    def __init__(self, config: BertConfig):
        super().__init__()
        self.query, self.key, self.value, self.distance = (HeadMap(config) for _ in range(4))
        heads = config.num_attention_heads
        shape = heads, config.hidden_size // heads
        self.r_w_bias = Parameter(shape, decay=False)
        self.r_r_bias = Parameter(shape, decay=False)
        self.r_s_bias = Parameter(shape, decay=False)
        self.seg_embed = Parameter((2, *shape))
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(
        self, hidden: Array, near: Surroundings, context: Context | None = None
    ) -> tuple[Array, Cache]:
        """hidden (B, T, H) → y (B, T, H)."""
        context = context or self.new_context()
        length = near.bias.shape[-1]
        content = hidden[:, :length]  # (B, S, H)
        q, q_cache = self.query.forward(hidden)
        k, k_cache = self.key.forward(content)
        v, v_cache = self.value.forward(content)
        r, r_cache = self.distance.forward(near.waves)  # (2S − 1, H)
        y, cache = ops.relative_attention(
            q,
            k,
            v,
            r,
            self.r_w_bias.value,
            self.r_r_bias.value,
            self.r_s_bias.value,
            self.seg_embed.value,
            near.first,
            near.elsewhere,
            near.bias,
            self.dropout.probability,
            context.dropout_key(self.dropout.probability),
            context.observe,
        )
        return y, Cache(self, length, q_cache, k_cache, v_cache, r_cache, cache)

    def backward(self, dout: Array, cache: Cache) -> Array:
        """dout (B, T, H) → dhidden (B, T, H).

        forward: every row asked, but only the content, which comes first, was key and value.
        """
        derivatives = ops.relative_attention_backward(dout, cache.pop(self))
        dq, dk, dv, dr, dcontent_bias, dposition_bias, dsegment_bias, dsegments = derivatives
        self.r_w_bias.add_grad(dcontent_bias)
        self.r_r_bias.add_grad(dposition_bias)
        self.r_s_bias.add_grad(dsegment_bias)
        self.seg_embed.add_grad(dsegments)
        self.distance.backward(dr, cache.pop(self))  # the waves themselves are constants
        dcontent = self.value.backward(dv, cache.pop(self))
        dcontent += self.key.backward(dk, cache.pop(self))
        dhidden = self.query.backward(dq, cache.pop(self))
        dhidden[:, : cache.pop(self)] += dcontent
        return dhidden


class XLNetOutput(BertResidualOutput):
    """LayerNorm(residual + dropout(dropout(x) Wᵀ + b)): BERT's, with one dropout more."""

    def forward(self, x: Array, residual: Array, context: Context | None = None) -> tuple[Array, Cache]:
        """x (B, T, F), residual (B, T, H) → y (B, T, H)."""
        context = context or self.new_context()
        dropped, dropout_cache = self.dropout.forward(x, context)
        y, cache = super().forward(dropped, residual, context)
        return y, Cache(self, dropout_cache, cache)

    def backward(self, dout: Array, cache: Cache) -> tuple[Array, Array]:
        """dout (B, T, H) → dx (B, T, F), dresidual (B, T, H)."""
        ddropped, dresidual = super().backward(dout, cache.pop(self))
        return self.dropout.backward(ddropped, cache.pop(self)), dresidual


class XLNetLayer(BertLayer):
    """BERT's layer with relative attention; its ``bias`` is a ``Surroundings``."""

    def __init__(self, config: BertConfig):
        super().__init__(config)
        self.attention.self = XLNetSelfAttention(config)  # type: ignore[assignment]  # all have one contract
        self.attention.output.dense = HeadMap(config, back=True)  # type: ignore[assignment]
        self.output = XLNetOutput(config.intermediate_size, config)


class XLNetEncoder(BertEncoder):
    """L layers, and a dropout of those rows that predict: the queries, or all if there are none."""

    def __init__(self, config: BertConfig):
        super().__init__(config)
        self.layer = [XLNetLayer(config) for _ in range(config.num_hidden_layers)]
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(
        self, hidden: Array, bias: Any, context: Context | None = None, needs_dhidden: bool = True
    ) -> tuple[Array, Cache]:
        """hidden (B, S + P, H), bias a ``Surroundings`` → y (B, P, H), or (B, S, H) if P is 0."""
        context = context or self.new_context()
        rows, cache = super().forward(hidden, bias, context, needs_dhidden)
        length = bias.bias.shape[-1]
        y, dropout_cache = self.dropout.forward(rows[:, length:] if rows.shape[1] > length else rows, context)
        return y, Cache(self, cache, rows.shape, dropout_cache)

    def backward(self, dout: Array, cache: Cache) -> Array | None:
        """dout (B, P or S, H) → dhidden (B, S + P, H), or None as in BERT."""
        dpredicting, shape = self.dropout.backward(dout, cache.pop(self)), cache.pop(self)
        drows = get_array_module(dout).zeros(shape, dtype=dout.dtype)
        drows[:, shape[1] - dout.shape[1] :] = dpredicting
        return super().backward(drows, cache.pop(self))
