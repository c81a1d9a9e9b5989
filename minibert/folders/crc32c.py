"""CRC-32C (Castagnoli), the checksum in TensorFlow's files, of hundreds of megabytes in about a second.

A CRC reads a message as a polynomial over the integers modulo 2: each bit is a coefficient. It is the
remainder after division by a fixed polynomial P of degree 32. A remainder is computed piece by piece by
Horner's rule: (A B) mod P = ((A mod P) · x^|B| + B) mod P for a message A followed by one B of |B| bits,
where + is exclusive or.

As a loop of Python's over the bytes this would take minutes. NumPy does it for thousands of 32-bit columns at
once. The message is written in rows of that many columns, and row after row is added:

    total ← total · x^(32·columns) + row                (all columns side by side)

and then the right half of the columns to the left half, until there is one column. A multiplication by a
fixed power of x is linear, so the products of the low and of the high 16 bits are looked up and added.

The bits of a byte are taken from the lowest to the highest, so a little-endian word holds the coefficients of
x³¹ … x⁰ from its lowest bit to its highest. Source: RFC 3720, section 12.1 and appendix B.4.
"""

from functools import cache

import numpy as np

_P = 0x82F63B78  # the coefficients of x³¹ … x⁰ in P, from the lowest bit; that of x³² is 1
_HALVINGS = 14
_COLUMNS = 2**_HALVINGS  # 64 kB: a row stays in the processor's cache

Products = tuple[np.ndarray, np.ndarray]  # of all 2¹⁶ low halves of a word, and of all high ones


def crc32c(data: np.ndarray) -> int:
    """The CRC-32C of the bytes of a contiguous array."""
    data = data.reshape(-1).view(np.uint8)
    # Zeros before a message do not change its polynomial. The 32 after it are the x³² that a CRC begins with.
    rows = -(-(data.size + 4) // (4 * _COLUMNS))
    message = np.zeros(4 * _COLUMNS * rows, np.uint8)
    start = message.size - 4 - data.size
    message[start:-4] = data
    message[start : start + 4] ^= 255  # as is laid down, so that zeros at its beginning count
    words = message.view("<u4").reshape(rows, _COLUMNS)
    total = words[0]
    for row in words[1:]:
        total = _multiply(total, _power(_HALVINGS)) ^ row
    for halving in reversed(range(_HALVINGS)):
        left, right = np.split(total, 2)
        total = _multiply(left, _power(halving)) ^ right
    return int(total[0]) ^ 0xFFFFFFFF


def masked_crc32c(data: np.ndarray) -> int:
    """As TensorFlow and LevelDB store it: rotated by 15 bits, and a constant added."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


@cache
def _power(doublings: int) -> Products:
    """The products with x^(32 · 2^doublings)."""
    low: np.ndarray = np.arange(2**16, dtype=np.uint32)
    high: np.ndarray = low << 16
    if doublings:
        once = _power(doublings - 1)
        return _multiply(_multiply(low, once), once), _multiply(_multiply(high, once), once)
    for _ in range(32):  # times x: the coefficient of x³² that arises is replaced by the rest of P
        low, high = (word >> 1 ^ np.where(word & 1, _P, 0).astype(np.uint32) for word in (low, high))
    return low, high


def _multiply(words: np.ndarray, products: Products) -> np.ndarray:
    low, high = products
    return low[words & 0xFFFF] ^ high[words >> 16]
