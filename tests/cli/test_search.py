"""``minibert embed`` and ``minibert search`` as a person meets them."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from small_encoder import PASSAGES, QUERIES, TOKENIZER, write_encoder

from minibert.cli import main
from minibert.tasks.classify import Classify
from minibert.tasks.embed import TextEncoder, WordChoice
from minibert.tasks.rerank import DEPTH
from minibert.tasks.search import PassageIndex
from minibert.tasks.similarity import Similarity

FILES = {
    "texts.txt": "ann sings\nbob dances\n",
    "gap.txt": "ann sings\n\nbob dances\n",
    "table.tsv": "id\tname\n1\tann\n2\tbob\n",
    "passages.jsonl": "".join(json.dumps(vars(passage)) + "\n" for passage in PASSAGES),
    "more.tsv": "id\ttext\nnew\twhat ?\n",
    "queries.tsv": "query\tid\n" + "".join(f"{query.text}\t{query.passage}\n" for query in QUERIES),
    "lost.tsv": "query\tid\nwho ?\tnone\nwho sings ?\t0\n",
    "empty.txt": "",
}


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """The current directory: two encoders and files."""
    monkeypatch.chdir(tmp_path)
    write_encoder(Path("encoder"))
    write_encoder(Path("other"), seed=2)
    for name, content in FILES.items():
        Path(name).write_text(content, encoding="utf-8")
    return tmp_path


@pytest.fixture
def indexed(workplace, capsys):
    """The same with an index of the passages, and a random re-ranker."""
    pytest.importorskip("lancedb", reason="needs the vector database LanceDB, which is not installed")
    task = Classify(TOKENIZER, labels=["0", "1"])
    task.save(task.new_model("encoder", seed=3), "reranker")
    assert run("search index --model encoder --passages passages.jsonl --index index") == 0
    assert capsys.readouterr().out == "6 passages added; 6 in index, version 1\n"
    return workplace


def run(line: str) -> int:
    return main([*shlex.split(line), "--device", "cpu"])


def refused(capsys, line: str) -> str:
    """What is said, in one line, of a command that does not work, and leaves no file behind."""
    before = sorted(Path().rglob("*"))
    assert run(line) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert sorted(Path().rglob("*")) == before
    return said.removeprefix("minibert: error: ")


# -- embed ------------------------------------------------------------------------------------------


def test_embed_writes_a_vector_for_each_text(workplace, capsys):
    assert run("embed --model encoder --input texts.txt --output v.npy") == 0
    assert capsys.readouterr().out == "2 vectors of 8 numbers written to v.npy\n"
    expected = TextEncoder.open("encoder").embed(["ann sings", "bob dances"])
    np.testing.assert_allclose(np.load("v.npy"), expected, rtol=1e-4, atol=1e-6)


def test_embed_takes_columns_pooling_and_lengths(workplace):
    flags = "--pooling max --max-length 5 --normalise --batch-size 1"
    assert run(f"embed --model encoder --input table.tsv --column name --output v.npz {flags}") == 0
    archive = np.load("v.npz")
    encoder = TextEncoder.open("encoder", pooling="max", normalise=True, max_length=5)
    np.testing.assert_allclose(archive["vectors"], encoder.embed(["ann", "bob"]), rtol=1e-4, atol=1e-6)
    assert archive["lines"].tolist() == [2, 3]
    assert run("embed --model encoder --input table.tsv --column 2 --header --output w.npz") == 0
    assert np.load("w.npz")["lines"].tolist() == [2, 3]


def test_embed_says_how_many_texts_it_cuts_each_time(workplace, capsys):
    for _ in range(2):
        assert run("embed --model encoder --input texts.txt --output v.npz --max-length 3") == 0
        assert "minibert: warning: 2 of 2 texts have more than 3 tokens" in capsys.readouterr().err


def test_in_python_nothing_is_said_of_texts_that_are_cut(workplace):
    code = "from minibert.tasks.embed import TextEncoder\n"
    code += "TextEncoder.open('encoder', max_length=3).embed(['ann sings'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == ""


def test_embed_counts_what_it_leaves_out(workplace, capsys):
    said = refused(capsys, "embed --model encoder --input gap.txt --output v.npy")
    assert said.startswith("gap.txt: line 2: an empty line")
    assert run("embed --model encoder --input gap.txt --output v.jsonl --skip-bad") == 0
    assert "1 bad row(s) left out" in capsys.readouterr().err
    rows = [json.loads(line) for line in Path("v.jsonl").read_text().splitlines()]
    assert [(row["line"], row["text"]) for row in rows] == [(1, "ann sings"), (3, "bob dances")]


def test_embed_writes_the_words_of_texts(workplace, capsys):
    flags = "--tokens --layers -1,-2 --combine concat --word-pooling first --max-length 4"
    assert run(f"embed --model encoder --input texts.txt --output w.npz {flags}") == 0
    assert capsys.readouterr().out == "4 vectors of 16 numbers written to w.npz\n"
    choice = WordChoice(layers=(1, 0), combine="concat", pooling="first")
    [part] = TextEncoder.open("encoder").word_vectors(["ann sings", "bob dances"], choice)
    held = np.load("w.npz")
    np.testing.assert_allclose(held["vectors"], part.vectors, rtol=1e-4, atol=1e-6)
    assert held["words"].tolist() == part.words == ["ann", "sings", "bob", "dances"]
    assert run("embed --model encoder --input texts.txt --output w.npz --tokens --pieces --max-length 3") == 0
    said = capsys.readouterr()
    assert said.out == "2 vectors of 8 numbers written to w.npz\n"
    assert "2 of 2 texts have more than 3 tokens (max_length); their ends are not read" in said.err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--input texts.txt --output v.csv", "v.csv: unknown format for vectors"),
        ("--input passages.jsonl --output passages.jsonl", "passages.jsonl: the results would overwrite"),
        ("--input empty.txt --output v.npy", "empty.txt: there is no text to read"),
        ("--input none.txt --output v.npy", "none.txt: no such file"),
        ("--input table.tsv --output v.npy", "table.tsv: line 1: expected the columns (text) or (sentence)"),
        ("--input texts.txt --header --output v.npy", "which column holds the texts? give --column too"),
        ("--input table.tsv --column 3 --output v.npy", "table.tsv: line 1: expected the columns (3)"),
        ("--input texts.txt --output v.npy --max-length 1000", "encoder: max_length is 1000; expected 3 to"),
        ("--input texts.txt --output v.npz --tokens --layers -1,5", "there is no layer 5; expected 0"),
        (
            "--input texts.txt --output v.npz --tokens --layers 1,x",
            "--layers: expected whole numbers with commas between them, got '1,x'",
        ),
        ("--input texts.txt --output v.npz --layers -1,-2", "--layers is for vectors of words; add --tokens"),
        ("--input texts.txt --output v.npz --word-pooling first", "--word-pooling is for vectors of words"),
        ("--input texts.txt --output v.npz --tokens --pooling cls", "--pooling is for vectors of texts"),
        ("--input texts.txt --output v.npy --tokens", "v.npy: unknown format for vectors of words"),
        ("--input texts.txt --output v.npz --tokens --batch-size 0", "batch size must be at least 1, got 0"),
        ("--input texts.txt --output v.npy --batch-size 0", "batch size must be at least 1, got 0"),
    ],
)
def test_embed_refuses(workplace, capsys, flags, message):
    assert refused(capsys, f"embed --model encoder {flags}").startswith(message)


# -- search -----------------------------------------------------------------------------------------


def test_an_index_is_made_added_to_and_asked(indexed, capsys):
    assert run("search index --passages more.tsv --index index --approximate") == 0
    assert capsys.readouterr().out.startswith("1 passages added; 7 in index, version ")
    assert run('search query --index index "what ?" "ann sings" --top-k 2') == 0
    lines = capsys.readouterr().out.splitlines()
    assert [lines[0], lines[3]] == ["what ?", "ann sings"]
    assert [lines[1].split()[1:], lines[4].split()[1:]] == [["new", "what", "?"], ["0", "ann", "sings"]]
    assert run("search query --index index rome --top-k 9 --where \"title = 'places'\" --json --exact") == 0
    hits = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {hit["id"] for hit in hits} == {p.id for p in PASSAGES if p.title == "places"}
    assert run("search query --index index rome --where \"title = 'none'\"") == 0
    assert capsys.readouterr().out == "rome\n  no passage meets the condition\n"
    assert hits[0] == {
        "query": "rome",
        "score": pytest.approx(1, abs=1e-5),
        "id": "2",
        "text": "rome",
        "title": "places",
    }


def test_a_long_passage_without_spaces_is_shown_too(indexed, capsys):
    Path("long.tsv").write_text("id\ttext\nlong\t" + "x" * 300 + " y\n")
    assert run("search index --passages long.tsv --index index") == 0
    assert run("search query --index index --where \"id = 'long'\" x") == 0
    assert f"long  {'x' * 199}…\n" in capsys.readouterr().out


def test_a_reranker_is_trained_on_what_was_found_and_orders_it(indexed, capsys):
    assert run("search pairs --index index --queries queries.tsv --output pairs.jsonl --negatives 2") == 0
    assert capsys.readouterr().out == "9 pairs for 3 queries written to pairs.jsonl\n"
    examples = Classify(TOKENIZER).read("pairs.jsonl")
    assert [(e.text, e.label) for e in examples[:3]] == [("who sings ?", label) for label in "100"]
    assert run("search query --index index 'who sings ?' --top-k 6 --rerank reranker --json") == 0
    scores = [json.loads(line)["score"] for line in capsys.readouterr().out.splitlines()]
    assert len(scores) == 6 and scores == sorted(scores, reverse=True)
    assert run("search evaluate --index index --queries queries.tsv --rerank reranker --json s.json") == 0
    said = capsys.readouterr().out
    assert said.startswith("3 queries, 6 passages\n") and "\nre-ranked" in said
    scores = json.loads(Path("s.json").read_text())
    assert scores["database"] == scores["brute_force"] and scores["agreement"] == 1
    assert run("search evaluate --index index --queries queries.tsv --limit 2 --top-k 5") == 0
    assert capsys.readouterr().out.startswith("2 queries, 6 passages\n")


def test_the_index_is_searched_as_the_flags_say(indexed, monkeypatch):
    asked, search = [], PassageIndex.search

    def listen(index, vectors, top_k, exact=False, where=None):
        asked.append((top_k, exact, where))
        return search(index, vectors, top_k, exact=exact, where=where)

    monkeypatch.setattr(PassageIndex, "search", listen)
    queries = "--index index --queries queries.tsv"
    for line, expected in {
        "query --index index rome": (5, False, None),
        "query --index index rome --exact --top-k 2": (2, True, None),
        "query --index index rome --rerank reranker": (DEPTH, False, None),
        f"query --index index rome --rerank reranker --top-k {DEPTH + 1}": (DEPTH + 1, False, None),
        "query --index index rome --rerank reranker --depth 5": (5, False, None),
        f"evaluate {queries}": (DEPTH, False, None),
        f"evaluate {queries} --exact --top-k 4": (4, True, None),
        f"pairs {queries} --output p.jsonl": (DEPTH, False, None),
        f"pairs {queries} --output p.jsonl --exact --depth 4": (4, True, None),
    }.items():
        assert run(f"search {line}") == 0
        assert asked.pop() == expected and not asked, line


def test_the_seed_decides_on_the_wrong_passages(indexed):
    pairs = []
    for seed in (0, 0, 1):
        assert run(f"search pairs --index index --queries queries.tsv --output p.jsonl --seed {seed}") == 0
        pairs.append(Path("p.jsonl").read_text())
    assert pairs[0] == pairs[1] != pairs[2]


def test_an_encoder_that_was_fine_tuned_searches(indexed, capsys):
    task = Similarity(TOKENIZER)
    task.save(task.new_model("encoder", seed=1), "tuned")
    assert run("search index --model tuned --passages texts.txt --index lines") == 0
    capsys.readouterr()
    assert run("search query --index lines 'bob dances' --top-k 1") == 0
    assert capsys.readouterr().out.split()[3:] == ["texts.txt:2", "bob", "dances"]


@pytest.mark.parametrize(
    "line",
    [
        "embed --model encoder --input texts.txt --output empty.txt/v.npy",
        "search index --model encoder --passages texts.txt --index empty.txt/index",
        "search evaluate --index index --queries queries.tsv --json empty.txt/s.json",
        "search pairs --index index --queries queries.tsv --output empty.txt/p.jsonl",
    ],
)
def test_a_place_for_results_is_looked_for_before_they_are_computed(indexed, capsys, monkeypatch, line):
    monkeypatch.setattr(TextEncoder, "embed", lambda *arguments: pytest.fail("too late"))
    assert "cannot write here" in refused(capsys, line)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("index --passages texts.txt --index new", "new: a new index needs an encoder; give --model FOLDER"),
        (
            "index --model encoder --passages empty.txt --index new",
            "empty.txt: there is no text to read",
        ),
        ("index --passages passages.jsonl --index index", "two passages have the id '0'"),
        ("index --model encoder --passages more.tsv more.tsv --index new", "two passages have the id 'new'"),
        ("index --passages more.tsv --index encoder", "encoder: this is not an index of passages"),
        ("index --pooling cls --passages more.tsv --index index", "index: made with another model ("),
        ("query --index index rome ' '", "an empty question; give some words to search for"),
        (
            "pairs --index index --queries queries.tsv --output p.jsonl.gz",
            "p.jsonl.gz: pairs are written as JSON lines; give a name that ends in .jsonl",
        ),
        ("query --index nowhere rome", "nowhere: no index of passages; make one with"),
        ("query --index index --top-k 0 rome", "top_k must be a whole number of at least 1, got 0"),
        (
            "query --index index --top-k -1 --rerank reranker rome",
            "top_k must be a whole number of at least 1, got -1",
        ),
        ("query --index index --right-label 1 rome", "--right-label is a label of the classifier that re-"),
        (
            "query --index index --rerank reranker --right-label a rome",
            "reranker: has no label 'a'; its labels",
        ),
        (
            "pairs --index index --queries queries.tsv --output p.txt",
            "p.txt: pairs are written as JSON lines",
        ),
        ("query --index index --depth 9 rome", "--depth is the number of passages to re-rank; give --rerank"),
        (
            "query --index index --depth 2 --top-k 3 --rerank reranker rome",
            "depth must be at least top_k, 3, got 2",
        ),
        (
            "evaluate --index index --queries queries.tsv --top-k 0",
            "top_k must be a whole number of at least 1, got 0",
        ),
        ("query --index index --where x=1 rome", "the condition 'x=1' cannot be used"),
        ("query --index index --rerank encoder rome", "encoder: cannot re-rank with this model of the task"),
        ("query --index index --model other rome", "index: made with another model ("),
        ("evaluate --index index --queries lost.tsv", "lost.tsv: line 2: its passage is not in the index"),
        ("evaluate --index index --queries queries.tsv --limit 0", "at least 1 query is needed"),
        ("pairs --index index --queries none.tsv --output p.jsonl", "none.tsv: no such file"),
    ],
)
def test_search_refuses(indexed, capsys, line, message):
    assert refused(capsys, f"search {line}").startswith(message)


def test_without_the_database_one_line_says_what_to_install(workplace, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "lancedb", None)
    said = refused(capsys, "search index --model encoder --passages texts.txt --index index")
    assert said.endswith("LanceDB, which is not installed; run  python -m pip install lancedb")
