"""BERT: configuration, embeddings, encoder, heads, models."""

from minibert.bert.config import POSITION_INITIALIZERS, PRESETS, BertConfig
from minibert.bert.fine_tuning import extract_features, freeze, layerwise_lr, unfreeze
from minibert.bert.models import (
    BertForMaskedLM,
    BertForNextSentencePrediction,
    BertForPreTraining,
    BertModel,
    BertOutput,
)
from minibert.bert.sentence import SentenceEncoder, SentencePairs
from minibert.bert.task_models import (
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
)

__all__ = [
    "POSITION_INITIALIZERS",
    "PRESETS",
    "BertConfig",
    "BertForMaskedLM",
    "BertForNextSentencePrediction",
    "BertForPreTraining",
    "BertForQuestionAnswering",
    "BertForSequenceClassification",
    "BertForTokenClassification",
    "BertModel",
    "BertOutput",
    "SentenceEncoder",
    "SentencePairs",
    "extract_features",
    "freeze",
    "layerwise_lr",
    "unfreeze",
]
