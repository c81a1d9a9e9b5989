"""What the optimisers compute: Adam on a flat buffer of parameters, Muon on matrices."""

from collections.abc import Callable, Iterable

from minibert.arrays import Array, get_array_module

BLOCK = 1 << 17  # elements whose squares are added up by themselves


def sums_of_squares(grad: Array) -> Array:
    """Σ g² over each block of ``BLOCK`` elements, the last of which may be shorter.

    So several processes can each compute the sums of some blocks, and the norm has the same bits as if one
    process had computed them all. grad 1-D → (blocks,); a kernel may give them in a wider dtype.
    """
    xp = get_array_module(grad)
    sums = xp.zeros(-(-len(grad) // BLOCK), dtype=grad.dtype)
    for number in range(len(sums)):
        block = grad[number * BLOCK : (number + 1) * BLOCK]
        sums[number] = (block * block).sum()
    return sums


def norm_from_sums(sums: Array, dtype: str) -> Array:
    """The gradient norm √Σ g² from the sums of all blocks, as a 0-d array."""
    xp = get_array_module(sums)
    return xp.sqrt(sums.sum()).astype(dtype, copy=False)


def global_norm(grad: Array) -> Array:
    """√Σ g²: the gradient norm over all parameters together. grad 1-D → a 0-d array."""
    return norm_from_sums(sums_of_squares(grad), grad.dtype)


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
    _store_if_finite(changes, norm)


# Coefficients a, b, c of the iteration below, by Keller Jordan (2024). They push small singular values up as
# fast as possible (p′(0) = a), at the price of exactness: those near 1 stay near 1, but do not converge.
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)


def orthogonalise(matrix: Array, steps: int = 5) -> Array:
    """Push all singular values of a matrix towards 1, and keep its singular vectors: U Σ Vᵀ → ≈ U Vᵀ.

        X₀ = M / ‖M‖,   X ← a X + b (X Xᵀ) X + c (X Xᵀ)² X

    A product of X Xᵀ with X multiplies each singular value of X by its square. So each iteration applies the
    polynomial p(σ) = a σ + b σ³ + c σ⁵ to all of them, without computing any of them. Those that are at least
    0.002 of ‖M‖ come to lie between 0.68 and 1.21 in 5 steps. matrix (m, n) → (m, n); zeros stay zero. A
    stack (…, m, n) is taken matrix by matrix.

    Sources: Bernstein and Newhouse 2024 (Newton–Schulz in place of an SVD); Jordan 2024 (the coefficients).
    """
    xp = get_array_module(matrix)
    a, b, c = NEWTON_SCHULZ
    tall = matrix.shape[-2] > matrix.shape[-1]
    x = matrix.swapaxes(-1, -2) if tall else matrix  # X Xᵀ is then the smaller of the two squares
    norm = xp.sqrt((x * x).sum(axis=(-2, -1), keepdims=True))
    x = x / (norm + 1e-20)  # ‖X‖ = 1 is at least the largest singular value
    for _ in range(steps):
        square = x @ x.swapaxes(-1, -2)
        x = a * x + (b * square + c * (square @ square)) @ x
    return x.swapaxes(-1, -2) if tall else x


def muon_update(
    value: Array,
    grad: Array,
    momentum: Array,
    lr: Array | float,
    clip: Array | float,
    beta: float,
    weight_decay: float,
    *,
    copy: Array | None = None,
    norm: Array | None = None,
    orthogonalise: Callable[[Array], Array] = orthogonalise,
) -> None:
    """One step of Muon (Jordan 2024) with decoupled weight decay, in place, for one matrix.

        g = clip · grad
        M = β M + (1 − β) g
        O = orthogonalise(β M + (1 − β) g)                  (Nesterov's look ahead)
        value −= lr · (√max(1, m / n) · O + λ · value)

    Adam divides each number of a gradient by its own running size. Muon treats the gradient as a linear map:
    it scales the few directions that dominate it down and the many weak ones up, so that all are learned at
    the same pace. value, grad and momentum M are (m, n), or stacks (…, m, n) of matrices that are taken one
    by one; lr and clip are numbers or 0-d arrays of their dtype. ``copy`` and ``norm`` are those of
    ``adamw_update``. ``orthogonalise`` may be a kernel's, in place of the function above.
    """
    grad = grad * clip
    new_momentum = beta * momentum + (1.0 - beta) * grad
    direction = orthogonalise(beta * new_momentum + (1.0 - beta) * grad)
    rows, columns = value.shape[-2:]
    new_value = value - lr * (max(1.0, rows / columns) ** 0.5 * direction + weight_decay * value)
    changes = [(value, new_value), (momentum, new_momentum)]
    if copy is not None:
        changes.append((copy, new_value))
    _store_if_finite(changes, norm)


def _store_if_finite(changes: Iterable[tuple[Array, Array]], norm: Array | None) -> None:
    """Write new values into arrays, unless there is a ``norm`` that is not finite."""
    for array, new in changes:
        # chosen on the device, number by number, since the host does not know the norm
        xp = get_array_module(array)
        chosen = new if norm is None else xp.where(xp.isfinite(norm), new, array)
        array[...] = chosen.astype(array.dtype, copy=False)
