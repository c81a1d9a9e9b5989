"""What the fine-tuning models return."""

from dataclasses import dataclass

from minibert.arrays import Array
from minibert.bert.outputs import BertOutput


@dataclass
class TaskOutput(BertOutput):
    """Outputs of any fine-tuning model."""

    features: Array = None  # with feature_layers: what the head reads, (B, S, …), or (B, …) for texts


@dataclass
class ClassifierOutput(TaskOutput):
    """Outputs of a model that classifies texts or tokens, or predicts numbers for them."""

    logits: Array = None  # (B, K) for sequences, (B, S, K) for tokens


@dataclass
class QuestionAnsweringOutput(TaskOutput):
    """Outputs of a model that finds answers in passages."""

    start_logits: Array = None  # (B, S)
    end_logits: Array = None  # (B, S)


@dataclass
class SentenceOutput(BertOutput):
    """Outputs of a sentence encoder."""

    embeddings: Array = None  # (B, H), a vector for each sentence
