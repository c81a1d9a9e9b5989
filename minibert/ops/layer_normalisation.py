"""Layer normalisation (Ba, Kiros and Hinton, 2016), over the last axis."""

from minibert.arrays import Array, get_array_module

Cache = tuple


def layer_norm(x: Array, weight: Array, bias: Array, eps: float) -> tuple[Array, Cache]:
    """Normalise each row of x to mean 0 and variance 1, then scale and shift each feature:

        y = γ x̂ + β,   x̂ = (x − μ) / σ,   μ = mean(x),   σ = √(mean((x − μ)²) + ε)

    x (…, H), weight γ (H,), bias β (H,) → y (…, H). The variance divides by H, not H − 1.
    """
    xp = get_array_module(x)
    centred = x - x.mean(axis=-1, keepdims=True)
    inverse_std = 1.0 / xp.sqrt((centred * centred).mean(axis=-1, keepdims=True) + eps)  # (…, 1)
    normalised = centred * inverse_std  # (…, H)
    return normalised * weight + bias, (normalised, inverse_std, weight)


def layer_norm_backward(dout: Array, cache: Cache) -> tuple[Array, Array, Array]:
    """Derivatives of :func:`layer_norm`: dx, dweight, dbias.

    forward: y = γ x̂ + β, and γ and β were broadcast over all rows, so their gradients sum over the rows:

        dγ = Σ dout x̂,   dβ = Σ dout,   dx̂ = γ dout

    x reaches x̂ along three paths: directly, through μ and through σ. With x̂ = (x − μ)/σ:

        directly      ∂x̂[i]/∂x[j] ∋  δᵢⱼ / σ
        through μ     ∂μ/∂x[j] = 1/H             ⇒  −1 / (H σ)
        through σ     ∂σ/∂x[j] = x̂[j] / H        ⇒  −x̂[i] x̂[j] / (H σ)

    Multiplied by dx̂[i] and summed over i:   dx = (dx̂ − mean(dx̂) − x̂ mean(dx̂ x̂)) / σ.
    The γ is inside both means. Taking it out is the most common mistake, and invisible while γ = 1.
    """
    normalised, inverse_std, weight = cache
    rows = tuple(range(dout.ndim - 1))
    dweight = (dout * normalised).sum(axis=rows)  # (H,)
    dbias = dout.sum(axis=rows)  # (H,)
    dnormalised = dout * weight  # (…, H)
    mean = dnormalised.mean(axis=-1, keepdims=True)  # (…, 1)
    projection = (dnormalised * normalised).mean(axis=-1, keepdims=True)  # (…, 1)
    dx = (dnormalised - mean - normalised * projection) * inverse_std
    return dx, dweight, dbias
