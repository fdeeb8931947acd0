// Room for large results, used again when the tensors that held it are gone.  Needs: torch.
//
// A fresh page costs the system more to hand out and clear than a kernel needs to fill it, and large tensors go back to
// the system at every free.  So results of 1 MiB and more stand in regions of addresses, whose pages are kept for the next
// results, of whatever sizes: placed at the lowest free addresses, neighbours that become free are one span again.  One
// rule says how much is kept: with it, results take at most twice the room that those of the last `WINDOW` to twice as
// many took at once, or 256 MiB.  And what is kept is offered to the system, to take when it runs out of memory: whenever
// `OFFERED` places or 256 MiB have come back, as an offer at each costs a small kernel a fifth of its time.

enum : i64 { PAGE = 1 << 21, LARGE = PAGE / 2, UNIT = 4096, KEPT = 256ll << 20, RESERVED = 1ll << 30, NO_LIMIT = -1 };
enum { WINDOW = 1000, OFFERED = 64, MOST_REGIONS = 64 };

extern "C" {
// torch 2.11 and later
__attribute__((weak)) int torch_from_blob(
    void*, i64 dim, const i64* sizes, const i64* strides, i64 offset, int dtype, int device, int index, Handle* made,
    int layout, const unsigned char*, i64, void (*gone)(void* at, void* place), void* place);
int aoti_torch_layout_strided();
int sched_yield();
void* mmap(void*, unsigned long, int, int, int, long);
int munmap(void*, unsigned long);
int madvise(void*, unsigned long, int);
void* calloc(unsigned long, unsigned long);
void* realloc(void*, unsigned long);
void free(void*);
void* memmove(void*, const void*, unsigned long);
}

static i64 whole(i64 size, i64 unit) { return (size + unit - 1) / unit * unit; }
static i64 least(i64 a, i64 b) { return a < b ? a : b; }
static i64 most(i64 a, i64 b) { return a > b ? a : b; }

// -- a region of addresses, its free spans, and which of its huge pages hold memory ----------------------------------

enum Advice { DONT_NEED = 4, OFFER = 8, HUGE_PAGES = 14 };
struct Span { i64 begin, end; };
struct Region {
  void* mapped;
  char* base;            // its first huge page
  i64 size, spans, room;  // the last: of spans
  Span* free;             // ascending, none beside another
  bool* filled;           // for each huge page, whether it may hold memory
};

static void close(Region* r) {
  if (r->mapped) munmap(r->mapped, r->size + PAGE);
  free(r->free), free(r->filled), free(r);
}
static Region* open_region(i64 size) {
  Region* r = (Region*)calloc(1, sizeof(Region));
  if (!r) return 0;
  r->size = whole(size, PAGE), r->spans = 1, r->room = 64;
  r->free = (Span*)calloc(r->room, sizeof(Span));
  r->filled = (bool*)calloc(r->size / PAGE, 1);
  void* found = mmap(0, r->size + PAGE, 3, 0x22, -1, 0);  // private pages that are written; refused where memory cannot suffice
  r->mapped = found == (void*)-1 ? 0 : found;
  if (!r->mapped || !r->free || !r->filled) return close(r), (Region*)0;
  r->base = (char*)whole((i64)r->mapped, PAGE);
  r->free[0] = {0, r->size};
  madvise(r->base, r->size, HUGE_PAGES);
  return r;
}
static bool is_empty(const Region* r) {
  for (i64 p = 0; p < r->size / PAGE; ++p) if (r->filled[p]) return false;
  return r->spans == 1 && r->free[0].begin == 0 && r->free[0].end == r->size;
}
static void remove_span(Region* r, i64 n) { memmove(r->free + n, r->free + n + 1, (--r->spans - n) * sizeof(Span)); }
// the lowest free place, -1 where none fits, and the bytes of fresh pages that it needs
static i64 take_from(Region* r, i64 size, i64& fresh) {
  for (i64 n = 0; n < r->spans; ++n) {
    Span& span = r->free[n];
    if (span.end - span.begin < size) continue;
    const i64 begin = span.begin;
    span.begin += size;
    if (span.begin == span.end) remove_span(r, n);
    for (i64 p = begin / PAGE; p * PAGE < begin + size; ++p)
      if (!r->filled[p]) r->filled[p] = true, fresh += PAGE;
    return begin;
  }
  return -1;
}
// false where there is no memory to note it: the place stays taken
static bool give_to(Region* r, i64 begin, i64 size) {
  const i64 end = begin + size;
  i64 n = 0;
  while (n < r->spans && r->free[n].begin < begin) ++n;
  const bool before = n && r->free[n - 1].end == begin, behind = n < r->spans && r->free[n].begin == end;
  if (before && behind) r->free[n - 1].end = r->free[n].end, remove_span(r, n);
  else if (before) r->free[n - 1].end = end;
  else if (behind) r->free[n].begin = begin;
  else {
    if (r->spans == r->room) {
      Span* more = (Span*)realloc(r->free, 2 * r->room * sizeof(Span));
      if (!more) return false;
      r->free = more, r->room *= 2;
    }
    memmove(r->free + n + 1, r->free + n, (r->spans++ - n) * sizeof(Span));
    r->free[n] = {begin, end};
  }
  return true;
}
// Let the system take what is free: whole huge pages that hold memory.
static void offer(Region* r) {
  i64 filled = r->size / PAGE;
  while (filled && !r->filled[filled - 1]) --filled;
  for (i64 n = 0; n < r->spans; ++n) {
    const i64 first = whole(r->free[n].begin, PAGE) / PAGE, last = least(r->free[n].end / PAGE, filled);
    if (first < last) madvise(r->base + first * PAGE, (last - first) * PAGE, OFFER);
  }
}
// Give pages of free spans back to the system, the highest first, until so many bytes are; how many were.
static i64 trim(Region* r, i64 wanted) {
  i64 given = 0;
  for (i64 n = r->spans - 1; n >= 0; --n)
    for (i64 p = r->free[n].end / PAGE - 1; p * PAGE >= r->free[n].begin && given < wanted; --p)
      if (r->filled[p]) {
        madvise(r->base + p * PAGE, PAGE, DONT_NEED);
        r->filled[p] = false, given += PAGE;
      }
  return given;
}

// -- all regions of this library ---------------------------------------------------------------------------------------

struct Place { Region* region; i64 begin, size; };
static struct {
  char locked;
  i64 limit = NO_LIMIT, filled, used;  // of what is kept; bytes of pages that hold memory; bytes of tensors
  i64 before, now, taken;              // most bytes in use at once, in the last whole window and in this one
  i64 freed, freed_bytes;              // since pages were offered
  i64 count;
  Region* region[MOST_REGIONS];
} arena;
struct Guard {
  Guard() { while (__atomic_test_and_set(&arena.locked, __ATOMIC_ACQUIRE)) sched_yield(); }
  ~Guard() { __atomic_clear(&arena.locked, __ATOMIC_RELEASE); }
};

static i64 kept() { return arena.filled - arena.used; }
static i64 may_keep() {
  return arena.limit >= 0 ? arena.limit : most(KEPT, 2 * most(arena.before, arena.now)) - arena.used;
}
// Keep so many bytes, those of the lowest addresses, and no region that is empty then.
static void trim(i64 keep) {
  i64 left = 0;
  for (i64 n = arena.count - 1; n >= 0 && kept() > keep; --n) arena.filled -= trim(arena.region[n], kept() - keep);
  for (i64 n = 0; n < arena.count; ++n)
    if (is_empty(arena.region[n])) close(arena.region[n]);
    else arena.region[left++] = arena.region[n];
  arena.count = left;
}
// a new region, as large as all others together where the system allows it
static Region* reserve(i64 size) {
  i64 wanted = most(size, RESERVED);
  for (i64 n = 0; n < arena.count; ++n) wanted += arena.region[n]->size;
  Region* made = open_region(wanted);
  if (!made) made = open_region(size);
  if (!made) trim(0), made = open_region(size);
  if (made && arena.count == MOST_REGIONS) close(made), made = 0;
  if (made) arena.region[arena.count++] = made;
  return made;
}
static bool take(i64 size, Place& found) {
  const Guard guard;
  i64 fresh = 0;
  found = {0, -1, whole(size, UNIT)};
  for (i64 n = 0; n < arena.count && found.begin < 0; ++n) {
    found.region = arena.region[n];
    found.begin = take_from(found.region, found.size, fresh);
  }
  if (found.begin < 0) {
    if (!(found.region = reserve(found.size))) return false;
    found.begin = take_from(found.region, found.size, fresh);
  }
  arena.filled += fresh, arena.used += found.size;
  if (++arena.taken % WINDOW == 0) arena.before = arena.now, arena.now = 0;
  arena.now = most(arena.now, arena.used);
  return true;
}
static void give_back(const Place& p) {
  const Guard guard;
  if (!give_to(p.region, p.begin, p.size)) return;
  arena.used -= p.size, arena.freed_bytes += p.size;
  if (kept() > may_keep()) trim(may_keep());
  if (++arena.freed < OFFERED && arena.freed_bytes < KEPT) return;
  arena.freed = arena.freed_bytes = 0;
  for (i64 n = 0; n < arena.count; ++n) offer(arena.region[n]);
}

// -- tensors -----------------------------------------------------------------------------------------------------------

static void forget(void*, void* place) {
  give_back(*(Place*)place);
  free(place);
}
// A dense tensor without values on used pages, on the CPU; no handle where torch must make it.
static Handle used_pages(const i64* sizes, const i64* steps, i64 dim, int dtype, i64 bytes) {
#ifndef __linux__
  return 0;
#endif
  if (bytes < LARGE || !arena.limit || !torch_from_blob) return 0;
  Handle made = 0;
  Place* place = (Place*)calloc(1, sizeof(Place));
  if (!place || !take(bytes, *place)) return free(place), made;
  if (torch_from_blob(place->region->base + place->begin, dim, sizes, steps, 0, dtype, aoti_torch_device_type_cpu(), -1,
                      &made, aoti_torch_layout_strided(), 0, 0, forget, place))
    forget(0, place), made = 0;
  return made;
}
