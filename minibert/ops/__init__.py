"""The mathematics of BERT: every operation a forward and a backward, side by side.

Start with ``linear.py``; each file stands alone. The names below are what ``nn`` and ``bert`` call.
Those that go through ``replaceable`` are the same functions as in their files, except that a kernel
takes over where one is registered (``table.py``).

The letters in shapes: B batch · S sequence length · H hidden size · A heads · D = H/A · F feed-forward
size · V vocabulary · L layers · P predicted positions.
"""

from minibert import arrays
from minibert.ops import composites, optimise
from minibert.ops import cross_entropy as _cross_entropy
from minibert.ops import dropout as _dropout
from minibert.ops import embedding as _embedding
from minibert.ops import layer_norm as _layer_norm
from minibert.ops import linear as _linear
from minibert.ops.activations import ACTIVATIONS, tanh, tanh_backward
from minibert.ops.attention import attention_bias, split_heads
from minibert.ops.cache import Cache
from minibert.ops.composites import attention_probabilities
from minibert.ops.crf import crf_nll, crf_nll_backward, viterbi
from minibert.ops.pooling import POOLING, first_token, first_token_backward
from minibert.ops.similarity import (
    cosine_loss,
    cosine_loss_backward,
    cosine_similarity,
    cosine_similarity_backward,
    in_batch_softmax_loss,
    in_batch_softmax_loss_backward,
    unit_length,
    unit_length_backward,
)
from minibert.ops.softmax import softmax
from minibert.ops.span_loss import span_loss, span_loss_backward
from minibert.ops.squared_error import squared_error, squared_error_backward
from minibert.ops.table import (
    TABLE,
    kernels_required,
    reference_only,
    register,
    replaceable,
    replaceable_pair,
    require_kernels,
)

linear, linear_backward = replaceable_pair(_linear.linear, _linear.linear_backward)
embedding, embedding_backward = replaceable_pair(_embedding.embedding, _embedding.embedding_backward)
dropout, dropout_backward = replaceable_pair(_dropout.dropout, _dropout.dropout_backward)
layer_norm, layer_norm_backward = replaceable_pair(_layer_norm.layer_norm, _layer_norm.layer_norm_backward)
cross_entropy, cross_entropy_backward = replaceable_pair(
    _cross_entropy.cross_entropy, _cross_entropy.cross_entropy_backward
)
embed, embed_backward = replaceable_pair(composites.embed, composites.embed_backward, activations=0)
linear_activation, linear_activation_backward = replaceable_pair(
    composites.linear_activation, composites.linear_activation_backward
)
dropout_residual_norm, dropout_residual_norm_backward = replaceable_pair(
    composites.dropout_residual_norm, composites.dropout_residual_norm_backward, activations=2
)
packed_attention, packed_attention_backward = replaceable_pair(
    composites.packed_attention, composites.packed_attention_backward
)
masked_lm_loss, masked_lm_loss_backward = replaceable_pair(
    composites.masked_lm_loss, composites.masked_lm_loss_backward
)
dropout_keys = replaceable(arrays.dropout_keys)
global_norm = replaceable(optimise.global_norm)
adamw_update = replaceable(optimise.adamw_update)

__all__ = [
    "ACTIVATIONS",
    "POOLING",
    "TABLE",
    "Cache",
    "adamw_update",
    "attention_bias",
    "attention_probabilities",
    "cosine_loss",
    "cosine_loss_backward",
    "cosine_similarity",
    "cosine_similarity_backward",
    "crf_nll",
    "crf_nll_backward",
    "cross_entropy",
    "cross_entropy_backward",
    "dropout",
    "dropout_backward",
    "dropout_keys",
    "dropout_residual_norm",
    "dropout_residual_norm_backward",
    "embed",
    "embed_backward",
    "embedding",
    "embedding_backward",
    "first_token",
    "first_token_backward",
    "global_norm",
    "in_batch_softmax_loss",
    "in_batch_softmax_loss_backward",
    "kernels_required",
    "layer_norm",
    "layer_norm_backward",
    "linear",
    "linear_activation",
    "linear_activation_backward",
    "linear_backward",
    "masked_lm_loss",
    "masked_lm_loss_backward",
    "packed_attention",
    "packed_attention_backward",
    "reference_only",
    "register",
    "require_kernels",
    "softmax",
    "span_loss",
    "span_loss_backward",
    "split_heads",
    "squared_error",
    "squared_error_backward",
    "tanh",
    "tanh_backward",
    "unit_length",
    "unit_length_backward",
    "viterbi",
]
