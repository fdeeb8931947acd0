// Loops over many numbers, a vector at a time, on threads where they are many.  Needs: real, num, vec, on_threads, least,
// fetch, put.

static const bool SINGLE = sizeof(num) == 4;
static const num ROUNDING = SINGLE ? 0x1.8p23 : 0x1.8p52;  // to whole numbers, if added

enum { BLOCK = 1 << 14, WORTH_THREADS = 1 << 15 };  // numbers of a task; from how many on threads share them

// n numbers, as many as a vector has or fewer
static inline vec take(const real* p, i64 n) {
  if (n >= W) return fetch(p);
  vec v = {};
  for (i64 m = 0; m < n; ++m) v[m] = p[m];
  return v;
}
static inline void give(real* p, vec v, i64 n) {
  if (n >= W) return put(p, v);
  for (i64 m = 0; m < n; ++m) p[m] = v[m];
}
// call f(from, to) for blocks of items, each of which stands for some numbers
template <class F> static void in_blocks(i64 count, i64 block, i64 each, F f) {
  i64 next = 0; i64* const taken = &next;
  on_threads((count + block - 1) / block, count * each, WORTH_THREADS, [=]() __attribute__((always_inline)) {
    for (i64 at; (at = __atomic_fetch_add(taken, block, __ATOMIC_RELAXED)) < count;) f(at, least(at + block, count));
  });
}
// call f(place, how many) for every vector of items
template <class F> static void every(i64 count, i64 each, F f) {
  in_blocks(count, (BLOCK / each / W + 1) * W, each, [=](i64 at, i64 end) __attribute__((always_inline)) {
    for (i64 i = at; i < end; i += W) f(i, count - i);
  });
}
