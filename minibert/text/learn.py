"""Learning a vocabulary: again and again, the most frequent pair of neighbours becomes a token.

Source: Sennrich et al. 2016, "Neural Machine Translation of Rare Words with Subword Units" (the merges),
in the form of the trainers of Hugging Face's tokenizers: the WordPieceTrainer, which is how BERT vocabularies
are made today (the program behind the original vocabularies was never published), and the BpeTrainer.
"""

import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from tqdm import tqdm

from minibert.errors import UserError
from minibert.ranks import ALONE, Ranks
from minibert.text.byte_level import (
    BYTE_CHARACTERS,
    blocks,
    bytes_to_characters,
    pre_tokens,
    with_prefix_space,
)
from minibert.text.normalise import chunks
from minibert.text.word_counts import WordCounts
from minibert.text.wordpiece import CONTINUATION

# During merging, words are strings of symbols: token number i is the character chr(FIRST_SYMBOL + i). So
# Python's own string methods find and replace pairs. Above the surrogates there is room for a million tokens.
FIRST_SYMBOL = 0xE000

USUAL_ALPHABET = 1000  # different characters in a vocabulary, at most

MAX_RAW_CHARACTERS = 2**24  # of text whose chunks are held at a time


class SplitsWords(Protocol):
    """A normaliser, such as `Normaliser` or `MetaspaceNormaliser`."""

    def words(self, text: str) -> list[str]:
        """The words of a text, normalised, in order."""


def count_words(
    texts: Iterable[str],
    normaliser: SplitsWords,
    *,
    max_characters_per_word: int = 100,
    max_words: int = 500_000,
    progress: bool = False,
    ranks: Ranks = ALONE,
) -> Counter[str]:
    """Count the normalised words of a stream of texts in bounded memory.

    Words of more than ``max_characters_per_word`` characters are skipped: a tokenizer turns them into [UNK],
    so it could never use what is learned from them.

    It never holds more than ``max_words`` different words for long, nor returns more; see `WordCounts`.
    Several ``ranks`` count different texts; each gets the counts of all.
    """
    counts = WordCounts(max_words)
    return _count(texts, chunks, normaliser.words, max_characters_per_word, counts, progress, ranks)


def count_pre_tokens(
    texts: Iterable[str],
    *,
    add_prefix_space: bool = False,
    max_bytes_per_word: int = 1000,
    max_words: int = 500_000,
    progress: bool = False,
    ranks: Ranks = ALONE,
) -> Counter[str]:
    """Count the pre-tokens of a stream of texts, each spelled in `BYTE_CHARACTERS`, in bounded memory.

    Those of more than ``max_bytes_per_word`` bytes are skipped, so that a text without spaces does not take
    hours; otherwise see `count_words`. ``add_prefix_space`` counts the first word of a text like the others.
    """

    def cut(text: str) -> list[str]:
        return blocks(with_prefix_space(text) if add_prefix_space else text)

    def words(block: str) -> Iterable[str]:
        return map(bytes_to_characters, pre_tokens(block))

    return _count(texts, cut, words, max_bytes_per_word, WordCounts(max_words), progress, ranks)


def _count(
    texts: Iterable[str],
    cut: Callable[[str], Iterable[str]],
    words_of: Callable[[str], Iterable[str]],
    longest: int,
    counts: WordCounts,
    progress: bool,
    ranks: Ranks,
) -> Counter[str]:
    """Count the words of the chunks that each text is cut into."""
    raw: Counter[str] = Counter()  # of chunks, so that each different one is split only once
    characters = 0  # in ``raw``, at most
    for text in tqdm(texts, desc="counting words", unit=" texts", disable=not progress):
        raw.update(cut(text))
        characters += len(text)
        if len(raw) > counts.max_words or characters > MAX_RAW_CHARACTERS:
            _add_words(counts, raw, words_of, longest)
            characters = 0
    _add_words(counts, raw, words_of, longest)
    return counts.most_frequent(ranks)


def _add_words(
    counts: WordCounts, raw: Counter[str], words_of: Callable[[str], Iterable[str]], longest: int
) -> None:
    """Move the counts of chunks over to their words of at most ``longest`` characters."""
    for chunk, count in raw.items():
        for word in words_of(chunk):
            if len(word) <= longest:
                counts.add(word, count)
    raw.clear()
    counts.bound_memory()


def learn_vocabulary(
    word_counts: Mapping[str, int],
    vocab_size: int,
    special_tokens: Iterable[str],
    *,
    alphabet_limit: int = USUAL_ALPHABET,
    min_frequency: int = 2,
    progress: bool = False,
) -> list[str]:
    """Learn up to ``vocab_size`` tokens: the special tokens, the alphabet, then the merges in their order.

    The alphabet is the ``alphabet_limit`` most frequent characters, each as the start of a word ("a") and, if
    it occurs there, as the continuation of one ("##a"). Words with other characters are skipped. Each merge
    takes the most frequent pair of neighbours; ties go to the pair whose left, then right token comes first
    in Unicode order. Merging ends early when no pair occurs ``min_frequency`` times any more.

    Raises UserError if there are no words, if none has only characters of the alphabet, or if special tokens
    and alphabet alone exceed ``vocab_size``.
    """
    refuse_no_words(word_counts)
    alphabet = frequent_characters(word_counts, alphabet_limit)
    words = spelled_words(word_counts, alphabet)
    continuing = {char for word in words for char in word[1:]}
    tokens = [*special_tokens, *sorted(alphabet), *(CONTINUATION + char for char in sorted(continuing))]
    if len(tokens) > vocab_size:
        raise UserError(
            f"vocab_size {vocab_size} is too small: the special tokens and the alphabet alone take "
            f"{len(tokens)}; ask for more tokens or set a lower alphabet_limit"
        )
    _merge_up_to(vocab_size, _Merges(words, tokens, CONTINUATION), min_frequency, progress)
    return tokens


def learn_merges(
    word_counts: Mapping[str, int],
    vocab_size: int,
    special_tokens: Iterable[str],
    *,
    min_frequency: int = 2,
    progress: bool = False,
) -> tuple[list[str], list[tuple[str, str]]]:
    """Learn up to ``vocab_size`` tokens for byte-level BPE, and the merges that lead to them, in their order.

    The tokens are the special tokens, the 256 bytes, then the results of the merges. ``word_counts`` are
    those of `count_pre_tokens`. Each merge takes the most frequent pair of neighbours; ties go to the pair
    whose left, then right token is the older one. Merging ends early when no pair occurs ``min_frequency``
    times any more.

    Raises UserError if there are no words.
    """
    refuse_no_words(word_counts)
    tokens = [*special_tokens, *sorted(BYTE_CHARACTERS)]
    merges = _Merges(word_counts, tokens, "")
    _merge_up_to(vocab_size, merges, min_frequency, progress)
    return tokens, merges.made


def refuse_no_words(word_counts: Mapping[str, int]) -> None:
    """Raise UserError if nothing was counted."""
    if not word_counts:
        raise UserError("the texts contain no words to learn a vocabulary from; give a corpus with text")


def _merge_up_to(vocab_size: int, merges: "_Merges", min_frequency: int, progress: bool) -> None:
    """Merge the most frequent pair until there are enough tokens or all pairs are too rare."""
    tokens = merges.tokens
    with tqdm(
        total=vocab_size, initial=len(tokens), desc="merging", unit=" tokens", disable=not progress
    ) as bar:
        while len(tokens) < vocab_size:
            pair, count = merges.most_frequent()
            if count < max(min_frequency, 1):
                break
            bar.update(merges.merge(pair))


def frequent_characters(word_counts: Mapping[str, int], limit: int) -> set[str]:
    """The most frequent characters; ties go to the one that comes first in Unicode order."""
    counts: Counter[str] = Counter()
    for word, count in word_counts.items():
        for char in word:
            counts[char] += count
    return set(sorted(counts, key=lambda char: (-counts[char], char))[:limit])


def spelled_words(word_counts: Mapping[str, int], alphabet: set[str]) -> dict[str, int]:
    """The words that have no other characters than these. Raises UserError if there are none."""
    words = {word: count for word, count in word_counts.items() if alphabet.issuperset(word)}
    if not words:
        raise UserError(
            f"every word has a character that is not among the {len(alphabet)} most frequent ones; "
            "set a higher alphabet_limit"
        )
    return words


class _Merges:
    """The words as strings of symbols, and how often each pair of neighbouring symbols occurs in them.

    The counts are updated with each merge: only words with the merged pair are visited, and in them only the
    pairs that the merge touches. ``heap`` may hold outdated counts; they are corrected when they come up.

    Tokens that continue a word begin with ``prefix``: "##" in WordPiece, nothing in BPE.
    """

    def __init__(self, word_counts: Mapping[str, int], tokens: list[str], prefix: str) -> None:
        self.tokens = tokens  # shared with the caller, grows with every merge
        self.prefix = prefix
        self.made: list[tuple[str, str]] = []  # the merges so far
        self.symbols = {token: chr(FIRST_SYMBOL + i) for i, token in enumerate(tokens)}
        first = {ord(token): symbol for token, symbol in self.symbols.items() if len(token) == 1}
        later = {
            ord(token[-1]): symbol
            for token, symbol in self.symbols.items()
            if len(token) == len(prefix) + 1 and token.startswith(prefix)
        }
        self.words = [word[0].translate(first) + word[1:].translate(later) for word in word_counts]
        self.word_counts = list(word_counts.values())
        self.counts: defaultdict[str, int] = defaultdict(int)  # pair (two symbols) → occurrences
        self.where: defaultdict[str, list[int]] = defaultdict(list)  # pair → words that hold it, or once did
        for index, (word, count) in enumerate(zip(self.words, self.word_counts, strict=True)):
            for pair in _pairs(word):
                self.counts[pair] += count
                self.where[pair].append(index)
        self.heap = [self._entry(pair) for pair in self.counts]
        heapq.heapify(self.heap)

    def most_frequent(self) -> tuple[str, int]:
        """The next pair to merge and its count; an empty pair when there is none."""
        while self.heap:
            negative_count, _, pair = self.heap[0]
            count = self.counts.get(pair, 0)
            if count == -negative_count:
                return pair, count
            if count > 0:
                heapq.heapreplace(self.heap, self._entry(pair))
            else:
                heapq.heappop(self.heap)
        return "", 0

    def merge(self, pair: str) -> int:
        """Replace the pair by one symbol in all words. Returns how many tokens are new: 1, or 0.

        ("ab", "##c") and ("a", "##bc") both make the token "abc"; it exists once.
        """
        left, right = map(self._token, pair)
        self.made.append((left, right))
        token = left + right.removeprefix(self.prefix)
        added = token not in self.symbols
        if added:
            self.symbols[token] = chr(FIRST_SYMBOL + len(self.tokens))
            self.tokens.append(token)
        merged = self.symbols[token]

        changes: defaultdict[str, int] = defaultdict(int)
        for index in self.where.pop(pair):
            word = self.words[index]
            begin = word.find(pair)
            if begin < 0:  # an outdated entry
                continue
            before = word[max(begin - 1, 0) : word.rfind(pair) + 3]  # with a neighbour on either side
            after = before.replace(pair, merged)
            self.words[index] = word.replace(pair, merged)
            count = self.word_counts[index]
            for old in _pairs(before):
                changes[old] -= count
            for new in _pairs(after):
                changes[new] += count
                if merged in new:
                    self.where[new].append(index)
        for changed, change in changes.items():
            self.counts[changed] += change
            if change > 0:
                heapq.heappush(self.heap, self._entry(changed))
            elif self.counts[changed] == 0:
                del self.counts[changed]
        return int(added)

    def _token(self, symbol: str) -> str:
        return self.tokens[ord(symbol) - FIRST_SYMBOL]

    def _entry(self, pair: str) -> tuple[int, tuple[str, ...], str]:
        """The heap's sort key: the highest count first, then by the texts of the two tokens (in WordPiece),
        or by their numbers (in BPE), which is the order of their symbols."""
        texts = tuple(map(self._token, pair)) if self.prefix else ()
        return -self.counts[pair], texts, pair


def _pairs(word: str) -> list[str]:
    return [word[i : i + 2] for i in range(len(word) - 1)]
