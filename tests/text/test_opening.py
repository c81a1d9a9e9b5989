"""Which tokenizer a folder holds, and what all tokenizers have in common."""

import copy
import json

import pytest

from minibert.errors import UserError
from minibert.text import (
    AlbertTokenizer,
    BertTokenizer,
    RobertaTokenizer,
    XLNetTokenizer,
    learn_tokenizer,
    open_tokenizer,
)

TEXTS = ["a fine film", "another fine film", "a film"] * 2
TOKENIZERS = [
    BertTokenizer.train(TEXTS, 60),
    RobertaTokenizer.train(TEXTS, 270),
    AlbertTokenizer.train(TEXTS, 40),
    XLNetTokenizer.train(TEXTS, 40),
]


@pytest.fixture(params=TOKENIZERS, ids=lambda tokenizer: type(tokenizer).__name__)
def saved(request, tmp_path):
    request.param.save_pretrained(tmp_path)
    return request.param, tmp_path


@pytest.mark.parametrize("kind", ["bert", "albert", "xlnet"])
def test_the_alphabet_is_bounded(kind):
    """The letters of "film" are in the texts more often than those of "other"."""
    few, all_of_them = (learn_tokenizer(kind, TEXTS, 60, alphabet_limit=limit) for limit in (8, 100))
    assert few.unk_id not in few.token_ids("a film") and few.unk_id in few.token_ids("another")
    assert all_of_them.unk_id not in all_of_them.token_ids("another film")


@pytest.mark.parametrize("kind", ["bert", "albert", "xlnet"])
def test_capitals_are_kept_or_not_as_asked(kind):
    for lowercase in (True, False):
        tokenizer = learn_tokenizer(kind, ["A FILM", "a film"] * 4, 60, lowercase=lowercase)
        assert (tokenizer.token_ids("A FILM") == tokenizer.token_ids("a film")) == lowercase


def test_bytes_have_no_lower_case():
    assert isinstance(learn_tokenizer("roberta", TEXTS, 270, lowercase=False), RobertaTokenizer)
    with pytest.raises(UserError, match="models of type 'roberta' have a tokenizer that keeps capitals"):
        learn_tokenizer("roberta", TEXTS, 270, lowercase=True)


def test_the_class_that_the_folder_names(saved):
    tokenizer, folder = saved
    again = open_tokenizer(folder)
    assert type(again) is type(tokenizer) and again.token_ids("a fine film") == tokenizer.token_ids(
        "a fine film"
    )


def test_the_type_of_the_model_where_the_folder_names_none(saved):
    tokenizer, folder = saved
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(
        json.dumps(config | {"tokenizer_class": "TokenizersBackend"})
    )
    kind = type(tokenizer).__name__.removesuffix("Tokenizer").lower()
    (folder / "config.json").write_text(json.dumps({"model_type": kind}))
    assert type(open_tokenizer(folder)) is type(tokenizer)


def test_the_files_where_nothing_else_says(tmp_path):
    RobertaTokenizer.train(TEXTS, 270).save_pretrained(tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()
    assert type(open_tokenizer(tmp_path)) is RobertaTokenizer
    BertTokenizer.train(TEXTS, 60).save_pretrained(tmp_path / "bert")
    assert type(open_tokenizer(tmp_path / "bert" / "vocab.txt")) is BertTokenizer


@pytest.mark.parametrize(
    ("file", "values", "message"),
    [
        (
            "tokenizer_config.json",
            {"tokenizer_class": "GPT2TokenizerFast"},
            "tokenizer_class is 'GPT2TokenizerFast'",
        ),
        ("config.json", {"model_type": "gpt2"}, "model_type is 'gpt2'; expected one of bert"),
    ],
)
def test_an_unknown_one_is_refused(file, values, message, tmp_path):
    (tmp_path / file).write_text(json.dumps(values))
    with pytest.raises(UserError, match=message):
        open_tokenizer(tmp_path)


@pytest.mark.parametrize("tokenizer", TOKENIZERS, ids=lambda tokenizer: type(tokenizer).__name__)
@pytest.mark.parametrize("text", ["low \ud83d", "\udc00er"])
def test_surrogates_are_refused_every_time(tokenizer, text):
    for _ in range(2):
        with pytest.raises(UserError, match="surrogate"):
            tokenizer.token_ids(text)


@pytest.mark.parametrize("tokenizer", TOKENIZERS, ids=lambda tokenizer: type(tokenizer).__name__)
def test_what_is_no_text_is_refused(tokenizer):
    with pytest.raises(UserError, match="must be a str, not int"):
        tokenizer.token_ids(3)
    with pytest.raises(UserError, match="must be a str, not int"):
        tokenizer.token_ids_batch([3])
    with pytest.raises(UserError, match="a list of texts"):
        tokenizer.token_ids_batch("low")
    with pytest.raises(UserError, match="a list of texts"):
        type(tokenizer).train("low")


def test_what_decides_ids_besides_tokens_and_options():
    bert, roberta, albert, _ = TOKENIZERS
    assert bert.rules() == []
    assert BertTokenizer(bert.tokens, max_characters_per_word=20).rules() == [20]
    fewer = RobertaTokenizer(roberta.tokens, roberta.merges[:-1])
    assert fewer.rules() != roberta.rules()
    pieces = [(token, score / 2) for token, score in zip(albert.tokens, albert.scores, strict=True)]
    assert AlbertTokenizer(pieces).rules() != albert.rules()
    assert json.loads(json.dumps([roberta.rules(), albert.rules()]))


def test_where_the_special_tokens_are():
    """The counts, and the place of [CLS], are those of the rows that are made."""
    for tokenizer in TOKENIZERS:
        texts = tokenizer.token_ids("a film"), tokenizer.token_ids("another fine film")
        for count in (1, 2):
            row, _ = tokenizer.with_special_tokens(*texts[:count])
            around, rest = tokenizer.special_counts(count), list(row)
            for special, text in zip(around, (*texts[:count], []), strict=False):
                del rest[:special]
                assert rest[: len(text)] == text
                del rest[: len(text)]
            assert not rest and row[tokenizer.cls_place(len(row))] == tokenizer.cls_id
    assert [tokenizer.special_counts(2) for tokenizer in TOKENIZERS] == [
        [1, 1, 1],
        [1, 2, 1],
        [1, 1, 1],
        [0, 1, 2],
    ]


def test_tokens_as_people_read_them():
    for tokenizer in TOKENIZERS:
        texts = [tokenizer.token_text(i).strip() for i in tokenizer.token_ids("a film")]
        assert "".join(text.removeprefix("##") for text in texts) == "afilm"


@pytest.mark.parametrize("side", ["left", "right"])
def test_the_side_of_the_padding_is_saved(saved, side):
    tokenizer, folder = copy.copy(saved[0]), saved[1]
    tokenizer.padding_side = side
    tokenizer.save_pretrained(folder)
    assert json.loads((folder / "tokenizer_config.json").read_text())["padding_side"] == side
    again = open_tokenizer(folder)
    assert again.padding_side == side and again(TEXTS, padding=True) == tokenizer(TEXTS, padding=True)


@pytest.mark.parametrize(
    ("key", "value"), [("truncation_side", "left"), ("padding_side", "top"), ("padding_side", [])]
)
def test_sides_that_are_not_supported(saved, key, value):
    path = saved[1] / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    with pytest.raises(UserError, match=rf"tokenizer_config\.json: {key} is .*; expected .*right"):
        open_tokenizer(saved[1])


def test_transformers_is_told_to_give_token_types(saved):
    """Its classes of ALBERT and XLNet do not by themselves. BERT's does; RoBERTa has only one type."""
    tokenizer, folder = saved
    config = json.loads((folder / "tokenizer_config.json").read_text())
    told = ["input_ids", "token_type_ids", "attention_mask"]
    assert config.get("model_input_names") == (
        told if isinstance(tokenizer, AlbertTokenizer | XLNetTokenizer) else None
    )
