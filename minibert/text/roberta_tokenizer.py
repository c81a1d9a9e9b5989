"""RobertaTokenizer: text to token ids and back, with the names and the behaviour of Hugging Face's."""

import re
import reprlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from string import ascii_letters, digits
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from minibert.errors import UserError
from minibert.files import read_json, read_text, write_json, write_text
from minibert.ranks import ALONE, Ranks
from minibert.text.byte_level import (
    ASCII_BREAKS,
    BYTE_CHARACTERS,
    SPACE,
    BytePairs,
    blocks,
    bytes_to_characters,
    pre_tokens,
    token_bytes,
    with_prefix_space,
)
from minibert.text.learn import count_pre_tokens, learn_merges
from minibert.text.normalise import WHITE_SPACE, Memo, chunk_size
from minibert.text.tokenizer import PretrainedTokenizer, in_utf8, letter_table, refuse_single_text
from minibert.text.tokenizer_files import (
    check_added_tokens,
    check_added_tokens_file,
    check_flags,
    listed_tokens,
    read_config,
    read_option,
    read_options,
    tokens_by_id,
)

if TYPE_CHECKING:
    from minibert.text.piece_memory import PieceMemory

SPECIAL_TOKENS = {
    "pad_token": "<pad>",
    "unk_token": "<unk>",
    "cls_token": "<s>",
    "sep_token": "</s>",
    "mask_token": "<mask>",
}
MASK = SPECIAL_TOKENS["mask_token"]

# What the files call the same tokens: <s> begins and </s> ends a text.
FILE_TOKENS = {"bos_token": "<s>", "eos_token": "</s>", **SPECIAL_TOKENS}

# Our options and their names in tokenizer_config.json.
CONFIG_KEYS = {
    "add_prefix_space": "add_prefix_space",
    "trim_offsets": "trim_offsets",
    "model_max_length": "model_max_length",
}

# Settings of other kinds of BPE in a tokenizer.json; in RoBERTa's they are null, "" or false.
_FOREIGN = ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback", "ignore_merges")


class RobertaTokenizer(PretrainedTokenizer):
    """Byte-level BPE tokenizer of RoBERTa.

    Args:
        vocab: the tokens; a token's id is its index. Must hold <s>, <pad>, </s>, <unk>, <mask> and all bytes.
        merges: the pairs of tokens that are merged, in the order in which they were learned.
        add_prefix_space: whether a text (and what follows a special token in it) is read as if there were
            a space before it, so that its first word is like any other.
        trim_offsets: whether the spans of tokens leave out the spaces that belong to them.
        mask_strips_space: whether "<mask>" in a text takes the white space before it, so that it stands for
            a word with the space before it (``lstrip`` in Hugging Face's files).
        model_max_length: the max_length of ``truncation=True`` and ``padding="max_length"`` if none is given.

    A space belongs to the word after it: "a word" has the tokens "a" and "Ġword". ``continues_word`` is True
    for tokens that begin with a letter or a digit, and no space before it. So it is True also for the first
    word of a text (unless add_prefix_space gives it a space), which nothing but the special token before it
    sets apart, and for a word after a quotation mark, a hyphen or a line feed.

    The ids of each block of text between two spaces, and of the pre-tokens in it, are cached; the cached ones
    have at most `CACHED_CHARACTERS` characters in total, in each of the two. A tokenizer can be pickled (for
    worker processes), without its cache. Raises UserError for a vocabulary without these tokens, and for
    merges whose parts or results are not in it.
    """

    special_tokens = SPECIAL_TOKENS
    config_keys = CONFIG_KEYS

    def __init__(
        self,
        vocab: Sequence[str],
        merges: Iterable[tuple[str, str]],
        *,
        add_prefix_space: bool = False,
        trim_offsets: bool = True,
        mask_strips_space: bool = True,
        model_max_length: int | None = None,
    ) -> None:
        self._set_tokens(vocab)
        self.merges = list(merges)
        self.add_prefix_space = add_prefix_space
        self.trim_offsets = trim_offsets
        self.mask_strips_space = mask_strips_space
        self.model_max_length = model_max_length
        special = SPECIAL_TOKENS.values()
        self.continues_word = np.array(  # (V,)
            [token not in special and _begins_inside(token) for token in self.tokens]
        )
        _check_merges(self.vocab, self.merges)
        self._pairs = BytePairs(self.vocab, self.merges)
        self._special = re.compile("|".join(map(re.escape, special)))
        self._pre_token_ids = Memo(self._pairs.ids, self.CACHED_CHARACTERS, chunk_size)
        self._block_ids, self._block_spans = self._memos(self._compute_block_ids, self._compute_block_spans)

    # ---------------------------------------------------------------- making, reading, writing

    @classmethod
    def train(
        cls,
        texts: Iterable[str],
        vocab_size: int = 8192,
        *,
        add_prefix_space: bool = False,
        min_frequency: int = 2,
        max_bytes_per_word: int = 1000,
        max_words: int = 500_000,
        progress: bool = False,
        ranks: Ranks = ALONE,
    ) -> "RobertaTokenizer":
        """Learn a vocabulary from a stream of texts; see `learn_merges` and `count_pre_tokens`.

        The ids are RoBERTa's: <s>, <pad>, </s>, <unk> are 0 to 3, and <mask> is the last. The same texts
        always give the same vocabulary, that of Hugging Face's trainer as long as no word is skipped or
        forgotten. It has fewer than ``vocab_size`` tokens if the texts do not yield more. ``progress`` shows
        two bars on stderr.
        """
        refuse_single_text(texts)
        smallest = len(SPECIAL_TOKENS) + len(BYTE_CHARACTERS)
        if vocab_size < smallest:
            raise UserError(
                f"vocab_size {vocab_size} does not even hold the special tokens and the bytes, which are "
                f"{smallest}; ask for a few thousand tokens"
            )
        counts = count_pre_tokens(
            texts,
            add_prefix_space=add_prefix_space,
            max_bytes_per_word=max_bytes_per_word,
            max_words=max_words,
            progress=progress,
            ranks=ranks,
        )
        tokens, merges = learn_merges(
            counts,
            vocab_size - 1,
            ("<s>", "<pad>", "</s>", "<unk>"),
            min_frequency=min_frequency,
            progress=progress,
        )
        return cls([*tokens, MASK], merges, add_prefix_space=add_prefix_space)

    @classmethod
    def from_pretrained(cls, folder: str | Path, **options: Any) -> "RobertaTokenizer":
        """Read a tokenizer from a folder in Hugging Face's layout.

        It has ``vocab.json`` and ``merges.txt`` (or else both in ``tokenizer.json``, which is all that recent
        versions of transformers write), and the options in ``tokenizer_config.json``. ``options`` override
        what the files say. If they do not say whether <mask> takes the space before it, it does, as in every
        released model. Raises UserError, naming the file, if one is missing, damaged, not UTF-8, or not for
        RoBERTa.
        """
        folder = Path(folder)
        if not folder.is_dir():
            problem = "this is a file" if folder.exists() else "no such folder"
            raise UserError(
                f"{folder}: {problem}; give a folder on the disk with vocab.json and merges.txt, or "
                "tokenizer.json"
            )
        vocab_file, merges_file = folder / "vocab.json", folder / "merges.txt"
        if not vocab_file.exists() and (folder / "tokenizer.json").exists():
            vocab_file = merges_file = folder / "tokenizer.json"
            tokens, merges, found = _read_tokenizer_json(vocab_file)
        else:
            tokens, merges, found = _read_vocab(vocab_file), _read_merges(merges_file), {}
        check_added_tokens_file(folder, tokens)
        config_file, config = folder / "tokenizer_config.json", {}
        if config_file.exists():
            config = read_config(config_file, FILE_TOKENS, "RoBERTa")
            found |= read_options(config_file, config, CONFIG_KEYS)
            listed = listed_tokens(config_file, config, FILE_TOKENS.values())
            found |= _mask_option(config_file, [*listed, config.get("mask_token")])
        try:
            tokenizer = cls(tokens, merges, **(found | options))
        except UserError as error:
            files = vocab_file if vocab_file == merges_file else f"{vocab_file} and {merges_file.name}"
            raise UserError(f"{files}: {error}") from None
        tokenizer.padding_side = config.get("padding_side", cls.padding_side)
        return tokenizer

    def save_pretrained(self, folder: str | Path) -> None:
        """Write ``vocab.json``, ``merges.txt``, ``tokenizer_config.json`` and ``special_tokens_map.json``.

        Transformers opens the folder as the same tokenizer.
        """
        folder = Path(folder)
        config: dict[str, Any] = {"tokenizer_class": "RobertaTokenizer", "padding_side": self.padding_side}
        config |= {key: getattr(self, name) for name, key in CONFIG_KEYS.items()}
        if self.model_max_length is None:
            del config["model_max_length"]
        config["added_tokens_decoder"] = {
            str(self.vocab[token]): self._token_entry(token) for token in SPECIAL_TOKENS.values()
        }
        lines = ["#version: 0.2", *map(" ".join, self.merges)]
        write_text(folder / "merges.txt", "".join(line + "\n" for line in lines))
        write_json(folder / "tokenizer_config.json", config | FILE_TOKENS)
        write_json(folder / "special_tokens_map.json", FILE_TOKENS | {"mask_token": self._token_entry(MASK)})
        write_json(folder / "vocab.json", self.vocab)  # last

    def _token_entry(self, token: str) -> dict[str, Any]:
        """What transformers writes of a special token: the white space that it takes, and more."""
        strips = token == MASK and self.mask_strips_space
        flags = dict(lstrip=strips, normalized=False, rstrip=False, single_word=False, special=True)
        return {"content": token, **flags}

    # ---------------------------------------------------------------- new tokens

    def whole_tokens(self, text: str) -> list[str]:
        """The pre-tokens of a text that stands in a sentence, with a space before it."""
        return [bytes_to_characters(word) for word in pre_tokens(with_prefix_space(text))]

    def count_whole_tokens(self, texts: Iterable[str], *, progress: bool = False) -> Counter[str]:
        """How often each pre-token occurs in a stream of texts; see `count_pre_tokens`."""
        return count_pre_tokens(texts, add_prefix_space=self.add_prefix_space, progress=progress)

    def pieces(self, token: str) -> tuple[int, ...]:
        """The ids that stand for a pre-token or a part of one, spelled in `BYTE_CHARACTERS`."""
        return self._pairs.ids(token_bytes(token))

    def with_tokens(self, tokens: Sequence[str]) -> Self:
        """The same tokenizer with new tokens after its own, and the merges that lead to them.

        A new token is merged from its pieces, from left to right; what comes about on the way is a token,
        too. New merges are made after all old ones, so that each finds the pieces that it was made for.
        """
        vocab, merges = dict(self.vocab), list(self.merges)
        pairs = BytePairs(vocab, merges)
        names = list(self.tokens)
        for token in tokens:
            while len(parts := pairs.ids(token_bytes(token))) > 1:
                merge = names[parts[0]], names[parts[1]]
                joined = "".join(merge)
                if joined not in vocab:
                    vocab[joined] = len(names)
                    names.append(joined)
                merges.append(merge)
                pairs.add_merge(parts[0], parts[1], vocab[joined])
        options = {name: getattr(self, name) for name in CONFIG_KEYS}
        larger = type(self)(names, merges, mask_strips_space=self.mask_strips_space, **options)
        larger.padding_side = self.padding_side
        return larger

    # ---------------------------------------------------------------- text to ids

    def _text_ids(self, text: str) -> list[int]:
        ids: list[int] = []
        for start, stop, special in self._sections(text):
            if special is None:
                section = self._prepared(text[start:stop])
                ids += chain.from_iterable(map(self._block_ids.__getitem__, blocks(section)))
            else:
                ids.append(self.vocab[special])
        return ids

    def _new_memory(self) -> "PieceMemory":
        from minibert.kernels.cpu.pieces import BREAK, DIGIT, FOREIGN, LETTER, OTHER, SPACE
        from minibert.kernels.cpu.spelling import spell_byte_pairs
        from minibert.text.piece_memory import PieceMemory

        kinds = {LETTER: ascii_letters, DIGIT: digits, SPACE: " ", BREAK: ASCII_BREAKS}
        known = "".join(kinds.values())
        kinds[OTHER] = "".join(chr(byte) for byte in range(128) if chr(byte) not in known)
        letters, (byte_ids, slots, pairs) = letter_table(str.isascii), self._pairs.tables()
        return PieceMemory(
            self._compute_block_ids,
            kinds,
            FOREIGN,
            self.CACHED_CHARACTERS,
            byte_level=True,
            spell=lambda table, row: spell_byte_pairs(table, row, letters, byte_ids, slots, pairs),
        )

    def _bytes_to_cut(self, text: str) -> bytes | None:
        if "<" in text and self._special.search(text):
            return None
        return in_utf8(self._prepared(text))

    def rules(self) -> list[Any]:
        """The merges, and whether <mask> takes the white space before it."""
        return [self.merges, self.mask_strips_space]

    def word_token_ids(self, word: str) -> list[int]:
        """`token_ids` of a word with the space before it, which is part of its first token."""
        return self.token_ids(with_prefix_space(word))

    def word_numbers(self, ids: Sequence[int]) -> np.ndarray:
        """The number of the pre-token, from 1, that each token of a text belongs to; "." is one of its own.

        Special tokens count as the characters that they are written with.
        """
        sizes = [len(token_bytes(self.tokens[i])) for i in ids]  # in bytes
        words = [
            len(word.encode("utf-8")) for block in blocks(self.decode(ids)) for word in pre_tokens(block)
        ]
        last_bytes = np.cumsum(sizes) - 1
        numbers = np.searchsorted(np.cumsum(words), last_bytes, side="right")
        return np.unique(numbers, return_inverse=True)[1].astype(np.int32) + 1  # a token may span several

    def as_text(self, token: str) -> str:
        """A token as people read it, the space before it included."""
        return token_bytes(token).decode("utf-8", errors="replace")

    def token_ids_with_spans(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """`token_ids`, and where in ``text`` each token is: text[start:stop], as (start, stop).

        A token that is only some bytes of a character has the span of that character. With ``trim_offsets``
        the spaces at the beginning and end of a token are not in its span, which is empty if the token is
        nothing else. These are the offsets of transformers, also where they are odd: with add_prefix_space
        the first token keeps one space, and a word after a special token and no space loses a letter.
        """
        ids, spans = self.token_ids(text), []
        for start, stop, special in self._sections(text):
            if special is None:
                section = self._prepared(text[start:stop])
                begin = stop - len(section)  # before it if a space was added; that has the next one's span
                for block in blocks(section):
                    spans += [
                        (max(begin + first, start), max(begin + last, start + 1))
                        for first, last in self._block_spans[block]
                    ]
                    begin += len(block)
            else:
                spans.append((start, stop))
        return ids, self._trimmed(ids, spans, text) if self.trim_offsets else spans

    def _sections(self, text: str) -> Iterator[tuple[int, int, str | None]]:
        """The special tokens in a text and the pieces between them: start, stop, and which token it is."""
        start = 0
        for match in self._special.finditer(text) if "<" in text else ():
            stop = match.start()
            if match[0] == MASK and self.mask_strips_space:
                stop = start + len(text[start:stop].rstrip(WHITE_SPACE))
            if start < stop:
                yield start, stop, None
            yield stop, match.end(), match[0]
            start = match.end()
        if start < len(text):
            yield start, len(text), None

    def _prepared(self, section: str) -> str:
        return with_prefix_space(section) if self.add_prefix_space else section

    def _compute_block_ids(self, block: str) -> tuple[int, ...]:
        """Ids of a word, or what stands for one, with the space before it."""
        return tuple(chain.from_iterable(map(self._pre_token_ids.__getitem__, pre_tokens(block))))

    def _compute_block_spans(self, block: str) -> tuple[tuple[int, int], ...]:
        """Where in a block its tokens are, spaces included."""
        owners = [i for i, char in enumerate(block) for _ in char.encode("utf-8")]  # byte → character
        spans, begin = [], 0
        for i in self._block_ids[block]:
            end = begin + len(self.tokens[i])  # a character of a token is a byte
            spans.append((owners[begin], owners[end - 1] + 1))
            begin = end
        return tuple(spans)

    def _trimmed(self, ids: list[int], spans: list[tuple[int, int]], text: str) -> list[tuple[int, int]]:
        """The spans without the white space at both ends of the tokens."""
        trimmed: list[tuple[int, int]] = []
        for i, (start, stop) in zip(ids, spans, strict=True):
            token = self.tokens[i]
            if token in SPECIAL_TOKENS.values():
                token = text[start:stop]  # with the space that <mask> takes
            leading = len(token) - len(token.lstrip(SPACE + WHITE_SPACE))
            trailing = len(token) - len(token.rstrip(SPACE + WHITE_SPACE))
            if self.add_prefix_space and leading == 1 and (not trimmed or start == 0):
                leading = 0  # taken for the space that was added, even if it was there
            start = min(start + leading, stop)
            trimmed.append((start, max(start, stop - trailing)))
        return trimmed

    def with_special_tokens(
        self, first: list[int], second: list[int] | None = None
    ) -> tuple[list[int], list[int]]:
        """The ids of one or two texts → input_ids and token_type_ids of <s> first </s> (</s> second </s>).

        The token_type_ids are all 0. Source: hub_interface.py in fairseq, the program of Liu et al. 2019.
        """
        ids = [self.cls_id, *first, self.sep_id]
        if second is not None:
            ids += [self.sep_id, *second, self.sep_id]
        return ids, [0] * len(ids)

    # ---------------------------------------------------------------- ids to text

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = False) -> str:
        """The text of token ids, to the last space, unless it had special tokens or add_prefix_space.

        Bytes that are no UTF-8 (half a character) become U+FFFD. Raises UserError for ids outside the
        vocabulary.
        """
        known = self._known(ids, skip_special_tokens)
        return b"".join(token_bytes(self.tokens[i]) for i in known).decode("utf-8", errors="replace")


def _begins_inside(token: str) -> bool:
    """Whether a token begins with a letter or digit of ASCII, or with a byte of another character."""
    first = token_bytes(token[:1])
    return first >= b"\x80" or first.isalnum()


def _check_merges(vocab: Mapping[str, int], merges: list[tuple[str, str]]) -> None:
    """Raise UserError if a byte, a part of a merge or its result is not in the vocabulary."""
    missing = [char for char in BYTE_CHARACTERS if char not in vocab]
    if missing:
        raise UserError(
            f"the vocabulary lacks the tokens of {len(missing)} bytes (the first is {missing[0]!r}); "
            "a byte-level vocabulary holds all 256"
        )
    for number, (left, right) in enumerate(merges, start=1):
        for token in (left, right, left + right):
            if token not in vocab:
                raise UserError(
                    f"merge {number}, {left!r} and {right!r}, needs the token {token!r}, which the "
                    "vocabulary lacks; use the merges that were learned with it"
                )


def _read_vocab(path: Path) -> list[str]:
    """The tokens in a ``vocab.json``."""
    vocab = read_json(path, "vocabulary file")
    if not isinstance(vocab, dict) or not all(type(i) is int for i in vocab.values()):
        raise UserError(f"{path}: expected a JSON object of tokens and their ids; restore or remake it")
    return tokens_by_id(path, vocab)


def _read_merges(path: Path) -> list[tuple[str, str]]:
    """One merge per line of a ``merges.txt``, and perhaps a line with a version."""
    lines = read_text(path, "file of merges").split("\n")
    if lines[-1] == "":
        del lines[-1]
    merges = []
    for number, line in enumerate(lines, start=1):
        if line.startswith("#version"):
            continue
        left, _, right = line.partition(" ")
        if not left or not right or " " in right:
            raise UserError(
                f"{path}: line {number} is {reprlib.repr(line)}; expected two tokens and a space between them"
            )
        merges.append((left, right))
    return merges


def _read_tokenizer_json(path: Path) -> tuple[list[str], list[tuple[str, str]], dict[str, Any]]:
    """Tokens, merges and options of a ``tokenizer.json``, the one file of Hugging Face's tokenizers."""
    content = read_json(path, "tokenizer file")
    try:
        model, splits, post = content["model"], content["pre_tokenizer"], content["post_processor"]
        kinds = model.get("type", "BPE"), splits["type"], post["type"]  # old files leave out the model's
        plain = content["normalizer"] is None and splits.get("use_regex", True)
        if kinds != ("BPE", "ByteLevel", "RobertaProcessing") or not plain or any(map(model.get, _FOREIGN)):
            raise UserError(
                f"{path}: expected a plain BPE model with ByteLevel and RobertaProcessing, as RoBERTa has; "
                "use another folder"
            )
        tokens = tokens_by_id(path, model["vocab"])
        added = content["added_tokens"]
        check_added_tokens(path, [entry["content"] for entry in added], SPECIAL_TOKENS.values())
        options = {
            "add_prefix_space": read_option(path, splits, "add_prefix_space"),
            "trim_offsets": read_option(path, post, "trim_offsets"),
        }
        merges = [tuple(merge.split(" ") if isinstance(merge, str) else merge) for merge in model["merges"]]
        if not all([type(part) for part in merge] == [str, str] for merge in merges):
            raise UserError(f"{path}: a merge must be two tokens; restore or remake it")
        return tokens, merges, options | _mask_option(path, added)
    except (KeyError, TypeError, AttributeError):
        raise UserError(
            f"{path}: not a tokenizer.json of Hugging Face's tokenizers; restore or remake it"
        ) from None


def _mask_option(path: Path, entries: Iterable[Any]) -> dict[str, bool]:
    """Whether <mask> takes the white space before it, if one of a file's entries for tokens says so."""
    for entry in entries:
        check_flags(path, entry)
        if isinstance(entry, dict) and entry.get("content") == MASK and "lstrip" in entry:
            return {"mask_strips_space": read_option(path, entry, "lstrip")}
    return {}
