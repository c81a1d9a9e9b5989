"""A slow network inside one machine: each rank in a network namespace of its own.

    rank 0 ── eth0 ══ veth ══ bridge ══ veth ══ eth0 ── rank 1 …      without a delay
    rank 0 ── eth0 ══ TUN ══ a thread of ours ══ TUN ══ eth0 ── …     with one

``tc`` limits what each ``eth0`` sends (tbf). Not every kernel can delay packets (netem), so a thread does it:
it reads each packet from the sender's TUN device, and writes it to the receiver's when its time has come.
This needs Linux, root and iproute2.

MPICH's launcher stays outside: it talks to its ranks over pipes that they inherit, so that ``ip netns exec``
may stand before a rank's command. MPICH would still take the ranks for neighbours, which use shared memory,
so its variables tell it that nobody is local and that UCX has to use TCP over ``eth0``.
"""

import fcntl
import os
import select
import shutil
import struct
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from minibert.errors import UserError

ONLY_TCP = {"MPIR_CVAR_NOLOCAL": "1", "UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "eth0"}
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000  # of linux/if_tun.h
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

    ``milliseconds`` is the delay of each packet, one way. Everything is removed at the end.
    """
    names = [f"{PREFIX}{rank}" for rank in range(ranks)]
    try:
        for name in names:
            run("ip", "netns", "add", name)
        with _delaying(names, milliseconds / 1000) if milliseconds else _bridge(names):
            for rank, name in enumerate(names):
                run("ip", "-n", name, "addr", "add", f"10.77.0.{rank + 1}/24", "dev", "eth0")
                for device in ("eth0", "lo"):
                    run("ip", "-n", name, "link", "set", device, "up")
                run("tc", "-n", name, "qdisc", "add", "dev", "eth0", "root", "tbf",
                    "rate", f"{megabits}mbit", "burst", "256kb", "latency", "500ms")  # fmt: skip
            yield [["ip", "netns", "exec", name] for name in names]
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


@contextmanager
def _bridge(names: list[str]) -> Iterator[None]:
    """The ``eth0`` of each namespace, all on one bridge."""
    try:
        run("ip", "link", "add", BRIDGE, "type", "bridge")
        run("ip", "link", "set", BRIDGE, "up")
        for rank, name in enumerate(names):
            outside = f"{BRIDGE}{rank}"
            run("ip", "link", "add", outside, "type", "veth", "peer", "name", "eth0", "netns", name)
            run("ip", "link", "set", outside, "master", BRIDGE, "up")
        yield
    finally:  # a namespace takes its devices with it, but only some time later
        for device in (*(f"{BRIDGE}{rank}" for rank in range(len(names))), BRIDGE):
            subprocess.run(["ip", "link", "del", device], capture_output=True)


@contextmanager
def _delaying(names: list[str], seconds: float) -> Iterator[None]:
    """The ``eth0`` of each namespace, with a thread between them that keeps each packet for so long."""
    devices, end = [_tun(name, rank) for rank, name in enumerate(names)], threading.Event()
    thread = threading.Thread(target=_forward, args=(devices, seconds, end))
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()
        for device in devices:
            os.close(device)


def _tun(name: str, rank: int) -> int:
    """The descriptor of a TUN device, which is ``eth0`` in a namespace. Its packets are large, and so few."""
    outside = f"{BRIDGE}{rank}"
    device = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH", outside.encode(), IFF_TUN | IFF_NO_PI))
    run("ip", "link", "set", outside, "netns", name, "name", "eth0", "mtu", 9000)
    return device


def _forward(devices: list[int], seconds: float, end: threading.Event) -> None:
    """Pass on the packets of rank r, which has the address 10.77.0.(r + 1)."""
    waiting: deque[tuple[float, bytes]] = deque()
    while not end.is_set():
        pause = waiting[0][0] - time.monotonic() if waiting else 0.1
        for device in select.select(devices, [], [], max(0.0, pause))[0]:
            waiting.append((time.monotonic() + seconds, os.read(device, 65536)))
        while waiting and waiting[0][0] <= time.monotonic():
            _, packet = waiting.popleft()
            if packet[0] >> 4 == 4:  # of IPv4
                os.write(devices[packet[19] - 1], packet)


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
