import os
import signal
import subprocess
import sys
import threading

import pytest

from minibert import interrupts

posix = pytest.mark.skipif(os.name != "posix", reason="a signal cannot be sent to oneself here")


def run(tmp_path, *arguments, interrupted_by):
    """Run Python where the import of a library is interrupted by Ctrl-C."""
    (tmp_path / f"{interrupted_by}.py").write_text(
        "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nraise ImportError('not interrupted')\n"
    )
    paths = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


@posix
@pytest.mark.parametrize("library", ["numpy", "tqdm"])  # the first that is imported, and one of the last
def test_ctrl_c_while_the_command_loads_ends_it_quietly(tmp_path, library):
    process = run(tmp_path, "-m", "minibert", "info", interrupted_by=library)
    assert (process.returncode, process.stdout, process.stderr) == (130, "", "")


@posix
def test_ctrl_c_while_another_program_loads_is_its_own_business(tmp_path):
    process = run(tmp_path, "-c", "import minibert", interrupted_by="numpy")
    assert process.returncode == -signal.SIGINT and "KeyboardInterrupt" in process.stderr


@pytest.mark.parametrize(
    ("command_line", "expected"),
    [
        (["/bin/python3", "/home/me/.venv/bin/minibert", "pretrain"], True),
        (["python", "-m", "minibert"], True),
        (["python", "-m", "pytest", "minibert"], False),
        (["python", "-c", "import minibert"], False),
        (["python"], False),
        ([], False),
    ],
)
def test_which_processes_are_the_command(command_line, expected):
    assert interrupts._is_command(command_line) == expected


@posix
def test_sigterm_does_what_ctrl_c_would_do():
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), interrupts.sigterm_as_ctrl_c():
        signal.raise_signal(signal.SIGTERM)
    received = []
    with interrupts.sigterm_as_ctrl_c():
        ctrl_c = signal.signal(signal.SIGINT, lambda number, _: received.append(number))
        try:
            signal.raise_signal(signal.SIGTERM)
            assert received == [signal.SIGTERM]
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in a job in the background
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGTERM)
        finally:
            signal.signal(signal.SIGINT, ctrl_c)
    assert signal.getsignal(signal.SIGTERM) == before


@posix
def test_sigterm_ends_a_forked_worker():
    with interrupts.sigterm_as_ctrl_c():
        worker = os.fork()
        if worker == 0:
            signal.raise_signal(signal.SIGTERM)
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1]) == 128 + signal.SIGTERM


def test_signals_are_left_alone_outside_the_main_thread():
    errors = []

    def use():
        try:
            with interrupts.sigterm_as_ctrl_c():
                pass
        except ValueError as error:
            errors.append(error)

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert not errors
