"""What the kernels are told about dropout, and the keys of a whole step made on the device."""

import numpy as np

from minibert.arrays import Array, get_array_module
from minibert.dropout_bits import DropoutKey
from minibert.kernels.cuda.launch import launch
from minibert.ops.inverted_dropout import dropout_threshold


def dropout_arguments(
    x: Array, probability: float, key: DropoutKey | Array | None
) -> tuple[Array | None, int, float]:
    """The last three arguments of a kernel with dropout: key, threshold, scale (see ``ops.dropout``).

    The key is two 32-bit words: a tuple of ints, which is copied to the device, or an array (2,) of
    uint32 that is there already, as ``dropout_keys`` makes it; a captured graph can only be given the
    latter. None, or probability 0, switches dropout off.
    """
    if key is None or probability == 0.0:
        return None, 0, 1.0
    if isinstance(key, tuple):
        key = get_array_module(x).asarray(np.array(key, dtype=np.uint32))
    return key, *dropout_threshold(probability)


def dropout_keys(stream: Array, sites: int) -> Array:
    """See ``dropout_bits.dropout_keys``."""
    keys = get_array_module(stream).empty((sites, 2), dtype=np.uint32)
    launch("dropout_keys", "dropout_keys", "float32", (-(-sites // 64),), (64,), stream, keys, sites)
    return keys
