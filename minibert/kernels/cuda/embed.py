"""Embeddings + LayerNorm + dropout (embed.cu)."""

from minibert.arrays import Array, get_array_module
from minibert.dropout_bits import DropoutKey
from minibert.kernels.cuda.columns import add_sums, column_sums
from minibert.kernels.cuda.dropout import dropout_arguments
from minibert.kernels.cuda.launch import (
    MAX_TILES,
    KernelError,
    contiguous,
    launch,
    row_block,
    row_grid,
    tile_grid,
)
from minibert.kernels.cuda.residual_norm import BACKWARD_ROWS, FORWARD_ROWS
from minibert.kernels.cuda.scatter import scatter_rows


def embed(
    word_weight: Array,
    position_weight: Array,
    token_type_weight: Array,
    norm_weight: Array,
    norm_bias: Array,
    input_ids: Array,
    token_type_ids: Array,
    eps: float,
    probability: float,
    key: DropoutKey | Array | None,
) -> tuple[Array, tuple]:
    """See ``composites.embed``. Computed in the dtype of the word table."""
    xp, dtype = get_array_module(word_weight), word_weight.dtype.name
    (batch, length), size = input_ids.shape, word_weight.shape[1]
    if tile_grid(length * size, dtype) > MAX_TILES:
        raise KernelError(f"{length} positions of {size} numbers are too many to add up in one kernel")
    tables = [contiguous(table, dtype) for table in (word_weight, position_weight, token_type_weight)]
    norm_weight, norm_bias = contiguous(norm_weight, "float32"), contiguous(norm_bias, "float32")
    ids, types = contiguous(input_ids, "int32"), contiguous(token_type_ids, "int32")
    dropout = dropout_arguments(word_weight, probability, key)
    y = xp.empty((batch, length, size), dtype=word_weight.dtype)
    normalised = xp.empty_like(y)
    inverse_std = xp.empty(batch * length, dtype="float32")
    block = row_block(size, dtype)
    grid, per_block = row_grid(ids.size, block, FORWARD_ROWS)
    arrays = *tables, norm_weight, norm_bias, ids, types, y, normalised, inverse_std
    numbers = ids.size, per_block, length, size, eps
    launch("embed", "embed", dtype, grid, block, *arrays, *numbers, *dropout)
    counts = [table.shape[0] for table in tables]
    return y, (ids, types, counts, normalised, inverse_std, norm_weight, dropout)


def embed_backward(dout: Array, cache: tuple) -> tuple[Array, Array, Array, Array, Array]:
    """See ``composites.embed_backward``. All gradients are float32."""
    ids, types, (words, positions, token_types), normalised, inverse_std, norm_weight, dropout = cache
    xp, dtype = get_array_module(normalised), normalised.dtype.name
    batch, length, size = normalised.shape
    dz = xp.empty_like(normalised)
    block = row_block(size, dtype)
    grid, per_block = row_grid(ids.size, block, BACKWARD_ROWS)
    sums = xp.empty((grid[0], 2, size), dtype="float32")
    arrays = contiguous(dout, dz.dtype), normalised, inverse_std, norm_weight, dz, sums
    numbers = ids.size, per_block, size
    launch("embed", "embed_backward", dtype, grid, block, *arrays, *numbers, *dropout)
    dnorm_weight, dnorm_bias = add_sums(sums)
    rows = dz.reshape(-1, size)
    dposition = xp.zeros((positions, size), dtype="float32")
    dposition[:length] = column_sums(dz.reshape(batch, length * size)).reshape(length, size)
    dword = scatter_rows(ids.reshape(-1), rows, words)
    dtoken_type = scatter_rows(types.reshape(-1), rows, token_types)
    return dword, dposition, dtoken_type, dnorm_weight, dnorm_bias
