"""A word drawn from a model's own predictions. It has no derivative."""

from minibert.arrays import Array, get_array_module
from minibert.dropout_bits import BITS, DropoutKey, random_bits
from minibert.ops.stable_softmax import softmax


def sample_classes(logits: Array, key: DropoutKey) -> Array:
    """One class for each row, drawn with the probabilities softmax(logits): logits (N, K) → (N,) int32.

    The inverse of the distribution function: with u uniform in (0, 1), the class is the first k whose
    cumulative probability p[0] + … + p[k] reaches u. u is a pure function of the key and the row.
    """
    xp = get_array_module(logits)
    probabilities, _ = softmax(logits.real)  # (a complex step moves only the imaginary part)
    reached = xp.cumsum(probabilities, axis=1)  # (N, K)
    bits = random_bits(xp, key, (len(logits), 2)).astype(reached.dtype)
    uniform = (bits[:, 0] + (bits[:, 1] + 0.5) / 2**BITS) / 2**BITS  # (N,)
    # Rounding may leave the last sum slightly off 1, so u is a share of it.
    drawn = (reached < uniform[:, None] * reached[:, -1:]).sum(axis=1)
    return drawn.astype("int32")
