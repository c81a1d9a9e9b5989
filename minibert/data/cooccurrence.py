"""What counting alone says about words: which occur near each other."""

from collections.abc import Iterator

import numpy as np
from scipy import sparse

from minibert.data.prepared import Documents
from minibert.data.randomness import generator

WINDOW = 4  # how far apart two tokens that are counted as neighbours may be
CHUNK = 1 << 22  # tokens that are counted at a time, to bound the memory
MOST = 1 << 26  # tokens that are counted at all, to bound the time: those of random documents
SMOOTHING = 0.75  # the power that N(c) is taken to, so that rare tokens do not seem to be more than they are


def word_vectors(documents: Documents, vocab_size: int, size: int, *, seed: int = 0) -> np.ndarray:
    """A vector for each token, similar for tokens with the same neighbours: (V, size) float64.

    It comes from counts alone, without learning. N(v, c) says how often tokens v and c stand near each other,
    at most ``WINDOW`` apart; a pair at distance d counts 1/d. Pointwise mutual information compares that with
    chance:

        PMI(v, c) = log( N(v, c) · ΣN / (N(v) · N(c)) )         PPMI = max(PMI, 0)

    The vectors are the rows of E = U |Λ|^½, where U Λ Uᵀ is the best approximation of the matrix of all PPMI
    with ``size`` eigenvalues. So the product of two vectors is about the PPMI of their tokens, as far as Λ is
    positive. A random rotation then makes all columns alike, and each row is scaled to a mean square of 1.
    Tokens that never occur get random rows.

    Sources: Levy and Goldberg 2014, "Neural Word Embedding as Implicit Matrix Factorization"; Levy, Goldberg
    and Dagan 2015, who take N(c) to the power 0.75, as here, and |Λ| to that of ½.
    """
    rng = generator("word vectors", seed)
    counts = _count_neighbours(documents, vocab_size, WINDOW, generator("counted documents", seed))
    ppmi = _ppmi(counts)
    eigenvalues, eigenvectors = _largest_eigenvalues(ppmi, min(size, vocab_size), rng)
    rotation = np.linalg.qr(rng.standard_normal((size, size)))[0][: len(eigenvalues)]
    vectors = eigenvectors * np.sqrt(np.abs(eigenvalues)) @ rotation
    lengths = np.sqrt((vectors**2).mean(axis=1, keepdims=True))
    return np.where(lengths > 1e-9, vectors / np.maximum(lengths, 1e-9), rng.standard_normal(vectors.shape))


def _count_neighbours(
    documents: Documents, vocab_size: int, window: int, rng: np.random.Generator
) -> sparse.csr_array:
    """N(v, c) for all pairs of tokens, within documents: (V, V), symmetric."""
    total = sparse.csr_array((vocab_size, vocab_size))
    for tokens, document in _chunks(documents, rng):
        for distance in range(1, window + 1):
            together = document[:-distance] == document[distance:]
            first, second = tokens[:-distance][together], tokens[distance:][together]
            pairs, counts = np.unique(first * vocab_size + second, return_counts=True)
            found = counts / distance, (pairs // vocab_size, pairs % vocab_size)
            total = total + sparse.csr_array(found, shape=total.shape)
    return total + total.T


def _largest_eigenvalues(
    matrix: sparse.csr_array, count: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """The ``count`` eigenvalues farthest from 0 of a symmetric matrix, and their vectors: (k,), (V, k).

    Nearly: by iteration of a random subspace, which each product with the matrix turns towards them (Halko,
    Martinsson and Tropp 2011). That is a few times faster than to wait for full convergence.
    """
    subspace = rng.standard_normal((matrix.shape[0], min(count + 16, matrix.shape[0])))
    for _ in range(4):
        subspace = np.linalg.qr(matrix @ subspace)[0]
    eigenvalues, vectors = np.linalg.eigh(subspace.T @ (matrix @ subspace))
    largest = np.argsort(-np.abs(eigenvalues))[:count]
    return eigenvalues[largest], subspace @ vectors[:, largest]


def _chunks(documents: Documents, rng: np.random.Generator) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Tokens as int64, and the number of the document of each: whole documents of about ``CHUNK`` tokens."""
    ranges = rng.permutation(documents.token_ranges())
    lengths = ranges[:, 1] - ranges[:, 0]
    before = np.cumsum(lengths) - lengths  # tokens before each document
    chunk = before[before < MOST] // CHUNK  # of each document that is counted
    for chosen in np.split(np.arange(len(chunk)), np.flatnonzero(np.diff(chunk)) + 1):
        tokens = [documents.tokens[start:stop] for start, stop in ranges[chosen]]
        yield np.concatenate(tokens).astype(np.int64), np.repeat(chosen, lengths[chosen])


def _ppmi(counts: sparse.csr_array) -> sparse.csr_array:
    """Positive pointwise mutual information of the pairs that occur, made symmetric: (V, V)."""
    pairs = counts.tocoo()
    rows, columns = pairs.coords
    of_word = np.asarray(counts.sum(axis=1)).ravel()
    smoothed = of_word**SMOOTHING
    with np.errstate(divide="ignore"):
        pmi = np.log(pairs.data * smoothed.sum() / (of_word[rows] * smoothed[columns]))
    positive = sparse.csr_array((np.maximum(pmi, 0.0), (rows, columns)), shape=counts.shape)
    return (positive + positive.T) / 2
