import json
import multiprocessing
import pickle
import sys

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from minibert.errors import UserError
from minibert.text import RobertaTokenizer
from minibert.text.byte_level import BYTE_CHARACTERS

SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
MERGES = [
    ("l", "o"),
    ("lo", "w"),
    ("e", "r"),
    ("Ġ", "low"),
    ("Ġ", "w"),
    ("Ã", "©"),
    ("Ġlow", "er"),
    ("Ġ", "Ġ"),
    ("'", "t"),
]
VOCAB = [*SPECIAL[:4], *sorted(BYTE_CHARACTERS), *(left + right for left, right in MERGES), "<mask>"]


@pytest.fixture
def tokenizer() -> RobertaTokenizer:
    return RobertaTokenizer(VOCAB, MERGES)


def write_folder(folder, vocab=None, merges=None, **config):
    vocab = {token: i for i, token in enumerate(VOCAB)} if vocab is None else vocab
    (folder / "vocab.json").write_text(json.dumps(vocab), encoding="utf-8")
    lines = [" ".join(merge) for merge in MERGES] if merges is None else merges
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *lines, ""]), encoding="utf-8")
    if config:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


# ---------------------------------------------------------------- text to ids


def test_tokens_and_ids(tokenizer):
    assert tokenizer.tokenize("lower low  lower") == ["low", "er", "Ġlow", "Ġ", "Ġlower"]
    assert tokenizer.tokenize("né won't\n") == ["n", "Ã©", "Ġw", "o", "n", "'t", "Ċ"]
    assert tokenizer.token_ids("lower") == [VOCAB.index("low"), VOCAB.index("er")]
    assert tokenizer.tokenize("") == []


def test_a_word_of_a_sentence_has_a_space_before_it(tokenizer):
    assert [tokenizer.tokens[i] for i in tokenizer.word_token_ids("lower")] == ["Ġlower"]
    assert tokenizer.word_token_ids(" lower") == tokenizer.word_token_ids("lower")


def test_a_token_as_people_read_it(tokenizer):
    assert tokenizer.token_text(VOCAB.index("Ã©")) == "é"
    assert tokenizer.token_text(VOCAB.index("Ġlower")) == " lower"


def test_attributes(tokenizer):
    assert len(tokenizer) == tokenizer.vocab_size == len(VOCAB) == 270
    assert tokenizer.tokens == VOCAB
    assert tokenizer.merges == MERGES
    ids = [tokenizer.cls_id, tokenizer.pad_id, tokenizer.sep_id, tokenizer.unk_id, tokenizer.mask_id]
    assert ids == [0, 1, 2, 3, 269]


def test_special_tokens_are_wherever_the_vocabulary_has_them():
    tokenizer = RobertaTokenizer([*VOCAB[4:-1], *SPECIAL], MERGES)
    assert (tokenizer.cls_id, tokenizer.mask_id) == (265, 269)
    assert tokenizer("low")["input_ids"] == [265, tokenizer.vocab["low"], 267]


def test_what_continues_a_word(tokenizer):
    """Letters without a space before them, also the first word of a text; but not punctuation."""
    text = "low lower, low<mask>\nlow"
    continued = tokenizer.continues_word[tokenizer(text)["input_ids"]]
    tokens = ["<s>", "low", "Ġlower", ",", "Ġlow", "<mask>", "Ċ", "low", "</s>"]
    assert ["<s>", *tokenizer.tokenize(text), "</s>"] == tokens
    assert continued.tolist() == [False, True, False, False, False, False, False, True, False]
    assert tokenizer.continues_word[tokenizer.token_ids("éñ")].all()
    assert tokenizer.continues_word.dtype == bool
    assert tokenizer.continues_word.shape == (len(VOCAB),)


def test_words_end_where_pre_tokens_end():
    """A "." continues no word, although no space is before it; pieces of a word have one number."""
    tokenizer = RobertaTokenizer.train(["the sk the sk"], 262)
    ids = tokenizer.token_ids(" the sketch's café.. 12")
    words = tokenizer.word_numbers(ids)
    assert len(words) == len(ids) > 10 and words.dtype == np.int32
    texts: dict[int, list[int]] = {}
    for i, number in zip(ids, words.tolist(), strict=True):
        texts.setdefault(number, []).append(i)
    assert [tokenizer.decode(piece) for piece in texts.values()] == [
        " the",
        " sketch",
        "'s",
        " café",
        "..",
        " 12",
    ]
    assert list(texts) == [1, 2, 3, 4, 5, 6]
    assert tokenizer.word_numbers([]).tolist() == []


def test_special_tokens_in_the_text_are_protected(tokenizer):
    assert tokenizer.tokenize("low</s>er <pad> <s>") == ["low", "</s>", "er", "Ġ", "<pad>", "Ġ", "<s>"]
    assert "<mask>" not in tokenizer.tokenize("<Mask> <mask >")


def test_a_mask_takes_the_white_space_before_it(tokenizer):
    assert tokenizer.tokenize("low \u3000\n<mask> low") == ["low", "<mask>", "Ġlow"]
    assert tokenizer.tokenize(" <mask> <mask>") == ["<mask>", "<mask>"]
    other = RobertaTokenizer(VOCAB, MERGES, mask_strips_space=False)
    assert other.tokenize("low <mask> low") == ["low", "Ġ", "<mask>", "Ġlow"]


def test_prefix_space():
    tokenizer = RobertaTokenizer(VOCAB, MERGES, add_prefix_space=True)
    assert tokenizer.tokenize("low low") == tokenizer.tokenize(" low low") == ["Ġlow", "Ġlow"]
    assert tokenizer.tokenize("\nlow") == ["Ġ", "Ċ", "low"]
    assert tokenizer.tokenize("low</s>low") == ["Ġlow", "</s>", "Ġlow"]
    assert tokenizer.tokenize("") == []


def test_batch_equals_one_by_one_even_when_the_memory_overflows(monkeypatch):
    monkeypatch.setattr(RobertaTokenizer, "CACHED_CHARACTERS", 24)
    texts = ["lower low, lowest", "un want\twanted wa\u00a0low", "", "low  low low <mask>"]
    fresh = [RobertaTokenizer(VOCAB, MERGES).token_ids(text) for text in texts]
    small = RobertaTokenizer(VOCAB, MERGES)
    assert small.token_ids_batch(texts * 3) == fresh * 3
    assert len(small._block_ids) <= 3
    assert len(small._pre_token_ids) <= 3


def test_pickles_and_works_in_a_spawned_process(tokenizer):
    expected = tokenizer.token_ids("lower, low <mask>")
    assert pickle.loads(pickle.dumps(tokenizer)).token_ids("lower, low <mask>") == expected
    if sys.platform == "linux":
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            assert pool.apply(tokenizer.token_ids, ("lower, low <mask>",)) == expected


# ---------------------------------------------------------------- model inputs


def test_one_text_and_pairs(tokenizer):
    low, er = tokenizer.token_ids("lower")
    assert tokenizer("lower") == {
        "input_ids": [0, low, er, 2],
        "token_type_ids": [0, 0, 0, 0],
        "attention_mask": [1, 1, 1, 1],
    }
    assert tokenizer("low", "er") == {
        "input_ids": [0, low, 2, 2, er, 2],
        "token_type_ids": [0] * 6,
        "attention_mask": [1] * 6,
    }
    assert tokenizer(["low", "lower"], padding=True)["input_ids"] == [[0, low, 2, 1], [0, low, er, 2]]
    assert tokenizer(["low"], [""])["input_ids"] == [[0, low, 2, 2, 2]]


def test_truncation_leaves_room_for_four_special_tokens_in_a_pair(tokenizer):
    low = tokenizer.vocab["low"]
    encoded = tokenizer("low" * 9, "low" * 9, max_length=7)
    assert encoded["input_ids"] == [0, low, 2, 2, low, low, 2]
    with pytest.raises(UserError, match="give at least 4"):
        tokenizer("low", "low", max_length=3)
    short = RobertaTokenizer(VOCAB, MERGES, model_max_length=6)
    assert len(short("low " * 9, truncation=True)["input_ids"]) == 6


# ---------------------------------------------------------------- where tokens stand


def spelled(tokenizer, text):
    """The pieces of the text that its tokens stand for."""
    ids, spans = tokenizer.token_ids_with_spans(text)
    assert ids == tokenizer.token_ids(text)
    return [text[start:stop] for start, stop in spans]


def test_spans_leave_spaces_out_unless_told(tokenizer):
    text = " lower   low \u3000<mask>\n"
    assert spelled(tokenizer, text) == ["lower", "", "low", "<mask>", "\n"]
    whole = RobertaTokenizer(VOCAB, MERGES, trim_offsets=False)
    assert spelled(whole, text) == [" lower", "  ", " low", " \u3000<mask>", "\n"]
    assert tokenizer.token_ids_with_spans("") == ([], [])


def test_the_bytes_of_a_character_have_its_span(tokenizer):
    assert spelled(tokenizer, "é東") == ["é", "東", "東", "東"]
    assert tokenizer.token_ids_with_spans(" \u3000")[1] == [(1, 1), (1, 2), (1, 2), (1, 2)]


def test_spans_with_a_prefix_space():
    """Odd ones too, which transformers gives: a space kept, a letter lost."""
    tokenizer = RobertaTokenizer(VOCAB, MERGES, add_prefix_space=True)
    assert spelled(tokenizer, "low low") == ["low", "low"]
    assert spelled(tokenizer, " low low") == [" low", "low"]
    assert spelled(tokenizer, "low</s>low") == ["low", "</s>", "ow"]
    untrimmed = RobertaTokenizer(VOCAB, MERGES, add_prefix_space=True, trim_offsets=False)
    assert spelled(untrimmed, "low low") == ["low", " low"]
    assert untrimmed.token_ids_with_spans("é")[1] == [(0, 1), (0, 1)]


@pytest.mark.parametrize("options", [{}, dict(add_prefix_space=True), dict(trim_offsets=False)])
@given(text=st.text() | st.text("low er</s>\n\u3000é"))
@example(text="<s>0")
def test_spans_go_through_the_text_in_order(options, text):
    """But for empty ones: a space that add_prefix_space puts after a special token has one too far right."""
    ids, spans = RobertaTokenizer(VOCAB, MERGES, **options).token_ids_with_spans(text)
    assert len(spans) == len(ids)
    assert all(0 <= start <= stop <= len(text) for start, stop in spans)
    filled = [(start, stop) for start, stop in spans if start < stop]
    assert filled == sorted(filled)


# ---------------------------------------------------------------- ids to text


def test_decode(tokenizer):
    ids = tokenizer("lower né", " <mask>.")["input_ids"]
    assert tokenizer.decode(ids) == "<s>lower né</s></s><mask>.</s>"
    assert tokenizer.decode(ids, skip_special_tokens=True) == "lower né."
    assert tokenizer.decode(np.array([VOCAB.index("er"), VOCAB.index("low")])) == "erlow"
    assert tokenizer.decode([]) == ""


def test_half_a_character_is_decoded_as_a_replacement(tokenizer):
    ids = tokenizer.token_ids("東!")
    assert tokenizer.decode(ids[:2]) == "\ufffd"
    assert tokenizer.decode([*ids[:2], ids[-1]]) == "\ufffd!"
    assert tokenizer.decode(ids) == "東!"


@given(st.text() | st.text("low er</s>n't\n\u3000é  "))
def test_decoded_text_is_the_text(text):
    tokenizer = RobertaTokenizer(VOCAB, MERGES)
    if not any(token in text for token in SPECIAL):
        assert tokenizer.decode(tokenizer.token_ids(text)) == text


@pytest.mark.parametrize("i", [-1, len(VOCAB)])
def test_decode_refuses_ids_outside_the_vocabulary(tokenizer, i):
    with pytest.raises(UserError, match=f"token id {i} is outside"):
        tokenizer.decode([2, i])


# ---------------------------------------------------------------- learning


def test_train():
    texts = ["low lower lowest", "newest newer new", "slow slowest <mask>"] * 5
    tokenizer = RobertaTokenizer.train(iter(texts), 300)
    assert tokenizer.tokens[:4] + tokenizer.tokens[-1:] == SPECIAL
    assert tokenizer.tokens[4:260] == sorted(BYTE_CHARACTERS)
    assert tokenizer.tokens[260:262] == ["lo", "we"]  # 25 times each; "l" is the older token
    assert tokenizer.vocab_size <= 300
    assert [left + right for left, right in tokenizer.merges] == tokenizer.tokens[260:-1]
    assert RobertaTokenizer.train(texts, 300).merges == tokenizer.merges


def test_train_with_a_prefix_space_reads_the_first_word_like_the_others():
    tokenizer = RobertaTokenizer.train(["low", "low low"], 300, add_prefix_space=True)
    assert tokenizer.add_prefix_space
    assert tokenizer.tokenize("low") == ["Ġlow"]
    assert "low" not in RobertaTokenizer.train(["low", " low"], 300, add_prefix_space=True).tokens


def test_nothing_is_learned_from_words_that_are_too_long():
    texts = ["ab" * 6, "abc"] * 2
    assert "abc" in RobertaTokenizer.train(texts, 300, max_bytes_per_word=11).tokens
    assert "abab" not in RobertaTokenizer.train(texts, 300, max_bytes_per_word=11).tokens
    assert "ab" * 6 in RobertaTokenizer.train(texts, 300, max_bytes_per_word=12).tokens


def test_train_shows_progress_only_when_asked(capsys):
    RobertaTokenizer.train(["low lower"] * 3, 300)
    assert capsys.readouterr().err == ""
    RobertaTokenizer.train(["low lower"] * 3, 300, progress=True)
    assert "merging" in capsys.readouterr().err


def test_train_refuses_too_small_a_vocabulary_and_no_text():
    with pytest.raises(UserError, match=r"vocab_size 260 .* which are 261; ask for"):
        RobertaTokenizer.train(["low"], 260)
    assert len(RobertaTokenizer.train(["low low"], 261)) == 261
    with pytest.raises(UserError, match="no word"):
        RobertaTokenizer.train([""], 300)


# ---------------------------------------------------------------- files


OPTIONS = dict(add_prefix_space=True, trim_offsets=False, mask_strips_space=False, model_max_length=64)


@pytest.mark.parametrize("options", [{}, OPTIONS])
def test_saved_and_read_again_is_the_same(tmp_path, options):
    saved = RobertaTokenizer(VOCAB, MERGES, **options)
    saved.save_pretrained(tmp_path / "new" / "folder")
    files = sorted(path.name for path in (tmp_path / "new" / "folder").iterdir())
    assert files == ["merges.txt", "special_tokens_map.json", "tokenizer_config.json", "vocab.json"]
    read = RobertaTokenizer.from_pretrained(tmp_path / "new" / "folder")
    assert (read.tokens, read.merges) == (saved.tokens, saved.merges)
    for name in OPTIONS:
        assert getattr(read, name) == getattr(saved, name), name
    other = RobertaTokenizer.from_pretrained(tmp_path / "new" / "folder", trim_offsets=True)
    assert other.trim_offsets


def test_reads_vocabulary_and_merges_alone(tmp_path):
    tokenizer = RobertaTokenizer.from_pretrained(write_folder(tmp_path))
    assert (tokenizer.tokens, tokenizer.merges) == (VOCAB, MERGES)
    assert (tokenizer.add_prefix_space, tokenizer.mask_strips_space) == (False, True)


def test_reads_crlf_and_a_missing_last_line_feed(tmp_path):
    write_folder(tmp_path)
    lines = ["#version: 0.2", *map(" ".join, MERGES)]
    (tmp_path / "merges.txt").write_bytes("\r\n".join(lines).encode())
    assert RobertaTokenizer.from_pretrained(tmp_path).merges == MERGES


def test_half_a_pair_of_surrogates_is_a_token_like_others(tmp_path):
    tokenizer = RobertaTokenizer.from_pretrained(
        write_folder(tmp_path, {token: i for i, token in enumerate([*VOCAB, "\ud800"])})
    )
    assert tokenizer.tokens == [*VOCAB, "\ud800"] and tokenizer.tokenize("low") == ["low"]


@pytest.mark.parametrize("strips", [False, True])
def test_reads_where_older_transformers_wrote_that_a_mask_strips_space(tmp_path, strips):
    entry = {"content": "<mask>", "lstrip": strips}
    for config in (
        {"mask_token": entry | {"__type": "AddedToken"}},
        {"added_tokens_decoder": {"269": entry}},
    ):
        folder = write_folder(tmp_path, add_prefix_space=True, errors="replace", **config)
        tokenizer = RobertaTokenizer.from_pretrained(folder)
        assert (tokenizer.mask_strips_space, tokenizer.add_prefix_space) == (strips, True)


def tokenizer_json(model=None, **changes) -> dict:
    return {
        "added_tokens": [{"content": "<mask>", "lstrip": False}],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True, "use_regex": True},
        "post_processor": {"type": "RobertaProcessing", "trim_offsets": False},
        "model": {
            "type": "BPE",
            "dropout": None,
            "vocab": {token: i for i, token in enumerate(VOCAB)},
            "merges": MERGES,
        }
        | (model or {}),
    } | changes


@pytest.mark.parametrize("merges", [MERGES, [" ".join(merge) for merge in MERGES]])
def test_reads_tokenizer_json_when_there_is_no_vocab_json(tmp_path, merges):
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer_json({"merges": merges})))
    tokenizer = RobertaTokenizer.from_pretrained(tmp_path)
    assert (tokenizer.tokens, tokenizer.merges) == (VOCAB, MERGES)
    found = tokenizer.add_prefix_space, tokenizer.trim_offsets, tokenizer.mask_strips_space
    assert found == (True, False, False)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"trim_offsets": True}))
    assert RobertaTokenizer.from_pretrained(tmp_path).trim_offsets


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({}, "not a tokenizer.json"),
        ([], "not a tokenizer.json"),
        (tokenizer_json({"type": "WordPiece"}), "expected a plain BPE model with ByteLevel"),
        (tokenizer_json({"ignore_merges": True}), "expected a plain BPE model"),
        (tokenizer_json({"continuing_subword_prefix": "##"}), "expected a plain BPE model"),
        (tokenizer_json(normalizer={"type": "NFC"}), "expected a plain BPE model"),
        (tokenizer_json(pre_tokenizer={"type": "Metaspace"}), "expected a plain BPE model"),
        (tokenizer_json(pre_tokenizer={"type": "ByteLevel", "use_regex": False}), "expected a plain BPE"),
        (tokenizer_json(pre_tokenizer=None), "not a tokenizer.json"),
        (tokenizer_json(post_processor={"type": "ByteLevel"}), "expected a plain BPE model"),
        (tokenizer_json({"vocab": ["<s>"]}), "not a tokenizer.json"),
        (tokenizer_json({"vocab": {"<s>": 0, "a": 7}}), "without gaps"),
        (tokenizer_json({"vocab": {"<s>": 0, "a": 1}}), "json: the vocabulary of 2 tokens lacks <pad> <unk>"),
        (tokenizer_json({"merges": [["l"]]}), "a merge must be two tokens"),
        (tokenizer_json({"merges": [[["l"], "o"]]}), "a merge must be two tokens"),
        (tokenizer_json({"merges": [3]}), "not a tokenizer.json"),
        (tokenizer_json(added_tokens=[{"content": "<extra>"}]), "not supported: <extra>"),
        (tokenizer_json(added_tokens=[{"content": "<mask>", "lstrip": "x"}]), "lstrip is 'x'; expected true"),
    ],
)
def test_damaged_tokenizer_json(tmp_path, content, message):
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match=message) as caught:
        RobertaTokenizer.from_pretrained(tmp_path)
    assert str(tmp_path / "tokenizer.json") in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("vocab", "merges", "message"),
    [
        ([], None, r"vocab\.json: expected a JSON object of tokens"),
        ({"<s>": "0"}, None, r"vocab\.json: expected a JSON object of tokens"),
        ({"<s>": 0, "a": 2}, None, r"vocab\.json: the token ids must be 0, 1, 2, … without gaps"),
        ({"a": 0, "b": 1}, None, r"vocab\.json and merges\.txt: the vocabulary of 2 tokens lacks <pad>"),
        ({token: i for i, token in enumerate(SPECIAL)}, None, r"lacks the tokens of 256 bytes \(.* 'Ā'\)"),
        (None, ["l o", "lo"], r"merges\.txt: line 3 is 'lo'; expected two tokens"),
        (None, ["l o", "", "lo w"], r"merges\.txt: line 3 is ''; expected two tokens"),
        (None, ["l o w"], r"merges\.txt: line 2 is 'l o w'; expected two tokens"),
        (None, ["l o", "x y"], r"merges\.txt: merge 2, 'x' and 'y', needs the token 'xy', which the voc"),
        (None, ["x" * 9999], r"merges\.txt: line 2 is 'xxx.{10,40}'; expected"),
    ],
)
def test_damaged_vocabularies_and_merges(tmp_path, vocab, merges, message):
    with pytest.raises(UserError, match=message) as caught:
        RobertaTokenizer.from_pretrained(write_folder(tmp_path, vocab, merges))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"cls_token": "[CLS]"}, r"cls_token is '\[CLS\]', but RoBERTa's is '<s>'"),
        ({"bos_token": "<|endoftext|>"}, r"bos_token is '<\|endoftext\|>', but RoBERTa's is '<s>'"),
        ({"added_tokens_decoder": {"99": {"content": "<new>"}}}, "not supported: <new>"),
        ({"additional_special_tokens": ["<mask>", "lo"]}, "not supported: lo$"),
        ({"add_prefix_space": "False"}, "add_prefix_space is 'False'; expected true or false$"),
        ({"trim_offsets": None}, "trim_offsets is None; expected true or false$"),
        ({"model_max_length": 0}, "model_max_length is 0; expected a whole number"),
        ({"mask_token": {"content": "<mask>", "lstrip": 1}}, "lstrip is 1; expected true or false"),
        ({"mask_token": {"content": "<mask>", "rstrip": True}}, "'<mask>' has rstrip, which is not supp"),
        ({"mask_token": {"content": "<mask>", "single_word": True}}, "'<mask>' has single_word, which is"),
    ],
)
def test_configurations_that_are_not_ours_are_refused(tmp_path, config, message):
    with pytest.raises(UserError, match=message) as caught:
        RobertaTokenizer.from_pretrained(write_folder(tmp_path, **config))
    assert str(caught.value).startswith(f"{tmp_path / 'tokenizer_config.json'}: ")


def test_missing_files_are_named(tmp_path):
    with pytest.raises(UserError, match="nowhere: no such folder; give a folder"):
        RobertaTokenizer.from_pretrained(tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"vocab\.json: no such vocabulary file"):
        RobertaTokenizer.from_pretrained(tmp_path)
    write_folder(tmp_path)
    with pytest.raises(UserError, match=r"vocab\.json: this is a file; give a folder"):
        RobertaTokenizer.from_pretrained(tmp_path / "vocab.json")
    (tmp_path / "merges.txt").unlink()
    with pytest.raises(UserError, match=r"merges\.txt: no such file of merges"):
        RobertaTokenizer.from_pretrained(tmp_path)


def test_learned_on_real_text(shared_data):
    """Every text comes back, and most words are one token."""
    lines = (shared_data / "wikitext2" / "valid.txt").read_text(encoding="utf-8").splitlines()
    tokenizer = RobertaTokenizer.train(lines, 8192)
    assert len(tokenizer) == 8192
    ids = tokenizer.token_ids_batch(lines[:500])
    assert [tokenizer.decode(row) for row in ids] == lines[:500]
    assert sum(map(len, ids)) < 1.25 * sum(len(line.split()) for line in lines[:500])
