"""Random arrays for gradient checks."""

import math
from typing import Any

import numpy as np

from minibert.arrays import Array
from minibert.devices import Device

MASK = [[1, 1, 1, 1], [1, 1, 1, 0], [1, 1, 0, 0]]  # three sequences, two of them padded


class Draws:
    """Random arrays for the cases, drawn on the host and sent to a device."""

    def __init__(self, device: Device, seed: int):
        self.device = device
        self._rng = np.random.default_rng(seed)

    def normal(self, *shape: int) -> Array:
        """Standard normal numbers, float64."""
        return self.device.asarray(self._rng.standard_normal(shape))

    def matrix(self, outputs: int, inputs: int) -> Array:
        """A weight that preserves the scale of its inputs: N(0, 1/inputs)."""
        return self.normal(outputs, inputs) / math.sqrt(inputs)

    def ids(self, count: int, *shape: int) -> Array:
        """Random integers in [0, count), at least one of which occurs twice."""
        ids = self._rng.integers(count, size=shape)
        ids.reshape(-1)[-1] = ids.reshape(-1)[0]
        return self.device.asarray(ids)

    def randomise(self, module: Any) -> None:
        """Give every parameter of a module a random value: matrices N(0, 1/fan-in), vectors N(0, 1).

        A matrix (outputs, inputs) has its inputs last; one with the outputs of several heads, first.
        """
        for _, parameter in module.named_parameters():
            shape = parameter.shape
            fan_in = {2: shape[-1], 3: shape[0]}.get(len(shape), 1)
            parameter.value[...] = self.normal(*shape) / math.sqrt(fan_in)
