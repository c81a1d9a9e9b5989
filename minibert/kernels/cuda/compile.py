"""Compile every kernel for every dtype and architecture, on any machine, with or without a GPU:

    python -m minibert.kernels.cuda.compile

prints a line for each with its registers, spilled bytes and shared memory, and exits with 1 if one does not
compile. The compilers are nvcc and NVRTC, each if it is here. NVRTC is what CuPy compiles with at run time,
telling it to flush denormal numbers to zero; ``pip install nvidia-cuda-nvrtc-cu12`` brings it along.
"""

import contextlib
import ctypes
import ctypes.util
import functools
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from minibert.kernels.cuda.launch import FOLDER, STORAGE, options, read_source

ARCHITECTURES = ("sm_80", "sm_90")  # A100; H100 and H200

FLOAT32_ONLY = ("dropout_keys", "global_norm")  # these never see an activation

Compiler = Callable[[str, str, str], tuple[bool, str]]  # source, dtype, architecture → success, messages


@dataclass(frozen=True)
class Kernel:
    """What a compiled kernel needs: registers a thread, bytes spilled a thread, shared bytes a block."""

    name: str
    registers: int
    spilled: int
    shared: int


def find_compilers() -> list[tuple[str, Compiler]]:
    """The compilers that are here: the name and version of each, and a function that compiles one source."""
    found: list[tuple[str, Compiler]] = []
    if nvcc := shutil.which("nvcc"):
        version = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True).stdout
        found.append((f"nvcc {_find(r'V([0-9.]+)', version)}", _compile_by_nvcc))
    if library := _load_nvrtc():
        major, minor = ctypes.c_int(), ctypes.c_int()
        library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
        compile_one = functools.partial(_compile_by_nvrtc, library)
        found.append((f"NVRTC {major.value}.{minor.value}", compile_one))
    return found


def _load_nvrtc() -> ctypes.CDLL | None:
    """NVRTC, out of a package of NVIDIA's or from where the system has it."""
    installed = [
        str(path.locate())
        for distribution in metadata.distributions()
        if (distribution.name or "").startswith("nvidia-cuda-nvrtc")
        for path in distribution.files or []
        if re.fullmatch(r"libnvrtc\.so\.\d+", path.name)
    ]
    for path in [*installed, ctypes.util.find_library("nvrtc")]:
        if path is not None:
            with contextlib.suppress(OSError):
                return ctypes.CDLL(path)
    return None


def _compile_by_nvcc(source: str, dtype: str, architecture: str) -> tuple[bool, str]:
    with tempfile.TemporaryDirectory() as folder:
        flags = ["-cubin", f"-arch={architecture}", "-Xptxas=-v", *options(dtype)]
        command = ["nvcc", *flags, str(FOLDER / f"{source}.cu"), "-o", str(Path(folder) / "cubin")]
        done = subprocess.run(command, capture_output=True, text=True)
    return done.returncode == 0, done.stdout + done.stderr


def _compile_by_nvrtc(library: ctypes.CDLL, source: str, dtype: str, architecture: str) -> tuple[bool, str]:
    program = ctypes.c_void_p()
    code, name = read_source(source).encode(), f"{source}.cu".encode()
    if library.nvrtcCreateProgram(ctypes.byref(program), code, name, 0, None, None):
        return False, "nvrtcCreateProgram failed"
    flags = [f"-arch={architecture}", "-ftz=true", "--ptxas-options=-v", *options(dtype)]
    words = (ctypes.c_char_p * len(flags))(*(flag.encode() for flag in flags))
    status = library.nvrtcCompileProgram(program, len(flags), words)
    size = ctypes.c_size_t()
    library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    library.nvrtcGetProgramLog(program, log)
    library.nvrtcDestroyProgram(ctypes.byref(program))
    return status == 0, log.value.decode()


def read_messages(messages: str) -> list[Kernel]:
    """The kernels that ptxas -v reports on."""
    return [
        Kernel(
            name=_find(r"^ '(\w+)'", report),
            registers=int(_find(r"Used (\d+) registers", report)),
            spilled=int(_find(r"(\d+) bytes spill stores", report)),
            shared=int(_find(r"(\d+) bytes smem", report)),
        )
        for report in messages.split("Compiling entry function")[1:]
    ]


def _find(pattern: str, text: str) -> str:
    """What the pattern's group matches, or "0"."""
    match = re.search(pattern, text)
    return match[1] if match else "0"


def main() -> int:
    """Compile everything with every compiler, print the tables, and return the exit code."""
    compilers = find_compilers()
    if not compilers:
        print("CUDA kernels: not compiled, because there is neither nvcc nor NVRTC here")
        return 0
    failures = sum(_compile_all(name, compiler) for name, compiler in compilers)
    if not any(name.startswith("NVRTC") for name, _ in compilers):
        print("not compiled with NVRTC, which is not here: pip install nvidia-cuda-nvrtc-cu12")
    return 1 if failures else 0


def _compile_all(name: str, compiler: Compiler) -> int:
    """Compile everything with one compiler, print the table, and return how many sources failed."""
    jobs = [
        (path.stem, dtype, architecture)
        for path in sorted(FOLDER.glob("*.cu"))
        for dtype in (STORAGE if path.stem not in FLOAT32_ONLY else ["float32"])
        for architecture in ARCHITECTURES
    ]
    print(
        f"CUDA kernels compiled by {name}: registers a thread, spilled bytes a thread, shared bytes a block"
    )
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(lambda job: compiler(*job), jobs))

    print(f"{'kernel':26} {'dtype':8} {'GPU':6} {'registers':>9} {'spilled':>8} {'shared':>7}")
    failures = 0
    for (source, dtype, architecture), (success, messages) in zip(jobs, results, strict=True):
        kernels = read_messages(messages)
        if not (success and kernels):
            failures += 1
            print(f"{source}.cu does not compile for {dtype}, {architecture}:\n{messages}")
        for kernel in sorted(kernels, key=lambda kernel: kernel.name):
            numbers = f"{kernel.registers:9} {kernel.spilled:8} {kernel.shared:7}"
            print(f"{kernel.name:26} {dtype:8} {architecture:6} {numbers}")
    print(f"{len(jobs)} compilations, {failures} failed")
    return failures


if __name__ == "__main__":
    sys.exit(main())
