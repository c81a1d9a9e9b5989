"""The tokenizers of ALBERT and XLNet against transformers' and SentencePiece's, live.

The strings are new in every run; the report at its end tells the seed (PARITY_SEED repeats it).
"""

import itertools
import json
import math
import random
import tarfile
from collections import Counter
from collections.abc import Iterable, Iterator

import pytest

from minibert.errors import UserError
from minibert.text import AlbertTokenizer, XLNetTokenizer
from minibert.text.metaspace import MetaspaceNormaliser
from minibert.text.unigram import Unigram
from minibert.text.unigram_files import AddedToken

pytest.importorskip("tokenizers", reason="compares with tokenizers, which is not installed")
pytest.importorskip("sentencepiece", reason="compares with SentencePiece, which is not installed")
pytest.importorskip("transformers", reason="compares with transformers, which is not installed")
import sentencepiece
import tokenizers
import transformers
from parity import tokenizer_parity, unigram_parity

CLASSES = pytest.mark.parametrize("kind", unigram_parity.CLASSES, ids=lambda kind: kind.__name__)
STRINGS = 2_000


def compare(parity, where: str, ours, texts: Iterable[str]) -> None:
    """Hold the number of differences to 0, and enter it into the report."""
    compared, found = unigram_parity.compare(ours, unigram_parity.reference_tokenizer(ours), texts)
    parity.hold(where, f"of {compared:,} texts differ", len(found), 0, check=False)
    assert not found, "\n".join(found[:10])


@CLASSES
@pytest.mark.parametrize("rules", ["none", *unigram_parity.RULES])
def test_random_strings(parity, kind, rules):
    """Ids, places and decoded texts, with pieces whose scores often tie."""
    ours = unigram_parity.character_tokenizer(kind, parity.seed, charsmap=unigram_parity.rules_named(rules))
    texts = unigram_parity.random_texts(STRINGS, parity.seed, ours)
    compare(parity, f"{kind.__name__}, rules {rules}", ours, texts)


@pytest.mark.parametrize("rules", unigram_parity.RULES)
def test_random_strings_with_accents_kept(parity, rules):
    options = dict(keep_accents=True, charsmap=unigram_parity.rules_named(rules))
    ours = unigram_parity.character_tokenizer(AlbertTokenizer, parity.seed, **options)
    compare(parity, f"accents kept, {rules}", ours, unigram_parity.random_texts(STRINGS, parity.seed, ours))


def test_no_rules_that_sentencepiece_brings_begin_where_chunks_are_split():
    """With a space, or with a character that would draw the space after it into its cluster."""
    for name in unigram_parity.RULES:
        rules = AlbertTokenizer(
            [(token.content, 0.0) for token in AlbertTokenizer.added],
            charsmap=unigram_parity.rules_named(name),
        )._normaliser.character_map
        prepended = tokenizer_parity.characters(tokenizer_parity.unicode_tables.PREPENDED)
        for char in [" ", *prepended]:
            assert rules.shortest(char) is None
            for after in "\u0301\u0308\u0328\u3099":
                assert rules.shortest(char + after) is None


@pytest.fixture(scope="module")
def wikipedia(shared_data) -> list[str]:
    lines = tokenizer_parity.lines(str(shared_data / "wikipedia_en" / "enwiki_wikiextractor_0.txt.gz"))
    return [line.strip() for line in itertools.islice(lines, 30_000) if line.strip() and line[0] != "<"]


def novels(folder) -> Iterator[str]:
    """Two of the hundred, line by line."""
    (path,) = (folder / "novels100").glob("*.tar.gz")
    with tarfile.open(path) as archive:
        files = (archive.extractfile(member) for member in archive if member.name.endswith(".txt"))
        for file in itertools.islice(filter(None, files), 2):
            yield from file.read().decode("utf-8-sig").splitlines(keepends=True)


@pytest.fixture(scope="module", params=unigram_parity.CLASSES, ids=lambda kind: kind.__name__)
def model(request, wikipedia, tmp_path_factory):
    """A class, and a folder with a spiece.model of 8,000 pieces that SentencePiece has learned."""
    folder = tmp_path_factory.mktemp("model")
    data = unigram_parity.learned_by_sentencepiece(
        request.param, wikipedia[:8000], 8000, character_coverage=0.9999
    )
    (folder / "spiece.model").write_bytes(data)
    return request.param, folder


def test_real_text_and_random_strings_with_a_learned_vocabulary(parity, model, wikipedia, shared_data):
    kind, folder = model
    plain = kind.from_pretrained(folder, added_tokens=None)
    declared = kind.from_pretrained(folder)
    for name, ours in (("", plain), (", declared tokens", declared)):
        compare(parity, f"{kind.__name__}{name}, Wikipedia", ours, wikipedia[-5000:])
        compare(parity, f"{kind.__name__}{name}, novels", ours, itertools.islice(novels(shared_data), 8000))
        texts = unigram_parity.random_texts(STRINGS, parity.seed, ours)
        compare(parity, f"{kind.__name__}{name}, strings", ours, texts)


@CLASSES
def test_rust_reads_the_learned_scores_that_were_written(kind, wikipedia, tmp_path):
    """Its reader of JSON is off by a bit where a number has 17 digits; then it breaks ties otherwise."""
    ours = kind.train(wikipedia[:500], 1000)
    ours.save_pretrained(tmp_path)
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert [score for _, score in json.loads(theirs.to_str())["model"]["vocab"]] == ours.scores


def test_sentencepiece_itself(parity, model, wikipedia):
    """The ids that it gives with its own model, for texts that it normalises as we do."""
    kind, folder = model
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(folder / "spiece.model"))
    ours = kind.from_pretrained(folder, lowercase=False, added_tokens=None)
    apart = ["``", "''", *(token.content for token in ours.added_tokens)]
    texts = [text for text in wikipedia[-5000:] if text.isascii() and not any(part in text for part in apart)]
    differing = [text for text in texts if ours.token_ids(text) != theirs.encode(text)]
    where = f"{kind.__name__}, SentencePiece"
    parity.hold(where, f"of {len(texts):,} texts differ", len(differing), 0, check=False)
    assert len(texts) > 2000
    assert not differing, differing[:3]


@CLASSES
@pytest.mark.parametrize("learned_by", ["ours", "SentencePiece"])
def test_folders_go_both_ways(kind, learned_by, tmp_path):
    """Transformers' AutoTokenizer reads ours, and we what it writes: the same added tokens and calls."""
    words = ["Low lower lowest newer new (it's) 12,000 [MASK] so-called pieces."] * 50
    if learned_by == "ours":
        ours = kind.train(words, 60)
    else:
        data = unigram_parity.learned_by_sentencepiece(kind, words, 60, hard_vocab_limit=False)
        (tmp_path / "spiece.model").write_bytes(data)
        ours = kind.from_pretrained(tmp_path)
    ours.save_pretrained(tmp_path / "ours")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "ours")
    assert type(theirs).__name__ == kind.__name__
    theirs.save_pretrained(tmp_path / "theirs")
    again = kind.from_pretrained(tmp_path / "theirs")
    assert (again.tokens, again.scores, again.charsmap) == (ours.tokens, ours.scores, ours.charsmap)
    assert again.added_tokens == ours.added_tokens
    assert again.added_tokens == tuple(
        AddedToken(token.content, token.special, token.lstrip)
        for _, token in sorted(theirs.added_tokens_decoder.items())
    )
    calls_agree(ours, theirs, seed=5)


def calls_agree(ours, theirs, seed: int) -> None:
    """Whatever is asked for, we give what transformers gives, or refuse where it does something else."""
    rng = random.Random(seed)
    refused = 0
    for _ in range(1000):
        texts = [
            [next(unigram_parity.random_texts(1, rng.random(), ours))[:60] for _ in range(rng.randint(1, 3))]
        ]
        if rng.random() < 0.6:
            texts.append([text[::-1] for text in texts[0]])
        options = dict(
            padding=rng.choice([False, True, "longest", "max_length"]),
            truncation=rng.choice([None, False, True, "longest_first"]),
            max_length=rng.choice([None, 3, 4, 5, 8, 13, 30]),
        )
        expected = dict(theirs(*texts, return_token_type_ids=True, **options))
        try:
            assert ours(*texts, **options) == expected, (texts, options)
        except UserError:
            refused += 1
            assert options["padding"] == "max_length" and options["max_length"] is None
    assert refused < 200
    for _ in range(500):
        ids = [rng.randrange(len(ours)) for _ in range(rng.randint(0, 12))]
        for skip in (False, True):
            assert ours.decode(ids, skip) == theirs.decode(ids, skip_special_tokens=skip), ids


def test_a_folder_of_an_earlier_version(tmp_path):
    """Without a list of extra tokens, and with a mask that takes the space before it."""
    XLNetTokenizer.train(["Low lower lowest"] * 9, 30).save_pretrained(tmp_path)
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    content["added_tokens"] = content["added_tokens"][:7]
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 512}))
    ours = XLNetTokenizer.from_pretrained(tmp_path)
    theirs = transformers.XLNetTokenizer.from_pretrained(tmp_path)
    assert ours.added_tokens == tuple(
        AddedToken(token.content, token.special, token.lstrip)
        for _, token in sorted(theirs.added_tokens_decoder.items())
    )
    expected = theirs("Low  <mask> er", add_special_tokens=False, return_offsets_mapping=True)
    assert ours.token_ids_with_spans("Low  <mask> er") == (expected["input_ids"], expected["offset_mapping"])


def test_learning_is_as_good_as_theirs(parity, wikipedia):
    """Log likelihood per character and tokens per word on held-out text, of 1,500 pieces."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    normaliser = MetaspaceNormaliser(lowercase=True, keep_accents=False, character_map=None)

    def words(lines):
        return [
            [word for chunk in normaliser.chunks(line) for word in normaliser.words(chunk)] for line in lines
        ]

    ours = AlbertTokenizer.train(wikipedia[:2000], 1500)
    alphabet = {token for token in ours.tokens if len(token) == 1}
    texts = [" ".join(w[1:] for w in line if alphabet.issuperset(w)) for line in words(wikipedia[:2000])]
    theirs = Tokenizer(models.Unigram())
    theirs.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=1500, unk_token="<unk>", special_tokens=["<unk>"], show_progress=False
    )
    theirs.train_from_iterator(texts, trainer)
    learned = unigram_parity.read(
        unigram_parity.trained(
            texts,
            vocab_size=1500,
            normalization_rule_name="identity",
            character_coverage=1.0,
            split_by_unicode_script=False,
            split_by_number=False,
        )
    )
    held_out = Counter(w for line in words(wikipedia[-1000:]) for w in line if alphabet.issuperset(w))
    pieces = [
        list(zip(ours.tokens, ours.scores, strict=True)),
        [tuple(piece) for piece in json.loads(theirs.to_str())["model"]["vocab"]],
        learned.pieces,
    ]
    (likelihood, tokens), *others = (quality(found, held_out) for found in pieces)
    for name, (their_likelihood, their_tokens) in zip(("tokenizers", "SentencePiece"), others, strict=True):
        parity.hold(
            f"learning, {name}", "less likelihood per character", likelihood / their_likelihood - 1, 0.01
        )
        parity.hold(f"learning, {name}", "more tokens per word", tokens / their_tokens - 1, 0.01)


def quality(pieces, words: Counter) -> tuple[float, float]:
    """Log likelihood per character of the best segmentations, and tokens per word."""
    ids = [i for i, (piece, _) in enumerate(pieces) if piece == "<unk>"]
    model = Unigram(pieces, ids[0])
    likelihood = tokens = characters = 0.0
    for word, count in words.items():
        found = model.segment(word)
        likelihood += count * math.fsum(
            model.unknown_score * length if i == ids[0] else pieces[i][1] for i, length in found
        )
        tokens += count * len(found)
        characters += count * len(word)
    return likelihood / characters, tokens / words.total()
