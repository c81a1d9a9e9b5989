"""What the compiled loops share: how they are compiled, exp, and which elements dropout keeps.

Numba turns a function decorated with ``compiled`` into machine code when it is first called and keeps it
in ``__pycache__``. Python's rules for integers and division are off, and the compiler may reorder sums
so that they run in vector registers. A loop that computes a sum should not also write to an array. If two
arrays are so close that they might overlap, it would run one number at a time, and give different bits.
NaN and infinity keep their meaning: a loss that is not finite must stay visible.

The machine code is kept in a folder that is named after a hash of all files here. Numba by itself notices a
change in the file of a function, but not in other files whose functions it has compiled into that one.
"""

import contextlib
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numba
import numpy as np
from numba.core.caching import FunctionCache, IndexDataCacheFile

from minibert.dropout_bits import DropoutKey
from minibert.ops.inverted_dropout import dropout_threshold

_ANY_ORDER = {"contract", "nsz", "arcp", "reassoc"}
_THIS_ORDER = {"contract", "nsz"}
_EACH_ROUNDED = {"nsz"}


def compiled(function: Callable) -> Callable:
    """Compile a function of arrays and numbers when it is first called; sums may be reordered."""
    return _compile(function, _ANY_ORDER)


def inlined(function: Callable) -> Callable:
    """The same for a part of such functions that is too large to be inlined by default.

    Otherwise it would exist twice, by itself and again inside each caller, optimised differently. Which
    of them runs would depend on whether this process compiled it or found it on disk.
    """
    return _compile(function, _ANY_ORDER, inline="always")


def in_this_order(function: Callable) -> Callable:
    """The same for a function in which the order of additions matters."""
    return _compile(function, _THIS_ORDER)


def _each_rounded(function: Callable) -> Callable:
    """The same for a function whose operations must not be fused with their neighbours."""
    return _compile(function, _EACH_ROUNDED)


def _compile(
    function: Callable, fastmath: set[str], inline: Literal["never", "always"] = "never"
) -> Callable:
    dispatcher = numba.njit(nogil=True, error_model="numpy", fastmath=fastmath, inline=inline)(function)
    with contextlib.suppress(RuntimeError):  # there is no folder to keep it in: every process compiles again
        dispatcher._cache = _Kept(function)  # type: ignore[attr-defined]  # Numba's types leave it out
    return dispatcher


def sources_digest(folder: Path) -> str:
    """A name for the text of all Python files in a folder."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.py")):
        digest.update(f"{path.name} {path.stat().st_size}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


_DIGEST = sources_digest(Path(__file__).parent)


class _Kept(FunctionCache):
    """Numba's files of machine code, in a folder of our own; if they cannot be used, Numba compiles.

    A file may be damaged, for example, or the disk may be full.
    """

    def __init__(self, function: Callable):
        super().__init__(function)
        locator = self._impl.locator
        self._cache_path = os.path.join(locator.get_cache_path(), f"minibert-{_DIGEST}")
        self._cache_file = IndexDataCacheFile(
            self._cache_path, self._impl.filename_base, locator.get_source_stamp()
        )

    def load_overload(self, signature: Any, target: Any) -> Any:
        try:
            return super().load_overload(signature, target)
        except Exception:  # unpickling a damaged file may raise anything
            with contextlib.suppress(OSError):
                self.flush()
            return None

    def save_overload(self, signature: Any, compiled: Any) -> None:
        with contextlib.suppress(Exception):  # also a damaged file that could not be replaced above
            os.makedirs(self._cache_path, exist_ok=True)
            super().save_overload(signature, compiled)


float32, int32, uint32 = np.float32, np.int32, np.uint32


@_each_rounded
def product(a, b):
    """a · b rounded to a float32, even if something is subtracted next: the same number at every use."""
    return a * b


_ROUNDING = float32(1.5 * 2**23)  # added to a small number, it leaves the nearest integer in the last bits
_LOG2_E = float32(1.4426950408889634)
_LN2_HIGH, _LN2_LOW = float32(0.693359375), float32(-2.12194440e-4)  # their sum is ln 2 to more than 24 bits
_LOWEST = float32(-87.0)


@in_this_order
def exp(x):
    """eˣ in float32 for x ≤ 88, to about one unit in the last place; 0 below −87.

    x = n ln 2 + r with n whole and |r| ≤ ½ ln 2, so eˣ = 2ⁿ eʳ: a polynomial for eʳ, and n goes into the
    exponent's bits. The polynomial is that of Cephes' ``expf``.
    """
    shifted = x * _LOG2_E + _ROUNDING
    n = shifted - _ROUNDING
    r = x - n * _LN2_HIGH
    r = r - n * _LN2_LOW
    p = float32(1.9875691500e-4)
    p = p * r + float32(1.3981999507e-3)
    p = p * r + float32(8.3334519073e-3)
    p = p * r + float32(4.1665795894e-2)
    p = p * r + float32(1.6666665459e-1)
    p = p * r + float32(5.0000001201e-1)
    p = p * r * r + r + float32(1.0)
    power = int32((float32(shifted).view(int32) + int32(127)) << int32(23)).view(float32)  # 2ⁿ
    return float32(0.0) if x < _LOWEST else p * power


@compiled
def _mix(word):
    """``dropout_bits._mix`` for a uint32."""
    word = uint32(word ^ (word >> uint32(16)))
    word = uint32(word * uint32(0x7FEB352D))
    word = uint32(word ^ (word >> uint32(15)))
    word = uint32(word * uint32(0x846CA68B))
    return uint32(word ^ (word >> uint32(16)))


@compiled
def kept(index, drop):
    """Whether dropout keeps the element with this index: ``dropout_bits.random_bits``, bit for bit.

    ``drop`` is what :func:`dropout_numbers` made of the probability and the key.
    """
    key0, key1, threshold, _ = drop
    word = _mix(uint32(_mix(uint32(uint32(index >> uint32(1)) ^ key0)) + key1))
    half = uint32(uint32(index) & uint32(1)) * uint32(16)
    return (uint32(word >> half) & uint32(0xFFFF)) >= threshold


@compiled
def dropout_factor(index, drop):
    """The factor by which dropout multiplies the element with this index."""
    return drop[3] if kept(index, drop) else float32(0.0)


def dropout_numbers(probability: float, key: DropoutKey | None) -> tuple:
    """For compiled loops: the key's two words, the threshold for the bits, the factor of kept elements.

    Without dropout the threshold is 0, which keeps everything, and the factor 1.
    """
    if key is None or probability == 0.0:
        return uint32(0), uint32(0), uint32(0), float32(1.0)
    threshold, factor = dropout_threshold(probability)
    return uint32(key[0]), uint32(key[1]), uint32(threshold), float32(factor)


@compiled
def ordered(x):
    """A 32-bit integer for a float, such that the larger float has the larger integer; NaN is outermost.

    A maximum of integers runs in vector registers, one of floats that may be NaN does not.
    """
    bits = float32(x).view(int32)
    return int32(bits ^ (int32(bits >> int32(31)) & int32(0x7FFFFFFF)))


@compiled
def unordered(bits):
    """The inverse of :func:`ordered`: the float for this integer."""
    return int32(bits ^ (int32(bits >> int32(31)) & int32(0x7FFFFFFF))).view(float32)
