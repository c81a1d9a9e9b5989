"""The random bits of dropout: known answers, independence, uniformity."""

import itertools

import numpy as np
import pytest
import scipy.special
import scipy.stats

from minibert.arrays import to_numpy
from minibert.dropout_bits import dropout_key, dropout_keys, dropout_stream, random_bits

KEY = dropout_key(seed=1, step=2, micro_batch=3, replica=4, site=5)
KNOWN_KEYS = [(1282570995, 3506913952), (2188024319, 3002790937)]  # of all zeros, and of KEY
KNOWN_BITS = [47699, 33947, 1514, 64496, 43818, 5680, 20059, 17316]  # KEY's first
KNOWN_LAST = [28025, 14851, 56976]  # KEY's numbers 1,000,000 to 1,000,002
PLACE = {"seed": 1, "step": 2, "micro_batch": 3, "replica": 4, "site": 5}


def bits(count, key=KEY):
    return random_bits(np, key, (count,))


def test_known_answers(xp):
    """The very numbers, so that an implementation in any language can be held against this one."""
    assert dropout_key(0, 0, 0, 0, 0) == KNOWN_KEYS[0]
    assert dropout_key(1, 2, 3, 4, 5) == KNOWN_KEYS[1]
    assert to_numpy(random_bits(xp, KEY, (8,))).tolist() == KNOWN_BITS
    assert to_numpy(random_bits(xp, KEY, (1_000_003,)))[-3:].tolist() == KNOWN_LAST


def test_the_definition_in_plain_integers():
    """Word i // 2 is hashed with both halves of the key; element i takes its low or high half."""

    def lowbias32(x):
        x ^= x >> 16
        x = x * 0x7FEB352D % 2**32
        x ^= x >> 15
        x = x * 0x846CA68B % 2**32
        return x ^ x >> 16

    expected = []
    for i in range(1001):
        word = lowbias32((lowbias32((i // 2) ^ KEY[0]) + KEY[1]) % 2**32)
        expected.append(word >> 16 if i % 2 else word & 0xFFFF)
    assert bits(1001).tolist() == expected


def test_bits_do_not_depend_on_library_or_shape(xp):
    flat = bits(105)
    for shape in ((105,), (3, 35), (5, 7, 3), (1, 105, 1)):
        same = random_bits(xp, KEY, shape)
        assert same.shape == shape and same.dtype == "uint16"
        np.testing.assert_array_equal(to_numpy(same).reshape(-1), flat)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 63, 64, 65])
def test_any_number_of_elements(count):
    np.testing.assert_array_equal(bits(count), bits(1000)[:count])
    assert random_bits(np, KEY, ()).shape == ()


def test_pure_and_repeatable():
    first = bits(999).copy()
    bits(5, key=dropout_key(9, 9, 9, 9, 9))
    np.testing.assert_array_equal(bits(999), first)


def test_key_takes_any_integer_type():
    """A step number out of a NumPy array must not turn the bits' arithmetic into another dtype's."""
    key = dropout_key(**{name: np.int64(number) for name, number in PLACE.items()})
    assert key == KEY
    np.testing.assert_array_equal(random_bits(np, key, (10,)), bits(10))


@pytest.mark.parametrize("name", PLACE)
def test_every_part_of_the_place_changes_the_key(name):
    """Both halves change, whichever part does; a seed counts beyond its lowest 32 bits."""
    others = [PLACE[name] + d for d in (1, 2, 3, 100)] + ([2**32 + 1, 2**40] if name == "seed" else [])
    keys = [KEY] + [dropout_key(**(PLACE | {name: other})) for other in others]
    assert len({first for first, _ in keys}) == len({second for _, second in keys}) == len(keys)


def test_the_stream_has_all_64_bits_of_the_seed():
    assert dropout_stream(3 + (5 << 32), 0).tolist() == [3, 5, 0, 0, 0]


def test_no_two_places_of_a_run_share_a_key():
    places = itertools.product(range(2), range(200), range(2), range(2), range(40))
    keys = [dropout_key(*place) for place in places]
    assert len(set(keys)) == len(keys) == 64_000


def test_numbers_are_uniform():
    """χ² of 2²² draws over 256 and over 65,536 equal cells, within six deviations √(2k) of its mean k."""
    draws = bits(2**22)
    for cells in (256, 65536):
        counts = np.bincount(draws // (65536 // cells), minlength=cells)
        chi2 = ((counts - len(draws) / cells) ** 2).sum() / (len(draws) / cells)
        assert abs(chi2 - (cells - 1)) < 6 * np.sqrt(2 * (cells - 1))


def test_every_bit_is_fair_and_alone():
    """Each of the 16 bits is 1 half the time, and each pair of them agrees half the time (6σ of 2²⁰)."""
    unpacked = (bits(2**20)[:, None] >> np.arange(16, dtype=np.uint16)) & 1
    signs = unpacked * 2.0 - 1.0
    bound = 6 / np.sqrt(2**20)
    assert np.abs(signs.mean(axis=0)).max() < bound
    assert np.abs(signs.T @ signs / 2**20 - np.eye(16)).max() < bound


def correlation(a, b):
    return np.corrcoef(a.astype(float), b.astype(float))[0, 1]


def test_elements_are_independent_of_their_neighbours():
    draws, count = bits(2**20), 2**20
    for lag in (1, 2, 3, 16, 64, 128, 768, 1024, 4096):
        assert abs(correlation(draws[lag:], draws[:-lag])) < 6 / np.sqrt(count - lag), lag


@pytest.mark.parametrize("name", PLACE)
def test_places_are_independent(name):
    """Neighbouring seeds, steps, … give sequences that neither agree nor are each other's shifts.

    Two random sequences of n = 2¹⁶ elements agree in one element on average; more than 12 would be a
    chance of 10⁻⁹. The correlation of n pairs has deviation 1/√n.
    """
    here, there = bits(2**16), bits(2**16, key=dropout_key(**(PLACE | {name: PLACE[name] + 1})))
    assert abs(correlation(here, there)) < 6 / 2**8
    for lag in (-1024, -768, -64, -2, -1, 0, 1, 2, 64, 768, 1024):
        assert (here == np.roll(there, lag)).sum() <= 12, lag


def test_reordered_places_are_independent():
    """Swapped numbers (step 2 of replica 3, step 3 of replica 2) are different places."""
    keys = {dropout_key(*order) for order in itertools.permutations((1, 2, 3, 4, 5))}
    assert len(keys) == 120


def test_runs_of_kept_elements_have_the_right_lengths():
    """At p = 0.1 the gaps between dropped elements are geometric (χ² over lengths 1 … 40 at 10⁻⁶)."""
    dropped = np.flatnonzero(bits(2**20) < round(0.1 * 2**16))
    gaps = np.minimum(np.diff(dropped), 41)
    p = round(0.1 * 2**16) / 2**16
    expected = np.array([p * (1 - p) ** (k - 1) for k in range(1, 41)] + [(1 - p) ** 40])
    counts = np.bincount(gaps, minlength=42)[1:]
    assert scipy.stats.chisquare(counts, expected * len(gaps)).pvalue > 1e-6


@pytest.mark.parametrize("seed", [0, 7, 2**40 + 12345, 2**63])
def test_keys_made_on_a_device_are_those_of_the_host(device, seed):
    stream = device.asarray(dropout_stream(seed, 678, 2, 1))
    keys = to_numpy(dropout_keys(stream, 5))
    assert keys.dtype == np.uint32
    assert [tuple(key) for key in keys.tolist()] == [dropout_key(seed, 678, 2, 1, site) for site in range(5)]
    key = dropout_keys(stream, 5)[3]
    bits = to_numpy(random_bits(device.xp, key, (7, 3)))
    np.testing.assert_array_equal(bits, random_bits(np, dropout_key(seed, 678, 2, 1, 3), (7, 3)))
