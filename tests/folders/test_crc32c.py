"""The checksum of TensorFlow's files."""

import numpy as np
import pytest

from minibert.folders.crc32c import crc32c, masked_crc32c


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", 0),
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),  # this and the following: RFC 3720, appendix B.4
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(reversed(range(32))), 0x113FDB5C),
    ],
)
def test_known_values(data, expected):
    assert crc32c(np.frombuffer(data, "u1")) == expected


def bit_by_bit(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 1000, 65531, 65532, 65533, 65536, 140_001])
def test_every_length(length):
    """65,532 bytes fill the first row of columns, with the four that are added."""
    data = np.random.default_rng(length).bytes(length)
    assert crc32c(np.frombuffer(data, "u1")) == bit_by_bit(data)


def test_arrays_of_any_type_are_their_bytes():
    array = np.random.default_rng(0).normal(size=(3, 5)).astype("float32")
    assert crc32c(array) == bit_by_bit(array.tobytes())


def test_masked():
    """The mask of LevelDB, by its definition in 64 bits."""
    crc = 0xE3069283
    rotated = (crc >> 15) + (crc * 2**17) % 2**32
    assert masked_crc32c(np.frombuffer(b"123456789", "u1")) == (rotated + 0xA282EAD8) % 2**32
