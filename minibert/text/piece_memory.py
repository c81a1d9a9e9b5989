"""Token ids of long texts, and of many: compiled loops cut them and look up the pieces in a table."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain

import numpy as np

from minibert.kernels.cpu import pieces
from minibert.kernels.cpu.pieces import COUNT, FIRST_ID, IDS, KEY, KEYS, LENGTH, NOT_YET, ROWS, Table

BLOCK = 1 << 20  # bytes of text that are looked through at once
LEAST_ROOM = {"rows": 1 << 12, "keys": 1 << 15, "ids": 1 << 13}


class PieceMemory:
    """Finds the token ids of texts piece by piece. Those of each piece are computed once and remembered.

    Args:
        compute: returns the token ids of a piece that ``spell`` has left out.
        kinds: the ASCII characters of each kind. The kinds decide where a text is cut, as described in
            `minibert.kernels.cpu.pieces`.
        usual: the kind of all other bytes.
        limit: all pieces are forgotten once they have more bytes than this, plus 8 per piece.
        byte_level: whether texts are cut into pre-tokens.
        spell: called with the table and the first new row; writes the ids of plain pieces into the table. See
            `minibert.kernels.cpu.spelling`.
    """

    def __init__(
        self,
        compute: Callable[[str], Sequence[int]],
        kinds: Mapping[int, str],
        usual: int,
        limit: int,
        *,
        byte_level: bool = False,
        spell: Callable[[Table, int], None],
    ) -> None:
        self.compute, self.limit, self.byte_level, self.spell = compute, limit, byte_level, spell
        self._kinds = np.full(256, usual, np.uint8)
        for kind, characters in kinds.items():
            self._kinds[[*characters.encode("ascii")]] = kind
        self._lock = threading.Lock()
        self._forget()

    def _forget(self) -> None:
        self._seen = pieces.new_table(**LEAST_ROOM)

    def token_ids(self, texts: Sequence[bytes]) -> list[list[int]]:
        """The token ids of texts in UTF-8."""
        with self._lock:
            return [ids for block in _blocks(texts) for ids in self._ids_of_block(block)]

    def _ids_of_block(self, texts: Sequence[bytes]) -> Iterator[list[int]]:
        try:
            found, ends = self._find(texts)
        except BaseException:
            self._forget()  # some pieces may have no ids yet
            raise
        ids = np.empty(self._seen.rows[found, COUNT].sum(), np.int32)
        pieces.gather(found, ends, self._seen, ids)
        if self._seen.used[KEYS] + 8 * self._seen.used[ROWS] > self.limit:
            self._forget()  # at once, since the next text may never come
        every, start = ids.tolist(), 0
        for end in ends.tolist():
            yield every[start:end]
            start = end

    def _find(self, texts: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray]:
        """The row in ``self._seen`` of each piece, (P,) int32, and where those of each text end, (N,) int64.

        Afterwards all these rows have their ids.
        """
        text, bounds = np.frombuffer(b"".join(texts), np.uint8), np.cumsum([0, *map(len, texts)])
        found, ends, state = (
            np.empty(len(text), np.int32),
            np.empty(len(texts), np.int64),
            np.zeros(3, np.int64),
        )
        first_new = int(self._seen.used[ROWS])
        while missing := pieces.find_pieces(
            text, bounds, self._kinds, self.byte_level, self._seen, found, ends, state
        ):
            self._seen = pieces.enlarged(self._seen, rows=1, keys=missing, ids=0)
        self._add_ids_from(first_new)
        return found[: ends[-1]], ends

    def _add_ids_from(self, row: int) -> None:
        """Give each row from this one on its ids."""
        lengths = self._seen.rows[row : self._seen.used[ROWS], LENGTH]  # a piece has at most one id more
        self._seen = pieces.enlarged(self._seen, rows=0, keys=0, ids=int(lengths.sum()) + len(lengths))
        self.spell(self._seen, row)
        left = row + np.flatnonzero(self._seen.rows[row : self._seen.used[ROWS], COUNT] == NOT_YET)
        if len(left) == 0:
            return
        start = int(self._seen.rows[left[0], KEY])
        keys = self._seen.keys[start : self._seen.used[KEYS]].tobytes()
        places = self._seen.rows[left][:, [KEY, LENGTH]] - [start, 0]
        computed = [self.compute(keys[key : key + length].decode()) for key, length in places.tolist()]
        counts = np.array([*map(len, computed)])
        self._seen = pieces.enlarged(self._seen, rows=0, keys=0, ids=int(counts.sum()))
        first = int(self._seen.used[IDS])
        self._seen.ids[first : first + counts.sum()] = [*chain.from_iterable(computed)]
        self._seen.rows[left, FIRST_ID] = first + np.cumsum(counts) - counts
        self._seen.rows[left, COUNT] = counts
        self._seen.used[IDS] += counts.sum()


def _blocks(texts: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """Some texts at a time: one, or as many as have at most `BLOCK` bytes together."""
    start = size = 0
    for number, text in enumerate(texts):
        if number > start and size + len(text) > BLOCK:
            yield texts[start:number]
            start, size = number, 0
        size += len(text)
    if start < len(texts):
        yield texts[start:]
