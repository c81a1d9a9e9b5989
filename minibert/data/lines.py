"""The lines of a person's text files. Problems are reported with file and line."""

import gzip
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from minibert.errors import UserError

MAX_LINE_BYTES = 2**25  # a longer line is refused before it fills the memory

LONE_SURROGATE = re.compile("[\ud800-\udfff]")  # JSON can spell what UTF-8 cannot


class SupportsReadline(Protocol):
    """An open file, also one in gzip or in an archive."""

    def readline(self, size: int, /) -> bytes:
        """The next line, or its first ``size`` bytes."""


def suffix(path: str | Path) -> str:
    """The end of a file's name, without its dot: "txt" for ``books.txt``, ``BOOKS.TXT``, ``books.txt.gz``."""
    path = Path(path)
    return (path.with_suffix("") if is_compressed(path) else path).suffix.removeprefix(".").lower()


def is_compressed(path: str | Path) -> bool:
    """Whether a file's name says that gzip compressed it."""
    return Path(path).suffix.lower() == ".gz"


def read_lines(path: str | Path, longest: int = MAX_LINE_BYTES) -> Iterator[str]:
    """The lines of a UTF-8 file, compressed (``.gz``) or not; see `decoded_lines`.

    Raises UserError if there is no such file, or it cannot be read.
    """
    path = Path(path)
    try:
        with open(path, "rb") as raw, gzip.open(raw) if is_compressed(path) else raw as stream:
            yield from decoded_lines(stream, path, longest)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; check the path") from None
    except IsADirectoryError:
        raise UserError(f"{path}: expected a file, found a folder; give the file in it") from None
    except OSError as error:
        raise UserError(f"{path}: cannot read this file ({error.strerror})") from None


def decoded_lines(stream: SupportsReadline, path: Path, longest: int = MAX_LINE_BYTES) -> Iterator[str]:
    """The lines of a UTF-8 file, without line ends (LF or CRLF) and without a byte order mark.

    Raises UserError, naming file and line, for bytes that are not UTF-8 text, for lines of more than
    ``longest`` bytes, and for damaged gzip.
    """
    number = 0
    try:
        for number, line in enumerate(iter(lambda: stream.readline(longest + 1), b""), start=1):
            if b"\0" in line:
                raise UserError(
                    f"{path}: line {number} holds zero bytes: a binary or UTF-16 file; give UTF-8 text"
                )
            if len(line) > longest:
                raise UserError(
                    f"{path}: line {number} has more than {longest:,} bytes; break it into lines, "
                    "or the text into documents"
                )
            if number == 1:
                line = line.removeprefix(b"\xef\xbb\xbf")
            yield line.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path}: line {number} is not UTF-8 text (byte {error.object[error.start]:#04x} at column "
            f"{error.start}); convert the file to UTF-8 first, for instance with iconv"
        ) from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{path}: damaged gzip file ({error}); fetch or compress it again") from None
