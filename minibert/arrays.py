"""Arrays: which library one belongs to, where it lives, and the random bits of dropout.

The mathematics in ``ops`` is written once. It asks ``get_array_module(x)`` for the library that x
belongs to (NumPy or CuPy) and calls that library's functions, so the same lines run on a CPU and on
a GPU. Nothing else in the package needs to know which of the two it is.
"""

import functools
import math
import os
import platform
import re
import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, fields, is_dataclass
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import threadpoolctl

from minibert.errors import UserError

Array = Any  # numpy.ndarray or cupy.ndarray: the two share no base class


def get_array_module(array: Array) -> ModuleType:
    """The library that ``array`` belongs to: ``numpy``, ``cupy``, or whatever the array itself names.

    Raises TypeError for anything that is not an array (a list, a float, None).
    """
    if isinstance(array, np.ndarray | np.generic):
        return np
    if type(array).__module__.split(".")[0] == "cupy":
        import cupy

        return cupy
    if hasattr(array, "__array_namespace__"):
        return array.__array_namespace__()
    raise TypeError(f"expected a NumPy or CuPy array, got {type(array).__name__}")


def erf(x: Array) -> Array:
    """The error function 2/√π ∫₀ˣ exp(−t²) dt, elementwise; it lives beside each library, not in it."""
    xp = get_array_module(x)
    if xp is np:
        from scipy import special
    elif xp.__name__ == "cupy":
        from cupyx.scipy import special
    else:
        special = xp.special
    return special.erf(x)


def to_numpy(array: Array) -> np.ndarray:
    """A NumPy array with the same values, copied from the GPU if they are there."""
    if isinstance(array, np.ndarray | np.generic):
        return np.asarray(array)
    if hasattr(array, "get"):  # CuPy's transfer to the host, which it never does unasked
        return array.get()
    raise TypeError(f"expected a NumPy or CuPy array, got {type(array).__name__}")


def map_arrays(function: Callable[[Array], Any], tree: Any) -> Any:
    """The same tree with ``function(array)`` in the place of every array.

    A tree is an array, None, or a list or a dataclass of trees.
    """
    if isinstance(tree, list):
        return [map_arrays(function, branch) for branch in tree]
    if is_dataclass(tree):
        branches = {f.name: map_arrays(function, getattr(tree, f.name)) for f in fields(tree)}
        return type(tree)(**branches)
    return None if tree is None else function(tree)


def add_rows(table: Array, rows: Array, values: Array) -> None:
    """table[rows] += values, where a row that occurs several times gets the sum; always the same bits.

    table (V, H), rows (N,) integers in [0, V), values (N, H). CuPy's own ``add.at`` adds with atomics, in
    another order every time. So the rows are sorted there, and neighbours of one number are added up in
    steps that double in length; behind the last neighbour of each number then stands the sum of all.
    """
    xp = get_array_module(table)
    if xp is np:
        np.add.at(table, rows, values)
        return
    if not rows.size:
        return
    order = xp.argsort(rows, kind="stable")
    rows, sums = rows[order], values[order]  # (N,), (N, H)
    step = 1
    while step < rows.size:
        same = (rows[step:] == rows[:-step])[:, None]
        sums[step:] += xp.where(same, sums[:-step], 0)
        step *= 2
    numbers = xp.arange(table.shape[0], dtype=rows.dtype)
    last = xp.searchsorted(rows, numbers, side="right") - 1  # (V,): of each number, −1 before the first
    there = (rows[xp.maximum(last, 0)] == numbers)[:, None]
    table += xp.where(there, sums[xp.maximum(last, 0)], 0)


# -- Devices --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Device:
    """A place for arrays: its name ("cpu", "cuda:0") and the library that computes there."""

    name: str
    xp: ModuleType

    def asarray(self, array: Any, dtype: str | None = None) -> Array:
        """``array`` (NumPy, list, or already here) as an array of this device, copied only if needed."""
        xp = self.xp
        if not isinstance(array, xp.ndarray):
            array = np.asarray(array, dtype=dtype)
        return xp.asarray(array, dtype=dtype)


def describe_processor(device: Device) -> str:
    """What computes there: what the GPU calls itself, or the CPU as Linux (elsewhere Python) knows it."""
    if device.name.startswith("cuda:"):
        number = int(device.name.removeprefix("cuda:"))
        return device.xp.cuda.runtime.getDeviceProperties(number)["name"].decode()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    told = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    name = told.get("model name", platform.machine())
    return f"{name} (family {told['cpu family']})" if "cpu family" in told else name


def resolve_device(name: "str | Device") -> Device:
    """The device called ``name``: "cpu", "cuda", "cuda:1", or "auto" (the first GPU, else the CPU).

    Raises UserError if the name is none of these, or if that GPU cannot be used, with the remedy.
    """
    if isinstance(name, Device):
        return name
    if name == "cpu":
        return Device("cpu", np)
    if name == "auto":
        return resolve_device("cuda" if _count_gpus()[0] else "cpu")
    kind, _, index = name.partition(":")
    if kind != "cuda" or not (index.isdecimal() or name == "cuda"):
        raise UserError(f"unknown device {name!r}; expected auto, cpu, cuda or cuda:N")
    count, problem = _count_gpus()
    if problem:
        raise UserError(f"device {name!r} cannot be used: {problem}")
    number = int(index or 0)
    if number >= count:
        raise UserError(f"device {name!r} is not there: this machine has {count} GPU(s), numbered from 0")
    import cupy

    cupy.cuda.Device(number).use()
    try:
        cupy.arange(2) + 1  # compiled for this GPU, and run on it
    except Exception as error:  # the compiler or a library is missing, the GPU too old or too new
        raise UserError(
            f"device {name!r} cannot be used: CuPy finds the GPU but cannot compute on it "
            f"({_in_one_line(error)}); {_INSTALL}"
        ) from error
    return Device(f"cuda:{number}", cupy)


_INSTALL = (
    "from the checkout run  pip install -e '.[cuda12]'  (or  '.[cuda13]'  for a CUDA 13 driver; "
    "nvidia-smi shows which)"
)


def _count_gpus() -> tuple[int, str]:
    """How many GPUs CuPy can use, and if none, why and what to do."""
    wheels = sorted({d.name for d in metadata.distributions() if re.fullmatch(_CUPY_WHEELS, d.name or "")})
    if len(wheels) > 1:
        return 0, (
            f"several CuPy packages are installed and overwrite each other's files; "
            f"run  pip uninstall {' '.join(wheels)}  and then  pip install -e '.[cuda12]'"
        )
    try:
        import cupy
    except ModuleNotFoundError as error:
        if error.name != "cupy":
            return 0, f"CuPy is installed, but what it needs is not ({error}); {_INSTALL}"
        return 0, f"CuPy is not installed; {_INSTALL}"
    except ImportError as error:
        return 0, f"CuPy is installed but does not load ({_in_one_line(error)}); {_INSTALL}"
    runtime = cupy.cuda.runtime
    try:
        count = runtime.getDeviceCount()
    except runtime.CUDARuntimeError as error:
        if error.status == _INSUFFICIENT_DRIVER:
            version = runtime.runtimeGetVersion()
            return 0, (
                "there is no NVIDIA driver, or one too old for CUDA "
                f"{version // 1000}.{version % 1000 // 10}, which this CuPy is made for; nvidia-smi shows "
                "the driver and its CUDA version: install a newer driver or the CuPy for that version, "
                "or use --device cpu"
            )
        return 0, (
            f"CuPy is installed but finds no usable GPU ({error}); check nvidia-smi, or use --device cpu"
        )
    return count, "" if count else "CuPy is installed but this machine has no NVIDIA GPU; use --device cpu"


_INSUFFICIENT_DRIVER = 35  # cudaErrorInsufficientDriver: also where there is no driver at all

_CUPY_WHEELS = r"(amd-)?cupy(-cuda\w+|-rocm[\w-]+)?"  # packages that are all imported as ``cupy``


def _in_one_line(error: Exception) -> str:
    """Of an error's text the last line that says something: CuPy draws frames around its own."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip(" =-")]
    return lines[-1] if lines else type(error).__name__


# -- Precision ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Precision:
    """How many digits a model computes with.

    ``dtype`` is that of parameters, gradients, the optimiser's means, sums and losses; ``operand`` that of
    activations, and of the weights that they are multiplied with.
    """

    name: str
    dtype: str
    operand: str


PRECISIONS = {
    precision.name: precision
    for precision in (
        Precision("float32", "float32", "float32"),
        Precision("tf32", "float32", "float32"),  # products round their factors to 10 bits on the way in
        Precision("bfloat16", "float32", "bfloat16"),  # float32's range, 8 bits of mantissa
        Precision("float16", "float32", "float16"),  # 11 bits of mantissa, largest number 65,504
        Precision("float64", "float64", "float64"),  # for proofs
    )
}

# For proofs by the complex step (see ``gradcheck``): no setting, and float64 for everything that is real.
COMPLEX = Precision("complex128", "complex128", "complex128")

HALF = ("float16", "bfloat16")  # the dtypes of 16 bits, in which nothing is ever added up

# The first generation of GPUs (compute capability) that has it.
_SINCE = {"tf32": 80, "bfloat16": 80}


def choose_precision(dtype: str = "float32", precision: str | None = None) -> Precision:
    """The precision of that name; without one, that of parameters in ``dtype`` and nothing shorter.

    Raises UserError for a name that is not known, and for parameters in float64 with a shorter precision.
    """
    if precision is None:
        if dtype == COMPLEX.dtype:
            return COMPLEX
        if dtype not in ("float32", "float64"):
            hint = f"; did you mean precision={dtype!r}?" if dtype in PRECISIONS else ""
            raise UserError(f"unknown dtype {dtype!r}; expected float32 or float64{hint}")
        precision = dtype
    if precision not in PRECISIONS:
        raise UserError(f"unknown precision {precision!r}; expected one of {', '.join(PRECISIONS)}")
    chosen = PRECISIONS[precision]
    if dtype not in ("float32", chosen.dtype):
        raise UserError(f"precision {precision} has parameters in {chosen.dtype}, not {dtype}; give only one")
    return chosen


def check_precision(precision: Precision, device: Device) -> None:
    """Raises UserError if the device cannot compute so, or if bfloat16's package is not there."""
    if precision.operand == "bfloat16":
        try:
            import ml_dtypes  # noqa: F401  (from now on NumPy and CuPy know the name "bfloat16")
        except ImportError:
            raise UserError(
                "bfloat16 needs the package ml_dtypes; install it with  pip install ml_dtypes"
            ) from None
    generation = _generation(device)
    if generation is not None and generation < _SINCE.get(precision.name, 0):
        raise UserError(
            f"this GPU ({device.name}, compute capability {generation / 10}) has no {precision.name}, which "
            "came with 8.0; use --precision float16 or float32"
        )


def default_precision(device: Device) -> str:
    """What a run computes in unless told otherwise: bfloat16 on a GPU that has it, else float32."""
    return "bfloat16" if (_generation(device) or 0) >= _SINCE["bfloat16"] else "float32"


def _generation(device: Device) -> int | None:
    """The compute capability of a GPU, 90 for 9.0; None for anything else."""
    if not device.name.startswith("cuda"):
        return None
    return int(device.xp.cuda.Device(int(device.name.partition(":")[2])).compute_capability)


_tf32 = False


def allow_tf32(on: bool) -> None:
    """Let products of float32 on a GPU round their factors to 10 bits (TF32), from now on in this process."""
    global _tf32
    _tf32 = on


def tf32_allowed() -> bool:
    """Whether they may."""
    return _tf32


# -- Threads --------------------------------------------------------------------------------------

_threads: int | None = None
_pool: ThreadPoolExecutor | None = None


@functools.cache
def _blas_libraries() -> list[threadpoolctl.LibController]:
    """What NumPy's matrix product may be using, each with a number of threads of its own."""
    return threadpoolctl.ThreadpoolController().select(user_api="blas").lib_controllers


@functools.cache
def _blas_setters() -> list[Callable[[int], object]]:
    """For each of them the function that sets its number of threads.

    OpenBLAS's own where threads are its own too: threadpoolctl's takes thirty times as long, and does
    nothing if another thread has called it before.
    """
    return [_openblas_setter(library) or library.set_num_threads for library in _blas_libraries()]


def _openblas_setter(library: threadpoolctl.LibController) -> Callable[[int], object] | None:
    if getattr(library, "threading_layer", "") != "pthreads":
        return None
    names = (f"{p}openblas_set_num_threads{s}" for p in ("", "scipy_") for s in ("", "64_", "_64"))
    return next((getattr(library.dynlib, name) for name in names if hasattr(library.dynlib, name)), None)


def set_threads(count: int) -> None:
    """Let the CPU compute with ``count`` threads, from now on in this process.

    Raises UserError if that is less than one.
    """
    global _threads, _pool
    if count < 1:
        raise UserError(f"threads must be at least 1, got {count}")
    for set_number in _blas_setters():
        set_number(count)
    _threads, _pool = count, None


def get_threads() -> int:
    """How many threads the CPU computes with: what was set, else as many as BLAS has chosen."""
    global _threads
    if _threads is None:
        _threads = max((library.num_threads for library in _blas_libraries()), default=1)
    return _threads


class _OneBlasThread:
    """Within this block BLAS computes with one thread; after the last of such blocks as before the first."""

    def __init__(self) -> None:
        self._before: list[int] = []
        self._start()

    def _start(self) -> None:
        self._lock = threading.Lock()
        self._blocks = 0

    def __enter__(self) -> None:
        with self._lock:
            self._blocks += 1
            if self._blocks == 1:
                self._before = [library.get_num_threads() for library in _blas_libraries()]
                for set_number, before in zip(_blas_setters(), self._before, strict=True):
                    if before != 1:
                        set_number(1)

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._blocks -= 1
            if self._blocks == 0:
                self._put_back()

    def _put_back(self) -> None:
        for set_number, before in zip(_blas_setters(), self._before, strict=True):
            if before != 1:
                set_number(before)

    def forget(self) -> None:
        """In a process that was forked in the middle of other threads' blocks: they do not exist here."""
        if self._blocks:
            self._put_back()
        self._start()


_one_blas_thread = _OneBlasThread()


def _after_fork() -> None:
    """A forked process has none of its parent's threads: the pool would wait for them forever."""
    global _pool
    _pool = None
    _one_blas_thread.forget()


if hasattr(os, "register_at_fork"):  # not on Windows, where there is no fork
    os.register_at_fork(after_in_child=_after_fork)


def run_all(tasks: Iterable[Callable[[], object]]) -> None:
    """Call every task, shared among as many threads as ``get_threads`` says, this one among them.

    NumPy, its BLAS and compiled loops release the interpreter's lock, so the tasks really run side by
    side. Meanwhile BLAS itself computes with one thread: two tasks with a product each are as fast as two
    products one after the other on two threads, what a task does with its product finds it in the cache,
    and BLAS's own threads, which stay busy waiting for more, would be in the way.
    """
    waiting = deque(tasks)
    helpers = min(get_threads(), len(waiting)) - 1

    def work() -> None:
        while True:
            try:
                task = waiting.popleft()
            except IndexError:
                return
            task()

    with _one_blas_thread:
        if helpers < 1:
            for task in waiting:
                task()
            return
        futures = [_threads_beside_this().submit(work) for _ in range(helpers)]
        try:
            work()
        finally:
            wait(futures)
    for future in futures:
        future.result()


def _threads_beside_this() -> ThreadPoolExecutor:
    global _pool
    if _pool is None:
        _pool = ThreadPoolExecutor(get_threads() - 1, thread_name_prefix="minibert")
    return _pool


def run_blocks(function: Callable[[slice], object], rows: int, block: int) -> None:
    """Call ``function(slice)`` for consecutive blocks of rows with :func:`run_all`.

    Which rows make a block depends on the two numbers only, never on the threads, so the results are
    the same bits whatever their number, as long as no two blocks write to the same place.
    """
    starts = range(0, rows, block)
    run_all(functools.partial(function, slice(start, min(start + block, rows))) for start in starts)


# -- Random bits for dropout ------------------------------------------------------------------------
#
# Dropout has no state. Its bits are a pure function of where they are used, so a layer can be
# recomputed, a gradient checked numerically, and a CPU run compared with a GPU run; nothing is stored.

BITS = 16  # random bits an element: a probability is met to within 2⁻¹⁷

DropoutKey = tuple[int, int]  # two 32-bit words


def dropout_key(seed: int, step: int, micro_batch: int, replica: int, site: int) -> DropoutKey:
    """The key of one dropout in one forward pass: 64 bits mixed from everything that tells it apart.

    ``site`` numbers the places in the model where dropout is applied; the others say which training
    run, step, piece of an accumulated batch, and device.
    """
    return _fold([*_stream_words(seed, step, micro_batch, replica), int(site)])


def dropout_stream(seed: int, step: int, micro_batch: int = 0, replica: int = 0) -> np.ndarray:
    """What all sites of a forward pass have in common, as :func:`dropout_keys` reads it: (5,) uint32."""
    words = _stream_words(seed, step, micro_batch, replica)
    return np.array([word & 0xFFFFFFFF for word in words], dtype=np.uint32)


def dropout_keys(stream: Array, sites: int) -> Array:
    """:func:`dropout_key` of the sites 0, 1, …, made where the stream is: (sites, 2) uint32.

    stream (5,) uint32, from :func:`dropout_stream`.
    """
    xp = get_array_module(stream)
    site = xp.arange(sites, dtype="uint32")
    # an array of one number wraps around like the others; NumPy's single numbers warn
    return xp.stack(list(_fold([*(stream[i : i + 1] for i in range(stream.size)), site])), axis=1)


def _stream_words(seed: int, step: int, micro_batch: int, replica: int) -> list[int]:
    # ints, for a NumPy integer would give the key, and then the bits, another dtype
    return [int(seed), int(seed) >> 32, int(step), int(micro_batch), int(replica)]


def _fold(words: list[Any]) -> tuple[Any, Any]:
    """Mix all words into two, in two ways."""
    first, second = 0x9E3779B9, 0x85EBCA6B
    for word in words:
        first = _mix((first ^ word) & 0xFFFFFFFF)
        second = _mix((second + word) & 0xFFFFFFFF)
    return first, second


def random_bits(xp: ModuleType, key: DropoutKey | Array, shape: tuple[int, ...]) -> Array:
    """Uniform random 16-bit integers (uint16), a pure function of the key and each element's index.

    The key is two numbers, or an array of two on the device.

    Element i takes half of the 32-bit word number i // 2. A word is its number mixed with both halves
    of the key, so that different keys give unrelated sequences and not shifts of the same one.
    """
    count = math.prod(shape)
    words = xp.arange((count + 1) // 2, dtype=xp.uint32)
    words = _mix(_mix(words ^ key[0]) + key[1])
    return words.view(xp.uint16)[:count].reshape(shape)


def _mix(word: Any) -> Any:
    """Scramble 32 bits: a bijection in which every input bit flips each output bit half the time.

    For an int below 2³² or an array of uint32. The constants are those of ``lowbias32`` (Chris
    Wellons, "Prospecting for hash functions", 2018).
    """
    word = word ^ (word >> 16)
    word = (word * 0x7FEB352D) & 0xFFFFFFFF
    word = word ^ (word >> 15)
    word = (word * 0x846CA68B) & 0xFFFFFFFF
    return word ^ (word >> 16)
