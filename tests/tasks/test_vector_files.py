"""Files of vectors hold what was given to them."""

import json
import sys
from dataclasses import replace

import numpy as np
import pytest

from minibert.data.tasks import Place, TextExample
from minibert.errors import UserError
from minibert.tasks import vector_files
from minibert.tasks.embed import WordVectors
from minibert.tasks.vector_files import check_output, write_vectors, write_word_vectors


def pyarrow_parquet():
    return pytest.importorskip("pyarrow.parquet", reason="reads Parquet with pyarrow")


def test_vectors_are_written_in_four_ways(tmp_path):
    vectors = np.array([[0.1, 1 / 3], [2.0, -1e-7]], np.float32)
    texts = [TextExample(text, None, None, Place("a.txt", line)) for text, line in (("été", 1), ("b", 3))]
    for name in ("a.npy", "a.npz", "a.jsonl", "a.parquet"):
        write_vectors(tmp_path / name, texts, vectors)
    np.testing.assert_array_equal(np.load(tmp_path / "a.npy"), vectors)
    archive = np.load(tmp_path / "a.npz")
    np.testing.assert_array_equal(archive["vectors"], vectors)
    assert archive["lines"].tolist() == [1, 3]
    rows = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [(row["line"], row["text"]) for row in rows] == [(1, "été"), (3, "b")]
    np.testing.assert_array_equal(np.array([row["vector"] for row in rows], np.float32), vectors)
    assert rows[0]["vector"][0] == 0.1, "no more digits than are needed"
    table = pyarrow_parquet().read_table(tmp_path / "a.parquet")
    assert table["line"].to_pylist() == [1, 3] and table["text"].to_pylist() == ["été", "b"]
    np.testing.assert_array_equal(np.array(table["vector"].to_pylist(), np.float32), vectors)
    with pytest.raises(UserError, match=r"a.csv: unknown format for vectors; the suffix must be one of .npy"):
        write_vectors(tmp_path / "a.csv", texts, vectors)


@pytest.mark.parametrize("name", ["a.npy", "a.npz", "a.jsonl", "a.parquet"])
def test_vectors_of_a_broken_model_are_not_written(tmp_path, name):
    texts = [TextExample("a", None, None, Place("a.txt", 1))]
    with pytest.raises(UserError, match="the model gives vectors with NaN or infinity"):
        write_vectors(tmp_path / name, texts, np.array([[1, np.nan]], np.float32))
    if name in ("a.npz", "a.parquet"):
        _, (part, _) = parts((4,))
        part.vectors[1, 2] = np.inf
        with pytest.raises(UserError, match="the model gives vectors with NaN or infinity"):
            write_word_vectors(tmp_path / name, TEXTS, [part])
    assert not list(tmp_path.iterdir())


TEXTS = [
    TextExample(text, None, None, Place("a.txt", line)) for text, line in (("été b", 1), ("", 2), ("c", 4))
]


def parts(shape):
    """Two parts of words, of three texts of which the second has none."""
    vectors = np.random.default_rng(0).normal(size=(3, *shape)).astype(np.float32)
    spans = np.array([[0, 3], [4, 5], [0, 1]])
    first = WordVectors(np.array([0, 0]), ["été", "b"], spans[:2], vectors[:2], (2, 0), 1)
    return vectors, [first, WordVectors(np.array([2]), ["c"], spans[2:], vectors[2:], (2, 0), 0)]


@pytest.mark.parametrize("shape", [(4,), (2, 4)])
def test_words_as_arrays(tmp_path, shape):
    vectors, given = parts(shape)
    assert write_word_vectors(tmp_path / "w.npz", TEXTS, iter(given)) == (3, 1)
    held = np.load(tmp_path / "w.npz")
    np.testing.assert_array_equal(held["vectors"], vectors)
    assert held["texts"].tolist() == [0, 0, 2] and held["lines"].tolist() == [1, 1, 4]
    assert held["words"].tolist() == ["été", "b", "c"] and held["layers"].tolist() == [2, 0]
    assert held["spans"].tolist() == [[0, 3], [4, 5], [0, 1]]


@pytest.mark.parametrize("suffix", [".npz", ".parquet"])
def test_without_texts_there_is_nothing_to_write(tmp_path, suffix):
    with pytest.raises(UserError, match="there are no texts"):
        write_word_vectors(tmp_path / f"words{suffix}", [], [])
    assert not list(tmp_path.iterdir())


def test_an_endless_word_does_not_make_a_huge_file(tmp_path, monkeypatch):
    monkeypatch.setattr(vector_files, "ROOM", 30)
    _, (first, last) = parts((4,))
    given = [first, replace(last, words=["c" * 16])]  # room for 3 × 16 characters: 4 for each of 12 numbers
    write_word_vectors(tmp_path / "w.npz", TEXTS, given)
    with pytest.raises(UserError, match=r"n.npz: a word has 17 characters, .* write .parquet"):
        write_word_vectors(tmp_path / "n.npz", TEXTS, [first, replace(last, words=["c" * 17])])
    assert not (tmp_path / "n.npz").exists()


@pytest.mark.parametrize("shape", [(4,), (2, 4)])
def test_words_as_a_table_of_a_row_group_per_part(tmp_path, shape):
    parquet, (vectors, given) = pyarrow_parquet(), parts(shape)
    assert write_word_vectors(tmp_path / "w.parquet", TEXTS, iter(given)) == (3, 1)
    assert parquet.ParquetFile(tmp_path / "w.parquet").num_row_groups == 2
    rows = parquet.read_table(tmp_path / "w.parquet").to_pylist()
    assert [(row["text"], row["line"], row["word"], row["start"], row["stop"]) for row in rows] == [
        (0, 1, "été", 0, 3),
        (0, 1, "b", 4, 5),
        (2, 4, "c", 0, 1),
    ]
    names = ["vector"] if len(shape) == 1 else ["layer_2", "layer_0"]
    assert list(rows[0])[5:] == names
    held = np.array([[row[name] for name in names] for row in rows], np.float32)
    np.testing.assert_array_equal(held.reshape(vectors.shape), vectors)


def test_one_part_at_a_time_and_nothing_half_written(tmp_path):
    pyarrow_parquet()
    _, (first, _) = parts((4,))

    def broken():
        yield first
        raise UserError("no more")

    for name in ("w.parquet", "w.npz"):
        with pytest.raises(UserError, match="no more"):
            write_word_vectors(tmp_path / name, TEXTS, broken())
    assert list(tmp_path.iterdir()) == []


def test_what_words_cannot_be_written_to(monkeypatch):
    for name in ("v.npy", "v.jsonl", "v"):
        with pytest.raises(UserError, match=r"vectors of words; the suffix must be one of .npz, .parquet"):
            check_output(name, words=True)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(
        UserError, match=r'v.parquet: Parquet needs pyarrow; install it with  pip install "py'
    ):
        check_output("v.parquet")
