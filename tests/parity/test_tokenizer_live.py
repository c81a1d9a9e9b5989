"""The tokenizer against Hugging Face's, live: needs `tokenizers`, some tests also `transformers`."""

import random

import pytest

from minibert.text import BertTokenizer

pytest.importorskip("tokenizers", reason="compares with the package tokenizers, which is not installed")
from parity import tokenizer_parity as parity

CASES = [
    dict(lowercase=True),
    dict(lowercase=False),
    dict(lowercase=True, strip_accents=False, split_cjk=False, max_characters_per_word=200),
    dict(lowercase=False, strip_accents=True),
]


@pytest.fixture(scope="module")
def character_vocabulary() -> list[str]:
    return parity.character_vocabulary()


@pytest.fixture(scope="module")
def learned() -> BertTokenizer:
    words = (
        "the a of hello world banana bananas unhappy happier don't tokenizer tokens , . ! ? ' n't I'm we've"
    )
    return BertTokenizer.train([words] * 3, 120)


@pytest.fixture
def both(learned, tmp_path):
    """Our tokenizer, and transformers' read from the folder that ours has written."""
    transformers = pytest.importorskip(
        "transformers", reason="compares with transformers, which is not installed"
    )
    learned.save_pretrained(tmp_path)
    return learned, transformers.BertTokenizer.from_pretrained(tmp_path)


@pytest.mark.parametrize("options", CASES)
def test_ids_equal_the_reference_on_random_strings(character_vocabulary, options):
    ours = BertTokenizer(character_vocabulary, **options)
    texts = parity.random_texts(1500, random.randrange(10**9), ours.tokens)
    assert list(parity.differences(ours, parity.reference_tokenizer(ours), texts)) == []


def test_random_strings_show_a_difference_where_there_is_one(character_vocabulary):
    ours = BertTokenizer(character_vocabulary, **BertTokenizer.ORIGINAL)
    texts = parity.random_texts(500, 0, ours.tokens)
    assert len(list(parity.differences(ours, parity.reference_tokenizer(ours), texts))) > 20


@pytest.mark.parametrize("cased", [False, True])
def test_ids_equal_the_reference_on_wikipedia(shared_data, cased):
    name = f"vocab/bert-base-{'cased' if cased else 'uncased'}-vocab.txt"
    ours = BertTokenizer.from_pretrained(shared_data / name, lowercase=not cased)
    texts = parity.lines(str(shared_data / "wikipedia_en" / "enwiki_wikiextractor_0.txt.gz"))
    some = [text for text, _ in zip(texts, range(3000), strict=False)]
    assert list(parity.differences(ours, parity.reference_tokenizer(ours), some)) == []


def test_calls_equal_transformers(both):
    ours, theirs = both
    rng = random.Random(1)
    words = ["hello", "world", "banana", "x", "unhappy", "[MASK]", "don't", "zzz"]

    def text() -> str:
        return " ".join(rng.choices(words, k=rng.randint(0, 12)))

    for _ in range(600):
        count = rng.randint(1, 4)
        firsts, seconds = [text() for _ in range(count)], [text() for _ in range(count)]
        call = dict(
            padding=rng.choice([False, True, "longest", "max_length"]),
            truncation=rng.choice([None, False, True, "longest_first"]),
            max_length=rng.choice([3, 4, 7, 8, 20]),
        )
        if rng.random() < 0.2:
            firsts, seconds = firsts[0], seconds[0]
        pair = seconds if rng.random() < 0.6 else None
        assert ours(firsts, pair, **call) == dict(theirs(firsts, pair, **call)), (firsts, pair, call)


@pytest.mark.parametrize("strategy", ["only_first", "only_second"])
def test_truncation_of_one_side_equals_transformers(both, strategy):
    ours, theirs = both
    call = dict(truncation=strategy, max_length=11)
    texts = ("hello world banana x", "the a of hello world banana")
    if strategy == "only_first":
        texts = texts[::-1]
    assert ours(*texts, **call) == dict(theirs(*texts, **call))


def test_decoding_equals_transformers(both):
    ours, theirs = both
    rng = random.Random(2)
    for _ in range(500):
        ids = [rng.randrange(len(ours)) for _ in range(rng.randint(0, 12))]
        for skip in (False, True):
            assert ours.decode(ids, skip) == theirs.decode(ids, skip_special_tokens=skip), ours.tokens
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
            special_tokens=list(parity.SPECIAL_TOKENS.values()),
            continuing_subword_prefix="##",
            show_progress=False,
        ),
    )
    assert sorted(theirs.get_vocab()) == sorted(ours.tokens)
