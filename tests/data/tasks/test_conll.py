import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibert.data.tasks import Faults, read_conll
from minibert.data.tasks.conll import to_bio
from minibert.data.tasks.faults import Problem
from minibert.errors import UserError


@pytest.fixture
def write(tmp_path):
    def write_file(text):
        path = tmp_path / "a.conll"
        path.write_text(text, encoding="utf-8")
        return path

    return write_file


def test_sentences_between_empty_lines_of_any_kind(write):
    path = write("\n\nAnn\tB-person\nLee\tI-person\n\t\nsings\tO\n \n")
    sentences = read_conll(path)
    assert [(s.words, s.tags) for s in sentences] == [
        (["Ann", "Lee"], ["B-person", "I-person"]),
        (["sings"], ["O"]),
    ]
    assert [s.place.line for s in sentences] == [3, 6]


def test_spaces_around_a_cell_are_no_part_of_it(write):
    (sentence,) = read_conll(write("Ann \t B-x \nNew York\tI-x\n"))
    assert (sentence.words, sentence.tags) == (["Ann", "New York"], ["B-x", "I-x"])


@pytest.mark.parametrize("space", [" ", "\t"])
def test_a_no_break_space_belongs_to_its_word(write, space):
    (sentence,) = read_conll(write(f"10\u00a0000{space}B-x\n\u00a0{space}O\nm\u2009/\u2009s{space}O\n"))
    assert (sentence.words, sentence.tags) == (
        ["10\u00a0000", "\u00a0", "m\u2009/\u2009s"],
        ["B-x", "O", "O"],
    )


def test_columns_between_spaces_and_document_marks(write):
    path = write("-DOCSTART- -X- O\n\nAnn NNP B-NP\nsings VBZ O\n-DOCSTART- -X- O\nAgain RB O")
    assert [s.words for s in read_conll(path)] == [["Ann", "sings"], ["Again"]]
    assert [s.tags for s in read_conll(path, tag_column=2, scheme="plain")] == [["NNP", "VBZ"], ["RB"]]
    assert read_conll(path, word_column=-2, tag_column=3)[0].words == ["NNP", "VBZ"]


@pytest.mark.parametrize("column", ["word_column", "tag_column"])
def test_there_is_no_column_0(write, column):
    with pytest.raises(UserError, match=r"columns count from 1, .* there is no column 0"):
        read_conll(write("Ann\tO\n"), **{column: 0})


def test_without_labels_words_alone(write):
    sentences = read_conll(write("Ann\nsings\tO\n"), labelled=False)
    assert (sentences[0].words, sentences[0].tags) == (["Ann", "sings"], None)


@pytest.mark.parametrize(
    ("scheme", "tags", "bio"),
    [
        ("bio", "O B-x I-x I-x B-x B-y I-y O", "O B-x I-x I-x B-x B-y I-y O"),
        ("iob1", "I-x I-x B-x I-y O I-y", "B-x I-x B-x B-y O B-y"),
        ("bioes", "S-x B-x I-x E-x B-y E-y O", "B-x B-x I-x I-x B-y I-y O"),
        ("plain", "E-x NOUN", "E-x NOUN"),
        ("bio", "B-creative-work I-creative-work", "B-creative-work I-creative-work"),
    ],
)
def test_schemes_become_bio(scheme, tags, bio):
    assert to_bio(tags.split(), scheme) == bio.split()


@pytest.mark.parametrize(
    ("scheme", "tags", "line", "problem"),
    [
        ("bio", "O I-x", 1, "'I-x' after 'O' breaks BIO (or is the scheme iob1?)"),
        ("bio", "I-x", 0, "'I-x' after the start of the sentence breaks BIO"),
        ("bio", "B-x I-y", 1, "'I-y' after 'B-x' breaks BIO"),
        ("bio", "B-x E-x", 1, "or is the scheme bioes?"),
        ("bio", "O NOUN", 1, "'NOUN' is neither O nor B-…, I-… (or is the scheme plain?)"),
        ("bio", "B-", 0, "neither O"),
        ("bio", "BI-x", 0, "neither O"),
        ("bioes", "B-x IE-x", 1, "neither O"),
        ("bio", "-x", 0, "neither O"),
        ("iob1", "S-x", 0, "neither O"),
        ("bioes", "B-x O", 1, "'O' after 'B-x' breaks BIOES"),
        ("bioes", "S-x I-x", 1, "'I-x' after 'S-x' breaks BIOES"),
        ("bioes", "B-x I-x", 1, "at the end of the sentence breaks BIOES"),
        ("bio", "E-", 0, "or is the scheme plain?"),
        ("bio", "X-x", 0, "or is the scheme plain?"),
    ],
)
def test_tags_that_break_their_scheme(scheme, tags, line, problem):
    with pytest.raises(Problem) as caught:
        to_bio(tags.split(), scheme)
    assert problem in str(caught.value)
    assert caught.value.line == line
    assert ("is the scheme" in str(caught.value)) == (scheme == "bio"), "only the usual one may be a mistake"


def runs_to_tags(runs, scheme):
    """Tags of (kind or None, length) runs, written down independently of the reader."""
    tags, before = [], None
    for kind, length in runs:
        if kind is None:
            tags += ["O"] * length
        elif scheme == "bioes":
            tags += (
                [f"S-{kind}"] if length == 1 else [f"B-{kind}", *[f"I-{kind}"] * (length - 2), f"E-{kind}"]
            )
        else:
            first = "B" if scheme == "bio" or kind == before else "I"
            tags += [f"{first}-{kind}", *[f"I-{kind}"] * (length - 1)]
        before = kind
    return tags


@given(runs=st.lists(st.tuples(st.sampled_from([None, "x", "y"]), st.integers(1, 4))))
@pytest.mark.parametrize("scheme", ["iob1", "bioes"])
def test_the_same_entities_in_any_scheme(scheme, runs):
    assert to_bio(runs_to_tags(runs, scheme), scheme) == runs_to_tags(runs, "bio")


@pytest.mark.parametrize(
    ("bad", "line", "problem"),
    [
        ("b\tO\nc\tI-x", 4, "'I-x' after 'O' breaks BIO"),
        ("b", 3, r"1 column\(s\), but the tag needs at least 2"),
        ("b\tO\n\tO", 4, "the word in column 1 is empty"),
        ("b\t\n", 3, "the tag in column -1 is empty"),
    ],
)
def test_a_bad_sentence_is_refused_by_file_and_line_or_skipped(write, bad, line, problem):
    path = write(f"a\tO\n\n{bad}\n\nd\tB-x\n")
    with pytest.raises(UserError, match=rf"a\.conll: line {line}: .*{problem}"):
        read_conll(path)
    faults = Faults(skip_bad=True)
    assert [s.words for s in read_conll(path, faults=faults)] == [["a"], ["d"]]
    assert len(faults.skipped) == 1


def test_a_row_too_short_for_word_and_tag_to_be_two_columns(write):
    path = write("1 Ann B-x\n2 O\n")
    with pytest.raises(UserError, match=r"a\.conll: line 2: 2 column\(s\), but the tag needs at least 3"):
        read_conll(path, word_column=2)
    assert read_conll(path, word_column=2, labelled=False)[0].words == ["Ann", "O"]
    with pytest.raises(UserError, match=r"a\.conll: line 2: 2 column\(s\), but the word needs at least 3"):
        read_conll(path, word_column=-3, tag_column=3)
    path = write("B-x 1 Ann\nO\n")
    with pytest.raises(UserError, match=r"a\.conll: line 2: 1 column\(s\), but the tag needs at least 2"):
        read_conll(path, word_column=-1, tag_column=1)


def test_empty_files_and_unknown_schemes(write):
    with pytest.raises(UserError, match=r"a\.conll: there is no sentence"):
        read_conll(write("\n\n"))
    with pytest.raises(UserError, match="expected one of bio, iob1, bioes, plain"):
        read_conll(write("a\tO"), scheme="iob2")
