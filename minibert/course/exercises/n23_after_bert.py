"""23 After BERT: RoBERTa's positions, ALBERT's shared layer, XLNet's masks, DeBERTa's backward pass."""

import math
from types import SimpleNamespace

import numpy as np

from minibert.arrays import Array
from minibert.course.exercise import Trial, exercise, gradient_trial
from minibert.gradcheck import Draws
from minibert.ops.stable_softmax import softmax, softmax_backward
from minibert.variants.roberta import RobertaEmbeddings

# -- RoBERTa: positions that count from the padding id ----------------------------------------------------

ON_THE_RIGHT = np.array([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0], [1, 1, 0, 0, 0, 0]])
ON_THE_LEFT = ON_THE_RIGHT[:, ::-1].copy()


def _library_positions(mask, padding):
    """The positions that the library's RoBERTa gives to ids, where padding has the padding id."""
    ids = np.where(mask > 0, padding + 1, padding)
    return RobertaEmbeddings.position_ids(SimpleNamespace(padding=padding), ids, ids)  # type: ignore[arg-type]


@exercise(
    "23",
    outputs="positions",
    trials=lambda draw: [
        Trial({"mask": ON_THE_RIGHT, "padding": 1}, "padding on the right"),
        Trial({"mask": ON_THE_LEFT, "padding": 3}, "padding on the left, id 3"),
    ],
    reference=_library_positions,
    level=1,
    minutes=10,
    needs="the table of positions of [06](06_embeddings.ipynb), and `np.cumsum`",
    hints=(
        "Which number does the first token of a text get? It does not depend on how much padding is before "
        "it.",
        "Count the real tokens of each row from left to right: a running sum of the mask along axis 1. At "
        "padding, this count has to become 0.",
        "np.cumsum(mask, axis=1) * mask + padding.",
    ),
)
def positions_from_padding(mask, padding):
    return np.cumsum(mask, axis=1) * mask + padding


@positions_from_padding.mistake(
    "You count the columns, so padding on the left pushes a text to higher positions. Count the real tokens: "
    "a running sum of the mask."
)
def columns_counted(mask, padding):
    return (np.arange(mask.shape[1]) + 1) * mask + padding


@positions_from_padding.mistake(
    "Padding keeps the count of the token before it. But all padding has one position, the padding id: "
    "multiply the count by the mask before you add."
)
def padding_keeps_the_count(mask, padding):
    return np.cumsum(mask, axis=1) + padding


@positions_from_padding.mistake(
    "The first token has the padding's own row. Counting from 1 puts it one further, at padding + 1."
)
def the_first_token_on_the_row_of_padding(mask, padding):
    return (np.cumsum(mask, axis=1) - 1) * mask + padding


@positions_from_padding.mistake(
    "These are BERT's positions, counted from 0. RoBERTa's table begins with the rows up to the padding id, "
    "which no token of a text uses."
)
def counted_from_zero(mask, padding):
    return (np.cumsum(mask, axis=1) - 1) * mask


@positions_from_padding.mistake(
    "Padding has position 0. Its position is the padding id: add it after you have multiplied by the mask."
)
def padding_at_zero(mask, padding):
    return (np.cumsum(mask, axis=1) + padding) * mask


@positions_from_padding.mistake(
    "The running sum goes down the batch: that is axis 0. The tokens of one text are along axis 1."
)
def counted_down_the_batch(mask, padding):
    return np.cumsum(mask, axis=0) * mask + padding


@positions_from_padding.mistake(
    "The count goes on from one text into the next: without an axis, np.cumsum reads the whole array as one "
    "row."
)
def counted_through_the_batch(mask, padding):
    return np.cumsum(mask).reshape(mask.shape) * mask + padding


@positions_from_padding.mistake(
    "The count begins after 1, whatever the padding id is. It is 1 in RoBERTa's vocabulary, but here it is "
    "an argument."
)
def always_behind_one(mask, padding):
    return np.cumsum(mask, axis=1) * mask + 1


# -- ALBERT: one layer, used several times ----------------------------------------------------------------

USES = 3


def shared_layers(x: Array, weight: Array, bias: Array) -> tuple[Array, tuple]:
    """x ← x + tanh(x Wᵀ + b), three times with the same W and b: x and y (B, S, H).

    weight (H, H), bias (H,). The cache is (inputs, tanhs, weight), of which the first two are lists with a
    (B, S, H) for each use.
    """
    inputs, tanhs = [], []
    for _ in range(USES):
        inputs.append(x)
        tanhs.append(np.tanh(x @ weight.T + bias))
        x = x + tanhs[-1]
    return x, (inputs, tanhs, weight)


def _rows(array: Array) -> Array:
    return array.reshape(-1, array.shape[-1])


@exercise(
    "23",
    outputs="dx dweight dbias",
    trials=lambda draw: [
        gradient_trial(
            shared_layers,
            {"x": draw.normal(2, 3, 4), "weight": draw.matrix(4, 4), "bias": draw.normal(4)},
        )
    ],
    level=2,
    minutes=20,
    needs=(
        "the residual connection of [10](10_encoder.ipynb), the linear map of [02](02_linear.ipynb), and the "
        "matrix with two uses of [11](11_heads_losses.ipynb)"
    ),
    hints=(
        "First pretend that there are three layers with their own weights, and write the backward pass of "
        "one. Which of them comes first on the way back?",
        "From the last use to the first: through the tanh, then to W, to b and to the input. The gradient of "
        "the input is the residual's plus the branch's. What W and b get is added up.",
        "for x, t in zip(inputs[::-1], tanhs[::-1]): dz = dout * (1 − t²); dweight += dzᵀ x; dbias += the "
        "sum of dz; dout = dout + dz @ weight. At the end dout is dx.",
    ),
    hints_for={
        "dweight dbias": (
            "dx is right. The weight and the bias were used three times.",
            "Each use has a share: dzᵀ x and the sum of dz, with the x and the dz of this use.",
            "Add them up in the loop: dweight += …, dbias += ….",
        ),
        "dx": (
            "The weight's gradient is right, so your loop is, too. What is left of dout after the last step?",
            "Each use passes on dout + dz W, the residual's share and the branch's.",
            "Return what dout is after the loop.",
        ),
    },
)
def shared_layer_backward(dout, cache):
    return _backward(dout, cache)


def _backward(dout, cache, residual=True, slope=lambda t: 1 - t**2, order=-1, first=False):
    """The gradients, with one thing done in another way."""
    inputs, tanhs, weight = cache
    dweight, dbias = np.zeros_like(weight), np.zeros(len(weight))
    for x, t in list(zip(inputs, tanhs, strict=True))[::order]:
        dz = dout * slope(t)
        dweight += _rows(dz).T @ _rows(inputs[0] if first else x)
        dbias += _rows(dz).sum(axis=0)
        dout = dout * residual + dz @ weight
    return dout, dweight, dbias


@shared_layer_backward.mistake(
    "Each use overwrites the gradient of the one before, so that only the first use is left. All three have "
    "a share in the weight's gradient: dweight += …, dbias += …."
)
def the_first_use_only(dout, cache):
    inputs, tanhs, weight = cache
    dx, *_ = _backward(dout, cache)
    above, *_ = _backward(dout, (inputs[1:], tanhs[1:], weight))
    _, dweight, dbias = _backward(above, (inputs[:1], tanhs[:1], weight))
    return dx, dweight, dbias


@shared_layer_backward.mistake(
    "You go back through the last use only. Below it the same layer was used twice more: what it passes on "
    "is the dout of the use before."
)
def the_last_use_only(dout, cache):
    inputs, tanhs, weight = cache
    return _backward(dout, (inputs[-1:], tanhs[-1:], weight))


@shared_layer_backward.mistake(
    "You take the mean over the uses. But W affects the result at every use, and fully: take the sum."
)
def mean_over_the_uses(dout, cache):
    dx, dweight, dbias = _backward(dout, cache)
    return dx, dweight / USES, dbias / USES


@shared_layer_backward.mistake(
    "The residual's gradient is missing: x goes on past the layer, so dx = dout + dz W."
)
def residual_forgotten(dout, cache):
    return _backward(dout, cache, residual=False)


@shared_layer_backward.mistake(
    "The uses are taken in the order of the forward pass. On the way back the last one comes first, with its "
    "own input and its own tanh."
)
def first_use_first(dout, cache):
    return _backward(dout, cache, order=1)


@shared_layer_backward.mistake(
    "Every use gets the dout of the end. That is right only for the last one; each of the others gets what "
    "the use after it passes on."
)
def the_same_dout_for_all(dout, cache):
    inputs, tanhs, weight = cache
    parts = [_backward(dout, ([x], [t], weight)) for x, t in zip(inputs, tanhs, strict=True)]
    return parts[0][0], sum(part[1] for part in parts), sum(part[2] for part in parts)


@shared_layer_backward.mistake("The tanh is skipped on the way back: dz = dout (1 − t²).")
def shared_tanh_skipped(dout, cache):
    return _backward(dout, cache, slope=np.ones_like)


@shared_layer_backward.mistake(
    "The derivative of the tanh is taken at the wrong place: it is 1 − t², where t is already the tanh."
)
def shared_tanh_taken_twice(dout, cache):
    return _backward(dout, cache, slope=lambda t: 1 - np.tanh(t) ** 2)


@shared_layer_backward.mistake(
    "All three shares of dweight are made with the first input. Each use had its own: it is in the cache."
)
def the_first_input_for_all(dout, cache):
    return _backward(dout, cache, first=True)


# -- XLNet: who sees whom in an order ---------------------------------------------------------------------

ORDERS = (np.array([3, 0, 5, 1, 4, 2]), np.array([2, 0, 3, 1]))


def _masks_by_a_loop(order):
    """Both masks, one token of the order after another."""
    content = np.zeros((len(order), len(order)), int)
    query = content.copy()
    for place, token in enumerate(order):
        content[token, order[: place + 1]] = 1
        query[token, order[:place]] = 1
    return {"content": content, "query": query}


@exercise(
    "23",
    outputs="content query",
    trials=lambda draw: [
        Trial({"order": order}, f"S = {len(order)}", independent=_masks_by_a_loop(order)) for order in ORDERS
    ],
    independent="a loop",
    level=2,
    minutes=15,
    needs="masks as in [08](08_attention.ipynb), and broadcasting",
    hints=(
        "`order` says which token is at which place. What you compare are the places: at which place is "
        "token i, and at which is token j?",
        "The place of each token is the inverse of the permutation: rank = np.argsort(order). Rows of a mask "
        "are queries, columns are keys.",
        "rank = np.argsort(order); content = rank[None, :] <= rank[:, None]; query = rank[None, :] < "
        "rank[:, None].",
    ),
    hints_for={
        "query": (
            "The content's mask is right. A query must not know the token that it has to predict.",
            "It sees what comes before its place, but not the place itself.",
            "query = rank[None, :] < rank[:, None].",
        ),
        "content": (
            "The query's mask is right. What does the content of a token see in addition?",
            "Its own token.",
            "content = rank[None, :] <= rank[:, None].",
        ),
    },
)
def permutation_masks(order):
    rank = np.argsort(order)
    return rank[None, :] <= rank[:, None], rank[None, :] < rank[:, None]


@permutation_masks.mistake(
    "The order itself is compared. order[t] is the token at place t; you need the reverse, the place of each "
    "token: np.argsort(order)."
)
def order_taken_for_the_rank(order):
    return order[None, :] <= order[:, None], order[None, :] < order[:, None]


@permutation_masks.mistake(
    "The masks are transposed: a token sees those that come after it in the order. Rows are queries, so "
    "token j is seen by i where rank[j], a column, is not larger than rank[i], a row."
)
def sees_what_comes_after(order):
    return tuple(mask.T.copy() for mask in permutation_masks.solution(order))


@permutation_masks.mistake(
    "The query sees its own token, the one that it has to predict. With <= instead of <, the loss would soon "
    "be 0, and nothing would be learned."
)
def query_sees_itself(order):
    content, _ = permutation_masks.solution(order)
    return content, content.copy()


@permutation_masks.mistake(
    "The content does not see its own token. Later tokens read this token from it, so it has to: <=."
)
def content_does_not_see_itself(order):
    _, query = permutation_masks.solution(order)
    return query.copy(), query


@permutation_masks.mistake(
    "True and False are exchanged. Here True means “sees”; perm_mask in the library and in transformers has "
    "it the other way around."
)
def true_where_hidden(order):
    content, query = permutation_masks.solution(order)
    return ~content, ~query


@permutation_masks.mistake(
    "The order is not used: this is left to right. Place and token are the same only there."
)
def left_to_right(order):
    everything = np.ones((len(order), len(order)), bool)
    return np.tril(everything), np.tril(everything, -1)


@permutation_masks.mistake(
    "Only the rows are tokens; the columns are still places of the order. Both axes are tokens, in the order "
    "of the text."
)
def columns_by_place(order):
    rank, everything = np.argsort(order), np.ones((len(order), len(order)), bool)
    return np.tril(everything)[rank], np.tril(everything, -1)[rank]


@permutation_masks.mistake(
    "Row t is that of the t-th token of the order. It should be that of token t in the text: words do not "
    "move."
)
def rows_by_place(order):
    rank, everything = np.argsort(order), np.ones((len(order), len(order)), bool)
    return np.tril(everything)[:, rank], np.tril(everything, -1)[:, rank]


# -- DeBERTa: content and position apart ------------------------------------------------------------------


def distance_rows(length: int, reach: int) -> Array:
    """δ(i, j): the row of the tables that stands for the distance i − j, (S, S).

    Distances from −reach to reach − 1 have rows of their own; what is farther away has the nearest of them.
    """
    distances = np.arange(length)[:, None] - np.arange(length)[None, :]
    return (distances + reach).clip(0, 2 * reach - 1)


def disentangled_attention(
    q: Array, k: Array, v: Array, key_table: Array, query_table: Array, bias: Array, rows: Array
) -> tuple[Array, tuple]:
    """One head of DeBERTa, where δ is ``rows``; the scores of query i and key j are

        (q[i]·k[j] + q[i]·key_table[δ(i, j)] + k[j]·query_table[δ(j, i)]) / √(3D) + bias

    q, k, v (B, S, D), both tables (2K, D), bias (B, 1, S), rows (S, S) → y (B, S, D). The cache is
    (q, k, v, p, key_table, query_table, rows).
    """
    by_content = q @ k.transpose(0, 2, 1)  # (B, S, S)
    by_key_distance = (q[:, :, None] * key_table[rows]).sum(axis=-1)
    by_query_distance = (k[:, None] * query_table[rows.T]).sum(axis=-1)
    scores = (by_content + by_key_distance + by_query_distance) / math.sqrt(3 * q.shape[-1])
    p, _ = softmax(scores + bias)
    return p @ v, (q, k, v, p, key_table, query_table, rows)


def _disentangled_trials(draw: Draws) -> list[Trial]:
    """B = 2, S = 5, D = 4, K = 2, so that most distances are clipped; the second sequence is padded."""
    inputs = {name: draw.normal(2, 5, 4) for name in "qkv"}
    inputs |= {name: draw.normal(4, 4) for name in ("key_table", "query_table")}
    bias = np.where(np.array([[[1, 1, 1, 1, 1]], [[1, 1, 1, 1, 0]]]), 0.0, -10000.0)
    rows = distance_rows(5, 2)

    def forward(q: Array, k: Array, v: Array, key_table: Array, query_table: Array) -> tuple[Array, tuple]:
        return disentangled_attention(q, k, v, key_table, query_table, bias, rows)

    return [gradient_trial(forward, inputs)]


@exercise(
    "23",
    outputs="dq dk dv dkey_table dquery_table",
    trials=_disentangled_trials,
    level=3,
    minutes=40,
    needs="the backward pass of attention, and the table of distances, of [08](08_attention.ipynb)",
    hints=(
        "dv and the gradient of the scores are those of any attention. Three terms were added to make the "
        "scores, and each gets the same gradient: write down for each which two things it multiplied.",
        "q[i] met k[j] and key_table[rows[i, j]]; k[j] met q[i] and query_table[rows[j, i]]. So dq and dk "
        "have two terms each, and each row of a table collects from all pairs with its distance, in all "
        "sequences.",
        "d = ds / √(3D); dq = d k + Σⱼ d[:, i, j] key_table[rows[i, j]]; dk = dᵀ q + Σᵢ d[:, i, j] "
        "query_table[rows[j, i]]; np.add.at(dkey_table, rows, Σ over b of d[b, i, j] q[b, i]); "
        "np.add.at(dquery_table, rows.T, Σ over b of d[b, i, j] k[b, j]).",
    ),
    hints_for={
        "dq": (
            "Only dq is missing something. What did q[i] meet besides the keys?",
            "The rows of key_table, one for each key.",
            "Add np.einsum('bij,ijd->bid', d, key_table[rows]).",
        ),
        "dkey_table dquery_table": (
            "Only the tables are left. Where was each of their rows used?",
            "By every pair with this distance, in every sequence: this is a scatter-add, with `rows` as the "
            "ids in one table and its transpose in the other.",
            "np.add.at(dkey_table, rows, np.einsum('bij,bid->ijd', d, q)), and the same with rows.T and k.",
        ),
        "dk dquery_table": (
            "dq and dkey_table are right. What is left is the third term, k[j]·query_table[δ(j, i)].",
            "Mind the order of i and j: pair (i, j) of the scores used row δ(j, i), which is rows.T[i, j].",
            "dk = dᵀ q + np.einsum('bij,ijd->bjd', d, query_table[rows.T]), and np.add.at(dquery_table, "
            "rows.T, np.einsum('bij,bjd->ijd', d, k)).",
        ),
    },
)
def disentangled_backward(dout, cache):
    return _disentangled(dout, cache)


def _disentangled(dout, cache, factor=3, by_position=True, turned=True, add_at=np.add.at, far=True):
    """The gradients, with one thing done in another way."""
    q, k, v, p, key_table, query_table, rows = cache
    ds = softmax_backward(dout @ v.transpose(0, 2, 1), (p,))  # (B, S, S)
    d = ds / math.sqrt(factor * q.shape[-1])
    places = rows.T if turned else rows
    near = d if far else d * ((rows > 0) & (rows < len(key_table) - 1))
    dq = d @ k + by_position * np.einsum("bij,ijd->bid", d, key_table[rows])
    dk = d.transpose(0, 2, 1) @ q + by_position * np.einsum("bij,ijd->bjd", d, query_table[places])
    dkey_table, dquery_table = np.zeros_like(key_table), np.zeros_like(query_table)
    add_at(dkey_table, rows, np.einsum("bij,bid->ijd", near, q))
    add_at(dquery_table, places, np.einsum("bij,bjd->ijd", near, k))
    return dq, dk, p.transpose(0, 2, 1) @ dout, dkey_table, dquery_table


@disentangled_backward.mistake(
    "dq and dk have only the content's share. q met the rows of key_table, too, and k those of query_table."
)
def content_only(dout, cache):
    return _disentangled(dout, cache, by_position=0)


@disentangled_backward.mistake("You divide by √D. With three terms, the scores were divided by √(3D).")
def divided_as_in_bert(dout, cache):
    return _disentangled(dout, cache, factor=1)


@disentangled_backward.mistake(
    "In the third term i and j are exchanged: the key looks back at the query, over the distance δ(j, i). "
    "That is rows.T."
)
def the_same_rows_for_both_tables(dout, cache):
    return _disentangled(dout, cache, turned=False)


@disentangled_backward.mistake(
    "Where several pairs have the same distance, only one of their gradients is kept: table[rows] += … "
    "writes each row once. np.add.at adds every time."
)
def distances_count_once(dout, cache):
    def fancy(table, rows, values):
        table[rows] += values

    return _disentangled(dout, cache, add_at=fancy)


@disentangled_backward.mistake(
    "The gradients of the tables are divided by the batch size. All sequences used them: a sum. If the loss "
    "is a mean, that is in dout already."
)
def tables_averaged_over_the_batch(dout, cache):
    dq, dk, dv, dkey_table, dquery_table = _disentangled(dout, cache)
    return dq, dk, dv, dkey_table / len(dout), dquery_table / len(dout)


@disentangled_backward.mistake(
    "The tables are paired with the wrong vectors: key_table was multiplied by q, and query_table by k."
)
def tables_with_the_wrong_vectors(dout, cache):
    q, k, *others = cache
    dq, dk, dv, *_ = _disentangled(dout, cache)
    v, p, key_table, query_table, rows = others
    d = softmax_backward(dout @ v.transpose(0, 2, 1), (p,)) / math.sqrt(3 * q.shape[-1])
    dkey_table, dquery_table = np.zeros_like(key_table), np.zeros_like(query_table)
    np.add.at(dkey_table, rows, np.einsum("bij,bjd->ijd", d, k))
    np.add.at(dquery_table, rows.T, np.einsum("bij,bid->ijd", d, q))
    return dq, dk, dv, dkey_table, dquery_table


@disentangled_backward.mistake(
    "Pairs that are far apart are left out of the tables. They used the first or the last row: clipping "
    "chooses a row, it does not stop the gradient."
)
def far_pairs_left_out(dout, cache):
    return _disentangled(dout, cache, far=False)


@disentangled_backward.mistake(
    "The softmax is skipped: d is made from dp. But between the scores and the weights there is a softmax."
)
def disentangled_softmax_skipped(dout, cache):
    q, k, v, p, key_table, query_table, rows = cache
    d = dout @ v.transpose(0, 2, 1) / math.sqrt(3 * q.shape[-1])
    dq = d @ k + np.einsum("bij,ijd->bid", d, key_table[rows])
    dk = d.transpose(0, 2, 1) @ q + np.einsum("bij,ijd->bjd", d, query_table[rows.T])
    dkey_table, dquery_table = np.zeros_like(key_table), np.zeros_like(query_table)
    np.add.at(dkey_table, rows, np.einsum("bij,bid->ijd", d, q))
    np.add.at(dquery_table, rows.T, np.einsum("bij,bjd->ijd", d, k))
    return dq, dk, p.transpose(0, 2, 1) @ dout, dkey_table, dquery_table
