import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibert.data.tasks import (
    Place,
    TaggedSentence,
    TextExample,
    TextsCut,
    pair_features,
    single_features,
    tagged_features,
    text_features,
)
from minibert.errors import UserError
from minibert.text import BertTokenizer

VOCAB = "[PAD] [UNK] [CLS] [SEP] [MASK] a b c ##a ##b ##c".split()
PLACE = Place("a.tsv", 1)


@pytest.fixture
def tokenizer():
    return BertTokenizer(VOCAB)


def tokens(feature):
    return " ".join(VOCAB[i] for i in feature.inputs["input_ids"])


def pair(text, text_pair=None, label=None):
    return TextExample(text, text_pair, label, PLACE)


# ---------------------------------------------------------------- texts and pairs


def test_texts_and_pairs_with_their_labels(tokenizer):
    examples = [pair("ab c", label="yes"), pair("a", "b a", label="no")]
    first, second = text_features(examples, tokenizer, 16, {"no": 0, "yes": 1})
    assert tokens(first) == "[CLS] a ##b c [SEP]"
    assert tokens(second) == "[CLS] a [SEP] b a [SEP]"
    assert second.inputs["token_type_ids"].tolist() == [0, 0, 0, 1, 1, 1]
    assert (first.inputs["labels"], second.inputs["labels"]) == (1, 0)
    assert (first.example, second.example) == (0, 1)
    assert len(first) == 5


def test_scores_stay_as_they_are_and_labels_need_not_be(tokenizer):
    assert text_features([pair("a", "b", 2.5)], tokenizer, 8)[0].inputs["labels"] == 2.5
    assert "labels" not in text_features([pair("a")], tokenizer, 8, {"x": 0})[0].inputs
    assert "labels" not in text_features([pair("a", label="x")], tokenizer, 8)[0].inputs


def test_texts_of_a_pair_each_for_itself(tokenizer):
    with pytest.warns(TextsCut, match=r"^1 of 4 texts have more than 5 tokens \(max_length\); their ends"):
        scored, unknown = pair_features([pair("ab", "c c c c", 2.5), pair("a", "b")], tokenizer, 5)
    assert tokens(scored.inputs["first"]) == "[CLS] a ##b [SEP]"
    assert tokens(scored.inputs["second"]) == "[CLS] c c c [SEP]"
    assert scored.inputs["labels"] == 2.5 and "labels" not in unknown.inputs
    assert (len(scored), len(unknown), unknown.example) == (9, 6, 1)


def test_a_text_alone_is_no_pair(tokenizer):
    with pytest.raises(UserError, match=r"^a\.tsv: line 1: expected a pair of texts, found one$"):
        pair_features([pair("a")], tokenizer, 5)


@pytest.mark.parametrize(
    ("texts", "kept"),
    [
        (("a a a a a a", "b"), "[CLS] a a a a [SEP] b [SEP]"),
        (("a", "b b b b b b"), "[CLS] a [SEP] b b b b [SEP]"),
        (("a a a a", "b b b b"), "[CLS] a a [SEP] b b b [SEP]"),
        (("a a a a a a a",), "[CLS] a a a a a a [SEP]"),
    ],
)
def test_the_longer_text_is_cut_first(tokenizer, texts, kept):
    with pytest.warns(TextsCut, match=r"^1 of 1 texts have more than 8 tokens \(max_length\); their ends"):
        assert tokens(text_features([pair(*texts)], tokenizer, 8)[0]) == kept


def test_texts_that_just_fit_are_not_called_cut(tokenizer, recwarn):
    single_features(["a b c", "a b"], tokenizer, 5)
    text_features([pair("a", "b")], tokenizer, 5)
    assert not recwarn.list
    with pytest.warns(TextsCut, match=r"^2 of 3 texts have more than 5 tokens"):
        single_features(["a b c", "a b c a", "a b c a b c"], tokenizer, 5)


# ---------------------------------------------------------------- tagged words

TAGS = {"O": 0, "B-x": 1, "I-x": 2}


def sentence(words, tags=None):
    return TaggedSentence(words.split(" "), tags and tags.split(), PLACE)


def test_labels_stand_at_first_pieces(tokenizer):
    (feature,) = tagged_features([sentence("ab c, a", "B-x I-x O")], tokenizer, 16, TAGS)
    assert tokens(feature) == "[CLS] a ##b c [UNK] a [SEP]"
    assert feature.inputs["labels"].tolist() == [-100, 1, -100, 2, -100, 0, -100]
    assert feature.positions.tolist() == [1, 3, 5]
    assert feature.inputs["token_type_ids"].tolist() == [0] * 7


def test_a_word_without_pieces_is_unknown(tokenizer):
    (feature,) = tagged_features([sentence("a \u200b b", "O B-x O")], tokenizer, 16, TAGS)
    assert tokens(feature) == "[CLS] a [UNK] b [SEP]"
    assert feature.inputs["labels"].tolist() == [-100, 0, 1, 0, -100]


def test_long_sentences_are_cut_between_words(tokenizer):
    features = tagged_features([sentence("a"), sentence("abc ab c abcabc b")], tokenizer, 7)
    assert [tokens(f) for f in features] == [
        "[CLS] a [SEP]",
        "[CLS] a ##b ##c a ##b [SEP]",
        "[CLS] c [SEP]",
        "[CLS] a ##b ##c ##a ##b [SEP]",  # a word of six pieces, in room for five
        "[CLS] b [SEP]",
    ]
    assert [(f.example, f.first_word) for f in features] == [(0, 0), (1, 0), (1, 2), (1, 3), (1, 4)]
    assert "labels" not in features[0].inputs


@given(
    words=st.lists(st.text("abc", min_size=1, max_size=9), min_size=1, max_size=30),
    max_length=st.integers(3, 20),
)
def test_every_word_is_in_exactly_one_row_and_in_order(words, max_length):
    tagged = TaggedSentence(words, ["O"] * len(words), PLACE)
    features = tagged_features([tagged], BertTokenizer(VOCAB), max_length, TAGS)
    seen = [feature.first_word + i for feature in features for i in range(len(feature.positions))]
    assert seen == list(range(len(words)))
    for feature in features:
        assert len(feature) <= max_length
        assert np.flatnonzero(feature.inputs["labels"] != -100).tolist() == feature.positions.tolist()
        firsts = [VOCAB[i] for i in feature.inputs["input_ids"][feature.positions]]
        assert firsts == [word[0] for word in words[feature.first_word :][: len(firsts)]]


def test_no_room_for_words(tokenizer):
    with pytest.raises(UserError, match="max_length 2 leaves no room"):
        tagged_features([sentence("a")], tokenizer, 2)
