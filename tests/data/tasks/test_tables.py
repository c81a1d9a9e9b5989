import csv
import gzip
import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibert.data.tasks import Columns, Faults, Place, TextExample, read_table
from minibert.data.tasks.tables import column_of
from minibert.errors import UserError
from minibert.tasks.task import TableOptions


@pytest.fixture
def write(tmp_path):
    def write_file(name, text):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write_file


def rows(examples):
    return [(example.text, example.text_pair, example.label) for example in examples]


# ---------------------------------------------------------------- formats and columns


def test_tsv_by_the_names_of_its_header_and_with_literal_quotes(write):
    path = write("a.tsv", 'id\tlabel\tsentence\n1\tgood\t"Fine," he said\r\n2\tbad\tno "\n')
    assert rows(read_table(path)) == [('"Fine," he said', None, "good"), ('no "', None, "bad")]
    assert read_table(path)[1].place == Place(path, 3)


def test_csv_with_quoted_commas_and_line_ends(write):
    path = write("a.csv", 'sentence1,sentence2,score\n"a, b","two\nlines",1.5\nc,d,-2\n')
    examples = read_table(path, scores=True)
    assert rows(examples) == [("a, b", "two\nlines", 1.5), ("c", "d", -2.0)]
    assert [example.place.line for example in examples] == [2, 4]


def test_jsonl_in_any_order_with_labels_of_several_kinds(write):
    lines = [
        {"label": 1, "text": "a"},
        {"text": "b", "label": " one ", "more": []},
        {"text": "c", "label": True},
    ]
    path = write("a.jsonl", "\n".join(map(json.dumps, lines)))
    assert rows(read_table(path)) == [("a", None, "1"), ("b", None, "one"), ("c", None, "true")]


def test_compressed_with_a_byte_order_mark(write):
    path = write("a.tsv.gz", gzip.compress("\ufefftext\tlabel\nä\tx\n".encode()))
    assert rows(read_table(path)) == [("ä", None, "x")]


def test_columns_by_number(write):
    path = write("a.tsv", "x\t0\ta text\ny\t1\tanother\n")
    columns = Columns(3, label=2)
    assert rows(read_table(path, columns)) == [("a text", None, "0"), ("another", None, "1")]
    with_header = Columns(3, label=2, header=True)
    assert rows(read_table(path, with_header)) == [("another", None, "1")]
    assert rows(read_table(path, Columns(1, 3), labelled=False)) == [
        ("x", "a text", None),
        ("y", "another", None),
    ]


def test_one_name_is_enough_for_a_header(write):
    path = write("a.tsv", "mood\ttext\ngood\ta\n")
    assert rows(read_table(path, Columns("text", label=1))) == [("a", None, "good")]
    assert rows(read_table(path, Columns(2, label="mood"))) == [("a", None, "good")]
    assert rows(read_table(path, Columns(2, label="mood"), labelled=False)) == [("a", None, None)]


def test_a_guessed_label_does_not_make_a_header_of_the_first_row(write):
    """Columns by number, no label column: that the usual names of labels are tried must cost no row."""
    path = write("pairs.tsv", "a\tb\nc\td\n")
    columns = TableOptions(text_column="1", pair_column="2").columns()
    assert rows(read_table(path, columns, labelled=False)) == [("a", "b", None), ("c", "d", None)]
    numbered = TableOptions(text_column="1", label_column="2").columns()
    assert rows(read_table(path, numbered, labelled=False)) == [("a", None, None), ("c", None, None)]
    for name in ("label", "score"):
        path = write("named.tsv", f"x\t{name}\na\tgood\n")
        columns = TableOptions(text_column="1").columns()
        for labelled, label in ((True, "good"), (False, None)):
            assert rows(read_table(path, columns, labelled=labelled)) == [("a", None, label)]
    path = write("other.tsv", "review\na\n")
    said = TableOptions(text_column="1", label_column="stars").columns()  # names imply a header
    assert rows(read_table(path, said, labelled=False)) == [("a", None, None)]


def test_the_format_that_is_said_stands_above_the_name(write):
    path = write("a.tsv", 'text,label\n"a\tb",good\n')
    assert rows(read_table(path, file_format="csv")) == [("a\tb", None, "good")]


def test_a_column_in_one_word():
    assert [column_of(flag) for flag in ("2", "text", None)] == [2, "text", None]


def test_an_example_as_json_tells_what_is_there():
    place = Place("a", 1)
    assert TextExample("a", None, None, place).to_dict() == {"text": "a"}
    assert TextExample("a", "b", 0.0, place).to_dict() == {"text": "a", "text_pair": "b", "label": 0.0}


def test_of_several_layouts_the_first_that_fits(write):
    layouts = (Columns("sentence", label="label"), Columns(2, label=1))
    assert rows(read_table(write("a.tsv", "label\tsentence\n1\ta\n"), layouts)) == [("a", None, "1")]
    assert rows(read_table(write("b.tsv", "1\ta\n"), layouts)) == [("a", None, "1")]


def test_without_labels_their_column_need_not_be_there(write):
    path = write("a.tsv", "sentence\nfirst\nsecond\n")
    assert rows(read_table(path, labelled=False)) == [("first", None, None), ("second", None, None)]
    with pytest.raises(
        UserError, match=r"a\.tsv: line 1: expected the columns .*sentence, label.*found \(sentence\)"
    ):
        read_table(path)
    with pytest.raises(UserError, match=r"a\.tsv: say which column holds the label"):
        read_table(path, Columns("sentence"))


TEXTS = st.text(
    st.characters(blacklist_categories=["Cs"], blacklist_characters="\0\r\ufeff"), min_size=1
).filter(str.strip)


@given(table=st.lists(st.tuples(TEXTS, TEXTS, st.sampled_from(["yes", "no"])), min_size=1))
def test_what_csv_and_json_write_is_read_again(tmp_path_factory, table):
    folder = tmp_path_factory.mktemp("written")
    sheet = io.StringIO()
    csv.writer(sheet, lineterminator="\n").writerows([("text", "text_pair", "label"), *table])
    (folder / "a.csv").write_bytes(sheet.getvalue().encode())
    lines = [json.dumps(dict(text=a, text_pair=b, label=c), ensure_ascii=False) for a, b, c in table]
    (folder / "a.jsonl").write_bytes("\n".join(lines).encode())
    assert rows(read_table(folder / "a.csv")) == table
    assert rows(read_table(folder / "a.jsonl")) == table


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.tsv", "text\tlabel\na\tx\n"),
        ("a.csv", "text,label\na,x\n"),
        ("a.jsonl", '{"text": "a", "label": "x"}\n'),
    ],
)
def test_blank_lines_at_the_end_are_no_rows(write, name, text):
    assert rows(read_table(write(name, text + "\n \t\n\n"))) == [("a", None, "x")]


# ---------------------------------------------------------------- bad input

HEADER = "text\tlabel\n"


@pytest.mark.parametrize(
    ("name", "bad", "problem"),
    [
        ("a.tsv", "", "an empty row"),
        ("a.tsv", "\t ", "an empty row"),
        ("a.tsv", "alone", r"1 column\(s\), but the first row has 2"),
        ("a.tsv", "a\tb\tc", r"3 column\(s\), but the first row has 2"),
        ("a.tsv", " \tx", "column text is empty"),
        ("a.tsv", "a\t", "column label is empty"),
        ("a.jsonl", "", "an empty row"),
        ("a.jsonl", " \t", "an empty row"),
        ("a.jsonl", json.dumps("a" * 58), 'expected a JSON object, found "a{58}";'),
        ("a.jsonl", json.dumps("a" * 59), 'expected a JSON object, found "a{59}…;'),
        ("a.jsonl", "{", "not valid JSON"),
        ("a.jsonl", "[1]", r"expected a JSON object, found \[1\]"),
        ("a.jsonl", '{"text": "a"}', "no label"),
        ("a.jsonl", '{"text": 3, "label": 1}', "column text should be a text, found 3"),
        ("a.jsonl", '{"text": "a", "label": null}', "column label should be a text, found null"),
        ("a.jsonl", '{"text": "\\ud83d", "label": 1}', "column text holds half a surrogate pair"),
    ],
)
def test_a_bad_row_is_refused_by_file_and_line_or_skipped(write, name, bad, problem):
    good = "fine\tyes\n" if name == "a.tsv" else '{"text": "fine", "label": "yes"}\n'
    path = write(name, (HEADER if name == "a.tsv" else good) + good + bad + "\n" + good)
    with pytest.raises(UserError, match=rf"a\.\w+: line 3: {problem}.*--skip-bad") as caught:
        read_table(path)
    assert "\n" not in str(caught.value)
    faults = Faults(skip_bad=True)
    examples = read_table(path, faults=faults)
    assert rows(examples) == [("fine", None, "yes")] * (len(examples))
    assert len(examples) == (2 if name == "a.tsv" else 3)
    assert len(faults.skipped) == 1
    assert "line 3" in faults.skipped[0]
    assert faults.describe() == [f"1 bad row(s) left out, the first: {faults.skipped[0]}"]


# The last two: infinite in float32, and so large that their square is.
@pytest.mark.parametrize("score", ["high", "nan", "inf", "", "1_000", "1e39", "-1e19"])
def test_scores_are_finite_numbers(write, score):
    with pytest.raises(UserError, match=r"a\.tsv: line 2: column 2 should be a number"):
        read_table(write("a.tsv", f"a\t1\nb\t{score}\n"), Columns(1, label=2), scores=True)


def test_what_is_no_score_is_told_as_the_file_says_it(write):
    path = write("a.jsonl", '{"text": "a", "label": 1}\n{"text": "b", "label": null}\n')
    with pytest.raises(UserError, match=r"a\.jsonl: line 2: column label should be a number, found null"):
        read_table(path, scores=True)


@pytest.mark.parametrize("word", ["true", "false"])
def test_a_truth_value_is_no_score(write, word):
    path = write("a.jsonl", '{"text": "a", "label": 1}\n{"text": "b", "label": WORD}\n'.replace("WORD", word))
    with pytest.raises(UserError, match=f"column label should be a number, found {word}"):
        read_table(path, scores=True)


def test_a_score_too_large_for_a_number(write):
    path = write("a.jsonl", '{"text": "a", "label": 1}\n{"text": "b", "label": %s}\n' % ("9" * 400))
    with pytest.raises(UserError, match=r"a\.jsonl: line 2: column label should be a number, found 999"):
        read_table(path, scores=True)


def test_the_first_object_may_be_a_bad_row_like_any_other(write):
    path = write("a.jsonl", '{"text": "a"}\n{"sentence": "b", "label": "x"}\n{"text": "c", "label": "y"}\n')
    with pytest.raises(UserError, match=r"a\.jsonl: line 1: expected the columns .*, found \(text\); rename"):
        read_table(path)
    faults = Faults(skip_bad=True)
    assert rows(read_table(path, faults=faults)) == [("b", None, "x")]
    assert [told.split(": ")[1:] for told in faults.skipped] == [
        ["line 1", "no sentence, label"],
        ["line 3", "no sentence"],
    ]
    only = write("b.jsonl", '{"text": "a"}\n')
    with pytest.raises(UserError, match=r"b\.jsonl: line 1: expected the columns"):
        read_table(only, faults=Faults(skip_bad=True))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.tsv", b"", "a.tsv: there is no example to read; give another file$"),
        ("a.tsv", b"text\tlabel\n", "a.tsv: there is no example to read; give another file$"),
        (
            "a.tsv",
            b"text\tlabel\n\n\tx\n",
            r"there is no example to read but 2 bad row\(s\), the first: .*line 2: ",
        ),
        ("a.csv", b'text,label\n"a,b\n', "line 2: not valid csv"),
        ("a.csv", b"text,label\na\rb,x\n", "line 2: not valid csv .*; a cell holds a carriage return, which"),
        ("a.csv", b'"text,label\n', "line 1: not valid csv"),
        (
            "a.csv",
            b"text,label\n" + b"a" * 200_000 + b",x\n",
            r"line 2: .* limit \(131072\)\); .* give tsv or",
        ),
        (
            "a.tsv",
            b"text\ttext\tlabel\na\tb\tx\n",
            "line 1: 2 columns are called 'text'; rename them or, without a recipe, give their numbers",
        ),
        ("a.csv", b"text;label\na;x\n", r"found \(text;label\); if ';' separates columns, write tabs"),
        ("a.tsv", b"text,label\na,x\n", r"found \(text,label\); if ',' separates columns, write tabs"),
        ("a.csv", b"label,text,label\nx,b,x\n", "line 1: 2 columns are called 'label'; rename them or"),
        ("a.tsv", b"text\tlabel\n\xff\t1\n", "line 2 is not UTF-8"),
        ("a.tsv.gz", b"text", "damaged gzip"),
        ("a.doc", b"text", "use .tsv, .csv, .jsonl, or see --help for a flag"),
    ],
)
def test_files_that_cannot_be_read_at_all(write, name, content, message):
    with pytest.raises(UserError, match=message) as caught:
        read_table(write(name, content), faults=Faults(skip_bad=True))
    assert name in str(caught.value)


def test_columns_that_are_not_used_may_have_one_name(write):
    path = write("a.tsv", "text\tid\tid\tlabel\na\t1\t2\tx\n")
    assert rows(read_table(path)) == [("a", None, "x")]
    path = write("b.tsv", "text\ttext\tlabel\na\tb\tx\n")
    assert rows(read_table(path, Columns(1, 2, 3, header=True))) == [("a", "b", "x")]


def test_missing_files_and_folders(tmp_path):
    with pytest.raises(UserError, match="no such file"):
        read_table(tmp_path / "none.tsv")
    with pytest.raises(UserError, match="no such file"):
        read_table(tmp_path / "none")
    (tmp_path / "folder.tsv").mkdir()
    with pytest.raises(UserError, match="found a folder"):
        read_table(tmp_path / "folder.tsv")


@pytest.mark.parametrize(
    ("name", "content"), [("t.tsv", b"text\tlabel\ra\tx\rb\ty\r"), ("t.csv", b"text,label\ra,x\rb,y\r")]
)
def test_line_ends_of_old_macs_are_named_and_do_not_reach_the_terminal(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match="carriage returns for line ends") as refused:
        read_table(tmp_path / name)
    assert "\r" not in str(refused.value)
