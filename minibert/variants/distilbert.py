"""DistilBERT: half of BERT's layers, taught by BERT (Sanh et al., 2019).

    layers        Every second one of the teacher's, with which it begins.
    segments      None: the token types of a pair are not read.
    pooler        None: a classifier reads the first token through a ReLU layer of its own.

It learns from its teacher's distribution over masked words (softened by a temperature), from the masked
words themselves, and from the cosine between its hidden states and the teacher's: distilbert_training.py.

In transformers, the head that answers questions also drops out a tenth of its input in training.
"""

from dataclasses import dataclass
from typing import ClassVar

from minibert.bert.config import BertConfig
from minibert.bert.encoder import BertEncoder
from minibert.bert.models import BertForMaskedLM, BertModel, BertPretrainedModel
from minibert.errors import UserError
from minibert.folders.config import check_number
from minibert.folders.names import Names
from minibert.heads.layers import ClassificationHead
from minibert.heads.sentence import SentenceEncoder
from minibert.heads.task_models import (
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
)
from minibert.nn import Dropout
from minibert.variants.embeddings import LookedUpEmbeddings

EPS = 1e-12  # of every layer norm
# What Hugging Face calls the same parameters.
NAMES: Names = (
    ("distilbert.", "bert."),
    ("transformer.", "encoder."),  # in the folder of an encoder by itself
    (".transformer.", ".encoder."),
    (".attention.q_lin.", ".attention.self.query."),
    (".attention.k_lin.", ".attention.self.key."),
    (".attention.v_lin.", ".attention.self.value."),
    (".attention.out_lin.", ".attention.output.dense."),
    (".sa_layer_norm.", ".attention.output.LayerNorm."),
    (".ffn.lin1.", ".intermediate.dense."),
    (".ffn.lin2.", ".output.dense."),
    (".output_layer_norm.", ".output.LayerNorm."),
    ("vocab_transform.", "cls.predictions.transform.dense."),
    ("vocab_layer_norm.", "cls.predictions.transform.LayerNorm."),
    ("vocab_projector.weight", "cls.predictions.decoder.weight"),
    ("vocab_projector.bias", "cls.predictions.bias"),
)


@dataclass
class DistilBertConfig(BertConfig):
    """The configuration of a DistilBERT; the defaults are distilbert-base-uncased. See ``BertConfig``.

    ``seq_classif_dropout`` is the dropout before the scores of a classifier of texts. ``type_vocab_size``
    only says which token types a batch may have; they are not read. ``layer_norm_eps`` cannot be changed:
    transformers always computes with 1e-12.
    """

    model_type: ClassVar[str] = "distilbert"
    names_in_file: ClassVar[dict[str, str]] = {
        "hidden_size": "dim",
        "num_hidden_layers": "n_layers",
        "num_attention_heads": "n_heads",
        "intermediate_size": "hidden_dim",
        "hidden_act": "activation",
        "hidden_dropout_prob": "dropout",
        "attention_probs_dropout_prob": "attention_dropout",
    }

    num_hidden_layers: int = 6
    seq_classif_dropout: float = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.layer_norm_eps != EPS:
            raise UserError(
                f"layer_norm_eps of a DistilBERT must be {EPS}, got {self.layer_norm_eps}; transformers "
                f"computes with {EPS} whatever the configuration says"
            )
        check_number("seq_classif_dropout", self.seq_classif_dropout, 1)


class DistilBertEmbeddings(LookedUpEmbeddings):
    """Word + position."""

    token_types = False

    def __init__(self, config: BertConfig):
        super().__init__(config)
        del self.token_type_embeddings


class DistilBertEncoder(BertEncoder):
    """BERT's layers, without dropout after the linear map that ends attention, as in transformers."""

    def __init__(self, config: BertConfig):
        super().__init__(config)
        for layer in self.layer:
            layer.attention.output.dropout = Dropout(0.0)


class _DistilBert(BertPretrainedModel):
    config: DistilBertConfig
    config_class = DistilBertConfig
    tensor_names = NAMES

    def make_encoder(self, config: BertConfig, add_pooling_layer: bool) -> BertModel:
        return DistilBertModel(config, device=None, add_pooling_layer=add_pooling_layer)


class DistilBertModel(_DistilBert, BertModel):
    """The encoder; it has no pooler."""

    embeddings_class = DistilBertEmbeddings
    encoder_class = DistilBertEncoder
    has_pooler = False


class DistilBertForMaskedLM(_DistilBert, BertForMaskedLM):
    """DistilBERT with the head that predicts masked words."""


class DistilBertForSequenceClassification(_DistilBert, BertForSequenceClassification):
    """A label or a number for a text, or for a pair of texts, from the first token."""

    tensor_names = (*NAMES, ("pre_classifier.", "classifier.dense."), ("classifier.", "classifier.out_proj."))
    add_pooling_layer = False
    reads = "last_hidden_state"

    def _add_head(self, config: BertConfig) -> None:
        dropout = self.config.seq_classif_dropout
        self.classifier = ClassificationHead(config, "relu", dropout, drops_input=False)


class DistilBertForTokenClassification(_DistilBert, BertForTokenClassification):
    """A tag for each token, as BERT does it."""


class DistilBertForQuestionAnswering(_DistilBert, BertForQuestionAnswering):
    """Where in a passage an answer starts and ends, as BERT does it."""


class DistilBertSentenceEncoder(SentenceEncoder, DistilBertModel):
    """A vector for each text."""

    architecture = "DistilBertModel"
