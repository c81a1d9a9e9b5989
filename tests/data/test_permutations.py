"""Factorisation orders: who is predicted, who sees whom."""

import numpy as np
import pytest

from minibert.data.permutations import factorisation_orders, last_of_an_order
from minibert.errors import UserError

IDS = np.arange(60).reshape(3, 20)
MASK = np.array([[1] * 20, [0] * 6 + [1] * 14, [0] * 17 + [1] * 3])
SPECIAL = (19, 39, 59)  # the last token of each text


def rng():
    return np.random.default_rng(5)


def test_a_sixth_is_predicted_and_at_least_one():
    chosen = last_of_an_order(IDS, MASK, rng(), special_ids=SPECIAL)
    assert chosen.sum(axis=1).tolist() == [19 // 6, 13 // 6, 1]
    assert not chosen[MASK == 0].any() and not np.isin(IDS[chosen], SPECIAL).any()
    assert last_of_an_order(IDS, MASK, rng(), one_in=2).sum(axis=1).tolist() == [10, 7, 1]


def test_every_token_is_predicted_equally_often():
    generator = rng()
    counts = sum(last_of_an_order(IDS[:1], MASK[:1], generator, one_in=4)[0] for _ in range(4000))
    assert np.abs(counts / 1000 - 1).max() < 0.15  # five standard deviations


def test_something_is_always_left_to_see():
    ids, mask = [[1, 2], [0, 7], [0, 0]], [[1, 1], [0, 1], [0, 0]]
    assert last_of_an_order(ids, mask, rng(), one_in=1).sum(axis=1).tolist() == [1, 0, 0]


def test_an_order_is_an_order():
    chosen = last_of_an_order(IDS, MASK, rng(), one_in=2)
    orders = factorisation_orders(IDS, MASK, chosen, rng())
    sees = orders.perm_mask == 0
    for text in range(3):
        targets = np.flatnonzero(chosen[text])
        others = np.flatnonzero(~chosen[text])
        assert sees[text][:, others].all(), "everybody sees the other tokens"
        assert not sees[text][np.ix_(others, targets)].any(), "which see no target"
        among = sees[text][np.ix_(targets, targets)]
        assert sorted(among.sum(axis=1)) == list(range(len(targets))), "each sees one more"
        before = among.sum(axis=1)
        assert (among == (before[:, None] > before)).all()


def test_targets_stand_from_left_to_right_with_their_ids():
    chosen = last_of_an_order(IDS, MASK, rng(), one_in=3)
    orders = factorisation_orders(IDS, MASK, chosen, rng())
    assert orders.target_mapping.shape == (3, 6, 20) and orders.labels.shape == (3, 6)
    for text in range(3):
        targets = np.flatnonzero(chosen[text])
        filled = orders.target_mapping[text].argmax(axis=1)[: len(targets)]
        assert filled.tolist() == targets.tolist()
        assert orders.labels[text].tolist() == IDS[text, targets].tolist() + [-100] * (6 - len(targets))
        assert not orders.target_mapping[text, len(targets) :].any()


def test_equal_generators_draw_equal_orders_and_all_orders_occur():
    chosen = np.zeros((1, 20), int)
    chosen[0, [2, 5, 7]] = 1
    first, second = (factorisation_orders(IDS[:1], MASK[:1], chosen, rng()) for _ in range(2))
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))
    generator = rng()
    drawn = {
        factorisation_orders(IDS[:1], MASK[:1], chosen, generator).perm_mask[0, [2, 5, 7]].tobytes()
        for _ in range(100)
    }
    assert len(drawn) == 6


def test_as_many_rows_as_asked_for_and_one_without_targets():
    chosen = last_of_an_order(IDS, MASK, rng())
    assert factorisation_orders(IDS, MASK, chosen, rng(), targets=9).labels.shape == (3, 9)
    nothing = factorisation_orders(IDS, MASK, np.zeros_like(IDS), rng())
    assert nothing.labels.tolist() == [[-100]] * 3 and not nothing.perm_mask.any()


@pytest.mark.parametrize(
    ("chosen", "options", "message"),
    [
        (np.ones((3, 19), int), {}, r"predicted has shape \(3, 19\); expected that of input_ids, \(3, 20\)"),
        (np.ones((3, 20), int), {}, "predicted contains padding"),
        (MASK, {}, "all tokens of text 0 are to be predicted; leave one"),
        (MASK * [[0], [1], [0]], {}, "all tokens of text 1 are to be predicted"),  # though not its padding
        (MASK * (np.arange(20) > 16), {"targets": 2}, "a text has 3 tokens to predict; expected at most 2"),
    ],
)
def test_what_does_not_fit_is_said_in_a_line(chosen, options, message):
    whole = np.ones_like(MASK) if "text has" in message else MASK
    with pytest.raises(UserError, match=message):
        factorisation_orders(IDS, whole, chosen, rng(), **options)
