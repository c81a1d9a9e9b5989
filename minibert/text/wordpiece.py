"""From a word to subwords of the vocabulary: greedy longest-match-first."""

from collections.abc import Mapping

CONTINUATION = "##"  # marks a token that continues a word


class WordPiece:
    """Splits words into tokens: always the longest that fits, from left to right.

    "unaffable" → un ##aff ##able. If no token fits somewhere, or the word has more than
    ``max_characters_per_word`` characters, the *whole word* becomes the unknown token.

    Source: WordpieceTokenizer in google-research/bert, tokenization.py (200 characters there).
    """

    def __init__(self, vocab: Mapping[str, int], unk_id: int, max_characters_per_word: int = 100) -> None:
        self.unknown = (unk_id,)
        self.max_characters_per_word = max_characters_per_word
        self._starts = vocab
        self._continues = {
            token.removeprefix(CONTINUATION): i
            for token, i in vocab.items()
            if token.startswith(CONTINUATION)
        }
        self._longest = max(map(len, vocab))

    def ids(self, word: str, continues: bool = False) -> tuple[int, ...]:
        """Token ids of one word, or of something that ``continues`` a word."""
        if len(word) > self.max_characters_per_word:
            return self.unknown
        vocab = self._continues if continues else self._starts
        if word in vocab:
            return (vocab[word],)
        ids, start = [], 0
        while start < len(word):
            for end in range(min(len(word), start + self._longest), start, -1):
                piece = vocab.get(word[start:end])
                if piece is not None:
                    break
            else:
                return self.unknown
            ids.append(piece)
            start, vocab = end, self._continues
        return tuple(ids)
