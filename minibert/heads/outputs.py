"""What the models of fine-tuning return."""

from dataclasses import dataclass

from minibert.arrays import Array
from minibert.bert.outputs import BertOutput


@dataclass
class ClassifierOutput(BertOutput):
    """Outputs of a model that classifies texts or tokens, or gives them numbers."""

    logits: Array | None = None  # (B, K) for sequences, (B, S, K) for tokens
    features: Array | None = None  # with feature_layers what the head reads: (B, S, …), of a text (B, …)


@dataclass
class QuestionAnsweringOutput(BertOutput):
    """Outputs of a model that finds answers in passages."""

    start_logits: Array | None = None  # (B, S)
    end_logits: Array | None = None  # (B, S)
    features: Array | None = None  # as in ClassifierOutput


@dataclass
class SentenceOutput(BertOutput):
    """Outputs of a sentence encoder."""

    embeddings: Array | None = None  # (B, H), a vector for each sentence
