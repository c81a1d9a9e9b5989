"""19 Applications: how often the right passage is among the first k."""

import numpy as np

from minibert.course.exercise import Trial, exercise
from minibert.gradcheck import Draws


def ranks(scores: np.ndarray, right: np.ndarray) -> np.ndarray:
    """The rank of each query's right passage, from 1. scores (Q, N), right (Q,), a passage each → (Q,)."""
    of_right = scores[np.arange(len(right)), right]
    return 1 + (scores > of_right[:, None]).sum(axis=1)


def _searches(draw: Draws) -> list[Trial]:
    """Q = 8 queries, N = 12 passages; the right one scores a little higher than the others."""
    scores = draw.normal(8, 12)
    right = draw.ids(12, 8)
    scores[np.arange(8), right] += 1.0
    return [
        Trial(
            {"scores": scores, "right": right, "k": k},
            f"k = {k}",
            {"recall": (ranks(scores, right) <= k).mean()},
        )
        for k in (1, 3, 5)
    ]


@exercise(
    "19",
    outputs="recall",
    trials=_searches,
    independent="ranks",
    level=1,
    minutes=8,
    needs="section 2",
    hints=(
        "Ask of each query: is its right passage among the k best? Then take the share of those where it is.",
        "np.argsort sorts from the lowest; the k highest scores are what you want.",
        "best = np.argsort(−scores, axis=1)[:, :k]; (best == right[:, None]).any(axis=1).mean().",
    ),
)
def recall_at_k(scores, right, k):
    best = np.argsort(-scores, axis=1)[:, :k]  # (Q, k)
    return (best == right[:, None]).any(axis=1).mean()


@recall_at_k.mistake("argsort sorts upwards: these are the k passages that fit worst. Sort −scores.")
def the_worst_k(scores, right, k):
    return recall_at_k.solution(-scores, right, k)


@recall_at_k.mistake(
    "The hits are divided by k · Q: that is precision. With one right passage per query, recall "
    "counts queries: the passage is found or it is not."
)
def precision_for_recall(scores, right, k):
    return recall_at_k.solution(scores, right, k) / k


@recall_at_k.mistake("One too many: k + 1 passages are looked at. The slice [:, :k] has k.")
def one_too_many(scores, right, k):
    return recall_at_k.solution(scores, right, k + 1)


@recall_at_k.mistake("Only the best passage is looked at, whatever k is: argmax gives recall@1.")
def k_ignored(scores, right, k):
    return recall_at_k.solution(scores, right, 1)


@recall_at_k.mistake(
    "This is the mean reciprocal rank, 1/rank averaged. Recall only asks whether the rank is at most k."
)
def reciprocal_rank(scores, right, k):
    return (1 / ranks(scores, right)).mean()


@recall_at_k.mistake("A count, not a share: divide by the number of queries.")
def hits_counted(scores, right, k):
    return recall_at_k.solution(scores, right, k) * len(right)


@recall_at_k.mistake("One too few: a rank of exactly k is among the first k. Compare ranks from 1 by ≤ k.")
def one_too_few(scores, right, k):
    return (ranks(scores, right) < k).mean()


@recall_at_k.mistake(
    "argsort lists passages by their score: its entry [q, n] is the passage in place n, not the place of "
    "passage n. Look for the right passage in the list."
)
def argsort_taken_for_ranks(scores, right, k):
    places = np.argsort(-scores, axis=1)
    return (places[np.arange(len(right)), right] < k).mean()


@recall_at_k.mistake(
    "Here a right passage counts for whichever query it was found. It must be among the k best of its own "
    "query: compare row by row."
)
def found_for_anybody(scores, right, k):
    return np.isin(right, np.argsort(-scores, axis=1)[:, :k]).mean()
