"""RoBERTa: BERT, trained longer and better (Liu et al., 2019). The model changes in three small ways.

    positions     The first token of a text has position padding id + 1, and the others follow; padding has
                  the position of the padding id. The padding id is 1, so the table has two rows that no token
                  of a text uses.
    segments      There is one token type: the texts of a pair are told apart by the </s></s> between them.
    heads         Nothing predicts the next sentence. No pooler has been trained, so a classifier reads the
                  first token through a layer of its own, which is new in fine-tuning.

What makes it better is the training: masks drawn anew at every visit (``--masking dynamic``), no prediction
of the next sentence (``--no-nsp``), full sequences (``--no-whole-sentences``), larger batches, ten times as
much text, and a vocabulary of bytes, in which nothing is unknown (``minibert.text``).
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from minibert.arrays import Array, get_array_module
from minibert.bert.config import BertConfig
from minibert.bert.models import BertForMaskedLM, BertModel, BertPretrainedModel
from minibert.errors import UserError
from minibert.folders.names import Names
from minibert.heads.layers import ClassificationHead
from minibert.heads.sentence import SentenceEncoder
from minibert.heads.task_models import (
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
)
from minibert.variants.embeddings import LookedUpEmbeddings

# What Hugging Face calls the same parameters.
NAMES: Names = (
    ("roberta.", "bert."),
    ("lm_head.dense.", "cls.predictions.transform.dense."),
    ("lm_head.layer_norm.", "cls.predictions.transform.LayerNorm."),
    ("lm_head.", "cls.predictions."),
)


@dataclass
class RobertaConfig(BertConfig):
    """The configuration of a RoBERTa; the defaults are roberta-base. See ``BertConfig``.

    Raises UserError as that does, and if there is no position left beside those of the padding.
    """

    model_type: ClassVar[str] = "roberta"
    if_absent: ClassVar[dict[str, Any]] = {"layer_norm_eps": 1e-12}  # as in transformers

    vocab_size: int = 50265
    max_position_embeddings: int = 514
    type_vocab_size: int = 1
    layer_norm_eps: float = 1e-5
    pad_token_id: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pad_token_id is None:
            raise UserError("a RoBERTa counts its positions from pad_token_id, which must not be null")
        if self.longest_sequence < 1:
            raise UserError(
                f"a RoBERTa with pad_token_id {self.pad_token_id} needs more than {self.pad_token_id + 1} "
                f"positions, got {self.max_position_embeddings}"
            )

    @property
    def head_act(self) -> str:
        """GELU, whatever the layers have."""
        return "gelu"

    @property
    def longest_sequence(self) -> int:
        """The most tokens that the model can read: the first position is that of the padding id + 1."""
        return self.max_position_embeddings - self.pad_token_id - 1


class RobertaEmbeddings(LookedUpEmbeddings):
    """Word + position + token type, where the positions count from the padding id."""

    def __init__(self, config: RobertaConfig):
        super().__init__(config)
        self.padding = config.pad_token_id

    def position_ids(self, input_ids: Array | None, like: Array) -> Array:
        """padding id + 1, + 2, … for the tokens of each row that are not padding, which has its own id.

        Vectors given in place of ids are all counted.
        """
        xp = get_array_module(like)
        real = xp.ones_like(like) if input_ids is None else (input_ids != self.padding).astype(like.dtype)
        return xp.cumsum(real, axis=1) * real + self.padding


class _Roberta(BertPretrainedModel):
    config_class = RobertaConfig
    tensor_names = NAMES

    def make_encoder(self, config: BertConfig, add_pooling_layer: bool) -> BertModel:
        return RobertaModel(config, device=None, add_pooling_layer=add_pooling_layer)


class RobertaModel(_Roberta, BertModel):
    """The encoder. Its pooler is in the files of most RoBERTas, but was never trained."""

    embeddings_class = RobertaEmbeddings


class RobertaForMaskedLM(_Roberta, BertForMaskedLM):
    """RoBERTa with the head that predicts masked words."""


class RobertaForSequenceClassification(_Roberta, BertForSequenceClassification):
    """A label or a number for a text, or for a pair of texts, from the first token; no pooler."""

    add_pooling_layer = False
    reads = "last_hidden_state"

    def _add_head(self, config: BertConfig) -> None:
        self.classifier = ClassificationHead(config, "tanh", config.classifier_dropout)


class RobertaForTokenClassification(_Roberta, BertForTokenClassification):
    """A tag for each token, as BERT does it."""


class RobertaForQuestionAnswering(_Roberta, BertForQuestionAnswering):
    """Where in a passage an answer starts and ends, as BERT does it."""


class RobertaSentenceEncoder(SentenceEncoder, RobertaModel):
    """A vector for each text."""

    architecture = "RobertaModel"
