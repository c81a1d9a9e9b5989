"""Looking rows up in a table, and adding gradients back to them."""

from minibert.arrays import Array, add_rows, get_array_module

Cache = tuple


def embedding(weight: Array, ids: Array) -> tuple[Array, Cache]:
    """y = weight[ids]: row ids[…] of the table, for every id.

    weight (V, H), ids (…) integers in [0, V) → y (…, H). The ids must be in range: this is checked
    where they enter the model, because a GPU would wrap them silently.
    """
    return weight[ids], (ids, weight.shape)


def embedding_backward(dout: Array, cache: Cache) -> Array:
    """Derivative of :func:`embedding` with respect to the table: dweight (V, H).

    forward: y[r] = weight[ids[r]], so dweight[v] = Σ dout[r] over all r with ids[r] = v. An id that
    occurs twice collects two gradients (``add_rows``): ``dweight[ids] += dout`` would keep only one of them.
    """
    ids, shape = cache
    xp = get_array_module(dout)
    dweight = xp.zeros(shape, dtype=dout.dtype)
    add_rows(dweight, ids.reshape(-1), dout.reshape(-1, shape[-1]))
    return dweight
