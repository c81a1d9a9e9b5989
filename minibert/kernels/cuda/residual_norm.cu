// dropout + residual + LayerNorm: how every sublayer of BERT ends (ops/composites.py).
//
//     z = residual + dropout(x),   y = γ x̂ + β,   x̂ = (z − mean(z)) / σ,   σ = √(mean((z − mean)²) + ε)
//
// One pass over the rows instead of a dozen. Without a residual and a key this is LayerNorm alone.
// The forward keeps x̂ and 1/σ. The backward leaves the sums over the rows of each block, Σ dout x̂ (dγ) and
// Σ dout (dβ), for column_sums (columns.cu) to add up: the same bits every time.
#include "norm.cuh"

// x, residual, y, normalised (rows, size), weight, bias (size,), inverse_std (rows,).
extern "C" __global__ void residual_norm(
    const T* x, const T* residual, const float* weight, const float* bias,
    T* y, T* normalised, float* inverse_std,
    int rows, int rows_per_block, int size, float eps, const unsigned int* key, int threshold, float scale) {
    const int column = threadIdx.x * PACK, count = size - column;
    float gamma[PACK], beta[PACK];
    load(gamma, weight + column, count);
    load(beta, bias + column, count);
    for (int first = blockIdx.x * rows_per_block, i = 0; i < rows_per_block; i += blockDim.y) {
        const int row = first + i + threadIdx.y;
        const long long at = (long long)row * size + column;
        const int here = row < rows ? count : 0;  // past the last row there is nothing to do

        float z[PACK], added[PACK];
        load(z, x + at, here);
        load(added, residual + at, residual ? here : 0);
        drop(z, at, key, threshold, scale);
#pragma unroll
        for (int j = 0; j < PACK; j++) z[j] += added[j];

        const float inverse = normalise(z, here, size, eps);
        store(normalised + at, here, z);
#pragma unroll
        for (int j = 0; j < PACK; j++) z[j] = gamma[j] * z[j] + beta[j];
        store(y + at, here, z);
        if (threadIdx.x == 0 && here > 0) inverse_std[row] = inverse;
    }
}

// dout, normalised, dz, dx (rows, size); sums (blocks, 2, size): dγ, dβ.
// dz is the residual's derivative. dx is null where there is no dropout: it would be dz again.
extern "C" __global__ void residual_norm_backward(
    const T* dout, const T* normalised, const float* inverse_std, const float* weight,
    T* dz, T* dx, float* sums,
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
#pragma unroll
        for (int j = 0; j < PACK; j++) {
            dgamma[j] += d[j] * x_hat[j];
            dbeta[j] += d[j];
        }
        normalise_backward(d, x_hat, gamma, here > 0 ? inverse_std[row] : 0.0f, size);
        store(dz + at, here, d);
        drop(d, at, key, threshold, scale);
        if (dx) store(dx + at, here, d);
    }
    float* to = sums + (long long)blockIdx.x * 2 * size + column;
    store_column_sums(to, count, dgamma);
    store_column_sums(to + size, count, dbeta);
}
