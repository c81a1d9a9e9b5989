"""Corpora turned into token arrays on disk."""

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from minibert.data import Documents, PreparedCorpus, open_corpus, prepare_corpus, prepared, training_sentences
from minibert.data.corpora import RawDocument
from minibert.data.prepared import split_documents
from minibert.data.randomness import generator
from minibert.errors import UserError
from minibert.text import AlbertTokenizer, BertTokenizer, RobertaTokenizer, XLNetTokenizer

WORDS = "the old house stood at the end of a lane and nobody had lived in it for many years".split()


@pytest.fixture
def corpus(tmp_path):
    """Two hundred documents, of one sentence a line."""
    rng = np.random.default_rng(0)
    documents = [
        "".join(
            " ".join(rng.permutation(WORDS)[: rng.integers(2, 12)]) + ".\n" for _ in range(rng.integers(1, 9))
        )
        for _ in range(200)
    ]
    path = tmp_path / "corpus.txt"
    path.write_text("\n".join(documents))
    return open_corpus([path])


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def all_documents(ready: PreparedCorpus) -> list[list[list[int]]]:
    """The token ids of both parts, in the corpus's order."""
    found = {}
    for part in (ready.train, ready.held_out):
        for index, document in enumerate(part.chosen.tolist()):
            bounds = part.sentence_bounds(index)
            found[document] = [part.tokens[a:b].tolist() for a, b in itertools.pairwise(bounds)]
    return [found[document] for document in sorted(found)]


def test_the_arrays_hold_what_the_tokenizer_gives(corpus, tokenizer, tmp_path):
    ready = prepare_corpus(corpus, tokenizer, tmp_path / "out", processes=1)
    assert all_documents(ready) == [tokenizer.token_ids_batch(document) for document in corpus]
    assert ready.train.tokens.dtype == np.uint16
    assert not ready.reused and "written to" in ready.describe()


def test_any_number_of_processes_gives_the_same_bytes(corpus, tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr(prepared, "PIECE_CHARACTERS", 500)
    for processes in (1, 2, 3):
        prepare_corpus(corpus, tokenizer, tmp_path / str(processes), processes=processes)
    first = contents(tmp_path / "1")
    arrays = {"tokens.bin", "sentence_starts.bin", "document_starts.bin", "document_keys.bin"}
    assert set(first) == arrays | {"meta.json"}
    assert first == contents(tmp_path / "2") == contents(tmp_path / "3")


def test_a_second_run_reuses_the_folder_and_says_so(corpus, tokenizer, tmp_path, monkeypatch):
    prepare_corpus(corpus, tokenizer, tmp_path / "out", processes=1)
    with monkeypatch.context() as patch:
        patch.setattr(prepared, "_write_arrays", None)  # would fail
        again = prepare_corpus(corpus, tokenizer, tmp_path / "out", held_out=0.2, seed=9)
    assert again.reused and "reused from" in again.describe()
    assert len(again.held_out) == 40


def test_another_corpus_or_tokenizer_is_prepared_anew(corpus, tokenizer, tmp_path):
    out = tmp_path / "out"
    prepare_corpus(corpus, tokenizer, out, processes=1)
    cased = BertTokenizer(tokenizer.tokens, lowercase=False)
    assert not prepare_corpus(corpus, cased, out, processes=1).reused
    assert prepare_corpus(corpus, cased, out, processes=1).reused
    shorter = BertTokenizer(tokenizer.tokens, lowercase=False, max_characters_per_word=120)
    assert not prepare_corpus(corpus, shorter, out, processes=1).reused
    prepare_corpus(corpus, cased, out, processes=1)
    corpus.files[0].write_text("One more.\n\nAnd another.\n")
    changed = prepare_corpus(open_corpus([corpus.files[0]]), cased, out, processes=1)
    assert not changed.reused and len(changed.train) + len(changed.held_out) == 2


def test_held_out_documents_never_leak(corpus, tokenizer, tmp_path):
    ready = prepare_corpus(corpus, tokenizer, tmp_path / "out", held_out=0.1, seed=4, processes=1)
    assert len(ready.held_out) == 20
    assert sorted([*ready.train.chosen, *ready.held_out.chosen]) == list(range(200))
    train, held_out = (
        {token for start, stop in part.token_ranges() for token in range(start, stop)}
        for part in (ready.train, ready.held_out)
    )
    assert not train & held_out and len(train | held_out) == len(ready.train.tokens)


def test_what_the_vocabulary_is_learned_from_is_what_is_trained_on(tmp_path, tokenizer):
    """Also where some documents repeat others, or lose all their tokens, or have no text to begin with."""
    path = tmp_path / "corpus.jsonl"
    texts = [f"The house of the {'old ' * i}lane.\nThe end." for i in range(60)]
    texts[5::10] = ["\u200b"] * 6
    texts[6::10] = [" \n \n"] * 6
    texts[40:45] = texts[:5]
    path.write_text("\n".join(map(json.dumps, texts)))
    corpus = open_corpus([path])
    for seed in range(5):
        split = {"held_out": 0.4, "seed": seed}
        ready = prepare_corpus(corpus, tokenizer, tmp_path / "out", **split, processes=1)
        trained_on = [
            ready.train.tokens[start:stop].tolist()
            for index in range(len(ready.train))
            for start, stop in itertools.pairwise(ready.train.sentence_bounds(index))
        ]
        learned_from = tokenizer.token_ids_batch(list(training_sentences(corpus, **split)))
        assert [ids for ids in learned_from if ids] == trained_on
        assert len(ready.train) + len(ready.held_out) == 48


@pytest.mark.parametrize("Tokenizer", [BertTokenizer, RobertaTokenizer, AlbertTokenizer, XLNetTokenizer])
def test_sentences_are_read_as_they_are_in_running_text(tmp_path, Tokenizer):
    """RoBERTa's tokens have the space between two sentences in them; the others drop it."""
    path, sentences = tmp_path / "corpus.txt", ["The house is old.", "The end.", "An old lane."]
    path.write_text("\n\n".join("\n".join(sentences[i:] + sentences[:i]) for i in range(3)) + "\n")
    corpus = open_corpus([path], "sentences")
    tokenizer = Tokenizer.train(training_sentences(corpus, held_out=0.4, seed=0), 300)
    ready = prepare_corpus(corpus, tokenizer, tmp_path / "out", held_out=0.4, processes=1)
    for part in (ready.train, ready.held_out):
        for start, stop in part.token_ranges():
            ids = part.tokens[start:stop].tolist()
            first = next(i for i in range(3) if ids == tokenizer.token_ids(" ".join(rotated(sentences, i))))
            assert tokenizer.decode(ids).lower() == " ".join(rotated(sentences, first)).lower()


def rotated(sentences, first):
    return sentences[first:] + sentences[:first]


def test_documents_with_the_same_text_are_on_the_same_side(tmp_path, tokenizer):
    path = tmp_path / "corpus.jsonl"
    path.write_text("\n".join(json.dumps(f"The house {'old ' * (i % 20)}lane.") for i in range(60)))
    ready = prepare_corpus(open_corpus([path]), tokenizer, tmp_path / "out", held_out=0.2, processes=1)
    sides = [
        {tuple(part.tokens[a:b]) for a, b in part.token_ranges()} for part in (ready.train, ready.held_out)
    ]
    assert list(map(len, sides)) == [16, 4] and not sides[0] & sides[1]


def test_the_split_is_a_function_of_seed_and_text():
    keys = generator("test").integers(1 << 64, size=1000, dtype=np.uint64)

    def held_out(seed: int, keys: np.ndarray = keys) -> set[int]:
        return set(keys[split_documents("name", keys, 0.1, seed)].tolist())

    assert held_out(1) == held_out(1, keys[::-1]) == held_out(1, np.repeat(keys, 3))
    # a tenth of the hundred held out by one seed are so by another, with a standard deviation of 3
    overlaps = [len(held_out(seed) & held_out(seed + 1)) for seed in range(100)]
    assert 8 < np.mean(overlaps) < 12 and max(overlaps) < 30
    highest_bit = np.array([0, 1 << 63], dtype=np.uint64)  # an even factor would lose it
    assert all(split_documents("name", highest_bit, 0.5, seed).sum() == 1 for seed in range(20))


def test_the_size_of_the_split():
    def split(n: int, share: float = 0.05) -> np.ndarray:
        return split_documents("name", np.arange(n, dtype=np.uint64), share, 0)

    sizes = {n: split(n).sum() for n in (2, 3, 4, 39, 60, 65, 95, 1000)}
    assert sizes == {2: 1, 3: 1, 4: 2, 39: 2, 60: 3, 65: 3, 95: 5, 1000: 50}
    assert (~split(10, 0.99)).sum() == 2
    for share in (0.0, 1.0, -1.0):
        with pytest.raises(UserError, match="between 0 and 1"):
            split(10, share)


def test_token_counts_are_those_of_the_part(corpus, tokenizer, tmp_path):
    ready = prepare_corpus(corpus, tokenizer, tmp_path / "out", held_out=0.3, processes=1)
    for part in (ready.train, ready.held_out):
        ids = np.concatenate([part.tokens[start:stop] for start, stop in part.token_ranges()])
        assert part.token_counts(tokenizer.vocab_size).tolist() == np.bincount(ids, minlength=150).tolist()
        assert part.lengths().sum() == len(ids)


def test_a_long_run_of_tokens_is_counted_whole():
    """It is counted in pieces of four million."""
    tokens = np.arange(5_000_000, dtype=np.uint16) % 7
    documents = Documents(tokens, np.array([0, len(tokens)]), np.array([0, 1]), np.array([0]))
    assert documents.token_counts(7).tolist() == np.bincount(tokens).tolist()


def test_many_starts_are_moved_on_alike(tmp_path):
    """They are read a million at a time."""
    starts = np.arange((1 << 20) + 5, dtype=np.int64) * 3
    starts.tofile(tmp_path / "part")
    with open(tmp_path / "whole", "wb") as to:
        prepared._append_starts(tmp_path / "part", len(starts), 10, to)
    np.testing.assert_array_equal(np.fromfile(tmp_path / "whole", np.int64), starts + 10)


def test_large_vocabularies_take_wider_ids(corpus, tmp_path):
    wide = SimpleNamespace(
        tokens=["x"] * 70_000,
        vocab_size=70_000,
        token_ids_batch=lambda texts: [[69_999] for _ in texts],
        definition=list,
    )
    ready = prepare_corpus(corpus, wide, tmp_path / "out", processes=1)
    assert ready.train.tokens.dtype == np.int32 and set(ready.train.tokens.tolist()) == {69_999}


def test_sentences_and_documents_without_tokens_are_left_out(tmp_path, tokenizer):
    path = tmp_path / "corpus.txt"
    path.write_text("The house.\n\n\u200b\n\nThe lane.\n\u200b\nThe end.\n")
    ready = prepare_corpus(open_corpus([path], layout="sentences"), tokenizer, tmp_path / "out", processes=1)
    assert [len(document) for document in all_documents(ready)] == [1, 2]
    assert sorted([*ready.train.chosen, *ready.held_out.chosen]) == [0, 2]  # numbered as in the corpus


def test_few_pieces_are_under_way_at_a_time(tokenizer):
    """Memory is bounded by what has been read and not yet written."""
    read = 0

    def pieces():
        nonlocal read
        for position in range(40):
            read += 1
            yield [RawDocument(["The old house."], False, position)]

    for done, piece in enumerate(prepared._ordered_map(pieces(), tokenizer, "uint16", processes=2)):
        assert piece.position == done
        assert read <= done + 1 + 4


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"The house. The lane.\n", "a corpus of one document"),
        (b"The house.\n\nThe house.\n\nThe house.\n", "all documents have the same text"),
        (b"\n \n", "no text in this corpus"),
        (b"The house.\n\nThe l\xe4ne.\n", "line 3 is not UTF-8"),
    ],
)
def test_a_bad_corpus_leaves_nothing_behind(tmp_path, tokenizer, text, message, processes):
    path = tmp_path / "corpus.txt"
    path.write_bytes(text)
    with pytest.raises(UserError, match=message) as caught:
        prepare_corpus(open_corpus([path]), tokenizer, tmp_path / "out", processes=processes)
    assert str(path) in str(caught.value)
    assert list(tmp_path.iterdir()) == [path]


def test_a_corpus_that_changes_meanwhile_leaves_nothing_behind(corpus, tokenizer, tmp_path, monkeypatch):
    raw_documents = type(corpus).raw_documents

    def changing(self):
        yield from raw_documents(self)
        with open(corpus.files[0], "a") as file:
            file.write("One more.\n")

    monkeypatch.setattr(type(corpus), "raw_documents", changing)
    with pytest.raises(UserError, match=r"corpus.txt: it has changed since the corpus was opened"):
        prepare_corpus(corpus, tokenizer, tmp_path / "out", processes=1)
    assert not (tmp_path / "out").exists()


def test_a_killed_process_is_told_in_one_line(corpus, tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr(prepared, "_work", killed)
    with pytest.raises(
        UserError, match=r"a process that prepared the corpus was killed, .* fewer --processes"
    ):
        prepare_corpus(corpus, tokenizer, tmp_path / "out", processes=2)
    assert not (tmp_path / "out").exists()


def killed(_):
    os.kill(os.getpid(), signal.SIGKILL)


def test_both_parts_need_a_document_with_tokens(tmp_path, tokenizer):
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(map(json.dumps, ["The house."] + ["\u200b" * n for n in range(1, 6)])))
    with pytest.raises(UserError, match=r"only 1 of 6 documents have any token, too few to train on"):
        prepare_corpus(open_corpus([path]), tokenizer, tmp_path / "out", processes=1)


def test_a_folder_of_something_else_is_not_touched(corpus, tokenizer, tmp_path):
    precious = tmp_path / "precious" / "thesis.tex"
    precious.parent.mkdir()
    precious.write_text("x")
    with pytest.raises(UserError, match="not empty and holds no prepared corpus"):
        prepare_corpus(corpus, tokenizer, precious.parent, processes=1)
    with pytest.raises(UserError, match="expected a folder for the prepared corpus, found a file"):
        prepare_corpus(corpus, tokenizer, precious, processes=1)
    assert precious.read_text() == "x"


KILLED = """
import os, signal, sys
from minibert.data import open_corpus, prepare_corpus, prepared
from minibert.text import BertTokenizer

tokenised = prepared._ordered_map

def first_and_killed(*arguments):
    yield next(tokenised(*arguments))
    os.kill(os.getpid(), signal.SIGKILL)

prepared.PIECE_CHARACTERS, prepared._ordered_map = 500, first_and_killed
corpus, tokenizer, folder = sys.argv[1:]
prepare_corpus(open_corpus([corpus]), BertTokenizer.from_pretrained(tokenizer), folder, processes=2)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="this system has no locks on folders")
def test_what_a_killed_preparation_left_is_removed_by_the_next(corpus, tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    out = tmp_path / "out" / "a[b]"
    arguments = [sys.executable, "-c", KILLED, str(corpus.files[0]), str(tmp_path / "tokenizer"), str(out)]
    assert subprocess.run(arguments).returncode == -signal.SIGKILL
    (left,) = out.parent.iterdir()
    assert left.name.startswith(".a[b].") and (left / "new" / "tokens.bin").is_file()
    deadline = time.monotonic() + 60
    while left.exists() and time.monotonic() < deadline:  # its workers may need a moment to notice
        shutil.rmtree(out, ignore_errors=True)
        prepare_corpus(corpus, tokenizer, out, processes=1)
    assert list(out.parent.iterdir()) == [out]


@pytest.mark.skipif(sys.platform == "win32", reason="this system has no locks on folders")
def test_what_another_one_is_still_writing_is_not_removed(corpus, tokenizer, tmp_path):
    out = tmp_path / "out" / "corpus"
    with prepared._unfinished(out) as unfinished:
        (unfinished / "tokens.bin").write_bytes(b"half")
        prepare_corpus(corpus, tokenizer, out, processes=1)
        assert (unfinished / "tokens.bin").read_bytes() == b"half"
        assert len(list(out.parent.iterdir())) == 2
        shutil.copytree(out, unfinished, dirs_exist_ok=True)
    assert list(out.parent.iterdir()) == [out]
    assert prepare_corpus(corpus, tokenizer, out).reused


def test_a_damaged_folder_is_told_from_a_missing_one(corpus, tokenizer, tmp_path):
    out = tmp_path / "out"
    prepare_corpus(corpus, tokenizer, out, processes=1)
    (out / "tokens.bin").write_bytes(b"x" * 10)
    with pytest.raises(UserError, match=r"tokens.bin: damaged: 10 bytes, expected [\d,]+; delete the folder"):
        PreparedCorpus.open(out)
    meta = json.loads((out / "meta.json").read_text())
    for name in ("corpus", "dtype", "tokens", "sentences", "documents"):
        for damaged in ({key: value for key, value in meta.items() if key != name}, meta | {name: None}):
            (out / "meta.json").write_text(json.dumps(damaged))
            with pytest.raises(UserError, match=r"meta\.json: damaged; delete the folder"):
                PreparedCorpus.open(out)
    (out / "meta.json").write_text(json.dumps(meta | {"format": 0}))
    with pytest.raises(UserError, match="not a prepared corpus of this version"):
        PreparedCorpus.open(out)
    with pytest.raises(UserError, match="no such prepared corpus"):
        PreparedCorpus.open(tmp_path / "none")


def test_progress_goes_to_stderr_only_when_asked(corpus, tokenizer, tmp_path, capsys):
    prepare_corpus(corpus, tokenizer, tmp_path / "quiet", processes=1)
    assert capsys.readouterr() == ("", "")
    prepare_corpus(corpus, tokenizer, tmp_path / "loud", processes=1, progress=True)
    printed = capsys.readouterr()
    assert printed.out == "" and "preparing: 100%" in printed.err
