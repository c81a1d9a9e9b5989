"""What a person can ask and change, one request after the other."""

import numpy as np
import pytest

from minibert.errors import UserError
from minibert.explore.session import Session
from minibert.explore.subjects import open_subject

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


def test_a_step_follows_the_gradient(session):
    """To first order the loss falls by rate · ‖gradient‖²."""
    before = session.look(TEXT, answer="paris")["loss"]
    rate = 1e-6
    session.step(rate)
    length = (session.model.buffers.grad**2).sum()
    after = session.look(TEXT, answer="paris")["loss"]
    session.reset()
    assert before - after == pytest.approx(rate * length, rel=1e-2)


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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "all"}, "unknown change 'all'"),
        (HEAD | {"layer": 4}, "layer is 4; expected a whole number from 0 to 3"),
        (HEAD | {"head": None}, "head is None"),
        (WEIGHT | {"key": 9}, "key is 9; expected a whole number from 0 to 8"),
        (WEIGHT | {"weight": 2}, "weight is 2; expected a number from 0 to 1"),
        (PATCH | {"name": "nothing"}, "'nothing' is no value with a row for each token"),
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
    with pytest.raises(UserError, match="there is no value 'x'"):
        session.derivative("x", [0])
    with pytest.raises(UserError, match=r"\[0\] is no index of bert.embeddings, whose shape is \(9, 256\)"):
        session.derivative("bert.embeddings", [0])
