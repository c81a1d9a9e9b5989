"""BERT: configuration, embeddings, encoder, heads, models."""

from minibert.bert.config import POSITION_INITIALIZERS, PRESETS, BertConfig
from minibert.bert.models import BertForMaskedLM, BertForNextSentencePrediction, BertForPreTraining, BertModel
from minibert.bert.outputs import BertOutput

__all__ = [
    "POSITION_INITIALIZERS",
    "PRESETS",
    "BertConfig",
    "BertForMaskedLM",
    "BertForNextSentencePrediction",
    "BertForPreTraining",
    "BertModel",
    "BertOutput",
]
