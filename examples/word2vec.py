"""Word2Vec in one file: a vector for each word, learned from the words around it, by hand.

    python examples/word2vec.py     # reads the docstrings of Python and its packages, in a minute or two
    python examples/word2vec.py novels/ --near love sea --out vectors.npz

A word is known by the company it keeps. Skip-gram goes through a text and asks of each word which words stand
near it. For one pair, a word w and a true neighbour c, and K "negative" words n₁ … n_K drawn at random, the
loss is

    loss = −log σ(w · c) − Σₖ log σ(−w · nₖ)            σ(x) = 1 / (1 + exp(−x))

so K + 1 logistic regressions tell the true neighbour from the random words (negative sampling). Every word
has two vectors: w is one in the table ``words``; c and nₖ, the word in its role as a neighbour, are in the
table ``contexts``. Both tables have the shape (V, D), and only the first is kept. Shapes: V vocabulary, D
numbers in a vector, B pairs in a batch, K negatives per pair, N words of the text.

Source: Mikolov, Sutskever, Chen, Corrado and Dean 2013, "Distributed Representations of Words and Phrases and
their Compositionality"; the random width of windows is from their first paper, "Efficient Estimation of Word
Representations in Vector Space", and the skipped negatives and the falling learning rate from their program.
"""

import argparse
import math
import sys
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import sparse

from minibert.cli.parser import Parser
from minibert.cli.setting_flags import add_setting_flags, given_settings
from minibert.data import open_corpus
from minibert.data.randomness import generator
from minibert.errors import UserError, did_you_mean
from minibert.files import atomic_file, check_writable
from minibert.ops import unit_length
from minibert.settings import Settings, setting
from minibert.text.normalise import Normaliser

Rows = tuple[np.ndarray, np.ndarray]  # numbers of rows (n,), and their gradients (n, D)

CHUNK = 100_000  # words whose pairs are made and shuffled together
DRAWS = 1 << 22  # entries of the table that negatives are drawn from
LAST_RATE = 1e-4  # the last learning rate, as a share of the first
REPORTS = 10  # how often the loss is told


@dataclass(frozen=True)
class SkipGramSettings(Settings):
    """What training does; the defaults suit a few million words."""

    size: int = setting(100, "Word vectors", "numbers in a vector, D", least=1)
    window: int = setting(5, "Word vectors", "how far a neighbour may be, at most", least=1)
    negatives: int = setting(5, "Word vectors", "random words per pair, K", least=1)
    least: int = setting(5, "Word vectors", "occurrences that a word needs to be learned", least=1)
    subsample: float = setting(
        1e-4, "Word vectors", "share of the text above which a word is thinned out; 0: never", least=0.0
    )
    passes: int = setting(5, "Word vectors", "passes over the text", least=1)
    learning_rate: float = setting(0.025, "Word vectors", "falls linearly to almost nothing", least=0.0)
    batch_size: int = setting(256, "Word vectors", "pairs per step, B", least=1)
    most_words: int | None = setting(None, "Word vectors", "read only so many words of the text", least=1)
    seed: int = setting(0, "Word vectors", "of all that is random", least=0)


# -- Text ---------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Text:
    """A text as numbers: V words in the order of their frequency, and where they stand."""

    vocabulary: list[str]
    counts: np.ndarray  # (V,) how often each occurs
    ids: np.ndarray  # (N,) int32: the text without the words that are too rare
    documents: np.ndarray  # (N,) int32: the number of the document that each word is in


def read_text(paths: Sequence[str | Path], least: int = 1, most_words: int | None = None) -> Text:
    """The words of files and folders (see ``open_corpus``) in lower case, without punctuation.

    Raises UserError if no two words occur ``least`` times.
    """
    split, known = Normaliser().words, dict[str, int]()
    read, ends = array("i"), []  # the ids of all words, and where each document ends
    for document in open_corpus(paths).raw_documents():
        for paragraph in document.paragraphs:
            read.extend(known.setdefault(w, len(known)) for w in split(paragraph) if w[0].isalnum())
        ends.append(len(read))
        if most_words is not None and len(read) >= most_words:
            break
    ids = np.array(read, np.int32)[:most_words]
    documents = np.repeat(np.arange(len(ends), dtype=np.int32), np.diff([0, *ends]))[:most_words]
    counts = np.bincount(ids, minlength=len(known))
    order = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts >= least)]  # of the words we keep
    if len(order) < 2:
        raise UserError(
            f"no two words occur {least} times in {len(ids):,}; give more text or a lower --least"
        )
    new_ids = np.full(len(known), -1, np.int32)
    new_ids[order] = np.arange(len(order))
    kept = new_ids[ids] >= 0
    spelled = list(known)
    return Text([spelled[i] for i in order], counts[order], new_ids[ids][kept], documents[kept])


def subsample(text: Text, threshold: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Ids and documents of the words that stay, each with probability √(threshold / its frequency)."""
    if not threshold:
        return text.ids, text.documents
    stays = np.sqrt(threshold * text.counts.sum() / text.counts)  # (V,); the rare ones have more than 1
    kept = rng.random(len(text.ids)) < stays[text.ids]
    return text.ids[kept], text.documents[kept]


def make_pairs(
    ids: np.ndarray, documents: np.ndarray, window: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Centres and their neighbours, both (pairs,), in random order: words of one document near each other.

    Each centre draws how far it sees, 1 to ``window`` words to either side, so near words count for more.
    """
    sees = rng.integers(1, window + 1, len(ids))
    centres, neighbours = [], []
    for distance in range(1, min(window, len(ids) - 1) + 1):
        together = documents[distance:] == documents[:-distance]
        later, earlier = slice(distance, None), slice(-distance)
        for centre, neighbour in ((later, earlier), (earlier, later)):
            chosen = together & (sees[centre] >= distance)
            centres.append(ids[centre][chosen])
            neighbours.append(ids[neighbour][chosen])
    order = rng.permutation(sum(map(len, centres)))
    return np.concatenate([ids[:0], *centres])[order], np.concatenate([ids[:0], *neighbours])[order]


def negative_table(counts: np.ndarray, entries: int = DRAWS) -> np.ndarray:
    """Words in proportion to count^0.75: a random entry of this table, (entries,), is a negative."""
    shares = np.cumsum(counts**0.75)
    return np.searchsorted(shares, shares[-1] * (np.arange(entries) + 0.5) / entries).astype(np.int32)


# -- The loss, and its derivative ---------------------------------------------------------------------
def softplus(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """y = log(1 + exp(x)) = −log σ(−x). The cache is its slope σ(x); m keeps exp from overflowing."""
    m = np.maximum(x, 0)
    nothing, e = np.exp(-m), np.exp(x - m)  # 1 and exp(x), both divided by exp(m)
    return m + np.log(nothing + e), e / (nothing + e)


def softplus_backward(dout: np.ndarray, slope: np.ndarray) -> np.ndarray:
    """forward: y = log(1 + exp(x)), so dy/dx = exp(x) / (1 + exp(x)) = σ(x)."""
    return dout * slope


def negative_sampling(
    words: np.ndarray, contexts: np.ndarray, centres: np.ndarray, targets: np.ndarray
) -> tuple[np.ndarray, tuple]:
    """loss = Σ_b [ −log σ(s[b, 0]) − Σₖ log σ(−s[b, k]) ], where s[b, k] is a score:

    s[b, k] = words[centres[b]] · contexts[targets[b, k]].

    words, contexts (V, D); centres (B,); targets (B, 1 + K), the neighbour first and its negatives after it.
    A negative that happens to be the neighbour itself is skipped.
    """
    scores = np.einsum("bd,bkd->bk", words[centres], contexts[targets])  # (B, 1 + K)
    signs = np.where(targets == targets[:, :1], 0, 1).astype(words.real.dtype)  # 1: low is good, 0: skipped,
    signs[:, 0] = -1  # −1: high is good
    losses, cache = softplus(signs * scores)
    return (np.abs(signs) * losses).sum(), (cache, signs, words, contexts, centres, targets)


def negative_sampling_backward(dout: np.ndarray | float, cache: tuple) -> tuple[Rows, Rows]:
    """The rows of both tables that have a gradient, and these gradients: (rows, dwords), (rows, dcontexts).

    forward: the scores are some entries of S = W Cᵀ. Let G be dS, which is zero at all others; then dW = G C
    and dC = Gᵀ W. An entry that was used several times collects the sum. G is kept as a sparse matrix of the
    rows and columns that occur, and a product with it adds up several times faster than ``np.add.at``.
    """
    slope, signs, words, contexts, centres, targets = cache
    dscores = signs * softplus_backward(dout * np.abs(signs), slope)  # (B, 1 + K)
    word_rows, row = np.unique(centres, return_inverse=True)
    context_rows, column = np.unique(targets, return_inverse=True)
    places = np.repeat(row, targets.shape[1]), column.ravel()
    shape = len(word_rows), len(context_rows)
    g = sparse.csr_array((dscores.ravel(), places), shape=shape)  # adds up what falls on the same place
    return (word_rows, g @ contexts[context_rows]), (context_rows, g.T @ words[word_rows])


# -- Training -----------------------------------------------------------------------------------------
@dataclass(frozen=True)
class WordVectors:
    """A vector for each word of a vocabulary; ``losses`` are the mean losses per pair, as they were told."""

    vocabulary: list[str]
    vectors: np.ndarray  # (V, D)
    losses: list[float]

    def nearest(self, word: str, count: int = 8) -> list[str]:
        """The words whose vectors have the highest cosine with that of ``word``, the most similar first.

        Raises UserError for an unknown word.
        """
        check_known(word, self.vocabulary)
        directions, _ = unit_length(self.vectors)
        this = self.vocabulary.index(word)
        order = np.argsort(-directions @ directions[this], kind="stable")
        return [self.vocabulary[i] for i in order if i != this][:count]

    def save(self, path: str | Path) -> None:
        """Write the arrays ``words`` (V,) and ``vectors`` (V, D) as .npz, atomically."""
        with atomic_file(path) as file:
            np.savez(file, words=np.array(self.vocabulary), vectors=self.vectors)


def check_known(word: str, vocabulary: Sequence[str]) -> None:
    """Raise UserError for a word that is not in the vocabulary."""
    if word not in vocabulary:
        hint = did_you_mean(word, vocabulary, "it does not occur often enough (--least)")
        raise UserError(f"no vector for the word {word!r}; {hint}")


def new_tables(vocab_size: int, size: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """The first values: small random words, and contexts of zero, so that every σ is ½ at first."""
    words = (rng.random((vocab_size, size), np.float32) - np.float32(0.5)) / np.float32(size)
    return words, np.zeros_like(words)


def make_batches(
    text: Text, settings: SkipGramSettings, rng: np.random.Generator
) -> Iterator[tuple[float, np.ndarray, np.ndarray]]:
    """(progress from 0 to 1, centres (B,), targets (B, 1 + K)) of all passes; thinned out anew in each."""
    negatives = negative_table(text.counts)
    for number in range(settings.passes):
        ids, documents = subsample(text, settings.subsample, rng)
        for start in range(0, len(ids), CHUNK):
            chunk = slice(start, start + CHUNK)
            centres, neighbours = make_pairs(ids[chunk], documents[chunk], settings.window, rng)
            drawn = negatives[rng.integers(len(negatives), size=(len(centres), settings.negatives))]
            targets = np.column_stack([neighbours, drawn])  # (pairs, 1 + K)
            for first in range(0, len(centres), settings.batch_size):
                batch = slice(first, first + settings.batch_size)
                done = start + len(ids[chunk]) * first / len(centres)
                yield (number + done / len(ids)) / settings.passes, centres[batch], targets[batch]


def say_nothing(progress: float, loss: float) -> None:
    """What training reports to by default."""


def train(
    text: Text, settings: SkipGramSettings, tell: Callable[[float, float], None] = say_nothing
) -> WordVectors:
    """Learn vectors by stochastic gradient descent; ``tell`` is given the progress and the loss per pair.

    A step adds up the gradients of its pairs instead of averaging them. It stands for B steps of one pair
    each, so the learning rate means what it means in the original program, while B is small enough that few
    pairs of a batch share a word.

    Raises UserError if no word has a neighbour.
    """
    rng = generator("word2vec", settings.seed)
    tables = new_tables(len(text.vocabulary), settings.size, rng)
    losses: list[float] = []
    total, pairs = 0.0, 0
    for progress, centres, targets in make_batches(text, settings, rng):
        if pairs and progress * REPORTS >= len(losses) + 1:
            losses.append(checked(total / pairs))
            tell(progress, losses[-1])
            total, pairs = 0.0, 0
        loss, cache = negative_sampling(*tables, centres, targets)
        rate = np.float32(settings.learning_rate * max(1 - progress, LAST_RATE))
        gradients = negative_sampling_backward(1.0, cache)
        for table, (rows, gradient) in zip(tables, gradients, strict=True):
            table[rows] -= rate * gradient
        total, pairs = total + float(loss), pairs + len(centres)
    if not pairs:
        raise UserError("no word of the text has a neighbour; give longer texts, or a higher --subsample")
    losses.append(checked(total / pairs))
    tell(1.0, losses[-1])
    return WordVectors(text.vocabulary, tables[0], losses)


def checked(loss: float) -> float:
    """The loss. Raises UserError if it is not a finite number."""
    if not math.isfinite(loss):
        raise UserError(f"the loss is {loss}: training has diverged; choose a lower --learning-rate")
    return loss


# -- The command line ---------------------------------------------------------------------------------
def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The flags. Raises UserError for wrong ones."""
    parser = Parser(prog="word2vec.py", description="Learn a vector for each word of a text (Word2Vec).")
    parser.add_argument("texts", nargs="*", metavar="TEXT", help="files or folders (default: docstrings)")
    parser.add_argument("--near", nargs="+", metavar="WORD", help="words whose nearest neighbours are shown")
    parser.add_argument(
        "--out", type=Path, metavar="FILE.npz", help="where the vectors are saved, if anywhere"
    )
    add_setting_flags(parser, SkipGramSettings)
    parser.usage = f"{parser.prog} [TEXT ...] [flags]"
    return parser.parse_args(arguments)


def run(flags: argparse.Namespace) -> None:
    """Read, learn, show neighbours, save."""
    settings = SkipGramSettings.from_dict(given_settings(flags), flags.config or "settings")
    if flags.out is not None:
        if flags.out.suffix != ".npz":
            raise UserError(f"{flags.out}: vectors are saved as .npz; choose a name that ends so")
        check_writable(flags.out)
    text = read_text(flags.texts, settings.least, settings.most_words)
    shown = flags.near or text.vocabulary[100:1000:100]  # neither the most frequent words nor the rarest
    for word in shown:
        check_known(word, text.vocabulary)
    print(f"{len(text.ids):,} words of text, {len(text.vocabulary):,} different ones")
    print(f"loss per pair without learning: {(1 + settings.negatives) * math.log(2):.3f}")
    start = time.perf_counter()

    def tell(progress: float, loss: float) -> None:
        print(f"{progress:4.0%}    loss {loss:.3f}    {time.perf_counter() - start:4.0f} s", flush=True)

    learned = train(text, settings, tell)
    for word in shown:
        print(f"{word:15}", *learned.nearest(word))
    if flags.out is not None:
        learned.save(flags.out)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line; return the exit code."""
    try:
        run(parse(arguments))
    except UserError as error:
        print(f"word2vec: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("word2vec: interrupted", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
