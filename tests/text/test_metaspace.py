import pytest
from charsmaps import compiled
from hypothesis import given
from hypothesis import strategies as st

from minibert.errors import UserError
from minibert.text.charsmap import CharacterMap
from minibert.text.metaspace import MetaspaceNormaliser

RULES = CharacterMap(compiled({"\x0b": "", "\t": " ", "\u200b": " ", "▁": " ", "½": "1⁄2", "e\u0301": "é"}))


def normaliser(lowercase=True, keep_accents=False, character_map=None):
    return MetaspaceNormaliser(lowercase=lowercase, keep_accents=keep_accents, character_map=character_map)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("  Hello,  WORLD\n", ["▁hello,", "▁world"]),
        ("``so'' 'it'''", ['▁"so"', "▁'it\"'"]),
        ("Éa ﬁne x² ½", ["▁ea", "▁fine", "▁x2", "▁1⁄2"]),
        ("a▁b ▁▁c", ["▁a", "▁b", "▁", "▁c"]),
        ("ΟΔΟΣ", ["▁οδοσ"]),
        ("a\u00a8b", ["▁a", "▁b"]),  # a diaeresis by itself is a space and a mark
        ("각", ["▁\u1100\u1161\u11a8"]),
        ("\u0301", []),
        ("a\x1cb\x85c", ["▁a\x1cb", "▁c"]),  # whitespace in Python is not always whitespace in Rust
        ("", []),
    ],
)
def test_words(text, words):
    assert normaliser().words(text) == words
    chunks = [word for chunk in normaliser().chunks(text) for word in normaliser().words(chunk)]
    assert chunks == words


def test_capitals_and_accents_may_stay():
    assert normaliser(lowercase=False).words("Éa") == ["▁Ea"]
    assert normaliser(keep_accents=True).words("Éa ﬁ") == ["▁éa", "▁ﬁ"]


def test_rules_come_last():
    found = normaliser(keep_accents=True, character_map=RULES)
    assert found.words("E\u0301 a\x0bb x\u200by▁z ½\t") == ["▁é", "▁ab", "▁x", "▁y", "▁z", "▁1⁄2"]
    assert found.chunks("a\x0bb\tc d") == ["a\x0bb", "c", "d"]


def test_where_words_come_from():
    words = normaliser(keep_accents=True, character_map=RULES).words_with_sources("``Ae\u0301\x0b½ b▁c")
    assert words == [
        ('▁"aé1⁄2', [1, 1, 2, 3, 6, 6, 6]),
        ("▁b", [8, 8]),
        ("▁c", [10, 10]),
    ]
    assert normaliser().words_with_sources("ﬁ▁x") == [("▁fi", [0, 0, 0]), ("▁x", [1, 2])]


@pytest.mark.parametrize("keep_accents", [False, True])
@pytest.mark.parametrize("character_map", [None, RULES])
@given(text=st.text(st.one_of(st.characters(codec="utf-8"), st.sampled_from("'`▁ \t\x0b\u0301\u200be½"))))
def test_chunks_and_sources_agree_with_the_words(keep_accents, character_map, text):
    made = normaliser(keep_accents=keep_accents, character_map=character_map)
    words = made.words(text)
    assert [word for chunk in made.chunks(text) for word in made.words(chunk)] == words
    traced = made.words_with_sources(text)
    assert [word for word, _ in traced] == words
    places = [place for _, sources in traced for place in sources]
    assert places == sorted(places)
    assert all(len(word) == len(sources) for word, sources in traced)
    assert all(word.startswith("▁") and "▁" not in word[1:] for word in words)


def test_refuses_surrogates_and_rules_without_spaces():
    with pytest.raises(UserError, match="surrogate"):
        normaliser().words("a\ud83d")
    with pytest.raises(UserError, match="replace the space"):
        normaliser(character_map=CharacterMap(compiled({" ": "x"})))
