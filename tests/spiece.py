"""SentencePiece's files, written by hand."""

import struct
from collections.abc import Sequence

NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4


def varint(number: int) -> bytes:
    """Seven bits a byte, the lowest first."""
    low, rest = number & 0x7F, number >> 7
    return bytes([low | 0x80]) + varint(rest) if rest else bytes([low])


def message(number: int, content: bytes) -> bytes:
    """A field of bytes."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def number(field: int, value: int) -> bytes:
    """A field of a whole number."""
    return varint(field << 3) + varint(value)


def piece(text: str, score: float = 0.0, kind: int = NORMAL) -> bytes:
    """One piece."""
    packed = message(1, text.encode()) + varint(2 << 3 | 5) + struct.pack("<f", score)
    return message(1, packed + (number(3, kind) if kind != NORMAL else b""))


def spiece(pieces: Sequence[tuple], charsmap: bytes = b"", unk_id: int = 0, model_type: int = 1) -> bytes:
    """A whole model; pieces are (text, score) or (text, score, kind)."""
    trainer = message(1, b"corpus.txt") + number(3, model_type) + number(40, unk_id)
    rules = message(1, b"nmt_nfkc") + message(2, charsmap) + number(3, 1)
    return b"".join(piece(*entry) for entry in pieces) + message(2, trainer) + message(3, rules)
