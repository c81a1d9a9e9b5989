"""What a person can ask and change, one request after the other."""

import numpy as np
import pytest
from packed_arrays import unpacked

from minibert.errors import UserError
from minibert.explore.look import packed
from minibert.explore.passes import run
from minibert.explore.session import Session
from minibert.explore.subjects import open_subject
from minibert.tasks import next_sentence_probability

TEXT = "the capital of france is [MASK] ."
HEAD = {"kind": "head", "layer": 1, "head": 2}
WEIGHT = {"kind": "weight", "layer": 1, "head": 1, "query": 6, "key": 4, "weight": 0.9}
PATCH = {"kind": "patch", "name": "bert.encoder.layer.2", "token": 4, "text": "the capital of spain is big ."}


@pytest.fixture(scope="module")
def subject():
    return open_subject("mini", dtype="float64")


@pytest.fixture
def session(subject):
    return Session(subject)


def test_everything_that_the_page_asks_on_any_device(device, session):
    """The same numbers as on the CPU, in their order: nothing is mixed up between host and device."""

    def answers(session):
        yield session.look(TEXT, answer="paris")
        yield session.look("she opened the door .", "then she went out .")
        yield session.look(TEXT, answer="paris", hidden=[4], changes=[HEAD, WEIGHT, PATCH])
        yield session.tensor("bert.encoder.layer.1.attention.self.probabilities")
        yield session.parameter("bert.embeddings.word_embeddings.weight")
        yield session.parameter("bert.encoder.layer.0.output.dense.bias")
        yield session.words()
        yield session.words(places=[1, 2], nodes=[3])
        yield session.derivative("bert.encoder.layer.3.intermediate", [6, 11])
        yield session.derivative("bert.encoder.layer.2.attention.self.key.weight", [200, 3])
        session.step(0.01)
        yield session.look(TEXT, answer="paris")["loss"]
        session.reset()
        yield session.look(TEXT, answer="paris")["loss"]

    there = Session(open_subject("mini", device=device, dtype="float64"))
    for here, elsewhere in zip(answers(session), answers(there), strict=True):
        assert same(here, elsewhere)


def same(one, other):
    """Are both alike, but for rounding in their numbers?"""
    if isinstance(one, dict) and "data" in one:
        return np.allclose(unpacked(one), unpacked(other), rtol=1e-5, atol=1e-7)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == pytest.approx(other, rel=1e-5, abs=1e-7) if isinstance(one, float) else one == other


@pytest.mark.parametrize("changes", [[], [HEAD], [WEIGHT], [PATCH], [HEAD, WEIGHT, PATCH]])
def test_one_click_shows_that_both_derivatives_agree(session, changes):
    session.look(TEXT, answer="paris", changes=changes)
    for name, index in (
        ("bert.embeddings", [6, 3]),
        ("bert.encoder.layer.0.attention.self.k", [1, 4, 7]),
        ("bert.encoder.layer.1.attention.self.scores", [1, 6, 5]),
        ("bert.encoder.layer.3.intermediate", [6, 11]),
    ):
        told = session.derivative(name, index)
        assert told["by_hand"] == pytest.approx(told["numeric"], rel=1e-5, abs=1e-9), (name, told)


@pytest.mark.parametrize("change", [HEAD, WEIGHT, PATCH], ids=lambda change: change["kind"])
def test_a_change_changes_the_answer_and_is_gone_with_the_next_look(session, change):
    before = session.look(TEXT, answer="paris")
    changed = session.look(TEXT, answer="paris", changes=[change])
    assert changed["loss"] != before["loss"]
    assert session.look(TEXT, answer="paris") == before


def test_a_patch_is_the_other_texts_state(session):
    session.look("the capital of spain is big .", place=1)
    other = session._found.values["bert.encoder.layer.2"][4]
    session.look(TEXT, changes=[PATCH])
    np.testing.assert_allclose(session._found.values["bert.encoder.layer.2"][4], other)


def test_steps_lower_the_loss_and_can_be_taken_back(session):
    before = session.look(TEXT, answer="paris")
    session.step(0.01)
    after = session.look(TEXT, answer="paris")
    assert after["loss"] < before["loss"]
    session.step(0.01)
    assert session.look(TEXT, answer="paris")["loss"] < after["loss"]
    session.reset()
    assert session.look(TEXT, answer="paris") == before


def test_after_a_step_that_was_too_long(session):
    session.look(TEXT)
    session.step(1e200)
    with pytest.raises(UserError, match="the parameters have changed since the last pass; ask again"):
        session.derivative("bert.embeddings", [0, 0])
    with pytest.raises(UserError, match="the parameters have changed since the last pass; ask again"):
        session.words()
    with np.errstate(all="ignore"), pytest.raises(UserError, match="the loss is no number any more"):
        session.look(TEXT)
    session.reset()
    session.look(TEXT)
    assert np.isfinite(session.derivative("bert.embeddings", [0, 0])["numeric"])


def test_a_step_follows_the_gradient(session):
    """To first order the loss falls by rate · ‖gradient‖²."""
    before = session.look(TEXT, answer="paris")["loss"]
    rate = 1e-6
    session.step(rate)
    length = (session.model.buffers.grad**2).sum()
    after = session.look(TEXT, answer="paris")["loss"]
    session.reset()
    assert before - after == pytest.approx(rate * length, rel=1e-2)


@pytest.mark.parametrize(
    ("name", "index"),
    [
        ("bert.embeddings.word_embeddings.weight", [2662, 107]),
        ("bert.encoder.layer.2.attention.self.key.weight", [200, 3]),
        ("bert.encoder.layer.1.intermediate.dense.bias", [0, 1000]),
    ],
)
def test_derivatives_of_parameters(session, name, index):
    session.look(TEXT, answer="paris", changes=[HEAD])
    before = session.model.buffers.value.copy()
    told = session.derivative(name, index)
    assert told["by_hand"] != 0
    assert told["by_hand"] == pytest.approx(told["numeric"], rel=1e-5, abs=1e-9), (name, told)
    np.testing.assert_array_equal(session.model.buffers.value, before)


def test_a_parameter_is_shown_by_the_rows_that_matter(session):
    session.look(TEXT, answer="paris")
    session.words()  # leaves gradients of other passes
    told = session.parameter("bert.embeddings.word_embeddings.weight")
    assert told["shape"] == [8192, 256] and len(told["rows"]) == 24 == len(told["names"])
    assert told["names"] == [session.tokenizer.tokens[row] for row in told["rows"]]
    assert {"paris", "france", "capital", "[MASK]"} <= set(told["names"])
    session.derivative("bert.embeddings.word_embeddings.weight", [0, 0])  # leaves those of this one
    parameters = dict(session.model.named_parameters())
    gradient = parameters["bert.embeddings.word_embeddings.weight"].grad
    assert told["derivative"] == packed(gradient[told["rows"]])
    bias = session.parameter("bert.encoder.layer.0.output.dense.bias")
    assert bias["shape"] == [256] and bias["value"]["shape"] == [1, 256] and bias["rows"] == [0]


def test_two_texts_in_which_nothing_is_hidden(session):
    first, second = "she opened the door .", "then she went out ."
    told = session.look(first, second)
    assert told["measure"].startswith("−ln p(it ") and told["place"] is None
    likely = next_sentence_probability(session.model, session.tokenizer, first, second)
    assert {g["token"]: g["p"] for g in told["guesses"]}["it follows"] == pytest.approx(likely)
    assert session.look(first, second, answer="it does not")["loss"] == pytest.approx(-np.log(1 - likely))
    assert session.look(first, second, hidden=[4])["place"] == 4  # now it is about a word
    with pytest.raises(UserError, match="no word is hidden"):
        session.look(first)


def test_hiding_another_word(session):
    session.look(TEXT, answer="paris", hidden=[4])
    assert session._found.sentence.tokens[4] == "[MASK]"
    assert session.look(TEXT, answer="paris")["tokens"][4] == "france"


def test_the_words_are_those_of_the_unchanged_pass(session):
    session.look(TEXT, answer="paris")
    plain = session.words()
    session.look(TEXT, answer="paris", changes=[HEAD])
    assert session.words() == plain
    assert [row["name"] for row in plain] == ["hidden", "input × gradient", "integrated gradients"]


def test_the_unchanged_pass_is_made_once_for_all_parts(session, monkeypatch):
    session.look(TEXT, answer="paris", changes=[HEAD])
    made = []
    monkeypatch.setattr("minibert.explore.session.run", lambda *given: made.append(given) or run(*given))
    for places in ([], [4], [5]):
        session.words(places=places, nodes=[])
    assert len(made) == 1
    session.look(TEXT, answer="rome", changes=[HEAD])
    session.words(places=[], nodes=[])
    assert [question.answer for _, _, question in made] == [
        session.tokenizer.vocab["paris"],
        session.tokenizer.vocab["rome"],
    ]


def test_the_words_in_parts(session):
    session.look(TEXT, answer="paris")
    hidden, product, integrated = (row["values"] for row in session.words())
    first = session.words(places=[4], nodes=[])
    assert [row["values"] for row in first] == [[None] * 4 + [hidden[4]] + [None] * 4, product, [None] * 9]
    parts = [session.words(places=[], nodes=nodes) for nodes in ([0, 1, 2, 3, 4], [5], [6, 7])]
    assert parts[1][0]["values"] == [None] * 9
    total = np.sum([part[2]["values"] for part in parts], axis=0)
    np.testing.assert_allclose(total, integrated, rtol=1e-9)
    for nodes in ([8], [-1], ["a"]):
        with pytest.raises(UserError, match="expected whole numbers from 0 to 7"):
            session.words(nodes=nodes)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "all"}, "unknown change 'all'"),
        (HEAD | {"layer": 4}, "layer is 4; expected a whole number from 0 to 3"),
        (HEAD | {"head": None}, "head is None"),
        (WEIGHT | {"key": 9}, "key is 9; expected a whole number from 0 to 8"),
        (WEIGHT | {"weight": 2}, "weight is 2; expected a number from 0 to 1"),
        (PATCH | {"name": "nothing"}, "'nothing' is no value with a row for each token"),
        (PATCH | {"text": " "}, "the other text has no words"),
        (PATCH | {"text": "\u200b"}, "the other text has no words"),
        (PATCH | {"token": 8, "text": "short"}, "token is 8; expected a whole number from 0 to 2"),
    ],
)
def test_changes_that_cannot_be_made(session, change, message):
    session.look(TEXT)
    last = session._found
    with pytest.raises(UserError, match=message):
        session.look(TEXT, changes=[change])
    assert session._found is last


def test_what_cannot_be_asked(session):
    with pytest.raises(UserError, match="nothing has been asked yet"):
        session.words()
    session.look(TEXT)
    with pytest.raises(UserError, match="there is no value or parameter 'x'"):
        session.derivative("x", [0])
    with pytest.raises(UserError, match="there is no value or parameter 'x'"):
        session.parameter("x")
    with pytest.raises(UserError, match=r"\[0\] is no index of bert.embeddings, whose shape is \(9, 256\)"):
        session.derivative("bert.embeddings", [0])
    with pytest.raises(UserError, match=r"\[0, 1.5\] is no index of bert.embeddings"):
        session.derivative("bert.embeddings", [0, 1.5])
    with pytest.raises(UserError, match=r"\[0, 256\] is no index of .*bias, whose shape is \(1, 256\)"):
        session.derivative("bert.encoder.layer.0.output.dense.bias", [0, 256])


def test_a_look_with_numbers_that_json_does_not_have_changes_nothing(session):
    session.look(TEXT)
    last = session._found
    session.step(1e50)
    with np.errstate(all="ignore"), pytest.raises(UserError, match="some numbers are not finite"):
        session.look(TEXT)
    assert session._found is last
