"""Where the time of a step goes, operation by operation."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

from minibert import ops

REST = "rest"  # what is not inside an operation of the table


def profile(step: Callable[[int], Any], kernels: bool, steps: int) -> dict[str, float]:
    """Seconds a step of every operation, forward and backward together, and the rest; kernels on or off.

    The operations are those of ``ops.TABLE``. What one computes with another counts for the inner one.
    """
    seconds: dict[str, float] = defaultdict(float)
    with nullcontext() if kernels else ops.reference_only(), _timed_operations(seconds):
        step(0)  # not counted: memory is fetched, code compiled
        seconds.clear()
        start = time.perf_counter()
        for number in range(steps):
            step(number)
        total = time.perf_counter() - start
    seconds[REST] = total - sum(seconds.values())
    return {name: value / steps for name, value in seconds.items()}


@contextmanager
def _timed_operations(seconds: dict[str, float]) -> Iterator[None]:
    """Within this block, whatever computes an operation adds the time that it takes to ``seconds``."""
    before = {name: (entry.reference, dict(entry.kernels)) for name, entry in ops.TABLE.items()}
    inner = [0.0]  # seconds spent in operations that were called by the one that is running, and so on
    for name, entry in ops.TABLE.items():
        timed = _timed(name, seconds, inner)
        entry.reference = timed(entry.reference)
        entry.kernels = {key: timed(kernel) for key, kernel in entry.kernels.items()}
    try:
        yield
    finally:
        for name, (reference, kernels) in before.items():
            ops.TABLE[name].reference, ops.TABLE[name].kernels = reference, kernels


def _timed(name: str, seconds: dict[str, float], inner: list[float]) -> Callable[[Any], Any]:
    """What makes of an implementation one that is timed."""

    def clocked(function: Callable | None) -> Callable | None:
        def call(*arguments: Any, **keywords: Any) -> Any:
            inner.append(0.0)
            start = time.perf_counter()
            try:
                return function(*arguments, **keywords)
            finally:
                elapsed = time.perf_counter() - start
                seconds[name] += elapsed - inner.pop()
                inner[-1] += elapsed

        return function and call

    return lambda implementation: replace(
        implementation, forward=clocked(implementation.forward), backward=clocked(implementation.backward)
    )
