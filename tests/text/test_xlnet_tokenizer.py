import json

import pytest
from spiece import CONTROL, UNKNOWN, spiece

from minibert.errors import UserError
from minibert.text import XLNetTokenizer
from minibert.text.unigram_files import AddedToken

SPECIAL = ["<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>"]
PIECES = [*((token, 0.0) for token in SPECIAL), ("▁", -3.0), ("▁Low", -4.0), ("▁low", -4.5), ("er", -5.0)]


@pytest.fixture
def tokenizer() -> XLNetTokenizer:
    return XLNetTokenizer(PIECES)


def test_tokens(tokenizer):
    assert tokenizer.tokenize("Lower  löw<eop>er x") == [
        "▁Low",
        "er",
        "▁low",
        "<eop>",
        "▁",
        "er",
        "▁",
        "<unk>",
    ]
    assert XLNetTokenizer(PIECES, lowercase=True).tokenize("Lower") == ["▁low", "er"]


def test_inputs_of_a_model_are_padded_on_the_left(tokenizer):
    assert tokenizer(["Low", "Lower low"], padding=True) == {
        "input_ids": [[5, 5, 10, 4, 3], [10, 12, 11, 4, 3]],
        "token_type_ids": [[0, 0, 0, 0, 2], [0, 0, 0, 0, 2]],
        "attention_mask": [[0, 0, 1, 1, 1], [1] * 5],
    }
    assert tokenizer("Low", "low", padding="max_length", max_length=6) == {
        "input_ids": [5, 10, 4, 11, 4, 3],
        "token_type_ids": [0, 0, 0, 1, 1, 2],
        "attention_mask": [0, 1, 1, 1, 1, 1],
    }
    assert tokenizer("Lower low", max_length=3)["input_ids"] == [10, 4, 3]
    with pytest.raises(UserError, match="at least 2"):
        tokenizer("Low", max_length=1)


def test_the_mask_takes_the_space_before_it(tokenizer):
    ids, spans = tokenizer.token_ids_with_spans("low  <mask> er<mask>")
    assert ids == [11, 6, 9, 12, 6]
    assert spans == [(0, 3), (3, 11), (12, 13), (12, 14), (14, 20)]


@pytest.mark.parametrize("space", ["\u00a0", "\u3000"])
def test_a_long_run_of_spaces_is_read_once(space):
    """And not again from each of its characters: that took hours for a million, now a second."""
    mask = AddedToken("<mask>", strips_left=True)
    tokenizer = XLNetTokenizer(PIECES, added_tokens=[mask])
    text = f"low{space * 1_000_000}<mask>{space * 1_000_000}low"
    assert tokenizer.tokenize(text) == ["▁low", "<mask>", "▁low"]


def test_decode(tokenizer):
    ids = tokenizer("Lower low")["input_ids"]
    assert tokenizer.decode(ids) == "Lower low<sep><cls>"
    assert tokenizer.decode(ids, skip_special_tokens=True) == "Lower low"


def test_saved_and_read_again_is_the_same(tmp_path, tokenizer):
    tokenizer.save_pretrained(tmp_path)
    read = XLNetTokenizer.from_pretrained(tmp_path)
    assert (read.tokens, read.scores, read.added_tokens) == (
        tokenizer.tokens,
        tokenizer.scores,
        tokenizer.added_tokens,
    )
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    assert content["post_processor"]["single"] == [
        {"Sequence": {"id": "A", "type_id": 0}},
        {"SpecialToken": {"id": "<sep>", "type_id": 0}},
        {"SpecialToken": {"id": "<cls>", "type_id": 2}},
    ]


def test_reads_a_sentencepiece_model(tmp_path):
    kinds = {"<unk>": UNKNOWN} | dict.fromkeys(SPECIAL[1:], CONTROL)
    (tmp_path / "spiece.model").write_bytes(spiece([(p, s, kinds.get(p, 1)) for p, s in PIECES]))
    tokenizer = XLNetTokenizer.from_pretrained(tmp_path)
    assert tokenizer.tokens == [piece for piece, _ in PIECES]
    assert tokenizer.added_tokens == tuple(
        map(AddedToken, SPECIAL)
    )  # transformers' mask takes no space either


def test_train():
    tokenizer = XLNetTokenizer.train(["Low lower lowest"] * 5, 30)
    assert tokenizer.tokens[:9] == SPECIAL
    assert tokenizer.decode(tokenizer.token_ids("Lower Low")) == "Lower Low"


def test_other_vocabularies_are_refused():
    with pytest.raises(UserError, match="lacks <s> </s> <sep> <pad> <cls> <mask>"):
        XLNetTokenizer([("<unk>", 0.0)])
    with pytest.raises(UserError, match="not supported: <eod> <eop>"):
        XLNetTokenizer(PIECES[:7])
