"""Masked positions, and what is put there."""

import numpy as np
import pytest

from minibert.data.masking import choose_positions, mask_tokens, next_tokens


def make_rows(n: int, seq_length: int, lengths: np.ndarray) -> np.ndarray:
    """Candidates of rows [CLS] text [SEP] padding: (n, S) bool."""
    position = np.arange(seq_length)
    return (position > 0) & (position < lengths[:, None] - 1)


def draw(n=20_000, seq_length=128, probability=0.15, most=20, words=None, seed=0):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(3, seq_length + 1, size=n)
    candidates = make_rows(n, seq_length, lengths)
    starts = candidates if words is None else words(candidates, rng)
    return candidates, lengths, starts, choose_positions(candidates, lengths, starts, probability, most, rng)


def random_words(candidates: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    starts = candidates & (rng.random(candidates.shape) < 0.6)
    starts[:, 1] = candidates[:, 1]
    return starts


@pytest.mark.parametrize("most", [20, 10])
def test_so_many_are_chosen_as_the_original_chooses(most):
    candidates, lengths, _, chosen = draw(seq_length=160, most=most)
    expected = [min(most, max(1, round(length * 0.15))) for length in lengths.tolist()]
    assert chosen.sum(1).tolist() == expected
    assert not (chosen & ~candidates).any()


def test_all_text_may_be_chosen():
    candidates, _, _, chosen = draw(n=100, probability=1.0, most=1000)
    assert (chosen == candidates).all()


def test_positions_are_uniform():
    n, length = 50_000, 40
    lengths = np.full(n, length)
    candidates = make_rows(n, 64, lengths)
    chosen = choose_positions(candidates, lengths, candidates, 0.15, 20, np.random.default_rng(1))
    counts = chosen.sum(0)[1 : length - 1]
    p = 6 / (length - 2)
    assert abs(counts - n * p).max() < 4.5 * np.sqrt(n * p * (1 - p))


def test_whole_words_are_never_split_and_never_overflow():
    candidates, lengths, starts, chosen = draw(words=random_words)
    word = np.cumsum(starts, axis=1)
    for row in range(500):
        for number in range(1, word[row].max() + 1):
            pieces = chosen[row][candidates[row] & (word[row] == number)]
            assert pieces.all() or not pieces.any()
    wanted = np.minimum(20, np.maximum(1, np.rint(0.15 * lengths)))
    assert (chosen.sum(1) <= wanted).all()
    assert (chosen.sum(1) == wanted).mean() > 0.95  # a shorter word nearly always fills the gap


def test_a_word_too_long_is_passed_over():
    candidates = np.array([[False, True, True, True, True, True, False]])
    starts = np.array([[False, True, False, False, False, True, False]])  # four pieces, then one
    for seed in range(20):
        rng = np.random.default_rng(seed)
        chosen = choose_positions(candidates, np.array([7]), starts, 0.15, 20, rng)
        assert chosen.tolist() == [[False, False, False, False, False, True, False]]


@pytest.mark.parametrize(
    "shares, expected",
    [((100, 0, 0), {4}), ((0, 100, 0), {7}), ((0, 0, 100), {8, 9}), ((50, 50, 0), {4, 7})],
)
def test_other_shares(shares, expected):
    """Tokens 0 to 7 are 7, and the vocabulary is drawn from 8 and 9 only."""
    input_ids = np.full((10, 50), 7, dtype=np.int32)
    everywhere = np.ones_like(input_ids, dtype=bool)

    class OnlyHigh(np.random.Generator):
        def integers(self, high, size, dtype):
            return super().integers(8, high, size=size, dtype=dtype)

    rng = OnlyHigh(np.random.PCG64(0))
    masked, labels = mask_tokens(input_ids, everywhere, 4, 10, rng, shares)
    assert set(masked.ravel().tolist()) == expected and (labels == 7).all()


def test_next_tokens_are_the_labels_of_a_left_to_right_model():
    input_ids = np.array([[2, 7, 8, 3, 0, 0], [2, 5, 6, 7, 8, 3]], dtype=np.int32)
    labels = next_tokens(input_ids, (input_ids > 0).astype(np.int32))
    assert labels.tolist() == [[7, 8, 3, -100, -100, -100], [5, 6, 7, 8, 3, -100]]
    assert labels.dtype == np.int32


@pytest.mark.parametrize("dtype", [np.int32])
def test_shares_of_masked_random_and_kept(dtype):
    rng = np.random.default_rng(2)
    input_ids = rng.integers(5, 1000, size=(4000, 128), dtype=dtype)
    chosen = rng.random(input_ids.shape) < 0.15
    masked, labels = mask_tokens(input_ids, chosen, 4, 1000, rng)
    assert masked.dtype == labels.dtype == dtype
    assert (masked[~chosen] == input_ids[~chosen]).all() and (labels[~chosen] == -100).all()
    assert (labels[chosen] == input_ids[chosen]).all()
    n = chosen.sum()
    is_mask = (masked[chosen] == 4).sum()
    is_kept = (masked[chosen] == input_ids[chosen]).sum()
    is_other = n - is_mask - is_kept
    # A random token is [MASK], or the one that stood there, once in 1000 times each.
    for count, p in [(is_mask, 0.8 + 1e-4), (is_kept, 0.1 + 1e-4), (is_other, 0.1 - 2e-4)]:
        assert abs(count - n * p) < 4.5 * np.sqrt(n * p * (1 - p))


def test_random_tokens_are_uniform_over_the_vocabulary():
    input_ids = np.full((20_000, 50), 7, dtype=np.int32)
    masked, _ = mask_tokens(input_ids, np.ones_like(input_ids, dtype=bool), 4, 20, np.random.default_rng(3))
    counts = np.bincount(masked.ravel(), minlength=20)
    others = np.delete(counts, [4, 7])
    n, p = input_ids.size, 0.1 / 20
    assert len(counts) == 20
    assert abs(others - n * p).max() < 4.5 * np.sqrt(n * p * (1 - p))
