"""The loss that a run should have: which curve is taken, where there is none, and what is said."""

import json

import numpy as np
import pytest

from minibert.tasks import pretrain
from minibert.tasks.expectation import CURVES, Expectation, expected_loss, verdict
from minibert.tasks.pretraining_recipes import PRETRAINING_RECIPES
from minibert.tasks.pretraining_settings import PretrainSettings

KNOWN = json.loads(CURVES.read_text())
FAST = PretrainSettings(**PRETRAINING_RECIPES["fast"])
PLATEAU = {"docs": 6.3315, "ten million words": 6.965}


def curve(text, recipe, layers, hidden, nsp=False):
    (found,) = (
        np.array(c["points"])
        for c in KNOWN
        if (c["text"], c["recipe"], c["layers"], c["hidden_size"], c["nsp"])
        == (text, recipe, layers, hidden, nsp)
    )
    return found


def test_the_default_text_has_curves_of_its_own():
    cases = ((FAST, "fast", False, 0.15), (PretrainSettings(), "original", True, 0.3))
    for settings, recipe, nsp, slack in cases:
        found = expected_loss(settings, 2, 128, 8192, PLATEAU["docs"], 1e6)
        assert found.slack == slack and found.told == f"{recipe} recipe, L2 H128, docs"
        np.testing.assert_array_equal(found.points, curve("docs", recipe, 2, 128, nsp))


def test_on_another_text_the_curve_is_as_far_below_its_plateau():
    settings = FAST.replace(corpus=("mine.txt",))
    found = expected_loss(settings, 4, 256, 8192, 6.0, 2e6)
    assert found.slack == 0.5 and found.told == "fast recipe, L4 H256, ten million words"
    measured = curve("ten million words", "fast", 4, 256)
    np.testing.assert_array_equal(found.points[:, 0], measured[:, 0])
    np.testing.assert_allclose(
        6.0 - found.points[:, 1], PLATEAU["ten million words"] - measured[:, 1], atol=1e-12
    )


def test_widths_between_measured_ones_are_interpolated_and_depths_are_not():
    settings = FAST.replace(corpus=("mine.txt",))
    at_64, at_128 = (expected_loss(settings, 2, hidden, 8192, 6.965, 2e6) for hidden in (64, 128))
    for hidden in (76, 91):
        found, share = expected_loss(settings, 2, hidden, 8192, 6.965, 2e6), np.log2(hidden / 64)
        assert "between H64 and H128" in found.told
        between = at_64.points + share * (at_128.points - at_64.points)
        np.testing.assert_allclose(found.points, between, rtol=1e-12)
    for shape in ((3, 128), (2, 512), (2, 32), (12, 768)):
        told = expected_loss(settings, *shape, 8192, 6.965, 2e6)
        assert told.startswith(
            f"L{shape[0]} H{shape[1]} was not measured (by this recipe without NSP: L1 H64, "
        )


@pytest.mark.parametrize(
    ("changes", "vocab_size", "reason"),
    [
        ({"optimiser": "adamw"}, 8192, "nothing like these settings"),
        ({"word_initializer": "normal"}, 8192, "nothing like these settings"),
        ({"variant": "roberta"}, 8192, "nothing like these settings"),
        ({"model": "mini"}, 8192, "nothing like these settings"),
        ({"objective": "left-to-right"}, 8192, "nothing like these settings"),
        ({}, 30_522, "only vocabularies of about 8,192 tokens were measured, this has 30,522"),
    ],
)
def test_where_nothing_was_measured_it_says_so(changes, vocab_size, reason):
    assert reason in expected_loss(FAST.replace(**changes), 2, 128, vocab_size, 6.3, 1e6)


def test_vocabularies_from_half_to_twice_the_usual_size_have_a_curve():
    for vocab_size, measured in ((4095, False), (4096, True), (16_384, True), (16_385, False)):
        found = expected_loss(FAST, 2, 128, vocab_size, 6.3, 1e6)
        assert isinstance(found, Expectation) == measured


def test_what_is_said_of_a_run():
    points = np.array([[0.0, 7.0], [1e6, 5.0], [2e6, 4.0]])
    own, other = Expectation(points, "a run", 0.15), Expectation(points, "a run", 0.5)
    assert own.at(1.5e6) == 4.5
    assert verdict(own, 4.6, 1.5e6) == (
        "expected (a run)  loss 4.500 nats after 1.5 million tokens; the run is 0.10 nats above it: "
        "as it should be"
    )
    assert verdict(own, 4.3, 1.5e6).endswith("the run is 0.20 nats below it: as it should be")
    assert verdict(own, 4.7, 1.5e6).endswith("0.20 nats above it: too high: see docs/expected.md")
    assert verdict(other, 4.7, 1.5e6).endswith("as it should be")
    longer = verdict(own, 4.05, 9e6)
    assert (
        "after 2.0 million tokens" in longer
        and "has read 9.0 million, and should be below: too high" in longer
    )
    assert verdict(own, 3.5, 9e6).endswith("as it should be")
    assert verdict(own, 4.05, 2.4e6).endswith("the run is 0.05 nats above it: as it should be")
    assert "has read 2.5 million, and should be below" in verdict(own, 4.05, 2.5e6)


def test_a_run_draws_it_and_says_so(small, capsys):
    shape = dict(num_hidden_layers=1, hidden_size=64, vocab_size=80, expect=True)
    pretrain(small(name="plain", **shape | {"expect": False}))
    assert "expected" not in capsys.readouterr().out
    pretrain(small(name="none", **shape))
    assert "no expected loss: only vocabularies of about 8,192" in capsys.readouterr().out
    pictures = [(small(name=name).folder / "loss.png").read_bytes() for name in ("plain", "none")]
    assert pictures[0] == pictures[1]


def test_the_curve_is_in_the_picture(small, capsys, monkeypatch):
    monkeypatch.setattr("minibert.tasks.expectation.USUAL_VOCAB_SIZE", 80)
    recipe = PRETRAINING_RECIPES["fast"] | dict(
        steps=6, num_hidden_layers=1, hidden_size=64, precision="float32"
    )
    pretrain(small(name="plain", **recipe))
    pretrain(small(name="drawn", expect=True, **recipe))
    told = capsys.readouterr().out
    assert "expected (fast recipe, L1 H64, ten million words)  loss " in told
    pictures = [(small(name=name).folder / "loss.png").read_bytes() for name in ("plain", "drawn")]
    assert pictures[0] != pictures[1]
