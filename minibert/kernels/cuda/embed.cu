// Three look-ups + LayerNorm + dropout: the input of BERT (ops/composites.py, embed).
//
//     z = word[id] + position[s] + token_type[type],   y = dropout(γ x̂ + β),   x̂ = (z − mean(z)) / σ
//
// One pass over the rows. The forward keeps x̂ and 1/σ. The backward stops at dz, which is the derivative of
// all three tables' rows; scatter.cu adds it up where rows were used more than once. It leaves the sums over
// the rows of each block, Σ d x̂ (dγ) and Σ d (dβ), for column_sums (columns.cu) to add up.
#include "norm.cuh"

// word (V, size), position (at least length, size), token_type (types, size), weight and bias (size,), ids
// and types (rows,) with row = b · length + s; y and normalised (rows, size), inverse_std (rows,).
extern "C" __global__ void embed(
    const T* word, const T* position, const T* token_type, const float* weight, const float* bias,
    const int* ids, const int* types, T* y, T* normalised, float* inverse_std,
    int rows, int rows_per_block, int length, int size,
    float eps, const unsigned int* key, int threshold, float scale) {
    const int column = threadIdx.x * PACK, count = size - column;
    float gamma[PACK], beta[PACK];
    load(gamma, weight + column, count);
    load(beta, bias + column, count);
    for (int first = blockIdx.x * rows_per_block, i = 0; i < rows_per_block; i += blockDim.y) {
        const int row = first + i + threadIdx.y;
        const bool there = row < rows;
        const long long at = (long long)row * size + column;
        const int here = there ? count : 0;

        float z[PACK], added[PACK];
        load(z, word + (long long)(there ? ids[row] : 0) * size + column, here);
        load(added, position + (long long)(row % length) * size + column, here);
#pragma unroll
        for (int j = 0; j < PACK; j++) z[j] += added[j];
        load(added, token_type + (long long)(there ? types[row] : 0) * size + column, here);
#pragma unroll
        for (int j = 0; j < PACK; j++) z[j] += added[j];

        const float inverse = normalise(z, here, size, eps);
        store(normalised + at, here, z);
#pragma unroll
        for (int j = 0; j < PACK; j++) z[j] = gamma[j] * z[j] + beta[j];
        drop(z, at, key, threshold, scale);
        store(y + at, here, z);
        if (threadIdx.x == 0 && there) inverse_std[row] = inverse;
    }
}

// dout, normalised, dz (rows, size), inverse_std (rows,), weight (size,); sums (blocks, 2, size): dγ and dβ.
extern "C" __global__ void embed_backward(
    const T* dout, const T* normalised, const float* inverse_std, const float* weight, T* dz, float* sums,
    int rows, int rows_per_block, int size, const unsigned int* key, int threshold, float scale) {
    const int column = threadIdx.x * PACK, count = size - column;
    float gamma[PACK], dgamma[PACK] = {}, dbeta[PACK] = {};
    load(gamma, weight + column, count);
    for (int first = blockIdx.x * rows_per_block, i = 0; i < rows_per_block; i += blockDim.y) {
        const int row = first + i + threadIdx.y;
        const long long at = (long long)row * size + column;
        const int here = row < rows ? count : 0;

        float d[PACK], x_hat[PACK];
        load(d, dout + at, here);
        load(x_hat, normalised + at, here);
        drop(d, at, key, threshold, scale);
#pragma unroll
        for (int j = 0; j < PACK; j++) {
            dgamma[j] += d[j] * x_hat[j];
            dbeta[j] += d[j];
        }
        normalise_backward(d, x_hat, gamma, here > 0 ? inverse_std[row] : 0.0f, size);
        store(dz + at, here, d);
    }
    float* to = sums + (long long)blockIdx.x * 2 * size + column;
    store_column_sums(to, count, dgamma);
    store_column_sums(to + size, count, dbeta);
}
