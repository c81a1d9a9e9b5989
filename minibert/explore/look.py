"""A look into a model: all that the page shows of one sentence, as plain data that JSON can hold."""

import base64
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from minibert import ops
from minibert.arrays import Array, to_numpy
from minibert.bert import BertForPreTraining
from minibert.errors import UserError
from minibert.explore.attributions import (
    baseline,
    input_gradients,
    integrated_gradients,
    leave_one_out,
    rollout,
)
from minibert.explore.layers import Residual, offered, residuals, written
from minibert.explore.passes import Pass, Sentence, check_number, cut_words, run, words_in
from minibert.explore.provenance import provenance
from minibert.explore.questions import HiddenWord
from minibert.explore.subjects import Subject, Words
from minibert.nn import Observer, Parameter
from minibert.variants.xlnet import XLNetLMHeadModel

GUESSES = 10
ROWS = 24  # of a parameter, shown at once


def look(
    subject: Subject,
    sentence: Sentence,
    *,
    place: int | None = None,
    answer: str | None = None,
    changes: Sequence[Observer] = (),
) -> tuple[dict[str, Any], Pass]:
    """Ask a model about a sentence, forwards and backwards → what the page shows, and the pass.

    ``place`` and ``answer`` are by default the usual ones: see ``Subject.ask``, whose errors are raised.
    """
    subject = subject.about(sentence, place)
    question = subject.ask(sentence, place, answer, changes)
    found = run(subject.model, sentence, question, changes=changes)
    check_number(found)
    names = [name for name in found.values if name.endswith("probabilities")]
    maps, dmaps = ([kept[name] for name in names] for kept in (found.values, found.derivatives))
    shown = {
        "tokens": list(sentence.tokens),
        "ids": sentence.input_ids.tolist(),
        "words": words_in(sentence, subject.tokenizer),
        "cut": cut_words(sentence, subject.tokenizer),
        "place": getattr(question, "place", None),
        "measure": subject.told(found),
        "answer": getattr(question, "answer", 0),  # the number of the guess that the loss is about
        "loss": found.loss,
        "guesses": subject.best(found, GUESSES),
        "answers": len(subject.names),
        "lens": _lens(subject, found),
        "values": [_summary(name, found) for name in found.values],
        "maps": packed(np.stack(maps)),  # (L, A, S, S)
        "dmaps": packed(np.stack(dmaps)),
        "rollout": packed(rollout(maps)) if maps[0].shape[1] == maps[0].shape[2] else None,  # (L, S, S)
        "written": [lengths.tolist() for lengths in written(subject, found)],  # (L, A, S)
        "offered": [lengths.tolist() for lengths in offered(subject, found)],  # (L, A, S)
        "residuals": [[_residual(half) for half in layer] for layer in residuals(subject, found)],  # (L, 2)
    }
    return shown, found


def _lens(subject: Subject, found: Pass) -> list[list[dict[str, Any]]]:
    """What the head for words reads off the place's state after the embeddings and after each layer."""
    if not isinstance(subject, Words) or not isinstance(found.question, HiddenWord):
        return []
    model, place = subject.model, found.question.place
    assert isinstance(model, BertForPreTraining)
    xp, head = model.device.xp, model.cls.predictions
    assert head is not None  # it answered
    row = xp.zeros(1, dtype="int64")
    at = len(found.sentence) if isinstance(model, XLNetLMHeadModel) else place  # an XLNet's first query
    lens = []
    for name, value in found.values.items():
        if name.endswith("embeddings") or name.split(".")[-1].isdigit():
            state = model.device.asarray(value[at][None, None])  # (1, 1, H)
            logits, _ = head.forward(state, row)  # (1, V)
            there = replace(found, probabilities=to_numpy(ops.softmax(logits)[0])[0])
            lens.append(subject.best(there, GUESSES))
    return lens


def _residual(half: Residual) -> dict[str, Any]:
    return {
        "before": half.before,
        "added": packed(half.added),
        "after": half.after,
        "cosine": half.cosine.tolist(),
        "deviation": half.deviation.tolist(),
    }


def _summary(name: str, found: Pass) -> dict[str, Any]:
    """A value by its shape, and by the length of its vector for each token, with that of its derivative."""
    value, derivative = found.values[name], found.derivatives[name]
    axes = tuple(axis for axis in range(value.ndim) if axis != value.ndim - 2)  # all but the tokens
    lengths, dlengths = (np.sqrt((x * x).sum(axis=axes)) for x in (value, derivative))
    return {"name": name, "shape": value.shape, "norms": lengths.tolist(), "dnorms": dlengths.tolist()}


def tensor(subject: Subject, found: Pass, name: str) -> dict[str, Any]:
    """A value of a pass, its derivative, and what made it. Raises UserError for an unknown name."""
    if name not in found.values:
        raise UserError(f"there is no value {name!r}")
    told = provenance(subject.model, name)
    return {
        "name": name,
        "value": packed(found.values[name]),
        "derivative": packed(found.derivatives[name]),
        "equation": told.equation,
        "letters": told.shape,
        "forward": told.forward,
        "backward": told.backward,
        "parameters": told.parameters,
    }


def parameter(subject: Subject, name: str) -> dict[str, Any]:
    """A parameter, and its gradient as the last backward pass has left it, as matrices (rows, columns).

    Of a long matrix these are the rows with the longest gradients, in their order; ``rows`` says which, and
    ``names`` what they are called. Raises UserError for an unknown name.
    """
    found = named_parameter(subject, name)
    value, gradient = (matrix_of(to_numpy(x)) for x in (found.value, found.grad))
    longest = np.argsort(-np.linalg.norm(gradient, axis=1), kind="stable")[:ROWS]
    rows = np.sort(longest)
    tokens = subject.tokenizer.tokens if name.endswith("word_embeddings.weight") else []
    return {
        "name": name,
        "shape": list(found.shape),
        "rows": rows.tolist(),
        "names": [tokens[i] if i < len(tokens) else str(i) for i in rows],  # a vocabulary can be padded
        "value": packed(value[rows]),
        "derivative": packed(gradient[rows]),
    }


def named_parameter(subject: Subject, name: str) -> Parameter:
    """The parameter of this name. Raises UserError if there is none."""
    parameters = dict(subject.model.named_parameters())
    if name not in parameters:
        raise UserError(f"there is no value or parameter {name!r}")
    return parameters[name]


def matrix_of(array: Array) -> Array:
    """A view with two axes: a vector as one row, and what has more axes by the first of them."""
    return array.reshape(1 if array.ndim < 2 else len(array), -1)


def words(
    subject: Subject,
    found: Pass,
    places: Collection[int] | None = None,
    nodes: Collection[int] | None = None,
) -> list[dict[str, Any]]:
    """How much each word has lowered the loss, by three measures; None where one says nothing.

    The baseline of the integrated gradients is the sentence with all of its words hidden. A long text takes
    a while, so it can be asked in parts: ``places`` are those of ``leave_one_out``, ``nodes`` some of the
    integral's. The first rows of all parts complete each other, the last ones are to be added up.
    """
    model, tokenizer = subject.model, subject.tokenizer
    name, length = next(iter(found.values)), len(found.sentence)
    integrated = np.full(length, np.nan)
    if nodes is None or len(nodes):
        below = baseline(model, found, tokenizer, name)
        integrated = integrated_gradients(model, found, below, name, some=nodes)
    rows = {
        "hidden": leave_one_out(model, found, tokenizer, places),
        "input × gradient": input_gradients(found, name)[:length],
        "integrated gradients": integrated[:length],
    }
    return [
        {"name": told, "values": [None if np.isnan(v) else float(v) for v in row]}  # JSON has no NaN
        for told, row in rows.items()
    ]


def packed(array: np.ndarray) -> dict[str, Any]:
    """An array as its shape and its numbers in float32, little-endian, in base64."""
    raw = np.ascontiguousarray(array, dtype="<f4").tobytes()
    return {"shape": list(array.shape), "data": base64.b64encode(raw).decode("ascii")}
