import json

import numpy as np
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from minibert.data.tasks import (
    DistinctPairs,
    Feature,
    FeatureStream,
    PairFeature,
    collate,
    ordered_batches,
)
from minibert.errors import UserError


def features(lengths):
    """Feature i has i as its label, and its length."""
    return [
        Feature(
            {"input_ids": np.full(n, 7, np.int32), "token_type_ids": np.ones(n, np.int32), "labels": i}, i
        )
        for i, n in enumerate(lengths)
    ]


def test_rows_are_padded_to_the_longest():
    batch = collate(features([2, 3]), pad_id=9)
    assert batch["input_ids"].tolist() == [[7, 7, 9], [7, 7, 7]]
    assert batch["token_type_ids"].tolist() == [[1, 1, 0], [1, 1, 1]]
    assert batch["attention_mask"].tolist() == [[1, 1, 0], [1, 1, 1]]
    assert batch["labels"].tolist() == [0, 1]
    assert {array.dtype for array in batch.values()} == {np.dtype(np.int32)}


def test_labels_of_words_are_padded_with_those_that_do_not_count_and_scores_are_floats():
    rows = [
        Feature({"input_ids": np.ones(n, np.int32), "labels": np.arange(n, dtype=np.int32)}, 0)
        for n in (1, 3)
    ]
    assert collate(rows, 0)["labels"].tolist() == [[0, -100, -100], [0, 1, 2]]
    scored = [Feature({"input_ids": np.ones(1, np.int32), "labels": score}, 0) for score in (2.5, 4.0)]
    assert collate(scored, 0)["labels"].dtype == np.float32


def test_what_a_frozen_encoder_made_is_padded_with_zeros_or_is_of_the_whole_text():
    def rows(*features):
        ids = (np.ones(n, np.int32) for n in (1, 2))
        return [
            Feature({"input_ids": row, "features": array}, 0)
            for row, array in zip(ids, features, strict=True)
        ]

    tokens = collate(rows(np.full((1, 3), 5.0, np.float32), np.full((2, 3), 6.0, np.float32)), 0)["features"]
    assert tokens.tolist() == [[[5.0] * 3, [0.0] * 3], [[6.0] * 3] * 2] and tokens.dtype == np.float32
    texts = collate(rows(np.full(3, 5.0), np.full(3, 6.0)), 0)["features"]
    assert texts.tolist() == [[5.0] * 3, [6.0] * 3]


def test_pairs_are_two_batches_each_as_wide_as_it_has_to_be():
    short, long = features([2, 3]), features([7, 5])
    for one, other in zip(short, long, strict=True):
        del one.inputs["labels"], other.inputs["labels"]
    rows = [PairFeature({"first": short[i], "second": long[i], "labels": 0.5}, i) for i in range(2)]
    batch = collate(rows, pad_id=9)
    assert batch.keys() == {"first", "second", "labels"} and batch["labels"].tolist() == [0.5, 0.5]
    assert batch["first"]["input_ids"].tolist() == [[7, 7, 9], [7, 7, 7]]
    assert batch["second"]["attention_mask"].tolist() == [[1] * 7, [1] * 5 + [0] * 2]


def test_ordered_batches_hold_everything_once_the_longest_first():
    rows = features([3, 9, 1, 9, 4])
    seen, widths = [], []
    for chosen, batch in ordered_batches(rows, 2, 0):
        assert batch["labels"].tolist() == chosen.tolist()
        seen += chosen.tolist()
        widths.append(batch["input_ids"].shape[1])
    assert seen == [1, 3, 4, 0, 2]
    assert widths == [9, 4, 1]
    assert [chosen.tolist() for chosen, _ in ordered_batches(rows, 1, 0)] == [[1], [3], [4], [0], [2]]


def test_without_a_size_batches_of_short_rows_are_larger():
    rows = features([512] * 40 + [20] * 150 + [0])
    sizes = [len(chosen) for chosen, _ in ordered_batches(rows, None, 0)]
    assert sizes == [32, 32, 102, 25]  # the second begins with 512 tokens, the third has 2,048 // 20 rows


@given(
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=60),
    batch_size=st.integers(1, 8),
    bucket=st.integers(1, 4),
    seed=st.integers(0, 3),
)
def test_an_epoch_holds_every_feature_once(lengths, batch_size, bucket, seed):
    stream = FeatureStream(features(lengths), batch_size, 0, seed=seed, bucket=bucket)
    for _ in range(2):
        batches = [next(stream)["labels"] for _ in range(stream.batches_per_epoch)]
        assert sorted(np.concatenate(batches)) == list(range(len(lengths)))
        assert sorted(map(len, batches))[1:] == [batch_size] * (len(batches) - 1)
    assert stream.state() == {"epoch": 2, "batch": 0}


def test_rows_of_similar_length_are_together_and_the_order_changes():
    rows = features(np.random.default_rng(0).integers(1, 100, size=400))

    def epoch(**options):
        stream = FeatureStream(rows, 8, 0, **options)
        return [next(stream) for _ in range(stream.batches_per_epoch)]

    def padding(batches):
        return sum(int((batch["attention_mask"] == 0).sum()) for batch in batches)

    def order(batches):
        return np.concatenate([batch["labels"] for batch in batches]).tolist()

    assert padding(epoch(bucket=50)) < padding(epoch(bucket=1)) / 5
    widths = [batch["input_ids"].shape[1] for batch in epoch()]
    assert widths != sorted(widths)
    assert order(epoch(seed=1)) == order(epoch(seed=1)) != order(epoch(seed=2))
    stream = FeatureStream(rows, 8, 0)
    first, second = ([next(stream) for _ in range(50)] for _ in range(2))
    assert order(first) != order(second)


def test_a_restored_stream_goes_on_bit_for_bit():
    rows = features(range(1, 24))
    stream = FeatureStream(rows, 4, 0, seed=5, bucket=2)
    for _ in range(9):
        next(stream)
    state = json.loads(json.dumps(stream.state()))
    assert state == {"epoch": 1, "batch": 3}
    again = FeatureStream(rows, 4, 0, seed=5, bucket=2)
    again.restore(state)
    for _ in range(8):
        expected, found = next(stream), next(again)
        for name in expected:
            np.testing.assert_array_equal(found[name], expected[name])


def test_bad_streams():
    with pytest.raises(UserError, match="no example"):
        FeatureStream([], 4, 0)
    with pytest.raises(UserError, match="at least 1, got 0 and 50"):
        FeatureStream(features([1]), 0, 0)
    with pytest.raises(UserError, match="at least 1, got 4 and 0"):
        FeatureStream(features([1]), 4, 0, bucket=0)
    with pytest.raises(UserError, match=r"at least 1, got 0$"):
        next(ordered_batches(features([1]), 0, 0))
    with pytest.raises(UserError, match="the data has changed"):
        FeatureStream(features([1]), 1, 0).restore({"epoch": 0, "batch": 1})


# -- Pairs ------------------------------------------------------------------------------------------


def pairs(*texts):
    """A pair feature for each (first, second), which are numbers: one token each."""
    tokens = [
        [Feature({"input_ids": np.array([text], np.int32)}, i) for text in both]
        for i, both in enumerate(texts)
    ]
    return [PairFeature(dict(zip(SIDES, both, strict=True)), i) for i, both in enumerate(tokens)]


SIDES = ("first", "second")


def epoch(stream):
    """The pairs of (first, second) in each batch of an epoch."""
    batches = [next(stream)]
    while stream.state()["batch"]:
        batches.append(next(stream))
    return [list(zip(*(b[side]["input_ids"][:, 0].tolist() for side in SIDES), strict=True)) for b in batches]


@pytest.mark.filterwarnings("ignore:a batch holds")
@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(10, 19)), min_size=2, max_size=40, unique=True),
    st.integers(2, 8),
)
def test_no_batch_of_distinct_pairs_has_a_text_twice(texts, batch_size):
    try:
        stream = DistinctPairs(pairs(*texts), batch_size, 0, seed=3)
    except UserError:  # each pair shares a text with every other
        reject()
    for number in range(2):
        batches = epoch(stream)
        assert len(batches) == stream.batches_per_epoch or number > 0
        assert sorted(pair for batch in batches for pair in batch) == sorted(texts)
        for batch in batches:
            assert len(batch) <= batch_size
            assert len({text for pair in batch for text in pair}) == 2 * len(batch)


def test_a_text_may_be_first_in_one_pair_and_second_in_another():
    for batch in epoch(DistinctPairs(pairs((1, 2), (2, 3), (4, 5), (6, 7)), 4, 0)):
        assert not {(1, 2), (2, 3)} <= set(batch)


def test_batches_are_as_many_as_the_pairs_of_the_most_frequent_text():
    texts = [(i, 100) for i in range(6)] + [(10 + i, 110 + i) for i in range(6)]
    with pytest.warns(
        UserWarning, match=r"2\.0 pairs on average instead of 6.* one text occurs in 6 of the 12 pairs"
    ):
        stream = DistinctPairs(pairs(*texts), 6, 0)
    assert stream.batches_per_epoch == 6
    assert [len(batch) for batch in epoch(stream)] == [2] * 6
    assert DistinctPairs(pairs(*texts), 2, 0).batches_per_epoch == 6


def test_a_text_that_is_its_own_partner_is_in_one_pair():
    texts = [(1, 1), (2, 12), (3, 13), (4, 14)]
    assert DistinctPairs(pairs(*texts), 4, 0).batches_per_epoch == 1


def several_times(rng, texts, most):
    """So many texts, numbered, each up to ``most`` times, in random order."""
    return rng.permutation(np.repeat(np.arange(texts), rng.integers(1, most + 1, texts))[:texts])


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("case", ["questions", "both sides", "premises"])
def test_pairs_that_only_others_join_may_share_a_batch(case):
    """Chains of pairs with a text in common join most of these; still, all batches are full."""
    rng = np.random.default_rng(0)
    first, second, batch_size = {
        "questions": (rng.integers(350, size=500), rng.integers(400, size=500), 32),
        "both sides": (several_times(rng, 5000, 3), several_times(rng, 5000, 3), 32),
        "premises": (np.arange(20_000) // 3, rng.integers(15_000, size=20_000), 64),
    }[case]
    texts = list(dict.fromkeys(zip(first.tolist(), (second + 100_000).tolist(), strict=True)))
    stream = DistinctPairs(pairs(*texts), batch_size, 0)
    assert stream.batches_per_epoch == -(-len(texts) // batch_size)
    batches = epoch(stream)
    assert sorted(pair for batch in batches for pair in batch) == sorted(texts)
    assert min(map(len, batches)) >= batch_size - 4 and max(map(len, batches)) <= batch_size
    assert all(len({text for pair in batch for text in pair}) == 2 * len(batch) for batch in batches)
    assert epoch(stream) != batches == epoch(DistinctPairs(pairs(*texts), batch_size, 0))


def test_distinct_pairs_go_on_where_they_stood():
    texts = [(i, 100 + i // 3) for i in range(30)]
    stream = DistinctPairs(pairs(*texts), 4, 0, seed=5)
    for _ in range(stream.batches_per_epoch + 3):
        next(stream)
    again = DistinctPairs(pairs(*texts), 4, 0, seed=5)
    again.restore(stream.state())
    for _ in range(10):
        np.testing.assert_array_equal(next(stream)["first"]["input_ids"], next(again)["first"]["input_ids"])


@pytest.mark.parametrize(
    ("texts", "batch_size"), [([(1, 2), (1, 3), (4, 1)], 8), ([(1, 2), (3, 4)], 1), ([(1, 2)], 8)]
)
def test_pairs_without_a_wrong_answer_are_refused(texts, batch_size):
    with pytest.raises(UserError, match=f"no batch of {batch_size} can hold two of these {len(texts)} pairs"):
        DistinctPairs(pairs(*texts), batch_size, 0)
    with pytest.raises(UserError, match="there is no example to train on"):
        DistinctPairs([], batch_size, 0)
