"""Running a program on several ranks, with the MPI that is installed beside Python."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MPIEXEC = Path(sys.executable).parent / "mpiexec"


def command(ranks: int, *arguments: str) -> list[str]:
    """The command line that runs Python with these arguments on so many ranks."""
    pytest.importorskip("mpi4py", reason="mpi4py is not installed")
    if not MPIEXEC.exists():
        pytest.skip("there is no mpiexec beside Python")
    return [str(MPIEXEC), "-n", str(ranks), sys.executable, *arguments]


def environment() -> dict[str, str]:
    """For such a program: our packages and the tests' helpers, and one thread."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    return os.environ | {"PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}


def mpirun(ranks: int, *arguments: str, code: int = 0) -> tuple[str, str]:
    """What a program prints on stdout and stderr; it has to end with this exit code, within two minutes."""
    done = subprocess.run(
        command(ranks, *arguments), env=environment(), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout, done.stderr
