"""How good predictions are: classes, scores, entities, answers, ranks and minimal pairs.

Pure functions of host arrays and lists. Scores are fractions, not percentages. All raise UserError if there
is nothing to score, or if there are not as many predictions as right answers.
"""

import re
import string
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import stats

from minibert.errors import UserError

# -- Classes and scores ------------------------------------------------------------------------------


def accuracy(predicted: Any, labels: Any) -> float:
    """The share of predictions that are right."""
    predicted, labels = _pairs(predicted, labels)
    return float(np.mean(predicted == labels))


def f1(predicted: Any, labels: Any, positive: Any = 1) -> float:
    """F1 = 2 PR / (P + R) = 2 TP / (2 TP + FP + FN) of one class; 0 if it occurs on neither side."""
    predicted, labels = _pairs(predicted, labels)
    right = np.sum((predicted == positive) & (labels == positive))
    return _f1(right, np.sum(predicted == positive), np.sum(labels == positive))


def macro_f1(predicted: Any, labels: Any) -> float:
    """The mean F1 of all classes that occur in predictions or labels."""
    predicted, labels = _pairs(predicted, labels)
    classes = np.union1d(predicted, labels)
    return float(np.mean([f1(predicted, labels, positive) for positive in classes]))


def matthews(predicted: Any, labels: Any) -> float:
    """Matthews' correlation of classes, of two or more: the correlation of their indicator vectors.

    With the confusion counts C[k, l] (label k, predicted l), t = row sums, p = column sums, n = Σ C:
    (n·tr C − t·p) / √((n² − p·p)(n² − t·t)); 0 where either side is constant.
    Source: Gorodkin 2004, "Comparing two K-category assignments by a K-category correlation coefficient".
    """
    predicted, labels = _pairs(predicted, labels)
    classes = np.union1d(predicted, labels)
    t = np.sum(labels[:, None] == classes, axis=0).astype(float)  # (K,)
    p = np.sum(predicted[:, None] == classes, axis=0).astype(float)  # (K,)
    n = len(labels)
    covariance = n * np.sum(predicted == labels) - t @ p
    spread = np.sqrt((n * n - p @ p) * (n * n - t @ t))
    return float(covariance / spread) if spread else 0.0


def pearson(predicted: Any, scores: Any) -> float:
    """Pearson's correlation of numbers; NaN where either side is constant, because there is none then."""
    return _correlation(stats.pearsonr, predicted, scores)


def spearman(predicted: Any, scores: Any) -> float:
    """Spearman's rank correlation (ties share their mean rank); NaN where either side is constant."""
    return _correlation(stats.spearmanr, predicted, scores)


def _correlation(function: Any, predicted: Any, scores: Any) -> float:
    predicted, scores = _pairs(predicted, scores)
    if len(scores) < 2:
        raise UserError(f"a correlation needs at least two scores, got {len(scores)}")
    if np.ptp(predicted) == 0 or np.ptp(scores) == 0:
        return float("nan")
    return float(function(predicted, scores).statistic)


def _pairs(predicted: Any, labels: Any) -> tuple[np.ndarray, np.ndarray]:
    predicted, labels = np.asarray(predicted), np.asarray(labels)
    if predicted.shape != labels.shape or labels.ndim != 1 or not len(labels):
        raise UserError(
            f"predictions {predicted.shape} and labels {labels.shape} must be two rows of the same length, "
            "which must not be empty"
        )
    return predicted, labels


def _f1(right: float, predicted: float, there: float) -> float:
    return float(2 * right / (predicted + there)) if predicted + there else 0.0


# -- Entities ----------------------------------------------------------------------------------------


def entities(tags: Sequence[str]) -> list[tuple[str, int, int]]:
    """The entities that a sentence's BIO tags mark, as (kind, start, stop).

    I-x that follows neither B-x nor I-x begins an entity too, as in the scorer conlleval and in seqeval.
    """
    found: list[tuple[str, int, int]] = []
    kind, start = None, 0
    for i, tag in enumerate([*tags, "O"]):
        prefix, _, kind_here = tag.partition("-")
        if kind is not None and (prefix != "I" or kind_here != kind):
            found.append((kind, start, i))
            kind = None
        if kind is None and prefix != "O":
            kind, start = kind_here, i
    return found


def entity_scores(
    predicted: Sequence[Sequence[str]], labels: Sequence[Sequence[str]]
) -> dict[str, dict[str, float]]:
    """Precision, recall, F1 and number ("support") of entities: of all ("overall"), and of each kind.

    An entity is right if its kind and both its ends are; a share of nothing is 0. The figures are those of
    seqeval and conlleval. A kind that is itself named "overall" counts in the sum, and has no row of its own.
    """
    if not len(labels):
        raise UserError("there are no sentences to score")
    if len(predicted) != len(labels) or any(map(_different_lengths, predicted, labels)):
        raise UserError("there must be a predicted tag for every word of every sentence")
    right, guessed, there = Counter[str](), Counter[str](), Counter[str]()  # by the kind
    for predicted_tags, tags in zip(predicted, labels, strict=True):
        predicted_entities, true_entities = set(entities(predicted_tags)), set(entities(tags))
        right.update(kind for kind, _, _ in predicted_entities & true_entities)
        guessed.update(kind for kind, _, _ in predicted_entities)
        there.update(kind for kind, _, _ in true_entities)
    kinds = sorted((guessed | there).keys() - {"overall"})
    overall = _entity_row(right.total(), guessed.total(), there.total())
    return {"overall": overall} | {
        kind: _entity_row(right[kind], guessed[kind], there[kind]) for kind in kinds
    }


def _entity_row(right: int, guessed: int, there: int) -> dict[str, float]:
    return {
        "precision": right / guessed if guessed else 0.0,
        "recall": right / there if there else 0.0,
        "f1": _f1(right, guessed, there),
        "support": there,
    }


def _different_lengths(first: Sequence[Any], second: Sequence[Any]) -> bool:
    return len(first) != len(second)


# -- Answers -----------------------------------------------------------------------------------------

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise_answer(text: str) -> str:
    """Lower case, without ASCII punctuation, without a, an, the, with single spaces (SQuAD's rule)."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def answer_scores(predicted: str, answers: Sequence[str]) -> tuple[float, float]:
    """Exact match and F1 of one predicted answer: the best over the right ones; "" means "no answer".

    F1 is that of the two bags of words; if either is empty, both must be. A question without answers, or
    whose answers are nothing but articles and punctuation, has the one answer "".
    Source: evaluate-v1.1.py and evaluate-v2.0.py of SQuAD (the first lets such answers count as they are).
    """
    right = [answer for answer in answers if normalise_answer(answer)] or [""]
    return (
        max(float(normalise_answer(predicted) == normalise_answer(answer)) for answer in right),
        max(
            _bag_f1(normalise_answer(predicted).split(), normalise_answer(answer).split()) for answer in right
        ),
    )


def _bag_f1(predicted: list[str], right: list[str]) -> float:
    if not predicted or not right:
        return float(predicted == right)
    return _f1((Counter(predicted) & Counter(right)).total(), len(predicted), len(right))


def squad_scores(predicted: Mapping[str, str], answers: Mapping[str, Sequence[str]]) -> dict[str, float]:
    """Mean exact match and F1 over all questions, by their ids, as ``exact_match`` and ``f1``.

    If some have no answer (v2.0), also ``has_answer_…`` and ``no_answer_…``, the means over each kind. A
    question without a prediction counts as wrong, as in evaluate-v1.1.py (evaluate-v2.0.py leaves it out).
    """
    if not answers:
        raise UserError("there are no questions to score")
    groups: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for name, right in answers.items():
        scores = answer_scores(predicted[name], right) if name in predicted else (0.0, 0.0)
        groups[""].append(scores)
        groups["has_answer_" if right else "no_answer_"].append(scores)
    if "no_answer_" not in groups:
        del groups["has_answer_"]
    return {
        f"{group}{name}": float(value)
        for group, scores in groups.items()
        for name, value in zip(("exact_match", "f1"), np.mean(scores, axis=0), strict=True)
    }


def best_null_threshold(
    null_scores: Mapping[str, float],
    predicted: Mapping[str, str],
    answers: Mapping[str, Sequence[str]],
) -> tuple[float, float]:
    """The threshold of the null score, above which "no answer" is predicted, that gives the best F1; that F1.

    ``null_scores`` are the model's scores for "no answer" minus those for its best answers, which
    ``predicted`` holds. The threshold is one of the null scores, or −∞ if never answering is best.
    Source: find_best_thresh in evaluate-v2.0.py of SQuAD, which also cuts between equal null scores, and
    accepts an answer of nothing but articles and punctuation as an answer.
    """
    if not answers:
        raise UserError("there are no questions to score")
    names = sorted(answers, key=null_scores.__getitem__)
    without = np.array([answer_scores("", answers[name])[1] for name in names])  # F1 of "no answer"
    gain = np.array([answer_scores(predicted[name], answers[name])[1] for name in names]) - without
    totals = without.sum() + np.concatenate([[0], np.cumsum(gain)])  # of answering the first 0, 1, …, n
    thresholds = np.array([-np.inf, *(null_scores[name] for name in names)])
    totals[:-1][thresholds[1:] == thresholds[:-1]] = -np.inf  # equal scores are answered together
    best = int(totals.argmax())
    return float(thresholds[best]), float(totals[best] / len(names))


# -- Ranks -------------------------------------------------------------------------------------------


def recall_at(ranks: Sequence[int | None], k: int) -> float:
    """The share of queries whose right passage is among the first ``k``.

    ``ranks``: the rank of each query's right passage, from 1; None where it was not found.
    """
    _check_ranks(ranks)
    return float(np.mean([rank is not None and rank <= k for rank in ranks]))


def mean_reciprocal_rank(ranks: Sequence[int | None]) -> float:
    """The mean of 1 / rank, 0 where the right passage was not found; ranks as in `recall_at`."""
    _check_ranks(ranks)
    return float(np.mean([0.0 if rank is None else 1 / rank for rank in ranks]))


def _check_ranks(ranks: Sequence[int | None]) -> None:
    if not len(ranks) or any(rank is not None and rank < 1 for rank in ranks):
        raise UserError("ranks must count from 1, and there must be at least one")


# -- Minimal pairs -----------------------------------------------------------------------------------


def minimal_pair_accuracy(good_scores: Any, bad_scores: Any, phenomena: Sequence[str]) -> dict[str, float]:
    """The share of pairs whose good sentence scores higher: overall ("overall") and for each phenomenon."""
    good_scores, bad_scores = _pairs(good_scores, bad_scores)
    right = good_scores > bad_scores
    names = np.asarray(phenomena)
    shares = {str(name): float(right[names == name].mean()) for name in np.unique(names)}
    return shares | {"overall": float(right.mean())}  # also if a phenomenon has this name
