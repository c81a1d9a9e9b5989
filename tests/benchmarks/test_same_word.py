"""How heads that find the same word are counted, on a model whose heads can be told what to do."""

import numpy as np
import pytest

from benchmarks.same_word import described, same_word
from minibert.bert import BertConfig, BertModel
from minibert.errors import UserError
from minibert.text import BertTokenizer

TOKENIZER = BertTokenizer("[PAD] [UNK] [CLS] [SEP] [MASK] house tree river stone a .".split())


def model():
    """One layer of two heads. Head 0 looks for the same word, wherever it is; head 1 at all alike."""
    sizes = {"vocab_size": 11, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    made = BertModel(BertConfig(**sizes, intermediate_size=8, max_position_embeddings=20), dtype="float64")
    words = np.zeros((11, 32))
    words[np.arange(11), np.arange(11)] = 1.0
    made.embeddings.word_embeddings.weight.value[...] = words
    for table in (made.embeddings.position_embeddings, made.embeddings.token_type_embeddings):
        table.weight.value[...] = 0.0
    attention = made.encoder.layer[0].attention.self
    for linear, scale in ((attention.query, 30.0), (attention.key, 1.0)):
        linear.weight.value[...] = scale * np.eye(32) * (np.arange(32) < 16)
        linear.bias.value[...] = 0.0
    made.eval()
    return made


def test_the_same_word_is_found():
    found = same_word(model(), TOKENIZER, [("a house .", "a house ."), ("river stone", "tree river .")])
    assert found.count == 2  # "house" and "river": "a" and "." are no words of four letters
    np.testing.assert_allclose(found.other[0, 0], 0.5, atol=1e-3)
    np.testing.assert_allclose(found.own[0, 0], 0.5, atol=1e-3)
    np.testing.assert_allclose([found.other[0, 1], found.own[0, 1]], found.alike)
    assert found.alike == pytest.approx((1 / 9 + 1 / 8) / 2)
    assert described(found).startswith("  layer 0: 0.50 (own 0.50)  0.12")


def test_words_that_stand_more_often_or_in_one_text_do_not_count():
    with pytest.raises(UserError, match="no word stands once"):
        same_word(model(), TOKENIZER, [("house house", "house"), ("house", "tree tree"), ("a", "a")])
