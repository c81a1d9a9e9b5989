"""Cross-entropy, alone and at the end of the masked-LM head, in place over the scores (cross_entropy.cu)."""

from minibert.arrays import Array, get_array_module
from minibert.kernels.cuda.columns import column_sums
from minibert.kernels.cuda.launch import TILE, contiguous, launch, tile_grid
from minibert.kernels.cuda.products import multiply

ALIGNMENT = 64  # rows of scores begin at multiples of so many elements: 16-byte loads, and cuBLAS likes it

ROWS_PER_BLOCK = 32


def cross_entropy(
    logits: Array, labels: Array, weights: Array, denominator: Array | float
) -> tuple[Array, tuple]:
    """See ``ops.cross_entropy``. The loss is float32."""
    q = logits.copy(order="C")
    loss, row_scale = _replace_scores(q, None, labels, weights, denominator)
    return loss, (q, row_scale)


def cross_entropy_backward(dout: Array | float, cache: tuple) -> Array:
    """See ``ops.cross_entropy_backward``."""
    q, row_scale = cache
    return _scale_rows(q, _scaled(row_scale, dout))


def masked_lm_loss(
    hidden: Array,
    weight: Array,
    bias: Array,
    labels: Array,
    label_weights: Array,
    denominator: Array | float,
) -> tuple[Array, tuple]:
    """See ``composites.masked_lm_loss``. The loss is float32.

    The denominator may be a 0-d array on the device, so that a captured graph can be replayed with another.
    """
    xp, (rows, vocabulary) = get_array_module(hidden), (hidden.shape[0], weight.shape[0])
    hidden, weight = contiguous(hidden), contiguous(weight, hidden.dtype)
    padded = -(-vocabulary // ALIGNMENT) * ALIGNMENT
    filled = _fill_up(weight, padded)  # (V′, H)
    scores = xp.empty((rows, padded), dtype=hidden.dtype)[:, : len(filled)]
    multiply(hidden, filled.T, scores)  # zeros in the last V′ − V columns, and they stay there
    q = scores[:, :vocabulary]  # (N, V), the scores at first
    loss, row_scale = _replace_scores(q, contiguous(bias, "float32"), labels, label_weights, denominator)
    return loss, (hidden, filled, scores, vocabulary, row_scale)


def masked_lm_loss_backward(dout: Array | float, cache: tuple) -> tuple[Array, Array, Array]:
    """See ``composites.masked_lm_loss_backward``. The gradients of weight and bias are float32.

    dscores = scale · q row by row, so dhidden = scale · (q W), dweight = qᵀ (scale · hidden) and
    dbias = Σ scale · q: the scores are only read.
    """
    hidden, filled, scores, vocabulary, row_scale = cache
    xp, q = get_array_module(hidden), scores[:, :vocabulary]
    row_scale = _scaled(row_scale, dout)
    dhidden = multiply(scores, filled, xp.empty_like(hidden))
    dweight = xp.empty((vocabulary, hidden.shape[1]), dtype="float32")
    multiply(q.T, _scale_rows(hidden, row_scale), dweight)
    return _scale_rows(dhidden, row_scale), dweight, column_sums(q, row_scale)


def _scaled(row_scale: Array, dout: Array | float) -> Array:
    """Their product in float32, which the kernels read, even if dout is an array of another dtype."""
    return (row_scale * dout).astype("float32", copy=False)


def _fill_up(weight: Array, rows: int) -> Array:
    """weight (V, H) with zeros up to so many rows, in 16 bits: cuBLAS's product is then twice as fast.

    Its kernels for 16 bits want sizes that are multiples of 8. In float32 the weight stays as it is.
    """
    vocabulary, size = weight.shape
    if vocabulary == rows or weight.dtype.itemsize > 2:
        return weight
    filled = get_array_module(weight).zeros((rows, size), dtype=weight.dtype)
    filled[:vocabulary] = weight
    return filled


def _replace_scores(
    scores: Array, bias: Array | None, labels: Array, weights: Array, denominator: Array | float
) -> tuple[Array, Array]:
    """Turn the scores (N, V) into q, and return the loss, 0-d, and the rows' scale (N,), both float32."""
    xp, (rows, columns) = get_array_module(scores), scores.shape
    labels, weights = contiguous(labels, "int32"), contiguous(weights, "float32")
    denominator = xp.asarray(denominator, dtype="float32")
    losses, row_scale = xp.empty(rows, dtype="float32"), xp.empty(rows, dtype="float32")
    threads = min(max(-(-columns // 32) * 32, 32), 512)
    stride = scores.strides[0] // scores.itemsize
    arrays = scores, bias, labels, weights, denominator, losses, row_scale
    numbers = columns, stride
    launch("cross_entropy", "cross_entropy", scores.dtype.name, (rows,), (threads,), *arrays, *numbers)
    loss = xp.empty((), dtype="float32")
    launch("cross_entropy", "sum", scores.dtype.name, (1,), (256,), losses, loss, rows)
    return loss, row_scale


def _scale_rows(x: Array, row_scale: Array) -> Array:
    """row_scale[r] · x[r, c]; x (R, C), row_scale (R,)."""
    y, (rows, columns), dtype = get_array_module(x).empty_like(x), x.shape, x.dtype.name
    grid = -(-rows // ROWS_PER_BLOCK), tile_grid(columns, dtype)
    arrays = x, row_scale, y
    numbers = rows, ROWS_PER_BLOCK, columns
    launch("cross_entropy", "scale_rows", dtype, grid, TILE, *arrays, *numbers)
    return y
