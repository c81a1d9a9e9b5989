"""05 LayerNorm: the backward. forward: y = γ x̂ + β, x̂ = (x − μ)/σ."""

from functools import partial

from minibert.course.exercise import exercise, gradient_trial
from minibert.ops.layer_normalisation import layer_norm
from minibert.ops.layer_normalisation import layer_norm_backward as library_backward

EPS = 0.5  # of order one, like all else, so that leaving it out shows


@exercise(
    "05",
    outputs="dx dweight dbias",
    trials=lambda draw: [
        gradient_trial(
            partial(layer_norm, eps=EPS),
            {"x": draw.normal(*shape), "weight": draw.normal(6), "bias": draw.normal(6)},
            label,
        )
        for shape, label in (((3, 4, 6), ""), ((5, 6), "x (5, 6)"))
    ],
    reference=library_backward,
    hints=(
        "Every row used γ and β, so their gradients sum over the rows. And there are three ways from x to x̂.",
        "x[j] reaches x̂[i] directly (where i = j), through the mean μ and through σ: dx has three terms.",
        "With dx̂ = γ dout: dx = (dx̂ − mean(dx̂) − x̂ mean(dx̂ x̂)) / σ, each mean over the last axis, with "
        "keepdims=True. Compare it with the end of `layer_norm_backward` in "
        "minibert/ops/layer_normalisation.py.",
    ),
    hints_for={
        "dx": (
            "dγ and dβ are right. There are three ways from x to x̂: which of them are in your dx?",
            "x[j] reaches x̂[i] directly (where i = j), through the mean μ and through σ: dx has three terms.",
            "With dx̂ = γ dout: dx = (dx̂ − mean(dx̂) − x̂ mean(dx̂ x̂)) / σ, each mean over the last axis, with "
            "keepdims=True.",
        ),
        "dweight dbias": (
            "Every row used γ and β: what they got from all rows is added up.",
            "In y = γ x̂ + β, γ was multiplied with x̂, and β with 1.",
            "dγ = Σ dout x̂ and dβ = Σ dout, over all axes but the last: axis=tuple(range(dout.ndim - 1)).",
        ),
    },
)
def layer_norm_backward(dout, cache):
    normalised, inverse_std, weight = cache  # (…, H), (…, 1), (H,)
    rows = tuple(range(dout.ndim - 1))  # all axes but the last
    dweight = (dout * normalised).sum(axis=rows)  # (H,)
    dbias = dout.sum(axis=rows)  # (H,)
    dnormalised = dout * weight  # (…, H)
    mean = dnormalised.mean(axis=-1, keepdims=True)  # (…, 1)
    projection = (dnormalised * normalised).mean(axis=-1, keepdims=True)  # (…, 1)
    return (dnormalised - mean - normalised * projection) * inverse_std, dweight, dbias


def _with_factors(dout, cache, mean, projection):
    """The gradients, with the two means in dx times a factor each; −1 is right."""
    normalised, inverse_std, weight = cache
    dnormalised = dout * weight
    dx = (
        dnormalised
        + mean * dnormalised.mean(axis=-1, keepdims=True)
        + projection * normalised * (dnormalised * normalised).mean(axis=-1, keepdims=True)
    ) * inverse_std
    return dx, *layer_norm_backward.solution(dout, cache)[1:]


@layer_norm_backward.mistake(
    "μ and σ also depend on x. You treat them as constants, so only the direct way from x to x̂ is left; the "
    "terms through μ and through σ are missing."
)
def mean_and_deviation_taken_for_constants(dout, cache):
    return _with_factors(dout, cache, mean=0, projection=0)


@layer_norm_backward.mistake(
    "The way through the mean is missing: every x[j] moves μ by 1/H, and with it every x̂. Each row of dx "
    "has to sum to 0, for a constant added to a row changes nothing; do yours?"
)
def no_mean_term(dout, cache):
    return _with_factors(dout, cache, mean=0, projection=-1)


@layer_norm_backward.mistake(
    "The way through σ is missing: ∂σ/∂x[j] = x̂[j]/H, which gives the term − x̂ mean(dx̂ x̂)."
)
def no_deviation_term(dout, cache):
    return _with_factors(dout, cache, mean=-1, projection=0)


@layer_norm_backward.mistake("The mean of dx̂ is added. It is subtracted: x̂ = (x − μ)/σ falls where μ rises.")
def mean_added(dout, cache):
    return _with_factors(dout, cache, mean=1, projection=-1)


@layer_norm_backward.mistake(
    "The term through σ is added. It is subtracted: a larger σ makes every x̂ smaller, ∂x̂[i]/∂σ = −x̂[i]/σ."
)
def deviation_term_added(dout, cache):
    return _with_factors(dout, cache, mean=-1, projection=1)


@layer_norm_backward.mistake(
    "The two means are added. Both are subtracted: dx is what is left of dx̂ without its mean and without "
    "its share along x̂."
)
def both_terms_added(dout, cache):
    return _with_factors(dout, cache, mean=1, projection=1)


@layer_norm_backward.mistake(
    "In the last term x̂ is missing: − x̂ mean(dx̂ x̂). The mean is one number for the row; each x[j] takes a "
    "share of it that is as large as its own x̂[j]."
)
def deviation_term_without_normalised(dout, cache):
    normalised, inverse_std, weight = cache
    dnormalised = dout * weight
    projection = (dnormalised * normalised).mean(axis=-1, keepdims=True)
    dx = (dnormalised - dnormalised.mean(axis=-1, keepdims=True) - projection) * inverse_std
    return dx, *layer_norm_backward.solution(dout, cache)[1:]


@layer_norm_backward.mistake(
    "γ is missing in dx: what comes to x̂ is dx̂ = γ dout. While γ = 1, as in a new model, nobody notices."
)
def dx_without_gamma(dout, cache):
    normalised, inverse_std, weight = cache
    dx, _, _ = layer_norm_backward.solution(dout, (normalised, inverse_std, weight * 0 + 1))
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
    H = dout.shape[-1]
    return _with_factors(dout, cache, mean=-H, projection=-H)


@layer_norm_backward.mistake(
    "The two means are over the whole sequence. LayerNorm normalises each token by itself: the means are "
    "over the last axis only."
)
def means_over_sequence_and_features(dout, cache):
    normalised, inverse_std, weight = cache
    dnormalised = dout * weight
    axes = tuple(range(1, dout.ndim))
    mean = dnormalised.mean(axis=axes, keepdims=True)
    projection = (dnormalised * normalised).mean(axis=axes, keepdims=True)
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


@layer_norm_backward.mistake(
    "dγ and dβ are made from dx̂ = γ dout. In y = γ x̂ + β both stand outside: dγ = Σ dout x̂, dβ = Σ dout."
)
def parameters_from_dnormalised(dout, cache):
    dx, dweight, dbias = layer_norm_backward.solution(dout, cache)
    return dx, dweight * cache[2], dbias * cache[2]


@layer_norm_backward.mistake(
    "dγ and dβ are means over the rows. Every row used γ and β in full, so its gradients add up; if the loss "
    "is a mean, its 1/n is in dout already."
)
def parameters_are_means(dout, cache):
    dx, dweight, dbias = layer_norm_backward.solution(dout, cache)
    rows = dout.size / dout.shape[-1]
    return dx, dweight / rows, dbias / rows


@layer_norm_backward.mistake(
    "dγ and dβ are summed over axes 0 and 1. That is right for (B, S, H), but dout may have any number of "
    "leading axes, as in the head that gets chosen rows only: sum over tuple(range(dout.ndim - 1))."
)
def parameters_summed_over_the_first_two_axes(dout, cache):
    dx, _, _ = layer_norm_backward.solution(dout, cache)
    return dx, (dout * cache[0]).sum(axis=(0, 1)), dout.sum(axis=(0, 1))


@layer_norm_backward.mistake(
    "dγ and dβ are divided by the batch size. If the loss is a mean, its 1/n has come in with dout; a layer "
    "only adds up. With B = 1 nobody would notice."
)
def parameters_divided_by_the_batch_size(dout, cache):
    dx, dweight, dbias = layer_norm_backward.solution(dout, cache)
    return dx, dweight / len(dout), dbias / len(dout)


@layer_norm_backward.mistake(
    "The term through σ is not divided by σ. All three terms are: 1/σ stands outside of the bracket."
)
def deviation_term_outside_the_bracket(dout, cache):
    normalised, inverse_std, weight = cache
    dnormalised = dout * weight
    projection = (dnormalised * normalised).mean(axis=-1, keepdims=True)
    dx = (dnormalised - dnormalised.mean(axis=-1, keepdims=True)) * inverse_std - normalised * projection
    return dx, *layer_norm_backward.solution(dout, cache)[1:]
