// Rows in the order of what they point to, on all threads.  Needs: i64, least, Room, expect_writes, on_threads.

static const i64 PARTS = 64;         // of the rows, at most
static const i64 PART = 16384;       // rows of a part, at least
static const i64 ROWS = 8 * PART;    // up to here one thread sorts
static const i64 PER_OWNER = 4;      // rows of a part for each owner, at least
template <class F> static void for_each_part(i64 parts, i64 rows, F f) {
  i64 next = 0; i64* const taken = &next;
  on_threads(parts, rows, ROWS, [=]() __attribute__((always_inline)) {
    for (i64 p; (p = __atomic_fetch_add(taken, 1, __ATOMIC_RELAXED)) < parts;) f(p);
  });
}
template <class Index> static int inside(const Index index, i64 n, i64 size) {
  const i64 parts = (n + PART - 1) / PART;
  int all = 1; int* const within = &all;
  for_each_part(parts, n, [=](i64 p) __attribute__((always_inline)) {
    int beyond = 0;
    for (i64 m = p * PART, end = least(n, m + PART); m < end; ++m) beyond |= index[m] < 0 || index[m] >= size;
    if (beyond) __atomic_store_n(within, 0, __ATOMIC_RELAXED);
  });
  return all;
}
// rows by owner, and within one owner in their order; first[o] is where owner o begins
template <class Index> static void sort_on_one_thread(const Index key, i64 n, i64 owners, i64* first, i64* order) {
  for (i64 o = 0; o <= owners; ++o) first[o] = 0;
  for (i64 m = 0; m < n; ++m) ++first[key[m]];
  for (i64 o = 0, sum = 0; o <= owners; ++o) { sum += first[o]; first[o] = sum; }
  for (i64 m = n - 1; m >= 0; --m) order[--first[key[m]]] = m;
}
// the same by parts of the rows: ``room`` has a number for each owner of each part
template <class Index>
static void sort_by_parts(const Index key, i64 n, i64 owners, i64* first, i64* order, i64 parts, i64* room) {
  i64 sums[PARTS + 1] = {}; i64* const sum = sums;
  expect_writes(order, n * (i64)sizeof(i64));
  expect_writes(room, parts * owners * (i64)sizeof(i64));
  for_each_part(parts, n, [=](i64 p) __attribute__((always_inline)) {
    i64* const count = room + p * owners;
    for (i64 o = 0; o < owners; ++o) count[o] = 0;
    for (i64 m = p * n / parts, end = (p + 1) * n / parts; m < end; ++m) ++count[key[m]];
  });
  for_each_part(parts, n, [=](i64 q) __attribute__((always_inline)) {  // of the owners
    const i64 from = q * owners / parts, to = (q + 1) * owners / parts;
    i64 rows = 0;
    for (i64 o = from; o < to; ++o) first[o + 1] = 0;
    for (i64 p = 0; p < parts; ++p) for (i64 o = from; o < to; ++o) first[o + 1] += room[p * owners + o];
    for (i64 o = from; o < to; ++o) rows += first[o + 1];
    sum[q + 1] = rows;
  });
  for (i64 q = 0; q < parts; ++q) sums[q + 1] += sums[q];
  first[0] = 0;
  for_each_part(parts, n, [=](i64 q) __attribute__((always_inline)) {  // counts become places
    const i64 from = q * owners / parts, to = (q + 1) * owners / parts;
    i64 begin = sum[q];
    for (i64 o = from; o < to; ++o) { const i64 rows = first[o + 1]; first[o + 1] = begin; begin += rows; }
    for (i64 p = 0; p < parts; ++p)
      for (i64 o = from; o < to; ++o) {
        const i64 rows = room[p * owners + o];
        room[p * owners + o] = first[o + 1];
        first[o + 1] += rows;  // at last where owner o ends
      }
  });
  for_each_part(parts, n, [=](i64 p) __attribute__((always_inline)) {
    i64* const place = room + p * owners;
    for (i64 m = p * n / parts, end = (p + 1) * n / parts; m < end; ++m) order[place[key[m]]++] = m;
  });
}
static i64 parts_for(i64 n, i64 owners) {
  return least(least(threads_for(n, ROWS), PARTS), least(n / PART, n / (PER_OWNER * (owners + 1))));
}
template <class Index> static void sort_rows(const Index key, i64 n, i64 owners, i64* first, i64* order) {
  const i64 parts = parts_for(n, owners);
  if (parts > 1) {
    const Room<i64> room(parts * owners + 1);
    if (room.at) return sort_by_parts(key, n, owners, first, order, parts, room.at);
  }
  sort_on_one_thread(key, n, owners, first, order);
}
// the first owner whose rows begin at or after a place in the order
static i64 owner_at(const i64* first, i64 owners, i64 place) {
  i64 low = 0, high = owners;
  while (low < high) {
    const i64 middle = (low + high) / 2;
    if (first[middle] < place) low = middle + 1; else high = middle;
  }
  return low;
}
