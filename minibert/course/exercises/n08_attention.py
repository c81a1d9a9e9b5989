"""08 Attention: one head, forward; backward for one query, then for all; a bias for each distance."""

import math
from dataclasses import replace

import numpy as np

from minibert.arrays import Array
from minibert.course.exercise import Trial, exercise, gradient_trial
from minibert.gradcheck import MASK, Draws
from minibert.ops.attention import attention_backward as library_backward
from minibert.ops.attention import attention_bias
from minibert.ops.stable_softmax import softmax, softmax_backward


def one_head(q: Array, k: Array, v: Array, bias: Array) -> tuple[Array, tuple]:
    """y = p v,   p = softmax(q kᵀ / √D + bias): ``ops.attention`` for a single head, without dropout.

    q, k, v (B, S, D), bias (B, 1, S) → y (B, S, D).
    """
    scores = q @ k.transpose(0, 2, 1) / math.sqrt(q.shape[-1]) + bias  # (B, S, S)
    p, _ = softmax(scores)
    return p @ v, (q, k, v, p)


# -- Forward ------------------------------------------------------------------------------------------


def _bias(draw: Draws) -> Array:
    """The bias of a mask that pads two of three sequences: (B, 1, S)."""
    return attention_bias(draw.device.asarray(MASK), "float64")[:, 0]


def _forward_trials(draw: Draws) -> list[Trial]:
    """B = 3 sequences of S = 4, D = 5: two of them padded; left to right; and with any numbers as bias."""
    causal = attention_bias(np.ones((1, 4)), "float64", causal=True)[:, 0]  # (1, S, S)
    biases = {"padded": _bias(draw), "left to right": causal, "any bias": draw.normal(3, 1, 4)}
    return [
        Trial({**{name: draw.normal(3, 4, 5) for name in "qkv"}, "bias": bias}, label)
        for label, bias in biases.items()
    ]


@exercise(
    "08",
    outputs="y cached_q cached_k cached_v p",
    trials=_forward_trials,
    reference=one_head,
    views=True,
    level=1,
    minutes=15,
    needs=(
        "matrix products of stacks, as in [02](02_linear.ipynb), and the softmax from "
        "[03](03_softmax_cross_entropy.ipynb)"
    ),
    hints=(
        "Write down the shapes first: scores and p are (B, S, S), with one row per query and one column per "
        "key.",
        "All scores at once are q kᵀ, where ᵀ exchanges the last two axes. Divide by √D, then add the bias. "
        "Each row of p is a softmax, and y is a product of p and v.",
        "scores = q @ k.transpose(0, 2, 1) / √D + bias; p, _ = softmax(scores); y = p @ v. Return "
        "y, (q, k, v, p).",
    ),
    hints_for={
        "y": (
            "p is right. What is left is the mean of the values with these weights.",
            "y[i] = Σⱼ p[i, j] v[j]: a matrix product.",
            "y = p @ v.",
        ),
        "cached_q cached_k cached_v": (
            "y and p are right. What is wrong is in the rest of the cache.",
            "The cache is a tuple of four arrays: q, k and v as they came in, then p.",
            "The last line is: return y, (q, k, v, p).",
        ),
        "cached_q cached_k cached_v p": (
            "y is right. What is wrong is the second thing that you return, the cache.",
            "The cache is a tuple of four arrays: q, k and v as they came in, then the weights p.",
            "The last line is: return y, (q, k, v, p).",
        ),
    },
)
def attention(q, k, v, bias):
    scores = q @ k.transpose(0, 2, 1) / math.sqrt(q.shape[-1]) + bias  # (B, S, S)
    p, _ = softmax(scores)
    return p @ v, (q, k, v, p)


def _with_scores(scores, q, k, v):
    """What ``attention`` returns, from its scores."""
    p, _ = softmax(scores)
    return p @ v, (q, k, v, p)


@attention.mistake("The scores are not divided by √D. Section 2 is about what happens then.")
def scores_not_divided(q, k, v, bias):
    return _with_scores(q @ k.transpose(0, 2, 1) + bias, q, k, v)


@attention.mistake("The scores are divided by D; it should be its root, √D.")
def divided_by_the_size(q, k, v, bias):
    return _with_scores(q @ k.transpose(0, 2, 1) / q.shape[-1] + bias, q, k, v)


@attention.mistake(
    "The scores are divided by √S, the root of the length of the text. D is the last axis of q: q.shape[-1]."
)
def divided_by_the_length(q, k, v, bias):
    return _with_scores(q @ k.transpose(0, 2, 1) / math.sqrt(q.shape[1]) + bias, q, k, v)


@attention.mistake("The bias is missing. It hides keys: add it to the scores, before the softmax.")
def bias_missing(q, k, v, bias):
    return _with_scores(q @ k.transpose(0, 2, 1) / math.sqrt(q.shape[-1]), q, k, v)


@attention.mistake(
    "The bias is divided by √D as well, but only the products should be. (−10000 would survive that; a "
    "learned bias would not.)"
)
def bias_divided(q, k, v, bias):
    return _with_scores((q @ k.transpose(0, 2, 1) + bias) / math.sqrt(q.shape[-1]), q, k, v)


@attention.mistake(
    "The bias is added after the softmax. It has to be added to the scores, before the softmax: only then do "
    "the weights of a row still sum to 1."
)
def bias_added_to_the_weights(q, k, v, bias):
    p = softmax(q @ k.transpose(0, 2, 1) / math.sqrt(q.shape[-1]))[0] + bias
    return p @ v, (q, k, v, p)


@attention.mistake(
    "The softmax runs over the queries: the columns of p sum to 1. Each query divides its attention among "
    "the keys: the softmax is over the last axis."
)
def softmax_over_the_queries(q, k, v, bias):
    scores = q @ k.transpose(0, 2, 1) / math.sqrt(q.shape[-1]) + bias
    p = softmax(scores.swapaxes(1, 2))[0].swapaxes(1, 2)
    return p @ v, (q, k, v, p)


@attention.mistake(
    "Queries and keys have changed places: in k qᵀ a row belongs to a key. Take q kᵀ, with one row per query."
)
def keys_ask_queries(q, k, v, bias):
    return _with_scores(k @ q.transpose(0, 2, 1) / math.sqrt(q.shape[-1]) + bias, q, k, v)


@attention.mistake(
    "k is reshaped where it has to be transposed. A reshape reads the numbers in the same order and only "
    "breaks the lines elsewhere; k.transpose(0, 2, 1) exchanges the last two axes."
)
def keys_reshaped(q, k, v, bias):
    turned = k.reshape(len(k), k.shape[2], k.shape[1])
    return _with_scores(q @ turned / math.sqrt(q.shape[-1]) + bias, q, k, v)


@attention.mistake(
    "y is pᵀ v. p is square, so the shapes fit even though it is transposed. Row i of p has the weights of "
    "query i, so y = p v."
)
def weights_transposed(q, k, v, bias):
    _, (*_, p) = attention.solution(q, k, v, bias)
    return p.transpose(0, 2, 1) @ v, (q, k, v, p)


@attention.mistake(
    "The cache holds the scores in the place of p. The backward pass of softmax needs its result, p."
)
def scores_in_the_cache(q, k, v, bias):
    y, _ = attention.solution(q, k, v, bias)
    return y, (q, k, v, q @ k.transpose(0, 2, 1) / math.sqrt(q.shape[-1]) + bias)


@attention.mistake("The cache holds q divided by √D. Keep q as it came in; the backward pass divides itself.")
def scaled_queries_in_the_cache(q, k, v, bias):
    y, (*_, p) = attention.solution(q, k, v, bias)
    return y, (q / math.sqrt(q.shape[-1]), k, v, p)


# -- Backward: one query ----------------------------------------------------------------------------------


def one_query(q: Array, k: Array, v: Array, bias: Array) -> tuple[Array, tuple]:
    """A single query: q (D,), k and v (S, D), bias (S,) → y (D,), (q, k, v, p) with p (S,)."""
    p, _ = softmax(k @ q / math.sqrt(len(q)) + bias)
    return p @ v, (q, k, v, p)


def _one_query_trials(draw: Draws) -> list[Trial]:
    """The numeric gradients of the whole, of what follows the scores, and of what follows the weights."""
    inputs = {"q": draw.normal(5), "k": draw.normal(4, 5), "v": draw.normal(4, 5)}
    q, k, v = inputs.values()
    bias = draw.normal(4)
    whole = gradient_trial(lambda q, k, v: one_query(q, k, v, bias), inputs)
    parts = [
        gradient_trial(lambda p: (p @ v, ()), {"p": whole.arguments["cache"][3]}),
        gradient_trial(lambda s: (softmax(s)[0] @ v, ()), {"s": k @ q / math.sqrt(5) + bias}),
        whole,
    ]
    return [replace(whole, independent={n: d for part in parts for n, d in part.independent.items()})]


@exercise(
    "08",
    outputs="dv dp ds dq dk",
    trials=_one_query_trials,
    in_order=True,
    level=1,
    minutes=15,
    needs="the product rule, and `softmax_backward` from [03](03_softmax_cross_entropy.ipynb)",
    hints=(
        "Begin at the end: y = Σⱼ p[j] v[j]. How does y move if one weight p[j] does, and how if the value "
        "v[j] does?",
        "dp[j] is the dot product of dout and v[j], and dv[j] is p[j] dout. From dp to ds it is one call. "
        "Then ask of q, and of k[j]: in which scores was it used?",
        "dv = p[:, None] * dout; dp = v @ dout; ds = softmax_backward(dp, (p,)); dq = ds @ k / √D; "
        "dk = ds[:, None] * q / √D.",
    ),
    hints_for={
        "dk": (
            "dq is right, and so is ds. In which of the scores was k[j] used?",
            "In a single one, s[j] = q · k[j] / √D.",
            "dk = ds[:, None] * q / √D, of shape (S, D).",
        ),
        "dq": (
            "dk is right, and so is ds. In which of the scores was q used?",
            "In all of them, so it collects a sum: from score j it gets ds[j] k[j] / √D.",
            "dq = ds @ k / √D, of shape (D,).",
        ),
        "dq dk": (
            "Everything up to ds is right. The scores are s[j] = q · k[j] / √D + bias[j].",
            "q was used in all S scores, k[j] in one. The derivative of a product is the other factor, and "
            "the √D stays.",
            "dq = ds @ k / √D; dk = ds[:, None] * q / √D.",
        ),
        "ds dq dk": (
            "dv and dp are right. Between p and the scores is a softmax.",
            "Its backward pass takes the gradient of its result and its cache, and the cache is (p,).",
            "ds = softmax_backward(dp, (p,)).",
        ),
        "dv": (
            "Everything but dv is right. What was v[j] multiplied by?",
            "By p[j], the same for all of its D features.",
            "dv = p[:, None] * dout, of shape (S, D).",
        ),
        "dp ds dq dk": (
            "dv is right. p[j] was multiplied by all D numbers of v[j].",
            "So it collects a sum over the features: dp[j] = Σ over d of dout[d] v[j, d].",
            "dp = v @ dout, of shape (S,).",
        ),
    },
)
def one_query_backward(dout, cache):
    q, k, v, p = cache  # (D,), (S, D), (S, D), (S,)
    dv = p[:, None] * dout  # (S, D)
    dp = v @ dout  # (S,)
    ds = softmax_backward(dp, (p,))  # (S,)
    dq = ds @ k / math.sqrt(len(q))  # (D,)
    dk = ds[:, None] * q / math.sqrt(len(q))  # (S, D)
    return dv, dp, ds, dq, dk


def _after_ds(ds, dout, cache):
    """All outputs, if what comes after ds is right."""
    q, k, _, _ = cache
    dv, dp, *_ = one_query_backward.solution(dout, cache)
    return dv, dp, ds, ds @ k / math.sqrt(len(q)), ds[:, None] * q / math.sqrt(len(q))


@one_query_backward.mistake(
    "dv is dout in every row. Value j enters y with the weight p[j], so it gets p[j] times dout."
)
def values_without_their_weights(dout, cache):
    dv, *others = one_query_backward.solution(dout, cache)
    return np.broadcast_to(dout, dv.shape).copy(), *others


@one_query_backward.mistake(
    "dp is not summed: p[j] was multiplied by all D numbers of v[j], so it collects a sum over the features. "
    "dp has the shape of p, (S,)."
)
def weights_not_summed(dout, cache):
    dv, _, *others = one_query_backward.solution(dout, cache)
    return dv, cache[2] * dout, *others


@one_query_backward.mistake(
    "dp is divided by D, as if it were a mean over the features. It is a sum: each of the D numbers of y "
    "moves in full."
)
def weights_from_a_mean(dout, cache):
    q, k, _, p = cache
    dv, dp, *_ = one_query_backward.solution(dout, cache)
    dp = dp / len(q)
    ds = softmax_backward(dp, (p,))
    return dv, dp, ds, ds @ k / math.sqrt(len(q)), ds[:, None] * q / math.sqrt(len(q))


@one_query_backward.mistake(
    "The softmax is skipped: dp is taken for ds. Between them lies softmax_backward(dp, (p,))."
)
def no_softmax_on_the_way_back(dout, cache):
    return _after_ds(one_query_backward.solution(dout, cache)[1], dout, cache)


@one_query_backward.mistake(
    "On the way through the softmax, the sum is missing: ds = p (dp − Σ dp p). The weights sum to 1, so one "
    "cannot rise unless others fall."
)
def softmax_without_its_sum(dout, cache):
    return _after_ds(cache[3] * one_query_backward.solution(dout, cache)[1], dout, cache)


@one_query_backward.mistake(
    "ds is divided by √D already. s is the score as the softmax gets it, after the division. The √D comes in "
    "the next step, in dq and dk."
)
def divided_too_early(dout, cache):
    dv, dp, ds, dq, dk = one_query_backward.solution(dout, cache)
    return dv, dp, ds / math.sqrt(len(dq)), dq, dk


@one_query_backward.mistake(
    "dq and dk are √D times too large: the scores were divided by √D, so these gradients are, too."
)
def no_division_on_the_way_back(dout, cache):
    dv, dp, ds, dq, dk = one_query_backward.solution(dout, cache)
    return dv, dp, ds, dq * math.sqrt(len(dq)), dk * math.sqrt(len(dq))


@one_query_backward.mistake(
    "dk is made of k. The derivative of q · k[j] with respect to k[j] is the *other* factor, q."
)
def keys_made_of_keys(dout, cache):
    dv, dp, ds, dq, _ = one_query_backward.solution(dout, cache)
    return dv, dp, ds, dq, ds[:, None] * cache[1] / math.sqrt(len(dq))


@one_query_backward.mistake(
    "dq is not summed. The one query was compared with all S keys, so it collects from all of them: dq has "
    "the shape of q, (D,)."
)
def query_not_summed(dout, cache):
    dv, dp, ds, dq, dk = one_query_backward.solution(dout, cache)
    return dv, dp, ds, ds[:, None] * cache[1] / math.sqrt(len(dq)), dk


# -- Backward: all queries ----------------------------------------------------------------------------------


def _trials(draw: Draws) -> list[Trial]:
    """B = 3 sequences of S = 4, two of them padded; D = 5."""
    bias = _bias(draw)
    inputs = {name: draw.normal(3, 4, 5) for name in "qkv"}
    return [gradient_trial(lambda q, k, v: one_head(q, k, v, bias), inputs)]


def _reference(dout, cache):
    q, k, v, p = (array[:, None] for array in cache)  # (B, 1, S, …): a single head
    gradients = library_backward(dout[:, None], (q, k, v, p, (p,), (0.0, None)))
    return tuple(gradient[:, 0] for gradient in gradients)


@exercise(
    "08",
    outputs="dq dk dv",
    trials=_trials,
    reference=_reference,
    level=2,
    minutes=15,
    needs="the steps of section 6; what each query has for itself, and what all queries share",
    hints=(
        "Three steps back: through p v to dp and dv, through the softmax to dscores, through q kᵀ / √D to "
        "dq and dk.",
        "The product y = p v gives dp = dout vᵀ and dv = pᵀ dout. The scores are a product as well. The "
        "transpose, for each sequence, is array.transpose(0, 2, 1).",
        "dscores = softmax_backward(dp, (p,)) / √D; dq = dscores k; dk = dscoresᵀ q. See "
        "`attention_backward` in minibert/ops/attention.py.",
    ),
    hints_for={
        "dv": (
            "v is the right factor of y = p v: a linear map, with p in the place of the weights.",
            "Value j enters every y[i], with the weight p[i, j]: dv[j] collects from all queries i.",
            "dv = pᵀ dout, where ᵀ exchanges the last two axes: p.transpose(0, 2, 1) @ dout.",
        ),
        "dk": (
            "dq is right, and so is dscores. Which of the scores did key j take part in?",
            "Key j took part in one score of each query i: dk[j] = Σᵢ dscores[i, j] q[i].",
            "dk = dscoresᵀ q, where ᵀ exchanges the last two axes.",
        ),
        "dq": (
            "dk is right, and so is dscores. Which of the scores did query i take part in?",
            "Query i took part in one score for each key j: dq[i] = Σⱼ dscores[i, j] k[j].",
            "dq = dscores k.",
        ),
        "dq dk": (
            "dv is right. Go on through dp and the softmax to the scores, then through q kᵀ / √D.",
            "dp = dout vᵀ, and dscores = softmax_backward(dp, (p,)) / √D.",
            "dq = dscores k; dk = dscoresᵀ q.",
        ),
    },
)
def attention_backward(dout, cache):
    q, k, v, p = cache  # (B, S, D) three times, (B, S, S)
    dv = p.transpose(0, 2, 1) @ dout
    dp = dout @ v.transpose(0, 2, 1)
    dscores = softmax_backward(dp, (p,)) / math.sqrt(q.shape[-1])
    return dscores @ k, dscores.transpose(0, 2, 1) @ q, dv


@attention_backward.mistake(
    "dq and dk are √D times too large: the scores were divided by √D, so these gradients are, too."
)
def scale_forgotten(dout, cache):
    dq, dk, dv = attention_backward.solution(dout, cache)
    scale = math.sqrt(dq.shape[-1])
    return dq * scale, dk * scale, dv


@attention_backward.mistake("dq and dk are divided by D; the scores were divided by its root, √D.")
def divided_by_the_size_not_its_root(dout, cache):
    dq, dk, dv = attention_backward.solution(dout, cache)
    scale = math.sqrt(dq.shape[-1])
    return dq / scale, dk / scale, dv


def _after_softmax(dout, cache, softmax_backward):
    """The gradients, with another way back through the softmax: (dp, p) → dscores, before √D."""
    q, k, v, p = cache
    dscores = softmax_backward(dout @ v.transpose(0, 2, 1), p) / math.sqrt(q.shape[-1])
    return dscores @ k, dscores.transpose(0, 2, 1) @ q, p.transpose(0, 2, 1) @ dout


@attention_backward.mistake(
    "On the way through the softmax, the sum over the row is missing: dscores = p (dp − Σ dp p). The weights "
    "of a row sum to 1, so one cannot rise unless others fall."
)
def softmax_without_the_row_sum(dout, cache):
    return _after_softmax(dout, cache, lambda dp, p: p * dp)


def _dscores(dout, cache):
    q, _, v, p = cache
    return softmax_backward(dout @ v.transpose(0, 2, 1), (p,)) / math.sqrt(q.shape[-1])


@attention_backward.mistake(
    "The softmax is skipped: dp is taken for dscores. Between them lies softmax_backward(dp, (p,))."
)
def softmax_skipped(dout, cache):
    return _after_softmax(dout, cache, lambda dp, p: dp)


@attention_backward.mistake(
    "p (1 − p) is only the diagonal of the softmax's Jacobian. Each score also moves the other weights of "
    "its row: dscores = p (dp − Σ dp p)."
)
def diagonal_of_the_softmax_only(dout, cache):
    return _after_softmax(dout, cache, lambda dp, p: p * (1 - p) * dp)


@attention_backward.mistake(
    "On the way through the softmax, you add the sum over the row. Subtract it: p (dp − Σ dp p)."
)
def row_sum_added(dout, cache):
    return _after_softmax(dout, cache, lambda dp, p: p * (dp + (dp * p).sum(axis=-1, keepdims=True)))


@attention_backward.mistake(
    "On the way through the softmax, you sum over the queries. The rows of p sum to 1, each with one query "
    "and all keys. So the sum is over the last axis."
)
def softmax_summed_over_the_queries(dout, cache):
    return _after_softmax(dout, cache, lambda dp, p: p * (dp - (dp * p).sum(axis=1, keepdims=True)))


@attention_backward.mistake(
    "q and k are exchanged: in the product q kᵀ, the gradient of one factor is made from the other factor, "
    "dq from k and dk from q."
)
def queries_and_keys_exchanged(dout, cache):
    q, k, _, _ = cache
    dscores = _dscores(dout, cache)
    return dscores @ q, dscores.transpose(0, 2, 1) @ k, attention_backward.solution(dout, cache)[2]


@attention_backward.mistake(
    "dq and dk are divided by √S, the root of the length of the text. The forward pass divided by √D, and D "
    "is the last axis of q."
)
def divided_by_the_root_of_the_length(dout, cache):
    dq, dk, dv = attention_backward.solution(dout, cache)
    _, length, size = dq.shape
    return dq * math.sqrt(size / length), dk * math.sqrt(size / length), dv


@attention_backward.mistake(
    "dk = dscores q: dscores is square, so the shapes fit even though it is not transposed. Key j collects "
    "from all queries i that looked at it, Σᵢ dscores[i, j] q[i]: dscoresᵀ q."
)
def keys_without_the_transpose(dout, cache):
    dq, _, dv = attention_backward.solution(dout, cache)
    return dq, _dscores(dout, cache) @ cache[0], dv


@attention_backward.mistake(
    "dk has the right shape, but its numbers are in the wrong places: it is qᵀ dscores, of shape (B, D, S), "
    "reshaped. A reshape does not transpose. Take dscoresᵀ q, which already has the right shape."
)
def keys_transposed_then_reshaped(dout, cache):
    q, k, _, _ = cache
    dq, _, dv = attention_backward.solution(dout, cache)
    return dq, (q.transpose(0, 2, 1) @ _dscores(dout, cache)).reshape(k.shape), dv


@attention_backward.mistake(
    "dv = p dout: p is square, so the shapes fit even though it is not transposed. Value j collects from all "
    "queries i that used it, Σᵢ p[i, j] dout[i]: pᵀ dout."
)
def values_without_the_transpose(dout, cache):
    dq, dk, _ = attention_backward.solution(dout, cache)
    return dq, dk, cache[3] @ dout


@attention_backward.mistake(
    "softmax_backward(p, (dp,)): its arguments have changed places. The gradient dp comes first. What the "
    "forward pass has kept, p, is the cache."
)
def arguments_of_the_softmax_exchanged(dout, cache):
    return _after_softmax(dout, cache, lambda dp, p: softmax_backward(p, (dp,)))


@attention_backward.mistake(
    "dq = dscoresᵀ k: dscores is square, so the shapes fit even though it is transposed. Query i collects "
    "from all keys j that it looked at, Σⱼ dscores[i, j] k[j]: dscores k."
)
def queries_with_a_transpose(dout, cache):
    _, dk, dv = attention_backward.solution(dout, cache)
    return _dscores(dout, cache).transpose(0, 2, 1) @ cache[1], dk, dv


# -- Open: a bias for each distance -------------------------------------------------------------------------


def attention_with_distances(q: Array, k: Array, v: Array, bias: Array, table: Array) -> tuple[Array, tuple]:
    """``one_head``, where a number of the table (2 S − 1,) is added to each score, by its distance j − i.

    → y (B, S, D), (q, k, v, p, rows) where rows (S, S) says which number of the table each score got.
    """
    S = q.shape[1]
    rows = np.arange(S)[None, :] - np.arange(S)[:, None] + S - 1  # (S, S): j − i, from 0 on
    y, cache = one_head(q, k, v, bias + table[rows])
    return y, (*cache, rows)


def _distance_trials(draw: Draws) -> list[Trial]:
    """As ``_trials``, with respect to the table."""
    bias = _bias(draw)
    q, k, v = (draw.normal(3, 4, 5) for _ in range(3))
    return [
        gradient_trial(
            lambda table: attention_with_distances(q, k, v, bias, table), {"table": draw.normal(7)}
        )
    ]


@exercise(
    "08",
    outputs="dtable",
    trials=_distance_trials,
    level=3,
    minutes=20,
    needs="section 6, and one idea of [06 · Embeddings](06_embeddings.ipynb)",
    hints=(
        "Go back as far as the scores. Each number of the table was added to many of them. To which?",
        "If something is added, its gradient is that of the sum. Here this is ds, before any √D. The number "
        "for distance j − i was used for every pair (i, j) with this distance, in every sequence.",
        "ds = softmax_backward(dp, (p,)) with dp = dout vᵀ; then dtable = zeros(2S − 1) and "
        "np.add.at(dtable, rows, ds.sum(axis=0)).",
    ),
)
def distances_backward(dout, cache):
    _, _, v, p, rows = cache  # (B, S, D), (B, S, S), (S, S)
    dp = dout @ v.transpose(0, 2, 1)  # (B, S, S)
    ds = softmax_backward(dp, (p,))  # (B, S, S)
    dtable = np.zeros(2 * len(rows) - 1)  # (2 S − 1,)
    np.add.at(dtable, rows, ds.sum(axis=0))
    return dtable


def _collected(scores, rows):
    """The sum of (B, S, S) numbers for each row of the table."""
    return np.bincount(rows.ravel(), scores.sum(axis=0).ravel(), 2 * len(rows) - 1)


@distances_backward.mistake(
    "A distance that occurs several times keeps only one of its gradients: dtable[rows] += … writes each "
    "number only once. You met this in 06; np.add.at adds every time."
)
def repeated_distances_count_once(dout, cache):
    _, _, v, p, rows = cache
    ds = softmax_backward(dout @ v.transpose(0, 2, 1), (p,))
    dtable = np.zeros(2 * len(rows) - 1)
    dtable[rows] += ds.sum(axis=0)
    return dtable


@distances_backward.mistake(
    "Each number is a mean over the pairs with its distance. It should be a sum, as every pair used the "
    "number in full."
)
def mean_over_the_pairs(dout, cache):
    return distances_backward.solution(dout, cache) / np.bincount(cache[4].ravel())


@distances_backward.mistake(
    "It is divided by √D. The table is added after the division, so its gradient is that of the scores as "
    "the softmax gets them."
)
def divided_by_the_root_of_the_size(dout, cache):
    return distances_backward.solution(dout, cache) / math.sqrt(dout.shape[-1])


@distances_backward.mistake(
    "It is divided by the batch size. Every sequence used the table; its gradients add up, and if the loss "
    "is a mean, its 1/B is in dout already."
)
def mean_over_the_batch(dout, cache):
    return distances_backward.solution(dout, cache) / len(dout)


@distances_backward.mistake(
    "There is one gradient per sequence. All of them used the same table: sum over the batch, too."
)
def a_table_for_each_sequence(dout, cache):
    return np.stack(
        [
            distances_backward.solution(dout[[b]], (None, None, cache[2][[b]], cache[3][[b]], cache[4]))
            for b in range(len(dout))
        ]
    )


@distances_backward.mistake(
    "The softmax is skipped: you collect dp, the gradients of the weights. The table is added to the scores: "
    "ds = softmax_backward(dp, (p,))."
)
def gradients_of_the_weights_collected(dout, cache):
    return _collected(dout @ cache[2].transpose(0, 2, 1), cache[4])


@distances_backward.mistake(
    "On the way through the softmax, the sum over the row is missing: ds = p (dp − Σ dp p)."
)
def distances_without_the_row_sum(dout, cache):
    return _collected(cache[3] * (dout @ cache[2].transpose(0, 2, 1)), cache[4])


@distances_backward.mistake(
    "The table is turned around: what belongs to the distance j − i is at i − j. Use `rows` as it is in the "
    "cache."
)
def distances_turned_around(dout, cache):
    return distances_backward.solution(dout, cache)[::-1].copy()
