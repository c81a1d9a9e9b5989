"""What the optimiser computes, on one flat buffer of parameters."""

from minibert.arrays import Array, get_array_module


def global_norm(grad: Array) -> Array:
    """√Σ g²: the gradient norm over all parameters together. grad 1-D → a 0-d array."""
    xp = get_array_module(grad)
    return xp.sqrt((grad * grad).sum())


def adamw_update(
    value: Array,
    grad: Array,
    mean: Array,
    variance: Array,
    lr: Array | float,
    clip: Array | float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    mean_correction: Array | float = 1.0,
    variance_correction: Array | float = 1.0,
    *,
    copy: Array | None = None,
    norm: Array | None = None,
) -> None:
    """One step of Adam with decoupled weight decay (Loshchilov and Hutter, 2019), in place.

        g = clip · grad
        m = β₁ m + (1 − β₁) g,   v = β₂ v + (1 − β₂) g²
        value −= lr · ((m / c₁) / (√(v / c₂) + ε) + λ · value)

    value, grad, mean m and variance v are 1-D and equally long; lr, clip and the corrections are
    numbers or 0-d arrays of the same dtype. c₁ = c₂ = 1 is google-research/bert's optimiser, which
    leaves Adam's bias correction out; Adam itself has c₁ = 1 − β₁ᵗ and c₂ = 1 − β₂ᵗ at step t.

    ``copy`` also receives the new value, in its own dtype (the 16-bit weights that products read). ``norm``
    is the gradient norm, a 0-d array; if it is not finite, nothing changes.
    """
    xp = get_array_module(value)
    grad = grad * clip
    new_mean = beta1 * mean + (1.0 - beta1) * grad
    new_variance = beta2 * variance + (1.0 - beta2) * grad * grad
    direction = (new_mean / mean_correction) / (xp.sqrt(new_variance / variance_correction) + eps)
    new_value = value - lr * (direction + weight_decay * value)
    changes = [(value, new_value), (mean, new_mean), (variance, new_variance)]
    if copy is not None:
        changes.append((copy, new_value))
    for array, new in changes:
        # chosen on the device, number by number, since the host does not know the norm
        chosen = new if norm is None else xp.where(xp.isfinite(norm), new, array)
        array[...] = chosen.astype(array.dtype, copy=False)
