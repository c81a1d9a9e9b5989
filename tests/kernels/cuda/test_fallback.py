"""A kernel that cannot be used: the reference takes over with one warning, or it is an error."""

import warnings

import numpy as np
import pytest

from minibert import ops
from minibert.errors import UserError
from minibert.kernels import cuda
from minibert.kernels.cuda import launch
from minibert.ops.layer_normalisation import layer_norm, layer_norm_backward


class Broken(launch.Launcher):
    def require(self, sources, dtype):
        raise launch.KernelError("norm.cu does not compile")

    def run(self, *arguments):
        raise launch.KernelError("norm.cu does not compile")


@pytest.fixture
def broken(monkeypatch):
    monkeypatch.setattr(launch, "launcher", Broken())
    monkeypatch.setattr(cuda, "_warned", set())
    yield
    ops.require_kernels(False)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_the_reference_takes_over_with_one_warning(broken, dtype):
    kernel = ops.TABLE["layer_norm"].kernels["cupy", dtype]
    x, dout = np.random.default_rng(0).standard_normal((2, 3, 8)).astype(dtype)
    ones, zeros = np.ones(8, np.float32), np.zeros(8, np.float32)
    with pytest.warns(UserWarning, match="kernel of layer_norm cannot be used.*norm.cu does not compile"):
        y, cache = kernel.forward(x, ones, zeros, 1e-12)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kernel.forward(x, ones, zeros, 1e-12)
    expected, expected_cache = layer_norm(x.astype(np.float32), ones, zeros, 1e-12)
    assert y.dtype == dtype
    assert np.array_equal(y, expected.astype(dtype))
    expected = layer_norm_backward(dout.astype(np.float32), expected_cache)
    for got, right, kind in zip(
        kernel.backward(dout, cache), expected, (dtype, "float32", "float32"), strict=True
    ):
        assert got.dtype == kind
        assert np.array_equal(got, right.astype(kind))


def test_a_function_without_a_backward_falls_back_too(broken):
    grad = np.arange(5, dtype=np.float32)
    with pytest.warns(UserWarning, match="kernel of global_norm"):
        norm = ops.TABLE["global_norm"].kernels["cupy", "float32"].forward(grad)
    assert norm == np.sqrt(np.float32(30))


def test_strict_kernels_are_an_error_in_one_line(broken):
    ops.require_kernels(True)
    with pytest.raises(
        UserError, match=r"global_norm cannot be used: norm.cu does not compile.*--strict"
    ) as info:
        ops.TABLE["global_norm"].kernels["cupy", "float32"].forward(np.zeros(3, np.float32))
    assert "\n" not in str(info.value)


def test_a_case_beyond_the_kernels_goes_to_the_reference(on_host, monkeypatch):
    monkeypatch.setattr(cuda, "_warned", set())
    kernel = ops.TABLE["layer_norm"].kernels["cupy", "float32"]
    x = np.random.default_rng(0).standard_normal((2, 5000)).astype(np.float32)
    weight, bias = np.ones((2, 5000), np.float32)
    with pytest.warns(UserWarning, match="rows of 5000 numbers are too long"):
        y, cache = kernel.forward(x, weight, bias, 1e-12)
    assert np.array_equal(y, layer_norm(x, weight, bias, 1e-12)[0])
    assert kernel.backward(x, cache)[0].shape == x.shape


def test_a_usable_kernel_is_used(on_host, emulator):
    kernel = ops.TABLE["layer_norm"].kernels["cupy", "float32"]
    emulator.launched.clear()
    y, cache = kernel.forward(*np.ones((1, 2, 8), np.float32), *np.ones((2, 8), np.float32), 1e-12)
    kernel.backward(y, cache)
    assert emulator.launched == {"residual_norm", "residual_norm_backward"}


def test_every_operation_has_a_kernel_for_cupy():
    for name, entry in ops.TABLE.items():
        dtypes = {dtype for library, dtype in entry.kernels if library == "cupy"}
        few = {name: {"float32"} for name in ("global_norm", "adamw_update", "orthogonalise")}
        few["dropout_keys"] = {"uint32"}
        few["dropout"] = set()  # alone it stands only before a classifier; elsewhere it is part of a kernel
        few["sums_of_squares"] = set()  # a GPU computes the norm at once
        few["observed_attention"] = set()  # whoever observes wants to see every step
        few["unpadded_attention"] = set()  # padding is left out on CPUs only
        # Of XLNet, and rotary positions: there are none yet.
        few |= {"product": set(), "relative_attention": set(), "rotary_embedding": set()}
        assert dtypes == few.get(name, set(cuda.DTYPES)), name
