"""11 Heads and losses: the gradient of a table that is used twice."""

import numpy as np

from minibert.arrays import Array
from minibert.course.exercise import exercise, gradient_trial
from minibert.course.exercises.n06_embeddings import IDS


def tied_model(weight: Array, ids: Array) -> tuple[Array, tuple]:
    """A masked-language model without an encoder: logits = h Wᵀ with h = tanh(W[ids]).

    weight (V, H) is both the table of embeddings and the decoder; ids (B, S) → logits (B, S, V).
    """
    hidden = np.tanh(weight[ids])  # (B, S, H)
    return hidden @ weight.T, (ids, hidden, weight)


@exercise(
    "11",
    outputs="dweight",
    trials=lambda draw: [
        gradient_trial(lambda weight: tied_model(weight, IDS), {"weight": draw.matrix(7, 6)})
    ],
    hints=(
        "The weight was used in two places. Write down the gradient of each as if they were two weights.",
        "As a decoder: a linear map, dlogitsᵀ h, which gives every row something. As a table: go on through "
        "h = tanh to the embeddings, and add to the rows that were looked up.",
        "dweight = dlogitsᵀ h over all rows; dhidden = dlogits W; dembedded = dhidden (1 − h²); then "
        "np.add.at(dweight, ids, dembedded), which adds to what is there.",
    ),
)
def tied_backward(dlogits, cache):
    ids, hidden, weight = cache
    vocabulary, size = weight.shape
    dweight = dlogits.reshape(-1, vocabulary).T @ hidden.reshape(-1, size)  # as the decoder (V, H)
    dembedded = (dlogits @ weight) * (1 - hidden**2)  # (B, S, H)
    np.add.at(dweight, ids, dembedded)  # as the table
    return dweight


def _shares(dlogits, cache):
    """The decoder's share (V, H), the gradient of the embeddings (B, S, H), and the table's share (V, H)."""
    ids, hidden, weight = cache
    vocabulary, size = weight.shape
    decoder = dlogits.reshape(-1, vocabulary).T @ hidden.reshape(-1, size)
    dembedded = (dlogits @ weight) * (1 - hidden**2)
    table = np.zeros_like(weight)
    np.add.at(table, ids, dembedded)
    return decoder, dembedded, table


@tied_backward.mistake(
    "This is only what the weight contributes as a decoder. It is also the table that made h: go on through "
    "tanh to the embeddings, and add."
)
def the_decoders_share_only(dlogits, cache):
    return _shares(dlogits, cache)[0]


@tied_backward.mistake(
    "This is only what the weight contributes as a table. It also is the decoder, and as such gets dlogitsᵀ "
    "h."
)
def the_tables_share_only(dlogits, cache):
    return _shares(dlogits, cache)[2]


@tied_backward.mistake(
    "You take the mean of the two. One weight with two uses moves the loss in two ways, and in full: a sum."
)
def mean_of_the_two(dlogits, cache):
    decoder, _, table = _shares(dlogits, cache)
    return (decoder + table) / 2


@tied_backward.mistake(
    "The second share overwrites the first in all rows that were looked up. Gradients accumulate: add."
)
def the_second_overwrites_the_first(dlogits, cache):
    dweight, _, table = _shares(dlogits, cache)
    looked_up = np.unique(cache[0])
    dweight[looked_up] = table[looked_up]
    return dweight


@tied_backward.mistake(
    "An id that occurs several times keeps one of its gradients: dweight[ids] += … adds once for each id. "
    "np.add.at adds once for each place."
)
def repeated_ids_count_once(dlogits, cache):
    dweight, dembedded, _ = _shares(dlogits, cache)
    dweight[cache[0]] += dembedded
    return dweight


@tied_backward.mistake("The tanh was skipped on the way to the embeddings: dembedded = dhidden (1 − h²).")
def tanh_skipped(dlogits, cache):
    ids, _, weight = cache
    dweight = _shares(dlogits, cache)[0]
    np.add.at(dweight, ids, dlogits @ weight)
    return dweight


@tied_backward.mistake(
    "The derivative of tanh is taken at the wrong place: it is 1 − h², where h is the tanh already, not "
    "1 − tanh(h)²."
)
def tanh_taken_twice(dlogits, cache):
    ids, hidden, weight = cache
    dweight = _shares(dlogits, cache)[0]
    np.add.at(dweight, ids, (dlogits @ weight) * (1 - np.tanh(hidden) ** 2))
    return dweight
