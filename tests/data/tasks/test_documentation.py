"""The tasks made from the documentation that is installed: of the real one, and of a small one of our own."""

import re
from collections import Counter
from functools import cache

import pytest

from minibert.data.embedded import Module
from minibert.data.tasks import RECIPES, Query, label_names
from minibert.data.tasks import documentation as tasks
from minibert.errors import UserError

TELLING = r"numpy|scipy|matplotlib|pyplot|python|\bnp\b|\w{3}\.\w{3}"
DOCS = [name for name in RECIPES if name.startswith("docs-")]


@cache
def read(recipe, part):
    return RECIPES[recipe].read(part)


def file_of(example):
    return example.article if hasattr(example, "article") else example.place.path


# -- The installed documentation ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("recipe", "train", "dev"),
    [
        ("docs-library", 2_000, 400),
        ("docs-summary", 2_000, 400),
        ("docs-parameters", 3_000, 600),
        ("docs-questions", 2_000, 300),
        ("docs-search", 2_000, 400),
    ],
)
def test_there_are_enough_examples_and_no_file_is_on_both_sides(recipe, train, dev):
    examples = {part: read(recipe, part) for part in tasks.PARTS}
    assert len(examples["train"]) >= train
    assert len(examples["dev"]) >= dev
    assert not set(map(file_of, examples["train"])) & set(map(file_of, examples["dev"]))


def test_libraries_are_balanced_and_not_named():
    for part in tasks.PARTS:
        examples = read("docs-library", part)
        counts = Counter(example.label for example in examples)
        assert sorted(counts) == sorted(tasks.LIBRARIES)
        assert len(set(counts.values())) == 1
        for example in examples:
            assert 8 <= len(example.text.split()) <= 60
            assert not re.search(TELLING, example.text.lower())
            assert example.place.path.startswith(f"{example.label}/")


def test_no_text_stands_twice():
    parts = [*read("docs-library", "train"), *read("docs-library", "dev")]
    assert len({example.text for example in parts}) == len(parts)
    pairs = [*read("docs-summary", "train"), *read("docs-summary", "dev")]
    for texts in [[pair.text for pair in pairs], [pair.text_pair for pair in pairs]]:
        assert len(set(texts)) == len(texts)


def test_half_of_the_summaries_are_of_other_functions():
    for part in tasks.PARTS:
        right = {entry.description: entry.summary for entry in tasks._described(part)}
        examples = read("docs-summary", part)
        for example in examples:
            assert (right[example.text_pair] == example.text) == (example.label == "same")
        counts = Counter(example.label for example in examples)
        assert abs(counts["same"] - counts["other"]) <= len(tasks.LIBRARIES)
        library = {entry.summary: entry.library for entry in tasks._described(part)}
        assert all(example.place.path.startswith(library[example.text]) for example in examples)


def test_half_of_the_sentences_name_a_parameter():
    for part in tasks.PARTS:
        examples = read("docs-parameters", part)
        assert label_names(examples) == [tasks.PARAMETER, "O"]
        assert 2 * sum(tasks.PARAMETER in example.tags for example in examples) == len(examples)
        assert all(len(example.words) == len(example.tags) for example in examples)


def test_passages_have_ids_of_their_own():
    for part in tasks.PARTS:
        passages, queries = tasks.search_passages(part), tasks.search_queries(part)
        assert len({passage.id for passage in passages}) == len(passages)
        assert [query.passage for query in queries] == [passage.id for passage in passages]


def test_answers_stand_in_their_passage():
    for part in tasks.PARTS:
        questions = read("docs-questions", part)
        assert len({question.id for question in questions}) == len(questions)
        for question in questions:
            (answer,) = question.answers
            assert question.passage[answer.start :].startswith(answer.text)
            assert answer.text != question.passage


# -- A documentation of our own -----------------------------------------------------------------------

MEAN = '''
def mean(values, axis=None, a=1):
    """mean(values, axis=None)

    Return the arithmetic mean of the elements.

    The mean is the sum of the *values* along the `axis` of a table divided by their number.
    The values may be a list of any length that there is, or a long table.
    This sentence is about NumPy, and so it is left out.

    Parameters
    ----------
    values : array_like
        The numbers of which the mean is to be computed.
    axis : int, optional
        The direction in which the mean is to be computed. More is said.
    x0, x1 : float
        The bounds between which the numbers must be.
    """
'''
MEDIAN = '''
class Median:
    """Whatever is in the middle of all the numbers.

    It has as many numbers below it as there are above.
    Return the arithmetic mean of the elements!
    """
'''


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Call it with sources by the names of their files, as those of one library."""

    def install(library="numpy", **sources):
        for name, source in sources.items():
            (tmp_path / f"{name}.py").write_text(source)
        modules = [Module(library, f"{name}.py", tmp_path / f"{name}.py") for name in sources]
        monkeypatch.setattr(tasks, "installed_modules", lambda: iter(modules))
        tasks._all_entries.cache_clear()
        return sorted(tasks._all_entries(), key=lambda entry: entry.name)

    yield install
    tasks._all_entries.cache_clear()


def test_summary_and_description(own):
    mean, median = own(a=MEAN, b=MEDIAN)
    assert (mean.name, str(mean.place)) == ("numpy.a.mean", "numpy/a.py: line 2")
    assert mean.summary == "Return the arithmetic mean of the elements."
    assert mean.description.startswith("The mean is the sum of the values along the axis of a table")
    assert "NumPy" not in mean.description
    assert median.name == "numpy.b.Median"
    assert median.description == "It has as many numbers below it as there are above."  # the rest has been


def test_words_that_are_parameters(own):
    mean, _ = own(a=MEAN, b=MEDIAN)
    (tagged, *others) = tasks.parameter_tags(mean.part)
    named = [word for word, tag in zip(tagged.words, tagged.tags, strict=True) if tag == tasks.PARAMETER]
    assert named == ["values", "axis"]  # and not the article "a"
    assert len(others) == 1
    assert set(others[0].tags) == {"O"}


def test_a_word_that_may_be_a_parameter_is_not_judged(own):
    mean, _ = own(a=MEAN, b=MEDIAN)
    sentence = next(sentence for sentence in mean.sentences if sentence.text.startswith("The values may"))
    words = tasks._WORD.findall(sentence.text)
    assert tasks._tags(words, sentence.marked_up, {"values"}) is None
    assert set(tasks._tags(words, sentence.marked_up, {"axis"})) == {"O"}
    odd = "Both x0 and fill_value are given ."
    tags = tasks._tags(odd.split(), odd, {"x0", "fill_value"})
    assert [tag != "O" for tag in tags] == [False, True, False, True, False, False, False]


def test_questions_about_parameters(own):
    (mean,) = own(a=MEAN)
    first, second = tasks.parameter_questions(mean.part)
    assert first.text == "What is values?"
    assert first.answers[0].text == "The numbers of which the mean is to be computed."
    assert second.text == "What type does axis have?"
    assert second.answers[0].text == "int"
    assert first.passage == second.passage
    assert first.passage.endswith("axis (int): The direction in which the mean is to be computed.")


def test_a_search_for_the_name_would_not_do(own):
    mean, median = own(a=MEAN, b=MEDIAN)
    assert mean.part == median.part  # of these two files
    (pair,) = tasks.search_pairs(mean.part)  # "mean" is in both texts of mean
    assert pair.text == "Whatever is in the middle of all the numbers."
    (passage,), (query,) = tasks.search_passages(mean.part), tasks.search_queries(mean.part)
    assert (passage.text, passage.title) == (pair.text_pair, "numpy.b.Median")
    assert query == Query(pair.text, passage.id)
    assert len(tasks.summary_pairs(mean.part)) == 2


def test_the_same_files_give_the_same_examples(own):
    before = own(a=MEAN, b=MEDIAN)
    parts = [tasks.summary_pairs(part) for part in tasks.PARTS]
    assert own(a=MEAN, b=MEDIAN) == before
    assert [tasks.summary_pairs(part) for part in tasks.PARTS] == parts


@pytest.mark.parametrize("recipe", DOCS)
def test_there_are_two_parts(recipe):
    with pytest.raises(UserError, match=r"the parts train and dev, but no 'my\.tsv'"):
        RECIPES[recipe].read("my.tsv")
