"""Dynamic loss scaling (Micikevicius et al., "Mixed Precision Training", 2018), for float16."""

from minibert.arrays import Array
from minibert.devices import Device

LEAST, MOST = 1.0, 2.0**24


class LossScale:
    """What the loss is multiplied with, so that small derivatives do not become 0 in float16.

    It doubles after ``patience`` steps in a row whose gradient was finite. A gradient that is not has
    overflowed: the scale is halved, and the optimiser leaves the step out. Both numbers are 0-d arrays on
    the device, and choosing between them takes no word from the host.
    """

    def __init__(self, device: Device, start: float = 2.0**16, patience: int = 2000):
        self.xp = device.xp
        self.patience = patience
        self.value: Array = self.xp.full((), start, dtype="float32")
        self.good_steps: Array = self.xp.zeros((), dtype="float32")  # since it last changed

    def update(self, norm: Array) -> None:
        """Take note of how long the gradient of a step was, a 0-d array."""
        xp = self.xp
        finite = xp.isfinite(norm)
        good_steps = self.good_steps + 1.0
        patient = good_steps < self.patience
        grown = xp.where(patient, self.value, xp.minimum(2.0 * self.value, MOST))
        self.value[...] = xp.where(finite, grown, xp.maximum(0.5 * self.value, LEAST))
        self.good_steps[...] = xp.where(finite & patient, good_steps, 0.0 * good_steps)
