"""Which library an array belongs to, devices, threads, and the random bits of dropout."""

import itertools
import os
import re
import subprocess
import sys
import threading
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import scipy.special
import scipy.stats
import threadpoolctl

from minibert.arrays import (
    PRECISIONS,
    Device,
    add_rows,
    check_precision,
    choose_precision,
    default_precision,
    dropout_key,
    dropout_keys,
    dropout_stream,
    erf,
    get_array_module,
    get_threads,
    random_bits,
    resolve_device,
    run_all,
    run_blocks,
    set_threads,
    to_numpy,
)
from minibert.errors import UserError

# -- Libraries --------------------------------------------------------------------------------------


def test_module_of_an_array(xp):
    assert get_array_module(xp.zeros(3)) is xp
    assert get_array_module(xp.zeros(3).sum()) is xp, "also of a 0-d array"
    assert get_array_module(np.float32(1)) is np


@pytest.mark.parametrize("thing", [[1.0], 1.0, 1, None, "x", (1,)])
def test_what_is_no_array(thing):
    name = type(thing).__name__
    with pytest.raises(TypeError, match=f"expected a NumPy or CuPy array, got {name}"):
        get_array_module(thing)
    with pytest.raises(TypeError, match=f"expected a NumPy or CuPy array, got {name}"):
        to_numpy(thing)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
def test_to_the_device_and_back(device, dtype):
    host = np.arange(6).reshape(2, 3).astype(dtype)
    there = device.asarray(host)
    assert isinstance(there, device.xp.ndarray)
    back = to_numpy(there)
    assert type(back) is np.ndarray and back.dtype == dtype
    np.testing.assert_array_equal(back, host)
    assert to_numpy(device.asarray([[1, 2]], dtype=dtype)).dtype == dtype, "from a list"
    assert device.asarray(there, dtype="float32").dtype == "float32", "from an array that is there already"


def test_erf(device):
    x = np.linspace(-6, 6, 101)
    np.testing.assert_allclose(to_numpy(erf(device.asarray(x))), scipy.special.erf(x), rtol=1e-14, atol=0)
    assert erf(device.asarray(x, dtype="float32")).dtype == "float32"


@pytest.mark.parametrize("count", [0, 1, 2, 300])
def test_rows_are_added_up_in_the_same_order_every_time(device, count):
    rng = np.random.default_rng(count)
    table, rows = rng.standard_normal((9, 4)), rng.integers(0, 9, count)
    values = rng.standard_normal((count, 4))
    values[:1] = np.inf  # stays with the row that it is added to
    expected = table.copy()
    np.add.at(expected, rows, values)
    results = []
    for _ in range(2):
        there = device.asarray(table.copy())
        add_rows(there, device.asarray(rows), device.asarray(values))
        results.append(to_numpy(there))
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_allclose(results[0], expected, rtol=1e-12, atol=1e-13)


# -- Devices ----------------------------------------------------------------------------------------


class CudaError(Exception):
    """Stands for cupy.cuda.runtime.CUDARuntimeError."""

    def __init__(self, message, status=100):
        super().__init__(message)
        self.status = status


@pytest.fixture
def pretend(monkeypatch):
    """Pretend that CuPy is installed and finds so many GPUs, or raises an error; None: not installed.

    ``broken`` is the error that computing then ends in.
    """

    def install(gpus, broken=None):
        if gpus is None:
            monkeypatch.setitem(sys.modules, "cupy", None)  # makes "import cupy" an ImportError
            return []
        used = []

        def count():
            if isinstance(gpus, Exception):
                raise gpus
            return gpus

        def arange(stop):
            if broken:
                raise broken
            return np.arange(stop)

        cupy = ModuleType("cupy")
        cupy.arange = arange
        cupy.cuda = SimpleNamespace(
            runtime=SimpleNamespace(
                getDeviceCount=count,
                CUDARuntimeError=CudaError,
                runtimeGetVersion=lambda: 12090,
            ),
            Device=lambda index: SimpleNamespace(use=lambda: used.append(index)),
        )
        monkeypatch.setitem(sys.modules, "cupy", cupy)
        return used

    return install


def refusal(name="cuda"):
    """The one line that says why there is no such device."""
    with pytest.raises(UserError, match=f"device '{name}'") as caught:
        resolve_device(name)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_cpu_is_always_there():
    assert resolve_device("cpu") == Device("cpu", np)
    assert resolve_device(Device("cpu", np)) == Device("cpu", np)


def test_auto_without_a_gpu_is_the_cpu(pretend):
    for gpus in (None, 0, CudaError("no driver")):
        pretend(gpus)
        assert resolve_device("auto").name == "cpu"


def test_gpus_by_number(pretend):
    used = pretend(2)
    assert [resolve_device(name).name for name in ("auto", "cuda", "cuda:1")] == [
        "cuda:0",
        "cuda:0",
        "cuda:1",
    ]
    assert used == [0, 0, 1], "CuPy is told as well"
    assert resolve_device("cuda").xp is sys.modules["cupy"]


@pytest.mark.parametrize("name", ["cuda", "cuda:0"])
def test_cuda_without_cupy_says_what_to_install(pretend, name):
    pretend(None)
    with pytest.raises(UserError, match=name) as caught:
        resolve_device(name)
    assert "pip install -e '.[cuda12]'" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_cuda_without_a_usable_gpu(pretend):
    pretend(CudaError("out of order"))
    assert re.search(r"no usable GPU \(out of order\).*--device cpu", refusal())
    pretend(0)
    assert re.search(r"no NVIDIA GPU.*--device cpu", refusal())


def test_no_driver_or_one_that_is_too_old_for_this_wheel(pretend):
    pretend(CudaError("driver version is insufficient", status=35))
    assert re.search(r"no NVIDIA driver, or one too old for CUDA 12\.9.*or the CuPy for that", refusal())


def test_a_cupy_that_does_not_load(pretend, monkeypatch, tmp_path):
    """CuPy's own message has a frame and many lines; what counts is the last."""
    framed = r"{0}\nFailed to import CuPy.\n{0}\nlibcudart.so.12: no such file\n{0}".format("=" * 60)
    for source, told in (
        (f'raise ImportError("{framed}")', r"not load \(libcudart.so.12: no such file\); .*pip install"),
        ("import a_module_that_is_not_there", r"what it needs is not .*a_module_that_is_not_there"),
    ):
        (tmp_path / "cupy.py").write_text(source)
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "cupy", raising=False)
        assert re.search(told, refusal())


def test_several_cupy_wheels(pretend, monkeypatch):
    pretend(1)
    names = ["numpy", "cupy-cuda12x", "cupy-xarray", "cupy-cuda13x"]
    monkeypatch.setattr(
        "minibert.arrays.metadata.distributions", lambda: [SimpleNamespace(name=name) for name in names]
    )
    assert re.search(r"several CuPy .* pip uninstall cupy-cuda12x cupy-cuda13x ", refusal())
    assert resolve_device("auto").name == "cpu"
    names.remove("cupy-cuda13x")
    assert resolve_device("cuda").name == "cuda:0"


def test_a_gpu_on_which_cupy_cannot_compute(pretend):
    pretend(1, broken=RuntimeError("CuPy failed to load libnvrtc.so.12"))
    assert re.search(r"cannot compute on it \(CuPy failed to load libnvrtc.so.12\); .*pip install", refusal())


def test_a_gpu_that_is_not_there(pretend):
    pretend(2)
    for name in ("cuda:2", "cuda:9"):
        with pytest.raises(UserError, match=rf"'{name}' is not there: this machine has 2 GPU"):
            resolve_device(name)


@pytest.mark.parametrize("name", ["gpu", "cuda:", "cuda:x", "cuda:-1", "cuda1", "CPU", "", "mps", "cpu:0"])
def test_a_device_that_does_not_exist(pretend, name):
    pretend(2)
    with pytest.raises(UserError, match="expected auto, cpu, cuda or cuda:N") as caught:
        resolve_device(name)
    assert repr(name) in str(caught.value)


# -- Precision --------------------------------------------------------------------------------------


def test_complex_parameters_are_for_proofs_and_no_setting():
    chosen = choose_precision("complex128")
    assert (chosen.dtype, chosen.operand) == ("complex128", "complex128")
    assert "complex128" not in PRECISIONS
    with pytest.raises(UserError, match="precision float32 has parameters in float32, not complex128"):
        choose_precision("complex128", "float32")


def test_a_precision_by_its_own_name_or_by_the_dtype_of_the_parameters():
    assert choose_precision() == choose_precision("float32") == PRECISIONS["float32"]
    assert choose_precision("float64") == choose_precision("float64", "float64") == PRECISIONS["float64"]
    assert choose_precision("float32", "float64").dtype == "float64", "the dtype was only the default"
    for name in ("tf32", "bfloat16", "float16"):
        chosen = choose_precision("float32", name)
        assert (chosen.name, chosen.dtype) == (name, "float32")
        assert chosen.operand == ("float32" if name == "tf32" else name)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("int32",), "unknown dtype 'int32'; expected float32 or float64$"),
        (("bfloat16",), "unknown dtype 'bfloat16'.*did you mean precision='bfloat16'?"),
        (("float32", "half"), "unknown precision 'half'; expected one of float32, tf32, bfloat16"),
        (("float64", "bfloat16"), "bfloat16 has parameters in float32, not float64"),
    ],
)
def test_a_precision_that_does_not_exist(arguments, message):
    with pytest.raises(UserError, match=message):
        choose_precision(*arguments)


def gpu(capability):
    """A device that says that it is a GPU of this compute capability."""
    cuda = SimpleNamespace(Device=lambda number: SimpleNamespace(compute_capability=capability))
    return Device("cuda:0", SimpleNamespace(cuda=cuda))


def test_what_a_gpu_can_compute_in():
    assert [default_precision(gpu(of)) for of in ("75", "80", "90")] == ["float32", "bfloat16", "bfloat16"]
    assert default_precision(Device("cpu", np)) == "float32"
    for precision in PRECISIONS.values():
        check_precision(precision, gpu("90"))
        check_precision(precision, Device("cpu", np))
    check_precision(PRECISIONS["float16"], gpu("75"))
    for name in ("bfloat16", "tf32"):
        with pytest.raises(UserError, match=rf"cuda:0, compute capability 7.5\) has no {name}.*float16"):
            check_precision(PRECISIONS[name], gpu("75"))


def test_bfloat16_needs_its_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(UserError, match="pip install ml_dtypes"):
        check_precision(PRECISIONS["bfloat16"], Device("cpu", np))
    check_precision(PRECISIONS["float16"], Device("cpu", np))


# -- Threads ----------------------------------------------------------------------------------------


@pytest.fixture
def threads():
    """Set the number of threads; it is put back afterwards."""
    before = get_threads()
    yield set_threads
    set_threads(before)


def test_threads(threads):
    def of_blas():
        return {pool["num_threads"] for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas"}

    for count in (1, 2):
        threads(count)
        assert get_threads() == count
        assert of_blas() == {count}
    with pytest.raises(UserError, match="at least 1, got 0"):
        threads(0)
    assert get_threads() == 2


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize(("rows", "block"), [(0, 4), (1, 4), (4, 4), (5, 4), (103, 10)])
def test_blocks_cover_all_rows_once(threads, count, rows, block):
    threads(count)
    done = []
    run_blocks(done.append, rows, block)
    done.sort(key=lambda piece: piece.start)
    assert [row for piece in done for row in range(piece.start, piece.stop)] == list(range(rows))
    assert all(piece.start % block == 0 and piece.stop - piece.start <= block for piece in done)


def blas_threads():
    pools = threadpoolctl.threadpool_info()
    return {pool["num_threads"] for pool in pools if pool["user_api"] == "blas"}


@pytest.mark.parametrize("tasks", [1, 5])
def test_blas_has_one_thread_inside_and_all_of_them_afterwards(threads, tasks):
    """Also when there is a single task: a resumed run computes its first step like all others."""
    threads(2)
    inside = []
    run_all([lambda: inside.append(blas_threads())] * tasks)
    assert inside == [{1}] * tasks
    assert blas_threads() == {2} and get_threads() == 2
    with pytest.raises(ZeroDivisionError):
        run_all([lambda: 1 / 0])
    assert blas_threads() == {2}, "also after an error"
    with threadpoolctl.threadpool_limits(1, user_api="blas"):
        run_all([lambda: None])
        assert blas_threads() == {1}, "what somebody else has set is put back too"


def test_blas_gets_its_threads_back_after_the_last_of_several_calls(threads):
    """One call inside another, and two threads that call at once: whoever began first may be done first."""
    threads(2)
    inner = []

    def task():
        run_all([lambda: None])
        inner.append(blas_threads())

    run_all([task, task])
    assert inner == [{1}, {1}] and blas_threads() == {2}

    started, leave = threading.Event(), threading.Event()

    def first():
        started.wait(20)

    def second():
        started.set()
        leave.wait(20)

    callers = [threading.Thread(target=run_all, args=([task],)) for task in (first, second)]
    for caller in callers:
        caller.start()
    callers[0].join(20)
    assert blas_threads() == {1}
    leave.set()
    callers[1].join(20)
    assert blas_threads() == {2}


FORK = """
import multiprocessing, threading
import numpy as np
from minibert.arrays import run_all, set_threads, _blas_libraries

def child():
    done = []
    run_all([lambda: done.append(1)] * 4)
    return len(done), [library.num_threads for library in _blas_libraries()]

set_threads(2)
run_all([lambda: None] * 4)  # now there is a pool, of threads that a child does not inherit
fork = multiprocessing.get_context("fork")
with fork.Pool(2) as pool:
    print(pool.apply(child), end=" ")
entered, leave = threading.Event(), threading.Event()
other = threading.Thread(target=run_all, args=([lambda: (entered.set(), leave.wait())],))
other.start()
entered.wait()
with fork.Pool(1) as pool:  # in the middle of another thread's call
    print(pool.apply(child))
leave.set()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_process_has_threads_of_its_own():
    process = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORK], capture_output=True, text=True, timeout=60
    )
    assert process.stdout == "(4, [2]) (4, [2])\n", process.stderr


def test_an_error_in_a_block_is_raised(threads):
    def fail(piece):
        if piece.start == 20:
            raise ZeroDivisionError

    for count in (1, 2):
        threads(count)
        with pytest.raises(ZeroDivisionError):
            run_blocks(fail, 100, 10)


def test_blocks_use_as_many_threads_as_were_set(threads):
    """Also when it were more before. Every block waits for the others, so each thread gets one."""
    for count in (4, 2):
        threads(count)
        barrier, seen = threading.Barrier(count, timeout=20), set()

        def work(piece, barrier=barrier, seen=seen):
            seen.add(threading.get_ident())
            barrier.wait()

        run_blocks(work, 12, 1)
        assert len(seen) == count


# -- Random bits ------------------------------------------------------------------------------------

KEY = dropout_key(seed=1, step=2, micro_batch=3, replica=4, site=5)
KNOWN_KEYS = [(1282570995, 3506913952), (2188024319, 3002790937)]  # of all zeros, and of KEY
KNOWN_BITS = [47699, 33947, 1514, 64496, 43818, 5680, 20059, 17316]  # KEY's first
KNOWN_LAST = [28025, 14851, 56976]  # KEY's numbers 1,000,000 to 1,000,002
PLACE = {"seed": 1, "step": 2, "micro_batch": 3, "replica": 4, "site": 5}


def bits(count, key=KEY):
    return random_bits(np, key, (count,))


def test_known_answers(xp):
    """The very numbers, so that an implementation in any language can be held against this one."""
    assert dropout_key(0, 0, 0, 0, 0) == KNOWN_KEYS[0]
    assert dropout_key(1, 2, 3, 4, 5) == KNOWN_KEYS[1]
    assert to_numpy(random_bits(xp, KEY, (8,))).tolist() == KNOWN_BITS
    assert to_numpy(random_bits(xp, KEY, (1_000_003,)))[-3:].tolist() == KNOWN_LAST


def test_the_definition_in_plain_integers():
    """Word i // 2 is hashed with both halves of the key; element i takes its low or high half."""

    def lowbias32(x):
        x ^= x >> 16
        x = x * 0x7FEB352D % 2**32
        x ^= x >> 15
        x = x * 0x846CA68B % 2**32
        return x ^ x >> 16

    expected = []
    for i in range(1001):
        word = lowbias32((lowbias32((i // 2) ^ KEY[0]) + KEY[1]) % 2**32)
        expected.append(word >> 16 if i % 2 else word & 0xFFFF)
    assert bits(1001).tolist() == expected


def test_bits_do_not_depend_on_library_or_shape(xp):
    flat = bits(105)
    for shape in ((105,), (3, 35), (5, 7, 3), (1, 105, 1)):
        same = random_bits(xp, KEY, shape)
        assert same.shape == shape and same.dtype == "uint16"
        np.testing.assert_array_equal(to_numpy(same).reshape(-1), flat)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 63, 64, 65])
def test_any_number_of_elements(count):
    np.testing.assert_array_equal(bits(count), bits(1000)[:count])
    assert random_bits(np, KEY, ()).shape == ()


def test_pure_and_repeatable():
    first = bits(999).copy()
    bits(5, key=dropout_key(9, 9, 9, 9, 9))
    np.testing.assert_array_equal(bits(999), first)


def test_key_takes_any_integer_type():
    """A step number out of a NumPy array must not turn the bits' arithmetic into another dtype's."""
    key = dropout_key(**{name: np.int64(number) for name, number in PLACE.items()})
    assert key == KEY
    np.testing.assert_array_equal(random_bits(np, key, (10,)), bits(10))


@pytest.mark.parametrize("name", PLACE)
def test_every_part_of_the_place_changes_the_key(name):
    """Both halves change, whichever part does; a seed counts beyond its lowest 32 bits."""
    others = [PLACE[name] + d for d in (1, 2, 3, 100)] + ([2**32 + 1, 2**40] if name == "seed" else [])
    keys = [KEY] + [dropout_key(**(PLACE | {name: other})) for other in others]
    assert len({first for first, _ in keys}) == len({second for _, second in keys}) == len(keys)


def test_no_two_places_of_a_run_share_a_key():
    places = itertools.product(range(2), range(200), range(2), range(2), range(40))
    keys = [dropout_key(*place) for place in places]
    assert len(set(keys)) == len(keys) == 64_000


def test_numbers_are_uniform():
    """χ² of 2²² draws over 256 and over 65,536 equal cells, within six deviations √(2k) of its mean k."""
    draws = bits(2**22)
    for cells in (256, 65536):
        counts = np.bincount(draws // (65536 // cells), minlength=cells)
        chi2 = ((counts - len(draws) / cells) ** 2).sum() / (len(draws) / cells)
        assert abs(chi2 - (cells - 1)) < 6 * np.sqrt(2 * (cells - 1))


def test_every_bit_is_fair_and_alone():
    """Each of the 16 bits is 1 half the time, and each pair of them agrees half the time (6σ of 2²⁰)."""
    unpacked = (bits(2**20)[:, None] >> np.arange(16, dtype=np.uint16)) & 1
    signs = unpacked * 2.0 - 1.0
    bound = 6 / np.sqrt(2**20)
    assert np.abs(signs.mean(axis=0)).max() < bound
    assert np.abs(signs.T @ signs / 2**20 - np.eye(16)).max() < bound


def correlation(a, b):
    return np.corrcoef(a.astype(float), b.astype(float))[0, 1]


def test_elements_are_independent_of_their_neighbours():
    draws, count = bits(2**20), 2**20
    for lag in (1, 2, 3, 16, 64, 128, 768, 1024, 4096):
        assert abs(correlation(draws[lag:], draws[:-lag])) < 6 / np.sqrt(count - lag), lag


@pytest.mark.parametrize("name", PLACE)
def test_places_are_independent(name):
    """Neighbouring seeds, steps, … give sequences that neither agree nor are each other's shifts.

    Two random sequences of n = 2¹⁶ elements agree in one element on average; more than 12 would be a
    chance of 10⁻⁹. The correlation of n pairs has deviation 1/√n.
    """
    here, there = bits(2**16), bits(2**16, key=dropout_key(**(PLACE | {name: PLACE[name] + 1})))
    assert abs(correlation(here, there)) < 6 / 2**8
    for lag in (-1024, -768, -64, -2, -1, 0, 1, 2, 64, 768, 1024):
        assert (here == np.roll(there, lag)).sum() <= 12, lag


def test_reordered_places_are_independent():
    """Swapped numbers (step 2 of replica 3, step 3 of replica 2) are different places."""
    keys = {dropout_key(*order) for order in itertools.permutations((1, 2, 3, 4, 5))}
    assert len(keys) == 120


def test_runs_of_kept_elements_have_the_right_lengths():
    """At p = 0.1 the gaps between dropped elements are geometric (χ² over lengths 1 … 40 at 10⁻⁶)."""
    dropped = np.flatnonzero(bits(2**20) < round(0.1 * 2**16))
    gaps = np.minimum(np.diff(dropped), 41)
    p = round(0.1 * 2**16) / 2**16
    expected = np.array([p * (1 - p) ** (k - 1) for k in range(1, 41)] + [(1 - p) ** 40])
    counts = np.bincount(gaps, minlength=42)[1:]
    assert scipy.stats.chisquare(counts, expected * len(gaps)).pvalue > 1e-6


@pytest.mark.parametrize("seed", [0, 7, 2**40 + 12345, 2**63])
def test_keys_made_on_a_device_are_those_of_the_host(device, seed):
    stream = device.asarray(dropout_stream(seed, 678, 2, 1))
    keys = to_numpy(dropout_keys(stream, 5))
    assert keys.dtype == np.uint32
    assert [tuple(key) for key in keys.tolist()] == [dropout_key(seed, 678, 2, 1, site) for site in range(5)]
    key = dropout_keys(stream, 5)[3]
    bits = to_numpy(random_bits(device.xp, key, (7, 3)))
    np.testing.assert_array_equal(bits, random_bits(np, dropout_key(seed, 678, 2, 1, 3), (7, 3)))
