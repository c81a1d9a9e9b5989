// bias + activation, the end of a linear map, and its backward with the bias's gradient (ops/activations.py).
//
//     forward:   y = f(z + b)                                             z = x Wᵀ
//     backward:  dz = dout · f'(z + b),   db = Σ dz over the rows
//
// f is a row of the table below. The forward keeps z, as it came from the matrix product; y may be z itself.
// The backward leaves the sums over the rows of each block for column_sums (columns.cu) to add up.
#include "common.cuh"

// Φ(x) = ½ (1 + erf(x/√2)) and e = exp(−x²/2), of which Φ is made, too: erff would take as long again. With
// t = 1 / (1 + 0.2316 |x|), Φ(−|x|) = e · (a₁ t + … + a₅ t⁵), at most 7.5e-8 off (Abramowitz and Stegun, 26.2.17).
__device__ inline float normal(float x, float& e) {
    const float t = __fdividef(1.0f, 1.0f + 0.23164189f * fabsf(x));
    e = expf(-0.5f * x * x);
    const float a = 0.7107068705f + t * (-0.7265760135f + t * 0.5307027145f);
    const float tail = e * t * (0.127414796f + t * (-0.142248368f + t * a));
    return x < 0.0f ? tail : 1.0f - tail;
}

// f(x) = x Φ(x).   f'(x) = Φ(x) + x φ(x), φ(x) = exp(−x²/2) / √(2π).
__device__ inline float gelu(float x) {
    float e;
    return x * normal(x, e);
}

__device__ inline float gelu_derivative(float x) {
    float e;
    const float below = normal(x, e);
    return below + x * e * 0.39894228f;
}

// f(x) = ½ x (1 + t), t = tanh(√(2/π) (x + 0.044715 x³)).
// f'(x) = ½ (1 + t) + ½ x (1 − t²) √(2/π) (1 + 3 · 0.044715 x²).
__device__ inline float gelu_tanh(float x) {
    return 0.5f * x * (1.0f + tanhf(0.79788456f * (x + 0.044715f * x * x * x)));
}

__device__ inline float gelu_tanh_derivative(float x) {
    const float t = tanhf(0.79788456f * (x + 0.044715f * x * x * x));
    return 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * 0.79788456f * (1.0f + 0.134145f * x * x);
}

__device__ inline float tanh_derivative(float x) {
    const float t = tanhf(x);
    return 1.0f - t * t;
}

// All activations that CUDA knows: a number for the kernels' arguments, the name of the reference in
// ops/activations.py, f(x), f'(x). activation.py reads numbers and names here. A linear map has the identity.
template <bool derivative>
__device__ inline float activate(float x, int activation) {
#define ROW(number, name, f, df) \
    case number: return derivative ? df : f;
    switch (activation) {  // the same in all threads
        ROW(0, identity, x, 1.0f)
        ROW(1, gelu, gelu(x), gelu_derivative(x))
        ROW(2, gelu_tanh, gelu_tanh(x), gelu_tanh_derivative(x))
        ROW(3, relu, (x < 0.0f ? 0.0f : x), (x > 0.0f ? 1.0f : 0.0f))  // fmaxf would turn NaN into 0
        ROW(4, tanh, tanhf(x), tanh_derivative(x))
    }
#undef ROW
    return x;
}

// z, y (rows, columns), bias (columns,).
extern "C" __global__ void bias_activation(
    const T* z, const float* bias, T* y, int rows, int rows_per_block, int columns, int activation) {
    const int column = (blockIdx.y * blockDim.x + threadIdx.x) * PACK, count = columns - column;
    const int end = min(rows, (int)(blockIdx.x + 1) * rows_per_block);
    float b[PACK];
    load(b, bias + column, count);
    for (int row = blockIdx.x * rows_per_block + threadIdx.y; row < end; row += blockDim.y) {
        const long long at = (long long)row * columns + column;
        float x[PACK];
        load(x, z + at, count);
#pragma unroll
        for (int j = 0; j < PACK; j++) x[j] = activate<false>(x[j] + b[j], activation);
        store(y + at, count, x);
    }
}

// dout, z, dz (rows, columns), bias (columns,), sums (blocks, columns): db.
extern "C" __global__ void bias_activation_backward(
    const T* dout, const T* z, const float* bias, T* dz, float* sums,
    int rows, int rows_per_block, int columns, int activation) {
    const int column = (blockIdx.y * blockDim.x + threadIdx.x) * PACK, count = columns - column;
    const int end = min(rows, (int)(blockIdx.x + 1) * rows_per_block);
    float b[PACK], db[PACK] = {};
    load(b, bias + column, count);
    for (int row = blockIdx.x * rows_per_block + threadIdx.y; row < end; row += blockDim.y) {
        const long long at = (long long)row * columns + column;
        float d[PACK], x[PACK];
        load(d, dout + at, count);
        load(x, z + at, count);
#pragma unroll
        for (int j = 0; j < PACK; j++) {
            d[j] *= activate<true>(x[j] + b[j], activation);
            db[j] += d[j];
        }
        store(dz + at, count, d);
    }
    store_column_sums(sums + (long long)blockIdx.x * columns + column, count, db);
}
