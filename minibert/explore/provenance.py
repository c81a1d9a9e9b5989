"""Where a value comes from: its equation, and the code that computed it and its derivative."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from minibert.bert.embeddings import BertEmbeddings
from minibert.bert.encoder import INSIDE_ATTENTION, BertLayer, BertSelfAttention
from minibert.explore.questions import Explored
from minibert.nn import Module
from minibert.ops import attention, composites, linear_map, stable_softmax


@dataclass(frozen=True)
class Provenance:
    """What made a value, and what made its derivative.

    ``equation`` and ``shape`` are empty where a variant has other layers than BERT; its code is shown all the
    same.
    """

    equation: str
    shape: str  # in the letters of the library, without the axis of the batch
    forward: str  # the source of the operation, or of the module's method
    backward: str
    parameters: list[str]  # the names of those that took part


@dataclass(frozen=True)
class _Step:
    equation: str
    shape: str
    operation: tuple[Callable, Callable]
    weights: str | None = ""  # in which part of the module they are; None if there are none


_NORM = composites.dropout_residual_norm, composites.dropout_residual_norm_backward
_LINEAR = linear_map.linear, linear_map.linear_backward
_ATTENTION = attention.attention, attention.attention_backward
_STEPS = {
    "embeddings": _Step(
        "x⁽⁰⁾ = LayerNorm(word[id] + position[s] + type[t])",
        "(S, H)",
        (composites.embed, composites.embed_backward),
    ),
    "q": _Step("q = x W_qᵀ + b_q, cut into A heads", "(A, S, D)", _LINEAR, "query."),
    "k": _Step("k = x W_kᵀ + b_k, cut into A heads", "(A, S, D)", _LINEAR, "key."),
    "v": _Step("v = x W_vᵀ + b_v, cut into A heads", "(A, S, D)", _LINEAR, "value."),
    "scores": _Step("s = q kᵀ/√D + bias", "(A, S, S)", _ATTENTION, None),
    "probabilities": _Step(
        "p = softmax(s)", "(A, S, S)", (stable_softmax.softmax, stable_softmax.softmax_backward), None
    ),
    "context": _Step("y = p v, the heads side by side", "(S, H)", _ATTENTION, None),
    "attention": _Step("a = LayerNorm(x + y Wᵀ + b)", "(S, H)", _NORM, "attention.output."),
    "intermediate": _Step(
        "f = activation(a Wᵀ + b)",
        "(S, F)",
        (composites.linear_activation, composites.linear_activation_backward),
        "intermediate.",
    ),
    "layer": _Step("x′ = LayerNorm(a + f Wᵀ + b)", "(S, H)", _NORM, "output."),
}


def provenance(model: Explored, name: str) -> Provenance:
    """What made the value of this name, as an observer sees it, in this model."""
    path = name.split(".")
    kind = "layer" if path[-1].isdigit() else path[-1]
    if kind in (*INSIDE_ATTENTION, "attention", "intermediate"):
        path = path[:-1]  # what is shown by a module of another name
    owner, step = _module(model, path), _STEPS[kind]
    names = {id(parameter): known for known, parameter in model.named_parameters()}  # one of a shared layer
    parameters = [
        names[id(parameter)]
        for known, parameter in owner.named_parameters()
        if step.weights is not None and known.startswith(step.weights)
    ]
    if type(owner) in (BertEmbeddings, BertSelfAttention, BertLayer):
        equation, shape, functions = step.equation, step.shape, step.operation
    else:
        equation, shape, functions = "", "", (type(owner).forward, type(owner).backward)
    forward, backward = map(inspect.getsource, functions)
    return Provenance(equation, shape, forward, backward, parameters)


def _module(model: Module, path: list[str]) -> Any:
    module: Any = model
    for part in path:
        module = module[int(part)] if part.isdigit() else getattr(module, part)
    return module
