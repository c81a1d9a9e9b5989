import pytest

from minibert.text.wordpiece import WordPiece

TOKENS = ["[UNK]", "un", "unaff", "##aff", "##able", "##a", "##ffable", "a", "##ab", "able"]


def pieces(word: str, **options: int) -> list[str]:
    return [
        TOKENS[i]
        for i in WordPiece({token: i for i, token in enumerate(TOKENS)}, unk_id=0, **options).ids(word)
    ]


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("unaffable", ["unaff", "##able"]),  # the longest beginning wins over un ##aff ##able
        ("unable", ["un", "##able"]),
        ("able", ["able"]),
        ("aab", ["a", "##ab"]),
        ("aaa", ["a", "##a", "##a"]),
        ("unx", ["[UNK]"]),  # one part unknown, all of the word unknown
        ("affable", ["a", "##ffable"]),
        ("ffable", ["[UNK]"]),  # only as a continuation
        ("unaab", ["un", "##a", "##ab"]),  # greedy: never goes back
    ],
)
def test_longest_match_first(word, expected):
    assert pieces(word) == expected


def test_the_longest_token_of_all_can_start_a_word():
    assert WordPiece({"[U]": 0, "abcdef": 1, "##g": 2}, unk_id=0).ids("abcdefgg") == (1, 2, 2)


def test_too_long_words_are_unknown():
    assert pieces("a" * 100) == ["a"] + ["##a"] * 99
    assert pieces("a" * 101) == ["[UNK]"]
    assert pieces("a" * 200, max_characters_per_word=200) == ["a"] + ["##a"] * 199
    assert pieces("able", max_characters_per_word=3) == ["[UNK]"]
