"""Matrix products: who computes them, how the choice is made, and that the kernels follow it."""

import itertools
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import threadpoolctl

from minibert import blas, mkl, onednn, products, threads
from minibert.errors import UserError
from minibert.kernels.cpu.gelu import linear_activation
from minibert.kernels.cpu.linear import linear, linear_backward
from minibert.kernels.cpu.masked_lm_loss import masked_lm_loss, masked_lm_loss_backward
from minibert.products import fastest_library, is_available, multiply, products_library, use_products


@pytest.fixture(autouse=True)
def back_to_numpy():
    yield
    use_products("numpy")


@pytest.fixture
def counting(monkeypatch) -> list[tuple[int, ...]]:
    """A library "counting", in use: NumPy's, with a list of the shapes (M, K, N) that it multiplied."""
    multiplied = []

    def count(a, b, out):
        multiplied.append((*a.shape, b.shape[1]))
        np.matmul(a, b, out=out)

    monkeypatch.setitem(products.LIBRARIES, "counting", lambda: count)
    use_products("counting")
    return multiplied


def draw(*shape: int) -> np.ndarray:
    return np.random.default_rng(3).standard_normal(shape, dtype=np.float32)


def test_numpy_multiplies_at_first():
    assert products_library() == "numpy"
    a, b, out = draw(3, 4), draw(4, 5), np.empty((3, 5), np.float32)
    multiply(a, b, out)
    assert np.array_equal(out, a @ b)


def test_an_unknown_library_is_refused():
    with pytest.raises(UserError, match="'blis' for products; choose numpy, onednn, mkl, bfloat16"):
        use_products("blis")
    assert products_library() == "numpy"
    assert not is_available("blis")


@pytest.fixture
def nothing_installed(monkeypatch):
    """No library but NumPy's, whatever this machine has."""
    kept = products._onednn, products._mkl, products._bfloat16, onednn.load, mkl.load
    for function in kept:
        function.cache_clear()
    monkeypatch.setattr(blas.importlib.metadata, "files", lambda package: None)
    monkeypatch.setattr(blas.ctypes.util, "find_library", lambda name: None)
    yield
    for function in kept:
        function.cache_clear()


OTHERS = [("onednn", "oneDNN", "onednn-cpu-gomp", "dnnl"), ("mkl", "MKL", "mkl", "mkl_rt")]


@pytest.mark.parametrize(("name", "title", "package", "_"), OTHERS)
def test_a_missing_library_is_refused_with_the_way_to_get_it(nothing_installed, name, title, package, _):
    with pytest.raises(
        UserError, match=f'{title} is not installed; install it with  pip install "{package}"'
    ):
        use_products(name)
    assert products_library() == "numpy"
    assert fastest_library([(8, 8)]) == "numpy"


@pytest.mark.parametrize(("name", "title", "_", "file"), OTHERS)
def test_a_library_that_is_something_else_is_refused(
    nothing_installed, monkeypatch, tmp_path, name, title, _, file
):
    (tmp_path / "lib.so").write_bytes(b"not a library")
    asked = []
    monkeypatch.setattr(
        blas.ctypes.util, "find_library", lambda name: asked.append(name) or tmp_path / "lib.so"
    )
    with pytest.raises(UserError, match=rf"{title} cannot be used \(.*lib.so"):
        use_products(name)
    assert asked == [file]


def test_an_older_library_is_refused(nothing_installed, monkeypatch):
    """One without a function that is needed: here the C library."""
    monkeypatch.setattr(blas.ctypes.util, "find_library", lambda name: "libc.so.6")
    with pytest.raises(UserError, match=r"MKL cannot be used \(.*undefined symbol: cblas_sgemm"):
        use_products("mkl")


def test_the_library_of_an_installed_package_comes_first(nothing_installed, monkeypatch):
    file = SimpleNamespace(name="libmkl_rt.so.3", locate=lambda: "/nowhere/libmkl_rt.so.3")
    other = SimpleNamespace(name="libmkl_core.so.3", locate=lambda: "/nowhere/libmkl_core.so.3")
    monkeypatch.setattr(blas.importlib.metadata, "files", {"mkl": [other, file]}.get)
    with pytest.raises(UserError, match=r"MKL cannot be used \(/nowhere/libmkl_rt.so.3"):
        use_products("mkl")


def test_every_product_of_the_linear_kernels_goes_through_it(counting):
    x, weight, bias = draw(6, 4), draw(10, 4), draw(10)
    y, cache = linear(x, weight, bias)
    linear_backward(y, cache)
    linear_activation(x, weight, bias, "gelu")
    volumes = [m * k * n for m, k, n in counting]
    assert sum(volumes) == 4 * x.size * len(weight)  # y, dx, dW, and y again


def test_every_product_of_the_loss_goes_through_it(counting):
    hidden, weight, bias = draw(5, 4), draw(12, 4), draw(12)
    labels, weights = np.array([0, 3, 11, 3, 7]), np.ones(5, np.float32)
    _, cache = masked_lm_loss(hidden, weight, bias, labels, weights, 5.0)
    masked_lm_loss_backward(1.0, cache)
    assert sum(m * k * n for m, k, n in counting) == 3 * hidden.size * len(weight)


@pytest.mark.parametrize(("share", "chosen"), [(0.5, "other"), (0.99, "numpy"), (1.5, "numpy")])
def test_the_fastest_is_chosen_unless_the_difference_is_small(nothing_installed, monkeypatch, share, chosen):
    monkeypatch.setitem(products.LIBRARIES, "other", lambda: None)
    monkeypatch.setattr(products, "_best_times", lambda shape, names: {"numpy": 1.0, "other": share})
    assert fastest_library([(64, 64), (64, 256)]) == chosen


def test_the_products_of_all_matrices_count(nothing_installed, monkeypatch):
    monkeypatch.setitem(products.LIBRARIES, "other", lambda: None)
    for one, another in itertools.permutations([(1, 1), (2, 2)]):
        times = {one: {"numpy": 1.0, "other": 9.0}, another: {"numpy": 2.0, "other": 1.0}}
        monkeypatch.setattr(products, "_best_times", lambda shape, names, times=times: times[shape])
        assert fastest_library([one, another]) == "numpy"


def test_the_best_round_counts(monkeypatch):
    clock = iter(np.cumsum([0, 5, 0, 1] + [0, 9] * (products.ROUNDS - 2)).tolist())
    monkeypatch.setattr(products, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    monkeypatch.setitem(products.LIBRARIES, "spy", lambda: lambda a, b, out: None)
    assert products._best_times((8, 8), ["spy"]) == {"spy": 1}


def test_all_three_products_are_timed(nothing_installed, counting):
    fastest_library([(24, 16)])
    rows = products.ROWS
    assert set(counting) == {(rows, 16, 24), (rows, 24, 16), (24, rows, 16)}
    assert len(counting) == 3 * products.ROUNDS


@pytest.mark.parametrize(("library", "name"), [(onednn, "onednn"), (mkl, "mkl")])
def test_numpy_multiplies_what_a_library_does_not_take(nothing_installed, monkeypatch, library, name):
    monkeypatch.setattr(library, "single_precision", lambda: lambda a, b, out: False)
    use_products(name)
    a, b, out = draw(3, 4), draw(4, 5), np.zeros((3, 5), np.float32)
    multiply(a, b, out)
    assert np.array_equal(out, a @ b)


def test_mkl_has_no_threads_and_counts_in_32_bits(nothing_installed, monkeypatch):
    asked = []
    library = SimpleNamespace(
        MKL_Set_Interface_Layer=lambda layer: asked.append(("interface", layer)),
        MKL_Set_Threading_Layer=lambda layer: asked.append(("threading", layer)),
    )
    monkeypatch.setattr(mkl, "open_library", lambda *_: library)
    assert mkl.load() is library
    assert asked == [("interface", 0), ("threading", 1)]  # MKL_INTERFACE_LP64, MKL_THREADING_SEQUENTIAL


def test_onednn_gets_its_threads_back_after_a_product(monkeypatch):
    threads_set = []
    library = SimpleNamespace(omp_get_max_threads=lambda: 7, omp_set_num_threads=threads_set.append)
    monkeypatch.setattr(onednn, "_for_short_calls", lambda: library)
    with onednn._OneThread():
        assert threads_set == [1]
    assert threads_set == [1, 7]


def layout_cases() -> dict[str, tuple[np.ndarray, tuple[bytes, int] | None]]:
    base = draw(6, 8)
    return {
        "rows": (base, (b"N", 8)),
        "transposed": (base.T, (b"T", 8)),
        "some columns": (base[:, 2:5], (b"N", 8)),
        "some rows, transposed": (base[1:3].T, (b"T", 8)),
        "every other column": (base[:, ::2], None),
        "backwards": (base[::-1], None),
        "repeated": (np.broadcast_to(base[0], (6, 8)), None),
        "a field of records": (np.zeros((6, 8), [("flag", "u1"), ("x", "f4")])["x"], None),
        "float64": (base.astype("float64"), None),
        "empty": (base[:0], None),
        "three axes": (base.reshape(2, 3, 8), None),
    }


@pytest.mark.parametrize("name", layout_cases())
def test_layouts(name):
    array, layout = layout_cases()[name]
    assert blas.layout(*blas.kind(array)) == layout


def test_a_result_must_lie_row_by_row():
    told = []
    product = blas.by_sgemm(lambda *arguments: told.append(arguments))
    a, b, out = draw(3, 4), draw(4, 5), np.empty((3, 5), np.float32)
    pointers = [x.ctypes.data for x in (a, b, out)]
    assert product(a, b, out)
    assert told == [(b"N", b"N", 3, 5, 4, 1.0, pointers[0], 4, pointers[1], 5, 0.0, pointers[2], 5)]
    turned = draw(4, 3).T
    assert product(turned, b, out) and told[1][:2] == (b"T", b"N") and told[1][7] == 3
    assert not product(a, b, np.empty((5, 3), np.float32).T)
    assert not product(a[:, ::2], b, out)
    assert len(told) == 2


# -- bfloat16 ------------------------------------------------------------------------------------------


def test_a_processor_without_bfloat16_is_refused(monkeypatch):
    products._bfloat16.cache_clear()
    monkeypatch.setattr(products, "_processor_features", lambda: {"avx2", "avx512f"})
    with pytest.raises(UserError, match=r"this processor has no bfloat16 products .*; use float32"):
        use_products("bfloat16")
    assert products_library() == "numpy" and not is_available("bfloat16")


def test_bfloat16_without_onednn_is_refused(nothing_installed, monkeypatch):
    monkeypatch.setattr(products, "_processor_features", lambda: {"avx512_bf16"})
    with pytest.raises(UserError, match="oneDNN is not installed"):
        use_products("bfloat16")


def test_every_library_is_timed_on_one_thread_as_the_kernels_use_it(monkeypatch):
    seen = []

    def spy(a, b, out):
        seen.append({library.get_num_threads() for library in threads._blas_libraries()})

    monkeypatch.setitem(products.LIBRARIES, "spy", lambda: spy)
    products._best_times((8, 8), ["spy"])
    assert seen == [{1}] * 3 * products.ROUNDS


def test_it_is_never_the_fastest_library(monkeypatch):
    """It computes something else."""
    monkeypatch.setattr(products, "is_available", lambda name: name not in ("onednn", "mkl"))
    monkeypatch.setattr(products, "_best_times", lambda *_: pytest.fail("there is nothing to choose"))
    assert fastest_library([(8, 8)]) == "numpy"


@pytest.fixture
def rounding(monkeypatch) -> list[tuple[np.dtype, np.dtype]]:
    """bfloat16 in use, but what NumPy makes of it, on any processor; with a list of the factors' dtypes."""
    seen = []

    def refuse(a, b, out):
        seen.append((a.dtype, b.dtype))
        return False

    products._bfloat16.cache_clear()
    monkeypatch.setattr(products, "_processor_features", lambda: {"amx_bf16"})
    monkeypatch.setattr(onednn, "bfloat16", lambda: refuse)
    use_products("bfloat16")
    yield seen
    use_products("numpy")
    products._bfloat16.cache_clear()


def rounded(x: np.ndarray) -> np.ndarray:
    return x.astype("bfloat16").astype(np.float32)


def test_factors_are_rounded_and_sums_are_not(rounding):
    a, b, out = draw(3, 400), draw(400, 5), np.empty((3, 5), np.float32)
    multiply(a, b, out)
    exact = rounded(a).astype("float64") @ rounded(b).astype("float64")
    assert np.linalg.norm(out - exact) <= 1e-6 * np.linalg.norm(exact)
    assert np.linalg.norm(out - a @ b) >= 1e-4 * np.linalg.norm(exact)  # which it would not be without
    assert rounding == [(np.dtype("bfloat16"),) * 2]


def test_the_kernels_multiply_rounded_factors(rounding):
    x, weight, bias, dout = draw(6, 4), draw(10, 4), draw(10), draw(6, 10)
    y, cache = linear(x, weight, bias)
    dx, dweight, dbias = linear_backward(dout, cache)
    expected = (
        rounded(x) @ rounded(weight).T + bias,
        rounded(dout) @ rounded(weight),
        rounded(dout).T @ rounded(x),
        dout.sum(0),  # no product
    )
    for ours, theirs in zip((y, dx, dweight, dbias), expected, strict=True):
        assert ours.dtype == np.float32
        assert np.linalg.norm(ours - theirs) <= 1e-6 * np.linalg.norm(theirs)


def test_a_library_of_the_system_is_remembered_by_its_path(monkeypatch):
    """The system finds a library by a name without a folder."""
    paths = [pool["filepath"] for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas"]
    monkeypatch.setattr(blas.ctypes.util, "find_library", lambda _: Path(paths[0]).name)
    monkeypatch.setattr(blas, "opened", set())
    blas.open_library("BLAS", "no-such-package", "", "blas", ())
    assert blas.opened == {paths[0]}
