"""The token ids of new pieces of text, by the three models of `minibert.text`: plain pieces only.

Each function gives the rows of a `Table` from ``row`` on their ids, as far as it can. ``letters`` (256,) has
the byte that the vocabulary knows in place of each byte of a piece, 0 where there is none. A piece with such
a byte, or with more than `LONGEST` bytes, keeps its COUNT of NOT_YET. There must be room for as many ids as
the pieces have bytes, and one more for each.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from minibert.kernels.cpu.compiled import compiled, in_this_order
from minibert.kernels.cpu.pieces import (
    COUNT,
    FIRST_ID,
    IDS,
    KEY,
    LENGTH,
    NOTHING,
    ROWS,
    Table,
    add_all,
    find,
    hashed,
    mixed,
    new_table,
)

LONGEST = 128
SPACE = 0x80  # a byte that in UTF-8 is never the first; it stands for "▁"


def vocabulary_table(tokens: Sequence[str], space: str = "") -> Table:
    """A table of all tokens, each in the row that is its id; ``space`` is written as the byte SPACE."""
    coded = [token.encode("utf-8", "surrogatepass") for token in tokens]
    if space:
        coded = [token.replace(space.encode(), bytes([SPACE])) for token in coded]
    bounds = np.cumsum([0, *map(len, coded)])
    table = new_table(rows=len(tokens), keys=int(bounds[-1]), ids=0)
    add_all(table, np.frombuffer(b"".join(coded), np.uint8), bounds)
    return table


@compiled
def _translate(table, row, letters, word, first):
    """Write the letters of a row's piece into ``word`` from ``first`` on; return their end, or −1."""
    key, length = table.rows[row, KEY], table.rows[row, LENGTH]
    if first + length > LONGEST:
        return -1
    for at in range(length):
        word[first + at] = letters[table.keys[key + at]]
        if word[first + at] == 0:
            return -1
    return first + length


@compiled
def _note_ids(table, row, count):
    """Note that the next ``count`` ids in ``table.ids``, which are written already, are those of a row."""
    table.rows[row, FIRST_ID] = table.used[IDS]
    table.rows[row, COUNT] = count
    table.used[IDS] += count


# -- WordPiece ----------------------------------------------------------------------------------------------


@compiled
def spell_word_pieces(table, row, letters, vocabulary, unk_id, longest):
    """See `minibert.text.wordpiece`: the longest token that fits, from left to right.

    ``vocabulary`` is a `vocabulary_table`. A word of more than ``longest`` characters is left out.
    """
    word, hashes = np.empty(LONGEST, np.uint8), np.empty(LONGEST, np.int64)
    while row < table.used[ROWS]:
        length = _translate(table, row, letters, word, 0)
        if 0 < length <= longest:
            first = table.used[IDS]
            count = _longest_matches(vocabulary, word, length, hashes, table.ids, first)
            if count == 0:
                table.ids[first] = unk_id
                count = 1
            _note_ids(table, row, count)
        row += 1


@compiled
def _longest_matches(vocabulary, word, length, hashes, ids, first):
    """The ids of word[:length], written from ids[first] on. Returns how many; 0 if no token fits."""
    start = count = 0
    while start < length:
        digest, marks = NOTHING, 2 if start else 0  # "##" is before what continues a word
        for _ in range(marks):
            digest = hashed(digest, 35)  # a "#"
        for at in range(start, length):
            digest = hashed(digest, word[at])
            hashes[at] = mixed(digest)  # of word[start : at + 1]
        stop = length
        token = find(vocabulary, hashes[stop - 1], word, start, stop, marks)
        while token < 0 and stop > start + 1:
            stop -= 1
            token = find(vocabulary, hashes[stop - 1], word, start, stop, marks)
        if token < 0:
            return 0
        ids[first + count] = token
        count += 1
        start = stop
    return count


# -- Byte pairs ---------------------------------------------------------------------------------------------

NEVER = np.iinfo(np.int64).max  # the rank of a pair that is not merged


def pair_table(ranks: Mapping[tuple[int, int], int], merged: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of ids with their ranks, and what the pair of each rank becomes, to look up.

    Returns slots (2ⁿ,) int32, each a rank or −1, and rows (N, 3) int64 of left, right, merged, by rank.
    """
    rows = np.full((len(merged), 3), -1, np.int64)  # a merge that is there twice has only its last rank
    rows[:, 2] = merged
    for pair, rank in ranks.items():
        rows[rank, :2] = pair
    slots = np.full(2 << max(len(rows) - 1, 1).bit_length(), -1, np.int32)
    _fill_pairs(slots, rows)
    return slots, rows


@compiled
def _pair_slot(slots, left, right):
    """Where a pair of ids is looked for first."""
    return mixed(hashed(hashed(NOTHING, left), right)) & (len(slots) - 1)


@compiled
def _fill_pairs(slots, rows):
    """Put every pair into its slot, by its rank."""
    for rank in range(len(rows)):
        slot = _pair_slot(slots, rows[rank, 0], rows[rank, 1])
        while slots[slot] >= 0:
            slot = (slot + 1) & (len(slots) - 1)
        slots[slot] = rank


@compiled
def _rank(slots, rows, left, right):
    """The rank of a pair, or NEVER."""
    slot = _pair_slot(slots, left, right)
    while slots[slot] >= 0:
        rank = np.int64(slots[slot])
        if rows[rank, 0] == left and rows[rank, 1] == right:
            return rank
        slot = (slot + 1) & (len(slots) - 1)
    return NEVER


@compiled
def spell_byte_pairs(table, row, letters, byte_ids, slots, pairs):
    """See `minibert.text.byte_level.BytePairs`: of all neighbours, the best pair is merged first.

    ``byte_ids`` (256,) are the ids of single bytes; ``slots``, ``pairs``: see `pair_table`.
    """
    word, ranks = np.empty(LONGEST, np.uint8), np.empty(LONGEST, np.int64)
    while row < table.used[ROWS]:
        length = _translate(table, row, letters, word, 0)
        if length > 0:
            ids = table.ids[table.used[IDS] : table.used[IDS] + length]
            for at in range(length):
                ids[at] = byte_ids[word[at]]
            _note_ids(table, row, _merge(ids, ranks, slots, pairs))
        row += 1


@compiled
def _merge(ids, ranks, slots, pairs):
    """Merge neighbours in ``ids``, in place; return how many are left."""
    length = len(ids)
    for at in range(length - 1):
        ranks[at] = _rank(slots, pairs, ids[at], ids[at + 1])  # of tokens at and at + 1
    while length > 1:
        best = 0
        for at in range(1, length - 1):
            if ranks[at] < ranks[best]:
                best = at
        if ranks[best] == NEVER:
            break
        ids[best] = pairs[ranks[best], 2]
        length -= 1
        for at in range(best + 1, length):
            ids[at] = ids[at + 1]
        for at in range(best, length - 1):
            ranks[at] = ranks[at + 1]
        if best > 0:
            ranks[best - 1] = _rank(slots, pairs, ids[best - 1], ids[best])
        if best < length - 1:
            ranks[best] = _rank(slots, pairs, ids[best], ids[best + 1])
    return length


# -- Unigram ------------------------------------------------------------------------------------------------


@compiled
def spell_unigrams(table, row, letters, vocabulary, scores, unk_id, unknown_score):
    """See `minibert.text.unigram`: the tokens whose ``scores`` (V,) float64 have the largest sum.

    ``vocabulary`` is a `vocabulary_table` in which ▁ is the byte SPACE. Each word is read with one before it.
    """
    word, best = np.empty(LONGEST, np.uint8), np.empty(LONGEST + 1, np.float64)
    tokens, starts = np.empty(LONGEST + 1, np.int32), np.empty(LONGEST + 1, np.int32)
    word[0] = SPACE
    while row < table.used[ROWS]:
        length = _translate(table, row, letters, word, 1)
        if length > 0:
            _segment(word, length, vocabulary, scores, unk_id, unknown_score, best, tokens, starts)
            first = table.used[IDS]
            _note_ids(table, row, _from_the_end(tokens, starts, length, unk_id, table.ids, first))
        row += 1


@in_this_order  # else rounding might break a tie otherwise than it does in Python
def _segment(word, length, vocabulary, scores, unk_id, unknown_score, best, tokens, starts):
    """The best segmentation of each word[:end]: its sum, and which token it ends with and where that starts.

    They are written into ``best``, ``tokens`` and ``starts``, all (at least length + 1,), at ``end``.
    """
    best[0] = 0.0
    best[1 : length + 1] = -np.inf
    for start in range(length):
        digest = NOTHING
        for at in range(start, length):
            digest = hashed(digest, word[at])
            token = find(vocabulary, mixed(digest), word, start, at + 1, 0)
            if token >= 0 and scores[token] + best[start] > best[at + 1]:
                best[at + 1] = scores[token] + best[start]
                tokens[at + 1], starts[at + 1] = token, start
            if at == start and token < 0 and unknown_score + best[start] > best[start + 1]:
                best[start + 1] = unknown_score + best[start]
                tokens[start + 1], starts[start + 1] = unk_id, start


@compiled
def _from_the_end(tokens, starts, length, unk_id, ids, first):
    """Follow the last tokens back to the beginning; write them from ids[first] on; return how many.

    Unknown ones next to each other are one.
    """
    count, end, before = 0, length, -1
    while end > 0:
        if tokens[end] != unk_id or before != unk_id:
            ids[first + count] = tokens[end]
            count += 1
        before = tokens[end]
        end = starts[end]
    for at in range(count // 2):
        other = first + count - 1 - at
        ids[first + at], ids[other] = ids[other], ids[first + at]
    return count
