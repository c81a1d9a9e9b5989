import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spiece import CONTROL, UNKNOWN, message, number, piece, spiece, varint

from minibert.errors import UserError
from minibert.text import sentencepiece
from minibert.text.sentencepiece import read_sentencepiece

PIECES = [("<unk>", 0.0, UNKNOWN), ("<s>", 0.0, CONTROL), ("▁é", -1.5), ("b", -2.25)]


@pytest.fixture
def read(tmp_path):
    def read(data):
        (tmp_path / "spiece.model").write_bytes(data)
        return read_sentencepiece(tmp_path / "spiece.model")

    return read


def test_reads_what_a_tokenizer_needs(read):
    model = read(spiece(PIECES, charsmap=b"rules"))
    assert model.pieces == [(text, score) for text, score, *_ in PIECES]
    assert model.kinds == [UNKNOWN, CONTROL, 1, 1]
    assert (model.charsmap, model.model_type, model.unk_id) == (b"rules", 1, 0)
    assert read(spiece(PIECES, unk_id=3)).unk_id == 3
    assert read(spiece(PIECES)).charsmap is None


def test_skips_fields_that_it_does_not_know(read):
    unknown = (
        number(7, 2**63) + message(200, b"x") + varint(9 << 3 | 1) + bytes(8) + varint(9 << 3 | 5) + bytes(4)
    )
    assert len(read(unknown + spiece(PIECES) + unknown).pieces) == 4


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "0 pieces"),
        (b"hello, this is no model", "not a SentencePiece model"),
        (spiece(PIECES)[:-1], "it ends amid a field"),
        (spiece(PIECES)[:5], "it ends amid a field"),
        (b"\xff" * 12, "a number without an end at byte 0"),
        (message(1, message(1, b"\xff\xfe")), "codec can't decode"),
        (message(1, b""), "a piece without text"),
        (piece("a", math.inf), "without a finite score"),
        (piece("a", math.nan), "without a finite score"),
        (message(1, message(1, b"a") + number(2, 3)), "a score that is no number"),
        (message(1, number(1, 3)), "a number where a text"),
        (number(1, 3), "a number where a text"),
        (piece("a") + message(2, message(3, b"")), "no whole number"),
        (piece("a") + message(2, varint(3 << 3 | 5) + struct.pack("<f", 1)), "no whole number"),
        (varint(1 << 3 | 3), "an unknown kind of field"),
        (varint(0 << 3 | 2) + varint(0), "an unknown kind of field"),
        (spiece(PIECES, unk_id=4), "4 pieces, none of them the unknown one"),
        (spiece(PIECES, unk_id=2**64 - 1), "4 pieces, none of them the unknown one"),
        (spiece(PIECES, model_type=2), "but not of type unigram"),
    ],
)
def test_damaged_files(read, data, message):
    with pytest.raises(UserError, match=rf"spiece\.model: .*{message}") as caught:
        read(data)
    assert "\n" not in str(caught.value)


def test_no_file_and_too_large_a_file(read, tmp_path, monkeypatch):
    with pytest.raises(UserError, match="no such SentencePiece model"):
        read_sentencepiece(tmp_path / "none.model")
    with pytest.raises(UserError, match="cannot read this SentencePiece model"):
        read_sentencepiece(tmp_path)
    monkeypatch.setattr(sentencepiece, "MAX_BYTES", 10)
    with pytest.raises(UserError, match="more than 10 bytes"):
        read(spiece(PIECES))


WHOLE = spiece(PIECES, charsmap=b"rules")


@given(st.data())
def test_any_damage_is_noticed_or_harmless(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "spiece.model"
    damaged = bytearray(WHOLE)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(WHOLE) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(damaged[: data.draw(st.integers(0, len(WHOLE)))])
    try:
        model = read_sentencepiece(path)
    except UserError:
        return
    assert all(text and math.isfinite(score) for text, score in model.pieces)
