"""From a word to pieces of the vocabulary: the most probable segmentation under a unigram language model."""

import math
from collections.abc import Sequence

UNKNOWN_PENALTY = 10.0  # how far below the least probable piece an unknown character is


class Unigram:
    """Splits texts into pieces, of which each has a log probability, so that the sum of these is largest.

    A character that is no piece is unknown. Its score is `UNKNOWN_PENALTY` below the smallest score of the
    vocabulary, and unknown characters next to each other become one unknown token.

    The largest sum is found from left to right (Viterbi): the best segmentation up to a place ends with some
    piece, and what is before that piece is the best segmentation up to there. Of equal sums the one found
    first stays, which is the one with the longer last piece. Scores are added in float64 and in this order,
    as Hugging Face's tokenizers do, so that rounding breaks a tie on both sides or on none. (SentencePiece
    itself adds in float32, over the whole sentence.)

    The pieces that fit at a place are found in a trie: a node is the id and the score of the piece that ends
    there (−1 and −∞ if there is none), and the nodes of the characters that may follow.

    Source: Kudo 2018, "Subword Regularization"; EncodeOptimized of SentencePiece.
    """

    def __init__(self, pieces: Sequence[tuple[str, float]], unk_id: int) -> None:
        self.pieces, self.unk_id = pieces, unk_id
        self.unknown_score = min((score for _, score in pieces), default=0.0) - UNKNOWN_PENALTY
        self._longest = max((len(piece) for piece, _ in pieces), default=0)
        self._trie: dict[str, tuple[int, float, dict]] = {}
        for i, (piece, score) in enumerate(pieces):
            children = self._trie
            for char in piece[:-1]:
                children = children.setdefault(char, (-1, -math.inf, {}))[2]
            _, _, following = children.get(piece[-1], (-1, -math.inf, {}))
            children[piece[-1]] = (i, score, following)

    def __reduce__(self) -> tuple:
        return Unigram, (self.pieces, self.unk_id)  # a trie is nested too deeply

    def segment(self, text: str) -> list[tuple[int, int]]:
        """The pieces of ``text`` in order: id, and how many characters it stands for."""
        scores = [0.0] + [-math.inf] * len(text)  # of the best segmentation that ends at each place
        ids, starts = [-1] * (len(text) + 1), [0] * (len(text) + 1)  # its last piece
        trie, longest = self._trie, self._longest
        for start, first in enumerate(text):
            here, end, children = scores[start], start, trie
            for char in text[start : start + longest]:
                node = children.get(char)
                if node is None:
                    break
                end += 1
                i, score, children = node
                score += here
                if score > scores[end]:
                    scores[end], ids[end], starts[end] = score, i, start
            if (first not in trie or trie[first][0] < 0) and self.unknown_score + here > scores[start + 1]:
                scores[start + 1], ids[start + 1] = self.unknown_score + here, self.unk_id
                starts[start + 1] = start
        return self._from_the_end(ids, starts)

    def _from_the_end(self, ids: list[int], starts: list[int]) -> list[tuple[int, int]]:
        """Follow the last pieces back to the beginning; join unknown ones."""
        pieces: list[tuple[int, int]] = []
        end = len(ids) - 1
        while end > 0:
            i, length = ids[end], end - starts[end]
            if i == self.unk_id and pieces and pieces[-1][0] == i:
                pieces[-1] = (i, pieces[-1][1] + length)
            else:
                pieces.append((i, length))
            end -= length
        return pieces[::-1]
