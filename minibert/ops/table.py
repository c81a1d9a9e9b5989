"""Which operations can be replaced by a faster implementation, and by which.

The table starts empty: ``kernels`` fills it. An implementation is chosen when the forward is called,
by the library and the dtype of the first argument. The cache it returns remembers it, so that the
backward goes to the implementation that made the cache.

In 16 bits the reference computes in float32, and its results are rounded: the references themselves need
not know that there is such a thing (``in_float32``).
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from minibert.arrays import HALF, Array, get_array_module


@dataclass(frozen=True)
class Implementation:
    """One way to compute an operation. The backward is None where there is nothing to differentiate."""

    forward: Callable
    backward: Callable | None = None


@dataclass
class Entry:
    """An operation: its reference, and its kernels by (library, dtype), e.g. ("numpy", "float32").

    Of the derivatives that the backward returns, so many are of activations, and come first.
    """

    reference: Implementation
    activations: int = 0
    kernels: dict[tuple[str, str], Implementation] = field(default_factory=dict)

    def without_kernel(self, dtype: str) -> Implementation:
        """What computes where no kernel does, for a first argument of this dtype."""
        return in_float32(self.reference, self.activations) if dtype in HALF else self.reference


TABLE: dict[str, Entry] = {}

_kernels_on = True
_kernels_required = False


def register(
    name: str, library: str, dtype: str, forward: Callable, backward: Callable | None = None
) -> None:
    """Let the operation ``name`` be computed by these functions for arrays of this library and dtype."""
    TABLE[name].kernels[library, dtype] = Implementation(forward, backward)


@contextmanager
def reference_only() -> Iterator[None]:
    """Within this block every operation is its reference, as the notebooks and the proofs want it."""
    global _kernels_on
    before, _kernels_on = _kernels_on, False
    try:
        yield
    finally:
        _kernels_on = before


def require_kernels(on: bool) -> None:
    """Whether it is an error (UserError), and not only a warning, if a registered kernel cannot be used."""
    global _kernels_required
    _kernels_required = on


def kernels_required() -> bool:
    """What ``require_kernels`` was told last; no at first."""
    return _kernels_required


def _choose(name: str, x: Array) -> Implementation:
    entry = TABLE[name]
    if _kernels_on and entry.kernels:
        kernel = entry.kernels.get((get_array_module(x).__name__, x.dtype.name))
        if kernel is not None:
            return kernel
    return entry.without_kernel(x.dtype.name)


def in_float32(reference: Implementation, activations: int) -> Implementation:
    """A pair of functions for arrays in 16 bits: computed in float32, each result then rounded.

    Rounded are the output and the derivatives of activations, not a loss and the derivatives of parameters.
    """

    def forward(x, *arguments, **keywords):
        keywords = {name: _widen(argument) for name, argument in keywords.items()}
        y, cache = reference.forward(*(_widen(argument) for argument in (x, *arguments)), **keywords)
        return (y if y.ndim == 0 else y.astype(x.dtype)), (cache, x.dtype)

    def backward(dout, cache):
        cache, dtype = cache
        gradients = reference.backward(_widen(dout), cache)
        if not isinstance(gradients, tuple):
            return gradients.astype(dtype) if activations else gradients
        rounded = (gradient.astype(dtype) for gradient in gradients[:activations])
        return *rounded, *gradients[activations:]

    return Implementation(forward, backward)


def _widen(argument: Any) -> Any:
    """A 16-bit array in float32; anything else as it is."""
    dtype = getattr(argument, "dtype", None)
    return argument.astype("float32") if dtype is not None and dtype.name in HALF else argument


def replaceable_pair(
    forward: Callable, backward: Callable, activations: int = 1
) -> tuple[Callable, Callable]:
    """The same pair of functions, but a registered kernel takes over where there is one.

    The first ``activations`` derivatives that the backward returns are those of activations.
    """
    name = forward.__name__
    TABLE[name] = Entry(Implementation(forward, backward), activations)

    @functools.wraps(forward)
    def choose_forward(x, *arguments, **keywords):
        implementation = _choose(name, x)
        y, cache = implementation.forward(x, *arguments, **keywords)
        return y, (implementation, cache)

    @functools.wraps(backward)
    def choose_backward(dout, cache):
        implementation, cache = cache
        return implementation.backward(dout, cache)

    return choose_forward, choose_backward


def replaceable(function: Callable) -> Callable:
    """The same function, but a registered kernel takes over where there is one."""
    name = function.__name__
    TABLE[name] = Entry(Implementation(function))

    @functools.wraps(function)
    def choose(x, *arguments, **keywords):
        return _choose(name, x).forward(x, *arguments, **keywords)

    return choose
