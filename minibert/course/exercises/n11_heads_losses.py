"""11 Heads and losses: gathered rows; a number, a table and a pair of matrices that are used twice."""

from dataclasses import replace

import numpy as np

from minibert.arrays import Array
from minibert.course.exercise import Trial, exercise, gradient_trial
from minibert.course.exercises.n06_embeddings import IDS
from minibert.gradcheck import Draws

# -- Gather -------------------------------------------------------------------------------------------

POSITIONS = np.array([5, 1, 10, 6])  # of B·S = 12, in no order


def gather(hidden: Array, positions: Array) -> tuple[Array, tuple]:
    """The rows of hidden (B, S, H) at ``positions`` (P,), counted through the batch → rows (P, H), cache."""
    return hidden.reshape(-1, hidden.shape[-1])[positions], (positions, hidden.shape)


@exercise(
    "11",
    outputs="dhidden",
    trials=lambda draw: [
        gradient_trial(lambda hidden: gather(hidden, POSITIONS), {"hidden": draw.normal(3, 4, 5)})
    ],
    level=1,
    minutes=5,
    needs="the backward pass of a look-up of [06](06_embeddings.ipynb)",
    hints=(
        "What is the gradient of a position that nobody picked? And of one that was?",
        "dhidden is zeros of the shape in the cache; the rows of drows go back to where they came from.",
        "dhidden = np.zeros(shape); dhidden.reshape(-1, H)[positions] = drows, as the reshape is a view.",
    ),
)
def gather_backward(drows, cache):
    positions, shape = cache
    dhidden = np.zeros(shape)
    dhidden.reshape(-1, shape[-1])[positions] = drows
    return dhidden


@gather_backward.mistake("The rows went to the first positions. They belong where they were taken from.")
def rows_in_front(drows, cache):
    _, shape = cache
    dhidden = np.zeros(shape)
    dhidden.reshape(-1, shape[-1])[: len(drows)] = drows
    return dhidden


@gather_backward.mistake(
    "Every position has a gradient. Those that were not picked had no part in the loss: theirs is 0."
)
def all_positions_filled(drows, cache):
    positions, shape = cache
    rows = np.repeat(drows, -(-shape[0] * shape[1] // len(drows)), axis=0)[: shape[0] * shape[1]]
    rows[positions] = drows
    return rows.reshape(shape)


@gather_backward.mistake(
    "The positions are counted along the wrong axis: the row of position s in sequence b is b·S + s, not s·B "
    "+ b."
)
def sequences_run_fastest(drows, cache):
    positions, (batch, length, size) = cache
    rows = np.zeros((length * batch, size))
    rows[positions] = drows
    return rows.reshape(length, batch, size).transpose(1, 0, 2).copy()


@gather_backward.mistake("dhidden is (B·S, H); it has the shape of hidden, (B, S, H).")
def left_in_rows(drows, cache):
    return gather_backward.solution(drows, cache).reshape(-1, drows.shape[-1])


@gather_backward.mistake(
    "The gradients are divided by the number of rows. If the loss is a mean, drows contains that already."
)
def divided_by_the_rows(drows, cache):
    return gather_backward.solution(drows, cache) / len(drows)


# -- A number that is used twice ------------------------------------------------------------------------


def two_uses(w: Array, x: Array) -> tuple[Array, tuple]:
    """y = w tanh(w x), each number by itself: w and x (N,) → y (N,), (w, x, tanh(w x))."""
    t = np.tanh(w * x)
    return w * t, (w, x, t)


def _two_uses_trials(draw: Draws) -> list[Trial]:
    """The numeric gradient of the whole, and those of the two uses as if they were two numbers."""
    w, x = draw.normal(6), draw.normal(6)
    whole = gradient_trial(lambda w: two_uses(w, x), {"w": w})
    outside = gradient_trial(lambda w_out: (w_out * np.tanh(w * x), ()), {"w_out": w.copy()})
    inside = gradient_trial(lambda w_in: (w * np.tanh(w_in * x), ()), {"w_in": w.copy()})
    return [replace(whole, independent=outside.independent | inside.independent | whole.independent)]


@exercise(
    "11",
    outputs="dw_out dw_in dw",
    trials=_two_uses_trials,
    in_order=True,
    level=1,
    minutes=10,
    needs="the product rule and the chain rule of [01](01_gradients.ipynb), and tanh′ = 1 − tanh²",
    hints=(
        "Write y = a · tanh(b x) and differentiate with respect to a, then to b. Only then set both to w.",
        "dw_out is dout times the other factor, t. dw_in goes through the tanh: its derivative is 1 − t².",
        "dw_out = dout · t; dw_in = dout · w · (1 − t²) · x; dw = dw_out + dw_in.",
    ),
    hints_for={
        "dw": (
            "Both shares are right. Both uses belong to one number: how do their gradients combine?",
            "Moving w moves y in both places at once, each in full.",
            "dw = dw_out + dw_in.",
        )
    },
)
def two_uses_in_steps(dout, cache):
    w, x, t = cache
    dw_out = dout * t
    dw_in = dout * w * (1 - t**2) * x
    return dw_out, dw_in, dw_out + dw_in


@two_uses_in_steps.mistake("dw is the mean of the two shares. Both uses move the loss in full: a sum.")
def mean_of_both_uses(dout, cache):
    dw_out, dw_in, dw = two_uses_in_steps.solution(dout, cache)
    return dw_out, dw_in, dw / 2


@two_uses_in_steps.mistake("dw is the share in front alone. The use inside the tanh belongs to it, too.")
def front_alone(dout, cache):
    dw_out, dw_in, _ = two_uses_in_steps.solution(dout, cache)
    return dw_out, dw_in, dw_out.copy()


@two_uses_in_steps.mistake("dw is a product of the two shares. Gradients of several uses are added.")
def shares_multiplied(dout, cache):
    dw_out, dw_in, _ = two_uses_in_steps.solution(dout, cache)
    return dw_out, dw_in, dw_out * dw_in


@two_uses_in_steps.mistake("In dw_in the inner derivative is missing: d(w x)/dw = x.")
def inner_derivative_left_out(dout, cache):
    w, _, t = cache
    dw_out, dw_in = dout * t, dout * w * (1 - t**2)
    return dw_out, dw_in, dw_out + dw_in


@two_uses_in_steps.mistake("In dw_in the factor in front is missing: y is tanh(w x) times w.")
def factor_in_front_left_out(dout, cache):
    _, x, t = cache
    dw_out, dw_in = dout * t, dout * (1 - t**2) * x
    return dw_out, dw_in, dw_out + dw_in


@two_uses_in_steps.mistake("The derivative of tanh is 1 − t², and t is the tanh already, not its argument.")
def tanh_of_the_tanh(dout, cache):
    w, x, t = cache
    dw_out, dw_in = dout * t, dout * w * (1 - np.tanh(t) ** 2) * x
    return dw_out, dw_in, dw_out + dw_in


# -- A table that is used twice ---------------------------------------------------------------------------


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
    level=2,
    minutes=15,
    needs="the smallest case above, and scatter-add of [06](06_embeddings.ipynb)",
    hints=(
        "The weight was used in two places. Write down the gradient of each as if they were two weights.",
        "As a decoder: a linear map, dlogitsᵀ h, which gives every row a gradient. As a table: go on through "
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
    "This is only what the weight contributes as a table. It is also the decoder, which gives it dlogitsᵀ h."
)
def the_tables_share_only(dlogits, cache):
    return _shares(dlogits, cache)[2]


@tied_backward.mistake(
    "You take the mean of the two. One weight with two uses moves the loss in two ways, each in full: a sum."
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


# -- Two matrices, each used twice ------------------------------------------------------------------------


def factorised_model(table: Array, projection: Array, ids: Array) -> tuple[Array, tuple]:
    """ALBERT's two matrices, tied and without an encoder: logits = (h M) Tᵀ with h = tanh(T[ids] Mᵀ).

    table T (V, E), projection M (H, E), ids (B, S) → logits (B, S, V), and all that the backward pass needs.
    """
    embedded = table[ids]  # (B, S, E)
    hidden = np.tanh(embedded @ projection.T)  # (B, S, H)
    back = hidden @ projection  # (B, S, E)
    return back @ table.T, (ids, embedded, hidden, back, table, projection)


@exercise(
    "11",
    outputs="dtable dprojection",
    trials=lambda draw: [
        gradient_trial(
            lambda table, projection: factorised_model(table, projection, IDS),
            {"table": draw.matrix(7, 3), "projection": draw.matrix(6, 3)},
        )
    ],
    level=3,
    minutes=25,
    needs="sections 4 and 5, and a drawing",
    hints=(
        "There are four places: two uses of each matrix. Go back from the logits, and note a share at each.",
        "logits = back Tᵀ gives the table its first share, back = hidden M the projection. Then through the "
        "tanh: its argument is embedded Mᵀ, which gives the projection its second share, and the look-up the "
        "table.",
        "dtable = dlogitsᵀ back; dback = dlogits T; dprojection = hiddenᵀ dback; da = (dback Mᵀ)(1 − h²); "
        "dprojection += daᵀ embedded; np.add.at(dtable, ids, da M); all positions in rows.",
    ),
    hints_for={
        "dtable": (
            "The projection is right. Where is the table used?",
            "As the decoder, dlogitsᵀ back, and as the table of embeddings, in the rows that were looked up.",
            "np.add.at(dtable, ids, da @ projection), added to dlogitsᵀ back.",
        ),
        "dprojection": (
            "The table is right. Where is the projection used?",
            "Before the tanh and after it. After it, back = hidden M: hidden and dback change places.",
            "dprojection = hiddenᵀ dback + daᵀ embedded, all positions in rows.",
        ),
    },
)
def factorised_backward(dlogits, cache):
    (dtable, rows), (behind, front) = _four_shares(dlogits, cache)
    np.add.at(dtable, cache[0], rows)
    return dtable, behind + front


def _four_shares(dlogits, cache):
    """As decoder and as table (the latter still a row for each place); after the tanh and before it."""
    _, embedded, hidden, back, table, projection = cache
    dtable = _rows(dlogits).T @ _rows(back)  # (V, E)
    dback = dlogits @ table  # (B, S, E)
    behind = _rows(hidden).T @ _rows(dback)  # (H, E)
    dsum = (dback @ projection.T) * (1 - hidden**2)  # (B, S, H)
    return (dtable, dsum @ projection), (behind, _rows(dsum).T @ _rows(embedded))


def _rows(array: Array) -> Array:
    return array.reshape(-1, array.shape[-1])


@factorised_backward.mistake(
    "The projection has its share after the tanh only. It also leads from the embeddings to the tanh: daᵀ "
    "embedded."
)
def projection_behind_only(dlogits, cache):
    _, (behind, _) = _four_shares(dlogits, cache)
    return factorised_backward.solution(dlogits, cache)[0], behind


@factorised_backward.mistake(
    "The projection has its share before the tanh only. It is used after it, too: hiddenᵀ dback."
)
def projection_in_front_only(dlogits, cache):
    _, (_, front) = _four_shares(dlogits, cache)
    return factorised_backward.solution(dlogits, cache)[0], front


@factorised_backward.mistake(
    "The table has its share as the decoder only. The rows that were looked up have another one."
)
def table_as_decoder_only(dlogits, cache):
    (dtable, _), _ = _four_shares(dlogits, cache)
    return dtable, factorised_backward.solution(dlogits, cache)[1]


@factorised_backward.mistake(
    "The table has its share as embeddings only. It is the decoder, too: dlogitsᵀ back."
)
def table_as_embeddings_only(dlogits, cache):
    (dtable, rows), _ = _four_shares(dlogits, cache)
    dtable = np.zeros_like(dtable)
    np.add.at(dtable, cache[0], rows)
    return dtable, factorised_backward.solution(dlogits, cache)[1]


@factorised_backward.mistake(
    "An id that occurs several times keeps one of its gradients: use np.add.at, which adds once for each "
    "place."
)
def places_count_once(dlogits, cache):
    (dtable, rows), (behind, front) = _four_shares(dlogits, cache)
    dtable[cache[0]] += rows
    return dtable, behind + front


@factorised_backward.mistake("Both gradients are means over the two uses. Every use counts in full: sums.")
def means_over_the_uses(dlogits, cache):
    dtable, dprojection = factorised_backward.solution(dlogits, cache)
    return dtable / 2, dprojection / 2


@factorised_backward.mistake("The tanh was skipped on the way back: da = dh (1 − h²).")
def factorised_tanh_skipped(dlogits, cache):
    ids, embedded, _, _, table, projection = cache
    (dtable, _), (behind, _) = _four_shares(dlogits, cache)
    dsum = dlogits @ table @ projection.T
    np.add.at(dtable, ids, dsum @ projection)
    return dtable, behind + _rows(dsum).T @ _rows(embedded)
