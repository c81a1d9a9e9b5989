// LayerNorm of one row, forward and backward, for the kernels that fuse it with their own work
// (ops/layer_normalisation.py). The row is spread over threadIdx.x; a thread's numbers stay in its registers.
#pragma once
#include "common.cuh"

// x becomes x̂ = (x − μ) / σ; returns 1/σ. Beyond the row, where x is 0, x̂ is 0.
__device__ inline float normalise(float (&x)[PACK], int count, int size, float eps) {
    const float mean = sum_row(sum_pack(x)) / size;
    float squares = 0;
#pragma unroll
    for (int i = 0; i < PACK; i++) {
        x[i] = i < count ? x[i] - mean : 0.0f;
        squares += x[i] * x[i];
    }
    const float inverse_std = 1.0f / sqrtf(sum_row(squares) / size + eps);
#pragma unroll
    for (int i = 0; i < PACK; i++) x[i] *= inverse_std;
    return inverse_std;
}

// d, the derivative with respect to γ x̂ + β, becomes that with respect to x:
// (dx̂ − mean(dx̂) − x̂ mean(dx̂ x̂)) / σ with dx̂ = γ d.
__device__ inline void normalise_backward(
    float (&d)[PACK], const float (&normalised)[PACK], const float (&weight)[PACK], float inverse_std, int size) {
    float products = 0;
#pragma unroll
    for (int i = 0; i < PACK; i++) {
        d[i] *= weight[i];
        products += d[i] * normalised[i];
    }
    const float mean = sum_row(sum_pack(d)) / size;
    const float projection = sum_row(products) / size;
#pragma unroll
    for (int i = 0; i < PACK; i++) d[i] = (d[i] - mean - normalised[i] * projection) * inverse_std;
}
