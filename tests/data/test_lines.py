import gzip

import pytest

from minibert.data.lines import read_lines
from minibert.errors import UserError

TEXT = "\ufefffirst\r\nsecond\u2028still\x85 second\n\nlast".encode()


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
def test_lines_end_at_line_feeds_alone(tmp_path, name):
    (tmp_path / name).write_bytes(gzip.compress(TEXT) if name.endswith(".gz") else TEXT)
    assert list(read_lines(tmp_path / name)) == ["first", "second\u2028still\x85 second", "", "last"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"fine\n\xe4\n", "line 2 is not UTF-8"),
        ("a.txt", "text".encode("utf-16"), "line 1 holds zero bytes"),
        ("a.gz", gzip.compress(TEXT)[:-9], "damaged gzip"),
        ("a.gz", b"no gzip", "damaged gzip"),
    ],
)
def test_files_that_are_no_text(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message) as caught:
        list(read_lines(tmp_path / name))
    assert name in str(caught.value)


def test_no_file(tmp_path):
    with pytest.raises(UserError, match="no such file"):
        list(read_lines(tmp_path / "none"))
    with pytest.raises(UserError, match="found a folder"):
        list(read_lines(tmp_path))
