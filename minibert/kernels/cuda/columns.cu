// Sums over the rows of a matrix: the gradient of whatever was broadcast over them (biases, γ, β, positions).
//
//     sums[c] = Σᵣ scale[r] · x[r, c]
//
// In two stages: every block adds up its own rows, and a second launch, on the blocks' sums as a matrix of
// float32, adds those. No atomics, so the same bits every time.
#include "common.cuh"

// x (rows, columns) with `stride` numbers from one row to the next, row_scale (rows,) or null for 1;
// sums (blocks, columns).
extern "C" __global__ void column_sums(
    const T* x, const float* row_scale, float* sums, int rows, int rows_per_block, int columns, int stride) {
    const int column = (blockIdx.y * blockDim.x + threadIdx.x) * PACK, count = columns - column;
    const int end = min(rows, (int)(blockIdx.x + 1) * rows_per_block);
    float sum[PACK] = {};
#pragma unroll 4
    for (int row = blockIdx.x * rows_per_block + threadIdx.y; row < end; row += blockDim.y) {
        float value[PACK];
        load(value, x + (long long)row * stride + column, count);
        const float scale = row_scale ? row_scale[row] : 1.0f;
#pragma unroll
        for (int j = 0; j < PACK; j++) sum[j] += scale * value[j];
    }
    store_column_sums(sums + (long long)blockIdx.x * columns + column, count, sum);
}
