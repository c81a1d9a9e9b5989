import pickle

import pytest

from minibert.errors import UserError
from minibert.text.normalise import Memo, Normaliser, chunks


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (" \tHeLLo!how  \n Are yoU?  ", ["hello", "!", "how", "are", "you", "?"]),
        ("Häagen-Dazs Ñandú", ["haagen", "-", "dazs", "nandu"]),
        ("a+b=$5 `x` |y|~", ["a", "+", "b", "=", "$", "5", "`", "x", "`", "|", "y", "|", "~"]),
        ("“No” — she said…", ["“", "no", "”", "—", "she", "said", "…"]),
        ("ab博推cd", ["ab", "博", "推", "cd"]),
        ("かな カナ", ["かな", "カナ"]),  # Japanese syllables are no Chinese characters
        ("\ud55c", ["\u1112\u1161\u11ab"]),  # a Hangul syllable falls into its letters
        ("\u037ex", [";", "x"]),  # the Greek question mark is a semicolon once decomposed
        ("a\x00b\ufffdc\x1cd\u200de\ue000f\x85g", ["abcdefg"]),
        ("a\u00a0b\u3000c\u2028d", ["a", "b", "c", "d"]),
        ("ΟΔΟΣ", ["οδοσ"]),
        ("İstanbul ẞ K", ["istanbul", "ß", "k"]),
        ("\uf900\u8c48", ["\u8c48", "\u8c48"]),  # compatibility ideographs are set apart, then unified
        ("", []),
        (" \u0301 ", []),
    ],
)
def test_words_when_lower_casing(text, words):
    assert Normaliser().words(text) == words


def test_cased_keeps_capitals_and_accents():
    assert Normaliser(lowercase=False).words("Ñandú, HeLLo") == ["Ñandú", ",", "HeLLo"]


def test_accents_and_case_can_be_set_apart():
    assert Normaliser(lowercase=True, strip_accents=False).words("Ñandú") == ["ñandú"]
    assert Normaliser(lowercase=False, strip_accents=True).words("Ñandú") == ["Nandu"]


def test_chinese_characters_may_stay_together():
    assert Normaliser(split_cjk=False).words("ab博推cd") == ["ab博推cd"]


def test_original_characters_follow_google_bert():
    original = Normaliser(original_characters=True)
    assert original.words("ΟΔΟΣ Ä") == ["οδος", "a"]
    assert original.words("a\ue000b") == ["a\ue000b"]
    assert original.words("a\U0002b820b") == ["a", "\U0002b820", "b"]
    assert Normaliser().words("a\U0002b820b") == ["a\U0002b820b"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a\u0898b", ["a\u0898b"]),  # a mark of Unicode 14, unknown to the frozen tables
        ("a\u1734b", ["ab"]),  # a mark up to Unicode 13
        ("a\u2e43b", ["a\u2e43b"]),  # punctuation of Unicode 9
        ("a\u166db", ["a", "\u166d", "b"]),  # punctuation up to Unicode 11
        ("a\u0890b", ["a\u0890b"]),  # a format character of Unicode 14
        ("\ua7cb\u1c89", ["\u0264\u1c8a"]),  # capitals of Unicode 16
        ("\U00011938", ["\U00011938"]),  # a vowel sign of Unicode 13, whose two parts are unknown too
        ("\u302e\u1baa", ["\u1baa\u302e"]),  # marks with width are sorted by combining class: 224, 9
        ("\u302e\u0d3b\u1baa", ["\u302e\u0d3b\u1baa"]),  # but not across a mark that the tables do not know
    ],
)
def test_frozen_tables_do_not_depend_on_the_unicode_of_this_python(text, words):
    assert Normaliser().words(text) == words


@pytest.mark.parametrize("text", ["\ud800", "abc\udfff!", "\udc80"])
def test_surrogates_are_refused(text):
    with pytest.raises(UserError, match=f"lone surrogate U\\+{ord(text.strip('abc!')):04X}"):
        Normaliser(lowercase=False).words(text)


def test_chunks_split_at_whitespace_and_at_nothing_else():
    assert chunks("one two  three") == ["one", "two", "three"]
    assert chunks("a\tb\nc\rd\u00a0e\u2029f") == ["a", "b", "c", "d", "e", "f"]
    assert chunks("a\x0bb\x0cc\x1cd\x1fe\x85f") == ["a\x0bb\x0cc\x1cd\x1fe\x85f"]


@pytest.mark.parametrize("options", [{}, {"lowercase": False}, {"original_characters": True}])
def test_chunks_have_the_words_of_the_text(options):
    normaliser = Normaliser(**options)
    text = "".join(map(chr, [*range(0x3100), *range(0xF900, 0x10000), *range(0x1F300, 0x1F700)]))
    assert [word for chunk in chunks(text) for word in normaliser.words(chunk)] == normaliser.words(text)


def test_memo_computes_once_and_stays_small():
    asked = []
    memo = Memo(lambda key: asked.append(key) or -key, limit=3)
    assert [memo[key] for key in (1, 2, 1, 2, 3)] == [-1, -2, -1, -2, -3]
    assert asked == [1, 2, 3]
    for key in range(100):
        assert memo[key] == -key
        assert len(memo) <= 3


def test_memo_is_bounded_by_the_sizes_of_its_keys():
    asked = []
    memo = Memo(lambda key: asked.append(key) or key.upper(), limit=6, size_of=len)
    assert [memo[key] for key in ("ab", "cdef", "ab", "ghi", "ab")] == ["AB", "CDEF", "AB", "GHI", "AB"]
    assert asked == ["ab", "cdef", "ghi", "ab"]
    assert [memo["a" * 7] for _ in range(2)] == ["A" * 7] * 2
    assert asked[4:] == ["a" * 7] * 2 and memo.keys() == {"ghi", "ab"}  # too large to be remembered


def test_memo_is_pickled_without_its_contents():
    memo = Memo(abs, limit=7)
    assert memo[-3] == 3
    copy = pickle.loads(pickle.dumps(memo))
    assert len(copy) == 0
    assert (copy.compute, copy.limit, copy.size_of(5)) == (abs, 7, 1)
