// The gradient of a look-up (ops/embedding_lookup.py): rows that were used more than once collect their sum.
//
//     dweight[v] = Σ d[r] over all r with ids[r] = v
//
// Adding each row to its place with atomics would give other bits in every run. Instead the ids are sorted,
// by counting, eight bits at a time; equal ids keep their order. Then every CHUNK of sorted entries is added
// up by itself, and a run of equal ids that crosses from one chunk into the next is joined at the end.
#include "common.cuh"

constexpr int TILE = 512;   // entries that a block sorts
constexpr int DIGITS = 256;
constexpr int CHUNK = 32;   // sorted entries that are added up one after the other

// -- Sorting. One thread for each of the 256 digits walks over the block's entries: no race, and stable. --

__device__ inline int digit_of(int id, int shift) { return (id >> shift) % DIGITS; }

// counts[digit, block]: how often the digit occurs in the block's tile. ids (n,), counts (DIGITS, blocks).
extern "C" __global__ void count_digits(const int* ids, int* counts, int n, int shift) {
    __shared__ int tile[TILE];
    const int start = blockIdx.x * TILE, size = min(TILE, n - start);
    for (int i = threadIdx.x; i < size; i += DIGITS) tile[i] = digit_of(ids[start + i], shift);
    __syncthreads();
    int count = 0;
    for (int i = 0; i < size; i++) count += tile[i] == threadIdx.x;
    counts[threadIdx.x * gridDim.x + blockIdx.x] = count;
}

// counts (n,) become the sums of all before them: where each block's entries of each digit begin. One block.
extern "C" __global__ void running_sums(int* counts, int n) {
    __shared__ int of_thread[1024];
    const int each = (n + blockDim.x - 1) / blockDim.x;  // a thread sums up so many neighbours
    const int start = min(n, (int)threadIdx.x * each), end = min(n, start + each);
    int sum = 0;
    for (int i = start; i < end; i++) sum += counts[i];
    of_thread[threadIdx.x] = sum;
    __syncthreads();
    for (int distance = 1; distance < blockDim.x; distance *= 2) {
        const int before = threadIdx.x >= distance ? of_thread[threadIdx.x - distance] : 0;
        __syncthreads();
        of_thread[threadIdx.x] += before;
        __syncthreads();
    }
    int position = of_thread[threadIdx.x] - sum;
    for (int i = start; i < end; i++) {
        const int count = counts[i];
        counts[i] = position;
        position += count;
    }
}

// Put every entry where its digit's turn is. order holds what the sorting carries along, the entry's first
// position; null at the start, when that is where it stands.
extern "C" __global__ void place_by_digit(
    const int* ids, const int* order, const int* positions, int* sorted_ids, int* sorted_order, int n, int shift) {
    __shared__ int tile[TILE];
    const int start = blockIdx.x * TILE, size = min(TILE, n - start);
    for (int i = threadIdx.x; i < size; i += DIGITS) tile[i] = ids[start + i];
    __syncthreads();
    int position = positions[threadIdx.x * gridDim.x + blockIdx.x];
    for (int i = 0; i < size; i++) {
        if (digit_of(tile[i], shift) == threadIdx.x) {
            sorted_ids[position] = tile[i];
            sorted_order[position] = order ? order[start + i] : start + i;
            position++;
        }
    }
}

// -- Adding up. threadIdx.x and blockIdx.y share out the columns; every threadIdx.y has a chunk. ----------

// ids, order (n,) sorted; d (rows, size); dweight (V, size), zero before. A run that lies within the chunk
// goes to dweight; the part of one that came from the chunk before to partial[chunk, 0], that of one that
// began here and goes on to partial[chunk, 1]. partial (chunks, 2, size).
extern "C" __global__ void sum_runs(
    const int* ids, const int* order, const T* d, float* dweight, float* partial, int n, int size) {
    const int column = (blockIdx.y * blockDim.x + threadIdx.x) * PACK, count = size - column;
    const int chunk = blockIdx.x * blockDim.y + threadIdx.y;
    const int start = chunk * CHUNK, end = min(n, start + CHUNK);
    bool from_before = start > 0 && start < n && ids[start - 1] == ids[start];
    float sum[PACK] = {};
    for (int i = start; i < end; i++) {
        float value[PACK];
        load(value, d + (long long)order[i] * size + column, count);
#pragma unroll
        for (int j = 0; j < PACK; j++) sum[j] += value[j];

        const bool run_ends = i + 1 == n || ids[i + 1] != ids[i];
        if (run_ends || i + 1 == end) {
            float* to = from_before ? partial + (2LL * chunk) * size
                        : run_ends  ? dweight + (long long)ids[i] * size
                                    : partial + (2LL * chunk + 1) * size;
            store(to + column, count, sum);
            from_before = false;
#pragma unroll
            for (int j = 0; j < PACK; j++) sum[j] = 0;
        }
    }
}

// A block for every chunk but the last: if a run begins in it and goes on, add up all its parts. threadIdx.y
// shares out the parts.
extern "C" __global__ void join_runs(const int* ids, const float* partial, float* dweight, int n, int size) {
    const int column = (blockIdx.y * blockDim.x + threadIdx.x) * PACK, count = size - column;
    const int chunk = blockIdx.x, start = chunk * CHUNK, next = start + CHUNK;
    const int id = ids[next - 1];
    const bool goes_on = ids[next] == id;
    const bool from_before = start > 0 && ids[start - 1] == id;
    if (!goes_on || from_before) return;  // the whole block

    int last = next, beyond = n;  // the run ends somewhere in [next + 1, n]: halve until it is found
    while (last + 1 < beyond) {
        const int middle = (last + beyond) / 2;
        (ids[middle] == id ? last : beyond) = middle;
    }
    const int last_chunk = last / CHUNK;
    float sum[PACK] = {};
#pragma unroll 4
    for (int part = chunk + threadIdx.y; part <= last_chunk; part += blockDim.y) {
        float value[PACK];
        load(value, partial + (2LL * part + (part == chunk)) * size + column, count);
#pragma unroll
        for (int j = 0; j < PACK; j++) sum[j] += value[j];
    }
    store_column_sums(dweight + (long long)id * size + column, count, sum);
}
