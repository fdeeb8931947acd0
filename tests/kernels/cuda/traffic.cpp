// Counts what the warps of a kernel ask of memory, as a device does: by request.
//
// A *request* is what the lanes of a warp ask for by one instruction.  The compiler calls us at every access to memory and at
// the head of every block of the code.  Between two barriers we know each lane's way through the code, and put
// the ways of a warp together: whoever is furthest behind in the code goes first, with all lanes that are at the same place.
// So lanes that left a loop wait for those in it.
//
// Device memory answers in sectors of 32 bytes; the fewest for a request are those that its bytes would fill side by side.
// Shared memory has 32 banks of four bytes: a request takes as long as the bank with most different words.
#include "traffic.h"

#include "standin.h"

#include <algorithm>
#include <vector>

namespace {
typedef unsigned long long u64;
constexpr unsigned LANES = 32, SECTOR = 32, BANKS = 32, WORD = 4;

struct Event { uintptr_t place, address; size_t bytes; };  // no bytes: the head of a block
struct Area {
  uintptr_t begin, end, unit;
  u64 bytes, answered, fewest;  // in units: sectors, or rounds of all banks
};
std::vector<Area> areas;  // shared memory first, then what is watched
std::vector<std::vector<Event>> ways;  // of each thread, while a kernel runs

const Area* area_of(uintptr_t address) {
  for (const Area& a : areas) if (a.begin <= address && address < a.end) return &a;
  return nullptr;
}

u64 most_in_a_bank(const std::vector<uintptr_t>& words) {
  u64 filled[BANKS] = {};
  for (uintptr_t word : words) ++filled[word % BANKS];
  return *std::max_element(filled, filled + BANKS);
}

void request(const std::vector<Event>& lanes) {
  Area& area = const_cast<Area&>(*area_of(lanes[0].address));
  const bool is_shared = &area == &areas[0];
  const uintptr_t base = is_shared ? area.begin : 0, unit = is_shared ? WORD : SECTOR;
  std::vector<uintptr_t> units;
  std::vector<std::pair<uintptr_t, uintptr_t>> spans;
  for (const Event& e : lanes) {
    for (uintptr_t n = (e.address - base) / unit; n <= (e.address - base + e.bytes - 1) / unit; ++n) units.push_back(n);
    spans.push_back({e.address, e.address + e.bytes});
  }
  std::sort(units.begin(), units.end());
  units.erase(std::unique(units.begin(), units.end()), units.end());
  std::sort(spans.begin(), spans.end());
  u64 bytes = 0;
  uintptr_t to = 0;
  for (auto [from, end] : spans) {
    from = std::max(from, to);
    if (end > from) bytes += end - from, to = end;
  }
  area.bytes += bytes;
  area.answered += is_shared ? most_in_a_bank(units) : units.size();
  area.fewest += is_shared ? (units.size() + BANKS - 1) / BANKS : (bytes + SECTOR - 1) / SECTOR;
}

void put_together(unsigned first, unsigned end) {  // the ways of a warp
  size_t at[LANES] = {};
  std::vector<Event> lanes;
  while (true) {
    uintptr_t behind = ~(uintptr_t)0;
    for (unsigned t = first; t < end; ++t)
      if (at[t - first] < ways[t].size()) behind = std::min(behind, ways[t][at[t - first]].place);
    if (behind == ~(uintptr_t)0) break;
    lanes.clear();
    for (unsigned t = first; t < end; ++t) {
      size_t& n = at[t - first];
      if (n == ways[t].size() || ways[t][n].place != behind) continue;
      if (ways[t][n].bytes) lanes.push_back(ways[t][n]);
      ++n;
    }
    if (!lanes.empty()) request(lanes);
  }
  for (unsigned t = first; t < end; ++t) ways[t].clear();
}
}  // namespace

namespace traffic {
void begin(const void* shared, size_t bytes, unsigned threads) {
  if (areas.empty()) return;
  areas[0].begin = (uintptr_t)shared;
  areas[0].end = (uintptr_t)shared + bytes;
  ways.assign(threads, {});
}
void touch(void* place, const void* address, size_t bytes) {
  if (!ways.empty() && area_of((uintptr_t)address)) ways[standin::current].push_back({(uintptr_t)place, (uintptr_t)address, bytes});
}
void copy(const void* address, size_t bytes) {
  if (!ways.empty() && area_of((uintptr_t)address)) request({{0, (uintptr_t)address, bytes}});
}
void met(unsigned first, unsigned end) {
  if (!ways.empty())
    for (unsigned t = first; t < end; t += LANES) put_together(t, std::min(end, t + LANES));
}
void end() { ways.clear(); }
}  // namespace traffic

extern "C" {
// From now on count what is asked of these areas, and of shared memory; what was counted is read from the same places.
void traffic_watch(unsigned count, const u64* begins, const u64* ends) {
  areas.assign(1 + count, Area{});
  for (unsigned n = 0; n < count; ++n) areas[n + 1].begin = begins[n], areas[n + 1].end = ends[n];
}
void traffic_read(u64* counts) {
  for (const Area& a : areas) *counts++ = a.bytes, *counts++ = a.answered, *counts++ = a.fewest;
  areas.clear();
}

// What the compiler calls.
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __sanitizer_cov_trace_pc() {
  if (!ways.empty()) ways[standin::current].push_back({(uintptr_t)__builtin_return_address(0), 0, 0});
}
#define ACCESS(NAME, BYTES) \
  void __tsan_##NAME(void* p) { traffic::touch(__builtin_return_address(0), p, BYTES); }
#define ACCESSES(BYTES) \
  ACCESS(read##BYTES, BYTES) ACCESS(write##BYTES, BYTES) \
  ACCESS(unaligned_read##BYTES, BYTES) ACCESS(unaligned_write##BYTES, BYTES)
ACCESSES(1) ACCESSES(2) ACCESSES(4) ACCESSES(8) ACCESSES(16)
void __tsan_read_range(void* p, size_t bytes) { traffic::touch(__builtin_return_address(0), p, bytes); }
void __tsan_write_range(void* p, size_t bytes) { traffic::touch(__builtin_return_address(0), p, bytes); }
}
