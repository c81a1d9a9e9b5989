import pytest

from minibert.data.tasks import Faults, Place, TaggedSentence, TextExample, check_labels, label_names
from minibert.errors import UserError


def texts(*labels):
    return [TextExample("text", None, label, Place("dev.tsv", i + 1)) for i, label in enumerate(labels)]


def test_names_are_sorted_as_numbers_if_they_are_numbers():
    assert label_names(texts("10", "9", "-1", "9")) == ["-1", "9", "10"]
    assert label_names(texts("b", "10", "9")) == ["10", "9", "b"]
    assert label_names(texts("2", "--1", "10")) == ["--1", "10", "2"], "--1 is no number"
    long = "1" * 5000  # more digits than Python makes a number of
    assert label_names(texts(long, "0")) == ["0", long]
    assert label_names([TaggedSentence(["a", "b"], ["O", "B-x"], Place("a", 1))]) == ["B-x", "O"]


def test_one_label_teaches_nothing():
    with pytest.raises(UserError, match=r"dev\.tsv: the only label is 'a'"):
        label_names(texts("a", "a"))
    with pytest.raises(UserError, match=r"dev\.tsv: there are no labels"):
        label_names(texts(None))
    with pytest.raises(UserError, match=r"dev\.conll: there are no labels"):
        label_names([TaggedSentence(["a"], None, Place("dev.conll", 1))])


def test_unknown_labels_are_refused_or_skipped():
    examples = texts("a", "c", "b")
    with pytest.raises(
        UserError, match=r"dev\.tsv: line 2: label 'c' is not one of the training data's \(a, b\)"
    ):
        check_labels(examples, ["a", "b"])
    faults = Faults(skip_bad=True)
    assert check_labels(examples, ["a", "b"], faults) == [examples[0], examples[2]]
    assert len(faults.skipped) == 1
    with pytest.raises(UserError, match=r"dev\.tsv: no example has a label of the training data"):
        check_labels(texts("c"), ["a", "b"], Faults(skip_bad=True))


@pytest.mark.parametrize(
    ("count", "listed"), [(8, "0, 1, 2, 3, 4, 5, 6, 7"), (9, "0, 1, 2, 3, 4, 5, 6, 7, … (9 in all)")]
)
def test_of_very_many_labels_the_first_are_listed(count, listed):
    with pytest.raises(UserError) as caught:
        check_labels(texts("x"), [str(i) for i in range(count)])
    assert f"not one of the training data's ({listed})" in str(caught.value)


def test_an_unknown_tag_is_told_by_its_own_line():
    sentence = TaggedSentence(["a", "b"], ["O", "B-y"], Place("dev.conll", 7))
    with pytest.raises(UserError, match=r"dev\.conll: line 8: label 'B-y'"):
        check_labels([sentence], ["O", "B-x"])


def test_labels_that_the_development_data_lacks_are_told():
    faults = Faults()
    check_labels(texts("a"), ["a", "b", "c"], faults)
    assert faults.notes == ["dev.tsv: 2 of the training data's labels never occur here: b, c"]
    check_labels(texts("a", "b"), ["a", "b"], faults)
    assert len(faults.notes) == 1


def test_what_is_left_out_does_not_count_as_there():
    """The first of these sentences has B-x, and an unknown tag behind it."""
    sentences = [
        TaggedSentence(["a", "b"], ["B-x", "B-y"], Place("dev.conll", 1)),
        TaggedSentence(["a"], ["O"], Place("dev.conll", 4)),
    ]
    faults = Faults(skip_bad=True)
    assert check_labels(sentences, ["O", "B-x"], faults) == sentences[1:]
    assert faults.notes == ["dev.conll: 1 of the training data's labels never occur here: B-x"]


def test_examples_without_labels_pass():
    assert len(check_labels(texts(None, None), ["a"], Faults())) == 2
