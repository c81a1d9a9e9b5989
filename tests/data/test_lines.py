import gzip
import tracemalloc
from pathlib import Path

import pytest

from minibert.data.lines import MAX_LINE_BYTES, is_compressed, read_lines
from minibert.errors import UserError

TEXT = "\ufefffirst\r\nsecond\u2028still\x85 second\n\nlast".encode()


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "A.TXT.GZ"])
def test_lines_end_at_line_feeds_alone(tmp_path, name):
    (tmp_path / name).write_bytes(gzip.compress(TEXT) if is_compressed(name) else TEXT)
    assert list(read_lines(tmp_path / name)) == ["first", "second\u2028still\x85 second", "", "last"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"fine\n\xe4\n", "line 2 is not UTF-8"),
        ("a.txt", "text".encode("utf-16"), "line 1 holds zero bytes"),
        # Without the time of day: it would be in the test's name, and all processes must collect the same.
        ("a.gz", gzip.compress(TEXT, mtime=0)[:-9], "damaged gzip"),
        ("a.gz", b"no gzip", "damaged gzip"),
    ],
)
def test_files_that_are_no_text(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message) as caught:
        list(read_lines(tmp_path / name))
    assert name in str(caught.value)


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
def test_a_file_without_line_ends_is_refused_before_it_fills_the_memory(tmp_path, name):
    text = b"first\n" + b"no line end " * 6_000_000
    (tmp_path / name).write_bytes(gzip.compress(text, 1) if name.endswith(".gz") else text)
    tracemalloc.start()
    with pytest.raises(
        UserError, match=rf"{name}: line 2 has more than {MAX_LINE_BYTES:,} bytes; break it into"
    ):
        list(read_lines(tmp_path / name))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 * MAX_LINE_BYTES
    assert list(read_lines(tmp_path / name, longest=2**27)) == text.decode().split("\n")


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="this system has no endless file")
def test_an_endless_file_is_refused():
    with pytest.raises(UserError, match=r"^/dev/zero: line 1 holds zero bytes"):
        list(read_lines("/dev/zero"))


def test_no_file(tmp_path):
    with pytest.raises(UserError, match="no such file"):
        list(read_lines(tmp_path / "none"))
    with pytest.raises(UserError, match="found a folder"):
        list(read_lines(tmp_path))
