"""The fine-tuning heads on top of the encoder: scores for labels, and for sequences of labels."""

from minibert import ops
from minibert.arrays import Array
from minibert.bert.config import BertConfig
from minibert.nn import Context, Dropout, Linear, LinearActivation, Module, Parameter
from minibert.ops import Cache


class Classifier(Linear):
    """A score for each of the K labels: y = dropout(x) Wᵀ + b. x has ``config.head_size`` numbers."""

    def __init__(self, config: BertConfig):
        super().__init__(config.head_size, config.num_labels)
        own = config.classifier_dropout
        self.dropout = Dropout(config.hidden_dropout_prob if own is None else own)

    def forward(self, x: Array, context: Context | None = None) -> tuple[Array, Cache]:
        """x (…, head size) → y (…, K)."""
        dropped, dropout_cache = self.dropout.forward(x, context or self.new_context())
        y, linear_cache = super().forward(dropped)
        return y, Cache(self, dropout_cache, linear_cache)

    def backward(self, dout: Array, cache: Cache) -> Array:
        """dout (…, K) → dx (…, head size)."""
        ddropped = super().backward(dout, cache.pop(self))
        return self.dropout.backward(ddropped, cache.pop(self))


class LinearChainCRF(Module):
    """The probability of a whole tag sequence (``ops/crf.py``), with scores for which tags follow each other.

    It starts as a softmax for each word, since all of its own scores are 0. They are added like biases and,
    like biases, have no weight decay.
    """

    def __init__(self, num_tags: int):
        super().__init__()
        self.start_transitions = Parameter((num_tags,), init="zeros", decay=False)
        self.end_transitions = Parameter((num_tags,), init="zeros", decay=False)
        self.transitions = Parameter((num_tags, num_tags), init="zeros", decay=False)

    def _scores(self) -> tuple[Array, Array, Array]:
        return self.start_transitions.value, self.end_transitions.value, self.transitions.value

    def forward(self, emissions: Array, tags: Array, mask: Array, denominator: float) -> tuple[Array, Cache]:
        """loss = Σ −log p(tags) / denominator, a 0-d array, in nats.

        emissions (B, S, K), tags (B, S), mask (B, S), 1 for the (at most S) words of a sentence.
        """
        return ops.crf_nll(emissions, *self._scores(), tags, mask, denominator)

    def backward(self, dloss: Array | float, cache: Cache) -> Array:
        """dloss, a scalar → demissions (B, S, K)."""
        demissions, dstart, dend, dtransitions = ops.crf_nll_backward(dloss, cache)
        self.start_transitions.add_grad(dstart)
        self.end_transitions.add_grad(dend)
        self.transitions.add_grad(dtransitions)
        return demissions

    def best_tags(self, emissions: Array, mask: Array) -> Array:
        """The most probable tag sequence: emissions (B, S, K), mask (B, S) → tags (B, S)."""
        return ops.viterbi(emissions, *self._scores(), mask)


class ClassificationHead(Module):
    """A score for each of the K labels: y = W₂ d(f(W₁ d(h) + b₁)) + b₂, with dropout d and h one token.

    RoBERTa, ELECTRA, DistilBERT and XLNet have no pooler, and learn this in fine-tuning. h is the first token
    or, with ``config.classifier_pooling`` "lasttoken", the last one. With ``config.feature_layers`` there is
    no first layer, as the features are all that W₂ reads.
    """

    def __init__(
        self, config: BertConfig, activation: str, dropout: float | None, *, drops_input: bool = True
    ):
        super().__init__()
        size = config.hidden_size
        self.pool, self.pool_backward = ops.POOLING[config.classifier_pooling]
        self.dense = None if config.feature_layers else LinearActivation(size, size, activation)
        self.out_proj = Linear(config.head_size, config.num_labels)
        self.dropout = Dropout(config.hidden_dropout_prob if dropout is None else dropout)
        self.drops_input = drops_input

    def forward(
        self, x: Array, context: Context | None = None, mask: Array | None = None
    ) -> tuple[Array, Cache]:
        """Hidden states (B, S, H), or features (B, head size) → y (B, K).

        mask (B, S), 0 for padding, is read where a text's last token counts.
        """
        context = context or self.new_context()
        token_cache = input_cache = dense_cache = None
        if self.dense:
            x, token_cache = self.pool(x, mask)  # (B, H)
            if self.drops_input:
                x, input_cache = self.dropout.forward(x, context)
            x, dense_cache = self.dense.forward(x)
        dropped, dropout_cache = self.dropout.forward(x, context)
        y, projection_cache = self.out_proj.forward(dropped)
        return y, Cache(self, token_cache, input_cache, dense_cache, dropout_cache, projection_cache)

    def backward(self, dout: Array, cache: Cache) -> Array:
        """dout (B, K) → dx, as x: (B, S, H), or (B, head size)."""
        dx = self.dropout.backward(self.out_proj.backward(dout, cache.pop(self)), cache.pop(self))
        dense_cache, input_cache, token_cache = (cache.pop(self) for _ in range(3))
        if self.dense is None:
            return dx
        dx = self.dense.backward(dx, dense_cache)
        if input_cache is not None:
            dx = self.dropout.backward(dx, input_cache)
        return self.pool_backward(dx, token_cache)
