"""16 Looking inside: how much a head looks at the token before, or at the one after."""

import numpy as np

from minibert.course.exercise import Trial, exercise
from minibert.gradcheck import Draws
from minibert.ops.attention import attention_bias
from minibert.ops.stable_softmax import softmax


def _maps(draw: Draws) -> list[Trial]:
    """B = 3 sequences of S = 4, two of them padded; A = 2 heads, the second of which looks back by one."""
    mask = np.array([[1.0, 1, 1, 1], [1, 1, 1, 0], [1, 1, 1, 0]])  # each has a pair at distance 2
    scores = draw.normal(3, 2, 4, 4)
    scores[:, 1] += 4 * np.eye(4, k=-1)
    probabilities, _ = softmax(scores + attention_bias(mask, "float64"))
    return [
        Trial({"probabilities": probabilities, "mask": mask, "offset": offset}, f"offset {offset:+d}")
        for offset in (-1, 1, 2)
    ]


def _counted_one_by_one(probabilities, mask, offset):
    batch, _, length, _ = probabilities.shape
    weights = [
        probabilities[b, :, query, query + offset]
        for b in range(batch)
        for query in range(length)
        if mask[b, query] and 0 <= query + offset < length and mask[b, query + offset]
    ]
    return np.mean(weights, axis=0)


@exercise(
    "16",
    outputs="score",
    trials=_maps,
    reference=_counted_one_by_one,
    level=2,
    minutes=15,
    needs="the attention map of section 2: rows are queries, columns are keys",
    hints=(
        "probabilities[b, a, i, j] is what query i gives to key j. Which j do you want, and which i have "
        "such a neighbour?",
        "Take p[b, a, i, i + offset] for every i whose neighbour exists, and average over the pairs in "
        "which both tokens are real, as the mask says.",
        "i = np.arange(max(0, −offset), min(S, S − offset)); weights = probabilities[:, :, i, i + offset] "
        "(B, A, n); real = mask[:, i] · mask[:, i + offset] (B, n); Σ weights · real[:, None] over b and i, "
        "over Σ real.",
    ),
)
def offset_score(probabilities, mask, offset):
    length = mask.shape[1]
    queries = np.arange(max(0, -offset), min(length, length - offset))
    weights = probabilities[:, :, queries, queries + offset]  # (B, A, n)
    real = mask[:, queries] * mask[:, queries + offset]  # (B, n)
    return (weights * real[:, None]).sum(axis=(0, 2)) / real.sum()


@offset_score.mistake(
    "Padding is counted: these queries are no tokens, and their attention means nothing. Weight each pair by "
    "mask[query] · mask[key]."
)
def padding_counted(probabilities, mask, offset):
    return offset_score.solution(probabilities, np.ones_like(mask), offset)


@offset_score.mistake(
    "You look the other way: rows are queries and columns are keys, so the token before query i is column i "
    "− 1, below the diagonal."
)
def the_other_way(probabilities, mask, offset):
    return offset_score.solution(probabilities, mask, -offset)


@offset_score.mistake(
    "At the edge you wrap around: there is no token before the first, but np.roll, or an index of −1, takes "
    "the last."
)
def wrapped_around(probabilities, mask, offset):
    queries = np.arange(mask.shape[1])
    keys = np.roll(queries, -offset)
    real = mask * mask[:, keys]
    weights = probabilities[:, :, queries, keys]
    return (weights * real[:, None]).sum(axis=(0, 2)) / real.sum()


@offset_score.mistake(
    "The sum is divided by all tokens, even those without such a neighbour: divide by the number of pairs."
)
def divided_by_all_tokens(probabilities, mask, offset):
    length = mask.shape[1]
    queries = np.arange(max(0, -offset), min(length, length - offset))
    real = mask[:, queries] * mask[:, queries + offset]
    return offset_score.solution(probabilities, mask, offset) * real.sum() / mask.sum()


@offset_score.mistake(
    "This is a mean of each sequence's mean, in which short sequences count for more. Sum over all pairs, "
    "then divide once."
)
def mean_of_means(probabilities, mask, offset):
    one_by_one = [
        offset_score.solution(p[None], m[None], offset) for p, m in zip(probabilities, mask, strict=True)
    ]
    return np.mean(one_by_one, axis=0)


@offset_score.mistake(
    "You count how often the neighbour gets the most attention. The score is how much it gets, on average."
)
def share_of_largest_weights(probabilities, mask, offset):
    largest = (probabilities == probabilities.max(axis=-1, keepdims=True)).astype(probabilities.dtype)
    return offset_score.solution(largest, mask, offset)


def _weighed(probabilities, mask, offset, of_queries):
    """The solution, but a pair counts if one of its tokens is real, the query or the key."""
    length = mask.shape[1]
    queries = np.arange(max(0, -offset), min(length, length - offset))
    real = mask[:, queries if of_queries else queries + offset]
    weights = probabilities[:, :, queries, queries + offset]
    return (weights * real[:, None]).sum(axis=(0, 2)) / real.sum()


@offset_score.mistake(
    "Only the query has to be real in your mean. Then the last real token counts, too, although the one "
    "after it is padding, which gets nothing. Both tokens have to be real."
)
def padded_keys_counted(probabilities, mask, offset):
    return _weighed(probabilities, mask, offset, of_queries=True)


@offset_score.mistake(
    "Only the key has to be real in your mean, so the first padding counts as a query; what it looks at "
    "means nothing. Both tokens have to be real."
)
def padded_queries_counted(probabilities, mask, offset):
    return _weighed(probabilities, mask, offset, of_queries=False)
