"""A file or folder is there whole or not at all, and what goes wrong is told in one line."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress

import pytest

from minibert import files
from minibert.errors import UserError
from minibert.files import (
    atomic_file,
    atomic_folder,
    check_writable,
    lock,
    read_json,
    read_text,
    remove_unfinished,
    write_json,
    write_text,
)


@pytest.fixture
def full_disk(monkeypatch):
    """A disk that takes the bytes but cannot keep them: what a delayed ENOSPC looks like."""

    def fsync(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fsync)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


# -- One file ---------------------------------------------------------------------------------------


def test_file_appears_only_when_it_is_complete(tmp_path):
    path = tmp_path / "new" / "folder" / "a.bin"
    with atomic_file(path) as file:
        file.write(b"first half, ")
        file.flush()
        assert not path.exists()
        file.write(b"second half")
    assert path.read_bytes() == b"first half, second half"
    assert names(path.parent) == ["a.bin"]


def test_file_is_replaced_as_a_whole(tmp_path):
    path = tmp_path / "a.bin"
    path.write_bytes(b"a longer old content")
    with atomic_file(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_bytes() == b"a longer old content"
    assert path.read_bytes() == b"new"
    assert names(tmp_path) == ["a.bin"]


@pytest.mark.parametrize("stop", [RuntimeError, KeyboardInterrupt])
def test_file_after_an_error_is_the_old_one(tmp_path, stop):
    path = tmp_path / "a.bin"
    path.write_bytes(b"old")
    with pytest.raises(stop), atomic_file(path) as file:
        file.write(b"half of the n")
        raise stop
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["a.bin"]


def test_file_on_a_full_disk(tmp_path, full_disk):
    path = tmp_path / "a.bin"
    with pytest.raises(UserError, match=r"a\.bin: no space left on the device"), atomic_file(path) as file:
        file.write(b"lost")
    assert names(tmp_path) == []


@pytest.mark.skipif(not hasattr(errno, "EDQUOT"), reason="needs a system with quotas")
def test_file_beyond_the_quota(tmp_path):
    with pytest.raises(UserError, match="no space left on the device"), atomic_file(tmp_path / "a.bin"):
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full, which Linux has")
def test_file_on_a_device_that_is_really_full(tmp_path):
    """The same error raised by the system itself, in the middle of writing."""
    with pytest.raises(UserError, match="no space left"), atomic_file(tmp_path / "a.bin") as file:
        with open("/dev/full", "wb", buffering=0) as full:
            os.dup2(full.fileno(), file.fileno())
        file.write(bytes(1 << 20))
    assert names(tmp_path) == []


def test_file_behind_a_link(tmp_path):
    """The link stays: /dev/stdout is one, too."""
    for name in ("there", "nowhere"):
        (tmp_path / f"to-{name}").symlink_to(tmp_path / name)
    (tmp_path / "there").write_text("old")
    for name in ("there", "nowhere"):
        check_writable(tmp_path / f"to-{name}")
        write_text(tmp_path / f"to-{name}", "new")
        assert (tmp_path / f"to-{name}").is_symlink() and (tmp_path / name).read_text() == "new"
    assert names(tmp_path) == ["nowhere", "there", "to-nowhere", "to-there"]


def test_folder_behind_a_link(tmp_path):
    for name in ("there", "nowhere"):
        (tmp_path / f"to-{name}").symlink_to(tmp_path / name)
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "old.txt").write_text("old")
    for name in ("there", "nowhere"):
        with atomic_folder(tmp_path / f"to-{name}") as new:
            (new / "new.txt").write_text("new")
        assert (tmp_path / f"to-{name}").is_symlink() and names(tmp_path / name) == ["new.txt"]
    assert names(tmp_path) == ["nowhere", "there", "to-nowhere", "to-there"]


def test_writing_is_tried_where_a_link_leads(tmp_path):
    if not os.path.isdir("/proc/self"):
        pytest.skip("needs /proc, where nothing can be made")
    (tmp_path / "to-proc").symlink_to("/proc/a.bin")
    with pytest.raises(UserError, match=r"to-proc: cannot write here"):
        check_writable(tmp_path / "to-proc")


def test_file_below_another_file(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    for path in (tmp_path / "file" / "a.bin", tmp_path / "file" / "folder" / "a.bin"):
        with pytest.raises(UserError, match=r"a\.bin: cannot write here"), atomic_file(path) as file:
            file.write(b"nowhere")
    assert names(tmp_path) == ["file"]


def test_file_in_the_place_of_a_folder(tmp_path):
    path = tmp_path / "folder"
    path.mkdir()
    with pytest.raises(UserError, match="folder: cannot write here"), atomic_file(path) as file:
        file.write(b"nowhere")
    assert names(tmp_path) == ["folder"]


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs /proc, which Linux has")
@pytest.mark.parametrize("path", ["/proc/a.bin", "/proc/folder/a.bin"])
def test_where_nothing_can_be_made(path):
    with pytest.raises(UserError, match=f"^{path}: cannot write here"), atomic_file(path) as file:
        file.write(b"nowhere")
    with pytest.raises(UserError, match=f"^{path}: cannot write here"), atomic_folder(path):
        pass


def test_a_name_that_is_too_long(tmp_path):
    path = tmp_path / ("a" * 300)
    with pytest.raises(UserError, match="cannot write here"), atomic_file(path) as file:
        file.write(b"nowhere")


def test_other_errors_keep_their_type(tmp_path):
    """What is not the person's doing is a defect, and must not be dressed up as a mistake."""
    with pytest.raises(OSError) as caught, atomic_file(tmp_path / "a.bin"):
        raise OSError(errno.EIO, "broken")
    assert not isinstance(caught.value, UserError)


def test_whether_a_file_can_be_written_is_known_ahead(tmp_path):
    (tmp_path / "old").write_text("precious")
    for path in ("new", "old", "some/new/folder/file"):
        check_writable(tmp_path / path)
    for path, why in (("", "there is a folder"), ("old/new", "Not a directory"), ("old/a/new", "directory")):
        with pytest.raises(UserError, match=f"cannot write here .*{why}"):
            check_writable(tmp_path / path)
    assert names(tmp_path) == ["old"] and (tmp_path / "old").read_text() == "precious"


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs /proc and devices, as Linux has")
@pytest.mark.parametrize("path", ["/proc/new", "/proc/folder/new", os.devnull])
def test_where_nothing_can_be_written_is_known_ahead(path):
    with pytest.raises(UserError, match=f"^{path}: cannot write here"):
        check_writable(path)


# -- A folder ---------------------------------------------------------------------------------------


def test_folder_appears_only_when_it_is_complete(tmp_path):
    path = tmp_path / "new" / "checkpoint"
    with atomic_folder(path) as folder:
        (folder / "a").write_text("a")
        (folder / "inner").mkdir()
        (folder / "inner" / "b").write_text("b")
        assert not path.exists()
    assert names(path.parent) == ["checkpoint"]
    assert names(path) == ["a", "inner"]
    assert (path / "inner" / "b").read_text() == "b"


def test_folder_can_be_read_like_any_other(tmp_path):
    """Temporary folders are private to their owner; the finished one is not."""
    with atomic_folder(tmp_path / "checkpoint") as folder:
        (folder / "a").write_text("a")
    (tmp_path / "usual").mkdir()
    assert (tmp_path / "checkpoint").stat().st_mode == (tmp_path / "usual").stat().st_mode


def test_folder_is_replaced_as_a_whole(tmp_path):
    path = tmp_path / "checkpoint"
    path.mkdir()
    (path / "only in the old one").write_text("x")
    with atomic_folder(path) as folder:
        (folder / "new").write_text("y")
        assert names(path) == ["only in the old one"]
    assert names(path) == ["new"]
    assert names(tmp_path) == ["checkpoint"]


def test_folder_after_an_error_is_the_old_one(tmp_path):
    path = tmp_path / "checkpoint"
    path.mkdir()
    (path / "old").write_text("x")
    with pytest.raises(KeyboardInterrupt), atomic_folder(path) as folder:
        (folder / "new").write_text("half")
        raise KeyboardInterrupt
    assert names(path) == ["old"]
    assert names(tmp_path) == ["checkpoint"]


def test_folder_is_whole_even_while_the_old_one_is_deleted(tmp_path, monkeypatch):
    """Deleting takes many steps; whenever it breaks off, no half-empty folder may bear the real name."""
    path = tmp_path / "checkpoint"
    path.mkdir()
    (path / "a").write_text("old")
    delete = shutil.rmtree
    seen = []

    def watch(*args, **kwargs):
        seen.append((path / "a").read_text() if path.exists() else "absent")
        delete(*args, **kwargs)

    monkeypatch.setattr(shutil, "rmtree", watch)
    with atomic_folder(path) as folder:
        (folder / "a").write_text("new")
    assert seen and set(seen) == {"new"}


def between_renames(monkeypatch, stop):
    """Renaming is possible once, and then stops whoever tries it; the old folder has been moved aside."""
    replace, calls = os.replace, []

    def replace_once(*arguments):
        calls.append(arguments)
        if len(calls) == 2:
            raise stop
        replace(*arguments)

    monkeypatch.setattr(os, "replace", replace_once)


def test_folder_that_was_moved_aside_comes_back(tmp_path, monkeypatch):
    path = tmp_path / "best"
    path.mkdir()
    (path / "old").write_text("x")
    between_renames(monkeypatch, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt), atomic_folder(path) as folder:
        (folder / "new").write_text("whole")
    assert names(path) == ["old"]
    assert names(tmp_path) == ["best"]


def test_folder_that_was_moved_aside_comes_back_after_a_kill(tmp_path, monkeypatch):
    path = tmp_path / "best.of.all"
    path.mkdir()
    (path / "old").write_text("x")
    with monkeypatch.context() as patch, suppress(KeyboardInterrupt):
        patch.setattr(shutil, "rmtree", lambda *_, **__: None)
        patch.setattr(files, "_put_back", lambda *_: None)
        between_renames(patch, KeyboardInterrupt())
        with atomic_folder(path) as folder:
            (folder / "new").write_text("whole")
    assert not path.exists()
    remove_unfinished(tmp_path)
    assert names(path) == ["old"]
    assert names(tmp_path) == ["best.of.all"]


def test_folder_on_a_full_disk(tmp_path, full_disk):
    path = tmp_path / "checkpoint"
    path.mkdir()
    (path / "old").write_text("x")
    with pytest.raises(UserError, match="checkpoint: no space left"), atomic_folder(path) as folder:
        (folder / "new").write_text("y")
    assert names(path) == ["old"]
    assert names(tmp_path) == ["checkpoint"]


def test_folder_in_the_place_of_a_file(tmp_path):
    path = tmp_path / "file"
    path.write_text("precious")
    with pytest.raises(UserError, match="file: cannot write here"), atomic_folder(path) as folder:
        (folder / "a").write_text("new")
    assert path.read_text() == "precious"
    assert names(tmp_path) == ["file"]


def test_folder_below_a_file(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(UserError, match="cannot write here"), atomic_folder(tmp_path / "file" / "checkpoint"):
        pass
    assert names(tmp_path) == ["file"]


# -- Text and JSON ----------------------------------------------------------------------------------


def test_text_round_trip(tmp_path):
    text = "Πάντα ῥεῖ\r\n\t🙂\n"
    write_text(tmp_path / "a.txt", text)
    assert (tmp_path / "a.txt").read_bytes() == text.encode("utf-8")


def test_the_mark_of_windows_editor_is_no_text(tmp_path):
    (tmp_path / "a.txt").write_bytes("\ufeffone\r\n\ufefftwo\r\n".encode())
    assert read_text(tmp_path / "a.txt") == "one\n\ufefftwo\n"


def test_json_round_trip(tmp_path):
    value = {"a": [1, 2.5, None, True], "ß": {"b": "\u2028"}}
    write_json(tmp_path / "a.json", value)
    assert read_json(tmp_path / "a.json") == value
    assert "ß" in (tmp_path / "a.json").read_text(encoding="utf-8"), "for people to read"


def test_names_that_are_not_utf_8_are_read_back_from_json(tmp_path):
    name = os.fsdecode(b"caf\xe9.tsv")
    write_json(tmp_path / "config.json", {"train": name})
    assert read_json(tmp_path / "config.json") == {"train": name}


def test_json_that_cannot_be_written_leaves_the_old_file(tmp_path):
    write_json(tmp_path / "a.json", {"a": 1})
    with pytest.raises(TypeError):
        write_json(tmp_path / "a.json", {"a": object()})
    assert json.loads((tmp_path / "a.json").read_text()) == {"a": 1}
    assert names(tmp_path) == ["a.json"]


def test_read_errors_name_the_file_and_the_kind(tmp_path):
    (tmp_path / "binary").write_bytes(b"abc\xff\xfe")
    (tmp_path / "file").write_text("x")
    cases = {
        tmp_path / "none.txt": "none.txt: no such vocabulary",
        tmp_path: "expected a vocabulary, found a folder",
        tmp_path / "binary": r"binary: not UTF-8 text \(byte 3\)",
        tmp_path / "file" / "below": "below: cannot read this vocabulary",
    }
    for path, message in cases.items():
        with pytest.raises(UserError, match=message):
            read_text(path, "vocabulary")


@pytest.mark.parametrize("text", ["", "{", '{"a": 1', "[1, 2}", "nonsense", "[" * 100_000])
def test_damaged_json(tmp_path, text):
    (tmp_path / "a.json").write_text(text)
    message = r"a\.json: this model configuration is not valid JSON .*restore"
    with pytest.raises(UserError, match=message) as caught:
        read_json(tmp_path / "a.json", "model configuration")
    assert "\n" not in str(caught.value)


# -- Locks ------------------------------------------------------------------------------------------

HOLD = """
import sys, time
from minibert.files import lock
with lock(sys.argv[1], "taken"):
    {work}
    sys.stdin.read()
"""
TELL = "print('locked', flush=True)"
FORK = f"import os; os.fork() == 0 and ({TELL}, time.sleep(60))"  # a child that outlives its parent


@pytest.fixture
def hold(tmp_path):
    """Start another process that holds the lock at a path and does some work."""
    holders = []

    def hold(path, work=TELL):
        command = [sys.executable, "-c", HOLD.format(work=work), str(path)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        holders.append(subprocess.Popen(command, **pipes, start_new_session=True))
        return holders[-1]

    yield hold
    for holder in holders:
        if os.name == "posix":
            with suppress(ProcessLookupError):  # it has ended
                os.killpg(holder.pid, signal.SIGKILL)  # with the child that it may have forked
        holder.communicate()


def test_a_lock_is_held_by_one_process(tmp_path, hold):
    path = tmp_path / "new" / "folder" / ".lock"
    holder = hold(path)
    assert holder.stdout.readline() == "locked\n"
    with pytest.raises(UserError, match="somebody is there"), lock(path, "somebody is there"):
        raise AssertionError
    second = hold(path)
    assert "taken" in second.communicate()[1] and second.returncode
    holder.communicate()  # it ends
    assert names(tmp_path) == []
    with lock(path, "somebody is there"):
        assert names(path.parent) == [".lock"]
    assert names(tmp_path) == []


def test_a_lock_is_held_once_in_a_process(tmp_path, hold):
    with lock(tmp_path / ".lock", "first"):
        (tmp_path / ".lock").read_bytes()  # which would release a lock of the other kind, by lockf
        with pytest.raises(UserError, match="second"), lock(tmp_path / "." / ".lock", "second"):
            raise AssertionError
        other = hold(tmp_path / ".lock")
        assert "taken" in other.communicate()[1], "the attempt has not released it"
    assert names(tmp_path) == []


@pytest.mark.skipif(os.name != "posix", reason="needs kill -9 and fork")
@pytest.mark.parametrize("work", [TELL, FORK])
def test_a_lock_does_not_survive_a_kill(tmp_path, hold, work):
    """Nor does a child of the killed process keep it."""
    path = tmp_path / ".lock"
    holder = hold(path, work)
    assert holder.stdout.readline() == "locked\n"
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    assert names(tmp_path) == [".lock"]
    with lock(path, "taken"):
        pass
    assert names(tmp_path) == []


def test_a_lock_keeps_what_has_come_into_its_folder(tmp_path):
    with lock(tmp_path / "run" / ".lock", "taken"):
        (tmp_path / "run" / "model").write_text("")
    assert names(tmp_path / "run") == ["model"]
