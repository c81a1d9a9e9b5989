"""Reading SentencePiece's files, such as spiece.model: a protocol buffer of pieces, scores and options."""

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from minibert.errors import UserError

# Kinds of pieces.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4
_UNIGRAM = 1  # the first of the model types

MAX_BYTES = 2**28  # of a file; the largest known ones have some 5 MB
_VARINT, _EIGHT_BYTES, _BYTES, _FOUR_BYTES = 0, 1, 2, 5  # wire types


@dataclass
class SentencePieceFile:
    """What of a SentencePiece file a tokenizer needs."""

    pieces: list[tuple[str, float]] = field(default_factory=list)
    kinds: list[int] = field(default_factory=list)  # of the pieces
    charsmap: bytes | None = None  # see CharacterMap
    model_type: int = _UNIGRAM
    unk_id: int = 0


class _DamagedError(ValueError):
    pass


def read_sentencepiece(path: Path) -> SentencePieceFile:
    """Read a SentencePiece unigram model.

    Raises UserError, naming the file, if it is missing, damaged, or another kind of model.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise UserError(f"{path}: no such SentencePiece model; check the path") from None
    except OSError as error:
        raise UserError(f"{path}: cannot read this SentencePiece model ({error.strerror})") from None
    if len(data) > MAX_BYTES:
        raise UserError(f"{path}: more than {MAX_BYTES:,} bytes; expected a SentencePiece model")
    try:
        model = _model(data)
    except ValueError as error:  # UnicodeDecodeError is one
        raise UserError(f"{path}: not a SentencePiece model, or damaged ({error}); restore it") from None
    if model.model_type != _UNIGRAM:
        raise UserError(f"{path}: a SentencePiece model, but not of type unigram; use another folder")
    return model


def _model(data: bytes) -> SentencePieceFile:
    """Field numbers and defaults: sentencepiece_model.proto."""
    model = SentencePieceFile()
    for number, value in _fields(data):
        if number == 1:
            text, score, kind = _piece(_as_bytes(value))
            model.pieces.append((text, score))
            model.kinds.append(kind)
        elif number == 2:
            for option, setting in _fields(_as_bytes(value)):
                if option == 3:
                    model.model_type = _as_int(setting)
                elif option == 40:
                    model.unk_id = _as_int(setting)
        elif number == 3:
            for option, setting in _fields(_as_bytes(value)):
                if option == 2:
                    model.charsmap = _as_bytes(setting) or None
    if not 0 <= model.unk_id < len(model.pieces):
        raise _DamagedError(f"{len(model.pieces)} pieces, none of them the unknown one")
    return model


def _piece(data: bytes) -> tuple[str, float, int]:
    text, score, kind = "", 0.0, NORMAL
    for number, value in _fields(data):
        if number == 1:
            text = _as_bytes(value).decode()
        elif number == 2:
            if not isinstance(value, float):
                raise _DamagedError("a score that is no number")
            score = value
        elif number == 3:
            kind = _as_int(value)
    if not text or not math.isfinite(score):
        raise _DamagedError("a piece without text, or without a finite score")
    return text, score, kind


def _fields(data: bytes) -> Iterator[tuple[int, int | float | bytes]]:
    """Number and value of each field of a message. Four bytes are a float; eight stay bytes."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, wire = key >> 3, key & 7
        if wire == _VARINT:
            value, at = _varint(data, at)
            yield number, value
            continue
        length = {_EIGHT_BYTES: 8, _FOUR_BYTES: 4}.get(wire)
        if wire == _BYTES:
            length, at = _varint(data, at)
        if length is None or number == 0:
            raise _DamagedError(f"an unknown kind of field near byte {at}")
        if at + length > len(data):
            raise _DamagedError(f"it ends amid a field of {length} bytes")
        content = data[at : at + length]
        at += length
        yield number, struct.unpack("<f", content)[0] if wire == _FOUR_BYTES else content


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number in groups of seven bits, the lowest first, and where it ends."""
    value = 0
    for i, byte in enumerate(data[at : at + 10]):
        value |= (byte & 0x7F) << 7 * i
        if byte < 0x80:
            return value, at + i + 1
    raise _DamagedError(f"a number without an end at byte {at}")


def _as_bytes(value: int | float | bytes) -> bytes:
    if not isinstance(value, bytes):
        raise _DamagedError("a number where a text or a message should be")
    return value


def _as_int(value: int | float | bytes) -> int:
    if not isinstance(value, int):
        raise _DamagedError("no whole number where one should be")
    return value
