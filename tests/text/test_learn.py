import random
from collections import Counter
from itertools import pairwise

import pytest

from minibert.errors import UserError
from minibert.text import BertTokenizer
from minibert.text.byte_level import BYTE_CHARACTERS
from minibert.text.learn import (
    count_pre_tokens,
    count_words,
    frequent_characters,
    learn_merges,
    learn_vocabulary,
)
from minibert.text.normalise import Normaliser


def learn_slowly(words: dict[str, int], vocab_size: int, special: list[str], min_frequency: int) -> list[str]:
    """The rule of `learn_vocabulary` taken literally: count all pairs anew before each merge."""
    spelled = {word: [word[0], *("##" + char for char in word[1:])] for word in words}
    alphabet = sorted({char for word in words for char in word})
    continuing = sorted({piece for pieces in spelled.values() for piece in pieces[1:]})
    tokens = [*special, *alphabet, *continuing]
    while len(tokens) < vocab_size:
        pairs: Counter[tuple[str, str]] = Counter()
        for word, pieces in spelled.items():
            for pair in pairwise(pieces):
                pairs[pair] += words[word]
        pair = min(pairs, key=lambda pair: (-pairs[pair], pair), default=None)
        if pair is None or pairs[pair] < min_frequency:
            break
        token = pair[0] + pair[1].removeprefix("##")
        if token not in tokens:
            tokens.append(token)
        for pieces in spelled.values():
            i = 0
            while i < len(pieces) - 1:
                if (pieces[i], pieces[i + 1]) == pair:
                    pieces[i : i + 2] = [token]
                i += 1
    return tokens


@pytest.mark.parametrize("seed", range(30))
def test_merges_are_those_of_the_literal_rule(seed):
    rng = random.Random(seed)
    alphabet = (
        "ab" if seed % 2 else "abcde"
    )  # two letters make repeats such as aaaa, many ties and equal tokens
    words = {"".join(rng.choices(alphabet, k=rng.randint(1, 9))): rng.randint(1, 6) for _ in range(60)}
    size, special, least = rng.randint(30, 120), ["[PAD]", "[UNK]"], rng.randint(1, 4)
    expected = learn_slowly(words, size, special, least)
    assert learn_vocabulary(words, size, special, min_frequency=least) == expected


def test_special_tokens_then_alphabet_then_merges():
    tokens = learn_vocabulary({"hug": 10, "pug": 5, "pun": 12, "bun": 4, "hugs": 5}, 17, ["[PAD]", "[UNK]"])
    assert tokens[:2] == ["[PAD]", "[UNK]"]
    assert tokens[2:9] == ["b", "g", "h", "n", "p", "s", "u"]
    assert tokens[9:13] == ["##g", "##n", "##s", "##u"]
    assert tokens[13:] == ["##ug", "##un", "hug", "pun"]  # 20, 16, 15, 12 times


def test_ties_go_by_the_texts_of_the_pair():
    assert learn_vocabulary({"xy": 3, "ab": 3, "ac": 3}, 12, [])[-3:] == ["ab", "ac", "xy"]


def test_order_of_the_words_does_not_matter():
    rng = random.Random(0)
    words = {"".join(rng.choices("abcd", k=rng.randint(1, 8))): rng.randint(1, 3) for _ in range(200)}
    shuffled = dict(rng.sample(list(words.items()), len(words)))
    assert learn_vocabulary(words, 150, []) == learn_vocabulary(shuffled, 150, [])


def test_stops_at_pairs_that_are_too_rare():
    assert learn_vocabulary({"ab": 2, "cd": 1}, 100, [], min_frequency=2)[-1] == "ab"
    for least in (1, 0):  # that it occurs at all is needed in any case
        assert learn_vocabulary({"ab": 2, "cd": 1}, 100, [], min_frequency=least)[-1] == "cd"


def test_alphabet_keeps_the_most_frequent_characters():
    tokens = learn_vocabulary({"yyz": 5, "c": 4, "ab": 1}, 100, [], alphabet_limit=2)
    assert tokens == ["y", "z", "##y", "##z", "##yz", "yyz"]


def test_an_alphabet_that_spells_no_word_is_refused():
    with pytest.raises(UserError, match="not among the 1 most frequent ones; set a higher alphabet_limit"):
        learn_vocabulary({"ab": 3, "cd": 2}, 100, [], alphabet_limit=1)


def test_ties_in_the_alphabet_go_in_unicode_order():
    assert frequent_characters({"d": 1, "b": 1, "a": 2, "c": 1}, 3) == {"a", "b", "c"}


def test_counts_words_after_normalising():
    counts = count_words(["The the, the", "THE end"], Normaliser())
    assert counts == {"the": 4, ",": 1, "end": 1}


def test_rare_words_are_forgotten_so_that_memory_is_bounded():
    texts = (f"common word{i} often{i % 3}" for i in range(5000))
    counts = count_words(texts, Normaliser(), max_words=100)
    assert len(counts) <= 200
    assert counts["common"] == 5000
    assert sum(counts[f"often{i}"] for i in range(3)) == 5000
    assert counts["word0"] == 0


def test_words_that_the_tokenizer_could_never_use_are_left_out():
    long, longest = "ab" * 51, "ab" * 50
    assert count_words([long, f"c{long}, {longest}"], Normaliser()) == {",": 1, longest: 1}
    assert count_words([long, "x"], Normaliser(), max_characters_per_word=102) == {long: 1, "x": 1}
    texts = ["short words"] * 3 + [long] * 9
    assert BertTokenizer.train(texts, 60).tokens == BertTokenizer.train(texts[:3], 60).tokens
    longer = BertTokenizer.train(texts, 60, max_characters_per_word=102)
    assert longer.token_ids(long) == [longer.vocab[long]]


def test_a_very_long_word_costs_no_more_than_reading_it():
    """Merges in a word of two million characters took minutes."""
    rng = random.Random(0)
    texts = ["".join(rng.choices("abcdefghij", k=2_000_000)), "few words, few words"]
    assert "words" in BertTokenizer.train(texts, 200).tokens


def test_chunks_are_not_held_beyond_a_number_of_characters(monkeypatch):
    monkeypatch.setattr("minibert.text.learn.MAX_RAW_CHARACTERS", 100)
    held = []
    monkeypatch.setattr(
        "minibert.text.learn._add_words", lambda words, raw, *_: held.append(len(raw)) or raw.clear()
    )
    count_words((f"{i:020}" for i in range(50)), Normaliser())
    assert held == [6] * 8 + [2]


def test_no_words_is_an_error():
    with pytest.raises(UserError, match="no word"):
        learn_vocabulary({}, 100, [])


def test_too_small_a_vocabulary_is_an_error():
    with pytest.raises(UserError, match=r"vocab_size 5 is too small.* take 6"):
        learn_vocabulary({"abc": 3}, 5, ["[UNK]"])


# ---------------------------------------------------------------- byte-level BPE


def learn_merges_slowly(words: dict[str, int], vocab_size: int, min_frequency: int) -> list[tuple[str, str]]:
    """The rule of `learn_merges` taken literally: count all pairs anew before each merge."""
    spelled = {word: [*word] for word in words}
    tokens, merges = sorted(BYTE_CHARACTERS), []
    while len(tokens) < vocab_size:
        pairs: Counter[tuple[str, str]] = Counter()
        for word, pieces in spelled.items():
            for pair in pairwise(pieces):
                pairs[pair] += words[word]
        ages = {pair: [tokens.index(part) for part in pair] for pair in pairs}
        pair = min(pairs, key=lambda pair: (-pairs[pair], ages[pair]), default=None)
        if pair is None or pairs[pair] < min_frequency:
            break
        merges.append(pair)
        tokens.append("".join(pair))
        for pieces in spelled.values():
            i = 0
            while i < len(pieces) - 1:
                if (pieces[i], pieces[i + 1]) == pair:
                    pieces[i : i + 2] = ["".join(pair)]
                i += 1
    return merges


@pytest.mark.parametrize("seed", range(20))
def test_byte_level_merges_are_those_of_the_literal_rule(seed):
    rng = random.Random(seed)
    alphabet = (
        "ab" if seed % 2 else "zyxwv"
    )  # ties go by age, not by the alphabet: a "yz" is younger than "z"
    words = {"".join(rng.choices(alphabet, k=rng.randint(1, 9))): rng.randint(1, 6) for _ in range(60)}
    size, least = 256 + rng.randint(5, 90), rng.randint(1, 4)
    tokens, merges = learn_merges(words, size, [], min_frequency=least)
    assert merges == learn_merges_slowly(words, size, least)
    assert tokens == [*sorted(BYTE_CHARACTERS), *map("".join, merges)]


def test_byte_level_merges_by_hand():
    tokens, merges = learn_merges({"Ġhug": 10, "Ġpug": 5, "pun": 12, "bun": 4}, 262, ["<s>", "<pad>"])
    assert tokens[:3] == ["<s>", "<pad>", "!"]
    # 17 and 12 times; then three pairs occur 10 times, of which "h" begins the oldest, and then "Ġ".
    assert merges == [("p", "u"), ("pu", "n"), ("h", "u"), ("Ġ", "hu")]
    assert tokens[258:] == ["pu", "pun", "hu", "Ġhu"]


def test_counts_pre_tokens_as_bytes():
    assert count_pre_tokens(["né don't  né", "né"]) == {"nÃ©": 2, "Ġdon": 1, "'t": 1, "Ġ": 1, "ĠnÃ©": 1}
    assert count_pre_tokens(["né né"], add_prefix_space=True) == {"ĠnÃ©": 2}
    assert count_pre_tokens(["", "a" * 1001, "é" * 500]) == {"Ã©" * 500: 1}
