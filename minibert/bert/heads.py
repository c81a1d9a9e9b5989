"""The pre-training heads on top of the encoder: predict masked words, and whether text B follows text A."""

from minibert import ops
from minibert.arrays import Array
from minibert.bert.config import BertConfig
from minibert.nn import LayerNorm, Linear, LinearActivation, Module, Parameter
from minibert.nn.targets import Targets
from minibert.ops import Cache


class BertPredictionHeadTransform(Module):
    """LayerNorm(f(x Wᵀ + b)): the last step before each hidden state is scored against every word."""

    def __init__(self, config: BertConfig):
        super().__init__()
        self.dense = LinearActivation(config.hidden_size, config.embedding_size, config.head_act)
        self.LayerNorm = LayerNorm(config.embedding_size, config.layer_norm_eps)

    def forward(self, hidden: Array) -> tuple[Array, Cache]:
        """hidden (N, H) → y (N, E), in the size of the word vectors: E = H in BERT."""
        active, dense_cache = self.dense.forward(hidden)
        y, norm_cache = self.LayerNorm.forward(active)
        return y, Cache(self, dense_cache, norm_cache)

    def backward(self, dout: Array, cache: Cache) -> Array:
        """dout (N, E) → dhidden (N, H)."""
        dactive = self.LayerNorm.backward(dout, cache.pop(self))
        return self.dense.backward(dactive, cache.pop(self))


class BertLMPredictionHead(Module):
    """The masked-word head: gather the predicted positions, transform them, score every word.

    The decoder's matrix *is* the table of word embeddings: one parameter with two users, whose
    gradient is the sum of what both contribute. The bias is the head's own.
    """

    def __init__(self, config: BertConfig, word_weight: Parameter):
        super().__init__()
        self.transform = BertPredictionHeadTransform(config)
        self.bias = Parameter((config.vocab_size,), init="zeros", decay=False)
        self._decoder_weight = word_weight

    def forward(self, hidden: Array, positions: Array) -> tuple[Array, Cache]:
        """Scores of every word: hidden (B, S, H), N flat positions b·S + s → logits (N, V)."""
        transformed, rows_cache = self._transform_rows(hidden, positions)  # (N, E)
        logits, decoder_cache = ops.linear(transformed, self._decoder_weight.operand, self.bias.value)
        return logits.astype(self.bias.value.dtype, copy=False), Cache(self, rows_cache, decoder_cache)

    def backward(self, dlogits: Array, cache: Cache) -> Array:
        """dlogits (N, V) or (B, S, V) → dhidden (B, S, H), zero at positions that were not scored."""
        dlogits = dlogits.astype(self._decoder_weight.operand.dtype, copy=False).reshape(
            -1, dlogits.shape[-1]
        )
        dtransformed, dweight, dbias = ops.linear_backward(dlogits, cache.pop(self))
        return self._rows_backward(dtransformed, dweight, dbias, cache.pop(self))

    def loss(self, hidden: Array, targets: Targets) -> tuple[Array, Cache]:
        """The cross-entropy of these scores as one operation, which kernels fuse: a 0-d array, in nats.

        loss = Σ weight · (−log p(label)) / denominator over the N positions of ``targets``.
        """
        transformed, rows_cache = self._transform_rows(hidden, targets.positions)  # (N, E)
        decoder = self._decoder_weight.operand, self.bias.value
        labels = targets.labels, targets.weights, targets.denominator
        loss, loss_cache = ops.masked_lm_loss(transformed, *decoder, *labels)
        return loss, Cache(self, rows_cache, loss_cache)

    def loss_backward(self, dloss: Array | float, cache: Cache) -> Array:
        """dloss, a scalar → dhidden (B, S, H), zero at positions that were not predicted."""
        dtransformed, dweight, dbias = ops.masked_lm_loss_backward(dloss, cache.pop(self))
        return self._rows_backward(dtransformed, dweight, dbias, cache.pop(self))

    def _transform_rows(self, hidden: Array, positions: Array) -> tuple[Array, Cache]:
        """hidden (B, S, H), positions (N,) → the transformed rows of these positions (N, E)."""
        rows = hidden.reshape(-1, hidden.shape[-1])  # (B·S, H)
        gathered, gather_cache = ops.embedding(rows, positions)  # (N, H): a look-up like any other
        transformed, transform_cache = self.transform.forward(gathered)
        return transformed, Cache(self, hidden.shape, gather_cache, transform_cache)

    def _rows_backward(self, dtransformed: Array, dweight: Array, dbias: Array, cache: Cache) -> Array:
        """Add the decoder's gradients; dtransformed (N, E) → dhidden (B, S, H)."""
        self._decoder_weight.add_grad(dweight)
        self.bias.add_grad(dbias)
        dgathered = self.transform.backward(dtransformed, cache.pop(self))
        drows = ops.embedding_backward(dgathered, cache.pop(self))  # (B·S, H)
        return drows.reshape(cache.pop(self))


class NextSentenceHead(Linear):
    """Two scores from the pooled vector: B really follows A (class 0), or B is random (class 1)."""

    def __init__(self, config: BertConfig):
        super().__init__(config.hidden_size, 2)


class BertPreTrainingHeads(Module):
    """Both heads, or one of them; the other is None."""

    is_block = True

    def __init__(
        self, config: BertConfig, word_weight: Parameter, masked_lm: bool = True, next_sentence: bool = True
    ):
        super().__init__()
        self.predictions = BertLMPredictionHead(config, word_weight) if masked_lm else None
        self.seq_relationship = NextSentenceHead(config) if next_sentence else None
