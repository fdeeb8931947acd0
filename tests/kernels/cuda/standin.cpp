// Runs the threads of a CUDA kernel on a CPU, block after block.
//
// Which thread runs next, and when a copy arrives, is drawn at random.  So a missing barrier or wait shows as a wrong
// number, in some order.  What cannot go on, is not aligned or leaves shared memory is a fault.
#include "standin.h"
#include "traffic.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <ucontext.h>
#include <vector>

namespace standin {
unsigned current;
Index block, threads, grid;

namespace {
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

std::mt19937 draw;
std::vector<Thread> all;
std::vector<unsigned> ready, at_block;
std::vector<std::vector<unsigned>> at_warp;
std::vector<unsigned> at_copies;  // threads that wait for some copy
std::vector<Copy> copies;
std::vector<std::vector<char>> slots;  // what threads give to others of their warp
ucontext_t scheduler;
std::string fault;
std::vector<char> memory;
unsigned declared;  // bytes of shared memory
void (*body)(const void*);
const void* given;
unsigned haste;  // a copy arrives at one of so many switches, or when nothing else can go on
constexpr unsigned LANES = 32, MARGIN = 4096, STACK = 1 << 18;

void leave() { swapcontext(&all[current].context, &scheduler); }
void fail(const std::string& why) {
  if (fault.empty()) fault = why;
  leave();
}

bool last_to_meet(std::vector<unsigned>& waiting, unsigned members) {
  waiting.push_back(current);
  if (waiting.size() < members) return false;
  for (unsigned t : waiting) if (t != current) ready.push_back(t);
  waiting.clear();
  return true;
}

void wake() {  // those that wait look again
  ready.insert(ready.end(), at_copies.begin(), at_copies.end());
  at_copies.clear();
}
void end_phase(Barrier* b) {  // where all has arrived
  if (b->bytes || b->arrivals) return;
  b->arrivals = 1, b->phase ^= 1;
  wake();
}

void finish(size_t n) {  // a copy that is under way
  const Copy copy = copies[n];
  copies.erase(copies.begin() + n);
  std::memcpy(copy.to, copy.from, copy.bytes);
  if (copy.barrier) {
    auto b = (Barrier*)copy.barrier;
    b->bytes -= copy.bytes;
    end_phase(b);
  }
  wake();
}

void start(void* to, const void* from, unsigned bytes, unsigned long long* barrier, bool in) {
  const auto inside = (uintptr_t)(in ? to : from) - (uintptr_t)shared();
  const unsigned unit = bytes < 16 ? bytes : 16;
  if (bytes % unit || (uintptr_t)to % unit || (uintptr_t)from % unit) fail("a copy is not aligned");
  if (inside > declared || inside + bytes > declared) fail("a copy leaves shared memory");
  if (in) std::memset(to, 0xff, bytes);  // whoever reads before it arrives finds no number
  copies.push_back({(char*)to, (const char*)from, bytes, barrier, current, all[current].group, in});
}

template <class Pending> void wait_for_copies(Pending pending) {
  while (pending()) {
    at_copies.push_back(current);
    leave();
  }
}
bool mine(bool in, unsigned older_than) {
  for (const Copy& c : copies)
    if (c.thread == current && c.in == in && !c.barrier && c.group < older_than) return true;
  return false;
}

void begin() {
  body(given);
  all[current].done = true;
  if (mine(false, ~0u)) fault = "a thread ends while its copies read shared memory";
  leave();
}

void prepare(unsigned count) {
  std::fill(memory.begin(), memory.end(), char(0xff));
  all = std::vector<Thread>(count);
  at_block.clear();
  at_warp.assign((count + LANES - 1) / LANES, {});
  slots.assign(count, {});
  copies.clear();
  at_copies.clear();
  ready.clear();
  for (unsigned t = 0; t < count; ++t) {
    getcontext(&all[t].context);
    all[t].stack.reset(new char[STACK]);
    all[t].context.uc_stack.ss_sp = all[t].stack.get();
    all[t].context.uc_stack.ss_size = STACK;
    makecontext(&all[t].context, begin, 0);
    ready.push_back(t);
  }
}

void run_block(unsigned count) {
  prepare(count);
  while (fault.empty()) {
    if (!copies.empty() && (ready.empty() || draw() % haste == 0)) {
      finish(draw() % copies.size());
      continue;
    }
    if (ready.empty()) break;
    std::swap(ready[draw() % ready.size()], ready.back());
    current = ready.back();
    ready.pop_back();
    swapcontext(&scheduler, &all[current].context);
  }
  traffic::met(0, count);
  for (Thread& t : all) if (!t.done && fault.empty()) fault = "threads wait for what never comes";
  const char* const first = (char*)shared();
  for (const char* p = memory.data(); p < memory.data() + memory.size(); ++p)
    if ((p < first || p >= first + declared) && *p != char(0xff) && fault.empty()) fault = "written beside shared memory";
}
}  // namespace

unsigned char* shared() { return (unsigned char*)(((uintptr_t)memory.data() + MARGIN + 127) / 128 * 128); }

void meet_block() {
  if (last_to_meet(at_block, (unsigned)all.size())) return traffic::met(0, (unsigned)all.size());
  leave();
}
void meet_warp() {
  const unsigned warp = current / LANES;
  if (last_to_meet(at_warp[warp], LANES)) return traffic::met(warp * LANES, (warp + 1) * LANES);
  leave();
}

void exchange(const void* mine, void* other, unsigned bytes, unsigned mask) {
  slots[current].assign((const char*)mine, (const char*)mine + bytes);
  meet_warp();
  std::memcpy(other, slots[current ^ mask].data(), bytes);
  meet_warp();
}

void copy_in(void* to, const void* from, unsigned bytes, unsigned long long* barrier) {
  if (barrier) traffic::copy(from, bytes);
  else traffic::touch(__builtin_return_address(0), from, bytes);
  start(to, from, bytes, barrier, true);
}
void copy_out(void* to, const void* from, unsigned bytes) {
  traffic::copy(to, bytes);
  start(to, from, bytes, nullptr, false);
}
void next_group() { ++all[current].group; }
void wait_in(unsigned groups) {
  const unsigned group = all[current].group;
  wait_for_copies([=] { return mine(true, group < groups ? 0 : group - groups); });
}
void wait_out() {
  wait_for_copies([] { return mine(false, ~0u); });
}

void barrier_start(unsigned long long* b) { *(Barrier*)b = {0, 1, 0}; }
void barrier_more(unsigned long long* b, unsigned bytes) {
  auto* barrier = (Barrier*)b;
  if (barrier->arrivals != 1) fail("a barrier is used before its phase has ended");
  barrier->bytes += bytes;
  barrier->arrivals = 0;
  end_phase(barrier);
}
void barrier_end(unsigned long long* b, unsigned parity) {
  wait_for_copies([=] { return ((Barrier*)b)->phase == (short)parity; });
}

const char* run(void (*kernel)(const void*), const void* call, unsigned blocks, unsigned count, unsigned shared, unsigned seed) {
  draw.seed(seed);
  haste = 1u << (4 + seed % 3 * 12);
  fault.clear();
  declared = shared;
  memory.assign(shared + 2 * MARGIN + 256, char(0xff));
  body = kernel;
  given = call;
  grid = {blocks};
  threads = {count};
  traffic::begin(standin::shared(), shared, count);
  std::vector<unsigned> order(blocks);
  for (unsigned b = 0; b < blocks; ++b) order[b] = b;
  std::shuffle(order.begin(), order.end(), draw);
  for (unsigned b : order) {
    block = {b};
    run_block(count);
    if (!fault.empty()) break;
  }
  traffic::end();
  return fault.c_str();
}
}  // namespace standin
