"""Texts cut into pieces, each of which is found among those seen before.

A text is its bytes in UTF-8. A `Table` holds strings of bytes, and the token ids of each. It is a hash table
with open addressing: a string is looked for from the slot of its hash on, until it or an empty slot is found.
Equal hashes are not taken for equal strings: the bytes are compared.
"""

from typing import NamedTuple

import numpy as np

from minibert.kernels.cpu.compiled import compiled

int64, uint64 = np.int64, np.uint64

# Kinds of bytes. A GAP is in no piece; how the others are cut, see `_end_of_word` and `_end_of_pre_token`.
GAP, MARK, WORD, SPACE, BREAK, LETTER, DIGIT, OTHER, FOREIGN = range(9)
APOSTROPHE = ord("'")
HASH, KEY, LENGTH, FIRST_ID, COUNT = range(5)  # columns of Table.rows
ROWS, KEYS, IDS = range(3)  # of Table.used
PLACE, TEXT, FOUND = range(3)  # of the state of `find_pieces`
NOT_YET = -1  # COUNT of a piece whose ids have to be computed elsewhere


class Table(NamedTuple):
    """Strings of bytes and their token ids, in arrays that are filled from the left.

    ``slots`` (2ⁿ,) int32: the row of the string that belongs there, or −1. ``rows`` (N, 5) int64: the hash of
    a string, the first of its bytes in ``keys`` and how many there are, the first of its ids in ``ids`` and
    how many there are. ``used`` (3,) int64: how much of ``rows``, ``keys`` and ``ids`` is filled.
    """

    slots: np.ndarray
    rows: np.ndarray
    keys: np.ndarray
    ids: np.ndarray
    used: np.ndarray


def new_table(rows: int, keys: int, ids: int) -> Table:
    """An empty table with room for so many strings, bytes of them, and token ids."""
    slots = np.full(2 << (rows - 1).bit_length(), -1, np.int32)  # at most half of them will be taken
    return Table(
        slots,
        np.zeros((rows, 5), int64),
        np.zeros(keys, np.uint8),
        np.zeros(ids, np.int32),
        np.zeros(3, int64),
    )


def enlarged(table: Table, rows: int, keys: int, ids: int) -> Table:
    """The same table with room for so much more. Whatever has too little room gets at least twice as much."""
    needs = [int(used) + more for used, more in zip(table.used, (rows, keys, ids), strict=True)]
    sizes = [len(table.rows), len(table.keys), len(table.ids)]
    if all(need <= size for need, size in zip(needs, sizes, strict=True)):
        return table
    larger = new_table(
        *(size if need <= size else max(need, 2 * size) for need, size in zip(needs, sizes, strict=True))
    )
    for old, new in zip(table[1:], larger[1:], strict=True):
        new[: len(old)] = old
    _fill_slots(larger)
    return larger


@compiled
def _fill_slots(table):
    """Put every row into its slot."""
    mask = len(table.slots) - 1
    for row in range(table.used[ROWS]):
        slot = table.rows[row, HASH] & mask
        while table.slots[slot] >= 0:
            slot = (slot + 1) & mask
        table.slots[slot] = row


# -- Looking up ------------------------------------------------------------------------------------------

NOTHING = uint64(14695981039346656037)  # the hash of no bytes


@compiled
def hashed(digest, byte):
    """The hash of a string with one byte more (FNV-1a, by Fowler, Noll and Vo)."""
    return (digest ^ uint64(byte)) * uint64(1099511628211)


@compiled
def mixed(digest):
    """A hash as rows have it. Its lower bits, which choose the slot, depend on all of it."""
    return int64(digest ^ (digest >> uint64(29)))


@compiled
def find(table, digest, text, start, stop, skipped):
    """The row of a string that ends with text[start:stop]; if there is none, −1 − the slot where it belongs.

    ``digest`` is the `mixed` hash of the string. Its first ``skipped`` bytes, at most two, are not in
    ``text``. They need not be compared: strings that differ in these alone have different hashes.
    """
    mask = len(table.slots) - 1
    slot = digest & mask
    while table.slots[slot] >= 0:
        row = int64(table.slots[slot])
        if table.rows[row, HASH] == digest and table.rows[row, LENGTH] == skipped + stop - start:
            at, key = start, table.rows[row, KEY] + skipped
            while at < stop and table.keys[key] == text[at]:
                at += 1
                key += 1
            if at == stop:
                return row
        slot = (slot + 1) & mask
    return -1 - slot


@compiled
def _add(table, slot, digest, text, start, stop):
    """Give text[start:stop] a row, still without ids. There must be room."""
    row, key = table.used[ROWS], table.used[KEYS]
    table.slots[slot] = row
    table.rows[row, HASH] = digest
    table.rows[row, KEY] = key
    table.rows[row, LENGTH] = stop - start
    table.rows[row, FIRST_ID] = table.used[IDS]
    table.rows[row, COUNT] = NOT_YET
    for at in range(start, stop):
        table.keys[key + at - start] = text[at]
    table.used[ROWS] += 1
    table.used[KEYS] += stop - start
    return row


@compiled
def add_all(table, text, bounds):
    """Give each of the strings text[bounds[i] : bounds[i + 1]], all different, a row. There must be room."""
    for i in range(len(bounds) - 1):
        digest = NOTHING
        for at in range(bounds[i], bounds[i + 1]):
            digest = hashed(digest, text[at])
        found = find(table, mixed(digest), text, bounds[i], bounds[i + 1], 0)
        _add(table, -1 - found, mixed(digest), text, bounds[i], bounds[i + 1])


# -- Pieces ----------------------------------------------------------------------------------------------


@compiled
def _end_of_run(text, start, end, kind, kinds):
    """Where the bytes of one kind end that begin at ``start``."""
    while start < end and kinds[text[start]] == kind:
        start += 1
    return start


@compiled
def _end_of_word(text, start, end, kinds):
    """Where a piece ends: a MARK is one by itself; bytes of any other kind that stand together are one."""
    kind = kinds[text[start]]
    return start + 1 if kind == MARK else _end_of_run(text, start + 1, end, kind, kinds)


@compiled
def _end_of_pre_token(text, start, end, kinds):
    """Where a pre-token of `minibert.text.byte_level` ends.

    Whether a FOREIGN character is a letter is not known here. So a run of bytes before one goes on to the
    next white space: such a piece may be several pre-tokens.
    """
    stop, last = _end_of_space(text, start, end, kinds)
    if stop == end:
        return stop
    if last > start:
        return last  # the last white space of a run begins the next piece
    if stop > start and kinds[text[start]] != SPACE:
        return stop
    length = _contraction(text, start, end)
    if length > 0:
        return start + length
    kind = kinds[text[stop]]
    if kind != FOREIGN:
        stop = _end_of_run(text, stop, end, kind, kinds)
    if stop < end and kinds[text[stop]] == FOREIGN:
        while stop < end and _size_of_space(text, stop, end, kinds) == 0:
            stop += 1
    return stop


@compiled
def _end_of_space(text, start, end, kinds):
    """Where the white space ends that begins at ``start``, and where its last character is."""
    stop = last = start
    size = _size_of_space(text, start, end, kinds)
    while size > 0:
        last = stop
        stop += size
        size = _size_of_space(text, stop, end, kinds) if stop < end else 0
    return stop, last


@compiled
def _size_of_space(text, at, end, kinds):
    """How many bytes the white space at this place has; 0 if it is none."""
    kind = kinds[text[at]]
    if kind in (SPACE, BREAK):
        return 1
    if kind != FOREIGN or at + 2 > end:
        return 0
    first, second = text[at], text[at + 1]
    if first == 0xC2:
        return 2 if second == 0x85 or second == 0xA0 else 0
    if at + 3 > end:
        return 0
    third = text[at + 2]
    if first == 0xE2 and second == 0x80:  # U+2000 to U+200A, U+2028, U+2029, U+202F
        return 3 if third <= 0x8A or third == 0xA8 or third == 0xA9 or third == 0xAF else 0
    other = first == 0xE1 and second == 0x9A and third == 0x80  # U+1680
    other |= first == 0xE2 and second == 0x81 and third == 0x9F  # U+205F
    other |= first == 0xE3 and second == 0x80 and third == 0x80  # U+3000
    return 3 if other else 0


@compiled
def _contraction(text, start, end):
    """The length of 's, 't, 'm, 'd, 're, 've or 'll at this place; 0 if there is none."""
    if text[start] != APOSTROPHE:
        return 0
    first = text[start + 1] if start + 1 < end else 0
    if first == 115 or first == 116 or first == 109 or first == 100:  # s t m d
        return 2
    second = text[start + 2] if start + 2 < end else 0
    if (first == 114 or first == 118) and second == 101:  # re ve
        return 3
    return 3 if first == 108 and second == 108 else 0  # ll


@compiled
def find_pieces(text, bounds, kinds, byte_level, seen, found, ends, state):
    """Cut texts into pieces and write the row in ``seen`` of each piece into ``found``.

    A piece that is not in ``seen`` is added, without ids. If there is no room for one, the call ends, and
    the next call with the same ``state`` goes on from there.

    Args:
        text (T,) uint8, bounds (N + 1,) int64: text i is text[bounds[i] : bounds[i + 1]].
        kinds (256,) uint8: the kind of each byte.
        byte_level: whether pieces end as `_end_of_pre_token` says, or as `_end_of_word` does.
        seen: the `Table` of pieces.
        found (at least as many as there are pieces,) int32: one row per piece.
        ends (N,) int64: where in ``found`` the pieces of each text end; filled here.
        state (3,) int64: how far the calls have come; zeros for the first.

    Returns 0 once all texts are done, else the number of bytes in the piece for which there was no room.
    """
    place, number, count = state[PLACE], state[TEXT], state[FOUND]
    while number < len(ends):
        end = bounds[number + 1]
        while place < end:
            if kinds[text[place]] == GAP:
                place += 1
                continue
            if byte_level:
                stop = _end_of_pre_token(text, place, end, kinds)
            else:
                stop = _end_of_word(text, place, end, kinds)
            digest = NOTHING
            for at in range(place, stop):
                digest = hashed(digest, text[at])
            row = find(seen, mixed(digest), text, place, stop, 0)
            if row < 0:
                if seen.used[ROWS] == len(seen.rows) or seen.used[KEYS] + stop - place > len(seen.keys):
                    state[PLACE], state[TEXT], state[FOUND] = place, number, count
                    return stop - place
                row = _add(seen, -1 - row, mixed(digest), text, place, stop)
            found[count] = row
            count += 1
            place = stop
        ends[number] = count
        number += 1
    return 0


@compiled
def gather(found, ends, seen, out):
    """The ids of the pieces, one after the other, in ``out``; ``ends`` become those of the texts' ids."""
    piece = count = 0
    for number in range(len(ends)):
        while piece < ends[number]:
            row = found[piece]
            first = seen.rows[row, FIRST_ID]
            for i in range(seen.rows[row, COUNT]):
                out[count] = seen.ids[first + i]
                count += 1
            piece += 1
        ends[number] = count
