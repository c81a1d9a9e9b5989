"""The random bits of dropout, which has no state.

They are a pure function of where they are used, so a layer can be recomputed, a gradient checked
numerically, and a CPU run compared with a GPU run; nothing is stored.
"""

import math
from types import ModuleType
from typing import Any

import numpy as np

from minibert.arrays import Array, get_array_module

BITS = 16  # random bits an element: a probability is met to within 2⁻¹⁷

DropoutKey = tuple[int, int]  # two 32-bit words


def dropout_key(seed: int, step: int, micro_batch: int, replica: int, site: int) -> DropoutKey:
    """The key of one dropout in one forward pass: 64 bits mixed from everything that tells it apart.

    ``site`` numbers the places in the model where dropout is applied; the others say which training
    run, step, piece of an accumulated batch, and device.
    """
    return _fold([*_stream_words(seed, step, micro_batch, replica), int(site)])


def dropout_stream(seed: int, step: int, micro_batch: int = 0, replica: int = 0) -> np.ndarray:
    """What all sites of a forward pass have in common, as :func:`dropout_keys` reads it: (5,) uint32."""
    words = _stream_words(seed, step, micro_batch, replica)
    return np.array([word & 0xFFFFFFFF for word in words], dtype=np.uint32)


def dropout_keys(stream: Array, sites: int) -> Array:
    """:func:`dropout_key` of the sites 0, 1, …, made where the stream is: (sites, 2) uint32.

    stream (5,) uint32, from :func:`dropout_stream`.
    """
    xp = get_array_module(stream)
    site = xp.arange(sites, dtype="uint32")
    # an array of one number wraps around like the others; NumPy's single numbers warn
    return xp.stack(list(_fold([*(stream[i : i + 1] for i in range(stream.size)), site])), axis=1)


def _stream_words(seed: int, step: int, micro_batch: int, replica: int) -> list[int]:
    # ints, for a NumPy integer would give the key, and then the bits, another dtype
    return [int(seed), int(seed) >> 32, int(step), int(micro_batch), int(replica)]


def _fold(words: list[Any]) -> tuple[Any, Any]:
    """Mix all words into two, in two ways."""
    first, second = 0x9E3779B9, 0x85EBCA6B
    for word in words:
        first = _mix((first ^ word) & 0xFFFFFFFF)
        second = _mix((second + word) & 0xFFFFFFFF)
    return first, second


def random_bits(xp: ModuleType, key: DropoutKey | Array, shape: tuple[int, ...]) -> Array:
    """Uniform random 16-bit integers (uint16), a pure function of the key and each element's index.

    The key is two numbers, or an array of two on the device.

    Element i takes half of the 32-bit word number i // 2. A word is its number mixed with both halves
    of the key, so that different keys give unrelated sequences and not shifts of the same one.
    """
    count = math.prod(shape)
    words = xp.arange((count + 1) // 2, dtype=xp.uint32)
    words = _mix(_mix(words ^ key[0]) + key[1])
    return words.view(xp.uint16)[:count].reshape(shape)


def _mix(word: Any) -> Any:
    """Scramble 32 bits: a bijection in which every input bit flips each output bit half the time.

    For an int below 2³² or an array of uint32. The constants are those of ``lowbias32`` (Chris
    Wellons, "Prospecting for hash functions", 2018).
    """
    word = word ^ (word >> 16)
    word = (word * 0x7FEB352D) & 0xFFFFFFFF
    word = word ^ (word >> 15)
    word = (word * 0x846CA68B) & 0xFFFFFFFF
    return word ^ (word >> 16)
