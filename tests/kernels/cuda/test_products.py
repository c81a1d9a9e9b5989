"""Matrix products: which pointers, flags, steps and sizes cuBLAS is given for every layout."""

import ctypes

import numpy as np
import pytest
from kernels.cuda.emulator import HostBlas

from minibert import precision
from minibert.kernels.cuda import products


@pytest.fixture
def blas(monkeypatch):
    blas = HostBlas()
    monkeypatch.setattr(products, "find_cublas", lambda: blas)
    return blas


def stored(rng, shape, transposed, padding, dtype="float32"):
    """A matrix of that shape whose columns or rows lie without gaps, inside of a larger array."""
    rows, columns = shape[::-1] if transposed else shape
    x = rng.standard_normal((rows + 1, columns + padding)).astype(dtype)[1:, padding:]
    return x.T if transposed else x


@pytest.mark.parametrize("sizes", [(5, 7, 3), (1, 7, 3), (5, 1, 3), (5, 7, 1), (1, 1, 1), (1, 1, 9)])
@pytest.mark.parametrize("padding", [0, 2])
@pytest.mark.parametrize("transposed", [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_matrices_in_every_layout(blas, sizes, padding, transposed):
    rng = np.random.default_rng(0)
    rows, inner, columns = sizes
    a = stored(rng, (rows, inner), transposed[0], padding)
    b = stored(rng, (inner, columns), transposed[1], padding)
    out = stored(rng, (rows, columns), 0, padding)
    around = out.base.copy()
    assert products.multiply(a, b, out, scale=0.5) is out
    assert np.allclose(out, 0.5 * (a @ b), rtol=1e-5, atol=1e-6)
    around[1:, padding:] = out
    assert np.array_equal(out.base, around), "something beside the result was written"
    assert blas.calls == 1


def test_what_was_there_can_be_kept(blas):
    rng = np.random.default_rng(0)
    a, b, out = (rng.standard_normal((2, 3, 4, 4)).astype("float32") for _ in range(3))
    expected = 2.0 * (a @ b) - 0.5 * out
    assert products.multiply(a, b, out, scale=2.0, keep=-0.5) is out
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(("batch", "heads"), [(2, 5), (5, 2), (1, 3), (3, 1)])
def test_heads_are_read_and_written_where_they_lie(blas, batch, heads, dtype):
    rng = np.random.default_rng(0)
    length, size = 6, 4
    qkv = rng.standard_normal((batch, length, 3, heads, size)).astype(dtype)
    q, k = qkv[:, :, 0].swapaxes(1, 2), qkv[:, :, 1].swapaxes(1, 2)
    scores = np.empty((batch, heads, length, length), dtype)
    products.multiply(q, k.swapaxes(2, 3), scores)
    expected = np.einsum("bihd,bjhd->bhij", qkv[:, :, 0].astype("float32"), qkv[:, :, 1].astype("float32"))
    bound = {"float32": 1e-5, "float16": 1e-2}[dtype]
    assert np.abs(scores - expected).max() < bound
    assert blas.calls == min(batch, heads)

    y = np.empty((batch, length, heads, size), dtype)
    products.multiply(scores, k, y.swapaxes(1, 2))
    expected = np.einsum("bhij,bjhd->bihd", scores.astype("float32"), qkv[:, :, 1].astype("float32"))
    assert np.abs(y - expected).max() < 5 * bound


def test_products_of_16_bits_can_be_float32(blas):
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, 4, 4)).astype("float16")
    out = products.multiply(a, b, np.empty((4, 4), "float32"))
    assert np.array_equal(out, a.astype("float32") @ b.astype("float32"))


def test_a_matrix_with_gaps_in_both_directions_is_refused(blas):
    x = np.zeros((8, 8), "float32")
    with pytest.raises(ValueError, match="without gaps"):
        products.multiply(x[::2, ::2], x[:4, :4], np.zeros((4, 4), "float32"))


def test_tf32_is_for_float32_only(blas, monkeypatch):
    asked = []
    monkeypatch.setattr(blas, "gemm", lambda *arguments: asked.append(arguments[-1]))
    monkeypatch.setattr(precision, "_tf32", False)
    for dtype in ("float32", "float16"):
        for on in (False, True):
            precision.allow_tf32(on)
            products.multiply(*np.zeros((3, 2, 2), dtype))
    assert asked == [products.COMPUTE_FLOAT32, products.COMPUTE_TF32, *[products.COMPUTE_FLOAT32] * 2]


def test_without_cublas_the_library_multiplies(monkeypatch):
    monkeypatch.setattr(products, "find_cublas", lambda: None)
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, 3, 2, 4, 4)).astype("float16")
    out = products.multiply(a, b, np.empty((3, 2, 4, 4), "float16"), scale=0.5)
    assert np.allclose(out, 0.5 * (a.astype("float32") @ b.astype("float32")), rtol=1e-3, atol=1e-3)


class FakeLibrary:
    """Records what ``Cublas`` passes to libcublas, converted by ctypes as a real call would convert it."""

    def __init__(self, status=0):
        self.calls = []
        for name in (
            "cublasCreate_v2 cublasSetStream_v2 cublasSetWorkspace_v2 "
            "cublasGemmEx cublasGemmStridedBatchedEx".split()
        ):
            setattr(self, name, FakeFunction(name, self.calls, status))


# Where alpha and beta are among the arguments: only their addresses are passed.
FACTORS = {"cublasGemmEx": (6, 13), "cublasGemmStridedBatchedEx": (6, 15)}


class FakeFunction:
    def __init__(self, name, calls, status):
        self.name, self.calls, self.status = name, calls, status

    def __call__(self, *arguments):
        prototype = ctypes.CFUNCTYPE(ctypes.c_int, *self.argtypes)
        return prototype(self._record)(*arguments)

    def _record(self, *arguments):
        arguments = list(arguments)
        for i in FACTORS.get(self.name, ()):
            arguments[i] = ctypes.c_float.from_address(arguments[i]).value
        self.calls.append((self.name, arguments))
        return self.status


@pytest.mark.parametrize("batch", [1, 3])
def test_cublas_gets_its_arguments_in_order(monkeypatch, batch):
    library = FakeLibrary()
    blas = products.Cublas(library)
    monkeypatch.setattr(blas, "_current_handle", lambda: ctypes.c_void_p(77))
    a, b, c = (1000, 2, 5, 50), (2000, 2, 6, 60), (3000, 0, 7, 70)
    blas.gemm((1, 0, 11, 12, 13), 0.5, a, b, 0.25, c, batch, products.COMPUTE_FLOAT32)
    alpha, beta, start, end = 0.5, 0.25, (77, 1, 0, 11, 12, 13), (68, -1)
    if batch == 1:
        expected = "cublasGemmEx", [*start, alpha, *a[:3], *b[:3], beta, *c[:3], *end]
    else:
        expected = "cublasGemmStridedBatchedEx", [*start, alpha, *a, *b, beta, *c, batch, *end]
    assert library.calls == [expected]


def test_an_error_of_cublas_is_not_overlooked(monkeypatch):
    blas = products.Cublas(FakeLibrary(status=13))
    monkeypatch.setattr(blas, "_current_handle", lambda: ctypes.c_void_p(77))
    with pytest.raises(RuntimeError, match="status 13"):
        a, b, c = [(8, 0, 1, 0)] * 3
        blas.gemm((0, 0, 1, 1, 1), 1.0, a, b, 0.0, c, 1, products.COMPUTE_FLOAT32)


def test_one_warning_where_cublas_is_not_found(monkeypatch):
    def refuse(path):
        raise OSError("no such library")

    monkeypatch.setattr(ctypes, "CDLL", refuse)
    products.find_cublas.cache_clear()
    try:
        with pytest.warns(UserWarning, match="CuPy multiplies instead"):
            assert products.find_cublas() is None
        assert products.find_cublas() is None
    finally:
        products.find_cublas.cache_clear()
