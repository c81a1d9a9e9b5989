"""BERT: configuration, embeddings, encoder, heads, models."""

from minibert.bert.config import PRESETS, BertConfig
from minibert.bert.models import (
    BertForMaskedLM,
    BertForNextSentencePrediction,
    BertForPreTraining,
    BertModel,
    BertOutput,
)

__all__ = [
    "PRESETS",
    "BertConfig",
    "BertForMaskedLM",
    "BertForNextSentencePrediction",
    "BertForPreTraining",
    "BertModel",
    "BertOutput",
]
