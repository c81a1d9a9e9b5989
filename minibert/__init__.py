"""minibert: BERT from scratch in NumPy and CuPy, with every backward pass written by hand."""

from minibert import interrupts, kernels  # noqa: F401  (each does what it does by being imported)
from minibert.bert import (
    PRESETS,
    BertConfig,
    BertForMaskedLM,
    BertForNextSentencePrediction,
    BertForPreTraining,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertModel,
    SentenceEncoder,
    SentencePairs,
    extract_features,
    freeze,
    layerwise_lr,
    unfreeze,
)
from minibert.course import check
from minibert.errors import UserError
from minibert.text import BertTokenizer

__version__ = "0.1.0"

__all__ = [
    "PRESETS",
    "BertConfig",
    "BertForMaskedLM",
    "BertForNextSentencePrediction",
    "BertForPreTraining",
    "BertForQuestionAnswering",
    "BertForSequenceClassification",
    "BertForTokenClassification",
    "BertModel",
    "BertTokenizer",
    "SentenceEncoder",
    "SentencePairs",
    "UserError",
    "check",
    "extract_features",
    "freeze",
    "layerwise_lr",
    "unfreeze",
]
