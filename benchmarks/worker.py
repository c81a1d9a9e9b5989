"""A process with one contender in it, which does what its standard input says, line by line.

A line in is a request, a line out the reply to it, both JSON:

    {"build": "ours:training_step", "arguments": {…}}   import the module, then make the contender
    {"call": "loss", "arguments": {…}}                  call one of its functions; the reply: its value
    {"time": "step", "seconds": 1.0, "round": 3}        call it again and again; the reply: seconds a call
    {"memory": "report"}                                the reply: see `Memory`

A contender is a function in ``benchmarks/contenders`` that returns its functions by name. One that is
timed is given the number of the round. An error is a reply too: {"error": its last line}.
"""

import importlib
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

Contender = dict[str, Callable[..., Any]]


class Memory:
    """The resident memory of this process in bytes: the code of all libraries as well as all data.

    imported   when the imports were done, before the contender was made
    peak       the most at any time, compiling and loading included
    working    the most since ``start_working``; off Linux, which alone can forget a peak, the same as peak
    """

    def __init__(self) -> None:
        self.imported = resident()["VmRSS"]
        self.peak_before = 0

    def start_working(self) -> None:
        self.peak_before = max(self.peak_before, resident()["VmHWM"])
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")

    def report(self) -> dict[str, int]:
        working = resident()["VmHWM"]
        return {"imported": self.imported, "peak": max(working, self.peak_before), "working": working}


def resident() -> dict[str, int]:
    """The resident memory of this process in bytes: now (VmRSS) and at most so far (VmHWM)."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        return {"VmRSS": peak, "VmHWM": peak}
    fields = (line.split() for line in lines)
    return {f[0].rstrip(":"): int(f[1]) * 1024 for f in fields if f[0] in ("VmRSS:", "VmHWM:")}


def time_calls(function: Callable[[int], Any], seconds: float, number: int) -> float:
    """Call ``function(number)`` until so many seconds are over, at least once; the mean seconds of a call."""
    calls, start = 0, time.perf_counter()
    while True:
        function(number)
        calls += 1
        elapsed = time.perf_counter() - start
        if elapsed >= seconds:
            return elapsed / calls


class Server:
    """What a worker remembers between two requests."""

    def __init__(self) -> None:
        self.contender: Contender = {}
        self.memory: Memory

    def reply(self, request: dict[str, Any]) -> Any:
        """Do what is asked for."""
        match request:
            case {"build": name, "arguments": arguments}:
                module, function = name.split(":")
                build = getattr(importlib.import_module(f"benchmarks.contenders.{module}"), function)
                self.memory = Memory()
                self.contender = build(**arguments)
            case {"call": name, "arguments": arguments}:
                return self.contender[name](**arguments)
            case {"time": name, "seconds": seconds, "round": number}:
                return time_calls(self.contender[name], seconds, number)
            case {"memory": action}:
                return getattr(self.memory, action)()
            case _:
                raise ValueError(f"unknown request {request}")
        return None


def main() -> None:
    """Serve until the standard input ends. Whatever a library prints goes to stderr, out of the way."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    server = Server()
    for line in sys.stdin:
        try:
            reply = {"value": server.reply(json.loads(line))}
        except Exception as error:
            traceback.print_exc()
            reply = {"error": traceback.format_exception_only(error)[-1].strip().splitlines()[0]}
        print(json.dumps(reply), file=replies, flush=True)


if __name__ == "__main__":
    main()
