"""BERT's optimiser: Adam with decoupled weight decay and clipped gradients, over the flat buffers."""

from collections.abc import Iterator, Mapping

import numpy as np

from minibert import ops
from minibert.arrays import Array, to_numpy
from minibert.errors import UserError
from minibert.nn import Module
from minibert.train.loss_scale import LossScale


class AdamW:
    """Moves a model's parameters along the means of their gradients (``ops.adamw_update``).

    The gradient is first scaled down to length ``clip_norm`` if it is longer, all parameters together:
    g · clip_norm / max(‖g‖, clip_norm). Biases and LayerNorm parameters are not decayed. Defaults are
    those of google-research/bert (optimization.py): no bias correction, ε outside the root.

    What the host knows of a step, it puts into 0-d arrays on the device, and it reads nothing back, so
    that a GPU never waits for it. So a step whose gradient is not finite is left out without the host
    knowing. In float16 ``loss_scale`` says what the loss has to be multiplied with before the backward.
    """

    def __init__(
        self,
        model: Module,
        *,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        clip_norm: float = 1.0,
        bias_correction: bool = False,
    ):
        self.buffers = model.buffers
        self.device = model.device
        self.beta1, self.beta2 = beta1, beta2
        self.eps = eps
        self.weight_decay = weight_decay
        self.clip_norm = clip_norm
        self.bias_correction = bias_correction
        self.mean = self.device.xp.zeros_like(self.buffers.value)
        self.variance = self.device.xp.zeros_like(self.buffers.value)
        self.loss_scale = LossScale(self.device) if model.precision.name == "float16" else None

    def step(self, learning_rate: float, step: int) -> Array:
        """Update every parameter that is not frozen, and return the length ‖g‖ that the gradient had.

        That is the length without the loss scale. Where it is not finite, nothing but the scale changes.

        ``step`` counts the updates from 0; only the bias correction asks for it.
        """
        buffers, segments = self.buffers, self.buffers.segments
        for segment in segments:
            if segment.frozen:
                buffers.grad[segment.start : segment.stop] = 0
        norm = ops.global_norm(buffers.grad)
        clip_norm = self._scalar(self.clip_norm)
        scale = self.loss_scale.value if self.loss_scale else 1.0
        norm = norm / scale
        clip = clip_norm / (self.device.xp.maximum(norm, clip_norm) * scale)
        if self.loss_scale:
            self.loss_scale.update(norm)
        for segment in segments:
            if not segment.frozen:
                here = slice(segment.start, segment.stop)
                ops.adamw_update(
                    buffers.value[here],
                    buffers.grad[here],
                    self.mean[here],
                    self.variance[here],
                    self._scalar(learning_rate * segment.lr_scale),
                    clip,
                    self.beta1,
                    self.beta2,
                    self.eps,
                    self.weight_decay if segment.decay else 0.0,
                    *self._corrections(step + 1),
                    copy=buffers.operand[here] if buffers.has_copy else None,
                    norm=norm,
                )
        return norm

    def _corrections(self, updates: int) -> tuple[Array, Array]:
        """What Adam's means are divided by after so many updates: 1 − βᵗ, as they began at 0."""
        if not self.bias_correction:
            return self._scalar(1.0), self._scalar(1.0)
        return self._scalar(1.0 - self.beta1**updates), self._scalar(1.0 - self.beta2**updates)

    def _scalar(self, value: float) -> Array:
        return self.device.xp.asarray(value, dtype=self.buffers.value.dtype)

    def state_arrays(self) -> dict[str, np.ndarray]:
        """The two means of every parameter by name, "mean.…" and "variance.…", on the host.

        In float16 also ``loss_scale`` and ``good_steps``, which it depends on.
        """
        return {name: to_numpy(array) for name, array in self._named_state()}

    def load_state_arrays(self, arrays: Mapping[str, np.ndarray], source: str) -> None:
        """Go on from what ``state_arrays`` gave. Raises UserError, naming ``source``, if it does not fit."""
        for name, array in self._named_state():
            if name not in arrays:
                raise UserError(f"{source}: {name} is missing; it was not written by a run of this model")
            loaded = arrays[name]
            if (loaded.shape, loaded.dtype) != (array.shape, array.dtype):
                raise UserError(
                    f"{source}: {name} is {loaded.dtype} of shape {loaded.shape}, expected {array.dtype} "
                    f"of shape {array.shape}; it was not written by a run of this model"
                )
            array[...] = self.device.asarray(loaded)

    def _named_state(self) -> Iterator[tuple[str, Array]]:
        """The means as views of their parameters' shapes, and what the loss scale is made of."""
        start = 0
        for parameter, end in zip(self.buffers.parameters, self.buffers.ends, strict=True):
            here = slice(start, start + parameter.size)
            yield f"mean.{parameter.name}", self.mean[here].reshape(parameter.shape)
            yield f"variance.{parameter.name}", self.variance[here].reshape(parameter.shape)
            start = end
        if self.loss_scale:
            yield "loss_scale", self.loss_scale.value
            yield "good_steps", self.loss_scale.good_steps
