"""What is predicted: masked tokens, or the next token; for many instances at once."""

from collections.abc import Sequence

import numpy as np

IGNORED = -100  # the label where nothing is predicted


def choose_positions(
    candidates: np.ndarray,
    lengths: np.ndarray,
    word_starts: np.ndarray,
    masked_lm_prob: float,
    max_predictions: int,
    rng: np.random.Generator,
) -> np.ndarray:
    """Which positions of each instance are predicted: (n, S) bool.

    candidates (n, S) bool: text tokens, neither special nor padding; lengths (n,): tokens including the
    special ones; word_starts (n, S) bool: where a word begins among the candidates (if everywhere, each
    subword is chosen by itself).

    An instance gets min(max_predictions, max(1, round(masked_lm_prob · length))) positions: its words are
    taken in random order as long as they fit. A word that would be too much is skipped, so with whole words
    there may be fewer positions.
    """
    wanted = np.minimum(max_predictions, np.maximum(1, np.rint(masked_lm_prob * lengths))).astype(np.int64)
    n, seq_length = candidates.shape
    rows = np.arange(n)
    # word[i, s]: the number of the word that position s belongs to; sizes[i, w]: subwords of word w.
    word = np.cumsum(word_starts & candidates, axis=1) - 1
    flat = (word + rows[:, None] * seq_length)[candidates]
    sizes = np.bincount(flat, minlength=n * seq_length).reshape(n, seq_length)
    keys = rng.random((n, seq_length), dtype=np.float32)
    keys[sizes == 0] = 2.0  # words that are not there come last
    order = np.argsort(keys, axis=1)

    taken = np.zeros((n, seq_length), dtype=bool)  # by word
    total = np.zeros(n, dtype=np.int64)
    for rank in range(seq_length):
        word_now = order[:, rank]
        size = sizes[rows, word_now]
        fits = (size > 0) & (total + size <= wanted)
        taken[rows, word_now] = fits
        total += size * fits
        if np.all(total == wanted):
            break
    return candidates & np.take_along_axis(taken, np.maximum(word, 0), axis=1)


def mask_tokens(
    input_ids: np.ndarray,
    chosen: np.ndarray,
    mask_id: int,
    vocab_size: int,
    rng: np.random.Generator,
    shares: Sequence[int] = (80, 10, 10),
) -> tuple[np.ndarray, np.ndarray]:
    """Replace the chosen tokens: 80 % by [MASK], 10 % left as they are, 10 % by any token at random.

    ``shares`` are these percentages. Returns the new input_ids and the labels, both (n, S): the labels are
    the original tokens at the chosen positions, and −100 elsewhere.
    """
    labels = np.where(chosen, input_ids, np.int32(IGNORED))
    places = np.flatnonzero(chosen)
    fate = rng.random(len(places))
    anything = rng.integers(vocab_size, size=len(places), dtype=input_ids.dtype)
    masked = input_ids.copy()
    kept = masked.ravel()[places]
    hidden, unchanged = shares[0] / 100, (shares[0] + shares[1]) / 100
    masked.ravel()[places] = np.where(fate < hidden, mask_id, np.where(fate < unchanged, kept, anything))
    return masked, labels


def next_tokens(input_ids: np.ndarray, attention_mask: np.ndarray) -> np.ndarray:
    """The labels of a left-to-right model: at each token the one after it, −100 at the last and at padding.

    Both arguments and the result are (n, S).
    """
    labels = np.full_like(input_ids, IGNORED)
    followed = attention_mask[:, 1:] > 0
    labels[:, :-1][followed] = input_ids[:, 1:][followed]
    return labels
