"""ELECTRA: tell the words of a text from plausible fakes (Clark et al., 2020).

A small *generator*, a BERT for masked words, fills in the masks by sampling from its own predictions. The
*discriminator* then says of every token whether it is the original one. It learns from all tokens of a text,
where masked words teach 15 % of them; it is the model that is fine-tuned, and the generator is thrown away.

    loss = masked-LM loss of the generator + 50 · mean over tokens of −log p(original or replaced)

No derivative goes from the discriminator through the sampled words to the generator: sampling has none. The
two share one table of word vectors (and of positions and token types), of size E.

This file has the two models, and electra_training.py trains both in one step.

    embeddings    E numbers a word, mapped to H where E ≠ H (``ProjectedEmbeddings``).
    pooler        None: a classifier reads the first token through a GELU layer of its own.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from minibert import ops
from minibert.arrays import Array, get_array_module
from minibert.bert.config import LARGEST, BertConfig
from minibert.bert.models import BertForMaskedLM, BertModel, BertPretrainedModel
from minibert.folders.config import check_size
from minibert.folders.names import Names
from minibert.heads.inputs import TaskInputs
from minibert.heads.layers import ClassificationHead
from minibert.heads.outputs import ClassifierOutput
from minibert.heads.sentence import SentenceEncoder
from minibert.heads.task_models import (
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    TaskModel,
)
from minibert.nn import Context, Linear, LinearActivation, Module
from minibert.nn.outputs import Derivatives, total
from minibert.nn.targets import IGNORED, Targets, as_integers, class_targets
from minibert.ops import Cache
from minibert.variants.embeddings import ProjectedEmbeddings

# What Hugging Face calls the same parameters.
NAMES: Names = (
    ("electra.embeddings_project.", "bert.embeddings.project."),
    ("embeddings_project.", "embeddings.project."),
    ("electra.", "bert."),
    ("generator_predictions.dense.", "cls.predictions.transform.dense."),
    ("generator_predictions.LayerNorm.", "cls.predictions.transform.LayerNorm."),
    ("generator_lm_head.weight", "cls.predictions.decoder.weight"),
    ("generator_lm_head.bias", "cls.predictions.bias"),
)


@dataclass
class ElectraConfig(BertConfig):
    """The configuration of an ELECTRA; the defaults are electra-small. See ``BertConfig``.

    ``embedding_size`` is E. Raises UserError as ``BertConfig`` does.
    """

    model_type: ClassVar[str] = "electra"

    embedding_size: int = 128
    hidden_size: int = 256
    num_attention_heads: int = 4
    intermediate_size: int = 1024

    def __post_init__(self) -> None:
        super().__post_init__()
        check_size("embedding_size", self.embedding_size, LARGEST["hidden_size"])

    @property
    def head_act(self) -> str:
        """GELU, whatever the layers have."""
        return "gelu"


class ElectraEmbeddings(ProjectedEmbeddings):
    """Word + position + token type in the size E, mapped to H if that differs."""

    def __init__(self, config: ElectraConfig):
        super().__init__(config, always=False)


class _Electra(BertPretrainedModel):
    config_class = ElectraConfig
    tensor_names = NAMES

    def make_encoder(self, config: BertConfig, add_pooling_layer: bool) -> BertModel:
        return ElectraModel(config, device=None, add_pooling_layer=add_pooling_layer)


class ElectraModel(_Electra, BertModel):
    """The encoder of a generator or a discriminator; it has no pooler."""

    embeddings_class = ElectraEmbeddings
    has_pooler = False


class ElectraForMaskedLM(_Electra, BertForMaskedLM):
    """The generator: the encoder with the head that predicts masked words."""


class DiscriminatorHead(Module):
    """z = w₂ · f(W₁ h + b₁) + b₂ for every token: the log odds that it was replaced."""

    def __init__(self, config: BertConfig):
        super().__init__()
        self.dense = LinearActivation(config.head_size, config.hidden_size, config.hidden_act)
        self.dense_prediction = Linear(config.hidden_size, 1)

    def forward(self, hidden: Array) -> tuple[Array, Cache]:
        """hidden (B, S, H) → log odds (B, S)."""
        active, dense_cache = self.dense.forward(hidden)
        odds, prediction_cache = self.dense_prediction.forward(active)  # (B, S, 1)
        return odds[..., 0], Cache(self, dense_cache, prediction_cache)

    def backward(self, dout: Array, cache: Cache) -> Array:
        """dout (B, S) → dhidden (B, S, H)."""
        dactive = self.dense_prediction.backward(dout[..., None], cache.pop(self))
        return self.dense.backward(dactive, cache.pop(self))


def without_padding(labels: Any, attention_mask: Any) -> np.ndarray:
    """The labels (B, S) with −100 at padding."""
    labels, mask = as_integers("labels", labels), as_integers("attention_mask", attention_mask)
    return np.where(mask > 0, labels, IGNORED) if mask.shape == labels.shape else labels


class ElectraForPreTraining(_Electra, TaskModel[ClassifierOutput]):
    """The discriminator: the encoder with the head that tells replaced tokens; outputs.logits (B, S).

    labels (B, S): 1 where a token was replaced, 0 where it was not, −100 where it does not count. Padding
    does not count either. loss = Σ (log(1 + eᶻ) − y z) / number of tokens that count.
    """

    output = ClassifierOutput
    begins_with_new_head = False

    def _add_head(self, config: BertConfig) -> None:
        self.discriminator_predictions = DiscriminatorHead(config)

    def prepare(self, *, labels: Any = None, attention_mask: Any = None, **batch: Any) -> Any:
        """Check a batch, and find its targets: the class says what the labels are."""
        if labels is not None and attention_mask is not None:
            labels = without_padding(labels, attention_mask)
        return super().prepare(labels=labels, attention_mask=attention_mask, **batch)

    def _targets(self, labels: Any, shape: tuple[int, int], denominator: float | None) -> Targets:
        return class_targets("labels", labels, shape, 2, self.dtype).divided_by(denominator)

    def count_targets(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """The ``denominator`` for this batch by itself; those of micro-batches are added up."""
        mask = batch.get("attention_mask")
        labels = batch["labels"] if mask is None else without_padding(batch["labels"], mask)
        return super().count_targets({"labels": labels})

    def _head(self, outputs: ClassifierOutput, inputs: TaskInputs, context: Context) -> Cache:
        odds, head_cache = self.discriminator_predictions.forward(self._read(outputs))
        outputs.logits, loss_cache = odds.astype(self.dtype, copy=False), None  # (B, S)
        targets = inputs.targets
        if isinstance(targets, Targets):
            flat = outputs.logits.reshape(-1)
            # The probability of "replaced" is σ(z), which is the softmax over the scores 0 and z.
            scores = get_array_module(flat).stack([flat * 0, flat], axis=1)  # (B·S, 2)
            outputs.loss, loss_cache = ops.cross_entropy(
                scores, targets.labels, targets.weights, targets.denominator
            )
        return Cache(self, head_cache, loss_cache, outputs.logits.shape)

    def _head_backward(self, cache: Cache, derivatives: Derivatives) -> tuple[str, Array]:
        """The derivatives of loss and log odds → dhidden (B, S, H)."""
        dloss, dodds = derivatives["loss"], derivatives["logits"]
        shape, loss_cache = cache.pop(self), cache.pop(self)
        if dloss is not None:
            dodds = total(dodds, ops.cross_entropy_backward(dloss, loss_cache)[:, 1].reshape(shape))
        return "last_hidden_state", self.discriminator_predictions.backward(dodds, cache.pop(self))


class ElectraForSequenceClassification(_Electra, BertForSequenceClassification):
    """A label or a number for a text, or for a pair of texts, from the first token."""

    add_pooling_layer = False
    reads = "last_hidden_state"

    def _add_head(self, config: BertConfig) -> None:
        self.classifier = ClassificationHead(config, "gelu", config.classifier_dropout)


class ElectraForTokenClassification(_Electra, BertForTokenClassification):
    """A tag for each token, as BERT does it."""


class ElectraForQuestionAnswering(_Electra, BertForQuestionAnswering):
    """Where in a passage an answer starts and ends, as BERT does it."""


class ElectraSentenceEncoder(SentenceEncoder, ElectraModel):
    """A vector for each text."""

    architecture = "ElectraModel"
