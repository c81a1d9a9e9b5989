"""What the compiled loops are made of: exp, the bits of dropout, integers ordered as floats are."""

import subprocess
import sys

import numpy as np
import pytest

from minibert.arrays import dropout_key
from minibert.ops.dropout import dropout_mask

compiled = pytest.importorskip("minibert.kernels.cpu.compiled", reason="Numba is not installed")


@compiled.compiled
def _exp(x, y):
    for i in range(len(x)):
        y[i] = compiled.exp(x[i])


@compiled.compiled
def _dropout_factors(first, drop, y):
    for i in range(len(y)):
        y[i] = compiled.dropout_factor(np.uint32(first + np.uint32(i)), drop)


@compiled.compiled
def _largest(x):
    largest = np.int32(-0x80000000)
    for i in range(len(x)):
        largest = max(largest, compiled.ordered(x[i]))
    return compiled.unordered(largest)


def test_exp():
    x = np.linspace(-87, 88, 1_000_003, dtype=np.float32)
    y = np.empty_like(x)
    _exp(x, y)
    exact = np.exp(x.astype(np.float64))
    assert (np.abs(y - exact) / exact).max() < 1.2e-7  # one unit in the last place


def test_exp_outside():
    x = np.array([0, -87.5, -1e4, -np.inf, np.nan], dtype=np.float32)
    y = np.empty_like(x)
    _exp(x, y)
    np.testing.assert_array_equal(y, np.array([1, 0, 0, 0, np.nan], dtype=np.float32))


@pytest.mark.parametrize("probability", [0.0, 0.1, 0.5])
def test_dropout_is_that_of_the_reference(probability):
    key = dropout_key(1, 2, 3, 4, 5)
    drop = compiled.dropout_numbers(probability, key)
    factors = np.empty(1001, dtype=np.float32)
    for first in (0, 1, 4000):
        _dropout_factors(np.uint32(first), drop, factors)
        mask = dropout_mask(np, (first + 1001,), "float32", probability, key)
        np.testing.assert_array_equal(factors, mask[first:])


def test_no_key_keeps_everything():
    factors = np.zeros(10, dtype=np.float32)
    _dropout_factors(np.uint32(0), compiled.dropout_numbers(0.5, None), factors)
    assert (factors == 1).all()


def test_ordered():
    rng = np.random.default_rng(0)
    x = (rng.standard_normal(1000) * 10.0 ** rng.integers(-40, 30, 1000)).astype(np.float32)
    for some in (x, -np.abs(x), x[:1], np.array([-0.0, -np.inf], dtype=np.float32)):
        assert _largest(some) == some.max()
    assert np.isnan(_largest(np.array([1, np.nan, 2], dtype=np.float32)))


def test_works_where_nothing_can_be_kept(monkeypatch):
    """As in a container that may write nowhere. Only zip files are asked for a folder here."""
    monkeypatch.setenv("NUMBA_CACHE_LOCATOR_CLASSES", "ZipCacheLocator")
    code = "import numpy, minibert; print(minibert.ops.global_norm(numpy.ones(16, numpy.float32)))"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (process.stdout, process.returncode) == ("4.0\n", 0), process.stderr


STEP = """
import hashlib, sys
import numpy as np
from minibert import BertConfig, BertForPreTraining, ops

rng = np.random.default_rng(0)
config = BertConfig.preset("tiny", vocab_size=301, hidden_size=90, num_attention_heads=3)
model = BertForPreTraining(config, seed=1)
ids = rng.integers(0, 301, (4, 40))
labels = np.where(rng.random(ids.shape) < 0.2, ids, -100)
outputs, cache = model.forward(ids, labels=labels, next_sentence_label=[0, 1, 0, 1])
model.backward(cache)
grad, value = model.buffers.grad, model.buffers.value
ops.adamw_update(value, grad, grad * 0, grad * 0, 0.01, 1.0, 0.9, 0.99, 1e-6, 0.01)
print(hashlib.sha256(value.tobytes() + grad.tobytes() + ops.global_norm(grad).tobytes()).hexdigest())
"""


def test_the_same_bits_from_a_process_that_compiles_and_from_one_that_finds_it_done(monkeypatch, tmp_path):
    """A run that is resumed later must go on exactly as it would have."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    runs = [subprocess.run([sys.executable, "-c", STEP], capture_output=True, text=True) for _ in range(2)]
    assert runs[0].returncode == 0, runs[0].stderr
    assert runs[0].stdout == runs[1].stdout
    assert list(tmp_path.rglob("*.nbi")), "nothing was kept, so both have compiled"
