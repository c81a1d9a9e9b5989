"""02 Linear: forward, the three products, and a weight that is used twice. forward: y = x Wᵀ + b."""

from dataclasses import replace

import numpy as np

from minibert.arrays import Array
from minibert.course.exercise import Trial, exercise, gradient_trial
from minibert.gradcheck import Draws
from minibert.ops.linear_map import linear as library_linear
from minibert.ops.linear_map import linear_backward as library_backward

# -- Forward ------------------------------------------------------------------------------------------


@exercise(
    "02",
    outputs="y cached_x cached_weight",
    trials=lambda draw: [
        Trial({"x": draw.normal(*shape), "weight": draw.matrix(5, 6), "bias": draw.normal(5)}, label)
        for shape, label in (((3, 4, 6), ""), ((7, 6), "x (7, 6)"))
    ],
    reference=library_linear,
    views=True,
    level=1,
    minutes=5,
    needs="the matrix product, and how NumPy broadcasts",
    hints=(
        "Output n is a weighted sum of a row's numbers, with the weights in row n of W, plus b[n]. Which "
        "product makes all of these sums at once?",
        "The inputs are the last axis of x and the last axis of W. In a matrix product they have to meet: "
        "last axis on the left, last but one on the right.",
        "y = x @ weight.T + bias works for any number of leading axes. Return y and the tuple (x, weight), "
        "both as they came in. See `linear` in minibert/ops/linear_map.py.",
    ),
    hints_for={
        "cached_x cached_weight": (
            "y is right. What is wrong is the second thing that you return, the cache.",
            "The cache is a tuple of two arrays: x, then weight, both as they came in.",
            "The last line is: return y, (x, weight).",
        ),
    },
)
def linear(x, weight, bias):
    return x @ weight.T + bias, (x, weight)


@linear.mistake("The bias is missing: y = x Wᵀ + b. It is broadcast, so every row gets the same b.")
def bias_missing(x, weight, bias):
    return x @ weight.T, (x, weight)


@linear.mistake("The bias is subtracted: y = x Wᵀ + b.")
def bias_subtracted(x, weight, bias):
    return x @ weight.T - bias, (x, weight)


@linear.mistake(
    "You reshape the weight where it has to be transposed. A reshape reads the numbers in the same order and "
    "only breaks the lines elsewhere; weight.T exchanges rows and columns."
)
def weight_reshaped(x, weight, bias):
    return x @ weight.reshape(weight.shape[::-1]) + bias, (x, weight)


@linear.mistake(
    "y is still in rows, (R, N). Its leading axes should be those of x: (…, N). Reshape it at the end, or do "
    "not make rows at all; `@` takes any number of leading axes."
)
def y_left_in_rows(x, weight, bias):
    return x.reshape(-1, x.shape[-1]) @ weight.T + bias, (x, weight)


@linear.mistake(
    "The cache holds x as rows. Its own shape is lost with that, and the backward pass has to give dx the "
    "shape of x: keep x as it came in."
)
def rows_in_the_cache(x, weight, bias):
    return x @ weight.T + bias, (x.reshape(-1, x.shape[-1]), weight)


@linear.mistake(
    "The cache holds y in the place of x. A backward pass needs what went in: dW is made of dout and x, and "
    "y occurs in no gradient of this layer."
)
def output_in_the_cache(x, weight, bias):
    y = x @ weight.T + bias
    return y, (y, weight)


@linear.mistake(
    "The cache holds the weight transposed. Keep it as it is stored, (outputs, inputs): that is what the "
    "library's `linear_backward` expects."
)
def transposed_weight_in_the_cache(x, weight, bias):
    return x @ weight.T + bias, (x, weight.T)


# -- Backward, in steps -------------------------------------------------------------------------------


def sums_of_products(products: Array, bias: Array) -> tuple[Array, tuple]:
    """The second half of the loop: products (R, N, K), bias (N,) → y (R, N)."""
    return products.sum(axis=-1) + bias, ()


def linear_in_steps(x: Array, weight: Array, bias: Array) -> tuple[Array, tuple]:
    """The loop at once: x (R, K), weight (N, K), bias (N,) → y (R, N)."""
    products = x[:, None, :] * weight  # (R, N, K)
    y, _ = sums_of_products(products, bias)
    return y, (x, weight)


def _trials_in_steps(draw: Draws) -> list[Trial]:
    """The numeric gradients of the whole, and of its second half."""
    x, weight, bias = draw.normal(4, 6), draw.matrix(5, 6), draw.normal(5)
    whole = gradient_trial(linear_in_steps, {"x": x, "weight": weight, "bias": bias})
    half = gradient_trial(sums_of_products, {"products": x[:, None, :] * weight, "bias": bias})
    return [replace(whole, independent=half.independent | whole.independent)]


@exercise(
    "02",
    outputs="dbias dproducts dx dweight",
    trials=_trials_in_steps,
    views=True,
    in_order=True,
    level=1,
    minutes=15,
    needs=(
        "the product rule, and from [01](01_gradients.ipynb) that a number that is broadcast or used several "
        "times collects a sum"
    ),
    hints=(
        "Begin at the end: y = sum of the products + bias. How does y[r, n] move if one of its products "
        "does, and how if bias[n] does?",
        "A sum hands its gradient on to each of its terms: dproducts[r, n, k] = dout[r, n] for every k. "
        "bias[n] was used in every row r.",
        "dproducts is dout[:, :, None] for all k. A product p = x·w has dx = dp·w and dw = dp·x. x was used "
        "for every n (sum over axis 1), weight for every r (sum over axis 0).",
    ),
    hints_for={
        "dx": (
            "The first two steps are right, and so is dweight. In which of the products is x[r, k]?",
            "x[r, k] is in the products of every output n, and is multiplied by weight[n, k] there.",
            "dx = (dproducts * weight).sum(axis=1), of shape (R, K).",
        ),
        "dx dweight": (
            "dbias and dproducts are right. What is the derivative of a product with respect to one factor?",
            "It is the other factor. And every number of x and of weight is a factor of several products.",
            "dx = Σₙ dproducts · weight (axis 1); dweight = Σᵣ dproducts · x[:, None, :] (axis 0).",
        ),
        "dbias": (
            "Everything else is right. How often was bias[n] used?",
            "Once for every row, so its gradients add up.",
            "dbias = dout.sum(axis=0), of shape (N,).",
        ),
    },
)
def backward_in_steps(dout, cache):
    x, weight = cache  # (R, K), (N, K)
    dbias = dout.sum(axis=0)  # (N,)
    dproducts = np.repeat(dout[:, :, None], x.shape[1], axis=2)  # (R, N, K)
    dx = (dproducts * weight).sum(axis=1)  # (R, K)
    dweight = (dproducts * x[:, None, :]).sum(axis=0)  # (N, K)
    return dbias, dproducts, dx, dweight


@backward_in_steps.mistake(
    "dproducts is divided by K. y is a sum of the products, not their mean: if one of them rises by 1, so "
    "does y."
)
def a_mean_instead_of_a_sum(dout, cache):
    dbias, dproducts, dx, dweight = backward_in_steps.solution(dout, cache)
    count = dproducts.shape[-1]
    return dbias, dproducts / count, dx / count, dweight / count


@backward_in_steps.mistake(
    "dproducts has the shape of y. A sum over k hands the gradient of y[r, n] on to all of its K products: "
    "(R, N, K)."
)
def products_without_their_last_axis(dout, cache):
    dbias, _, dx, dweight = backward_in_steps.solution(dout, cache)
    return dbias, dout, dx, dweight


@backward_in_steps.mistake(
    "dproducts has shape (R, N, 1). That can be broadcast, but each of the K products has a gradient of its "
    "own: repeat it, or broadcast it to (R, N, K)."
)
def products_not_broadcast(dout, cache):
    dbias, _, dx, dweight = backward_in_steps.solution(dout, cache)
    return dbias, dout[:, :, None], dx, dweight


@backward_in_steps.mistake(
    "You went a step too far: this is dproducts times weight, which belongs to dx. y is the sum of the "
    "products, so each of them gets dout[r, n] and nothing else."
)
def products_multiplied_too_early(dout, cache):
    dbias, dproducts, dx, dweight = backward_in_steps.solution(dout, cache)
    return dbias, dproducts * cache[1], dx, dweight


@backward_in_steps.mistake(
    "Each factor is multiplied by itself. The derivative of x·w with respect to x is the *other* factor, w."
)
def each_factor_with_itself(dout, cache):
    x, weight = cache
    dbias, dproducts, _, _ = backward_in_steps.solution(dout, cache)
    return (
        dbias,
        dproducts,
        (dproducts * x[:, None, :]).sum(axis=1),
        (dproducts * weight).sum(axis=0),
    )


@backward_in_steps.mistake(
    "The sums over the uses are missing: your dx and dweight have one number for each product. x[r, k] was "
    "used for every n, and weight[n, k] for every r."
)
def uses_not_added(dout, cache):
    x, weight = cache
    dbias, dproducts, _, _ = backward_in_steps.solution(dout, cache)
    return dbias, dproducts, dproducts * weight, dproducts * x[:, None, :]


@backward_in_steps.mistake(
    "dbias and dweight are means over the rows. What is used in every row collects a sum. If a mean is "
    "wanted, the loss has taken it already, and its 1/R is in dout."
)
def means_over_the_rows(dout, cache):
    dbias, dproducts, dx, dweight = backward_in_steps.solution(dout, cache)
    return dbias / len(dout), dproducts, dx, dweight / len(dout)


# -- Backward, as products ----------------------------------------------------------------------------


@exercise(
    "02",
    outputs="dx dweight dbias",
    trials=lambda draw: [
        gradient_trial(
            library_linear,
            {"x": draw.normal(*shape), "weight": draw.matrix(5, 6), "bias": draw.normal(5)},
            label,
        )
        for shape, label in (((3, 4, 6), ""), ((7, 6), "x (7, 6)"))
    ],
    reference=library_backward,
    level=2,
    minutes=10,
    needs=(
        "the sums over uses of section 3, and that a matrix product sums over the axis where its factors meet"
    ),
    hints=(
        "Let the shapes lead you: dx has the shape of x, dweight that of weight, dbias that of bias. Which "
        "products give them?",
        "Make rows of x and dout first: every leading axis is just more rows. dx is a product of dout and W, "
        "dW one of dout and x, and b was broadcast over the rows.",
        "dx = dout W, dW = doutᵀ x, db = Σ dout over the rows; dx gets x's shape back at the end. See "
        "`linear_backward` in minibert/ops/linear_map.py.",
    ),
    hints_for={
        "dx": (
            "How does x reach y? Every y[n] of a row contains every x[k] of that row, times W[n, k].",
            "dx[r, k] = Σₙ dout[r, n] W[n, k]: a product of dout and W as it is stored.",
            "dx = dout W, and its leading axes are those of x: (drows @ weight).reshape(x.shape).",
        ),
        "dweight": (
            "Every row used W, so what W[n, k] gets from all rows is added up.",
            "dW[n, k] = Σᵣ dout[r, n] x[r, k]. With rows made of both, this sum is a matrix product.",
            "dW = doutᵀ x: drows.T @ rows, which already has the shape of W.",
        ),
        "dbias": (
            "Every row used b, so what b gets from all rows is added up.",
            "b was broadcast over all axes but the last. Its gradient is the sum over these axes.",
            "db = drows.sum(axis=0), where drows is dout with all its leading axes merged into one.",
        ),
    },
)
def linear_backward(dout, cache):
    x, weight = cache  # (…, K), (N, K)
    rows = x.reshape(-1, x.shape[-1])  # (R, K)
    drows = dout.reshape(-1, dout.shape[-1])  # (R, N)
    dx = (drows @ weight).reshape(x.shape)  # (…, K)
    return dx, drows.T @ rows, drows.sum(axis=0)


@linear_backward.mistake(
    "dweight is divided by the number of rows. The mean, if there is one, is the loss's business: its 1/n "
    "comes in with dout. Here you divide a second time."
)
def dweight_is_a_mean(dout, cache):
    dx, dweight, dbias = linear_backward.solution(dout, cache)
    return dx, dweight / (dout.size / dout.shape[-1]), dbias


@linear_backward.mistake(
    "dbias is a mean over the rows. b was broadcast: every row used it in full, so its gradients add up."
)
def dbias_is_a_mean(dout, cache):
    dx, dweight, _ = linear_backward.solution(dout, cache)
    return dx, dweight, dout.reshape(-1, dout.shape[-1]).mean(axis=0)


@linear_backward.mistake(
    "dbias is summed over the batch only. Every position of every sequence used b: sum over all axes but the "
    "last."
)
def dbias_summed_over_the_batch_only(dout, cache):
    dx, dweight, _ = linear_backward.solution(dout, cache)
    return dx, dweight, dout.sum(axis=0)


@linear_backward.mistake(
    "dweight is transposed. The weight is stored as (outputs, inputs), and its gradient has its shape: "
    "doutᵀ x."
)
def dweight_transposed(dout, cache):
    dx, dweight, dbias = linear_backward.solution(dout, cache)
    return dx, dweight.T.copy(), dbias


@linear_backward.mistake(
    "dweight has the right shape, but its numbers are in the wrong places: it is xᵀ dout, reshaped. A "
    "reshape does not transpose, it only breaks the lines elsewhere. Take doutᵀ x."
)
def dweight_transposed_then_reshaped(dout, cache):
    dx, dweight, dbias = linear_backward.solution(dout, cache)
    return dx, dweight.T.reshape(dweight.shape), dbias


@linear_backward.mistake(
    "dweight holds one gradient per sequence. All sequences used the same W: sum over the batch, too."
)
def dweight_for_each_sequence(dout, cache):
    x, _ = cache
    dx, _, dbias = linear_backward.solution(dout, cache)
    return dx, dout.swapaxes(-1, -2) @ x, dbias


@linear_backward.mistake(
    "dbias is summed over axes 0 and 1. That is right for (B, S, N), but x may have any number of leading "
    "axes; for example, a head may get chosen rows only. Make rows of dout and sum over axis 0."
)
def dbias_summed_over_the_first_two_axes(dout, cache):
    dx, dweight, _ = linear_backward.solution(dout, cache)
    return dx, dweight, dout.sum(axis=(0, 1))


@linear_backward.mistake(
    "dweight and dbias are divided by the batch size. If the loss is a mean, its 1/n has come in with dout; "
    "a layer only adds up."
)
def divided_by_the_batch_size(dout, cache):
    dx, dweight, dbias = linear_backward.solution(dout, cache)
    return dx, dweight / len(dout), dbias / len(dout)


@linear_backward.mistake(
    "dweight is made with dout.reshape(N, -1). A reshape does not transpose, it only breaks the lines "
    "elsewhere. Make rows first, dout.reshape(-1, N), and transpose these."
)
def dout_reshaped_for_transposed(dout, cache):
    x, weight = cache
    dx, _, dbias = linear_backward.solution(dout, cache)
    return dx, dout.reshape(len(weight), -1) @ x.reshape(-1, x.shape[-1]), dbias


# -- Open: one weight, used in both directions ----------------------------------------------------------


def there_and_back(x: Array, weight: Array) -> tuple[Array, tuple]:
    """y = (x Wᵀ) W: x (…, K), weight (N, K) → y (…, K), (x, hidden, weight)."""
    hidden = x @ weight.T  # (…, N)
    return hidden @ weight, (x, hidden, weight)


@exercise(
    "02",
    outputs="dx dweight",
    trials=lambda draw: [
        gradient_trial(there_and_back, {"x": draw.normal(*shape), "weight": draw.matrix(4, 6)}, label)
        for shape, label in (((3, 5, 6), ""), ((7, 6), "x (7, 6)"))
    ],
    level=3,
    minutes=20,
    needs="sections 3, 4 and 7 of this notebook",
    hints=(
        "How often is W used? Take the two products one after the other, the last one first.",
        "Going back through y = hidden W gives dhidden and one share of dW; going on through hidden = x Wᵀ "
        "gives dx and the other share. The two shares add up.",
        "With rows: dhidden = dy Wᵀ, dx = dhidden W, and dW = hiddenᵀ dy + dhiddenᵀ x. Check the shape of "
        "every term.",
    ),
    hints_for={
        "dweight": (
            "dx is right. How often was W used on the way from x to y?",
            "Twice, so dW has two terms. Each is a product of what came back and what went in at that place.",
            "dW = hiddenᵀ dy + dhiddenᵀ x, with all leading axes made rows first.",
        ),
        "dx": (
            "dW is right. x reaches y through both products.",
            "dx = dhidden W, where dhidden is what comes back through the second product.",
            "dhidden = dy Wᵀ, and dx = dhidden W, in the shape of x.",
        ),
    },
)
def there_and_back_backward(dout, cache):
    x, hidden, weight = cache  # (…, K), (…, N), (N, K)
    drows, rows = (array.reshape(-1, array.shape[-1]) for array in (dout, x))  # (R, K)
    dhidden = drows @ weight.T  # (R, N)
    dweight = hidden.reshape(-1, len(weight)).T @ drows + dhidden.T @ rows  # (N, K), of two uses
    return (dhidden @ weight).reshape(x.shape), dweight


def _shares(dout, cache):
    """The gradients of the two uses of W by themselves: where hidden was made, and where it was used."""
    x, hidden, weight = cache
    drows = dout.reshape(-1, dout.shape[-1])
    first = (drows @ weight.T).T @ x.reshape(-1, x.shape[-1])
    return first, hidden.reshape(-1, len(weight)).T @ drows


@there_and_back_backward.mistake(
    "dW is only the share of the second product, y = hidden W. W is also used where hidden is made, and the "
    "two shares add up."
)
def the_second_use_only(dout, cache):
    return there_and_back_backward.solution(dout, cache)[0], _shares(dout, cache)[1]


@there_and_back_backward.mistake(
    "dW is only the share of the first product, hidden = x Wᵀ. W is used again in y = hidden W, and the two "
    "shares add up."
)
def the_first_use_only(dout, cache):
    return there_and_back_backward.solution(dout, cache)[0], _shares(dout, cache)[0]


@there_and_back_backward.mistake(
    "dW is the mean of its two shares. W is used twice, so the shares add up, and nothing is divided."
)
def mean_of_the_two_uses(dout, cache):
    dx, dweight = there_and_back_backward.solution(dout, cache)
    return dx, dweight / 2


@there_and_back_backward.mistake(
    "dW is twice the share of one use. The two uses have different shares: W met x in one and hidden in the "
    "other."
)
def one_share_doubled(dout, cache):
    return there_and_back_backward.solution(dout, cache)[0], 2 * _shares(dout, cache)[1]


@there_and_back_backward.mistake(
    "dx has dout added to it, as if there were a residual connection. x reaches y only through the two "
    "products."
)
def dout_added_to_dx(dout, cache):
    dx, dweight = there_and_back_backward.solution(dout, cache)
    return dx + dout, dweight


@there_and_back_backward.mistake(
    "dx holds x Wᵀ W, which is the forward pass. It should be dout Wᵀ W: what goes back is what came from "
    "above."
)
def the_forward_again(dout, cache):
    _, hidden, weight = cache
    return hidden @ weight, there_and_back_backward.solution(dout, cache)[1]
