"""Measuring fairly: each contender in a process of its own, in turns, compared round by round.

What slows a machine down for a second, slows down whoever computes in that second. So the contenders
take turns of about a second, the others idle meanwhile, and a ratio is always taken between two times
of one round; every second round goes in the opposite order. What is told of the rounds is their median
and, as the spread, their quartiles.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]

# Threads of the last contender spin for up to 0.2 s (OpenMP) before they sleep.
PAUSE = 0.3  # seconds between two turns

THREAD_VARIABLES = ("OMP", "OPENBLAS", "MKL", "NUMBA", "RAYON", "VECLIB")
# Hold everybody to AVX2 on a processor that has more. (ONNX Runtime cannot be held.) The first three are for
# OpenBLAS and our own loops, the next three for PyTorch and its compiler, and oneDNN serves us and PyTorch.
# The compiler would take the code that it made for AVX-512 out of its cache, and compute something else.
AVX2 = {
    "OPENBLAS_CORETYPE": "Haswell",
    "NUMBA_CPU_NAME": "haswell",
    "NUMBA_CPU_FEATURES": "+avx2,+fma,+bmi,+bmi2,+f16c,+sse4.2",
    "ATEN_CPU_CAPABILITY": "avx2",
    "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "DNNL_MAX_CPU_ISA": "AVX2",
}
# Where these are set, a library does not choose the code for this processor by itself.
PINNING_VARIABLES = (*AVX2, "OPENBLAS_L2_SIZE")


def environment_of_worker(threads: int) -> dict[str, str]:
    """Our variables, but with this many threads for every library, and each free to know its processor."""
    free = {name: value for name, value in os.environ.items() if name not in PINNING_VARIABLES}
    limits = {f"{name}_NUM_THREADS": str(threads) for name in THREAD_VARIABLES}
    return free | limits | {"TOKENIZERS_PARALLELISM": "true" if threads > 1 else "false"}


class ContenderError(Exception):
    """A contender could not be made, or failed; one line says why."""


class Worker:
    """A process with the contender ``name``, "module:function" in ``contenders``, made with ``arguments``.

    Raises ContenderError if that fails, and whenever one of its functions does.
    """

    def __init__(
        self,
        name: str,
        arguments: Mapping[str, Any],
        *,
        threads: int,
        environment: Mapping[str, str] | None = None,
    ):
        self.name = name
        self._log = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 (it lives as long as we)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            encoding="utf-8",
            cwd=ROOT,
            env=environment_of_worker(threads) | dict(environment or {}),
        )
        try:
            self._ask(build=name, arguments=arguments)
        except BaseException:
            self.close()
            raise

    def call(self, function: str, **arguments: Any) -> Any:
        """What the contender's function returns."""
        return self._ask(call=function, arguments=arguments)

    def time(self, function: str, seconds: float, number: int) -> float:
        """Mean seconds of a call, of as many as fill ``seconds`` and at least one."""
        return self._ask(time=function, seconds=seconds, round=number)

    def start_working(self) -> None:
        """The peak of memory that counts begins here (see ``worker.Memory``)."""
        self._ask(memory="start_working")

    def memory(self) -> dict[str, int]:
        """Bytes of resident memory (see ``worker.Memory``)."""
        return self._ask(memory="report")

    def _ask(self, **request: Any) -> Any:
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        reply = json.loads(line) if line else {"error": self._last_words()}
        if "error" in reply:
            raise ContenderError(f"{self.name}: {reply['error']}")
        return reply["value"]

    def _last_words(self) -> str:
        """Why the process has died."""
        code = self._process.wait()
        self._log.seek(0)
        lines = self._log.read().strip().splitlines()
        return f"its process ended with code {code}" + (f" ({lines[-1]})" if lines else "")

    def close(self) -> None:
        """End the process."""
        self._process.stdin.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._log.close()

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Race(ExitStack):
    """Contenders that are measured together, by name; all processes end with the ``with`` block.

    All get the variables of ``environment``. A rival that cannot be made (a missing compiler, say) is left
    out: ``missing`` tells why.
    """

    def __init__(self, threads: int, environment: Mapping[str, str] | None = None):
        super().__init__()
        self.threads = threads
        self.environment = dict(environment or {})
        self.workers: dict[str, Worker] = {}
        self.missing: dict[str, str] = {}

    def enter(
        self, name: str, builder: str, environment: Mapping[str, str] | None = None, **arguments: Any
    ) -> None:
        """Start a contender; ``builder`` is "module:function". An error is only raised for our own."""
        try:
            variables = self.environment | dict(environment or {})
            worker = Worker(builder, arguments, threads=self.threads, environment=variables)
        except ContenderError as error:
            self._leave_out(name, builder, error)
        else:
            self.workers[name] = self.enter_context(worker)

    def warm_up(self, function: str, calls: int = 3) -> None:
        """Let everyone call it a few times, uncounted: things are compiled, memory is fetched."""
        self.for_everyone(lambda worker: [worker.time(function, 0.0, -1) for _ in range(calls)])

    def ask(self, function: str, **arguments: Any) -> dict[str, Any]:
        """What everyone's function of that name returns."""
        return self.for_everyone(lambda worker: worker.call(function, **arguments))

    def for_everyone(self, action: Callable[["Worker"], Any]) -> dict[str, Any]:
        """What ``action`` returns for everyone's worker; a rival with which it fails is left out."""
        values = {}
        for name, worker in list(self.workers.items()):
            try:
                values[name] = action(worker)
            except ContenderError as error:
                self._leave_out(name, worker.name, error)
                del self.workers[name]
        return values

    def turns(self, function: str) -> list["Turn"]:
        """A turn for everyone with the function of that name."""
        return [Turn(name, worker, function) for name, worker in self.workers.items()]

    def _leave_out(self, name: str, builder: str, error: ContenderError) -> None:
        if builder.startswith("ours"):
            raise error
        self.missing[name] = str(error)
        print(f"left out: {name}: {error}", file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Turn:
    """What takes a turn in every round: a function of a worker's contender, under the name of its times."""

    name: str
    worker: Worker
    function: str


def take_turns(turns: Sequence[Turn], *, rounds: int, seconds: float) -> dict[str, list[float]]:
    """Seconds a call, of every turn in every round: name → (rounds,)."""
    times: dict[str, list[float]] = {turn.name: [] for turn in turns}
    for number in range(rounds):
        for turn in turns if number % 2 == 0 else reversed(turns):
            time.sleep(PAUSE)
            times[turn.name].append(turn.worker.time(turn.function, seconds, number))
    return times


# -- Statistics -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Spread:
    """The median of several measurements, and the quartiles on both sides of it."""

    low: float
    median: float
    high: float


def spread(values: Sequence[float]) -> Spread:
    """Of at least one value. Quartiles between two values are interpolated."""
    if len(values) == 1:
        return Spread(values[0], values[0], values[0])
    return Spread(*statistics.quantiles(values, n=4, method="inclusive"))


def paired_ratio(numerators: Sequence[float], denominators: Sequence[float]) -> Spread:
    """The spread of the ratios of two series, round by round. They must be of one length."""
    return spread([a / b for a, b in zip(numerators, denominators, strict=True)])


def fastest(times: Mapping[str, Sequence[float]], names: Sequence[str], ours: str) -> str | None:
    """Which of the names has the lowest ratio to ours; None if none of them was measured."""
    measured = [name for name in names if name in times]
    return min(measured, key=lambda name: paired_ratio(times[name], times[ours]).median, default=None)
