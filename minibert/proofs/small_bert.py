"""A BERT small enough to move every one of its numbers, and a batch for it.

B = 3, S = 6, H = 8, A = 2, F = 10, V = 13.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from minibert.bert.config import BertConfig
from minibert.gradcheck import Draws
from minibert.nn import Module

M = TypeVar("M", bound=Module)

CONFIG = BertConfig(
    vocab_size=13,
    hidden_size=8,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=10,
    hidden_dropout_prob=0.3,
    attention_probs_dropout_prob=0.3,
    max_position_embeddings=7,
)

# Three sequences of six tokens: two are padded, words occur more than once, one has no masked word.
BATCH: dict[str, Any] = {
    "input_ids": [[2, 7, 5, 7, 11, 3], [2, 4, 7, 8, 3, 0], [2, 9, 9, 3, 0, 0]],
    "token_type_ids": [[0, 0, 0, 1, 1, 1], [0, 1, 1, 1, 1, 0], [0, 0, 0, 0, 0, 0]],
    "attention_mask": [[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 0, 0]],
}
LABELS = [[-100, 7, 3, -100, 7, -100], [-100, -100, 12, -100, -100, -100], [-100] * 6]
NEXT_SENTENCE_LABEL = [0, 1, 1]
PAIR_PARTS = ("pooler.", "seq_relationship.")  # unused without a loss on sentence pairs

# For the fine-tuning heads: K = 3 labels. The last sequence has none, and one answer is beyond its sequence.
CLASSES = [2, 0, -100]
TAGS = [[-100, 0, -100, 2, 1, -100], [-100, 1, 1, -100, -100, -100], [-100] * 6]
# A softmax over tokens cancels what is added to all of them: the head's bias and the last layer's.
SPAN_ZEROS = ("qa_outputs.bias", "encoder.layer.1.output.LayerNorm.bias")
SPANS = {"start_positions": [2, 6, 0], "end_positions": [4, 9, 0]}
SECOND_TEXTS = {"input_ids": [[2, 6, 3], [2, 7, 3], [2, 7, 3]], "attention_mask": [[1, 1, 1]] * 3}


def with_twin(make: Callable[..., M], draw: Draws) -> tuple[M, M]:
    """A module with random parameters in float64, and the same one in complex128 (see ``module_case``).

    ``make(dtype=…)`` returns it, allocated. Dropout is on, and draws the same bits in both.
    """
    module, twin = make(dtype="float64"), make(dtype="complex128")
    draw.randomise(module)
    return module, twin
