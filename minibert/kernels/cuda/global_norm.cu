// √Σ g² over all gradients (ops/optimise.py), in two stages and so always in the same order.
#include "common.cuh"

// sums (blocks,): every block's share of Σ x². x (count,).
extern "C" __global__ void sum_of_squares(const T* x, float* sums, int count) {
    float sum = 0;
    const long long step = (long long)gridDim.x * blockDim.x * PACK;
    for (long long i = (long long)(blockIdx.x * blockDim.x + threadIdx.x) * PACK; i < count; i += step) {
        float value[PACK];
        load(value, x + i, count - i < PACK ? (int)(count - i) : PACK);
#pragma unroll
        for (int j = 0; j < PACK; j++) sum += value[j] * value[j];
    }
    sum = sum_row(sum);
    if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

// norm = √Σ sums, in one block. sums (count,).
extern "C" __global__ void root_of_sum(const float* sums, float* norm, int count) {
    float sum = 0;
    for (int i = threadIdx.x; i < count; i += blockDim.x) sum += sums[i];
    sum = sum_row(sum);
    if (threadIdx.x == 0) *norm = sqrtf(sum);
}
