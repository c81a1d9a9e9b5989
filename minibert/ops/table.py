"""Which operations can be replaced by a faster implementation, and by which.

The table starts empty: ``kernels`` fills it. An implementation is chosen when the forward is called,
by the library and the dtype of the first argument. The cache it returns remembers it, so that the
backward goes to the implementation that made the cache.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from minibert.arrays import Array, get_array_module


@dataclass(frozen=True)
class Implementation:
    """One way to compute an operation. The backward is None where there is nothing to differentiate."""

    forward: Callable
    backward: Callable | None = None


@dataclass
class Entry:
    """An operation: its reference, and its kernels by (library, dtype), e.g. ("numpy", "float32")."""

    reference: Implementation
    kernels: dict[tuple[str, str], Implementation] = field(default_factory=dict)


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
    if not (_kernels_on and entry.kernels):
        return entry.reference
    return entry.kernels.get((get_array_module(x).__name__, x.dtype.name), entry.reference)


def replaceable_pair(forward: Callable, backward: Callable) -> tuple[Callable, Callable]:
    """The same pair of functions, but a registered kernel takes over where there is one."""
    name = forward.__name__
    TABLE[name] = Entry(Implementation(forward, backward))

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
