"""What the tokenizers of ALBERT and XLNet have in common: text to pieces of a unigram model, and back."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from minibert.errors import UserError
from minibert.ranks import ALONE, Ranks
from minibert.text.charsmap import CharacterMap
from minibert.text.learn import USUAL_ALPHABET, count_words
from minibert.text.metaspace import SPACE, MetaspaceNormaliser
from minibert.text.normalise import WHITE_SPACE
from minibert.text.tokenizer import PretrainedTokenizer, in_utf8, letter_table, refuse_single_text
from minibert.text.tokenizer_files import check_added_tokens_file
from minibert.text.unigram import Unigram
from minibert.text.unigram_files import AddedToken, read_unigram_config, read_vocabulary, write_folder

if TYPE_CHECKING:
    from minibert.text.piece_memory import PieceMemory

_WORD_AFTER_SPACE = re.compile(f"{SPACE}[^\\W_]+")


class UnigramTokenizer(PretrainedTokenizer):
    """A tokenizer of unigram pieces; see `AlbertTokenizer` and `XLNetTokenizer`.

    The ids of each chunk of text between two spaces are cached, so that most text costs one dictionary
    look-up per chunk. No piece ever crosses the borders of a chunk: each word is segmented by itself, and
    words end at whitespace (see `MetaspaceNormaliser`). SentencePiece, which segments whole sentences, finds
    the same, because its pieces hold a ▁ at their beginning only: whatever the segmentation, a piece begins
    at each ▁, so that the score of a sentence is the sum of the scores of its words.
    """

    added: ClassVar[tuple[AddedToken, ...]]  # those of a tokenizer that is given none

    def __init__(
        self,
        pieces: Sequence[tuple[str, float]],
        *,
        lowercase: bool,
        keep_accents: bool,
        charsmap: bytes | None,
        added_tokens: Sequence[AddedToken] | None,
        model_max_length: int | None,
    ) -> None:
        self._set_tokens([piece for piece, _ in pieces])
        self.scores = [float(score) for _, score in pieces]
        self.lowercase = lowercase
        self.keep_accents = keep_accents
        self.charsmap = charsmap
        self.added_tokens = self._with_named(self.added if added_tokens is None else added_tokens)
        self.model_max_length = model_max_length
        skipped = {token.content for token in self.added_tokens if token.special}
        self.continues_word = np.array(
            [not token.startswith(SPACE) and token not in skipped for token in self.tokens]
        )  # (V,)
        self.continues_word[self.unk_id] = SPACE in self.vocab  # then an unknown first letter comes after it

        self._normaliser = MetaspaceNormaliser(
            lowercase=lowercase,
            keep_accents=keep_accents,
            character_map=None if charsmap is None else CharacterMap(charsmap),
        )
        self._unigram = Unigram(list(zip(self.tokens, self.scores, strict=True)), self.unk_id)
        self._added = _pattern(self.added_tokens)
        self._stripping = {token.content for token in self.added_tokens if token.strips_left}
        self._chunk_ids, self._chunk_spans = self._memos(self._compute_chunk_ids, self._compute_chunk_spans)

    def _with_named(self, added: Sequence[AddedToken]) -> tuple[AddedToken, ...]:
        """The added tokens, and those that have a name if they are not among them. In the order of ids."""
        by_content = {token.content: token for token in (*self.added, *added)}
        named = set(self.special_tokens.values())
        kept = {token.content for token in added} | named
        missing = [content for content in kept if content not in self.vocab]
        if missing:
            raise UserError(
                f"added tokens outside the vocabulary are not supported: {' '.join(sorted(missing))}"
            )
        spaced = [content for content in kept if any(char in WHITE_SPACE for char in content)]
        if spaced:
            raise UserError(f"added tokens with spaces in them are not supported: {spaced[0]!r}")
        tokens = [
            AddedToken(content, token.special or content in named, token.strips_left)
            for content, token in by_content.items()
            if content in kept
        ]
        return tuple(sorted(tokens, key=lambda token: self.vocab[token.content]))

    # ---------------------------------------------------------------- making, reading, writing

    @classmethod
    def train(
        cls,
        texts: Iterable[str],
        vocab_size: int = 8192,
        *,
        max_characters_per_word: int = 100,
        alphabet_limit: int = USUAL_ALPHABET,
        max_words: int = 500_000,
        progress: bool = False,
        ranks: Ranks = ALONE,
        **options: Any,
    ) -> Self:
        """Learn a vocabulary from a stream of texts; see `learn_unigram` and `count_words`.

        The same texts in the same order always give the same vocabulary. It has fewer than ``vocab_size``
        tokens if the texts do not yield more. Nothing is learned from a word of more than
        ``max_characters_per_word`` characters. ``progress`` shows two bars on stderr. ``options`` are those
        of the tokenizer.
        """
        # Here, since SciPy brings BLAS threads of its own, which nothing else in this room needs.
        from minibert.text.learn_unigram import learn_unigram

        refuse_single_text(texts)
        special = [token.content for token in cls.added]
        if vocab_size < len(special):
            raise UserError(
                f"vocab_size {vocab_size} does not even hold the {len(special)} special tokens; "
                "ask for a few thousand tokens"
            )
        counts = count_words(
            texts,
            cls([(token, 0.0) for token in special], **options)._normaliser,
            max_characters_per_word=max_characters_per_word,
            max_words=max_words,
            progress=progress,
            ranks=ranks,
        )
        pieces = learn_unigram(counts, vocab_size, special, alphabet_limit=alphabet_limit, progress=progress)
        return cls(pieces, **options)

    @classmethod
    def from_pretrained(cls, folder: str | Path, **options: Any) -> Self:
        """Read a tokenizer from a folder in Hugging Face's layout, or from one of its vocabulary files.

        A folder has ``tokenizer.json`` or else ``spiece.model``, and the options in
        ``tokenizer_config.json``. Of the normaliser in ``tokenizer.json`` only the compiled rules are read;
        the rest is the class's own, as in current transformers. ``options`` override what the files say.
        Raises UserError, naming the file, if one is missing, damaged, or not for this class.
        """
        folder = Path(folder)
        if folder.is_file():
            return cls._from_file(folder, None, options)
        if not folder.exists():
            raise UserError(
                f"{folder}: no such folder or vocabulary file; tokenizers are read from the disk only, so "
                "download it first"
            )
        file, config = folder / "tokenizer.json", folder / "tokenizer_config.json"
        tokenizer = cls._from_file(
            file if file.exists() else folder / "spiece.model", config if config.exists() else None, options
        )
        check_added_tokens_file(folder, tokenizer.vocab)
        return tokenizer

    @classmethod
    def _from_file(cls, file: Path, config: Path | None, options: dict[str, Any]) -> Self:
        vocabulary = read_vocabulary(file)
        found, extra = (
            read_unigram_config(config, cls.special_tokens, cls.config_keys) if config else ({}, None)
        )
        if extra is None:
            extra = [] if file.suffix != ".json" else list(cls.added)
        added = {token.content: token for token in (*extra, *vocabulary.added_tokens)}
        found |= {"charsmap": vocabulary.charsmap, "added_tokens": list(added.values())}
        side = found.pop("padding_side", cls.padding_side)
        try:
            tokenizer = cls(vocabulary.pieces, **found | options)
        except UserError as error:
            raise UserError(f"{file}: {error}") from None
        tokenizer.padding_side = side
        return tokenizer

    def save_pretrained(self, folder: str | Path) -> None:
        """Write ``tokenizer.json`` and ``tokenizer_config.json`` into a folder, for transformers too."""
        write_folder(self, Path(folder))

    # ---------------------------------------------------------------- new tokens

    def whole_tokens(self, text: str) -> list[str]:
        """The words of a text, normalised, each with ▁ before it. Added tokens divide words."""
        between = [text[start:stop] for start, stop, added in self._parts(text) if added is None]
        return [word for part in between for word in self._normaliser.words(part)]

    def count_whole_tokens(self, texts: Iterable[str], *, progress: bool = False) -> Counter[str]:
        """How often each word occurs in a stream of texts; see `count_words`.

        Words end at white space here, and take along what is written next to them. That is left out: of
        "▁tensor)," only the letters and digits after the ▁ are counted.
        """
        counts: Counter[str] = Counter()
        for word, number in count_words(texts, self._normaliser, progress=progress).items():
            if begins := _WORD_AFTER_SPACE.match(word):
                counts[begins[0]] += number
        return counts

    def pieces(self, token: str) -> tuple[int, ...]:
        """The ids of the pieces that stand for a normalised word."""
        return tuple(i for i, _ in self._unigram.segment(token))

    def with_tokens(self, tokens: Sequence[str]) -> Self:
        """The same tokenizer with new pieces after its own.

        The log probability of a new piece is the mean of those of its old pieces. That is more than their
        sum, so the new piece is chosen wherever they were, and it competes with others as they did.
        """
        scores = [*self.scores]
        scores[self.unk_id] = self._unigram.unknown_score
        new = [(token, fmean(scores[i] for i in self.pieces(token))) for token in tokens]
        names = (*self.config_keys, "charsmap", "added_tokens", "model_max_length")
        options = {name: getattr(self, name) for name in names}
        larger = type(self)([*zip(self.tokens, self.scores, strict=True), *new], **options)
        larger.padding_side = self.padding_side
        return larger

    # ---------------------------------------------------------------- text to ids

    def _text_ids(self, text: str) -> list[int]:
        return list(chain.from_iterable(map(self._chunk_ids.__getitem__, self._normaliser.chunks(text))))

    def _new_memory(self) -> "PieceMemory":
        from minibert.kernels.cpu.pieces import GAP, WORD
        from minibert.kernels.cpu.spelling import spell_unigrams, vocabulary_table
        from minibert.text.piece_memory import PieceMemory

        vocabulary, scores = vocabulary_table(self.tokens, SPACE), np.array(self.scores)
        begins = {token.content[0] for token in self.added_tokens}  # where one may be, Python looks for it
        plain = self._normaliser.keeps_ascii
        letters = letter_table(
            lambda char: plain and char.isprintable() and char not in begins, self._normaliser.lowercase
        )
        unknown = self.unk_id, self._unigram.unknown_score
        return PieceMemory(
            self._compute_chunk_ids,
            {GAP: self._normaliser.ascii_separators},
            WORD,
            self.CACHED_CHARACTERS,
            spell=lambda table, row: spell_unigrams(table, row, letters, vocabulary, scores, *unknown),
        )

    def _bytes_to_cut(self, text: str) -> bytes | None:
        if "''" in text or "``" in text:  # a double quote
            return None
        return None if self._normaliser.has_space_in_cluster(text) else in_utf8(text)

    def rules(self) -> list[Any]:
        """The scores, the compiled rules of normalisation, and the added tokens."""
        charsmap = None if self.charsmap is None else self.charsmap.hex()
        return [self.scores, charsmap, [[t.content, t.special, t.strips_left] for t in self.added_tokens]]

    def as_text(self, token: str) -> str:
        """A token as people read it, the space before it included."""
        return token.replace(SPACE, " ")

    def token_ids_with_spans(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """`token_ids`, and where in ``text`` each token is: text[start:stop], as (start, stop).

        A ▁ that is a token of its own has the span of the character after it. These are the offsets of
        transformers (but for a text that begins with characters that the rules of normalisation drop:
        there, transformers' are too small).
        """
        ids, spans = self.token_ids(text), []
        for match in self._normaliser.chunk.finditer(text):
            begin = match.start()
            found = [(begin + start, begin + stop) for start, stop in self._chunk_spans[match[0]]]
            first = self._added.match(match[0]) if self._stripping else None
            if first and first[0].lstrip(WHITE_SPACE) in self._stripping:
                found[0] = (len(text[:begin].rstrip(WHITE_SPACE)), found[0][1])
            spans += found
        return ids, spans

    def _parts(self, chunk: str) -> Iterator[tuple[int, int, int | None]]:
        """Begin and end of the added tokens in a chunk, with their ids, and of the texts between them."""
        start = 0
        for match in self._added.finditer(chunk):
            yield start, match.start(), None
            yield *match.span(), self.vocab[match[0].lstrip(WHITE_SPACE)]
            start = match.end()
        yield start, len(chunk), None

    def _compute_chunk_ids(self, chunk: str) -> tuple[int, ...]:
        """Ids of a piece of text without whitespace."""
        ids: list[int] = []
        for start, stop, added in self._parts(chunk):
            if added is not None:
                ids.append(added)
                continue
            for word in self._normaliser.words(chunk[start:stop]):
                ids += [i for i, _ in self._unigram.segment(word)]
        return tuple(ids)

    def _compute_chunk_spans(self, chunk: str) -> tuple[tuple[int, int], ...]:
        """Where in a piece of text without whitespace its tokens are."""
        spans: list[tuple[int, int]] = []
        for start, stop, added in self._parts(chunk):
            if added is not None:
                spans.append((start, stop))
                continue
            for word, sources in self._normaliser.words_with_sources(chunk[start:stop]):
                begin = 0
                for _, length in self._unigram.segment(word):
                    spans.append((start + sources[begin], start + sources[begin + length - 1] + 1))
                    begin += length
        return tuple(spans)

    # ---------------------------------------------------------------- ids to text

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = False) -> str:
        """The text of token ids: the pieces one after the other, each ▁ as a space, none at the beginning.

        What the tokenizer changed (capitals, accents, several spaces) does not come back.
        Raises UserError for ids outside the vocabulary.
        """
        tokens = [self.tokens[i] for i in self._known(ids, skip_special_tokens)]
        return "".join(tokens[:1]).replace(SPACE, "") + "".join(tokens[1:]).replace(SPACE, " ")

    def _special_ids(self) -> set[int]:
        return {self.vocab[token.content] for token in self.added_tokens if token.special}


def _pattern(tokens: Iterable[AddedToken]) -> re.Pattern:
    """Finds the first of these tokens, and of those that begin at one place the longest."""
    stripped = f"(?:(?<![{WHITE_SPACE}])[{WHITE_SPACE}]+)?"  # all of a run of spaces, which is read only once
    alternatives = [
        (stripped if token.strips_left else "") + re.escape(token.content)
        for token in sorted(tokens, key=lambda token: -len(token.content))
    ]
    return re.compile("|".join(alternatives) or "(?!)")  # (?!) never matches
