"""Sentence pairs, as the original makes them."""

import itertools
from random import Random
from types import SimpleNamespace

import numpy as np
import pytest

from minibert.data import InstanceSettings
from minibert.data.instances import _random_segment, _target_length, _truncate_pair, make_instances
from minibert.errors import UserError

ROOM = 61  # text tokens in an instance of 64


def settings(**options) -> InstanceSettings:
    return InstanceSettings(max_seq_length=ROOM + 3, **options)


def random_lengths(documents: int, seed: int = 0) -> list[list[int]]:
    rng = Random(seed)
    return [[rng.randint(1, 40) for _ in range(rng.randint(1, 30))] for _ in range(documents)]


def assert_close(successes: int, trials: int, p: float) -> None:
    """A share of independent trials within 4.5 standard deviations: one failure in 150,000 fair runs."""
    assert abs(successes - trials * p) <= 4.5 * np.sqrt(trials * p * (1 - p)), (successes / trials, p)


def test_every_instance_is_two_runs_within_documents(make_documents):
    documents = make_documents(random_lengths(300))
    instances = make_instances(documents, np.arange(300), settings(), Random(1))
    a_start, a_stop, b_start, b_stop, is_random = instances.T
    assert (a_start < a_stop).all() and (b_start < b_stop).all()
    assert (a_stop - a_start + b_stop - b_start <= ROOM).all()
    starts = documents.token_ranges()[:, 0]
    a_document, b_document = np.searchsorted(starts, [a_start, b_start], side="right") - 1
    assert (a_document == np.searchsorted(starts, a_stop, side="left") - 1).all()
    assert (b_document == np.searchsorted(starts, b_stop, side="left") - 1).all()
    assert ((a_document == b_document) == (is_random == 0)).all()
    assert (b_start >= a_stop)[is_random == 0].all()


def test_sentences_that_a_random_b_left_over_are_put_back(make_documents):
    """With sentences of one token nothing is cut off, so a document is its As and following Bs."""
    documents = make_documents([[1] * 500, [1] * 333, [1] * 7])
    for seed in range(20):
        for document in range(3):
            instances = make_instances(documents, np.array([document]), settings(), Random(seed))
            position, stop = documents.token_ranges()[document]
            for number, (a_start, a_stop, b_start, b_stop, is_random) in enumerate(instances.tolist()):
                assert a_start == position
                position = a_stop if is_random else b_stop
                assert is_random or b_start == a_stop
                if number == len(instances) - 1:
                    assert position == stop


def test_documents_that_are_cut_anywhere_fill_every_sequence(make_documents):
    """A document is cut into runs of full length, but for the first and the last; a short one is one run."""
    documents = make_documents(random_lengths(200))
    cut = InstanceSettings(max_seq_length=ROOM + 2, next_sentence=False, whole_sentences=False)
    firsts = set()
    for seed in range(5):
        instances = make_instances(documents, np.arange(200), cut, Random(seed))
        start, stop, b_start, b_stop, is_random = instances.T
        assert (b_start == stop).all() and (b_stop == stop).all() and not is_random.any()
        for first, end in documents.token_ranges():
            own = (start >= first) & (stop <= end)
            assert start[own][0] == first and stop[own][-1] == end
            np.testing.assert_array_equal(start[own][1:], stop[own][:-1])
            lengths = (stop - start)[own]
            assert (lengths[1:-1] == ROOM).all() and lengths.max() <= ROOM
            assert len(lengths) == 1 or end - first > ROOM
        firsts.add(int(stop[0] - start[0]))
    assert len(firsts) > 1  # each pass cuts elsewhere


def test_pairs_need_whole_sentences():
    with pytest.raises(UserError, match="next-sentence prediction needs whole sentences"):
        InstanceSettings(whole_sentences=False)


def test_share_of_random_next(make_documents):
    documents = make_documents([[1] * 100 for _ in range(400)])
    instances = np.concatenate(
        [
            make_instances(documents, np.arange(400), settings(short_seq_prob=0), Random(seed))
            for seed in range(20)
        ]
    )
    # A chunk of one sentence, at a document's end, always gets a random B; all others by a fair coin.
    at_end = (instances[:, 1] % 100 == 0) & (instances[:, 1] - instances[:, 0] == 1) & (instances[:, 4] == 1)
    others = instances[~at_end]
    assert_close((others[:, 4] == 1).sum(), len(others), 0.5)


def test_a_single_sentence_always_gets_a_random_b(make_documents):
    documents = make_documents([[30]] * 50)
    instances = make_instances(documents, np.arange(50), settings(), Random(0))
    assert (instances[:, 4] == 1).all() and len(instances) == 50


def test_swapped_pairs_are_one_stretch_of_text_in_the_wrong_order(make_documents):
    """With sentence order, A and B are always neighbours, unless a chunk has but one sentence."""
    documents = make_documents(random_lengths(400))
    instances = make_instances(documents, np.arange(400), settings(sentence_order=True), Random(5))
    starts = documents.token_ranges()[:, 0]
    a_document, b_document = np.searchsorted(starts, instances[:, [0, 2]].T, side="right") - 1
    same = instances[a_document == b_document]
    a_start, a_stop, b_start, b_stop, swapped = same.T
    assert (instances[a_document != b_document, 4] == 1).all()  # one sentence, and a random text
    assert len(same) > 500 and (a_stop > a_start).all() and (b_stop > b_start).all()
    assert (b_start >= a_stop)[swapped == 0].all() and (a_start >= b_stop)[swapped == 1].all()
    assert_close(int(swapped.sum()), len(same), 0.5)


def test_nothing_is_put_back_when_the_order_is_learned(make_documents):
    documents = make_documents([[1] * 500])
    instances = make_instances(documents, np.array([0]), settings(sentence_order=True), Random(0))
    bounds = [(min(a, c), max(b, d)) for a, b, c, d, _ in instances.tolist()]
    assert bounds[0][0] == 0 and bounds[-1][1] == 500
    assert all(before[1] == after[0] for before, after in itertools.pairwise(bounds))
    assert 0 < instances[:, 4].sum() < len(instances)


def test_targets_are_short_with_the_given_probability_and_uniform():
    n, rng = 100_000, Random(0)
    targets = np.array([_target_length(settings(), rng) for _ in range(n)])
    assert_close((targets < ROOM).sum(), n, 0.1 * (ROOM - 2) / (ROOM - 1))
    counts = np.bincount([_target_length(settings(short_seq_prob=1.0), rng) for _ in range(n)])
    assert len(counts) == ROOM + 1 and counts[:2].sum() == 0
    assert abs(counts[2:] - n / (ROOM - 1)).max() < 4.5 * np.sqrt(n / (ROOM - 1))


def test_the_target_is_drawn_once_a_document(make_documents):
    """Pairs that really follow, of sentences of one token, are as long as the target."""
    documents = make_documents([[1] * 600, [1] * 600])
    targets = set()
    for seed in range(200):
        instances = make_instances(documents, np.array([0]), settings(), Random(seed))
        following = instances[(instances[:, 4] == 0) & (instances[:, 3] < 600)]
        lengths = set((following[:, 3] - following[:, 0]).tolist())
        assert len(lengths) <= 1
        targets |= lengths
    assert len(targets) > 5 and max(targets) == ROOM


def test_where_a_ends_is_uniform(make_documents):
    documents = make_documents([[1] * 11, [1] * 11])
    exact = InstanceSettings(max_seq_length=11 + 3, short_seq_prob=0)
    rng = Random(3)
    firsts = np.array([make_instances(documents, np.array([0]), exact, rng)[0] for _ in range(4000)])
    counts = np.bincount(firsts[:, 1] - firsts[:, 0])[1:]
    assert len(counts) == 10
    assert abs(counts - 400).max() < 4.5 * np.sqrt(4000 * 0.1 * 0.9)


def test_the_random_b_starts_at_any_sentence_of_any_other_document(make_documents):
    documents = make_documents([[1] * 4] * 6)
    rng = Random(4)
    starts = []
    for _ in range(4000):
        instances = make_instances(documents, np.array([2]), settings(), rng)
        starts.extend(instances[instances[:, 4] == 1, 2].tolist())
    counts = np.bincount(starts, minlength=24)
    assert counts[8:12].sum() <= 1  # ten tries fail once in 6¹⁰ times
    others = np.delete(counts, range(8, 12))
    assert abs(others - len(starts) / 20).max() < 4.5 * np.sqrt(len(starts) / 20)


def test_ten_tries_and_then_the_last_document_drawn(make_documents):
    documents = make_documents([[1] * 5, [1] * 5])

    def draw(unlucky: int) -> tuple[int, int]:
        """The segment if the first ``unlucky`` draws are document 0 itself, and its start is sentence 1."""
        draws = iter([0] * unlucky + [1] * 20)
        return _random_segment(documents, 0, 2, SimpleNamespace(randrange=lambda stop: next(draws)))

    assert draw(unlucky=0) == draw(unlucky=9) == (6, 8)  # document 1
    assert draw(unlucky=10) == (1, 3)


@pytest.mark.parametrize(
    "lengths", [(90, 10), (10, 90), (50, 50), (70, 60), (60, 71), (30, 31), (30, 30), (1, 200)]
)
def test_truncation_takes_from_the_longer_as_token_by_token(lengths):
    a, b = lengths
    while a + b > ROOM:
        if a > b:
            a -= 1
        else:
            b -= 1
    (a_start, a_stop), (b_start, b_stop) = _truncate_pair(
        0, lengths[0], 500, 500 + lengths[1], ROOM, Random(0)
    )
    assert (a_stop - a_start, b_stop - b_start) == (a, b)
    assert a_start >= 0 and a_stop <= lengths[0] and b_start >= 500 and b_stop <= 500 + lengths[1]


def test_truncation_at_front_and_back_alike():
    rng = Random(6)
    fronts = sum(_truncate_pair(0, 100, 500, 530, ROOM, rng)[0][0] for _ in range(1000))
    assert_close(fronts, 1000 * (130 - ROOM), 0.5)


def test_without_next_sentence_prediction_a_segment_is_a_run_of_sentences(make_documents):
    documents = make_documents([[1] * 200, [10] * 3])
    single = InstanceSettings(max_seq_length=64, next_sentence=False, short_seq_prob=0)
    instances = make_instances(documents, np.arange(2), single, Random(0))
    assert instances[:, :2].tolist() == [[0, 62], [62, 124], [124, 186], [186, 200], [200, 230]]
    assert (instances[:, 2] == instances[:, 3]).all() and (instances[:, 4] == 0).all()


def test_without_next_sentence_prediction_long_sentences_are_cut(make_documents):
    documents = make_documents([[500]])
    single = InstanceSettings(max_seq_length=64, next_sentence=False)
    (a_start, a_stop, *_) = make_instances(documents, np.arange(1), single, Random(0))[0]
    assert a_stop - a_start == 62 and a_start >= 0 and a_stop <= 500


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_seq_length": 4}, "max_seq_length 4 leaves no room.*at least 5"),
        ({"max_seq_length": 3, "next_sentence": False}, "at least 4"),
        ({"masking": "static"}, "unknown masking 'static'; expected one of dynamic, fixed"),
        ({"masked_lm_prob": 0.0}, "masked_lm_prob"),
        ({"objective": "left"}, "unknown objective 'left'; expected one of masked, left-to-right, permuted"),
        ({"mask_shares": (80, 20)}, "mask_shares is 80 20; expected three percentages"),
        ({"mask_shares": (80, 10, 20)}, "add up to 100"),
        ({"mask_shares": (120, -10, -10)}, "add up to 100"),
        ({"short_seq_prob": 1.1}, "short_seq_prob"),
        ({"max_predictions": 0}, "max_predictions"),
        ({"dupe_factor": 0}, "dupe_factor"),
    ],
)
def test_settings_that_make_no_sense(options, message):
    with pytest.raises(UserError, match=message):
        InstanceSettings(**options)
