"""Which characters and which word each token of a text belongs to."""

import numpy as np
import pytest

from minibert.text import AlbertTokenizer, BertTokenizer, RobertaTokenizer, XLNetTokenizer
from minibert.text.words import pieces_of, pieces_of_words, special_ids

CORPUS = ["a lower tower . a low town . the owl", "ann sings a fine song in rome ."] * 3
WORDPIECE = BertTokenizer("[PAD] [UNK] [CLS] [SEP] [MASK] low ##er a town , . the".split())
TOKENIZERS = {
    "bert": WORDPIECE,
    "roberta": RobertaTokenizer.train(CORPUS, vocab_size=285),
    "roberta with a space": RobertaTokenizer.train(CORPUS, vocab_size=285, add_prefix_space=True),
    "albert": AlbertTokenizer.train(CORPUS, 50),
    "xlnet": XLNetTokenizer.train(CORPUS, 50),
}


def words_of(pieces, text):
    """The characters of each word."""
    return [
        text[pieces.spans[own, 0].min() : pieces.spans[own, 1].max()]
        for own in (pieces.words == number for number in range(pieces.words.max() + 1))
    ]


@pytest.mark.parametrize("name", TOKENIZERS)
def test_words_are_whole_and_masks_stand_alone(name):
    tokenizer = TOKENIZERS[name]
    mask = tokenizer.special_tokens["mask_token"]
    text = f"lower {mask} a  town the {mask}"
    pieces = pieces_of(tokenizer, text)
    assert pieces.ids == tokenizer.token_ids(text)
    words = [word.strip() for word in words_of(pieces, text)]  # XLNet's <mask> takes the space before it
    assert [word for word in words if word] == ["lower", mask, "a", "town", "the", mask]
    assert np.diff(pieces.words).min() >= 0
    assert {tokenizer.tokens[i] for i in special_ids(tokenizer)} >= {mask}
    part = pieces.part(1, 3)
    assert part.ids == pieces.ids[1:3] and part.words.tolist() == pieces.words[1:3].tolist()
    for empty in ("", "  "):
        assert len(pieces_of(tokenizer, empty).words) <= 2


@pytest.mark.parametrize("name", ["albert", "xlnet"])
def test_an_unknown_letter_belongs_to_its_word(name):
    """As in ▁, <unk>, "ow": the ▁ stands for the space, and for no word of its own."""
    tokenizer, text = TOKENIZERS[name], "a ☃ow low☃er"
    pieces = pieces_of(tokenizer, text)
    assert tokenizer.unk_id in pieces.ids
    assert words_of(pieces, text) == ["a", "☃ow", "low☃er"]


def test_an_unknown_word_is_one():
    pieces = pieces_of(WORDPIECE, "a ☃, low")
    assert pieces.ids[1] == WORDPIECE.unk_id and pieces.words.tolist() == [0, 1, 2, 3]
    assert WORDPIECE.unk_id not in special_ids(WORDPIECE)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_words_between_spaces(name):
    tokenizer, text = TOKENIZERS[name], " lower,town  a. "
    pieces = pieces_of_words(tokenizer, text)
    expected = [tokenizer.word_token_ids(word) for word in text.split()]
    assert pieces.ids == [i for own in expected for i in own]
    assert pieces.words.tolist() == [0] * len(expected[0]) + [1] * len(expected[1])
    assert words_of(pieces, text) == ["lower,town", "a."]
    shown = "".join(text[start:stop] for start, stop in pieces.spans)
    if name.startswith(("bert", "roberta")):  # a ▁ of its own has the span of the letter after it
        assert shown == "lower,towna."
    lost = pieces_of_words(tokenizer, "a \u200b\x00 town")
    assert lost.words.max() == 2
