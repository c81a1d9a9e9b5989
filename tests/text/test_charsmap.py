import pickle

import pytest
from charsmaps import compiled
from hypothesis import example, given
from hypothesis import strategies as st

from minibert.errors import UserError
from minibert.text.charsmap import CharacterMap

RULES = {
    "\x01": "",
    "\t": " ",
    "Ａ": "A",
    "½": "1⁄2",
    "e\u0301": "é",
    "\u0340": "\u0300",
    "한": "하ㄴ",
    "😀": ":)",
}


@pytest.fixture(scope="module")
def rules() -> CharacterMap:
    return CharacterMap(compiled(RULES))


@pytest.mark.parametrize("key", RULES)
def test_each_rule(rules, key):
    assert rules.shortest(key) == rules.apply(key) == RULES[key]
    assert rules.apply(f"x{key}y") == f"x{RULES[key]}y"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain, \n e", "plain, \n e"),
        ("e\u0301\u0301!", "é!"),  # a cluster of five bytes: all of it is replaced
        ("e\u0301\u0301\u0301", "e\u0301\u0301\u0301"),  # one of seven bytes, and no rule for its characters
        ("Ａ\u0301", "A"),
        ("Ａ\u0301\u0301", "A\u0301\u0301"),
        ("\u0340\u0301", "\u0300"),  # two marks alone are a cluster
        ("a\u0340\u0301", "a\u0300\u0301"),  # but here a is its beginning, for which there is no rule
        ("\x01\u0340", "\u0300"),  # a control character is in no cluster
        ("\u0600e\u0301", "\u0600e\u0301"),  # while this one is in that of what comes after it
        ("", ""),
        ("\0", "\0"),
    ],
)
def test_clusters(rules, text, expected):
    assert rules.apply(text) == expected
    assert "".join(new for _, new in rules.parts(text)) == expected


def test_parts_tell_where_they_begin(rules):
    assert list(rules.parts("x½e\u0301\x01y")) == [(0, "x"), (1, "1⁄2"), (2, "é"), (4, ""), (5, "y")]


def test_tells_whether_printable_ascii_stays(rules):
    assert rules.keeps_ascii
    assert not CharacterMap(compiled({"A": "a"})).keeps_ascii


def test_pickles(rules):
    assert pickle.loads(pickle.dumps(rules)).apply("½") == "1⁄2"


GOOD = compiled({"a": "b", "ab": "c"})


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x04",
        GOOD[:40],  # it ends in the trie
        b"\x05" + GOOD[1:],  # the size is no multiple of four
        GOOD[:-1],  # the last text does not end
        GOOD[:-2] + b"\xff\0",  # not UTF-8
        GOOD.replace(b"b\0c\0", b""),  # texts that are not there
        b"\xff\xff\xff\xff" + GOOD[4:],
    ],
)
def test_damaged_rules(data):
    with pytest.raises(UserError, match=r"^damaged rules of normalisation"):
        CharacterMap(data)


@given(st.binary(max_size=64))
def test_any_bytes_are_rules_or_refused(data):
    try:
        rules = CharacterMap(data)
    except UserError:
        return
    assert isinstance(rules.apply("abc é½"), str)


@given(st.integers(4, len(GOOD) - 1), st.integers(0, 255))
@example(place=7, byte=128)  # the first unit becomes a text
def test_rules_with_one_byte_changed_are_used_or_refused(place, byte):
    data = bytearray(GOOD)
    data[place] = byte
    try:
        rules = CharacterMap(bytes(data))
    except UserError:
        return
    assert isinstance(rules.apply("".join(map(chr, range(1, 128))) + "abab é"), str)
