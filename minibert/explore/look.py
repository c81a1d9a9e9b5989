"""A look into a model: all that the page shows of one sentence, as plain data that JSON can hold."""

import base64
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from minibert import ops
from minibert.arrays import to_numpy
from minibert.bert import BertForPreTraining, BertModel
from minibert.errors import UserError
from minibert.explore.attributions import input_gradients, integrated_gradients, leave_one_out, rollout
from minibert.explore.explain import explain
from minibert.explore.passes import Pass, Sentence, hide, run, words_in
from minibert.explore.questions import HiddenWord
from minibert.explore.subjects import Subject, Words
from minibert.nn import Observer
from minibert.variants.xlnet import XLNetLMHeadModel

GUESSES = 10


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
    question = subject.ask(sentence, place, answer, changes)
    found = run(subject.model, sentence, question, changes=changes)
    names = [name for name in found.values if name.endswith("probabilities")]
    maps, dmaps = ([kept[name] for name in names] for kept in (found.values, found.derivatives))
    shown = {
        "tokens": list(sentence.tokens),
        "place": getattr(question, "place", None),
        "measure": subject.told(found),
        "loss": found.loss,
        "guesses": subject.best(found, GUESSES),
        "lens": _lens(subject, found),
        "values": [_summary(name, found) for name in found.values],
        "maps": packed(np.stack(maps)),  # (L, A, S, S)
        "dmaps": packed(np.stack(dmaps)),
        "rollout": packed(rollout(maps)) if maps[0].shape[1] == maps[0].shape[2] else None,  # (L, S, S)
        "written": [[length.tolist() for length in layer] for layer in written(subject, found)],  # (L, A, S)
    }
    return shown, found


def written(subject: Subject, found: Pass) -> list[np.ndarray]:
    """How long the vector is that each head adds to each token: L of (A, S).

    The context of a token is that of its heads side by side, so the product with the output's matrix W is a
    sum over the heads, ‖y[a] W[:, a]ᵀ‖ each. What else is added, a bias, belongs to none.
    """
    lengths, heads = [], subject.model.config.num_attention_heads
    encoder = subject.model if isinstance(subject.model, BertModel) else subject.model.bert
    contexts = [value for name, value in found.values.items() if name.endswith("attention.self.context")]
    for layer, context in zip(encoder.encoder.layer, contexts, strict=True):
        weight = to_numpy(layer.attention.output.dense.weight.value)
        matrix = weight.reshape(len(weight), -1)  # an XLNet's has an axis for the heads
        parts = zip(np.split(context, heads, axis=1), np.split(matrix, heads, axis=1), strict=True)
        lengths.append(np.stack([np.linalg.norm(y @ w.T, axis=1) for y, w in parts]))
    return lengths


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
            lens.append(subject.best(there, 5))
    return lens


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
    told = explain(subject.model, name)
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


def words(subject: Subject, found: Pass) -> list[dict[str, Any]]:
    """How much each word has lowered the loss, by three measures; None where one says nothing.

    The baseline of the integrated gradients is the sentence with all of its words hidden.
    """
    model, tokenizer = subject.model, subject.tokenizer
    name, length, baseline = next(iter(found.values)), len(found.sentence), found.sentence
    for place in words_in(found.sentence, tokenizer):
        baseline = hide(baseline, place, tokenizer)
    integrated, _ = integrated_gradients(model, found, baseline, name)
    rows = {
        "hidden": leave_one_out(model, found, tokenizer),
        "input × gradient": input_gradients(found, name)[:length],
        "integrated gradients": integrated[:length],
    }
    return [
        {"name": told, "values": [None if np.isnan(v) else float(v) for v in row]}
        for told, row in rows.items()
    ]


def packed(array: np.ndarray) -> dict[str, Any]:
    """An array as its shape and its numbers in float32, little-endian, in base64."""
    raw = np.ascontiguousarray(array, dtype="<f4").tobytes()
    return {"shape": list(array.shape), "data": base64.b64encode(raw).decode("ascii")}
