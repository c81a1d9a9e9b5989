"""masked-LM loss. The (N, V) scores, the largest array of a step, are made and read a few words at a time.

A chunk of the vocabulary is small enough to stay in the cache from the product that makes its scores to
the last loop over them. Since the largest score and the sum of the exponentials run over all words, the
forward keeps each chunk's own and combines them at the end:

    log Σⱼ exp(z[j]) = m + log Σ_chunks exp(m_chunk − m) Σ_{j in chunk} exp(z[j] − m_chunk),   m = max m_chunk

The exponentials exp(z − m_chunk) replace the scores. The backward need not compute them again: the softmax p
is exp(m_chunk) / Σⱼ exp(z[j]) times as large. Each chunk is read once, and dscores = dout · weight /
denominator · (p − [j = label]) is then in the cache for all three products that need it.
"""

from functools import partial

import numpy as np

from minibert.kernels.cpu.compiled import compiled, exp, float32, int32, ordered, unordered
from minibert.kernels.cpu.factors import factor, rows_factor
from minibert.kernels.cpu.memory import empty, empty_like
from minibert.products import multiply
from minibert.threads import run_all

SCORES = 1 << 18  # per chunk: a megabyte of float32
GROUPS = 8  # of chunks; each sums its own share of dhidden, so that the order of the sums is fixed


@compiled
def _part_of_softmax(scores, bias, labels, first, largest, total, of_label):
    """z = scores + bias; per row the largest z and the label's, if it is here; scores ← exp(z − largest)."""
    for r in range(len(scores)):
        row = scores[r]
        top = int32(-0x80000000)
        for j in range(len(row)):
            row[j] += bias[j]
            top = max(top, ordered(row[j]))
        label = labels[r] - first
        if 0 <= label < len(row):
            of_label[r] = row[label]
        shift = unordered(top)
        if shift == -np.inf:  # no word of this chunk is possible
            shift = float32(0.0)
        sum_ = float32(0.0)
        for j in range(len(row)):
            row[j] = exp(row[j] - shift)
            sum_ += row[j]
        largest[r], total[r] = unordered(top), sum_


@compiled
def _part_of_gradient(exponentials, labels, first, share, scale, dscores, dbias):
    """dscores = share · exponentials − scale · [j = label], and its sums over the rows."""
    dbias[:] = float32(0.0)
    for r in range(len(exponentials)):
        row, out = exponentials[r], dscores[r]
        for j in range(len(row)):
            out[j] = row[j] * share[r]
        label = labels[r] - first
        if 0 <= label < len(row):
            out[label] -= scale[r]
        for j in range(len(row)):
            dbias[j] += out[j]


def masked_lm_loss(
    hidden: np.ndarray,
    weight: np.ndarray,
    bias: np.ndarray,
    labels: np.ndarray,
    label_weights: np.ndarray,
    denominator: float,
) -> tuple[np.ndarray, tuple]:
    """See ``composites.masked_lm_loss``."""
    count = len(labels)
    labels, bias = np.ascontiguousarray(labels, dtype=np.int64), np.ascontiguousarray(bias)
    hidden_factor = rows_factor(hidden)
    rows = len(hidden_factor)  # N, or a few more in bfloat16
    chunks = _chunks(rows, len(weight))
    scores = empty((rows * len(weight),))  # chunk after chunk, each (rows, its words)
    largest, total = empty((len(chunks), count)), empty((len(chunks), count))
    of_label = np.zeros(count, dtype=np.float32)  # stays 0 for a label that is not a word

    def chunk(number: int, words: slice) -> None:
        z = _of_chunk(scores, words, rows)
        multiply(hidden_factor, factor(weight[words]).T, z)
        of_chunk = largest[number], total[number]
        _part_of_softmax(z[:count], bias[words], labels, words.start, *of_chunk, of_label)

    run_all(partial(chunk, *each) for each in enumerate(chunks))
    top = largest.max(axis=0)
    shares = np.exp(largest - top)  # (chunks, N)
    sums = (total * shares).sum(axis=0)  # (N,): Σ exp(z − top) over all words
    scale = label_weights / float32(denominator)
    loss = (scale * (top + np.log(sums) - of_label)).sum()
    shares *= scale / sums  # so that exp(z − largest) · share = scale · p
    return loss, (hidden, weight, scores, labels, shares, scale)


def masked_lm_loss_backward(
    dout: np.ndarray | float, cache: tuple
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """See ``composites.masked_lm_loss_backward``."""
    hidden, weight, scores, labels, shares, scale = cache
    shares, scale = shares * float32(dout), scale * float32(dout)
    hidden_factor, count = rows_factor(hidden), len(hidden)
    chunks = _chunks(len(hidden_factor), len(weight))
    dweight, dbias = empty_like(weight), empty((len(weight),))
    dhidden = np.zeros((GROUPS, *hidden.shape), dtype=hidden.dtype)

    def group(number: int) -> None:
        part = empty_like(hidden_factor)
        for words, share in zip(chunks[number::GROUPS], shares[number::GROUPS], strict=True):
            exponentials = _of_chunk(scores, words, len(hidden_factor))[:count]
            dscores = empty_like(exponentials)
            _part_of_gradient(exponentials, labels, words.start, share, scale, dscores, dbias[words])
            dscores = rows_factor(dscores)
            multiply(dscores.T, hidden_factor, dweight[words])
            multiply(dscores, factor(weight[words]), part)
            dhidden[number] += part[:count]

    run_all(partial(group, number) for number in range(GROUPS))
    return dhidden.sum(axis=0), dweight, dbias


def _chunks(count: int, vocabulary: int) -> list[slice]:
    """The vocabulary in pieces whose scores at ``count`` positions fit the cache."""
    width = min(max(SCORES // max(count, 1), 128), vocabulary)
    return [slice(start, min(start + width, vocabulary)) for start in range(0, vocabulary, width)]


def _of_chunk(scores: np.ndarray, words: slice, count: int) -> np.ndarray:
    """The scores (N, words) of a chunk, in the buffer of all."""
    return scores[count * words.start : count * words.stop].reshape(count, words.stop - words.start)
