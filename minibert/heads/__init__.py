"""What fine-tuning puts on top of BERT: classifiers, taggers, question answering, sentence encoders."""

from minibert.heads.distillation import Distillation
from minibert.heads.freezing import extract_features, freeze, layerwise_lr, unfreeze
from minibert.heads.sentence import SentenceEncoder, SentencePairs
from minibert.heads.task_models import (
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
)

__all__ = [
    "BertForQuestionAnswering",
    "BertForSequenceClassification",
    "BertForTokenClassification",
    "Distillation",
    "SentenceEncoder",
    "SentencePairs",
    "extract_features",
    "freeze",
    "layerwise_lr",
    "unfreeze",
]
