"""XLNet: predict words in any order, from what comes earlier in that order (Yang et al., 2019).

    objective     A random order of the tokens is drawn, and the last ones in it are predicted, each from
                  those before it: a language model that sees both sides, without a [MASK] that no text has
                  (``data/permutations.py``).
    two streams   A token that is predicted must not see itself, but those after it in the order must see it.
                  So it has two vectors: its *content* knows the token, its *query* only the place.
    positions     Only the distances between tokens count, as in Transformer-XL (Dai et al., 2019). So no
                  table limits the length, and padding may stand on the left (``xlnet_layers.py``).
    segments      Two tokens are in the same text of a pair or not; which text it is makes no difference.
    heads         The hidden states are compared with the word vectors as they are, without BERT's layer in
                  between. A classifier reads the last token, <cls>.

Not supported: memories, with which Transformer-XL reads a long text in parts (a model that was trained with
them reads every text as its first part; ``mem_len`` is ignored), and what no released XLNet uses (``ONLY`` in
``xlnet_config.py``).
"""

from dataclasses import replace
from typing import Any

import numpy as np

from minibert.arrays import Array
from minibert.bert.config import BertConfig
from minibert.bert.heads import BertLMPredictionHead
from minibert.bert.inputs import EncoderInputs
from minibert.bert.models import BertForMaskedLM, BertModel, BertPretrainedModel
from minibert.devices import Device
from minibert.errors import UserError
from minibert.heads.layers import ClassificationHead
from minibert.heads.sentence import SentenceEncoder
from minibert.heads.task_models import (
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
)
from minibert.nn import Context, Dropout, Module
from minibert.nn.targets import IGNORED, as_integers, masked_lm_targets
from minibert.ops import Cache
from minibert.variants.permutations import PermutedInputs, permuted_inputs
from minibert.variants.xlnet_config import NAMES, XLNetConfig
from minibert.variants.xlnet_layers import XLNetEmbeddings, XLNetEncoder, distance_waves, surroundings


class _XLNet(BertPretrainedModel):
    config: XLNetConfig
    config_class = XLNetConfig
    tensor_names = NAMES

    def make_encoder(self, config: BertConfig, add_pooling_layer: bool) -> BertModel:
        return XLNetModel(config, device=None)


class XLNetModel(_XLNet, BertModel):
    """The encoder; it has no pooler. ``prepare`` says what a batch can hold.

    With a target_mapping, ``last_hidden_state`` (B, P, H) is that of the queries, ``hidden_states`` are
    (B, S + P, H) and ``attentions`` (B, A, S + P, S), where the content comes first.
    """

    embeddings_class = XLNetEmbeddings
    encoder_class = XLNetEncoder
    has_pooler = False

    def prepare(self, **batch: Any) -> EncoderInputs:
        """Check a batch: see ``permuted_inputs``."""
        return permuted_inputs(self.config, **batch, dtype=self.dtype)

    def _embed(self, inputs: EncoderInputs, context: Context) -> tuple[Array, Cache, Any]:
        predicted = inputs.predicted if isinstance(inputs, PermutedInputs) else None
        targets = 0 if predicted is None else predicted.shape[1]
        ids, segments = inputs.input_ids, inputs.token_type_ids
        assert isinstance(self.embeddings, XLNetEmbeddings)
        hidden, cache = self.embeddings.forward(ids, segments, context, inputs.inputs_embeds, targets)
        waves = distance_waves(segments, segments.shape[1], self.config.hidden_size).astype(hidden.dtype)
        waves, _ = self.embeddings.dropout.forward(waves, context)
        return hidden, cache, surroundings(inputs, waves, self.dtype)


class Unchanged(Module):
    """y = x: there is no layer between the hidden states and the scores of words."""

    def forward(self, x: Array) -> tuple[Array, None]:
        """x → x."""
        return x, None

    def backward(self, dout: Array, cache: None) -> Array:
        """dout → dout."""
        return dout


class XLNetLMHeadModel(_XLNet, BertForMaskedLM):
    """XLNet as it is pre-trained: the words at the targets, from the tokens before them in the order.

    labels are (B, P) with a target_mapping, else (B, S), −100 where nothing is predicted. The loss is their
    mean cross-entropy, and ``prediction_logits`` are the scores as in ``BertForMaskedLM``.
    """

    def __init__(
        self,
        config: XLNetConfig,
        *,
        device: str | Device | None = "cpu",
        dtype: str = "float32",
        precision: str | None = None,
        seed: int = 0,
    ):
        super().__init__(config, device=None)
        head = BertLMPredictionHead(config, self.bert.embeddings.word_embeddings.weight)
        head.transform = Unchanged()  # type: ignore[assignment]
        self.cls.predictions = head
        self._become_root(device, dtype, precision, seed)

    def prepare(
        self,
        *,
        labels: Any = None,
        mlm_denominator: float | None = None,
        predictions: int | None = None,
        **batch: Any,
    ) -> PermutedInputs:
        """Check a batch, and find its targets: as ``BertForPreTraining.prepare`` and ``permuted_inputs``."""
        inputs = permuted_inputs(self.config, **batch, dtype=self.dtype)
        if labels is None:
            return inputs
        shape = inputs.attention_mask.shape if inputs.predicted is None else inputs.predicted.shape
        labels = as_integers("labels", labels)
        if labels.shape != shape:
            raise UserError(f"labels has shape {labels.shape}; expected {shape}, a label for each prediction")
        if inputs.predicted is not None:
            of_a_token = np.any(batch["target_mapping"], axis=2)  # (B, targets); a row of zeros only fills up
            if (labels[~of_a_token] != IGNORED).any():
                raise UserError("labels has a word at a row of zeros in target_mapping; give −100 there")
        targets = masked_lm_targets(labels, shape, self.config.vocab_size, self.dtype, predictions)
        targets = targets.divided_by(mlm_denominator, self.config.loss_denominator_epsilon)
        return replace(inputs, masked_lm=targets)


class XLNetForSequenceClassification(_XLNet, BertForSequenceClassification):
    """A label or a number for a text, or for a pair of texts, from its last token, <cls>.

    transformers reads the last token of the row, so that it is right for padding on the left alone. Here,
    padding may be on either side.
    """

    add_pooling_layer = False
    reads = "last_hidden_state"

    def _add_head(self, config: BertConfig) -> None:
        self.classifier = ClassificationHead(config, "tanh", config.classifier_dropout, drops_input=False)


class XLNetForTokenClassification(_XLNet, BertForTokenClassification):
    """A tag for each token, as BERT does it, but without a dropout of its own."""

    def _add_head(self, config: BertConfig) -> None:
        super()._add_head(config)
        self.classifier.dropout = Dropout(0.0)


class XLNetForQuestionAnsweringSimple(_XLNet, BertForQuestionAnswering):
    """Where in a passage an answer starts and ends, as BERT does it."""


class XLNetSentenceEncoder(SentenceEncoder, XLNetModel):
    """A vector for each text. Raises UserError for the pooling "cls", which is a text's first token."""

    architecture = "XLNetModel"

    def __init__(self, config: BertConfig, *, pooling: str = "mean", **options: Any):
        if pooling == "cls":
            raise UserError("pooling 'cls' reads the first token; XLNet's <cls> is the last: use 'lasttoken'")
        super().__init__(config, pooling=pooling, **options)
