"""Module: a tree of parameters, which are named after the attributes that hold them."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from minibert.devices import Device, resolve_device
from minibert.dropout_bits import dropout_stream
from minibert.nn.context import Context
from minibert.nn.initialise import STD, STREAM, first_values
from minibert.nn.parameter import Packed, Parameter, ParameterBuffers, Piece
from minibert.precision import Precision, check_precision, choose_precision


@dataclass(frozen=True)
class Placement:
    """Where the parameters of a tree of modules are stored, and the precision that it computes in."""

    device: Device
    precision: Precision
    buffers: ParameterBuffers


class Module:
    """A part of a model, made of parameters and other modules. Subclasses define two methods:

        y, cache = module.forward(x, …, context)          dx = module.backward(dout, cache)

    Nothing of a pass is kept on ``self``: what the backward needs is in the cache (``ops.Cache``), and what
    the forward needs besides its input is in the ``context``. So a module can be used twice before its
    backwards run. ``backward`` adds to the parameters' ``grad`` and returns the derivative of the input. A
    module made of others uses up its cache, so that the memory of each part is freed as soon as it has been
    used. The cache of a layer that is one operation, such as ``Linear``, is that operation's.

    The root of a tree has one flat buffer for all parameters, which ``allocate`` makes. A module that is used
    without calling it is allocated by itself, in float32 on the CPU.
    """

    is_block = False  # a block's parameters lie together in the buffer, matrices first
    training = True

    def __init__(self) -> None:
        self._placement: Placement | None = None
        self.seed_dropout(0)

    # -- The tree -------------------------------------------------------------------------------

    def parts(self) -> Iterator[tuple[str, Any]]:
        """What the attributes hold, by name. Parts of a list or tuple are numbered, those of a dict named."""
        for name, attribute in vars(self).items():
            if isinstance(attribute, dict):
                yield from ((f"{name}.{key}", part) for key, part in attribute.items())
            elif isinstance(attribute, list | tuple):
                yield from ((f"{name}.{i}", part) for i, part in enumerate(attribute))
            else:
                yield name, attribute

    def children(self) -> Iterator[tuple[str, "Module"]]:
        """The modules directly inside this one, by name."""
        return ((name, part) for name, part in self.parts() if isinstance(part, Module))

    def modules(self) -> Iterator["Module"]:
        """This module and all inside it."""
        yield self
        for _, child in self.children():
            yield from child.modules()

    def named_parameters(self) -> Iterator[tuple[str, Parameter]]:
        """Every parameter once, with its dotted name; a tied one with the first of its names."""
        seen = set()
        for name, parameter in self._all_parameters(""):
            if id(parameter) not in seen:
                seen.add(id(parameter))
                yield name, parameter

    def _all_parameters(self, prefix: str) -> Iterator[tuple[str, Parameter]]:
        for name, part in self.parts():
            if isinstance(part, Parameter):
                yield prefix + name, part
        for name, child in self.children():
            yield from child._all_parameters(f"{prefix}{name}.")

    @property
    def frozen(self) -> bool:
        """Whether nothing in this module learns: the optimiser updates none of its parameters."""
        return all(parameter.frozen for _, parameter in self.named_parameters())

    # -- Storage --------------------------------------------------------------------------------

    def allocate(
        self,
        device: str | Device = "cpu",
        dtype: str = "float32",
        precision: str | None = None,
        *,
        first_values: bool = True,
    ) -> None:
        """Give all parameters their place in one new flat buffer. Only the root of a tree does this.

        ``dtype`` is the dtype of the parameters: float32 or float64, or complex128 for the complex step of
        ``gradcheck``. ``precision`` is one of ``PRECISIONS``, if the module is to compute in another.
        Parameters that already have values keep them, so a head can be added to a trained encoder. The others
        are initialised, unless ``first_values`` is False.

        Raises UserError if the device cannot be used or lacks the precision.
        """
        device = resolve_device(device)
        chosen = choose_precision(dtype, precision)
        check_precision(chosen, device)
        new = []
        for name, parameter in self.named_parameters():
            parameter.name = name
            if not parameter.has_memory:
                new.append(name)
        buffers = ParameterBuffers(_unique(self._pieces()), device, chosen.dtype, chosen.operand)
        for module in self.modules():
            module._placement = Placement(device, chosen, buffers)
        if first_values:
            self.initialise(only=new)

    def initialise(
        self,
        seed: int = 0,
        std: float = STD,
        truncated: bool = True,
        only: Collection[str] | None = None,
    ) -> None:
        """Set every parameter, or ``only`` those named, to its initial value (see ``nn.initialise``).

        Values are drawn in the order of ``named_parameters``, so they do not depend on the buffer's layout.
        """
        rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence([STREAM, seed])))
        for name, parameter in self.named_parameters():
            if only is None or name in only:
                start = first_values(parameter.init, parameter.shape, rng, std, truncated)
                parameter.value[...] = self.device.asarray(start, dtype=self.dtype)
        self.buffers.round_operand()

    @property
    def placement(self) -> Placement:
        """Where the parameters are stored; they are allocated now if they have not been yet."""
        if self._placement is None:
            self.allocate()
            return self.placement
        return self._placement

    @property
    def device(self) -> Device:
        """The device that this module computes on."""
        return self.placement.device

    @property
    def precision(self) -> Precision:
        """The precision that it computes in."""
        return self.placement.precision

    @property
    def dtype(self) -> str:
        """The dtype of its parameters."""
        return self.placement.precision.dtype

    @property
    def buffers(self) -> ParameterBuffers:
        """The flat buffers of the whole tree."""
        return self.placement.buffers

    def _pieces(self) -> list[Piece]:
        """The parameters in the order of the buffer: block by block, and within a block by kind."""
        own = [part for _, part in self.parts()]
        packed = [part for part in own if isinstance(part, Packed)]
        pieces = packed + [part for part in own if isinstance(part, Parameter)]
        for _, child in self.children():
            pieces += child._pieces()
        return sorted(pieces, key=_kind) if self.is_block else pieces

    # -- Modes ----------------------------------------------------------------------------------

    def zero_grad(self) -> None:
        """Forget the gradients of all parameters. They read as 0 until a backward writes to them."""
        for _, parameter in self.named_parameters():
            parameter.fresh = True

    def train(self) -> None:
        """From now on, forward passes that are given no context use dropout."""
        for module in self.modules():
            module.training = True

    def eval(self) -> None:
        """From now on, forward passes that are given no context use no dropout."""
        for module in self.modules():
            module.training = False

    def new_context(self) -> Context:
        """The context for a forward pass that was given none; in training it has new random bits.

        Only the module that is called first should make one, and pass it on. Otherwise the modules inside it
        each make their own, all with the same bits.
        """
        if not self.training:
            return Context()
        stream = dropout_stream(self._dropout_seed, self._passes)
        self._passes += 1
        return Context(training=True, stream=self.device.asarray(stream))

    def seed_dropout(self, seed: int) -> None:
        """Restart the random bits of forward passes without a context: the same seed gives the same bits."""
        self._dropout_seed, self._passes = seed, 0

    # -- Display --------------------------------------------------------------------------------

    def __repr__(self) -> str:
        return "\n".join(_tree_lines("", self))


def nothing_more(batch: Collection[str]) -> None:
    """Raise TypeError, naming what there is of a ``batch`` besides a prepared one, which is complete."""
    if batch:
        raise TypeError(f"a prepared batch is complete; it cannot be given {', '.join(batch)} as well")


def _tree_lines(name: str, module: Module, depth: int = 0) -> Iterator[str]:
    """One line per module: how many parameters it has in all, and the shapes of its own.

    Consecutive modules of a list that look alike are shown once.
    """
    count = sum(parameter.size for _, parameter in module.named_parameters())
    shapes = (f"{n} {p.shape}" for n, p in module.parts() if isinstance(p, Parameter))
    title = "  " * depth + (f"{name}: " if name else "") + type(module).__name__
    yield f"{title:<52} {count:>13,}  {', '.join(shapes)}".rstrip()
    children = list(module.children())
    while children:
        name, child = children.pop(0)
        lines = list(_tree_lines("", child))
        last = name
        while children and _is_next(last, children[0][0]) and list(_tree_lines("", children[0][1])) == lines:
            last, _ = children.pop(0)
        told = name if last == name else f"{name} … {last.rpartition('.')[2]}, each"
        yield from _tree_lines(told, child, depth + 1)


def _is_next(name: str, following: str) -> bool:
    """Whether two names of children are neighbours in one list, like layer.3 and layer.4."""
    return "." in name and name.rpartition(".")[0] == following.rpartition(".")[0]


def _kind(piece: Piece) -> int:
    """A sort key: packed matrices, other matrices, packed vectors, the rest. Those that decay come first."""
    is_vector = len(piece.shape) == 1
    return 2 * is_vector + (not isinstance(piece, Packed))


def _unique(pieces: list[Piece]) -> list[Piece]:
    """Each pack once, and each parameter once: in its pack if it has one, else where it first occurs."""
    seen: set[int] = set()
    for piece in pieces:
        if isinstance(piece, Packed):
            seen.update(id(parameter) for parameter in piece.parameters)
    unique: list[Piece] = []
    for piece in pieces:
        if id(piece) not in seen:
            seen.add(id(piece))
            unique.append(piece)
    return unique
