"""Kernels for CuPy in float32, float16 and bfloat16: what the notes at the top of each .cu file say.

A source is compiled when it is first needed, for the GPU and the dtype at hand. Where that fails, the
reference operation takes over, with one warning for each operation, or it is an error: see
``ops.require_kernels``. Arguments that the kernels do not accept go to the reference without a word.
Nothing here needs CuPy or a GPU before an array of CuPy's comes along.
"""

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from minibert.arrays import Array
from minibert.errors import UserError
from minibert.kernels import arguments
from minibert.kernels.cuda import (
    activation,
    attention,
    cross_entropy,
    dropout,
    embed,
    launch,
    optimise,
    paths,
    residual_norm,
    scatter,
)
from minibert.ops import TABLE, kernels_required, register

DTYPES = ("float32", "float16", "bfloat16")

_warned: set[str] = set()


# An operation, the module that has it and its backward, and the sources that the two need.
PAIRS = (
    ("linear", activation, ("activation", "columns")),
    ("linear_activation", activation, ("activation",)),
    ("layer_norm", residual_norm, ("residual_norm",)),
    ("dropout_residual_norm", residual_norm, ("residual_norm",)),
    ("embedding", scatter, ("scatter",)),
    ("embed", embed, ("embed", "scatter", "columns")),
    ("packed_attention", attention, ("attention",)),
    ("cross_entropy", cross_entropy, ("cross_entropy",)),
    ("masked_lm_loss", cross_entropy, ("cross_entropy", "columns")),
)


FUNCTIONS = (
    ("global_norm", optimise, ("float32",)),  # parameters are float32 always
    ("adamw_update", optimise, ("float32",)),
    ("orthogonalise", optimise, ("float32",)),
    ("add_derivative", paths, DTYPES),
    ("dropout_keys", dropout, ("uint32",)),
)


def register_all() -> None:
    """Enter these kernels in the table of ``ops``."""
    for name, module, sources in PAIRS:
        pair = _with_fallback(name, getattr(module, name), getattr(module, f"{name}_backward"), sources)
        for dtype in DTYPES:
            register(name, "cupy", dtype, *pair, accepts=_accepts(name))
    for name, module, dtypes in FUNCTIONS:
        function = _function_with_fallback(name, getattr(module, name))
        for dtype in dtypes:
            register(name, "cupy", dtype, function, accepts=_accepts(name))


def _accepts(name: str) -> Callable[..., bool]:
    """Whether the kernel of that operation is right for given arguments, none of them empty."""
    accepts = getattr(arguments, name)
    if name == "linear_activation":
        accepts = functools.partial(accepts, known=activation.KNOWN)

    def accepts_and_has_elements(*arguments: Any, **keywords: Any) -> bool:
        given = (*arguments, *keywords.values())
        return accepts(*arguments, **keywords) and all(x.size for x in given if hasattr(x, "size"))

    return accepts_and_has_elements


def _with_fallback(
    name: str, forward: Callable, backward: Callable, sources: Sequence[str]
) -> tuple[Callable, Callable]:
    """The pair, or the reference's where a source does not compile or the case is beyond the kernels."""

    @functools.wraps(forward)
    def choose_forward(x: Array, *arguments: Any, **keywords: Any) -> tuple[Array, tuple]:
        try:
            # All sources now: once the forward has made its cache, the backward has to follow it.
            launch.launcher.require(sources, x.dtype.name)
            launch.launcher.require(["columns"], "float32")  # which adds up every kernel's sums
            y, cache = forward(x, *arguments, **keywords)
            return y, (backward, cache)
        except launch.KernelError as error:
            _complain(name, error)
        reference = TABLE[name].without_kernel(x.dtype.name)
        y, cache = reference.forward(x, *arguments, **keywords)
        return y, (reference.backward, cache)

    @functools.wraps(backward)
    def choose_backward(dout: Array | float, cache: tuple) -> Array | tuple[Array, ...]:
        chosen, cache = cache
        return chosen(dout, cache)

    return choose_forward, choose_backward


def _function_with_fallback(name: str, function: Callable) -> Callable:
    """The function, or the reference's where its source does not compile."""

    @functools.wraps(function)
    def choose(*arguments: Any, **keywords: Any) -> Array | None:
        try:
            return function(*arguments, **keywords)
        except launch.KernelError as error:
            _complain(name, error)
        return TABLE[name].reference.forward(*arguments, **keywords)

    return choose


def _complain(name: str, error: launch.KernelError) -> None:
    """Say once that the operation is left to its reference, or raise UserError if that is not wanted."""
    if kernels_required():
        raise UserError(
            f"the CUDA kernel of {name} cannot be used: {error}. Run without --strict-kernels to compute "
            "it with CuPy's own functions, more slowly"
        ) from error
    if name not in _warned:
        _warned.add(name)
        warnings.warn(
            f"the CUDA kernel of {name} cannot be used; computing it with CuPy's own functions, more slowly: "
            f"{error}",
            stacklevel=4,
        )
