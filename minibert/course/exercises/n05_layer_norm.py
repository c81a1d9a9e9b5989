"""05 LayerNorm: the backward. forward: y = γ x̂ + β, x̂ = (x − μ)/σ."""

from minibert.course.exercise import exercise, gradient_trial
from minibert.ops.layer_norm import layer_norm
from minibert.ops.layer_norm import layer_norm_backward as library_backward

EPS = 0.5  # of order one, like all else, so that leaving it out shows


@exercise(
    "05",
    outputs="dx dweight dbias",
    trials=lambda draw: [
        gradient_trial(
            lambda *inputs: layer_norm(*inputs, EPS),
            {"x": draw.normal(3, 4, 6), "weight": draw.normal(6), "bias": draw.normal(6)},
        )
    ],
    reference=library_backward,
    hints=(
        "Every row used γ and β, so their gradients sum over the rows. And there are three ways from x to x̂.",
        "x[j] reaches x̂[i] directly (where i = j), through the mean μ and through σ: dx has three terms.",
        "With dx̂ = γ dout: dx = (dx̂ − mean(dx̂) − x̂ mean(dx̂ x̂)) / σ, each mean over the last axis, with "
        "keepdims=True. Compare it with the end of `layer_norm_backward` in minibert/ops/layer_norm.py.",
    ),
)
def layer_norm_backward(dout, cache):
    normalised, inverse_std, weight = cache  # (…, H), (…, 1), (H,)
    dweight = (dout * normalised).sum(axis=(0, 1))  # (H,)
    dbias = dout.sum(axis=(0, 1))  # (H,)
    dnormalised = dout * weight  # (…, H)
    mean = dnormalised.mean(axis=-1, keepdims=True)  # (…, 1)
    projection = (dnormalised * normalised).mean(axis=-1, keepdims=True)  # (…, 1)
    return (dnormalised - mean - normalised * projection) * inverse_std, dweight, dbias


@layer_norm_backward.mistake(
    "μ and σ also depend on x. You treat them as constants, so only the direct way from x to x̂ is left; the "
    "terms through μ and through σ are missing."
)
def mean_and_deviation_taken_for_constants(dout, cache):
    _, inverse_std, weight = cache
    return dout * weight * inverse_std, *layer_norm_backward.solution(dout, cache)[1:]


@layer_norm_backward.mistake(
    "The way through the mean is missing: every x[j] moves μ by 1/H, and with it every x̂. Each row of dx "
    "has to sum to 0, for a constant added to a row changes nothing; do yours?"
)
def no_mean_term(dout, cache):
    normalised, inverse_std, weight = cache
    dnormalised = dout * weight
    projection = (dnormalised * normalised).mean(axis=-1, keepdims=True)
    dx = (dnormalised - normalised * projection) * inverse_std
    return dx, *layer_norm_backward.solution(dout, cache)[1:]


@layer_norm_backward.mistake(
    "The way through σ is missing: ∂σ/∂x[j] = x̂[j]/H, which gives the term − x̂ mean(dx̂ x̂)."
)
def no_deviation_term(dout, cache):
    _, inverse_std, weight = cache
    dnormalised = dout * weight
    dx = (dnormalised - dnormalised.mean(axis=-1, keepdims=True)) * inverse_std
    return dx, *layer_norm_backward.solution(dout, cache)[1:]


@layer_norm_backward.mistake(
    "γ belongs inside the two means: they are means of dx̂ = γ dout, not of dout. While γ = 1, as in a new "
    "model, the two are the same; that is why this mistake lives long."
)
def gamma_outside_the_means(dout, cache):
    normalised, inverse_std, weight = cache
    ones = weight * 0 + 1
    dx, dweight, dbias = layer_norm_backward.solution(dout, (normalised, inverse_std, ones))
    return dx * weight, dweight, dbias


@layer_norm_backward.mistake(
    "You sum where a mean belongs: μ and σ² are means over the H features, so their derivatives carry 1/H."
)
def sums_for_means(dout, cache):
    normalised, inverse_std, weight = cache
    dnormalised = dout * weight
    total = dnormalised.sum(axis=-1, keepdims=True)
    projection = (dnormalised * normalised).sum(axis=-1, keepdims=True)
    dx = (dnormalised - total - normalised * projection) * inverse_std
    return dx, *layer_norm_backward.solution(dout, cache)[1:]


@layer_norm_backward.mistake(
    "The two means are over the whole sequence. LayerNorm normalises each token by itself: the means are "
    "over the last axis only."
)
def means_over_sequence_and_features(dout, cache):
    normalised, inverse_std, weight = cache
    dnormalised = dout * weight
    mean = dnormalised.mean(axis=(1, 2), keepdims=True)
    projection = (dnormalised * normalised).mean(axis=(1, 2), keepdims=True)
    dx = (dnormalised - mean - normalised * projection) * inverse_std
    return dx, *layer_norm_backward.solution(dout, cache)[1:]


@layer_norm_backward.mistake(
    "dγ and dβ sum over the batch only. γ and β were used at every position of every sequence: sum over all "
    "axes but the last."
)
def parameters_summed_over_the_batch_only(dout, cache):
    normalised, _, _ = cache
    dx, _, _ = layer_norm_backward.solution(dout, cache)
    return dx, (dout * normalised).sum(axis=0), dout.sum(axis=0)


@layer_norm_backward.mistake(
    "dγ and dβ hold a gradient for every token. They have one γ and one β between them: sum over all axes "
    "but the last."
)
def parameters_not_summed(dout, cache):
    normalised, _, _ = cache
    dx, _, _ = layer_norm_backward.solution(dout, cache)
    return dx, dout * normalised, dout.copy()


@layer_norm_backward.mistake(
    "The division by σ is missing in dx. x̂ = (x − μ)/σ: the wider a row is spread, the less one x moves it."
)
def not_divided_by_the_deviation(dout, cache):
    dx, dweight, dbias = layer_norm_backward.solution(dout, cache)
    return dx / cache[1], dweight, dbias


@layer_norm_backward.mistake(
    "dx is multiplied by σ where it should be divided. The cache holds 1/σ: multiply by `inverse_std`."
)
def multiplied_by_the_deviation(dout, cache):
    dx, dweight, dbias = layer_norm_backward.solution(dout, cache)
    return dx / cache[1] ** 2, dweight, dbias


@layer_norm_backward.mistake(
    "dγ is missing its x̂: y = γ x̂ + β, so what γ was multiplied with is what its gradient is multiplied with."
)
def dweight_without_normalised(dout, cache):
    dx, _, dbias = layer_norm_backward.solution(dout, cache)
    return dx, dbias, dbias
