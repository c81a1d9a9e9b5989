"""Answers that are right but written in another way than the solution: the judge should pass all of them."""

import functools
import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy import special

from minibert.course import EXERCISES, check

ANSWERS: list[tuple[str, Callable]] = []


def answers(exercise: str) -> Callable[[Callable], Callable]:
    """Decorator: a right answer to this exercise."""

    def register(function: Callable) -> Callable:
        ANSWERS.append((exercise, function))
        return function

    return register


# -- 01 -----------------------------------------------------------------------------------------------


@answers("01.unbroadcast")
def one_axis_at_a_time(dout, shape):
    while dout.ndim > len(shape):
        dout = dout.sum(0)
    for axis, size in enumerate(shape):
        if size == 1:
            dout = dout.sum(axis, keepdims=True)
    return dout.copy()


@answers("01.unbroadcast")
def add_at_a_broadcast_index(dout, shape):
    places = np.broadcast_to(np.arange(math.prod(shape)).reshape(shape), dout.shape)
    return np.bincount(places.ravel(), dout.ravel(), math.prod(shape)).reshape(shape)


@answers("01.numeric_grad")
def flat_and_in_place(f, x, h):
    moved = x.copy()
    gradient = []
    for i in range(x.size):
        old = moved.flat[i]
        moved.flat[i] = old + h
        above = f(moved)
        moved.flat[i] = old - h
        gradient.append((above - f(moved)) / (2 * h))
        moved.flat[i] = old
    return np.array(gradient).reshape(x.shape)


@answers("01.numeric_grad")
def rows_of_the_identity(f, x, h):
    steps = h * np.eye(x.size).reshape(-1, *x.shape)
    return np.array([f(x + step) - f(x - step) for step in steps]).reshape(x.shape) / 2 / h


# -- 02 -----------------------------------------------------------------------------------------------


@answers("02.linear")
def linear_by_einsum(x, weight, bias):
    return [np.einsum("...k,nk->...n", x, weight) + bias, (x, weight)]


@answers("02.linear")
def linear_by_tensordot(x, weight, bias):
    return bias + np.tensordot(x, weight, axes=(-1, -1)), (x, weight)


@answers("02.linear")
def bias_as_a_column(x, weight, bias):
    ones = np.ones((*x.shape[:-1], 1))
    return np.concatenate([x, ones], -1) @ np.column_stack([weight, bias]).T, (x, weight)


@answers("02.backward_in_steps")
def steps_by_einsum(dout, cache):
    x, weight = cache
    dproducts = np.broadcast_to(dout[..., None], (*dout.shape, x.shape[1])).copy()
    dx, dweight = np.einsum("rn,nk->rk", dout, weight), np.einsum("rn,rk->nk", dout, x)
    return [np.einsum("rn->n", dout), dproducts, dx, dweight]


@answers("02.linear_backward")
def linear_backward_by_einsum(dout, cache):
    x, weight = cache
    lead = list(range(dout.ndim - 1))
    dweight = np.einsum(dout, [*lead, 20], x, [*lead, 21], [20, 21])
    return [dout @ weight, dweight, np.einsum(dout, [*lead, 20], [20])]


@answers("02.linear_backward")
def outer_products_of_rows(dout, cache):
    x, weight = cache
    dx, dweight, dbias = np.zeros(x.shape), np.zeros(weight.shape), np.zeros(len(weight))
    for place in np.ndindex(*x.shape[:-1]):
        dx[place] = weight.T @ dout[place]
        dweight += np.outer(dout[place], x[place])
        dbias += dout[place]
    return dx, dweight, dbias


@answers("02.there_and_back_backward")
def both_uses_by_einsum(dout, cache):
    x, hidden, weight = cache
    dhidden = np.einsum("...k,nk->...n", dout, weight)
    lead = list(range(x.ndim - 1))
    first = np.tensordot(dhidden, x, axes=(lead, lead))
    return dhidden @ weight, first + np.tensordot(hidden, dout, axes=(lead, lead))


# -- 03 -----------------------------------------------------------------------------------------------


@answers("03.softmax")
def softmax_of_scipy(x):
    y = special.softmax(x, axis=-1)
    return y, (y,)


@answers("03.softmax")
def softmax_by_logsumexp(x):
    y = np.exp(x - special.logsumexp(x, axis=-1, keepdims=True))
    return [y, (y,)]


@answers("03.softmax_backward")
def by_the_jacobian(dout, cache):
    (y,) = cache
    jacobian = y[..., :, None] * np.eye(y.shape[-1]) - y[..., :, None] * y[..., None, :]
    return np.einsum("...i,...ij->...j", dout, jacobian)


@answers("03.softmax_backward")
def products_first(dout, cache):
    product = dout * cache[0]
    return product - cache[0] * np.einsum("...i->...", product)[..., None]


@answers("03.cross_entropy")
def cross_entropy_of_scipy(logits, labels, weights, denominator):
    log_p = special.log_softmax(logits, axis=-1)
    loss = -float(weights @ np.take_along_axis(log_p, labels[:, None], 1)[:, 0]) / denominator
    return loss, (log_p, labels, weights, denominator)


@answers("03.cross_entropy")
def cross_entropy_one_hot(logits, labels, weights, denominator):
    log_p = logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)
    one_hot = np.eye(logits.shape[1])[labels]
    loss = -np.einsum("n,nv,nv->", weights, one_hot, log_p) / denominator
    return np.array(loss), (log_p, labels, weights, denominator)


@answers("03.staged_backward")
def stages_with_a_one_hot(dout, cache):
    p, labels, weights, denominator = cache
    scale = (dout * weights / denominator)[:, None]
    one_hot = np.eye(p.shape[1])[labels]
    return -scale * one_hot / p, scale * (p - one_hot)


@answers("03.cross_entropy_backward")
def one_hot_subtracted(dout, cache):
    log_p, labels, weights, denominator = cache
    truth = np.arange(log_p.shape[1]) == labels[:, None]
    return dout / denominator * weights[:, None] * np.where(truth, np.expm1(log_p), np.exp(log_p))


# -- 04 -----------------------------------------------------------------------------------------------


@answers("04.gelu")
def by_the_normal_distribution(x):
    return x * special.ndtr(x), (x,)


@answers("04.gelu")
def by_erfc(x):
    return x / 2 * special.erfc(-x / np.sqrt(2)), (x,)


@answers("04.gelu_backward")
def derivative_by_the_normal_distribution(dout, cache):
    x = cache[0]
    return dout * special.ndtr(x) + dout * x * np.exp(-x * x / 2) * (2 * np.pi) ** -0.5


@answers("04.gelu_tanh_backward")
def squared_secant(dout, cache):
    x, t = cache
    du = np.sqrt(2 / np.pi) * (1 + 0.134145 * x * x)
    return dout / 2 * (1 + t + x * du * (1 - t) * (1 + t))


# -- 05 -----------------------------------------------------------------------------------------------


@answers("05.layer_norm")
def by_the_variance(x, weight, bias, eps):
    inverse_std = (x.var(-1, keepdims=True) + eps) ** -0.5
    normalised = (x - np.mean(x, -1, keepdims=True)) * inverse_std
    return np.multiply(weight, normalised) + bias, (normalised, inverse_std, weight)


@answers("05.scale_and_shift_backward")
def scale_and_shift_by_einsum(dout, cache):
    normalised, weight = cache
    dweight = np.einsum("bsh,bsh->h", dout, normalised)
    return [np.einsum("bsh,h->bsh", dout, weight), dweight, dout.sum(0).sum(0)]


def norm_jacobian_product(normalised, dnormalised, centred=True):
    """(I − 1/H − n nᵀ/H) dnormalised, with the matrix in full."""
    size = normalised.shape[-1]
    matrix = np.eye(size) - centred / size - normalised[..., None] * normalised[..., None, :] / size
    return (matrix @ dnormalised[..., None])[..., 0]


@answers("05.layer_norm_backward")
def layer_norm_by_the_jacobian(dout, cache):
    normalised, inverse_std, weight = cache
    dx = inverse_std * norm_jacobian_product(normalised, dout * weight)
    rows = dout.reshape(-1, len(weight))
    return dx, np.einsum("rh,rh->h", rows, normalised.reshape(rows.shape)), np.einsum("rh->h", rows)


@answers("05.rms_norm_backward")
def rms_norm_by_the_jacobian(dout, cache):
    normalised, inverse_rms, weight = cache
    dx = inverse_rms * norm_jacobian_product(normalised, dout * weight, centred=False)
    return [dx, (dout * normalised).reshape(-1, len(weight)).sum(0)]


# -- 06 -----------------------------------------------------------------------------------------------


@answers("06.embedding")
def embedding_by_take(weight, ids):
    return np.take(weight, ids, axis=0), (ids, weight.shape)


@answers("06.embedding")
def embedding_by_a_product(weight, ids):
    return np.eye(len(weight))[ids] @ weight, (ids, weight.shape)


@answers("06.backward_in_steps")
def copies_by_a_one_hot(dout, cache):
    ids, shape = cache
    one_hot = np.eye(shape[0])[ids]
    return one_hot[:, :, None] * dout[:, None, :], one_hot.T @ dout


@answers("06.embedding_backward")
def by_a_one_hot_product(dout, cache):
    ids, shape = cache
    return np.eye(shape[0])[ids.ravel()].T @ dout.reshape(-1, shape[1])


@answers("06.embedding_backward")
def by_bincount(dout, cache):
    ids, (size, hidden) = cache
    columns = dout.reshape(-1, hidden).T
    return np.stack([np.bincount(ids.ravel(), column, size) for column in columns]).T


@answers("06.word_means_backward")
def by_where(dout, cache):
    words, counts = cache
    return np.where(words[..., None] >= 0, dout[words] / counts[words][..., None], 0.0)


# -- 08 and 09 ----------------------------------------------------------------------------------------


@answers("08.attention")
def attention_by_einsum(q, k, v, bias):
    p = special.softmax(np.einsum("bid,bjd->bij", q, k) * q.shape[-1] ** -0.5 + bias, axis=-1)
    return np.einsum("bij,bjd->bid", p, v), (q, k, v, p)


@answers("08.attention_backward")
def attention_backward_by_einsum(dout, cache):
    q, k, v, p = cache
    dp = np.einsum("bid,bjd->bij", dout, v)
    ds = by_the_jacobian(dp, (p,)) * q.shape[-1] ** -0.5
    dq, dk = np.einsum("bij,bjd->bid", ds, k), np.einsum("bij,bid->bjd", ds, q)
    return [dq, dk, np.einsum("bij,bid->bjd", p, dout)]


@answers("08.one_query_backward")
def one_query_by_outer_products(dout, cache):
    q, k, v, p = cache
    dp = np.einsum("sd,d->s", v, dout)
    ds = (np.diag(p) - np.outer(p, p)) @ dp
    return [np.outer(p, dout), dp, ds, k.T @ ds / len(q) ** 0.5, np.outer(ds, q) / len(q) ** 0.5]


@answers("09.split_heads")
def heads_stacked(x, num_heads):
    return np.stack(np.split(x, num_heads, axis=-1), axis=1)


@answers("09.merge_heads")
def heads_side_by_side(heads):
    return np.concatenate([heads[:, i] for i in range(heads.shape[1])], axis=-1)


def joined(axis, heads):
    return np.concatenate([*heads.swapaxes(0, 1)], axis)


ANSWERS.append(("09.merge_heads", functools.partial(joined, -1)))


@pytest.mark.parametrize(
    ("name", "answer"),
    ANSWERS,
    ids=lambda value: value if isinstance(value, str) else getattr(value, "__name__", "partial"),
)
def test_a_right_answer_passes(name, answer):
    result = check(name, answer)
    assert result.passed
    assert not result.hints
    assert not result.mistakes


def test_they_are_answers_to_exercises():
    assert {name for name, _ in ANSWERS} <= EXERCISES.keys()
