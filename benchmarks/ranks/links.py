"""A slow network inside one machine: each rank in a network namespace of its own, all on one bridge.

    rank 0 ── eth0 ══ veth ══ bridge ══ veth ══ eth0 ── rank 1 …

``tc`` limits what each ``eth0`` sends (tbf), and delays it where the kernel has netem. This needs Linux,
root and iproute2.

MPICH's launcher stays outside: it talks to its ranks over pipes that they inherit, so that ``ip netns exec``
may stand before a rank's command. MPICH would still take the ranks for neighbours, which use shared memory,
so its variables tell it that nobody is local and that UCX has to use TCP over ``eth0``.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from minibert.errors import UserError

ONLY_TCP = {"MPIR_CVAR_NOLOCAL": "1", "UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "eth0"}
BRIDGE, PREFIX = "minibert", f"minibert{os.getpid()}-"


def run(*words: object) -> None:
    """Run a command of iproute2. Raises UserError with what it says."""
    try:
        done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    except FileNotFoundError:
        raise UserError(f"{words[0]}: no such command; a slow link needs Linux with iproute2") from None
    if done.returncode:
        raise UserError(
            f"{' '.join(map(str, words))}: {done.stderr.strip()}; a slow link needs root, and a kernel with "
            "this part"
        )


@contextmanager
def slow_links(ranks: int, megabits: float, milliseconds: float = 0.0) -> Iterator[list[list[str]]]:
    """Namespaces whose links carry so many Mbit/s in each direction; what to put before each rank's command.

    ``milliseconds`` is the delay of each packet. Everything is removed at the end.
    """
    names = [f"{PREFIX}{rank}" for rank in range(ranks)]
    try:
        run("ip", "link", "add", BRIDGE, "type", "bridge")
        run("ip", "link", "set", BRIDGE, "up")
        for rank, name in enumerate(names):
            _attach(name, rank, megabits, milliseconds)
        yield [["ip", "netns", "exec", name] for name in names]
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)
        subprocess.run(["ip", "link", "del", BRIDGE], capture_output=True)


def _attach(name: str, rank: int, megabits: float, milliseconds: float) -> None:
    """Make a namespace, and a link from its ``eth0`` to the bridge."""
    outside = f"{BRIDGE}{rank}"
    run("ip", "netns", "add", name)
    run("ip", "link", "add", outside, "type", "veth", "peer", "name", "eth0", "netns", name)
    run("ip", "link", "set", outside, "master", BRIDGE, "up")
    run("ip", "-n", name, "addr", "add", f"10.77.0.{rank + 1}/24", "dev", "eth0")
    for device in ("eth0", "lo"):
        run("ip", "-n", name, "link", "set", device, "up")
    parent: tuple[str, ...] = ("root",)
    if milliseconds:
        run("tc", "-n", name, "qdisc", "add", "dev", "eth0", *parent, "handle", "1:", "netem",
            "delay", f"{milliseconds}ms", "limit", 100_000)  # fmt: skip
        parent = ("parent", "1:")
    run("tc", "-n", name, "qdisc", "add", "dev", "eth0", *parent, "tbf",
        "rate", f"{megabits}mbit", "burst", "256kb", "latency", "500ms")  # fmt: skip


def command(prefixes: list[list[str]], module: str, *arguments: str) -> list[str]:
    """The command line that runs a module on one rank per prefix. Raises UserError without MPI."""
    beside_python = os.path.dirname(sys.executable)
    launcher = shutil.which("mpiexec", path=os.pathsep.join([beside_python, os.environ.get("PATH", "")]))
    if launcher is None:
        raise UserError("mpiexec: no such command; from the checkout run  pip install -e '.[mpi]'")
    words = [launcher]
    for prefix in prefixes:
        words += [":"] * (len(words) > 1)
        words += ["-n", "1", *prefix, sys.executable, "-m", module, *arguments]
    return words
