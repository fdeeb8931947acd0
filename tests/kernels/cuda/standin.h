// Stands in for device.h, so that the text of a CUDA kernel runs on a CPU: a test of what it computes, without a GPU.
//
// Every CUDA thread is a coroutine, which standin.cpp schedules.  What a kernel calls is inlined where its accesses to
// memory are counted: then each place of the text is one place of the code.
#include <cmath>
#include <cstdint>

namespace standin {
struct Index { unsigned x; };
extern unsigned current;  // thread of its block
extern Index block, threads, grid;

unsigned char* shared();
void meet_block();
void meet_warp();
void exchange(const void* mine, void* other, unsigned bytes, unsigned mask);
void copy_in(void* to, const void* from, unsigned bytes, unsigned long long* barrier);
void copy_out(void* to, const void* from, unsigned bytes);
void next_group();
void wait_in(unsigned groups);  // until all but the last so many groups of copies have arrived
void wait_out();
void barrier_start(unsigned long long* b);
void barrier_more(unsigned long long* b, unsigned bytes);
void barrier_end(unsigned long long* b, unsigned parity);
const char* run(void (*body)(const void*), const void* given, unsigned blocks, unsigned count, unsigned shared, unsigned seed);
}  // namespace standin

#define TPGEN_DEVICE
#ifdef COUNTED
#define DEVICE static inline __attribute__((always_inline))
#else
#define DEVICE static inline
#endif
#define __global__
#define __device__
#define __constant__
#define __noinline__
#define __grid_constant__
#define __launch_bounds__(...)
#define blockIdx standin::block
#define blockDim standin::threads
#define gridDim standin::grid

struct ThreadIndex { struct { __attribute__((always_inline)) operator unsigned() const { return standin::current; } } x; };
static const ThreadIndex threadIdx;

DEVICE unsigned char* shared_memory() { return standin::shared(); }
DEVICE int this_warp() { return standin::current / 32; }
DEVICE void __syncthreads() { standin::meet_block(); }
DEVICE void __syncwarp() { standin::meet_warp(); }
template <class T> DEVICE T __shfl_xor_sync(unsigned, T value, unsigned mask) {
  T other;
  standin::exchange(&value, &other, sizeof(T), mask);
  return other;
}

typedef unsigned long long barrier_t;
namespace async {  // COPIES >= 1
template <int BYTES> DEVICE void async_in(void* to, const void* from) { standin::copy_in(to, from, BYTES, nullptr); }
DEVICE void async_commit() { standin::next_group(); }
template <int N> DEVICE void async_wait() { standin::wait_in(N); }
}  // namespace async

namespace engine {  // COPIES == 2
using namespace async;
DEVICE void barrier_init(barrier_t* b) { standin::barrier_start(b); }
DEVICE void barrier_expect(barrier_t* b, unsigned bytes) { standin::barrier_more(b, bytes); }
DEVICE void barrier_wait(barrier_t* b, unsigned parity) { standin::barrier_end(b, parity); }
DEVICE void bulk_in(void* to, const void* from, unsigned bytes, barrier_t* b) { standin::copy_in(to, from, bytes, b); }
DEVICE void bulk_out(void* to, const void* from, unsigned bytes) { standin::copy_out(to, from, bytes); }
DEVICE void bulk_commit() {}
DEVICE void bulk_drain() { standin::wait_out(); }
DEVICE void bulk_seal() {}
}  // namespace engine

template <class Kernel>
const char* launch(Kernel kernel, unsigned blocks, unsigned count, unsigned shared, unsigned seed) {
  return standin::run([](const void* it) { (*(const Kernel*)it)(); }, &kernel, blocks, count, shared, seed);
}
