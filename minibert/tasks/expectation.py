"""What loss a pre-training run should have: the curves of runs that we have made, and a run beside them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from minibert.assets import ASSETS
from minibert.files import read_json
from minibert.tasks.pretraining_settings import USUAL_VOCAB_SIZE, PretrainSettings

CURVES = ASSETS / "expected_losses.json"  # written by benchmarks/expected.py
DOCS = "docs"  # the text of a run without --corpus
# How far above a curve a run may end, in nats. On one text, seeds differ by up to 0.09 with the fast recipe.
# With the original they differ by up to 0.43, because they leave the plateau after three to five million
# tokens. On another text the curves are a rough guide: natural texts are not equally hard to guess.
SLACK, SLACK_ELSEWHERE = {"fast": 0.15, "original": 0.3}, 0.5


@dataclass(frozen=True)
class Expectation:
    """A curve of held-out loss against tokens read: points (N, 2), what it is of, and the slack of a run."""

    points: np.ndarray
    told: str
    slack: float

    def at(self, tokens: float) -> float:
        """The loss after so many tokens; beyond the curve, that at its end."""
        return float(np.interp(tokens, *self.points.T))


def expected_loss(
    settings: PretrainSettings, layers: int, hidden_size: int, vocab_size: int, plateau: float, tokens: float
) -> Expectation | str:
    """The curve for a run of this shape that reads so many ``tokens``, or in words why there is none.

    A curve is kept as it was measured, with the loss of guessing by frequency on its text. On another text,
    with another such ``plateau``, a run is expected to come as far below its own. Of several curves for one
    shape, a curve of the same text is taken, or else the one whose run was about as long. For a width
    between two that were measured with as many layers, the losses are interpolated in log(width). There is no
    interpolation between depths: deeper models learn later, and after little text are worse.
    """
    recipe = recipe_of(settings)
    if recipe is None:
        return "nothing like these settings was measured: only new BERTs, by the recipes original and fast"
    if not USUAL_VOCAB_SIZE / 2 <= vocab_size <= USUAL_VOCAB_SIZE * 2:
        return (
            f"only vocabularies of about {USUAL_VOCAB_SIZE:,} tokens were measured, this has {vocab_size:,}"
        )
    nsp = settings.instance_settings().next_sentence
    known = [c for c in read_json(CURVES) if (c["recipe"], c["nsp"]) == (recipe, nsp)]
    text = DOCS if not settings.corpus else ""
    fitting = [c for c in known if (c["layers"], c["hidden_size"]) == (layers, hidden_size)]
    told = f"{recipe} recipe, L{layers} H{hidden_size}"
    if fitting:
        best = min(fitting, key=lambda c: (c["text"] != text, abs(np.log(c["points"][-1][0] / tokens))))
        points = below(best, plateau)
    else:
        between = _neighbours([c for c in known if c["layers"] == layers], hidden_size)
        if between is None:
            shapes = sorted({(c["layers"], c["hidden_size"]) for c in known})
            measured = ", ".join(f"L{layers} H{hidden}" for layers, hidden in shapes) or "none"
            with_nsp = "with" if nsp else "without"
            return f"L{layers} H{hidden_size} was not measured (by this recipe {with_nsp} NSP: {measured})"
        narrow, wide = between
        share = np.log(hidden_size / narrow["hidden_size"]) / np.log(
            wide["hidden_size"] / narrow["hidden_size"]
        )
        points = (1 - share) * below(narrow, plateau) + share * below(wide, plateau)
        best, told = narrow, f"{told}, between H{narrow['hidden_size']} and H{wide['hidden_size']}"
    slack = SLACK[recipe] if best["text"] == text else SLACK_ELSEWHERE
    return Expectation(points, f"{told}, {best['text']}", slack)


def recipe_of(settings: PretrainSettings) -> str | None:
    """The recipe by which a run learns, if it is one of those that were measured."""
    if settings.model or settings.teacher or settings.variant != "bert" or settings.predicts != "masked":
        return None
    first = settings.word_initializer, settings.attention_initializer != "normal"
    kinds = {
        ("adamw", "original", "normal", False): "original",
        ("muon", "trapezoid", "counts", True): "fast",
    }
    return kinds.get((settings.optimiser, settings.schedule, *first))


def below(curve: Mapping[str, Any], plateau: float) -> np.ndarray:
    """The points of a curve, as far below ``plateau`` as they were below their own: (N, 2)."""
    return np.array(curve["points"]) + np.array([0.0, plateau - curve["plateau_loss"]])


def _neighbours(
    curves: Sequence[Mapping[str, Any]], hidden_size: int
) -> tuple[Mapping[str, Any], Mapping[str, Any]] | None:
    """The next narrower and the next wider one, measured at the same number of tokens."""
    widths = sorted((c for c in curves if c["source"] == "ablations"), key=lambda c: c["hidden_size"])
    for narrow, wide in pairwise(widths):
        if narrow["hidden_size"] < hidden_size < wide["hidden_size"]:
            return narrow, wide
    return None


def verdict(expected: Expectation, loss: float, tokens: float) -> str:
    """One line: how a run that ended at this loss, after so many tokens, compares with its curve."""
    last, slack = expected.points[-1, 0], expected.slack
    after = f"after {min(tokens, last) / 1e6:.1f} million tokens"
    apart = loss - expected.at(tokens)
    where = f"{abs(apart):.2f} nats {'above' if apart > 0 else 'below'} it"
    if tokens > 1.2 * last:
        where += f", but this run has read {tokens / 1e6:.1f} million, and should be below"
        slack = 0.0
    judged = "as it should be" if apart <= slack else "too high: see docs/expected.md"
    loss_then = f"loss {expected.at(tokens):.3f} nats {after}"
    return f"expected ({expected.told})  {loss_then}; the run is {where}: {judged}"
