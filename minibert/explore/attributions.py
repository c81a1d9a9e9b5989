"""Which words mattered? Several answers that differ, for one pass; none of them is the truth by itself."""

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from minibert.explore.changes import Patch
from minibert.explore.passes import Pass, hide, remove, run, words_in
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


def baseline(
    model: Explored, found: Pass, tokenizer: PretrainedTokenizer, name: str, kind: str = "mask"
) -> np.ndarray:
    """The embeddings of the pass's sentence with nothing in the place of its words: (S, H).

    Nothing is what the ``kind`` says: the embedding of [MASK] or of [PAD] ("mask", "pad") at that place, or
    0 ("zero"). Special tokens stay what they are.
    """
    b, places = found.values[name].copy(), words_in(found.sentence, tokenizer)
    if kind == "zero":
        b[places] = 0.0
        return b
    ids = found.sentence.input_ids.copy()
    ids[places] = {"mask": tokenizer.mask_id, "pad": tokenizer.pad_id}[kind]
    blank = replace(found.sentence, input_ids=ids)
    b[places] = run(model, blank, found.question, names=[name], backward=False).values[name][places]
    return b


def pass_at(model: Explored, found: Pass, name: str, x: np.ndarray, *, backward: bool = False) -> Pass:
    """A pass of the same sentence in which the value of this name, the embeddings for instance, is ``x``."""
    patch = Patch(name, (), model.device.asarray(x.astype(found.values[name].dtype)))
    return run(model, found.sentence, found.question, changes=[patch], names=[name], backward=backward)


def integrated_gradients(
    model: Explored,
    found: Pass,
    b: np.ndarray,
    name: str,
    nodes: int = NODES,
    some: Collection[int] | None = None,
) -> np.ndarray:
    """How ln p(answer) of a pass, minus that at a baseline, is made up: the share of each token (S,).

        share of i = (x_i − b_i) · ∫₀¹ ∂ ln p/∂x_i at b + t (x − b) dt

    x are the embeddings of the sentence, the value called ``name``, and b (S, H) those of the baseline. The
    integral is a sum over the nodes of Gauss and Legendre; with ``some`` of them, only these are added up.
    How far the sum of all shares is from the difference says how well the sum stands for the integral. Only
    the embeddings change on the way: what an XLNet must not see stays what it is. Source: Sundararajan et
    al. 2017, "Axiomatic Attribution for Deep Networks".
    """
    x = found.values[name]  # (S, H)
    places, weights = np.polynomial.legendre.leggauss(nodes)  # on [−1, 1]
    mean = np.zeros_like(x)
    for node in range(nodes) if some is None else some:
        there = pass_at(model, found, name, b + (places[node] + 1) / 2 * (x - b), backward=True)
        mean -= weights[node] / 2 * there.derivatives[name]
    return (mean * (x - b)).sum(axis=-1)


def left_out(
    model: Explored,
    found: Pass,
    tokenizer: PretrainedTokenizer,
    groups: Sequence[Sequence[int]],
    removed: bool = False,
) -> np.ndarray:
    """What ln p(answer) loses when each group of tokens in turn is hidden by [MASK], or removed: (G,).

    It is NaN for a group with a special token in it, and for one that cannot be removed because the
    question is about it. One forward pass per group.
    """
    lost, words = np.full(len(groups), np.nan), set(words_in(found.sentence, tokenizer))
    for number, group in enumerate(groups):
        sentence, question = found.sentence, found.question
        if not words.issuperset(group):
            continue
        if removed:
            sentence, moved = remove(sentence, group), question.without(group)
            if moved is None:
                continue
            question = moved
        else:
            for place in group:
                sentence = hide(sentence, place, tokenizer)
        lost[number] = run(model, sentence, question, names=[], backward=False).loss - found.loss
    return lost


def leave_one_out(
    model: Explored, found: Pass, tokenizer: PretrainedTokenizer, places: Collection[int] | None = None
) -> np.ndarray:
    """What ln p(answer) loses when each token in turn is hidden by [MASK]: (S,), NaN for special tokens.

    One forward pass for each of the ``places``, by default for all; elsewhere it is NaN.
    """
    lost, chosen = np.full(len(found.sentence), np.nan), words_in(found.sentence, tokenizer)
    chosen = [place for place in chosen if places is None or place in places]
    lost[chosen] = left_out(model, found, tokenizer, [[place] for place in chosen])
    return lost
