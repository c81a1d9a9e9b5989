"""BertTokenizer: text to token ids and back, with the names and the behaviour of Hugging Face's."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from minibert.assets import model_folder, model_names
from minibert.errors import UserError
from minibert.files import read_json, read_text, write_json, write_text
from minibert.ranks import ALONE, Ranks
from minibert.text.learn import USUAL_ALPHABET, count_words, learn_vocabulary
from minibert.text.normalise import ASCII_GAPS, ASCII_PUNCTUATION, CHUNK, PIECE, Normaliser, chunks
from minibert.text.tokenizer import PretrainedTokenizer, in_utf8, letter_table, refuse_single_text
from minibert.text.tokenizer_files import (
    check_added_tokens,
    check_added_tokens_file,
    listed_tokens,
    read_config,
    read_option,
    read_options,
    tokens_by_id,
)
from minibert.text.wordpiece import CONTINUATION, WordPiece

if TYPE_CHECKING:
    from minibert.text.piece_memory import PieceMemory

SPECIAL_TOKENS = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}

# Our options and their names in tokenizer_config.json; the last three are our own, ignored by other programs.
CONFIG_KEYS = {
    "lowercase": "do_lower_case",
    "strip_accents": "strip_accents",
    "split_cjk": "tokenize_chinese_chars",
    "model_max_length": "model_max_length",
    "max_characters_per_word": "max_characters_per_word",
    "protect_special_tokens": "protect_special_tokens",
    "original_characters": "original_characters",
}

LONGEST_WORD = 100  # characters of a word that is looked up, usually

# Written without a space before them when decoding.
_GLUED = (".", "?", "!", ",", "n't", "'m", "'s", "'ve", "'re")


class BertTokenizer(PretrainedTokenizer):
    """WordPiece tokenizer of BERT.

    Args:
        vocab: the tokens; a token's id is its index. Must hold [PAD], [UNK], [CLS], [SEP], [MASK].
        lowercase, strip_accents, split_cjk, original_characters: see `Normaliser`.
        max_characters_per_word: a longer word is [UNK]. 100 in transformers, 200 in google-bert.
        protect_special_tokens: whether "[MASK]" in a text is the token [MASK] (transformers), or
            a bracket, a word, a bracket (google-bert).
        model_max_length: the max_length of ``truncation=True`` and ``padding="max_length"`` if none is given.

    The defaults give the ids of current transformers. The original's behaviour is
    ``BertTokenizer(vocab, **BertTokenizer.ORIGINAL)``.

    The ids of each piece of text between spaces and punctuation are cached, so that most text costs one
    dictionary look-up per word. The cached pieces have at most `CACHED_CHARACTERS` characters in total. A
    tokenizer can be pickled (for worker processes), without its cache. Long texts, and many texts, are
    looked up and spelled by compiled loops (`minibert.text.piece_memory`), which give the same ids.
    """

    special_tokens = SPECIAL_TOKENS
    config_keys = CONFIG_KEYS
    lowercase = True
    ORIGINAL: ClassVar[dict[str, Any]] = dict(
        max_characters_per_word=200, protect_special_tokens=False, original_characters=True
    )

    def __init__(
        self,
        vocab: Sequence[str],
        *,
        lowercase: bool = True,
        strip_accents: bool | None = None,
        split_cjk: bool = True,
        max_characters_per_word: int = LONGEST_WORD,
        protect_special_tokens: bool = True,
        original_characters: bool = False,
        model_max_length: int | None = None,
    ) -> None:
        self._set_tokens(vocab)
        self.lowercase = lowercase
        self.strip_accents = strip_accents
        self.split_cjk = split_cjk
        self.max_characters_per_word = max_characters_per_word
        self.protect_special_tokens = protect_special_tokens
        self.original_characters = original_characters
        self.model_max_length = model_max_length
        self.continues_word = np.array([token.startswith(CONTINUATION) for token in self.tokens])  # (V,)

        self._normaliser = Normaliser(
            lowercase=lowercase,
            strip_accents=strip_accents,
            split_cjk=split_cjk,
            original_characters=original_characters,
        )
        self._wordpiece = WordPiece(self.vocab, self.unk_id, max_characters_per_word)
        protected = "|".join(map(re.escape, SPECIAL_TOKENS.values()))
        self._special = re.compile(protected if protect_special_tokens else "(?!)")  # (?!) never matches
        self._chunk_ids, self._chunk_spans = self._memos(self._compute_chunk_ids, self._compute_chunk_spans)

    # ---------------------------------------------------------------- making, reading, writing

    @classmethod
    def train(
        cls,
        texts: Iterable[str],
        vocab_size: int = 8192,
        *,
        lowercase: bool = True,
        strip_accents: bool | None = None,
        split_cjk: bool = True,
        max_characters_per_word: int = LONGEST_WORD,
        alphabet_limit: int = USUAL_ALPHABET,
        min_frequency: int = 2,
        max_words: int = 500_000,
        progress: bool = False,
        ranks: Ranks = ALONE,
    ) -> "BertTokenizer":
        """Learn a vocabulary from a stream of texts; see `learn_vocabulary` and `count_words`.

        The same texts in the same order always give the same vocabulary. It has fewer than ``vocab_size``
        tokens if the texts do not yield more. Nothing is learned from a word of more than
        ``max_characters_per_word`` characters, which is [UNK] anyway. ``progress`` shows two bars on stderr.
        """
        refuse_single_text(texts)
        if vocab_size < len(SPECIAL_TOKENS):
            raise UserError(
                f"vocab_size {vocab_size} does not even hold the {len(SPECIAL_TOKENS)} special tokens; "
                "ask for a few thousand tokens"
            )
        counts = count_words(
            texts,
            Normaliser(lowercase=lowercase, strip_accents=strip_accents, split_cjk=split_cjk),
            max_characters_per_word=max_characters_per_word,
            max_words=max_words,
            progress=progress,
            ranks=ranks,
        )
        tokens = learn_vocabulary(
            counts,
            vocab_size,
            SPECIAL_TOKENS.values(),
            alphabet_limit=alphabet_limit,
            min_frequency=min_frequency,
            progress=progress,
        )
        return cls(
            tokens,
            lowercase=lowercase,
            strip_accents=strip_accents,
            split_cjk=split_cjk,
            max_characters_per_word=max_characters_per_word,
        )

    @classmethod
    def from_pretrained(cls, folder: str | Path, **options: Any) -> Self:
        """Read a tokenizer from a folder in Hugging Face's layout, or from a bare vocabulary file.

        A folder has ``vocab.txt`` (or else the vocabulary in ``tokenizer.json``, which is all that recent
        versions of transformers write) and the options in ``tokenizer_config.json``. ``folder`` may also be
        the name of a model that comes with the package, "mini". ``options`` override what the files say.
        Raises UserError, naming the file, if one is missing, damaged, not UTF-8, or not for BERT.
        """
        folder = model_folder(folder)
        if folder.is_file():
            return cls._from_tokens(_read_vocab(folder), folder, options)
        if not folder.exists():
            raise UserError(
                f"{folder}: no such folder or vocabulary file, nor a model that comes with minibert "
                f"({', '.join(model_names())}); tokenizers are read from the disk only, so download it first"
            )
        vocab_file, json_file = folder / "vocab.txt", folder / "tokenizer.json"
        if not vocab_file.exists() and json_file.exists():
            tokens, found = _read_tokenizer_json(json_file)
            vocab_file = json_file
        else:
            tokens, found = _read_vocab(vocab_file), {}
        check_added_tokens_file(folder, tokens)
        config_file, config = folder / "tokenizer_config.json", {}
        if config_file.exists():
            config = read_config(config_file, SPECIAL_TOKENS, "BERT")
            listed_tokens(config_file, config, SPECIAL_TOKENS.values())
            found |= read_options(config_file, config, CONFIG_KEYS)
        tokenizer = cls._from_tokens(tokens, vocab_file, found | options)
        tokenizer.padding_side = config.get("padding_side", cls.padding_side)
        return tokenizer

    @classmethod
    def _from_tokens(cls, tokens: list[str], file: Path, options: dict[str, Any]) -> Self:
        try:
            return cls(tokens, **options)
        except UserError as error:
            raise UserError(f"{file}: {error}") from None

    def save_pretrained(self, folder: str | Path) -> None:
        """Write ``vocab.txt``, ``tokenizer_config.json`` and ``special_tokens_map.json`` into a folder."""
        folder = Path(folder)
        config: dict[str, Any] = {"tokenizer_class": "BertTokenizer", "padding_side": self.padding_side}
        config |= {key: getattr(self, name) for name, key in CONFIG_KEYS.items()}
        if self.model_max_length is None:
            del config["model_max_length"]
        write_json(folder / "tokenizer_config.json", config | SPECIAL_TOKENS)
        write_json(folder / "special_tokens_map.json", SPECIAL_TOKENS)
        write_text(folder / "vocab.txt", "".join(token + "\n" for token in self.tokens))  # last

    # ---------------------------------------------------------------- new tokens

    def whole_tokens(self, text: str) -> list[str]:
        """The words of a text, normalised. After "##", the rest is read as what goes on with a word."""
        if text.startswith(CONTINUATION):
            return [CONTINUATION + word for word in self._normaliser.words(text.removeprefix(CONTINUATION))]
        return self._normaliser.words(text)

    def count_whole_tokens(self, texts: Iterable[str], *, progress: bool = False) -> Counter[str]:
        """How often each word occurs in a stream of texts; see `count_words`."""
        longest = self.max_characters_per_word
        return count_words(texts, self._normaliser, max_characters_per_word=longest, progress=progress)

    def rules(self) -> list[Any]:
        """How long a word may be, if that is not the usual length."""
        return [] if self.max_characters_per_word == LONGEST_WORD else [self.max_characters_per_word]

    def pieces(self, token: str) -> tuple[int, ...]:
        """The ids that stand for a normalised word, or for what follows "##"."""
        continues = token.startswith(CONTINUATION)
        return self._wordpiece.ids(token.removeprefix(CONTINUATION) if continues else token, continues)

    def with_tokens(self, tokens: Sequence[str]) -> Self:
        """The same tokenizer with new tokens after its own, which longest-match-first then finds."""
        larger = type(self)([*self.tokens, *tokens], **{name: getattr(self, name) for name in CONFIG_KEYS})
        larger.padding_side = self.padding_side
        return larger

    # ---------------------------------------------------------------- text to ids

    def _text_ids(self, text: str) -> list[int]:
        return list(chain.from_iterable(map(self._chunk_ids.__getitem__, self._pieces(text))))

    def _pieces(self, text: str) -> list[str]:
        """The text, split where no word goes on: at whitespace, and before and after punctuation of ASCII.

        A word turns up much more often than the same word with the same comma, so that fewer pieces are new.
        A special token holds punctuation. So does a word in which the original looks for the end, to lower
        a sigma. There, only whitespace splits.
        """
        return chunks(text) if self._needs_chunks(text) else PIECE.findall(text)

    def _needs_chunks(self, text: str) -> bool:
        return self.original_characters or ("[" in text and self._special.search(text) is not None)

    def _new_memory(self) -> "PieceMemory":
        from minibert.kernels.cpu.pieces import GAP, MARK, WORD
        from minibert.kernels.cpu.spelling import spell_word_pieces, vocabulary_table
        from minibert.text.piece_memory import PieceMemory

        vocabulary = vocabulary_table(self.tokens)
        letters = letter_table(str.isalnum, self._normaliser.lowercase)
        longest = self._wordpiece.max_characters_per_word
        return PieceMemory(
            self._compute_chunk_ids,
            {GAP: ASCII_GAPS, MARK: "".join(ASCII_PUNCTUATION)},
            WORD,
            self.CACHED_CHARACTERS,
            spell=lambda table, row: spell_word_pieces(table, row, letters, vocabulary, self.unk_id, longest),
        )

    def _bytes_to_cut(self, text: str) -> bytes | None:
        return None if self._needs_chunks(text) else in_utf8(text)

    def token_ids_with_spans(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """`token_ids`, and where in ``text`` each token is: text[start:stop], as (start, stop).

        What was dropped inside a token (say, a soft hyphen) lies within its span; what was dropped at its end
        (an accent that is a character of its own) lies after it. These are the offsets of transformers.
        """
        ids, spans = self.token_ids(text), []
        for chunk in CHUNK.finditer(text):
            begin = chunk.start()
            spans += [(begin + start, begin + stop) for start, stop in self._chunk_spans[chunk[0]]]
        return ids, spans

    def _compute_chunk_ids(self, chunk: str) -> tuple[int, ...]:
        """Ids of a piece of text without whitespace."""
        if chunk.isascii() and chunk.isalnum():  # one word, with nothing to drop
            return self._wordpiece.ids(chunk.lower() if self._normaliser.lowercase else chunk)
        ids: list[int] = []
        start = 0
        for match in self._special.finditer(chunk):
            ids += self._words_ids(chunk[start : match.start()])
            ids.append(self.vocab[match[0]])
            start = match.end()
        ids += self._words_ids(chunk[start:])
        return tuple(ids)

    def _compute_chunk_spans(self, chunk: str) -> tuple[tuple[int, int], ...]:
        """Where in a piece of text without whitespace its tokens are."""
        spans: list[tuple[int, int]] = []
        start = 0
        for match in self._special.finditer(chunk):
            spans += self._words_spans(chunk, start, match.start())
            spans.append(match.span())
            start = match.end()
        spans += self._words_spans(chunk, start, len(chunk))
        return tuple(spans)

    def _words_spans(self, chunk: str, start: int, stop: int) -> Iterator[tuple[int, int]]:
        for word, sources in self._normaliser.words_with_sources(chunk[start:stop]):
            begin = 0
            for length in self._piece_lengths(word):
                yield start + sources[begin], start + sources[begin + length - 1] + 1
                begin += length

    def _piece_lengths(self, word: str) -> list[int]:
        """How many characters of the word each of its tokens stands for."""
        ids = self._wordpiece.ids(word)
        if ids == (self.unk_id,):
            return [len(word)]
        first, *later = (self.tokens[i] for i in ids)
        return [len(first), *(len(token) - len(CONTINUATION) for token in later)]

    def _words_ids(self, text: str) -> Iterable[int]:
        return chain.from_iterable(map(self._wordpiece.ids, self._normaliser.words(text)))

    # ---------------------------------------------------------------- ids to text

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = False) -> str:
        """The text of token ids: subwords are joined, and words separated by spaces (none before . , ! ?).

        What the tokenizer removed (spaces, capitals, accents) does not come back. But the decoded text gives
        the same ids again, including [UNK], if special tokens are protected. (Marks of some scripts that are
        not stripped with the accents may change places among themselves.)
        Raises UserError for ids outside the vocabulary.
        """
        parts: list[str] = []
        for i in self._known(ids, skip_special_tokens):
            token = self.tokens[i]
            if parts and token.startswith(CONTINUATION):
                token = token.removeprefix(CONTINUATION)
            elif parts and not token.startswith(_GLUED):
                token = " " + token
            parts.append(token)
        return "".join(parts)


def _read_vocab(path: Path) -> list[str]:
    """One token per line. Lines end as in all text files; other separators may be part of tokens."""
    lines = read_text(path, "vocabulary file").split("\n")
    return lines[:-1] if lines[-1] == "" else lines


def _read_tokenizer_json(path: Path) -> tuple[list[str], dict[str, Any]]:
    """Tokens and options of a ``tokenizer.json``, the one file of Hugging Face's tokenizers."""
    content = read_json(path, "tokenizer file")
    try:
        model, normaliser = content["model"], content["normalizer"]
        # Old files leave out the model's type.
        kind, prefix = model.get("type", "WordPiece"), model.get("continuing_subword_prefix", CONTINUATION)
        cuts = content.get("pre_tokenizer", {"type": "BertPreTokenizer"})["type"]
        kinds = kind, prefix, normaliser["type"], normaliser.get("clean_text", True), cuts
        if kinds != ("WordPiece", CONTINUATION, "BertNormalizer", True, "BertPreTokenizer"):
            raise UserError(
                f"{path}: expected a WordPiece model with a BertNormalizer that cleans the text and a "
                "BertPreTokenizer, as BERT has; use another folder"
            )
        tokens = tokens_by_id(path, model["vocab"])
        added = [entry["content"] for entry in content["added_tokens"]]
        check_added_tokens(path, added, SPECIAL_TOKENS.values())
        return tokens, {
            "lowercase": read_option(path, normaliser, "lowercase"),
            "strip_accents": read_option(path, normaliser, "strip_accents"),
            "split_cjk": read_option(path, normaliser, "handle_chinese_chars"),
            "max_characters_per_word": read_option(path, model, "max_input_chars_per_word"),
        }
    except (KeyError, TypeError, AttributeError):
        raise UserError(
            f"{path}: not a tokenizer.json of Hugging Face's tokenizers; restore or remake it"
        ) from None
