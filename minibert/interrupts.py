"""What Ctrl-C and SIGTERM do to the command ``minibert``.

While the command is still loading, which takes a second or two, Ctrl-C ends it at once and without a
traceback. Importing this file, the first of the package to be imported, arranges that. Nothing changes
where another program imports minibert.
"""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

EXIT_CODE = 130  # of a command that was ended by Ctrl-C: 128 + SIGINT


def _is_command(command_line: list[str]) -> bool:
    """Whether a process with this command line (including Python itself) is ``minibert``."""
    return command_line[1:3] == ["-m", "minibert"] or Path("".join(command_line[1:2])).stem == "minibert"


def _end_quietly(*_: Any) -> None:
    os._exit(EXIT_CODE)  # an exception could be caught, or replaced, by whatever is being imported


if _is_command(sys.orig_argv) and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, _end_quietly)


def end_loading() -> None:
    """The command has been loaded: from now on Ctrl-C raises KeyboardInterrupt, as usual."""
    if signal.getsignal(signal.SIGINT) is _end_quietly:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def sigterm_as_ctrl_c() -> Iterator[None]:
    """Within this block, handle SIGTERM (which schedulers send) as Ctrl-C is handled at that moment.

    Only the main thread may handle signals; in any other thread nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    owner = os.getpid()

    def interrupt(number: int, frame: FrameType | None) -> None:
        if os.getpid() != owner:  # a forked worker, which its parent waits for
            os._exit(128 + number)
        handler = signal.getsignal(signal.SIGINT)
        if not callable(handler):  # Ctrl-C is ignored, as in a background job
            raise KeyboardInterrupt
        handler(number, frame)

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
