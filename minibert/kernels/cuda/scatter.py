"""The gradient of a look-up without atomics: the same bits every time (scatter.cu)."""

from minibert.arrays import Array, get_array_module
from minibert.kernels.cuda.launch import TILE, contiguous, launch, tile_grid

SORT_TILE, DIGITS, CHUNK = 512, 256, 32  # as in scatter.cu


def sort_ids(ids: Array, count: int, dtype: str) -> tuple[Array, Array]:
    """ids (n,) int32 in [0, count) → the ids in order, and where each stood; equal ids keep their order.

    ``dtype`` only says which of the compiled sources is at hand.
    """
    xp = get_array_module(ids)
    n, order = ids.shape[0], None
    blocks = -(-n // SORT_TILE)
    tiles = dtype, (blocks,), (DIGITS,)
    for shift in range(0, max((count - 1).bit_length(), 1), 8):
        counts = xp.empty((DIGITS, blocks), dtype="int32")
        launch("scatter", "count_digits", *tiles, ids, counts, n, shift)
        launch("scatter", "running_sums", dtype, (1,), (1024,), counts, counts.size)
        placed, placed_order = xp.empty_like(ids), xp.empty_like(ids)
        launch("scatter", "place_by_digit", *tiles, ids, order, counts, placed, placed_order, n, shift)
        ids, order = placed, placed_order
    return ids, order


def scatter_rows(ids: Array, d: Array, count: int) -> Array:
    """dweight[v] = Σ d[r] over all r with ids[r] = v: ids (n,), d (n, H) → (count, H) float32."""
    xp = get_array_module(d)
    dtype, (n, size) = d.dtype.name, d.shape
    ids, order = sort_ids(contiguous(ids, "int32"), count, dtype)
    dweight = xp.zeros((count, size), dtype="float32")
    chunks, tiles = -(-n // CHUNK), tile_grid(size, dtype)
    partial = xp.empty((chunks, 2, size), dtype="float32")
    grid = -(-chunks // TILE[1]), tiles
    launch("scatter", "sum_runs", dtype, grid, TILE, ids, order, d, dweight, partial, n, size)
    if chunks > 1:
        launch("scatter", "join_runs", dtype, (chunks - 1, tiles), TILE, ids, partial, dweight, n, size)
    return dweight


def embedding(weight: Array, ids: Array) -> tuple[Array, tuple]:
    """See ``ops.embedding``."""
    return weight[ids], (ids, weight.shape[0], weight.dtype)


def embedding_backward(dout: Array, cache: tuple) -> Array:
    """See ``ops.embedding_backward``. Added up in float32; a table in 16 bits is one of activations."""
    ids, count, dtype = cache
    dweight = scatter_rows(ids.reshape(-1), contiguous(dout, dtype).reshape(-1, dout.shape[-1]), count)
    return dweight.astype(dtype, copy=False)
