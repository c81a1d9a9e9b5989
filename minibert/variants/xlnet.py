"""XLNet: predict words in any order, from what comes earlier in that order (Yang et al., 2019).

    objective     A random order of the tokens is drawn, and the last ones in it are predicted, each from
                  those before it: a language model that sees both sides, without a [MASK] that no text has
                  (``permutations.py``).
    two streams   A token that is predicted must not see itself, but those after it in the order must see it.
                  So it has two vectors: its *content* knows the token, its *query* only the place.
    positions     Only the distances between tokens count, as in Transformer-XL (Dai et al., 2019). So no
                  table limits the length, and padding may stand on the left (``xlnet_layers.py``).
    segments      Two tokens are in the same text of a pair or not; which text it is makes no difference.
    heads         The hidden states are compared with the word vectors as they are, without BERT's layer in
                  between. A classifier reads the last token, <cls>.

Not supported: memories, with which Transformer-XL reads a long text in parts (a model that was trained with
them reads every text as its first part; ``mem_len`` is ignored), and what no released XLNet uses (``ONLY``).
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from minibert.arrays import Array
from minibert.bert.config import LARGEST, BertConfig
from minibert.bert.heads import BertLMPredictionHead
from minibert.bert.inputs import EncoderInputs, masked_lm_targets
from minibert.bert.models import BertForMaskedLM, BertModel, BertPretrainedModel
from minibert.devices import Device
from minibert.errors import UserError
from minibert.folders.names import Names
from minibert.heads.inputs import TaskInputs
from minibert.heads.layers import FirstTokenClassifier
from minibert.heads.sentence import SentenceEncoder
from minibert.heads.task_models import (
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
)
from minibert.nn import Context, Dropout, Module
from minibert.nn.targets import as_integers
from minibert.ops import Cache
from minibert.variants.permutations import PermutedInputs, permuted_inputs
from minibert.variants.xlnet_layers import XLNetEmbeddings, XLNetEncoder, distance_waves, surroundings

# What Hugging Face calls the same parameters. In attention, the longer names come first.
NAMES: Names = (
    (".rel_attn.layer_norm.", ".attention.output.LayerNorm."),
    (".rel_attn.seg_embed", ".attention.self.seg_embed"),
    (".rel_attn.r_", ".attention.self.r_"),
    (".rel_attn.r", ".attention.self.distance.weight"),
    (".rel_attn.q", ".attention.self.query.weight"),
    (".rel_attn.k", ".attention.self.key.weight"),
    (".rel_attn.v", ".attention.self.value.weight"),
    (".rel_attn.o", ".attention.output.dense.weight"),
    (".ff.layer_1.", ".intermediate.dense."),
    (".ff.layer_2.", ".output.dense."),
    (".ff.layer_norm.", ".output.LayerNorm."),
    ("transformer.layer.", "bert.encoder.layer."),
    ("transformer.word_embedding.", "bert.embeddings.word_embeddings."),
    ("transformer.mask_emb", "bert.embeddings.mask_emb"),
    ("layer.", "encoder.layer."),  # in the folder of an encoder by itself
    ("word_embedding.", "embeddings.word_embeddings."),
    ("mask_emb", "embeddings.mask_emb"),
    ("lm_loss.weight", "cls.predictions.decoder.weight"),
    ("lm_loss.bias", "cls.predictions.bias"),
    ("sequence_summary.summary.", "classifier.dense."),
    ("logits_proj.", "classifier.out_proj."),
)

# Settings of which one value is supported: that of all released models.
ONLY = {
    "attn_type": "bi",  # not left to right
    "bi_data": False,  # no batch of which one half is read backwards
    "clamp_len": -1,  # no distance from which on all are alike
    "same_length": False,
    "untie_r": True,  # each layer has biases of its own
    "summary_type": "last",
    "summary_use_proj": True,
    "summary_activation": "tanh",
    "is_decoder": False,
}


@dataclass
class XLNetConfig(BertConfig):
    """The configuration of an XLNet; the defaults are xlnet-base-cased. See ``BertConfig``.

    XLNet has no table of positions. ``max_position_embeddings`` is only the longest sequence that a batch may
    have, by default the 512 that the released models were trained on; ``from_pretrained`` takes any other
    number. (In ``config.json`` it is "longest_sequence", as transformers refuses the usual name.) Token types
    may be any numbers below ``type_vocab_size``. There is one dropout for everything:
    ``attention_probs_dropout_prob`` is always ``hidden_dropout_prob``.

    Raises UserError as ``BertConfig`` does, for an odd hidden size, and for other values than those of
    ``ONLY``.
    """

    model_type: ClassVar[str] = "xlnet"
    names_in_file: ClassVar[dict[str, str]] = {
        "hidden_size": "d_model",
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
        "intermediate_size": "d_inner",
        "hidden_act": "ff_activation",
        "hidden_dropout_prob": "dropout",
        "classifier_dropout": "summary_last_dropout",
        "max_position_embeddings": "longest_sequence",
    }

    vocab_size: int = 32000
    type_vocab_size: int = LARGEST["type_vocab_size"]
    pad_token_id: int | None = 5
    initializer: str = "normal"
    classifier_dropout: float | None = 0.1
    attn_type: str = "bi"
    bi_data: bool = False
    clamp_len: int = -1
    same_length: bool = False
    untie_r: bool = True
    summary_type: str = "last"
    summary_use_proj: bool = True
    summary_activation: str = "tanh"

    def __post_init__(self) -> None:
        self.attention_probs_dropout_prob = self.hidden_dropout_prob
        if self.classifier_dropout is None:  # which transformers does not read
            self.classifier_dropout = self.hidden_dropout_prob
        super().__post_init__()
        if self.hidden_size % 2:
            raise UserError(f"hidden_size is {self.hidden_size}; an XLNet needs an even one (sines, cosines)")
        for name, only in ONLY.items():
            value = getattr(self, name)
            if value != only:
                raise UserError(f"{name} is {value!r}; only XLNets with {only!r} are supported")


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

    def __init__(self, config: BertConfig, **options: Any):
        super().__init__(config, **options | {"add_pooling_layer": False})

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
        targets = masked_lm_targets(self.config, self.dtype, labels, shape, predictions)
        return replace(inputs, masked_lm=targets.divided_by(mlm_denominator))


class LastTokenClassifier(FirstTokenClassifier):
    """y = W₂ d(tanh(W₁ h + b₁)) + b₂ with dropout d and h the last token."""

    def __init__(self, config: BertConfig):
        super().__init__(config, "tanh", config.classifier_dropout, drops_input=False)

    def forward(self, x: Array, context: Context | None = None) -> tuple[Array, Cache]:
        """Hidden states (B, S, H), or features (B, head size) → y (B, K)."""
        return super().forward(x[:, ::-1] if self.dense else x, context)

    def backward(self, dout: Array, cache: Cache) -> Array:
        """dout (B, K) → dx, as x."""
        dx = super().backward(dout, cache)
        return dx[:, ::-1] if self.dense else dx


class XLNetForSequenceClassification(_XLNet, BertForSequenceClassification):
    """A label or a number for a text, or for a pair of texts, from the last token: pad on the left."""

    add_pooling_layer = False
    reads = "last_hidden_state"

    def _add_head(self, config: BertConfig) -> None:
        self.classifier = LastTokenClassifier(config)

    def prepare(self, **batch: Any) -> TaskInputs:
        """Check a batch, and find its targets. Raises UserError if a text ends with padding."""
        inputs = super().prepare(**batch)
        ends = np.flatnonzero(inputs.attention_mask[:, -1] == 0)
        if len(ends) and not self.config.feature_layers:
            raise UserError(f"text {ends[0]} ends with padding, but its last token is read; pad on the left")
        return inputs


class XLNetForTokenClassification(_XLNet, BertForTokenClassification):
    """A tag for each token, as BERT does it, but without a dropout of its own."""

    def _add_head(self, config: BertConfig) -> None:
        super()._add_head(config)
        self.classifier.dropout = Dropout(0.0)


class XLNetForQuestionAnsweringSimple(_XLNet, BertForQuestionAnswering):
    """Where in a passage an answer starts and ends, as BERT does it."""


class XLNetSentenceEncoder(SentenceEncoder, XLNetModel):
    """A vector for each text."""

    architecture = "XLNetModel"
