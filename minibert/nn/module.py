"""Module: a tree of parameters, with names that follow from the attributes."""

from collections.abc import Iterator

from minibert import ops
from minibert.arrays import (
    Array,
    Device,
    allow_tf32,
    check_precision,
    choose_precision,
    dropout_key,
    resolve_device,
)
from minibert.nn.parameter import Packed, Parameter, ParameterBuffers, Piece


class Module:
    """Something with parameters, made of modules. It has two methods of its own:

        y, cache = module.forward(x, …)          dx = module.backward(dout, cache)

    The cache is returned and never kept on ``self``, so a module can be used twice before its
    backwards run. ``backward`` adds to the parameters' ``grad`` and returns the derivative of the
    input. A cache made of several others is a list, and the backward pops them off its end, so that
    the memory of each is free as soon as it has been used.
    """

    is_block = False  # a block's parameters lie together in the buffer, matrices first
    training = True

    def __init__(self) -> None:
        self.buffers: ParameterBuffers | None = None

    # -- The tree -------------------------------------------------------------------------------

    def children(self) -> Iterator[tuple[str, "Module"]]:
        """The modules directly inside this one, by name; those in a list are numbered."""
        for name, attribute in vars(self).items():
            if isinstance(attribute, Module):
                yield name, attribute
            elif isinstance(attribute, list):
                yield from ((f"{name}.{i}", child) for i, child in enumerate(attribute))

    def modules(self) -> Iterator["Module"]:
        """This module and all inside it."""
        yield self
        for _, child in self.children():
            yield from child.modules()

    def named_parameters(self) -> Iterator[tuple[str, Parameter]]:
        """Every parameter once, by its dotted name; a tied one by the first of its names."""
        seen = set()
        for name, parameter in self._all_parameters(""):
            if id(parameter) not in seen:
                seen.add(id(parameter))
                yield name, parameter

    def _all_parameters(self, prefix: str) -> Iterator[tuple[str, Parameter]]:
        for name, attribute in vars(self).items():
            if isinstance(attribute, Parameter):
                yield prefix + name, attribute
        for name, child in self.children():
            yield from child._all_parameters(f"{prefix}{name}.")

    # -- Storage --------------------------------------------------------------------------------

    def allocate(
        self, device: str | Device = "cpu", dtype: str = "float32", precision: str | None = None
    ) -> None:
        """Give all parameters their place in one new flat buffer. Only the root of a tree does this.

        ``dtype`` is that of the parameters, float32 or float64, and ``precision`` one of ``PRECISIONS``, if
        it is to be another. Values that the parameters already have are kept, so a head can be added to a
        trained encoder. Every dropout gets its own site in the stream of seed 0, step 0.

        Whether products on a GPU use TF32 is a matter of the process: the model allocated last decides.
        """
        self.device = resolve_device(device)
        self.precision = choose_precision(dtype, precision)
        check_precision(self.precision, self.device)
        self.dtype = self.precision.dtype
        if self.device.name.startswith("cuda"):
            allow_tf32(self.precision.name == "tf32")
        for name, parameter in self.named_parameters():
            parameter.name = name
        self.buffers = ParameterBuffers(
            _unique(self._pieces()), self.device, self.dtype, self.precision.operand
        )
        self.set_dropout_stream(seed=0, step=0)

    def _pieces(self) -> list[Piece]:
        """The parameters in the order of the buffer: block by block, and within a block by kind."""
        own = list(vars(self).values())
        packed = [attribute for attribute in own if isinstance(attribute, Packed)]
        pieces = packed + [attribute for attribute in own if isinstance(attribute, Parameter)]
        for _, child in self.children():
            pieces += child._pieces()
        return sorted(pieces, key=_kind) if self.is_block else pieces

    # -- Modes ----------------------------------------------------------------------------------

    def zero_grad(self) -> None:
        """Forget all gradients."""
        self.buffers.zero_grad()

    def train(self) -> None:
        """From now on dropout is on."""
        for module in self.modules():
            module.training = True

    def eval(self) -> None:
        """From now on dropout is off."""
        for module in self.modules():
            module.training = False

    def set_dropout_stream(self, seed: int, step: int, micro_batch: int = 0, replica: int = 0) -> None:
        """Choose the random bits of every dropout: those of this step of this training run.

        Until it is called again, every forward drops the same elements.
        """
        for site, module in enumerate(self._dropouts()):
            module.set_key(dropout_key(seed, step, micro_batch, replica, site))

    def set_dropout_keys(self, stream: Array) -> None:
        """The same, from the numbers that ``arrays.dropout_stream`` has put together, on the device.

        The keys are made there too, so that nothing of them passes through the host.
        """
        dropouts = self._dropouts()
        keys = ops.dropout_keys(stream, len(dropouts))  # (sites, 2)
        for site, module in enumerate(dropouts):
            module.set_key(keys[site])

    def _dropouts(self) -> list["Module"]:
        """Where dropout is applied; the place in this list is the site."""
        return [module for module in self.modules() if hasattr(module, "set_key")]


def _kind(piece: Piece) -> int:
    """Packed matrices, other matrices, packed vectors, the rest: what is decayed comes before what is not."""
    is_vector = len(piece.shape) == 1
    return 2 * is_vector + (not isinstance(piece, Packed))


def _unique(pieces: list[Piece]) -> list[Piece]:
    """Each parameter once: where it is packed if it is, else where it was first met."""
    seen: set[int] = set()
    for piece in pieces:
        if isinstance(piece, Packed):
            seen.update(id(parameter) for parameter in piece.parameters)
    unique = []
    for piece in pieces:
        if isinstance(piece, Packed):
            unique.append(piece)
        elif id(piece) not in seen:
            seen.add(id(piece))
            unique.append(piece)
    return unique
