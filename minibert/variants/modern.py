"""Pre-LN and rotary positions: two ideas that came after BERT, each an option, on BERT itself.

    normalisation   "pre": LayerNorm at the beginning of each sublayer, "post": at its end, as in BERT.
    positions       "rotary": queries and keys are turned by angles, "learned": a table, as in BERT.

With "post" and "learned" this is BERT. The heads, and how they are trained, are BERT's in any case.

**Pre-LN** (Xiong et al., 2020, "On Layer Normalization in the Transformer Architecture"). With x the residual
stream and f a sublayer, attention or feed-forward network:

    post-LN    x ← LayerNorm(x + f(x))
    pre-LN     x ← x + f(LayerNorm(x)),   and one more LayerNorm after the last layer

So the residual stream is never normalised on its way up, and the gradient comes down along it unchanged.
Post-LN divides both by σ in every sublayer. At first the gradients of its upper layers are large, so that it
needs a warm-up; the authors trained pre-LN without one.

The final LayerNorm belongs to the last layer. So of the hidden states that a model returns, the first (the
embeddings) and the last are normalised, and those between them are not.

**Rotary positions** (Su et al., 2021, "RoFormer"; ``ops/rotary.py`` has the mathematics). There is no table
of positions, and nothing is added to the words. Every layer turns its queries and keys by angles that grow
with the position, so that a score depends on how far apart two words are, but not on where they are. No
number is learned for a position, and ``max_position_embeddings`` is no size of an array. It is still the most
tokens that the model reads, since it knows no distances but those that it has seen; ``export --positions``
changes it.

ModernBERT (Warner et al., 2024) has both ideas, and others that are not here: gated feed-forward networks, no
biases, attention to neighbours only in most layers, no norm before the first attention. So this class does
not open its folders. No other library has this ``model_type``: what is saved here opens in minibert only.
"""

from dataclasses import dataclass
from typing import ClassVar

from minibert import ops
from minibert.arrays import Array
from minibert.bert.config import BertConfig
from minibert.bert.encoder import (
    BertEncoder,
    BertIntermediate,
    BertLayer,
    BertResidualOutput,
    BertSelfAttention,
)
from minibert.bert.models import BertForMaskedLM, BertForPreTraining, BertModel, BertPretrainedModel
from minibert.errors import UserError
from minibert.folders.config import check_choice
from minibert.heads.sentence import SentenceEncoder
from minibert.heads.task_models import (
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
)
from minibert.nn import Context, LayerNorm
from minibert.ops import Cache
from minibert.variants.embeddings import LookedUpEmbeddings

NORMALISATIONS = ("pre", "post")
POSITIONS = ("rotary", "learned")


@dataclass
class ModernConfig(BertConfig):
    """The configuration of a BERT with pre-LN, rotary positions, or both (by default). See ``BertConfig``.

    Raises UserError as that does, and for an odd number of features per head with rotary positions.
    """

    model_type: ClassVar[str] = "minibert-modern"

    normalisation: str = "pre"
    positions: str = "rotary"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("normalisation", self.normalisation, NORMALISATIONS)
        check_choice("positions", self.positions, POSITIONS)
        size = self.hidden_size // self.num_attention_heads
        if self.positions == "rotary" and size % 2:
            raise UserError(
                f"rotary positions turn pairs of features, but each head has {size}: hidden_size "
                f"{self.hidden_size} / num_attention_heads {self.num_attention_heads}; make it even"
            )

    @property
    def needs_padding(self) -> bool:
        """As in BERT, and with rotary positions, which every layer reads off a token's place in its row."""
        return super().needs_padding or self.positions == "rotary"


class ModernEmbeddings(LookedUpEmbeddings):
    """Word + position + token type or, with rotary positions, word + token type."""

    def __init__(self, config: ModernConfig):
        super().__init__(config)
        self.positions = config.positions == "learned"
        if not self.positions:
            del self.position_embeddings


class ModernSelfAttention(BertSelfAttention):
    """BERT's self-attention: of LayerNorm(hidden) with pre-LN; with q and k turned for rotary positions.

    An observer sees q and k as they are used: turned. The key's bias, which makes no difference in BERT, does
    make one here, since it is turned by another angle at each key.
    """

    def __init__(self, config: ModernConfig):
        super().__init__(config)
        pre = config.normalisation == "pre"
        self.LayerNorm = LayerNorm(config.hidden_size, config.layer_norm_eps) if pre else None
        self.rotary = config.positions == "rotary"

    def project(self, x: Array, weight: Array, bias: Array) -> tuple[Array, Cache]:
        """x (B, S, H), weight (3H, H), bias (3H,) → q, k and v side by side (B, S, 3H)."""
        norm_cache = rotary_cache = None
        if self.LayerNorm:
            x, norm_cache = self.LayerNorm.forward(x)
        qkv, linear_cache = ops.linear(x, weight, bias)
        if self.rotary:
            qkv, rotary_cache = ops.rotary_embedding(qkv, self.num_heads)
        return qkv, Cache(self, norm_cache, linear_cache, rotary_cache)

    def project_backward(self, dout: Array, cache: Cache) -> tuple[Array, Array, Array]:
        """dout (B, S, 3H) → dx, dweight, dbias: the backwards in reverse order."""
        rotary_cache, linear_cache, norm_cache = (cache.pop(self) for _ in range(3))
        if self.rotary:
            dout = ops.rotary_embedding_backward(dout, rotary_cache)
        dx, dweight, dbias = ops.linear_backward(dout, linear_cache)
        if self.LayerNorm:
            dx = self.LayerNorm.backward(dx, norm_cache)
        return dx, dweight, dbias


class PreNormIntermediate(BertIntermediate):
    """f(LayerNorm(x) Wᵀ + b): where the feed-forward network begins in pre-LN."""

    def __init__(self, config: ModernConfig):
        super().__init__(config)
        self.LayerNorm = LayerNorm(config.hidden_size, config.layer_norm_eps)

    def forward(self, hidden: Array) -> tuple[Array, Cache]:
        """hidden (B, S, H) → y (B, S, F)."""
        normalised, norm_cache = self.LayerNorm.forward(hidden)
        y, cache = super().forward(normalised)
        return y, Cache(self, norm_cache, cache)

    def backward(self, dout: Array, cache: Cache) -> Array:
        """dout (B, S, F) → dhidden (B, S, H)."""
        dnormalised = super().backward(dout, cache.pop(self))
        return self.LayerNorm.backward(dnormalised, cache.pop(self))


class PreNormOutput(BertResidualOutput):
    """residual + dropout(x Wᵀ + b): how both sublayers end in pre-LN."""

    def __init__(self, in_features: int, config: ModernConfig):
        super().__init__(in_features, config)
        del self.LayerNorm

    def forward(self, x: Array, residual: Array, context: Context | None = None) -> tuple[Array, Cache]:
        """x (B, S, in_features), residual (B, S, H) → y (B, S, H)."""
        context = context or self.new_context()
        projected, dense_cache = self.dense.forward(x)  # (B, S, H)
        dropped, dropout_cache = self.dropout.forward(projected, context)
        return residual + dropped, Cache(self, dense_cache, dropout_cache)

    def backward(self, dout: Array, cache: Cache) -> tuple[Array, Array]:
        """dout (B, S, H) → dx (B, S, in_features), dresidual (B, S, H).

        forward: a sum, whose derivative goes to both of its terms. The residual gets it as it is.
        """
        dprojected = self.dropout.backward(dout, cache.pop(self))
        return self.dense.backward(dprojected, cache.pop(self)), dout


class ModernLayer(BertLayer):
    """One layer: attention, then the feed-forward network. With pre-LN their LayerNorms have moved forward.

    The last layer ends as BERT's do, with LayerNorm(residual + …). This is the LayerNorm after all layers.
    """

    def __init__(self, config: ModernConfig, last: bool):
        super().__init__(config)
        self.attention.self = ModernSelfAttention(config)
        if config.normalisation == "pre":
            self.attention.output = PreNormOutput(config.hidden_size, config)
            self.intermediate = PreNormIntermediate(config)
            if not last:
                self.output = PreNormOutput(config.intermediate_size, config)


class ModernEncoder(BertEncoder):
    """L layers, one after the other, and with pre-LN a LayerNorm at the end of the last one."""

    def __init__(self, config: ModernConfig):
        super().__init__(config)
        count = config.num_hidden_layers
        self.layer = [ModernLayer(config, last=number == count) for number in range(1, count + 1)]


class _Modern(BertPretrainedModel):
    config_class = ModernConfig

    def make_encoder(self, config: BertConfig, add_pooling_layer: bool) -> BertModel:
        return ModernModel(config, device=None, add_pooling_layer=add_pooling_layer)


class ModernModel(_Modern, BertModel):
    """The encoder and its pooler."""

    embeddings_class = ModernEmbeddings
    encoder_class = ModernEncoder


class ModernForPreTraining(_Modern, BertForPreTraining):
    """The encoder with both of BERT's pre-training heads."""


class ModernForMaskedLM(_Modern, BertForMaskedLM):
    """The encoder with the head that predicts masked words."""


class ModernForSequenceClassification(_Modern, BertForSequenceClassification):
    """A label or a number for a text, or for a pair of texts, as BERT does it."""


class ModernForTokenClassification(_Modern, BertForTokenClassification):
    """A tag for each token, as BERT does it."""


class ModernForQuestionAnswering(_Modern, BertForQuestionAnswering):
    """Where in a passage an answer starts and ends, as BERT does it."""


class ModernSentenceEncoder(SentenceEncoder, ModernModel):
    """A vector for each text."""

    architecture = "ModernModel"
