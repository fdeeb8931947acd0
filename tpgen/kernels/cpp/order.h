// Rows in the order of what they point to.  Needs: i64.

template <class Index> static int inside(const Index index, i64 n, i64 size) {
  for (i64 m = 0; m < n; ++m) if (index[m] < 0 || index[m] >= size) return 0;
  return 1;
}
// rows by owner, and within one owner in their order; first[o] is where owner o begins
template <class Index> static void sort_rows(const Index key, i64 n, i64 owners, i64* first, i64* order) {
  for (i64 o = 0; o <= owners; ++o) first[o] = 0;
  for (i64 m = 0; m < n; ++m) ++first[key[m]];
  for (i64 o = 0, sum = 0; o <= owners; ++o) { sum += first[o]; first[o] = sum; }
  for (i64 m = n - 1; m >= 0; --m) order[--first[key[m]]] = m;
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
