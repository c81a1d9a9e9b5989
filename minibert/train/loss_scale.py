"""Dynamic loss scaling (Micikevicius et al., "Mixed Precision Training", 2018), for float16."""

from minibert.arrays import Array
from minibert.devices import Device

LEAST, MOST = 1.0, 2.0**24


class LossScale:
    """The factor of the loss that keeps small derivatives from becoming 0 in float16.

    It doubles after ``patience`` consecutive steps whose gradient was finite. A gradient that is not finite
    has overflowed: the scale is halved, and the optimiser skips the step. The scale and the number of good
    steps are 0-d arrays on the device, so the update needs nothing from the host.
    """

    def __init__(self, device: Device, start: float = 2.0**16, patience: int = 2000):
        self.device, self.patience = device, patience
        self.value: Array = device.xp.full((), start, dtype="float32")
        self.good_steps: Array = device.xp.zeros((), dtype="float32")  # since it last changed
        self.updates: Array = device.xp.zeros((), dtype="float32")  # all good steps, since these are taken

    def update(self, norm: Array) -> None:
        """Adapt the scale to the gradient norm of a step, a 0-d array."""
        xp = self.device.xp
        finite = xp.isfinite(norm)
        self.updates[...] = self.updates + finite
        good_steps = self.good_steps + 1.0
        patient = good_steps < self.patience
        grown = xp.where(patient, self.value, xp.minimum(2.0 * self.value, MOST))
        self.value[...] = xp.where(finite, grown, xp.maximum(0.5 * self.value, LEAST))
        self.good_steps[...] = xp.where(finite & patient, good_steps, 0.0 * good_steps)
