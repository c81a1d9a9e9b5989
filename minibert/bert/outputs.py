"""What the models return."""

from dataclasses import dataclass

from minibert.arrays import Array


@dataclass
class BertOutput:
    """What a model computed; None where it was not asked for or does not exist. Arrays are on the device.

    A loss is a 0-d array, in nats (for a regression, in squared units).
    """

    loss: Array = None
    last_hidden_state: Array = None  # (B, S, H); 0 at padding, if that was left out (``nn.padding``)
    pooler_output: Array = None  # (B, H)
    hidden_states: list[Array] | None = None  # L + 1 of (B, S, H): the embeddings, then each layer's output
    attentions: list[Array] | None = None  # L of (B, A, S, S), before dropout


@dataclass
class PreTrainingOutput(BertOutput):
    """Outputs of the pre-training heads. ``loss`` is the sum of ``mlm_loss`` and ``nsp_loss``."""

    mlm_loss: Array = None
    nsp_loss: Array = None
    prediction_logits: Array = None  # (N, V) at the labelled positions, or (B, S, V) without labels
    seq_relationship_logits: Array = None  # (B, 2)
