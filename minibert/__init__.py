"""minibert: BERT from scratch in NumPy and CuPy, with every backward pass written by hand."""

from typing import Any

from minibert import interrupts, kernels  # noqa: F401  (each does what it does by being imported)
from minibert.bert import (
    PRESETS,
    BertConfig,
    BertForMaskedLM,
    BertForNextSentencePrediction,
    BertForPreTraining,
    BertModel,
)
from minibert.errors import UserError
from minibert.heads import (
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    SentenceEncoder,
    SentencePairs,
    extract_features,
    freeze,
    layerwise_lr,
    unfreeze,
)
from minibert.text import BertTokenizer, open_tokenizer
from minibert.variants import open_config, open_model

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """``minibert.check``, which the notebooks call: the course is loaded only when somebody asks for it."""
    if name == "check":
        from minibert.course import check

        return check
    raise AttributeError(f"module 'minibert' has no attribute {name!r}")


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
    "open_config",
    "open_model",
    "open_tokenizer",
    "unfreeze",
]
