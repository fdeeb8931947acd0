// Runs the text of a CUDA kernel on a CPU, in place of device.h: a test of what it computes, for machines without a GPU.
//
// Every CUDA thread is a coroutine; which one runs next, and when a copy arrives, is drawn at random.  So a missing barrier
// or wait shows as a wrong number, in some order.  What cannot go on, is not aligned or leaves shared memory is a fault.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <ucontext.h>
#include <vector>

namespace standin {

struct Index { unsigned x; };
struct Copy {
  char* to;
  const char* from;
  unsigned bytes;
  unsigned long long* barrier;  // of copies to shared memory by the engine
  unsigned thread, group;
  bool in;
};
struct Thread {
  ucontext_t context;
  std::unique_ptr<char[]> stack;
  unsigned group = 0;  // of copies
  bool done = false;
};
struct Barrier { int bytes; short arrivals; short phase; };
static_assert(sizeof(Barrier) == 8);

inline std::mt19937 draw;
inline std::vector<Thread> threads;
inline std::vector<unsigned> ready, at_block;
inline std::vector<std::vector<unsigned>> at_warp;
inline std::vector<unsigned> at_copies;  // threads that wait for some copy
inline std::vector<Copy> copies;
inline std::vector<std::vector<char>> slots;  // what threads give to others of their warp
inline ucontext_t scheduler;
inline unsigned current;
inline std::string fault;
inline std::vector<char> memory;
inline unsigned declared;  // bytes of shared memory
inline std::function<void()> body;
inline unsigned haste;  // a copy arrives at one of so many switches, or when nothing else can go on
constexpr unsigned MARGIN = 4096, STACK = 1 << 18;

inline void leave() { swapcontext(&threads[current].context, &scheduler); }
inline void fail(const std::string& why) {
  if (fault.empty()) fault = why;
  leave();
}
inline unsigned char* shared() { return (unsigned char*)(((uintptr_t)memory.data() + MARGIN + 127) / 128 * 128); }

inline void meet(std::vector<unsigned>& waiting, unsigned members) {
  waiting.push_back(current);
  if (waiting.size() == members) {
    for (unsigned t : waiting) if (t != current) ready.push_back(t);
    waiting.clear();
    return;
  }
  leave();
}

inline void finish(size_t n) {  // a copy that is under way
  const Copy copy = copies[n];
  copies.erase(copies.begin() + n);
  std::memcpy(copy.to, copy.from, copy.bytes);
  if (copy.barrier) {
    auto b = (Barrier*)copy.barrier;
    b->bytes -= copy.bytes;
    if (!b->bytes && !b->arrivals) b->arrivals = 1, b->phase ^= 1;
  }
  ready.insert(ready.end(), at_copies.begin(), at_copies.end());
  at_copies.clear();
}

inline void start(void* to, const void* from, unsigned bytes, unsigned long long* barrier, bool in) {
  const auto inside = (uintptr_t)(in ? to : from) - (uintptr_t)shared();
  const unsigned unit = bytes < 16 ? bytes : 16;
  if (bytes % unit || (uintptr_t)to % unit || (uintptr_t)from % unit) fail("a copy is not aligned");
  if (inside > declared || inside + bytes > declared) fail("a copy leaves shared memory");
  if (in) std::memset(to, 0xff, bytes);  // whoever reads before it arrives finds no number
  copies.push_back({(char*)to, (const char*)from, bytes, barrier, current, threads[current].group, in});
}

template <class Pending> void wait_for_copies(Pending pending) {
  while (pending()) {
    at_copies.push_back(current);
    leave();
  }
}
inline bool mine(bool in, unsigned older_than) {
  for (const Copy& c : copies)
    if (c.thread == current && c.in == in && !c.barrier && c.group < older_than) return true;
  return false;
}

template <class T> T exchange(T value, unsigned mask) {
  const unsigned lane = current % 32, warp = current / 32;
  slots[current].resize(sizeof(T));
  std::memcpy(slots[current].data(), &value, sizeof(T));
  meet(at_warp[warp], 32);
  T other;
  std::memcpy(&other, slots[warp * 32 + (lane ^ mask)].data(), sizeof(T));
  meet(at_warp[warp], 32);
  return other;
}

inline void begin() {
  body();
  threads[current].done = true;
  if (mine(false, ~0u)) fault = "a thread ends while its copies read shared memory";
  leave();
}

inline void run_block(unsigned count) {
  std::fill(memory.begin(), memory.end(), char(0xff));
  threads = std::vector<Thread>(count);
  at_block.clear();
  at_warp.assign((count + 31) / 32, {});
  slots.assign(count, {});
  copies.clear();
  at_copies.clear();
  ready.clear();
  for (unsigned t = 0; t < count; ++t) {
    getcontext(&threads[t].context);
    threads[t].stack.reset(new char[STACK]);
    threads[t].context.uc_stack.ss_sp = threads[t].stack.get();
    threads[t].context.uc_stack.ss_size = STACK;
    makecontext(&threads[t].context, begin, 0);
    ready.push_back(t);
  }
  while (fault.empty()) {
    if (!copies.empty() && (ready.empty() || draw() % haste == 0)) {
      finish(draw() % copies.size());
      continue;
    }
    if (ready.empty()) break;
    std::swap(ready[draw() % ready.size()], ready.back());
    current = ready.back();
    ready.pop_back();
    swapcontext(&scheduler, &threads[current].context);
  }
  for (Thread& t : threads) if (!t.done && fault.empty()) fault = "threads wait for what never comes";
  const char* const first = (char*)shared();
  for (const char* p = memory.data(); p < memory.data() + memory.size(); ++p)
    if ((p < first || p >= first + declared) && *p != char(0xff) && fault.empty()) fault = "written beside shared memory";
}
}  // namespace standin

#define TPGEN_DEVICE
#define DEVICE static inline
#define __global__
#define __device__
#define __constant__
#define __noinline__
#define __grid_constant__
#define __launch_bounds__(...)

static standin::Index blockIdx, blockDim, gridDim;
struct ThreadIndex { struct { operator unsigned() const { return standin::current; } } x; };
static const ThreadIndex threadIdx;

static inline unsigned char* shared_memory() { return standin::shared(); }
static inline void __syncthreads() { standin::meet(standin::at_block, (unsigned)standin::threads.size()); }
static inline void __syncwarp() { standin::meet(standin::at_warp[standin::current / 32], 32); }
template <class T> T __shfl_xor_sync(unsigned, T value, unsigned mask) { return standin::exchange(value, mask); }

typedef unsigned long long barrier_t;
namespace async {  // COPIES >= 1
template <int BYTES> void async_in(void* to, const void* from) { standin::start(to, from, BYTES, nullptr, true); }
static inline void async_commit() { ++standin::threads[standin::current].group; }
template <int N> void async_wait() {
  const unsigned group = standin::threads[standin::current].group;
  standin::wait_for_copies([=] { return standin::mine(true, group < N ? 0 : group - N); });
}
}  // namespace async

namespace engine {  // COPIES == 2
using namespace async;
static inline void barrier_init(barrier_t* b) { *(standin::Barrier*)b = {0, 1, 0}; }
static inline void barrier_expect(barrier_t* b, unsigned bytes) {
  auto* barrier = (standin::Barrier*)b;
  if (barrier->arrivals != 1) standin::fail("a barrier is used before its phase has ended");
  barrier->bytes += bytes;
  barrier->arrivals = 0;
  if (!barrier->bytes) barrier->arrivals = 1, barrier->phase ^= 1;
}
static inline void barrier_wait(barrier_t* b, unsigned parity) {
  standin::wait_for_copies([=] { return ((standin::Barrier*)b)->phase == (short)parity; });
}
static inline void bulk_in(void* to, const void* from, unsigned bytes, barrier_t* b) { standin::start(to, from, bytes, b, true); }
static inline void bulk_out(void* to, const void* from, unsigned bytes) { standin::start(to, from, bytes, nullptr, false); }
static inline void bulk_commit() {}
static inline void bulk_drain() {
  standin::wait_for_copies([] { return standin::mine(false, ~0u); });
}
static inline void bulk_seal() {}
}  // namespace engine
template <class Kernel> const char* launch(Kernel kernel, unsigned blocks, unsigned count, unsigned shared, unsigned seed) {
  standin::draw.seed(seed);
  standin::haste = 1u << (4 + seed % 3 * 12);
  standin::fault.clear();
  standin::declared = shared;
  standin::memory.assign(shared + 2 * standin::MARGIN + 256, char(0xff));
  standin::body = kernel;
  gridDim = {blocks};
  blockDim = {count};
  std::vector<unsigned> order(blocks);
  for (unsigned b = 0; b < blocks; ++b) order[b] = b;
  std::shuffle(order.begin(), order.end(), standin::draw);
  for (unsigned b : order) {
    blockIdx = {b};
    standin::run_block(count);
    if (!standin::fault.empty()) break;
  }
  return standin::fault.c_str();
}
