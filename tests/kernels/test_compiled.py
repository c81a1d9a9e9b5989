"""What the compiled loops are made of: exp, the bits of dropout, integers ordered as floats are."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import minibert
from minibert import ops
from minibert.dropout_bits import _mix, dropout_key
from minibert.ops.inverted_dropout import dropout_mask

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


def test_dropout_of_more_than_four_billion_scores():
    """Without padding, the scores are numbered as if all texts were as long as the longest."""
    longest, texts, key = 2048, 1030, dropout_key(1, 0, 0, 0, 0)  # text 1024 begins with score 2³²
    starts = np.cumsum([0, *[1] * texts, longest])
    y, _ = ops.unpadded_attention(np.ones((starts[-1], 3), "float32"), starts, 1, 0.5, key)
    words = [b * longest**2 // 2 for b in range(texts)]
    bits = [_mix((_mix(word ^ int(key[0])) + int(key[1])) % 2**32) % 2**16 for word in words]
    assert np.array_equal(y[:texts, 0] > 0, np.array(bits) >= 2**15)


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


NORM = "import numpy, minibert; print(minibert.ops.global_norm(numpy.ones(16, numpy.float32)))"


def run(code, expected="4.0\n", **options):
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, **options)
    assert (process.stdout, process.returncode) == (expected, 0), process.stderr


@pytest.mark.parametrize("suffix", ["nbi", "nbc"])
@pytest.mark.parametrize("left", [0, 100])
def test_a_damaged_file_is_compiled_anew(monkeypatch, tmp_path, suffix, left):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    run(NORM)
    files = list(tmp_path.rglob(f"*.{suffix}"))
    for path in files:
        os.truncate(path, left)
    run(NORM)
    assert files and all(path.stat().st_size > left for path in files), "they were not replaced"


def test_works_on_a_full_disk(monkeypatch, tmp_path):
    """Here the process may write no byte into any file; the second time one of them is damaged besides."""
    pytest.importorskip("resource")
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    full = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)); "
    run(full + NORM)
    assert not list(tmp_path.rglob("*.nb?"))
    run(NORM)
    for path in tmp_path.rglob("*.nbi"):
        os.truncate(path, 50)
    run(full + NORM)


def test_a_change_in_any_file_is_noticed(tmp_path):
    """Here in one whose function was compiled into that of another, which has not changed."""
    package = tmp_path / "minibert"
    left_out = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(minibert.__file__).parent, package, ignore=left_out)
    code = """
import numpy as np
from minibert import ops
one = np.ones((1, 1), np.float32)
print(f'{ops.linear_activation(one, one, one[0], "gelu")[0].item():.4f}')
"""
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    environment.pop("NUMBA_CACHE_DIR", None)
    run(code, "1.9545\n", env=environment, cwd=tmp_path)
    assert list(package.rglob("*.nbc"))
    file = package / "kernels" / "cpu" / "compiled.py"
    source = file.read_text(encoding="utf-8")
    assert source.count("else p * power") == 1
    file.write_text(source.replace("else p * power", "else float32(0.0)"), encoding="utf-8")
    run(code, "2.0000\n", env=environment, cwd=tmp_path)
