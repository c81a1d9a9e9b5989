"""The fingerprint of a model's weights, by which a run knows its teacher again, and an index its encoder."""

import hashlib

import numpy as np

from minibert.arrays import to_numpy
from minibert.nn import Module


def hash_weights(model: Module) -> "hashlib._Hash":
    """SHA-256 of all parameters, by name and as float32. More can be added to it.

    It is the same on every device, and wherever the model is kept.
    """
    digest = hashlib.sha256()
    for name, parameter in sorted(model.named_parameters()):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(to_numpy(parameter.value), "<f4").data)
    return digest
