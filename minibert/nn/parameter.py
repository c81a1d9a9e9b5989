"""Parameters: named views into one flat buffer of values and one of gradients."""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from minibert.arrays import Array, to_numpy
from minibert.devices import Device, resolve_device
from minibert.nn.initialise import STD, first_values

ALIGNMENT = 64  # every piece of the buffer begins at a multiple of this many elements


class GradientListener(Protocol):
    """Hears of every gradient that is added to a parameter, and keeps all but the first."""

    def stored(self, parameter: "Parameter") -> None:
        """The first gradient since ``zero_grad`` is in ``grad``."""

    def added(self, parameter: "Parameter", gradient: Array) -> None:
        """There is another one. It does not go to ``grad``: adding it is the listener's business."""


class Parameter:
    """An array that is learned, with its gradient: two views of the same shape into the model's buffers.

    ``operand`` is what products read: ``value``, or its 16-bit copy if the model computes in 16 bits.
    ``init`` says how it is initialised ("normal", "sinusoidal", "zeros", "ones") and ``decay`` whether weight
    decay applies. ``lr_scale`` multiplies its learning rate. The optimiser does not update it if ``frozen``.
    ``alone`` says that the optimiser updates it by itself, not together with its neighbours in the buffer.
    A ``listener`` takes the gradients after the first.

    A parameter whose model has not been allocated gets its own memory when it is first used: float32 on
    the CPU, with initial values.
    """

    def __init__(self, shape: tuple[int, ...], init: str = "normal", decay: bool = True):
        self.name = ""
        self.shape = tuple(shape)
        self.init = init
        self.decay = decay
        self.lr_scale = 1.0
        self.frozen = False
        self.alone = False
        self.fresh = True  # no gradient has been written since zero_grad
        self.listener: GradientListener | None = None
        self._value: Array = None
        self._operand: Array = None
        self._grad: Array = None

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def value(self) -> Array:
        """The values that are learned."""
        if self._value is None:
            _allocate_alone(self)
        return self._value

    @value.setter
    def value(self, value: Array) -> None:
        """Write into the buffer, so that ``parameter.value -= …`` works as expected.

        After writing to a part of it, ``parameter.value[0] = …``, a model of 16-bit products still reads the
        old numbers: see ``ParameterBuffers.round_operand``.
        """
        if value is not self.value:
            self._value[...] = value
        if self._operand is not self._value:
            self._operand[...] = self._value.astype(self._operand.dtype)

    @property
    def operand(self) -> Array:
        """What products read."""
        if self._operand is None:
            _allocate_alone(self)
        return self._operand

    @property
    def grad(self) -> Array:
        """The sum of all gradients added since ``zero_grad``; zeros if there was none."""
        if self._value is None:
            _allocate_alone(self)
        self.settle_grad()
        return self._grad

    @grad.setter
    def grad(self, gradient: Array) -> None:
        """Write into the buffer."""
        if gradient is not self.grad:
            self._grad[...] = gradient

    @property
    def has_memory(self) -> bool:
        """Whether it has values already."""
        return self._value is not None

    def bind(self, value: Array, operand: Array, grad: Array) -> None:
        """Use these three views from now on. The gradient is forgotten."""
        self._value, self._operand, self._grad = value, operand, grad
        self.fresh = True

    def resize(self, value: Array) -> None:
        """Take these values, which may be of another shape. Then the root must be allocated again."""
        self.shape = tuple(value.shape)
        self.bind(value, value, None)

    def settle_grad(self) -> None:
        """Set the gradient to 0 if none was written since ``zero_grad``, which does not do so itself."""
        if self.fresh:
            self._grad[...] = 0
            self.fresh = False

    def add_grad(self, gradient: Array) -> None:
        """Add to ``grad``. The first call after ``zero_grad`` stores instead, which saves clearing it.

        Raises ValueError if the shape is not the parameter's: broadcasting would hide a wrong gradient.
        """
        if gradient.shape != self.shape:
            raise ValueError(f"gradient of {self.name!r} has shape {gradient.shape}, expected {self.shape}")
        if self.fresh:
            self._grad[...] = gradient
            self.fresh = False
            if self.listener is not None:
                self.listener.stored(self)
        elif self.listener is not None:
            self.listener.added(self, gradient)
        else:
            self._grad += gradient

    def __repr__(self) -> str:
        return f"Parameter({self.name!r}, shape={self.shape})"


class Packed:
    """Parameters that are adjacent in the buffer, so that one view spans them all.

    For query, key and value weights of shape (H, H), ``value`` is the fused projection (3H, H), and
    ``operand`` is what products read of it.
    """

    def __init__(self, parameters: Sequence[Parameter]):
        self.parameters = tuple(parameters)
        self.shape = (sum(p.shape[0] for p in parameters), *parameters[0].shape[1:])
        self._value: Array = None
        self._operand: Array = None

    @property
    def value(self) -> Array:
        """The values of all of them."""
        if self._value is None:
            _allocate_alone(self)
        return self._value

    @property
    def operand(self) -> Array:
        """What products read."""
        if self._operand is None:
            _allocate_alone(self)
        return self._operand

    def bind(self, value: Array, operand: Array) -> None:
        """Use these two views from now on."""
        self._value, self._operand = value, operand

    def __getstate__(self) -> dict[str, Any]:
        """A copy has no views: they would not show the copies of the parameters."""
        return vars(self) | {"_value": None, "_operand": None}

    def add_grad(self, gradient: Array) -> None:
        """Add each parameter's share of ``gradient`` to its ``grad``.

        Raises ValueError if ``gradient`` does not have the packed shape.
        """
        if gradient.shape != self.shape:
            raise ValueError(f"packed gradient has shape {gradient.shape}, expected {self.shape}")
        start = 0
        for parameter in self.parameters:
            stop = start + parameter.shape[0]
            parameter.add_grad(gradient[start:stop])
            start = stop


Piece = Parameter | Packed

ALONE_STREAM = 0xA10E  # distinguishes this use of a seed from all others


_seeds = itertools.count()  # for parameters without a model: two of the same shape should differ


def _allocate_alone(piece: "Piece") -> None:
    """Allocate and initialise a parameter, or a pack, that no model has allocated."""
    new = [parameter for parameter in members(piece) if not parameter.has_memory]
    ParameterBuffers([piece], resolve_device("cpu"), "float32")
    for parameter in new:
        rng = np.random.default_rng([ALONE_STREAM, next(_seeds)])
        parameter.value[...] = first_values(parameter.init, parameter.shape, rng, STD)


def members(piece: Piece) -> tuple[Parameter, ...]:
    """The parameters of a piece of the buffer: those packed in it, or itself."""
    return piece.parameters if isinstance(piece, Packed) else (piece,)


@dataclass(frozen=True)
class Segment:
    """A contiguous part of the flat buffer that the optimiser treats alike.

    ``matrix`` is the parameter in it, if that is to be updated alone.
    """

    start: int
    stop: int
    decay: bool
    lr_scale: float
    frozen: bool
    matrix: Parameter | None = None


class ParameterBuffers:
    """All values of a model in one 1-D array, all gradients in another, and what is where.

    If products read 16-bit weights, ``operand`` is a third array with the values rounded to 16 bits. If not,
    it is ``value`` itself. Alignment leaves gaps between pieces, which are zero in all arrays and stay zero.
    """

    def __init__(self, pieces: Sequence[Piece], device: Device, dtype: str, operand_dtype: str | None = None):
        xp = device.xp
        self._made_of = pieces, device, dtype, operand_dtype
        self.parameters = [parameter for piece in pieces for parameter in members(piece)]
        self.ends: list[int] = []  # where each parameter's share of the buffer ends, its gap included
        starts = []
        offset = 0
        for piece in pieces:
            starts.append(offset)
            for parameter in members(piece):
                offset += parameter.size
                self.ends.append(offset)
            offset = -(-offset // ALIGNMENT) * ALIGNMENT
            self.ends[-1] = offset
        self.value = xp.zeros(offset, dtype=dtype)
        self._grad = xp.zeros(offset, dtype=dtype)
        self.has_copy = operand_dtype not in (None, dtype)
        self.operand = xp.zeros(offset, dtype=operand_dtype) if self.has_copy else self.value
        for piece, start in zip(pieces, starts, strict=True):
            self._bind(piece, start, device)
        self.round_operand()

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy is made anew from copies of the pieces, which then are views of it."""
        return ParameterBuffers, self._made_of

    def _bind(self, piece: Piece, start: int, device: Device) -> None:
        """Make the piece a view of the buffers, keeping the values and the gradient that it already has."""
        offset = start
        for parameter in members(piece):
            flat = slice(offset, offset + parameter.size)
            value, operand, grad = (
                buffer[flat].reshape(parameter.shape) for buffer in (self.value, self.operand, self._grad)
            )
            if parameter.has_memory:
                value[...] = device.asarray(to_numpy(parameter.value))  # it may come from another device
            kept = None if parameter.fresh else to_numpy(parameter.grad)
            parameter.bind(value, operand if self.has_copy else value, grad)
            if kept is not None:
                parameter.grad = device.asarray(kept)
            offset = flat.stop
        if isinstance(piece, Packed):
            value, operand = (
                buffer[start:offset].reshape(piece.shape) for buffer in (self.value, self.operand)
            )
            piece.bind(value, operand if self.has_copy else value)

    @property
    def grad(self) -> Array:
        """All gradients, 0 for parameters to which no backward has written since ``zero_grad``."""
        for parameter in self.parameters:
            parameter.settle_grad()
        return self._grad

    def round_operand(self) -> None:
        """Update the 16-bit copy, if there is one, after the values have been changed.

        The optimiser's update does this itself.
        """
        if self.has_copy:
            self.operand[...] = self.value.astype(self.operand.dtype)

    @property
    def segments(self) -> list[Segment]:
        """The buffer as the fewest segments with equal decay, learning-rate scale and frozen flag.

        A parameter that is to be updated alone is a segment of its own.
        """
        segments: list[Segment] = []
        start = 0
        for parameter, stop in zip(self.parameters, self.ends, strict=True):
            own = parameter if parameter.alone else None
            row = (parameter.decay, parameter.lr_scale, parameter.frozen, own)
            last = segments[-1] if segments else None
            if last and row == (last.decay, last.lr_scale, last.frozen, last.matrix):
                segments[-1] = Segment(last.start, stop, *row)
            else:
                segments.append(Segment(start, stop, *row))
            start = stop
        return segments

    def __iter__(self) -> Iterator[Parameter]:
        return iter(self.parameters)
