"""Sums over the rows of a matrix, in two stages and always in the same order (columns.cu)."""

from minibert.arrays import Array, get_array_module
from minibert.kernels.cuda.launch import TILE, launch, tile_grid

STAGE_TWO = (8, 32)  # the block for sums of sums: few columns, many rows


def column_sums(x: Array, row_scale: Array | None = None) -> Array:
    """Σᵣ row_scale[r] · x[r, c]: x (R, C) with its columns side by side, row_scale (R,) → (C,) float32."""
    rows, columns = x.shape
    grid, per_block = sum_grid(rows, columns, x.dtype.name)
    sums = get_array_module(x).empty((grid[0], columns), dtype="float32")
    stride = x.strides[0] // x.itemsize
    arrays, numbers = (x, row_scale, sums), (rows, per_block, columns, stride)
    launch("columns", "column_sums", x.dtype.name, grid, TILE, *arrays, *numbers)
    return add_sums(sums)


def sum_grid(rows: int, columns: int, dtype: str, blocks: int = 1024) -> tuple[tuple[int, int], int]:
    """The grid of a kernel that leaves sums over the rows of each block, and how many rows a block has.

    So many blocks that the GPU is busy, about ``blocks``, and so many rows in each, at least 32, that few
    sums are left to add up.
    """
    tiles = tile_grid(columns, dtype)
    per_block = max(32, -(-rows * tiles // blocks))
    return (-(-rows // per_block), tiles), per_block


def add_sums(sums: Array) -> Array:
    """Add up what the blocks left: sums (blocks, …) float32 → (…)."""
    blocks = sums.shape[0]
    if blocks == 1:
        return sums[0]
    total = get_array_module(sums).empty(sums.shape[1:], dtype="float32")
    columns = total.size
    grid = 1, tile_grid(columns, "float32", STAGE_TWO[0])
    arrays, numbers = (sums, None, total), (blocks, blocks, columns, columns)
    launch("columns", "column_sums", "float32", grid, STAGE_TWO, *arrays, *numbers)
    return total
