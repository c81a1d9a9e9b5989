"""y = x Wᵀ + b: the matrix product in which a transformer spends nearly all of its time."""

from minibert.arrays import Array

Cache = tuple


def linear(x: Array, weight: Array, bias: Array) -> tuple[Array, Cache]:
    """Affine map of the last axis: y = x Wᵀ + b.

    x (…, K), weight (N, K), bias (N,) → y (…, N). The weight is stored as (outputs, inputs), as in
    PyTorch, so row n holds the weights of output n.
    """
    rows = x.reshape(-1, x.shape[-1])  # (R, K): every leading axis is just "more rows"
    y = rows @ weight.T + bias  # (R, N)
    return y.reshape(*x.shape[:-1], weight.shape[0]), (x, weight)


def linear_backward(dout: Array, cache: Cache) -> tuple[Array, Array, Array]:
    """Derivatives of :func:`linear`: dx, dweight, dbias.

    forward: y[r, n] = Σₖ x[r, k] W[n, k] + b[n], so with dout[r, n] = ∂loss/∂y[r, n]

        dx[r, k] = Σₙ dout[r, n] W[n, k]        every output that x[r, k] fed
        dW[n, k] = Σᵣ dout[r, n] x[r, k]        every row that used the same weight
        db[n]    = Σᵣ dout[r, n]                b was broadcast over the rows, so its gradient sums over them
    """
    x, weight = cache
    rows = x.reshape(-1, x.shape[-1])  # (R, K)
    dout = dout.reshape(-1, dout.shape[-1])  # (R, N)
    dx = (dout @ weight).reshape(x.shape)  # (…, K)
    dweight = dout.T @ rows  # (N, K)
    dbias = dout.sum(axis=0)  # (N,)
    return dx, dweight, dbias
