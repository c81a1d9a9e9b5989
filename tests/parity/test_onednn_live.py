"""oneDNN's products beside NumPy's, and a training step with them."""

import threading

import numpy as np
import pytest

from minibert import BertConfig, BertForPreTraining
from minibert.products import is_available, multiply, products_library, use_products

if not is_available("onednn"):
    pytest.skip("oneDNN is not installed", allow_module_level=True)


@pytest.fixture(autouse=True)
def onednn():
    use_products("onednn")
    yield
    use_products("numpy")


def draw(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape, dtype=np.float32)


@pytest.mark.parametrize("sizes", [(1, 1, 1), (3, 5, 7), (512, 128, 384), (33, 1, 65), (1, 300, 2)])
@pytest.mark.parametrize("turned", [(False, False), (True, False), (False, True), (True, True)])
def test_products_equal_those_in_float64(sizes, turned):
    m, k, n = sizes
    a = draw(k, m).T if turned[0] else draw(m, k)
    b = draw(n, k).T if turned[1] else draw(k, n)
    wide = np.full((m, n + 3), np.nan, np.float32)
    multiply(a, b, wide[:, :n])
    exact = a.astype("float64") @ b.astype("float64")
    assert np.linalg.norm(wide[:, :n] - exact) <= 1e-6 * np.linalg.norm(exact)
    assert np.isnan(wide[:, n:]).all()  # nothing beyond is written


def test_what_it_does_not_take_is_left_to_numpy():
    a, b = draw(6, 8)[:, ::2], draw(4, 5)
    out = np.empty((6, 5), np.float32)
    multiply(a, b, out)
    assert np.array_equal(out, np.matmul(a, b))
    out = np.empty((6, 5))
    multiply(a.astype("float64"), b.astype("float64"), out)
    assert np.array_equal(out, a.astype("float64") @ b.astype("float64"))


def test_two_threads_at_once_compute_what_one_does():
    a, b = draw(512, 256), draw(256, 128)
    alone = np.empty((512, 128), np.float32)
    multiply(a, b, alone)
    results = [np.empty_like(alone) for _ in range(4)]
    threads = [threading.Thread(target=multiply, args=(a, b, out)) for out in results]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(np.array_equal(out, alone) for out in results)


def gradients_of_a_step() -> np.ndarray:
    config = BertConfig.preset("tiny").replace(vocab_size=300)
    model = BertForPreTraining(config, seed=0)
    ids = np.random.default_rng(0).integers(5, 300, (4, 32))
    _, cache = model.forward(input_ids=ids, labels=ids, next_sentence_label=[0, 1, 1, 0])
    model.backward(cache)
    return model.buffers.grad.copy()


def test_a_step_has_the_same_gradients_to_rounding_and_the_same_bits_again():
    assert products_library() == "onednn"
    ours, again = gradients_of_a_step(), gradients_of_a_step()
    use_products("numpy")
    by_numpy = gradients_of_a_step()
    assert np.array_equal(ours, again)
    assert not np.array_equal(ours, by_numpy)
    assert np.linalg.norm(ours - by_numpy) <= 1e-5 * np.linalg.norm(by_numpy)
