"""25 Many devices: the mean over several ranks, a ring all-reduce, and what the backward pass hides."""

import numpy as np

from minibert.course.exercise import Trial, exercise
from minibert.course.ring import in_threads
from minibert.gradcheck import Draws

# -- The gradient of all ranks ----------------------------------------------------------------------------


def _unequal_ranks(draw: Draws) -> list[Trial]:
    """Gradients of single tokens, added up by ranks that have different numbers of them."""
    trials = []
    for label, counts in (("3 ranks", [2, 7, 3]), ("one without tokens", [4, 0, 1, 5])):
        tokens = [draw.normal(count, 6) for count in counts]
        arguments = {"sums": np.array([each.sum(axis=0) for each in tokens]), "counts": np.array(counts)}
        trials.append(Trial(arguments, label, {"gradient": np.concatenate(tokens).mean(axis=0)}))
    return trials


@exercise(
    "25",
    outputs="gradient",
    trials=_unequal_ranks,
    independent="one rank with all tokens",
    level=1,
    minutes=5,
    needs="the mean in the loss of [03](03_softmax_cross_entropy.ipynb)",
    hints=(
        "What would one rank with all tokens compute? A sum over all tokens, divided by their number.",
        "The sum over all tokens is the sum of the ranks' sums. How many tokens are there in all?",
        "sums.sum(axis=0) / counts.sum().",
    ),
)
def mean_gradient(sums, counts):
    return sums.sum(axis=0) / counts.sum()


def _means(sums, counts):
    with np.errstate(invalid="ignore"):  # a rank without tokens has no mean
        return sums / counts[:, None]


@mean_gradient.mistake(
    "This is a mean of means. A token of a rank with few tokens counts for more in it than one of a rank "
    "with many. Add up numerators and denominators separately."
)
def mean_of_means(sums, counts):
    return _means(sums, counts).mean(axis=0)


@mean_gradient.mistake("The means of the ranks are added. So the gradient grows with the number of ranks.")
def sum_of_means(sums, counts):
    return _means(sums, counts).sum(axis=0)


@mean_gradient.mistake("The sum of all gradients, but of how many tokens? Divide by their number.")
def not_divided(sums, counts):
    return sums.sum(axis=0)


@mean_gradient.mistake("Divided by the number of ranks. The loss is a mean over tokens: divide by those.")
def divided_by_the_ranks(sums, counts):
    return sums.mean(axis=0)


@mean_gradient.mistake("Divided by the tokens of the first rank. Each rank has its own number: add them up.")
def tokens_of_one_rank(sums, counts):
    return sums.sum(axis=0) / counts[0]


@mean_gradient.mistake("The ranks' sums are weighted by their counts, which they already contain.")
def weighted_twice(sums, counts):
    return (counts[:, None] * sums).sum(axis=0) / counts.sum()


# -- The ring ---------------------------------------------------------------------------------------------


def _rings(draw: Draws) -> list[Trial]:
    trials = []
    for N, n in ((4, 12), (3, 6), (5, 10)):
        xs = draw.normal(N, n)
        sent = np.full(N, 2 * (N - 1) / N * n)
        expected = {"sums": np.tile(xs.sum(axis=0), (N, 1)), "sent": sent}
        trials.append(Trial({"xs": xs}, f"N = {N}", expected))
    return trials


def _ring(x, N, send, receive, first, second, add=True, keep=False, rounds=None):
    """A ring that passes on part ``first(s)`` in round s of reduce-scatter, ``second(s)`` in all-gather."""
    parts = [part.copy() for part in np.split(x, N)]
    for s in range(N - 1 if rounds is None else rounds):
        send(parts[first(s) % N])
        parts[(first(s) - 1) % N] = receive() + (parts[(first(s) - 1) % N] if add else 0)
    for s in range(N - 1):
        send(parts[second(s) % N])
        parts[(second(s) - 1) % N] = receive() + (parts[(second(s) - 1) % N] if keep else 0)
    return np.concatenate(parts)


@exercise(
    "25",
    outputs="sums sent",
    trials=_rings,
    independent="a sum over all ranks",
    level=3,
    minutes=30,
    needs="the two halves of section 3, and numbers modulo N",
    hints=(
        "Draw four ranks and their parts. In the first round rank r sends part r. What does it receive, and "
        "where does it add it?",
        "What a rank has just added is what it sends next: part r − s in round s. After N − 1 rounds, rank r "
        "has all of part r + 1, and the second half begins with it.",
        "Round s: send part (r − s) mod N, add to part (r − s − 1) mod N. Then: send part (r + 1 − s) mod N, "
        "replace part (r − s) mod N.",
    ),
    hints_for={
        "sent": (
            "The sums are right, but each rank sends more than it has to, or less than you think.",
            "One message is a part of n/N numbers. How many messages does each rank send?",
            "N − 1 messages in each half: 2 (N − 1) · n/N numbers.",
        )
    },
)
@in_threads
def ring_all_reduce(x, rank, N, send, receive):
    return _ring(x, N, send, receive, lambda s: rank - s, lambda s: rank + 1 - s)


@ring_all_reduce.mistake(
    "The sums are right, but whole arrays go round the ring: (N − 1) · n numbers from each rank. Cut them "
    "into N parts, and send one part in each round."
)
@in_threads
def whole_arrays_go_round(x, rank, N, send, receive):
    total, passing = x.copy(), x
    for _ in range(N - 1):
        send(passing)
        passing = receive()
        total += passing
    return total


@ring_all_reduce.mistake(
    "The second half is missing: after N − 1 rounds each rank has one part of the sum. Pass these on."
)
@in_threads
def all_gather_missing(x, rank, N, send, receive):
    parts = [part.copy() for part in np.split(x, N)]
    for s in range(N - 1):
        send(parts[(rank - s) % N])
        parts[(rank - s - 1) % N] += receive()
    return np.concatenate(parts)


@ring_all_reduce.mistake(
    "Each part is what one rank alone had. Either what is received in the first half replaces a part instead "
    "of being added to it, or the second half begins with part r, to which rank r has added nothing."
)
@in_threads
def parts_of_one_rank_alone(x, rank, N, send, receive):
    return _ring(x, N, send, receive, lambda s: rank - s, lambda s: rank + 1 - s, add=False)


@ring_all_reduce.mistake(
    "In the second half, what is received is added. It is a finished sum: replace what is there by it."
)
@in_threads
def added_in_the_second_half(x, rank, N, send, receive):
    return _ring(x, N, send, receive, lambda s: rank - s, lambda s: rank + 1 - s, keep=True)


@ring_all_reduce.mistake(
    "In every round of the first half, a rank sends its part r. It should send on what it has just added to."
)
@in_threads
def always_the_same_part(x, rank, N, send, receive):
    return _ring(x, N, send, receive, lambda s: rank, lambda s: rank + 1 - s)


@ring_all_reduce.mistake("The first half has a round too many: N − 1 rounds bring each part past everybody.")
@in_threads
def a_round_too_many(x, rank, N, send, receive):
    return _ring(x, N, send, receive, lambda s: rank - s, lambda s: rank - s, rounds=N)


@ring_all_reduce.mistake(
    "This is the mean of all ranks. An all-reduce adds. What to divide by is another question."
)
@in_threads
def mean_instead_of_sum(x, rank, N, send, receive):
    return _ring(x, N, send, receive, lambda s: rank - s, lambda s: rank + 1 - s) / N


# -- What the backward pass hides -------------------------------------------------------------------------


def _backward_passes(draw: Draws) -> list[Trial]:
    """Pieces that become final one after the other, on a fast link, a slow one and a very slow one."""
    trials = []
    for label, link in (("fast link", 0.1), ("slow link", 1.5), ("very slow link", 6.0)):
        final = np.cumsum(0.5 + np.abs(draw.normal(5)))
        seconds = link * (0.5 + np.abs(draw.normal(5)))
        backward = float(final[-1] + (0.0 if link > 1 else 2.0))
        trials.append(Trial({"final": final, "seconds": seconds, "backward": backward}, label))
    return trials


@exercise(
    "25",
    outputs="waiting",
    trials=_backward_passes,
    level=2,
    minutes=10,
    needs="section 6 so far",
    hints=(
        "Go through the pieces one by one and remember when the link is free again.",
        "A piece starts when it is final and the link is free, whichever is later. Its end is the new time "
        "at which the link is free.",
        "done = max(final[i], done) + seconds[i]; in the end max(0, done − backward).",
    ),
)
def waiting(final, seconds, backward):
    return max(0.0, _last_done(final, seconds) - backward)


def _last_done(final, seconds):
    done = 0.0
    for begin, takes in zip(final, seconds, strict=True):
        done = max(begin, done) + takes
    return done


@waiting.mistake("Nothing is hidden: this is the time of all messages. They start during the backward pass.")
def nothing_hidden(final, seconds, backward):
    return float(seconds.sum())


@waiting.mistake(
    "The link is taken to be busy from the beginning. A piece cannot be sent before it is final."
)
def sent_before_it_is_final(final, seconds, backward):
    return max(0.0, float(seconds.sum()) - backward)


@waiting.mistake("Every piece starts as soon as it is final. If the link is still busy, it has to wait.")
def all_at_once(final, seconds, backward):
    return max(0.0, float((final + seconds).max()) - backward)


@waiting.mistake("This is when the link has finished. Waiting begins when the backward pass has ended.")
def the_end_itself(final, seconds, backward):
    return _last_done(final, seconds)


@waiting.mistake("Negative: the link was done before the backward pass. Then nobody waits, so 0.")
def less_than_nothing(final, seconds, backward):
    return _last_done(final, seconds) - backward


@waiting.mistake("Only the last piece is waited for here. Those before it may have made the link late.")
def only_the_last_piece(final, seconds, backward):
    return max(0.0, float(final[-1] + seconds[-1]) - backward)
