"""Devices: where arrays live, and what is wrong when CuPy cannot be used."""

import platform
import re
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from minibert.arrays import Array
from minibert.errors import UserError


@dataclass(frozen=True)
class Device:
    """A place for arrays: its name ("cpu", "cuda:0") and the library that computes there."""

    name: str
    xp: ModuleType

    def asarray(self, array: Any, dtype: str | None = None) -> Array:
        """``array`` (NumPy, list, or already here) as an array on this device, copied only if needed."""
        xp = self.xp
        if not isinstance(array, xp.ndarray):
            array = np.asarray(array, dtype=dtype)
        return xp.asarray(array, dtype=dtype)

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy is looked up by its name: a library cannot be copied."""
        return resolve_device, (self.name,)


def describe_processor(device: Device) -> str:
    """The name of the processor: the GPU's own, or the CPU's as Linux (elsewhere Python) reports it.

    Linux also tells the family, the widest vector instructions, and whether there are some for matrices:
    "AMD EPYC (family 25, AVX2)", "Intel(R) Xeon(R) Processor (family 6, AVX-512, AMX)".
    """
    if device.name.startswith("cuda:"):
        number = int(device.name.removeprefix("cuda:"))
        return device.xp.cuda.runtime.getDeviceProperties(number)["name"].decode()
    told = processor_facts()
    if not told:
        return platform.processor() or platform.machine()
    name = told.get("model name", platform.machine())
    if "cpu family" not in told:
        return name
    # AMD's Zen 3 and Zen 4 have one name and one family, but vectors of 256 and of 512 bits. All of Intel's
    # Xeons are of one family; only the newer ones have AMX.
    flags = told.get("flags", "").split()
    vectors = ", AVX-512" if "avx512f" in flags else ", AVX2" if "avx2" in flags else ""
    matrices = ", AMX" if "amx_tile" in flags else ""
    return f"{name} (family {told['cpu family']}{vectors}{matrices})"


def processor_facts() -> dict[str, str]:
    """What Linux tells about the CPU, by its names ("model name", "flags", …); nothing on other systems."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return {}
    return {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}


def resolve_device(name: "str | Device", local_rank: int = 0) -> Device:
    """The device called ``name``: "cpu", "cuda", "cuda:1", or "auto" (the first GPU, else the CPU).

    Of several processes on one machine, which are numbered by ``local_rank``, the second one gets the second
    GPU for "cuda", and so on.

    Raises UserError if the name is none of these, or if that GPU cannot be used; the message says what to do.
    """
    if isinstance(name, Device):
        return name
    if name == "cpu":
        return Device("cpu", np)
    if name == "auto":
        return resolve_device("cuda" if _count_gpus()[0] else "cpu", local_rank)
    kind, _, index = name.partition(":")
    if kind != "cuda" or not (index.isdecimal() or name == "cuda"):
        raise UserError(f"unknown device {name!r}; expected auto, cpu, cuda or cuda:N")
    count, problem = _count_gpus()
    if problem:
        raise UserError(f"device {name!r} cannot be used: {problem}")
    number = int(index) if index else local_rank % count  # a launcher may show each process only its own GPU
    if number >= count:
        raise UserError(f"device {name!r} does not exist: this machine has {count} GPU(s), numbered from 0")
    import cupy

    cupy.cuda.Device(number).use()
    try:
        cupy.arange(2) + 1  # compiled for this GPU, and run on it
    except Exception as error:  # the compiler or a library is missing, or the GPU is too old or too new
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
    """How many GPUs CuPy can use; if none, also why not and what to do."""
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
            return 0, f"CuPy is installed, but a package that it needs is not ({error}); {_INSTALL}"
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
                "there is no NVIDIA driver, or it is too old for CUDA "
                f"{version // 1000}.{version % 1000 // 10}, which this CuPy is built for; nvidia-smi shows "
                "the driver and its CUDA version: install a newer driver or the CuPy for that version, "
                "or use --device cpu"
            )
        return 0, (
            f"CuPy is installed but finds no usable GPU ({error}); check nvidia-smi, or use --device cpu"
        )
    return count, "" if count else "CuPy is installed but this machine has no NVIDIA GPU; use --device cpu"


_INSUFFICIENT_DRIVER = 35  # cudaErrorInsufficientDriver: also raised where there is no driver at all

_CUPY_WHEELS = r"(amd-)?cupy(-cuda\w+|-rocm[\w-]+)?"  # packages that are all imported as ``cupy``


def _in_one_line(error: Exception) -> str:
    """The last line of an error's text that says something; CuPy draws frames around its messages."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip(" =-")]
    return lines[-1] if lines else type(error).__name__
