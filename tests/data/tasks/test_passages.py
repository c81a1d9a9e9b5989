import gzip
import json
import os

import pytest

from minibert.data.tasks import Faults, Passage, Query, read_passages, read_queries, read_texts, some_queries
from minibert.errors import UserError


@pytest.fixture
def write(tmp_path):
    def write_file(name, text):
        data = text.encode()
        (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return tmp_path / name

    return write_file


def squad(*articles):
    """A SQuAD file of articles, each (title, [(paragraph, [question, …]), …]); "?!" has no answer."""
    content = [
        {
            "title": title,
            "paragraphs": [{"context": text, "qas": [*map(_entry, asked)]} for text, asked in parts],
        }
        for title, parts in articles
    ]
    return json.dumps({"data": content})


def _entry(question):
    if question.endswith("?!"):
        return {"id": question, "question": question, "answers": [], "is_impossible": True}
    return {"id": question, "question": question, "answers": [{"text": "A", "answer_start": 0}]}


# -- Texts ------------------------------------------------------------------------------------------


def test_a_text_a_line_or_a_column(write):
    assert [t.text for t in read_texts(write("a.txt", "one\ntwo words\n"))] == ["one", "two words"]
    table = write("a.tsv", "id\ttext\tmore\n1\tone\tx\n2\ttwo\ty\n")
    assert [t.text for t in read_texts(table)] == ["one", "two"]
    assert [t.text for t in read_texts(table, "more")] == ["x", "y"]
    assert [t.text for t in read_texts(table, 3)] == ["more", "x", "y"]
    assert [t.text for t in read_texts(table, 3, header=True)] == ["x", "y"]
    plain = write("plain.dat", "one,x\ntwo,y\n")
    assert [t.text for t in read_texts(plain, 2, file_format="csv")] == ["x", "y"]
    assert [t.text for t in read_texts(write("a.jsonl.gz", '{"text": "one"}\n'))] == ["one"]


def test_a_column_is_one_of_a_table(write):
    plain = write("plain.dat", '{"text": "one"}\n')
    assert [t.text for t in read_texts(plain)] == ['{"text": "one"}']
    assert [t.text for t in read_texts(plain, file_format="jsonl")] == ["one"]
    with pytest.raises(UserError, match=r"plain.dat: its suffix does not tell the format; use .tsv"):
        read_texts(plain, "text")


SQUAD_WITH_A_FAULT = (
    '{"data": [{"title": "T", "paragraphs": [3, {"context": "A a", "qas": ['
    '{"id": "q", "question": "Who?", "answers": [{"text": "A", "answer_start": 0}]}]}]}]}'
)


@pytest.mark.parametrize(
    ("read", "name", "text"),
    [
        (read_texts, "a.tsv", "text\n \none\n"),
        (read_passages, "a.txt", "one\n\n"),
        (read_passages, "a.tsv", "id\ttext\nx\tone\nx\n"),
        (read_passages, "a.json", SQUAD_WITH_A_FAULT),
        (
            lambda path, faults: read_queries(path, [Passage("x", "A a")], faults),
            "a.json",
            SQUAD_WITH_A_FAULT,
        ),
        (
            lambda path, faults: read_queries(path, [Passage("x", "A")], faults),
            "a.tsv",
            "query\tid\nwho?\tx\nno\n",
        ),
    ],
)
def test_every_way_of_reading_leaves_out_what_is_bad(write, read, name, text):
    path, faults = write(name, text), Faults(skip_bad=True)
    with pytest.raises(UserError, match=r"--skip-bad\)$"):
        read(path, faults=Faults())
    assert len(read(path, faults=faults)) == 1
    assert len(faults.skipped) == 1


def test_empty_lines_are_refused_or_left_out(write):
    path = write("a.txt", "one\n \t\ntwo\n")
    with pytest.raises(UserError, match=r"a.txt: line 2: an empty line; correct it, or leave"):
        read_texts(path)
    faults = Faults(skip_bad=True)
    assert [(t.text, t.place.line) for t in read_texts(path, faults=faults)] == [("one", 1), ("two", 3)]
    assert len(faults.skipped) == 1
    with pytest.raises(UserError, match=r"empty.txt: there is no text to read; give another file"):
        read_texts(write("empty.txt", ""))


# -- Passages ---------------------------------------------------------------------------------------


def test_passages_of_lines_have_the_line_as_their_id(write):
    assert read_passages(write("notes.txt", "one\ntwo\n")) == [
        Passage("notes.txt:1", "one"),
        Passage("notes.txt:2", "two"),
    ]


def test_passages_of_tables(write):
    assert read_passages(write("a.tsv", "id\ttext\nx\tone\ny\ttwo\n")) == [
        Passage("x", "one"),
        Passage("y", "two"),
    ]
    rows = '{"id": 7, "text": "one", "title": "T"}\n{"id": 8, "text": "two", "title": "U"}\n'
    assert read_passages(write("a.jsonl", rows)) == [Passage("7", "one", "T"), Passage("8", "two", "U")]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.tsv", "id\ttitle\ttext\nx\t\tone\ny\tT\ttwo\nz\t \tthree\n"),
        (
            "a.jsonl",
            '{"id": "x", "text": "one"}\n{"id": "y", "text": "two", "title": "T"}\n'
            '{"id": "z", "text": "three", "title": null}\n',
        ),
    ],
)
def test_a_passage_need_not_have_a_title(write, name, content):
    expected = [Passage("x", "one"), Passage("y", "two", "T"), Passage("z", "three")]
    assert read_passages(write(name, content)) == expected


def test_a_title_is_a_text(write):
    with pytest.raises(UserError, match=r"a.jsonl: line 1: column title should be a text, found 3"):
        read_passages(write("a.jsonl", '{"id": "x", "text": "one", "title": 3}\n'))


def test_an_id_twice_is_told_with_both_lines(write):
    path = write("a.tsv", "id\ttext\nx\tone\ny\ttwo\nx\tthree\n")
    with pytest.raises(UserError, match=r"a.tsv: line 4: the id 'x' is also in line 2"):
        read_passages(path)
    faults = Faults(skip_bad=True)
    assert [passage.text for passage in read_passages(path, faults)] == ["one", "two"]


def test_paragraphs_of_squad_count_within_their_article_and_once_each(write):
    articles = ("T", [("A a", []), ("A b", []), ("A a", [])]), ("U", [("A c", [])])
    assert read_passages(write("a.json.gz", squad(*articles))) == [
        Passage("T/1", "A a", "T"),
        Passage("T/2", "A b", "T"),
        Passage("U/1", "A c", "U"),
    ]
    with pytest.raises(UserError, match=r"b.json: there is no paragraph to read"):
        read_passages(write("b.json", '{"data": []}'))
    with pytest.raises(UserError, match=r"c.json: not valid JSON"):
        read_passages(write("c.json", "{"))


# -- Queries ----------------------------------------------------------------------------------------


def test_questions_of_squad_belong_to_the_passage_with_their_text(write):
    path = write("a.json", squad(("Other", [("A b", ["Who?", "When?!"]), ("A x", ["Why?"])])))
    passages = [Passage("T/1", "A a"), Passage("T/2", "A b")]
    with pytest.raises(UserError, match=r"question Why\?: its passage is not in the index"):
        read_queries(path, passages)
    faults = Faults(skip_bad=True)
    assert read_queries(path, passages, faults) == [Query("Who?", "T/2")], "When?! has no answer there"
    assert len(faults.skipped) == 1
    with pytest.raises(UserError, match="no question in this file has its passage in the index"):
        read_queries(path, passages[:1], Faults(skip_bad=True))


@pytest.mark.parametrize("name", ["query", "question"])
def test_queries_of_tables_name_their_passage(write, name):
    path = write("a.csv", f"{name},id\nwho?,x\nwhy?,z\n")
    with pytest.raises(UserError, match=r"a.csv: line 3: its passage is not in the index"):
        read_queries(path, [Passage("x", "one")])
    assert read_queries(path, [Passage("x", "one"), Passage("z", "two")]) == [
        Query("who?", "x"),
        Query("why?", "z"),
    ]


def test_some_queries_are_drawn_by_the_seed_and_keep_their_order():
    queries = [Query(str(i), "x") for i in range(50)]
    drawn = some_queries(queries, 10, seed=1)
    assert len(drawn) == 10 and drawn == sorted(drawn, key=lambda query: int(query.text))
    assert drawn == some_queries(queries, 10, seed=1) != some_queries(queries, 10, seed=2)
    assert some_queries(queries, 100) == queries
    assert len(some_queries(queries, 1)) == 1
    with pytest.raises(UserError, match="at least 1 query is needed, got a limit of 0"):
        some_queries(queries, 0)


def test_a_file_whose_name_is_not_utf8_gives_ids_that_are(tmp_path):
    path = os.path.join(os.fsencode(tmp_path), b"caf\xe9.txt")
    try:
        with open(path, "wb") as file:
            file.write(b"a text\n")
    except OSError:
        pytest.skip("this file system has only names in UTF-8")
    (passage,) = read_passages(os.fsdecode(path))
    assert passage.id == "caf\\xe9.txt:1" and passage.id.encode()
