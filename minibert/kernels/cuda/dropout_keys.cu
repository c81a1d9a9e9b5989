// The keys of all dropouts of a step, from what tells the step apart (dropout_bits.dropout_key).
//
//     for each word w of (seed, seed >> 32, step, micro_batch, replica, site):
//         first = mix(first ^ w),   second = mix(second + w)
//
// A replayed graph computes its keys itself: only the five words in `stream` change from step to step.
#include "common.cuh"

// stream (5,): the words but for the site. keys (sites, 2): one for each of the sites number 0, 1, ….
extern "C" __global__ void dropout_keys(const unsigned int* stream, unsigned int* keys, int sites) {
    const int site = blockIdx.x * blockDim.x + threadIdx.x;
    if (site >= sites) return;
    unsigned int first = 0x9E3779B9, second = 0x85EBCA6B;
    for (int i = 0; i < 6; i++) {
        const unsigned int word = i < 5 ? stream[i] : site;
        first = mix(first ^ word);
        second = mix(second + word);
    }
    keys[2 * site] = first;
    keys[2 * site + 1] = second;
}
