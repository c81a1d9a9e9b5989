// One step of AdamW over a flat buffer (ops/optimise.py), clip, decay and the 16-bit copy in the same pass.
//
//     g = clip · grad,   m = β₁ m + (1 − β₁) g,   v = β₂ v + (1 − β₂) g²
//     value −= lr · ((m / c₁) / (√(v / c₂) + ε) + λ · value)
//
// Whatever changes from step to step is read from device memory, so that a captured graph can be replayed.
// Where `norm` is not a finite number nothing is updated: the gradient has overflowed, and the step is left
// out without the host having to know.
#include "common.cuh"

// value, grad, mean, variance (count,) float32; copy (count,) of type T, or null; lr, clip, mean_correction,
// variance_correction scalars; norm a scalar, or null to update in any case.
extern "C" __global__ void adamw(
    float* value, const float* grad, float* mean, float* variance, T* copy, const float* lr, const float* clip,
    const float* mean_correction, const float* variance_correction, const float* norm,
    int count, float beta1, float one_minus_beta1, float beta2, float one_minus_beta2, float eps, float decay) {
    if (norm && !isfinite(*norm)) return;
    const long long at = ((long long)blockIdx.x * blockDim.x + threadIdx.x) * PACK;
    const int here = count - at < PACK ? (int)(count - at) : PACK;
    float p[PACK], g[PACK], m[PACK], v[PACK];
    load(p, value + at, here);
    load(g, grad + at, here);
    load(m, mean + at, here);
    load(v, variance + at, here);
#pragma unroll
    for (int j = 0; j < PACK; j++) {
        g[j] *= *clip;
        m[j] = beta1 * m[j] + one_minus_beta1 * g[j];
        v[j] = beta2 * v[j] + one_minus_beta2 * g[j] * g[j];
        const float direction = (m[j] / *mean_correction) / (sqrtf(v[j] / *variance_correction) + eps);
        p[j] -= *lr * (direction + decay * p[j]);
    }
    store(value + at, here, p);
    store(mean + at, here, m);
    store(variance + at, here, v);
    if (copy) store(copy + at, here, p);
}
