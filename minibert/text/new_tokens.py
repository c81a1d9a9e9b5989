"""New tokens for the words of a domain, which a vocabulary splits into many pieces.

A new token is an entry of the vocabulary like any other, after the old ones: the tokenizer finds it by its
own rules, and so does transformers, which reads the same files. (transformers' ``add_tokens`` is something
else: it cuts its tokens out of the raw text, even in the middle of a word.)
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from minibert.errors import UserError
from minibert.files import read_text
from minibert.text.tokenizer import PretrainedTokenizer

SHOWN = 3  # examples of what was left out


@dataclass(frozen=True)
class TokenList:
    """The new tokens that a file asks for, and what it asks for in vain."""

    tokens: list[str]
    known: list[str]  # words that are tokens already
    repeated: list[str]
    split: list[str]  # lines that the tokenizer reads as several words, or as none
    changed: list[str]  # words that the tokenizer normalises, as "NumPy → numpy"; their tokens are new
    empty: int

    def describe(self) -> str:
        """One line: how many there are, and how many lines were left out for what reason."""
        reasons = (
            (self.known, "in the vocabulary already"),
            (self.repeated, "repeated"),
            (self.split, "not one word to this tokenizer"),
        )
        left_out = [f"{len(words):,} {reason} ({_some(words)})" for words, reason in reasons if words]
        left_out += [f"{self.empty:,} empty"] if self.empty else []
        parts = [f"{len(self.tokens):,} new tokens"]
        parts += [f"{len(self.changed):,} of them normalised ({_some(self.changed)})"] if self.changed else []
        parts += [f"lines left out: {', '.join(left_out)}"] if left_out else []
        return "; ".join(parts)


def _some(words: Sequence[str]) -> str:
    return ", ".join(words[:SHOWN]) + (", …" if len(words) > SHOWN else "")


def read_new_tokens(path: str | Path, tokenizer: PretrainedTokenizer) -> TokenList:
    """The words in a text file, one per line, as tokens that the tokenizer does not have yet.

    Each word is normalised as the tokenizer does it in a text. In WordPiece, "##ing" is a token that goes on
    with a word. Raises UserError, naming the file, if it cannot be read or has no new word.
    """
    tokens: dict[str, None] = {}
    found = TokenList([], [], [], [], [], 0)
    lines = [line.strip() for line in read_text(path, "list of words").splitlines()]
    for line in lines:
        whole = tokenizer.whole_tokens(line)
        if not line:
            continue
        if len(whole) != 1:
            found.split.append(line)
        elif whole[0] in tokenizer.vocab:
            found.known.append(line)
        elif whole[0] in tokens:
            found.repeated.append(line)
        else:
            tokens[whole[0]] = None
            if (text := tokenizer.as_text(whole[0]).strip()) != line:
                found.changed.append(f"{line} → {text}")
    read = TokenList(list(tokens), found.known, found.repeated, found.split, found.changed, lines.count(""))
    if not read.tokens:
        raise UserError(f"{path}: nothing to add: {read.describe()}; list words that are split, one per line")
    return read


def learn_new_tokens(
    texts: Iterable[str], tokenizer: PretrainedTokenizer, count: int, *, progress: bool = False
) -> list[str]:
    """The ``count`` whole words that shorten the texts most if they become tokens: the most useful first.

    A word of n pieces that occurs f times saves f (n − 1) of them. Whole words do not compete for the same
    pieces, so the best ones are simply those with the largest savings. Ties go to the word that comes first
    in Unicode order. A word must occur twice.

    Raises UserError if no word saves anything.
    """
    counts = tokenizer.count_whole_tokens(texts, progress=progress)
    savings = {
        token: number * (len(tokenizer.pieces(token)) - 1)
        for token, number in counts.items()
        if number > 1 and token not in tokenizer.vocab
    }
    best = sorted(savings, key=lambda token: (-savings[token], token))[:count]
    useful = [token for token in best if savings[token] > 0]
    if not useful:
        raise UserError(
            "no new tokens to learn: the vocabulary holds every word of the text that occurs twice"
        )
    return useful


def add_tokens(tokenizer: PretrainedTokenizer, tokens: Sequence[str]) -> PretrainedTokenizer:
    """The same tokenizer with these tokens after its own (in BPE, also those they are merged from).

    Raises UserError for a token that no text would get: its own rules split it, or find it unknown.
    """
    larger = tokenizer.with_tokens(tokens)
    lost = [token for token in tokens if larger.pieces(token) != (larger.vocab[token],)]
    if lost:
        raise UserError(f"the tokenizer can never produce the new token {lost[0]!r}; leave it out")
    return larger


def old_pieces(larger: PretrainedTokenizer, old: PretrainedTokenizer) -> list[tuple[int, ...]]:
    """For each token that ``larger`` has more than ``old``: the ids that stand for it in ``old``."""
    return [old.pieces(token) for token in larger.tokens[len(old) :]]


def tokens_per_word(
    texts: Iterable[str], old: PretrainedTokenizer, larger: PretrainedTokenizer
) -> tuple[float, float]:
    """How many tokens a word of these texts has on average, before and after.

    A word is what has white space around it, so that both numbers count the same words.
    """
    words, before, after = 0, 0, 0
    for text in texts:
        words += len(text.split())
        before += len(old.token_ids(text))
        after += len(larger.token_ids(text))
    return before / max(words, 1), after / max(words, 1)
