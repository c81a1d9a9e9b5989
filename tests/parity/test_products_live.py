"""The products of oneDNN and MKL beside NumPy's, and a training step with them; oneDNN's also in bfloat16."""

import ctypes
import threading

import numpy as np
import pytest

from minibert import BertConfig, BertForPreTraining, ops
from minibert import onednn as onednn_library
from minibert.products import is_available, multiply, products_library, use_products
from minibert.tasks import pretrain
from minibert.tasks.pretraining_settings import PretrainSettings


@pytest.fixture(autouse=True)
def back_to_numpy():
    yield
    use_products("numpy")


@pytest.fixture(params=["onednn", "mkl"])
def library(request) -> str:
    """A library, in use."""
    if not is_available(request.param):
        pytest.skip(f"{request.param} is not installed")
    use_products(request.param)
    return request.param


def draw(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape, dtype=np.float32)


@pytest.mark.parametrize("sizes", [(1, 1, 1), (3, 5, 7), (512, 128, 384), (33, 1, 65), (1, 300, 2)])
@pytest.mark.parametrize("turned", [(False, False), (True, False), (False, True), (True, True)])
def test_products_equal_those_in_float64(library, sizes, turned):
    m, k, n = sizes
    a = draw(k, m).T if turned[0] else draw(m, k)
    b = draw(n, k).T if turned[1] else draw(k, n)
    wide = np.full((m, n + 3), np.nan, np.float32)
    multiply(a, b, wide[:, :n])
    exact = a.astype("float64") @ b.astype("float64")
    assert np.linalg.norm(wide[:, :n] - exact) <= 1e-6 * np.linalg.norm(exact)
    assert np.isnan(wide[:, n:]).all()  # nothing beyond is written


def test_what_it_does_not_take_is_left_to_numpy(library):
    a, b = draw(6, 8)[:, ::2], draw(4, 5)
    out = np.empty((6, 5), np.float32)
    multiply(a, b, out)
    assert np.array_equal(out, np.matmul(a, b))
    out = np.empty((6, 5))
    multiply(a.astype("float64"), b.astype("float64"), out)
    assert np.array_equal(out, a.astype("float64") @ b.astype("float64"))


@pytest.mark.parametrize("name", ["onednn", "mkl", "bfloat16"])
def test_a_product_opens_no_library(monkeypatch, name):
    """Opening it takes longer than a small product."""
    if not is_available(name):
        pytest.skip(f"there are no {name} products here")
    use_products(name)
    a, b, out = draw(3, 4), draw(4, 5), np.empty((3, 5), np.float32)
    multiply(a, b, out)
    monkeypatch.setattr(ctypes, "CDLL", None)
    monkeypatch.setattr(ctypes, "PyDLL", None)
    out[...] = 0
    multiply(a, b, out)
    assert np.linalg.norm(out - a @ b) <= 0.02 * np.linalg.norm(a @ b)


def test_two_threads_at_once_compute_what_one_does(library):
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


@pytest.mark.parametrize("sizes", [(512, 256, 768), (7, 129, 33), (300, 128, 8)])
def test_where_an_array_begins_in_memory_does_not_change_the_bits(library, sizes):
    """It differs from run to run, and a resumed run is to compute the same."""
    m, k, n = sizes
    a, b, results = draw(m, k), draw(k, n), []
    for offset in range(0, 17, 3):
        moved = [np.empty(x.size + offset, np.float32)[offset:].reshape(x.shape) for x in (a, b)]
        moved[0][...], moved[1][...] = a, b
        results.append(np.empty(m * n + offset, np.float32)[offset:].reshape(m, n))
        multiply(*moved, results[-1])
    assert all(np.array_equal(result, results[0]) for result in results)


def test_a_step_has_the_same_gradients_to_rounding_and_the_same_bits_again(library):
    assert products_library() == library
    ours, again = gradients_of_a_step(), gradients_of_a_step()
    use_products("numpy")
    by_numpy = gradients_of_a_step()
    assert np.array_equal(ours, again)
    assert not np.array_equal(ours, by_numpy)
    assert np.linalg.norm(ours - by_numpy) <= 1e-5 * np.linalg.norm(by_numpy)


needs_bfloat16 = pytest.mark.skipif(
    not is_available("bfloat16"), reason="there are no bfloat16 products here"
)


def rounded(x: np.ndarray) -> np.ndarray:
    return x.astype("bfloat16").astype("float64")


@needs_bfloat16
@pytest.mark.parametrize("sizes", [(1, 1, 1), (3, 5, 7), (512, 128, 384), (33, 1, 65), (1, 300, 2)])
@pytest.mark.parametrize("turned", [(False, False), (True, False), (False, True), (True, True)])
def test_products_in_bfloat16_are_sums_in_float32_of_rounded_factors(sizes, turned):
    use_products("bfloat16")
    m, k, n = sizes
    a = draw(k, m).T if turned[0] else draw(m, k)
    b = draw(n, k).T if turned[1] else draw(k, n)
    out = np.empty((m, n), np.float32)
    multiply(a, b, out)
    exact = rounded(a) @ rounded(b)
    assert np.linalg.norm(out - exact) <= 1e-6 * np.linalg.norm(exact)
    again = np.full((m, n + 3), np.nan, np.float32)
    multiply(a.astype("bfloat16", order="K"), b, again[:, :n])
    assert np.array_equal(out, again[:, :n])
    assert np.isnan(again[:, n:]).all()  # nothing beyond is written


@needs_bfloat16
def test_what_bfloat16_does_not_take_is_left_to_numpy():
    use_products("bfloat16")
    a, b = draw(2, 6, 8), draw(8, 5)
    out = np.empty((2, 6, 5), np.float32)
    multiply(a, b, out)
    assert np.array_equal(out, rounded(a).astype("float32") @ rounded(b).astype("float32"))


@needs_bfloat16
@pytest.mark.parametrize("kind", ["backwards", "repeated", "every other", "a field of records"])
def test_factors_may_lie_in_memory_in_any_way(kind):
    base = draw(6, 8).astype("bfloat16")
    records = np.zeros((6, 8), [("x", "bfloat16"), ("flag", "u1")])
    records["x"] = base
    a = {
        "backwards": base[::-1, ::-1],
        "repeated": np.broadcast_to(base[:1], (6, 8)),
        "every other": np.repeat(np.repeat(base, 2, 0), 2, 1)[::2, ::2],
        "a field of records": records["x"],
    }[kind]
    use_products("bfloat16")
    b, out = draw(8, 5).astype("bfloat16"), np.empty((6, 5), np.float32)
    multiply(a, b, out)
    exact = a.astype("float64") @ b.astype("float64")
    assert np.linalg.norm(out - exact) <= 1e-6 * np.linalg.norm(exact)


@needs_bfloat16
def test_threads_compute_the_same_products_and_forget_the_oldest_ways(monkeypatch):
    monkeypatch.setattr(onednn_library, "KEPT", 2)
    product = onednn_library.bfloat16()
    factors = [(draw(rows, 24).astype("bfloat16"), draw(24, 40).astype("bfloat16")) for rows in range(1, 9)]

    def compute(results: list[np.ndarray]) -> None:
        for a, b in factors * 3:
            results.append(np.empty((len(a), 40), np.float32))
            assert product(a, b, results[-1])

    found: list[list[np.ndarray]] = [[], [], []]
    threads = [threading.Thread(target=compute, args=(results,)) for results in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for results in found:
        assert len(results) == 3 * len(factors)
        for (a, b), out in zip(factors * 3, results, strict=True):
            exact = a.astype("float64") @ b.astype("float64")
            assert np.linalg.norm(out - exact) <= 1e-6 * np.linalg.norm(exact)


@needs_bfloat16
def test_muon_in_bfloat16_turns_a_matrix_into_nearly_the_same():
    use_products("bfloat16")
    matrix = draw(96, 40)
    found, exact = ops.orthogonalise(matrix), ops.TABLE["orthogonalise"].reference.forward(matrix)
    assert 1e-4 < np.linalg.norm(found - exact) / np.linalg.norm(exact) < 3e-2


@needs_bfloat16
def test_without_elements_bfloat16_gives_zeros():
    use_products("bfloat16")
    out = np.full((3, 4), np.nan, np.float32)
    multiply(np.empty((3, 0), np.float32), np.empty((0, 4), np.float32), out)
    assert np.array_equal(out, np.zeros((3, 4)))


@needs_bfloat16
def test_the_gradients_of_a_step_in_bfloat16_differ_by_its_rounding():
    use_products("onednn")
    exact = gradients_of_a_step()
    use_products("bfloat16")
    ours, again = gradients_of_a_step(), gradients_of_a_step()
    assert np.array_equal(ours, again)
    assert 1e-4 < np.linalg.norm(ours - exact) / np.linalg.norm(exact) < 2e-2  # half a unit is 2e-3


@needs_bfloat16
def test_a_run_in_bfloat16_rounds_products_and_nothing_else(tmp_path):
    texts = (f"the river {number} is long .\nit is old ." for number in range(40))
    (tmp_path / "corpus.txt").write_text("\n\n".join(texts))
    weights = {}
    for precision in ("float32", "bfloat16"):
        settings = PretrainSettings(
            name=precision,
            precision=precision,
            products="onednn" if precision == "float32" else "auto",
            corpus=(str(tmp_path / "corpus.txt"),),
            out=str(tmp_path / "runs"),
            prepared=str(tmp_path / "prepared"),
            hidden_size=32,
            num_attention_heads=2,
            num_hidden_layers=1,
            max_seq_length=32,
            vocab_size=80,
            batch_size=4,
            steps=6,
            processes=1,
            device="cpu",
        )
        pretrain(settings)
        assert products_library() == ("bfloat16" if precision == "bfloat16" else "onednn")
        use_products("onednn")
        model = BertForPreTraining.from_pretrained(settings.folder / "final")
        assert model.buffers.value.dtype == np.float32
        weights[precision] = model.buffers.value
    exact = weights["float32"]
    assert 1e-7 < np.linalg.norm(weights["bfloat16"] - exact) / np.linalg.norm(exact) < 1e-2
