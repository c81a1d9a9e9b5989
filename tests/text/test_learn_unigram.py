import math
import random
from collections import Counter
from itertools import combinations, pairwise

import numpy as np
import pytest
from scipy.special import digamma

from minibert.errors import UserError
from minibert.text import learn_unigram as module
from minibert.text.learn_unigram import _Learner, _seeds, _Text, learn_unigram

COUNTS = {"▁low": 5, "▁lower": 3, "▁lowest": 2, "▁new": 4, "▁newer": 2, "▁x": 1}


def segmentations(word, pieces):
    """All of them, as tuples of pieces."""
    for cuts in range(len(word)):
        for places in combinations(range(1, len(word)), cuts):
            ends = [0, *places, len(word)]
            parts = tuple(word[a:b] for a, b in pairwise(ends))
            if all(part in pieces for part in parts):
                yield parts


@pytest.fixture
def learner() -> _Learner:
    words = sorted(COUNTS)
    return _Learner(words, np.array([float(COUNTS[word]) for word in words]), 1000)


def test_words_with_nul_are_skipped():
    """Else "▁" and "▁" + NUL would be the same token."""
    words = {"▁low": 5, "▁\0": 5, "▁lower\0": 5}
    assert learn_unigram(words, 20, []) == learn_unigram({"▁low": 5}, 20, [])
    with pytest.raises(UserError):
        learn_unigram({"▁\0": 5}, 20, [])


def test_candidates_are_all_characters_and_what_repeats():
    words = sorted(COUNTS)
    text = _Text(words, np.array([float(COUNTS[word]) for word in words]))
    _, _, _, covers, examples = _seeds(text, 1000)
    found = {text.text[i : i + n]: float(cover) for (i, n), cover in zip(examples, covers, strict=True)}
    whole = {
        word[i : i + n]: 0.0 for word in words for n in range(1, len(word) + 1) for i in range(len(word))
    }
    for piece in whole:
        whole[piece] = sum(
            count * len(piece)
            for word, count in COUNTS.items()
            for i in range(len(word))
            if word.startswith(piece, i)
        )
    assert {piece: whole[piece] for piece in found} == found
    assert set("▁lowerstnx") <= set(found)
    assert {"▁low", "▁lower", "▁new", "ow"} <= set(found)
    assert not {"▁lo", "▁x", "▁ne"} & set(found)  # always go on with the same character, or occur once
    _, _, _, covers, _ = _seeds(text, 3)
    assert len(covers) <= len(set("".join(words))) + 3


def test_expected_counts_are_those_over_all_segmentations(learner):
    scores = dict(
        zip(learner.pieces, np.random.default_rng(0).uniform(-6, -1, len(learner.pieces)), strict=True)
    )
    expected = dict.fromkeys(scores, 0.0)
    for word, count in COUNTS.items():
        ways = {parts: math.exp(sum(scores[part] for part in parts)) for parts in segmentations(word, scores)}
        for parts, probability in ways.items():
            for part in parts:
                expected[part] += count * probability / sum(ways.values())
    found = learner.words.expected(np.array(list(scores.values())), learner.counts)
    np.testing.assert_allclose(found, list(expected.values()), rtol=1e-12)


def test_best_segmentations_and_what_stands_in_for_a_piece(learner):
    scores = np.random.default_rng(1).uniform(-6, -1, len(learner.pieces))
    by_piece = dict(zip(learner.pieces, scores, strict=True))

    def best(word, allowed):
        return max(segmentations(word, allowed), key=lambda parts: sum(by_piece[part] for part in parts))

    for lattice, words, without_itself in (
        (learner.words, sorted(COUNTS), False),
        (learner.parts, [str(piece) for piece in learner.pieces if len(piece) > 1], True),
    ):
        totals, last_arc = lattice.best(scores)
        found = [[] for _ in words]
        for numbers, pieces in lattice.walk(last_arc):
            for i, piece in zip(numbers, pieces, strict=True):
                found[i].insert(0, str(learner.pieces[piece]))
        expected = [best(word, set(by_piece) - {word} if without_itself else by_piece) for word in words]
        assert [tuple(parts) for parts in found] == expected
        np.testing.assert_allclose(totals, [sum(by_piece[part] for part in parts) for parts in expected])


def test_lattices_with_fewer_pieces_are_those_made_of_fewer(learner):
    kept = learner.characters | (np.arange(len(learner.pieces)) % 2 == 0)
    pieces = set(learner.pieces[kept])
    learner._keep(kept)
    scores = np.random.default_rng(2).uniform(-6, -1, len(pieces))
    by_piece = dict(zip(learner.pieces, scores, strict=True))
    totals, _ = learner.parts.best(scores)
    longer = [str(piece) for piece in learner.pieces if len(piece) > 1]
    assert len(totals) == len(longer) == len(learner.parts.first)
    for piece, total in zip(longer, totals, strict=True):
        ways = segmentations(piece, pieces - {piece})
        assert math.isclose(total, max(sum(by_piece[part] for part in parts) for parts in ways))


def test_the_likelihood_never_falls_but_for_the_prior(learner, monkeypatch):
    """Expectation maximisation with logarithms in place of the digamma function, and nothing dropped."""
    monkeypatch.setattr(module, "digamma", np.log)
    monkeypatch.setattr(module, "_LEAST_EXPECTED", 1e-300)

    def likelihood():
        scores = dict(zip(learner.pieces, learner.scores, strict=True))
        return sum(
            count
            * math.log(sum(math.exp(sum(scores[p] for p in parts)) for parts in segmentations(word, scores)))
            for word, count in COUNTS.items()
        )

    before = likelihood()
    for _ in range(5):
        learner.maximise()
        after = likelihood()
        assert after >= before - 1e-9
        before = after
    assert math.isclose(np.exp(learner.scores).sum(), 1.0)


def test_probabilities_are_those_of_the_digamma_function(learner):
    expected = learner.words.expected(learner.scores, learner.counts)
    kept = (expected >= 0.5) | learner.characters
    learner.maximise()
    counts = np.maximum(expected[kept], 0.5)
    np.testing.assert_allclose(learner.scores, digamma(counts) - digamma(counts.sum()), rtol=1e-12)


@pytest.mark.parametrize("seed", range(60))
def test_what_is_pruned_is_what_the_text_needs_least(learner, seed):
    rng = np.random.default_rng(seed)
    learner.scores = rng.uniform(-6, -1, len(learner.pieces))
    learner.counts = rng.uniform(1, 6, len(COUNTS))  # no ties
    size = 11 + seed % 7
    score = dict(zip(map(str, learner.pieces), learner.scores.tolist(), strict=True))

    def best(word, pieces):
        return max(segmentations(word, pieces), key=lambda parts: sum(score[part] for part in parts))

    used = Counter()
    for word, count in zip(sorted(COUNTS), learner.counts.tolist(), strict=True):
        for part in best(word, score):
            used[part] += count
    total = used.total()

    def loss(piece):
        """Of log likelihood, if the parts of the piece stand in for it wherever it was used."""
        own, parts = used[piece], best(piece, set(score) - {piece})
        if own == 0 or sum(score[part] for part in parts) >= score[piece]:
            return -math.inf
        after = total + own * (len(parts) - 1)
        return own * (math.log(own / total) - sum(math.log((used[part] + own) / after) for part in parts))

    characters = {piece for piece in score if len(piece) == 1}
    needed = sorted(
        (piece for piece in set(score) - characters if loss(piece) > -math.inf), key=loss, reverse=True
    )
    learner.prune(size)
    assert set(map(str, learner.pieces)) == characters | set(needed[: size - len(characters)])


def test_what_was_put_together_is_found():
    rng = random.Random(0)
    roots = ["▁" + "".join(rng.choices("bcdfklmnoprtuvw", k=5)) for _ in range(40)]
    ends = ["ing", "ed", "est", "ly", "s", "age", "ish"]
    counts = {root + end: 1 for root in roots for end in ends}  # once, so that no whole word is a candidate
    room = 5 + len(set("".join(counts))) + len(roots) + len(ends)
    assert {*roots, "ing", "est", "age", "ish"} <= {
        token for token, _ in learn_unigram(counts, 1 + room, ["<unk>"])
    }


def test_size_order_and_alphabet():
    special = ["<unk>", "▁low"]
    tokens = learn_unigram(COUNTS, 16, special)
    assert [token for token, _ in tokens[:2]] == special
    pieces, scores = zip(*tokens[2:], strict=True)
    assert len(tokens) <= 16
    assert list(scores) == sorted(scores, reverse=True)
    assert list(scores) == [round(score, 6) for score in scores]  # few enough digits for every reader
    assert "▁low" not in pieces
    assert set("▁lowerstnx") <= set(pieces)
    assert tokens == learn_unigram(dict(reversed(COUNTS.items())), 16, special)
    fewer = learn_unigram(COUNTS, 16, special, alphabet_limit=6)
    assert len({piece for piece, _ in fewer[2:] if len(piece) == 1}) <= 6


def test_words_of_one_character_are_enough():
    assert [token for token, _ in learn_unigram({"▁": 3, "a": 2}, 10, ["<unk>"])] == ["<unk>", "▁", "a"]


def test_refusals():
    with pytest.raises(UserError, match="no words"):
        learn_unigram({}, 100, [])
    with pytest.raises(UserError, match=r"vocab_size 11 is too small: .* take 12"):
        learn_unigram(COUNTS, 11, ["<unk>", "<s>"])
    with pytest.raises(UserError, match="not among the 1 most frequent ones; set a higher alphabet_limit"):
        learn_unigram({"▁a": 3, "▁b": 2}, 100, [], alphabet_limit=1)
