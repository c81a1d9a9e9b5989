"""Word2Vec: its gradient is proven, it draws pairs and negatives as the paper says, and it learns."""

import subprocess
import sys

import numpy as np
import pytest

from examples import word2vec
from examples.word2vec import SkipGramSettings, Text, main, read_text, train
from minibert import ops
from minibert.errors import UserError
from minibert.gradcheck import CENTRAL_DIFFERENCES, COMPLEX_STEP, Case, check, function_case

V, D, B, K = 7, 4, 9, 3
CENTRES = np.array([0, 3, 3, 6, 1, 3, 0, 5, 2])  # repeated ones, and word 4 never
TARGETS = np.array(
    [
        [1, 2, 5, 6],
        [0, 1, 1, 2],  # a negative twice
        [5, 5, 0, 6],  # a negative that is the neighbour: skipped
        [6, 6, 6, 6],  # a word beside itself; nothing is left of its negatives
        [2, 0, 5, 1],
        [0, 2, 1, 5],  # the pair (3, 0) again
        [2, 1, 0, 6],
        [1, 0, 2, 0],
        [0, 6, 5, 1],
    ]
)


def tables(scale=1.0):
    rng = np.random.default_rng(0)
    return {name: rng.normal(0, scale, (V, D)) for name in ("words", "contexts")}


def in_full(rows, gradient):
    """The gradient of a whole table, from that of its rows."""
    assert len(set(rows.tolist())) == len(rows)
    table = np.zeros((V, D), gradient.dtype)
    table[rows] = gradient
    return table


def pairs_case(scale=1.0, backward=word2vec.negative_sampling_backward) -> Case:
    def forward(words, contexts):
        return word2vec.negative_sampling(words, contexts, CENTRES, TARGETS)

    def gradients(dout, cache):
        return tuple(in_full(*found) for found in backward(dout, cache))

    return function_case("negative sampling", forward, gradients, tables(scale))


@pytest.mark.parametrize("method", [CENTRAL_DIFFERENCES, COMPLEX_STEP], ids=lambda method: method.name)
def test_the_gradient_is_that_of_the_loss(method):
    rows = check(pairs_case(), method)
    assert [row.parameter for row in rows] == ["words", "contexts"]
    assert all(row.ok for row in rows), [str(row) for row in rows]


def test_the_check_notices_a_negative_that_is_not_skipped_in_the_gradient():
    def wrong(dout, cache):
        slope, signs, *others = cache
        return word2vec.negative_sampling_backward(dout, (slope, np.where(signs == 0, 1, signs), *others))

    assert not any(row.ok for row in check(pairs_case(backward=wrong)))


def test_softplus_and_its_slope():
    x = np.random.default_rng(1).normal(0, 3, 20)
    case = function_case("softplus", word2vec.softplus, word2vec.softplus_backward, {"x": x})
    for method in (CENTRAL_DIFFERENCES, COMPLEX_STEP):
        assert check(case, method)[0].ok
    y, slope = word2vec.softplus(np.array([-800.0, 0.0, 800.0]))  # where exp alone overflows
    assert y.tolist() == [0.0, np.log(2), 800.0] and slope.tolist() == [0.0, 0.5, 1.0]


def test_the_loss_is_the_formula():
    words, contexts = tables().values()
    expected = 0.0
    for centre, (neighbour, *negatives) in zip(CENTRES, TARGETS, strict=True):
        expected += np.log1p(np.exp(-words[centre] @ contexts[neighbour]))
        expected += sum(np.log1p(np.exp(words[centre] @ contexts[n])) for n in negatives if n != neighbour)
    loss, _ = word2vec.negative_sampling(words, contexts, CENTRES, TARGETS)
    assert loss == pytest.approx(expected, rel=1e-13)


def test_gradients_that_meet_in_a_row_add_up_as_in_the_library():
    """The sparse product against ``ops.embedding_backward`` of every pair's own gradient."""
    words, contexts = tables().values()
    (w, w_cache), (c, c_cache) = ops.embedding(words, CENTRES), ops.embedding(contexts, TARGETS)
    _, cache = word2vec.negative_sampling(words, contexts, CENTRES, TARGETS)
    dscores = cache[1] * cache[0]
    dw, dc = np.einsum("bk,bkd->bd", dscores, c), dscores[:, :, None] * w[:, None, :]
    expected = ops.embedding_backward(dw, w_cache), ops.embedding_backward(dc, c_cache)
    for found, right in zip(word2vec.negative_sampling_backward(1.0, cache), expected, strict=True):
        np.testing.assert_allclose(in_full(*found), right, rtol=1e-12, atol=1e-14)


def test_a_step_stays_in_float32():
    words, contexts = (table.astype(np.float32) for table in tables().values())
    loss, cache = word2vec.negative_sampling(words, contexts, CENTRES, TARGETS)
    gradients = word2vec.negative_sampling_backward(1.0, cache)
    assert {loss.dtype, *(gradient.dtype for _, gradient in gradients)} == {np.dtype("float32")}


# -- Pairs and negatives ------------------------------------------------------------------------------


def test_the_pairs_of_a_window_of_one_are_the_neighbours_within_a_document():
    ids, documents = np.array([4, 5, 6, 7, 8]), np.array([0, 0, 0, 1, 1])
    pairs = word2vec.make_pairs(ids, documents, 1, np.random.default_rng(0))
    expected = [(4, 5), (5, 4), (5, 6), (6, 5), (7, 8), (8, 7)]
    assert sorted(zip(*(one.tolist() for one in pairs), strict=True)) == expected


def test_near_words_are_neighbours_more_often():
    """A centre sees 1 to W words, so it sees the one at distance d with probability (W − d + 1) / W."""
    ids = np.arange(20_000)
    centres, neighbours = word2vec.make_pairs(ids, np.zeros_like(ids), 4, np.random.default_rng(0))
    distances, counts = np.unique(neighbours - centres, return_counts=True)
    assert distances.tolist() == [-4, -3, -2, -1, 1, 2, 3, 4]
    assert counts / len(ids) == pytest.approx([0.25, 0.5, 0.75, 1, 1, 0.75, 0.5, 0.25], abs=0.015)
    assert not np.all(np.diff(centres) >= 0), "in random order"


def test_a_text_shorter_than_the_window():
    for length in (0, 1, 2):
        pairs = word2vec.make_pairs(np.arange(length), np.zeros(length, int), 5, np.random.default_rng(0))
        assert [len(one) for one in pairs] == [length // 2 * 2] * 2


def test_frequent_words_are_thinned_out():
    counts = np.array([90_000, 9_000, 1_000])
    ids = np.repeat(np.arange(3), counts)
    text = Text(["the", "sea", "gull"], counts, ids, np.zeros_like(ids))
    stays, documents = word2vec.subsample(text, 0.01, np.random.default_rng(0))
    shares = np.bincount(stays) / counts
    assert shares == pytest.approx([(0.01 / 0.9) ** 0.5, (0.01 / 0.09) ** 0.5, 1.0], abs=0.02)
    assert len(documents) == len(stays)
    assert len(word2vec.subsample(text, 0.0, np.random.default_rng(0))[0]) == len(ids)


def test_negatives_are_drawn_by_their_counts_to_the_power_of_three_quarters():
    counts = np.array([10_000, 160, 16, 1])
    shares = np.bincount(word2vec.negative_table(counts, 100_000)) / 100_000
    assert shares == pytest.approx(counts**0.75 / (counts**0.75).sum(), abs=2e-5)


def test_a_text_is_read_in_lower_case_without_punctuation_and_rare_words(tmp_path):
    (tmp_path / "a.txt").write_text("The sea, the SEA!\nThe gull.\n\nA gull... and 2 gulls.\n", "utf-8")
    text = read_text([tmp_path / "a.txt"], least=2)
    assert text.vocabulary == ["the", "sea", "gull"] and text.counts.tolist() == [3, 2, 2]
    assert text.ids.tolist() == [0, 1, 0, 1, 0, 2, 2]
    assert len(set(text.documents[:6].tolist())) == 1 and len(text.documents) == 7
    short = read_text([tmp_path / "a.txt"], most_words=3)
    assert short.vocabulary == ["the", "sea"] and short.ids.tolist() == [0, 1, 0]


# -- Learning -----------------------------------------------------------------------------------------

ANIMALS, FOODS = "cat dog horse sheep goat".split(), "bread rice cheese soup cake".split()
SMALL = SkipGramSettings(size=16, window=3, least=1, subsample=0.0, passes=20, batch_size=32)


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    """Animals run, foods are eaten: words of one kind never stand together, but have the same neighbours."""
    rng, path = np.random.default_rng(0), tmp_path_factory.mktemp("toy") / "toy.txt"
    sentences = []
    for _ in range(600):
        animal, food = rng.choice(ANIMALS), rng.choice(FOODS)
        sentences += [f"{animal} runs across fields", f"people eat {food} hot"]
    path.write_text("\n\n".join(sentences) + "\n", "utf-8")
    return path


@pytest.fixture(scope="module")
def learned(toy):
    return train(read_text([toy]), SMALL)


def test_words_with_the_same_neighbours_become_neighbours(learned):
    for kind in (ANIMALS, FOODS):
        for word in kind:
            assert set(learned.nearest(word, 4)) == set(kind) - {word}


def test_the_loss_falls_from_that_of_a_guess(toy, learned):
    assert len(learned.losses) == word2vec.REPORTS
    assert learned.losses[-1] < learned.losses[0] < (1 + SMALL.negatives) * np.log(2)
    told = []
    train(read_text([toy]), SMALL.replace(passes=1), lambda progress, loss: told.append((progress, loss)))
    assert [round(10 * progress) for progress, _ in told] == list(range(1, 11))


def test_the_same_seed_gives_the_same_vectors(toy):
    first, again, other = (
        train(read_text([toy]), SMALL.replace(passes=2, seed=seed)).vectors for seed in (0, 0, 1)
    )
    assert np.array_equal(first, again) and not np.allclose(first, other)


def test_a_diverging_run_says_so(toy):
    with np.errstate(all="ignore"), pytest.raises(UserError, match="choose a lower --learning-rate"):
        train(read_text([toy]), SMALL.replace(learning_rate=1e30))


# -- The command --------------------------------------------------------------------------------------


def test_it_runs_as_a_program(toy, tmp_path):
    out = tmp_path / "vectors.npz"
    flags = ["--size", "8", "--passes", "2", "--near", "cat", "--out", str(out)]
    command = [sys.executable, word2vec.__file__, str(toy), *flags]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    assert "16 different ones" in done.stdout and "\ncat " in done.stdout
    assert "without learning: 4.159" in done.stdout and done.stdout.count(" loss ") >= 5
    with np.load(out) as saved:
        assert saved["vectors"].shape == (16, 8) and set(saved["words"]) >= set(ANIMALS)


def test_nothing_is_saved_unless_asked(toy, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main([str(toy), "--passes", "1"]) == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["nowhere.txt"], "nowhere.txt: no such file"),
        (["TOY", "--least", "10000"], "no two words occur 10000 times in 4,800; give more text or a lower"),
        (["TOY", "--near", "catt"], "no vector for the word 'catt'; did you mean 'cat'?"),
        (["TOY", "--near", "xylophone"], "it does not occur often enough (--least)"),
        (["TOY", "--size", "0"], "size must be at least 1, got 0"),
        (["TOY", "--out", "vectors.txt"], "vectors.txt: vectors are saved as .npz"),
        (["TOY", "--sise", "3"], "unknown argument '--sise'; did you mean '--size'?"),
        (["TOY", "--subsample", "1e-12"], "no word of the text has a neighbour"),
    ],
)
def test_mistakes_are_one_line(toy, arguments, message, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert main([str(toy) if one == "TOY" else one for one in arguments]) == 2
    error = capsys.readouterr().err
    assert message in error and error.startswith("word2vec: error: ") and error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
