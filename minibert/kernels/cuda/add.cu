// The sum of two derivatives, where a value went along two paths (ops/paths.py).
//
//     total += part
#include "common.cuh"

// total, part (count,).
extern "C" __global__ void add(T* total, const T* part, int count) {
    const long long at = ((long long)blockIdx.x * blockDim.x + threadIdx.x) * PACK;
    const int here = count - at < PACK ? (int)(count - at) : PACK;
    float x[PACK], y[PACK];
    load(x, total + at, here);
    load(y, part + at, here);
#pragma unroll
    for (int j = 0; j < PACK; j++) x[j] += y[j];
    store(total + at, here, x);
}
