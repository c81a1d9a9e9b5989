import json
import multiprocessing
import pickle
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibert.errors import UserError
from minibert.text import AlbertTokenizer, BertTokenizer, RobertaTokenizer
from minibert.text.normalise import ASCII_PUNCTUATION, CHUNK

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
VOCAB = [
    *SPECIAL,
    "want",
    "##want",
    "##ed",
    "wa",
    "un",
    "runn",
    "##ing",
    ",",
    "low",
    "##er",
    "lowest",
    "[",
    "]",
    "mask",
]


@pytest.fixture
def tokenizer() -> BertTokenizer:
    return BertTokenizer(VOCAB)


def write_vocab(folder, tokens, **config):
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in tokens), encoding="utf-8")
    if config:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


# ---------------------------------------------------------------- text to ids


def test_tokens_and_ids(tokenizer):
    assert tokenizer.tokenize("UNwantéd,running") == ["un", "##want", "##ed", ",", "runn", "##ing"]
    assert tokenizer.token_ids("UNwantéd,running") == [9, 6, 7, 12, 10, 11]
    assert tokenizer.tokenize("lowest xyz lower") == ["lowest", "[UNK]", "low", "##er"]
    assert tokenizer.tokenize("") == []


def test_attributes(tokenizer):
    assert len(tokenizer) == tokenizer.vocab_size == len(VOCAB)
    assert tokenizer.tokens == VOCAB
    assert tokenizer.vocab["runn"] == 10
    ids = [tokenizer.pad_id, tokenizer.unk_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id]
    assert ids == [0, 1, 2, 3, 4]
    assert tokenizer.continues_word.dtype == bool
    assert np.flatnonzero(tokenizer.continues_word).tolist() == [6, 7, 11, 14]


def test_a_model_must_have_a_row_for_each_token(tokenizer, recwarn):
    for rows in (len(VOCAB), len(VOCAB) + 128):
        tokenizer.check_size(rows)
    assert not recwarn
    with pytest.raises(
        UserError, match=r"^the vocabulary has 19 tokens but the model knows only 18; use the"
    ):
        tokenizer.check_size(len(VOCAB) - 1)
    with pytest.warns(
        UserWarning, match="has only 19 tokens but the model knows 148; is it the vocabulary that"
    ):
        tokenizer.check_size(len(VOCAB) + 129)


def test_special_tokens_in_the_text_are_protected(tokenizer):
    assert tokenizer.tokenize("low[MASK]er [SEP], [mask]") == [
        "low",
        "[MASK]",
        "[UNK]",
        "[SEP]",
        ",",
        "[",
        "mask",
        "]",
    ]
    assert tokenizer.token_ids("[MASK\x0b]") == tokenizer.token_ids(
        "[mask]"
    )  # not written out, so not special
    open_tokenizer = BertTokenizer(VOCAB, protect_special_tokens=False)
    assert open_tokenizer.tokenize("[MASK]") == ["[", "mask", "]"]


def test_original_behaviour_is_an_option():
    tokenizer = BertTokenizer([*SPECIAL, "a", "##a", "ς", "σ"], **BertTokenizer.ORIGINAL)
    assert tokenizer.token_ids("a" * 200) == [5] + [6] * 199
    assert tokenizer.tokenize("[MASK]") == ["[UNK]"] * 3
    assert BertTokenizer(tokenizer.tokens).token_ids("a" * 200) == [1]


WAYS = [
    {},
    {"lowercase": False},
    {"strip_accents": False},
    {"protect_special_tokens": False},
    {"max_characters_per_word": 4},
    BertTokenizer.ORIGINAL,
]
# Letters with and without tokens, capitals, marks, a sigma that changes at the end of a word, characters that
# are dropped or that split, whitespace of all kinds, punctuation in ASCII or not, parts of special tokens.
PARTS = "want ED low er un x 7 é e\u0301 =\u0338 Σ ΑΣ İ ß 東 각 – … ¿ [MASK] [mask] [SEP ##".split()
PARTS += [*"\xad\x0b\x1c\x85\x00\ufffd\ue000", *" \t\n\xa0\u2028\u3000", *sorted(ASCII_PUNCTUATION)]
LISTED = st.sampled_from(PARTS) | st.characters(exclude_categories=["Cs"])


@pytest.mark.parametrize("options", WAYS, ids=str)
@given(texts=st.lists(st.lists(LISTED).map("".join)))
def test_the_short_way_gives_what_the_plain_way_gives(options, texts):
    """Plain: whatever is between spaces; in it special tokens, then words, then their pieces."""
    tokenizer = BertTokenizer([*VOCAB, "σ", "##σ", "##ς", "ς", "α", "é", "=", "'", "東"], **options)

    def plain(chunk):
        end = 0
        for match in tokenizer._special.finditer(chunk):
            yield from words(chunk[end : match.start()])
            yield tokenizer.vocab[match[0]]
            end = match.end()
        yield from words(chunk[end:])

    def words(text):
        for word in tokenizer._normaliser.words(text):
            yield from tokenizer._wordpiece.ids(word)

    expected = [[i for chunk in CHUNK.findall(text) for i in plain(chunk)] for text in texts]
    assert tokenizer.token_ids_batch(texts) == expected


def test_a_final_sigma_is_that_of_a_whole_word_only_in_the_original():
    """Which asks what comes after an apostrophe."""
    vocab = [*SPECIAL, "α", "##σ", "##ς", "'"]
    assert BertTokenizer(vocab).tokenize("ΑΣ'Α") == ["α", "##σ", "'", "α"]
    assert BertTokenizer(vocab, original_characters=True).tokenize("ΑΣ'Α") == ["α", "##σ", "'", "α"]
    assert BertTokenizer(vocab, original_characters=True).tokenize("ΑΣ'") == ["α", "##ς", "'"]


def test_batch_equals_one_by_one_even_when_the_memory_overflows(monkeypatch):
    monkeypatch.setattr(BertTokenizer, "CACHED_CHARACTERS", 24)
    texts = ["lower running, lowest", "un want\twanted wa\u00a0low", "", "low running low [MASK]"]
    fresh = [BertTokenizer(VOCAB).token_ids(text) for text in texts]
    small = BertTokenizer(VOCAB)
    assert small.token_ids_batch(texts * 3) == fresh * 3
    assert len(small._chunk_ids) <= 3


def test_memory_is_bounded_in_text_without_spaces(monkeypatch):
    monkeypatch.setattr(BertTokenizer, "CACHED_CHARACTERS", 1000)
    tokenizer = BertTokenizer(VOCAB)
    for number in range(50):
        tokenizer.token_ids_with_spans("low," * 100 + str(number))
        for cache in (tokenizer._chunk_ids, tokenizer._chunk_spans):
            assert sum(map(len, cache)) <= 1000
    tokenizer.token_ids_with_spans("low," * 1000)
    assert "low," * 1000 not in tokenizer._chunk_ids.keys() | tokenizer._chunk_spans.keys()


def test_pickles_small_and_works_in_a_spawned_process(tokenizer):
    tokenizer.token_ids("running " * 3)
    copy = pickle.loads(pickle.dumps(tokenizer))
    assert copy.token_ids("lower, running") == tokenizer.token_ids("lower, running")
    if sys.platform == "linux":
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            assert pool.apply(tokenizer.token_ids, ("lower, running",)) == [13, 14, 12, 10, 11]


# ---------------------------------------------------------------- model inputs


def test_one_text(tokenizer):
    assert tokenizer("lower") == {
        "input_ids": [2, 13, 14, 3],
        "token_type_ids": [0, 0, 0, 0],
        "attention_mask": [1, 1, 1, 1],
    }


def test_pairs_and_padding(tokenizer):
    encoded = tokenizer(["lower", "want"], ["un", "lower running"], padding=True)
    assert encoded == {
        "input_ids": [[2, 13, 14, 3, 9, 3, 0, 0], [2, 5, 3, 13, 14, 10, 11, 3]],
        "token_type_ids": [[0, 0, 0, 0, 1, 1, 0, 0], [0, 0, 0, 1, 1, 1, 1, 1]],
        "attention_mask": [[1, 1, 1, 1, 1, 1, 0, 0], [1] * 8],
    }
    assert tokenizer("want", max_length=5, padding="max_length")["input_ids"] == [2, 5, 3, 0, 0]
    assert tokenizer(["want", "lower"])["input_ids"] == [[2, 5, 3], [2, 13, 14, 3]]
    assert tokenizer([])["input_ids"] == []
    assert tokenizer("want", "")["input_ids"] == [2, 5, 3]  # as transformers does for one text, but
    assert tokenizer(["want"], [""])["input_ids"] == [[2, 5, 3, 3]]  # not for several


@pytest.mark.parametrize(
    ("lengths", "max_length", "kept"),
    [
        ((5, 2), 10, (5, 2)),
        ((5, 2), 8, (3, 2)),  # the longer one gives
        ((2, 5), 7, (2, 2)),
        ((5, 5), 8, (2, 3)),  # of equal ones the first gives first
        ((6, 5), 8, (3, 2)),
        ((1, 9), 8, (1, 4)),
        ((4, 4), 3, (0, 0)),
    ],
)
def test_truncation_of_the_longest(tokenizer, lengths, max_length, kept):
    first, second = ("want " * n for n in lengths)
    kinds = tokenizer(first, second, max_length=max_length, truncation=True)["token_type_ids"]
    assert (kinds.count(0) - 2, kinds.count(1) - 1) == kept


def test_truncation_of_one_side(tokenizer):
    kinds = tokenizer("want " * 5, "low " * 4, max_length=9, truncation="only_first")["token_type_ids"]
    assert (kinds.count(0), kinds.count(1)) == (2 + 2, 4 + 1)
    kinds = tokenizer("want " * 5, "low " * 4, max_length=9, truncation="only_second")["token_type_ids"]
    assert (kinds.count(0), kinds.count(1)) == (5 + 2, 1 + 1)
    with pytest.raises(UserError, match="only_second"):
        tokenizer("want " * 5, "low", max_length=6, truncation="only_second")


def test_max_length_alone_truncates_unless_padding(tokenizer):
    assert len(tokenizer("want " * 9, max_length=5)["input_ids"]) == 5
    assert len(tokenizer("want " * 9, max_length=5, truncation=False)["input_ids"]) == 11
    assert len(tokenizer("want " * 9, max_length=5, padding=True)["input_ids"]) == 11
    assert len(BertTokenizer(VOCAB, model_max_length=6)("want " * 9, truncation=True)["input_ids"]) == 6


@pytest.mark.parametrize(
    ("texts", "options", "message"),
    [
        (("low", ["low"]), {}, "one text"),
        ((["low"], "low"), {}, "the same number of texts"),
        ((["low"], ["low", "low"]), {}, "got 1 and 2"),
        (("low",), {"padding": "right"}, "padding must be"),
        (("low",), {"truncation": "last"}, "truncation must be"),
        (("low",), {"padding": "max_length"}, "needs a max_length"),
        (("low", "low"), {"max_length": 2}, "at least 3"),
    ],
)
def test_bad_calls(tokenizer, texts, options, message):
    with pytest.raises(UserError, match=message):
        tokenizer(*texts, **options)


# ---------------------------------------------------------------- where tokens stand


def spelled(tokenizer, text):
    """The pieces of the text that its tokens stand for."""
    ids, spans = tokenizer.token_ids_with_spans(text)
    assert ids == tokenizer.token_ids(text)
    return [text[start:stop] for start, stop in spans]


def test_spans_are_those_of_the_text_as_it_was_written(tokenizer):
    assert spelled(tokenizer, "  UNwantéd,\trunning") == ["UN", "want", "éd", ",", "runn", "ing"]
    assert spelled(tokenizer, "low[MASK]er\n[mask]") == ["low", "[MASK]", "er", "[", "mask", "]"]
    assert spelled(tokenizer, "xyz lower") == ["xyz", "low", "er"]  # [UNK] is the whole word
    assert tokenizer.token_ids_with_spans("") == ([], [])


def test_spans_where_characters_come_and_go(tokenizer):
    """Dropped inside a token, at its end, before it; one that becomes two; Chinese, each a word."""
    assert spelled(tokenizer, "lo\u00adw\u0301 \u200blow") == ["lo\u00adw", "low"]
    assert spelled(BertTokenizer([*SPECIAL, "i", "##i", "##\u0307"], strip_accents=False), "\u0130i") == [
        "\u0130",
        "\u0130",
        "i",
    ]
    assert spelled(tokenizer, "low東京low") == ["low", "東", "京", "low"]


@pytest.mark.parametrize("options", [{}, dict(lowercase=False), BertTokenizer.ORIGINAL])
@given(text=st.text())
def test_spans_go_through_the_text_in_order(options, text):
    ids, spans = BertTokenizer(VOCAB, **options).token_ids_with_spans(text)
    assert len(spans) == len(ids)
    assert all(0 <= start < stop <= len(text) for start, stop in spans)
    assert spans == sorted(spans)


# ---------------------------------------------------------------- ids to text


def test_decode(tokenizer):
    ids = tokenizer("Unwanted, lower [MASK]")["input_ids"]
    assert tokenizer.decode(ids) == "[CLS] unwanted, lower [MASK] [SEP]"
    assert tokenizer.decode(ids, skip_special_tokens=True) == "unwanted, lower"
    assert tokenizer.decode(np.array([14, 13])) == "##er low"
    assert tokenizer.decode([]) == ""


def test_decoded_text_has_the_same_ids(tokenizer):
    ids = tokenizer.token_ids("unwanted,lower running [MASK] , [SEP] lowest")
    assert tokenizer.token_ids(tokenizer.decode(ids)) == ids


@pytest.mark.parametrize("i", [-1, len(VOCAB)])
def test_decode_refuses_ids_outside_the_vocabulary(tokenizer, i):
    with pytest.raises(UserError, match=f"token id {i} is outside"):
        tokenizer.decode([2, i])


@pytest.mark.parametrize("ids", [[[2, 3]], np.array([[2, 3], [4, 5]]), 2, [2.5], "2"])
def test_decode_refuses_what_are_not_the_ids_of_one_text(tokenizer, ids):
    with pytest.raises(UserError, match=r"expected the token ids of one text, got .*; decode several texts"):
        tokenizer.decode(ids)


# ---------------------------------------------------------------- learning


def test_train():
    texts = ["low lower lowest", "newest newer new", "slow slowest [MASK]"] * 5
    tokenizer = BertTokenizer.train(iter(texts), 60)
    assert tokenizer.tokens[:5] == SPECIAL
    assert tokenizer.vocab_size <= 60
    assert tokenizer.decode(tokenizer.token_ids("Slowest lower")) == "slowest lower"
    assert tokenizer.tokenize("newest") == ["newest"]
    assert BertTokenizer.train(texts, 60).tokens == tokenizer.tokens


def test_train_cased_keeps_capitals():
    tokenizer = BertTokenizer.train(["Él Él él"] * 3, 30, lowercase=False)
    assert {"Él", "él"} <= set(tokenizer.tokens)
    assert tokenizer.lowercase is False


def test_train_shows_progress_only_when_asked(capsys):
    BertTokenizer.train(["low lower"] * 3, 30)
    assert capsys.readouterr().err == ""
    BertTokenizer.train(["low lower"] * 3, 30, progress=True)
    assert "counting words" in capsys.readouterr().err


def test_train_refuses_too_small_a_vocabulary_and_no_text():
    with pytest.raises(UserError, match="vocab_size 4 does not even hold the 5 special tokens"):
        BertTokenizer.train(["low"], 4)
    with pytest.raises(UserError, match="no word"):
        BertTokenizer.train(["", " "], 100)


# ---------------------------------------------------------------- files


OPTIONS = dict(
    lowercase=False,
    strip_accents=True,
    split_cjk=False,
    max_characters_per_word=7,
    protect_special_tokens=False,
    original_characters=True,
    model_max_length=64,
)


@pytest.mark.parametrize("options", [{}, OPTIONS])
def test_saved_and_read_again_is_the_same(tmp_path, options):
    saved = BertTokenizer([*VOCAB, "\u2028", "\u00a0x"], **options)
    saved.save_pretrained(tmp_path / "new" / "folder")
    files = sorted(path.name for path in (tmp_path / "new" / "folder").iterdir())
    assert files == ["special_tokens_map.json", "tokenizer_config.json", "vocab.txt"]
    read = BertTokenizer.from_pretrained(tmp_path / "new" / "folder")
    assert read.tokens == saved.tokens
    for name in OPTIONS:
        assert getattr(read, name) == getattr(saved, name), name


def test_reads_a_bare_vocabulary_file_with_options(tmp_path):
    write_vocab(tmp_path, VOCAB)
    assert BertTokenizer.from_pretrained(tmp_path / "vocab.txt", lowercase=False).tokenize("Low low") == [
        "[UNK]",
        "low",
    ]


def test_reads_crlf_and_a_missing_last_line_feed(tmp_path):
    (tmp_path / "vocab.txt").write_bytes("\r\n".join(VOCAB).encode())
    assert BertTokenizer.from_pretrained(tmp_path).tokens == VOCAB


def test_reads_the_configuration_of_older_transformers(tmp_path):
    write_vocab(
        tmp_path,
        VOCAB,
        do_lower_case=False,
        do_basic_tokenize=True,
        never_split=None,
        cls_token={"content": "[CLS]", "lstrip": False},
        max_len=512,
        additional_special_tokens=["[MASK]"],
        extra_special_tokens={},
        added_tokens_decoder={"0": {"content": "[PAD]", "special": True}},
    )
    tokenizer = BertTokenizer.from_pretrained(tmp_path)
    assert (tokenizer.lowercase, tokenizer.model_max_length) == (False, 512)
    assert BertTokenizer.from_pretrained(tmp_path, lowercase=True).lowercase is True


def tokenizer_json(**changes) -> dict:
    normaliser = {
        "type": "BertNormalizer",
        "handle_chinese_chars": True,
        "strip_accents": None,
        "lowercase": False,
    }
    model = {
        "type": "WordPiece",
        "max_input_chars_per_word": 50,
        "vocab": {token: i for i, token in enumerate(VOCAB)},
    }
    return {"added_tokens": [{"content": "[CLS]"}], "normalizer": normaliser, "model": model} | changes


def test_reads_tokenizer_json_when_there_is_no_vocab_txt(tmp_path):
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer_json()))
    tokenizer = BertTokenizer.from_pretrained(tmp_path)
    assert tokenizer.tokens == VOCAB
    assert (tokenizer.lowercase, tokenizer.max_characters_per_word) == (False, 50)
    content = tokenizer_json()
    del content["model"]["type"]  # as old files do
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    assert BertTokenizer.from_pretrained(tmp_path).tokens == VOCAB
    content = tokenizer_json(pre_tokenizer={"type": "BertPreTokenizer"})
    content["normalizer"]["clean_text"] = True
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    assert BertTokenizer.from_pretrained(tmp_path).tokens == VOCAB


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not valid JSON"),
        ("[]", "not a tokenizer.json"),
        (json.dumps({}), "not a tokenizer.json"),
        (json.dumps(tokenizer_json(model={"type": "BPE", "vocab": {}})), "expected a WordPiece model"),
        (
            json.dumps(tokenizer_json(model=tokenizer_json()["model"] | {"continuing_subword_prefix": "@@"})),
            "expected a WordPiece model",
        ),
        (json.dumps(tokenizer_json(pre_tokenizer={"type": "Whitespace"})), "expected a WordPiece model"),
        (
            json.dumps(tokenizer_json(normalizer=tokenizer_json()["normalizer"] | {"clean_text": False})),
            "expected a WordPiece model",
        ),
        (json.dumps(tokenizer_json(added_tokens=[{"content": "<extra>"}])), "not supported: <extra>"),
        (
            json.dumps(tokenizer_json(model=tokenizer_json()["model"] | {"max_input_chars_per_word": "x"})),
            "max_input_chars_per_word is 'x'; expected a whole number",
        ),
        (
            json.dumps(tokenizer_json(model=tokenizer_json()["model"] | {"vocab": {"[PAD]": 0, "a": 7}})),
            "without gaps",
        ),
        (
            json.dumps(tokenizer_json(model=tokenizer_json()["model"] | {"vocab": {"[PAD]": 0, "a": 1}})),
            r"tokenizer\.json: the vocabulary of 2 tokens lacks \[UNK\] \[CLS\]",
        ),
    ],
)
def test_damaged_tokenizer_json(tmp_path, content, message):
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(UserError, match=message) as caught:
        BertTokenizer.from_pretrained(tmp_path)
    assert str(tmp_path / "tokenizer.json") in str(caught.value)


def test_a_byte_order_mark_is_no_part_of_a_token(tmp_path):
    (tmp_path / "vocab.txt").write_bytes(b"\xef\xbb\xbf" + "\n".join(VOCAB).encode())
    assert BertTokenizer.from_pretrained(tmp_path).tokens == VOCAB


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "lacks [PAD] [UNK] [CLS] [SEP] [MASK]"),
        (b"[PAD]\n[UNK]\nlow\n", "the vocabulary of 3 tokens lacks [CLS] [SEP] [MASK]"),
        ("\n".join([*VOCAB, "low"]).encode(), f"the token 'low' twice (lines 14 and {len(VOCAB) + 1})"),
        (b"[PAD]\n\xff\xfe\n", "not UTF-8"),
    ],
)
def test_bad_vocabulary_files_are_named(tmp_path, content, message):
    (tmp_path / "vocab.txt").write_bytes(content)
    with pytest.raises(UserError) as caught:
        BertTokenizer.from_pretrained(tmp_path)
    assert message in str(caught.value)
    assert str(tmp_path / "vocab.txt") in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"cls_token": "<s>"}, "cls_token is '<s>'"),
        ({"added_tokens_decoder": {"99": {"content": "<new>"}}}, "not supported: <new>"),
        ({"added_tokens_decoder": {"99": {"content": None}}}, "not supported: None"),
        ({"added_tokens_decoder": {"99": {"content": ["[PAD]"]}}}, "not supported: "),
        ({"additional_special_tokens": ["[PAD]", VOCAB[-1]]}, f"not supported: {VOCAB[-1]}$"),
        ({"extra_special_tokens": [{"content": VOCAB[-1]}]}, f"not supported: {VOCAB[-1]}$"),
        ({"extra_special_tokens": {"image": "<image>"}}, "not supported: <image>"),
        ({"extra_special_tokens": "<image>"}, "special tokens should be a list or an object"),
        ({"added_tokens_decoder": {"0": "x"}}, "added_tokens_decoder should be an object of objects"),
        ({"added_tokens_decoder": ["x"]}, "added_tokens_decoder should be an object of objects"),
        ({"model_max_length": "abc"}, "model_max_length is 'abc'; expected a whole number, at least 1$"),
        ({"model_max_length": 0}, "model_max_length is 0; expected a whole number"),
        ({"model_max_length": float("nan")}, "model_max_length is nan; expected a whole number"),
        ({"max_characters_per_word": "x"}, "max_characters_per_word is 'x'; expected a whole number"),
        ({"max_characters_per_word": True}, "max_characters_per_word is True; expected a whole number"),
        ({"do_lower_case": "False"}, "do_lower_case is 'False'; expected true or false$"),
        ({"strip_accents": 1}, "strip_accents is 1; expected true or false"),
        ({"do_lower_case": "x" * 9999}, "do_lower_case is 'xxx.{10,40}'; expected true or false"),
    ],
)
def test_configurations_that_are_not_ours_are_refused(tmp_path, config, message):
    with pytest.raises(UserError, match=message) as caught:
        BertTokenizer.from_pretrained(write_vocab(tmp_path, VOCAB, **config))
    assert str(caught.value).startswith(f"{tmp_path / 'tokenizer_config.json'}: ")


@pytest.mark.parametrize(
    ("added", "message"),
    [({"[NEW]": 99}, r"added tokens outside the vocabulary are not supported: \[NEW\]"), ([], "an object")],
)
def test_tokens_that_older_programs_added_are_refused(tmp_path, added, message):
    write_vocab(tmp_path, VOCAB)
    (tmp_path / "added_tokens.json").write_text(json.dumps({VOCAB[-1]: len(VOCAB) - 1}))
    assert BertTokenizer.from_pretrained(tmp_path).tokens == VOCAB
    (tmp_path / "added_tokens.json").write_text(json.dumps(added))
    with pytest.raises(UserError, match=message):
        BertTokenizer.from_pretrained(tmp_path)


@pytest.mark.parametrize("kind", [BertTokenizer, RobertaTokenizer, AlbertTokenizer])
def test_what_a_full_disk_leaves_behind_is_no_vocabulary(tmp_path, kind):
    (tmp_path / "tokenizer_config.json").mkdir()
    tokenizer = kind.train(["the old boat , the old lane"] * 3, 300)
    with pytest.raises((UserError, OSError)):
        tokenizer.save_pretrained(tmp_path)
    assert not {"vocab.txt", "vocab.json", "tokenizer.json"} & {file.name for file in tmp_path.iterdir()}


@pytest.mark.parametrize("config", [{"added_tokens_decoder": []}, {"model_max_length": 10**30}])
def test_empty_and_boundless_options_mean_nothing(tmp_path, config):
    tokenizer = BertTokenizer.from_pretrained(write_vocab(tmp_path, VOCAB, **config, strip_accents=None))
    assert (tokenizer.model_max_length, tokenizer.strip_accents) == (None, None)


def test_missing_files_are_named(tmp_path):
    with pytest.raises(UserError, match=r"nowhere: no such folder or vocabulary file"):
        BertTokenizer.from_pretrained(tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"vocab\.txt: no such vocabulary file"):
        BertTokenizer.from_pretrained(tmp_path)


@pytest.mark.parametrize("cased", [False, True])
def test_released_vocabularies(shared_data, cased):
    path = shared_data / "vocab" / f"bert-base-{'cased' if cased else 'uncased'}-vocab.txt"
    tokenizer = BertTokenizer.from_pretrained(path, lowercase=not cased)
    ids = [tokenizer.pad_id, tokenizer.unk_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id]
    assert ids == [0, 100, 101, 102, 103]
    assert len(tokenizer) == (28_996 if cased else 30_522)
    if not cased:
        assert tokenizer("hello don't, world")["input_ids"] == [101, 7592, 2123, 1005, 1056, 1010, 2088, 102]
