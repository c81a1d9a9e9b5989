"""Sources, argument types, the shares of blocks; compiling through CuPy, as far as a fake one shows it."""

import re
import sys
import types

import numpy as np
import pytest

from minibert.kernels.cuda import launch


class FakeModule:
    """``cupy.RawModule``: notes what it is made of; its kernels note what they are launched with."""

    made: list["FakeModule"]

    def __init__(self, code, options, backend):
        self.code, self.options, self.backend, self.launched = code, options, backend, []
        FakeModule.made.append(self)

    def compile(self):
        if "-DSTORAGE=bfloat16" in self.options:
            raise RuntimeError(
                "cupy.cu\n  x.cu(7): error: cvt.rn.bf16.f32 requires sm_80\n\n1 error detected"
            )

    def get_function(self, name):
        assert f"void {name}(" in self.code
        return lambda *arguments: self.launched.append((name, *arguments))


@pytest.fixture
def cupy(monkeypatch):
    """A CuPy that has two GPUs and computes nothing."""
    FakeModule.made = []
    runtime = types.SimpleNamespace(device=0, getDevice=lambda: runtime.device)
    fake = types.SimpleNamespace(RawModule=FakeModule, cuda=types.SimpleNamespace(runtime=runtime))
    monkeypatch.setitem(sys.modules, "cupy", fake)
    launch._module.cache_clear()
    launch._kernel.cache_clear()
    yield fake
    launch._module.cache_clear()
    launch._kernel.cache_clear()


@pytest.mark.parametrize("path", sorted(launch.FOLDER.glob("*.cu")), ids=lambda path: path.stem)
def test_a_source_stands_alone_and_has_every_header_once(path):
    text = launch.read_source(path.stem)
    assert "#include" not in text and "#pragma once" not in text
    assert text.count("typedef STORAGE T;") == 1
    assert text.count("__device__ inline float normalise(") == (
        "norm.cuh" in path.read_text(encoding="utf-8")
    )


def test_a_source_is_compiled_once_for_each_dtype_and_gpu(cupy):
    for _ in range(2):
        for dtype in ("float32", "float16"):
            for cupy.cuda.runtime.device in (0, 1):
                launch.launch("global_norm", "sum_of_squares", dtype, (1,), (32,), None, None, 5)
    assert [module.options for module in FakeModule.made] == [
        *[("-std=c++17", "-DSTORAGE=float")] * 2,
        *[("-std=c++17", "-DSTORAGE=float16")] * 2,
    ]
    assert all(len(module.launched) == 2 for module in FakeModule.made)


def test_arguments_become_what_a_kernel_reads(cupy):
    """Whatever number they were given as: an int for a float, as JSON has 1, is no int in the kernel."""
    array, key = np.zeros(3, np.float32), np.zeros(2, np.uint32)
    for number, flag in ((1, True), (np.float64(1.0), np.int64(1))):
        launch.launch(
            *("residual_norm", "residual_norm", "float32", (2, 3), (32, 8)),
            *(array, None, array, array, array, array, array, 7, flag, 5, number, key, 3, number),
        )
    for name, grid, block, arguments in FakeModule.made[0].launched:
        assert (name, grid, block) == ("residual_norm", (2, 3), (32, 8))
        assert arguments[0] is array and arguments[11] is key
        assert (type(arguments[1]), arguments[1]) == (np.uint64, 0), "a null pointer"
        numbers = [arguments[i] for i in (7, 8, 9, 10, 12, 13)]
        assert [type(number) for number in numbers] == [
            *(np.int32, np.int32, np.int32, np.float32, np.int32, np.float32)
        ]
        assert numbers == [7, 1, 5, 1, 3, 1]


@pytest.mark.parametrize(("value", "error"), [(2**31, OverflowError), (0.5, TypeError)])
def test_an_int_is_an_int_of_32_bits(cupy, value, error):
    with pytest.raises(error):
        launch.launch("global_norm", "root_of_sum", "float32", (1,), (32,), None, None, value)


def test_as_many_arguments_as_the_kernel_has_parameters(cupy):
    with pytest.raises(ValueError, match="shorter"):
        launch.launch("global_norm", "root_of_sum", "float32", (1,), (32,), None, None)


def test_a_source_that_does_not_compile_is_tried_once_and_says_why(cupy):
    for _ in range(2):
        with pytest.raises(
            launch.KernelError, match=r"^adamw.cu does not compile for bfloat16 on GPU 0: x.cu.*sm_80$"
        ):
            launch.launcher.require(["adamw"], "bfloat16")
    assert len(FakeModule.made) == 1


@pytest.mark.parametrize("dtype", launch.STORAGE)
def test_a_row_fits_its_threads(dtype):
    longest = launch.MAX_ROW_THREADS * launch.pack(dtype)
    for size in range(1, longest, 37):
        x, y = launch.row_block(size, dtype)
        assert x * launch.pack(dtype) >= size
        assert x % 32 == 0 or (x < 32 and x & (x - 1) == 0)
        assert x * y % 32 == 0 and (x * y <= launch.MAX_THREADS or y == 1)
        (blocks,), per_block = launch.row_grid(1000, (x, y), 64)
        assert per_block % y == 0 and (blocks - 1) * per_block < 1000 <= blocks * per_block
    with pytest.raises(launch.KernelError, match="too long"):
        launch.row_block(longest + 1, dtype)


def test_python_and_the_sources_agree_on_their_constants():
    from minibert.kernels.cuda import scatter

    def constant(source, name):
        return int(re.search(rf"constexpr int {name} = (\d+);", launch.read_source(source))[1])

    assert constant("scatter", "TILE") == scatter.SORT_TILE
    assert constant("scatter", "DIGITS") == scatter.DIGITS
    assert constant("scatter", "CHUNK") == scatter.CHUNK
    assert constant("columns", "MAX_THREADS") == launch.MAX_THREADS
