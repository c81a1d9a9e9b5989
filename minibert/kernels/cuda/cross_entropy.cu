// bias + softmax + cross-entropy over rows of scores, in place (ops/cross_entropy_loss.py, ops.masked_lm_loss).
//
//     loss = Σᵣ w[r] · (−log p[r, label]) / denominator,   p = softmax(z + b)
//
// The forward reads the scores z twice and leaves in their place the derivative but for its row's scale:
//
//     q[r, j] = p[r, j] − [j = label],   dz[r, j] = dout · scale[r] · q[r, j],   scale[r] = w[r] / denominator
//
// Numbers between −1 and 1, which 16 bits hold well; w/denominator would push them below what float16 has.
// The scale is applied to the much smaller (rows, H) matrices around: dx = scale · (q W), dW = qᵀ (scale · x).
#include "common.cuh"

// A block for a row, blockDim.y = 1. scores, in the end q: (rows, columns) with `stride` numbers from one
// row to the next; bias (columns,) or null; labels, weights, losses, row_scale (rows,); denominator a scalar.
extern "C" __global__ void cross_entropy(
    T* scores, const float* bias, const int* labels, const float* weights, const float* denominator,
    float* losses, float* row_scale, int columns, int stride) {
    const int row = blockIdx.x, label = labels[row];
    const float weight = weights[row];
    T* z = scores + (long long)row * stride;

    // The largest score so far, and the sum of exp(score − largest): scaled down when a larger one comes.
    float largest = -3.40282347e38f, total = 0;
    for (int column = threadIdx.x * PACK; column < columns; column += blockDim.x * PACK) {
        const int count = columns - column;
        float x[PACK], b[PACK];
        load(x, z + column, count);
        load(b, bias + column, bias ? count : 0);
        float before = largest;
#pragma unroll
        for (int j = 0; j < PACK; j++) {
            x[j] += b[j];
            if (j < count) largest = fmaxf(largest, x[j]);
        }
        total *= expf(before - largest);
#pragma unroll
        for (int j = 0; j < PACK; j++) total += j < count ? expf(x[j] - largest) : 0.0f;
    }
    const float highest = max_row(largest);
    total = sum_row(total * expf(largest - highest));
    const float inverse = 1.0f / total;

    if (threadIdx.x == 0) {
        const float scale = weight / *denominator;
        float loss = 0;
        if (weight != 0.0f) {  // a row of weight 0 counts for nothing; its label may lie outside the columns
            const float score = to_float(z[label]) + (bias ? bias[label] : 0.0f);
            loss = scale * (logf(total) - (score - highest));
        }
        losses[row] = loss;
        row_scale[row] = scale;
    }
    __syncthreads();  // the label's score has been read

    for (int column = threadIdx.x * PACK; column < columns; column += blockDim.x * PACK) {
        const int count = columns - column;
        float q[PACK], b[PACK];
        load(q, z + column, count);
        load(b, bias + column, bias ? count : 0);
#pragma unroll
        for (int j = 0; j < PACK; j++)
            q[j] = expf(q[j] + b[j] - highest) * inverse - (column + j == label ? 1.0f : 0.0f);
        store(z + column, count, q);
    }
}

// total = Σ x, in one block: always in the same order.
extern "C" __global__ void sum(const float* x, float* total, int count) {
    float mine = 0;
    for (int i = threadIdx.x; i < count; i += blockDim.x) mine += x[i];
    mine = sum_row(mine);
    if (threadIdx.x == 0) *total = mine;
}

// y[r, c] = scale[r] · x[r, c]; x and y (rows, columns) may be one array.
extern "C" __global__ void scale_rows(
    const T* x, const float* scale, T* y, int rows, int rows_per_block, int columns) {
    const int column = (blockIdx.y * blockDim.x + threadIdx.x) * PACK, count = columns - column;
    const int end = min(rows, (int)(blockIdx.x + 1) * rows_per_block);
    for (int row = blockIdx.x * rows_per_block + threadIdx.y; row < end; row += blockDim.y) {
        const long long at = (long long)row * columns + column;
        float value[PACK];
        load(value, x + at, count);
#pragma unroll
        for (int j = 0; j < PACK; j++) value[j] *= scale[row];
        store(y + at, count, value);
    }
}
