"""08 Attention: the backward of one head."""

import math

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


def _trials(draw: Draws) -> list[Trial]:
    """B = 3 sequences of S = 4, two of them padded; D = 5."""
    bias = attention_bias(draw.device.asarray(MASK), "float64")[:, 0]  # (B, 1, S)
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
    hints=(
        "Three steps back: through p v to dp and dv, through the softmax to dscores, through q kᵀ / √D to "
        "dq and dk.",
        "The product y = p v gives dp = dout vᵀ and dv = pᵀ dout. The scores are a product as well; the "
        "transposed of a sequence is array.transpose(0, 2, 1).",
        "dscores = softmax_backward(dp, (p,)) / √D; dq = dscores k; dk = dscoresᵀ q. See "
        "`attention_backward` in minibert/ops/attention.py.",
    ),
    hints_for={
        "dv": (
            "v is the right factor of y = p v: a linear map, with p in the place of the weights.",
            "Value j is a part of every y[i], with the share p[i, j]: dv[j] collects from all queries i.",
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
            "dv is right. Go on through dp and the softmax to the scores, and from there through q kᵀ / √D.",
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
    "dq and dk are √D times too long: the scores were divided by √D, so their gradients are, too."
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
    "On the way through the softmax the sum over the row is missing: dscores = p (dp − Σ dp p). The weights "
    "of a row sum to 1, so one cannot rise unless the others fall."
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
    "p (1 − p) is only the diagonal of the softmax's Jacobian: each score also moves the other weights of "
    "its row. dscores = p (dp − Σ dp p)."
)
def diagonal_of_the_softmax_only(dout, cache):
    return _after_softmax(dout, cache, lambda dp, p: p * (1 - p) * dp)


@attention_backward.mistake(
    "On the way through the softmax the sum over the row is added; it is subtracted: p (dp − Σ dp p)."
)
def row_sum_added(dout, cache):
    return _after_softmax(dout, cache, lambda dp, p: p * (dp + (dp * p).sum(axis=-1, keepdims=True)))


@attention_backward.mistake(
    "On the way through the softmax you sum over the queries. A row of p, one query with all keys, is what "
    "sums to 1: the sum is over the last axis."
)
def softmax_summed_over_the_queries(dout, cache):
    return _after_softmax(dout, cache, lambda dp, p: p * (dp - (dp * p).sum(axis=1, keepdims=True)))


@attention_backward.mistake(
    "q and k are exchanged: in the product q kᵀ the gradient of one factor is made with the other, dq from k "
    "and dk from q."
)
def queries_and_keys_exchanged(dout, cache):
    q, k, _, _ = cache
    dscores = _dscores(dout, cache)
    return dscores @ q, dscores.transpose(0, 2, 1) @ k, attention_backward.solution(dout, cache)[2]


@attention_backward.mistake(
    "dq and dk are divided by √S, the root of the length of the text. What the forward divided by is √D, and "
    "D is the last axis of q."
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
    "dk has the right shape and the wrong numbers: it is qᵀ dscores, of shape (B, D, S), reshaped. A "
    "reshape does not transpose. Take dscoresᵀ q, which has the shape at once."
)
def keys_transposed_then_reshaped(dout, cache):
    q, k, _, _ = cache
    dq, _, dv = attention_backward.solution(dout, cache)
    return dq, (q.transpose(0, 2, 1) @ _dscores(dout, cache)).reshape(k.shape), dv


@attention_backward.mistake(
    "dv = p dout: p is square, so the shapes fit even though it is not transposed. Value j collects from all "
    "queries i that took of it, Σᵢ p[i, j] dout[i]: pᵀ dout."
)
def values_without_the_transpose(dout, cache):
    dq, dk, _ = attention_backward.solution(dout, cache)
    return dq, dk, cache[3] @ dout


@attention_backward.mistake(
    "softmax_backward(p, (dp,)): its arguments have changed places. The gradient comes first, dp; what the "
    "forward has kept, p, is the cache."
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
