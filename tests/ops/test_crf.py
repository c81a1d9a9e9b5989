import itertools

import numpy as np
import pytest
import scipy.special

from minibert.arrays import to_numpy
from minibert.ops.crf import crf_nll, crf_nll_backward, viterbi

LENGTHS = (4, 2, 1, 0)
MASK = np.array([[1.0] * n + [0.0] * (4 - n) for n in LENGTHS])
TAGS = np.array([[2, 0, 1, 1], [0, 2, 0, 0], [1, 0, 0, 0], [2, 2, 2, 2]])
K = 3


@pytest.fixture
def scores(draw):
    """emissions (4, 4, K), start, end (K,), transitions (K, K)."""
    return draw(4, 4, K) * 2.0, draw(K), draw(K), draw(K, K) * 2.0


def taggings(scores, row):
    """Every tagging of a sentence, with its score by the definition."""
    emissions, start, end, transitions = (to_numpy(array) for array in scores)
    for tags in itertools.product(range(K), repeat=LENGTHS[row]):
        score = start[tags[0]] + end[tags[-1]]
        score += sum(emissions[row, t, tag] for t, tag in enumerate(tags))
        yield tags, score + sum(transitions[pair] for pair in itertools.pairwise(tags))


def loss_and_cache(device, scores, denominator=1.0, tags=TAGS, mask=MASK):
    dtype = scores[0].dtype
    return crf_nll(*scores, device.asarray(tags), device.asarray(mask, dtype=dtype), denominator)


def test_forward_by_all_taggings(device, scores):
    expected = 0.0
    for row in range(3):
        by_tags = dict(taggings(scores, row))
        assert len(by_tags) == K ** LENGTHS[row]
        log_z = scipy.special.logsumexp(list(by_tags.values()))
        expected += log_z - by_tags[tuple(TAGS[row, : LENGTHS[row]])]
    loss, _ = loss_and_cache(device, scores, 2.5)
    assert loss.shape == ()
    np.testing.assert_allclose(to_numpy(loss), expected / 2.5, rtol=1e-13)


def test_backward_is_what_is_expected_minus_what_was_taken(device, scores):
    """Counted over all taggings, each as often as it is probable."""
    expected = [np.zeros(shape) for shape in ((4, 4, K), (K,), (K,), (K, K))]

    def count(row, tags, weight):
        emissions, start, end, transitions = expected
        start[tags[0]] += weight
        end[tags[-1]] += weight
        for t, tag in enumerate(tags):
            emissions[row, t, tag] += weight
        for pair in itertools.pairwise(tags):
            transitions[pair] += weight

    for row in range(3):
        every, points = zip(*taggings(scores, row), strict=True)
        for tags, probability in zip(every, scipy.special.softmax(points), strict=True):
            count(row, tags, 1.5 / 2.5 * probability)
        count(row, TAGS[row, : LENGTHS[row]], -1.5 / 2.5)
    _, cache = loss_and_cache(device, scores, 2.5)
    for actual, right in zip(crf_nll_backward(1.5, cache), expected, strict=True):
        np.testing.assert_allclose(to_numpy(actual), right, rtol=1e-12, atol=1e-14)


def test_without_scores_of_its_own_it_is_a_softmax_a_word(device, scores):
    emissions, *others = scores
    loss, _ = loss_and_cache(device, (emissions, *(other * 0.0 for other in others)))
    log_p = scipy.special.log_softmax(to_numpy(emissions), axis=-1)
    expected = -sum(log_p[b, t, TAGS[b, t]] for b, t in zip(*np.nonzero(MASK), strict=True))
    np.testing.assert_allclose(to_numpy(loss), expected, rtol=1e-13)


def test_padding_has_no_influence(device, scores):
    emissions, *others = scores
    noise = device.asarray(1e3 * (1 - MASK)[:, :, None] * np.linspace(-1, 1, K))
    tags = np.where(MASK > 0, TAGS, 1)
    loss, cache = loss_and_cache(device, scores)
    same, same_cache = loss_and_cache(device, (emissions + noise, *others), tags=tags)
    np.testing.assert_allclose(to_numpy(same), to_numpy(loss), rtol=1e-14)
    gradients, same_gradients = crf_nll_backward(1.0, cache), crf_nll_backward(1.0, same_cache)
    for gradient, same_gradient in zip(gradients, same_gradients, strict=True):
        np.testing.assert_allclose(to_numpy(same_gradient), to_numpy(gradient), rtol=1e-12, atol=1e-15)
    assert not to_numpy(gradients[0])[MASK == 0].any()
    assert to_numpy(gradients[0])[MASK > 0].all()


def test_sentences_without_words_cost_nothing(device, scores):
    loss, cache = loss_and_cache(device, scores, mask=MASK * 0)
    assert float(loss) == 0.0
    assert not any(to_numpy(gradient).any() for gradient in crf_nll_backward(1.0, cache))


def test_large_scores_neither_overflow_nor_lose_the_loss(device):
    """The right tagging is 4000 nats worse than the best one, and exp(4000) is infinite."""
    emissions = device.asarray([[[0.0, 2000.0], [0.0, 2000.0]]])
    nothing = device.asarray(np.zeros(2)), device.asarray(np.zeros(2)), device.asarray(np.zeros((2, 2)))
    tags, mask = device.asarray([[0, 0]]), device.asarray([[1.0, 1.0]])
    loss, cache = crf_nll(emissions, *nothing, tags, mask, 1.0)
    assert float(loss) == 4000.0
    assert to_numpy(crf_nll_backward(1.0, cache)[3]).tolist() == [[-1.0, 0.0], [0.0, 1.0]]


def test_large_transitions_do_not_overflow_after_the_last_word(device):
    """exp(1000) is infinite, but this transition would only be taken where the sentence has ended."""
    emissions, transitions = device.asarray(np.zeros((1, 4, 2))), device.asarray([[0.0, 1000.0], [0.0, 0.0]])
    nothing = device.asarray(np.zeros(2)), device.asarray(np.zeros(2))
    tags, mask = device.asarray([[1, 0, 0, 0]]), device.asarray([[1.0, 0.0, 0.0, 0.0]])
    loss, cache = crf_nll(emissions, *nothing, transitions, tags, mask, 1.0)
    assert float(loss) == pytest.approx(np.log(2))
    demissions, *_, dtransitions = map(to_numpy, crf_nll_backward(1.0, cache))
    assert demissions[0].tolist() == [[pytest.approx(0.5), pytest.approx(-0.5)], [0, 0], [0, 0], [0, 0]]
    assert not dtransitions.any()


def test_float32_keeps_its_digits_in_long_sentences(device):
    """The scores add up to thousands, while little is left of what is expected minus what was taken."""
    rng = np.random.default_rng(0)
    tags = rng.integers(0, K, (2, 200))
    emissions = rng.normal(size=(2, 200, K)) + 10.0 * (tags[:, :, None] == np.arange(K))
    scores = emissions, rng.normal(size=K), rng.normal(size=K), rng.normal(size=(K, K))
    results = []
    for dtype in ("float32", "float64"):
        rounded = [device.asarray(array.astype("float32"), dtype=dtype) for array in scores]
        loss, cache = loss_and_cache(device, rounded, tags=tags, mask=np.ones((2, 200)))
        results.append([to_numpy(array) for array in (loss, *crf_nll_backward(1.0, cache))])
    for single, double in zip(*results, strict=True):
        assert np.linalg.norm(single - double) < 1e-3 * np.linalg.norm(double)


def test_viterbi_finds_the_best_of_all_taggings(device, scores):
    emissions, *others = scores
    alone_best = 0
    for seed in range(20):
        shuffled = np.random.default_rng(seed).permuted(to_numpy(emissions), axis=2)
        these = device.asarray(shuffled), *others
        tags = to_numpy(viterbi(*these, device.asarray(MASK)))
        for row in range(3):
            best = max(taggings(these, row), key=lambda item: item[1])[0]
            assert tuple(tags[row, : LENGTHS[row]]) == best
        assert not tags[MASK == 0].any()
        alone_best += int((tags == shuffled.argmax(axis=-1))[MASK > 0].all())
    assert alone_best < 10, "else each word by itself would do as well"


def test_viterbi_takes_the_lowest_of_equals(device):
    zeros = [device.asarray(np.zeros(shape)) for shape in ((2, 3, K), (K,), (K,), (K, K))]
    assert not to_numpy(viterbi(*zeros, device.asarray(np.ones((2, 3))))).any()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_dtype_is_kept(device, draw, dtype):
    scores = [draw(*shape, dtype=dtype) for shape in ((4, 4, K), (K,), (K,), (K, K))]
    loss, cache = loss_and_cache(device, scores, 2.0)
    assert {array.dtype.name for array in (loss, *crf_nll_backward(1.0, cache))} == {dtype}
    assert {array.dtype.name for array in crf_nll_backward(loss, cache)} == {dtype}
