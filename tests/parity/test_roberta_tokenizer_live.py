"""RobertaTokenizer against Hugging Face's, live: needs `tokenizers`, some tests also `transformers`.

The strings are new in every run; the report at its end tells the seed (PARITY_SEED repeats it).
"""

import itertools
import json
import random
import tarfile
from collections.abc import Iterable, Iterator

import pytest

from minibert.errors import UserError
from minibert.text import RobertaTokenizer
from minibert.text.byte_level import pre_tokens

pytest.importorskip("tokenizers", reason="compares with the package tokenizers, which is not installed")
from parity import roberta_tokenizer_parity, tokenizer_parity
from tokenizers import AddedToken, ByteLevelBPETokenizer

OPTIONS = {
    "as released": {},
    "prefix space": dict(add_prefix_space=True),
    "spaces in spans": dict(trim_offsets=False, mask_strips_space=False),
    "prefix space in spans": dict(add_prefix_space=True, trim_offsets=False),
}
STRINGS = 30_000
SIMPLE = ["the a of hello world banana bananas unhappy happier don't tokenizer , . ! ? n't I'm we've né"] * 3


def simple_tokenizer(**options) -> RobertaTokenizer:
    learned = RobertaTokenizer.train(SIMPLE, 340)
    return RobertaTokenizer(learned.tokens, learned.merges, **options)


def wikipedia(shared_data, lines: int) -> list[str]:
    texts = tokenizer_parity.lines(str(shared_data / "wikipedia_en" / "enwiki_wikiextractor_0.txt.gz"))
    return list(itertools.islice(texts, lines))


@pytest.fixture(scope="module")
def learned(shared_data) -> RobertaTokenizer:
    """A vocabulary of Wikipedia, since no released one is here."""
    return RobertaTokenizer.train(wikipedia(shared_data, 10_000), 8192)


def compare(parity, where: str, ours: RobertaTokenizer, texts: Iterable[str]) -> None:
    """Hold the number of differences to 0, and enter it into the report."""
    theirs = roberta_tokenizer_parity.reference_tokenizer(ours)
    compared, found = tokenizer_parity.compare(ours, theirs, texts, tokenizer_parity.difference_with_spans)
    parity.hold(f"RoBERTa's tokenizer, {where}", f"of {compared:,} texts differ", len(found), 0, check=False)
    assert not found, "\n".join(found[:10])


def random_texts(count: int, seed: int, ours: RobertaTokenizer) -> Iterator[str]:
    pieces = roberta_tokenizer_parity.pieces(ours)
    return tokenizer_parity.random_texts(count, seed, pieces, roberta_tokenizer_parity.ROBERTA_POOLS)


def transformers_tokenizer(folder):
    """Transformers' tokenizer of a folder, as AutoTokenizer finds it."""
    transformers = pytest.importorskip(
        "transformers", reason="compares with transformers, which is not installed"
    )
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    assert isinstance(theirs, transformers.RobertaTokenizerFast)
    return theirs


# ---------------------------------------------------------------- ids, spans, decoded texts


@pytest.mark.parametrize("name", OPTIONS)
def test_random_strings(parity, name):
    ours = simple_tokenizer(**OPTIONS[name])
    compare(parity, name, ours, random_texts(STRINGS, parity.seed, ours))


@pytest.mark.parametrize("name", OPTIONS)
def test_random_strings_with_a_vocabulary_of_wikipedia(parity, learned, name):
    ours = RobertaTokenizer(learned.tokens, learned.merges, **OPTIONS[name])
    compare(parity, f"{name}, 8,192", ours, random_texts(STRINGS // 3, parity.seed + 1, ours))


def test_every_character(parity):
    """Each between letters, between digits, and after a space: what kind of character it is."""
    theirs = roberta_tokenizer_parity.reference_tokenizer(simple_tokenizer()).pre_tokenizer
    chars = tokenizer_parity.characters("0-10FFFF")
    differing = []
    for start in range(0, len(chars), 64):
        text = "".join(f"a{char}a1{char}1 {char}-" for char in chars[start : start + 64])
        if pre_tokens(text) != [text[slice(*span)] for _, span in theirs.pre_tokenize_str(text)]:
            differing.append(text)
    where = f"of {len(chars):,} characters differ"
    parity.hold("RoBERTa's pre-tokens", where, len(differing), 0, check=False)
    assert not differing, differing[:3]


def test_wikipedia(parity, shared_data, learned):
    compare(parity, "Wikipedia", learned, wikipedia(shared_data, 5000))


def test_novels(parity, shared_data, learned):
    """A whole novel is one text."""
    with tarfile.open(shared_data / "novels100" / "100_english_novels.tar.gz") as archive:
        files = itertools.islice((member for member in archive if member.isfile()), 4)
        novels = [archive.extractfile(member).read().decode("utf-8") for member in files]
    compare(parity, "novels", learned, novels)


def test_random_strings_show_a_difference_where_there_is_one():
    ours = simple_tokenizer()
    theirs = roberta_tokenizer_parity.reference_tokenizer(simple_tokenizer(mask_strips_space=False))
    texts = random_texts(2000, 0, ours)
    _, found = tokenizer_parity.compare(ours, theirs, texts, tokenizer_parity.difference_with_spans)
    assert len(found) > 20


def test_lone_surrogates_are_refused_by_both():
    ours = simple_tokenizer()
    theirs = roberta_tokenizer_parity.reference_tokenizer(ours)
    for text in ("a \ud83d", "\udc00b"):
        with pytest.raises(UserError, match="surrogate"):
            ours.token_ids(text)
        with pytest.raises((UnicodeEncodeError, TypeError)):
            theirs.encode(text)


def test_decoding(tmp_path):
    """Of any ids, also those that no text has."""
    ours = simple_tokenizer()
    ours.save_pretrained(tmp_path)
    theirs = transformers_tokenizer(tmp_path)
    rng = random.Random(2)
    for _ in range(3000):
        ids = [rng.randrange(len(ours)) for _ in range(rng.randint(0, 12))]
        for skip in (False, True):
            assert ours.decode(ids, skip) == theirs.decode(ids, skip_special_tokens=skip), ids
    assert [ours.decode([i]) for i in range(len(ours))] == [theirs.decode([i]) for i in range(len(ours))]


# ---------------------------------------------------------------- transformers


@pytest.mark.parametrize("name", OPTIONS)
def test_calls(parity, tmp_path, name):
    """Special tokens, pairs, padding and truncation, from the folder that ours has written."""
    ours = simple_tokenizer(**OPTIONS[name], model_max_length=20)
    ours.save_pretrained(tmp_path)
    rng, pieces = random.Random(parity.seed + 2), roberta_tokenizer_parity.pieces(ours)
    calls = (
        tokenizer_parity.random_call(rng, pieces, roberta_tokenizer_parity.ROBERTA_POOLS) for _ in range(2000)
    )
    given, _, differing = tokenizer_parity.compare_calls(ours, transformers_tokenizer(tmp_path), calls)
    assert given > 1000
    where = f"RoBERTa's tokenizer, {name}"
    parity.hold(where, f"of {given:,} calls differ", len(differing), 0, check=False)
    assert not differing, differing[:10]


@pytest.mark.parametrize("name", OPTIONS)
def test_folders_of_ours_open_there_and_theirs_open_here(parity, tmp_path, name):
    ours = simple_tokenizer(**OPTIONS[name])
    ours.save_pretrained(tmp_path / "ours")
    theirs = transformers_tokenizer(tmp_path / "ours")
    theirs.save_pretrained(tmp_path / "theirs")
    assert not (tmp_path / "theirs" / "vocab.json").exists()  # only a tokenizer.json
    again = RobertaTokenizer.from_pretrained(tmp_path / "theirs")
    for option in ("tokens", "merges", "add_prefix_space", "trim_offsets", "mask_strips_space"):
        assert getattr(again, option) == getattr(ours, option), option
    for text in random_texts(1000, parity.seed + 3, ours):
        encoding = theirs(text, add_special_tokens=False, return_offsets_mapping=True)
        assert ours.token_ids_with_spans(text) == (encoding["input_ids"], encoding["offset_mapping"]), text


def test_a_bare_tokenizer_json_opens_here(tmp_path):
    ours = simple_tokenizer()
    roberta_tokenizer_parity.reference_tokenizer(ours).save(str(tmp_path / "tokenizer.json"))
    again = RobertaTokenizer.from_pretrained(tmp_path)
    assert (again.tokens, again.merges, again.mask_strips_space) == (ours.tokens, ours.merges, True)


def test_a_folder_of_the_trainer_opens_here(tmp_path):
    """vocab.json and merges.txt as `tokenizers` writes them, <mask> elsewhere than in RoBERTa."""
    theirs = reference_trainer(SIMPLE, 320)
    theirs.save_model(str(tmp_path))
    ours = RobertaTokenizer.from_pretrained(tmp_path)
    assert (ours.vocab, ours.mask_id) == (theirs.get_vocab(), 4)
    text = "unhappy bananas, don't né"
    assert ours.token_ids(text) == theirs.encode(text).ids


# ---------------------------------------------------------------- learning


def reference_trainer(texts: list[str], vocab_size: int, **options) -> ByteLevelBPETokenizer:
    theirs = ByteLevelBPETokenizer(**options)
    special = ["<s>", "<pad>", "</s>", "<unk>", AddedToken("<mask>", lstrip=True)]
    theirs.train_from_iterator(
        texts, vocab_size=vocab_size, min_frequency=2, special_tokens=special, show_progress=False
    )
    return theirs


def check_learning(texts: list[str], vocab_size: int, **options) -> None:
    """The same tokens in the same order (but <mask> is last), and the same merges in the same order."""
    ours = RobertaTokenizer.train(texts, vocab_size, **options)
    theirs = reference_trainer(texts, vocab_size, **options)
    tokens = sorted(theirs.get_vocab(), key=theirs.get_vocab().get)
    assert ours.tokens == [*tokens[:4], *tokens[5:], "<mask>"]
    model = json.loads(theirs._tokenizer.to_str())["model"]
    assert ours.merges == [tuple(merge) for merge in model["merges"]]


@pytest.mark.parametrize("seed", range(40))
def test_learning_equals_the_reference_trainer(seed):
    """With many ties and repeats, and words until no pair is left."""
    rng = random.Random(seed)
    alphabet = ("ab", "abcde", "a \n'.é", "東京é ")[seed % 4]
    texts = ["".join(rng.choices(alphabet, k=rng.randint(0, 40))) for _ in range(60)]
    check_learning(texts, 261 + rng.randint(0, 200), add_prefix_space=seed % 3 == 0)


@pytest.mark.parametrize("vocab_size", [8192, 30_000])
def test_learning_from_wikipedia_equals_the_reference_trainer(shared_data, vocab_size):
    check_learning(wikipedia(shared_data, 20_000), vocab_size)
