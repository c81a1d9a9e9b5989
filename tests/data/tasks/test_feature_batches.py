import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibert.data.tasks import Feature, FeatureStream, PairFeature, collate, ordered_batches
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
    with pytest.raises(UserError, match=r"at least 1, got 0$"):
        next(ordered_batches(features([1]), 0, 0))
    with pytest.raises(UserError, match="the data has changed"):
        FeatureStream(features([1]), 1, 0).restore({"epoch": 0, "batch": 1})
