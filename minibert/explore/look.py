"""A look into a model: all that the page shows of one sentence, as plain data that JSON can hold."""

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np

from minibert import ops
from minibert.arrays import to_numpy
from minibert.bert import BertForPreTraining
from minibert.errors import UserError
from minibert.explore.attributions import input_gradients, integrated_gradients, leave_one_out, rollout
from minibert.explore.explain import explain
from minibert.explore.passes import Pass, Sentence, hide, run
from minibert.explore.questions import HiddenWord
from minibert.nn import Observer
from minibert.text import PretrainedTokenizer
from minibert.variants.xlnet import XLNetLMHeadModel

GUESSES = 10


def look(
    model: BertForPreTraining,
    tokenizer: PretrainedTokenizer,
    sentence: Sentence,
    *,
    place: int | None = None,
    answer: str | None = None,
    changes: Sequence[Observer] = (),
) -> tuple[dict[str, Any], Pass]:
    """Ask a model for the token at a place, forwards and backwards → what the page shows, and the pass.

    ``place`` is by default that of the first [MASK]. ``answer``, the token whose −ln p is the loss, is by
    default the model's own best guess. Raises UserError if nothing is hidden and no place is given, for a
    token that the vocabulary does not have, and as ``run`` does.
    """
    if place is None:
        hidden = np.flatnonzero(sentence.input_ids == tokenizer.mask_id)
        if not len(hidden):
            mask = tokenizer.special_tokens["mask_token"]
            raise UserError(f"no word is hidden; write {mask} in place of one, or name a place")
        place = int(hidden[0])
    if answer is None:
        blank = HiddenWord(place, 0, tokenizer.mask_id)
        best = run(model, sentence, blank, changes=changes, names=[], backward=False).probabilities
        number = int(best[: len(tokenizer)].argmax())
    elif answer in tokenizer.vocab:
        number = tokenizer.vocab[answer]
    else:
        raise UserError(f"{answer!r} is not a token of the vocabulary; longer words are cut into pieces")
    found = run(model, sentence, HiddenWord(place, number, tokenizer.mask_id), changes=changes)
    return _shown(model, tokenizer, found, place, number), found


def _shown(
    model: BertForPreTraining, tokenizer: PretrainedTokenizer, found: Pass, place: int, answer: int
) -> dict[str, Any]:
    names = [name for name in found.values if name.endswith("probabilities")]
    maps, dmaps = ([kept[name] for name in names] for kept in (found.values, found.derivatives))
    return {
        "tokens": list(found.sentence.tokens),
        "place": place,
        "answer": tokenizer.tokens[answer],
        "loss": found.loss,
        "guesses": _best(tokenizer, found.probabilities, GUESSES),
        "lens": _lens(model, tokenizer, found, place),
        "values": [_summary(name, found) for name in found.values],
        "maps": packed(np.stack(maps)),  # (L, A, S, S)
        "dmaps": packed(np.stack(dmaps)),
        "rollout": packed(rollout(maps)) if maps[0].shape[1] == maps[0].shape[2] else None,  # (L, S, S)
    }


def _best(tokenizer: PretrainedTokenizer, probabilities: np.ndarray, count: int) -> list[dict[str, Any]]:
    """The likeliest tokens, best first."""
    known = probabilities[: len(tokenizer)]
    best = np.argsort(-known, kind="stable")[:count]
    return [{"token": tokenizer.token_text(i), "p": float(known[i])} for i in best]


def _lens(
    model: BertForPreTraining, tokenizer: PretrainedTokenizer, found: Pass, place: int
) -> list[list[dict[str, Any]]]:
    """What the head for words reads off the place's state after the embeddings and after each layer."""
    xp, head = model.device.xp, model.cls.predictions
    assert head is not None  # it answered
    row = xp.zeros(1, dtype="int64")
    at = len(found.sentence) if isinstance(model, XLNetLMHeadModel) else place  # an XLNet's first query
    lens = []
    for name, value in found.values.items():
        if name.endswith("embeddings") or name.split(".")[-1].isdigit():
            state = model.device.asarray(value[at][None, None])  # (1, 1, H)
            logits, _ = head.forward(state, row)  # (1, V)
            lens.append(_best(tokenizer, to_numpy(ops.softmax(logits)[0])[0], 5))
    return lens


def _summary(name: str, found: Pass) -> dict[str, Any]:
    """A value by its shape, and by the length of its vector for each token, with that of its derivative."""
    value, derivative = found.values[name], found.derivatives[name]
    axes = tuple(axis for axis in range(value.ndim) if axis != value.ndim - 2)  # all but the tokens
    lengths, dlengths = (np.sqrt((x * x).sum(axis=axes)) for x in (value, derivative))
    return {"name": name, "shape": value.shape, "norms": lengths.tolist(), "dnorms": dlengths.tolist()}


def tensor(model: BertForPreTraining, found: Pass, name: str) -> dict[str, Any]:
    """A value of a pass, its derivative, and what made it. Raises UserError for an unknown name."""
    if name not in found.values:
        raise UserError(f"there is no value {name!r}")
    told = explain(model, name)
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


def words(model: BertForPreTraining, tokenizer: PretrainedTokenizer, found: Pass) -> list[dict[str, Any]]:
    """Which words made the answer likely, in nats of ln p, by three measures; None where one says nothing.

    The baseline of the integrated gradients is the sentence with all of its words hidden.
    """
    name, length = next(iter(found.values)), len(found.sentence)
    special, baseline = set(tokenizer.special_tokens.values()), found.sentence
    for place, token in enumerate(found.sentence.tokens):
        if token not in special:
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
