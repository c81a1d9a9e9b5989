"""15 Fine-tuning: the backward passes of a classification head, and of a pooling that learns."""

from functools import partial

import numpy as np

from minibert.arrays import Array
from minibert.course.exercise import exercise, gradient_trial
from minibert.ops.composites import linear_activation, linear_activation_backward
from minibert.ops.linear_map import linear, linear_backward
from minibert.ops.pooling import first_token, first_token_backward


def classification_head(
    hidden: Array, pool_weight: Array, pool_bias: Array, weight: Array, bias: Array
) -> tuple[Array, tuple]:
    """logits = p Wᵀ + b with p = tanh(h[CLS] Wₚᵀ + bₚ): pooler and classifier, without dropout.

    hidden (B, S, H), pool_weight (H, H), pool_bias (H,), weight (K, H), bias (K,) → logits (B, K).
    """
    first, _ = first_token(hidden)  # (B, H)
    pooled, _ = linear_activation(first, pool_weight, pool_bias, "tanh")  # (B, H)
    logits, _ = linear(pooled, weight, bias)
    return logits, (hidden.shape, first, pooled, pool_weight, weight)


def _reference(dout, cache):
    """The backward functions of ops, one after the other."""
    shape, first, pooled, pool_weight, weight = cache
    dpooled, dweight, dbias = linear_backward(dout, (pooled, weight))
    dfirst, dpool_weight, dpool_bias = linear_activation_backward(
        dpooled, ((first, pool_weight), (pooled,), "tanh")
    )
    return first_token_backward(dfirst, (shape,)), dpool_weight, dpool_bias, dweight, dbias


@exercise(
    "15",
    outputs="dhidden dpool_weight dpool_bias dweight dbias",
    trials=lambda draw: [
        gradient_trial(
            classification_head,
            {
                "hidden": draw.normal(3, 4, 6),
                "pool_weight": draw.matrix(6, 6),
                "pool_bias": draw.normal(6),
                "weight": draw.matrix(5, 6),
                "bias": draw.normal(5),
            },
        )
    ],
    reference=_reference,
    level=2,
    minutes=15,
    needs="the backward pass of a linear map ([02](02_linear.ipynb)), and tanh′ = 1 − tanh²",
    hints=(
        "Go back from the logits: first the classifier, a linear map, then tanh, then another linear map. "
        "And which of the S tokens had a part in it?",
        "For y = x Wᵀ + b: dx = dout W, dW = doutᵀ x, db = Σ dout. For p = tanh(u): du = dp (1 − p²); the "
        "cache has p.",
        "dprojected = (dout @ weight) · (1 − pooled²); dhidden is zeros of the cache's shape with "
        "dhidden[:, 0] = dprojected @ pool_weight.",
    ),
    hints_for={
        "dhidden": (
            "All parameters have the right gradients. Which of the S tokens had a part in the pooled vector?",
            "Only the first token, [CLS], was read. So all others have a gradient of 0.",
            "dhidden = np.zeros(shape), and then dhidden[:, 0] = dprojected @ pool_weight.",
        ),
        "dhidden dpool_weight dpool_bias": (
            "The classifier's own gradients are right. What comes back to the pooled vector, and to tanh?",
            "The pooled vector gets dout W. For p = tanh(u) it is du = dp (1 − p²); the cache has p.",
            "dprojected = (dout @ weight) · (1 − pooled²); dpool_weight = dprojectedᵀ first.",
        ),
    },
)
def classifier_backward(dout, cache):
    shape, first, pooled, pool_weight, weight = cache
    dprojected = (dout @ weight) * (1 - pooled**2)  # (B, H)
    dhidden = np.zeros(shape)
    dhidden[:, 0] = dprojected @ pool_weight
    return dhidden, dprojected.T @ first, dprojected.sum(axis=0), dout.T @ pooled, dout.sum(axis=0)


def _rest(dout, cache):
    """All but dhidden."""
    return classifier_backward.solution(dout, cache)[1:]


@classifier_backward.mistake(
    "Every token gets the gradient of [CLS]. The head looked at the first token only; here the others have "
    "no gradient. (Inside the encoder they get theirs, through attention.)"
)
def every_token_gets_it(dout, cache):
    shape, _, _, _, _ = cache
    dfirst = classifier_backward.solution(dout, cache)[0][:, 0]
    return np.broadcast_to(dfirst[:, None], shape).copy(), *_rest(dout, cache)


@classifier_backward.mistake(
    "dhidden is the gradient of [CLS] alone, (B, H). It has the shape of hidden, (B, S, H), with zeros "
    "after [CLS]."
)
def the_first_token_alone(dout, cache):
    return classifier_backward.solution(dout, cache)[0][:, 0], *_rest(dout, cache)


@classifier_backward.mistake(
    "The gradient is in the row of the last token. [CLS] is the first: dhidden[:, 0]."
)
def the_last_token_gets_it(dout, cache):
    return classifier_backward.solution(dout, cache)[0][:, ::-1].copy(), *_rest(dout, cache)


@classifier_backward.mistake(
    "The gradient is spread evenly over the tokens: that is the backward pass of their mean. Here the pooler "
    "takes [CLS]."
)
def spread_as_by_a_mean(dout, cache):
    dhidden = classifier_backward.solution(dout, cache)[0]
    mean = dhidden.mean(axis=1, keepdims=True)
    return np.broadcast_to(mean, dhidden.shape).copy(), *_rest(dout, cache)


@classifier_backward.mistake(
    "dhidden: the pooler's matrix is transposed. With p = tanh(h Wᵀ + b), dh = du W, without ᵀ."
)
def pooler_transposed(dout, cache):
    shape, _, pooled, pool_weight, weight = cache
    dhidden = np.zeros(shape)
    dhidden[:, 0] = (dout @ weight) * (1 - pooled**2) @ pool_weight.T
    return dhidden, *_rest(dout, cache)


@classifier_backward.mistake(
    "dpool_weight is transposed, which its square shape hides: entry [i, j] belongs to output i and input j, "
    "so it is duᵀ h."
)
def gradient_of_the_pooler_transposed(dout, cache):
    dhidden, dpool_weight, *others = classifier_backward.solution(dout, cache)
    return dhidden, dpool_weight.T.copy(), *others


def _through(dout, cache, slope):
    """The solution with another derivative of tanh."""
    shape, first, pooled, pool_weight, weight = cache
    dprojected = (dout @ weight) * slope(pooled)
    dhidden = np.zeros(shape)
    dhidden[:, 0] = dprojected @ pool_weight
    return dhidden, dprojected.T @ first, dprojected.sum(axis=0), dout.T @ pooled, dout.sum(axis=0)


@classifier_backward.mistake("The tanh was skipped on the way back: multiply by 1 − p².")
def tanh_skipped(dout, cache):
    return _through(dout, cache, np.ones_like)


@classifier_backward.mistake(
    "You take tanh once more: 1 − tanh(p)². p is the tanh already; its derivative is 1 − p²."
)
def tanh_taken_twice(dout, cache):
    return _through(dout, cache, lambda pooled: 1 - np.tanh(pooled) ** 2)


@classifier_backward.mistake("p (1 − p) is the derivative of the sigmoid. That of tanh is 1 − p².")
def slope_of_the_sigmoid(dout, cache):
    return _through(dout, cache, lambda pooled: pooled * (1 - pooled))


# -- Open: a pooling that learns ----------------------------------------------------------------------------


def attention_pooling(hidden: Array, query: Array, mask: Array) -> tuple[Array, tuple]:
    """y = Σₛ a[:, s] hidden[:, s], with a = softmax over the real tokens of hidden · query.

    hidden (B, S, H), query (H,), mask (B, S) with 1 for tokens → y (B, H), (hidden, query, a).
    """
    scores = np.where(mask > 0, hidden @ query, -np.inf)  # (B, S)
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    return (weights[:, :, None] * hidden).sum(axis=1), (hidden, query, weights)


POOLED_MASK = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 1, 1, 1, 0]])


@exercise(
    "15",
    outputs="dhidden dquery",
    trials=lambda draw: [
        gradient_trial(
            partial(attention_pooling, mask=POOLED_MASK),
            {"hidden": draw.normal(3, 5, 6), "query": draw.normal(6)},
        )
    ],
    level=3,
    minutes=25,
    needs="the backward pass of softmax ([03](03_softmax_cross_entropy.ipynb)), and a drawing",
    hints=(
        "Draw it: hidden is used twice, in the scores and in the sum. What comes back on each path?",
        "y = Σ a h gives da[b, s] = dout[b] · h[b, s], and a first share of dh. Softmax turns da into ds, "
        "and s = h · query gives the second share of dh, and dquery.",
        "da = (hidden @ dout[:, :, None])[:, :, 0]; ds = a (da − Σₛ a da); dhidden = a dout + ds query; "
        "dquery = Σ ds hidden over all tokens of all texts.",
    ),
    hints_for={
        "dhidden": (
            "dquery is right, so the scores are. hidden is used twice: which use is missing in dhidden?",
            "Once in the scores, and once in the sum: the two shares are added.",
            "dhidden = a[:, :, None] · dout[:, None] + ds[:, :, None] · query.",
        ),
        "dquery": (
            "dhidden is right, so you have the gradients of the scores. Where was the query used?",
            "At every token of every text: s[b, t] = hidden[b, t] · query.",
            "dquery = Σ ds[b, t] hidden[b, t] over b and t.",
        ),
    },
)
def attention_pooling_backward(dout, cache):
    hidden, _, weights = cache  # (B, S, H), (H,), (B, S)
    dweights = (hidden * dout[:, None]).sum(axis=-1)  # (B, S)
    mean = (weights * dweights).sum(axis=1, keepdims=True)  # (B, 1)
    return _from_scores(dout, cache, weights * (dweights - mean))


def _from_scores(dout, cache, dscores):
    """The gradients, with these of the scores, (B, S)."""
    hidden, query, weights = cache
    dhidden = weights[:, :, None] * dout[:, None] + dscores[:, :, None] * query
    return dhidden, (dscores[:, :, None] * hidden).sum(axis=(0, 1))


@attention_pooling_backward.mistake(
    "dhidden has the path through the sum only. The weights depend on hidden as well: add ds · query."
)
def weights_taken_for_constants(dout, cache):
    return cache[2][:, :, None] * dout[:, None], attention_pooling_backward.solution(dout, cache)[1]


@attention_pooling_backward.mistake(
    "dhidden has the path through the scores only. The tokens are also terms of the sum: add a · dout."
)
def scores_alone(dout, cache):
    dhidden, dquery = attention_pooling_backward.solution(dout, cache)
    return dhidden - cache[2][:, :, None] * dout[:, None], dquery


@attention_pooling_backward.mistake(
    "The softmax was skipped on the way back: da is the gradient of the weights, not of the scores."
)
def softmax_skipped(dout, cache):
    return _from_scores(dout, cache, (cache[0] * dout[:, None]).sum(axis=-1))


@attention_pooling_backward.mistake(
    "In the backward pass of softmax the mean is missing: ds = a (da − Σ a da). A larger score of one token "
    "lowers the weights of all others."
)
def softmax_without_its_mean(dout, cache):
    return _from_scores(dout, cache, cache[2] * (cache[0] * dout[:, None]).sum(axis=-1))


@attention_pooling_backward.mistake(
    "In the backward pass of softmax the weights in front of the bracket are missing: ds = a (da − Σ a da)."
)
def softmax_without_its_weights(dout, cache):
    hidden, _, weights = cache
    dweights = (hidden * dout[:, None]).sum(axis=-1)
    return _from_scores(dout, cache, dweights - (weights * dweights).sum(axis=1, keepdims=True))


@attention_pooling_backward.mistake(
    "The sum in the backward pass of softmax runs over the texts. Each text has a softmax of its own: sum "
    "over its tokens, axis=1, with keepdims=True."
)
def softmax_over_the_texts(dout, cache):
    hidden, _, weights = cache
    dweights = (hidden * dout[:, None]).sum(axis=-1)
    mean = (weights * dweights).sum(axis=0, keepdims=True)
    return _from_scores(dout, cache, weights * (dweights - mean))


@attention_pooling_backward.mistake(
    "This dhidden is that of a plain mean over the tokens. Here each token has a weight of its own, and the "
    "weights depend on the tokens."
)
def backward_of_a_mean(dout, cache):
    _, _, weights = cache
    share = (weights > 0) / (weights > 0).sum(axis=1, keepdims=True)
    return share[:, :, None] * dout[:, None], attention_pooling_backward.solution(dout, cache)[1]


@attention_pooling_backward.mistake(
    "dquery is one vector per text, (B, H). All texts share the query, so its gradient sums over them, too."
)
def a_query_for_each_text(dout, cache):
    hidden, query, weights = cache
    dhidden, _ = attention_pooling_backward.solution(dout, cache)
    dscores = (dhidden - weights[:, :, None] * dout[:, None]) @ query / (query @ query)
    return dhidden, (dscores[:, :, None] * hidden).sum(axis=1)


@attention_pooling_backward.mistake(
    "dquery is divided by the number of texts. Each text used the query in full; if the loss is a mean, dout "
    "already contains its 1/N."
)
def mean_over_the_texts(dout, cache):
    dhidden, dquery = attention_pooling_backward.solution(dout, cache)
    return dhidden, dquery / len(dout)
