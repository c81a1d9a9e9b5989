"""Kernels for NumPy in float32: loops compiled by Numba between the matrix products, on all threads.

If Numba is not installed, there are none, and the reference operations compute.
"""

import functools
import importlib.util
import warnings

from minibert.kernels import arguments
from minibert.ops import register


@functools.cache
def has_numba() -> bool:
    """Whether Numba can be used. If it is there but cannot be imported, a warning says why."""
    if importlib.util.find_spec("numba") is None:
        return False
    try:
        import numba  # noqa: F401
    except (ImportError, OSError) as error:
        warnings.warn(f"Numba cannot be used, so everything is slower: {error}", stacklevel=2)
        return False
    return True


def register_all() -> None:
    """Register these kernels in the table of ``ops``."""
    if not has_numba():
        return
    from minibert.kernels.cpu import attention, embed, gelu, linear, masked_lm_loss, norm, optimise

    for name, module, accepts in (
        ("linear", linear, arguments.linear),
        ("linear_activation", gelu, arguments.linear_activation),
        ("layer_norm", norm, arguments.layer_norm),
        ("dropout_residual_norm", norm, arguments.dropout_residual_norm),
        ("embedding", embed, arguments.embedding),
        ("embed", embed, arguments.embed),
        ("packed_attention", attention, arguments.packed_attention),
        ("unpadded_attention", attention, arguments.unpadded_attention),
        ("masked_lm_loss", masked_lm_loss, arguments.masked_lm_loss),
    ):
        pair = getattr(module, name), getattr(module, f"{name}_backward")
        register(name, "numpy", "float32", *pair, accepts=accepts)
    for name in ("sums_of_squares", "global_norm"):
        register(name, "numpy", "float32", getattr(optimise, name), accepts=arguments.global_norm)
    register("adamw_update", "numpy", "float32", optimise.adamw_update, accepts=arguments.adamw_update)
    register("orthogonalise", "numpy", "float32", optimise.orthogonalise, accepts=arguments.orthogonalise)
