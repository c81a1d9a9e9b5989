// Lets a C++ compiler make host code of the CUDA sources, so that their numbers can be tested without a GPU.
//
// The blocks of a launch run one after the other; the threads of a block are fibers, which take turns. A
// fiber runs until it comes to __syncthreads or to a shuffle, and goes on when all whom that concerns have
// come there. If some never come (a barrier in a branch that not all threads take), the launch fails.
// A warp runs as far as it can before the next one's turn, from the first to the last or the other way
// round: the results must be the same bits, and where a barrier is missing they are not.
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __shared__ static
using std::isfinite;
static float __fdividef(float x, float y) { return x / y; }
using std::min;

struct Index {
    unsigned int x, y;
};

enum State { RUNS, AT_BARRIER, AT_SHUFFLE, DONE };

struct Fiber {
    ucontext_t context;
    std::vector<char> stack = std::vector<char>(64 << 10);
    Index index;
    State state;
    float shuffled[2];  // what it gave to its last two shuffles
    int shuffles;
};

static std::vector<Fiber> fibers;
static ucontext_t scheduler;
static int current;
static Index blockIdx, blockDim, gridDim;
static void (*run_thread)();
#define threadIdx (fibers[current].index)

static void wait_at(State state) {
    fibers[current].state = state;
    swapcontext(&fibers[current].context, &scheduler);
}

static void __syncthreads() { wait_at(AT_BARRIER); }

static float __shfl_xor_sync(unsigned int, float value, int distance) {
    const int turn = fibers[current].shuffles++ % 2;
    fibers[current].shuffled[turn] = value;
    wait_at(AT_SHUFFLE);
    return fibers[current ^ distance].shuffled[turn];
}

static void start_fiber() {
    run_thread();
    fibers[current].state = DONE;
}

// Let those fibers in [from, to) go on that all wait for each other.
static bool release(int from, int to, State state) {
    for (int i = from; i < to; i++)
        if (fibers[i].state != state) return false;
    for (int i = from; i < to; i++) fibers[i].state = RUNS;
    return true;
}

// Run one block. Returns whether every thread came to its end.
static bool run_block(bool backwards) {
    const int threads = blockDim.x * blockDim.y;
    for (int i = 0; i < threads; i++) {
        Fiber& fiber = fibers[i];
        fiber.index = {i % blockDim.x, i / blockDim.x};
        fiber.state = RUNS;
        fiber.shuffles = 0;
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = fiber.stack.data();
        fiber.context.uc_stack.ss_size = fiber.stack.size();
        fiber.context.uc_link = &scheduler;
        makecontext(&fiber.context, start_fiber, 0);
    }
    do {
        for (int warp = 0; warp < threads; warp += 32) {
            const int first = backwards ? threads - 32 - warp : warp;
            do {
                for (int i = 0; i < 32; i++) {
                    current = backwards ? first + 31 - i : first + i;
                    if (fibers[current].state == RUNS) swapcontext(&scheduler, &fibers[current].context);
                }
            } while (release(first, first + 32, AT_SHUFFLE));
        }
    } while (release(0, threads, AT_BARRIER));
    return std::all_of(fibers.begin(), fibers.begin() + threads, [](const Fiber& f) { return f.state == DONE; });
}

// -- Launching through addresses of arguments, as the CUDA driver does ------------------------------------

struct float16;
struct bfloat16;

template <class A> struct Name;
template <> struct Name<int> { static constexpr const char* value = "int32"; };
template <> struct Name<unsigned int> { static constexpr const char* value = "uint32"; };
template <> struct Name<float> { static constexpr const char* value = "float32"; };
template <> struct Name<float16> { static constexpr const char* value = "float16"; };
template <> struct Name<bfloat16> { static constexpr const char* value = "bfloat16"; };
template <class A> struct Name<const A> : Name<A> {};

template <class A> std::string describe(A*) { return std::string("*") + Name<A>::value + " "; }
template <class A> std::string describe(A) { return std::string(Name<A>::value) + " "; }

// The types of a kernel's parameters, for a launch to be checked against: "*float32 int32 …".
template <class... A>
const char* signature(void (*)(A...)) {
    static const std::string types = (describe(A()) + ... + std::string());
    return types.c_str();
}

template <class... A, size_t... I>
void call(void (*kernel)(A...), void** arguments, std::index_sequence<I...>) {
    kernel(*static_cast<A*>(arguments[I])...);
}

template <auto kernel, class... A>
int launch(void (*)(A...), const unsigned int* grid, const unsigned int* block, void** arguments, int backwards) {
    static void** given;
    given = arguments;
    run_thread = [] { call(kernel, given, std::index_sequence_for<A...>()); };
    gridDim = {grid[0], grid[1]};
    blockDim = {block[0], block[1]};
    if (fibers.size() < block[0] * block[1]) fibers.resize(block[0] * block[1]);
    const unsigned int blocks = grid[0] * grid[1];
    for (unsigned int i = 0; i < blocks; i++) {
        const unsigned int number = backwards ? blocks - 1 - i : i;
        blockIdx = {number % grid[0], number / grid[0]};
        if (!run_block(backwards)) return 1;
    }
    return 0;
}

#define KERNEL(name)                                                                                          \
    extern "C" const char* signature_##name() { return signature(name); }                                     \
    extern "C" int launch_##name(const unsigned int* grid, const unsigned int* block, void** arguments, int b) { \
        return launch<name>(name, grid, block, arguments, b);                                                 \
    }

// -- Storage, which on a GPU has instructions of its own ---------------------------------------------------

#include "common.cuh"

inline float to_float(float16 x) {
    _Float16 y;
    std::memcpy(&y, &x, 2);
    return y;
}

inline void narrow(float16& to, float x) {
    const _Float16 y = x;
    std::memcpy(&to, &y, 2);
}

inline float to_float(bfloat16 x) {
    const unsigned int bits = (unsigned int)x.bits << 16;
    float y;
    std::memcpy(&y, &bits, 4);
    return y;
}

inline void narrow(bfloat16& to, float x) {
    unsigned int bits;
    std::memcpy(&bits, &x, 4);
    if (x == x) bits += 0x7FFF + (bits >> 16) % 2;  // to nearest, ties to even; a NaN stays one
    to.bits = bits >> 16;
}
