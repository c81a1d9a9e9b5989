import random
import unicodedata
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibert.errors import UserError
from minibert.text.byte_level import (
    BYTE_CHARACTERS,
    CHARACTER_BYTES,
    BytePairs,
    blocks,
    bytes_to_characters,
    pre_tokens,
    token_bytes,
)
from minibert.text.normalise import WHITE_SPACE

VOCAB = {char: i for i, char in enumerate(BYTE_CHARACTERS)}

# Texts in which kinds of characters meet more often than in those of st.text().
MIXED = st.text(st.sampled_from([*"asd019 \t\n\x1c\x85'.-_é½٣ſ\u0301\u3000\u2028東\U0001d7d8\U0001f642"]))
TEXTS = MIXED | st.text()


# ---------------------------------------------------------------- bytes and characters


def test_every_byte_has_a_printable_character():
    assert len(set(BYTE_CHARACTERS)) == 256
    assert BYTE_CHARACTERS.isprintable()
    assert " " not in BYTE_CHARACTERS
    assert all(BYTE_CHARACTERS[CHARACTER_BYTES[char]] == char for char in BYTE_CHARACTERS)


def test_characters_of_bytes():
    assert bytes_to_characters("Az! né\n\x00\x7f\xad") == "Az!ĠnÃ©ĊĀġÂŃ"
    assert [BYTE_CHARACTERS[byte] for byte in (0, 32, 33, 126, 127, 160, 161, 173, 174, 255)] == [
        *"ĀĠ!~ġł¡Ń®ÿ"
    ]


@given(TEXTS)
def test_bytes_of_characters_are_the_text(text):
    assert token_bytes(bytes_to_characters(text)) == text.encode()


def test_a_token_with_a_foreign_character_stands_for_itself():
    assert token_bytes("Ġn\u3042") == "Ġn\u3042".encode()
    assert token_bytes("a b") == b"a b"


# ---------------------------------------------------------------- pre-tokens


def kind(char: str) -> str:
    if char in WHITE_SPACE:
        return "space"
    return {"L": "letter", "N": "number"}.get(unicodedata.category(char)[0], "other")


def pre_tokens_slowly(text: str) -> list[str]:
    """GPT-2's pattern read aloud: 's … 'd, or one kind with a space before it, or white space."""
    found, i = [], 0
    while i < len(text):
        endings = [end for end in ("'s", "'t", "'re", "'ve", "'m", "'ll", "'d") if text.startswith(end, i)]
        first = i + 1 if text[i] == " " and i + 1 < len(text) and kind(text[i + 1]) != "space" else i
        stop = first
        while stop < len(text) and kind(text[stop]) == kind(text[first]):
            stop += 1
        if endings:
            stop = i + len(endings[0])
        elif kind(text[first]) == "space" and stop < len(text) and stop - i > 1:
            stop -= 1  # the last one is left, for a word that may begin with it
        found.append(text[i:stop])
        i = stop
    return found


def test_pre_tokens():
    assert pre_tokens("I've 2 dogs, don't  they'll\n") == [
        *("I", "'ve", " 2", " dogs", ",", " don", "'t", " ", " they", "'ll", "\n"),
    ]
    assert pre_tokens("a \n b\t c   ") == ["a", " \n", " b", "\t", " c", "   "]
    assert pre_tokens("x2y_z 'S ''s") == ["x", "2", "y", "_", "z", " '", "S", " ''", "s"]
    assert pre_tokens("café ½٣ e\u0301 a\u3000b\x1c\x85") == [
        *("café", " ½٣", " e", "\u0301", " a", "\u3000", "b", "\x1c", "\x85"),
    ]
    assert pre_tokens("'ſ 東京 \U0001f642!") == ["'", "ſ", " 東京", " \U0001f642!"]
    assert pre_tokens("") == []


@given(MIXED)
def test_pre_tokens_are_those_of_the_pattern(text):
    assert pre_tokens(text) == pre_tokens_slowly(text)


@given(TEXTS)
def test_cutting_into_blocks_first_changes_nothing(text):
    assert "".join(blocks(text)) == text
    assert [piece for block in blocks(text) for piece in pre_tokens(block)] == pre_tokens(text)


def test_kinds_do_not_depend_on_the_version_of_python():
    """A letter of Unicode 15 (Python 3.12) and one of Unicode 17, which the reference does not know yet."""
    assert pre_tokens("a\U00031350") == ["a\U00031350"]
    assert pre_tokens("a\U000323b0") == ["a", "\U000323b0"]


@pytest.mark.parametrize("text", ["a \ud83d", "\udc00b"])
def test_lone_surrogates_are_refused(text):
    for _ in range(2):
        with pytest.raises(UserError, match="surrogate"):
            pre_tokens(text)


# ---------------------------------------------------------------- merging


def merge_slowly(vocab: dict[str, int], merges: list[tuple[str, str]], word: str) -> tuple[int, ...]:
    """The rule of `BytePairs` taken literally."""
    parts = [*bytes_to_characters(word)]
    while True:
        ranked = [(merges.index(pair), i) for i, pair in enumerate(pairwise(parts)) if pair in merges]
        if not ranked:
            return tuple(vocab[part] for part in parts)
        i = min(ranked)[1]
        parts[i : i + 2] = ["".join(parts[i : i + 2])]


@pytest.fixture(params=[0, 100], ids=["long", "short"])
def long(request, monkeypatch) -> None:
    """Both ways to merge."""
    monkeypatch.setattr(BytePairs, "LONG", request.param)


def test_the_first_merge_comes_first_and_the_leftmost_pair(long):
    vocab = VOCAB | {"ab": 256, "bc": 257, "aa": 258}
    ids = BytePairs(vocab, [("b", "c"), ("a", "b"), ("a", "a")]).ids
    assert ids("abc") == (vocab["a"], 257)
    assert ids("abab") == (256, 256)
    assert ids("aaaaa") == (258, 258, vocab["a"])
    assert ids("") == ()
    assert ids(" é") == tuple(VOCAB[char] for char in "ĠÃ©")


@pytest.mark.parametrize("seed", range(30))
def test_merges_are_those_of_the_literal_rule(long, seed):
    """Also for merges that nobody has learned, which may use tokens before they are made."""
    rng = random.Random(seed)
    merges: list[tuple[str, str]] = []
    tokens = ["a", "b", "c"][: 2 + seed % 2]
    for _ in range(12):
        pair = rng.choice(tokens), rng.choice(tokens)
        if pair not in merges:
            merges.append(pair)
            tokens.append("".join(pair))
    rng.shuffle(merges)
    vocab = VOCAB | {token: 256 + i for i, token in enumerate(dict.fromkeys(tokens)) if len(token) > 1}
    pairs = BytePairs(vocab, merges)
    for _ in range(40):
        word = "".join(rng.choices("abc", k=rng.randint(0, 14)))
        assert pairs.ids(word) == merge_slowly(vocab, merges, word)


def test_a_very_long_word():
    """Steps that grow with its square would take hours."""
    vocab = VOCAB | {"aa": 256, "aaaa": 257}
    assert BytePairs(vocab, [("a", "a"), ("aa", "aa")]).ids("a" * 200_000) == (257,) * 50_000
