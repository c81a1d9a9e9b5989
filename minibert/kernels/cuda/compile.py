"""Compile every kernel for every dtype and architecture, on any machine, with or without a GPU:

    python -m minibert.kernels.cuda.compile

prints a line for each with its registers, spilled bytes and shared memory, and exits with 1 if one does not
compile. The compiler is nvcc, or else the NVRTC that CuPy finds; without either there is nothing to do.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
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


def find_compiler() -> tuple[str, Compiler] | None:
    """The compiler's name and version, and a function that compiles one source; None if there is none."""
    if nvcc := shutil.which("nvcc"):
        version = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True).stdout
        return f"nvcc {_find(r'V([0-9.]+)', version)}", _compile_by_nvcc
    try:
        from cupy.cuda import nvrtc

        return "NVRTC {}.{}".format(*nvrtc.getVersion()), _compile_by_nvrtc
    except Exception:  # no CuPy, or CuPy without NVRTC: ImportError, RuntimeError, or pathfinder's own
        return None


def _compile_by_nvcc(source: str, dtype: str, architecture: str) -> tuple[bool, str]:
    with tempfile.TemporaryDirectory() as folder:
        flags = ["-cubin", f"-arch={architecture}", "-Xptxas=-v", *options(dtype)]
        command = ["nvcc", *flags, str(FOLDER / f"{source}.cu"), "-o", str(Path(folder) / "cubin")]
        done = subprocess.run(command, capture_output=True, text=True)
    return done.returncode == 0, done.stdout + done.stderr


def _compile_by_nvrtc(source: str, dtype: str, architecture: str) -> tuple[bool, str]:
    from cupy.cuda import nvrtc

    program = nvrtc.createProgram(read_source(source), f"{source}.cu", [], [])
    try:
        nvrtc.compileProgram(program, [f"-arch={architecture}", "--ptxas-options=-v", *options(dtype)])
        return True, nvrtc.getProgramLog(program)
    except nvrtc.NVRTCError:
        return False, nvrtc.getProgramLog(program)
    finally:
        nvrtc.destroyProgram(program)


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
    """Compile everything, print the table, and return the exit code."""
    found = find_compiler()
    if found is None:
        print("CUDA kernels: not compiled, because there is neither nvcc nor CuPy with NVRTC here")
        return 0
    name, compiler = found
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
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
