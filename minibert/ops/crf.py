"""The linear-chain conditional random field: tags that depend on their neighbours.

A sentence of n words has the tags y₁ … yₙ, each one of K. The tag sequence as a whole has a score and a
probability (Lafferty, McCallum and Pereira, 2001):

    score(y) = start[y₁] + Σₜ emissions[t, yₜ] + Σₜ transitions[yₜ₋₁, yₜ] + end[yₙ]
    p(y) = exp(score(y)) / Z,     Z = Σ exp(score) over all Kⁿ tag sequences

If start, end and transitions are zero, the words are independent, and this is one softmax per word.
Here S counts words: a mask (B, S) is 1 for the words of a sentence and 0 after the last one.
"""

from minibert.arrays import Array, get_array_module
from minibert.ops.stable_softmax import log_sum_exp, softmax

Cache = tuple


def crf_nll(
    emissions: Array,
    start: Array,
    end: Array,
    transitions: Array,
    tags: Array,
    mask: Array,
    denominator: float,
) -> tuple[Array, Cache]:
    """loss = Σ_b −log p(tags[b]) / denominator = Σ_b (log Z[b] − score(tags[b])) / denominator.

    emissions (B, S, K), start and end (K,), transitions (K, K) from row to column, tags (B, S) integers
    in [0, K), mask (B, S) of the emissions' dtype → loss, a 0-d array, in nats. A sentence without words
    does not count.

    Z has Kⁿ terms, but the *forward algorithm* needs only K sums at a time. α[t, j] is the logarithm of the
    sum over all tag sequences for the words up to t that end with tag j. It follows from those of the word
    before:

        α[1, j] = start[j] + emissions[1, j]
        α[t, j] = log Σᵢ exp(α[t−1, i] + transitions[i, j]) + emissions[t, j]
        log Z   = log Σⱼ exp(α[n, j] + end[j])

    After the last word α stays the same. A number that is added to all emissions of a word cancels. So we
    subtract the largest one: α then stays small in long sentences, and precise.
    """
    xp = get_array_module(emissions)
    emissions = emissions - emissions.max(axis=2, keepdims=True)
    emissions = emissions * mask[:, :, None]  # what comes after the last word does not matter
    alphas = [start + emissions[:, 0]]  # S of (B, K)
    for t in range(1, emissions.shape[1]):
        arriving = log_sum_exp(alphas[-1][:, :, None] + transitions, axis=1)  # (B, K)
        alphas.append(xp.where(mask[:, t, None] > 0, arriving + emissions[:, t], alphas[-1]))
    log_z = log_sum_exp(alphas[-1] + end, axis=1)  # (B,)

    taken = (tags[:, :, None] == xp.arange(len(end))) * mask[:, :, None]  # (B, S, K): 1 at each word's tag
    is_last = mask - xp.concatenate([mask[:, 1:], xp.zeros_like(mask[:, :1])], axis=1)  # (B, S)
    scores = (taken[:, 0] * start).sum() + (taken * is_last[:, :, None] * end).sum()
    scores = scores + (taken * emissions).sum() + ((taken[:, :-1] @ transitions) * taken[:, 1:]).sum()
    loss = ((mask[:, 0] * log_z).sum() - scores) / denominator
    return loss, (emissions, end, transitions, mask, is_last, taken, alphas, denominator)


def crf_nll_backward(dout: Array | float, cache: Cache) -> tuple[Array, Array, Array, Array]:
    """Derivatives of :func:`crf_nll`: demissions, dstart, dend, dtransitions. dout is a scalar.

    forward: log Z = log Σ_y exp(score(y)), so for any number w that is part of the scores

        ∂log Z/∂w = Σ_y p(y) ∂score(y)/∂w        how often w is expected to be used
        ∂loss/∂w  = expected − taken              … minus how often the correct tags use it

    As for the softmax, the gradient is "prediction minus truth". How often we expect tag j at word t, and
    tag j after tag i, takes a second recursion, from the end (the *backward algorithm*). β[t, i] is the
    logarithm of the sum over all ways to continue after tag i at word t:

        β[n, i]   = end[i]
        β[t−1, i] = log Σⱼ exp(transitions[i, j] + emissions[t, j] + β[t, j])

        p(yₜ = j)            = exp(α[t, j] + β[t, j]) / Z
        p(yₜ = j | yₜ₋₁ = i) = exp(transitions[i, j] + emissions[t, j] + β[t, j]) / exp(β[t−1, i])
        p(yₜ₋₁ = i, yₜ = j)  = p(yₜ₋₁ = i) p(yₜ = j | yₜ₋₁ = i)

    The first two are softmaxes over j. In a softmax, rounding errors that all scores share cancel; from
    exp(α[t, j] + β[t, j] − log Z) they would not go away.

    Only first words use start and only last words use end, so their gradients are sums over those words.
    """
    emissions, end, transitions, mask, is_last, taken, alphas, denominator = cache
    xp = get_array_module(emissions)
    scale, inside = mask * (dout / denominator), mask[:, :, None] > 0  # (B, S), (B, S, 1)
    dtransitions = -xp.einsum("bti,btj,bt->ij", taken[:, :-1], taken[:, 1:], scale[:, 1:])  # (K, K)
    beta, expected = end, [softmax(alphas[-1] + end)[0]]  # S of (B, K), from the last to the first
    for t in reversed(range(1, len(alphas))):
        ahead = transitions + (emissions[:, t] + beta)[:, None, :]  # (B, K, K)
        beta = xp.where(inside[:, t], log_sum_exp(ahead, axis=2), end)  # (B, K)
        expected.append(softmax(alphas[t - 1] + beta)[0])
        pairs = expected[-1][:, :, None] * softmax(ahead)[0]  # (B, K, K)
        dtransitions += xp.einsum("bij,b->ij", pairs, scale[:, t])
    demissions = (xp.stack(expected[::-1], axis=1) - taken) * scale[:, :, None]  # (B, S, K)
    dend = xp.einsum("btk,bt->k", demissions, is_last)
    return demissions, demissions[:, 0].sum(axis=0), dend, dtransitions


def viterbi(emissions: Array, start: Array, end: Array, transitions: Array, mask: Array) -> Array:
    """The tag sequence with the highest score (Viterbi, 1967): tags (B, S), 0 after the last word.

    This is the forward algorithm with max in place of Σ. For each tag it remembers the tag before it on the
    best path; then it follows the best path back from the end. Ties go to the lowest tag. The arguments are
    those of :func:`crf_nll`.
    """
    xp = get_array_module(emissions)
    stay = xp.arange(emissions.shape[2])  # what is remembered after the last word: the same tag
    best, came_from = start + emissions[:, 0], []
    for t in range(1, emissions.shape[1]):
        scores = best[:, :, None] + transitions  # (B, K, K)
        inside = mask[:, t, None] > 0
        came_from.append(xp.where(inside, scores.argmax(axis=1), stay))  # (B, K)
        best = xp.where(inside, scores.max(axis=1) + emissions[:, t], best)  # (B, K)
    rows = xp.arange(emissions.shape[0])
    tags = [(best + end).argmax(axis=1)]  # (B,) each, from the last to the first
    for before in reversed(came_from):
        tags.append(before[rows, tags[-1]])
    return xp.where(mask > 0, xp.stack(tags[::-1], axis=1), 0)
