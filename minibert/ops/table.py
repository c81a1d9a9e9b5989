"""The table of operations that can have faster implementations, and the caches that know their maker.

The table starts without any faster implementations; ``kernels`` fills them in. When the forward is called,
the library and the dtype of its first argument select a kernel. The reference computes if there is none, or
if it does not accept the arguments. The cache remembers two things: the operation, so that no other
operation's backward takes it, and the implementation, so that the backward is that of the same one.

For 16-bit arrays the reference computes in float32, and its results are rounded (``in_float32``). The
references themselves need not know about 16 bits.
"""

import functools
import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ParamSpec, Protocol, TypeVar

from minibert.arrays import Array, get_array_module
from minibert.ops.cache import Cache
from minibert.precision import HALF

P = ParamSpec("P")  # the parameters of an operation
R = TypeVar("R")  # what it returns
G = TypeVar("G", covariant=True)  # the gradients that its backward returns


def _anything(*arguments: Any, **keywords: Any) -> bool:
    """Accept all arguments."""
    return True


@dataclass(frozen=True)
class Implementation:
    """One way to compute an operation. The backward is None where there is nothing to differentiate.

    ``accepts`` is called with the forward's arguments and says whether the implementation handles them.
    """

    forward: Callable
    backward: Callable | None = None
    accepts: Callable[..., bool] = _anything


@dataclass
class Entry:
    """An operation: its reference, and its kernels by (library, dtype), e.g. ("numpy", "float32").

    The backward returns the derivatives of activations first; ``activations`` is how many there are.
    """

    reference: Implementation
    activations: int = 0
    kernels: dict[tuple[str, str], Implementation] = field(default_factory=dict)

    def without_kernel(self, dtype: str) -> Implementation:
        """The implementation to use without a kernel, for a first argument of this dtype.

        An operation without a backward is given its arrays as they are, also in 16 bits.
        """
        if dtype in HALF and self.reference.backward is not None:
            return in_float32(self.reference, self.activations, dtype)
        return self.reference


TABLE: dict[str, Entry] = {}

_references = 0  # blocks of reference_only that have not ended; kernels are on if there are none
_references_lock = threading.Lock()
_kernels_required = False


def register(
    name: str,
    library: str,
    dtype: str,
    forward: Callable,
    backward: Callable | None = None,
    accepts: Callable[..., bool] = _anything,
) -> None:
    """Register functions that compute the operation ``name`` for arrays of this library and dtype.

    ``accepts`` is called with the forward's arguments. It says whether the functions handle their shapes,
    their broadcasting and the dtypes of the other arguments. If it says no, the reference computes.
    """
    TABLE[name].kernels[library, dtype] = Implementation(forward, backward, accepts)


@contextmanager
def reference_only() -> Iterator[None]:
    """Within this block every operation uses its reference, as the notebooks and the proofs need.

    This holds for all threads. Blocks may overlap: kernels are used again when the last one ends.
    """
    global _references
    with _references_lock:
        _references += 1
    try:
        yield
    finally:
        with _references_lock:
            _references -= 1


def require_kernels(on: bool) -> None:
    """Set whether a registered kernel that cannot be used is an error (UserError), not only a warning."""
    global _kernels_required
    _kernels_required = on


def kernels_required() -> bool:
    """The last setting of ``require_kernels``; False at first."""
    return _kernels_required


def has_kernel(name: str, x: Array) -> bool:
    """Whether a kernel for this operation is registered, and on, for arrays of x's library and dtype."""
    return not _references and (get_array_module(x).__name__, x.dtype.name) in TABLE[name].kernels


def _choose(name: str, first: str, arguments: tuple, keywords: dict[str, Any]) -> Implementation:
    """The implementation to use for these arguments; ``first`` is the name of the first parameter."""
    if not arguments and first not in keywords:
        raise TypeError(f"{name}() is missing its argument {first!r}")
    x: Array = arguments[0] if arguments else keywords[first]
    entry, library = TABLE[name], get_array_module(x).__name__
    if not _references and entry.kernels:
        kernel = entry.kernels.get((library, x.dtype.name))
        if kernel is not None and kernel.accepts(*arguments, **keywords):
            return kernel
    return entry.without_kernel(x.dtype.name)


def in_float32(reference: Implementation, activations: int, dtype: str) -> Implementation:
    """The same pair of functions for 16-bit arrays: they compute in float32 and round to ``dtype``.

    The output and the derivatives of activations are rounded. A loss and the derivatives of parameters are
    not.
    """

    def forward(*arguments, **keywords):
        keywords = {name: _widen(argument) for name, argument in keywords.items()}
        y, cache = reference.forward(*(_widen(argument) for argument in arguments), **keywords)
        return (y if y.ndim == 0 else y.astype(dtype)), cache

    def backward(dout, cache):
        assert reference.backward is not None  # see Entry.without_kernel
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


# -- What ``ops`` exports ---------------------------------------------------------------------------


class Backward(Protocol[G]):
    """A backward as ``ops`` exports it: it takes the cache of its own forward, and no other."""

    def __call__(self, dout: Array | float, cache: Cache) -> G:
        """The gradients. Raises ValueError for another operation's cache, TypeError for anything else."""


def replaceable_pair(
    forward: Callable[P, tuple[Array, Any]], backward: Callable[[Any, Any], G], activations: int = 1
) -> tuple[Callable[P, tuple[Array, Cache]], Backward[G]]:
    """The same pair of functions with a cache that knows its maker; a registered kernel can take over.

    The backward returns the derivatives of activations first; ``activations`` is how many there are.
    """
    name, first = forward.__name__, next(iter(inspect.signature(forward).parameters))
    TABLE[name] = Entry(Implementation(forward, backward), activations)

    @functools.wraps(forward)
    def choose_forward(*arguments: P.args, **keywords: P.kwargs) -> tuple[Array, Cache]:
        implementation = _choose(name, first, arguments, keywords)
        y, cache = implementation.forward(*arguments, **keywords)
        return y, Cache(name, implementation.backward, cache)

    return choose_forward, _by_the_maker(name, backward)


def pair(
    forward: Callable[P, tuple[Array, Any]], backward: Callable[[Any, Any], G]
) -> tuple[Callable[P, tuple[Array, Cache]], Backward[G]]:
    """The same pair of functions with a cache that knows its maker; no kernel can take over."""
    name = forward.__name__

    @functools.wraps(forward)
    def call_forward(*arguments: P.args, **keywords: P.kwargs) -> tuple[Array, Cache]:
        y, cache = forward(*arguments, **keywords)
        return y, Cache(name, backward, cache)

    return call_forward, _by_the_maker(name, backward)


def _by_the_maker(name: str, backward: Callable[[Any, Any], G]) -> Backward[G]:
    @functools.wraps(backward)
    def choose_backward(dout: Array | float, cache: Cache) -> G:
        if not isinstance(cache, Cache):
            kind = type(cache).__name__
            raise TypeError(f"{backward.__name__} needs the cache that {name} has returned, got a {kind}")
        implementation, inner = cache.parts(name)
        return implementation(dout, inner)

    return choose_backward


def replaceable(function: Callable[P, R]) -> Callable[P, R]:
    """The same function, but a registered kernel takes over if there is one."""
    name, first = function.__name__, next(iter(inspect.signature(function).parameters))
    TABLE[name] = Entry(Implementation(function))

    @functools.wraps(function)
    def choose(*arguments: P.args, **keywords: P.kwargs) -> R:
        return _choose(name, first, arguments, keywords).forward(*arguments, **keywords)

    return choose
