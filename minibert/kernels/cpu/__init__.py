"""Kernels for NumPy in float32: the same arithmetic in blocks that stay in the cache, on all threads."""

from minibert.kernels.cpu import gelu, masked_lm_loss, residual_norm
from minibert.ops import register


def register_all() -> None:
    """Enter these kernels in the table of ``ops``."""
    for name, forward, backward in (
        ("linear_activation", gelu.linear_activation, gelu.linear_activation_backward),
        ("masked_lm_loss", masked_lm_loss.masked_lm_loss, masked_lm_loss.masked_lm_loss_backward),
        (
            "dropout_residual_norm",
            residual_norm.dropout_residual_norm,
            residual_norm.dropout_residual_norm_backward,
        ),
    ):
        register(name, "numpy", "float32", forward, backward)
