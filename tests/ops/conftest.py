"""What the tests of the operations share."""

from collections.abc import Callable

import numpy as np
import pytest

from minibert.arrays import Array
from minibert.devices import Device


@pytest.fixture
def draw(device: Device) -> Callable[..., Array]:
    """draw(2, 3, dtype="float32"): standard normal numbers on the device, the same in every run."""
    rng = np.random.default_rng(0)
    return lambda *shape, dtype="float64": device.asarray(rng.normal(size=shape), dtype=dtype)
