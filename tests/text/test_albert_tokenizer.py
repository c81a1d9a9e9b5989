import json
import multiprocessing
import pickle
import sys

import numpy as np
import pytest
from charsmaps import compiled
from hypothesis import given
from hypothesis import strategies as st
from spiece import CONTROL, UNKNOWN, USER_DEFINED, spiece

from minibert.errors import UserError
from minibert.text import AlbertTokenizer
from minibert.text.unigram_files import AddedToken
from minibert.text.unigram_tokenizer import UnigramTokenizer

SPECIAL = ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
PIECES = [
    *((token, 0.0) for token in SPECIAL),
    ("▁", -3.0),
    ("▁low", -4.0),
    ("er", -4.5),
    ("e", -5.0),
    ("▁new", -5.5),
    ("s", -6.0),
    (",", -6.5),
    ('"', -7.0),
    ("(", -7.5),
    ("▁2", -8.0),
    ("▁2,", -9.0),
    ("0", -9.5),
    ("low", -10.0),
]
RULES = compiled({"\x01": "", "\t": " ", "½": "1⁄2", "\u200b": " "})


@pytest.fixture
def tokenizer() -> AlbertTokenizer:
    return AlbertTokenizer(PIECES)


# ---------------------------------------------------------------- text to ids


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("Lower, lows", ["▁low", "er", ",", "▁low", "s"]),
        ("``Löw''", ["▁", '"', "low", '"']),
        ("2,0 2", ["▁2,", "0", "▁2"]),  # a piece that ends in a digit and a comma stays whole
        ("low[MASK]er [mask]", ["▁low", "[MASK]", "▁", "er", "▁", "<unk>", "s", "<unk>"]),
        ("xyz lowxyz", ["▁", "<unk>", "▁low", "<unk>"]),  # unknown characters are joined
        ("", []),
        (" \n", []),
    ],
)
def test_tokens(tokenizer, text, tokens):
    assert tokenizer.tokenize(text) == tokens


def test_attributes(tokenizer):
    assert tokenizer.tokens == [piece for piece, _ in PIECES]
    ids = [tokenizer.pad_id, tokenizer.unk_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id]
    assert ids == [0, 1, 2, 3, 4]
    continues = [
        token for token, goes_on in zip(tokenizer.tokens, tokenizer.continues_word, strict=True) if goes_on
    ]
    assert continues == ["<unk>", "er", "e", "s", ",", '"', "(", "0", "low"]


def test_added_tokens_are_found_first():
    added = [AddedToken("("), AddedToken("er", special=False)]
    tokenizer = AlbertTokenizer(PIECES, added_tokens=added)
    assert tokenizer.tokenize("low(lower") == ["▁low", "(", "▁low", "er"]
    assert AlbertTokenizer(PIECES).tokenize("low(low") == ["▁low", "(", "low"]
    ids = tokenizer.token_ids("low(er")
    assert tokenizer.decode(ids, skip_special_tokens=True) == "lower"


def test_added_tokens_divide_words():
    """So a word that holds one is never a token, and cannot be made one."""
    tokenizer = AlbertTokenizer(PIECES, added_tokens=[AddedToken("(")])
    assert tokenizer.whole_tokens("low(lower new") == ["▁low", "▁lower", "▁new"]  # as it cuts texts
    assert tokenizer.whole_tokens("(") == []
    masks = AlbertTokenizer(PIECES, added_tokens=[AddedToken("[MASK]")])
    assert masks.whole_tokens("[MASK]") == []  # which lower case would hide


def test_of_added_tokens_the_longest_wins():
    pieces = [*PIECES, ("(low", -3.0), ("low(", -3.0)]
    added = [AddedToken("("), AddedToken("(low"), AddedToken("low(")]
    assert AlbertTokenizer(pieces, added_tokens=added).tokenize("(low(low") == ["(low", "(low"]


def test_inputs_of_a_model(tokenizer):
    encoded = tokenizer(["low", "new"], ["lower", "low"], padding=True)
    assert encoded == {
        "input_ids": [[2, 6, 3, 6, 7, 3], [2, 9, 3, 6, 3, 0]],
        "token_type_ids": [[0, 0, 0, 1, 1, 1], [0, 0, 0, 1, 1, 0]],
        "attention_mask": [[1] * 6, [1, 1, 1, 1, 1, 0]],
    }
    assert tokenizer("lower " * 9, max_length=5)["input_ids"] == [2, 6, 7, 6, 3]


def test_batch_equals_one_by_one_even_when_the_memory_overflows(monkeypatch):
    texts = ["lower new, low", "low\tnews\u00a0low", "", "x low [MASK]"]
    fresh = [AlbertTokenizer(PIECES).token_ids(text) for text in texts]
    monkeypatch.setattr(UnigramTokenizer, "CACHED_CHARACTERS", 24)
    small = AlbertTokenizer(PIECES)
    assert small.token_ids_batch(texts * 3) == fresh * 3
    assert len(small._chunk_ids) <= 3


def test_pickles_small_and_works_in_a_spawned_process():
    tokenizer = AlbertTokenizer(PIECES, charsmap=RULES)
    tokenizer.token_ids("lower")
    copy = pickle.loads(pickle.dumps(tokenizer))
    assert copy.token_ids("lower\tlow") == tokenizer.token_ids("lower low")
    if sys.platform == "linux":
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            assert pool.apply(tokenizer.token_ids, ("lower",)) == [6, 7]


# ---------------------------------------------------------------- where tokens stand


def spelled(tokenizer, text):
    ids, spans = tokenizer.token_ids_with_spans(text)
    assert ids == tokenizer.token_ids(text)
    return [text[start:stop] for start, stop in spans]


def test_spans(tokenizer):
    assert spelled(tokenizer, "  LÖWer,\tnew") == ["LÖW", "er", ",", "new"]
    assert spelled(tokenizer, "er low[MASK]er") == ["e", "er", "low", "[MASK]", "e", "er"]
    assert tokenizer.token_ids_with_spans("''low") == (tokenizer.token_ids('"low'), [(1, 2), (1, 2), (2, 5)])
    assert spelled(AlbertTokenizer(PIECES, charsmap=RULES), "low\x01er ½") == ["low", "er", "½", "½"]


def test_a_token_may_take_the_space_before_it():
    added = [AddedToken("[MASK]", strips_left=True)]
    tokenizer = AlbertTokenizer(PIECES, added_tokens=added)
    assert spelled(tokenizer, "low \n [MASK] low[MASK]") == ["low", " \n [MASK]", "low", "[MASK]"]
    assert spelled(tokenizer, " [MASK]") == [" [MASK]"]


@pytest.mark.parametrize("options", [{}, dict(lowercase=False, charsmap=RULES), dict(keep_accents=True)])
@given(text=st.text(st.one_of(st.characters(codec="utf-8"), st.sampled_from("low er[MASK]`'▁"))))
def test_spans_go_through_the_text_in_order(options, text):
    ids, spans = AlbertTokenizer(PIECES, **options).token_ids_with_spans(text)
    assert len(spans) == len(ids)
    assert all(0 <= start < stop <= len(text) for start, stop in spans)
    assert spans == sorted(spans)


# ---------------------------------------------------------------- ids to text


def test_decode(tokenizer):
    ids = tokenizer("Lower, lows [MASK]")["input_ids"]
    assert tokenizer.decode(ids) == "[CLS] lower, lows[MASK][SEP]"
    assert tokenizer.decode(ids, skip_special_tokens=True) == "lower, lows"
    assert tokenizer.decode(np.array([6, 7, 5])) == "lower "
    assert tokenizer.decode([]) == ""
    with pytest.raises(UserError, match="token id 99 is outside"):
        tokenizer.decode([99])


# ---------------------------------------------------------------- learning


def test_train():
    texts = ["low lower lowest", "newest newer new", "slow slowest (low)"] * 5
    tokenizer = AlbertTokenizer.train(iter(texts), 40)
    assert tokenizer.tokens[:5] == SPECIAL
    assert tokenizer.vocab_size <= 40
    assert tokenizer.decode(tokenizer.token_ids("Slowest lower")) == "slowest lower"
    again = AlbertTokenizer.train(texts, 40)
    assert (again.tokens, again.scores) == (tokenizer.tokens, tokenizer.scores)
    assert "É" in AlbertTokenizer.train(["É"] * 3, 30, lowercase=False, keep_accents=True).tokens


def test_train_shows_progress_only_when_asked(capsys):
    AlbertTokenizer.train(["low lower"] * 3, 30)
    assert capsys.readouterr().err == ""
    AlbertTokenizer.train(["low lower"] * 3, 30, progress=True)
    assert "learning pieces" in capsys.readouterr().err


def test_train_refuses_too_small_a_vocabulary_and_no_text():
    with pytest.raises(UserError, match="vocab_size 4 does not even hold the 5 special tokens"):
        AlbertTokenizer.train(["low"], 4)
    with pytest.raises(UserError, match="no words"):
        AlbertTokenizer.train([" "], 100)
    with pytest.raises(UserError, match="expected a list of texts, got a single one"):
        AlbertTokenizer.train("low")


# ---------------------------------------------------------------- files

OPTIONS = dict(lowercase=False, keep_accents=True, charsmap=RULES, model_max_length=64)
STATE = ("tokens", "scores", "added_tokens", "lowercase", "keep_accents", "charsmap", "model_max_length")


@pytest.mark.parametrize(
    "options",
    [{}, OPTIONS, dict(added_tokens=[AddedToken("(", special=False), AddedToken("[MASK]", True, True)])],
)
def test_saved_and_read_again_is_the_same(tmp_path, options):
    saved = AlbertTokenizer(PIECES, **options)
    saved.save_pretrained(tmp_path / "new" / "folder")
    files = sorted(path.name for path in (tmp_path / "new" / "folder").iterdir())
    assert files == ["tokenizer.json", "tokenizer_config.json"]
    read = AlbertTokenizer.from_pretrained(tmp_path / "new" / "folder")
    assert [getattr(read, name) for name in STATE] == [getattr(saved, name) for name in STATE]
    options = AlbertTokenizer.from_pretrained(tmp_path / "new" / "folder", lowercase=True, model_max_length=9)
    assert (options.lowercase, options.model_max_length) == (True, 9)


def write_spiece(folder, pieces=PIECES, name="spiece.model", **options):
    kinds = {"<unk>": UNKNOWN, "(": USER_DEFINED} | dict.fromkeys([*SPECIAL[2:], "<pad>"], CONTROL)
    whole = [(piece, score, kinds.get(piece, 1)) for piece, score in pieces]
    (folder / name).write_bytes(spiece(whole, **{"unk_id": 1} | options))


def test_reads_a_sentencepiece_model(tmp_path):
    write_spiece(tmp_path, charsmap=RULES)
    tokenizer = AlbertTokenizer.from_pretrained(tmp_path)
    assert (tokenizer.tokens, tokenizer.scores) == ([p for p, _ in PIECES], [s for _, s in PIECES])
    assert tokenizer.charsmap == RULES
    assert tokenizer.added_tokens == (*map(AddedToken, SPECIAL), AddedToken("(", special=False))
    write_spiece(tmp_path, name="other")
    assert AlbertTokenizer.from_pretrained(tmp_path / "other", lowercase=False).lowercase is False


def test_reads_options_and_added_tokens_of_the_configuration(tmp_path):
    AlbertTokenizer(PIECES).save_pretrained(tmp_path)
    config = dict(
        do_lower_case=False,
        keep_accents=True,
        model_max_length=1000000000000000019884624838656,
        mask_token={"content": "[MASK]", "lstrip": True},
        added_tokens_decoder={"4": {"content": "[MASK]", "lstrip": True, "special": True}},
        extra_special_tokens=["("],
    )
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    read = AlbertTokenizer.from_pretrained(tmp_path)
    assert (read.lowercase, read.keep_accents, read.model_max_length) == (False, True, None)
    assert [token.content for token in read.added_tokens] == [*SPECIAL, "("]


@pytest.mark.parametrize(
    ("config", "added"),
    [
        ({"extra_special_tokens": {}}, []),  # of transformers' versions from 4.48 to 4.57
        ({"extra_special_tokens": {}, "additional_special_tokens": ["("]}, ["("]),
        ({"extra_special_tokens": {"bracket": "("}}, ["("]),
        ({"extra_special_tokens": ["("], "additional_special_tokens": []}, ["("]),
    ],
)
def test_special_tokens_as_versions_of_transformers_write_them(tmp_path, config, added):
    AlbertTokenizer(PIECES).save_pretrained(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    read = AlbertTokenizer.from_pretrained(tmp_path)
    assert [token.content for token in read.added_tokens] == [*SPECIAL, *added]


def test_added_tokens_of_older_programs(tmp_path):
    AlbertTokenizer(PIECES).save_pretrained(tmp_path)
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<new>": len(PIECES)}))
    with pytest.raises(UserError, match="outside the vocabulary are not supported: <new>"):
        AlbertTokenizer.from_pretrained(tmp_path)


@pytest.fixture
def damage(tmp_path):
    """Change what a folder says: a function of its two files' contents."""
    AlbertTokenizer(PIECES, charsmap=RULES).save_pretrained(tmp_path)

    def damage(change):
        paths = [tmp_path / "tokenizer.json", tmp_path / "tokenizer_config.json"]
        contents = [json.loads(path.read_text()) for path in paths]
        change(*contents)
        for path, content in zip(paths, contents, strict=True):
            path.write_text(json.dumps(content))
        return tmp_path

    return damage


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t, c: t.clear(), r"tokenizer\.json: not a tokenizer.json of"),
        (lambda t, c: t["model"].update(type="BPE"), "expected a Unigram model"),
        (lambda t, c: t["model"].update(vocab={}), "expected a Unigram model"),
        (lambda t, c: t["model"].update(vocab=[["a"]]), "not a tokenizer.json of"),
        (lambda t, c: t["model"]["vocab"].append(["x", float("nan")]), "finite scores"),
        (lambda t, c: t["model"]["vocab"].append(["", 0.0]), "finite scores"),
        (lambda t, c: t["model"]["vocab"].append(["low", 0.0]), r"tokenizer\.json: .* 'low' twice"),
        (lambda t, c: t["model"].update(vocab=[["<unk>", 0.0]]), "lacks .CLS. .SEP. <pad> .MASK."),
        (
            lambda t, c: t["model"]["vocab"].insert(0, ["<x>", 0.0]),
            "<unk> is token 2, but ALBERT's is token 1",
        ),
        (
            lambda t, c: t["normalizer"]["normalizers"][-1].update(precompiled_charsmap="?"),
            "not a tokenizer.json",
        ),
        (
            lambda t, c: t["normalizer"]["normalizers"][-1].update(precompiled_charsmap="AAAA"),
            r"tokenizer\.json: damaged rules of normalisation",
        ),
        (lambda t, c: t["added_tokens"].append({"content": "<x>"}), "outside the vocabulary are not .*: <x>"),
        (lambda t, c: t["added_tokens"].append({"id": 3}), "an added token must be"),
        (lambda t, c: t["added_tokens"][0].update(rstrip=True), "<pad>. has rstrip, which is not supported"),
        (
            lambda t, c: c.update(do_lower_case="no"),
            "config.json: do_lower_case is 'no'; expected true or false",
        ),
        (lambda t, c: c.update(model_max_length=0), "model_max_length is 0; expected a whole number"),
        (lambda t, c: c.update(model_max_length=True), "model_max_length is True; expected a whole number"),
        (lambda t, c: c.update(cls_token="<cls>"), "cls_token is .<cls>., but here it must be"),
        (lambda t, c: c.update(added_tokens_decoder=["("]), "added_tokens_decoder should be an object"),
        (lambda t, c: c.update(extra_special_tokens="("), "special tokens should be a list or an object"),
    ],
)
def test_damaged_folders(damage, change, message):
    with pytest.raises(UserError, match=message) as caught:
        AlbertTokenizer.from_pretrained(damage(change))
    assert "\n" not in str(caught.value)


def test_missing_files(tmp_path):
    with pytest.raises(UserError, match="no such folder or vocabulary file"):
        AlbertTokenizer.from_pretrained(tmp_path / "none")
    with pytest.raises(UserError, match=r"spiece\.model: no such SentencePiece model"):
        AlbertTokenizer.from_pretrained(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("[]")
    write_spiece(tmp_path)
    with pytest.raises(UserError, match="expected a JSON object"):
        AlbertTokenizer.from_pretrained(tmp_path)


def test_added_tokens_with_spaces_are_refused():
    with pytest.raises(UserError, match="with spaces in them are not supported: 'a b'"):
        AlbertTokenizer([*PIECES, ("a b", 0.0)], added_tokens=[AddedToken("a b")])
