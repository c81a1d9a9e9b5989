"""ALBERT: one layer for all of BERT's, and word vectors of their own size (Lan et al., 2020).

    layers        All L layers are the same one. Its gradients add up, one contribution from each use.
    embeddings    A word has E numbers, which a linear map turns into H (``ProjectedEmbeddings``).
    objective     Sentence order: were the two texts of a pair swapped? Next-sentence prediction's second text
                  was often easy to tell by its topic.
    activation    The tanh form of GELU.

So a base model has 12 million parameters where BERT has 110 million, and takes as long to compute: L layers'
work is still done. The vocabulary is a unigram language model's (``minibert.text``).
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from minibert.bert.config import LARGEST, BertConfig
from minibert.bert.encoder import BertEncoder, BertLayer
from minibert.bert.models import BertForMaskedLM, BertForPreTraining, BertModel, BertPretrainedModel
from minibert.errors import UserError
from minibert.folders.config import check_size
from minibert.folders.names import Names
from minibert.heads.sentence import SentenceEncoder
from minibert.heads.task_models import (
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
)
from minibert.nn import Dropout
from minibert.variants.embeddings import ProjectedEmbeddings

# What Hugging Face calls the same parameters. Attention first: its LayerNorm would pass for the layer's.
NAMES: Names = (
    (".albert_layer_groups.0.albert_layers.0.", ".layer.0."),
    (".attention.query.", ".attention.self.query."),
    (".attention.key.", ".attention.self.key."),
    (".attention.value.", ".attention.self.value."),
    (".attention.dense.", ".attention.output.dense."),
    (".attention.LayerNorm.", ".attention.output.LayerNorm."),
    (".full_layer_layer_norm.", ".output.LayerNorm."),
    (".ffn.", ".intermediate.dense."),
    (".ffn_output.", ".output.dense."),
    ("albert.encoder.embedding_hidden_mapping_in.", "bert.embeddings.project."),
    ("encoder.embedding_hidden_mapping_in.", "embeddings.project."),
    ("albert.pooler.", "bert.pooler.dense."),
    ("pooler.", "pooler.dense."),
    ("albert.", "bert."),
    ("predictions.dense.", "cls.predictions.transform.dense."),
    ("predictions.LayerNorm.", "cls.predictions.transform.LayerNorm."),
    ("predictions.", "cls.predictions."),
    ("sop_classifier.classifier.", "cls.seq_relationship."),
)


@dataclass
class AlbertConfig(BertConfig):
    """The configuration of an ALBERT; the defaults are albert-base-v2. See ``BertConfig``.

    ``embedding_size`` is E. Raises UserError as ``BertConfig`` does, and for a model of several groups of
    layers, of which none was released.
    """

    model_type: ClassVar[str] = "albert"
    names_in_file: ClassVar[dict[str, str]] = {"classifier_dropout": "classifier_dropout_prob"}
    if_absent: ClassVar[dict[str, Any]] = {"num_attention_heads": 64}  # as in transformers

    vocab_size: int = 30000
    embedding_size: int = 128
    num_hidden_groups: int = 1
    inner_group_num: int = 1
    hidden_act: str = "gelu_new"
    hidden_dropout_prob: float = 0.0
    attention_probs_dropout_prob: float = 0.0
    classifier_dropout: float | None = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_size("embedding_size", self.embedding_size, LARGEST["hidden_size"])
        for name in ("num_hidden_groups", "inner_group_num"):
            if getattr(self, name) != 1:
                raise UserError(
                    f"{name} is {getattr(self, name)!r}; only ALBERTs with one shared layer are read"
                )

    @property
    def different_layers(self) -> int:
        """One: the layers are all the same."""
        return 1


class AlbertEmbeddings(ProjectedEmbeddings):
    """Word + position + token type in the size E, mapped to H."""

    def __init__(self, config: AlbertConfig):
        super().__init__(config, always=True)


class AlbertEncoder(BertEncoder):
    """One layer, used L times. It drops nothing out after its feed-forward network, as in transformers."""

    def __init__(self, config: AlbertConfig):
        super().__init__(config)
        shared = BertLayer(config)
        shared.output.dropout = Dropout(0.0)
        self.layer = [shared] * config.num_hidden_layers


class _Albert(BertPretrainedModel):
    config_class = AlbertConfig
    tensor_names = NAMES

    def make_encoder(self, config: BertConfig, add_pooling_layer: bool) -> BertModel:
        return AlbertModel(config, device=None, add_pooling_layer=add_pooling_layer)


class AlbertModel(_Albert, BertModel):
    """The encoder and its pooler."""

    embeddings_class = AlbertEmbeddings
    encoder_class = AlbertEncoder


class AlbertForPreTraining(_Albert, BertForPreTraining):
    """ALBERT with the heads for masked words and for the order of two texts.

    ``next_sentence_label`` (B,) is 0 where the texts are in their order, 1 where they are swapped.
    """

    def __init__(self, config: AlbertConfig, **options: Any):
        # In transformers the second head has as many scores as there are labels, so a folder must say 2.
        super().__init__(config if config.num_labels == 2 else config.replace(num_labels=2), **options)


class AlbertForMaskedLM(_Albert, BertForMaskedLM):
    """ALBERT with the head that predicts masked words."""


class AlbertForSequenceClassification(_Albert, BertForSequenceClassification):
    """A label or a number for a text, or for a pair of texts, as BERT does it."""


class AlbertForTokenClassification(_Albert, BertForTokenClassification):
    """A tag for each token, as BERT does it."""


class AlbertForQuestionAnswering(_Albert, BertForQuestionAnswering):
    """Where in a passage an answer starts and ends, as BERT does it."""


class AlbertSentenceEncoder(SentenceEncoder, AlbertModel):
    """A vector for each text."""

    architecture = "AlbertModel"
