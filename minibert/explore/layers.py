"""What the layers add to the tokens: each head, and each half of a layer before its LayerNorm."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from minibert.arrays import to_numpy
from minibert.bert import BertModel
from minibert.bert.encoder import BertEncoder, BertLayer, BertResidualOutput
from minibert.explore.passes import Pass
from minibert.explore.subjects import Subject


def written(subject: Subject, found: Pass) -> list[np.ndarray]:
    """How long the vector is that each head adds to each token: L of (A, S).

    The context of a token is that of its heads side by side, so the product with the output's matrix W is a
    sum over the heads, ‖y[a] W[:, a]ᵀ‖ each. What else is added, a bias, belongs to none.
    """
    heads = subject.model.config.num_attention_heads
    return _lengths(subject, [np.split(y, heads, axis=1) for y in _inside(found, "context")])


def offered(subject: Subject, found: Pass) -> list[np.ndarray]:
    """How long the vector is that each head has from each token to give: ‖v[a] W[:, a]ᵀ‖, L of (A, S).

    Times a weight of attention it is the length of what one token takes from another, which can be small
    where the weight is large. Source: Kobayashi et al. 2020, "Attention is Not Only a Weight".
    """
    return _lengths(subject, _inside(found, "v"))


def _lengths(subject: Subject, layers: Sequence[Iterable[np.ndarray]]) -> list[np.ndarray]:
    """‖x[a] W[:, a]ᵀ‖ of each layer's vectors x, A of (S, D), and its output's matrix W (H, H)."""
    lengths, heads = [], subject.model.config.num_attention_heads
    for layer, vectors in zip(_encoder(subject).layer, layers, strict=True):
        weight = to_numpy(layer.attention.output.dense.weight.value)
        matrix = weight.reshape(len(weight), -1)  # an XLNet's has an axis for the heads
        parts = zip(vectors, np.split(matrix, heads, axis=1), strict=True)
        lengths.append(np.stack([np.linalg.norm(x @ w.T, axis=1) for x, w in parts]))
    return lengths


def _inside(found: Pass, name: str) -> list[np.ndarray]:
    """A value inside the attention of each layer."""
    return [value for path, value in found.values.items() if path.endswith(f"attention.self.{name}")]


@dataclass(frozen=True)
class Residual:
    """What a sublayer does to the tokens: after = LayerNorm(before + added).

    ``before`` and ``after`` are names of values. ``cosine`` is that of before and added: below 0, something
    is taken back. ``deviation`` is the standard deviation of the sum's features. LayerNorm divides by it, and
    so scales down what the layers below have written.
    """

    before: str
    added: np.ndarray  # (S, H)
    after: str
    cosine: np.ndarray  # (S,)
    deviation: np.ndarray  # (S,)


def residuals(subject: Subject, found: Pass) -> list[tuple[Residual, Residual]]:
    """Both halves of each layer, attention and feed-forward; none of a variant with other layers."""
    halves, before = [], next(iter(found.values))
    path = before.removesuffix("embeddings") + "encoder.layer."
    for i, layer in enumerate(_encoder(subject).layer):
        if type(layer) is not BertLayer:
            return []
        name, middle = f"{path}{i}", f"{path}{i}.attention"
        attention = _residual(found, before, f"{middle}.self.context", middle, layer.attention.output)
        feed_forward = _residual(found, middle, f"{name}.intermediate", name, layer.output)
        halves.append((attention, feed_forward))
        before = name
    return halves


def _residual(found: Pass, before: str, within: str, after: str, output: BertResidualOutput) -> Residual:
    """``within`` is the value that ``output`` maps linearly to what is added."""
    weight, bias = to_numpy(output.dense.weight.value), to_numpy(output.dense.bias.value)
    old, added = found.values[before], found.values[within] @ weight.T + bias  # (S, H) each
    lengths = np.linalg.norm(old, axis=1) * np.linalg.norm(added, axis=1)
    cosine = (old * added).sum(axis=1) / np.where(lengths > 0, lengths, 1)
    total = old + added
    deviation = np.sqrt(total.var(axis=1) + output.LayerNorm.eps)
    return Residual(before, added, after, cosine, deviation)


def _encoder(subject: Subject) -> BertEncoder:
    model = subject.model
    return (model if isinstance(model, BertModel) else model.bert).encoder
