"""The LSTM language model: its gradients are proven, each reader sees its own side, and it learns."""

import dataclasses
import subprocess
import sys

import numpy as np
import pytest

from examples import elmo
from examples.elmo import BidirectionalLM, LstmSettings, main, make_rows, train
from minibert.assets import model_folder
from minibert.errors import UserError
from minibert.gradcheck import CENTRAL_DIFFERENCES, COMPLEX_STEP, Case, check, function_case, model_case
from minibert.text import open_tokenizer

S, B, E, H = 5, 3, 3, 4
MASK = np.array([[1, 1, 0], [1, 1, 0], [1, 1, 1], [1, 0, 1], [1, 0, 1]])  # padding at the end, at the start
SMALL = LstmSettings(hidden_size=6, num_hidden_layers=2, length=6, batch_size=4, predictions=7, steps=3)
IDS = np.random.default_rng(3).integers(0, 9, (4, 6))
NEIGHBOURS = np.array([0, 3, 3, 9, 18])  # s · 4 + b, s < 5; one twice


def weights(scale=1.0):
    rng = np.random.default_rng(0)
    shapes = {"x": (S, B, E), "weight": (4 * H, E), "state_weight": (4 * H, H), "bias": (4 * H,)}
    return {name: rng.normal(0, scale, shape) for name, shape in shapes.items()}


def lstm_case(backward=elmo.lstm_backward) -> Case:
    def forward(x, weight, state_weight, bias):
        return elmo.lstm(x, MASK, weight, state_weight, bias)

    return function_case("lstm", forward, backward, weights())


def make(**settings):
    model = BidirectionalLM(9, SMALL.replace(**settings), dtype="float64")
    rng = np.random.default_rng(1)
    for _, parameter in model.named_parameters():
        parameter.value[...] = rng.normal(0, 0.7, parameter.shape)
    return model


@pytest.mark.parametrize("method", [CENTRAL_DIFFERENCES, COMPLEX_STEP], ids=lambda method: method.name)
def test_the_gradient_is_that_of_the_states(method):
    rows = check(lstm_case(), method)
    assert [row.parameter for row in rows] == ["x", "weight", "state_weight", "bias"]
    assert all(row.ok for row in rows), [str(row) for row in rows]


@pytest.mark.parametrize("part", range(5))
def test_the_check_notices_a_wrong_cache(part):
    """Gates, tanh of cells, states, cells, or mask: shifted by a step, each spoils a gradient."""

    def wrong(dout, cache):
        parts = list(cache)
        parts[part] = np.roll(parts[part], 1, axis=0)
        return elmo.lstm_backward(dout, tuple(parts))

    assert not all(row.ok for row in check(lstm_case(wrong)))


def test_the_states_are_the_formulas():
    x, weight, state_weight, bias = weights().values()
    states, _ = elmo.lstm(x, MASK, weight, state_weight, bias)
    for b in range(B):
        h, c = np.zeros(H), np.zeros(H)
        for t in range(S):
            i, f, o, g = np.split(weight @ x[t, b] + state_weight @ h + bias, 4)
            i, f, o = (1 / (1 + np.exp(-gate)) for gate in (i, f, o))
            c = (f * c + i * np.tanh(g)) * MASK[t, b]
            h = o * np.tanh(c)
            np.testing.assert_allclose(states[t, b], h, rtol=1e-12)


def test_every_gradient_of_the_model():
    rows = check(model_case("elmo", make(), {"input_ids": IDS, "neighbours": NEIGHBOURS}))
    assert len(rows) == 2 + 2 * 2 * 3
    assert all(row.ok for row in rows), [str(row) for row in rows]


def test_the_loss_is_the_mean_over_both_directions():
    model = make()
    states = model.hidden_states(IDS, np.ones_like(IDS))[-1]  # (B, S, 2H)
    losses = []
    for s, b in (divmod(int(place), len(IDS)) for place in NEIGHBOURS):
        for hidden, label in ((states[b, s, :6], IDS[b, s + 1]), (states[b, s + 1, 6:], IDS[b, s])):
            logits = model.words.weight.value @ hidden + model.bias.value
            losses.append(np.log(np.exp(logits).sum()) - logits[label])
    outputs, _ = model.forward(IDS, NEIGHBOURS)
    assert float(outputs.loss) == pytest.approx(np.mean(losses), rel=1e-12)


def test_each_reader_sees_one_side():
    model, other = make(), IDS.copy()
    other[:, 3] = (other[:, 3] + 1) % 9
    before, after = (model.hidden_states(ids, np.ones_like(ids))[-1] for ids in (IDS, other))
    changed = np.abs(before - after).max(axis=0) > 0  # (S, 2H)
    assert changed[:, :6].any(axis=1).tolist() == [False, False, False, True, True, True]
    assert changed[:, 6:].any(axis=1).tolist() == [True, True, True, True, False, False]


def test_padding_changes_nothing():
    model, padded = make(), np.full((1, 6), 8)
    padded[0, :4] = IDS[0, :4]
    alone = model.hidden_states(IDS[:1, :4], np.ones((1, 4)))
    beside = model.hidden_states(padded, np.array([[1, 1, 1, 1, 0, 0]]))
    for one, two in zip(alone, beside, strict=True):
        np.testing.assert_allclose(one, two[:, :4], rtol=1e-12)


def test_a_step_stays_in_float32():
    model = BidirectionalLM(9, SMALL)
    outputs, cache = model.forward(IDS, NEIGHBOURS)
    model.backward(cache)
    states = model.hidden_states(IDS, np.ones_like(IDS))
    assert {outputs.loss.dtype, *(one.dtype for one in states)} == {np.dtype("float32")}
    assert "spent" in repr(cache)


# -- Learning -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """Animals run, foods are eaten: the verb says what stands on both sides."""
    rng, path = np.random.default_rng(0), tmp_path_factory.mktemp("toy") / "toy.txt"
    lines = []
    for _ in range(500):
        animal, food = rng.choice(["cat", "dog", "horse"]), rng.choice(["bread", "rice", "soup"])
        lines += [f"The {animal} runs across fields.", f"People eat {food} hot."]
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return path


@pytest.fixture(scope="module")
def tokenizer():
    return open_tokenizer(model_folder("mini"))


def test_rows_are_pieces_of_documents_between_special_tokens(text, tokenizer):
    rows = make_rows([text], tokenizer, 16)
    assert rows.shape[1] == 16 and rows.dtype == np.int32
    assert (rows[:, 0] == tokenizer.cls_id).all() and (rows[:, -1] == tokenizer.sep_id).all()
    expected = tokenizer.token_ids_batch([text.read_text("utf-8").replace("\n", " ")])[0]
    assert rows[:, 1:-1].ravel().tolist() == expected[: rows[:, 1:-1].size]


def test_it_learns_what_the_order_of_words_tells(text, tokenizer):
    rows, told = make_rows([text], tokenizer, 16), []
    settings = LstmSettings(hidden_size=24, num_hidden_layers=1, length=16, batch_size=8, steps=100)
    train(rows, len(tokenizer.tokens), settings, lambda step, loss: told.append((step, loss)))
    assert [step for step, _ in told] == list(range(10, 101, 10))
    shares = np.bincount(rows.ravel()) / rows.size
    by_frequency = -(shares[shares > 0] * np.log(shares[shares > 0])).sum()
    assert told[-1][1] < by_frequency / 2


def test_the_same_seed_gives_the_same_weights(text, tokenizer):
    rows = make_rows([text], tokenizer, 6)
    first, again, other = (
        train(rows, len(tokenizer.tokens), dataclasses.replace(SMALL, seed=seed)).words.weight.value
        for seed in (0, 0, 1)
    )
    assert np.array_equal(first, again) and not np.allclose(first, other)


def test_a_diverging_run_says_so(text, tokenizer):
    rows = make_rows([text], tokenizer, 6)
    with np.errstate(all="ignore"), pytest.raises(UserError, match="choose a lower --learning-rate"):
        train(rows, len(tokenizer.tokens), SMALL.replace(learning_rate=1e38, steps=5))


# -- The command --------------------------------------------------------------------------------------


def test_it_runs_as_a_program(text, tmp_path):
    flags = "--hidden-size 8 --num-hidden-layers 1 --length 16 --batch-size 4 --steps 20".split()
    command = [sys.executable, elmo.__file__, str(text), *flags, "--start", "the cat"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    assert "loss of a guess by frequency: " in done.stdout and done.stdout.count("    loss ") == 10
    assert done.stdout.splitlines()[-1].startswith("the cat … ")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["nowhere.txt"], "nowhere.txt: no such file"),
        (
            ["TOY", "--length", "20000"],
            "no document has 19998 tokens; give a longer text or a lower --length",
        ),
        (["TOY", "--hidden-size", "0"], "hidden_size must be at least 1, got 0"),
        (["TOY", "--step", "3"], "unknown argument '--step'; did you mean '--steps'?"),
    ],
)
def test_mistakes_are_one_line(text, arguments, message, capsys):
    assert main([str(text) if one == "TOY" else one for one in arguments]) == 2
    error = capsys.readouterr().err
    assert message in error and error.startswith("elmo: error: ") and error.count("\n") == 1
