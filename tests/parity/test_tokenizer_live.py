"""The tokenizer against Hugging Face's, live: needs `tokenizers`, some tests also `transformers`.

The strings are new in every run; the report at its end tells the seed (PARITY_SEED repeats it).
"""

import itertools
import random
import unicodedata
from collections.abc import Iterable
from pathlib import Path

import pytest

from minibert.errors import UserError
from minibert.text import BertTokenizer

pytest.importorskip("tokenizers", reason="compares with the package tokenizers, which is not installed")
from parity import tokenizer_parity

OPTIONS = {
    "uncased": dict(lowercase=True),
    "cased": dict(lowercase=False),
    "accents and Chinese kept": dict(
        lowercase=True, strip_accents=False, split_cjk=False, max_characters_per_word=200
    ),
    "cased, no accents": dict(lowercase=False, strip_accents=True),
}
RELEASED = [("bert-base-uncased-vocab.txt", True), ("bert-base-cased-vocab.txt", False)]
STRINGS = 30_000


@pytest.fixture(scope="module")
def character_vocabulary() -> list[str]:
    return tokenizer_parity.character_vocabulary()


@pytest.fixture(scope="module")
def learned() -> BertTokenizer:
    words = (
        "the a of hello world banana bananas unhappy happier don't tokenizer tokens , . ! ? ' n't I'm we've"
    )
    return BertTokenizer.train([words] * 3, 120)


@pytest.fixture(params=RELEASED, ids=lambda case: case[0])
def released(request, shared_data) -> BertTokenizer:
    """The tokenizer of a released model."""
    name, lowercase = request.param
    return BertTokenizer.from_pretrained(shared_data / "vocab" / name, lowercase=lowercase)


def transformers_tokenizer(ours: BertTokenizer, folder: Path):
    """Transformers' tokenizer, read from the folder that ours has written."""
    transformers = pytest.importorskip(
        "transformers", reason="compares with transformers, which is not installed"
    )
    ours.save_pretrained(folder)
    return transformers.BertTokenizer.from_pretrained(folder)


@pytest.fixture
def both(learned, tmp_path):
    return learned, transformers_tokenizer(learned, tmp_path)


def compare(parity, where: str, ours: BertTokenizer, texts: Iterable[str]) -> None:
    """Hold the number of differences to 0, and enter it into the report."""
    compared, found = tokenizer_parity.compare(ours, tokenizer_parity.reference_tokenizer(ours), texts)
    parity.hold(where, f"of {compared:,} texts differ", len(found), 0, check=False)
    assert not found, "\n".join(found[:10])


@pytest.mark.parametrize("name", OPTIONS)
def test_random_strings(parity, character_vocabulary, name):
    ours = BertTokenizer(character_vocabulary, **OPTIONS[name])
    texts = tokenizer_parity.random_texts(STRINGS, parity.seed, ours.tokens)
    compare(parity, f"tokenizer, {name}", ours, texts)


def test_random_strings_with_the_released_vocabularies(parity, released):
    texts = tokenizer_parity.random_texts(STRINGS, parity.seed + 1, released.tokens)
    compare(parity, f"tokenizer, {'un' * released.lowercase}cased vocabulary", released, texts)


def marks_stay(text: str) -> bool:
    """Whether NFD leaves all marks in their order, also once control characters between them are gone."""
    kept = "".join(char for char in text if unicodedata.category(char)[0] != "C" and char != "\ufffd")
    return unicodedata.normalize("NFD", kept) == "".join(unicodedata.normalize("NFD", char) for char in kept)


@pytest.mark.parametrize("name", OPTIONS)
def test_where_tokens_stand_in_random_strings(parity, character_vocabulary, name):
    """Left out: texts whose marks NFD puts into another order. There theirs are those of the new place."""
    ours = BertTokenizer(character_vocabulary, **OPTIONS[name])
    theirs = tokenizer_parity.reference_tokenizer(ours)
    compared, differing = 0, []
    for text in tokenizer_parity.random_texts(STRINGS // 3, parity.seed + 3, ours.tokens):
        if marks_stay(text):
            compared += 1
            if ours.token_ids_with_spans(text)[1] != theirs.encode(text, add_special_tokens=False).offsets:
                differing.append(text)
    assert compared > STRINGS // 4
    parity.hold(f"offsets, {name}", f"of {compared:,} texts differ", len(differing), 0, check=False)
    assert not differing, differing[:10]


def test_random_strings_show_a_difference_where_there_is_one(character_vocabulary):
    ours = BertTokenizer(character_vocabulary, **BertTokenizer.ORIGINAL)
    theirs = tokenizer_parity.reference_tokenizer(ours)
    _, found = tokenizer_parity.compare(ours, theirs, tokenizer_parity.random_texts(500, 0, ours.tokens))
    assert len(found) > 20


def test_lone_surrogates_are_refused_by_both(learned):
    theirs = tokenizer_parity.reference_tokenizer(learned)
    for text in ("a \ud83d", "\udc00b"):
        with pytest.raises(UserError, match="surrogate"):
            learned.token_ids(text)
        with pytest.raises((UnicodeEncodeError, TypeError)):
            theirs.encode(text)


def test_wikipedia(parity, shared_data, released):
    texts = tokenizer_parity.lines(str(shared_data / "wikipedia_en" / "enwiki_wikiextractor_0.txt.gz"))
    where = f"tokenizer, {'un' * released.lowercase}cased Wikipedia"
    compare(parity, where, released, itertools.islice(texts, 5000))


def compare_calls(parity, where: str, ours: BertTokenizer, folder: Path) -> None:
    """Hold the number of calls with another answer to 0, and enter it into the report."""
    rng = random.Random(parity.seed + 2)
    calls = (tokenizer_parity.random_call(rng, ours.tokens) for _ in range(3000))
    theirs = transformers_tokenizer(ours, folder)
    given, refused, differing = tokenizer_parity.compare_calls(ours, theirs, calls)
    assert given > 1500 and refused > 50
    parity.hold(where, f"of {given:,} calls differ", len(differing), 0, check=False)
    assert not differing, differing[:10]


def test_calls(parity, learned, tmp_path):
    compare_calls(parity, "tokenizer, learned vocabulary", learned, tmp_path)


def test_calls_with_the_released_vocabularies(parity, released, tmp_path):
    where = f"tokenizer, {'un' * released.lowercase}cased vocabulary"
    compare_calls(parity, where, released, tmp_path)


@pytest.mark.parametrize("strategy", ["only_first", "only_second"])
def test_truncation_of_one_side_equals_transformers(both, strategy):
    ours, theirs = both
    call = dict(truncation=strategy, max_length=11)
    texts = ("hello world banana x", "the a of hello world banana")
    if strategy == "only_first":
        texts = texts[::-1]
    assert ours(*texts, **call) == dict(theirs(*texts, **call))


def test_decoding(both):
    """Of any ids, also those that no text has."""
    ours, theirs = both
    rng = random.Random(2)
    for _ in range(500):
        ids = [rng.randrange(len(ours)) for _ in range(rng.randint(0, 12))]
        for skip in (False, True):
            assert ours.decode(ids, skip) == theirs.decode(ids, skip_special_tokens=skip), ids
    assert [ours.decode([i]) for i in range(len(ours))] == [theirs.decode([i]) for i in range(len(ours))]


def test_a_folder_of_transformers_opens_here(both, tmp_path):
    _, theirs = both
    theirs.save_pretrained(tmp_path / "theirs")
    ours = BertTokenizer.from_pretrained(tmp_path / "theirs")
    text = "Hello WÖRLD, bananas [SEP] unhappily"
    assert ours(text, "the") == dict(theirs(text, "the"))


def test_learning_equals_the_reference_trainer():
    """Where no two pairs are equally frequent: among many short words, and before the rare pairs."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

    rng = random.Random(3)
    words = {"".join(rng.choices("abcd", k=rng.randint(1, 5))) for _ in range(300)}
    texts = [" ".join([word] * rng.randint(1, 1000)) for word in sorted(words)]
    ours = BertTokenizer.train(texts, 60)
    theirs = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    theirs.normalizer = normalizers.BertNormalizer()
    theirs.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    theirs.train_from_iterator(
        texts,
        trainers.WordPieceTrainer(
            vocab_size=60,
            min_frequency=2,
            special_tokens=list(tokenizer_parity.SPECIAL_TOKENS.values()),
            continuing_subword_prefix="##",
            show_progress=False,
        ),
    )
    assert sorted(theirs.get_vocab()) == sorted(ours.tokens)
