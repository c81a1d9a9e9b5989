"""Kernels for NumPy in float32: loops compiled by Numba between the matrix products, on all threads.

Where Numba is not installed there are none, and the reference operations compute.
"""

import importlib.util

from minibert.ops import register


def register_all() -> None:
    """Enter these kernels in the table of ``ops``."""
    if importlib.util.find_spec("numba") is None:
        return
    from minibert.kernels.cpu import attention, embed, gelu, linear, masked_lm_loss, norm, optimise

    for name, module in (
        ("linear", linear),
        ("linear_activation", gelu),
        ("layer_norm", norm),
        ("dropout_residual_norm", norm),
        ("embed", embed),
        ("packed_attention", attention),
        ("masked_lm_loss", masked_lm_loss),
    ):
        register(name, "numpy", "float32", getattr(module, name), getattr(module, f"{name}_backward"))
    register("global_norm", "numpy", "float32", optimise.global_norm)
    register("adamw_update", "numpy", "float32", optimise.adamw_update)
