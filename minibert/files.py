"""Files that are either complete or absent, and locks that only one process can hold."""

import errno
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from minibert.errors import UserError

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl


OLD = "old"  # inside the temporary folder: the folder that is being replaced


@contextmanager
def atomic_file(path: str | Path) -> Iterator[BinaryIO]:
    """Open a file for writing that appears at ``path`` only once it is complete and on the disk.

    The bytes go to a temporary file beside it first, which is renamed to ``path`` at the end. A link stays,
    and what it points to is written. After an error nothing is left behind. Raises UserError if the disk is
    full or the folder is not writable.
    """
    named, path = Path(path), Path(os.path.realpath(path))
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with explain_write_errors(named):
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(temporary, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
            _sync_folder(path.parent)
    finally:
        with suppress(OSError):  # after an error there may be no such folder
            temporary.unlink()


@contextmanager
def atomic_folder(path: str | Path) -> Iterator[Path]:
    """Give a temporary folder to fill, which becomes ``path`` only if the block ends without an error.

    An existing folder at ``path`` is replaced: it is moved aside, and deleted once the new one is in its
    place. A link stays, and the folder that it points to is replaced. After an error nothing new is left
    behind. Raises UserError if the disk is full or the folder is not writable.
    """
    named = path = Path(path)
    if named.is_symlink():  # but "." stays what it is, and is refused
        path = Path(os.path.realpath(named))
    with explain_write_errors(named):
        path.parent.mkdir(parents=True, exist_ok=True)
        workshop = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent))
    try:
        with explain_write_errors(named):
            new = workshop / "new"
            new.mkdir()
            yield new
            for file in new.rglob("*"):
                if file.is_file():
                    _sync(file)
            if path.is_dir():
                os.replace(path, workshop / OLD)
            os.replace(new, path)
            _sync_folder(path.parent)
    finally:
        _put_back(workshop, path)
        shutil.rmtree(workshop, ignore_errors=True)


def remove_unfinished(folder: Path) -> None:
    """Remove what a killed process was writing in a folder where no other process is at work.

    A folder that it had moved aside, and not yet replaced, is put back.
    """
    for path in folder.glob(".*.part"):
        if path.is_dir():
            _put_back(path, folder / path.name[1:].rsplit(".", 2)[0])
            shutil.rmtree(path)
        else:
            path.unlink()


def _put_back(workshop: Path, path: Path) -> None:
    """Move the old folder back to ``path`` if it was moved aside and nothing has come in its place."""
    if (workshop / OLD).is_dir() and not path.exists():
        os.replace(workshop / OLD, path)


def write_text(path: str | Path, text: str) -> None:
    """Write ``text`` as UTF-8, atomically.

    Bytes of file names that are not UTF-8, which Python keeps as halves of surrogate pairs, are written as
    ``\\udcXX``. JSON reads this back as the same name.
    """
    with atomic_file(path) as file:
        file.write(text.encode("utf-8", "backslashreplace"))


def write_json(path: str | Path, value: Any) -> None:
    """Write ``value`` as indented JSON, atomically."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def check_writable(path: str | Path) -> None:
    """Raise UserError if a file cannot be written at ``path``. To be called before a long computation.

    An existing file stays as it is, and nothing is left behind.
    """
    named, path = Path(path), Path(os.path.realpath(path))
    with explain_write_errors(named):
        if path.exists() and not path.is_file():
            kind = "folder" if path.is_dir() else "device"
            raise UserError(f"{named}: cannot write here (there is a {kind}); choose another file")
        nearest = next(folder for folder in path.parents if folder.exists())
        tempfile.TemporaryFile(dir=nearest).close()


def read_text(path: str | Path, what: str = "file") -> str:
    """Read a UTF-8 text file, without the mark that Windows' editor puts at the beginning.

    Raises UserError, naming the file, if it is missing or not UTF-8.
    """
    try:
        return Path(path).read_text(encoding="utf-8").removeprefix("\ufeff")
    except FileNotFoundError:
        raise UserError(f"{path}: no such {what}; check the path") from None
    except IsADirectoryError:
        raise UserError(f"{path}: expected a {what}, found a folder") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text (byte {error.start}); convert it to UTF-8 first") from None
    except OSError as error:
        raise UserError(f"{path}: cannot read this {what} ({error.strerror})") from None


def read_json(path: str | Path, what: str = "file") -> Any:
    """Read a JSON file. Raises UserError, naming the file, if it is missing or damaged."""
    text = read_text(path, what)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:  # JSONDecodeError, or a number of too many digits
        raise UserError(f"{path}: this {what} is not valid JSON ({error}); restore or remake it") from None


UNREACHABLE = (errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.ELOOP)  # whatever is to be done there
# EEXIST: a file stands where a folder is needed; ENOENT: nothing can be made here, as in /proc.
_NOT_WRITABLE = (
    *UNREACHABLE,
    *(errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENOENT, errno.EBUSY),
)
DISK_FULL = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC))  # the disk is, or one's share of it


@contextmanager
def explain_write_errors(path: Path) -> Iterator[None]:
    """Turn the errors of a full disk or of a folder that is not writable into UserErrors about ``path``."""
    try:
        yield
    except OSError as error:
        if error.errno in DISK_FULL:
            raise UserError(
                f"{path}: no space left on the device; free some or choose another folder"
            ) from error
        if error.errno in _NOT_WRITABLE:
            raise UserError(f"{path}: cannot write here ({error.strerror}); choose another folder") from error
        raise


# -- Locks -------------------------------------------------------------------------------------------

_locked: set[BinaryIO] = set()  # the files that this process has locked


@contextmanager
def lock(path: str | Path, taken: str) -> Iterator[None]:
    """Hold the file ``path`` as a lock; at the end remove it, and the folders made for it if they are empty.

    The operating system releases the lock when the process ends, however it ends: a file that a killed
    process has left behind locks nobody out. Processes forked from this one do not inherit the lock. A file
    system without locks locks nobody out either. Raises UserError with the message ``taken`` if somebody else
    holds the lock.
    """
    path = Path(path)
    new_folders = [folder for folder in path.parents if not folder.exists()]  # the innermost first
    with explain_write_errors(path):
        path = path.resolve()  # stays right if the working directory changes
        file = _open_locked(path)
    if file is None:
        raise UserError(taken)
    _locked.add(file)
    try:
        yield
    finally:
        _locked.discard(file)
        _remove_lock(path, file)
        for folder in new_folders:
            with suppress(OSError):  # not empty any more
                folder.rmdir()


@contextmanager
def folder_locked(folder: Path, wait: bool = True) -> Iterator[bool]:
    """Hold a lock on a folder, until the process ends at the latest. Yields whether we hold it.

    We do not hold it if somebody else does and we do not ``wait``, or where there are no locks (on Windows,
    on some network drives).
    """
    descriptor = None
    try:
        if sys.platform != "win32":
            descriptor = os.open(folder, os.O_RDONLY)
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        held = descriptor is not None
    except OSError:
        held = False
    try:
        yield held
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _leave_locks_to_parent() -> None:
    """In a forked process: close its copies of the locked files, lest it hold the locks of a dead parent."""
    while _locked:
        _locked.pop().close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_locks_to_parent)


def _open_locked(path: Path) -> BinaryIO | None:
    """The file at ``path``, opened and locked; None if somebody else has locked it."""
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = open(path, "ab")  # noqa: SIM115  (for as long as the lock is held)
        if not _try_lock(file):
            file.close()
            return None
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                return file
        file.close()  # its last holder removed it between our opening and our locking it


def _try_lock(file: BinaryIO) -> bool:
    """Lock an open file; False if somebody else has locked it."""
    try:
        if sys.platform == "win32":
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in (errno.EACCES, errno.EAGAIN, errno.EDEADLK)
    return True


def _remove_lock(path: Path, file: BinaryIO) -> None:
    if sys.platform != "win32":  # while it is still locked, so that nobody else's file is removed
        path.unlink(missing_ok=True)
        file.close()
    else:  # an open file cannot be removed: neither ours before it is closed, nor that of a new holder
        file.close()
        with suppress(OSError):
            path.unlink()


def _sync(path: Path) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    """Make a rename durable. Windows cannot open a folder, and needs no such thing."""
    if sys.platform != "win32":
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
