"""The mathematics of BERT: each operation is a forward and a backward, side by side.

To read BERT's, take the files in this order: ``linear_map``, ``activations``, ``stable_softmax``,
``cross_entropy_loss``, ``layer_normalisation``, ``inverted_dropout``, ``embedding_lookup``, ``attention``,
``composites``; then ``cache`` and ``table``. The others are for heads, other models and training.

``nn`` and ``bert`` call the names below. They are the functions of those files with two differences: a cache
knows which operation made it, and a kernel takes over if one is registered for a ``replaceable`` operation
(see ``table.py``).

To add an activation, add one entry to ``ACTIVATIONS`` in ``activations.py``: its name and a pair of plain
functions.

The letters in shapes: B batch · S sequence length · H hidden size · A heads · D = H/A · F feed-forward
size · V vocabulary · L layers · P predicted positions. A docstring explains any others.
"""

from minibert import dropout_bits
from minibert.ops import (
    activations,
    answer_span_loss,
    composites,
    crf,
    cross_entropy_loss,
    embedding_lookup,
    inverted_dropout,
    layer_imitation,
    layer_normalisation,
    linear_map,
    mean_squared_error,
    observed,
    optimise,
    paths,
    pooling,
    relative_positions,
    rotary,
    similarity,
    soft_targets,
    stable_softmax,
    unpadded,
)
from minibert.ops.activations import ACTIVATIONS
from minibert.ops.attention import MASKED, attention_bias, split_heads
from minibert.ops.cache import Cache
from minibert.ops.crf import viterbi
from minibert.ops.sampling import sample_classes
from minibert.ops.table import (
    TABLE,
    has_kernel,
    kernels_required,
    pair,
    reference_only,
    register,
    replaceable,
    replaceable_pair,
    require_kernels,
)

linear, linear_backward = replaceable_pair(linear_map.linear, linear_map.linear_backward)
embedding, embedding_backward = replaceable_pair(
    embedding_lookup.embedding, embedding_lookup.embedding_backward
)
dropout, dropout_backward = replaceable_pair(inverted_dropout.dropout, inverted_dropout.dropout_backward)
layer_norm, layer_norm_backward = replaceable_pair(
    layer_normalisation.layer_norm, layer_normalisation.layer_norm_backward
)
cross_entropy, cross_entropy_backward = replaceable_pair(
    cross_entropy_loss.cross_entropy, cross_entropy_loss.cross_entropy_backward
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
unpadded_attention, unpadded_attention_backward = replaceable_pair(
    unpadded.unpadded_attention, unpadded.unpadded_attention_backward
)
observed_attention, observed_attention_backward = replaceable_pair(
    observed.observed_attention, observed.observed_attention_backward
)
product, product_backward = replaceable_pair(relative_positions.product, relative_positions.product_backward)
relative_attention, relative_attention_backward = replaceable_pair(
    relative_positions.relative_attention, relative_positions.relative_attention_backward, activations=4
)
rotary_embedding, rotary_embedding_backward = replaceable_pair(
    rotary.rotary_embedding, rotary.rotary_embedding_backward
)
masked_lm_loss, masked_lm_loss_backward = replaceable_pair(
    composites.masked_lm_loss, composites.masked_lm_loss_backward
)
add_derivative = replaceable(paths.add_derivative)
dropout_keys = replaceable(dropout_bits.dropout_keys)
sums_of_squares = replaceable(optimise.sums_of_squares)
norm_from_sums = optimise.norm_from_sums
global_norm = replaceable(optimise.global_norm)
adamw_update = replaceable(optimise.adamw_update)
orthogonalise = replaceable(optimise.orthogonalise)
muon_update = optimise.muon_update

gelu, gelu_backward = pair(activations.gelu, activations.gelu_backward)
gelu_tanh, gelu_tanh_backward = pair(activations.gelu_tanh, activations.gelu_tanh_backward)
relu, relu_backward = pair(activations.relu, activations.relu_backward)
tanh, tanh_backward = pair(activations.tanh, activations.tanh_backward)
softmax, softmax_backward = pair(stable_softmax.softmax, stable_softmax.softmax_backward)
first_token, first_token_backward = pair(pooling.first_token, pooling.first_token_backward)
crf_nll, crf_nll_backward = pair(crf.crf_nll, crf.crf_nll_backward)
span_loss, span_loss_backward = pair(answer_span_loss.span_loss, answer_span_loss.span_loss_backward)
soft_cross_entropy, soft_cross_entropy_backward = pair(
    soft_targets.soft_cross_entropy, soft_targets.soft_cross_entropy_backward
)
relation_loss, relation_loss_backward = pair(
    layer_imitation.relation_loss, layer_imitation.relation_loss_backward
)
attention_loss, attention_loss_backward = pair(
    layer_imitation.attention_loss, layer_imitation.attention_loss_backward
)
squared_error, squared_error_backward = pair(
    mean_squared_error.squared_error, mean_squared_error.squared_error_backward
)
unit_length, unit_length_backward = pair(similarity.unit_length, similarity.unit_length_backward)
cosine_similarity, cosine_similarity_backward = pair(
    similarity.cosine_similarity, similarity.cosine_similarity_backward
)
cosine_loss, cosine_loss_backward = pair(similarity.cosine_loss, similarity.cosine_loss_backward)
in_batch_softmax_loss, in_batch_softmax_loss_backward = pair(
    similarity.in_batch_softmax_loss, similarity.in_batch_softmax_loss_backward
)
POOLING = {name: pair(*functions) for name, functions in pooling.POOLING.items()}

__all__ = [
    "ACTIVATIONS",
    "MASKED",
    "POOLING",
    "TABLE",
    "Cache",
    "adamw_update",
    "add_derivative",
    "attention_bias",
    "attention_loss",
    "attention_loss_backward",
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
    "gelu",
    "gelu_backward",
    "gelu_tanh",
    "gelu_tanh_backward",
    "global_norm",
    "has_kernel",
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
    "muon_update",
    "norm_from_sums",
    "observed_attention",
    "observed_attention_backward",
    "orthogonalise",
    "packed_attention",
    "packed_attention_backward",
    "pair",
    "product",
    "product_backward",
    "reference_only",
    "register",
    "relation_loss",
    "relation_loss_backward",
    "relative_attention",
    "relative_attention_backward",
    "relu",
    "relu_backward",
    "replaceable",
    "replaceable_pair",
    "require_kernels",
    "rotary_embedding",
    "rotary_embedding_backward",
    "sample_classes",
    "soft_cross_entropy",
    "soft_cross_entropy_backward",
    "softmax",
    "softmax_backward",
    "span_loss",
    "span_loss_backward",
    "split_heads",
    "squared_error",
    "squared_error_backward",
    "sums_of_squares",
    "tanh",
    "tanh_backward",
    "unit_length",
    "unit_length_backward",
    "unpadded_attention",
    "unpadded_attention_backward",
    "viterbi",
]
