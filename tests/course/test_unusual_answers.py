"""Answers that are right but written in another way than the solution: the judge should pass all of them."""

import functools
import itertools
import json
import math
import statistics
import struct
import unicodedata
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from scipy import special

from minibert.course import EXERCISES, check
from minibert.course.exercises import n20_your_bert
from minibert.course.ring import in_threads
from minibert.ops.attention import attention_backward
from minibert.ops.composites import linear_activation_backward
from minibert.ops.inverted_dropout import dropout
from minibert.ops.layer_normalisation import layer_norm_backward
from minibert.ops.linear_map import linear_backward

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


# -- Notebooks 04, 07 and 09 again, and those from 10 on ------------------------------------------------


@answers("00.predictions")
def predictions_in_capitals():
    return ["Same", "SAME", "other", "Other", "other", "same"]


class ErfGelu:
    """GELU as an object that is called."""

    def __init__(self, scale):
        self.scale = scale

    def __call__(self, x):
        return 0.5 * (x + x * special.erf(x * self.scale)), (x,)


ANSWERS.append(("04.gelu", ErfGelu(scale=0.5**0.5)))


@answers("04.gelu_backward")
def derivative_by_a_complex_step(dout, cache):
    def gelu(z):
        return z * (1 + special.erf(z / math.sqrt(2))) / 2

    return dout * gelu(cache[0] + 1e-30j).imag / 1e-30


@answers("07.normalise")
def with_a_regular_expression(text):
    decomposed = unicodedata.normalize("NFD", text.lower())
    bare = "".join(char for char in decomposed if unicodedata.category(char) != "Mn")
    marks = {char for char in bare if unicodedata.category(char)[0] == "P"} | set("$+<=>^`|~")
    return "".join(f" {char} " * (char in marks) or char for char in bare).split()


@answers("07.wordpiece")
def wordpiece_by_recursion(word, vocabulary, prefix=""):
    if not word:
        return []
    for end in reversed(range(1, len(word) + 1)):
        if prefix + word[:end] in vocabulary:
            rest = wordpiece_by_recursion(word[end:], vocabulary, "##")
            return ["[UNK]"] if "[UNK]" in rest else [prefix + word[:end], *rest]
    return ["[UNK]"]


@answers("07.merge_once")
def merge_by_a_counter(words):
    counts = Counter()
    for tokens, count in words.items():
        for pair in itertools.pairwise(tokens):
            counts[pair] += count
    most = max(counts.values())
    best = sorted(pair for pair in counts if counts[pair] == most)[0]
    merged = {}
    for tokens, count in words.items():
        new, rest = [], list(tokens)
        while rest:
            if tuple(rest[:2]) == best:
                new.append(best[0] + best[1].removeprefix("##"))
                rest = rest[2:]
            else:
                new.append(rest.pop(0))
        merged[tuple(new)] = count
    return best, merged


@answers("09.split_heads")
def heads_by_swapped_axes(x, num_heads):
    return x.reshape(*x.shape[:2], num_heads, -1).swapaxes(1, 2).copy()


@answers("11.gather_backward")
def gathered_by_a_one_hot(drows, cache):
    positions, shape = cache
    return (np.eye(math.prod(shape[:-1]))[positions].T @ drows).reshape(shape)


@answers("11.gather_backward")
def gathered_by_a_loop(drows, cache):
    positions, shape = cache
    dhidden = np.zeros(shape)
    for row, position in zip(drows, positions, strict=True):
        dhidden[np.unravel_index(position, shape[:-1])] += row
    return dhidden


@answers("11.two_uses_in_steps")
def slope_by_two_factors(dout, cache):
    w, x, t = cache
    shares = [dout * t, (1 + t) * (1 - t) * dout * x * w]
    return [*shares, sum(shares)]


@answers("11.tied_backward")
def tied_by_one_hot_products(dlogits, cache):
    ids, hidden, weight = cache
    dembedded = np.einsum("bsv,vh->bsh", dlogits, weight) * (1 + hidden) * (1 - hidden)
    one_hot = np.eye(len(weight))[ids]
    return np.einsum("bsv,bsh->vh", one_hot, dembedded) + np.einsum("bsv,bsh->vh", dlogits, hidden)


@answers("12.mask_tokens")
def masked_in_place_on_a_copy(input_ids, chosen, fate, anything, mask_id):
    masked, labels = input_ids.astype(np.int32), np.full_like(input_ids, -100, dtype=np.int32)
    labels[chosen] = input_ids[chosen]
    masked[chosen & (fate < 0.8)] = mask_id
    random = chosen & (fate >= 0.9)
    masked[random] = anything[random]
    return [masked, labels]


@answers("12.masked_loss")
def loss_of_selected_rows(logits, labels):
    rows, targets = logits[labels >= 0], labels[labels >= 0]
    return float(np.mean(special.logsumexp(rows, axis=-1) - rows[np.arange(len(rows)), targets]))


@answers("13.learning_rate")
def rate_in_one_expression(step, steps, warmup, peak):
    return np.float64(peak * (step / warmup if step < warmup else (steps - step) / steps))


@answers("13.learning_rate")
def rate_of_zero_dimensions(step, steps, warmup, peak):
    return np.where(step < warmup, peak * step / max(warmup, 1), peak - peak * step / steps)


@answers("13.clip_gradients")
def clipped_by_hypot(dweight, dbias, clip_norm):
    norm = math.hypot(*dweight.flat, *dbias)
    return [
        gradient * min(1.0, clip_norm / norm) if norm else gradient.copy() for gradient in (dweight, dbias)
    ]


@answers("13.adamw_step")
def moments_by_differences(value, grad, mean, variance, step, lr, beta1, beta2, eps, weight_decay):
    mean = mean + (1 - beta1) * (grad - mean)
    variance = variance + (1 - beta2) * (grad * grad - variance)
    decayed = value * (1 - lr * weight_decay)
    return [decayed - lr * mean / (variance**0.5 + eps), mean, variance]


@answers("15.classifier_backward")
def classifier_by_einsum(dout, cache):
    shape, first, pooled, pool_weight, weight = cache
    dprojected = np.einsum("bc,ch->bh", dout, weight) * (1 - pooled) * (1 + pooled)
    dhidden = np.eye(1, shape[1])[..., None] * (dprojected @ pool_weight)[:, None]
    shares = np.einsum("bi,bj->ij", dprojected, first), np.einsum("bi,bj->ij", dout, pooled)
    return dhidden, shares[0], sum(dprojected), shares[1], sum(dout)


@answers("16.offset_score")
def score_by_a_loop(probabilities, mask, offset):
    total, count = 0.0, 0
    for b, row in enumerate(mask):
        for i in range(len(row)):
            if 0 <= i + offset < len(row) and row[i] and row[i + offset]:
                total, count = total + probabilities[b, :, i, i + offset], count + 1
    return total / count


@answers("16.offset_score")
def score_by_a_band(probabilities, mask, offset):
    band = mask[:, :, None] * mask[:, None, :] * np.eye(mask.shape[1], k=offset)
    return np.einsum("baij,bij->a", probabilities, band) / band.sum()


@answers("17.sum_row")
def sums_by_reversed_halves(values):
    rounds, distance = [], len(values) // 2
    while distance:
        pairs = values.reshape(-1, 2, distance)
        values = (pairs + pairs[:, ::-1]).reshape(-1)
        rounds.append(values)
        distance >>= 1
    return np.array(rounds)


@answers("18.rename")
def renamed_by_patterns(old):
    endings = {"kernel": "weight", "gamma": "weight", "beta": "bias", "output_weights": "weight"}
    endings |= {"output_bias": "bias"}
    *path, last = old.replace("/", ".").replace("layer_", "layer.").split(".")
    endings |= {last: f"{last}.weight"} if last.endswith("_embeddings") else {}
    return ".".join([*path, endings.get(last, last)]), last == "kernel"


@answers("18.rename")
def a_list_of_both(old):
    return list(renamed_by_patterns(old))


@answers("05.backward_in_steps")
def norm_steps_by_einsum(dnormalised, cache):
    c, s = cache
    ds = np.einsum("...h,...h->...", dnormalised, c)[..., None]
    dv = ds * s * s * s / -2
    dc = s * dnormalised + c * (2 * dv / c.shape[-1])
    dmu = np.einsum("...h->...", -dc)[..., None]
    return [ds, dv, dc, dmu, dc - dc.mean(-1, keepdims=True)]


@answers("08.distances_backward")
def distances_by_bincount(dout, cache):
    _, _, v, p, rows = cache
    ds = by_the_jacobian(np.einsum("bid,bjd->bij", dout, v), (p,))
    return np.bincount(rows.ravel(), ds.sum(0).ravel(), 2 * len(rows) - 1)


@answers("19.recall_at_k")
def recall_by_ranks(scores, right, k):
    own = np.take_along_axis(scores, right[:, None], axis=1)
    return float(np.mean((scores > own).sum(axis=1) < k))


@answers("22.paired_difference")
def difference_by_sums(a, b):
    differences = [float(y - x) for x, y in zip(a, b, strict=True)]
    return [statistics.fmean(differences), statistics.stdev(differences) / len(differences) ** 0.5]


@answers("22.bootstrap_interval")
def interval_by_percentiles(differences, drawn, level):
    means = np.take(differences, drawn).sum(axis=1) / drawn.shape[1]
    return [np.percentile(means, 50 * (1 - level)), np.percentile(means, 50 * (1 + level))]


@answers("22.permutation_test")
def every_sign_in_a_loop(differences):
    observed, hits = abs(sum(differences)) - 1e-9, 0
    for signs in itertools.product((-1, 1), repeat=len(differences)):
        hits += abs(np.dot(signs, differences)) >= observed
    return float(hits / 2 ** len(differences))


@answers("23.positions_from_padding")
def positions_by_accumulate(mask, padding):
    counts = [list(itertools.accumulate(row)) for row in mask]
    return np.where(mask, np.array(counts, dtype=np.int32) + np.int32(padding), padding)


@answers("23.permutation_masks")
def masks_of_sorted_places(order):
    rank = np.empty(len(order), dtype=np.int32)
    rank[order] = range(len(order))
    earlier = np.greater.outer(rank, rank)
    return [earlier | np.eye(len(order), dtype=bool), earlier]


# -- The rest, notebook by notebook ---------------------------------------------------------------------


@answers("03.smoothed_backward")
def smoothed_as_a_mixture(dout, cache):
    log_p, labels, smoothing = cache
    hard = np.eye(log_p.shape[1])[labels]
    even = np.ones_like(log_p) / log_p.shape[1]
    return sum(
        share * (np.exp(log_p) - truth) for share, truth in ((1 - smoothing, hard), (smoothing, even))
    ) * (dout / len(log_p))


@answers("03.smoothed_backward")
def smoothed_row_by_row(dout, cache):
    log_p, labels, smoothing = cache
    rows = []
    for row, label in zip(log_p, labels, strict=True):
        gradient = np.exp(row) - smoothing / len(row)
        gradient[label] -= 1 - smoothing
        rows.append(dout * gradient / len(labels))
    return np.stack(rows)


@answers("04.gelu_backward_in_steps")
def gelu_steps_by_the_density(dout, cache):
    x, u, gate = cache
    du = dout * x * np.exp(-(u**2)) / np.sqrt(np.pi)
    return [dout * x, du, dout * gate + du / 2**0.5]


@answers("09.packed_attention_backward")
def packed_one_head_after_the_other(dout, cache):
    attention_cache, heads = cache
    size = dout.shape[-1] // heads
    by_head = np.stack([dout[..., a * size : (a + 1) * size] for a in range(heads)], axis=1)
    gradients = attention_backward(by_head, attention_cache)
    return np.concatenate([g[:, a] for g in gradients for a in range(heads)], axis=-1)


@answers("10.block_forward")
def block_in_plain_numpy(x, up, down, norm, eps):
    wide = np.einsum("bsh,fh->bsf", x, up[0]) + up[1]
    total = x + special.ndtr(wide) * wide @ down[0].T + down[1]
    centred = total - total.mean(axis=-1)[..., None]
    return norm[0] * centred / np.sqrt((centred**2).mean(axis=-1)[..., None] + eps) + norm[1]


@answers("10.block_forward")
def block_token_by_token(x, up, down, norm, eps):
    y = np.empty_like(x)
    for place in np.ndindex(x.shape[:2]):
        wide = up[0] @ x[place] + up[1]
        total = x[place] + down[0] @ (wide * special.ndtr(wide)) + down[1]
        y[place] = (total - total.mean()) / math.sqrt(total.var() + eps) * norm[0] + norm[1]
    return y


@answers("10.residual_in_steps")
def residual_steps_by_einsum(dout, cache):
    up_cache, down_weight = cache
    dwide = np.einsum("...h,hf->...f", dout, down_weight)
    dbranch = linear_activation_backward(dwide, up_cache)[0]
    return [dwide, dbranch, np.add(dbranch, dout)]


@answers("10.block_backward")
def block_backward_as_a_list(dout, cache):
    gradients = []
    for backward, part in zip(
        (layer_norm_backward, linear_backward, linear_activation_backward), reversed(cache), strict=True
    ):
        of_input, *of_parameters = backward(gradients[-1][0] if gradients else dout, part)
        gradients.append((of_input, *of_parameters))
    norm, down, up = gradients
    return [up[0] + norm[0], *up[1:], *down[1:], *norm[1:]]


@answers("10.pre_norm_backward")
def pre_norm_with_its_own_products(dout, cache):
    norm_cache, up_cache, down_cache = cache
    dwide, dweight, _ = linear_backward(dout, down_cache)
    dnormalised, *dup = linear_activation_backward(dwide, up_cache)
    dx, *dnorm = layer_norm_backward(dnormalised, norm_cache)
    dx = dx + dout
    return dx, *dup, dweight, np.einsum("bsh->h", dout), *dnorm


@answers("12.choose_words")
def words_as_lists_of_places(continues, order, wanted):
    places = []
    for s, goes_on in enumerate(continues):
        if goes_on and places:
            places[-1].append(s)
        else:
            places.append([s])
    taken = []
    for word in order:
        if len(taken) + len(places[word]) <= wanted:
            taken += places[word]
    return np.isin(np.arange(len(continues)), taken)


@answers("13.catch_up")
def catch_up_step_by_step(value, mean, variance, steps, lr, beta1, beta2, weight_decay):
    value, mean, variance = (np.array(array) for array in (value, mean, variance))
    for _ in range(steps):
        mean, variance = beta1 * mean, beta2 * variance
        value = value - lr * (mean * variance**-0.5 + weight_decay * value)
    return value, mean, variance


@answers("15.attention_pooling_backward")
def pooling_by_the_jacobian(dout, cache):
    hidden, query, weights = cache
    jacobian = np.einsum("bs,st->bst", weights, np.eye(weights.shape[1])) - np.einsum(
        "bs,bt->bst", weights, weights
    )
    dscores = np.einsum("bst,bth,bh->bs", jacobian, hidden, dout)
    dhidden = np.einsum("bs,bh->bsh", weights, dout) + np.einsum("bs,h->bsh", dscores, query)
    return [dhidden, np.tensordot(dscores, hidden, axes=2)]


@answers("21.perplexity")
def perplexity_as_a_geometric_mean(losses, labels):
    chosen = [loss for loss, label in zip(losses.ravel(), labels.ravel(), strict=True) if label != -100]
    return 1 / math.prod(math.exp(-loss / len(chosen)) for loss in chosen)


@answers("21.perplexity")
def perplexity_by_masking(losses, labels):
    there = labels >= 0
    return np.exp(np.where(there, losses, 0).sum() / there.sum())


@answers("21.skip_gram_backward")
def skip_gram_by_one_hot_products(dout, cache):
    words, contexts, centres, targets, scores = cache
    dscores = special.expit(scores)
    dscores[:, 0] -= 1
    dscores = dscores * dout
    at_centre = np.eye(len(words))[centres]  # (B, V)
    at_target = np.eye(len(contexts))[targets]  # (B, 1 + K, V)
    pairs = np.einsum("bv,bk,bkw->vw", at_centre, dscores, at_target)  # (V, V)
    return pairs @ contexts, pairs.T @ words


@answers("21.skip_gram_backward")
def skip_gram_pair_by_pair(dout, cache):
    words, contexts, centres, targets, scores = cache
    dwords, dcontexts = np.zeros_like(words), np.zeros_like(contexts)
    for centre, row, row_scores in zip(centres, targets, scores, strict=True):
        for k, (target, score) in enumerate(zip(row, row_scores, strict=True)):
            slope = dout * (-special.expit(-score) if k == 0 else special.expit(score))
            dwords[centre] += slope * contexts[target]
            dcontexts[target] += slope * words[centre]
    return [dwords, dcontexts]


@answers("22.paired_difference")
def difference_by_the_standard_library(a, b):
    d = [float(y - x) for x, y in zip(a, b, strict=True)]
    return statistics.fmean(d), statistics.stdev(d) / len(d) ** 0.5


@answers("22.paired_difference")
def difference_by_covariance(a, b):
    covariance = np.cov(a, b)
    variance = covariance[0, 0] + covariance[1, 1] - 2 * covariance[0, 1]
    return [np.mean(b) - np.mean(a), np.sqrt(variance / len(a))]


@answers("24.soften")
def soften_by_logsumexp(logits, temperature):
    z = logits / temperature
    return np.exp(z - special.logsumexp(z, axis=1, keepdims=True))


@answers("24.soften")
def soften_by_scipy(logits, temperature):
    return special.softmax(np.divide(logits, temperature), axis=1)


@answers("24.soft_target_backward")
def soft_targets_class_by_class(dout, cache):
    p, q, temperature = cache
    columns = [dout * temperature * (p[:, k] - q[:, k]) / p.shape[0] for k in range(p.shape[1])]
    return np.column_stack(columns)


@answers("24.imitation_backward")
def imitation_of_real_tokens_only(dout, cache):
    hidden, weight, difference, mask = cache
    real = mask.astype(bool)
    dy = 2 * dout * difference[real] / (real.sum() * difference.shape[-1])  # (tokens, H′)
    dhidden = np.zeros_like(hidden)
    dhidden[real] = dy @ weight
    return [dhidden, dy.T @ hidden[real]]


@answers("04.gated_backward")
def gate_by_the_rule_for_logarithms(dout, cache):
    values, scores, sigmoid = cache
    dscores = dout * values * sigmoid * (1 + scores * special.expit(-scores))
    return np.concatenate((dout * scores * sigmoid, dscores), axis=2)


@answers("09.multi_query_backward")
def multi_query_adding_head_by_head(dout, cache):
    attention_cache, heads = cache
    by_head = np.stack(np.split(dout, heads, axis=-1), axis=1)  # (B, A, S, D)
    dq, dk, dv = attention_backward(by_head, attention_cache)
    parts = [dq[:, a] for a in range(heads)]
    parts += [functools.reduce(np.add, np.moveaxis(shared, 1, 0)) for shared in (dk, dv)]
    return np.concatenate(parts, axis=-1)


@answers("11.factorised_backward")
def factorised_by_one_hot_rows(dlogits, cache):
    ids, embedded, hidden, back, table, projection = cache
    dback = np.einsum("bsv,ve->bse", dlogits, table)
    da = np.einsum("bse,he->bsh", dback, projection) * (1 - hidden) * (1 + hidden)
    one_hot = np.eye(len(table))[ids]
    dtable = np.einsum("bsv,bse->ve", dlogits, back) + np.einsum(
        "bsv,bsh,he->ve", one_hot, da, projection, optimize=True
    )
    return [dtable, np.einsum("bsh,bse->he", hidden, dback) + np.einsum("bsh,bse->he", da, embedded)]


@answers("23.shared_layer_backward")
def shared_layer_by_stacking_the_uses(dout, cache):
    inputs, tanhs, weight = cache
    slopes = []
    for tanh in tanhs[::-1]:
        slopes.append((1 - tanh * tanh) * dout)
        dout = dout + np.einsum("bsi,ij->bsj", slopes[-1], weight)
    dz = np.stack(slopes[::-1])  # (uses, B, S, H)
    return [dout, np.einsum("ubsi,ubsj->ij", dz, np.stack(inputs)), dz.sum(axis=(0, 1, 2))]


@answers("23.disentangled_backward")
def disentangled_by_loops_over_pairs(dout, cache):
    q, k, v, p, key_table, query_table, rows = cache
    dp = np.einsum("bid,bjd->bij", dout, v)
    ds = p * (dp - (p * dp).sum(axis=-1)[..., None]) / math.sqrt(3 * q.shape[-1])
    dq, dk = np.zeros_like(q), np.zeros_like(k)
    dkey_table, dquery_table = np.zeros_like(key_table), np.zeros_like(query_table)
    for b, i, j in np.ndindex(ds.shape):
        slope, of_key, of_query = ds[b, i, j], rows[i, j], rows[j, i]
        dq[b, i] += slope * (k[b, j] + key_table[of_key])
        dk[b, j] += slope * (q[b, i] + query_table[of_query])
        dkey_table[of_key] += slope * q[b, i]
        dquery_table[of_query] += slope * k[b, j]
    return dq, dk, np.einsum("bij,bid->bjd", p, dout), dkey_table, dquery_table


@answers("22.bootstrap_interval")
def interval_by_counting(differences, drawn, level):
    counts = np.stack([np.bincount(row, minlength=len(differences)) for row in drawn])
    means = np.sort(counts @ differences / drawn.shape[1])
    places = np.array([1 - level, 1 + level]) / 2 * (len(means) - 1)
    return np.interp(places, np.arange(len(means)), means)


@answers("22.permutation_test")
def sums_that_double(differences):
    sums = np.zeros(1)
    for d in differences:
        sums = np.concatenate([sums - d, sums + d])
    return np.mean(np.abs(sums) >= abs(np.sum(differences)) * (1 - 1e-12))


@answers("24.imitation_backward")
def imitation_token_by_token(dout, cache):
    hidden, weight, difference, mask = cache
    dhidden, dweight = np.zeros_like(hidden), np.zeros_like(weight)
    for place in zip(*np.nonzero(mask), strict=True):
        dy = 2 * dout * difference[place] / (np.count_nonzero(mask) * len(weight))
        dhidden[place] = weight.T @ dy
        dweight += np.outer(dy, hidden[place])
    return dhidden, dweight


# -- 04, 14, 17, 18, 20, 21 and from 26 on -------------------------------------------------------------


@answers("04.dropout_backward")
def dropout_by_running_it_on_ones(dout, cache):
    probability, key = cache
    mask, _ = dropout(np.ones_like(dout), probability, key)  # of ones, dropout makes its own mask
    return np.where(mask > 0, dout / (1 - probability), 0.0)


@answers("14.unigram_line")
def unigram_line_by_counting_labels(counts, labels):
    asked = np.bincount(labels[labels >= 0], minlength=len(counts))
    log_f = np.log1p(counts) - math.log(counts.sum() + len(counts))
    return -float(asked @ log_f) / int(asked.sum())


@answers("14.copying_rule")
def copying_rule_by_a_table_of_posteriors(f, seen, right, mask_id):
    V = len(f)
    joint = 0.1 * np.diag(f) + 0.1 * f[:, None] / V * np.ones(V)  # (right, seen)
    posterior = joint / joint.sum(axis=0)
    posterior[:, mask_id] = f
    return posterior[right, seen]


@answers("17.layer_norm_row")
def the_row_by_its_moments(x, weight, bias, eps, threads, pack):
    normalised = (x - x.mean()) * (x.var() + eps) ** -0.5
    registers = np.pad(normalised, (0, threads * pack - len(x))).reshape(threads, -1)
    return [registers, bias + weight * normalised]


@answers("18.read_tensor")
def a_tensor_by_struct(raw, name):
    (size,) = struct.unpack_from("<Q", raw)
    entry = json.loads(raw[8 : 8 + size].decode("utf-8"))[name]
    kind = np.dtype({"F16": "float16", "F32": "float32"}[entry["dtype"]]).newbyteorder("<")
    return np.ndarray(entry["shape"], kind, raw, offset=8 + size + entry["data_offsets"][0]).copy()


@answers("18.to_bfloat16")
def eight_digits_of_the_fraction(x):
    fraction, exponent = np.frexp(x.astype(np.float64))
    return np.ldexp(np.rint(fraction * 256) / 256, exponent).astype(np.float32)  # rint: ties to even


class Affine:
    """Tables, norms and linear maps for the answers to 20, without anything of the course."""

    @staticmethod
    def norm(x, weight, bias):
        inverse_std = 1 / np.sqrt(x.var(-1, keepdims=True) + n20_your_bert.EPS)
        normalised = (x - x.mean(-1, keepdims=True)) * inverse_std
        return normalised * weight + bias, (normalised, inverse_std, weight)

    @staticmethod
    def norm_backward(dout, cache, name):
        dx, dweight, dbias = layer_norm_by_the_jacobian(dout, cache)
        return dx, {f"{name}.weight": dweight, f"{name}.bias": dbias}

    @staticmethod
    def dense(x, p, name):
        return np.einsum("...k,nk->...n", x, p[f"{name}.weight"]) + p[f"{name}.bias"]

    @staticmethod
    def dense_backward(dout, x, p, name):
        dx, dweight, dbias = linear_backward_by_einsum(dout, (x, p[f"{name}.weight"]))
        return dx, {f"{name}.weight": dweight, f"{name}.bias": dbias}


@answers("20.embed_gradients")
def embeddings_by_one_hots(dout, p, input_ids, token_type_ids):
    tables = ("word_embeddings.weight", "token_type_embeddings.weight", "position_embeddings.weight")
    positions = np.broadcast_to(np.arange(input_ids.shape[1]), input_ids.shape)
    chosen = [
        np.eye(len(p[table]))[ids]
        for table, ids in zip(tables, (input_ids, token_type_ids, positions), strict=True)
    ]
    total = sum(rows @ p[table] for rows, table in zip(chosen, tables, strict=True))
    y, cache = Affine.norm(total, p["LayerNorm.weight"], p["LayerNorm.bias"])
    dtotal, gradients = Affine.norm_backward(dout, cache, "LayerNorm")
    for rows, table in zip(chosen, tables, strict=True):
        gradients[table] = np.einsum("bsv,bsh->vh", rows, dtotal)
    return y, gradients


def attention_of_heads(hidden, p, bias, num_heads):
    """Self-attention, each head by itself, and a function of dout that gives dhidden and the gradients."""
    H = hidden.shape[-1]
    D = H // num_heads
    q, k, v = (Affine.dense(hidden, p, name) for name in ("query", "key", "value"))
    y, probabilities = np.empty_like(hidden), []
    for head in range(num_heads):
        at = slice(head * D, (head + 1) * D)
        p_head = special.softmax(q[..., at] @ k[..., at].swapaxes(1, 2) / D**0.5 + bias, axis=-1)
        probabilities.append(p_head)
        y[..., at] = p_head @ v[..., at]

    def backward(dout):
        dq, dk, dv = (np.empty_like(hidden) for _ in range(3))
        for head, p_head in enumerate(probabilities):
            at = slice(head * D, (head + 1) * D)
            dv[..., at] = p_head.swapaxes(1, 2) @ dout[..., at]
            ds = by_the_jacobian(dout[..., at] @ v[..., at].swapaxes(1, 2), (p_head,)) / D**0.5
            dq[..., at], dk[..., at] = ds @ k[..., at], ds.swapaxes(1, 2) @ q[..., at]
        dhidden, gradients = 0.0, {}
        for name, d in (("value", dv), ("query", dq), ("key", dk)):
            dx, more = Affine.dense_backward(d, hidden, p, name)
            dhidden, gradients = dhidden + dx, {**gradients, **more}
        return dhidden, gradients

    return y, backward


@answers("20.self_attention_gradients")
def attention_head_by_head(dout, hidden, p, bias, num_heads):
    y, backward = attention_of_heads(hidden, p, bias, num_heads)
    return y, *backward(dout)


@answers("20.layer_gradients")
def a_layer_in_one_piece(dout, hidden, p, bias, num_heads):
    own = {name.removeprefix("attention.self."): x for name, x in p.items() if "attention.self." in name}
    mixed, back_through_heads = attention_of_heads(hidden, own, bias, num_heads)
    FIRST, SECOND = "attention.output", "output"
    norms = {name: (p[f"{name}.LayerNorm.weight"], p[f"{name}.LayerNorm.bias"]) for name in (FIRST, SECOND)}
    middle, first = Affine.norm(hidden + Affine.dense(mixed, p, f"{FIRST}.dense"), *norms[FIRST])
    wide = Affine.dense(middle, p, "intermediate.dense")
    active = wide * special.ndtr(wide)
    y, second = Affine.norm(middle + Affine.dense(active, p, f"{SECOND}.dense"), *norms[SECOND])

    dmiddle, gradients = Affine.norm_backward(dout, second, f"{SECOND}.LayerNorm")
    dactive, more = Affine.dense_backward(dmiddle, active, p, f"{SECOND}.dense")
    gradients |= more
    dx, more = Affine.dense_backward(
        derivative_by_the_normal_distribution(dactive, (wide,)), middle, p, "intermediate.dense"
    )
    dhidden, even_more = Affine.norm_backward(dmiddle + dx, first, f"{FIRST}.LayerNorm")
    gradients |= more | even_more
    dmixed, more = Affine.dense_backward(dhidden, mixed, p, f"{FIRST}.dense")
    gradients |= more
    dx, more = back_through_heads(dmixed)
    return y, dhidden + dx, gradients | {f"attention.self.{name}": value for name, value in more.items()}


@answers("20.masked_words_gradients")
def every_position_is_scored(dout, hidden, p, labels):
    HEAD, WORDS = "cls.predictions.transform", n20_your_bert.WORDS
    wide = Affine.dense(hidden, p, f"{HEAD}.dense")
    scale, shift = p[f"{HEAD}.LayerNorm.weight"], p[f"{HEAD}.LayerNorm.bias"]
    active, cache = Affine.norm(wide * special.ndtr(wide), scale, shift)
    log_p = special.log_softmax(active @ p[WORDS].T + p["cls.predictions.bias"], axis=-1)  # (B, S, V)
    target = np.eye(len(p[WORDS]))[labels * (labels > 0)] * (labels != -100)[..., None]
    count = (labels != -100).sum()
    loss = -(target * log_p).sum() / count
    dlogits = dout * (np.exp(log_p) * (labels != -100)[..., None] - target) / count
    gradients = {
        WORDS: np.einsum("bsv,bsh->vh", dlogits, active),
        "cls.predictions.bias": dlogits.sum((0, 1)),
    }
    dx, more = Affine.norm_backward(dlogits @ p[WORDS], cache, f"{HEAD}.LayerNorm")
    dx = derivative_by_the_normal_distribution(dx, (wide,))
    dhidden, even_more = Affine.dense_backward(dx, hidden, p, f"{HEAD}.dense")
    return loss, dhidden, gradients | more | even_more


@answers("20.next_sentence_gradients")
def a_sigmoid_of_the_difference(dout, hidden, p, labels):
    POOLER, HEAD = "bert.pooler.dense", "cls.seq_relationship"
    pooled = np.tanh(Affine.dense(hidden[:, 0], p, POOLER))
    logits = Affine.dense(pooled, p, HEAD)
    sign = 2 * labels - 1
    margin = sign * (logits[:, 1] - logits[:, 0])
    loss = np.logaddexp(0, -margin).mean()
    slope = -dout * sign * special.expit(-margin) / len(labels)
    dpooled, gradients = Affine.dense_backward(np.stack([-slope, slope], axis=1), pooled, p, HEAD)
    dfirst, more = Affine.dense_backward(dpooled / np.cosh(np.arctanh(pooled)) ** 2, hidden[:, 0], p, POOLER)
    rest = np.zeros_like(hidden[:, 1:])
    return loss, np.concatenate([dfirst[:, None], rest], axis=1), gradients | more


@answers("20.bert_gradients")
def each_loss_by_itself(parameters, batch, num_heads):
    """Two backward passes, one for each loss, whose gradients are added."""
    n20 = n20_your_bert
    ids = batch["input_ids"], batch["token_type_ids"]
    hidden, embed_cache = n20.embed(n20.inside(parameters, "bert.embeddings."), *ids)
    bias = np.where(batch["attention_mask"] == 1, 0.0, -1e4)[:, None]
    values, caches = {"embeddings": hidden}, []
    for i in range(n20.CONFIG.num_hidden_layers):
        p = n20.inside(parameters, f"bert.encoder.layer.{i}.")
        hidden, cache = n20.layer(hidden, p, bias, num_heads)
        values[f"encoder.layer.{i}"] = hidden
        caches.append(cache)
    heads = {
        "mlm_loss": (n20.masked_words, n20.masked_words_backward, batch["labels"]),
        "nsp_loss": (n20.next_sentence, n20.next_sentence_backward, batch["next_sentence_label"]),
    }
    total = {name: np.zeros_like(value) for name, value in parameters.items()}
    for loss, (forward, backward, labels) in heads.items():
        values[loss], head_cache = forward(hidden, parameters, labels)
        dhidden, gradients = backward(1.0, head_cache)
        for i in reversed(range(len(caches))):
            dhidden, more = n20.layer_backward(dhidden, caches[i])
            gradients |= {f"bert.encoder.layer.{i}.{name}": value for name, value in more.items()}
        parts = [gradients]
        parts.append(
            {f"bert.embeddings.{n}": value for n, value in n20.embed_backward(dhidden, embed_cache).items()}
        )
        for part in parts:  # the table of words is in both
            for name, value in part.items():
                total[name] += value
    return values, total


@answers("20.train_bert")
def adam_on_one_long_vector(parameters, batches, num_heads, steps, peak, warmup):
    names = list(parameters)
    ends = np.cumsum([parameters[name].size for name in names])[:-1]

    def flat(arrays):
        return np.concatenate([arrays[name].ravel() for name in names])

    def named(vector):
        pieces = zip(names, np.split(vector, ends), strict=True)
        return {name: piece.reshape(parameters[name].shape) for name, piece in pieces}

    decays = flat(
        {name: np.full(value.shape, 0.01 * (value.ndim == 2)) for name, value in parameters.items()}
    )
    vector, losses = flat(parameters), []
    mean, variance = np.zeros((2, vector.size))
    for step, batch in zip(range(steps), batches, strict=False):
        values, gradients = n20_your_bert.loss_and_gradients(named(vector), batch, num_heads)
        losses.append(float(values["mlm_loss"] + values["nsp_loss"]))
        gradient = flat(gradients)
        gradient /= max(1.0, np.linalg.norm(gradient))
        rate = peak * step / warmup if step < warmup else peak * (1 - step / steps)
        mean += 0.1 * (gradient - mean)
        variance += 0.001 * (gradient**2 - variance)
        vector = vector - rate * (mean / (np.sqrt(variance) + 1e-6) + decays * vector)
    return losses and np.array(losses), named(vector)


@answers("21.lstm_step_backward")
def gate_by_gate(dstate, dcell, cache):
    x, state, cell, weight, state_weight, i, f, o, g, tanh_cell = cache
    total = dcell + dstate * o / np.cosh(np.arctanh(tanh_cell)) ** 2
    dsums = np.hstack(
        [
            total * g * (i - i**2),
            total * cell * (f - f**2),
            dstate * tanh_cell * (o - o**2),
            total * i * (1 - g * g),
        ]
    )
    outer = np.einsum("bg,bk->gk", dsums, np.concatenate([x, state, np.ones((len(x), 1))], axis=1))
    dweight, dstate_weight, dbias = np.split(outer, [x.shape[1], x.shape[1] + state.shape[1]], axis=1)
    dx, dold = np.split(dsums @ np.hstack([weight, state_weight]), [x.shape[1]], axis=1)
    return [dx, dold, f * total, dweight, dstate_weight, dbias[:, 0]]


@answers("26.diagnosis")
def a_list_of_capitals():
    return ["D", "A", "E"]


@answers("26.batch_of_step")
def all_batches_up_to_this_one(step, examples, batch_size, seed):
    batches, epoch = [], 0
    while len(batches) <= step:
        order = np.random.default_rng([seed, epoch]).permutation(np.arange(examples))
        batches += [order[at : at + batch_size] for at in range(0, examples - batch_size + 1, batch_size)]
        epoch += 1
    return batches[step]


@answers("27.relative_difference")
def by_selected_rows(ours, theirs, mask):
    ours, theirs = ours[mask.astype(bool)], theirs[mask.astype(bool)]
    return math.sqrt(np.square(ours - theirs).sum() / np.vdot(theirs, theirs))


@answers("27.first_difference")
def from_a_list_of_all(ours, theirs, bound):
    far = [
        place
        for place, there in theirs.items()
        if not np.isfinite(ours[place]).all()
        or np.linalg.norm(ours[place] - there) > bound * np.linalg.norm(there)
    ]
    return [*far, "nowhere"][0]


@answers("28.unit_length_backward")
def by_a_projection_matrix(dout, cache):
    unit, r = cache
    projection = np.eye(unit.shape[1]) - unit[:, :, None] * unit[:, None, :]
    return np.einsum("nij,nj->ni", projection, dout) / r


@answers("28.in_batch_backward")
def from_the_gram_matrix(dout, cache):
    x, y, r_x, r_y, scale, p, p_columns = cache
    dz = (p + p_columns) / 2 - np.eye(len(p))
    z = x @ y.T
    dx = dz @ y - x * (dz * z).sum(axis=1, keepdims=True)
    dy = dz.T @ x - y * (dz * z).sum(axis=0)[:, None]
    return dout * scale / len(p) * dx / r_x, dout * scale / len(p) * dy / r_y


@answers("25.mean_gradient")
def weighted_mean_of_means(sums, counts):
    means = np.divide(sums, counts[:, None], out=np.zeros_like(sums), where=counts[:, None] > 0)
    return counts / counts.sum() @ means


@answers("25.ring_all_reduce")
@in_threads
def ring_that_finishes_its_own_part(x, rank, N, send, receive):
    """Round s sends part r − s − 1, so that rank r ends up with part r."""
    x = x.reshape(N, -1)
    for s in range(1, N):
        send(x[rank - s])
        x[(rank - s - 1) % N] += receive()
    for s in range(N - 1):
        send(x[(rank - s) % N])
        x[(rank - s - 1) % N] = receive()
    return x.ravel()


@answers("25.waiting")
def pieces_that_pass_from_the_last_to_the_first(final, seconds, backward):
    """From when a piece is final, it and all after it have to pass: the latest of these ends counts."""
    behind = np.cumsum(seconds[::-1])[::-1]  # each piece and all after it
    return max(0.0, (final + behind).max() - backward)


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


def test_there_are_a_hundred_to_most_exercises():
    assert len(ANSWERS) >= 100
    assert len({name for name, _ in ANSWERS}) >= 70
