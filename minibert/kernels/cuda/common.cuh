// What all kernels share: how numbers are stored, 16-byte loads and stores, sums over a row, dropout.
//
// Every kernel computes in float32. The type T that activations are stored in is chosen when a source is
// compiled, with -DSTORAGE=float, float16 or bfloat16; parameters of size H (biases, γ, β), statistics and
// sums are float32 always.
//
// Nearly every kernel works on a matrix and shares it out in one way, with count = columns − column:
//
//     threadIdx.x, blockIdx.y   columns: a thread has PACK of them side by side, 16 bytes
//     threadIdx.y, blockIdx.x   rows:    a block has rows_per_block of them, blockDim.y at a time (a divisor)
#pragma once

// -- Storage ------------------------------------------------------------------------------------------

struct float16 {
    unsigned short bits;  // 1 sign, 5 exponent, 10 fraction
};

struct bfloat16 {
    unsigned short bits;  // 1 sign, 8 exponent, 7 fraction: the upper half of a float
};

// The instructions themselves, so that no header of CUDA's has to be found at run time.
#ifdef __CUDACC__
__device__ inline float to_float(float16 x) {
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
    return y;
}

__device__ inline float to_float(bfloat16 x) { return __uint_as_float((unsigned int)x.bits << 16); }

__device__ inline void narrow(float16& to, float x) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(to.bits) : "f"(x)); }

__device__ inline void narrow(bfloat16& to, float x) { asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(to.bits) : "f"(x)); }
#endif

__device__ inline float to_float(float x) { return x; }

__device__ inline void narrow(float& to, float x) { to = x; }

typedef STORAGE T;

constexpr int PACK = 16 / sizeof(T);  // how many numbers of type T a thread loads or stores at once

template <class A, int N>
struct alignas(N * sizeof(A)) Vector {
    A value[N];
};

// Read the PACK numbers at `from`, of which only the first `count` exist; the others become 0.
template <class A>
__device__ inline void load(float (&to)[PACK], const A* from, int count) {
    constexpr int N = 16 / sizeof(A);  // PACK float32 numbers may be 32 bytes: two loads
    if (count >= PACK && (unsigned long long)from % 16 == 0) {
#pragma unroll
        for (int i = 0; i < PACK; i += N) {
            const Vector<A, N> piece = *reinterpret_cast<const Vector<A, N>*>(from + i);
#pragma unroll
            for (int j = 0; j < N; j++) to[i + j] = to_float(piece.value[j]);
        }
    } else {
#pragma unroll
        for (int i = 0; i < PACK; i++) to[i] = i < count ? to_float(from[i]) : 0.0f;
    }
}

// Write the first `count` of PACK numbers.
template <class A>
__device__ inline void store(A* to, int count, const float (&from)[PACK]) {
    constexpr int N = 16 / sizeof(A);
    if (count >= PACK && (unsigned long long)to % 16 == 0) {
#pragma unroll
        for (int i = 0; i < PACK; i += N) {
            Vector<A, N> piece;
#pragma unroll
            for (int j = 0; j < N; j++) narrow(piece.value[j], from[i + j]);
            *reinterpret_cast<Vector<A, N>*>(to + i) = piece;
        }
    } else {
#pragma unroll
        for (int i = 0; i < PACK; i++)
            if (i < count) narrow(to[i], from[i]);
    }
}

// -- Sums ---------------------------------------------------------------------------------------------

struct Sum {
    static __device__ float combine(float a, float b) { return a + b; }
};

struct Maximum {
    static __device__ float combine(float a, float b) { return fmaxf(a, b); }
};

// Combine the values of all threads with one threadIdx.y; each of them gets the result, the same bits. To be
// called by the whole block. blockDim.x is a power of two up to 32, or a multiple of 32.
template <class Operation>
__device__ inline float over_row(float value) {
    const int lanes = blockDim.x < 32 ? blockDim.x : 32;
    for (int distance = lanes / 2; distance > 0; distance /= 2)
        value = Operation::combine(value, __shfl_xor_sync(0xFFFFFFFF, value, distance));
    if (blockDim.x <= 32) return value;

    __shared__ float of_warp[32];  // a row is several warps, and a block has 32 at most
    const int thread = threadIdx.y * blockDim.x + threadIdx.x;
    const int warps = blockDim.x / 32;
    __syncthreads();  // everyone has read what an earlier call left here
    if (thread % 32 == 0) of_warp[thread / 32] = value;
    __syncthreads();
    value = of_warp[threadIdx.y * warps];
    for (int i = 1; i < warps; i++) value = Operation::combine(value, of_warp[threadIdx.y * warps + i]);
    return value;
}

__device__ inline float sum_row(float value) { return over_row<Sum>(value); }

__device__ inline float max_row(float value) { return over_row<Maximum>(value); }

__device__ inline float sum_pack(const float (&x)[PACK]) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < PACK; i++) sum += x[i];
    return sum;
}

constexpr int MAX_THREADS = 256;  // of a block with several rows

// Add up column sums over threadIdx.y, always in the same order, and store the total. To be called by the
// whole block.
__device__ inline void store_column_sums(float* to, int count, float (&sum)[PACK]) {
    if (blockDim.y > 1) {
        __shared__ float of_thread[MAX_THREADS][PACK];
        const int thread = threadIdx.y * blockDim.x + threadIdx.x;
        __syncthreads();  // everyone has read what an earlier call left here
#pragma unroll
        for (int i = 0; i < PACK; i++) of_thread[thread][i] = sum[i];
        __syncthreads();
        if (threadIdx.y == 0)
            for (int y = 1; y < blockDim.y; y++)
#pragma unroll
                for (int i = 0; i < PACK; i++) sum[i] += of_thread[y * blockDim.x + threadIdx.x][i];
    }
    if (threadIdx.y == 0) store(to, count, sum);
}

// -- Dropout (ops/inverted_dropout.py, dropout_bits.random_bits) ---------------------------------------

__device__ inline unsigned int mix(unsigned int word) {
    word ^= word >> 16;
    word *= 0x7FEB352D;
    word ^= word >> 15;
    word *= 0x846CA68B;
    return word ^ (word >> 16);
}

// Two elements' random bits: those of the elements number 2 · index and 2 · index + 1.
__device__ inline unsigned int random_word(const unsigned int* key, long long index) {
    return mix(mix((unsigned int)index ^ key[0]) + key[1]);
}

// Where an element's 16 random bits are below the threshold it becomes 0, elsewhere it is multiplied with
// the scale. x holds the elements number first, first + 1, … of the whole array. No key, no dropout.
__device__ inline void drop(float (&x)[PACK], long long first, const unsigned int* key, int threshold, float scale) {
    if (key == nullptr) return;
    const int odd = first % 2;  // then x begins with the second half of a word
    unsigned int word = random_word(key, first / 2);
#pragma unroll
    for (int i = 0; i < PACK; i++) {
        const bool second = (i + odd) % 2;
        const int bits = second ? word >> 16 : word & 0xFFFF;
        x[i] = bits >= threshold ? x[i] * scale : 0.0f;
        if (second && i + 1 < PACK) word = random_word(key, (first + i + 1) / 2);
    }
}
