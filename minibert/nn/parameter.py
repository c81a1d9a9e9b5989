"""Parameters: named views into one flat buffer of values and one of gradients."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from minibert.arrays import Array, Device, to_numpy

ALIGNMENT = 64  # every piece of the buffer begins at a multiple of this many elements


class Parameter:
    """An array that is learned, with its gradient: two views of one shape, once its model has allocated them.

    ``operand`` is what products read: ``value``, or its copy in 16 bits where the model computes in these.
    ``init`` says how it starts ("normal", "sinusoidal", "zeros", "ones"), ``decay`` whether weight decay
    applies, ``lr_scale`` and ``frozen`` how and whether the optimiser moves it.
    """

    def __init__(self, shape: tuple[int, ...], init: str = "normal", decay: bool = True):
        self.name = ""
        self.shape = tuple(shape)
        self.init = init
        self.decay = decay
        self.lr_scale = 1.0
        self.frozen = False
        self.value: Array = None
        self.operand: Array = None
        self.grad: Array = None
        self.fresh = True  # no gradient has been written since zero_grad

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    def add_grad(self, gradient: Array) -> None:
        """Add to ``grad``. The first time after ``zero_grad`` stores instead, which saves clearing it.

        Raises ValueError if the shape is not the parameter's: broadcasting would hide a wrong gradient.
        """
        if gradient.shape != self.shape:
            raise ValueError(f"gradient of {self.name!r} has shape {gradient.shape}, expected {self.shape}")
        if self.fresh:
            self.grad[...] = gradient
            self.fresh = False
        else:
            self.grad += gradient

    def __repr__(self) -> str:
        return f"Parameter({self.name!r}, shape={self.shape})"


class Packed:
    """Parameters that lie next to each other in the buffer, so that one view spans them all.

    With query, key and value weights (H, H) each, ``value`` is the fused projection (3H, H), and
    ``operand`` what products read of it.
    """

    def __init__(self, parameters: Sequence[Parameter]):
        self.parameters = tuple(parameters)
        self.shape = (sum(p.shape[0] for p in parameters), *parameters[0].shape[1:])
        self.value: Array = None
        self.operand: Array = None

    def add_grad(self, gradient: Array) -> None:
        """Add each parameter's share of ``gradient`` (of the packed shape) to it."""
        if gradient.shape != self.shape:
            raise ValueError(f"packed gradient has shape {gradient.shape}, expected {self.shape}")
        start = 0
        for parameter in self.parameters:
            stop = start + parameter.shape[0]
            parameter.add_grad(gradient[start:stop])
            start = stop


Piece = Parameter | Packed


def members(piece: Piece) -> tuple[Parameter, ...]:
    """The parameters of a piece of the buffer: those packed in it, or itself."""
    return piece.parameters if isinstance(piece, Packed) else (piece,)


@dataclass(frozen=True)
class Segment:
    """A run of the flat buffer that the optimiser treats alike."""

    start: int
    stop: int
    decay: bool
    lr_scale: float
    frozen: bool


class ParameterBuffers:
    """All values of a model in one 1-D array, all gradients in another, and what lies where.

    ``operand`` is a third, the values rounded to 16 bits, where products read these; else ``value`` itself.
    The gaps that alignment leaves between pieces are zero in all, and stay zero.
    """

    def __init__(self, pieces: Sequence[Piece], device: Device, dtype: str, operand_dtype: str | None = None):
        xp = device.xp
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
        self.grad = xp.zeros(offset, dtype=dtype)
        self.has_copy = operand_dtype not in (None, dtype)
        self.operand = xp.zeros(offset, dtype=operand_dtype) if self.has_copy else self.value
        for piece, start in zip(pieces, starts, strict=True):
            self._bind(piece, start, device)
        self.round_operand()

    def _bind(self, piece: Piece, start: int, device: Device) -> None:
        """Make the piece a view of the buffers, keeping the values that it already has."""
        offset = start
        for parameter in members(piece):
            flat = slice(offset, offset + parameter.size)
            value = self.value[flat].reshape(parameter.shape)
            if parameter.value is not None:
                value[...] = device.asarray(to_numpy(parameter.value))  # it may come from another device
            parameter.value, parameter.grad = value, self.grad[flat].reshape(parameter.shape)
            parameter.operand = self.operand[flat].reshape(parameter.shape) if self.has_copy else value
            parameter.fresh = True
            offset = flat.stop
        if isinstance(piece, Packed):
            piece.value = self.value[start:offset].reshape(piece.shape)
            piece.operand = self.operand[start:offset].reshape(piece.shape) if self.has_copy else piece.value

    def round_operand(self) -> None:
        """Make the 16-bit copy, if there is one, that of the values: after these were written to.

        The optimiser's update does so by itself.
        """
        if self.has_copy:
            self.operand[...] = self.value.astype(self.operand.dtype)

    @property
    def segments(self) -> list[Segment]:
        """The buffer as the fewest runs of equal decay, learning-rate scale and frozen flag."""
        segments: list[Segment] = []
        start = 0
        for parameter, stop in zip(self.parameters, self.ends, strict=True):
            row = (parameter.decay, parameter.lr_scale, parameter.frozen)
            if segments and row == (segments[-1].decay, segments[-1].lr_scale, segments[-1].frozen):
                segments[-1] = Segment(segments[-1].start, stop, *row)
            else:
                segments.append(Segment(start, stop, *row))
            start = stop
        return segments

    def zero_grad(self) -> None:
        """Forget the gradients: the next one written to each parameter replaces what is there."""
        for parameter in self.parameters:
            parameter.fresh = True

    def settle_grad(self) -> None:
        """Give a zero gradient to the parameters that no backward has written to since ``zero_grad``."""
        for parameter in self.parameters:
            if parameter.fresh:
                parameter.grad[...] = 0

    def __iter__(self) -> Iterator[Parameter]:
        return iter(self.parameters)
