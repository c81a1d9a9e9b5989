"""From a word to pieces of the vocabulary: the most probable segmentation under a unigram language model."""

import math
from collections.abc import Sequence

UNKNOWN_PENALTY = 10.0  # how far below the least probable piece an unknown character is
_NO_PIECE = (-1, 0.0)


class Unigram:
    """Splits texts into pieces, of which each has a log probability, so that the sum of these is largest.

    A character that is no piece is unknown. Its score is `UNKNOWN_PENALTY` below the smallest score of the
    vocabulary, and unknown characters next to each other become one unknown token.

    The largest sum is found from left to right (Viterbi): the best segmentation up to a place ends with some
    piece, and what is before that piece is the best segmentation up to there. Of equal sums the one found
    first stays, which is the one with the longer last piece. Scores are added in float64 and in this order,
    as Hugging Face's tokenizers do, so that rounding breaks a tie on both sides or on none. (SentencePiece
    itself adds in float32, over the whole sentence.)

    The pieces that fit at a place are found by lengthening the text there as long as some piece begins with
    it: ``_prefixes`` has all beginnings of pieces, with id and score of those that are pieces themselves.

    Source: Kudo 2018, "Subword Regularization"; EncodeOptimized of SentencePiece.
    """

    def __init__(self, pieces: Sequence[tuple[str, float]], unk_id: int) -> None:
        self.unk_id = unk_id
        self.unknown_score = min((score for _, score in pieces), default=0.0) - UNKNOWN_PENALTY
        self._prefixes = {piece[:end]: _NO_PIECE for piece, _ in pieces for end in range(1, len(piece))}
        self._prefixes |= {piece: (i, score) for i, (piece, score) in enumerate(pieces)}

    def segment(self, text: str) -> list[tuple[int, int]]:
        """The pieces of ``text`` in order: id, and how many characters it stands for."""
        scores = [0.0] + [-math.inf] * len(text)  # of the best segmentation that ends at each place
        last: list[tuple[int, int]] = [(-1, 0)] * (len(text) + 1)  # its last piece
        get = self._prefixes.get
        for start in range(len(text)):
            here, known = scores[start], False
            for end in range(start + 1, len(text) + 1):
                found = get(text[start:end])
                if found is None:
                    break
                i, score = found
                if i >= 0:
                    known = known or end == start + 1
                    if score + here > scores[end]:
                        scores[end], last[end] = score + here, (i, end - start)
            if not known and self.unknown_score + here > scores[start + 1]:
                scores[start + 1], last[start + 1] = self.unknown_score + here, (self.unk_id, 1)
        return self._from_the_end(text, last)

    def _from_the_end(self, text: str, last: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Follow the last pieces back to the beginning; join unknown ones."""
        pieces: list[tuple[int, int]] = []
        end = len(text)
        while end > 0:
            i, length = last[end]
            if i == self.unk_id and pieces and pieces[-1][0] == self.unk_id:
                pieces[-1] = (i, pieces[-1][1] + length)
            else:
                pieces.append((i, length))
            end -= length
        return pieces[::-1]
