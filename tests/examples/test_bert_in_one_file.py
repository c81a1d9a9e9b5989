"""BERT in one file: it equals the library number by number, is short, needs only NumPy, and runs."""

import ast
import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from minibert import BertConfig, BertForPreTraining
from minibert.train.optimiser import AdamW

FILE = Path(__file__).resolve().parents[2] / "examples" / "bert_in_one_file.py"
EQUAL = 1e-12  # relative, by norm


@pytest.fixture(scope="module")
def one_file():
    spec = importlib.util.spec_from_file_location("bert_in_one_file", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def random_model():
    """A small model in float64 with γ, β and biases of order one, so that no derivative hides behind them."""
    config = BertConfig(
        vocab_size=23,
        hidden_size=12,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=20,
        max_position_embeddings=11,
        hidden_act="gelu_new",
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    model = BertForPreTraining(config, dtype="float64")
    rng = np.random.default_rng(0)
    for _, parameter in model.named_parameters():
        scale = parameter.shape[-1] ** -0.5 if len(parameter.shape) == 2 else 1.0
        parameter.value[...] = rng.normal(0, scale, parameter.shape)
    return model


@pytest.fixture
def model():
    return random_model()


@pytest.fixture
def batch():
    """Three sequences of unequal length, with repeated ids, a label at [CLS] too, and both kinds of pairs."""
    rng = np.random.default_rng(1)
    lengths = np.array([9, 6, 7])
    attention_mask = (np.arange(9) < lengths[:, None]).astype(int)
    input_ids = rng.integers(5, 12, (3, 9)) * attention_mask
    labels = np.full((3, 9), -100)
    labels[[0, 0, 1, 1, 2, 2], [2, 7, 0, 3, 1, 6]] = [7, 22, 9, 7, 5, 19]
    return {
        "input_ids": input_ids,
        "token_type_ids": (np.arange(9) >= 4) * attention_mask,
        "attention_mask": attention_mask,
        "labels": labels,
        "next_sentence_label": np.array([0, 1, 1]),
    }


def values(model):
    return {name: parameter.value.copy() for name, parameter in model.named_parameters()}


def gradients(model):
    return {name: parameter.grad.copy() for name, parameter in model.named_parameters()}


def run_model(model, batch):
    outputs, cache = model.forward(**batch)
    model.backward(cache)
    return outputs


def assert_equal(actual, expected, what):
    assert actual.dtype == np.float64, what
    assert np.linalg.norm(actual - expected) <= EQUAL * np.linalg.norm(expected), what


def test_the_loss_is_that_of_the_library(one_file, model, batch):
    outputs, _ = model.forward(**batch)
    losses, _, _ = one_file.forward(values(model), **batch)
    assert sum(losses) == pytest.approx(float(outputs.loss), rel=EQUAL, abs=0)


def test_every_gradient_is_that_of_the_library(one_file, model, batch):
    run_model(model, batch)
    _, _, cache = one_file.forward(values(model), **batch)
    grads, expected = one_file.backward(values(model), cache), gradients(model)
    assert grads.keys() == expected.keys()
    for name, grad in grads.items():
        if name.endswith("key.bias"):  # softmax takes a constant out, so nothing but rounding is left
            assert abs(grad).max() < 1e-15 and abs(expected[name]).max() < 1e-15
        else:
            assert_equal(grad, expected[name], name)


@pytest.mark.parametrize("scale", [0.01, 1.0])  # below and above the norm at which gradients are clipped
def test_steps_of_adamw_are_those_of_the_library(one_file, model, batch, scale):
    run_model(model, batch)
    for _, parameter in model.named_parameters():
        parameter.grad[...] *= scale
    params, grads = values(model), gradients(model)
    norm = np.sqrt(sum((grad**2).sum() for grad in grads.values()))
    assert norm > 1 if scale == 1.0 else norm < 1
    means, squares = ({name: np.zeros_like(value) for name, value in params.items()} for _ in range(2))
    optimiser = AdamW(model, beta1=0.9, beta2=0.98, weight_decay=0.01)
    for step in range(2):
        optimiser.step(1e-3, step)
        one_file.adamw(params, grads, means, squares, learning_rate=1e-3)
    for name, expected in values(model).items():
        assert_equal(params[name], expected, name)


def test_its_parameters_have_the_names_and_shapes_of_the_library(one_file):
    config = BertConfig(
        vocab_size=one_file.V,
        hidden_size=one_file.H,
        num_hidden_layers=one_file.L,
        num_attention_heads=one_file.A,
        intermediate_size=one_file.F,
        max_position_embeddings=one_file.S,
    )
    expected = {name: value.shape for name, value in values(BertForPreTraining(config)).items()}
    params = one_file.new_parameters(np.random.default_rng(0))
    assert {name: value.shape for name, value in params.items()} == expected


def test_a_training_step_stays_in_float32(one_file):
    params = one_file.new_parameters(np.random.default_rng(0))
    pairs = [([7, 8, 9, 10, 11], [12, 13, 14])]
    _, logits, cache = one_file.forward(params, *one_file.make_batch(pairs, 8, np.random.default_rng(0)))
    grads = one_file.backward(params, cache)
    means, squares = ({name: np.zeros_like(value) for name, value in params.items()} for _ in range(2))
    one_file.adamw(params, grads, means, squares, learning_rate=1e-3)
    arrays = [logits, *params.values(), *grads.values(), *means.values(), *squares.values()]
    assert {array.dtype for array in arrays} == {np.dtype("float32")}


def test_masks_are_drawn_as_in_bert(one_file):
    pairs = [(list(range(100, 120)), list(range(200, 205))), (list(range(300, 310)), list(range(400, 440)))]
    batch = one_file.make_batch(pairs, 5000, np.random.default_rng(0))
    input_ids, token_type_ids, attention_mask, labels, next_sentence_label = batch
    chosen = labels != one_file.IGNORED
    original = np.where(chosen, labels, input_ids)
    text = original > one_file.MASK
    assert chosen[text].mean() == pytest.approx(0.15, abs=0.01) and not chosen[~text].any()
    assert (input_ids[chosen] == one_file.MASK).mean() == pytest.approx(0.8, abs=0.01)
    assert (input_ids[chosen] == labels[chosen]).mean() == pytest.approx(0.1, abs=0.01)
    assert np.array_equal(attention_mask, original != one_file.PAD)
    assert (original == one_file.SEP).sum(axis=1).tolist() == [2] * 5000
    first, second = original[:, 1] // 100, (original * token_type_ids).max(axis=1) // 100
    assert (second == first + 1)[next_sentence_label == 0].all()
    assert (second == first + 1)[next_sentence_label == 1].mean() == pytest.approx(0.5, abs=0.03)
    assert next_sentence_label.mean() == pytest.approx(0.5, abs=0.03)


def test_every_word_can_be_spelled(one_file):
    documents = [["the function returned the functions".split(), "return the return of it".split()]]
    ids = one_file.learn_vocabulary(documents)
    vocabulary = list(ids)
    assert vocabulary[:5] == one_file.SPECIAL
    assert list(ids.values()) == list(range(len(ids)))

    def pieces(word):
        return [vocabulary[i] for i in one_file.word_to_ids(word, ids)]

    assert pieces("functions") == ["functions"]
    assert pieces("returns") == ["return", "##s"]
    assert pieces("tie") == ["t", "##i", "##e"]
    assert pieces("te?") == ["t", "##e", "[UNK]"]


def test_it_fits_on_a_page_or_two_and_needs_only_numpy():
    source = FILE.read_text(encoding="utf-8")
    assert len(source.splitlines()) <= 300
    imported = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            imported |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(node.module.split(".")[0])
    assert imported - sys.stdlib_module_names == {"numpy"}


def test_it_runs(tmp_path):
    command = [sys.executable, str(FILE), "3"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    assert "step     3" in done.stdout
    assert done.stdout.count("[MASK]") >= 3


def test_a_mistake_gets_a_line(tmp_path):
    done = subprocess.run(
        [sys.executable, str(FILE), "many"], cwd=tmp_path, capture_output=True, text=True, encoding="utf-8"
    )
    assert done.returncode == 2
    assert "invalid int value: 'many'" in done.stderr
    assert "Traceback" not in done.stderr
