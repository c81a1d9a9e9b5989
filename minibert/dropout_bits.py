"""The random bits of dropout, without any state.

The bits are a pure function of where they are used, down to the place in the array; nothing is stored. So a
layer can be recomputed, a gradient can be checked numerically, and a run on a CPU can be compared with one on
a GPU (with padding on both: see ``nn.padding``).
"""

import math
from types import ModuleType
from typing import Any

import numpy as np

from minibert.arrays import Array, get_array_module

BITS = 16  # random bits per element, so that a probability is met to within 2⁻¹⁷

DropoutKey = tuple[int, int]  # two 32-bit words


def dropout_key(seed: int, step: int, micro_batch: int, replica: int, site: int) -> DropoutKey:
    """The key of one dropout in one forward pass: 64 bits mixed from everything that identifies it.

    ``site`` numbers the uses of dropout within the pass. The other arguments identify the training run, the
    step, the micro-batch of an accumulated batch, and the device.
    """
    return _fold([*_stream_words(seed, step, micro_batch, replica), int(site)])


def dropout_stream(seed: int, step: int, micro_batch: int = 0, replica: int = 0) -> np.ndarray:
    """The part of the key that all sites of a forward pass share, for :func:`dropout_keys`: (5,) uint32."""
    words = _stream_words(seed, step, micro_batch, replica)
    return np.array([word & 0xFFFFFFFF for word in words], dtype=np.uint32)


def dropout_keys(stream: Array, sites: int) -> Array:
    """:func:`dropout_key` of the sites 0, 1, …, computed on the stream's device: (sites, 2) uint32.

    stream (5,) uint32, from :func:`dropout_stream`.
    """
    xp = get_array_module(stream)
    site = xp.arange(sites, dtype="uint32")
    # an array of one number wraps around silently, as larger ones do; NumPy's scalars would warn
    return xp.stack(list(_fold([*(stream[i : i + 1] for i in range(stream.size)), site])), axis=1)


def _stream_words(seed: int, step: int, micro_batch: int, replica: int) -> list[int]:
    # Python ints: a NumPy integer would change the dtype of the key, and so of the bits
    return [int(seed), int(seed) >> 32, int(step), int(micro_batch), int(replica)]


def _fold(words: list[Any]) -> tuple[Any, Any]:
    """Mix all words into one, in two different ways."""
    first, second = 0x9E3779B9, 0x85EBCA6B
    for word in words:
        first = _mix((first ^ word) & 0xFFFFFFFF)
        second = _mix((second + word) & 0xFFFFFFFF)
    return first, second


def random_bits(xp: ModuleType, key: DropoutKey | Array, shape: tuple[int, ...]) -> Array:
    """Uniform random 16-bit integers (uint16), a pure function of the key and each element's index.

    The key is two numbers, or an array of two on the device.

    Element i takes half of the 32-bit word number i // 2. A word is its number mixed with both halves
    of the key, so that different keys give unrelated sequences, not shifts of the same one.
    """
    count = math.prod(shape)
    words = xp.arange((count + 1) // 2, dtype=xp.uint32)
    words = _mix(_mix(words ^ key[0]) + key[1])
    return words.view(xp.uint16)[:count].reshape(shape)


def _mix(word: Any) -> Any:
    """Scramble 32 bits: a bijection in which every input bit flips each output bit half the time.

    ``word`` is an int below 2³² or an array of uint32. The constants are those of ``lowbias32`` (Chris
    Wellons, "Prospecting for hash functions", 2018).
    """
    word = word ^ (word >> 16)
    word = (word * 0x7FEB352D) & 0xFFFFFFFF
    word = word ^ (word >> 15)
    word = (word * 0x846CA68B) & 0xFFFFFFFF
    return word ^ (word >> 16)
