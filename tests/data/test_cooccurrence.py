"""Vectors of words from counts."""

import numpy as np
import pytest

from minibert.data import cooccurrence, word_vectors
from minibert.data.prepared import Documents


def documents(*token_lists):
    lengths = np.array([len(tokens) for tokens in token_lists])
    return Documents(
        tokens=np.concatenate([np.array(tokens, dtype=np.uint16) for tokens in token_lists]),
        sentence_starts=np.concatenate([[0], np.cumsum(lengths)]),
        document_starts=np.arange(len(token_lists) + 1),
        chosen=np.arange(len(token_lists)),
    )


@pytest.mark.parametrize("chunk", [1, 1 << 22])
def test_neighbours_by_hand(monkeypatch, chunk):
    """Pairs at distance 1 count 1, at distance 2 a half, in both directions, and never across documents."""
    monkeypatch.setattr(cooccurrence, "CHUNK", chunk)
    texts, rng = documents([0, 1, 2, 1], [3, 0]), np.random.default_rng(0)
    counts = cooccurrence._count_neighbours(texts, 4, 2, rng).toarray()
    expected = np.zeros((4, 4))
    for a, b, weight in [(0, 1, 1), (1, 2, 1), (2, 1, 1), (0, 2, 0.5), (1, 1, 0.5), (3, 0, 1)]:
        expected[a, b] += weight
        expected[b, a] += weight
    np.testing.assert_allclose(counts, expected)


def test_of_a_large_corpus_some_documents_are_counted(monkeypatch):
    monkeypatch.setattr(cooccurrence, "MOST", 10)
    texts = documents(*[[i, i + 20, i] for i in range(20)])
    counts = cooccurrence._count_neighbours(texts, 40, 1, np.random.default_rng(0)).toarray()
    counted = np.flatnonzero(counts[:20].sum(axis=1))
    assert len(counted) == 4  # until there are ten tokens, the last document with them
    assert counted.tolist() != [0, 1, 2, 3]
    assert (counts[counted, counted + 20] == 2).all()


def test_pointwise_mutual_information_by_the_formula():
    rng = np.random.default_rng(0)
    texts = documents(rng.integers(0, 6, 200), rng.integers(2, 9, 300))
    counts = cooccurrence._count_neighbours(texts, 10, 3, rng)
    n = counts.toarray()
    of_word, smoothed = n.sum(1), n.sum(1) ** 0.75
    expected = np.zeros((10, 10))
    for v in range(10):
        for c in range(10):
            if n[v, c] > 0:
                expected[v, c] = max(0.0, np.log(n[v, c] * smoothed.sum() / (of_word[v] * smoothed[c])))
    found = cooccurrence._ppmi(counts).toarray()
    np.testing.assert_allclose(found, (expected + expected.T) / 2, rtol=1e-12)
    assert (found[9] == 0).all()  # a token that does not occur
    assert (found > 0).sum() > 10


def test_the_subspace_finds_the_largest_eigenvalues():
    rng = np.random.default_rng(0)
    basis = np.linalg.qr(rng.standard_normal((60, 60)))[0]
    values = np.concatenate([[-50.0, 40.0, 30.0, -20.0], rng.uniform(-1, 1, 56)])
    matrix = cooccurrence.sparse.csr_array(basis * values @ basis.T)
    found, vectors = cooccurrence._largest_eigenvalues(matrix, 4, rng)
    np.testing.assert_allclose(found, values[:4], rtol=1e-8)
    np.testing.assert_allclose(np.abs(np.sum(vectors * basis[:, :4], axis=0)), 1.0, rtol=1e-8)


def test_words_with_the_same_neighbours_have_similar_vectors():
    """Tokens 0 and 1 stand between 2 and 3; tokens 4 and 5 between 6 and 7; token 8 never occurs."""
    rng = np.random.default_rng(0)
    text = [token for _ in range(500) for token in ((2, rng.integers(2), 3), (6, 4 + rng.integers(2), 7))]
    texts = documents(*[list(map(int, words)) for words in text])
    vectors = word_vectors(texts, 9, 4)
    assert vectors.shape == (9, 4)
    np.testing.assert_allclose((vectors**2).mean(axis=1)[:8], 1.0)
    cosines = vectors @ vectors.T / 4
    assert min(cosines[0, 1], cosines[4, 5]) > 0.99
    assert abs(cosines[0, 4]) < 0.1
    np.testing.assert_array_equal(vectors, word_vectors(texts, 9, 4))
    assert not np.array_equal(vectors, word_vectors(texts, 9, 4, seed=1))


def test_the_cosines_of_full_vectors_are_those_of_the_matrix():
    """With as many numbers as tokens, E Eᵀ = U |Λ| Uᵀ."""
    rng = np.random.default_rng(0)
    texts = documents(rng.integers(0, 12, size=3000) * rng.integers(0, 2, size=3000))
    ppmi = cooccurrence._ppmi(cooccurrence._count_neighbours(texts, 12, cooccurrence.WINDOW, rng)).toarray()
    eigenvalues, eigenvectors = np.linalg.eigh(ppmi)
    products = (eigenvectors * np.abs(eigenvalues)) @ eigenvectors.T
    lengths = np.sqrt(np.diag(products))
    vectors = word_vectors(texts, 12, 12)
    np.testing.assert_allclose(vectors @ vectors.T / 12, products / np.outer(lengths, lengths), atol=1e-8)


def test_there_may_be_more_numbers_in_a_vector_than_tokens():
    vectors = word_vectors(documents([0, 1, 2, 0, 1, 3]), 4, 6)
    assert vectors.shape == (4, 6) and np.isfinite(vectors).all()
