"""What all tests share: the devices that they run on, and the real data beside the checkout."""

import signal
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import strict

from minibert.devices import Device, resolve_device
from minibert.errors import UserError
from minibert.gradcheck import Case
from minibert.proofs import all_cases
from minibert.threads import get_threads, set_threads

# Lines that tests leave for the end of the run.
AT_THE_END = pytest.StashKey[list[str]]()
LIBRARIES = ("numpy", "strict", "cupy")
WITH_DERIVATIVES = ("tests/proofs/test_cases.py", "tests/test_mutants.py")  # numeric ones, which take minutes


def pytest_configure(config: pytest.Config) -> None:
    """No example of hypothesis is timed: a busy machine is no failure.

    A shell that starts the tests in the background (``make test &``) lets them ignore Ctrl-C, and with them
    the commands that they start and interrupt. So that is undone.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.stash[AT_THE_END] = []
    if config.pluginmanager.hasplugin("hypothesispytest"):  # not where `make parity` runs its tests
        from hypothesis import settings

        settings.register_profile("untimed", deadline=None)
        settings.load_profile("untimed")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--library", choices=LIBRARIES, help="run the device tests on this array library only")
    parser.addoption(
        "--instances",
        type=int,
        default=40_000,
        help="pre-training instances whose statistics are tested (default: %(default)s)",
    )


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With ``--dist loadfile``, files that need ``gradient_cases`` go to the same process."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return WITH_DERIVATIVES[0] if file in WITH_DERIVATIVES else file

    return Scheduling(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_sessionfinish(session: pytest.Session) -> None:
    """One of several processes hands over its lines for the end of the run."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["at the end"] = session.config.stash[AT_THE_END]


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist
def pytest_testnodedown(node: Any) -> None:
    """Take over the lines of a process that has ended."""
    node.config.stash[AT_THE_END].extend(getattr(node, "workeroutput", {}).get("at the end", []))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Write the lines for the end of the run."""
    for line in config.stash[AT_THE_END]:
        terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def at_the_end(pytestconfig: pytest.Config) -> list[str]:
    """The lines to be written at the end of the run."""
    return pytestconfig.stash[AT_THE_END]


@pytest.fixture(scope="session", params=LIBRARIES)
def device(request: pytest.FixtureRequest) -> Device:
    """Where arrays live: NumPy, the strict wrapper that stands in for CuPy, and CuPy if there is a GPU."""
    only = request.config.getoption("--library")
    if only not in (None, request.param):
        pytest.skip(f"--library {only}")
    if request.param == "numpy":
        return Device("cpu", np)
    if request.param == "strict":
        return Device("strict", strict.xp)
    try:
        return resolve_device("cuda")
    except UserError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def xp(device: Device) -> ModuleType:
    """The array library of ``device``."""
    return device.xp


@pytest.fixture
def restore_threads() -> Iterator[None]:
    """After the test, the CPU computes with as many threads as before."""
    before = get_threads()
    yield
    set_threads(before)


@pytest.fixture(scope="session")
def gradient_cases() -> list[Case]:
    """Every gradient check, on NumPy. Their numeric derivatives are computed once for all tests."""
    return all_cases(resolve_device("cpu"))


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data sets that stands beside the checkout on the developers' machines."""
    folder = Path(__file__).resolve().parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("needs the data sets in ../shared/data, which are not part of the repository")
    return folder
