// mask + softmax + dropout, between the two matrix products of attention (ops/attention.py).
//
//     forward:   p = softmax(s + bias),   p̃ = dropout(p)                 s = q kᵀ / √D
//     backward:  dp = dropout_backward(dp̃),   ds = p (dp − Σ dp p)
//
// Both work in place: p takes the place of s, ds that of dp̃. A row holds the scores of one query for all
// keys. The products q kᵀ, p̃ v and their derivatives are cuBLAS's, and so is the factor 1/√D (attention.py).
#include "common.cuh"

// scores, dropped (rows, length), row = (b · heads + a) · length + query; its bias (length,) begins at
// bias + b · bias_batch + a · bias_head + query · bias_query. dropped is null where there is no dropout.
extern "C" __global__ void attention_softmax(
    T* scores, const float* bias, T* dropped,
    int rows, int heads, int length, int bias_batch, int bias_head, int bias_query,
    const unsigned int* key, int threshold, float scale) {
    const int row = blockIdx.x * blockDim.y + threadIdx.y, column = threadIdx.x * PACK;
    const int here = row < rows ? length - column : 0;
    const long long at = (long long)row * length + column;
    const int query = row % length, head = row / length % heads, batch = row / length / heads;
    const long long of_bias = (long long)batch * bias_batch + (long long)head * bias_head + (long long)query * bias_query;

    float p[PACK], mask[PACK];
    load(p, scores + at, here);
    load(mask, bias + of_bias + column, here);
    float highest = -3.40282347e38f;
#pragma unroll
    for (int j = 0; j < PACK; j++) {
        p[j] += mask[j];
        if (j < here) highest = fmaxf(highest, p[j]);
    }
    highest = max_row(highest);
#pragma unroll
    for (int j = 0; j < PACK; j++) p[j] = j < here ? expf(p[j] - highest) : 0.0f;
    const float inverse = 1.0f / sum_row(sum_pack(p));
#pragma unroll
    for (int j = 0; j < PACK; j++) p[j] *= inverse;
    store(scores + at, here, p);
    drop(p, at, key, threshold, scale);
    if (dropped) store(dropped + at, here, p);
}

// dscores holds dp̃ and receives ds; p and dscores (rows, length).
extern "C" __global__ void attention_softmax_backward(
    T* dscores, const T* probabilities, int rows, int length,
    const unsigned int* key, int threshold, float scale) {
    const int row = blockIdx.x * blockDim.y + threadIdx.y, column = threadIdx.x * PACK;
    const int here = row < rows ? length - column : 0;
    const long long at = (long long)row * length + column;

    float d[PACK], p[PACK];
    load(d, dscores + at, here);
    load(p, probabilities + at, here);
    drop(d, at, key, threshold, scale);
    float products = 0;
#pragma unroll
    for (int j = 0; j < PACK; j++) products += d[j] * p[j];
    products = sum_row(products);
#pragma unroll
    for (int j = 0; j < PACK; j++) d[j] = p[j] * (d[j] - products);
    store(dscores + at, here, d);
}
