"""New tokens: which words become one, and that each kind of tokenizer then finds them by its own rules."""

import itertools

import pytest

from minibert.errors import UserError
from minibert.text import AlbertTokenizer, BertTokenizer, RobertaTokenizer, XLNetTokenizer, open_tokenizer
from minibert.text.new_tokens import (
    add_tokens,
    learn_new_tokens,
    old_pieces,
    read_new_tokens,
    tokens_per_word,
)

TEXTS = [
    "The river rose in the night and took the bridge away.",
    "Nobody in the village had seen such a flood of water before, said the teacher.",
    "The tensors of the optimiser are tensors of tensors, said the optimiser.",
    "An old boat lay upside down in the middle of the road, in the water.",
]
KINDS = {
    "bert": (BertTokenizer, 60),
    "roberta": (RobertaTokenizer, 290),
    "albert": (AlbertTokenizer, 60),
    "xlnet": (XLNetTokenizer, 60),
}


@pytest.fixture(params=KINDS)
def tokenizer(request):
    """One of each kind, with few tokens besides letters."""
    kind, size = KINDS[request.param]
    return kind.train([*TEXTS[:2], TEXTS[3], "o ptimiser"], size)


@pytest.mark.parametrize("side", ["left", "right"])
def test_the_side_of_the_padding_stays(tokenizer, side):
    tokenizer.padding_side = side
    assert add_tokens(tokenizer, tokenizer.whole_tokens("optimiser")).padding_side == side


@pytest.fixture
def wordpiece():
    pieces = "[PAD] [UNK] [CLS] [SEP] [MASK] t a ##e ##n ##s ##o ##r ##t ten ##sor the ##ing".split()
    return BertTokenizer(pieces)


def test_new_words_are_single_tokens_in_every_kind_of_tokenizer(tokenizer, tmp_path):
    words = [whole for word in ("tensors", "optimiser") for whole in tokenizer.whole_tokens(word)]
    larger = add_tokens(tokenizer, words)
    assert larger.tokens[: len(tokenizer)] == tokenizer.tokens
    for word, whole in zip(("tensors", "optimiser"), words, strict=True):
        assert len(tokenizer.word_token_ids(word)) > 1
        assert larger.word_token_ids(word) == [larger.vocab[whole]]
    text = "the old boat of the optimiser"
    assert larger.decode(larger.token_ids(text)).strip() == text
    larger.save_pretrained(tmp_path)
    read = open_tokenizer(tmp_path)
    assert type(read) is type(tokenizer) and read.tokens == larger.tokens
    for text in TEXTS:
        assert read.token_ids(text) == larger.token_ids(text)
        assert len(larger.token_ids(text)) <= len(tokenizer.token_ids(text))


@pytest.mark.parametrize(
    ("tokenizer", "options"),
    [
        (
            "bert",
            {
                "lowercase": False,
                "strip_accents": True,
                "split_cjk": False,
                "model_max_length": 7,
                "max_characters_per_word": 50,
                "protect_special_tokens": False,
                "original_characters": True,
            },
        ),
        ("roberta", {"add_prefix_space": True, "trim_offsets": False, "model_max_length": 7}),
        ("albert", {"lowercase": False, "keep_accents": True}),
        ("xlnet", {"lowercase": True}),
    ],
    indirect=["tokenizer"],
)
def test_options_stay(tokenizer, options, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    unusual = open_tokenizer(tmp_path, **options)
    larger = add_tokens(unusual, unusual.whole_tokens("optimiser"))
    assert options.keys() == tokenizer.config_keys.keys()
    for name, value in options.items():
        assert getattr(larger, name) == value != getattr(tokenizer, name)
    if isinstance(tokenizer, RobertaTokenizer):
        assert larger.rules()[1:] == tokenizer.rules()[1:]


def test_a_unigram_tokenizer_keeps_capitals_if_it_did():
    tokenizer = AlbertTokenizer.train(TEXTS, 60)
    scored = [*zip(tokenizer.tokens, tokenizer.scores, strict=True)]
    cased = AlbertTokenizer(scored, lowercase=False, model_max_length=7)
    larger = add_tokens(cased, cased.whole_tokens("Optimiser"))
    assert (larger.lowercase, larger.model_max_length) == (False, 7)
    assert larger.tokens[-1] == "▁Optimiser"


def test_old_pieces_are_those_of_the_old_tokenizer(tokenizer):
    words = tokenizer.whole_tokens("optimiser")
    larger = add_tokens(tokenizer, words)
    pieces = old_pieces(larger, tokenizer)
    assert len(pieces) == len(larger) - len(tokenizer)
    assert list(pieces[larger.vocab[words[0]] - len(tokenizer)]) == tokenizer.word_token_ids("optimiser")


def test_a_word_goes_on_with_an_old_piece(wordpiece):
    larger = add_tokens(wordpiece, ["tensor"])
    assert wordpiece.tokenize("tensors") == ["ten", "##sor", "##s"]
    assert larger.tokenize("tensors") == ["tensor", "##s"]
    assert old_pieces(larger, wordpiece) == [tuple(map(wordpiece.vocab.get, ["ten", "##sor"]))]


def test_what_continues_a_word_can_be_new(wordpiece):
    larger = add_tokens(wordpiece, ["##tensor"])
    assert wordpiece.pieces("##tensor") == tuple(
        wordpiece.vocab[piece] for piece in "##t ##e ##n ##sor".split()
    )
    assert larger.tokenize("atensors") == ["a", "##tensor", "##s"]


def test_merges_do_not_break_each_other():
    """Words that overlap in every way, in both orders: a merge for one must not hinder another."""
    tokenizer = RobertaTokenizer.train(["a b c d"], 261)
    words = [f"Ġ{word}" for word in "abcd bcd abab cdab dcba bcdabcd aabb".split()]
    for order in (words, words[::-1]):
        larger = add_tokens(tokenizer, order)
        assert [larger.word_token_ids(word[1:]) for word in words] == [[larger.vocab[w]] for w in words]
        assert larger.decode(larger.token_ids("abcdabcd dcbaabcd")) == "abcdabcd dcbaabcd"


def test_half_a_character_on_the_way_to_a_token_has_its_own_pieces():
    tokenizer = RobertaTokenizer.train(["a b c d"], 261)
    larger = add_tokens(tokenizer, tokenizer.whole_tokens("ωμ"))
    letters = [tokenizer.vocab[char] for char in tokenizer.whole_tokens("ωμ")[0]]  # one for each byte
    assert larger.decode([larger.vocab[tokenizer.whole_tokens("ωμ")[0]]]) == " ωμ"
    assert old_pieces(larger, tokenizer) == [tuple(letters[:n]) for n in range(2, 6)]


def test_a_word_of_unknown_characters_gets_a_token():
    for kind, size in ((BertTokenizer, 90), (AlbertTokenizer, 60)):
        tokenizer = kind.train(TEXTS, size)
        assert tokenizer.unk_id in tokenizer.token_ids("ωμέγα")
        larger = add_tokens(tokenizer, tokenizer.whole_tokens("ωμέγα"))
        assert larger.token_ids("ωμέγα") == [len(tokenizer)]
        assert larger.token_ids("the water") == tokenizer.token_ids("the water")


def test_a_token_that_no_text_would_get_is_refused(wordpiece):
    with pytest.raises(UserError, match="can never produce the new token"):
        add_tokens(wordpiece, ["t" * 101])


# -- Files of words ----------------------------------------------------------------------------------


def test_a_file_of_words_and_what_is_wrong_with_its_lines(wordpiece, tmp_path):
    path = tmp_path / "words.txt"
    path.write_text(
        "Tensor\nthe\n\nsea-floor\ntensor\n  sonnet \n##ings\n##ing\nSonnét\nTHE\n", encoding="utf-8"
    )
    found = read_new_tokens(path, wordpiece)
    assert found.tokens == ["tensor", "sonnet", "##ings"]
    assert (found.known, found.repeated, found.split) == (
        ["the", "##ing", "THE"],
        ["tensor", "Sonnét"],
        ["sea-floor"],
    )
    assert found.changed == ["Tensor → tensor"] and found.empty == 1
    assert found.describe() == (
        "3 new tokens; 1 of them normalised (Tensor → tensor); lines left out: 3 in the vocabulary already "
        "(the, ##ing, THE), 2 repeated (tensor, Sonnét), 1 not one word to this tokenizer (sea-floor), "
        "1 empty"
    )


def test_a_file_of_words_from_windows(tokenizer, tmp_path):
    (tmp_path / "words.txt").write_bytes("\ufeffsonnet\r\ntensor\r\n".encode())
    words = [
        tokenizer.as_text(token).strip()
        for token in read_new_tokens(tmp_path / "words.txt", tokenizer).tokens
    ]
    assert words == ["sonnet", "tensor"]


def test_a_cased_tokenizer_keeps_words_as_they_are(tmp_path):
    (tmp_path / "words.txt").write_text("NumPy\nnumpy\n")
    tokenizer = RobertaTokenizer.train(TEXTS, 270)
    found = read_new_tokens(tmp_path / "words.txt", tokenizer)
    assert found.tokens == ["ĠNumPy", "Ġnumpy"] and found.changed == []


@pytest.mark.parametrize(
    "content, told",
    [
        (b"the\nTHE\n", "nothing to add: 0 new tokens; lines left out: 2 in the vocabulary already"),
        (b"", "nothing to add: 0 new tokens; list words"),
        (b"\xff", "not UTF-8"),
        (None, "no such list of words"),
    ],
)
def test_a_file_without_new_words(wordpiece, tmp_path, content, told):
    path = tmp_path / "words.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=told) as caught:
        read_new_tokens(path, wordpiece)
    assert str(path) in str(caught.value)


# -- Learning ----------------------------------------------------------------------------------------


def test_the_words_that_save_most_are_learned_first(wordpiece):
    # "tensor" has 2 pieces and occurs 3 times, "tenner" 5 and 2, "sort" is unknown, "the" is a token.
    texts = ["tensor tensor tenner", "the tensor tenner sort sort", "the the the tarot"]
    assert wordpiece.tokenize("tenner") == ["ten", "##n", "##e", "##r"]
    assert learn_new_tokens(texts, wordpiece, 5) == ["tenner", "tensor"]
    assert learn_new_tokens(texts, wordpiece, 1) == ["tenner"]


def test_each_learned_word_shortens_the_text_by_what_it_saves(tokenizer):
    learned = learn_new_tokens(TEXTS, tokenizer, 6)
    lengths = []
    for count in range(len(learned) + 1):
        grown = add_tokens(tokenizer, learned[:count]) if count else tokenizer
        lengths.append(sum(len(grown.token_ids(text)) for text in TEXTS))
    savings = [before - after for before, after in itertools.pairwise(lengths)]
    assert savings[0] > 0 and savings == sorted(savings, reverse=True)


def test_nothing_to_learn(wordpiece):
    with pytest.raises(UserError, match="no new tokens to learn"):
        learn_new_tokens(["the tensor the"], wordpiece, 5)


def test_punctuation_is_no_part_of_a_learned_word():
    tokenizer = AlbertTokenizer.train(TEXTS, 30)
    learned = learn_new_tokens(["(optimiser), optimiser: water", *TEXTS], tokenizer, 10)
    assert "▁optimiser" in learned
    assert all(token[1:].isalnum() for token in learned)


def test_tokens_per_word(wordpiece):
    larger = add_tokens(wordpiece, ["tensor"])
    assert tokens_per_word(["the tensor", "tensors the"], wordpiece, larger) == (7 / 4, 5 / 4)
