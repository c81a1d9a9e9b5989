"""02 Linear: the three products. forward: y = x Wᵀ + b."""

from minibert.course.exercise import exercise, gradient_trial
from minibert.ops.linear_map import linear
from minibert.ops.linear_map import linear_backward as library_backward


@exercise(
    "02",
    outputs="dx dweight dbias",
    trials=lambda draw: [
        gradient_trial(
            linear, {"x": draw.normal(*shape), "weight": draw.matrix(5, 6), "bias": draw.normal(5)}, label
        )
        for shape, label in (((3, 4, 6), ""), ((7, 6), "x (7, 6)"))
    ],
    reference=library_backward,
    hints=(
        "Let the shapes lead you: dx has x's, dweight has weight's, dbias has bias's. Which products give "
        "them?",
        "Make rows of x and dout first: every leading axis is just more rows. dx is a product of dout and W, "
        "dW one of dout and x, and b was broadcast over the rows.",
        "dx = dout W, dW = doutᵀ x, db = Σ dout over the rows; dx gets x's shape back at the end. See "
        "`linear_backward` in minibert/ops/linear_map.py.",
    ),
    hints_for={
        "dx": (
            "How does x reach y? Every y[n] of a row has every x[k] of it inside, times W[n, k].",
            "dx[r, k] = Σₙ dout[r, n] W[n, k]: a product of dout and W as it is stored.",
            "dx = dout W, and its leading axes are those of x: (drows @ weight).reshape(x.shape).",
        ),
        "dweight": (
            "Every row used W: what W[n, k] got from all rows is added up.",
            "dW[n, k] = Σᵣ dout[r, n] x[r, k]. With rows made of both, this sum is a matrix product.",
            "dW = doutᵀ x: drows.T @ rows, which has the shape of W at once.",
        ),
        "dbias": (
            "Every row used b: what it got from all rows is added up.",
            "b was broadcast over all axes but the last. The gradient is the sum over these.",
            "db = drows.sum(axis=0), where drows is dout with all leading axes made one.",
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
    "comes in with dout. Here it would be divided a second time."
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
    "dweight has the right shape and the wrong numbers: it is xᵀ dout, reshaped. A reshape does not "
    "transpose, it reads the same numbers off in another order. Take doutᵀ x."
)
def dweight_transposed_then_reshaped(dout, cache):
    dx, dweight, dbias = linear_backward.solution(dout, cache)
    return dx, dweight.T.reshape(dweight.shape), dbias


@linear_backward.mistake(
    "dweight holds one gradient for every sequence. The same W served them all: sum over the batch, too."
)
def dweight_for_each_sequence(dout, cache):
    x, _ = cache
    dx, _, dbias = linear_backward.solution(dout, cache)
    return dx, dout.swapaxes(-1, -2) @ x, dbias


@linear_backward.mistake(
    "dbias is summed over axes 0 and 1. That is right for (B, S, N), but x may have any number of leading "
    "axes, as in the head that gets chosen rows only: make rows of dout and sum over axis 0."
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
    "dweight is made with dout.reshape(N, -1). A reshape does not transpose, it reads the same numbers off "
    "in another order. Make rows first, dout.reshape(-1, N), and transpose these."
)
def dout_reshaped_for_transposed(dout, cache):
    x, weight = cache
    dx, _, dbias = linear_backward.solution(dout, cache)
    return dx, dout.reshape(len(weight), -1) @ x.reshape(-1, x.shape[-1]), dbias
