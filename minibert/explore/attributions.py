"""Which words mattered? Several answers that differ, for one pass; none of them is the truth by itself."""

from collections.abc import Collection, Sequence

import numpy as np

from minibert.explore.changes import Patch
from minibert.explore.passes import Pass, Sentence, hide, run, words_in
from minibert.explore.questions import Explored
from minibert.text import PretrainedTokenizer

NODES = 8  # of the integral: more change the third digit


def rollout(maps: Sequence[np.ndarray]) -> np.ndarray:
    """How much of each token's first state is in each token's state after every layer: (L, S, S).

        R⁽ˡ⁾ = ½ (I + mean over heads of P⁽ˡ⁾) R⁽ˡ⁻¹⁾

    maps: L of (A, S, S). The halves stand for the residual path, as if both paths were equally long. The rows
    sum to 1. Source: Abnar and Zuidema 2020, "Quantifying Attention Flow in Transformers".
    """
    mixed, rows = [], np.eye(maps[0].shape[-1])
    for p in maps:
        rows = 0.5 * (rows + p.mean(axis=0) @ rows)
        mixed.append(rows)
    return np.stack(mixed)


def input_gradients(found: Pass, name: str) -> np.ndarray:
    """Input × gradient, −∂loss/∂x · x, for each token: (S,). ``name`` is that of the embeddings x."""
    return -(found.derivatives[name] * found.values[name]).sum(axis=-1)


def integrated_gradients(
    model: Explored,
    found: Pass,
    baseline: Sentence,
    name: str,
    nodes: int = NODES,
    some: Collection[int] | None = None,
) -> np.ndarray:
    """How ln p(answer) of a pass, minus that of a baseline, is made up: the share of each token (S,).

        share of i = (x_i − b_i) · ∫₀¹ ∂ ln p/∂x_i at b + t (x − b) dt

    x and b are the embeddings of the sentence and of the baseline. The integral is a sum over the nodes of
    Gauss and Legendre; with ``some`` of them, only these are added up. That the shares of all sum to the
    difference is how well the sum stands for the integral. Only the embeddings change on the way: what an
    XLNet must not see stays what it is. Source: Sundararajan et al. 2017, "Axiomatic Attribution for Deep
    Networks".
    """
    below = run(model, baseline, found.question, names=[name], backward=False)
    x, b = found.values[name], below.values[name]  # (S, H)
    places, weights = np.polynomial.legendre.leggauss(nodes)  # on [−1, 1]
    mean = np.zeros_like(x)
    for node in range(nodes) if some is None else some:
        place, weight = places[node], weights[node]
        between = b + (place + 1) / 2 * (x - b)
        patch = Patch(name, (), model.device.asarray(between.astype(x.dtype)))
        there = run(model, found.sentence, found.question, changes=[patch], names=[name])
        mean -= weight / 2 * there.derivatives[name]
    return (mean * (x - b)).sum(axis=-1)


def leave_one_out(
    model: Explored, found: Pass, tokenizer: PretrainedTokenizer, places: Collection[int] | None = None
) -> np.ndarray:
    """What ln p(answer) loses when each token in turn is hidden by [MASK]: (S,), NaN for special tokens.

    One forward pass for each of the ``places``, by default for all; elsewhere it is NaN.
    """
    lost = np.full(len(found.sentence), np.nan)
    for place in words_in(found.sentence, tokenizer):
        if places is None or place in places:
            hidden = hide(found.sentence, place, tokenizer)
            lost[place] = run(model, hidden, found.question, names=[], backward=False).loss - found.loss
    return lost
