import gzip
import json

import pytest

from minibert.data.tasks import Answer, Faults, read_squad, split_articles
from minibert.errors import UserError

PASSAGE = "Ann sings. Bob, who dances, is late."


def entry(i="q1", question="Who sings?", answers=(("Ann", 0),), **more):
    given = [dict(text=text, answer_start=start) for text, start in answers]
    return dict(id=i, question=question, answers=given) | more


@pytest.fixture
def write(tmp_path):
    def write_file(*entries, name="a.json"):
        content = {
            "version": "v2.0",
            "data": [{"title": "T", "paragraphs": [{"context": PASSAGE, "qas": entries}]}],
        }
        data = json.dumps(content).encode()
        (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return tmp_path / name

    return write_file


def test_a_title_that_cannot_be_written(tmp_path):
    content = {"data": [{"title": "\ud800x", "paragraphs": [{"context": PASSAGE, "qas": [entry()]}]}]}
    path = tmp_path / "a.json"
    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match=r'article 1: "title" holds half a surrogate pair'):
        read_squad(path)


@pytest.mark.parametrize("name", ["a.json", "a.json.gz"])
def test_questions_with_their_answers_and_without(write, name):
    path = write(
        entry(answers=[("Ann", 0), ("Ann sings", 0)]),
        entry(
            "q2", "Who cooks?", (), is_impossible=True, plausible_answers=[dict(text="Bob", answer_start=11)]
        ),
        name=name,
    )
    first, second = read_squad(path)
    assert (first.id, first.text, first.passage, first.article) == ("q1", "Who sings?", PASSAGE, "T")
    assert first.answers == (Answer("Ann", 0), Answer("Ann sings", 0))
    assert second.answers == ()


def test_answers_that_are_not_where_they_should_be_are_noted(write):
    faults = Faults()
    path = write(entry(answers=[("Ann", 0), ("Bob", 10), ("Eve", 0), ("late.", -5)]))
    assert [answer.start for answer in read_squad(path, faults=faults)[0].answers] == [0, None, None, None]
    assert len(faults.notes) == 3
    assert faults.notes[0] == f"{path}: question q1: 'Bob' is not where the file says it is in the passage"
    assert faults.describe()[0].startswith("3 remark(s) on the data, the first: ")


def test_without_labels_answers_are_not_looked_at(write):
    assert read_squad(write(dict(id="q", question="Who?")), labelled=False)[0].answers == ()


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        (dict(id="q2", answers=[dict(text="Ann", answer_start=0)]), '"question"'),
        (entry(question=" "), '"question"'),
        (entry(i=7), '"id"'),
        (dict(id="q2", question="Who?"), '"answers"'),
        (entry(answers=()), "no answers"),
        (dict(id="q2", question="Who?", answers=[dict(text="Ann")]), "answer_start"),
        (dict(id="q2", question="Who?", answers=["Ann"]), '"text"'),
        (entry(question="\ud83d?"), "surrogate"),
        ("Who?", '"answers"'),
    ],
)
def test_a_bad_question_is_refused_by_its_place_or_skipped(write, bad, problem):
    path = write(entry(), bad, entry("q3"))
    with pytest.raises(UserError, match=rf"a\.json: article 1, paragraph 1, question 2: .*{problem}"):
        read_squad(path)
    faults = Faults(skip_bad=True)
    assert [question.id for question in read_squad(path, faults=faults)] == ["q1", "q3"]
    assert len(faults.skipped) == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not valid JSON"),
        ("[]", 'expected an object with a list "data"'),
        ('{"data": []}', "there is no question"),
        ('{"data": [3]}', 'article 1: expected an object with a list "paragraphs"'),
        (
            '{"data": [{"paragraphs": [{"qas": []}]}]}',
            'article 1, paragraph 1: expected an object with a text "context"',
        ),
    ],
)
def test_files_of_another_kind(tmp_path, content, message):
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(UserError, match=message) as caught:
        read_squad(tmp_path / "a.json")
    assert "a.json" in str(caught.value)


def test_articles_are_on_one_side_only(tmp_path):
    articles = [
        {"title": f"T{i}", "paragraphs": [{"context": PASSAGE, "qas": [entry(f"q{i}{j}") for j in range(3)]}]}
        for i in range(10)
    ]
    (tmp_path / "a.json").write_text(json.dumps({"data": articles}))
    questions = read_squad(tmp_path / "a.json")
    train, test = split_articles(questions, 4, seed=1)
    sides = [{question.article for question in side} for side in (train, test)]
    assert [len(side) for side in sides] == [6, 4]
    assert not sides[0] & sides[1]
    assert len(train) + len(test) == 30
    assert split_articles(questions, 4, seed=1) == (train, test)
    assert split_articles(questions, 4, seed=2) != (train, test)
    assert [len({q.article for q in side}) for side in split_articles(questions, 1)] == [9, 1]
    assert [len({q.article for q in side}) for side in split_articles(questions, 9)] == [1, 9]
    for number in (0, 10):
        with pytest.raises(UserError, match=rf"cannot hold out {number} of 10"):
            split_articles(questions, number)
